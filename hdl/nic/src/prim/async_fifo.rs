//! A FIFO between two clocks: the only way for data to cross.
//!
//! In: a stream in the write domain. Out: the same stream in the read domain, two to three read clocks later. Pointers
//! cross Gray-coded through two flops; data is read from memory only behind a pointer that has arrived.
//!
//! Requirements: CARD LINE

use hdl::{
    Domain, Memory, Module, PortBuilder, Ports, Sig, Stream, cat, high, index_width, lit, mux, reg_init,
    synchronise, when,
};

/// An asynchronous FIFO of `depth` (power of two, at least 4) words of `width` bits.
#[derive(Clone, Debug)]
pub struct AsyncFifo {
    /// Words.
    pub depth: u32,
    /// Bits of a word.
    pub width: u32,
}

/// Ports of [`AsyncFifo`].
pub struct AsyncFifoIo {
    /// Clock of the writing side.
    pub write_clock: Sig,
    /// Its reset. Both sides are reset together, long enough to overlap.
    pub write_reset: Sig,
    /// What enters.
    pub input: Stream<Sig>,
    /// Clock of the reading side.
    pub read_clock: Sig,
    /// Its reset.
    pub read_reset: Sig,
    /// What leaves.
    pub output: Stream<Sig>,
    /// Words that the writing side had a clock ago, and has not seen read.
    pub level: Sig,
}

impl Ports for AsyncFifoIo {
    type Config = AsyncFifo;
    fn declare(c: &AsyncFifo, p: &mut PortBuilder) -> Self {
        AsyncFifoIo {
            write_clock: p.input("write_clock", &1.into()),
            write_reset: p.input("write_reset", &1.into()),
            input: p.sink("enter", &c.width.into()),
            read_clock: p.input("read_clock", &1.into()),
            read_reset: p.input("read_reset", &1.into()),
            output: p.source("leave", &c.width.into()),
            level: p.output("level", &(index_width(c.depth) + 1).into()),
        }
    }
}

/// The Gray code of a binary number: neighbours differ in one bit.
pub fn gray(binary: Sig) -> Sig {
    binary ^ cat(&[hdl::low(), binary.bits(1, binary.width() - 1)])
}

/// The number of a Gray code.
pub fn binary(gray: Sig) -> Sig {
    let w = gray.width();
    // bit i is the parity of bits i and above: of two, of four, of eight of them at once
    let above = |x: Sig, n: u32| cat(&[lit(n, 0), x.bits(n, w - n)]);
    (0..).map(|i| 1 << i).take_while(|n| *n < w).fold(gray, |x, n| x ^ above(x, n))
}

impl Module for AsyncFifo {
    type Io = AsyncFifoIo;
    fn name(&self) -> String {
        format!("async_fifo_{}x{}", self.depth, self.width)
    }
    fn doc(&self) -> String {
        format!("FIFO of {} words of {} bits between two clocks.", self.depth, self.width)
    }
    fn body(&self, io: &AsyncFifoIo) {
        assert!(self.depth.is_power_of_two() && self.depth >= 4, "async fifo depth {}", self.depth);
        let bits = index_width(self.depth);
        let (writing, reading) = (
            Domain::new(io.write_clock, Some(io.write_reset)),
            Domain::new(io.read_clock, Some(io.read_reset)),
        );
        let memory = Memory::new("words", self.depth, self.width);
        let (tail, tail_gray) =
            writing.within(|| (reg_init("tail", bits + 1, 0), reg_init("tail_gray", bits + 1, 0)));
        let (head, head_gray) =
            reading.within(|| (reg_init("head", bits + 1, 0), reg_init("head_gray", bits + 1, 0)));
        writing.within(|| {
            let seen = synchronise("head_seen", head_gray);
            // `depth` ahead: a number that differs in its top bit has a Gray code that differs in its two top bits. To compare
            // the codes saves the way to a number and a subtraction, 5 ns of an ECP5
            let ahead = |tail: Sig| (tail ^ seen).eq(3 << (bits - 1));
            let moves = io.input.moves();
            let following = tail + 1;
            // a register: it may be late when room comes, not when it goes
            let full = reg_init("full", 1, 0);
            full.set(mux(moves, ahead(gray(following)), ahead(tail_gray)));
            io.input.ready.set(!full);
            let level = reg_init("level_seen", bits + 1, 0);
            level.set(tail - binary(seen));
            io.level.set(level);
            memory.write(moves, tail.bits(0, bits), io.input.data);
            when(moves, || {
                tail.set(following);
                tail_gray.set(gray(following));
            });
        });
        reading.within(|| {
            let seen = synchronise("tail_seen", tail_gray);
            // the word under `head` is read ahead; `loaded` says that it has arrived
            let loaded = reg_init("loaded", 1, 0);
            let moves = io.output.moves();
            let following = head + 1;
            let next = mux(moves, following, head).named("next_head");
            // both answers are there before the receiver says which: its `ready` may come late
            let available = mux(moves, seen.ne(gray(following)), seen.ne(head_gray));
            io.output.data.set(memory.read("word", high(), next.bits(0, bits)));
            io.output.valid.set(loaded);
            loaded.set(available);
            when(moves, || {
                head.set(following);
                head_gray.set(gray(following));
            });
        });
    }
}
