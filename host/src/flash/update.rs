//! A new image in the flash, in an order in which a power cut at any instant costs nothing but a second run.
//!
//! ```text
//! guard blank ─> arm: words of the guard, its synchronisation last ─> from here on a half image falls back to golden
//!             ─> erase the head of the image (its synchronisation); erase and program the other blocks, the head last
//!             ─> read all of it back
//!             ─> release: the guard's synchronisation to zero       ─> from here on the new image starts
//! ```
//! In: an image that was checked. Out: the flash. What a cut has struck may read well and be weak, and nothing says where it
//! was: so a block is never kept for what it reads, an update writes all of the image. Only where no guard is armed and all of
//! the image is there, it writes nothing, but programs a release again. The guard's synchronisation is programmed last and
//! released by clearing bits, so that no cut makes half of it mean something; it is erased only while an image is whole. A
//! guard that is released or blank may itself be weak until the next update: whatever it turns into, the image behind it starts,
//! or the golden one.

use super::image::demand_synchronised;
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

impl Guard {
    /// For people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Guard::Blank => "blank",
            Guard::Armed => "armed",
            Guard::Released => "released",
            Guard::Foreign => "foreign",
        }
    }
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
    /// The guard was armed before: another was interrupted, or the flash erased.
    pub resumed: bool,
    /// Bytes erased and programmed.
    pub written: usize,
    /// Bytes that were left: all of the image, which was there; of an erasure, those that read blank.
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

    /// Whether an image begins behind the guard: a blank or released one lets the FPGA read on for ever where none does.
    ///
    /// # Errors
    /// The way to the chip failed.
    pub fn image_begins(&mut self) -> Result<bool> {
        let mut head = vec![0; SUBSECTOR as usize];
        self.chip.read(self.chip.layout().image(), &mut head)?;
        Ok(demand_synchronised(&head).is_ok())
    }

    /// Demands that the FPGA, loaded anew, finds something that starts: the guard tells what.
    ///
    /// # Errors
    /// Nothing would start, or the way to the chip failed.
    pub fn demand_start(&mut self) -> Result<Guard> {
        let guard = self.guard()?;
        match guard {
            Guard::Blank | Guard::Released if !self.image_begins()? => {
                Err(Error::NothingStarts { guard: guard.name(), at: self.chip.layout().image() })
            }
            guard => Ok(guard),
        }
    }

    /// Makes the flash hold `image`, whatever was interrupted before.
    ///
    /// # Errors
    /// Before anything is changed: no image, too long, protected, another image in the way (`replace` takes its place). Later:
    /// the chip failed; the card then starts from the golden image until an update goes through.
    pub fn write(&mut self, image: &[u8], replace: bool, mut tell: impl FnMut(Step)) -> Result<Done> {
        let first = self.chip.layout().image();
        self.chip.demand_ours("write", first, image.len())?;
        demand_synchronised(image)?;
        let blocks = self.blocks(first + image.len() as u32);
        let end = blocks.iter().map(|(at, length)| at + length).max().unwrap_or(first);
        self.chip.demand_unprotected("write", self.chip.layout().guard, end - self.chip.layout().guard)?;
        let guard = self.guard()?;
        let mut there = matches!(guard, Guard::Blank | Guard::Released);
        for block in &blocks {
            there = there && self.block(*block)? == wanted(image, first, *block);
        }
        if there {
            if guard == Guard::Released {
                self.release()?;
            }
            return Ok(Done { resumed: false, written: 0, kept: image.len() });
        }
        tell(Step::Arming);
        self.arm(guard, replace)?;
        let mut done = Done { resumed: guard == Guard::Armed, written: 0, kept: 0 };
        // the head holds the synchronisation word: it goes first and comes last
        let (head, rest) = (blocks[0], &blocks[1..]);
        self.chip.erase(head.0, head.1)?;
        for block in rest.iter().chain([&head]) {
            tell(Step::Writing { done: done.written, of: image.len() });
            // one that reads blank, too: a cut may have left it so
            if *block != head {
                self.chip.erase(block.0, block.1)?;
            }
            self.chip.program(block.0, &wanted(image, first, *block))?;
            done.written += (block.1 as usize).min(image.len() - (block.0 - first) as usize);
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
        demand_synchronised(image)?;
        self.compare(image)?;
        match self.guard()? {
            Guard::Blank | Guard::Released => Ok(()),
            Guard::Armed => Err(Error::Guarded),
            Guard::Foreign => Err(self.foreign("verify")),
        }
    }

    /// Erases our part of the flash behind the guard, which stays: the card starts from the golden image. What reads blank is
    /// left: [`Update::write`] erases what it needs once more.
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

    /// Clears the guard's synchronisation, though it may read clear: half of it, which a cut leaves, means nothing, but is weak.
    fn release(&mut self) -> Result<()> {
        self.chip.program(self.sync(), &[0; 4])
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
