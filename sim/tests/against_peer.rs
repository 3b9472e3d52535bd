//! The card's RTL against the plain-Rust endpoint: random programs of everything that RC has here, both ways, on one to
//! four connections over a wire that loses, doubles, delays and corrupts. Memory of both ends, guards included, and every
//! completion must be those of the program. READs ask for what WRITEs and atomics before them changed.
//!
//! A program that differs is run alone and shrunk; the seed and what is left of it are printed.
//! `VERBENA_PROGRAMS` says how many (default 500, the bar is 20,000: `cargo ci soak`), `VERBENA_SEED` the first.

#[path = "common/programs.rs"]
mod programs;

use contract::{PathMtu, Reject, WcStatus, verbs::access};
use host::{Completion, Gid};
use peer::{Address, Landing, QpParams, Region, SendOp, Tuning};
use programs::{
    Done, Op, Plan, RECEIVES, Receive, Request, SEND_SGES, SGES, Space, Work, number, requests, runner,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use sim::{
    backend::{lock, pass},
    story::{A, B, Host, IPV6, MS, Story, US, card_and_peer, usual},
    wire::{Delay, Faults},
};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    ops::{AddAssign, Range},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

/// Programs that share a room: each has QPs of its own.
const ROOM: u64 = 25;
const DEFAULT: u64 = 500;
/// Captures that are kept.
const CAPTURES: u64 = 20;
/// Most programs that are run to shrink one.
const SHRINKS: usize = 1000;
/// Address of the peer's region.
const VA: u64 = 0x7fff_1234_5000;
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
    )
        .prop_map(|(requests, mtu, ipv6, psns, tuning, depths, max_inflight, max_inline, late)| {
            Connection { requests, mtu, ipv6, psns, tuning, depths, max_inflight, max_inline, late }
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
    /// Receives not posted yet, the next last: at the card, at the peer.
    late: [Vec<Receive>; 2],
    card: Vec<Completion>,
    peer: Vec<peer::Completion>,
}

impl Link {
    /// Has as many completions as it is owed.
    fn is_over(&self) -> bool {
        let owed = |side: usize| self.plans[side].sent.len() + self.plans[1 - side].received.len();
        self.card.len() >= owed(0) && self.peer.len() >= owed(1)
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
        max_send_sge: SEND_SGES as u32,
        max_inline: connection.max_inline,
        max_recv_sge: SGES as u32,
        max_send_wr: 16,
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
            access: access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
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
    Link {
        qp,
        max_inline: connection.max_inline as usize,
        peer_qp,
        plans,
        late: [vec![], vec![]],
        card: vec![],
        peer: vec![],
    }
}

/// A piece of the peer's region.
fn piece(key: u32, range: &Range<usize>) -> peer::Sge {
    peer::Sge { lkey: key, va: VA + range.start as u64, length: range.len() }
}

fn landing(key: u32, sges: &[Range<usize>]) -> Landing {
    let range = sges.first().cloned().unwrap_or(0..0);
    Landing::Region { lkey: key, va: VA + range.start as u64, length: range.len() }
}

fn post_to_peer(peer: &mut peer::Endpoint, qpn: u32, key: u32, far: (u64, u32), work: &Work) {
    let (va, rkey) = (far.0 + work.far as u64, far.1);
    let landing = landing(key, &work.sges);
    let op = match work.op {
        Op::Send(imm) => SendOp::Send { imm },
        Op::Write(imm) => SendOp::Write { va, rkey, imm },
        Op::Read => SendOp::Read { va, rkey, landing },
        Op::FetchAdd(add) => SendOp::FetchAdd { va, rkey, add, landing },
        Op::CompareSwap(compare, swap) => SendOp::CompareSwap { va, rkey, compare, swap, landing },
    };
    let gather = match work.op {
        Op::Send(_) | Op::Write(_) => work.sges.iter().map(|range| piece(key, range)).collect(),
        _ => Vec::new(),
    };
    let Work { wr_id, signaled, solicited, fence, .. } = *work;
    let wr = peer::SendWr { gather, signaled, solicited, fence, ..peer::SendWr::new(wr_id, op, Vec::new()) };
    peer.post_send(qpn, wr).expect("post a send");
}

fn post_receive_to_peer(peer: &mut peer::Endpoint, qpn: u32, key: u32, receive: &Receive) {
    let wr = peer::RecvWr { wr_id: receive.wr_id, landing: landing(key, &receive.sges) };
    peer.post_recv(qpn, wr).expect("post a receive");
}

/// Runs a program in a room that may have run others.
fn run(story: &mut Story, host: &Host, program: &Program) {
    let percent = |i: usize| f64::from(program.harm[i]) / 100.0;
    let faults = Faults {
        loss: percent(0),
        duplicate: percent(1),
        corrupt: percent(2),
        reorder: percent(3),
        delay: Delay::Time(program.delay_us * US),
    };
    lock(&story.room).change_wire(|wire, _| {
        wire.reseed(program.seed);
        for side in [A, B] {
            wire.set_faults(side, faults);
        }
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
    let rights = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let region = Region { pd: 1, va: VA, access: access::LOCAL_WRITE | rights, bytes: peer.before.clone() };
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
        for work in &link.plans[0].work {
            programs::post(&link.qp, link.max_inline, &host.memory, (VA, key), work);
        }
        for work in &link.plans[1].work {
            let far = (host.memory.addr(), host.memory.rkey());
            post_to_peer(lock(&story.room).peer(), link.peer_qp, key, far, work);
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

    for link in &links {
        judge(link);
    }
    let found = host.memory.to_vec(0..card.after.len()).expect("the region");
    card.matches("the card", &found);
    let mut room = lock(&story.room);
    let found = room.peer().deregister(key).expect("the region").bytes;
    peer.matches("the peer", &found);
    for link in &links {
        room.peer().destroy_qp(link.peer_qp).expect("destroy");
    }
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

/// Completions are those owed, each queue in order.
fn judge(link: &Link) {
    let (received, sent): (Vec<Done>, Vec<Done>) =
        link.card.iter().map(Done::from).partition(|done| done.wr_id >= RECEIVES);
    assert_eq!(sent, link.plans[0].sent, "sends of the card");
    assert_eq!(received, link.plans[1].received, "receives of the card");
    let done = |c: &peer::Completion| Done {
        wr_id: c.wr_id,
        opcode: c.opcode,
        status: c.status,
        byte_len: c.byte_len,
        imm: c.imm,
    };
    let (received, sent): (Vec<Done>, Vec<Done>) =
        link.peer.iter().map(done).partition(|done| done.wr_id >= RECEIVES);
    assert_eq!(sent, link.plans[1].sent, "sends of the peer");
    assert_eq!(received, link.plans[0].received, "receives of the peer");
    let solicited = link.peer.iter().filter(|c| c.wr_id >= RECEIVES).map(|c| c.solicited);
    let wanted = link.plans[0].receives.iter().map(|receive| receive.solicited);
    assert!(solicited.eq(wanted), "solicited completions of the peer differ");
}

/// Counts what was provoked, and allows it; nothing else may have happened.
fn close(mut story: Story, host: Host) -> Troubles {
    let mut troubles = Troubles::default();
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
    drop(host);
    troubles
}

/// What a card may refuse on such a wire. A frame of a QP that is gone may still be on its way; small packets behind
/// atomics come faster than the host answers.
const HARMLESS: [Reject; 12] = [
    Reject::BadFcs,
    Reject::BufferFull,
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
];

/// Whether a program differs when it is run in a room of its own.
fn differs(program: &Program) -> bool {
    let alone = || {
        let mut story = card_and_peer("against_peer_alone", program.seed);
        let host = story.start(0);
        run(&mut story, &host, program);
        close(story, host);
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
    let host = story.start(0);
    for seed in seeds.clone() {
        let program = tree(seed).current();
        if catch_unwind(AssertUnwindSafe(|| run(&mut story, &host, &program))).is_err() {
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
    close(story, host)
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
