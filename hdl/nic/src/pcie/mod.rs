//! The PCI Express side: TLPs in and out, reads, writes, BARs, MSI-X.

pub mod bar;
pub mod completion_room;
pub mod header;
pub mod msix;
pub mod read;
pub mod tags;
pub mod transmit;
pub mod write;
