//! The long run of the fuzzer, behind `cargo ci fuzz`: random designs up to 600 bits with memories, resets and two
//! clocks, interpreter against Verilator, and yosys' own simulator as a third opinion.
//!
//! `fuzz [--minutes N] [--seed S] [--yosys PROGRAM...]`: rounds `S`, `S+1`, ... until the time is over, at least one.
//! A round is decided by its number, so the number that a failure prints repeats it. PROGRAM FILE prints the final
//! value of `signature` in hexadecimal.

#[path = "../tests/generator/mod.rs"]
mod generator;

use generator::{Batch, Driven, Size, compare, signature};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const MEMBERS: u64 = 6;
const CLOCKS: u32 = 400;
/// Clocks that yosys simulates; it is slower.
const SHORT: u32 = 60;

fn size(round: u64) -> Size {
    let (width, operations, two_clocks) =
        [(130, 40, false), (600, 24, true), (64, 60, true), (600, 32, false)][round as usize % 4];
    Size { width, operations, memories: true, whole: false, two_clocks, child: true }
}

fn yosys(program: &[String], round: u64, directory: &Path) -> Result<(), String> {
    let width = size(round).width.min(200);
    let size = Size { whole: true, two_clocks: false, width, operations: 24, ..size(round) };
    let driven = Driven { batch: Batch { seed: round * MEMBERS, count: 2, size }, clocks: SHORT };
    let (text, ours) = signature(&driven)?;
    let file = directory.join("yosys.sv");
    std::fs::write(&file, text).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    let output =
        Command::new(&program[0]).args(&program[1..]).arg(&file).arg((SHORT + 8).to_string()).output();
    let output = output.map_err(|e| format!("cannot start {}: {e}", program[0]))?;
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("yosys gave up on {}:\n{said}{errors}", file.display()));
    }
    if said.trim() != format!("{ours:016x}") {
        return Err(format!("{}: yosys finds {}, the interpreter {ours:016x}", file.display(), said.trim()));
    }
    Ok(())
}

fn main() -> ExitCode {
    let (mut minutes, mut first, mut program) = (1.0, 0, vec![]);
    let mut args = std::env::args().skip(1);
    let usage = "usage: fuzz [--minutes N] [--seed S] [--yosys PROGRAM...]";
    while let Some(arg) = args.next() {
        let parsed = match arg.as_str() {
            "--minutes" => args.next().and_then(|v| v.parse().ok()).map(|v| minutes = v),
            "--seed" => args.next().and_then(|v| v.parse().ok()).map(|v| first = v),
            "--yosys" => {
                program.extend(args.by_ref());
                (!program.is_empty()).then_some(())
            }
            _ => None,
        };
        if parsed.is_none() {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    }
    let directory: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../target/fuzz"].iter().collect();
    if let Err(e) = std::fs::create_dir_all(&directory) {
        eprintln!("cannot make {}: {e}", directory.display());
        return ExitCode::FAILURE;
    }
    let end = Instant::now() + Duration::from_secs_f64(60.0 * f64::max(minutes, 0.0));
    for round in first.. {
        let batch = Batch { seed: round * MEMBERS, count: MEMBERS, size: size(round) };
        let mut result = compare(&batch, CLOCKS, &directory);
        if result.is_ok() && !program.is_empty() {
            result = yosys(&program, round, &directory);
        }
        if let Err(message) = result {
            eprintln!("{message}\nrepeat it with: cargo ci fuzz --minutes 0 --seed {round}");
            return ExitCode::FAILURE;
        }
        println!("round {round}: {MEMBERS} designs of up to {} bits: equal", batch.size.width);
        if Instant::now() >= end {
            break;
        }
    }
    ExitCode::SUCCESS
}
