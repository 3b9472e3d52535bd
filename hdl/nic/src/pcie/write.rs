//! The write engine: payload out of the packet buffer, and small writes out of registers, as MWr TLPs in one order.
//!
//! ```text
//! place -PayloadWrite->\            /-> fetch words -\
//!                       pick > job <                  > pack -MWr-> request      (payload: `written`)
//! complete, atomic     /            \-> cut pieces --/      (atomic: `atomic_written`)
//! -SmallWrite---------/
//! ```
//! **In**: a payload write, or a small write of one of two sources; what is taken first leaves first. Small writes go
//! before payload, among themselves round robin; each stream stays in order. The packet buffer is read by
//! `packet_address` (a word of `data_bytes`), which answers one clock later.
//! **Out**: TLPs cut at aligned blocks of Max_Payload_Size, which obeys that size and the 4 KiB rule at once. Relaxed
//! ordering only on payload that asks for it, where configuration space allows it: CQEs and interrupts push the data
//! before them. `written` is one pulse per payload write, in order, in the clock in which its last beat is taken at
//! `request` (for zero bytes: in its turn, without a TLP).
//!
//! Bytes are moved from buffer lane to host lane by a window of two neighbouring words and one funnel shift. The window
//! runs on across the TLPs of a write, so there is no bubble between them.
//!
//! Timing (64 bit, measured by the tests): first beat offered 6 clocks after the request is taken; one beat per clock
//! within a write. Between writes there is no gap, or one clock if the last beat needed a word that it did not use up.
//! Back-pressure of `request` stops everything behind it, and loses nothing.
//!
//! It never: crosses a 4 KiB boundary, enables a byte outside of the request, or looks at bus mastering (a TLP that may
//! not leave is swallowed by `transmit`, so `written` still comes).
//!
//! Requirements: ATOM PCIE QUE

use crate::config::Config;
use crate::flow::{PayloadWrite, PcieConfig, SmallWrite, TlpBeat};
use crate::pcie::header::{MemoryRequest, memory_header};
use crate::pcie::transmit::block_mask;
use crate::prim::fifo::{Fifo, buffer};
use crate::prim::pick::round_robin;
use hdl::{
    Bundle, Module, Ports, Sig, Stream, assert_always, cat, cover, instance, lit, low, mux, reg, reg_init,
    select, when, wire,
};

/// The write engine.
#[derive(Clone, Debug)]
pub struct Write(pub Config);

/// Ports of [`Write`].
#[derive(Ports)]
#[ports(Write)]
pub struct WriteIo {
    /// Payload of place.
    #[sink(c.0.clone())]
    pub payload: Stream<PayloadWrite>,
    /// CQEs, EQEs, interrupts, command responses.
    #[sink]
    pub complete: Stream<SmallWrite>,
    /// Results of atomics.
    #[sink]
    pub atomic: Stream<SmallWrite>,
    /// Word of the packet buffer to read.
    #[output(c.0.packet_address_bits() - c.0.lane_bits())]
    pub packet_address: Sig,
    /// That word, one clock later.
    #[input(c.0.data_bits())]
    pub packet_word: Sig,
    /// A payload write is on its way: pulse, in order.
    #[output]
    pub written: Sig,
    /// A write of `atomic` is on its way: pulse, in order.
    #[output]
    pub atomic_written: Sig,
    /// MWr TLPs.
    #[source(c.0.clone())]
    pub request: Stream<TlpBeat>,
    /// Configuration space.
    #[input]
    pub pcie: PcieConfig,
    /// Nothing is under way.
    #[output]
    pub idle: Sig,
}

/// One TLP, as pack needs it.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
struct Piece {
    #[shape(128)]
    header: Sig,
    /// Bytes from lane 0 of the first beat to the last byte.
    #[shape(13)]
    span: Sig,
    /// The first piece of its job: the window starts at `offset`.
    starts: Sig,
    /// Lane of the first window word that goes to lane 0 of the first beat.
    #[shape(c.lane_bits())]
    offset: Sig,
    /// The last piece of its job.
    ends: Sig,
    /// A payload write: tell that it was written.
    tells: Sig,
    /// A write of `atomic`: likewise.
    tells_atomic: Sig,
    /// No TLP at all: a payload write of zero bytes.
    empty: Sig,
}

/// What leaves pack.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
struct Out {
    #[shape(c.clone())]
    beat: TlpBeat,
    /// The last beat of a payload write.
    tells: Sig,
    /// The last beat of a write of `atomic`.
    tells_atomic: Sig,
    /// There is no beat.
    empty: Sig,
}

/// Words that may wait between fetch and pack: covers the clock of the packet buffer and the start of a job.
const WORDS: u32 = 8;

impl Module for Write {
    type Io = WriteIo;
    fn name(&self) -> String {
        format!("pcie_write_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("Writes to host memory: payload and small writes, {} byte lanes.", self.0.data_bytes)
    }
    fn body(&self, io: &WriteIo) {
        let c = &self.0;
        let (lane_bits, address_bits) = (c.lane_bits(), c.packet_address_bits());
        let word_bits = address_bits - lane_bits;

        // --- pick: a small write if there is one, else payload
        let small = [&io.complete, &io.atomic];
        let job_valid = reg_init("job_valid", 1, 0);
        let job_moves = wire("job_moves", 1);
        let job_free = !job_valid | job_moves;
        let last_small = reg_init("last_small", 1, 0);
        let wanting = cat(&[io.atomic.valid, io.complete.valid]);
        let picked = round_robin(wanting, last_small).named("picked");
        let any_small = wanting.any().named("any_small");
        for (i, s) in small.iter().enumerate() {
            s.ready.set(job_free & any_small & picked.eq(i));
        }
        io.payload.ready.set(job_free & !any_small);
        let offered: Vec<Sig> = small.iter().map(|s| s.data.to_bits()).collect();
        let offered = SmallWrite::from_bits(&(), select(picked, &offered));
        let payload = &io.payload.data;
        assert_always(
            "dwords_in_range",
            !(job_free & any_small) | (offered.dwords.any() & offered.dwords.le(16)),
        );
        let take = (job_free & (any_small | io.payload.valid)).named("take");

        let (job_iova, job_bytes) = (reg("job_iova", 64), reg("job_bytes", 13));
        let (job_small, job_relaxed) = (reg("job_small", 1), reg("job_relaxed", 1));
        // from registers, not from the packet buffer; a write of atomic
        let (job_held, job_atomic) = (reg("job_held", 1), reg("job_atomic", 1));
        let job_address = reg("job_address", address_bits);
        let job_data = reg("job_data", 512);
        job_valid.set(take | (job_valid & !job_moves));
        when(take, || {
            // a small write is doubleword aligned
            let dwords = cat(&[offered.iova.bits(2, 62), lit(2, 0)]);
            job_iova.set(mux(any_small, dwords, payload.iova));
            let bytes = cat(&[offered.dwords, lit(2, 0)]).extend(13);
            job_bytes.set(mux(any_small, bytes, payload.length));
            job_small.set(any_small);
            job_relaxed.set(!any_small & payload.relaxed & io.pcie.relaxed_ordering);
            job_held.set(any_small | payload.is_value);
            job_atomic.set(any_small & picked.eq(1));
            // a value lies behind eight bytes of nothing, which may go before it in the window
            let held_at = mux(any_small, lit(address_bits, 0), lit(address_bits, 8));
            job_address.set(mux(any_small | payload.is_value, held_at, payload.address));
            let skips = if c.data_bytes == 8 { payload.iova.bits(0, 2).none() } else { low() };
            let value = cat(&[payload.value, lit(64, 0)]).extend(512);
            let value = mux(skips, payload.value.extend(512), value);
            job_data.set(mux(any_small, offered.data, value));
        });
        when(take & any_small, || last_small.set(picked));

        // --- a job goes to fetch and to cut at once
        let job_lead = job_iova.bits(0, 2);
        // the window starts where lane 0 of the first beat comes from; that may be the word before the payload
        let job_from = (job_address - job_lead.extend(address_bits)).named("job_from");
        let job_offset = job_from.bits(0, lane_bits);
        let job_span = job_bytes.extend(14) + job_lead.extend(14);
        // one less than the number of words
        let job_rest = (job_span + job_offset.extend(14) - 1u32).bits(lane_bits, 14 - lane_bits);
        let empty = job_bytes.none();

        let fetch_valid = reg_init("fetch_valid", 1, 0);
        let fetch_small = reg("fetch_small", 1);
        let fetch_word = reg("fetch_word", word_bits);
        let fetch_rest = reg("fetch_rest", 14 - lane_bits);
        let fetch_data = reg("fetch_data", 512);
        let words = instance("word_queue", &Fifo { depth: WORDS, width: c.data_bits() + 1 });
        let coming = reg_init("coming", 1, 0);
        let waiting = words.level + coming.extend(words.level.width());
        let fetches = (fetch_valid & waiting.lt(WORDS)).named("fetches");
        let fetch_last = fetch_rest.none();
        let fetch_free = !fetch_valid | (fetches & fetch_last);
        io.packet_address.set(fetch_word);
        let cut_free = wire("cut_free", 1);
        job_moves.set(job_valid & fetch_free & cut_free);
        when(fetches, || {
            fetch_word.set(fetch_word + 1);
            fetch_rest.set(fetch_rest - 1);
            if c.data_bits() < 512 {
                fetch_data.set(fetch_data >> lit(10, u64::from(c.data_bits())));
            }
            when(fetch_last, || fetch_valid.set(0));
        });
        when(job_moves & !empty, || {
            fetch_valid.set(1);
            fetch_small.set(job_held);
            fetch_word.set(job_from.bits(lane_bits, word_bits));
            fetch_rest.set(job_rest);
            fetch_data.set(job_data);
        });
        let (came_small, came_last) = (reg("came_small", 1), reg("came_last", 1));
        let came_data = reg("came_data", c.data_bits());
        coming.set(fetches);
        came_small.set(fetch_small);
        came_last.set(fetch_last);
        came_data.set(fetch_data.bits(0, c.data_bits()));
        words.input.valid.set(coming);
        words.input.data.set(cat(&[came_last, mux(came_small, came_data, io.packet_word)]));
        assert_always("words_have_room", !coming | words.input.ready);

        // --- cut: one piece per clock, up to the end of an aligned block
        let cut_valid = reg_init("cut_valid", 1, 0);
        let (cut_iova, cut_left) = (reg("cut_iova", 64), reg("cut_left", 13));
        let (cut_starts, cut_empty) = (reg("cut_starts", 1), reg("cut_empty", 1));
        let (cut_small, cut_relaxed) = (reg("cut_small", 1), reg("cut_relaxed", 1));
        let cut_atomic = reg("cut_atomic", 1);
        let cut_offset = reg("cut_offset", lane_bits);
        let cut_moves = wire("cut_moves", 1);
        let mask = block_mask(io.pcie.max_payload).named("block_mask");
        let in_block = (!cut_iova.bits(0, 12) & mask).extend(13) + 1;
        let cut_last = cut_left.le(in_block).named("cut_last");
        cut_free.set(!cut_valid | (cut_moves & cut_last));
        when(cut_moves, || {
            cut_iova.set((cut_iova | mask.extend(64)) + 1);
            cut_left.set(cut_left - in_block);
            cut_starts.set(0);
            when(cut_last, || cut_valid.set(0));
        });
        when(job_moves, || {
            cut_valid.set(1);
            cut_iova.set(job_iova);
            cut_left.set(job_bytes);
            cut_starts.set(1);
            cut_empty.set(empty);
            cut_small.set(job_small);
            cut_atomic.set(job_atomic);
            cut_relaxed.set(job_relaxed);
            cut_offset.set(job_offset);
        });

        // --- head: its header
        let head_valid = reg_init("head_valid", 1, 0);
        let (head_iova, head_bytes) = (reg("head_iova", 64), reg("head_bytes", 13));
        let (head_starts, head_empty, head_ends) =
            (reg("head_starts", 1), reg("head_empty", 1), reg("head_ends", 1));
        let (head_small, head_relaxed) = (reg("head_small", 1), reg("head_relaxed", 1));
        let head_atomic = reg("head_atomic", 1);
        let head_offset = reg("head_offset", lane_bits);
        let headed = Stream::<Piece> {
            valid: head_valid,
            ready: wire("head_ready", 1),
            data: Piece {
                header: memory_header(&MemoryRequest {
                    write: true,
                    iova: head_iova,
                    bytes: head_bytes,
                    relaxed: head_relaxed,
                    requester_id: io.pcie.requester_id,
                    tag: lit(8, 0),
                }),
                span: head_bytes + head_iova.bits(0, 2).extend(13),
                starts: head_starts,
                offset: head_offset,
                ends: head_ends,
                tells: head_ends & !head_small,
                tells_atomic: head_ends & head_atomic,
                empty: head_empty,
            },
        };
        cut_moves.set(cut_valid & (!head_valid | headed.ready));
        head_valid.set(cut_moves | (head_valid & !headed.ready));
        when(cut_moves, || {
            head_iova.set(cut_iova);
            head_bytes.set(mux(cut_last, cut_left, in_block));
            head_starts.set(cut_starts);
            head_empty.set(cut_empty);
            head_ends.set(cut_last);
            head_small.set(cut_small);
            head_atomic.set(cut_atomic);
            head_relaxed.set(cut_relaxed);
            head_offset.set(cut_offset);
        });
        let piece = buffer("pieces", c, 4, &headed);

        // --- pack: `lower` is the lower word of the window, the oldest in `words` the upper one
        let window = reg_init("window", 1, 0);
        let lower = reg("lower", c.data_bits());
        let lower_last = reg("lower_last", 1);
        let midway = reg_init("midway", 1, 0);
        let (span, offset) = (reg("span", 13), reg("offset", lane_bits));
        let upper = words.output.data.bits(0, c.data_bits());
        let upper_last = words.output.data.msb();
        let span_now = mux(midway, span, piece.data.span).named("span_now");
        let starts = piece.data.starts & !midway;
        let offset_now = mux(starts, piece.data.offset, offset).named("offset_now");
        let last_beat = span_now.le(c.data_bytes).named("last_beat");
        let used =
            mux(last_beat, span_now.bits(0, lane_bits + 1), lit(lane_bits + 1, u64::from(c.data_bytes)));
        let ahead = (offset_now.extend(lane_bits + 1) + used).named("ahead");
        let bits = (cat(&[upper, lower]) >> cat(&[offset_now, lit(3, 0)])).bits(0, c.data_bits());

        let has_words = window & (lower_last | words.output.valid);
        let packed = Stream::<Out> {
            valid: piece.valid & (piece.data.empty | has_words),
            ready: wire("pack_ready", 1),
            data: Out {
                beat: TlpBeat { header: piece.data.header, data: bits, first: !midway, last: last_beat },
                tells: piece.data.tells & (last_beat | piece.data.empty),
                tells_atomic: piece.data.tells_atomic & last_beat,
                empty: piece.data.empty,
            },
        };
        let moves = packed.moves().named("pack_moves");
        let beats = (moves & !piece.data.empty).named("beats");
        let job_done = (beats & last_beat & piece.data.ends).named("job_done");
        piece.ready.set(moves & (last_beat | piece.data.empty));
        // the window steps when the next byte lies in the upper word; at the end of a job it is given up, and the
        // first word of the next job may take its place at once
        let refill = mux(window, job_done & lower_last, lit(1, 1));
        let step = beats & !job_done & ahead.msb();
        let gives_up = job_done & !lower_last;
        words.output.ready.set(refill | step | gives_up);
        when(beats, || {
            midway.set(!last_beat);
            span.set(span_now - used.extend(13));
            offset.set(ahead.bits(0, lane_bits));
        });
        when(refill, || window.set(words.output.valid)).elif(gives_up, || window.set(0));
        when((refill | step) & words.output.valid, || {
            lower.set(upper);
            lower_last.set(upper_last);
        });

        let out = buffer("out", c, 2, &packed);
        let beat = out.data.beat;
        io.request.valid.set(out.valid & !out.data.empty);
        io.request.data.assign(&beat);
        out.ready.set(io.request.ready | out.data.empty);
        io.written.set(out.moves() & out.data.tells);
        io.atomic_written.set(out.moves() & out.data.tells_atomic);
        io.idle.set(!(job_valid | cut_valid | head_valid | piece.valid | out.valid));

        cover("upper_word_kept", beats & !job_done & !ahead.msb());
        cover("word_given_up", gives_up);
        cover("refilled_at_once", job_done & refill & words.output.valid);
    }
}
