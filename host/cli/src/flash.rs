//! `verbena flash BOARD`: a bitstream into a board.
//!
//! ```text
//! verbena flash alveo-u55c ...    its configuration flash, through PCI Express: identify, write, verify, erase, boot
//! verbena flash ecp5-versa ...    its FPGA or its configuration flash, by JTAG
//! ```
//! Each of them checks file and manifest before it touches the board, and reads back.

mod alveo_u55c;
mod ecp5_versa;
mod openfpgaloader;

use clap::{Args, Subcommand};

/// Which board.
#[derive(Debug, Args)]
#[command(subcommand_value_name = "BOARD", subcommand_help_heading = "Boards")]
pub struct FlashArgs {
    #[command(subcommand)]
    board: Board,
}

#[derive(Debug, Subcommand)]
enum Board {
    /// AMD Alveo U55C: its configuration flash, through PCI Express.
    #[command(name = "alveo-u55c")]
    AlveoU55c(alveo_u55c::AlveoArgs),
    /// Lattice ECP5-5G Versa: its FPGA or its configuration flash, by JTAG.
    #[command(name = "ecp5-versa")]
    Ecp5Versa(ecp5_versa::VersaArgs),
}

/// Does it.
pub fn run(args: &FlashArgs) -> anyhow::Result<()> {
    match &args.board {
        Board::AlveoU55c(args) => alveo_u55c::run(args),
        Board::Ecp5Versa(args) => Ok(ecp5_versa::run(args)?),
    }
}
