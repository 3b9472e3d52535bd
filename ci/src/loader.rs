//! `verbena flash ecp5-versa` by the real openFPGALoader, against the model of an ECP5's JTAG port.
//!
//! ```text
//!   small design of `ecp5`: rgmii_loop.bit, manifest.toml ─┐
//!   Debian's openFPGALoader, unpacked under target ────────┴─> verbena's tests `ecp5_versa`, with those that are ignored elsewhere
//! ```
//! In: a built bitstream. Out: the tests' verdict. Nothing is installed; a machine that cannot fetch the package says NOT SHOWN.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    apt::{self, Apt},
    run,
    step::Verdict,
};

/// Where the package comes from.
const RELEASE: &str = "trixie";
const PACKAGE: &str = "openfpgaloader";
/// The program runs by the loader and the libraries of its release.
const PROGRAM: &str = r#"#!/bin/sh
root=${0%/*}/../root
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" "$root/usr/bin/openFPGALoader" "$@"
"#;

/// Runs the tests with the bitstream and the manifest that are in `built`.
pub fn tests(built: &Path) -> Result<Verdict> {
    let folder = match program() {
        Ok(folder) => folder,
        Err(error) => return Ok(Verdict::Skipped(format!("NOT SHOWN, no openFPGALoader: {error:#}"))),
    };
    let path = std::env::var("PATH").context("no PATH")?;
    // of the whole workspace, so that nothing is built with other features than `cargo test` did
    let mut tests = run::cargo(["test", "--workspace", "--test", "ecp5_versa", "--", "--include-ignored"]);
    tests.env("PATH", format!("{}:{path}", folder.display())).env("ECP5_BUILT", built);
    run::show(&mut tests).map(|()| Verdict::Passed)
}

/// The folder that holds the program, fetched on first use.
fn program() -> Result<PathBuf> {
    let home = run::target().join(PACKAGE);
    let (bin, stamp) = (home.join("bin"), home.join("complete"));
    let wanted = format!("{RELEASE} {PACKAGE}\n{PROGRAM}");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(bin);
    }
    if home.exists() {
        fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
    }
    let apt = Apt::updated(&home.join("apt"), &[RELEASE])?;
    apt::unpack(&apt.fetch("packages", &[PACKAGE])?, &home.join("root"))?;
    fs::remove_dir_all(apt.home())?;
    fs::create_dir(&bin)?;
    let program = bin.join("openFPGALoader");
    fs::write(&program, PROGRAM)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    run::show(run::command("env", [program.as_os_str()]).arg("--Version"))?;
    fs::write(stamp, wanted)?;
    Ok(bin)
}
