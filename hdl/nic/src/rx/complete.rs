//! complete: writes CQEs.
//!
//! In: finished work of the send and the receive side (its data is in host memory already, or on the way before
//! us), CQ doorbells (consumer index, arming). Out: one aligned 64-byte write per CQE, then, for an armed CQ and only
//! after the CQE was accepted, an event. A CQ is never overwritten: when it is full it overflows once, with an event,
//! and takes nothing more. Arming a CQ that already holds entries the consumer has not seen raises the event at once.
//! A CQ of EQ 0 tells of its overflow alone: that EQ is the driver's own, and arming again and again could fill it.
//! Four clocks per CQE. An entry in error names its cause (`vendor_err`) and carries neither length nor immediate.
//!
//! Moderation, per CQ: the event of an armed CQ waits until `moderation_count` entries are unreported, or until
//! `moderation_period` clocks have passed since the first of them, whichever is first; with neither, or a count of 1, it
//! does not wait. Entries that arming finds count as unreported, their time begins then. Unreported ends with the event,
//! and when the consumer has consumed everything. A change of the moderation tells what is held back at once. An event
//! never comes before its count or time is reached, and at most a scan of all CQs (one clock each) and the stage's own
//! work behind its time. `next_due` is the earliest time, as of the last whole scan; `idle` says that it is up to date.
//!
//! Requirements: ERR QUE

use crate::config::Config;
use crate::flow::{Completion, Count, Event, Mark, QueueDoorbell, SmallWrite, Table, TableWrite};
use crate::prim::merge::merge;
use crate::qp::{DEADLINE, StateShape};
use contract::context::CqEntryBits;
use contract::doorbell::CqDoorbellBits;
use contract::ring::CqeBits;
use contract::{EventKind, Reject, TraceEvent};
use hdl::{
    Bundle, EnumSig, HwEnum, Memory, Module, Ports, Sig, Stream, any_of, cat, delay, high, lit, low, mux,
    reg, reg_init, when,
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
    /// Entries of which an event that is held back will tell.
    #[shape(16)]
    pub held: Sig,
}

/// When an event that is held back is told at the latest.
#[derive(Bundle, Clone, Copy, Debug)]
struct Timer {
    runs: Sig,
    #[shape(DEADLINE)]
    deadline: Sig,
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
    /// It, for trace.
    #[output(c.0.clone())]
    pub trace: Mark,
    /// A CQE was written or refused.
    #[output]
    pub finished: Sig,
    /// Earliest time of an event that is held back, low bits of `now`.
    #[output(DEADLINE)]
    pub next_due: Sig,
    /// There is one.
    #[output]
    pub next_due_valid: Sig,
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
    Retune,
    Timer,
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
        let table = Memory::with_lanes("entries", c.cqs, 192, 64);
        let lanes = cat(&[io.table.word.eq(2), io.table.word.eq(1), io.table.word.eq(0)]);
        table.write_lanes(mine, io.table.index.resize(bits), io.table.data.repeat(3), lanes);
        let starting = reg_init("starting", 1, 0);
        let starting_cq = reg("starting_cq", bits);
        let retuning = reg_init("retuning", 1, 0);
        let retuning_cq = reg("retuning_cq", bits);

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

        // times of the events that are held back: the stage sets them, a scan of its own looks for those that are due
        let now = io.now.bits(0, DEADLINE);
        let timers = Memory::new("timers", c.cqs, Timer::total_width(&()));
        let timer = Timer::from_bits(&(), timers.read("timer", high(), cq));
        let timer_write = hdl::wire("timer_write", 1);
        let timer_runs = hdl::wire("timer_runs", 1);
        let period = entry.moderation_period.extend(DEADLINE);
        timers.write(timer_write, cq, Timer { runs: timer_runs, deadline: now + period }.to_bits());
        timer_write.set(low());
        timer_runs.set(low());
        let is_due = |t: &Timer| t.runs & !(now - t.deadline).msb();
        let scan = reg_init("scan", bits, 0);
        scan.set(scan + 1);
        let scanned_cq = delay("scanned_cq", scan);
        let scanned = Timer::from_bits(&(), timers.read("scanned", high(), scan));
        let due = reg_init("due", 1, 0);
        let due_cq = reg("due_cq", bits);
        when(is_due(&scanned) & !due, || {
            due.set(high());
            due_cq.set(scanned_cq);
        });
        let (best, best_valid) = (reg("best", DEADLINE), reg_init("best_valid", 1, 0));
        let (next_due, next_due_valid) = (reg("next_due_q", DEADLINE), reg_init("next_due_valid_q", 1, 0));
        let stale = reg_init("stale", 2, 2);
        let better = scanned.runs & (!best_valid | (scanned.deadline - best).msb());
        let least = mux(better, scanned.deadline, best);
        best.set(least);
        best_valid.set(best_valid | scanned.runs);
        when(scanned_cq.all(), || {
            best_valid.set(low());
            next_due.set(least);
            next_due_valid.set(best_valid | scanned.runs);
            stale.set(mux(stale.any(), stale - 1, stale));
        });
        when(timer_write, || stale.set(2));
        io.next_due.set(next_due);
        io.next_due_valid.set(next_due_valid);
        let passed = next_due_valid & !(now - next_due).msb();

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
        let good = work.status.none();
        let if_good = |value: Sig| value & good.repeat(32);
        cqe.byte_len = if_good(work.byte_len);
        cqe.imm = if_good(work.imm & (work.with_imm | work.with_inv).repeat(32));
        cqe.vendor_err = work.cause.extend(32);
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
        let (count, timed) = (entry.moderation_count, entry.moderation_period.any());
        let moderated = (count.gt(1) | (count.none() & timed)).named("moderated");
        let enough = |held: Sig| !moderated | (count.any() & held.ge(count.extend(held.width())));
        let held_now = mux(old.held.all(), old.held, old.held + 1);
        // the first unreported entry starts the time, the event ends it
        let holds = |held: Sig| {
            new.held.set(held);
            when(old.held.none() & timed, || {
                timer_write.set(high());
                timer_runs.set(high());
            });
        };
        let reported = || {
            new.held.set(0);
            when(old.held.any(), || timer_write.set(high()));
        };
        let tell = || {
            new.arm.set(0);
            reported();
        };
        let knocked = CqDoorbellBits::unpack(knock);

        phase.switch(|p| match p {
            Phase::Choose => {
                when(starting, || {
                    starting.set(low());
                    cq.set(starting_cq);
                    job.set(Job::Start);
                    phase.set(Phase::Look);
                })
                .elif(retuning, || {
                    retuning.set(low());
                    cq.set(retuning_cq);
                    job.set(Job::Retune);
                    phase.set(Phase::Look);
                })
                .elif(due, || {
                    due.set(low());
                    cq.set(due_cq);
                    job.set(Job::Timer);
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
                        timer_write.set(high());
                    }
                    // a time found due may be another one by now
                    Job::Retune | Job::Timer => {
                        told_kind.set(EventKind::Completion as u64);
                        when(job.is(Job::Retune) | is_due(&timer), || {
                            store.set(high());
                            timer_write.set(high());
                            when(old.held.any() & entry.valid, || {
                                tell();
                                phase.set(Phase::Tell);
                            });
                        });
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
                            let arms = knocked.arm.any() & entry.eqn.any();
                            let waiting = old.producer - knocked.consumer;
                            let most = lit(16, 0xffff);
                            when(arms, || new.arm.set(knocked.arm));
                            when(!behind, reported)
                                .elif(arms & enough(waiting), || {
                                    tell();
                                    told_kind.set(EventKind::Completion as u64);
                                    phase.set(Phase::Tell);
                                })
                                .elif(arms, || {
                                    holds(mux(waiting.bits(16, 8).any(), most, waiting.bits(0, 16)))
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
                            when(fires & enough(held_now), tell).elif(fires, || holds(held_now));
                            telling.set(fires & enough(held_now));
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
        io.trace.assign(&Mark {
            index: work.wqe_index,
            opcode: work.opcode,
            detail: work.status.extend(16),
            ..Mark::of(TraceEvent::Complete, io.written, work.qp)
        });
        when(mine & io.table.word.eq(0), || {
            starting.set(high());
            starting_cq.set(io.table.index.resize(bits));
        });
        when(mine & io.table.word.eq(2), || {
            retuning.set(high());
            retuning_cq.set(io.table.index.resize(bits));
        });
        let works = any_of(&[starting, retuning, due, io.doorbell.valid, done.valid]);
        io.idle.set(phase.is(Phase::Choose) & !works & stale.none() & !passed);
    }
}
