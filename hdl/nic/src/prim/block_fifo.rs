//! A FIFO whose words lie in block RAM: for what is too large for LUT RAM.
//!
//! ```text
//! enter ──┬──> block RAM, read at the head of the next clock ──┬──> leave
//!         └──> written: a word that finds none before it ──────┘
//! ```
//! In: a stream. Out: the same stream, in order, at the earliest one clock later. One move per clock on either side at
//! once. `ready` and `valid` depend on registers alone; the address of the memory depends on the receiver's `ready`,
//! because the next word is read while one leaves.
//!
//! Requirements: CARD

use crate::prim::fifo::occupancy;
use hdl::{Memory, Module, PortBuilder, Ports, Sig, Stream, delay, high, index_width, mux, reg_init, when};

/// A FIFO of `depth` (power of two, at least 2) words of `width` bits.
#[derive(Clone, Debug)]
pub struct BlockFifo {
    /// Words.
    pub depth: u32,
    /// Bits of a word.
    pub width: u32,
}

/// Ports of [`BlockFifo`].
pub struct BlockFifoIo {
    /// What enters.
    pub input: Stream<Sig>,
    /// What leaves.
    pub output: Stream<Sig>,
}

impl Ports for BlockFifoIo {
    type Config = BlockFifo;
    fn declare(c: &BlockFifo, p: &mut PortBuilder) -> Self {
        BlockFifoIo { input: p.sink("enter", &c.width.into()), output: p.source("leave", &c.width.into()) }
    }
}

impl Module for BlockFifo {
    type Io = BlockFifoIo;
    fn name(&self) -> String {
        format!("block_fifo_{}x{}", self.depth, self.width)
    }
    fn doc(&self) -> String {
        format!("FIFO of {} words of {} bits in block RAM; latency 1.", self.depth, self.width)
    }
    fn body(&self, io: &BlockFifoIo) {
        assert!(self.depth.is_power_of_two() && self.depth >= 2, "fifo depth {}", self.depth);
        let bits = index_width(self.depth);
        let (head, tail) = (reg_init("head", bits, 0), reg_init("tail", bits, 0));
        occupancy(bits, &io.input, &io.output);
        let (enters, leaves) = (io.input.moves(), io.output.moves());
        let following = head + 1;
        let next = mux(leaves, following, head);
        let memory = Memory::new("words", self.depth, self.width).style("block").ignoring_collisions();
        memory.write(enters, tail, io.input.data);
        let read = memory.read("word", high(), next);
        // the memory does not yet have what is written in the clock of the read; both answers are there before it is known
        // whether a word leaves
        let passes = delay("passes", enters & mux(leaves, tail.eq(following), tail.eq(head)));
        io.output.data.set(mux(passes, delay("written", io.input.data), read));
        when(enters, || tail.set(tail + 1));
        when(leaves, || head.set(following));
    }
}
