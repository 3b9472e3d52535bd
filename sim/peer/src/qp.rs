//! A queue pair: its parameters, what users post and get back, and the state that both halves share.
//!
//! The requester half is in `requester`, the responder half in `responder`; either may stop the pair, which flushes
//! both queues in order.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use contract::verbs::access;
use contract::wire::{DEFAULT_PKEY, ETHERTYPE_IPV4, IP_PROTOCOL_UDP, ROCE_PORT, udp_source_port};
use contract::{
    AsyncEvent, Bth, EthernetHeader, Ipv4Header, Opcode, PathMtu, QpState, UdpHeader, WcOpcode, WcStatus,
};

use crate::packet::Packet;
use crate::requester::Requester;
use crate::responder::Responder;

/// Where a QP is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// MAC address; the first byte on the wire is the most significant of 48 bits.
    pub mac: u64,
    /// IPv4 address.
    pub ip: Ipv4Addr,
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
    /// Most PSNs in flight; 0 = as many as the PSN window allows.
    pub window: u32,
    /// The migration bit of every packet.
    pub mig_req: bool,
    /// After an RNR NAK, answer the packets behind it with a sequence NAK (the kernel's soft RoCE does).
    pub nak_behind_rnr: bool,
    /// A sequence NAK without progress consumes a retry, as a timeout does.
    pub naks_consume_retries: bool,
    /// `retry_cnt` 7 means for ever (the kernel's soft RoCE) instead of seven.
    pub seven_retries_is_forever: bool,
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
        }
    }
}

/// Everything that modify sets on the way from RESET to RTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpParams {
    /// The other end.
    pub remote: Address,
    /// Path MTU; both ends must agree.
    pub path_mtu: PathMtu,
    /// First PSN expected.
    pub rq_psn: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// What the peer may do: `REMOTE_WRITE` or nothing.
    pub access: u8,
    /// Retransmission timeout code; 0 = never.
    pub timeout: u8,
    /// Retries after timeouts and sequence NAKs.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs; 7 = for ever.
    pub rnr_retry: u8,
    /// Timer code in the RNR NAKs sent.
    pub min_rnr_timer: u8,
    /// IPv4 ToS of requests and responses.
    pub tos: u8,
    /// IPv4 TTL.
    pub ttl: u8,
    /// UDP source port; `None` = the hash of both QP numbers.
    pub udp_source_port: Option<u16>,
    /// What legitimately differs between peers.
    pub tuning: Tuning,
}

impl QpParams {
    /// Usual parameters towards `remote`: path MTU 1024, PSNs from 0, writes permitted, timeout 67 ms, 7 retries,
    /// RNR retries for ever after 0.64 ms.
    pub fn to(remote: Address) -> Self {
        Self {
            remote,
            path_mtu: PathMtu::Mtu1024,
            rq_psn: 0,
            sq_psn: 0,
            access: access::REMOTE_WRITE,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            tos: 0,
            ttl: 64,
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
    /// WRITE, perhaps with immediate data (as the network-order integer).
    Write {
        /// Remote address.
        va: u64,
        /// Remote key.
        rkey: u32,
        /// Immediate data.
        imm: Option<u32>,
    },
}

/// A send request; it owns its bytes, so that replay finds them unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What it does.
    pub op: SendOp,
    /// The message.
    pub data: Vec<u8>,
    /// Success gives a completion; an error always does.
    pub signaled: bool,
    /// Asks for a solicited event at the peer.
    pub solicited: bool,
}

impl SendWr {
    /// A signaled, unsolicited request.
    pub fn new(wr_id: u64, op: SendOp, data: Vec<u8>) -> Self {
        Self { wr_id, op, data, signaled: true, solicited: false }
    }
}

/// Where a received SEND lands.
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
    /// Bytes received, or the length of the WRITE that carried the immediate data; 0 for sends.
    pub byte_len: u32,
    /// Immediate data (as the network-order integer).
    pub imm: Option<u32>,
    /// The peer asked for a solicited event.
    pub solicited: bool,
    /// The message, when the receive owned its buffer.
    pub data: Vec<u8>,
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
        let port = udp_source_port(0, self.qpn, params.remote.qpn);
        Packet {
            ethernet: EthernetHeader {
                destination: params.remote.mac,
                source: self.local.mac,
                ethertype: ETHERTYPE_IPV4,
            },
            ip: Ipv4Header {
                version: 4,
                ihl: 5,
                dscp: params.tos >> 2,
                ecn: params.tos & 3,
                dont_fragment: true,
                ttl: params.ttl,
                protocol: IP_PROTOCOL_UDP,
                source: self.local.ip.into(),
                destination: params.remote.ip.into(),
                ..Default::default()
            },
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
