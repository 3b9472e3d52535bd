//! The JTAG side of an ECP5: a TAP that a program like openFPGALoader configures, and the configuration flash behind it.
//!
//! ```text
//! openFPGALoader ── XVC, TCP ── cable ── TMS, TDI > TDO ── Tap ─┬─ BITSTREAM_BURST ──> Stream ──> status: DONE or fault
//!                                                               ├─ PROG_SPI ─────────> Nor (the flash, at its pins)
//!                                                               └─ REFRESH: out of the flash through a Stream of its own
//! ```
//! In: clocks. Out: TDO, the status register. Instructions are those of Lattice's FPGA-TN-02039 that such a program uses; any
//! other is BYPASS. The bridge to the flash opens only while the configuration is erased, as the programs take care that it is.
//! Time passes with the cable's transfers. [`Tap::never_done`] is the fault of a board that holds DONE, [`Tap::boots`] how it is set.
//! Our own model: it shows that tool and model agree, not that silicon does.

mod stream;
mod xvc;

pub use stream::{FRAME, FRAMES, Fault, Stream};
pub use xvc::Cable;

use crate::nor::Nor;

/// IDCODE of the LFE5UM5G-45F.
pub const LFE5UM5G_45F: u32 = 0x8111_2043;
/// The N25Q128A of 16 MiB.
pub const N25Q128A: [u8; 3] = [0x20, 0xba, 0x18];

const IDCODE: u8 = 0xe0;
const READ_STATUS: u8 = 0x3c;
const ISC_ENABLE: u8 = 0xc6;
const ISC_DISABLE: u8 = 0x26;
const ISC_ERASE: u8 = 0x0e;
const BITSTREAM_BURST: u8 = 0x7a;
const REFRESH: u8 = 0x79;
const PROG_SPI: u8 = 0x3a;
const PROG_SPI_KEY: u16 = 0x68fe;
const USERCODE: u8 = 0xc0;

const DONE: u32 = 1 << 8;
const ISC: u32 = 1 << 9;
const FAIL: u32 = 1 << 13;
const PREAMBLE: u32 = 1 << 21;

/// States of IEEE 1149.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reset,
    Idle,
    SelectDr,
    CaptureDr,
    ShiftDr,
    Exit1Dr,
    PauseDr,
    Exit2Dr,
    UpdateDr,
    SelectIr,
    CaptureIr,
    ShiftIr,
    Exit1Ir,
    PauseIr,
    Exit2Ir,
    UpdateIr,
}

impl State {
    fn next(self, tms: bool) -> State {
        use State::*;
        let (low, high) = match self {
            Reset => (Idle, Reset),
            Idle | UpdateDr | UpdateIr => (Idle, SelectDr),
            SelectDr => (CaptureDr, SelectIr),
            CaptureDr | ShiftDr => (ShiftDr, Exit1Dr),
            Exit1Dr => (PauseDr, UpdateDr),
            PauseDr => (PauseDr, Exit2Dr),
            Exit2Dr => (ShiftDr, UpdateDr),
            SelectIr => (CaptureIr, Reset),
            CaptureIr | ShiftIr => (ShiftIr, Exit1Ir),
            Exit1Ir => (PauseIr, UpdateIr),
            PauseIr => (PauseIr, Exit2Ir),
            Exit2Ir => (ShiftIr, UpdateIr),
        };
        if tms { high } else { low }
    }
}

/// The device.
pub struct Tap {
    /// Its flash.
    pub flash: Nor,
    /// DONE never rises, whatever is loaded.
    pub never_done: bool,
    /// The board is set to start from its flash.
    pub boots: bool,
    /// Bytes of the last burst.
    pub burst: Vec<u8>,
    idcode: u32,
    state: State,
    instruction: u8,
    /// The register between TDI and TDO, and its length.
    shift: u32,
    length: u32,
    enabled: bool,
    failed: bool,
    /// The bridge to the flash is open.
    bridge: bool,
    /// What was configured since the last erasure; nothing: erased.
    stream: Option<Stream>,
    bits: u32,
    byte: u8,
}

impl Tap {
    /// A device with that IDCODE and that flash, not configured.
    pub fn new(idcode: u32, flash: Nor) -> Tap {
        Tap {
            flash,
            never_done: false,
            boots: true,
            burst: vec![],
            idcode,
            state: State::Reset,
            instruction: IDCODE,
            shift: 0,
            length: 1,
            enabled: false,
            failed: false,
            bridge: false,
            stream: None,
            bits: 0,
            byte: 0,
        }
    }

    /// Whether it runs a configuration.
    pub fn is_done(&self) -> bool {
        self.status() & DONE != 0
    }

    /// A clock of TCK; what TDO was.
    pub fn clock(&mut self, tms: bool, tdi: bool) -> bool {
        let mut tdo = false;
        match self.state {
            State::ShiftDr if self.bridge => {
                tdo = self.flash.pins(false, false, tdi);
                self.flash.pins(false, true, tdi);
            }
            State::ShiftDr | State::ShiftIr => {
                tdo = self.shift & 1 == 1;
                self.shift = self.shift >> 1 | u32::from(tdi) << (self.length - 1);
                if self.state == State::ShiftDr && self.instruction == BITSTREAM_BURST {
                    self.burst_bit(tdi);
                }
            }
            _ => {}
        }
        self.state = self.state.next(tms);
        match self.state {
            State::Reset => (self.instruction, self.bridge) = (IDCODE, false),
            State::CaptureIr => (self.shift, self.length) = (1, 8),
            State::UpdateIr => self.update_instruction(),
            State::CaptureDr => (self.shift, self.length) = self.captured(),
            State::Exit1Dr if self.bridge => {
                self.flash.pins(true, false, false);
            }
            State::UpdateDr => self.update_data(),
            _ => {}
        }
        tdo
    }

    fn status(&self) -> u32 {
        let stream = self.stream.as_ref();
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        flag(stream.is_some_and(Stream::is_done) && !self.never_done, DONE)
            | flag(self.enabled, ISC)
            | flag(self.failed, FAIL)
            | flag(stream.is_some_and(Stream::has_begun), PREAMBLE)
            | stream.and_then(Stream::fault).map_or(0, |fault| (fault as u32) << 23)
    }

    /// What a data register holds when it is about to be shifted, and its length.
    fn captured(&self) -> (u32, u32) {
        match self.instruction {
            IDCODE => (self.idcode, 32),
            READ_STATUS => (self.status(), 32),
            USERCODE => (0, 32),
            PROG_SPI => (0, 16),
            ISC_ENABLE | ISC_ERASE => (0, 8),
            _ => (0, 1),
        }
    }

    fn update_instruction(&mut self) {
        self.instruction = self.shift as u8;
        self.bridge = false;
        match self.instruction {
            ISC_DISABLE => self.enabled = false,
            BITSTREAM_BURST => {
                self.burst.clear();
                self.bits = 0;
                self.failed = !self.enabled || self.stream.is_some();
                if !self.failed {
                    self.stream = Some(Stream::new(self.idcode));
                }
            }
            REFRESH => {
                let mut stream = Stream::new(self.idcode);
                for byte in self.flash.bytes.iter().take_while(|_| self.boots) {
                    stream.push(*byte);
                    if stream.is_over() {
                        break;
                    }
                }
                (self.stream, self.enabled, self.failed) = (Some(stream), false, false);
            }
            _ => {}
        }
    }

    fn update_data(&mut self) {
        match self.instruction {
            ISC_ENABLE => self.enabled = true,
            ISC_ERASE => {
                self.failed = !self.enabled;
                if self.enabled && self.shift & 1 == 1 {
                    self.stream = None;
                }
            }
            PROG_SPI => self.bridge |= self.shift as u16 == PROG_SPI_KEY && self.stream.is_none(),
            _ => {}
        }
    }

    /// The first bit of a byte is its highest.
    fn burst_bit(&mut self, bit: bool) {
        self.byte = self.byte << 1 | u8::from(bit);
        self.bits += 1;
        if self.bits.is_multiple_of(8) {
            self.burst.push(self.byte);
            if let Some(stream) = self.stream.as_mut().filter(|_| !self.failed) {
                stream.push(self.byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stream::tests::blank;

    /// The pins, as a cable moves them.
    struct Pins(Tap);

    impl Pins {
        fn new() -> Pins {
            let mut pins = Pins(Tap::new(LFE5UM5G_45F, Nor::small(N25Q128A, 1 << 24, 1)));
            pins.walk(&[true, true, true, true, true, false]);
            pins
        }

        fn walk(&mut self, tms: &[bool]) {
            for tms in tms {
                self.0.clock(*tms, false);
            }
        }

        /// From idle to idle; the bits that came out.
        fn shift(&mut self, instruction: bool, bits: &[bool]) -> Vec<bool> {
            self.walk(if instruction { &[true, true, false, false] } else { &[true, false, false] });
            let last = bits.len() - 1;
            let out = bits.iter().enumerate().map(|(n, bit)| self.0.clock(n == last, *bit)).collect();
            self.walk(&[true, false]);
            out
        }

        fn instruction(&mut self, code: u8) {
            let captured = self.shift(true, &bits(u32::from(code), 8));
            assert_eq!(number(&captured), 1, "what IEEE 1149.1 wants to see of every TAP");
        }

        fn data(&mut self, value: u32, length: u32) -> u32 {
            number(&self.shift(false, &bits(value, length)))
        }

        fn status(&mut self) -> u32 {
            self.instruction(READ_STATUS);
            self.data(0, 32)
        }

        fn erase(&mut self) {
            self.instruction(ISC_ENABLE);
            self.data(0, 8);
            self.instruction(ISC_ERASE);
            self.data(1, 8);
        }

        fn burst(&mut self, bytes: &[u8]) {
            self.instruction(BITSTREAM_BURST);
            let bits: Vec<bool> =
                bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1)).collect();
            self.shift(false, &bits);
            self.instruction(ISC_DISABLE);
        }

        /// Through the bridge: bytes there and back.
        fn spi(&mut self, bytes: &[u8]) -> Vec<u8> {
            let bits: Vec<bool> =
                bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1)).collect();
            let out = self.shift(false, &bits);
            out.chunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
        }
    }

    fn bits(value: u32, length: u32) -> Vec<bool> {
        (0..length).map(|bit| value >> bit & 1 == 1).collect()
    }

    fn number(bits: &[bool]) -> u32 {
        bits.iter().rev().fold(0, |value, bit| value << 1 | u32::from(*bit))
    }

    #[test]
    fn after_reset_the_idcode_comes_out_and_what_goes_in_comes_after_it() {
        let mut pins = Pins::new();
        let out = pins.shift(false, &[true; 40]);
        assert_eq!((number(&out[..32]), number(&out[32..])), (LFE5UM5G_45F, 0xff));
    }

    #[test]
    fn a_whole_stream_is_done_once_it_was_enabled_and_erased() {
        let mut pins = Pins::new();
        let stream = blank(LFE5UM5G_45F, FRAMES, true);
        pins.burst(&stream);
        assert_eq!(pins.status(), FAIL, "nothing was enabled");
        pins.erase();
        assert_eq!(pins.status(), ISC);
        pins.burst(&stream);
        assert_eq!(pins.status(), DONE | PREAMBLE);
        assert_eq!(pins.0.burst, stream);
        pins.instruction(ISC_ENABLE);
        pins.data(0, 8);
        pins.burst(&stream);
        assert_eq!(pins.status() & FAIL, FAIL, "it was not erased");
    }

    #[test]
    fn a_stream_that_is_cut_off_wrong_or_held_is_not_done() {
        let mut pins = Pins::new();
        let stream = blank(LFE5UM5G_45F, FRAMES, true);
        pins.erase();
        pins.burst(&stream[..5000]);
        assert_eq!(pins.status(), PREAMBLE);
        pins.erase();
        pins.burst(&blank(0x4111_2043, FRAMES, true));
        assert_eq!(pins.status(), PREAMBLE | (Fault::Id as u32) << 23);
        pins.0.never_done = true;
        pins.erase();
        pins.burst(&stream);
        assert_eq!(pins.status(), PREAMBLE);
        assert!(!pins.0.is_done());
    }

    #[test]
    fn the_bridge_opens_with_its_key_to_an_erased_device_and_a_refresh_loads_what_is_in_the_flash() {
        let mut pins = Pins::new();
        let stream = blank(LFE5UM5G_45F, FRAMES, true);
        pins.0.flash.bytes[..stream.len()].copy_from_slice(&stream);
        pins.instruction(REFRESH);
        assert_eq!(pins.status(), DONE | PREAMBLE);
        let open = |pins: &mut Pins, key: u16| {
            pins.instruction(PROG_SPI);
            pins.data(u32::from(key), 16);
            pins.spi(&[0x9f, 0, 0, 0])[1..].to_vec()
        };
        assert_ne!(open(&mut pins, PROG_SPI_KEY), N25Q128A, "a configuration is in the way");
        pins.erase();
        assert_ne!(open(&mut pins, 0x1234), N25Q128A, "not the key");
        assert_eq!(open(&mut pins, PROG_SPI_KEY), N25Q128A);
        assert_eq!(pins.spi(&[3, 0, 0, 2, 0, 0])[4..], [0xbd, 0xb3]);
        assert_eq!(pins.0.flash.faults, [""; 0]);
        // one byte of it programmed away
        pins.spi(&[6]);
        pins.spi(&[2, 0, 0x10, 0, 0x00]);
        pins.0.flash.pass(std::time::Duration::from_millis(1));
        assert_eq!(pins.spi(&[3, 0, 0x10, 0, 0])[4..], [0x00]);
        pins.spi(&[6]);
        pins.spi(&[0x20, 0, 0x10, 0]);
        pins.0.flash.pass(std::time::Duration::from_millis(100));
        assert_eq!(pins.spi(&[3, 0, 0x10, 0, 0])[4..], [0xff]);
        pins.instruction(REFRESH);
        assert_eq!(pins.status(), PREAMBLE | (Fault::Crc as u32) << 23);
        pins.0.boots = false;
        pins.instruction(REFRESH);
        assert_eq!(pins.status(), 0);
    }
}
