//! The memory of a target, in the place of a host's behind PCI Express: what WRITEs write, READs read and atomics change.
//!
//! ```text
//! payload  ─┐                    ┌─ packet buffer ─┐  register   turn   ┌─> memory, pins    written
//! request  ─┼─> one at a time: word by word ───────┼───────────> lanes ─┴─> transmit buffer   read_done
//! exchange ─┘                    └─ memory, pins ──┘      └─> compute ────> memory, pins     outcome, wake, exchanged
//! ```
//! In: pieces of payload with any alignment of both ends, reads of gather likewise, atomics whose turn has come; judged
//! before, so each lies within the memory or the pins. One is executed after the other, payload before atomics before
//! reads; so an atomic is atomic, and a read sees what was `written` before it was asked. Out: `written` behind the last
//! word of a payload, `read_done` behind the last word of a read, of an atomic its outcome, `executed` of its QP, a wake
//! and `exchanged`.
//!
//! Addresses: the memory from 0 on, `contract::target::TargetPins` behind its end; only the LEDs of those are written.
//!
//! Throughput: a word of 8 bytes per clock and 6 clocks more for each; an atomic takes 6. Nothing waits for anything but this.
//! The packet buffer's port is its own while `packet_busy`.
//!
//! Requirements: TGT

use crate::config::Config;
use crate::flow::{Exchange, PayloadWrite, ReadClient, ReadData, ReadDone, ReadRequest, Wake};
use crate::qp::{Executed, Initialise, Operands, Outcome, StateShape, StateWrite};
use crate::standalone::peers::LOG_MEMORY;
use hdl::{
    Bundle, EnumSig, HwEnum, Memory, Module, Ports, Sig, Stream, cat, delay, delay_init, high, lit, low, mux,
    reg, reg_init, select, when,
};

/// Bits of a byte address: memory, and the pins behind it.
const ADDRESS: u32 = LOG_MEMORY + 1;
/// Bits of a lane number, and bytes of a word.
const LANES: u32 = 3;
const BYTES: u32 = 8;
/// Bits of a word address.
const WORD: u32 = ADDRESS - LANES;
/// Bits of a count of words: 8191 bytes at the wrong alignment.
const COUNT: u32 = 11;

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Rest,
    /// A copy is taken: how many words, which lanes.
    Begin,
    /// Words on their way.
    Copy,
    /// An atomic: operands arrive, the word is asked for.
    Operands,
    /// The word is on its way.
    Load,
    /// It is here.
    Take,
    /// What it becomes.
    Compute,
    /// It is written, everybody may know.
    Keep,
}

/// The stage.
#[derive(Clone, Debug)]
pub struct OnChip(pub Config);

/// Ports of [`OnChip`].
#[derive(Ports)]
#[ports(OnChip)]
pub struct OnChipIo {
    /// Payload of WRITEs, from the packet buffer.
    #[sink(c.0.clone())]
    pub payload: Stream<PayloadWrite>,
    /// Pulse: the oldest of them is written.
    #[output]
    pub written: Sig,
    /// Reads of gather, into the transmit buffer.
    #[sink]
    pub request: Stream<ReadRequest>,
    /// Their data.
    #[output(c.0.clone())]
    pub read_data: ReadData,
    /// Their ends.
    #[output]
    pub read_done: ReadDone,
    /// Atomics: everything before them is written.
    #[sink(c.0.clone())]
    pub exchange: Stream<Exchange>,
    /// Entry whose operands are wanted in the next clock.
    #[output(c.0.response_bits())]
    pub operands_address: Sig,
    /// [`Operands`].
    #[input(Operands::total_width(&()))]
    pub operands_word: Sig,
    /// Write of the outcomes.
    #[output(StateShape { address: c.0.response_bits(), width: Outcome::total_width(&()) })]
    pub outcome_write: StateWrite,
    /// Starts a QP's `executed`.
    #[sink(c.0.clone())]
    pub initialise: Stream<Initialise>,
    /// QP whose `executed` is wanted in the next clock.
    #[output(c.0.qp_bits())]
    pub executed_address: Sig,
    /// [`Executed`], the own word.
    #[input(Executed::total_width(&()))]
    pub executed_word: Sig,
    /// Write of the own word.
    #[output(StateShape::per_qp::<Executed>(&c.0))]
    pub executed_write: StateWrite,
    /// A QP has an answer to give. Comes after the write of `executed`.
    #[source(c.0.clone())]
    pub wake: Stream<Wake>,
    /// Pulse: the oldest atomic is over.
    #[output]
    pub exchanged: Sig,
    /// Reads this word of the packet buffer.
    #[output(c.0.packet_address_bits() - c.0.lane_bits())]
    pub packet_address: Sig,
    /// The word, one clock later.
    #[input(c.0.data_bits())]
    pub packet_word: Sig,
    /// The packet buffer is being read.
    #[output]
    pub packet_busy: Sig,
    /// What the pins read as, byte 0 lowest.
    #[input(64)]
    pub pins: Sig,
    /// LEDs.
    #[output(8)]
    pub leds: Sig,
}

impl Module for OnChip {
    type Io = OnChipIo;
    fn name(&self) -> String {
        format!("on_chip_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("Memory of {} KiB with its copies and atomics.", (1 << LOG_MEMORY) >> 10)
    }
    fn body(&self, io: &OnChipIo) {
        let c = &self.0;
        assert_eq!(c.data_bytes, BYTES, "on-chip memory is written for 64 bit");
        let phase = EnumSig::reg("phase", Phase::Rest);
        let resting = phase.is(Phase::Rest);
        let initialises = resting & io.initialise.valid;
        let (payload, request) = (&io.payload.data, &io.request.data);
        let writes = (resting & !io.initialise.valid & io.payload.valid).named("begins_write");
        let exchanges =
            (resting & !io.initialise.valid & !io.payload.valid & io.exchange.valid).named("begins_exchange");
        let reads =
            (resting & !io.initialise.valid & !io.payload.valid & !io.exchange.valid & io.request.valid)
                .named("begins_read");
        io.payload.ready.set(writes);
        io.exchange.ready.set(exchanges);
        io.request.ready.set(reads);
        io.initialise.ready.set(resting);

        // rest: what is to be copied
        let packet_bits = c.packet_address_bits();
        let width = packet_bits.max(ADDRESS).max(request.address.width());
        let (from, to, length) =
            (reg("from", width), reg("to", width), reg("length", request.length.width()));
        let (outward, id) = (reg("outward", 1), reg("read_id", request.id.width()));
        when(resting, || {
            from.set(mux(
                io.payload.valid,
                payload.address.extend(width),
                request.iova.resize(ADDRESS).extend(width),
            ));
            to.set(mux(
                io.payload.valid,
                payload.iova.resize(ADDRESS).extend(width),
                request.address.extend(width),
            ));
            length.set(mux(io.payload.valid, payload.length, request.length));
            outward.set(!io.payload.valid);
            id.set(request.id);
        });
        when(writes | reads, || phase.set(Phase::Begin));

        // begin: both ends and what lies between
        let begins = phase.is(Phase::Begin).named("begins_copy");
        let (from_lane, to_lane) = (from.bits(0, LANES), to.bits(0, LANES));
        let end = length.extend(COUNT + LANES) + to_lane.extend(COUNT + LANES);
        let last_lane = (end.bits(0, LANES) - 1).named("last_lane_now");
        let (source, target) = (reg("source_word", width - LANES), reg("target_word", width - LANES));
        let (turn, begin, finish) = (reg("turn", LANES), reg("first_lane", LANES), reg("last_lane", LANES));
        // words to ask for, and to write
        let (to_ask, to_write) = (reg_init("words_to_ask", COUNT, 0), reg_init("words_to_write", COUNT, 0));
        let primes = reg("primes", 1);
        let words = (end + u64::from(BYTES - 1)).bits(LANES, COUNT).named("words");
        when(begins, || {
            source.set(from.bits(LANES, width - LANES));
            target.set(to.bits(LANES, width - LANES));
            turn.set(to_lane - from_lane);
            begin.set(to_lane);
            finish.set(last_lane);
            // bytes that move down need the second word for the first
            let early = to_lane.lt(from_lane);
            primes.set(early);
            let any = length.any();
            to_ask.set(mux(any, words + early.extend(COUNT), lit(COUNT, 0)));
            to_write.set(mux(any, words, lit(COUNT, 0)));
            phase.set(Phase::Copy);
        });

        // the memory: one reader, one writer
        let memory = Memory::with_lanes("memory", 1 << (LOG_MEMORY - LANES), c.data_bits(), 8).style("block");
        let memory = memory.ignoring_collisions();
        let word_in = |word: Sig| word.bits(0, LOG_MEMORY - LANES);
        let is_pins = |word: Sig| word.bit(LOG_MEMORY - LANES);
        let operands = Operands::regs(&(), "operands");
        let atomic_word = operands.iova.bits(LANES, WORD);
        let asks = (phase.is(Phase::Copy) & to_ask.any()).named("asks");
        let address =
            mux(phase.is(Phase::Copy), source.bits(0, WORD), atomic_word).named("read_word_address");
        let read = memory.read("memory_word", high(), word_in(address));
        let of_pins = delay("reads_pins", is_pins(address));
        io.packet_address.set(source.resize(packet_bits - LANES));
        io.packet_busy.set(phase.is(Phase::Copy) & !outward);

        // copy: ask, arrive, register, write
        when(asks, || {
            source.set(source + 1);
            to_ask.set(to_ask - 1);
        });
        let arrives = delay_init("arrives", asks);
        let here = delay_init("here", arrives);
        let word =
            delay("word", mux(outward | !phase.is(Phase::Copy), mux(of_pins, io.pins, read), io.packet_word));
        let turned: Vec<Sig> = (0..BYTES)
            .map(|by| match by * 8 {
                0 => word,
                by => cat(&[word.bits(0, 64 - by), word.bits(64 - by, by)]),
            })
            .collect();
        let turned = select(turn, &turned).named("turned");
        let carry = reg("carry", c.data_bits());
        let first = reg_init("is_first", 1, 0);
        when(here, || {
            carry.set(turned);
            primes.set(low());
        });
        let puts = (here & !primes).named("puts");
        when(begins, || first.set(high())).elif(puts, || first.set(low()));
        let last = to_write.eq(1);
        when(puts, || {
            target.set(target + 1);
            to_write.set(to_write - 1);
        });
        let copied: Vec<Sig> =
            (0..BYTES).rev().map(|i| mux(turn.le(u64::from(i)), turned.byte(i), carry.byte(i))).collect();
        let copied = cat(&copied).named("copied");
        let lanes: Vec<Sig> = (0..BYTES)
            .rev()
            .map(|i| {
                let i = u64::from(i);
                (!first | begin.le(i)) & (!last | finish.ge(i))
            })
            .collect();
        let lanes = cat(&lanes).named("copied_lanes");
        // a register in front of both memories
        let put_valid = delay_init("put_valid", puts);
        let (put_word, put_data, put_lanes) =
            (delay("put_word", target), delay("put_data", copied), delay("put_lanes", lanes));
        let over = (phase.is(Phase::Copy) & to_write.none() & !put_valid).named("copy_over");
        when(over, || phase.set(Phase::Rest));
        // out of registers: whoever hears of it does much in that clock
        io.written.set(delay_init("written_q", over & !outward));
        io.read_done.assign(&ReadDone {
            valid: delay_init("read_over", over & outward),
            client: lit(io.read_done.client.width(), ReadClient::Gather as u64),
            id: delay("read_over_id", id),
            failed: low(),
        });
        let at = io.read_data.address;
        io.read_data.assign(&ReadData {
            valid: put_valid & outward,
            client: lit(io.read_data.client.width(), ReadClient::Gather as u64),
            address: cat(&[put_word, lit(LANES, 0)]).resize(at.width()),
            data: put_data,
            lanes: put_lanes,
        });

        // exchange
        let (qp, entry) = (reg("qp", c.qp_bits()), reg("entry", c.response_bits()));
        io.operands_address.set(io.exchange.data.entry);
        when(exchanges, || {
            qp.set(io.exchange.data.qp);
            entry.set(io.exchange.data.entry);
            phase.set(Phase::Operands);
        });
        let fetches = phase.is(Phase::Operands);
        when(fetches, || {
            operands.assign(&Operands::from_bits(&(), io.operands_word));
            phase.set(Phase::Load);
        });
        // asked for in Load, out of the memory in Take, in `word` in Compute
        when(phase.is(Phase::Load), || phase.set(Phase::Take));
        when(phase.is(Phase::Take), || phase.set(Phase::Compute));
        let computes = phase.is(Phase::Compute);
        let sum = delay("sum", word + operands.value);
        let same = delay("same", word.eq(operands.compare));
        let original = delay("original", word);
        when(computes, || phase.set(Phase::Keep));
        let wake_valid = reg_init("wake_valid_q", 1, 0);
        let wake_qp = reg("wake_qp_q", c.qp_bits());
        io.wake.valid.set(wake_valid);
        io.wake.data.qp.set(wake_qp);
        when(io.wake.moves(), || wake_valid.set(low()));
        let keeps = (phase.is(Phase::Keep) & !wake_valid).named("keeps");
        let changes = keeps & (operands.adds | same);
        when(keeps, || {
            phase.set(Phase::Rest);
            wake_valid.set(high());
            wake_qp.set(qp);
        });
        // `sum` and `same` follow `word`, which stands no longer than a clock
        hdl::assert_always("nothing_waits_to_keep", !(phase.is(Phase::Keep) & wake_valid));
        io.exchanged.set(keeps);
        io.outcome_write.enable.set(keeps);
        io.outcome_write.address.set(entry);
        io.outcome_write.data.set(Outcome { failed: low(), original }.to_bits());
        let start = &io.initialise.data;
        let starts = (initialises & (start.receive | start.reset)).named("starts");
        io.executed_address.set(qp);
        let count = Executed::from_bits(&(), io.executed_word).count;
        io.executed_write.enable.set(keeps | starts);
        io.executed_write.address.set(mux(resting, start.qp, qp));
        io.executed_write.data.set(mux(resting, lit(count.width(), 0), count + 1));

        // one writer
        let exchanged = mux(operands.adds, sum, operands.value);
        let write_word = mux(changes, atomic_word, put_word.bits(0, WORD)).named("write_word");
        let write_data = mux(changes, exchanged, put_data);
        let write_lanes = put_lanes | changes.repeat(BYTES);
        let write = ((put_valid & !outward) | changes).named("writes_memory");
        memory.write_lanes(write & !is_pins(write_word), word_in(write_word), write_data, write_lanes);
        let leds = reg_init("led_register", 8, 0);
        when(write & is_pins(write_word) & write_lanes.bit(0), || leds.set(write_data.byte(0)));
        io.leds.set(leds);
    }
}
