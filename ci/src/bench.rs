//! `cargo ci bench`: the figures of two 512-bit cards, as a table and in `target/bench.json`.

use crate::{Args, Task, run};

const EXAMPLE: &str = "sim/examples/bench.rs";

/// The task `bench`.
pub const TASK: Task = Task {
    name: "bench",
    args: "[ID...]",
    about: "goodput, rates and latencies of two 512-bit cards; all, or those named",
    needs: &[EXAMPLE],
    run: |mut args: Args| {
        let mut cargo = run::cargo(["run", "--release", "--package", "sim", "--example", "bench", "--"]);
        run::show(cargo.args(args.raw_args()?).env("VERBENA_CONFIG", "full"))
    },
};
