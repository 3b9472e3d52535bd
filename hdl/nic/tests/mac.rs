//! The MAC in loopback and alone, against a line checker and line maker of this file.
//!
//! Requirements: LINE

mod frames;

use frames::{Choices, assert_lost_whole, crc32, lint, power_up, with_fcs};
use hdl::{Interpreter, elaborate};
use nic::Config;
use nic::mac::{Mac, receive::Receive, transmit::Transmit};
use std::collections::VecDeque;

/// One lane: a character and whether it is control.
type Lane = (u8, bool);
const IDLE: Lane = (0x07, true);
const START: Lane = (0xfb, true);
const TERMINATE: Lane = (0xfd, true);
const ERROR: Lane = (0xfe, true);

struct Rig {
    sim: Interpreter,
    phase: usize,
    send: VecDeque<(u64, bool, usize)>,
    /// Probability in 256 that the core offers a beat.
    offer: u64,
    take: bool,
    pick: Choices,
    /// Everything that left the transmitter.
    line: Vec<Lane>,
    /// What the receiver gets; `None`: the transmitter's own line.
    script: Option<VecDeque<Lane>>,
    got: Vec<(Vec<u8>, bool)>,
    part: Vec<u8>,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        Rig {
            sim: power_up(&elaborate(&Mac(Config::small())).unwrap()),
            phase: 0,
            send: VecDeque::new(),
            offer: 256,
            take: true,
            pick: Choices::new(seed),
            line: vec![],
            script: None,
            got: vec![],
            part: vec![],
        }
    }
    fn offer(&mut self, frame: &[u8]) {
        let n = frame.len().div_ceil(8);
        for (i, chunk) in frame.chunks(8).enumerate() {
            // whatever stands behind the end is not sent
            let mut bytes = [0xcc; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.send.push_back((u64::from_le_bytes(bytes), i + 1 == n, chunk.len()));
        }
    }
    fn core(&mut self) {
        let s = &mut self.sim;
        let beat = self.send.front().copied().filter(|_| self.pick.below(256) < self.offer);
        s.poke("transmit_valid", u64::from(beat.is_some()));
        if let Some((data, last, bytes)) = beat {
            s.poke("transmit_data", data);
            s.poke("transmit_last", u64::from(last));
            s.poke("transmit_bytes", bytes as u64);
            if s.peek("transmit_ready") == 1 {
                self.send.pop_front();
            }
        }
        if s.peek("idle") == 1 {
            let pins = (s.peek("xgmii_txd"), s.peek("xgmii_txc"));
            assert_eq!(pins, (0x0707_0707_0707_0707, 0xff), "the pins of an idle MAC");
        }
        s.poke("receive_ready", u64::from(self.take));
        if self.take && s.peek("receive_valid") == 1 {
            let n = s.peek("receive_bytes") as usize;
            self.part.extend(&s.peek("receive_data").to_le_bytes()[..n]);
            if s.peek("receive_last") == 1 {
                let error = s.peek("receive_error") == 1;
                self.got.push((std::mem::take(&mut self.part), error));
            } else {
                assert_eq!(n, 8, "a beat before the last is full");
            }
        }
        s.step("clock");
    }
    fn wire(&mut self) {
        let (data, control) = (self.sim.peek("xgmii_txd").to_le_bytes(), self.sim.peek("xgmii_txc"));
        let sent: [Lane; 8] = std::array::from_fn(|i| (data[i], control >> i & 1 == 1));
        self.line.extend(sent);
        let lanes = match &mut self.script {
            None => sent,
            Some(script) => std::array::from_fn(|_| script.pop_front().unwrap_or(IDLE)),
        };
        let data = u64::from_le_bytes(lanes.map(|l| l.0));
        let control = lanes.iter().enumerate().fold(0, |c, (i, l)| c | u64::from(l.1) << i);
        self.sim.poke("xgmii_rxd", data);
        self.sim.poke("xgmii_rxc", control);
        self.sim.step("tx_clock");
        self.sim.step("rx_clock");
    }
    /// Eight core clocks and five line clocks, spread.
    fn step(&mut self) {
        self.core();
        if self.phase * 5 / 8 != (self.phase + 1) * 5 / 8 {
            self.wire();
        }
        self.phase = (self.phase + 1) % 8;
    }
    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }
    fn finish(&mut self) {
        let mut quiet = 0;
        let mut steps = 0;
        while quiet < 200 {
            let before = (self.send.len(), self.got.len(), self.part.len());
            self.step();
            let busy = self.script.as_ref().is_some_and(|s| !s.is_empty());
            quiet = if busy || before != (self.send.len(), self.got.len(), self.part.len()) {
                0
            } else {
                quiet + 1
            };
            // frames of 9216 bytes leave 1500 steps between two changes
            if !self.line.is_empty() && self.line[self.line.len() - 8..].iter().any(|l| *l != IDLE) {
                quiet = 0;
            }
            steps += 1;
            assert!(steps < 2_000_000, "the MAC does not come to rest");
        }
        assert_eq!(self.sim.failures(), &[]);
        assert_eq!(self.sim.peek("idle"), 1, "at rest the MAC is idle");
    }
}

/// Frames on the line (with FCS), the lane of each Start, and the gap before each but the first: from Terminate,
/// included, to Start. Everything else about the line is asserted.
fn check_line(line: &[Lane]) -> (Vec<Vec<u8>>, Vec<usize>, Vec<usize>) {
    let (mut frames, mut starts, mut gaps) = (vec![], vec![], vec![]);
    let mut at = 0;
    let mut terminate: Option<usize> = None;
    while at < line.len() {
        if line[at] == IDLE {
            at += 1;
            continue;
        }
        assert_eq!(line[at], START, "byte {at} of the line");
        assert!(at.is_multiple_of(4), "Start in lane {}", at % 8);
        starts.push(at % 8);
        gaps.extend(terminate.map(|t| at - t));
        for i in 1..7 {
            assert_eq!(line[at + i], (0x55, false), "preamble");
        }
        assert_eq!(line[at + 7], (0xd5, false), "start frame delimiter");
        at += 8;
        let mut frame = vec![];
        while !line[at].1 {
            frame.push(line[at].0);
            at += 1;
        }
        assert_eq!(line[at], TERMINATE, "the end of a frame");
        terminate = Some(at);
        at += 1;
        assert!(frame.len() >= 64, "{} bytes on the line", frame.len());
        assert_eq!(crc32(u32::MAX, &frame), 0xdebb_20e3, "FCS of a frame of {} bytes", frame.len());
        frames.push(frame);
    }
    (frames, starts, gaps)
}

#[test]
fn frames_of_all_lengths_cross_the_line_and_come_back_whole() {
    // the core as fast as it can, then with pauses within frames; the longest are long enough once
    for (seed, offer, long) in [(1, 256, &[1518, 4174, 9215, 9216][..]), (2, 100, &[1517])] {
        let mut rig = Rig::new(seed);
        rig.offer = offer;
        let lengths: Vec<usize> = (1..=140)
            .chain((0..6).map(|_| 141 + rig.pick.below(1300) as usize))
            .chain(long.iter().copied())
            .collect();
        let sent: Vec<Vec<u8>> = lengths.into_iter().map(|n| rig.pick.bytes(n)).collect();
        for f in &sent {
            rig.offer(f);
        }
        rig.finish();
        let expected: Vec<Vec<u8>> = sent.iter().map(|f| with_fcs(f)).collect();
        let (line, starts, gaps) = check_line(&rig.line);
        assert!(line == expected, "seed {seed}: the line carries what was sent, padded, with FCS");
        assert!(starts.contains(&0) && starts.contains(&4));
        assert!(gaps.iter().all(|g| *g >= 9), "seed {seed}: {gaps:?}");
        assert_eq!(rig.got.len(), expected.len(), "seed {seed}");
        for ((got, error), e) in rig.got.iter().zip(&expected) {
            assert!(got == e && !error, "seed {seed}: a frame of {} bytes", e.len());
        }
    }
}

#[test]
fn waiting_frames_follow_by_twelve_bytes_on_average_and_never_less_than_nine() {
    // one length at a time: each remainder modulo 8 has its own rhythm
    for length in 60..=68 {
        let mut rig = Rig::new(3);
        let frame = rig.pick.bytes(length);
        let n = 25;
        for _ in 0..n {
            rig.offer(&frame);
        }
        rig.finish();
        let (frames, _, gaps) = check_line(&rig.line);
        assert_eq!(frames.len(), n);
        assert!(gaps.iter().all(|g| (9..=15).contains(g)), "{length} bytes: {gaps:?}");
        // the deficit never exceeds three bytes
        let mut debt = 0i64;
        for g in &gaps {
            debt += 12 - *g as i64;
            assert!((0..=3).contains(&debt), "{length} bytes: {gaps:?}");
        }
        let rest = (length + 4) % 4;
        assert!(rest > 0 || gaps.iter().all(|g| *g == 12), "{length} bytes: {gaps:?}");
    }
    let mut rig = Rig::new(4);
    for _ in 0..100 {
        let length = 60 + rig.pick.below(90) as usize;
        let frame = rig.pick.bytes(length);
        rig.offer(&frame);
    }
    rig.finish();
    let (_, _, gaps) = check_line(&rig.line);
    let total: usize = gaps.iter().sum();
    assert!(gaps.len() == 99 && (99 * 12 - 3..=99 * 12).contains(&total), "{total} bytes in 99 gaps");
}

#[test]
fn a_frame_starts_only_when_all_of_it_is_there() {
    let mut rig = Rig::new(5);
    let frame = rig.pick.bytes(1000);
    rig.offer(&frame);
    let last = rig.send.pop_back().unwrap();
    rig.run(3000);
    assert!(rig.send.is_empty() && rig.line.iter().all(|l| *l == IDLE), "nothing without the last beat");
    rig.send.push_back(last);
    rig.finish();
    assert_eq!(check_line(&rig.line).0, [with_fcs(&frame)]);
}

#[test]
fn the_pins_idle_from_the_first_clock_after_reset() {
    let mut rig = Rig::new(6);
    rig.run(40);
    assert_eq!(rig.line.len(), 25 * 8);
    assert!(rig.line.iter().all(|l| *l == IDLE));
}

/// Lanes of a frame that begins at a Start; the caller aligns.
fn on_line(frame: &[u8]) -> Vec<Lane> {
    let mut out = vec![START];
    out.extend([(0x55, false); 6]);
    out.push((0xd5, false));
    out.extend(frame.iter().map(|b| (*b, false)));
    out.push(TERMINATE);
    out
}

/// Idle until the next Start may stand in lane `lane`, at least `gap` bytes after Terminate (itself included).
fn align(line: &mut Vec<Lane>, lane: usize, gap: usize) {
    line.extend(vec![IDLE; gap.saturating_sub(1)]);
    while line.len() % 8 != lane {
        line.push(IDLE);
    }
}

fn receive(seed: u64, line: Vec<Lane>) -> Vec<(Vec<u8>, bool)> {
    let mut rig = Rig::new(seed);
    rig.script = Some(line.into());
    rig.finish();
    rig.got
}

#[test]
fn frames_are_taken_from_both_start_lanes_at_the_least_gap() {
    let mut pick = Choices::new(7);
    let (mut line, mut expected) = (vec![], vec![]);
    for n in 0..64 {
        let length = 60 + pick.below(30) as usize;
        let frame = with_fcs(&pick.bytes(length));
        // a receiver must stand 5 bytes at least
        align(&mut line, [0, 4][pick.below(2) as usize], if n == 0 { 1 } else { 5 });
        line.extend(on_line(&frame));
        expected.push((frame, false));
    }
    assert_eq!(receive(7, line), expected);
}

#[test]
fn every_single_bit_of_a_frame_is_guarded_by_the_fcs() {
    let mut pick = Choices::new(8);
    let frame = with_fcs(&pick.bytes(61));
    let mut line = vec![];
    let bits = frame.len() * 8;
    for bit in 0..bits {
        let mut flipped = frame.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        align(&mut line, bit % 2 * 4, 12);
        line.extend(on_line(&flipped));
    }
    align(&mut line, 0, 12);
    line.extend(on_line(&frame));
    let got = receive(8, line);
    assert_eq!(got.len(), bits + 1);
    assert!(got[..bits].iter().all(|g| g.1), "every damaged frame is marked");
    assert_eq!(got[bits], (frame, false));
}

#[test]
fn damage_on_the_line_is_marked_and_the_next_frame_is_whole() {
    let mut pick = Choices::new(9);
    let good = with_fcs(&pick.bytes(100));
    // an error character, an idle or a stray Start at every place of a frame
    for (kind, lane) in [(ERROR, 0), (ERROR, 4), (IDLE, 0), (IDLE, 4), ((0x9c, true), 0)] {
        let mut line = vec![];
        for at in 0..good.len() {
            align(&mut line, lane, 12);
            let mut hurt = on_line(&good);
            hurt[8 + at] = kind;
            line.extend(hurt);
        }
        align(&mut line, 4 - lane, 12);
        line.extend(on_line(&good));
        let got = receive(9, line);
        assert_eq!(got.len(), good.len() + 1, "{kind:?}");
        assert!(got[..good.len()].iter().all(|g| g.1), "{kind:?}: marked");
        assert_eq!(got.last(), Some(&(good.clone(), false)), "{kind:?}");
    }
}

#[test]
fn a_frame_without_terminate_ends_at_the_next_start() {
    let mut pick = Choices::new(10);
    let good = with_fcs(&pick.bytes(100));
    for lane in [0, 4] {
        for next in [0, 4] {
            let mut line = vec![];
            align(&mut line, lane, 1);
            let mut open = on_line(&good);
            open.truncate(8 + 40);
            line.extend(open);
            while line.len() % 8 != next {
                line.push((0x11, false));
            }
            line.extend(on_line(&good));
            let got = receive(10, line);
            assert_eq!(got.len(), 2, "lanes {lane}, {next}");
            assert!(got[0].1);
            assert_eq!(got[1], (good.clone(), false), "lanes {lane}, {next}");
        }
    }
}

#[test]
fn short_frames_are_marked_and_what_has_no_delimiter_is_no_frame() {
    let mut pick = Choices::new(11);
    let mut line = vec![];
    for n in 0..=60 {
        // a right FCS, but too few bytes
        let mut f = pick.bytes(n);
        let fcs = !crc32(u32::MAX, &f);
        f.extend(fcs.to_le_bytes());
        align(&mut line, n % 2 * 4, 12);
        line.extend(on_line(&f));
    }
    let got = receive(11, line.clone());
    assert_eq!(got.len(), 61);
    for (n, (f, error)) in got.iter().enumerate() {
        assert_eq!((f.len(), *error), (n + 4, n < 60), "{} bytes with FCS", n + 4);
    }
    // no data at all
    let mut line = vec![];
    line.extend(on_line(&[]));
    align(&mut line, 4, 12);
    line.extend(on_line(&[]));
    align(&mut line, 0, 12);
    let mut undelimited = on_line(&with_fcs(&pick.bytes(60)));
    undelimited[7] = (0x55, false);
    line.extend(undelimited);
    let got = receive(11, line);
    assert_eq!(got.iter().map(|g| g.1).collect::<Vec<_>>(), [true, true]);
}

#[test]
fn frames_that_the_core_does_not_take_are_lost_whole_and_each_is_reported() {
    let mut pick = Choices::new(12);
    let frames: Vec<Vec<u8>> = (0..9).map(|_| with_fcs(&pick.bytes(150))).collect();
    let mut line = vec![];
    for f in &frames {
        align(&mut line, 0, 12);
        line.extend(on_line(f));
    }
    let mut rig = Rig::new(12);
    rig.script = Some(line.into());
    rig.take = false;
    // until the last frame but one is over
    while rig.script.as_ref().unwrap().len() > 160 {
        rig.step();
    }
    rig.take = true;
    rig.finish();
    // 32 beats hold one frame of 20
    assert_lost_whole(&rig.got, &frames);
    // and it works again
    let mut line = vec![];
    line.extend(on_line(&frames[3]));
    rig.script = Some(line.into());
    rig.finish();
    assert_eq!(rig.got.last(), Some(&(frames[3].clone(), false)));
}

#[test]
fn the_emitted_verilog_is_clean() {
    lint(&elaborate(&Transmit(Config::small())).unwrap());
    lint(&elaborate(&Receive(Config::small())).unwrap());
    lint(&elaborate(&Mac(Config::small())).unwrap());
}
