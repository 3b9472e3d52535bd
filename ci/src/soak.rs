//! `cargo ci soak [--programs N]`: the card against the plain-Rust endpoint, as many random programs as the bar asks for.
//!
//! `cargo ci test` runs the first few hundred of the same programs; a failure names its seed.

use lexopt::prelude::*;

use crate::{Args, Task, run};

/// The bar.
const PROGRAMS: u32 = 2000;

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
        run::show(&mut cargo)
    },
};
