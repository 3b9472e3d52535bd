//! The PCI Express side: TLPs in and out, reads, writes, BARs, MSI-X.
