//! Captures of kernel peers, replayed into the card: its requests equal theirs byte for byte up to what may differ, and
//! its answers to their requests mean the same.
//!
//! The captures and what they are: `sim/peer/tests/golden/README.md`. May differ: MACs, IPv4 identification, TTL and
//! checksum, UDP source port, MigReq, AckReq of packets that are not the last of a message, ICRC (which covers them).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use contract::opcode::{Kind, Position};
use contract::verbs::access;
use contract::wire::psn_distance;
use contract::{Opcode, PathMtu, Syndrome};
use host::{Access, Mr, Operation, RecvWr as CardRecv, SendWr as CardSend};
use peer::{Address, Endpoint, Landing, Packet, QpParams, RecvWr, Region, SendOp, SendWr};
use sim::{
    backend::lock,
    room::RoomConfig,
    story::{End, Story, US, usual},
    wire::Side,
};

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

    fn is_read(&self) -> bool {
        self.opcode().row().kind == Kind::Read
    }

    fn answer(&self) -> Option<(u32, u8, u32)> {
        let aeth = self.packet.aeth.filter(|_| self.opcode() == Opcode::RcAcknowledge)?;
        Some((self.packet.bth.psn, aeth.syndrome, aeth.msn))
    }
}

fn capture(name: &str) -> Vec<Frame> {
    let path = format!("{}/peer/tests/golden/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
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
    let first = frames.iter().find(|frame| frame.opcode().row().position == Position::First);
    let bytes = first.map_or(1024, |frame| frame.packet.payload.len() as u32);
    *PathMtu::ALL.iter().find(|mtu| mtu.bytes() == bytes).expect("a path MTU")
}

/// The frame with everything zeroed that may differ between peers.
fn normal(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    let opcode = Opcode::from_code(bytes[42]).expect("a known opcode");
    bytes[..12].fill(0); // MACs
    bytes[18..20].fill(0); // IPv4 identification
    bytes[22] = 0; // TTL
    bytes[24..26].fill(0); // IPv4 checksum
    bytes[34..36].fill(0); // UDP source port
    bytes[43] &= !0x40; // MigReq
    if !opcode.row().position.closes() {
        bytes[50] &= !0x80; // AckReq
    }
    // To the end by the IPv4 length (a short frame is padded), without the ICRC.
    let end = 14 + usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
    bytes.truncate(end - 4);
    bytes
}

fn first_psn(frames: &[Frame], from: Ipv4Addr) -> u32 {
    let asks = |frame: &&Frame| frame.from() == from && (frame.is_request() || frame.is_read());
    frames.iter().find(asks).map_or(0, |f| f.packet.bth.psn)
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

/// A story whose card stands where `side` stood, its QP connected as in the capture, perhaps with a peer.
fn stand_in(name: &str, frames: &[Frame], side: Ipv4Addr, peer: Option<Endpoint>) -> (Story, End) {
    let mut config = RoomConfig::example(1, 1);
    config.cards[0].mac = std::array::from_fn(|i| (mac(side) >> (8 * (5 - i))) as u8);
    config.cards[0].ip = side;
    let mut story = Story::begin(name, config, peer);
    let host = story.start(0);
    let mut end = story.qp(host, |init| init.max_inflight = 0);
    end.psn = first_psn(frames, side);
    let gid = host::Gid::from(other(side));
    let mut attr = usual(gid, qpn(frames, other(side)), end.psn, first_psn(frames, other(side)));
    attr.path_mtu = mtu(frames);
    attr.access |= Access::REMOTE_READ;
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (16, 16);
    attr.av.traffic_class = frames[0].packet.ip.dscp << 2;
    let rnr = frames.iter().filter_map(|f| f.packet.aeth).find(|aeth| aeth.syndrome >> 5 == 1);
    attr.min_rnr_timer = rnr.map_or(12, |aeth| aeth.syndrome & 0x1f);
    end.qp.connect_with(&attr).expect("connect");
    (story, end)
}

/// The ranges that the WRITEs and READs to `side` name, by key.
fn ranges(frames: &[Frame], side: Ipv4Addr) -> BTreeMap<u32, (u64, u64)> {
    let mut ranges: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for reth in frames.iter().filter(|f| f.from() != side).filter_map(|f| f.packet.reth) {
        let end = reth.va + u64::from(reth.dma_length);
        let range = ranges.entry(reth.rkey).or_insert((reth.va, end));
        *range = (range.0.min(reth.va), range.1.max(end));
    }
    ranges
}

#[test]
fn the_card_sends_the_same_bytes_for_the_same_work() {
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
        let (them, theirs) = (other(side), qpn(&frames, other(side)));
        let mut peer = Endpoint::new(mac(them), them);
        peer.create_qp_numbered(theirs, 1).expect("create");
        for (key, (va, end)) in ranges(&frames, them) {
            let bytes = vec![0; (end - va) as usize];
            peer.register_as(key, Region { pd: 1, va, access: access::REMOTE_WRITE, bytes })
                .expect("register");
        }
        let label = format!("golden_{name}_from_{}", if side == A { "a" } else { "b" });
        let (mut story, end) = stand_in(&label, &frames, side, Some(peer));
        let messages = messages(&frames, side);
        {
            let mut room = lock(&story.room);
            let remote = Address { mac: mac(side), ip: side.into(), qpn: end.qp.number() };
            let params = QpParams { path_mtu: mtu(&frames), rq_psn: end.psn, ..QpParams::to(remote) };
            room.peer().connect(theirs, params).expect("connect");
            for wr_id in 0..messages.len() as u64 {
                let longest = messages.iter().map(|wr| wr.data.len()).max().unwrap_or(0);
                let wr = RecvWr { wr_id, landing: Landing::Owned(longest) };
                room.peer().post_recv(theirs, wr).expect("post receive");
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
        assert!(compared >= least, "{name}: compared only {compared}");
        drop(room);
        story.no_other_events();
    }
}

/// Feeds the captured requests to `side` into the card; gives its answers.
fn answers(
    name: &str,
    side: Ipv4Addr,
    lost: &[usize],
    ready: usize,
    receive: usize,
    short: usize,
    keyed: bool,
) -> Vec<(u32, u8, u32)> {
    let frames = capture(name);
    let label = format!("golden_{name}_to_{}", if side == A { "a" } else { "b" });
    let (mut story, end) = stand_in(&label, &frames, side, None);
    let regions: BTreeMap<u32, (u64, Mr)> = ranges(&frames, side)
        .into_iter()
        .map(|(key, (from, to))| {
            let length = ((to - from) as usize - short).max(1);
            let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            (key, (from, end.pd.allocate(length, rights).expect("allocate")))
        })
        .collect();
    for (i, frame) in frames.iter().enumerate() {
        if i + 1 == ready && receive > 0 {
            for wr_id in 0..100 {
                let sge = [end.memory.sge(0..receive).expect("the landing")];
                end.qp.post_recv(&[CardRecv::new(wr_id, &sge)]).expect("post receive");
            }
        } else if i + 1 == ready {
            // Receives of nothing, for WRITEs with immediate data.
            for wr_id in 0..100 {
                end.qp.post_recv(&[CardRecv::new(wr_id, &[])]).expect("post receive");
            }
        }
        if frame.from() == side || !(frame.is_request() || frame.is_read()) || lost.contains(&(i + 1)) {
            continue;
        }
        let mut packet = frame.packet.clone();
        packet.bth.dest_qp = end.qp.number();
        if let Some(reth) = &mut packet.reth {
            let (from, region) = &regions[&reth.rkey];
            reth.va = region.addr() + (reth.va - from);
            reth.rkey = if keyed { region.rkey() } else { region.rkey() ^ 0x00ff_0000 };
        }
        lock(&story.room).inject(Side::B, &packet.build()).expect("inject");
        story.wait(20 * US);
    }
    let found = story.packets();
    found
        .iter()
        .filter(|seen| seen.from == Side::A && seen.packet.opcode() == Some(Opcode::RcAcknowledge))
        .filter_map(|seen| {
            let aeth = seen.packet.aeth?;
            Some((seen.packet.bth.psn, aeth.syndrome, aeth.msn))
        })
        .collect()
}

/// What the kernel answered. Behind an RNR NAK it names the packets that follow with sequence NAKs, too; the rule asks
/// for silence.
fn theirs(name: &str, side: Ipv4Addr) -> Vec<(u32, u8, u32)> {
    let frames = capture(name);
    let mut waiting = false;
    frames
        .iter()
        .filter(|frame| frame.from() == side)
        .filter_map(Frame::answer)
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
    for (name, side, lost, ready, receive, short, least) in [
        ("rc_pingpong_send", A, &[][..], 1, 4096, 0, 10),
        ("rc_pingpong_send", B, &[], 1, 4096, 0, 10),
        ("rc_pingpong_mtu256", A, &[], 1, 4096, 0, 5),
        ("rc_send_bw", A, &[], 1, 5000, 0, 5),
        ("rc_write_bw", A, &[], 1, 0, 0, 5),
        ("rc_write_dropmid", A, &[3], 1, 0, 0, 6),
        ("rc_write_pad", A, &[], 1, 0, 0, 3),
        ("v_psn_wrap", A, &[], 1, 0, 0, 3),
        ("v_rnr_recover", A, &[], 36, 4000, 0, 3),
        ("v_rnr_exceeded", A, &[], 0, 0, 0, 2),
        ("v_zero_len", A, &[], 1, 0, 0, 2),
        ("v_send_imm", A, &[], 1, 4000, 0, 2),
        ("v_write_imm", A, &[], 1, 4000, 0, 2),
        ("v_write_oob", A, &[], 1, 0, 1, 1),
    ] {
        let ours = answers(name, side, lost, ready, receive, short, true);
        let theirs = theirs(name, side);
        assert!(ours.len() >= least, "{name}: only {} answers", ours.len());
        assert_eq!(ours, theirs, "{name}");
    }
}

/// A responder of captured READs: the card in the place of `side`, its memory as it was.
struct Library {
    story: Story,
    end: End,
    frames: Vec<Frame>,
    side: Ipv4Addr,
    regions: BTreeMap<u32, (u64, Mr)>,
}

impl Library {
    fn open(name: &str, side: Ipv4Addr) -> Library {
        let frames = capture(name);
        let (story, end) = stand_in(&format!("golden_{name}_reads"), &frames, side, None);
        let mut regions = BTreeMap::new();
        for (key, (from, to)) in ranges(&frames, side) {
            let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
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
        for reth in
            self.frames.iter().filter(|frame| frame.is_request()).filter_map(|frame| frame.packet.reth)
        {
            let (from, region) = &self.regions[&reth.rkey];
            let nothing = vec![0; reth.dma_length as usize];
            region.write((reth.va - from) as usize, &nothing).expect("the range is the capture's");
        }
    }

    /// The peer's request in frame `i` comes again; what the card sent from then on.
    fn ask(&mut self, i: usize) -> Vec<Vec<u8>> {
        let before = lock(&self.story.room).sights().len();
        let mut packet = self.frames[i].packet.clone();
        packet.bth.dest_qp = self.end.qp.number();
        if let Some(reth) = &mut packet.reth {
            let (from, region) = &self.regions[&reth.rkey];
            reth.va = region.addr() + (reth.va - from);
            reth.rkey = region.rkey();
        }
        lock(&self.story.room).inject(Side::B, &packet.build()).expect("inject");
        self.story.wait(30 * US);
        let room = lock(&self.story.room);
        let sights = room.sights()[before..].iter().filter(|sight| sight.from == Side::A);
        sights.map(|sight| sight.frame.bytes[..sight.frame.bytes.len() - 4].to_vec()).collect()
    }
}

#[test]
fn the_card_answers_captured_reads_with_the_same_bytes() {
    for (name, lost, least) in [
        ("rc_read_bw", &[][..], 25),
        ("rc_read_mtu4096", &[], 15),
        ("rc_read_dropreq", &[1], 21),
        // a WRITE, and a READ of what it wrote; in the first before atomics
        ("v_mix", &[], 4),
        ("v_psn_wrap", &[], 6),
    ] {
        let mut library = Library::open(name, A);
        let frames = &library.frames;
        let atomic = |frame: &Frame| frame.opcode().row().kind == Kind::Atomic;
        let end = frames.iter().position(atomic).unwrap_or(frames.len());
        let requests: Vec<usize> = (0..end).filter(|i| frames[*i].from() != A).collect();
        library.fill();
        let mut ours = Vec::new();
        for i in requests.into_iter().filter(|i| !lost.contains(&(i + 1))) {
            ours.extend(library.ask(i));
        }
        let is_theirs = |frame: &&Frame| frame.from() == A && frame.opcode() != Opcode::RcAtomicAcknowledge;
        let theirs: Vec<&Frame> = library.frames.iter().filter(is_theirs).take(ours.len()).collect();
        assert!(ours.len() >= least, "{name}: only {} frames", ours.len());
        for (mine, frame) in ours.iter().zip(theirs) {
            assert_eq!(normal(mine), normal(&frame.bytes), "{name}: PSN {}", frame.packet.bth.psn);
        }
        if lost.is_empty() {
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
        let frames = capture(name);
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
                    .filter(|frame| frame.from() == A && frame.opcode().row().kind == Kind::Response)
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
    let frames = capture("v_bad_rkey_read");
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

#[test]
fn the_card_refuses_what_the_kernel_refused() {
    assert_eq!(answers("v_bad_rkey_read", A, &[], 1, 0, 0, false), theirs("v_bad_rkey_read", A));
    assert_eq!(answers("v_bad_rkey_write", A, &[], 1, 0, 0, false), theirs("v_bad_rkey_write", A));
    // The kernel of that day said 0x63 where the rule says 0x61; PSN and MSN agree.
    assert_eq!(theirs("v_send_too_long", A), [(1_192_961, Syndrome::NAK_REMOTE_OPERATION, 0)]);
    let ours = answers("v_send_too_long", A, &[], 1, 100, 0, true);
    assert_eq!(ours, [(1_192_961, Syndrome::NAK_INVALID_REQUEST, 0)]);
}
