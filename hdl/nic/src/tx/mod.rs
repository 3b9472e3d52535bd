//! Transmit: doorbell > schedule > fetch > segment > gather > packetise.
pub mod packetise;
