//! One bit for each of many: set by one, cleared by another, looked at by anybody, all in one clock.
//!
//! ```text
//!   set ────> [ set ]  ──┐
//!                        ^ differ: the bit is 1
//!   clear ──> [ cleared ]┘
//! ```
//! Up to [`REGISTERS`] of them are registers. More would cost two LUTs and a flip-flop each, and as much again for each way to
//! tell one of them by number; they are two LUT RAMs, which a bit is the difference of: who sets it makes its half differ from
//! the other's, who clears it makes its half equal. Both show the same, but for this: RAMs are swept for as many clocks
//! behind a reset, in which nobody sets or clears. So early there is no QP.
//!
//! A bit that is set and cleared in the same clock is clear. Latency: a look sees what the clocks before did.
//!
//! Requirements: CARD

use crate::prim::pick::one_hot;
use hdl::{Memory, Sig, any_of, assert_always, index_width, mux, reg_init, when};
use std::cell::Cell;

/// So many are registers.
pub const REGISTERS: u32 = 64;

/// The bits.
#[derive(Debug)]
pub struct Flags {
    name: String,
    n: u32,
    kept: Kept,
    looks: Cell<u32>,
}

#[derive(Debug)]
enum Kept {
    Registers(Sig),
    Memories { set: Memory, cleared: Memory },
}

impl Flags {
    /// `n` bits, a power of two, all of them clear.
    #[track_caller]
    pub fn new(name: &str, n: u32) -> Flags {
        let memory = |half: &str| Memory::new(&format!("{name}_{half}"), n, 1).style("distributed");
        let kept = if n <= REGISTERS {
            Kept::Registers(reg_init(name, n, 0))
        } else {
            Kept::Memories { set: memory("set"), cleared: memory("cleared") }
        };
        Flags { name: name.to_owned(), n, kept, looks: Cell::new(0) }
    }
    /// Bit `index`.
    #[track_caller]
    pub fn at(&self, index: Sig) -> Sig {
        match &self.kept {
            Kept::Registers(bits) => bits.bit_at(index),
            Kept::Memories { set, cleared } => {
                let look = self.looks.replace(self.looks.get() + 1);
                let of = |memory: &Memory, half: &str| {
                    memory.read_now(&format!("{}_{half}_{look}", self.name), index)
                };
                of(set, "set") ^ of(cleared, "cleared")
            }
        }
    }
    /// Sets and clears, each {in this clock, which}. To be called once.
    #[track_caller]
    pub fn change(&self, sets: (Sig, Sig), clears: (Sig, Sig)) {
        let ((sets, set_at), (clears, clear_at)) = (sets, clears);
        match &self.kept {
            Kept::Registers(bits) => {
                let bit = |(valid, index): (Sig, Sig)| one_hot(self.n, index, valid);
                bits.set((*bits | bit((sets, set_at))) & !bit((clears, clear_at)));
            }
            Kept::Memories { set, cleared } => {
                let name = |what: &str| format!("{}_{what}", self.name);
                let sweep = reg_init(&name("sweep"), index_width(self.n) + 1, 0);
                let sweeping = !sweep.msb();
                when(sweeping, || sweep.set(sweep + 1));
                assert_always(&name("rest_in_the_sweep"), !sweeping | !any_of(&[sets, clears]));
                let swept = sweep.bits(0, index_width(self.n));
                let differs = !cleared.read_now(&name("cleared_before"), set_at);
                let equals = set.read_now(&name("set_before"), clear_at);
                let stands = sets & !(clears & set_at.eq(clear_at));
                set.write(sweeping | stands, mux(sweeping, swept, set_at), differs & !sweeping);
                cleared.write(sweeping | clears, mux(sweeping, swept, clear_at), equals & !sweeping);
            }
        }
    }
}
