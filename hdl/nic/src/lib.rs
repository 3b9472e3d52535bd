//! The RTL of the Verbena card.
//!
//! ```text
//! transmit   doorbell > schedule > fetch > segment > gather > packetise > mac          (replay re-enters at schedule)
//! receive    mac > parse > verify > check > place > complete > notify                  (respond, acknowledge branch at check)
//! ```
//! Stages are verbs, state is nouns; `mod` lines stand in flow order. [`flow`] holds what travels between stages,
//! [`qp`] the state words and who writes them, [`config`] every size. [`shims`] is the edge to hard blocks, [`boards`] the
//! tops between the pins.

pub mod config;
pub mod flow;
pub mod qp;
pub mod table;
pub mod mr;
pub mod command;
pub mod csr;
pub mod trace;
pub mod flash;
pub mod tx;
pub mod rx;
pub mod pcie;
pub mod mac;
pub mod prim;
pub mod nic;
pub mod standalone;
pub mod shims;
pub mod boards;

pub use config::Config;
