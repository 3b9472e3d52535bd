//! Work of a connection as a plain model: what is posted at both ends, and what memory and completions must then be.
//!
//! ```text
//! Request (random, shrinkable) ──┐
//! Space of both ends ────────────┴──> Plan: work and receives to post, completions owed;  Space: bytes before, bytes after
//! ```
//! In: requests of one direction, the path MTU, the spaces of the end that asks (near) and of the other (far). Out: a
//! [`Plan`]; both spaces grow by what it needs. Every piece lies between guards of random bytes, so that comparing a whole
//! space compares the guards too. A request that changes what an earlier READ may still read is fenced; so the end does
//! not depend on losses.
#![allow(dead_code)]

use contract::{PathMtu, WcOpcode, WcStatus};
use host::{Completion, Mr, Operation, Qp, RecvWr, SendWr};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use std::ops::Range;

/// Elements of a list into which a card writes, and of one from which it sends.
pub const SGES: usize = 4;
pub const SEND_SGES: usize = 16;
/// Longest message.
pub const LONGEST: usize = 1 << 13;
/// What the requests of a direction name at the far end; atomics work on the first eight words of it.
const TARGET: usize = 1 << 14;
const WORDS: usize = 64;
/// Number of the first receive.
pub const RECEIVES: u64 = 1000;

/// A length as a number of packets and a little more or less.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    packets: i64,
    more: i64,
}

impl Size {
    fn bytes(self, mtu: PathMtu) -> usize {
        (self.packets * i64::from(mtu.bytes()) + self.more).clamp(0, LONGEST as i64) as usize
    }
}

/// What is asked for, at which place of the target.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    Send { size: Size, imm: Option<u32> },
    Write { size: Size, at: u16, imm: Option<u32> },
    Read { size: Size, at: u16 },
    FetchAdd { at: u16, add: u64 },
    CompareSwap { at: u16, hits: bool, swap: u64 },
}

/// The elements of a list: of each the share of the length, and the guard before it.
pub type Pieces = Vec<(u8, u8)>;

/// A step and how it is asked for.
#[derive(Debug, Clone)]
pub struct Request {
    step: Step,
    signaled: bool,
    solicited: bool,
    fence: bool,
    /// Its message stands in the work request, if it has room.
    inline: bool,
    /// The list of whoever asks.
    near: Pieces,
    /// The list of the receive that it takes, and how much longer that is.
    far: Pieces,
    room: u8,
}

fn size() -> impl Strategy<Value = Size> {
    (0i64..7, prop_oneof![-1i64..=1, -300i64..300]).prop_map(|(packets, more)| Size { packets, more })
}

fn step() -> impl Strategy<Value = Step> {
    let imm = || proptest::option::weighted(0.3, any::<u32>());
    prop_oneof![
        3 => (size(), imm()).prop_map(|(size, imm)| Step::Send { size, imm }),
        3 => (size(), any::<u16>(), imm()).prop_map(|(size, at, imm)| Step::Write { size, at, imm }),
        3 => (size(), any::<u16>()).prop_map(|(size, at)| Step::Read { size, at }),
        1 => (0..8u16, any::<u64>()).prop_map(|(at, add)| Step::FetchAdd { at, add }),
        1 => (0..8u16, any::<bool>(), any::<u64>())
            .prop_map(|(at, hits, swap)| Step::CompareSwap { at, hits, swap }),
    ]
}

fn pieces(most: usize) -> impl Strategy<Value = Pieces> {
    let some = |most| proptest::collection::vec((any::<u8>(), 0..64u8), 1..=most);
    prop_oneof![3 => some(SGES), 1 => some(most)]
}

/// So many random requests.
pub fn requests(count: Range<usize>) -> impl Strategy<Value = Vec<Request>> {
    let weighted = proptest::bool::weighted;
    let flags = (weighted(0.7), weighted(0.2), weighted(0.1), weighted(0.6));
    let request = (step(), flags, pieces(SEND_SGES), pieces(SGES), 0..3u8).prop_map(
        |(step, (signaled, solicited, fence, inline), near, far, room)| Request {
            step,
            signaled,
            solicited,
            fence,
            inline,
            near,
            far,
            room,
        },
    );
    proptest::collection::vec(request, count)
}

/// Where random values come from.
pub fn runner(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(ProptestConfig::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// A number of the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The memory of an end, as it is before and as it must be afterwards.
pub struct Space {
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    /// Elements that a list may have into which its end writes.
    sges: usize,
    dice: ChaCha8Rng,
}

impl Space {
    pub fn new(seed: u64, sges: usize) -> Self {
        Self { before: Vec::new(), after: Vec::new(), sges, dice: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// `length` random bytes more.
    pub fn grow(&mut self, length: usize) -> Range<usize> {
        let start = self.before.len();
        let mut bytes = vec![0; length];
        self.dice.fill_bytes(&mut bytes);
        // A packet of one or two bytes and its pad looks like an EtherType to Wireshark, which then decodes nonsense;
        // 0xb?b? is none.
        bytes.iter_mut().for_each(|byte| *byte = *byte & 0x0f | 0xb0);
        self.before.extend(&bytes);
        self.after.extend(&bytes);
        start..start + length
    }

    /// Guards, at least one, up to an offset that leaves this remainder by 64.
    pub fn align(&mut self, remainder: usize) {
        self.grow((remainder + 127 - self.before.len() % 64) % 64 + 1);
    }

    /// `length` bytes in pieces between guards; no piece at all for no bytes in one.
    fn take(&mut self, length: usize, pieces: &[(u8, u8)], most: usize) -> Vec<Range<usize>> {
        let pieces = &pieces[..pieces.len().min(most)];
        if length == 0 && pieces.len() == 1 {
            return Vec::new();
        }
        let shares: usize = pieces.iter().map(|(share, _)| usize::from(*share)).sum();
        let (mut sum, mut done) = (0, 0);
        let mut cut = |(i, (share, guard)): (usize, &(u8, u8))| {
            self.grow(1 + usize::from(*guard));
            sum += usize::from(*share);
            let last = i + 1 == pieces.len();
            let end = if last { length } else { (length * sum).checked_div(shares).unwrap_or(0) };
            let piece = self.grow(end - done);
            done = end;
            piece
        };
        pieces.iter().enumerate().map(&mut cut).collect()
    }

    /// What the pieces hold.
    pub fn get(&self, pieces: &[Range<usize>]) -> Vec<u8> {
        pieces.iter().flat_map(|piece| &self.after[piece.clone()]).copied().collect()
    }

    /// The pieces will hold these bytes, as far as they go.
    pub fn put(&mut self, pieces: &[Range<usize>], bytes: &[u8]) {
        let places = pieces.iter().flat_map(Clone::clone);
        places.zip(bytes).for_each(|(at, byte)| self.after[at] = *byte);
    }

    /// Memory is as it must be.
    #[track_caller]
    pub fn matches(&self, what: &str, found: &[u8]) {
        assert_eq!(found.len(), self.after.len());
        if let Some(at) = (0..found.len()).find(|at| found[*at] != self.after[*at]) {
            let wrong = (at..found.len()).filter(|at| found[*at] != self.after[*at]).count();
            let end = (at + 16).min(found.len());
            panic!(
                "{what}: memory differs in {wrong} bytes, the first at {at}: {:02x?} instead of {:02x?}, before {:02x?}",
                &found[at..end],
                &self.after[at..end],
                &self.before[at..end]
            );
        }
    }
}

/// An operation, with its operands.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    Send(Option<u32>),
    Write(Option<u32>),
    Read,
    FetchAdd(u64),
    CompareSwap(u64, u64),
}

/// A work request to post.
#[derive(Debug, Clone)]
pub struct Work {
    pub wr_id: u64,
    pub op: Op,
    /// Elements, as ranges of the near space.
    pub sges: Vec<Range<usize>>,
    /// Offset in the far space.
    pub far: usize,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
    pub inline: bool,
}

/// A receive to post.
#[derive(Debug, Clone)]
pub struct Receive {
    pub wr_id: u64,
    /// Elements, as ranges of the far space.
    pub sges: Vec<Range<usize>>,
    /// Its completion is solicited.
    pub solicited: bool,
}

/// A completion. The length of a SEND or WRITE that was sent is not told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    pub wr_id: u64,
    pub opcode: WcOpcode,
    pub status: WcStatus,
    pub byte_len: u32,
    pub imm: Option<u32>,
}

impl From<&Completion> for Done {
    fn from(c: &Completion) -> Self {
        let silent = matches!(c.opcode, WcOpcode::Send | WcOpcode::RdmaWrite);
        let byte_len = if silent { 0 } else { c.byte_len };
        Self { wr_id: c.wr_id, opcode: c.opcode, status: c.status, byte_len, imm: c.imm }
    }
}

/// One direction of a connection.
#[derive(Debug, Default, Clone)]
pub struct Plan {
    /// Posted at the near end.
    pub work: Vec<Work>,
    /// Posted at the far end.
    pub receives: Vec<Receive>,
    /// Completions of the near end.
    pub sent: Vec<Done>,
    /// Completions of the far end.
    pub received: Vec<Done>,
}

impl Plan {
    pub fn new(requests: &[Request], mtu: PathMtu, near: &mut Space, far: &mut Space) -> Self {
        let mut plan = Self::default();
        far.align(0);
        let target = far.grow(TARGET);
        let mut reading: Vec<Range<usize>> = Vec::new();
        for (i, request) in requests.iter().enumerate() {
            let length = match request.step {
                Step::Send { size, .. } | Step::Write { size, .. } | Step::Read { size, .. } => {
                    size.bytes(mtu)
                }
                Step::FetchAdd { .. } | Step::CompareSwap { .. } => 8,
            };
            // what atomics leave may look like an EtherType in a packet of two bytes
            let spared = if (1..=2).contains(&(length % mtu.bytes() as usize)) { WORDS } else { 0 };
            let at = match request.step {
                Step::Send { .. } => 0,
                Step::Write { at, .. } | Step::Read { at, .. } => {
                    spared + usize::from(at) % (TARGET - spared - length + 1)
                }
                Step::FetchAdd { at, .. } | Step::CompareSwap { at, .. } => 8 * usize::from(at),
            };
            let there = target.start + at..target.start + at + length;
            let overlaps = |read: &Range<usize>| read.start < there.end && there.start < read.end;
            let changes = !matches!(request.step, Step::Send { .. } | Step::Read { .. });
            let fence = request.fence || changes && reading.iter().any(overlaps);
            if fence {
                reading.clear();
            }
            if matches!(request.step, Step::Read { .. }) {
                reading.push(there.clone());
            }
            let signaled = request.signaled || i + 1 == requests.len();
            let solicited = request.solicited;
            let (op, sges) = plan.add(request, there.clone(), near, far);
            let wr_id = i as u64;
            let (opcode, byte_len) = match op {
                Op::Send(_) => (WcOpcode::Send, 0),
                Op::Write(_) => (WcOpcode::RdmaWrite, 0),
                Op::Read => (WcOpcode::RdmaRead, length as u32),
                Op::FetchAdd(_) => (WcOpcode::FetchAdd, 8),
                Op::CompareSwap(..) => (WcOpcode::CompSwap, 8),
            };
            if signaled {
                plan.sent.push(Done { wr_id, opcode, status: WcStatus::Success, byte_len, imm: None });
            }
            let inline = request.inline;
            plan.work.push(Work { wr_id, op, sges, far: there.start, signaled, solicited, fence, inline });
        }
        plan
    }

    /// What the request does to memory, and the receive that it takes.
    fn add(
        &mut self,
        request: &Request,
        there: Range<usize>,
        near: &mut Space,
        far: &mut Space,
    ) -> (Op, Vec<Range<usize>>) {
        let length = there.len();
        let atomic = matches!(request.step, Step::FetchAdd { .. } | Step::CompareSwap { .. });
        let sends = matches!(request.step, Step::Send { .. } | Step::Write { .. });
        let most = if sends { SEND_SGES } else { near.sges };
        let sges = near.take(length, &request.near, if atomic { 1 } else { most });
        let found = far.after[there.clone()].to_vec();
        let message = near.get(&sges);
        let word = || u64::from_le_bytes(found[..].try_into().expect("eight bytes"));
        let (op, imm) = match request.step {
            Step::Send { imm, .. } => (Op::Send(imm), imm),
            Step::Write { imm, .. } => (Op::Write(imm), imm),
            Step::Read { .. } => (Op::Read, None),
            Step::FetchAdd { add, .. } => (Op::FetchAdd(add), None),
            Step::CompareSwap { hits, swap, .. } => {
                (Op::CompareSwap(if hits { word() } else { word() ^ 1 << 63 }, swap), None)
            }
        };
        match op {
            Op::Send(_) => {}
            Op::Write(_) => far.put(std::slice::from_ref(&there), &message),
            Op::Read | Op::FetchAdd(_) | Op::CompareSwap(..) => near.put(&sges, &found),
        }
        match op {
            Op::FetchAdd(add) => far.put(&[there], &word().wrapping_add(add).to_le_bytes()),
            Op::CompareSwap(compare, swap) if compare == word() => far.put(&[there], &swap.to_le_bytes()),
            _ => {}
        }
        let is_send = matches!(op, Op::Send(_));
        if is_send || imm.is_some() {
            let room = if is_send { length } else { 0 } + usize::from(request.room);
            let landing = far.take(room, &request.far, far.sges);
            let opcode = if is_send { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
            if is_send {
                far.put(&landing, &message);
            }
            let wr_id = RECEIVES + self.receives.len() as u64;
            self.receives.push(Receive { wr_id, sges: landing, solicited: request.solicited });
            let byte_len = length as u32;
            self.received.push(Done { wr_id, opcode, status: WcStatus::Success, byte_len, imm });
        }
        (op, sges)
    }
}

/// Posts work on a card's QP of so many inline bytes: `near` holds the near space, the far one begins at this address and
/// has this key.
pub fn post(qp: &Qp, max_inline: usize, near: &Mr, far: (u64, u32), work: &Work) {
    let sges: Vec<_> = work.sges.iter().map(|range| near.sge(range.clone()).expect("a piece")).collect();
    let (addr, rkey) = (far.0 + work.far as u64, far.1);
    let operation = match work.op {
        Op::Send(None) => Operation::Send,
        Op::Send(Some(imm)) => Operation::SendWithImm(imm),
        Op::Write(None) => Operation::Write { addr, rkey },
        Op::Write(Some(imm)) => Operation::WriteWithImm { addr, rkey, imm },
        Op::Read => Operation::Read { addr, rkey },
        Op::FetchAdd(add) => Operation::FetchAdd { addr, rkey, add },
        Op::CompareSwap(compare, swap) => Operation::CompareSwap { addr, rkey, compare, swap },
    };
    let Work { wr_id, signaled, solicited, fence, .. } = *work;
    let mut wr = SendWr { signaled, solicited, fence, ..SendWr::new(wr_id, operation, &sges) };
    let mut message = Vec::new();
    if work.inline && matches!(work.op, Op::Send(_) | Op::Write(_)) {
        for range in &work.sges {
            let from = message.len();
            message.resize(from + range.len(), 0);
            near.read(range.start, &mut message[from..]).expect("a piece");
        }
        if message.len() <= max_inline {
            wr = wr.inline(&message);
        }
    }
    qp.post_send(&[wr]).unwrap_or_else(|error| panic!("post {work:?}: {error}"));
}

/// Posts a receive on a card's QP.
pub fn post_receive(qp: &Qp, memory: &Mr, receive: &Receive) {
    let sges: Vec<_> = receive.sges.iter().map(|range| memory.sge(range.clone()).expect("a piece")).collect();
    let wr = RecvWr::new(receive.wr_id, &sges);
    qp.post_recv(&[wr]).unwrap_or_else(|error| panic!("post {receive:?}: {error}"));
}
