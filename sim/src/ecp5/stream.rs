//! The configuration logic of an ECP5: what it makes of a bitstream, byte for byte, and when it would start.
//!
//! ```text
//! bytes ─> FF FF BD B3 ─> commands ─> frames, block RAM (compressed or not), CRCs ─> PROGRAM_DONE ─> done
//!                             └─ the first fault: everything after it is passed over
//! ```
//! In: the bytes of a stream, from the burst of a JTAG tool or out of a flash. Out: done, or the fault as the status register
//! tells it. The format is that of Lattice's FPGA-TN-02039 as Project Trellis has written it down. Stricter than silicon in one
//! thing: it is not done before every frame of the device has come. It keeps no configuration.

/// Frames of an LFE5UM5G-45F, and bytes of one.
pub const FRAMES: usize = 9470;
/// Bytes of a frame.
pub const FRAME: usize = 106;
const PREAMBLE: u32 = 0xffff_bdb3;

/// What is wrong with a stream, by the codes of the status register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is for another device.
    Id = 1,
    /// A command that the device does not know here.
    Command = 2,
    /// A CRC that is not that of the bytes before it.
    Crc = 3,
}

/// What the next byte is.
#[derive(Clone, Copy, Debug)]
enum Next {
    Preamble,
    Command,
    /// Of a command's three bytes of information and its payload.
    Operand {
        command: u8,
        length: usize,
    },
    Frame {
        compressed: bool,
        left: usize,
    },
    BlockRam {
        left: usize,
    },
    /// And what comes behind it.
    Crc(After),
    Dummy {
        bytes: usize,
        compressed: bool,
        left: usize,
    },
    Nothing,
}

#[derive(Clone, Copy, Debug)]
enum After {
    Command,
    Frame { compressed: bool, left: usize },
}

/// The logic with a stream on its way through it.
#[derive(Debug)]
pub struct Stream {
    idcode: u32,
    next: Next,
    fault: Option<Fault>,
    done: bool,
    /// The stream has said for which device it is.
    identified: bool,
    dictionary: Option<[u8; 8]>,
    frames: usize,
    /// Dummy bytes behind each frame.
    dummies: usize,
    crc: u16,
    /// Of the item that is coming in.
    bytes: Vec<u8>,
    /// Bits of a compressed frame that make no byte yet.
    bits: u32,
    bit_count: u32,
    last: u32,
}

impl Stream {
    /// The logic of the device with that IDCODE, before the first byte.
    pub fn new(idcode: u32) -> Stream {
        Stream {
            idcode,
            next: Next::Preamble,
            fault: None,
            done: false,
            identified: false,
            dictionary: None,
            frames: 0,
            dummies: 0,
            crc: 0,
            bytes: vec![],
            bits: 0,
            bit_count: 0,
            last: 0,
        }
    }

    /// What is wrong with it.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Whether the device has all that it needs to start.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the beginning of a stream was found.
    pub fn has_begun(&self) -> bool {
        !matches!(self.next, Next::Preamble)
    }

    /// Whether more bytes change nothing.
    pub fn is_over(&self) -> bool {
        self.done || self.fault.is_some()
    }

    /// The next byte of it.
    pub fn push(&mut self, byte: u8) {
        match self.next {
            Next::Preamble => {
                self.last = self.last << 8 | u32::from(byte);
                if self.last == PREAMBLE {
                    self.next = Next::Command;
                }
                return;
            }
            // a dummy, which no CRC covers
            Next::Command if byte == 0xff => return,
            Next::Nothing => return,
            Next::Crc(after) => {
                self.bytes.push(byte);
                if let [high, low] = self.bytes[..] {
                    self.check(u16::from_be_bytes([high, low]), after);
                }
                return;
            }
            _ => {}
        }
        self.crc = crc16(self.crc, byte);
        match self.next {
            Next::Command => match length(byte) {
                Some(length) => self.expect(Next::Operand { command: byte, length }),
                None => self.fail(Fault::Command),
            },
            Next::Operand { command, length } => {
                self.bytes.push(byte);
                if self.bytes.len() == length {
                    self.obey(command);
                }
            }
            Next::Frame { compressed: true, left } => self.unpack(byte, left),
            Next::Frame { compressed: false, left } => {
                self.bytes.push(byte);
                if self.bytes.len() == FRAME {
                    self.expect(Next::Crc(After::Frame { compressed: false, left: left - 1 }));
                }
            }
            Next::BlockRam { left: 1 } => self.expect(Next::Crc(After::Command)),
            Next::BlockRam { left } => self.next = Next::BlockRam { left: left - 1 },
            Next::Dummy { bytes: 1, compressed, left } => self.frame(compressed, left),
            Next::Dummy { bytes, compressed, left } => {
                self.next = Next::Dummy { bytes: bytes - 1, compressed, left };
            }
            Next::Preamble | Next::Crc(_) | Next::Nothing => {}
        }
    }

    fn expect(&mut self, next: Next) {
        self.bytes.clear();
        (self.bits, self.bit_count) = (0, 0);
        self.next = next;
    }

    fn fail(&mut self, fault: Fault) {
        self.fault = Some(fault);
        self.expect(Next::Nothing);
    }

    fn check(&mut self, said: u16, after: After) {
        if std::mem::take(&mut self.crc) != said {
            return self.fail(Fault::Crc);
        }
        match after {
            After::Command => self.expect(Next::Command),
            After::Frame { compressed, left } => {
                self.frames += 1;
                match self.dummies {
                    0 => self.frame(compressed, left),
                    bytes => self.expect(Next::Dummy { bytes, compressed, left }),
                }
            }
        }
    }

    fn frame(&mut self, compressed: bool, left: usize) {
        self.expect(if left == 0 { Next::Command } else { Next::Frame { compressed, left } });
    }

    /// A command with all of its bytes.
    fn obey(&mut self, command: u8) {
        let information = [self.bytes[0], self.bytes[1], self.bytes[2]];
        let count = usize::from(u16::from_be_bytes([information[1], information[2]]));
        let then = if information[0] & 0x80 == 0 { Next::Command } else { Next::Crc(After::Command) };
        match command {
            RESET_CRC => {
                self.crc = 0;
                self.expect(then);
            }
            VERIFY_ID => {
                let wanted = u32::from_be_bytes([self.bytes[3], self.bytes[4], self.bytes[5], self.bytes[6]]);
                match wanted == self.idcode {
                    true => (self.identified, _) = (true, self.expect(then)),
                    false => self.fail(Fault::Id),
                }
            }
            WRITE_DICTIONARY => {
                // the last pattern comes first
                self.dictionary = Some(std::array::from_fn(|pattern| self.bytes[3 + 7 - pattern]));
                self.expect(then);
            }
            PROGRAM_FRAMES | PROGRAM_FRAMES_COMPRESSED => {
                let compressed = command == PROGRAM_FRAMES_COMPRESSED;
                // every frame with its CRC; nobody writes other ones for this device
                let usual = information[0] & 0xc0 == 0x80 && count > 0 && self.frames + count <= FRAMES;
                if !(usual && self.identified && (self.dictionary.is_some() || !compressed)) {
                    return self.fail(Fault::Command);
                }
                self.dummies = usize::from(information[0] & 0x0f);
                self.frame(compressed, count);
            }
            WRITE_BLOCK_RAM if count > 0 => self.expect(Next::BlockRam { left: count * 9 }),
            WRITE_BLOCK_RAM => self.fail(Fault::Command),
            PROGRAM_DONE => {
                self.done = self.frames == FRAMES;
                self.expect(Next::Nothing);
            }
            _ => self.expect(then),
        }
    }

    /// A byte of a compressed frame: `0` is 0, `100nnn` one bit, `101nnn` of the dictionary, `11` and a byte itself. Nulls
    /// fill a frame up to 8 bytes, from the front; what is left of its last byte means nothing.
    fn unpack(&mut self, byte: u8, left: usize) {
        self.bits = self.bits << 8 | u32::from(byte);
        self.bit_count += 8;
        while self.bytes.len() < FRAME.next_multiple_of(8) {
            let top = |count: u32| self.bits >> (self.bit_count - count);
            let (width, byte) = match self.bit_count {
                1.. if top(1) & 1 == 0 => (1, 0),
                6.. if top(3) & 7 == 0b100 => (6, 1 << (top(6) & 7)),
                6.. if top(3) & 7 == 0b101 => (6, self.dictionary.unwrap_or_default()[top(6) as usize & 7]),
                10.. if top(2) & 3 == 0b11 => (10, top(10) as u8),
                _ => return,
            };
            self.bytes.push(byte);
            self.bit_count -= width;
            self.bits &= (1 << self.bit_count) - 1;
        }
        self.expect(Next::Crc(After::Frame { compressed: true, left: left - 1 }));
    }
}

const RESET_CRC: u8 = 0x3b;
const VERIFY_ID: u8 = 0xe2;
const WRITE_DICTIONARY: u8 = 0x02;
const PROGRAM_FRAMES: u8 = 0x82;
const PROGRAM_FRAMES_COMPRESSED: u8 = 0xb8;
const WRITE_BLOCK_RAM: u8 = 0xb2;
const PROGRAM_DONE: u8 = 0x5e;

/// Bytes of a command behind its code, as far as they say what comes: information and payload.
fn length(command: u8) -> Option<usize> {
    match command {
        RESET_CRC | PROGRAM_FRAMES | PROGRAM_FRAMES_COMPRESSED | WRITE_BLOCK_RAM | PROGRAM_DONE => Some(3),
        // initial address, security bit, mode of the flash
        0x46 | 0xce | 0x79 => Some(3),
        // control register, user code, address in block RAM
        VERIFY_ID | 0x22 | 0xc2 | 0xf6 => Some(7),
        WRITE_DICTIONARY => Some(11),
        _ => None,
    }
}

/// CRC-16 of polynomial 0x8005, most significant bit first.
fn crc16(crc: u16, byte: u8) -> u16 {
    (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x8005 } else { 0 })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const IDCODE: u32 = 0x8111_2043;

    /// Writes a stream.
    struct Writer {
        bytes: Vec<u8>,
        crc: u16,
    }

    impl Writer {
        fn put(&mut self, bytes: &[u8]) {
            self.bytes.extend(bytes);
            self.crc = bytes.iter().fold(self.crc, |crc, byte| crc16(crc, *byte));
        }

        fn crc(&mut self) {
            self.bytes.extend(std::mem::take(&mut self.crc).to_be_bytes());
        }
    }

    /// A stream of empty frames as a tool would write it, but for their number.
    pub fn blank(idcode: u32, frames: usize, compressed: bool) -> Vec<u8> {
        let mut w = Writer { bytes: vec![0xff, 0xff, 0xbd, 0xb3, 0xff, 0xff], crc: 0 };
        w.put(&[0x3b, 0, 0, 0]);
        w.crc = 0;
        w.put(&[0xe2, 0, 0, 0]);
        w.put(&idcode.to_be_bytes());
        w.put(&[0x22, 0, 0, 0, 0x40, 0, 0, 0]);
        w.put(&[0x46, 0, 0, 0]);
        w.put(&[0x02, 0, 0, 0, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xef]);
        let [high, low] = (frames as u16).to_be_bytes();
        w.put(&[if compressed { 0xb8 } else { 0x82 }, 0x91, high, low]);
        for _ in 0..frames {
            w.put(&vec![0; if compressed { FRAME.div_ceil(8) } else { FRAME }]);
            w.crc();
            w.put(&[0xff]);
        }
        w.bytes.extend([0xff; 12]);
        w.put(&[0xc2, 0x80, 0, 0, 0, 0, 0, 0]);
        w.crc();
        w.put(&[0xf6, 0, 0, 0, 0, 0, 0x08, 0]);
        w.put(&[0xb2, 0xd0, 0, 2]);
        w.put(&[0x5a; 18]);
        w.crc();
        w.put(&[0x5e, 0, 0, 0]);
        w.bytes.extend([0xff; 4]);
        w.bytes
    }

    fn judged(bytes: &[u8]) -> (bool, Option<Fault>) {
        let mut stream = Stream::new(IDCODE);
        bytes.iter().for_each(|byte| stream.push(*byte));
        (stream.is_done(), stream.fault())
    }

    #[test]
    fn the_crc_is_the_one_of_the_catalogue() {
        // CRC-16/UMTS, also called BUYPASS: its check value
        assert_eq!(b"123456789".iter().fold(0, |crc, byte| crc16(crc, *byte)), 0xfee8);
    }

    #[test]
    fn a_whole_stream_is_done_packed_or_not() {
        for compressed in [false, true] {
            assert_eq!(judged(&blank(IDCODE, FRAMES, compressed)), (true, None));
        }
    }

    #[test]
    fn the_four_codes_of_a_packed_frame_mean_what_they_say() {
        let mut stream = Stream::new(IDCODE);
        stream.dictionary = Some([0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17]);
        // 0, 0, one bit (5), of the dictionary (2), itself (0xa7): 0 0 100101 101010 1110100111
        for byte in [0b0010_0101, 0b1010_1011, 0b1010_0111] {
            stream.unpack(byte, 1);
        }
        assert_eq!(stream.bytes, [0, 0, 1 << 5, 0x12, 0xa7]);
    }

    #[test]
    fn a_stream_for_another_device_is_an_id_fault() {
        assert_eq!(judged(&blank(0x4111_2043, FRAMES, true)), (false, Some(Fault::Id)));
    }

    #[test]
    fn a_flipped_bit_in_the_middle_is_a_crc_fault() {
        let mut bytes = blank(IDCODE, FRAMES, true);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        assert_eq!(judged(&bytes), (false, Some(Fault::Crc)));
    }

    #[test]
    fn a_stream_that_ends_early_or_has_too_few_frames_is_never_done() {
        let whole = blank(IDCODE, FRAMES, true);
        assert_eq!(judged(&whole[..whole.len() - 5]), (false, None), "one byte of PROGRAM_DONE is missing");
        assert_eq!(judged(&whole[..whole.len() / 2]), (false, None));
        assert_eq!(judged(&blank(IDCODE, FRAMES - 1, true)), (false, None));
    }

    #[test]
    fn bytes_that_are_no_stream_are_no_command_or_never_begin() {
        assert_eq!(judged(&[0xa5; 100_000]), (false, None));
        assert_eq!(judged(&[0xff, 0xff, 0xbd, 0xb3, 0xff, 0x77, 0, 0, 0]), (false, Some(Fault::Command)));
        // frames before the device was named
        let frames = [0xff, 0xff, 0xbd, 0xb3, 0x82, 0x91, 0x24, 0xfe];
        assert_eq!(judged(&frames), (false, Some(Fault::Command)));
    }
}
