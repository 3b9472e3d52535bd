//! `cargo ci fuzz [hdl | card]`: random designs through the three readers of the hardware language, and the whole card by
//! libFuzzer.
//!
//! ```text
//!   hdl    seed ──> random modules ──> interpreter ─┐
//!                          └────────> Verilator ────┼──> equal, or the seed that is not
//!                          └────────> yosys' sim ───┘
//!   card   seeds ──> frames, TLPs, WQEs, commands, accesses ──> a card ──> no promise broken, or the input that did it
//!            └───────────<── points of its RTL reached ──<───────┘
//! ```
//! Without a name both share the minutes. `cargo ci test` runs a fixed small part of each; these go on until their minutes
//! are over. hdl: widths to 600 bits, memories, resets, two clocks (yosys: one clock and small memories without addresses
//! past the end). A round in which a tool does not end in two minutes is printed as skipped, with its design, and counts
//! for nothing. card: `sim/fuzz`; what it finds is kept in `sim/fuzz/found`, where the tests replay it (`cargo run -p fuzz
//! --example tell FILE` tells what an input does), and the points of the RTL that no input reached in
//! `target/fuzz/unreached.txt`.

use anyhow::Context;
use lexopt::prelude::*;

use crate::{Args, Task, install, run, synth, usage};

const HDL: &str = "hdl/lang/examples/fuzz.rs";
const FOUND: &str = "sim/fuzz/found";

/// The task `fuzz`.
pub const TASK: Task = Task {
    name: "fuzz",
    args: "[hdl|card] [--minutes N] [--seed S]",
    about: "random designs: interpreter, Verilator and yosys must agree; and libFuzzer against the whole card",
    needs: &[HDL],
    run: |mut args: Args| {
        let (mut minutes, mut seed, mut what) = (10.0, 0, None);
        while let Some(arg) = args.next()? {
            match arg {
                Long("minutes") => minutes = args.value()?.parse::<f64>()?,
                Long("seed") => seed = args.value()?.parse::<u64>()?,
                Value(name) if what.is_none() => what = Some(name.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        install::install(false)?;
        match what.as_deref() {
            Some("hdl") => hdl(minutes, seed),
            Some("card") => card(minutes, seed),
            None => hdl(minutes / 2.0, seed).and_then(|()| card(minutes / 2.0, seed)),
            Some(other) => {
                Err(usage(format!("there is no {other:?} to fuzz; name hdl, card or nothing for both")))
            }
        }
    },
};

fn hdl(minutes: f64, seed: u64) -> anyhow::Result<()> {
    let python = synth::venv()?;
    let mut fuzz = run::cargo(["run", "--quiet", "--package", "hdl", "--example", "fuzz", "--"]);
    fuzz.args(["--minutes", &minutes.to_string(), "--seed", &seed.to_string(), "--yosys"]);
    run::show(fuzz.arg(python).args(["-B", "ci/tools/yosys_signature"]))
}

fn card(minutes: f64, seed: u64) -> anyhow::Result<()> {
    let (found, work) = (run::root().join(FOUND), run::target().join("fuzz"));
    let corpus = work.join("corpus");
    // The same seed begins with the same inputs: those of the last run are not among them.
    let _ = std::fs::remove_dir_all(&corpus);
    for folder in [&found, &corpus] {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut fuzz = run::cargo(["run", "--quiet", "--package", "fuzz", "--features", "libfuzzer"]);
    fuzz.args(["--bin", "fuzz-card", "--"]).arg(&corpus).arg(&found);
    fuzz.env("VERBENA_UNREACHED", work.join("unreached.txt"));
    // libFuzzer takes 0 for "any seed"
    let seed = seed.wrapping_add(1) as u32;
    let seconds = (minutes * 60.0).ceil().max(1.0);
    fuzz.args([format!("-seed={seed}"), format!("-max_total_time={seconds}")]);
    fuzz.arg(format!("-artifact_prefix={}/", found.display()));
    fuzz.args([
        "-max_len=1024",
        "-len_control=0",
        "-timeout=600",
        "-report_slow_units=600",
        "-rss_limit_mb=3000",
        "-print_final_stats=1",
    ]);
    run::show(&mut fuzz)
}
