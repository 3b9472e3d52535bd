//! Who the queue pairs of a target are for: one entry per QP, written by control.
//!
//! In: an entry from control. Out: to every stage the lines of the QP context (`contract::context`) that it asks for, a
//! clock after its address. What is the same for every QP of a target is constant here, so that synthesis takes out of
//! the stages what only a requester, another transport, IPv6 or a tag would need. A read in the clock of a write gives the
//! old entry: control waits for its fences, not for this.
//!
//! Requirements: TGT

use crate::config::Config;
use crate::rx::verify::ipv4_gid;
use crate::standalone::Identity;
use contract::context::{MrEntryBits, QpAddressesBits, QpPathBits, QpQueuesBits, QpRightsBits};
use contract::target::{ControlQueue, TargetPins};
use contract::verbs::access;
use contract::wire::DEFAULT_PKEY;
use contract::{MrEntry, QpState, Transport};
use hdl::{Bundle, Memory, Module, PortBuilder, Ports, Sig, cat, delay, high, lit, low, mux};

/// READs and atomics of each QP that the peer may have outstanding.
pub const MAX_READS: u32 = 4;
/// First QP that is given out: 0 and 1 have their meaning.
pub const FIRST_QP: u32 = 2;
/// log2 of the bytes of the memory.
pub const LOG_MEMORY: u32 = 15;
/// R_Key of the memory.
pub const MEMORY_KEY: u32 = MrEntry::key(1, 0x4d);
/// R_Key of the pins.
pub const PINS_KEY: u32 = MrEntry::key(2, 0x50);
/// Timer code of RNR NAKs: 10 ms. A target has no receives, so the peer shall not ask too often.
const RNR_TIMER: u64 = 0x0e;
/// Hops.
const TTL: u64 = 64;
/// UDP source port of its packets; the ICRC covers it, and nobody routes by it here.
const SOURCE_PORT: u64 = 0xc000;
/// What a peer may do, to a QP and to a region.
const RIGHTS: u8 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

const _: () = assert!(ControlQueue::LAYOUT.bytes == 52 && TargetPins::LAYOUT.bytes == 8);

/// An entry.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Peer {
    /// The QP exists.
    pub valid: Sig,
    /// See `contract::PathMtu`.
    #[shape(3)]
    pub path_mtu: Sig,
    /// The peer's MAC address.
    #[shape(48)]
    pub mac: Sig,
    /// The peer's QP.
    #[shape(24)]
    pub qpn: Sig,
    /// The peer's IPv4 address.
    #[shape(32)]
    pub address: Sig,
}

/// A write of an entry.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct PeerWrite {
    /// In this clock.
    pub valid: Sig,
    /// Which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// Its entry.
    #[shape(())]
    pub peer: Peer,
}

/// The table.
#[derive(Clone, Debug)]
pub struct Peers {
    /// Sizes.
    pub config: Config,
    /// Readers.
    pub readers: u32,
}

/// Ports of [`Peers`].
pub struct PeersIo {
    /// From control.
    pub write: PeerWrite,
    /// QP of each reader.
    pub address: Vec<Sig>,
    /// Its entry, one clock later.
    pub entry: Vec<Sig>,
}

impl Ports for PeersIo {
    type Config = Peers;
    fn declare(m: &Peers, p: &mut PortBuilder) -> Self {
        let bits = m.config.qp_bits();
        let width = Peer::total_width(&());
        PeersIo {
            write: p.input("write", &m.config),
            address: (0..m.readers).map(|i| p.input(&format!("address_{i}"), &bits.into())).collect(),
            entry: (0..m.readers).map(|i| p.output(&format!("entry_{i}"), &width.into())).collect(),
        }
    }
}

impl Module for Peers {
    type Io = PeersIo;
    fn name(&self) -> String {
        format!("peers_{}r{}", self.config.qps, self.readers)
    }
    fn doc(&self) -> String {
        format!("Peers of the queue pairs of a target: written by control, {} readers.", self.readers)
    }
    fn body(&self, io: &PeersIo) {
        let memory = Memory::new("entries", self.config.qps, Peer::total_width(&())).ignoring_collisions();
        memory.write(io.write.valid, io.write.qp, io.write.peer.to_bits());
        for (i, (address, entry)) in io.address.iter().zip(&io.entry).enumerate() {
            entry.set(memory.read(&format!("read_{i}"), high(), *address));
        }
    }
}

/// The rights line of an entry: ready to receive, for ever.
pub fn rights_line(peer: &Peer) -> Sig {
    QpRightsBits {
        state: lit(4, QpState::Rtr as u64),
        transport: lit(4, Transport::Rc as u64),
        access: lit(8, u64::from(RIGHTS)),
        path_mtu: peer.path_mtu.extend(4),
        valid: peer.valid,
        page: lit(16, 0),
        pd: lit(24, 0),
        pkey: lit(16, u64::from(DEFAULT_PKEY)),
        min_rnr_timer: lit(5, RNR_TIMER),
        timeout: lit(5, 0),
        retry_cnt: lit(3, 0),
        rnr_retry: lit(3, 0),
        max_inflight: lit(16, 0),
        max_rd_atomic: lit(5, 0),
        max_dest_rd_atomic: lit(5, u64::from(MAX_READS)),
        tagged: low(),
        ipv6: low(),
        rq_psn: lit(24, 0),
        sq_psn: lit(24, 0),
        vlan: lit(12, 0),
        drain: lit(4, 0),
    }
    .pack()
}

/// The path line.
pub fn path_line(me: &Identity, peer: &Peer) -> Sig {
    QpPathBits {
        dest_mac: peer.mac,
        ttl: lit(8, TTL),
        tos: lit(8, 0),
        src_mac: me.mac,
        udp_source_port: lit(16, SOURCE_PORT),
        dest_qpn: peer.qpn,
        flow_label: lit(20, 0),
        vlan_tag: lit(16, 0),
    }
    .pack()
}

/// The addresses line.
pub fn addresses_line(me: &Identity, peer: &Peer) -> Sig {
    QpAddressesBits { dest_gid: ipv4_gid(peer.address), src_gid: ipv4_gid(me.address) }.pack()
}

/// The queues line of the QP whose address is `qp`, a clock later: there are no queues, but the READs and atomics owed.
pub fn queues_line(name: &str, qp: Sig) -> Sig {
    let none = |bits: u32| lit(bits, 0);
    let log = MAX_READS.ilog2();
    QpQueuesBits {
        sq_base: none(64),
        rq_base: none(64),
        sq_log_depth: none(4),
        sq_log_stride: none(4),
        rq_log_depth: none(4),
        rq_log_stride: none(4),
        send_cqn: none(24),
        recv_cqn: none(24),
        record_base: none(16),
        record_log_size: none(4),
        read_base: none(16),
        read_log_size: none(4),
        response_base: cat(&[delay(name, qp), none(log)]).extend(16),
        response_log_size: lit(4, u64::from(log)),
    }
    .pack()
}

/// The memory regions, a clock behind their index: the memory at 0, the pins behind it.
pub fn region(name: &str, index: Sig) -> Sig {
    let index = delay(name, index);
    let key_of = |key: u32| u64::from(key >> 8);
    let (memory, pins) = (index.eq(key_of(MEMORY_KEY)), index.eq(key_of(PINS_KEY)));
    let either =
        |of_memory: u64, of_pins: u64, bits: u32| mux(pins, lit(bits, of_pins), lit(bits, of_memory));
    MrEntryBits {
        valid: memory | pins,
        tag: either(u64::from(MEMORY_KEY & 0xff), u64::from(PINS_KEY & 0xff), 8),
        access: lit(8, u64::from(RIGHTS)),
        peer: low(),
        relaxed_ordering: low(),
        pd: lit(24, 0),
        va: lit(64, 0),
        length: either(1 << LOG_MEMORY, TargetPins::LAYOUT.bytes as u64, 64),
        iova: either(0, 1 << LOG_MEMORY, 64),
    }
    .pack()
}
