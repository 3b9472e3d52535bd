//! Captures of kernel peers: our responder answers their requests as theirs did, our requester sends the same bytes.
//!
//! Every RC frame of every capture is compared, as either side, byte for byte up to what may differ between peers: the
//! IPv4 identification and checksum, MigReq, AckReq of packets that are not the last of a message, and the ICRC, which
//! covers them. What the captures are: `golden/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use contract::opcode::{Kind, Position};
use contract::verbs::access;
use contract::wire::{psn_add, psn_distance};
use contract::{Opcode, PathMtu, Syndrome, Transport, WcStatus};
use peer::{
    Address, Completion, Endpoint, Landing, Packet, QpParams, RecvWr, Region, SendOp, SendWr, Tuning,
};

/// Everything permitted.
const ALL: u8 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// A capture and what is not in it.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Frames, from 1, that were recorded but never delivered.
    lost: &'static [usize],
    /// Every so manieth frame was delivered and recorded twice; 0 = none.
    doubled: usize,
    /// The frame, from 1, before which the server posted its receives; 0 = never.
    ready: usize,
    /// Bytes of each receive.
    receive: usize,
    /// Rights of the memory that requests name.
    rights: u8,
    /// How much of it is missing at its end.
    short: usize,
    /// The key is one that the server does not have.
    unknown_key: bool,
    /// RNR retries and retries of the client.
    retries: (u8, u8),
    /// How the last request ended, as the client's program printed it.
    end: WcStatus,
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

const REFUSED: WcStatus = WcStatus::RemAccessErr;

const CASES: &[Case] = &[
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
struct Frame {
    /// Place in the capture, from 1.
    number: usize,
    /// The second one of a frame that was delivered twice.
    copy: bool,
    lost: bool,
    bytes: Vec<u8>,
    packet: Packet,
}

impl Frame {
    fn from(&self) -> IpAddr {
        self.packet.source()
    }

    fn opcode(&self) -> Opcode {
        self.packet.opcode().expect("captures hold known opcodes")
    }

    fn kind(&self) -> Kind {
        self.opcode().row().kind
    }

    fn is_request(&self) -> bool {
        self.kind() != Kind::Response
    }

    fn psn(&self) -> u32 {
        self.packet.bth.psn
    }
}

/// The RC frames of a capture, by connection: the kernel gives each a UDP source port of its own.
fn connections(case: &Case) -> Vec<Vec<Frame>> {
    let path = format!("{}/tests/golden/{}.pcap", env!("CARGO_MANIFEST_DIR"), case.name);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("read {path}: {error}"));
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
fn ends(frames: &[Frame]) -> [IpAddr; 2] {
    [frames[0].packet.source(), frames[0].packet.destination()]
}

/// The other end; its QP number is unknown if it was never spoken to, then it has the number of this one.
fn far(frames: &[Frame], side: IpAddr) -> Address {
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

fn near(frames: &[Frame], side: IpAddr) -> Address {
    let [one, two] = ends(frames);
    far(frames, if side == one { two } else { one })
}

fn first_psn(frames: &[Frame], from: IpAddr) -> u32 {
    frames.iter().find(|frame| frame.from() == from && frame.is_request()).map_or(0, Frame::psn)
}

fn mtu(frames: &[Frame]) -> PathMtu {
    let first = frames.iter().find(|frame| frame.opcode().row().position == Position::First);
    let bytes = first.map_or(1024, |frame| frame.packet.payload.len() as u32);
    *PathMtu::ALL.iter().find(|mtu| mtu.bytes() == bytes).expect("a path MTU")
}

/// An endpoint that stands where `side` stood, one QP connected as in the capture.
fn stand_in(case: &Case, frames: &[Frame], side: IpAddr) -> (Endpoint, u32) {
    let own = near(frames, side);
    let mut params = QpParams::to(far(frames, side));
    params.path_mtu = mtu(frames);
    params.sq_psn = first_psn(frames, side);
    params.rq_psn = first_psn(frames, params.remote.ip);
    params.access = ALL;
    params.tos = frames[0].packet.ip.dscp << 2;
    (params.rnr_retry, params.retry_cnt) = case.retries;
    params.tuning = Tuning {
        nak_behind_rnr: true,
        replays_continue: true,
        seven_retries_is_forever: true,
        window: 0,
        ..Tuning::default()
    };
    if case.name.starts_with("cm_") {
        // The connection manager chose a flow label; elsewhere the port follows from both QP numbers.
        params.udp_source_port = Some(frames[0].packet.udp.source_port);
    }
    let rnr = frames.iter().filter_map(|f| f.packet.aeth).find(|aeth| aeth.syndrome >> 5 == 1);
    params.min_rnr_timer = rnr.map_or(12, |aeth| aeth.syndrome & 0x1f);
    let mut endpoint = Endpoint::new(own.mac, [10, 0, 0, 99].into());
    endpoint.add_ip(own.ip);
    params.local_ip = Some(own.ip);
    endpoint.create_qp_numbered(own.qpn, 1).expect("create");
    endpoint.connect(own.qpn, params).expect("connect");
    (endpoint, own.qpn)
}

/// The frame with everything zeroed that may differ between peers.
fn normal(frame: &[u8]) -> Vec<u8> {
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

fn tell(frame: &[u8]) -> String {
    Packet::parse(frame).map_or_else(|reject| format!("{reject:?}"), |packet| packet.to_string())
}

/// The first response of a side for each PSN.
fn responses(frames: &[Frame], side: IpAddr) -> BTreeMap<u32, &Packet> {
    let mut by_psn = BTreeMap::new();
    for frame in frames.iter().filter(|f| f.from() == side && !f.is_request()) {
        if frame.opcode() != Opcode::RcAcknowledge {
            by_psn.entry(frame.psn()).or_insert(&frame.packet);
        }
    }
    by_psn
}

/// The memory behind one side: what the captured requests name. Bytes that no request has written hold what the
/// captured answers say, so that our answers can be compared to the byte.
struct Memory<'a> {
    answers: BTreeMap<u32, &'a Packet>,
    mtu: u64,
    written: BTreeSet<(u32, u64)>,
}

impl<'a> Memory<'a> {
    fn register(case: &Case, frames: &'a [Frame], side: IpAddr, endpoint: &mut Endpoint) -> Self {
        let mut ranges: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for frame in frames.iter().filter(|f| f.from() != side && f.is_request()) {
            let reth = frame.packet.reth.filter(|reth| reth.dma_length > 0);
            let named = reth.map(|r| (r.rkey, r.va, u64::from(r.dma_length)));
            for (key, va, length) in named.into_iter().chain(frame.packet.atomic.map(|a| (a.rkey, a.va, 8))) {
                let range = ranges.entry(key).or_insert((va, va + length));
                *range = (range.0.min(va), range.1.max(va + length));
            }
        }
        for (key, (va, end)) in ranges.into_iter().filter(|_| !case.unknown_key) {
            let bytes = vec![0; (end - va) as usize - case.short];
            let region = Region { pd: 1, va, access: case.rights, bytes };
            endpoint.register_as(key, region).expect("register");
        }
        let mtu = mtu(frames).bytes().into();
        Self { answers: responses(frames, side), mtu, written: BTreeSet::new() }
    }

    /// Before a request is delivered.
    fn prepare(&mut self, endpoint: &mut Endpoint, frame: &Frame) {
        let mut fill = |key: u32, va: u64, bytes: &[u8], written: &BTreeSet<(u32, u64)>| {
            let Some(region) = endpoint.region_mut(key) else { return };
            for (address, byte) in
                (va..).zip(bytes).filter(|(address, _)| !written.contains(&(key, *address)))
            {
                region.bytes[(address - region.va) as usize] = *byte;
            }
        };
        match (frame.kind(), frame.packet.reth, frame.packet.atomic) {
            (Kind::Read, Some(reth), _) => {
                for number in 0..u64::from(reth.dma_length).div_ceil(self.mtu) {
                    if let Some(answer) = self.answers.get(&psn_add(frame.psn(), number as u32)) {
                        fill(reth.rkey, reth.va + number * self.mtu, &answer.payload, &self.written);
                    }
                }
            }
            (Kind::Write, Some(reth), _) => {
                self.written.extend((0..u64::from(reth.dma_length)).map(|i| (reth.rkey, reth.va + i)));
            }
            (Kind::Atomic, _, Some(atomic)) => {
                if let Some(ack) = self.answers.get(&frame.psn()).and_then(|answer| answer.atomic_ack) {
                    fill(atomic.rkey, atomic.va, &ack.original.to_le_bytes(), &self.written);
                    self.written.extend((0..8).map(|i| (atomic.rkey, atomic.va + i)));
                }
            }
            _ => {}
        }
    }
}

/// Feeds the requests to `side` into a stand-in; gives its answers and those of the capture.
fn answers(case: &Case, frames: &[Frame], side: IpAddr) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut endpoint, qpn) = stand_in(case, frames, side);
    let mut memory = Memory::register(case, frames, side, &mut endpoint);
    let mut ours = Vec::new();
    let mut ready = false;
    for frame in frames {
        if !ready && case.ready > 0 && frame.number >= case.ready {
            ready = true;
            for wr_id in 0..100 {
                let landing = Landing::Owned(case.receive);
                endpoint.post_recv(qpn, RecvWr { wr_id, landing }).expect("post receive");
            }
        }
        if frame.from() == side || !frame.is_request() || frame.lost {
            continue;
        }
        memory.prepare(&mut endpoint, frame);
        endpoint.receive(frame.number as u64, &frame.bytes);
        ours.extend(std::iter::from_fn(|| endpoint.poll_transmit(frame.number as u64)));
    }
    let theirs = frames.iter().filter(|f| f.from() == side && !f.is_request() && !f.copy);
    (ours, theirs.map(|frame| frame.bytes.clone()).collect())
}

#[test]
fn our_responder_answers_each_capture_as_the_kernel_did() {
    let mut compared = 0;
    for case in CASES {
        for frames in connections(case) {
            for side in ends(&frames) {
                let (mut ours, theirs) = answers(case, &frames, side);
                if case.name == "v_send_too_long" && !theirs.is_empty() {
                    // The kernel of that day said 0x63 where the rule says 0x61; PSN and MSN agree.
                    assert_eq!(ours[0][54], Syndrome::NAK_INVALID_REQUEST);
                    assert_eq!(theirs[0][54], Syndrome::NAK_REMOTE_OPERATION);
                    ours[0][54] = theirs[0][54];
                }
                for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                    let (told, wanted) = (tell(ours), tell(theirs));
                    assert!(
                        normal(ours) == normal(theirs),
                        "{}, answer {number} of {side}: {told}, the kernel: {wanted}",
                        case.name
                    );
                }
                assert_eq!(ours.len(), theirs.len(), "{}: answers of {side}", case.name);
                compared += ours.len();
            }
        }
    }
    assert_eq!(compared, ANSWERS);
}

/// The work requests that `side` posted, put together from the first transmission of each PSN.
fn work(case: &Case, frames: &[Frame], side: IpAddr) -> Vec<SendWr> {
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

/// A stand-in as requester and everything it has sent.
struct Requester {
    endpoint: Endpoint,
    now: u64,
    sent: BTreeSet<Vec<u8>>,
}

impl Requester {
    fn poll(&mut self) -> usize {
        let frames: Vec<_> = std::iter::from_fn(|| self.endpoint.poll_transmit(self.now)).collect();
        self.sent.extend(frames.iter().map(|frame| normal(frame)));
        frames.len()
    }

    /// Lets the next timer fire.
    fn time_out(&mut self) -> bool {
        let Some(due) = self.endpoint.next_timeout() else { return false };
        self.now = self.now.max(due);
        self.endpoint.handle_timeout(self.now);
        self.poll();
        true
    }
}

#[test]
fn our_requester_sends_the_same_bytes_for_the_same_work_and_ends_as_theirs_did() {
    let mut compared = 0;
    for case in CASES {
        for frames in connections(case) {
            for side in ends(&frames) {
                let (endpoint, qpn) = stand_in(case, &frames, side);
                let mut ours = Requester { endpoint, now: 0, sent: BTreeSet::new() };
                let work = work(case, &frames, side);
                for wr in work.clone() {
                    ours.endpoint.post_send(qpn, wr).expect("post");
                }
                let mut seen = BTreeSet::new();
                for frame in &frames {
                    let fresh = ours.poll();
                    let wanted = normal(&frame.bytes);
                    match (frame.from() == side, frame.is_request()) {
                        (true, true) => {
                            let again = !frame.copy && !seen.insert(wanted.clone());
                            if again && fresh == 0 || !ours.sent.contains(&wanted) {
                                ours.time_out();
                            }
                            let name = case.name;
                            let told = tell(&frame.bytes);
                            assert!(ours.sent.contains(&wanted), "{name}: {told} was never sent");
                            compared += usize::from(!frame.copy);
                        }
                        (false, false) if !frame.lost => {
                            ours.endpoint.receive(ours.now, &frame.bytes);
                        }
                        _ => {}
                    }
                }
                // What no answer ended, a timer does.
                while !ours.endpoint.is_idle(qpn) && ours.time_out() {}
                let done: Vec<Completion> = std::iter::from_fn(|| ours.endpoint.poll_cq()).collect();
                assert_eq!(done.len(), work.len(), "{}: completions of {side}", case.name);
                let answers = responses(
                    &frames,
                    if side == ends(&frames)[0] { ends(&frames)[1] } else { ends(&frames)[0] },
                );
                let mut psn = first_psn(&frames, side);
                for (n, (done, wr)) in done.iter().zip(&work).enumerate() {
                    let last = n + 1 == work.len();
                    let status = if last { case.end } else { WcStatus::Success };
                    assert_eq!((done.wr_id, done.status), (n as u64, status), "{}", case.name);
                    let landing = match wr.op {
                        SendOp::Read { landing: Landing::Owned(length), .. } => Some(length),
                        SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => Some(8),
                        _ => None,
                    };
                    let length = landing.unwrap_or(wr.data.len());
                    let packets = length.div_ceil(mtu(&frames).bytes() as usize).max(1) as u32;
                    if landing.is_some() && status == WcStatus::Success {
                        let told: Vec<u8> = (0..packets)
                            .filter_map(|number| answers.get(&psn_add(psn, number)))
                            .flat_map(|p| match p.atomic_ack {
                                Some(ack) => ack.original.to_le_bytes().to_vec(),
                                None => p.payload.clone(),
                            })
                            .collect();
                        assert!(done.data == told && told.len() == length, "{}: {n} read", case.name);
                    }
                    psn = psn_add(psn, packets);
                }
            }
        }
    }
    assert_eq!(compared, REQUESTS);
}

/// Answers of either side in all captures, without second copies.
const ANSWERS: usize = 460;
/// Requests of either side in all captures, without second copies.
const REQUESTS: usize = 721;

#[test]
fn every_rc_frame_of_the_captures_is_an_answer_or_a_request_or_a_second_copy() {
    let mut copies = 0;
    let mut frames = 0;
    for case in CASES {
        for frame in connections(case).concat() {
            frames += 1;
            copies += usize::from(frame.copy);
        }
    }
    assert_eq!(frames, ANSWERS + REQUESTS + copies);
    let folder = format!("{}/tests/golden", env!("CARGO_MANIFEST_DIR"));
    let captures = std::fs::read_dir(folder).expect("the folder of captures").filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|e| e == "pcap"))
    });
    assert_eq!(captures.count(), CASES.len());
}
