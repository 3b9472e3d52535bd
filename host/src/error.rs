//! Every error of the driver: operation, object, remedy. [`Kind`] groups them for a command's exit code.

use contract::{CommandOpcode, CommandStatus, QpState};
use std::io;
use std::path::PathBuf;

/// The driver's result.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing to open.
    #[error(
        "find a card: none ({looked}); start `verbena sim`, bind a card to vfio-pci, or set VERBENA_DEVICE"
    )]
    NoCard {
        /// Where the driver looked.
        looked: String,
    },
    /// A device address that means nothing.
    #[error("device `{text}`: unknown form; write sim:card0 or vfio:0000:01:00.0")]
    BadAddress {
        /// The text given.
        text: String,
    },
    /// The socket or device file did not open.
    #[error("open {name} at {}: {source}; {remedy}", path.display())]
    Open {
        /// The card.
        name: String,
        /// Socket or device file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// An access through the backend failed.
    #[error("{name}: {operation}: {source}")]
    Backend {
        /// The card.
        name: String,
        /// What was tried.
        operation: String,
        /// The backend's answer.
        source: io::Error,
    },
    /// The PCI function is another device.
    #[error("{name}: PCI ID {vendor:04x}:{device:04x} is not a Verbena card (1ee7:0001)")]
    NotOurs {
        /// The card.
        name: String,
        /// PCI vendor.
        vendor: u16,
        /// PCI device.
        device: u16,
    },
    /// The card went while it was open, or is not there.
    #[error("{name}: {operation}: {how}")]
    Gone {
        /// The card.
        name: String,
        /// The call.
        operation: &'static str,
        /// How it went.
        how: crate::Departure,
    },
    /// BAR0 does not begin with the magic number.
    #[error(
        "{name}: BAR0 begins with {found:#010x}, not with \"VRBN\"; the bitstream is no Verbena card or not running"
    )]
    Magic {
        /// The card.
        name: String,
        /// What was read.
        found: u32,
    },
    /// The contract version does not fit.
    #[error("{name}: card has contract {}.{}, driver needs {}.{} or a later minor; use matching bitstream and driver",
        card >> 16, card & 0xffff, driver >> 16, driver & 0xffff)]
    Version {
        /// The card.
        name: String,
        /// The card's version.
        card: u32,
        /// The driver's version.
        driver: u32,
    },
    /// The tables differ.
    #[error(
        "{name}: card has layout {card:016x}, driver has {driver:016x}: built from different tables; use matching bitstream and driver"
    )]
    Layout {
        /// The card.
        name: String,
        /// The card's layout hash.
        card: u64,
        /// The driver's layout hash.
        driver: u64,
    },
    /// A self-description register holds an impossible value.
    #[error("{name}: register {register} reads {value}, which cannot be; the card is not running correctly")]
    BadRegister {
        /// The card.
        name: String,
        /// Register.
        register: &'static str,
        /// What was read.
        value: u64,
    },
    /// The card did not answer a command.
    #[error("{name}: {} on object {object}: no response within {waited_ms} ms; close and open the card again", opcode.name())]
    CommandTimeout {
        /// The card.
        name: String,
        /// The command.
        opcode: CommandOpcode,
        /// Object number.
        object: u32,
        /// How long the driver waited.
        waited_ms: u128,
    },
    /// An earlier command was never answered.
    #[error("{name}: {} on object {object}: an earlier command was never answered; close and open the card again", opcode.name())]
    CommandQueueDead {
        /// The card.
        name: String,
        /// The command.
        opcode: CommandOpcode,
        /// Object number.
        object: u32,
    },
    /// The card refused a command.
    #[error("{name}: {} on object {object}: {} ({})", opcode.name(), status.name(), status.doc())]
    CommandRefused {
        /// The card.
        name: String,
        /// The command.
        opcode: CommandOpcode,
        /// Object number.
        object: u32,
        /// Why.
        status: CommandStatus,
    },
    /// The card answered something that no card answers.
    #[error("{name}: {} on object {object}: the response makes no sense ({what}); close and open the card again", opcode.name())]
    CommandGarbled {
        /// The card.
        name: String,
        /// The command.
        opcode: CommandOpcode,
        /// Object number.
        object: u32,
        /// What is wrong.
        what: String,
    },
    /// All objects of a kind are in use.
    #[error("{name}: create {object}: all {limit} are in use; destroy one first")]
    Exhausted {
        /// The card.
        name: String,
        /// Kind of object.
        object: &'static str,
        /// How many there are.
        limit: u32,
    },
    /// A parameter is out of range.
    #[error("{operation}: {what} = {value} is out of range; allowed: {allowed}")]
    Range {
        /// The call.
        operation: &'static str,
        /// The parameter.
        what: &'static str,
        /// The value given.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// The card lacks a feature.
    #[error("{operation}: this card does not support {what}")]
    Unsupported {
        /// The call.
        operation: &'static str,
        /// The feature.
        what: &'static str,
    },
    /// The range is not mapped in this process.
    #[error(
        "register {length} bytes at {address:#x}: not mapped in this process; register memory that exists and is not freed"
    )]
    NotMapped {
        /// First address.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// The IO address space is full.
    #[error("{name}: no {length} contiguous bytes of IO address space left; deregister memory")]
    NoIova {
        /// The card.
        name: String,
        /// Bytes wanted.
        length: u64,
    },
    /// The system refused memory or a descriptor.
    #[error("{operation}: {source}")]
    System {
        /// The call.
        operation: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// An access leaves its memory region.
    #[error("{operation}: bytes {start}..{end} leave the region of {length} bytes")]
    OutOfBounds {
        /// The call.
        operation: &'static str,
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// Length of the region.
        length: u64,
    },
    /// Objects that do not belong together.
    #[error("{operation}: {what} belongs to another context; use objects of one context")]
    Foreign {
        /// The call.
        operation: &'static str,
        /// The object.
        what: &'static str,
    },
    /// A posted list does not fit.
    #[error(
        "{operation} on QP {qpn}: {wanted} work requests, {free} of {depth} places free; poll the CQ first; nothing was posted"
    )]
    QueueFull {
        /// The call.
        operation: &'static str,
        /// The QP.
        qpn: u32,
        /// Work requests given.
        wanted: usize,
        /// Places free.
        free: u32,
        /// Places in all.
        depth: u32,
    },
    /// The QP's state does not allow the call.
    #[error("{operation} on QP {qpn}: not allowed in state {}", state.name())]
    State {
        /// The call.
        operation: &'static str,
        /// The QP.
        qpn: u32,
        /// Its state.
        state: QpState,
    },
    /// No such transition.
    #[error("modify QP {qpn}: {} to {} is no transition of this transport", from.name(), to.name())]
    Transition {
        /// The QP.
        qpn: u32,
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
    },
    /// The attribute mask does not fit the transition.
    #[error("modify QP {qpn}: {} to {}: missing {missing:?}, not allowed {excess:?}; nothing was changed", from.name(), to.name())]
    Attributes {
        /// The QP.
        qpn: u32,
        /// Present state.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// Required attributes that were not given.
        missing: crate::AttrMask,
        /// Attributes given that this transition does not take.
        excess: crate::AttrMask,
    },
    /// Nobody knows the MAC address of a GID.
    #[error(
        "address {gid}: no MAC address known; add it to the neighbour table (VERBENA_NEIGHBOURS=ip=mac,...)"
    )]
    NoNeighbour {
        /// The GID.
        gid: crate::Gid,
    },
    /// Nobody has answered for a GID.
    #[error(
        "address {gid}: nobody answered {tries} questions in {waited_ms} ms; is it up and on this link? else add it to the neighbour table (VERBENA_NEIGHBOURS=ip=mac,...)"
    )]
    NoAnswer {
        /// The GID.
        gid: crate::Gid,
        /// How often it was asked for.
        tries: u32,
        /// How long in all.
        waited_ms: u128,
    },
    /// This port has no address from which a GID can be reached.
    #[error("address {gid}: this port has no address on its link; add one (verbena ip add ADDRESS/PREFIX)")]
    NoRoute {
        /// The GID.
        gid: crate::Gid,
    },
    /// A CQE that no posted work request explains.
    #[error(
        "{name}: CQ {cqn}: completion for WQE {index} of QP {qpn}, which is not outstanding; close and open the card again"
    )]
    StrayCompletion {
        /// The card.
        name: String,
        /// The CQ.
        cqn: u32,
        /// The QP named.
        qpn: u32,
        /// The WQE named.
        index: u16,
    },
    /// The CQ lost entries.
    #[error("CQ {cqn} overflowed: completions are lost; destroy it and its QPs, and create it deeper")]
    CqOverflow {
        /// The CQ.
        cqn: u32,
    },
    /// The process is a forked child.
    #[error(
        "{operation}: this is a forked child, the parent keeps the card; open a card of its own in the child"
    )]
    Forked {
        /// The call.
        operation: &'static str,
    },
    /// What only one thread may do is done by another.
    #[error("{operation}: another thread does already; end that one first")]
    Taken {
        /// The call.
        operation: &'static str,
    },
    /// The context was closed.
    #[error("{operation}: the context is closed")]
    Closed {
        /// The call.
        operation: &'static str,
    },
    /// The peer's line of connection data is malformed.
    #[error("exchange connection data with {peer}: {what}")]
    Exchange {
        /// The peer.
        peer: String,
        /// What is wrong.
        what: String,
    },
}

/// What an error means for the caller's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No card, or no permission (exit code 3).
    NoCard,
    /// Card and driver do not fit each other (exit code 4).
    Mismatch,
    /// Anything else (exit code 1).
    Failed,
}

impl Error {
    /// The group.
    pub fn kind(&self) -> Kind {
        match self {
            Error::NoCard { .. } | Error::Open { .. } | Error::NotOurs { .. } | Error::Gone { .. } => {
                Kind::NoCard
            }
            Error::Magic { .. } | Error::Version { .. } | Error::Layout { .. } => Kind::Mismatch,
            _ => Kind::Failed,
        }
    }
}
