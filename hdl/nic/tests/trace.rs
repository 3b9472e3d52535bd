//! The stage trace, by the interpreter: what enters comes out with its own time, or is counted as lost.
//!
//! Requirements: CARD

use contract::{Stage, TraceEntry, TraceEvent};
use hdl::{Interpreter, elaborate};
use nic::Config;
use nic::trace::{Part, SOURCES, Source, Trace};
use std::collections::HashMap;

const ALL: &[Part] = &[Part::Qp, Part::Index, Part::Psn, Part::Opcode, Part::Detail];
/// A ring that no test fills but the one that wants to.
const ENTRIES: u32 = 512;

/// Three sources: one event with some parts, two events with all, and one that no stage switches off.
fn three() -> Vec<Source> {
    let source = |name, events, stage, parts| Source { name, events, stage, parts };
    vec![
        source(
            "bell",
            &[TraceEvent::Doorbell],
            Some(Stage::Doorbell),
            &[Part::Qp, Part::Index, Part::Detail],
        ),
        source("walk", &[TraceEvent::Acknowledge, TraceEvent::Retire], Some(Stage::Acknowledge), ALL),
        source("reject", &[TraceEvent::Reject], None, &[Part::Detail]),
    ]
}

/// As many as the card has, each with everything.
fn many() -> Vec<Source> {
    const NAMES: [&str; SOURCES as usize] =
        ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r"];
    let source = |name| Source { name, events: &[TraceEvent::Place], stage: Some(Stage::Place), parts: ALL };
    NAMES.map(source).to_vec()
}

/// The module with its marks of the past.
struct Bench {
    s: Interpreter,
    sources: Vec<Source>,
    entries: u32,
    now: u64,
    /// Entries read so far.
    read: u64,
    lost: u64,
}

impl Bench {
    fn new(sources: Vec<Source>, entries: u32, now: u64) -> Bench {
        let c = Config { trace_entries: entries, ..Config::small() };
        let trace = Trace { c, sources: sources.clone() };
        let mut s = Interpreter::new(&elaborate(&trace).unwrap_or_else(|e| panic!("{e}")));
        s.poke("reset", 1);
        s.clock();
        s.poke("reset", 0);
        s.poke("enable", 1);
        s.poke("stages", (1 << Stage::ALL.len()) - 1);
        let mut bench = Bench { s, sources, entries, now, read: 0, lost: 0 };
        bench.clock(&[]);
        bench
    }
    /// One clock with these marks, of the sources of these numbers.
    fn clock(&mut self, marks: &[(usize, TraceEntry)]) {
        for (i, source) in self.sources.iter().enumerate() {
            let mark = marks.iter().find(|(of, _)| *of == i).map(|(_, mark)| mark);
            let mut poke =
                |part: &str, value: u64| self.s.poke(&format!("mark_{}_{part}", source.name), value);
            poke("valid", mark.is_some().into());
            let m = mark.copied().unwrap_or_default();
            poke("event", m.event.into());
            poke("qp", m.qp.into());
            poke("index", m.index.into());
            poke("psn", m.psn.into());
            poke("opcode", m.opcode.into());
            poke("detail", m.detail.into());
        }
        self.s.poke("now", self.now);
        self.lost += self.s.peek("lost");
        self.s.clock();
        self.now += 1;
    }
    /// What such a source says in this clock: only its own parts, the time as the ring has it.
    fn mark(&self, source: usize, n: u64) -> TraceEntry {
        let s = &self.sources[source];
        let has = |part| s.parts.contains(&part);
        TraceEntry {
            time: self.now & ((1 << 40) - 1),
            event: s.events[n as usize % s.events.len()].code(),
            qp: if has(Part::Qp) { n as u16 % 64 } else { 0 },
            index: if has(Part::Index) { n as u16 ^ 0xa5a5 } else { 0 },
            psn: if has(Part::Psn) { (n as u32).wrapping_mul(0x1_2345) & 0xff_ffff } else { 0 },
            opcode: if has(Part::Opcode) { n as u8 ^ 0x5a } else { 0 },
            detail: if has(Part::Detail) { (source as u16) << 12 | n as u16 & 0xfff } else { 0 },
        }
    }
    /// Entry `n` of the ring, by both quadwords.
    fn entry(&mut self, n: u64) -> TraceEntry {
        let words: Vec<u8> = (0..2)
            .flat_map(|half| {
                self.s.poke("address", n % u64::from(self.entries) * 2 + half);
                self.clock(&[]);
                self.s.peek("word").to_le_bytes()
            })
            .collect();
        TraceEntry::unpack(&words.try_into().expect("sixteen bytes"))
    }
    /// Lets everything leave; gives what was written since it was asked last.
    fn drain(&mut self) -> Vec<TraceEntry> {
        for _ in 0..8 * SOURCES + 8 {
            self.clock(&[]);
        }
        assert_eq!(self.s.peek("idle"), 1, "nothing waits");
        let producer = self.s.peek("producer");
        let written = (self.read..producer).map(|n| self.entry(n)).collect();
        self.read = producer;
        written
    }
}

#[test]
fn marks_of_all_sources_in_one_clock_come_out_with_that_clock_and_in_turn() {
    let mut b = Bench::new(three(), ENTRIES, 0x1234_5678_9abc);
    for n in 0..20 {
        let marks: Vec<_> = (0..3).map(|i| (i, b.mark(i, n))).collect();
        b.clock(&marks);
        assert_eq!(b.s.peek("idle"), 0);
        let mut written = b.drain();
        let last = |e: &TraceEntry| e.detail >> 12;
        written.sort_by_key(last);
        assert_eq!(written, marks.iter().map(|(_, mark)| *mark).collect::<Vec<_>>(), "round {n}");
    }
    assert_eq!(b.lost, 0);
}

#[test]
fn a_mark_that_waits_longest_has_its_own_time() {
    // the clock passes 2^40 and multiples of 256 while they wait
    for start in [(1 << 40) - 40, 250, 5] {
        let mut b = Bench::new(many(), ENTRIES, start);
        let mut told = vec![];
        for n in 0..8 {
            let marks: Vec<_> = (0..SOURCES as usize).map(|i| (i, b.mark(i, n))).collect();
            b.clock(&marks);
            told.extend(marks.iter().map(|(_, mark)| *mark));
        }
        let mut written = b.drain();
        assert_eq!((written.len(), b.lost), (8 * SOURCES as usize, 0));
        let key = |e: &TraceEntry| (e.detail, e.time, e.index);
        told.sort_by_key(key);
        written.sort_by_key(key);
        assert_eq!(written, told, "from {start}");
    }
}

#[test]
fn a_source_that_is_faster_than_its_share_loses_and_every_loss_is_counted() {
    let seeds = [1u64, 7, 0xdead_beef];
    for seed in seeds {
        let mut state = seed;
        let mut below = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let mut b = Bench::new(three(), ENTRIES, seed << 20);
        let mut told: Vec<Vec<TraceEntry>> = vec![vec![]; 3];
        let mut written = vec![];
        for round in 0..12 {
            // sparse, then as dense as it can be
            let share = [1, 3, 10][round % 3];
            for _ in 0..120 {
                let mut marks = vec![];
                for (i, told) in told.iter_mut().enumerate() {
                    if below(10) < share {
                        let mark = b.mark(i, below(1 << 20));
                        marks.push((i, mark));
                        told.push(mark);
                    }
                }
                b.clock(&marks);
            }
            written.extend(b.drain());
        }
        let marks: usize = told.iter().map(Vec::len).sum();
        assert_eq!(written.len() as u64 + b.lost, marks as u64, "seed {seed}");
        assert!(b.lost > 100, "seed {seed}: {} lost", b.lost);
        // what came out of a source is what went in, in order, with gaps
        let of = |e: &TraceEntry| (e.detail >> 12) as usize;
        for (i, told) in told.iter().enumerate() {
            let mut rest = told.iter();
            for entry in written.iter().filter(|e| of(e) == i) {
                assert!(rest.any(|mark| mark == entry), "seed {seed}: {entry:?} of source {i}");
            }
        }
    }
}

#[test]
fn stages_that_are_not_wanted_and_a_trace_that_is_off_write_nothing() {
    let mut b = Bench::new(three(), ENTRIES, 99);
    b.s.poke("stages", 1 << Stage::Acknowledge.code());
    let marks: Vec<_> = (0..3).map(|i| (i, b.mark(i, 4))).collect();
    b.clock(&marks);
    let events = b.drain().iter().map(|e| e.event).collect::<Vec<_>>();
    let mut expected = vec![TraceEvent::Acknowledge.code(), TraceEvent::Reject.code()];
    expected.retain(|e| events.contains(e));
    assert_eq!((events.len(), expected.len()), (2, 2), "refusals have no stage to be switched off by");
    b.s.poke("enable", 0);
    let before = b.s.peek("producer");
    for n in 0..40 {
        let marks: Vec<_> = (0..3).map(|i| (i, b.mark(i, n))).collect();
        b.clock(&marks);
        assert_eq!(b.s.peek("idle"), 1, "off, nothing moves");
    }
    assert_eq!((b.s.peek("producer"), b.lost), (before, 0));
    b.s.poke("enable", 1);
    b.clock(&[]);
    assert_eq!(b.s.peek("producer"), 0, "a new start counts anew");
}

#[test]
fn the_ring_keeps_the_newest_and_the_count_tells_which() {
    let mut b = Bench::new(three(), 16, 1000);
    let mut told = HashMap::new();
    for n in 0..45 {
        let mark = b.mark(0, n);
        told.insert(n, mark);
        b.clock(&[(0, mark)]);
    }
    for _ in 0..4 {
        b.clock(&[]);
    }
    assert_eq!((b.s.peek("producer"), b.lost), (45, 0), "alone a source loses nothing");
    for n in 29..45 {
        assert_eq!(b.entry(n), told[&n], "entry {n}");
    }
}
