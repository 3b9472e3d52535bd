//! The primitives, by the interpreter.
//!
//! Requirements: CARD LINE QPS

use hdl::{Interpreter, Module, Ports, Sig, elaborate, index_width};
use nic::prim::flags::{Flags, REGISTERS};
use nic::prim::{async_fifo::AsyncFifo, fifo::Fifo};
use nic::qp::State;
use std::collections::VecDeque;

/// A small deterministic stream of choices.
fn choices(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut s = seed | 1;
    move |n| {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        s % n
    }
}

fn reset(s: &mut Interpreter, pairs: &[(&str, &str)]) {
    for (_, r) in pairs {
        s.poke(r, 1);
    }
    for _ in 0..4 {
        for (c, _) in pairs {
            s.step(c);
        }
    }
    for (_, r) in pairs {
        s.poke(r, 0);
    }
}

#[test]
fn a_fifo_keeps_order_and_fills_to_its_depth() {
    let seed = 7;
    let mut pick = choices(seed);
    let mut s = Interpreter::new(&elaborate(&Fifo { depth: 4, width: 16 }).unwrap());
    reset(&mut s, &[("clock", "reset")]);
    let mut model = VecDeque::new();
    let mut deepest = 0;
    for n in 0..2000u64 {
        // long phases of filling and of draining reach both ends
        let (fill, drain) = if n / 50 % 2 == 0 { (9, 3) } else { (3, 9) };
        let (enter, leave) = (pick(10) < fill, pick(10) < drain);
        s.poke("enter_valid", u64::from(enter));
        s.poke("enter", n & 0xffff);
        s.poke("leave_ready", u64::from(leave));
        assert_eq!(s.peek("leave_valid") == 1, !model.is_empty(), "step {n}, seed {seed}");
        assert_eq!(s.peek("enter_ready") == 1, model.len() < 4, "step {n}, seed {seed}");
        assert_eq!(s.peek("level"), model.len() as u64);
        if leave && let Some(front) = model.front() {
            assert_eq!(s.peek("leave"), *front, "step {n}, seed {seed}");
        }
        let room = model.len() < 4;
        if leave {
            model.pop_front();
        }
        if enter && room {
            model.push_back(n & 0xffff);
        }
        deepest = deepest.max(model.len());
        s.clock();
    }
    assert_eq!(deepest, 4);
}

#[test]
fn an_async_fifo_loses_nothing_between_clocks_of_any_ratio() {
    for (seed, write_of, read_of) in [(1, 8, 5), (2, 5, 8), (3, 1, 7), (4, 7, 1)] {
        let mut pick = choices(seed);
        let mut s = Interpreter::new(&elaborate(&AsyncFifo { depth: 8, width: 16 }).unwrap());
        reset(&mut s, &[("write_clock", "write_reset"), ("read_clock", "read_reset")]);
        let (mut sent, mut got) = (0u64, 0u64);
        while got < 500 {
            if pick(write_of + read_of) < write_of {
                s.poke("enter_valid", u64::from(pick(4) > 0));
                s.poke("enter", sent & 0xffff);
                if s.peek("enter_ready") == 1 && s.peek("enter_valid") == 1 {
                    sent += 1;
                }
                s.step("write_clock");
            } else {
                s.poke("leave_ready", u64::from(pick(3) > 0));
                if s.peek("leave_valid") == 1 && s.peek("leave_ready") == 1 {
                    assert_eq!(s.peek("leave"), got & 0xffff, "seed {seed}");
                    got += 1;
                }
                s.step("read_clock");
            }
            assert!(sent - got <= 8 + 1, "seed {seed}: more inside than fits");
        }
    }
}

#[test]
fn a_state_read_sees_the_write_of_the_same_clock() {
    let mut s = Interpreter::new(&elaborate(&State { word: "t", depth: 8, width: 20, readers: 2 }).unwrap());
    s.poke("write_enable", 1);
    s.poke("write_address", 3);
    s.poke("write_data", 0xabcde);
    s.poke("address_0", 3);
    s.poke("address_1", 4);
    s.clock();
    assert_eq!((s.peek("word_0"), s.peek("word_1")), (0xabcde, 0));
    s.poke("write_enable", 0);
    s.clock();
    assert_eq!(s.peek("word_0"), 0xabcde);
}

/// Bits that three may set in one clock, and two looks at them.
#[derive(Debug)]
struct Bits {
    n: u32,
}

#[derive(Ports)]
#[ports(Bits)]
struct BitsIo {
    #[input(4)]
    valid: Sig,
    #[input(4 * index_width(c.n))]
    which: Sig,
    #[input(index_width(c.n))]
    look: Sig,
    #[output]
    is: Sig,
}

impl Module for Bits {
    type Io = BitsIo;
    fn name(&self) -> String {
        format!("bits_{}", self.n)
    }
    fn body(&self, io: &BitsIo) {
        let flags = Flags::new("flags", self.n, 3);
        let w = index_width(self.n);
        let of = |i: u32| (io.valid.bit(i), io.which.bits(i * w, w));
        flags.change(&[of(1), of(2), of(3)], of(0));
        io.is.set(flags.at(io.look));
    }
}

#[test]
fn flags_are_set_by_several_and_cleared_by_one_in_registers_and_in_ram() {
    for n in [REGISTERS, 2 * REGISTERS, 1024] {
        let mut s = Interpreter::new(&elaborate(&Bits { n }).unwrap());
        reset(&mut s, &[("clock", "reset")]);
        // RAM is swept
        (0..n).for_each(|_| s.clock());
        let mut pick = choices(u64::from(n));
        let mut model = vec![false; n as usize];
        for step in 0..6000 {
            // few of them, so that they meet; sometimes all
            let among = if step % 2 == 0 { 5 } else { u64::from(n) };
            let valid = pick(16);
            let which: Vec<u64> = (0..4).map(|_| pick(among) * (u64::from(n) / among)).collect();
            s.poke("valid", valid);
            s.poke("which", which.iter().rev().fold(0, |all, one| all << index_width(n) | one));
            for i in (1..4).chain([0]).filter(|i| valid >> i & 1 == 1) {
                model[which[i] as usize] = i > 0;
            }
            s.clock();
            s.poke("valid", 0);
            let look = if step % 3 == 0 { pick(u64::from(n)) } else { which[pick(4) as usize] };
            s.poke("look", look);
            assert_eq!(s.peek("is") == 1, model[look as usize], "{n} bits, step {step}, bit {look}");
        }
    }
}
