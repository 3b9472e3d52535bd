//! The arrows: what one stage hands to the next. A name here is the name of the ports that carry it.
//!
//! ```text
//! transmit  doorbell -PushStore, PushRing-> push -Pushed-> fetch
//!           doorbell -Wake-> schedule -Turn-> fetch -WorkItem-> segment -Segment-> gather -TransmitSlot-> packetise -FrameBeat-> mac
//! receive   mac -FrameBeat-> parse/verify -Headers-> check -Verdict-> place -Completion-> complete -Event-> notify
//!                                                     check -Response-> acknowledge -Completion-> complete
//!                                                                       acknowledge -Scatter-> place -Placement-> acknowledge
//!                                                     place -Exchange-> atomic
//!                                                     place -Owed-> packetise (plain ACKs; all else by way of `placed` and segment)
//!           segment -Invalidation-> place, place -region-> command -TableWrite-> everybody
//! memory    fetch, gather, place, command, atomic -ReadRequest-> pcie read -ReadData, ReadDone->
//!           place -PayloadWrite->, complete, notify, command, atomic -SmallWrite-> pcie write
//! ```
//!
//! Requirements: CARD ERR

use crate::config::Config;
use crate::qp::{EPOCH, INDEX, PSN};
use contract::ring::MAX_SGE;
use contract::{Opcode, TraceEvent};
use hdl::{Bundle, Sig, cat, lit, low};

/// A QP may have something to send.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Wake {
    /// Which.
    #[shape(c.qp_bits())]
    pub qp: Sig,
}

/// The same as a pulse: one clock, never refused.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct WakePulse {
    /// Wake in this clock.
    pub valid: Sig,
    /// Which.
    #[shape(c.qp_bits())]
    pub qp: Sig,
}

/// What acknowledge writes of a QP's rewinds. Pulse, never refused.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Rewind {
    /// Written in this clock.
    pub valid: Sig,
    /// Of this QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// `Requester::epoch`.
    #[shape(EPOCH)]
    pub epoch: Sig,
}

/// A write to a doorbell page: one aligned write of 8 bytes, as the BAR decoder found it; of fewer, to the push buffer.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct DoorbellWrite {
    /// The page.
    #[shape(c.page_bits())]
    pub page: Sig,
    /// Byte offset in the page.
    #[shape(12)]
    pub offset: Sig,
    /// Byte 0 lowest.
    #[shape(64)]
    pub data: Sig,
    /// Which bytes.
    #[shape(8)]
    pub enables: Sig,
}

/// A store to the push buffer of a page. Pulse, never refused.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct PushStore {
    /// Store in this clock.
    pub valid: Sig,
    /// Into the buffer of this page.
    #[shape(c.page_bits())]
    pub page: Sig,
    /// Quadword of the buffer.
    #[shape(5)]
    pub word: Sig,
    /// Byte 0 lowest.
    #[shape(64)]
    pub data: Sig,
    /// Which bytes.
    #[shape(8)]
    pub enables: Sig,
}

/// A doorbell of a page: what was stored to its push buffer counts no longer. Pulse, never refused.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct PushRing {
    /// A doorbell in this clock.
    pub valid: Sig,
    /// Of this page.
    #[shape(c.page_bits())]
    pub page: Sig,
    /// A good one that hands on a WQE.
    pub pushed: Sig,
    /// Of this QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// With this index.
    #[shape(INDEX)]
    pub index: Sig,
}

/// A WQE that was pushed.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Pushed {
    /// Of which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// Its index.
    #[shape(INDEX)]
    pub index: Sig,
}

/// A CQ or EQ doorbell on its way to its owner: `contract::CqDoorbell` or `EqDoorbell`.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct QueueDoorbell {
    /// The page it was written to.
    #[shape(c.page_bits())]
    pub page: Sig,
    /// As written.
    #[shape(64)]
    pub data: Sig,
}

/// A QP's turn, or the fence token of a teardown travelling in order.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Turn {
    /// Which.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// This is the fence token, not a turn.
    pub fence: Sig,
}

/// The turn of an atomic: everything before it is written.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Exchange {
    /// Which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// Its entry among all responses: `OwedRead`, `Operands` and `Outcome` lie there.
    #[shape(c.response_bits())]
    pub entry: Sig,
}

/// The end of a turn.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct TurnDone {
    /// Which.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// There is more to do at once.
    pub again: Sig,
    /// A response is among it.
    pub owes: Sig,
}

/// A turn with what fetch knows of it.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct WorkItem {
    /// Which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// The fence token.
    pub fence: Sig,
    /// `wqe` is the WQE under the cursor.
    pub present: Sig,
    /// The read of that WQE failed.
    pub failed: Sig,
    /// Producer of the send queue.
    #[shape(INDEX)]
    pub producer: Sig,
    /// `contract::SendWqe` and its SGEs, or the first of its inline data; byte 0 lowest.
    #[shape(c.item_bytes() * 8)]
    pub wqe: Sig,
}

/// One packet to send.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Segment {
    /// Its fields.
    #[shape(c.clone())]
    pub packet: PacketFields,
    /// Ring index of the WQE, to name in a fault.
    #[shape(INDEX)]
    pub wqe_index: Sig,
    /// First byte of the packet's payload within the message.
    #[shape(32)]
    pub offset: Sig,
    /// `c.sges` SGEs (`contract::Sge`), the first lowest.
    #[shape(c.sges * 128)]
    pub sges: Sig,
    /// A READ response: the key in `sges` is the peer's and must allow REMOTE_READ.
    pub responds: Sig,
    /// A request: worth nothing once its QP has gone back.
    pub requests: Sig,
    /// Of a request: `Tx::epoch`.
    #[shape(EPOCH)]
    pub epoch: Sig,
    /// Of a READ that was answered whole before: if it cannot be answered now, nothing happens.
    pub again: Sig,
    /// The payload comes by segment's `words`, as words of its WQE: no SGE holds.
    pub inline: Sig,
    /// So many further SGEs come in the same way.
    #[shape(5)]
    pub more: Sig,
}

/// What segment tells the read list of a new READ: its first SGEs once, and words of its WQE.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct ReadListWrite {
    /// `sges` and `more` hold.
    pub opens: Sig,
    /// `index` and `word` hold.
    pub adds: Sig,
    /// The READ's entry.
    #[shape(c.read_bits())]
    pub entry: Sig,
    /// Its first SGEs.
    #[shape(GROUP_SGES * 128)]
    pub sges: Sig,
    /// How many it has besides.
    #[shape(4)]
    pub more: Sig,
    /// Number of `word` from that in which the fifth SGE begins.
    #[shape(hdl::index_width(c.inline_words()))]
    pub index: Sig,
    /// A word of the WQE.
    #[shape(c.data_bits())]
    pub word: Sig,
}

/// A word of inline data for the transmit buffer.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct InlineWord {
    /// Word of the transmit buffer.
    #[shape(c.transmit_address_bits() - c.lane_bits())]
    pub word: Sig,
    /// All of its bytes.
    #[shape(c.data_bits())]
    pub data: Sig,
}

/// A local invalidate whose turn has come: all before it of its send queue is retired, nothing behind it has begun. So
/// there is one per QP at most.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Invalidation {
    /// Whose.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// Ring index of the WQE.
    #[shape(INDEX)]
    pub wqe_index: Sig,
    /// The key that ends.
    #[shape(32)]
    pub key: Sig,
}

/// A frame whose payload lies whole in the transmit buffer. Payload byte 0 lies at `address`, whose low bits are such
/// that header and payload join without a shift: `address % data_bytes == header bytes % data_bytes`.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct TransmitSlot {
    /// The packet.
    #[shape(c.clone())]
    pub packet: PacketFields,
    /// Byte address of the payload in the transmit buffer.
    #[shape(c.transmit_address_bits())]
    pub address: Sig,
}

/// What packetise must know of a packet: fields of its headers, and how much follows them.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct PacketFields {
    /// Which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// The fence token.
    pub fence: Sig,
    /// BTH opcode.
    #[shape(8)]
    pub opcode: Sig,
    /// BTH PSN.
    #[shape(PSN)]
    pub psn: Sig,
    /// BTH AckReq.
    pub ack_req: Sig,
    /// BTH SE.
    pub solicited: Sig,
    /// AETH syndrome (responses).
    #[shape(8)]
    pub syndrome: Sig,
    /// AETH MSN (responses).
    #[shape(PSN)]
    pub msn: Sig,
    /// Tag and IP version of the frame.
    #[shape(())]
    pub outer: Outer,
    /// RETH virtual address.
    #[shape(64)]
    pub va: Sig,
    /// RETH R_Key.
    #[shape(32)]
    pub rkey: Sig,
    /// RETH DMALen.
    #[shape(32)]
    pub dma_length: Sig,
    /// ImmDt, byte 0 lowest (wire order).
    #[shape(32)]
    pub imm: Sig,
    /// Swap or add operand of AtomicETH; original value of AtomicAckETH.
    #[shape(64)]
    pub value: Sig,
    /// Compare operand of AtomicETH.
    #[shape(64)]
    pub compare: Sig,
    /// Payload bytes without pad: 0..=4096, of a raw frame all of it.
    #[shape(13)]
    pub length: Sig,
    /// The payload is the frame: no header, no pad, no ICRC.
    pub raw: Sig,
}

/// A local fault of a WQE under way: the requester must complete it in error. Or of a READ response: the QP is over. From
/// gather: with status 0 that raw frame is whole in the transmit buffer, from where nothing holds it back. From
/// place: with status 0 the data of that READ is in memory, whole, or that local invalidate is done.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Fault {
    /// Which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// Which WQE.
    #[shape(INDEX)]
    pub wqe_index: Sig,
    /// `ibv_wc_status`; of a READ response the one that the peer will see.
    #[shape(8)]
    pub status: Sig,
    /// Of a READ response, not of a WQE.
    pub responds: Sig,
    /// Of a local invalidate (from place).
    pub invalidates: Sig,
    /// Why, if a WQE is to complete in error: code of the `contract::Reject`, plus 1.
    #[shape(CAUSE)]
    pub cause: Sig,
}

/// Bits of a cause: a `contract::Reject` code plus 1, 0 for none.
pub const CAUSE: u32 = 7;

/// The cause of a refusal's 6-bit code.
pub fn cause(code: Sig) -> Sig {
    code.extend(CAUSE) + 1
}

/// A beat of an Ethernet frame, from the destination MAC on. Toward the mac without FCS; from the mac with its FCS if it
/// is XGMII ([`Config::fcs_bytes`]).
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct FrameBeat {
    /// Byte i of the beat in bits 8i+7:8i.
    #[shape(c.data_bits())]
    pub data: Sig,
    /// The last beat.
    pub last: Sig,
    /// Bytes valid in the last beat, 1..=data_bytes (other beats are full). From the mac also 0: it had no room, the
    /// frame ends short, or nothing of it is there.
    #[shape(c.lane_bits() + 1)]
    pub bytes: Sig,
    /// In the last beat from the mac: FCS wrong or the line reported an error.
    pub error: Sig,
}

/// What stands in a frame besides the least: both move everything behind them.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Outer {
    /// An 802.1Q tag behind the MAC addresses.
    pub tagged: Sig,
    /// IPv6, not IPv4.
    pub ipv6: Sig,
}

/// What a response needs; FIFOs hold no more.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Owed {
    /// Whose.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// BTH PSN.
    #[shape(PSN)]
    pub psn: Sig,
    /// AETH syndrome.
    #[shape(8)]
    pub syndrome: Sig,
    /// AETH MSN.
    #[shape(PSN)]
    pub msn: Sig,
    /// Tag and IP version of the frame.
    #[shape(())]
    pub outer: Outer,
}

/// A response as a packet without payload.
pub fn response(p: &Owed) -> PacketFields {
    PacketFields {
        qp: p.qp,
        fence: low(),
        opcode: lit(8, Opcode::RcAcknowledge as u64),
        psn: p.psn,
        ack_req: low(),
        solicited: low(),
        syndrome: p.syndrome,
        msn: p.msn,
        outer: p.outer,
        va: lit(64, 0),
        rkey: lit(32, 0),
        dma_length: lit(32, 0),
        imm: lit(32, 0),
        value: lit(64, 0),
        compare: lit(64, 0),
        length: lit(13, 0),
        raw: low(),
    }
}

/// A good RoCEv2 frame: its headers, and where its payload lies in the packet buffer. Or a raw frame.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Headers {
    /// Not RoCE: a SEND Only of the whole frame to the raw QP. Of the other fields only opcode, QP, address, length and slot hold.
    pub raw: Sig,
    /// BTH DestQP, not yet bounded.
    #[shape(24)]
    pub dest_qpn: Sig,
    /// BTH opcode.
    #[shape(8)]
    pub opcode: Sig,
    /// BTH SE.
    pub solicited: Sig,
    /// BTH AckReq.
    pub ack_req: Sig,
    /// BTH PadCnt.
    #[shape(2)]
    pub pad: Sig,
    /// BTH P_Key.
    #[shape(16)]
    pub pkey: Sig,
    /// BTH PSN.
    #[shape(PSN)]
    pub psn: Sig,
    /// Sender, as a GID (big-endian integer; IPv4 as `::ffff:a.b.c.d`).
    #[shape(128)]
    pub source_gid: Sig,
    /// Receiver, as a GID.
    #[shape(128)]
    pub dest_gid: Sig,
    /// VLAN of the frame's tag; 0: no tag, or one that gives a priority alone.
    #[shape(12)]
    pub vlan: Sig,
    /// RETH or AtomicETH VA.
    #[shape(64)]
    pub va: Sig,
    /// RETH or AtomicETH R_Key.
    #[shape(32)]
    pub rkey: Sig,
    /// RETH DMALen.
    #[shape(32)]
    pub dma_length: Sig,
    /// AETH syndrome.
    #[shape(8)]
    pub syndrome: Sig,
    /// AETH MSN.
    #[shape(PSN)]
    pub msn: Sig,
    /// ImmDt or IETH, byte 0 lowest.
    #[shape(32)]
    pub imm: Sig,
    /// Swap or add operand of AtomicETH; original value of AtomicAckETH.
    #[shape(64)]
    pub value: Sig,
    /// Compare operand of AtomicETH.
    #[shape(64)]
    pub compare: Sig,
    /// Byte address of the payload in the packet buffer.
    #[shape(c.packet_address_bits())]
    pub address: Sig,
    /// Payload bytes without pad (up to a jumbo frame; check bounds it by PMTU).
    #[shape(14)]
    pub length: Sig,
    /// Slot to release when the payload is spent.
    #[shape(c.packet_slot_bits())]
    pub slot: Sig,
}

/// Bits of an [`Action`].
pub const ACTION: u32 = 4;

/// What place does with a packet.
#[derive(hdl::HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The fence token of a teardown: pass it on.
    Fence = 0,
    /// Write the payload at `iova`.
    Write = 1,
    /// Write the payload through receive WQE `wqe_index` at message offset `offset`.
    Send = 2,
    /// No payload: a duplicate to re-acknowledge.
    Reack = 3,
    /// No payload: a NAK or RNR NAK with `syndrome`.
    Nak = 4,
    /// No payload: the READ with number `wqe_index` may be answered.
    Respond = 5,
    /// No payload: a duplicate READ; number `wqe_index` is to be answered again from `psn` on.
    Rewind = 6,
    /// Inside place only: payload of a READ response, through the SGEs of the read list.
    Data = 7,
    /// No payload: the atomic with number `wqe_index` may be executed.
    Atomic = 8,
    /// Inside place only: the result of an atomic, in `iova`, through the SGEs of the read list.
    Value = 9,
    /// Inside place only: a local invalidate of `key`.
    Local = 10,
}

/// check's judgement of a request.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Verdict {
    /// Of a raw frame: whatever is wrong with its receive WQE ends that WQE and not the QP.
    pub raw: Sig,
    /// See [`Action`].
    #[shape(ACTION)]
    pub action: Sig,
    /// Which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// BTH PSN of the packet (of a NAK: the PSN that it carries; of a Reack: the last that it may acknowledge).
    #[shape(PSN)]
    pub psn: Sig,
    /// An acknowledgement is asked for.
    pub ack_req: Sig,
    /// The message ends here.
    pub last: Sig,
    /// The message starts here.
    pub first: Sig,
    /// The first packet that a QP in RTR takes.
    pub establishes: Sig,
    /// A NAK after which the QP is dead.
    pub fatal: Sig,
    /// AETH syndrome of a NAK.
    #[shape(8)]
    pub syndrome: Sig,
    /// Cause of a fatal NAK.
    #[shape(CAUSE)]
    pub cause: Sig,
    /// Where a WRITE goes; the result of an atomic.
    #[shape(64)]
    pub iova: Sig,
    /// The MR asks for relaxed ordering.
    pub relaxed: Sig,
    /// Key of a WRITE or atomic, which must hold until it is executed; the key that ends, if `with_inv`.
    #[shape(32)]
    pub key: Sig,
    /// Receive WQE of a SEND (and of a fatal NAK inside of one: it completes in error if `uses_wqe`); of a READ or atomic its number.
    #[shape(INDEX)]
    pub wqe_index: Sig,
    /// `wqe_index` is a receive WQE.
    pub uses_wqe: Sig,
    /// Bytes of the message before this packet.
    #[shape(32)]
    pub offset: Sig,
    /// Payload bytes.
    #[shape(14)]
    pub length: Sig,
    /// Byte address of the payload in the packet buffer.
    #[shape(c.packet_address_bits())]
    pub address: Sig,
    /// Slot to release when done (valid for Write and Send only; check released the others).
    #[shape(c.packet_slot_bits())]
    pub slot: Sig,
    /// The message ends with immediate data.
    pub with_imm: Sig,
    /// The message ends with a key that ends.
    pub with_inv: Sig,
    /// Solicited event wanted.
    pub solicited: Sig,
    /// Immediate data, byte 0 lowest.
    #[shape(32)]
    pub imm: Sig,
}

/// A response packet for the requester side.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Response {
    /// The fence token of a teardown, in order; nothing else holds.
    pub fence: Sig,
    /// Which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// BTH opcode.
    #[shape(8)]
    pub opcode: Sig,
    /// BTH PSN.
    #[shape(PSN)]
    pub psn: Sig,
    /// AETH syndrome.
    #[shape(8)]
    pub syndrome: Sig,
    /// AETH MSN.
    #[shape(PSN)]
    pub msn: Sig,
    /// Original value of an atomic.
    #[shape(64)]
    pub value: Sig,
    /// Payload bytes (this and the next two of a READ response or the result of an atomic only).
    #[shape(14)]
    pub length: Sig,
    /// Byte address of the payload in the packet buffer.
    #[shape(c.packet_address_bits())]
    pub address: Sig,
    /// Slot to release when the payload is spent.
    #[shape(c.packet_slot_bits())]
    pub slot: Sig,
}

/// Payload of a READ response on its way to the SGEs of its READ.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Scatter {
    /// The fence token of a teardown, in order; nothing else holds.
    pub fence: Sig,
    /// Not wanted: `slot` is to be released, nothing else.
    pub discard: Sig,
    /// The result of an atomic: `value`, not what lies at `address`.
    pub is_value: Sig,
    /// It.
    #[shape(64)]
    pub value: Sig,
    /// Which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// Entry of the read list with the SGEs.
    #[shape(c.read_bits())]
    pub entry: Sig,
    /// First byte of the payload within the READ.
    #[shape(32)]
    pub offset: Sig,
    /// Payload bytes.
    #[shape(14)]
    pub length: Sig,
    /// Byte address of the payload in the packet buffer.
    #[shape(c.packet_address_bits())]
    pub address: Sig,
    /// Slot to release when the payload is spent.
    #[shape(c.packet_slot_bits())]
    pub slot: Sig,
    /// Ring index of the READ's WQE.
    #[shape(INDEX)]
    pub wqe_index: Sig,
    /// The READ ends here.
    pub last: Sig,
}

/// A CQE to write.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Completion {
    /// Into which CQ.
    #[shape(c.cq_bits())]
    pub cq: Sig,
    /// Of which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// Ring index of the WQE.
    #[shape(INDEX)]
    pub wqe_index: Sig,
    /// `ibv_wc_opcode`.
    #[shape(8)]
    pub opcode: Sig,
    /// `ibv_wc_status`.
    #[shape(8)]
    pub status: Sig,
    /// Bytes of the message.
    #[shape(32)]
    pub byte_len: Sig,
    /// Immediate data, or the key that has ended, byte 0 lowest.
    #[shape(32)]
    pub imm: Sig,
    /// `imm` holds immediate data.
    pub with_imm: Sig,
    /// `imm` holds a key.
    pub with_inv: Sig,
    /// `vendor_err`: see [`CAUSE`].
    #[shape(CAUSE)]
    pub cause: Sig,
    /// A solicited event.
    pub solicited: Sig,
}

/// Something for an event queue.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Event {
    /// Into which EQ.
    #[shape(c.eq_bits())]
    pub eq: Sig,
    /// `contract::EventKind`.
    #[shape(8)]
    pub kind: Sig,
    /// `ibv_event_type` of an asynchronous event.
    #[shape(8)]
    pub event: Sig,
    /// QPN or CQN.
    #[shape(24)]
    pub object: Sig,
}

/// A refusal to count: pulse `valid` with the code of a `contract::Reject`.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Count {
    /// Count in this clock.
    pub valid: Sig,
    /// Index of the counter.
    #[shape(6)]
    pub index: Sig,
}

/// What a stage tells trace of one thing that it decided. Pulse, never refused.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Mark {
    /// In this clock.
    pub valid: Sig,
    /// `contract::TraceEvent`.
    #[shape(8)]
    pub event: Sig,
    /// Which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// See the event.
    #[shape(INDEX)]
    pub index: Sig,
    /// PSN.
    #[shape(PSN)]
    pub psn: Sig,
    /// BTH opcode.
    #[shape(8)]
    pub opcode: Sig,
    /// See the event.
    #[shape(16)]
    pub detail: Sig,
}

impl Mark {
    /// That event of that QP, and nothing more.
    pub fn of(event: TraceEvent, valid: Sig, qp: Sig) -> Mark {
        Mark {
            valid,
            event: lit(8, event.code().into()),
            qp,
            index: lit(INDEX, 0),
            psn: lit(PSN, 0),
            opcode: lit(8, 0),
            detail: lit(16, 0),
        }
    }
    /// Its bits of the lower quadword of `contract::TraceEntry`, those above the time.
    pub fn head(&self) -> Sig {
        cat(&[self.qp.extend(16), self.event])
    }
    /// The upper quadword.
    pub fn body(&self) -> Sig {
        cat(&[self.detail, self.opcode, self.psn, self.index])
    }
}

/// Bits of the time in an entry.
pub const TIME: u32 = 40;

/// Who reads host memory.
#[derive(hdl::HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadClient {
    /// Payload into the transmit buffer.
    Gather = 0,
    /// Send WQEs into the WQE memory of fetch.
    Fetch = 1,
    /// Receive WQEs into the WQE memory of place.
    Place = 2,
    /// Command entries into the command memory.
    Command = 3,
    /// Operands of atomics into the slots of atomic.
    Atomic = 4,
}

/// Bits of a [`ReadClient`].
pub const CLIENT: u32 = 3;
/// Bits of a byte address in a client's memory (2 MiB at most).
pub const READ_ADDRESS: u32 = 21;
/// Bits of a client's own name for a read.
pub const READ_ID: u32 = 14;

/// SGEs of a list that place sees at once. A list has up to four such groups, of which the first is always at hand.
pub const GROUP_SGES: u32 = 4;
/// Bits of a group's number.
pub const GROUP: u32 = 2;
/// Groups behind the first.
pub const FURTHER_GROUPS: u32 = MAX_SGE / GROUP_SGES - 1;

/// Where a group behind the first lies in a memory of those alone; never beyond it.
pub fn further_row(group: Sig) -> Sig {
    cat(&[group.all(), group.eq(2)])
}

/// A read of host memory, at most 4096 bytes, of any alignment, possibly across 4 KiB and MRRS boundaries: the engine
/// cuts it. The room at the destination is the client's promise: data is never refused.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct ReadRequest {
    /// IOVA of the first byte.
    #[shape(64)]
    pub iova: Sig,
    /// Bytes, 1..=4096.
    #[shape(13)]
    pub length: Sig,
    /// Byte address in the client's memory for the first byte.
    #[shape(READ_ADDRESS)]
    pub address: Sig,
    /// Comes back in [`ReadDone`].
    #[shape(READ_ID)]
    pub id: Sig,
}

/// A write into one client's memory: byte lanes of one word of `data_bytes`. All clients see all of them; `client` says
/// whose it is.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct ReadData {
    /// Write in this clock.
    pub valid: Sig,
    /// See [`ReadClient`].
    #[shape(CLIENT)]
    pub client: Sig,
    /// Byte address of the word (low lane bits zero).
    #[shape(READ_ADDRESS)]
    pub address: Sig,
    /// The word.
    #[shape(c.data_bits())]
    pub data: Sig,
    /// Which bytes.
    #[shape(c.data_bytes)]
    pub lanes: Sig,
}

/// A read is over, all of its data written in earlier clocks (or some of it missing: `failed`). Reads end in any order.
/// Pulse: one clock, never refused.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct ReadDone {
    /// A read ended.
    pub valid: Sig,
    /// Whose.
    #[shape(CLIENT)]
    pub client: Sig,
    /// Which.
    #[shape(READ_ID)]
    pub id: Sig,
    /// UR, CA, poison or timeout: the data is not to be used.
    pub failed: Sig,
}

/// A write of payload from the packet buffer to host memory, at most a packet, any alignment.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct PayloadWrite {
    /// IOVA of the first byte.
    #[shape(64)]
    pub iova: Sig,
    /// Bytes, 0..=8191; zero writes nothing but still comes back as written.
    #[shape(13)]
    pub length: Sig,
    /// Byte address in the packet buffer.
    #[shape(c.packet_address_bits())]
    pub address: Sig,
    /// `value` is written, 8 bytes, the lowest first; not what lies at `address`.
    pub is_value: Sig,
    /// It.
    #[shape(64)]
    pub value: Sig,
    /// May pass other writes.
    pub relaxed: Sig,
}

/// A write of at most 64 bytes to host memory, from registers; never crosses 4 KiB if aligned to its size.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct SmallWrite {
    /// IOVA, doubleword aligned.
    #[shape(64)]
    pub iova: Sig,
    /// Doublewords, 1..=16.
    #[shape(5)]
    pub dwords: Sig,
    /// Byte 0 lowest.
    #[shape(512)]
    pub data: Sig,
}

/// A beat of a TLP at the generic PCIe interface: the header beside the first beat's data. `header` is the raw PCIe
/// header, DW0 in bits 127:96 (a 3-DW header leaves bits 31:0 zero); data is DW aligned, lowest address in bits 7:0.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct TlpBeat {
    /// DW0..DW3; held for all beats of the TLP.
    #[shape(128)]
    pub header: Sig,
    /// Payload.
    #[shape(c.data_bits())]
    pub data: Sig,
    /// First beat.
    pub first: Sig,
    /// Last beat.
    pub last: Sig,
}

/// What configuration space tells the card.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct PcieConfig {
    /// Bus, device, function.
    #[shape(16)]
    pub requester_id: Sig,
    /// DEVCTL 7:5.
    #[shape(3)]
    pub max_payload: Sig,
    /// DEVCTL 14:12.
    #[shape(3)]
    pub max_read_request: Sig,
    /// LNKCTL bit 3: 1 = 128 bytes.
    pub rcb: Sig,
    /// DEVCTL bit 8.
    pub extended_tag: Sig,
    /// DEVCTL bit 4.
    pub relaxed_ordering: Sig,
    /// Command bit 2.
    pub bus_master: Sig,
    /// DEVCTL2 4:0: how long a read waits for its completion.
    #[shape(5)]
    pub completion_timeout: Sig,
    /// MSI-X message control bit 15.
    pub msix_enable: Sig,
    /// MSI-X message control bit 14.
    pub msix_mask: Sig,
}

/// A word written into an object table by command. Everybody sees all; no back-pressure.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct TableWrite {
    /// Write in this clock.
    pub valid: Sig,
    /// See [`Table`].
    #[shape(2)]
    pub table: Sig,
    /// Entry.
    #[shape(16)]
    pub index: Sig,
    /// 64-bit word of the entry.
    #[shape(4)]
    pub word: Sig,
    /// The word.
    #[shape(64)]
    pub data: Sig,
}

/// The tables that commands write.
#[derive(hdl::HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// `contract::QpContext`, 16 words.
    Qp = 0,
    /// `contract::MrEntry`, 4 words.
    Mr = 1,
    /// `contract::CqEntry`, 2 words.
    Cq = 2,
    /// `contract::EqEntry`, 2 words.
    Eq = 3,
}
