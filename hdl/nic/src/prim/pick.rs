//! Choosing among request bits: pure combinational functions, no state, no clock.
//!
//! [`lowest`] is a tree of depth log2 n; [`round_robin`] two of them side by side. Both give 0 when nothing asks, so
//! look at `any()` of the requests as well.
//!
//! Requirements: CARD

use hdl::{Sig, cat, index_width, lit, mux};

/// Number of the lowest 1 in `requests`; 0 if there is none.
#[track_caller]
pub fn lowest(requests: Sig) -> Sig {
    let n = requests.width();
    if n == 1 {
        return lit(1, 0);
    }
    let half = n.next_power_of_two() / 2;
    let (low, high) = (requests.bits(0, half), requests.bits(half, n - half));
    let below = index_width(n) - 1;
    let upper = !low.any() & high.any();
    if below == 0 {
        return upper;
    }
    cat(&[upper, mux(low.any(), lowest(low), lowest(high).resize(below))])
}

/// Number of the first 1 in `requests` after number `last`, going round; 0 if there is none.
#[track_caller]
pub fn round_robin(requests: Sig, last: Sig) -> Sig {
    let n = requests.width();
    let after = requests & cat(&[from(n, last).bits(0, n - 1), lit(1, 0)]);
    mux(after.any(), lowest(after), lowest(requests))
}

/// `n` bits with only bit `index` set where `enable`.
#[track_caller]
pub fn one_hot(n: u32, index: Sig, enable: Sig) -> Sig {
    enable.extend(n) << index
}

/// `n` bits, those numbered `start` and up set.
#[track_caller]
pub fn from(n: u32, start: Sig) -> Sig {
    lit(1, 1).repeat(n) << start
}
