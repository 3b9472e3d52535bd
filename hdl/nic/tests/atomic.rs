//! atomic, by the interpreter, against a host memory of its own: values, order, equal addresses, failures.
//!
//! Requirements: ATOM

mod bench;

use bench::{Choices, Ram, Word, clock, reset};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::rx::atomic::Atomic;
use std::collections::{BTreeMap, VecDeque};

/// What an atomic does: QP, address, adds, value, compare.
type Job = (usize, u64, bool, u64, u64);

#[derive(Clone, Copy)]
struct Read {
    due: u64,
    iova: u64,
    address: u64,
    id: u64,
    /// Halves of the data that came.
    step: u32,
}

struct Bench {
    s: Interpreter,
    operands: Ram,
    executed: Ram,
    pick: Choices,
    time: u64,
    memory: BTreeMap<u64, u64>,
    waiting: VecDeque<(usize, u64)>,
    reads: Vec<Read>,
    /// Most reads under way together.
    most: usize,
    /// On their way at this time: address and value.
    writes: VecDeque<(u64, u64, u64)>,
    /// Addresses whose reads fail.
    bad: Vec<u64>,
    latency: u64,
    slow: u64,
    /// Entry, failed, original.
    outcomes: Vec<(usize, bool, u64)>,
    wakes: Vec<u64>,
    written: usize,
    lanes: u32,
}

impl Bench {
    fn new(seed: u64, c: Config) -> Bench {
        let lanes = c.data_bytes;
        let mut s = Interpreter::new(&elaborate(&Atomic(c.clone())).unwrap_or_else(|e| panic!("{e}")));
        reset(&mut s);
        let entries = c.responses as usize;
        Bench {
            s,
            operands: Ram::new(entries, 193, "operands_address", "operands_word"),
            executed: Ram::new(c.qps as usize, 8, "executed_address", "executed_word")
                .written_by("executed_write"),
            pick: Choices::new(seed),
            time: 0,
            memory: BTreeMap::new(),
            waiting: VecDeque::new(),
            reads: vec![],
            most: 0,
            writes: VecDeque::new(),
            bad: vec![],
            latency: 50,
            slow: 1,
            outcomes: vec![],
            wakes: vec![],
            written: 0,
            lanes,
        }
    }
    /// Puts an atomic at `entry` of the ring and in the queue.
    fn post(&mut self, entry: usize, (qp, iova, adds, value, compare): Job) {
        let word = Word(vec![
            ("iova", 64, iova),
            ("adds", 1, adds.into()),
            ("value", 64, value),
            ("compare", 64, compare),
        ]);
        self.operands.words[entry] = word.bits();
        self.waiting.push_back((qp, entry as u64));
    }
    fn clock(&mut self) {
        let s = &mut self.s;
        s.poke("exchange_valid", u64::from(!self.waiting.is_empty()));
        if let Some((qp, entry)) = self.waiting.front() {
            s.poke("exchange_qp", *qp as u64);
            s.poke("exchange_entry", *entry);
        }
        for port in ["read", "write", "wake"] {
            s.poke(&format!("{port}_ready"), u64::from(self.pick.one_in(self.slow)));
        }
        let told = self.writes.front().is_some_and(|w| w.0 <= self.time);
        s.poke("written", u64::from(told));
        if told {
            // from here on reads see it
            let (_, iova, value) = self.writes.pop_front().unwrap();
            self.memory.insert(iova, value);
        }
        s.poke("read_data_valid", 0);
        s.poke("read_done_valid", 0);
        let ripe: Vec<usize> = (0..self.reads.len()).filter(|i| self.reads[*i].due <= self.time).collect();
        if !ripe.is_empty() {
            let i = self.pick.of(&ripe);
            let Read { iova, address, id, step, .. } = self.reads[i];
            let fails = self.bad.contains(&iova);
            if step < 2 {
                // four lanes at a time; of one that fails nothing comes, but another client's does
                let mut data = vec![0xee; self.lanes as usize];
                data[..8].copy_from_slice(&self.memory.get(&iova).copied().unwrap_or(0).to_le_bytes());
                let mut lanes = vec![0; self.lanes as usize / 8];
                lanes[0] = 0x0f << (4 * step);
                s.poke("read_data_valid", 1);
                s.poke("read_data_client", if fails { 2 } else { 4 });
                s.poke("read_data_address", address);
                s.poke_bits("read_data_data", &Bits::from_bytes(8 * self.lanes, &data));
                s.poke_bits("read_data_lanes", &Bits::from_bytes(self.lanes, &lanes));
                self.reads[i].step += 1;
            } else {
                self.reads.remove(i);
                // another client's data for the same address of its own memory comes in between
                s.poke("read_data_valid", 1);
                s.poke("read_data_client", self.pick.below(4));
                s.poke("read_data_address", address);
                s.poke_bits(
                    "read_data_data",
                    &Bits::from_bytes(8 * self.lanes, &vec![0x5a; self.lanes as usize]),
                );
                s.poke_bits(
                    "read_data_lanes",
                    &Bits::from_bytes(self.lanes, &vec![0xff; self.lanes as usize / 8]),
                );
                s.poke("read_done_valid", 1);
                s.poke("read_done_client", 4);
                s.poke("read_done_id", id);
                s.poke("read_done_failed", u64::from(fails));
            }
        }
        let moves =
            |s: &mut Interpreter, p: &str| s.peek(&format!("{p}_valid")) & s.peek(&format!("{p}_ready")) == 1;
        if moves(s, "exchange") {
            self.waiting.pop_front();
        }
        if moves(s, "read") {
            assert_eq!(s.peek("read_length"), 8);
            let (iova, address, id) = (s.peek("read_iova"), s.peek("read_address"), s.peek("read_id"));
            let due = self.time + self.latency + self.pick.below(self.latency);
            assert!(!self.reads.iter().any(|r| r.iova == iova), "two reads of one address together");
            assert!(!self.writes.iter().any(|w| w.1 == iova), "a read beside the write of its address");
            self.reads.push(Read { due, iova, address, id, step: 0 });
            self.most = self.most.max(self.reads.len());
        }
        if moves(s, "write") {
            assert_eq!(s.peek("write_dwords"), 2);
            let value = s.peek_bits("write_data");
            let value = (0..64).fold(0, |v, i| v | u64::from(value.bit(i)) << i);
            self.writes.push_back((self.time + 1 + self.pick.below(20), s.peek("write_iova"), value));
            self.written += 1;
        }
        if s.peek("outcome_write_enable") == 1 {
            let at = s.peek("outcome_write_address") as usize;
            let mut word = Word(vec![("failed", 1, 0), ("original", 64, 0)]);
            word.load(&s.peek_bits("outcome_write_data"));
            assert_eq!(s.peek("exchanged"), 1);
            assert!(self.writes.is_empty(), "answered before its write is on its way");
            self.outcomes.push((at, word.get("failed") == 1, word.get("original")));
        }
        if moves(s, "wake") {
            self.wakes.push(s.peek("wake_qp"));
        }
        clock(s, &mut [&mut self.operands, &mut self.executed]);
        self.time += 1;
    }
    fn settle(&mut self) {
        for n in 0.. {
            self.clock();
            if self.waiting.is_empty() && self.s.peek("idle") == 1 {
                return;
            }
            assert!(n < 100_000, "no end");
        }
    }
    fn executed(&self, qp: usize) -> u64 {
        self.executed.words[qp].low()
    }
    fn start(&mut self, qp: usize) {
        for (name, v) in [("valid", 1), ("qp", qp as u64), ("receive", 1)] {
            self.s.poke(&format!("initialise_{name}"), v);
        }
        while self.s.peek("initialise_ready") == 0 {
            self.clock();
        }
        self.clock();
        self.s.poke("initialise_valid", 0);
    }
}

#[test]
fn compare_and_swap_and_fetch_and_add_do_what_they_say() {
    for c in [Config::small(), Config { name: "wide", data_bytes: 64, ..Config::small() }] {
        let mut b = Bench::new(1, c);
        b.memory.insert(0x1000, 7);
        // differs in its lowest bit, in one of the upper half: nothing is written
        b.post(0, (3, 0x1000, false, 99, 6));
        b.post(1, (3, 0x1000, false, 98, 1 << 32 | 7));
        b.post(2, (3, 0x1000, false, 0x1122_3344_5566_7788, 7));
        b.post(3, (3, 0x1000, true, u64::MAX, 0)); // minus one
        b.post(4, (4, 0x1008, true, 5, 0));
        b.settle();
        assert_eq!(
            b.outcomes,
            [(0, false, 7), (1, false, 7), (2, false, 7), (3, false, 0x1122_3344_5566_7788), (4, false, 0)]
        );
        assert_eq!((b.memory[&0x1000], b.memory[&0x1008]), (0x1122_3344_5566_7787, 5));
        assert_eq!((b.written, b.executed(3), b.executed(4)), (3, 4, 1));
        assert_eq!(b.wakes, [3, 3, 3, 3, 4]);
    }
}

#[test]
fn eight_addresses_are_read_together_and_one_address_one_after_the_other() {
    let mut b = Bench::new(2, Config::small());
    for n in 0..32 {
        b.post(n, (n % 5, 0x1000 + 8 * n as u64, true, 1, 0));
    }
    b.settle();
    assert_eq!(b.most, 8);
    (b.most, b.outcomes) = (0, vec![]);
    for n in 0..32 {
        b.post(n, (n % 5, 0x4000, true, 1, 0));
    }
    b.settle();
    assert_eq!((b.most, b.memory[&0x4000]), (1, 32));
    let got: Vec<u64> = b.outcomes.iter().map(|o| o.2).collect();
    assert_eq!(got, (0..32).collect::<Vec<_>>(), "in the order in which they came");
    // one address that is waited for holds up no other
    (b.most, b.outcomes) = (0, vec![]);
    for n in 0..2 {
        b.post(n, (0, 0x5000, true, 1, 0));
    }
    for n in 2..8 {
        b.post(n, (0, 0x6000 + 8 * n as u64, true, 1, 0));
    }
    b.settle();
    assert_eq!(b.most, 7);
}

#[test]
fn a_failed_read_fails_it_and_every_later_atomic_of_its_qp_until_it_starts_anew() {
    let mut b = Bench::new(3, Config::small());
    b.bad.push(0x2000);
    b.post(0, (1, 0x1000, true, 1, 0));
    b.post(1, (1, 0x2000, true, 1, 0));
    b.post(2, (1, 0x1000, true, 1, 0));
    b.post(3, (2, 0x1000, true, 1, 0));
    b.settle();
    let failed: Vec<bool> = b.outcomes.iter().map(|o| o.1).collect();
    assert_eq!((failed, b.written), (vec![false, true, true, false], 2));
    assert_eq!((b.memory[&0x1000], b.executed(1)), (2, 3));
    b.start(1);
    assert_eq!(b.executed(1), 0);
    b.post(4, (1, 0x1000, true, 1, 0));
    b.settle();
    assert_eq!((*b.outcomes.last().unwrap(), b.executed(1)), ((4, false, 2), 1));
}

#[test]
fn any_mix_ends_as_if_one_came_after_the_other() {
    for seed in 1..=8 {
        let mut b = Bench::new(seed, Config::small());
        let mut pick = Choices::new(seed + 100);
        b.latency = 1 + 15 * (seed % 4);
        b.slow = 1 + seed % 3;
        let (mut memory, mut wanted) = (BTreeMap::new(), vec![]);
        for n in 0..400 {
            let iova = 0x1000 + 8 * pick.below(1 + 3 * (seed % 4));
            let old = memory.get(&iova).copied().unwrap_or(0);
            let (adds, value) = (pick.one_in(2), pick.any());
            let compare = if pick.one_in(2) { old } else { pick.any() };
            if adds {
                memory.insert(iova, old.wrapping_add(value));
            } else if old == compare {
                memory.insert(iova, value);
            }
            wanted.push((n % 256, false, old));
            b.post(n % 256, (pick.below(4) as usize, iova, adds, value, compare));
            // an entry is not used again before it is answered
            while b.waiting.len() > pick.below(12) as usize {
                b.clock();
            }
        }
        b.settle();
        assert_eq!(b.outcomes, wanted, "seed {seed}");
        b.memory.retain(|_, value| *value != 0);
        memory.retain(|_, value| *value != 0);
        assert_eq!(b.memory, memory, "seed {seed}");
    }
}

#[test]
fn the_emitted_module_is_clean() {
    bench::lint(&elaborate(&Atomic(Config::small())).unwrap());
}
