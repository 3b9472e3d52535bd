//! Transmit: doorbell > schedule > fetch > segment > gather > packetise.
//!
//! Every turn of a QP passes schedule, fetch and segment once and ends in segment; one turn per QP is under way, so the
//! transmit side's own words stand still during it. Data leaves segment toward gather, responses leave it on a way of
//! their own: an acknowledgement never waits for a payload read.

pub mod fetch;
pub mod segment;
