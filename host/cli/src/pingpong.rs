//! `verbena pingpong`: the other end of rdma-core's `ibv_rc_pingpong`, which need not know.
//!
//! ```text
//! TCP: LID:QPN:PSN:GID of the connecting side, of the listening side, `done`; then closed
//! RC:  SEND ──▶        the connecting side begins
//!      ◀── SEND        ... --iters times each way
//! ```
//!
//! In: what `ibv_rc_pingpong` is told, `-s`, `-n`, `-m` alike at both ends. Out: whether all messages came. That program has
//! one buffer for both directions, so it sends what it received last: every message of this end is new and must come back
//! whole. With `--echo` this end does as that program does, for two of these. Bytes at multiples of 4096 are 0, which
//! `ibv_rc_pingpong -c` demands.
//!
//! The peer may end when it has received its last message; the acknowledgement of ours may be lost with it, which is told
//! and no failure. This end waits a moment after its own last one, to acknowledge again.

use crate::connection::PeerArgs;
use anyhow::{bail, ensure};
use clap::Args;
use host::{Access, QpAttr, RecvWr, SendWr, WcStatus};
use std::time::Duration;

/// What to send how often.
#[derive(Debug, Args)]
pub struct PingpongArgs {
    #[command(flatten)]
    peer: PeerArgs,
    /// Bytes of a message.
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=16 << 20))]
    size: u32,
    /// Messages each way.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,
    /// Send back what came, as ibv_rc_pingpong does, instead of new bytes.
    #[arg(long)]
    echo: bool,
    /// Milliseconds to stay after the last message, in case the peer asks for its acknowledgement again.
    #[arg(long, default_value_t = 200)]
    linger: u64,
}

const DEPTH: u32 = 4;
const SEND: u64 = 0;
const RECEIVE: u64 = 1;

fn pattern(round: u32, size: usize) -> Vec<u8> {
    let byte = |i: u32| round.wrapping_mul(31).wrapping_add(i).wrapping_mul(0x9e37_79b1).to_be_bytes()[0];
    (0..size as u32).map(|i| if i % 4096 == 0 { 0 } else { byte(i) }).collect()
}

/// Runs one end.
pub fn run(args: &PingpongArgs) -> anyhow::Result<()> {
    let size = args.size as usize;
    let opened = args.peer.open(DEPTH)?;
    let inbox = opened.pd.allocate(size, Access::LOCAL_WRITE)?;
    let outbox = opened.pd.allocate(size, Access::empty())?;
    let sges = ([outbox.sge(0..size)?], [inbox.sge(0..size)?]);
    let receive = [RecvWr::new(RECEIVE, &sges.1)];
    let stream = args.peer.meet()?;
    let mut connection = args
        .peer
        .introduce(opened, stream, &QpAttr::default(), |opened| Ok(opened.qp.post_recv(&receive)?))?;
    connection.alone = true;

    let first = args.peer.listen.is_none();
    let mut content = if args.echo { vec![0x7b; size] } else { pattern(0, size) };
    let (mut sent, mut acknowledged, mut received) = (0, 0, 0);
    let mut lost = None;
    while (acknowledged, received) != (args.iters, args.iters) {
        // as that program: the next message goes when the last one has come and ours is acknowledged
        let turn = if first { received == sent } else { received == sent + 1 };
        if turn && acknowledged == sent && sent < args.iters {
            outbox.write(0, &content)?;
            connection.qp.post_send(&[SendWr::send(SEND, &sges.0).signaled()])?;
            sent += 1;
        }
        let completion = connection.wait()?;
        if completion.wr_id == SEND && completion.status == WcStatus::RetryExcErr && sent == args.iters {
            lost = Some(completion.status);
            ensure!(received == args.iters, "{received} of {} messages came", args.iters);
            break;
        }
        if completion.status != WcStatus::Success {
            bail!("message {sent}: {} ({})", completion.status.name(), completion.status.doc());
        }
        if completion.wr_id == SEND {
            acknowledged += 1;
            continue;
        }
        ensure!(completion.byte_len == args.size, "{} bytes instead of {size}", completion.byte_len);
        let came = inbox.to_vec(0..size)?;
        // whoever begins hears its message again; the other one's first is the peer's own
        let own = !args.echo && (first || received > 0);
        ensure!(!own || came == content, "message {received} is not what was sent before");
        received += 1;
        content = if args.echo { came } else { pattern(received, size) };
        if received < args.iters {
            connection.qp.post_recv(&receive)?;
        }
    }
    std::thread::sleep(Duration::from_millis(args.linger));
    if lost.is_some() {
        eprintln!("the peer ended without acknowledging the last message");
    }
    println!("{} messages of {size} bytes each way, every byte right", args.iters);
    Ok(())
}
