//! openFPGALoader: a program of its own, which the distribution packages, as the way to a board's JTAG port.
//!
//! ```text
//! --detect                            ─> IDCODEs of the chain; 0.10 drops their highest digit
//! --write-sram --verbose FILE.bit     ─> the whole IDCODE is the file's; loaded; the status register, read back, says DONE
//! --write-flash --verify FILE.bit     ─> written, read back by it, and loaded from there until DONE
//! ```
//! In: a bitstream that was checked. Out: what the program was seen to say; what it does not say did not happen. It ends when the
//! program does. Versions 0.10 (Debian 12) and 0.13 (Debian 13) are known to say it.

use super::ecp5_versa::{Error, Result};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = "openFPGALoader";

/// The program with what it needs to reach the board.
pub struct Loader<'a> {
    /// Such as `--cable ft2232`.
    pub cable: &'a [String],
}

impl Loader<'_> {
    /// IDCODEs of all devices of the chain.
    pub fn idcodes(&self) -> Result<Vec<u32>> {
        let operation = "identify the FPGA";
        let output = self.run(operation, &["--detect".as_ref()])?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        demand_success(operation, &output)?;
        Ok(idcodes(&text))
    }

    /// Loads the FPGA, which forgets it without power.
    pub fn load(&self, file: &Path) -> Result<()> {
        let operation = "load the FPGA";
        // verbose: only then it tells the status of a success
        let arguments = ["--write-sram", "--verbose", "--file-type", "bit"].map(OsStr::new);
        let output = self.run(operation, &[&arguments[..], &[file.as_os_str()]].concat())?;
        if let Some(found) = mismatch(&String::from_utf8_lossy(&output.stderr)) {
            return Err(Error::WrongDevice { found });
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // what it has shown before tells of what was there before
        let status_behind = |words: &str| text.rsplit_once(words).and_then(|(_, behind)| status(behind));
        let refused = status_behind("Enable configuration")
            .filter(|status| status.iter().any(|line| line.ends_with(" ERR")));
        if let Some(status) = refused {
            return Err(Error::Refused { operation, status: status.join(", ") });
        }
        demand_success(operation, &output)?;
        let status = status_behind("Disable configuration")
            .ok_or(Error::Unsaid { operation, what: "the status register" })?;
        match status.iter().any(|line| line == "Done Flag") {
            true => Ok(()),
            // it has come to the end of the bitstream without an error, and asks no more
            false => Err(Error::NotDone { operation, status: status.join(", ") }),
        }
    }

    /// Writes the configuration flash, compares, and has the FPGA load from it.
    pub fn write_flash(&self, file: &Path) -> Result<()> {
        let operation = "write the configuration flash";
        let arguments = ["--write-flash", "--verify", "--file-type", "bit"].map(OsStr::new);
        let output = self.run(operation, &[&arguments[..], &[file.as_os_str()]].concat())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let both = text.clone() + String::from_utf8_lossy(&output.stderr);
        if let Some(at) = differs_at(&both) {
            return Err(Error::Differs { at });
        }
        let verifying = text.rsplit_once("Verifying write").map_or("", |(_, after)| after);
        let compared = verifying.split("Refresh: ").next().is_some_and(|text| text.contains("Done\n"));
        match (output.status.success(), compared) {
            // it comes last, and ends well only with DONE
            (true, true) if text.contains("Refresh: DONE") => Ok(()),
            (true, true) => Err(Error::Unsaid { operation, what: "a start from the flash" }),
            (true, false) => Err(Error::Unsaid { operation, what: "reading back" }),
            // found the same
            (false, true) => Err(Error::NotStarted { status: status(&text).unwrap_or_default().join(", ") }),
            (false, false) => Err(failed(operation, &output)),
        }
    }

    fn run(&self, operation: &'static str, arguments: &[&OsStr]) -> Result<Output> {
        let mut command = Command::new(PROGRAM);
        command.args(self.cable).args(arguments);
        let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        eprintln!("{operation}: {PROGRAM} {}", words.join(" "));
        command.output().map_err(|source| match source.kind() {
            ErrorKind::NotFound => Error::NotInstalled { operation },
            _ => Error::Start { operation, source },
        })
    }
}

fn demand_success(operation: &'static str, output: &Output) -> Result<()> {
    if output.status.success() { Ok(()) } else { Err(failed(operation, output)) }
}

fn failed(operation: &'static str, output: &Output) -> Error {
    let mut words = last_words(&String::from_utf8_lossy(&output.stderr));
    if words.is_empty() {
        words = last_words(&String::from_utf8_lossy(&output.stdout));
    }
    Error::Failed { operation, how: output.status.to_string(), words }
}

/// The last lines, as one.
fn last_words(text: &str) -> String {
    let lines: Vec<_> = text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(5)..].join(" / ")
}

/// Lines `idcode 0x81112043`.
fn idcodes(text: &str) -> Vec<u32> {
    let codes = text.lines().filter_map(|line| line.trim().strip_prefix("idcode "));
    codes.filter_map(|code| u32::from_str_radix(code.trim().trim_start_matches("0x"), 16).ok()).collect()
}

/// The lines of the last status register that it has shown.
fn status(text: &str) -> Option<Vec<String>> {
    let (_, block) = text.rsplit_once("displayReadReg\n")?;
    let lines = block.lines().take_while(|line| line.starts_with('\t'));
    Some(lines.map(|line| line.trim().to_owned()).collect())
}

/// What the FPGA says of itself, when `bitstream has 0x81112043 hardware requires 0x01112043`.
fn mismatch(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("mismatch between target's idcode and bitstream idcode")?;
    Some(rest.split_once("hardware requires ")?.1.split_whitespace().next()?.to_owned())
}

/// `Verification failed at 1234`.
fn differs_at(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("Verification failed at ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
