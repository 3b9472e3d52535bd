//! Writes the payload of accepted requests to host memory, then owes the peer its acknowledgement and the user his CQE;
//! writes the payload of READ responses, then tells acknowledge.
//!
//! ```text
//! verdicts > [4] > rest, words > key, emit per piece > payload write ----> [16] > finish: placed, CQE, event, wake or `ack`
//!               \> miss queue: SENDs whose receive WQE is not here yet      ^ written, in order
//! data > [4] --> as a SEND, but through the SGEs of the read list; never parked > finish: placement
//! local > [QPs] > rest, words > judge, invalidate --------------------------------> finish: placement
//! ```
//! In: verdicts of check. Out: one `payload` per contiguous piece (a WRITE has one, a SEND one per SGE that it touches);
//! after the write engine has told that a piece was `written`, in order: the tail (ACK or NAK) in `placed`, the receive
//! CQE, the slot, a wake for schedule. Requests and READ responses take turns.
//!
//! A WRITE takes 3 clocks, a SEND of one piece 4 (measured), each further piece 2, each SGE that is skipped 1; a packet
//! without payload 3, an atomic 4; the end of a key 3 more. finish takes 3 clocks per packet and runs beside; of a packet that
//! waits for its write 2, counted from `written`. Unhurried, a packet takes a clock more, and what finishes three, out of registers: the
//! packet, its words, what follows from them. Waits only for the write engine, for complete and
//! notify, and for a free miss entry (a packet that must go behind a parked one of its QP).
//!
//! A list comes in groups of four SGEs, the first with the packet. If that holds less than the packet needs, the further
//! ones are counted first, 1 clock each and 1 for all, and loaded as the walk reaches them, 2 clocks each.
//!
//! Receive WQEs are read ahead, but for their further SGEs ([`crate::rx::receive_wqes`]). A SEND whose WQE, or what it
//! needs of it, is still on its way is parked, and all of its QP behind it: in order within a QP, free across QPs. `room`
//! tells check that there is an entry for one more SEND whatever becomes of those before it; check drops SENDs without
//! room, so nothing is ever lost here.
//!
//! Faults found here: a message longer than its WQE (NAK 0x61, LOC_LEN_ERR; before any byte of that packet is written),
//! an SGE whose key does not allow it (NAK 0x63, LOC_PROT_ERR), a WQE that could not be read (NAK 0x63, LOC_QP_OP_ERR). A
//! SEND that check has NAKed in its midst completes with LOC_QP_OP_ERR. Of a raw frame any of these ends the receive WQE
//! alone, with that status and without a NAK. A fatal NAK raises an asynchronous event
//! (QP_REQ_ERR for 0x61, QP_ACCESS_ERR for 0x62, QP_FATAL for 0x63; the first packet of a QP in RTR COMM_EST) and kills the QP here at once: packets behind are
//! discarded. An unpaid NAK is not overwritten by a re-acknowledgement, nor an unpaid ACK by one of an earlier PSN.
//!
//! An ACK or a NAK that is not fatal goes to packetise at once (`ack`; an ACK in the clock of `written`) if nothing that its QP is owed could be passed by it:
//! the last tail is paid and has left segment, and so have all READ responses. It leaves no debt. Else, or if packetise is
//! busy, it becomes the tail.
//!
//! A READ passes through without payload: when its turn comes in `finish`, everything before it is written, it counts in
//! the MSN, and `placed.res_head` lets segment answer it. An atomic likewise, but it also goes to atomic (`exchange`), for
//! whose result segment waits; a WRITE or SEND of any QP that has an atomic under way waits until all atomics are done
//! (`exchanged`), and with it what is behind it here: one read of host memory. A duplicate READ asks segment to go back; of two that segment
//! has not seen yet the older remains, which reaches both.
//!
//! A key ends in the order of place: a SEND with invalidate whose key is the QP's to end has its payload put out, then
//! `invalidate` asks command for it, and only then it is over here. What comes behind, of any QP, finds the key gone:
//! the key of a WRITE or atomic is looked at again when its turn comes (NAK 0x62, LOC_ACCESS_ERR of a WQE in use), those
//! of SGEs are judged here anyhow. What came before is written when `finish` reports, since finish is in order; atomics
//! are waited for as above. A key that may not be ended: NAK 0x62, LOC_ACCESS_ERR, nothing of that packet written. So the
//! CQE tells that nobody writes by that key any more; a READ response that gather has begun is not waited for.
//! A local invalidate goes the same way, from segment, in turn with the others; a key that may not be ended is
//! LOC_QP_OP_ERR. A QP's next life waits until its last one's is through.
//!
//! Of a READ of this side: SGEs that are too short (LOC_LEN_ERR) or whose key does not allow it (LOC_PROT_ERR) make a `placement` with
//! that status instead of one with status 0 when the last byte is written; in order per QP, nothing is NAKed.
//!
//! A fence comes on both inputs; each stops at its own until the other's is there, then it is one. It comes out
//! (`fence_done`) when all that came before it is written, reported and, of READs, taken by acknowledge, nothing is parked
//! from before it, and no receive WQE read is under way. Packets of a QP whose context no longer receives are discarded
//! meanwhile.
//!
//! Requirements: ATOM CARD CMD ERR MEM QPS QUE RAW READ REQ RESP

use crate::config::Config;
use crate::flow::{
    self, ACTION, Action, CAUSE, Completion, Count, Event, Exchange, Fault, GROUP, GROUP_SGES, Invalidation,
    Mark, Outer, Owed, PayloadWrite, ReadData, ReadDone, ReadRequest, Scatter, Verdict, Wake,
};
use crate::mr;
use crate::prim::fifo::{Fifo, buffer};
use crate::prim::flags::Flags;
use crate::prim::later::{later, later_all};
use crate::prim::pick::lowest;
use crate::qp::{INDEX, Initialise, PSN, Placed, RING, StateShape, StateWrite, Tx, owed_address, psn_before};
use crate::rx::receive_wqes::{ReceiveWqes, WqeName};
use contract::context::{MrEntryBits, QpQueuesBits, QpRightsBits};
use contract::ring::SgeBits;
use contract::verbs::access;
use contract::{AsyncEvent, EventKind, QpState, Reject, StageCounter, TraceEvent, WcOpcode, WcStatus};
use hdl::{
    Bundle, HwEnum, Memory, Module, Ports, Sig, Stream, any_of, cat, delay_init, index_width, lit, low, mux,
    reg, reg_init, select, when,
};

/// Bits of a round of atomics.
const ROUND: u32 = 4;
/// Verdicts, and READ responses, that wait in front of place.
const VERDICTS: u32 = 4;
/// Pieces and packets that wait for their writes.
const FINISHES: u32 = 16;
/// The ACK syndrome: credits are not used.
const ACK: u64 = 0x1f;

/// What this stage may count.
pub const REJECTS: &[Reject] = &[
    Reject::QpHalted,
    Reject::WrongQpState,
    Reject::LkeyBad,
    Reject::ReceiveTooShort,
    Reject::WqeFetchFailed,
    Reject::SglTooShort,
    Reject::SglKey,
    Reject::RkeyUnknown,
    Reject::RkeyTag,
    Reject::RkeyPd,
    Reject::RkeyRights,
];

/// The stage, for one card configuration.
#[derive(Clone, Debug)]
pub struct Place {
    /// Sizes.
    pub config: Config,
}

/// Ports of [`Place`].
#[derive(Ports)]
#[ports(Place)]
pub struct PlaceIo {
    /// From check, directly: the FIFO is inside.
    #[sink(c.config.clone())]
    pub verdict: Stream<Verdict>,
    /// READ responses and the fence, from acknowledge.
    #[sink(c.config.clone())]
    pub data: Stream<Scatter>,
    /// Local invalidates: one per QP at most, so never refused.
    #[sink(c.config.clone())]
    pub local: Stream<Invalidation>,
    /// A memory region whose key ends; taken in the clock of the write.
    #[source(c.config.mr_bits())]
    pub invalidate: Stream<Sig>,
    /// Atomics to execute: everything before them is written.
    #[source(c.config.clone())]
    pub exchange: Stream<Exchange>,
    /// Pulse: an atomic is executed, its write on its way.
    #[input]
    pub exchanged: Sig,
    /// A READ's data is in memory (status 0), or cannot be; in order per QP.
    #[source(c.config.clone())]
    pub placement: Stream<Fault>,
    /// Entry of the read list, and group (lowest), that is wanted in the next clock.
    #[output(c.config.read_bits() + GROUP)]
    pub list_address: Sig,
    /// It, the first SGE lowest.
    #[input(GROUP_SGES * 128)]
    pub list_word: Sig,
    /// Groups of that entry behind the first.
    #[input(GROUP)]
    pub list_groups: Sig,
    /// One more SEND can be taken.
    #[output]
    pub room: Sig,
    /// Receives were posted to a QP. Never refused.
    #[sink(c.config.clone())]
    pub doorbell: Stream<Wake>,
    /// Starts a QP's `placed` and forgets its WQEs.
    #[sink(c.config.clone())]
    pub initialise: Stream<Initialise>,
    /// Payload to host memory.
    #[source(c.config.clone())]
    pub payload: Stream<PayloadWrite>,
    /// The oldest payload not yet told is written (one pulse per `payload`, in order).
    #[input]
    pub written: Sig,
    /// Reads of receive WQEs.
    #[source]
    pub read: Stream<ReadRequest>,
    /// Data of reads.
    #[input(c.config.clone())]
    pub read_data: ReadData,
    /// Ends of reads.
    #[input]
    pub read_done: ReadDone,
    /// Receive CQEs, in order per QP.
    #[source(c.config.clone())]
    pub completion: Stream<Completion>,
    /// Asynchronous events (EQ 0).
    #[source(c.config.clone())]
    pub event: Stream<Event>,
    /// A tail or the READs to answer changed: a response is owed. Comes after the write of `placed`.
    #[source(c.config.clone())]
    pub wake: Stream<Wake>,
    /// Acknowledgements of which nothing of their QP stands in front, to packetise.
    #[source(c.config.clone())]
    pub ack: Stream<Owed>,
    /// Answers of segment wait for packetise.
    #[input]
    pub answers_wait: Sig,
    /// A packet's slot is free again.
    #[output]
    pub release_valid: Sig,
    /// Which.
    #[output(c.config.packet_slot_bits())]
    pub release_slot: Sig,
    /// Pulse: a raw frame is over, whatever became of it.
    #[output]
    pub raw_over: Sig,
    /// The oldest fence is through.
    #[output]
    pub fence_done: Sig,
    /// QP of the packet under way: address of `rights_word`.
    #[output(c.config.qp_bits())]
    pub packet_address: Sig,
    /// `contract::QpRights`.
    #[input(QpRightsBits::BITS)]
    pub rights_word: Sig,
    /// Address of the MR table.
    #[output(c.config.mr_bits())]
    pub mr_address: Sig,
    /// `contract::MrEntry`, one clock later.
    #[input(MrEntryBits::BITS)]
    pub mr_word: Sig,
    /// QP of the packet that finishes: address of the three words below.
    #[output(c.config.qp_bits())]
    pub finish_address: Sig,
    /// [`Placed`], the own word.
    #[input(Placed::total_width(&()))]
    pub placed_word: Sig,
    /// [`Tx`].
    #[input(Tx::total_width(&()))]
    pub tx_word: Sig,
    /// `contract::QpQueues`.
    #[input(QpQueuesBits::BITS)]
    pub finish_queues_word: Sig,
    /// Write of the own word.
    #[output(StateShape::per_qp::<Placed>(&c.config))]
    pub placed_write: StateWrite,
    /// QP whose receive WQEs are looked after: address of the three words below.
    #[output(c.config.qp_bits())]
    pub fetch_address: Sig,
    /// Producer of the receive queue.
    #[input(INDEX)]
    pub post_rq_word: Sig,
    /// `contract::QpQueues`.
    #[input(QpQueuesBits::BITS)]
    pub fetch_queues_word: Sig,
    /// `contract::QpRights`.
    #[input(QpRightsBits::BITS)]
    pub fetch_rights_word: Sig,
    /// Refusals (`contract::Reject`).
    #[output]
    pub count: Count,
    /// WQE reads (`contract::StageCounter`).
    #[output]
    pub stage_count: Count,
    /// Packets that go on, for trace.
    #[output(c.config.clone())]
    pub trace: Mark,
    /// Packets whose writes are done, for trace.
    #[output(c.config.clone())]
    pub trace_done: Mark,
    /// Pulse: a packet or its payload cannot go on.
    #[output]
    pub stall: Sig,
    /// Nothing is inside.
    #[output]
    pub idle: Sig,
}

/// What is to be done when the pieces before it and its own are written.
#[derive(Bundle, Clone, Copy)]
#[bundle(Config)]
struct Finish {
    /// Wait for one `written`.
    piece: Sig,
    /// The packet ends here; of a piece in its midst nothing else matters.
    ends: Sig,
    /// See [`Kind`].
    #[shape(4)]
    kind: Sig,
    #[shape(c.qp_bits())]
    qp: Sig,
    #[shape(PSN)]
    psn: Sig,
    ack_req: Sig,
    last: Sig,
    fatal: Sig,
    establishes: Sig,
    #[shape(8)]
    syndrome: Sig,
    /// The slot is to be released.
    holds: Sig,
    #[shape(c.packet_slot_bits())]
    slot: Sig,
    /// A CQE is to be written.
    reports: Sig,
    #[shape(8)]
    status: Sig,
    #[shape(CAUSE)]
    cause: Sig,
    /// Receive WQE, or number of a READ or atomic.
    #[shape(INDEX)]
    wqe_index: Sig,
    /// A WRITE, not a SEND.
    write: Sig,
    #[shape(32)]
    byte_len: Sig,
    #[shape(32)]
    imm: Sig,
    with_imm: Sig,
    with_inv: Sig,
    solicited: Sig,
    /// A local invalidate.
    local: Sig,
    /// A raw frame.
    raw: Sig,
    /// Of its acknowledgement.
    #[shape(())]
    outer: Outer,
}

/// Kinds of [`Finish`].
#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Accept,
    Reack,
    Nak,
    Fence,
    Discard,
    Respond,
    Rewind,
    Read,
    Atomic,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Rest,
    Words,
    Judge,
    Key,
    Count,
    Load,
    Emit,
    Invalidate,
    Push,
}

impl Module for Place {
    type Io = PlaceIo;
    fn name(&self) -> String {
        format!("place_{}", self.config.name)
    }
    fn doc(&self) -> String {
        "Writes payload, then acknowledges and reports it.".into()
    }
    fn body(&self, io: &PlaceIo) {
        let c = &self.config;
        let (qp_bits, misses) = (c.qp_bits(), c.misses);
        let kind = |k: Kind| lit(4, k.code());
        let reason = |r: Reject| lit(6, u64::from(r.code()));
        let status = |s: WcStatus| lit(8, u64::from(s.code()));

        // what waits: the FIFO, and the miss queue
        let width = Verdict::total_width(c);
        let fifo = hdl::instance("verdicts", &Fifo { depth: VERDICTS, width });
        fifo.input.valid.set(io.verdict.valid);
        fifo.input.data.set(io.verdict.data.to_bits());
        io.verdict.ready.set(fifo.input.ready);
        // at rest what enters the empty FIFO is looked at in the same clock; `words` finds it at the head
        let waited = Verdict::from_bits(c, fifo.output.data);
        let (arrived, arrives) = if c.unhurried {
            (waited, fifo.output.valid)
        } else {
            (waited.or_else(c, fifo.output.valid, &io.verdict.data), fifo.output.valid | io.verdict.valid)
        };
        let data = buffer("data_fifo", c, VERDICTS, &io.data);
        let locals = buffer("locals", c, c.qps, &io.local);
        let parked = Memory::new("parked", misses, width).style("distributed");
        let used = reg_init("used", misses, 0);
        let retry = reg_init("retry", misses, 0);
        let whose: Vec<Sig> = (0..misses).map(|i| reg(&format!("whose_{i}"), qp_bits)).collect();
        // older entries of the same QP
        let older: Vec<Sig> = (0..misses).map(|i| reg_init(&format!("older_{i}"), misses, 0)).collect();
        let bits =
            |each: &dyn Fn(usize) -> Sig| cat(&(0..misses as usize).rev().map(each).collect::<Vec<_>>());
        let runnable =
            bits(&|i| used.bit(i as u32) & retry.bit(i as u32) & older[i].none()).named("runnable");
        let again_at = lowest(runnable).named("again_at");
        let again = Verdict::from_bits(c, parked.read_now("again", again_at));
        let one_hot = |index: Sig| lit(misses, 1) << index;

        // rest: choose a packet
        let phase = reg_init("phase", Phase::width(), Phase::Rest.code());
        let to = |p: Phase| phase.set(p.code());
        let at = |p: Phase| phase.eq(p.code());
        let is = |v: &Verdict, a: Action| v.action.eq(a.code());
        let resting = at(Phase::Rest).named("resting");
        let fence_waits = arrives & is(&arrived, Action::Fence);
        let data_fence = data.valid & data.data.fence;
        let fence_held = (fence_waits & (used.any() | !data_fence)).named("fence_held");
        let consumed = Stream::<WqeName>::wires(c, "consumed");
        // nothing is parked but what waits for a receive WQE of the host, nothing scattered but by its SGEs, no key ended but
        // by it, and nothing of it reported
        let of_host = |is: Sig| if c.host { is } else { low() };
        let from_miss = of_host(runnable.any());
        let from_verdicts = arrives & !fence_held;
        let (data_first, local_first) = (reg_init("data_first", 1, 0), reg_init("local_first", 1, 0));
        let has_data = data.valid & !data.data.fence;
        let from_local = of_host(!from_miss & locals.valid & (!(from_verdicts | has_data) | local_first))
            .named("from_local");
        let from_data =
            of_host(!from_miss & !from_local & has_data & (!from_verdicts | data_first)).named("from_data");
        // atomics pushed and not yet executed, and whose: who had one since there were none. That is a round; one of long ago
        // may be taken for this one, which costs its QP a wait
        let atomics = reg_init("atomics", 8, 0);
        let round = reg_init("atomic_round", ROUND, 0);
        let rounds = Memory::new("atomic_rounds", c.qps, ROUND).style("distributed");
        let overtakes = hdl::wire("would_overtake", 1);
        let some = any_of(&[from_miss, from_verdicts, from_data, from_local]);
        let begin = (resting & consumed.ready & some & !overtakes).named("begins");
        let nothing = Verdict::wires(c, "nothing");
        nothing.assign_zero();
        let scatter = Verdict {
            action: mux(
                data.data.is_value,
                lit(ACTION, Action::Value.code()),
                lit(ACTION, Action::Data.code()),
            ),
            qp: data.data.qp,
            iova: data.data.value,
            last: data.data.last,
            wqe_index: data.data.wqe_index,
            offset: data.data.offset,
            length: data.data.length,
            address: data.data.address,
            slot: data.data.slot,
            ..nothing
        };
        let ends_key = Verdict {
            action: lit(ACTION, Action::Local.code()),
            qp: locals.data.qp,
            key: locals.data.key,
            wqe_index: locals.data.wqe_index,
            last: hdl::high(),
            with_inv: hdl::high(),
            ..nothing
        };
        let fresh = scatter.or_else(c, from_data, &ends_key.or_else(c, from_local, &arrived));
        let chosen = again.or_else(c, from_miss, &fresh);
        // an atomic by the key is judged already. Each that may be chosen is looked at while it is not yet known which is
        let overtakes_as = |v: &Verdict, name: &str| {
            let ends = is(v, Action::Local) | (is(v, Action::Send) & v.with_inv);
            let had_one = rounds.read_now(name, v.qp).eq(round);
            ends | ((is(v, Action::Write) | is(v, Action::Send)) & had_one)
        };
        let waited_overtakes = overtakes_as(&waited, "round_of_waited");
        let arrived_overtakes = if c.unhurried {
            waited_overtakes
        } else {
            mux(fifo.output.valid, waited_overtakes, overtakes_as(&io.verdict.data, "round_of_verdict"))
        };
        let fresh_overtakes = from_local | (!from_data & arrived_overtakes);
        let any_overtakes = mux(from_miss, overtakes_as(&again, "round_of_again"), fresh_overtakes);
        overtakes.set(some & any_overtakes & atomics.any());
        let v = Verdict::regs(c, "under_way");
        let (missed, entry) = (reg("is_missed", 1), reg("entry", index_width(misses)));
        let unwanted = reg("is_unwanted", 1);
        let list_entry = reg("list_entry", c.read_bits());
        // what is not begun is never looked at; whether it is, is known late
        when(resting, || {
            list_entry.set(data.data.entry);
            v.assign(&chosen);
            missed.set(from_miss);
            entry.set(again_at);
            unwanted.set(from_data & data.data.discard);
        });
        when(begin, || {
            data_first.set(!from_data);
            local_first.set(!from_local);
            to(Phase::Words);
        });
        io.packet_address.set(if c.unhurried { mux(resting, chosen.qp, v.qp) } else { chosen.qp });
        let wqes = hdl::instance("wqes", &ReceiveWqes { config: c.clone() });
        // the first group for the packet that begins, further ones for the one under way
        let (group, counting) = (reg("group", GROUP), of_host(at(Phase::Count)).named("counting"));
        let opens = if c.unhurried { resting | at(Phase::Words) } else { resting };
        let asked = mux(opens, lit(GROUP, 0), mux(counting, group + 1, group)).named("group_asked");
        wqes.query.qp.set(mux(resting, chosen.qp, v.qp));
        wqes.query.index.set(mux(resting, chosen.wqe_index, v.wqe_index));
        wqes.query_group.set(asked);
        io.list_address.set(cat(&[mux(resting, data.data.entry, list_entry), asked]));

        // words: go, park or discard
        // unhurried, it is the second clock of them that counts: by then the key of a WRITE or atomic has been looked at
        let words = at(Phase::Words);
        let words = if c.unhurried {
            let second = reg_init("second_clock", 1, 0);
            second.set(words & !second);
            words & second
        } else {
            words
        }
        .named("words");
        let rights = QpRightsBits::unpack(io.rights_word);
        let receives = QpState::ALL.iter().filter(|s| s.receives());
        let receives =
            any_of(&receives.map(|s| rights.state.eq(s.code())).collect::<Vec<_>>()) & rights.valid;
        // QPs that met a fatal NAK here; `placed` learns it only when the writes before are done
        let dead = Flags::new("dead", c.qps, 1);
        let is_dead = dead.at(v.qp);
        let is_now = |a: Action| later(c, &format!("is_{a:?}").to_lowercase(), is(&v, a));
        let (fence, write) = (is_now(Action::Fence), is_now(Action::Write));
        let (send, local) = (of_host(is(&v, Action::Send)), of_host(is(&v, Action::Local)));
        let is_atomic = is_now(Action::Atomic);
        let ends_key = (local | (send & v.with_inv)).named("ends_key");
        let reads = of_host(is(&v, Action::Data) | is(&v, Action::Value));
        // of this side's send queue
        let own = reads | local;
        let scatters = (send | reads).named("scatters");
        let holds = (scatters | write).named("holds_slot");
        let discard = (!fence & (is_dead | !receives | unwanted)).named("discard");
        let same = bits(&|i| used.bit(i as u32) & whose[i].eq(v.qp)).named("same_qp");
        let behind = of_host(!missed & same.any() & !fence & !own);
        let loads = send & v.length.any();
        let missing = loads & !wqes.present & !wqes.failed;
        let full = used.all();
        let park = (words & !missed & !discard & (behind | missing) & !full).named("park");
        // no entry free: look again, the parked ones go first
        let stall = words & !missed & !discard & (behind | missing) & full;
        let still = (words & missed & !discard & missing).named("still_missing");
        let go = (words & !park & !stall & !still).named("go");
        let unread = go & !discard & loads & wqes.failed;
        fifo.output.ready.set(words & !missed & !stall & !own);
        data.ready.set(words & (reads | (fence & !missed)));
        locals.ready.set(words & local);
        // further SGEs that it needs and that are not here. It is a SEND, so there is an entry for it
        let absent = (counting & send & !wqes.further_present & !wqes.further_failed).named("further_absent");
        hdl::assert_always("a_send_can_be_parked", !(absent & !missed & full));
        let (parks, stays) = (park | (absent & !missed), still | (absent & missed));
        wqes.missed_valid.set(((park | still) & missing) | absent);
        wqes.missed_further.set(absent);
        wqes.missed_qp.set(v.qp);

        let list = reg("list", GROUP_SGES * 128);
        let count = reg("sges_left", index_width(GROUP_SGES + 1));
        let (groups, counted) = (reg("groups", GROUP), reg("counted", 1));
        let total = reg("capacity", 36);
        let needed = reg("needed", 36);
        let skip = reg("skip", 32);
        let rest = reg("rest", 14);
        let at_byte = reg("at_byte", c.packet_address_bits());
        let pd = reg("pd", 24);
        let outer = Outer::regs(&(), "outer");
        let (fault, fault_syndrome, fault_status) =
            (reg("fault", 1), reg("fault_syndrome", 8), reg("fault_status", 8));
        let cause = reg("cause", 6);
        let (lost, gone) = (reg("discarded", 1), reg("state_left", 1));
        let landing = mux(reads, io.list_word, wqes.wqe);
        let sge_at = |i: u32| SgeBits::unpack(landing.bits(i * 128, 128));
        let holds_bytes = (0..GROUP_SGES).fold(lit(36, 0), |sum, i| sum + sge_at(i).length.extend(36));
        when(words, || {
            list.set(landing);
            count.set(GROUP_SGES);
            group.set(1);
            groups.set(mux(reads, io.list_groups, wqes.groups));
            counted.set(0);
            total.set(holds_bytes);
            needed.set(v.offset.extend(36) + v.length.extend(36));
            skip.set(v.offset);
            rest.set(v.length);
            at_byte.set(v.address);
            pd.set(rights.pd);
            outer.assign(&Outer { tagged: rights.tagged, ipv6: rights.ipv6 });
            fault.set(unread);
            fault_syndrome.set(0x63);
            fault_status.set(status(WcStatus::LocQpOpErr));
            cause.set(reason(Reject::WqeFetchFailed));
            lost.set(discard);
            gone.set(!receives);
            to(Phase::Rest);
        });
        when(go, || {
            to(Phase::Push);
            when(!discard & !unread & v.length.any(), || {
                when(scatters, || to(Phase::Key));
                when(write, || to(Phase::Emit));
            });
            when(!discard & !unread & (ends_key | is_atomic), || to(Phase::Judge));
        });

        // judge: the key that ends, or that of an atomic. Its word is read again in every clock in which no SGE's is
        let entry_word = MrEntryBits::unpack(io.mr_word);
        let beyond = |key: Sig| key.bits(8 + c.mr_bits(), 24 - c.mr_bits()).any();
        let held = later(c, "key_holds", mr::holds(&entry_word, v.key));
        let gone_reason = mux(entry_word.valid, reason(Reject::RkeyTag), reason(Reject::RkeyUnknown));
        let (may_end, end_refusal) = mr::judge_end(&entry_word, v.key, pd);
        let may_end = may_end & !beyond(v.key);
        let judging = at(Phase::Judge).named("judging");
        let judged_bad = (judging & !mux(is_atomic, held, may_end)).named("judged_bad");
        when(judging, || {
            when(send & v.length.any(), || to(Phase::Key))
                .elif(is_atomic, || to(Phase::Push))
                .otherwise(|| to(Phase::Invalidate));
        });
        let access_fault = |why: Sig| {
            fault.set(1);
            fault_syndrome.set(0x62);
            fault_status.set(mux(local, status(WcStatus::LocQpOpErr), status(WcStatus::LocAccessErr)));
            cause.set(why);
            to(Phase::Push);
        };
        when(judged_bad, || {
            access_fault(mux(
                is_atomic,
                gone_reason,
                mux(beyond(v.key), reason(Reject::RkeyUnknown), end_refusal),
            ))
        });

        // key: the SGE under the offset
        let keying = of_host(at(Phase::Key)).named("keying");
        let sge = SgeBits::unpack(list.bits(0, 128));
        let next_sge = || {
            list.set(cat(&[lit(128, 0), list.bits(128, list.width() - 128)]));
            count.set(count - 1);
        };
        let emitting = at(Phase::Emit).named("emitting");
        let key = mux(keying | (emitting & scatters), sge.lkey, v.key);
        io.mr_address.set(key.bits(8, c.mr_bits()));
        let lacks = (keying & needed.gt(total)).named("lacks_bytes");
        let counts = lacks & groups.any() & !counted;
        let too_short = (lacks & !counts).named("too_short");
        let walked = keying & !lacks & count.none();
        let over = (keying & !lacks & !walked & skip.ge(sge.length)).named("skip_sge");
        let left = sge.length - skip;
        let (piece, va) = (reg("piece", 14), reg("piece_va", 64));
        when(keying, || va.set(sge.addr + skip.extend(64)));
        when(keying & !lacks & !walked & !over, || {
            piece.set(mux(left.lt(rest.extend(32)), left.bits(0, 14), rest));
            to(Phase::Emit);
        });
        when(over, || {
            skip.set(skip - sge.length);
            next_sge();
        });
        when(counts, || to(Phase::Count));
        when(walked, || to(Phase::Load));
        when(too_short, || {
            fault.set(1);
            fault_syndrome.set(0x61);
            fault_status.set(status(WcStatus::LocLenErr));
            cause.set(mux(reads, reason(Reject::SglTooShort), reason(Reject::ReceiveTooShort)));
            to(Phase::Push);
        });

        // count: what a further group holds
        when(counting, || {
            total.set(total + holds_bytes);
            group.set(group + 1);
            when(group.eq(groups), || {
                group.set(1);
                counted.set(1);
                to(Phase::Key);
            });
        });
        when(absent, || to(Phase::Rest));
        when(counting & send & wqes.further_failed, || {
            fault.set(1);
            to(Phase::Push);
        });

        // load: the next group
        when(of_host(at(Phase::Load)), || {
            list.set(landing);
            count.set(GROUP_SGES);
            group.set(group + 1);
            to(Phase::Key);
        });

        // emit: a piece and what follows it
        let rights_wanted = lit(8, u64::from(access::LOCAL_WRITE));
        let judged = mr::judge(&entry_word, sge.lkey, va, piece.extend(32), pd, rights_wanted);
        let bad_key = (emitting & scatters & (!judged.ok | beyond(sge.lkey))).named("bad_key");
        let ended_key = (emitting & write & !held).named("ended_key");
        let length = mux(scatters, piece, rest);
        let whole = !scatters | piece.eq(rest);
        let payload = Stream::<PayloadWrite>::wires(c, "piece_out");
        let finish = Stream::<Finish>::wires(c, "finish_in");
        let write_piece = emitting & !bad_key & !ended_key;
        payload.valid.set(write_piece & finish.ready);
        payload.data.assign(&PayloadWrite {
            iova: mux(scatters, judged.iova, v.iova),
            length: length.bits(0, 13),
            address: at_byte,
            is_value: is(&v, Action::Value),
            value: v.iova,
            relaxed: mux(scatters, entry_word.relaxed_ordering, v.relaxed),
        });
        let payload_out = buffer("payload_fifo", c, 2, &payload);
        io.payload.take(&payload_out);
        let emitted = payload.moves();
        when(emitted, || {
            rest.set(rest - length);
            at_byte.set(at_byte + length.resize(c.packet_address_bits()));
            skip.set(0);
            next_sge();
            when(whole & ends_key, || to(Phase::Invalidate))
                .elif(whole, || to(Phase::Rest))
                .otherwise(|| to(Phase::Key));
        });
        when(ended_key, || access_fault(gone_reason));
        when(bad_key, || {
            fault.set(1);
            fault_syndrome.set(0x63);
            fault_status.set(status(WcStatus::LocProtErr));
            cause.set(mux(reads, reason(Reject::SglKey), reason(Reject::LkeyBad)));
            to(Phase::Push);
        });

        // invalidate: what is judged behind it finds the key gone
        io.invalidate.valid.set(at(Phase::Invalidate));
        io.invalidate.data.set(v.key.bits(8, c.mr_bits()));
        when(io.invalidate.moves(), || to(Phase::Push));

        // push: a packet without (further) payload
        let pushing = at(Phase::Push).named("pushing");
        let refused = fault & !own & !v.raw;
        let nak = is_now(Action::Nak);
        let naks = nak | refused;
        let fatal = (nak & v.fatal) | refused;
        let over_emitted = whole & !ends_key;
        finish.valid.set(pushing | (write_piece & payload.ready));
        finish.data.assign(&Finish {
            piece: emitting,
            ends: pushing | over_emitted,
            kind: mux(
                fence,
                kind(Kind::Fence),
                mux(
                    lost,
                    kind(Kind::Discard),
                    mux(
                        own,
                        kind(Kind::Read),
                        mux(
                            naks,
                            kind(Kind::Nak),
                            mux(
                                is_now(Action::Reack),
                                kind(Kind::Reack),
                                mux(
                                    is_now(Action::Respond),
                                    kind(Kind::Respond),
                                    mux(
                                        is_now(Action::Rewind),
                                        kind(Kind::Rewind),
                                        mux(is_atomic, kind(Kind::Atomic), kind(Kind::Accept)),
                                    ),
                                ),
                            ),
                        ),
                    ),
                ),
            ),
            qp: v.qp,
            psn: v.psn,
            ack_req: v.ack_req,
            last: v.last,
            fatal,
            establishes: v.establishes,
            syndrome: mux(fault, fault_syndrome, v.syndrome),
            holds,
            slot: v.slot,
            reports: mux(naks, fatal, v.last) & v.uses_wqe & !lost,
            status: mux(fault, fault_status, mux(naks, status(WcStatus::LocQpOpErr), lit(8, 0))),
            cause: mux(fault, flow::cause(cause), mux(naks, v.cause, lit(CAUSE, 0))),
            wqe_index: v.wqe_index,
            write,
            byte_len: v.offset + v.length.extend(32),
            imm: v.imm,
            with_imm: v.with_imm & v.last & !naks,
            with_inv: v.with_inv & !naks,
            solicited: v.solicited & !naks,
            local,
            raw: v.raw,
            outer,
        });
        let pushed = (pushing & finish.ready).named("pushed");
        when(pushed, || to(Phase::Rest));
        let new_atomic = (pushed & is_atomic & !lost & !fault).named("new_atomic");
        atomics.set(atomics + new_atomic.extend(8) - io.exchanged.extend(8));
        let this_round = round + atomics.none().extend(ROUND);
        when(new_atomic, || round.set(this_round));
        rounds.write(new_atomic, v.qp, this_round);
        let over_now = (pushed | (emitted & over_emitted)).named("packet_over");
        consumed.valid.set(of_host(over_now & !lost & !naks & v.uses_wqe & v.last & holds));
        consumed.data.assign(&WqeName { qp: v.qp, index: v.wqe_index });
        wqes.consumed.take(&consumed);

        let held = (write_piece & !emitted) | (pushing & !finish.ready);
        io.stall.set(stall | held | (resting & overtakes) | (payload_out.valid & !io.payload.ready));

        // refusals, one per packet
        let refuse = (pushing & finish.ready & (fault | lost) & !fence & !unwanted).named("refuse");
        io.count.valid.set(refuse);
        io.count.index.set(mux(
            lost,
            mux(gone, reason(Reject::WrongQpState), reason(Reject::QpHalted)),
            cause,
        ));

        // the miss queue's book
        let free_at = lowest(!used).named("free_at");
        parked.write(parks, free_at, v.to_bits());
        let removed = one_hot(entry) & (over_now & missed).repeat(misses);
        let added = one_hot(free_at) & parks.repeat(misses);
        used.set((used & !removed) | added);
        for (i, (whose, older)) in whose.iter().zip(&older).enumerate() {
            let mine = parks & free_at.eq(i);
            when(mine, || whose.set(v.qp));
            older.set(mux(mine, same, *older) & !removed);
        }
        let news = bits(&|i| wqes.changed_valid & whose[i].eq(wqes.changed_qp));
        let stale = one_hot(entry) & stays.repeat(misses);
        // a fence behind parked packets makes them look again: their QP may be gone
        let pressed = (fence_held & resting & runnable.none()).repeat(misses);
        retry.set((retry & !stale) | added | news | pressed);
        let held = used.bits(0, 1).extend(8);
        let held = (1..misses).fold(held, |sum, i| sum + used.bit(i).extend(8));
        io.room.set((held + fifo.level.extend(8) + 2).le(u64::from(misses)));

        // finish: in the order of the writes
        let finish_word = buffer("finish_fifo", c, FINISHES, &finish);
        // unhurried, the packet that finishes, its words and what follows from them go through a register each
        let f = &later_all(c, c, "finishing", &finish_word.data);
        let told = reg_init("told", 8, 0);
        let step = reg_init("finish_step", 1, 0);
        let wake_valid = reg_init("wake_valid_q", 1, 0);
        let wake_qp = reg("wake_qp_q", qp_bits);
        io.wake.valid.set(wake_valid);
        io.wake.data.qp.set(wake_qp);
        when(wake_valid & io.wake.ready, || wake_valid.set(0));
        let f_rest = (!step).named("finish_rests");
        let pop = hdl::wire("pop", 1);
        // its address went out in the clock before: the words are there
        let seen = reg_init("head_seen", 1, 0);
        let steps = if c.unhurried { ["head_in_register", "head_asked_for"].as_slice() } else { &[] };
        // a new start changes words
        let again = if c.unhurried { pop | io.initialise.moves() } else { pop };
        let stood = steps.iter().fold(finish_word.valid, |stood, name| delay_init(name, stood & !again));
        seen.set(stood & !again);
        let here = if c.unhurried {
            seen & (!f.piece | delay_init("some_told", told.any()))
        } else {
            finish_word.valid & (!f.piece | told.any() | io.written)
        };
        let decoded = c.unhurried.then(|| {
            let each = Kind::VARIANTS.iter().rev().map(|(k, ..)| finish_word.data.kind.eq(k.code()));
            hdl::delay("finishes_as", cat(&each.collect::<Vec<_>>()))
        });
        let is_kind = |k: Kind| decoded.map_or_else(|| f.kind.eq(k.code()), |d| d.bit(k.code() as u32));
        let middle = f_rest & here & !f.ends;
        let placement = Stream::<Fault>::wires(c, "placement_in");
        let placements = buffer("placements", c, 4, &placement);
        // those that have left `finish`: a fence that waited for an atomic behind it here would wait for ever
        let exchanging = reg_init("exchanging", 8, 0);
        // a confirmation must not meet the next life of its QP, an acknowledgement not its path
        let ack = Stream::<Owed>::wires(c, "ack_in");
        let acks = buffer("acks", c, 2, &ack);
        io.ack.take(&acks);
        let settled = wqes.drained & !placements.valid & exchanging.none() & !acks.valid;
        let f_fence = f_rest & here & f.ends & is_kind(Kind::Fence) & settled;
        let f_discard = f_rest & here & f.ends & is_kind(Kind::Discard);
        let f_read = (f_rest & here & f.ends & is_kind(Kind::Read) & placement.ready).named("read_finishes");
        placement.valid.set(of_host(f_read & (f.last | f.status.any())));
        placement.data.assign(&Fault {
            qp: f.qp,
            wqe_index: f.wqe_index,
            status: f.status,
            responds: low(),
            invalidates: f.local,
            cause: f.cause,
        });
        io.placement.take(&placements);
        // local invalidates inside
        let local_of = Flags::new("local_of", c.qps, 1);
        let local_inside = reg_init("locals_inside", qp_bits + 1, 0);
        let (new_local, local_over) = (io.local.moves(), (f_read | f_discard) & f.local);
        let stays = new_local & io.local.data.qp.eq(f.qp);
        local_of.change(&[(new_local, io.local.data.qp)], (local_over & !stays, f.qp));
        local_inside.set(local_inside + new_local.extend(qp_bits + 1) - local_over.extend(qp_bits + 1));
        let acknowledges = !any_of(&[Kind::Fence, Kind::Discard, Kind::Read].map(is_kind));
        let packet =
            (f_rest & here & seen & f.ends & acknowledges & !io.initialise.valid).named("packet_ends");
        io.finish_address.set(f.qp);

        let old = Placed::from_bits(&(), io.placed_word);
        let tx = Tx::from_bits(&(), io.tx_word);
        let queues = QpQueuesBits::unpack(io.finish_queues_word);
        let accept = is_kind(Kind::Accept);
        let is_atomic = is_kind(Kind::Atomic);
        let (responds, rewinds) = (is_kind(Kind::Respond) | is_atomic, is_kind(Kind::Rewind));
        let unpaid_now = old.tail_seq.ne(tx.paid);
        let unpaid = later(c, "unpaid", unpaid_now);
        let unpaid_nak = unpaid & old.tail_syndrome.bits(5, 2).any();
        // as far as all is placed, and not behind what is owed already
        let placed_psn = later(c, "psn_placed", mux(psn_before(f.psn, old.psn), f.psn, old.psn));
        let again_psn = mux(unpaid & psn_before(placed_psn, old.tail_psn), old.tail_psn, placed_psn);
        let msn = old.msn + ((accept & f.last) | responds).extend(PSN);
        // all that the QP was owed has gone to packetise, but for READ responses that may be in gather (`res_marked`)
        let answered = later(
            c,
            "answered",
            !unpaid_now
                & old.res_head.eq(tx.res_cursor)
                & old.rewind_seq.eq(tx.res_rewind)
                & !tx.res_marked
                & !io.answers_wait,
        );
        let nak = is_kind(Kind::Nak);
        let syndrome = mux(nak, f.syndrome, lit(8, ACK));
        let own = (accept & f.ack_req) | nak;
        let direct = (packet & own & !f.fatal & answered & ack.ready).named("answers_directly");
        ack.valid.set(direct);
        ack.data.assign(&Owed { qp: f.qp, psn: f.psn, syndrome, msn, outer: f.outer });
        let answers = (own & !direct) | (is_kind(Kind::Reack) & !unpaid_nak);
        let next = Placed::regs(&(), "placed");
        let (owes, cqn) = (reg("owes_more", 1), reg("cqn", c.cq_bits()));
        let entry = reg("response_entry", c.response_bits());
        // segment may be obeying in this very clock: then it goes back twice, which costs packets and nothing else
        let older = old.rewind_seq.eq(tx.res_rewind) | psn_before(f.psn, old.rewind_psn);
        when(packet, || {
            next.assign(&Placed { msn, ..old });
            when(accept, || next.psn.set(f.psn));
            when(answers, || {
                next.tail_seq.set(old.tail_seq + 1);
                next.tail_syndrome.set(syndrome);
                next.tail_psn.set(mux(is_kind(Kind::Reack), again_psn, f.psn));
                next.tail_msn.set(msn);
            });
            when(f.fatal, || next.halt.set(1));
            when(responds, || next.res_head.set(f.wqe_index.bits(0, RING) + 1));
            when(rewinds, || next.rewind_seq.set(old.rewind_seq + 1));
            when(rewinds & older, || {
                next.rewind_index.set(f.wqe_index.bits(0, RING));
                next.rewind_psn.set(f.psn);
            });
            // an atomic is answered when it is executed
            owes.set(answers | (responds & !is_atomic) | rewinds);
            let index = f.wqe_index.bits(0, RING);
            entry.set(owed_address(c, queues.response_base, queues.response_log_size, index));
            cqn.set(queues.recv_cqn.bits(0, c.cq_bits()));
        });
        let completion = Stream::<Completion>::wires(c, "completion_in");
        let event = Stream::<Event>::wires(c, "event_in");
        let exchange = Stream::<Exchange>::wires(c, "exchange_in");
        let exchanges = buffer("exchanges", c, 2, &exchange);
        io.exchange.take(&exchanges);
        let can = completion.ready & event.ready & exchange.ready & (!wake_valid | io.wake.ready);
        let done = (step & can).named("finished");
        exchange.valid.set(done & is_atomic);
        exchanging.set(exchanging + (done & is_atomic).extend(8) - io.exchanged.extend(8));
        exchange.data.assign(&Exchange { qp: f.qp, entry });
        completion.valid.set(of_host(done & f.reports));
        completion.data.assign(&Completion {
            cq: cqn,
            qp: f.qp,
            wqe_index: f.wqe_index,
            opcode: mux(
                f.write,
                lit(8, u64::from(WcOpcode::RecvRdmaWithImm.code())),
                lit(8, u64::from(WcOpcode::Recv.code())),
            ),
            status: f.status,
            byte_len: f.byte_len,
            imm: f.imm,
            with_imm: f.with_imm,
            with_inv: f.with_inv,
            cause: f.cause,
            solicited: f.solicited,
        });
        event.valid.set(of_host(done & (f.fatal | f.establishes)));
        event.data.assign(&Event {
            eq: lit(c.eq_bits(), 0),
            kind: lit(8, u64::from(EventKind::Async.code())),
            event: mux(
                f.fatal,
                select(
                    f.syndrome.bits(0, 2),
                    &[
                        AsyncEvent::QpFatal,
                        AsyncEvent::QpReqErr,
                        AsyncEvent::QpAccessErr,
                        AsyncEvent::QpFatal,
                    ]
                    .map(|e| lit(8, u64::from(e.code()))),
                ),
                lit(8, u64::from(AsyncEvent::CommEst.code())),
            ),
            object: f.qp.extend(24),
        });
        let completions = buffer("completions", c, 4, &completion);
        io.completion.take(&completions);
        let events = buffer("events", c, 4, &event);
        io.event.take(&events);
        step.set(mux(f_rest, packet, !done));
        when(done & owes, || {
            wake_valid.set(1);
            wake_qp.set(f.qp);
        });
        pop.set(middle | f_fence | f_discard | f_read | done);
        finish_word.ready.set(pop);
        let spent = pop & f.piece;
        when(io.written & !spent, || told.set(told + 1));
        when(spent & !io.written, || told.set(told - 1));
        io.release_valid.set((done | f_discard | f_read) & f.holds);
        io.release_slot.set(f.slot);
        io.raw_over.set((done | f_discard) & f.raw);
        io.fence_done.set(f_fence);
        // reads stop for the fence from the moment it is behind the last parked packet
        let fencing = reg_init("fencing", 1, 0);
        when(pushed & fence, || fencing.set(1));
        when(f_fence, || fencing.set(0));
        wqes.hold.set(fencing);

        // the own word, and a new start
        let i = &io.initialise.data;
        let clears = i.receive | i.reset;
        let may_clear = !of_host(local_of.at(i.qp));
        let begin_anew =
            (f_rest & io.initialise.valid & clears & may_clear & wqes.forget.ready).named("begin_anew");
        io.initialise.ready.set(f_rest & (!clears | (may_clear & wqes.forget.ready)));
        wqes.forget.valid.set(f_rest & io.initialise.valid & clears & may_clear);
        wqes.forget.data.qp.set(i.qp);
        let start = Placed::wires(&(), "start");
        start.assign_zero();
        let fresh = Placed { psn: i.rq_psn - 1, ..start };
        io.placed_write.enable.set(begin_anew | done);
        io.placed_write.address.set(mux(f_rest, i.qp, f.qp));
        io.placed_write.data.set(mux(f_rest, fresh.to_bits(), next.to_bits()));
        dead.change(&[(over_now & fatal & !lost, v.qp)], (begin_anew, i.qp));

        // receive WQEs: the rest of their ports
        wqes.doorbell.take(&io.doorbell);
        io.fetch_address.set(wqes.qp_address);
        wqes.post_rq_word.set(io.post_rq_word);
        wqes.queues_word.set(io.fetch_queues_word);
        wqes.rights_word.set(io.fetch_rights_word);
        io.read.take(&wqes.read);
        wqes.data.assign(&io.read_data);
        wqes.done.assign(&io.read_done);
        io.stage_count.valid.set(wqes.fetches);
        io.stage_count.index.set(lit(6, u64::from(StageCounter::WqeFetches.code())));
        io.trace.assign(&Mark {
            index: v.wqe_index,
            psn: v.psn,
            detail: v.action.extend(16),
            ..Mark::of(TraceEvent::Place, go & !fence, v.qp)
        });
        io.trace_done.assign(&Mark {
            index: f.wqe_index,
            psn: f.psn,
            detail: f.status.extend(16),
            ..Mark::of(TraceEvent::Placed, done | f_read, f.qp)
        });
        io.idle.set(
            resting
                & f_rest
                & !fifo.output.valid
                & !data.valid
                & local_inside.none()
                & !placements.valid
                & !acks.valid
                & used.none()
                & !finish_word.valid
                & !payload_out.valid
                & !completions.valid
                & !events.valid
                & !exchanges.valid
                & !wake_valid
                & wqes.idle,
        );
    }
}
