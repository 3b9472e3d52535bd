//! Everything that ends an update or keeps it from beginning: operation, object, remedy.

use std::io;
use std::time::Duration;

/// The result of what is done to a flash.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. What begins with a file or a chip happens before anything is erased.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The card could not be opened or reached.
    #[error(transparent)]
    Card(#[from] crate::Error),
    /// The way to the chip failed.
    #[error("{operation}: {source}; run the same command again")]
    Way {
        /// What was tried.
        operation: String,
        /// The answer.
        source: io::Error,
    },
    /// The card has no way to its flash.
    #[error(
        "{name}: this card does not reach its configuration flash; load it by JTAG, or use a bitstream of a board"
    )]
    NoFlash {
        /// The card.
        name: String,
    },
    /// Nothing at the pins.
    #[error(
        "{operation}: the flash answers {answer:#04x} to everything; it has no power, or the bitstream is not made for this board"
    )]
    NoAnswer {
        /// What was to be done.
        operation: &'static str,
        /// What it answers.
        answer: u8,
    },
    /// Another chip than the board's.
    #[error(
        "identify the flash: chip {} is not the {wanted_name} ({}) of {board}; name the board that this is",
        super::hex(found),
        super::hex(wanted)
    )]
    WrongChip {
        /// The board.
        board: &'static str,
        /// Its chip.
        wanted_name: &'static str,
        /// How that names itself.
        wanted: [u8; 3],
        /// What answered.
        found: [u8; 3],
    },
    /// The file is none.
    #[error("read the bitstream: {what}; give the .bit file that Vivado wrote")]
    NotABitstream {
        /// Why not.
        what: &'static str,
    },
    /// The file ends too early.
    #[error("read the bitstream: {have} bytes of {want}; the file is cut off: copy it again")]
    Truncated {
        /// Bytes there are.
        have: usize,
        /// Bytes that its header promises.
        want: usize,
    },
    /// For another FPGA.
    #[error("read the bitstream: it is for {found}, {board} has {wanted}; build it for this board")]
    WrongPart {
        /// The board.
        board: &'static str,
        /// Its part.
        wanted: &'static str,
        /// The bitstream's.
        found: String,
    },
    /// The manifest does not make sense.
    #[error("read the manifest: {what}; take the one that was made with the bitstream")]
    BadManifest {
        /// Why not.
        what: String,
    },
    /// The manifest is of another board.
    #[error("read the manifest: it is of {found}, not of {wanted}; take the bitstream of this board")]
    WrongBoard {
        /// The board asked for.
        wanted: &'static str,
        /// The manifest's.
        found: String,
    },
    /// The bytes are not those of the manifest.
    #[error(
        "check the bitstream: SHA-256 is {found}, the manifest says {wanted}; file and manifest are of two builds, or the file is damaged: fetch both again"
    )]
    WrongHash {
        /// Of the file.
        found: String,
        /// Of the manifest.
        wanted: String,
    },
    /// Somebody wanted to touch what is not ours.
    #[error(
        "{operation} {length} bytes at {at:#010x}: only {first:#010x}..{end:#010x} may be written; the image is too long for this flash"
    )]
    OutOfRegion {
        /// What was to be done.
        operation: &'static str,
        /// First byte.
        at: u32,
        /// Bytes.
        length: usize,
        /// First byte that may be written.
        first: u32,
        /// Byte after the last.
        end: u32,
    },
    /// The chip's protection bits cover what is to be written.
    #[error(
        "{operation} at {at:#010x}: the flash is write-protected there (status {status:#04x}); lift the protection with the maker's tool or by JTAG"
    )]
    WriteProtected {
        /// What was to be done.
        operation: &'static str,
        /// Where.
        at: u32,
        /// Its status register.
        status: u8,
    },
    /// The chip says that it failed.
    #[error(
        "{operation} at {at:#010x}: the flash reports failure (flag status {flags:#04x}); run the same command again; if it fails there again, the flash is worn"
    )]
    Failed {
        /// What was to be done.
        operation: &'static str,
        /// Where.
        at: u32,
        /// Its flag status register.
        flags: u8,
    },
    /// The chip stays busy.
    #[error(
        "{operation} at {at:#010x}: the flash is busy for {waited:?}; switch the machine off and on, and run the same command again"
    )]
    Busy {
        /// What was to be done.
        operation: &'static str,
        /// Where.
        at: u32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Read back something else.
    #[error("verify: {found:#04x} at {at:#010x}, the image has {wanted:#04x}; write it again")]
    Differs {
        /// Where.
        at: u32,
        /// What the flash holds.
        found: u8,
        /// What it should.
        wanted: u8,
    },
    /// The image is there, but the FPGA is sent past it.
    #[error(
        "verify: the image is whole, but an update or an erasure was interrupted: the card starts from the golden image; run `write` again"
    )]
    Guarded,
    /// Loaded anew, the FPGA would read on for ever.
    #[error(
        "boot: nothing would start: the guard is {guard}, and no image begins behind it (no synchronisation word in the 4096 bytes from {at:#010x}); run `write` first: without an image only JTAG reaches the card"
    )]
    NothingStarts {
        /// The guard's state.
        guard: &'static str,
        /// Where an image would begin.
        at: u32,
    },
    /// What stands in the guard's place is the beginning of another image.
    #[error(
        "{operation}: an image that is not ours begins at {at:#010x} (the maker's shell, or one loaded by JTAG at this address); to replace it: --replace; while its first {length} bytes are erased, a power cut leaves the choice of image to the golden image's own watchdog"
    )]
    ForeignImage {
        /// What was to be done.
        operation: &'static str,
        /// Where it begins.
        at: u32,
        /// What is erased first.
        length: u32,
    },
}

impl Error {
    pub(super) fn way(operation: impl Into<String>, source: io::Error) -> Error {
        Error::Way { operation: operation.into(), source }
    }
}
