//! The receive WQEs of every QP, on chip: the one in use and the next ones, read ahead.
//!
//! ```text
//! QP q:  .. consumed | head .. next | posted .. producer      next - head <= slots; index i lies in slot i mod slots
//! ```
//! In: doorbells, consumed indices, ended reads. Out: reads of 64 bytes (4 SGEs) per WQE, and to a query {qp, index},
//! one clock later, whether the WQE is here and what it says. One visit of a QP takes 3 clocks: it applies one event and
//! starts at most one read. Of a stride only the first 64 bytes are used. A read failed is remembered with its slot.
//!
//! Never two reads under way into one slot; never more than [`READS`] under way; none for a QP that does not exist or is
//! in RESET or ERR, and none while `hold` (the fence of a teardown drains them). Byte address of slot s of QP q:
//! (q * slots + s) * 64; the read's id is the same without the factor.
//!
//! Requirements: QPS QUE RESP

use crate::config::Config;
use crate::flow::{READ_ADDRESS, READ_ID, ReadClient, ReadData, ReadDone, ReadRequest, Wake};
use crate::prim::fifo::buffer;
use crate::qp::{INDEX, State};
use contract::QpState;
use contract::context::{QpQueuesBits, QpRightsBits};
use hdl::{
    Bundle, HwEnum, Memory, Module, Ports, Sig, Stream, any_of, cat, high, index_width, lit, mux, reg,
    reg_init, select, when,
};

/// Bytes of a receive WQE that are used: 4 SGEs.
pub const RECEIVE_WQE: u32 = 64;
/// Reads under way at most; as many ended reads can wait to be seen.
pub const READS: u32 = 16;

/// A receive WQE by name.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct WqeName {
    /// Of which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// Its ring index.
    #[shape(INDEX)]
    pub index: Sig,
}

/// The unit, for one card configuration.
#[derive(Clone, Debug)]
pub struct ReceiveWqes {
    /// Sizes.
    pub config: Config,
}

/// Ports of [`ReceiveWqes`].
#[derive(Ports)]
#[ports(ReceiveWqes)]
pub struct ReceiveWqesIo {
    /// Receives were posted. Never refused.
    #[sink(c.config.clone())]
    pub doorbell: Stream<Wake>,
    /// A WQE is spent.
    #[sink(c.config.clone())]
    pub consumed: Stream<WqeName>,
    /// A query found its WQE missing: look again whether a read can start.
    #[input]
    pub missed_valid: Sig,
    /// Of which QP.
    #[input(c.config.qp_bits())]
    pub missed_qp: Sig,
    /// Forget everything of a QP.
    #[sink(c.config.clone())]
    pub forget: Stream<Wake>,
    /// No new reads.
    #[input]
    pub hold: Sig,
    /// The WQE asked for.
    #[input(c.config.clone())]
    pub query: WqeName,
    /// One clock later: it is here and good.
    #[output]
    pub present: Sig,
    /// One clock later: its read failed.
    #[output]
    pub failed: Sig,
    /// One clock later: its bytes.
    #[output(RECEIVE_WQE * 8)]
    pub wqe: Sig,
    /// Address of the words below.
    #[output(c.config.qp_bits())]
    pub qp_address: Sig,
    /// Producer of the receive queue.
    #[input(INDEX)]
    pub post_rq_word: Sig,
    /// `contract::QpQueues`.
    #[input(QpQueuesBits::BITS)]
    pub queues_word: Sig,
    /// `contract::QpRights`.
    #[input(QpRightsBits::BITS)]
    pub rights_word: Sig,
    /// Reads of receive WQEs.
    #[source]
    pub read: Stream<ReadRequest>,
    /// Their data.
    #[input(c.config.clone())]
    pub data: ReadData,
    /// Their ends.
    #[input]
    pub done: ReadDone,
    /// A query of this QP may now fare better.
    #[output]
    pub changed_valid: Sig,
    /// Which.
    #[output(c.config.qp_bits())]
    pub changed_qp: Sig,
    /// A read starts in this clock.
    #[output]
    pub fetches: Sig,
    /// No read is under way or about to start.
    #[output]
    pub drained: Sig,
    /// Nothing is under way or wanted.
    #[output]
    pub idle: Sig,
}

/// What is known of the slots of one QP.
#[derive(Bundle, Clone, Copy)]
#[bundle(u32)]
struct Slots {
    /// Next index to read.
    #[shape(INDEX)]
    next: Sig,
    /// Oldest index not spent.
    #[shape(INDEX)]
    head: Sig,
    /// Two bits per slot.
    #[shape(2 * *c)]
    state: Sig,
}

/// State of a slot.
#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    Empty,
    Pending,
    Here,
    Failed,
}

impl ReceiveWqes {
    /// WQEs held per QP: `receive_slots`, or fewer if the client's address space or names do not reach.
    ///
    /// # Panics
    /// If not even two per QP fit.
    pub fn slots(&self) -> u32 {
        let most = (1 << READ_ADDRESS) / RECEIVE_WQE;
        let slots = self.config.receive_slots.min(most.min(1 << READ_ID) / self.config.qps);
        assert!(
            slots >= 2,
            "config `{}`: {} QPs are more than place can hold WQEs of",
            self.config.name,
            self.config.qps
        );
        slots
    }
}

/// Number of the lowest bit set.
fn lowest(bits: Sig) -> Sig {
    let alone = bits & (lit(bits.width(), 0) - bits);
    let w = index_width(bits.width());
    let digits = (0..w).rev().map(|d| {
        let with_digit = (0..bits.width()).filter(|i| i >> d & 1 == 1).map(|i| alone.bit(i));
        any_of(&with_digit.collect::<Vec<_>>())
    });
    cat(&digits.collect::<Vec<_>>())
}

impl Module for ReceiveWqes {
    type Io = ReceiveWqesIo;
    fn name(&self) -> String {
        format!("receive_wqes_{}", self.config.name)
    }
    fn doc(&self) -> String {
        format!("The next {} receive WQEs of every QP.", self.slots())
    }
    fn body(&self, io: &ReceiveWqesIo) {
        let c = &self.config;
        let (slots, slot_bits) = (self.slots(), index_width(self.slots()));
        let slot_of = |index: Sig| index.bits(0, slot_bits);

        // the bytes: one bank per beat of a WQE
        let mine = io.data.valid & io.data.client.eq(ReadClient::Place.code());
        let row_bits = c.qp_bits() + slot_bits;
        let (banks, lane) = (RECEIVE_WQE / c.data_bytes, c.lane_bits());
        let asked = cat(&[io.query.qp, slot_of(io.query.index)]);
        let beats: Vec<Sig> = (0..banks)
            .map(|b| {
                let memory = Memory::with_lanes(&format!("bank_{b}"), c.qps * slots, c.data_bits(), 8);
                let here = if banks == 1 { high() } else { io.data.address.bits(lane, 6 - lane).eq(b) };
                memory.write_lanes(
                    mine & here,
                    io.data.address.bits(6, row_bits),
                    io.data.data,
                    io.data.lanes,
                );
                memory.read(&format!("beat_{b}"), high(), asked)
            })
            .collect();
        io.wqe.set(cat(&beats.into_iter().rev().collect::<Vec<_>>()));

        // what is in them
        let width = Slots::total_width(&slots);
        let known = hdl::instance("known", &State { word: "receive_slots", depth: c.qps, width, readers: 2 });
        let of_slot = |state: Sig, slot: Sig| {
            select(slot, &(0..slots).map(|i| state.bits(2 * i, 2)).collect::<Vec<_>>())
        };
        known.address[0].set(io.query.qp);
        let asked_index = hdl::delay("asked_index", io.query.index);
        let seen = Slots::from_bits(&slots, known.word[0]);
        let read_before = (asked_index - seen.next).msb();
        let seen_slot = of_slot(seen.state, slot_of(asked_index));
        io.present.set(read_before & seen_slot.eq(Slot::Here.code()));
        io.failed.set(read_before & seen_slot.eq(Slot::Failed.code()));

        // events wait here until their visit
        let ended = Stream::<Sig>::wires(&(READ_ID + 1).into(), "ended");
        ended.valid.set(io.done.valid & io.done.client.eq(ReadClient::Place.code()));
        ended.data.set(cat(&[io.done.failed, io.done.id]));
        let ended = buffer("ended_fifo", &(READ_ID + 1).into(), READS, &ended);
        let consumed = buffer("consumed_fifo", c, 4, &io.consumed);
        let want = reg_init("want", c.qps, 0);
        io.doorbell.ready.set(1);

        let phase = reg_init("phase", 2, 0);
        let rest = phase.eq(0).named("rest");
        let last = reg_init("last", c.qp_bits(), 0);
        // from the QP after the last one on, then from the first
        let above = want & !((lit(c.qps, 2) << last) - 1);
        let wanted = mux(above.any(), lowest(above), lowest(want)).named("wanted");
        let take_ended = rest & ended.valid;
        let take_forget = rest & !ended.valid & io.forget.valid;
        let take_consumed = rest & !ended.valid & !io.forget.valid & consumed.valid;
        let take_want = (rest & !(ended.valid | io.forget.valid | consumed.valid) & want.any() & !io.hold)
            .named("take_want");
        ended.ready.set(rest);
        io.forget.ready.set(rest & !ended.valid);
        consumed.ready.set(rest & !ended.valid & !io.forget.valid);
        let chosen = mux(
            take_ended,
            ended.data.bits(slot_bits, c.qp_bits()),
            mux(take_forget, io.forget.data.qp, mux(take_consumed, consumed.data.qp, wanted)),
        )
        .named("chosen");
        io.qp_address.set(chosen);
        known.address[1].set(chosen);
        let qp = reg("qp", c.qp_bits());
        let (is_end, is_forget, is_spent) = (reg("is_end", 1), reg("is_forget", 1), reg("is_spent", 1));
        let (spent, end_slot, end_failed) =
            (reg("spent", INDEX), reg("end_slot", slot_bits), reg("end_failed", 1));
        when(rest, || {
            qp.set(chosen);
            is_end.set(take_ended);
            is_forget.set(take_forget);
            is_spent.set(take_consumed);
            spent.set(consumed.data.index);
            end_slot.set(ended.data.bits(0, slot_bits));
            end_failed.set(ended.data.bit(READ_ID));
        });
        let starts = take_ended | take_forget | take_consumed | take_want;
        when(take_want, || last.set(wanted));
        phase.set(mux(rest, starts.extend(2), mux(phase.eq(1), lit(2, 2), lit(2, 0))));

        // the event
        let old = Slots::from_bits(&slots, known.word[1]);
        let after = Slots::wires(&slots, "after");
        after.assign(&old);
        let put = |state: Sig, slot: Sig, value: Sig| {
            let each = (0..slots).rev().map(|i| mux(slot.eq(i), value, state.bits(2 * i, 2)));
            cat(&each.collect::<Vec<_>>())
        };
        let code = |s: Slot| lit(2, s.code());
        when(is_end, || {
            after.state.set(put(old.state, end_slot, mux(end_failed, code(Slot::Failed), code(Slot::Here))));
        });
        when(is_spent, || {
            after.head.set(spent + 1);
            // spent without having been read (a WRITE with immediate needs no SGE)
            when((old.next - (spent + 1)).msb(), || after.next.set(spent + 1));
        });
        when(is_forget, || {
            after.next.set(0);
            after.head.set(0);
            // a read under way keeps its slot until it ends
            let keep = (0..slots).rev().map(|i| {
                let s = old.state.bits(2 * i, 2);
                mux(s.eq(Slot::Pending.code()), s, code(Slot::Empty))
            });
            after.state.set(cat(&keep.collect::<Vec<_>>()));
        });
        let work = Slots::regs(&slots, "work");
        let rights = QpRightsBits::unpack(io.rights_word);
        let queues = QpQueuesBits::unpack(io.queues_word);
        let takes = QpState::ALL.iter().filter(|s| s.receives() || **s == QpState::Init);
        let takes = any_of(&takes.map(|s| rights.state.eq(s.code())).collect::<Vec<_>>()) & rights.valid;
        let (may, some, room) = (reg("may_receive", 1), reg("some_posted", 1), reg("slot_left", 1));
        let iova = reg("iova", 64);
        when(phase.eq(1), || {
            work.assign(&after);
            may.set(takes);
            some.set(after.next.ne(io.post_rq_word));
            room.set((after.next - after.head).lt(slots));
            let mask = (lit(INDEX, 1) << queues.rq_log_depth) - 1;
            iova.set(queues.rq_base + ((after.next & mask).extend(64) << queues.rq_log_stride));
        });

        // the read
        let decide = phase.eq(2).named("decide");
        let under_way = reg_init("under_way", index_width(READS) + 1, 0);
        let slot = slot_of(work.next);
        let useful = decide & may & some & room & of_slot(work.state, slot).ne(Slot::Pending.code());
        let request = Stream::<ReadRequest>::wires(&(), "request");
        let issue = (useful & !io.hold & !under_way.msb() & request.ready).named("issue");
        let row = cat(&[qp, slot]);
        request.valid.set(issue);
        request.data.assign(&ReadRequest {
            iova,
            length: lit(13, u64::from(RECEIVE_WQE)),
            address: cat(&[row, lit(6, 0)]).resize(READ_ADDRESS),
            id: row.resize(READ_ID),
        });
        let out = buffer("requests", &(), 2, &request);
        io.read.take(&out);
        io.fetches.set(issue);
        when(issue & !ended.moves(), || under_way.set(under_way + 1));
        when(ended.moves() & !issue, || under_way.set(under_way - 1));
        let next = Slots::wires(&slots, "next");
        next.assign(&work);
        when(issue, || {
            next.next.set(work.next + 1);
            next.state.set(put(work.state, slot, code(Slot::Pending)));
        });
        known.write.enable.set(decide);
        known.write.address.set(qp);
        known.write.data.set(next.to_bits());
        io.changed_valid.set(decide & (is_end | !may));
        io.changed_qp.set(qp);

        let bit = |valid: Sig, qp: Sig| valid.extend(c.qps) << qp;
        let clear = bit(take_want, wanted);
        // after a read there may be another, and what could not be done now is to be done later
        let set = bit(io.doorbell.valid, io.doorbell.data.qp)
            | bit(io.missed_valid, io.missed_qp)
            | bit(useful | (decide & is_forget), qp);
        want.set((want & !clear) | set);
        let quiet = under_way.none() & !out.valid;
        io.drained.set(quiet & rest);
        io.idle.set(quiet & rest & !ended.valid & !consumed.valid & want.none());
    }
}
