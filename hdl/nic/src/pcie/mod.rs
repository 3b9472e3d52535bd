//! The PCI Express side: TLPs in and out, reads, writes, BARs, MSI-X.

pub mod bar;
pub mod header;
pub mod msix;
pub mod read;
pub mod transmit;
pub mod write;
