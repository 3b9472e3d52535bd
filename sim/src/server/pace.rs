//! The thread that owns the room: requests in, time forward.

use crate::{
    Error,
    card::CORE_PERIOD,
    memory::Boxed,
    room::Room,
    wire::{Counters, Side, dgram::Dgram},
};
use pcie_sim::{Backing, Event, Permissions, ReadToken, config::Enumeration};
use std::{
    io,
    os::fd::OwnedFd,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};

/// Core clocks between two looks at the requests while the room is busy.
const PORTION: u64 = 64 * CORE_PERIOD;
/// Device control register, upper byte: bit 7 starts a function level reset.
const DEVICE_CONTROL_HIGH: u64 = 0x69;
/// Message control of MSI-X: the host's, not the client's.
const MSIX_CONTROL: std::ops::Range<u64> = 0xa2..0xa4;
/// BAR registers: the host's.
const BARS: std::ops::Range<u64> = 0x10..0x28;
/// Where the pending bits begin in BAR4; the table before them is the host's.
const PENDING: u64 = 0x800;

/// An answer's way back.
pub(super) type Reply<T> = Sender<io::Result<T>>;

/// What is asked of the room.
pub(super) enum Request {
    Read {
        card: usize,
        bar: u8,
        offset: u64,
        length: usize,
        reply: Reply<Vec<u8>>,
    },
    Write {
        card: usize,
        bar: u8,
        offset: u64,
        data: Vec<u8>,
    },
    ReadConfig {
        card: usize,
        offset: u64,
        length: usize,
        reply: Reply<Vec<u8>>,
    },
    WriteConfig {
        card: usize,
        offset: u64,
        data: Vec<u8>,
    },
    Map {
        card: usize,
        iova: u64,
        length: u64,
        permissions: Permissions,
        backing: Box<dyn Backing>,
        offset: u64,
        reply: Reply<()>,
    },
    Unmap {
        card: usize,
        range: Option<(u64, u64)>,
        reply: Reply<u64>,
    },
    Vectors {
        card: usize,
        first: usize,
        descriptors: Vec<Option<OwnedFd>>,
    },
    ClearVectors {
        card: usize,
    },
    Reset {
        card: usize,
        reply: Reply<()>,
    },
    /// Answered once everything before it has been taken.
    Reach {
        reply: Reply<()>,
    },
    /// The client is gone: unmap, reset, enumerate.
    Leave {
        card: usize,
        reply: Reply<()>,
    },
    /// Side B of the wire is a port from now on.
    Port(Dgram),
    /// A frame has come to it.
    Frame(Vec<u8>),
    Summary(Sender<Summary>),
    Change(Box<dyn FnOnce(&mut Room) + Send>),
    Stop,
}

/// What has passed in a room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Simulated time in ps.
    pub now: u64,
    /// Simulated time in ps during which something was under way.
    pub busy: u64,
    /// Core clocks that were evaluated, of all cards; of a target, byte times.
    pub clocks: u64,
    /// Frames at the wire from each side.
    pub wire: [Counters; 2],
    /// Rules that the cards, or the target, broke: at their pins, of PCI Express, and IOMMU faults.
    pub violations: Vec<String>,
}

/// Most violations that are kept in words.
const MOST_VIOLATIONS: usize = 1000;

#[derive(Default)]
struct Desk {
    reads: Vec<(usize, ReadToken, Reply<Vec<u8>>)>,
    resets: Vec<(usize, Reply<()>, bool)>,
    port: Option<Dgram>,
    busy: u64,
    violations: Vec<String>,
}

/// Runs the room until it is told to stop, or its requesters are gone.
pub(super) fn run(mut room: Room, inbox: &Receiver<Request>) -> Result<Summary, Error> {
    let mut desk = Desk::default();
    let mut quiet: Option<(Instant, u64)> = None;
    loop {
        while let Ok(request) = inbox.try_recv() {
            if !desk.take(&mut room, request)? {
                return desk.end(room);
            }
        }
        desk.attend(&mut room);
        if !room.is_quiet() || !desk.reads.is_empty() || !desk.resets.is_empty() {
            quiet = None;
            let start = room.now();
            let next = room.next_event().unwrap_or(start);
            // Up to an instant at which something happens although all sleep, else a portion.
            let to = if next > start { next } else { start + PORTION };
            room.run_to(to)?;
            desk.busy += room.now() - start;
            continue;
        }
        if quiet.is_none() {
            room.flush()?;
        }
        let (since, start) = *quiet.get_or_insert_with(|| (Instant::now(), room.now()));
        let next = room.next_event();
        let request = match next {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(next) => {
                let due = Duration::from_nanos(next.saturating_sub(start) / 1000);
                inbox.recv_timeout(due.saturating_sub(since.elapsed()))
            }
        };
        // Time has gone on as the wall's did, but not past what was due meanwhile.
        let passed = start.saturating_add(since.elapsed().as_nanos() as u64 * 1000);
        room.run_to(passed.min(next.unwrap_or(u64::MAX)).max(room.now()))?;
        match request {
            Ok(request) => {
                if !desk.take(&mut room, request)? {
                    return desk.end(room);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return desk.end(room),
        }
    }
}

impl Desk {
    fn end(mut self, mut room: Room) -> Result<Summary, Error> {
        room.finish()?;
        Ok(self.summary(&mut room))
    }

    fn summary(&mut self, room: &mut Room) -> Summary {
        self.gather(room);
        Summary {
            now: room.now(),
            busy: self.busy,
            clocks: room.cards().iter().map(crate::card::Card::clocks).sum::<u64>()
                + room.target().map_or(0, |target| target.clocks()),
            wire: Side::BOTH.map(|side| room.wire().counters(side)),
            violations: self.violations.clone(),
        }
    }

    /// Takes what the judges and the IOMMUs said.
    fn gather(&mut self, room: &mut Room) {
        for card in 0..room.cards().len() {
            let name = room.cards()[card].config().name.clone();
            let mut found: Vec<String> = Vec::new();
            found.extend(room.take_violations(card).iter().map(ToString::to_string));
            let judged = room.host(card, |root, _| root.take_violations());
            found.extend(judged.iter().map(|violation| format!("PCI Express: {violation:?}")));
            for event in room.take_events(card) {
                if let Event::ReadFault { .. }
                | Event::WriteFault { .. }
                | Event::ResetOverdue { .. }
                | Event::ReadTimedOut { .. }
                | Event::PoisonedWrite { .. } = event
                {
                    found.push(format!("{event:?}"));
                }
            }
            self.complain(&name, found);
        }
        if let Some(target) = room.target() {
            let found = target.take_violations();
            self.complain("target", found);
        }
    }

    fn complain(&mut self, name: &str, found: Vec<String>) {
        for what in found {
            tracing::warn!(card = name, "{what}");
            if self.violations.len() < MOST_VIOLATIONS {
                self.violations.push(format!("{name}: {what}"));
            }
        }
    }

    /// Answers what can be answered now.
    fn attend(&mut self, room: &mut Room) {
        room.attend();
        self.gather(room);
        if let Some(port) = &self.port {
            room.take_departed().iter().for_each(|frame| port.send(frame));
        }
        self.reads.retain(|(card, token, reply)| {
            match room.host(*card, |root, _| root.take_read(*token)) {
                // A client that stopped waiting needs no answer.
                Some(answer) => drop(reply.send(answer.map_err(io::Error::other))),
                None => return true,
            }
            false
        });
        let resets = std::mem::take(&mut self.resets);
        for (card, reply, enumerate) in resets {
            if room.is_resetting(card) {
                self.resets.push((card, reply, enumerate));
                continue;
            }
            if enumerate {
                room.host(card, |root, now| root.enumerate(now, &Enumeration::default()));
            }
            let _ = reply.send(Ok(()));
        }
    }

    /// False: the end was asked for.
    fn take(&mut self, room: &mut Room, request: Request) -> Result<bool, Error> {
        match request {
            Request::Read { card, bar, offset, length, reply } => {
                let token = room.host(card, |root, now| root.mmio_read(now, bar, offset, length));
                self.reads.push((card, token, reply));
            }
            Request::Write { card, bar, offset, data } => {
                if bar != 4 || offset >= PENDING {
                    room.host(card, |root, now| root.mmio_write(now, bar, offset, &data));
                }
            }
            Request::ReadConfig { card, offset, length, reply } => {
                let mut data = vec![0; length];
                room.host(card, |root, now| root.config_read(now, offset as usize, &mut data));
                let _ = reply.send(Ok(data));
            }
            Request::WriteConfig { card, offset, data } => self.write_config(room, card, offset, data),
            Request::Map { card, iova, length, permissions, backing, offset, reply } => {
                let map = |root: &mut pcie_sim::RootComplex, _| {
                    root.memory_mut().map(iova, length, permissions, Boxed(backing), offset)
                };
                let _ = reply.send(room.host(card, map).map_err(io::Error::other));
            }
            Request::Unmap { card, range, reply } => {
                let unmapped = room.host(card, |root, _| match range {
                    Some((iova, length)) => root.memory_mut().unmap(iova, length),
                    None => {
                        root.memory_mut().clear();
                        Ok(0)
                    }
                });
                let _ = reply.send(unmapped.map_err(io::Error::other));
            }
            Request::Vectors { card, first, descriptors } => room.set_vectors(card, first, descriptors),
            Request::ClearVectors { card } => room.clear_vectors(card),
            Request::Reset { card, reply } => {
                room.start_reset(card);
                self.resets.push((card, reply, false));
            }
            Request::Reach { reply } => drop(reply.send(Ok(()))),
            Request::Leave { card, reply } => {
                room.client_is_gone(card);
                self.reads.retain(|(of, ..)| *of != card);
                self.resets.push((card, reply, true));
            }
            Request::Port(port) => {
                room.open_port();
                self.port = Some(port);
            }
            Request::Frame(frame) => room.arrive(&frame)?,
            Request::Summary(reply) => {
                let _ = reply.send(self.summary(room));
            }
            Request::Change(change) => change(room),
            Request::Stop => return Ok(false),
        }
        Ok(true)
    }

    fn write_config(&mut self, room: &mut Room, card: usize, offset: u64, mut data: Vec<u8>) {
        let end = offset + data.len() as u64;
        let at = |register: u64| (offset..end).contains(&register).then(|| (register - offset) as usize);
        if at(DEVICE_CONTROL_HIGH).is_some_and(|i| data[i] & 0x80 != 0) {
            return room.start_reset(card);
        }
        for register in MSIX_CONTROL.chain(BARS) {
            if let Some(i) = at(register) {
                let mut byte = [0];
                room.host(card, |root, now| root.config_read(now, register as usize, &mut byte));
                data[i] = byte[0];
            }
        }
        room.host(card, |root, now| root.config_write(now, offset as usize, &data));
    }
}
