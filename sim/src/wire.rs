//! A full-duplex Ethernet wire between ports A and B, frame by frame, in simulated time.
//!
//! ```text
//! card A --pins--> Decoder --Frame--> Wire (delay, rate, faults) --Delivery--> Encoder --pins--> card B
//!                                        (and the same from B to A)
//! ```
//!
//! In: whole frames with their FCS, each with the time of its Start character and of its end. Out: the same frames,
//! later. A frame starts to leave at the latest of: its start plus the delay; its end, because only then it is known
//! (so latency is exact for frames that last no longer than the delay); the turn of the frame before it; the moment at
//! which the line is free of the frame before it and, when shaped, of its gap. Frames of a direction stay in order
//! unless a fault delays one.
//!
//! Faults come from a seed (each frame draws the same amount of randomness, whatever is switched on, so one probability
//! does not disturb another's choices) and from a script of [`Rule`]s; every fault travels with its frame as a [`Fault`]
//! for the capture. Same seed, same frames, same times: same deliveries.
//!
//! Never: the wire has no clock of its own, never holds back the sender (a wire has no back-pressure; a shaped queue grows
//! without limit), never changes a byte except by [`Fault::Corrupted`].

pub mod cmac;
pub mod dgram;
pub mod gmii;
pub mod xgmii;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use std::{collections::BinaryHeap, fmt, sync::Arc};

/// Bytes of a frame's surroundings on the wire: 8 of preamble and SFD.
pub const PREAMBLE_BYTES: u64 = 8;
/// Least average gap between frames in bytes, the Terminate character counted (802.3 interpacket gap of 96 bits).
pub const GAP_BYTES: u64 = 12;
/// Shortest legal frame with FCS, in bytes.
pub const MIN_FRAME: usize = 64;

/// An Ethernet frame from destination address to FCS, with its place in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Destination address first, the four FCS bytes last.
    pub bytes: Arc<[u8]>,
    /// When its first preamble byte (the Start character) passes, in ps.
    pub start: u64,
    /// When its last FCS byte has passed, in ps.
    pub end: u64,
}

impl Frame {
    /// A frame of these bytes, FCS included, that starts at `start` ps and passes at `rate` bits per second.
    pub fn new(bytes: impl Into<Arc<[u8]>>, start: u64, rate: u64) -> Self {
        let bytes = bytes.into();
        let end = start + line_time(bytes.len() as u64 + PREAMBLE_BYTES, rate);
        Self { bytes, start, end }
    }

    /// Whether the FCS fits the bytes.
    pub fn fcs_is_good(&self) -> bool {
        self.bytes.split_last_chunk().is_some_and(|(body, &tail)| tail == fcs(body))
    }
}

/// The four FCS bytes of a frame without FCS, in the order of the wire (CRC-32 of 802.3, least significant byte first).
pub fn fcs(frame: &[u8]) -> [u8; 4] {
    crc32fast::hash(frame).to_le_bytes()
}

/// Time of so many bytes at a rate in bits per second, in ps, rounded up.
pub fn line_time(bytes: u64, rate: u64) -> u64 {
    // A frame's bits in ps stay below 2^64 for a second of 10 Tb/s; u128 covers any input.
    (u128::from(bytes) * 8_000_000_000_000).div_ceil(u128::from(rate.max(1))) as u64
}

/// An end of the wire; as a direction, the end that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The first port.
    A,
    /// The second port.
    B,
}

impl Side {
    /// Both, A first.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The other end.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// 0 for A, 1 for B.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// How a frame falls behind the ones after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// It leaves after so many later frames, but at the latest so many ps after its time: the later ones may never come.
    Frames {
        /// Later frames of the same direction that overtake it.
        count: u32,
        /// Longest wait, in ps.
        at_most: u64,
    },
    /// It leaves so many ps after its time, overtaken by whatever comes in between.
    Time(u64),
}

/// Random faults of one direction; probabilities from 0 to 1, all independent of each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame arrives twice.
    pub duplicate: f64,
    /// Probability that one bit of a frame flips.
    pub corrupt: f64,
    /// Probability that a frame falls behind by `delay`.
    pub reorder: f64,
    /// How far it falls behind.
    pub delay: Delay,
}

impl Default for Faults {
    /// None. A reordered frame would fall behind two others or 10 us.
    fn default() -> Self {
        let delay = Delay::Frames { count: 2, at_most: 10_000_000 };
        Self { loss: 0.0, duplicate: 0.0, corrupt: 0.0, reorder: 0.0, delay }
    }
}

impl Faults {
    /// Loss alone.
    pub fn loss(probability: f64) -> Self {
        Self { loss: probability, ..Self::default() }
    }
}

/// How a wire is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// One-way delay in ps.
    pub delay: u64,
    /// Bits per second that leave at most, gap and preamble counted; `None`: as they come.
    pub rate: Option<u64>,
    /// Random faults from A to B and from B to A.
    pub faults: [Faults; 2],
    /// Seed of all randomness.
    pub seed: u64,
}

impl Default for Config {
    /// 500 ns (100 m of fibre), unshaped, no faults, seed 0.
    fn default() -> Self {
        Self { delay: 500_000, rate: None, faults: [Faults::default(); 2], seed: 0 }
    }
}

/// What a scripted rule does to the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// The bit of this number (byte times eight plus bit, bit 0 least significant; modulo the length) flips.
    Corrupt(usize),
    /// It falls behind.
    Delay(Delay),
    /// It stays in the wire until [`Wire::release`].
    Hold,
}

type Predicate = Box<dyn FnMut(&[u8]) -> bool + Send>;

/// A scripted fault of one direction. The first rule that matches a frame acts; random faults come on top.
pub struct Rule {
    which: Which,
    /// How many more times it acts.
    left: u64,
    action: Action,
}

enum Which {
    Nth(u64),
    Matching(Predicate),
}

impl Rule {
    /// Acts on the n-th frame of the direction since the wire was made; the first is 1.
    pub fn nth(n: u64, action: Action) -> Self {
        Self { which: Which::Nth(n), left: 1, action }
    }

    /// Acts on the first frame (given with its FCS) that matches.
    pub fn once(matches: impl FnMut(&[u8]) -> bool + Send + 'static, action: Action) -> Self {
        Self::times(1, matches, action)
    }

    /// Acts on the first `times` frames that match; `u64::MAX` for all.
    pub fn times(times: u64, matches: impl FnMut(&[u8]) -> bool + Send + 'static, action: Action) -> Self {
        Self { which: Which::Matching(Box::new(matches)), left: times, action }
    }

    fn matches(&mut self, number: u64, bytes: &[u8]) -> bool {
        self.left > 0
            && match &mut self.which {
                Which::Nth(n) => *n == number,
                Which::Matching(matches) => matches(bytes),
            }
    }
}

/// What the wire did to a frame. `Display` is the comment in the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Lost; seen at the sender's end only.
    Dropped {
        /// By a rule, not by chance.
        scripted: bool,
    },
    /// This is the second copy.
    Duplicated,
    /// One bit flipped.
    Corrupted {
        /// Byte offset in the frame.
        byte: usize,
        /// Bit in the byte, 0 the least significant.
        bit: u8,
    },
    /// Left later than its turn.
    Delayed {
        /// How much after its turn it was let go, in ps.
        by: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped { scripted: true } => write!(f, "dropped by the wire (scripted)"),
            Self::Dropped { scripted: false } => write!(f, "dropped by the wire"),
            Self::Duplicated => write!(f, "duplicated by the wire: second copy"),
            Self::Corrupted { byte, bit } => {
                write!(f, "corrupted by the wire: bit {bit} of byte {byte} flipped")
            }
            Self::Delayed { by } => write!(f, "delayed by the wire: {} ns", by / 1000),
        }
    }
}

/// A frame that leaves the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The frame with the times at which it passes the receiving end.
    pub frame: Frame,
    /// What the wire did to it.
    pub faults: Vec<Fault>,
}

/// What one direction has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that entered.
    pub frames: u64,
    /// Their bytes, FCS included.
    pub bytes: u64,
    /// Frames that left, copies included.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Frames lost.
    pub dropped: u64,
    /// Second copies made.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames made to fall behind, held ones included.
    pub delayed: u64,
}

/// A frame with a time to leave; ordered so that a heap gives the earliest, then the one that entered first.
#[derive(PartialEq, Eq)]
struct Due {
    time: u64,
    order: u64,
    delivery: Delivery,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.time, other.order).cmp(&(self.time, self.order))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A frame that waits for others to overtake it.
struct Aside {
    delivery: Delivery,
    /// When it would have left.
    turn: u64,
    deadline: u64,
    overtakers: u32,
}

struct Lane {
    random: ChaCha8Rng,
    faults: Faults,
    rules: Vec<Rule>,
    due: BinaryHeap<Due>,
    aside: Vec<Aside>,
    /// Frames held by rule, with the time they would have left.
    held: Vec<(Delivery, u64)>,
    counters: Counters,
    /// Number of the next frame put on the way out.
    order: u64,
    /// Turn of the last frame in order: the next one is not earlier.
    last_turn: u64,
    /// When the line at the receiving end is free again.
    free: u64,
}

/// The wire.
pub struct Wire {
    delay: u64,
    rate: Option<u64>,
    lanes: [Lane; 2],
    up: bool,
}

impl Wire {
    /// A wire, empty.
    pub fn new(config: &Config) -> Self {
        let lane = |side: Side| Lane {
            random: random(config.seed, side),
            faults: config.faults[side.index()],
            rules: Vec::new(),
            due: BinaryHeap::new(),
            aside: Vec::new(),
            held: Vec::new(),
            counters: Counters::default(),
            order: 0,
            last_turn: 0,
            free: 0,
        };
        Self { delay: config.delay, rate: config.rate, lanes: Side::BOTH.map(lane), up: true }
    }

    /// Adds a rule for frames that `from` sends.
    pub fn script(&mut self, from: Side, rule: Rule) {
        self.lane(from).rules.push(rule);
    }

    /// Removes all rules of a direction.
    pub fn clear_script(&mut self, from: Side) {
        self.lane(from).rules.clear();
    }

    /// Rules that may still act: a story asserts 0 to know that its script was used up.
    pub fn pending_rules(&self, from: Side) -> usize {
        self.lanes[from.index()].rules.iter().filter(|rule| rule.left > 0).count()
    }

    /// Replaces the random faults of a direction from the next frame on.
    pub fn set_faults(&mut self, from: Side, faults: Faults) {
        self.lane(from).faults = faults;
    }

    /// Pulls the wire out, or plugs it in: what is sent while it is out is lost, what is under way arrives.
    pub fn plug(&mut self, up: bool) {
        self.up = up;
    }

    /// Draws from this seed from the next frame on.
    pub fn reseed(&mut self, seed: u64) {
        for side in Side::BOTH {
            self.lane(side).random = random(seed, side);
        }
    }

    /// A frame enters. Gives the fault that shows at the sender's end: it was dropped.
    pub fn send(&mut self, from: Side, frame: Frame) -> Option<Fault> {
        let (delay, up) = (self.delay, self.up);
        self.lane(from).send(frame, delay, up)
    }

    /// Lets go of the frames of a direction that rules hold, in the order they came; they leave from `now` on.
    pub fn release(&mut self, from: Side, now: u64) {
        let lane = self.lane(from);
        for (delivery, turn) in std::mem::take(&mut lane.held) {
            lane.leave_late(delivery, turn, now.max(turn));
        }
    }

    /// The next frame that reaches `at` no later than `now`; its bytes start to arrive at `frame.start`. `None`: nothing
    /// is due.
    pub fn receive(&mut self, at: Side, now: u64) -> Option<Delivery> {
        let rate = self.rate;
        self.lane(at.other()).receive(now, rate)
    }

    /// When the next frame leaves at either end, in ps; `None`: no frame will leave by itself.
    pub fn next_due(&self) -> Option<u64> {
        let of_lane = |lane: &Lane| {
            let due = lane.due.peek().map(|due| due.time);
            lane.aside.iter().map(|aside| aside.deadline).chain(due).min().map(|time| time.max(lane.free))
        };
        self.lanes.iter().filter_map(of_lane).min()
    }

    /// Whether nothing leaves at or before `now`.
    pub fn quiet(&self, now: u64) -> bool {
        self.next_due().is_none_or(|due| due > now)
    }

    /// Frames of a direction inside the wire, held ones included.
    pub fn in_flight(&self, from: Side) -> usize {
        let lane = &self.lanes[from.index()];
        lane.due.len() + lane.aside.len() + lane.held.len()
    }

    /// Frames of a direction that rules hold.
    pub fn held(&self, from: Side) -> usize {
        self.lanes[from.index()].held.len()
    }

    /// What a direction has seen.
    pub fn counters(&self, from: Side) -> Counters {
        self.lanes[from.index()].counters
    }

    fn lane(&mut self, from: Side) -> &mut Lane {
        &mut self.lanes[from.index()]
    }
}

impl Lane {
    fn send(&mut self, frame: Frame, delay: u64, up: bool) -> Option<Fault> {
        self.counters.frames += 1;
        self.counters.bytes += frame.bytes.len() as u64;
        let number = self.counters.frames;
        let rule = self.rules.iter_mut().find_map(|rule| {
            rule.matches(number, &frame.bytes).then(|| {
                rule.left -= 1;
                rule.action
            })
        });
        // Always five draws: see the promise above.
        let faults = self.faults;
        let mut happens = |probability: f64| unit(self.random.next_u64()) < probability;
        let (loss, duplicate) = (happens(faults.loss), happens(faults.duplicate));
        let (corrupt, reorder) = (happens(faults.corrupt), happens(faults.reorder));
        let place = self.random.next_u64();

        let scripted = !up || rule == Some(Action::Drop);
        if loss || scripted {
            self.counters.dropped += 1;
            return Some(Fault::Dropped { scripted });
        }
        let turn = (frame.start + delay).max(frame.end).max(self.last_turn);
        let mut delivery = Delivery { frame, faults: Vec::new() };
        let bits = delivery.frame.bytes.len() * 8;
        let flip = match rule {
            Some(Action::Corrupt(bit)) => Some(bit),
            // The high half of the draw, scaled: a frame has far fewer bits than 2^32.
            _ => corrupt.then_some((((place >> 32) * bits as u64) >> 32) as usize),
        };
        if let Some(bit) = flip.filter(|_| bits > 0).map(|bit| bit % bits) {
            let mut bytes = delivery.frame.bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            delivery.frame.bytes = bytes.into();
            delivery.faults.push(Fault::Corrupted { byte: bit / 8, bit: (bit % 8) as u8 });
            self.counters.corrupted += 1;
        }
        let late = match rule {
            Some(Action::Hold) => Some(None),
            Some(Action::Delay(by)) => Some(Some(by)),
            _ => reorder.then_some(Some(faults.delay)),
        };
        let duplicate = duplicate || rule == Some(Action::Duplicate);
        if late.is_none() {
            self.leave(delivery.clone(), turn);
        }
        if duplicate {
            self.counters.duplicated += 1;
            let mut copy = delivery.clone();
            copy.faults.push(Fault::Duplicated);
            self.leave(copy, turn);
        }
        if late.is_none() || duplicate {
            self.last_turn = turn;
            self.overtake(turn);
        }
        if let Some(how) = late {
            self.counters.delayed += 1;
            match how {
                None => self.held.push((delivery, turn)),
                Some(Delay::Time(by)) => self.leave_late(delivery, turn, turn + by),
                Some(Delay::Frames { count, at_most }) => {
                    self.aside.push(Aside {
                        delivery,
                        turn,
                        deadline: turn + at_most,
                        overtakers: count.max(1),
                    });
                }
            }
        }
        None
    }

    /// Puts a delivery on the way out, to leave at `time` if the line is free then.
    fn leave(&mut self, delivery: Delivery, time: u64) {
        self.due.push(Due { time, order: self.order, delivery });
        self.order += 1;
    }

    fn leave_late(&mut self, mut delivery: Delivery, turn: u64, time: u64) {
        delivery.faults.push(Fault::Delayed { by: time.saturating_sub(turn) });
        self.leave(delivery, time);
    }

    /// A frame that leaves at `turn` goes past the waiting ones; those that had enough leave right after it.
    fn overtake(&mut self, turn: u64) {
        for aside in &mut self.aside {
            aside.overtakers -= 1;
        }
        while let Some(index) = self.aside.iter().position(|aside| aside.overtakers == 0) {
            let aside = self.aside.remove(index);
            self.leave_late(aside.delivery, aside.turn, turn.min(aside.deadline));
        }
    }

    fn receive(&mut self, now: u64, rate: Option<u64>) -> Option<Delivery> {
        // Waiting frames whose patience has ended leave at their deadline.
        while let Some(index) = self.aside.iter().position(|aside| aside.deadline <= now) {
            let aside = self.aside.remove(index);
            self.leave_late(aside.delivery, aside.turn, aside.deadline);
        }
        let start = self.due.peek()?.time.max(self.free);
        if start > now {
            return None;
        }
        let mut delivery = self.due.pop()?.delivery;
        let frame = &mut delivery.frame;
        let length = frame.bytes.len() as u64;
        let own = frame.end.saturating_sub(frame.start);
        let duration = rate.map_or(own, |rate| own.max(line_time(length + PREAMBLE_BYTES, rate)));
        (frame.start, frame.end) = (start, start + duration);
        let gap = rate.map_or(0, |rate| line_time(length + PREAMBLE_BYTES + GAP_BYTES, rate));
        self.free = start + gap.max(duration);
        self.counters.delivered += 1;
        self.counters.delivered_bytes += length;
        Some(delivery)
    }
}

/// The randomness of a direction.
fn random(seed: u64, from: Side) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(from.index() as u64);
    random
}

/// A draw as a number from 0 (included) to 1 (excluded).
fn unit(draw: u64) -> f64 {
    (draw >> 11) as f64 / (1u64 << 53) as f64
}
