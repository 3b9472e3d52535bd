//! `cargo ci synth`: the RTL through yosys' coarse synthesis: no latch, no loop, every memory stays a memory, and no
//! more cells, flip-flops and memory bits than `ci/budget.toml` allows.
//!
//! ```text
//!   nic's emit ──> target/rtl/CONFIG/*.sv ──> ci/tools/synth (pyosys, in target/venv) ──> ci/budget.toml
//! ```
//! Coarse means before any mapping to a device: minutes become seconds, and the numbers compare between commits,
//! not with a device's.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use lexopt::prelude::*;

use crate::{Args, Task, install, run, step::Verdict};

const EMIT: &str = "hdl/nic/src/bin/emit.rs";

/// The task `synth`.
pub const TASK: Task = Task {
    name: "synth",
    args: "[--config NAME] [--update]",
    about: "coarse synthesis of the RTL: no latch, memories stay memories, within ci/budget.toml",
    needs: &[EMIT],
    run: |mut args: Args| {
        let (mut config, mut update) = ("small".to_owned(), false);
        while let Some(arg) = args.next()? {
            match arg {
                Long("config") => config = args.value()?.string()?,
                Long("update") => update = true,
                other => return Err(other.unexpected().into()),
            }
        }
        install::install(false)?;
        synth(&config, update).map(|_| ())
    },
};

/// Emits and synthesises one configuration; `update` writes the budget instead of comparing with it.
pub fn synth(config: &str, update: bool) -> Result<Verdict> {
    if !TASK.is_real() {
        return Ok(Verdict::Skipped(format!("{EMIT} is not in the tree")));
    }
    let python = venv()?;
    let out = run::target().join("rtl").join(config);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot remove {}", out.display()))?;
    }
    let mut emit =
        run::cargo(["run", "--package", "nic", "--bin", "emit", "--", "--config", config, "--out"]);
    run::show(emit.arg(&out))?;
    let tool = || run::command("env", [python.as_os_str(), "-B".as_ref(), "ci/tools/synth".as_ref()]);
    run::show(tool().arg("--self-test"))?;
    let mut tool = tool();
    tool.args(["--name", config, "--budget", "ci/budget.toml"]);
    if update {
        tool.arg("--update");
    }
    run::show(tool.arg(&out))?;
    Ok(Verdict::Passed)
}

/// The Python with pyosys, made on first use and again when the pinned versions change; its path.
pub(crate) fn venv() -> Result<PathBuf> {
    let venv = run::target().join("venv");
    let python = venv.join("bin/python3");
    let pins = run::root().join("ci/tools/requirements.txt");
    let wanted = fs::read(&pins).with_context(|| format!("cannot read {}", pins.display()))?;
    let stamp = venv.join("requirements.txt");
    if fs::read(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(python);
    }
    println!("installing yosys into {}", venv.display());
    run::show(run::command("python3", ["-m", "venv", "--clear"]).arg(&venv))?;
    let mut pip = run::command("env", [python.as_os_str()]);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    run::show(pip.arg(&pins))?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}
