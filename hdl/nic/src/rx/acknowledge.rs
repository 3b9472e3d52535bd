//! Retires what the peer has answered, and decides when to send again or to give up.
//!
//! ```text
//! rest     a response, a fault, a confirmation, a kick or the next QP of the timer scan is taken; addresses go out
//! words    the QP's words are there; what the event says; a scan that finds nothing ends here
//! record   the record of the WQE that is looked at is read
//! walk     passing: one clock per WQE that the response answers, from `got_wqe` on; then
//!          retiring: one clock per WQE from `una_wqe` to `got_wqe`, with a CQE if signaled. At the first that is not: the
//!          word is written, schedule is woken. While both are the same WQE they move together
//! take     a READ response whose place that is: its payload goes to place
//! ```
//! An ACK that ends no WQE takes 4 clocks, one that ends n WQEs 4 + n (measured), a READ response 7; between two events
//! one QP is scanned (2 clocks, 5 if its timer acts). Stops only while complete or schedule refuse, and takes responses
//! only while `data` is free; everything else is taken even then. Never waits for host memory.
//!
//! * ACK n (una <= n < sent) answers every PSN up to n; older ones are stale, later ones unexpected: counted.
//! * NAK 0x60 at n answers what is before n, costs a retry and goes back to the oldest unanswered PSN (a new `epoch`).
//!   0x61..0x63 end the QP with the status that belongs to them. RNR costs an RNR retry (7: none, for ever) and waits by
//!   the timer table; RNR NAKs within the wait are ignored, a sequence NAK within it only answers.
//! * A READ response at n answers what is before n. It is taken if n is the oldest unanswered PSN, of a READ, and opcode
//!   and length are what that place demands; all others are dropped, named, their slots released by way of place.
//! * The result of an atomic is the READ response of 8 bytes of an atomic, with the value itself for place.
//! * Nothing but its own responses answers a READ. An ACK or a response behind one that is missing stops at it: an
//!   implied NAK, which costs a retry and goes back, once per gap (`implied`); after that the timer decides.
//! * A READ retires when place confirms that its data is in memory, so the CQEs are in order and never before the data.
//! * A local invalidate has no PSN and retires when place confirms it; it is the oldest then, and alone.
//! * A timeout costs a retry. With none left the oldest WQE completes with RETRY_EXC_ERR. Progress refills both counts.
//! * A fault (local, named by WQE) and a bad WQE (named by its record) complete in error when all before them retired.
//!   What ends the QP while READs still wait for their confirmation is kept as such a fault.
//! * One error CQE per QP, then `halt`; the rest is flushed by the driver.
//! * A READ of the peer that gather could not answer halts the QP without a CQE and raises an asynchronous event
//!   (QP_ACCESS_ERR for its key, else QP_FATAL). A QP that was in RTR then stays halted when it goes to RTS: the driver
//!   may not have seen the event yet.
//!
//! Timers are deadlines compared with `now`. A deadline is set T = 4.096 us * 2^code ahead (at most 2^38 clocks); the
//! scan makes one step after every event, 2 clocks each without events (128 clocks for 64 QPs, T of code 1 is 2048), so it
//! acts between T and 4T. Code 0 never acts.
//! `next_due` is the earliest deadline as of the last whole scan; `idle` says that this scan began after the last change
//! and that nothing is due or under way. A new epoch is made only if segment obeyed the last one, so that the 4-bit
//! number cannot lap it: a rewind not yet obeyed takes the newest triple anyhow. The fence of a teardown passes from
//! `response` to `data` in order.
//!
//! Requirements: ATOM ERR QPS READ REQ TIM

use crate::config::Config;
use crate::flow::{CAUSE, Completion, Count, Event, Fault, Response, Scatter, Wake};
use crate::prim::fifo::buffer;
use crate::qp::{
    DEADLINE, Initialise, READS, Record, Requester, StateShape, StateWrite, Tx, WINDOW, psn_before,
};
use contract::context::{QpQueuesBits, QpRightsBits};
use contract::timer::RNR_NS;
use contract::{AsyncEvent, EventKind, Opcode, QpState, Reject, StageCounter, WcOpcode, WcStatus};
use hdl::{
    Bits, Bundle, HwEnum, Module, Ports, Sig, Stream, any_of, constant, lit, low, mux, reg, reg_init, select,
    when,
};

/// Longest timeout in clocks, so that a 40-bit deadline is never ambiguous.
const LOG_LONGEST: u32 = 38;

/// What this stage may count.
pub const REJECTS: &[Reject] = &[
    Reject::QpHalted,
    Reject::ResponseStale,
    Reject::ResponseUnexpected,
    Reject::NakReserved,
    Reject::ResponseGap,
    Reject::ResponseMalformed,
];

/// The stage, for one card configuration.
#[derive(Clone, Debug)]
pub struct Acknowledge {
    /// Sizes.
    pub config: Config,
}

/// Ports of [`Acknowledge`].
#[derive(Ports)]
#[ports(Acknowledge)]
pub struct AcknowledgeIo {
    /// Acknowledgements, READ responses and the fence, from check.
    #[sink(c.config.clone())]
    pub response: Stream<Response>,
    /// Local faults, from gather.
    #[sink(c.config.clone())]
    pub fault: Stream<Fault>,
    /// From place, in order per QP: the data of a READ is in memory, or a key has ended (status 0), or cannot be.
    #[sink(c.config.clone())]
    pub placement: Stream<Fault>,
    /// Payload of READ responses and the fence, to place.
    #[source(c.config.clone())]
    pub data: Stream<Scatter>,
    /// Segment recorded a bad WQE: look at the records of the QP.
    #[sink(c.config.clone())]
    pub kick: Stream<Wake>,
    /// Starts a QP's `requester`.
    #[sink(c.config.clone())]
    pub initialise: Stream<Initialise>,
    /// Segment writes a `tx` word in this clock: a timer may have to start.
    #[input]
    pub sent: Sig,
    /// Core clocks since reset.
    #[input(64)]
    pub now: Sig,
    /// CQEs of the send side, in order per QP.
    #[source(c.config.clone())]
    pub completion: Stream<Completion>,
    /// Asynchronous events (EQ 0).
    #[source(c.config.clone())]
    pub event: Stream<Event>,
    /// The QP may go on: its window moved, it was rewound, or its wait is over. Comes after the write of the word.
    #[source(c.config.clone())]
    pub wake: Stream<Wake>,
    /// Address of every per-QP word below.
    #[output(c.config.qp_bits())]
    pub qp_address: Sig,
    /// [`Tx`].
    #[input(Tx::total_width(&()))]
    pub tx_word: Sig,
    /// [`Requester`], the own word.
    #[input(Requester::total_width(&()))]
    pub requester_word: Sig,
    /// `contract::QpRights`.
    #[input(QpRightsBits::BITS)]
    pub rights_word: Sig,
    /// `contract::QpQueues`.
    #[input(QpQueuesBits::BITS)]
    pub queues_word: Sig,
    /// Write of the own word.
    #[output(StateShape::per_qp::<Requester>(&c.config))]
    pub requester_write: StateWrite,
    /// Address of the record memory.
    #[output(c.config.record_bits())]
    pub record_address: Sig,
    /// [`Record`], one clock later.
    #[input(Record::total_width(&()))]
    pub record_word: Sig,
    /// Refused responses (`contract::Reject`).
    #[output]
    pub count: Count,
    /// Timeouts and RNR waits (`contract::StageCounter`).
    #[output]
    pub stage_count: Count,
    /// Earliest deadline, low bits of `now`.
    #[output(DEADLINE)]
    pub next_due: Sig,
    /// There is one.
    #[output]
    pub next_due_valid: Sig,
    /// Nothing is under way or due, and `next_due` is up to date.
    #[output]
    pub idle: Sig,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Rest,
    Words,
    Record,
    Walk,
    Take,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Response,
    Fault,
    Placement,
    Kick,
    Scan,
}

impl Acknowledge {
    /// Clocks of an RNR wait, rounded up, for each timer code.
    fn rnr_clocks(&self) -> Vec<Sig> {
        RNR_NS
            .iter()
            .map(|ns| {
                let clocks = (u128::from(*ns) * u128::from(self.config.core_clock_khz)).div_ceil(1_000_000);
                constant(Bits::new(DEADLINE, clocks.min(1 << LOG_LONGEST)))
            })
            .collect()
    }
    /// Clocks of a transport timeout for each code.
    fn timeout_clocks(&self) -> Vec<Sig> {
        (0..32)
            .map(|code| {
                let clocks = u128::from(self.config.ticks_per_4096ns) << code;
                constant(Bits::new(DEADLINE, clocks.min(1 << LOG_LONGEST)))
            })
            .collect()
    }
}

impl Module for Acknowledge {
    type Io = AcknowledgeIo;
    fn name(&self) -> String {
        format!("acknowledge_{}", self.config.name)
    }
    fn doc(&self) -> String {
        "Retires answered WQEs, hands READ data to place; timers, retries, errors of the send side.".into()
    }
    fn body(&self, io: &AcknowledgeIo) {
        let c = &self.config;
        let phase = reg_init("phase", Phase::width(), Phase::Rest.code());
        let to = |p: Phase| phase.set(p.code());
        let source = reg("source", Source::width());
        let qp = reg("qp", c.qp_bits());
        let scan_qp = reg_init("scan_qp", c.qp_bits(), 0);
        let scan_next = reg_init("scan_next", 1, 0);
        let wake_valid = reg_init("wake_valid_q", 1, 0);
        let wake_qp = reg("wake_qp_q", c.qp_bits());
        io.wake.valid.set(wake_valid);
        io.wake.data.qp.set(wake_qp);
        let done = Stream::<Completion>::wires(c, "done");
        let out = buffer("completions", c, 4, &done);
        io.completion.take(&out);
        let data_valid = reg_init("data_valid_q", 1, 0);
        let data = Scatter::regs(c, "data_q");
        io.data.valid.set(data_valid);
        io.data.data.assign(&data);
        when(data_valid & io.data.ready, || data_valid.set(0));

        // rest: an event and one step of the scan take turns
        let resting = phase.eq(Phase::Rest.code()).named("resting");
        let raise = Stream::<Event>::wires(c, "raise");
        let raised = buffer("events", c, 2, &raise);
        io.event.take(&raised);
        let free = ((!wake_valid | io.wake.ready) & raise.ready).named("free");
        let initialise = resting & io.initialise.valid;
        let open = (resting & free & !io.initialise.valid).named("open");
        let responds = io.response.valid & (!data_valid | io.data.ready);
        let waiting_event =
            (responds | io.fault.valid | io.placement.valid | io.kick.valid).named("event_waits");
        let event = (open & waiting_event & !scan_next).named("take_event");
        let scan = (open & !(waiting_event & !scan_next)).named("take_scan");
        io.initialise.ready.set(resting);
        // confirmations first: their number is bounded by the responses taken
        let turn = open & !scan_next;
        io.placement.ready.set(turn);
        io.response.ready.set(turn & !io.placement.valid & (!data_valid | io.data.ready));
        io.fault.ready.set(turn & !io.placement.valid & !responds);
        io.kick.ready.set(turn & !io.placement.valid & !responds & !io.fault.valid);
        let chosen = mux(
            scan,
            scan_qp,
            mux(
                io.placement.valid,
                io.placement.data.qp,
                mux(responds, io.response.data.qp, mux(io.fault.valid, io.fault.data.qp, io.kick.data.qp)),
            ),
        )
        .named("chosen");
        io.qp_address.set(chosen);
        let response = Response::regs(c, "response_q");
        let fault = Fault::regs(c, "fault_q");
        when(wake_valid & io.wake.ready, || wake_valid.set(0));
        let fence = (event & !io.placement.valid & responds & io.response.data.fence).named("take_fence");
        when(event | scan, || {
            when(!fence, || to(Phase::Words));
            qp.set(chosen);
            response.assign(&io.response.data);
            fault.assign(&io.placement.data.or_else(c, io.placement.valid, &io.fault.data));
            scan_next.set(event);
        });
        when(fence, || {
            data_valid.set(1);
            data.fence.set(1);
        });
        when(scan, || {
            source.set(Source::Scan.code());
            scan_qp.set(scan_qp + 1);
        })
        .elif(io.placement.valid, || source.set(Source::Placement.code()))
        .elif(responds, || source.set(Source::Response.code()))
        .elif(io.fault.valid, || source.set(Source::Fault.code()))
        .otherwise(|| source.set(Source::Kick.code()));

        // words: the event
        let words = phase.eq(Phase::Words.code()).named("words");
        let t = Tx::from_bits(&(), io.tx_word);
        let r = Requester::from_bits(&(), io.requester_word);
        let rights = QpRightsBits::unpack(io.rights_word);
        let queues = QpQueuesBits::unpack(io.queues_word);
        let now = io.now.bits(0, DEADLINE);
        let sends = QpState::ALL.iter().filter(|s| matches!(s, QpState::Rts | QpState::Sqd));
        let sends = any_of(&sends.map(|s| rights.state.eq(s.code())).collect::<Vec<_>>());
        let alive = (rights.valid & sends & !r.halt).named("alive");
        let timed = rights.timeout.any();
        let reload = now + select(rights.timeout, &self.timeout_clocks());
        let behind = t.sent_psn - r.una_psn;
        let outstanding = behind.any().named("outstanding");
        // a rewind that segment has not obeyed yet will take the newest triple
        let rewound = mux(r.epoch.eq(t.epoch), r.epoch + 1, r.epoch);

        let is = |s: Source| words & source.eq(s.code());
        let answer = is(Source::Response);
        let opcode_is = |o: Opcode| response.opcode.eq(u64::from(o.code()));
        let payload = (!opcode_is(Opcode::RcAcknowledge)).named("is_read_response");
        let middle = opcode_is(Opcode::RcReadResponseMiddle);
        let (kind, value) = (response.syndrome.bits(5, 2), response.syndrome.bits(0, 5));
        let top = response.syndrome.bit(7);
        let positive = !top & kind.eq(0);
        let ack = positive & !payload;
        let rnr = !top & kind.eq(1) & !payload;
        let sequence = !top & kind.eq(3) & value.eq(0) & !payload;
        let fatal = !top & kind.eq(3) & value.any() & value.lt(4) & !payload;
        let reserved = mux(payload, !middle & !positive, !(ack | rnr | sequence | fatal));
        let inside = (response.psn - r.una_psn).lt(behind);
        let ignored_rnr = rnr & r.waiting;
        let valid = (answer & alive & !reserved & inside & !ignored_rnr).named("valid_answer");
        let claim_now = mux(ack, response.psn + 1, response.psn).named("claim_now");
        let due = (r.armed & !(now - r.deadline).msb()).named("due");
        let scanned = is(Source::Scan);
        let timeout_now = (scanned & alive & due & !r.waiting & outstanding).named("timeout_now");
        let rnr_over_now = (scanned & alive & due & r.waiting).named("rnr_over_now");

        // what the event says, kept until the walk has told how far it reaches
        let w = Requester::regs(&(), "work");
        let keep = |name: &str, value: Sig| {
            let kept = reg(name, value.width());
            when(words, || kept.set(value));
            kept
        };
        let told = is(Source::Placement);
        let confirmed = told & fault.status.none();
        let key_ended = (confirmed & fault.invalidates).named("key_ended");
        let claims = keep("claims", valid);
        let claim = keep("claim", mux(answer, claim_now, r.una_psn));
        let claim_moves = keep("claim_moves", valid & claim_now.ne(r.una_psn));
        let is_payload = keep("is_payload", valid & payload);
        let may_imply = keep("may_imply", valid & (payload | ack));
        let is_sequence = keep("is_sequence", valid & sequence);
        let is_fatal = keep("is_fatal", valid & fatal);
        let is_rnr = keep("is_rnr", valid & rnr);
        let nak_code = keep("nak_code", value);
        let timeout = keep("timeout", timeout_now);
        let rnr_over = keep("rnr_over", rnr_over_now);
        let rewound = keep("rewound", rewound);
        let deadline = keep("new_deadline", reload);
        let rnr_end = keep("rnr_end", now + select(value, &self.rnr_clocks()));
        let timed_q = keep("timed_q", timed);
        let sent = keep("sent_psn", t.sent_psn);
        let assigned = keep("assigned", t.assigned);
        let retry_cnt = keep("retry_cnt", rights.retry_cnt);
        let rnr_retry = keep("rnr_retry", rights.rnr_retry);
        let line_base = keep("record_base", queues.record_base.resize(c.record_bits()));
        let line_mask = keep("record_mask", (lit(16, 1) << queues.record_log_size) - 1);
        let read_base = keep("read_base", queues.read_base);
        let read_mask = keep("read_mask", (lit(READS, 1) << queues.read_log_size) - 1);
        let shift = keep("log_path_mtu", rights.path_mtu + 7);
        let cqn = keep("cqn", queues.send_cqn.bits(0, c.cq_bits()));
        let passing = keep("passing", valid | key_ended);
        // in this walk: something was answered, something retired, the claim stopped at a READ
        let moved = keep("moved", low());
        let retired = keep("retired", low());
        let stopped = keep("stopped", low());

        let began = Requester::wires(&(), "began");
        began.assign(&r);
        let start_timer = scanned & alive & !r.armed & outstanding & timed;
        when(start_timer, || {
            began.armed.set(1);
            began.deadline.set(reload);
        });
        let stop_timer = scanned & r.armed & (!alive | (due & !r.waiting & !outstanding));
        when(stop_timer, || {
            began.armed.set(0);
            began.waiting.set(0);
        });
        let ahead = !(fault.wqe_index - r.una_wqe).msb();
        let older = !r.fault | (fault.wqe_index - r.fault_wqe).msb();
        // a READ of the peer: a QP that never came to RTS has them, too
        let ends_qp = (is(Source::Fault) & fault.responds & rights.valid & !r.halt).named("ends_qp");
        when(ends_qp, || {
            began.halt.set(1);
            began.armed.set(0);
            began.waiting.set(0);
        });
        raise.valid.set(ends_qp);
        raise.data.assign(&Event {
            eq: lit(c.eq_bits(), 0),
            kind: lit(8, u64::from(EventKind::Async.code())),
            event: mux(
                fault.status.eq(u64::from(WcStatus::RemAccessErr.code())),
                lit(8, u64::from(AsyncEvent::QpAccessErr.code())),
                lit(8, u64::from(AsyncEvent::QpFatal.code())),
            ),
            object: qp.extend(24),
        });
        let fault_now = ((is(Source::Fault) & !fault.responds) | told) & !confirmed;
        when(fault_now & alive & ahead & older, || {
            began.fault.set(1);
            began.fault_wqe.set(fault.wqe_index);
            began.fault_status.set(fault.status);
            began.fault_cause.set(fault.cause);
        });
        when(confirmed & !key_ended, || began.rd_placed.set(r.rd_placed + 1));
        when(words, || w.assign(&began));
        let acts = timeout_now | rnr_over_now | start_timer | stop_timer;
        let dead = !alive & !scanned;
        when(words, || {
            when((scanned & !acts) | (dead & !ends_qp) | (answer & !valid), || to(Phase::Rest))
                .otherwise(|| to(Phase::Record));
        });
        io.stage_count.valid.set(timeout_now | (valid & rnr));
        io.stage_count.index.set(mux(
            timeout_now,
            lit(6, u64::from(StageCounter::TimeoutEvents.code())),
            lit(6, u64::from(StageCounter::RnrEvents.code())),
        ));

        // walk: how far the claim reaches
        let status = |s: WcStatus| lit(8, u64::from(s.code()));
        let record = Record::from_bits(&(), io.record_word);
        let walking = phase.eq(Phase::Walk.code()).named("walking");
        let together = w.una_wqe.eq(w.got_wqe).named("together");
        let has = mux(passing, w.got_wqe, w.una_wqe).ne(assigned).named("has");
        let frontier = mux(moved, w.got_first, w.una_psn).named("frontier");
        let covered = has & psn_before(record.last_psn, mux(passing, claim, w.una_psn));
        let faulted = (w.fault & w.una_wqe.eq(w.fault_wqe)).named("faulted");
        let bad = together & covered & record.status.any();
        let pass =
            (walking & passing & covered & record.status.none() & !record.is_read & !(together & faulted))
                .named("pass");
        let stop = (walking & passing & !pass).named("stop");
        let at_read = has & record.is_read;
        let short = (at_read & claim.ne(frontier)).named("stops_at_read");
        let takes = (stop & is_payload & at_read & !short).named("takes");
        let leave = (stop & !takes).named("leave");
        let una = mux(passing, mux(short, frontier, claim), w.una_psn).named("una");
        let blocked = mux(passing, short, stopped).named("blocked");
        let in_memory = !record.is_read | w.rd_placed.ne(w.rd_retired);
        let retire = (walking & !passing & !together & !faulted & in_memory).named("retire");

        // what follows from it
        let ends = (walking & ((leave & together) | (!passing & !retire))).named("ends");
        let progress = mux(blocked, moved, moved | claim_moves).named("progress");
        let retries = mux(progress, retry_cnt, w.retries).named("retries_left");
        let rnr_retries = mux(progress, rnr_retry, w.rnr_retries).named("rnr_retries_left");
        let implied = (blocked & may_imply & !w.waiting & (progress | !w.implied)).named("implied_nak");
        let retry = ((is_sequence & !w.waiting) | timeout | implied).named("retry");
        let exhausted = (retry & retries.none()).named("exhausted");
        let rnr_exhausted = (is_rnr & rnr_retries.none()).named("rnr_exhausted");
        let next = Requester::wires(&(), "next");
        next.assign(&w);
        let fails = hdl::wire("fails", 8);
        fails.set(0);
        when(claims, || {
            next.una_psn.set(una);
            next.retries.set(retries);
            next.rnr_retries.set(rnr_retries);
            when(is_fatal, || {
                fails.set(lit(8, u64::from(WcStatus::RemInvReqErr.code()) - 1) + nak_code.extend(8));
            });
        });
        when(progress, || {
            next.implied.set(0);
            when(!w.waiting, || {
                next.armed.set(timed_q & una.ne(sent));
                next.deadline.set(deadline);
            });
        });
        when(implied, || next.implied.set(1));
        when(retry, || {
            next.retries.set(retries - 1);
            next.epoch.set(rewound);
            next.armed.set(timed_q);
            next.deadline.set(deadline);
        });
        when(exhausted, || {
            next.retries.set(0);
            next.epoch.set(w.epoch);
            fails.set(status(WcStatus::RetryExcErr));
        });
        when(is_rnr, || {
            next.rnr_retries.set(mux(rnr_retries.all(), rnr_retries, rnr_retries - 1));
            next.waiting.set(1);
            next.armed.set(1);
            next.deadline.set(rnr_end);
        });
        when(rnr_exhausted, || {
            next.rnr_retries.set(0);
            next.waiting.set(0);
            next.armed.set(0);
            fails.set(status(WcStatus::RnrRetryExcErr));
        });
        when(rnr_over, || {
            // the transport timer starts anew at the next scan
            next.waiting.set(0);
            next.armed.set(0);
            next.epoch.set(rewound);
        });

        let error_status = mux(
            bad,
            record.status,
            mux(together & has & fails.any(), fails, mux(faulted, w.fault_status, lit(8, 0))),
        )
        .named("error_status");
        // what the peer says has no cause here
        let error_cause = mux(
            bad,
            record.length.bits(0, CAUSE),
            mux(together & has & fails.any(), lit(CAUSE, 0), w.fault_cause),
        );
        let error = (ends & error_status.any() & !w.halt).named("error");
        // READs before it are still being written
        let postpone = fails.any() & !together & (!w.fault | (w.got_wqe - w.fault_wqe).msb());
        when(postpone, || {
            next.fault.set(1);
            next.fault_wqe.set(w.got_wqe);
            next.fault_status.set(fails);
            next.fault_cause.set(0);
        });
        when(error, || {
            next.halt.set(1);
            next.armed.set(0);
            next.waiting.set(0);
        });

        let succeeds = ((pass & together) | retire).named("succeeds");
        done.valid.set((succeeds & record.signaled) | error);
        done.data.assign(&Completion {
            cq: cqn,
            qp,
            wqe_index: w.una_wqe,
            opcode: mux(has, record.opcode, lit(8, 0)),
            status: mux(error, error_status, lit(8, 0)),
            byte_len: record.length,
            imm: lit(32, 0),
            with_imm: low(),
            with_inv: low(),
            cause: mux(error, error_cause, lit(CAUSE, 0)),
            solicited: low(),
        });
        let free_to_go = !record.signaled | done.ready;
        let passes = (pass & (!together | free_to_go)).named("passes");
        let retires = (succeeds & free_to_go).named("retires");
        let end = (ends & (!error | done.ready)).named("walk_over");
        let got = mux(passes, w.got_wqe + 1, w.got_wqe);
        let una_wqe = mux(retires, w.una_wqe + 1, w.una_wqe);
        let on_got = passing & !leave;
        let index = mux(on_got, got, una_wqe);
        io.record_address.set(line_base + (index & line_mask).resize(c.record_bits()));
        when(phase.eq(Phase::Record.code()), || to(Phase::Walk));
        when(passes, || {
            w.got_wqe.set(got);
            w.got_first.set(record.last_psn + 1);
            moved.set(1);
        });
        when(retires, || {
            w.una_wqe.set(una_wqe);
            w.rd_retired.set(w.rd_retired + record.is_read.extend(READS));
            retired.set(1);
        });
        when(takes, || to(Phase::Take));
        when(leave, || {
            w.una_psn.set(una);
            stopped.set(short);
            passing.set(0);
            when(!together, || to(Phase::Record));
        });
        when(end, || {
            to(Phase::Rest);
            when((progress | retry | rnr_over | retired) & !error, || {
                wake_valid.set(1);
                wake_qp.set(qp);
            });
        });

        // take: does the payload fit its place?
        let taking = phase.eq(Phase::Take.code()).named("taking");
        let position = (claim - w.got_first).named("position");
        let offset = (position.extend(32) << shift).named("offset");
        let ends_read = claim.eq(record.last_psn).named("ends_read");
        let ends_request = ends_read | position.eq(WINDOW - 1);
        let wanted = mux(ends_read, record.length - offset, lit(32, 1) << shift);
        let is_value = opcode_is(Opcode::RcAtomicAcknowledge);
        let closes = opcode_is(Opcode::RcReadResponseLast) | opcode_is(Opcode::RcReadResponseOnly) | is_value;
        let of = |o: WcOpcode| record.opcode.eq(u64::from(o.code()));
        let of_atomic = of(WcOpcode::CompSwap) | of(WcOpcode::FetchAdd);
        let fits = closes.eq(ends_request) & response.length.extend(32).eq(wanted) & is_value.eq(of_atomic);
        let fits = fits.named("fits");
        when(taking, || {
            passing.set(0);
            w.una_psn.set(claim);
            to(Phase::Record);
        });
        when(taking & fits, || {
            moved.set(1);
            w.una_psn.set(claim + 1);
            when(ends_read, || {
                w.got_wqe.set(w.got_wqe + 1);
                w.got_first.set(claim + 1);
                w.rd_got.set(w.rd_got + 1);
            });
        });
        let unwanted = (answer & !valid & payload) | (leave & is_payload);
        when(unwanted | taking, || {
            data_valid.set(1);
            data.assign(&Scatter {
                fence: low(),
                discard: !(taking & fits),
                is_value,
                value: response.value,
                qp,
                entry: (read_base + (w.rd_got & read_mask).extend(16)).bits(0, c.read_bits()),
                offset,
                length: response.length,
                address: response.address,
                slot: response.slot,
                wqe_index: w.got_wqe,
                last: ends_read,
            });
        });

        // what is dropped
        let refusal = |r: Reject| lit(6, u64::from(r.code()));
        let misfit = (taking & !fits) | (leave & is_payload & !short);
        let gap = leave & short & may_imply;
        io.count.valid.set((answer & !valid) | misfit | gap);
        io.count.index.set(mux(
            misfit,
            refusal(Reject::ResponseMalformed),
            mux(
                gap,
                refusal(Reject::ResponseGap),
                mux(
                    !alive,
                    refusal(Reject::QpHalted),
                    mux(
                        reserved,
                        refusal(Reject::NakReserved),
                        mux(
                            inside | psn_before(response.psn, r.una_psn),
                            refusal(Reject::ResponseStale),
                            refusal(Reject::ResponseUnexpected),
                        ),
                    ),
                ),
            ),
        ));

        // QPs that ended by a READ of the peer
        let answers_over = reg_init("answers_over", c.qps, 0);
        let start = Requester::wires(&(), "start");
        start.assign_zero();
        let i = &io.initialise.data;
        let fresh = Requester {
            una_psn: i.sq_psn,
            got_first: i.sq_psn,
            retries: i.retry_cnt,
            rnr_retries: i.rnr_retry,
            halt: answers_over.bit_at(i.qp) & !(i.receive | i.reset),
            ..start
        };
        let clears = (initialise & (i.send | i.reset)).named("clears");
        let anew = i.receive | i.reset;
        let bit = |valid: Sig, qp: Sig| valid.extend(c.qps) << qp;
        answers_over.set((answers_over | bit(ends_qp, qp)) & !bit(initialise & anew, i.qp));
        io.requester_write.enable.set(clears | end);
        io.requester_write.address.set(mux(resting, i.qp, qp));
        io.requester_write.data.set(mux(resting, fresh.to_bits(), next.to_bits()));

        // the earliest deadline of a whole scan
        let (best, best_valid) = (reg("best", DEADLINE), reg_init("best_valid", 1, 0));
        let (next_due, next_due_valid) = (reg("next_due_q", DEADLINE), reg_init("next_due_valid_q", 1, 0));
        // two wraps of the scan after a change, a whole scan has begun and ended behind it
        let stale = reg_init("stale", 2, 2);
        let better = r.armed & (!best_valid | (r.deadline - best).msb());
        let least = mux(better, r.deadline, best);
        let wraps = scanned & scan_qp.none();
        when(scanned, || {
            best.set(least);
            best_valid.set(best_valid | r.armed);
        });
        when(wraps, || {
            best_valid.set(0);
            next_due.set(least);
            next_due_valid.set(best_valid | r.armed);
            stale.set(mux(stale.any(), stale - 1, stale));
        });
        when(io.requester_write.enable | io.sent, || stale.set(2));
        io.next_due.set(next_due);
        io.next_due_valid.set(next_due_valid);
        let passed = next_due_valid & !(now - next_due).msb();
        let watching = resting | scanned;
        io.idle.set(
            watching
                & !waiting_event
                & !io.response.valid
                & !data_valid
                & !io.initialise.valid
                & !wake_valid
                & !out.valid
                & !raised.valid
                & stale.none()
                & !passed,
        );
    }
}
