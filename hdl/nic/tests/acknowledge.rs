//! acknowledge, by the interpreter: stories for each rule of retiring, retrying and giving up, both sides of each limit,
//! and random traffic against a model of the rules.
//!
//! Requirements: ATOM CARD ERR QPS RAW READ REQ TIM

mod bench;

use bench::{Choices, RECORD, REQUESTER, Ram, TX, Word, clock, reset};
use contract::context::{QpQueues, QpRights};
use contract::{QpState, Reject, StageCounter, Transport};
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

/// What goes to place: QP, entry of the read list, offset, length, slot, WQE, the READ ends here.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Out {
    Fence,
    Discard(u8),
    Data(u32, u32, u32, u32, u8, u16, bool),
}

struct Bench {
    s: Interpreter,
    data: Vec<Out>,
    data_ready: bool,
    rams: Vec<Ram>,
    now: u64,
    done: Vec<Done>,
    causes: Vec<u64>,
    wakes: Vec<u32>,
    /// QP and `ibv_event_type`.
    events: Vec<(u64, u64)>,
    rejects: Vec<Reject>,
    stage: Vec<StageCounter>,
    /// One in this many clocks complete takes a CQE.
    slow: u64,
    /// What is given is not waited for: the next may come in the clock behind it.
    hurry: bool,
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
            data: vec![],
            data_ready: true,
            rams,
            now: 1000,
            done: vec![],
            causes: vec![],
            wakes: vec![],
            events: vec![],
            rejects: vec![],
            stage: vec![],
            slow: 1,
            hurry: false,
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
                read_base: (i * 16) as u16,
                read_log_size: 2,
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
        s.poke("data_ready", u64::from(self.data_ready));
        if self.data_ready && s.peek("data_valid") == 1 {
            let mut get = |n: &str| s.peek(&format!("data_{n}")) as u32;
            self.data.push(match (get("fence"), get("discard")) {
                (1, _) => Out::Fence,
                (_, 1) => Out::Discard(get("slot") as u8),
                _ => {
                    assert_eq!(get("address"), 0x100 * get("slot"));
                    Out::Data(
                        get("qp"),
                        get("entry"),
                        get("offset"),
                        get("length"),
                        get("slot") as u8,
                        get("wqe_index") as u16,
                        get("last") == 1,
                    )
                }
            });
        }
        s.poke("event_ready", u64::from(ready));
        if ready && s.peek("event_valid") == 1 {
            assert_eq!((s.peek("event_kind"), s.peek("event_eq")), (2, 0));
            self.events.push((s.peek("event_object"), s.peek("event_event")));
        }
        if ready && s.peek("completion_valid") == 1 {
            let mut get = |n: &str| s.peek(&format!("completion_{n}"));
            assert_eq!(get("cq"), 10 + get("qp"));
            self.causes.push(get("cause"));
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
        for n in 0.. {
            if self.s.peek(&format!("{port}_ready")) == 1 {
                break;
            }
            assert!(n < 2000, "{port} is never taken");
            self.clock();
        }
        self.clock();
        self.s.poke(&format!("{port}_valid"), 0);
        if self.hurry {
            return;
        }
        // no scan acts on a deadline meanwhile unless the story lets time pass
        for _ in 0..3 {
            self.clock();
        }
        while self.s.peek("resting") == 0 {
            self.clock();
        }
    }
    fn respond(&mut self, qp: u32, psn: u32, syndrome: u8) {
        let fields = [
            ("fence", 0),
            ("qp", qp.into()),
            ("opcode", 0x11),
            ("psn", psn.into()),
            ("syndrome", syndrome.into()),
        ];
        self.give("response", &fields);
    }
    /// A READ response; its slot is the low bits of its PSN.
    fn response(&mut self, qp: u32, psn: u32, opcode: u8, length: u32) {
        let slot = u64::from(psn & 63);
        let fields = [
            ("fence", 0),
            ("qp", qp.into()),
            ("opcode", opcode.into()),
            ("psn", psn.into()),
            ("syndrome", ACK.into()),
            ("length", length.into()),
            ("slot", slot),
            ("address", 0x100 * slot),
        ];
        self.give("response", &fields);
        self.run(if self.hurry { 0 } else { 2 });
    }
    /// Offers answers (QP, PSN, opcode, length; syndrome ACK) without a gap, for `clocks` at most: how many were taken,
    /// and the clocks from the first of them to the last.
    fn pour(&mut self, answers: &[(u32, u32, u8, u32)], clocks: u64) -> (usize, u64) {
        let (end, mut first, mut last, mut taken) = (self.now + clocks, None, 0, 0);
        self.s.poke("response_syndrome", ACK.into());
        while taken < answers.len() && self.now < end {
            let (qp, psn, opcode, length) = answers[taken];
            let slot = psn & 63;
            let fields =
                [("valid", 1), ("qp", qp), ("psn", psn), ("opcode", opcode.into()), ("length", length)];
            for (n, v) in fields.into_iter().chain([("slot", slot), ("address", 0x100 * slot)]) {
                self.s.poke(&format!("response_{n}"), v.into());
            }
            if self.s.peek("response_ready") == 1 {
                taken += 1;
                last = self.now;
                first.get_or_insert(last);
            }
            self.clock();
        }
        self.s.poke("response_valid", 0);
        (taken, last - first.unwrap_or(last))
    }
    /// place: the data of READ `wqe` is in memory (status 0), or cannot be.
    fn placement(&mut self, qp: u32, wqe: u16, status: u8) {
        self.confirm(qp, wqe, status, false);
    }
    fn confirm(&mut self, qp: u32, wqe: u16, status: u8, invalidates: bool) {
        let fields = [
            ("qp", qp.into()),
            ("wqe_index", wqe.into()),
            ("status", status.into()),
            ("invalidates", invalidates.into()),
        ];
        self.give("placement", &fields);
    }
    /// Segment's part: the next WQE is a local invalidate, all before it retired.
    fn invalidate(&mut self, qp: u32, signaled: bool) -> u16 {
        let wqe = self.send(qp, 0, signaled, 0);
        let word = &mut self.rams[4].words[(qp as usize * 8) + (wqe as usize & 7)];
        let mut record = Word::new(RECORD);
        record.load(word);
        *word = record.with("opcode", 6).bits();
        wqe
    }
    /// Segment's part: the next WQE is a READ of `length` bytes at a path MTU of 256.
    fn send_read(&mut self, qp: u32, length: u32, signaled: bool) -> u16 {
        let wqe = self.send(qp, length.div_ceil(256).max(1), signaled, 0);
        let word = &mut self.rams[4].words[(qp as usize * 8) + (wqe as usize & 7)];
        let mut record = Word::new(RECORD);
        record.load(word);
        *word = record.with("is_read", 1).with("opcode", 2).with("length", length.into()).bits();
        wqe
    }
    /// The triple of a rewind and the oldest WQE not retired.
    fn triple(&self, qp: u32) -> (u64, u64, u64, u64) {
        let r = self.requester(qp);
        (r.get("got_wqe"), r.get("una_psn"), r.get("got_first"), r.get("una_wqe"))
    }
    fn fault(&mut self, qp: u32, wqe: u16, status: u8) {
        let fields = [
            ("qp", qp.into()),
            ("wqe_index", wqe.into()),
            ("status", status.into()),
            ("responds", 0),
            ("cause", 53),
        ];
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
        if status != 0 {
            t.set("halt", 1);
        }
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
fn a_local_invalidate_retires_when_place_has_done_it_and_has_no_psn() {
    for signaled in [true, false] {
        let mut b = Bench::new();
        b.send(0, 2, false, 0);
        b.respond(0, 1, ACK);
        b.run(10);
        let wakes = b.wakes.len();
        let wqe = b.invalidate(0, signaled);
        // an ACK that comes again, and time, change nothing
        b.respond(0, 1, ACK);
        b.settle();
        assert_eq!((b.requester(0).get("armed"), b.done.len()), (0, 0));
        assert_eq!(b.triple(0), (1, 2, 2, 1));
        b.confirm(0, wqe, 0, true);
        b.run(10);
        assert_eq!(b.done, if signaled { vec![(0, 1, 6, 0, 0)] } else { vec![] });
        assert_eq!((b.triple(0), b.wakes.len()), ((2, 2, 2, 2), wakes + 1), "segment may go on");
        let next = b.send(0, 1, true, 0);
        b.respond(0, 2, ACK);
        assert_eq!(b.status().last(), Some(&(next, 0)));
    }
    // a key that may not be ended
    let mut b = Bench::new();
    let wqe = b.invalidate(0, false);
    b.confirm(0, wqe, 2, true);
    b.run(10);
    assert_eq!(b.done, [(0, 0, 6, 2, 0)]);
    assert_eq!(b.requester(0).get("halt"), 1);
}

#[test]
fn a_fault_of_the_responder_in_rtr_outlives_the_way_to_rts_and_no_new_connection() {
    let mut b = Bench::with(|rights| rights.state = QpState::Rtr as u8);
    b.unanswered(2, 10);
    b.run(10);
    assert_eq!(b.events, [(2, 3)]);
    let rights = QpRights { state: QpState::Rts as u8, valid: true, ..Default::default() };
    for qp in 1..3 {
        b.rams[2].words[qp as usize] = Bits::from_bytes(256, &rights.pack());
        b.start(qp, 50, &rights);
        assert_eq!(b.requester(qp).get("halt"), u64::from(qp == 2));
    }
    // a second way to RTS of that life does not help either
    b.start(2, 60, &rights);
    assert_eq!(b.requester(2).get("halt"), 1);
    // its next life
    for anew in ["receive", "reset"] {
        b.unanswered(2, 10);
        b.s.poke(&format!("initialise_{anew}"), 1);
        b.start(2, 70, &rights);
        b.s.poke(&format!("initialise_{anew}"), 0);
        b.start(2, 80, &rights);
        assert_eq!(b.requester(2).get("halt"), 0, "{anew}");
    }
}

#[test]
fn an_error_of_this_side_names_its_cause_one_of_the_peer_and_a_success_none() {
    for (what, cause) in [("bad WQE", 50), ("fault", 53), ("NAK", 0), ("retries", 0)] {
        let mut b = Bench::with(|rights| rights.retry_cnt = 0);
        b.send(0, 1, true, 0);
        b.respond(0, 0, ACK);
        // of a bad WQE the record has it where others have their length
        if what == "bad WQE" {
            b.send(0, 0, true, 2);
            let mut record = Word::new(RECORD);
            record.load(&b.rams[4].words[1]);
            b.rams[4].words[1] = record.with("length", 50).bits();
        } else {
            b.send(0, 2, true, 0);
        }
        match what {
            "bad WQE" => b.give("kick", &[("qp", 0)]),
            "fault" => b.fault(0, 1, 4),
            "NAK" => b.respond(0, 1, 0x62),
            _ => b.expire(),
        }
        b.run(10);
        assert_eq!((b.done.len(), b.causes.clone()), (2, vec![0, cause]), "{what}");
    }
    // a NAK that waits for READs before it, and takes the place of a later fault of this side
    let mut b = Bench::new();
    b.send_read(0, 8, true);
    b.send(0, 1, true, 0);
    b.send(0, 1, true, 0);
    b.fault(0, 2, 4);
    b.response(0, 0, 0x10, 8);
    b.respond(0, 1, 0x61);
    b.placement(0, 0, 0);
    b.run(20);
    assert_eq!((b.status(), b.causes.clone()), (vec![(0, 0), (1, 9)], vec![0, 0]));
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
    assert_eq!((r.get("una_wqe"), r.get("una_psn"), r.get("got_first")), (4, 10, 10));
    assert_eq!(b.wakes, [0]);
    // in the middle of a message: nothing retires, the rewind triple stays at the message's start
    b.respond(0, 12, ACK);
    let r = b.requester(0);
    assert_eq!((r.get("una_wqe"), r.get("una_psn"), r.get("got_first")), (4, 13, 10));
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
        (r.get("una_wqe"), r.get("una_psn"), r.get("got_first"), r.get("epoch"), r.get("retries")),
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

/// So many clocks of events, and the scan's: 2 of every 16.
fn with_scans(clocks: u64) -> u64 {
    clocks + 2 * (clocks / 14 + 1)
}

#[test]
fn an_acknowledgement_costs_few_clocks() {
    // of one long message
    let mut b = Bench::new();
    b.send(0, 100, true, 0);
    let acks: Vec<_> = (0..33).map(|psn| (0, psn, 0x11, 0)).collect();
    let (taken, clocks) = b.pour(&acks, 1000);
    assert!(taken == 33 && clocks <= with_scans(3 * 32), "none: {taken} in {clocks} clocks");
    // each ends `wqes`, of four QPs in turn or of one after the other
    for (wqes, in_turn) in [(1u32, true), (1, false), (2, true), (2, false), (4, true)] {
        let mut b = Bench::with(|r| r.timeout = 0);
        for qp in 0..4 {
            (0..8).for_each(|_| _ = b.send(qp, 1, false, 0));
        }
        let each = 8 / wqes;
        let ack = |n| if in_turn { (n % 4, n / 4) } else { (n / each, n % each) };
        let acks: Vec<_> = (0..4 * each).map(ack).map(|(qp, n)| (qp, (n + 1) * wqes - 1, 0x11, 0)).collect();
        let (taken, clocks) = b.pour(&acks, 1000);
        assert_eq!(taken, acks.len());
        let most = with_scans(u64::from((2 + wqes) * (4 * each - 1)));
        assert!(clocks <= most, "{wqes} WQEs: {taken} in {clocks} clocks, not {most}");
        b.run(40);
        (0..4).for_each(|qp| assert_eq!(b.triple(qp), (8, 8, 8, 8)));
    }
}

#[test]
fn a_read_response_costs_four_clocks() {
    let mut b = reading(|_| ());
    b.send_read(0, 256 * 33, true);
    let answers: Vec<_> = (0..33).map(|psn| (0, psn, if psn < 32 { MIDDLE } else { LAST }, 256)).collect();
    let (taken, clocks) = b.pour(&answers, 1000);
    assert!(taken == 33 && clocks <= with_scans(4 * 32), "{taken} in {clocks} clocks");
    b.run(20);
    assert_eq!((b.data.len(), b.rejects.len(), b.triple(0)), (33, 0, (1, 33, 33, 0)));
}

#[test]
fn back_to_back_answers_of_one_qp_see_each_other() {
    let mut b = reading(|_| ());
    for first in 0..3u32 {
        let wqe = |n| (first * 4 + n) as u16;
        b.send(0, 1, true, 0);
        b.send(0, 2, true, 0);
        b.send_read(0, 300, true);
        b.send(0, 1, true, 0);
        let at = first * 6;
        let answers = [
            (0, at, 0x11, 0),
            (0, at + 1, 0x11, 0),
            (0, at + 2, 0x11, 0),
            (0, at + 3, FIRST, 256),
            (0, at + 4, LAST, 44),
            (0, at + 5, 0x11, 0),
        ];
        assert_eq!(b.pour(&answers, 100).0, 6);
        b.placement(0, wqe(2), 0);
        assert_eq!(b.status(), (0..4).map(|n| (wqe(n), 0)).collect::<Vec<_>>());
        let (wqes, psn) = (u64::from(first + 1) * 4, u64::from(at + 6));
        assert_eq!(b.triple(0), (wqes, psn, psn, wqes));
    }
    // the second gap is not the first again: one rewind, one retry
    b.send_read(0, 256, true);
    b.send(0, 4, true, 0);
    b.pour(&[(0, 19, 0x11, 0), (0, 20, 0x11, 0), (0, 21, 0x11, 0)], 100);
    b.run(20);
    assert_eq!((b.requester(0).get("epoch"), b.requester(0).get("retries")), (1, 2));
    assert_eq!(b.rejects, [Reject::ResponseGap; 3]);
}

#[test]
fn confirmations_that_wait_retire_together() {
    let mut b = reading(|_| ());
    let answers: Vec<_> = (0..8).map(|psn| (0, psn, ONLY, 256)).collect();
    (0..8).for_each(|_| _ = b.send_read(0, 256, true));
    b.pour(&answers, 200);
    b.settle();
    b.wakes.clear();
    // others hold the stage: stale ones of QP 1
    let fields = [("valid", 1), ("qp", 1), ("psn", 77), ("opcode", 0x11)];
    fields.iter().for_each(|(n, v)| b.s.poke(&format!("response_{n}"), *v));
    b.run(10);
    b.s.poke("placement_valid", 1);
    for wqe in 0..8 {
        b.s.poke("placement_wqe_index", wqe);
        assert_eq!(b.s.peek("placement_ready"), 1, "taken at once");
        b.clock();
    }
    b.s.poke("placement_valid", 0);
    b.run(60);
    let done: Vec<_> = b.done.iter().map(|d| (d.1, d.3)).collect();
    assert_eq!(done, (0..8).map(|wqe| (wqe, 0)).collect::<Vec<_>>());
    assert_eq!(b.wakes, [0], "one event");
    assert!(b.rejects.len() > 20, "the others went on");
    // the next one is told again
    b.s.poke("response_valid", 0);
    b.send_read(0, 256, true);
    b.pour(&[(0, 8, ONLY, 256)], 100);
    b.run(20);
    b.placement(0, 8, 0);
    assert_eq!(b.status().last(), Some(&(8, 0)));
}

#[test]
fn a_read_that_failed_never_retires_by_the_confirmation_of_the_next() {
    for gap in 0..8 {
        let mut b = reading(|_| ());
        b.hurry = true;
        b.send_read(0, 256, true);
        b.send_read(0, 256, true);
        b.pour(&[(0, 0, ONLY, 256), (0, 1, ONLY, 256)], 100);
        b.run(40);
        // something else of the QP is looked at meanwhile
        b.give("kick", &[("qp", 0)]);
        b.run(gap);
        b.placement(0, 0, 4);
        b.placement(0, 1, 0);
        assert_eq!(b.status(), [(0, 4)], "gap {gap}");
        b.run(30);
        assert_eq!((b.requester(0).get("halt"), b.done.len()), (1, 0));
    }
}

#[test]
fn an_ack_in_front_of_a_bad_wqe_reports_it() {
    for gap in 0..8 {
        for kick_first in [true, false] {
            let mut b = Bench::new();
            b.hurry = true;
            b.send(0, 1, true, 0);
            if kick_first {
                b.send(0, 0, true, 2);
                b.give("kick", &[("qp", 0)]);
                b.run(gap);
                b.respond(0, 0, ACK);
            } else {
                b.respond(0, 0, ACK);
                b.run(gap);
                b.send(0, 0, true, 2);
                b.give("kick", &[("qp", 0)]);
            }
            b.run(20);
            assert_eq!(b.status(), [(0, 0), (1, 2)], "gap {gap}, kick first: {kick_first}");
        }
    }
}

#[test]
fn a_timer_acts_by_four_t_under_a_storm_of_answers() {
    let mut b = Bench::with(|r| r.timeout = 1);
    b.send(0, 1, true, 0);
    let (sent, t) = (b.now, 128);
    let storm = vec![(1, 77, 0x11, 0); 1000];
    b.pour(&storm, t - 1);
    assert!(b.stage.is_empty(), "before T");
    b.pour(&storm, sent + 4 * t - b.now);
    assert!(b.stage.contains(&StageCounter::TimeoutEvents), "by 4T");
    assert!(b.rejects.len() > 150, "{} answers", b.rejects.len());
}

#[test]
fn a_fault_and_a_bad_wqe_get_their_turn_under_a_storm_of_answers() {
    let mut b = Bench::new();
    b.send(0, 1, true, 0);
    b.send(2, 0, false, 2);
    let storm = vec![(1, 77, 0x11, 0); 1000];
    for (n, v) in [("qp", 0), ("wqe_index", 0), ("status", 4), ("responds", 0), ("valid", 1)] {
        b.s.poke(&format!("fault_{n}"), v);
    }
    b.s.poke("kick_qp", 2);
    b.s.poke("kick_valid", 1);
    let mut before = Vec::new();
    for port in ["fault", "kick"] {
        let mut passed = 0;
        while b.s.peek(&format!("{port}_ready")) == 0 {
            assert!(passed < 20, "{port} is passed by {passed} answers");
            passed += b.pour(&storm[..1], 1).0;
            b.s.poke("response_valid", 1);
        }
        b.clock();
        b.s.poke(&format!("{port}_valid"), 0);
        before.push(passed);
    }
    b.s.poke("response_valid", 0);
    b.run(20);
    assert_eq!(b.status(), [(0, 4), (0, 2)]);
    // and no more than one in nine of its turns is taken from the storm
    assert_eq!(before, [8, 8], "answers that passed the fault, and then the kick");
}

#[test]
fn a_start_waits_for_what_was_taken_before_it() {
    let mut b = Bench::new();
    b.hurry = true;
    b.send(0, 1, true, 0);
    b.respond(0, 0, ACK);
    b.start(0, 500, &QpRights { retry_cnt: 5, ..Default::default() });
    assert_eq!(b.status(), [(0, 0)], "of the life before");
    let r = b.requester(0);
    assert_eq!((b.triple(0), r.get("retries"), r.get("armed")), ((0, 500, 500, 0), 5, 0));
}

const FIRST: u8 = 0x0d;
const MIDDLE: u8 = 0x0e;
const LAST: u8 = 0x0f;
const ONLY: u8 = 0x10;

fn reading(change: impl Fn(&mut QpRights)) -> Bench {
    Bench::with(|r| {
        r.path_mtu = 1;
        change(r);
    })
}

#[test]
fn a_reads_data_goes_to_place_and_its_completion_waits_for_it_in_order() {
    for start in [0u32, 0xff_fffe] {
        let mut b = reading(|_| ());
        b.start(0, start, &QpRights { retry_cnt: 3, rnr_retry: 3, ..Default::default() });
        let at = |d: u32| start.wrapping_add(d) & MASK;
        // PSNs 0 | 1 2 3 | 4 | 5 | 6
        b.send(0, 1, true, 0);
        b.send_read(0, 600, true);
        b.send(0, 1, true, 0);
        b.send_read(0, 0, false);
        b.send(0, 1, true, 0);
        // the first response answers the WRITE before the READ, too
        b.response(0, at(1), FIRST, 256);
        assert_eq!(b.status(), [(0, 0)]);
        assert_eq!(b.triple(0), (1, at(2).into(), at(1).into(), 1));
        b.response(0, at(2), MIDDLE, 256);
        b.response(0, at(3), LAST, 88);
        assert_eq!(b.triple(0), (2, at(4).into(), at(4).into(), 1));
        b.response(0, at(5), ONLY, 0);
        b.respond(0, at(6), ACK);
        assert_eq!(b.triple(0), (5, at(7).into(), at(7).into(), 1));
        let slot = |d: u32| (at(d) & 63) as u8;
        let want = [
            Out::Data(0, 0, 0, 256, slot(1), 1, false),
            Out::Data(0, 0, 256, 256, slot(2), 1, false),
            Out::Data(0, 0, 512, 88, slot(3), 1, true),
            Out::Data(0, 1, 0, 0, slot(5), 3, true),
        ];
        assert_eq!(b.data, want);
        assert_eq!((b.status(), b.requester(0).get("armed")), (vec![], 0), "the data is on its way");
        b.wakes.clear();
        b.placement(0, 1, 0);
        b.run(8);
        assert_eq!(b.done, [(0, 1, 2, 0, 600), (0, 2, 0, 0, 100)]);
        assert_eq!((b.requester(0).get("rd_retired"), b.wakes.clone()), (1, vec![0]));
        b.done.clear();
        b.placement(0, 3, 0);
        assert_eq!(b.status(), [(4, 0)], "an unsignaled READ is silent");
        assert_eq!((b.triple(0).3, b.requester(0).get("rd_retired"), b.rejects.len()), (5, 2, 0));
    }
}

#[test]
fn a_response_that_does_not_fit_its_place_is_dropped_by_name_and_costs_nothing() {
    for (psn, opcode, length) in [
        // PSN 1..=3 is a READ of 600 bytes; at 1:
        (1, LAST, 256),
        (1, ONLY, 256),
        (1, FIRST, 255),
        (1, FIRST, 0),
        (1, MIDDLE, 88),
        // PSN 4 a WRITE, 0 another
        (4, ONLY, 100),
        (0, FIRST, 256),
    ] {
        let mut b = reading(|_| ());
        b.send(0, 1, false, 0);
        b.send_read(0, 600, true);
        b.send(0, 2, true, 0);
        if psn == 4 {
            b.response(0, 1, FIRST, 256);
            b.response(0, 2, MIDDLE, 256);
            b.response(0, 3, LAST, 88);
            b.data.clear();
        }
        b.response(0, psn, opcode, length);
        assert_eq!(
            (b.rejects.clone(), b.data.clone()),
            (vec![Reject::ResponseMalformed], vec![Out::Discard(psn as u8)])
        );
        assert_eq!((b.triple(0).1, b.requester(0).get("epoch")), (u64::from(psn), 0));
        assert_eq!(b.requester(0).get("retries"), 3);
    }
    // the last one: both lengths and opcodes beside the right one
    for (opcode, length) in [(LAST, 87), (LAST, 89), (MIDDLE, 88), (FIRST, 88), (LAST, 256), (ONLY, 256)] {
        let mut b = reading(|_| ());
        b.send_read(0, 600, true);
        b.response(0, 0, FIRST, 256);
        b.response(0, 1, FIRST, 256);
        b.response(0, 2, opcode, length);
        assert_eq!(
            (b.rejects.clone(), b.triple(0).1),
            (vec![Reject::ResponseMalformed], 2),
            "{opcode} {length}"
        );
        // repeated from there it is an Only
        b.response(0, 2, ONLY, 88);
        assert_eq!((b.triple(0).1, b.data.last().copied()), (3, Some(Out::Data(0, 0, 512, 88, 2, 0, true))));
    }
}

#[test]
fn a_result_that_is_no_atomics_or_data_that_is_no_reads_is_malformed() {
    const RESULT: u8 = 0x12;
    let mut b = reading(|_| ());
    for opcode in [3, 4, 2] {
        let wqe = b.send_read(0, 8, true);
        let word = &mut b.rams[4].words[usize::from(wqe)];
        let mut record = Word::new(RECORD);
        record.load(word);
        *word = record.with("opcode", opcode).bits();
    }
    b.response(0, 0, ONLY, 8);
    b.response(0, 0, RESULT, 8);
    b.response(0, 1, ONLY, 8);
    b.response(0, 1, RESULT, 8);
    b.response(0, 2, RESULT, 8);
    b.response(0, 2, ONLY, 8);
    assert_eq!(b.rejects, [Reject::ResponseMalformed; 3]);
    let good = |psn: u8| Out::Data(0, psn.into(), 0, 8, psn, psn.into(), true);
    assert_eq!(b.data, (0..3).flat_map(|psn| [Out::Discard(psn), good(psn)]).collect::<Vec<_>>());
    // one that nobody waits for
    b.response(0, 3, RESULT, 8);
    assert_eq!(b.rejects.last(), Some(&Reject::ResponseUnexpected));
    for wqe in 0..3 {
        b.placement(0, wqe, 0);
    }
    assert_eq!(b.done, [(0, 0, 3, 0, 8), (0, 1, 4, 0, 8), (0, 2, 2, 0, 8)]);
}

#[test]
fn stale_unexpected_and_orphaned_responses_give_their_slots_back() {
    let mut b = reading(|_| ());
    b.send_read(0, 600, true);
    b.response(0, 0, FIRST, 256);
    for (psn, why) in
        [(0, Reject::ResponseStale), (MASK, Reject::ResponseStale), (3, Reject::ResponseUnexpected)]
    {
        b.rejects.clear();
        b.data.clear();
        b.response(0, psn, MIDDLE, 256);
        assert_eq!((b.rejects.clone(), b.data.clone()), (vec![why], vec![Out::Discard((psn & 63) as u8)]));
        assert_eq!(b.triple(0).1, 1);
    }
    // a syndrome that is no ACK
    b.rejects.clear();
    b.data.clear();
    let fields =
        [("qp", 0), ("opcode", LAST.into()), ("psn", 1), ("syndrome", 0x60), ("slot", 9), ("length", 256)];
    b.give("response", &fields);
    assert_eq!((b.rejects.clone(), b.data.clone()), (vec![Reject::NakReserved], vec![Out::Discard(9)]));
    // a halted QP
    b.fault(0, 0, 4);
    assert_eq!(b.status(), [(0, 4)]);
    b.rejects.clear();
    b.data.clear();
    b.response(0, 1, MIDDLE, 256);
    assert_eq!((b.rejects.clone(), b.data.clone()), (vec![Reject::QpHalted], vec![Out::Discard(1)]));
}

#[test]
fn a_missing_response_is_asked_for_again_once_per_gap_and_then_by_the_timer() {
    let mut b = reading(|r| r.retry_cnt = 2);
    // PSNs 0 | 1..=4 | 5 | 6 7
    b.send(0, 1, true, 0);
    b.send_read(0, 1024, true);
    b.send(0, 1, true, 0);
    b.send_read(0, 512, true);
    b.response(0, 1, FIRST, 256);
    // 2 is lost
    b.response(0, 3, MIDDLE, 256);
    let r = b.requester(0);
    assert_eq!((r.get("epoch"), r.get("retries"), r.get("implied")), (1, 1, 1));
    assert_eq!(b.triple(0), (1, 2, 1, 1));
    assert_eq!(
        (b.rejects.clone(), b.data.last().copied()),
        (vec![Reject::ResponseGap], Some(Out::Discard(3)))
    );
    b.obey(0);
    b.response(0, 4, LAST, 256);
    b.respond(0, 5, ACK);
    b.response(0, 6, FIRST, 256);
    let r = b.requester(0);
    assert_eq!((r.get("epoch"), r.get("retries"), r.get("una_psn")), (1, 1, 2), "no storm");
    assert_eq!(b.rejects, [Reject::ResponseGap; 4]);
    // progress, and the next gap counts anew
    b.response(0, 2, FIRST, 256);
    assert_eq!((b.requester(0).get("implied"), b.requester(0).get("retries")), (0, 2));
    b.response(0, 4, LAST, 256);
    assert_eq!((b.requester(0).get("epoch"), b.requester(0).get("retries"), b.triple(0).1), (2, 1, 3));
    b.obey(0);
    // what was repeated is lost again: the timer, then the end
    b.response(0, 4, LAST, 256);
    b.expire();
    b.obey(0);
    assert_eq!((b.requester(0).get("epoch"), b.requester(0).get("retries")), (3, 0));
    b.expire();
    assert_eq!(b.status(), [(0, 0), (1, RETRY_EXC)]);
}

#[test]
fn an_ack_stops_at_a_read_that_is_not_answered_and_retires_what_is_before_it() {
    for (psn, syndrome, retries) in [(6, ACK, 2), (4, ACK, 2), (2, ACK, 2), (6, SEQUENCE, 2)] {
        let mut b = reading(|_| ());
        // PSNs 0 | 1 | 2..=4 | 5 6
        b.send(0, 1, true, 0);
        b.send(0, 1, true, 0);
        b.send_read(0, 600, true);
        b.send(0, 2, true, 0);
        b.respond(0, psn, syndrome);
        assert_eq!(b.status(), [(0, 0), (1, 0)], "{psn} {syndrome}");
        assert_eq!(b.triple(0), (2, 2, 2, 2));
        assert_eq!((b.requester(0).get("epoch"), b.requester(0).get("retries")), (1, retries));
        assert_eq!(b.rejects.len(), usize::from(syndrome == ACK));
        b.obey(0);
        for (psn, opcode, length) in [(2, FIRST, 256), (3, MIDDLE, 256), (4, LAST, 88)] {
            b.response(0, psn, opcode, length);
        }
        b.respond(0, 6, ACK);
        b.placement(0, 2, 0);
        assert_eq!(b.status(), [(2, 0), (3, 0)]);
    }
    // a sequence NAK at the READ itself, and at what is right behind it
    let mut b = reading(|_| ());
    b.send(0, 1, true, 0);
    b.send_read(0, 256, true);
    b.send(0, 1, true, 0);
    b.respond(0, 1, SEQUENCE);
    assert_eq!((b.triple(0), b.requester(0).get("implied")), ((1, 1, 1, 1), 0));
    b.response(0, 1, ONLY, 256);
    b.respond(0, 2, SEQUENCE);
    assert_eq!((b.triple(0), b.rejects.len()), ((2, 2, 2, 1), 0));
}

#[test]
fn an_rnr_nak_behind_a_missing_response_waits_and_goes_back_to_it() {
    let mut b = reading(|_| ());
    b.send_read(0, 256, true);
    b.send(0, 1, true, 0);
    b.respond(0, 1, 0x20 | 12);
    let r = b.requester(0);
    assert_eq!((r.get("waiting"), r.get("epoch"), r.get("una_psn"), r.get("rnr_retries")), (1, 0, 0, 2));
    // within the wait a response is taken, and a gap costs nothing
    b.respond(0, 1, ACK);
    assert_eq!((b.requester(0).get("epoch"), b.requester(0).get("retries")), (0, 3));
    b.response(0, 0, ONLY, 256);
    assert_eq!((b.triple(0).1, b.requester(0).get("waiting")), (1, 1));
    b.expire();
    assert_eq!((b.requester(0).get("epoch"), b.requester(0).get("waiting")), (1, 0));
}

#[test]
fn what_ends_the_qp_comes_behind_the_reads_that_are_still_being_written() {
    for (syndrome, status) in [(0x61u8, 9u8), (0x62, 10), (0x63, 11)] {
        let mut b = reading(|_| ());
        b.send_read(0, 256, true);
        b.send_read(0, 256, true);
        b.send(0, 1, true, 0);
        b.response(0, 0, ONLY, 256);
        b.response(0, 1, ONLY, 256);
        b.respond(0, 2, syndrome);
        assert_eq!((b.status(), b.requester(0).get("halt")), (vec![], 0));
        assert_eq!((b.requester(0).get("fault"), b.requester(0).get("fault_wqe")), (1, 2));
        b.placement(0, 0, 0);
        assert_eq!(b.status(), [(0, 0)]);
        b.placement(0, 1, 0);
        assert_eq!(b.status(), [(1, 0), (2, status)]);
        assert_eq!(b.requester(0).get("halt"), 1);
    }
    // a bad WQE behind a READ, too
    let mut b = reading(|_| ());
    b.send_read(0, 256, true);
    b.send(0, 0, false, 2);
    b.give("kick", &[("qp", 0)]);
    b.response(0, 0, ONLY, 256);
    assert_eq!(b.status(), []);
    b.placement(0, 0, 0);
    assert_eq!(b.status(), [(0, 0), (1, 2)]);
    // and a NAK of the READ itself, at its first and at a later PSN
    for answered in 0..2 {
        let mut b = reading(|_| ());
        b.send(0, 1, true, 0);
        b.send_read(0, 600, true);
        if answered > 0 {
            b.response(0, 1, FIRST, 256);
        }
        b.respond(0, 1 + answered, 0x62);
        assert_eq!(b.status(), [(0, 0), (1, 10)]);
    }
}

#[test]
fn a_read_that_cannot_be_written_fails_in_its_turn() {
    let mut b = reading(|_| ());
    for _ in 0..3 {
        b.send_read(0, 256, true);
    }
    b.response(0, 0, ONLY, 256);
    b.response(0, 1, ONLY, 256);
    b.placement(0, 0, 0);
    b.placement(0, 1, 4);
    assert_eq!(b.status(), [(0, 0), (1, 4)]);
    assert_eq!(b.requester(0).get("halt"), 1);
}

#[test]
fn a_read_longer_than_the_psn_window_ends_in_a_last_before_its_last_packet() {
    let mut b = reading(|_| ());
    b.send_read(0, 1 << 31, true);
    // all but five answered
    let una = (1 << 23) - 5;
    b.rams[1].words[0] = b.requester(0).with("una_psn", una).bits();
    for (n, (opcode, fits)) in [
        (LAST, false),
        (MIDDLE, true),
        (MIDDLE, true),
        (MIDDLE, true),
        // of the request for all but the last
        (MIDDLE, false),
        (LAST, true),
        (FIRST, false),
        (ONLY, true),
    ]
    .into_iter()
    .enumerate()
    {
        let psn = b.triple(0).1;
        b.response(0, psn as u32, opcode, 256);
        assert_eq!(b.triple(0).1, psn + u64::from(fits), "response {n}");
    }
    assert_eq!(b.rejects, [Reject::ResponseMalformed; 3]);
    let last: Vec<u32> = b
        .data
        .iter()
        .filter_map(|d| if let Out::Data(_, _, at, .., true) = d { Some(*at) } else { None })
        .collect();
    assert_eq!(last, [0x7fff_ff00]);
    b.placement(0, 0, 0);
    assert_eq!(b.status(), [(0, 0)]);
}

#[test]
fn while_place_takes_nothing_responses_wait_and_everything_else_goes_on() {
    // whichever turn the scan of deadlines takes
    for wait in 0..8 {
        let mut b = reading(|_| ());
        b.run(wait);
        let answers: Vec<_> = (0..6).map(|psn| (0, psn, ONLY, 256)).collect();
        (0..6).for_each(|_| _ = b.send_read(0, 256, true));
        b.data_ready = false;
        assert_eq!(b.pour(&answers, 200).0, 4, "as many as there is room for");
        b.s.poke("response_valid", 1);
        b.run(1);
        assert_eq!(b.s.peek("stall"), 1, "and the next counts as waiting");
        b.s.poke("response_valid", 0);
        b.placement(0, 0, 0);
        assert_eq!(b.status(), [(0, 0)], "a confirmation passes");
        b.send(1, 1, true, 0);
        b.fault(1, 0, 4);
        assert_eq!(b.status(), [(0, 4)], "a fault passes");
        b.placement(0, 1, 4);
        assert_eq!(b.status(), [(1, 4)], "a failure passes");
        b.data_ready = true;
        b.run(2);
        assert_eq!(b.pour(&answers[4..], 100).0, 2);
        b.run(10);
        // the QP is dead by then
        let kinds: Vec<_> = b.data.iter().map(|d| matches!(d, Out::Data(..))).collect();
        assert_eq!(kinds, [true, true, true, true, false, false]);
    }
}

#[test]
fn a_fence_passes_in_order_behind_the_responses_before_it() {
    let mut b = reading(|_| ());
    b.send_read(0, 256, true);
    b.response(0, 0, ONLY, 256);
    b.data_ready = false;
    b.give("response", &[("fence", 1), ("qp", 3)]);
    b.run(50);
    assert_eq!((b.data.len(), b.s.peek("idle")), (1, 0));
    b.data_ready = true;
    b.run(5);
    assert_eq!(b.data, [Out::Data(0, 0, 0, 256, 0, 0, true), Out::Fence]);
    assert_eq!(b.rejects, []);
}

/// A WQE of the model: its PSNs (free-running), whether it is a READ, whether it is signaled.
#[derive(Clone, Copy)]
struct Wqe {
    first: u64,
    last: u64,
    read: bool,
    signaled: bool,
}

#[test]
fn any_sequence_of_responses_losses_and_confirmations_leaves_what_the_rules_say() {
    let (mut finished, mut gaps, mut rewinds) = (0, 0, 0);
    for seed in 1..=60 {
        let mut pick = Choices::new(seed * 31);
        let rights =
            QpRights { path_mtu: 1, timeout: 20, retry_cnt: 1 + pick.below(7) as u8, ..Default::default() };
        let mut b = reading(|r| (r.timeout, r.retry_cnt) = (20, rights.retry_cnt));
        b.slow = 1 + seed % 3;
        b.hurry = seed % 2 == 1;
        let start = pick.of(&[0u32, 0xff_fff0, 0x7f_fff0]);
        b.start(0, start, &rights);
        let mut work: Vec<Wqe> = vec![];
        let (mut got, mut una, mut placed, mut retired) = (0usize, 0u64, 0usize, 0usize);
        let (mut retries, mut implied, mut epoch) = (rights.retry_cnt, false, 0u64);
        let (mut next, mut done, mut data) = (0u64, vec![], vec![]);
        for step in 0..120 {
            // in a hurry the stage is behind
            let oldest = retired.min(b.triple(0).3 as usize);
            while work.len() - oldest < 8 && !pick.one_in(3) {
                let (read, signaled) = (pick.one_in(2), pick.one_in(2));
                let packets = 1 + pick.below(5);
                if read {
                    b.send_read(0, packets as u32 * 256 - 3, signaled);
                } else {
                    b.send(0, packets as u32, signaled, 0);
                }
                work.push(Wqe { first: next, last: next + packets - 1, read, signaled });
                next += packets;
            }
            let psn = |at: u64| start.wrapping_add(at as u32) & MASK;
            // how far a claim of everything before `to` reaches; whether a READ stops it
            let claim = |to: u64, got: &mut usize, una: &mut u64| {
                while let Some(w) = work.get(*got).filter(|w| !w.read && w.last < to) {
                    *una = w.last + 1;
                    *got += 1;
                }
                let stops = work.get(*got).is_some_and(|w| w.read && *una < to);
                if !stops {
                    *una = to;
                }
                stops
            };
            let before = una;
            let mut costs = false;
            match pick.below(10) {
                _ if una == next => {}
                0..=4 => {
                    // the response or ACK that is next, seldom a later one
                    let ahead = if pick.one_in(6) { pick.below(next - una) } else { 0 };
                    let at = una + ahead;
                    let w = *work.iter().find(|w| w.last >= at).expect("outstanding");
                    if w.read {
                        let last = at == w.last;
                        let (opcode, length) = if last { (LAST, 253) } else { (MIDDLE, 256) };
                        b.response(0, psn(at), opcode, length);
                        let stops = claim(at, &mut got, &mut una);
                        if stops {
                            gaps += 1;
                            costs = una != before || !implied;
                            data.push(Out::Discard((psn(at) & 63) as u8));
                        } else {
                            let entry = work[..got].iter().filter(|w| w.read).count() as u32 & 3;
                            let offset = (at - w.first) as u32 * 256;
                            let slot = (psn(at) & 63) as u8;
                            data.push(Out::Data(0, entry, offset, length, slot, got as u16, last));
                            una = at + 1;
                            got += usize::from(last);
                        }
                    } else {
                        b.respond(0, psn(at), ACK);
                        if claim(at + 1, &mut got, &mut una) {
                            gaps += 1;
                            costs = una != before || !implied;
                        }
                    }
                    if una != before {
                        (retries, implied) = (rights.retry_cnt, false);
                    }
                    implied |= costs;
                }
                5 => {
                    let at = una + pick.below(next - una);
                    b.respond(0, psn(at), SEQUENCE);
                    claim(at, &mut got, &mut una);
                    if una != before {
                        (retries, implied) = (rights.retry_cnt, false);
                    }
                    costs = true;
                }
                6 if pick.one_in(3) && retries > 0 => {
                    b.expire();
                    costs = true;
                }
                _ => {
                    let reads = work[..got].iter().enumerate().filter(|(_, w)| w.read);
                    if let Some((wqe, _)) = reads.clone().nth(placed) {
                        b.placement(0, wqe as u16, 0);
                        placed += 1;
                    }
                }
            }
            let failed = costs && retries == 0;
            if costs && !failed {
                retries -= 1;
                epoch += 1;
                rewinds += 1;
            }
            let mut reads = work[..retired].iter().filter(|w| w.read).count();
            while retired < got && (!work[retired].read || reads < placed) {
                reads += usize::from(work[retired].read);
                if work[retired].signaled {
                    done.push((retired as u16, 0));
                }
                retired += 1;
            }
            if b.hurry && !costs && !pick.one_in(4) {
                continue;
            }
            b.run(60);
            let context = format!("seed {seed}, step {step}");
            if failed {
                // told at once, or when the READs before it are written
                let wqe = got;
                while placed < work[..got].iter().filter(|w| w.read).count() {
                    b.placement(0, 0, 0);
                    placed += 1;
                }
                b.run(40);
                done.extend((retired..got).filter(|i| work[*i].signaled).map(|i| (i as u16, 0)));
                done.push((wqe as u16, RETRY_EXC));
                let seen: Vec<_> = b.done.iter().map(|d| (d.1, d.3)).collect();
                assert_eq!(seen, done, "{context}");
                break;
            }
            b.obey(0);
            let first = work.get(got).map_or(next, |w| w.first);
            assert_eq!(
                b.triple(0),
                (got as u64, psn(una).into(), psn(first).into(), retired as u64),
                "{context}"
            );
            let r = b.requester(0);
            assert_eq!((r.get("retries"), r.get("implied") == 1), (retries.into(), implied), "{context}");
            assert_eq!(r.get("epoch"), epoch & 15, "{context}");
            assert_eq!(b.data, data, "{context}");
            let seen: Vec<_> = b.done.iter().map(|d| (d.1, d.3)).collect();
            assert_eq!(seen, done, "{context}");
        }
        finished += done.len();
    }
    assert!(finished > 600 && gaps > 150 && rewinds > 200, "{finished} {gaps} {rewinds}");
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
        b.hurry = seed % 2 == 1;
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
            while u64::from(m.wqe) + m.work.len() as u64 - b.triple(0).3 < 8 && !pick.one_in(3) {
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
                // in a hurry more is sent before it is looked at: then nothing beyond
                let beyond = if b.hurry { 1 } else { 3 };
                let psn = (m.una + pick.below(span + beyond) as u32).wrapping_sub(1) & MASK;
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
            if b.hurry && m.rewinds == before && !m.halt && !pick.one_in(4) {
                continue;
            }
            b.run(60);
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

#[test]
fn a_raw_frame_is_over_when_gather_tells_that_it_is_on_its_way_and_no_timer_runs_for_it() {
    let mut b = Bench::with(|rights| rights.transport = Transport::Raw as u8);
    b.start(0, 0xff_fffe, &QpRights { retry_cnt: 3, ..Default::default() });
    for signaled in [true, false, true, true] {
        b.send(0, 1, signaled, 0);
    }
    b.settle();
    assert_eq!((b.requester(0).get("armed"), b.done.len()), (0, 0));
    let wakes = b.wakes.len();
    b.fault(0, 0, 0);
    assert_eq!(b.status(), [(0, 0)]);
    assert_eq!(b.triple(0), (1, 0xff_ffff, 0xff_ffff, 1));
    assert_eq!(b.wakes.len(), wakes + 1, "the window moved");
    // an unsignaled one is told by nothing, and one told says that all before it are over
    b.fault(0, 2, 0);
    assert_eq!((b.status(), b.triple(0)), (vec![(2, 0)], (3, 1, 1, 3)));
    // told again: nothing
    b.fault(0, 2, 0);
    assert_eq!((b.status(), b.triple(0)), (vec![], (3, 1, 1, 3)));
    // one that could not be read ends the QP as any other
    b.fault(0, 3, 4);
    assert_eq!((b.status(), b.requester(0).get("halt")), (vec![(3, 4)], 1));
    assert!(b.rejects.is_empty() && b.stage.is_empty());
}
