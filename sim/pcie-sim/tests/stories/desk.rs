//! A card played by hand: it sends TLPs, takes what arrives, and puts completions together by the rules for receivers,
//! not by those of the model.

use pcie_sim::{
    CqTlp, Event, HostMemory, LinkConfig, Permissions, RawTlp, RootComplex, RootConfig, SparseMemory, Time,
    config::Enumeration,
    tlp::{Completion, MemRead, MemWrite, Status, Tlp},
};
use std::{collections::HashMap, sync::Arc};

pub const ID: u16 = 0x0100;
/// Mapped: 1 MiB from here.
pub const BASE: u64 = 0x1_0000_0000;
/// Mapped below 4 GiB: 1 MiB from here, the same bytes.
pub const LOW: u64 = 0x1000_0000;
pub const MAPPED: u64 = 1 << 20;

pub struct Desk {
    pub rc: RootComplex,
    pub memory: Arc<SparseMemory>,
    pub now: Time,
    asked: HashMap<u16, (u64, Vec<u8>, usize)>,
    /// Finished reads: tag, when, bytes or the status.
    pub done: Vec<(u16, Time, Result<Vec<u8>, Status>)>,
    /// Every completion, when.
    pub completions: Vec<(Time, Completion)>,
    /// Completions whose address did not follow the one before.
    pub holes: usize,
    pub requests: Vec<(Time, CqTlp)>,
    pub events: Vec<Event>,
}

pub fn config() -> RootConfig {
    RootConfig {
        enumeration: Enumeration { bus_master: true, max_read: 4096, atomics: true, ..Default::default() },
        ..Default::default()
    }
}

pub fn with_link(change: impl FnOnce(&mut LinkConfig)) -> RootConfig {
    let mut config = config();
    change(&mut config.link);
    config
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect()
}

impl Desk {
    pub fn new(config: RootConfig, seed: u64) -> Desk {
        let memory = Arc::new(SparseMemory::new());
        memory.put(0, &pattern(MAPPED as usize));
        let mut rc = RootComplex::new(config, seed, pcie_sim::Iommu::new()).unwrap();
        for base in [BASE, LOW] {
            rc.memory_mut().map(base, MAPPED, Permissions::BOTH, memory.clone(), 0).unwrap();
        }
        Desk {
            rc,
            memory,
            now: Time::ZERO,
            asked: HashMap::new(),
            done: vec![],
            completions: vec![],
            holes: 0,
            requests: vec![],
            events: vec![],
        }
    }

    pub fn send(&mut self, tlp: Tlp) {
        self.rc.card_sends(self.now, tlp.emit());
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        self.send(Tlp::MemWrite(MemWrite::bytes(ID, address, bytes)));
    }

    pub fn write_relaxed(&mut self, address: u64, bytes: &[u8]) {
        let mut write = MemWrite::bytes(ID, address, bytes);
        write.attr.relaxed = true;
        self.send(Tlp::MemWrite(write));
    }

    pub fn read(&mut self, tag: u16, address: u64, len: usize) {
        self.asked.insert(tag, (address, vec![0; len], 0));
        self.send(Tlp::MemRead(MemRead::bytes(ID, tag, address, len)));
    }

    /// Takes one completion as a receiver does.
    fn take(&mut self, raw: &RawTlp) {
        let Ok(Tlp::Completion(c)) = Tlp::parse(raw) else { panic!("no completion: {raw:08x?}") };
        self.completions.push((self.now, c.clone()));
        let Some((address, data, got)) = self.asked.get_mut(&c.tag) else { return };
        if c.status != Status::Successful {
            self.asked.remove(&c.tag);
            self.done.push((c.tag, self.now, Err(c.status)));
            return;
        }
        if c.attr.poisoned {
            self.asked.remove(&c.tag);
            self.done.push((c.tag, self.now, Err(Status::CompleterAbort)));
            return;
        }
        let skip = (c.lower_address & 3) as usize;
        let n = (c.payload.len() - skip).min(c.byte_count as usize).min(data.len() - *got);
        let follows = (*address + *got as u64) & 0x7f == c.lower_address as u64
            && data.len() - *got == c.byte_count as usize;
        if !data.is_empty() && !follows {
            // A piece before it is missing: a receiver cannot place this one.
            self.holes += 1;
            return;
        }
        data[*got..*got + n].copy_from_slice(&c.payload[skip..skip + n]);
        *got += n;
        if c.byte_count as usize <= c.payload.len() - skip {
            let (_, data, _) = self.asked.remove(&c.tag).unwrap();
            self.done.push((c.tag, self.now, Ok(data)));
        }
    }

    /// Takes everything that has arrived now.
    pub fn take_all(&mut self) {
        loop {
            let before = (self.requests.len(), self.completions.len());
            while let Some(request) = self.rc.poll_cq(self.now) {
                self.requests.push((self.now, request));
            }
            while let Some(raw) = self.rc.poll_rc(self.now) {
                self.take(&raw);
            }
            if before == (self.requests.len(), self.completions.len()) {
                break;
            }
        }
        self.events.extend(self.rc.take_events());
    }

    /// Lets time pass event by event.
    pub fn run_until(&mut self, end: Time) {
        while let Some(at) = self.rc.next_event().filter(|at| *at <= end) {
            assert!(
                at > self.now || {
                    self.take_all();
                    true
                }
            );
            self.now = self.now.max(at);
            self.take_all();
        }
        self.now = self.now.max(end);
        self.rc.advance(self.now);
        self.take_all();
    }

    pub fn run_until_quiet(&mut self) {
        for _ in 0..1_000_000 {
            let Some(at) = self.rc.next_event() else { return };
            self.now = self.now.max(at);
            self.take_all();
        }
        panic!("never quiet");
    }

    pub fn result(&self, tag: u16) -> &Result<Vec<u8>, Status> {
        &self.done.iter().rev().find(|(t, _, _)| *t == tag).expect("no answer").2
    }

    pub fn answered(&self, tag: u16) -> bool {
        self.done.iter().any(|(t, _, _)| *t == tag)
    }

    pub fn at(&self, tag: u16) -> Time {
        self.done.iter().rev().find(|(t, _, _)| *t == tag).expect("no answer").1
    }

    pub fn no_violation(&self) {
        let found = self.rc.violations();
        assert!(found.is_empty(), "{}", found.iter().map(|v| v.to_string()).collect::<Vec<_>>().join("\n"));
    }

    pub fn bytes(&self, iova: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rc.memory().read(iova, &mut bytes).unwrap();
        bytes
    }

    /// Answers every host read that came with these bytes at its address, one completion each.
    pub fn answer_all(&mut self, byte_at: impl Fn(u64) -> u8) {
        for (_, request) in std::mem::take(&mut self.requests) {
            if let Ok(Tlp::MemRead(r)) = Tlp::parse(&request.tlp) {
                self.send(Tlp::Completion(answer(&r, &byte_at)));
            }
        }
    }
}

/// The one completion that answers a host read whole.
pub fn answer(r: &MemRead, byte_at: impl Fn(u64) -> u8) -> Completion {
    let lead = r.first_be.trailing_zeros().min(3) as u64;
    Completion {
        attr: r.attr,
        completer: ID,
        status: Status::Successful,
        byte_count: r.byte_count(),
        requester: r.requester,
        tag: r.tag,
        lower_address: ((r.address + if r.first_be == 0 { 0 } else { lead }) & 0x7f) as u8,
        payload: (0..r.dwords as u64 * 4).map(|i| byte_at(r.address + i)).collect(),
    }
}
