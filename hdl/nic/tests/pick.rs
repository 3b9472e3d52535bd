//! The choosing primitives, over every input.
//!
//! Requirements: CARD

use hdl::{Interpreter, Module, Ports, Sig, elaborate, index_width};
use nic::prim::pick::{from, lowest, one_hot, round_robin};

/// All of them around one request vector.
#[derive(Debug)]
struct Pick {
    n: u32,
}

#[derive(Ports)]
#[ports(Pick)]
struct PickIo {
    #[input(c.n)]
    requests: Sig,
    #[input(index_width(c.n))]
    last: Sig,
    #[output(index_width(c.n))]
    first: Sig,
    #[output(index_width(c.n))]
    next: Sig,
    #[output(c.n)]
    hot: Sig,
    #[output(c.n)]
    upward: Sig,
}

impl Module for Pick {
    type Io = PickIo;
    fn name(&self) -> String {
        format!("pick_{}", self.n)
    }
    fn body(&self, io: &PickIo) {
        io.first.set(lowest(io.requests));
        io.next.set(round_robin(io.requests, io.last));
        io.hot.set(one_hot(self.n, io.last, io.requests.bit(0)));
        io.upward.set(from(self.n, io.last));
    }
}

#[test]
fn the_lowest_and_the_next_in_turn_are_found_for_every_vector() {
    for n in 2..=9u32 {
        let mut s = Interpreter::new(&elaborate(&Pick { n }).unwrap());
        for requests in 0..1u64 << n {
            for last in 0..u64::from(n) {
                s.poke("requests", requests);
                s.poke("last", last);
                let set: Vec<u64> = (0..u64::from(n)).filter(|i| requests >> i & 1 == 1).collect();
                let first = set.first().copied().unwrap_or(0);
                let next = set.iter().copied().find(|i| *i > last).unwrap_or(first);
                assert_eq!((s.peek("first"), s.peek("next")), (first, next), "{n} {requests:b} {last}");
                assert_eq!(s.peek("hot"), (requests & 1) << last);
                assert_eq!(s.peek("upward"), !0 << last & ((1 << n) - 1));
            }
        }
    }
}
