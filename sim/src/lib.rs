//! The simulated machine room: clock, cards, wires, stories, vfio-user server, captures.
//!
//! ```text
//! story | vfio-user client > room > card 0: root complex <TLP beats> Verilated RTL <XGMII, CMAC> wire <> RTL <> root
//! ```
//!
//! Everything here is sans-IO and runs in simulated time, except [`server`] and the JTAG cable of [`ecp5`], which serve other
//! processes.

pub mod backend;
pub mod capture;
pub mod card;
pub mod ecp5;
mod error;
pub mod function;
pub mod memory;
pub mod nor;
pub mod room;
pub mod server;
pub mod story;
pub mod target;
pub mod wire;

pub use error::Error;
