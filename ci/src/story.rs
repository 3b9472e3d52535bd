//! `cargo ci story NAME`: one story of the simulation, with a seed of one's own and waves to look at.
//!
//! The story reads `VERBENA_SEED` (a number) and `VERBENA_WAVES` (`1`: write an FST beside its capture).

use lexopt::prelude::*;

use crate::{Args, Task, run, usage};

/// The task `story`.
pub const TASK: Task = Task {
    name: "story",
    args: "NAME [--seed N] [--waves]",
    about: "run one story of the simulation; without NAME, name them all",
    needs: &["sim/tests/stories.rs", "sim/tests/stories/main.rs"],
    run: |args| run::show(&mut cargo(parse(args)?)),
};

#[derive(Debug, Default, PartialEq, Eq)]
struct Story {
    name: Option<String>,
    seed: Option<u64>,
    waves: bool,
}

fn parse(mut args: Args) -> anyhow::Result<Story> {
    let mut story = Story::default();
    while let Some(arg) = args.next()? {
        match arg {
            Long("seed") => story.seed = Some(args.value()?.parse()?),
            Long("waves") => story.waves = true,
            Value(name) if story.name.is_none() => story.name = Some(name.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    if story.name.is_none() && story != Story::default() {
        return Err(usage("--seed and --waves need the NAME of a story".to_owned()));
    }
    Ok(story)
}

fn cargo(story: Story) -> std::process::Command {
    let mut cargo = run::cargo(["test", "--package", "sim", "--test", "stories", "--"]);
    match story.name {
        None => cargo.arg("--list"),
        Some(name) => cargo.args(["--exact", &name, "--nocapture"]),
    };
    if let Some(seed) = story.seed {
        cargo.env("VERBENA_SEED", seed.to_string());
    }
    if story.waves {
        cargo.env("VERBENA_WAVES", "1");
    }
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_seed_and_waves_reach_the_story() {
        let story = parse(Args::from_args(["a_story", "--seed", "7", "--waves"])).unwrap();
        let cargo = cargo(story);
        assert!(
            run::typed(&cargo).ends_with("test --package sim --test stories -- --exact a_story --nocapture")
        );
        let value = |name: &str| {
            cargo.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value).map(|v| v.to_owned())
        };
        assert_eq!(value("VERBENA_SEED").unwrap(), "7");
        assert_eq!(value("VERBENA_WAVES").unwrap(), "1");
    }

    #[test]
    fn a_seed_that_is_no_number_or_without_a_name_is_refused() {
        assert!(parse(Args::from_args(["a_story", "--seed", "x"])).is_err());
        assert!(parse(Args::from_args(["--seed", "7"])).is_err());
    }
}
