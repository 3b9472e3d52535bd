//! Primitives: nothing here knows what a packet is.

pub mod fifo;
pub mod flags;
pub mod later;
pub mod block_fifo;
pub mod async_fifo;
pub mod merge;
pub mod pick;
pub mod sum;
pub mod crc;
