//! `verbena perf`: work requests of one kind between two processes, every byte and every completion checked at both ends.
//!
//! ```text
//! TCP: the job as a line of JSON from the connecting side; for each of --qps QPs LID:QPN:PSN:GID as in `verbena pingpong`;
//!      each end's memory, a part per QP
//! RC:  --count work requests of --size bytes on each QP, by the connecting side, with --reverse by the listening one
//! TCP: what the asking side found, and the hashes of what it sent; what the other side found
//! ```
//!
//! In: the operation, at the connecting side. Out: both ends' judgement. SEND and WRITE are compared by hash, each message
//! with its place; READ too; atomics by each value returned and the last one. With `--wrong` the first request must fail with
//! the status that the standard gives it, the others be flushed, and memory stay as it was. All that belongs to an exchange
//! is made for it and goes with it; --rounds of them follow one another on one context. The other end may be
//! `ci/guest/peer.py` on the verbs of a kernel. `--wrong dies` needs somebody who kills that end after the line `under way`
//! on stderr, and says by a line on standard input, or its end, that there is another: the first exchange must end in the time that the
//! timeout and the retries say, the second be as any.

use crate::connection::{Connection, PeerArgs};
use anyhow::{Context as _, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use host::{Access, AttrMask, Context, Mr, Operation, Qp, QpAttr, QpState, RecvWr, SendWr, WcStatus};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    io::{Read, Write},
    net::TcpStream,
    ops::RangeInclusive,
    time::Duration,
};

/// What to do how often.
#[derive(Debug, Args)]
pub struct PerfArgs {
    #[command(flatten)]
    peer: PeerArgs,
    /// The operation; the connecting side says it.
    #[arg(long, value_enum, default_value = "write")]
    op: Op,
    /// Bytes of a message; atomics have 8.
    #[arg(short, long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(0..=16 << 20))]
    size: u32,
    /// QPs, each with its part of the memory; the connecting side says it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    qps: u32,
    /// Exchanges, each with a connection of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Work requests of each QP, all posted at once.
    #[arg(short = 'n', long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    count: u32,
    /// READs and atomics outstanding.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    reads: u8,
    /// The listening side asks.
    #[arg(long)]
    reverse: bool,
    /// Receives are posted half a second late.
    #[arg(long)]
    late: bool,
    /// Ask for what may not be done.
    #[arg(long, value_enum, default_value = "nothing")]
    wrong: Wrong,
    /// The other end forges frames meanwhile, if it can; the connecting side says it.
    #[arg(long)]
    stranger: bool,
    /// Tell what the card counted.
    #[arg(long)]
    counters: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
}

/// What the asking side does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Wrong {
    /// It keeps the rules.
    Nothing,
    /// The remote key is nobody's.
    Key,
    /// The remote range ends behind the region.
    Range,
    /// The region has no remote rights.
    Rights,
    /// A message is longer than the receive it meets.
    Length,
    /// An atomic is at no multiple of 8.
    Alignment,
    /// It asks a QP that is no more.
    Gone,
    /// Nothing; but the other end dies in the midst of it.
    Dies,
}

impl Wrong {
    /// How the first work request ends.
    fn status(self) -> WcStatus {
        match self {
            Wrong::Nothing => WcStatus::Success,
            Wrong::Key | Wrong::Range | Wrong::Rights => WcStatus::RemAccessErr,
            Wrong::Length | Wrong::Alignment => WcStatus::RemInvReqErr,
            Wrong::Gone | Wrong::Dies => WcStatus::RetryExcErr,
        }
    }
}

impl Op {
    /// It takes receives, whose completions carry this immediate datum of a message.
    fn receives(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::WriteImm)
    }

    fn imm(self, slot: u32) -> Option<u32> {
        matches!(self, Op::SendImm | Op::WriteImm).then_some(0x5eed_0000 + slot)
    }

    fn is_atomic(self) -> bool {
        matches!(self, Op::FetchAdd | Op::CompareSwap)
    }
}

/// What the connecting side wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job {
    op: Op,
    size: u32,
    count: u32,
    qps: u32,
    mtu: u32,
    reads: u8,
    listener_asks: bool,
    late: bool,
    wrong: Wrong,
    /// The listening side forges frames.
    stranger: bool,
    /// The first PSN of both ends, if it is to be chosen.
    psn: Option<u32>,
}

/// A QP's part of an end's memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct About {
    addr: u64,
    rkey: u32,
    /// SHA-256 of what the job uses of it.
    hash: String,
    /// Its first eight bytes.
    word: u64,
}

/// What the other end's part must hold now.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Left {
    hash: String,
    word: u64,
}

/// What an end found; of the asking side also what it left, for each QP.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Report {
    error: Option<String>,
    left: Vec<Left>,
}

const DEPTH: u32 = 64;
const ADD: u64 = 0x0123_4567_89ab_cdef;
/// Late receives are posted after this.
const LATE: Duration = Duration::from_millis(500);
const RIGHTS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Runs one end.
pub fn run(args: &PerfArgs) -> anyhow::Result<()> {
    let context = args.peer.card()?;
    let place = args.peer.place()?;
    let mut early = None;
    let dies = args.wrong == Wrong::Dies;
    if dies {
        let took = bereaved(args, &context, place.meet()?).context("the exchange whose other end dies")?;
        println!("the dead peer was given up {took:.3} s of the card's clock after the last completion");
        std::io::stdin().read_line(&mut String::new()).context("wait for another peer")?;
    }
    let wrong = if dies { Wrong::Nothing } else { args.wrong };
    for round in 0..args.rounds {
        let Job { op, size, count, qps, .. } =
            exchange(args, wrong, &context, place.meet()?).with_context(|| format!("exchange {round}"))?;
        if round == 0 {
            let each = if qps == 1 { String::new() } else { format!(" on each of {qps} QPs") };
            println!("{op:?}: {count} of {size} bytes{each}, all right at both ends");
        }
        if round == args.rounds / 10 {
            early = resident();
        }
    }
    if let (2.., Some(early), Some(now)) = (args.rounds, early, resident()) {
        println!(
            "{} exchanges; memory {early} KiB after the {}th, {now} KiB now",
            args.rounds,
            args.rounds / 10
        );
    }
    if args.counters {
        let device = context.device();
        let rejects = device.rejects()?.into_iter().map(|(row, count)| (row.name(), count));
        let stages = device.stage_counters()?.into_iter().map(|(row, count)| (row.name(), count));
        let counted = rejects.chain(stages).filter(|(_, count)| *count > 0);
        let words: Vec<_> = counted.map(|(name, count)| format!("{name} {count}")).collect();
        println!("counted: {}", words.join(", "));
    }
    Ok(())
}

/// This process's resident memory in KiB.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// What the connecting side asks for.
fn job(args: &PerfArgs, wrong: Wrong) -> Job {
    Job {
        op: args.op,
        size: if args.op.is_atomic() { 8 } else { args.size },
        count: args.count,
        qps: args.qps,
        mtu: args.peer.mtu,
        reads: args.reads,
        listener_asks: args.reverse,
        late: args.late,
        wrong,
        stranger: args.stranger,
        psn: args.peer.psn,
    }
}

/// Asks an end that dies in the midst of it: seconds of the card's clock from the last completion until it is given up.
fn bereaved(args: &PerfArgs, context: &Context, mut stream: TcpStream) -> anyhow::Result<f64> {
    let job = job(args, Wrong::Dies);
    let asks = !job.listener_asks && args.peer.connect.is_some() && job.qps == 1;
    ensure!(asks, "--wrong dies is for the connecting side, which asks, on one QP");
    tell(&mut stream, &job)?;
    let mut end = End::connect(&args.peer, context, &stream, &job, 0)?;
    // the stream ends long before the retries do
    end.connection.alone = true;
    tell(&mut stream, &[end.about()?])?;
    let theirs: Vec<About> = hear(&mut stream)?;
    end.post(theirs.first().context("the peer tells of no QP")?)?;
    let (mut last, mut failed) = (context.device().now_ticks()?, None);
    for slot in 0..job.count {
        let found = end.connection.wait()?;
        match (found.status, failed) {
            (WcStatus::Success, None) => last = found.timestamp,
            (WcStatus::RetryExcErr, None) if slot > 0 => failed = Some(found.timestamp.wrapping_sub(last)),
            (WcStatus::WrFlushErr, Some(_)) => {}
            (other, _) => bail!("work request {slot} ended as {}", other.name()),
        }
        ensure!(found.wr_id == u64::from(slot), "work request {slot} ended as {}", found.wr_id);
        if slot == 0 {
            eprintln!("under way");
        }
    }
    let took = failed.context("the peer did all that it was asked for: it died too late")?;
    ensure!(
        end.patience.contains(&took),
        "the peer was given up after {took} ticks, should be {:?}",
        end.patience
    );
    Ok(took as f64 / f64::from(context.attributes().core_clock_khz) / 1e3)
}

/// Runs one end of one exchange.
fn exchange(args: &PerfArgs, wrong: Wrong, context: &Context, mut stream: TcpStream) -> anyhow::Result<Job> {
    let listens = args.peer.listen.is_some();
    let job = if listens {
        let job: Job = hear(&mut stream)?;
        let few = (1..=DEPTH).contains(&job.count) && (1..=32).contains(&job.qps);
        let fits = few && job.size <= 16 << 20 && job.mtu == args.peer.mtu;
        ensure!(fits, "the peer wants {job:?}, which this end cannot do: is --mtu the same?");
        job
    } else {
        let job = job(args, wrong);
        tell(&mut stream, &job)?;
        job
    };
    let asks = listens == job.listener_asks;
    let peer = PeerArgs { psn: job.psn, ..args.peer.clone() };
    let made = (0..job.qps).map(|nth| End::connect(&peer, context, &stream, &job, nth));
    let ends = made.collect::<anyhow::Result<Vec<_>>>()?;
    let before = ends.iter().map(End::about).collect::<anyhow::Result<Vec<_>>>()?;
    tell(&mut stream, &before)?;
    let theirs: Vec<About> = hear(&mut stream)?;
    ensure!(theirs.len() == ends.len(), "the peer tells of {} QPs instead of {}", theirs.len(), ends.len());

    let (own, their) = if asks {
        let own = report(ask(context, &ends, &theirs));
        tell(&mut stream, &own)?;
        (own, hear::<Report>(&mut stream)?)
    } else {
        if job.late {
            std::thread::sleep(LATE);
            for End { job, memory, connection, .. } in &ends {
                post_receives(job, memory, &connection.qp)?;
            }
        }
        let their: Report = hear(&mut stream)?;
        let checked = if their.error.is_none() { check(&ends, &before, &their.left) } else { Ok(()) };
        let own = report(checked.map(|()| Vec::new()));
        tell(&mut stream, &own)?;
        (own, their)
    };
    if let Some(error) = own.error {
        bail!("{error}");
    }
    if let Some(error) = their.error {
        bail!("the peer found: {error}");
    }
    Ok(job)
}

/// All QPs at work together.
fn ask(context: &Context, ends: &[End], theirs: &[About]) -> anyhow::Result<Vec<Left>> {
    let start = context.device().now_ticks()?;
    let posted = ends.iter().zip(theirs).map(|(end, theirs)| end.post(theirs));
    let held = posted.collect::<anyhow::Result<Vec<_>>>()?;
    let ended = ends.iter().zip(theirs).zip(held).map(|((end, theirs), held)| end.reap(start, theirs, &held));
    ended.collect()
}

fn check(ends: &[End], before: &[About], left: &[Left]) -> anyhow::Result<()> {
    ensure!(left.len() == ends.len(), "the peer left {} parts instead of {}", left.len(), ends.len());
    ends.iter().zip(before).zip(left).try_for_each(|((end, before), left)| end.check(before, left))
}

fn tell(stream: &mut TcpStream, what: &impl Serialize) -> anyhow::Result<()> {
    let line = serde_json::to_string(what)? + "\n";
    stream.write_all(line.as_bytes()).context("tell the peer")
}

/// A line, byte by byte: what follows it is not JSON.
fn hear<T: serde::de::DeserializeOwned>(stream: &mut TcpStream) -> anyhow::Result<T> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') && line.len() < 10_000 {
        let mut byte = [0];
        stream.read_exact(&mut byte).context("hear from the peer")?;
        line.extend(byte);
    }
    serde_json::from_slice(&line)
        .with_context(|| format!("the peer said {:?}", String::from_utf8_lossy(&line)))
}

fn report(found: anyhow::Result<Vec<Left>>) -> Report {
    match found {
        Ok(left) => Report { error: None, left },
        Err(error) => Report { error: Some(crate::words(&error)), left: Vec::new() },
    }
}

/// Bytes that differ at both ends and from run to run.
fn fill(memory: &Mr, end: u64) -> anyhow::Result<()> {
    let mut state = u64::from(std::process::id()) << 8 | end;
    let mut bytes = vec![0; memory.len()];
    for byte in &mut bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // never 0: tshark takes what looks like an EtherType and two bytes of 0 for a frame in the message
        *byte = state.to_be_bytes()[0] | 1;
    }
    Ok(memory.write(0, &bytes)?)
}

fn range(job: &Job, slot: u32) -> std::ops::Range<usize> {
    let size = job.size as usize;
    slot as usize * size..(slot as usize + 1) * size
}

/// Those that the job needs.
fn post_receives(job: &Job, memory: &Mr, qp: &Qp) -> anyhow::Result<()> {
    for slot in (0..job.count).filter(|_| job.op.receives()) {
        let mut range = range(job, slot);
        if job.wrong == Wrong::Length {
            range.end -= 1;
        }
        qp.post_recv(&[RecvWr::new(slot.into(), &[memory.sge(range)?])])?;
    }
    Ok(())
}

/// A QP of this end, its part of the memory and what is done with it.
struct End {
    job: Job,
    memory: Mr,
    connection: Connection,
    /// Ticks of the card until the peer is given up.
    patience: RangeInclusive<u64>,
}

impl End {
    fn connect(
        peer: &PeerArgs,
        context: &Context,
        stream: &TcpStream,
        job: &Job,
        nth: u32,
    ) -> anyhow::Result<End> {
        let opened = peer.make(context, DEPTH, nth)?;
        let listens = peer.listen.is_some();
        let asks = listens == job.listener_asks;
        let rights = if job.wrong == Wrong::Rights && !asks { Access::LOCAL_WRITE } else { RIGHTS };
        // an atomic at an odd place ends behind its eight bytes
        let memory = opened.pd.allocate((job.size as usize * job.count as usize).max(16), rights)?;
        fill(&memory, u64::from(nth) << 1 | u64::from(listens))?;
        let attr = QpAttr {
            access: RIGHTS,
            max_rd_atomic: job.reads,
            max_dest_rd_atomic: job.reads,
            ..QpAttr::default()
        };
        let connection = peer.introduce(opened, stream.try_clone()?, &attr, |opened| {
            if asks || job.late { Ok(()) } else { post_receives(job, &memory, &opened.qp) }
        })?;
        if job.wrong == Wrong::Gone && !asks {
            let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
            connection.qp.modify(&reset, AttrMask::STATE)?;
        }
        // a timer runs out between one and four times its time, once for each try
        let timeout = (4096u128 << peer.ack_timeout) * u128::from(attr.retry_cnt + 1);
        let ticks = (timeout * u128::from(context.attributes().core_clock_khz) / 1_000_000) as u64;
        Ok(End { job: job.clone(), memory, connection, patience: ticks..=4 * ticks })
    }

    fn hash(&self) -> anyhow::Result<String> {
        let bytes = self.memory.to_vec(0..self.job.size as usize * self.job.count as usize)?;
        Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn word(&self, slot: u32) -> anyhow::Result<u64> {
        let at = 8 * slot as usize;
        let bytes = self.memory.to_vec(at..at + 8)?;
        Ok(u64::from_ne_bytes(bytes.try_into().map_err(|_| anyhow!("eight bytes"))?))
    }

    fn about(&self) -> anyhow::Result<About> {
        let (addr, rkey) = (self.memory.addr(), self.memory.rkey());
        Ok(About { addr, rkey, hash: self.hash()?, word: self.word(0)? })
    }

    /// Posts the work requests; gives what the peer's word holds after each atomic.
    fn post(&self, theirs: &About) -> anyhow::Result<Vec<u64>> {
        let Job { op, size, count, wrong, .. } = self.job;
        let rkey = if wrong == Wrong::Key { theirs.rkey ^ 0x10 } else { theirs.rkey };
        let shift = match wrong {
            Wrong::Range => u64::from(size) * u64::from(count) - 1,
            Wrong::Alignment => 4,
            _ => 0,
        };
        let mut held = vec![theirs.word];
        for slot in 0..count {
            let now = held[slot as usize];
            let addr =
                theirs.addr + shift + if op.is_atomic() { 0 } else { u64::from(slot) * u64::from(size) };
            let swap = now.rotate_left(17) ^ ADD;
            // every third is not to swap
            let right = slot % 3 != 2;
            let compare = if right { now } else { now ^ 1 };
            let operation = match op {
                Op::Send => Operation::Send,
                Op::SendImm => Operation::SendWithImm(op.imm(slot).unwrap_or_default()),
                Op::Write => Operation::Write { addr, rkey },
                Op::WriteImm => Operation::WriteWithImm { addr, rkey, imm: op.imm(slot).unwrap_or_default() },
                Op::Read => Operation::Read { addr, rkey },
                Op::FetchAdd => Operation::FetchAdd { addr, rkey, add: ADD },
                Op::CompareSwap => Operation::CompareSwap { addr, rkey, compare, swap },
            };
            held.push(match op {
                Op::FetchAdd => now.wrapping_add(ADD),
                Op::CompareSwap if right => swap,
                _ => now,
            });
            let sges = [self.memory.sge(range(&self.job, slot))?];
            self.connection.qp.post_send(&[SendWr::new(slot.into(), operation, &sges).signaled()])?;
        }
        Ok(held)
    }

    /// Judges the completions and what the work requests, posted at `start`, brought.
    fn reap(&self, start: u64, theirs: &About, held: &[u64]) -> anyhow::Result<Left> {
        let Job { op, count, wrong, .. } = self.job;
        for slot in 0..count {
            let found = self.connection.wait()?;
            let flushed = wrong != Wrong::Nothing && slot > 0;
            let status = if flushed { WcStatus::WrFlushErr } else { wrong.status() };
            // Linux' soft-RoCE finds a long message only where it ends, and calls it an operational error
            let late = wrong == Wrong::Length && slot == 0 && found.status == WcStatus::RemOpErr;
            let right = found.wr_id == u64::from(slot) && (found.status == status || late);
            ensure!(right, "work request {slot} ended as {} ({})", found.wr_id, found.status.name());
            let took = found.timestamp.wrapping_sub(start);
            let patient = wrong != Wrong::Gone || flushed || self.patience.contains(&took);
            ensure!(patient, "the peer was given up after {took} ticks, should be {:?}", self.patience);
        }
        if op == Op::Read && wrong == Wrong::Nothing {
            ensure!(self.hash()? == theirs.hash, "the bytes that were read differ");
        }
        if op.is_atomic() && wrong == Wrong::Nothing {
            for slot in 0..count {
                let (word, wanted) = (self.word(slot)?, held[slot as usize]);
                ensure!(word == wanted, "atomic {slot} returned {word:#x}, should be {wanted:#x}");
            }
        }
        Ok(Left { hash: self.hash()?, word: held[count as usize] })
    }

    /// Judges what the peer's work requests did here.
    fn check(&self, before: &About, theirs: &Left) -> anyhow::Result<()> {
        let Job { op, size, count, wrong, .. } = self.job;
        if op.receives() && wrong == Wrong::Nothing {
            for slot in 0..count {
                let found = self.connection.completion()?;
                let right = (found.wr_id, found.byte_len, found.imm) == (slot.into(), size, op.imm(slot));
                ensure!(right, "receive {slot}: {found:?}");
            }
        }
        let hash = self.hash()?;
        if op == Op::Read || !matches!(wrong, Wrong::Nothing | Wrong::Length) {
            ensure!(hash == before.hash, "memory has changed");
        } else if op.is_atomic() {
            let (word, wanted) = (self.word(0)?, theirs.word);
            ensure!(word == wanted, "the atomics left {word:#x}, should be {wanted:#x}");
        } else if wrong == Wrong::Nothing {
            // a message that is too long may leave what fits
            ensure!(hash == theirs.hash, "the bytes differ");
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "../../../sim/peer/tests/golden/captures.rs"]
mod captures;

#[cfg(test)]
mod tests {
    use super::captures::CASES;
    use super::*;

    /// What both ends expect is what a kernel was given by a kernel; that of an atomic at an odd place is not among it, since
    /// that kernel refuses to post one.
    #[test]
    fn refusals_end_with_the_status_that_one_kernel_gave_another() {
        let kernels = |name: &str| CASES.iter().find(|case| case.name == name).expect("a capture").end;
        for (wrong, capture) in [
            (Wrong::Key, "v_bad_rkey_write"),
            (Wrong::Key, "v_bad_rkey_read"),
            (Wrong::Rights, "v_write_noperm"),
            (Wrong::Rights, "v_atomic_noperm"),
            (Wrong::Range, "v_write_oob"),
            (Wrong::Gone, "v_retry_exceeded"),
            (Wrong::Nothing, "v_mix"),
        ] {
            assert_eq!(wrong.status(), kernels(capture), "{capture}");
        }
        // the card finds a long message by its first packet that does not fit, and says so as the standard does
        assert_eq!(
            (Wrong::Length.status(), kernels("v_send_too_long")),
            (WcStatus::RemInvReqErr, WcStatus::RemOpErr)
        );
        let agent = include_str!("../../../ci/guest/peer.py");
        for line in [
            "\"key\": ACCESS",
            "\"range\": ACCESS",
            "\"rights\": ACCESS",
            "\"length\": REQUEST",
            "IBV_WC_RETRY_EXC_ERR",
        ] {
            assert!(agent.contains(line), "{line}");
        }
    }
}
