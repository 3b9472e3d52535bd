//! Retires what the peer has answered, and decides when to send again or to give up.
//!
//! ```text
//! pick --> picked --> words --> record --> walk .. [take] --> the word is written
//!            \> address: in the clock of that write the next event enters, and reads behind it
//!
//! pick     a response, a fault, a confirmation, a kick or the next QP of the timer scan enters the register `picked`
//! words    the QP's words are there; what the event says; a scan that finds nothing ends here
//! record   the record of the WQE that is looked at is read
//! walk     passing: one clock per WQE that the response answers, from `got_wqe` on; then
//!          retiring: one clock per WQE from `una_wqe` to `got_wqe`, with a CQE if signaled. At the first that is not: the
//!          word is written, schedule is woken. While both are the same WQE they move together
//! take     a READ response whose place that is: its payload goes to place
//! ```
//! | event | clocks (measured) |
//! |---|---|
//! | ACK that ends no WQE; that ends n, the last exactly; that ends n and stands in the next | 3; 2 + n; 3 + n |
//! | READ response, the WQEs before it answered | 4 |
//! | response that is stale or refused | 2 |
//! | confirmations of n READs of one QP that wait | 3 + n for all |
//! | scan that finds nothing; whose timer acts | 2; 3 |
//!
//! An event is picked while the one before it is under way. What is
//! `plain` (nothing is bad or faulty) ends as soon as nothing more can retire: behind a READ that is not confirmed
//! nothing does, and a confirmation is an event of its own.
//! Of what waits, responses go first, then faults, then kicks; eight responses in a row let one of the others pass.
//! Stops only while complete refuses; takes responses only while there is surely room for their data, everything else
//! even then. A good confirmation is counted in the clock in which it comes, and retires its READ with those that came
//! before it. Never waits for host memory.
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
//! * A raw frame is answered when gather hands it on (a fault of status 0): it and all before it. Each has one PSN. No timer runs.
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
//! Timers are deadlines compared with `now`. A deadline is set T = 4.096 us * 2^code ahead (at most 2^38 clocks). The
//! scan makes a step whenever nothing else waits (2 clocks each), and at the latest one every `every` clocks, so that it
//! comes round in half of T of code 1 whatever else goes on: it acts between T and 4T. Code 0 never acts.
//! `next_due` is the earliest deadline as of the last whole scan; `idle` says that this scan began after the last change
//! and that nothing is due or under way. A new epoch is made only if segment obeyed the last one, so that the 4-bit
//! number cannot lap it: a rewind not yet obeyed takes the newest triple anyhow. The fence of a teardown passes from
//! `response` to `data` in order.
//!
//! Requirements: ATOM CARD ERR QPS RAW READ REQ TIM

use crate::config::Config;
use crate::flow::{CAUSE, Completion, Count, Event, Fault, Mark, Response, Scatter, Wake, WakePulse};
use crate::prim::fifo::{Fifo, buffer};
use crate::prim::flags::Flags;
use crate::qp::{
    DEADLINE, Initialise, PSN, READS, Record, Requester, StateShape, StateWrite, Tx, WINDOW, psn_before,
};
use contract::context::{QpQueuesBits, QpRightsBits};
use contract::timer::RNR_NS;
use contract::{
    AsyncEvent, EventKind, Opcode, QpState, Reject, StageCounter, TraceEvent, Transport, WcOpcode, WcStatus,
};
use hdl::{
    Bits, Bundle, HwEnum, Memory, Module, Ports, Sig, Stream, any_of, assert_always, constant, delay,
    index_width, instance, lit, low, mux, reg, reg_init, select, when,
};

/// Data for place that waits.
const DATA: u32 = 4;
/// Events that may pass a confirmation that waits, responses that may pass a fault or a kick.
const PASSED: u64 = 8;

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
    #[output(c.config.clone())]
    pub wake: WakePulse,
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
    /// Responses looked at and WQEs answered, for trace.
    #[output(c.config.clone())]
    pub trace: Mark,
    /// A response waits for place, or a CQE for complete.
    #[output]
    pub stall: Sig,
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
    Confirmed,
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
        let rest = phase.eq(Phase::Rest.code());
        let source = reg("source", Source::width());
        let qp = reg("qp", c.qp_bits());
        let response = Response::regs(c, "response_q");
        let fault = Fault::regs(c, "fault_q");
        let picked_valid = reg_init("picked_valid", 1, 0);
        let picked_source = reg("picked_source", Source::width());
        let picked_qp = reg("picked_qp", c.qp_bits());
        let picked_response = Response::regs(c, "picked_response");
        let picked_fault = Fault::regs(c, "picked_fault");
        let initialise = rest & !picked_valid & io.initialise.valid;
        io.initialise.ready.set(rest & !picked_valid);

        let wake_valid = reg_init("wake_valid_q", 1, 0);
        let wake_qp = reg("wake_qp_q", c.qp_bits());
        io.wake.valid.set(wake_valid);
        io.wake.qp.set(wake_qp);
        let done = Stream::<Completion>::wires(c, "done");
        let out = buffer("completions", c, 4, &done);
        io.completion.take(&out);
        let raise = Stream::<Event>::wires(c, "raise");
        let raised = buffer("events", c, 2, &raise);
        io.event.take(&raised);

        // a response is picked only if its data surely finds a place: behind it confirmations could not go on, for which
        // place may wait
        let data = Stream::<Scatter>::wires(c, "data_in");
        let waiting = instance("data_out", &Fifo { depth: DATA, width: Scatter::total_width(c) });
        waiting.input.valid.set(data.valid);
        waiting.input.data.set(data.data.to_bits());
        data.ready.set(waiting.input.ready);
        assert_always("data_has_room", !data.valid | data.ready);
        io.data.valid.set(waiting.output.valid);
        io.data.data.assign(&Scatter::from_bits(c, waiting.output.data));
        waiting.output.ready.set(io.data.ready);
        let responding = !rest & source.eq(Source::Response.code());
        let room = (waiting.level + responding.extend(3)).lt(u64::from(DATA)).named("room");

        // good confirmations are counted as they come; of each QP one event retires all
        let head = &io.placement;
        let good =
            (head.valid & head.data.status.none() & !head.data.invalidates & !initialise).named("good");
        let told = (head.valid & !good).named("told");
        let i = &io.initialise.data;
        let clears = (initialise & (i.send | i.reset)).named("clears");
        let counts = Memory::new("placed_counts", c.qps, READS).style("distributed");
        let there = counts.read_now("placed_there", head.data.qp);
        counts.write(good | clears, mux(good, head.data.qp, i.qp), mux(good, there + 1, lit(READS, 0)));
        let queued = Flags::new("queued", c.qps, 1);
        let new = (good & !queued.at(head.data.qp)).named("new_confirmation");
        let confirmations = instance("confirmations", &Fifo { depth: c.qps, width: c.qp_bits() });
        confirmations.input.valid.set(new);
        confirmations.input.data.set(head.data.qp);
        assert_always("a_qp_waits_once", !new | confirmations.input.ready);
        let confirmed = &confirmations.output;

        // pick: an event, or one step of the scan
        let every = (c.ticks_per_4096ns / c.qps).max(2);
        let until_scan = reg_init("until_scan", index_width(every) + 1, 0);
        let scan_qp = reg_init("scan_qp", c.qp_bits(), 0);
        let load = !picked_valid & !io.initialise.valid;
        let turn = load & until_scan.any();
        let passed_by = reg_init("confirmation_passed_by", 4, 0);
        let urgent = confirmed.valid & passed_by.ge(PASSED);
        // a flood of responses for one QP must not stop the others: gather and segment wait while these are not taken
        let passed_over = reg_init("others_passed_over", 4, 0);
        let overdue = (passed_over.ge(PASSED) & (io.fault.valid | io.kick.valid)).named("overdue");
        let responds = (io.response.valid & room & !overdue).named("responds");
        // what place waits for first: its number is bounded by the responses taken
        let take_told = turn & told;
        let free = turn & !told & !urgent;
        let take_response = free & responds;
        let take_fault = free & !responds & io.fault.valid;
        let take_kick = free & !responds & !io.fault.valid & io.kick.valid;
        let others = responds | io.fault.valid | io.kick.valid;
        let take_confirmed = (turn & !told & confirmed.valid & (urgent | !others)).named("take_confirmed");
        let event = (turn & (told | others | confirmed.valid)).named("take_event");
        let scan = (load & !event).named("take_scan");
        head.ready.set(good | turn);
        io.response.ready.set(free & room & !overdue);
        io.fault.ready.set(free & !responds);
        io.kick.ready.set(free & !responds & !io.fault.valid);
        confirmed.ready.set(take_confirmed);
        when(load, || {
            picked_valid.set(1);
            picked_response.assign(&io.response.data);
            picked_fault.assign(&head.data.or_else(c, told, &io.fault.data));
        });
        for (takes, source, of) in [
            (take_told, Source::Placement, head.data.qp),
            (take_response, Source::Response, io.response.data.qp),
            (take_fault, Source::Fault, io.fault.data.qp),
            (take_kick, Source::Kick, io.kick.data.qp),
            (take_confirmed, Source::Confirmed, confirmed.data),
            (scan, Source::Scan, scan_qp),
        ] {
            when(takes, || {
                picked_source.set(source.code());
                picked_qp.set(of);
            });
        }
        when(until_scan.any(), || until_scan.set(until_scan - 1));
        when(scan, || {
            scan_qp.set(scan_qp + 1);
            until_scan.set(u64::from(every));
        });
        when(event & confirmed.valid & !urgent, || passed_by.set(passed_by + 1));
        when(take_confirmed, || passed_by.set(0));
        when(take_response & (io.fault.valid | io.kick.valid), || passed_over.set(passed_over + 1));
        when(take_fault | take_kick, || passed_over.set(0));
        queued.change(&[(new, head.data.qp)], (take_confirmed, confirmed.data));
        io.qp_address.set(picked_qp);
        let quiet = !confirmed.valid & (!picked_valid | picked_source.eq(Source::Scan.code()));
        let resting = (rest & quiet).named("resting");

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
        let timed = rights.timeout.any() & rights.transport.ne(u64::from(Transport::Raw.code()));
        let reload = now + select(rights.timeout, &self.timeout_clocks());
        let behind = t.sent_psn - r.una_psn;
        let outstanding = behind.any().named("outstanding");
        // a rewind that segment has not obeyed yet will take the newest triple
        let rewound = mux(r.epoch.eq(t.epoch), r.epoch + 1, r.epoch);

        let is = |s: Source| words & source.eq(s.code());
        let fence = (is(Source::Response) & response.fence).named("fence");
        let answer = is(Source::Response) & !response.fence;
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
        let failed = is(Source::Placement) & fault.status.any();
        let key_ended = (is(Source::Placement) & fault.status.none()).named("key_ended");
        let ahead = !(fault.wqe_index - r.una_wqe).msb();
        let departed = (is(Source::Fault) & fault.status.none() & alive & ahead).named("frame_departed");
        let behind_it = r.una_psn + (fault.wqe_index - r.una_wqe).resize(PSN) + 1;
        let placed_now = counts.read_now("placed_of", qp);
        let claims = keep("claims", valid | departed);
        let claim = keep("claim", mux(answer, claim_now, mux(departed, behind_it, r.una_psn)));
        let claim_moves = keep("claim_moves", departed | (valid & claim_now.ne(r.una_psn)));
        let is_payload = keep("is_payload", valid & payload);
        let may_imply = keep("may_imply", valid & (payload | ack));
        let is_ack = keep("is_ack", valid & ack);
        // as of now: a READ behind one that failed does not count before the fault is in the word
        let placed = keep("placed", placed_now);
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
        let passing = keep("passing", valid | key_ended | departed);
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
        let fault_now = (is(Source::Fault) & !fault.responds & fault.status.any()) | failed;
        when(fault_now & alive & ahead & older, || {
            began.fault.set(1);
            began.fault_wqe.set(fault.wqe_index);
            began.fault_status.set(fault.status);
            began.fault_cause.set(fault.cause);
        });
        when(words, || w.assign(&began));
        // nothing may end the QP in this walk but what the response itself says
        let plain = keep("plain", answer & (payload | ack) & !t.halt & !began.fault);
        let acts = timeout_now | rnr_over_now | start_timer | stop_timer;
        let dead = words & !alive & !scanned;
        let nothing = is(Source::Confirmed) & placed_now.eq(r.rd_retired);
        let nothing =
            any_of(&[scanned & !acts, dead & !ends_qp, answer & !valid, fence, nothing]).named("nothing");
        when(words, || to(Phase::Record));
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
        let in_memory = !record.is_read | placed.ne(w.rd_retired);
        let retire = (walking & !passing & !together & !faulted & in_memory).named("retire");

        // take: does the payload fit its place? The record is the same in both clocks
        let taking = phase.eq(Phase::Take.code()).named("taking");
        let position = (claim - w.got_first).named("position");
        let offset = (position.extend(32) << shift).named("offset");
        let ends_read = claim.eq(record.last_psn).named("ends_read");
        let ends_request = ends_read | position.eq(WINDOW - 1);
        let wanted = delay("wanted", mux(ends_read, record.length - offset, lit(32, 1) << shift));
        let offset = delay("offset_q", offset);
        let (ends_read, ends_request) =
            (delay("ends_read_q", ends_read), delay("ends_request_q", ends_request));
        let is_value = opcode_is(Opcode::RcAtomicAcknowledge);
        let closes = opcode_is(Opcode::RcReadResponseLast) | opcode_is(Opcode::RcReadResponseOnly) | is_value;
        let of = |o: WcOpcode| record.opcode.eq(u64::from(o.code()));
        let of_atomic = of(WcOpcode::CompSwap) | of(WcOpcode::FetchAdd);
        let fits = closes.eq(ends_request) & response.length.extend(32).eq(wanted) & is_value.eq(of_atomic);
        let fits = fits.named("fits");
        let took = (taking & fits).named("took");

        // what follows from it
        let ends = (walking & ((leave & together) | (!passing & !retire))).named("ends");
        let una = mux(took, claim + 1, una).named("una_behind");
        let progress = mux(blocked, moved, moved | claim_moves | took).named("progress");
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
        // the last WQE that the ACK answers: no further record need be looked at
        let closes_walk = pass & is_ack & plain & record.last_psn.eq(response.psn);
        // `una_wqe` is a READ that is not confirmed: nothing retires
        let waits = plain & ((leave & !together) | taking);
        let end = ((ends & (!error | done.ready)) | (closes_walk & passes) | waits).named("walk_over");
        when(closes_walk | (took & ends_read), || {
            next.got_wqe.set(w.got_wqe + 1);
            next.got_first.set(una);
            when(closes_walk & together, || next.una_wqe.set(w.una_wqe + 1));
        });
        when(took & ends_read, || next.rd_got.set(w.rd_got + 1));
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
        wake_valid.set(end & (progress | retry | rnr_over | retired) & !error);
        wake_qp.set(qp);
        when(taking, || {
            passing.set(0);
            w.una_psn.set(claim);
            to(Phase::Record);
        });
        when(took, || {
            moved.set(1);
            w.una_psn.set(claim + 1);
            when(ends_read, || {
                w.got_wqe.set(w.got_wqe + 1);
                w.got_first.set(claim + 1);
                w.rd_got.set(w.rd_got + 1);
            });
        });

        // the next event enters behind the write of this one
        let over = end | nothing;
        let advance = (picked_valid & (rest | over) & (picked_source.ne(Source::Fault.code()) | raise.ready))
            .named("advance");
        when(over, || to(Phase::Rest));
        when(advance, || {
            to(Phase::Words);
            picked_valid.set(0);
            source.set(picked_source);
            qp.set(picked_qp);
            response.assign(&picked_response);
            fault.assign(&picked_fault);
        });

        let unwanted = (answer & !valid & payload) | (leave & is_payload);
        data.valid.set(unwanted | taking | fence);
        data.data.assign(&Scatter {
            fence,
            discard: !took,
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
        let answers_over = Flags::new("answers_over", c.qps, 1);
        let start = Requester::wires(&(), "start");
        start.assign_zero();
        let fresh = Requester {
            una_psn: i.sq_psn,
            got_first: i.sq_psn,
            retries: i.retry_cnt,
            rnr_retries: i.rnr_retry,
            halt: answers_over.at(i.qp) & !(i.receive | i.reset),
            ..start
        };
        let anew = i.receive | i.reset;
        answers_over.change(&[(ends_qp, qp)], (initialise & anew, i.qp));
        io.requester_write.enable.set(clears | end);
        io.requester_write.address.set(mux(rest, i.qp, qp));
        io.requester_write.data.set(mux(rest, fresh.to_bits(), next.to_bits()));

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
        let of = |e: TraceEvent| lit(8, e.code().into());
        io.trace.assign(&Mark {
            event: mux(retires, of(TraceEvent::Retire), of(TraceEvent::Acknowledge)),
            index: mux(retires, w.una_wqe, r.una_wqe),
            psn: mux(retires, record.last_psn, response.psn),
            opcode: mux(retires, record.opcode, response.opcode),
            detail: mux(retires, record.signaled.extend(16), response.syndrome.extend(16)),
            ..Mark::of(TraceEvent::Retire, answer | retires, qp)
        });
        io.stall.set((io.response.valid & !room) | (done.valid & !done.ready));
        let coming =
            any_of(&[head.valid, io.response.valid, io.fault.valid, io.kick.valid, io.initialise.valid]);
        let leaving = any_of(&[wake_valid, waiting.output.valid, out.valid, raised.valid]);
        io.idle.set((resting | (scanned & quiet)) & !coming & !leaving & stale.none() & !passed);
    }
}
