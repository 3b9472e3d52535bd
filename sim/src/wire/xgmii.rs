//! XGMII at 156.25 MHz and 64 bits: the card's transmit stream into frames, frames into its receive stream.
//!
//! A beat is 8 characters, lane 0 in the low byte of `data` and bit 0 of `ctrl`, sent first; a set `ctrl` bit makes the
//! character a control code. A frame is Start (FB, lane 0 or 4, in place of the first preamble byte), six 55, D5, the
//! frame with its FCS, Terminate (FD); between frames Idle (07). One beat is 6400 ps, one character 800 ps.
//!
//! [`Decoder`]: in, one beat per call with the time of its first character; out, a frame or what is wrong with it. It
//! judges Start's lane, preamble, length, the characters around the frame, and the gap. [`Encoder`]: in, frames; out, one
//! beat per call, with the gaps that 802.3's deficit idle count gives: 9..15 characters, 12 on average, Terminate
//! counted. Both measure gaps by time, so beats may be left out while idle. An idle beat costs one comparison.
//!
//! Never: a character is lost without a word; the FCS is not judged here ([`Frame::fcs_is_good`]).

use super::{Frame, GAP_BYTES, MIN_FRAME};
use std::collections::VecDeque;

/// Time of one beat in ps.
pub const BEAT: u64 = 6400;
/// Rate of the line in bits per second.
pub const RATE: u64 = 10_000_000_000;
/// Time of one character in ps.
pub const CHARACTER: u64 = 800;
/// A beat of eight Idle characters: (data, ctrl).
pub const IDLE: (u64, u8) = (0x0707_0707_0707_0707, 0xff);
/// Longest frame accepted unless told otherwise: payload of 9216, header, one VLAN tag, FCS.
pub const MAX_FRAME: usize = 9216 + 14 + 4 + 4;
/// Most characters by which the gaps may be behind the average (deficit idle count of 802.3 clause 46).
pub const MAX_DEFICIT: u64 = 3;

const CHAR_IDLE: u8 = 0x07;
const CHAR_START: u8 = 0xfb;
const CHAR_TERMINATE: u8 = 0xfd;
const CHAR_ERROR: u8 = 0xfe;
const PREAMBLE: [u8; 7] = [0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0xd5];

/// A rule of the line that the sender broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Start elsewhere than in lane 0 or 4.
    #[error("Start in lane {lane}, not 0 or 4")]
    StartLane {
        /// Where it stood.
        lane: u8,
    },
    /// A preamble byte or the SFD is not what it has to be.
    #[error("preamble byte {index} is {found:#04x}, not {expected:#04x}")]
    Preamble {
        /// Position after Start, 0..=6; 6 is the SFD.
        index: u8,
        /// The byte there.
        found: u8,
        /// The byte that belongs there.
        expected: u8,
    },
    /// The frame is shorter than 64 bytes with its FCS.
    #[error("frame of {bytes} bytes is shorter than 64")]
    Short {
        /// Its length with FCS.
        bytes: usize,
    },
    /// The frame is longer than the decoder's limit; the rest was not kept.
    #[error("frame is longer than {limit} bytes")]
    Long {
        /// The limit.
        limit: usize,
    },
    /// The gap before the frame makes the average gap less than 12.
    #[error("gap of {gap} characters before the frame leaves a deficit of {deficit}, at most 3 allowed")]
    Gap {
        /// Characters from Terminate, counted, to Start.
        gap: u64,
        /// Characters missing to the average of 12.
        deficit: u64,
    },
    /// An Error character inside a frame.
    #[error("Error character at byte {at} of the frame")]
    Error {
        /// Bytes of the frame before it.
        at: usize,
    },
    /// The frame ended with another control character than Terminate.
    #[error("control character {code:#04x} ends the frame instead of Terminate")]
    NoTerminate {
        /// The character.
        code: u8,
    },
    /// Between frames, something other than Idle.
    #[error("{} {code:#04x} in lane {lane} between frames", if *control { "control character" } else { "data" })]
    Stray {
        /// Where it stood.
        lane: u8,
        /// The character.
        code: u8,
        /// Whether it was a control character.
        control: bool,
    },
}

/// A frame, or characters outside of one, that broke rules of the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {} ps, frame of {} bytes: {}", frame.start, frame.bytes.len(), list(violations))]
pub struct Malformed {
    /// The bytes as far as they are known, up to the decoder's limit; empty when the characters were outside of frames.
    pub frame: Frame,
    /// All that is wrong with it, in the order seen; never empty.
    pub violations: Vec<Violation>,
}

fn list(violations: &[Violation]) -> String {
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The card's transmit stream into frames.
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    violations: Vec<Violation>,
    limit: usize,
    /// Start of the frame under way.
    start: u64,
    /// Time of the last Terminate, once there was one.
    terminated: Option<u64>,
    deficit: u64,
    /// Preamble bytes still to come.
    preamble: usize,
    in_frame: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(MAX_FRAME)
    }
}

impl Decoder {
    /// A decoder that judges frames of more than `limit` bytes, FCS included, as too long.
    pub fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(limit.min(MAX_FRAME) + 8),
            violations: Vec::new(),
            limit,
            start: 0,
            terminated: None,
            deficit: 0,
            preamble: 0,
            in_frame: false,
        }
    }

    /// Whether no frame is under way.
    #[inline]
    pub fn is_idle(&self) -> bool {
        !self.in_frame
    }

    /// Takes the beat whose first character passes at `now` ps; gives the frame that ends in it.
    ///
    /// # Errors
    /// What ended, or passed between frames, in this beat and broke rules.
    #[inline]
    pub fn beat(&mut self, data: u64, ctrl: u8, now: u64) -> Option<Result<Frame, Malformed>> {
        if !self.in_frame && (data, ctrl) == IDLE {
            return None;
        }
        if self.in_frame && ctrl == 0 && self.preamble == 0 && self.bytes.len() + 8 <= self.limit {
            self.bytes.extend_from_slice(&data.to_le_bytes());
            return None;
        }
        self.characters(data, ctrl, now)
    }

    fn characters(&mut self, data: u64, ctrl: u8, now: u64) -> Option<Result<Frame, Malformed>> {
        let mut result = None;
        for (lane, code) in data.to_le_bytes().into_iter().enumerate() {
            let control = ctrl >> lane & 1 == 1;
            let time = now + CHARACTER * lane as u64;
            if self.in_frame {
                match (control, code) {
                    (false, byte) => self.data(byte),
                    (true, CHAR_ERROR) => {
                        self.violations.push(Violation::Error { at: self.bytes.len() });
                    }
                    (true, code) => {
                        if code != CHAR_TERMINATE {
                            self.violations.push(Violation::NoTerminate { code });
                        }
                        self.end(time, &mut result);
                        if code == CHAR_START {
                            self.begin(lane, time);
                        }
                    }
                }
            } else if (control, code) == (true, CHAR_START) {
                self.begin(lane, time);
            } else if (control, code) != (true, CHAR_IDLE) {
                self.violations.push(Violation::Stray { lane: lane as u8, code, control });
            }
        }
        // Between frames there is nothing to wait for: strays are told at once, with the frame that ended or alone.
        if !self.in_frame && !self.violations.is_empty() {
            let empty = || Frame { bytes: [].into(), start: now, end: now + BEAT };
            add(&mut result, std::mem::take(&mut self.violations), empty);
        }
        result
    }

    fn begin(&mut self, lane: usize, time: u64) {
        (self.in_frame, self.start, self.preamble) = (true, time, PREAMBLE.len());
        self.bytes.clear();
        if !lane.is_multiple_of(4) {
            self.violations.push(Violation::StartLane { lane: lane as u8 });
        }
        if let Some(terminated) = self.terminated {
            let gap = gap(terminated, time);
            self.deficit = (self.deficit + GAP_BYTES).saturating_sub(gap);
            if self.deficit > MAX_DEFICIT {
                self.violations.push(Violation::Gap { gap, deficit: self.deficit });
                // Told once; the next gap is judged afresh.
                self.deficit = 0;
            }
        }
    }

    fn data(&mut self, byte: u8) {
        if self.preamble > 0 {
            let index = PREAMBLE.len() - self.preamble;
            let expected = PREAMBLE[index];
            self.preamble -= 1;
            if byte != expected {
                self.violations.push(Violation::Preamble { index: index as u8, found: byte, expected });
            }
        } else if self.bytes.len() < self.limit {
            self.bytes.push(byte);
        } else if !self.violations.contains(&Violation::Long { limit: self.limit }) {
            self.violations.push(Violation::Long { limit: self.limit });
        }
    }

    fn end(&mut self, time: u64, result: &mut Option<Result<Frame, Malformed>>) {
        if self.bytes.len() < MIN_FRAME {
            self.violations.push(Violation::Short { bytes: self.bytes.len() });
        }
        (self.in_frame, self.terminated) = (false, Some(time));
        let frame = Frame { bytes: self.bytes.as_slice().into(), start: self.start, end: time };
        if self.violations.is_empty() && result.is_none() {
            *result = Some(Ok(frame));
        } else {
            add(result, std::mem::take(&mut self.violations), || frame);
        }
    }
}

/// Characters from Terminate, counted, to a Start. Rounded: the sender's clock may be off by some ppm.
fn gap(terminate: u64, start: u64) -> u64 {
    (start.saturating_sub(terminate) + CHARACTER / 2) / CHARACTER
}

/// Adds violations to what the beat already gives: strays behind a good frame are its sender's fault, too, and of two
/// frames that end in one beat the first is kept (the second has at most one byte).
fn add(
    result: &mut Option<Result<Frame, Malformed>>,
    mut more: Vec<Violation>,
    frame: impl FnOnce() -> Frame,
) {
    *result = Some(Err(match result.take() {
        None => Malformed { frame: frame(), violations: more },
        Some(Ok(frame)) => Malformed { frame, violations: more },
        Some(Err(mut malformed)) => {
            malformed.violations.append(&mut more);
            malformed
        }
    }));
}

/// Frames into the card's receive stream.
#[derive(Debug, Default)]
pub struct Encoder {
    queue: VecDeque<Frame>,
    /// Characters of the frame under way that were sent, Start counted; 0: no frame is under way.
    sent: usize,
    terminated: Option<u64>,
    deficit: u64,
}

impl Encoder {
    /// An encoder with nothing to send.
    pub fn new() -> Self {
        Self::default()
    }

    /// Queues a frame behind those that wait. Its times are not looked at: it goes as soon as the gap allows.
    pub fn push(&mut self, frame: Frame) {
        self.queue.push_back(frame);
    }

    /// Frames not completely sent.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Whether every beat will be Idle until a frame is pushed.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// The beat whose first character passes at `now` ps: (data, ctrl).
    #[inline]
    pub fn beat(&mut self, now: u64) -> (u64, u8) {
        if self.queue.is_empty() { IDLE } else { self.characters(now) }
    }

    fn characters(&mut self, now: u64) -> (u64, u8) {
        let Some(frame) = self.queue.front() else { return IDLE };
        let mut lanes = [CHAR_IDLE; 8];
        let mut ctrl = 0xffu8;
        let mut lane = 0;
        if self.sent == 0 {
            let gap = |lane| match self.terminated {
                Some(terminated) => gap(terminated, now + lane * CHARACTER),
                None => GAP_BYTES,
            };
            let deficit = |lane| (self.deficit + GAP_BYTES).saturating_sub(gap(lane));
            let Some(start) = [0, 4].into_iter().find(|&lane| deficit(lane) <= MAX_DEFICIT) else {
                return IDLE;
            };
            self.deficit = deficit(start);
            lane = start as usize;
            lanes[lane] = CHAR_START;
            (self.sent, lane) = (1, lane + 1);
        }
        const HEAD: usize = 1 + PREAMBLE.len();
        while lane < 8 && self.sent < HEAD {
            lanes[lane] = PREAMBLE[self.sent - 1];
            ctrl &= !(1 << lane);
            (self.sent, lane) = (self.sent + 1, lane + 1);
        }
        if lane < 8 {
            let rest = &frame.bytes[self.sent - HEAD..];
            let count = rest.len().min(8 - lane);
            lanes[lane..lane + count].copy_from_slice(&rest[..count]);
            ctrl &= !(((1u16 << count) - 1) << lane) as u8;
            (self.sent, lane) = (self.sent + count, lane + count);
            if lane < 8 {
                lanes[lane] = CHAR_TERMINATE;
                self.terminated = Some(now + lane as u64 * CHARACTER);
                self.sent = 0;
                self.queue.pop_front();
            }
        }
        (u64::from_le_bytes(lanes), ctrl)
    }
}
