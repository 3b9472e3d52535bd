//! A table that commands write in 64-bit words and stages read as whole entries: QP context lines, MR entries.
//!
//! In: the words of all commands; this table picks its own. Out: the entry, one clock after its address. A read in the
//! clock of a write gives the old word: command waits for its fences, not for this.

use crate::config::Config;
use crate::flow::{Table, TableWrite};
use hdl::{Memory, Module, PortBuilder, Ports, Sig, cat, high, index_width};

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Lines {
    /// What is stored, e.g. `rights`; part of the module name.
    pub name: &'static str,
    /// Which table of [`TableWrite`].
    pub table: Table,
    /// First word of the entry that lies here.
    pub first: u32,
    /// Words of an entry here.
    pub words: u32,
    /// Entries.
    pub depth: u32,
    /// Read ports.
    pub readers: u32,
}

impl Lines {
    /// Line `line` (0..4) of the QP context.
    pub fn of_qp(c: &Config, name: &'static str, line: u32, readers: u32) -> Lines {
        Lines { name, table: Table::Qp, first: line * 4, words: 4, depth: c.qps, readers }
    }
}

/// Ports of [`Lines`].
pub struct LinesIo {
    /// Words of commands.
    pub write: TableWrite,
    /// Address of each reader.
    pub address: Vec<Sig>,
    /// Entry of each reader, one clock after its address.
    pub word: Vec<Sig>,
}

impl Ports for LinesIo {
    type Config = Lines;
    fn declare(c: &Lines, ports: &mut PortBuilder) -> Self {
        let bits = index_width(c.depth);
        LinesIo {
            write: ports.input("write", &()),
            address: (0..c.readers).map(|i| ports.input(&format!("address_{i}"), &bits.into())).collect(),
            word: (0..c.readers)
                .map(|i| ports.output(&format!("word_{i}"), &(c.words * 64).into()))
                .collect(),
        }
    }
}

impl Module for Lines {
    type Io = LinesIo;
    fn name(&self) -> String {
        format!("lines_{}_{}r{}", self.name, self.depth, self.readers)
    }
    fn doc(&self) -> String {
        format!(
            "Table lines `{}`: written by command, {} readers, one clock of latency.",
            self.name, self.readers
        )
    }
    fn body(&self, io: &LinesIo) {
        let memory = Memory::with_lanes("entries", self.depth, self.words * 64, 64);
        let mine = io.write.valid & io.write.table.eq(self.table as u64);
        let lanes: Vec<Sig> = (0..self.words).rev().map(|w| io.write.word.eq(self.first + w)).collect();
        let bits = memory.address_width();
        let index = io.write.index.resize(bits);
        // an index beyond the table is not ours: the sweep at reset runs over the largest table
        let inside = io.write.index.lt(self.depth);
        memory.write_lanes(mine & inside, index, io.write.data.repeat(self.words), cat(&lanes));
        for (i, (address, word)) in io.address.iter().zip(&io.word).enumerate() {
            word.set(memory.read(&format!("read_{i}"), high(), *address));
        }
    }
}
