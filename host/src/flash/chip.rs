//! Commands of a serial NOR flash with four-byte addresses, and the one gate before everything that changes it.
//!
//! In: addresses and bytes. Out: bytes; a changed flash, when the chip says that it is done. Programming goes page by page,
//! as a program command wraps at the end of its page. Nothing outside of the board's part of the flash is erased or programmed.

use super::{Error, Result, Spi};
use contract::flash::{Layout, PAGE, SECTOR, SUBSECTOR};
use std::time::Duration;

const WRITE_ENABLE: u8 = 0x06;
const READ_STATUS: u8 = 0x05;
const READ_FLAGS: u8 = 0x70;
const CLEAR_FLAGS: u8 = 0x50;
const READ_ID: u8 = 0x9f;
const READ: u8 = 0x13;
const PROGRAM: u8 = 0x12;
const ERASE_SUBSECTOR: u8 = 0x21;
const ERASE_SECTOR: u8 = 0xdc;

const STATUS_BUSY: u8 = 1 << 0;
const STATUS_WRITABLE: u8 = 1 << 1;
const STATUS_BOTTOM: u8 = 1 << 5;
const FLAG_READY: u8 = 1 << 7;
const FLAG_ERASE_FAILED: u8 = 1 << 5;
const FLAG_PROGRAM_FAILED: u8 = 1 << 4;
const FLAG_PROTECTED: u8 = 1 << 1;

/// A page takes 1.8 ms at most, a sector a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of one read command: a multiple of eight with the command's five.
const READ_BYTES: usize = 4096 - 5;

/// What the chip's protection bits cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    /// First byte.
    pub first: u32,
    /// Byte after the last; the same: nothing.
    pub end: u32,
    /// The status register that says so.
    pub status: u8,
}

/// The chip of a board, recognised.
pub struct Chip<S> {
    spi: S,
    layout: &'static Layout,
}

impl<S: Spi> Chip<S> {
    /// Waits until the chip is ready and demands that it is the board's.
    ///
    /// # Errors
    /// Nothing answers, it stays busy, or it is another.
    pub fn identify(spi: S, layout: &'static Layout) -> Result<Chip<S>> {
        let mut chip = Chip { spi, layout };
        let operation = "identify the flash";
        // an error of whoever was here before is not ours; one that was killed may have left it erasing
        chip.exchange(operation, &[CLEAR_FLAGS], &mut [])?;
        chip.wait(operation, 0)?;
        let mut found = [0; 3];
        chip.exchange(operation, &[READ_ID], &mut found)?;
        if found != layout.chip {
            return Err(Error::WrongChip {
                board: layout.board,
                wanted_name: layout.chip_name,
                wanted: layout.chip,
                found,
            });
        }
        Ok(chip)
    }

    /// The board's layout.
    pub fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// The way to it.
    pub fn spi(&self) -> &S {
        &self.spi
    }

    /// What may not be written now.
    ///
    /// # Errors
    /// The way to the chip failed.
    pub fn protection(&mut self) -> Result<Protection> {
        let status = self.register(READ_STATUS)?;
        // BP3 stands apart from BP2..0
        let level = u32::from(status >> 2 & 7 | status >> 3 & 8);
        let covered = match level {
            0 => 0,
            level => SECTOR.checked_shl(level - 1).map_or(self.layout.bytes, |n| n.min(self.layout.bytes)),
        };
        let first = if status & STATUS_BOTTOM != 0 { 0 } else { self.layout.bytes - covered };
        Ok(Protection { first, end: first + covered, status })
    }

    /// Demands that nothing in `at..at + length` is protected.
    pub(super) fn demand_unprotected(&mut self, operation: &'static str, at: u32, length: u32) -> Result<()> {
        let protection = self.protection()?;
        if protection.first.max(at) < protection.end.min(at + length) {
            return Err(Error::WriteProtected { operation, at, status: protection.status });
        }
        Ok(())
    }

    /// Reads; any part of the flash.
    ///
    /// # Errors
    /// The way to the chip failed.
    pub fn read(&mut self, at: u32, data: &mut [u8]) -> Result<()> {
        let mut at = at;
        for piece in data.chunks_mut(READ_BYTES) {
            self.exchange("read the flash", &command(READ, at), piece)?;
            at += piece.len() as u32;
        }
        Ok(())
    }

    /// Erases the sector or subsector of that length that begins at `at`.
    ///
    /// # Errors
    /// Not ours, protected, failed, or never ready.
    pub fn erase(&mut self, at: u32, length: u32) -> Result<()> {
        let operation = "erase";
        self.demand_ours(operation, at, length as usize)?;
        let code = match length {
            SUBSECTOR => ERASE_SUBSECTOR,
            SECTOR => ERASE_SECTOR,
            _ => unreachable!("units of erasure are two"),
        };
        assert!(at.is_multiple_of(length), "erase at {at:#x} would take what lies before it along");
        self.change(operation, at, &command(code, at))
    }

    /// Programs bytes: clears the bits that are 0 in them.
    ///
    /// # Errors
    /// Not ours, protected, failed, or never ready.
    pub fn program(&mut self, at: u32, data: &[u8]) -> Result<()> {
        let operation = "program";
        self.demand_ours(operation, at, data.len())?;
        let (mut at, mut data) = (at, data);
        while !data.is_empty() {
            let room = (PAGE - at % PAGE) as usize;
            let (page, rest) = data.split_at(room.min(data.len()));
            // what is all ones changes nothing
            if page.iter().any(|byte| *byte != 0xff) {
                self.change(operation, at, &[&command(PROGRAM, at)[..], page].concat())?;
            }
            at += page.len() as u32;
            data = rest;
        }
        Ok(())
    }

    /// The gate: only from the guard on, only up to the end.
    pub(super) fn demand_ours(&self, operation: &'static str, at: u32, length: usize) -> Result<()> {
        let (first, end) = (self.layout.guard, self.layout.bytes);
        if at < first || u64::from(at) + length as u64 > u64::from(end) {
            return Err(Error::OutOfRegion { operation, at, length, first, end });
        }
        Ok(())
    }

    fn change(&mut self, operation: &'static str, at: u32, command: &[u8]) -> Result<()> {
        self.exchange(operation, &[WRITE_ENABLE], &mut [])?;
        let status = self.register(READ_STATUS)?;
        if status & STATUS_WRITABLE == 0 {
            return Err(Error::WriteProtected { operation, at, status });
        }
        self.exchange(operation, command, &mut [])?;
        self.wait(operation, at)
    }

    fn wait(&mut self, operation: &'static str, at: u32) -> Result<()> {
        let begin = self.spi.now();
        let mut low = true;
        for turn in 0.. {
            let (flags, status) = (self.register(READ_FLAGS)?, self.register(READ_STATUS)?);
            // what a pin reads that nobody drives
            if (flags, status) == (0xff, 0xff) {
                return Err(Error::NoAnswer { operation, answer: 0xff });
            }
            if flags & FLAG_READY != 0 && status & STATUS_BUSY == 0 {
                return self.judge(operation, at, flags, status);
            }
            // neither busy nor ready: once, when it becomes ready between the two; for good, when the line is stuck
            low &= (flags, status) == (0, 0);
            if self.spi.now() - begin > PATIENCE {
                return Err(match low {
                    true => Error::NoAnswer { operation, answer: 0 },
                    false => Error::Busy { operation, at, waited: PATIENCE },
                });
            }
            self.spi.relax(turn);
        }
        unreachable!("turns do not end")
    }

    fn judge(&mut self, operation: &'static str, at: u32, flags: u8, status: u8) -> Result<()> {
        if flags & (FLAG_ERASE_FAILED | FLAG_PROGRAM_FAILED | FLAG_PROTECTED) == 0 {
            return Ok(());
        }
        self.exchange(operation, &[CLEAR_FLAGS], &mut [])?;
        match flags & FLAG_PROTECTED {
            0 => Err(Error::Failed { operation, at, flags }),
            _ => Err(Error::WriteProtected { operation, at, status }),
        }
    }

    fn register(&mut self, code: u8) -> Result<u8> {
        let mut value = [0];
        self.exchange("read a register of the flash", &[code], &mut value)?;
        Ok(value[0])
    }

    fn exchange(&mut self, operation: &str, send: &[u8], receive: &mut [u8]) -> Result<()> {
        self.spi.exchange(send, receive).map_err(|source| Error::way(operation, source))
    }
}

fn command(code: u8, at: u32) -> [u8; 5] {
    let [a, b, c, d] = at.to_be_bytes();
    [code, a, b, c, d]
}
