//! parse, verify and the packet buffer against captured frames and an independent reader.
//!
//! Requirements: CARD CONG ICRC LINE NET PKT RAW RESP

mod frames;

use contract::Reject;
use frames::{
    Choices, Said, build, crc32, fix_icrc, fix_ip_checksum, golden, header_bytes, lint, offsets, read,
    with_fcs,
};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::rx::{packet_buffer::PacketBuffer, parse::Parse, verify::Verify};
use std::collections::VecDeque;

const MAC: u64 = 0x0200_0000_000a;

/// A packet as it came out.
#[derive(Debug, Clone)]
struct Got {
    said: Said,
    raw: bool,
    slot: u64,
    address: usize,
    at: usize,
}

struct Rig {
    sim: Interpreter,
    width: usize,
    beats: VecDeque<(Vec<u8>, bool, usize, bool)>,
    got: Vec<Got>,
    rejects: Vec<(Reject, usize)>,
    now: usize,
    take: bool,
    release: [VecDeque<u64>; 2],
    counted: (usize, usize),
    /// Clock in which the last beat of each frame was offered.
    ended: Vec<usize>,
}

impl Rig {
    fn new(config: Config, mtu: u64) -> Rig {
        let width = config.data_bytes as usize;
        let design = elaborate(&PacketBuffer(config)).unwrap();
        let mut sim = Interpreter::new(&design);
        sim.poke("reset", 1);
        sim.clock();
        sim.poke("reset", 0);
        sim.poke("port_mac", MAC);
        sim.poke("port_mtu", mtu);
        Rig {
            sim,
            width,
            beats: VecDeque::new(),
            got: vec![],
            rejects: vec![],
            now: 0,
            take: true,
            release: Default::default(),
            counted: (0, 0),
            ended: vec![],
        }
    }
    /// Queues a frame that carries its FCS, as the mac would say it: that of the wide card keeps the FCS to itself.
    fn offer(&mut self, frame: &[u8]) {
        let (body, fcs) = frame.split_at(frame.len().saturating_sub(4));
        let error = fcs != (!crc32(u32::MAX, body)).to_le_bytes();
        let frame = if self.width == 8 { frame } else { &frame[..body.len().max(1)] };
        let n = frame.len().div_ceil(self.width);
        for (i, chunk) in frame.chunks(self.width).enumerate() {
            let mut bytes = chunk.to_vec();
            bytes.resize(self.width, 0);
            self.beats.push_back((bytes, i + 1 == n, chunk.len(), error));
        }
    }
    fn clock(&mut self) {
        let s = &mut self.sim;
        assert_eq!(s.peek("frame_ready"), 1, "the mac is never held up");
        let beat = self.beats.pop_front();
        s.poke("frame_valid", u64::from(beat.is_some()));
        let (data, last, bytes, error) = beat.unwrap_or((vec![0x55; self.width], false, self.width, true));
        s.poke_bits("frame_data", &Bits::from_bytes(self.width as u32 * 8, &data));
        s.poke("frame_last", u64::from(last));
        s.poke("frame_bytes", bytes as u64);
        s.poke("frame_error", u64::from(error));
        if last {
            self.ended.push(self.now);
        }
        s.poke("headers_ready", u64::from(self.take));
        for (port, queue) in ["release_check", "release_place"].iter().zip(&mut self.release) {
            let slot = queue.pop_front();
            s.poke(&format!("{port}_valid"), u64::from(slot.is_some()));
            s.poke(&format!("{port}_slot"), slot.unwrap_or(0));
        }
        if s.peek("reject_valid") == 1 {
            let code = s.peek("reject_index") as u8;
            self.rejects.push((Reject::from_code(code).expect("a reject's code"), self.now));
        }
        if s.peek("frame_count") == 1 {
            self.counted.0 += 1;
            self.counted.1 += s.peek("frame_length") as usize;
        }
        if self.take && s.peek("headers_valid") == 1 {
            let mut get = |name: &str| s.peek(&format!("headers_{name}"));
            let opcode = get("opcode") as u8;
            let length = get("length") as usize;
            let address = get("address") as usize;
            let reth = (get("va"), get("rkey") as u32, get("dma_length") as u32);
            let aeth = (get("syndrome") as u8, get("msn") as u32);
            let imm = (get("imm") as u32).to_le_bytes();
            let (slot, raw) = (get("slot"), get("raw") == 1);
            let mut said = Said {
                opcode,
                solicited: get("solicited") == 1,
                pad: get("pad") as u8,
                pkey: get("pkey") as u16,
                dest_qpn: get("dest_qpn") as u32,
                ack_req: get("ack_req") == 1,
                psn: get("psn") as u32,
                // absent headers are zero
                reth: (reth != (0, 0, 0)).then_some(reth),
                aeth: (aeth != (0, 0)).then_some(aeth),
                imm: (imm != [0; 4]).then_some(imm),
                value: get("value"),
                compare: get("compare"),
                ..Said::default()
            };
            let vlan = s.peek("headers_vlan") as u16;
            said.tag = (vlan != 0).then_some(vlan);
            let [source, dest] =
                ["source", "dest"].map(|n| s.peek_bits(&format!("headers_{n}_gid")).low128());
            if source >> 32 == 0xffff && dest >> 32 == 0xffff {
                (said.source_ip, said.dest_ip) = (source as u32, dest as u32);
            } else {
                said.ipv6 = Some((source, dest, 0));
            }
            self.got.push(Got { said, raw, slot, address, at: self.now });
            let got = self.got.len() - 1;
            self.got[got].said.payload = self.payload(address, length);
        }
        self.sim.clock();
        self.now += 1;
    }
    /// What lies in the ring.
    fn payload(&self, address: usize, length: usize) -> Vec<u8> {
        let size = Config::small().packet_buffer_bytes as usize;
        (address..address + length)
            .map(|a| self.sim.peek_memory("ring", (a % size / self.width) as u32).to_bytes()[a % self.width])
            .collect()
    }
    fn drain(&mut self) {
        while !self.beats.is_empty() {
            self.clock();
        }
        for _ in 0..40 {
            self.clock();
        }
        assert_eq!(self.sim.failures(), &[]);
    }
    /// The outcome of one frame alone; its slot is given back.
    fn judge(&mut self, frame: &[u8]) -> Result<Got, Reject> {
        let (got, rejects) = (self.got.len(), self.rejects.len());
        self.offer(frame);
        while !self.beats.is_empty() {
            self.clock();
        }
        for _ in 0..12 {
            self.clock();
        }
        match (self.got.len() - got, self.rejects.len() - rejects) {
            (1, 0) => {
                let got = self.got.last().unwrap().clone();
                self.release[1].push_back(got.slot);
                Ok(got)
            }
            (0, 1) => Err(self.rejects.last().unwrap().0),
            other => panic!("one frame gave {other:?} packets and rejects"),
        }
    }
}

/// What the card is to say about a frame, of what the reader says.
fn expected(frame: &[u8]) -> Said {
    let mut said = read(frame);
    said.ipv6 = said.ipv6.map(|(source, dest, _)| (source, dest, 0));
    said.tag = said.tag.map(|tag| tag & 0xfff).filter(|vlan| *vlan != 0);
    // not handed on
    (said.dest_mac, said.source_mac, said.tos, said.ttl, said.source_port) = (0, 0, 0, 0, 0);
    said.reth = said.reth.filter(|r| *r != (0, 0, 0));
    said.aeth = said.aeth.filter(|r| *r != (0, 0));
    said.imm = said.imm.filter(|r| *r != [0; 4]);
    said
}

/// A captured frame, addressed to this port.
fn to_us(mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&MAC.to_be_bytes()[2..]);
    frame
}

fn a_write(length: usize) -> Vec<u8> {
    build(
        &Said {
            dest_mac: MAC,
            source_mac: 0x0200_0000_000b,
            tos: 2,
            ttl: 64,
            source_ip: 0x0a00_0002,
            dest_ip: 0x0a00_0001,
            source_port: 0xc123,
            opcode: 0x0a,
            pad: (length.wrapping_neg() & 3) as u8,
            pkey: 0xffff,
            dest_qpn: 0x11,
            ack_req: true,
            psn: 0xabcdef,
            reth: Some((0x1122_3344_5566_7788, 0x99aa_bbcc, length as u32)),
            payload: (0..length).map(|i| i as u8 ^ 0x5a).collect(),
            ..Said::default()
        },
        0x7777,
    )
}

#[test]
fn every_captured_packet_means_the_same_to_the_card_as_to_the_reader() {
    for width in [8, 64] {
        captured(width);
    }
}

/// The small card at another width.
fn at_width(data_bytes: u32) -> Config {
    Config { data_bytes, ..Config::small() }
}

fn captured(width: u32) {
    let mut rig = Rig::new(at_width(width), 4200);
    let all: Vec<_> = golden().into_iter().map(|(n, f)| (n, to_us(f))).collect();
    let mut bytes = 0;
    for (_, frame) in &all {
        // back to back
        bytes += frame.len().max(60);
        rig.offer(&with_fcs(frame));
        while !rig.beats.is_empty() {
            rig.clock();
        }
        // keep four packets inside; give the fifth newest back, odd ones by check, even ones by place
        for n in 0..rig.got.len().saturating_sub(4) {
            if rig.got[n].slot != u64::MAX {
                let slot = std::mem::replace(&mut rig.got[n].slot, u64::MAX);
                rig.release[n % 2].push_back(slot);
            }
        }
    }
    rig.drain();
    assert_eq!(rig.rejects, []);
    assert_eq!(rig.got.len(), all.len());
    for (got, (name, frame)) in rig.got.iter().zip(&all) {
        assert_eq!(got.said, expected(frame), "{name}");
        assert_eq!(
            got.address % rig.width,
            (header_bytes(frame[offsets(frame).1 + 8]) + offsets(frame).1 - 34) % rig.width,
            "{name}: payload lies as it came"
        );
    }
    assert_eq!(rig.counted, (all.len(), bytes));
    for (got, ended) in rig.got.iter().zip(&rig.ended) {
        assert_eq!(got.at - ended, 8, "clocks from last beat to headers");
    }
}

#[test]
fn every_single_bit_is_guarded_by_name_even_when_the_fcs_is_right() {
    // the wide card is slow to interpret: every eleventh bit there
    for (width, step) in [(8, 1), (64, 11)] {
        guarded(width, step);
    }
}

fn guarded(width: u32, step: usize) {
    let frame = a_write(13);
    let mut rig = Rig::new(at_width(width), 1500);
    assert!(rig.judge(&with_fcs(&frame)).is_ok());
    let name = |at: usize| match at {
        0..6 => Some(Reject::WrongDestinationMac),
        12 | 13 | 36 | 37 => Some(Reject::NotRoce),
        14..34 => Some(Reject::BadIpHeader),
        38 | 39 => Some(Reject::BadUdpLength),
        // source MAC; UDP checksum; FECN, BECN and reserved: switches may change them
        6..12 | 40 | 41 | 46 => None,
        _ => Some(Reject::BadIcrc),
    };
    for bit in (0..frame.len() * 8).step_by(step) {
        let mut flipped = frame.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let got = rig.judge(&with_fcs(&flipped));
        assert_eq!(got.as_ref().err().copied(), name(bit / 8), "bit {} of byte {}", bit % 8, bit / 8);
        // the same flip without a new FCS
        let mut damaged = with_fcs(&frame);
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(rig.judge(&damaged).err(), Some(Reject::BadFcs), "bit {bit}");
    }
    let mut damaged = with_fcs(&frame);
    let last = damaged.len() - 1;
    damaged[last] ^= 0x80;
    assert_eq!(rig.judge(&damaged).err(), Some(Reject::BadFcs));
}

/// The same packet over IPv6, with or without a tag.
fn a_write_over_ipv6(tag: Option<u16>) -> Vec<u8> {
    let said = read(&a_write(13));
    let ipv6 = Some((0xfe80 << 112 | 0x0a, 0xfe80 << 112 | 0x0b, 0xabcde));
    build(&Said { tag, ipv6, source_ip: 0, dest_ip: 0, ..said }, 0)
}

#[test]
fn every_bit_of_a_tagged_ipv6_packet_is_guarded_by_name_or_a_switch_may_change_it() {
    for (width, step) in [(8, 1), (64, 11)] {
        for tag in [None, Some(0x6123)] {
            let frame = a_write_over_ipv6(tag);
            let (ip, udp) = offsets(&frame);
            let mut rig = Rig::new(at_width(width), 1500);
            let plain = rig.judge(&with_fcs(&frame)).expect("a good packet");
            assert_eq!(plain.said, expected(&frame));
            let name = |bit: usize| match (bit / 8, bit % 8) {
                (0..6, _) => Some(Reject::WrongDestinationMac),
                (at, _) if at < 12 => None,
                // another EtherType; a tag's priority and VLAN are the QP's matter
                (at, _) if at < 14 || (ip - 2..ip).contains(&at) => Some(Reject::NotRoce),
                (at, _) if at < ip => None,
                // the version; traffic class and flow label
                (at, 4..) if at == ip => Some(Reject::BadIpHeader),
                (at, _) if at < ip + 4 => None,
                (at, _) if at < ip + 6 => Some(Reject::BadIpHeader),
                (at, _) if at == ip + 6 => Some(Reject::NotRoce),
                // hop limit
                (at, _) if at == ip + 7 => None,
                (at, _) if at == udp + 2 || at == udp + 3 => Some(Reject::NotRoce),
                (at, _) if at == udp + 4 || at == udp + 5 => Some(Reject::BadUdpLength),
                (at, _) if at == udp + 6 || at == udp + 7 || at == udp + 12 => None,
                _ => Some(Reject::BadIcrc),
            };
            for bit in (0..frame.len() * 8).step_by(step) {
                let mut flipped = frame.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let got = rig.judge(&with_fcs(&flipped)).err();
                // a shorter payload length contradicts UDP instead
                let shorter = (ip + 4..ip + 6).contains(&(bit / 8)) && frame[bit / 8] >> (bit % 8) & 1 == 1;
                let name = if shorter { Some(Reject::BadUdpLength) } else { name(bit) };
                assert_eq!(got, name, "{width} bytes, tag {tag:x?}: bit {} of byte {}", bit % 8, bit / 8);
            }
        }
    }
}

#[test]
fn a_tag_moves_the_limits_of_a_frame_by_its_own_four_bytes() {
    // an IP datagram of 1068 bytes passes with and without a tag, 1069 does not
    let mut rig = Rig::new(Config::small(), 1068);
    for tag in [None, Some(5)] {
        for ipv6 in [None, Some((1, 2, 3))] {
            let headers = if ipv6.is_some() { 60 } else { 40 };
            let said = Said { tag, ipv6, ..read(&a_write(1068 - headers - 16 - 4)) };
            let most = build(&said, 7);
            rig.judge(&with_fcs(&most)).unwrap_or_else(|e| panic!("tag {tag:?}, {ipv6:?}: {e:?}"));
            let over = [most, vec![0]].concat();
            assert_eq!(rig.judge(&with_fcs(&over)).err(), Some(Reject::Oversize), "tag {tag:?}, {ipv6:?}");
            // no room for a BTH: UDP and IP lengths agree
            for inner in [8u16, 23] {
                let mut f = build(&said, 7);
                let (ip, udp) = offsets(&f);
                let (at, total) = if ipv6.is_some() { (ip + 4, inner) } else { (ip + 2, inner + 20) };
                f[at..at + 2].copy_from_slice(&total.to_be_bytes());
                f[udp + 4..udp + 6].copy_from_slice(&inner.to_be_bytes());
                fix_ip_checksum(&mut f);
                assert_eq!(rig.judge(&with_fcs(&f)).err(), Some(Reject::Runt), "tag {tag:?}, {ipv6:?}");
            }
        }
    }
    // two tags, and extension headers, are not RoCE
    let mut twice = a_write_over_ipv6(Some(1));
    twice[16..18].copy_from_slice(&[0x81, 0]);
    assert_eq!(rig.judge(&with_fcs(&twice)).err(), Some(Reject::NotRoce));
}

#[test]
fn every_bit_of_the_ip_header_is_guarded_even_when_its_checksum_is_right() {
    let frame = a_write(13);
    let mut rig = Rig::new(Config::small(), 1500);
    for bit in 14 * 8..34 * 8 {
        let mut flipped = frame.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fix_ip_checksum(&mut flipped);
        let longer = flipped[16..18] > frame[16..18];
        let name = match bit / 8 {
            14 => Some(Reject::BadIpHeader),
            16 | 17 if longer => Some(Reject::BadIpHeader),
            16 | 17 => Some(Reject::BadUdpLength),
            // more fragments, fragment offset; but not "do not fragment" and the reserved bit
            20 | 21 if bit / 8 == 21 || bit % 8 < 6 => Some(Reject::BadIpHeader),
            23 => Some(Reject::NotRoce),
            // routers change ToS and TTL; the checksum was put right again
            15 | 22 | 24 | 25 => None,
            _ => Some(Reject::BadIcrc),
        };
        let got = rig.judge(&with_fcs(&flipped));
        assert_eq!(got.err(), name, "bit {} of byte {}", bit % 8, bit / 8);
    }
}

#[test]
fn frames_are_judged_on_both_sides_of_every_length() {
    let mut rig = Rig::new(Config::small(), 1068);
    // 64 bytes with FCS is the least: an ACK of 62 bytes is longer, a SEND without payload has 58 and two of padding
    let mut said = read(&a_write(0));
    (said.opcode, said.reth, said.aeth) = (0x11, None, Some((0x1f, 3)));
    let ack = build(&said, 1);
    assert_eq!(ack.len(), 62);
    assert!(rig.judge(&with_fcs(&ack)).is_ok());
    (said.opcode, said.aeth) = (0x04, None);
    let send = build(&said, 1);
    assert_eq!((send.len(), with_fcs(&send).len()), (58, 64));
    let got = rig.judge(&with_fcs(&send)).expect("a padded frame");
    assert_eq!(got.said.payload, [], "padding is no payload");
    let unpadded: Vec<u8> = {
        let mut f = send.clone();
        f.push(0);
        let fcs = !crc32(u32::MAX, &f);
        f.extend(fcs.to_le_bytes());
        f
    };
    assert_eq!(unpadded.len(), 63);
    assert_eq!(rig.judge(&unpadded).err(), Some(Reject::Runt));
    for n in 1..12 {
        assert_eq!(rig.judge(&vec![7; n]).err(), Some(Reject::Runt), "{n} bytes");
    }
    // trailing bytes behind the datagram are ignored whatever their number
    for extra in 0..20 {
        let mut f = a_write(5);
        f.extend(vec![0xa5; extra]);
        let got = rig.judge(&with_fcs(&f)).expect("trailing bytes");
        assert_eq!(got.said.payload.len(), 5);
    }
    // the port's MTU: IP datagram of 1068 bytes passes, 1069 (by a trailing byte) does not
    let most = a_write(1068 - 20 - 8 - 12 - 16 - 4);
    let got = rig.judge(&with_fcs(&most)).expect("the longest");
    assert_eq!(got.said, expected(&most));
    let over = [most.clone(), vec![0]].concat();
    assert_eq!(rig.judge(&with_fcs(&over)).err(), Some(Reject::Oversize));
    assert_eq!(rig.judge(&with_fcs(&vec![0x33; 30_000])).err(), Some(Reject::Oversize));
    assert_eq!(rig.judge(&with_fcs(&vec![0x33; 70_000])).err(), Some(Reject::Oversize));
    assert!(rig.judge(&with_fcs(&most)).is_ok(), "and the next is taken again");
}

#[test]
fn a_datagram_shorter_than_its_headers_is_a_runt() {
    let mut rig = Rig::new(Config::small(), 1500);
    let of_length = |opcode: u8, pad: u8, after_bth: usize| {
        let mut said = read(&a_write(0));
        (said.opcode, said.pad, said.reth) = (opcode, 0, None);
        said.payload = vec![0x77; after_bth];
        let mut f = build(&said, 1);
        f[43] |= pad << 4;
        fix_icrc(&mut f);
        with_fcs(&f)
    };
    for row in contract::Opcode::ALL {
        let need = row.row().headers.bytes();
        let opcode = row.code();
        if need > 0 {
            assert_eq!(rig.judge(&of_length(opcode, 0, need - 4)).err(), Some(Reject::Runt), "{row:?}");
            assert_eq!(rig.judge(&of_length(opcode, 0, need - 1)).err(), Some(Reject::Runt), "{row:?}");
        }
        let got = rig.judge(&of_length(opcode, 0, need)).expect("headers alone");
        assert_eq!(got.said.payload.len(), 0, "{row:?}");
        let got = rig.judge(&of_length(opcode, 3, need + 4)).expect("one byte, three of pad");
        assert_eq!(got.said.payload.len(), 1, "{row:?}");
        // a pad that reaches into the headers
        assert_eq!(rig.judge(&of_length(opcode, 1, need)).err(), Some(Reject::Runt), "{row:?}");
    }
    // no room for a BTH: UDP and IP lengths agree
    for total in [28u16, 40, 43] {
        let mut f = a_write(30);
        f[16..18].copy_from_slice(&total.to_be_bytes());
        f[38..40].copy_from_slice(&(total - 20).to_be_bytes());
        fix_ip_checksum(&mut f);
        assert_eq!(rig.judge(&with_fcs(&f)).err(), Some(Reject::Runt), "total length {total}");
    }
}

#[test]
fn unknown_versions_and_opcodes_are_named() {
    let mut rig = Rig::new(Config::small(), 1500);
    for version in 1..16 {
        let mut f = a_write(4);
        f[43] |= version;
        fix_icrc(&mut f);
        assert_eq!(rig.judge(&with_fcs(&f)).err(), Some(Reject::BadTransportVersion));
    }
    let mut known = 0;
    for opcode in 0..=255u8 {
        let mut f = a_write(40);
        f[42] = opcode;
        fix_icrc(&mut f);
        let got = rig.judge(&with_fcs(&f));
        match contract::Opcode::from_code(opcode) {
            Some(_) => {
                known += 1;
                assert_eq!(got.expect("a known opcode").said.opcode, opcode);
            }
            None => assert_eq!(got.err(), Some(Reject::UnknownOpcode), "{opcode:#x}"),
        }
    }
    assert_eq!(known, contract::Opcode::ALL.len());
}

#[test]
fn a_packet_of_either_migration_state_is_taken_alike() {
    let mut rig = Rig::new(Config::small(), 1500);
    for length in [0, 1, 5, 64, 1024] {
        let said = [0, 0x40].map(|mig_req| {
            let mut f = a_write(length);
            f[43] = f[43] & !0x40 | mig_req;
            fix_icrc(&mut f);
            rig.judge(&with_fcs(&f)).expect("a good packet").said
        });
        assert_eq!(said[0], said[1], "{length} bytes");
    }
}

#[test]
fn the_shortest_frames_back_to_back_are_all_taken() {
    for width in [8, 64] {
        shortest(width);
    }
}

fn shortest(width: u32) {
    let mut rig = Rig::new(at_width(width), 1500);
    let mut said = read(&a_write(0));
    (said.opcode, said.reth) = (0x04, None);
    for n in 0..300u32 {
        said.psn = n;
        rig.offer(&with_fcs(&build(&said, n as u16)));
    }
    assert_eq!(rig.beats.len(), 300 * 64 / rig.width, "a beat in every clock: denser than any line");
    let mut given = 0;
    while !rig.beats.is_empty() || given < rig.got.len() {
        if given < rig.got.len() {
            rig.release[given % 2].push_back(rig.got[given].slot);
            given += 1;
        }
        rig.clock();
    }
    rig.drain();
    assert_eq!(rig.rejects, []);
    let psns: Vec<u32> = rig.got.iter().map(|g| g.said.psn).collect();
    assert_eq!(psns, (0..300).collect::<Vec<_>>());
}

#[test]
fn a_full_ring_drops_whole_frames_by_name_and_recovers() {
    let mut rig = Rig::new(Config::small(), 4200);
    let frame = with_fcs(&a_write(4000));
    let fit = 32768 / 8 / frame.len().div_ceil(8);
    for _ in 0..fit + 3 {
        rig.offer(&frame);
    }
    rig.drain();
    assert_eq!(rig.got.len(), fit);
    assert_eq!(rig.rejects.iter().map(|r| r.0).collect::<Vec<_>>(), [Reject::BufferFull; 3]);
    for g in &rig.got {
        assert_eq!(g.said.payload, expected(&a_write(4000)).payload);
        assert_eq!(rig.payload(g.address, 4000), g.said.payload, "what is inside was not touched");
    }
    // a short frame still fits
    assert!(rig.judge(&with_fcs(&a_write(4))).is_ok());
    // room comes back in order: the second slot alone frees nothing
    let slots: Vec<u64> = rig.got.iter().map(|g| g.slot).collect();
    rig.release[0].push_back(slots[1]);
    rig.drain();
    assert_eq!(rig.judge(&frame).err(), Some(Reject::BufferFull));
    rig.release[1].push_back(slots[0]);
    rig.drain();
    for _ in 0..2 {
        rig.offer(&frame);
    }
    rig.offer(&frame);
    rig.drain();
    assert_eq!(rig.got.len(), fit + 1 + 2, "two frames of room, the third finds none");
    for g in &rig.got[fit + 1..] {
        assert_eq!(rig.payload(g.address, 4000), expected(&a_write(4000)).payload);
    }
}

#[test]
fn room_that_comes_in_the_midst_of_a_refused_frame_does_not_make_it_good() {
    let mut rig = Rig::new(Config::small(), 4200);
    let frame = with_fcs(&a_write(4000));
    let fit = 32768 / 8 / frame.len().div_ceil(8);
    for _ in 0..fit {
        rig.offer(&frame);
    }
    rig.drain();
    rig.offer(&frame);
    for _ in 0..200 {
        rig.clock();
    }
    rig.release[1].push_back(rig.got[0].slot);
    rig.drain();
    assert_eq!(rig.rejects.iter().map(|r| r.0).collect::<Vec<_>>(), [Reject::BufferFull], "it has a hole");
    rig.offer(&frame);
    rig.drain();
    assert_eq!(rig.got.len(), fit + 1, "the next one takes the room");
    assert_eq!(rig.got[fit].said.payload, expected(&a_write(4000)).payload);
}

#[test]
fn without_a_slot_a_frame_is_dropped_by_name_and_all_slots_may_wait_for_check() {
    let config = Config { packet_slots: 8, ..Config::small() };
    let mut rig = Rig::new(config, 1500);
    for _ in 0..10 {
        rig.offer(&with_fcs(&a_write(4)));
    }
    rig.drain();
    assert_eq!((rig.got.len(), rig.rejects.len()), (8, 2));
    // both releasers at once
    rig.release[0].push_back(rig.got[0].slot);
    rig.release[1].push_back(rig.got[1].slot);
    rig.drain();
    for _ in 0..3 {
        rig.offer(&with_fcs(&a_write(4)));
    }
    rig.drain();
    assert_eq!((rig.got.len(), rig.rejects.len()), (10, 3));

    let mut rig = Rig::new(Config::small(), 1500);
    rig.take = false;
    for _ in 0..66 {
        rig.offer(&with_fcs(&a_write(4)));
    }
    rig.drain();
    assert_eq!(rig.rejects.iter().map(|r| r.0).collect::<Vec<_>>(), [Reject::BufferFull; 2]);
    rig.take = true;
    for _ in 0..64 {
        rig.clock();
    }
    assert_eq!(rig.got.len(), 64);
    rig.release[0].push_back(rig.got[0].slot);
    rig.drain();
    assert!(rig.judge(&with_fcs(&a_write(4))).is_ok());
}

#[test]
fn a_frame_that_the_mac_cut_short_is_counted_as_buffer_full() {
    let mut rig = Rig::new(Config::small(), 1500);
    rig.offer(&with_fcs(&a_write(100)));
    rig.beats.truncate(9);
    rig.beats.push_back((vec![0; 8], true, 0, true));
    rig.offer(&with_fcs(&a_write(100)));
    rig.drain();
    assert_eq!(rig.rejects.iter().map(|r| r.0).collect::<Vec<_>>(), [Reject::BufferFull]);
    assert_eq!((rig.got.len(), rig.counted.0), (1, 1));
}

#[test]
fn the_write_engine_reads_a_word_one_clock_after_its_address() {
    let mut rig = Rig::new(Config::small(), 1500);
    let got = rig.judge(&with_fcs(&a_write(64))).unwrap();
    let mut out = vec![];
    for word in got.address / 8..(got.address + 64).div_ceil(8) {
        rig.sim.poke("read_address", word as u64);
        rig.sim.clock();
        out.extend(rig.sim.peek("read_word").to_le_bytes());
    }
    let lane = got.address % 8;
    assert_eq!(out[lane..lane + 64], got.said.payload[..]);
}

#[test]
fn any_mixture_of_good_and_bad_frames_with_any_order_of_release_loses_nothing() {
    for (seed, config, frames) in
        [(1, at_width(8), 300), (3, at_width(64), 150), (5, at_width(8).unhurried(), 300)]
    {
        let mut pick = Choices::new(seed);
        let mut rig = Rig::new(Config { packet_slots: 16, ..config }, 1100);
        let (mut good, mut bad) = (vec![], 0);
        let mut given = 0;
        let mut held: Vec<(usize, u64)> = vec![];
        for n in 0..frames {
            let mut f = a_write(pick.below(1000) as usize);
            f[51..54].copy_from_slice(&u32::to_be_bytes(n)[1..]);
            fix_icrc(&mut f);
            let mut f = with_fcs(&f);
            if pick.below(3) == 0 {
                let at = pick.below(f.len() as u64) as usize;
                match pick.below(3) {
                    0 => f[at] ^= 1 << pick.below(8),
                    1 => f.truncate(at.max(1)),
                    _ => f = with_fcs(&pick.bytes(64 + at)),
                }
                bad += 1;
            } else {
                good.push(f.clone());
            }
            rig.offer(&f);
            let mut pause = pick.below(30);
            while !rig.beats.is_empty() || pause > 0 {
                rig.clock();
                pause = pause.saturating_sub(1);
                while given < rig.got.len() {
                    held.push((given, rig.got[given].slot));
                    given += 1;
                }
                if !held.is_empty() && (held.len() > 6 || pick.below(90) == 0) {
                    // any of them, but none stays for more than ten: room comes back in order, and 16 slots are all
                    let late = held[0].0 + 10 < given;
                    let (_, slot) =
                        held.remove(if late { 0 } else { pick.below(held.len() as u64) as usize });
                    rig.release[pick.below(2) as usize].push_back(slot);
                }
            }
        }
        rig.drain();
        assert_eq!(rig.got.len(), good.len(), "seed {seed}");
        assert_eq!(rig.rejects.len(), bad, "seed {seed}: every bad frame has one name");
        for (got, f) in rig.got.iter().zip(&good) {
            assert_eq!(got.said, expected(f), "seed {seed}");
        }
    }
}

#[test]
fn the_emitted_verilog_is_clean() {
    lint(&elaborate(&Parse(Config::small())).unwrap());
    lint(&elaborate(&Verify(Config::small())).unwrap());
    lint(&elaborate(&PacketBuffer(Config::small())).unwrap());
    lint(&elaborate(&PacketBuffer(Config { name: "wide", ..at_width(64) })).unwrap());
}

/// A frame of this EtherType and payload for `to`.
fn plain(to: u64, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let head =
        [&to.to_be_bytes()[2..], &[2, 0, 0, 0, 0, 0xb], &ethertype.to_be_bytes()[..], payload].concat();
    [head.clone(), vec![0; 60usize.saturating_sub(head.len())]].concat()
}

/// The write with its bytes from `at` on replaced, the IP checksum made right again.
fn changed(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = a_write(13);
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    fix_ip_checksum(&mut frame);
    frame
}

const RAW_QP: u32 = 0x2a;

#[test]
fn what_is_not_roce_is_the_raw_qps_whole_and_by_name_nobodys_without_one() {
    let all = 0xffff_ffff_ffff;
    let arp: Vec<u8> = (0..28).collect();
    let jumbo = |bytes: usize| plain(MAC, 0x88b5, &vec![7; bytes - 14]);
    // what, frame, without a raw QP, with one, promiscuous; `None`: taken raw
    type Row = (&'static str, Vec<u8>, Reject, Option<Reject>, Option<Reject>);
    let foreign = |frame: Vec<u8>| [&[2, 0, 0, 0, 0, 0x77][..], &frame[6..]].concat();
    let (mac, not, ip) = (Reject::WrongDestinationMac, Reject::NotRoce, Reject::BadIpHeader);
    let rows: Vec<Row> = vec![
        ("ARP to all", plain(all, 0x0806, &arp), mac, None, None),
        ("ARP to us", plain(MAC, 0x0806, &arp), not, None, None),
        ("all IPv6 nodes", plain(0x3333_0000_0001, 0x86dd, &arp), mac, None, None),
        ("a solicited node", plain(0x3333_ff12_3456, 0x86dd, &arp), mac, None, None),
        ("all IPv6 routers", plain(0x3333_0000_0002, 0x86dd, &arp), mac, Some(mac), None),
        ("an IPv4 group", plain(0x0100_5e00_0001, 0x0800, &arp), mac, Some(mac), None),
        ("PAUSE", plain(0x0180_c200_0001, 0x8808, &arp), mac, Some(mac), None),
        ("a stranger's ARP", foreign(plain(MAC, 0x0806, &arp)), mac, Some(mac), None),
        ("a stranger's RoCE", foreign(a_write(13)), mac, Some(mac), None),
        ("ICMP", changed(23, &[1]), not, None, None),
        ("UDP port 4790", changed(36, &[0x12, 0xb6]), not, None, None),
        ("a fragment", changed(20, &[0x20, 0]), ip, None, None),
        ("IP options", changed(14, &[0x46]), ip, None, None),
        ("the longest", jumbo(8191), not, None, None),
        ("one byte more", jumbo(8192), not, Some(Reject::Oversize), Some(Reject::Oversize)),
    ];
    for width in [8, 64] {
        for mode in 0..3 {
            let mut rig = Rig::new(at_width(width), 9000);
            let bits = [0, 1 << 31, 3 << 30][mode];
            rig.sim.poke("raw_receive", bits | u64::from(RAW_QP));
            for (what, frame, off, on, promiscuous) in &rows {
                let want = [Some(*off), *on, *promiscuous][mode];
                let got = rig.judge(&with_fcs(frame));
                assert_eq!(got.as_ref().err(), want.as_ref(), "{what}, mode {mode}, {width} bytes");
                if let Ok(got) = got {
                    let (raw, qpn, opcode) = (got.raw, got.said.dest_qpn, got.said.opcode);
                    assert_eq!((raw, qpn, opcode), (true, RAW_QP, 4), "{what}");
                    assert_eq!((got.said.ack_req, got.said.solicited), (false, false), "{what}");
                    assert_eq!(got.said.payload, *frame, "{what}: whole, from the Ethernet header on");
                }
            }
            // RoCE of ours stays RoCE, whatever is wrong with it
            let good = rig.judge(&with_fcs(&a_write(13))).expect("RoCE");
            assert_eq!((good.raw, good.said), (false, expected(&a_write(13))));
            let bad = |at: usize| {
                let mut frame = a_write(13);
                frame[at] ^= 1;
                frame
            };
            for (at, want) in [(60, Reject::BadIcrc), (25, ip), (39, Reject::BadUdpLength)] {
                assert_eq!(rig.judge(&with_fcs(&bad(at))).err(), Some(want), "byte {at}");
            }
            // and what is no good frame is nobody's
            let mut wrong = with_fcs(&plain(all, 0x0806, &arp));
            wrong[20] ^= 1;
            assert_eq!(rig.judge(&wrong).err(), Some(Reject::BadFcs));
            assert_eq!(rig.judge(&with_fcs(&jumbo(9015))).err(), Some(Reject::Oversize));
        }
    }
}

#[test]
fn half_of_the_packet_buffer_is_all_that_raw_frames_may_fill() {
    let small = with_fcs(&plain(0xffff_ffff_ffff, 0x0806, &[1; 28]));
    let big = with_fcs(&plain(MAC, 0x88b5, &[7; 4000]));
    let roce = [with_fcs(&a_write(4)), with_fcs(&a_write(4000))];
    // slots of 64, then bytes of 32 KiB
    for (frame, roce, fit) in [(&small, &roce[0], 32), (&big, &roce[1], 4)] {
        let mut rig = Rig::new(Config::small(), 4200);
        rig.sim.poke("raw_receive", 1 << 31 | u64::from(RAW_QP));
        for _ in 0..fit + 2 {
            rig.offer(frame);
        }
        rig.drain();
        assert_eq!((rig.got.len(), rig.rejects.len()), (fit, 2));
        assert!(rig.rejects.iter().all(|r| r.0 == Reject::BufferFull));
        // RoCE finds its half
        for _ in 0..fit - 1 {
            rig.offer(roce);
        }
        rig.drain();
        assert_eq!((rig.got.len(), rig.rejects.len()), (2 * fit - 1, 2));
        rig.offer(frame);
        rig.drain();
        assert_eq!(rig.rejects.len(), 3);
        // and what comes back is for both
        for n in 0..fit {
            rig.release[n % 2].push_back(rig.got[n].slot);
        }
        rig.drain();
        rig.offer(frame);
        rig.drain();
        assert_eq!((rig.got.len(), rig.rejects.len()), (2 * fit, 3));
    }
}
