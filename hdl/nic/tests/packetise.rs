//! packetise against captured frames and an independent frame builder.
//!
//! Requirements: ATOM CMD ICRC LINE NET PKT RAW REQ RESP

mod frames;

use frames::{Choices, Said, build, golden, header_bytes, lint, read};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::tx::packetise::Packetise;
use std::collections::{HashMap, VecDeque};

enum Input {
    Packet(Said),
    /// A raw frame.
    Raw(Vec<u8>),
    Fence,
}

/// The stage with its memories: every QP has its own path, the buffer holds what is put there.
struct Rig {
    sim: Interpreter,
    /// Bytes of a beat.
    width: usize,
    paths: HashMap<u64, Bits>,
    addresses: HashMap<u64, Bits>,
    buffer: Vec<u8>,
    write: usize,
    data: VecDeque<(usize, Input, usize)>,
    control: VecDeque<(usize, Said)>,
    now: usize,
    out: Vec<u8>,
    /// Frame, clock of its first beat, clock of its last.
    frames: Vec<(Vec<u8>, usize, usize)>,
    began: Option<usize>,
    sent: Vec<usize>,
    fences: Vec<usize>,
    counts: [usize; 3],
    counted_bytes: usize,
}

impl Rig {
    fn new(data_bytes: u32) -> Rig {
        Rig::at(Config { data_bytes, ..Config::small() })
    }

    fn at(config: Config) -> Rig {
        let design = elaborate(&Packetise(config.clone())).unwrap();
        let mut sim = Interpreter::new(&design);
        sim.poke("reset", 1);
        sim.clock();
        sim.poke("reset", 0);
        Rig {
            sim,
            width: config.data_bytes as usize,
            paths: HashMap::new(),
            addresses: HashMap::new(),
            buffer: vec![0xEE; config.transmit_buffer_bytes as usize],
            write: 0,
            data: VecDeque::new(),
            control: VecDeque::new(),
            now: 0,
            out: vec![],
            frames: vec![],
            began: None,
            sent: vec![],
            fences: vec![],
            counts: [0; 3],
            counted_bytes: 0,
        }
    }
    fn path(&mut self, qp: usize, said: &Said) {
        let path = contract::context::QpPath {
            dest_mac: said.dest_mac,
            ttl: said.ttl,
            tos: said.tos,
            src_mac: said.source_mac,
            udp_source_port: said.source_port,
            dest_qpn: said.dest_qpn,
            flow_label: said.ipv6.map_or(0, |(_, _, label)| label),
            vlan_tag: said.tag.unwrap_or(0),
        };
        let gid = |ip: u32| 0xffff_0000_0000u128 | u128::from(ip);
        let (src_gid, dest_gid, _) = said.ipv6.unwrap_or((gid(said.source_ip), gid(said.dest_ip), 0));
        let addresses = contract::context::QpAddresses { dest_gid, src_gid };
        self.paths.insert(qp as u64, Bits::from_bytes(256, &path.pack()));
        self.addresses.insert(qp as u64, Bits::from_bytes(256, &addresses.pack()));
    }
    /// Puts the payload where gather would and queues the packet.
    fn send(&mut self, qp: usize, said: &Said) {
        let outer = 4 * usize::from(said.tag.is_some()) + 20 * usize::from(said.ipv6.is_some());
        let lane = (header_bytes(said.opcode) + outer) % self.width;
        let size = self.buffer.len();
        let address = (self.write.next_multiple_of(self.width) + lane) % size;
        for (i, byte) in said.payload.iter().enumerate() {
            self.buffer[(address + i) % size] = *byte;
        }
        self.write = address + said.payload.len();
        self.data.push_back((qp, Input::Packet(said.clone()), address));
    }
    /// Puts a raw frame where gather would and queues it.
    fn send_raw(&mut self, frame: &[u8]) {
        let size = self.buffer.len();
        let address = self.write.next_multiple_of(self.width) % size;
        for (i, byte) in frame.iter().enumerate() {
            self.buffer[(address + i) % size] = *byte;
        }
        self.write = address + frame.len();
        self.data.push_back((0, Input::Raw(frame.to_vec()), address));
    }
    fn poke_packet(&mut self, port: &str, qp: usize, said: Option<&Said>) {
        let zero = Said::default();
        let s = said.unwrap_or(&zero);
        let (va, rkey, dma_length) = s.reth.unwrap_or((0x1111, 0x2222, 0x3333));
        let (syndrome, msn) = s.aeth.unwrap_or((0x44, 0x5555));
        let imm = u32::from_le_bytes(s.imm.unwrap_or([6; 4]));
        for (field, value) in [
            ("qp", qp as u64),
            ("fence", u64::from(said.is_none())),
            ("opcode", s.opcode.into()),
            ("psn", s.psn.into()),
            ("ack_req", s.ack_req.into()),
            ("solicited", s.solicited.into()),
            ("syndrome", syndrome.into()),
            ("msn", msn.into()),
            ("outer_tagged", s.tag.is_some().into()),
            ("outer_ipv6", s.ipv6.is_some().into()),
            ("va", va),
            ("rkey", rkey.into()),
            ("dma_length", dma_length.into()),
            ("imm", imm.into()),
            ("value", s.value),
            ("compare", s.compare),
            ("length", s.payload.len() as u64),
        ] {
            self.sim.poke(&format!("{port}_{field}"), value);
        }
    }
    fn clock(&mut self, ready: bool) {
        let front = self.data.front().map(|(qp, input, address)| {
            let said = match input {
                Input::Packet(said) => Some(said.clone()),
                Input::Raw(frame) => Some(Said { payload: frame.clone(), ..Said::default() }),
                Input::Fence => None,
            };
            (*qp, said, *address, matches!(input, Input::Raw(_)))
        });
        self.sim.poke("data_valid", u64::from(front.is_some()));
        if let Some((qp, said, address, raw)) = front {
            self.poke_packet("data_packet", qp, said.as_ref());
            self.sim.poke("data_packet_raw", u64::from(raw));
            self.sim.poke("data_address", address as u64);
        }
        let front = self.control.front().cloned();
        self.sim.poke("control_valid", u64::from(front.is_some()));
        if let Some((qp, said)) = front {
            self.poke_packet("control", qp, Some(&said));
        }
        self.sim.poke("frame_ready", u64::from(ready));
        if self.sim.peek("data_valid") & self.sim.peek("data_ready") == 1 {
            self.data.pop_front();
        }
        if self.sim.peek("control_valid") & self.sim.peek("control_ready") == 1 {
            self.control.pop_front();
        }
        if ready && self.sim.peek("frame_valid") == 1 {
            let n = self.sim.peek("frame_bytes") as usize;
            let last = self.sim.peek("frame_last") == 1;
            assert!(
                last && (1..=self.width).contains(&n) || n == self.width,
                "a beat of {n} bytes, last {last}"
            );
            assert_eq!(self.sim.peek("frame_error"), 0);
            let data = self.sim.peek_bits("frame_data").to_bytes();
            let began = *self.began.get_or_insert(self.now);
            self.out.extend(&data[..n]);
            if last {
                self.frames.push((std::mem::take(&mut self.out), began, self.now));
                self.began = None;
            }
        }
        if self.sim.peek("sent") == 1 {
            self.sent.push(self.now);
        }
        if self.sim.peek("fence_done") == 1 {
            self.fences.push(self.now);
        }
        let pulses = ["packet_count", "ack_count", "nak_count"].map(|p| self.sim.peek(p) as usize);
        for (count, pulse) in self.counts.iter_mut().zip(pulses) {
            *count += pulse;
        }
        if pulses.iter().sum::<usize>() > 0 {
            self.counted_bytes += self.sim.peek("frame_length") as usize;
        }
        let qp = self.sim.peek("line_qp");
        let address = self.sim.peek("buffer_address") as usize * self.width;
        self.sim.clock();
        let none = Bits::zero(256);
        let path = self.paths.get(&qp).unwrap_or(&none).clone();
        let addresses = self.addresses.get(&qp).unwrap_or(&none).clone();
        self.sim.poke_bits("path_word", &path);
        self.sim.poke_bits("addresses_word", &addresses);
        let word = Bits::from_bytes(self.width as u32 * 8, &self.buffer[address..address + self.width]);
        self.sim.poke_bits("buffer_word", &word);
        self.now += 1;
    }
    fn run_until(&mut self, frames: usize, mut ready: impl FnMut() -> bool) {
        let limit = self.now + 200 + frames * 3000;
        while self.frames.len() < frames {
            let r = ready();
            self.clock(r);
            assert!(self.now < limit, "only {} of {frames} frames came", self.frames.len());
        }
        for _ in 0..20 {
            self.clock(true);
        }
        assert_eq!(self.frames.len(), frames, "more frames than packets");
        assert_eq!(self.sim.failures(), &[]);
    }
}

#[test]
fn every_captured_packet_is_rebuilt_byte_for_byte_from_its_fields() {
    every_captured_packet_is_rebuilt_by(Rig::new(8));
}

#[test]
fn every_captured_packet_is_rebuilt_likewise_where_stages_take_clocks_more() {
    every_captured_packet_is_rebuilt_by(Rig::at(Config::small().unhurried()));
}

fn every_captured_packet_is_rebuilt_by(mut rig: Rig) {
    let frames: Vec<_> = golden().into_iter().collect();
    let mut seen = std::collections::BTreeSet::new();
    for (n, (name, frame)) in frames.iter().enumerate() {
        let said = read(frame);
        seen.insert(said.opcode);
        rig.path(n % 64, &said);
        rig.send(n % 64, &said);
        rig.run_until(n + 1, || true);
        // the IP identification is the card's own; the checksums follow it
        let mut expected = frame.clone();
        if frames::offsets(frame).1 == 34 {
            expected[18..20].copy_from_slice(&(n as u16).to_be_bytes());
        }
        frames::fix_ip_checksum(&mut expected);
        frames::fix_icrc(&mut expected);
        assert_eq!(rig.frames[n].0, expected, "{name}");
        assert_eq!(rig.sent.len(), n + 1, "{name}: room is freed once");
        // the oracle itself: the captured ICRC is right
        assert_eq!(frames::icrc(frame), frame[frame.len() - 4..], "{name}");
    }
    let all: Vec<u8> = (0..=0x14).collect();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
    let bytes: usize = frames.iter().map(|(_, f)| f.len()).sum();
    assert_eq!(rig.counted_bytes, bytes);
    let acknowledges = |f: &&(String, Vec<u8>)| f.1[frames::offsets(&f.1).1 + 8] == 0x11;
    let negative = |f: &&(String, Vec<u8>)| f.1[frames::offsets(&f.1).1 + 20] & 0x60 != 0;
    let naks = frames.iter().filter(acknowledges).filter(negative).count();
    let acks = frames.iter().filter(acknowledges).count() - naks;
    assert!(naks > 2 && acks > 20);
    assert_eq!(rig.counts, [frames.len() - acks - naks, acks, naks]);
}

fn random(pick: &mut Choices, opcode: u8, length: usize) -> Said {
    let (reth, imm) = (matches!(opcode, 6 | 0xa | 0xb), matches!(opcode, 3 | 5 | 9 | 0xb));
    let mut gid = || u128::from(pick.below(u64::MAX)) << 64 | u128::from(pick.below(u64::MAX));
    let (source, dest) = (gid(), gid());
    let ipv6 = (pick.below(2) == 1).then(|| (source, dest, pick.below(1 << 20) as u32));
    let mut ip = || if ipv6.is_none() { pick.below(1 << 32) as u32 } else { 0 };
    let (source_ip, dest_ip) = (ip(), ip());
    Said {
        dest_mac: pick.below(1 << 48),
        source_mac: pick.below(1 << 48),
        tos: pick.below(256) as u8,
        ttl: pick.below(256) as u8,
        tag: (pick.below(2) == 1).then(|| pick.below(1 << 16) as u16),
        ipv6,
        source_ip,
        dest_ip,
        source_port: pick.below(1 << 16) as u16,
        opcode,
        solicited: pick.below(2) == 1,
        pad: (length.wrapping_neg() & 3) as u8,
        pkey: 0xffff,
        dest_qpn: pick.below(1 << 24) as u32,
        ack_req: pick.below(2) == 1,
        psn: pick.below(1 << 24) as u32,
        reth: reth.then(|| (pick.below(u64::MAX), pick.below(1 << 32) as u32, pick.below(1 << 32) as u32)),
        aeth: (opcode == 0x11).then(|| (pick.below(128) as u8, pick.below(1 << 24) as u32)),
        imm: imm.then(|| pick.bytes(4).try_into().unwrap()),
        value: 0,
        compare: 0,
        payload: pick.bytes(length),
    }
}

#[test]
fn packets_of_every_small_length_and_of_both_ends_of_the_mtu_follow_each_other_without_a_gap() {
    for (seed, width, stutter) in [(11, 8, false), (12, 8, true), (13, 64, false), (14, 64, true)] {
        let mut pick = Choices::new(seed);
        let mut rig = Rig::new(width);
        let lengths: Vec<usize> =
            (0..40).chain([255, 256, 1023, 1024, 1025, 4093, 4094, 4095, 4096]).collect();
        let mut expected = vec![];
        for length in lengths {
            let opcode = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xa, 0xb][pick.below(12) as usize];
            let qp = expected.len();
            let said = random(&mut pick, opcode, length);
            rig.path(qp, &said);
            rig.send(qp, &said);
            expected.push(build(&said, qp as u16));
            // the buffer holds 32 KiB: drain now and then
            if qp % 4 == 3 {
                rig.run_until(expected.len(), || !stutter || pick.below(3) > 0);
            }
        }
        rig.run_until(expected.len(), || true);
        for (i, e) in expected.iter().enumerate() {
            assert_eq!(rig.frames[i].0, *e, "seed {seed}, frame {i}");
            let (_, first, last) = rig.frames[i];
            if !stutter {
                assert_eq!(
                    last - first + 1,
                    e.len().div_ceil(rig.width),
                    "one beat per clock within frame {i}"
                );
                if i % 4 > 0 {
                    let (_, before, end) = rig.frames[i - 1];
                    assert_eq!(first, (end + 1).max(before + 3), "no clock lost before frame {i}");
                }
            }
        }
        assert_eq!(rig.sent.len(), expected.len());
    }
}

#[test]
fn acknowledgements_pass_data_and_the_fence_passes_nothing() {
    let mut pick = Choices::new(21);
    let mut rig = Rig::new(8);
    let data: Vec<Said> = (0..3).map(|_| random(&mut pick, 7, 1024)).collect();
    let ack = random(&mut pick, 0x11, 0);
    for (qp, said) in data.iter().enumerate() {
        rig.path(qp, said);
    }
    rig.path(9, &ack);
    rig.send(0, &data[0]);
    rig.send(1, &data[1]);
    rig.data.push_back((5, Input::Fence, 0));
    rig.send(2, &data[2]);
    for _ in 0..20 {
        rig.clock(true);
    }
    // frame 0 is under way, and nothing is prepared behind it: the ACK goes next
    rig.control.push_back((9, ack.clone()));
    rig.run_until(4, || true);
    let order: Vec<&Said> = vec![&data[0], &ack, &data[1], &data[2]];
    for (i, said) in order.into_iter().enumerate() {
        assert_eq!(rig.frames[i].0, build(said, i as u16), "frame {i}");
    }
    assert_eq!(rig.fences.len(), 1);
    assert!(rig.fences[0] >= rig.sent[1], "the fence waits for the read of frame 1");
    assert!(rig.fences[0] < rig.sent[2], "frame 2 is behind the fence");
    assert_eq!(rig.sent.len(), 3, "an ACK frees no room");
}

#[test]
fn a_packet_is_accepted_when_the_one_before_it_is_nearly_read_and_the_line_runs_short() {
    for (width, short) in [(8, 576), (64, 72)] {
        let mut pick = Choices::new(22);
        let mut rig = Rig::new(width);
        // so much waits that nothing more is accepted but an ACK, and then a beat less
        let [said, next, ack] = [(4, 4096), (4, 4096), (0x11, 0)].map(|(o, l)| random(&mut pick, o, l));
        for (qp, said) in [&said, &next, &ack].into_iter().enumerate() {
            rig.path(qp, said);
        }
        rig.send(0, &said);
        rig.send(1, &next);
        rig.control.push_back((2, ack.clone()));
        rig.sim.poke("waiting", short);
        for _ in 0..100 {
            rig.clock(true);
        }
        assert_eq!((rig.frames.len(), rig.data.len(), rig.began), (1, 2, None), "the ACK alone left");
        rig.sim.poke("waiting", short - 1);
        let beats = build(&said, 0).len().div_ceil(rig.width);
        let mut accepted = vec![];
        while rig.frames.len() < 3 {
            let before = rig.data.len();
            rig.clock(true);
            if rig.data.len() < before {
                accepted.push(rig.now);
            }
        }
        // the second when eight beats of the first are left to be read, and no clock is lost between them
        let [first, second] = accepted[..] else { panic!("{accepted:?}") };
        assert_eq!(second - first, 4 + beats - 9, "width {width}");
        assert_eq!(rig.frames[2].1, rig.frames[1].2 + 1, "width {width}");
        assert_eq!(rig.sim.failures(), &[]);
    }
}

#[test]
fn any_interleaving_of_data_acknowledgements_and_fences_keeps_each_in_order() {
    let of = |data_bytes| Config { data_bytes, ..Config::small() };
    for (seed, c) in [(41, of(8)), (42, of(64)), (43, of(8).unhurried())] {
        let mut pick = Choices::new(seed);
        let mut rig = Rig::at(c);
        let (mut data, mut control, mut fences) = (VecDeque::new(), VecDeque::new(), 0);
        for n in 0..120usize {
            let qp = n % 64;
            match pick.below(8) {
                0 => {
                    rig.data.push_back((qp, Input::Fence, 0));
                    fences += 1;
                }
                1..4 => {
                    let said = random(&mut pick, 0x11, 0);
                    rig.path(qp, &said);
                    rig.control.push_back((qp, said.clone()));
                    control.push_back(said);
                }
                _ => {
                    let (opcode, length) = (pick.below(12) as u8, pick.below(300) as usize);
                    let said = random(&mut pick, opcode, length);
                    rig.path(qp, &said);
                    rig.send(qp, &said);
                    data.push_back(said);
                }
            }
            for _ in 0..pick.below(60) {
                let ready = pick.below(4) > 0;
                rig.clock(ready);
            }
        }
        let (requests, acknowledgements) = (data.len(), control.len());
        rig.run_until(requests + acknowledgements, || true);
        for (i, (frame, _, _)) in rig.frames.iter().enumerate() {
            let queue = if frame[frames::offsets(frame).1 + 8] == 0x11 { &mut control } else { &mut data };
            let said = queue.pop_front().expect("as many as were sent");
            assert_eq!(*frame, build(&said, i as u16), "seed {seed}, frame {i}");
        }
        assert_eq!((rig.sent.len(), rig.fences.len()), (requests, fences), "seed {seed}");
    }
}

#[test]
fn a_frame_starts_every_three_clocks_and_the_checksum_is_its_own() {
    let mut pick = Choices::new(52);
    let mut rig = Rig::new(64);
    let said: Vec<Said> = (0..64).map(|_| random(&mut pick, 0x11, 0)).collect();
    for (qp, said) in said.iter().enumerate() {
        rig.path(qp, said);
        rig.control.push_back((qp, said.clone()));
    }
    rig.run_until(64, || true);
    for (i, said) in said.iter().enumerate() {
        assert_eq!(rig.frames[i].0, build(said, i as u16), "frame {i}");
    }
    // an ACK with IPv6 is longer than a beat, and still has room
    assert_eq!(rig.frames[63].1 - rig.frames[0].1, 63 * 3);
}

#[test]
fn the_first_beat_comes_seven_clocks_after_the_packet() {
    let mut rig = Rig::new(8);
    let said = random(&mut Choices::new(51), 0x11, 0);
    rig.path(0, &said);
    rig.control.push_back((0, said));
    rig.run_until(1, || true);
    assert_eq!(rig.frames[0].1, 7);
}

#[test]
fn a_mac_that_takes_nothing_stops_the_stage_without_loss() {
    let mut pick = Choices::new(31);
    let mut rig = Rig::new(8);
    let said = random(&mut pick, 4, 2000);
    rig.path(0, &said);
    rig.send(0, &said);
    for _ in 0..500 {
        rig.clock(false);
    }
    assert!(rig.sent.is_empty(), "the payload is not read while nobody takes the frame");
    rig.run_until(1, || true);
    assert_eq!(rig.frames[0].0, build(&said, 0));
}

#[test]
fn the_emitted_verilog_is_clean() {
    lint(&elaborate(&Packetise(Config::small())).unwrap());
    lint(&elaborate(&Packetise(Config { name: "wide", data_bytes: 64, ..Config::small() })).unwrap());
}

#[test]
fn a_raw_frame_goes_out_as_it_is_and_leaves_the_icrc_of_its_neighbours_alone() {
    for width in [8, 64] {
        let mut rig = Rig::new(width);
        let (_, captured) = &golden()[3];
        let said = read(captured);
        rig.path(1, &said);
        let lengths: Vec<usize> = (14..150).chain([1514, 4110, 8191]).collect();
        let mut want = vec![];
        for (n, length) in lengths.into_iter().enumerate() {
            let frame: Vec<u8> = (0..length).map(|i| (i * 7 + n) as u8).collect();
            rig.send_raw(&frame);
            rig.send(1, &said);
            want.extend([frame, build(&said, 2 * n as u16 + 1)]);
            rig.run_until(want.len(), || true);
        }
        for (n, ((frame, ..), want)) in rig.frames.iter().zip(&want).enumerate() {
            assert_eq!(frame, want, "frame {n} at {width}");
        }
        assert_eq!(rig.sent.len(), want.len(), "all room is given back");
        assert_eq!(rig.counted_bytes, want.iter().map(Vec::len).sum::<usize>());
    }
}
