//! notify: writes EQEs and raises vectors.
//!
//! In: events (from complete, and asynchronous ones from place), EQ doorbells. Out: one 16-byte write per EQE; then,
//! if the EQ is armed, its vector, after the EQE was accepted. An armed EQ fires once and waits for the next arming;
//! arming an EQ that holds unconsumed entries fires at once. A full EQ drops the event, counted.
//!
//! Requirements: QUE

use crate::config::Config;
use crate::flow::{Count, Event, QueueDoorbell, SmallWrite, Table, TableWrite};
use crate::prim::merge::merge;
use contract::Reject;
use contract::context::EqEntryBits;
use contract::doorbell::EqDoorbellBits;
use contract::ring::EqeBits;
use hdl::{
    Bundle, EnumSig, HwEnum, Memory, Module, Ports, Sig, Stream, cat, high, lit, low, reg, reg_init, when,
};

/// What this stage may count.
pub const REJECTS: &[Reject] = &[Reject::DoorbellUnknown, Reject::EqOverflow];

/// Where an EQ stands.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct EqState {
    /// EQEs written.
    #[shape(24)]
    pub producer: Sig,
    /// EQEs consumed.
    #[shape(24)]
    pub consumer: Sig,
    /// The next entry raises the vector.
    pub armed: Sig,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Notify(pub Config);

/// Ports of [`Notify`].
#[derive(Ports)]
#[ports(Notify)]
pub struct NotifyIo {
    /// From complete.
    #[sink(c.0.clone())]
    pub completion: Stream<Event>,
    /// Asynchronous events of QPs.
    #[sink(c.0.clone())]
    pub asynchronous: Stream<Event>,
    /// EQ doorbells (page 0 only: checked by doorbell).
    #[sink(c.0.clone())]
    pub doorbell: Stream<QueueDoorbell>,
    /// EQ table.
    #[input]
    pub table: TableWrite,
    /// Clocks since reset.
    #[input(64)]
    pub now: Sig,
    /// EQEs.
    #[source]
    pub write: Stream<SmallWrite>,
    /// Vectors.
    #[source(c.0.vector_bits())]
    pub raise: Stream<Sig>,
    /// Refusals.
    #[output]
    pub count: Count,
    /// An EQE was written.
    #[output]
    pub written: Sig,
    /// Nothing under way.
    #[output]
    pub idle: Sig,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Choose,
    Look,
    Decide,
    Write,
    Raise,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Job {
    Start,
    Doorbell,
    Entry,
}

impl Module for Notify {
    type Io = NotifyIo;
    fn name(&self) -> String {
        format!("notify_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "notify: writes EQEs, then raises their vectors.".into()
    }
    fn body(&self, io: &NotifyIo) {
        let c = &self.0;
        let bits = c.eq_bits();
        let events = merge("events", c, &[&io.completion, &io.asynchronous]);
        let mine = io.table.valid & io.table.table.eq(Table::Eq as u64) & io.table.index.lt(c.eqs);
        let table = Memory::with_lanes("entries", c.eqs, 128, 64);
        let lanes = cat(&[io.table.word.eq(1), io.table.word.eq(0)]);
        table.write_lanes(mine, io.table.index.resize(bits), cat(&[io.table.data, io.table.data]), lanes);
        let starting = reg_init("starting", 1, 0);
        let starting_eq = reg("starting_eq", bits);

        let phase = EnumSig::<Phase>::reg("phase", Phase::Choose);
        let job = EnumSig::<Job>::reg("job", Job::Start);
        let eq = reg("eq", bits);
        let work = Event::regs(c, "work");
        let knock = reg("knock", 64);
        let entry = EqEntryBits::unpack(table.read("entry", high(), eq));
        let state = Memory::new("states", c.eqs, EqState::total_width(&()));
        let old = EqState::from_bits(&(), state.read("state", high(), eq));
        let store = hdl::wire("store", 1);
        let new = EqState::wires(&(), "new");
        state.write(store, eq, new.to_bits());
        store.set(low());
        new.assign(&old);
        events.ready.set(low());
        io.doorbell.ready.set(low());
        io.count.valid.set(low());
        io.count.index.set(Reject::EqOverflow as u64);
        io.written.set(low());

        let depth = lit(25, 1) << entry.log_depth;
        let full = (old.producer - old.consumer).extend(25).ge(depth);
        let position = old.producer & (depth - 1).bits(0, 24);
        let mut eqe = EqeBits::zero();
        eqe.kind = work.kind;
        eqe.event = work.event;
        eqe.object = work.object.extend(32);
        eqe.data = io.now.bits(0, 56);
        eqe.phase = !(old.producer >> entry.log_depth).bit(0);
        let line = reg("line", 128);
        let line_iova = reg("line_iova", 64);
        io.write.valid.set(phase.is(Phase::Write));
        io.write.data.iova.set(line_iova);
        io.write.data.dwords.set(4);
        io.write.data.data.set(line.extend(512));
        let raising = reg("raising", 1);
        io.raise.valid.set(phase.is(Phase::Raise));
        io.raise.data.set(entry.vector.resize(c.vector_bits()));
        let knocked = EqDoorbellBits::unpack(knock);

        phase.switch(|p| match p {
            Phase::Choose => {
                when(starting, || {
                    starting.set(low());
                    eq.set(starting_eq);
                    job.set(Job::Start);
                    phase.set(Phase::Look);
                })
                .elif(io.doorbell.valid, || {
                    io.doorbell.ready.set(high());
                    knock.set(io.doorbell.data.data);
                    eq.set(EqDoorbellBits::unpack(io.doorbell.data.data).eqn.resize(bits));
                    job.set(Job::Doorbell);
                    phase.set(Phase::Look);
                })
                .elif(events.valid, || {
                    events.ready.set(high());
                    work.assign(&events.data);
                    eq.set(events.data.eq);
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
                        let known = entry.valid & knocked.eqn.bits(bits, 24 - bits).none();
                        when(!known, || {
                            io.count.valid.set(high());
                            io.count.index.set(Reject::DoorbellUnknown as u64);
                        })
                        .otherwise(|| {
                            store.set(high());
                            new.consumer.set(knocked.consumer);
                            let behind = old.producer.ne(knocked.consumer);
                            when(knocked.arm, || new.armed.set(!behind));
                            when(knocked.arm & behind, || phase.set(Phase::Raise));
                        });
                    }
                    Job::Entry => {
                        when(!entry.valid | full, || io.count.valid.set(high())).otherwise(|| {
                            store.set(high());
                            new.producer.set(old.producer + 1);
                            when(old.armed, || new.armed.set(low()));
                            raising.set(old.armed);
                            line.set(eqe.pack());
                            line_iova.set(entry.base + cat(&[position, lit(4, 0)]).extend(64));
                            phase.set(Phase::Write);
                        });
                    }
                });
            }
            Phase::Write => {
                when(io.write.ready, || {
                    io.written.set(high());
                    when(raising, || phase.set(Phase::Raise)).otherwise(|| phase.set(Phase::Choose));
                });
            }
            Phase::Raise => {
                when(io.raise.ready, || phase.set(Phase::Choose));
            }
        });
        when(mine & io.table.word.eq(0), || {
            starting.set(high());
            starting_eq.set(io.table.index.resize(bits));
        });
        io.idle.set(phase.is(Phase::Choose) & !starting & !io.doorbell.valid & !events.valid);
    }
}
