//! `verbena target ADDRESS`: the control port of an RDMA endpoint without a host.
//!
//! ```text
//! verbena target 10.0.0.64 query                       who it is, what is free, its keys
//! verbena target 10.0.0.64 create --qpn 2 --peer-qpn 17 --psn 0x123 --gid ::ffff:10.0.0.1 --mtu 1024
//! verbena target 10.0.0.64 destroy --qpn 2 --peer-qpn 17
//! verbena target 10.0.0.64 counters
//! ```
//! In: what the verbs program at this end knows of its own queue pair. Out: what that program needs of the target's (`--json`). One
//! datagram each way (`contract::target`); without a reply it is sent again, [`TRIES`] times. A reply that was lost is no
//! harm: a `create` that finds its own queue pair there is done.

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use contract::PathMtu;
use contract::target::{
    CONTROL_PORT, ControlCounters, ControlHead, ControlOperation, ControlQueue, ControlStatus, DATAGRAM,
    MAGIC, VERSION,
};
use serde_json::json;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

/// How often a request is sent.
const TRIES: u32 = 5;
/// How long a reply is waited for.
const PATIENCE: Duration = Duration::from_millis(300);
/// Bytes of the head.
const HEAD: usize = 12;

/// Which target, and what to do.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// The target's IPv4 address.
    address: Ipv4Addr,
    /// Its control port.
    #[arg(long, default_value_t = CONTROL_PORT)]
    port: u16,
    /// One JSON value.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the target, and who has a queue pair.
    Query {
        /// Queue pair of the target.
        #[arg(long, default_value_t = 2)]
        qpn: u32,
    },
    /// Make a queue pair for this machine's.
    Create {
        /// Queue pair of the target; default: the first that is free.
        #[arg(long)]
        qpn: Option<u32>,
        /// Queue pair at this end.
        #[arg(long, value_parser = number)]
        peer_qpn: u32,
        /// First PSN that this end sends.
        #[arg(long, value_parser = number)]
        psn: u32,
        /// GID at this end, of an IPv4 address: `::ffff:10.0.0.1`.
        #[arg(long)]
        gid: Ipv6Addr,
        /// Path MTU in bytes.
        #[arg(long, default_value_t = 1024)]
        mtu: u32,
    },
    /// End a queue pair.
    Destroy {
        /// Queue pair of the target.
        #[arg(long)]
        qpn: u32,
        /// Queue pair at this end.
        #[arg(long, value_parser = number)]
        peer_qpn: u32,
    },
    /// Show the counters.
    Counters,
}

/// A number of 24 bits, decimal or 0x.
fn number(text: &str) -> Result<u32, String> {
    let value = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let value = value.map_err(|e| e.to_string())?;
    if value >> 24 == 0 { Ok(value) } else { Err("exceeds 24 bits".into()) }
}

/// A target, asked from this end.
struct Target {
    socket: UdpSocket,
    sequence: u32,
}

impl Target {
    fn at(address: SocketAddrV4) -> anyhow::Result<Target> {
        let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)).context("a UDP socket")?;
        socket.connect(address).with_context(|| format!("{address} is not reached from here"))?;
        // replies of a run before are not taken for this one's
        Ok(Target { socket, sequence: std::process::id() << 8 })
    }

    /// One exchange: status, and what follows the head.
    fn ask(
        &mut self,
        operation: ControlOperation,
        queue: &ControlQueue,
    ) -> anyhow::Result<(ControlStatus, [u8; 52])> {
        self.sequence = self.sequence.wrapping_add(1);
        let head = ControlHead {
            magic: MAGIC,
            version: VERSION,
            operation: operation.code(),
            status: 0,
            sequence: self.sequence,
        };
        let request = [&head.pack()[..], &queue.pack()].concat();
        for _ in 0..TRIES {
            match self.socket.send(&request) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
                Err(e) => return Err(e).context("the request is not sent"),
            }
            let end = Instant::now() + PATIENCE;
            while let Some(left) = end.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()) {
                self.socket.set_read_timeout(Some(left))?;
                let mut reply = [0; DATAGRAM + 1];
                let bytes = match self.socket.recv(&mut reply) {
                    Ok(bytes) => bytes,
                    Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                    Err(e) if e.kind() == ErrorKind::ConnectionRefused => continue,
                    Err(e) => return Err(e).context("no reply is received"),
                };
                let got = ControlHead::unpack(&std::array::from_fn(|i| reply[i]));
                if bytes != DATAGRAM || (got.magic, got.sequence) != (MAGIC, head.sequence) {
                    continue;
                }
                if got.version != VERSION {
                    bail!("the target speaks version {}, this command {VERSION}", got.version);
                }
                let status = ControlStatus::from_code(got.status)
                    .with_context(|| format!("the target's status {} is unknown", got.status))?;
                return Ok((status, std::array::from_fn(|i| reply[HEAD + i])));
            }
        }
        bail!("no reply of {} in {TRIES} tries: is it on, and in this network?", self.socket.peer_addr()?)
    }

    /// The same for what is answered by a [`ControlQueue`].
    fn queue(
        &mut self,
        operation: ControlOperation,
        queue: &ControlQueue,
    ) -> anyhow::Result<(ControlStatus, ControlQueue)> {
        let (status, reply) = self.ask(operation, queue)?;
        Ok((status, ControlQueue::unpack(&reply)))
    }
}

/// Runs the command.
pub fn run(args: &TargetArgs) -> anyhow::Result<()> {
    let mut target = Target::at(SocketAddrV4::new(args.address, args.port))?;
    let of = |qpn: u32, peer_qpn: u32| ControlQueue { qpn, peer_qpn, ..ControlQueue::default() };
    let (qpn, status, said) = match args.action {
        Action::Counters => {
            let (status, reply) = target.ask(ControlOperation::Counters, &ControlQueue::default())?;
            done(status)?;
            counters(&ControlCounters::unpack(&reply), args.json);
            return Ok(());
        }
        Action::Query { qpn } => {
            let (status, said) = target.queue(ControlOperation::Query, &of(qpn, 0))?;
            (qpn, status, said)
        }
        Action::Destroy { qpn, peer_qpn } => {
            let (status, said) = target.queue(ControlOperation::Destroy, &of(qpn, peer_qpn))?;
            (qpn, status, said)
        }
        Action::Create { qpn, peer_qpn, psn, gid, mtu } => {
            let path_mtu = PathMtu::ALL.iter().find(|m| m.bytes() == mtu);
            let path_mtu =
                path_mtu.with_context(|| format!("{mtu} is no path MTU: 256 to 4096, a power of two"))?;
            let qpn = match qpn {
                Some(qpn) => qpn,
                None => {
                    let (_, said) = target.queue(ControlOperation::Query, &of(0, 0))?;
                    (0..8).find(|i| said.free >> i & 1 == 1).context("no queue pair is free")?
                }
            };
            let wish = ControlQueue {
                peer_psn: psn,
                path_mtu: path_mtu.code(),
                peer_gid: gid.to_bits(),
                ..of(qpn, peer_qpn)
            };
            let (status, said) = target.queue(ControlOperation::Create, &wish)?;
            let mine = (said.peer_qpn, said.peer_gid) == (peer_qpn, gid.to_bits());
            (qpn, if status == ControlStatus::InUse && mine { ControlStatus::Ok } else { status }, said)
        }
    };
    done(status)?;
    show(qpn, &said, args.json);
    Ok(())
}

/// What went wrong, in words.
fn done(status: ControlStatus) -> anyhow::Result<()> {
    match status {
        ControlStatus::Ok => Ok(()),
        other => bail!("the target refuses: {}", other.doc().trim()),
    }
}

fn show(qpn: u32, said: &ControlQueue, as_json: bool) {
    let address = Ipv4Addr::from(said.address);
    let gid = address.to_ipv6_mapped();
    let owner = (said.peer_qpn != 0).then(|| (said.peer_qpn, Ipv6Addr::from_bits(said.peer_gid)));
    if as_json {
        println!(
            "{}",
            json!({
                "qpn": qpn,
                "gid": gid.to_string(),
                "peer_qpn": owner.map(|o| o.0),
                "peer_gid": owner.map(|o| o.1.to_string()),
                "free": said.free,
                "max_reads": said.max_reads,
                "memory": { "rkey": said.memory_key, "address": 0, "bytes": said.memory_bytes },
                "pins": { "rkey": said.pins_key, "address": 0, "bytes": 8 },
            })
        );
        return;
    }
    let free: Vec<String> = (0..8).filter(|i| said.free >> i & 1 == 1).map(|i: u32| i.to_string()).collect();
    println!("{gid}, free queue pairs: {}", if free.is_empty() { "none".into() } else { free.join(" ") });
    match owner {
        Some((peer, at)) => println!("queue pair {qpn}: of {peer} at {at}"),
        None => println!("queue pair {qpn}: nobody's"),
    }
    println!("memory: rkey {:#010x}, {} bytes from address 0", said.memory_key, said.memory_bytes);
    println!("pins: rkey {:#010x}, LEDs at address 0, switches at 1", said.pins_key);
    println!("READs and atomics at once: {}", said.max_reads);
}

fn counters(c: &ControlCounters, as_json: bool) {
    let bytes = c.pack();
    let layout = ControlCounters::LAYOUT;
    let each = layout.fields.iter().map(|f| (f, layout.read(f, &bytes).unwrap_or_default() as u64));
    if as_json {
        let all: serde_json::Map<String, serde_json::Value> =
            each.map(|(f, value)| (f.name.to_owned(), value.into())).collect();
        println!("{}", serde_json::Value::Object(all));
        return;
    }
    for (field, value) in each {
        println!("{value:10}  {:17} {}", field.name, field.doc.trim());
    }
}
