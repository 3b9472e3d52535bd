//! `cargo ci synth`: the RTL through yosys.
//!
//! ```text
//!   nic's emit ──> target/rtl/CONFIG/*.sv ──> ci/tools/synth  (coarse) ──> ci/budget.toml
//!                                        └──> ci/tools/map    (--map)  ──> ci/mapped.toml
//! ```
//! CONFIG is a configuration, or a board: its whole top, with the hard blocks of the device as black boxes.
//! Coarse means before any mapping to a device: no latch, no loop, every memory stays a memory, no more cells,
//! flip-flops and memory bits than budgeted. Minutes become seconds, and the numbers compare between commits, not with a device's.
//! `--map` maps each module to LUTs, flip-flops, block RAM and UltraRAM of a device and says how many levels its
//! longest way has; it takes minutes, but what did not change is taken from target/mapped.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::{Args, Task, install, run};

const EMIT: &str = "hdl/nic/src/bin/emit.rs";
/// What `--map` maps by itself: configurations or boards, and the devices that `ci/tools/map` knows.
const MAPPED: [(&str, &[&str]); 3] =
    [("small", &["ecp5", "xcup"]), ("full", &["ecp5", "xcup"]), (BOARD, &["xcup"])];
/// The board whose top is mapped.
const BOARD: &str = "alveo-u55c";

/// The task `synth`.
pub const TASK: Task = Task {
    name: "synth",
    args: "[--config NAME] [--map [--device ecp5|xcup] [--paths]] [--update]",
    about: "synthesis of the RTL within its budgets: coarse, or mapped to a device with the levels of each module",
    needs: &[EMIT],
    run: |mut args: Args| {
        let (mut config, mut device, mut maps, mut paths, mut update) = (None, None, false, false, false);
        while let Some(arg) = args.next()? {
            match arg {
                Long("config") => config = Some(args.value()?.string()?),
                Long("device") => device = Some(args.value()?.string()?),
                Long("map") => maps = true,
                Long("paths") => paths = true,
                Long("update") => update = true,
                other => return Err(other.unexpected().into()),
            }
        }
        install::install(false)?;
        if !maps {
            if device.is_some() || paths {
                bail!("--device and --paths go with --map");
            }
            return judge("synth", config.as_deref().unwrap_or("small"), "ci/budget.toml", &[], update);
        }
        let is = |one: &Option<String>, name: &str| one.as_ref().is_none_or(|one| one == name);
        let every = MAPPED.iter().flat_map(|(name, devices)| devices.iter().map(move |to| (*name, *to)));
        let wanted: Vec<_> = every.filter(|(name, to)| is(&config, name) && is(&device, to)).collect();
        if wanted.is_empty() {
            let all = MAPPED.map(|(name, devices)| format!("{name} on {}", devices.join(" or ")));
            bail!("nothing like that is mapped: {}", all.join(", "));
        }
        for (config, device) in wanted {
            map(config, device, paths, update)?;
        }
        Ok(())
    },
};

/// Emits one configuration and maps its modules to a device.
fn map(config: &str, device: &str, paths: bool, update: bool) -> Result<()> {
    println!("{config} on {device}");
    let cache = run::target().join("mapped").display().to_string();
    let mut options = vec!["--device", device, "--cache", &cache];
    options.extend(paths.then_some("--paths"));
    judge("map", config, "ci/mapped.toml", &options, update)
}

/// Emits one configuration and gives it to a tool of `ci/tools`, which has proved itself before.
fn judge(tool: &str, config: &str, budget: &str, options: &[&str], update: bool) -> Result<()> {
    let python = venv()?;
    let out = run::target().join("rtl").join(config);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot remove {}", out.display()))?;
    }
    let what = if config == BOARD { "--board" } else { "--config" };
    let mut emit = run::cargo(["run", "--package", "nic", "--bin", "emit", "--", what, config, "--out"]);
    run::show(emit.arg(&out))?;
    let tool = || {
        let path = format!("ci/tools/{tool}");
        run::command("env", [python.as_os_str(), "-B".as_ref(), path.as_ref()])
    };
    run::show(tool().arg("--self-test"))?;
    let mut tool = tool();
    tool.args(["--name", config, "--budget", budget]).args(options);
    if update {
        tool.arg("--update");
    }
    run::show(tool.arg(&out))
}

/// The Python with pyosys; its path.
pub(crate) fn venv() -> Result<PathBuf> {
    python("venv", "ci/tools/requirements.txt", "yosys")
}

/// The Python of `target/FOLDER` with what the file `pins` names, made on first use and again when the pinned versions
/// change; its path.
pub(crate) fn python(folder: &str, pins: &str, what: &str) -> Result<PathBuf> {
    let venv = run::target().join(folder);
    let python = venv.join("bin/python3");
    let pins = run::root().join(pins);
    let wanted = fs::read(&pins).with_context(|| format!("cannot read {}", pins.display()))?;
    let stamp = venv.join("requirements.txt");
    if fs::read(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(python);
    }
    println!("installing {what} into {}", venv.display());
    run::show(run::command("python3", ["-m", "venv", "--clear"]).arg(&venv))?;
    let mut pip = run::command("env", [python.as_os_str()]);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    run::show(pip.arg(&pins))?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}
