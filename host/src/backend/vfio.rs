//! A card behind the kernel's VFIO: type1 group and container.
//!
//! ```text
//! driver > mapped BAR pages (volatile accesses) > card
//!        > ioctls on /dev/vfio/vfio and /dev/vfio/GROUP (DMA maps, MSI-X, reset)
//! ```
//!
//! In: the calls of [`Backend`]. Out: uncached loads and stores, ioctls. A BAR must be mappable: emulated accesses
//! would tear an 8-byte doorbell. IO addresses come from the ranges that the kernel reports (reserved windows such
//! as MSI's left out). When the card is let go of, memory of ones takes the BARs' place, each in one step, so that no
//! thread's store goes astray, and every descriptor is closed, for which the kernel's removal waits. Type1 first: Debian's
//! kernels carry neither iommufd nor no-IOMMU mode.

use super::{Backend, Bar, MappedBar, Memory, released};
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock};
use vfio_bindings::bindings::vfio as vfio_sys;
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError, VfioOps};
use vmm_sys_util::eventfd::EventFd;

/// VFIO_DEVICE_RESET and VFIO_IOMMU_GET_INFO: `_IO(';', 100 + 11)` and `_IO(';', 100 + 12)`.
const DEVICE_RESET: libc::c_ulong = 0x3b6f;
const IOMMU_GET_INFO: libc::c_ulong = 0x3b70;

/// A PCI function bound to vfio-pci.
pub struct Vfio {
    name: String,
    // dropped in this order: a mapped BAR keeps the device open, an open device its group, which then cannot leave the container
    registers: MmapRaw,
    doorbells: MmapRaw,
    held: RwLock<Option<Held>>,
    ranges: Vec<RangeInclusive<u64>>,
}

struct Held {
    device: VfioDevice,
    container: Arc<VfioContainer>,
}

impl Held {
    fn config_offset(&self, offset: u64) -> u64 {
        self.device.get_region_offset(vfio_sys::VFIO_PCI_CONFIG_REGION_INDEX) + offset
    }
}

/// Where sysfs keeps the function `address` (domain:bus:device.function).
pub fn sysfs_path(address: &str) -> PathBuf {
    PathBuf::from("/sys/bus/pci/devices").join(address)
}

impl Vfio {
    /// Opens the function at `address` (`0000:01:00.0`), which must be bound to vfio-pci.
    ///
    /// # Errors
    /// No such function, not bound, no permission, or a BAR that cannot be mapped.
    pub fn open(name: &str, address: &str) -> io::Result<Vfio> {
        let path = sysfs_path(address);
        if !path.exists() {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no PCI function {address}")));
        }
        let driver = path.join("driver").read_link().ok();
        if driver.as_deref().and_then(|link| link.file_name()).is_none_or(|name| name != "vfio-pci") {
            return Err(io::Error::other(format!("PCI function {address} is not bound to vfio-pci")));
        }
        let container = Arc::new(VfioContainer::new(None).map_err(refused_open)?);
        let device =
            VfioDevice::new(&path, container.clone() as Arc<dyn VfioOps>, false).map_err(refused_open)?;
        let ranges = iova_ranges(&container)?;
        let registers = map_bar(&device, Bar::Registers)?;
        let doorbells = map_bar(&device, Bar::Doorbells)?;
        let held = RwLock::new(Some(Held { device, container }));
        Ok(Vfio { name: name.to_owned(), registers, doorbells, held, ranges })
    }

    /// What `act` says of the card; `None`: it was let go of.
    fn held<T>(&self, act: impl FnOnce(&Held) -> io::Result<T>) -> Option<io::Result<T>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(act)
    }

    fn bar(&self, bar: Bar) -> &MmapRaw {
        match bar {
            Bar::Registers => &self.registers,
            Bar::Doorbells => &self.doorbells,
        }
    }

    fn at(&self, bar: Bar, offset: u64, size: usize) -> io::Result<*mut u8> {
        let map = self.bar(bar);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if offset.checked_add(size).is_none_or(|end| end > map.len()) || !offset.is_multiple_of(size) {
            return Err(io::Error::other(format!(
                "{size} bytes at {offset:#x} are outside of BAR{}",
                bar as u32
            )));
        }
        Ok(map.as_mut_ptr().wrapping_add(offset))
    }
}

/// Puts memory of ones in the place of a mapped BAR, in one step. The device is no longer held by it.
fn cover(bar: &MmapRaw) -> io::Result<()> {
    use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping at an address of the kernel's choice, which nobody else knows
    let ones = unsafe { mmap_anonymous(std::ptr::null_mut(), bar.len(), protection, MapFlags::PRIVATE) }?;
    // SAFETY: the whole of that mapping, which then moves to where the BAR was, as long as that and as writable: who has an
    // address there finds memory there, until the BAR's owner unmaps it
    unsafe {
        ones.cast::<u8>().write_bytes(u8::MAX, bar.len());
        mremap_fixed(ones, bar.len(), bar.len(), MremapFlags::MAYMOVE, bar.as_mut_ptr().cast())?;
    }
    Ok(())
}

/// The eventfd as the crate wants it.
fn eventfd(fd: BorrowedFd<'_>) -> io::Result<EventFd> {
    let fd = fd.try_clone_to_owned()?.into_raw_fd();
    // SAFETY: `fd` is an eventfd that nobody else owns
    Ok(unsafe { EventFd::from_raw_fd(fd) })
}

/// The device's descriptor as a file that is not closed here.
fn device_file(device: &VfioDevice) -> ManuallyDrop<File> {
    // SAFETY: the descriptor is open as long as the borrow of the device, and ManuallyDrop keeps it open
    ManuallyDrop::new(unsafe { File::from_raw_fd(device.as_raw_fd()) })
}

fn map_bar(device: &VfioDevice, bar: Bar) -> io::Result<MmapRaw> {
    let index = bar as u32;
    let flags = device.get_region_flags(index);
    let size = device.get_region_size(index);
    if flags & vfio_sys::VFIO_REGION_INFO_FLAG_MMAP == 0 || size == 0 {
        return Err(io::Error::other(format!("BAR{index} ({size} bytes) cannot be mapped")));
    }
    MmapOptions::new()
        .offset(device.get_region_offset(index))
        .len(usize::try_from(size).map_err(io::Error::other)?)
        .map_raw(&*device_file(device))
}

fn iova_ranges(container: &VfioContainer) -> io::Result<Vec<RangeInclusive<u64>>> {
    let mut info = vec![0u8; 4096];
    let size = info.len() as u32;
    info[..4].copy_from_slice(&size.to_ne_bytes());
    // SAFETY: the kernel writes at most argsz (the first word, the buffer's length) bytes
    let result = unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_GET_INFO as _, info.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(parse_iova_ranges(&info))
}

/// Why a group or its container was refused, where the kernel's word is no explanation.
fn refused_open(error: VfioError) -> io::Error {
    match error {
        VfioError::VfioExtension | VfioError::VfioType1V2 => {
            io::Error::other("the kernel's VFIO knows no type 1 IOMMU (modprobe vfio_iommu_type1)")
        }
        VfioError::GroupViable => io::Error::other(
            "other functions of its IOMMU group belong to the kernel; bind them to vfio-pci too, or use another slot",
        ),
        VfioError::OpenGroup(error, group) if error.raw_os_error() == Some(libc::EBUSY) => {
            io::Error::new(error.kind(), format!("another process holds it (/dev/vfio/{group} is busy)"))
        }
        other => io::Error::other(other),
    }
}

/// How many bytes this process may lock (RLIMIT_MEMLOCK); `None`: any number.
pub fn memlock() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    const IPC_LOCK: u64 = 1 << 14;
    if effective & IPC_LOCK != 0 {
        return None;
    }
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// Why the kernel did not map memory, and what to do: `limit` is [`memlock`]'s.
fn refused_map(errno: i32, limit: Option<u64>, length: u64) -> io::Error {
    match (errno, limit) {
        (libc::ENOMEM, Some(limit)) => io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!(
                "the limit of locked memory, RLIMIT_MEMLOCK, is {limit} bytes, and {length} more exceed it; raise it \
                 (`ulimit -l`, limits.conf, or LimitMEMLOCK= of a service)"
            ),
        ),
        (libc::ENOSPC, _) => io::Error::new(
            io::ErrorKind::OutOfMemory,
            "the kernel keeps no more mappings for this card; register fewer and larger regions, or raise \
             dma_entry_limit of vfio_iommu_type1",
        ),
        (errno, _) => io::Error::from_raw_os_error(errno),
    }
}

/// The IOVA ranges capability of a `vfio_iommu_type1_info` with its capability chain. Without one (kernels before
/// 5.4): 39 bits, the least that any IOMMU of the day offers, without the interrupt window. The first MiB is left
/// out so that no IO address is small enough to look like an offset.
fn parse_iova_ranges(info: &[u8]) -> Vec<RangeInclusive<u64>> {
    let word = |at: usize| info.get(at..).and_then(|rest| rest.first_chunk()).map(|b| u32::from_ne_bytes(*b));
    let long = |at: usize| info.get(at..).and_then(|rest| rest.first_chunk()).map(|b| u64::from_ne_bytes(*b));
    const HAS_CAPABILITIES: u32 = 1 << 1;
    const IOVA_RANGE: u32 = 1;
    const LOWEST: u64 = 0x10_0000;
    let mut ranges = Vec::new();
    let mut at = match (word(4), word(16)) {
        (Some(flags), Some(offset)) if flags & HAS_CAPABILITIES != 0 => offset as usize,
        _ => 0,
    };
    while at != 0 {
        let (Some(head), Some(next)) = (word(at), word(at + 4)) else { break };
        if head & 0xffff == IOVA_RANGE {
            for i in 0..word(at + 8).unwrap_or(0) as usize {
                let (Some(start), Some(end)) = (long(at + 16 + 16 * i), long(at + 24 + 16 * i)) else {
                    break;
                };
                if end > LOWEST {
                    ranges.push(start.max(LOWEST)..=end);
                }
            }
        }
        // a chain only goes forward
        at = if next as usize > at { next as usize } else { 0 };
    }
    if ranges.is_empty() {
        ranges = vec![LOWEST..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff];
    }
    ranges
}

impl Backend for Vfio {
    fn name(&self) -> &str {
        &self.name
    }

    fn read32(&self, bar: Bar, offset: u64) -> io::Result<u32> {
        let at = self.at(bar, offset, 4)?.cast::<u32>();
        // SAFETY: `at` lies aligned within the BAR's mapping, which lives as long as self
        Ok(u32::from_le(unsafe { at.read_volatile() }))
    }

    fn read64(&self, bar: Bar, offset: u64) -> io::Result<u64> {
        let at = self.at(bar, offset, 8)?.cast::<u64>();
        // SAFETY: `at` lies aligned within the BAR's mapping, which lives as long as self
        Ok(u64::from_le(unsafe { at.read_volatile() }))
    }

    fn write32(&self, bar: Bar, offset: u64, value: u32) -> io::Result<()> {
        let at = self.at(bar, offset, 4)?.cast::<u32>();
        // SAFETY: `at` lies aligned within the BAR's mapping, which lives as long as self
        unsafe { at.write_volatile(value.to_le()) };
        Ok(())
    }

    fn write64(&self, bar: Bar, offset: u64, value: u64) -> io::Result<()> {
        let at = self.at(bar, offset, 8)?.cast::<u64>();
        // SAFETY: `at` lies aligned within the BAR's mapping, which lives as long as self
        unsafe { at.write_volatile(value.to_le()) };
        Ok(())
    }

    fn mapped(&self, bar: Bar) -> Option<MappedBar> {
        let map = self.bar(bar);
        // SAFETY: whole pages, mapped for writing as long as self lives
        NonNull::new(map.as_mut_ptr()).map(|first| unsafe { MappedBar::new(first, map.len()) })
    }

    fn config_read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let read = |held: &Held| device_file(&held.device).read_exact_at(data, held.config_offset(offset));
        match self.held(read) {
            Some(read) => read,
            None => {
                data.fill(u8::MAX);
                Ok(())
            }
        }
    }

    fn config_write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.held(|held| device_file(&held.device).write_all_at(data, held.config_offset(offset)))
            .unwrap_or(Ok(()))
    }

    unsafe fn map(&self, iova: u64, memory: &Memory<'_>) -> io::Result<()> {
        let length = usize::try_from(memory.length).map_err(io::Error::other)?;
        let map = |held: &Held| {
            // SAFETY: the caller keeps the memory mapped, and used through raw pointers only, until unmap
            unsafe { held.container.vfio_dma_map(iova, length, memory.address) }.map_err(
                |error| match error {
                    VfioError::IommuDmaMap(error) => refused_map(error.errno(), memlock(), memory.length),
                    other => io::Error::other(other),
                },
            )
        };
        self.held(map).unwrap_or_else(released)
    }

    fn unmap(&self, iova: u64, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        self.held(|held| held.container.vfio_dma_unmap(iova, length).map_err(io::Error::other))
            .unwrap_or(Ok(()))
    }

    fn set_irqs(&self, vectors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let owned = vectors.iter().map(|fd| eventfd(*fd)).collect::<io::Result<Vec<_>>>()?;
        let connect = |held: &Held| {
            let connected = match owned.is_empty() {
                true => held.device.disable_msix(),
                false => held.device.enable_msix(owned.iter().collect()),
            };
            connected.map_err(io::Error::other)
        };
        self.held(connect).unwrap_or_else(released)
    }

    fn set_request(&self, request: BorrowedFd<'_>) -> io::Result<bool> {
        let request = eventfd(request)?;
        let index = vfio_sys::VFIO_PCI_REQ_IRQ_INDEX;
        let listen = |held: &Held| match held.device.get_irq_info(index) {
            Some(kind) if kind.count > 0 => {
                held.device.enable_irq(index, vec![&request]).map(|()| true).map_err(io::Error::other)
            }
            _ => Ok(false),
        };
        self.held(listen).unwrap_or_else(released)
    }

    fn release(&self) {
        // kept to the end: who unmaps memory meanwhile must not have it before
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let Some(Held { device, container }) = held.take() else { return };
        // the mapped BARs keep the device open: the kernel does not go on, and sysfs, where the crate looks for the group,
        // stays. That the group cannot leave its container yet is no harm: both are closed below
        drop(device);
        for bar in [&self.registers, &self.doorbells] {
            if let Err(error) = cover(bar) {
                tracing::error!(%error, name = self.name, "a BAR stays mapped; end the program");
            }
        }
        drop(container);
    }

    fn reset(&self) -> io::Result<()> {
        // SAFETY: the ioctl takes no argument
        let reset = |held: &Held| match unsafe { libc::ioctl(held.device.as_raw_fd(), DEVICE_RESET as _) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        self.held(reset).unwrap_or_else(released)
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.ranges.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(flags: u32, chain: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&4096u32.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&0x1000u64.to_ne_bytes());
        bytes.extend_from_slice(&24u32.to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(chain);
        bytes
    }

    fn capability(id: u16, next: u32, ranges: &[(u64, u64)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&id.to_ne_bytes());
        bytes.extend_from_slice(&1u16.to_ne_bytes());
        bytes.extend_from_slice(&next.to_ne_bytes());
        bytes.extend_from_slice(&(ranges.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        for (start, end) in ranges {
            bytes.extend_from_slice(&start.to_ne_bytes());
            bytes.extend_from_slice(&end.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn the_kernels_iova_ranges_are_taken_from_behind_another_capability() {
        let mut chain = capability(3, 24 + 16, &[]);
        chain.extend(capability(1, 0, &[(0, 0xfedf_ffff), (0xfef0_0000, 0xff_ffff_ffff)]));
        let ranges = parse_iova_ranges(&info(3, &chain));
        assert_eq!(ranges, [0x10_0000..=0xfedf_ffff, 0xfef0_0000..=0xff_ffff_ffff]);
    }

    #[test]
    fn a_kernel_without_the_capability_gets_39_bits_without_the_interrupt_window() {
        let ranges = parse_iova_ranges(&info(1, &[]));
        assert_eq!(ranges, [0x10_0000..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]);
    }

    #[test]
    fn a_cut_or_looping_capability_chain_ends() {
        let looping = capability(1, 24, &[(0x20_0000, 0x2f_ffff)]);
        assert_eq!(parse_iova_ranges(&info(2, &looping)), [0x20_0000..=0x2f_ffff]);
        let mut cut = info(2, &capability(1, 0, &[(0x20_0000, 0x2f_ffff), (0x40_0000, 0x4f_ffff)]));
        cut.truncate(cut.len() - 4);
        assert_eq!(parse_iova_ranges(&cut), [0x20_0000..=0x2f_ffff]);
    }

    #[test]
    fn a_group_that_is_refused_is_explained() {
        let busy = VfioError::OpenGroup(io::Error::from_raw_os_error(libc::EBUSY), "7".to_owned());
        for (error, part) in [
            (busy, "another process holds it (/dev/vfio/7"),
            (VfioError::GroupViable, "bind them to vfio-pci"),
            (VfioError::VfioExtension, "modprobe vfio_iommu_type1"),
        ] {
            let text = refused_open(error).to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn memory_that_may_not_be_locked_is_an_error_that_names_the_limit_and_the_remedy() {
        let text = refused_map(libc::ENOMEM, Some(65_536), 4096).to_string();
        for part in ["RLIMIT_MEMLOCK", "65536 bytes", "4096", "ulimit -l"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // a process that may lock anything has too little memory
        assert_eq!(refused_map(libc::ENOMEM, None, 4096).raw_os_error(), Some(libc::ENOMEM));
        assert!(refused_map(libc::ENOSPC, None, 4096).to_string().contains("dma_entry_limit"));
        assert_eq!(refused_map(libc::EFAULT, Some(0), 4096).raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn a_function_that_does_not_exist_is_named() {
        let error = Vfio::open("vfio:ffff:ff:1f.7", "ffff:ff:1f.7").err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("no PCI function ffff:ff:1f.7"));
    }
}
