//! The line of 1 Gb/s as a PHY sees it, a byte per 8 ns: the pins' bytes into frames, frames into bytes.
//!
//! A frame is seven 55, D5, the frame with its FCS; between frames nothing is valid. What makes nibbles at both edges of it is
//! [`crate::target`]'s.
//!
//! [`Decoder`]: in, one [`Symbol`] per call with its time; out, a frame or what is wrong with it: preamble, length, a byte
//! that its sender marked as an error, the gap before it. [`Encoder`]: in, frames; out, one symbol per call, with gaps of
//! 12 bytes at least. Both measure gaps by time, so bytes may be left out while idle.
//!
//! Never: a byte is lost without a word; the FCS is not judged here ([`Frame::fcs_is_good`]).

use super::{Frame, GAP_BYTES, MIN_FRAME, PREAMBLE_BYTES, xgmii::MAX_FRAME};
use std::collections::VecDeque;

/// Time of a byte in ps.
pub const BYTE: u64 = 8000;
/// Rate of the line in bits per second.
pub const RATE: u64 = 1_000_000_000;

const PREAMBLE: [u8; PREAMBLE_BYTES as usize] = [0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0xd5];

/// What a byte time brings: a byte of a frame, and whether its sender marks it as an error; `None`: no frame.
pub type Symbol = Option<(u8, bool)>;

/// A rule of the line that the sender broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A preamble byte or the SFD is not what it has to be.
    #[error("preamble byte {index} is {found:#04x}, not {:#04x}", PREAMBLE[*index])]
    Preamble {
        /// Position, 0..=7; 7 is the SFD.
        index: usize,
        /// The byte there.
        found: u8,
    },
    /// The frame is shorter than 64 bytes with its FCS.
    #[error("frame of {bytes} bytes is shorter than 64")]
    Short {
        /// Its length with FCS.
        bytes: usize,
    },
    /// The frame is longer than any card's.
    #[error("frame of {bytes} bytes is too long")]
    Long {
        /// Its length with FCS.
        bytes: usize,
    },
    /// The gap before the frame is too short.
    #[error("gap of {bytes} bytes before the frame, at least 12 are due")]
    Gap {
        /// Bytes of it.
        bytes: u64,
    },
    /// A byte is marked as an error.
    #[error("error at byte {at}, preamble counted")]
    Error {
        /// Bytes before it.
        at: usize,
    },
}

/// The sender's bytes into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    start: u64,
    ended: Option<u64>,
    error: Option<usize>,
}

impl Decoder {
    /// Whether no frame is under way.
    pub fn is_idle(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes the symbol that begins to pass at `now` ps; gives the frame that has ended before it.
    ///
    /// # Errors
    /// The first rule that the frame broke.
    pub fn symbol(&mut self, symbol: Symbol, now: u64) -> Option<Result<Frame, Violation>> {
        if let Some((byte, error)) = symbol {
            if self.bytes.is_empty() {
                self.start = now;
            }
            if error {
                self.error.get_or_insert(self.bytes.len());
            }
            self.bytes.push(byte);
            return None;
        }
        if self.bytes.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let (error, ended) = (self.error.take(), self.ended.replace(now));
        Some(self.judge(&bytes, error, ended).map_or_else(
            || {
                let bytes = &bytes[PREAMBLE.len()..];
                Ok(Frame { bytes: bytes.into(), start: self.start, end: now })
            },
            Err,
        ))
    }

    fn judge(&self, bytes: &[u8], error: Option<usize>, ended: Option<u64>) -> Option<Violation> {
        if let Some(at) = error {
            return Some(Violation::Error { at });
        }
        if let Some(index) = (0..PREAMBLE.len()).find(|i| bytes.get(*i) != Some(&PREAMBLE[*i])) {
            return Some(Violation::Preamble { index, found: bytes.get(index).copied().unwrap_or(0) });
        }
        let gap = ended.map_or(GAP_BYTES, |ended| (self.start - ended) / BYTE);
        let bytes = bytes.len() - PREAMBLE.len();
        match bytes {
            _ if gap < GAP_BYTES => Some(Violation::Gap { bytes: gap }),
            ..MIN_FRAME => Some(Violation::Short { bytes }),
            _ if bytes > MAX_FRAME => Some(Violation::Long { bytes }),
            _ => None,
        }
    }
}

/// Frames into the receiver's bytes.
#[derive(Debug, Default)]
pub struct Encoder {
    queue: VecDeque<Frame>,
    /// Bytes of the first that were sent, preamble counted.
    sent: usize,
    /// When its line is free again.
    free: u64,
}

impl Encoder {
    /// Queues a frame behind those that wait. Its times are not looked at: it goes as soon as the gap allows.
    pub fn push(&mut self, frame: Frame) {
        self.queue.push_back(frame);
    }

    /// Whether nothing is valid until a frame is pushed.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// The symbol that begins to pass at `now` ps.
    pub fn symbol(&mut self, now: u64) -> Symbol {
        let frame = self.queue.front()?;
        if self.sent == 0 && now < self.free {
            return None;
        }
        let at = self.sent;
        let byte = PREAMBLE.get(at).or_else(|| frame.bytes.get(at - PREAMBLE.len())).copied();
        self.sent += 1;
        if self.sent >= PREAMBLE.len() + frame.bytes.len() {
            self.queue.pop_front();
            self.sent = 0;
            self.free = now + (1 + GAP_BYTES) * BYTE;
        }
        byte.map(|byte| (byte, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fcs;

    fn frame(length: usize) -> Frame {
        let mut bytes: Vec<u8> = (0..length as u32 - 4).map(|i| (i * 7) as u8).collect();
        bytes.extend(fcs(&bytes));
        Frame::new(bytes, 0, RATE)
    }

    /// What the decoder makes of these symbols, one per byte time.
    fn decoded(symbols: &[Symbol]) -> Vec<Result<Frame, Violation>> {
        let mut decoder = Decoder::default();
        let told = symbols.iter().enumerate().filter_map(|(i, s)| decoder.symbol(*s, i as u64 * BYTE));
        told.collect()
    }

    fn encoded(frames: &[Frame]) -> Vec<Symbol> {
        let mut encoder = Encoder::default();
        frames.iter().for_each(|frame| encoder.push(frame.clone()));
        let mut symbols: Vec<_> = (0..)
            .map(|i| encoder.symbol(i * BYTE))
            .take(frames.iter().map(|f| f.bytes.len() + 20).sum())
            .collect();
        assert!(encoder.is_idle());
        symbols.push(None);
        symbols
    }

    #[test]
    fn frames_come_out_of_the_line_as_they_went_in_with_the_shortest_gap_between() {
        let frames = [64, 65, 1518, MAX_FRAME].map(frame);
        let back: Vec<Frame> = decoded(&encoded(&frames)).into_iter().map(Result::unwrap).collect();
        for (sent, got) in frames.iter().zip(&back) {
            assert!(got.fcs_is_good() && got.bytes == sent.bytes);
            assert_eq!(got.end - got.start, sent.end - sent.start);
        }
        let gaps: Vec<u64> = back.windows(2).map(|pair| (pair[1].start - pair[0].end) / BYTE).collect();
        assert_eq!((back.len(), gaps), (4, vec![12; 3]));
    }

    #[test]
    fn each_rule_of_the_line_that_is_broken_is_told_by_name() {
        let good = encoded(&[frame(64), frame(64)]);
        let changed = |change: &dyn Fn(&mut Vec<Symbol>)| {
            let mut symbols = good.clone();
            change(&mut symbols);
            decoded(&symbols).into_iter().find_map(Result::err)
        };
        assert_eq!(changed(&|_| ()), None);
        assert_eq!(
            changed(&|s| s[3] = Some((0x54, false))),
            Some(Violation::Preamble { index: 3, found: 0x54 })
        );
        assert_eq!(changed(&|s| s[20] = Some((1, true))), Some(Violation::Error { at: 20 }));
        assert_eq!(changed(&|s| drop(s.drain(40..41))), Some(Violation::Short { bytes: 63 }));
        assert_eq!(changed(&|s| drop(s.drain(75..76))), Some(Violation::Gap { bytes: 11 }));
        assert_eq!(changed(&|s| drop(s.drain(5..72))), Some(Violation::Preamble { index: 5, found: 0 }));
        let long = encoded(&[frame(MAX_FRAME + 1)]);
        assert_eq!(decoded(&long)[0], Err(Violation::Long { bytes: MAX_FRAME + 1 }));
    }
}
