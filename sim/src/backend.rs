//! A card of a room in this process, for the driver: virtual time.
//!
//! In: the calls of [`host::Backend`]. Out: their effect on the card; time passes only while the driver waits
//! ([`InProcess::relax`], [`InProcess::wait`], register reads). A story that steps two drivers in one thread is
//! deterministic. Waits end in simulated time, so a driver's ten seconds cost no more than what happens in them.

use crate::{Error, function::Mapping, memory::ProcessMemory, room::Room};
use host::{Bar, Memory, backend::Backend};
use pcie_sim::Permissions;
use std::{
    io,
    ops::RangeInclusive,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How far time goes between two polls of a driver while something happens: 1 us.
const STEP: u64 = 1_000_000;
/// How far it goes while nothing happens: 10 ms.
const LEAP: u64 = 10_000_000_000;
/// Longest wait for a register or a reset: 200 ms.
const PATIENCE: u64 = 200_000_000_000;
const PICOSECONDS: u64 = 1000;

/// One card of a room.
pub struct InProcess {
    name: String,
    room: Arc<Mutex<Room>>,
    card: usize,
}

/// The room, also after a panic elsewhere: a story's end still wants its traces.
pub fn lock(room: &Mutex<Room>) -> MutexGuard<'_, Room> {
    room.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

/// Lets time pass as a driver's poll does: a microsecond, or up to the next thing that happens, at most 10 ms.
///
/// # Errors
/// As [`Room::run_to`].
pub fn pass(room: &mut Room) -> Result<(), Error> {
    let now = room.now();
    let next = room.next_event().unwrap_or(u64::MAX);
    let to = if next > now + STEP { next.min(now + LEAP) } else { now + STEP };
    room.run_to(to)?;
    room.attend();
    Ok(())
}

impl InProcess {
    /// The card with that index.
    pub fn new(room: &Arc<Mutex<Room>>, card: usize) -> Self {
        let name = format!("sim:{}", lock(room).cards()[card].config().name);
        Self { name, room: room.clone(), card }
    }

    fn read<const N: usize>(&self, bar: Bar, offset: u64) -> io::Result<[u8; N]> {
        let mut room = lock(&self.room);
        let token = room.host(self.card, |root, now| root.mmio_read(now, bar as u8, offset, N));
        let limit = room.now() + PATIENCE;
        let mut answer = None;
        room.run_until(limit, |room| {
            answer = room.host(self.card, |root, _| root.take_read(token));
            answer.is_some()
        })
        .map_err(failed)?;
        room.attend();
        let bytes = answer
            .ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "the card does not answer"))?
            .map_err(io::Error::other)?;
        bytes.try_into().map_err(|_| io::Error::other("the card answered another number of bytes"))
    }

    fn write(&self, bar: Bar, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let act = |root: &mut pcie_sim::RootComplex, now| root.mmio_write(now, bar as u8, offset, bytes);
        lock(&self.room).host(self.card, act);
        Ok(())
    }
}

impl Backend for InProcess {
    fn name(&self) -> &str {
        &self.name
    }

    fn read32(&self, bar: Bar, offset: u64) -> io::Result<u32> {
        self.read(bar, offset).map(u32::from_le_bytes)
    }

    fn read64(&self, bar: Bar, offset: u64) -> io::Result<u64> {
        self.read(bar, offset).map(u64::from_le_bytes)
    }

    fn write32(&self, bar: Bar, offset: u64, value: u32) -> io::Result<()> {
        self.write(bar, offset, &value.to_le_bytes())
    }

    fn write64(&self, bar: Bar, offset: u64, value: u64) -> io::Result<()> {
        self.write(bar, offset, &value.to_le_bytes())
    }

    fn copy(&self, bar: Bar, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // pieces as a CPU's write-combining buffers make them
        bytes.chunks(64).enumerate().try_for_each(|(i, piece)| self.write(bar, offset + 64 * i as u64, piece))
    }

    fn config_read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        lock(&self.room).host(self.card, |root, now| root.config_read(now, offset as usize, data));
        Ok(())
    }

    fn config_write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        lock(&self.room).host(self.card, |root, now| root.config_write(now, offset as usize, data));
        Ok(())
    }

    unsafe fn map(&self, iova: u64, memory: &Memory<'_>) -> io::Result<()> {
        let base = NonNull::new(memory.address).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the caller vouches for the range until `unmap` or `reset`; both drop the mapping first.
        let backing = unsafe { ProcessMemory::new(base, memory.length) };
        let length = memory.length;
        let mut room = lock(&self.room);
        room.host(self.card, |root, _| root.memory_mut().map(iova, length, Permissions::BOTH, backing, 0))
            .map_err(io::Error::other)?;
        let address = memory.address as u64;
        room.functions[self.card].mappings.push(Mapping { address, iova, length });
        Ok(())
    }

    fn unmap(&self, iova: u64, length: u64) -> io::Result<()> {
        let mut room = lock(&self.room);
        room.functions[self.card].mappings.retain(|mapping| mapping.iova != iova);
        let unmapped = room.host(self.card, |root, _| root.memory_mut().unmap(iova, length));
        match unmapped.map_err(io::Error::other)? {
            0 => Err(io::Error::new(io::ErrorKind::InvalidInput, "nothing is mapped there")),
            _ => Ok(()),
        }
    }

    fn set_irqs(&self, vectors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut room = lock(&self.room);
        let most = usize::from(room.cards()[self.card].config().root.endpoint.vectors);
        if vectors.len() > most {
            return Err(io::Error::other(format!("the card has {most} MSI-X vectors")));
        }
        room.clear_vectors(self.card);
        let descriptors = vectors.iter().map(|fd| fd.try_clone_to_owned().map(Some));
        let descriptors = descriptors.collect::<io::Result<Vec<_>>>()?;
        room.set_vectors(self.card, 0, descriptors);
        Ok(())
    }

    fn reset(&self) -> io::Result<()> {
        let mut room = lock(&self.room);
        room.start_reset(self.card);
        let limit = room.now() + PATIENCE;
        let done = room.run_until(limit, |room| {
            room.attend();
            !room.is_resetting(self.card)
        });
        match done.map_err(failed)? {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::TimedOut, "the card does not finish its reset")),
        }
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0x10_0000..=0xfedf_ffff, 0xfef0_0000..=0xff_ffff_ffff]
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(lock(&self.room).now() / PICOSECONDS)
    }

    fn relax(&self, _turn: u32) {
        if let Err(error) = pass(&mut lock(&self.room)) {
            // The next register read says so, too.
            tracing::error!(%error, "the simulation stopped");
        }
    }

    fn wait(&self, fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
        let end = timeout.map(|timeout| self.now() + timeout);
        loop {
            if host::backend::readable(fd, Some(Duration::ZERO))? {
                return Ok(true);
            }
            if end.is_some_and(|end| self.now() >= end) {
                return Ok(false);
            }
            let mut room = lock(&self.room);
            if end.is_none() && room.next_event().is_none() {
                return Err(io::Error::other("nothing will ever happen in the simulated room"));
            }
            pass(&mut room).map_err(failed)?;
        }
    }
}
