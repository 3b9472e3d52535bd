//! Captures of kernel peers, replayed into the card: its requests equal theirs byte for byte up to what may differ, and
//! its answers to their requests mean the same.
//!
//! The captures and what they are: `sim/peer/tests/golden/README.md`. May differ: MACs, IPv4 identification, TTL and
//! checksum, UDP source port, MigReq, AckReq of packets that are not the last of a message, ICRC (which covers them).

#[path = "../peer/tests/golden/captures.rs"]
mod captures;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use captures::{CASES, Case, Frame, connections, ends, far, first_psn, mtu, near, rnr_timer, work};
use contract::opcode::Kind;
use contract::verbs::access;
use contract::wire::psn_distance;
use contract::{AtomicEth, Opcode, Reth, Syndrome};
use host::{Access, Mr, Operation, RecvWr as CardRecv, SendWr as CardSend};
use peer::{Address, Endpoint, Landing, Packet, QpParams, RecvWr, Region, SendOp};
use sim::{
    backend::lock,
    room::RoomConfig,
    story::{End, Story, US, usual},
    wire::Side,
};

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// A capture of one connection, between these two.
fn capture(name: &str) -> (&'static Case, Vec<Frame>) {
    let case = CASES.iter().find(|case| case.name == name).expect("a capture of that name");
    (case, connections(case).remove(0))
}

/// What the card can do of the captures, by connection: the SENDs and WRITEs over IPv4 before the first other request,
/// and their answers; no frame twice. READs have tests of their own.
fn able() -> impl Iterator<Item = (&'static Case, Vec<Frame>)> {
    let able = |frame: &Frame| {
        let kind =
            matches!(frame.kind(), Kind::Send | Kind::Write) || frame.opcode() == Opcode::RcAcknowledge;
        kind && frame.from().is_ipv4()
    };
    let connections = CASES.iter().flat_map(|case| connections(case).into_iter().map(move |f| (case, f)));
    connections.filter(|(case, _)| case.doubled == 0).filter_map(move |(case, mut frames)| {
        if let Some(end) = frames.iter().find(|frame| !able(frame)).map(Frame::psn) {
            frames.retain(|frame| able(frame) && psn_distance(frame.psn(), end) < 0);
        }
        (!frames.is_empty()).then_some((case, frames))
    })
}

/// A name of its own for the story of `side`.
fn label(case: &Case, frames: &[Frame], what: &str, side: IpAddr) -> String {
    format!("golden_{}_{:x}_{what}_{side}", case.name, near(frames, side).qpn)
}

fn v4(side: IpAddr) -> Ipv4Addr {
    match side {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(ip) => panic!("{ip} is not IPv4"),
    }
}

/// The frame with everything zeroed that may differ between peers, and between a card and a kernel.
fn normal(frame: &[u8]) -> Vec<u8> {
    // To the end by the IPv4 length: a short frame is padded.
    let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let mut bytes = captures::normal(&frame[..end]);
    bytes[..12].fill(0); // MACs
    bytes[22] = 0; // TTL
    bytes[34..36].fill(0); // UDP source port
    bytes
}

/// Whether `side` asked for something.
fn asks(frames: &[Frame], side: IpAddr) -> bool {
    frames.iter().any(|frame| frame.from() == side && frame.is_request())
}

/// A story whose card stands where `side` stood, its QP connected as in the capture, perhaps with a peer.
fn stand_in(name: &str, frames: &[Frame], side: IpAddr, peer: Option<Endpoint>) -> (Story, End) {
    let (own, remote) = (near(frames, side), far(frames, side));
    let mut config = RoomConfig::example(1, 1);
    config.cards[0].mac = std::array::from_fn(|i| (own.mac >> (8 * (5 - i))) as u8);
    config.cards[0].ip = v4(side);
    let mut story = Story::begin(name, config, peer);
    let host = story.start(0);
    let mut end = story.qp(host, |init| init.max_inflight = 0);
    end.psn = first_psn(frames, side);
    let gid = host::Gid::from(v4(remote.ip));
    let mut attr = usual(gid, remote.qpn, end.psn, first_psn(frames, remote.ip));
    attr.path_mtu = mtu(frames);
    attr.access |= Access::REMOTE_READ;
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (16, 16);
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

/// The ranges that the requests to `side` name, by key.
fn ranges(frames: &[Frame], side: IpAddr) -> BTreeMap<u32, (u64, u64)> {
    let mut ranges: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (va, rkey, length) in frames.iter().filter(|f| f.from() != side).filter_map(names) {
        let range = ranges.entry(rkey).or_insert((va, va + length));
        *range = (range.0.min(va), range.1.max(va + length));
    }
    ranges
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

#[test]
fn the_card_sends_the_same_bytes_for_the_same_work() {
    let mut compared = 0;
    for (case, frames) in able() {
        for side in ends(&frames).into_iter().filter(|side| asks(&frames, *side)) {
            compared += sends(case, &frames, side);
        }
    }
    assert_eq!(compared, REQUESTS);
}

/// The card does the work of `side`; gives the number of frames compared.
fn sends(case: &Case, frames: &[Frame], side: IpAddr) -> usize {
    let name = case.name;
    let remote = far(frames, side);
    let mut peer = Endpoint::new(remote.mac, v4(remote.ip));
    peer.create_qp_numbered(remote.qpn, 1).expect("create");
    for (key, (va, end)) in ranges(frames, remote.ip) {
        let bytes = vec![0; (end - va) as usize];
        peer.register_as(key, Region { pd: 1, va, access: access::REMOTE_WRITE, bytes }).expect("register");
    }
    let (mut story, end) = stand_in(&label(case, frames, "from", side), frames, side, Some(peer));
    let messages = work(case, frames, side);
    {
        let mut room = lock(&story.room);
        let card = Address { mac: near(frames, side).mac, ip: side, qpn: end.qp.number() };
        let params = QpParams { path_mtu: mtu(frames), rq_psn: end.psn, ..QpParams::to(card) };
        room.peer().connect(remote.qpn, params).expect("connect");
        for wr_id in 0..messages.len() as u64 {
            let longest = messages.iter().map(|wr| wr.data.len()).max().unwrap_or(0);
            let wr = RecvWr { wr_id, landing: Landing::Owned(longest) };
            room.peer().post_recv(remote.qpn, wr).expect("post receive");
        }
    }
    let mut at = 0;
    for wr in &messages {
        end.memory.write(at, &wr.data).expect("the data fits");
        let sge = [end.memory.sge(at..at + wr.data.len()).expect("the data fits")];
        at += wr.data.len();
        let operation = match wr.op {
            SendOp::Send { imm: None } => Operation::Send,
            SendOp::Send { imm: Some(imm) } => Operation::SendWithImm(imm),
            SendOp::Write { va, rkey, imm: None } => Operation::Write { addr: va, rkey },
            SendOp::Write { va, rkey, imm: Some(imm) } => Operation::WriteWithImm { addr: va, rkey, imm },
            op => panic!("{name}: {op:?} is not among these captures"),
        };
        let work = CardSend::new(wr.wr_id, operation, &sge).signaled();
        end.qp.post_send(&[if wr.solicited { work.solicited() } else { work }]).expect("post");
    }
    for wr in &messages {
        story.completes(&end, wr.wr_id);
    }
    let room = lock(&story.room);
    let ours: BTreeMap<u32, &[u8]> = room
        .sights()
        .iter()
        .filter(|sight| sight.from == Side::A)
        .filter_map(|sight| {
            let packet = sim::story::parse(&sight.frame.bytes)?;
            packet.aeth.is_none().then_some((packet.bth.psn, &sight.frame.bytes[..]))
        })
        .collect();
    let mut compared = 0;
    for frame in frames.iter().filter(|frame| frame.from() == side && frame.is_request()) {
        let psn = frame.packet.bth.psn;
        let mine = ours.get(&psn).unwrap_or_else(|| panic!("{name}: PSN {psn} was not sent"));
        assert_eq!(normal(mine), normal(&frame.bytes), "{name}: PSN {psn}");
        compared += 1;
    }
    drop(room);
    story.no_other_events();
    compared
}

/// Feeds the captured requests to `side` into the card; gives its answers.
fn answers(case: &Case, frames: &[Frame], side: IpAddr) -> Vec<(u32, u8, u32)> {
    let (mut story, end) = stand_in(&label(case, frames, "to", side), frames, side, None);
    let regions: BTreeMap<u32, (u64, Mr)> = ranges(frames, side)
        .into_iter()
        .map(|(key, (from, to))| {
            let length = ((to - from) as usize - case.short).max(1);
            let write = case.rights & access::REMOTE_WRITE != 0;
            let remote = if write { Access::REMOTE_WRITE | Access::REMOTE_READ } else { Access::REMOTE_READ };
            (key, (from, end.pd.allocate(length, Access::LOCAL_WRITE | remote).expect("allocate")))
        })
        .collect();
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
        let packet = aimed(frame, end.qp.number(), &regions, !case.unknown_key);
        lock(&story.room).inject(Side::B, &packet.build()).expect("inject");
        story.wait(20 * US);
    }
    let found = story.packets();
    let is_answer = |opcode| opcode == Some(Opcode::RcAcknowledge);
    let ours = found.iter().filter(|seen| seen.from == Side::A && is_answer(seen.packet.opcode()));
    ours.filter_map(|seen| seen.packet.aeth.map(|a| (seen.packet.bth.psn, a.syndrome, a.msn))).collect()
}

/// What the kernel answered. Behind an RNR NAK it names the packets that follow with sequence NAKs, too; the rule asks
/// for silence.
fn theirs(frames: &[Frame], side: IpAddr) -> Vec<(u32, u8, u32)> {
    let mut waiting = false;
    frames
        .iter()
        .filter(|frame| frame.from() == side && frame.opcode() == Opcode::RcAcknowledge)
        .filter_map(|frame| frame.packet.aeth.map(|a| (frame.psn(), a.syndrome, a.msn)))
        .filter(|(_, syndrome, _)| {
            let behind = waiting && *syndrome == Syndrome::NAK_PSN_SEQUENCE;
            if !behind {
                waiting = syndrome >> 5 == 1;
            }
            !behind
        })
        .collect()
}

#[test]
fn the_card_answers_captured_requests_as_the_kernel_did() {
    let mut compared = 0;
    for (case, frames) in able() {
        for side in ends(&frames).into_iter().filter(|side| asks(&frames, far(&frames, *side).ip)) {
            let ours = answers(case, &frames, side);
            let mut theirs = theirs(&frames, side);
            if case.name == "v_send_too_long" {
                // The kernel of that day said 0x63 where the rule says 0x61; PSN and MSN agree.
                assert_eq!(theirs[0].1, Syndrome::NAK_REMOTE_OPERATION);
                theirs[0].1 = Syndrome::NAK_INVALID_REQUEST;
            }
            assert_eq!(ours, theirs, "{}, answers of {side}", case.name);
            compared += ours.len();
        }
    }
    assert_eq!(compared, ANSWERS);
}

/// Requests that the card sends in these captures.
const REQUESTS: usize = 583;
/// Answers that it gives.
const ANSWERS: usize = 254;

#[test]
fn the_card_refuses_a_read_as_the_kernel_did() {
    let (case, frames) = capture("v_bad_rkey_read");
    assert_eq!(answers(case, &frames, A), theirs(&frames, A));
}

#[test]
fn the_card_refuses_an_atomic_as_the_kernel_did() {
    let (case, frames) = capture("v_atomic_noperm");
    assert_eq!(answers(case, &frames, A), theirs(&frames, A));
}

/// What the atomic with this PSN found.
fn original(frames: &[Frame], psn: u32) -> u64 {
    let answers = frames.iter().filter(|frame| frame.psn() == psn);
    answers.filter_map(|frame| frame.packet.atomic_ack).next().expect("every atomic was answered").original
}

#[test]
fn the_card_asks_for_atomics_as_the_kernel_did_and_gets_what_the_kernel_got() {
    for name in ["rc_atomic_fa", "rc_atomic_cs"] {
        let frames = capture(name).1;
        let (mut story, end) = stand_in(&format!("golden_{name}_from_b"), &frames, B, None);
        let requests: Vec<&Frame> = frames.iter().filter(|frame| frame.kind() == Kind::Atomic).collect();
        assert_eq!(requests.len(), 5);
        for (i, frame) in requests.iter().enumerate() {
            let AtomicEth { va, rkey, swap_or_add, compare } = frame.packet.atomic.expect("an AtomicETH");
            let sge = [end.memory.sge(8 * i..8 * i + 8).expect("the landing")];
            let wr = match frame.opcode() {
                Opcode::RcFetchAdd => CardSend::fetch_add(i as u64, &sge, va, rkey, swap_or_add),
                _ => CardSend::compare_swap(i as u64, &sge, va, rkey, compare, swap_or_add),
            };
            end.qp.post_send(&[wr.signaled()]).expect("post");
        }
        story.wait(20 * US);
        for frame in frames.iter().filter(|frame| frame.from() == A) {
            let mut packet = frame.packet.clone();
            packet.bth.dest_qp = end.qp.number();
            lock(&story.room).inject(Side::B, &packet.build()).expect("inject");
            story.wait(10 * US);
        }
        for (i, request) in requests.iter().enumerate() {
            assert_eq!(story.completes(&end, i as u64).byte_len, 8);
            story.memory_matches(&end.memory, 8 * i, &original(&frames, request.psn()).to_le_bytes());
        }
        let ours: Vec<Vec<u8>> = lock(&story.room)
            .sights()
            .iter()
            .filter(|sight| sight.from == Side::A)
            .map(|sight| normal(&sight.frame.bytes[..sight.frame.bytes.len() - 4]))
            .collect();
        assert_eq!(ours, requests.iter().map(|frame| normal(&frame.bytes)).collect::<Vec<_>>(), "{name}");
        story.no_other_events();
    }
}

/// A responder of captured READs and atomics: the card in the place of `side`, its memory as it was.
struct Library {
    story: Story,
    end: End,
    frames: Vec<Frame>,
    side: IpAddr,
    regions: BTreeMap<u32, (u64, Mr)>,
}

impl Library {
    fn open(name: &str, side: IpAddr) -> Library {
        let frames = capture(name).1;
        let (story, end) = stand_in(&format!("golden_{name}_reads"), &frames, side, None);
        let mut regions = BTreeMap::new();
        for (key, (from, to)) in ranges(&frames, side) {
            let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let rights = Access::LOCAL_WRITE | remote;
            let region = end.pd.allocate((to - from) as usize, rights).expect("allocate");
            regions.insert(key, (from, region));
        }
        Library { story, end, frames, side, regions }
    }

    /// The responses to the READ in frame `i`, as captured first.
    fn responses(&self, i: usize) -> impl Iterator<Item = &Frame> {
        let request = &self.frames[i].packet;
        let length = request.reth.expect("a READ has one").dma_length;
        let (psn, count) = (request.bth.psn, length.div_ceil(mtu(&self.frames).bytes()).max(1));
        (0..count as i32).map(move |n| {
            let wanted = psn.wrapping_add_signed(n) & 0xff_ffff;
            let mine = self.frames.iter().filter(|frame| frame.from() == self.side);
            mine.filter(|frame| frame.opcode() != Opcode::RcAcknowledge)
                .find(|frame| frame.packet.bth.psn == wanted)
                .expect("every READ was answered")
        })
    }

    /// Memory is what the peer got, but for what its WRITEs will bring.
    fn fill(&self) {
        for i in (0..self.frames.len()).filter(|i| self.frames[*i].is_read()) {
            let reth = self.frames[i].packet.reth.expect("a READ has one");
            let bytes: Vec<u8> = self.responses(i).flat_map(|frame| frame.packet.payload.clone()).collect();
            let (from, region) = &self.regions[&reth.rkey];
            region.write((reth.va - from) as usize, &bytes).expect("the range is the capture's");
        }
        for frame in self.frames.iter().filter(|frame| frame.kind() == Kind::Atomic) {
            let (va, rkey, _) = names(frame).expect("an atomic has an address");
            let (from, region) = &self.regions[&rkey];
            let original = original(&self.frames, frame.psn()).to_le_bytes();
            region.write((va - from) as usize, &original).expect("the range is the capture's");
        }
        for reth in self
            .frames
            .iter()
            .filter(|frame| frame.kind() == Kind::Write)
            .filter_map(|frame| frame.packet.reth)
        {
            let (from, region) = &self.regions[&reth.rkey];
            let nothing = vec![0; reth.dma_length as usize];
            region.write((reth.va - from) as usize, &nothing).expect("the range is the capture's");
        }
    }

    /// The peer's request in frame `i` comes again; what the card sent from then on.
    fn ask(&mut self, i: usize) -> Vec<Vec<u8>> {
        let before = lock(&self.story.room).sights().len();
        let packet = aimed(&self.frames[i], self.end.qp.number(), &self.regions, true);
        lock(&self.story.room).inject(Side::B, &packet.build()).expect("inject");
        self.story.wait(30 * US);
        let room = lock(&self.story.room);
        let sights = room.sights()[before..].iter().filter(|sight| sight.from == Side::A);
        sights.map(|sight| sight.frame.bytes[..sight.frame.bytes.len() - 4].to_vec()).collect()
    }
}

#[test]
fn the_card_answers_captured_reads_and_atomics_with_the_same_bytes() {
    for (name, lost, least) in [
        ("rc_read_bw", &[][..], 25),
        ("rc_read_mtu4096", &[], 15),
        ("rc_read_dropreq", &[1], 21),
        // a WRITE, a READ of what it wrote; in the first atomics on it, up to the SEND
        ("v_mix", &[], 6),
        ("v_psn_wrap", &[], 6),
        ("rc_atomic_fa", &[], 5),
        ("rc_atomic_cs", &[], 5),
        // one asked again because its answer was lost; one doubled on the way
        ("rc_atomic_dropack", &[], 6),
        ("rc_atomic_dup", &[], 6),
    ] {
        let mut library = Library::open(name, A);
        let frames = &library.frames;
        let end = frames.iter().position(|frame| frame.kind() == Kind::Send).unwrap_or(frames.len());
        let requests: Vec<usize> = (0..end).filter(|i| frames[*i].from() != A).collect();
        library.fill();
        let mut ours = Vec::new();
        for i in requests.into_iter().filter(|i| !lost.contains(&(i + 1))) {
            ours.extend(library.ask(i));
        }
        let mut theirs: Vec<&Frame> = library.frames.iter().filter(|frame| frame.from() == A).collect();
        if name == "rc_atomic_dup" {
            // answers were doubled on the way, too
            theirs.dedup_by_key(|frame| frame.psn());
            theirs.insert(3, theirs[2]);
        }
        theirs.truncate(ours.len());
        assert!(ours.len() >= least, "{name}: only {} frames", ours.len());
        for (mine, frame) in ours.iter().zip(theirs) {
            assert_eq!(normal(mine), normal(&frame.bytes), "{name}: PSN {}", frame.packet.bth.psn);
        }
        if lost.is_empty() {
            library.story.allow(0, host::Reject::Duplicate);
            library.story.no_other_events();
        }
    }
}

#[test]
fn a_captured_read_asked_again_from_its_middle_is_answered_from_there() {
    let mut library = Library::open("rc_read_dropresp", A);
    library.fill();
    let mut first = BTreeMap::new();
    let requests: Vec<usize> = (0..library.frames.len()).filter(|i| library.frames[*i].is_read()).collect();
    let (mut again, mut from_middle) = (0, 0);
    for i in requests {
        let psn = library.frames[i].packet.bth.psn;
        let answer = library.ask(i);
        let expected: Vec<(u32, Vec<u8>)> =
            library.responses(i).map(|frame| (frame.packet.bth.psn, frame.packet.payload.clone())).collect();
        let found: Vec<Packet> = answer.iter().map(|bytes| Packet::parse(bytes).expect("a packet")).collect();
        let had = |packet: &Packet| (packet.bth.psn, packet.payload.clone());
        assert_eq!(found[..expected.len()].iter().map(had).collect::<Vec<_>>(), expected);
        if first.contains_key(&psn) {
            again += 1;
            from_middle += u32::from(first[&psn] != Opcode::RcReadResponseFirst);
            // it begins like an answer, wherever it stands
            assert_eq!(found[0].opcode(), Some(Opcode::RcReadResponseFirst));
        } else {
            assert_eq!(found.len(), expected.len(), "nothing else was asked for");
            let theirs = library.responses(i).map(|frame| normal(&frame.bytes));
            assert_eq!(
                answer.iter().map(|mine| normal(mine)).collect::<Vec<_>>(),
                theirs.collect::<Vec<_>>()
            );
        }
        first.extend(found.iter().map(|packet| (packet.bth.psn, packet.opcode().expect("known"))));
    }
    assert_eq!((again, from_middle), (4, 1));
    library.story.announce(0, host::Reject::Duplicate, 4);
    library.story.no_other_events();
}

/// Bytes of `side`'s READ in this frame, if it is one that was not asked for before: repeated ones start within it.
fn new_read(frames: &[Frame], i: usize) -> Option<usize> {
    let length = |frame: &Frame| frame.packet.reth.expect("a READ has one").dma_length;
    let psns = |frame: &Frame| length(frame).div_ceil(mtu(frames).bytes()).max(1) as i32;
    let known = |earlier: &&Frame| {
        let ahead = psn_distance(frames[i].packet.bth.psn, earlier.packet.bth.psn);
        earlier.is_read() && earlier.from() == frames[i].from() && (0..psns(earlier)).contains(&ahead)
    };
    (frames[i].is_read() && !frames[..i].iter().any(|earlier| known(&earlier)))
        .then(|| length(&frames[i]) as usize)
}

#[test]
fn the_card_reads_as_the_kernel_did_and_gets_what_the_kernel_got() {
    for (name, lost, reads, again) in [
        ("rc_read_bw", &[][..], 5, 0),
        ("rc_read_mtu4096", &[], 5, 0),
        // the first response of the fourth and what is repeated behind it
        ("rc_read_dropresp", &[8], 5, 4),
    ] {
        let frames = capture(name).1;
        let (mut story, end) = stand_in(&format!("golden_{name}_from_b"), &frames, B, None);
        let mut at = 0;
        let mut works = Vec::new();
        for i in 0..frames.len() {
            let Some(length) = new_read(&frames, i) else { continue };
            let reth = frames[i].packet.reth.expect("a READ has one");
            let sge = [end.memory.sge(at..at + length).expect("the data fits")];
            let wr = CardSend::read(works.len() as u64, &sge, reth.va, reth.rkey).signaled();
            end.qp.post_send(&[wr]).expect("post");
            works.push((frames[i].packet.bth.psn, at, length));
            at += length;
        }
        assert_eq!(works.len(), reads, "{name}");
        story.wait(20 * US);
        for (i, frame) in frames.iter().enumerate() {
            if frame.from() == B || lost.contains(&(i + 1)) {
                continue;
            }
            let mut packet = frame.packet.clone();
            packet.bth.dest_qp = end.qp.number();
            lock(&story.room).inject(Side::B, &packet.build()).expect("inject");
            story.wait(10 * US);
        }
        for (wr_id, (psn, at, length)) in works.iter().enumerate() {
            assert_eq!(story.completes(&end, wr_id as u64).byte_len, *length as u32);
            let step = mtu(&frames).bytes();
            for n in 0..(*length as u32).div_ceil(step) {
                let theirs = frames
                    .iter()
                    .filter(|frame| frame.from() == A && frame.kind() == Kind::Response)
                    .find(|frame| frame.packet.bth.psn == (psn + n) & 0xff_ffff);
                let payload = &theirs.expect("every READ was answered").packet.payload;
                story.memory_matches(&end.memory, at + (n * step) as usize, payload);
            }
        }
        let mut ours: Vec<Vec<u8>> = lock(&story.room)
            .sights()
            .iter()
            .filter(|sight| sight.from == Side::A)
            .map(|sight| normal(&sight.frame.bytes[..sight.frame.bytes.len() - 4]))
            .collect();
        for frame in frames.iter().filter(|frame| frame.from() == B && frame.is_read()) {
            let found = ours.iter().position(|mine| *mine == normal(&frame.bytes));
            ours.remove(found.unwrap_or_else(|| panic!("{name}: PSN {} not asked", frame.packet.bth.psn)));
        }
        assert_eq!(ours.len(), 0, "{name}: asked for more");
        let repeated = frames.iter().filter(|frame| frame.is_read()).count() - reads;
        assert_eq!(repeated, again, "{name}");
        if again > 0 {
            for reject in [host::Reject::ResponseGap, host::Reject::ResponseStale] {
                story.allow(0, reject);
            }
        }
        story.no_other_events();
    }
}

#[test]
fn the_card_completes_a_captured_read_that_was_refused_in_error() {
    let frames = capture("v_bad_rkey_read").1;
    let (mut story, end) = stand_in("golden_v_bad_rkey_read_from_b", &frames, B, None);
    let reth = frames[0].packet.reth.expect("a READ has one");
    let sge = [end.memory.sge(0..reth.dma_length as usize).expect("the data fits")];
    end.qp.post_send(&[CardSend::read(1, &sge, reth.va, reth.rkey)]).expect("post");
    let asked = story.sees(Side::A, "the READ", |packet| packet.reth.is_some());
    assert_eq!(asked.packet.reth, frames[0].packet.reth);
    let mut packet = frames[1].packet.clone();
    packet.bth.dest_qp = end.qp.number();
    lock(&story.room).inject(Side::B, &packet.build()).expect("inject");
    let done = story.completion(&end);
    assert_eq!((done.wr_id, done.status), (1, host::WcStatus::RemAccessErr));
    story.no_other_events();
}
