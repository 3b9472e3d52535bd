//! A new image in the flash, in an order in which a power cut at any instant costs nothing but a second run.
//!
//! ```text
//! guard blank ─> arm: words of the guard, its synchronisation last ─> from here on a half image falls back to golden
//!             ─> erase the head of the image (its synchronisation), every other block that differs, the head last
//!             ─> read all of it back
//!             ─> release: the guard's synchronisation to zero       ─> from here on the new image starts
//! ```
//! In: an image that was checked. Out: the flash. How far an interrupted update came is read from the flash itself: an armed
//! guard, and block by block what is there already. What a cut may have left half erased or half programmed, though it reads
//! well, is done again: the last block before the first that differs. The guard's synchronisation
//! is programmed last and released by clearing bits, so that no cut makes half of it mean something; it is erased only while an
//! image is whole.

use super::{Chip, Error, Result, Spi};
use contract::flash::{GUARD_SYNC, GUARD_WORDS, GUARD_WORDS_AT, SECTOR, SUBSECTOR, SYNC};

/// What stands in the guard's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Nothing: the image behind it starts.
    Blank,
    /// The guard: half an image falls back to the golden one.
    Armed,
    /// A guard that was released, or half of one: it means nothing, the image behind it starts.
    Released,
    /// The beginning of another image.
    Foreign,
}

/// How far an update is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The guard is being written.
    Arming,
    /// So many bytes of so many are there.
    Writing {
        /// Bytes.
        done: usize,
        /// Of them.
        of: usize,
    },
    /// All of it is read back.
    Verifying,
    /// The guard is being released.
    Releasing,
}

/// What an update did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// It went on where another was interrupted.
    pub resumed: bool,
    /// Bytes erased and programmed.
    pub written: usize,
    /// Bytes that were there already.
    pub kept: usize,
}

/// Unit of erasure: first byte, bytes.
type Block = (u32, u32);

/// The update region of a chip.
pub struct Update<S> {
    chip: Chip<S>,
}

impl<S: Spi> Update<S> {
    /// Of a chip that was recognised.
    pub fn of(chip: Chip<S>) -> Update<S> {
        Update { chip }
    }

    /// The chip.
    pub fn chip(&mut self) -> &mut Chip<S> {
        &mut self.chip
    }

    /// What stands in the guard's place.
    ///
    /// # Errors
    /// The way to the chip failed.
    pub fn guard(&mut self) -> Result<Guard> {
        let mut found = vec![0; SUBSECTOR as usize];
        self.chip.read(self.chip.layout().guard, &mut found)?;
        let wanted = guard();
        let sync = (GUARD_WORDS_AT + 4 * GUARD_SYNC) as usize;
        let elsewhere = |(at, word): (usize, &[u8])| at != sync && word == SYNC.to_be_bytes();
        Ok(if found.iter().all(|byte| *byte == 0xff) {
            Guard::Blank
        } else if found == wanted {
            Guard::Armed
        } else if found.windows(4).enumerate().any(elsewhere) {
            Guard::Foreign
        } else {
            Guard::Released
        })
    }

    /// Makes the flash hold `image`; goes on with an update that was interrupted.
    ///
    /// # Errors
    /// Before anything is changed: too long, protected, another image in the way (`replace` takes its place). Later: the chip
    /// failed; the card then starts from the golden image until an update goes through.
    pub fn write(&mut self, image: &[u8], replace: bool, mut tell: impl FnMut(Step)) -> Result<Done> {
        let first = self.chip.layout().image();
        self.chip.demand_ours("write", first, image.len())?;
        let blocks = self.blocks(first + image.len() as u32);
        // the head holds the synchronisation word: it goes last
        let order: Vec<Block> = blocks[1..].iter().chain(&blocks[..1]).copied().collect();
        let end = order.iter().map(|(at, length)| at + length).max().unwrap_or(first);
        self.chip.demand_unprotected("write", self.chip.layout().guard, end - self.chip.layout().guard)?;
        let guard = self.guard()?;
        let resumed = guard == Guard::Armed;
        let mut differs = order.len();
        for (n, block) in order.iter().enumerate() {
            if self.block(*block)? != wanted(image, first, *block) {
                differs = n;
                break;
            }
        }
        if differs == order.len() && matches!(guard, Guard::Blank | Guard::Released) {
            if guard == Guard::Released {
                self.release()?;
            }
            return Ok(Done { resumed, written: 0, kept: image.len() });
        }
        tell(Step::Arming);
        self.arm(guard, replace)?;
        let from = if resumed { differs.saturating_sub(1) } else { differs };
        let mut done = Done { resumed, written: 0, kept: 0 };
        let head = order[order.len() - 1];
        if from < order.len() - 1 {
            self.blank(head)?;
        }
        for (n, block) in order.iter().enumerate() {
            let goal = wanted(image, first, *block);
            let bytes = goal.len().min(image.len() - (block.0 - first) as usize);
            tell(Step::Writing { done: done.written + done.kept, of: image.len() });
            if n < from || (n > from && self.block(*block)? == goal) {
                done.kept += bytes;
                continue;
            }
            // blank is not enough where a cut may have been
            if resumed || self.block(*block)?.iter().any(|byte| *byte != 0xff) {
                self.chip.erase(block.0, block.1)?;
            }
            self.chip.program(block.0, &goal)?;
            done.written += bytes;
        }
        tell(Step::Verifying);
        self.compare(image)?;
        tell(Step::Releasing);
        self.release()?;
        Ok(done)
    }

    /// Demands that the flash holds `image`, and that the FPGA is sent to it.
    ///
    /// # Errors
    /// It differs, or the guard stands before it.
    pub fn verify(&mut self, image: &[u8]) -> Result<()> {
        self.chip.demand_ours("verify", self.chip.layout().image(), image.len())?;
        self.compare(image)?;
        match self.guard()? {
            Guard::Blank | Guard::Released => Ok(()),
            Guard::Armed => Err(Error::Guarded),
            Guard::Foreign => Err(self.foreign("verify")),
        }
    }

    /// Erases our part of the flash behind the guard, which stays: the card starts from the golden image.
    ///
    /// # Errors
    /// As [`Update::write`].
    pub fn erase(&mut self, replace: bool, mut tell: impl FnMut(Step)) -> Result<Done> {
        let layout = self.chip.layout();
        self.chip.demand_unprotected("erase", layout.guard, layout.bytes - layout.guard)?;
        let guard = self.guard()?;
        tell(Step::Arming);
        self.arm(guard, replace)?;
        let of = (layout.bytes - layout.image()) as usize;
        let mut done = Done { resumed: guard == Guard::Armed, written: 0, kept: 0 };
        for block in self.blocks(layout.bytes) {
            tell(Step::Writing { done: done.written + done.kept, of });
            let erased = self.blank(block)?;
            *if erased { &mut done.written } else { &mut done.kept } += block.1 as usize;
        }
        Ok(done)
    }

    /// Writes the guard, if it does not stand: everything but its synchronisation first, so that no half of it counts.
    fn arm(&mut self, guard: Guard, replace: bool) -> Result<()> {
        let at = self.chip.layout().guard;
        match guard {
            // a cut may have left it readable and weak
            Guard::Armed => return self.chip.program(self.sync(), &SYNC.to_be_bytes()),
            Guard::Foreign if !replace => return Err(self.foreign("write")),
            // blank, too: a cut may have left it so
            Guard::Blank | Guard::Released | Guard::Foreign => self.chip.erase(at, SUBSECTOR)?,
        }
        let mut words = self::guard();
        let sync = (self.sync() - at) as usize;
        words[sync..sync + 4].fill(0xff);
        self.chip.program(at, &words)?;
        self.compare_at(at, &words)?;
        self.chip.program(self.sync(), &SYNC.to_be_bytes())?;
        self.compare_at(at, &self::guard())
    }

    /// Clears the guard's synchronisation, if it is not clear: half of it, which a cut leaves, means nothing, but is weak.
    fn release(&mut self) -> Result<()> {
        let mut word = [0; 4];
        self.chip.read(self.sync(), &mut word)?;
        if word != [0; 4] {
            self.chip.program(self.sync(), &[0; 4])?;
        }
        Ok(())
    }

    fn foreign(&self, operation: &'static str) -> Error {
        Error::ForeignImage { operation, at: self.chip.layout().guard, length: SUBSECTOR }
    }

    /// Where the guard's synchronisation word is.
    fn sync(&self) -> u32 {
        self.chip.layout().guard + GUARD_WORDS_AT + 4 * GUARD_SYNC
    }

    /// Units of erasure from the image's first byte until `end`: the largest that are aligned.
    fn blocks(&self, end: u32) -> Vec<Block> {
        let mut at = self.chip.layout().image();
        let mut blocks = vec![];
        while at < end {
            let length = if at.is_multiple_of(SECTOR) { SECTOR } else { SUBSECTOR };
            blocks.push((at, length));
            at += length;
        }
        blocks
    }

    fn block(&mut self, (at, length): Block) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length as usize];
        self.chip.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Erases a block that is not blank; whether it was not.
    fn blank(&mut self, block: Block) -> Result<bool> {
        let dirty = self.block(block)?.iter().any(|byte| *byte != 0xff);
        if dirty {
            self.chip.erase(block.0, block.1)?;
        }
        Ok(dirty)
    }

    fn compare(&mut self, image: &[u8]) -> Result<()> {
        self.compare_at(self.chip.layout().image(), image)
    }

    fn compare_at(&mut self, at: u32, wanted: &[u8]) -> Result<()> {
        let mut found = vec![0; wanted.len()];
        self.chip.read(at, &mut found)?;
        match found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
            None => Ok(()),
            Some(n) => Err(Error::Differs { at: at + n as u32, found: found[n], wanted: wanted[n] }),
        }
    }
}

/// The guard's subsector.
fn guard() -> Vec<u8> {
    let mut bytes = vec![0xff; SUBSECTOR as usize];
    let words: Vec<u8> = GUARD_WORDS.iter().flat_map(|word| word.to_be_bytes()).collect();
    let at = GUARD_WORDS_AT as usize;
    bytes[at..at + words.len()].copy_from_slice(&words);
    bytes
}

/// What a block is to hold: the image, blank behind it.
fn wanted(image: &[u8], first: u32, (at, length): Block) -> Vec<u8> {
    let from = (at - first) as usize;
    let mut bytes = image[from..image.len().min(from + length as usize)].to_vec();
    bytes.resize(length as usize, 0xff);
    bytes
}
