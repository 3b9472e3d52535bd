//! What the card and its software must agree on: one definition each, used by RTL, driver, simulator and documents.
//!
//! Picture: tables (`layout!`, `wire!`, `codes!`, the register list) > Rust structs with `pack`/`unpack` > with the
//! feature `hdl` the same fields as hardware signals > a documentation table > one layout hash in BAR0.
//! In: bytes or typed fields. Out: the other of the two. Everything is total: no byte pattern panics, values wider
//! than their field are cut to it, holes are written as zero and ignored when read. `no_std`, no allocation (but
//! for the hardware views, which live only at elaboration), no state.
//! Never here: behaviour. What a stage does with a field stands in the stage.
#![no_std]

#[cfg(feature = "hdl")]
#[doc(hidden)]
pub extern crate alloc;
#[cfg(feature = "hdl")]
#[doc(hidden)]
pub use hdl;

pub mod layout;
pub mod verbs;
pub mod opcode;
pub mod wire;
pub mod crc;
pub mod timer;
pub mod pcie;
pub mod ring;
pub mod doorbell;
pub mod context;
pub mod command;
pub mod reject;
pub mod register;
pub mod trace;
pub mod flash;
pub mod target;
pub mod hash;
pub mod doc;

pub use command::{CommandEntry, CommandOpcode, CommandResponse, CommandStatus};
pub use context::{
    CqEntry, EqEntry, MrEntry, PortConfig, QpAddresses, QpContext, QpPath, QpQueues, QpRights,
};
pub use doorbell::{CqDoorbell, EqDoorbell, RqDoorbell, SqDoorbell};
pub use hash::LAYOUT_HASH;
pub use opcode::Opcode;
pub use reject::{Reject, Stage, StageCounter};
pub use ring::{AtomicOperands, Cqe, Eqe, EventKind, SendWqe, Sge};
pub use trace::{TraceEntry, TraceEvent};
pub use verbs::{AsyncEvent, PathMtu, QpState, Transport, WcOpcode, WcStatus, WrOpcode};
pub use wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, EthernetHeader, Ieth, ImmDt, Ipv4Header, Ipv6Header, Reth,
    Syndrome, UdpHeader, VlanTag,
};
