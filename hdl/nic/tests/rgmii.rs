//! The Gigabit MAC at its RGMII edges, in loopback and alone, against a PHY of this file: its clocks at 1000, 100 and 10
//! Mb/s, its nibbles, its management wire.
//!
//! Requirements: LINE

mod frames;

use frames::{Choices, assert_lost_whole, crc32, lint, with_fcs};
use hdl::{Interpreter, elaborate};
use nic::Config;
use nic::mac::{
    Mac, gmii_receive::GmiiReceive, gmii_transmit::GmiiTransmit, rgmii::RgmiiReceive, rgmii::RgmiiTransmit,
    rgmii_mac::RgmiiMac,
};
use std::collections::VecDeque;

/// What the line carries in one period: a byte at 1000 Mb/s, a nibble below.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Symbol {
    data: u8,
    valid: bool,
    error: bool,
}
const IDLE: Symbol = Symbol { data: 0, valid: false, error: false };

/// Registers of an 88E1512, as far as anybody asks.
struct Phy {
    address: u8,
    status: u16,
    shift: u64,
    /// Bits since the last start, if a question is under way.
    bits: Option<u32>,
    answer: VecDeque<bool>,
    questions: Vec<(u8, u8)>,
    mdc: bool,
}

impl Phy {
    fn new(address: u8) -> Phy {
        Phy {
            address,
            status: 0,
            shift: 0,
            bits: None,
            answer: VecDeque::new(),
            questions: vec![],
            mdc: false,
        }
    }
    /// 802.3, 22.2.4.5: what is sampled when MDC rises; the answer stands until it rises again.
    fn step(&mut self, sim: &mut Interpreter) {
        let mdc = sim.peek("mdc") == 1;
        if mdc && !self.mdc {
            let driven = sim.peek("mdio_enable") == 1;
            let bit = !driven || sim.peek("mdio_out") == 1;
            self.answer.pop_front();
            self.shift = self.shift << 1 | u64::from(bit);
            match &mut self.bits {
                None if driven && self.shift & 0x3_ffff_ffff == 0x3_ffff_fffd => self.bits = Some(2),
                Some(n) => {
                    *n += 1;
                    if *n == 14 {
                        self.bits = None;
                        let asked = self.shift & 0xfff;
                        assert_eq!(asked >> 10, 0b10, "only reads");
                        let (address, register) = ((asked >> 5 & 31) as u8, (asked & 31) as u8);
                        self.questions.push((address, register));
                        if address == self.address {
                            self.answer = [true, false].into();
                            self.answer.extend((0..16).rev().map(|i| self.status >> i & 1 == 1));
                        }
                    }
                }
                None => {}
            }
        }
        self.mdc = mdc;
        // a pull-up
        sim.poke("mdio_in", u64::from(self.answer.front().copied().unwrap_or(true)));
    }
}

/// Status of a link of that speed code.
fn link_up(speed: u16) -> u16 {
    speed << 14 | 1 << 13 | 1 << 11 | 1 << 10
}

struct Rig {
    sim: Interpreter,
    clocks: usize,
    /// Clocks of 125 MHz in a period of the line.
    period: usize,
    send: VecDeque<(u64, bool, usize)>,
    take: bool,
    pick: Choices,
    phy: Phy,
    /// TXC in the half clock before.
    txc: bool,
    /// What the PHY saw of the transmitter.
    line: Vec<Symbol>,
    /// What the receiver gets; `None`: the transmitter's own line.
    script: Option<VecDeque<Symbol>>,
    looped: VecDeque<Symbol>,
    got: Vec<(Vec<u8>, bool)>,
    part: Vec<u8>,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        Rig::with_phy(seed, Phy::new(0))
    }
    fn with_phy(seed: u64, phy: Phy) -> Rig {
        Rig {
            sim: frames::power_up(&elaborate(&RgmiiMac(Config::target())).unwrap()),
            clocks: 0,
            period: 1,
            send: VecDeque::new(),
            take: true,
            pick: Choices::new(seed),
            phy,
            txc: false,
            line: vec![],
            script: None,
            looped: VecDeque::new(),
            got: vec![],
            part: vec![],
        }
    }
    /// A link of 1000, 100 or 10 Mb/s, and its news at the MAC.
    fn at(seed: u64, mbps: u32) -> Rig {
        let mut rig = Rig::new(seed);
        let (code, period) = match mbps {
            1000 => (2, 1),
            100 => (1, 5),
            _ => (0, 50),
        };
        rig.phy.status = link_up(code);
        rig.period = period;
        while rig.sim.peek("link") == 0 {
            rig.step();
            assert!(rig.clocks < 20_000, "no news of the link");
        }
        rig.run(8 * period);
        assert_eq!(rig.sim.peek("speed"), u64::from(code));
        rig.line.clear();
        rig.looped.clear();
        rig
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
        let beat = self.send.front().copied();
        s.poke("transmit_valid", u64::from(beat.is_some()));
        if let Some((data, last, bytes)) = beat {
            s.poke("transmit_data", data);
            s.poke("transmit_last", u64::from(last));
            s.poke("transmit_bytes", bytes as u64);
            if s.peek("transmit_ready") == 1 {
                self.send.pop_front();
            }
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
    /// The PHY's view of the pins in both halves of a transmit clock: data counts where TXC rises.
    fn see(&mut self) {
        let sim = &mut self.sim;
        let mut edge = |pin: &str, half: &str| sim.peek(&format!("{pin}_{half}"));
        let halves = ["rise", "fall"].map(|half| {
            let [clock, data, control] = ["txc", "txd", "tx_control"].map(|pin| edge(pin, half));
            (clock == 1, data as u8, control == 1)
        });
        for (half, (clock, data, control)) in halves.into_iter().enumerate() {
            if clock && !self.txc {
                assert_eq!(half, 0, "TXC rises with the transmit clock");
                let fall = if self.period == 1 { halves[1] } else { halves[0] };
                let data = if self.period == 1 { data | fall.1 << 4 } else { data };
                let symbol = Symbol { data, valid: control, error: control != fall.2 };
                assert!(!symbol.error, "the MAC never sends an error");
                let symbol = if symbol.valid { symbol } else { IDLE };
                self.line.push(symbol);
                self.looped.push_back(symbol);
            }
            self.txc = clock;
        }
    }
    fn step(&mut self) {
        self.clocks += 1;
        // a core of 62.5 MHz
        if self.clocks.is_multiple_of(2) {
            self.core();
        }
        self.sim.step("tx_clock");
        self.phy.step(&mut self.sim);
        self.see();
        if self.clocks.is_multiple_of(self.period) {
            let from = self.script.as_mut().unwrap_or(&mut self.looped);
            let symbol = from.pop_front().unwrap_or(IDLE);
            let fall = if self.period == 1 { symbol.data >> 4 } else { symbol.data & 15 };
            self.sim.poke("rxd_rise", u64::from(symbol.data & 15));
            self.sim.poke("rxd_fall", u64::from(fall));
            self.sim.poke("rx_control_rise", u64::from(symbol.valid));
            self.sim.poke("rx_control_fall", u64::from(symbol.valid != symbol.error));
            self.sim.step("rx_clock");
        }
    }
    fn run(&mut self, clocks: usize) {
        for _ in 0..clocks {
            self.step();
        }
    }
    fn finish(&mut self) {
        let mut quiet = 0;
        while quiet < 60 * self.period {
            let before = (self.send.len(), self.got.len(), self.part.len());
            self.step();
            let busy = self.script.as_ref().is_some_and(|s| !s.is_empty()) || self.sim.peek("idle") == 0;
            let same = before == (self.send.len(), self.got.len(), self.part.len());
            quiet = if busy || !same { 0 } else { quiet + 1 };
            assert!(self.clocks < 3_000_000, "the MAC does not come to rest");
        }
        assert_eq!(self.sim.failures(), &[]);
    }
    /// A frame as the PHY brings it: `preamble` bytes of 0x55, delimiter, bytes.
    fn on_line(&self, preamble: usize, frame: &[u8]) -> Vec<Symbol> {
        let bytes = std::iter::repeat_n(0x55, preamble).chain([0xd5]).chain(frame.iter().copied());
        let symbol = |data: u8| Symbol { data, valid: true, error: false };
        match self.period {
            1 => bytes.map(symbol).collect(),
            _ => bytes.flat_map(|b| [symbol(b & 15), symbol(b >> 4)]).collect(),
        }
    }
    /// Frames of `script`, 12 byte times apart, to the receiver alone; what it gave.
    fn receive(&mut self, script: Vec<Vec<Symbol>>) -> Vec<(Vec<u8>, bool)> {
        let gap = if self.period == 1 { 12 } else { 24 };
        let symbols = script.into_iter().flat_map(|f| f.into_iter().chain(vec![IDLE; gap]));
        self.script = Some(symbols.collect());
        self.finish();
        std::mem::take(&mut self.got)
    }
    /// Frames that the PHY saw (with FCS), and the bytes of time between them. Everything else is asserted.
    fn check_line(&self) -> (Vec<Vec<u8>>, Vec<usize>) {
        let per_byte = if self.period == 1 { 1 } else { 2 };
        let (mut frames, mut gaps, mut gap) = (vec![], vec![], None);
        let mut at = 0;
        while at < self.line.len() {
            if !self.line[at].valid {
                gap = gap.map(|n| n + 1);
                at += 1;
                continue;
            }
            gaps.extend(gap.map(|n: usize| n / per_byte));
            let n = self.line[at..].iter().take_while(|s| s.valid).count();
            let symbols: Vec<u8> = self.line[at..at + n].iter().map(|s| s.data).collect();
            let bytes: Vec<u8> = match per_byte {
                1 => symbols,
                _ => symbols.chunks(2).map(|c| c[0] | c[1] << 4).collect(),
            };
            assert_eq!(bytes[..8], [0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0xd5], "preamble");
            let frame = bytes[8..].to_vec();
            assert!(frame.len() >= 64, "{} bytes on the line", frame.len());
            assert_eq!(crc32(u32::MAX, &frame), 0xdebb_20e3, "FCS of a frame of {} bytes", frame.len());
            frames.push(frame);
            (at, gap) = (at + n, Some(0));
        }
        (frames, gaps)
    }
}

#[test]
fn frames_of_all_lengths_cross_the_line_at_every_speed_and_come_back_whole() {
    for (mbps, lengths) in [
        (1000, (1..=140).chain([1518, 4174, 9216]).collect::<Vec<usize>>()),
        (100, (57..=72).chain([1, 14, 1518]).collect()),
        (10, vec![60, 61, 67, 1]),
    ] {
        let mut rig = Rig::at(1, mbps);
        let sent: Vec<Vec<u8>> = lengths.into_iter().map(|n| rig.pick.bytes(n)).collect();
        for f in &sent {
            rig.offer(f);
        }
        rig.finish();
        let expected: Vec<Vec<u8>> = sent.iter().map(|f| with_fcs(f)).collect();
        let (line, gaps) = rig.check_line();
        assert!(line == expected, "{mbps} Mb/s: the line carries what was sent, padded, with FCS");
        assert!(gaps.iter().all(|g| *g >= 12), "{mbps} Mb/s: {gaps:?}");
        // frames that wait follow each other closely
        let close = gaps.iter().filter(|g| **g == 12).count();
        assert!(close > gaps.len() / 2, "{mbps} Mb/s: {gaps:?}");
        assert_eq!(rig.got.len(), expected.len(), "{mbps} Mb/s");
        for ((got, error), e) in rig.got.iter().zip(&expected) {
            assert!(got == e && !error, "{mbps} Mb/s: a frame of {} bytes", e.len());
        }
    }
}

#[test]
fn a_frame_starts_only_when_all_of_it_is_there() {
    let mut rig = Rig::at(2, 1000);
    let frame = rig.pick.bytes(1000);
    rig.offer(&frame);
    let last = rig.send.pop_back().unwrap();
    rig.run(3000);
    assert!(rig.send.is_empty() && rig.line.iter().all(|s| !s.valid), "nothing without the last beat");
    rig.send.push_back(last);
    rig.finish();
    assert_eq!(rig.check_line().0, [with_fcs(&frame)]);
}

#[test]
fn every_single_bit_of_a_frame_is_guarded_by_the_fcs() {
    let mut rig = Rig::at(3, 1000);
    let frame = with_fcs(&rig.pick.bytes(61));
    let bits = frame.len() * 8;
    let mut script: Vec<_> = (0..bits)
        .map(|bit| {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            rig.on_line(7, &flipped)
        })
        .collect();
    script.push(rig.on_line(7, &frame));
    let got = rig.receive(script);
    assert_eq!(got.len(), bits + 1);
    assert!(got[..bits].iter().all(|g| g.1), "every damaged frame is marked");
    assert_eq!(got[bits], (frame, false));
}

#[test]
fn an_error_of_the_phy_anywhere_in_a_frame_marks_it_and_the_next_is_whole() {
    for mbps in [1000, 100] {
        let mut rig = Rig::at(4, mbps);
        let good = with_fcs(&rig.pick.bytes(70));
        let clean = rig.on_line(7, &good);
        let opening = clean.len() - good.len() * clean.len() / (good.len() + 8);
        let hurt = (opening..clean.len()).map(|at| {
            let mut hurt = clean.clone();
            hurt[at].error = true;
            hurt
        });
        let script: Vec<_> = hurt.chain([clean.clone()]).collect();
        let n = script.len() - 1;
        let got = rig.receive(script);
        assert_eq!(got.len(), n + 1);
        assert!(got[..n].iter().all(|g| g.1 && g.0 == good), "{mbps} Mb/s: marked");
        assert_eq!(got[n], (good, false));
    }
}

#[test]
fn short_frames_are_marked_and_what_has_no_delimiter_is_no_frame() {
    for mbps in [1000, 100] {
        let mut rig = Rig::at(5, mbps);
        // a right FCS, but too few bytes
        let short: Vec<_> = (0..=60)
            .map(|n| {
                let mut f = rig.pick.bytes(n);
                let fcs = !crc32(u32::MAX, &f);
                f.extend(fcs.to_le_bytes());
                rig.on_line(7, &f)
            })
            .collect();
        let got = rig.receive(short);
        assert_eq!(got.len(), 61);
        for (n, (f, error)) in got.iter().enumerate() {
            assert_eq!((f.len(), *error), (n + 4, n < 60), "{} bytes with FCS at {mbps} Mb/s", n + 4);
        }
        // a delimiter and nothing else; then something that is no preamble, whatever stands in it
        let nothing = rig.on_line(7, &[]);
        let mut noise = rig.on_line(7, &with_fcs(&rig.pick.clone().bytes(60)));
        let first = usize::from(mbps == 100);
        noise[3 + first].data = 0x5a;
        noise.retain(|s| s.data != 0xd5 && s.data != 0xd);
        let got = rig.receive(vec![nothing, noise]);
        assert_eq!(got.iter().map(|g| g.1).collect::<Vec<_>>(), [true], "{mbps} Mb/s");
    }
}

#[test]
fn a_preamble_may_be_short_and_nibbles_may_be_one_too_few_or_too_many() {
    for mbps in [1000, 100] {
        let mut rig = Rig::at(6, mbps);
        let good = with_fcs(&rig.pick.bytes(64));
        let script: Vec<_> = (0..=9).map(|n| rig.on_line(n, &good)).collect();
        assert_eq!(rig.receive(script), vec![(good.clone(), false); 10], "{mbps} Mb/s");
    }
    let mut rig = Rig::at(6, 100);
    let good = with_fcs(&rig.pick.bytes(64));
    let mut odd = rig.on_line(7, &good);
    odd.remove(0);
    let mut dribble = rig.on_line(7, &good);
    dribble.push(Symbol { data: 9, valid: true, error: false });
    assert_eq!(rig.receive(vec![odd, dribble]), vec![(good, false); 2]);
}

#[test]
fn frames_that_the_core_does_not_take_are_lost_whole_and_each_is_reported() {
    let mut rig = Rig::at(7, 1000);
    let frames: Vec<Vec<u8>> = (0..9).map(|_| with_fcs(&rig.pick.bytes(150))).collect();
    let symbols: Vec<Symbol> =
        frames.iter().flat_map(|f| rig.on_line(7, f).into_iter().chain([IDLE; 12])).collect();
    let all = symbols.len();
    rig.script = Some(symbols.into());
    rig.take = false;
    // until the last frame but one is over
    while rig.script.as_ref().unwrap().len() > all / 9 {
        rig.step();
    }
    rig.take = true;
    rig.finish();
    // 32 beats hold one frame of 20
    assert_lost_whole(&rig.got, &frames);
    let again = rig.on_line(7, &frames[3]);
    rig.got.clear();
    assert_eq!(rig.receive(vec![again]), [(frames[3].clone(), false)]);
}

#[test]
fn the_phy_is_asked_of_its_link_at_either_address_and_silence_is_no_link() {
    // nobody there: both addresses, again and again
    let mut rig = Rig::with_phy(8, Phy::new(9));
    rig.run(5 * 128 * 64);
    assert_eq!(rig.phy.questions, [(0, 17), (1, 17), (0, 17), (1, 17), (0, 17)]);
    assert_eq!((rig.sim.peek("link"), rig.sim.peek("speed")), (0, 2), "until told otherwise 1000 Mb/s");

    // at address 1, without a link, then with one, then with a cable pulled
    let mut rig = Rig::with_phy(8, Phy::new(1));
    rig.phy.status = 1 << 14;
    rig.run(3 * 128 * 64);
    assert_eq!((rig.sim.peek("link"), rig.sim.peek("speed")), (0, 2), "not resolved, so not believed");
    rig.phy.status = link_up(1);
    rig.run(2 * 128 * 64);
    assert_eq!((rig.sim.peek("link"), rig.sim.peek("speed")), (1, 1));
    assert_eq!(rig.phy.questions[1..], [(1, 17); 4], "whoever answers is asked again");
    rig.phy.status = 0;
    rig.run(2 * 128 * 64);
    assert_eq!((rig.sim.peek("link"), rig.sim.peek("speed")), (0, 1));
}

#[test]
fn the_emitted_verilog_is_clean() {
    let c = Config::target();
    lint(&elaborate(&GmiiTransmit(c.clone())).unwrap());
    lint(&elaborate(&GmiiReceive(c.clone())).unwrap());
    lint(&elaborate(&RgmiiTransmit).unwrap());
    lint(&elaborate(&RgmiiReceive).unwrap());
    lint(&elaborate(&Mac(c.clone())).unwrap());
    lint(&elaborate(&RgmiiMac(c)).unwrap());
}
