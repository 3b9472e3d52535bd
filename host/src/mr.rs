//! Protection domains and memory regions.
//!
//! ```text
//! allocate (memfd) | register (memory given away) | register_raw (any range) > pages mapped for the card > MrEntry > keys
//! ```
//!
//! In: memory. Out: an [`Mr`] with its keys; local elements are bounds-checked when made. Any range works: heap, stack, file map. The card may
//! write at any time, so an `Mr` never lends its bytes: it copies in and out. Dropping it deregisters and waits until
//! the card has ended every access; a forgotten one keeps its memory until the context closes.

use crate::backend::Memory;
use crate::command::Arguments;
use crate::context::{Inner, Object, User, lock};
use crate::dma::{DmaBuffer, DmaSpace};
use crate::qp::{Qp, QpInit, Sge};
use crate::{Error, Result};
use contract::context::words;
use contract::{CommandOpcode, MrEntry};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

bitflags::bitflags! {
    /// Access rights (`ibv_access_flags`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Access: u8 {
        /// The card may write this memory for local work.
        const LOCAL_WRITE = contract::verbs::access::LOCAL_WRITE;
        /// Peers may WRITE.
        const REMOTE_WRITE = contract::verbs::access::REMOTE_WRITE;
        /// Peers may READ.
        const REMOTE_READ = contract::verbs::access::REMOTE_READ;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = contract::verbs::access::REMOTE_ATOMIC;
        /// Of a region: work requests of its protection domain may end its key, a local invalidate and a peer's SEND
        /// with invalidate. The region keeps its number and memory until it is dropped; then both are free again.
        const INVALIDATE = contract::verbs::access::INVALIDATE;
    }
}

/// Memory whose owner can be given to a region.
///
/// # Safety
/// The range of [`Self::into_owner`] stays valid for reads and writes, and nobody else touches it, until the owner
/// is dropped; moving the owner does not move the range.
pub unsafe trait Registrable {
    /// First byte, length, and who keeps it alive.
    fn into_owner(self) -> (*mut u8, usize, Box<dyn Any + Send + Sync>);
}

// SAFETY: a vector's buffer does not move with it, and dropping frees it
unsafe impl Registrable for Vec<u8> {
    fn into_owner(mut self) -> (*mut u8, usize, Box<dyn Any + Send + Sync>) {
        (self.as_mut_ptr(), self.len(), Box::new(self))
    }
}

// SAFETY: as for the vector it becomes
unsafe impl Registrable for Box<[u8]> {
    fn into_owner(self) -> (*mut u8, usize, Box<dyn Any + Send + Sync>) {
        self.into_vec().into_owner()
    }
}

// SAFETY: a mapping does not move with its owner, and dropping unmaps it
unsafe impl Registrable for memmap2::MmapMut {
    fn into_owner(mut self) -> (*mut u8, usize, Box<dyn Any + Send + Sync>) {
        (self.as_mut_ptr(), self.len(), Box::new(self))
    }
}

// SAFETY: a mapping does not move with its owner, and dropping unmaps it
unsafe impl Registrable for memmap2::MmapRaw {
    fn into_owner(self) -> (*mut u8, usize, Box<dyn Any + Send + Sync>) {
        (self.as_mut_ptr(), self.len(), Box::new(self))
    }
}

/// Memory that the card may reach.
pub(crate) struct MrMemory {
    address: *mut u8,
    length: usize,
    /// The mapping to end: IO address and length. A driver's buffer ends its own.
    mapped: Option<(Arc<DmaSpace>, u64, u64)>,
    owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: the memory is only copied to and from through raw pointers; its owner is Send and Sync
unsafe impl Send for MrMemory {}
// SAFETY: as above; concurrent copies race as they do with the card, which the caller's protocol orders
unsafe impl Sync for MrMemory {}

impl Drop for MrMemory {
    fn drop(&mut self) {
        if let Some((space, iova, length)) = &self.mapped
            && !space.guard.is_child()
            && let Err(error) = space.unmap(*iova, *length)
        {
            // better lost than given to somebody else while the card may write it
            tracing::warn!(%error, "registered memory stays mapped for the card and is not freed");
            std::mem::forget(self.owner.take());
        }
    }
}

pub(crate) struct PdShared {
    pub(crate) inner: Arc<Inner>,
    pub(crate) user: Arc<User>,
    pub(crate) number: u32,
}

impl Drop for PdShared {
    fn drop(&mut self) {
        self.inner.release(Object::Pd, self.number);
    }
}

/// A protection domain: QPs and regions of one do not reach those of another.
#[derive(Clone)]
pub struct Pd {
    pub(crate) shared: Arc<PdShared>,
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("number", &self.shared.number).finish_non_exhaustive()
    }
}

impl Pd {
    pub(crate) fn new(inner: &Arc<Inner>, user: &Arc<User>) -> Result<Pd> {
        inner.check("allocate a protection domain")?;
        let number = inner.take(Object::Pd)?;
        Ok(Pd { shared: Arc::new(PdShared { inner: inner.clone(), user: user.clone(), number }) })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.shared.number
    }

    /// Allocates zeroed memory and registers it. Cheapest for a simulated card, which maps it.
    ///
    /// # Errors
    /// Length 0, no memory, or as [`Self::register`].
    pub fn allocate(&self, length: usize, access: Access) -> Result<Mr> {
        let inner = &self.shared.inner;
        inner.check("allocate registered memory")?;
        not_empty(length)?;
        let buffer = DmaBuffer::new(&inner.space, length as u64)?;
        let (address, iova) = (buffer.as_mut_ptr(), buffer.iova());
        let memory = MrMemory { address, length, mapped: None, owner: Some(Box::new(buffer)) };
        self.create(memory, iova, access)
    }

    /// Registers memory that is given away until the region is dropped.
    ///
    /// # Errors
    /// Length 0, no key or IO address left, or the card or its backend refused.
    pub fn register(&self, memory: impl Registrable, access: Access) -> Result<Mr> {
        let (address, length, owner) = memory.into_owner();
        self.map(address, length, Some(owner), access)
    }

    /// Registers any range of this process: stack, heap, file map.
    ///
    /// # Safety
    /// Until the region is dropped (or, if it is forgotten, until the context closes) the range stays mapped, and is
    /// used through raw pointers and copies only: the card reads and, with `LOCAL_WRITE` or a remote right, writes it.
    ///
    /// # Errors
    /// The range is empty or not mapped, no key or IO address left, or the card or its backend refused.
    pub unsafe fn register_raw(&self, address: *mut u8, length: usize, access: Access) -> Result<Mr> {
        self.map(address, length, None, access)
    }

    fn map(
        &self,
        address: *mut u8,
        length: usize,
        owner: Option<Box<dyn Any + Send + Sync>>,
        access: Access,
    ) -> Result<Mr> {
        let space = &self.shared.inner.space;
        self.shared.inner.check("register memory")?;
        not_empty(length)?;
        let missing = || Error::NotMapped { address: address as u64, length: length as u64 };
        let start = address as u64 / space.page * space.page;
        let end = (address as u64)
            .checked_add(length as u64)
            .and_then(|end| end.checked_next_multiple_of(space.page));
        let pages = end.ok_or_else(missing)? - start;
        let first = address.wrapping_sub((address as u64 - start) as usize);
        if !is_mapped(first, pages as usize, space.page as usize) {
            return Err(missing());
        }
        let memory = Memory { address: first, length: pages, file: None };
        // SAFETY: the owner, or the caller of `register_raw`, keeps the range until the MrMemory is dropped, which
        // unmaps first
        let iova = unsafe { space.map(&memory) }?;
        let mapped = Some((space.clone(), iova, pages));
        let memory = MrMemory { address, length, mapped, owner };
        self.create(memory, iova + (address as u64 - start), access)
    }

    fn create(&self, memory: MrMemory, iova: u64, access: Access) -> Result<Mr> {
        let inner = &self.shared.inner;
        let index = inner.take(Object::Mr)?;
        let tag = {
            let mut uses = lock(&inner.mr_uses);
            let tag = uses.entry(index).or_insert(0);
            // a key is never 0
            *tag = if index == 0 && *tag == u8::MAX { 1 } else { tag.wrapping_add(1) };
            *tag
        };
        let entry = MrEntry {
            valid: true,
            tag,
            access: access.bits(),
            peer: false,
            relaxed_ordering: false,
            pd: self.shared.number,
            va: memory.address as u64,
            length: memory.length as u64,
            iova,
        };
        let arguments = Arguments { word_mask: 0xf, data: words(&entry.pack()), ..Arguments::default() };
        if let Err(error) = inner.commands.execute(CommandOpcode::CreateMr, index, &arguments) {
            inner.release(Object::Mr, index);
            return Err(error);
        }
        let memory = Arc::new(memory);
        lock(&inner.mrs).insert(index, memory.clone());
        Ok(Mr { pd: self.shared.clone(), memory, index, key: MrEntry::key(index, tag) })
    }

    /// Makes a QP in the state RESET.
    ///
    /// # Errors
    /// Sizes beyond the card's, a transport it lacks, CQs of another context, all QPs in use, or the card refused.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp> {
        Qp::new(&self.shared, init)
    }
}

fn not_empty(length: usize) -> Result<()> {
    match length {
        0 => Err(Error::Range {
            operation: "register memory",
            what: "length",
            value: 0,
            allowed: "at least one byte".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Whether every page of the range is mapped in this process.
fn is_mapped(first: *mut u8, length: usize, page: usize) -> bool {
    let mut resident = vec![0u8; length.div_ceil(page)];
    // SAFETY: mincore accepts any page-aligned range and writes one byte per page
    unsafe { libc::mincore(first.cast(), length, resident.as_mut_ptr()) == 0 }
}

/// A registered memory region.
pub struct Mr {
    pd: Arc<PdShared>,
    memory: Arc<MrMemory>,
    index: u32,
    key: u32,
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("addr", &self.addr())
            .field("len", &self.len())
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Mr {
    /// First address, as peers must name it.
    pub fn addr(&self) -> u64 {
        self.memory.address as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.memory.length
    }

    /// Never true: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.memory.length == 0
    }

    /// The key for local elements.
    pub fn lkey(&self) -> u32 {
        self.key
    }

    /// The key for peers.
    pub fn rkey(&self) -> u32 {
        self.key
    }

    fn place(&self, operation: &'static str, start: usize, length: usize) -> Result<*mut u8> {
        match start.checked_add(length).filter(|end| *end <= self.len()) {
            Some(_) => Ok(self.memory.address.wrapping_add(start)),
            None => Err(Error::OutOfBounds {
                operation,
                start: start as u64,
                end: (start as u64).saturating_add(length as u64),
                length: self.len() as u64,
            }),
        }
    }

    /// The bytes `range` as an element of a work request.
    ///
    /// # Errors
    /// The range leaves the region.
    pub fn sge(&self, range: Range<usize>) -> Result<Sge> {
        let length = range.end.saturating_sub(range.start);
        let address = self.place("make a scatter/gather element", range.start, length)?;
        let length = u32::try_from(length).map_err(|_| Error::Range {
            operation: "make a scatter/gather element",
            what: "length",
            value: length as u64,
            allowed: "less than 2^32".to_owned(),
        })?;
        Ok(Sge { addr: address as u64, length, lkey: self.key })
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// The range leaves the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = self.place("write registered memory", offset, bytes.len())?;
        // SAFETY: in range of memory that stays mapped as long as self; `copy` allows `bytes` to overlap it
        unsafe { std::ptr::copy(bytes.as_ptr(), at, bytes.len()) };
        Ok(())
    }

    /// Copies from `offset` into `bytes`.
    ///
    /// # Errors
    /// The range leaves the region.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let at = self.place("read registered memory", offset, bytes.len())?;
        // SAFETY: in range of memory that stays mapped as long as self; `copy` allows `bytes` to overlap it
        unsafe { std::ptr::copy(at, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// A copy of the bytes `range`.
    ///
    /// # Errors
    /// The range leaves the region.
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.end.saturating_sub(range.start)];
        self.read(range.start, &mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let inner = &self.pd.inner;
        // in a forked child, and when the card did not confirm, the memory stays in the context's list
        if inner.destroy(CommandOpcode::DestroyMr, self.index, &[]) {
            lock(&inner.mrs).remove(&self.index);
            inner.release(Object::Mr, self.index);
        }
    }
}
