//! Simulated time: a count of picoseconds since the start of the simulation, used for instants and for spans.
//!
//! 64 bits of picoseconds last 213 days. Sums saturate: a deadline beyond the end of time never comes.

use std::{
    fmt,
    ops::{Add, Sub},
};

/// An instant, or a span, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The start of the simulation; as a span, nothing.
    pub const ZERO: Time = Time(0);
    /// The end of time: a deadline that never comes.
    pub const MAX: Time = Time(u64::MAX);

    /// `n` picoseconds.
    pub const fn ps(n: u64) -> Time {
        Time(n)
    }
    /// `n` nanoseconds.
    pub const fn ns(n: u64) -> Time {
        Time(n.saturating_mul(1_000))
    }
    /// `n` microseconds.
    pub const fn us(n: u64) -> Time {
        Time(n.saturating_mul(1_000_000))
    }
    /// `n` milliseconds.
    pub const fn ms(n: u64) -> Time {
        Time(n.saturating_mul(1_000_000_000))
    }
    /// The span since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Time {
        Time(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Time {
    type Output = Time;
    fn add(self, span: Time) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Sub for Time {
    type Output = Time;
    fn sub(self, span: Time) -> Time {
        self.since(span)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} ns", self.0 / 1_000, self.0 % 1_000)
    }
}
