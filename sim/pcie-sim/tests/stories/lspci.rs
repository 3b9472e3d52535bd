//! `lspci` decodes the configuration space: an independent reader.

use crate::desk::*;
use std::{io::ErrorKind, process::Command};

#[test]
fn lspci_reads_the_same_device() {
    let d = Desk::new(config(), 1);
    let path = std::env::temp_dir().join(format!("pcie-sim-lspci-{}", std::process::id()));
    std::fs::write(&path, d.rc.config_space().dump()).unwrap();
    let output = Command::new("lspci").arg("-F").arg(&path).args(["-vvv", "-nn"]).output();
    std::fs::remove_file(&path).unwrap();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("not checked: lspci is not installed (package pciutils)");
            return;
        }
        other => other.unwrap(),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    for wanted in [
        "01:00.0 Ethernet controller [0200]",
        "[1ee7:0001]",
        "BusMaster+",
        "Mem+",
        "(64-bit, non-prefetchable)",
        "(64-bit, prefetchable)",
        "Power Management version 3",
        "Express (v2) Endpoint",
        "MaxPayload 512 bytes",
        "ExtTag+",
        "FLReset+",
        "MaxPayload 256 bytes, MaxReadReq 4096 bytes",
        "RCB 64 bytes",
        "Speed 8GT/s, Width x8",
        "Completion Timeout: Range ABC,",
        "MSI-X: Enable- Count=32 Masked-",
        "Vector table: BAR=4 offset=00000000",
        "PBA: BAR=4 offset=00008000",
        "Capabilities: [100 v2] Advanced Error Reporting",
    ] {
        assert!(text.contains(wanted), "lspci does not say {wanted:?}:\n{text}");
    }
}
