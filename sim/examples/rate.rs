//! How fast two busy cards run: both WRITE to each other without a pause, PCIe models, wire and capture of nothing.
//!
//! `cargo run --release -p sim --example rate`; the bar is 100 kcycles per second of CPU time for the two together.

use sim::story::two_cards;
use std::time::Duration;

/// CPU time of this process: everything runs in one thread.
fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let mut story = two_cards("rate");
    let (a, b) = story.connected();
    let clocks = |story: &sim::story::Story| -> u64 {
        sim::backend::lock(&story.room).cards().iter().map(sim::card::Card::clocks).sum()
    };
    let (before, start, from) = (clocks(&story), cpu(), story.now());
    for i in 0..8 {
        a.write(i, 0, 60_000, &b.memory, 100_000);
        b.write(i, 0, 60_000, &a.memory, 100_000);
    }
    for i in 0..8 {
        story.completes(&a, i);
        story.completes(&b, i);
    }
    let (spent, clocks) = (cpu() - start, clocks(&story) - before);
    let simulated = (story.now() - from) as f64 / 1e12;
    println!(
        "two cards together: {:.0} kcycles per CPU-second each ({clocks} clocks of both in {:.2} s), {:.2} Gb/s each way",
        clocks as f64 / 2.0 / spent.as_secs_f64() / 1000.0,
        spent.as_secs_f64(),
        8.0 * 60_000.0 * 8.0 / simulated / 1e9
    );
}
