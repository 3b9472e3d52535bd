//! The MAC of the 512-bit card against a CMAC of this file: in loopback and alone.
//!
//! Requirements: LINE

mod frames;

use frames::{Choices, assert_lost_whole, lint, power_up};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::mac::{Mac, cmac_receive::CmacReceive, cmac_transmit::CmacTransmit};
use std::collections::VecDeque;

const BEAT: usize = 64;

/// A beat of an AXI stream: lanes, how many of them, last, error.
type Beat = (Vec<u8>, usize, bool, bool);

struct Rig {
    sim: Interpreter,
    /// Picoseconds of the next core clock and of the next line clock.
    next: [u64; 2],
    send: VecDeque<Beat>,
    /// Probability in 256 that the core offers a beat, and that the CMAC takes one.
    offer: u64,
    ready: u64,
    take: bool,
    pick: Choices,
    /// When the line is free of all that left, in ps; `None`: a line without end.
    free: Option<u64>,
    /// Frames that left, and the part of one.
    sent: Vec<Vec<u8>>,
    leaving: Vec<u8>,
    /// Line clocks in which the CMAC would have taken a beat and had none, while a frame waited whole.
    idle: usize,
    /// What the receiver gets; `None`: what the transmitter sends.
    script: Option<VecDeque<Option<Beat>>>,
    back: VecDeque<Option<Beat>>,
    got: Vec<(Vec<u8>, bool)>,
    part: Vec<u8>,
}

/// The beats of a frame.
fn beats(frame: &[u8], error: bool) -> impl Iterator<Item = Beat> {
    let n = frame.len().div_ceil(BEAT);
    frame.chunks(BEAT).enumerate().map(move |(i, chunk)| {
        // whatever stands behind the end is not sent
        let mut lanes = vec![0xcc; BEAT];
        lanes[..chunk.len()].copy_from_slice(chunk);
        let last = i + 1 == n;
        (lanes, chunk.len(), last, error && last)
    })
}

fn padded(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame.resize(frame.len().max(60), 0);
    frame
}

impl Rig {
    fn new(seed: u64) -> Rig {
        Rig {
            sim: power_up(&elaborate(&Mac(Config::full())).unwrap()),
            next: [4000, 3103],
            send: VecDeque::new(),
            offer: 256,
            ready: 256,
            take: true,
            pick: Choices::new(seed),
            free: Some(0),
            sent: vec![],
            leaving: vec![],
            idle: 0,
            script: None,
            back: VecDeque::new(),
            got: vec![],
            part: vec![],
        }
    }
    fn offer(&mut self, frame: &[u8]) {
        self.send.extend(beats(frame, false));
    }
    fn core(&mut self) {
        let s = &mut self.sim;
        let beat = self.send.front().cloned().filter(|_| self.pick.below(256) < self.offer);
        s.poke("transmit_valid", u64::from(beat.is_some()));
        if let Some((data, bytes, last, _)) = beat {
            s.poke_bits("transmit_data", &Bits::from_bytes(512, &data));
            s.poke("transmit_last", u64::from(last));
            s.poke("transmit_bytes", bytes as u64);
            if s.peek("transmit_ready") == 1 {
                self.send.pop_front();
            }
        }
        s.poke("receive_ready", u64::from(self.take));
        if self.take && s.peek("receive_valid") == 1 {
            let n = s.peek("receive_bytes") as usize;
            self.part.extend(&s.peek_bits("receive_data").to_bytes()[..n]);
            if s.peek("receive_last") == 1 {
                let error = s.peek("receive_error") == 1;
                self.got.push((std::mem::take(&mut self.part), error));
            } else {
                assert_eq!(n, BEAT, "a beat before the last is full");
            }
        }
        s.step("clock");
    }
    fn wire(&mut self) {
        let s = &mut self.sim;
        let now = self.next[1];
        let ready = self.pick.below(256) < self.ready && self.free.is_none_or(|free| free <= now + 20_000);
        s.poke("tx_axis_tready", u64::from(ready));
        let mut moved = None;
        if ready && s.peek("tx_axis_tvalid") == 1 {
            let keep = s.peek("tx_axis_tkeep");
            let last = s.peek("tx_axis_tlast") == 1;
            let n = keep.trailing_ones() as usize;
            assert_eq!(keep.count_ones() as usize, n, "lanes from the first on: {keep:#x}");
            assert!(n == BEAT || (last && n > 0), "{keep:#x}");
            assert_eq!(s.peek("tx_axis_tuser"), 0);
            let lanes = s.peek_bits("tx_axis_tdata").to_bytes();
            // 80 ps per byte; preamble before a frame, FCS and gap behind it
            let more = n + if self.leaving.is_empty() { 8 } else { 0 } + if last { 16 } else { 0 };
            let begin = |free: u64| if self.leaving.is_empty() { free.max(now) } else { free };
            self.free = self.free.map(|free| begin(free) + 80 * more as u64);
            self.leaving.extend(&lanes[..n]);
            if last {
                assert!(self.leaving.len() >= 60);
                self.sent.push(std::mem::take(&mut self.leaving));
            }
            moved = Some((lanes, n, last, false));
        } else if ready {
            assert!(self.leaving.is_empty(), "a gap behind byte {} of a frame", self.leaving.len());
            self.idle += 1;
        }
        self.back.push_back(moved);
        let beat = match &mut self.script {
            Some(script) => script.pop_front().flatten(),
            None => self.back.pop_front().flatten(),
        };
        s.poke("rx_axis_tvalid", u64::from(beat.is_some()));
        if let Some((lanes, n, last, error)) = beat {
            s.poke_bits("rx_axis_tdata", &Bits::from_bytes(512, &lanes));
            s.poke("rx_axis_tkeep", if n == BEAT { u64::MAX } else { (1 << n) - 1 });
            s.poke("rx_axis_tlast", u64::from(last));
            s.poke("rx_axis_tuser", u64::from(error));
        }
        s.step("tx_clock");
        s.step("rx_clock");
    }
    /// The next edge of either clock.
    fn step(&mut self) {
        if self.next[0] <= self.next[1] {
            self.next[0] += 4000;
            self.core();
        } else {
            self.next[1] += 3103;
            self.wire();
        }
    }
    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }
    fn finish(&mut self) {
        let state = |r: &Rig| {
            let script = r.script.as_ref().map_or(0, VecDeque::len);
            (r.send.len(), r.sent.len(), r.leaving.len(), r.got.len(), r.part.len(), script)
        };
        let mut quiet = 0;
        while quiet < 400 {
            let before = state(self);
            self.step();
            quiet = if before == state(self) { quiet + 1 } else { 0 };
        }
        assert_eq!(self.sim.failures(), &[]);
        assert_eq!(self.sim.peek("idle"), 1, "at rest the MAC is idle");
    }
}

#[test]
fn frames_of_all_lengths_go_out_padded_without_a_gap_and_come_back_whole() {
    // core and CMAC as fast as they can; a core that pauses within frames; a CMAC that does
    for (seed, offer, ready, long) in
        [(1, 256, 256, &[1518, 4174, 9215, 9216][..]), (2, 90, 256, &[1517]), (3, 256, 120, &[4096])]
    {
        let mut rig = Rig::new(seed);
        (rig.offer, rig.ready) = (offer, ready);
        let lengths = (1..=130).chain([191, 192, 193]).chain(long.iter().copied());
        let frames: Vec<Vec<u8>> = lengths.map(|n| rig.pick.bytes(n)).collect();
        for frame in &frames {
            rig.offer(frame);
        }
        rig.finish();
        let want: Vec<Vec<u8>> = frames.iter().map(|frame| padded(frame)).collect();
        assert!(rig.sent == want, "seed {seed}: what was sent, padded");
        let got: Vec<_> = want.into_iter().map(|frame| (frame, false)).collect();
        assert!(rig.got == got, "seed {seed}: it comes back");
    }
}

#[test]
fn waiting_frames_follow_each_other_in_every_line_clock() {
    let mut rig = Rig::new(4);
    (rig.ready, rig.free) = (0, None);
    for _ in 0..60 {
        let frame = rig.pick.bytes(200);
        rig.offer(&frame);
    }
    rig.run(1200);
    assert!(rig.send.is_empty());
    (rig.ready, rig.idle) = (256, 0);
    while rig.sent.len() < 60 {
        rig.step();
    }
    assert_eq!(rig.idle, 0, "line clocks without a beat");
}

#[test]
fn a_frame_starts_only_when_all_of_it_is_there() {
    let mut rig = Rig::new(5);
    let frame = rig.pick.bytes(1000);
    rig.offer(&frame);
    let last = rig.send.pop_back().unwrap();
    rig.run(3000);
    assert!(
        rig.send.is_empty() && rig.sent.is_empty() && rig.leaving.is_empty(),
        "nothing without the last beat"
    );
    rig.send.push_back(last);
    rig.finish();
    assert_eq!(rig.sent, [frame]);
}

#[test]
fn gaps_inside_of_a_received_frame_do_not_matter_and_a_bad_one_is_marked() {
    let mut rig = Rig::new(6);
    let (mut script, mut want) = (VecDeque::new(), vec![]);
    for n in 0..80 {
        let length = 60 + rig.pick.below(300) as usize;
        let (frame, bad) = (rig.pick.bytes(length), n % 7 == 3);
        for beat in beats(&frame, bad) {
            script.extend((0..rig.pick.below(3)).map(|_| None));
            script.push_back(Some(beat));
        }
        want.push((frame, bad));
    }
    rig.script = Some(script);
    rig.finish();
    assert_eq!(rig.got, want);
}

#[test]
fn frames_that_the_core_does_not_take_are_lost_whole_and_each_is_reported() {
    let mut rig = Rig::new(7);
    let frames: Vec<Vec<u8>> = (0..9).map(|_| rig.pick.bytes(20 * BEAT)).collect();
    rig.script = Some(frames.iter().flat_map(|frame| beats(frame, false)).map(Some).collect());
    rig.take = false;
    // until the last frame but one is over
    while rig.script.as_ref().unwrap().len() > 20 {
        rig.step();
    }
    rig.take = true;
    rig.finish();
    // 32 beats hold one frame of 20
    assert_lost_whole(&rig.got, &frames);
    // and it works again
    rig.script = Some(beats(&frames[3], false).map(Some).collect());
    rig.finish();
    assert_eq!(rig.got.last(), Some(&(frames[3].clone(), false)));
}

#[test]
fn the_emitted_verilog_is_clean() {
    lint(&elaborate(&CmacTransmit(Config::full())).unwrap());
    lint(&elaborate(&CmacReceive(Config::full())).unwrap());
    lint(&elaborate(&Mac(Config::full())).unwrap());
}
