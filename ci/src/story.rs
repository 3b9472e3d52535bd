//! `cargo ci story NAME`: one story of the simulation, with a seed of one's own and waves to look at.
//!
//! The story reads `VERBENA_SEED` (a number), `VERBENA_WAVES` (`1`: write an FST beside its capture) and
//! `VERBENA_CONFIG` (`full`: 512-bit cards).

use lexopt::prelude::*;

use crate::{Args, Task, run, usage};

/// The task `story`.
pub const TASK: Task = Task {
    name: "story",
    args: "NAME [--seed N] [--waves] [--config NAME]",
    about: "run one story of the simulation; without NAME, name them all",
    needs: &["sim/tests/stories.rs", "sim/tests/stories/main.rs"],
    run: |args| run::show(&mut cargo(parse(args)?)),
};

#[derive(Debug, Default, PartialEq, Eq)]
struct Story {
    name: Option<String>,
    seed: Option<u64>,
    waves: bool,
    config: Option<String>,
}

fn parse(mut args: Args) -> anyhow::Result<Story> {
    let mut story = Story::default();
    while let Some(arg) = args.next()? {
        match arg {
            Long("seed") => story.seed = Some(args.value()?.parse()?),
            Long("waves") => story.waves = true,
            Long("config") => story.config = Some(args.value()?.string()?),
            Value(name) if story.name.is_none() => story.name = Some(name.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    if story.name.is_none() && story != Story::default() {
        return Err(usage("--seed, --waves and --config need the NAME of a story".to_owned()));
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
    if let Some(config) = story.config {
        cargo.env("VERBENA_CONFIG", config);
    }
    cargo
}

/// Test targets of `sim`, and what of each runs at 512 bit, too.
const WIDE: &[(&str, &[&str])] = &[
    (
        "stories",
        &[
            "a_write_of_64_bytes_goes_the_whole_way",
            "ipv6_and_tagged_frames_carry_the_same_bytes",
            "sends_go_both_ways_at_once",
            "both_sides_of_every_packet_boundary_arrive",
            "every_path_mtu_cuts_at_its_size",
            "sixteen_elements_are_gathered_and_gathered_again_when_a_packet_is_lost",
            "a_lost_middle_packet_is_named_by_one_nak_and_sent_again_from_there",
            "a_corrupted_frame_is_dropped_by_its_fcs_and_made_good",
            "packets_out_of_order_are_sent_again_in_order",
        ],
    ),
    (
        "read_stories",
        &[
            "a_read_is_scattered_over_its_sges_with_one_request_packet",
            "reads_go_both_ways_at_once_beside_writes",
        ],
    ),
    ("atomic_stories", &["many_atomics_of_several_qps_on_one_counter_give_every_number_once"]),
    ("inline_stories", &["inline_data_that_was_lost_is_sent_again_as_it_was_posted"]),
    ("push_stories", &["every_operation_that_fits_is_pushed_and_does_what_it_does_from_the_ring"]),
    (
        "hostile_completer",
        &[
            "a_hostile_completer_costs_the_qp_that_it_hits_and_nobody_else",
            "bad_answers_to_any_read_of_both_cards_at_once_leave_cards_that_work",
            "a_read_of_payload_that_fails_in_the_middle_of_a_gather_ends_that_write_alone",
        ],
    ),
    (
        "golden",
        &[
            "the_card_sends_the_same_bytes_for_the_same_work",
            "the_card_answers_captured_requests_as_the_kernel_did",
        ],
    ),
    ("ethernet", &["cards_that_know_nobody_find_each_other_and_answer_every_ping"]),
    ("against_peer", &["random_programs_end_as_written_at_both_ends"]),
];

/// Random programs against the plain-Rust endpoint at 512 bit.
const WIDE_PROGRAMS: &str = "20";

/// A sample of the stories, and of the random programs, on cards of 512 bit.
pub fn wide() -> std::process::Command {
    let mut cargo = run::cargo(["test", "--package", "sim", "--no-fail-fast"]);
    for (target, _) in WIDE {
        cargo.args(["--test", target]);
    }
    cargo.args(["--", "--exact"]).args(WIDE.iter().flat_map(|(_, names)| *names));
    cargo.env("VERBENA_CONFIG", "full").env("VERBENA_PROGRAMS", WIDE_PROGRAMS);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_seed_waves_and_configuration_reach_the_story() {
        let story =
            parse(Args::from_args(["a_story", "--seed", "7", "--waves", "--config", "full"])).unwrap();
        let cargo = cargo(story);
        assert!(
            run::typed(&cargo).ends_with("test --package sim --test stories -- --exact a_story --nocapture")
        );
        let value = |name: &str| {
            cargo.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value).map(|v| v.to_owned())
        };
        assert_eq!(value("VERBENA_SEED").unwrap(), "7");
        assert_eq!(value("VERBENA_WAVES").unwrap(), "1");
        assert_eq!(value("VERBENA_CONFIG").unwrap(), "full");
    }

    #[test]
    fn what_runs_at_512_bit_is_there() {
        for (target, names) in WIDE {
            let path = run::root().join(format!("sim/tests/{target}.rs"));
            let text = std::fs::read_to_string(path).unwrap();
            for name in *names {
                assert!(text.contains(&format!("#[test]\nfn {name}()")), "{target} has no test {name}");
            }
        }
    }

    #[test]
    fn a_seed_that_is_no_number_or_without_a_name_is_refused() {
        assert!(parse(Args::from_args(["a_story", "--seed", "x"])).is_err());
        assert!(parse(Args::from_args(["--seed", "7"])).is_err());
    }
}
