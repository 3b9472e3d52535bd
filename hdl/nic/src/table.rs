//! A table that commands write in 64-bit words and stages read as whole entries: QP context lines, MR entries.
//!
//! In: the words of all commands; this table picks its own. Out: the entry, one clock after its address. A read in the
//! clock of a write gives the old word: command waits for its fences, not for this.

use crate::config::Config;
use crate::flow::{Table, TableWrite};
use hdl::{Memory, Module, PortBuilder, Ports, Sig, cat, high, index_width, lit};

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
    /// Which words each reader looks at; the others are zero to it, and cost no memory.
    pub reads: Vec<&'static [u32]>,
    /// They lie in UltraRAM.
    pub large: bool,
}

impl Lines {
    /// Line `line` (0..4) of the QP context.
    pub fn of_qp(c: &Config, name: &'static str, line: u32) -> Lines {
        let reads = vec![];
        Lines { name, table: Table::Qp, first: line * 4, words: 4, depth: c.qps, reads, large: false }
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
            address: (0..c.reads.len()).map(|i| ports.input(&format!("address_{i}"), &bits.into())).collect(),
            word: (0..c.reads.len())
                .map(|i| ports.output(&format!("word_{i}"), &(c.words * 64).into()))
                .collect(),
        }
    }
}

impl Module for Lines {
    type Io = LinesIo;
    fn name(&self) -> String {
        format!("lines_{}_{}r{}", self.name, self.depth, self.reads.len())
    }
    fn doc(&self) -> String {
        format!(
            "Table lines `{}`: written by command, {} readers, one clock of latency.",
            self.name,
            self.reads.len()
        )
    }
    fn body(&self, io: &LinesIo) {
        let memories: Vec<Memory> = (0..self.words)
            .map(|w| {
                let memory = Memory::new(&format!("words_{w}"), self.depth, 64);
                if self.large { memory.style("ultra") } else { memory }
            })
            .collect();
        let mine = io.write.valid & io.write.table.eq(self.table as u64);
        let index = io.write.index.resize(index_width(self.depth));
        // an index beyond the table is not ours: the sweep at reset runs over the largest table
        let mine = mine & io.write.index.lt(self.depth);
        for (w, memory) in (0..).zip(&memories) {
            memory.write(mine & io.write.word.eq(self.first + w), index, io.write.data);
        }
        for (i, (words, (address, line))) in
            self.reads.iter().zip(io.address.iter().zip(&io.word)).enumerate()
        {
            let word = |(w, memory): (u32, &Memory)| {
                let read =
                    words.contains(&w).then(|| memory.read(&format!("read_{i}_{w}"), high(), *address));
                read.unwrap_or_else(|| lit(64, 0))
            };
            line.set(cat(&(0..)
                .zip(&memories)
                .map(word)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect::<Vec<_>>()));
        }
    }
}
