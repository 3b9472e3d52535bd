//! The way to a card: what VFIO offers, as a trait.
//!
//! ```text
//! driver > Backend > vfio_user (a socket: the simulation in another process)
//!                  > vfio      (the kernel: a board, or the simulation inside a virtual machine)
//!                  > any other crate's (the simulation stepped in this process, a model in a test)
//! ```
//!
//! In: register accesses, DMA mappings, interrupt descriptors. Out: their effect on one PCI function. A register read
//! is synchronous, a register write posted: it may return before the card has seen it, but never overtakes another
//! access. The trait is object safe; every method may be called from any thread.

pub mod vfio;
pub mod vfio_user;

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// A BAR of the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bar {
    /// BAR0.
    Registers = 0,
    /// BAR2.
    Doorbells = 2,
}

/// Memory of this process that the card is to reach.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    /// First byte, page-aligned.
    pub address: *mut u8,
    /// Bytes, whole pages.
    pub length: u64,
    /// The file behind it and the offset therein, when another process may map it (memfd); `None`: any other memory.
    pub file: Option<(BorrowedFd<'a>, u64)>,
}

/// A BAR in the memory of this process: an aligned store there does what a write through the [`Backend`] does.
#[derive(Debug, Clone, Copy)]
pub struct MappedBar {
    first: NonNull<u8>,
    length: usize,
}

impl MappedBar {
    /// The `length` bytes from `first` on.
    ///
    /// # Safety
    /// `first` is a multiple of 8, and any thread may store volatile quadwords to these bytes while the backend lives
    /// that tells of them.
    pub unsafe fn new(first: NonNull<u8>, length: usize) -> MappedBar {
        MappedBar { first, length }
    }

    /// The aligned quadword at `offset`.
    pub(crate) fn quadword(&self, offset: u64) -> Option<NonNull<u64>> {
        let offset = usize::try_from(offset).ok().filter(|offset| offset.is_multiple_of(8))?;
        let inside = offset.checked_add(8).is_some_and(|end| end <= self.length);
        // SAFETY: in range of the BAR
        inside.then(|| unsafe { self.first.add(offset) }.cast())
    }
}

/// One PCI function of a card.
pub trait Backend: Send + Sync {
    /// Name for messages, such as `sim:card0`.
    fn name(&self) -> &str;

    /// Reads 4 aligned bytes of a BAR.
    ///
    /// # Errors
    /// The way to the card failed.
    fn read32(&self, bar: Bar, offset: u64) -> io::Result<u32>;

    /// Reads 8 aligned bytes of a BAR in one access.
    ///
    /// # Errors
    /// The way to the card failed.
    fn read64(&self, bar: Bar, offset: u64) -> io::Result<u64>;

    /// Writes 4 aligned bytes of a BAR; posted.
    ///
    /// # Errors
    /// The way to the card failed.
    fn write32(&self, bar: Bar, offset: u64, value: u32) -> io::Result<()>;

    /// Writes 8 aligned bytes of a BAR in one access; posted.
    ///
    /// # Errors
    /// The way to the card failed.
    fn write64(&self, bar: Bar, offset: u64, value: u64) -> io::Result<()>;

    /// The BAR, if this process has it mapped: the driver then stores its doorbells itself. `None`: it calls
    /// [`Backend::write64`] for each.
    fn mapped(&self, _bar: Bar) -> Option<MappedBar> {
        None
    }

    /// Copies bytes into a BAR from an offset that is a multiple of 8, in pieces and an order of its choice; posted. Up to
    /// the next multiple of 8 the card may see zeros behind them.
    ///
    /// # Errors
    /// The way to the card failed.
    fn copy(&self, bar: Bar, offset: u64, bytes: &[u8]) -> io::Result<()> {
        for (i, piece) in bytes.chunks(8).enumerate() {
            let mut quadword = [0; 8];
            quadword[..piece.len()].copy_from_slice(piece);
            self.write64(bar, offset + 8 * i as u64, u64::from_le_bytes(quadword))?;
        }
        Ok(())
    }

    /// Reads PCI configuration space.
    ///
    /// # Errors
    /// The way to the card failed.
    fn config_read(&self, offset: u64, data: &mut [u8]) -> io::Result<()>;

    /// Writes PCI configuration space.
    ///
    /// # Errors
    /// The way to the card failed.
    fn config_write(&self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Lets the card read and write `memory` at IO addresses from `iova` on.
    ///
    /// # Safety
    /// The memory stays mapped, and is used through raw pointers only, until [`Backend::unmap`] or
    /// [`Backend::reset`] has returned.
    ///
    /// # Errors
    /// The backend refused the range.
    unsafe fn map(&self, iova: u64, memory: &Memory<'_>) -> io::Result<()>;

    /// Ends a mapping that [`Backend::map`] made, named by the same first address and length.
    ///
    /// # Errors
    /// The way to the card failed; the card may still reach the memory.
    fn unmap(&self, iova: u64, length: u64) -> io::Result<()>;

    /// Connects MSI-X vector i with eventfd i, writes the MSI-X table and unmasks, as the kernel's VFIO does. An
    /// empty slice disconnects all.
    ///
    /// # Errors
    /// The card has fewer vectors, or the way to the card failed.
    fn set_irqs(&self, vectors: &[BorrowedFd<'_>]) -> io::Result<()>;

    /// Function level reset; returns when the card may be used again.
    ///
    /// # Errors
    /// The way to the card failed.
    fn reset(&self) -> io::Result<()>;

    /// Has the system make `request` (an eventfd) readable when it wants the card back. False: this one is never asked for.
    ///
    /// # Errors
    /// The way to the card failed.
    fn set_request(&self, _request: BorrowedFd<'_>) -> io::Result<bool> {
        Ok(false)
    }

    /// Lets go of the card for good: when it returns, the card reaches no memory, and whoever waits for it has it. A mapped
    /// BAR stays where it is. What is there then is a bus with nobody on it: reads give ones, writes and unmaps are done and
    /// mean nothing, all else fails. More than once is no more than once. Nothing happens where no card can go.
    fn release(&self) {}

    /// IO addresses that may be mapped.
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>>;

    /// The clock that bounds waits: monotonic, from any start. Simulated time where time is simulated.
    fn now(&self) -> Duration {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    /// Called between the polls of a wait, `turn` counting from 0: gives way to whoever makes progress. A simulation
    /// in this process advances its time here.
    fn relax(&self, turn: u32) {
        match turn {
            0..64 => std::hint::spin_loop(),
            64..4096 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }

    /// Waits until `fd` is readable; false when `timeout` passed first. A simulation in this process advances its
    /// time here.
    ///
    /// # Errors
    /// The descriptor cannot be waited for.
    fn wait(&self, fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
        readable(fd, timeout)
    }
}

/// What is answered by a card that was let go of.
fn released<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::NotConnected, "the card was let go of"))
}

/// Waits by poll(2) until `fd` is readable; false when `timeout` passed first. For implementations of
/// [`Backend::wait`]: a timeout of zero only asks.
///
/// # Errors
/// The descriptor cannot be waited for.
pub fn readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let end = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match poll(&mut fds, left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
