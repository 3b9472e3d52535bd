//! The headers on the wire: Ethernet | VLAN | IPv4 or IPv6 | UDP | BTH | extension headers, all in network order.
//!
//! In: bytes of a frame, or fields. Out: the other. Payload, pad, ICRC and FCS are not headers (see [`crate::crc`]).
//! Sources: IEEE 802.3 and 802.1Q, RFC 791, 8200 and 768, InfiniBand 9.2 and 9.3, RoCE annex A17.

use crate::{codes, wire};

wire! {
    /// Ethernet II header.
    struct EthernetHeader / EthernetHeaderBits [14] {
        /// Destination MAC address; its first byte is the most significant.
        destination: u64[48];
        /// Source MAC address.
        source: u64[48];
        /// What follows: one of the `ETHERTYPE_` constants.
        ethertype: u16[16];
    }
}

wire! {
    /// 802.1Q tag, after EtherType 0x8100: the tag and the EtherType of what follows.
    struct VlanTag / VlanTagBits [4] {
        /// Priority code point.
        priority: u8[3];
        /// Drop eligible.
        drop_eligible: bool[1];
        /// VLAN number.
        vlan: u16[12];
        /// What follows the tag.
        ethertype: u16[16];
    }
}

wire! {
    /// IPv4 header without options; RoCE requires exactly 20 bytes.
    struct Ipv4Header / Ipv4HeaderBits [20] {
        /// 4.
        version: u8[4];
        /// Header length in 4-byte words: 5.
        ihl: u8[4];
        /// Differentiated services code point.
        dscp: u8[6];
        /// Explicit congestion notification: 3 = congestion experienced.
        ecn: u8[2];
        /// Bytes from here to the end of the ICRC.
        total_length: u16[16];
        /// Datagram number; free when the datagram is not fragmented.
        identification: u16[16] reserved 1;
        /// Do not fragment: always set on RoCE.
        dont_fragment: bool[1];
        /// More fragments follow: never on RoCE.
        more_fragments: bool[1];
        /// Fragment offset in units of 8 bytes: 0 on RoCE.
        fragment_offset: u16[13];
        /// Hops left.
        ttl: u8[8];
        /// 17 = UDP.
        protocol: u8[8];
        /// Ones' complement sum over the header, see `ipv4_checksum`.
        checksum: u16[16];
        /// Source address.
        source: u32[32];
        /// Destination address.
        destination: u32[32];
    }
}

wire! {
    /// IPv6 header; also the GRH.
    struct Ipv6Header / Ipv6HeaderBits [40] {
        /// 6.
        version: u8[4];
        /// Differentiated services code point.
        dscp: u8[6];
        /// Explicit congestion notification: 3 = congestion experienced.
        ecn: u8[2];
        /// Flow label.
        flow_label: u32[20];
        /// Bytes after this header, to the end of the ICRC.
        payload_length: u16[16];
        /// 17 = UDP.
        next_header: u8[8];
        /// Hops left.
        hop_limit: u8[8];
        /// Source address.
        source: u128[128];
        /// Destination address.
        destination: u128[128];
    }
}

wire! {
    /// UDP header.
    struct UdpHeader / UdpHeaderBits [8] {
        /// Source port: entropy for the network, ignored by the receiver.
        source_port: u16[16];
        /// Destination port: 4791 for RoCE.
        destination_port: u16[16];
        /// Bytes from here to the end of the ICRC.
        length: u16[16];
        /// 0 = none; receivers accept any value.
        checksum: u16[16];
    }
}

wire! {
    /// Base transport header (InfiniBand 9.2).
    struct Bth / BthBits [12] {
        /// See `Opcode`.
        opcode: u8[8];
        /// Solicited event; meaningful on the last or only packet of SEND and WRITE with immediate.
        solicited: bool[1];
        /// Migration state; accepted with either value.
        mig_req: bool[1];
        /// Bytes that pad the payload to a multiple of 4.
        pad_count: u8[2];
        /// Transport version: 0.
        version: u8[4];
        /// Partition key.
        pkey: u16[16];
        /// Forward congestion notification; not covered by the ICRC.
        fecn: bool[1];
        /// Backward congestion notification; not covered by the ICRC.
        becn: bool[1] reserved 6;
        /// Destination QP number.
        dest_qp: u32[24];
        /// The requester asks for an acknowledgement.
        ack_req: bool[1] reserved 7;
        /// Packet sequence number.
        psn: u32[24];
    }
}

wire! {
    /// RDMA extended transport header (InfiniBand 9.3).
    struct Reth / RethBits [16] {
        /// Remote virtual address.
        va: u64[64];
        /// Remote key.
        rkey: u32[32];
        /// Length of the whole message in bytes.
        dma_length: u32[32];
    }
}

wire! {
    /// Atomic extended transport header.
    struct AtomicEth / AtomicEthBits [28] {
        /// Remote virtual address, a multiple of 8.
        va: u64[64];
        /// Remote key.
        rkey: u32[32];
        /// Value to swap in or to add.
        swap_or_add: u64[64];
        /// Value to compare with; ignored by fetch and add.
        compare: u64[64];
    }
}

wire! {
    /// Acknowledge extended transport header.
    struct Aeth / AethBits [4] {
        /// ACK, RNR NAK or NAK with its value: see `Syndrome`.
        syndrome: u8[8];
        /// Message sequence number: requests completed by the responder, modulo 2^24.
        msn: u32[24];
    }
}

wire! {
    /// Atomic acknowledge extended transport header.
    struct AtomicAckEth / AtomicAckEthBits [8] {
        /// The remote value before the operation.
        original: u64[64];
    }
}

wire! {
    /// Immediate data; as an integer it is the network-order reading of the four bytes.
    struct ImmDt / ImmDtBits [4] {
        /// The application's 32 bits.
        immediate: u32[32];
    }
}

wire! {
    /// Invalidate extended transport header.
    struct Ieth / IethBits [4] {
        /// The key to invalidate.
        rkey: u32[32];
    }
}

wire! {
    /// Datagram extended transport header.
    struct Deth / DethBits [8] {
        /// Queue key.
        qkey: u32[32] reserved 8;
        /// The sender's QP number.
        source_qp: u32[24];
    }
}

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of MAC control (PAUSE, PFC).
pub const ETHERTYPE_MAC_CONTROL: u16 = 0x8808;
/// IP protocol number of UDP.
pub const IP_PROTOCOL_UDP: u8 = 17;
/// UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;
/// The default P_Key: full member of the default partition.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// Bytes of the ICRC.
pub const ICRC_BYTES: usize = 4;
/// Bytes of an Ethernet header without tag: what a frame is longer than its payload.
pub const ETHERNET_BYTES: usize = 14;
/// Most bytes of a frame of a raw QP, without FCS.
pub const RAW_FRAME_MAX: usize = 8191;

codes! {
    /// Type of an AETH syndrome: bits 6:5 (InfiniBand 9.7.5.2).
    enum SyndromeType {
        /// ACK; the value is a credit code, 31 = unlimited.
        Ack = 0,
        /// Receiver not ready; the value is a timer code.
        RnrNak = 1,
        /// Reserved: ignored by the requester.
        Reserved = 2,
        /// NAK; the value is a `NakCode`.
        Nak = 3,
    }
}

codes! {
    /// Value of a NAK syndrome: bits 4:0.
    enum NakCode {
        /// A packet is missing: the NAK's PSN is the expected one.
        PsnSequence = 0,
        /// The request is malformed, forbidden by the QP or too long.
        InvalidRequest = 1,
        /// The key, its rights or its bounds refuse the access.
        RemoteAccess = 2,
        /// The responder could not complete the operation.
        RemoteOperation = 3,
        /// Reliable datagram only.
        InvalidRd = 4,
    }
}

/// An AETH syndrome, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syndrome {
    /// ACK with its credit code (0..=31; 31 = unlimited).
    Ack(u8),
    /// RNR NAK with its timer code (0..=31).
    Rnr(u8),
    /// NAK.
    Nak(NakCode),
    /// A reserved pattern; the requester ignores the packet.
    Reserved(u8),
}

impl Syndrome {
    /// ACK without flow control: the only ACK this card sends.
    pub const ACK: u8 = 0x1f;
    /// PSN sequence error NAK.
    pub const NAK_PSN_SEQUENCE: u8 = 0x60;
    /// Invalid request NAK.
    pub const NAK_INVALID_REQUEST: u8 = 0x61;
    /// Remote access error NAK.
    pub const NAK_REMOTE_ACCESS: u8 = 0x62;
    /// Remote operational error NAK.
    pub const NAK_REMOTE_OPERATION: u8 = 0x63;

    /// The RNR NAK syndrome of a timer code.
    pub const fn rnr(code: u8) -> u8 {
        0x20 | code & 0x1f
    }

    /// The meaning of a syndrome byte; total.
    pub const fn decode(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0 => Self::Ack(value),
            1 => Self::Rnr(value),
            3 => match NakCode::from_code(value) {
                Some(code) => Self::Nak(code),
                None => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// The syndrome byte.
    pub const fn encode(self) -> u8 {
        match self {
            Self::Ack(value) => value & 0x1f,
            Self::Rnr(value) => Self::rnr(value),
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

/// The checksum of an IPv4 header, whose own checksum field may hold anything: ones' complement of the ones'
/// complement sum of the other nine 16-bit words (RFC 791, 1071).
pub fn ipv4_checksum(header: &[u8; Ipv4Header::BYTES]) -> u16 {
    let mut sum: u32 = 0;
    for (i, pair) in header.chunks_exact(2).enumerate() {
        if i != 5 {
            sum += u16::from_be_bytes([pair[0], pair[1]]) as u32;
        }
    }
    sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The UDP source port of a connection: a hash of both QP numbers, or of a non-zero flow label, in 0xC000..=0xFFFF;
/// the same for both directions (the kernel's rule for RoCEv2 entropy).
pub const fn udp_source_port(flow_label: u32, local_qpn: u32, remote_qpn: u32) -> u16 {
    let label = if flow_label & 0xf_ffff != 0 {
        flow_label & 0xf_ffff
    } else {
        let mut v = local_qpn as u64 * remote_qpn as u64;
        v ^= v >> 20;
        v ^= v >> 40;
        (v & 0xf_ffff) as u32
    };
    0xc000 | ((label & 0x3fff) ^ (label >> 14 & 0x3f)) as u16
}

/// Signed distance from `b` to `a` in the 24-bit circle of PSNs: positive when `a` is later (InfiniBand 9.7.2).
pub const fn psn_distance(a: u32, b: u32) -> i32 {
    ((a.wrapping_sub(b) << 8) as i32) >> 8
}

/// `psn + n` in the 24-bit circle.
pub const fn psn_add(psn: u32, n: u32) -> u32 {
    psn.wrapping_add(n) & 0xff_ffff
}
