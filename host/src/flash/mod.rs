//! The configuration flash of a board: what is in it, and how a new image gets there without ever losing the card.
//!
//! ```text
//! bitstream, manifest > Image > Update > Chip > Spi > registers `flash_*` > flash
//!                                        |       `- any other: a model in a test
//!                                        `- refuses whatever lies outside of our part of the flash
//! ```
//! In: a bitstream as Vivado writes it and the manifest of who built it. Out: the flash, in which at every instant either
//! the old image is whole, or the new one, or the guard sends the FPGA back to the golden image (the order: [`Update`]). It
//! needs the registers of the flash only, which never move: a card of any contract can be repaired. Every wait is bounded. It
//! never erases or programs a byte below the guard, and nothing before file, hash, part, chip and protection are as they must
//! be.

mod chip;
mod error;
mod image;
mod update;

pub use chip::{Chip, Protection};
pub use contract::flash::{ALVEO_U55C, Layout};
pub use error::{Error, Result};
pub use image::{Image, Manifest, hex, sha256};
pub use update::{Done, Guard, Step, Update};

use crate::backend::{Backend, Bar};
use crate::device::{read32, read64, recognise, write32, write64};
use contract::register as reg;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The way to a flash chip.
pub trait Spi {
    /// Selects the chip, sends, receives, deselects.
    ///
    /// # Errors
    /// The way to the chip failed; it may have taken the command or not.
    fn exchange(&mut self, send: &[u8], receive: &mut [u8]) -> io::Result<()>;

    /// The clock that bounds waits.
    fn now(&self) -> Duration;

    /// Called between the polls of a wait, `turn` counting from 0.
    fn relax(&mut self, turn: u32);
}

/// The chip behind a card's registers.
pub struct CardSpi {
    backend: Arc<dyn Backend>,
}

/// Eight bytes at 15.6 MHz take 4 us.
const TRANSFER: Duration = Duration::from_millis(100);

impl CardSpi {
    /// The flash of the card behind `backend`, of whatever contract.
    ///
    /// # Errors
    /// No card of ours, or one that does not reach its flash.
    pub fn open(backend: Arc<dyn Backend>) -> Result<CardSpi> {
        recognise(&*backend)?;
        if read32(&*backend, reg::FEATURES)? & reg::feature::FLASH == 0 {
            return Err(Error::NoFlash { name: backend.name().to_owned() });
        }
        let mut spi = CardSpi { backend };
        // the start-up block swallows the first clocks after configuration; nobody is selected
        spi.transfer(0, 0, 1).map_err(|source| Error::way("start the clock of the flash", source))?;
        Ok(spi)
    }

    /// Has the FPGA loaded anew. The card leaves the bus; this may be the last that is heard of it.
    ///
    /// # Errors
    /// The way to the card failed.
    pub fn reload(&self) -> Result<()> {
        Ok(write32(&*self.backend, reg::FLASH_RELOAD, reg::FLASH_RELOAD_KEY)?)
    }

    fn transfer(&mut self, select: u32, word: u64, bytes: usize) -> io::Result<()> {
        let lost = |error: crate::Error| io::Error::other(error.to_string());
        write64(&*self.backend, reg::FLASH_DATA, word).map_err(lost)?;
        let start = u64::from(select) | (bytes as u64) << 32;
        write64(&*self.backend, reg::FLASH_CONTROL, start).map_err(lost)?;
        let begin = self.backend.now();
        for turn in 0.. {
            // both halves at once: the upper one alone may come from the latch
            if read64(&*self.backend, reg::FLASH_CONTROL).map_err(lost)? >> 32 == 0 {
                break;
            }
            if self.backend.now() - begin > TRANSFER {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "a transfer does not end"));
            }
            self.backend.relax(turn);
        }
        Ok(())
    }
}

impl Spi for CardSpi {
    fn exchange(&mut self, send: &[u8], receive: &mut [u8]) -> io::Result<()> {
        let mut all = send.to_vec();
        all.resize(send.len() + receive.len(), 0);
        let mut at = 0;
        let result = all.chunks_mut(8).try_for_each(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.transfer(reg::FLASH_SELECT, u64::from_le_bytes(word), chunk.len())?;
            at += chunk.len();
            if at > send.len() {
                let word = self.backend.read64(Bar::Registers, reg::FLASH_DATA.into())?.to_le_bytes();
                chunk.copy_from_slice(&word[8 - chunk.len()..]);
            }
            Ok(())
        });
        let deselected = self.backend.write32(Bar::Registers, reg::FLASH_CONTROL.into(), 0);
        receive.copy_from_slice(&all[send.len()..]);
        result.and(deselected)
    }

    fn now(&self) -> Duration {
        self.backend.now()
    }

    fn relax(&mut self, turn: u32) {
        self.backend.relax(turn);
    }
}
