//! The userspace driver of the Verbena card.
//!
//! ```text
//! program > Context > Pd, Mr, Cq, CompChannel, Qp > rings in DMA memory > doorbells
//!                                                        |                   |
//!                                                   Backend (vfio-user socket | kernel VFIO | in-process simulation)
//! ```
//!
//! In: verbs-shaped calls. Out: the card's registers, doorbells, commands and rings, exactly as the crate `contract`
//! defines them; the driver cannot tell a simulated card from a board. Latency: `post_send` writes one WQE and one
//! doorbell, [`Cq::poll`] reads host memory only; everything else is one command with a bounded wait. Back-pressure:
//! a full queue is an error before anything is written. It never hands out `&mut [u8]` to memory that the card may
//! write, never blocks in `post` or `poll` on a healthy QP, never waits without a bound for the card, and never uses
//! the card in a forked child.
//!
//! ```no_run
//! use host::{Access, Context, DeviceAddress, QpInit, SendWr};
//! # fn main() -> Result<(), host::Error> {
//! let context = Context::open(&DeviceAddress::first()?)?;
//! let pd = context.alloc_pd()?;
//! let memory = pd.allocate(4096, Access::LOCAL_WRITE)?;
//! let cq = context.create_cq(64, None)?;
//! let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
//! // ... exchange QPN, PSN and GID with the peer, move the QP to RTS ...
//! memory.write(0, b"hello")?;
//! qp.post_send(&[SendWr::send(1, &[memory.sge(0..5)?]).signaled()])?;
//! # Ok(())
//! # }
//! ```

pub mod address;
pub mod backend;
mod barrier;
mod command;
mod context;
mod cq;
mod device;
mod dma;
mod error;
mod event;
pub mod exchange;
pub mod flash;
mod mr;
pub mod net;
mod presence;
pub mod qp;
mod ranges;
pub mod trace;

pub use address::{Gid, Mac, Neighbours, StaticNeighbours};
pub use backend::{Backend, Bar, MappedBar, Memory};
pub use context::{Context, GidEntry, MAX_GIDS, Options};
pub use contract::verbs::{AsyncEvent, PathMtu, QpState, Transport, WcOpcode, WcStatus};
pub use contract::{Reject, StageCounter};
pub use cq::{Completion, Cq};
pub use device::{Atomicity, Attributes, Device, DeviceAddress, PCI_ID, PortAttributes, run_directory};
pub use error::{Error, Kind, Result};
pub use event::{AsyncNotice, CompChannel, CqEvent};
pub use mr::{Access, Mr, Pd, Registrable};
pub use net::{Ip, IpNet, OwnAddress, OwnAddresses};
pub use presence::Departure;
pub use qp::{AddressVector, AttrMask, Operation, Qp, QpAttr, QpInit, RecvWr, SendWr, Sge};
