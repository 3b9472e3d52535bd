//! Memory that the card reaches: IO addresses, the driver's own rings, and the guard against forked children.
//!
//! ```text
//! IovaAllocator (ranges of the backend) > DmaSpace (maps, unmaps) > DmaBuffer (a memfd, mapped both ways)
//! ```
//!
//! In: sizes or ranges of memory. Out: IO addresses, page-granular, never derived from virtual addresses. A mapping
//! ends before its IO address is given out again. Ring memory is a memfd, so a simulator maps it instead of asking
//! for each byte.

use crate::backend::{Backend, Memory};
use crate::device::Device;
use crate::presence::Presence;
use crate::{Error, Result, barrier};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Free IO addresses: first byte to byte after the last, disjoint, never touching.
#[derive(Debug)]
pub(crate) struct IovaAllocator {
    free: BTreeMap<u64, u64>,
    page: u64,
}

impl IovaAllocator {
    pub(crate) fn new(ranges: &[RangeInclusive<u64>], page: u64) -> IovaAllocator {
        let mut allocator = IovaAllocator { free: BTreeMap::new(), page };
        for range in ranges {
            let start = range.start().next_multiple_of(page);
            // the very last page of 64-bit space is given up: its end has no number
            let end = range.end().saturating_add(1) / page * page;
            if start < end {
                allocator.release(start, end - start);
            }
        }
        allocator
    }

    /// The lowest free `length` bytes (whole pages).
    pub(crate) fn take(&mut self, length: u64) -> Option<u64> {
        let length = length.checked_next_multiple_of(self.page)?;
        let (start, end) =
            self.free.iter().map(|(s, e)| (*s, *e)).find(|(start, end)| end - start >= length)?;
        self.free.remove(&start);
        if end - start > length {
            self.free.insert(start + length, end);
        }
        Some(start)
    }

    /// Gives back what [`Self::take`] gave, by the same length.
    pub(crate) fn release(&mut self, start: u64, length: u64) {
        let (mut start, mut end) = (start, start + length.next_multiple_of(self.page));
        if let Some((&before, &until)) = self.free.range(..start).next_back()
            && until == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(until) = self.free.remove(&end) {
            end = until;
        }
        self.free.insert(start, end);
    }
}

/// Words of pages that the kernel hands to a forked child as zeros: the first says whether the card may be used, each
/// further one belongs to a CQ or a QP (see [`Word`]); a closed context has zeros there, too, and one whose card is gone.
#[derive(Debug)]
pub(crate) struct Guard {
    words: NonNull<AtomicU32>,
    count: usize,
    /// Index of the first QP's word.
    qps: usize,
}

// SAFETY: the page is only reached through atomics
unsafe impl Send for Guard {}
// SAFETY: as above
unsafe impl Sync for Guard {}

impl Guard {
    const CHILD: u32 = 0;
    const OPEN: u32 = 1;
    const CLOSED: u32 = 2;
    const GONE: u32 = 3;

    fn new(cqs: u32, qps: u32) -> Result<Guard> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let failed = |source: rustix::io::Errno| Error::System {
            operation: "map the fork guard",
            source: source.into(),
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let count = 1 + cqs as usize + qps as usize;
        // SAFETY: a fresh private mapping at an address of the kernel's choice
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), count * 4, protection, MapFlags::PRIVATE) };
        let page = page.map_err(failed)?;
        let words = NonNull::new(page.cast()).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let guard = Guard { words, count, qps: 1 + cqs as usize };
        // SAFETY: the mapping is ours alone
        unsafe { madvise(page, count * 4, Advice::LinuxWipeOnFork) }.map_err(failed)?;
        guard.word(0).store(Self::OPEN, Ordering::Relaxed);
        Ok(guard)
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        assert!(index < self.count, "no such word of the fork guard");
        // SAFETY: in range of the mapping, which is aligned and initialised and lives until drop
        unsafe { self.words.add(index).as_ref() }
    }

    /// Whether this process is a forked child of the one that opened the card.
    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        self.word(0).load(Ordering::Relaxed) == Self::CHILD
    }

    /// Neither a forked child nor closed.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // SAFETY: the first word, as in `word`
        unsafe { self.words.as_ref() }.load(Ordering::Acquire) == Self::OPEN
    }

    /// The card is gone, but not yet closed.
    pub(crate) fn is_gone(&self) -> bool {
        self.word(0).load(Ordering::Acquire) == Self::GONE
    }

    /// Closes; whether it was open, also with a card that is gone.
    pub(crate) fn close(&self) -> bool {
        let was = self.word(0).swap(Self::CLOSED, Ordering::SeqCst);
        self.rouse();
        was != Self::CLOSED
    }

    /// The card is gone; whether it was there.
    pub(crate) fn lose(&self) -> bool {
        let first = self.word(0);
        let was = first.compare_exchange(Self::OPEN, Self::GONE, Ordering::SeqCst, Ordering::SeqCst);
        if was.is_ok() {
            self.rouse();
        }
        was.is_ok()
    }

    /// Every poll and post has to look closer.
    fn rouse(&self) {
        (1..self.count).for_each(|index| self.word(index).store(0, Ordering::SeqCst));
    }
}

/// The word of a CQ or QP in the guard: while it is not zero, the card may be used, and there is nothing about the object
/// that a poll or a post has to look at more closely.
#[derive(Clone)]
pub(crate) struct Word {
    word: NonNull<AtomicU32>,
    space: Arc<DmaSpace>,
}

// SAFETY: an atomic in the guard of `space`, which lives as long
unsafe impl Send for Word {}
// SAFETY: as above
unsafe impl Sync for Word {}

impl Word {
    pub(crate) fn of_cq(space: &Arc<DmaSpace>, cqn: u32) -> Word {
        Word { word: NonNull::from(space.guard.word(1 + cqn as usize)), space: space.clone() }
    }

    pub(crate) fn of_qp(space: &Arc<DmaSpace>, qpn: u32) -> Word {
        Word { word: NonNull::from(space.guard.word(space.guard.qps + qpn as usize)), space: space.clone() }
    }

    #[inline(always)]
    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: see the type
        unsafe { self.word.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u32 {
        self.atomic().load(Ordering::Acquire)
    }

    /// Sets the word; in a forked child, a closed context and without a card it stays zero.
    pub(crate) fn set(&self, value: u32) {
        let word = self.atomic();
        word.store(value, Ordering::SeqCst);
        // who closes writes the first word first: of the two at least one sees the other
        if self.space.guard.word(0).load(Ordering::SeqCst) != Guard::OPEN {
            word.store(0, Ordering::SeqCst);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody holds a reference any more
        let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), self.count * 4) };
    }
}

/// The card's view of this process's memory.
pub(crate) struct DmaSpace {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) presence: Arc<Presence>,
    pub(crate) guard: Guard,
    pub(crate) page: u64,
    iovas: Mutex<IovaAllocator>,
}

impl DmaSpace {
    /// For a card of so many CQs and QPs.
    pub(crate) fn new(device: &Device, cqs: u32, qps: u32) -> Result<DmaSpace> {
        let (backend, presence) = (device.backend.clone(), device.presence.clone());
        let page = rustix::param::page_size() as u64;
        let iovas = Mutex::new(IovaAllocator::new(&backend.iova_ranges(), page));
        Ok(DmaSpace { backend, presence, guard: Guard::new(cqs, qps)?, page, iovas })
    }

    /// Refuses a forked child, a closed context and a card that is gone.
    #[inline]
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if self.guard.is_open() { Ok(()) } else { Err(self.refusal(operation)) }
    }

    #[cold]
    fn refusal(&self, operation: &'static str) -> Error {
        match () {
            () if self.guard.is_child() => Error::Forked { operation },
            () if self.guard.is_gone() => self.presence.gone(operation),
            () => Error::Closed { operation },
        }
    }

    /// Maps whole pages; returns their IO address.
    ///
    /// # Safety
    /// As [`Backend::map`].
    pub(crate) unsafe fn map(&self, memory: &Memory<'_>) -> Result<u64> {
        let mut iovas = self.iovas.lock().unwrap_or_else(PoisonError::into_inner);
        let iova = iovas
            .take(memory.length)
            .ok_or_else(|| Error::NoIova { name: self.backend.name().to_owned(), length: memory.length })?;
        // SAFETY: passed on to the caller
        if let Err(source) = unsafe { self.backend.map(iova, memory) } {
            iovas.release(iova, memory.length);
            return Err(
                self.error(format!("map {} bytes at {:?} for DMA", memory.length, memory.address), source)
            );
        }
        Ok(iova)
    }

    /// Ends a mapping; its IO address is reused only when that worked.
    pub(crate) fn unmap(&self, iova: u64, length: u64) -> Result<()> {
        self.backend
            .unmap(iova, length)
            .map_err(|source| self.error(format!("unmap {length} bytes at IO address {iova:#x}"), source))?;
        self.iovas.lock().unwrap_or_else(PoisonError::into_inner).release(iova, length);
        Ok(())
    }

    pub(crate) fn error(&self, operation: String, source: std::io::Error) -> Error {
        Error::Backend { name: self.backend.name().to_owned(), operation, source }
    }
}

/// Zeroed memory of the driver's own, mapped into this process and for the card. Accesses are raw copies; the caller
/// orders them with the named barriers.
pub(crate) struct DmaBuffer {
    space: Arc<DmaSpace>,
    map: MmapRaw,
    iova: u64,
    _file: OwnedFd,
}

impl DmaBuffer {
    /// At least `length` bytes, page-aligned on both sides.
    pub(crate) fn new(space: &Arc<DmaSpace>, length: u64) -> Result<DmaBuffer> {
        let failed = |source| Error::System { operation: "allocate DMA memory", source };
        let length = length.max(1).next_multiple_of(space.page);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("verbena", flags).map_err(|error| failed(error.into()))?;
        ftruncate(&file, length).map_err(|error| failed(error.into()))?;
        // a simulator maps only what cannot shrink under it
        fcntl_add_seals(&file, SealFlags::SHRINK).map_err(|error| failed(error.into()))?;
        let map = MmapOptions::new().len(length as usize).map_raw(&file).map_err(failed)?;
        let memory = Memory { address: map.as_mut_ptr(), length, file: Some((file.as_fd(), 0)) };
        // SAFETY: the mapping lives in the buffer, which unmaps before it drops and only hands out copies
        let iova = unsafe { space.map(&memory) }?;
        Ok(DmaBuffer { space: space.clone(), map, iova, _file: file })
    }

    pub(crate) fn iova(&self) -> u64 {
        self.iova
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// The place of `length` bytes at `offset`. The driver's own indices are always in range: they are masked by the ring's
    /// depth.
    #[inline]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset + length <= self.map.len(), "a ring access leaves its buffer");
        self.map.as_mut_ptr().wrapping_add(offset)
    }

    #[inline]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let at = self.at(offset, bytes.len());
        // SAFETY: in range of the mapping; `bytes` is no part of it, since no reference to it exists
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    #[inline]
    pub(crate) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let at = self.at(offset, N).cast::<[u8; N]>();
        // SAFETY: in range of the mapping, any bytes are valid; the card does not write an entry whose phase was seen
        // and which was not yet given back
        unsafe { at.read_unaligned() }
    }

    /// `count` entries of the card from `offset` on.
    #[inline]
    pub(crate) fn entries<const N: usize>(&self, offset: usize, count: usize) -> Entries<'_, N> {
        Entries { first: self.at(offset, count * N), count, ring: PhantomData }
    }

    /// The byte at `offset`, for [`Self::phase`] without its checks: lives as long as the buffer.
    pub(crate) fn byte(&self, offset: usize) -> *mut AtomicU8 {
        self.at(offset, 1).cast()
    }

    /// The phase bit in the byte at `offset`; the caller fences with `barrier::after_valid`.
    #[inline]
    pub(crate) fn phase(&self, offset: usize) -> bool {
        self.last(offset) & 1 == 1
    }

    /// The byte at `offset`, the last of an entry.
    #[inline]
    pub(crate) fn last(&self, offset: usize) -> u8 {
        let at = self.at(offset, 1);
        // SAFETY: in range of the mapping; the byte is written by the card alone, in one access
        unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Relaxed)
    }

    /// Zeroes everything: a ring starts so.
    pub(crate) fn clear(&self) {
        let at = self.at(0, self.len());
        // SAFETY: the whole mapping
        unsafe { at.write_bytes(0, self.len()) };
    }
}

/// Entries of `N` bytes one behind the other, the last byte of each with its phase: in range of their ring, which is
/// checked once for all of them.
pub(crate) struct Entries<'a, const N: usize> {
    first: *mut u8,
    count: usize,
    ring: PhantomData<&'a DmaBuffer>,
}

impl<const N: usize> Entries<'_, N> {
    /// `count` of them, without the first `skipped`.
    #[inline(always)]
    pub(crate) fn behind(&self, skipped: usize, count: usize) -> Self {
        assert!(skipped + count <= self.count, "no such entry");
        Entries { first: self.first.wrapping_add(skipped * N), count, ring: PhantomData }
    }

    /// The entry `i`, if its last byte, which has the phase, is one that an entry written in this lap has.
    #[inline(always)]
    pub(crate) fn written(&self, i: usize, is_written: impl FnOnce(u8) -> bool) -> Option<[u8; N]> {
        assert!(i < self.count, "no such entry");
        let at = self.first.wrapping_add(i * N);
        // SAFETY: in range of the mapping, which lives as long as the borrow; the byte is written by the card alone, in
        // one access
        let last = unsafe { AtomicU8::from_ptr(at.wrapping_add(N - 1)) }.load(Ordering::Relaxed);
        if !is_written(last) {
            return None;
        }
        barrier::after_valid();
        // SAFETY: in range of the mapping, any bytes are valid; the card does not write an entry whose phase was seen
        // and which was not yet given back
        Some(unsafe { at.cast::<[u8; N]>().read_unaligned() })
    }
}

/// A ring of work requests: places of one size, at least [`Places::LEAST`] bytes, and beside each the program's number for
/// its request. The driver writes them, the card reads them. How many there are is a power of two; an index is masked by
/// that, so every place is in range.
pub(crate) struct Places {
    ring: Arc<DmaBuffer>,
    first: *mut u8,
    mask: u32,
    size: usize,
    /// As many as places.
    ids: Box<[AtomicU64]>,
}

// SAFETY: `first` is the ring's first byte, and the ring lives as long
unsafe impl Send for Places {}
// SAFETY: as above; only the QP's thread writes
unsafe impl Sync for Places {}

impl Places {
    /// Least bytes of a place.
    pub(crate) const LEAST: usize = 64;

    /// 2^`log_count` places of 2^`log_size` bytes.
    pub(crate) fn new(space: &Arc<DmaSpace>, log_count: u32, log_size: u32) -> Result<Places> {
        let (count, size) = (1u32 << log_count, 1usize << log_size);
        assert!(size >= Self::LEAST, "a place for a work request is too small");
        let length = size << log_count;
        let ring = Arc::new(DmaBuffer::new(space, length as u64)?);
        let ids = (0..count).map(|_| AtomicU64::new(0)).collect();
        Ok(Places { first: ring.at(0, length), ring, mask: count - 1, size, ids })
    }

    pub(crate) fn ring(&self) -> &Arc<DmaBuffer> {
        &self.ring
    }

    pub(crate) fn count(&self) -> u32 {
        self.mask + 1
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> usize {
        (index & self.mask) as usize
    }

    /// The place of an index.
    #[inline(always)]
    pub(crate) fn place(&self, index: u32) -> Place<'_> {
        let slot = self.slot(index);
        // SAFETY: masked, as the type says
        let id = unsafe { self.ids.get_unchecked(slot) };
        Place { first: self.first.wrapping_add(slot * self.size), size: self.size, id }
    }

    /// The numbers of the requests from an index on, up to the end of the ring.
    #[inline]
    pub(crate) fn ids_from(&self, index: u32) -> &[AtomicU64] {
        // SAFETY: masked, as the type says
        unsafe { self.ids.get_unchecked(self.slot(index)..) }
    }
}

/// One of [`Places`].
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    first: *mut u8,
    size: usize,
    id: &'a AtomicU64,
}

impl<'a> Place<'a> {
    /// The program's number for its request.
    #[inline(always)]
    pub(crate) fn id(self) -> &'a AtomicU64 {
        self.id
    }

    /// Its bytes.
    pub(crate) fn size(self) -> usize {
        self.size
    }

    /// Writes `N` bytes at `OFFSET`.
    #[inline(always)]
    pub(crate) fn put<const OFFSET: usize, const N: usize>(self, bytes: [u8; N]) {
        const { assert!(OFFSET + N <= Places::LEAST) };
        // SAFETY: in range of the place, which only this thread writes and nobody has a reference to
        unsafe { self.first.wrapping_add(OFFSET).cast::<[u8; N]>().write(bytes) };
    }

    /// Writes `bytes` at `offset`.
    #[inline]
    pub(crate) fn write(self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.size, "a work request leaves its place");
        // SAFETY: in range of the place, as above; `bytes` is no part of it, since no reference to it exists
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.first.wrapping_add(offset), bytes.len())
        };
    }

    /// Its first bytes, of a request that is not yet retired.
    pub(crate) fn read(self, length: usize) -> &'a [u8] {
        assert!(length <= self.size, "a work request leaves its place");
        // SAFETY: in range of the place, which is not written before its request is retired
        unsafe { std::slice::from_raw_parts(self.first, length) }
    }
}

impl Drop for DmaBuffer {
    fn drop(&mut self) {
        if self.space.guard.is_child() {
            return;
        }
        if let Err(error) = self.space.unmap(self.iova, self.map.len() as u64) {
            tracing::warn!(%error, "ring memory stays mapped for the card");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_addresses_are_whole_pages_of_the_reported_ranges() {
        let mut allocator = IovaAllocator::new(&[0x1800..=0x4fff, 0x10000..=0x10fff], 0x1000);
        assert_eq!(allocator.take(1), Some(0x2000));
        assert_eq!(allocator.take(0x2001), None, "no range has three pages left");
        assert_eq!(allocator.take(0x2000), Some(0x3000));
        assert_eq!(allocator.take(0x1000), Some(0x10000));
        assert_eq!(allocator.take(1), None);
    }

    #[test]
    fn released_neighbours_grow_together() {
        let mut allocator = IovaAllocator::new(&[0x1000..=0x4fff], 0x1000);
        let pages: Vec<u64> = (0..4).filter_map(|_| allocator.take(0x1000)).collect();
        assert_eq!(pages, [0x1000, 0x2000, 0x3000, 0x4000]);
        for page in [0x2000, 0x4000, 0x3000, 0x1000] {
            allocator.release(page, 0x1000);
        }
        assert_eq!(allocator.take(0x4000), Some(0x1000));
    }

    #[test]
    fn the_whole_address_space_is_a_range() {
        let mut allocator = IovaAllocator::new(&[0..=u64::MAX], 0x1000);
        assert_eq!(allocator.take(u64::MAX), None);
        assert_eq!(allocator.take(1 << 40), Some(0));
    }
}
