//! doorbell: writes to the doorbell pages in, producers and wakes out.
//!
//! ```text
//! DoorbellWrite  clock 0 rights line asked   1 judged   > post_sq, wake | post_rq, receive | CqDoorbell | EqDoorbell | counted
//!                                                       > PushStore | PushRing
//! ```
//! A send or receive doorbell must name a QP that exists and belongs to the page that was written; then its producer is
//! stored, and in the same clock schedule (SQ) or place (RQ) hears of it by a pulse. What the producer says is not judged: a wrong
//! one makes the QP fetch WQEs that carry another index, and hurts its owner alone. CQ doorbells pass to complete, which
//! knows the owners; EQ doorbells pass to notify, from page 0 only. Stores to the push buffer pass to push, which hears of
//! every doorbell: when the turn that a pushed one wakes reaches fetch, push offers it the WQE, which goes first. Every refusal has a name: DoorbellUnknown (no such QP),
//! DoorbellOwner (another page's), DoorbellMalformed (no doorbell at that offset).
//!
//! `initialise` with `reset` clears both producers. Throughput: one doorbell per 2 clocks, one store per clock. Latency 2. Back-pressure: only
//! from complete and notify, for CQ and EQ doorbells.
//!
//! Requirements: CARD QPS QUE

use crate::config::Config;
use crate::flow::{Count, DoorbellWrite, PushRing, PushStore, QueueDoorbell, WakePulse};
use crate::prim::fifo::buffer;
use crate::qp::{INDEX, Initialise, StateShape, StateWrite};
use contract::Reject;
use contract::context::QpRightsBits;
use contract::doorbell::{CQ_OFFSET, EQ_OFFSET, PUSH_OFFSET, RQ_OFFSET, SQ_OFFSET, SqDoorbellBits};
use hdl::{Module, Ports, Sig, Stream, any_of, high, lit, mux, reg_init, when};

/// What this stage may count.
pub const REJECTS: &[Reject] = &[Reject::DoorbellMalformed, Reject::DoorbellOwner, Reject::DoorbellUnknown];

/// The doorbell stage.
#[derive(Clone, Debug)]
pub struct Doorbell(pub Config);

/// Ports of [`Doorbell`].
#[derive(Ports)]
#[ports(Doorbell)]
pub struct DoorbellIo {
    /// Writes to doorbell pages.
    #[sink(c.0.clone())]
    pub write: Stream<DoorbellWrite>,
    /// Clears a QP's producers (`reset`).
    #[sink(c.0.clone())]
    pub initialise: Stream<Initialise>,
    /// QP whose rights line is wanted in the next clock.
    #[output(c.0.qp_bits())]
    pub read_qp: Sig,
    /// It.
    #[input(256)]
    pub rights_word: Sig,
    /// Producer of the send queue.
    #[output(StateShape { address: c.0.qp_bits(), width: INDEX })]
    pub post_sq: StateWrite,
    /// Producer of the receive queue.
    #[output(StateShape { address: c.0.qp_bits(), width: INDEX })]
    pub post_rq: StateWrite,
    /// Stores to push buffers.
    #[output(c.0.clone())]
    pub store: PushStore,
    /// Doorbells, whatever became of them (to push).
    #[output(c.0.clone())]
    pub push: PushRing,
    /// A send queue's producer moved (to schedule).
    #[output(c.0.clone())]
    pub wake: WakePulse,
    /// A receive queue's producer moved (to place).
    #[output(c.0.clone())]
    pub receive: WakePulse,
    /// To complete.
    #[source(c.0.clone())]
    pub cq: Stream<QueueDoorbell>,
    /// To notify.
    #[source(c.0.clone())]
    pub eq: Stream<QueueDoorbell>,
    /// Refused doorbells by reason.
    #[output]
    pub count: Count,
    /// Nothing inside.
    #[output]
    pub idle: Sig,
}

impl Module for Doorbell {
    type Io = DoorbellIo;
    fn name(&self) -> String {
        format!("doorbell_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Doorbell writes to producers and wakes.".into()
    }
    fn body(&self, io: &DoorbellIo) {
        let c = &self.0;
        let write = &io.write.data;
        // SQ and RQ doorbells share their layout, but for `pushed`
        let bell = SqDoorbellBits::unpack(write.data);
        let qp = bell.qpn.bits(0, c.qp_bits());
        io.read_qp.set(qp);
        let judging = reg_init("judging", 1, 0);
        let stores = write.offset.bits(8, 4).eq(u64::from(PUSH_OFFSET >> 8));
        let stored = (!judging & io.write.valid & stores).named("stored");
        when(!judging & io.write.valid & !stores & !io.initialise.valid, || judging.set(1));

        let rights = QpRightsBits::unpack(io.rights_word);
        let exists = rights.valid
            & if c.qp_bits() < 24 { bell.qpn.bits(c.qp_bits(), 24 - c.qp_bits()).none() } else { high() };
        let own = rights.page.eq(write.page.extend(16));
        let at = |offset: u32| write.offset.eq(offset);
        let (sq, rq, to_cq, to_eq) = (at(SQ_OFFSET), at(RQ_OFFSET), at(CQ_OFFSET), at(EQ_OFFSET));
        let privileged = write.page.none();

        let (cq, eq) =
            (Stream::<QueueDoorbell>::wires(c, "cq_bell"), Stream::<QueueDoorbell>::wires(c, "eq_bell"));
        for (name, bell, stream) in [("cq_fifo", &cq, &io.cq), ("eq_fifo", &eq, &io.eq)] {
            bell.data.page.set(write.page);
            bell.data.data.set(write.data);
            stream.take(&buffer(name, c, 2, bell));
        }
        cq.valid.set(judging & to_cq);
        eq.valid.set(judging & to_eq & privileged);
        let over = judging & !(to_cq & !cq.ready) & !(to_eq & privileged & !eq.ready);
        when(over, || judging.set(0));
        io.write.ready.set(over | stored);

        let ring = judging & exists & own;
        let clear = !judging & io.initialise.valid;
        io.initialise.ready.set(!judging);
        for (post, is) in [(&io.post_sq, sq), (&io.post_rq, rq)] {
            post.enable.set((ring & is) | (clear & io.initialise.data.reset));
            post.address.set(mux(judging, qp, io.initialise.data.qp));
            post.data.set(mux(judging, bell.producer, lit(INDEX, 0)));
        }
        io.store.valid.set(stored);
        io.store.page.set(write.page);
        io.store.word.set(write.offset.bits(3, 5));
        io.store.data.set(write.data);
        io.store.enables.set(write.enables);
        let pushed = (ring & sq & bell.pushed).named("pushed");
        io.push.valid.set(over);
        io.push.page.set(write.page);
        io.push.pushed.set(pushed);
        io.push.qp.set(qp);
        io.push.index.set(bell.producer - 1);
        io.wake.valid.set(ring & sq);
        io.wake.qp.set(qp);
        io.receive.valid.set(ring & rq);
        io.receive.qp.set(qp);

        let code = |r: Reject| lit(6, r as u64);
        let of_qp = sq | rq;
        let malformed = !any_of(&[sq, rq, to_cq, to_eq]);
        let unknown = of_qp & !exists;
        let foreign = (of_qp & exists & !own) | (to_eq & !privileged);
        io.count.valid.set(judging & (malformed | unknown | foreign));
        io.count.index.set(mux(
            malformed,
            code(Reject::DoorbellMalformed),
            mux(unknown, code(Reject::DoorbellUnknown), code(Reject::DoorbellOwner)),
        ));
        io.idle.set(!any_of(&[judging, io.write.valid, io.initialise.valid, io.cq.valid, io.eq.valid]));
    }
}
