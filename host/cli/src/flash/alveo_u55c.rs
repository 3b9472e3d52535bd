//! `verbena flash alveo-u55c`: the configuration flash of a board, through PCI Express.
//!
//! ```text
//! verbena flash alveo-u55c identify              chip, protection, what stands in the guard's place
//! verbena flash alveo-u55c write verbena.bit     checks file, manifest and chip; writes, reads back; after a power cut: again
//! verbena flash alveo-u55c verify verbena.bit    reads back only
//! verbena flash alveo-u55c erase                 our part; the card then starts from the golden image
//! verbena flash alveo-u55c boot                  has the FPGA loaded anew, if something would start
//! verbena flash alveo-u55c manifest verbena.bit  makes the manifest; needs no card
//! ```
//! The golden image is never written. The manifest of `verbena.bit` is `verbena.json` beside it. A card of any contract will do.
//! The first load of a card that has no bitstream of ours goes by JTAG.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use host::DeviceAddress;
use host::flash::{ALVEO_U55C, CardSpi, Chip, Done, Guard, Image, Layout, Manifest, Step, Update};
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// The flash of this board.
const LAYOUT: &Layout = &ALVEO_U55C;

/// Which card, and what to do.
#[derive(Debug, Args)]
pub struct AlveoArgs {
    /// Card: vfio:0000:01:00.0; default: the first.
    #[arg(short, long, global = true)]
    device: Option<DeviceAddress>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what the flash is and what it holds.
    Identify {
        /// One JSON value.
        #[arg(long)]
        json: bool,
    },
    /// Write a bitstream; run it again after a power cut.
    Write {
        #[command(flatten)]
        file: File,
        /// Take the place of an image that is not ours.
        #[arg(long)]
        replace: bool,
    },
    /// Demand that the flash holds a bitstream.
    Verify {
        #[command(flatten)]
        file: File,
    },
    /// Erase our part of the flash.
    Erase {
        /// Take the place of an image that is not ours.
        #[arg(long)]
        replace: bool,
    },
    /// Load the FPGA anew from the flash.
    Boot,
    /// Make the manifest of a bitstream that was built from this tree.
    Manifest {
        /// As Vivado wrote it.
        file: PathBuf,
    },
}

/// A bitstream and its manifest.
#[derive(Debug, Args)]
struct File {
    /// As Vivado wrote it.
    file: PathBuf,
    /// Its manifest; default: the same name with .json.
    #[arg(long)]
    manifest: Option<PathBuf>,
}

fn read(path: &Path) -> anyhow::Result<Image> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    Image::read(LAYOUT, &bytes).with_context(|| path.display().to_string())
}

impl File {
    /// Both, checked against each other and the board.
    fn checked(&self) -> anyhow::Result<(Image, Manifest)> {
        let image = read(&self.file)?;
        let path = self.manifest.clone().unwrap_or_else(|| self.file.with_extension("json"));
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!(
                "read the manifest {}; it comes with the bitstream, or --manifest names it",
                path.display()
            )
        })?;
        let manifest = image.check(LAYOUT, &text).with_context(|| path.display().to_string())?;
        Ok((image, manifest))
    }
}

/// Does it.
pub fn run(args: &AlveoArgs) -> anyhow::Result<()> {
    let card = || -> anyhow::Result<CardSpi> {
        let address = args.device.clone().map_or_else(DeviceAddress::first, Ok)?;
        Ok(CardSpi::open(address.connect()?)?)
    };
    let flash = || -> anyhow::Result<Update<CardSpi>> { Ok(Update::of(Chip::identify(card()?, LAYOUT)?)) };
    match &args.action {
        Action::Identify { json } => identify(&mut flash()?, *json),
        Action::Write { file, replace } => {
            let (image, manifest) = file.checked()?;
            let done = flash()?.write(&image.data, *replace, told())?;
            println!(
                "{}; {} of contract {}, built {}",
                said(&done),
                manifest.design,
                manifest.contract,
                manifest.built
            );
            println!("it starts at the next power-on, or by `verbena flash {} boot`", LAYOUT.board);
            Ok(())
        }
        Action::Verify { file } => {
            let (image, _) = file.checked()?;
            flash()?.verify(&image.data)?;
            println!("{} bytes are as in {}", image.data.len(), file.file.display());
            Ok(())
        }
        Action::Erase { replace } => {
            let done = flash()?.erase(*replace, told())?;
            println!("{}; the card starts from the golden image from now on", said(&done));
            Ok(())
        }
        Action::Boot => {
            // a flash that cannot be read is no flash to load from
            let mut flash = flash()?;
            let what = match flash.demand_start()? {
                Guard::Blank => "our image (the guard is blank)",
                Guard::Released => "our image (the guard is released)",
                Guard::Armed => {
                    "the golden image (the guard is armed: an update was interrupted, or the flash erased)"
                }
                Guard::Foreign => "an image that is not ours (it begins in the guard's place)",
            };
            flash.chip().spi().reload()?;
            println!("the FPGA loads {what}; the card has left the bus for some seconds. Then, as root:");
            println!("  echo 1 > /sys/bus/pci/devices/FUNCTION/remove; echo 1 > /sys/bus/pci/rescan");
            println!("if it does not come back, restart the machine");
            Ok(())
        }
        Action::Manifest { file } => {
            let manifest = read(file)?.manifest(LAYOUT);
            let path = file.with_extension("json");
            let text = serde_json::to_string_pretty(&manifest)? + "\n";
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            println!("{}", path.display());
            Ok(())
        }
    }
}

fn said(done: &Done) -> String {
    let before = if done.resumed { "an update had been interrupted, or the flash erased: " } else { "" };
    format!("{before}{} bytes written, {} kept", done.written, done.kept)
}

/// Shows how far it is, where somebody looks.
fn told() -> impl FnMut(Step) {
    let looks = std::io::stderr().is_terminal();
    move |step| {
        if !looks {
            return;
        }
        match step {
            Step::Arming => eprint!("\rguard"),
            Step::Writing { done, of } => eprint!("\r{:3} % of {of} bytes", done * 100 / of.max(1)),
            Step::Verifying => eprint!("\rreading back            "),
            Step::Releasing => eprint!("\r                        \r"),
        }
    }
}

fn identify(flash: &mut Update<CardSpi>, as_json: bool) -> anyhow::Result<()> {
    let guard = flash.guard()?;
    let protection = flash.chip().protection()?;
    let (starts, means) = match guard {
        Guard::Blank | Guard::Released if flash.image_begins()? => ("ours", "what follows it starts"),
        Guard::Blank | Guard::Released => ("nothing", "and nothing behind it: run `write`"),
        Guard::Armed => ("golden", "an update was interrupted or the flash erased: run `write`"),
        Guard::Foreign => ("foreign", "an image that is not ours: `write --replace` takes its place"),
    };
    if as_json {
        let value = json!({
            "board": LAYOUT.board, "chip": LAYOUT.chip_name, "bytes": LAYOUT.bytes,
            "guard": { "at": LAYOUT.guard, "state": guard.name(), "starts": starts },
            "image": LAYOUT.image(),
            "protected": { "first": protection.first, "end": protection.end },
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!("board: {}", LAYOUT.board);
    println!("    {:<10} {}, {} MiB", "chip", LAYOUT.chip_name, LAYOUT.bytes >> 20);
    println!("    {:<10} 0x00000000..{:#010x}, never written", "golden", LAYOUT.guard);
    println!("    {:<10} {:#010x}: {}: {means}", "guard", LAYOUT.guard, guard.name());
    println!("    {:<10} {:#010x}..{:#010x}", "image", LAYOUT.image(), LAYOUT.bytes);
    match protection.first < protection.end {
        true => println!("    {:<10} {:#010x}..{:#010x}", "protected", protection.first, protection.end),
        false => println!("    {:<10} nothing", "protected"),
    }
    Ok(())
}
