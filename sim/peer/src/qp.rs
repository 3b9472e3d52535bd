//! A queue pair: its parameters, what users post and get back, and the state that both halves share.
//!
//! The requester half is in `requester`, the responder half in `responder`; either may stop the pair, which flushes
//! both queues in order.

use std::collections::VecDeque;
use std::net::IpAddr;

use contract::verbs::access;
use contract::wire::{
    DEFAULT_PKEY, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, IP_PROTOCOL_UDP, ROCE_PORT, udp_source_port,
};
use contract::{
    AsyncEvent, Bth, EthernetHeader, Ipv4Header, Ipv6Header, Opcode, PathMtu, QpState, Reject, UdpHeader,
    VlanTag, WcOpcode, WcStatus,
};

use crate::memory::Memory;
use crate::packet::Packet;
use crate::requester::Requester;
use crate::responder::Responder;

/// Where a QP is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// MAC address; the first byte on the wire is the most significant of 48 bits.
    pub mac: u64,
    /// IP address; packets are IPv4 or IPv6 as it is.
    pub ip: IpAddr,
    /// QP number.
    pub qpn: u32,
}

/// What legitimately differs between peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Keep only the newest unsent ACK, instead of one for each packet that asks.
    pub coalesce_acks: bool,
    /// Also acknowledge unasked after this many packets without an ACK; 0 = never.
    pub ack_interval: u32,
    /// Ask for an ACK on each packet of a message whose number is a multiple of this, beside the last; 0 = last only.
    pub ack_req_interval: u32,
    /// Sends while fewer PSNs than this are in flight; 0 = as many as the PSN window allows.
    pub window: u32,
    /// The migration bit of every packet.
    pub mig_req: bool,
    /// After an RNR NAK, answer the packets behind it with a sequence NAK (the kernel's soft RoCE does).
    pub nak_behind_rnr: bool,
    /// A sequence NAK, or a response behind a missing one, consumes a retry, as a timeout does.
    pub naks_consume_retries: bool,
    /// `retry_cnt` 7 means for ever (the kernel's soft RoCE) instead of seven.
    pub seven_retries_is_forever: bool,
    /// A READ asked for again from its middle is answered by middle and last packets (the kernel's soft RoCE) instead
    /// of beginning with a first or only one.
    pub replays_continue: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            coalesce_acks: false,
            ack_interval: 0,
            ack_req_interval: 16,
            window: 128,
            mig_req: false,
            nak_behind_rnr: false,
            naks_consume_retries: true,
            seven_retries_is_forever: false,
            replays_continue: false,
        }
    }
}

/// Largest `max_rd_atomic` and `max_dest_rd_atomic`.
pub(crate) const MAX_RD_ATOMIC: u8 = 16;

/// An 802.1Q tag of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// VLAN number; 0 = a priority tag, which is no VLAN.
    pub id: u16,
    /// Priority code point, 0..=7.
    pub priority: u8,
}

/// Everything that modify sets on the way from RESET to RTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpParams {
    /// The other end.
    pub remote: Address,
    /// Which of the port's addresses is used; `None` = the first of the remote one's family.
    pub local_ip: Option<IpAddr>,
    /// The tag of every packet; packets of another VLAN are not heard.
    pub vlan: Option<Vlan>,
    /// Path MTU; both ends must agree.
    pub path_mtu: PathMtu,
    /// First PSN expected.
    pub rq_psn: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// What the peer may do: `REMOTE_WRITE`, `REMOTE_READ`, `REMOTE_ATOMIC`.
    pub access: u8,
    /// Most READs and atomics that may be unanswered as requester, at most 16; 0 = none may be posted.
    pub max_rd_atomic: u8,
    /// Most READs and atomics accepted before they are answered, and answers to atomics kept for duplicates, at most 16.
    pub max_dest_rd_atomic: u8,
    /// Retransmission timeout code; 0 = never.
    pub timeout: u8,
    /// Retries after timeouts and sequence NAKs.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs; 7 = for ever.
    pub rnr_retry: u8,
    /// Timer code in the RNR NAKs sent.
    pub min_rnr_timer: u8,
    /// IPv4 ToS or IPv6 traffic class of requests and responses.
    pub tos: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
    /// IPv6 flow label, 20 bits; the UDP source port follows from it, over IPv4 too.
    pub flow_label: u32,
    /// UDP source port; `None` = the hash of the flow label, or if that is 0, of both QP numbers.
    pub udp_source_port: Option<u16>,
    /// What legitimately differs between peers.
    pub tuning: Tuning,
}

impl QpParams {
    /// Usual parameters towards `remote`: path MTU 1024, PSNs from 0, writes permitted, 16 READs each way, timeout
    /// 67 ms, 7 retries, RNR retries for ever after 0.64 ms.
    pub fn to(remote: Address) -> Self {
        Self {
            remote,
            local_ip: None,
            vlan: None,
            path_mtu: PathMtu::Mtu1024,
            rq_psn: 0,
            sq_psn: 0,
            access: access::REMOTE_WRITE,
            max_rd_atomic: MAX_RD_ATOMIC,
            max_dest_rd_atomic: MAX_RD_ATOMIC,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            tos: 0,
            ttl: 64,
            flow_label: 0,
            udp_source_port: None,
            tuning: Tuning::default(),
        }
    }
}

/// What a send request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, perhaps with immediate data (as the network-order integer).
    Send {
        /// Immediate data.
        imm: Option<u32>,
    },
    /// SEND that invalidates a key of the peer.
    SendInv {
        /// The key.
        rkey: u32,
    },
    /// WRITE, perhaps with immediate data (as the network-order integer).
    Write {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// READ of as many bytes as the landing has.
    Read {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// Where the bytes land.
        landing: Landing,
    },
    /// Atomic compare and swap of eight bytes, host order; the value before lands.
    CompareSwap {
        /// Remote address, a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// Swaps only if the value is this.
        compare: u64,
        /// The new value.
        swap: u64,
        /// Where the value before lands: eight bytes.
        landing: Landing,
    },
    /// Atomic fetch and add of eight bytes, host order; the value before lands.
    FetchAdd {
        /// Remote address, a multiple of 8.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// What is added.
        add: u64,
        /// Where the value before lands: eight bytes.
        landing: Landing,
    },
    /// Invalidates a key of one's own.
    LocalInv {
        /// The key.
        rkey: u32,
    },
}

impl SendOp {
    /// Where its response lands, if it completes by a response of its own.
    pub(crate) fn landing(&self) -> Option<&Landing> {
        match self {
            Self::Read { landing, .. }
            | Self::CompareSwap { landing, .. }
            | Self::FetchAdd { landing, .. } => Some(landing),
            _ => None,
        }
    }
}

/// A piece of registered memory that a send request gathers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// Local key; checked when the piece is sent, as on a card.
    pub lkey: u32,
    /// First address.
    pub va: u64,
    /// Size in bytes.
    pub length: usize,
}

/// A send request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What it does.
    pub op: SendOp,
    /// The message, inline: replay finds it unchanged whatever happens to the memory it came from.
    pub data: Vec<u8>,
    /// The message in registered memory instead, read each time it is sent; empty: `data` is the message.
    pub gather: Vec<Sge>,
    /// Success gives a completion; an error always does.
    pub signaled: bool,
    /// Asks for a solicited event at the peer.
    pub solicited: bool,
    /// Begins only when all READs and atomics before it are complete.
    pub fence: bool,
}

impl SendWr {
    /// A signaled, unsolicited, unfenced request with its message inline (none for READ, atomics and invalidate).
    pub fn new(wr_id: u64, op: SendOp, data: Vec<u8>) -> Self {
        Self { wr_id, op, data, gather: Vec::new(), signaled: true, solicited: false, fence: false }
    }

    /// Bytes of the message, in whichever direction.
    pub(crate) fn length(&self) -> usize {
        match (self.op.landing(), &self.gather[..]) {
            (Some(landing), _) => landing.length(),
            (None, []) => self.data.len(),
            (None, pieces) => pieces.iter().map(|sge| sge.length).sum(),
        }
    }
}

/// Where a received SEND, the bytes of a READ or the result of an atomic land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// In a fresh buffer of this size, handed over in [`Completion::data`].
    Owned(usize),
    /// In a registered region; the key is checked when the first byte arrives, as on a card.
    Region {
        /// Local key.
        lkey: u32,
        /// First address.
        va: u64,
        /// Size in bytes.
        length: usize,
    },
}

impl Landing {
    pub(crate) fn length(&self) -> usize {
        match *self {
            Self::Owned(length) | Self::Region { length, .. } => length,
        }
    }

    /// Puts `bytes` behind the first `done` ones: into `owned` or into the region, if its key allows that.
    pub(crate) fn place(
        &self,
        memory: &mut Memory,
        pd: u32,
        done: usize,
        bytes: &[u8],
        owned: &mut Vec<u8>,
    ) -> Result<(), Reject> {
        match *self {
            Self::Owned(_) => owned.extend(bytes),
            Self::Region { .. } if bytes.is_empty() => {}
            Self::Region { lkey, va, .. } => {
                let at = va.checked_add(done as u64).ok_or(Reject::LkeyBad)?;
                memory
                    .access(lkey, pd, at, bytes.len() as u64, access::LOCAL_WRITE)
                    .map_err(|_| Reject::LkeyBad)?
                    .copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

/// A receive request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message lands.
    pub landing: Landing,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The QP.
    pub qpn: u32,
    /// The request.
    pub wr_id: u64,
    /// What it was; also set on errors.
    pub opcode: WcOpcode,
    /// How it ended.
    pub status: WcStatus,
    /// Bytes received or read, or the length of the WRITE that carried the immediate data; 0 for other sends.
    pub byte_len: u32,
    /// Immediate data (as the network-order integer).
    pub imm: Option<u32>,
    /// The key of ours that the SEND invalidated.
    pub invalidated: Option<u32>,
    /// The peer asked for a solicited event.
    pub solicited: bool,
    /// The message, when the receive, READ or atomic owned its buffer; the result of an atomic is little-endian.
    pub data: Vec<u8>,
}

impl Completion {
    /// A completion that carries nothing.
    pub(crate) fn bare(qpn: u32, wr_id: u64, opcode: WcOpcode, status: WcStatus) -> Self {
        Self {
            qpn,
            wr_id,
            opcode,
            status,
            byte_len: 0,
            imm: None,
            invalidated: None,
            solicited: false,
            data: Vec::new(),
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub qpn: u32,
    pub pd: u32,
    pub state: QpState,
    pub local: Address,
    pub params: Option<QpParams>,
    pub requester: Requester,
    pub responder: Responder,
}

/// What the halves of a QP produce for the users of the endpoint.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub completions: VecDeque<Completion>,
    pub events: VecDeque<(u32, AsyncEvent)>,
}

impl Qp {
    pub fn new(local: Address, pd: u32) -> Self {
        Self {
            qpn: local.qpn,
            pd,
            state: QpState::Reset,
            local,
            params: None,
            requester: Requester::default(),
            responder: Responder::default(),
        }
    }

    /// A packet of this QP with everything but extension headers and payload; the IP identification is the caller's.
    pub fn packet(&self, params: &QpParams, opcode: Opcode, psn: u32) -> Packet {
        let port = udp_source_port(params.flow_label, self.qpn, params.remote.qpn);
        let (dscp, ecn) = (params.tos >> 2, params.tos & 3);
        let (mut ip, mut ipv6) = (Ipv4Header::default(), None);
        let ethertype = match (self.local.ip, params.remote.ip) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ip = Ipv4Header {
                    version: 4,
                    ihl: 5,
                    dscp,
                    ecn,
                    dont_fragment: true,
                    ttl: params.ttl,
                    protocol: IP_PROTOCOL_UDP,
                    source: source.into(),
                    destination: destination.into(),
                    ..Default::default()
                };
                ETHERTYPE_IPV4
            }
            (source, destination) => {
                let gid = |ip| match ip {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                ipv6 = Some(Ipv6Header {
                    version: 6,
                    dscp,
                    ecn,
                    flow_label: params.flow_label,
                    next_header: IP_PROTOCOL_UDP,
                    hop_limit: params.ttl,
                    source: gid(source).into(),
                    destination: gid(destination).into(),
                    ..Default::default()
                });
                ETHERTYPE_IPV6
            }
        };
        let tag = |Vlan { id, priority }| VlanTag { priority, drop_eligible: false, vlan: id, ethertype };
        Packet {
            ethernet: EthernetHeader {
                destination: params.remote.mac,
                source: self.local.mac,
                ethertype: if params.vlan.is_some() { ETHERTYPE_VLAN } else { ethertype },
            },
            vlan: params.vlan.map(tag),
            ip,
            ipv6,
            udp: UdpHeader {
                source_port: params.udp_source_port.unwrap_or(port),
                destination_port: ROCE_PORT,
                ..Default::default()
            },
            bth: Bth {
                opcode: opcode.code(),
                mig_req: params.tuning.mig_req,
                pkey: DEFAULT_PKEY,
                dest_qp: params.remote.qpn,
                psn: psn & 0xff_ffff,
                ..Default::default()
            },
            ..Default::default()
        }
    }

    /// Stops the QP: every request still queued completes as flushed, sends before receives, each in order.
    pub fn fail(&mut self, out: &mut Outbox) {
        self.state = QpState::Err;
        self.requester.flush(self.qpn, out);
        self.responder.flush(self.qpn, out);
    }
}
