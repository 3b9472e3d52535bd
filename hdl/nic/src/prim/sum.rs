//! Is `a + b` the number `c`? Without adding: pure combinational, no state, no clock.
//!
//! If it is, the carry into every place follows from the place below and `c` alone. So each place is compared for itself, and
//! the way is that of two places and an AND of all, not that of a carry through all of them.
//!
//! Requirements: CARD

use hdl::{Sig, cat, lit};

/// `a + b == c`, modulo their width.
#[track_caller]
pub fn sum_is(a: Sig, b: Sig, c: Sig) -> Sig {
    let carry = (a & b) | ((a | b) & !c);
    (a ^ b ^ c).eq(cat(&[carry.bits(0, carry.width() - 1), lit(1, 0)]))
}
