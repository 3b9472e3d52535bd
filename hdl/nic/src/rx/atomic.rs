//! Executes atomics: reads 8 bytes of host memory, computes, writes them back, keeps what was there for the answer.
//!
//! ```text
//! exchange > operands > [8 slots] > read, if no older slot has the address > oldest slot: compute > write, told > outcome
//! ```
//! In: atomics whose earlier writes are all on their way (`place`). Out: at most one read and one write of host memory
//! each; then the [`Outcome`] beside the operands, `executed` of the QP, a wake for schedule and `exchanged`, in this
//! order and in the order in which the atomics came.
//!
//! Atomics of different addresses are read together, eight at most. One whose address is in an older slot is read when
//! that slot is free, and so behind its write; others are not held up by it. A slot is free when the write engine has
//! told that its write is on its way: whatever reads host memory after that sees it. So atomics are atomic among
//! themselves, on this card alone, by bus address: no PCI Express AtomicOp is used, and the host's own are not seen.
//!
//! Throughput: eight per latency of a host read, at most one per about 10 clocks. Back-pressure: `exchange` waits for a
//! slot. Waits for the read and write engines only.
//!
//! A read that fails makes its outcome a failed one, and that of every later atomic of the QP, which write nothing
//! more until the QP starts anew.
//!
//! Requirements: ATOM

use crate::config::Config;
use crate::flow::{
    CLIENT, Exchange, READ_ADDRESS, READ_ID, ReadClient, ReadData, ReadDone, ReadRequest, SmallWrite, Wake,
};
use crate::prim::flags::Flags;
use crate::prim::pick::lowest;
use crate::qp::{Executed, Initialise, Operands, Outcome, StateShape, StateWrite};
use hdl::{
    Bundle, HwEnum, Memory, Module, Ports, Sig, Stream, any_of, cat, lit, mux, reg, reg_init, select, when,
};

/// Atomics under way together.
pub const SLOTS: u32 = 8;
/// Bits of a slot's number.
const SLOT: u32 = 3;

/// The stage.
#[derive(Clone, Debug)]
pub struct Atomic(pub Config);

/// Ports of [`Atomic`].
#[derive(Ports)]
#[ports(Atomic)]
pub struct AtomicIo {
    /// What is to be executed.
    #[sink(c.0.clone())]
    pub exchange: Stream<Exchange>,
    /// Starts a QP's `executed`.
    #[sink(c.0.clone())]
    pub initialise: Stream<Initialise>,
    /// Entry whose operands are wanted in the next clock.
    #[output(c.0.response_bits())]
    pub operands_address: Sig,
    /// [`Operands`].
    #[input(Operands::total_width(&()))]
    pub operands_word: Sig,
    /// QP whose `executed` is wanted in the next clock.
    #[output(c.0.qp_bits())]
    pub executed_address: Sig,
    /// [`Executed`], the own word.
    #[input(Executed::total_width(&()))]
    pub executed_word: Sig,
    /// Write of the own word.
    #[output(StateShape::per_qp::<Executed>(&c.0))]
    pub executed_write: StateWrite,
    /// Write of the outcomes.
    #[output(StateShape { address: c.0.response_bits(), width: Outcome::total_width(&()) })]
    pub outcome_write: StateWrite,
    /// Reads of 8 bytes. Id: the slot.
    #[source]
    pub read: Stream<ReadRequest>,
    /// Data of all clients.
    #[input(c.0.clone())]
    pub read_data: ReadData,
    /// Ends of reads of all clients.
    #[input]
    pub read_done: ReadDone,
    /// Writes of 8 bytes.
    #[source]
    pub write: Stream<SmallWrite>,
    /// Pulse: the oldest of them is on its way.
    #[input]
    pub written: Sig,
    /// A QP has an answer to give. Comes after the write of `executed`.
    #[source(c.0.clone())]
    pub wake: Stream<Wake>,
    /// Pulse: the oldest is over.
    #[output]
    pub exchanged: Sig,
    /// Nothing inside.
    #[output]
    pub idle: Sig,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Rest,
    Compute,
    Write,
    Told,
    Keep,
}

impl Module for Atomic {
    type Io = AtomicIo;
    fn name(&self) -> String {
        format!("atomic_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("Executes atomics, {SLOTS} at a time.")
    }
    fn body(&self, io: &AtomicIo) {
        let c = &self.0;
        let of = |slot: u32, set: Sig| set.bit(slot);
        let one = |slot: Sig, enable: Sig| enable.extend(SLOTS) << slot;

        // the slot ring: taken at `head`, freed at `tail`
        let (head, tail) = (reg_init("head", SLOT + 1, 0), reg_init("tail", SLOT + 1, 0));
        let (head_slot, tail_slot) = (head.bits(0, SLOT), tail.bits(0, SLOT));
        let frees = hdl::wire("frees", 1);

        // take: its operands come in the next clock, and then it is in its slot
        let fetching = reg_init("fetching", 1, 0);
        let full = (head - tail).msb();
        io.exchange.ready.set(!fetching & !full);
        let takes = io.exchange.moves().named("takes");
        fetching.set(takes);
        io.operands_address.set(io.exchange.data.entry);
        let coming = Exchange::regs(c, "coming");
        when(takes, || coming.assign(&io.exchange.data));
        let operands = Operands::from_bits(&(), io.operands_word);
        let whats = Memory::new("operands", SLOTS, Operands::total_width(&())).style("distributed");
        whats.write(fetching, head_slot, io.operands_word);
        let whose = Memory::new("whose", SLOTS, Exchange::total_width(c)).style("distributed");
        whose.write(fetching, head_slot, coming.to_bits());
        when(fetching, || head.set(head + 1));

        // what is known of each slot: its address, the older slots with the same, whether it was asked for and is here
        let used = reg_init("used", SLOTS, 0);
        let asked = reg_init("asked", SLOTS, 0);
        let here = reg_init("here", SLOTS, 0);
        let failed = reg("failed", SLOTS);
        let freed = one(tail_slot, frees);
        let enters = one(head_slot, fetching);
        used.set((used | enters) & !freed);
        let addresses: Vec<Sig> = (0..SLOTS).map(|i| reg(&format!("address_{i}"), 64)).collect();
        let same: Vec<Sig> =
            (0..SLOTS).rev().map(|i| used.bit(i) & addresses[i as usize].eq(operands.iova)).collect();
        let same = (cat(&same) & !freed).named("same_address");
        let waits: Vec<Sig> = (0..SLOTS)
            .map(|i| {
                let behind = reg_init(&format!("behind_{i}"), SLOTS, 0);
                when(of(i, enters), || addresses[i as usize].set(operands.iova));
                behind.set(mux(of(i, enters), same, behind & !freed));
                behind.any()
            })
            .rev()
            .collect();
        let may_ask = (used & !asked & !cat(&waits)).named("may_ask");

        // ask: any slot whose address nobody before it has
        let ask_at = lowest(may_ask);
        let request = reg_init("request_valid", 1, 0);
        let (request_slot, request_iova) = (reg("request_slot", SLOT), reg("request_iova", 64));
        let asks = (may_ask.any() & (!request | io.read.ready)).named("asks");
        when(io.read.moves(), || request.set(0));
        when(asks, || {
            request.set(1);
            request_slot.set(ask_at);
            request_iova.set(select(ask_at, &addresses));
        });
        io.read.valid.set(request);
        let word = |slot: Sig| cat(&[slot, lit(c.lane_bits(), 0)]);
        io.read.data.assign(&ReadRequest {
            iova: request_iova,
            length: lit(13, 8),
            address: word(request_slot).extend(READ_ADDRESS),
            id: request_slot.extend(READ_ID),
        });
        asked.set((asked | one(ask_at, asks)) & !freed);

        // what was read: the first 8 bytes of a word of its own
        let client = lit(CLIENT, ReadClient::Atomic.code());
        let arrives = (io.read_data.valid & io.read_data.client.eq(client)).named("arrives");
        let arrives_at = io.read_data.address.bits(c.lane_bits(), SLOT);
        let found: Vec<Sig> = (0..SLOTS)
            .map(|i| {
                let bytes: Vec<Sig> = (0..8)
                    .rev()
                    .map(|byte| {
                        let r = reg(&format!("found_{i}_{byte}"), 8);
                        when(arrives & arrives_at.eq(i) & io.read_data.lanes.bit(byte), || {
                            r.set(io.read_data.data.byte(byte))
                        });
                        r
                    })
                    .collect();
                cat(&bytes)
            })
            .collect();
        let ends = (io.read_done.valid & io.read_done.client.eq(client)).named("ends");
        let ends_at = io.read_done.id.bits(0, SLOT);
        here.set((here | one(ends_at, ends)) & !freed);
        when(ends, || {
            failed.set((failed & !one(ends_at, ends)) | one(ends_at, io.read_done.failed));
        });

        // the oldest
        let phase = reg_init("phase", Phase::width(), Phase::Rest.code());
        let to = |p: Phase| phase.set(p.code());
        let at = |p: Phase| phase.eq(p.code());
        let resting = at(Phase::Rest).named("resting");
        let who = Exchange::from_bits(c, whose.read_now("oldest", tail_slot));
        let what = Operands::from_bits(&(), whats.read_now("to_do", tail_slot));
        // QPs of which a read failed
        let broken = Flags::new("broken", c.qps, 1);
        let (qp, entry) = (reg("qp", c.qp_bits()), reg("entry", c.response_bits()));
        let (iova, adds) = (reg("iova", 64), reg("adds", 1));
        let (value, compare) = (reg("value", 64), reg("compare", 64));
        let (original, bad) = (reg("original", 64), reg("bad", 1));
        let begins = (resting & here.bit_at(tail_slot) & !io.initialise.valid).named("begins");
        when(begins, || {
            to(Phase::Compute);
            qp.set(who.qp);
            entry.set(who.entry);
            iova.set(what.iova);
            adds.set(what.adds);
            value.set(what.value);
            compare.set(what.compare);
            original.set(select(tail_slot, &found));
            bad.set(failed.bit_at(tail_slot) | broken.at(who.qp));
        });
        let computing = at(Phase::Compute);
        let writes = !bad & (adds | original.eq(compare));
        when(computing, || {
            when(adds, || value.set(original + value));
            when(writes, || to(Phase::Write)).otherwise(|| to(Phase::Keep));
        });
        io.write.valid.set(at(Phase::Write));
        io.write.data.assign(&SmallWrite { iova, dwords: lit(5, 2), data: value.extend(512) });
        when(io.write.moves(), || to(Phase::Told));
        when(at(Phase::Told) & io.written, || to(Phase::Keep));

        // keep: the outcome, then everybody may know
        let wake_valid = reg_init("wake_valid_q", 1, 0);
        let wake_qp = reg("wake_qp_q", c.qp_bits());
        io.wake.valid.set(wake_valid);
        io.wake.data.qp.set(wake_qp);
        when(io.wake.moves(), || wake_valid.set(0));
        let keeps = (at(Phase::Keep) & (!wake_valid | io.wake.ready)).named("keeps");
        frees.set(keeps);
        io.exchanged.set(keeps);
        when(keeps, || {
            to(Phase::Rest);
            tail.set(tail + 1);
            wake_valid.set(1);
            wake_qp.set(qp);
        });
        io.outcome_write.enable.set(keeps);
        io.outcome_write.address.set(entry);
        io.outcome_write.data.set(Outcome { failed: bad, original }.to_bits());
        let start = &io.initialise.data;
        io.initialise.ready.set(resting);
        let starts = (resting & io.initialise.valid & (start.receive | start.reset)).named("starts");
        broken.change(&[(keeps & bad, qp)], (starts, start.qp));
        // the address stands while the phase does
        io.executed_address.set(qp);
        let count = Executed::from_bits(&(), io.executed_word).count;
        io.executed_write.enable.set(keeps | starts);
        io.executed_write.address.set(mux(resting, start.qp, qp));
        io.executed_write.data.set(mux(resting, lit(count.width(), 0), count + 1));

        io.idle.set(resting & !any_of(&[used.any(), fetching, wake_valid, io.initialise.valid]));
    }
}
