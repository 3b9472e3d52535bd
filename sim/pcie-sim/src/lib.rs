//! PCI Express as the card sees it: root complex, IOMMU, host memory, TLP rules, faults
