//! Captures of kernel peers, replayed into the card as either side, every RC frame of every capture: its requests and its
//! answers equal theirs byte for byte up to what may differ; what they answered it takes as their peer did.
//!
//! The captures and what they are: `sim/peer/tests/golden/README.md`. May differ: MACs, IPv4 identification, TTL and
//! checksum, UDP source port, MigReq, AckReq of packets that are not the last of a message, ICRC (which covers them).
//! Further, by rule: the card is silent behind an RNR NAK, where the kernel sends sequence NAKs; a READ asked for again it
//! answers with a First or Only and the MSN behind the READ, the kernel with a Middle or Last and the newest MSN; a SEND
//! that is too long it calls 0x61, the kernel 0x63.

#[path = "../peer/tests/golden/captures.rs"]
mod captures;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use captures::{CASES, Case, Frame, connections, ends, far, first_psn, mtu, near, rnr_timer, work};
use contract::opcode::Kind;
use contract::timer::rnr_ns;
use contract::wire::psn_add;
use contract::{AtomicEth, Opcode, Reth, Syndrome, WcStatus};
use host::{Access, Mr, Operation, RecvWr as CardRecv, Reject, SendWr as CardSend};
use peer::{Landing, Packet, SendOp};
use sim::{
    backend::lock,
    room::RoomConfig,
    story::{End, MS, Story, US, usual},
    wire::Side,
};

/// Requests of either side in all captures, without second copies.
const REQUESTS: usize = 721;
/// Answers of either side in all captures, without second copies and the sequence NAKs behind an RNR NAK.
const ANSWERS: usize = 460;
/// Of the answers, those to READs asked for again that differ as told above.
const REPEATED: usize = 6;

/// The frame with everything zeroed that may differ between peers, and between a card and a kernel.
fn normal(frame: &[u8]) -> Vec<u8> {
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    // To the end by the IP length: a short frame is padded.
    let (end, udp) = if word(12) == 0x86dd { (54 + word(18), 54) } else { (14 + word(16), 34) };
    let mut bytes = captures::normal(&frame[..end]);
    bytes[..12].fill(0); // MACs
    if udp == 34 {
        bytes[22] = 0; // TTL
    }
    bytes[udp..udp + 2].fill(0); // UDP source port
    bytes
}

fn tell(frame: &[u8]) -> String {
    Packet::parse(frame).map_or_else(|reject| format!("{reject:?}"), |packet| packet.to_string())
}

/// What the card has sent, without FCS.
fn sent(story: &Story) -> Vec<Vec<u8>> {
    let room = lock(&story.room);
    let mine = room.sights().iter().filter(|sight| sight.from == Side::A);
    mine.map(|sight| sight.frame.bytes[..sight.frame.bytes.len() - 4].to_vec()).collect()
}

/// A story whose card stands where `side` stood, its QP connected as in the capture.
fn stand_in(case: &Case, frames: &[Frame], side: IpAddr, what: &str) -> (Story, End) {
    let (own, remote) = (near(frames, side), far(frames, side));
    let mut config = RoomConfig::example(1, 1);
    config.cards[0].mac = std::array::from_fn(|i| (own.mac >> (8 * (5 - i))) as u8);
    let name = format!("golden_{}_{:x}_{what}_{}", case.name, own.qpn, own.mac & 0xff);
    let mut story = Story::begin(&name, config, None);
    let host = story.start(0);
    let mut end = story.qp(host, |init| init.max_inflight = 0);
    end.psn = first_psn(frames, side);
    let mut attr = usual(remote.ip.into(), remote.qpn, end.psn, first_psn(frames, remote.ip));
    let gids = end.context.gids();
    attr.av.sgid_index =
        gids.iter().position(|gid| *gid == side.into()).expect("an address of the card") as u8;
    attr.path_mtu = mtu(frames);
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (16, 16);
    (attr.rnr_retry, attr.retry_cnt) = case.retries;
    attr.av.traffic_class = frames[0].packet.ip.dscp << 2;
    attr.min_rnr_timer = rnr_timer(frames);
    end.qp.connect_with(&attr).expect("connect");
    (story, end)
}

/// What a request names of the other side's memory: address, key, bytes.
fn names(frame: &Frame) -> Option<(u64, u32, u64)> {
    let reth = frame.packet.reth.map(|reth| (reth.va, reth.rkey, reth.dma_length.into()));
    reth.or(frame.packet.atomic.map(|atomic| (atomic.va, atomic.rkey, 8)))
}

/// What `side` answered to READs and atomics first, by PSN.
fn responses(frames: &[Frame], side: IpAddr) -> BTreeMap<u32, &Packet> {
    let mut by_psn = BTreeMap::new();
    for frame in frames.iter().filter(|frame| frame.from() == side && !frame.is_request()) {
        if frame.opcode() != Opcode::RcAcknowledge {
            by_psn.entry(frame.psn()).or_insert(&frame.packet);
        }
    }
    by_psn
}

/// The bytes that answered a READ or atomic of `length` bytes at `psn`.
fn data(answers: &BTreeMap<u32, &Packet>, psn: u32, length: usize, mtu: usize) -> Vec<u8> {
    let count = length.div_ceil(mtu).max(1) as u32;
    let packets = (0..count).filter_map(|n| answers.get(&psn_add(psn, n)));
    let bytes = |p: &&Packet| match p.atomic_ack {
        Some(ack) => ack.original.to_le_bytes().to_vec(),
        None => p.payload.clone(),
    };
    packets.flat_map(bytes).collect()
}

/// The ranges that the requests to `side` name, by key.
fn ranges(frames: &[Frame], side: IpAddr) -> BTreeMap<u32, (u64, u64)> {
    let mut ranges: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let requests = frames.iter().filter(|frame| frame.from() != side && frame.is_request());
    for (va, rkey, length) in requests.filter_map(names) {
        let range = ranges.entry(rkey).or_insert((va, va + length));
        *range = (range.0.min(va), range.1.max(va + length));
    }
    ranges
}

#[test]
fn the_card_sends_the_same_bytes_for_the_same_work() {
    let mut compared = 0;
    for case in CASES {
        for frames in connections(case) {
            let has_asked = |side: &IpAddr| frames.iter().any(|f| f.from() == *side && f.is_request());
            for side in ends(&frames).into_iter().filter(has_asked) {
                compared += asks(case, &frames, side);
            }
        }
    }
    assert_eq!(compared, REQUESTS);
}

/// The card does the work of `side` and gets the answers of the capture; gives the number of requests compared.
fn asks(case: &Case, frames: &[Frame], side: IpAddr) -> usize {
    let name = case.name;
    let (mut story, end) = stand_in(case, frames, side, "from");
    let mut at = 0;
    let mut posted = Vec::new();
    for wr in work(case, frames, side) {
        let length = match wr.op {
            SendOp::Read { landing: Landing::Owned(length), .. } => length,
            SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => 8,
            _ => wr.data.len(),
        };
        end.memory.write(at, &wr.data).expect("the data fits");
        let sge = [end.memory.sge(at..at + length).expect("the data fits")];
        let operation = match wr.op {
            SendOp::Send { imm: None } => Operation::Send,
            SendOp::Send { imm: Some(imm) } => Operation::SendWithImm(imm),
            SendOp::Write { va: addr, rkey, imm: None } => Operation::Write { addr, rkey },
            SendOp::Write { va: addr, rkey, imm: Some(imm) } => Operation::WriteWithImm { addr, rkey, imm },
            SendOp::Read { va: addr, rkey, .. } => Operation::Read { addr, rkey },
            SendOp::FetchAdd { va: addr, rkey, add, .. } => Operation::FetchAdd { addr, rkey, add },
            SendOp::CompareSwap { va: addr, rkey, compare, swap, .. } => {
                Operation::CompareSwap { addr, rkey, compare, swap }
            }
            op => panic!("{name}: {op:?} is not among these captures"),
        };
        let (signaled, solicited, fence) = (true, wr.solicited, wr.fence);
        let card = CardSend { signaled, solicited, fence, ..CardSend::new(wr.wr_id, operation, &sge) };
        end.qp.post_send(&[card]).expect("post");
        posted.push((at, length, operation));
        at += length;
    }
    // all of it leaves
    story.wait(20 * US + at as u64 * 1000);
    // sequence NAKs behind an RNR NAK come within its wait, everything else after it
    let mut pause = 0;
    for frame in frames.iter().filter(|frame| frame.from() != side && !frame.is_request() && !frame.lost) {
        let told = frame.packet.aeth.map(|aeth| aeth.syndrome);
        if told != Some(Syndrome::NAK_PSN_SEQUENCE) {
            story.wait(std::mem::take(&mut pause));
        }
        if let Some(Syndrome::Rnr(code)) = told.map(Syndrome::decode) {
            pause = rnr_ns(code) * 1000 + 100 * US;
        }
        let mut packet = frame.packet.clone();
        packet.bth.dest_qp = end.qp.number();
        lock(&story.room).inject(Side::B, &packet.build()).expect("inject");
        story.wait(20 * US);
    }
    story.wait(pause);
    let answers = responses(frames, far(frames, side).ip);
    let step = mtu(frames).bytes() as usize;
    let mut psn = end.psn;
    for (i, (at, length, operation)) in posted.iter().enumerate() {
        let done = story.completion(&end);
        let status = if i + 1 == posted.len() { case.end } else { WcStatus::Success };
        assert_eq!((done.wr_id, done.status), (i as u64, status), "{name}, completion of {side}");
        let reads = !matches!(
            operation,
            Operation::Send
                | Operation::SendWithImm(_)
                | Operation::Write { .. }
                | Operation::WriteWithImm { .. }
        );
        if reads && status == WcStatus::Success {
            assert_eq!(done.byte_len as usize, *length, "{name}");
            let got = data(&answers, psn, *length, step);
            assert_eq!(got.len(), *length, "{name}: every READ was answered");
            story.memory_matches(&end.memory, *at, &got);
        }
        psn = psn_add(psn, length.div_ceil(step).max(1) as u32);
    }
    let sent = sent(&story);
    let ours: BTreeSet<Vec<u8>> = sent.iter().map(|frame| normal(frame)).collect();
    let mut theirs = BTreeSet::new();
    let mut compared = 0;
    for frame in frames.iter().filter(|frame| frame.from() == side && frame.is_request()) {
        let bytes = normal(&frame.bytes);
        assert!(ours.contains(&bytes), "{name}: {} was never sent", tell(&frame.bytes));
        theirs.insert(bytes);
        compared += usize::from(!frame.copy);
    }
    if case.end == WcStatus::Success {
        let more: Vec<String> =
            sent.iter().filter(|frame| !theirs.contains(&normal(frame))).map(|frame| tell(frame)).collect();
        assert!(more.is_empty(), "{name}: these were sent, too: {more:#?}");
    }
    for reject in [Reject::ResponseStale, Reject::ResponseGap, Reject::QpHalted] {
        story.allow(0, reject);
    }
    story.no_other_events();
    compared
}

/// The request, to the card's QP and memory.
fn aimed(frame: &Frame, qpn: u32, regions: &BTreeMap<u32, (u64, Mr)>, known: bool) -> Packet {
    let mut packet = frame.packet.clone();
    packet.bth.dest_qp = qpn;
    let Some((va, rkey, _)) = names(frame) else { return packet };
    let (from, region) = &regions[&rkey];
    let va = region.addr() + (va - from);
    let rkey = if known { region.rkey() } else { region.rkey() ^ 0x00ff_0000 };
    packet.reth = packet.reth.map(|reth| Reth { va, rkey, ..reth });
    packet.atomic = packet.atomic.map(|atomic| AtomicEth { va, rkey, ..atomic });
    packet
}

/// Feeds the captured requests to `side` into the card; gives its answers.
fn answers(case: &Case, frames: &[Frame], side: IpAddr) -> Vec<Vec<u8>> {
    let (mut story, end) = stand_in(case, frames, side, "to");
    let regions: BTreeMap<u32, (u64, Mr)> = ranges(frames, side)
        .into_iter()
        .map(|(key, (from, to))| {
            let length = ((to - from) as usize - case.short).max(1);
            let rights = Access::LOCAL_WRITE | Access::from_bits_truncate(case.rights);
            (key, (from, end.pd.allocate(length, rights).expect("allocate")))
        })
        .collect();
    let theirs = responses(frames, side);
    let mut written = BTreeSet::new();
    let mut answers: Vec<Vec<u8>> = Vec::new();
    let mut had = 0;
    let mut ready = false;
    for frame in frames {
        if !ready && case.ready > 0 && frame.number >= case.ready {
            ready = true;
            for wr_id in 0..100 {
                let sge = [end.memory.sge(0..case.receive).expect("the landing")];
                end.qp.post_recv(&[CardRecv::new(wr_id, &sge)]).expect("post receive");
            }
        }
        if frame.from() == side || !frame.is_request() || frame.lost {
            continue;
        }
        // what nothing has written since holds what the kernel found there
        if let Some((va, rkey, length)) = names(frame) {
            let (from, region) = &regions[&rkey];
            let place = |i: usize| (rkey, va + i as u64);
            if frame.kind() != Kind::Write {
                let found = data(&theirs, frame.psn(), length as usize, mtu(frames).bytes() as usize);
                for (i, byte) in found.iter().enumerate().filter(|(i, _)| !written.contains(&place(*i))) {
                    region.write((va - from) as usize + i, &[*byte]).expect("a range of the capture's");
                }
            }
            if frame.kind() != Kind::Read {
                written.extend((0..length as usize).map(place));
            }
        }
        let packet = aimed(frame, end.qp.number(), &regions, !case.unknown_key);
        let mut room = lock(&story.room);
        room.inject(Side::B, &packet.build()).expect("inject");
        let limit = room.now() + MS;
        assert!(room.run_until_idle(limit).expect("the room runs"), "an answer comes to an end");
        drop(room);
        let mut new = sent(&story).split_off(had);
        had += new.len();
        // behind a READ or atomic that is asked for again the card answers those behind it again, too
        if matches!(frame.kind(), Kind::Read | Kind::Atomic) && !new.is_empty() {
            let length = names(frame).map_or(0, |(_, _, length)| length as u32);
            let more = new.split_off((length.div_ceil(mtu(frames).bytes()).max(1) as usize).min(new.len()));
            for frame in more {
                assert!(repeats(&frame, &frame, &answers), "{}: {} was sent, too", case.name, tell(&frame));
            }
        }
        answers.extend(new);
    }
    for reject in MEANT {
        story.allow(0, reject);
    }
    story.no_other_events();
    answers
}

/// What the captures mean to provoke.
const MEANT: [Reject; 12] = [
    Reject::Duplicate,
    Reject::PsnOutOfSequence,
    Reject::PsnOutOfSequenceRepeat,
    Reject::ReceiverNotReady,
    Reject::ReceiveTooShort,
    Reject::RkeyUnknown,
    Reject::RkeyTag,
    Reject::RkeyRights,
    Reject::RkeyBounds,
    Reject::AccessDenied,
    Reject::QpHalted,
    Reject::OpcodeSequence,
];

/// What the kernel answered, but for the sequence NAKs that it sends behind an RNR NAK; how many those are.
fn theirs(frames: &[Frame], side: IpAddr) -> (Vec<Vec<u8>>, usize) {
    let mut waiting = false;
    let mut behind = 0;
    let mut answers = Vec::new();
    for frame in frames.iter().filter(|f| f.from() == side && !f.is_request() && !f.copy) {
        let syndrome =
            frame.packet.aeth.filter(|_| frame.opcode() == Opcode::RcAcknowledge).map(|a| a.syndrome);
        if waiting && syndrome == Some(Syndrome::NAK_PSN_SEQUENCE) {
            behind += 1;
            continue;
        }
        waiting = syndrome.is_some_and(|syndrome| syndrome >> 5 == 1);
        answers.push(frame.bytes.clone());
    }
    (answers, behind)
}

/// Both are the same packet of a READ that was answered before. The card begins there anew and tells the MSN behind the
/// READ, the kernel goes on and tells the newest.
fn repeats(mine: &[u8], theirs: &[u8], before: &[Vec<u8>]) -> bool {
    let response = |bytes: &[u8]| {
        let packet = Packet::parse(bytes).ok()?;
        let row = packet.opcode()?.row();
        let is_response = (0x0d..=0x10).contains(&packet.bth.opcode);
        is_response.then_some((packet.bth.psn, row.position.closes(), packet.payload))
    };
    let (mine, theirs) = (response(mine), response(theirs));
    mine.is_some() && mine == theirs && before.iter().any(|earlier| response(earlier) == mine)
}

#[test]
fn the_card_answers_captured_requests_as_the_kernel_did() {
    let (mut compared, mut repeated) = (0, 0);
    for case in CASES {
        for frames in connections(case) {
            let is_asked = |side: &IpAddr| frames.iter().any(|f| f.from() != *side && f.is_request());
            for side in ends(&frames).into_iter().filter(is_asked) {
                let ours = answers(case, &frames, side);
                let (mut theirs, behind) = theirs(&frames, side);
                if case.name == "v_send_too_long" {
                    assert_eq!(theirs[0][54], Syndrome::NAK_REMOTE_OPERATION);
                    theirs[0][54] = Syndrome::NAK_INVALID_REQUEST;
                }
                for (n, (mine, theirs)) in ours.iter().zip(&theirs).enumerate() {
                    let equal = normal(mine) == normal(theirs);
                    repeated += usize::from(!equal);
                    assert!(
                        equal || repeats(mine, theirs, &ours[..n]),
                        "{}, answer {n} of {side}: {}, the kernel: {}",
                        case.name,
                        tell(mine),
                        tell(theirs)
                    );
                }
                assert_eq!(ours.len(), theirs.len(), "{}: answers of {side}", case.name);
                compared += ours.len() + behind;
            }
        }
    }
    assert_eq!((compared, repeated), (ANSWERS, REPEATED));
}
