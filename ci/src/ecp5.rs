//! `cargo ci board ecp5-versa`: the bitstream of the ECP5-5G Versa, with free tools.
//!
//! ```text
//!   nic's emit ──> rtl/*.sv ─┐
//!   constraints/ecp5-versa ──┴─> ci/tools/ecp5: yosys, nextpnr, ecppack ─> target/boards/ecp5-versa, manifest
//!                                                                          └─> bitstreams/ecp5-versa/manifest.toml
//! ```
//! Tools are those of `ci/tools/ecp5.txt`, pinned. In: the tree. Out: `versa.bit` and `versa.svf` with their manifest; a
//! failure that names the clock that is too slow, the cell that there are too few of, or bytes that are not those of the
//! committed manifest though RTL and tools are. `--update` commits the new manifest (to the tree, not to git); `--again` builds
//! twice and compares. `--flash`: the way of a bitstream into the board, with the real openFPGALoader and a model of the JTAG port.
//! `--cosim`: the MAC at the pins, with the DDR cells' models, against the PHY of cocotbext-eth.

use std::{ffi::OsStr, fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{board, loader, run, step::Verdict, synth};

/// Its name.
pub const BOARD: &str = "ecp5-versa";
const CONSTRAINTS: &str = "constraints/ecp5-versa";
const MANIFEST: &str = "bitstreams/ecp5-versa/manifest.toml";

/// The tool, with what it is to look at: RTL of `name`, the file `pads` beside it, and the constraints `lpf`.
fn tool(name: &str, pads: &str, lpf: &str) -> Result<std::process::Command> {
    let python = synth::python("ecp5", "ci/tools/ecp5.txt", "yosys and nextpnr")?;
    let rtl = board::emit(name)?;
    let mut tool = run::command("env", [python.as_os_str(), "-B".as_ref(), "ci/tools/ecp5".as_ref()]);
    tool.arg("--rtl").arg(rtl).args(["--pads", &format!("{CONSTRAINTS}/{pads}")]);
    tool.args(["--lpf", &format!("{CONSTRAINTS}/{lpf}")]);
    Ok(tool)
}

/// Builds the bitstream, and holds it against the committed manifest or writes that; `again`: twice.
pub fn bitstream(update: bool, again: bool) -> Result<()> {
    let build = |out: &str, update: bool| -> Result<PathBuf> {
        let out = board::folder(BOARD).join(out);
        let mut tool = tool(BOARD, "pads.v", "versa.lpf")?;
        tool.args(["--top", "versa", "--out"]).arg(&out).args(["--manifest", MANIFEST]);
        if update || !run::root().join(MANIFEST).exists() {
            tool.arg("--update");
        }
        run::show(&mut tool)?;
        Ok(out)
    };
    let first = build("out", update)?;
    if again {
        let second = build("again", false)?;
        for file in ["versa.bit", "versa.svf"] {
            let read = |folder: &PathBuf| {
                fs::read(folder.join(file))
                    .with_context(|| format!("cannot read {file} of {}", folder.display()))
            };
            if read(&first)? != read(&second)? {
                bail!("{file} is not the same twice");
            }
        }
        println!("the same bytes twice");
    }
    println!("{}", first.join("versa.bit").display());
    Ok(())
}

/// Where the bitstream of the MAC alone is built.
fn small() -> PathBuf {
    board::folder("rgmii-loop").join("out")
}

/// Places and routes the MAC alone.
fn build_small() -> Result<()> {
    let mut tool = tool("rgmii-loop", "none.v", "loop.lpf")?;
    run::show(tool.args(["--top", "rgmii_loop", "--out"]).arg(small()))
}

/// Loads the small bitstream, and whatever is to be refused.
pub fn flash() -> Result<Verdict> {
    if !small().join("manifest.toml").exists() {
        build_small()?;
    }
    loader::tests(&small())
}

/// Places and routes the MAC alone, and says whether the committed bitstream is of the present RTL.
pub fn sample() -> Result<Verdict> {
    build_small()?;
    // stale is told, and fails nothing: a bitstream is built when somebody wants one
    let mut tool = tool(BOARD, "pads.v", "versa.lpf")?;
    run::show(tool.args(["--digest", "--manifest", MANIFEST]))?;
    Ok(Verdict::Passed)
}

/// The MAC at its pins against somebody else's PHY; `only` one test.
pub fn cosim(only: Option<&OsStr>) -> Result<()> {
    board::simulate("rgmii-loop", &["ecp5.v", "rgmii_loop_top.v"], "rgmii_loop_top", "rgmii.py", only)
}
