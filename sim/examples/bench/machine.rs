//! Figures of this machine: how fast two busy cards are simulated, how many instructions the driver's calls take.
//!
//! The first run in a process of their own, `bench --speed` with the configuration in `VERBENA_CONFIG`: CPU time of its only
//! thread. The second are those of `cargo bench -p host --bench verbs_cost`, counted by callgrind.

use crate::{
    Job,
    figure::Figure,
    load::{Cards, Request, Setup},
};
use contract::PathMtu;
use sim::{
    backend::lock,
    card::Card,
    wire::Side::{A, B},
};
use std::{process::Command, time::Duration};

/// Everything measured here.
pub fn jobs() -> Vec<Job> {
    let speed = |id: &str, config: &str, bound: f64| {
        let own = std::env::current_exe().expect("this program has a name");
        let output =
            Command::new(own).arg("--speed").env("VERBENA_CONFIG", config).output().expect("it runs again");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let value = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
        let context = "two cards with PCIe models, both send".into();
        Figure { id: id.into(), value, unit: "kcycles per CPU-second".into(), bound, context }
    };
    vec![
        Job::of("sim_kcycles_512", move |id| speed(id, "full", 0.0)),
        Job::of("sim_kcycles_64", move |id| speed(id, "small", 0.0)),
        Job::new(&["post_instr", "poll_instr", "poll_empty_instr"], instructions),
    ]
}

/// CPU time of this process.
fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Prints the thousands of core clocks of each of two cards that both send, per second of CPU time.
pub fn tell_speed() {
    let cards = Cards::new("speed", &Setup::new(1, PathMtu::Mtu4096));
    let clocks = || lock(&cards.story.room).cards().iter().map(Card::clocks).sum::<u64>();
    let (before, start) = (clocks(), cpu());
    cards.run(&[A, B], 40, 4, |_, i| Request { at: (i % 8) << 16, length: 1 << 16, read: false });
    let spent = (cpu() - start).as_secs_f64();
    println!("{}", (clocks() - before) as f64 / 2.0 / spent / 1000.0);
}

/// What the bench of the driver prints: `post_instr 198.0 instructions (bar 90): ...`. Nothing without valgrind.
fn instructions() -> Vec<Figure> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("no instructions are counted: valgrind is not installed (apt install valgrind)");
        return Vec::new();
    }
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut bench = Command::new(cargo);
    bench.args(["bench", "--quiet", "--package", "host", "--bench", "verbs_cost"]);
    // what is over its bar makes it fail, but is told
    let output = bench.output().expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<Figure> = text
        .lines()
        .filter_map(|line| {
            let (head, what) = line.split_once(": ")?;
            let mut words = head.split_whitespace();
            let (id, value) = (words.next()?.into(), words.next()?.parse().ok()?);
            let context = format!("{what}, BAR backed by memory");
            Some(Figure { id, value, unit: "instructions".into(), bound: 0.0, context })
        })
        .collect();
    assert!(!figures.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    figures
}
