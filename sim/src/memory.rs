//! The memory behind a card's DMA mappings: this process's, a shared file's, or another process's.
//!
//! In: offsets and bytes from the IOMMU of `pcie-sim`. Out: bytes, or a [`Fault`] when the owner is gone. A write is
//! stored in rising order and its last aligned eight bytes after all others (release), because a ring entry is valid
//! by its last byte. Never: a panic, or a signal because a file shrank (only files sealed against that are mapped).

use pcie_sim::{Access, Backing, Fault};
use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt, unix::fs::MetadataExt},
    ptr::NonNull,
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
};

fn outside(offset: u64, access: Access) -> Fault {
    Fault::Backing { offset, access, reason: "beyond the end of the memory".into() }
}

/// Copies out of memory that others write at the same time.
///
/// # Safety
/// `from..from + into.len()` is mapped and readable.
unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
    let mut done = 0;
    while done < into.len() {
        // SAFETY: inside the range that the caller vouches for.
        let at = unsafe { from.add(done) };
        if (at as usize).is_multiple_of(8) && into.len() - done >= 8 {
            // SAFETY: aligned, eight bytes inside the range; atomic, so a concurrent writer is no data race.
            let word = unsafe { (*at.cast::<AtomicU64>()).load(Ordering::Acquire) };
            into[done..done + 8].copy_from_slice(&word.to_ne_bytes());
            done += 8;
        } else {
            // SAFETY: as above, one byte.
            into[done] = unsafe { (*at.cast::<AtomicU8>()).load(Ordering::Acquire) };
            done += 1;
        }
    }
}

/// Copies into memory that others read at the same time, in rising order, each piece released after those before.
///
/// # Safety
/// `to..to + from.len()` is mapped and writable.
unsafe fn copy_in(to: *mut u8, from: &[u8]) {
    let mut done = 0;
    while done < from.len() {
        // SAFETY: inside the range that the caller vouches for.
        let at = unsafe { to.add(done) };
        match from[done..].first_chunk() {
            Some(word) if (at as usize).is_multiple_of(8) => {
                // SAFETY: aligned, eight bytes inside the range.
                unsafe { (*at.cast::<AtomicU64>()).store(u64::from_ne_bytes(*word), Ordering::Release) };
                done += 8;
            }
            _ => {
                // SAFETY: as above, one byte.
                unsafe { (*at.cast::<AtomicU8>()).store(from[done], Ordering::Release) };
                done += 1;
            }
        }
    }
}

/// A range of this process's memory.
#[derive(Debug)]
pub struct ProcessMemory {
    base: NonNull<u8>,
    length: u64,
}

// SAFETY: the range is accessed by atomics only, and `new`'s caller vouches that it stays mapped.
unsafe impl Send for ProcessMemory {}
// SAFETY: as above.
unsafe impl Sync for ProcessMemory {}

impl ProcessMemory {
    /// `length` bytes from `base` on.
    ///
    /// # Safety
    /// The range stays mapped, readable and writable, until this value is dropped, and is used by nobody through
    /// references meanwhile.
    pub unsafe fn new(base: NonNull<u8>, length: u64) -> Self {
        Self { base, length }
    }

    fn at(&self, offset: u64, bytes: usize, access: Access) -> Result<*mut u8, Fault> {
        let end = offset.checked_add(bytes as u64).filter(|end| *end <= self.length);
        end.ok_or_else(|| outside(offset, access))?;
        Ok(self.base.as_ptr().wrapping_add(offset as usize))
    }
}

impl Backing for ProcessMemory {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        let from = self.at(offset, into.len(), Access::Read)?;
        // SAFETY: `at` checked the range, `new`'s caller vouches for it.
        unsafe { copy_out(from, into) };
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let to = self.at(offset, bytes.len(), Access::Write)?;
        // SAFETY: as in `read`.
        unsafe { copy_in(to, bytes) };
        Ok(())
    }
}

/// A whole shared file, mapped.
#[derive(Debug)]
pub struct MappedFile {
    memory: ProcessMemory,
    file: (u64, u64),
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `FileMaps::backing` and is not used after this.
        unsafe { libc::munmap(self.memory.base.as_ptr().cast(), self.memory.length as usize) };
    }
}

impl Backing for MappedFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.memory.read(offset, into)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.memory.write(offset, bytes)
    }
}

/// A file read and written by system calls: another process's memory (`/proc/PID/mem`), or a file that could shrink.
/// When that process is dead its memory answers nothing, and the access faults.
#[derive(Debug)]
pub struct FileMemory(pub File);

impl Backing for FileMemory {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.0.read_exact_at(into, offset).map_err(|error| refused(offset, Access::Read, &error))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let end = offset + bytes.len() as u64;
        // The kernel's copy promises no order inside one call: the last word goes by a call of its own.
        let last = (end.saturating_sub(1) & !7).max(offset);
        let (head, tail) = bytes.split_at((last - offset) as usize);
        self.0
            .write_all_at(head, offset)
            .and_then(|()| self.0.write_all_at(tail, last))
            .map_err(|error| refused(offset, Access::Write, &error))
    }
}

fn refused(offset: u64, access: Access, error: &io::Error) -> Fault {
    let reason = match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero => "its owner is gone".into(),
        _ => error.to_string(),
    };
    Fault::Backing { offset, access, reason }
}

/// Files that clients hand over for DMA, each mapped once however many ranges of it are named.
#[derive(Debug, Default)]
pub struct FileMaps(Vec<Weak<MappedFile>>);

impl FileMaps {
    /// The memory of `file`: mapped if it is a memfd that cannot shrink, else by system calls.
    ///
    /// # Errors
    /// The file cannot be looked at, or is shorter than `end` bytes although it has a length.
    pub fn backing(&mut self, file: File, end: u64) -> io::Result<Box<dyn Backing>> {
        // SAFETY: fcntl with F_GET_SEALS takes no pointer.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Ok(Box::new(FileMemory(file)));
        }
        self.0.retain(|map| map.strong_count() > 0);
        let status = file.metadata()?;
        let id = (status.dev(), status.ino());
        let known = self.0.iter().filter_map(Weak::upgrade).find(|map| map.file == id);
        if let Some(map) = known.filter(|map| map.memory.length >= end) {
            return Ok(Box::new(map));
        }
        let length = status.len();
        if length < end || length == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the range ends at byte {end}, its file at {length}; make the file longer first"),
            ));
        }
        // SAFETY: a fresh shared mapping of a file of that length which cannot shrink; nothing else is touched.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        let base = match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => base,
            _ => return Err(io::Error::last_os_error()),
        };
        // SAFETY: mapped until `MappedFile` is dropped; accessed through it alone.
        let memory = unsafe { ProcessMemory::new(base, length) };
        let map = Arc::new(MappedFile { memory, file: id });
        self.0.push(Arc::downgrade(&map));
        Ok(Box::new(map))
    }
}

/// A backing behind a pointer, for [`pcie_sim::Iommu::map`].
pub struct Boxed(pub Box<dyn Backing>);

impl Backing for Boxed {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.0.read(offset, into)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.0.write(offset, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    fn memfd(bytes: u64, seals: i32) -> File {
        // SAFETY: a constant name; the descriptor is owned by the File.
        let file =
            unsafe { File::from_raw_fd(libc::memfd_create(c"memory".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        file.set_len(bytes).unwrap();
        // SAFETY: F_ADD_SEALS takes no pointer.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
        file
    }

    #[test]
    fn a_sealed_file_is_mapped_once_and_any_other_file_is_called() {
        let mut maps = FileMaps::default();
        let file = memfd(8192, libc::F_SEAL_SHRINK);
        let one = maps.backing(file.try_clone().unwrap(), 4096).unwrap();
        let two = maps.backing(file.try_clone().unwrap(), 8192).unwrap();
        assert_eq!(maps.0.len(), 1);
        one.write(4090, &[7; 20]).unwrap();
        let mut back = [0; 20];
        two.read(4090, &mut back).unwrap();
        assert_eq!(back, [7; 20]);
        assert!(two.read(8190, &mut [0; 3]).is_err());
        assert!(maps.backing(file, 8193).is_err());
        let loose = memfd(4096, 0);
        let backing = maps.backing(loose.try_clone().unwrap(), 4096).unwrap();
        backing.write(1, &[1, 2, 3]).unwrap();
        loose.set_len(0).unwrap();
        assert!(matches!(backing.read(1, &mut [0; 3]), Err(Fault::Backing { .. })));
        drop((one, two));
        maps.backing(memfd(4096, libc::F_SEAL_SHRINK), 4096).unwrap();
        assert_eq!(maps.0.len(), 1);
    }

    #[test]
    fn every_alignment_and_length_arrives_whole() {
        let mut memory = vec![0u64; 16];
        let base = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: `memory` outlives the value and is not touched meanwhile.
        let memory = unsafe { ProcessMemory::new(base, 128) };
        for offset in 0..16 {
            for length in 0..=40 {
                let bytes: Vec<u8> = (0..length).map(|i| (i * 3 + offset) as u8 ^ 0x55).collect();
                memory.write(offset, &bytes).unwrap();
                let mut back = vec![0; length as usize];
                memory.read(offset, &mut back).unwrap();
                assert_eq!(back, bytes);
            }
        }
        assert!(memory.write(120, &[0; 9]).is_err());
        assert!(memory.read(u64::MAX, &mut [0; 2]).is_err());
    }

    #[test]
    fn a_dead_process_answers_nothing() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let file = File::options().read(true).write(true).open(format!("/proc/{}/mem", child.id())).unwrap();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let base = u64::from_str_radix(stack.split('-').next().unwrap(), 16).unwrap();
        let memory = FileMaps::default().backing(file, u64::MAX).unwrap();
        assert!(memory.read(base, &mut [0; 8]).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(memory.read(base, &mut [0; 8]), Err(Fault::Backing { .. })));
        assert!(matches!(memory.write(base, &[0; 16]), Err(Fault::Backing { .. })));
    }
}
