//! `verbena sim`: simulated cards on one wire, behind vfio-user sockets, until Ctrl-C.
//!
//! In: cards, wire, seed, what to record. Out: on stdout one line per card (name, MAC, IP, socket); with `--capture -`
//! stdout is the capture and the lines go to stderr. The sockets vanish and files are complete when it ends.

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use host::Mac;
use sim::{
    card::{CardConfig, CardModel},
    room::{Room, RoomConfig},
    server::Server,
    wire::{self, Faults},
};
use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// A card as given on the command line.
#[derive(Debug, Clone, Default)]
pub struct CardArg {
    mac: Option<Mac>,
    ip: Option<Ipv4Addr>,
    mtu: Option<u16>,
}

impl FromStr for CardArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut card = CardArg::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, value) =
                part.split_once('=').ok_or_else(|| format!("`{part}` is not mac=, ip= or mtu="))?;
            match key {
                "mac" => card.mac = Some(value.parse().map_err(|error| format!("{error}"))?),
                "ip" => card.ip = Some(value.parse().map_err(|error| format!("`{value}`: {error}"))?),
                "mtu" => {
                    let mtu = value.parse().ok().filter(|mtu| (576..=9216).contains(mtu));
                    card.mtu = Some(mtu.ok_or_else(|| format!("mtu `{value}` is not 576 to 9216"))?);
                }
                _ => return Err(format!("`{key}` is not mac, ip or mtu")),
            }
        }
        Ok(card)
    }
}

/// A probability from 0 to 1, or a percentage.
fn probability(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let value = number.parse::<f64>().map_err(|error| error.to_string())? / scale;
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err("not between 0 and 1 (or 0% and 100%)".to_owned())
    }
}

/// What to simulate.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// A card: mac=02:00:00:00:00:0a,ip=10.0.0.1,mtu=4200, each part optional; at most twice. Default: two cards.
    #[arg(long = "card", value_name = "mac=,ip=,mtu=")]
    cards: Vec<CardArg>,
    /// Share of frames that the wire loses, such as 0.01 or 1%.
    #[arg(long, default_value = "0", value_parser = probability)]
    loss: f64,
    /// Share that arrives twice.
    #[arg(long, default_value = "0", value_parser = probability)]
    duplicate: f64,
    /// Share with a flipped bit.
    #[arg(long, default_value = "0", value_parser = probability)]
    corrupt: f64,
    /// Share that falls behind two others.
    #[arg(long, default_value = "0", value_parser = probability)]
    reorder: f64,
    /// One-way delay of the wire in nanoseconds.
    #[arg(long, default_value_t = 500)]
    delay: u64,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Capture both ends of the wire as pcapng; `-`: live to stdout, for `| wireshark -k -i -`.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Log every TLP of card N to FILE with `.cardN.csv` added.
    #[arg(long, value_name = "FILE")]
    tlp_log: Option<PathBuf>,
    /// Write waves of card N to FILE with `.cardN.fst` added.
    #[arg(long, value_name = "FILE")]
    waves: Option<PathBuf>,
    /// Directory of the sockets; default: VERBENA_RUN, else verbena in XDG_RUNTIME_DIR.
    #[arg(long, value_name = "DIRECTORY")]
    run: Option<PathBuf>,
}

/// The model of the card, with words on what takes time.
pub fn model(waves: bool) -> anyhow::Result<CardModel> {
    let start = Instant::now();
    let progress = |step: verilated::Progress| {
        let at = start.elapsed().as_secs();
        match step {
            verilated::Progress::Waiting => {
                eprintln!("[{at:3} s] waiting for another process that builds the card")
            }
            verilated::Progress::Translating => {
                eprintln!("[{at:3} s] building the card's model; once, a minute or two");
            }
            verilated::Progress::Compiling { done, total } => {
                eprintln!("[{at:3} s] compiled {done} of {total}")
            }
            verilated::Progress::Linking => eprintln!("[{at:3} s] linking"),
        }
    };
    Ok(CardModel::small(waves, Some(&progress))?)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(suffix);
    text.into()
}

fn room(args: &SimArgs) -> anyhow::Result<Room> {
    ensure!(args.cards.len() <= 2, "{} cards; a wire has two ends", args.cards.len());
    let count = if args.cards.is_empty() { 2 } else { args.cards.len() };
    let mut config = RoomConfig::example(count, args.seed);
    for (card, wish) in config.cards.iter_mut().zip(&args.cards) {
        let CardConfig { mac, ip, mtu, .. } = card;
        *mac = wish.mac.map_or(*mac, |wish| wish.0);
        *ip = wish.ip.unwrap_or(*ip);
        *mtu = wish.mtu.unwrap_or(*mtu);
    }
    let faults = Faults {
        loss: args.loss,
        duplicate: args.duplicate,
        corrupt: args.corrupt,
        reorder: args.reorder,
        ..Faults::default()
    };
    config.wire = wire::Config { delay: args.delay * 1000, faults: [faults; 2], ..config.wire };
    let mut room = Room::new(&model(args.waves.is_some())?, config)?;
    if let Some(path) = &args.capture {
        room.capture(path)?;
    }
    for card in 0..count {
        if let Some(path) = &args.tlp_log {
            room.log_tlps(card, &with_suffix(path, &format!(".card{card}.csv")))?;
        }
        if let Some(path) = &args.waves {
            room.trace(card, &with_suffix(path, &format!(".card{card}.fst")))?;
        }
    }
    room.power_on()?;
    Ok(room)
}

/// Serves until Ctrl-C, SIGTERM, or the end of the room.
pub fn run(args: &SimArgs) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone()).context("handle Ctrl-C")?;
    }
    let room = room(args)?;
    let cards: Vec<CardConfig> = room.cards().iter().map(|card| card.config().clone()).collect();
    let directory = args.run.clone().unwrap_or_else(host::run_directory);
    let server = Server::start(room, &directory)?;
    let mut lines = String::new();
    for (card, socket) in cards.iter().zip(server.sockets()) {
        lines += &format!("{} {} {} {}\n", card.name, Mac(card.mac), card.ip, socket.display());
    }
    let known = cards.iter().enumerate().all(|(i, card)| {
        let example = CardConfig::example(i);
        (card.mac, card.ip) == (example.mac, example.ip)
    });
    if !known {
        let rows: Vec<String> = cards.iter().map(|card| format!("{}={}", card.ip, Mac(card.mac))).collect();
        lines += &format!("VERBENA_NEIGHBOURS={}\n", rows.join(","));
    }
    if args.capture.as_deref() == Some(Path::new("-")) {
        eprint!("{lines}")
    } else {
        print!("{lines}")
    }
    while !stop.load(Ordering::Relaxed) && server.is_running() {
        std::thread::sleep(Duration::from_millis(100));
    }
    let summary = server.stop()?;
    let frames = summary.wire[0].frames + summary.wire[1].frames;
    eprintln!(
        "simulated {:.6} s, of which {:.6} s busy; {} clocks, {frames} frames",
        summary.now as f64 / 1e12,
        summary.busy as f64 / 1e12,
        summary.clocks
    );
    if !summary.violations.is_empty() {
        bail!("{} rules were broken:\n{}", summary.violations.len(), summary.violations.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_in_parts_and_nonsense_is_refused() {
        let card: CardArg = "mtu=1500,mac=02:00:00:00:00:0c".parse().unwrap();
        assert_eq!((card.mtu, card.mac, card.ip), (Some(1500), Some(Mac([2, 0, 0, 0, 0, 12])), None));
        for text in ["mac", "mac=1", "ip=10.0.0", "mtu=575", "mtu=9217", "speed=1"] {
            assert!(text.parse::<CardArg>().is_err(), "{text}");
        }
        assert!("mtu=576".parse::<CardArg>().is_ok() && "mtu=9216".parse::<CardArg>().is_ok());
    }

    #[test]
    fn a_probability_is_a_share_or_a_percentage() {
        assert_eq!(probability("0.01"), probability("1%"));
        assert!(probability("1.01").is_err() && probability("-1%").is_err() && probability("x").is_err());
        assert_eq!(probability("100%"), Ok(1.0));
    }
}
