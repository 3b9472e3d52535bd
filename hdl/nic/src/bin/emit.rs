//! Emits the card as SystemVerilog: `emit --config small --out DIR` writes one file per module into DIR, children
//! first in `files.f`, and nothing else there. `emit --board alveo-u55c --out DIR` does so with the top of a board, and
//! writes `stubs.v`: empty modules for its hard blocks, for tools that do not have them. `us-pcie-bench` is the PCIe part alone
//! and `ecp5-versa-bench` a board with a short reset, for co-simulation; `rgmii-loop` a MAC alone at the pins of an ECP5, `target` an endpoint
//! without pins.

use hdl::{Style, elaborate};
use nic::{
    Config,
    boards::{
        alveo_u55c::AlveoU55c,
        cell,
        ecp5_versa::{Ecp5Versa, LOG_RESET},
        rgmii_loop::RgmiiLoop,
        us_pcie_bench::UsPcieBench,
    },
    nic::Nic,
    standalone::Target,
};
use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: emit --config small|full --out DIR, or emit --board alveo-u55c|us-pcie-bench|ecp5-versa|ecp5-versa-bench|rgmii-loop|target --out DIR";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), String> {
    let mut config = Config::small();
    let (mut out, mut board) = (None, String::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().ok_or_else(|| format!("{arg} wants a value; {USAGE}"))?;
        match arg.as_str() {
            "--config" => {
                config =
                    Config::by_name(&value).ok_or_else(|| format!("no configuration `{value}`; {USAGE}"))?;
            }
            "--board" => board = value,
            "--out" => out = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown argument {arg}; {USAGE}")),
        }
    }
    let out = out.ok_or(USAGE)?;
    let design = match board.as_str() {
        "" => elaborate(&Nic(config)),
        "alveo-u55c" => elaborate(&AlveoU55c),
        "us-pcie-bench" => elaborate(&UsPcieBench),
        "target" => elaborate(&Target(Config::target())),
        "rgmii-loop" => elaborate(&RgmiiLoop),
        "ecp5-versa" => elaborate(&Ecp5Versa { log_reset: LOG_RESET }),
        "ecp5-versa-bench" => elaborate(&Ecp5Versa { log_reset: 8 }),
        other => return Err(format!("no board `{other}`; {USAGE}")),
    };
    let design = design.map_err(|e| e.to_string())?;
    let fail = |what: &str, e: std::io::Error| format!("{what} {}: {e}", out.display());
    if out.exists() {
        std::fs::remove_dir_all(&out).map_err(|e| fail("clear", e))?;
    }
    std::fs::create_dir_all(&out).map_err(|e| fail("create", e))?;
    let mut list = String::new();
    for (name, text) in design.files(Style::default()) {
        std::fs::write(out.join(format!("{name}.sv")), text).map_err(|e| fail("write into", e))?;
        list.push_str(&format!("{name}.sv\n"));
    }
    if board == "alveo-u55c" {
        let stubs: Vec<String> = cell::ALL.iter().map(cell::Cell::stub).collect();
        std::fs::write(out.join("stubs.v"), stubs.join("\n")).map_err(|e| fail("write into", e))?;
    }
    std::fs::write(out.join("files.f"), list).map_err(|e| fail("write into", e))?;
    println!("{} modules of `{}` in {}", design.files(Style::default()).len(), design.top(), out.display());
    Ok(())
}
