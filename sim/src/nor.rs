//! A serial NOR flash, as a chip behaves at its pins or byte by byte, with its times, and with a power supply that can go at any
//! instant: one that has commands with four-byte addresses, or an older one with three.
//!
//! ```text
//! pins (select, clock, mosi > miso) ─┐
//! bytes (the driver's trait `Spi`) ──┴> command, when deselected ─> erase | program ─> busy ─> done
//!                                                                       `─ Cut ─> torn, off
//! ```
//! In: commands; [`Cut`]. Out: bytes, status and flags. Programming only clears bits and wraps at the end of its page; erasing
//! and programming need the write latch, take time, and lose everything that is said meanwhile but status and flags; protected
//! places change nothing and raise a flag. A cut leaves what was being programmed with any part of its bits cleared, what was
//! being erased with any contents at all, by the seed; it is weak, however it reads, until it is erased or programmed again.
//! What no sound driver does is kept as a fault. Time passes with bytes and with [`Spi::relax`].

use host::flash::Spi;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::{io, ops::Range, time::Duration};

const PAGE: usize = 256;
const SUBSECTOR: usize = 0x1000;
const SECTOR: usize = 0x1_0000;
/// Of a byte at 15.6 MHz.
const BYTE: Duration = Duration::from_nanos(512);
const PROGRAM: Duration = Duration::from_micros(120);
const ERASE_SUBSECTOR: Duration = Duration::from_millis(50);
const ERASE_SECTOR: Duration = Duration::from_millis(150);

/// When the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The command was said, nothing has begun.
    Before,
    /// In the midst of it.
    During,
    /// So late that it reads as done; it is as weak.
    Late,
    /// It was done, nobody has asked.
    After,
}

/// The power goes at the `operation`th erasure or programming from now, counting from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Which.
    pub operation: u64,
    /// When.
    pub when: When,
}

/// What a command with an address does; an erasure: of how much, in which time.
enum Access {
    Read,
    Program,
    Erase(usize, Duration),
}

/// The chip.
pub struct Nor {
    /// Its contents.
    pub bytes: Vec<u8>,
    /// The status register's protection bits.
    pub protection: u8,
    /// How it names itself.
    pub id: [u8; 3],
    /// What was done to it that no sound driver does.
    pub faults: Vec<String>,
    /// Erasures and programmings so far.
    pub operations: u64,
    /// A byte that no longer takes a program.
    pub worn: Option<usize>,
    /// What a cut has struck and nothing has made good since.
    pub weak: Vec<Range<usize>>,
    /// Bytes of an address.
    address: usize,
    cut: Option<Cut>,
    on: bool,
    choose: ChaCha8Rng,
    now: Duration,
    ready_at: Duration,
    latch: bool,
    flags: u8,
    // of the command that is being said
    command: Vec<u8>,
    // of the pins
    selected: bool,
    level: bool,
    bits_in: u32,
    byte_in: u8,
    byte_out: u8,
}

impl Nor {
    /// A blank chip of that size, whose commands have four-byte addresses.
    pub fn new(id: [u8; 3], bytes: u32, seed: u64) -> Nor {
        Nor {
            bytes: vec![0xff; bytes as usize],
            protection: 0,
            id,
            faults: vec![],
            operations: 0,
            worn: None,
            weak: vec![],
            address: 4,
            cut: None,
            on: true,
            choose: ChaCha8Rng::seed_from_u64(seed),
            now: Duration::ZERO,
            ready_at: Duration::ZERO,
            latch: false,
            flags: 0,
            command: vec![],
            selected: false,
            level: false,
            bits_in: 0,
            byte_in: 0,
            byte_out: 0,
        }
    }

    /// The same of 16 MiB at most, whose commands have three-byte addresses.
    pub fn small(id: [u8; 3], bytes: u32, seed: u64) -> Nor {
        Nor { address: 3, ..Nor::new(id, bytes, seed) }
    }

    /// Plans a power cut.
    pub fn cut(&mut self, cut: Cut) {
        self.cut = Some(Cut { operation: self.operations + cut.operation, ..cut });
    }

    /// Power is there again.
    pub fn power_on(&mut self) {
        (self.on, self.cut, self.latch, self.flags, self.selected) = (true, None, false, 0, false);
        self.ready_at = self.now;
    }

    /// Whether it has power.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Its pins in a clock of whoever drives them; what it drives.
    pub fn pins(&mut self, select_n: bool, clock: bool, mosi: bool) -> bool {
        if !self.on {
            return true;
        }
        if select_n {
            if self.selected {
                if !self.bits_in.is_multiple_of(8) {
                    self.faults.push(format!("deselected after {} bits", self.bits_in));
                } else {
                    self.deselect();
                }
            }
            (self.selected, self.level) = (false, clock);
            // nobody drives it: the board pulls it up
            return true;
        }
        if !self.selected {
            self.select();
            (self.selected, self.level, self.bits_in) = (true, clock, 0);
        }
        if clock && !self.level {
            self.byte_in = self.byte_in << 1 | u8::from(mosi);
            self.bits_in += 1;
            if self.bits_in.is_multiple_of(8) {
                self.take(self.byte_in);
            }
        }
        // a bit stands from the falling edge, or from the selection, until the next falling edge
        if self.bits_in.is_multiple_of(8) && !clock {
            self.byte_out = self.out();
        }
        self.level = clock;
        let at = if clock { (self.bits_in + 7) % 8 } else { self.bits_in % 8 };
        self.byte_out >> (7 - at) & 1 == 1
    }

    fn select(&mut self) {
        self.command.clear();
    }

    fn busy(&self) -> bool {
        self.now < self.ready_at
    }

    /// What it says while the next byte goes in.
    fn out(&self) -> u8 {
        let command = &self.command;
        match command[..] {
            [0x05, ..] => u8::from(self.busy()) | u8::from(self.latch) << 1 | self.protection,
            [0x70, ..] => u8::from(!self.busy()) << 7 | self.flags,
            [0x9f, ..] if !self.busy() => self.id.get(command.len() - 1).copied().unwrap_or(0),
            _ => match self.addressed(command) {
                Some((Access::Read, at, sent)) if !self.busy() => {
                    self.bytes[(at + sent.len()) % self.bytes.len()]
                }
                _ => 0xff,
            },
        }
    }

    /// A command with its address, and what was sent behind that.
    fn addressed<'a>(&self, command: &'a [u8]) -> Option<(Access, usize, &'a [u8])> {
        let (&code, rest) = command.split_first()?;
        let (access, width) = match code {
            0x13 => (Access::Read, 4),
            0x03 => (Access::Read, 3),
            0x12 => (Access::Program, 4),
            0x02 => (Access::Program, 3),
            0x21 => (Access::Erase(SUBSECTOR, ERASE_SUBSECTOR), 4),
            0x20 => (Access::Erase(SUBSECTOR, ERASE_SUBSECTOR), 3),
            0xdc => (Access::Erase(SECTOR, ERASE_SECTOR), 4),
            0xd8 => (Access::Erase(SECTOR, ERASE_SECTOR), 3),
            _ => return None,
        };
        let (address, sent) = rest.split_at_checked(width)?;
        let at = address.iter().fold(0, |at, byte| at << 8 | usize::from(*byte));
        (self.address == width).then_some((access, at, sent))
    }

    fn take(&mut self, byte: u8) {
        self.now += BYTE;
        self.command.push(byte);
    }

    fn deselect(&mut self) {
        let command = std::mem::take(&mut self.command);
        if self.busy() && !matches!(command[..], [0x05 | 0x70, ..] | [0x50] | []) {
            self.faults.push(format!("command {:#04x} while busy", command[0]));
            return;
        }
        match command[..] {
            [] | [0x05 | 0x70 | 0x9f, ..] => return,
            [0x06] => return self.latch = true,
            [0x50] => return self.flags = 0,
            // the end of modes that it never is in: continuous reading, sleep, whatever a reset ends
            [0xff, ..] | [0xab] | [0x66] | [0x99] if self.address == 3 => return,
            _ => {}
        }
        match self.addressed(&command) {
            Some((Access::Read, ..)) => {}
            Some((Access::Program, at, data)) if !data.is_empty() => {
                let page = at / PAGE * PAGE;
                let Some(now) = self.bytes.get(page..page + PAGE) else {
                    self.faults.push(format!("change at {page:#x} beyond the end"));
                    return;
                };
                // beyond the end of the page it goes on at its beginning; of more than a page the last bytes stay
                let mut goal = now.to_vec();
                let struck = at..(at + data.len()).min(page + PAGE);
                let mut mask = [0xff; PAGE];
                for (n, byte) in data.iter().enumerate() {
                    mask[(at + n) % PAGE] = *byte;
                }
                goal.iter_mut().zip(mask).for_each(|(byte, mask)| *byte &= mask);
                if data.len() > PAGE {
                    self.faults.push(format!("{} bytes programmed at once", data.len()));
                }
                self.change(page, goal, PROGRAM, struck);
            }
            Some((Access::Erase(length, time), at, [])) => {
                let at = at / length * length;
                self.change(at, vec![0xff; length], time, at..at + length);
            }
            _ => self.faults.push(format!("unknown command {command:02x?}")),
        }
    }

    fn change(&mut self, at: usize, goal: Vec<u8>, time: Duration, struck: Range<usize>) {
        let erases = goal.len() > PAGE;
        if !std::mem::take(&mut self.latch) {
            self.faults.push(format!("change at {at:#x} without the write latch"));
            return;
        }
        if at + goal.len() > self.bytes.len() {
            self.faults.push(format!("change at {at:#x} beyond the end"));
            return;
        }
        let level = u32::from(self.protection >> 2 & 7 | self.protection >> 3 & 8);
        let covered = if level == 0 { 0 } else { (0x1_0000 << (level - 1)).min(self.bytes.len()) };
        let first = if self.protection & 0x20 == 0 { self.bytes.len() - covered } else { 0 };
        if first.max(at) < (first + covered).min(at + goal.len()) {
            self.flags |= 1 << 1 | if erases { 1 << 5 } else { 1 << 4 };
            return;
        }
        self.weak.retain(|weak| weak.start < struck.start || weak.end > struck.end);
        let cut = self.cut.filter(|cut| cut.operation == self.operations).map(|cut| cut.when);
        self.operations += 1;
        let mut end = goal;
        match cut {
            None | Some(When::After) => {}
            Some(When::Before) => end = self.bytes[at..at + end.len()].to_vec(),
            Some(When::Late) => self.weak.push(struck),
            Some(When::During) => {
                self.weak.push(struck);
                for (n, byte) in end.iter_mut().enumerate() {
                    let any = self.choose.next_u32() as u8;
                    // any of the bits to clear, or anything
                    *byte = if erases { any } else { self.bytes[at + n] & (*byte | any) };
                }
            }
        }
        if let Some(byte) = self.worn.and_then(|worn| end.get_mut(worn.wrapping_sub(at))) {
            *byte = 0xff;
        }
        self.bytes[at..at + end.len()].copy_from_slice(&end);
        self.on = cut.is_none();
        self.ready_at = self.now + time;
    }
}

impl Spi for Nor {
    fn exchange(&mut self, send: &[u8], receive: &mut [u8]) -> io::Result<()> {
        let off = || io::Error::new(io::ErrorKind::BrokenPipe, "the power is gone");
        if !self.on {
            return Err(off());
        }
        self.select();
        send.iter().for_each(|byte| self.take(*byte));
        for byte in receive {
            *byte = self.out();
            self.take(0);
        }
        self.deselect();
        if self.on { Ok(()) } else { Err(off()) }
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn relax(&mut self, _: u32) {
        self.now += Duration::from_micros(50);
    }
}
