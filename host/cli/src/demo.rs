//! `verbena demo`: the main job. A file crosses the wire between two simulated cards, four times.
//!
//! ```text
//! demo ─┬─ verbena sim ............ two cards, one wire, a pcapng
//!       ├─ verbena move --listen    writes the copy     } by RDMA WRITE, then by SEND and receive;
//!       └─ verbena move --connect   reads FILE          } on a clean wire, then on a lossy one
//! ```
//!
//! In: a file, or a generated one. Out: SHA-256 of file and copy each time, a pcapng per run, and one table whose
//! figures come from the pcapng, not from the processes. Memory does not grow with the file. Every process that it
//! starts is waited for; on failure or a signal they are ended by pid, and nothing is left but the captures.

use crate::sim::{Share, catch_signals, is_ending};
use anyhow::{Context as _, anyhow, bail, ensure};
use clap::Args;
use contract::Bth;
use indicatif::{ProgressBar, ProgressStyle};
use pcap_file::pcapng::{Block, PcapNgReader, blocks::enhanced_packet::EnhancedPacketOption};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Bytes of the generated file.
const GENERATED: u64 = 1 << 20;
/// Rate of the wire in bits per nanosecond.
const LINE: f64 = 10.0;
/// Bytes of a full data packet beside its payload: preamble 8, Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4, gap 12.
const OVERHEAD: f64 = 82.0;
/// How much slower cards are that move data, beside the processes that move it, than cards at their power-on.
const BUSY: f64 = 2.5;
/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long a process may take to end after it was asked to.
const ENDING: Duration = Duration::from_secs(30);
/// A run without progress for so long has failed.
const STALLED: Duration = Duration::from_secs(120);

/// What to move, and over which wire.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The file to move; default: 1 MiB that is generated.
    file: Option<PathBuf>,
    /// Folder for the captures; default: `demo` in the target directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Loss on the lossy wire.
    #[arg(long, value_name = "SHARE", default_value = "1%")]
    loss: Share,
    /// Path MTU in bytes.
    #[arg(long, default_value = "1024", value_parser = ["256", "512", "1024", "2048", "4096"])]
    mtu: String,
    /// Seed of the generated file and of the wire.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a timeline of each run (ui.perfetto.dev) and tell where the time of WRITEs went.
    #[arg(long)]
    trace: bool,
    /// One JSON value.
    #[arg(long)]
    json: bool,
}

/// One of the four.
struct Run {
    op: &'static str,
    wire: &'static str,
    loss: f64,
}

/// What a run was, for the table.
struct Figures {
    run: Run,
    bytes: u64,
    sha256: String,
    capture: PathBuf,
    /// The timeline.
    trace: Option<PathBuf>,
    /// Where the time of its requests went.
    latency: Vec<String>,
    seen: Seen,
    wall: Duration,
}

/// Runs all four.
pub fn run(args: &DemoArgs) -> anyhow::Result<()> {
    catch_signals();
    let folder = args.out.clone().unwrap_or_else(|| {
        let models = verilated::Source::default_directory();
        models.parent().unwrap_or(&models).join("demo")
    });
    std::fs::create_dir_all(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
    let work = tempfile::tempdir().context("make a temporary folder")?;
    let file = match &args.file {
        Some(path) => path.clone(),
        None => generate(&work.path().join("generated"), args.seed)?,
    };
    let (bytes, sha256) = look_at(&file)?;
    eprintln!("{}: {bytes} bytes, SHA-256 {sha256}", file.display());
    let lossy = args.loss.0;
    let runs = [
        ("write", "clean", 0.0),
        ("send", "clean", 0.0),
        ("write", "lossy", lossy),
        ("send", "lossy", lossy),
    ]
    .map(|(op, wire, loss)| Run { op, wire, loss });
    let mut table = Vec::new();
    for run in runs {
        let capture = folder.join(format!("{}_{}.pcapng", run.op, run.wire));
        let start = Instant::now();
        let title = format!("{}, {} wire", run.op.to_uppercase(), run.wire);
        let copy = work.path().join("copy");
        let latency = one(args, &run, &file, bytes, &copy, &capture, work.path(), table.is_empty())
            .with_context(|| format!("{title} (capture: {})", capture.display()))?;
        let (copied, copy_sha256) = look_at(&copy)?;
        ensure!(
            (copied, &copy_sha256) == (bytes, &sha256),
            "{title}: the copy differs: {copied} bytes, SHA-256 {copy_sha256}"
        );
        let seen = Seen::of(&capture, "card0")?;
        eprintln!("{title}: SHA-256 {copy_sha256}, equal");
        let trace = args.trace.then(|| timeline_of(&capture));
        let wall = start.elapsed();
        table.push(Figures { run, bytes, sha256: copy_sha256, capture, trace, latency, seen, wall });
    }
    let path_mtu: f64 = args.mtu.parse().context("path MTU")?;
    print(args, &table, LINE * path_mtu / (path_mtu + OVERHEAD))
}

/// The timeline of the run of this capture.
fn timeline_of(capture: &Path) -> PathBuf {
    capture.with_extension("pftrace")
}

/// A file of seeded bytes.
fn generate(path: &Path, seed: u64) -> anyhow::Result<PathBuf> {
    // SplitMix64
    let mut state = seed;
    let bytes: Vec<u8> = (0..GENERATED / 8)
        .flat_map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let a = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let b = (a ^ a >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (b ^ b >> 31).to_le_bytes()
        })
        .collect();
    std::fs::write(path, bytes).with_context(|| format!("write {}", path.display()))?;
    Ok(path.into())
}

/// Length and SHA-256 of a regular file, in pieces.
fn look_at(path: &Path) -> anyhow::Result<(u64, String)> {
    let read = || format!("read {}", path.display());
    // Asked first: opening a pipe would wait for its writer.
    ensure!(
        std::fs::metadata(path).with_context(read)?.is_file(),
        "read {}: not a regular file",
        path.display()
    );
    let mut file = File::open(path).with_context(read)?;
    let (mut hash, mut length, mut piece) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = file.read(&mut piece).with_context(read)?;
        if count == 0 {
            break;
        }
        hash.update(&piece[..count]);
        length += count as u64;
    }
    let digest = hash.finalize();
    Ok((length, digest.iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// A process that is ended by pid when it is dropped while it still runs.
struct Process {
    name: &'static str,
    child: Child,
    /// Lines of stdout, as they come.
    out: Receiver<String>,
    /// Lines of stderr, as they come.
    err: Receiver<String>,
    readers: Vec<JoinHandle<()>>,
    said: Vec<String>,
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

fn lines(from: impl Read + Send + 'static) -> (Receiver<String>, JoinHandle<()>) {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    (receiver, thread)
}

impl Process {
    fn start(name: &'static str, command: &mut Command, show: bool) -> anyhow::Result<Self> {
        command.stdout(Stdio::piped()).stderr(if show { Stdio::inherit() } else { Stdio::piped() });
        let mut child = command.spawn().with_context(|| format!("start {name}"))?;
        let (out, reader) = lines(child.stdout.take().context("stdout of a process")?);
        let mut readers = vec![reader];
        let err = match child.stderr.take() {
            Some(stderr) => {
                let (err, reader) = lines(stderr);
                readers.push(reader);
                err
            }
            None => mpsc::channel().1,
        };
        Ok(Self { name, child, out, err, readers, said: Vec::new() })
    }

    /// How it ended, if it has. A failure is an error in its own words.
    fn ended(&mut self) -> anyhow::Result<bool> {
        match self.child.try_wait().with_context(|| format!("wait for {}", self.name))? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => Err(self.failure(status)),
        }
    }

    fn failure(&mut self, status: ExitStatus) -> anyhow::Error {
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        self.said.extend(self.err.try_iter());
        let last = self.said.iter().rev().find(|line| !line.trim().is_empty());
        let words =
            last.map_or_else(String::new, |line| format!(": {}", line.trim_start_matches("verbena: ")));
        anyhow!("{} failed ({status}){words}", self.name)
    }

    /// Waits for its end, but not for ever.
    fn finish(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + ENDING;
        while !self.ended()? {
            ensure!(Instant::now() < end, "{} does not end within {} s", self.name, ENDING.as_secs());
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// The simulator, which ends when its stdin does.
struct Sim {
    process: Process,
    stdin: Option<ChildStdin>,
    clocks_per_second: f64,
}

impl Sim {
    fn start(
        program: &Path,
        run: &Run,
        args: &DemoArgs,
        capture: &Path,
        sockets: &Path,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["sim", "--json", "--until-eof", "--cards", "2", "--capture"]).arg(capture);
        command.args(["--seed", &args.seed.to_string(), "--loss", &run.loss.to_string()]);
        if args.trace {
            command.arg("--trace").arg(timeline_of(capture));
        }
        command.env("VERBENA_RUN", sockets).stdin(Stdio::piped());
        let mut process = Process::start("verbena sim", &mut command, true)?;
        let stdin = process.child.stdin.take();
        // Building the model takes its time and tells of it.
        let ready = loop {
            ensure!(!is_ending(), "interrupted");
            match process.out.recv_timeout(LOOK) {
                Ok(line) => break line,
                Err(_) if !process.ended()? => {}
                Err(_) => bail!("verbena sim ended before it was ready"),
            }
        };
        let ready: Value = serde_json::from_str(&ready).context("the words of verbena sim")?;
        let clocks_per_second = ready["clocks_per_second"].as_f64().unwrap_or(1e5).max(1.0);
        Ok(Self { process, stdin, clocks_per_second })
    }

    /// Ends it; capture and timeline are whole afterwards. Gives where the time of the requests went.
    fn stop(mut self) -> anyhow::Result<Vec<String>> {
        self.stdin = None;
        self.process.finish()?;
        for reader in self.process.readers.drain(..) {
            let _ = reader.join();
        }
        let last = self.process.out.try_iter().last().unwrap_or_default();
        let told: Value = serde_json::from_str(&last).context("the last words of verbena sim")?;
        let lines = told["latency"].as_array().into_iter().flatten();
        Ok(lines.filter_map(|line| line.as_str().map(str::to_owned)).collect())
    }
}

/// Moves the file once.
#[allow(clippy::too_many_arguments)]
fn one(
    args: &DemoArgs,
    run: &Run,
    file: &Path,
    bytes: u64,
    copy: &Path,
    capture: &Path,
    sockets: &Path,
    first: bool,
) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe().context("find this program")?;
    let mut sim = Sim::start(&program, run, args, capture, sockets)?;
    let seconds = bytes as f64 * 8.0 / 1e9 / LINE * 250e6 / sim.clocks_per_second * BUSY;
    if first && seconds > 20.0 {
        eprintln!(
            "the simulated cards run at {:.0} kcycles/s: about {:.0} minutes for each of the four runs",
            sim.clocks_per_second / 1e3,
            (seconds / 60.0).ceil(),
        );
    }
    let mover = |name, device, path: &Path| {
        let mut command = Command::new(&program);
        command.args(["move", "--json", "--device", device, "--op", run.op, "--mtu", &args.mtu]);
        // A lost last packet costs 1 ms of simulated time.
        command.args(["--ack-timeout", "8", "--timeout", &STALLED.as_secs().to_string(), "--file"]).arg(path);
        command.env("VERBENA_RUN", sockets).env_remove("VERBENA_DEVICE").stdin(Stdio::null());
        (name, command)
    };
    let (name, mut command) = mover("the receiving process", "sim:card1", copy);
    let mut receiver = Process::start(name, command.args(["--listen", "127.0.0.1:0"]), false)?;
    let address = loop {
        ensure!(!is_ending(), "interrupted");
        match receiver.err.recv_timeout(LOOK) {
            Ok(line) => match line.strip_prefix("listening on ") {
                Some(address) => break address.to_owned(),
                None => receiver.said.push(line),
            },
            Err(_) => {
                ensure!(!receiver.ended()?, "the receiving process ended before it listened");
                sim.process.ended()?;
            }
        }
    };
    let (name, mut command) = mover("the sending process", "sim:card0", file);
    let mut sender = Process::start(name, command.args(["--connect", &address]), false)?;
    let bar = ProgressBar::new(bytes).with_style(
        ProgressStyle::with_template("{msg:18} {bar:40} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
            .context("style of the progress bar")?,
    );
    bar.set_message(format!("{}, {} wire", run.op.to_uppercase(), run.wire));
    let (mut copied, mut moved) = (0, Instant::now());
    loop {
        ensure!(!is_ending(), "interrupted");
        // Not `&&`: a failure of either is told.
        let ended = [sender.ended()?, receiver.ended()?];
        if ended == [true; 2] {
            break;
        }
        ensure!(!sim.process.ended()?, "verbena sim ended early");
        let length = std::fs::metadata(copy).map_or(0, |data| data.len());
        if length != copied {
            (copied, moved) = (length, Instant::now());
            bar.set_position(length);
        }
        ensure!(moved.elapsed() < STALLED, "no byte arrived for {} s", STALLED.as_secs());
        std::thread::sleep(LOOK);
    }
    bar.finish_and_clear();
    sim.stop()
}

/// What a capture shows of the requests that one card sent.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Request packets that it sent.
    packets: u64,
    /// Those of them whose PSN was sent before.
    retransmissions: u64,
    /// Frames of either card that the wire lost.
    lost: u64,
    /// When the first of its requests left, and when the last acknowledgement left for it, in ns. What the processes
    /// tell each other before and after is no part of the transfer.
    span: Option<(u64, u64)>,
}

/// UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;

impl Seen {
    fn of(capture: &Path, card: &str) -> anyhow::Result<Self> {
        let read = || format!("read {}", capture.display());
        let file = BufReader::new(File::open(capture).with_context(read)?);
        let mut reader = PcapNgReader::new(file).with_context(read)?;
        let mut seen = Self::default();
        let (mut interfaces, mut sent) = (Vec::new(), HashMap::new());
        while let Some(block) = reader.next_block() {
            match block.with_context(read)? {
                Block::InterfaceDescription(interface) => {
                    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption::IfName;
                    let name = interface.options.iter().find_map(|option| match option {
                        IfName(name) => Some(name.to_string()),
                        _ => None,
                    });
                    interfaces.push(name.unwrap_or_default());
                }
                Block::EnhancedPacket(packet) => {
                    let outbound = packet
                        .options
                        .iter()
                        .any(|option| matches!(option, EnhancedPacketOption::Flags(flags) if flags & 3 == 2));
                    if !outbound {
                        continue;
                    }
                    let lost = packet.options.iter().any(
                        |option| matches!(option, EnhancedPacketOption::Comment(text) if text.starts_with("dropped")),
                    );
                    let own = interfaces.get(packet.interface_id as usize).is_some_and(|name| name == card);
                    seen.frame(&packet.data, packet.timestamp.as_nanos() as u64, own, lost, &mut sent);
                }
                _ => {}
            }
        }
        Ok(seen)
    }

    fn frame(&mut self, bytes: &[u8], time: u64, own: bool, lost: bool, sent: &mut HashMap<u32, u32>) {
        // Ethernet 14, IPv4 20, UDP 8
        let Some(bth) = bytes.get(42..).and_then(|rest| rest.first_chunk::<{ Bth::BYTES }>()) else { return };
        if bytes[12..14] != [0x08, 0x00] || bytes[23] != 17 || bytes[36..38] != ROCE_PORT.to_be_bytes() {
            return;
        }
        self.lost += u64::from(lost);
        let bth = Bth::unpack(bth);
        let acknowledges = bth.opcode == contract::Opcode::RcAcknowledge as u8;
        if own == acknowledges {
            // the other way: requests of the other card, and answers to them
            return;
        }
        match &mut self.span {
            Some((_, last)) => *last = time,
            None if own => self.span = Some((time, time)),
            None => {}
        }
        if !own {
            return;
        }
        self.packets += 1;
        let next = sent.entry(bth.dest_qp).or_insert(bth.psn);
        // 24-bit serial numbers: behind by less than half the space
        if next.wrapping_sub(bth.psn) & 0xff_ffff != 0 && next.wrapping_sub(bth.psn) & 0x80_0000 == 0 {
            self.retransmissions += 1;
        } else {
            *next = (bth.psn + 1) & 0xff_ffff;
        }
    }

    fn nanoseconds(&self) -> u64 {
        self.span.map_or(0, |(first, last)| last - first)
    }
}

fn print(args: &DemoArgs, table: &[Figures], bound: f64) -> anyhow::Result<()> {
    let gigabits = |row: &Figures| match row.seen.nanoseconds() {
        0 => 0.0,
        span => row.bytes as f64 * 8.0 / span as f64,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        let rows: Vec<Value> = table
            .iter()
            .map(|row| {
                serde_json::json!({
                    "op": row.run.op, "wire": row.run.wire, "loss": row.run.loss, "bytes": row.bytes,
                    "sha256": row.sha256, "packets": row.seen.packets, "lost": row.seen.lost,
                    "retransmissions": row.seen.retransmissions, "simulated_ns": row.seen.nanoseconds(),
                    "gbps": gigabits(row), "bound_gbps": bound, "share": gigabits(row) / bound,
                    "wall_seconds": row.wall.as_secs_f64(), "capture": row.capture,
                    "trace": row.trace, "latency": row.latency,
                })
            })
            .collect();
        return writeln!(out, "{}", Value::from(rows)).context("write to stdout");
    }
    let mut text = format!(
        "{:<6} {:<6} {:>10} {:>8} {:>6} {:>8} {:>13} {:>7} {:>9} {:>7}  {}\n",
        "op",
        "wire",
        "bytes",
        "packets",
        "lost",
        "retrans.",
        "simulated us",
        "Gb/s",
        "of bound",
        "wall s",
        "capture"
    );
    for row in table {
        text += &format!(
            "{:<6} {:<6} {:>10} {:>8} {:>6} {:>8} {:>13.1} {:>7.3} {:>8.1}% {:>7.1}  {}\n",
            row.run.op,
            row.run.wire,
            row.bytes,
            row.seen.packets,
            row.seen.lost,
            row.seen.retransmissions,
            row.seen.nanoseconds() as f64 / 1e3,
            gigabits(row),
            gigabits(row) / bound * 100.0,
            row.wall.as_secs_f64(),
            row.capture.display(),
        );
    }
    text += &format!(
        "bound: {bound:.3} Gb/s of payload at 10 Gb/s and a path MTU of {}; lossy: {}% of frames lost each way\n",
        args.mtu,
        args.loss.0 * 100.0
    );
    if let Some(clean) = table.first().filter(|row| !row.latency.is_empty()) {
        text += &format!("\nwhere the time went, WRITE on the clean wire:\n{}\n", clean.latency.join("\n"));
    }
    for path in table.iter().filter_map(|row| row.trace.as_ref()) {
        text += &format!("timeline for ui.perfetto.dev: {}\n", path.display());
    }
    write!(out, "{text}").context("write to stdout")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(opcode: u8, psn: u32) -> Vec<u8> {
        let mut bytes = vec![0; 42];
        bytes[12] = 8;
        bytes[23] = 17;
        bytes[36..38].copy_from_slice(&ROCE_PORT.to_be_bytes());
        bytes.extend_from_slice(&Bth { opcode, psn, dest_qp: 7, ..Bth::default() }.pack());
        bytes
    }

    #[test]
    fn a_psn_that_was_sent_before_is_a_retransmission_also_across_the_wrap() {
        let (mut seen, mut sent) = (Seen::default(), HashMap::new());
        seen.frame(&frame(4, 4), 1, false, false, &mut sent);
        for (time, psn) in [0xff_fffe, 0xff_ffff, 0, 0xff_ffff, 0, 1].into_iter().enumerate() {
            seen.frame(&frame(4, psn), 10 + time as u64, true, psn == 1, &mut sent);
        }
        seen.frame(&frame(0x11, 0xff_ffff), 20, false, false, &mut sent);
        seen.frame(&frame(4, 5), 30, false, false, &mut sent);
        seen.frame(&frame(0x11, 5), 31, true, false, &mut sent);
        seen.frame(&[0; 60], 99, true, false, &mut sent);
        assert_eq!(seen, Seen { packets: 6, retransmissions: 2, lost: 1, span: Some((10, 20)) });
    }

    #[test]
    fn what_is_no_file_is_named_before_anything_starts() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = look_at(folder.path()).expect_err("a folder").to_string();
        assert!(error.contains("not a regular file"), "{error}");
        let error = format!("{:#}", look_at(&folder.path().join("none")).expect_err("nothing"));
        assert!(error.contains("none: No such file"), "{error}");
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "").expect("written");
        let hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(look_at(&empty).expect("readable"), (0, hash.to_owned()));
    }
}
