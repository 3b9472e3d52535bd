//! The shim to the UltraScale+ PCIe core, against the streams of the core as its product guide draws them. Every descriptor and
//! every bit of `tuser` is taken apart here by its number, nothing by the shim's own code.
//!
//! Requirements: PCIE

mod common;

use common::{Choices, lint};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::shims::us_pcie::{RESET, UsPcie};
use std::collections::VecDeque;

const DWORDS: usize = 16;

/// A TLP at the card's ports: header, doublewords of payload.
type Tlp = (u128, Vec<u32>);

/// A packet of a core's stream: its doublewords, descriptor first.
type Packet = Vec<u32>;

/// A beat toward the shim.
type Beat = (Bits, Bits, u64, bool);

fn bits(of: &Bits, low: u32, width: u32) -> u64 {
    (0..width).filter(|i| of.bit(low + i)).map(|i| 1 << i).sum()
}

fn put(to: &mut Bits, low: u32, width: u32, value: u64) {
    (0..width).filter(|i| value >> i & 1 == 1).for_each(|i| to.set_bit(low + i));
}

/// Bits of a descriptor that stands in the first doublewords of a packet.
fn field(packet: &[u32], low: usize, width: usize) -> u64 {
    (0..width).filter(|i| packet[(low + i) / 32] >> ((low + i) % 32) & 1 == 1).map(|i| 1 << i).sum()
}

fn descriptor(dwords: usize, fields: &[(usize, u64)]) -> Packet {
    let mut packet = vec![0u32; dwords];
    for &(low, value) in fields {
        for i in (0..64).filter(|i| value >> i & 1 == 1) {
            packet[(low + i) / 32] |= 1 << ((low + i) % 32);
        }
    }
    packet
}

fn data(dwords: &[u32]) -> Bits {
    let mut bytes: Vec<u8> = dwords.iter().flat_map(|d| d.to_le_bytes()).collect();
    bytes.resize(64, 0xee);
    Bits::from_bytes(512, &bytes)
}

fn undata(bits: &Bits) -> Vec<u32> {
    bits.to_bytes().chunks(4).map(|d| u32::from_le_bytes(d.try_into().unwrap())).collect()
}

struct Rig {
    sim: Interpreter,
    pick: Choices,
    /// What the card sends, beats of (header, data, first, last).
    rq: VecDeque<(u128, Vec<u32>, bool, bool)>,
    cc: VecDeque<(u128, Vec<u32>, bool, bool)>,
    /// What the core sends.
    rc: VecDeque<Option<Beat>>,
    cq: VecDeque<Option<Beat>>,
    /// What came out: packets with the `tuser` of their first beat; TLPs with the BAR.
    rq_out: Vec<(Packet, Bits)>,
    cc_out: Vec<(Packet, Bits)>,
    rc_out: Vec<Tlp>,
    cq_out: Vec<(Tlp, u64)>,
    part: [Packet; 4],
    started: [Bits; 2],
    /// Of 256: that a receiver is ready, that a sender offers.
    ready: u64,
    offer: u64,
    offering: [bool; 2],
    clocks: u64,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let mut sim = Interpreter::new(&elaborate(&UsPcie(Config::full())).unwrap());
        sim.poke("reset", 1);
        (0..3).for_each(|_| sim.clock());
        sim.poke("reset", 0);
        sim.poke("pcie_tfc_nph_av", 15);
        sim.poke("cfg_function_status", 7);
        let empty = || Bits::zero(1);
        let mut rig = Rig {
            sim,
            pick: Choices::new(seed),
            rq: VecDeque::new(),
            cc: VecDeque::new(),
            rc: VecDeque::new(),
            cq: VecDeque::new(),
            rq_out: vec![],
            cc_out: vec![],
            rc_out: vec![],
            cq_out: vec![],
            part: Default::default(),
            started: [empty(), empty()],
            ready: 256,
            offer: 256,
            offering: [false; 2],
            clocks: 0,
        };
        rig.clock();
        rig
    }

    /// Gives a TLP to the card's side.
    fn send(&mut self, port: &str, (header, payload): &Tlp) {
        let beats: Vec<&[u32]> =
            if payload.is_empty() { vec![&[]] } else { payload.chunks(DWORDS).collect() };
        let n = beats.len();
        let to = if port == "rq" { &mut self.rq } else { &mut self.cc };
        to.extend(beats.into_iter().enumerate().map(|(i, b)| (*header, b.to_vec(), i == 0, i + 1 == n)));
    }

    fn clock(&mut self) {
        let s = &mut self.sim;
        // card to core
        for (i, (port, from)) in [("rq", &mut self.rq), ("cc", &mut self.cc)].into_iter().enumerate() {
            self.offering[i] |= !from.is_empty() && self.pick.below(256) < self.offer;
            s.poke(&format!("{port}_valid"), u64::from(self.offering[i]));
            if self.offering[i] {
                let (header, payload, first, last) = &from[0];
                s.poke_bits(&format!("{port}_header"), &Bits::new(128, *header));
                s.poke_bits(&format!("{port}_data"), &data(payload));
                s.poke(&format!("{port}_first"), u64::from(*first));
                s.poke(&format!("{port}_last"), u64::from(*last));
            }
            let (out, got) = [("s_axis_rq", &mut self.rq_out), ("s_axis_cc", &mut self.cc_out)]
                .into_iter()
                .nth(i)
                .unwrap();
            let ready = self.pick.below(256) < self.ready;
            s.poke(&format!("{out}_tready"), u64::from(ready));
            if self.offering[i] && s.peek(&format!("{port}_ready")) == 1 {
                from.pop_front();
                self.offering[i] = false;
            }
            if ready && s.peek(&format!("{out}_tvalid")) == 1 {
                let (keep, last) = (s.peek(&format!("{out}_tkeep")), s.peek(&format!("{out}_tlast")) == 1);
                let n = keep.trailing_ones() as usize;
                assert_eq!(keep, (1u64 << n) - 1, "lanes from the first on");
                assert!(n == DWORDS || last, "full but in the last beat");
                let user = s.peek_bits(&format!("{out}_tuser"));
                // one TLP, from byte 0 to its last doubleword
                let at = if out == "s_axis_rq" { 20 } else { 0 };
                let starts = self.part[i].is_empty();
                assert_eq!(bits(&user, at, 6), u64::from(starts), "is_sop and its lanes");
                let end = if last { 1 | (n as u64 - 1) << 2 } else { 0 };
                assert_eq!(bits(&user, at + 6, 11), end, "is_eop, its lanes, discontinue");
                if starts {
                    self.started[i] = user;
                }
                let lanes = undata(&s.peek_bits(&format!("{out}_tdata")));
                self.part[i].extend(&lanes[..n]);
                if last {
                    got.push((std::mem::take(&mut self.part[i]), self.started[i].clone()));
                }
            }
        }
        // core to card
        for (i, (pins, from)) in
            [("m_axis_rc", &mut self.rc), ("m_axis_cq", &mut self.cq)].into_iter().enumerate()
        {
            let beat = from.front().cloned().flatten();
            s.poke(&format!("{pins}_tvalid"), u64::from(beat.is_some()));
            if let Some((data, user, keep, last)) = &beat {
                s.poke_bits(&format!("{pins}_tdata"), data);
                s.poke_bits(&format!("{pins}_tuser"), user);
                s.poke(&format!("{pins}_tkeep"), *keep);
                s.poke(&format!("{pins}_tlast"), u64::from(*last));
            }
            let port = ["rc", "cq"][i];
            let ready = self.pick.below(256) < self.ready;
            s.poke(&format!("{port}_ready"), u64::from(ready));
            if beat.is_none() || s.peek(&format!("{pins}_tready")) == 1 {
                from.pop_front();
            }
            if ready && s.peek(&format!("{port}_valid")) == 1 {
                let part = &mut self.part[2 + i];
                assert_eq!(s.peek(&format!("{port}_first")) == 1, part.is_empty(), "first");
                part.extend(undata(&s.peek_bits(&format!("{port}_data"))));
                if s.peek(&format!("{port}_last")) == 1 {
                    let header = s.peek_bits(&format!("{port}_header")).low128();
                    let count = match (header >> 126 & 1, header >> 96 & 0x3ff) {
                        (0, _) => 0,
                        (_, 0) => 1024,
                        (_, n) => n as usize,
                    };
                    assert_eq!(
                        part.len(),
                        count.max(1).div_ceil(DWORDS) * DWORDS,
                        "as many beats as it has data"
                    );
                    part.truncate(count);
                    let tlp = (header, std::mem::take(part));
                    match i {
                        0 => self.rc_out.push(tlp),
                        _ => self.cq_out.push((tlp, s.peek("cq_bar"))),
                    }
                }
            }
        }
        s.clock();
        self.clocks += 1;
    }

    /// Until nothing moves any more.
    fn finish(&mut self) {
        let mut quiet = 0;
        while quiet < 20 {
            let waits = self.rq.len() + self.cc.len() + self.rc.len() + self.cq.len();
            let out = |r: &Rig| {
                (
                    r.rq_out.len(),
                    r.cc_out.len(),
                    r.rc_out.len(),
                    r.cq_out.len(),
                    r.part.each_ref().map(Vec::len),
                )
            };
            let before = out(self);
            self.clock();
            quiet = if waits == 0 && before == out(self) { quiet + 1 } else { 0 };
        }
        assert_eq!(self.sim.failures(), &[]);
    }

    fn words(&mut self, n: u64) -> Vec<u32> {
        (0..n).map(|_| self.pick.any() as u32).collect()
    }
}

/// A memory request of the card, as PCI Express writes it.
fn request(write: bool, address: u64, dwords: u64, tag: u64, be: u64, attributes: u64) -> u128 {
    let wide = address >> 32 != 0;
    let fmt = u128::from(write) << 1 | u128::from(wide);
    let (no_snoop, relaxed, by_id) = (attributes & 1, attributes >> 1 & 1, attributes >> 2 & 1);
    let dw0 = fmt << 29
        | u128::from(by_id) << 18
        | u128::from(relaxed) << 13
        | u128::from(no_snoop) << 12
        | u128::from(dwords & 0x3ff);
    let dw1 = u128::from(0x1a08u32) << 16 | u128::from(tag) << 8 | u128::from(be);
    let place = if wide { u128::from(address) } else { u128::from(address) << 32 };
    dw0 << 96 | dw1 << 64 | place
}

/// A completion, as PCI Express writes it.
fn completion(dwords: u64, status: u64, byte_count: u64, tag: u64, lower: u64, poisoned: bool) -> u128 {
    let dw0 =
        u128::from(dwords > 0) << 30 | 0x0a << 24 | u128::from(poisoned) << 14 | u128::from(dwords & 0x3ff);
    let dw1 = 0xbeef << 16 | u128::from(status) << 13 | u128::from(byte_count & 0xfff);
    let dw2 = 0x1a08 << 16 | u128::from(tag) << 8 | u128::from(lower);
    dw0 << 96 | dw1 << 64 | dw2 << 32
}

#[test]
fn writes_and_reads_of_all_lengths_leave_behind_their_descriptor() {
    for (seed, ready, offer) in [(1, 256, 256), (2, 130, 256), (3, 256, 100), (4, 90, 90)] {
        let mut rig = Rig::new(seed);
        (rig.ready, rig.offer) = (ready, offer);
        let mut sent = vec![];
        for n in (1..=70).chain([127, 128, 255, 256]) {
            let write = !rig.pick.one_in(4);
            let address = (rig.pick.any() >> rig.pick.of(&[8, 40])) & !3;
            let last_be = if n == 1 { 0 } else { 1 + rig.pick.below(15) };
            let be = last_be << 4 | (1 + rig.pick.below(15));
            let (tag, attributes) = (rig.pick.below(256), rig.pick.below(8));
            let payload = if write { rig.words(n) } else { vec![] };
            rig.send("rq", &(request(write, address, n, tag, be, attributes), payload.clone()));
            sent.push((write, address, n, tag, be, attributes, payload));
        }
        rig.finish();
        assert_eq!(rig.rq_out.len(), sent.len());
        for ((packet, user), (write, address, n, tag, be, attributes, payload)) in rig.rq_out.iter().zip(sent)
        {
            assert_eq!(field(packet, 0, 2), 0, "untranslated");
            assert_eq!(field(packet, 2, 62) << 2, address);
            assert_eq!(field(packet, 64, 11), n);
            assert_eq!(field(packet, 75, 5), u64::from(write), "type, not poisoned");
            assert_eq!(field(packet, 80, 8), 0x08, "function");
            assert_eq!(field(packet, 96, 8), tag);
            assert_eq!(field(packet, 104, 20), 0, "no completer ID, no requester ID of ours, class 0");
            assert_eq!(field(packet, 124, 4), attributes);
            assert_eq!(packet[4..], payload);
            assert_eq!(
                (bits(user, 0, 8), bits(user, 8, 8)),
                (be & 15, be >> 4),
                "byte enables of TLP 0 alone"
            );
            assert_eq!(bits(user, 16, 4), 0, "dword aligned");
            assert_eq!(bits(user, 37, 24), 0, "no hints");
            assert_eq!(bits(user, 61, 6) >> 5, u64::from(!write), "a read by its sequence number");
        }
    }
}

#[test]
fn a_write_of_256_bytes_takes_five_beats_and_no_clock_more() {
    let mut rig = Rig::new(5);
    for _ in 0..40 {
        let payload = rig.words(64);
        rig.send("rq", &(request(true, 0x1000, 64, 0, 0xff, 0), payload));
    }
    let start = rig.clocks;
    while rig.rq_out.len() < 40 {
        rig.clock();
    }
    assert_eq!(rig.clocks - start, 40 * 5 + 1);
}

#[test]
fn completions_of_the_card_leave_behind_their_descriptor() {
    for (seed, ready) in [(6, 256), (7, 120)] {
        let mut rig = Rig::new(seed);
        rig.ready = ready;
        let mut sent = vec![];
        for n in 0..=32 {
            let status = if n == 0 { 1 } else { 0 };
            let (left, tag, lower) =
                (n * 4 + rig.pick.below(4000 - n * 4), rig.pick.below(256), rig.pick.below(128));
            let payload = rig.words(n);
            rig.send("cc", &(completion(n, status, left, tag, lower, false), payload.clone()));
            sent.push((n, status, if left == 0 { 4096 } else { left }, tag, lower, payload));
        }
        rig.finish();
        assert_eq!(rig.cc_out.len(), sent.len());
        for ((packet, _), (n, status, left, tag, lower, payload)) in rig.cc_out.iter().zip(sent) {
            assert_eq!(field(packet, 0, 16), lower, "lower address, untranslated");
            assert_eq!(field(packet, 16, 16), left, "bytes left, not locked");
            assert_eq!(field(packet, 32, 11), n);
            assert_eq!(field(packet, 43, 4), status, "status, not poisoned");
            assert_eq!(field(packet, 48, 16), 0x1a08, "requester");
            assert_eq!(field(packet, 64, 8), tag);
            assert_eq!(field(packet, 88, 8), 0, "the core's own completer ID, class 0, no attribute");
            assert_eq!(packet[3..], payload);
        }
    }
}

/// Lays packets into beats of 512 bits: one begins at byte 0 or, behind the end of another, at byte 32. `loose` of 256 begin in a new
/// beat though they could begin in this; `gap` of 256 beats come late.
fn straddle(packets: &[Packet], pick: &mut Choices, loose: u64, gap: u64) -> VecDeque<Option<Beat>> {
    let mut beats = VecDeque::new();
    let mut lanes: Vec<u32> = vec![];
    let (mut starts, mut ends): (Vec<u64>, Vec<u64>) = (vec![], vec![]);
    let mut close = |lanes: &mut Vec<u32>, starts: &mut Vec<u64>, ends: &mut Vec<u64>, pick: &mut Choices| {
        let mut user = Bits::zero(161);
        put(&mut user, 0, 64, pick.any());
        for (i, lane) in starts.iter().enumerate() {
            put(&mut user, 64 + i as u32, 1, 1);
            put(&mut user, 68 + 2 * i as u32, 2, lane / 4);
        }
        for (i, lane) in ends.iter().enumerate() {
            put(&mut user, 76 + i as u32, 1, 1);
            put(&mut user, 80 + 4 * i as u32, 4, *lane);
        }
        while pick.below(256) < gap {
            beats.push_back(None);
        }
        // neither tkeep nor tlast means anything
        beats.push_back(Some((data(lanes), user, pick.below(1 << 16), pick.one_in(2))));
        lanes.clear();
        starts.clear();
        ends.clear();
    };
    for packet in packets {
        if !lanes.is_empty() {
            if lanes.len() > 8 || pick.below(256) < loose {
                close(&mut lanes, &mut starts, &mut ends, pick);
            } else {
                lanes.resize(8, 0xdddd_dddd);
            }
        }
        if lanes.is_empty() && pick.below(256) < loose / 4 {
            // the lower half stays empty
            lanes.resize(8, 0xdddd_dddd);
        }
        starts.push(lanes.len() as u64);
        for (i, dword) in packet.iter().enumerate() {
            lanes.push(*dword);
            if i + 1 == packet.len() {
                ends.push(lanes.len() as u64 - 1);
            }
            if lanes.len() == DWORDS {
                close(&mut lanes, &mut starts, &mut ends, pick);
            }
        }
    }
    if !lanes.is_empty() {
        close(&mut lanes, &mut starts, &mut ends, pick);
    }
    beats
}

fn received(n: u64, code: u64, status: u64, left: u64, tag: u64, lower: u64, poisoned: bool) -> Packet {
    descriptor(
        3,
        &[
            (0, lower),
            (12, code),
            (16, left),
            (30, 1),
            (32, n),
            (43, status),
            (46, u64::from(poisoned)),
            (48, 0x1a08),
            (64, tag),
            (72, 0xbeef),
        ],
    )
}

#[test]
fn completions_arrive_whole_however_they_are_straddled() {
    for (seed, ready, loose, gap) in [(8, 256, 0, 0), (9, 256, 60, 60), (10, 120, 0, 0), (11, 100, 100, 100)]
    {
        let mut rig = Rig::new(seed);
        rig.ready = ready;
        let (mut packets, mut want) = (vec![], vec![]);
        for round in 0..400 {
            let n = match rig.pick.below(4) {
                0 => rig.pick.below(6),
                1 => 16,
                2 => rig.pick.below(40),
                _ => round % 258,
            };
            let poisoned = n > 0 && rig.pick.one_in(9);
            let status = if n == 0 { rig.pick.of(&[1, 4]) } else { 0 };
            let (left, tag, lower) = (1 + rig.pick.below(4096), rig.pick.below(256), rig.pick.below(4096));
            let payload = rig.words(n);
            let code = if poisoned { 1 } else { 2 * u64::from(n == 0) };
            packets.push([received(n, code, status, left, tag, lower, poisoned), payload.clone()].concat());
            want.push((completion(n, status, left, tag, lower & 127, poisoned), payload));
        }
        rig.rc = straddle(&packets, &mut rig.pick, loose, gap);
        rig.finish();
        assert!(rig.rc_out == want, "seed {seed}");
        for cover in ["a_straddled_beat_in_one_clock", "a_straddled_beat_in_two_clocks"] {
            assert!(rig.sim.covered(&format!("rc_in.{cover}")) > 0, "seed {seed}: {cover}");
        }
    }
}

#[test]
fn two_completions_of_64_bytes_take_three_clocks() {
    let mut rig = Rig::new(12);
    let packets: Vec<Packet> =
        (0..60).map(|_| [received(16, 0, 0, 64, 1, 0, false), rig.words(16)].concat()).collect();
    rig.rc = straddle(&packets, &mut rig.pick, 0, 0);
    let start = rig.clocks;
    while rig.rc_out.len() < 60 {
        rig.clock();
    }
    assert_eq!(rig.clocks - start, 60 * 3 / 2);
}

#[test]
fn what_the_core_does_not_stand_for_is_of_a_reserved_status() {
    let mut rig = Rig::new(13);
    let packets: Vec<Packet> = (3..=9).map(|code| received(0, code, 0, 64, code, 0, false)).collect();
    rig.rc = straddle(&packets, &mut rig.pick, 0, 0);
    rig.finish();
    let status: Vec<u64> = rig.rc_out.iter().map(|(header, _)| (header >> 77) as u64 & 7).collect();
    assert_eq!(status, [7; 7]);
}

#[test]
fn requests_of_the_host_arrive_with_the_header_that_they_had_and_the_place_within_their_bar() {
    // request type, fmt and type of the TLP without the address form
    let kinds: [(u64, u128); 8] =
        [(0, 0x00), (1, 0x40), (2, 0x02), (3, 0x42), (4, 0x4c), (5, 0x4d), (6, 0x4e), (7, 0x01)];
    for (seed, ready) in [(14, 256), (15, 110)] {
        let mut rig = Rig::new(seed);
        rig.ready = ready;
        let mut want = vec![];
        for round in 0..200u64 {
            let (kind, code) = kinds[rig.pick.of(&[0, 1, 1, 1, 2, 3, 4, 5, 6, 7])];
            let with_data = code & 0x40 != 0;
            let n = if with_data { 1 + round % 70 } else { 1 + rig.pick.below(64) };
            let address = (rig.pick.any() >> rig.pick.of(&[2, 36])) & !3;
            let (bar, tag, be) = (rig.pick.of(&[0, 2, 4]), rig.pick.below(256), rig.pick.below(256));
            let (attributes, aperture) = (rig.pick.below(8), rig.pick.of(&[12, 15, 18, 20]));
            let payload = if with_data { rig.words(n) } else { vec![] };
            let fields = [
                (2, address >> 2),
                (64, n),
                (75, kind),
                (80, 0x1a08),
                (96, tag),
                (112, bar),
                (115, aperture),
                (124, attributes),
            ];
            let packet = [descriptor(4, &fields), payload.clone()].concat();
            let chunks = packet.chunks(DWORDS).count();
            for (i, lanes) in packet.chunks(DWORDS).enumerate() {
                let mut user = Bits::zero(183);
                if i == 0 {
                    put(&mut user, 0, 4, be & 15);
                    put(&mut user, 8, 4, be >> 4);
                    put(&mut user, 80, 1, 1);
                }
                if rig.pick.one_in(5) {
                    rig.cq.push_back(None);
                }
                rig.cq.push_back(Some((data(lanes), user, (1 << lanes.len()) - 1, i + 1 == chunks)));
            }
            let within = address & ((1 << aperture) - 1);
            let header = request(false, within, n, tag, be, attributes) | code << 120;
            want.push(((header, payload), bar));
        }
        rig.finish();
        assert!(rig.cq_out == want, "seed {seed}");
    }
}

#[test]
fn a_read_is_allowed_only_while_the_core_has_a_credit_that_nobody_is_on_the_way_to() {
    let mut rig = Rig::new(16);
    let read = (request(false, 0x1000, 16, 1, 0xff, 0), vec![]);
    let reads_with = |rig: &mut Rig, credits: u64| {
        rig.sim.poke("pcie_tfc_nph_av", credits);
        (0..3).for_each(|_| rig.clock());
        let before = rig.rq_out.len();
        while rig.sim.peek("nonposted_ok") == 1 {
            rig.send("rq", &read);
            rig.clock();
            assert!(rig.rq_out.len() < before + 20, "reads without end");
        }
        (0..5).for_each(|_| rig.clock());
        rig.rq_out.len() - before
    };
    assert_eq!(reads_with(&mut rig, 0), 0);
    assert_eq!(reads_with(&mut rig, 3), 3);
    assert_eq!(reads_with(&mut rig, 3), 0, "three are on their way");
    // two leave the core at once and use two credits up; a write that leaves gives nothing back
    rig.sim.poke("pcie_tfc_nph_av", 1);
    for (valid, number) in [(1, 32), (0, 32), (1, 1)] {
        rig.sim.poke("pcie_rq_seq_num_vld0", valid);
        rig.sim.poke("pcie_rq_seq_num0", number);
        rig.sim.poke("pcie_rq_seq_num_vld1", u64::from(valid == 1 && number == 32));
        rig.sim.poke("pcie_rq_seq_num1", 33);
        rig.clock();
    }
    rig.sim.poke("pcie_rq_seq_num_vld0", 0);
    assert_eq!(reads_with(&mut rig, 1), 0, "the third has that credit");
    assert_eq!(reads_with(&mut rig, 15), 14);
    assert_eq!(reads_with(&mut rig, 15), 0);
    // the core swallows requests without bus master, and returns nothing for them
    rig.sim.poke("cfg_function_status", 3);
    (0..2).for_each(|_| rig.clock());
    rig.sim.poke("cfg_function_status", 7);
    assert_eq!(reads_with(&mut rig, 2), 2);
    assert_eq!(rig.sim.peek("posted_ok"), 1);
}

#[test]
fn configuration_space_is_what_pins_and_two_registers_say() {
    let mut rig = Rig::new(17);
    for (pin, value) in [
        ("cfg_bus_number", 0x5a),
        ("cfg_max_payload", 2),
        ("cfg_max_read_req", 5),
        ("cfg_rcb_status", 0b1111),
        ("cfg_interrupt_msix_enable", 1),
        ("cfg_interrupt_msix_mask", 0b1110),
    ] {
        rig.sim.poke(pin, value);
    }
    let mut read = vec![];
    for _ in 0..400 {
        let (asks, address) = (rig.sim.peek("cfg_mgmt_read"), rig.sim.peek("cfg_mgmt_addr"));
        let answers = asks == 1 && rig.pick.one_in(4);
        if answers {
            read.push(address * 4);
            rig.sim.poke("cfg_mgmt_read_data", if address * 4 == 0x78 { 0xffff_0110 } else { 0xffff_ffe6 });
        }
        rig.sim.poke("cfg_mgmt_read_write_done", u64::from(answers));
        rig.clock();
    }
    // Device Control and Device Control 2 of the capability at 0x70
    assert!(read.len() >= 4, "{read:x?}");
    assert!(read.chunks(2).all(|pair| [0x78, 0x98].starts_with(pair)), "{read:x?}");
    for (port, value) in [
        ("requester_id", 0x5a00),
        ("max_payload", 2),
        ("max_read_request", 5),
        ("rcb", 1),
        ("extended_tag", 1),
        ("relaxed_ordering", 1),
        ("bus_master", 1),
        ("completion_timeout", 6),
        ("msix_enable", 1),
        ("msix_mask", 0),
    ] {
        assert_eq!(rig.sim.peek(&format!("pcie_{port}")), value, "{port}");
    }
}

#[test]
fn a_function_level_reset_waits_for_open_tlps_resets_the_card_and_tells_the_core() {
    let mut rig = Rig::new(18);
    let payload = rig.words(64);
    rig.send("rq", &(request(true, 0x1000, 64, 0, 0xff, 0), payload.clone()));
    let rest = rig.rq.split_off(2);
    (0..6).for_each(|_| rig.clock());
    assert!(rig.rq.is_empty());
    rig.sim.poke("cfg_flr_in_process", 1);
    (0..50).for_each(|_| rig.clock());
    assert_eq!((rig.sim.peek("flr"), rig.sim.peek("cfg_flr_done")), (0, 0), "a write is open");
    rig.rq.extend(rest);
    // another waits behind it
    rig.send("rq", &(request(true, 0x2000, 1, 0, 0xf, 0), vec![7]));
    let mut resets = 0;
    while rig.sim.peek("cfg_flr_done") == 0 {
        resets += rig.sim.peek("flr");
        rig.clock();
    }
    assert_eq!(resets, RESET + 1);
    assert_eq!(rig.rq_out.len(), 1, "nothing begins");
    assert_eq!(rig.rq_out[0].0[4..], payload);
    (0..20).for_each(|_| rig.clock());
    assert_eq!(rig.sim.peek("cfg_flr_done"), 1, "until the core has seen it");
    rig.sim.poke("cfg_flr_in_process", 0);
    rig.finish();
    assert_eq!((rig.sim.peek("cfg_flr_done"), rig.rq_out.len()), (0, 2));
}

#[test]
fn the_emitted_verilog_is_clean() {
    lint(&elaborate(&UsPcie(Config::full())).unwrap());
}
