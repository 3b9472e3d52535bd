//! What the frame tests share: captures, an own CRC, an own header reader. Nothing here uses the card's code or
//! `contract`'s: it is the oracle.
#![allow(dead_code)]

#[path = "../common/mod.rs"]
mod common;
pub use common::{Choices, lint};

/// CRC-32 of 802.3 bit by bit; the start value is given, the result not complemented.
pub fn crc32(mut register: u32, bytes: &[u8]) -> u32 {
    for byte in bytes {
        for bit in 0..8 {
            let feedback = (register ^ u32::from(byte >> bit)) & 1;
            register = (register >> 1) ^ (0xEDB8_8320 * feedback);
        }
    }
    register
}

/// `frame` padded to 60 bytes, with its FCS.
pub fn with_fcs(frame: &[u8]) -> Vec<u8> {
    let mut out = frame.to_vec();
    out.resize(out.len().max(60), 0);
    let fcs = !crc32(u32::MAX, &out);
    out.extend(fcs.to_le_bytes());
    out
}

/// A MAC in its three clocks, out of reset.
pub fn power_up(mac: &hdl::Design) -> hdl::Interpreter {
    let mut sim = hdl::Interpreter::new(mac);
    let domains = [("clock", "reset"), ("tx_clock", "tx_reset"), ("rx_clock", "rx_reset")];
    for (clock, reset) in domains {
        sim.poke(reset, 1);
        for _ in 0..4 {
            sim.step(clock);
        }
    }
    for (_, reset) in domains {
        sim.poke(reset, 0);
    }
    sim
}

/// What the core gets of nine `frames` of which it took none until the last came: the FIFO holds one, the second is cut,
/// the others are reported by nothing but a last beat.
pub fn assert_lost_whole(got: &[(Vec<u8>, bool)], frames: &[Vec<u8>]) {
    assert_eq!(got[0], (frames[0].clone(), false));
    let cut = &got[1];
    assert!(cut.1 && frames[1].starts_with(&cut.0) && cut.0.len() < frames[1].len());
    let reported = got[2..].iter().filter(|g| *g == &(vec![], true)).count();
    let whole = got[2..].iter().filter(|g| !g.1).count();
    assert_eq!(2 + reported + whole, 9, "one outcome per frame");
    assert!(reported >= 6);
    assert_eq!(got.len(), 9);
}

/// Where the IP header and the UDP header of `frame` begin.
pub fn offsets(frame: &[u8]) -> (usize, usize) {
    let ip = if frame[12..14] == [0x81, 0] { 18 } else { 14 };
    (ip, ip + if frame[ip - 2..ip] == [0x86, 0xdd] { 40 } else { 20 })
}

/// The ICRC bytes of `frame` (no IP options), whose last four bytes are not looked at.
pub fn icrc(frame: &[u8]) -> [u8; 4] {
    let (ip, udp) = offsets(frame);
    let mut covered = vec![0xff; 8];
    covered.extend(&frame[ip..frame.len() - 4]);
    let masked: &[usize] = if udp - ip == 20 { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
    for at in masked.iter().copied().chain([udp - ip + 6, udp - ip + 7, udp - ip + 12]) {
        covered[8 + at] = 0xff;
    }
    if udp - ip == 40 {
        covered[8] |= 0xf;
    }
    (!crc32(u32::MAX, &covered)).to_le_bytes()
}

/// Puts the right IPv4 checksum, if there is one.
pub fn fix_ip_checksum(frame: &mut [u8]) {
    let (ip, udp) = offsets(frame);
    if udp - ip == 40 {
        return;
    }
    frame[ip + 10..ip + 12].fill(0);
    let mut sum: u32 = frame[ip..udp].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[ip + 10..ip + 12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Puts the right ICRC.
pub fn fix_icrc(frame: &mut [u8]) {
    let sum = icrc(frame);
    let n = frame.len();
    frame[n - 4..].copy_from_slice(&sum);
}

fn capture(bytes: &[u8]) -> Vec<Vec<u8>> {
    assert_eq!(bytes[..4], [0xd4, 0xc3, 0xb2, 0xa1], "little-endian pcap");
    let (mut at, mut out) = (24, vec![]);
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        out.push(bytes[at + 16..at + 16 + length].to_vec());
        at += 16 + length;
    }
    out
}

/// Every frame of every capture (all RC), with the capture's name.
pub fn golden() -> Vec<(String, Vec<u8>)> {
    let mut out = vec![];
    macro_rules! all { ($($name:literal),*) => { $(
        let frames = capture(include_bytes!(concat!("../golden/", $name, ".pcap")));
        out.extend(frames.into_iter().enumerate().map(|(i, f)| (format!("{}#{}", $name, i + 1), f)));
    )* } }
    all!(
        "rc_pingpong_mtu256",
        "rc_pingpong_send_ipv6",
        "rc_write_pad",
        "rc_write_odd",
        "rc_write_lat",
        "rc_send_mtu4096",
        "v_send_imm",
        "v_write_imm",
        "v_zero_len",
        "v_psn_wrap",
        "v_rnr_exceeded",
        "v_mix",
        "v_dscp",
        "v_bad_rkey_write"
    );
    out
}

/// What a RoCEv2 frame says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said {
    pub dest_mac: u64,
    pub source_mac: u64,
    /// The tag's 16 bits.
    pub tag: Option<u16>,
    /// Source, destination and flow label of IPv6; then the IPv4 addresses are 0.
    pub ipv6: Option<(u128, u128, u32)>,
    pub tos: u8,
    pub ttl: u8,
    pub source_ip: u32,
    pub dest_ip: u32,
    pub source_port: u16,
    pub opcode: u8,
    pub solicited: bool,
    pub pad: u8,
    pub pkey: u16,
    pub dest_qpn: u32,
    pub ack_req: bool,
    pub psn: u32,
    pub reth: Option<(u64, u32, u32)>,
    pub aeth: Option<(u8, u32)>,
    pub imm: Option<[u8; 4]>,
    /// AtomicETH's swap or add data, or the original value.
    pub value: u64,
    pub compare: u64,
    pub payload: Vec<u8>,
}

/// Bytes of RETH, AETH, immediate (or key to invalidate) and others after the BTH, by RC opcode.
fn extensions(opcode: u8) -> (bool, bool, bool, usize) {
    match opcode {
        0x06 | 0x0a | 0x0c => (true, false, false, 0),
        0x0b => (true, false, true, 0),
        0x03 | 0x05 | 0x09 | 0x16 | 0x17 => (false, false, true, 0),
        0x0d | 0x0f | 0x10 | 0x11 => (false, true, false, 0),
        0x12 => (false, true, false, 8),
        0x13 | 0x14 => (false, false, false, 28),
        _ => (false, false, false, 0),
    }
}

/// Header bytes of an RC packet over IPv4 without a tag.
pub fn header_bytes(opcode: u8) -> usize {
    let (reth, aeth, imm, other) = extensions(opcode);
    54 + 16 * usize::from(reth) + 4 * usize::from(aeth) + 4 * usize::from(imm) + other
}

/// Reads `frame` (no FCS; Ethernet padding allowed).
pub fn read(frame: &[u8]) -> Said {
    let (macs, (ip, udp)) = (frame, offsets(frame));
    let six = udp - ip == 40;
    let outer = |at: usize, n: usize| frame[at..at + n].iter().fold(0u128, |v, b| v << 8 | u128::from(*b));
    let tag = (ip == 18).then(|| outer(14, 2) as u16);
    let ipv6 = six.then(|| (outer(ip + 8, 16), outer(ip + 24, 16), outer(ip, 4) as u32 & 0xf_ffff));
    let (tos, ttl) = match six {
        true => (outer(ip, 2) as u16 >> 4, frame[ip + 7]),
        false => (frame[ip + 1].into(), frame[ip + 8]),
    };
    let addresses = if six { (0, 0) } else { (outer(ip + 12, 4) as u32, outer(ip + 16, 4) as u32) };
    // from the UDP header on, as if IPv4 without a tag stood before it
    let frame = &[&[0; 34], &frame[udp..]].concat()[..];
    let be = |at: usize, n: usize| frame[at..at + n].iter().fold(0u64, |v, b| v << 8 | u64::from(*b));
    let end = 34 + be(38, 2) as usize - 4;
    let opcode = frame[42];
    let (reth, aeth, imm, _) = extensions(opcode);
    let header = header_bytes(opcode);
    let pad = frame[43] >> 4 & 3;
    Said {
        dest_mac: macs[..6].iter().fold(0, |v, b| v << 8 | u64::from(*b)),
        source_mac: macs[6..12].iter().fold(0, |v, b| v << 8 | u64::from(*b)),
        tag,
        ipv6,
        tos: tos as u8,
        ttl,
        source_ip: addresses.0,
        dest_ip: addresses.1,
        source_port: be(34, 2) as u16,
        opcode,
        solicited: frame[43] & 0x80 != 0,
        pad,
        pkey: be(44, 2) as u16,
        dest_qpn: be(47, 3) as u32,
        ack_req: frame[50] & 0x80 != 0,
        psn: be(51, 3) as u32,
        reth: match opcode {
            0x13 | 0x14 => Some((be(54, 8), be(62, 4) as u32, 0)),
            _ => reth.then(|| (be(54, 8), be(62, 4) as u32, be(66, 4) as u32)),
        },
        value: match opcode {
            0x12 => be(58, 8),
            0x13 | 0x14 => be(66, 8),
            _ => 0,
        },
        compare: if matches!(opcode, 0x13 | 0x14) { be(74, 8) } else { 0 },
        aeth: aeth.then(|| (frame[54], be(55, 3) as u32)),
        imm: imm.then(|| frame[header - 4..header].try_into().unwrap()),
        payload: frame[header..end - usize::from(pad)].to_vec(),
    }
}

/// The frame of `said`, IP identification as given, everything else fixed or computed.
pub fn build(said: &Said, identification: u16) -> Vec<u8> {
    let mut f = vec![];
    f.extend(&said.dest_mac.to_be_bytes()[2..]);
    f.extend(&said.source_mac.to_be_bytes()[2..]);
    if let Some(tag) = said.tag {
        f.extend([0x81, 0]);
        f.extend(tag.to_be_bytes());
    }
    if let Some((source, dest, label)) = said.ipv6 {
        f.extend([0x86, 0xdd]);
        f.extend((6 << 28 | u32::from(said.tos) << 20 | label).to_be_bytes());
        f.extend([0, 0, 17, said.ttl]);
        f.extend(source.to_be_bytes());
        f.extend(dest.to_be_bytes());
    } else {
        f.extend([8, 0, 0x45, said.tos, 0, 0]);
        f.extend(identification.to_be_bytes());
        f.extend([0x40, 0, said.ttl, 17, 0, 0]);
        f.extend(said.source_ip.to_be_bytes());
        f.extend(said.dest_ip.to_be_bytes());
    }
    let (ip, udp) = offsets(&f);
    f.extend(said.source_port.to_be_bytes());
    f.extend([0x12, 0xb7, 0, 0, 0, 0]);
    f.extend([said.opcode, u8::from(said.solicited) << 7 | said.pad << 4]);
    f.extend(said.pkey.to_be_bytes());
    f.extend(said.dest_qpn.to_be_bytes());
    f.push(u8::from(said.ack_req) << 7);
    f.extend(&said.psn.to_be_bytes()[1..]);
    if let Some((va, rkey, length)) = said.reth {
        f.extend(va.to_be_bytes());
        f.extend(rkey.to_be_bytes());
        f.extend(length.to_be_bytes());
    }
    if let Some((syndrome, msn)) = said.aeth {
        f.push(syndrome);
        f.extend(&msn.to_be_bytes()[1..]);
    }
    if let Some(imm) = said.imm {
        f.extend(imm);
    }
    f.extend(&said.payload);
    f.resize(f.len() + usize::from(said.pad) + 4, 0);
    let inner = (f.len() - udp) as u16;
    let (at, total) = if said.ipv6.is_some() { (ip + 4, inner) } else { (ip + 2, inner + 20) };
    f[at..at + 2].copy_from_slice(&total.to_be_bytes());
    f[udp + 4..udp + 6].copy_from_slice(&inner.to_be_bytes());
    fix_ip_checksum(&mut f);
    fix_icrc(&mut f);
    f
}
