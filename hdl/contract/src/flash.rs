//! How the configuration flash of each board is laid out: who may write where.
//!
//! ```text
//! 0 ........... golden image, the maker's; never written by us
//! guard ....... one subsector: blank, or words that make the FPGA fall back to the golden image
//! image ....... ours, up to the end of the flash
//! ```
//! The golden image starts the FPGA at `guard`. There, blank bytes are passed over, so that the image behind them runs.
//! With the guard's words, what follows them runs under a watchdog: half an image never stays. In: nothing. Out: constants.

/// Smallest unit that is erased, and the size of the guard.
pub const SUBSECTOR: u32 = 0x1000;
/// Largest unit that is erased here.
pub const SECTOR: u32 = 0x1_0000;
/// What one program command can reach: it wraps at the end of a page.
pub const PAGE: u32 = 0x100;

/// Where the guard's words begin in its subsector; blank before and behind them.
pub const GUARD_WORDS_AT: u32 = PAGE;
/// The guard, in the order of configuration: bus width detection, synchronisation, watchdog on.
pub const GUARD_WORDS: [u32; 12] = [
    0xffff_ffff,
    0x0000_00bb,
    0x1122_0044,
    0xffff_ffff,
    0xffff_ffff,
    SYNC,
    0x2000_0000, // no operation
    0x2000_0000,
    0x3002_2001, // one word to TIMER
    0x4000_0002, // on while the FPGA is configured, and short
    0x2000_0000,
    0x2000_0000,
];
/// Which of [`GUARD_WORDS`] is [`SYNC`]: without it none of the others means anything.
pub const GUARD_SYNC: u32 = 5;
/// What turns bytes into configuration words.
pub const SYNC: u32 = 0xaa99_5566;

/// The flash of a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Name of the board.
    pub board: &'static str,
    /// Part that a bitstream must be for, as its header says it.
    pub part: &'static str,
    /// The three bytes by which the chip names itself.
    pub chip: [u8; 3],
    /// The chip, for people.
    pub chip_name: &'static str,
    /// Bytes of the chip.
    pub bytes: u32,
    /// Where the golden image sends the FPGA. Nothing below is ever written.
    pub guard: u32,
}

impl Layout {
    /// Where our image begins.
    pub const fn image(&self) -> u32 {
        self.guard + SUBSECTOR
    }
}

/// Alveo U55C: Micron MT25QU01G.
pub const ALVEO_U55C: Layout = Layout {
    board: "alveo-u55c",
    part: "xcu55c-fsvh2892-2L-e",
    chip: [0x20, 0xbb, 0x21],
    chip_name: "MT25QU01G",
    bytes: 128 << 20,
    guard: 0x0100_2000,
};
