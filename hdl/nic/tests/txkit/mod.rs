//! What the transmit tests share: state words as Rust structs, seeds, and a lint of the emitted Verilog.
#![allow(dead_code)]

use hdl::{Bits, Interpreter};

#[path = "../common/mod.rs"]
mod common;
pub use common::{Choices, lint};

/// A state word: fields with widths, the first in the most significant bits, as `Bundle::to_bits` lays them.
#[macro_export]
macro_rules! word {
    ($name:ident { $($f:ident: $w:expr),* $(,)? }) => {
        #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
        pub struct $name { $(pub $f: u64),* }
        impl $name {
            pub fn pack(&self) -> Bits {
                $crate::txkit::pack(&[$(($w, self.$f)),*])
            }
            pub fn unpack(bits: &Bits) -> Self {
                let mut high = bits.width();
                $(high -= $w; let $f = $crate::txkit::field(bits, high, $w);)*
                assert_eq!(high, 0, "{} is {} bits", stringify!($name), bits.width());
                $name { $($f),* }
            }
        }
    };
}

pub fn pack(fields: &[(u32, u64)]) -> Bits {
    let width = fields.iter().map(|f| f.0).sum();
    let mut bits = Bits::zero(width);
    let mut high = width;
    for (w, v) in fields {
        assert!(*w == 64 || v >> w == 0, "{v:#x} in {w} bits");
        high -= w;
        (0..*w).filter(|i| v >> i & 1 == 1).for_each(|i| bits.set_bit(high + i));
    }
    bits
}

pub fn field(bits: &Bits, low: u32, width: u32) -> u64 {
    (0..width).map(|i| u64::from(bits.bit(low + i)) << i).sum()
}

word!(Tx {
    next_psn: 24,
    sent_psn: 24,
    assigned: 16,
    cursor_wqe: 16,
    cursor_psn: 24,
    cursor_first: 24,
    epoch: 4,
    paid: 24,
    unasked: 8,
    rd_next: 8,
    halt: 1,
    res_cursor: 8,
    res_sent: 8,
    res_inside: 1,
    res_restart: 1,
    res_psn: 24,
    res_rewind: 8,
    res_marked: 1,
    res_mark: 8,
    res_turn: 1,
    drained: 4
});
word!(Requester {
    una_wqe: 16,
    got_wqe: 16,
    una_psn: 24,
    got_first: 24,
    rd_got: 8,
    rd_retired: 8,
    implied: 1,
    epoch: 4,
    retries: 3,
    rnr_retries: 3,
    armed: 1,
    deadline: 40,
    waiting: 1,
    fault: 1,
    fault_wqe: 16,
    fault_status: 8,
    fault_cause: 7,
    halt: 1
});
word!(Placed {
    psn: 24,
    msn: 24,
    tail_seq: 24,
    tail_syndrome: 8,
    tail_psn: 24,
    tail_msn: 24,
    halt: 1,
    res_head: 8,
    rewind_seq: 8,
    rewind_index: 8,
    rewind_psn: 24
});
word!(OwedRead {
    index: 8,
    first_psn: 24,
    last_psn: 24,
    va: 64,
    rkey: 32,
    length: 32,
    msn: 24,
    is_atomic: 1,
    number: 8
});
word!(Outcome { failed: 1, original: 64 });
word!(Record { last_psn: 24, signaled: 1, opcode: 8, status: 8, length: 32, is_read: 1 });

/// Puts the block into reset for a clock.
pub fn reset(s: &mut Interpreter) {
    s.poke("reset", 1);
    s.clock();
    s.poke("reset", 0);
}

/// The sizes of a 512-bit card, to see that every width follows.
pub fn wide() -> nic::Config {
    nic::Config {
        name: "wide",
        data_bytes: 64,
        qps: 128,
        mrs: 1024,
        records: 8192,
        wqe_slots: 2,
        transmit_buffer_bytes: 65536,
        transmit_slots: 64,
        ..nic::Config::small()
    }
}
