//! Tops of boards: that they are made of what the constraints say, and what stands beside the CMAC's frames.
//!
//! Requirements: LINE PCIE

mod common;

use common::lint;
use hdl::{Bits, Interpreter, Style, elaborate};
use nic::Config;
use nic::boards::{alveo_u55c::AlveoU55c, cell, us_pcie_bench::UsPcieBench};
use nic::pcie::msix::PBA_OFFSET;
use nic::shims::us_cmac::UsCmac;

#[test]
fn the_top_of_alveo_u55c_holds_the_card_and_every_hard_block() {
    let design = elaborate(&AlveoU55c).unwrap();
    let files = design.files(Style::default());
    let (name, top) = files.last().unwrap();
    assert_eq!(name, "alveo_u55c");
    for block in cell::ALL {
        assert!(top.contains(&format!("  {} ", block.name)), "{}", block.name);
        assert!(!files.iter().any(|(name, _)| name == block.name), "{} is not ours to emit", block.name);
    }
    assert!(top.contains("assign hbm_cattrip = 1'h0;"), "the card would be switched off");
}

#[test]
fn a_stub_has_the_pins_of_its_cell() {
    let stub = cell::IBUFDS_GTE4.stub();
    let pins = ["I", "IB", "CEB"].map(|pin| format!("  input wire {pin}"));
    assert!(pins.iter().all(|pin| stub.contains(pin)), "{stub}");
    assert!(cell::PCIE4C.stub().contains("  output wire [182:0] m_axis_cq_tuser"));
}

#[test]
fn the_first_load_puts_the_image_where_the_driver_looks_for_it() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../constraints/alveo-u55c/");
    let text = |file: &str| std::fs::read_to_string(format!("{path}{file}")).unwrap();
    let flash = contract::flash::ALVEO_U55C;
    assert!(text("build.tcl").contains(&format!("-loadbit \"up {:#010x} verbena.bit\"", flash.image())));
    assert!(text("build.tcl").contains(&format!("-size {} ", flash.bytes >> 20)));
    assert!(text("board.toml").contains(&format!("part = \"{}\"", flash.part)));
}

/// A property of the core in `constraints/alveo-u55c/pcie4c.tcl`.
fn property(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../constraints/alveo-u55c/pcie4c.tcl");
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find(|line| line.trim().starts_with(&format!("CONFIG.{name} {{")));
    let line = line.unwrap_or_else(|| panic!("{name} is not set"));
    line.split(['{', '}']).nth(1).unwrap().to_owned()
}

#[test]
fn the_core_is_made_for_the_bars_and_vectors_of_the_card() {
    let c = Config::full();
    let kilobytes = |bar: u32| property(&format!("pf0_bar{bar}_size")).parse::<u32>().unwrap();
    assert_eq!(kilobytes(0) << 10, contract::register::BAR0_BYTES);
    assert_eq!(kilobytes(2) << 10, c.pages << c.log_doorbell_stride);
    assert!(kilobytes(4) << 10 >= PBA_OFFSET + 8);
    for bar in [0, 2, 4] {
        assert_eq!(property(&format!("pf0_bar{bar}_scale")), "Kilobytes");
        assert_eq!(property(&format!("pf0_bar{bar}_64bit")), "true");
    }
    let hex = |name: &str| u32::from_str_radix(&property(name), 16).unwrap();
    assert_eq!(hex("PF0_MSIX_CAP_TABLE_SIZE") + 1, c.vectors);
    assert_eq!(hex("PF0_MSIX_CAP_TABLE_OFFSET"), 0);
    assert_eq!(hex("PF0_MSIX_CAP_PBA_OFFSET"), PBA_OFFSET);
    assert_eq!((hex("vendor_id"), hex("PF0_DEVICE_ID")), (0x1ee7, 1));
    // what the shim relies on
    assert_eq!(property("axisten_if_width"), "512_bit");
    assert_eq!(property("axisten_if_enable_client_tag"), "true");
    for (stream, on) in
        [("RQ", "false"), ("CQ", "false"), ("CC", "false"), ("RC", "true"), ("RC_4TLP", "false")]
    {
        assert_eq!(property(&format!("AXISTEN_IF_EXT_512_{stream}_STRADDLE")), on, "{stream}");
    }
}

#[test]
fn frames_go_only_while_the_receiver_is_aligned_and_remote_fault_goes_else() {
    let mut sim = Interpreter::new(&elaborate(&UsCmac(Config::full())).unwrap());
    let clocks = |sim: &mut Interpreter, n: u32| {
        for _ in 0..n {
            sim.step("rx_clock");
            sim.step("tx_clock");
        }
        (sim.peek("ctl_tx_enable"), sim.peek("ctl_tx_send_rfi"))
    };
    assert_eq!(clocks(&mut sim, 10), (0, 1));
    sim.poke("stat_rx_aligned", 1);
    assert_eq!(clocks(&mut sim, 1), (0, 1), "through two flops");
    assert_eq!(clocks(&mut sim, 1), (1, 0));
    sim.poke("usr_rx_reset", 1);
    assert_eq!(clocks(&mut sim, 4), (0, 1));
}

#[test]
fn a_frame_that_a_reset_of_the_receiver_cuts_off_ends_at_once_and_bad() {
    let mut sim = Interpreter::new(&elaborate(&UsCmac(Config::full())).unwrap());
    let mut got = vec![];
    // (reset, valid, last) of the CMAC, clock by clock
    let clocks = [
        (0, 1, 0),
        (0, 0, 0),
        (0, 1, 1), // whole
        (1, 0, 0), // between frames: nothing
        (0, 1, 0),
        (0, 1, 0),
        (1, 1, 0), // cut; what stands at the pins is not looked at
        (1, 1, 0),
        (1, 0, 0),
        (0, 1, 0), // the next
        (0, 1, 1),
    ];
    for (n, (reset, valid, last)) in clocks.into_iter().enumerate() {
        sim.poke("usr_rx_reset", reset);
        sim.poke("core_tvalid", valid);
        sim.poke("core_tlast", last);
        sim.poke("core_tkeep", u64::MAX);
        sim.poke_bits("core_tdata", &Bits::new(512, n as u128));
        if sim.peek("tvalid") == 1 {
            let lanes = sim.peek("tkeep").count_ones();
            got.push((n, sim.peek("tdata") as usize, lanes, sim.peek("tlast"), sim.peek("tuser")));
        }
        sim.step("rx_clock");
    }
    let want = [
        (0, 0, 64, 0, 0),
        (2, 2, 64, 1, 0),
        (4, 4, 64, 0, 0),
        (5, 5, 64, 0, 0),
        (6, 6, 1, 1, 1),
        (9, 9, 64, 0, 0),
        (10, 10, 64, 1, 0),
    ];
    assert_eq!(got, want);
    assert_eq!(sim.failures(), &[]);
}

#[test]
fn the_emitted_verilog_is_clean() {
    lint(&elaborate(&UsCmac(Config::full())).unwrap());
    lint(&elaborate(&UsPcieBench).unwrap());
}
