//! The simulated machine room: clock, cards, wires, stories, vfio-user server, captures.
//!
//! ```text
//! story | vfio-user client > room > card 0: root complex <TLP beats> Verilated RTL <XGMII> wire <XGMII> RTL <> root
//! ```
//!
//! Everything here is sans-IO and runs in simulated time.

pub mod capture;
pub mod card;
mod error;
pub mod memory;
pub mod room;
pub mod wire;

pub use error::Error;
