//! One bit for each of many: set by some, cleared by one, looked at by anybody, all in one clock.
//!
//! ```text
//!   set ────> [ part ] ──┐
//!   set ────> [ part ] ──^ the bit
//!   clear ──> [ part ] ──┘
//! ```
//! Up to [`REGISTERS`] of them are registers. More would cost two LUTs and a flip-flop each, and as much again for each way to
//! tell one of them by number; they are LUT RAMs, one for each that writes, and a bit is the exclusive or of its parts: who
//! sets it writes what makes that 1, who clears it what makes it 0. Both show the same, but for this: RAMs are swept for as
//! many clocks behind a reset, in which nobody sets or clears. So early there is no QP.
//!
//! A bit that is set and cleared in the same clock is clear. Latency: a look sees what the clocks before did.
//!
//! Requirements: CARD

use crate::prim::pick::one_hot;
use hdl::{Memory, Sig, any_of, assert_always, index_width, lit, mux, reg_init, when};
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
    /// Of each that sets, and of the one that clears.
    Parts(Vec<Memory>),
}

impl Flags {
    /// `n` bits, a power of two, all of them clear; so many may be set in one clock.
    #[track_caller]
    pub fn new(name: &str, n: u32, setters: u32) -> Flags {
        let part = |i| Memory::new(&format!("{name}_part_{i}"), n, 1).style("distributed");
        let kept = if n <= REGISTERS {
            Kept::Registers(reg_init(name, n, 0))
        } else {
            Kept::Parts((0..=setters).map(part).collect())
        };
        Flags { name: name.to_owned(), n, kept, looks: Cell::new(0) }
    }
    /// Bit `index`.
    #[track_caller]
    pub fn at(&self, index: Sig) -> Sig {
        match &self.kept {
            Kept::Registers(bits) => bits.bit_at(index),
            Kept::Parts(parts) => self.sum(parts.iter().enumerate(), index),
        }
    }
    /// The exclusive or of those parts of bit `index`.
    fn sum<'a>(&self, parts: impl Iterator<Item = (usize, &'a Memory)>, index: Sig) -> Sig {
        let look = self.looks.replace(self.looks.get() + 1);
        parts
            .map(|(i, part)| part.read_now(&format!("{}_{look}_of_part_{i}", self.name), index))
            .reduce(|sum, part| sum ^ part)
            .expect("one that clears and one that sets at least")
    }
    /// Sets and clears, each {in this clock, which}. To be called once.
    #[track_caller]
    pub fn change(&self, sets: &[(Sig, Sig)], clears: (Sig, Sig)) {
        let parts = match &self.kept {
            Kept::Registers(bits) => {
                let bit = |&(valid, index): &(Sig, Sig)| one_hot(self.n, index, valid);
                let set = sets.iter().fold(*bits, |bits, set| bits | bit(set));
                return bits.set(set & !bit(&clears));
            }
            Kept::Parts(parts) => parts,
        };
        let name = |what: &str| format!("{}_{what}", self.name);
        let sweep = reg_init(&name("sweep"), index_width(self.n) + 1, 0);
        let (sweeping, swept) = (!sweep.msb(), sweep.bits(0, index_width(self.n)));
        when(sweeping, || sweep.set(sweep + 1));
        // who clears, then who sets: of several that write one bit the first
        let writes: Vec<(Sig, Sig)> = [&[clears], sets].concat();
        let any = any_of(&writes.iter().map(|(valid, _)| *valid).collect::<Vec<_>>());
        assert_always(&name("rest_in_the_sweep"), !sweeping | !any);
        for (i, (valid, index)) in writes.iter().enumerate() {
            let others = parts.iter().enumerate().filter(|(other, _)| *other != i);
            let value = self.sum(others, *index) ^ lit(1, u64::from(i > 0));
            let before: Vec<Sig> = writes[..i].iter().map(|&(first, at)| first & at.eq(*index)).collect();
            let stands = if before.is_empty() { *valid } else { *valid & !any_of(&before) };
            parts[i].write(sweeping | stands, mux(sweeping, swept, *index), value & !sweeping);
        }
    }
}
