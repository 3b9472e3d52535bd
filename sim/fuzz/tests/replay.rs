//! Seeds of the fuzzer, and every input that ever found a fault, on the card of the stories.

use fuzz::{isolate::Isolated, machine::Machine, seeds::seeds};
use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A card, alone: a child must find no lock that another test holds.
fn card(adjust: impl FnOnce(&mut Machine)) -> (Isolated, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut machine = Machine::start(&sim::story::model()).unwrap_or_else(|fault| panic!("{fault}"));
    adjust(&mut machine);
    (Isolated::new(machine).expect("shared memory"), alone)
}

#[test]
fn no_seed_and_nothing_that_was_found_breaks_a_promise() {
    let mut inputs: Vec<(String, Vec<u8>)> =
        seeds().into_iter().map(|seed| (seed.name, seed.input)).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let bytes = std::fs::read(entry.path()).expect("a file");
        inputs.push((entry.file_name().to_string_lossy().into_owned(), bytes));
    }
    let (mut card, _alone) = card(|_| {});
    let (mut clocks, mut broken) = (0, Vec::new());
    for (name, input) in &inputs {
        let outcome = card.run(input).expect("a process");
        clocks += outcome.clocks;
        broken.extend(outcome.fault.map(|fault| format!("{name}:\n{fault}\n{}", outcome.story)));
    }
    println!("{} inputs, {clocks} clocks", inputs.len());
    assert!(broken.is_empty(), "{} inputs break a promise:\n\n{}", broken.len(), broken.join("\n\n"));
}

#[test]
fn a_frame_that_vanishes_is_found() {
    let (mut card, _alone) = card(Machine::deafen);
    let seeds = seeds();
    let send = seeds.iter().find(|seed| seed.name == "frame RcSendOnly").expect("a seed");
    let fault = card.run(&send.input).expect("a process").fault.expect("a fault");
    assert!(fault.starts_with("a frame had no effect twice"), "{fault}");
}

#[test]
fn the_same_input_does_the_same_and_leaves_nothing_behind() {
    let (mut card, _alone) = card(|_| {});
    let seeds = seeds();
    let burst = seeds.iter().find(|seed| seed.name == "a burst of everything").expect("a seed");
    let once = card.run(&burst.input).expect("a process");
    card.run(&seeds.last().expect("a seed").input).expect("a process");
    assert_eq!(card.run(&burst.input).expect("a process"), once);
}
