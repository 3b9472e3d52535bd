//! The root complex: ordering, memory, completions, host accesses, interrupts, resets, in simulated time.
//!
//! In, from the card: TLPs ([`RootComplex::card_sends`]). Out, to the card: [`RootComplex::poll_cq`] and
//! [`RootComplex::poll_rc`], two streams that do not wait for each other beyond what the ordering rules demand. In,
//! from the host: accesses to BARs and configuration space. Out, to the host: [`Event`]s and the results of reads.
//!
//! | rule | how |
//! |---|---|
//! | posted writes of the card are visible in order | each becomes visible no earlier than all before it; a relaxed one may be earlier |
//! | a read does not pass an earlier write | it samples memory after every earlier write is visible, piece by piece |
//! | an interrupt comes after the data | it is a strongly ordered write |
//! | a completion of the card pushes its earlier writes | its data reaches the host after every earlier write is visible |
//! | a host read does not pass an earlier host write | `poll_cq` gives them in order; a write may pass a read ([`RootComplex::poll_cq_posted`]) |
//! | a completion to the card does not pass an earlier host write | `poll_rc` waits until that write was polled, unless RO is set |
//!
//! Back-pressure: `can_accept` before `card_sends`; the card is never forced to take anything. Requests that break a rule
//! are judged, and treated as a receiver would: malformed ones vanish, forbidden ones are answered UR. Memory grows only
//! with what is in flight, the events not taken, and the log if it is on.

use crate::{
    config::{ConfigEffect, ConfigError, ConfigSpace, EndpointConfig, Enumeration, ErrorStatus, Sideband},
    inject::{Fault as InjectedFault, Injection, Piece},
    judge::{Disposition, Judge, Match, Side, Verdict, Violation},
    link::{CompletionOrder, CreditMeter, Credits, Kind, Lane, LinkConfig, data_credits, next_piece, owed},
    log::{Direction, TlpRecord},
    memory::{Fault, HostMemory, INTERRUPT_WINDOW, Iommu},
    time::Time,
    tlp::{AtomicKind, AtomicOp, Attributes, Completion, MemRead, MemWrite, RawTlp, Status, Tlp, first_byte},
};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use std::{
    collections::{BinaryHeap, HashMap, VecDeque},
    ops::Range,
};
use thiserror::Error;

/// Everything about a root complex that is not a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootConfig {
    /// Link and habits.
    pub link: LinkConfig,
    /// The endpoint's configuration space.
    pub endpoint: EndpointConfig,
    /// What firmware sets up.
    pub enumeration: Enumeration,
    /// The root completes AtomicOps; otherwise it answers UR.
    pub atomics: bool,
    /// From a host read to giving up on it.
    pub host_timeout: Time,
    /// How long after a change of the sideband the card may still act by the old value: a 512-byte write takes 64
    /// cycles of a 64-bit stream.
    pub grace: Time,
}

impl Default for RootConfig {
    fn default() -> Self {
        RootConfig {
            link: LinkConfig::default(),
            endpoint: EndpointConfig::default(),
            enumeration: Enumeration::default(),
            atomics: true,
            host_timeout: Time::ms(50),
            grace: Time::ns(500),
        }
    }
}

/// Time that a function has for a function level reset.
pub const RESET_LIMIT: Time = Time::ms(100);
/// Tags of the root's own reads.
const HOST_TAGS: u16 = 32;
/// Requester and completer ID of the root.
const ROOT_ID: u16 = 0;

/// A host request on its way to the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqTlp {
    /// BAR that it hits: 0, 2 or 4 (a core tells this beside the header).
    pub bar: u8,
    /// The TLP; its address is the base of the BAR plus the offset.
    pub tlp: RawTlp,
}

/// Names a host read until its result is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadToken(u64);

/// Why a host read has no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// UR: the card answered so, or no BAR is there, or it is being reset.
    #[error("read of a BAR: unsupported request; check offset, length, memory enable and reset")]
    UnsupportedRequest,
    /// CA.
    #[error("read of a BAR: the card aborted it; check the register that was read")]
    CompleterAbort,
    /// Poisoned data.
    #[error("read of a BAR: the data is poisoned; reset the card")]
    Poisoned,
    /// A completion that broke a rule.
    #[error("read of a BAR: malformed completion; look at the violations")]
    Malformed,
    /// No completion in time.
    #[error("read of a BAR: no completion in time; reset the card")]
    Timeout,
    /// The link went down.
    #[error("read of a BAR: the link is down; bring it up and enumerate again")]
    LinkDown,
}

/// Something the host notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write to the interrupt window; the data word names the vector as the driver set it up.
    Msix {
        /// When.
        at: Time,
        /// Address.
        address: u64,
        /// Data, little endian.
        data: u32,
    },
    /// A read or AtomicOp that memory refused: answered UR.
    ReadFault {
        /// When.
        at: Time,
        /// First byte of the piece.
        address: u64,
        /// Why.
        fault: Fault,
    },
    /// A posted write that memory refused: dropped. The card does not learn of it.
    WriteFault {
        /// When.
        at: Time,
        /// First byte of the run.
        address: u64,
        /// Bytes of the run.
        bytes: usize,
        /// Why.
        fault: Fault,
    },
    /// A posted write with EP set: dropped.
    PoisonedWrite {
        /// When.
        at: Time,
        /// First DW.
        address: u64,
    },
    /// A host access to a BAR that cannot reach the card: outside, not enabled, in reset, or the link is down.
    MmioRefused {
        /// When.
        at: Time,
        /// BAR.
        bar: u8,
        /// Offset.
        offset: u64,
    },
    /// A host read without completion in time.
    ReadTimedOut {
        /// When.
        at: Time,
        /// Which.
        token: ReadToken,
    },
    /// A completion found the card's buffer full.
    CompletionOverflow {
        /// When.
        at: Time,
        /// Tag of the request that lost it.
        tag: u16,
    },
    /// The FLR bit was written.
    ResetStarted {
        /// When.
        at: Time,
    },
    /// The card is done with its reset.
    ResetDone {
        /// When.
        at: Time,
        /// Since the start.
        took: Time,
    },
    /// 100 ms passed, and the card is not done.
    ResetOverdue {
        /// When.
        at: Time,
    },
    /// The host touched the function during its reset.
    TouchedInReset {
        /// When.
        at: Time,
    },
    /// The link went down (false) or up.
    Link {
        /// When.
        at: Time,
        /// State.
        up: bool,
    },
}

#[derive(Clone, Debug)]
enum Work {
    Read,
    ZeroLength,
    Atomic(AtomicOp),
}

#[derive(Clone, Debug)]
struct Pending {
    work: Work,
    attr: Attributes,
    requester: u16,
    tag: u16,
    next: u64,
    left: u32,
    refuse: bool,
    fault: Option<(InjectedFault, Piece)>,
    first: bool,
    pardoned: bool,
    epoch: u64,
}

#[derive(Debug)]
enum Act {
    Write(MemWrite),
    Read(Box<Pending>),
    Answer { completion: Completion, found: Match, epoch: u64 },
}

#[derive(Debug)]
struct Due {
    at: Time,
    order: u64,
    arrived: Time,
    act: Act,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    /// The earliest is the greatest: `BinaryHeap` gives the greatest first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

#[derive(Debug)]
struct Down<T> {
    at: Time,
    order: u64,
    what: T,
}

#[derive(Debug)]
struct Returned {
    completion: Completion,
    raw: RawTlp,
    injected: bool,
    epoch: u64,
    lost: bool,
}

#[derive(Debug)]
struct Part {
    token: u64,
    serial: u64,
    address: u64,
    range: Range<usize>,
}

#[derive(Debug)]
struct Wanted {
    token: u64,
    bar: u8,
    read: MemRead,
    range: Range<usize>,
}

#[derive(Debug)]
struct HostRead {
    data: Vec<u8>,
    parts: usize,
    error: Option<ReadError>,
}

/// The root complex with one endpoint below it.
pub struct RootComplex<M: HostMemory = Iommu> {
    config: RootConfig,
    memory: M,
    space: ConfigSpace,
    judge: Judge,
    rng: ChaCha8Rng,
    now: Time,
    order: u64,
    epoch: u64,
    link_up: bool,
    up: Lane,
    down: Lane,
    meter: CreditMeter,
    retry: Option<Time>,
    due: BinaryHeap<Due>,
    writes_visible: Time,
    reads_ready: Time,
    rc: VecDeque<Down<Returned>>,
    rc_arrived: usize,
    rc_headers: u32,
    rc_data: u32,
    cq_posted: VecDeque<Down<CqTlp>>,
    cq_reads: VecDeque<Down<CqTlp>>,
    tags: Vec<u16>,
    parts: Vec<Option<Part>>,
    wanted: VecDeque<Wanted>,
    deadlines: VecDeque<(Time, u16, u64)>,
    reads: HashMap<u64, HostRead>,
    tokens: u64,
    injections: Vec<Injection>,
    reset_since: Option<Time>,
    reset_overdue: bool,
    events: Vec<Event>,
    log: Option<Vec<TlpRecord>>,
    dropped: u64,
}

impl<M: HostMemory> RootComplex<M> {
    /// A root with an enumerated endpoint, link up.
    pub fn new(config: RootConfig, seed: u64, memory: M) -> Result<Self, ConfigError> {
        let mut space = ConfigSpace::new(config.endpoint.clone())?;
        space.enumerate(&config.enumeration);
        let link = &config.link;
        let judge =
            Judge::new(space.sideband(true), link.completion_headers, link.completion_data, config.grace);
        Ok(RootComplex {
            up: Lane::new(link.up_mbps, link.up_latency),
            down: Lane::new(link.down_mbps, link.down_latency),
            meter: CreditMeter::new(link.credits),
            memory,
            space,
            judge,
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: Time::ZERO,
            order: 0,
            epoch: 0,
            link_up: true,
            retry: None,
            due: BinaryHeap::new(),
            writes_visible: Time::ZERO,
            reads_ready: Time::ZERO,
            rc: VecDeque::new(),
            rc_arrived: 0,
            rc_headers: 0,
            rc_data: 0,
            cq_posted: VecDeque::new(),
            cq_reads: VecDeque::new(),
            tags: (0..HOST_TAGS).rev().collect(),
            parts: (0..HOST_TAGS).map(|_| None).collect(),
            wanted: VecDeque::new(),
            deadlines: VecDeque::new(),
            reads: HashMap::new(),
            tokens: 0,
            injections: Vec::new(),
            reset_since: None,
            reset_overdue: false,
            events: Vec::new(),
            log: None,
            dropped: 0,
            config,
        })
    }

    // ---- what surrounds it

    /// Host memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Host memory, to map and unmap.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// The endpoint's configuration space.
    pub fn config_space(&self) -> &ConfigSpace {
        &self.space
    }

    /// The wires to the card.
    pub fn sideband(&self) -> Sideband {
        self.space.sideband(self.link_up)
    }

    /// What the judge found so far.
    pub fn violations(&self) -> &[Violation] {
        self.judge.violations()
    }

    /// How many violations there were since they were last taken; the list keeps the first 4096.
    pub fn violation_count(&self) -> u64 {
        self.judge.count()
    }

    /// Takes what the judge found.
    pub fn take_violations(&mut self) -> Vec<Violation> {
        self.judge.take_violations()
    }

    /// The card's requests without their last completion.
    pub fn card_outstanding(&self) -> usize {
        self.judge.outstanding()
    }

    /// Writes of the host that the card has not taken yet. A CPU stalls when they use up the card's credits.
    pub fn host_writes_waiting(&self) -> usize {
        self.cq_posted.len()
    }

    /// TLPs that vanished without being judged: sent while the link was down, or under way when it went down or when
    /// the function was reset.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes the events up to the last call, in the order in which they happened.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Adds a fault rule. The first rule that matches a request acts.
    pub fn inject(&mut self, rule: Injection) {
        self.injections.push(rule);
    }

    /// Removes every fault rule.
    pub fn clear_injections(&mut self) {
        self.injections.clear();
    }

    /// Switches the TLP log; off forgets it.
    pub fn set_log(&mut self, on: bool) {
        self.log = on.then(Vec::new);
    }

    /// The TLP log since it was switched on or taken.
    pub fn log(&self) -> &[TlpRecord] {
        self.log.as_deref().unwrap_or(&[])
    }

    /// Takes the TLP log.
    pub fn take_log(&mut self) -> Vec<TlpRecord> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    // ---- time

    /// The next instant at which something happens without a further call, or at which something already waits to be
    /// polled (then it is not later than now). `None`: quiet.
    pub fn next_event(&self) -> Option<Time> {
        [
            self.due.peek().map(|d| d.at),
            self.rc.front().map(|d| d.at),
            self.cq_posted.front().map(|d| d.at),
            self.cq_reads.front().map(|d| d.at),
            self.deadlines.front().map(|d| d.0),
            self.reset_since.filter(|_| !self.reset_overdue).map(|at| at + RESET_LIMIT),
            self.retry,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Nothing is under way, nothing waits to be polled, no host read waits for the card.
    pub fn quiet(&self) -> bool {
        self.next_event().is_none()
    }

    /// Lets time pass until `now`. Every other call with a time does this first; a time in the past counts as the
    /// latest one seen.
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        let now = self.now;
        while self.due.peek().is_some_and(|d| d.at <= now) {
            if let Some(due) = self.due.pop() {
                match due.act {
                    Act::Write(write) => self.store(due.at, &write),
                    Act::Read(pending) => self.serve(due.at, pending),
                    Act::Answer { completion, found, epoch } => {
                        if epoch == self.epoch {
                            self.answered(due.at, &completion, found);
                        }
                    }
                }
            }
        }
        if self.retry.is_some_and(|at| at <= now) {
            self.retry = None;
        }
        self.arrive(now);
        while let Some(&(at, tag, serial)) = self.deadlines.front() {
            let live = self.parts[tag as usize].as_ref().is_some_and(|p| p.serial == serial);
            if live && at > now {
                break;
            }
            self.deadlines.pop_front();
            if live && let Some(part) = self.free_part(at, tag, Some(ReadError::Timeout)) {
                self.judge.abandon_host(tag);
                self.events.push(Event::ReadTimedOut { at, token: ReadToken(part.token) });
            }
        }
        if let Some(since) = self.reset_since
            && !self.reset_overdue
            && since + RESET_LIMIT <= now
        {
            self.reset_overdue = true;
            let at = since + RESET_LIMIT;
            self.judge.report(at, Side::Card, Verdict::ResetOverdue, [0; 4]);
            self.events.push(Event::ResetOverdue { at });
        }
    }

    fn schedule(&mut self, at: Time, arrived: Time, act: Act) {
        self.order += 1;
        self.due.push(Due { at, order: self.order, arrived, act });
    }

    /// A number below `n`, from the seed.
    fn draw(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.rng.next_u64() % n }
    }

    // ---- the card sends

    /// May the card send a TLP of this class with this many payload bytes now? No credit, or too much ahead of the
    /// serialiser, says no; `next_event` then tells when to ask again. Always yes while the link is down.
    pub fn can_accept(&mut self, now: Time, kind: Kind, bytes: usize) -> bool {
        self.advance(now);
        if !self.link_up {
            return true;
        }
        self.meter.settle(self.now);
        let window = self.up.span(self.config.link.transmit_buffer);
        let backlog = self.up.busy_until().since(self.now);
        if backlog > window {
            self.retry = Some(self.now + (backlog - window));
            return false;
        }
        let fits = self.meter.fits(kind, bytes);
        if !fits {
            self.retry = self.meter.next_back();
        }
        fits
    }

    /// Credits that are free now; infinite ones are `u32::MAX`.
    pub fn credits(&mut self, now: Time) -> Credits {
        self.advance(now);
        self.meter.settle(self.now);
        self.meter.free()
    }

    /// The card sends a TLP: a request, or the completion of a host read. `now` is when its last beat crosses.
    pub fn card_sends(&mut self, now: Time, raw: RawTlp) {
        self.advance(now);
        let now = self.now;
        if !self.link_up {
            self.dropped += 1;
            return;
        }
        let (parsed, disposition) = self.judge.request(now, Side::Card, &raw);
        if let Some(log) = &mut self.log {
            log.push(TlpRecord::new(now, Direction::CardToHost, &raw, parsed.as_ref().ok(), false));
        }
        let arrived = self.up.send(now, raw.wire_bytes());
        let kind = match &parsed {
            Ok(Tlp::Completion(_)) => Kind::Completion,
            Ok(Tlp::MemWrite(_)) => Kind::Posted,
            Ok(_) => Kind::NonPosted,
            Err(_) => return,
        };
        self.meter.settle(now);
        if !self.meter.fits(kind, raw.payload.len()) {
            self.judge.report(now, Side::Card, Verdict::NoCredit { kind }, raw.header);
        }
        self.meter.take(kind, raw.payload.len(), arrived + self.config.link.credit_return);
        let refuse = disposition == Disposition::Unsupported;
        match parsed {
            _ if disposition == Disposition::Drop => {}
            Ok(Tlp::MemWrite(write)) => {
                if !refuse {
                    let jitter = self.config.link.write_jitter.0;
                    let jitter = if jitter == 0 { 0 } else { self.draw(jitter + 1) };
                    let ready = arrived + Time(jitter);
                    let visible = if write.attr.relaxed { ready } else { ready.max(self.writes_visible) };
                    self.writes_visible = self.writes_visible.max(visible);
                    self.schedule(visible, arrived, Act::Write(write));
                }
            }
            Ok(Tlp::MemRead(read)) => {
                let (next, left) = owed(&read);
                let work = if read.zero_length() { Work::ZeroLength } else { Work::Read };
                self.enqueue(
                    arrived,
                    Pending {
                        work,
                        attr: read.attr,
                        requester: read.requester,
                        tag: read.tag,
                        next,
                        left,
                        refuse,
                        fault: None,
                        first: true,
                        pardoned: false,
                        epoch: self.epoch,
                    },
                );
            }
            Ok(Tlp::AtomicOp(atomic)) => {
                self.enqueue(
                    arrived,
                    Pending {
                        attr: atomic.attr,
                        requester: atomic.requester,
                        tag: atomic.tag,
                        next: atomic.address,
                        left: atomic.operand_bytes() as u32,
                        refuse: refuse || !self.config.atomics,
                        fault: None,
                        first: true,
                        pardoned: false,
                        epoch: self.epoch,
                        work: Work::Atomic(atomic),
                    },
                );
            }
            Ok(Tlp::Completion(completion)) => {
                let found = self.judge.completion(now, Side::Card, &completion, raw.header, false);
                let at = arrived.max(self.writes_visible);
                let epoch = self.epoch;
                self.schedule(at, arrived, Act::Answer { completion, found, epoch });
            }
            Ok(Tlp::Config(_)) | Err(_) => {}
        }
    }

    fn enqueue(&mut self, arrived: Time, mut pending: Pending) {
        let bytes = pending.next..pending.next.saturating_add(pending.left as u64);
        for rule in &mut self.injections {
            let rng = &mut self.rng;
            if rule.acts(bytes.clone(), || (rng.next_u64() % 1_000_000) as u32) {
                pending.fault = Some((rule.fault, rule.piece));
                break;
            }
        }
        self.injections.retain(|rule| !rule.spent());
        let mut ready = arrived.max(self.writes_visible) + self.config.link.memory_latency;
        match self.config.link.order {
            CompletionOrder::InOrder => {
                ready = ready.max(self.reads_ready);
                self.reads_ready = ready;
            }
            CompletionOrder::Shuffled(window) => ready = ready + Time(self.draw(window.0)),
        }
        if let Some((InjectedFault::Late(by), _)) = pending.fault {
            ready = ready + by;
        }
        self.schedule(ready, arrived, Act::Read(Box::new(pending)));
    }

    // ---- memory

    fn store(&mut self, at: Time, write: &MemWrite) {
        if write.attr.poisoned {
            self.space.record(ErrorStatus::MasterData);
            self.events.push(Event::PoisonedWrite { at, address: write.address });
            return;
        }
        if INTERRUPT_WINDOW.contains(&write.address) {
            if let Ok(word) = write.payload.as_slice().try_into() {
                let data = u32::from_le_bytes(word);
                self.events.push(Event::Msix { at, address: write.address, data });
            }
            return;
        }
        for (address, run) in write.runs() {
            if let Err(fault) = self.memory.write(address, run) {
                self.events.push(Event::WriteFault { at, address, bytes: run.len(), fault });
                return;
            }
        }
    }

    /// Sends the next completion of a read, and the rest now or later.
    fn serve(&mut self, at: Time, mut p: Box<Pending>) {
        loop {
            if p.epoch != self.epoch {
                // Its request was forgotten by a reset. The answer still comes while the reset lasts; `poll_rc`
                // pardons it by its epoch.
                if self.reset_since.is_none() {
                    self.dropped += 1;
                    return;
                }
            }
            let (mut completion, n) = self.piece(at, &p);
            let mut last = completion.status != Status::Successful || n >= p.left;
            let (mut lost, mut copies) = (false, 1);
            if let Some((fault, piece)) = p.fault {
                let hit = match piece {
                    Piece::First => p.first,
                    Piece::Last => last,
                    Piece::Every => true,
                };
                if hit {
                    p.pardoned = true;
                    lost = self.spoil(fault, &mut completion);
                    copies += usize::from(fault == InjectedFault::Duplicate);
                    last |= completion.status != Status::Successful;
                }
            }
            if lost {
                self.judge.abandon(p.tag);
            } else {
                if completion.tag != p.tag {
                    self.judge.abandon(p.tag);
                }
                for _ in 0..copies {
                    let (completion, raw) = (completion.clone(), Tlp::Completion(completion.clone()).emit());
                    let arrival = self.down.send(at, raw.wire_bytes());
                    self.order += 1;
                    let what =
                        Returned { completion, raw, injected: p.pardoned, epoch: p.epoch, lost: false };
                    self.rc.push_back(Down { at: arrival, order: self.order, what });
                }
            }
            if last {
                return;
            }
            p.first = false;
            p.next += n as u64;
            p.left -= n;
            if let CompletionOrder::Shuffled(window) = self.config.link.order {
                let drift = self.draw(window.0 / 4 + 1);
                if drift > 0 {
                    self.schedule(at + Time(drift), at, Act::Read(p));
                    return;
                }
            }
        }
    }

    /// The next completion of `p`, and how many bytes of the request it settles.
    fn piece(&mut self, at: Time, p: &Pending) -> (Completion, u32) {
        let sideband = self.space.sideband(true);
        let mut completion = Completion {
            attr: Attributes { poisoned: false, id_ordered: false, ..p.attr },
            completer: ROOT_ID,
            status: Status::Successful,
            byte_count: p.left as u16,
            requester: p.requester,
            tag: p.tag,
            lower_address: (p.next & 0x7f) as u8,
            payload: Vec::new(),
        };
        if p.refuse {
            completion.status = Status::UnsupportedRequest;
            return (completion, p.left);
        }
        let result = match &p.work {
            Work::ZeroLength => {
                let mut byte = [0];
                self.memory.read(p.next, &mut byte).map(|()| (vec![0; 4], p.left))
            }
            Work::Atomic(atomic) => {
                completion.lower_address = 0;
                let size = atomic.operand_bytes();
                let mut old = vec![0; size];
                let memory = &mut self.memory;
                let outcome = memory.read(p.next, &mut old).and_then(|()| {
                    let new = atomic_result(atomic, &old);
                    memory.write(p.next, &new)
                });
                outcome.map(|()| (old, p.left))
            }
            Work::Read => {
                let split = self.config.link.split;
                let rng = &mut self.rng;
                let n = next_piece(p.next, p.left, sideband.rcb, sideband.max_payload, split, |n| {
                    if n == 0 { 0 } else { (rng.next_u64() % n as u64) as u32 }
                });
                let skip = (p.next & 3) as usize;
                let mut payload = vec![0; (skip + n as usize).next_multiple_of(4)];
                self.memory.read(p.next, &mut payload[skip..skip + n as usize]).map(|()| (payload, n))
            }
        };
        match result {
            Ok((payload, n)) => {
                completion.payload = payload;
                (completion, n)
            }
            Err(fault) => {
                self.events.push(Event::ReadFault { at, address: p.next, fault });
                completion.status = Status::UnsupportedRequest;
                (completion, p.left)
            }
        }
    }

    /// Spoils a completion; true if it is lost altogether.
    fn spoil(&mut self, fault: InjectedFault, c: &mut Completion) -> bool {
        let refuse = |c: &mut Completion, status| {
            c.status = status;
            c.payload.clear();
        };
        match fault {
            InjectedFault::Unsupported => refuse(c, Status::UnsupportedRequest),
            InjectedFault::Abort => refuse(c, Status::CompleterAbort),
            InjectedFault::ConfigRetry => refuse(c, Status::ConfigRetry),
            InjectedFault::Poison => c.attr.poisoned = !c.payload.is_empty(),
            InjectedFault::Lost => return true,
            InjectedFault::Late(_) | InjectedFault::Duplicate => {}
            InjectedFault::ByteCount(by) => {
                c.byte_count = (c.byte_count as i32 + by as i32).clamp(1, 4096) as u16;
            }
            InjectedFault::UnknownTag => {
                // A card that takes tags in rotation does not reach it before the completion arrives.
                match self.judge.idle_tag() {
                    Some(tag) => c.tag = tag,
                    None => return true,
                }
            }
        }
        false
    }

    // ---- to the card

    /// Counts what reached the card's completion buffer by `now`.
    fn arrive(&mut self, now: Time) {
        let (headers, data) = (self.config.link.completion_headers, self.config.link.completion_data);
        while let Some(item) = self.rc.get_mut(self.rc_arrived).filter(|d| d.at <= now) {
            let units = data_credits(item.what.raw.payload.len());
            let full =
                headers != 0 && self.rc_headers + 1 > headers || data != 0 && self.rc_data + units > data;
            if full {
                item.what.lost = true;
                let (at, tag, header) = (item.at, item.what.completion.tag, item.what.raw.header);
                self.judge.report(at, Side::Card, Verdict::CompletionOverflow { tag }, header);
                self.judge.abandon(tag);
                self.space.record(ErrorStatus::Fatal);
                self.events.push(Event::CompletionOverflow { at, tag });
            } else {
                self.rc_headers += 1;
                self.rc_data += units;
            }
            self.rc_arrived += 1;
        }
    }

    /// The next completion for the card that has arrived. It leaves the card's completion buffer by this.
    pub fn poll_rc(&mut self, now: Time) -> Option<RawTlp> {
        self.advance(now);
        let now = self.now;
        loop {
            let front = self.rc.front().filter(|d| d.at <= now)?;
            if !front.what.lost {
                let pushed = self.cq_posted.front().is_some_and(|w| w.order < front.order);
                if pushed && !front.what.completion.attr.relaxed {
                    return None;
                }
            }
            let Returned { completion, raw, injected, epoch, lost } = self.rc.pop_front()?.what;
            self.rc_arrived = self.rc_arrived.saturating_sub(1);
            if lost {
                continue;
            }
            self.rc_headers = self.rc_headers.saturating_sub(1);
            self.rc_data = self.rc_data.saturating_sub(data_credits(raw.payload.len()));
            let pardoned = injected || epoch != self.epoch;
            self.judge.completion(now, Side::Host, &completion, raw.header, pardoned);
            if completion.attr.poisoned {
                self.space.record(ErrorStatus::PoisonedReceived);
                self.space.record(ErrorStatus::MasterData);
            }
            if let Some(log) = &mut self.log {
                let meaning = Tlp::Completion(completion);
                log.push(TlpRecord::new(now, Direction::HostToCard, &raw, Some(&meaning), injected));
            }
            return Some(raw);
        }
    }

    /// The next host request that has arrived at the card, in order.
    pub fn poll_cq(&mut self, now: Time) -> Option<CqTlp> {
        self.advance(now);
        let write = self.cq_posted.front().filter(|d| d.at <= self.now).map(|d| d.order);
        let read = self.cq_reads.front().filter(|d| d.at <= self.now).map(|d| d.order);
        match (write, read) {
            (Some(w), Some(r)) if r < w => self.pop_cq(true),
            (Some(_), _) => self.pop_cq(false),
            (None, Some(_)) => self.pop_cq(true),
            (None, None) => None,
        }
    }

    /// The next host write that has arrived, even if a read waits before it: for a card that cannot take a read now.
    pub fn poll_cq_posted(&mut self, now: Time) -> Option<CqTlp> {
        self.advance(now);
        self.cq_posted.front().filter(|d| d.at <= self.now)?;
        self.pop_cq(false)
    }

    fn pop_cq(&mut self, read: bool) -> Option<CqTlp> {
        let queue = if read { &mut self.cq_reads } else { &mut self.cq_posted };
        let request = queue.pop_front()?.what;
        let (parsed, _) = self.judge.request(self.now, Side::Host, &request.tlp);
        if request.tlp.poisoned() {
            self.space.record(ErrorStatus::PoisonedReceived);
        }
        if let Some(log) = &mut self.log {
            let meaning = parsed.as_ref().ok();
            log.push(TlpRecord::new(self.now, Direction::HostToCard, &request.tlp, meaning, false));
        }
        Some(request)
    }

    // ---- the host

    /// Base address of a BAR, if an access of `len` bytes at `offset` reaches the card.
    fn reach(&mut self, bar: u8, offset: u64, len: usize) -> Result<u64, ReadError> {
        let sideband = self.sideband();
        let inside = self
            .space
            .bar(bar)
            .filter(|(_, bytes)| offset.checked_add(len as u64).is_some_and(|end| end <= *bytes));
        if self.reset_since.is_some() {
            self.events.push(Event::TouchedInReset { at: self.now });
        }
        match inside {
            Some((base, _)) if self.link_up && sideband.memory_enable && !sideband.flr => Ok(base),
            _ => {
                self.events.push(Event::MmioRefused { at: self.now, bar, offset });
                let down = !self.link_up;
                Err(if down { ReadError::LinkDown } else { ReadError::UnsupportedRequest })
            }
        }
    }

    fn host_writes(&mut self, bar: u8, write: MemWrite) {
        let tlp = Tlp::MemWrite(write).emit();
        let at = self.down.send(self.now, tlp.wire_bytes());
        self.order += 1;
        self.cq_posted.push_back(Down { at, order: self.order, what: CqTlp { bar, tlp } });
    }

    /// The host writes `bytes` at `offset` of a BAR: one TLP per aligned Max_Payload_Size block that they touch. What
    /// cannot reach the card is dropped with an [`Event::MmioRefused`], as a posted write is.
    pub fn mmio_write(&mut self, now: Time, bar: u8, offset: u64, bytes: &[u8]) {
        self.advance(now);
        let Ok(base) = self.reach(bar, offset, bytes.len()) else { return };
        let block = self.sideband().max_payload as u64;
        let mut at = base + offset;
        let mut rest = bytes;
        loop {
            let n = rest.len().min((block - at % block) as usize);
            self.host_writes(bar, MemWrite::bytes(ROOT_ID, at, &rest[..n]));
            at += n as u64;
            rest = &rest[n..];
            if rest.is_empty() {
                return;
            }
        }
    }

    /// The host sends one write with enables and attributes of its choice. Its `address` is the offset in the BAR.
    /// It is sent as it is: the judge speaks if it breaks a rule.
    pub fn mmio_send(&mut self, now: Time, bar: u8, write: MemWrite) {
        self.advance(now);
        let Ok(base) = self.reach(bar, write.address, write.payload.len()) else { return };
        let address = base + write.address;
        self.host_writes(bar, MemWrite { address, ..write });
    }

    /// Something reaches a BAR of the card that is no access of a driver: any TLP, judged, its answer taken by nobody.
    pub fn host_sends(&mut self, now: Time, bar: u8, tlp: RawTlp) {
        self.advance(now);
        if self.reach(bar, 0, 0).is_err() {
            return;
        }
        let at = self.down.send(self.now, tlp.wire_bytes());
        self.order += 1;
        let (data, kind) = (tlp.header[0] >> 30 & 1 == 1, tlp.header[0] >> 24 & 0x1f);
        // a memory write or a message
        let posted = data && kind == 0 || kind >> 3 == 2;
        let queue = if posted { &mut self.cq_posted } else { &mut self.cq_reads };
        queue.push_back(Down { at, order: self.order, what: CqTlp { bar, tlp } });
    }

    /// A completion reaches the card that answers nothing, or not what was asked for: as an injected fault, it is not
    /// judged.
    pub fn host_completes(&mut self, now: Time, completion: Completion) {
        self.advance(now);
        let raw = Tlp::Completion(completion.clone()).emit();
        let at = self.down.send(self.now, raw.wire_bytes());
        self.order += 1;
        let what = Returned { completion, raw, injected: true, epoch: self.epoch, lost: false };
        self.rc.push_back(Down { at, order: self.order, what });
    }

    /// The host reads `len` bytes at `offset` of a BAR; no byte is a zero-length read. One TLP per aligned
    /// Max_Payload_Size block. The result waits under the token.
    pub fn mmio_read(&mut self, now: Time, bar: u8, offset: u64, len: usize) -> ReadToken {
        self.advance(now);
        let base = self.reach(bar, offset, len);
        let block = self.sideband().max_payload as u64;
        let mut parts = Vec::new();
        if let Ok(base) = base {
            let mut done = 0;
            loop {
                let at = base + offset + done as u64;
                let n = (len - done).min((block - at % block) as usize);
                parts.push((MemRead::bytes(ROOT_ID, 0, at, n), done..done + n));
                done += n;
                if done >= len {
                    break;
                }
            }
        }
        self.host_reads(bar, len, base.err(), parts)
    }

    /// The host sends one read with enables of its choice; its `address` is the offset in the BAR, its tag is chosen
    /// here. The result is the bytes from the first to the last enabled one.
    pub fn mmio_read_enables(&mut self, now: Time, bar: u8, mut read: MemRead) -> ReadToken {
        self.advance(now);
        read.dwords = read.dwords.clamp(1, 1024);
        let base = self.reach(bar, read.address, read.dwords as usize * 4);
        let len = if read.zero_length() { 0 } else { read.byte_count() as usize };
        read.requester = ROOT_ID;
        let error = match base {
            Ok(base) => {
                read.address += base;
                None
            }
            Err(error) => Some(error),
        };
        let parts = if error.is_none() { vec![(read, 0..len)] } else { Vec::new() };
        self.host_reads(bar, len, error, parts)
    }

    fn host_reads(
        &mut self,
        bar: u8,
        len: usize,
        error: Option<ReadError>,
        parts: Vec<(MemRead, Range<usize>)>,
    ) -> ReadToken {
        self.tokens += 1;
        let token = self.tokens;
        self.reads.insert(token, HostRead { data: vec![0; len], parts: parts.len(), error });
        for (read, range) in parts {
            self.wanted.push_back(Wanted { token, bar, read, range });
        }
        self.send_wanted(self.now);
        ReadToken(token)
    }

    /// Sends host reads as long as there are tags.
    fn send_wanted(&mut self, at: Time) {
        while !self.wanted.is_empty()
            && let Some(tag) = self.tags.pop()
            && let Some(Wanted { token, bar, mut read, range }) = self.wanted.pop_front()
        {
            read.tag = tag;
            let address = first_byte(read.address, read.first_be);
            let tlp = Tlp::MemRead(read).emit();
            let arrival = self.down.send(at, tlp.wire_bytes());
            self.order += 1;
            let serial = self.order;
            self.cq_reads.push_back(Down { at: arrival, order: serial, what: CqTlp { bar, tlp } });
            self.parts[tag as usize] = Some(Part { token, serial, address, range });
            self.deadlines.push_back((at + self.config.host_timeout, tag, serial));
        }
    }

    /// Ends a part of a host read.
    fn free_part(&mut self, at: Time, tag: u16, error: Option<ReadError>) -> Option<Part> {
        let part = self.parts.get_mut(tag as usize)?.take()?;
        if let Some(read) = self.reads.get_mut(&part.token) {
            read.parts = read.parts.saturating_sub(1);
            read.error = read.error.or(error);
        }
        self.tags.push(tag);
        while let Some(&(_, tag, serial)) = self.deadlines.front() {
            if self.parts[tag as usize].as_ref().is_some_and(|p| p.serial == serial) {
                break;
            }
            self.deadlines.pop_front();
        }
        self.send_wanted(at);
        Some(part)
    }

    fn answered(&mut self, at: Time, c: &Completion, found: Match) {
        let Match::Known { address, bytes, last, sound } = found else { return };
        let error = match c.status {
            Status::UnsupportedRequest => Some(ReadError::UnsupportedRequest),
            Status::CompleterAbort => Some(ReadError::CompleterAbort),
            Status::ConfigRetry => Some(ReadError::Malformed),
            Status::Successful if !sound => Some(ReadError::Malformed),
            Status::Successful if c.attr.poisoned => Some(ReadError::Poisoned),
            Status::Successful => None,
        };
        let Some(Some(part)) = self.parts.get(c.tag as usize) else { return };
        if let Some(read) = self.reads.get_mut(&part.token) {
            // A zero-length read has one byte on paper and none in its range.
            let from = (address.wrapping_sub(part.address) as usize).saturating_add(part.range.start);
            let room = from..from.saturating_add(bytes.len()).min(part.range.end);
            if error.is_none()
                && let Some(into) = read.data.get_mut(room)
            {
                into.copy_from_slice(&c.payload[bytes.start..bytes.start + into.len()]);
            }
            read.error = read.error.or(error);
        }
        if last || !sound {
            if !last {
                self.judge.abandon_host(c.tag);
            }
            self.free_part(at, c.tag, error);
        }
    }

    /// The result of a host read, once. `None` while it is under way, and for a token that was taken.
    pub fn take_read(&mut self, token: ReadToken) -> Option<Result<Vec<u8>, ReadError>> {
        if self.reads.get(&token.0)?.parts > 0 {
            return None;
        }
        let read = self.reads.remove(&token.0)?;
        Some(match read.error {
            Some(error) => Err(error),
            None => Ok(read.data),
        })
    }

    /// The host reads configuration space. The link being down reads as all ones.
    pub fn config_read(&mut self, now: Time, offset: usize, into: &mut [u8]) {
        self.advance(now);
        if self.link_up {
            self.space.read(offset, into, self.judge.outstanding() > 0);
        } else {
            into.fill(0xff);
        }
    }

    /// The host writes configuration space. Writing the FLR bit starts a function level reset: everything outstanding
    /// is forgotten, host accesses are refused until [`RootComplex::card_reset_done`].
    pub fn config_write(&mut self, now: Time, offset: usize, bytes: &[u8]) {
        self.advance(now);
        if !self.link_up {
            return;
        }
        if self.reset_since.is_some() {
            self.events.push(Event::TouchedInReset { at: self.now });
        }
        if self.space.write(offset, bytes) == ConfigEffect::FunctionLevelReset {
            self.space.set_flr(true);
            self.reset_since = Some(self.now);
            self.reset_overdue = false;
            self.forget(ReadError::UnsupportedRequest);
            self.events.push(Event::ResetStarted { at: self.now });
        }
        self.judge.sideband(self.now, self.sideband());
    }

    /// Plays firmware again, after a reset or with other sizes.
    pub fn enumerate(&mut self, now: Time, plan: &Enumeration) {
        self.advance(now);
        self.space.enumerate(plan);
        self.judge.sideband(self.now, self.sideband());
    }

    /// Host requests and reads end; answers to the card's old reads are pardoned.
    fn forget(&mut self, error: ReadError) {
        self.epoch += 1;
        self.judge.forget_all(self.now);
        self.dropped += (self.cq_posted.len() + self.cq_reads.len()) as u64;
        self.cq_posted.clear();
        self.cq_reads.clear();
        self.wanted.clear();
        self.deadlines.clear();
        self.parts.iter_mut().for_each(|part| *part = None);
        self.tags = (0..HOST_TAGS).rev().collect();
        for read in self.reads.values_mut().filter(|read| read.parts > 0) {
            read.parts = 0;
            read.error = read.error.or(Some(error));
        }
    }

    /// Drops completions to the card that belong to an earlier epoch.
    fn drop_stale(&mut self) {
        let (epoch, arrived) = (self.epoch, self.rc_arrived);
        let before = self.rc.len();
        let mut index = 0;
        let (mut gone, mut headers, mut data) = (0, 0, 0);
        self.rc.retain(|item| {
            let keep = item.what.epoch == epoch;
            if !keep && index < arrived {
                gone += 1;
                if !item.what.lost {
                    headers += 1;
                    data += data_credits(item.what.raw.payload.len());
                }
            }
            index += 1;
            keep
        });
        self.rc_arrived -= gone;
        self.rc_headers -= headers;
        self.rc_data -= data;
        self.dropped += (before - self.rc.len()) as u64;
    }

    // ---- the card's own reports

    /// The card is done with its function level reset. Answers to reads from before it come no more.
    pub fn card_reset_done(&mut self, now: Time) {
        self.advance(now);
        if let Some(since) = self.reset_since.take() {
            self.space.set_flr(false);
            self.drop_stale();
            self.events.push(Event::ResetDone { at: self.now, took: self.now.since(since) });
            self.judge.sideband(self.now, self.sideband());
        }
    }

    /// The card reports an error that belongs in the status registers.
    pub fn card_reports(&mut self, now: Time, error: ErrorStatus) {
        self.advance(now);
        self.space.record(error);
    }

    // ---- the link

    /// Takes the link down or up. Down: what is on the wire is lost both ways, host reads fail, the card's reads are
    /// never answered. Writes that had reached the root are still carried out.
    pub fn set_link(&mut self, now: Time, up: bool) {
        self.advance(now);
        if up == self.link_up {
            return;
        }
        self.link_up = up;
        if !up {
            let now = self.now;
            let before = self.due.len();
            self.due.retain(|due| due.arrived <= now && matches!(due.act, Act::Write(_)));
            self.dropped += (before - self.due.len()) as u64;
            self.forget(ReadError::LinkDown);
            self.drop_stale();
            self.up.idle(now);
            self.down.idle(now);
            self.meter = CreditMeter::new(self.config.link.credits);
            self.retry = None;
            self.writes_visible = self.due.iter().map(|due| due.at).max().unwrap_or(now);
            self.reads_ready = now;
        }
        self.events.push(Event::Link { at: self.now, up });
        self.judge.sideband(self.now, self.sideband());
    }
}

/// What memory holds after the operation.
fn atomic_result(atomic: &AtomicOp, old: &[u8]) -> Vec<u8> {
    let size = old.len();
    let value = |bytes: &[u8]| bytes.iter().rev().fold(0u128, |v, b| v << 8 | *b as u128);
    match atomic.kind {
        AtomicKind::FetchAdd => {
            let sum = value(old).wrapping_add(value(&atomic.operands));
            sum.to_le_bytes()[..size].to_vec()
        }
        AtomicKind::Swap => atomic.operands.clone(),
        AtomicKind::CompareSwap if atomic.operands[..size] == *old => atomic.operands[size..].to_vec(),
        AtomicKind::CompareSwap => old.to_vec(),
    }
}
