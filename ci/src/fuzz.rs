//! `cargo ci fuzz`: random designs through the three readers of the hardware language.
//!
//! ```text
//!   seed ──> random modules ──> interpreter ─┐
//!                        └────> Verilator ───┼──> equal, or the seed that is not
//!                        └────> yosys' sim ──┘
//! ```
//! `cargo ci test` runs a fixed small part of it; this one goes on until its minutes are over: widths to 600 bits,
//! memories, resets, two clocks (yosys: one clock and small memories without addresses past the end). A round in which a
//! tool does not end in two minutes is printed as skipped, with its design, and counts for nothing.

use lexopt::prelude::*;

use crate::{Args, Task, install, run, synth};

const FUZZ: &str = "hdl/lang/examples/fuzz.rs";

/// The task `fuzz`.
pub const TASK: Task = Task {
    name: "fuzz",
    args: "[--minutes N] [--seed S]",
    about: "random designs: interpreter, Verilator and yosys must agree",
    needs: &[FUZZ],
    run: |mut args: Args| {
        let (mut minutes, mut seed) = (10.0, 0);
        while let Some(arg) = args.next()? {
            match arg {
                Long("minutes") => minutes = args.value()?.parse::<f64>()?,
                Long("seed") => seed = args.value()?.parse::<u64>()?,
                other => return Err(other.unexpected().into()),
            }
        }
        install::install(false)?;
        let python = synth::venv()?;
        let mut fuzz = run::cargo(["run", "--quiet", "--package", "hdl", "--example", "fuzz", "--"]);
        fuzz.args(["--minutes", &minutes.to_string(), "--seed", &seed.to_string(), "--yosys"]);
        run::show(fuzz.arg(python).args(["-B", "ci/tools/yosys_signature"]))
    },
};
