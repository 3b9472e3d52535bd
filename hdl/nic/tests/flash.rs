//! The flash registers and the shifter behind them, and the words that load the FPGA anew: at the pins, clock by clock.
//!
//! ```text
//! accesses ──> csr <──> flash ── select_n, clock, mosi ──> a flash of the test that answers the complement, late
//! ```
//!
//! Requirements: CARD

mod common;
mod flash_block;

use common::lint;
use contract::register as r;
use flash_block::Block;
use hdl::{Interpreter, elaborate};
use nic::Config;
use nic::boards::reload::{Reload, WORDS};
use nic::csr::Csr;

/// The block, and what a flash sees: one entry per rising edge.
struct Bench {
    s: Interpreter,
    /// (clock, mosi) of every rising edge while selected.
    bits: Vec<(u64, u64)>,
    /// Rising edges while not selected.
    idle_edges: u64,
    clock: u64,
    level: u64,
    /// What is on its way to `miso`: when, what.
    answers: Vec<(u64, u64)>,
    /// Clocks from a falling edge until its bit is at `miso`.
    late: u64,
}

impl Bench {
    fn new(c: Config) -> Bench {
        let mut s = Interpreter::new(&elaborate(&Block(c)).unwrap_or_else(|e| panic!("{e}")));
        s.poke("reset", 1);
        s.clock();
        s.clock();
        s.poke("reset", 0);
        s.poke("read_ready", 1);
        Bench { s, bits: vec![], idle_edges: 0, clock: 0, level: 0, answers: vec![], late: 0 }
    }
    fn clock(&mut self) {
        self.s.clock();
        self.clock += 1;
        let level = self.s.peek("clock_out");
        if level > self.level {
            match self.s.peek("select_n") {
                0 => self.bits.push((self.clock, self.s.peek("mosi"))),
                _ => self.idle_edges += 1,
            }
        }
        // the answer to a bit is its complement, one bit later
        if level < self.level {
            let bit = self.bits.last().map_or(0, |(_, bit)| 1 - bit);
            self.answers.push((self.clock + self.late, bit));
        }
        self.level = level;
        if let Some(at) = self.answers.iter().position(|(when, _)| *when <= self.clock) {
            let (_, bit) = self.answers.remove(at);
            self.s.poke("miso", bit);
        }
    }
    fn access(&mut self, write: bool, address: u32, data: u64, enables: u64) -> u64 {
        self.s.poke("access_valid", 1);
        self.s.poke("access_write", u64::from(write));
        self.s.poke("access_address", u64::from(address & !7));
        self.s.poke("access_data", data);
        self.s.poke("access_enables", enables);
        while self.s.peek("access_ready") == 0 {
            self.clock();
        }
        self.clock();
        self.s.poke("access_valid", 0);
        if write {
            return 0;
        }
        while self.s.peek("read_valid") == 0 {
            self.clock();
        }
        let data = self.s.peek("read");
        self.clock();
        data
    }
    fn write(&mut self, address: u32, data: u64) {
        self.access(true, address, data, 0xff);
    }
    fn read(&mut self, address: u32) -> u64 {
        self.access(false, address, 0, 0xff)
    }
    /// Selects, exchanges `bytes` bytes of `word`; the clocks from the start until none is left.
    fn exchange(&mut self, word: u64, bytes: u64) -> u64 {
        self.write(r::FLASH_DATA, word);
        self.write(r::FLASH_CONTROL, u64::from(r::FLASH_SELECT) | bytes << 32);
        let begin = self.clock;
        while self.read(r::FLASH_CONTROL) >> 32 != 0 {}
        self.clock - begin
    }
}

fn card() -> Config {
    Config::full().with_flash()
}

#[test]
fn eight_bytes_go_out_and_come_back_in_order_at_sixteen_clocks_a_bit() {
    // the answer may come as late as three clocks before the next falling edge
    for late in [0, 5, 13] {
        let mut b = Bench::new(card());
        b.late = late;
        let word = 0x8877_6655_4433_2211_u64;
        let clocks = b.exchange(word, 8);
        assert!((1024..1040).contains(&clocks), "{clocks}");
        let sent: Vec<u8> =
            b.bits.chunks(8).map(|bits| bits.iter().fold(0, |b, (_, m)| b << 1 | *m as u8)).collect();
        assert_eq!(sent, word.to_le_bytes(), "low byte first, most significant bit first");
        let apart: Vec<u64> = b.bits.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert_eq!(apart, [16; 63]);
        // the flash answered every bit a bit later: the stream of complements, shifted by one
        let back = b.read(r::FLASH_DATA).to_le_bytes();
        let (sent, back) = (u64::from_be_bytes(word.to_le_bytes()), u64::from_be_bytes(back));
        assert_eq!(back, !sent >> 1, "late {late}");
        assert_eq!(b.s.peek("select_n"), 0, "selected until it is told otherwise");
        b.write(r::FLASH_CONTROL, 0);
        b.clock();
        assert_eq!((b.s.peek("select_n"), b.s.peek("clock_out")), (1, 0));
    }
}

#[test]
fn fewer_bytes_leave_the_rest_of_the_word_and_stand_highest_afterwards() {
    let mut b = Bench::new(card());
    b.exchange(0x0605_0403_0201_9f9f, 2);
    assert_eq!(b.bits.len(), 16);
    let word = b.read(r::FLASH_DATA);
    assert_eq!(word & 0xffff_ffff_ffff, 0x0605_0403_0201, "what was not sent has moved down");
    assert_eq!(word >> 48, 0x3030, "two times the complement of 9f, a bit late");
}

#[test]
fn nothing_disturbs_a_transfer_and_wrong_counts_start_none() {
    let mut b = Bench::new(card());
    for count in [0, 9, 15, 16, 1 << 31] {
        b.write(r::FLASH_CONTROL, u64::from(r::FLASH_SELECT) | count << 32);
        assert_eq!(b.read(r::FLASH_CONTROL) >> 32, 0, "{count}");
    }
    // bytes of the count alone are no count
    b.access(true, r::FLASH_TRANSFER, 1 << 32, 0x10);
    assert_eq!(b.read(r::FLASH_CONTROL) >> 32, 0);
    assert_eq!(b.bits, []);
    b.write(r::FLASH_DATA, 0xa5);
    b.write(r::FLASH_CONTROL, u64::from(r::FLASH_SELECT) | 1 << 32);
    for _ in 0..40 {
        b.clock();
    }
    b.write(r::FLASH_DATA, 0);
    b.write(r::FLASH_CONTROL, u64::from(r::FLASH_SELECT) | 8 << 32);
    while b.read(r::FLASH_CONTROL) >> 32 != 0 {}
    for _ in 0..40 {
        b.clock();
    }
    let sent: Vec<u64> = b.bits.iter().map(|(_, bit)| *bit).collect();
    assert_eq!(sent, [1, 0, 1, 0, 0, 1, 0, 1]);
}

#[test]
fn clocks_go_without_a_selected_flash_and_a_reset_ends_everything() {
    let mut b = Bench::new(card());
    b.write(r::FLASH_CONTROL, 1 << 32);
    while b.read(r::FLASH_CONTROL) >> 32 != 0 {}
    assert_eq!((b.idle_edges, b.bits.len()), (8, 0), "the start-up block swallows the first few");
    b.write(r::FLASH_CONTROL, u64::from(r::FLASH_SELECT) | 8 << 32);
    for _ in 0..100 {
        b.clock();
    }
    b.s.poke("reset", 1);
    b.clock();
    b.s.poke("reset", 0);
    b.clock();
    assert_eq!((b.s.peek("select_n"), b.s.peek("clock_out")), (1, 0));
    assert_eq!(b.read(r::FLASH_CONTROL), 0);
}

#[test]
fn only_the_whole_key_loads_the_fpga_anew() {
    let mut b = Bench::new(card());
    let key = u64::from(r::FLASH_RELOAD_KEY);
    for (data, enables) in [(0, 0xff), (1, 0xff), (key ^ 1, 0xff), (key, 0x07), (key << 32, 0xff)] {
        b.access(true, r::FLASH_RELOAD, data, enables);
        assert_eq!(b.s.peek("reload"), 0, "{data:#x} {enables:#x}");
    }
    b.access(true, r::FLASH_RELOAD, key, 0x0f);
    assert_eq!((b.s.peek("reload"), b.read(r::FLASH_RELOAD)), (1, 0));
}

#[test]
fn a_card_says_whether_it_has_a_flash_and_without_one_the_registers_are_holes() {
    for (c, has) in [(card(), 1), (Config { flash_half_clocks: 0, ..card() }, 0)] {
        let mut s = Interpreter::new(&elaborate(&Csr { c, rejects: vec![], stages: vec![] }).unwrap());
        s.poke("flash_left", 3);
        let mut access = |write: u64, address: u32, data: u64| {
            for (pin, value) in [
                ("access_valid", 1),
                ("access_write", write),
                ("access_address", u64::from(address)),
                ("access_data", data),
                ("access_enables", 0xff),
                ("read_ready", 1),
            ] {
                s.poke(pin, value);
            }
            s.clock();
            s.poke("access_valid", 0);
            let selected = s.peek("flash_select");
            for _ in 0..3 {
                if s.peek("read_valid") == 1 {
                    break;
                }
                s.clock();
            }
            let read = s.peek("read");
            s.clock();
            (selected, read)
        };
        let features = access(0, r::FEATURES, 0).1 as u32;
        assert_eq!(u64::from(features & r::feature::FLASH != 0), has);
        assert_eq!(access(1, r::FLASH_CONTROL, 1).0, has);
        assert_eq!(access(0, r::FLASH_CONTROL, 0).1, has * (3 << 32 | 1));
    }
}

#[test]
fn the_words_of_an_internal_program_go_to_the_port_once_while_it_takes_them() {
    let mut s = Interpreter::new(&elaborate(&Reload).unwrap());
    let mut got = vec![];
    for clock in 0..40 {
        s.poke("wanted", u64::from(clock >= 5));
        s.poke("avail", u64::from(!(9..=12).contains(&clock)));
        s.clock();
        if s.peek("csib") == 0 {
            got.push((clock, s.peek("word") as u32));
        }
    }
    // each byte with its bits turned round, as the words are known from other designs
    let words: Vec<u32> = got.iter().map(|(_, word)| *word).collect();
    assert_eq!(words, [0xffff_ffff, 0x5599_aa66, 0x0400_0000, 0x0c00_0180, 0x0000_00f0, 0x0400_0000]);
    assert!(got[0].0 > 5 && got.iter().all(|(clock, _)| !(9..=12).contains(clock)), "{got:?}");
    let turned = WORDS.map(|w| u32::from_be_bytes(w.to_be_bytes().map(u8::reverse_bits)));
    assert_eq!(words, turned);
}

#[test]
fn the_emitted_verilog_is_clean() {
    lint(&elaborate(&Block(card())).unwrap());
    lint(&elaborate(&Reload).unwrap());
}
