//! `verbena ip`: a card's own addresses, and ordinary IP over it.
//!
//! ```text
//! verbena ip add 10.0.0.7/24 [--vlan N]    kept in the run directory for whoever opens the card: its GIDs
//! verbena ip                               shows them
//! verbena ip delete 10.0.0.7
//! verbena ip serve                         holds the card, answers ARP, ND and ping; ends when it no longer can, and says why
//! verbena ip ping 10.0.0.2                 asks who has that address, then pings it
//! ```
//! A card has one holder: a program that uses it for RDMA answers by itself (`--ip` of ping, pingpong, perf and move).

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};
use host::{Context, DeviceAddress, Ip, IpNet, OwnAddress, OwnAddresses};
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Which card, and what to do.
#[derive(Debug, Args)]
pub struct IpArgs {
    /// Card: sim:card0 or vfio:0000:01:00.0; default: the first.
    #[arg(short, long, global = true)]
    device: Option<DeviceAddress>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the addresses that are kept for the card (the default).
    Show {
        /// One JSON value.
        #[arg(long)]
        json: bool,
    },
    /// Keep an address for the card: the first becomes its GID 0.
    Add {
        /// Such as 10.0.0.7/24 or fd00::7/64.
        address: IpNet,
        /// In this VLAN; 0: with a tag that gives a priority alone.
        #[arg(long, value_parser = clap::value_parser!(u16).range(0..=4094))]
        vlan: Option<u16>,
    },
    /// No longer keep it.
    Delete {
        /// The address.
        address: IpAddr,
        /// The one in this VLAN.
        #[arg(long)]
        vlan: Option<u16>,
    },
    /// Hold the card and answer ARP, ND and ping.
    Serve {
        /// So many seconds; default: until it is ended.
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// Ping somebody.
    Ping {
        /// Whom.
        target: IpAddr,
        /// Bytes behind the ICMP header.
        #[arg(short, long, default_value_t = 56)]
        size: usize,
        /// How often.
        #[arg(short = 'n', long, default_value_t = 4)]
        count: u16,
        /// Milliseconds to wait for an answer.
        #[arg(long, default_value_t = 2000)]
        wait: u64,
        /// One JSON value.
        #[arg(long)]
        json: bool,
    },
}

/// Does it.
pub fn run(args: &IpArgs) -> anyhow::Result<()> {
    let device = || args.device.clone().map_or_else(DeviceAddress::first, Ok);
    match &args.action {
        None => show(&device()?, false),
        Some(Action::Show { json }) => show(&device()?, *json),
        Some(Action::Add { address, vlan }) => {
            let mut all = OwnAddresses::load()?;
            all.add(&device()?.to_string(), OwnAddress { net: *address, vlan: *vlan });
            Ok(all.save()?)
        }
        Some(Action::Delete { address, vlan }) => {
            let (mut all, card) = (OwnAddresses::load()?, device()?.to_string());
            ensure!(
                all.remove(&card, *address, *vlan),
                "{card} has no {address}; `verbena ip` shows what it has"
            );
            Ok(all.save()?)
        }
        Some(Action::Serve { seconds }) => {
            let ip = open(&device()?)?;
            let addresses: Vec<String> = ip.addresses().iter().map(ToString::to_string).collect();
            println!("answers for {}", addresses.join(" "));
            let served = ip.serve()?.wait(seconds.map(Duration::from_secs));
            served.context("ARP, ND and ping are no longer answered")
        }
        Some(Action::Ping { target, size, count, wait, json }) => {
            ping(&*open(&device()?)?, *target, *size, *count, Duration::from_millis(*wait), *json)
        }
    }
}

/// The IP stack of a card.
fn open(device: &DeviceAddress) -> anyhow::Result<Arc<Ip>> {
    let context = Context::open(device)?;
    Ip::of_port(&context).context("start the card's IP stack")
}

fn show(device: &DeviceAddress, json: bool) -> anyhow::Result<()> {
    let card = device.to_string();
    let own = OwnAddresses::load()?.of(&card);
    if json {
        let rows = own.iter().map(|own| json!({"address": own.net.to_string(), "vlan": own.vlan}));
        println!("{}", json!({"name": card, "addresses": rows.collect::<Vec<_>>()}));
        return Ok(());
    }
    println!("card: {card}");
    for own in &own {
        let vlan = own.vlan.map_or(String::new(), |vlan| format!(" vlan {vlan}"));
        println!("    {}{vlan}", own.net);
    }
    if own.is_empty() {
        println!(
            "    none kept: by the neighbour table, or link-local alone (`verbena ip add ADDRESS/PREFIX`)"
        );
    }
    Ok(())
}

fn ping(ip: &Ip, target: IpAddr, size: usize, count: u16, wait: Duration, json: bool) -> anyhow::Result<()> {
    let mac = ip.mac_of(target.into())?;
    let mut times = Vec::new();
    for number in 0..count {
        let time = ip.time_ping(target, size, number, wait)?;
        if let (Some(time), false) = (time, json) {
            println!(
                "{size} bytes from {target} ({mac}): number {number}, {:.0} us",
                time.as_secs_f64() * 1e6
            );
        }
        times.extend(time);
    }
    if json {
        let micros: Vec<u128> = times.iter().map(Duration::as_micros).collect();
        println!(
            "{}",
            json!({"target": target.to_string(), "mac": mac.to_string(), "sent": count, "us": micros})
        );
    } else {
        println!("{} of {count} answered", times.len());
    }
    if times.len() < usize::from(count) {
        bail!("{} of {count} pings to {target} were lost", usize::from(count) - times.len());
    }
    Ok(())
}
