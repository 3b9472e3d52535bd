//! The SGEs of outstanding READs: segment writes them, place scatters by them.
//!
//! ```text
//! opens: four SGEs, how many more > [entry] ------------\
//! adds:  words of the WQE > [row, entry], in two halves > four SGEs of {entry, group}, groups behind the first
//! ```
//! In: four SGEs with the READ, and those behind as words of `data_bytes` of its WQE, from the one in which the fifth begins:
//! at 64 bytes that is in the middle of a word, so a row is the upper half of one and the lower half of the next. Out, one
//! clock after its address: a group of four, those that the READ does not have as zeros. Takes a word and gives a group per
//! clock, never waits. An entry holds until it is written again; what segment has not finished nobody may ask for.
//!
//! Requirements: READ

use crate::config::Config;
use crate::flow::{FURTHER_GROUPS, GROUP, GROUP_SGES, ReadListWrite, further_row};
use hdl::{Memory, Module, Ports, Sig, cat, delay, high, lit, mux};

/// The read list.
#[derive(Clone, Debug)]
pub struct ReadList(pub Config);

/// Ports of [`ReadList`].
#[derive(Ports)]
#[ports(ReadList)]
pub struct ReadListIo {
    /// From segment.
    #[input(c.0.clone())]
    pub write: ReadListWrite,
    /// Entry, and group (lowest), that is wanted in the next clock.
    #[input(c.0.read_bits() + GROUP)]
    pub address: Sig,
    /// It, the first SGE lowest.
    #[output(GROUP_SGES * 128)]
    pub word: Sig,
    /// Groups of that entry behind the first.
    #[output(GROUP)]
    pub groups: Sig,
}

impl Module for ReadList {
    type Io = ReadListIo;
    fn name(&self) -> String {
        format!("read_list_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("The SGEs of {} outstanding READs.", self.0.reads)
    }
    fn body(&self, io: &ReadListIo) {
        let c = &self.0;
        let w = &io.write;
        let (group, entry) = (io.address.bits(0, GROUP), io.address.bits(GROUP, c.read_bits()));
        let sges = GROUP_SGES * 128;
        // nobody asks for what is being written
        let first = Memory::new("first", c.reads, sges + w.more.width()).ignoring_collisions();
        first.write(w.opens, w.entry, cat(&[w.more, w.sges]));
        let opened = first.read("opened", high(), entry);
        let more = opened.bits(sges, w.more.width());
        io.groups.set((more.extend(5) + u64::from(GROUP_SGES - 1)).bits(2, GROUP));

        let halves: Vec<Sig> = (0..2u32)
            .rev()
            .map(|half| {
                let (lane, here, row, data, lanes) = if c.data_bytes == 8 {
                    let at = w.index.bits(0, 2);
                    let lanes: Vec<Sig> = (0..4u32).rev().map(|i| at.eq(i)).collect();
                    (64, w.index.bit(2).eq(half), w.index.bits(3, GROUP), w.word.repeat(4), cat(&lanes))
                } else {
                    let row = w.index - u64::from(half);
                    (256, row.ne(FURTHER_GROUPS), row, w.word.bits(256 * (1 - half), 256), high())
                };
                let depth = FURTHER_GROUPS * c.reads;
                let memory = Memory::with_lanes(&format!("further_{half}"), depth, sges / 2, lane);
                let memory = c.large(memory.ignoring_collisions());
                memory.write_lanes(w.adds & here, cat(&[row, w.entry]), data, lanes);
                memory.read(&format!("half_{half}"), high(), cat(&[further_row(group), entry]))
            })
            .collect();
        let further = cat(&halves);

        // the fifth SGE is the first of group 1
        let asked = delay("group_asked", group);
        let before = cat(&[asked - 1, lit(2, 0)]);
        let there: Vec<Sig> = (0..GROUP_SGES)
            .rev()
            .map(|i| further.bits(i * 128, 128) & (before + u64::from(i)).lt(more).repeat(128))
            .collect();
        io.word.set(mux(asked.any(), cat(&there), opened.bits(0, sges)));
    }
}
