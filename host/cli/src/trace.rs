//! `verbena trace`: requests through every stage of two cards.
//!
//! ```text
//! $ verbena trace --op write --bytes 64
//! from > to                        times  least ns  median  most  share      stdout: where the time went
//! own card: Doorbell > Schedule       16         …       …     …      …
//! …                                                                          trace.pftrace: for ui.perfetto.dev
//! ```
//!
//! In: two cards on one wire that no other process holds, simulated or boards, each with a stage trace. Out: the timeline of
//! `count` requests, one at a time, and the table; stderr: stall counters that grew, and how many entries are missing. All of it by
//! registers. The clocks of two boards are not one: of boards the requester's steps alone are told.

use crate::perfetto;
use crate::selftest::{End, MEMORY, pair, told};
use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use contract::{Stage, StageCounter};
use host::trace::{Timed, life};
use host::{Device, DeviceAddress, RecvWr, SendWr, WcOpcode, WcStatus};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Which requests.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// A card, twice for two: sim:card0 or vfio:0000:01:00.0; default: the first two.
    #[arg(short, long)]
    device: Vec<DeviceAddress>,
    /// What is asked for.
    #[arg(long, value_enum, default_value_t = Op::Write)]
    op: Op,
    /// Bytes of each request.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=32_768))]
    bytes: u32,
    /// How many requests, one after the other.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// The timeline.
    #[arg(long, value_name = "FILE", default_value = "trace.pftrace")]
    out: PathBuf,
    /// One JSON value.
    #[arg(long)]
    json: bool,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Op {
    Write,
    Send,
    Read,
}

/// Runs them.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let mut cards = args.device.clone();
    if cards.is_empty() {
        DeviceAddress::first()?;
        cards = DeviceAddress::list()?;
        cards.truncate(2);
    }
    ensure!(cards.len() == 2, "a wire has two ends, and there are {} cards", cards.len());
    let (a, b) = pair(&cards)?;
    let devices = [a.context.device(), b.context.device()];
    for device in devices {
        ensure!(
            device.attributes().has(contract::register::feature::TRACE),
            "{}: the card has no stage trace; use a bitstream with one, or `verbena sim --trace FILE`",
            device.name()
        );
    }
    let stalls = devices.map(stalls_of);
    let mut traces = Vec::new();
    for device in devices {
        traces.push(device.stage_trace((1 << Stage::ALL.len()) - 1)?);
    }
    let one_clock = cards.iter().all(|card| matches!(card, DeviceAddress::Sim { .. }));
    let mut events = Vec::new();
    for n in 0..args.count {
        one(args, &a, &b, n.into())?;
        for (card, trace) in traces.iter_mut().enumerate().filter(|(card, _)| one_clock || *card == 0) {
            trace.read(card, &mut events)?;
        }
    }
    let mut missing = 0;
    for trace in traces.iter().take(if one_clock { 2 } else { 1 }) {
        missing += trace.missing()?;
    }
    drop(traces);
    let names = cards.iter().map(ToString::to_string).collect::<Vec<_>>();
    let khz = devices[0].attributes().core_clock_khz;
    let lines = write(&args.out, &events, &names, khz)?;
    if args.json {
        println!(
            "{}",
            json!({"latency": lines, "trace": args.out, "entries": events.len(), "missing": missing})
        );
    } else {
        lines.iter().for_each(|line| println!("{line}"));
        println!("timeline for ui.perfetto.dev: {}", args.out.display());
    }
    if missing > 0 {
        eprintln!("{missing} entries are missing");
    }
    for (device, before) in devices.into_iter().zip(stalls) {
        for ((counter, now), (_, then)) in stalls_of(device)?.into_iter().zip(before?) {
            if now > then {
                eprintln!("{}: {} {}", device.name(), counter.name(), now - then);
            }
        }
    }
    Ok(())
}

/// The counters of what waited.
fn stalls_of(device: &Device) -> anyhow::Result<Vec<(StageCounter, u64)>> {
    let all = device.stage_counters()?;
    Ok(all.into_iter().filter(|(counter, _)| counter.name().ends_with("Stall")).collect())
}

/// One request, from the post to its completions.
fn one(args: &TraceArgs, a: &End, b: &End, id: u64) -> anyhow::Result<()> {
    let length = args.bytes as usize;
    let here = [a.memory.sge(0..length)?];
    let there = (b.memory.addr() + MEMORY as u64 / 2, b.memory.rkey());
    let work = match args.op {
        Op::Write => SendWr::write(id, &here, there.0, there.1),
        Op::Read => SendWr::read(id, &here, there.0, there.1),
        Op::Send => {
            b.qp.post_recv(&[RecvWr::new(id, &[b.memory.sge(0..length)?])])?;
            SendWr::send(id, &here)
        }
    };
    a.qp.post_send(&[work.signaled()])?;
    let mut ends = vec![a.done()?];
    if args.op == Op::Send {
        ends.push(b.done()?);
    }
    for end in ends {
        ensure!(end.status == WcStatus::Success, "request {id}: {}", told(&end));
    }
    Ok(())
}

/// Writes the timeline of these entries to `path`; gives the tables of where the time went, one per kind of request.
pub fn write(
    path: &Path,
    events: &[Timed],
    names: &[String],
    core_clock_khz: u32,
) -> anyhow::Result<Vec<String>> {
    let lives = life::lives(events);
    std::fs::write(path, perfetto::timeline(events, &lives, names, core_clock_khz))
        .with_context(|| format!("write {}", path.display()))?;
    let mut lines = Vec::new();
    for opcode in WcOpcode::ALL {
        let of: Vec<&life::Life> = lives.iter().filter(|life| life.opcode == Some(*opcode)).collect();
        if !of.is_empty() {
            lines.push(format!("{}: {} requests", opcode.name(), of.len()));
            lines.extend(life::table(&of, core_clock_khz));
        }
    }
    Ok(lines)
}
