//! gather: payload from host memory into the transmit buffer, one frame after the other handed on when complete.
//!
//! ```text
//! Segment > rights, room > SGE walk > MR word > judge > ReadRequest
//!  clock      0           1..         +1       +2
//!                        1.. inline words > shift > fill
//!                    slot ring:  free <= out <= tail
//! ReadDone > slot complete, oldest first > TransmitSlot (or Fault) > `sent` > room freed, oldest first
//! ```
//! A frame reserves a slot and, before its first read, all of its room in the buffer ring: payload byte 0 lies in the
//! lane in which the headers end, so packetise joins both without a shift. Its part `offset..offset + length` of the SGE
//! list is cut into pieces, at most one per SGE, each judged by its L_Key and read. Reads end in any order; frames leave in
//! order, and only complete (contract 11).
//!
//! Inline data comes as words (`words`), in the order of the packets and not before its own; each is turned to its lane and written
//! into the frame's room by `fill`, whole words, since the room is whole words. No key, no read, and nothing can go wrong.
//! SGEs from the fifth on come in the same way, and are taken as the walk reaches them. Words that a packet has no use
//! for, or whose QP is gone, are taken all the same.
//!
//! What goes wrong drops this frame alone and tells acknowledge which WQE failed with which status: a key that is unknown,
//! stale, of another PD or out of bounds, LOC_PROT_ERR; SGEs that end before the message, LOC_LEN_ERR; a failed
//! read, LOC_PROT_ERR. A packet whose QP has been destroyed under it is dropped without a read and without a Fault: nobody
//! is left to hear of it. The slot is freed only when all of its reads are over. The fence token takes a slot and leaves in
//! order, when all frames before it are out.
//!
//! A raw frame is all payload: its byte 0 lies in lane 0. When it leaves, acknowledge is told first, by a fault that is none
//! (status 0): its memory is the program's again, and nothing holds the frame back. A piece of it ends after 4096 bytes at the
//! latest, which is what one read brings.
//!
//! The key of a READ response is the peer's and must allow REMOTE_READ now, whatever it allowed when check took the
//! request. One that fails leaves in its order all the same, as NAK 0x62 (key) or 0x63 (read), behind its fault, which
//! carries the status that the peer will see.
//!
//! A request whose QP has gone back since it was cut (`rewind`) will be cut again, and the peer can only refuse it: it is
//! dropped in its turn, but not if it is known to be faulty. Reads that wait for `request` are withdrawn; nobody waits for those under
//! way but its room. Of a QP that goes back before anything that it sent again has left (its timeout is shorter than the way to the
//! line) nothing more is dropped: each way back sends a packet.
//!
//! A request that has left lies in the ring until it is overwritten. If it comes again (same QP, PSN, length and lane, and no
//! fence since) it leaves from there: its keys are judged, and nothing is read. The ring's tail stops at what is under way again.
//!
//! `sent`: packetise pulses it once per frame taken (not for the fence), in order, when it has read the payload, zero
//! bytes included.
//!
//! Throughput: 1 + (SGEs walked, those behind the fourth twice at 64 bit) clocks per packet, 1 + (words left over) more with SGEs
//! behind the fourth, 1 + (words written, and one where payload moves down a lane) with inline data, 2 without payload; across QPs and within one. Latency from
//! Segment to first read: 4 clocks (with the FIFO). If `unhurried`, 2 clocks per SGE and per frame that leaves, a clock more per packet,
//! and 6 clocks to the first read: comparisons, judgement and what is known of the oldest frame stand in registers first. Back-pressure: no slot, no room, `request`, `fill`; `slot`, `fault`.
//!
//! Requirements: CARD CMD ERR MEM RAW READ REQ RESP

use crate::config::Config;
use crate::flow::{
    Count, Fault, InlineWord, Mark, PacketFields, READ_ADDRESS, READ_ID, ReadClient, ReadDone, ReadRequest,
    Rewind, Segment, TransmitSlot, cause,
};
use crate::mr::judge;
use crate::prim::fifo::Fifo;
use crate::prim::later::{Pause, later, later_all, later_init};
use crate::qp::{EPOCH, INDEX};
use crate::tx::packetise::{at_least, header_bytes};
use contract::context::{MrEntryBits, QpRightsBits};
use contract::ring::{MAX_SGE, SgeBits};
use contract::verbs::access;
use contract::{Opcode, Reject, Syndrome, TraceEvent, WcStatus};
use hdl::{
    Bundle, Memory, Module, Ports, Sig, Stream, cat, delay_init, high, index_width, instance, lit, low, mux,
    reg, reg_init, select, when,
};

/// What this stage may count.
pub const REJECTS: &[Reject] =
    &[Reject::SglKey, Reject::GatherFailed, Reject::SglTooShort, Reject::WrongQpState];

/// Most bytes of one read.
const MOST_READ: u64 = 4096;

/// The gather stage.
#[derive(Clone, Debug)]
pub struct Gather(pub Config);

/// Ports of [`Gather`].
#[derive(Ports)]
#[ports(Gather)]
pub struct GatherIo {
    /// Packets of segment's `data`.
    #[sink(c.0.clone())]
    pub segment: Stream<Segment>,
    /// Words of inline data or of further SGEs, in the order of the packets.
    #[sink(c.0.data_bits())]
    pub words: Stream<Sig>,
    /// Inline data at its place in the transmit buffer.
    #[source(c.0.clone())]
    pub fill: Stream<InlineWord>,
    /// QP whose rights line is wanted in the next clock.
    #[output(c.0.qp_bits())]
    pub read_qp: Sig,
    /// It.
    #[input(256)]
    pub rights_word: Sig,
    /// MR that is wanted in the next clock.
    #[output(c.0.mr_bits())]
    pub read_mr: Sig,
    /// It.
    #[input(256)]
    pub mr_word: Sig,
    /// Reads of payload. Id: the transmit slot.
    #[source]
    pub request: Stream<ReadRequest>,
    /// Ends of reads of all clients.
    #[input]
    pub read_done: ReadDone,
    /// Frames whose payload is in the buffer, and the fence.
    #[source(c.0.clone())]
    pub slot: Stream<TransmitSlot>,
    /// Pulse: packetise has read the payload of the oldest frame taken.
    #[input]
    pub sent: Sig,
    /// QPs that go back.
    #[input(c.0.clone())]
    pub rewind: Rewind,
    /// WQEs that cannot be sent, READs that cannot be answered, raw frames that are sent.
    #[source(c.0.clone())]
    pub fault: Stream<Fault>,
    /// Pulse: the oldest of what segment gave is gone: taken by packetise or dropped.
    #[output]
    pub gone: Sig,
    /// Dropped frames by reason.
    #[output]
    pub count: Count,
    /// Pulse: a request was dropped that will be cut again.
    #[output]
    pub superseded: Sig,
    /// Packets that took their room, for trace.
    #[output(c.0.clone())]
    pub trace: Mark,
    /// Pulse: a packet waits for a slot, room or `request`.
    #[output]
    pub stall: Sig,
    /// Nothing inside, all room free.
    #[output]
    pub idle: Sig,
}

/// What is kept of a frame under way.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
struct Frame {
    #[shape(c.clone())]
    packet: PacketFields,
    /// Of its first word.
    #[shape(stamp_bits(c))]
    stamp: Sig,
    #[shape(c.lane_bits())]
    lane: Sig,
    #[shape(c.transmit_address_bits() - c.lane_bits() + 1)]
    words: Sig,
    #[shape(INDEX)]
    wqe_index: Sig,
    responds: Sig,
    again: Sig,
    requests: Sig,
    #[shape(EPOCH)]
    epoch: Sig,
    /// Its words may be found again when it has left.
    stays: Sig,
    /// Its words were those of a frame that had left.
    found: Sig,
}

/// A request that has left, and whose words may be in the buffer still.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
struct Retained {
    #[shape(c.qp_bits())]
    qp: Sig,
    #[shape(24)]
    psn: Sig,
    #[shape(13)]
    length: Sig,
    #[shape(c.lane_bits())]
    lane: Sig,
    #[shape(stamp_bits(c))]
    stamp: Sig,
}

impl Retained {
    /// Where one is kept: by PSN, those of eight QPs apart.
    fn index(c: &Config, packet: &PacketFields) -> Sig {
        let bits = index_width(c.retained);
        let apart = packet.qp.extend(3.max(c.qp_bits())).bits(0, 3);
        packet.psn.bits(0, bits) ^ if bits > 3 { cat(&[apart, lit(bits - 3, 0)]) } else { apart }
    }
}

/// Bits of a stamp: words that were ever reserved, modulo 16 times the ring.
fn stamp_bits(c: &Config) -> u32 {
    c.transmit_address_bits() - c.lane_bits() + 4
}

/// A piece of payload within one SGE.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
struct Piece {
    #[shape(64)]
    va: Sig,
    #[shape(32)]
    key: Sig,
    #[shape(13)]
    length: Sig,
    #[shape(c.transmit_address_bits())]
    address: Sig,
    /// The key is the peer's.
    remote: Sig,
}

impl Module for Gather {
    type Io = GatherIo;
    fn name(&self) -> String {
        format!("gather_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!(
            "Payload reads for up to {} frames in {} bytes.",
            self.0.transmit_slots, self.0.transmit_buffer_bytes
        )
    }
    fn body(&self, io: &GatherIo) {
        let c = &self.0;
        let n = c.transmit_slots;
        let slot_bits = c.transmit_slot_bits();
        assert!(
            slot_bits <= READ_ID && c.transmit_address_bits() <= READ_ADDRESS,
            "transmit buffer too large"
        );
        let lane_bits = c.lane_bits();
        let word_bits = c.transmit_address_bits() - lane_bits;
        let ring_words = c.transmit_words();
        let segment = &io.segment.data;
        let packet = &segment.packet;
        let one = |valid: Sig, slot: Sig| (valid.extend(n) << slot).resize(n);
        // of each QP the oldest epoch whose requests are wanted, and that of the last one that left
        let wanted = Memory::new("wanted_epochs", c.qps, EPOCH).style("distributed");
        let gone = Memory::new("gone_epochs", c.qps, EPOCH).style("distributed");
        let (rewind, oldest) = (&io.rewind, wanted.read_now("oldest_wanted", io.rewind.qp));
        let waits = (gone.read_now("last_gone", rewind.qp) - oldest).msb().named("none_has_left");
        // eight epochs can be told apart from those that are over
        let full = (rewind.epoch - oldest).ge(7).named("many_epochs");
        wanted.write(rewind.valid & (!waits | full), rewind.qp, rewind.epoch);
        let gone_back = |name: &str, frame: &Frame| {
            if !c.host {
                return low();
            }
            frame.requests & (frame.epoch - wanted.read_now(name, frame.packet.qp)).msb()
        };

        // the slot ring
        let (tail, out, free) = (
            reg_init("tail", slot_bits + 1, 0),
            reg_init("out", slot_bits + 1, 0),
            reg_init("free", slot_bits + 1, 0),
        );
        let number = |pointer: Sig| pointer.bits(0, slot_bits);
        let frames = Memory::new("frames", n, Frame::total_width(c)).style("distributed");
        let leaving = Frame::from_bits(c, frames.read_now("leaving", number(out)));
        let freeing = Frame::from_bits(c, frames.read_now("freeing", number(free)));
        let (tail_stamp, used) =
            (reg_init("tail_stamp", stamp_bits(c), 0), reg_init("used_words", word_bits + 1, 0));
        let tail_word = tail_stamp.bits(0, word_bits);

        // clock 0: where and how much
        let phase = reg_init("phase", 2, 0);
        io.read_qp.set(packet.qp);
        let lane = header_bytes(packet).bits(0, lane_bits);
        let bytes = lane.extend(14) + packet.length.extend(14) + u64::from(c.data_bytes - 1);
        let words = mux(
            packet.length.any() & !packet.fence,
            bytes.bits(lane_bits, 14 - lane_bits).resize(word_bits + 1),
            lit(word_bits + 1, 0),
        );
        let stays = segment.requests & !segment.inline & !packet.raw & packet.length.any();
        let kept = (c.retained != 0).then(|| Kept::new(c, packet, lane, tail_stamp));
        let found = kept.as_ref().map_or(low(), |kept| kept.found & stays).named("found");
        let first = kept.as_ref().map_or(tail_stamp, |kept| mux(found, kept.stamp, tail_stamp));
        let words = mux(found, lit(word_bits + 1, 0), words);
        let (tail_lane, need) = (lane, reg("need_words", word_bits + 1));
        let (lane, is_found, first_stamp) =
            (reg("lane", lane_bits), reg("is_found", 1), reg("first_stamp", stamp_bits(c)));
        let (index, skip, remain, at) =
            (reg("sge_index", 5), reg("skip", 32), reg("remain", 13), reg("at", c.transmit_address_bits()));
        when(phase.eq(0), || {
            need.set(words);
            lane.set(tail_lane);
            is_found.set(found);
            first_stamp.set(first);
            index.set(0);
            skip.set(segment.offset);
            remain.set(packet.length);
            at.set(cat(&[tail_word, tail_lane]));
        });
        when(phase.eq(0) & io.segment.valid, || phase.set(1));

        // clock 1: reserve, and walk the first SGE
        let slot_free = !(tail - free).msb();
        let room = (used.extend(word_bits + 2) + need.extend(word_bits + 2)).le(ring_words);
        let held = kept.as_ref().map_or(low(), |kept| kept.holds(c, tail_stamp, need));
        // what is compared is known a clock behind what it is made of
        let pause = Pause::new(c, "compared");
        let has_place = later(c, "known_place", slot_free & room & !held);
        let reserve = pause.over(phase.eq(1) & has_place).named("reserve");
        let rights = QpRightsBits::unpack(io.rights_word);
        let orphaned = !packet.fence & !rights.valid;
        let wanted_of_segment = wanted.read_now("wanted_of_segment", packet.qp);
        let superseded =
            (segment.requests & (segment.epoch - wanted_of_segment).msb()).named("is_superseded");
        let unwanted = (orphaned | superseded).named("unwanted");
        let brings = (segment.inline | segment.more.any()).named("brings_words");
        let pays = packet.length.any() & !packet.fence & (!unwanted | brings);
        let known = |name: &str, what: Sig| later(c, &format!("known_{name}"), what);
        let (orphaned, superseded) = (known("orphaned", orphaned), known("superseded", superseded));
        let (unwanted, pays) = (known("unwanted", unwanted), known("to_pay", pays));
        let pd = reg("pd", 24);
        let (current, reads) = (reg("current", slot_bits), reg("reads", 1));
        let walks = pays & !unwanted & !segment.inline;
        let frame = Frame {
            packet: *packet,
            stamp: first_stamp,
            lane,
            words: need,
            wqe_index: segment.wqe_index,
            responds: segment.responds,
            again: segment.again,
            requests: segment.requests,
            epoch: segment.epoch,
            stays,
            found: is_found,
        };
        frames.write(reserve, number(tail), frame.to_bits());
        when(reserve, || {
            tail.set(tail + 1);
            tail_stamp.set(tail_stamp + need.extend(stamp_bits(c)));
            pd.set(rights.pd);
            current.set(number(tail));
            reads.set(!is_found);
            let behind = mux(unwanted & !segment.inline, lit(2, 3), lit(2, 2));
            phase.set(mux(pays, behind, lit(2, 0)));
        });

        // clock 1 and on: one SGE per clock; three pieces may be under way to a FIFO of 4
        let fifo = instance("request_fifo", &Fifo { depth: 4, width: ReadRequest::total_width(&()) });
        let asked = ReadRequest::from_bits(&(), fifo.output.data);
        let asked_of = asked.id.bits(0, slot_bits);
        let asking = Frame::from_bits(c, frames.read_now("asking", asked_of));
        let withdrawn = (fifo.output.valid & gone_back("wanted_of_asking", &asking)).named("withdrawn");
        io.request.valid.set(fifo.output.valid & !withdrawn);
        io.request.data.assign(&asked);
        fifo.output.ready.set(io.request.ready | withdrawn);
        let list: Vec<Sig> = (0..c.sges).map(|i| segment.sges.bits(i * 128, 128)).collect();
        // a further SGE: two words, or a part of one
        let further = (index.ge(u64::from(c.sges)) & !segment.inline).named("further");
        // an answer has one
        let further = if c.host { further } else { low() };
        let half = (reg("half_sge", 64), reg_init("half_there", 1, 0));
        let (whole, sge_word, spends) = if c.data_bytes == 8 {
            (half.1, cat(&[io.words.data, half.0]), high())
        } else {
            // the fifth begins at byte 32 of a word
            let place = index.bits(0, 2) + 2;
            let parts: Vec<Sig> = (0..4).map(|i| io.words.data.bits(i * 128, 128)).collect();
            (high(), select(place, &parts), place.all())
        };
        let open = (phase.eq(2) & !segment.inline) | (reserve & walks);
        let here = !further | (whole & io.words.valid);
        let step = pause.over(open & fifo.level.lt(2) & here).named("step");
        pause.behind(|| phase.none() | step | !here);
        let takes_half = open & further & !whole;
        when(takes_half & io.words.valid, || half.0.set(io.words.data.bits(0, 64)));
        let sge = SgeBits::unpack(
            mux(further, sge_word, select(index.bits(0, index_width(c.sges)), &list)).named("sge"),
        );
        let rest = if c.host { mux(remain.gt(MOST_READ), lit(13, MOST_READ), remain) } else { remain };
        // how far into this SGE one read would come, and all that remains: known before its length is, so that one comparison
        // is what that costs
        let reach = (skip.extend(33) + rest.extend(33)).named("reach");
        let all = (skip.extend(33) + remain.extend(33)).named("reach_of_all");
        let length = sge.length.extend(33);
        let inside = skip.lt(sge.length);
        let ends_first = length.lt(reach).named("sge_ends_first");
        let takes = mux(ends_first, (sge.length - skip).bits(0, 13), rest).named("takes");
        let left =
            mux(inside, mux(ends_first, (all - length).bits(0, 13), remain - rest), remain).named("left");
        let none_left =
            mux(inside, mux(ends_first, all.eq(length), remain.eq(rest)), remain.none()).named("none_left");
        // more of this SGE is wanted than one read brings
        let stays = (inside & reach.lt(length) & remain.ne(rest)).named("stays_in_sge");
        let (inside, none_left, stays) =
            (known("inside", inside), known("none_left", none_left), known("to_stay", stays));
        let (reach, takes, left) = (known("reach", reach), known("takes", takes), known("left", left));
        when(reserve | (step & !stays), || half.1.set(0)).elif(takes_half & io.words.valid, || half.1.set(1));
        let ends = none_left | (index.eq(segment.more + u64::from(c.sges - 1)) & !stays);
        let to_take = reg("words_to_take", 8);
        let words_left = mux(phase.eq(1), brings, to_take.any());
        let piece = Piece::regs(c, "piece");
        let piece_valid = reg_init("piece_valid", 1, 0);
        piece_valid.set(step & inside);
        io.read_mr.set(sge.lkey.bits(8, c.mr_bits()));
        when(step, || {
            piece.assign(&Piece {
                va: sge.addr + skip.extend(64),
                key: sge.lkey,
                length: takes,
                address: at,
                remote: segment.responds,
            });
            index.set(index + (!stays).extend(5));
            skip.set(mux(stays, reach.bits(0, 32), mux(inside, lit(32, 0), skip - sge.length)));
            remain.set(left);
            when(inside, || at.set(at + takes.extend(at.width())));
            when(ends, || phase.set(mux(words_left, lit(2, 3), lit(2, 0))));
        });
        let short = delay_init("short", step & ends & !none_left);

        // or one word of inline data: what a word leaves over opens the next. Payload byte 0 is at lane `from`
        let (bits, from) = (c.data_bits(), 32 % c.data_bytes);
        let turned = (lane - u64::from(from)).named("turned");
        // header bytes are 2 modulo 4
        let rotated: Vec<Sig> = (2..c.data_bytes)
            .step_by(4)
            .map(|by| bits - by * 8)
            .map(|low| cat(&[io.words.data.bits(0, low), io.words.data.bits(low, bits - low)]))
            .collect();
        let rotated = select(turned.bits(2, lane_bits - 2), &rotated);
        // those of a raw frame, none
        let word = io.words.data;
        let by = from * 8;
        let aligned = if by == 0 { word } else { cat(&[word.bits(0, by), word.bits(by, bits - by)]) };
        let rotated = mux(packet.raw, aligned, rotated).named("rotated");
        let (carry, primed) = (reg("carry", bits), reg_init("primed", 1, 0));
        let to_fill = reg("words_to_fill", word_bits + 1);
        // from the reservation on, which sets what is still to be done
        let begins = (reserve & pays & segment.inline).named("begins_inline");
        let own = (phase.eq(2) & segment.inline) | begins;
        // payload that moves down a lane begins with the second half of the first word
        let fills = (primed & !begins) | at_least(lane, from);
        let takes_word = begins | to_take.any();
        io.fill.valid.set(own & fills & (io.words.valid | !takes_word));
        let spent = takes_half | (step & further & spends & !stays) | (phase.eq(3) & takes_word);
        io.words.ready.set(spent | (own & takes_word & (io.fill.ready | !fills)));
        let lanes: Vec<Sig> = (0..c.data_bytes)
            .rev()
            .map(|i| match i + 1 {
                top if top == c.data_bytes => rotated.byte(i),
                _ => mux(turned.le(u64::from(i)), rotated.byte(i), carry.byte(i)),
            })
            .collect();
        io.fill.data.word.set(at.bits(lane_bits, word_bits));
        io.fill.data.data.set(cat(&lanes));
        let size = mux(segment.inline, packet.length.bits(0, 8), cat(&[segment.more.bits(0, 4), lit(4, 0)]));
        let last_byte = size + u64::from(from) - 1;
        let last_word = last_byte.bits(lane_bits, 8 - lane_bits).extend(8);
        when(reserve, || {
            primed.set(0);
            to_take.set(mux(brings, last_word + 1, lit(8, 0)));
            to_fill.set(need);
        });
        let left_to_fill = mux(begins, need, to_fill);
        when(io.words.moves(), || {
            carry.set(rotated);
            primed.set(1);
            to_take.set(mux(begins, last_word, to_take - 1));
        });
        let filled = (io.fill.moves() & left_to_fill.eq(1)).named("filled");
        when(io.fill.moves(), || {
            at.set(at + u64::from(c.data_bytes));
            to_fill.set(left_to_fill - 1);
        });

        // the MR's word is here
        let judged = Piece::regs(c, "judged");
        let judged_valid = reg_init("judged_valid", 1, 0);
        let entry = reg("mr_entry", 256);
        judged_valid.set(piece_valid);
        when(piece_valid, || {
            judged.assign(&piece);
            entry.set(io.mr_word);
        });

        // judge and ask
        let access = judge(
            &MrEntryBits::unpack(entry),
            judged.key,
            judged.va,
            judged.length.extend(32),
            pd,
            mux(judged.remote, lit(8, u64::from(access::REMOTE_READ)), lit(8, 0)),
        );
        let key_bits = 8 + c.mr_bits();
        let ok = if key_bits < 32 {
            access.ok & judged.key.bits(key_bits, 32 - key_bits).none()
        } else {
            access.ok
        };
        let request = ReadRequest {
            iova: access.iova,
            length: judged.length,
            address: judged.address.extend(READ_ADDRESS),
            id: current.extend(READ_ID),
        };
        let (judged_valid, ok) = (later_init(c, "verdict_valid", judged_valid), known("verdict", ok));
        let request = later_all(c, &(), "known_request", &request);
        let asks = (judged_valid & ok & reads).named("asks");
        fifo.input.valid.set(asks);
        fifo.input.data.set(request.to_bits());
        // the walk is over when its last piece is judged, in the clock in which `current` may change at the earliest
        let drained = phase.eq(3) & to_take.none();
        let walked = ((step & ends & !words_left) | drained).named("walked");
        let judged_all = delay_init("judged_all", delay_init("last_piece", walked));
        let judged_all = later_init(c, "verdict_of_all", judged_all);
        when(filled | drained, || phase.set(0));
        io.segment.ready.set(filled | walked | (reserve & !pays));

        // what is known of each slot
        let ended = io.read_done.valid & io.read_done.client.eq(ReadClient::Gather as u64);
        let ended_slot = io.read_done.id.bits(0, slot_bits);
        let count_bits = index_width(MAX_SGE + 1);
        let (more, fewer, unasked) = (one(asks, current), one(ended, ended_slot), one(withdrawn, asked_of));
        let waits: Vec<Sig> = (0..n)
            .rev()
            .map(|i| {
                let count = reg_init(&format!("reads_{i}"), count_bits, 0);
                let bit = |set: Sig| set.bit(i).extend(count_bits);
                // whether one more is asked for is known last
                let fewer = count - bit(fewer) - bit(unasked);
                count.set(mux(more.bit(i), fewer + 1, fewer));
                count.any()
            })
            .collect();
        let waits = cat(&waits);
        let fresh = one(reserve, number(tail));
        let flag = |name: &str, set: Sig| {
            let r = reg_init(name, n, 0);
            r.set((r & !fresh) | set);
            r
        };
        let at_once = (reserve & !pays) | (begins & filled);
        let closes = one(judged_all | (filled & !begins), current) | one(at_once, number(tail));
        let closed = flag("closed", closes);
        let bad_key = flag("bad_key", one(judged_valid & !ok, current));
        let too_short = flag("too_short", one(short, current));
        let broken = flag("broken", one(ended & io.read_done.failed, ended_slot));
        let orphan = flag("orphan", one(reserve & orphaned, number(tail)));
        let unread = flag("unread", one(reserve & superseded, number(tail)) | unasked);

        // the oldest frame not yet out
        let at_out = |set: Sig| set.bit_at(number(out));
        let late = (at_out(unread) | gone_back("wanted_of_leaving", &leaving)).named("late");
        // whose reads nobody waits for but its room
        let over = (out.ne(tail) & at_out(closed) & (!at_out(waits) | late)).named("over");
        let faulty = at_out(bad_key | too_short | broken);
        // the peer has had that READ: it asked again before its key ended, or somebody doubled its packet
        let needless = faulty & leaving.responds & leaving.again;
        let again = (late & !faulty & !at_out(orphan)).named("sent_again");
        let dropped = (over & (at_out(orphan) | needless | again)).named("dropped");
        // what is said of a frame that is over stands until it leaves
        let pause = Pause::new(c, "looked_at_out");
        let (over, dropped) = (later_init(c, "known_over", over), later_init(c, "known_dropped", dropped));
        let (over, dropped) = (pause.over(over), pause.over(dropped));
        let again = known("sent_again", again);
        io.superseded.set(dropped & again);
        let complete = (over & !dropped).named("complete");
        // a response that failed: the fault first, then its NAK in its place
        let refuses = known("refuses", (faulty & leaving.responds).named("refuses"));
        // a raw frame: acknowledge first, then the frame
        let departs = known("departs", (leaving.packet.raw & !faulty).named("departs"));
        let faulty = known("faulty", faulty);
        let told = reg_init("fault_told", 1, 0);
        when(io.fault.moves() & (refuses | departs), || told.set(1));
        when(io.slot.moves(), || told.set(0));
        gone.write(io.slot.moves() & leaving.requests, leaving.packet.qp, leaving.epoch);
        let key_fault = known("key_fault", at_out(bad_key));
        let nak = PacketFields {
            opcode: lit(8, u64::from(Opcode::RcAcknowledge.code())),
            syndrome: mux(
                key_fault,
                lit(8, u64::from(Syndrome::NAK_REMOTE_ACCESS)),
                lit(8, u64::from(Syndrome::NAK_REMOTE_OPERATION)),
            ),
            length: lit(13, 0),
            ..leaving.packet
        };
        io.slot.valid.set(complete & (!(faulty | departs) | told));
        io.slot.data.assign(&TransmitSlot {
            packet: nak.or_else(c, refuses, &leaving.packet),
            address: cat(&[leaving.stamp.bits(0, word_bits), leaving.lane]),
        });
        io.fault.valid.set(complete & (faulty | departs) & !told);
        io.fault.data.responds.set(leaving.responds);
        io.fault.data.invalidates.set(low());
        io.fault.data.qp.set(leaving.packet.qp);
        io.fault.data.wqe_index.set(leaving.wqe_index);
        let short_fault = known("short_fault", at_out(too_short));
        let status = |s: WcStatus| lit(8, s as u64);
        let code = |r: Reject| lit(6, r as u64);
        io.fault.data.status.set(mux(
            leaving.responds,
            mux(key_fault, status(WcStatus::RemAccessErr), status(WcStatus::RemOpErr)),
            mux(
                departs,
                status(WcStatus::Success),
                mux(short_fault & !key_fault, status(WcStatus::LocLenErr), status(WcStatus::LocProtErr)),
            ),
        ));
        let why = mux(
            key_fault,
            code(Reject::SglKey),
            mux(short_fault, code(Reject::SglTooShort), code(Reject::GatherFailed)),
        );
        io.fault.data.cause.set(cause(why));
        io.count.valid.set((io.fault.moves() & !departs) | (dropped & !again));
        io.count.index.set(mux(known("orphan", at_out(orphan)), code(Reject::WrongQpState), why));
        let leaves = (io.slot.moves() | (io.fault.moves() & !refuses & !departs) | dropped).named("leaves");
        io.gone.set(leaves);
        pause.behind(|| leaves);
        when(leaves, || out.set(out + 1));
        let skips = (faulty & !refuses) | dropped | leaving.packet.fence;
        let skipped = flag("skipped", one(leaves & skips, number(out)));

        // the oldest frame not yet freed; pulses may come while dropped ones stand before theirs
        let sent = reg_init("sent_frames", slot_bits + 1, 0);
        let skips = skipped.bit_at(number(free));
        let done = mux(skips, !waits.bit_at(number(free)), sent.any());
        let frees = later_init(c, "known_to_free", (free.ne(out) & done).named("frees"));
        let pause = Pause::new(c, "looked_at_free");
        let frees = pause.over(frees);
        pause.behind(|| frees);
        when(frees, || free.set(free + 1));
        sent.set(sent + io.sent.extend(slot_bits + 1) - (frees & !skips).extend(slot_bits + 1));
        used.set(
            used + mux(reserve, need, lit(word_bits + 1, 0))
                - mux(frees, freeing.words, lit(word_bits + 1, 0)),
        );

        if let Some(kept) = kept {
            let whole = !at_out(waits | orphan | unread) & !faulty;
            kept.count(reserve & is_found, first_stamp, frees & freeing.found);
            let (stays, fence) = (leaves & leaving.stays & whole, leaves & leaving.packet.fence);
            kept.keep(c, &leaving, stays, fence, tail_stamp, reserve);
        }

        io.trace.assign(&Mark {
            index: segment.wqe_index,
            psn: packet.psn,
            opcode: packet.opcode,
            detail: number(tail).extend(16),
            ..Mark::of(TraceEvent::Gather, reserve & !packet.fence, packet.qp)
        });
        io.stall.set((phase.eq(1) & !reserve) | (phase.eq(2) & !step & !io.words.moves() & !io.fill.moves()));
        io.idle.set(phase.eq(0) & !io.segment.valid & free.eq(tail));
    }
}

/// The requests that have left, by QP and PSN, and those under way again from where they lie.
struct Kept {
    table: Memory,
    valid: Sig,
    /// The packet that segment gives is here and not overwritten.
    found: Sig,
    /// Of its words.
    stamp: Sig,
    /// Frames under way again.
    again: Sig,
    /// The stamp of the first of them; none of the others lies behind it.
    oldest: Sig,
}

impl Kept {
    fn new(c: &Config, packet: &PacketFields, lane: Sig, tail: Sig) -> Kept {
        // each is looked at once in so many frames, of 8191 bytes and headers at most; older ones pass for young
        let words = (8191 + 128) / c.data_bytes;
        assert!(c.retained * words < 14 * c.transmit_words(), "retained outlive their stamps");
        let table = Memory::new("retained", c.retained, Retained::total_width(c)).style("distributed");
        let valid = reg_init("retained_valid", c.retained, 0);
        let index = Retained::index(c, packet);
        let entry = Retained::from_bits(c, table.read_now("retained_of_segment", index));
        let again = reg_init("frames_again", c.transmit_slot_bits() + 1, 0);
        let oldest = reg("oldest_again", stamp_bits(c));
        let same = entry.qp.eq(packet.qp)
            & entry.psn.eq(packet.psn)
            & entry.length.eq(packet.length)
            & entry.lane.eq(lane);
        let ahead = again.none() | !(entry.stamp - oldest).msb();
        let found = valid.bit_at(index) & same & lies(c, tail, entry.stamp) & ahead;
        Kept { table, valid, found, stamp: entry.stamp, again, oldest }
    }

    /// So many words more would overwrite a frame under way again.
    fn holds(&self, c: &Config, tail: Sig, need: Sig) -> Sig {
        self.again.any() & !lies(c, tail + need.extend(tail.width()), self.oldest)
    }

    /// One more is under way again; one less.
    fn count(&self, more: Sig, stamp: Sig, fewer: Sig) {
        let bits = self.again.width();
        self.again.set(self.again + more.extend(bits) - fewer.extend(bits));
        when(more & self.again.none(), || self.oldest.set(stamp));
    }

    /// A frame that leaves `stays` where it is. Behind the fence there may be other QPs of the same numbers. The clock looks at
    /// another entry whenever the tail moves.
    fn keep(&self, c: &Config, frame: &Frame, stays: Sig, fence: Sig, tail: Sig, moves: Sig) {
        let n = c.retained;
        let index = Retained::index(c, &frame.packet);
        let entry = Retained {
            qp: frame.packet.qp,
            psn: frame.packet.psn,
            length: frame.packet.length,
            lane: frame.lane,
            stamp: frame.stamp,
        };
        self.table.write(stays, index, entry.to_bits());
        let turn = reg_init("retained_turn", index_width(n), 0);
        when(moves, || turn.set(turn + 1));
        let looked = Retained::from_bits(c, self.table.read_now("retained_of_turn", turn));
        let one = |valid: Sig, place: Sig| (valid.extend(n) << place).resize(n);
        let old = one(!lies(c, tail, looked.stamp), turn);
        self.valid.set(mux(fence, lit(n, 0), (self.valid & !old) | one(stays, index)));
    }
}

/// What was reserved under this stamp is not overwritten by what is reserved up to `tail`.
fn lies(c: &Config, tail: Sig, stamp: Sig) -> Sig {
    (tail - stamp).le(u64::from(c.transmit_words()))
}
