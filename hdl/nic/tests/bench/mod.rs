//! Helpers of the block tests of the receive side: memories outside of the block, state words by field, choices.
#![allow(dead_code)]

use hdl::{Bits, Interpreter};

#[path = "../common/mod.rs"]
mod common;
pub use common::{Choices, lint};

/// A state word by field: name, width, value; the first field in the most significant bits (as `Bundle::to_bits`).
#[derive(Clone, Debug, PartialEq)]
pub struct Word(pub Vec<(&'static str, u32, u64)>);

impl Word {
    pub fn new(fields: &[(&'static str, u32)]) -> Word {
        Word(fields.iter().map(|(n, w)| (*n, *w, 0)).collect())
    }
    pub fn width(&self) -> u32 {
        self.0.iter().map(|f| f.1).sum()
    }
    pub fn get(&self, name: &str) -> u64 {
        self.0.iter().find(|f| f.0 == name).unwrap_or_else(|| panic!("no field {name}")).2
    }
    pub fn set(&mut self, name: &str, value: u64) {
        let f = self.0.iter_mut().find(|f| f.0 == name).unwrap_or_else(|| panic!("no field {name}"));
        assert!(f.1 >= 64 || value >> f.1 == 0, "{name} of {} bits gets {value:#x}", f.1);
        f.2 = value;
    }
    pub fn with(mut self, name: &str, value: u64) -> Word {
        self.set(name, value);
        self
    }
    pub fn bits(&self) -> Bits {
        let mut b = Bits::zero(self.width());
        let mut at = 0;
        for (_, w, v) in self.0.iter().rev() {
            for i in 0..*w {
                if v >> i & 1 == 1 {
                    b.set_bit(at + i);
                }
            }
            at += w;
        }
        b
    }
    pub fn load(&mut self, bits: &Bits) {
        assert_eq!(bits.width(), self.width(), "width of a state word");
        let mut at = 0;
        for (_, w, v) in self.0.iter_mut().rev() {
            *v = (0..*w).fold(0, |v, i| v | u64::from(bits.bit(at + i)) << i);
            at += *w;
        }
    }
}

pub const PLACED: &[(&str, u32)] = &[
    ("psn", 24),
    ("msn", 24),
    ("tail_seq", 24),
    ("tail_syndrome", 8),
    ("tail_psn", 24),
    ("tail_msn", 24),
    ("halt", 1),
    ("res_head", 8),
    ("rewind_seq", 8),
    ("rewind_index", 8),
    ("rewind_psn", 24),
];
pub const OWED: &[(&str, u32)] = &[
    ("index", 8),
    ("first_psn", 24),
    ("last_psn", 24),
    ("va", 64),
    ("rkey", 32),
    ("length", 32),
    ("msn", 24),
    ("is_atomic", 1),
    ("number", 8),
];
pub const EXPECT: &[(&str, u32)] = &[
    ("epsn", 24),
    ("nak_sent", 1),
    ("open_send", 1),
    ("open_write", 1),
    ("rq_next", 16),
    ("rq_current", 16),
    ("offset", 32),
    ("va", 64),
    ("rkey", 32),
    ("remaining", 32),
    ("halt", 1),
    ("msn", 24),
    ("res_head", 8),
    ("res_kept", 5),
    ("atomics", 8),
    ("touched", 1),
];
pub const REQUESTER: &[(&str, u32)] = &[
    ("una_wqe", 16),
    ("got_wqe", 16),
    ("una_psn", 24),
    ("got_first", 24),
    ("rd_got", 8),
    ("rd_retired", 8),
    ("implied", 1),
    ("epoch", 4),
    ("retries", 3),
    ("rnr_retries", 3),
    ("armed", 1),
    ("deadline", 40),
    ("waiting", 1),
    ("fault", 1),
    ("fault_wqe", 16),
    ("fault_status", 8),
    ("fault_cause", 7),
    ("halt", 1),
];
pub const TX: &[(&str, u32)] = &[
    ("next_psn", 24),
    ("sent_psn", 24),
    ("assigned", 16),
    ("cursor_wqe", 16),
    ("cursor_psn", 24),
    ("cursor_first", 24),
    ("epoch", 4),
    ("paid", 24),
    ("unasked", 8),
    ("rd_next", 8),
    ("halt", 1),
    ("res_cursor", 8),
    ("res_sent", 8),
    ("res_inside", 1),
    ("res_restart", 1),
    ("res_psn", 24),
    ("res_rewind", 8),
    ("res_marked", 1),
    ("res_mark", 8),
    ("res_turn", 1),
    ("drained", 4),
];
pub const RECORD: &[(&str, u32)] =
    &[("last_psn", 24), ("signaled", 1), ("opcode", 8), ("status", 8), ("length", 32), ("is_read", 1)];

/// A memory beside the block: one clock of latency, write-first.
pub struct Ram {
    /// Its contents.
    pub words: Vec<Bits>,
    /// (address port of the block, word port of the block)
    readers: Vec<(&'static str, &'static str)>,
    /// Prefix of the block's write port.
    writer: Option<&'static str>,
}

impl Ram {
    pub fn new(depth: usize, width: u32, address: &'static str, word: &'static str) -> Ram {
        Ram { words: vec![Bits::zero(width); depth], readers: vec![(address, word)], writer: None }
    }
    pub fn written_by(mut self, prefix: &'static str) -> Ram {
        self.writer = Some(prefix);
        self
    }
    pub fn also_read(mut self, address: &'static str, word: &'static str) -> Ram {
        self.readers.push((address, word));
        self
    }
}

/// One clock of the block with its memories.
pub fn clock(s: &mut Interpreter, rams: &mut [&mut Ram]) {
    let mut words = vec![];
    for ram in rams.iter_mut() {
        if let Some(p) = ram.writer
            && s.peek(&format!("{p}_enable")) == 1
        {
            let at = s.peek(&format!("{p}_address")) as usize;
            ram.words[at] = s.peek_bits(&format!("{p}_data"));
        }
        for (address, word) in &ram.readers {
            words.push((*word, ram.words[s.peek(address) as usize].clone()));
        }
    }
    s.clock();
    for (word, bits) in words {
        s.poke_bits(word, &bits);
    }
}

pub fn reset(s: &mut Interpreter) {
    s.poke("reset", 1);
    s.clock();
    s.clock();
    s.poke("reset", 0);
}
