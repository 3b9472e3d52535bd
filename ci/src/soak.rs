//! `cargo ci soak`: the long proofs of the reliable connection.
//!
//! ```text
//! programs   the card against the plain-Rust endpoint: random programs of all operations, 1 to 4 connections, memory and
//!            completions of both ends compared; a program that differs is shrunk and printed
//! packets    two cards, all operations both ways, 1 % loss and 0.1 % each of duplicates, delays and corruption
//! teardowns  everything destroyed under full traffic, processes killed in mid-message, a hostile user beside a good one
//! ```
//! In: how many programs, how many packets (of 20 seeds together), how many teardowns of each kind, the first seed; 0
//! leaves a part out. Out: progress, figures, or the seed that fails. On two cores the bar takes hours. `cargo ci test` runs a
//! part of each.

use lexopt::prelude::*;

use crate::{Args, Task, run};

/// Bars: programs, packets of all seeds, seeds, teardowns of each kind.
const PROGRAMS: u64 = 20_000;
const PACKETS: u64 = 1_000_000;
const SEEDS: u64 = 20;
const TEARDOWNS: u64 = 1000;
/// QPs made and destroyed for each teardown, rounds of the two users in all.
const QPS: u64 = 10;
const ROUNDS: u64 = 60;

/// The task `soak`.
pub const TASK: Task = Task {
    name: "soak",
    args: "[--programs N] [--packets N] [--teardowns N] [--seed S]",
    about: "20,000 random programs against the endpoint, 10^6 packets between cards, 1000 teardowns; hours",
    needs: &["sim/tests/against_peer.rs"],
    run: |mut args: Args| {
        let (mut programs, mut packets, mut teardowns, mut seed) = (PROGRAMS, PACKETS, TEARDOWNS, 0u64);
        while let Some(arg) = args.next()? {
            match arg {
                Long("programs") => programs = args.value()?.parse()?,
                Long("packets") => packets = args.value()?.parse()?,
                Long("teardowns") => teardowns = args.value()?.parse()?,
                Long("seed") => seed = args.value()?.parse()?,
                other => return Err(other.unexpected().into()),
            }
        }
        let part = |test: &[&str], amount: u64, settings: &[(&str, u64)]| {
            let mut cargo = run::cargo(["test", "--package", "sim", "--test", test[0], "--", "--nocapture"]);
            cargo.args(&test[1..]).env("VERBENA_SEED", seed.to_string());
            cargo.envs(settings.iter().map(|(name, value)| (name, value.to_string())));
            if amount == 0 { Ok(()) } else { run::show(&mut cargo) }
        };
        part(&["against_peer"], programs, &[("VERBENA_PROGRAMS", programs)])?;
        let each = packets.div_ceil(SEEDS);
        part(&["soak"], packets, &[("VERBENA_SOAK_PACKETS", each), ("VERBENA_SOAK_SEEDS", SEEDS)])?;
        let settings = [("VERBENA_TEARDOWNS", teardowns), ("VERBENA_QPS", teardowns * QPS)];
        part(&["teardown"], teardowns, &settings)?;
        let kills = "a_process_is_killed_in_mid_message_again_and_again";
        part(&["server", kills], teardowns, &[("VERBENA_RESTARTS", teardowns)])?;
        part(&["tenants"], teardowns, &[("VERBENA_ROUNDS", ROUNDS)])
    },
};
