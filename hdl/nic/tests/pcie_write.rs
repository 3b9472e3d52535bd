//! The write engine and the arbiter of the request interface. Every TLP is judged by rules written from the bus's
//! side, and must be the next bytes of the oldest write taken.
//!
//! Requirements: ATOM MEM PCIE QUE

mod common;

use common::Choices;
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::pcie::transmit::Transmit;
use nic::pcie::write::Write;
use std::collections::VecDeque;

const REQUESTER: u32 = 0x1a08;

/// A write asked for.
#[derive(Clone, Debug)]
struct Job {
    /// 0 payload, 1 complete, 2 atomic.
    source: usize,
    iova: u64,
    /// Byte address in the packet buffer (payload).
    address: u64,
    bytes: Vec<u8>,
    relaxed: bool,
    /// The bytes come with the request, not from the packet buffer.
    value: bool,
}

struct Bench {
    sim: Interpreter,
    width: usize,
    pick: Choices,
    seed: u64,
    cycle: u64,
    mps: u64,
    allow_relaxed: bool,
    buffer: Vec<u8>,
    /// What the buffer answers in this clock.
    word: Vec<u8>,
    waiting: [VecDeque<Job>; 3],
    /// The source offers its oldest write.
    willing: [bool; 3],
    /// Taken, with the cycle, and what of it has left.
    taken: VecDeque<(u64, Job)>,
    left: u64,
    /// The TLP under way: header and data so far.
    tlp: Option<(u128, Vec<u8>)>,
    offered: Option<(u128, Vec<u8>)>,
    request_of_10: u64,
    source_of_10: u64,
    beats: Vec<u64>,
    tlps: Vec<(u64, u64)>,
    order: Vec<(u64, usize)>,
    finished: Vec<(u64, usize)>,
    written: u64,
}

impl Bench {
    fn new(c: Config, seed: u64) -> Bench {
        let mut sim = Interpreter::new(&elaborate(&Write(c.clone())).unwrap());
        sim.poke("pcie_requester_id", u64::from(REQUESTER));
        sim.poke("reset", 1);
        (0..3).for_each(|_| sim.clock());
        sim.poke("reset", 0);
        let mut pick = Choices::new(seed);
        let buffer = (0..c.packet_buffer_bytes).map(|_| pick.below(256) as u8).collect();
        let width = c.data_bytes as usize;
        let mut b = Bench {
            sim,
            width,
            pick,
            seed,
            cycle: 0,
            mps: 0,
            allow_relaxed: false,
            buffer,
            word: vec![0; width],
            waiting: Default::default(),
            willing: [false; 3],
            taken: VecDeque::new(),
            left: 0,
            tlp: None,
            offered: None,
            request_of_10: 7,
            source_of_10: 10,
            beats: vec![],
            tlps: vec![],
            order: vec![],
            finished: vec![],
            written: 0,
        };
        b.bus(1, true);
        b
    }
    fn bus(&mut self, code: u32, allow_relaxed: bool) {
        (self.mps, self.allow_relaxed) = (128 << code.min(5), allow_relaxed);
        self.sim.poke("pcie_max_payload", u64::from(code));
        self.sim.poke("pcie_relaxed_ordering", u64::from(allow_relaxed));
    }
    fn payload(&mut self, iova: u64, length: u64, address: u64, relaxed: bool) {
        let size = self.buffer.len() as u64;
        let bytes = (0..length).map(|i| self.buffer[((address + i) % size) as usize]).collect();
        self.waiting[0].push_back(Job { source: 0, iova, address, bytes, relaxed, value: false });
    }
    /// Eight bytes that come with the request.
    fn value(&mut self, iova: u64, value: u64) {
        let bytes = value.to_le_bytes().to_vec();
        self.waiting[0].push_back(Job {
            source: 0,
            iova,
            address: 0x123,
            bytes,
            relaxed: false,
            value: true,
        });
    }
    fn small(&mut self, source: usize, iova: u64, dwords: u64) {
        let bytes = (0..dwords * 4).map(|_| self.pick.below(256) as u8).collect();
        self.waiting[source].push_back(Job { source, iova, address: 0, bytes, relaxed: false, value: false });
    }

    /// The rules of a memory write; its first byte and its bytes.
    fn judge(&self, header: u128, data: &[u8], relaxed: bool) -> (u64, Vec<u8>) {
        let why = format!("seed {} cycle {} header {header:032x}", self.seed, self.cycle);
        let dw: Vec<u32> = (0..4).map(|i| (header >> (96 - 32 * i)) as u32).collect();
        let length = match dw[0] & 0x3ff {
            0 => 1024,
            n => u64::from(n),
        };
        assert_eq!(dw[0] & 0x1fff_dc00, 0, "type, TC, NS, TD, EP: {why}");
        assert_eq!(dw[0] >> 13 & 1 == 1, relaxed, "RO: {why}");
        let address = match dw[0] >> 29 {
            2 => {
                assert_eq!(dw[3], 0, "{why}");
                u64::from(dw[2])
            }
            3 => {
                assert_ne!(dw[2], 0, "4-DW header below 4 GiB: {why}");
                u64::from(dw[2]) << 32 | u64::from(dw[3])
            }
            f => panic!("fmt {f}: {why}"),
        };
        assert_eq!(address & 3, 0, "{why}");
        assert_eq!(dw[1] >> 8, REQUESTER << 8, "{why}");
        assert!(length * 4 <= self.mps, "MPS: {why}");
        assert_eq!(address >> 12, (address + length * 4 - 1) >> 12, "4 KiB: {why}");
        assert_eq!(data.len(), (length as usize * 4).next_multiple_of(self.width), "beats: {why}");
        let (first_be, last_be) = (dw[1] & 15, dw[1] >> 4 & 15);
        assert!((length == 1) == (last_be == 0) && first_be != 0, "BE: {why}");
        let enabled = |i: u64| match i / 4 {
            0 => first_be >> (i % 4) & 1 == 1,
            d if d == length - 1 => last_be >> (i % 4) & 1 == 1,
            _ => true,
        };
        let lanes: Vec<u64> = (0..length * 4).filter(|i| enabled(*i)).collect();
        assert_eq!(lanes[lanes.len() - 1] - lanes[0] + 1, lanes.len() as u64, "holes: {why}");
        (address + lanes[0], lanes.iter().map(|i| data[*i as usize]).collect())
    }

    fn step(&mut self) {
        let why = format!("seed {} cycle {}", self.seed, self.cycle);
        self.sim.poke_bits("packet_word", &Bits::from_bytes(self.width as u32 * 8, &self.word));
        const NAMES: [&str; 3] = ["payload", "complete", "atomic"];
        for (i, name) in NAMES.iter().enumerate() {
            // once offered, it stays offered
            self.willing[i] |= self.pick.below(10) < self.source_of_10;
            let front = self.waiting[i].front().filter(|_| self.willing[i]);
            self.sim.poke(&format!("{name}_valid"), u64::from(front.is_some()));
            if let Some(j) = front {
                self.sim.poke(&format!("{name}_iova"), j.iova);
                if i == 0 {
                    self.sim.poke("payload_length", j.bytes.len() as u64);
                    self.sim.poke("payload_address", j.address);
                    self.sim.poke("payload_relaxed", u64::from(j.relaxed));
                    let value =
                        u64::from_le_bytes(j.bytes.get(..8).map_or([0; 8], |b| b.try_into().unwrap()));
                    self.sim.poke("payload_is_value", u64::from(j.value));
                    self.sim.poke("payload_value", if j.value { value } else { !value });
                } else {
                    let mut data = j.bytes.clone();
                    data.resize(64, 0);
                    self.sim.poke(&format!("{name}_dwords"), j.bytes.len() as u64 / 4);
                    self.sim.poke_bits(&format!("{name}_data"), &Bits::from_bytes(512, &data));
                }
            }
        }
        let ready = self.pick.below(10) < self.request_of_10;
        self.sim.poke("request_ready", u64::from(ready));
        let mut taken = 0;
        for (i, name) in NAMES.iter().enumerate() {
            if self.willing[i] && !self.waiting[i].is_empty() && self.sim.peek(&format!("{name}_ready")) == 1
            {
                let j = self.waiting[i].pop_front().expect("offered");
                self.willing[i] = false;
                self.order.push((self.cycle, i));
                self.taken.push_back((self.cycle, j));
                taken += 1;
            }
        }
        assert!(taken <= 1, "{why}");

        let mut ended = None;
        if self.sim.peek("request_valid") == 1 {
            let header = self.sim.peek_bits("request_header").low128();
            let data = self.sim.peek_bits("request_data").to_bytes();
            let (first, last) = (self.sim.peek("request_first") == 1, self.sim.peek("request_last") == 1);
            if let Some(before) = self.offered.take() {
                assert_eq!(before, (header, data.clone()), "an offered beat changed: {why}");
            }
            if ready {
                self.beats.push(self.cycle);
                assert_eq!(first, self.tlp.is_none(), "first: {why}");
                let (h, mut all) = self.tlp.take().unwrap_or((header, vec![]));
                assert_eq!(h, header, "the header is held: {why}");
                all.extend(data);
                if last {
                    ended = self.tlp_ended(header, &all);
                } else {
                    self.tlp = Some((header, all));
                }
            } else {
                self.offered = Some((header, data));
            }
        } else {
            assert!(self.offered.is_none(), "an offered beat vanished: {why}");
        }
        assert_eq!(self.sim.peek("atomic_written") == 1, ended == Some(2), "{why}");
        if self.sim.peek("written") == 1 {
            self.written += 1;
            if ended != Some(0) {
                let (_, j) =
                    self.taken.pop_front().unwrap_or_else(|| panic!("written without a write: {why}"));
                assert!(j.source == 0 && j.bytes.is_empty(), "written too soon: {why} {j:?}");
                self.finished.push((self.cycle, 0));
            }
        } else {
            assert_ne!(ended, Some(0), "not told as written: {why}");
        }
        // the memory answers one clock later
        let at = self.sim.peek("packet_address") as usize * self.width;
        self.word = self.buffer[at..at + self.width].to_vec();
        self.sim.clock();
        assert!(self.sim.failures().is_empty(), "{:?}: {why}", self.sim.failures());
        self.cycle += 1;
    }
    /// Judges a whole TLP; the source of the write that ends with it.
    fn tlp_ended(&mut self, header: u128, data: &[u8]) -> Option<usize> {
        let why = format!("seed {} cycle {}", self.seed, self.cycle);
        let (_, job) = self.taken.front().unwrap_or_else(|| panic!("a TLP of nothing: {why}")).clone();
        let (first, bytes) = self.judge(header, data, job.relaxed && self.allow_relaxed);
        let from = self.left as usize;
        assert_eq!(first, job.iova + self.left, "{why} {job:?}");
        assert!(from + bytes.len() <= job.bytes.len(), "too many bytes: {why} {job:?}");
        assert_eq!(bytes, job.bytes[from..from + bytes.len()], "{why} {job:?}");
        self.left += bytes.len() as u64;
        self.tlps.push((self.cycle, bytes.len() as u64));
        if self.left < job.bytes.len() as u64 {
            assert_eq!((first + bytes.len() as u64) % self.mps, 0, "cut for no reason: {why} {job:?}");
            return None;
        }
        self.left = 0;
        self.taken.pop_front();
        self.finished.push((self.cycle, job.source));
        Some(job.source)
    }
    fn run(&mut self, cycles: u64) {
        (0..cycles).for_each(|_| self.step());
    }
    fn settle(&mut self) {
        let mut left = 60_000;
        while !self.taken.is_empty() || self.waiting.iter().any(|w| !w.is_empty()) {
            self.step();
            left -= 1;
            assert!(left > 0, "seed {}: writes hang: {:?}", self.seed, self.taken);
        }
        self.run(4);
        assert_eq!(self.sim.peek("idle"), 1, "seed {}", self.seed);
        assert_eq!(self.sim.peek("word_queue.level"), 0, "words left over, seed {}", self.seed);
    }
}

#[test]
fn every_buffer_alignment_reaches_every_host_alignment() {
    let mut b = Bench::new(Config::small(), 1);
    b.request_of_10 = 9;
    let mut n = 0;
    for length in [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 24, 31] {
        for lane in 0..8 {
            for host in 0..8 {
                n += 1;
                // near an MPS boundary, so that many are cut
                let base = if n % 2 == 0 { 0x7_0000_0000 } else { 0x1000 };
                b.payload(base + 0x100 * (n % 9) + 248 + host, length, 64 * (n % 500) + lane, false);
            }
        }
        b.settle();
    }
    assert_eq!(b.written, 16 * 64);
    for c in ["upper_word_kept", "word_given_up", "refilled_at_once"] {
        assert!(b.sim.covered(c) > 0, "{c} never happened");
    }
}

#[test]
fn a_value_reaches_every_alignment_lowest_byte_first() {
    for c in [Config::small(), Config { name: "wide", data_bytes: 64, ..Config::small() }] {
        let mut b = Bench::new(c, 11);
        for host in 0..64 {
            // across 4 KiB and blocks of 256, too
            for base in [0x1000, 0x7_0000_10c0, 0x1fc0] {
                b.value(base + host, 0x0807_0605_0403_0201u64.wrapping_mul(host + 1));
                b.payload(base + host, 9, 64 + host, false);
            }
        }
        b.settle();
        assert_eq!(b.written, 2 * 3 * 64);
    }
}

#[test]
fn random_writes_of_all_sources_keep_their_order_and_their_bytes_at_every_bus_setting() {
    for seed in 1..=10u64 {
        let mut b = Bench::new(Config::small(), seed);
        b.bus([0, 1, 2, 3, 5, 4, 7][seed as usize % 7], seed % 2 == 0);
        b.request_of_10 = 3 + seed % 8;
        b.source_of_10 = 1 + seed % 10;
        for _ in 0..60 {
            let bases = [0x1000, 0xffff_e000, 0xff_0000_0000, 0xffff_ffff_ffff_0000];
            let iova = bases[b.pick.below(4) as usize] + b.pick.below(8192);
            match b.pick.below(7) {
                0 => {
                    let dwords = 1 + b.pick.below(16);
                    let source = 1 + b.pick.below(2) as usize;
                    b.small(source, iova & !3, dwords);
                }
                1 => b.small(1, iova & !63, 16),
                k => {
                    let most = [1, 8192, 4096, 1024, 64, 16][k as usize - 1];
                    let length = b.pick.below(most);
                    let address = b.pick.below(32768);
                    let relaxed = b.pick.below(2) == 0;
                    b.payload(iova, length, address, relaxed);
                }
            }
            let cycles = b.pick.below(150);
            b.run(cycles);
        }
        b.settle();
    }
}

#[test]
fn a_write_of_zero_bytes_is_told_in_its_turn_and_sends_nothing() {
    let mut b = Bench::new(Config::small(), 2);
    b.payload(0x1000, 100, 0, false);
    b.payload(0x9000, 0, 5, false);
    b.payload(0x2000, 1, 7, false);
    b.payload(0x9000, 0, 5, false);
    b.settle();
    assert_eq!((b.written, b.tlps.len()), (4, 2));
}

#[test]
fn small_writes_go_before_waiting_payload_and_take_turns() {
    let mut b = Bench::new(Config::small(), 3);
    for n in 0..4 {
        b.payload(0x1000, 64, 0, true);
        for source in 1..3 {
            b.small(source, 0x8000 + 64 * n, 16);
        }
    }
    b.settle();
    let order: Vec<usize> = b.order.iter().map(|o| o.1).collect();
    assert_eq!(order, [2, 1, 2, 1, 2, 1, 2, 1, 0, 0, 0, 0]);
    assert_eq!(b.finished.iter().map(|f| f.1).collect::<Vec<_>>(), order);
}

/// Beats and clocks of one payload write, and the clocks from its acceptance to its first beat.
fn throughput(c: Config, iova: u64, length: u64, address: u64, code: u32) -> (usize, u64, u64) {
    let mut b = Bench::new(c, 4);
    b.bus(code, false);
    b.request_of_10 = 10;
    b.payload(iova, length, address, false);
    b.settle();
    let (first, last) = (b.beats[0], *b.beats.last().unwrap());
    (b.beats.len(), last - first + 1, first - b.order[0].0)
}

#[test]
fn a_long_write_takes_one_beat_per_clock_without_a_bubble_between_its_tlps() {
    let c = Config::small();
    assert_eq!(throughput(c.clone(), 0x4000, 4096, 0, 1), (512, 512, 6));
    // buffer off by 6 (the payload behind the headers), host aligned: 16 TLPs of 32 beats
    assert_eq!(throughput(c.clone(), 0x4000, 4096, 70, 1), (512, 512, 6));
    // host off by 5: 17 TLPs; of the first one 251 bytes from lane 1
    assert_eq!(throughput(c.clone(), 0x4005, 4096, 64, 1), (513, 513, 6));
    assert_eq!(throughput(c.clone(), 0x4004, 1024, 67, 0), (129, 129, 6));
    // one word more at the start
    assert_eq!(throughput(c, 0x4007, 1024, 66, 2), (129, 129, 6));
}

/// Clocks from the first to the last of the beats of equal writes.
fn back_to_back(writes: u64, beats: u64, ask: impl Fn(&mut Bench, u64)) -> u64 {
    let mut b = Bench::new(Config::small(), 5);
    b.request_of_10 = 10;
    (0..writes).for_each(|n| ask(&mut b, n));
    b.settle();
    assert_eq!(b.beats.len() as u64, writes * beats);
    b.beats[b.beats.len() - 1] - b.beats[0] + 1
}

#[test]
fn short_writes_follow_every_clock_and_with_a_word_left_over_every_two() {
    assert_eq!(back_to_back(32, 1, |b, n| b.payload(0x4000 + n * 8, 8, n * 8, false)), 32);
    // CQEs
    assert_eq!(back_to_back(8, 8, |b, n| b.small(1, 0x4000 + n * 64, 16)), 64);
    // two words for one beat: the second is fetched, and given up
    assert_eq!(back_to_back(32, 1, |b, n| b.payload(0x4000 + n * 8, 8, n * 16 + 3, false)), 1 + 31 * 2);
    // packets of 1024 whose payload starts at lane 6
    assert_eq!(
        back_to_back(8, 128, |b, n| b.payload(0x4000 + n * 1024, 1024, n * 2048 + 6, false)),
        1024 + 7
    );
}

#[test]
fn the_wide_datapath_moves_the_same_bytes() {
    for seed in 31..=34 {
        let mut b = Bench::new(Config { name: "wide", data_bytes: 64, ..Config::small() }, seed);
        for _ in 0..40 {
            let iova = 0xffff_e000 + b.pick.below(8192);
            let (length, address) = (b.pick.below(1500), b.pick.below(32768));
            b.payload(iova, length, address, true);
            b.small(1, iova & !63, 16);
            let dwords = 1 + b.pick.below(16);
            b.small(2, iova & !3, dwords);
        }
        b.settle();
    }
}

/// Two sources of TLPs before the arbiter; what comes out must be whole TLPs of each in order.
struct Arbiter {
    sim: Interpreter,
    /// Beats: source, number, first, last.
    queues: [VecDeque<(u64, bool, bool)>; 2],
    sent: [Vec<u64>; 2],
    order: Vec<usize>,
    clocks: u64,
    beats: u64,
    open: Option<usize>,
    held: Option<u128>,
}

impl Arbiter {
    fn new() -> Arbiter {
        let mut sim = Interpreter::new(&elaborate(&Transmit(Config::small())).unwrap());
        for (n, v) in [("posted_ok", 1), ("nonposted_ok", 1), ("bus_master", 1)] {
            sim.poke(n, v);
        }
        sim.poke("reset", 1);
        sim.clock();
        sim.poke("reset", 0);
        Arbiter {
            sim,
            queues: Default::default(),
            sent: Default::default(),
            order: vec![],
            clocks: 0,
            beats: 0,
            open: None,
            held: None,
        }
    }
    fn tlp(&mut self, source: usize, beats: u64) {
        for i in 0..beats {
            let n = self.queues[source].len() as u64 | (source as u64) << 32 | 1 << 40;
            self.queues[source].push_back((n, i == 0, i + 1 == beats));
        }
    }
    fn step(&mut self, willing: [bool; 2], ready: bool) {
        for (i, name) in ["write", "read"].iter().enumerate() {
            let front = self.queues[i].front().filter(|_| willing[i]);
            self.sim.poke(&format!("{name}_valid"), u64::from(front.is_some()));
            if let Some((n, first, last)) = front {
                self.sim.poke_bits(&format!("{name}_header"), &Bits::new(128, u128::from(*n)));
                self.sim.poke(&format!("{name}_data"), *n);
                self.sim.poke(&format!("{name}_first"), u64::from(*first));
                self.sim.poke(&format!("{name}_last"), u64::from(*last));
            }
        }
        self.sim.poke("rq_ready", u64::from(ready));
        let moved: Vec<bool> = (0..2)
            .map(|i| {
                let name = ["write", "read"][i];
                willing[i] && !self.queues[i].is_empty() && self.sim.peek(&format!("{name}_ready")) == 1
            })
            .collect();
        let valid = self.sim.peek("rq_valid") == 1;
        let header = self.sim.peek_bits("rq_header").low128();
        if let Some(h) = self.held.take() {
            assert!(valid && h == header, "an offered beat changed");
        }
        if valid && !ready {
            self.held = Some(header);
        }
        for (i, moved) in moved.into_iter().enumerate() {
            if moved {
                let (n, first, last) = self.queues[i].pop_front().expect("moved");
                assert!(self.open.is_none_or(|o| o == i), "TLPs are mixed");
                assert_eq!(first, self.open.is_none());
                self.open = (!last).then_some(i);
                if valid {
                    assert!(ready);
                    assert_eq!((header as u64, self.sim.peek("rq_data")), (n, n));
                    self.sent[i].push(n);
                    self.beats += 1;
                    if last {
                        self.order.push(i);
                        assert_eq!(self.sim.peek(["write_sent", "read_sent"][i]), 1);
                    }
                }
            }
        }
        self.sim.clock();
        self.clocks += 1;
    }
}

#[test]
fn writes_and_reads_alternate_without_a_bubble() {
    let mut a = Arbiter::new();
    for _ in 0..6 {
        a.tlp(0, 5);
        a.tlp(1, 1);
    }
    for _ in 0..36 {
        a.step([true, true], true);
    }
    assert_eq!((a.beats, a.clocks), (36, 36));
    assert!(a.order.windows(2).all(|w| w[0] != w[1]), "{:?}", a.order);
}

#[test]
fn without_credit_of_one_kind_the_other_goes_on() {
    for (name, blocked) in [("posted_ok", 0), ("nonposted_ok", 1)] {
        let mut a = Arbiter::new();
        for _ in 0..4 {
            a.tlp(0, 3);
            a.tlp(1, 1);
        }
        a.sim.poke(name, 0);
        (0..40).for_each(|_| a.step([true, true], true));
        assert_eq!(a.order, vec![1 - blocked; 4]);
        a.sim.poke(name, 1);
        (0..40).for_each(|_| a.step([true, true], true));
        assert_eq!(a.order[4..], [blocked; 4]);
    }
}

#[test]
fn an_offer_stands_though_its_credit_is_gone() {
    let mut a = Arbiter::new();
    a.tlp(0, 2);
    a.tlp(1, 1);
    a.step([true, false], false);
    a.sim.poke("posted_ok", 0);
    a.step([true, true], false);
    a.step([true, true], true);
    a.step([true, true], true);
    a.step([true, true], true);
    assert_eq!(a.order, [0, 1]);
}

#[test]
fn whole_tlps_arrive_in_order_under_any_back_pressure() {
    for seed in 1..=6 {
        let mut pick = Choices::new(seed);
        let mut a = Arbiter::new();
        for _ in 0..60 {
            let (source, beats) = (pick.below(2) as usize, 1 + pick.below(6));
            a.tlp(source, beats);
        }
        let all: Vec<Vec<u64>> = a.queues.iter().map(|q| q.iter().map(|b| b.0).collect()).collect();
        let mut willing = [false; 2];
        for _ in 0..2000 {
            for (i, w) in willing.iter_mut().enumerate() {
                // an offered beat stays offered; a new one comes when it likes
                let before = a.sent[i].len();
                *w = (*w && before == a.sent[i].len()) || pick.below(3) > 0;
            }
            let ready = pick.below(2) == 0;
            a.step(willing, ready);
        }
        assert_eq!(a.sent.to_vec(), all, "seed {seed}");
    }
}

#[test]
fn a_tlp_without_bus_mastering_is_swallowed_and_one_under_way_is_finished() {
    let mut a = Arbiter::new();
    a.tlp(0, 4);
    a.tlp(0, 3);
    a.tlp(1, 1);
    a.step([true, false], true);
    a.sim.poke("bus_master", 0);
    a.sim.poke("posted_ok", 0);
    (0..20).for_each(|_| a.step([true, true], true));
    assert_eq!((a.order.clone(), a.beats), (vec![0], 4));
    assert!(a.queues.iter().all(VecDeque::is_empty));
    a.sim.poke("bus_master", 1);
    a.sim.poke("posted_ok", 1);
    a.tlp(1, 1);
    a.tlp(0, 1);
    (0..4).for_each(|_| a.step([true, true], true));
    assert_eq!(a.beats, 6);
}
