//! The reference interpreter: runs an elaborated design in Rust, so that a block test needs no Verilator.
//!
//! ```text
//!   Flat ──> one list of instructions on an array of words ──settle──> values ──step──> bank of one clock's registers
//! ```
//! Two-valued; registers and memories without a reset or initial value start at zero, outputs of black boxes stay
//! zero. One call of [`Interpreter::step`] is one rising edge of one clock; outputs follow inputs at once on reading.
//!
//! Speed: operands are offsets, resolved once; values of up to 64 bits are one word and one instruction; nothing is
//! allocated while it runs. After a `poke` only what depends on an input is evaluated again, after a clock that
//! changed no register nothing.

use crate::bits::{Bits, words};
use crate::elaborate::Design;
use crate::flat::{Flat, FlatKind};
use crate::ir::Op;
use std::collections::HashMap;

/// Where a value stands: first word and number of bits.
#[derive(Clone, Copy)]
struct Slot {
    at: usize,
    width: u32,
}
impl Slot {
    fn words(self) -> usize {
        words(self.width)
    }
}

/// What an instruction does with the words at `a`, `b`, `c`; the result is cut by `mask`.
#[derive(Clone, Copy)]
enum Code {
    And,
    Or,
    Xor,
    Not,
    Add,
    Sub,
    Mul,
    Eq,
    Ne,
    Lt,
    Le,
    Shl,
    Shr,
    /// `a` is all of `mask`.
    All,
    Any,
    Parity,
    /// `a` ? `b` : `c`.
    Mux,
    /// `a` above the `shift` bits of `b`.
    Cat,
    /// `a` from bit `shift`.
    Slice,
    /// The same from the two words at `a`.
    Straddle,
    /// Word `a` of memory `b`, which has `c` words per entry.
    Read,
    /// Entry `a` of the wide operations.
    Wide,
}

#[derive(Clone, Copy)]
struct Instruction {
    code: Code,
    shift: u8,
    out: u32,
    a: u32,
    b: u32,
    c: u32,
    mask: u64,
}

struct Wide {
    op: Op,
    out: Slot,
    args: Vec<Slot>,
}

struct Update {
    /// Offset in the bank.
    to: usize,
    from: usize,
    words: usize,
    /// Reset and the value that it puts.
    reset: Option<(usize, usize)>,
}

struct Read {
    to: usize,
    memory: usize,
    enable: Option<usize>,
    address: usize,
}

struct Write {
    memory: usize,
    enable: usize,
    address: usize,
    data: usize,
    lanes: Option<usize>,
}

struct Property {
    path: String,
    condition: usize,
    reset: Option<usize>,
    /// For a cover: how often it was reached.
    covered: Option<u64>,
}

/// Everything that one clock moves. Its registers stand together, so that an edge ends in one copy.
struct Bank {
    /// Where the clock stands.
    clock: usize,
    at: usize,
    next: Vec<u64>,
    updates: Vec<Update>,
    reads: Vec<Read>,
    writes: Vec<Write>,
    properties: Vec<Property>,
}

struct Store {
    path: String,
    width: u32,
    depth: u32,
    lane: u32,
    ignores_collisions: bool,
    content: Vec<u64>,
}

/// A running design.
pub struct Interpreter {
    top: String,
    values: Vec<u64>,
    memories: Vec<Store>,
    /// Instructions that no input reaches, then the others; each part operands first.
    program: Vec<Instruction>,
    /// Number of instructions that no input reaches.
    quiet: usize,
    wides: Vec<Wide>,
    banks: Vec<Bank>,
    state_changed: bool,
    input_changed: bool,
    inputs: HashMap<String, Slot>,
    signals: HashMap<String, Slot>,
    /// Names of properties that were broken, with the number of the step.
    failures: Vec<(String, u64)>,
    steps: u64,
}

fn mask(width: u32) -> u64 {
    u64::MAX >> (64 - width)
}

/// Builds the instructions.
struct Compiler<'a> {
    flat: &'a Flat,
    /// The node whose words a node shares: aliases and extensions within a word cost nothing.
    base: Vec<u32>,
    at: Vec<usize>,
    values: Vec<u64>,
    wides: Vec<Wide>,
}

impl Compiler<'_> {
    fn reserve(&mut self, id: u32) {
        let width = self.flat.nodes[id as usize].width;
        self.at[id as usize] = self.values.len();
        self.values.resize(self.values.len() + words(width), 0);
    }
    fn constant(&mut self, value: &Bits) -> usize {
        self.values.extend(value.words());
        self.values.len() - value.words().len()
    }
    fn slot(&self, id: u32) -> Slot {
        Slot { at: self.at[self.base[id as usize] as usize], width: self.flat.nodes[id as usize].width }
    }

    fn instructions(&mut self, id: u32, out: &mut Vec<Instruction>) {
        let to = self.slot(id);
        let one = |code, a: usize, b: usize, c: usize, shift: u32, mask| Instruction {
            code,
            shift: shift as u8,
            out: to.at as u32,
            a: a as u32,
            b: b as u32,
            c: c as u32,
            mask,
        };
        let (op, args) = match &self.flat.nodes[id as usize].kind {
            FlatKind::ReadNow { memory, address } => {
                out.push(one(Code::Read, self.slot(*address).at, *memory, to.words(), 0, 0));
                return;
            }
            FlatKind::Op(op, args) => (*op, args.iter().map(|a| self.slot(*a)).collect::<Vec<_>>()),
            _ => return,
        };
        let a = args[0];
        let at = |i: usize| args.get(i).map_or(0, |s| s.at);
        let narrow = to.words() == 1 && args.iter().all(|s| s.words() == 1);
        let plain = |code, mask| one(code, at(0), at(1), at(2), 0, mask);
        let m = mask(to.width.min(64));
        match op {
            Op::Slice(low) if to.words() == 1 => {
                let (word, bit) = (a.at + low as usize / 64, low % 64);
                let code = if bit + to.width > 64 { Code::Straddle } else { Code::Slice };
                out.push(one(code, word, 0, 0, bit, m));
            }
            Op::Cat if narrow => {
                // two parts at a time: the result so far moves up
                let mut so_far = a.at;
                for part in &args[1..] {
                    out.push(one(Code::Cat, so_far, part.at, 0, part.width, m));
                    so_far = to.at;
                }
            }
            Op::Repeat(n) if narrow => {
                let ones = (0..n).fold(0, |r, i| r | 1 << (i * a.width));
                let ones = self.constant(&Bits::new(64, ones));
                out.push(one(Code::Mul, a.at, ones, 0, 0, m));
            }
            Op::All if narrow => out.push(plain(Code::All, mask(a.width))),
            _ if narrow => {
                let code = match op {
                    Op::And => Code::And,
                    Op::Or => Code::Or,
                    Op::Xor => Code::Xor,
                    Op::Not => Code::Not,
                    Op::Add => Code::Add,
                    Op::Sub => Code::Sub,
                    Op::Mul => Code::Mul,
                    Op::Eq => Code::Eq,
                    Op::Ne => Code::Ne,
                    Op::Lt => Code::Lt,
                    Op::Le => Code::Le,
                    Op::Shl => Code::Shl,
                    Op::Shr => Code::Shr,
                    Op::Any => Code::Any,
                    Op::Parity => Code::Parity,
                    Op::Mux => Code::Mux,
                    Op::All | Op::Cat | Op::Repeat(_) | Op::Slice(_) => unreachable!("matched above"),
                    Op::Extend => unreachable!("shares the words of its operand"),
                };
                out.push(plain(code, m));
            }
            _ => {
                out.push(one(Code::Wide, self.wides.len(), 0, 0, 0, 0));
                self.wides.push(Wide { op, out: to, args });
            }
        }
    }
}

impl Interpreter {
    /// Ready to run, everything at its initial value.
    pub fn new(design: &Design) -> Interpreter {
        let flat = Flat::new(design);
        let order = flat.order().expect("an elaborated design has no loops");
        let count = flat.nodes.len();
        let mut c = Compiler {
            flat: &flat,
            base: (0..count as u32).collect(),
            at: vec![usize::MAX; count],
            values: vec![],
            wides: vec![],
        };
        for &id in &order {
            match &flat.nodes[id as usize].kind {
                FlatKind::Alias(a) => c.base[id as usize] = c.base[*a as usize],
                FlatKind::Op(Op::Extend, args)
                    if words(flat.nodes[args[0] as usize].width) == words(flat.nodes[id as usize].width) =>
                {
                    c.base[id as usize] = c.base[args[0] as usize];
                }
                _ => {}
            }
        }

        // registers, clock by clock
        let clock_of = |kind: &FlatKind| match kind {
            FlatKind::Reg { clock, .. } => Some(*clock),
            FlatKind::ReadSync { memory, port } => flat.memories[*memory].reads[*port].clock,
            _ => None,
        };
        let mut clocks: Vec<u32> = flat.nodes.iter().filter_map(|n| clock_of(&n.kind)).collect();
        clocks.extend(flat.memories.iter().flat_map(|m| m.writes.iter().map(|w| w.clock)));
        clocks.extend(flat.properties.iter().map(|p| p.clock));
        clocks.sort_unstable();
        clocks.dedup();
        let mut starts = vec![];
        for clock in &clocks {
            starts.push(c.values.len());
            for (id, n) in flat.nodes.iter().enumerate() {
                if clock_of(&n.kind) == Some(*clock) {
                    c.reserve(id as u32);
                }
            }
        }
        let ends: Vec<usize> =
            starts[1.min(starts.len())..].iter().copied().chain([c.values.len()]).collect();

        // everything else that something reads or that has a name
        let mut live = vec![false; count];
        let mut open: Vec<u32> =
            (0..count as u32).filter(|id| !flat.nodes[*id as usize].path.is_empty()).collect();
        for n in &flat.nodes {
            if let FlatKind::Reg { reset, next, .. } = &n.kind {
                open.push(*next);
                open.extend(reset.iter().map(|r| r.0));
            }
        }
        for m in &flat.memories {
            for w in &m.writes {
                open.extend([w.enable, w.address, w.data]);
                open.extend(w.lanes);
            }
            for r in &m.reads {
                open.push(r.address);
                open.extend(r.enable);
            }
        }
        for p in &flat.properties {
            open.push(p.condition);
            open.extend(p.reset);
        }
        open.extend(&clocks);
        while let Some(id) = open.pop() {
            let base = c.base[id as usize];
            if !std::mem::replace(&mut live[base as usize], true) {
                flat.operands(base, |o| open.push(o));
            }
        }
        for (id, n) in flat.nodes.iter().enumerate() {
            if live[id] && c.base[id] == id as u32 && c.at[id] == usize::MAX {
                c.reserve(id as u32);
                if let FlatKind::Const(value) = &n.kind {
                    let at = c.at[id];
                    c.values[at..at + value.words().len()].copy_from_slice(value.words());
                }
            }
        }

        let mut from_input: Vec<bool> =
            flat.nodes.iter().map(|n| matches!(n.kind, FlatKind::Input)).collect();
        let (mut program, mut fed) = (vec![], vec![]);
        for &id in &order {
            let mut reached = false;
            flat.operands(id, |o| reached |= from_input[o as usize]);
            from_input[id as usize] = reached;
            if live[id as usize] && c.base[id as usize] == id {
                c.instructions(id, if reached { &mut fed } else { &mut program });
            }
        }
        let quiet = program.len();
        program.extend(fed);

        let mut banks = vec![];
        for ((&clock, &at), &end) in clocks.iter().zip(&starts).zip(&ends) {
            let word = |c: &Compiler, id: u32| c.slot(id).at;
            let (mut updates, mut reads) = (vec![], vec![]);
            for (id, n) in flat.nodes.iter().enumerate() {
                if clock_of(&n.kind) != Some(clock) {
                    continue;
                }
                let to = c.at[id] - at;
                match &n.kind {
                    FlatKind::Reg { reset, next, .. } => updates.push(Update {
                        to,
                        from: word(&c, *next),
                        words: words(n.width),
                        reset: reset.as_ref().map(|(r, init)| (word(&c, *r), c.constant(init))),
                    }),
                    FlatKind::ReadSync { memory, port } => {
                        let r = &flat.memories[*memory].reads[*port];
                        reads.push(Read {
                            to,
                            memory: *memory,
                            enable: r.enable.map(|e| word(&c, e)),
                            address: word(&c, r.address),
                        });
                    }
                    _ => {}
                }
            }
            let writes = flat.memories.iter().enumerate().flat_map(|(memory, m)| {
                m.writes.iter().filter(|w| w.clock == clock).map(move |w| (memory, w))
            });
            let writes = writes
                .map(|(memory, w)| Write {
                    memory,
                    enable: word(&c, w.enable),
                    address: word(&c, w.address),
                    data: word(&c, w.data),
                    lanes: w.lanes.map(|l| word(&c, l)),
                })
                .collect();
            let properties = flat.properties.iter().filter(|p| p.clock == clock).map(|p| Property {
                path: p.path.clone(),
                condition: word(&c, p.condition),
                reset: p.reset.map(|r| word(&c, r)),
                covered: p.cover.then_some(0),
            });
            let properties = properties.collect();
            let clock = word(&c, clock);
            banks.push(Bank { clock, at, next: vec![0; end - at], updates, reads, writes, properties });
        }
        let memories = flat
            .memories
            .iter()
            .map(|m| {
                let w = words(m.width);
                let mut content = vec![0; w * m.depth as usize];
                for (i, b) in m.init.iter().flatten().enumerate() {
                    content[i * w..(i + 1) * w].copy_from_slice(b.words());
                }
                Store {
                    path: m.path.clone(),
                    width: m.width,
                    depth: m.depth,
                    lane: m.lane,
                    ignores_collisions: m.ignores_collisions,
                    content,
                }
            })
            .collect();
        let named = |(name, id): (&String, &u32)| (name.clone(), c.slot(*id));
        let mut signals: HashMap<String, Slot> = flat
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, n)| !n.path.is_empty())
            .map(|(id, n)| (n.path.clone(), c.slot(id as u32)))
            .collect();
        signals.extend(flat.outputs.iter().map(named));
        Interpreter {
            inputs: flat.inputs.iter().map(named).collect(),
            signals,
            memories,
            program,
            quiet,
            banks,
            state_changed: true,
            input_changed: true,
            failures: vec![],
            steps: 0,
            wides: c.wides,
            values: c.values,
            top: flat.top,
        }
    }

    fn input(&self, name: &str) -> Slot {
        *self.inputs.get(name).unwrap_or_else(|| {
            let mut all: Vec<_> = self.inputs.keys().collect();
            all.sort();
            panic!("`{}` has no input `{name}`; it has {all:?}", self.top)
        })
    }
    fn find(&self, name: &str) -> Slot {
        *self.signals.get(name).unwrap_or_else(|| panic!("`{}` has no signal `{name}`", self.top))
    }
    /// Puts the low bits of `value` on an input.
    ///
    /// # Panics
    /// If there is no such input, or the value does not fit: both are errors of the test.
    pub fn poke(&mut self, name: &str, value: u64) {
        let s = self.input(name);
        assert!(s.width >= 64 || value >> s.width == 0, "`{name}` has {} bits, got {value:#x}", s.width);
        self.put(s, &[value]);
    }
    /// Puts `value` on an input of its width.
    ///
    /// # Panics
    /// If there is no such input, or the width differs.
    pub fn poke_bits(&mut self, name: &str, value: &Bits) {
        let s = self.input(name);
        assert_eq!(s.width, value.width(), "width of `{name}`");
        self.put(s, value.words());
    }
    /// Missing words are zero.
    fn put(&mut self, slot: Slot, from: &[u64]) {
        for (i, to) in self.values[slot.at..slot.at + slot.words()].iter_mut().enumerate() {
            let word = from.get(i).copied().unwrap_or(0);
            self.input_changed |= *to != word;
            *to = word;
        }
    }
    /// An output of the top, or any signal by its path (`instance.name`); the low 64 bits.
    ///
    /// # Panics
    /// If there is no such signal.
    pub fn peek(&mut self, name: &str) -> u64 {
        self.settle();
        self.values[self.find(name).at]
    }
    /// The same, whole.
    ///
    /// # Panics
    /// If there is no such signal.
    pub fn peek_bits(&mut self, name: &str) -> Bits {
        self.settle();
        let s = self.find(name);
        Bits::from_words(s.width, &self.values[s.at..s.at + s.words()])
    }
    /// Word `address` of the memory at `path`.
    ///
    /// # Panics
    /// If there is no such memory or word.
    pub fn peek_memory(&self, path: &str, address: u32) -> Bits {
        let m = self.memories.iter().find(|m| m.path == path);
        let m = m.unwrap_or_else(|| panic!("`{}` has no memory `{path}`", self.top));
        let w = words(m.width);
        Bits::from_words(m.width, &m.content[address as usize * w..(address as usize + 1) * w])
    }
    /// Broken assertions so far: name and step number.
    pub fn failures(&self) -> &[(String, u64)] {
        &self.failures
    }
    /// How often the cover `path` was reached.
    pub fn covered(&self, path: &str) -> u64 {
        let mut all = self.banks.iter().flat_map(|b| &b.properties);
        all.find(|p| p.path == path).and_then(|p| p.covered).unwrap_or(0)
    }

    /// Lets combinational logic settle.
    fn settle(&mut self) {
        let state = std::mem::take(&mut self.state_changed);
        if !std::mem::take(&mut self.input_changed) && !state {
            return;
        }
        let Self { program, values: v, memories, wides, quiet, .. } = self;
        for i in &program[if state { 0 } else { *quiet }..] {
            let (a, b) = (i.a as usize, i.b as usize);
            let result = match i.code {
                Code::And => v[a] & v[b],
                Code::Or => v[a] | v[b],
                Code::Xor => v[a] ^ v[b],
                Code::Not => !v[a],
                Code::Add => v[a].wrapping_add(v[b]),
                Code::Sub => v[a].wrapping_sub(v[b]),
                Code::Mul => v[a].wrapping_mul(v[b]),
                Code::Eq => u64::from(v[a] == v[b]),
                Code::Ne => u64::from(v[a] != v[b]),
                Code::Lt => u64::from(v[a] < v[b]),
                Code::Le => u64::from(v[a] <= v[b]),
                Code::Shl if v[b] >= 64 => 0,
                Code::Shl => v[a] << v[b],
                Code::Shr if v[b] >= 64 => 0,
                Code::Shr => v[a] >> v[b],
                Code::All => u64::from(v[a] == i.mask),
                Code::Any => u64::from(v[a] != 0),
                Code::Parity => u64::from(v[a].count_ones() & 1),
                Code::Mux => v[if v[a] == 1 { i.b } else { i.c } as usize],
                Code::Cat => v[a] << i.shift | v[b],
                Code::Slice => v[a] >> i.shift,
                Code::Straddle => v[a] >> i.shift | v[a + 1] << (64 - i.shift),
                Code::Read => {
                    let (word, out) = (memories[b].word(v[a]), i.out as usize);
                    match word {
                        Some(word) => v[out..out + word.len()].copy_from_slice(word),
                        None => v[out..out + i.c as usize].fill(0),
                    }
                    continue;
                }
                Code::Wide => {
                    let w = &wides[a];
                    wide(v, w.op, w.out, &w.args);
                    continue;
                }
            };
            v[i.out as usize] = result & i.mask;
        }
    }

    /// One rising edge of the implicit clock.
    pub fn clock(&mut self) {
        self.step("clock");
    }

    /// One rising edge of the top input `clock`.
    ///
    /// # Panics
    /// If there is no such input.
    pub fn step(&mut self, clock: &str) {
        self.settle();
        let clock = self.input(clock).at;
        let Self { values, memories, banks, failures, steps, .. } = self;
        let high = |at: usize| values[at] & 1 == 1;
        if let Some(bank) = banks.iter_mut().find(|b| b.clock == clock) {
            for p in &mut bank.properties {
                match (high(p.condition), &mut p.covered) {
                    _ if p.reset.is_some_and(high) => {}
                    (true, Some(count)) => *count += 1,
                    (false, None) => failures.push((p.path.clone(), *steps)),
                    _ => {}
                }
            }
            for u in &bank.updates {
                let from = match u.reset {
                    Some((reset, init)) if high(reset) => init,
                    _ => u.from,
                };
                if u.words == 1 {
                    bank.next[u.to] = values[from];
                } else {
                    bank.next[u.to..u.to + u.words].copy_from_slice(&values[from..from + u.words]);
                }
            }
            let old = &values[bank.at..bank.at + bank.next.len()];
            for r in &bank.reads {
                let m = &memories[r.memory];
                let span = r.to..r.to + words(m.width);
                match r.enable {
                    Some(e) if !high(e) => bank.next[span.clone()].copy_from_slice(&old[span]),
                    _ => {
                        match m.word(values[r.address]) {
                            Some(word) => bank.next[span.clone()].copy_from_slice(word),
                            None => bank.next[span.clone()].fill(0),
                        }
                        let meets = |w: &Write| {
                            w.memory == r.memory && high(w.enable) && values[w.address] == values[r.address]
                        };
                        if m.ignores_collisions && bank.writes.iter().any(meets) {
                            m.complement(&mut bank.next[span]);
                        }
                    }
                }
            }
            // after the reads: a read gives the word before this edge; in order: the last port wins
            let mut changed = old != bank.next;
            for w in &bank.writes {
                if high(w.enable) {
                    memories[w.memory].write(
                        values[w.address],
                        &values[w.data..],
                        w.lanes.map(|l| &values[l..]),
                    );
                    changed = true;
                }
            }
            if changed {
                values[bank.at..bank.at + bank.next.len()].copy_from_slice(&bank.next);
                self.state_changed = true;
            }
        }
        self.steps += 1;
    }
}

impl Store {
    fn complement(&self, word: &mut [u64]) {
        for (i, part) in word.iter_mut().enumerate() {
            *part ^= mask((self.width - 64 * i as u32).min(64));
        }
    }
    fn word(&self, address: u64) -> Option<&[u64]> {
        let w = words(self.width);
        (address < u64::from(self.depth)).then(|| &self.content[address as usize * w..][..w])
    }
    fn write(&mut self, address: u64, data: &[u64], lanes: Option<&[u64]>) {
        if address >= u64::from(self.depth) {
            return;
        }
        let w = words(self.width);
        let word = &mut self.content[address as usize * w..][..w];
        let Some(lanes) = lanes else {
            word.copy_from_slice(&data[..w]);
            return;
        };
        for lane in (0..self.width / self.lane).filter(|l| lanes[*l as usize / 64] >> (l % 64) & 1 == 1) {
            let (mut bit, end) = (lane * self.lane, (lane + 1) * self.lane);
            while bit < end {
                let n = (64 - bit % 64).min(end - bit);
                let (i, m) = (bit as usize / 64, mask(n) << (bit % 64));
                word[i] = word[i] & !m | data[i] & m;
                bit += n;
            }
        }
    }
}

/// The value of one operator on constants.
pub(crate) fn evaluate(op: Op, args: &[&Bits], width: u32) -> Bits {
    let mut values = vec![0; words(width)];
    let args: Vec<Slot> = args
        .iter()
        .map(|a| {
            values.extend(a.words());
            Slot { at: values.len() - a.words().len(), width: a.width() }
        })
        .collect();
    wide(&mut values, op, Slot { at: 0, width }, &args);
    values.truncate(words(width));
    Bits::from_words(width, &values)
}

/// An operator on values of any width; the result overlaps no operand.
fn wide(v: &mut [u64], op: Op, out: Slot, args: &[Slot]) {
    let n = out.words();
    let a = args[0].at;
    let b = args.get(1).map_or(0, |s| s.at);
    let operand = args[0].words();
    match op {
        Op::And => (0..n).for_each(|i| v[out.at + i] = v[a + i] & v[b + i]),
        Op::Or => (0..n).for_each(|i| v[out.at + i] = v[a + i] | v[b + i]),
        Op::Xor => (0..n).for_each(|i| v[out.at + i] = v[a + i] ^ v[b + i]),
        Op::Not => (0..n).for_each(|i| v[out.at + i] = !v[a + i]),
        Op::Add | Op::Sub => {
            // a - b = a + ~b + 1
            let (flip, mut carry) = if op == Op::Add { (0, 0) } else { (u64::MAX, 1) };
            for i in 0..n {
                let sum = u128::from(v[a + i]) + u128::from(v[b + i] ^ flip) + carry;
                v[out.at + i] = sum as u64;
                carry = sum >> 64;
            }
        }
        Op::Mul => {
            v[out.at..out.at + n].fill(0);
            for i in 0..n {
                let mut carry = 0;
                for j in 0..n - i {
                    let sum =
                        u128::from(v[a + i]) * u128::from(v[b + j]) + u128::from(v[out.at + i + j]) + carry;
                    v[out.at + i + j] = sum as u64;
                    carry = sum >> 64;
                }
            }
        }
        Op::Eq => v[out.at] = u64::from(v[a..a + operand] == v[b..b + operand]),
        Op::Ne => v[out.at] = u64::from(v[a..a + operand] != v[b..b + operand]),
        Op::Lt | Op::Le => {
            let order = v[a..a + operand].iter().rev().cmp(v[b..b + operand].iter().rev());
            v[out.at] = u64::from(if op == Op::Lt { order.is_lt() } else { order.is_le() });
        }
        Op::Shl | Op::Shr => {
            let far = v[b + 1..b + args[1].words()].iter().any(|w| *w != 0) || v[b] >= u64::from(out.width);
            v[out.at..out.at + n].fill(0);
            if !far {
                let by = v[b] as i64;
                place(v, args[0], if op == Op::Shl { by } else { -by }, out);
            }
        }
        Op::Any => v[out.at] = u64::from(v[a..a + operand].iter().any(|w| *w != 0)),
        Op::All => {
            let top = mask(args[0].width - (operand as u32 - 1) * 64);
            v[out.at] =
                u64::from(v[a..a + operand - 1].iter().all(|w| *w == u64::MAX) && v[a + operand - 1] == top);
        }
        Op::Parity => v[out.at] = v[a..a + operand].iter().fold(0, |p, w| p ^ u64::from(w.count_ones() & 1)),
        Op::Mux => {
            let from = if v[a] == 1 { b } else { args[2].at };
            v.copy_within(from..from + n, out.at);
        }
        Op::Slice(low) => {
            v[out.at..out.at + n].fill(0);
            place(v, args[0], -i64::from(low), out);
        }
        Op::Extend => {
            v[out.at..out.at + n].fill(0);
            v.copy_within(a..a + operand, out.at);
        }
        Op::Cat | Op::Repeat(_) => {
            v[out.at..out.at + n].fill(0);
            let times = if let Op::Repeat(times) = op { times } else { 1 };
            let mut low = 0;
            for _ in 0..times {
                for part in args.iter().rev() {
                    place(v, *part, low, out);
                    low += i64::from(part.width);
                }
            }
        }
    }
    v[out.at + n - 1] &= mask(out.width - (n as u32 - 1) * 64);
}

/// Ors `from`, moved up by `by` bits (down if negative), into `out`.
fn place(v: &mut [u64], from: Slot, by: i64, out: Slot) {
    let (whole, bit) = (by.div_euclid(64), by.rem_euclid(64));
    let n = out.words() as i64;
    for i in 0..from.words() {
        let (word, to) = (v[from.at + i], i as i64 + whole);
        if (0..n).contains(&to) {
            v[out.at + to as usize] |= word << bit;
        }
        if bit != 0 && (0..n).contains(&(to + 1)) {
            v[out.at + (to + 1) as usize] |= word >> (64 - bit);
        }
    }
}
