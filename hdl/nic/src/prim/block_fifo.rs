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
        // one bit more than the address tells full from empty
        let head = reg_init("head", bits + 1, 0);
        let tail = reg_init("tail", bits + 1, 0);
        let level = (tail - head).named("held");
        io.input.ready.set(!level.msb());
        io.output.valid.set(level.any());
        let next = mux(io.output.moves(), head + 1, head);
        let memory = Memory::new("words", self.depth, self.width).style("block").ignoring_collisions();
        memory.write(io.input.moves(), tail.bits(0, bits), io.input.data);
        let read = memory.read("word", high(), next.bits(0, bits));
        // the memory does not yet have what is written in the clock of the read
        let passes = delay("passes", io.input.moves() & tail.eq(next));
        io.output.data.set(mux(passes, delay("written", io.input.data), read));
        when(io.input.moves(), || tail.set(tail + 1));
        when(io.output.moves(), || head.set(next));
    }
}
