//! acknowledge, by the interpreter: stories for each rule of retiring, retrying and giving up, both sides of each limit,
//! and random traffic against a model of the rules.

mod bench;

use bench::{Choices, RECORD, REQUESTER, Ram, TX, Word, clock, reset};
use contract::context::{QpQueues, QpRights};
use contract::{QpState, Reject, StageCounter};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::rx::acknowledge::Acknowledge;
use std::collections::VecDeque;

const MASK: u32 = 0xff_ffff;
const ACK: u8 = 0x1f;
const SEQUENCE: u8 = 0x60;
const RETRY_EXC: u8 = 12;
const RNR_EXC: u8 = 13;

fn config() -> Config {
    // 1 clock = 1 us; a timeout unit of 64 clocks keeps the short codes testable
    Config { qps: 4, records: 64, core_clock_khz: 1000, ticks_per_4096ns: 64, ..Config::small() }
}

/// A CQE: QP, WQE index, opcode, status, bytes.
type Done = (u32, u16, u8, u8, u32);

struct Bench {
    s: Interpreter,
    rams: Vec<Ram>,
    now: u64,
    done: Vec<Done>,
    wakes: Vec<u32>,
    /// QP and `ibv_event_type`.
    events: Vec<(u64, u64)>,
    rejects: Vec<Reject>,
    stage: Vec<StageCounter>,
    /// One in this many clocks complete takes a CQE.
    slow: u64,
    pick: Choices,
}

const RECORDS_LOG: u8 = 3;

impl Bench {
    fn new() -> Bench {
        Bench::with(|_| ())
    }
    fn with(change: impl Fn(&mut QpRights)) -> Bench {
        let c = config();
        let mut s = Interpreter::new(
            &elaborate(&Acknowledge { config: c.clone() }).unwrap_or_else(|e| panic!("{e}")),
        );
        let q = c.qps as usize;
        let rams = vec![
            Ram::new(q, Word::new(TX).width(), "qp_address", "tx_word"),
            Ram::new(q, Word::new(REQUESTER).width(), "qp_address", "requester_word")
                .written_by("requester_write"),
            Ram::new(q, 256, "qp_address", "rights_word"),
            Ram::new(q, 256, "qp_address", "queues_word"),
            Ram::new(64, Word::new(RECORD).width(), "record_address", "record_word"),
        ];
        reset(&mut s);
        let mut b = Bench {
            s,
            rams,
            now: 1000,
            done: vec![],
            wakes: vec![],
            events: vec![],
            rejects: vec![],
            stage: vec![],
            slow: 1,
            pick: Choices::new(5),
        };
        for i in 0..4u32 {
            let mut rights = QpRights {
                state: QpState::Rts as u8,
                valid: true,
                timeout: 4,
                retry_cnt: 3,
                rnr_retry: 3,
                ..Default::default()
            };
            change(&mut rights);
            let queues = QpQueues {
                send_cqn: 10 + i,
                record_base: (i * 8) as u16,
                record_log_size: RECORDS_LOG,
                ..Default::default()
            };
            b.rams[2].words[i as usize] = Bits::from_bytes(256, &rights.pack());
            b.rams[3].words[i as usize] = Bits::from_bytes(256, &queues.pack());
            b.start(i, 0, &rights);
        }
        b
    }
    fn start(&mut self, qp: u32, psn: u32, rights: &QpRights) {
        for (n, v) in [
            ("valid", 1),
            ("qp", qp.into()),
            ("send", 1),
            ("sq_psn", psn.into()),
            ("retry_cnt", rights.retry_cnt.into()),
            ("rnr_retry", rights.rnr_retry.into()),
        ] {
            self.s.poke(&format!("initialise_{n}"), v);
        }
        while self.s.peek("initialise_ready") == 0 {
            self.clock();
        }
        self.clock();
        self.s.poke("initialise_valid", 0);
        let psn = u64::from(psn);
        self.rams[0].words[qp as usize] = Word::new(TX).with("next_psn", psn).with("sent_psn", psn).bits();
    }
    fn clock(&mut self) {
        let ready = self.pick.one_in(self.slow);
        let s = &mut self.s;
        s.poke("now", self.now);
        s.poke("completion_ready", u64::from(ready));
        s.poke("wake_ready", 1);
        s.poke("event_ready", u64::from(ready));
        if ready && s.peek("event_valid") == 1 {
            assert_eq!((s.peek("event_kind"), s.peek("event_eq")), (2, 0));
            self.events.push((s.peek("event_object"), s.peek("event_event")));
        }
        if ready && s.peek("completion_valid") == 1 {
            let mut get = |n: &str| s.peek(&format!("completion_{n}"));
            assert_eq!(get("cq"), 10 + get("qp"));
            self.done.push((
                get("qp") as u32,
                get("wqe_index") as u16,
                get("opcode") as u8,
                get("status") as u8,
                get("byte_len") as u32,
            ));
        }
        if s.peek("wake_valid") == 1 {
            self.wakes.push(s.peek("wake_qp") as u32);
        }
        if s.peek("count_valid") == 1 {
            self.rejects.extend(Reject::from_code(s.peek("count_index") as u8));
        }
        if s.peek("stage_count_valid") == 1 {
            self.stage.extend(StageCounter::from_code(s.peek("stage_count_index") as u8));
        }
        let mut all: Vec<&mut Ram> = self.rams.iter_mut().collect();
        clock(&mut self.s, &mut all);
        self.now += 1;
    }
    fn run(&mut self, clocks: u64) {
        for _ in 0..clocks {
            self.clock();
        }
    }
    /// Until every timer is up to date: at least a whole scan.
    fn settle(&mut self) {
        self.s.poke("sent", 1);
        self.clock();
        self.s.poke("sent", 0);
        for n in 0.. {
            assert!(n < 2000, "never idle");
            if self.s.peek("idle") == 1 {
                return;
            }
            self.clock();
        }
    }
    fn give(&mut self, port: &str, fields: &[(&str, u64)]) {
        self.s.poke(&format!("{port}_valid"), 1);
        for (n, v) in fields {
            self.s.poke(&format!("{port}_{n}"), *v);
        }
        while self.s.peek(&format!("{port}_ready")) == 0 {
            self.clock();
        }
        self.clock();
        self.s.poke(&format!("{port}_valid"), 0);
        // no scan acts on a deadline meanwhile unless the story lets time pass
        for _ in 0..3 {
            self.clock();
        }
        while self.s.peek("resting") == 0 {
            self.clock();
        }
    }
    fn respond(&mut self, qp: u32, psn: u32, syndrome: u8) {
        let fields =
            [("qp", qp.into()), ("opcode", 0x11), ("psn", psn.into()), ("syndrome", syndrome.into())];
        self.give("response", &fields);
    }
    fn fault(&mut self, qp: u32, wqe: u16, status: u8) {
        let fields =
            [("qp", qp.into()), ("wqe_index", wqe.into()), ("status", status.into()), ("responds", 0)];
        self.give("fault", &fields);
    }
    /// A READ of the peer could not be answered.
    fn unanswered(&mut self, qp: u32, status: u8) {
        self.give("fault", &[("qp", qp.into()), ("status", status.into()), ("responds", 1)]);
    }
    fn tx(&self, qp: u32) -> Word {
        let mut w = Word::new(TX);
        w.load(&self.rams[0].words[qp as usize]);
        w
    }
    fn requester(&self, qp: u32) -> Word {
        let mut w = Word::new(REQUESTER);
        w.load(&self.rams[1].words[qp as usize]);
        w
    }
    /// Segment's part: the next WQE gets `packets` PSNs; all of them are sent.
    fn send(&mut self, qp: u32, packets: u32, signaled: bool, status: u8) -> u16 {
        let mut t = self.tx(qp);
        let (wqe, psn) = (t.get("assigned"), t.get("next_psn") as u32);
        let next = (psn + packets) & MASK;
        let record = Word::new(RECORD)
            .with("last_psn", u64::from(next.wrapping_sub(1) & MASK))
            .with("signaled", u64::from(signaled))
            .with("opcode", wqe & 1)
            .with("status", u64::from(status))
            .with("length", 100 * u64::from(packets));
        self.rams[4].words[(qp as usize * 8) + (wqe as usize & 7)] = record.bits();
        t.set("assigned", (wqe + 1) & 0xffff);
        t.set("next_psn", u64::from(next));
        t.set("sent_psn", u64::from(next));
        self.rams[0].words[qp as usize] = t.bits();
        wqe as u16
    }
    /// Segment obeys the rewind.
    fn obey(&mut self, qp: u32) {
        let epoch = self.requester(qp).get("epoch");
        self.rams[0].words[qp as usize] = self.tx(qp).with("epoch", epoch).bits();
    }
    fn status(&mut self) -> Vec<(u16, u8)> {
        self.run(8);
        std::mem::take(&mut self.done).into_iter().map(|d| (d.1, d.3)).collect()
    }
    /// Jumps to the deadline of QP 0 and lets the scan see it.
    fn expire(&mut self) {
        self.settle();
        let r = self.requester(0);
        assert_eq!(r.get("armed"), 1, "no deadline to wait for");
        self.now = r.get("deadline");
        self.run(30);
    }
}

#[test]
fn one_ack_retires_all_wqes_before_it_and_reports_the_signaled() {
    let mut b = Bench::new();
    for (n, signaled) in [true, false, false, true, false].into_iter().enumerate() {
        b.send(0, 1 + n as u32, signaled, 0);
    }
    // PSNs 0 | 1 2 | 3 4 5 | 6 7 8 9 | 10..14
    b.respond(0, 9, ACK);
    b.run(8);
    assert_eq!(b.done, [(0, 0, 0, 0, 100), (0, 3, 1, 0, 400)]);
    let r = b.requester(0);
    assert_eq!((r.get("una_wqe"), r.get("una_psn"), r.get("una_first")), (4, 10, 10));
    assert_eq!(b.wakes, [0]);
    // in the middle of a message: nothing retires, the rewind triple stays at the message's start
    b.respond(0, 12, ACK);
    let r = b.requester(0);
    assert_eq!((r.get("una_wqe"), r.get("una_psn"), r.get("una_first")), (4, 13, 10));
    b.respond(0, 14, ACK);
    assert_eq!((b.requester(0).get("una_wqe"), b.requester(0).get("armed")), (5, 0));
    b.run(8);
    assert_eq!(b.done.len(), 2, "an unsignaled success is silent");
}

#[test]
fn stale_and_unexpected_acknowledgements_change_nothing() {
    for start in [0u32, 0xff_fffe] {
        let mut b = Bench::new();
        b.start(0, start, &QpRights { retry_cnt: 3, rnr_retry: 3, ..Default::default() });
        for _ in 0..4 {
            b.send(0, 1, true, 0);
        }
        let at = |d: i32| (start as i32 + d) as u32 & MASK;
        b.respond(0, at(1), ACK);
        let before = b.requester(0);
        for (d, syndrome, why) in [
            (1, ACK, Reject::ResponseStale),
            (0, SEQUENCE, Reject::ResponseStale),
            (-1, 0x61, Reject::ResponseStale),
            (-(1 << 23) + 2, ACK, Reject::ResponseStale),
            (4, ACK, Reject::ResponseUnexpected),
            (4, SEQUENCE, Reject::ResponseUnexpected),
            (1000, 0x20, Reject::ResponseUnexpected),
            (2, 0x64, Reject::NakReserved),
            (2, 0x7f, Reject::NakReserved),
            (2, 0x40, Reject::NakReserved),
            (2, 0x9f, Reject::NakReserved),
        ] {
            b.rejects.clear();
            b.respond(0, at(d), syndrome);
            assert_eq!(b.rejects, [why], "{d} {syndrome:#x}");
            assert_eq!(b.requester(0), before);
        }
        b.respond(0, at(3), 0x00);
        assert_eq!(b.status(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
    }
}

#[test]
fn a_sequence_nak_in_the_middle_of_a_message_acknowledges_what_is_before_it_and_rewinds() {
    let mut b = Bench::new();
    b.send(0, 2, true, 0);
    b.send(0, 5, true, 0);
    b.respond(0, 4, SEQUENCE);
    let r = b.requester(0);
    assert_eq!(
        (r.get("una_wqe"), r.get("una_psn"), r.get("una_first"), r.get("epoch"), r.get("retries")),
        (1, 4, 2, 1, 2)
    );
    assert_eq!((b.status(), b.wakes.clone()), (vec![(0, 0)], vec![0]));
    // not obeyed yet: the next NAK moves the triple, not the epoch
    b.respond(0, 5, SEQUENCE);
    assert_eq!((b.requester(0).get("una_psn"), b.requester(0).get("epoch")), (5, 1));
    b.obey(0);
    b.respond(0, 5, SEQUENCE);
    assert_eq!((b.requester(0).get("retries"), b.requester(0).get("epoch")), (1, 2));
}

#[test]
fn sequence_naks_and_timeouts_are_retried_exactly_retry_cnt_times() {
    for retry_cnt in [0u8, 1, 6, 7] {
        for timeouts in [false, true] {
            let mut b = Bench::with(|r| r.retry_cnt = retry_cnt);
            b.send(0, 3, false, 0);
            for n in 0..retry_cnt {
                if timeouts {
                    b.expire()
                } else {
                    b.respond(0, 0, SEQUENCE)
                }
                b.obey(0);
                assert_eq!(b.requester(0).get("epoch"), u64::from(n) + 1);
                assert_eq!((b.status(), b.requester(0).get("halt")), (vec![], 0), "{retry_cnt} {n}");
            }
            if timeouts {
                b.expire()
            } else {
                b.respond(0, 0, SEQUENCE)
            }
            // unsignaled, yet an error is reported
            assert_eq!(b.status(), [(0, RETRY_EXC)], "{retry_cnt} {timeouts}");
            assert_eq!((b.requester(0).get("halt"), b.requester(0).get("armed")), (1, 0));
            if timeouts {
                let n = b.stage.iter().filter(|s| **s == StageCounter::TimeoutEvents).count();
                assert_eq!(n, usize::from(retry_cnt) + 1);
            }
            b.rejects.clear();
            b.respond(0, 0, ACK);
            assert_eq!((b.rejects.clone(), b.status()), (vec![Reject::QpHalted], vec![]));
        }
    }
}

#[test]
fn progress_refills_both_retry_counts() {
    let mut b = Bench::with(|r| (r.retry_cnt, r.rnr_retry) = (1, 1));
    b.send(0, 6, true, 0);
    for psn in 1..6 {
        b.respond(0, psn, SEQUENCE);
        b.obey(0);
        assert_eq!(b.requester(0).get("retries"), 0);
        b.respond(0, psn, 0x2c);
        assert_eq!(b.requester(0).get("rnr_retries"), 0);
        b.expire();
        b.obey(0);
        assert_eq!(b.requester(0).get("halt"), 0);
        // the NAK at the next PSN acknowledges this one
    }
    b.respond(0, 5, ACK);
    assert_eq!(b.status(), [(0, 0)]);
    assert_eq!((b.requester(0).get("retries"), b.requester(0).get("rnr_retries")), (1, 1));
}

#[test]
fn rnr_naks_are_waited_out_exactly_rnr_retry_times_and_seven_means_for_ever() {
    for rnr_retry in [0u8, 1, 6, 7] {
        let mut b = Bench::with(|r| r.rnr_retry = rnr_retry);
        b.send(0, 2, true, 0);
        let times = if rnr_retry == 7 { 20 } else { rnr_retry };
        for n in 0..times {
            b.respond(0, 0, 0x2c);
            assert_eq!(
                (b.requester(0).get("waiting"), b.requester(0).get("halt")),
                (1, 0),
                "{rnr_retry} {n}"
            );
            b.expire();
            b.obey(0);
            assert_eq!(b.requester(0).get("waiting"), 0);
            assert_eq!(b.requester(0).get("epoch"), u64::from(n + 1) & 15);
        }
        b.respond(0, 0, 0x2c);
        if rnr_retry == 7 {
            assert_eq!(b.status(), []);
        } else {
            assert_eq!(b.status(), [(0, RNR_EXC)]);
            assert_eq!(b.requester(0).get("halt"), 1);
        }
        assert_eq!(b.requester(0).get("retries"), 3, "an RNR NAK costs no transport retry");
    }
}

#[test]
fn an_rnr_wait_lasts_what_the_timer_table_says() {
    // code, microseconds = clocks
    for (code, us) in [(0u8, 655_360u64), (1, 10), (12, 640), (25, 61_440), (31, 491_520)] {
        let mut b = Bench::new();
        b.send(0, 1, true, 0);
        b.run(40);
        b.wakes.clear();
        let before = b.now;
        b.respond(0, 0, 0x20 | code);
        let deadline = b.requester(0).get("deadline");
        assert!((before + us..=before + us + 6).contains(&deadline), "code {code}: {}", deadline - before);
        assert_eq!(b.stage, [StageCounter::RnrEvents]);
        // not a clock earlier, though the scan looks all the time
        b.now = b.now.max(deadline.saturating_sub(30));
        while b.now < deadline {
            b.clock();
            assert_eq!(b.requester(0).get("waiting"), 1, "code {code}");
        }
        b.run(30);
        assert_eq!((b.requester(0).get("waiting"), b.requester(0).get("epoch")), (0, 1), "code {code}");
        assert_eq!(b.wakes, [0]);
    }
}

#[test]
fn the_transport_timer_rests_during_an_rnr_wait_and_further_naks_change_nothing() {
    let mut b = Bench::with(|r| r.timeout = 1);
    b.send(0, 3, true, 0);
    b.settle();
    b.respond(0, 1, 0x20 | 12);
    let waiting = b.requester(0);
    for _ in 0..3 {
        b.run(130);
        b.respond(0, 1, 0x20 | 1);
        assert_eq!(b.requester(0), waiting);
    }
    assert!(!b.stage.contains(&StageCounter::TimeoutEvents));
    // a sequence NAK only acknowledges, an ACK moves on; the wait stays
    b.respond(0, 2, SEQUENCE);
    let r = b.requester(0);
    assert_eq!((r.get("una_psn"), r.get("waiting"), r.get("epoch")), (2, 1, 0));
    assert_eq!(r.get("deadline"), waiting.get("deadline"));
    b.expire();
    assert_eq!((b.requester(0).get("waiting"), b.requester(0).get("epoch")), (0, 1));
}

#[test]
fn a_timeout_comes_between_t_and_four_t_for_every_code() {
    for code in 1..=31u8 {
        let mut b = Bench::with(|r| r.timeout = code);
        let t = (64u64 << code).min(1 << 38);
        b.send(0, 1, true, 0);
        let sent = b.now;
        b.settle();
        assert_eq!(b.requester(0).get("armed"), 1);
        // nothing before T
        b.now = b.now.max((sent + t).saturating_sub(40));
        while b.now < sent + t {
            b.clock();
        }
        assert!(b.stage.is_empty(), "code {code} before T");
        // and certainly something by 4T, most of it skipped
        let due = b.requester(0).get("deadline");
        assert!(due <= sent + 2 * t, "code {code}");
        b.now = b.now.max(due);
        while b.stage.is_empty() && b.now < sent + 4 * t {
            b.clock();
        }
        assert_eq!(b.stage, [StageCounter::TimeoutEvents], "code {code} by 4T");
        assert!(b.now <= sent + 4 * t);
    }
}

#[test]
fn timeout_code_zero_never_acts() {
    let mut b = Bench::with(|r| r.timeout = 0);
    b.send(0, 1, true, 0);
    b.settle();
    assert_eq!((b.requester(0).get("armed"), b.s.peek("next_due_valid")), (0, 0));
    for _ in 0..40 {
        b.now += 1 << 36;
        b.run(20);
    }
    assert!(b.stage.is_empty());
    b.respond(0, 0, ACK);
    assert_eq!(b.status(), [(0, 0)]);
}

#[test]
fn an_acknowledgement_restarts_the_timer_and_the_last_one_stops_it() {
    let mut b = Bench::new();
    b.send(0, 2, true, 0);
    b.settle();
    let first = b.requester(0).get("deadline");
    b.run(500);
    b.respond(0, 0, ACK);
    let second = b.requester(0).get("deadline");
    assert!(second >= first + 400, "{first} {second}");
    b.now = first + 10;
    b.run(40);
    assert!(b.stage.is_empty());
    b.respond(0, 1, ACK);
    b.now += 1 << 20;
    b.run(60);
    assert_eq!((b.stage.len(), b.requester(0).get("armed")), (0, 0));
}

#[test]
fn next_due_is_the_earliest_deadline_and_idle_says_so_only_when_it_is() {
    let mut b = Bench::new();
    b.send(2, 1, true, 0);
    b.settle();
    b.run(100);
    b.send(0, 1, true, 0);
    // segment's write must make the card busy until the timer is armed
    b.s.poke("sent", 1);
    b.clock();
    b.s.poke("sent", 0);
    assert_eq!(b.s.peek("idle"), 0);
    b.settle();
    let due = b.requester(2).get("deadline");
    assert!(due < b.requester(0).get("deadline"));
    assert_eq!((b.s.peek("next_due_valid"), b.s.peek("next_due")), (1, due));
    b.now = due;
    b.s.poke("now", due);
    assert_eq!(b.s.peek("idle"), 0, "something is due");
    b.run(40);
    assert_eq!(b.stage, [StageCounter::TimeoutEvents]);
    b.respond(0, 0, ACK);
    b.respond(2, 0, ACK);
    b.settle();
    assert_eq!(b.s.peek("next_due_valid"), 0);
}

#[test]
fn a_fatal_nak_reports_everything_before_it_and_its_status_on_the_wqe_that_it_names() {
    for (syndrome, status) in [(0x61, 9), (0x62, 10), (0x63, 11)] {
        let mut b = Bench::new();
        b.send(0, 2, true, 0);
        b.send(0, 2, false, 0);
        b.send(0, 2, false, 0);
        b.send(0, 2, true, 0);
        b.respond(0, 5, syndrome);
        assert_eq!(b.status(), [(0, 0), (2, status)]);
        let r = b.requester(0);
        assert_eq!((r.get("halt"), r.get("armed"), r.get("una_wqe")), (1, 0, 2));
        b.settle();
        b.now += 1 << 30;
        b.run(50);
        assert_eq!((b.status(), b.stage.len()), (vec![], 0), "a halted QP is silent");
    }
}

#[test]
fn a_bad_wqe_reports_its_status_once_all_before_it_have_retired() {
    let mut b = Bench::new();
    b.send(0, 2, true, 0);
    b.send(0, 0, false, 2);
    b.give("kick", &[("qp", 0)]);
    assert_eq!(b.status(), []);
    b.respond(0, 0, ACK);
    assert_eq!(b.status(), []);
    b.respond(0, 1, ACK);
    assert_eq!(b.status(), [(0, 0), (1, 2)]);
    assert_eq!(b.requester(0).get("halt"), 1);
    // with nothing before it the kick is enough
    b.send(1, 0, false, 2);
    b.give("kick", &[("qp", 1)]);
    assert_eq!(b.status(), [(0, 2)]);
}

#[test]
fn a_local_fault_waits_for_its_turn_and_the_oldest_counts() {
    let mut b = Bench::new();
    for _ in 0..4 {
        b.send(0, 1, true, 0);
    }
    b.fault(0, 3, 4);
    b.fault(0, 2, 1);
    b.fault(0, 3, 4);
    assert_eq!((b.status(), b.requester(0).get("fault_wqe")), (vec![], 2));
    b.respond(0, 1, ACK);
    assert_eq!(b.status(), [(0, 0), (1, 0), (2, 1)]);
    assert_eq!(b.requester(0).get("halt"), 1);
    // at once if it is the oldest
    b.send(1, 1, false, 0);
    b.fault(1, 0, 4);
    assert_eq!(b.status(), [(0, 4)]);
    // of a WQE already retired: nothing
    b.send(2, 1, true, 0);
    b.send(2, 1, true, 0);
    b.respond(2, 0, ACK);
    b.fault(2, 0, 4);
    assert_eq!((b.status(), b.requester(2).get("fault")), (vec![(0, 0)], 0));
}

#[test]
fn a_read_that_cannot_be_answered_ends_the_qp_with_an_event_and_without_a_completion() {
    // key: QP_ACCESS_ERR; memory: QP_FATAL
    for (status, event) in [(10, 3), (11, 1)] {
        let mut b = Bench::new();
        b.slow = 3;
        b.send(0, 2, true, 0);
        b.respond(0, 0, ACK);
        assert_eq!(b.requester(0).get("armed"), 1);
        b.unanswered(0, status);
        // and what follows it
        b.unanswered(0, status);
        b.run(20);
        assert_eq!((b.events.clone(), b.status()), (vec![(0, event)], vec![]));
        let r = b.requester(0);
        assert_eq!((r.get("halt"), r.get("armed"), r.get("una_psn"), r.get("fault")), (1, 0, 1, 0));
        b.respond(0, 1, ACK);
        assert_eq!((b.status(), b.rejects.clone()), (vec![], vec![Reject::QpHalted]));
        assert_eq!(b.requester(1).get("halt"), 0);
    }
    // one that only receives has READs to answer, too
    let mut b = Bench::with(|rights| rights.state = QpState::Rtr as u8);
    b.unanswered(2, 10);
    b.run(20);
    assert_eq!((b.events.clone(), b.requester(2).get("halt")), (vec![(2, 3)], 1));
    b.settle();
}

#[test]
fn a_reset_starts_the_send_side_anew() {
    let mut b = Bench::new();
    b.send(0, 3, true, 0);
    b.fault(0, 0, 4);
    assert_eq!(b.status().len(), 1);
    b.start(0, 0xff_ffff, &QpRights { retry_cnt: 5, rnr_retry: 6, ..Default::default() });
    let r = b.requester(0);
    assert_eq!(
        (r.get("una_psn"), r.get("halt"), r.get("retries"), r.get("rnr_retries")),
        (0xff_ffff, 0, 5, 6)
    );
    b.send(0, 3, true, 0);
    b.respond(0, 1, ACK);
    assert_eq!(b.status(), [(0, 0)]);
}

#[test]
fn a_qp_that_may_not_send_ignores_responses_and_timers() {
    let mut b = Bench::with(|r| r.state = QpState::Err as u8);
    b.send(0, 1, true, 0);
    b.settle();
    b.respond(0, 0, ACK);
    assert_eq!(
        (b.rejects.clone(), b.status(), b.requester(0).get("armed")),
        (vec![Reject::QpHalted], vec![], 0)
    );
}

#[test]
fn an_acknowledgement_costs_few_clocks() {
    // (WQEs retired by it, clocks from one ACK to the next, with one step of the scan between)
    for (wqes, most) in [(0u32, 6u64), (1, 7), (4, 10)] {
        let mut b = Bench::new();
        for _ in 0..wqes {
            b.send(0, 1, false, 0);
        }
        b.send(0, 100, true, 0);
        for (n, v) in [("valid", 1), ("qp", 0), ("opcode", 0x11), ("syndrome", 0x1f)] {
            b.s.poke(&format!("response_{n}"), v);
        }
        b.s.poke("response_psn", if wqes == 0 { 0 } else { u64::from(wqes - 1) });
        while b.s.peek("response_ready") == 0 {
            b.clock();
        }
        let start = b.now;
        b.clock();
        b.s.poke("response_psn", u64::from(wqes) + 1);
        while b.s.peek("response_ready") == 0 {
            b.clock();
        }
        let took = b.now - start;
        assert!(took <= most, "{wqes} WQEs: {took} clocks");
    }
}

/// The requester of one QP as the rules describe it.
struct Model {
    rights: QpRights,
    /// (last PSN, signaled, status) of the WQEs not retired.
    work: VecDeque<(u32, bool, u8)>,
    wqe: u16,
    una: u32,
    sent: u32,
    retries: u8,
    rnr: u8,
    waiting: bool,
    halt: bool,
    rewinds: u32,
    done: Vec<(u16, u8)>,
}

impl Model {
    fn retire(&mut self, error: Option<u8>) {
        while let Some((last, signaled, status)) = self.work.front().copied() {
            if (self.una.wrapping_sub(1).wrapping_sub(last) & MASK) >= 1 << 23 {
                break;
            }
            if status != 0 {
                self.done.push((self.wqe, status));
                self.halt = true;
                return;
            }
            self.work.pop_front();
            if signaled {
                self.done.push((self.wqe, 0));
            }
            self.wqe += 1;
        }
        if let Some(status) = error {
            self.done.push((self.wqe, status));
            self.halt = true;
        }
    }
    fn respond(&mut self, psn: u32, syndrome: u8) {
        let inside = (psn.wrapping_sub(self.una) & MASK) < (self.sent.wrapping_sub(self.una) & MASK);
        let rnr = (0x20..0x40).contains(&syndrome);
        let known = syndrome < 0x40 || (0x60..0x64).contains(&syndrome);
        if self.halt || !inside || !known || rnr && self.waiting {
            return;
        }
        let una = if syndrome < 0x20 { (psn + 1) & MASK } else { psn };
        if una != self.una {
            (self.retries, self.rnr) = (self.rights.retry_cnt, self.rights.rnr_retry);
        }
        self.una = una;
        let mut error = None;
        match syndrome {
            0x00..0x20 => {}
            0x20..0x40 if self.rnr == 0 => error = Some(RNR_EXC),
            0x20..0x40 => {
                self.rnr -= u8::from(self.rnr < 7);
                self.waiting = true;
            }
            0x60 if self.waiting => {}
            0x60 if self.retries == 0 => error = Some(RETRY_EXC),
            0x60 => {
                self.retries -= 1;
                self.rewinds += 1;
            }
            _ => error = Some(8 + (syndrome & 0x1f)),
        }
        self.retire(error);
    }
    fn timer(&mut self) {
        if self.waiting {
            self.waiting = false;
            self.rewinds += 1;
        } else if self.retries == 0 {
            self.retire(Some(RETRY_EXC));
        } else {
            self.retries -= 1;
            self.rewinds += 1;
        }
    }
}

#[test]
fn any_sequence_of_answers_and_silence_leaves_what_the_rules_say() {
    let (mut completions, mut errors) = (0, 0);
    for seed in 1..=60 {
        let mut pick = Choices::new(seed);
        let rights = QpRights {
            state: QpState::Rts as u8,
            valid: true,
            timeout: 20,
            retry_cnt: pick.below(8) as u8,
            rnr_retry: pick.below(8) as u8,
            ..Default::default()
        };
        let mut b = Bench::with(|r| *r = rights);
        b.slow = 1 + seed % 3;
        let start = pick.of(&[0u32, 0xff_fff0, 0x7f_fff0, 5]);
        b.start(0, start, &rights);
        let mut m = Model {
            rights,
            work: VecDeque::new(),
            wqe: 0,
            una: start,
            sent: start,
            retries: rights.retry_cnt,
            rnr: rights.rnr_retry,
            waiting: false,
            halt: false,
            rewinds: 0,
            done: vec![],
        };
        for n in 0..80 {
            if m.halt {
                break;
            }
            while m.work.len() < 8 && !pick.one_in(3) {
                let status = if pick.one_in(60) { 2 } else { 0 };
                let packets = if status == 0 { 1 + pick.below(5) as u32 } else { 0 };
                let signaled = pick.one_in(2);
                b.send(0, packets, signaled, status);
                m.sent = (m.sent + packets) & MASK;
                m.work.push_back((m.sent.wrapping_sub(1) & MASK, signaled, status));
                if status != 0 {
                    b.give("kick", &[("qp", 0)]);
                    m.retire(None);
                }
            }
            let before = m.rewinds;
            if pick.one_in(5) && m.una != m.sent && !m.halt {
                b.expire();
                m.timer();
            } else {
                let span = (m.sent.wrapping_sub(m.una) & MASK) as u64;
                let psn = (m.una + pick.below(span + 3) as u32).wrapping_sub(1) & MASK;
                let syndrome = match pick.below(24) {
                    // short RNR waits would end by themselves
                    0 => pick.of(&[0x40u8, 0x5f, 0x64, 0x7f, 0x80, 0x9f, 0xe0, 0xff]),
                    1..=4 => SEQUENCE,
                    5..=7 => 0x20,
                    8 if pick.one_in(6) => 0x61 + pick.below(3) as u8,
                    _ => pick.below(0x20) as u8,
                };
                b.respond(0, psn, syndrome);
                m.respond(psn, syndrome);
            }
            b.run(40);
            let r = b.requester(0);
            let context = format!("seed {seed}, step {n}");
            assert_eq!(r.get("epoch") != b.tx(0).get("epoch"), m.rewinds != before, "{context}");
            b.obey(0);
            let done: Vec<_> = b.done.iter().map(|d| (d.1, d.3)).collect();
            assert_eq!(done, m.done, "{context}");
            assert_eq!(r.get("halt") == 1, m.halt, "{context}");
            if !m.halt {
                assert_eq!(r.get("una_psn"), u64::from(m.una), "{context}");
                assert_eq!(r.get("una_wqe"), u64::from(m.wqe), "{context}");
                assert_eq!(r.get("retries"), u64::from(m.retries), "{context}");
                assert_eq!(r.get("rnr_retries"), u64::from(m.rnr), "{context}");
                assert_eq!(r.get("waiting") == 1, m.waiting, "{context}");
            }
        }
        completions += m.done.len();
        errors += usize::from(m.halt);
    }
    assert!(completions > 500 && errors > 20, "{completions} {errors}");
}

#[test]
fn the_emitted_module_is_clean() {
    bench::lint(&elaborate(&Acknowledge { config: Config::small() }).unwrap());
}
