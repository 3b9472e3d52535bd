//! Transmit: doorbell (> push) > schedule > fetch > segment > gather > packetise.
//!
//! Every turn of a QP passes schedule, fetch and segment once and ends in segment; one turn per QP is under way, so the
//! transmit side's own words stand still during it. Data leaves segment toward gather, responses leave it on a way of
//! their own: an acknowledgement never waits for a payload read.
//!
//! Measured over schedule, fetch and segment: one packet per 4 clocks across QPs; for one QP alone the first packet of a
//! turn costs 8 (it goes round: 2 clocks in schedule, 3 in fetch, 3 in segment), the others up to a KiB 4. The smallest
//! RoCE frame with payload lasts 11 beats of 8 bytes.

pub mod doorbell;
pub mod push;
pub mod schedule;
pub mod fetch;
pub mod wqe_windows;
pub mod segment;
pub mod read_list;
pub mod packetise;
pub mod gather;
pub mod transmit_buffer;
