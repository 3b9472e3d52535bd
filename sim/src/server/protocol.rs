//! The vfio-user protocol at one socket: messages in, requests to the room, replies out.
//!
//! Why not the server of the crate `vfio_user` (0.1.7): it takes one connection from its listener and leaves others
//! waiting, so a second client could not be told who holds the card; it answers failures with the number 0, which
//! clients take for success; it cannot say why. The messages are those of the vfio-user specification 0.9 as QEMU and that
//! crate speak them: header {id u16, command u16, size u32, flags u32, error u32}, body, perhaps descriptors.

use super::{
    Holder,
    pace::{Reply, Request},
};
use crate::{card::Card, memory::FileMaps};
use pcie_sim::Permissions;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::{
    fs::File,
    io::{self, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    ops::Range,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Sender},
    },
    time::Duration,
};

const HEADER: usize = 16;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;
/// Longest message and longest transfer.
const LONGEST: usize = 1 << 20;
/// Most descriptors in a message.
const DESCRIPTORS: usize = 16;
/// Longest wait for the room: a read, a map, a reset. Below the 20 s after which our driver gives up; a QEMU needs a
/// longer `x-msg-timeout` than its 5 s. A traced model on a busy machine takes seconds for a reset.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest wait for the first message of a client that is refused.
const REFUSED: Duration = Duration::from_secs(2);
/// Posted writes of one client that may wait for the room; then its protocol thread waits for them.
const POSTED: u32 = 256;
const CONFIG_REGION: u32 = 7;
const REGIONS: u32 = 9;
const IRQ_KINDS: u32 = 5;
const MSIX: u32 = 2;
const REQUEST: u32 = 4;
const CONFIG_BYTES: u64 = 4096;
const VERSION: u16 = 1;
/// BAR registers in configuration space. Where the BARs are is the host's: a client sees a copy of its own.
const BARS: Range<usize> = 0x10..0x28;

/// What a client may ask about without asking the card.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    name: String,
    bars: [u64; 3],
    vectors: u32,
}

impl Shape {
    pub(super) fn of(card: &Card) -> Self {
        let endpoint = &card.config().root.endpoint;
        Self {
            name: card.config().name.clone(),
            bars: [endpoint.register_bytes, endpoint.doorbell_bytes, endpoint.msix_bytes],
            vectors: endpoint.vectors.into(),
        }
    }

    fn region_bytes(&self, region: u32) -> u64 {
        match region {
            0 | 2 | 4 => self.bars[region as usize / 2],
            CONFIG_REGION => CONFIG_BYTES,
            _ => 0,
        }
    }
}

/// The BAR registers as a client wrote them.
struct BarRegisters {
    value: [u8; BARS.end - BARS.start],
    writable: [u8; BARS.end - BARS.start],
}

impl Shape {
    /// As they are when nobody has placed the BARs: 64-bit memory, the doorbells prefetchable.
    fn bar_registers(&self) -> BarRegisters {
        let mut registers =
            BarRegisters { value: [0; BARS.end - BARS.start], writable: [0; BARS.end - BARS.start] };
        for (i, (bytes, kind)) in self.bars.iter().zip([0b0100, 0b1100, 0b0100]).enumerate() {
            registers.value[i * 8] = kind;
            registers.writable[i * 8..i * 8 + 8].copy_from_slice(&(!(bytes - 1)).to_le_bytes());
        }
        registers
    }
}

impl BarRegisters {
    /// Lays the copy over what was read at `offset`.
    fn read(&self, offset: usize, data: &mut [u8]) {
        for (i, byte) in data.iter_mut().enumerate().filter(|(i, _)| BARS.contains(&(offset + i))) {
            *byte = self.value[offset + i - BARS.start];
        }
    }

    /// Keeps what is written at `offset`.
    fn write(&mut self, offset: usize, data: &[u8]) {
        for (i, byte) in data.iter().enumerate().filter(|(i, _)| BARS.contains(&(offset + i))) {
            let at = offset + i - BARS.start;
            self.value[at] = self.value[at] & !self.writable[at] | byte & self.writable[at];
        }
    }
}

/// The door of one card.
pub(super) struct Door {
    pub(super) card: usize,
    pub(super) shape: Shape,
    pub(super) requests: Sender<Request>,
    pub(super) holder: Arc<Holder>,
}

fn peer_pid(stream: &UnixStream) -> i32 {
    rustix::net::sockopt::socket_peercred(stream)
        .map_or(0, |credentials| credentials.pid.as_raw_nonzero().get())
}

impl Door {
    /// Lets clients in, one at a time, until the server stops.
    pub(super) fn keep(self, listener: &UnixListener, stopping: &AtomicBool) {
        let door = Arc::new(self);
        for stream in listener.incoming() {
            if stopping.load(Ordering::Acquire) {
                return;
            }
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, card = door.shape.name, "a client could not be let in");
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            let door = door.clone();
            std::thread::spawn(move || door.serve(stream));
        }
    }

    fn serve(&self, mut stream: UnixStream) {
        let pid = peer_pid(&stream);
        let clone = match stream.try_clone() {
            Ok(clone) => clone,
            Err(error) => {
                tracing::warn!(%error, card = self.shape.name, pid, "a client could not be let in");
                return;
            }
        };
        if let Err(holder) = self.holder.take(pid, clone) {
            tracing::info!(card = self.shape.name, pid, holder, "a second client was refused");
            let _ = stream.set_read_timeout(Some(REFUSED));
            let text =
                format!("{} is held by process {holder}; end it, or use another card", self.shape.name);
            if let Ok(Some(message)) = receive(&mut stream) {
                let _ = refuse(&mut stream, &message, libc::EBUSY, &text);
            }
            return;
        }
        tracing::info!(card = self.shape.name, pid, "client");
        let mut client = Client {
            door: self,
            stream,
            maps: FileMaps::default(),
            bars: self.shape.bar_registers(),
            posted: 0,
        };
        let end = client.converse();
        if let Err(error) = &end {
            tracing::debug!(%error, card = self.shape.name, pid, "the connection broke");
        }
        let (reply, done) = mpsc::channel();
        self.holder.leave();
        if self.requests.send(Request::Leave { card: self.card, reply }).is_ok() {
            // However long it takes: the next client must not meet this one's state.
            let _ = done.recv();
        }
        drop(client);
        tracing::info!(card = self.shape.name, pid, "client gone");
        self.holder.free();
    }
}

struct Message {
    id: u16,
    command: u16,
    flags: u32,
    body: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// The next message; `None` at the end of the stream.
fn receive(stream: &mut UnixStream) -> io::Result<Option<Message>> {
    let mut header = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(&*stream, &mut [IoSliceMut::new(&mut header)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        {
            Ok(got) => break got,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "more descriptors than a message may have"));
    }
    stream.read_exact(&mut header[got.bytes..])?;
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let length = word(4) as usize;
    if !(HEADER..=LONGEST + 64).contains(&length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of impossible length"));
    }
    let mut body = vec![0; length - HEADER];
    stream.read_exact(&mut body)?;
    Ok(Some(Message { id: half(0), command: half(2), flags: word(8), body, descriptors }))
}

fn answer(stream: &mut UnixStream, message: &Message, flags: u32, errno: i32, body: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&message.id.to_ne_bytes());
    bytes.extend_from_slice(&message.command.to_ne_bytes());
    bytes.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend_from_slice(&(REPLY | flags).to_ne_bytes());
    bytes.extend_from_slice(&errno.to_ne_bytes());
    bytes.extend_from_slice(body);
    stream.write_all(&bytes)
}

/// Answers no. The reason follows the header as text at the first message only: later a client may expect a reply of
/// the usual length at most.
fn refuse(stream: &mut UnixStream, message: &Message, errno: i32, text: &str) -> io::Result<()> {
    let text = if message.command == VERSION { text } else { "" };
    answer(stream, message, ERROR, errno, text.as_bytes())
}

/// Little pieces of a body, in host order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk().ok_or_else(|| invalid("the message is too short"))?;
        self.0 = rest;
        Ok(*head)
    }
    fn u32(&mut self) -> io::Result<u32> {
        self.take().map(u32::from_ne_bytes)
    }
    fn u64(&mut self) -> io::Result<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

struct Client<'a> {
    door: &'a Door,
    stream: UnixStream,
    maps: FileMaps,
    bars: BarRegisters,
    /// Writes since the room was last known to have taken all.
    posted: u32,
}

impl Client<'_> {
    fn converse(&mut self) -> io::Result<()> {
        while let Some(mut message) = receive(&mut self.stream)? {
            let descriptors = std::mem::take(&mut message.descriptors);
            let result = self.obey(&message, descriptors);
            match result {
                Ok(_) if message.flags & NO_REPLY != 0 => {}
                Ok(body) => answer(&mut self.stream, &message, 0, 0, &body)?,
                Err(error) => {
                    tracing::debug!(%error, card = self.door.shape.name, command = message.command, "refused");
                    let errno = match error.kind() {
                        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
                        _ => error.raw_os_error().unwrap_or(libc::EINVAL),
                    };
                    if message.flags & NO_REPLY == 0 {
                        refuse(&mut self.stream, &message, errno, &error.to_string())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn tell(&self, request: Request) -> io::Result<()> {
        self.door.requests.send(request).map_err(|_| io::Error::other("the simulation has ended"))
    }

    /// Tells the room of a write; every so often waits until it has taken those before.
    fn post(&mut self, request: Request) -> io::Result<()> {
        self.tell(request)?;
        self.posted += 1;
        if self.posted >= POSTED {
            self.posted = 0;
            self.ask(|reply| Request::Reach { reply })?;
        }
        Ok(())
    }

    fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> io::Result<T> {
        let (reply, answer) = mpsc::channel();
        self.tell(request(reply))?;
        match answer.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "the card does not answer in time"))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(io::Error::other("the simulation has ended")),
        }
    }

    fn obey(&mut self, message: &Message, descriptors: Vec<OwnedFd>) -> io::Result<Vec<u8>> {
        let (card, shape) = (self.door.card, &self.door.shape);
        let mut fields = Fields(&message.body);
        match message.command {
            VERSION => {
                let (major, minor) = (u16::from_ne_bytes(fields.take()?), u16::from_ne_bytes(fields.take()?));
                if major != 0 {
                    return Err(invalid("this server speaks version 0 of vfio-user"));
                }
                // 0.1 at most, and never more than the client: QEMU knows 0.0 and refuses a later one
                let mut body = words(&[u32::from(minor.min(1)) << 16]);
                let text = format!(
                    r#"{{"capabilities":{{"max_msg_fds":{DESCRIPTORS},"max_data_xfer_size":{LONGEST},"migration":{{"pgsize":4096}}}}}}"#
                );
                body.extend_from_slice(text.as_bytes());
                body.push(0);
                Ok(body)
            }
            // DMA_MAP
            2 => {
                let (_, flags) = (fields.u32()?, fields.u32()?);
                let (offset, iova, length) = (fields.u64()?, fields.u64()?, fields.u64()?);
                let end = offset.checked_add(length).ok_or_else(|| invalid("the range leaves the file"))?;
                if length == 0 || iova.checked_add(length - 1).is_none() {
                    return Err(invalid("the range is empty or leaves the address space"));
                }
                let mut descriptors = descriptors.into_iter();
                let (Some(fd), None) = (descriptors.next(), descriptors.next()) else {
                    if message.body.len() == 32 && flags & 3 != 0 {
                        // Memory without a descriptor (a ROM) cannot be reached; it faults like any other hole.
                        return Ok(Vec::new());
                    }
                    return Err(invalid("a DMA mapping has one descriptor"));
                };
                let backing = self.maps.backing(File::from(fd), end)?;
                let permissions = Permissions { read: flags & 1 != 0, write: flags & 2 != 0 };
                self.ask(|reply| Request::Map { card, iova, length, permissions, backing, offset, reply })?;
                Ok(Vec::new())
            }
            // DMA_UNMAP
            3 => {
                let (argsz, flags) = (fields.u32()?, fields.u32()?);
                let (iova, length) = (fields.u64()?, fields.u64()?);
                const ALL: u32 = 1 << 2;
                let range = (flags & ALL == 0).then_some((iova, length));
                self.ask(|reply| Request::Unmap { card, range, reply })?;
                let mut body = words(&[argsz, flags]);
                body.extend_from_slice(&iova.to_ne_bytes());
                body.extend_from_slice(&length.to_ne_bytes());
                Ok(body)
            }
            // DEVICE_GET_INFO: a PCI device that can be reset
            4 => Ok(words(&[16, 3, REGIONS, IRQ_KINDS])),
            // DEVICE_GET_REGION_INFO
            5 => {
                let (_, _, region) = (fields.u32()?, fields.u32()?, fields.u32()?);
                if region >= REGIONS {
                    return Err(invalid("there is no such region"));
                }
                let bytes = shape.region_bytes(region);
                let mut body = words(&[32, if bytes > 0 { 3 } else { 0 }, region, 0]);
                body.extend_from_slice(&bytes.to_ne_bytes());
                body.extend_from_slice(&0u64.to_ne_bytes());
                Ok(body)
            }
            // DEVICE_GET_IRQ_INFO: MSI-X, the request for the card, and an error notice that never comes
            7 => {
                let (_, _, kind) = (fields.u32()?, fields.u32()?, fields.u32()?);
                let (flags, count) = match kind {
                    // eventfd, not resizable
                    MSIX => (1 | 1 << 3, shape.vectors),
                    3 | REQUEST => (1, 1),
                    0 | 1 => (1, 0),
                    _ => return Err(invalid("there is no such kind of interrupt")),
                };
                Ok(words(&[16, flags, kind, count]))
            }
            // DEVICE_SET_IRQS
            8 => {
                let (_, flags, kind) = (fields.u32()?, fields.u32()?, fields.u32()?);
                let (first, count) = (fields.u32()?, fields.u32()?);
                self.set_irqs(flags, kind, first, count, descriptors)?;
                Ok(Vec::new())
            }
            // REGION_READ
            9 => {
                let (offset, region, count) = self.access(&mut fields)?;
                let length = count as usize;
                let data = match region {
                    CONFIG_REGION => {
                        let mut data =
                            self.ask(|reply| Request::ReadConfig { card, offset, length, reply })?;
                        self.bars.read(offset as usize, &mut data);
                        data
                    }
                    bar => self.ask(|reply| Request::Read { card, bar: bar as u8, offset, length, reply })?,
                };
                let mut body = message.body[..16].to_vec();
                body.extend_from_slice(&data);
                Ok(body)
            }
            // REGION_WRITE
            10 => {
                let (offset, region, count) = self.access(&mut fields)?;
                let data = fields.0.to_vec();
                if data.len() != count as usize {
                    return Err(invalid("a write of another length than it says"));
                }
                if region == CONFIG_REGION {
                    self.bars.write(offset as usize, &data);
                }
                self.post(match region {
                    CONFIG_REGION => Request::WriteConfig { card, offset, data },
                    bar => Request::Write { card, bar: bar as u8, offset, data },
                })?;
                Ok(message.body[..16].to_vec())
            }
            // DEVICE_RESET
            13 => {
                self.ask(|reply| Request::Reset { card, reply })?;
                Ok(Vec::new())
            }
            _ => Err(io::Error::from_raw_os_error(libc::ENOTSUP)),
        }
    }

    /// Offset, region and count of an access inside its region.
    fn access(&self, fields: &mut Fields<'_>) -> io::Result<(u64, u32, u32)> {
        let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let end = offset.checked_add(count.into());
        let inside = end.is_some_and(|end| end <= self.door.shape.region_bytes(region));
        if count as usize > LONGEST || !inside {
            return Err(invalid("the access leaves its region"));
        }
        Ok((offset, region, count))
    }

    fn set_irqs(
        &self,
        flags: u32,
        kind: u32,
        first: u32,
        count: u32,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        const NONE: u32 = 1 << 0;
        const BOOL: u32 = 1 << 1;
        const EVENTFD: u32 = 1 << 2;
        const TRIGGER: u32 = 1 << 5;
        let card = self.door.card;
        if flags & BOOL != 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOTSUP));
        }
        if kind == REQUEST && (flags & EVENTFD != 0 || count == 0) {
            self.door.holder.listen(descriptors.into_iter().next());
            return Ok(());
        }
        if kind != MSIX {
            // Errors never come; connecting them is no mistake.
            return Ok(());
        }
        let end = first.checked_add(count).filter(|end| *end <= self.door.shape.vectors);
        let end = end.ok_or_else(|| invalid("the card has fewer MSI-X vectors"))?;
        if flags & EVENTFD != 0 {
            // Fewer descriptors than vectors disconnect the rest, as a descriptor of -1 does in the kernel.
            let mut descriptors: Vec<_> = descriptors.into_iter().map(Some).collect();
            descriptors.resize_with((end - first) as usize, || None);
            return self.tell(Request::Vectors { card, first: first as usize, descriptors });
        }
        if flags & NONE != 0 && flags & TRIGGER != 0 && count == 0 {
            return self.tell(Request::ClearVectors { card });
        }
        Ok(())
    }
}
