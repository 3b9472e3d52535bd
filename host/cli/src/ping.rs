//! `verbena ping`: messages back and forth between two processes by SEND, each carrying its number and a pattern that the
//! receiver checks. The time is the wall clock's: on a simulated card it says how fast the simulation runs.

use crate::connection::PeerArgs;
use anyhow::ensure;
use clap::Args;
use host::{Access, Mr, RecvWr, SendWr};
use std::time::Instant;

/// What to send how often.
#[derive(Debug, Args)]
pub struct PingArgs {
    #[command(flatten)]
    peer: PeerArgs,
    /// Bytes of a message.
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    size: u32,
    /// Round trips.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// One JSON value.
    #[arg(long)]
    json: bool,
}

const DEPTH: u32 = 16;
const SEND: u64 = 0;
const RECEIVE: u64 = 1;

fn pattern(round: u32, from_listener: bool, size: usize) -> Vec<u8> {
    let start = round.wrapping_mul(31).wrapping_add(u32::from(from_listener));
    (0..size as u32).map(|i| start.wrapping_add(i).wrapping_mul(0x9e37_79b1).to_be_bytes()[0]).collect()
}

/// Runs one end.
pub fn run(args: &PingArgs) -> anyhow::Result<()> {
    let size = args.size as usize;
    let mut inbox: Option<Mr> = None;
    let connection = args.peer.establish(DEPTH, Access::empty(), |pd, qp| {
        let memory = pd.allocate(size, Access::LOCAL_WRITE)?;
        qp.post_recv(&[RecvWr::new(RECEIVE, &[memory.sge(0..size)?])])?;
        inbox = Some(memory);
        Ok(())
    })?;
    let inbox = inbox.ok_or_else(|| anyhow::anyhow!("no receive buffer"))?;
    let outbox = connection.pd.allocate(size, Access::empty())?;
    let listener = args.peer.listen.is_some();
    let mut done = [0u32; 2];
    let mut wait = |which: u64, target: u32| -> anyhow::Result<()> {
        while done[which as usize] < target {
            let completion = connection.completion()?;
            let right = completion.wr_id == SEND || completion.byte_len == args.size;
            ensure!(right, "a message of {} bytes instead of {size}", completion.byte_len);
            done[completion.wr_id as usize] += 1;
        }
        Ok(())
    };
    let start = Instant::now();
    for round in 0..args.iters {
        for step in if listener { [RECEIVE, SEND] } else { [SEND, RECEIVE] } {
            if step == SEND {
                // the message before has left the outbox
                wait(SEND, round)?;
                outbox.write(0, &pattern(round, listener, size))?;
                connection.qp.post_send(&[SendWr::send(SEND, &[outbox.sge(0..size)?]).signaled()])?;
            } else {
                wait(RECEIVE, round + 1)?;
                let right = inbox.to_vec(0..size)? == pattern(round, !listener, size);
                ensure!(right, "message {round} does not hold its pattern");
                if round + 1 < args.iters {
                    connection.qp.post_recv(&[RecvWr::new(RECEIVE, &[inbox.sge(0..size)?])])?;
                }
            }
        }
    }
    wait(SEND, args.iters)?;
    let seconds = start.elapsed().as_secs_f64();
    connection.finish()?;
    let (bytes, rounds) = (2.0 * f64::from(args.size) * f64::from(args.iters), f64::from(args.iters));
    if args.json {
        let value = serde_json::json!({
            "bytes": bytes as u64, "iterations": args.iters, "seconds": seconds,
            "microseconds_per_iteration": seconds / rounds * 1e6,
        });
        println!("{value}");
    } else {
        println!("{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec", bytes * 8.0 / seconds / 1e6);
        println!("{} iters in {seconds:.2} seconds = {:.2} usec/iter", args.iters, seconds / rounds * 1e6);
    }
    Ok(())
}
