//! Work of a connection as a plain model: what is posted at both ends, and what memory and completions must then be.
//!
//! ```text
//! Request (random, shrinkable) ──┐
//! Space of both ends ────────────┴──> Plan: work and receives to post, completions owed;  Space: bytes before, bytes after
//! ```
//! In: requests of one direction, the path MTU, the spaces of the end that asks (near) and of the other (far). Out: a
//! [`Plan`]; both spaces grow by what it needs. Every piece lies between guards of random bytes, so that comparing a whole
//! space compares the guards too. A request that changes what an earlier READ may still read is fenced, and so is one that
//! ends a key by which a READ or an atomic may still read or land; so the end does not depend on losses.
//!
//! A key that a request ends is that of a window: memory of its own, with a [`Space`] of its own, used once before.
//! Memory of an end has a number: 0 its space, then its windows.
#![allow(dead_code)]

use contract::{PathMtu, WcOpcode, WcStatus};
use host::{Access, Completion, Mr, Operation, Pd, Qp, RecvWr, SendWr};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use std::ops::Range;

/// Elements of a list.
pub const SGES: usize = 16;
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
    Send {
        size: Size,
        imm: Option<u32>,
    },
    Write {
        size: Size,
        at: u16,
        imm: Option<u32>,
    },
    Read {
        size: Size,
        at: u16,
    },
    FetchAdd {
        at: u16,
        add: u64,
    },
    CompareSwap {
        at: u16,
        hits: bool,
        swap: u64,
    },
    /// A SEND that ends the key of a window of the far end, which was used this way before.
    SendInv {
        size: Size,
        used: Use,
    },
    /// Ends the key of a window of one's own, likewise.
    LocalInv {
        size: Size,
        at: u16,
        used: Use,
    },
}

/// What is done by a key before it ends.
#[derive(Debug, Clone, Copy)]
pub enum Use {
    Nothing,
    Write,
    Read,
    Atomic,
}

impl Step {
    /// The steps that this one takes: in or from a window at the near end, at the far end, fenced.
    fn parts(self) -> Vec<(Step, [bool; 2], bool)> {
        const FAR: [bool; 2] = [false, true];
        const NEAR: [bool; 2] = [true, false];
        let write = |size, at| Step::Write { size, at, imm: None };
        let mut parts = match self {
            Step::SendInv { size, used: Use::Write } => vec![(write(size, 0), FAR, false)],
            Step::SendInv { size, used: Use::Read } => vec![(Step::Read { size, at: 0 }, FAR, false)],
            Step::SendInv { used: Use::Atomic, .. } => vec![(Step::FetchAdd { at: 0, add: 1 }, FAR, false)],
            // a WRITE that comes again reads the window again: the READ behind it tells that it was acknowledged
            Step::LocalInv { size, at, used: Use::Write } => {
                vec![(write(size, at), NEAR, false), (Step::Read { size, at }, NEAR, false)]
            }
            Step::LocalInv { size, at, used: Use::Read } => vec![(Step::Read { size, at }, NEAR, false)],
            Step::LocalInv { at, used: Use::Atomic, .. } => {
                vec![(Step::FetchAdd { at: at % 8, add: 1 }, NEAR, false)]
            }
            _ => vec![],
        };
        parts.push(match self {
            Step::SendInv { used, .. } => (self, FAR, matches!(used, Use::Read)),
            Step::LocalInv { used, .. } => (self, NEAR, !matches!(used, Use::Nothing)),
            _ => (self, [false; 2], false),
        });
        parts
    }
}

/// The elements of a list: of each the share of the length, and the guard before it.
pub type Pieces = Vec<(u8, u8)>;

/// A step and how it is asked for.
#[derive(Debug, Clone)]
pub struct Request {
    step: Step,
    signaled: bool,
    solicited: bool,
    /// Fenced; a SEND then carries what the READ before it has brought.
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

fn used() -> impl Strategy<Value = Use> {
    prop_oneof![Just(Use::Nothing), Just(Use::Write), Just(Use::Read), Just(Use::Atomic)]
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
        1 => (size(), used()).prop_map(|(size, used)| Step::SendInv { size, used }),
        1 => (size(), any::<u16>(), used()).prop_map(|(size, at, used)| Step::LocalInv { size, at, used }),
    ]
}

fn pieces() -> impl Strategy<Value = Pieces> {
    let some = |most| proptest::collection::vec((any::<u8>(), 0..64u8), 1..=most);
    prop_oneof![3 => some(4), 1 => some(SGES)]
}

/// So many random requests.
pub fn requests(count: Range<usize>) -> impl Strategy<Value = Vec<Request>> {
    let weighted = proptest::bool::weighted;
    let flags = (weighted(0.7), weighted(0.2), weighted(0.2), weighted(0.6));
    let request = (step(), flags, pieces(), pieces(), 0..3u8).prop_map(
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
#[derive(Clone)]
pub struct Space {
    pub before: Vec<u8>,
    pub after: Vec<u8>,
    /// Elements that a list may have into which its end writes.
    sges: usize,
    dice: ChaCha8Rng,
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.before.len())
    }
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
    SendInv,
    LocalInv,
}

impl Op {
    /// Its message goes out from the near end.
    pub fn sends(self) -> bool {
        matches!(self, Op::Send(_) | Op::Write(_) | Op::SendInv)
    }
}

/// A work request to post.
#[derive(Debug, Clone)]
pub struct Work {
    pub wr_id: u64,
    pub op: Op,
    /// Number of the near memory, and of the far one.
    pub memories: [usize; 2],
    /// Elements, as ranges of the near memory.
    pub sges: Vec<Range<usize>>,
    /// Offset in the far memory.
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
    pub invalidated: Option<u32>,
}

impl Done {
    /// A success without immediate data.
    pub fn new(wr_id: u64, opcode: WcOpcode, byte_len: u32) -> Self {
        Self { wr_id, opcode, status: WcStatus::Success, byte_len, imm: None, invalidated: None }
    }

    /// An error, of which no more is told.
    pub fn failed(wr_id: u64, opcode: WcOpcode, status: WcStatus) -> Self {
        Self { status, ..Self::new(wr_id, opcode, 0) }
    }
}

impl From<&Completion> for Done {
    fn from(c: &Completion) -> Self {
        let silent = matches!(c.opcode, WcOpcode::Send | WcOpcode::RdmaWrite);
        let byte_len = if silent { 0 } else { c.byte_len };
        let Completion { wr_id, opcode, status, imm, invalidated, .. } = *c;
        Self { wr_id, opcode, status, byte_len, imm, invalidated }
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
    /// Completions of the far end; a key that ended is told as the number of its memory.
    received: Vec<Done>,
    /// The windows of the near end and of the far end.
    pub windows: [Vec<Space>; 2],
    /// What READs may still be reading of the target.
    reading: Vec<Range<usize>>,
    /// Where the last READ lands, if no SEND has carried it on.
    brought: Vec<Range<usize>>,
}

impl Plan {
    pub fn new(requests: &[Request], mtu: PathMtu, near: &mut Space, far: &mut Space) -> Self {
        let mut plan = Self::default();
        far.align(0);
        let target = far.grow(TARGET);
        for (i, request) in requests.iter().enumerate() {
            let parts = request.step.parts();
            for (side, space) in [&mut *near, &mut *far].into_iter().enumerate() {
                if parts[0].1[side] {
                    let mut window = Space::new(space.dice.next_u64(), space.sges);
                    window.align(0);
                    plan.windows[side].push(window);
                }
            }
            for (n, (step, windows, fence)) in parts.iter().enumerate() {
                let last = i + 1 == requests.len() && n + 1 == parts.len();
                let request = Request {
                    step: *step,
                    fence: request.fence || *fence,
                    signaled: request.signaled || last,
                    ..request.clone()
                };
                plan.add(&request, *windows, &target, mtu, near, far);
            }
        }
        plan
    }

    /// Completions of the far end, whose windows have these keys.
    pub fn received(&self, keys: &[u32]) -> Vec<Done> {
        let named = |done: &Done| {
            let invalidated = done.invalidated.map(|memory| keys[memory as usize - 1]);
            Done { invalidated, ..done.clone() }
        };
        self.received.iter().map(named).collect()
    }

    /// How many completions the far end is owed.
    pub fn owed(&self) -> usize {
        self.received.len()
    }

    /// Plans a step: what it does to memory, the receive that it takes, the completions that it owes. `windows`: it is
    /// about the newest window of the near end, of the far end.
    fn add(
        &mut self,
        request: &Request,
        windows: [bool; 2],
        target: &Range<usize>,
        mtu: PathMtu,
        near: &mut Space,
        far: &mut Space,
    ) {
        let step = request.step;
        let is_send = matches!(step, Step::Send { .. } | Step::SendInv { .. });
        let is_read = matches!(step, Step::Read { .. });
        let is_write = matches!(step, Step::Write { .. });
        let is_atomic = matches!(step, Step::FetchAdd { .. } | Step::CompareSwap { .. });
        let brought = if is_send && request.fence { std::mem::take(&mut self.brought) } else { vec![] };
        let length = match step {
            _ if !brought.is_empty() => brought.iter().map(Range::len).sum(),
            Step::Send { size, .. }
            | Step::SendInv { size, .. }
            | Step::Write { size, .. }
            | Step::Read { size, .. } => size.bytes(mtu),
            Step::FetchAdd { .. } | Step::CompareSwap { .. } => 8,
            Step::LocalInv { .. } => 0,
        };
        let memories = [0, 1].map(|side| if windows[side] { self.windows[side].len() } else { 0 });
        let [near_windows, far_windows] = &mut self.windows;
        let there = if windows[1] {
            let window = far_windows.last_mut().expect("a window");
            window.align(0);
            let there = window.grow(length);
            window.align(0);
            there
        } else {
            // what atomics leave may look like an EtherType in a packet of two bytes
            let spared = if (1..=2).contains(&(length % mtu.bytes() as usize)) { WORDS } else { 0 };
            let at = match step {
                Step::Write { at, .. } | Step::Read { at, .. } => {
                    spared + usize::from(at) % (TARGET - spared - length + 1)
                }
                Step::FetchAdd { at, .. } | Step::CompareSwap { at, .. } => 8 * usize::from(at),
                _ => 0,
            };
            target.start + at..target.start + at + length
        };
        let overlaps = |read: &Range<usize>| read.start < there.end && there.start < read.end;
        let changes = !windows[1] && (is_write || is_atomic);
        let fence = request.fence || changes && self.reading.iter().any(overlaps);
        if fence {
            self.reading.clear();
        }
        if is_read && !windows[1] {
            self.reading.push(there.clone());
        }
        let most = match (is_atomic, is_send || is_write) {
            (true, _) => 1,
            (_, true) => SGES,
            _ => near.sges,
        };
        let here = if windows[0] { near_windows.last_mut().expect("a window") } else { near };
        let inline = request.inline && brought.is_empty();
        let sges = match step {
            Step::LocalInv { .. } => vec![],
            _ if brought.is_empty() => here.take(length, &request.near, most),
            _ => brought,
        };
        let message = here.get(&sges);
        let whole = std::slice::from_ref(&there);
        let memory = if windows[1] { far_windows.last_mut().expect("a window") } else { &mut *far };
        let found = if is_read || is_atomic { memory.get(whole) } else { vec![] };
        here.put(&sges, &found);
        let word = || u64::from_le_bytes(found[..].try_into().expect("eight bytes"));
        let (op, imm, opcode) = match step {
            Step::Send { imm, .. } => (Op::Send(imm), imm, WcOpcode::Send),
            Step::SendInv { .. } => (Op::SendInv, None, WcOpcode::Send),
            Step::LocalInv { .. } => (Op::LocalInv, None, WcOpcode::LocalInv),
            Step::Write { imm, .. } => {
                memory.put(whole, &message);
                (Op::Write(imm), imm, WcOpcode::RdmaWrite)
            }
            Step::Read { .. } => (Op::Read, None, WcOpcode::RdmaRead),
            Step::FetchAdd { add, .. } => {
                memory.put(whole, &word().wrapping_add(add).to_le_bytes());
                (Op::FetchAdd(add), None, WcOpcode::FetchAdd)
            }
            Step::CompareSwap { hits, swap, .. } => {
                let compare = if hits { word() } else { word() ^ 1 << 63 };
                if hits {
                    memory.put(whole, &swap.to_le_bytes());
                }
                (Op::CompareSwap(compare, swap), None, WcOpcode::CompSwap)
            }
        };
        if is_read && !windows[0] {
            self.brought = sges.clone();
        }
        let Request { signaled, solicited, .. } = *request;
        if is_send || imm.is_some() {
            let room = if is_send { length } else { 0 } + usize::from(request.room);
            let landing = far.take(room, &request.far, far.sges);
            if is_send {
                far.put(&landing, &message);
            }
            let wr_id = RECEIVES + self.receives.len() as u64;
            self.receives.push(Receive { wr_id, sges: landing, solicited });
            let opcode = if is_send { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
            let invalidated = matches!(op, Op::SendInv).then_some(memories[1] as u32);
            self.received.push(Done { imm, invalidated, ..Done::new(wr_id, opcode, length as u32) });
        }
        let wr_id = self.work.len() as u64;
        if signaled {
            self.sent.push(Done::new(wr_id, opcode, found.len() as u32));
        }
        let far = there.start;
        self.work.push(Work { wr_id, op, memories, sges, far, signaled, solicited, fence, inline });
    }
}

/// Posts work on a card's QP of so many inline bytes. `near` holds the memories of this end, `far` addresses and keys of
/// those of the other.
pub fn post(qp: &Qp, max_inline: usize, near: &[&Mr], far: &[(u64, u32)], work: &Work) {
    let (near, (addr, rkey)) = (near[work.memories[0]], far[work.memories[1]]);
    let sges: Vec<_> = work.sges.iter().map(|range| near.sge(range.clone()).expect("a piece")).collect();
    let addr = addr + work.far as u64;
    let operation = match work.op {
        Op::Send(None) => Operation::Send,
        Op::Send(Some(imm)) => Operation::SendWithImm(imm),
        Op::SendInv => Operation::SendWithInv(rkey),
        Op::LocalInv => Operation::LocalInv(near.lkey()),
        Op::Write(None) => Operation::Write { addr, rkey },
        Op::Write(Some(imm)) => Operation::WriteWithImm { addr, rkey, imm },
        Op::Read => Operation::Read { addr, rkey },
        Op::FetchAdd(add) => Operation::FetchAdd { addr, rkey, add },
        Op::CompareSwap(compare, swap) => Operation::CompareSwap { addr, rkey, compare, swap },
    };
    let Work { wr_id, signaled, solicited, fence, .. } = *work;
    let mut wr = SendWr { signaled, solicited, fence, ..SendWr::new(wr_id, operation, &sges) };
    let mut message = Vec::new();
    if work.inline && work.op.sends() {
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

/// Registers the windows of a plan at a card, filled.
pub fn windows(pd: &Pd, spaces: &[Space]) -> Vec<Mr> {
    let register = |space: &Space| {
        let window = pd.allocate(space.before.len(), Access::INVALIDATE | everything()).expect("a window");
        window.write(0, &space.before).expect("it has the size");
        window
    };
    spaces.iter().map(register).collect()
}

/// Every right that work needs.
pub fn everything() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// Posts a receive on a card's QP.
pub fn post_receive(qp: &Qp, memory: &Mr, receive: &Receive) {
    let sges: Vec<_> = receive.sges.iter().map(|range| memory.sge(range.clone()).expect("a piece")).collect();
    let wr = RecvWr::new(receive.wr_id, &sges);
    qp.post_recv(&[wr]).unwrap_or_else(|error| panic!("post {receive:?}: {error}"));
}
