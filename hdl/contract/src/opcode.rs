//! The BTH opcode table: what each packet carries and what it does to a message.
//!
//! In: an opcode byte. Out: its row, or `None` for an opcode that is dropped silently. One row per opcode of RC, UC,
//! UD and the CNP (InfiniBand 9.2, RoCE annex A17). Reserved opcodes, RD, XRC, FLUSH and ATOMIC_WRITE have no row.

use crate::codes;
use crate::verbs::Transport;

codes! {
    /// BTH opcode: bits 7:5 the transport, bits 4:0 the operation.
    enum Opcode {
        /// First packet of a SEND.
        RcSendFirst = 0x00,
        /// Middle packet of a SEND.
        RcSendMiddle = 0x01,
        /// Last packet of a SEND.
        RcSendLast = 0x02,
        /// Last packet of a SEND with immediate.
        RcSendLastImm = 0x03,
        /// A SEND in one packet.
        RcSendOnly = 0x04,
        /// A SEND with immediate in one packet.
        RcSendOnlyImm = 0x05,
        /// First packet of a WRITE.
        RcWriteFirst = 0x06,
        /// Middle packet of a WRITE.
        RcWriteMiddle = 0x07,
        /// Last packet of a WRITE.
        RcWriteLast = 0x08,
        /// Last packet of a WRITE with immediate.
        RcWriteLastImm = 0x09,
        /// A WRITE in one packet.
        RcWriteOnly = 0x0a,
        /// A WRITE with immediate in one packet.
        RcWriteOnlyImm = 0x0b,
        /// READ request.
        RcReadRequest = 0x0c,
        /// First packet of a READ response.
        RcReadResponseFirst = 0x0d,
        /// Middle packet of a READ response.
        RcReadResponseMiddle = 0x0e,
        /// Last packet of a READ response.
        RcReadResponseLast = 0x0f,
        /// A READ response in one packet.
        RcReadResponseOnly = 0x10,
        /// ACK or NAK.
        RcAcknowledge = 0x11,
        /// Result of an atomic.
        RcAtomicAcknowledge = 0x12,
        /// Compare and swap.
        RcCompareSwap = 0x13,
        /// Fetch and add.
        RcFetchAdd = 0x14,
        /// Last packet of a SEND with invalidate.
        RcSendLastInv = 0x16,
        /// A SEND with invalidate in one packet.
        RcSendOnlyInv = 0x17,
        /// First packet of an unreliable SEND.
        UcSendFirst = 0x20,
        /// Middle packet of an unreliable SEND.
        UcSendMiddle = 0x21,
        /// Last packet of an unreliable SEND.
        UcSendLast = 0x22,
        /// Last packet of an unreliable SEND with immediate.
        UcSendLastImm = 0x23,
        /// An unreliable SEND in one packet.
        UcSendOnly = 0x24,
        /// An unreliable SEND with immediate in one packet.
        UcSendOnlyImm = 0x25,
        /// First packet of an unreliable WRITE.
        UcWriteFirst = 0x26,
        /// Middle packet of an unreliable WRITE.
        UcWriteMiddle = 0x27,
        /// Last packet of an unreliable WRITE.
        UcWriteLast = 0x28,
        /// Last packet of an unreliable WRITE with immediate.
        UcWriteLastImm = 0x29,
        /// An unreliable WRITE in one packet.
        UcWriteOnly = 0x2a,
        /// An unreliable WRITE with immediate in one packet.
        UcWriteOnlyImm = 0x2b,
        /// A datagram.
        UdSendOnly = 0x64,
        /// A datagram with immediate.
        UdSendOnlyImm = 0x65,
        /// Congestion notification packet.
        Cnp = 0x81,
    }
}

/// Place of a packet in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Opens a message of several packets.
    First,
    /// Neither opens nor closes.
    Middle,
    /// Closes a message of several packets.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Opens a message.
    pub const fn opens(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Closes a message.
    pub const fn closes(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What a packet is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A SEND request.
    Send,
    /// A WRITE request.
    Write,
    /// A READ request.
    Read,
    /// An atomic request.
    Atomic,
    /// A response: READ response, ACK, NAK, atomic result.
    Response,
    /// A congestion notification.
    Notification,
}

/// How many payload bytes a packet may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// None.
    None,
    /// Exactly the path MTU, pad count 0.
    Full,
    /// 1 to the path MTU.
    Some,
    /// 0 to the path MTU.
    Any,
    /// Exactly 16 reserved bytes.
    Reserved16,
}

/// What a packet does with the receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveWqe {
    /// Nothing.
    None,
    /// Takes a receive WQE and keeps it open.
    Fetch,
    /// Fills the open receive WQE.
    Use,
    /// Completes the open receive WQE.
    Complete,
    /// Takes and completes one.
    FetchComplete,
}

/// The extension headers of a packet, in the order in which they follow the BTH.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers {
    /// DETH, 8 bytes.
    pub deth: bool,
    /// RETH, 16 bytes.
    pub reth: bool,
    /// AtomicETH, 28 bytes.
    pub atomic: bool,
    /// AETH, 4 bytes.
    pub aeth: bool,
    /// AtomicAckETH, 8 bytes.
    pub atomic_ack: bool,
    /// ImmDt, 4 bytes.
    pub immdt: bool,
    /// IETH, 4 bytes.
    pub ieth: bool,
}

impl Headers {
    /// Bytes after the BTH.
    pub const fn bytes(self) -> usize {
        8 * self.deth as usize
            + 16 * self.reth as usize
            + 28 * self.atomic as usize
            + 4 * self.aeth as usize
            + 8 * self.atomic_ack as usize
            + 4 * self.immdt as usize
            + 4 * self.ieth as usize
    }
}

/// One row of the opcode table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpcodeRow {
    /// The opcode.
    pub opcode: Opcode,
    /// The transport service that uses it; a CNP belongs to none and is listed with RC.
    pub transport: Transport,
    /// What it is part of.
    pub kind: Kind,
    /// Its place in the message.
    pub position: Position,
    /// The headers after the BTH.
    pub headers: Headers,
    /// Its payload rule.
    pub payload: Payload,
    /// What it does with the receive queue.
    pub receive_wqe: ReceiveWqe,
}

impl Opcode {
    /// The row of this opcode.
    pub const fn row(self) -> OpcodeRow {
        use Opcode::*;
        let code = self as u8;
        let transport = match code >> 5 {
            0 | 4 => Transport::Rc,
            1 => Transport::Uc,
            _ => Transport::Ud,
        };
        let none = Headers {
            deth: false,
            reth: false,
            atomic: false,
            aeth: false,
            atomic_ack: false,
            immdt: false,
            ieth: false,
        };
        let position = match self {
            RcSendFirst | RcWriteFirst | RcReadResponseFirst | UcSendFirst | UcWriteFirst => Position::First,
            RcSendMiddle | RcWriteMiddle | RcReadResponseMiddle | UcSendMiddle | UcWriteMiddle => {
                Position::Middle
            }
            RcSendLast | RcSendLastImm | RcSendLastInv | RcWriteLast | RcWriteLastImm
            | RcReadResponseLast | UcSendLast | UcSendLastImm | UcWriteLast | UcWriteLastImm => {
                Position::Last
            }
            _ => Position::Only,
        };
        let (kind, headers) = match self {
            RcSendLastImm | RcSendOnlyImm | UcSendLastImm | UcSendOnlyImm => {
                (Kind::Send, Headers { immdt: true, ..none })
            }
            RcSendLastInv | RcSendOnlyInv => (Kind::Send, Headers { ieth: true, ..none }),
            RcSendFirst | RcSendMiddle | RcSendLast | RcSendOnly | UcSendFirst | UcSendMiddle
            | UcSendLast | UcSendOnly => (Kind::Send, none),
            RcWriteFirst | RcWriteOnly | UcWriteFirst | UcWriteOnly => {
                (Kind::Write, Headers { reth: true, ..none })
            }
            RcWriteOnlyImm | UcWriteOnlyImm => (Kind::Write, Headers { reth: true, immdt: true, ..none }),
            RcWriteLastImm | UcWriteLastImm => (Kind::Write, Headers { immdt: true, ..none }),
            RcWriteMiddle | RcWriteLast | UcWriteMiddle | UcWriteLast => (Kind::Write, none),
            RcReadRequest => (Kind::Read, Headers { reth: true, ..none }),
            RcReadResponseMiddle => (Kind::Response, none),
            RcReadResponseFirst | RcReadResponseLast | RcReadResponseOnly | RcAcknowledge => {
                (Kind::Response, Headers { aeth: true, ..none })
            }
            RcAtomicAcknowledge => (Kind::Response, Headers { aeth: true, atomic_ack: true, ..none }),
            RcCompareSwap | RcFetchAdd => (Kind::Atomic, Headers { atomic: true, ..none }),
            UdSendOnly => (Kind::Send, Headers { deth: true, ..none }),
            UdSendOnlyImm => (Kind::Send, Headers { deth: true, immdt: true, ..none }),
            Cnp => (Kind::Notification, none),
        };
        let payload = match self {
            RcReadRequest | RcAcknowledge | RcAtomicAcknowledge | RcCompareSwap | RcFetchAdd => Payload::None,
            Cnp => Payload::Reserved16,
            _ => match position {
                Position::First | Position::Middle => Payload::Full,
                Position::Last => Payload::Some,
                Position::Only => Payload::Any,
            },
        };
        let receive_wqe = match (kind, position) {
            (Kind::Send, Position::First) => ReceiveWqe::Fetch,
            (Kind::Send, Position::Middle) => ReceiveWqe::Use,
            (Kind::Send, Position::Last) => ReceiveWqe::Complete,
            (Kind::Send, Position::Only) => ReceiveWqe::FetchComplete,
            (Kind::Write, _) if headers.immdt => ReceiveWqe::FetchComplete,
            _ => ReceiveWqe::None,
        };
        OpcodeRow { opcode: self, transport, kind, position, headers, payload, receive_wqe }
    }
}
