//! A synchronous FIFO of any bundle.
//!
//! In: a stream. Out: the same stream, in order, at the earliest one clock later. One move per clock on either side at
//! once. `ready` depends on registers alone, `valid` too, so FIFOs cut both timing paths. Distributed RAM (combinational
//! read): keep `depth * width` small.
//!
//! Requirements: CARD

use crate::prim::block_fifo::BlockFifo;
use hdl::{Memory, Module, PortBuilder, Ports, Sig, Stream, index_width, reg_init, when};

/// A FIFO of `depth` (power of two, at least 2) words of `width` bits.
#[derive(Clone, Debug)]
pub struct Fifo {
    /// Words.
    pub depth: u32,
    /// Bits of a word.
    pub width: u32,
}

/// Ports of [`Fifo`].
pub struct FifoIo {
    /// What enters.
    pub input: Stream<Sig>,
    /// What leaves.
    pub output: Stream<Sig>,
    /// Words inside (0..=depth).
    pub level: Sig,
}

impl Ports for FifoIo {
    type Config = Fifo;
    fn declare(c: &Fifo, p: &mut PortBuilder) -> Self {
        FifoIo {
            input: p.sink("enter", &c.width.into()),
            output: p.source("leave", &c.width.into()),
            level: p.output("level", &(index_width(c.depth) + 1).into()),
        }
    }
}

impl Module for Fifo {
    type Io = FifoIo;
    fn name(&self) -> String {
        format!("fifo_{}x{}", self.depth, self.width)
    }
    fn doc(&self) -> String {
        format!("FIFO of {} words of {} bits; latency 1.", self.depth, self.width)
    }
    fn body(&self, io: &FifoIo) {
        assert!(self.depth.is_power_of_two() && self.depth >= 2, "fifo depth {}", self.depth);
        let bits = index_width(self.depth);
        let (head, tail) = (reg_init("head", bits, 0), reg_init("tail", bits, 0));
        io.level.set(occupancy(bits, &io.input, &io.output));
        let (enters, leaves) = (io.input.moves(), io.output.moves());
        let memory = Memory::new("words", self.depth, self.width).style("distributed");
        memory.write(enters, tail, io.input.data);
        io.output.data.set(memory.read_now("word", head));
        when(enters, || tail.set(tail + 1));
        when(leaves, || head.set(head + 1));
    }
}

/// Opens both sides of a FIFO of 2 to the `bits` words; how many it holds. What the sides see are registers, not what a
/// subtraction of head and tail says.
pub(super) fn occupancy(bits: u32, input: &Stream<Sig>, output: &Stream<Sig>) -> Sig {
    let (level, valid) = (reg_init("held", bits + 1, 0), reg_init("holds", 1, 0));
    input.ready.set(!level.msb());
    output.valid.set(valid);
    let (enters, leaves) = (input.moves(), output.moves());
    when(enters & !leaves, || {
        level.set(level + 1);
        valid.set(1);
    })
    .elif(leaves & !enters, || {
        level.set(level - 1);
        valid.set(level.ne(1));
    });
    level
}

/// From so many words on a FIFO lies in block RAM.
const BLOCK: u32 = 64;

/// Puts a FIFO named `name` between `from` and the stream that it returns: of either kind, whose streams are the same.
#[track_caller]
pub fn buffer<T: hdl::Bundle>(name: &str, shape: &T::Shape, depth: u32, from: &Stream<T>) -> Stream<T> {
    let width = T::total_width(shape);
    let (input, output) = if depth < BLOCK {
        let f = hdl::instance(name, &Fifo { depth, width });
        (f.input, f.output)
    } else {
        let f = hdl::instance(name, &BlockFifo { depth, width });
        (f.input, f.output)
    };
    input.valid.set(from.valid);
    input.data.set(from.data.to_bits());
    from.ready.set(input.ready);
    Stream { valid: output.valid, ready: output.ready, data: T::from_bits(shape, output.data) }
}
