//! Prints every table as one page of Markdown: `docs/registers.md`.
//!
//! In: the reflected tables. Out: text, the same for the same tables. `cargo run -p contract --bin contract-doc`
//! prints it; a test holds the committed page against it.

use core::fmt::{Result, Write};

use crate::hash::{CODES, LAYOUTS};
use crate::layout::{Codes, Layout, Order};
use crate::opcode::Opcode;
use crate::register::{REGISTERS, Reset};
use crate::reject::Reject;
use crate::{LAYOUT_HASH, doorbell, target};

/// Writes the page.
pub fn write_page(out: &mut impl Write) -> Result {
    writeln!(out, "# Registers, doorbells, structures and codes\n")?;
    writeln!(
        out,
        "Generated from `hdl/contract` by `cargo run -p contract --bin contract-doc`; do not edit.\n"
    )?;
    writeln!(out, "Layout hash: `{LAYOUT_HASH:#018x}`\n")?;
    write_registers(out)?;
    writeln!(out, "\n## Doorbells (BAR2)\n")?;
    writeln!(out, "Page p starts at p * `doorbell_stride`. Each is one aligned 8-byte write.\n")?;
    writeln!(out, "| offset | doorbell |\n|---|---|")?;
    let doorbells = [
        (doorbell::SQ_OFFSET, "SqDoorbell"),
        (doorbell::RQ_OFFSET, "RqDoorbell"),
        (doorbell::CQ_OFFSET, "CqDoorbell"),
        (doorbell::EQ_OFFSET, "EqDoorbell (page 0 only)"),
        (doorbell::PUSH_OFFSET, "push buffer, 256 bytes: stores of any size, each byte once"),
    ];
    for (offset, name) in doorbells {
        writeln!(out, "| {offset:#05x} | {name} |")?;
    }
    for order in [Order::Little, Order::Network] {
        match order {
            Order::Little => writeln!(out, "\n## Structures (little-endian; bit 0 = byte 0, bit 0)")?,
            Order::Network => {
                writeln!(out, "\n## Headers (network order; the first field is byte 0, bit 7)")?
            }
        }
        for layout in LAYOUTS.iter().filter(|layout| layout.order == order) {
            write_layout(out, layout)?;
        }
    }
    write_opcodes(out)?;
    writeln!(out, "\n## Codes")?;
    for codes in CODES {
        match codes.name {
            "Opcode" => {}
            "Reject" => write_rejects(out, codes)?,
            _ => write_codes(out, codes)?,
        }
    }
    write_target(out)
}

fn write_target(out: &mut impl Write) -> Result {
    writeln!(out, "\n## Control port of a target (UDP port {})\n", target::CONTROL_PORT)?;
    writeln!(
        out,
        "Version {}: one datagram of {} bytes each way, `ControlHead` and one of the others. Not part of the layout hash.",
        target::VERSION,
        target::DATAGRAM
    )?;
    for layout in target::LAYOUTS {
        write_layout(out, layout)?;
    }
    for codes in target::CODES {
        write_codes(out, codes)?;
    }
    Ok(())
}

fn write_registers(out: &mut impl Write) -> Result {
    writeln!(out, "## Registers (BAR0)\n")?;
    writeln!(out, "| offset | name | bits | access | reset | from | |\n|---|---|---|---|---|---|---|")?;
    for register in REGISTERS {
        write!(out, "| {:#06x} | {}", register.offset, register.name)?;
        if register.count > 1 {
            write!(out, "[0..{}]", register.count)?;
        }
        write!(out, " | {} | {} | ", register.width, register.access.name())?;
        match register.reset {
            Reset::Value(value) => write!(out, "{value:#x}")?,
            Reset::Config => write!(out, "as built")?,
            Reset::Live => write!(out, "live")?,
            Reset::LayoutHash => write!(out, "the layout hash")?,
        }
        writeln!(out, " | {} | {} |", register.source, register.doc.trim())?;
    }
    Ok(())
}

fn write_layout(out: &mut impl Write, layout: &Layout) -> Result {
    writeln!(out, "\n### {} ({} bytes)\n\n{}\n", layout.name, layout.bytes, layout.doc.trim())?;
    writeln!(out, "| byte | bits | field | |\n|---|---|---|---|")?;
    for field in layout.fields {
        let high = field.lsb + field.width - 1;
        write!(out, "| {} | ", layout.offset(field))?;
        match field.width {
            1 => write!(out, "{high}")?,
            _ => write!(out, "{high}:{}", field.lsb)?,
        }
        writeln!(out, " | {} | {} |", field.name, field.doc.trim())?;
    }
    Ok(())
}

fn write_opcodes(out: &mut impl Write) -> Result {
    writeln!(out, "\n## BTH opcodes\n")?;
    writeln!(out, "| code | name | after BTH | payload | receive WQE | |\n|---|---|---|---|---|---|")?;
    for opcode in Opcode::ALL {
        let row = opcode.row();
        let h = row.headers;
        let headers = [
            (h.deth, "DETH"),
            (h.reth, "RETH"),
            (h.atomic, "AtomicETH"),
            (h.aeth, "AETH"),
            (h.atomic_ack, "AtomicAckETH"),
            (h.immdt, "ImmDt"),
            (h.ieth, "IETH"),
        ];
        write!(out, "| {:#04x} | {} | ", opcode.code(), opcode.name())?;
        let mut present = headers.iter().filter(|(present, _)| *present).map(|(_, name)| *name);
        match present.next() {
            None => write!(out, "-")?,
            Some(first) => write!(out, "{first}")?,
        }
        for name in present {
            write!(out, ", {name}")?;
        }
        writeln!(out, " | {:?} | {:?} | {} |", row.payload, row.receive_wqe, opcode.doc())?;
    }
    Ok(())
}

fn write_codes(out: &mut impl Write, codes: &Codes) -> Result {
    writeln!(out, "\n### {}\n\n{}\n\n| code | name | |\n|---|---|---|", codes.name, codes.doc.trim())?;
    for row in codes.rows {
        writeln!(out, "| {} | {} | {} |", row.value, row.name, row.doc.trim())?;
    }
    Ok(())
}

fn write_rejects(out: &mut impl Write, codes: &Codes) -> Result {
    writeln!(out, "\n### Reject\n\n{}\n\n| code | name | stage | |\n|---|---|---|---|", codes.doc.trim())?;
    for reject in Reject::ALL {
        writeln!(
            out,
            "| {} | {} | {} | {} |",
            reject.code(),
            reject.name(),
            reject.stage().name(),
            reject.doc()
        )?;
    }
    Ok(())
}
