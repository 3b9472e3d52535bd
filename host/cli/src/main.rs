//! The command `verbena`: what a person types.
//!
//! ```text
//! verbena devinfo | counters      what the cards say of themselves
//! verbena doctor                  what keeps a card from being used, and what to do
//! verbena ping                    two processes, messages back and forth
//! verbena pingpong                the same with ibv_rc_pingpong at the other end
//! verbena perf                    two processes, any operation, every byte and completion checked at both ends
//! verbena perftest                the other end of perftest's ib_write_bw and its kin
//! verbena move                    two processes, a file by WRITE or by SEND, hashed at both ends
//! verbena selftest                whether cards, machine and driver do what they promise
//! verbena ip                      a card's own addresses; ARP, ND and ping answered or sent
//! verbena flash                   a bitstream into a board: its configuration flash by PCIe, or all of it by JTAG
//! verbena target                  an RDMA endpoint without a host: its queue pairs, keys and counters
//! verbena trace                   a request through every stage of two cards: timeline, where its time went
//! verbena sim                     simulated cards, or the board of a target, for other processes
//! verbena demo                    all of it: simulated cards, two processes, a file, clean and lossy wire
//! ```
//!
//! Data on stdout (`--json`: one JSON value), tracing on stderr (`VERBENA_LOG`, e.g. `host=debug`). Exit codes: 0 done,
//! 1 failed, 2 usage, 3 no card or no permission, 4 card and driver do not match.

mod connection;
#[cfg(feature = "sim")]
mod demo;
mod doctor;
mod flash;
mod info;
mod ip;
mod mover;
mod perf;
mod perfetto;
mod perftest;
mod ping;
mod pingpong;
mod selftest;
#[cfg(feature = "sim")]
mod sim;
mod target;
mod trace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(name = "verbena", version, about = "RDMA cards of the Verbena project, simulated or real")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the cards: identity, limits, port.
    Devinfo(info::DevinfoArgs),
    /// Show every reject and stage counter with what it means.
    Counters(info::CountersArgs),
    /// Look for what keeps a card from being used here, and tell what to do.
    Doctor(doctor::DoctorArgs),
    /// Send messages back and forth between two processes and time them.
    Ping(ping::PingArgs),
    /// Send messages back and forth with ibv_rc_pingpong, whose exchange of connection data it speaks.
    Pingpong(pingpong::PingpongArgs),
    /// Do work requests of one kind between two processes and check every byte and completion.
    Perf(perf::PerfArgs),
    /// Be the other end of a program of perftest, such as ib_write_bw, whose exchange over TCP it speaks.
    Perftest(perftest::PerftestArgs),
    /// Move a file from one process to another by RDMA.
    Move(mover::MoveArgs),
    /// Check cards, machine and driver together: registers, DMA, interrupts, reset, a killed process, unmapped memory.
    Selftest(selftest::SelftestArgs),
    /// Show, add and delete a card's own addresses; answer ARP, ND and ping; ping.
    Ip(ip::IpArgs),
    /// Write a bitstream into a board, and see what is in it.
    Flash(flash::FlashArgs),
    /// Make, end and look at the queue pairs of an RDMA endpoint without a host.
    Target(target::TargetArgs),
    /// Follow requests through every stage of two cards: a timeline for ui.perfetto.dev, and where the time went.
    Trace(trace::TraceArgs),
    /// Simulate one or two cards on a wire, or the board of a target, for other processes.
    #[cfg(feature = "sim")]
    Sim(sim::SimArgs),
    /// Move a file between two simulated cards, on a clean and on a lossy wire.
    #[cfg(feature = "sim")]
    Demo(demo::DemoArgs),
    /// Not built in.
    #[cfg(not(feature = "sim"))]
    #[command(hide = true, alias = "demo")]
    Sim(AbsentArgs),
}

/// Whatever follows a command that is not built in.
#[cfg(not(feature = "sim"))]
#[derive(Debug, clap::Args)]
struct AbsentArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _rest: Vec<String>,
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("VERBENA_LOG")
        // that crate complains of a group that leaves together with its card
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,vfio_ioctls=off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let result = match Cli::parse().command {
        Command::Devinfo(args) => info::devinfo(&args),
        Command::Counters(args) => info::counters(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Pingpong(args) => pingpong::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Perftest(args) => perftest::run(&args),
        Command::Move(args) => mover::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::Ip(args) => ip::run(&args),
        Command::Flash(args) => flash::run(&args),
        Command::Target(args) => target::run(&args),
        Command::Trace(args) => trace::run(&args),
        #[cfg(feature = "sim")]
        Command::Sim(args) => sim::run(&args),
        #[cfg(feature = "sim")]
        Command::Demo(args) => demo::run(&args),
        #[cfg(not(feature = "sim"))]
        Command::Sim(_) => {
            Err(anyhow::anyhow!("the simulation is not built in; build with the feature `sim`"))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbena: {}", words(&error));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// An error and its causes, each said once: the driver's errors quote theirs.
fn words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        match (text.is_empty(), text.contains(&cause)) {
            (true, _) => cause,
            (_, true) => text,
            _ => text + ": " + &cause,
        }
    })
}

/// The exit code of an error: what the driver's own errors say, 1 for all others.
fn exit_code(error: &anyhow::Error) -> u8 {
    let kind = error.chain().find_map(|cause| cause.downcast_ref::<host::Error>()).map(host::Error::kind);
    match kind {
        Some(host::Kind::NoCard) => 3,
        Some(host::Kind::Mismatch) => 4,
        _ => 1,
    }
}
