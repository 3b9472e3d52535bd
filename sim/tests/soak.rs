//! Two cards, everything that RC has here, both ways on four connections, over a wire that loses 1 % of the frames and
//! doubles, delays and corrupts 0.1 % each: no wrong byte, no hang, each completion exactly once.
//!
//! ```text
//! round    random requests on every QP of both cards > all completions owed > whole memory of both ends compared
//! seed     rounds until so many packets (ACKs not counted) went over the wire; queues, PSNs and keys go on
//! ```
//! `VERBENA_SOAK_SEEDS` (default 2) seeds of `VERBENA_SOAK_PACKETS` (default 25,000) each, from `VERBENA_SEED` on; the bar,
//! 20 of 50,000: `cargo ci soak`.

#[path = "common/programs.rs"]
mod programs;

use contract::{Opcode, PathMtu, Reject, StageCounter, opcode::Kind};
use host::{Completion, Mr, QpInit};
use programs::{Done, Plan, RECEIVES, Receive, SGES, Space, number, requests, runner};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use sim::{
    backend::{lock, pass},
    room::RoomConfig,
    story::{End, IPV6, MS, Story, parse, usual},
    wire::Faults,
};
use std::{
    ops::AddAssign,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

/// What went over the wire, and what it took.
#[derive(Debug, Default, Clone, Copy)]
struct Figures {
    sends: u64,
    writes: u64,
    reads: u64,
    atomics: u64,
    responses: u64,
    acks: u64,
    again: u64,
    timeouts: u64,
    rnrs: u64,
    /// Frames that found the receive buffer full.
    full: u64,
    rounds: u64,
    messages: u64,
    simulated_us: u64,
}

impl Figures {
    fn packets(&self) -> u64 {
        self.sends + self.writes + self.reads + self.atomics + self.responses
    }
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        self.sends += other.sends;
        self.writes += other.writes;
        self.reads += other.reads;
        self.atomics += other.atomics;
        self.responses += other.responses;
        self.acks += other.acks;
        self.again += other.again;
        self.timeouts += other.timeouts;
        self.rnrs += other.rnrs;
        self.full += other.full;
        self.rounds += other.rounds;
        self.messages += other.messages;
        self.simulated_us += other.simulated_us;
    }
}

/// Packets as they were sent: SENDs, WRITEs, READs, atomics, answers with data, ACKs and NAKs.
type Counts = [AtomicU64; 6];

fn count(counts: &Counts, frame: &[u8]) {
    let Some(opcode) = parse(frame).and_then(|packet| packet.opcode()) else { return };
    let place = match opcode.row().kind {
        Kind::Send => 0,
        Kind::Write => 1,
        Kind::Read => 2,
        Kind::Atomic => 3,
        _ if opcode == Opcode::RcAcknowledge => 5,
        _ => 4,
    };
    counts[place].fetch_add(1, Relaxed);
}

/// A QP of each card.
struct Pair {
    qps: [host::Qp; 2],
    mtu: PathMtu,
}

fn connect(ends: &[End; 2], number: usize) -> Pair {
    let mtu = [PathMtu::Mtu256, PathMtu::Mtu1024, PathMtu::Mtu512, PathMtu::Mtu4096][number];
    let make = |end: &End| {
        let init = QpInit {
            max_send_sge: SGES as u32,
            max_recv_sge: SGES as u32,
            max_inline: INLINE as u32,
            max_inflight: [128, 0, 7, 40][number],
            ..QpInit::rc(&end.cq, &end.cq)
        };
        end.pd.create_qp(&init).expect("create a QP")
    };
    let qps = [make(&ends[0]), make(&ends[1])];
    // both wrap, at once and later
    let psns = [0xff_fff0, 0xff_f000 + 100 * number as u32];
    for (me, qp) in qps.iter().enumerate() {
        let other = 1 - me;
        let ipv4 = number.is_multiple_of(2);
        let gid =
            if ipv4 { ends[other].gid() } else { host::Gid::from_u128(0xfd << 120 | (other as u128 + 1)) };
        let mut attr = usual(gid, qps[other].number(), psns[me], psns[other]);
        attr.av.sgid_index = if ipv4 { 0 } else { IPV6 };
        attr.path_mtu = mtu;
        attr.timeout = 7;
        attr.min_rnr_timer = 1;
        let depth = [16, 1, 4, 2][number];
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (depth, depth);
        qp.connect_with(&attr).expect("connect");
    }
    Pair { qps, mtu }
}

/// One round on all pairs; gives the number of messages.
fn round(story: &Story, ends: &[End; 2], pairs: &[Pair], random: &mut TestRunner) -> u64 {
    let mut draw = |n: u64| (0..n).new_tree(random).expect("a number").current();
    let seeds = [draw(u64::MAX), draw(u64::MAX)];
    let mut spaces = seeds.map(|seed| Space::new(seed, SGES));
    // by pair: what each side does, and the receives of each side that are not posted yet
    let mut plans: Vec<[Plan; 2]> = Vec::new();
    let mut late: Vec<[Vec<Receive>; 2]> = Vec::new();
    for pair in pairs {
        let mut work = || requests(4..15).new_tree(random).expect("requests").current();
        let (a, b) = (work(), work());
        let [one, two] = &mut spaces;
        plans.push([Plan::new(&a, pair.mtu, one, two), Plan::new(&b, pair.mtu, two, one)]);
    }
    for (end, space) in ends.iter().zip(&spaces) {
        end.memory.write(0, &space.before).expect("the region is large enough");
    }
    // by pair and plan: the windows of the near end, of the far end
    let windows: Vec<[[Vec<Mr>; 2]; 2]> = plans
        .iter()
        .map(|plans| {
            [0, 1].map(|me| [0, 1].map(|far| programs::windows(&ends[me ^ far].pd, &plans[me].windows[far])))
        })
        .collect();
    let mut draw = |n: u64| (0..n).new_tree(random).expect("a number").current();
    for (pair, plans) in pairs.iter().zip(&plans) {
        let mut waiting = [Vec::new(), Vec::new()];
        for me in 0..2 {
            let receives = &plans[1 - me].receives;
            if draw(4) == 0 {
                waiting[me] = receives.iter().rev().cloned().collect();
            } else {
                let post = |receive| programs::post_receive(&pair.qps[me], &ends[me].memory, receive);
                receives.iter().for_each(post);
            }
        }
        late.push(waiting);
    }
    for ((pair, plans), windows) in pairs.iter().zip(&plans).zip(&windows) {
        for me in 0..2 {
            let [near, far] = &windows[me];
            let near: Vec<&Mr> = std::iter::once(&ends[me].memory).chain(near).collect();
            let far = std::iter::once(&ends[1 - me].memory).chain(far);
            let far: Vec<(u64, u32)> = far.map(|memory| (memory.addr(), memory.rkey())).collect();
            for work in &plans[me].work {
                programs::post(&pair.qps[me], INLINE, &near, &far, work);
            }
        }
    }
    let mut done: Vec<[Vec<Completion>; 2]> = pairs.iter().map(|_| [vec![], vec![]]).collect();
    let owed: usize = plans.iter().flatten().map(|plan| plan.sent.len() + plan.owed()).sum();
    let (start, mut have, mut turns) = (story.now(), 0, 0);
    while have < owed {
        pass(&mut lock(&story.room)).unwrap_or_else(|error| panic!("{error}"));
        have += collect(ends, pairs, &mut done);
        turns += 1;
        for (pair, waiting) in pairs.iter().zip(&mut late).filter(|_| turns % 20 == 0) {
            for me in 0..2 {
                if let Some(receive) = waiting[me].pop() {
                    programs::post_receive(&pair.qps[me], &ends[me].memory, &receive);
                }
            }
        }
        assert!(
            story.now() - start < 1000 * MS,
            "hangs: {have} of {owed} completions; {done:?}\nof {plans:#?}"
        );
    }
    // One too many would come soon.
    lock(&story.room).run_for(MS / 20).unwrap_or_else(|error| panic!("{error}"));
    collect(ends, pairs, &mut done);
    for ((plans, done), windows) in plans.iter().zip(&done).zip(&windows) {
        for me in 0..2 {
            let keys: Vec<u32> = windows[1 - me][1].iter().map(Mr::rkey).collect();
            let (received, sent): (Vec<Done>, Vec<Done>) =
                done[me].iter().map(Done::from).partition(|done| done.wr_id >= RECEIVES);
            assert_eq!(sent, plans[me].sent, "sends of card {me}");
            assert_eq!(received, plans[1 - me].received(&keys), "receives of card {me}");
            for (spaces, windows) in plans[me].windows.iter().zip(&windows[me]) {
                for (space, window) in spaces.iter().zip(windows) {
                    space.matches("a window", &window.to_vec(0..window.len()).expect("all of it"));
                }
            }
        }
    }
    for (end, space) in ends.iter().zip(&spaces) {
        let found = end.memory.to_vec(0..space.after.len()).expect("the region");
        space.matches(&format!("card {}", end.card), &found);
    }
    plans.iter().flatten().map(|plan| plan.work.len() as u64).sum()
}

fn collect(ends: &[End; 2], pairs: &[Pair], done: &mut [[Vec<Completion>; 2]]) -> usize {
    let mut all = 0;
    for me in 0..2 {
        let mut entries = [Completion::default(); 64];
        let count = ends[me].cq.poll(&mut entries).unwrap_or_else(|error| panic!("{error}"));
        for entry in &entries[..count] {
            let of = pairs.iter().position(|pair| pair.qps[me].number() == entry.qpn);
            done[of.expect("one of these QPs")][me].push(*entry);
        }
        all += count;
    }
    all
}

/// Bytes of a message that may stand in a work request: as many as the card takes.
const INLINE: usize = 220;

/// What such a wire makes a card refuse. Small packets behind atomics, and those into long lists, come faster than the host
/// answers; a READ that was done may come once more when its key has ended.
const HARMLESS: [Reject; 11] = [
    Reject::BadFcs,
    Reject::BufferFull,
    Reject::MissQueueFull,
    Reject::PsnOutOfSequence,
    Reject::PsnOutOfSequenceRepeat,
    Reject::Duplicate,
    Reject::ReceiverNotReady,
    Reject::ResponseStale,
    Reject::ResponseUnexpected,
    Reject::ResponseGap,
    Reject::SglKey,
];

/// So many packets with this seed.
fn soak(seed: u64, packets: u64) -> Figures {
    let mut story = Story::unrecorded(&format!("soak_{seed}"), RoomConfig::example(2, seed));
    let counts: Arc<Counts> = Arc::default();
    {
        let counts = counts.clone();
        lock(&story.room).watch(Some(Box::new(move |_, frame, _| count(&counts, &frame.bytes))));
    }
    let faults = Faults { loss: 0.01, duplicate: 0.001, corrupt: 0.001, reorder: 0.001, ..Faults::default() };
    story.wire_harms(faults);
    // the first QP of each card only holds its host
    let hosts = [story.start(0), story.start(1)];
    let ends = hosts.map(|host| story.qp(host, |_| {}));
    let pairs: Vec<Pair> = (0..4).map(|number| connect(&ends, number)).collect();
    let mut random = runner(seed);
    let mut figures = Figures::default();
    loop {
        figures.messages += round(&story, &ends, &pairs, &mut random);
        figures.rounds += 1;
        let counted: [u64; 6] = std::array::from_fn(|i| counts[i].load(Relaxed));
        [figures.sends, figures.writes, figures.reads, figures.atomics, figures.responses, figures.acks] =
            counted;
        if figures.packets() >= packets {
            break;
        }
    }
    for (card, end) in ends.iter().enumerate() {
        figures.again += story.stage_counter(card, StageCounter::Retransmits);
        figures.timeouts += story.stage_counter(card, StageCounter::TimeoutEvents);
        figures.rnrs += story.stage_counter(card, StageCounter::RnrEvents);
        for reject in HARMLESS {
            story.allow(card, reject);
        }
        let rejects = end.context.device().rejects().expect("the counters");
        let full = rejects.iter().filter(|(reject, _)| *reject == Reject::BufferFull);
        figures.full += full.map(|(_, count)| count).sum::<u64>();
    }
    figures.simulated_us = story.now() / sim::story::US;
    story.no_other_events();
    figures
}

#[test]
fn everything_between_two_cards_survives_loss_duplicates_delay_and_corruption() {
    let (first, seeds) = (number("VERBENA_SEED", 0), number("VERBENA_SOAK_SEEDS", 2));
    let packets = number("VERBENA_SOAK_PACKETS", 25_000);
    sim::story::model();
    let (next, begun) = (AtomicU64::new(0), Instant::now());
    let worker = || {
        let mut figures = Figures::default();
        loop {
            let seed = first + next.fetch_add(1, Relaxed);
            if seed >= first + seeds {
                return figures;
            }
            let again = || format!("VERBENA_SEED={seed} VERBENA_SOAK_SEEDS=1 VERBENA_SOAK_PACKETS={packets}");
            let run = std::panic::AssertUnwindSafe(|| soak(seed, packets));
            let Ok(one) = std::panic::catch_unwind(run) else {
                panic!("seed {seed} differs: {} cargo test -p sim --test soak", again());
            };
            println!("seed {seed}: {} packets, {one:?}, {} s", one.packets(), begun.elapsed().as_secs());
            figures += one;
        }
    };
    let mut all = Figures::default();
    std::thread::scope(|scope| {
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        for worker in workers {
            match worker.join() {
                Ok(figures) => all += figures,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    println!(
        "{} packets of {seeds} seeds and {} ACKs, {} sent again: 0 wrong bytes, 0 hangs, each completion once, {} s\n{all:?}",
        all.packets(),
        all.acks,
        all.again,
        begun.elapsed().as_secs()
    );
    let kinds = [all.sends, all.writes, all.reads, all.atomics, all.responses];
    assert!(kinds.iter().all(|count| *count > packets / 100), "a kind is missing: {all:?}");
    assert!(all.again > packets / 200 && all.timeouts > 0 && all.rnrs > 0, "too little trouble: {all:?}");
}
