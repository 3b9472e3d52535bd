//! A card behind a vfio-user socket: the simulation in another process.
//!
//! ```text
//! driver > message {id, command, size, flags} + body (+ descriptor) > socket > server > reply with the same id
//! ```
//!
//! In: the calls of [`Backend`]. Out: vfio-user 0.x messages, one at a time. A register write carries the no-reply flag, so a
//! doorbell costs one `sendmsg` and is posted like on PCI Express; a refusal of such a write arrives later under its
//! id and is logged. Every wait for the server is bounded. Memory that the server cannot map is named by this
//! process's own `/proc/self/mem` with offset = virtual address, which the server reads and writes; the memory of a
//! dead process then answers nothing, as an IOMMU would.
//!
//! Why not the client of the crate `vfio_user` (0.1.7): it ignores error replies, so a refused DMA map would look
//! like success; a refused read leaves it waiting for data for ever; it has no time bound and no posted write. Its
//! server is the test's other end.

use super::{Backend, Bar, Memory, released};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest wait for the server's answer.
const ANSWER: Duration = Duration::from_secs(20);
/// Longest reply body that is believed.
const LONGEST: usize = 1 << 20;
const HEADER: usize = 16;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;
/// Region index of configuration space (VFIO_PCI_CONFIG_REGION_INDEX).
const CONFIG_REGION: u32 = 7;
/// Interrupt index of MSI-X (VFIO_PCI_MSIX_IRQ_INDEX).
const MSIX: u32 = 2;
/// Of the request for the card (VFIO_PCI_REQ_IRQ_INDEX).
const REQUEST: u32 = 4;
/// VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER.
const SET_EVENTFD: u32 = 1 << 2 | 1 << 5;
/// VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER.
const SET_NONE: u32 = 1 << 0 | 1 << 5;

/// Of an unmap: everything, whatever range it names.
const UNMAP_ALL: u32 = 1 << 2;

#[derive(Clone, Copy, Debug)]
#[repr(u16)]
enum Command {
    Version = 1,
    DmaMap = 2,
    DmaUnmap = 3,
    DeviceInfo = 4,
    IrqInfo = 7,
    SetIrqs = 8,
    RegionRead = 9,
    RegionWrite = 10,
    Reset = 13,
}

/// A connection to one simulated card.
#[derive(Debug)]
pub struct VfioUser {
    name: String,
    link: Mutex<Link>,
    memory: File,
    vectors: u32,
    irq_kinds: u32,
}

#[derive(Debug)]
struct Link {
    stream: UnixStream,
    next_id: u16,
    /// The card was let go of.
    released: bool,
    /// A reply was cut or did not come: nothing later on the stream can be trusted.
    broken: bool,
}

/// A message body from little-endian parts; the protocol uses host order, and both ends are one host.
macro_rules! body {
    ($($part:expr),* $(,)?) => {{
        let mut bytes = Vec::with_capacity(32);
        $(bytes.extend_from_slice(&($part).to_ne_bytes());)*
        bytes
    }};
}

impl Link {
    fn send(&mut self, command: Command, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<u16> {
        if self.released {
            return released();
        }
        if self.broken {
            return Err(io::Error::other("the connection broke earlier; open the card again"));
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let size = (HEADER + body.len()) as u32;
        let mut message = body!(id, command as u16, size, flags, 0u32);
        message.extend_from_slice(body);
        let mut sent = 0;
        while sent < message.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            // descriptors travel with the first byte
            if sent == 0 && !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(io::Error::other("too many descriptors for one message"));
            }
            let rest = &message[sent..];
            match sendmsg(&self.stream, &[IoSlice::new(rest)], &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    self.broken = true;
                    return Err(error.into());
                }
            }
        }
        Ok(id)
    }

    /// The body of the reply to `id`; replies to posted writes before it are refusals and are logged.
    fn receive(&mut self, id: u16) -> io::Result<Vec<u8>> {
        let result = self.receive_raw(id);
        match result {
            Ok(outcome) => outcome,
            Err(error) => {
                self.broken = true;
                Err(match error.kind() {
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => io::Error::new(
                        error.kind(),
                        "the simulator closed the connection (it ended, or another process holds the card)",
                    ),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!(
                            "no answer within {} s (does another process hold the card?)",
                            ANSWER.as_secs()
                        ),
                    ),
                    _ => error,
                })
            }
        }
    }

    fn receive_raw(&mut self, id: u16) -> io::Result<io::Result<Vec<u8>>> {
        loop {
            let mut header = [0; HEADER];
            self.stream.read_exact(&mut header)?;
            let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
            let word =
                |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let (length, flags, errno) = (word(4) as usize, word(8), word(12));
            if !(HEADER..=LONGEST).contains(&length) || flags & 0xf != REPLY {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "malformed vfio-user reply"));
            }
            let mut body = vec![0; length - HEADER];
            self.stream.read_exact(&mut body)?;
            let refusal = (flags & ERROR != 0).then(|| {
                let text = String::from_utf8_lossy(&body).trim_end_matches('\0').trim().to_owned();
                match (errno, text.is_empty()) {
                    // a server that says why is quoted
                    (_, false) => io::Error::other(text),
                    (0, _) => io::Error::other("refused by the simulator"),
                    (errno, _) => io::Error::from_raw_os_error(errno as i32),
                }
            });
            if half(0) != id {
                match refusal {
                    Some(error) => tracing::warn!(%error, "the simulator refused an earlier posted write"),
                    None => tracing::warn!("the simulator answered a posted write"),
                }
                continue;
            }
            return Ok(match refusal {
                Some(error) => Err(error),
                None => Ok(body),
            });
        }
    }
}

fn word(body: &[u8], at: usize) -> io::Result<u32> {
    body.get(at..)
        .and_then(|rest| rest.first_chunk())
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "short vfio-user reply"))
}

impl VfioUser {
    /// Connects to the server at `path` and agrees on the version.
    ///
    /// # Errors
    /// No server, one that refuses (its words are quoted), or one that is no PCI device with three BARs.
    pub fn connect(name: &str, path: &Path) -> io::Result<VfioUser> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
        let mut link = Link { stream, next_id: 0, released: false, broken: false };
        let mut hello = body!(0u16, 1u16);
        let capabilities =
            serde_json::json!({"capabilities": {"max_msg_fds": 1, "max_data_xfer_size": LONGEST}});
        hello.extend_from_slice(capabilities.to_string().as_bytes());
        hello.push(0);
        let id = link.send(Command::Version, 0, &hello, &[])?;
        let reply = link.receive(id)?;
        if word(&reply, 0)? & 0xffff != 0 {
            return Err(io::Error::other("the server speaks another major version of vfio-user"));
        }
        let mut card =
            VfioUser { name: name.to_owned(), link: Mutex::new(link), memory, vectors: 0, irq_kinds: 0 };
        let info = card.ask(Command::DeviceInfo, &body!(16u32, 0u32, 0u32, 0u32), &[])?;
        let (regions, irqs) = (word(&info, 8)?, word(&info, 12)?);
        if regions <= CONFIG_REGION || irqs <= MSIX {
            return Err(io::Error::other(format!(
                "no PCI device: {regions} regions, {irqs} interrupt kinds"
            )));
        }
        let irq = card.ask(Command::IrqInfo, &body!(16u32, 0u32, MSIX, 0u32), &[])?;
        card.vectors = word(&irq, 12)?;
        card.irq_kinds = irqs;
        Ok(card)
    }

    fn ask(&self, command: Command, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<Vec<u8>> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let id = link.send(command, 0, body, fds)?;
        link.receive(id)
    }

    fn read<const N: usize>(&self, region: u32, offset: u64) -> io::Result<[u8; N]> {
        let mut data = [0; N];
        self.read_into(region, offset, &mut data)?;
        Ok(data)
    }

    fn read_into(&self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let reply = match self.ask(Command::RegionRead, &body!(offset, region, data.len() as u32), &[]) {
            Err(error) if is_released(&error) => {
                data.fill(u8::MAX);
                return Ok(());
            }
            reply => reply?,
        };
        match reply.get(16..).filter(|rest| rest.len() == data.len()) {
            Some(bytes) => data.copy_from_slice(bytes),
            None => return Err(io::Error::new(io::ErrorKind::InvalidData, "short vfio-user read")),
        }
        Ok(())
    }

    fn post(&self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut body = body!(offset, region, data.len() as u32);
        body.extend_from_slice(data);
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        or_nothing(link.send(Command::RegionWrite, NO_REPLY, &body, &[]))
    }
}

/// What [`released`] says; a broken connection is another kind.
fn is_released(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotConnected
}

/// What means nothing on a card that was let go of succeeds there.
fn or_nothing<T>(result: io::Result<T>) -> io::Result<()> {
    match result {
        Err(error) if !is_released(&error) => Err(error),
        _ => Ok(()),
    }
}

impl Backend for VfioUser {
    fn name(&self) -> &str {
        &self.name
    }

    fn read32(&self, bar: Bar, offset: u64) -> io::Result<u32> {
        self.read(bar as u32, offset).map(u32::from_le_bytes)
    }

    fn read64(&self, bar: Bar, offset: u64) -> io::Result<u64> {
        self.read(bar as u32, offset).map(u64::from_le_bytes)
    }

    fn write32(&self, bar: Bar, offset: u64, value: u32) -> io::Result<()> {
        self.post(bar as u32, offset, &value.to_le_bytes())
    }

    fn write64(&self, bar: Bar, offset: u64, value: u64) -> io::Result<()> {
        self.post(bar as u32, offset, &value.to_le_bytes())
    }

    fn copy(&self, bar: Bar, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // pieces as a CPU's write-combining buffers make them
        bytes
            .chunks(64)
            .enumerate()
            .try_for_each(|(i, piece)| self.post(bar as u32, offset + 64 * i as u64, piece))
    }

    fn config_read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.read_into(CONFIG_REGION, offset, data)
    }

    fn config_write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut body = body!(offset, CONFIG_REGION, data.len() as u32);
        body.extend_from_slice(data);
        or_nothing(self.ask(Command::RegionWrite, &body, &[]))
    }

    unsafe fn map(&self, iova: u64, memory: &Memory<'_>) -> io::Result<()> {
        let (fd, offset) = memory.file.unwrap_or((self.memory.as_fd(), memory.address as u64));
        const READ_WRITE: u32 = 3;
        let body = body!(32u32, READ_WRITE, offset, iova, memory.length);
        self.ask(Command::DmaMap, &body, &[fd]).map(drop)
    }

    fn unmap(&self, iova: u64, length: u64) -> io::Result<()> {
        or_nothing(self.ask(Command::DmaUnmap, &body!(24u32, 0u32, iova, length), &[]))
    }

    fn set_irqs(&self, vectors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if vectors.is_empty() {
            return self.ask(Command::SetIrqs, &body!(20u32, SET_NONE, MSIX, 0u32, 0u32), &[]).map(drop);
        }
        if vectors.len() > self.vectors as usize {
            return Err(io::Error::other(format!("the card has {} MSI-X vectors", self.vectors)));
        }
        // one descriptor per message: what every server takes (max_msg_fds is 1 unless agreed otherwise)
        for (vector, fd) in vectors.iter().enumerate() {
            let body = body!(20u32, SET_EVENTFD, MSIX, vector as u32, 1u32);
            self.ask(Command::SetIrqs, &body, &[*fd])?;
        }
        Ok(())
    }

    fn set_request(&self, request: BorrowedFd<'_>) -> io::Result<bool> {
        if self.irq_kinds <= REQUEST {
            return Ok(false);
        }
        let info = self.ask(Command::IrqInfo, &body!(16u32, 0u32, REQUEST, 0u32), &[])?;
        if word(&info, 12)? == 0 {
            return Ok(false);
        }
        self.ask(Command::SetIrqs, &body!(20u32, SET_EVENTFD, REQUEST, 0u32, 1u32), &[request]).map(|_| true)
    }

    fn release(&self) {
        // an answer says that the server reaches no memory any more; without one the end of the connection has to do
        let unmapped = self
            .ask(Command::Reset, &[], &[])
            .and_then(|_| self.ask(Command::DmaUnmap, &body!(24u32, UNMAP_ALL, 0u64, 0u64), &[]));
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.released {
            return;
        }
        link.released = true;
        if let Err(error) = unmapped.and(link.stream.shutdown(std::net::Shutdown::Both)) {
            tracing::warn!(%error, name = self.name, "the simulator did not see the card let go of");
        }
    }

    fn reset(&self) -> io::Result<()> {
        self.ask(Command::Reset, &[], &[]).map(drop)
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        // the protocol has no query: 40 bits, without the first MiB and without the interrupt window of PCs
        vec![0x10_0000..=0xfedf_ffff, 0xfef0_0000..=0xff_ffff_ffff]
    }
}
