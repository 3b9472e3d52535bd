//! Figures: what was measured, its bound, the bar it should reach, what others reach.
//!
//! ```text
//! jobs > Figure > a row of the table | an entry of target/bench.json | committed: docs/bench/figures.json, table.md
//! ```
//! In: figures. Out: their text in each form, and the ids whose committed entry is another. Committed are the figures
//! that are the same on every machine; those of the machine's clock or of the compiler are not ([`Figure::is_exact`]).

use serde_json::Value;
use std::path::Path;

/// Something measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its name.
    pub id: String,
    /// What was measured.
    pub value: f64,
    /// Of what.
    pub unit: String,
    /// What no card can pass, or what it should not pass: see the file that measures it. 0: none is known.
    pub bound: f64,
    /// Under which conditions.
    pub context: String,
}

/// What a figure should reach.
enum Bar {
    /// So many per cent of its bound.
    Share(f64),
    /// So many points below its bound at most.
    Points(f64),
    AtLeast(f64),
    AtMost(f64),
}

const BARS: &[(&str, Bar)] = &[
    ("goodput_4096", Bar::Share(97.0)),
    ("goodput_4096_offset64", Bar::Share(97.0)),
    ("goodput_1024", Bar::Share(95.0)),
    ("goodput_1024_offset64", Bar::Share(95.0)),
    ("goodput_256", Bar::Share(92.0)),
    ("goodput_256_offset64", Bar::Share(92.0)),
    ("bidir_4096", Bar::Share(95.0)),
    ("read_goodput_4096", Bar::Share(95.0)),
    ("rate_write_64", Bar::AtLeast(45.0)),
    ("rate_write_64_1qp", Bar::AtLeast(20.0)),
    ("rx_to_mwr_64", Bar::AtMost(40.0)),
    ("rx_to_ack_64", Bar::AtMost(40.0)),
    ("doorbell_to_wire_64", Bar::AtMost(514.0)),
    ("push_to_wire_64", Bar::AtMost(40.0)),
    ("dma_write_share", Bar::AtLeast(97.0)),
    ("dma_read_share", Bar::AtLeast(95.0)),
    ("loss_0p1", Bar::Points(3.0)),
    ("loss_0p1_10us", Bar::Points(3.0)),
    ("loss_1", Bar::Points(3.0)),
    ("loss_1_10us", Bar::Points(3.0)),
    ("loss_5", Bar::Share(85.0)),
    ("loss_5_10us", Bar::Share(85.0)),
    ("sim_kcycles_512", Bar::AtLeast(15.0)),
    ("sim_kcycles_64", Bar::AtLeast(100.0)),
    ("post_instr", Bar::AtMost(90.0)),
    ("poll_instr", Bar::AtMost(45.0)),
    ("poll_empty_instr", Bar::AtMost(15.0)),
];

/// What others reach, and where it is said.
const PEERS: &[(&str, &str)] = &[
    ("goodput_4096", "97 Gb/s on the line, SRNIC (FPGA) and ConnectX-6, above 4 KB: SRNIC, NSDI 2023"),
    ("read_goodput_4096", "full rate from 32 KiB on, behind WRITE below: RoCE BALBOA (FPGA), OSDI 2026"),
    ("bidir_4096", "781 of 800 Gb/s one way, 1558 both: Broadcom Thor Ultra, vendor"),
    ("rate_write_64", "66.4 M/s (FPGA class): connection-scalable RNIC architecture, J. Supercomputing"),
    ("rate_read_64", "83 M/s, 32 QPs of two ConnectX-6: stdrdma, scalability.cpp"),
    (
        "doorbell_to_wire_64",
        "3.3 us from end to end: SRNIC, NSDI 2023; 900 ns of any NIC are PCIe: SIGCOMM 2018",
    ),
    ("push_to_wire_64", "32 clocks for a packet's headers alone, 1.86 - 1.73 us: RoCE BALBOA, OSDI 2026"),
    (
        "pingpong_64_1way",
        "0.99 us, ConnectX-5, 8 bytes, CPU included: Mark 1 Lab; 1.16 us, ConnectX-6: SRNIC",
    ),
    ("dma_write_share", "97.2 %, ConnectX-5 on Gen3 x8, 1 MB WRITEs: Mark 1 Lab"),
    ("loss_1", "77 % SRNIC (selective repeat), 26 % ConnectX-6, RTT not told: SRNIC, NSDI 2023"),
    ("sim_kcycles_512", "60-71, one Corundum card without a PCIe model, Verilator: measured here"),
    ("post_instr", "56, a sketch without checks or locks; 34.7 ns a whole operation: copyrpc"),
    ("poll_instr", "24, the same sketch"),
];

fn of<'a, T>(table: &'a [(&str, T)], id: &str) -> Option<&'a T> {
    table.iter().find(|row| row.0 == id).map(|row| &row.1)
}

/// Heads of the table.
pub const HEAD: &str =
    "| id | value | bound | share | bar | | peers | conditions |\n|---|---|---|---|---|---|---|---|";

impl Figure {
    /// Whether it is the same on every machine and with every compiler.
    pub fn is_exact(&self) -> bool {
        !self.id.starts_with("sim_kcycles") && !self.id.ends_with("_instr")
    }

    /// A row of the table.
    pub fn row(&self) -> String {
        let Self { id, value, unit, bound, context } = self;
        let share = if *bound > 0.0 { format!("{:.1} %", 100.0 * value / bound) } else { "-".into() };
        let (bar, met) = match of(BARS, id) {
            None => ("-".into(), true),
            Some(Bar::Share(bar)) => (format!(">= {bar} % of it"), 100.0 * value >= bar * bound),
            Some(Bar::Points(bar)) => (format!("{bar} points below it"), bound - value <= *bar),
            Some(Bar::AtLeast(bar)) => (format!(">= {bar}"), value >= bar),
            Some(Bar::AtMost(bar)) => (format!("<= {bar}"), value <= bar),
        };
        let met = if met { "" } else { "missed" };
        let peers = of(PEERS, id).unwrap_or(&"-");
        format!("| {id} | {value:.2} {unit} | {bound:.2} | {share} | {bar} | {met} | {peers} | {context} |")
    }

    fn entry(&self) -> String {
        let Self { id, value, unit, bound, context } = self;
        format!(
            r#"{{"id": "{id}", "value": {value:.3}, "unit": "{unit}", "bound": {bound:.3}, "context": "{context}"}}"#
        )
    }
}

/// The list that `bench.json` is.
pub fn json(figures: &[Figure]) -> String {
    let entries: Vec<String> = figures.iter().map(|figure| format!("  {}", figure.entry())).collect();
    format!("[\n{}\n]\n", entries.join(",\n"))
}

/// The figures of such a file.
pub fn read(path: &Path) -> Vec<Figure> {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    let entries: Vec<Value> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text = |entry: &Value, key: &str| entry[key].as_str().expect("a text").to_owned();
    let number = |entry: &Value, key: &str| entry[key].as_f64().expect("a number");
    entries
        .iter()
        .map(|entry| Figure {
            id: text(entry, "id"),
            value: number(entry, "value"),
            unit: text(entry, "unit"),
            bound: number(entry, "bound"),
            context: text(entry, "context"),
        })
        .collect()
}

/// What is committed of a figure, if that is another or nothing.
pub fn differs(figure: &Figure, committed: &[Figure]) -> Option<String> {
    let told = |figure: &Figure| format!("{:.3} of {:.3} ({})", figure.value, figure.bound, figure.context);
    match committed.iter().find(|before| before.id == figure.id) {
        Some(before) if before.entry() == figure.entry() => None,
        Some(before) => {
            Some(format!("{}: {} is committed, {} is measured", figure.id, told(before), told(figure)))
        }
        None => Some(format!("{}: nothing is committed, {} is measured", figure.id, told(figure))),
    }
}
