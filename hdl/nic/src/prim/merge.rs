//! Merges streams of one bundle into one, round robin, without latency or storage: what the output accepts first is
//! first. A stream that was offered stays chosen until it moves, so `valid` with its data is stable.
//!
//! Requirements: CARD

use crate::prim::pick::round_robin;
use hdl::{Bundle, Sig, Stream, cat, high, index_width, low, mux, reg_init, when, wire};

/// Merges `from` into one stream; names made here start with `name`.
#[track_caller]
pub fn merge<T: Bundle>(name: &str, shape: &T::Shape, from: &[&Stream<T>]) -> Stream<T> {
    let n = from.len();
    assert!(n > 0, "merge of nothing");
    if n == 1 {
        return Stream { valid: from[0].valid, ready: from[0].ready, data: from[0].data.clone() };
    }
    hdl::scope(name, || {
        let bits = index_width(n as u32);
        let last = reg_init("last", bits, 0);
        let held = reg_init("held", 1, 0);
        let offers = cat(&from.iter().rev().map(|s| s.valid).collect::<Vec<_>>());
        let valid = offers.any().named("valid");
        let chosen = mux(held, last, round_robin(offers, last)).named("chosen");
        let out = Stream { valid, ready: wire("ready", 1), data: choose(shape, chosen, from) };
        for (i, s) in from.iter().enumerate() {
            s.ready.set(out.ready & chosen.eq(i) & s.valid);
        }
        when(valid, || {
            last.set(chosen);
            held.set(mux(out.ready, low(), high()));
        });
        out
    })
}

fn choose<T: Bundle>(shape: &T::Shape, chosen: Sig, from: &[&Stream<T>]) -> T {
    let all: Vec<Sig> = from.iter().map(|s| s.data.to_bits()).collect();
    T::from_bits(shape, hdl::select(chosen, &all))
}
