//! The user interface of UltraScale+'s 100 Gigabit MAC (CMAC) at 322.27 MHz and 512 bits: the card's transmit stream into
//! frames, frames into its receive stream.
//!
//! A beat is up to 64 bytes, the first on the wire in the low byte; frames come and go without FCS. The line carries a
//! byte in 80 ps, a beat of the interface takes 38 of them: so the transmit side is not always ready, and the receive side
//! leaves gaps inside of frames.
//!
//! [`Decoder`]: in, the beats that the card's stream moved, and the edges at which it had none; out, frames with the FCS
//! that the CMAC would add, or the rule that was broken: a gap inside of a frame, lanes missing elsewhere than at its end,
//! less than 60 or more than 9600 bytes. It takes a beat while no more than [`BACKLOG`] of line time wait. [`Encoder`]:
//! in, frames with FCS; out, at most one beat per call, when the line has brought its last byte; the FCS is judged there
//! and cut off. Between frames pass 20 bytes (preamble and gap) in either direction.
//!
//! Never: a frame waits for another's fault; the receive stream waits for the card.

use super::{Frame, GAP_BYTES, MIN_FRAME, PREAMBLE_BYTES, fcs, line_time};
use std::collections::VecDeque;

/// Period of the clock in ps (322.27 MHz).
pub const PERIOD: u64 = 3103;
/// Rate of the line in bits per second.
pub const RATE: u64 = 100_000_000_000;
/// Bytes of a beat.
pub const BEAT_BYTES: usize = 64;
/// Line time of what the CMAC holds of the transmit stream, in ps: four beats.
pub const BACKLOG: u64 = 4 * 64 * 80;
/// Longest frame without FCS.
pub const MAX_FRAME: usize = 9600;
const FCS_BYTES: usize = 4;

/// A beat of either stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Lanes, the first lowest.
    pub data: [u32; BEAT_BYTES / 4],
    /// A bit per lane that holds a byte.
    pub keep: u64,
    /// The frame ends here.
    pub last: bool,
    /// With `last`: the frame is bad.
    pub user: bool,
}

impl Beat {
    /// A beat of the first up to 64 of these bytes.
    fn of(bytes: &[u8], user: bool) -> Self {
        let count = bytes.len().min(BEAT_BYTES);
        let mut lanes = [0; BEAT_BYTES];
        lanes[..count].copy_from_slice(&bytes[..count]);
        let mut data = [0; BEAT_BYTES / 4];
        for (word, lanes) in data.iter_mut().zip(lanes.chunks_exact(4)) {
            *word = lanes.iter().rev().fold(0, |word, lane| word << 8 | u32::from(*lane));
        }
        let keep = if count == BEAT_BYTES { u64::MAX } else { (1 << count) - 1 };
        Self { data, keep, last: bytes.len() <= BEAT_BYTES, user }
    }
}

/// A rule of the transmit stream that the card broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The stream paused inside of a frame.
    #[error("no beat behind byte {at} of a frame")]
    Gap {
        /// Bytes of the frame before it.
        at: usize,
    },
    /// Lanes are missing elsewhere than at the end of the last beat.
    #[error("lanes {keep:#018x} of a beat that is {}the last", if *last { "" } else { "not " })]
    Lanes {
        /// Those there.
        keep: u64,
        /// It was the last beat.
        last: bool,
    },
    /// Too short or too long.
    #[error("frame of {bytes} bytes without FCS; 60 to 9600 are allowed")]
    Length {
        /// Its length.
        bytes: usize,
    },
}

/// The card's transmit stream into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// When the first preamble byte of the frame under way passes.
    start: u64,
    /// When the line is free of all that was taken.
    free: u64,
    open: bool,
}

impl Decoder {
    /// Whether no frame is under way.
    pub fn is_idle(&self) -> bool {
        !self.open
    }

    /// Whether a beat can be taken at `now` ps.
    pub fn is_ready(&self, now: u64) -> bool {
        self.free <= now + BACKLOG
    }

    /// The stream had no beat at an edge at which one would have been taken.
    ///
    /// # Errors
    /// A frame is under way.
    pub fn pause(&mut self) -> Result<(), Violation> {
        if self.open { Err(Violation::Gap { at: self.bytes.len() }) } else { Ok(()) }
    }

    /// Takes the beat that moved at `now` ps; gives the frame that it ends, with its place on the line.
    ///
    /// # Errors
    /// The beat, or the frame that it ends, breaks a rule.
    pub fn beat(&mut self, beat: &Beat, now: u64) -> Result<Option<Frame>, Violation> {
        if !self.open {
            self.bytes.clear();
            self.start = now.max(self.free);
            self.open = true;
        }
        let count = beat.keep.trailing_ones() as usize;
        if count == 0 || beat.keep.count_ones() as usize != count || !(beat.last || count == BEAT_BYTES) {
            return Err(Violation::Lanes { keep: beat.keep, last: beat.last });
        }
        let lanes = beat.data.iter().flat_map(|word| word.to_le_bytes());
        self.bytes.extend(lanes.take(count));
        self.free = self.start + line_time(self.bytes.len() as u64 + PREAMBLE_BYTES, RATE);
        if !beat.last {
            return Ok(None);
        }
        self.open = false;
        let bytes = self.bytes.len();
        if !(MIN_FRAME - FCS_BYTES..=MAX_FRAME).contains(&bytes) {
            return Err(Violation::Length { bytes });
        }
        let check = fcs(&self.bytes).map(|byte| if beat.user { !byte } else { byte });
        self.bytes.extend(check);
        let frame = Frame::new(self.bytes.as_slice(), self.start, RATE);
        self.free = frame.end + line_time(GAP_BYTES, RATE);
        Ok(Some(frame))
    }
}

/// Frames into the card's receive stream.
#[derive(Debug, Default)]
pub struct Encoder {
    queue: VecDeque<Frame>,
    /// Bytes of the first that were given.
    sent: usize,
    /// When the line is free for the next.
    free: u64,
}

impl Encoder {
    /// Queues a frame behind those that wait. It begins at its time, or as soon as the one before it allows. One too
    /// short to hold an FCS and a byte is none to the CMAC.
    pub fn push(&mut self, frame: Frame) {
        if frame.bytes.len() > FCS_BYTES {
            self.queue.push_back(frame);
        }
    }

    /// Frames not completely given.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing will come until a frame is pushed.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// The beat at the pins from `now` ps to the next edge, if the line has brought it by now.
    pub fn beat(&mut self, now: u64) -> Option<Beat> {
        let frame = self.queue.front()?;
        let body = &frame.bytes[..frame.bytes.len() - FCS_BYTES];
        let begin = frame.start.max(self.free);
        let end = (self.sent + BEAT_BYTES).min(body.len());
        let last = end == body.len();
        let arrived = if last { frame.bytes.len() } else { end } as u64 + PREAMBLE_BYTES;
        if begin + line_time(arrived, RATE) > now {
            return None;
        }
        let bad = frame.bytes.len() < MIN_FRAME || !frame.fcs_is_good();
        let beat = Beat::of(&body[self.sent..], last && bad);
        self.sent = end;
        if last {
            self.free = begin + line_time(arrived + GAP_BYTES, RATE);
            self.sent = 0;
            self.queue.pop_front();
        }
        Some(beat)
    }
}
