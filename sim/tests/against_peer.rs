//! The card's RTL against the plain-Rust endpoint: random programs of every operation of RC, both ways, on one to four
//! connections over a wire that loses, doubles, delays and corrupts. Memory of both ends, guards included, and every
//! completion must be those of the program, and the card's CQ must tell of solicited ones, once. READs ask for what WRITEs and
//! atomics before them changed; SENDs behind a fence carry what READs brought; keys that were used end.
//!
//! Half of the connections end by a request whose key is wrong: the end over a quiet wire, behind all else. It fails with its
//! status, what is behind it is flushed at both ends, and memory stays as it was.
//!
//! A program that differs is run alone and shrunk; the seed and what is left of it are printed.
//! `VERBENA_PROGRAMS` says how many (default 500, the bar is 20,000: `cargo ci soak`), `VERBENA_SEED` the first.

#[path = "common/programs.rs"]
mod programs;

use contract::{PathMtu, Reject, WcOpcode, WcStatus, verbs::access};
use host::{CompChannel, Completion, Gid, Mr, SendWr};
use peer::{Address, Landing, QpParams, Region, SendOp, Tuning};
use programs::{Done, Op, Plan, RECEIVES, Receive, Request, SGES, Space, Work, number, requests, runner};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use sim::{
    backend::{lock, pass},
    story::{Host, IPV6, MS, Story, US, card_and_peer, usual},
    wire::{Delay, Faults},
};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    ops::{AddAssign, Range},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Programs that share a room: each has QPs of its own.
const ROOM: u64 = 25;
const DEFAULT: u64 = 500;
/// Captures that are kept.
const CAPTURES: u64 = 20;
/// Most programs that are run to shrink one.
const SHRINKS: usize = 1000;
/// Address of the peer's region, and of each of its windows.
const VA: u64 = 0x7fff_1234_5000;
const WINDOW_VA: u64 = 0x5000;
/// The first request of an end, and the first receive of one.
const LAST: u64 = 900;
const LAST_RECEIVES: u64 = RECEIVES + LAST;
/// What the peer's regions permit.
const RIGHTS: u8 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
const CARD_MAC: u64 = 0x0200_0000_000a;

/// A connection: what its ends do, the card first, and how they are set.
#[derive(Debug, Clone)]
struct Connection {
    requests: [Vec<Request>; 2],
    mtu: PathMtu,
    ipv6: bool,
    psns: [u32; 2],
    tuning: Tuning,
    /// READs and atomics at a time.
    depths: [u8; 2],
    max_inflight: u16,
    max_inline: u32,
    /// Receives are posted one at a time while all runs.
    late: [bool; 2],
    end: Option<End>,
}

/// A last request, with a key by which it may not be done.
#[derive(Debug, Clone, Copy)]
struct End {
    /// Who asks: 0 the card, 1 the peer.
    asks: usize,
    by: By,
    wrong: Wrong,
    signaled: bool,
    /// Requests behind it.
    behind: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    LocalInv,
    SendInv,
    Write,
    Read,
    FetchAdd,
}

/// What is wrong with the key: it has ended, is another use of its number, is nobody's, another domain's, or may not end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Ended,
    Tag,
    Number,
    Domain,
    Right,
}

impl End {
    /// Where the key is looked up.
    fn judges(&self) -> usize {
        if self.by == By::LocalInv { self.asks } else { 1 - self.asks }
    }

    /// What the card counts if it judges.
    fn reject(&self) -> Reject {
        match self.wrong {
            Wrong::Ended | Wrong::Number => Reject::RkeyUnknown,
            Wrong::Tag => Reject::RkeyTag,
            Wrong::Domain => Reject::RkeyPd,
            Wrong::Right => Reject::RkeyRights,
        }
    }

    /// What both ends are owed: sends, then receives, of the card, of the peer.
    fn owed(&self) -> [[Vec<Done>; 2]; 2] {
        let flush = WcStatus::WrFlushErr;
        let (opcode, status) = match self.by {
            By::LocalInv => (WcOpcode::LocalInv, WcStatus::LocQpOpErr),
            // the peer stops without a word, as soft RoCE does
            By::SendInv if self.asks == 0 => (WcOpcode::Send, WcStatus::RetryExcErr),
            By::SendInv => (WcOpcode::Send, WcStatus::RemAccessErr),
            By::Write => (WcOpcode::RdmaWrite, WcStatus::RemAccessErr),
            By::Read => (WcOpcode::RdmaRead, WcStatus::RemAccessErr),
            By::FetchAdd => (WcOpcode::FetchAdd, WcStatus::RemAccessErr),
        };
        let mut sends = vec![Done::failed(LAST, opcode, status)];
        sends.extend((1..=self.behind).map(|i| Done::failed(LAST + i, WcOpcode::Send, flush)));
        let receives = |first| {
            vec![
                Done::failed(LAST_RECEIVES, WcOpcode::Recv, first),
                Done::failed(LAST_RECEIVES + 1, WcOpcode::Recv, flush),
            ]
        };
        let other = match self.by {
            By::LocalInv => vec![],
            By::SendInv => receives(WcStatus::LocAccessErr),
            _ => receives(flush),
        };
        let mine = [sends, receives(flush)];
        if self.asks == 0 { [mine, [vec![], other]] } else { [[vec![], other], mine] }
    }
}

#[derive(Debug, Clone)]
struct Program {
    connections: Vec<Connection>,
    /// Percent of frames lost, doubled, corrupted, delayed.
    harm: [u8; 4],
    delay_us: u64,
    seed: u64,
}

fn tuning() -> impl Strategy<Value = Tuning> {
    let window = prop_oneof![Just(0), Just(1), Just(2), Just(5), Just(128)];
    (any::<[bool; 4]>(), 0..4u32, 0..20u32, window).prop_map(
        |(
            [coalesce_acks, mig_req, nak_behind_rnr, replays_continue],
            ack_interval,
            ack_req_interval,
            window,
        )| {
            Tuning {
                coalesce_acks,
                ack_interval,
                ack_req_interval,
                window,
                mig_req,
                nak_behind_rnr,
                naks_consume_retries: false,
                seven_retries_is_forever: true,
                replays_continue,
            }
        },
    )
}

fn end() -> impl Strategy<Value = End> {
    use proptest::sample::select;
    let by = select(vec![By::LocalInv, By::SendInv, By::Write, By::Read, By::FetchAdd]);
    let wrong = select(vec![Wrong::Ended, Wrong::Tag, Wrong::Number, Wrong::Domain, Wrong::Right]);
    let ends = |(asks, by, wrong, signaled, behind)| match wrong {
        // of a key that may not end the bounds are those of its region
        Wrong::Right if !matches!(by, By::LocalInv | By::SendInv) => {
            End { asks, by, wrong: Wrong::Ended, signaled, behind }
        }
        _ => End { asks, by, wrong, signaled, behind },
    };
    (0..2usize, by, wrong, any::<bool>(), 0..4u64).prop_map(ends)
}

fn connection() -> impl Strategy<Value = Connection> {
    let psn = || prop_oneof![0..1u32 << 24, 0xff_fff0..0x100_0000u32];
    let inflight = prop_oneof![Just(0u16), Just(1), Just(3), Just(128)];
    (
        [requests(0..8), requests(0..8)],
        proptest::sample::select(PathMtu::ALL),
        any::<bool>(),
        [psn(), psn()],
        tuning(),
        [1..=16u8, 1..=16u8],
        inflight,
        prop_oneof![Just(0u32), Just(32), Just(96), Just(220)],
        any::<[bool; 2]>(),
        proptest::option::of(end()),
    )
        .prop_map(|(requests, mtu, ipv6, psns, tuning, depths, max_inflight, max_inline, late, end)| {
            Connection { requests, mtu, ipv6, psns, tuning, depths, max_inflight, max_inline, late, end }
        })
}

fn program() -> impl Strategy<Value = Program> {
    let some = |count| proptest::collection::vec(connection(), count);
    let connections = prop_oneof![2 => some(1..=1usize), 1 => some(1..=4)];
    let harm = prop_oneof![1 => Just([0; 4]), 4 => proptest::array::uniform4(0..8u8)];
    (harm, 0..20u64, connections, any::<u64>().no_shrink())
        .prop_map(|(harm, delay_us, connections, seed)| Program { connections, harm, delay_us, seed })
}

/// The program of a seed, that can be made smaller.
fn tree(seed: u64) -> impl ValueTree<Value = Program> {
    program().new_tree(&mut runner(seed)).expect("a program")
}

/// What was provoked, by name.
#[derive(Default)]
struct Troubles(BTreeMap<&'static str, u64>);

impl AddAssign for Troubles {
    fn add_assign(&mut self, other: Self) {
        for (name, count) in other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }
}

/// A connection under way.
struct Link {
    qp: host::Qp,
    max_inline: usize,
    peer_qp: u32,
    /// Of the card, of the peer.
    plans: [Plan; 2],
    /// The windows of the card, those of its own plan first, and the keys of the peer's, likewise.
    windows: Vec<Mr>,
    window_keys: Vec<u32>,
    /// Receives not posted yet, the next last: at the card, at the peer.
    late: [Vec<Receive>; 2],
    card: Vec<Completion>,
    peer: Vec<peer::Completion>,
}

impl Link {
    /// Has as many completions as it is owed.
    fn is_over(&self) -> bool {
        let owed = |side: usize| self.plans[side].sent.len() + self.plans[1 - side].owed();
        self.card.len() >= owed(0) && self.peer.len() >= owed(1)
    }

    /// The memories of the card and of the peer, as the plan of `side` numbers them, by address and key.
    fn memories(&self, side: usize, host: &Host, key: u32) -> [Vec<(u64, u32)>; 2] {
        // a plan's near windows are the first of its own side, its far ones the last of the other
        let mine = |of: usize, end: usize| {
            let near = self.plans[end].windows[0].len();
            if of == end { 0..near } else { near..near + self.plans[of].windows[1].len() }
        };
        let card = self.windows[mine(side, 0)].iter().map(|window| (window.addr(), window.rkey()));
        let peer = self.window_keys[mine(side, 1)].iter().map(|key| (WINDOW_VA, *key));
        [
            std::iter::once((host.memory.addr(), host.memory.rkey())).chain(card).collect(),
            std::iter::once((VA, key)).chain(peer).collect(),
        ]
    }

    /// The spaces of its windows: of the card, of the peer.
    fn spaces(&self) -> [Vec<&Space>; 2] {
        let of = |end: usize| self.plans[end].windows[0].iter().chain(&self.plans[1 - end].windows[1]);
        [of(0).collect(), of(1).collect()]
    }

    fn has_failed(&self) -> bool {
        self.card.iter().any(|c| c.status != WcStatus::Success)
            || self.peer.iter().any(|c| c.status != WcStatus::Success)
    }
}

/// Connects the card and the peer.
fn connect(story: &mut Story, host: &Host, connection: &Connection, plans: [Plan; 2]) -> Link {
    let Connection { mtu, ipv6, psns, tuning, depths, .. } = *connection;
    let init = host::QpInit {
        max_send_sge: SGES as u32,
        max_inline: connection.max_inline,
        max_recv_sge: SGES as u32,
        max_send_wr: 32,
        max_recv_wr: 16,
        max_inflight: connection.max_inflight,
        ..host::QpInit::rc(&host.cq, &host.cq)
    };
    let qp = host.pd.create_qp(&init).expect("create a QP");
    let peer_qp = {
        let mut room = lock(&story.room);
        let peer = room.peer();
        let qpn = peer.create_qp(1);
        let ip = match ipv6 {
            true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into(),
            false => Ipv4Addr::new(10, 0, 0, 1).into(),
        };
        let params = QpParams {
            path_mtu: mtu,
            rq_psn: psns[0],
            sq_psn: psns[1],
            timeout: 7,
            min_rnr_timer: 1,
            access: RIGHTS,
            max_rd_atomic: depths[1],
            max_dest_rd_atomic: depths[0],
            tuning,
            ..QpParams::to(Address { mac: CARD_MAC, ip, qpn: qp.number() })
        };
        peer.connect(qpn, params).expect("the peer connects");
        qpn
    };
    let gid = if ipv6 { Gid::from_u128(0xfd << 120 | 2) } else { Ipv4Addr::new(10, 0, 0, 2).into() };
    let mut attr = usual(gid, peer_qp, psns[0], psns[1]);
    attr.av.sgid_index = if ipv6 { IPV6 } else { 0 };
    attr.path_mtu = mtu;
    attr.timeout = 7;
    attr.min_rnr_timer = 1;
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (depths[0], depths[1]);
    qp.connect_with(&attr).expect("the card connects");
    let mut windows = programs::windows(&host.pd, &plans[0].windows[0]);
    windows.extend(programs::windows(&host.pd, &plans[1].windows[1]));
    let mut room = lock(&story.room);
    let spaces = plans[1].windows[0].iter().chain(&plans[0].windows[1]);
    let window_keys = spaces.map(|space| register(room.peer(), 1, &space.before)).collect();
    drop(room);
    Link {
        qp,
        max_inline: connection.max_inline as usize,
        peer_qp,
        plans,
        windows,
        window_keys,
        late: [vec![], vec![]],
        card: vec![],
        peer: vec![],
    }
}

/// A window of the peer.
fn register(peer: &mut peer::Endpoint, pd: u32, bytes: &[u8]) -> u32 {
    peer.register(Region { pd, va: WINDOW_VA, access: RIGHTS | access::INVALIDATE, bytes: bytes.to_vec() })
}

fn landing((va, lkey): (u64, u32), sges: &[Range<usize>]) -> Landing {
    let range = sges.first().cloned().unwrap_or(0..0);
    Landing::Region { lkey, va: va + range.start as u64, length: range.len() }
}

/// Posts work on the peer's QP, whose memories are `near`.
fn post_to_peer(peer: &mut peer::Endpoint, qpn: u32, near: &[(u64, u32)], far: &[(u64, u32)], work: &Work) {
    let (near, (va, rkey)) = (near[work.memories[0]], far[work.memories[1]]);
    let va = va + work.far as u64;
    let landing = landing(near, &work.sges);
    let op = match work.op {
        Op::Send(imm) => SendOp::Send { imm },
        Op::SendInv => SendOp::SendInv { rkey },
        Op::LocalInv => SendOp::LocalInv { rkey: near.1 },
        Op::Write(imm) => SendOp::Write { va, rkey, imm },
        Op::Read => SendOp::Read { va, rkey, landing },
        Op::FetchAdd(add) => SendOp::FetchAdd { va, rkey, add, landing },
        Op::CompareSwap(compare, swap) => SendOp::CompareSwap { va, rkey, compare, swap, landing },
    };
    let piece = |range: &Range<usize>| peer::Sge {
        lkey: near.1,
        va: near.0 + range.start as u64,
        length: range.len(),
    };
    let gather = if work.op.sends() { work.sges.iter().map(piece).collect() } else { vec![] };
    let Work { wr_id, signaled, solicited, fence, .. } = *work;
    let wr = peer::SendWr { gather, signaled, solicited, fence, ..peer::SendWr::new(wr_id, op, Vec::new()) };
    peer.post_send(qpn, wr).expect("post a send");
}

fn post_receive_to_peer(peer: &mut peer::Endpoint, qpn: u32, key: u32, receive: &Receive) {
    let wr = peer::RecvWr { wr_id: receive.wr_id, landing: landing((VA, key), &receive.sges) };
    peer.post_recv(qpn, wr).expect("post a receive");
}

/// The card, its CQ's events, what is counted at it by intent.
struct Card {
    host: Host,
    channel: CompChannel,
    /// A domain that no QP has.
    other: host::Pd,
    rejects: BTreeMap<Reject, u64>,
}

impl Card {
    fn start(story: &mut Story) -> Self {
        let mut host = story.start(0);
        let channel = host.context.create_comp_channel().expect("a channel");
        host.cq = host.context.create_cq(1024, Some(&channel)).expect("create a CQ");
        let other = host.context.alloc_pd().expect("a domain");
        Self { host, channel, other, rejects: BTreeMap::new() }
    }

    /// How many events its CQ has told of.
    fn events(&self) -> usize {
        let next = || self.channel.wait(Some(Duration::ZERO)).expect("the channel");
        std::iter::from_fn(next).count()
    }
}

/// Runs a program in a room that may have run others.
fn run(story: &mut Story, card_end: &mut Card, program: &Program) {
    let host = &card_end.host;
    // an event of the last program's end
    card_end.events();
    host.cq.request_notify(true).expect("arm the CQ");
    let percent = |i: usize| f64::from(program.harm[i]) / 100.0;
    lock(&story.room).change_wire(|wire, _| wire.reseed(program.seed));
    story.wire_harms(Faults {
        loss: percent(0),
        duplicate: percent(1),
        corrupt: percent(2),
        reorder: percent(3),
        delay: Delay::Time(program.delay_us * US),
    });
    let mut spaces = [Space::new(program.seed, SGES), Space::new(!program.seed, 1)];
    let mut links: Vec<Link> = Vec::new();
    for connection in &program.connections {
        let [card, peer] = &mut spaces;
        let plans = [
            Plan::new(&connection.requests[0], connection.mtu, card, peer),
            Plan::new(&connection.requests[1], connection.mtu, peer, card),
        ];
        links.push(connect(story, host, connection, plans));
    }
    let [card, peer] = spaces;
    host.memory.write(0, &card.before).expect("the region is large enough");
    let region = Region { pd: 1, va: VA, access: RIGHTS, bytes: peer.before.clone() };
    let key = lock(&story.room).peer().register(region);

    let post_card = |link: &Link, receive: &Receive| programs::post_receive(&link.qp, &host.memory, receive);
    let post_peer = |link: &Link, receive: &Receive| {
        post_receive_to_peer(lock(&story.room).peer(), link.peer_qp, key, receive);
    };
    for (link, connection) in links.iter_mut().zip(&program.connections) {
        let [of_card, of_peer] = link.plans.clone();
        if connection.late[0] {
            link.late[0] = of_peer.receives.into_iter().rev().collect();
        } else {
            of_peer.receives.iter().for_each(|receive| post_card(link, receive));
        }
        if connection.late[1] {
            link.late[1] = of_card.receives.into_iter().rev().collect();
        } else {
            of_card.receives.iter().for_each(|receive| post_peer(link, receive));
        }
    }
    for link in &links {
        let [_, far] = link.memories(0, host, key);
        let near: Vec<&Mr> = std::iter::once(&host.memory).chain(&link.windows).collect();
        for work in &link.plans[0].work {
            programs::post(&link.qp, link.max_inline, &near, &far, work);
        }
        let [far, near] = link.memories(1, host, key);
        for work in &link.plans[1].work {
            post_to_peer(lock(&story.room).peer(), link.peer_qp, &near, &far, work);
        }
    }

    let start = story.now();
    let mut turns = 0;
    while !links.iter().all(Link::is_over) && !links.iter().any(Link::has_failed) {
        pass(&mut lock(&story.room)).unwrap_or_else(|error| panic!("{error}"));
        collect(story, host, &mut links);
        turns += 1;
        for link in links.iter_mut().filter(|_| turns % 40 == 0) {
            if let Some(receive) = link.late[0].pop() {
                post_card(link, &receive);
            }
            if let Some(receive) = link.late[1].pop() {
                post_peer(link, &receive);
            }
        }
        if story.now() - start > 5000 * MS {
            let told: Vec<_> = links.iter().map(|link| (&link.plans, &link.card, &link.peer)).collect();
            panic!("no end after {turns} turns; plans, completions of the card, of the peer: {told:#?}");
        }
    }
    // Whatever is still under way (late duplicates) must change nothing.
    story.wait(MS);
    collect(story, host, &mut links);

    links.iter().for_each(judge);
    let receives = links.iter().flat_map(|link| &link.plans[1].receives);
    let solicited = receives.filter(|receive| receive.solicited).count();
    assert_eq!(
        card_end.events(),
        solicited.min(1),
        "events of {solicited} solicited completions of the card"
    );

    story.wire_harms(Faults::default());
    let mut owed = Vec::new();
    let mut kept = Vec::new();
    for (link, connection) in links.iter_mut().zip(&program.connections) {
        (link.card, link.peer) = (vec![], vec![]);
        owed.push(connection.end.map(|end| {
            kept.extend(ask_in_vain(story, card_end, link, end, key));
            if end.judges() == 0 {
                *card_end.rejects.entry(end.reject()).or_default() += 1;
            }
            end.owed()
        }));
    }
    let start = story.now();
    let over = |links: &[Link]| {
        links.iter().zip(&owed).all(|(link, owed)| {
            owed.as_ref().is_none_or(|owed| {
                let count = |side: usize| owed[side].iter().map(Vec::len).sum::<usize>();
                link.card.len() >= count(0) && link.peer.len() >= count(1)
            })
        })
    };
    let host = &card_end.host;
    while !over(&links) && story.now() - start < 1000 * MS {
        pass(&mut lock(&story.room)).unwrap_or_else(|error| panic!("{error}"));
        collect(story, host, &mut links);
    }
    story.wait(MS / 10);
    collect(story, host, &mut links);
    for (link, owed) in links.iter().zip(&owed) {
        let [of_card, of_peer] = owed.clone().unwrap_or_default();
        assert_eq!(split(link.card.iter().map(Done::from)), of_card, "the end at the card");
        assert_eq!(split(link.peer.iter().map(done)), of_peer, "the end at the peer");
    }

    let found = host.memory.to_vec(0..card.after.len()).expect("the region");
    card.matches("the card", &found);
    let mut room = lock(&story.room);
    let found = room.peer().deregister(key).expect("the region").bytes;
    peer.matches("the peer", &found);
    for link in &links {
        let [of_card, of_peer] = link.spaces();
        for (space, window) in of_card.iter().zip(&link.windows) {
            space.matches("a window of the card", &window.to_vec(0..window.len()).expect("all of it"));
        }
        for (space, key) in of_peer.iter().zip(&link.window_keys) {
            assert!(!room.peer().is_valid(*key), "a key of the peer has not ended");
            space.matches("a window of the peer", &room.peer().deregister(*key).expect("a window").bytes);
        }
        room.peer().destroy_qp(link.peer_qp).expect("destroy");
    }
}

/// Asks for the last thing, and posts what will be flushed. Gives the windows that must live on meanwhile.
fn ask_in_vain(story: &Story, card: &Card, link: &Link, end: End, key: u32) -> Vec<Mr> {
    let host = &card.host;
    let mut space = Space::new(1, 1);
    space.grow(64);
    let window = [space];
    let mut kept = Vec::new();
    let mut at_card = |pd: &host::Pd| {
        let made = programs::windows(pd, &window);
        let at = (made[0].addr(), made[0].rkey());
        kept.extend(made);
        at
    };
    let at_peer = |pd| (WINDOW_VA, register(lock(&story.room).peer(), pd, &window[0].before));
    // the first of those that the programs have ended
    let ended = |side: usize| (0..2).find_map(|plan| link.memories(plan, host, key)[side].get(1).copied());
    let (va, mut bad) = match (end.judges(), end.wrong) {
        (side, Wrong::Ended) => ended(side).unwrap_or((VA, 0xffff_ff00)),
        (0, Wrong::Domain) => at_card(&card.other),
        (_, Wrong::Domain) => at_peer(2),
        (0, Wrong::Right) => (host.memory.addr(), host.memory.rkey()),
        (_, Wrong::Right) => (VA, key),
        (0, _) => at_card(&host.pd),
        (_, _) => at_peer(1),
    };
    match end.wrong {
        Wrong::Tag => bad ^= 1,
        Wrong::Number => bad ^= 0xff00_0000,
        _ => {}
    }
    let mut sges = vec![host.memory.sge(0..8).expect("eight bytes")];
    let landing = Landing::Owned(8);
    let (at_card, at_peer) = match end.by {
        By::LocalInv => (host::Operation::LocalInv(bad), SendOp::LocalInv { rkey: bad }),
        By::SendInv => (host::Operation::SendWithInv(bad), SendOp::SendInv { rkey: bad }),
        By::Write => {
            (host::Operation::Write { addr: va, rkey: bad }, SendOp::Write { va, rkey: bad, imm: None })
        }
        By::Read => (host::Operation::Read { addr: va, rkey: bad }, SendOp::Read { va, rkey: bad, landing }),
        By::FetchAdd => (
            host::Operation::FetchAdd { addr: va, rkey: bad, add: 1 },
            SendOp::FetchAdd { va, rkey: bad, add: 1, landing },
        ),
    };
    if matches!(end.by, By::LocalInv | By::SendInv) {
        sges.clear();
    }
    for i in 0..2 {
        link.qp.post_recv(&[host::RecvWr::new(LAST_RECEIVES + i, &[])]).expect("post a receive");
        let wr = peer::RecvWr { wr_id: LAST_RECEIVES + i, landing: Landing::Owned(0) };
        lock(&story.room).peer().post_recv(link.peer_qp, wr).expect("post a receive");
    }
    let signaled = end.signaled;
    for i in 0..=end.behind {
        let wr_id = LAST + i;
        if end.asks == 0 {
            let wr = match i {
                0 => SendWr { signaled, ..SendWr::new(wr_id, at_card, &sges) },
                _ => SendWr::send(wr_id, &[]),
            };
            link.qp.post_send(&[wr]).expect("post a send");
        } else {
            let data = if end.by == By::Write { vec![0xee; 8] } else { vec![] };
            let (op, data) = if i == 0 { (at_peer, data) } else { (SendOp::Send { imm: None }, vec![]) };
            let wr = peer::SendWr { signaled, ..peer::SendWr::new(wr_id, op, data) };
            lock(&story.room).peer().post_send(link.peer_qp, wr).expect("post a send");
        }
    }
    kept
}

fn collect(story: &Story, host: &Host, links: &mut [Link]) {
    let mut entries = [Completion::default(); 64];
    let count = host.cq.poll(&mut entries).unwrap_or_else(|error| panic!("{error}"));
    for entry in &entries[..count] {
        let link = links.iter_mut().find(|link| link.qp.number() == entry.qpn).expect("one of these QPs");
        link.card.push(*entry);
    }
    let mut room = lock(&story.room);
    while let Some(entry) = room.peer().poll_cq() {
        let link = links.iter_mut().find(|link| link.peer_qp == entry.qpn).expect("one of these QPs");
        link.peer.push(entry);
    }
}

/// Those of the send queue, those of the receive queue.
fn split(all: impl Iterator<Item = Done>) -> [Vec<Done>; 2] {
    let (received, sent) = all.partition(|done| done.wr_id >= RECEIVES);
    [sent, received]
}

fn done(c: &peer::Completion) -> Done {
    Done {
        wr_id: c.wr_id,
        opcode: c.opcode,
        status: c.status,
        byte_len: c.byte_len,
        imm: c.imm,
        invalidated: c.invalidated,
    }
}

/// Completions are those owed, each queue in order.
fn judge(link: &Link) {
    let near = |side: usize| link.plans[side].windows[0].len();
    let keys: Vec<u32> = link.windows[near(0)..].iter().map(Mr::rkey).collect();
    let wanted = [link.plans[0].sent.clone(), link.plans[1].received(&keys)];
    assert_eq!(split(link.card.iter().map(Done::from)), wanted, "the card");
    let wanted = [link.plans[1].sent.clone(), link.plans[0].received(&link.window_keys[near(1)..])];
    assert_eq!(split(link.peer.iter().map(done)), wanted, "the peer");
    let solicited = link.peer.iter().filter(|c| c.wr_id >= RECEIVES).map(|c| c.solicited);
    let wanted = link.plans[0].receives.iter().map(|receive| receive.solicited);
    assert!(solicited.eq(wanted), "solicited completions of the peer differ");
}

/// Counts what was provoked, and allows it; nothing else may have happened.
fn close(mut story: Story, end: Card) -> Troubles {
    let mut troubles = Troubles::default();
    let Card { host, channel, other, rejects } = end;
    for (reject, times) in rejects {
        story.announce(0, reject, times);
    }
    for reject in Reject::ALL {
        let peer = lock(&story.room).peer().rejects(*reject);
        let card = host.context.device().rejects().expect("the counters");
        let card = card.iter().find(|(name, _)| name == reject).map_or(0, |(_, count)| *count);
        troubles.0.insert(reject.name(), peer + card);
        if HARMLESS.contains(reject) {
            story.allow(0, *reject);
        }
    }
    story.no_other_events();
    drop((other, host, channel));
    troubles
}

/// What a card may refuse on such a wire. A frame of a QP that is gone may still be on its way; small packets behind
/// atomics, and those into long lists, come faster than the host answers; a READ that was done may come once more when its
/// key has ended.
const HARMLESS: [Reject; 14] = [
    Reject::BadFcs,
    Reject::BufferFull,
    Reject::MissQueueFull,
    Reject::UnknownQp,
    Reject::WrongQpState,
    Reject::PsnOutOfSequence,
    Reject::PsnOutOfSequenceRepeat,
    Reject::Duplicate,
    Reject::ReceiverNotReady,
    Reject::ResponseStale,
    Reject::ResponseUnexpected,
    Reject::ResponseGap,
    Reject::QpHalted,
    Reject::SglKey,
];

/// Whether a program differs when it is run in a room of its own.
fn differs(program: &Program) -> bool {
    let alone = || {
        let mut story = card_and_peer("against_peer_alone", program.seed);
        let mut card = Card::start(&mut story);
        run(&mut story, &mut card, program);
        close(story, card);
    };
    catch_unwind(AssertUnwindSafe(alone)).is_err()
}

/// The smallest program on the way down that still fails; `None` if the first does not.
fn shrink(
    mut tree: impl ValueTree<Value = Program>,
    mut fails: impl FnMut(&Program) -> bool,
) -> Option<Program> {
    let mut smallest = None;
    for _ in 0..SHRINKS {
        let program = tree.current();
        let goes_on = if fails(&program) {
            smallest = Some(program);
            tree.simplify()
        } else {
            tree.complicate()
        };
        if !goes_on {
            break;
        }
    }
    smallest
}

/// Runs programs with these seeds in one room.
fn room(seeds: Range<u64>) -> Troubles {
    let name = format!("against_peer_{}", seeds.start / ROOM % CAPTURES);
    let mut story = card_and_peer(&name, seeds.start);
    let mut card = Card::start(&mut story);
    for seed in seeds.clone() {
        let program = tree(seed).current();
        if catch_unwind(AssertUnwindSafe(|| run(&mut story, &mut card, &program))).is_err() {
            let again = |seed, programs| {
                format!(
                    "VERBENA_SEED={seed} VERBENA_PROGRAMS={programs} cargo test -p sim --test against_peer"
                )
            };
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(|_| {}));
            let shrunk = shrink(tree(seed), differs);
            std::panic::set_hook(hook);
            match shrunk {
                Some(small) => {
                    // once more, to tell how
                    differs(&small);
                    panic!("program {seed} differs: {}\nshrunk: {small:#?}", again(seed, 1));
                }
                None => panic!(
                    "program {seed} differs, but only behind others: {}\nit is {program:#?}",
                    again(seeds.start, seed - seeds.start + 1)
                ),
            }
        }
    }
    close(story, card)
}

#[test]
fn random_programs_end_as_written_at_both_ends() {
    let (first, count) = (number("VERBENA_SEED", 0), number("VERBENA_PROGRAMS", DEFAULT));
    sim::story::model();
    let (next, over, begun) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now());
    let worker = || {
        let mut troubles = Troubles::default();
        loop {
            let start = next.fetch_add(ROOM, Relaxed);
            if start >= count {
                return troubles;
            }
            let end = (start + ROOM).min(count);
            troubles += room(first + start..first + end);
            let done = over.fetch_add(end - start, Relaxed) + end - start;
            if done % 100 < ROOM || done == count {
                println!("{done} of {count} programs, 0 differences, {} s", begun.elapsed().as_secs());
            }
        }
    };
    let mut all = Troubles::default();
    std::thread::scope(|scope| {
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        for worker in workers {
            match worker.join() {
                Ok(troubles) => all += troubles,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    println!("provoked: {:?}", all.0.iter().filter(|(_, n)| **n > 0).collect::<Vec<_>>());
    for reject in [
        Reject::BadFcs,
        Reject::PsnOutOfSequence,
        Reject::PsnOutOfSequenceRepeat,
        Reject::Duplicate,
        Reject::ReceiverNotReady,
        Reject::ResponseGap,
        Reject::ResponseStale,
    ] {
        assert!(count < 100 || all.0[reject.name()] > 10, "too little {} to prove anything", reject.name());
    }
}

#[test]
fn a_program_that_differs_is_shrunk_to_what_makes_it_differ() {
    let (mut shrunk, mut runs) = (0, 0);
    for seed in 0..20 {
        let is_atomic = |work: &Work| matches!(work.op, Op::FetchAdd(_) | Op::CompareSwap(..));
        let guilty = |program: &Program| {
            let plans = program.connections.iter().map(|connection| {
                let (mut near, mut far) = (Space::new(0, SGES), Space::new(1, SGES));
                Plan::new(&connection.requests[0], connection.mtu, &mut near, &mut far)
            });
            plans.into_iter().any(|plan| plan.work.iter().any(is_atomic))
        };
        let fails = |program: &Program| {
            runs += 1;
            guilty(program)
        };
        let Some(small) = shrink(tree(seed), fails) else { continue };
        shrunk += 1;
        let requests: usize = small.connections.iter().flat_map(|c| &c.requests).map(Vec::len).sum();
        assert_eq!((small.connections.len(), requests, small.harm), (1, 1, [0; 4]), "{small:#?}");
    }
    println!("{shrunk} programs shrunk in {runs} runs");
    assert!(shrunk > 5);
}
