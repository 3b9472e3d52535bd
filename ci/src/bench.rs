//! `cargo ci bench`: the figures of two 512-bit cards, beside their bounds, bars and peers.
//!
//! Without an id all are measured, 20 minutes of CPU time, one job per core. Those that are the same on every machine are
//! compared with `docs/bench/figures.json`; `--update` writes them there, and table and pictures anew, to be reviewed. `cargo ci
//! test` compares a few that take no time.

use crate::{Args, Task, run};

const EXAMPLE: &str = "sim/examples/bench/main.rs";
/// Figures that are compared in every test run.
const QUICK: &[&str] = &["doorbell_to_wire_64", "rx_to_mwr_64", "rx_to_ack_64", "push_to_wire_64"];

/// The task `bench`.
pub const TASK: Task = Task {
    name: "bench",
    args: "[--update] [ID...]",
    about: "goodput, rates, latencies and loss of two 512-bit cards; all, or those named; --update writes docs/bench",
    needs: &[EXAMPLE],
    run: |mut args: Args| {
        let mut cargo = run::cargo(["run", "--release", "--package", "sim", "--example", "bench", "--"]);
        run::show(cargo.args(args.raw_args()?).env("VERBENA_CONFIG", "full"))
    },
};

/// Compares the quick ones with what is committed.
pub fn quick() -> std::process::Command {
    let mut cargo = run::cargo(["run", "--quiet", "--package", "sim", "--example", "bench", "--"]);
    cargo.args(QUICK).env("VERBENA_CONFIG", "full");
    cargo
}
