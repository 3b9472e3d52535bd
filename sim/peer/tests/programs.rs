//! Random programs over a hostile wire: whatever is lost, doubled, reordered or corrupted, memory and completions are
//! those of the program, and a request that must fail ends it with one completion for each, in order.
//!
//! `VERBENA_PROGRAMS` says how many (default 400), `VERBENA_SEED` where they come from. A failure is shrunk and printed.

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use common::*;
use contract::{PathMtu, QpState, Reject, WcOpcode, WcStatus};
use peer::{Completion, Landing, RecvWr, Region, SendOp, SendWr, Sge, Tuning};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The region that requests name: its size, its first address (a multiple of 8, for atomics).
const REGION: usize = 1 << 14;
const VA: u64 = 0x7fff_1234_5008;
/// The regions of sources and landings.
const SPACE: usize = 1 << 18;
const SPACE_VA: u64 = 0x5003;

/// A length as a number of packets and a little more or less.
#[derive(Debug, Clone, Copy)]
struct Size {
    packets: i64,
    more: i64,
}

impl Size {
    fn bytes(self, mtu: PathMtu) -> usize {
        (self.packets * i64::from(mtu.bytes()) + self.more).clamp(0, REGION as i64) as usize
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Send { size: Size, imm: Option<u32> },
    SendInv { size: Size },
    Write { size: Size, at: u16, imm: Option<u32> },
    Read { size: Size, at: u16 },
    FetchAdd { at: u16, add: u64 },
    CompareSwap { at: u16, hits: bool, swap: u64 },
    LocalInv,
}

/// A step and how it is asked for.
#[derive(Debug, Clone, Copy)]
struct Request {
    step: Step,
    signaled: bool,
    solicited: bool,
    fence: bool,
    /// From or into registered memory, in pieces, instead of inline.
    registered: bool,
}

#[derive(Debug, Clone, Copy)]
struct Wire {
    /// Percent of frames lost, doubled, delayed, damaged.
    harm: [u64; 4],
    seed: u64,
}

#[derive(Debug, Clone)]
struct Program {
    requests: [Vec<Request>; 2],
    mtu: PathMtu,
    psns: [u32; 2],
    tuning: Tuning,
    /// READs and atomics: asked for at a time, room for them.
    depth: (u8, u8),
    wire: Wire,
    /// Receives are posted one at a time while all runs.
    late: [bool; 2],
}

fn size() -> impl Strategy<Value = Size> {
    (0i64..7, prop_oneof![-1i64..=1, -300i64..300]).prop_map(|(packets, more)| Size { packets, more })
}

fn step() -> impl Strategy<Value = Step> {
    let imm = || proptest::option::weighted(0.3, any::<u32>());
    prop_oneof![
        3 => (size(), imm()).prop_map(|(size, imm)| Step::Send { size, imm }),
        1 => size().prop_map(|size| Step::SendInv { size }),
        3 => (size(), any::<u16>(), imm()).prop_map(|(size, at, imm)| Step::Write { size, at, imm }),
        3 => (size(), any::<u16>()).prop_map(|(size, at)| Step::Read { size, at }),
        1 => (0..8u16, any::<u64>()).prop_map(|(at, add)| Step::FetchAdd { at, add }),
        1 => (0..8u16, any::<bool>(), any::<u64>())
            .prop_map(|(at, hits, swap)| Step::CompareSwap { at, hits, swap }),
        1 => Just(Step::LocalInv),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let weighted = proptest::bool::weighted;
    (step(), weighted(0.7), weighted(0.2), weighted(0.2), any::<bool>()).prop_map(
        |(step, signaled, solicited, fence, registered)| Request {
            step,
            signaled,
            solicited,
            fence,
            registered,
        },
    )
}

fn tuning() -> impl Strategy<Value = Tuning> {
    (any::<[bool; 4]>(), 0..4u32, 0..20u32, prop_oneof![Just(0), Just(1), Just(2), Just(5), Just(128)])
        .prop_map(|([coalesce, mig_req, behind, continues], ack_interval, ack_req_interval, window)| Tuning {
            coalesce_acks: coalesce,
            ack_interval,
            ack_req_interval,
            window,
            mig_req,
            nak_behind_rnr: behind,
            naks_consume_retries: true,
            seven_retries_is_forever: true,
            replays_continue: continues,
        })
}

fn wire() -> impl Strategy<Value = Wire> {
    (proptest::array::uniform4(0..8u64), any::<u64>()).prop_map(|(harm, seed)| Wire { harm, seed })
}

fn program() -> impl Strategy<Value = Program> {
    let requests = || proptest::collection::vec(request(), 0..16);
    let psn = || prop_oneof![0..1u32 << 24, 0xff_fff0..0x100_0000u32];
    (
        [requests(), requests()],
        proptest::sample::select(&PathMtu::ALL[..3]),
        [psn(), psn()],
        tuning(),
        (1..=16u8, 0..=15u8).prop_map(|(out, more)| (out, (out + more).min(16))),
        wire(),
        any::<[bool; 2]>(),
    )
        .prop_map(|(requests, mtu, psns, tuning, depth, wire, late)| Program {
            requests,
            mtu,
            psns,
            tuning,
            depth,
            wire,
            late,
        })
}

impl Wire {
    fn fates(self) -> impl FnMut(Side, u64, Vec<u8>) -> Fate {
        let mut dice = ChaCha8Rng::seed_from_u64(self.seed);
        move |_, _, mut bytes| {
            let mut below = |n: u64| dice.next_u64() % n;
            let [lost, doubled, delayed, damaged] = self.harm.map(|percent| below(100) < percent);
            let late = below(20 * DELAY);
            let delay = |hit: bool| if hit { late } else { 0 };
            let mut fate = Vec::new();
            if lost {
                return fate;
            }
            if doubled {
                fate.push((delay(!delayed), bytes.clone()));
            }
            if damaged {
                let bit = below(bytes.len() as u64 * 8);
                bytes[bit as usize / 8] ^= 1 << (bit % 8);
            }
            fate.push((delay(delayed), bytes));
            fate
        }
    }
}

/// Opcode, length, message, immediate data, invalidated key, solicited.
type Told = (WcOpcode, u32, Vec<u8>, Option<u32>, Option<u32>, bool);

fn told(c: &Completion) -> Told {
    (c.opcode, c.byte_len, c.data.clone(), c.imm, c.invalidated, c.solicited)
}

/// The memory that the requests of one direction name, by a plain model.
struct Far {
    memory: Vec<u8>,
    /// What READs read that need not have landed when the next request executes.
    reading: Vec<Range<usize>>,
}

impl Far {
    fn is_being_read(&self, range: &Range<usize>) -> bool {
        self.reading.iter().any(|read| read.start < range.end && range.start < read.end)
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.memory[at..at + 8].try_into().expect("eight bytes"))
    }
}

/// Registered memory that is handed out piece by piece, none beside another.
struct Space {
    key: u32,
    at: usize,
    /// What the pieces must hold in the end.
    pieces: Vec<(usize, Vec<u8>)>,
}

impl Space {
    fn new(pair: &mut Pair, side: Side) -> Self {
        let region = Region { pd: 1, va: SPACE_VA, access: ALL, bytes: vec![0xaa; SPACE] };
        Self { key: pair.end(side).register(region), at: 0, pieces: Vec::new() }
    }

    /// A piece of `length` bytes that begins with `bytes` in the end.
    fn take(&mut self, length: usize, bytes: Vec<u8>) -> Sge {
        let piece = Sge { lkey: self.key, va: SPACE_VA + self.at as u64, length };
        self.pieces.push((self.at, bytes));
        self.at += length + 3;
        assert!(self.at <= SPACE, "the space is used up");
        piece
    }

    /// A landing for `bytes`, with some room behind them.
    fn landing(&mut self, bytes: &[u8], room: usize) -> Landing {
        let Sge { lkey, va, length } = self.take(bytes.len() + room, bytes.to_vec());
        Landing::Region { lkey, va, length }
    }

    fn is_as_planned(&self, bytes: &[u8]) -> bool {
        self.pieces.iter().all(|(at, piece)| bytes[*at..*at + piece.len()] == *piece)
    }
}

/// One direction of a program: what is posted, and what it must leave behind.
struct Direction {
    rkey: u32,
    far: Far,
    /// Sources and landings of the requester, landings of the receiver.
    near_space: Space,
    far_space: Space,
    work: Vec<SendWr>,
    sends: Vec<(u64, Told)>,
    receives: Vec<(RecvWr, Told)>,
    /// Keys that the program invalidates: at the near end, at the far end.
    spent: [Vec<u32>; 2],
}

impl Direction {
    /// Registers what the requests of `side` need at both ends, and computes what they do.
    fn plan(pair: &mut Pair, side: Side, requests: &[Request], mtu: PathMtu, seed: u64) -> Self {
        let mut dice = ChaCha8Rng::seed_from_u64(seed ^ side as u64);
        let mut random = |length: usize| {
            let mut bytes = vec![0; length];
            dice.fill_bytes(&mut bytes);
            bytes
        };
        let other = other(side);
        let memory = random(REGION);
        let region = Region { pd: 1, va: VA, access: ALL, bytes: memory.clone() };
        let rkey = pair.end(other).register(region);
        let mut plan = Self {
            rkey,
            far: Far { memory, reading: Vec::new() },
            near_space: Space::new(pair, side),
            far_space: Space::new(pair, other),
            work: Vec::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            spent: [Vec::new(), Vec::new()],
        };
        for (wr_id, request) in (0..).zip(requests) {
            let data = match request.step {
                Step::Send { size, .. } | Step::SendInv { size } | Step::Write { size, .. } => {
                    random(size.bytes(mtu))
                }
                _ => Vec::new(),
            };
            plan.add(pair, side, wr_id, request, data, mtu);
        }
        let Space { key, pieces, .. } = &plan.near_space;
        let space = &mut pair.end(side).region_mut(*key).expect("a region").bytes;
        for (at, piece) in pieces {
            space[*at..*at + piece.len()].copy_from_slice(piece);
        }
        plan
    }

    fn add(
        &mut self,
        pair: &mut Pair,
        side: Side,
        wr_id: u64,
        request: &Request,
        data: Vec<u8>,
        mtu: PathMtu,
    ) {
        let Request { step, signaled, solicited, registered, .. } = *request;
        let rkey = self.rkey;
        let spare = |pair: &mut Pair, side| {
            pair.end(side).register(Region { pd: 1, va: 0, access: ALL, bytes: vec![0; 8] })
        };
        let place = |at: u16, length: usize| usize::from(at) % (REGION - length + 1);
        let target = match step {
            Step::Write { at, .. } => place(at, data.len())..place(at, data.len()) + data.len(),
            Step::Read { size, at } => {
                let length = size.bytes(mtu);
                place(at, length)..place(at, length) + length
            }
            Step::FetchAdd { at, .. } | Step::CompareSwap { at, .. } => {
                8 * usize::from(at)..8 * usize::from(at) + 8
            }
            _ => 0..0,
        };
        let va = VA + target.start as u64;
        // A READ that goes again would see what a request behind it has changed.
        let changes = matches!(step, Step::Write { .. } | Step::FetchAdd { .. } | Step::CompareSwap { .. });
        let fence = request.fence || changes && self.far.is_being_read(&target);
        if fence {
            self.far.reading.clear();
        }
        let result = match step {
            Step::Read { .. } | Step::FetchAdd { .. } | Step::CompareSwap { .. } => {
                self.far.memory[target.clone()].to_vec()
            }
            _ => Vec::new(),
        };
        let landing = match registered {
            true => self.near_space.landing(&result, 0),
            false => Landing::Owned(result.len()),
        };
        let (op, opcode, received) = match step {
            Step::Send { imm, .. } => {
                (SendOp::Send { imm }, WcOpcode::Send, Some((WcOpcode::Recv, imm, None)))
            }
            Step::SendInv { .. } => {
                let key = spare(pair, other(side));
                self.spent[1].push(key);
                let received = Some((WcOpcode::Recv, None, Some(key)));
                (SendOp::SendInv { rkey: key }, WcOpcode::Send, received)
            }
            Step::Write { imm, .. } => {
                self.far.memory[target].copy_from_slice(&data);
                let received = imm.map(|imm| (WcOpcode::RecvRdmaWithImm, Some(imm), None));
                (SendOp::Write { va, rkey, imm }, WcOpcode::RdmaWrite, received)
            }
            Step::Read { .. } => {
                self.far.reading.push(target);
                (SendOp::Read { va, rkey, landing }, WcOpcode::RdmaRead, None)
            }
            Step::FetchAdd { add, .. } => {
                let value = self.far.word(target.start).wrapping_add(add);
                self.far.memory[target].copy_from_slice(&value.to_le_bytes());
                (SendOp::FetchAdd { va, rkey, add, landing }, WcOpcode::FetchAdd, None)
            }
            Step::CompareSwap { hits, swap, .. } => {
                let value = self.far.word(target.start);
                let compare = if hits { value } else { value ^ 1 << 63 };
                if hits {
                    self.far.memory[target].copy_from_slice(&swap.to_le_bytes());
                }
                (SendOp::CompareSwap { va, rkey, compare, swap, landing }, WcOpcode::CompSwap, None)
            }
            Step::LocalInv => {
                let key = spare(pair, side);
                self.spent[0].push(key);
                (SendOp::LocalInv { rkey: key }, WcOpcode::LocalInv, None)
            }
        };
        if let Some((opcode, imm, invalidated)) = received {
            let message = if opcode == WcOpcode::Recv { data.clone() } else { Vec::new() };
            let room = usize::from(solicited);
            let (landing, owned) = match registered {
                true => (self.far_space.landing(&message, room), Vec::new()),
                false => (Landing::Owned(message.len() + room), message),
            };
            let wr = RecvWr { wr_id: 1000 + self.receives.len() as u64, landing };
            self.receives.push((wr, (opcode, data.len() as u32, owned, imm, invalidated, solicited)));
        }
        if signaled {
            let byte_len = result.len() as u32;
            let owned = if registered { Vec::new() } else { result };
            self.sends.push((wr_id, (opcode, byte_len, owned, None, None, false)));
        }
        let pieces = data.chunks(data.len().div_ceil(3).max(1));
        let gather = match registered {
            true => pieces.map(|piece| self.near_space.take(piece.len(), piece.to_vec())).collect(),
            false => Vec::new(),
        };
        let data = if gather.is_empty() { data } else { Vec::new() };
        self.work.push(SendWr { gather, signaled, solicited, fence, ..SendWr::new(wr_id, op, data) });
    }
}

fn other(side: Side) -> Side {
    if side == A { B } else { A }
}

/// What wires and late receives must have provoked over all programs.
const TROUBLES: [Reject; 8] = [
    Reject::BadIcrc,
    Reject::BadIpHeader,
    Reject::PsnOutOfSequence,
    Reject::PsnOutOfSequenceRepeat,
    Reject::Duplicate,
    Reject::ReceiverNotReady,
    Reject::ResponseStale,
    Reject::ResponseGap,
];

/// Runs a program to its end and judges it; counts what was provoked.
fn run(program: &Program, troubles: &mut BTreeMap<&'static str, u64>) {
    let mut pair = Pair::open(|side, params| {
        params.path_mtu = program.mtu;
        params.timeout = 6;
        params.min_rnr_timer = 1;
        params.tuning = program.tuning;
        (params.max_rd_atomic, params.max_dest_rd_atomic) = program.depth;
        let (sq, rq) = if side == A { (0, 1) } else { (1, 0) };
        (params.sq_psn, params.rq_psn) = (program.psns[sq], program.psns[rq]);
    });
    let qpns = [pair.qa, pair.qb];
    let plans = [A, B].map(|side| {
        let seed = program.wire.seed;
        Direction::plan(&mut pair, side, &program.requests[side as usize], program.mtu, seed)
    });
    let mut late = [Vec::new(), Vec::new()];
    for side in [A, B] {
        let plan = &plans[side as usize];
        let far = other(side) as usize;
        for wr in plan.work.clone() {
            pair.end(side).post_send(qpns[side as usize], wr).expect("post");
        }
        let receives = plan.receives.iter().map(|(wr, _)| *wr);
        if program.late[side as usize] {
            late[far] = receives.rev().collect();
        } else {
            receives.for_each(|wr| pair.end(other(side)).post_recv(qpns[far], wr).expect("post"));
        }
    }
    let mut wire = program.wire.fates();
    let mut until = 0;
    loop {
        until += 50 * DELAY;
        pair.run(until, &mut wire);
        let mut waits = false;
        for side in [A, B] {
            if let Some(wr) = late[side as usize].pop() {
                pair.end(side).post_recv(qpns[side as usize], wr).expect("post");
                waits = true;
            }
        }
        if !waits && pair.a.is_idle(qpns[0]) && pair.b.is_idle(qpns[1]) {
            break;
        }
        assert!(until < 1_000_000 * DELAY, "no end after a second of simulated time");
    }
    // Whatever is still under way (late duplicates) must change nothing.
    pair.run(until + 1000 * DELAY, &mut wire);
    let done = [pair.completions(A), pair.completions(B)];
    for side in [A, B] {
        let plan = &plans[side as usize];
        let [mine, theirs] = [&done[side as usize], &done[other(side) as usize]];
        assert!(mine.iter().all(|c| c.status == OK), "{side:?}: a completion failed");
        let sends: Vec<(u64, Told)> =
            mine.iter().filter(|c| c.opcode.code() < 128).map(|c| (c.wr_id, told(c))).collect();
        assert!(sends == plan.sends, "{side:?}: completions of sends differ");
        let received: Vec<(u64, Told)> =
            theirs.iter().filter(|c| c.opcode.code() >= 128).map(|c| (c.wr_id, told(c))).collect();
        let expected: Vec<(u64, Told)> =
            plan.receives.iter().map(|(wr, told)| (wr.wr_id, told.clone())).collect();
        assert!(received == expected, "{side:?}: what the other end received differs");
        let end = pair.end(other(side));
        let memory = &end.region(plan.rkey).expect("a region").bytes;
        assert!(*memory == plan.far.memory, "{side:?}: the memory behind its requests differs");
        let space = &end.region(plan.far_space.key).expect("a region").bytes;
        assert!(plan.far_space.is_as_planned(space), "{side:?}: what landed at the other end differs");
        assert!(plan.spent[1].iter().all(|key| !end.is_valid(*key)) && end.is_valid(plan.rkey));
        let end = pair.end(side);
        let space = &end.region(plan.near_space.key).expect("a region").bytes;
        assert!(plan.near_space.is_as_planned(space), "{side:?}: what it read differs");
        assert!(plan.spent[0].iter().all(|key| !end.is_valid(*key)));
    }
    for reject in TROUBLES {
        *troubles.entry(reject.name()).or_default() += pair.a.rejects(reject) + pair.b.rejects(reject);
    }
    let again = pair.a.retransmits(qpns[0]) + pair.b.retransmits(qpns[1]);
    *troubles.entry("retransmits").or_default() += again;
}

/// What makes the last request of a failing program fail.
#[derive(Debug, Clone, Copy)]
enum Flaw {
    RemoteKey(Step),
    Unaligned,
    TooLong,
    SourceKey,
    LandingKey,
    NoKeyToInvalidate,
    NoRemoteKeyToInvalidate,
}

fn flaw() -> impl Strategy<Value = Flaw> {
    let size = Size { packets: 2, more: 1 };
    proptest::sample::select(vec![
        Flaw::RemoteKey(Step::Write { size, at: 0, imm: None }),
        Flaw::RemoteKey(Step::Read { size, at: 0 }),
        Flaw::RemoteKey(Step::FetchAdd { at: 0, add: 1 }),
        Flaw::Unaligned,
        Flaw::TooLong,
        Flaw::SourceKey,
        Flaw::LandingKey,
        Flaw::NoKeyToInvalidate,
        Flaw::NoRemoteKeyToInvalidate,
    ])
}

/// The request, and the status that it must end with on a wire that loses nothing.
fn flawed(flaw: Flaw, plan: &Direction) -> (SendOp, Vec<Sge>, Vec<u8>, WcStatus) {
    let (rkey, bad) = (plan.rkey, plan.rkey ^ 0xff);
    let owned = Landing::Owned(8);
    let inline = vec![7; 3000];
    let none = Vec::new;
    match flaw {
        Flaw::RemoteKey(Step::Write { .. }) => {
            (SendOp::Write { va: VA, rkey: bad, imm: None }, vec![], inline, WcStatus::RemAccessErr)
        }
        Flaw::RemoteKey(Step::Read { .. }) => {
            let landing = Landing::Owned(3000);
            (SendOp::Read { va: VA, rkey: bad, landing }, vec![], none(), WcStatus::RemAccessErr)
        }
        Flaw::RemoteKey(_) => {
            let op = SendOp::FetchAdd { va: VA, rkey: bad, add: 1, landing: owned };
            (op, vec![], none(), WcStatus::RemAccessErr)
        }
        Flaw::Unaligned => {
            let op = SendOp::CompareSwap { va: VA + 4, rkey, compare: 0, swap: 0, landing: owned };
            (op, vec![], none(), WcStatus::RemInvReqErr)
        }
        Flaw::TooLong => (SendOp::Send { imm: None }, vec![], inline, WcStatus::RemInvReqErr),
        Flaw::SourceKey => {
            let piece = Sge { lkey: plan.near_space.key ^ 0xff, va: SPACE_VA, length: 8 };
            (SendOp::Write { va: VA, rkey, imm: None }, vec![piece], none(), WcStatus::LocProtErr)
        }
        Flaw::LandingKey => {
            let landing = Landing::Region { lkey: bad, va: 0, length: 3000 };
            (SendOp::Read { va: VA, rkey, landing }, vec![], none(), WcStatus::LocProtErr)
        }
        Flaw::NoKeyToInvalidate => {
            (SendOp::LocalInv { rkey: plan.near_space.key ^ 0xff }, vec![], none(), WcStatus::LocQpOpErr)
        }
        Flaw::NoRemoteKeyToInvalidate => {
            (SendOp::SendInv { rkey: bad }, vec![], none(), WcStatus::RetryExcErr)
        }
    }
}

/// Runs the requests of A with a flawed one among them.
fn run_flawed(program: &Program, flaw: Flaw, place: usize) {
    let clean = program.wire.harm == [0; 4];
    let mut pair = Pair::open(|_, params| {
        params.path_mtu = program.mtu;
        params.timeout = 6;
        params.min_rnr_timer = 1;
        params.tuning = Tuning { seven_retries_is_forever: false, ..program.tuning };
        (params.max_rd_atomic, params.max_dest_rd_atomic) = program.depth;
    });
    let (qa, qb) = (pair.qa, pair.qb);
    let mut plan = Direction::plan(&mut pair, A, &program.requests[0], program.mtu, program.wire.seed);
    let place = place % (plan.work.len() + 1);
    let (op, gather, data, expected) = flawed(flaw, &plan);
    plan.work.insert(place, SendWr { gather, ..SendWr::new(99, op, data) });
    let mut posted = 0;
    for wr in &plan.work {
        pair.a.post_send(qa, wr.clone()).expect("post");
        // Each has the receive that it needs, the flawed one a small one.
        let needs = match wr.op {
            SendOp::Send { .. } | SendOp::SendInv { .. } => true,
            SendOp::Write { imm, .. } => imm.is_some(),
            _ => false,
        };
        if needs {
            let length = if wr.wr_id == 99 { 8 } else { 1 << 14 };
            let wr = RecvWr { wr_id: posted, landing: Landing::Owned(length) };
            pair.b.post_recv(qb, wr).expect("post");
            posted += 1;
        }
    }
    pair.run(1_000_000 * DELAY, &mut program.wire.fates());
    assert!(pair.a.is_idle(qa), "no end after a second of simulated time");
    assert_eq!(pair.a.state(qa), Some(QpState::Err));
    // Successes (of signaled ones), one failure, the rest flushed.
    let done = pair.completions(A);
    let failed = done.iter().position(|c| c.status != OK).expect("one fails");
    let (wr_id, status) = (done[failed].wr_id, done[failed].status);
    let broken = plan.work.iter().position(|wr| wr.wr_id == wr_id).expect("a request of ours");
    let before: Vec<u64> = plan.work[..broken].iter().filter(|wr| wr.signaled).map(|wr| wr.wr_id).collect();
    assert_eq!(done[..failed].iter().map(|c| c.wr_id).collect::<Vec<_>>(), before);
    let behind: Vec<(u64, WcStatus)> = plan.work[broken + 1..].iter().map(|wr| (wr.wr_id, FLUSHED)).collect();
    assert_eq!(done[failed + 1..].iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), behind);
    if clean {
        assert_eq!((broken, status), (place, expected));
    } else {
        // The answer itself, or that to a request before it, may have been lost together with the other end.
        assert!(broken <= place);
        assert!(status == WcStatus::RetryExcErr || (broken, status) == (place, expected), "{status:?}");
    }
    pair.b.modify(qb, QpState::Err).expect("ERR");
    let received = pair.completions(B);
    assert_eq!(received.iter().map(|c| c.wr_id).collect::<Vec<_>>(), (0..posted).collect::<Vec<_>>());
    let good = received.iter().take_while(|c| c.status == OK).count();
    assert!(received[good..].iter().skip(1).all(|c| c.status == FLUSHED));
    // What is posted later is flushed too.
    pair.send(100, vec![]);
    pair.recv(100, 8);
    assert_eq!((pair.ends(A), pair.ends(B)), (vec![(100, FLUSHED)], vec![(100, FLUSHED)]));
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs a test on random input from the seed of the environment.
fn each<S: Strategy>(input: S, test: impl Fn(S::Value))
where
    S::Value: std::fmt::Debug,
{
    let cases = number("VERBENA_PROGRAMS", 400) as u32;
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number("VERBENA_SEED", 1).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let outcome = runner.run(&input, |value| {
        test(value);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn random_programs_over_a_hostile_wire_end_as_written() {
    let troubles = RefCell::new(BTreeMap::new());
    each(program(), |program| run(&program, &mut troubles.borrow_mut()));
    let troubles = troubles.into_inner();
    println!("provoked: {troubles:?}");
    assert!(
        troubles.values().all(|count| *count > 100),
        "too little trouble to prove anything: {troubles:?}"
    );
}

#[test]
fn a_flawed_request_anywhere_ends_a_program_with_one_completion_for_each_in_order() {
    let wires = prop_oneof![Just([0; 4]), proptest::array::uniform4(0..8u64)];
    each((program(), wires, flaw(), 0..16usize), |(mut program, harm, flaw, place)| {
        program.wire.harm = harm;
        run_flawed(&program, flaw, place);
    });
}
