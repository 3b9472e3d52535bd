//! `cargo ci demo [FILE] [--trace]`: installs what is missing, builds, and runs the main job: a file crosses the wire between
//! two simulated cards. With `--trace` also a timeline of every packet through every stage, and where the time went.
//!
//! Built with `--release`: the PCIe, wire and capture models run beside the Verilated card on the same core, and
//! what optimising them costs once is repaid by the second run.

use crate::{Args, Task, install, run, step::clock};

/// The task `demo`.
pub const TASK: Task = Task {
    name: "demo",
    args: "[FILE] [--trace]",
    about: "move a file between two simulated cards by RDMA, on a clean and on a lossy wire",
    needs: &[],
    run: demo,
};

fn demo(mut args: Args) -> anyhow::Result<()> {
    let start = std::time::Instant::now();
    install::install(false)?;
    println!("building the command verbena; the first time this takes minutes");
    let manifest = run::root().join("Cargo.toml");
    let mut build = run::cargo(["build", "--release", "--package", "verbena", "--bin", "verbena"]);
    run::show(&mut build)?;
    println!("built after {}", clock(start.elapsed()));
    let mut demo = run::cargo(["run", "--quiet", "--release", "--manifest-path"]);
    demo.arg(manifest)
        .args(["--package", "verbena", "--bin", "verbena", "--", "demo"])
        .args(args.raw_args()?);
    // FILE is the caller's: relative to where the caller stands
    demo.current_dir(std::env::current_dir()?);
    run::show(&mut demo)?;
    println!("demo finished after {}", clock(start.elapsed()));
    Ok(())
}
