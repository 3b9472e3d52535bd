//! PCI Express as the card sees it: a root complex, an IOMMU, host memory, a configuration space, and a judge.
//!
//! ```text
//!            rq: memory writes, reads, AtomicOps     ┌─────────────── RootComplex ───────────────┐
//!          ─────────── card_sends ──────────────────▶│ uplink ▶ ordering ▶ Iommu ▶ Backing        │
//!   card     rc: completions                         │                   └▶ MSI-X events           │
//!  (RTL)   ◀────────── poll_rc ──────────────────────│ downlink ◀ splits, order, injected faults   │◀ host
//!            cq: reads and writes of BARs            │                                           │  mmio_*,
//!          ◀────────── poll_cq ──────────────────────│ downlink ◀ mmio_write, mmio_read           │  config_*
//!            cc: their completions                   │                                           │
//!          ─────────── card_sends ──────────────────▶│ ▶ take_read                               │
//!                                                    └── Judge sees every TLP, both ways ────────┘
//! ```
//!
//! What comes in: whole TLPs of the card ([`RawTlp`]) and the host's accesses, each with the time [`Time`] at which it
//! happens. What goes out: TLPs to the card when they have arrived, [`Event`]s in the order in which the host sees
//! them, a list of [`Violation`]s, and on request a log of every TLP.
//!
//! The promise: sans-IO and deterministic. Time is an argument (picoseconds, never going back), randomness is a seed,
//! nothing sleeps, nothing reads a clock. The same calls give the same answers. No input panics: a TLP that cannot be
//! understood is judged and dropped. Nothing is scanned while idle: a TLP costs O(log n) of what is in flight.
//!
//! It never knows the card's RTL: the codec is written from the rules of PCI Express alone, so that it judges the
//! card instead of agreeing with it.
//!
//! ```
//! use pcie_sim::{Iommu, Permissions, RootComplex, RootConfig, SparseMemory, Time, Tlp, tlp::MemRead};
//! use std::sync::Arc;
//!
//! let memory = Arc::new(SparseMemory::new());
//! memory.put(0x40, b"verbena!");
//! let mut config = RootConfig::default();
//! config.enumeration.bus_master = true;
//! let mut rc = RootComplex::new(config, 1, Iommu::new())?;
//! rc.memory_mut().map(0x1_0000_0000, 4096, Permissions::BOTH, memory, 0)?;
//!
//! // The card reads eight bytes with tag 5.
//! let id = rc.sideband().requester;
//! rc.card_sends(Time::ZERO, Tlp::MemRead(MemRead::bytes(id, 5, 0x1_0000_0040, 8)).emit());
//! while rc.card_outstanding() > 0 {
//!     let now = rc.next_event().ok_or("the read is still under way")?;
//!     if let Some(completion) = rc.poll_rc(now) {
//!         assert_eq!(completion.payload, b"verbena!");
//!         assert!(now > Time::ns(900));
//!     }
//! }
//! assert!(rc.quiet() && rc.violations().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod time;
pub mod tlp;
pub mod memory;
pub mod config;
pub mod judge;
pub mod link;
pub mod inject;
pub mod log;
pub mod root;

pub use config::{ConfigSpace, EndpointConfig, Sideband};
pub use inject::{Fault as InjectedFault, Injection, Piece, Select};
pub use judge::{Judge, Verdict, Violation};
pub use link::{CompletionOrder, CompletionSplit, Credits, Kind, LinkConfig};
pub use log::{Direction, Stream, TlpRecord};
pub use memory::{Access, Backing, Fault, HostMemory, Iommu, Permissions, SparseMemory};
pub use root::{CqTlp, Event, ReadError, ReadToken, RootComplex, RootConfig};
pub use time::Time;
pub use tlp::{Attributes, RawTlp, Status, Tlp, TlpError};
