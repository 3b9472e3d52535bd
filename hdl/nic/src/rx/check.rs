//! Judges every good RoCE packet against its QP: what place does with a request, what acknowledge gets of a response,
//! or the name under which the packet is dropped.
//!
//! ```text
//! clock 0  a packet, a fence or an initialisation is taken; addresses go out
//! clock 1  the QP's words are there: who, PSN, opcode sequence, rights, receive WQE, lengths; the key's address goes out
//! clock 2  the MR entry is there: bounds and rights of the key
//! clock 3  one verdict, `expect` is written, the slot is released or handed on, the refusal is counted
//! ```
//! Among the READs kept, the youngest first, one per clock before its clock 3, a duplicate READ is looked for, and of a
//! duplicate SEND or WRITE the next READ behind it: it is acknowledged again up to there and no further (decision 0005).
//! Unhurried, clocks 1 to 3 and each look of that search are five clocks, with registers in what is long; addresses go out in the
//! first.
//!
//! In: headers of frames that verify found good. Out: at most one `verdict` or `response` per packet, in order (a READ
//! response or the result of an atomic with its payload and slot; a fence on both), 4 clocks after the packet was taken (a duplicate of a QP that keeps READs: up to
//! 20); a packet is taken every 4 clocks (measured), more seldom only while place or acknowledge refuse. Never waits for
//! host memory: no receive WQE is told from producer and consumer alone.
//!
//! The order of the checks is that of IBA 9.6.1 and 9.7: what cannot be believed is dropped without an answer (QPN,
//! transport, state, halt, addresses, P_Key); then PSN, opcode sequence, QP rights, receive WQE, lengths, R_Key. The
//! first that fails decides. A gap is NAKed once; only a packet in order or a re-acknowledged duplicate arms the NAK
//! again, and an RNR NAK counts as the NAK of the gap behind it. A duplicate is never NAKed.
//!
//! A fatal NAK halts the QP here. If a SEND was open its receive WQE goes with the verdict (`uses_wqe`) and completes
//! in error; a WQE that the failing packet itself would have taken stays posted. The key that a SEND with invalidate
//! ends goes with the verdict: place judges it when its turn comes, since those before it may end it, too. So does the
//! key of a WRITE or atomic, for the same reason.
//!
//! A READ takes as many PSNs as it has responses, an atomic one, and both a place in the QP's ring of [`OwedRead`],
//! written here; of an atomic the [`Operands`], too. Only `max_dest_rd_atomic` of them (and no more than the ring holds) may be unanswered, one more is NAK 0x61; so what is
//! unanswered is never overwritten. A duplicate READ asks for one that is still in the ring, from any of its packets to
//! its end, or is dropped; it takes no place. A duplicate atomic asks for the outcome of the one that had its PSN.
//!
//! A SEND for which place has no `room` is dropped as if the network had lost it: ePSN stays, the peer resends.
//!
//! A raw frame comes as a SEND Only to the raw QP, without PSN, address or P_Key to look at and with nobody to answer: it is
//! placed, or dropped by name. At most [`Check::raw_share`] of them are in place at once, parked ones included, so
//! that a storm of them leaves the miss queue to RoCE.
//!
//! Requirements: ATOM CARD CMD CONG DGM MEM NET PKT RAW READ RESP

use crate::config::Config;
use crate::flow::{ACTION, Action, Count, Headers, Mark, Response, Verdict, cause};
use crate::mr::{self, Reach};
use crate::prim::later::{later, later_all};
use crate::prim::sum::sum_is;
use crate::qp::{
    Expect, INDEX, Initialise, Operands, OwedRead, PSN, Placed, RING, Requester, StateShape, StateWrite, Tx,
    owed_address, psn_before,
};
use contract::context::{MrEntryBits, QpAddressesBits, QpQueuesBits, QpRightsBits};
use contract::opcode::{Kind, Opcode, OpcodeRow, Payload, ReceiveWqe};
use contract::verbs::{QpState, Transport, access};
use contract::{Reject, TraceEvent};
use hdl::{
    Bundle, HwEnum, Module, Ports, Sig, Stream, any_of, cat, delay, index_width, lit, low, mux, reg,
    reg_init, when,
};

/// NAK: a packet is missing.
const NAK_SEQUENCE: u64 = 0x60;
/// NAK: the request is invalid.
const NAK_INVALID: u64 = 0x61;
/// NAK: the R_Key does not allow it.
const NAK_ACCESS: u64 = 0x62;

/// Clocks of a step that is unhurried.
const CLOCKS: u32 = 5;

/// What this stage may count.
pub const REJECTS: &[Reject] = &[
    Reject::UnknownOpcode,
    Reject::UnknownQp,
    Reject::WrongTransport,
    Reject::WrongQpState,
    Reject::WrongAddress,
    Reject::BadPkey,
    Reject::PsnOutOfSequence,
    Reject::PsnOutOfSequenceRepeat,
    Reject::Duplicate,
    Reject::OpcodeSequence,
    Reject::AccessDenied,
    Reject::ReceiverNotReady,
    Reject::BadLength,
    Reject::RkeyUnknown,
    Reject::RkeyTag,
    Reject::RkeyPd,
    Reject::RkeyRights,
    Reject::RkeyBounds,
    Reject::QpHalted,
    Reject::MissQueueFull,
    Reject::ResponseUnexpected,
    Reject::ReadDepth,
    Reject::AtomicAlignment,
    Reject::RawNoReceive,
];

/// The stage, for one card configuration.
#[derive(Clone, Debug)]
pub struct Check {
    /// Sizes.
    pub config: Config,
}

/// Ports of [`Check`].
#[derive(Ports)]
#[ports(Check)]
pub struct CheckIo {
    /// Good frames, in order.
    #[sink(c.config.clone())]
    pub headers: Stream<Headers>,
    /// A fence token waits; it passes in order as a verdict [`Action::Fence`] and as a response.
    #[input]
    pub fence_valid: Sig,
    /// The fence token is taken.
    #[output]
    pub fence_ready: Sig,
    /// Starts a QP's `expect`.
    #[sink(c.config.clone())]
    pub initialise: Stream<Initialise>,
    /// Requests, to place.
    #[source(c.config.clone())]
    pub verdict: Stream<Verdict>,
    /// Acknowledgements and READ responses, to acknowledge.
    #[source(c.config.clone())]
    pub response: Stream<Response>,
    /// A packet's slot is free again.
    #[output]
    pub release_valid: Sig,
    /// Which.
    #[output(c.config.packet_slot_bits())]
    pub release_slot: Sig,
    /// Address of every per-QP word below.
    #[output(c.config.qp_bits())]
    pub qp_address: Sig,
    /// `contract::QpRights`.
    #[input(QpRightsBits::BITS)]
    pub rights_word: Sig,
    /// `contract::QpAddresses`.
    #[input(QpAddressesBits::BITS)]
    pub addresses_word: Sig,
    /// [`Expect`], the own word.
    #[input(Expect::total_width(&()))]
    pub expect_word: Sig,
    /// [`Placed`].
    #[input(Placed::total_width(&()))]
    pub placed_word: Sig,
    /// [`Requester`].
    #[input(Requester::total_width(&()))]
    pub requester_word: Sig,
    /// Producer of the receive queue.
    #[input(INDEX)]
    pub post_rq_word: Sig,
    /// [`Tx`].
    #[input(Tx::total_width(&()))]
    pub tx_word: Sig,
    /// `contract::QpQueues`.
    #[input(QpQueuesBits::BITS)]
    pub queues_word: Sig,
    /// Write of the READs kept.
    #[output(StateShape { address: c.config.response_bits(), width: OwedRead::total_width(&()) })]
    pub owed_write: StateWrite,
    /// Write of the operands of atomics, at the same places.
    #[output(StateShape { address: c.config.response_bits(), width: Operands::total_width(&()) })]
    pub operands_write: StateWrite,
    /// Address of the READs kept.
    #[output(c.config.response_bits())]
    pub owed_address: Sig,
    /// [`OwedRead`], one clock later.
    #[input(OwedRead::total_width(&()))]
    pub owed_word: Sig,
    /// Write of the own word.
    #[output(StateShape::per_qp::<Expect>(&c.config))]
    pub expect_write: StateWrite,
    /// Address of the MR table.
    #[output(c.config.mr_bits())]
    pub mr_address: Sig,
    /// `contract::MrEntry`, one clock later.
    #[input(MrEntryBits::BITS)]
    pub mr_word: Sig,
    /// place can take one more SEND.
    #[input]
    pub room: Sig,
    /// Pulse: place is done with a raw frame.
    #[input]
    pub raw_over: Sig,
    /// Refusals (`contract::Reject`).
    #[output]
    pub count: Count,
    /// Judgements, for trace.
    #[output(c.config.clone())]
    pub trace: Mark,
    /// A packet waits for place or acknowledge.
    #[output]
    pub stall: Sig,
    /// Nothing is inside.
    #[output]
    pub idle: Sig,
}

impl Check {
    /// Raw frames that may be in place at once, of the places of its miss queue.
    pub fn raw_share(&self) -> u32 {
        self.config.misses / 2
    }
}

/// High where `opcode` is an RC opcode whose row is wanted by `which`.
fn decode(opcode: Sig, which: impl Fn(&OpcodeRow) -> bool) -> Sig {
    let rows = Opcode::ALL.iter().map(|o| o.row());
    let wanted = rows.filter(|r| r.transport == Transport::Rc && which(r));
    any_of(&wanted.map(|r| opcode.eq(r.opcode.code())).collect::<Vec<_>>())
}

/// Code of a refusal.
fn code(r: Reject) -> Sig {
    lit(6, u64::from(r.code()))
}

/// The first condition that holds, and its refusal.
fn first_of(conditions: &[(Sig, Sig)]) -> (Sig, Sig) {
    let any = any_of(&conditions.iter().map(|c| c.0).collect::<Vec<_>>());
    let reason = conditions.iter().rev().fold(lit(6, 0), |rest, (holds, code)| mux(*holds, *code, rest));
    (any, reason)
}

impl Module for Check {
    type Io = CheckIo;
    fn name(&self) -> String {
        format!("check_{}", self.config.name)
    }
    fn doc(&self) -> String {
        "Judges packets against their QP: one verdict every 4 clocks.".into()
    }
    fn body(&self, io: &CheckIo) {
        let c = &self.config;
        // 4: a duplicate READ is looked for
        let phase = reg_init("phase", 3, 0);
        // a step is a clock, or as many as its ways have registers, and done in the last
        let last_clock = c.unhurried.then(|| reg_init("last_clock", 1, 0));
        let in_last = |step: Sig| last_clock.map_or(step, |last| step & last);
        let verdict_valid = reg_init("verdict_valid_q", 1, 0);
        let response_valid = reg_init("response_valid_q", 1, 0);
        let verdict = Verdict::regs(c, "verdict_q");
        let response = Response::regs(c, "response_q");
        io.verdict.valid.set(verdict_valid);
        io.verdict.data.assign(&verdict);
        io.response.valid.set(response_valid);
        io.response.data.assign(&response);

        // clock 0: take one thing; what is decided in clock 3 finds its output register empty
        let free = if c.unhurried {
            // of registers alone
            !verdict_valid & !response_valid
        } else {
            (!verdict_valid | io.verdict.ready) & (!response_valid | io.response.ready)
        }
        .named("free");
        let rest = phase.eq(0).named("rest");
        let initialise = rest & io.initialise.valid;
        let fence = rest & free & io.fence_valid & !io.initialise.valid;
        // fence and initialise first: a storm of packets must not delay a teardown
        let may_take = (rest & free & !io.fence_valid & !io.initialise.valid).named("may_take");
        io.initialise.ready.set(rest);
        io.fence_ready.set(rest & free & !io.initialise.valid);
        io.headers.ready.set(may_take);
        let h = Headers::regs(c, "packet");
        let asked_qpn = if c.unhurried { h.dest_qpn } else { io.headers.data.dest_qpn };
        io.qp_address.set(asked_qpn.bits(0, c.qp_bits()));
        when(verdict_valid & io.verdict.ready, || verdict_valid.set(0));
        when(response_valid & io.response.ready, || response_valid.set(0));
        // whether there is a packet, and room for what becomes of it, is known later than that there may be
        when(rest, || h.assign(&io.headers.data));
        let (searching, searched) = (phase.eq(4).named("searching"), hdl::wire("searched", 1));
        let search = hdl::wire("search", 1);
        let next_phase = mux(
            rest,
            (io.headers.valid & may_take).extend(3),
            mux(
                searching,
                mux(searched, lit(3, 3), lit(3, 4)),
                mux(phase.eq(3), lit(3, 0), mux(search, lit(3, 4), phase + 1)),
            ),
        );
        match last_clock {
            None => phase.set(next_phase),
            Some(last) => {
                when(rest | last, || phase.set(next_phase));
                let clock = reg_init("clock_of_step", index_width(CLOCKS), 0);
                clock.set(mux(rest | last, lit(clock.width(), 0), clock + 1));
                last.set(!rest & clock.eq(CLOCKS - 2));
            }
        }
        io.idle.set(rest & !verdict_valid & !response_valid);

        // what the opcode says, from the table
        let op = h.opcode;
        let says = |what: &str, which: &dyn Fn(&OpcodeRow) -> bool| {
            later(c, &format!("opcode_{}", what.to_lowercase()), decode(op, which))
        };
        let is = |k: Kind| says(&format!("{k:?}"), &|r| r.kind == k);
        let (send, write) = (is(Kind::Send), is(Kind::Write));
        let (read, atomic) = (is(Kind::Read).named("is_read"), is(Kind::Atomic));
        let responds = is(Kind::Response).named("is_response");
        let invalidate = says("invalidates", &|r| r.headers.ieth);
        let opens = says("opens", &|r| r.kind != Kind::Response && r.position.opens()).named("opens");
        let closes = says("closes", &|r| r.kind != Kind::Response && r.position.closes()).named("closes");
        let immediate = says("immediate", &|r| r.headers.immdt).named("immediate");
        let takes_wqe =
            says("takes_wqe", &|r| matches!(r.receive_wqe, ReceiveWqe::Fetch | ReceiveWqe::FetchComplete))
                .named("takes_wqe");
        let keeps = (read | atomic).named("takes_a_place");
        let request = (send | write | read | atomic).named("is_request");
        let qp = h.dest_qpn.bits(0, c.qp_bits());

        // clock 1: the QP
        let rights = QpRightsBits::unpack(later(c, "rights_read", io.rights_word));
        let addresses = QpAddressesBits::unpack(later(c, "addresses_read", io.addresses_word));
        let word = later_all(c, &(), "expect_read", &Expect::from_bits(&(), io.expect_word));
        let in_state = |which: &dyn Fn(QpState) -> bool| {
            any_of(
                &QpState::ALL
                    .iter()
                    .filter(|s| which(**s))
                    .map(|s| rights.state.eq(s.code()))
                    .collect::<Vec<_>>(),
            )
        };
        let receives = in_state(&|s| s.receives());
        let awaits = in_state(&|s| s.receives() && s != QpState::Rtr);
        let known_opcode = any_of(&Opcode::ALL.iter().map(|o| op.eq(o.code())).collect::<Vec<_>>());
        let known_opcode = later(c, "opcode_known", known_opcode);
        let beyond =
            if c.qp_bits() < 24 { h.dest_qpn.bits(c.qp_bits(), 24 - c.qp_bits()).any() } else { low() };
        let halted = word.halt
            | Placed::from_bits(&(), io.placed_word).halt
            | Requester::from_bits(&(), io.requester_word).halt;
        let same_pkey = h.pkey.bits(0, 15).eq(rights.pkey.bits(0, 15))
            & h.pkey.bits(0, 15).any()
            & (h.pkey.bit(15) | rights.pkey.bit(15));
        let same_addresses = later(
            c,
            "same_addresses",
            h.dest_gid.eq(addresses.src_gid) & h.source_gid.eq(addresses.dest_gid) & h.vlan.eq(rights.vlan),
        );
        let (refused_now, reason_now) = first_of(&[
            (!known_opcode, code(Reject::UnknownOpcode)),
            (beyond | !rights.valid, code(Reject::UnknownQp)),
            (
                !(request | responds)
                    | rights.transport.ne(mux(
                        h.raw,
                        lit(4, Transport::Raw.code().into()),
                        lit(4, Transport::Rc.code().into()),
                    )),
                code(Reject::WrongTransport),
            ),
            (mux(responds, !awaits, !receives), code(Reject::WrongQpState)),
            (halted, code(Reject::QpHalted)),
            (!same_addresses & !h.raw, code(Reject::WrongAddress)),
            (!same_pkey & !h.raw, code(Reject::BadPkey)),
        ]);
        let distance = h.psn - word.epsn;
        let sequence_now =
            mux(opens, word.open_send | word.open_write, mux(send, !word.open_send, !word.open_write));
        let grants = |right: u8| (rights.access & lit(8, u64::from(right))).any();
        let denied_now = (atomic & !grants(access::REMOTE_ATOMIC))
            | (write & !grants(access::REMOTE_WRITE))
            | (read & !grants(access::REMOTE_READ));
        let queues = QpQueuesBits::unpack(io.queues_word);
        let ring = (lit(16, 1) << queues.response_log_size).named("ring_size");
        let unanswered = word.res_head - Tx::from_bits(&(), io.tx_word).res_sent;
        let deep_now =
            keeps & (unanswered.ge(rights.max_dest_rd_atomic.extend(8)) | unanswered.extend(16).ge(ring));
        let short_now = takes_wqe & word.rq_next.eq(io.post_rq_word);
        let mtu = later(c, "mtu", lit(14, 128) << rights.path_mtu);
        let rule = |p: Payload| says(&format!("payload_{p:?}"), &|r| r.payload == p);
        let shape = (rule(Payload::Full) & h.length.eq(mtu))
            | (rule(Payload::Some) & h.length.any() & h.length.le(mtu))
            | (rule(Payload::Any) & h.length.le(mtu))
            | (rule(Payload::None) & h.length.none());
        let misshapen_now =
            !later(c, "shape", shape) | h.pad.ne((lit(2, 0) - h.length.bits(0, 2)).bits(0, 2));
        let length = h.length.extend(32);
        let further = later(c, "further", word.offset + length);
        let (before, after) = (mux(opens, lit(32, 0), word.offset), mux(opens, length, further));
        let total = mux(opens, h.dma_length, word.remaining);
        // messages end at 2^31 bytes; a first or middle packet must leave something for the last. All that the opcode chooses
        // from is compared beside its decoding
        let over = |name: &str, bytes: Sig| {
            later(c, &format!("{name}_over"), bytes.bit(31) & bytes.bits(0, 31).any())
        };
        let (asked_over, rest_over) = (over("asked", h.dma_length), over("rest", word.remaining));
        let wrong = |name: &str, over: Sig, total: Sig| {
            over | later(c, &format!("{name}_wrong"), mux(closes, total.ne(length), total.le(length)))
        };
        let bad_total_now = mux(
            write,
            mux(opens, wrong("asked", asked_over, h.dma_length), wrong("rest", rest_over, word.remaining)),
            mux(read, asked_over, !opens & over("further", further)),
        );
        let key_now = mux(opens, h.rkey, word.rkey);
        let at1 = in_last(phase.eq(1));
        let hold = |name: &str, value: Sig| {
            let r = reg(name, value.width());
            when(at1, || r.set(value));
            r
        };
        let e = Expect::regs(&(), "expect");
        when(at1, || e.assign(&word));
        let (refused, reason) = (hold("refused", refused_now), hold("reason", reason_now));
        let expected = hold("expected", distance.none() | h.raw);
        let duplicate = hold("duplicate", distance.msb() & !h.raw);
        let sequence = hold("out_of_sequence", sequence_now);
        let denied = hold("denied", denied_now);
        let not_ready = hold("not_ready", short_now);
        let misshapen = hold("misshapen", misshapen_now & !h.raw);
        let bad_total = hold("bad_total", bad_total_now);
        let (offset, offset_after) = (hold("offset", before), hold("offset_after", after));
        let key = hold("key", key_now);
        io.mr_address.set(if c.unhurried { key } else { key_now }.bits(8, c.mr_bits()));
        let va = hold("va", mux(opens, h.va, word.va));
        let asked = hold("asked", mux(atomic, lit(32, 8), total));
        let unaligned = hold("unaligned", atomic & h.va.bits(0, 3).any());
        let pd = hold("pd", rights.pd);
        let rnr_timer = hold("rnr_timer", rights.min_rnr_timer);
        let deep = hold("too_deep", deep_now);
        let in_rtr = hold("in_rtr", rights.state.eq(QpState::Rtr.code()));
        let shift = hold("log_path_mtu", rights.path_mtu + 7);
        let ring_base = hold("response_base", queues.response_base);
        let ring_log = hold("response_log_size", queues.response_log_size);
        // READs to look at for a duplicate
        let kept = word.res_kept.extend(16);
        let left = reg("left_to_search", 5);
        when(at1, || left.set(mux(ring.lt(kept), ring, kept).bits(0, 5)));
        let probe = reg("probe", RING);
        when(at1, || probe.set(word.res_head - 1));

        // what the opcode says, out of registers from here on
        let (send, write) = (hold("sends", send), hold("writes", write));
        let (read, atomic) = (hold("reads", read), hold("is_atomic", atomic));
        let (keeps, request) = (hold("keeps", keeps), hold("requests", request));
        let carries = hold("carries", responds & op.ne(Opcode::RcAcknowledge.code()));
        let responds = hold("responds", responds);
        let (opens, closes) = (hold("opened", opens), hold("closed", closes));
        let (immediate, invalidate) = (hold("with_imm", immediate), hold("with_inv", invalidate));
        let takes_wqe = hold("wants_wqe", takes_wqe);

        // clock 2: the key
        let entry = MrEntryBits::unpack(later(c, "entry_read", io.mr_word));
        let right = |r: u8| lit(8, u64::from(r));
        let wanted = mux(
            atomic,
            right(access::REMOTE_ATOMIC),
            mux(read, right(access::REMOTE_READ), right(access::REMOTE_WRITE)),
        );
        let reach = mr::reach(&entry, va, asked);
        let reach = Reach {
            offset: later(c, "offset_in_region", reach.offset),
            end: later(c, "access_end", reach.end),
            region_end: later(c, "region_end", reach.region_end),
        };
        let judged = mr::judge_reach(&entry, key, va, asked, reach, pd, wanted);
        let outside = key.bits(8 + c.mr_bits(), 24 - c.mr_bits()).any() & asked.any();
        let at2 = in_last(phase.eq(2));
        let (key_ok, key_reason) = (reg("key_ok", 1), reg("key_reason", 6));
        let (iova, relaxed) = (reg("iova", 64), reg("relaxed", 1));
        when(at2, || {
            // the driver maps pages, so what is aligned for the peer is for the bus; else no 8 bytes are written at once
            key_ok.set(judged.ok & !outside & !(atomic & judged.iova.bits(0, 3).any()));
            key_reason.set(mux(outside, code(Reject::RkeyUnknown), judged.reject));
            iova.set(judged.iova);
            relaxed.set(entry.relaxed_ordering);
        });
        // packets of a READ less one
        let span = reg("span", PSN);
        let longest = (later(c, "asked_less_one", asked - 1) >> shift).bits(0, PSN);
        when(at2, || span.set(mux(asked.any() & read, longest, lit(PSN, 0))));

        // a duplicate READ: one kept READ per clock
        let read_now = OwedRead::from_bits(&(), io.owed_word);
        let kept = later_all(c, &(), "kept_read", &read_now);
        let looks = in_last(searching);
        let packets_in = later(c, "packets_in_read", h.psn - read_now.first_psn);
        let offset_in = later(c, "offset_of_packets", packets_in.extend(32) << shift).named("offset_in_read");
        let hit = later(c, "hit", !psn_before(h.psn, kept.first_psn) & !psn_before(kept.last_psn, h.psn));
        let same = later(c, "same_key", h.rkey.eq(kept.rkey))
            & later(c, "same_va", sum_is(kept.va, offset_in.extend(64), h.va))
            & later(c, "same_end", sum_is(h.dma_length, offset_in, kept.length));
        let same = mux(atomic, kept.is_atomic, same & !kept.is_atomic);
        // taken behind the duplicate: what was kept for a lap of the PSNs is not
        let passes = later(c, "passes", (kept.first_psn - h.psn).lt(e.epsn - h.psn)).named("read_behind");
        search.set(at2 & duplicate & request & !refused & left.any());
        searched.set(mux(keeps, hit, !passes) | left.eq(1));
        let end = reg("acknowledged_end", PSN);
        when(at2, || end.set(e.epsn));
        when(looks & !keeps & passes, || end.set(kept.first_psn));
        let again_at = if c.unhurried { probe } else { mux(searching, probe - 1, probe) };
        io.owed_address.set(owed_address(c, ring_base, ring_log, again_at));
        let found = reg("found", 1);
        when(at2, || found.set(0));
        when(looks, || {
            found.set(hit & same);
            left.set(left - 1);
            when(!hit, || probe.set(probe - 1));
        });

        // clock 3: the verdict
        let at3 = in_last(phase.eq(3)).named("decide");
        // all of it but the key and the search is known since clock 1, and put together in the clock before
        let known = |name: &str, what: Sig| delay(name, what);
        let asks = !refused & request;
        let in_order = at3 & known("in_order", asks & expected);
        let (early, early_fault) = first_of(&[
            (sequence, code(Reject::OpcodeSequence)),
            (denied, code(Reject::AccessDenied)),
            (not_ready, mux(h.raw, code(Reject::RawNoReceive), code(Reject::ReceiverNotReady))),
            (deep, code(Reject::ReadDepth)),
            (misshapen | bad_total, code(Reject::BadLength)),
            (unaligned, code(Reject::AtomicAlignment)),
        ]);
        let (early, early_fault) = (known("early", early), known("early_fault", early_fault));
        let faulty = later(c, "faulty", early | (known("needs_key", write | keeps) & !key_ok));
        let fault = later(c, "fault", mux(early, early_fault, key_reason));
        let rnr = known("rnr", !sequence & !denied & not_ready);
        let access_fault = !early;
        let raw_under_way = reg_init("raw_under_way", index_width(self.raw_share() + 1), 0);
        let crowded = send & (!io.room | (h.raw & raw_under_way.eq(self.raw_share())));
        let accept = (in_order & !faulty & !crowded).named("accept");
        let nak = (in_order & faulty & !h.raw).named("nak");
        let new_raw = (accept & h.raw).named("new_raw");
        raw_under_way.set(
            raw_under_way + new_raw.extend(raw_under_way.width()) - io.raw_over.extend(raw_under_way.width()),
        );
        let fatal = (nak & !rnr).named("fatal");
        let again = asks & duplicate & !denied & !misshapen;
        let reack = (at3 & known("acknowledges_again", again & !keeps)).named("reack");
        let rewind = (at3 & known("reads_again", again & keeps) & found).named("rewind");
        let gap = asks & !expected & !duplicate;
        let nak_gap = (at3 & known("gap", gap & !e.nak_sent)).named("nak_gap");
        let answer = !refused & responds & !(carries & misshapen);
        let respond = (at3 & known("answer", answer)).named("respond");
        when(fence, || {
            response_valid.set(1);
            response.fence.set(1);
        });
        when(respond, || {
            response_valid.set(1);
            response.fence.set(0);
            response.length.set(mux(op.eq(Opcode::RcAtomicAcknowledge.code()), lit(14, 8), h.length));
            response.value.set(h.value);
            response.address.set(h.address);
            response.slot.set(h.slot);
            response.qp.set(qp);
            response.opcode.set(op);
            response.psn.set(h.psn);
            response.syndrome.set(h.syndrome);
            response.msn.set(h.msn);
        });
        let action = |a: Action| lit(ACTION, a.code());
        when(fence, || {
            verdict_valid.set(1);
            verdict.action.set(action(Action::Fence));
        });
        when(accept | nak | reack | rewind | nak_gap, || {
            verdict_valid.set(1);
            verdict.raw.set(h.raw);
            verdict.action.set(mux(
                accept,
                mux(
                    send,
                    action(Action::Send),
                    mux(
                        write,
                        action(Action::Write),
                        mux(read, action(Action::Respond), action(Action::Atomic)),
                    ),
                ),
                mux(reack, action(Action::Reack), mux(rewind, action(Action::Rewind), action(Action::Nak))),
            ));
            verdict.qp.set(qp);
            verdict.psn.set(mux(nak_gap, e.epsn, mux(reack, end - 1, h.psn)));
            verdict.ack_req.set(h.ack_req);
            verdict.first.set(opens);
            verdict.last.set(closes);
            verdict.fatal.set(fatal);
            verdict.establishes.set(accept & in_rtr & !e.touched & !h.raw);
            verdict.syndrome.set(mux(
                nak_gap,
                lit(8, NAK_SEQUENCE),
                mux(
                    rnr,
                    cat(&[lit(3, 1), rnr_timer]),
                    mux(access_fault, lit(8, NAK_ACCESS), lit(8, NAK_INVALID)),
                ),
            ));
            verdict.cause.set(cause(fault));
            verdict.iova.set(iova);
            verdict.relaxed.set(relaxed);
            verdict.key.set(mux(invalidate, h.imm.swap_bytes(), key));
            verdict.wqe_index.set(mux(
                keeps & !nak & !nak_gap,
                mux(rewind, probe, e.res_head).extend(INDEX),
                mux((accept & !takes_wqe) | fatal, e.rq_current, e.rq_next),
            ));
            verdict.uses_wqe.set(mux(accept, send | (immediate & closes), fatal & e.open_send));
            verdict.offset.set(offset);
            verdict.length.set(h.length);
            verdict.address.set(h.address);
            verdict.slot.set(h.slot);
            verdict.with_imm.set(immediate);
            verdict.with_inv.set(invalidate);
            verdict.solicited.set(h.solicited & closes);
            verdict.imm.set(h.imm);
        });

        // the slot goes with an accepted payload or a READ response; everything else is over here
        io.release_valid.set(at3 & !(accept & !keeps) & !(respond & carries));
        io.release_slot.set(h.slot);
        let gap_reason =
            mux(e.nak_sent, code(Reject::PsnOutOfSequenceRepeat), code(Reject::PsnOutOfSequence));
        // a faulty duplicate is dropped under the name of its fault
        let duplicate_reason = mux(
            denied,
            code(Reject::AccessDenied),
            mux(misshapen, code(Reject::BadLength), code(Reject::Duplicate)),
        );
        let counted = mux(
            refused,
            reason,
            mux(
                responds,
                code(Reject::BadLength),
                mux(
                    duplicate,
                    duplicate_reason,
                    mux(!expected, gap_reason, mux(faulty, fault, code(Reject::MissQueueFull))),
                ),
            ),
        );
        io.count.valid.set(at3 & !accept & !respond);
        io.count.index.set(counted);
        io.stall.set(rest & io.headers.valid & !free);
        let of = |e: TraceEvent| lit(8, e.code().into());
        let refuses = at3 & !accept & !respond;
        io.trace.assign(&Mark {
            event: mux(refuses, of(TraceEvent::Reject), of(TraceEvent::Check)),
            psn: h.psn,
            opcode: op,
            detail: mux(refuses, counted.extend(16), h.length.extend(16)),
            ..Mark::of(TraceEvent::Check, at3, qp)
        });

        // the own word
        let next = Expect::wires(&(), "next");
        next.assign(&e);
        when(accept, || {
            next.epsn.set(e.epsn + span + 1);
            next.msn.set(e.msn + closes.extend(PSN));
            next.nak_sent.set(0);
            next.touched.set(1);
            next.open_send.set(send & !closes);
            next.open_write.set(write & !closes);
            next.offset.set(offset_after);
            next.va.set(va + h.length.extend(64));
            next.rkey.set(key);
            next.remaining.set(asked - h.length.extend(32));
            when(takes_wqe, || {
                next.rq_next.set(e.rq_next + 1);
                next.rq_current.set(e.rq_next);
            });
            when(atomic, || next.atomics.set(e.atomics + 1));
            when(keeps, || {
                next.res_head.set(e.res_head + 1);
                next.res_kept.set(mux(e.res_kept.bit(4), e.res_kept, e.res_kept + 1));
            });
        });
        when(reack | rewind, || next.nak_sent.set(0));
        when(nak_gap | (nak & rnr), || next.nak_sent.set(1));
        when(fatal, || next.halt.set(1));
        let start = Expect::wires(&(), "start");
        start.assign_zero();
        let fresh = Expect { epsn: io.initialise.data.rq_psn, ..start };
        let clears = initialise & (io.initialise.data.receive | io.initialise.data.reset);
        io.expect_write.enable.set(clears | accept | reack | rewind | nak_gap | nak);
        io.expect_write.address.set(mux(rest, io.initialise.data.qp, qp));
        io.expect_write.data.set(mux(rest, fresh.to_bits(), next.to_bits()));

        // the READ or atomic, for segment and for its duplicates
        io.owed_write.enable.set(accept & keeps);
        io.owed_write.address.set(owed_address(c, ring_base, ring_log, e.res_head));
        let owed = OwedRead {
            index: e.res_head,
            first_psn: h.psn,
            last_psn: h.psn + span,
            va: h.va,
            rkey: h.rkey,
            length: h.dma_length,
            msn: e.msn + 1,
            is_atomic: atomic,
            number: e.atomics,
        };
        io.owed_write.data.set(owed.to_bits());
        let operands =
            Operands { iova, adds: op.eq(Opcode::RcFetchAdd.code()), value: h.value, compare: h.compare };
        io.operands_write.enable.set(accept & atomic);
        io.operands_write.address.set(owed_address(c, ring_base, ring_log, e.res_head));
        io.operands_write.data.set(operands.to_bits());
    }
}
