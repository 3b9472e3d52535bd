//! The cells of `cargo ci interop` in which the kernel's peer is a target, an RDMA endpoint without a host.
//!
//! ```text
//!   guest: ci/guest/target.py ─ verbena target (static) ─ UDP ─┐
//!                             ─ pyverbs ─ rdma_rxe ────────────┴ wire ── verbena sim --target: the pins of the ECP5-5G Versa
//! ```
//! In: a cell, a guest. Out: an error that says what was not as it should be; the capture. The guest finds the target's MAC
//! address by ARP in each cell anew. Of a wire that loses frames, the capture must tell that it did, each way.

use std::{fs, path::Path};

use anyhow::{Result, ensure};

use super::{Room, WIRE, all_answered};
use crate::step::Verdict;

/// Switches of the board as `verbena sim --target` has them: 5.
const ADDRESS: &str = "10.0.0.69";
/// What is done, as `ci/guest/target.py` and `ping` take it.
const OPS: [&str; 4] = ["write", "read", "fetch-add", "compare-swap"];
/// The longest ping that a frame of 1518 bytes takes.
const LONGEST_PING: u32 = 1472;

/// One exchange; the kernel asks.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Cell {
    what: &'static str,
    size: u32,
    count: u32,
    mtu: u32,
    /// One per cent of the frames is lost, each way.
    lossy: bool,
}

/// All of them.
pub(super) fn cells() -> Vec<Cell> {
    let cell = |what, size, count| Cell { what, size, count, mtu: 1024, lossy: false };
    let mut cells = vec![cell("control", 0, 1), cell("ping", 56, 20), cell("ping", LONGEST_PING, 20)];
    for op in OPS {
        let atomic = !["write", "read"].contains(&op);
        let usual = cell(op, if atomic { 8 } else { 5001 }, 100);
        cells.push(usual);
        if !atomic {
            cells.push(Cell { size: 3, count: 16, ..usual });
            cells.extend([256, 4096].map(|mtu| Cell { mtu, ..usual }));
        }
        // an atomic is one packet, and in a hundred none may be lost
        cells.push(Cell { lossy: true, count: if atomic { 400 } else { 100 }, ..usual });
    }
    let mixed = cell("mixed", 2003, 100);
    cells.extend([mixed, Cell { lossy: true, count: 400, ..mixed }]);
    let hostile = cell("hostile", 2003, 40);
    cells.extend([hostile, Cell { lossy: true, ..hostile }]);
    cells
}

/// Its part of the page, with these rows, of which so many failed.
pub(super) fn section(rows: &[String], failed: u32) -> String {
    format!(
        "\n## A target\n\n\
         The whole top of the ECP5-5G Versa at its RGMII pins, with the models of its DDR cells: an RDMA endpoint without a host\n\
         ([decision](decisions/0015-a-target-is-the-card-without-its-host.md)). The guest finds it by ARP; `verbena target` in the guest\n\
         makes and ends the queue pairs, the kernel's verbs do the rest. In each cell of verbs the target's 32 KiB are compared in the end,\n\
         and every READ and the result of every atomic; every atomic was executed once and every packet of a WRITE written\n\
         once, by the target's own counters; PSNs wrap; the LEDs are written, the switches read. {} cells, {failed} of them fail.\n\n\
         The hostile datagrams: another version, operation, magic, length (0 to 9000 bytes, also in fragments), requests for what\n\
         there is not, a wrong UDP checksum or length, bytes of chance behind IPv4's and ARP's EtherType, and 200 queries at once.\n\n\
         | what | kernel's side | messages x bytes | path MTU | wire | |\n|---|---|---|---|---|---|\n{}\n",
        rows.len(),
        rows.join("\n")
    )
}

impl Cell {
    /// Its name: what is not usual is told.
    pub(super) fn name(&self) -> String {
        let mut name = format!("target-{}", self.what);
        for (told, part) in [
            (self.size > 0, format!("-{}", self.size)),
            (self.mtu != 1024, format!("-mtu{}", self.mtu)),
            (self.lossy, "-lossy".to_owned()),
        ] {
            name += if told { &part } else { "" };
        }
        name
    }

    /// Its row in the table of results.
    pub(super) fn row(&self, result: &str) -> String {
        let what = match self.what {
            "control" => "control port: query, create, destroy, counters, refusals",
            "mixed" => "write, read, fetch-add, compare-swap in turn",
            "hostile" => {
                "the same while hostile and too many datagrams come to the control port, and behind them"
            }
            what => what,
        };
        let program = match self.what {
            "control" => "`verbena target`",
            "ping" => "`ping`",
            _ => "`verbena target`, pyverbs",
        };
        let mtu = if OPS.contains(&self.what) || ["mixed", "hostile"].contains(&self.what) {
            self.mtu.to_string()
        } else {
            String::new()
        };
        let messages = if self.size > 0 { format!("{} x {}", self.count, self.size) } else { String::new() };
        let wire = if self.lossy { "1 % lost" } else { "clean" };
        format!("| {what} | {program} | {messages} | {mtu} | {wire} | {result} |")
    }
}

impl Room {
    /// Runs a cell; its simulator ends in any case.
    pub(super) fn against_target(&mut self, cell: &Cell, seed: u64, capture: &Path) -> Result<Verdict> {
        let loss: &[&str] = if cell.lossy { &["--loss", "1%"] } else { &[] };
        let sim = self.at_the_wire(&[&["--target"], loss].concat(), seed, capture)?;
        let outcome =
            self.guest.ask(&format!("{WIRE}\nip neigh flush dev $wire to {ADDRESS}")).and_then(|_| {
                let Cell { what, size, count, mtu, .. } = cell;
                self.guest.ask(&match *what {
                    "control" => format!("python3 /usr/bin/target.py {ADDRESS} control 2>&1"),
                    "ping" => format!("ping -c {count} -i 0.2 -s {size} {ADDRESS} 2>&1"),
                    _ => format!("python3 /usr/bin/target.py {ADDRESS} {what} {size} {count} {mtu} 2>&1"),
                })
            });
        // its end completes the capture; what is wrong with the exchange says more than what is wrong with the board
        let ended = sim.end();
        let said = outcome?;
        ended?;
        if cell.what == "ping" {
            all_answered(&said, cell.count)?;
        }
        if cell.lossy {
            ensure!(lost(&fs::read(capture)?) > 0, "the wire has lost nothing: send more");
        }
        Ok(Verdict::Passed)
    }
}

/// How often a capture tells that a frame was lost.
fn lost(capture: &[u8]) -> usize {
    let comment = b"dropped by the wire";
    capture.windows(comment.len()).filter(|part| part == comment).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_its_own_name() {
        let mut names: Vec<_> = cells().iter().map(Cell::name).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_row_tells_what_is_not_usual() {
        let cell = Cell { what: "read", size: 5001, count: 100, mtu: 256, lossy: true };
        assert_eq!(cell.name(), "target-read-5001-mtu256-lossy");
        assert_eq!(
            cell.row("passes"),
            "| read | `verbena target`, pyverbs | 100 x 5001 | 256 | 1 % lost | passes |"
        );
        let control = Cell { what: "control", size: 0, mtu: 1024, lossy: false, ..cell };
        assert_eq!(control.name(), "target-control");
        assert!(control.row("passes").ends_with("| `verbena target` |  |  | clean | passes |"));
    }

    #[test]
    fn frames_that_a_capture_says_were_lost_are_counted() {
        assert_eq!(lost(b"..dropped by the wire\0dropped by the wire (scripted).dropped"), 2);
    }
}
