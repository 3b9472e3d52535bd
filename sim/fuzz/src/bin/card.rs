//! libFuzzer on the whole card: `cargo ci fuzz card` gives it its seeds, its time and its folder for what it finds.
#![no_main]

use fuzz::{campaign::Campaign, input};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicU8};

/// More than the card has points.
const POINTS: usize = 1 << 15;

/// What guides libFuzzer beside, or here instead of, the coverage of the program itself: it looks for this section.
#[unsafe(link_section = "__libfuzzer_extra_counters")]
#[used]
static COUNTERS: [AtomicU8; POINTS] = [const { AtomicU8::new(0) }; POINTS];

fn campaign() -> MutexGuard<'static, Campaign> {
    static CAMPAIGN: OnceLock<Mutex<Campaign>> = OnceLock::new();
    let start = || match Campaign::start() {
        Ok(campaign) => Mutex::new(campaign),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1)
        }
    };
    CAMPAIGN.get_or_init(start).lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn report() {
    let campaign = campaign();
    println!("\n{}", campaign.report());
    if let Some(path) = std::env::var_os("VERBENA_UNREACHED")
        && let Err(error) = std::fs::write(&path, campaign.missing())
    {
        eprintln!("write {}: {error}", path.display());
    }
}

/// Before libFuzzer looks into its first folder, the seeds are there.
fn start() {
    let seeds = campaign().seeds.clone();
    if let Some(corpus) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) {
        for (number, seed) in seeds.iter().enumerate() {
            let path = std::path::Path::new(&corpus).join(format!("seed{number:03}"));
            if let Err(error) = std::fs::write(&path, seed) {
                eprintln!("write {}: {error}", path.display());
                std::process::exit(1);
            }
        }
    }
    // SAFETY: a function without arguments that does not unwind; libFuzzer ends by `exit`.
    unsafe { libc::atexit(report) };
}

fuzz_target!(init: start(), |data: &[u8]| {
    let result = campaign().input(data, &COUNTERS);
    if let Err(fault) = result {
        eprintln!("\n{fault}\n");
        report();
        // libFuzzer keeps the input
        std::process::abort();
    }
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let seeds = campaign().seeds.clone();
    let next = input::mutate(&data[..size], max_size, seed, &seeds, |bytes, used| {
        let most = bytes.len();
        fuzzer_mutate(bytes, used, most)
    });
    data[..next.len()].copy_from_slice(&next);
    next.len()
});
