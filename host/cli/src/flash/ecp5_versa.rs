//! `verbena flash ecp5-versa`: the bitstream of an ECP5-5G Versa into its FPGA, or with `--spi` into its configuration flash.
//!
//! ```text
//! manifest.toml, versa.bit ─> whole? for this FPGA? of this hash? ─> the FPGA's IDCODE ─> openFPGALoader ─> read back: DONE, bytes
//!                                                                                         (JTAG, by USB)
//! ```
//! In: what `cargo ci board ecp5-versa` has built, and the manifest that vouches for it. Out: a running FPGA; an error that says what
//! to do. Nothing of the board is changed before file, manifest and IDCODE are as they must be, and nothing of the flash before
//! the FPGA itself has taken the very bitstream. What follows `--` tells openFPGALoader how to reach the board. A flash that is
//! half written does not start; the FPGA can be loaded all the same.

use super::openfpgaloader::Loader;
use clap::Args;
use host::flash::{hex, sha256};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The FPGA of the board, as manifests name it, and its IDCODE.
const DEVICE: &str = "LFE5UM5G-45F-8BG381C";
const IDCODE: u32 = 0x8111_2043;
/// What old versions of openFPGALoader show of an IDCODE. The revision alone tells this FPGA from one with slower transceivers.
const WITHOUT_REVISION: u32 = 0x0fff_ffff;

/// What to load, and how.
#[derive(Debug, Args)]
pub struct VersaArgs {
    /// As `cargo ci board ecp5-versa` wrote it.
    #[arg(default_value = "target/boards/ecp5-versa/out/versa.bit")]
    file: PathBuf,
    /// What vouches for it.
    #[arg(long, default_value = "bitstreams/ecp5-versa/manifest.toml")]
    manifest: PathBuf,
    /// Into the configuration flash, to start with the power; else the FPGA has it until the power goes.
    #[arg(long)]
    spi: bool,
    /// How openFPGALoader reaches the board.
    #[arg(last = true, default_values = ["--cable", "ft2232"])]
    cable: Vec<String>,
}

/// The result of what is done to the board.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that ends a load or keeps it from beginning. Those of file, manifest and IDCODE come before the board is changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No manifest.
    #[error(
        "read the manifest {}: {source}; it comes with the bitstream: name it by --manifest, or be in the root of the tree", path.display()
    )]
    NoManifest { path: PathBuf, source: io::Error },
    /// It does not make sense.
    #[error("read the manifest {}: {what}; take the one that was made with the bitstream", path.display())]
    BadManifest { path: PathBuf, what: String },
    /// Of another FPGA.
    #[error("read the manifest {}: it is of {found}, this board has {DEVICE}; take the one of this board", path.display())]
    WrongBoard { path: PathBuf, found: String },
    /// No file.
    #[error("read the bitstream {}: {source}; build it by `cargo ci board ecp5-versa`, or name it", path.display())]
    NoFile { path: PathBuf, source: io::Error },
    /// The file is none.
    #[error("read the bitstream {}: {what}; give the .bit file that ecppack wrote", path.display())]
    NotABitstream { path: PathBuf, what: &'static str },
    /// Its end is missing.
    #[error(
        "read the bitstream {}: its {bytes} bytes do not end as a bitstream does; the file is cut off: copy it again", path.display()
    )]
    Truncated { path: PathBuf, bytes: usize },
    /// For another FPGA.
    #[error(
        "read the bitstream {}: it is for the device {found:#010x}, this board has {IDCODE:#010x} ({DEVICE}); build it for this board",
        path.display()
    )]
    WrongPart { path: PathBuf, found: u32 },
    /// The bytes are not those of the manifest.
    #[error(
        "check the bitstream: SHA-256 is {found}, the manifest says {wanted}; file and manifest are of two builds, or the file is damaged: fetch or build both again"
    )]
    WrongHash { found: String, wanted: String },
    /// No openFPGALoader.
    #[error(
        "{operation}: openFPGALoader is not installed; `apt install openfpgaloader`, or your distribution's package"
    )]
    NotInstalled { operation: &'static str },
    /// It does not start.
    #[error(
        "{operation}: openFPGALoader does not start: {source}; see that `openFPGALoader --Version` works"
    )]
    Start { operation: &'static str, source: io::Error },
    /// It gave up.
    #[error(
        "{operation}: openFPGALoader gave up ({how}): {words}; see that the board has power and its USB port is plugged in, that you may use that, and what else holds it; several boards: -- --cable ft2232 --ftdi-serial SERIAL"
    )]
    Failed { operation: &'static str, how: String, words: String },
    /// Nobody in the chain.
    #[error(
        "identify the FPGA: no device answers; see that the board has power, and the jumpers of its JTAG chain: J50, 1-2 and 3-5"
    )]
    NoDevice,
    /// Others in the chain.
    #[error(
        "identify the FPGA: {found} answers, not {IDCODE:#010x} ({DEVICE}); it is another board: choose the right one by -- and the options of openFPGALoader"
    )]
    WrongDevice { found: String },
    /// The FPGA has found fault with what came in.
    #[error(
        "{operation}: the FPGA refuses what came in (status register: {status}); file and manifest agree, so bits may be lost on the way: try a slower clock, -- --cable ft2232 --freq 1000000"
    )]
    Refused { operation: &'static str, status: String },
    /// Loaded, and does not start.
    #[error(
        "{operation}: all bytes went in, but DONE did not rise (status register: {status}); switch the board off and on and load it again; if it stays so, something on the board holds DONE"
    )]
    NotDone { operation: &'static str, status: String },
    /// The flash is right, and the FPGA does not start from it.
    #[error(
        "start from the flash: it holds the bitstream, but DONE did not rise (status register: {status}); see that the board is set to start from its flash (master SPI); without --spi the FPGA can be loaded all the same"
    )]
    NotStarted { status: String },
    /// Read back something else.
    #[error(
        "verify: the flash holds other bytes than were written, the first at {at:#08x}; write it again; if it fails there again, the flash is worn or protected; without --spi the FPGA can still be loaded"
    )]
    Differs { at: u32 },
    /// A version that does not say what has to be known.
    #[error(
        "{operation}: openFPGALoader ended well but said nothing of {what}; this version is not known: use 0.10 to 0.13"
    )]
    Unsaid { operation: &'static str, what: &'static str },
}

/// What of a manifest counts here.
#[derive(Debug, Deserialize)]
struct Manifest {
    top: String,
    device: String,
    sha256: BTreeMap<String, String>,
}

/// Does it.
pub fn run(args: &VersaArgs) -> Result<()> {
    let wanted = vouched(&args.manifest)?;
    let path = &args.file;
    let file = std::fs::read(path).map_err(|source| Error::NoFile { path: path.clone(), source })?;
    check(path, &file, &wanted)?;
    let loader = Loader { cable: &args.cable };
    let found = loader.idcodes()?;
    if found.is_empty() {
        return Err(Error::NoDevice);
    }
    // without the revision it may be ours: then it is asked again before it is loaded
    if !found.iter().any(|found| [IDCODE, IDCODE & WITHOUT_REVISION].contains(found)) {
        let found: Vec<_> = found.iter().map(|idcode| format!("{idcode:#010x}")).collect();
        return Err(Error::WrongDevice { found: found.join(", ") });
    }
    loader.load(path)?;
    if args.spi {
        loader.write_flash(path)?;
        println!("{} is in the configuration flash, reads back and has started from there", path.display());
    } else {
        println!("{} is loaded and runs until the power goes; --spi writes the flash", path.display());
    }
    Ok(())
}

/// The hash that the manifest vouches for.
fn vouched(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::NoManifest { path: path.to_owned(), source })?;
    let bad = |what: String| Error::BadManifest { path: path.to_owned(), what };
    let manifest: Manifest = toml::from_str(&text).map_err(|error| bad(error.message().to_owned()))?;
    if manifest.device != DEVICE {
        return Err(Error::WrongBoard { path: path.to_owned(), found: manifest.device });
    }
    let name = format!("{}.bit", manifest.top);
    manifest.sha256.get(&name).cloned().ok_or_else(|| bad(format!("it has no hash of {name}")))
}

/// Demands a whole bitstream for this FPGA with that hash.
fn check(path: &Path, file: &[u8], wanted: &str) -> Result<()> {
    let cut = || Error::Truncated { path: path.to_owned(), bytes: file.len() };
    let not = |what| Error::NotABitstream { path: path.to_owned(), what };
    const COMMENT: [u8; 2] = [0xff, 0x00];
    const PREAMBLE: [u8; 4] = [0xff, 0xff, 0xbd, 0xb3];
    if !file.starts_with(&COMMENT) {
        return Err(if COMMENT.starts_with(file) { cut() } else { not("it does not begin as one") });
    }
    let begin = file.windows(4).position(|word| word == PREAMBLE).ok_or_else(|| not("it has no preamble"))?;
    let mut at = begin + PREAMBLE.len();
    let found = loop {
        at += match file.get(at).ok_or_else(cut)? {
            // a dummy; the flash's mode, a new CRC; the check of the IDCODE
            0xff => 1,
            0x79 | 0x3b => 4,
            0xe2 => {
                let idcode = file.get(at + 4..at + 8).and_then(|bytes| bytes.try_into().ok());
                break u32::from_be_bytes(idcode.ok_or_else(cut)?);
            }
            _ => return Err(not("it does not say for which device it is")),
        }
    };
    if found != IDCODE {
        return Err(Error::WrongPart { path: path.to_owned(), found });
    }
    // the last command lets the FPGA start; dummies follow
    let end = file.iter().rposition(|byte| *byte != 0xff).map_or(0, |last| last + 1);
    if !file[..end].ends_with(&[0x5e, 0, 0, 0]) {
        return Err(cut());
    }
    let found = hex(&sha256(file));
    match found.eq_ignore_ascii_case(wanted) {
        true => Ok(()),
        false => Err(Error::WrongHash { found, wanted: wanted.to_owned() }),
    }
}
