//! The read engine against a root-complex stand-in: splits at the read completion boundary, any order across tags, any
//! gaps, faults at will. The judge of the requests is written from the rules of the bus, not from the RTL.
//!
//! Requirements: CARD PCIE

mod common;

use common::Choices;
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::pcie::read::Read;
use std::collections::{HashMap, VecDeque};

const REQUESTER: u32 = 0x1a08;
const UR: u64 = 42;
const CA: u64 = 43;
const TIMEOUT: u64 = 44;
const POISONED: u64 = 45;
const UNEXPECTED: u64 = 46;

/// Host memory: endless, every byte a function of its address.
fn host_byte(address: u64) -> u8 {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Split {
    /// As large as allowed.
    Whole,
    /// At every boundary.
    Every,
    /// At some boundaries.
    Random,
}

/// What the root complex does with a read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Data,
    Status(u32),
    /// The completion of this number is poisoned.
    Poison(usize),
    /// Data first, then this status instead of the rest.
    DataThenStatus(u32),
    Never,
    WrongByteCount,
    WrongLowerAddress,
    /// A doubleword more than asked.
    TooLong,
    /// Success without data.
    NoData,
}

#[derive(Clone, Debug)]
struct Read1 {
    tag: u32,
    first: u64,
    bytes: u64,
}

struct Tlp {
    tag: u32,
    header: [u32; 4],
    data: Vec<u8>,
    /// The tag is over for the host when this has been delivered.
    last: bool,
}

#[derive(Clone, Copy, Debug)]
struct Req {
    client: usize,
    iova: u64,
    length: u64,
    address: u64,
    id: u64,
}

struct Bench {
    sim: Interpreter,
    c: Config,
    pick: Choices,
    seed: u64,
    cycle: u64,
    mrrs: u32,
    rcb: u64,
    split: Split,
    largest: u64,
    /// Of 10: how often each side is willing.
    rc_of_10: u64,
    request_of_10: u64,
    answers: VecDeque<Answer>,
    hold: bool,
    waiting: [VecDeque<Req>; 5],
    open: HashMap<(usize, u64), Req>,
    /// Which host byte each client byte waits for.
    owed: Vec<Vec<Option<u64>>>,
    got: Vec<Vec<bool>>,
    tlps: VecDeque<Tlp>,
    sending: Option<(Tlp, usize)>,
    reads: Vec<(u64, Read1)>,
    /// Tags that the host still owes something.
    busy: HashMap<u32, u64>,
    dones: Vec<(u64, usize, u64, bool)>,
    counts: Vec<u64>,
    accepted: Vec<(u64, usize, u64)>,
    rc_moves: Vec<u64>,
    data_writes: u64,
    ready_for_completion_room: (u64, u64),
}

fn small() -> Config {
    Config { completion_timeout_ticks: 40_000, ..Config::small() }
}

fn impatient() -> Config {
    Config { completion_timeout_ticks: 2000, ..Config::small() }
}

impl Bench {
    fn new(c: Config, seed: u64) -> Bench {
        c.validate().unwrap();
        let mut sim = Interpreter::new(&elaborate(&Read(c.clone())).unwrap());
        for (name, v) in [
            ("requester_id", u64::from(REQUESTER)),
            ("max_payload", 1),
            ("max_read_request", 2),
            ("bus_master", 1),
        ] {
            sim.poke(&format!("pcie_{name}"), v);
        }
        sim.poke("reset", 1);
        for _ in 0..3 {
            sim.clock();
        }
        sim.poke("reset", 0);
        Bench {
            sim,
            c,
            pick: Choices::new(seed),
            seed,
            cycle: 1000,
            mrrs: 2,
            rcb: 64,
            split: Split::Random,
            largest: 256,
            rc_of_10: 7,
            request_of_10: 7,
            answers: VecDeque::new(),
            hold: false,
            waiting: Default::default(),
            open: HashMap::new(),
            owed: vec![vec![None; 65536]; 5],
            got: vec![vec![false; 65536]; 5],
            tlps: VecDeque::new(),
            sending: None,
            reads: vec![],
            busy: HashMap::new(),
            dones: vec![],
            counts: vec![],
            accepted: vec![],
            rc_moves: vec![],
            data_writes: 0,
            ready_for_completion_room: (0, 0),
        }
    }
    fn bus(&mut self, mrrs: u32, rcb: u64) {
        self.mrrs = mrrs;
        self.rcb = rcb;
        self.sim.poke("pcie_max_read_request", u64::from(mrrs));
        self.sim.poke("pcie_rcb", u64::from(rcb == 128));
        self.run(4);
    }
    fn ask(&mut self, r: Req) {
        for i in 0..r.length {
            let at = (r.address + i) as usize;
            assert!(self.owed[r.client][at].is_none(), "the test reuses client bytes");
            self.owed[r.client][at] = Some(r.iova + i);
            self.got[r.client][at] = false;
        }
        assert!(self.open.insert((r.client, r.id), r).is_none(), "the test reuses an id");
        self.waiting[r.client].push_back(r);
    }

    /// The rules of a memory read request; what it asks for.
    fn judge(&self, header: u128) -> Read1 {
        let why = format!("seed {} cycle {} header {header:032x}", self.seed, self.cycle);
        let dw: Vec<u32> = (0..4).map(|i| (header >> (96 - 32 * i)) as u32).collect();
        let length = match dw[0] & 0x3ff {
            0 => 1024,
            n => n,
        };
        assert_eq!(dw[0] & 0x1fff_fc00, 0, "type, TC, attributes, TD, EP: {why}");
        let address = match dw[0] >> 29 {
            0 => {
                assert_eq!(dw[3], 0, "{why}");
                u64::from(dw[2])
            }
            1 => {
                assert_ne!(dw[2], 0, "4-DW header below 4 GiB: {why}");
                u64::from(dw[2]) << 32 | u64::from(dw[3])
            }
            f => panic!("fmt {f}: {why}"),
        };
        assert_eq!(address & 3, 0, "{why}");
        assert_eq!(dw[1] >> 16, REQUESTER, "{why}");
        let (first_be, last_be) = (dw[1] & 15, dw[1] >> 4 & 15);
        let lead = first_be.trailing_zeros();
        let bytes = if length == 1 {
            assert_eq!(last_be, 0, "{why}");
            let run = first_be >> lead;
            assert!(first_be != 0 && (run & (run + 1)) == 0, "holes: {why}");
            run.trailing_ones()
        } else {
            assert!([0xf, 0xe, 0xc, 8].contains(&first_be) && [1, 3, 7, 15].contains(&last_be), "{why}");
            length * 4 - lead - (4 - last_be.trailing_ones())
        };
        assert!(length * 4 <= 128 << self.mrrs, "MRRS: {why}");
        let first = address + u64::from(lead);
        assert_eq!(first >> 12, (first + u64::from(bytes) - 1) >> 12, "4 KiB: {why}");
        Read1 { tag: dw[1] >> 8 & 0xff, first, bytes: u64::from(bytes) }
    }

    fn completion(&mut self, r: &Read1, from: u64, bytes: u64, owed: u64, status: u32) -> Tlp {
        let (start, end) = (from & !3, (from + bytes + 3) & !3);
        let dwords = ((end - start) / 4) as u32;
        let data: Vec<u8> = (start..end)
            .map(|a| if a >= from && a < from + bytes { host_byte(a) } else { self.pick.below(256) as u8 })
            .collect();
        let fmt = if bytes == 0 { 0 } else { 2 };
        let header = [
            fmt << 29 | 0x0a << 24 | dwords & 0x3ff,
            0x00ff << 16 | status << 13 | owed as u32 & 0xfff,
            REQUESTER << 16 | r.tag << 8 | (from & 127) as u32,
            0,
        ];
        Tlp { tag: r.tag, header, data: if bytes == 0 { vec![] } else { data }, last: owed == bytes }
    }

    fn answer(&mut self, r: &Read1) {
        let answer = self.answers.pop_front().unwrap_or(Answer::Data);
        if let Answer::Status(s) = answer {
            let mut t = self.completion(r, r.first, 0, r.bytes, s);
            t.last = true;
            self.tlps.push_back(t);
            return;
        }
        if answer == Answer::Never {
            return;
        }
        let (mut at, end, mut n) = (r.first, r.first + r.bytes, 0);
        while at < end {
            let boundary = (at / self.rcb + 1) * self.rcb;
            let longest = (at / self.rcb * self.rcb + self.largest).min(end);
            let stop = match self.split {
                Split::Whole => longest,
                Split::Every => boundary.min(end),
                Split::Random => {
                    (boundary + self.rcb * self.pick.below(self.largest / self.rcb)).min(longest)
                }
            };
            let mut t = self.completion(r, at, stop - at, end - at, 0);
            match answer {
                Answer::Poison(k) if k == n => {
                    t.header[0] |= 1 << 14;
                    t.data.iter_mut().for_each(|b| *b ^= 0x55);
                }
                Answer::DataThenStatus(s) if n == 1 => {
                    t = self.completion(r, at, 0, end - at, s);
                    t.last = true;
                }
                Answer::WrongByteCount if n == 0 => {
                    t.header[1] = t.header[1] & !0xfff | (r.bytes as u32 + 1) & 0xfff
                }
                Answer::WrongLowerAddress if n == 0 => t.header[2] ^= 4,
                Answer::TooLong if t.last => {
                    t.header[0] += 1;
                    t.data.extend([0; 4]);
                }
                Answer::NoData if n == 0 => {
                    t = self.completion(r, at, 0, end - at, 0);
                }
                _ => {}
            }
            let wrong = matches!(answer, Answer::WrongByteCount | Answer::WrongLowerAddress | Answer::NoData);
            let last = t.last || wrong;
            t.last = last;
            self.tlps.push_back(t);
            if last {
                break;
            }
            at = stop;
            n += 1;
        }
    }

    /// Takes up some completion that is the oldest of its tag.
    fn next_tlp(&mut self) -> Option<Tlp> {
        if self.tlps.is_empty() {
            return None;
        }
        let i = if self.split == Split::Whole { 0 } else { self.pick.below(self.tlps.len() as u64) as usize };
        let tag = self.tlps[i].tag;
        let oldest = self.tlps.iter().position(|t| t.tag == tag)?;
        self.tlps.remove(oldest)
    }

    fn step(&mut self) {
        let why = format!("seed {} cycle {}", self.seed, self.cycle);
        self.sim.poke("now", self.cycle);
        for (i, name) in ["gather", "fetch", "place", "command", "atomic"].iter().enumerate() {
            let front = self.waiting[i].front().copied();
            self.sim.poke(&format!("{name}_valid"), u64::from(front.is_some()));
            if let Some(r) = front {
                self.sim.poke(&format!("{name}_iova"), r.iova);
                self.sim.poke(&format!("{name}_length"), r.length);
                self.sim.poke(&format!("{name}_address"), r.address);
                self.sim.poke(&format!("{name}_id"), r.id);
            }
        }
        // completions: once offered, a beat stays
        if self.sending.is_none() && !self.hold && self.pick.below(10) < self.rc_of_10 {
            self.sending = self.next_tlp().map(|t| (t, 0));
        }
        let width = self.c.data_bytes as usize;
        let offer = self.sending.is_some();
        self.sim.poke("rc_valid", u64::from(offer));
        if let Some((t, at)) = &self.sending {
            let h = t.header.iter().fold(0u128, |h, w| h << 32 | u128::from(*w));
            self.sim.poke_bits("rc_header", &Bits::new(128, h));
            let mut beat = vec![0; width];
            let n = width.min(t.data.len() - at);
            beat[..n].copy_from_slice(&t.data[*at..at + n]);
            self.sim.poke_bits("rc_data", &Bits::from_bytes(width as u32 * 8, &beat));
            self.sim.poke("rc_first", u64::from(*at == 0));
            self.sim.poke("rc_last", u64::from(at + width >= t.data.len()));
        }
        let ready = self.pick.below(10) < self.request_of_10;
        self.sim.poke("request_ready", u64::from(ready));
        // whose turn it is depends on who asks: only now is it known (and every peek after a poke costs)
        for (i, name) in ["gather", "fetch", "place", "command", "atomic"].iter().enumerate() {
            if !self.waiting[i].is_empty() && self.sim.peek(&format!("{name}_ready")) == 1 {
                let r = self.waiting[i].pop_front().expect("not empty");
                self.accepted.push((self.cycle, i, r.id));
            }
        }
        // what comes out
        if self.sim.peek("data_valid") == 1 {
            self.data_writes += 1;
            let client = self.sim.peek("data_client") as usize;
            let address = self.sim.peek("data_address");
            assert_eq!(address % width as u64, 0, "{why}");
            let data = self.sim.peek_bits("data_data").to_bytes();
            let lanes = self.sim.peek("data_lanes");
            assert_ne!(lanes, 0, "a write of nothing: {why}");
            for (i, byte) in data.iter().enumerate().filter(|(i, _)| lanes >> i & 1 == 1) {
                let at = address as usize + i;
                let Some(iova) = self.owed[client][at] else {
                    panic!("client {client} byte {at:#x} is nobody's: {why}")
                };
                assert_eq!(*byte, host_byte(iova), "client {client} byte {at:#x} of {iova:#x}: {why}");
                assert!(!std::mem::replace(&mut self.got[client][at], true), "written twice: {why}");
            }
        }
        if self.sim.peek("done_valid") == 1 {
            let (client, id) = (self.sim.peek("done_client") as usize, self.sim.peek("done_id"));
            let failed = self.sim.peek("done_failed") == 1;
            let r = self.open.remove(&(client, id)).unwrap_or_else(|| panic!("done of nothing: {why}"));
            for i in r.address..r.address + r.length {
                assert!(failed || self.got[client][i as usize], "byte {i:#x} of {r:?} missing: {why}");
                self.owed[client][i as usize] = None;
            }
            self.dones.push((self.cycle, client, id, failed));
        }
        if self.sim.peek("count_valid") == 1 {
            self.counts.push(self.sim.peek("count_index"));
        }
        if ready && self.sim.peek("request_valid") == 1 {
            assert_eq!((self.sim.peek("request_first"), self.sim.peek("request_last")), (1, 1));
            let header = self.sim.peek_bits("request_header").low128();
            let r = self.judge(header);
            if let Some(since) = self.busy.insert(r.tag, self.cycle) {
                // never answered: only after both periods (less what the TLP waited to leave)
                let rest = 2 * u64::from(self.c.completion_timeout_ticks) - 100;
                assert!(self.cycle - since >= rest, "tag {} twice: {why}", r.tag);
            }
            assert!(r.tag < self.c.read_tags);
            self.reads.push((self.cycle, r.clone()));
            self.answer(&r);
            // what the completions may take in the core's buffer
            let mine = self.tlps.iter().map(|t| (1, (t.data.len() as u64).div_ceil(16)));
            let (h, d) = mine.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            let most = &mut self.ready_for_completion_room;
            *most = (most.0.max(h), most.1.max(d));
            assert!(h <= u64::from(self.c.cplh) && d <= u64::from(self.c.cpld), "room {h} {d}: {why}");
        }
        if offer && self.sim.peek("rc_ready") == 1 {
            self.rc_moves.push(self.cycle);
            let (t, at) = self.sending.as_mut().expect("offered");
            *at += width;
            if *at >= t.data.len() {
                if t.last {
                    self.busy.remove(&t.tag);
                }
                self.sending = None;
            }
        }
        self.sim.clock();
        assert!(self.sim.failures().is_empty(), "{:?}: {why}", self.sim.failures());
        self.cycle += 1;
    }
    fn run(&mut self, cycles: u64) {
        (0..cycles).for_each(|_| self.step());
    }
    /// Until everything asked is over.
    fn settle(&mut self) {
        let mut left = 60_000;
        while !self.open.is_empty() {
            self.step();
            left -= 1;
            assert!(left > 0, "seed {}: {} reads hang: {:?}", self.seed, self.open.len(), self.open);
        }
        self.run(8);
        assert_eq!(self.sim.peek("idle"), 1, "seed {}", self.seed);
    }
    fn outcomes(&self) -> Vec<bool> {
        self.dones.iter().map(|d| d.3).collect()
    }
}

fn req(client: usize, iova: u64, length: u64, address: u64, id: u64) -> Req {
    Req { client, iova, length, address, id }
}

#[test]
fn every_source_alignment_reaches_every_destination_alignment() {
    let mut b = Bench::new(small(), 1);
    let mut n = 0u64;
    for length in [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 23, 70] {
        for source in 0..8 {
            for lane in 0..8 {
                // below and above 4 GiB, some across a completion boundary
                let iova = (n % 2) * 0x7_0000_0000 + 0x1_0000 + (n % 7) * 0x1000 + 48 + source;
                b.ask(req((n % 4) as usize, iova, length, n / 4 % 400 * 128 + lane, n / 4 % 1000));
                n += 1;
                if n.is_multiple_of(64) {
                    b.settle();
                }
            }
        }
    }
    b.settle();
    assert_eq!(b.outcomes(), vec![false; n as usize]);
    assert!(b.counts.is_empty());
    assert!(b.sim.covered("extra_word") > 0);
}

#[test]
fn a_completion_right_behind_another_of_its_tag_finds_what_the_first_left() {
    let mut b = Bench::new(small(), 2);
    (b.split, b.rc_of_10) = (Split::Every, 10);
    for n in 0..8 {
        // 4 bytes up to the boundary: one beat, then at once the rest
        b.ask(req(0, 0x4000 + n * 256 + 60, 12, n * 33, n));
        b.settle();
    }
    assert_eq!(b.outcomes(), [false; 8]);
    assert_eq!(b.sim.covered("same_tag_side_by_side"), 8);
}

#[test]
fn under_faults_of_every_kind_each_read_ends_once_and_fails_exactly_if_one_of_its_tlps_did() {
    for seed in 21..=23u64 {
        let mut b = Bench::new(Config { completion_timeout_ticks: 4000, ..Config::small() }, seed);
        b.bus(1, 64);
        // every boundary: so a second completion exists whenever there is a boundary
        b.split = Split::Every;
        let faults = [
            Answer::Status(1),
            Answer::Status(4),
            Answer::Poison(0),
            Answer::DataThenStatus(1),
            Answer::Never,
            Answer::WrongByteCount,
            Answer::WrongLowerAddress,
            Answer::TooLong,
            Answer::NoData,
        ];
        let mut plan = vec![];
        for _ in 0..400 {
            let fault = b.pick.below(30) as usize;
            plan.push(faults.get(fault).copied().unwrap_or(Answer::Data));
        }
        b.answers.extend(plan.iter().copied());
        for n in 0..48u64 {
            let length = 1 + b.pick.below(1200);
            let iova = 0x10_0000 + n * 4096 + b.pick.below(2048);
            let address = n / 4 * 1300 + b.pick.below(64);
            b.ask(req(n as usize % 4, iova, length, address, n));
        }
        b.settle();
        let mut failed: Vec<u64> = vec![];
        for ((_, r), answer) in b.reads.iter().zip(&plan) {
            // a single completion has no second one to spoil
            let one = (r.first % 64 + r.bytes).div_ceil(64) == 1;
            if *answer == Answer::Data || (one && matches!(answer, Answer::DataThenStatus(_))) {
                continue;
            }
            failed.push((r.first - 0x10_0000) / 4096);
        }
        for (_, _, id, f) in &b.dones {
            assert_eq!(*f, failed.contains(id), "seed {seed} id {id}");
        }
        assert_eq!(b.dones.len(), 48, "seed {seed}");
        b.run(8_300);
        assert_eq!(b.sim.peek("tags_in_use"), 0, "seed {seed}");
        assert_eq!(b.sim.peek("completion_room.room_headers"), u64::from(b.c.cplh), "seed {seed}");
        assert_eq!(b.sim.peek("completion_room.room_data"), u64::from(b.c.cpld), "seed {seed}");
    }
}

#[test]
fn random_reads_of_up_to_4096_bytes_come_back_whole_at_every_bus_setting() {
    for seed in 1..=9u64 {
        let mut b = Bench::new(small(), seed);
        let (mrrs, rcb) =
            ([0, 1, 2, 5, 3, 7][seed as usize % 6].min(5), if seed % 2 == 0 { 64 } else { 128 });
        b.bus(mrrs, rcb);
        b.split = [Split::Random, Split::Every, Split::Whole][seed as usize % 3];
        b.largest = [128, 256, 512][seed as usize / 3 % 3];
        let mut next = [0u64; 5];
        for n in 0..24u64 {
            let client = b.pick.below(5) as usize;
            let length = match b.pick.below(4) {
                0 => 1 + b.pick.below(64),
                1 => 4096 - b.pick.below(4),
                _ => 1 + b.pick.below(4096),
            };
            let base =
                [0x10_0000, 0xffff_f000, 0xff_0000_0000, 0xffff_ffff_ffff_0000][b.pick.below(4) as usize];
            let iova = base + b.pick.below(8192);
            let mut address = next[client] + b.pick.below(80);
            if address + length > 65536 {
                b.settle();
                address = b.pick.below(64);
            }
            next[client] = address + length;
            b.ask(req(client, iova, length, address, n));
            if b.pick.below(3) == 0 {
                let cycles = b.pick.below(600);
                b.run(cycles);
            }
        }
        b.settle();
        assert_eq!(b.outcomes(), vec![false; 24], "seed {seed}");
        assert!(b.counts.is_empty(), "seed {seed}: {:?}", b.counts);
        assert_eq!(b.sim.peek("tags_in_use"), 0);
        // all of the room came back
        b.run(4);
        assert_eq!(b.sim.peek("completion_room.room_headers"), u64::from(b.c.cplh), "seed {seed}");
        assert_eq!(b.sim.peek("completion_room.room_data"), u64::from(b.c.cpld), "seed {seed}");
    }
}

#[test]
fn the_wide_datapath_reads_the_same_bytes() {
    let mut b = Bench::new(Config { name: "wide", data_bytes: 64, ..small() }, 41);
    for n in 0..60u64 {
        let (iova, length) = (0xffff_f000 + b.pick.below(8192), 1 + b.pick.below(1024));
        let address = n / 4 * 1200 + b.pick.below(128);
        b.ask(req(n as usize % 4, iova, length, address, n));
    }
    b.settle();
    assert_eq!(b.outcomes(), vec![false; 60]);
}

#[test]
fn reads_wait_for_worst_case_room_and_fill_it_exactly() {
    let mut b = Bench::new(small(), 3);
    b.split = Split::Every;
    b.hold = true;
    // 8 completions each: eight of them fill 64 headers
    for n in 0..4 {
        b.ask(req(0, 0x2000 + n * 4096, 4096, n * 4096, n));
    }
    b.run(600);
    assert_eq!(b.reads.len(), 8);
    assert_eq!(b.ready_for_completion_room.0, 64);
    b.hold = false;
    b.settle();
    assert_eq!(b.outcomes(), vec![false; 4]);
    assert!(b.sim.covered("room_was_short") > 0);
}

#[test]
fn all_tags_are_used_and_none_twice() {
    let mut b = Bench::new(small(), 4);
    b.hold = true;
    for n in 0..40 {
        b.ask(req(n as usize % 4, 0x5000 + n * 64, 64, n * 64, n));
    }
    b.run(400);
    assert_eq!(b.reads.len(), 32);
    assert_eq!(b.sim.peek("tags_in_use"), 32);
    b.hold = false;
    b.settle();
    assert_eq!(b.outcomes(), vec![false; 40]);
}

#[test]
fn a_tag_that_is_free_again_is_the_last_to_be_taken() {
    let mut b = Bench::new(Config { read_tags: 8, ..impatient() }, 16);
    // the third answer sends its tag to rest
    b.answers.extend([Answer::Data, Answer::Data, Answer::WrongByteCount]);
    for n in 0..20 {
        b.ask(req(n as usize % 4, 0x5000 + n * 64, 64, n * 64, n));
        b.settle();
    }
    let taken: Vec<u32> = b.reads.iter().map(|read| read.1.tag).collect();
    assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 3, 4, 5, 6, 7, 0, 1, 3, 4, 5]);
}

#[test]
fn tags_stay_below_32_until_extended_tags_are_enabled() {
    for (extended, expected) in [(0, 32), (1, 64)] {
        let mut b = Bench::new(Config { read_tags: 64, cplh: 256, ..small() }, 5);
        b.sim.poke("pcie_extended_tag", extended);
        b.hold = true;
        for n in 0..70 {
            b.ask(req(n as usize % 4, 0x5000 + n * 64, 64, n * 64, n));
        }
        b.run(600);
        assert_eq!(b.reads.len(), expected);
        b.hold = false;
        b.settle();
    }
}

#[test]
fn clients_take_turns_and_each_is_served_in_order() {
    let mut b = Bench::new(small(), 6);
    for n in 0..12 {
        for client in 0..5 {
            b.ask(req(client, 0x9000, 64, n * 64, n));
        }
    }
    b.settle();
    for client in 0..5 {
        let ids: Vec<u64> = b.accepted.iter().filter(|a| a.1 == client).map(|a| a.2).collect();
        assert_eq!(ids, (0..12).collect::<Vec<_>>());
    }
    let order: Vec<usize> = b.accepted.iter().map(|a| a.1).collect();
    assert!(order.windows(5).all(|w| (0..5).all(|c| w.contains(&c))), "{order:?}");
}

fn throughput(iova: u64, address: u64, bytes: u64, largest: u64) -> (usize, u64, u64) {
    let mut b = Bench::new(small(), 7);
    (b.split, b.largest, b.rc_of_10, b.request_of_10) = (Split::Whole, largest, 10, 10);
    b.hold = true;
    b.ask(req(0, iova, bytes, address, 0));
    b.run(120);
    b.hold = false;
    b.settle();
    let (first, last) = (b.rc_moves[0], *b.rc_moves.last().unwrap());
    (b.rc_moves.len(), last - first + 1, b.dones[0].0 - last)
}

#[test]
fn a_long_read_takes_a_beat_per_clock_and_one_more_per_completion_that_spans_a_word_more() {
    // 4096 bytes in 16 completions of 256
    assert_eq!(throughput(0x8000, 0, 4096, 256), (512, 512, 5));
    // destination off by 6: each of the 16 completions writes 33 words (the last word of the last comes after)
    assert_eq!(throughput(0x8000, 6, 4096, 256), (512, 512 + 15, 6));
    assert_eq!(throughput(0x8000, 6, 4096, 64), (512, 512 + 63, 6));
}

#[test]
fn the_first_tlp_is_offered_four_clocks_after_acceptance_and_short_requests_follow_every_two() {
    let mut b = Bench::new(small(), 8);
    b.request_of_10 = 10;
    for n in 0..16 {
        b.ask(req(n as usize % 4, 0x5000 + n * 64, 64, n * 64, n));
    }
    b.settle();
    assert_eq!(b.reads[0].0 - b.accepted[0].0, 4);
    assert_eq!(b.reads[15].0 - b.reads[0].0, 30);
}

/// One read of 300 bytes (two TLPs at 256) answered by `answers`, and a good one after it on the same tags.
fn story(answers: &[Answer]) -> (Vec<bool>, Vec<u64>, Bench) {
    let mut b = Bench::new(impatient(), 9);
    b.bus(1, 64);
    b.split = Split::Every;
    b.answers.extend(answers);
    b.ask(req(1, 0x4000, 300, 3, 7));
    b.settle();
    b.ask(req(1, 0x14000, 300, 1000, 8));
    b.settle();
    let counts = b.counts.clone();
    (b.outcomes(), counts, b)
}

#[test]
fn every_bad_status_fails_the_read_under_its_name_and_frees_the_tag() {
    for (status, name) in [(1, UR), (4, CA), (2, UNEXPECTED), (3, UNEXPECTED), (7, UNEXPECTED)] {
        for answers in [
            vec![Answer::Status(status)],
            vec![Answer::Data, Answer::Status(status)],
            vec![Answer::DataThenStatus(status)],
        ] {
            let (outcomes, counts, mut b) = story(&answers);
            assert_eq!((outcomes, counts), (vec![true, false], vec![name]), "{answers:?}");
            assert_eq!(b.sim.peek("tags_in_use"), 0);
            assert_eq!(b.sim.peek("completion_room.room_headers"), u64::from(b.c.cplh));
        }
    }
}

#[test]
fn poison_fails_the_read_and_writes_nothing_of_the_poisoned_completion() {
    for k in 0..4 {
        let (outcomes, counts, mut b) = story(&[Answer::Poison(k)]);
        assert_eq!((outcomes, counts), (vec![true, false], vec![POISONED]), "completion {k}");
        assert_eq!(b.sim.peek("tags_in_use"), 0);
    }
}

#[test]
fn an_answer_that_is_not_what_is_owed_fails_the_read_and_quarantines_the_tag() {
    for wrong in [Answer::WrongByteCount, Answer::WrongLowerAddress, Answer::TooLong, Answer::NoData] {
        let (outcomes, counts, mut b) = story(&[wrong]);
        assert_eq!((outcomes, counts), (vec![true, false], vec![UNEXPECTED]), "{wrong:?}");
        assert_eq!(b.sim.peek("tags_in_use"), 1, "{wrong:?}");
        b.run(2 * 2000 + 100);
        assert_eq!(b.sim.peek("tags_in_use"), 0, "{wrong:?}");
        assert_eq!(b.sim.peek("completion_room.room_headers"), u64::from(b.c.cplh));
        assert_eq!(b.sim.peek("completion_room.room_data"), u64::from(b.c.cpld));
    }
}

#[test]
fn a_completion_that_matches_no_read_is_dropped_by_name() {
    let mut b = Bench::new(small(), 10);
    b.hold = true;
    b.ask(req(2, 0x4000, 64, 0, 1));
    b.run(40);
    let r = b.reads[0].1.clone();
    let good = b.tlps.pop_front().unwrap();
    assert_eq!(good.tag, r.tag);
    // free tag, impossible tag, T8, T9, another requester, not a completion
    let spoil: [fn(&mut [u32; 4]); 6] = [
        |h| h[2] ^= 5 << 8,
        |h| h[2] |= 0x80 << 8,
        |h| h[0] |= 1 << 19,
        |h| h[0] |= 1 << 23,
        |h| h[2] ^= 1 << 16,
        |h| h[0] ^= 1 << 24,
    ];
    for f in &spoil {
        let mut bad = b.completion(&r, r.first, 64, 64, 0);
        bad.data.fill(0xee);
        bad.last = false;
        f(&mut bad.header);
        b.tlps.push_back(bad);
    }
    b.hold = false;
    b.run(200);
    assert_eq!(b.counts, vec![UNEXPECTED; spoil.len()]);
    assert!(b.dones.is_empty());
    b.tlps.push_back(good);
    b.settle();
    assert_eq!(b.outcomes(), [false]);
}

#[test]
fn the_timeout_strikes_after_its_limit_and_never_before() {
    let ticks = 2000;
    // the clock in which the completion is offered, relative to the TLP's leaving the engine
    for (delay, failed) in [(ticks - 10, false), (ticks + 100, true)] {
        let mut b = Bench::new(impatient(), 11);
        (b.rc_of_10, b.request_of_10, b.split) = (10, 10, Split::Whole);
        b.hold = true;
        b.ask(req(0, 0x4000, 64, 5, 1));
        while b.reads.is_empty() {
            b.step();
        }
        while b.cycle < b.reads[0].0 + delay {
            b.step();
        }
        b.hold = false;
        b.run(100);
        assert_eq!(b.outcomes(), [failed], "delay {delay}");
        assert_eq!(b.counts, if failed { vec![TIMEOUT, UNEXPECTED] } else { vec![] });
        if failed {
            let waited = b.dones[0].0 - b.reads[0].0;
            assert!((ticks - 1..ticks + 80).contains(&waited), "{waited}");
            assert_eq!(b.data_writes, 0, "the late completion wrote");
        }
    }
}

#[test]
fn the_timeout_is_the_one_of_device_control_2_and_can_be_switched_off() {
    // code, ticks: of the configuration, within the range of code 1, of a code that means nothing
    for (code, ticks) in [(0, 2000), (1, 16 * 1024), (3, 2000)] {
        let mut b = Bench::new(Config { read_tags: 2, ..impatient() }, 14);
        (b.rc_of_10, b.request_of_10) = (10, 10);
        b.sim.poke("pcie_completion_timeout", code);
        b.answers.extend([Answer::Never, Answer::Never]);
        for n in 0..3 {
            b.ask(req(n, 0x4000, 64, 0, 1));
        }
        b.settle();
        let waited = b.dones[0].0 - b.reads[0].0;
        assert!((ticks - 1..ticks + 80).contains(&waited), "code {code}: {waited}");
        // and so long rests the tag
        let rested = b.reads[2].0 - b.dones[0].0;
        assert!((ticks - 10..ticks + 100).contains(&rested), "code {code}: {rested}");
    }
    let mut b = Bench::new(impatient(), 15);
    b.sim.poke("pcie_completion_timeout", 0x10);
    b.hold = true;
    b.ask(req(0, 0x4000, 64, 0, 1));
    b.run(20_000);
    assert_eq!((b.dones.len(), b.counts.len()), (0, 0));
    b.hold = false;
    b.settle();
    assert_eq!((b.outcomes(), b.counts.len()), (vec![false], 0));
}

#[test]
fn a_timed_out_tag_rests_for_a_whole_period_more_and_its_late_completion_writes_nothing() {
    let mut b = Bench::new(Config { read_tags: 2, ..impatient() }, 12);
    b.answers.extend([Answer::Never, Answer::Never]);
    b.ask(req(0, 0x4000, 64, 0, 1));
    b.ask(req(1, 0x4000, 64, 0, 2));
    b.settle();
    assert_eq!((b.outcomes(), &b.counts[..]), (vec![true, true], &[TIMEOUT, TIMEOUT][..]));
    assert_eq!(b.sim.peek("tags_in_use"), 2);
    // new reads have no tag
    b.busy.clear();
    b.ask(req(0, 0x6000, 64, 0, 3));
    let struck = b.dones[0].0;
    while b.cycle < struck + 1900 {
        b.step();
    }
    assert_eq!(b.reads.len(), 2);
    // both late completions come now, into the very bytes that the new read waits for
    for r in [b.reads[0].1.clone(), b.reads[1].1.clone()] {
        let mut late = b.completion(&r, r.first, 64, 64, 0);
        late.last = false;
        b.tlps.push_back(late);
    }
    b.run(60);
    assert_eq!((b.data_writes, b.counts.len()), (0, 4));
    assert_eq!(b.counts[2..], [UNEXPECTED, UNEXPECTED]);
    b.settle();
    let rested = b.reads[2].0 - struck;
    assert!((1990..2100).contains(&rested), "{rested}");
    assert_eq!(b.outcomes(), [true, true, false]);
    b.run(2000);
    assert_eq!(b.sim.peek("tags_in_use"), 0);
    assert_eq!(b.sim.peek("completion_room.room_headers"), u64::from(b.c.cplh));
}

#[test]
fn a_function_level_reset_fails_every_read_quickly_and_lets_no_old_completion_write() {
    let mut b = Bench::new(impatient(), 13);
    b.hold = true;
    for n in 0..6 {
        b.ask(req(n as usize % 4, 0x5000 + n * 4096, 1500, n * 2048, n));
    }
    b.run(60);
    let asked = b.reads.len() as u64;
    assert!(asked > 3);
    b.sim.poke("flr", 1);
    b.step();
    b.sim.poke("flr", 0);
    b.sim.poke("pcie_bus_master", 0);
    let at = b.cycle;
    while !b.open.is_empty() && b.cycle < at + 250 {
        b.step();
    }
    assert_eq!(b.outcomes(), [true; 6]);
    assert_eq!(b.sim.peek("idle"), 1);
    let writes = b.data_writes;
    // all of the old completions come, and requests of the next life wait for the same bytes
    b.hold = false;
    b.run(1500);
    assert_eq!(b.data_writes, writes);
    assert!(b.counts.iter().all(|c| *c == UNEXPECTED) && !b.counts.is_empty());
    b.sim.poke("pcie_bus_master", 1);
    b.busy.clear();
    for n in 0..6 {
        b.ask(req(n as usize % 4, 0x95000 + n * 4096, 1500, n * 2048, n));
    }
    b.settle();
    assert_eq!(b.outcomes()[6..], [false; 6]);
    b.run(4200);
    assert_eq!(b.sim.peek("tags_in_use"), 0);
}

#[test]
fn without_bus_mastering_a_read_fails_at_once_and_sends_nothing() {
    let mut b = Bench::new(small(), 14);
    b.sim.poke("pcie_bus_master", 0);
    b.ask(req(3, 0x5001, 4096, 1, 9));
    b.ask(req(0, 0x5001, 1, 1, 9));
    b.run(100);
    assert_eq!(b.outcomes(), [true, true]);
    assert!(b.reads.is_empty() && b.counts.is_empty());
    assert_eq!(b.sim.peek("tags_in_use"), 0);
    b.sim.poke("pcie_bus_master", 1);
    b.ask(req(3, 0x5001, 4096, 1, 9));
    b.settle();
    assert_eq!(b.outcomes(), [true, true, false]);
}
