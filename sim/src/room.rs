//! The room: cards, the wire between them, and the one clock that all share.
//!
//! ```text
//!  card 0 ──▶ Wire (side A) ──▶ card 1, or a plain-Rust endpoint (crate peer), or a port to the outside
//!         ◀──               ◀──
//! ```
//! In the place of card 0 may be a board without a host, [`Target`]; then there is no card.
//!
//! In: limits of time, and what happens meanwhile to hosts and wire. Out: everything that a run leaves behind: memory,
//! events, violations, a capture of both ends, TLP logs, waves. Time is simulated, in ps, and only goes forward:
//! [`Room::run_until`] and its siblings step from clock edge to clock edge while any card is awake, and jump to the
//! next thing that is due while all sleep. Deterministic: the same calls and seeds give the same cycles, frames and TLPs.
//!
//! Never: it does not sleep, read the machine's clock, or use a thread.

use crate::{
    Error,
    capture::Capture,
    card::{CORE_PERIOD, Card, CardConfig, CardModel, Violation},
    function::Function,
    target::Target,
    wire::{self, Fault, Frame, GAP_BYTES, Side, Wire, fcs, gmii, line_time},
};
use contract::TraceEntry;
use pcie_sim::{Iommu, RootComplex, Time, TlpRecord, config::Enumeration};
use peer::Endpoint;
use std::{
    collections::VecDeque,
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

/// TLP records that are gathered before they go to the log's file.
const LOG_BATCH: usize = 4096;
/// "No such instant."
const NEVER: u64 = u64::MAX;

/// What a room is.
#[derive(Clone, Debug)]
pub struct RoomConfig {
    /// One or two cards; the first is at side A of the wire.
    pub cards: Vec<CardConfig>,
    /// The wire. Its seed is the room's.
    pub wire: wire::Config,
    /// Seed of everything random.
    pub seed: u64,
}

impl RoomConfig {
    /// So many example cards on a clean wire.
    pub fn example(cards: usize, seed: u64) -> Self {
        Self { cards: (0..cards).map(CardConfig::example).collect(), wire: wire::Config::default(), seed }
    }
}

/// A plain-Rust endpoint at side B.
struct Peer {
    endpoint: Endpoint,
    /// Frames under way to it, each complete at its time.
    arriving: VecDeque<(u64, Frame)>,
    /// When its line is free.
    free: u64,
    /// It may have something to send.
    eager: bool,
}

impl Peer {
    fn due(&self) -> u64 {
        let arrival = self.arriving.front().map_or(NEVER, |(end, _)| *end);
        let timer = self.endpoint.next_timeout().unwrap_or(NEVER);
        let sending = if self.eager { self.free } else { NEVER };
        arrival.min(timer).min(sending)
    }
}

/// Side B is a port: others take what leaves the wire there, and bring what enters it.
#[derive(Default)]
struct Port {
    departed: Vec<Frame>,
    /// When its line is free.
    free: u64,
    storm: Option<Storm>,
}

/// Frames that come in through the port, one after another, wherever the line is free.
struct Storm {
    frames: Vec<Vec<u8>>,
    sent: usize,
    span: u64,
    /// When it is over, once it has begun.
    end: Option<u64>,
}

impl Port {
    /// Somebody's frame passes: a storm that waits for it begins.
    fn passed(&mut self, now: u64) {
        if let Some(storm) = &mut self.storm {
            storm.end.get_or_insert(now.saturating_add(storm.span));
        }
    }

    /// When the storm's next frame is to be made: a frame before the line is free.
    fn due(&self, rate: u64) -> u64 {
        let begun = self.storm.as_ref().is_some_and(|storm| storm.end.is_some());
        if begun { self.free.saturating_sub(line_time(wire::MIN_FRAME as u64, rate)) } else { NEVER }
    }
}

/// A frame as it passed an end of the wire.
#[derive(Clone, Debug)]
pub struct Sight {
    /// The end at which it was sent.
    pub from: Side,
    /// The frame, with its FCS.
    pub frame: Frame,
    /// The wire lost it.
    pub lost: bool,
}

/// Told of every frame that is sent: by which side, the frame, whether the wire lost it.
pub type Watcher = Box<dyn FnMut(Side, &Frame, bool) + Send>;

/// Told of everything that a stage of a card decides: which card, its core clocks since reset, what.
pub type Marker = Box<dyn FnMut(usize, u64, &TraceEntry) + Send>;

struct TlpLog {
    path: PathBuf,
    file: BufWriter<File>,
}

/// Cards, wire, clock.
pub struct Room {
    cards: Vec<Card>,
    target: Option<Target>,
    peer: Option<Peer>,
    port: Option<Port>,
    wire: Wire,
    wire_due: u64,
    now: u64,
    next_core: u64,
    next_line: u64,
    /// Period of the line clocks in ps.
    line_period: u64,
    /// Rate of the line in bits per second.
    line_rate: u64,
    capture: Option<Capture>,
    logs: Vec<Option<TlpLog>>,
    sights: Option<Vec<Sight>>,
    watcher: Option<Watcher>,
    marker: Option<Marker>,
    seed: u64,
    pub(crate) functions: Vec<Function>,
}

impl Room {
    /// A room whose cards have come out of their power-on reset.
    ///
    /// # Errors
    /// No card or more than two, a model that cannot be used, a card that does not come to rest.
    pub fn new(model: &CardModel, config: RoomConfig) -> Result<Self, Error> {
        if config.cards.is_empty() || config.cards.len() > 2 {
            return Err(Error::Cards(config.cards.len()));
        }
        let seed = config.seed;
        let cards: Vec<Card> = config
            .cards
            .into_iter()
            .enumerate()
            .map(|(i, card)| Card::new(model, card, seed.wrapping_add(i as u64)))
            .collect::<Result<_, _>>()?;
        let mut room = Self::empty(seed, config.wire, model.line_period(), model.line_rate());
        room.logs = cards.iter().map(|_| None).collect();
        room.functions = cards.iter().map(|_| Function::default()).collect();
        room.cards = cards;
        Ok(room)
    }

    /// A room with a target at side A, and no card. The wire's seed is the room's.
    pub fn of_target(target: Target, wire: wire::Config, seed: u64) -> Self {
        let room = Self::empty(seed, wire, gmii::BYTE, gmii::RATE);
        Self { target: Some(target), next_core: NEVER, ..room }
    }

    fn empty(seed: u64, wire: wire::Config, line_period: u64, line_rate: u64) -> Self {
        Self {
            cards: Vec::new(),
            target: None,
            peer: None,
            port: None,
            wire: Wire::new(&wire::Config { seed, ..wire }),
            wire_due: NEVER,
            now: 0,
            next_core: CORE_PERIOD,
            next_line: line_period,
            line_period,
            line_rate,
            capture: None,
            logs: Vec::new(),
            sights: None,
            watcher: None,
            marker: None,
            seed,
            functions: Vec::new(),
        }
    }

    /// Runs until every card is out of its reset, then plays firmware: BARs, sizes, memory space on.
    ///
    /// # Errors
    /// A model stopped.
    pub fn power_on(&mut self) -> Result<(), Error> {
        while self.cards.iter().any(|card| !card.is_running()) {
            self.step(NEVER)?;
        }
        for card in 0..self.cards.len() {
            self.host(card, |root, now| root.enumerate(now, &Enumeration::default()));
        }
        Ok(())
    }

    /// Puts a plain-Rust endpoint at side B, in place of a second card.
    ///
    /// # Panics
    /// Side B has a card.
    pub fn attach_peer(&mut self, endpoint: Endpoint) {
        assert!(self.cards.len() < 2, "side B of the wire has a card");
        self.peer = Some(Peer { endpoint, arriving: VecDeque::new(), free: self.now, eager: true });
    }

    /// The plain-Rust endpoint acts: it may have something to send afterwards.
    ///
    /// # Panics
    /// There is none.
    pub fn peer(&mut self) -> &mut Endpoint {
        let peer = self.peer.as_mut().expect("a peer was attached");
        peer.eager = true;
        &mut peer.endpoint
    }

    /// Opens side B to the outside, in place of a second card.
    ///
    /// # Panics
    /// Side B has a card or an endpoint.
    pub fn open_port(&mut self) {
        assert!(self.cards.len() < 2 && self.peer.is_none(), "side B of the wire is taken");
        self.port = Some(Port::default());
    }

    /// A frame without FCS comes in through the port, behind those before it.
    ///
    /// # Errors
    /// The capture cannot be written.
    ///
    /// # Panics
    /// There is no port.
    pub fn arrive(&mut self, frame: &[u8]) -> Result<(), Error> {
        let port = self.port.as_mut().expect("a port was opened");
        let frame = Frame::new(sealed(frame.to_vec()), self.now.max(port.free), self.line_rate);
        port.free = frame.end + line_time(GAP_BYTES, self.line_rate);
        port.passed(self.now);
        self.send(1, frame)
    }

    /// From the next frame that passes the port on, these come in again and again for `span` ps, wherever the line is free:
    /// it is full all the time.
    ///
    /// # Panics
    /// There is no port, or no frame.
    pub fn storm(&mut self, frames: Vec<Vec<u8>>, span: u64) {
        assert!(!frames.is_empty(), "a storm of nothing");
        let port = self.port.as_mut().expect("a port was opened");
        port.storm = Some(Storm { frames, sent: 0, span, end: None });
    }

    /// The storm's next frames.
    fn rage(&mut self) -> Result<(), Error> {
        while let Some(port) = &mut self.port
            && port.due(self.line_rate) <= self.now
            && let Some(storm) = &mut port.storm
        {
            if storm.end.is_some_and(|end| end <= self.now) {
                port.storm = None;
                break;
            }
            let frame = storm.frames[storm.sent % storm.frames.len()].clone();
            storm.sent += 1;
            self.arrive(&frame)?;
        }
        Ok(())
    }

    /// The frames that have left the wire through the port since they were last taken.
    pub fn take_departed(&mut self) -> Vec<Frame> {
        self.port.as_mut().map_or_else(Vec::new, |port| std::mem::take(&mut port.departed))
    }

    /// Simulated time in ps.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Seed of everything random.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The cards.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// The target at side A.
    pub fn target(&mut self) -> Option<&mut Target> {
        self.target.as_mut()
    }

    /// A card.
    pub fn card(&mut self, index: usize) -> &mut Card {
        &mut self.cards[index]
    }

    /// The host of a card acts on its root complex now.
    pub fn host<R>(&mut self, card: usize, act: impl FnOnce(&mut RootComplex<Iommu>, Time) -> R) -> R {
        let now = self.now;
        self.cards[card].host(now, act)
    }

    /// The wire.
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Changes the wire: rules, faults.
    pub fn change_wire<R>(&mut self, change: impl FnOnce(&mut Wire, u64) -> R) -> R {
        let result = change(&mut self.wire, self.now);
        self.wire_changed();
        result
    }

    /// Pulls the wire out, or plugs it in again: each card's link goes down or comes up.
    pub fn plug(&mut self, up: bool) {
        self.wire.plug(up);
        self.cards.iter_mut().for_each(|card| card.set_link(up));
    }

    /// A frame without FCS enters the wire at an end without a card, now.
    ///
    /// # Errors
    /// The capture cannot be written.
    pub fn inject(&mut self, from: Side, frame: &[u8]) -> Result<(), Error> {
        self.inject_raw(from, sealed(frame.to_vec()))
    }

    /// Bytes enter the wire as a frame, FCS included or not, at an end without a card, now.
    ///
    /// # Errors
    /// The capture cannot be written.
    pub fn inject_raw(&mut self, from: Side, bytes: Vec<u8>) -> Result<(), Error> {
        self.send(from.index(), Frame::new(bytes, self.now, self.line_rate))
    }

    /// Captures both ends of the wire into `path` (`-`: live, to stdout).
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn capture(&mut self, path: &Path) -> Result<(), Error> {
        let mut names: Vec<&str> = self.cards.iter().map(|card| card.config().name.as_str()).collect();
        names.extend(self.target.as_ref().map(|_| "target"));
        if names.len() < 2 {
            names.push("peer");
        }
        self.capture = Some(Capture::create(path, &names)?);
        Ok(())
    }

    /// Logs every TLP of a card as CSV.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn log_tlps(&mut self, card: usize, path: &Path) -> Result<(), Error> {
        let refuse = |source| Error::File { path: path.into(), source };
        let mut file = BufWriter::new(File::create(path).map_err(refuse)?);
        writeln!(file, "{}", TlpRecord::CSV_HEADER).map_err(refuse)?;
        self.host(card, |root, _| root.set_log(true));
        self.logs[card] = Some(TlpLog { path: path.into(), file });
        Ok(())
    }

    /// Writes waves of a card.
    ///
    /// # Errors
    /// The model is not a traced one, or the file cannot be created.
    pub fn trace(&mut self, card: usize, path: &Path) -> Result<(), Error> {
        self.cards[card].trace(path)
    }

    /// Remembers every frame from now on, for [`Room::sights`].
    pub fn remember_frames(&mut self) {
        self.sights.get_or_insert_default();
    }

    /// Tells `watcher` of every frame from now on.
    pub fn watch(&mut self, watcher: Option<Watcher>) {
        self.watcher = watcher;
    }

    /// Tells `marker` of everything that the stages decide from now on.
    pub fn mark(&mut self, marker: Option<Marker>) {
        for card in &mut self.cards {
            card.mark(marker.is_some());
        }
        self.marker = marker;
    }

    /// The frames that were sent since [`Room::remember_frames`], in order of their ends.
    pub fn sights(&self) -> &[Sight] {
        self.sights.as_deref().unwrap_or(&[])
    }

    /// The rules that a card broke at its pins, since they were last taken.
    pub fn take_violations(&mut self, card: usize) -> Vec<Violation> {
        self.cards[card].take_violations()
    }

    /// Brings capture, logs and waves up to date on disk.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn flush(&mut self) -> Result<(), Error> {
        if let Some(capture) = &mut self.capture {
            capture.advance(self.now)?;
        }
        for card in 0..self.cards.len() {
            self.write_log(card)?;
            if let Some(log) = &mut self.logs[card] {
                log.file.flush().map_err(|source| Error::File { path: log.path.clone(), source })?;
            }
            self.cards[card].flush_trace();
        }
        Ok(())
    }

    /// Flushes, and ends the capture.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.flush()?;
        if let Some(capture) = self.capture.take() {
            capture.finish()?;
        }
        Ok(())
    }

    fn write_log(&mut self, card: usize) -> Result<(), Error> {
        let Some(log) = &mut self.logs[card] else { return Ok(()) };
        for record in self.cards[card].host(self.now, |root, _| root.take_log()) {
            writeln!(log.file, "{record}")
                .map_err(|source| Error::File { path: log.path.clone(), source })?;
        }
        Ok(())
    }

    // ---- time

    /// When something happens next by itself: now while a card is awake, later while all sleep; `None`: never.
    pub fn next_event(&self) -> Option<u64> {
        let mut due = self.wire_due.min(self.peer.as_ref().map_or(NEVER, Peer::due));
        due = due.min(self.port.as_ref().map_or(NEVER, |port| port.due(self.line_rate)));
        for card in &self.cards {
            due = due.min(card.due().unwrap_or(self.now));
        }
        if self.target.as_ref().is_some_and(|target| !target.is_asleep()) {
            due = self.now;
        }
        (due != NEVER).then(|| due.max(self.now))
    }

    /// Whether every card sleeps and nothing is under way: in a root, on the wire, at the peer. Deadlines of cards and
    /// the peer's timers may be armed.
    pub fn is_quiet(&self) -> bool {
        self.cards.iter().all(|card| card.root().quiet())
            && self.all_sleep()
            && self.wire_due == NEVER
            && self.port.as_ref().is_none_or(|port| port.due(self.line_rate) == NEVER)
            && self.peer.as_ref().is_none_or(|peer| !peer.eager && peer.arriving.is_empty())
    }

    /// Whether all clocks stand still.
    fn all_sleep(&self) -> bool {
        self.cards.iter().all(Card::is_asleep) && self.target.as_ref().is_none_or(Target::is_asleep)
    }

    /// Lets time pass until `limit` ps.
    ///
    /// # Errors
    /// A model stopped, or a file cannot be written.
    pub fn run_to(&mut self, limit: u64) -> Result<(), Error> {
        while self.now < limit {
            self.step(limit)?;
        }
        Ok(())
    }

    /// Lets so many ps pass.
    ///
    /// # Errors
    /// As [`Room::run_to`].
    pub fn run_for(&mut self, span: u64) -> Result<(), Error> {
        self.run_to(self.now.saturating_add(span))
    }

    /// Lets time pass until `done` says so, asked between edges at least every 64 core clocks and before every jump; false
    /// if `limit` came first.
    ///
    /// # Errors
    /// As [`Room::run_to`].
    pub fn run_until(&mut self, limit: u64, mut done: impl FnMut(&mut Room) -> bool) -> Result<bool, Error> {
        loop {
            if done(self) {
                return Ok(true);
            }
            if self.now >= limit {
                return Ok(false);
            }
            let until = (self.now + 64 * CORE_PERIOD).min(limit);
            if self.all_sleep() {
                self.step(limit)?;
            }
            while self.now < until && !self.all_sleep() {
                self.step(until)?;
            }
        }
    }

    /// Lets time pass until nothing happens any more, or until `limit`; tells which.
    ///
    /// # Errors
    /// As [`Room::run_to`].
    pub fn run_until_idle(&mut self, limit: u64) -> Result<bool, Error> {
        self.run_until(limit, |room| room.next_event().is_none())
    }

    /// One instant: the next clock edge if a card is awake, else a jump to what is due next. Not beyond `limit`.
    fn step(&mut self, limit: u64) -> Result<(), Error> {
        if self.all_sleep() {
            let due = self.next_event().unwrap_or(NEVER);
            // The clocks stand still meanwhile; the next edges keep their phase.
            let to = due.min(limit);
            let align = |period: u64, next: u64| to.div_ceil(period).saturating_mul(period).max(next);
            (self.next_core, self.next_line) =
                (align(CORE_PERIOD, self.next_core), align(self.line_period, self.next_line));
            if due > limit {
                self.now = self.now.max(limit);
                return Ok(());
            }
        }
        let at = self.next_core.min(self.next_line);
        if at > limit {
            self.now = self.now.max(limit);
            return Ok(());
        }
        self.now = at;
        let (core, line) = (at == self.next_core, at == self.next_line);
        if core {
            self.next_core += CORE_PERIOD;
        }
        if line {
            self.next_line += self.line_period;
        }
        if self.wire_due <= at {
            self.deliver();
        }
        if self.port.is_some() {
            self.rage()?;
        }
        if self.peer.is_some() {
            self.serve_peer();
        }
        if let Some(target) = self.target.as_mut().filter(|target| !target.is_asleep())
            && let Some(frame) = target.edge(at)?
        {
            self.send(0, frame)?;
        }
        for index in 0..self.cards.len() {
            let card = &mut self.cards[index];
            if card.is_asleep() {
                card.rest(at);
                if card.is_asleep() {
                    continue;
                }
            }
            let frame = card.edge(at, core, line)?;
            if let Some(marker) = &mut self.marker {
                card.take_marks().for_each(|(ticks, entry)| marker(index, ticks, &entry));
            }
            if let Some(frame) = frame {
                self.send(index, frame)?;
            }
            if self.logs[index].is_some() && self.cards[index].root().log().len() >= LOG_BATCH {
                self.write_log(index)?;
            }
        }
        Ok(())
    }

    fn wire_changed(&mut self) {
        self.wire_due = self.wire.next_due().unwrap_or(NEVER);
    }

    /// A frame leaves the card, or the peer, at that end.
    fn send(&mut self, end: usize, frame: Frame) -> Result<(), Error> {
        let from = Side::BOTH[end];
        let fault = self.wire.send(from, frame.clone());
        if let Some(capture) = &mut self.capture {
            capture.sent(end, &frame, fault);
            capture.advance(self.now.saturating_sub(self.line_period))?;
        }
        let lost = matches!(fault, Some(Fault::Dropped { .. }));
        if let Some(watcher) = &mut self.watcher {
            watcher(from, &frame, lost);
        }
        if let Some(sights) = &mut self.sights {
            sights.push(Sight { from, frame, lost });
        }
        self.wire_changed();
        Ok(())
    }

    /// Frames that leave the wire now.
    fn deliver(&mut self) {
        for side in Side::BOTH {
            while let Some(delivery) = self.wire.receive(side, self.now) {
                let end = side.index();
                if let Some(capture) = &mut self.capture {
                    capture.received(end, &delivery);
                }
                if let (Side::A, Some(target)) = (side, &mut self.target) {
                    target.receive(delivery.frame);
                    continue;
                }
                match (self.cards.get_mut(end), &mut self.peer) {
                    (Some(card), _) => card.receive(delivery.frame),
                    (None, Some(peer)) => peer.arriving.push_back((delivery.frame.end, delivery.frame)),
                    (None, None) => {
                        if let Some(port) = &mut self.port {
                            port.departed.push(delivery.frame);
                            port.passed(self.now);
                        }
                    }
                }
            }
        }
        self.wire_changed();
    }

    fn serve_peer(&mut self) {
        let now = self.now;
        let Some(peer) = &mut self.peer else { return };
        if peer.due() > now {
            return;
        }
        while let Some((_, frame)) = peer.arriving.pop_front_if(|(end, _)| *end <= now) {
            if let Some(body) = frame.bytes.len().checked_sub(4).filter(|_| frame.fcs_is_good()) {
                peer.endpoint.receive(now, &frame.bytes[..body]);
            }
            peer.eager = true;
        }
        if peer.endpoint.next_timeout().is_some_and(|due| due <= now) {
            peer.endpoint.handle_timeout(now);
            peer.eager = true;
        }
        if !peer.eager || peer.free > now {
            return;
        }
        match peer.endpoint.poll_transmit(now) {
            None => peer.eager = false,
            Some(bytes) => {
                let frame = Frame::new(sealed(bytes), now, self.line_rate);
                peer.free = frame.end + line_time(GAP_BYTES, self.line_rate);
                // A capture that cannot be written is told at the next frame of a card, or at the end.
                let _ = self.send(1, frame);
            }
        }
    }
}

/// A frame without FCS as it goes onto the line: padded to the shortest, with its FCS.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().max(wire::MIN_FRAME - 4), 0);
    let check = fcs(&bytes);
    bytes.extend_from_slice(&check);
    bytes
}
