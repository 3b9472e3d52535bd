//! Primitives: nothing here knows what a packet is.

pub mod fifo;
pub mod async_fifo;
pub mod crc;
