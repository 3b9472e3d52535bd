//! segment: one turn in; packets of one WQE out, or of one READ, a KiB of it at most.
//!
//! ```text
//!           clock 0 address of all words   1 words here   2 sums and comparisons   3 decision, `tx` written, TurnDone
//! WorkItem ---------------------------------------------------------------------> data    (to gather, FIFO of 4)
//!                                                                           \---> control (to packetise, FIFO of 2)
//! ```
//! The fence token passes into `data`, in order. A turn does two things, on two ways that do not wait for each other:
//! * of what is owed to the peer, if the QP is ready to receive, the first that applies:
//!   1. a rewind not yet obeyed: the response cursor goes back to it, if it stands behind it;
//!   2. READs or atomics stand between the cursor and `placed.res_head`: one READ response, or the result of the atomic
//!      if it is executed (else nothing: its wake comes), whatever the send queue's faults; or, if the one under the
//!      cursor was overwritten, the cursor goes on to the oldest never answered. Such an answer pays a tail whose PSN
//!      is before its own. An atomic whose memory could not be read is answered by NAK 0x63, with a [`Fault`];
//!   3. the tail (`placed.tail_seq != tx.paid`) goes out, whatever is halted: on `control`, or on `data` while a READ
//!      response of the QP is on its way to packetise, which it must not overtake (`res_mark`, `gone`);
//! * of the send queue, the first that applies:
//!   1. a rewind not yet obeyed, or a cursor that acknowledgements have overtaken: the cursor goes to the triple of the
//!      oldest unanswered PSN;
//!   2. the WQE under the cursor is bad: a new one gets a record with its status, `tx.halt` and a `kick`; one under
//!      replay (its record stands already) a [`Fault`], and acknowledge decides;
//!   3. it is present and may be sent: a packet. A WQE met for the first time gets its PSNs and its outstanding record
//!      now and never again.
//!
//! A READ has the PSNs of its responses, and one request for all of them: the cursor goes behind what was asked for.
//! Replay asks from the cursor to the same end. `max_inflight` does not hold it, the PSN window does; one of more PSNs
//! than that ([`WINDOW`]) is asked for but for its last, and for that when all before it is answered. A new READ needs a
//! free entry of the read list (`max_rd_atomic`) and writes its SGEs there, those from the fifth on as words behind its
//! request; a WQE with `fence` waits until no READ is outstanding.
//! An atomic is a READ of 8 bytes in all of that, with its operands in the request (`contract::AtomicOperands`); it has
//! exactly one SGE.
//!
//! A local invalidate is no packet: when all before it is retired, so that no replay needs the key, it gets a record
//! without PSNs and goes to place (`local`); the cursor stays on it until acknowledge has retired it, so what is behind
//! finds the key gone. One per QP at most is under way.
//!
//! Inline data, one packet always, goes out by `words`, a word per clock from its packet on, in the order of `data`; and so
//! do the SGEs of a SEND or WRITE from the fifth on, with each packet. The turn ends behind the last word: fetch, which reads ahead, leaves
//! the WQE alone until then, so nobody has to hold its slot while the packet waits for gather. That FIFO has room for the
//! words of every packet that `data` has room for.
//!
//! A turn goes on, all words read anew, until what it sends completes a KiB of its message (of the READ it answers, if that
//! is sooner): at path MTU 256 the line wants the next packet of a QP alone sooner than its turn can go round. What it finds
//! changed ends it, as does a full `data`. Nobody waits much longer for it than for one packet of path MTU 1024.
//!
//! Throughput: one packet per 4 clocks, across QPs and within a turn, and one more for each of these words behind the
//! first. Latency 4 clocks, plus one through the FIFO. If `unhurried`, 5, and 5 plus two.
//!
//! Back-pressure: a turn that finds `data` full changes nothing and asks for another turn, so responses never queue
//! behind payload; `room` tells schedule in time, so that this is rare. If both want `data`, they take turns. Only a full `control`, `kick`, `fault` or a fence
//! before a full `data` hold the stage.
//!
//! A WQE of a raw QP is a SEND whose message is a frame, of 14 bytes to the port's MTU and 14 (8191 at most): one packet
//! with a PSN that only this card sees. gather tells acknowledge when it is on its way; nothing answers it, nothing repeats it.
//!
//! `tx.halt` stops new WQEs; replay of those before the bad one goes on, so that they can complete.
//! AckReq: last packet of a message, every 16th without, the packet that closes the window (`max_inflight`): without
//! it a window smaller than a message would wait for the timeout; and the oldest unanswered packet when it is sent again: its
//! answer starts the timer anew.
//! Replay never assigns PSNs. A cursor outside of its WQE (a triple that acknowledge is still moving) sends nothing.
//! A turn in SQD, when all that had begun is retired, tells of it, once for each time the driver asked (`drain`).
//! READ responses move no PSN of the requester. First, Last and Only carry AETH with the MSN behind their READ; what
//! follows a rewind is First or Only. The payload is one SGE that names the peer's key, which gather judges (`responds`).
//!
//! What acknowledge owes this stage: a wake after every write of `requester`.
//!
//! Not in this version: UC, UD.
//!
//! Requirements: ATOM CARD CMD ERR PKT QPS QUE RAW READ REQ RESP TIM

use crate::config::Config;
use crate::flow::{
    self, Count, Event, Fault, Invalidation, Mark, Outer, Owed, PacketFields, ReadListWrite, TurnDone, Wake,
    WorkItem, response,
};
use crate::prim::fifo::{Fifo, buffer};
use crate::prim::later::{Pause, later, later_all, later_init};
pub use crate::qp::WINDOW;
use crate::qp::{
    Executed, INDEX, Initialise, Outcome, OwedRead, PSN, Placed, READS, RING, Record, Requester, StateShape,
    StateWrite, Tx, owed_address, psn_before,
};
use contract::context::{QpQueuesBits, QpRightsBits};
use contract::ring::{AtomicOperandsBits, MAX_INLINE, MAX_SGE, SendWqeBits, SgeBits};
use contract::wire::{ETHERNET_BYTES, RAW_FRAME_MAX};
use contract::{
    AsyncEvent, EventKind, Opcode, QpState, Reject, Syndrome, TraceEvent, Transport, WcOpcode, WcStatus,
    WrOpcode,
};
use hdl::{
    Bundle, Module, Ports, Sig, Stream, any_of, cat, index_width, instance, lit, low, mux, reg, reg_init,
    when,
};

/// The ACK syndrome: credits are not used.
const ACK: u64 = 0x1f;
/// Packets that may wait for gather.
const AHEAD: u32 = 4;
/// Packets of which at least one asks for an acknowledgement.
pub const ACK_EVERY: u64 = 16;
/// log2 of the bytes of its message that a turn completes.
const LOG_TURN: u32 = 10;

/// What this stage may count.
pub const REJECTS: &[Reject] =
    &[Reject::SqFetchFailed, Reject::WqeIndex, Reject::WqeLength, Reject::WqeOpcode];

/// The segment stage.
#[derive(Clone, Debug)]
pub struct Segment(pub Config);

/// Ports of [`Segment`].
#[derive(Ports)]
#[ports(Segment)]
pub struct SegmentIo {
    /// Turns, with the WQE.
    #[sink(c.0.clone())]
    pub work: Stream<WorkItem>,
    /// Start or clear a QP's `tx`.
    #[sink(c.0.clone())]
    pub initialise: Stream<Initialise>,
    /// QP whose words are wanted in the next clock.
    #[output(c.0.qp_bits())]
    pub read_qp: Sig,
    /// `tx` of that QP.
    #[input(Tx::total_width(&()))]
    pub tx_word: Sig,
    /// `requester` of that QP.
    #[input(Requester::total_width(&()))]
    pub requester_word: Sig,
    /// `placed` of that QP.
    #[input(Placed::total_width(&()))]
    pub placed_word: Sig,
    /// Rights line of that QP.
    #[input(256)]
    pub rights_word: Sig,
    /// Queues line of that QP.
    #[input(256)]
    pub queues_word: Sig,
    /// Writes `tx`.
    #[output(StateShape::per_qp::<Tx>(&c.0))]
    pub tx_write: StateWrite,
    /// Address of the READs owed.
    #[output(c.0.response_bits())]
    pub owed_address: Sig,
    /// [`OwedRead`], one clock later.
    #[input(OwedRead::total_width(&()))]
    pub owed_word: Sig,
    /// Address of the outcomes of atomics.
    #[output(c.0.response_bits())]
    pub outcome_address: Sig,
    /// [`Outcome`], one clock later.
    #[input(Outcome::total_width(&()))]
    pub outcome_word: Sig,
    /// [`Executed`] of `read_qp`.
    #[input(Executed::total_width(&()))]
    pub executed_word: Sig,
    /// Pulse: gather has handed on, or dropped, the oldest packet of `data`.
    #[input]
    pub gone: Sig,
    /// Most bytes between Ethernet header and FCS.
    #[input(16)]
    pub port_mtu: Sig,
    /// Writes the record memory.
    #[output(StateShape { address: c.0.record_bits(), width: Record::total_width(&()) })]
    pub record_write: StateWrite,
    /// Writes the read list: the SGEs of outstanding READs.
    #[output(c.0.clone())]
    pub read_list: ReadListWrite,
    /// Packets with (perhaps) payload, and the fence.
    #[source(c.0.clone())]
    pub data: Stream<flow::Segment>,
    /// Word of the WQE in `work` that is wanted in the next clock.
    #[output(index_width(c.0.wqe_bytes / c.0.data_bytes))]
    pub inline_index: Sig,
    /// It.
    #[input(c.0.data_bits())]
    pub inline_word: Sig,
    /// Of each packet of `data` that is `inline` the words of its WQE, from that of byte 32 on; of one with `more` SGEs
    /// from that of the fifth on.
    #[source(c.0.data_bits())]
    pub words: Stream<Sig>,
    /// Responses.
    #[source(c.0.clone())]
    pub control: Stream<PacketFields>,
    /// Ends of turns.
    #[source(c.0.clone())]
    pub done: Stream<TurnDone>,
    /// acknowledge has a record with a status to look at.
    #[source(c.0.clone())]
    pub kick: Stream<Wake>,
    /// WQEs under replay that turned out bad.
    #[source(c.0.clone())]
    pub fault: Stream<Fault>,
    /// Send queues that are drained.
    #[source(c.0.clone())]
    pub event: Stream<Event>,
    /// Local invalidates whose turn has come.
    #[source(c.0.clone())]
    pub local: Stream<Invalidation>,
    /// `data` has room for the turns under way.
    #[output]
    pub room: Sig,
    /// Bad WQEs by reason.
    #[output]
    pub count: Count,
    /// Pulse: a packet was sent again.
    #[output]
    pub retransmit: Sig,
    /// Packets and responses cut, for trace.
    #[output(c.0.clone())]
    pub trace: Mark,
    /// Pulse: a turn found `data` full.
    #[output]
    pub stall: Sig,
    /// Nothing inside.
    #[output]
    pub idle: Sig,
}

impl Module for Segment {
    type Io = SegmentIo;
    fn name(&self) -> String {
        format!("segment_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Turns into packets: PSNs, opcodes, window, rewinds, responses.".into()
    }
    fn body(&self, io: &SegmentIo) {
        let c = &self.0;
        let phase = reg_init("phase", 2, 0);
        let initialising = reg_init("initialising", 1, 0);
        let (work, init) = (&io.work.data, &io.initialise.data);

        // outputs behind FIFOs, whose `ready` is a register
        let data = Stream::<flow::Segment>::wires(c, "packet");
        let fifo = instance("data_fifo", &Fifo { depth: AHEAD, width: flow::Segment::total_width(c) });
        // a turn takes longer than the way into the FIFO: what it sees as room is there when its packet comes
        fifo.input.valid.set(later_init(c, "packet_enters", data.valid));
        fifo.input.data.set(later_all(c, c, "entering_packet", &data.data).to_bits());
        data.ready.set(fifo.input.ready);
        if c.unhurried {
            hdl::assert_always("a_packet_has_room", fifo.input.ready | !fifo.input.valid);
        }
        io.data.valid.set(fifo.output.valid);
        io.data.data.assign(&flow::Segment::from_bits(c, fifo.output.data));
        fifo.output.ready.set(io.data.ready);
        io.room.set(fifo.level.lt(2));
        let depth = (AHEAD * c.inline_words()).next_power_of_two();
        let words = Stream::<Sig>::wires(&c.data_bits().into(), "copied_word");
        io.words.take(&buffer("inline_fifo", &c.data_bits().into(), depth, &words));
        let control = Stream::<Owed>::wires(c, "response");
        let out = buffer("control_fifo", c, 2, &control);
        io.control.valid.set(out.valid);
        out.ready.set(io.control.ready);
        io.control.data.assign(&response(&out.data));
        let kick = Stream::<Wake>::wires(c, "to_kick");
        io.kick.take(&buffer("kick_fifo", c, 2, &kick));
        let fault = Stream::<Fault>::wires(c, "to_fault");
        io.fault.take(&buffer("fault_fifo", c, 2, &fault));
        let event = Stream::<Event>::wires(c, "to_event");
        io.event.take(&buffer("event_fifo", c, 2, &event));

        // clock 0
        let start = phase.eq(0) & (io.initialise.valid | io.work.valid);
        io.read_qp.set(mux(io.initialise.valid & phase.eq(0), init.qp, work.qp));
        when(start, || {
            phase.set(1);
            initialising.set(io.initialise.valid);
        });

        // clock 1
        let tx = Tx::regs(&(), "tx");
        let requester = Requester::regs(&(), "requester");
        let placed = Placed::regs(&(), "placed");
        let rights_line = reg("rights_line", 256);
        let queues_line = reg("queues_line", 256);
        when(phase.eq(1), || {
            phase.set(2);
            tx.assign(&Tx::from_bits(&(), io.tx_word));
            requester.assign(&Requester::from_bits(&(), io.requester_word));
            placed.assign(&Placed::from_bits(&(), io.placed_word));
            rights_line.set(io.rights_word);
            queues_line.set(io.queues_word);
        });
        let executed = reg("executed", RING);
        when(phase.eq(1), || executed.set(Executed::from_bits(&(), io.executed_word).count));

        // clock 2
        let rights = QpRightsBits::unpack(rights_line);
        let queues = QpQueuesBits::unpack(queues_line);
        let wqe = SendWqeBits::unpack(work.wqe.bits(0, 256));
        let state_is = |s: QpState| rights.state.eq(s as u64);
        let pause = Pause::new(c, "words_stand");
        pause.behind(|| phase.eq(1));
        let summed = || pause.over(phase.eq(2));
        let computed = |name: &str, value: Sig| {
            let r = reg(name, value.width());
            when(summed(), || r.set(value));
            r
        };
        when(summed(), || phase.set(3));

        let fresh_now = tx.cursor_wqe.eq(tx.assigned);
        let jump = computed(
            "jump",
            tx.epoch.ne(requester.epoch)
                | psn_before(tx.cursor_psn, requester.una_psn)
                | (tx.cursor_wqe - requester.got_wqe).msb(),
        );
        let answering = any_of(&[QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe].map(state_is));
        let answering = rights.valid & answering;
        let owes = computed("owes", answering & placed.tail_seq.ne(tx.paid));

        // the READ under the response cursor: its address in clock 1, the word in clock 2
        let (cursor_now, queues_now) = (Tx::from_bits(&(), io.tx_word), QpQueuesBits::unpack(io.queues_word));
        let (base, log_size) = (queues_now.response_base, queues_now.response_log_size);
        let owed_at = owed_address(c, base, log_size, cursor_now.res_cursor).named("owed_at");
        io.owed_address.set(owed_at);
        io.outcome_address.set(owed_at);
        let outcome = Outcome::regs(&(), "outcome");
        when(phase.eq(2), || outcome.assign(&Outcome::from_bits(&(), io.outcome_word)));
        let read_now = OwedRead::from_bits(&(), io.owed_word);
        let read = OwedRead::regs(&(), "read");
        when(phase.eq(2), || read.assign(&read_now));
        let res_psn_now = mux(tx.res_inside, tx.res_psn, read_now.first_psn).named("res_psn_now");
        let res_psn = computed("res_psn", res_psn_now);
        let rewinds = computed("rewinds", answering & placed.rewind_seq.ne(tx.res_rewind));
        let ahead = placed.rewind_index - tx.res_cursor;
        let goes_back = computed(
            "goes_back",
            ahead.msb() | (ahead.none() & tx.res_inside & psn_before(placed.rewind_psn, tx.res_psn)),
        );
        let unanswered = answering & placed.res_head.ne(tx.res_cursor) & !requester.halt;
        let unanswered = computed("unanswered", unanswered);
        let not_yet = computed("not_yet", read_now.is_atomic & !(read_now.number - executed).msb());
        let overwritten = computed("overwritten", read_now.index.ne(tx.res_cursor));
        let shift = (rights.path_mtu + 7).named("log_path_mtu");
        // (what overwrites it meanwhile has another index)
        let res_ahead = later(c, "res_ahead", res_psn_now - read_now.first_psn);
        let res_offset = computed("res_offset", res_ahead.extend(32) << shift);
        let res_last = computed("res_last", res_psn_now.eq(read_now.last_psn));
        // packets given to gather less those that have left it; far fewer than 128 are on the way
        let (given, gone) = (reg_init("given", 8, 0), reg_init("gone_count", 8, 0));
        when(io.gone, || gone.set(gone + 1));
        let on_way = computed("on_the_way", tx.res_marked & (gone - tx.res_mark).msb());

        let fresh = computed("fresh", fresh_now);
        let psn_now = mux(fresh_now, tx.next_psn, tx.cursor_psn).named("psn_now");
        let first_now = mux(fresh_now, tx.next_psn, tx.cursor_first).named("first_now");
        let position_now = (psn_now - first_now).named("position_now");
        let psn = computed("psn", psn_now);
        let first = computed("first", first_now);
        let position = computed("position", position_now);
        let longest = ((wqe.length - 1) >> shift).bits(0, PSN);
        // packets less one
        let raw = rights.transport.eq(Transport::Raw as u64).named("is_raw");
        let packets_now = mux(wqe.length.any() & !raw, longest, lit(PSN, 0));
        let packets = computed("packets_less_one", packets_now);
        let offset = computed("offset", position_now.extend(32) << shift);
        let mtu = computed("path_mtu", lit(13, 1) << shift);
        // a READ: the last packet that the request asks for; its first one's distance from the oldest unanswered PSN
        let is_local = wqe.opcode.eq(WrOpcode::LocalInv as u64).named("is_local");
        let with_inv = wqe.opcode.eq(WrOpcode::SendWithInv as u64).named("with_inv");
        let is_read = wqe.opcode.bit(2) & !is_local;
        let is_atomic = (is_read & wqe.opcode.bits(0, 2).any()).named("is_atomic");
        let adds = wqe.opcode.eq(WrOpcode::AtomicFetchAndAdd as u64);
        let last_alone = packets_now.eq(WINDOW) & position_now.ne(packets_now);
        let asks_to = computed("asks_to", packets_now - last_alone.extend(PSN));
        let first_ahead = computed("first_ahead", first_now - requester.una_psn);

        let faulted = requester.fault & !(tx.cursor_wqe - requester.fault_wqe).msb();
        // halted, only WQEs before the last assigned (the bad one) go on
        let halted = tx.halt & (tx.assigned - tx.cursor_wqe).lt(2);
        let may_send = computed(
            "may_send",
            rights.valid
                & (rights.transport.eq(Transport::Rc as u64) | raw)
                & (state_is(QpState::Rts) | (state_is(QpState::Sqd) & !fresh_now))
                & ((rights.path_mtu.ge(1) & rights.path_mtu.le(5)) | raw)
                & !requester.halt
                & !placed.halt
                & !requester.waiting
                & !faulted
                & !halted
                & tx.cursor_wqe.ne(work.producer)
                & work.present,
        );
        let in_use = tx.assigned - requester.una_wqe;
        let settled = computed("settled", in_use.none());
        let asked_drain = rights.valid & rights.drain.ne(tx.drained);
        let drained = computed("drained", asked_drain & state_is(QpState::Sqd) & in_use.none());
        // asked for and left before it was given
        let undone = computed("undone", asked_drain & state_is(QpState::Rts));
        let record_free = computed("record_free", in_use.lt(lit(INDEX, 1) << queues.record_log_size));
        let limit = mux(rights.max_inflight.any(), rights.max_inflight.extend(PSN), lit(PSN, WINDOW));
        let in_flight = (psn_now - requester.una_psn).named("in_flight");
        let open = computed("open", in_flight.lt(limit));
        let closing = computed("closing", in_flight.ge(limit - 1));
        let answered = computed("answered", in_flight.none());
        let reads = tx.rd_next - requester.rd_retired;
        let may_read = computed("may_read", reads.lt(rights.max_rd_atomic.extend(READS)));
        let fenced = computed("fenced", wqe.fence & fresh_now & reads.any());
        let final_wqe = computed("final_wqe", (tx.cursor_wqe + 1).eq(work.producer));
        // SGEs that the stride holds
        let stride = queues.sq_log_stride;
        let wide = mux(stride.eq(7), lit(8, 6), mux(stride.eq(8), lit(8, 14), lit(8, MAX_SGE.into())));
        let fit = mux(stride.le(6), lit(8, 2), wide);
        let no_atomic = is_atomic & (wqe.num_sge.ne(1) | wqe.length.ne(8));
        let most_inline =
            mux(stride.le(6), lit(32, 32), mux(stride.eq(7), lit(32, 96), lit(32, MAX_INLINE.into())));
        let no_room = mux(wqe.inline, wqe.length.gt(most_inline), wqe.num_sge.gt(fit));
        let frame_most = io.port_mtu.extend(32) + ETHERNET_BYTES as u64;
        let no_frame = wqe.length.lt(ETHERNET_BYTES as u64)
            | wqe.length.gt(frame_most)
            | wqe.length.gt(RAW_FRAME_MAX as u64);
        let too_long = no_room | wqe.length.gt(1u32 << 31) | no_atomic | (raw & no_frame);
        let code = |r: Reject| lit(6, r as u64);
        let wrong_index = wqe.index.ne(tx.cursor_wqe);
        // READs of a QP that may have none outstanding would wait for ever
        let unknown_opcode = wqe.opcode.gt(WrOpcode::AtomicFetchAndAdd as u64) & !is_local & !with_inv;
        let wrong_opcode = any_of(&[
            unknown_opcode,
            is_read & (rights.max_rd_atomic.none() | wqe.inline),
            is_local & wqe.inline,
            raw & wqe.opcode.ne(WrOpcode::Send as u64),
        ]);
        let bad = computed("bad", work.failed | wrong_index | wrong_opcode | too_long);
        let reason = computed(
            "reason",
            mux(
                work.failed,
                code(Reject::SqFetchFailed),
                mux(
                    wrong_index,
                    code(Reject::WqeIndex),
                    mux(wrong_opcode, code(Reject::WqeOpcode), code(Reject::WqeLength)),
                ),
            ),
        );

        // clock 3
        let deciding = phase.eq(3);
        let is_first = position.none();
        // of a READ, one request stands for many packets
        let end = mux(is_read, asks_to, position).named("request_end");
        let is_last = end.eq(packets);
        let read_fits =
            (asks_to + first_ahead).lt(WINDOW) & (position.none() | answered) & (!fresh | may_read);
        let inside = position.le(packets);
        let is_fence = later(c, "is_fence", !initialising & work.fence);
        let turn = later(c, "is_turn", !initialising & !work.fence);
        let does_jump = turn & jump;
        // what is owed
        let does_rewind = turn & rewinds;
        let does_skip = turn & !rewinds & unanswered & overwritten;
        let could_respond = turn & !rewinds & unanswered & !overwritten & !not_yet;
        let broken = (read.is_atomic & outcome.failed).named("broken_atomic");
        let tail = turn & !rewinds & !unanswered & owes;
        let does_answer = tail & !on_way;
        let could_reply = could_respond | (tail & on_way);
        let sendable = turn & !jump & may_send;
        let does_refuse = sendable & bad & fresh & record_free;
        let does_fault = sendable & bad & !fresh;
        let tells = turn & drained & event.ready;
        let could_invalidate = sendable & !bad & fresh & is_local & settled;
        let does_invalidate = could_invalidate & io.local.ready;
        let fits = mux(is_read, read_fits, open);
        let could_send = sendable & !bad & !is_local & fits & inside & (!fresh | record_free) & !fenced;
        let replies_first = (could_reply & !(could_send & tx.res_turn)).named("replies_first");
        // the packet has gone, its last words have not
        let ahead_of_words = reg_init("ahead_of_words", 1, 0);
        let does_send = could_send & !replies_first & (data.ready | ahead_of_words);
        let does_reply = replies_first & data.ready;
        let does_respond = does_reply & could_respond;
        let absorbs = (does_respond & psn_before(placed.tail_psn, res_psn)).named("absorbs");
        let pays = does_answer | (does_reply & !could_respond) | absorbs;
        // inline data and further SGEs: the first word is asked for before the decision. Nothing but this stage fills `data`,
        // so what is decided stays decided until the last word
        let copied = reg_init("copied_words", index_width(c.inline_words()), 0);
        let further = wqe.num_sge.gt(u64::from(c.sges)) & !wqe.inline;
        let further = mux(further, wqe.num_sge - u64::from(c.sges), lit(8, 0)).bits(0, 5);
        // those of a READ go to the read list, once
        let brings = wqe.inline | (further.any() & (!is_read | fresh));
        let copies = (deciding & does_send & brings & wqe.length.any()).named("copies");
        let size = mux(wqe.inline, wqe.length.bits(0, 8), cat(&[further.bits(0, 4), lit(4, 0)]));
        let behind = computed("last_word_byte", size + u64::from(32 % c.data_bytes) - 1);
        let at_last = copied.eq(behind.bits(c.lane_bits(), 8 - c.lane_bits()).resize(copied.width()));
        let hold = (copies & !at_last)
            | (is_fence & !data.ready)
            | (does_answer & !control.ready)
            | (does_refuse & !kick.ready)
            | ((does_fault | (does_respond & broken)) & !fault.ready);
        let acts = (deciding & !hold).named("acts");
        // the next packet of the same message, as long as their KiB is not complete
        let log_least = contract::PathMtu::Mtu256.bytes().ilog2();
        let within = |offset: Sig| {
            let part = |s: Sig| s.bits(log_least, LOG_TURN - log_least);
            (part(offset) + part(mtu)).any()
        };
        let sends_on = does_send & !is_read & !is_last & within(offset);
        // what else the same clock does to the send queue: the WQE at hand is no longer that of the cursor
        let leaves = any_of(&[does_jump, does_invalidate, does_refuse, does_fault]);
        let responds_on = does_respond & !res_last & within(res_offset) & !leaves;
        let goes_on = (sends_on | responds_on).named("goes_on");
        io.done.valid.set(acts & turn & !goes_on);
        let fires = (acts & (!turn | goes_on | io.done.ready)).named("fires");
        when(fires, || phase.set(0));
        let more = copies & !at_last;
        let copies_word = (more | (copies & fires)).named("copies_word");
        words.valid.set(copies_word & !is_read);
        words.data.set(io.inline_word);
        hdl::assert_always("inline_data_has_room", words.ready | !words.valid);
        when(more, || {
            copied.set(copied + 1);
            ahead_of_words.set(1);
        })
        .elif(fires, || {
            copied.set(0);
            ahead_of_words.set(0);
        });
        let wanted = mux(more, copied + 1, copied).resize(io.inline_index.width());
        let opening = |byte: u32| lit(wanted.width(), u64::from(byte / c.data_bytes));
        io.inline_index.set(wanted + mux(wqe.inline, opening(32), opening(32 + 16 * c.sges)));
        io.initialise.ready.set(fires & initialising);
        io.work.ready.set(fires & !initialising & !goes_on);

        let ends_queue = is_last & final_wqe;
        io.done.data.qp.set(work.qp);
        let read_over = does_respond & res_last;
        let more_reads = (tx.res_cursor + 1).ne(placed.res_head);
        let owes_more =
            (could_reply & !does_reply) | (does_respond & (!res_last | more_reads | (owes & !absorbs)));
        io.done.data.owes.set(owes_more);
        io.done.data.again.set(any_of(&[
            does_jump,
            // a READ may follow the packet that closes the window
            does_send & !ends_queue,
            could_send & !does_send,
            could_invalidate & !does_invalidate,
            drained & !tells,
            does_rewind | does_skip,
            owes_more,
        ]));

        // what leaves
        let is_write = wqe.opcode.bit(1).none() & !with_inv;
        let with_imm = wqe.opcode.bit(0) & !with_inv;
        let again = psn_before(psn, tx.sent_psn);
        let ask = any_of(&[is_last, is_read, closing, answered & again, tx.unasked.ge(ACK_EVERY - 1)]);
        let place = mux(
            is_first & is_last,
            cat(&[lit(2, 2), with_imm]),
            mux(is_last, cat(&[lit(2, 1), with_imm]), mux(is_first, lit(3, 0), lit(3, 1))),
        );
        let base = mux(is_write, lit(8, Opcode::RcWriteFirst as u64), lit(8, Opcode::RcSendFirst as u64));
        let ends_a_key =
            mux(is_first, lit(8, Opcode::RcSendOnlyInv as u64), lit(8, Opcode::RcSendLastInv as u64));
        let of_message = mux(with_inv & is_last, ends_a_key, base + place.extend(8));
        let sges: Vec<Sig> = (0..c.sges)
            .rev()
            .map(|i| work.wqe.bits(256 + i * 128, 128) & wqe.num_sge.gt(i).repeat(128))
            .collect();
        data.valid.set(!ahead_of_words & (more | (fires & (is_fence | does_send | does_reply))));
        let next_psn = first + end + 1;
        let asked = mux(is_last, wqe.length, (end + 1).extend(32) << shift) - offset;
        let atomic = AtomicOperandsBits::unpack(work.wqe.bits(384, 128));
        let choose = |of: Sig, adds_it: u64, swaps: u64, else_: Sig| {
            mux(of, mux(adds, lit(8, adds_it), lit(8, swaps)), else_)
        };
        let request = flow::Segment {
            packet: PacketFields {
                qp: work.qp,
                fence: work.fence,
                opcode: choose(
                    is_atomic,
                    Opcode::RcFetchAdd as u64,
                    Opcode::RcCompareSwap as u64,
                    mux(is_read, lit(8, Opcode::RcReadRequest as u64), of_message),
                ),
                psn,
                ack_req: ask,
                solicited: wqe.solicited & is_last & wqe.opcode.any() & !is_read,
                syndrome: lit(8, 0),
                msn: lit(PSN, 0),
                outer: Outer { tagged: rights.tagged, ipv6: rights.ipv6 },
                va: wqe.remote_addr + offset.extend(64),
                rkey: wqe.rkey,
                dma_length: mux(is_read, asked, wqe.length),
                imm: wqe.imm,
                value: atomic.swap_or_add,
                compare: atomic.compare,
                length: mux(is_read, lit(13, 0), mux(is_last, (wqe.length - offset).bits(0, 13), mtu)),
                raw: raw & !work.fence,
            },
            wqe_index: tx.cursor_wqe,
            offset,
            sges: cat(&sges),
            responds: low(),
            requests: !work.fence,
            epoch: tx.epoch,
            again: low(),
            inline: wqe.inline,
            more: further & !is_read.repeat(5),
        };
        let owed = Owed {
            qp: work.qp,
            psn: placed.tail_psn,
            syndrome: placed.tail_syndrome,
            msn: placed.tail_msn,
            outer: Outer { tagged: rights.tagged, ipv6: rights.ipv6 },
        };
        // First, Middle, Last, Only
        let begins = !tx.res_inside | tx.res_restart;
        let kind = mux(begins, mux(res_last, lit(8, 3), lit(8, 0)), mux(res_last, lit(8, 2), lit(8, 1)));
        let res_length = mux(res_last, (read.length - res_offset).bits(0, 13), mtu);
        let source =
            SgeBits { addr: read.va + res_offset.extend(64), length: res_length.extend(32), lkey: read.rkey };
        let of_atomic =
            mux(broken, lit(8, Opcode::RcAcknowledge as u64), lit(8, Opcode::RcAtomicAcknowledge as u64));
        let tail = response(&owed);
        let answer = PacketFields {
            opcode: mux(read.is_atomic, of_atomic, lit(8, Opcode::RcReadResponseFirst as u64) + kind),
            psn: res_psn,
            syndrome: mux(broken, lit(8, u64::from(Syndrome::NAK_REMOTE_OPERATION)), lit(8, ACK)),
            msn: read.msn,
            value: outcome.original,
            length: mux(read.is_atomic, lit(13, 0), res_length),
            ..tail
        };
        let reply = flow::Segment {
            packet: answer.or_else(c, could_respond, &tail),
            wqe_index: lit(INDEX, 0),
            offset: lit(32, 0),
            sges: source.pack().extend(c.sges * 128),
            responds: could_respond & !read.is_atomic,
            requests: low(),
            epoch: tx.epoch,
            again: tx.res_cursor.ne(tx.res_sent),
            inline: low(),
            more: lit(5, 0),
        };
        data.data.assign(&reply.or_else(c, replies_first, &request));
        when(data.moves(), || given.set(given + 1));
        control.valid.set(fires & does_answer);
        control.data.assign(&owed);
        kick.valid.set(fires & does_refuse);
        kick.data.qp.set(work.qp);
        let does_break = does_respond & broken;
        fault.valid.set(fires & (does_fault | does_break));
        fault.data.qp.set(work.qp);
        fault.data.wqe_index.set(tx.cursor_wqe);
        fault.data.status.set(mux(
            does_break,
            lit(8, WcStatus::RemOpErr as u64),
            lit(8, WcStatus::LocQpOpErr as u64),
        ));
        fault.data.responds.set(does_break);
        fault.data.invalidates.set(low());
        fault.data.cause.set(flow::cause(reason));
        event.valid.set(fires & tells);
        event.data.assign(&Event {
            eq: lit(c.eq_bits(), 0),
            kind: lit(8, EventKind::Async as u64),
            event: lit(8, AsyncEvent::SqDrained as u64),
            object: work.qp.extend(24),
        });
        io.local.valid.set(fires & does_invalidate);
        io.local.data.assign(&Invalidation {
            qp: work.qp,
            wqe_index: tx.cursor_wqe,
            key: wqe.imm.swap_bytes(),
        });
        io.count.valid.set(fires & (does_refuse | does_fault));
        io.count.index.set(reason);
        io.stall.set(fires & (could_send | could_reply) & !data.ready & !ahead_of_words);
        io.retransmit.set(fires & does_send & again);
        let of = |e: TraceEvent| lit(8, e.code().into());
        let cut = &data.data.packet;
        io.trace.assign(&Mark {
            event: mux(replies_first, of(TraceEvent::Respond), of(TraceEvent::Segment)),
            index: mux(replies_first, lit(INDEX, 0), tx.cursor_wqe),
            psn: cut.psn,
            opcode: cut.opcode,
            detail: mux(replies_first, cut.syndrome.extend(16), cat(&[again, is_last, low(), cut.length])),
            ..Mark::of(TraceEvent::Segment, data.moves() & !is_fence, work.qp)
        });

        // the record of a new WQE
        let start_psn = tx.next_psn;
        let (record_at, record_mask) = (
            queues.record_base.resize(c.record_bits().max(INDEX)),
            (lit(INDEX, 1) << queues.record_log_size) - 1,
        );
        let slot = record_at + (tx.cursor_wqe & record_mask).resize(record_at.width());
        io.record_write.enable.set(fires & fresh & any_of(&[does_send, does_refuse, does_invalidate]));
        io.record_write.address.set(slot.bits(0, c.record_bits()));
        let of_work = choose(
            is_atomic,
            WcOpcode::FetchAdd as u64,
            WcOpcode::CompSwap as u64,
            mux(
                is_read,
                lit(8, WcOpcode::RdmaRead as u64),
                mux(is_write, lit(8, WcOpcode::RdmaWrite as u64), lit(8, WcOpcode::Send as u64)),
            ),
        );
        let record = Record {
            last_psn: mux(does_refuse | is_local, start_psn - 1, start_psn + packets),
            signaled: wqe.signaled,
            opcode: mux(is_local, WcOpcode::LocalInv as u64, of_work),
            status: mux(does_refuse, lit(8, WcStatus::LocQpOpErr as u64), lit(8, 0)),
            length: mux(does_refuse, flow::cause(reason).extend(32), mux(is_local, lit(32, 0), wqe.length)),
            is_read: is_read & does_send,
        };
        io.record_write.data.set(record.to_bits());

        // its SGEs, if its data will come
        let new_read = (fires & fresh & does_send & is_read).named("new_read");
        let read_mask = (lit(READS, 1) << queues.read_log_size) - 1;
        let entry = queues.read_base + (tx.rd_next & read_mask).extend(16);
        io.read_list.assign(&ReadListWrite {
            opens: new_read,
            adds: copies_word & is_read,
            entry: entry.bits(0, c.read_bits()),
            sges: cat(&sges),
            more: further.bits(0, 4),
            index: copied,
            word: io.inline_word,
        });

        // the new word
        let next = Tx::wires(&(), "next_tx");
        next.assign(&tx);
        when(initialising & (init.send | init.reset), || {
            next.assign(&Tx {
                next_psn: init.sq_psn,
                sent_psn: init.sq_psn,
                assigned: lit(INDEX, 0),
                cursor_wqe: lit(INDEX, 0),
                cursor_psn: init.sq_psn,
                cursor_first: init.sq_psn,
                epoch: lit(4, 0),
                unasked: lit(8, 0),
                rd_next: lit(READS, 0),
                halt: low(),
                drained: lit(4, 0),
                ..tx
            });
        })
        .elif(does_jump, || {
            next.epoch.set(requester.epoch);
            next.cursor_wqe.set(requester.got_wqe);
            next.cursor_psn.set(requester.una_psn);
            next.cursor_first.set(requester.got_first);
        })
        .elif(does_refuse, || {
            next.assigned.set(tx.assigned + 1);
            next.cursor_psn.set(start_psn);
            next.cursor_first.set(start_psn);
            next.halt.set(1);
        })
        .elif(does_invalidate, || {
            next.assigned.set(tx.assigned + 1);
            next.cursor_psn.set(start_psn);
            next.cursor_first.set(start_psn);
        })
        .elif(does_send, || {
            when(fresh, || {
                next.next_psn.set(start_psn + packets + 1);
                next.assigned.set(tx.assigned + 1);
            });
            when(!again, || next.sent_psn.set(next_psn));
            next.unasked.set(mux(ask, lit(8, 0), tx.unasked + 1));
            next.cursor_psn.set(next_psn);
            next.cursor_first.set(mux(is_last, next_psn, first));
            when(is_last, || next.cursor_wqe.set(tx.cursor_wqe + 1));
            when(new_read, || next.rd_next.set(tx.rd_next + 1));
        });
        // what is owed has its own fields
        when(pays, || next.paid.set(placed.tail_seq));
        let noted = turn & (tells | undone);
        when(noted, || next.drained.set(rights.drain));
        when(does_rewind, || {
            next.res_rewind.set(placed.rewind_seq);
            when(goes_back, || {
                next.res_cursor.set(placed.rewind_index);
                next.res_inside.set(1);
                next.res_restart.set(1);
                next.res_psn.set(placed.rewind_psn);
            });
        });
        when(does_skip, || {
            next.res_cursor.set(tx.res_sent);
            next.res_inside.set(0);
        });
        when(does_respond, || {
            next.res_inside.set(!res_last);
            next.res_restart.set(0);
            next.res_psn.set(res_psn + 1);
        });
        when(read_over, || {
            next.res_cursor.set(tx.res_cursor + 1);
            when(tx.res_cursor.eq(tx.res_sent), || next.res_sent.set(tx.res_sent + 1));
        });
        when(does_answer, || next.res_marked.set(0));
        when(does_reply, || {
            next.res_marked.set(1);
            next.res_mark.set(given + 1);
        });
        when(does_send | does_reply, || next.res_turn.set(does_reply));
        when(initialising & (init.receive | init.reset), || {
            let counts = [next.paid, next.res_cursor, next.res_sent, next.res_psn, next.res_rewind];
            let flags = [next.res_inside, next.res_restart, next.res_marked, next.res_turn];
            for field in counts.into_iter().chain(flags).chain([next.res_mark]) {
                field.set(0);
            }
        });
        let changes = any_of(&[
            initialising,
            does_jump,
            pays,
            noted,
            does_refuse,
            does_invalidate,
            does_send,
            does_reply,
            does_rewind,
            does_skip,
        ]);
        io.tx_write.enable.set(fires & changes);
        io.tx_write.address.set(mux(initialising, init.qp, work.qp));
        io.tx_write.data.set(next.to_bits());

        let packets = if c.unhurried { io.data.valid | fifo.input.valid } else { io.data.valid };
        io.idle.set(
            phase.eq(0)
                & !io.work.valid
                & !io.initialise.valid
                & !any_of(&[packets, io.control.valid, io.kick.valid, io.fault.valid, io.event.valid]),
        );
    }
}
