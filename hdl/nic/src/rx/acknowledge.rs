//! Retires what the peer has acknowledged, and decides when to send again or to give up.
//!
//! ```text
//! rest     a response, a fault, a kick or the next QP of the timer scan is taken; addresses go out
//! words    the QP's words are there; what the event means for `requester`; a scan that finds nothing ends here
//! record   the record of the oldest WQE is read
//! retire   one clock per WQE: retired (with a CQE if signaled or bad) or not; at the first that is not: the word is
//!          written, schedule is woken
//! ```
//! An ACK that ends no WQE takes 4 clocks, one that ends n WQEs 4 + n (measured); between two events one QP is scanned
//! (2 clocks, 5 if its timer acts). Stops only while complete or schedule refuse; never waits for host memory.
//!
//! * ACK n (una <= n < sent) acknowledges every PSN up to n; older ones are stale, later ones unexpected: counted.
//! * NAK 0x60 at n acknowledges what is before n, costs a retry and goes back to n (a new `epoch`). 0x61..0x63 end the
//!   QP with the status that belongs to them. RNR costs an RNR retry (7: none, for ever) and waits by the timer table;
//!   RNR NAKs within the wait are ignored, a sequence NAK within it only acknowledges.
//! * A timeout costs a retry. With none left the oldest WQE completes with RETRY_EXC_ERR. Progress refills both counts.
//! * A fault (local, named by WQE) and a bad WQE (named by its record) complete in error when all before them retired.
//! * One error CQE per QP, then `halt`; the rest is flushed by the driver.
//! * A READ of the peer that gather could not answer halts the QP without a CQE and raises an asynchronous event
//!   (QP_ACCESS_ERR for its key, else QP_FATAL).
//!
//! Timers are deadlines compared with `now`. A deadline is set T = 4.096 us * 2^code ahead (at most 2^38 clocks); the
//! scan makes one step after every event, 2 clocks each without events (128 clocks for 64 QPs, T of code 1 is 2048), so it
//! acts between T and 4T. Code 0 never acts.
//! `next_due` is the earliest deadline as of the last whole scan; `idle` says that this scan began after the last change
//! and that nothing is due or under way. A new epoch is made only if segment obeyed the last one, so that the 4-bit
//! number cannot lap it: a rewind not yet obeyed takes the newest triple anyhow.

use crate::config::Config;
use crate::flow::{Completion, Count, Event, Fault, Response, Wake};
use crate::prim::fifo::buffer;
use crate::qp::{DEADLINE, Initialise, Record, Requester, StateShape, StateWrite, Tx, psn_before};
use contract::context::{QpQueuesBits, QpRightsBits};
use contract::timer::RNR_NS;
use contract::{AsyncEvent, EventKind, QpState, Reject, StageCounter, WcStatus};
use hdl::{
    Bits, Bundle, HwEnum, Module, Ports, Sig, Stream, any_of, constant, lit, low, mux, reg, reg_init, select,
    when,
};

/// Longest timeout in clocks, so that a 40-bit deadline is never ambiguous.
const LOG_LONGEST: u32 = 38;

/// What this stage may count.
pub const REJECTS: &[Reject] =
    &[Reject::QpHalted, Reject::ResponseStale, Reject::ResponseUnexpected, Reject::NakReserved];

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
    /// Acknowledgements, from check.
    #[sink(c.config.clone())]
    pub response: Stream<Response>,
    /// Local faults, from gather.
    #[sink(c.config.clone())]
    pub fault: Stream<Fault>,
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
    Retire,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Response,
    Fault,
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
        "Retires acknowledged WQEs; timers, retries, errors of the send side.".into()
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

        // rest: an event and one step of the scan take turns
        let resting = phase.eq(Phase::Rest.code()).named("resting");
        let raise = Stream::<Event>::wires(c, "raise");
        let raised = buffer("events", c, 2, &raise);
        io.event.take(&raised);
        let free = ((!wake_valid | io.wake.ready) & raise.ready).named("free");
        let initialise = resting & io.initialise.valid;
        let open = (resting & free & !io.initialise.valid).named("open");
        let waiting_event = (io.response.valid | io.fault.valid | io.kick.valid).named("event_waits");
        let event = (open & waiting_event & !scan_next).named("take_event");
        let scan = (open & !(waiting_event & !scan_next)).named("take_scan");
        io.initialise.ready.set(resting);
        io.response.ready.set(open & !scan_next);
        io.fault.ready.set(open & !scan_next & !io.response.valid);
        io.kick.ready.set(open & !scan_next & !io.response.valid & !io.fault.valid);
        let chosen = mux(
            scan,
            scan_qp,
            mux(
                io.response.valid,
                io.response.data.qp,
                mux(io.fault.valid, io.fault.data.qp, io.kick.data.qp),
            ),
        )
        .named("chosen");
        io.qp_address.set(chosen);
        let response = Response::regs(c, "response_q");
        let fault = Fault::regs(c, "fault_q");
        when(wake_valid & io.wake.ready, || wake_valid.set(0));
        when(event | scan, || {
            to(Phase::Words);
            qp.set(chosen);
            response.assign(&io.response.data);
            fault.assign(&io.fault.data);
            scan_next.set(event);
        });
        when(scan, || {
            source.set(Source::Scan.code());
            scan_qp.set(scan_qp + 1);
        })
        .elif(io.response.valid, || source.set(Source::Response.code()))
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
        let (kind, value) = (response.syndrome.bits(5, 2), response.syndrome.bits(0, 5));
        let top = response.syndrome.bit(7);
        let ack = !top & kind.eq(0);
        let rnr = !top & kind.eq(1);
        let sequence = !top & kind.eq(3) & value.eq(0);
        let fatal = !top & kind.eq(3) & value.any() & value.lt(4);
        let reserved = !(ack | rnr | sequence | fatal);
        let inside = (response.psn - r.una_psn).lt(behind);
        let ignored_rnr = rnr & r.waiting;
        let valid = (answer & alive & !reserved & inside & !ignored_rnr).named("valid_answer");
        let una = mux(ack, response.psn + 1, response.psn).named("una");
        let progress = (valid & una.ne(r.una_psn)).named("progress");
        let retries = mux(progress, rights.retry_cnt, r.retries).named("retries_left");
        let rnr_retries = mux(progress, rights.rnr_retry, r.rnr_retries).named("rnr_retries_left");
        let due = (r.armed & !(now - r.deadline).msb()).named("due");
        let scanned = is(Source::Scan);
        let timeout = (scanned & alive & due & !r.waiting & outstanding).named("timeout");
        let rnr_over = (scanned & alive & due & r.waiting).named("rnr_over");
        let retry = ((valid & sequence & !r.waiting) | timeout).named("retry");
        let exhausted = (retry & retries.none()).named("exhausted");
        let wait = (valid & rnr).named("rnr");
        let rnr_exhausted = (wait & rnr_retries.none()).named("rnr_exhausted");

        let w = Requester::regs(&(), "work");
        let pending = reg("pending_status", 8);
        let wakes = reg("wakes", 1);
        let assigned = reg("assigned", t.assigned.width());
        let line_base = reg("record_base", c.record_bits());
        let line_mask = reg("record_mask", 16);
        let cqn = reg("cqn", c.cq_bits());
        let next = Requester::wires(&(), "next");
        next.assign(&r);
        let status = |s: WcStatus| lit(8, u64::from(s.code()));
        let fails = hdl::wire("fails", 8);
        fails.set(0);
        when(valid, || {
            next.una_psn.set(una);
            next.retries.set(retries);
            next.rnr_retries.set(rnr_retries);
            when(!r.waiting, || {
                next.armed.set(timed & una.ne(t.sent_psn));
                next.deadline.set(reload);
            });
            when(fatal, || fails.set(lit(8, u64::from(WcStatus::RemInvReqErr.code()) - 1) + value.extend(8)));
        });
        when(retry, || {
            next.retries.set(retries - 1);
            next.epoch.set(rewound);
            next.armed.set(timed);
            next.deadline.set(reload);
        });
        when(exhausted, || {
            next.retries.set(0);
            next.epoch.set(r.epoch);
            fails.set(status(WcStatus::RetryExcErr));
        });
        when(wait, || {
            next.rnr_retries.set(mux(rnr_retries.all(), rnr_retries, rnr_retries - 1));
            next.waiting.set(1);
            next.armed.set(1);
            next.deadline.set(now + select(value, &self.rnr_clocks()));
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
        let start_timer = scanned & alive & !r.armed & outstanding & timed;
        when(start_timer, || {
            next.armed.set(1);
            next.deadline.set(reload);
        });
        let stop_timer = scanned & r.armed & (!alive | (due & !r.waiting & !outstanding));
        when(stop_timer, || {
            next.armed.set(0);
            next.waiting.set(0);
        });
        let ahead = !(fault.wqe_index - r.una_wqe).msb();
        let older = !r.fault | (fault.wqe_index - r.fault_wqe).msb();
        // a READ of the peer: a QP that never came to RTS has them, too
        let ends = (is(Source::Fault) & fault.responds & rights.valid & !r.halt).named("ends_qp");
        when(ends, || {
            next.halt.set(1);
            next.armed.set(0);
            next.waiting.set(0);
        });
        raise.valid.set(ends);
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
        when(is(Source::Fault) & !fault.responds & alive & ahead & older, || {
            next.fault.set(1);
            next.fault_wqe.set(fault.wqe_index);
            next.fault_status.set(fault.status);
        });
        when(words, || {
            w.assign(&next);
            pending.set(fails);
            wakes.set(progress | retry | rnr_over);
            assigned.set(t.assigned);
            line_base.set(queues.record_base.resize(c.record_bits()));
            line_mask.set((lit(16, 1) << queues.record_log_size) - 1);
            cqn.set(queues.send_cqn.bits(0, c.cq_bits()));
        });
        let acts = timeout | rnr_over | start_timer | stop_timer;
        let dead = !alive & !scanned;
        when(words, || {
            when((scanned & !acts) | (dead & !ends) | (answer & !valid), || to(Phase::Rest))
                .otherwise(|| to(Phase::Record));
        });
        let refusal = |r: Reject| lit(6, u64::from(r.code()));
        io.count.valid.set(answer & !valid);
        io.count.index.set(mux(
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
        ));
        io.stage_count.valid.set(timeout | wait);
        io.stage_count.index.set(mux(
            timeout,
            lit(6, u64::from(StageCounter::TimeoutEvents.code())),
            lit(6, u64::from(StageCounter::RnrEvents.code())),
        ));

        // record, retire: the oldest WQEs
        let record = Record::from_bits(&(), io.record_word);
        let retiring = phase.eq(Phase::Retire.code()).named("retiring");
        let has = w.una_wqe.ne(assigned);
        let covered = has & psn_before(record.last_psn, w.una_psn);
        let bad = covered & record.status.any();
        let retire = (retiring & covered & !bad).named("retire");
        let faulted = w.fault & w.una_wqe.eq(w.fault_wqe);
        let error_status = mux(
            bad,
            record.status,
            mux(
                covered,
                lit(8, 0),
                mux(has & pending.any(), pending, mux(faulted, w.fault_status, lit(8, 0))),
            ),
        )
        .named("error_status");
        let error = (retiring & error_status.any() & !w.halt).named("error");
        let report = (retire & record.signaled) | error;
        done.valid.set(report);
        done.data.assign(&Completion {
            cq: cqn,
            qp,
            wqe_index: w.una_wqe,
            opcode: mux(has, record.opcode, lit(8, 0)),
            status: error_status,
            byte_len: record.length,
            imm: lit(32, 0),
            with_imm: low(),
            solicited: low(),
        });
        let advance = (retire & (!record.signaled | done.ready)).named("advance");
        let end = (retiring & !retire & (!error | done.ready)).named("ends");
        let index = mux(advance, w.una_wqe + 1, w.una_wqe);
        io.record_address.set(line_base + (index & line_mask).resize(c.record_bits()));
        when(phase.eq(Phase::Record.code()), || to(Phase::Retire));
        when(advance, || {
            w.una_wqe.set(w.una_wqe + 1);
            w.una_first.set(record.last_psn + 1);
            wakes.set(1);
        });
        when(end, || {
            to(Phase::Rest);
            when(wakes & !error, || {
                wake_valid.set(1);
                wake_qp.set(qp);
            });
        });
        let last = Requester::wires(&(), "last");
        last.assign(&w);
        when(error, || {
            last.halt.set(1);
            last.armed.set(0);
            last.waiting.set(0);
        });
        let start = Requester::wires(&(), "start");
        start.assign_zero();
        let i = &io.initialise.data;
        let fresh = Requester {
            una_psn: i.sq_psn,
            una_first: i.sq_psn,
            retries: i.retry_cnt,
            rnr_retries: i.rnr_retry,
            ..start
        };
        let clears = (initialise & (i.send | i.reset)).named("clears");
        io.requester_write.enable.set(clears | end);
        io.requester_write.address.set(mux(resting, i.qp, qp));
        io.requester_write.data.set(mux(resting, fresh.to_bits(), last.to_bits()));

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
                & !io.initialise.valid
                & !wake_valid
                & !out.valid
                & !raised.valid
                & stale.none()
                & !passed,
        );
    }
}
