//! Frames of kernel peers (`sim/peer/tests/golden`), aimed at a QP of the card and bent as an action says.
//!
//! In: an action of kind 0, what is known of the QP it aims at. Out: the bytes of a frame with its FCS.
//!
//! | parameter | what |
//! |---|---|
//! | 1 | opcode: a golden frame with it, else any |
//! | 2 | bits: 0 not aimed, 1 PSN as captured, 2 address and key as captured, 3 checksums not repaired, 4 wrong FCS, 5 the next action follows at once, 6 to QP 2, 7 no acknowledgement asked for |
//! | 3 | difference of the PSN from the one expected, signed |
//! | 4, 5 | offset of the remote address |
//! | 6 | 0: payload as captured, else of its square in bytes |
//! | 7 | 0: DMA length of one packet, below 128: of so many more, else itself less 128 |
//! | 8 | key: see [`key`] |
//! | 9 | bytes cut off the end |
//! | 10... | pairs: place, what is exclusive-ored there |

use crate::{
    host::{FOREIGN, OPEN, READ_ONLY},
    input::Action,
};
use contract::{
    Ipv6Header, Opcode, Reth, VlanTag, crc,
    opcode::Kind,
    wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, IP_PROTOCOL_UDP, ipv4_checksum, psn_add},
};
use peer::Packet;
use sim::wire::{MIN_FRAME, fcs};
use std::{collections::BTreeMap, fs, path::Path};

/// The next action follows at once.
pub const BURST: u32 = 5;

/// One frame of each opcode, as captured.
pub struct Golden(BTreeMap<u8, Packet>);

impl Golden {
    /// From the repository's captures.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn load() -> std::io::Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peer/tests/golden");
        let mut files: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|end| end == "pcap"));
        files.sort();
        let mut golden = BTreeMap::new();
        for file in files {
            let bytes = fs::read(file)?;
            let mut rest = bytes.get(24..).unwrap_or_default();
            while let Some(length) = rest.get(8..12).and_then(|bytes| bytes.try_into().ok()) {
                let (frame, behind) = rest[16..].split_at(u32::from_le_bytes(length) as usize);
                rest = behind;
                let Ok(packet) = Packet::parse(frame) else { continue };
                golden.entry(packet.bth.opcode).or_insert(packet);
            }
        }
        Ok(Self(golden))
    }

    /// Opcodes that were captured.
    pub fn opcodes(&self) -> impl Iterator<Item = u8> {
        self.0.keys().copied()
    }

    fn packet(&self, opcode: u8) -> Packet {
        let any = || self.0.values().nth(usize::from(opcode) % self.0.len());
        self.0.get(&opcode).or_else(any).expect("there are captures").clone()
    }
}

/// A key: of the open region, of the one to be read alone, of the other context, of none, with another tag.
pub fn key(choice: u8) -> u32 {
    match choice % 5 {
        0 => OPEN.key(),
        1 => READ_ONLY.key(),
        2 => FOREIGN.key(),
        3 => 0x0000_7f00 | u32::from(choice),
        _ => OPEN.key() ^ 1 << (choice % 8),
    }
}

/// First address of the region of that key.
pub fn base(choice: u8) -> u64 {
    match choice % 5 {
        1 => READ_ONLY.address(),
        2 => FOREIGN.address(),
        _ => OPEN.address(),
    }
}

/// A QP of the card, from outside.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// Its number.
    pub qpn: u32,
    /// PSN of the next request that it expects.
    pub expected: u32,
    /// PSN of the last request that it sent.
    pub sent: u32,
    /// Its frames are IPv6 in this VLAN: addresses of peer and card.
    pub ipv6: Option<(u128, u128, u16)>,
    /// Addresses of peer and card, IPv4.
    pub ipv4: (u32, u32),
    /// MAC addresses of peer and card.
    pub mac: (u64, u64),
}

/// The frame of an action, and whether it is a request that the QP expects.
pub fn frame(golden: &Golden, action: &Action<'_>, aim: &Aim) -> (Vec<u8>, bool) {
    let mut packet = golden.packet(action.byte(1));
    let row = packet.opcode().map(Opcode::row);
    let request = row.is_some_and(|row| row.kind != Kind::Response);
    match action.byte(6) {
        0 => {}
        code => packet.payload = (0..(usize::from(code)).pow(2).min(4200)).map(|i| i as u8).collect(),
    }
    if !action.bit(2, 0) {
        aimed(&mut packet, aim);
    }
    if !action.bit(2, 1) {
        let from = if request { aim.expected } else { aim.sent };
        packet.bth.psn = psn_add(from, action.byte(3) as i8 as u32 & 0xff_ffff);
    }
    packet.bth.ack_req = !action.bit(2, 7);
    if !action.bit(2, 2) {
        let va = base(action.byte(8)) + u64::from(action.word(4));
        let rkey = key(action.byte(8));
        let one = packet.payload.len() as u32;
        let dma_length = match action.byte(7) {
            0 if row.is_some_and(|row| row.kind == Kind::Read) => 64,
            0 => one,
            more @ 1..128 => one + u32::from(more) * 1024,
            bytes => u32::from(bytes - 128),
        };
        packet.reth = packet.reth.map(|_| Reth { va, rkey, dma_length });
        packet.atomic = packet.atomic.map(|atomic| contract::AtomicEth { va, rkey, ..atomic });
    }
    let mut bytes = packet.build();
    action.edit(10, &mut bytes);
    if !action.bit(2, 3) {
        repair(&mut bytes);
    }
    match action.byte(9) {
        0 => bytes.resize(bytes.len().max(MIN_FRAME - 4), 0),
        cut => bytes.truncate(bytes.len().saturating_sub(cut.into()).max(14)),
    }
    let mut check = fcs(&bytes);
    check[0] ^= u8::from(action.bit(2, 4));
    bytes.extend(check);
    let expected = request && !action.bit(2, 0) && !action.bit(2, 1) && action.byte(3) == 0;
    (bytes, expected)
}

fn aimed(packet: &mut Packet, aim: &Aim) {
    (packet.ethernet.source, packet.ethernet.destination) = aim.mac;
    packet.bth.dest_qp = aim.qpn;
    packet.vlan = None;
    match aim.ipv6 {
        None => {
            packet.ethernet.ethertype = ETHERTYPE_IPV4;
            packet.ip = contract::Ipv4Header {
                version: 4,
                ihl: 5,
                ttl: 64,
                protocol: IP_PROTOCOL_UDP,
                dont_fragment: true,
                source: aim.ipv4.0,
                destination: aim.ipv4.1,
                ..Default::default()
            };
            packet.ipv6 = None;
        }
        Some((source, destination, vlan)) => {
            packet.ethernet.ethertype = ETHERTYPE_VLAN;
            packet.vlan = Some(VlanTag { vlan, ethertype: ETHERTYPE_IPV6, ..Default::default() });
            packet.ipv6 = Some(Ipv6Header {
                version: 6,
                next_header: IP_PROTOCOL_UDP,
                hop_limit: 64,
                source,
                destination,
                ..Default::default()
            });
        }
    }
}

/// Makes IP checksum and ICRC fit what stands there, if lengths allow it.
fn repair(frame: &mut [u8]) {
    let tagged = frame.get(12..14) == Some(&ETHERTYPE_VLAN.to_be_bytes()[..]);
    let l3 = if tagged { 18 } else { 14 };
    let Some(packet) = frame.get_mut(l3..) else { return };
    let total = match packet.first().map(|byte| byte >> 4) {
        Some(4) if packet.len() >= 20 => {
            if let Some(header) = packet.first_chunk::<20>() {
                let check = ipv4_checksum(header);
                packet[10..12].copy_from_slice(&check.to_be_bytes());
            }
            usize::from(u16::from_be_bytes([packet[2], packet[3]]))
        }
        Some(6) if packet.len() >= 40 => 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]])),
        _ => return,
    };
    if let Some(covered) = total.checked_sub(4)
        && total <= packet.len()
        && let Some(icrc) = crc::icrc(&packet[..covered])
    {
        packet[covered..total].copy_from_slice(&icrc);
    }
}
