//! The captures of kernel peers, frame by frame, and what was done to get them: what the tests that replay them into the
//! endpoint and into the card share. Where they come from: `README.md`.
//!
//! In: the name of a [`Case`]. Out: its RC frames by connection, who stood at the ends, the work requests behind them.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use contract::opcode::{Kind, Position};
use contract::verbs::access;
use contract::wire::psn_distance;
use contract::{Opcode, PathMtu, Transport, WcStatus};
use peer::{Address, Landing, Packet, SendOp, SendWr};

/// The folder of the captures, from either package.
pub fn folder() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.map(|root| root.join("sim/peer/tests/golden")).find(|path| path.is_dir()).expect("the captures")
}

/// Everything permitted.
pub const ALL: u8 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// A capture and what is not in it.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// Frames, from 1, that were recorded but never delivered.
    pub lost: &'static [usize],
    /// Every so manieth frame was delivered and recorded twice; 0 = none.
    pub doubled: usize,
    /// The frame, from 1, before which the server posted its receives; 0 = never.
    pub ready: usize,
    /// Bytes of each receive.
    pub receive: usize,
    /// Rights of the memory that requests name.
    pub rights: u8,
    /// How much of it is missing at its end.
    pub short: usize,
    /// The key is one that the server does not have.
    pub unknown_key: bool,
    /// RNR retries and retries of the client.
    pub retries: (u8, u8),
    /// How the last request ended, as the client's program printed it.
    pub end: WcStatus,
}

const fn case(name: &'static str) -> Case {
    Case {
        name,
        lost: &[],
        doubled: 0,
        ready: 1,
        receive: 1 << 14,
        rights: ALL,
        short: 0,
        unknown_key: false,
        retries: (7, 7),
        end: WcStatus::Success,
    }
}

pub const REFUSED: WcStatus = WcStatus::RemAccessErr;

pub const CASES: &[Case] = &[
    case("cm_rping"),
    case("cm_rstream"),
    case("cm_ucmatose"),
    case("cm_write_bw"),
    case("rc_atomic_cs"),
    Case { lost: &[2], ..case("rc_atomic_dropack") },
    Case { doubled: 3, ..case("rc_atomic_dup") },
    case("rc_atomic_fa"),
    case("rc_pingpong_mtu256"),
    case("rc_pingpong_rnr"),
    case("rc_pingpong_send"),
    case("rc_pingpong_send_ipv6"),
    case("rc_read_bw"),
    Case { lost: &[1], ..case("rc_read_dropreq") },
    Case { lost: &[8], ..case("rc_read_dropresp") },
    case("rc_read_mtu4096"),
    case("rc_send_bw"),
    case("rc_send_mtu4096"),
    case("rc_write_2qp"),
    case("rc_write_bw"),
    Case { lost: &[1], ..case("rc_write_dropfirst") },
    Case { lost: &[4, 5], ..case("rc_write_droplast") },
    Case { lost: &[3], ..case("rc_write_dropmid") },
    Case { doubled: 5, ..case("rc_write_dup") },
    case("rc_write_imm_bw"),
    case("rc_write_lat"),
    case("rc_write_odd"),
    case("rc_write_pad"),
    case("srq_pingpong_send"),
    Case { rights: access::REMOTE_READ, end: REFUSED, ..case("v_atomic_noperm") },
    Case { unknown_key: true, end: REFUSED, ..case("v_bad_rkey_read") },
    Case { unknown_key: true, end: REFUSED, ..case("v_bad_rkey_write") },
    case("v_dscp"),
    case("v_mix"),
    Case { lost: &[6], ..case("v_mix_dropread") },
    Case { doubled: 1, ..case("v_mix_dupall") },
    case("v_psn_wrap"),
    // The server had destroyed its QP.
    Case { lost: &[1, 2, 3, 4], retries: (7, 3), end: WcStatus::RetryExcErr, ..case("v_retry_exceeded") },
    Case { ready: 0, retries: (1, 3), end: WcStatus::RnrRetryExcErr, ..case("v_rnr_exceeded") },
    Case { ready: 36, ..case("v_rnr_recover") },
    case("v_send_imm"),
    Case { receive: 64, end: WcStatus::RemOpErr, ..case("v_send_too_long") },
    case("v_write_imm"),
    Case { rights: access::REMOTE_READ, end: REFUSED, ..case("v_write_noperm") },
    Case { short: 500, end: REFUSED, ..case("v_write_oob") },
    case("v_zero_len"),
];

#[derive(Clone)]
pub struct Frame {
    /// Place in the capture, from 1.
    pub number: usize,
    /// The second one of a frame that was delivered twice.
    pub copy: bool,
    pub lost: bool,
    pub bytes: Vec<u8>,
    pub packet: Packet,
}

impl Frame {
    pub fn from(&self) -> IpAddr {
        self.packet.source()
    }

    pub fn opcode(&self) -> Opcode {
        self.packet.opcode().expect("captures hold known opcodes")
    }

    pub fn kind(&self) -> Kind {
        self.opcode().row().kind
    }

    pub fn is_request(&self) -> bool {
        self.kind() != Kind::Response
    }

    pub fn is_read(&self) -> bool {
        self.kind() == Kind::Read
    }

    pub fn psn(&self) -> u32 {
        self.packet.bth.psn
    }
}

/// The RC frames of a capture, by connection: the kernel gives each a UDP source port of its own.
pub fn connections(case: &Case) -> Vec<Vec<Frame>> {
    let path = folder().join(case.name).with_extension("pcap");
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1], "little-endian microseconds");
    let mut by_port: BTreeMap<u16, Vec<Frame>> = BTreeMap::new();
    let (mut at, mut number, mut originals) = (24, 0, 0);
    let mut before: Option<Vec<u8>> = None;
    while at < file.len() {
        let length = u32::from_le_bytes(file[at + 8..at + 12].try_into().expect("four bytes")) as usize;
        let bytes = file[at + 16..at + 16 + length].to_vec();
        at += 16 + length;
        number += 1;
        let copy = before.is_some();
        match before.take() {
            Some(first) => assert_eq!(bytes, first, "frame {number} is a copy"),
            None => {
                originals += 1;
                before = (case.doubled > 0 && originals % case.doubled == 0).then(|| bytes.clone());
            }
        }
        let packet = Packet::parse(&bytes).unwrap_or_else(|reject| panic!("frame {number}: {reject:?}"));
        if packet.opcode().is_some_and(|opcode| opcode.row().transport == Transport::Rc) {
            let lost = case.lost.contains(&number);
            by_port.entry(packet.udp.source_port).or_default().push(Frame {
                number,
                copy,
                lost,
                bytes,
                packet,
            });
        }
    }
    by_port.into_values().collect()
}

/// Both ends of a connection.
pub fn ends(frames: &[Frame]) -> [IpAddr; 2] {
    [frames[0].packet.source(), frames[0].packet.destination()]
}

/// The other end; its QP number is unknown if it was never spoken to, then it has the number of this one.
pub fn far(frames: &[Frame], side: IpAddr) -> Address {
    let to_far = frames.iter().find(|frame| frame.from() == side);
    match to_far {
        Some(frame) => Address {
            mac: frame.packet.ethernet.destination,
            ip: frame.packet.destination(),
            qpn: frame.packet.bth.dest_qp,
        },
        None => Address {
            mac: frames[0].packet.ethernet.source,
            ip: frames[0].packet.source(),
            qpn: frames[0].packet.bth.dest_qp,
        },
    }
}

pub fn near(frames: &[Frame], side: IpAddr) -> Address {
    let [one, two] = ends(frames);
    far(frames, if side == one { two } else { one })
}

pub fn first_psn(frames: &[Frame], from: IpAddr) -> u32 {
    frames.iter().find(|frame| frame.from() == from && frame.is_request()).map_or(0, Frame::psn)
}

pub fn mtu(frames: &[Frame]) -> PathMtu {
    let first = frames.iter().find(|frame| frame.opcode().row().position == Position::First);
    let bytes = first.map_or(1024, |frame| frame.packet.payload.len() as u32);
    *PathMtu::ALL.iter().find(|mtu| mtu.bytes() == bytes).expect("a path MTU")
}

/// The timer code of the RNR NAKs.
pub fn rnr_timer(frames: &[Frame]) -> u8 {
    let rnr = frames.iter().filter_map(|f| f.packet.aeth).find(|aeth| aeth.syndrome >> 5 == 1);
    rnr.map_or(12, |aeth| aeth.syndrome & 0x1f)
}

/// The frame with everything zeroed that may differ between peers.
pub fn normal(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    let udp = if bytes[12..14] == [0x08, 0x00] { 34 } else { 54 };
    if udp == 34 {
        bytes[18..20].fill(0); // IPv4 identification
        bytes[24..26].fill(0); // IPv4 checksum
    }
    let opcode = Opcode::from_code(bytes[udp + 8]).expect("a known opcode");
    bytes[udp + 9] &= !0x40; // MigReq
    if !opcode.row().position.closes() {
        bytes[udp + 16] &= !0x80; // AckReq
    }
    let icrc = bytes.len() - 4;
    bytes.truncate(icrc);
    bytes
}

/// The work requests that `side` posted, put together from the first transmission of each PSN.
pub fn work(case: &Case, frames: &[Frame], side: IpAddr) -> Vec<SendWr> {
    let sent: Vec<&Frame> =
        frames.iter().filter(|frame| frame.from() == side && frame.is_request()).collect();
    let Some(start) = sent.first().map(|frame| frame.psn()) else { return Vec::new() };
    let mut by_psn = BTreeMap::new();
    for frame in sent {
        by_psn.entry(psn_distance(frame.psn(), start)).or_insert(frame);
    }
    let mtu = mtu(frames).bytes();
    let mut all: Vec<SendWr> = Vec::new();
    let mut lengths = Vec::new();
    // A READ takes the PSNs of its response: a request among them is the READ asked for again from its middle.
    let mut taken = 0;
    for (psn, frame) in by_psn {
        if psn < taken {
            continue;
        }
        let packet = &frame.packet;
        if frame.opcode().row().position.opens() {
            let op = match (frame.kind(), packet.reth, packet.atomic) {
                (Kind::Read, Some(reth), _) => {
                    taken = psn + reth.dma_length.div_ceil(mtu).max(1) as i32;
                    let landing = Landing::Owned(reth.dma_length as usize);
                    SendOp::Read { va: reth.va, rkey: reth.rkey, landing }
                }
                (Kind::Write, Some(reth), _) => SendOp::Write { va: reth.va, rkey: reth.rkey, imm: None },
                (Kind::Atomic, _, Some(a)) if frame.opcode() == Opcode::RcFetchAdd => {
                    let landing = Landing::Owned(8);
                    SendOp::FetchAdd { va: a.va, rkey: a.rkey, add: a.swap_or_add, landing }
                }
                (Kind::Atomic, _, Some(a)) => SendOp::CompareSwap {
                    va: a.va,
                    rkey: a.rkey,
                    compare: a.compare,
                    swap: a.swap_or_add,
                    landing: Landing::Owned(8),
                },
                _ => SendOp::Send { imm: None },
            };
            let fence = case.name.starts_with("v_") && frame.kind() == Kind::Send;
            all.push(SendWr { fence, ..SendWr::new(all.len() as u64, op, Vec::new()) });
            lengths
                .push(packet.reth.filter(|_| frame.kind() == Kind::Write).map_or(0, |reth| reth.dma_length));
        }
        let wr = all.last_mut().expect("a capture starts with a first or only packet");
        wr.data.extend(&packet.payload);
        wr.solicited |= packet.bth.solicited;
        if let (Some(immdt), SendOp::Send { imm } | SendOp::Write { imm, .. }) = (packet.immdt, &mut wr.op) {
            *imm = Some(immdt.immediate);
        }
    }
    // Of a WRITE that was refused early the end was never sent.
    for (wr, length) in all.iter_mut().zip(lengths) {
        wr.data.resize(wr.data.len().max(length as usize), 0);
    }
    all
}
