//! Faults on request: rules that spoil the answers to the card's reads and AtomicOps.
//!
//! In: rules ([`Injection`]), each with a [`Select`] that says which requests, a [`Fault`] that says how, and a
//! [`Piece`] that says which of its completions. Out: for each request the first rule that matches. What the model does
//! by such a rule is never counted as a violation; what the card does afterwards is.

use crate::time::Time;
use std::ops::Range;

/// Which requests a rule spoils.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// Only the n-th read or AtomicOp after the rule was set, counted from 1.
    Nth(u64),
    /// Every one that touches the address range.
    Address(Range<u64>),
    /// Each one with this probability in a million, from the seed.
    PerMillion(u32),
}

/// How the answer is spoiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// UR instead of data; ends the request.
    Unsupported,
    /// CA instead of data; ends the request.
    Abort,
    /// CRS, which is illegal for memory; ends the request.
    ConfigRetry,
    /// Data with EP set.
    Poison,
    /// The completion never comes.
    Lost,
    /// The whole answer comes this much later.
    Late(Time),
    /// The Byte Count is off by this much.
    ByteCount(i16),
    /// The tag is that of no outstanding request.
    UnknownTag,
    /// It comes twice, one right behind the other.
    Duplicate,
}

/// Which completions of the request the fault hits. [`Fault::Late`] always delays all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The first.
    First,
    /// The last: good data comes before.
    Last,
    /// Every one.
    Every,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injection {
    /// Which requests.
    pub select: Select,
    /// How.
    pub fault: Fault,
    /// Which of its completions.
    pub piece: Piece,
    /// How often the rule still acts.
    pub times: u64,
    pub(crate) seen: u64,
}

impl Injection {
    /// A rule on the first completion (every one, if they are lost), without limit.
    pub fn new(select: Select, fault: Fault) -> Injection {
        let piece = if fault == Fault::Lost { Piece::Every } else { Piece::First };
        Injection { select, fault, piece, times: u64::MAX, seen: 0 }
    }

    /// On this piece instead.
    pub fn on(self, piece: Piece) -> Injection {
        Injection { piece, ..self }
    }

    /// At most this often.
    pub fn times(self, times: u64) -> Injection {
        Injection { times, ..self }
    }

    /// Does it act on a request for these bytes? `draw` gives a number below a million.
    pub(crate) fn acts(&mut self, bytes: Range<u64>, draw: impl FnOnce() -> u32) -> bool {
        self.seen += 1;
        let hit = self.times > 0
            && match &self.select {
                Select::Nth(n) => self.seen == *n,
                Select::Address(range) => bytes.start < range.end && range.start < bytes.end,
                Select::PerMillion(p) => draw() < *p,
            };
        if hit {
            self.times -= 1;
        }
        hit
    }

    /// Can it never act again?
    pub(crate) fn spent(&self) -> bool {
        self.times == 0 || matches!(self.select, Select::Nth(n) if self.seen >= n)
    }
}
