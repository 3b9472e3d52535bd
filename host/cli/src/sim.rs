//! `verbena sim`: one or two simulated cards on a wire, for other processes.
//!
//! ```text
//! card0 /run/user/1000/verbena/card0.sock 02:00:00:00:00:0a 10.0.0.1      stdout: a line per card, then `ready`
//! ready                                                                  stderr: what happens meanwhile
//! ```
//!
//! In: what the cards and the wire are. Out: vfio-user sockets in `$VERBENA_RUN` until SIGINT or SIGTERM, then closed
//! captures, logs and waves. `--json`: one line when ready, one with the figures at the end. With `--capture -` stdout
//! is the capture, for `verbena sim --capture - | wireshark -k -i -`, and the lines go to stderr. With `--dgram` the other
//! end of the wire is QEMU's, so that a real kernel is the peer; with `--target`, too, the near end is the board of a target,
//! which has no socket: `target 02:56:45:52:42:05 10.0.0.69`. A card that broke a rule of PCI Express or of the line
//! ends in exit code 1.

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use host::trace::Timed;
use sim::{
    Error,
    card::{CardConfig, CardModel},
    room::{Room, RoomConfig},
    server::{Server, Summary},
    target::Target,
    wire::{self, Faults, dgram::Dgram},
};
use std::{
    io::{IsTerminal, Read, Write},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// What the stages of a card told, so far.
type Marks = Arc<Mutex<Vec<Timed>>>;
/// Most of it that is kept: 48 MiB.
const MARKS: usize = 1 << 20;

/// How often a waiting command looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// The cards and the wire.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// Cards: 1 or 2; default: as many as --card describes, but at least 2; with --dgram 1.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2))]
    cards: Option<u8>,
    /// A card, first card0: mac=02:00:00:00:00:0a,ip=10.0.0.1,mtu=4200; every part may be left out.
    #[arg(long, value_name = "PARTS")]
    card: Vec<CardParts>,
    /// Share of frames that the wire loses, such as 0.01 or 1%.
    #[arg(long, value_name = "SHARE", default_value = "0")]
    loss: Share,
    /// Share of frames that arrive twice.
    #[arg(long, value_name = "SHARE", default_value = "0")]
    duplicate: Share,
    /// Share of frames that fall behind two others.
    #[arg(long, value_name = "SHARE", default_value = "0")]
    reorder: Share,
    /// Share of frames in which a bit flips.
    #[arg(long, value_name = "SHARE", default_value = "0")]
    corrupt: Share,
    /// One-way delay of the wire in nanoseconds of simulated time.
    #[arg(long, value_name = "NS", default_value_t = 500)]
    delay: u64,
    /// The wire's other end is a UDP port that takes frames at LOCAL and sends them to REMOTE, such as
    /// 127.0.0.1:7700,127.0.0.1:7701: what QEMU's `-netdev dgram` speaks.
    #[arg(long, value_name = "LOCAL,REMOTE")]
    dgram: Option<Addresses>,
    /// From the first frame at that port on, ARP requests fill what is free of the line to the card for so many
    /// milliseconds of simulated time.
    #[arg(long, value_name = "MS", requires = "dgram")]
    storm: Option<u32>,
    /// Instead of a card the whole top of the ECP5-5G Versa, an RDMA endpoint without a host, with its switches so.
    #[arg(
        long,
        value_name = "SWITCHES",
        num_args = 0..=1,
        default_missing_value = "5",
        requires = "dgram",
        conflicts_with_all = ["cards", "card", "tlp_log", "trace", "waves"]
    )]
    target: Option<u8>,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write what both ends of the wire see as pcapng; `-`: to stdout, live.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Write every TLP as CSV, a file per card: card1 of log.csv is log.card1.csv.
    #[arg(long, value_name = "FILE")]
    tlp_log: Option<PathBuf>,
    /// Write what every stage of the cards decides as a timeline (ui.perfetto.dev), and tell where the time of requests went. A model of its own is built.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write waves (FST), a file per card. Much slower, and a model of its own is built.
    #[arg(long, value_name = "FILE")]
    waves: Option<PathBuf>,
    /// One JSON line when ready, one at the end.
    #[arg(long)]
    json: bool,
    /// End when stdin does: for a program that starts this one.
    #[arg(long, hide = true)]
    until_eof: bool,
}

/// A share from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (number, scale) = match text.strip_suffix('%') {
            Some(number) => (number, 100.0),
            None => (text, 1.0),
        };
        let share: f64 = number.trim().parse().map_err(|_| format!("`{text}` is no number"))?;
        let share = share / scale;
        if (0.0..=1.0).contains(&share) {
            Ok(Share(share))
        } else {
            Err("a share is from 0 to 1, or 0% to 100%".into())
        }
    }
}

/// Two addresses of a UDP port: this side's and the other's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Addresses(SocketAddr, SocketAddr);

impl FromStr for Addresses {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(',').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (local, remote) = parts.ok_or_else(|| format!("`{text}` is not ADDRESS:PORT,ADDRESS:PORT"))?;
        Ok(Self(local, remote))
    }
}

/// What of a card is not as in the examples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardParts {
    mac: Option<[u8; 6]>,
    ip: Option<Ipv4Addr>,
    mtu: Option<u16>,
}

impl FromStr for CardParts {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not KEY=VALUE"))?;
            match key {
                "mac" => {
                    let mac: host::Mac = value.parse().map_err(|error| format!("{error}"))?;
                    if mac.0[0] & 1 != 0 || mac.0 == [0; 6] {
                        return Err(format!("{value} is no address of a single card"));
                    }
                    parts.mac = Some(mac.0);
                }
                "ip" => parts.ip = Some(value.parse().map_err(|_| format!("`{value}` is no IPv4 address"))?),
                "mtu" => {
                    let mtu = value.parse().ok().filter(|mtu| (336..=9216).contains(mtu));
                    parts.mtu = Some(mtu.ok_or_else(|| format!("`{value}` is no MTU from 336 to 9216"))?);
                }
                _ => return Err(format!("`{key}` is none of mac, ip, mtu")),
            }
        }
        Ok(parts)
    }
}

/// The word to end came: SIGINT or SIGTERM.
static ENDING: AtomicBool = AtomicBool::new(false);

extern "C" fn note_the_end(_: libc::c_int) {
    ENDING.store(true, Ordering::Relaxed);
}

/// From now on SIGINT and SIGTERM only make [`is_ending`] true. Programs started later have them as usual.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores into a static atomic and does nothing else, which any context allows.
        unsafe { libc::signal(signal, note_the_end as *const () as libc::sighandler_t) };
    }
}

/// Whether SIGINT or SIGTERM came.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

impl SimArgs {
    fn configuration(&self) -> anyhow::Result<RoomConfig> {
        let usual = self.card.len().max(if self.dgram.is_some() { 1 } else { 2 });
        let count = self.cards.map_or(usual, usize::from);
        ensure!(self.dgram.is_none() || count == 1, "with --dgram the wire has one card");
        if self.card.len() > count || count > 2 {
            bail!("{} cards are described; a wire has two ends and --cards says {count}", self.card.len());
        }
        let mut config = RoomConfig::example(count, self.seed);
        for (card, parts) in config.cards.iter_mut().zip(&self.card) {
            card.mac = parts.mac.unwrap_or(card.mac);
            card.ip = parts.ip.unwrap_or(card.ip);
            card.mtu = parts.mtu.unwrap_or(card.mtu);
        }
        if let [a, b] = &config.cards[..] {
            ensure!(a.mac != b.mac && a.ip != b.ip, "both cards have the same MAC or IP address");
        }
        let faults = Faults {
            loss: self.loss.0,
            duplicate: self.duplicate.0,
            corrupt: self.corrupt.0,
            reorder: self.reorder.0,
            ..Faults::default()
        };
        let delay = self.delay.checked_mul(1000).context("--delay is beyond the end of time")?;
        config.wire = wire::Config { delay, faults: [faults; 2], ..config.wire };
        Ok(config)
    }

    /// What is at the wire, powered on.
    fn room(&self, config: RoomConfig, marks: &Marks) -> anyhow::Result<Room> {
        let mut room = match self.target {
            Some(switches) => {
                let target = telling(|tell| Target::new(switches, Some(tell)))?;
                Room::of_target(target, config.wire, config.seed)
            }
            None => self.room_of_cards(config, marks)?,
        };
        if let Some(path) = &self.capture {
            room.capture(path)?;
        }
        Ok(room)
    }

    fn room_of_cards(&self, config: RoomConfig, marks: &Marks) -> anyhow::Result<Room> {
        let small = nic::Config::small();
        let kind = if self.trace.is_some() { small.traced() } else { small.untraced() };
        let model = telling(|tell| CardModel::of(&kind, self.waves.is_some(), Some(tell)))?;
        let cards = config.cards.len();
        let mut room = Room::new(&model, config)?;
        if self.trace.is_some() {
            let marks = marks.clone();
            room.mark(Some(Box::new(move |card, ticks, entry| {
                let mut marks = marks.lock().unwrap_or_else(PoisonError::into_inner);
                if marks.len() < MARKS {
                    marks.push(Timed { card, ticks, entry: *entry });
                }
            })));
        }
        for card in 0..cards {
            if let Some(path) = &self.tlp_log {
                room.log_tlps(card, &per_card(path, card, cards))?;
            }
            if let Some(path) = &self.waves {
                room.trace(card, &per_card(path, card, cards))?;
            }
        }
        Ok(room)
    }
}

/// The file of a card: `log.csv` becomes `log.card1.csv` when there are several cards.
fn per_card(path: &Path, card: usize, cards: usize) -> PathBuf {
    if cards == 1 {
        return path.into();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".card{card}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Runs `build`, which builds or loads a model, and tells on stderr what takes long.
fn telling<T>(
    build: impl FnOnce(&(dyn Fn(verilated::Progress) + Sync)) -> Result<T, Error>,
) -> Result<T, Error> {
    let start = Instant::now();
    let in_place = std::io::stderr().is_terminal();
    let tell = move |step: verilated::Progress| {
        use verilated::Progress;
        let what = match step {
            Progress::Waiting => "another process builds the card's model; waiting for it".to_owned(),
            Progress::Translating => "building the card's model (once): Verilator".to_owned(),
            Progress::Compiling { done, total } => {
                format!("building the card's model (once): C++ unit {done} of {total}")
            }
            Progress::Linking => "building the card's model (once): linking".to_owned(),
        };
        let seconds = start.elapsed().as_secs();
        if in_place {
            eprint!("\r\x1b[K{what}, {seconds} s");
        } else {
            eprintln!("{what}, {seconds} s");
        }
    };
    let model = build(&tell)?;
    if in_place {
        eprint!("\r\x1b[K");
    }
    Ok(model)
}

/// Serves until told to end.
pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    let config = args.configuration()?;
    catch_signals();
    let cards = config.cards.clone();
    let marks = Marks::default();
    let mut room = args.room(config, &marks)?;
    let target = room.target().map(|target| (target.mac(), target.ip()));
    let start = Instant::now();
    room.power_on()?;
    let clocks: u64 = room.cards().iter().map(sim::card::Card::clocks).sum();
    let rate = clocks as f64 / cards.len() as f64 / start.elapsed().as_secs_f64().max(1e-6);
    let port = args.dgram.map(|Addresses(local, remote)| {
        Dgram::open(local, remote).with_context(|| format!("wait for frames at {local}"))
    });
    let port = port.transpose()?;
    let mut server = Server::start(room, &host::run_directory())?;
    if let Some(port) = port {
        server.open_port(port);
    }
    if let Some(ms) = args.storm {
        let frames = storm(target.map_or(cards[0].ip, |(_, ip)| ip));
        server.change(move |room| room.storm(frames, u64::from(ms) * 1_000_000_000));
    }
    match target {
        Some((mac, ip)) => announce_target(args, host::Mac(mac), ip)?,
        None => announce(args, &cards, &server, rate)?,
    }
    let start = Instant::now();
    if args.until_eof {
        std::thread::spawn(|| {
            let mut rest = [0; 64];
            while std::io::stdin().lock().read(&mut rest).is_ok_and(|count| count > 0) {}
            ENDING.store(true, Ordering::Relaxed);
        });
    }
    while !is_ending() && server.is_running() {
        std::thread::sleep(LOOK);
    }
    let summary = server.stop()?;
    let latency = match &args.trace {
        Some(path) => timeline(path, &marks, &cards)?,
        None => vec![],
    };
    conclude(args, &summary, start.elapsed(), &latency)
}

/// Questions of a stranger, to all: one in sixteen for the card's address.
fn storm(card: Ipv4Addr) -> Vec<Vec<u8>> {
    let question = |n: u8| {
        let target = if n == 0 { card.octets() } else { [10, 0, 0, 99] };
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 0x77, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0x77, 10, 0, 0, 119]);
        frame.extend([0; 6]);
        frame.extend(target);
        frame
    };
    (0..16).map(question).collect()
}

/// Writes the timeline; gives the tables of where the time went.
fn timeline(path: &Path, marks: &Marks, cards: &[CardConfig]) -> anyhow::Result<Vec<String>> {
    let marks = std::mem::take(&mut *marks.lock().unwrap_or_else(PoisonError::into_inner));
    if marks.len() == MARKS {
        eprintln!("{}: the first {MARKS} marks; more came", path.display());
    }
    let names: Vec<String> = cards.iter().map(|card| card.name.clone()).collect();
    let khz = (1_000_000_000 / sim::card::CORE_PERIOD) as u32;
    crate::trace::write(path, &marks, &names, khz)
}

/// Stdout, unless a live capture goes there.
fn say(args: &SimArgs, text: &str) -> anyhow::Result<()> {
    if args.capture.as_deref() == Some(Path::new("-")) {
        eprintln!("{text}");
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).context("write to stdout")
}

fn announce_target(args: &SimArgs, mac: host::Mac, ip: Ipv4Addr) -> anyhow::Result<()> {
    if args.json {
        let target = serde_json::json!({"mac": mac.to_string(), "ip": ip.to_string()});
        return say(args, &serde_json::json!({ "target": target }).to_string());
    }
    say(args, &format!("target {mac} {ip}"))?;
    say(args, "ready")
}

fn announce(args: &SimArgs, cards: &[CardConfig], server: &Server, rate: f64) -> anyhow::Result<()> {
    if args.json {
        let list: Vec<_> = cards
            .iter()
            .zip(server.sockets())
            .map(|(card, socket)| {
                serde_json::json!({
                    "name": card.name, "socket": socket, "mac": host::Mac(card.mac).to_string(),
                    "ip": card.ip.to_string(), "mtu": card.mtu,
                })
            })
            .collect();
        return say(args, &serde_json::json!({"cards": list, "clocks_per_second": rate}).to_string());
    }
    for (card, socket) in cards.iter().zip(server.sockets()) {
        say(args, &format!("{} {} {} {}", card.name, socket.display(), host::Mac(card.mac), card.ip))?;
    }
    let usual = |(i, card): (usize, &CardConfig)| {
        let example = CardConfig::example(i);
        (card.mac, card.ip) == (example.mac, example.ip)
    };
    if !cards.iter().enumerate().all(usual) {
        let rows: Vec<_> = cards.iter().map(|card| format!("{}={}", card.ip, host::Mac(card.mac))).collect();
        eprintln!("for the programs: export VERBENA_NEIGHBOURS={}", rows.join(","));
    }
    say(args, "ready")
}

fn conclude(args: &SimArgs, summary: &Summary, wall: Duration, latency: &[String]) -> anyhow::Result<()> {
    let sum = |of: fn(&wire::Counters) -> u64| summary.wire.iter().map(of).sum::<u64>();
    // IOMMU faults are the programs' doing: one that was killed leaves the card writing to what is gone.
    let (faults, broken): (Vec<&String>, Vec<&String>) =
        summary.violations.iter().partition(|what| what.contains("Fault"));
    if args.json {
        let value = serde_json::json!({
            "simulated_ns": summary.now / 1000, "busy_ns": summary.busy / 1000, "clocks": summary.clocks,
            "wall_seconds": wall.as_secs_f64(),
            "frames": sum(|side| side.frames), "dropped": sum(|side| side.dropped),
            "duplicated": sum(|side| side.duplicated), "corrupted": sum(|side| side.corrupted),
            "memory_faults": faults.len(), "violations": broken, "latency": latency,
        });
        say(args, &value.to_string())?;
    } else {
        eprintln!(
            "{} frames, {} lost; {:.6} s of simulated time, {:.6} s of it busy; {} memory faults",
            sum(|side| side.frames),
            sum(|side| side.dropped),
            summary.now as f64 / 1e12,
            summary.busy as f64 / 1e12,
            faults.len(),
        );
        latency.iter().for_each(|line| eprintln!("{line}"));
    }
    for what in broken.iter().take(10) {
        eprintln!("rule broken: {what}");
    }
    ensure!(broken.is_empty(), "the cards broke {} rules", broken.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_numbers_or_per_cent_and_never_beyond_either_end() {
        let share = |text: &str| text.parse::<Share>().map(|share| share.0);
        assert_eq!((share("0.01"), share("1%"), share("100%")), (Ok(0.01), Ok(0.01), Ok(1.0)));
        for bad in ["", "-0.1", "1.01", "101%", "x", "NaN"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_card_is_described_by_any_of_its_parts() {
        let card: CardParts = "mtu=1500,mac=02:00:00:00:01:0c".parse().expect("well formed");
        assert_eq!(card, CardParts { mac: Some([2, 0, 0, 0, 1, 0x0c]), ip: None, mtu: Some(1500) });
        for bad in ["mac", "mac=1", "mac=01:00:00:00:00:00", "ip=::1", "mtu=100", "mtu=9217", "color=red"] {
            assert!(bad.parse::<CardParts>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_port_to_qemu_has_two_addresses_and_its_wire_one_card() {
        let addresses: Addresses = "127.0.0.1:7700,127.0.0.1:7701".parse().expect("well formed");
        assert_eq!((addresses.0.port(), addresses.1.port()), (7700, 7701));
        for bad in ["", "127.0.0.1:7700", "127.0.0.1,127.0.0.1:7701", "7700,7701"] {
            assert!(bad.parse::<Addresses>().is_err(), "{bad}");
        }
    }

    #[test]
    fn files_of_several_cards_are_told_apart() {
        assert_eq!(per_card(Path::new("a/log.csv"), 1, 2), Path::new("a/log.card1.csv"));
        assert_eq!(per_card(Path::new("log"), 0, 2), Path::new("log.card0"));
        assert_eq!(per_card(Path::new("log.csv"), 0, 1), Path::new("log.csv"));
    }
}
