//! Captures of simulated wires as pcapng, which Wireshark and tshark open.
//!
//! In: frames with their FCS, the interface at which they were seen, the direction, and what the wire did to them. Out:
//! one section with an Ethernet interface per end (named, nanosecond stamps of simulated time, FCS of 4 bytes declared),
//! and one enhanced packet block per sight, in order of time. The stamp is the moment the last byte has passed. A fault
//! is a comment that begins with its name: `dropped`, `duplicated`, `corrupted`, `delayed`; it stands where the fault
//! shows: a dropped frame at the sender's end, any other at the receiver's.
//!
//! [`Capture::advance`] writes everything up to a time, so sights may be told a little out of order. A live capture
//! (stdout, for `verbena sim --capture - | wireshark -k -i -`) is flushed then. When the reader of a live capture goes
//! away the capture falls silent and the simulation goes on.
//!
//! The FCS stays in the packet: Wireshark then shows and can check it, and a corrupted FCS is seen where it is.
//! The blocks are written by the crate `pcap-file`, whose stable version stamps in nanoseconds only: what is wanted here.

use crate::wire::{Delivery, Fault, Frame};
use pcap_file::{
    DataLink, PcapError,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
        },
    },
};
use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::BinaryHeap,
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Bytes of FCS at the end of every frame.
const FCS_BYTES: u8 = 4;
/// Stamps count 10^-9 s.
const NANOSECONDS: u8 = 9;
/// `epb_flags`: direction in bits 0-1, FCS length in bits 5-8.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
const FCS_FLAG: u32 = (FCS_BYTES as u32) << 5;

/// A capture could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} the capture {}: {source}; check the path and the space left", path.display())]
pub struct CaptureError {
    operation: &'static str,
    path: PathBuf,
    source: PcapError,
}

/// Where a frame was seen going, from the card at that end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// The card received it.
    In,
    /// The card sent it.
    Out,
}

/// One frame at one end.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Sight {
    /// In ps.
    time: u64,
    /// Order of telling, for equal times.
    order: u64,
    interface: u32,
    direction: Direction,
    bytes: Arc<[u8]>,
    comments: Vec<String>,
}

/// A pcapng file or stream under way. Dropped, it writes what it still holds, without a word on errors: call
/// [`Capture::finish`].
pub struct Capture<W: Write = Box<dyn Write + Send>> {
    /// `None` once the reader of a live capture is gone.
    writer: Option<PcapNgWriter<BufWriter<W>>>,
    waiting: BinaryHeap<Reverse<Sight>>,
    order: u64,
    live: bool,
    path: PathBuf,
}

impl Capture {
    /// A capture to a file, or live to stdout if the path is `-`, with an interface of each name.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn create(path: impl AsRef<Path>, interfaces: &[&str]) -> Result<Self, CaptureError> {
        let path = path.as_ref();
        let live = path == Path::new("-");
        let writer: Box<dyn Write + Send> = if live {
            Box::new(io::stdout())
        } else {
            let refuse = |source| CaptureError {
                operation: "create",
                path: path.into(),
                source: PcapError::IoError(source),
            };
            Box::new(File::create(path).map_err(refuse)?)
        };
        Self::begin(writer, interfaces, live, path)
    }
}

impl<W: Write> Capture<W> {
    /// A capture to any writer, flushed at every [`Capture::advance`] if `live`.
    ///
    /// # Errors
    /// The writer refuses the first blocks.
    pub fn to_writer(writer: W, interfaces: &[&str], live: bool) -> Result<Self, CaptureError> {
        Self::begin(writer, interfaces, live, Path::new("(stream)"))
    }

    fn begin(writer: W, interfaces: &[&str], live: bool, path: &Path) -> Result<Self, CaptureError> {
        let refuse = |source| CaptureError { operation: "write", path: path.into(), source };
        let mut writer = PcapNgWriter::new(BufWriter::new(writer)).map_err(refuse)?;
        for &name in interfaces {
            let options = vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                InterfaceDescriptionOption::IfFcsLen(FCS_BYTES),
            ];
            let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
            writer.write_pcapng_block(block).map_err(refuse)?;
        }
        let mut capture =
            Self { writer: Some(writer), waiting: BinaryHeap::new(), order: 0, live, path: path.into() };
        if live {
            // Wireshark shows the interfaces before the first frame.
            capture.flush()?;
        }
        Ok(capture)
    }

    /// The card at `interface` (number in the list given at creation) sent a frame; `fault` is what [`Wire::send`] said.
    ///
    /// [`Wire::send`]: crate::wire::Wire::send
    pub fn sent(&mut self, interface: usize, frame: &Frame, fault: Option<Fault>) {
        self.frame(interface, Direction::Out, frame, fault.as_slice());
    }

    /// A frame reached the card at `interface`.
    pub fn received(&mut self, interface: usize, delivery: &Delivery) {
        self.frame(interface, Direction::In, &delivery.frame, &delivery.faults);
    }

    /// A frame was seen; each fault becomes a comment.
    pub fn frame(&mut self, interface: usize, direction: Direction, frame: &Frame, faults: &[Fault]) {
        if self.writer.is_none() {
            return;
        }
        self.waiting.push(Reverse(Sight {
            time: frame.end,
            order: self.order,
            interface: interface as u32,
            direction,
            bytes: frame.bytes.clone(),
            comments: faults.iter().map(ToString::to_string).collect(),
        }));
        self.order += 1;
    }

    /// Writes every sight stamped up to `now` ps. Cheap when there is none.
    ///
    /// # Errors
    /// The file cannot be written. The end of a live capture's reader is no error: see [`Capture::is_closed`].
    pub fn advance(&mut self, now: u64) -> Result<(), CaptureError> {
        let mut wrote = false;
        while self.waiting.peek().is_some_and(|Reverse(sight)| sight.time <= now) {
            if let Some(Reverse(sight)) = self.waiting.pop() {
                self.write(sight)?;
                wrote = true;
            }
        }
        if wrote && self.live { self.flush() } else { Ok(()) }
    }

    /// Whether the reader of a live capture has gone.
    pub fn is_closed(&self) -> bool {
        self.writer.is_none()
    }

    /// Writes all that is left and flushes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<(), CaptureError> {
        self.advance(u64::MAX)?;
        self.flush()
    }

    fn write(&mut self, sight: Sight) -> Result<(), CaptureError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let direction = if sight.direction == Direction::In { INBOUND } else { OUTBOUND };
        let mut options = vec![EnhancedPacketOption::Flags(direction | FCS_FLAG)];
        options.extend(sight.comments.into_iter().map(|text| EnhancedPacketOption::Comment(text.into())));
        let result = writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: sight.interface,
            timestamp: Duration::from_nanos(sight.time / 1000),
            original_len: sight.bytes.len() as u32,
            data: Cow::Borrowed(&sight.bytes),
            options,
        });
        self.judge(result.map(drop))
    }

    fn flush(&mut self) -> Result<(), CaptureError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let result = writer.get_mut().flush().map_err(PcapError::IoError);
        self.judge(result)
    }

    fn judge(&mut self, result: Result<(), PcapError>) -> Result<(), CaptureError> {
        match result {
            Err(PcapError::IoError(error)) if self.live && error.kind() == io::ErrorKind::BrokenPipe => {
                self.writer = None;
                self.waiting.clear();
                Ok(())
            }
            other => {
                other.map_err(|source| CaptureError { operation: "write", path: self.path.clone(), source })
            }
        }
    }
}

impl<W: Write> Drop for Capture<W> {
    fn drop(&mut self) {
        let _ = self.advance(u64::MAX);
    }
}
