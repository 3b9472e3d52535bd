//! The long run of the fuzzer, behind `cargo ci fuzz`: random designs up to 600 bits with memories, resets and two
//! clocks, interpreter against Verilator, and yosys' own simulator as a third opinion.
//!
//! ```text
//!   round ──> build (Verilator, g++) ──> compare (interpreter, model) ──> yosys ──> equal | different: stop
//!               each a process of its own that has LIMIT seconds          └──> too slow: skipped, never equal
//! ```
//! `fuzz [--minutes N] [--seed S] [--yosys PROGRAM...]`: rounds `S`, `S+1`, ... until the time is over, at least one.
//! A round is decided by its number, so the number that a failure prints repeats it. PROGRAM FILE CLOCKS prints the
//! final value of `signature` in hexadecimal. Succeeds when no round differs and one at least is equal.

#[path = "../tests/generator/mod.rs"]
mod generator;

use generator::{Batch, Driven, Size, compare, model, signature};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const MEMBERS: u64 = 6;
const CLOCKS: u32 = 400;
/// Clocks that yosys simulates; it is slower.
const SHORT: u32 = 60;
/// Seconds that a step may take: several times what the slowest takes on two idle cores.
const LIMIT: u32 = 120;

fn batch(round: u64) -> Batch {
    let (width, operations, two_clocks) =
        [(130, 40, false), (600, 24, true), (64, 60, true), (600, 32, false)][round as usize % 4];
    let size = Size { width, operations, memories: true, whole: false, two_clocks, child: true };
    Batch { seed: round * MEMBERS, count: MEMBERS, size }
}

/// The part of a round that yosys sees: two designs, of a size at which it ends in seconds.
fn driven(round: u64) -> Driven {
    let Batch { seed, size, .. } = batch(round);
    let size = Size { whole: true, two_clocks: false, width: size.width.min(200), operations: 24, ..size };
    Driven { batch: Batch { seed, count: 2, size }, clocks: SHORT }
}

/// The steps of a round, in their order.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Build,
    Compare,
    Yosys,
}

impl Step {
    const ALL: [Step; 3] = [Step::Build, Step::Compare, Step::Yosys];

    fn name(self) -> &'static str {
        ["build", "compare", "yosys"][self as usize]
    }
    fn tool(self) -> &'static str {
        ["Verilator or g++", "the interpreter or the model", "yosys"][self as usize]
    }
    /// Where the step leaves its design.
    fn file(self, round: u64, directory: &Path) -> PathBuf {
        directory.join(format!("round_{round}{}.sv", if self == Step::Yosys { "_yosys" } else { "" }))
    }

    /// The step itself, in the process that may be killed.
    fn work(self, round: u64, directory: &Path, program: &[String]) -> Result<(), String> {
        let file = self.file(round, directory);
        let write = |text: &str| {
            std::fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))
        };
        match self {
            Step::Build => model(&batch(round), directory, write).map(|_| ()),
            Step::Compare => match compare(&batch(round), CLOCKS, directory)? {
                // designs that do nothing prove nothing
                (0, outputs) => Err(format!("none of {outputs} outputs moves")),
                _ => Ok(()),
            },
            Step::Yosys => {
                let (text, ours) = signature(&driven(round))?;
                write(&text)?;
                let mut yosys = Command::new(&program[0]);
                let yosys = yosys.args(&program[1..]).arg(&file).arg((SHORT + 8).to_string());
                let output = yosys.output().map_err(|e| format!("cannot start {}: {e}", program[0]))?;
                let said = String::from_utf8_lossy(&output.stdout);
                if !output.status.success() {
                    return Err(format!("yosys gave up:\n{said}{}", String::from_utf8_lossy(&output.stderr)));
                }
                if said.trim() != format!("{ours:016x}") {
                    return Err(format!("yosys finds {}, the interpreter {ours:016x}", said.trim()));
                }
                Ok(())
            }
        }
    }

    /// Runs the step in a process of its own; whether it ended in time.
    fn run(self, round: u64, directory: &Path, program: &[String]) -> Result<bool, String> {
        let me = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        // `timeout` ends the step's children too: a compiler, a yosys
        let mut child = Command::new("timeout");
        child.args(["--kill-after=5", &LIMIT.to_string()]).arg(me);
        child.args(["--step", self.name(), "--seed", &round.to_string(), "--yosys"]).args(program);
        let status = child.status().map_err(|e| format!("cannot start `timeout` (coreutils): {e}"))?;
        match status.code() {
            Some(0) => Ok(true),
            Some(124 | 137) => Ok(false),
            _ => Err(format!("{} of {}: not equal", self.name(), self.file(round, directory).display())),
        }
    }
}

/// All steps of a round; what was too slow, if something was.
fn judge(round: u64, directory: &Path, program: &[String]) -> Result<Option<String>, String> {
    for step in Step::ALL.into_iter().filter(|step| *step != Step::Yosys || !program.is_empty()) {
        let file = step.file(round, directory);
        if !step.run(round, directory, program)? {
            let slow = format!("{} did not end {} within {LIMIT} s", step.tool(), file.display());
            // the interpreter is ours, and what it runs beside is compiled: neither may be slow
            return if step == Step::Compare { Err(slow) } else { Ok(Some(slow)) };
        }
    }
    for file in Step::ALL.map(|step| step.file(round, directory)) {
        let _ = std::fs::remove_file(file);
    }
    Ok(None)
}

fn main() -> ExitCode {
    let (mut minutes, mut first, mut program, mut step) = (1.0, 0, vec![], None);
    let mut args = std::env::args().skip(1);
    let usage = "usage: fuzz [--minutes N] [--seed S] [--yosys PROGRAM...]";
    while let Some(arg) = args.next() {
        let parsed = match arg.as_str() {
            "--minutes" => args.next().and_then(|v| v.parse().ok()).map(|v| minutes = v),
            "--seed" => args.next().and_then(|v| v.parse().ok()).map(|v| first = v),
            // how it calls itself
            "--step" => args
                .next()
                .and_then(|v| Step::ALL.into_iter().find(|s| s.name() == v))
                .map(|s| step = Some(s)),
            "--yosys" => {
                program.extend(args.by_ref());
                Some(())
            }
            _ => None,
        };
        if parsed.is_none() {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    }
    let directory = verilated::Source::default_directory().with_file_name("fuzz");
    if let Err(e) = std::fs::create_dir_all(&directory) {
        eprintln!("cannot make {}: {e}", directory.display());
        return ExitCode::FAILURE;
    }
    if let Some(step) = step {
        return match step.work(first, &directory, &program) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("{message}");
                ExitCode::FAILURE
            }
        };
    }
    let end = Instant::now() + Duration::from_secs_f64(60.0 * f64::max(minutes, 0.0));
    let (mut equal, mut skipped) = (0, 0);
    for round in first.. {
        let start = Instant::now();
        match judge(round, &directory, &program) {
            Err(message) => {
                eprintln!(
                    "round {round}: {message}\nrepeat it with: cargo ci fuzz --minutes 0 --seed {round}"
                );
                return ExitCode::FAILURE;
            }
            Ok(Some(slow)) => {
                println!("round {round}: skipped: tool too slow: {slow}");
                skipped += 1;
            }
            Ok(None) => {
                let width = batch(round).size.width;
                let took = start.elapsed().as_secs_f64();
                println!("round {round}: {MEMBERS} designs of up to {width} bits: equal ({took:.1} s)");
                equal += 1;
            }
        }
        if Instant::now() >= end {
            break;
        }
    }
    println!("{equal} rounds equal, {skipped} skipped");
    if equal > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
