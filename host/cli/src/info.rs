//! `verbena devinfo` and `verbena counters`: what cards say of themselves. Neither resets nor starts a card; a card
//! held by another process cannot be asked.

use clap::Args;
use host::{Device, DeviceAddress, Gid, Neighbours, StaticNeighbours};
use serde_json::{Value, json};

/// Which card.
#[derive(Debug, Args)]
pub struct DevinfoArgs {
    /// Only this card: sim:card0 or vfio:0000:01:00.0.
    #[arg(short, long)]
    device: Option<DeviceAddress>,
    /// One JSON value.
    #[arg(long)]
    json: bool,
}

/// Which card and which counters.
#[derive(Debug, Args)]
pub struct CountersArgs {
    /// Only this card: sim:card0 or vfio:0000:01:00.0.
    #[arg(short, long)]
    device: Option<DeviceAddress>,
    /// Only counters that are not zero.
    #[arg(short, long)]
    nonzero: bool,
    /// One JSON value.
    #[arg(long)]
    json: bool,
}

/// The card asked for, else every card; an error when there is none.
fn devices(wanted: &Option<DeviceAddress>) -> Result<Vec<DeviceAddress>, host::Error> {
    match wanted {
        Some(address) => Ok(vec![address.clone()]),
        None => {
            DeviceAddress::first()?;
            DeviceAddress::list()
        }
    }
}

fn features(bits: u32) -> Vec<&'static str> {
    use contract::register::feature::*;
    let names = [
        (RC, "rc"),
        (READ, "read"),
        (ATOMIC, "atomic"),
        (UC, "uc"),
        (UD, "ud"),
        (SRQ, "srq"),
        (INLINE, "inline"),
        (IPV6, "ipv6"),
        (PUSH, "push"),
        (INVALIDATE, "invalidate"),
        (MODERATION, "moderation"),
        (TRACE, "trace"),
        (RAW, "raw"),
        (FLASH, "flash"),
    ];
    names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect()
}

/// Prints every card.
pub fn devinfo(args: &DevinfoArgs) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for address in devices(&args.device)? {
        let device = Device::open(&address)?;
        let (limits, port) = (device.attributes(), device.port()?);
        let address = StaticNeighbours::from_environment()?.gid_of(port.mac);
        let gids: Vec<String> =
            address.into_iter().chain([Gid::link_local(port.mac)]).map(|gid| gid.to_string()).collect();
        if args.json {
            all.push(json!({
                "name": device.name(),
                "limits": limits,
                "features": features(limits.features),
                "port": {
                    "mac": port.mac.to_string(), "mtu": port.mtu, "active_mtu": port.active_mtu.bytes(),
                    "state": if port.link_up { "up" } else { "down" }, "gids": gids,
                },
            }));
            continue;
        }
        println!("card: {}", device.name());
        let rows = [
            ("transport", "RoCEv2".to_owned()),
            ("contract", format!("{}.{}", limits.version >> 16, limits.version & 0xffff)),
            ("features", features(limits.features).join(" ")),
            ("datapath", format!("{} bit at {} kHz", limits.datapath_bytes * 8, limits.core_clock_khz)),
            ("max_qp", limits.max_qp.to_string()),
            ("max_qp_wr", host::Attributes::MAX_QP_WR.to_string()),
            ("max_sge", limits.max_sge.to_string()),
            ("max_send_sge", limits.max_send_sge.to_string()),
            ("max_inline", limits.max_inline.to_string()),
            ("max_cq", limits.max_cq.to_string()),
            ("max_cqe", host::Attributes::MAX_CQE.to_string()),
            ("max_mr", limits.max_mr.to_string()),
            ("max_msg_sz", (1u64 << limits.max_message).to_string()),
            ("comp_vectors", limits.max_eq.min(limits.msix_vectors).to_string()),
        ];
        for (name, value) in rows {
            println!("    {name:<14} {value}");
        }
        println!("    port: 1");
        let state = if port.link_up { "PORT_ACTIVE" } else { "PORT_DOWN" };
        println!("        {:<14} {state}", "state");
        println!("        {:<14} {}", "mac", port.mac);
        println!("        {:<14} {}", "mtu", port.mtu);
        println!("        {:<14} {}", "active_mtu", port.active_mtu.bytes());
        for (i, gid) in gids.iter().enumerate() {
            println!("        {:<14} {gid}", format!("GID[{i}]"));
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    Ok(())
}

/// Prints every counter.
pub fn counters(args: &CountersArgs) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for address in devices(&args.device)? {
        let device = Device::open(&address)?;
        let rejects = device.rejects()?.into_iter().map(|(row, count)| {
            (format!("reject.{}", row.stage().name().to_lowercase()), row.name(), count, row.doc())
        });
        let stages = device.stage_counters()?;
        let stages =
            stages.into_iter().map(|(row, count)| ("count".to_owned(), row.name(), count, row.doc()));
        let rows = rejects.chain(stages).filter(|row| !args.nonzero || row.2 > 0);
        if args.json {
            let rows: Vec<Value> = rows
                .map(|(kind, name, value, doc)| json!({"kind": kind, "name": name, "value": value, "doc": doc}))
                .collect();
            all.push(json!({"name": device.name(), "counters": rows}));
            continue;
        }
        println!("card: {}", device.name());
        for (kind, name, value, doc) in rows {
            println!("    {value:>14}  {name:<24} {kind:<19} {doc}");
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    Ok(())
}
