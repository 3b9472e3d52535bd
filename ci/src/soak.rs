//! `cargo ci soak [--programs N]`: the card against the plain-Rust endpoint, as many random programs as the bar asks for.
//!
//! `cargo ci test` runs the first few hundred of the same programs; a failure names its seed. Behind them the teardowns,
//! restarts and the two tenants, as often as their bars ask for.

use lexopt::prelude::*;

use crate::{Args, Task, run};

/// The bar.
const PROGRAMS: u32 = 2000;

/// Variables by which a test is told to last.
type Settings = &'static [(&'static str, &'static str)];
/// Tests that can be told to last: target, name, how long.
const LONG: [(&str, &str, Settings); 3] = [
    ("teardown", "", &[("VERBENA_TEARDOWNS", "1000"), ("VERBENA_QPS", "10000")]),
    ("server", "a_process_is_killed_in_mid_message_again_and_again", &[("VERBENA_RESTARTS", "1000")]),
    ("tenants", "", &[("VERBENA_ROUNDS", "60")]),
];

/// The task `soak`.
pub const TASK: Task = Task {
    name: "soak",
    args: "[--programs N]",
    about: "2000 random programs of the card against the plain-Rust endpoint, over a hostile wire",
    needs: &["sim/tests/against_peer.rs"],
    run: |mut args: Args| {
        let mut programs = PROGRAMS;
        while let Some(arg) = args.next()? {
            match arg {
                Long("programs") => programs = args.value()?.parse()?,
                other => return Err(other.unexpected().into()),
            }
        }
        let mut cargo =
            run::cargo(["test", "--package", "sim", "--test", "against_peer", "--", "--nocapture"]);
        cargo.env("VERBENA_PROGRAMS", programs.to_string());
        run::show(&mut cargo)?;
        for (target, name, settings) in LONG {
            let mut cargo = run::cargo(["test", "--package", "sim", "--test", target, "--", "--nocapture"]);
            cargo.arg(name).envs(settings.iter().copied());
            run::show(&mut cargo)?;
        }
        Ok(())
    },
};
