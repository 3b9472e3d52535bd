//! The host's memory as the card may see it, and who may change what of it.
//!
//! ```text
//!  LOW   commands, responses, EQ, CQs, send and receive queues      below 4 GiB: headers of 3 doublewords
//!  HIGH  the regions of the QPs, with gaps that are nobody's        above: of 4
//! ```
//! In: writes of the host ([`HostMemory::put`]) and of the card (as a [`Backing`]). Out: the bytes, the number of the
//! card's writes, and whether the card changed a byte that is not in [`WRITABLE`].

use contract::verbs::access;
use pcie_sim::{Access, Backing, Fault};
use std::{
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Bytes of each half.
pub const HALF: usize = 0x2_0000;
/// Where the lower half is for the card.
pub const LOW: u64 = 0x2000_0000;
/// Where the upper half is.
pub const HIGH: u64 = 0x12_3456_0000;

/// log2 of the entries of the command rings.
pub const COMMANDS_LOG: u32 = 4;
/// Command ring.
pub const COMMANDS: usize = 0;
/// Response ring.
pub const RESPONSES: usize = 0x1000;
/// Event queue.
pub const EVENTS: usize = 0x2000;
/// log2 of its entries.
pub const EVENTS_LOG: u8 = 6;
/// CQ n stands at `CQS + n * 0x800`.
pub const CQS: usize = 0x4000;
/// log2 of the entries of each: few, so that overflow is in reach.
pub const CQ_LOG: u8 = 4;
/// Send queue of QP n at `SQS + n * 0x800`.
pub const SQS: usize = 0x8000;
/// Receive queue of QP n at `RQS + n * 0x1000`.
pub const RQS: usize = 0xc000;
/// log2 of the entries of each.
pub const QUEUE_LOG: u8 = 4;
/// log2 of the bytes of a send WQE.
pub const SQ_STRIDE_LOG: u8 = 7;
/// log2 of the bytes of a receive WQE of this QP: four SGEs, or sixteen.
pub const fn rq_stride_log(qpn: u32) -> u8 {
    if qpn == 2 { 8 } else { 6 }
}

/// A memory region.
pub struct Region {
    /// Number in the card's table.
    pub index: u32,
    /// Low byte of its key.
    pub tag: u8,
    /// Where it stands in the memory.
    pub at: usize,
    /// Bytes.
    pub length: usize,
    /// What its key permits.
    pub rights: u8,
    /// Protection domain.
    pub pd: u32,
}

impl Region {
    /// Its key.
    pub fn key(&self) -> u32 {
        contract::MrEntry::key(self.index, self.tag)
    }

    /// First address as the card names it, which is also what its users say.
    pub fn address(&self) -> u64 {
        HIGH + (self.at - HALF) as u64
    }
}

/// Every right.
pub const ALL: u8 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
/// Everything is permitted.
pub const OPEN: Region =
    Region { index: 1, tag: 0x11, at: HALF + 0x1000, length: 0x4000, rights: ALL, pd: 1 };
/// Of the same protection domain, to be read alone.
pub const READ_ONLY: Region =
    Region { index: 2, tag: 0x22, at: HALF + 0x8000, length: 0x1000, rights: access::REMOTE_READ, pd: 1 };
/// Of the other context.
pub const FOREIGN: Region =
    Region { index: 3, tag: 0x33, at: HALF + 0xc000, length: 0x1000, rights: ALL, pd: 2 };
/// All regions.
pub const REGIONS: [&Region; 3] = [&OPEN, &READ_ONLY, &FOREIGN];

/// What the card may change without leave of a command: responses, events, the CQs of the first context, its region.
pub const WRITABLE: [Range<usize>; 4] = [
    RESPONSES..RESPONSES + 0x1000,
    EVENTS..EVENTS + 0x1000,
    CQS..CQS + 2 * 0x800,
    OPEN.at..OPEN.at + OPEN.length,
];

struct State {
    bytes: Vec<u8>,
    /// As the host left it.
    told: Vec<u8>,
    /// Times that the card wrote.
    writes: u64,
}

/// See the head of this file.
pub struct HostMemory(Mutex<State>);

impl Default for HostMemory {
    fn default() -> Self {
        let bytes: Vec<u8> =
            (0..2 * HALF).map(|i| if i < HALF { 0 } else { ((i * 7) >> 3) as u8 | 1 }).collect();
        Self(Mutex::new(State { told: bytes.clone(), bytes, writes: 0 }))
    }
}

impl HostMemory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host writes.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let state = &mut *self.state();
        for memory in [&mut state.bytes, &mut state.told] {
            memory[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// The host reads.
    pub fn get(&self, at: usize, length: usize) -> Vec<u8> {
        self.state().bytes[at..at + length].to_vec()
    }

    /// Times that the card wrote.
    pub fn writes(&self) -> u64 {
        self.state().writes
    }

    /// The first byte that the card changed although it may not.
    pub fn trespass(&self) -> Option<usize> {
        let state = self.state();
        let differs = |i: &usize| state.bytes[*i] != state.told[*i];
        (0..2 * HALF).filter(differs).find(|i| !WRITABLE.iter().any(|range| range.contains(i)))
    }
}

/// A half, for the IOMMU.
pub struct Half {
    /// The whole.
    pub memory: std::sync::Arc<HostMemory>,
    /// Where the half begins.
    pub base: usize,
}

impl Backing for Half {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        let at = self.place(offset, into.len(), Access::Read)?;
        into.copy_from_slice(&self.memory.state().bytes[at..at + into.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let at = self.place(offset, bytes.len(), Access::Write)?;
        let mut state = self.memory.state();
        state.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        state.writes += 1;
        Ok(())
    }
}

impl Half {
    fn place(&self, offset: u64, bytes: usize, access: Access) -> Result<usize, Fault> {
        let inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= HALF as u64);
        let reason = "beyond the end of the memory".to_owned();
        if inside { Ok(self.base + offset as usize) } else { Err(Fault::Backing { offset, access, reason }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_host_may_write_anywhere_the_card_where_it_may() {
        let memory = Arc::new(HostMemory::default());
        let half = Half { memory: memory.clone(), base: HALF };
        memory.put(FOREIGN.at, &[1, 2, 3]);
        half.write((OPEN.at - HALF) as u64, &[9; 64]).unwrap();
        assert_eq!((memory.trespass(), memory.writes()), (None, 1));
        half.write((READ_ONLY.at - HALF) as u64 + 5, &[0, 9]).unwrap();
        assert_eq!(memory.trespass(), Some(READ_ONLY.at + 5));
        assert!(half.write(HALF as u64 - 1, &[0; 2]).is_err());
    }

    #[test]
    fn regions_and_rings_are_apart() {
        let mut places: Vec<Range<usize>> = REGIONS.iter().map(|r| r.at..r.at + r.length).collect();
        places.extend([COMMANDS..COMMANDS + 0x1000, RESPONSES..RESPONSES + 0x1000, EVENTS..EVENTS + 0x400]);
        places.extend((0..3).map(|n| CQS + n * 0x800..CQS + (n + 1) * 0x800));
        places.extend((1..4).map(|n| SQS + n * 0x800..SQS + (n + 1) * 0x800));
        places.extend((1..4).map(|n| RQS + n * 0x1000..RQS + (n + 1) * 0x1000));
        places.sort_by_key(|range| range.start);
        assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start), "{places:x?}");
    }
}
