//! One RoCEv2 packet over IPv4 or IPv6, perhaps with an 802.1Q tag: bytes to fields and back.
//!
//! In: a frame from the destination MAC to the ICRC, without FCS, perhaps with Ethernet padding behind it. Out: its
//! headers and payload, or the name of the reason for which it is dropped silently. Building a packet computes all
//! lengths, the pad, the IPv4 checksum and the ICRC; EtherTypes, versions and protocol numbers are the builder's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contract::crc;
use contract::wire::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, ICRC_BYTES, IP_PROTOCOL_UDP, ROCE_PORT, ipv4_checksum,
};
use contract::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, EthernetHeader, Ieth, ImmDt, Ipv4Header, Ipv6Header, Opcode,
    Reject, Reth, Syndrome, UdpHeader, VlanTag,
};

/// One packet, decoded. Lengths, checksums, pad count and ICRC are not fields: they follow from the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Packet {
    /// Ethernet header.
    pub ethernet: EthernetHeader,
    /// 802.1Q tag; then the EtherType above is that of the tag.
    pub vlan: Option<VlanTag>,
    /// IPv4 header; all zero in an IPv6 packet.
    pub ip: Ipv4Header,
    /// IPv6 header, in the place of the IPv4 header.
    pub ipv6: Option<Ipv6Header>,
    /// UDP header.
    pub udp: UdpHeader,
    /// Base transport header; `pad_count` is as received.
    pub bth: Bth,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Atomic header.
    pub atomic: Option<AtomicEth>,
    /// Acknowledge header.
    pub aeth: Option<Aeth>,
    /// Atomic result.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub immdt: Option<ImmDt>,
    /// Key to invalidate.
    pub ieth: Option<Ieth>,
    /// Payload without pad.
    pub payload: Vec<u8>,
}

/// Takes headers off the front of a slice.
struct Reader<'a>(&'a [u8]);

macro_rules! take {
    ($reader:ident, $Header:ident) => {{
        let header = $Header::read($reader.0).ok_or(Reject::Runt)?;
        $reader.0 = &$reader.0[$Header::BYTES..];
        header
    }};
    ($reader:ident, $Header:ident if $present:expr) => {
        if $present { Some(take!($reader, $Header)) } else { None }
    };
}

impl Packet {
    /// Decodes a frame without FCS; the error names why it is dropped silently.
    pub fn parse(frame: &[u8]) -> Result<Self, Reject> {
        let mut reader = Reader(frame);
        let ethernet = take!(reader, EthernetHeader);
        let vlan = take!(reader, VlanTag if ethernet.ethertype == ETHERTYPE_VLAN);
        let l3 = reader.0;
        let (ip, ipv6, header, total) = match vlan.map_or(ethernet.ethertype, |tag| tag.ethertype) {
            ETHERTYPE_IPV4 => {
                let ip = take!(reader, Ipv4Header);
                let bytes = l3.first_chunk().ok_or(Reject::Runt)?;
                let whole = !ip.more_fragments && ip.fragment_offset == 0;
                if ip.version != 4 || ip.ihl != 5 || !whole || ipv4_checksum(bytes) != ip.checksum {
                    return Err(Reject::BadIpHeader);
                }
                if ip.protocol != IP_PROTOCOL_UDP {
                    return Err(Reject::NotRoce);
                }
                (ip, None, Ipv4Header::BYTES, usize::from(ip.total_length))
            }
            ETHERTYPE_IPV6 => {
                let ip = take!(reader, Ipv6Header);
                if ip.version != 6 {
                    return Err(Reject::BadIpHeader);
                }
                if ip.next_header != IP_PROTOCOL_UDP {
                    return Err(Reject::NotRoce);
                }
                let total = Ipv6Header::BYTES + usize::from(ip.payload_length);
                (Ipv4Header::default(), Some(ip), Ipv6Header::BYTES, total)
            }
            _ => return Err(Reject::NotRoce),
        };
        if total > l3.len() || total < header {
            return Err(Reject::BadIpHeader);
        }
        let l3 = &l3[..total];
        reader.0 = &l3[header..];
        let udp = take!(reader, UdpHeader);
        if udp.destination_port != ROCE_PORT {
            return Err(Reject::NotRoce);
        }
        if usize::from(udp.length) + header != total {
            return Err(Reject::BadUdpLength);
        }
        if reader.0.len() < Bth::BYTES + ICRC_BYTES {
            return Err(Reject::Runt);
        }
        let (covered, icrc) = l3.split_at(total - ICRC_BYTES);
        if crc::icrc(covered).is_none_or(|expected| expected != icrc) {
            return Err(Reject::BadIcrc);
        }
        reader.0 = &reader.0[..reader.0.len() - ICRC_BYTES];
        let bth = take!(reader, Bth);
        if bth.version != 0 {
            return Err(Reject::BadTransportVersion);
        }
        let opcode = Opcode::from_code(bth.opcode).ok_or(Reject::UnknownOpcode)?;
        let headers = opcode.row().headers;
        let deth = take!(reader, Deth if headers.deth);
        let reth = take!(reader, Reth if headers.reth);
        let atomic = take!(reader, AtomicEth if headers.atomic);
        let aeth = take!(reader, Aeth if headers.aeth);
        let atomic_ack = take!(reader, AtomicAckEth if headers.atomic_ack);
        let immdt = take!(reader, ImmDt if headers.immdt);
        let ieth = take!(reader, Ieth if headers.ieth);
        let payload_len = reader.0.len().checked_sub(bth.pad_count.into()).ok_or(Reject::Runt)?;
        let payload = reader.0[..payload_len].to_vec();
        Ok(Self {
            ethernet,
            vlan,
            ip,
            ipv6,
            udp,
            bth,
            deth,
            reth,
            atomic,
            aeth,
            atomic_ack,
            immdt,
            ieth,
            payload,
        })
    }

    /// The sender's address.
    pub fn source(&self) -> IpAddr {
        match &self.ipv6 {
            Some(ip) => Ipv6Addr::from(ip.source).into(),
            None => Ipv4Addr::from(self.ip.source).into(),
        }
    }

    /// The receiver's address.
    pub fn destination(&self) -> IpAddr {
        match &self.ipv6 {
            Some(ip) => Ipv6Addr::from(ip.destination).into(),
            None => Ipv4Addr::from(self.ip.destination).into(),
        }
    }

    /// The opcode; every parsed packet has one.
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_code(self.bth.opcode)
    }

    /// The frame without FCS and without Ethernet padding. The payload must fit an IP packet (64 KiB).
    pub fn build(&self) -> Vec<u8> {
        let pad = self.payload.len().wrapping_neg() & 3;
        let mut l4 = Vec::with_capacity(self.payload.len() + 64);
        let bth = Bth { pad_count: pad as u8, ..self.bth };
        l4.extend(bth.pack());
        l4.extend(self.deth.iter().flat_map(Deth::pack));
        l4.extend(self.reth.iter().flat_map(Reth::pack));
        l4.extend(self.atomic.iter().flat_map(AtomicEth::pack));
        l4.extend(self.aeth.iter().flat_map(Aeth::pack));
        l4.extend(self.atomic_ack.iter().flat_map(AtomicAckEth::pack));
        l4.extend(self.immdt.iter().flat_map(ImmDt::pack));
        l4.extend(self.ieth.iter().flat_map(Ieth::pack));
        l4.extend(&self.payload);
        l4.resize(l4.len() + pad, 0);
        let udp_length = UdpHeader::BYTES + l4.len() + ICRC_BYTES;
        let udp = UdpHeader { length: udp_length as u16, ..self.udp };
        let mut frame = Vec::with_capacity(64 + udp_length);
        frame.extend(self.ethernet.pack());
        frame.extend(self.vlan.iter().flat_map(VlanTag::pack));
        let l3 = frame.len();
        match self.ipv6 {
            Some(ip) => frame.extend(Ipv6Header { payload_length: udp_length as u16, ..ip }.pack()),
            None => {
                let total_length = (Ipv4Header::BYTES + udp_length) as u16;
                let mut ip = Ipv4Header { total_length, ..self.ip };
                ip.checksum = ipv4_checksum(&ip.pack());
                frame.extend(ip.pack());
            }
        }
        frame.extend(udp.pack());
        frame.extend(l4);
        // An IP packet with UDP and BTH always has an ICRC.
        let icrc = crc::icrc(&frame[l3..]).unwrap_or_default();
        frame.extend(icrc);
        frame
    }
}

impl std::fmt::Display for Packet {
    /// One line for traces: opcode, QP, PSN, what the extension headers say, payload length.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.opcode().map_or("unknown opcode", Opcode::name);
        write!(f, "{name} to QP {:#x} PSN {:#08x}", self.bth.dest_qp, self.bth.psn)?;
        if self.bth.ack_req {
            write!(f, " AckReq")?;
        }
        if let Some(reth) = self.reth {
            write!(f, " VA {:#x} R_Key {:#x} length {}", reth.va, reth.rkey, reth.dma_length)?;
        }
        if let Some(atomic) = self.atomic {
            write!(f, " VA {:#x} R_Key {:#x} swap or add {:#x}", atomic.va, atomic.rkey, atomic.swap_or_add)?;
            write!(f, " compare {:#x}", atomic.compare)?;
        }
        if let Some(aeth) = self.aeth {
            write!(f, " {:?} MSN {}", Syndrome::decode(aeth.syndrome), aeth.msn)?;
        }
        if let Some(immdt) = self.immdt {
            write!(f, " immediate {:#010x}", immdt.immediate)?;
        }
        if let Some(ieth) = self.ieth {
            write!(f, " invalidates {:#x}", ieth.rkey)?;
        }
        if let Some(result) = self.atomic_ack {
            write!(f, " original {:#x}", result.original)?;
        }
        write!(f, " payload {}", self.payload.len())
    }
}
