//! The reference interpreter: runs an elaborated design in Rust, so that a block test needs no Verilator.
//!
//! Two-valued; registers and memories without a reset or initial value start at zero. One call of
//! [`Interpreter::step`] is one rising edge of one clock; outputs follow inputs at once on reading.

use crate::bits::{Bits, words};
use crate::elaborate::Design;
use crate::flat::{Flat, FlatKind};
use crate::ir::Op;
use std::collections::HashMap;

#[derive(Clone, Copy)]
struct Slot {
    at: usize,
    words: usize,
    width: u32,
}

/// A running design.
pub struct Interpreter {
    flat: Flat,
    slots: Vec<Slot>,
    values: Vec<u64>,
    memories: Vec<Vec<u64>>,
    order: Vec<u32>,
    dirty: bool,
    paths: HashMap<String, u32>,
    /// Names of properties that were broken, with the number of the step.
    failures: Vec<(String, u64)>,
    covered: HashMap<String, u64>,
    steps: u64,
}

impl Interpreter {
    /// Ready to run, everything at its initial value.
    pub fn new(design: &Design) -> Interpreter {
        let flat = Flat::new(design);
        let order = flat.order().expect("an elaborated design has no loops");
        let mut at = 0;
        let slots: Vec<Slot> = flat
            .nodes
            .iter()
            .map(|n| {
                let s = Slot { at, words: words(n.width), width: n.width };
                at += s.words;
                s
            })
            .collect();
        let mut values = vec![0; at];
        for (n, s) in flat.nodes.iter().zip(&slots) {
            if let FlatKind::Const(c) = &n.kind {
                values[s.at..s.at + s.words].copy_from_slice(c.words());
            }
        }
        let memories = flat
            .memories
            .iter()
            .map(|m| {
                let w = words(m.width);
                let mut v = vec![0; w * m.depth as usize];
                for (i, b) in m.init.iter().flatten().enumerate().take(m.depth as usize) {
                    v[i * w..(i + 1) * w].copy_from_slice(b.words());
                }
                v
            })
            .collect();
        let paths = flat
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, n)| !n.path.is_empty())
            .map(|(i, n)| (n.path.clone(), i as u32))
            .collect();
        Interpreter {
            flat,
            slots,
            values,
            memories,
            order,
            dirty: true,
            paths,
            failures: vec![],
            covered: HashMap::new(),
            steps: 0,
        }
    }

    fn input(&self, name: &str) -> u32 {
        *self.flat.inputs.get(name).unwrap_or_else(|| {
            let mut all: Vec<_> = self.flat.inputs.keys().collect();
            all.sort();
            panic!("`{}` has no input `{name}`; it has {all:?}", self.flat.top)
        })
    }
    fn find(&self, name: &str) -> u32 {
        self.flat
            .outputs
            .get(name)
            .or_else(|| self.paths.get(name))
            .copied()
            .unwrap_or_else(|| panic!("`{}` has no signal `{name}`", self.flat.top))
    }
    /// Puts the low bits of `value` on an input.
    ///
    /// # Panics
    /// If there is no such input, or the value does not fit: both are errors of the test.
    pub fn poke(&mut self, name: &str, value: u64) {
        let s = self.slots[self.input(name) as usize];
        assert!(s.width >= 64 || value >> s.width == 0, "`{name}` has {} bits, got {value:#x}", s.width);
        self.poke_bits(name, &Bits::new(s.width, u128::from(value)));
    }
    /// Puts `value` on an input of its width.
    pub fn poke_bits(&mut self, name: &str, value: &Bits) {
        let s = self.slots[self.input(name) as usize];
        assert_eq!(s.width, value.width(), "width of `{name}`");
        self.values[s.at..s.at + s.words].copy_from_slice(value.words());
        self.dirty = true;
    }
    /// An output of the top, or any signal by its path (`instance.name`); the low 64 bits.
    pub fn peek(&mut self, name: &str) -> u64 {
        self.settle();
        self.values[self.slots[self.find(name) as usize].at]
    }
    /// The same, whole.
    pub fn peek_bits(&mut self, name: &str) -> Bits {
        self.settle();
        let s = self.slots[self.find(name) as usize];
        Bits::from_words(s.width, &self.values[s.at..s.at + s.words])
    }
    /// Word `address` of the memory at `path`.
    pub fn peek_memory(&self, path: &str, address: u32) -> Bits {
        let i = self.flat.memories.iter().position(|m| m.path == path);
        let i = i.unwrap_or_else(|| panic!("`{}` has no memory `{path}`", self.flat.top));
        let (m, w) = (&self.flat.memories[i], words(self.flat.memories[i].width));
        Bits::from_words(m.width, &self.memories[i][address as usize * w..(address as usize + 1) * w])
    }
    /// Broken assertions so far: name and step number.
    pub fn failures(&self) -> &[(String, u64)] {
        &self.failures
    }
    /// How often the cover `path` was reached.
    pub fn covered(&self, path: &str) -> u64 {
        self.covered.get(path).copied().unwrap_or(0)
    }

    /// Lets combinational logic settle.
    fn settle(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let order = std::mem::take(&mut self.order);
        for &id in &order {
            self.evaluate(id);
        }
        self.order = order;
    }

    /// One rising edge of the implicit clock.
    pub fn clock(&mut self) {
        self.step("clock");
    }

    /// One rising edge of the top input `clock`.
    pub fn step(&mut self, clock: &str) {
        self.settle();
        let clock = self.input(clock);
        let value = |s: &Self, id: u32| -> Vec<u64> {
            let slot = s.slots[id as usize];
            s.values[slot.at..slot.at + slot.words].to_vec()
        };
        let high = |s: &Self, id: u32| s.values[s.slots[id as usize].at] & 1 == 1;
        for p in 0..self.flat.properties.len() {
            let property = &self.flat.properties[p];
            if property.clock != clock || property.reset.is_some_and(|r| high(self, r)) {
                continue;
            }
            if high(self, property.condition) {
                if property.cover {
                    *self.covered.entry(property.path.clone()).or_default() += 1;
                }
            } else if !property.cover {
                self.failures.push((property.path.clone(), self.steps));
            }
        }
        let mut updates: Vec<(usize, Vec<u64>)> = vec![];
        for (id, n) in self.flat.nodes.iter().enumerate() {
            match &n.kind {
                FlatKind::Reg { clock: c, reset, next, .. } if *c == clock => {
                    let v = match reset {
                        Some((r, init)) if high(self, *r) => init.words().to_vec(),
                        _ => value(self, *next),
                    };
                    updates.push((self.slots[id].at, v));
                }
                FlatKind::ReadSync { memory, port } => {
                    let r = &self.flat.memories[*memory].reads[*port];
                    if r.clock == Some(clock) && r.enable.is_none_or(|e| high(self, e)) {
                        let v = self.word(*memory, value(self, r.address)[0]);
                        updates.push((self.slots[id].at, v));
                    }
                }
                _ => {}
            }
        }
        let mut writes = vec![];
        for (i, m) in self.flat.memories.iter().enumerate() {
            for w in &m.writes {
                if w.clock == clock && high(self, w.enable) {
                    let address = value(self, w.address)[0];
                    let lanes = w.lanes.map(|l| value(self, l));
                    writes.push((i, address, value(self, w.data), lanes));
                }
            }
        }
        for (at, v) in updates {
            self.values[at..at + v.len()].copy_from_slice(&v);
        }
        for (i, address, data, lanes) in writes {
            let m = &self.flat.memories[i];
            if address >= u64::from(m.depth) {
                continue;
            }
            let w = words(m.width);
            let word = &mut self.memories[i][address as usize * w..(address as usize + 1) * w];
            match lanes {
                None => word.copy_from_slice(&data),
                Some(lanes) => {
                    for bit in 0..m.width {
                        let lane = (bit / m.lane) as usize;
                        if lanes[lane / 64] >> (lane % 64) & 1 == 1 {
                            let (i, b) = (bit as usize / 64, bit % 64);
                            word[i] = word[i] & !(1 << b) | (data[i] >> b & 1) << b;
                        }
                    }
                }
            }
        }
        self.steps += 1;
        self.dirty = true;
    }

    fn word(&self, memory: usize, address: u64) -> Vec<u64> {
        let w = words(self.flat.memories[memory].width);
        if address >= u64::from(self.flat.memories[memory].depth) {
            return vec![0; w];
        }
        self.memories[memory][address as usize * w..(address as usize + 1) * w].to_vec()
    }

    fn evaluate(&mut self, id: u32) {
        let out = self.slots[id as usize];
        let slot = |a: u32| self.slots[a as usize];
        let get = |a: u32| &self.values[slot(a).at..slot(a).at + slot(a).words];
        let result: Vec<u64>;
        match &self.flat.nodes[id as usize].kind {
            FlatKind::Alias(a) => {
                let a = slot(*a);
                self.values.copy_within(a.at..a.at + a.words, out.at);
                return;
            }
            FlatKind::ReadNow { memory, address } => result = self.word(*memory, get(*address)[0]),
            FlatKind::Op(op, args) => {
                let all_narrow = args.iter().all(|a| slot(*a).words == 1);
                if out.words == 1 && all_narrow {
                    let v = |i: usize| get(args[i])[0];
                    let mask = if out.width == 64 { u64::MAX } else { (1 << out.width) - 1 };
                    let r = match op {
                        Op::And => v(0) & v(1),
                        Op::Or => v(0) | v(1),
                        Op::Xor => v(0) ^ v(1),
                        Op::Not => !v(0),
                        Op::Add => v(0).wrapping_add(v(1)),
                        Op::Sub => v(0).wrapping_sub(v(1)),
                        Op::Mul => v(0).wrapping_mul(v(1)),
                        Op::Eq => u64::from(v(0) == v(1)),
                        Op::Ne => u64::from(v(0) != v(1)),
                        Op::Lt => u64::from(v(0) < v(1)),
                        Op::Le => u64::from(v(0) <= v(1)),
                        Op::Shl => {
                            if v(1) >= 64 {
                                0
                            } else {
                                v(0) << v(1)
                            }
                        }
                        Op::Shr => {
                            if v(1) >= 64 {
                                0
                            } else {
                                v(0) >> v(1)
                            }
                        }
                        Op::Any => u64::from(v(0) != 0),
                        Op::All => {
                            let w = slot(args[0]).width;
                            u64::from(v(0) == if w == 64 { u64::MAX } else { (1 << w) - 1 })
                        }
                        Op::Parity => u64::from(v(0).count_ones() & 1),
                        Op::Mux => {
                            if v(0) == 1 {
                                v(1)
                            } else {
                                v(2)
                            }
                        }
                        Op::Slice(low) => v(0) >> low,
                        Op::Extend => v(0),
                        Op::Cat => args.iter().fold(0, |r, a| r << (slot(*a).width % 64) | get(*a)[0]),
                        Op::Repeat(n) => (0..*n).fold(0, |r, _| r << (slot(args[0]).width % 64) | v(0)),
                    };
                    self.values[out.at] = r & mask;
                    return;
                }
                result = wide(*op, args.iter().map(|a| (get(*a), slot(*a).width)).collect(), out);
            }
            _ => return,
        }
        self.values[out.at..out.at + out.words].copy_from_slice(&result);
    }
}

/// Operators on values of more than one word.
fn wide(op: Op, args: Vec<(&[u64], u32)>, out: Slot) -> Vec<u64> {
    let mut r = vec![0u64; out.words];
    let a = args[0].0;
    let each = |r: &mut Vec<u64>, f: &dyn Fn(u64, u64) -> u64| {
        for (i, r) in r.iter_mut().enumerate() {
            *r = f(a[i], args[1].0[i]);
        }
    };
    let compare = || a.iter().rev().cmp(args[1].0.iter().rev());
    let shifted = |value: &[u64], by: i64| -> Vec<u64> {
        // positive: left
        let mut r = vec![0u64; out.words];
        for (i, slot) in r.iter_mut().enumerate() {
            let from = i as i64 * 64 - by;
            let (word, bit) = (from.div_euclid(64), from.rem_euclid(64));
            let at = |w: i64| if w < 0 { 0 } else { value.get(w as usize).copied().unwrap_or(0) };
            *slot = at(word) >> bit | if bit == 0 { 0 } else { at(word + 1) << (64 - bit) };
        }
        r
    };
    match op {
        Op::And => each(&mut r, &|x, y| x & y),
        Op::Or => each(&mut r, &|x, y| x | y),
        Op::Xor => each(&mut r, &|x, y| x ^ y),
        Op::Not => r.iter_mut().zip(a).for_each(|(r, a)| *r = !a),
        Op::Add => {
            let mut carry = false;
            for (i, r) in r.iter_mut().enumerate() {
                let (s, c1) = a[i].overflowing_add(args[1].0[i]);
                let (s, c2) = s.overflowing_add(u64::from(carry));
                (*r, carry) = (s, c1 | c2);
            }
        }
        Op::Sub => {
            let mut borrow = false;
            for (i, r) in r.iter_mut().enumerate() {
                let (s, c1) = a[i].overflowing_sub(args[1].0[i]);
                let (s, c2) = s.overflowing_sub(u64::from(borrow));
                (*r, borrow) = (s, c1 | c2);
            }
        }
        Op::Mul => {
            for (i, x) in a.iter().enumerate() {
                let mut carry = 0u128;
                for j in 0..out.words - i {
                    let t = u128::from(*x) * u128::from(args[1].0[j]) + u128::from(r[i + j]) + carry;
                    r[i + j] = t as u64;
                    carry = t >> 64;
                }
            }
        }
        Op::Eq => r[0] = u64::from(a == args[1].0),
        Op::Ne => r[0] = u64::from(a != args[1].0),
        Op::Lt => r[0] = u64::from(compare().is_lt()),
        Op::Le => r[0] = u64::from(compare().is_le()),
        Op::Shl | Op::Shr => {
            let by = args[1].0;
            if by[1..].iter().all(|w| *w == 0) && by[0] < u64::from(out.width) {
                let by = by[0] as i64;
                r = shifted(a, if op == Op::Shl { by } else { -by });
            }
        }
        Op::Any => r[0] = u64::from(a.iter().any(|w| *w != 0)),
        Op::All => {
            let w = args[0].1;
            let top = if w.is_multiple_of(64) { u64::MAX } else { (1 << (w % 64)) - 1 };
            r[0] = u64::from(a[..a.len() - 1].iter().all(|w| *w == u64::MAX) && a[a.len() - 1] == top);
        }
        Op::Parity => r[0] = u64::from(a.iter().fold(0, |p, w| p ^ (w.count_ones() & 1))),
        Op::Mux => r.copy_from_slice(if a[0] == 1 { args[1].0 } else { args[2].0 }),
        Op::Slice(low) => r = shifted(a, -i64::from(low)),
        Op::Extend => r[..a.len()].copy_from_slice(a),
        Op::Cat | Op::Repeat(_) => {
            let parts: Vec<_> = match op {
                Op::Repeat(n) => vec![args[0]; n as usize],
                _ => args.clone(),
            };
            let mut at = 0;
            for (value, width) in parts.into_iter().rev() {
                for (r, s) in r.iter_mut().zip(shifted(value, at)) {
                    *r |= s;
                }
                at += i64::from(width);
            }
        }
    }
    if !out.width.is_multiple_of(64) {
        r[out.words - 1] &= (1 << (out.width % 64)) - 1;
    }
    r
}
