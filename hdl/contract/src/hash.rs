//! The layout hash: one 64-bit number that changes when any table of the contract changes.
//!
//! FNV-1a over names, offsets, widths and values (documents do not count), computed at compile time. The card holds it
//! in `layout_hash`; a driver built against other tables refuses the card instead of misreading it.

use crate::layout::{Codes, Layout, Order};
use crate::register::{REGISTERS, Register};
use crate::{command, context, doorbell, opcode, pcie, reject, ring, trace, verbs, wire};

/// Every structure between driver and card, and every header.
pub const LAYOUTS: &[Layout] = &[
    ring::Sge::LAYOUT,
    ring::SendWqe::LAYOUT,
    ring::AtomicOperands::LAYOUT,
    ring::Cqe::LAYOUT,
    ring::Eqe::LAYOUT,
    doorbell::SqDoorbell::LAYOUT,
    doorbell::RqDoorbell::LAYOUT,
    doorbell::CqDoorbell::LAYOUT,
    doorbell::EqDoorbell::LAYOUT,
    context::QpRights::LAYOUT,
    context::QpPath::LAYOUT,
    context::QpQueues::LAYOUT,
    context::QpAddresses::LAYOUT,
    context::MrEntry::LAYOUT,
    context::CqEntry::LAYOUT,
    context::EqEntry::LAYOUT,
    context::PortConfig::LAYOUT,
    command::CommandEntry::LAYOUT,
    command::CommandResponse::LAYOUT,
    trace::TraceEntry::LAYOUT,
    wire::EthernetHeader::LAYOUT,
    wire::VlanTag::LAYOUT,
    wire::Ipv4Header::LAYOUT,
    wire::Ipv6Header::LAYOUT,
    wire::UdpHeader::LAYOUT,
    wire::Bth::LAYOUT,
    wire::Deth::LAYOUT,
    wire::Reth::LAYOUT,
    wire::AtomicEth::LAYOUT,
    wire::Aeth::LAYOUT,
    wire::AtomicAckEth::LAYOUT,
    wire::ImmDt::LAYOUT,
    wire::Ieth::LAYOUT,
    pcie::TlpMemoryHeader::LAYOUT,
    pcie::TlpCompletionHeader::LAYOUT,
];

/// Every code table.
pub const CODES: &[Codes] = &[
    verbs::WrOpcode::TABLE,
    verbs::WcOpcode::TABLE,
    verbs::WcStatus::TABLE,
    verbs::AsyncEvent::TABLE,
    verbs::PathMtu::TABLE,
    verbs::Transport::TABLE,
    verbs::QpState::TABLE,
    ring::EventKind::TABLE,
    command::CommandOpcode::TABLE,
    command::CommandStatus::TABLE,
    opcode::Opcode::TABLE,
    wire::SyndromeType::TABLE,
    wire::NakCode::TABLE,
    pcie::CompletionStatus::TABLE,
    reject::Stage::TABLE,
    reject::Reject::TABLE,
    reject::StageCounter::TABLE,
    trace::TraceEvent::TABLE,
];

const fn byte(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
}

const fn number(mut hash: u64, value: u32) -> u64 {
    let bytes = value.to_le_bytes();
    let mut i = 0;
    while i < 4 {
        hash = byte(hash, bytes[i]);
        i += 1;
    }
    hash
}

const fn text(mut hash: u64, text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = byte(hash, bytes[i]);
        i += 1;
    }
    byte(hash, 0)
}

/// The hash of any set of tables: what [`LAYOUT_HASH`] is for this crate's.
pub const fn hash(layouts: &[Layout], codes: &[Codes], registers: &[Register]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut i = 0;
    while i < layouts.len() {
        let layout = &layouts[i];
        hash = number(text(hash, layout.name), layout.bytes as u32);
        hash = byte(hash, matches!(layout.order, Order::Network) as u8);
        let mut j = 0;
        while j < layout.fields.len() {
            let field = &layout.fields[j];
            hash = number(number(text(hash, field.name), field.lsb), field.width);
            j += 1;
        }
        i += 1;
    }
    let mut i = 0;
    while i < codes.len() {
        hash = text(hash, codes[i].name);
        let mut j = 0;
        while j < codes[i].rows.len() {
            hash = byte(text(hash, codes[i].rows[j].name), codes[i].rows[j].value);
            j += 1;
        }
        i += 1;
    }
    let mut i = 0;
    while i < registers.len() {
        let register = &registers[i];
        hash = number(number(text(hash, register.name), register.offset), register.width);
        hash = byte(number(hash, register.count), register.access as u8);
        i += 1;
    }
    hash
}

/// What `layout_hash` reads on a card of this contract.
pub const LAYOUT_HASH: u64 = hash(LAYOUTS, CODES, REGISTERS);
