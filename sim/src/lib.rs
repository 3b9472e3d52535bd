//! The simulated machine room: clock, cards, wires, stories, vfio-user server, captures

pub mod capture;
pub mod wire;
