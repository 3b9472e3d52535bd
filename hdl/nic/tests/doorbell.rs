//! doorbell, by the interpreter.
//!
//! Requirements: PCIE QPS QUE

mod txkit;

use contract::{CqDoorbell, EqDoorbell, QpRights, Reject, SqDoorbell};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::tx::doorbell::Doorbell;
use txkit::{Choices, lint, reset, wide};

/// What a doorbell led to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Sq(u64, u64),
    Rq(u64, u64),
    Cq(u64, u64),
    Eq(u64, u64),
    Reject(Reject),
}

struct Bench {
    s: Interpreter,
    rights: Vec<QpRights>,
    events: Vec<Event>,
    clocks: u64,
}

impl Bench {
    /// QP q belongs to page q / 2; QPs from 60 on do not exist.
    fn new() -> Bench {
        let mut s = Interpreter::new(&elaborate(&Doorbell(Config::small())).unwrap());
        reset(&mut s);
        s.poke("cq_ready", 1);
        s.poke("eq_ready", 1);
        let rights =
            (0..64u16).map(|q| QpRights { valid: q < 60, page: q / 2, ..QpRights::default() }).collect();
        Bench { s, rights, events: vec![], clocks: 0 }
    }

    fn clock(&mut self) {
        let s = &mut self.s;
        for (post, pulse) in [("post_sq", "wake"), ("post_rq", "receive")] {
            let stored = s.peek(&format!("{post}_enable")) == 1;
            if s.peek(&format!("{pulse}_valid")) == 1 {
                assert!(stored, "{pulse} without its producer");
                let qp = s.peek(&format!("{pulse}_qp"));
                assert_eq!(s.peek(&format!("{post}_address")), qp);
                let producer = s.peek(&format!("{post}_data"));
                self.events.push(if pulse == "wake" {
                    Event::Sq(qp, producer)
                } else {
                    Event::Rq(qp, producer)
                });
            } else {
                assert!(!stored || s.peek("initialise_ready") == 1);
            }
        }
        for queue in ["cq", "eq"] {
            if s.peek(&format!("{queue}_valid")) == 1 && s.peek(&format!("{queue}_ready")) == 1 {
                let (page, data) = (s.peek(&format!("{queue}_page")), s.peek(&format!("{queue}_data")));
                self.events.push(if queue == "cq" { Event::Cq(page, data) } else { Event::Eq(page, data) });
            }
        }
        if s.peek("count_valid") == 1 {
            let code = s.peek("count_index") as u8;
            self.events.push(Event::Reject(Reject::from_code(code).unwrap()));
        }
        let q = s.peek("read_qp") as usize;
        s.clock();
        s.poke_bits("rights_word", &Bits::from_bytes(256, &self.rights[q].pack()));
        self.clocks += 1;
    }

    /// Writes and gives what followed.
    fn write(&mut self, page: u64, offset: u64, data: [u8; 8]) -> Vec<Event> {
        self.events.clear();
        self.start(page, offset, data);
        for _ in 0..4 {
            self.clock();
        }
        self.events.clone()
    }

    fn start(&mut self, page: u64, offset: u64, data: [u8; 8]) {
        self.s.poke("write_valid", 1);
        self.s.poke("write_page", page);
        self.s.poke("write_offset", offset);
        self.s.poke("write_data", u64::from_le_bytes(data));
        for _ in 0..100 {
            let taken = self.s.peek("write_ready") == 1;
            self.clock();
            if taken {
                self.s.poke("write_valid", 0);
                return;
            }
        }
        panic!("a doorbell was not taken");
    }
}

fn bell(qpn: u32, producer: u16) -> [u8; 8] {
    SqDoorbell { qpn, producer, pushed: false }.pack()
}

#[test]
fn send_and_receive_doorbells_store_their_producer_and_wake() {
    let mut b = Bench::new();
    for (qpn, producer) in [(0, 1), (1, 0xffff), (59, 0x8000), (33, 0)] {
        let page = u64::from(qpn / 2);
        let (q, p) = (u64::from(qpn), u64::from(producer));
        assert_eq!(b.write(page, 0, bell(qpn, producer)), [Event::Sq(q, p)]);
        assert_eq!(b.write(page, 8, bell(qpn, producer)), [Event::Rq(q, p)]);
    }
    assert_eq!(b.s.peek("idle"), 1);
}

#[test]
fn a_doorbell_for_anothers_or_no_qp_is_refused_by_name() {
    let mut b = Bench::new();
    for offset in [0, 8] {
        for (page, qpn, reject) in [
            (0, 2, Reject::DoorbellOwner),
            (1, 1, Reject::DoorbellOwner),
            (63, 59, Reject::DoorbellOwner),
            (30, 60, Reject::DoorbellUnknown),
            (31, 63, Reject::DoorbellUnknown),
            (0, 64, Reject::DoorbellUnknown),
            (0, 0x80_0000, Reject::DoorbellUnknown),
        ] {
            assert_eq!(b.write(page, offset, bell(qpn, 5)), [Event::Reject(reject)], "page {page} QP {qpn}");
        }
    }
}

#[test]
fn queue_doorbells_pass_on_as_they_are() {
    let mut b = Bench::new();
    let cq = CqDoorbell { cqn: 0x12_3456, arm: 2, consumer: 0xab_cdef }.pack();
    let eq = EqDoorbell { eqn: 3, arm: true, consumer: 9 }.pack();
    assert_eq!(b.write(17, 0x10, cq), [Event::Cq(17, u64::from_le_bytes(cq))]);
    assert_eq!(b.write(0, 0x18, eq), [Event::Eq(0, u64::from_le_bytes(eq))]);
    assert_eq!(b.write(1, 0x18, eq), [Event::Reject(Reject::DoorbellOwner)], "page 0 only");
}

#[test]
fn every_other_offset_is_malformed() {
    let mut b = Bench::new();
    for offset in [0x1u64, 0x4, 0x9, 0x20, 0x28, 0x100, 0x7f8, 0x900, 0xff8, 0xfff] {
        assert_eq!(b.write(0, offset, bell(0, 1)), [Event::Reject(Reject::DoorbellMalformed)], "{offset:#x}");
    }
}

#[test]
fn stores_to_the_push_buffer_pass_on_as_they_are_and_every_doorbell_is_told() {
    let mut b = Bench::new();
    for (offset, word) in [(0x800, 0), (0x848, 9), (0x8f8, 31)] {
        b.s.poke("write_valid", 1);
        b.s.poke("write_page", 3);
        b.s.poke("write_offset", offset);
        b.s.poke("write_data", 0x0123_4567_89ab_cdef);
        b.s.poke("write_enables", 0x3c);
        let seen = ["valid", "page", "word", "data", "enables"].map(|f| b.s.peek(&format!("store_{f}")));
        assert_eq!((seen, b.s.peek("write_ready")), ([1, 3, word, 0x0123_4567_89ab_cdef, 0x3c], 1));
        b.clock();
        b.s.poke("write_valid", 0);
        for _ in 0..2 {
            assert_eq!((b.s.peek("store_valid"), b.s.peek("push_valid")), (0, 0), "a store is no doorbell");
            b.clock();
        }
    }
    assert_eq!(b.events, []);
    // QP 9 belongs to page 4
    for (page, offset, flag, pushed, events) in [
        (4, 0, true, 1, vec![Event::Sq(9, 0x1235)]),
        (4, 0, false, 0, vec![Event::Sq(9, 0x1235)]),
        (4, 8, true, 0, vec![Event::Rq(9, 0x1235)]),
        (5, 0, true, 0, vec![Event::Reject(Reject::DoorbellOwner)]),
        (4, 0x20, true, 0, vec![Event::Reject(Reject::DoorbellMalformed)]),
    ] {
        b.events.clear();
        b.s.poke("write_valid", 1);
        b.s.poke("write_page", page);
        b.s.poke("write_offset", offset);
        let bell = SqDoorbell { qpn: 9, producer: 0x1235, pushed: flag };
        b.s.poke("write_data", u64::from_le_bytes(bell.pack()));
        b.clock();
        let seen = ["valid", "page", "pushed", "qp", "index"].map(|f| b.s.peek(&format!("push_{f}")));
        assert_eq!(seen, [1, page, pushed, 9, 0x1234]);
        b.clock();
        b.s.poke("write_valid", 0);
        b.clock();
        assert_eq!(b.events, events);
    }
}

#[test]
fn a_full_way_to_complete_holds_doorbells_and_loses_none() {
    let mut b = Bench::new();
    b.s.poke("cq_ready", 0);
    for i in 0..2u8 {
        b.start(4, 0x10, [i; 8]);
    }
    b.s.poke("write_valid", 1);
    b.s.poke("write_data", 0x0202_0202_0202_0202);
    for _ in 0..10 {
        assert_eq!(b.s.peek("write_ready"), 0);
        b.clock();
    }
    b.s.poke("cq_ready", 1);
    b.start(4, 0x10, [2; 8]);
    for _ in 0..4 {
        b.clock();
    }
    let want: Vec<Event> = (0..3).map(|i| Event::Cq(4, 0x0101_0101_0101_0101 * i)).collect();
    assert_eq!(b.events, want);
}

#[test]
fn a_reset_clears_both_producers_and_a_start_does_not() {
    let mut b = Bench::new();
    for (reset, clears) in [(0, 0), (1, 1)] {
        b.s.poke("initialise_valid", 1);
        b.s.poke("initialise_qp", 44);
        b.s.poke("initialise_send", 1);
        b.s.poke("initialise_reset", reset);
        assert_eq!(b.s.peek("initialise_ready"), 1);
        for post in ["post_sq", "post_rq"] {
            assert_eq!(b.s.peek(&format!("{post}_enable")), clears);
            assert_eq!((b.s.peek(&format!("{post}_address")), b.s.peek(&format!("{post}_data"))), (44, 0));
        }
        b.clock();
        b.s.poke("initialise_valid", 0);
    }
    assert!(b.events.is_empty());
}

#[test]
fn random_writes_do_what_a_table_says_at_one_per_two_clocks() {
    for seed in 1..=4 {
        let mut pick = Choices::new(seed);
        let mut b = Bench::new();
        let mut want = vec![];
        let from = b.clocks;
        for _ in 0..500 {
            let (page, qpn) = (pick.below(40), pick.below(70) as u32);
            let page = if pick.chance(50) { u64::from(qpn / 2) % 64 } else { page };
            let offset = pick.below(6) * 8;
            let producer = pick.below(0x1_0000) as u16;
            let data = bell(qpn, producer);
            let exists = qpn < 60;
            let own = u64::from(qpn / 2) == page;
            want.push(match offset {
                0x20.. => Event::Reject(Reject::DoorbellMalformed),
                0x18 if page > 0 => Event::Reject(Reject::DoorbellOwner),
                0x18 => Event::Eq(page, u64::from_le_bytes(data)),
                0x10 => Event::Cq(page, u64::from_le_bytes(data)),
                _ if !exists => Event::Reject(Reject::DoorbellUnknown),
                _ if !own => Event::Reject(Reject::DoorbellOwner),
                0x8 => Event::Rq(u64::from(qpn), u64::from(producer)),
                _ => Event::Sq(u64::from(qpn), u64::from(producer)),
            });
            b.start(page, offset, data);
        }
        assert_eq!(b.clocks - from, 1000);
        for _ in 0..4 {
            b.clock();
        }
        // forwarded doorbells come a clock later than the others: compare each kind in its order
        for kind in 0..3 {
            let of = |e: &&Event| match e {
                Event::Cq(..) => kind == 0,
                Event::Eq(..) => kind == 1,
                _ => kind == 2,
            };
            let (got, want): (Vec<_>, Vec<_>) =
                (b.events.iter().filter(of).collect(), want.iter().filter(of).collect());
            assert_eq!(got, want, "seed {seed}");
        }
    }
}

#[test]
fn the_emitted_text_is_clean() {
    for c in [Config::small(), wide()] {
        lint(&elaborate(&Doorbell(c)).unwrap());
    }
}
