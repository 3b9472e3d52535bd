//! complete: writes CQEs.
//!
//! In: finished work of the send and the receive side (its data is in host memory already, or on the way before
//! us), CQ doorbells (consumer index, arming). Out: one aligned 64-byte write per CQE, then, for an armed CQ and only
//! after the CQE was accepted, an event. A CQ is never overwritten: when it is full it overflows once, with an event,
//! and takes nothing more. Arming a CQ that already holds entries the consumer has not seen raises the event at once.
//! Four clocks per CQE.
//!
//! Requirements: ERR QUE

use crate::config::Config;
use crate::flow::{Completion, Count, Event, QueueDoorbell, SmallWrite, Table, TableWrite};
use crate::prim::merge::merge;
use crate::qp::StateShape;
use contract::context::CqEntryBits;
use contract::doorbell::CqDoorbellBits;
use contract::ring::CqeBits;
use contract::{EventKind, Reject};
use hdl::{
    Bundle, EnumSig, HwEnum, Memory, Module, Ports, Sig, Stream, cat, high, lit, low, mux, reg, reg_init,
    when,
};

/// What this stage may count.
pub const REJECTS: &[Reject] =
    &[Reject::DoorbellOwner, Reject::DoorbellUnknown, Reject::CqUnknown, Reject::CqOverflow];

/// Where a CQ stands.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct CqState {
    /// CQEs written.
    #[shape(24)]
    pub producer: Sig,
    /// CQEs consumed.
    #[shape(24)]
    pub consumer: Sig,
    /// 1 any, 2 solicited.
    #[shape(2)]
    pub arm: Sig,
    /// It overflowed.
    pub overflowed: Sig,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Complete(pub Config);

/// Ports of [`Complete`].
#[derive(Ports)]
#[ports(Complete)]
pub struct CompleteIo {
    /// From acknowledge.
    #[sink(c.0.clone())]
    pub send: Stream<Completion>,
    /// From place.
    #[sink(c.0.clone())]
    pub receive: Stream<Completion>,
    /// CQ doorbells.
    #[sink(c.0.clone())]
    pub doorbell: Stream<QueueDoorbell>,
    /// CQ table.
    #[input]
    pub table: TableWrite,
    /// Clocks since reset.
    #[input(64)]
    pub now: Sig,
    /// CQEs.
    #[source]
    pub write: Stream<SmallWrite>,
    /// Events.
    #[source(c.0.clone())]
    pub event: Stream<Event>,
    /// Refusals.
    #[output]
    pub count: Count,
    /// A CQE was written.
    #[output]
    pub written: Sig,
    /// A CQE was written or refused.
    #[output]
    pub finished: Sig,
    /// Nothing under way.
    #[output]
    pub idle: Sig,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Chooses: a new CQ, a doorbell, a completion.
    Choose,
    /// Table and state arrive.
    Look,
    /// Decides.
    Decide,
    /// Offers the CQE.
    Write,
    /// Offers the event.
    Tell,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Job {
    Start,
    Doorbell,
    Entry,
}

impl Module for Complete {
    type Io = CompleteIo;
    fn name(&self) -> String {
        format!("complete_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "complete: writes CQEs after their data, tells notify of armed CQs.".into()
    }
    fn body(&self, io: &CompleteIo) {
        let c = &self.0;
        let bits = c.cq_bits();
        let shape = StateShape { address: bits, width: CqState::total_width(&()) };
        let done = merge("finished", c, &[&io.send, &io.receive]);

        // a created or destroyed CQ starts at zero: one flag per CQ, since commands do not wait
        let mine = io.table.valid & io.table.table.eq(Table::Cq as u64) & io.table.index.lt(c.cqs);
        let table = Memory::with_lanes("entries", c.cqs, 128, 64);
        let lanes = cat(&[io.table.word.eq(1), io.table.word.eq(0)]);
        table.write_lanes(mine, io.table.index.resize(bits), cat(&[io.table.data, io.table.data]), lanes);
        let starting = reg_init("starting", 1, 0);
        let starting_cq = reg("starting_cq", bits);

        let phase = EnumSig::<Phase>::reg("phase", Phase::Choose);
        let job = EnumSig::<Job>::reg("job", Job::Start);
        let cq = reg("cq", bits);
        let work = Completion::regs(c, "work");
        let knock = reg("knock", 64);
        let knock_page = reg("knock_page", c.page_bits());
        let entry = CqEntryBits::unpack(table.read("entry", high(), cq));
        let state = Memory::new("states", c.cqs, shape.width);
        let old = CqState::from_bits(&(), state.read("state", high(), cq));
        let store = hdl::wire("store", 1);
        let new = CqState::wires(&(), "new");
        state.write(store, cq, new.to_bits());
        store.set(low());
        new.assign(&old);

        done.ready.set(low());
        io.doorbell.ready.set(low());
        io.count.valid.set(low());
        io.count.index.set(Reject::CqUnknown as u64);
        io.written.set(low());
        io.finished.set(low());

        let depth = lit(25, 1) << entry.log_depth;
        let used = old.producer - old.consumer;
        let full = used.extend(25).ge(depth);
        let position = old.producer & (depth - 1).bits(0, 24);
        // the ring starts zeroed: odd laps write 1
        let phase_bit = !(old.producer >> entry.log_depth).bit(0);
        let mut cqe = CqeBits::zero();
        cqe.wqe_index = work.wqe_index;
        cqe.opcode = work.opcode;
        cqe.status = work.status;
        cqe.qpn = work.qp.extend(24);
        cqe.with_imm = work.with_imm;
        cqe.with_inv = work.with_inv;
        cqe.solicited = work.solicited;
        cqe.byte_len = work.byte_len;
        cqe.imm = work.imm;
        cqe.timestamp = reg("stamp", 64);
        cqe.timestamp.set(io.now);
        cqe.phase = phase_bit;
        let line = reg("line", 512);
        let line_iova = reg("line_iova", 64);
        io.write.valid.set(phase.is(Phase::Write));
        io.write.data.iova.set(line_iova);
        io.write.data.dwords.set(16);
        io.write.data.data.set(line);

        let telling = reg("telling", 1);
        let told_kind = reg("told_kind", 8);
        io.event.valid.set(phase.is(Phase::Tell));
        io.event.data.eq.set(entry.eqn.resize(c.eq_bits()));
        io.event.data.kind.set(told_kind);
        io.event.data.event.set(0);
        io.event.data.object.set(cq.extend(24));

        let counted = work.solicited | work.status.any();
        let fires = old.arm.eq(1) | (old.arm.eq(2) & counted);
        let knocked = CqDoorbellBits::unpack(knock);

        phase.switch(|p| match p {
            Phase::Choose => {
                when(starting, || {
                    starting.set(low());
                    cq.set(starting_cq);
                    job.set(Job::Start);
                    phase.set(Phase::Look);
                })
                .elif(io.doorbell.valid, || {
                    io.doorbell.ready.set(high());
                    let d = CqDoorbellBits::unpack(io.doorbell.data.data);
                    knock.set(io.doorbell.data.data);
                    knock_page.set(io.doorbell.data.page);
                    cq.set(d.cqn.resize(bits));
                    job.set(Job::Doorbell);
                    phase.set(Phase::Look);
                })
                .elif(done.valid, || {
                    done.ready.set(high());
                    work.assign(&done.data);
                    cq.set(done.data.cq);
                    job.set(Job::Entry);
                    phase.set(Phase::Look);
                });
            }
            Phase::Look => phase.set(Phase::Decide),
            Phase::Decide => {
                phase.set(Phase::Choose);
                job.switch(|j| match j {
                    Job::Start => {
                        store.set(high());
                        new.assign_zero();
                    }
                    Job::Doorbell => {
                        let known = entry.valid & knocked.cqn.bits(bits, 24 - bits).none();
                        let owner = entry.page.eq(knock_page.extend(16));
                        when(!known, || {
                            io.count.valid.set(high());
                            io.count.index.set(Reject::DoorbellUnknown as u64);
                        })
                        .elif(!owner, || {
                            io.count.valid.set(high());
                            io.count.index.set(Reject::DoorbellOwner as u64);
                        })
                        .otherwise(|| {
                            store.set(high());
                            new.consumer.set(knocked.consumer);
                            let behind = old.producer.ne(knocked.consumer);
                            let arms = knocked.arm.any();
                            when(arms, || new.arm.set(mux(behind, lit(2, 0), knocked.arm)));
                            when(arms & behind, || {
                                told_kind.set(EventKind::Completion as u64);
                                phase.set(Phase::Tell);
                            });
                        });
                    }
                    Job::Entry => {
                        io.finished.set(!entry.valid | old.overflowed | full);
                        when(!entry.valid | old.overflowed, || {
                            io.count.valid.set(high());
                            when(entry.valid, || io.count.index.set(Reject::CqOverflow as u64));
                        })
                        .elif(full, || {
                            io.count.valid.set(high());
                            io.count.index.set(Reject::CqOverflow as u64);
                            store.set(high());
                            new.overflowed.set(high());
                            told_kind.set(EventKind::CqOverflow as u64);
                            phase.set(Phase::Tell);
                        })
                        .otherwise(|| {
                            store.set(high());
                            new.producer.set(old.producer + 1);
                            when(fires, || new.arm.set(0));
                            telling.set(fires);
                            told_kind.set(EventKind::Completion as u64);
                            line.set(cqe.pack());
                            line_iova.set(entry.base + cat(&[position, lit(6, 0)]).extend(64));
                            phase.set(Phase::Write);
                        });
                    }
                });
            }
            Phase::Write => {
                when(io.write.ready, || {
                    io.written.set(high());
                    io.finished.set(high());
                    when(telling, || phase.set(Phase::Tell)).otherwise(|| phase.set(Phase::Choose));
                });
            }
            Phase::Tell => {
                when(io.event.ready, || phase.set(Phase::Choose));
            }
        });
        when(mine & io.table.word.eq(0), || {
            starting.set(high());
            starting_cq.set(io.table.index.resize(bits));
        });
        io.idle.set(phase.is(Phase::Choose) & !starting & !io.doorbell.valid & !done.valid);
    }
}
