//! A plain-Rust reference RoCE endpoint: the oracle that the card's RTL is held against.
//!
//! Picture: frames in > [`Packet`] > responder or requester of a QP > frames out, completions, memory. Sans-IO: the
//! caller owns the wire and the clock. Time is an argument in picoseconds and never runs backwards; there is no
//! randomness; the same calls give the same frames. Written from the transport's rules and from captures of kernel
//! peers, not from the RTL.
//!
//! In: frames without FCS, work requests, the time. Out: at most one frame per [`Endpoint::poll_transmit`]; completions
//! in the order of the verbs; the next time at which something is due. Latency: none, an answer is ready as soon as
//! the request is in. Back-pressure: the caller's, a frame not polled waits. It never panics on a frame, never answers
//! a frame that the transport drops silently, and counts every drop by its [`Reject`](contract::Reject).
//!
//! It speaks all of RC over IPv4 and IPv6, with and without a VLAN tag: SEND and WRITE with and without immediate, SEND
//! with invalidate, READ, compare and swap, fetch and add, local invalidate, fences, solicited events. Not UC, UD, XRC,
//! FLUSH, ATOMIC WRITE, path migration, flow control by credits.
//!
//! ```
//! use peer::{Address, Endpoint, Landing, QpParams, RecvWr, SendOp, SendWr};
//!
//! let mut a = Endpoint::new(0x0200_0000_000a, [10, 0, 0, 1].into());
//! let mut b = Endpoint::new(0x0200_0000_000b, [10, 0, 0, 2].into());
//! let (qa, qb) = (a.create_qp(1), b.create_qp(1));
//! a.connect(qa, QpParams::to(b.address(qb)))?;
//! b.connect(qb, QpParams::to(a.address(qa)))?;
//! b.post_recv(qb, RecvWr { wr_id: 7, landing: Landing::Owned(64) })?;
//! a.post_send(qa, SendWr::new(8, SendOp::Send { imm: None }, b"hello".to_vec()))?;
//! while let Some(frame) = a.poll_transmit(0).or_else(|| b.poll_transmit(0)) {
//!     a.receive(0, &frame);
//!     b.receive(0, &frame);
//! }
//! assert_eq!(b.poll_cq().expect("received").data, b"hello");
//! assert_eq!(a.poll_cq().expect("sent").wr_id, 8);
//! # Ok::<(), peer::Error>(())
//! ```

pub mod packet;
pub mod memory;
mod qp;
mod requester;
mod responder;
mod endpoint;

pub use endpoint::{Endpoint, Error, Event};
pub use memory::Region;
pub use packet::Packet;
pub use qp::{Address, Completion, Landing, QpParams, RecvWr, SendOp, SendWr, Sge, Tuning, Vlan};

/// Picoseconds since any moment; never runs backwards.
pub type Time = u64;

/// Picoseconds per nanosecond.
pub const NANOSECOND: Time = 1000;
