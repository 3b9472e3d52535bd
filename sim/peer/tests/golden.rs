//! Captures of kernel peers: our responder answers their requests as theirs did, our requester sends the same bytes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use contract::opcode::{Kind, Position};
use contract::verbs::access;
use contract::wire::psn_distance;
use contract::{Opcode, PathMtu, Reject, Syndrome};
use peer::{Address, Endpoint, Landing, Packet, QpParams, RecvWr, Region, SendOp, SendWr, Tuning};

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

struct Frame {
    bytes: Vec<u8>,
    packet: Packet,
}

impl Frame {
    fn from(&self) -> Ipv4Addr {
        self.packet.ip.source.into()
    }

    fn opcode(&self) -> Opcode {
        self.packet.opcode().expect("captures hold known opcodes")
    }

    fn is_request(&self) -> bool {
        matches!(self.opcode().row().kind, Kind::Send | Kind::Write)
    }

    fn answer(&self) -> Option<(u32, u8, u32)> {
        let aeth = self.packet.aeth.filter(|_| self.opcode() == Opcode::RcAcknowledge)?;
        Some((self.packet.bth.psn, aeth.syndrome, aeth.msn))
    }
}

fn capture(name: &str) -> Vec<Frame> {
    let path = format!("{}/tests/golden/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("read {path}: {error}"));
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1], "{name}: little-endian microseconds");
    let mut at = 24;
    let mut frames = Vec::new();
    while at < file.len() {
        let length = u32::from_le_bytes(file[at + 8..at + 12].try_into().expect("four bytes")) as usize;
        let bytes = file[at + 16..at + 16 + length].to_vec();
        let packet = Packet::parse(&bytes).unwrap_or_else(|reject| panic!("{name}: {reject:?}"));
        frames.push(Frame { bytes, packet });
        at += 16 + length;
    }
    frames
}

/// QP numbers of both ends, by side; in some captures one end never speaks: it then has the other's number.
fn qpn(frames: &[Frame], side: Ipv4Addr) -> u32 {
    let to_side = frames.iter().find(|frame| frame.from() != side);
    to_side.or(frames.first()).expect("a frame").packet.bth.dest_qp
}

fn mac(side: Ipv4Addr) -> u64 {
    if side == A { 0x0200_0000_000a } else { 0x0200_0000_000b }
}

fn other(side: Ipv4Addr) -> Ipv4Addr {
    if side == A { B } else { A }
}

fn mtu(frames: &[Frame]) -> PathMtu {
    let first =
        frames.iter().find(|frame| frame.is_request() && frame.opcode().row().position == Position::First);
    let bytes = first.map_or(1024, |frame| frame.packet.payload.len() as u32);
    *PathMtu::ALL.iter().find(|mtu| mtu.bytes() == bytes).expect("a path MTU")
}

/// An endpoint that stands where `side` stood, one QP connected as in the capture.
fn stand_in(frames: &[Frame], side: Ipv4Addr) -> Endpoint {
    let first_psn = |from| {
        frames.iter().find(|frame| frame.from() == from && frame.is_request()).map_or(0, |f| f.packet.bth.psn)
    };
    let mut params =
        QpParams::to(Address { mac: mac(other(side)), ip: other(side), qpn: qpn(frames, other(side)) });
    params.path_mtu = mtu(frames);
    params.sq_psn = first_psn(side);
    params.rq_psn = first_psn(other(side));
    params.tos = frames[0].packet.ip.dscp << 2;
    params.tuning = Tuning { nak_behind_rnr: true, window: 0, ..Tuning::default() };
    let rnr = frames.iter().filter_map(|f| f.packet.aeth).find(|aeth| aeth.syndrome >> 5 == 1);
    params.min_rnr_timer = rnr.map_or(12, |aeth| aeth.syndrome & 0x1f);
    let mut endpoint = Endpoint::new(mac(side), side);
    let number = qpn(frames, side);
    endpoint.create_qp_numbered(number, 1).expect("create");
    endpoint.connect(number, params).expect("connect");
    endpoint
}

/// Registers what the WRITEs to `side` name, less `short` bytes.
fn register(endpoint: &mut Endpoint, frames: &[Frame], side: Ipv4Addr, short: usize) {
    let mut ranges: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for reth in frames.iter().filter(|f| f.from() != side && f.is_request()).filter_map(|f| f.packet.reth) {
        let end = reth.va + u64::from(reth.dma_length);
        let range = ranges.entry(reth.rkey).or_insert((reth.va, end));
        *range = (range.0.min(reth.va), range.1.max(end));
    }
    for (key, (va, end)) in ranges {
        let bytes = vec![0; (end - va) as usize - short];
        let region = Region { pd: 1, va, access: access::REMOTE_WRITE, bytes };
        endpoint.register_as(key, region).expect("register");
    }
}

/// The frame with everything zeroed that may differ between peers.
fn normal(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    let opcode = Opcode::from_code(bytes[42]).expect("a known opcode");
    bytes[18..20].fill(0); // IPv4 identification
    bytes[24..26].fill(0); // IPv4 checksum
    bytes[34..36].fill(0); // UDP source port
    bytes[43] &= !0x40; // MigReq
    if !opcode.row().position.closes() {
        bytes[50] &= !0x80; // AckReq
    }
    let icrc = bytes.len() - 4;
    bytes.truncate(icrc);
    bytes
}

/// What a replay gave and what the capture holds.
struct Replay {
    endpoint: Endpoint,
    ours: Vec<(u32, u8, u32)>,
    theirs: Vec<(u32, u8, u32)>,
}

/// Feeds the requests to `side` into a stand-in; compares answers byte for byte where both gave the same number.
/// `lost`: frames (from 1) recorded but never delivered. `ready`: the frame before which the receives are posted.
fn replay(name: &str, side: Ipv4Addr, lost: &[usize], ready: usize, receive: usize, short: usize) -> Replay {
    let frames = capture(name);
    let mut endpoint = stand_in(&frames, side);
    let number = qpn(&frames, side);
    register(&mut endpoint, &frames, side, short);
    let mut answers = Vec::new();
    for (i, frame) in frames.iter().enumerate() {
        if i + 1 == ready {
            for wr_id in 0..100 {
                let landing = Landing::Owned(receive);
                endpoint.post_recv(number, RecvWr { wr_id, landing }).expect("post receive");
            }
        }
        if frame.from() == side || !frame.is_request() || lost.contains(&(i + 1)) {
            continue;
        }
        endpoint.receive(i as u64, &frame.bytes);
        answers.extend(std::iter::from_fn(|| endpoint.poll_transmit(i as u64)));
    }
    let captured: Vec<&Frame> =
        frames.iter().filter(|frame| frame.from() == side && frame.answer().is_some()).collect();
    let ours: Vec<Frame> = answers
        .into_iter()
        .map(|bytes| Frame { packet: Packet::parse(&bytes).expect("well-formed"), bytes })
        .collect();
    for (ours, theirs) in ours.iter().zip(&captured) {
        if ours.answer() == theirs.answer() {
            assert_eq!(normal(&ours.bytes), normal(&theirs.bytes), "{name}");
        }
    }
    Replay {
        endpoint,
        ours: ours.iter().filter_map(Frame::answer).collect(),
        theirs: captured.iter().filter_map(|frame| frame.answer()).collect(),
    }
}

#[test]
fn our_responder_answers_each_capture_as_the_kernel_did() {
    for (name, side, lost, ready, receive, short, answers) in [
        ("rc_pingpong_send", A, &[][..], 1, 4096, 0, 10),
        ("rc_pingpong_send", B, &[], 1, 4096, 0, 10),
        ("rc_pingpong_mtu256", A, &[], 1, 4096, 0, 5),
        ("rc_send_bw", A, &[], 1, 5000, 0, 5),
        ("rc_write_bw", A, &[], 1, 0, 0, 5),
        ("rc_write_dropmid", A, &[3], 1, 0, 0, 6),
        ("rc_write_pad", A, &[], 1, 0, 0, 3),
        ("v_psn_wrap", A, &[], 1, 0, 0, 3),
        ("v_rnr_recover", A, &[], 36, 4000, 0, 15),
        ("v_rnr_exceeded", A, &[], 0, 0, 0, 4),
        ("v_zero_len", A, &[], 1, 0, 0, 2),
        ("v_send_imm", A, &[], 1, 4000, 0, 2),
        ("v_write_imm", A, &[], 1, 4000, 0, 2),
        ("v_write_oob", A, &[], 1, 0, 1, 1),
    ] {
        let replay = replay(name, side, lost, ready, receive, short);
        assert!(replay.ours.len() >= answers, "{name}: only {} answers", replay.ours.len());
        assert_eq!(replay.ours, replay.theirs, "{name}");
    }
}

#[test]
fn an_unknown_key_is_refused_as_the_kernel_refused_it() {
    let frames = capture("v_bad_rkey_write");
    let number = qpn(&frames, A);
    let mut endpoint = stand_in(&frames, A);
    assert_eq!(endpoint.receive(0, &frames[0].bytes), Some(Reject::RkeyUnknown));
    let nak = Packet::parse(&endpoint.poll_transmit(0).expect("a NAK")).expect("well-formed");
    assert_eq!(frames[3].answer(), Some((nak.bth.psn, Syndrome::NAK_REMOTE_ACCESS, 0)));
    assert_eq!(nak.aeth, frames[3].packet.aeth);
    for frame in &frames[1..3] {
        assert_eq!(endpoint.receive(1, &frame.bytes), Some(Reject::WrongQpState));
        assert_eq!(endpoint.poll_transmit(1), None);
    }
    assert_eq!(endpoint.state(number), Some(contract::QpState::Err));
}

#[test]
fn a_send_that_is_too_long_is_refused_at_the_packet_where_the_kernel_refused_it() {
    let mut replay = replay("v_send_too_long", A, &[], 1, 100, 0);
    // The kernel of that day said 0x63 where the rule says 0x61; PSN and MSN agree.
    assert_eq!(replay.theirs, [(1_192_961, Syndrome::NAK_REMOTE_OPERATION, 0)]);
    assert_eq!(replay.ours, [(1_192_961, Syndrome::NAK_INVALID_REQUEST, 0)]);
    assert_eq!(replay.endpoint.poll_cq().expect("the receive").status, contract::WcStatus::LocLenErr);
}

/// The messages that `side` sent, put together from the first transmission of each PSN.
fn messages(frames: &[Frame], side: Ipv4Addr) -> Vec<SendWr> {
    let sent: Vec<&Frame> =
        frames.iter().filter(|frame| frame.from() == side && frame.is_request()).collect();
    let start = sent.first().expect("a request").packet.bth.psn;
    let mut by_psn = BTreeMap::new();
    for frame in sent {
        by_psn.entry(psn_distance(frame.packet.bth.psn, start)).or_insert(frame);
    }
    let mut all: Vec<SendWr> = Vec::new();
    for frame in by_psn.into_values() {
        let row = frame.opcode().row();
        let packet = &frame.packet;
        if row.position.opens() {
            let op = match packet.reth {
                Some(reth) => SendOp::Write { va: reth.va, rkey: reth.rkey, imm: None },
                None => SendOp::Send { imm: None },
            };
            all.push(SendWr::new(all.len() as u64, op, Vec::new()));
        }
        let wr = all.last_mut().expect("a capture starts with a first or only packet");
        wr.data.extend(&packet.payload);
        wr.solicited |= packet.bth.solicited;
        if let (Some(immdt), SendOp::Send { imm } | SendOp::Write { imm, .. }) = (packet.immdt, &mut wr.op) {
            *imm = Some(immdt.immediate);
        }
    }
    all
}

#[test]
fn our_requester_sends_the_same_bytes_for_the_same_work() {
    for (name, side, least) in [
        ("rc_pingpong_send", B, 30),
        ("rc_pingpong_send", A, 30),
        ("rc_pingpong_mtu256", B, 30),
        ("rc_send_bw", B, 25),
        ("rc_write_bw", B, 25),
        ("rc_write_dropmid", B, 33),
        ("rc_write_pad", B, 6),
        ("v_psn_wrap", B, 9),
        ("v_rnr_recover", B, 24),
        ("v_bad_rkey_write", B, 3),
        ("v_send_too_long", B, 3),
        ("v_zero_len", B, 2),
        ("v_send_imm", B, 4),
        ("v_write_imm", B, 4),
        ("v_retry_exceeded", B, 4),
    ] {
        let frames = capture(name);
        let mut endpoint = stand_in(&frames, side);
        let number = qpn(&frames, side);
        for wr in messages(&frames, side) {
            endpoint.post_send(number, wr).expect("post");
        }
        let ours: BTreeMap<u32, Vec<u8>> = std::iter::from_fn(|| endpoint.poll_transmit(0))
            .map(|bytes| (Packet::parse(&bytes).expect("well-formed").bth.psn, bytes))
            .collect();
        let mut compared = 0;
        for frame in frames.iter().filter(|frame| frame.from() == side && frame.is_request()) {
            let psn = frame.packet.bth.psn;
            let mine = ours.get(&psn).unwrap_or_else(|| panic!("{name}: PSN {psn} was not sent"));
            assert_eq!(normal(mine), normal(&frame.bytes), "{name}: PSN {psn}");
            compared += 1;
        }
        assert!(compared >= least, "{name}: compared only {compared}");
    }
}

#[test]
fn a_lost_middle_packet_is_sent_again_from_where_the_kernel_resumed() {
    let frames = capture("rc_write_dropmid");
    let mut endpoint = stand_in(&frames, B);
    let number = qpn(&frames, B);
    for wr in messages(&frames, B) {
        endpoint.post_send(number, wr).expect("post");
    }
    let first: Vec<_> = std::iter::from_fn(|| endpoint.poll_transmit(0)).collect();
    endpoint.receive(1, &frames[14].bytes);
    let resumed = endpoint.poll_transmit(1).expect("a retransmission");
    assert_eq!(normal(&resumed), normal(&frames[16].bytes));
    assert_eq!(first.len(), 20);
    for frame in frames.iter().filter(|frame| frame.from() == A).skip(1) {
        while endpoint.poll_transmit(2).is_some() {}
        endpoint.receive(2, &frame.bytes);
    }
    let done: Vec<_> =
        std::iter::from_fn(|| endpoint.poll_cq()).map(|c| (c.wr_id, c.status.code())).collect();
    assert_eq!(done, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]);
}
