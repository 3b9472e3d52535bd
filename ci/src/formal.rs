//! `cargo ci formal`: the proofs of the blocks on which the contracts rest.
//!
//! ```text
//!   hdl/nic/tests/proofs.rs ──> SystemVerilog ──> ci/tools/prove (pyosys and its abc, in target/venv)
//! ```
//! `cargo ci test` runs them too; this task runs nothing else and prints what was proved. That each proof can fail is
//! shown by `cargo ci mutants proofs`.

use crate::{Task, install, run, synth};

const PROOFS: &str = "hdl/nic/tests/proofs.rs";

/// The task `formal`.
pub const TASK: Task = Task {
    name: "formal",
    args: "",
    about: "proofs of FIFOs, arbiter, tag table, completion room, PSN order, QP state",
    needs: &[PROOFS],
    run: |args| {
        run::no_more(args)?;
        install::install(false)?;
        synth::venv()?;
        run::show(&mut run::cargo(["test", "--package", "nic", "--test", "proofs", "--", "--show-output"]))
    },
};
