//! Host memory as the card's DMA meets it: an IOMMU that maps IOVA ranges onto backings and faults everything else.
//!
//! In: reads and writes at IOVAs. Out: bytes, or a [`Fault`] that names the address. A transfer is checked whole before
//! its first byte moves, so a faulting write changes nothing. What it never does: allocate for an address that is not
//! mapped, or map the interrupt window, which belongs to the root complex.
//!
//! A lookup costs O(log regions). Backings may be shared with whoever plays the host (`Arc<B>` is a backing too).

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};
use thiserror::Error;

/// Memory writes to these IOVAs are interrupts, not memory (the x86 convention).
pub const INTERRUPT_WINDOW: Range<u64> = 0xfee0_0000..0xfef0_0000;

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The card reads.
    Read,
    /// The card writes.
    Write,
}

/// Why host memory refused a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// No mapping holds the address.
    #[error("{access:?} at IOVA {iova:#x}: not mapped; map the range before handing its address to the card")]
    Unmapped {
        /// First byte without a mapping.
        iova: u64,
        /// Direction.
        access: Access,
    },
    /// The mapping does not allow this direction.
    #[error("{access:?} at IOVA {iova:#x}: the mapping forbids it; map the range with that permission")]
    Forbidden {
        /// First byte of the region that refuses.
        iova: u64,
        /// Direction.
        access: Access,
    },
    /// The memory behind the mapping is gone or failed.
    #[error("{access:?} at offset {offset:#x} of the backing: {reason}; unmap the range, its owner is gone")]
    Backing {
        /// Offset in the backing.
        offset: u64,
        /// Direction.
        access: Access,
        /// What the backing says.
        reason: String,
    },
}

/// Host memory by IOVA.
pub trait HostMemory {
    /// Reads all of `into` at `iova`, or nothing.
    fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), Fault>;
    /// Writes all of `bytes` at `iova`, or nothing.
    fn write(&mut self, iova: u64, bytes: &[u8]) -> Result<(), Fault>;
}

/// The memory behind a mapping, by offset. Interior mutability: the host writes to the same bytes.
pub trait Backing: Send {
    /// Reads all of `into` at `offset`.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault>;
    /// Writes all of `bytes` at `offset`.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault>;
}

impl<B: Backing + Sync + ?Sized> Backing for Arc<B> {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        (**self).read(offset, into)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        (**self).write(offset, bytes)
    }
}

const PAGE: u64 = 4096;

/// In-process memory of any size whose pages exist once they are written; the rest reads as zero.
#[derive(Debug, Default)]
pub struct SparseMemory {
    pages: Mutex<HashMap<u64, Box<[u8; PAGE as usize]>>>,
}

impl SparseMemory {
    /// Empty memory.
    pub fn new() -> SparseMemory {
        SparseMemory::default()
    }

    fn each_page(offset: u64, len: usize, mut visit: impl FnMut(u64, usize, Range<usize>)) {
        let mut done = 0;
        while done < len {
            let at = offset.wrapping_add(done as u64);
            let within = (at % PAGE) as usize;
            let n = (PAGE as usize - within).min(len - done);
            visit(at / PAGE, within, done..done + n);
            done += n;
        }
    }

    /// The `len` bytes at `offset`.
    pub fn get(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        Self::each_page(offset, len, |page, within, part| {
            if let Some(page) = pages.get(&page) {
                let n = part.len();
                bytes[part].copy_from_slice(&page[within..within + n]);
            }
        });
        bytes
    }

    /// Stores `bytes` at `offset`.
    pub fn put(&self, offset: u64, bytes: &[u8]) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        Self::each_page(offset, bytes.len(), |page, within, part| {
            let page = pages.entry(page).or_insert_with(|| Box::new([0; PAGE as usize]));
            page[within..within + part.len()].copy_from_slice(&bytes[part]);
        });
    }
}

impl Backing for SparseMemory {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        Self::each_page(offset, into.len(), |page, within, part| {
            let n = part.len();
            match pages.get(&page) {
                Some(page) => into[part].copy_from_slice(&page[within..within + n]),
                None => into[part].fill(0),
            }
        });
        Ok(())
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.put(offset, bytes);
        Ok(())
    }
}

/// What the card may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The card may read.
    pub read: bool,
    /// The card may write.
    pub write: bool,
}

impl Permissions {
    /// Read only.
    pub const READ: Permissions = Permissions { read: true, write: false };
    /// Write only.
    pub const WRITE: Permissions = Permissions { read: false, write: true };
    /// Both.
    pub const BOTH: Permissions = Permissions { read: true, write: true };
}

/// Why a mapping was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// Zero bytes, or past the end of the address space.
    #[error("map {len:#x} bytes at IOVA {iova:#x}: empty or beyond 2^64; choose another range")]
    Range {
        /// Start.
        iova: u64,
        /// Length.
        len: u64,
    },
    /// Some of the range is mapped.
    #[error("map {len:#x} bytes at IOVA {iova:#x}: overlaps the mapping at {existing:#x}; unmap that first")]
    Overlap {
        /// Start.
        iova: u64,
        /// Length.
        len: u64,
        /// Start of the mapping in the way.
        existing: u64,
    },
    /// The range touches the interrupt window.
    #[error(
        "map {len:#x} bytes at IOVA {iova:#x}: touches the interrupt window 0xfee00000..0xfef00000; choose another range"
    )]
    InterruptWindow {
        /// Start.
        iova: u64,
        /// Length.
        len: u64,
    },
    /// An unmap would cut a mapping in two.
    #[error(
        "unmap {len:#x} bytes at IOVA {iova:#x}: cuts the mapping at {existing:#x}; unmap whole mappings"
    )]
    Cuts {
        /// Start.
        iova: u64,
        /// Length.
        len: u64,
        /// Start of the mapping that would be cut.
        existing: u64,
    },
}

struct Region {
    len: u64,
    permissions: Permissions,
    backing: Box<dyn Backing>,
    offset: u64,
}

/// Maps IOVA ranges onto backings. Empty at first: everything faults.
#[derive(Default)]
pub struct Iommu {
    regions: BTreeMap<u64, Region>,
}

impl Iommu {
    /// No mapping.
    pub fn new() -> Iommu {
        Iommu::default()
    }

    /// Maps `len` bytes at `iova` onto `backing` from `offset` on.
    pub fn map(
        &mut self,
        iova: u64,
        len: u64,
        permissions: Permissions,
        backing: impl Backing + 'static,
        offset: u64,
    ) -> Result<(), MapError> {
        let last = match len.checked_sub(1).and_then(|n| iova.checked_add(n)) {
            Some(last) if offset.checked_add(len - 1).is_some() => last,
            _ => return Err(MapError::Range { iova, len }),
        };
        if iova < INTERRUPT_WINDOW.end && last >= INTERRUPT_WINDOW.start {
            return Err(MapError::InterruptWindow { iova, len });
        }
        if let Some((&existing, region)) = self.regions.range(..=last).next_back()
            && existing + (region.len - 1) >= iova
        {
            return Err(MapError::Overlap { iova, len, existing });
        }
        self.regions.insert(iova, Region { len, permissions, backing: Box::new(backing), offset });
        Ok(())
    }

    /// Removes every mapping inside the range; gives the bytes that were unmapped. Cutting a mapping is refused.
    pub fn unmap(&mut self, iova: u64, len: u64) -> Result<u64, MapError> {
        let last = match len.checked_sub(1).and_then(|n| iova.checked_add(n)) {
            Some(last) => last,
            None => return Err(MapError::Range { iova, len }),
        };
        let inside: Vec<u64> = self.regions.range(iova..=last).map(|(&start, _)| start).collect();
        let before = self.regions.range(..iova).next_back();
        let cut = before.filter(|(start, r)| *start + (r.len - 1) >= iova).map(|(&start, _)| start);
        let cut = cut
            .or_else(|| inside.last().copied().filter(|start| start + (self.regions[start].len - 1) > last));
        if let Some(existing) = cut {
            return Err(MapError::Cuts { iova, len, existing });
        }
        Ok(inside.iter().filter_map(|start| self.regions.remove(start)).map(|r| r.len).sum())
    }

    /// Removes every mapping.
    pub fn clear(&mut self) {
        self.regions.clear();
    }

    /// The mappings: (IOVA, bytes, permissions), in rising order.
    pub fn mappings(&self) -> impl Iterator<Item = (u64, u64, Permissions)> {
        self.regions.iter().map(|(&iova, r)| (iova, r.len, r.permissions))
    }

    fn find(&self, iova: u64, access: Access) -> Result<(&Region, u64), Fault> {
        match self.regions.range(..=iova).next_back() {
            Some((&start, region)) if iova - start < region.len => {
                let allowed = match access {
                    Access::Read => region.permissions.read,
                    Access::Write => region.permissions.write,
                };
                if allowed { Ok((region, iova - start)) } else { Err(Fault::Forbidden { iova, access }) }
            }
            _ => Err(Fault::Unmapped { iova, access }),
        }
    }

    /// Checks the whole range, then lets `each` move the parts.
    fn transfer(
        &self,
        iova: u64,
        len: usize,
        access: Access,
        mut each: impl FnMut(&dyn Backing, u64, Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        for check in [true, false] {
            let mut done = 0usize;
            while done < len {
                let at = iova.checked_add(done as u64).ok_or(Fault::Unmapped { iova: u64::MAX, access })?;
                let (region, within) = self.find(at, access)?;
                let n = (region.len - within).min((len - done) as u64) as usize;
                if check && done == 0 && n == len {
                    return each(&*region.backing, region.offset + within, 0..len);
                }
                if !check {
                    each(&*region.backing, region.offset + within, done..done + n)?;
                }
                done += n;
            }
        }
        Ok(())
    }
}

impl HostMemory for Iommu {
    fn read(&self, iova: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.transfer(iova, into.len(), Access::Read, |backing, offset, part| {
            backing.read(offset, &mut into[part])
        })
    }
    fn write(&mut self, iova: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.transfer(iova, bytes.len(), Access::Write, |backing, offset, part| {
            backing.write(offset, &bytes[part])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_over_two_neighbouring_mappings_is_one_transfer() {
        let (a, b) = (Arc::new(SparseMemory::new()), Arc::new(SparseMemory::new()));
        let mut iommu = Iommu::new();
        iommu.map(0x1000, 0x1000, Permissions::BOTH, a.clone(), 0x10_0000).unwrap();
        iommu.map(0x2000, 0x1000, Permissions::BOTH, b.clone(), 0).unwrap();
        iommu.write(0x1ffe, &[1, 2, 3, 4]).unwrap();
        assert_eq!((a.get(0x10_0ffe, 2), b.get(0, 2)), (vec![1, 2], vec![3, 4]));
        let mut back = [0; 4];
        iommu.read(0x1ffe, &mut back).unwrap();
        assert_eq!(back, [1, 2, 3, 4]);
    }

    #[test]
    fn a_write_that_leaves_the_mapping_changes_nothing() {
        let memory = Arc::new(SparseMemory::new());
        let mut iommu = Iommu::new();
        iommu.map(0x1000, 0x1000, Permissions::BOTH, memory.clone(), 0).unwrap();
        assert!(iommu.write(0x1ffc, &[9; 4]).is_ok());
        assert_eq!(
            iommu.write(0x1ffe, &[7; 4]),
            Err(Fault::Unmapped { iova: 0x2000, access: Access::Write })
        );
        assert_eq!(memory.get(0xffc, 8), [9, 9, 9, 9, 0, 0, 0, 0]);
    }

    #[test]
    fn permissions_hold_for_each_direction_alone() {
        let mut iommu = Iommu::new();
        iommu.map(0, 0x1000, Permissions::READ, SparseMemory::new(), 0).unwrap();
        iommu.map(0x1000, 0x1000, Permissions::WRITE, SparseMemory::new(), 0).unwrap();
        assert!(iommu.read(0, &mut [0; 4]).is_ok());
        assert_eq!(iommu.write(0, &[0]), Err(Fault::Forbidden { iova: 0, access: Access::Write }));
        assert!(iommu.write(0x1000, &[0]).is_ok());
        let refused = Err(Fault::Forbidden { iova: 0x1000, access: Access::Read });
        assert_eq!(iommu.read(0x1000, &mut [0]), refused);
    }

    #[test]
    fn overlaps_the_interrupt_window_and_cuts_are_refused() {
        let mut iommu = Iommu::new();
        let mut map = |iova, len| iommu.map(iova, len, Permissions::BOTH, SparseMemory::new(), 0);
        map(0x4000, 0x2000).unwrap();
        assert!(matches!(map(0x5fff, 1), Err(MapError::Overlap { existing: 0x4000, .. })));
        assert!(matches!(map(0x3000, 0x1001), Err(MapError::Overlap { .. })));
        map(0x3000, 0x1000).unwrap();
        map(0x6000, 1).unwrap();
        assert!(matches!(map(0xfedf_ffff, 2), Err(MapError::InterruptWindow { .. })));
        map(0xfedf_ffff, 1).unwrap();
        map(0xfef0_0000, 1).unwrap();
        map(u64::MAX, 1).unwrap();
        assert!(matches!(map(u64::MAX, 2), Err(MapError::Range { .. })));
        assert!(matches!(map(0, 0), Err(MapError::Range { .. })));
        assert!(matches!(iommu.unmap(0x5000, 0x1000), Err(MapError::Cuts { existing: 0x4000, .. })));
        assert!(matches!(iommu.unmap(0x3000, 0x1800), Err(MapError::Cuts { existing: 0x4000, .. })));
        assert_eq!(iommu.unmap(0x3000, 0x3000), Ok(0x3000));
        assert!(iommu.read(0x4000, &mut [0]).is_err());
    }
}
