//! `verbena selftest`: whether the cards, this machine and the driver do together what they promise.
//!
//! ```text
//! ok      dma         10 messages of 1 to 200000 bytes each way          stdout: a line per check
//! FAILED  interrupts  channel 2: no event within 60 s
//! 7 ok, 1 failed, 0 left out
//! ```
//!
//! In: two cards on one wire, simulated or real; with one, the checks that need a peer are left out, and that of huge pages
//! where there are none. Out: a verdict for
//! each check; exit code 1 if one failed. Every check opens the cards anew, so that none spoils the next. It takes
//! the cards for itself and resets them; it never writes anything that outlives it.

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use contract::register as reg;
use host::exchange::Endpoint;
use host::{
    Access, AddressVector, Backend, Bar, Completion, Context, Cq, Device, DeviceAddress, Kind, Memory, Mr,
    Options, Pd, Qp, QpAttr, QpInit, RecvWr, SendWr, WcStatus,
};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Which cards.
#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// A card, twice for two: sim:card0 or vfio:0000:01:00.0; default: the first two.
    #[arg(short, long)]
    device: Vec<DeviceAddress>,
    /// Only this check; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(CHECKS.iter().map(|check| check.0)))]
    only: Vec<String>,
    /// MiB that the check `memory` registers.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    memory: u32,
    /// One JSON value.
    #[arg(long)]
    json: bool,
    /// The process that a check kills: the peer's connection data, address and R_Key.
    #[arg(long, hide = true, num_args = 3, value_names = ["LINE", "ADDRESS", "R_KEY"])]
    victim: Option<Vec<String>>,
}

/// Longest wait for a completion or an event: a simulated card is slow.
const WAIT: Duration = Duration::from_secs(60);
/// Bytes of an end's memory.
pub const MEMORY: usize = 256 << 10;
/// First PSN of every QP.
const PSN: u32 = 0xff_fff0;
/// Huge pages of 2 MiB.
const HUGE_LOG: u8 = 21;
const RIGHTS: Access = Access::all().difference(Access::INVALIDATE);

/// A check: its name, how many cards it needs, what it does. It tells what it has seen.
type Check = (&'static str, usize, fn(&[DeviceAddress], &SelftestArgs) -> anyhow::Result<String>);

const CHECKS: &[Check] = &[
    ("registers", 1, |cards, _| registers(cards)),
    ("exclusive", 1, |cards, _| exclusive(cards)),
    ("churn", 1, |cards, _| churn(cards)),
    ("dma", 2, |cards, _| dma(cards)),
    ("memory", 2, |cards, args| memory(cards, (args.memory as usize) << 20)),
    ("pages", 2, |cards, _| pages(cards, None)),
    ("huge pages", 2, |cards, _| pages(cards, Some(HUGE_LOG))),
    ("interrupts", 2, |cards, _| interrupts(cards)),
    ("reset", 2, |cards, _| reset(cards)),
    ("kill", 2, |cards, _| kill(cards)),
    ("unmapped", 2, |cards, _| unmapped(cards)),
];

/// Runs every check.
pub fn run(args: &SelftestArgs) -> anyhow::Result<()> {
    let mut cards = args.device.clone();
    if cards.is_empty() {
        DeviceAddress::first()?;
        cards = DeviceAddress::list()?;
        cards.truncate(2);
    }
    if let Some(words) = &args.victim {
        return victim(&cards[0], words);
    }
    ensure!(cards.len() <= 2, "a wire has two ends, and {} cards are named", cards.len());
    let mut rows = Vec::new();
    let mut counts = [0; 3];
    let wanted = |(name, ..): &&Check| args.only.is_empty() || args.only.iter().any(|only| only == name);
    for (name, needs, check) in CHECKS.iter().filter(wanted) {
        let start = Instant::now();
        let (verdict, word, detail) = if cards.len() < *needs {
            (2, "-", "left out: it needs two cards on one wire".to_owned())
        } else {
            match check(&cards, args) {
                Ok(detail) => (0, "ok", detail),
                Err(error) if error.is::<LeftOut>() => (2, "-", format!("left out: {error}")),
                Err(error) => (1, "FAILED", crate::words(&error)),
            }
        };
        counts[verdict] += 1;
        let seconds = start.elapsed().as_secs_f64();
        if !args.json {
            println!("{word:<7} {name:<11} {seconds:6.1} s  {detail}");
        }
        rows.push(json!({"name": name, "verdict": word, "seconds": seconds, "detail": detail}));
    }
    let [ok, failed, left_out] = counts;
    if args.json {
        println!("{}", json!({"checks": rows, "ok": ok, "failed": failed, "left_out": left_out}));
    } else {
        println!("{ok} ok, {failed} failed, {left_out} left out");
    }
    ensure!(failed == 0, "{failed} checks failed");
    Ok(())
}

/// What this machine lacks for a check.
#[derive(Debug)]
struct LeftOut(String);

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LeftOut {}

/// One end of a connection, with memory of this program's own.
pub struct End {
    /// The card.
    pub context: Context,
    pd: Pd,
    cq: Cq,
    /// Its QP.
    pub qp: Qp,
    /// [`MEMORY`] bytes for everything.
    pub memory: Mr,
}

impl End {
    fn open(address: &DeviceAddress) -> anyhow::Result<End> {
        End::on(Context::open(address)?)
    }

    fn on(context: Context) -> anyhow::Result<End> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(64, None)?;
        let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
        let memory = pd.register(vec![0u8; MEMORY], RIGHTS)?;
        Ok(End { context, pd, cq, qp, memory })
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint { qpn: self.qp.number(), psn: PSN, gid: self.context.gids()[0] }
    }

    /// Another QP in the place of one that has failed.
    fn renew(&mut self) -> anyhow::Result<()> {
        self.cq = self.context.create_cq(64, None)?;
        self.qp = self.pd.create_qp(&QpInit::rc(&self.cq, &self.cq))?;
        Ok(())
    }

    /// Its next completion.
    pub fn done(&self) -> anyhow::Result<Completion> {
        let done = self.cq.poll_wait(WAIT)?;
        done.with_context(|| format!("{}: no completion within {} s", self.name(), WAIT.as_secs()))
    }

    fn succeeds(&self) -> anyhow::Result<()> {
        let done = self.done()?;
        ensure!(done.status == WcStatus::Success, "{}: {}", self.name(), told(&done));
        Ok(())
    }

    /// Posts one signaled work request and gives what became of it.
    fn post(&self, wr: SendWr<'_>) -> anyhow::Result<Completion> {
        self.qp.post_send(&[wr.signaled()])?;
        self.done()
    }

    fn name(&self) -> &str {
        self.context.device().name()
    }
}

/// A completion's status and its cause.
pub fn told(done: &Completion) -> String {
    let cause = done.cause().map_or(String::new(), |cause| format!(" ({})", cause.name()));
    format!("{}{cause}", done.status.name())
}

/// What every QP here is connected with.
fn attributes(peer: &Endpoint) -> QpAttr {
    QpAttr {
        access: RIGHTS,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        dest_qpn: peer.qpn,
        rq_psn: peer.psn,
        sq_psn: PSN,
        av: AddressVector::to(peer.gid),
        ..QpAttr::default()
    }
}

fn join(a: &End, b: &End) -> anyhow::Result<()> {
    a.qp.connect_with(&attributes(&b.endpoint()))?;
    Ok(b.qp.connect_with(&attributes(&a.endpoint()))?)
}

/// Two cards, connected.
pub fn pair(cards: &[DeviceAddress]) -> anyhow::Result<(End, End)> {
    let (a, b) = (End::open(&cards[0])?, End::open(&cards[1])?);
    join(&a, &b)?;
    Ok((a, b))
}

fn pattern(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32).map(|i| (i ^ seed).wrapping_mul(0x9e37_79b1).to_be_bytes()[0]).collect()
}

/// WRITEs `length` bytes from an odd place of `a` to another one of `b` and compares them and their neighbours.
fn moves(a: &End, b: &End, length: usize) -> anyhow::Result<()> {
    let bytes = pattern(length, length as u32);
    a.memory.write(3, &bytes)?;
    b.memory.write(0, &vec![0; length + 8])?;
    let sge = [a.memory.sge(3..3 + length)?];
    let done = a.post(SendWr::write(1, &sge, b.memory.addr() + 5, b.memory.rkey()))?;
    let whole = format!("{length} bytes from {} to {}", a.name(), b.name());
    ensure!(done.status == WcStatus::Success, "{whole}: {}", told(&done));
    let there = b.memory.to_vec(0..length + 8)?;
    ensure!(there[5..5 + length] == bytes, "{whole}: other bytes arrived");
    ensure!(there[..5] == [0; 5] && there[5 + length..] == [0; 3], "{whole}: bytes beside them changed");
    Ok(())
}

fn registers(cards: &[DeviceAddress]) -> anyhow::Result<String> {
    for card in cards {
        let backend = card.connect()?;
        let device = Device::new(backend.clone())?;
        let low = backend.read32(Bar::Registers, reg::LAYOUT_HASH.into())?;
        let high = backend.read32(Bar::Registers, u64::from(reg::LAYOUT_HASH) + 4)?;
        let both = backend.read64(Bar::Registers, reg::LAYOUT_HASH.into())?;
        ensure!(
            both == u64::from(high) << 32 | u64::from(low),
            "{card}: halves {high:08x} {low:08x} of {both:016x}"
        );
        let now = device.now_ticks()?;
        ensure!(device.now_ticks()? > now, "{card}: its clock stands still at {now}");
        for bar in [Bar::Registers, Bar::Doorbells] {
            ensure!(
                backend.read32(bar, 1 << 30).is_err(),
                "{card}: a read outside of BAR{} was allowed",
                bar as u8
            );
        }
        let found = capabilities(&*backend)?;
        for (name, id) in
            [("power management", 0x01), ("PCI Express", 0x10), ("MSI-X", 0x11), ("AER", 0x100 | 0x01)]
        {
            ensure!(found.contains(&id), "{card}: configuration space lacks {name}; it has {found:x?}");
        }
    }
    Ok("identity, clock, capabilities, limits of the BARs".to_owned())
}

/// Capability IDs of configuration space, extended ones with 0x100 added.
fn capabilities(backend: &dyn Backend) -> anyhow::Result<HashSet<u16>> {
    let mut space = [0; 4096];
    backend.config_read(0, &mut space[..256])?;
    let mut found = HashSet::new();
    let mut at = usize::from(space[0x34]) & !3;
    while at != 0 && found.insert(u16::from(space[at])) {
        at = usize::from(space[at + 1]) & !3;
    }
    at = 256;
    while at != 0 {
        backend.config_read(at as u64, &mut space[at..at + 4])?;
        let head = u32::from_le_bytes([space[at], space[at + 1], space[at + 2], space[at + 3]]);
        if head == 0 || !found.insert(0x100 | head as u16) {
            break;
        }
        at = (head >> 20) as usize & !3;
    }
    Ok(found)
}

fn exclusive(cards: &[DeviceAddress]) -> anyhow::Result<String> {
    let _held = Device::open(&cards[0])?;
    match Device::open(&cards[0]) {
        Ok(_) => bail!("{} was opened twice", cards[0]),
        Err(error) => {
            ensure!(error.kind() == Kind::NoCard, "a held card is told of wrongly: {error}");
            Ok(error.to_string())
        }
    }
}

fn churn(cards: &[DeviceAddress]) -> anyhow::Result<String> {
    const ROUNDS: usize = 100;
    let context = Context::open(&cards[0])?;
    let pd = context.alloc_pd()?;
    let mut keys = HashSet::new();
    let mut kept = Vec::new();
    for round in 0..ROUNDS {
        let memory = pd.register(vec![0u8; 1 + round * 997], RIGHTS)?;
        ensure!(keys.insert(memory.rkey()), "the key {:#x} was given twice", memory.rkey());
        // some live long, so that free IO addresses lie between used ones
        if round % 7 == 0 {
            kept.push(memory);
        }
    }
    let own = pd.allocate(1 << 20, RIGHTS)?;
    own.write((1 << 20) - 4, b"last")?;
    Ok(format!("{ROUNDS} regions of up to {} bytes made and ended", 1 + (ROUNDS - 1) * 997))
}

fn dma(cards: &[DeviceAddress]) -> anyhow::Result<String> {
    let (a, b) = pair(cards)?;
    let sizes = [1, 63, 4095, 65_537, 200_000];
    for length in sizes {
        moves(&a, &b, length)?;
        moves(&b, &a, length)?;
    }
    let text = pattern(5000, 7);
    a.memory.write(0, &text)?;
    b.qp.post_recv(&[RecvWr::new(2, &[b.memory.sge(10_000..20_000)?])])?;
    a.qp.post_send(&[SendWr::send(3, &[a.memory.sge(0..5000)?]).signaled()])?;
    a.succeeds()?;
    let received = b.done()?;
    ensure!((received.status, received.byte_len) == (WcStatus::Success, 5000), "SEND: {}", told(&received));
    ensure!(b.memory.to_vec(10_000..15_000)? == text, "SEND: other bytes arrived");
    let place = [a.memory.sge(40_000..45_000)?];
    let read = a.post(SendWr::read(4, &place, b.memory.addr() + 10_000, b.memory.rkey()))?;
    ensure!(read.status == WcStatus::Success, "READ: {}", told(&read));
    ensure!(a.memory.to_vec(40_000..45_000)? == text, "READ: other bytes arrived");
    if a.context.attributes().has(reg::feature::ATOMIC) {
        // of registered memory any multiple of 8 will do
        let word = (b.memory.addr() as usize).next_multiple_of(8) - b.memory.addr() as usize;
        b.memory.write(word, &40u64.to_ne_bytes())?;
        let old = [a.memory.sge(0..8)?];
        let added = a.post(SendWr::fetch_add(5, &old, b.memory.addr() + word as u64, b.memory.rkey(), 2))?;
        ensure!(added.status == WcStatus::Success, "fetch and add: {}", told(&added));
        let values = (a.memory.to_vec(0..8)?, b.memory.to_vec(word..word + 8)?);
        ensure!(values == (40u64.to_ne_bytes().into(), 42u64.to_ne_bytes().into()), "40 + 2: {values:?}");
    }
    Ok(format!("WRITEs of {sizes:?} bytes both ways, SEND, READ, an atomic"))
}

/// Bytes that [`there_and_back`] moves.
const PIECE: usize = 5000;

/// From a region of `a` to the memory of `b`, and back to the same place.
fn there_and_back(a: &End, b: &End, region: &Mr, offset: usize) -> anyhow::Result<()> {
    let length = region.len();
    let bytes = pattern(PIECE, offset as u32);
    region.write(offset, &bytes)?;
    let sge = [region.sge(offset..offset + PIECE)?];
    let sent = a.post(SendWr::write(1, &sge, b.memory.addr(), b.memory.rkey()))?;
    ensure!(sent.status == WcStatus::Success, "byte {offset} of {length}: {}", told(&sent));
    ensure!(b.memory.to_vec(0..PIECE)? == bytes, "byte {offset} of {length}: other bytes arrived");
    region.write(offset, &[0; PIECE])?;
    let sge = [b.memory.sge(0..PIECE)?];
    let back = b.post(SendWr::write(2, &sge, region.addr() + offset as u64, region.rkey()))?;
    ensure!(back.status == WcStatus::Success, "byte {offset} of {length}, back: {}", told(&back));
    let arrived = region.to_vec(offset..offset + PIECE)?;
    ensure!(arrived == bytes, "byte {offset} of {length}, back: other bytes");
    Ok(())
}

/// KiB of this process that its kernel keeps in place: all that is mapped for a real card.
fn locked() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).context("no VmLck")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Mappings of small or of huge pages come and go: data crosses their pages both ways, every DMA map comes back.
fn pages(cards: &[DeviceAddress], huge: Option<u8>) -> anyhow::Result<String> {
    // what an emulated IOMMU bears of it
    let rounds = if huge.is_some() { 30 } else { 100 };
    let page = 1usize << huge.unwrap_or(12);
    let map = |round: usize, pages: usize| {
        let mut options = memmap2::MmapOptions::new();
        options.len(pages * page);
        huge.map(|log| options.huge(Some(log)));
        options.map_anon().map_err(|error| match huge {
            // the first asks for most: whatever lacks later has leaked
            Some(_) if round == 0 => {
                LeftOut(format!("no huge page ({error}); as root: sysctl vm.nr_hugepages=8")).into()
            }
            _ => anyhow::Error::from(error).context(format!("region {round}: {pages} pages")),
        })
    };
    let watched = Watched::open(&cards[0])?;
    let context = Context::start(Device::new(watched.clone())?, &Options::from_environment()?)?;
    let (a, b) = (End::on(context)?, End::open(&cards[1])?);
    join(&a, &b)?;
    let before = (watched.maps().len(), locked()?);
    let most = if huge.is_some() { 3 } else { 64 };
    for round in 0..rounds {
        let region = a.pd.register(map(round, most - round % (most - 1))?, RIGHTS)?;
        ensure!(
            watched.maps().len() == before.0 + 1,
            "a region has {} maps",
            watched.maps().len() - before.0
        );
        if round % 10 == 0 {
            // at the beginning, across two pages, at the end
            for offset in [0, page - PIECE.min(page) / 2, region.len() - PIECE] {
                there_and_back(&a, &b, &region, offset)?;
            }
        }
    }
    let after = (watched.maps().len(), locked()?);
    ensure!(before == after, "maps and locked KiB: {before:?} before, {after:?} afterwards");
    Ok(format!(
        "{rounds} regions of 2 to {most} pages of {} KiB; {} maps and {} KiB locked, as before",
        page >> 10,
        after.0,
        after.1
    ))
}

fn memory(cards: &[DeviceAddress], length: usize) -> anyhow::Result<String> {
    let (a, b) = pair(cards)?;
    let start = Instant::now();
    let region = a.pd.register(vec![0u8; length], RIGHTS)?;
    let registered = start.elapsed();
    // both ends of it, and the middle
    for offset in [0, length / 2 - PIECE / 2, length - PIECE] {
        there_and_back(&a, &b, &region, offset)?;
    }
    let start = Instant::now();
    drop(region);
    let times = [registered, start.elapsed()].map(|time| time.as_millis());
    Ok(format!("{} MiB registered in {} ms, ended in {} ms", length >> 20, times[0], times[1]))
}

fn interrupts(cards: &[DeviceAddress]) -> anyhow::Result<String> {
    let (mut a, b) = (End::open(&cards[0])?, End::open(&cards[1])?);
    let limits = b.context.attributes();
    let count = (limits.max_eq.min(limits.msix_vectors) - 1).min(6);
    ensure!(count > 0, "{}: no vector for completions", b.name());
    let mut ends = Vec::new();
    for n in 0..count {
        let channel = b.context.create_comp_channel().with_context(|| format!("channel {n}"))?;
        let cq = b.context.create_cq(8, Some(&channel))?;
        let qp = b.pd.create_qp(&QpInit::rc(&cq, &cq))?;
        ends.push((channel, cq, qp));
    }
    // the last first, so that an interrupt that comes by its order and not by its number is seen
    for n in (0..ends.len()).rev() {
        let (channel, cq, qp) = &ends[n];
        a.renew()?;
        a.qp.connect_with(&attributes(&Endpoint { qpn: qp.number(), ..b.endpoint() }))?;
        qp.connect_with(&attributes(&a.endpoint()))?;
        qp.post_recv(&[RecvWr::new(n as u64, &[b.memory.sge(n * 64..(n + 1) * 64)?])])?;
        cq.request_notify(false)?;
        ensure!(channel.wait(Some(Duration::ZERO))?.is_none(), "channel {n}: an event before its cause");
        a.qp.post_send(&[SendWr::send(9, &[a.memory.sge(0..64)?]).signaled()])?;
        let event = channel.wait(Some(WAIT))?;
        ensure!(
            event.map(|event| event.cqn) == Some(cq.number()),
            "channel {n}: {event:?} within {} s instead of CQ {}",
            WAIT.as_secs(),
            cq.number()
        );
        let received = cq.poll_wait(WAIT)?.context("an event without a completion")?;
        ensure!(received.status == WcStatus::Success, "channel {n}: {}", told(&received));
        a.succeeds()?;
        for (other, (channel, ..)) in ends.iter().enumerate().filter(|(other, _)| *other != n) {
            ensure!(channel.wait(Some(Duration::ZERO))?.is_none(), "channel {other} got the event of {n}");
        }
    }
    Ok(format!("{count} MSI-X vectors, each alone"))
}

fn reset(cards: &[DeviceAddress]) -> anyhow::Result<String> {
    const LENGTH: usize = 128 << 10;
    let (a, b) = pair(cards)?;
    let mut memory = vec![0u8; LENGTH];
    let base = memory.as_mut_ptr();
    // SAFETY: the vector is not touched before the context is closed, which ends every access of the card
    let region = unsafe { a.pd.register_raw(base, LENGTH, RIGHTS) }?;
    for id in 0..8 {
        let (to, from) = ([region.sge(0..LENGTH)?], [a.memory.sge(0..LENGTH)?]);
        let work = match id % 2 {
            0 => SendWr::read(id, &to, b.memory.addr(), b.memory.rkey()),
            _ => SendWr::write(id, &from, b.memory.addr(), b.memory.rkey()),
        };
        a.qp.post_send(&[work.signaled()])?;
    }
    a.succeeds().context("the first READ")?;
    a.context.clone().close().context("reset with seven messages under way")?;
    let refused = a.qp.post_send(&[SendWr::send(9, &[])]);
    ensure!(matches!(refused, Err(host::Error::Closed { .. })), "a closed context takes work: {refused:?}");
    memory.fill(0x5a);
    std::thread::sleep(Duration::from_millis(100));
    let touched = memory.iter().filter(|byte| **byte != 0x5a).count();
    ensure!(touched == 0, "{touched} bytes were written after the reset");
    drop((region, a, b));
    let (a, b) = pair(cards).context("open them again")?;
    moves(&a, &b, 10_000)?;
    moves(&b, &a, 10_000)?;
    Ok("FLR amid READs and WRITEs, no byte written after it, used again".to_owned())
}

/// The process that is killed. However this one ends, it does too.
struct Victim(Child);

impl Victim {
    /// Kills it and waits until it is gone.
    fn kill(&mut self) -> io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn kill(cards: &[DeviceAddress]) -> anyhow::Result<String> {
    let a = End::open(&cards[0])?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["selftest", "--device", &cards[1].to_string()]);
    if let DeviceAddress::Sim { path, .. } = &cards[1] {
        command.env("VERBENA_RUN", path.parent().unwrap_or(path));
    }
    command.args(["--victim", &a.endpoint().line()]);
    command.args([a.memory.addr().to_string(), a.memory.rkey().to_string()]);
    let mut process = Victim(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?);
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().context("no pipe")?).read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let [peer, address, rkey] = words[..] else { bail!("the other process said {line:?}") };
    let peer = Endpoint::parse(peer).context("connection data")?;
    a.qp.connect_with(&QpAttr { timeout: 10, retry_cnt: 2, ..attributes(&peer) })?;
    let (address, rkey) = (address.parse()?, rkey.parse()?);
    let sge = [a.memory.sge(0..100_000)?];
    let mut done = 0u32;
    let post = || a.qp.post_send(&[SendWr::write(1, &sge, address, rkey).signaled()]);
    for _ in 0..4 {
        post()?;
    }
    a.succeeds().context("before the kill")?;
    process.kill()?;
    let end = Instant::now() + WAIT;
    let last = loop {
        let completion = a.done()?;
        if completion.status != WcStatus::Success {
            break completion;
        }
        done += 1;
        ensure!(Instant::now() < end, "{done} WRITEs to a dead process succeeded");
        post()?;
    };
    ensure!(last.status == WcStatus::RetryExcErr, "after the kill: {}", told(&last));
    drop(a);
    let (a, b) = pair(cards).context("open them again")?;
    moves(&a, &b, 10_000)?;
    moves(&b, &a, 10_000)?;
    Ok(format!("killed amid WRITEs both ways; its peer got {}; used again", told(&last)))
}

/// WRITEs to its peer until it is killed.
fn victim(card: &DeviceAddress, words: &[String]) -> anyhow::Result<()> {
    let peer = Endpoint::parse(&words[0]).context("connection data")?;
    let (address, rkey): (u64, u32) = (words[1].parse()?, words[2].parse()?);
    let end = End::open(card)?;
    end.qp.connect_with(&attributes(&peer))?;
    println!("{} {} {}", end.endpoint().line(), end.memory.addr(), end.memory.rkey());
    let sge = [end.memory.sge(0..MEMORY)?];
    let post = || end.qp.post_send(&[SendWr::write(1, &sge, address, rkey).signaled()]);
    (0..4).try_for_each(|_| post())?;
    loop {
        end.succeeds()?;
        post()?;
    }
}

/// A backend whose maps are watched; what is mapped while `dig` is on has an IO address that leads nowhere.
struct Watched {
    inner: Arc<dyn Backend>,
    dig: AtomicBool,
    /// IO address, and whether it leads somewhere.
    maps: Mutex<HashMap<u64, bool>>,
}

impl Watched {
    fn open(card: &DeviceAddress) -> anyhow::Result<Arc<Watched>> {
        Ok(Arc::new(Watched { inner: card.connect()?, dig: AtomicBool::new(false), maps: Mutex::default() }))
    }

    fn maps(&self) -> MutexGuard<'_, HashMap<u64, bool>> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Watched {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn read32(&self, bar: Bar, offset: u64) -> io::Result<u32> {
        self.inner.read32(bar, offset)
    }
    fn read64(&self, bar: Bar, offset: u64) -> io::Result<u64> {
        self.inner.read64(bar, offset)
    }
    fn write32(&self, bar: Bar, offset: u64, value: u32) -> io::Result<()> {
        self.inner.write32(bar, offset, value)
    }
    fn write64(&self, bar: Bar, offset: u64, value: u64) -> io::Result<()> {
        self.inner.write64(bar, offset, value)
    }
    fn copy(&self, bar: Bar, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.copy(bar, offset, bytes)
    }
    fn config_read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.inner.config_read(offset, data)
    }
    fn config_write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.config_write(offset, data)
    }
    unsafe fn map(&self, iova: u64, memory: &Memory<'_>) -> io::Result<()> {
        let leads = !self.dig.load(Ordering::Relaxed);
        if leads {
            // SAFETY: passed on to the caller
            unsafe { self.inner.map(iova, memory) }?;
        }
        self.maps().insert(iova, leads);
        Ok(())
    }
    fn unmap(&self, iova: u64, length: u64) -> io::Result<()> {
        if self.maps().get(&iova) != Some(&false) {
            self.inner.unmap(iova, length)?;
        }
        self.maps().remove(&iova);
        Ok(())
    }
    fn set_irqs(&self, vectors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.inner.set_irqs(vectors)
    }
    fn reset(&self) -> io::Result<()> {
        self.inner.reset()
    }
    fn set_request(&self, request: BorrowedFd<'_>) -> io::Result<bool> {
        self.inner.set_request(request)
    }
    fn release(&self) {
        self.inner.release();
    }
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.inner.iova_ranges()
    }
    fn now(&self) -> Duration {
        self.inner.now()
    }
    fn relax(&self, turn: u32) {
        self.inner.relax(turn);
    }
    fn wait(&self, fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
        self.inner.wait(fd, timeout)
    }
}

fn unmapped(cards: &[DeviceAddress]) -> anyhow::Result<String> {
    let backend = Watched::open(&cards[0])?;
    let context = Context::start(Device::new(backend.clone())?, &Options::from_environment()?)?;
    let (mut a, mut b) = (End::on(context)?, End::open(&cards[1])?);
    backend.dig.store(true, Ordering::Relaxed);
    let hole = a.pd.register(vec![0u8; 8192], RIGHTS)?;
    backend.dig.store(false, Ordering::Relaxed);
    join(&a, &b)?;
    let from = [hole.sge(0..5000)?];
    let sent = a.post(SendWr::write(1, &from, b.memory.addr(), b.memory.rkey()))?;
    let clean = |done: &Completion| !matches!(done.status, WcStatus::Success | WcStatus::RetryExcErr);
    ensure!(clean(&sent), "{}: memory that is not mapped was sent: {}", a.name(), told(&sent));
    let again = |a: &mut End, b: &mut End| {
        a.renew()?;
        b.renew()?;
        join(a, b)
    };
    again(&mut a, &mut b)?;
    let to = [b.memory.sge(0..5000)?];
    let read = b.post(SendWr::read(2, &to, hole.addr(), hole.rkey()))?;
    ensure!(clean(&read), "{}: memory that is not mapped was read: {}", a.name(), told(&read));
    again(&mut a, &mut b)?;
    // a write that goes nowhere is told to nobody; it must only do no harm
    let wrote = b.post(SendWr::write(3, &to, hole.addr(), hole.rkey()))?;
    again(&mut a, &mut b)?;
    moves(&a, &b, 10_000)?;
    moves(&b, &a, 10_000)?;
    Ok(format!(
        "sent: {}; read by a peer: {}; written by a peer: {}; used again",
        told(&sent),
        told(&read),
        told(&wrote)
    ))
}
