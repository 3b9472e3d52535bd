//! Random designs, and the judgement of one: interpreter against Verilator, and yosys against both.
//!
//! ```text
//!   seed ──> Random (ops, when/switch, registers, memories, a child) ──┬─> Interpreter ─┐
//!            many of them in one Batch, all fed from one `stimulus`     └─> Verilator ───┴─> equal, each half clock
//! ```
//! A design is decided by its seed and its [`Size`] alone, so a failure is repeated by printing the seed.

use hdl::*;
use std::path::Path;

/// SplitMix64: a seed is enough to repeat a design.
pub struct Rng(pub u64);
impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// Holds once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    /// Widths: many of one bit, many around word limits, the rest anywhere.
    fn width(&mut self, most: u32) -> u32 {
        let w = match self.below(8) {
            0 | 1 => 1,
            2 => [7, 8, 31, 32, 33][self.below(5) as usize],
            3 => [63, 64, 65, 127, 128, 129][self.below(6) as usize],
            _ => 1 + self.below(u64::from(most)) as u32,
        };
        w.min(most)
    }
    fn bits(&mut self, width: u32) -> Bits {
        let words: Vec<u64> = (0..width.div_ceil(64))
            .map(|_| match self.below(4) {
                0 => 0,
                1 => u64::MAX,
                _ => self.next(),
            })
            .collect();
        Bits::from_words(width, &words)
    }
}

/// What a random design may contain.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub width: u32,
    pub operations: u32,
    pub memories: bool,
    /// For yosys. Memory depths are powers of two, so that no address is past the end, and every word has a first value:
    /// else it reads X. At most 8 words: it simulates them as registers.
    pub whole: bool,
    pub two_clocks: bool,
    pub child: bool,
}

#[derive(Debug, Clone)]
pub struct Random {
    pub seed: u64,
    pub size: Size,
}

pub struct RandomIo {
    inputs: Vec<Sig>,
    other: Option<Sig>,
    outputs: Vec<Sig>,
    shadow: Sig,
}

impl Random {
    fn shape(&self) -> (Rng, Vec<u32>, Vec<u32>) {
        let mut r = Rng(self.seed);
        let mut widths = |n: u64| (0..1 + r.below(n)).map(|_| r.width(self.size.width)).collect();
        let (inputs, outputs) = (widths(4), widths(3));
        (r, inputs, outputs)
    }
    /// Widths of the outputs and of the shadow.
    fn all_outputs(&self) -> Vec<u32> {
        self.shape().2.into_iter().chain([1]).collect()
    }
}

impl Ports for RandomIo {
    type Config = Random;
    fn declare(c: &Random, ports: &mut PortBuilder) -> Self {
        let (_, inputs, outputs) = c.shape();
        let inputs = (0..).zip(inputs).map(|(i, w)| ports.input(&format!("i{i}"), &Width(w))).collect();
        let other = c.size.two_clocks.then(|| ports.input("other_clock", &Width(1)));
        let outputs = (0..).zip(outputs).map(|(i, w)| ports.output(&format!("o{i}"), &Width(w))).collect();
        RandomIo { inputs, other, outputs, shadow: ports.output("shadow", &Width(1)) }
    }
}

#[derive(HwEnum, Clone, Copy, PartialEq, Debug)]
enum Phase {
    Idle,
    Fetch,
    Wait,
    Reply,
    Done,
}

/// Values that may be read, all of one clock (or of none).
struct Pool {
    signals: Vec<Sig>,
}
impl Pool {
    fn any(&self, r: &mut Rng) -> Sig {
        self.signals[r.below(self.signals.len() as u64) as usize]
    }
    fn of(&self, r: &mut Rng, width: u32) -> Sig {
        if r.one_in(6) {
            return constant(r.bits(width));
        }
        let s = self.any(r);
        if s.width() > width {
            let low = r.below(u64::from(s.width() - width + 1)) as u32;
            s.bits(low, width)
        } else if r.one_in(3) {
            s.repeat(width.div_ceil(s.width())).bits(0, width)
        } else {
            s.extend(width)
        }
    }
    fn operation(&self, r: &mut Rng, most: u32) -> Sig {
        let a = self.any(r);
        let w = a.width();
        let b = self.of(r, w);
        match r.below(26) {
            0 => a & b,
            1 => a | b,
            2 => a ^ b,
            3 => !a,
            4 | 5 => a + b,
            6 | 7 => a - b,
            8 => a * b,
            9 => a.eq(b),
            10 => a.ne(b),
            11 => a.lt(b),
            12 => a.le(b),
            13 => a.gt(b),
            14 => a.ge(b),
            15 => a << self.amount(r),
            16 => a >> self.amount(r),
            17 => a.all(),
            18 => a.any(),
            19 => a.parity(),
            20 => mux(self.of(r, 1), a, b),
            21 => {
                let c = self.any(r);
                if w + c.width() <= most { cat(&[a, c]) } else { cat(&[a.bit(0), c.msb()]) }
            }
            22 => {
                let n = 1 + r.below(u64::from(most / w)) as u32;
                a.repeat(n)
            }
            23 => {
                let n = r.width(w);
                self.of(r, n)
            }
            24 => a.bit_at(self.amount(r)),
            _ => {
                let options: Vec<Sig> = (0..1 + r.below(5)).map(|_| self.of(r, w)).collect();
                let index = 1 + r.below(3) as u32;
                select(self.of(r, index), &options)
            }
        }
    }
    fn amount(&self, r: &mut Rng) -> Sig {
        let w = [1, 3, 6, 7, 8, 10, 32, 40][r.below(8) as usize];
        self.of(r, w)
    }
    /// Assigns some of `targets` under conditions.
    fn statements(&self, r: &mut Rng, targets: &[Sig], phase: EnumSig<Phase>, depth: u32) {
        for _ in 0..1 + r.below(3) {
            let some = |r: &mut Rng| {
                let mut left = targets.to_vec();
                for _ in 0..1 + r.below(2) {
                    if left.is_empty() {
                        return;
                    }
                    let t = left.swap_remove(r.below(left.len() as u64) as usize);
                    t.set(self.of(r, t.width()));
                }
            };
            let inner = |r: &mut Rng| match r.below(3) {
                0 if depth > 0 => self.statements(r, targets, phase, depth - 1),
                1 => {}
                _ => some(r),
            };
            match r.below(4) {
                0 => {
                    when(self.of(r, 1), || inner(r));
                }
                1 => when(self.of(r, 1), || inner(r)).elif(self.of(r, 1), || inner(r)).otherwise(|| inner(r)),
                2 => when(self.of(r, 1), || inner(r)).otherwise(|| inner(r)),
                _ => phase.switch(|_| inner(r)),
            }
        }
    }
}

impl Module for Random {
    type Io = RandomIo;
    fn name(&self) -> String {
        format!("random_{}{}", if self.size.child { "" } else { "child_" }, self.seed)
    }
    fn body(&self, io: &RandomIo) {
        let (mut r, ..) = self.shape();
        let r = &mut r;
        let mut pool = Pool { signals: io.inputs.clone() };
        self.part(r, "a", &mut pool);
        if let Some(other) = io.other {
            let from = pool.of(r, 1);
            let crossed = delay("crossed", from);
            let (reset, inputs) = (delay("other_reset", io.inputs[0].bit(0)), io.inputs.clone());
            let other = Domain::new(other, None).within(|| {
                let reset = synchronise("reset", reset);
                Domain::new(other, Some(reset))
            });
            other.within(|| {
                let mut signals = inputs;
                signals.push(synchronise("into_other", crossed));
                let mut there = Pool { signals };
                self.part(r, "b", &mut there);
                // an output may show both clocks
                pool.signals.push(there.any(r));
                pool.signals.push(there.any(r));
            });
        }
        for o in &io.outputs {
            o.set(pool.of(r, o.width()));
        }
        // what the outputs do not show
        let mixed = pool.signals.iter().rev().take(12).fold(low(), |x, s| x ^ s.parity());
        io.shadow.set(mixed);
        assert_always("two_valued", mixed | !mixed);
        cover("mixed", mixed);
    }
}

impl Random {
    /// Hardware of one clock.
    fn part(&self, r: &mut Rng, prefix: &str, pool: &mut Pool) {
        let most = self.size.width;
        let name = |what: &str, i: u64| format!("{prefix}_{what}{i}");
        let registers: Vec<Sig> = (0..2 + r.below(4))
            .map(|i| {
                let w = r.width(most);
                let n = name("r", i);
                if r.one_in(2) {
                    reg(&n, w)
                } else {
                    reg_init(&n, w, r.next() & (u64::MAX >> (64 - w.min(64))))
                }
            })
            .collect();
        pool.signals.extend(&registers);
        let phase = EnumSig::<Phase>::reg(&name("phase", 0), Phase::Wait);
        pool.signals.push(phase.sig());
        if self.size.memories {
            for i in 0..1 + r.below(2) {
                let depth = if self.size.whole { 1 << (1 + r.below(3)) } else { 1 + r.below(20) as u32 };
                let lane = r.width(most.min(70));
                let w = lane * (1 + r.below(u64::from((most / lane).min(9))) as u32);
                let address = |r: &mut Rng, pool: &Pool, m: Memory| {
                    // never a constant: one past the end would be refused
                    let w = m.address_width();
                    pool.of(r, w) ^ pool.signals[0].resize(w)
                };
                let m = Memory::with_lanes(&name("m", i), depth, w, lane);
                // yosys knows no complement
                if !self.size.whole && r.one_in(3) {
                    m.ignoring_collisions();
                }
                if self.size.whole || r.one_in(2) {
                    let words =
                        if self.size.whole { u64::from(depth) } else { r.below(u64::from(depth) + 1) };
                    m.init((0..words).map(|_| r.bits(w)).collect());
                }
                for _ in 0..1 + r.below(2) {
                    let (enable, address, data) = (pool.of(r, 1), address(r, pool, m), pool.of(r, w));
                    if r.one_in(2) {
                        m.write(enable, address, data);
                    } else {
                        m.write_lanes(enable, address, data, pool.of(r, w / lane));
                    }
                }
                let read = m.read(&name("q", i), pool.of(r, 1), address(r, pool, m));
                pool.signals.push(read);
                if r.one_in(2) {
                    let now = m.read_now(&name("n", i), address(r, pool, m));
                    pool.signals.push(now);
                }
            }
        }
        for i in 0..u64::from(self.size.operations) {
            let s = pool.operation(r, most);
            pool.signals.push(if r.one_in(8) { s.named(&name("x", i)) } else { s });
            if i % 8 == 7 {
                let wires: Vec<Sig> = (0..1 + r.below(3))
                    .map(|k| {
                        let w = r.width(most);
                        wire(&name("w", i * 10 + k), w)
                    })
                    .collect();
                wires.iter().for_each(|w| w.set(pool.of(r, w.width())));
                pool.statements(r, &wires, phase, 2);
                pool.signals.extend(wires);
            }
            if i == u64::from(self.size.operations) / 2 && self.size.child {
                let size = Size { operations: 8, two_clocks: false, child: false, ..self.size };
                let child = instance(&name("child", 0), &Random { seed: self.seed, size });
                child.inputs.iter().for_each(|i| i.set(pool.of(r, i.width())));
                pool.signals.extend(&child.outputs);
            }
        }
        pool.statements(r, &registers, phase, 2);
        for _ in 0..3 {
            when(pool.of(r, 1), || {
                let all = [Phase::Idle, Phase::Fetch, Phase::Wait, Phase::Reply, Phase::Done];
                if r.one_in(4) {
                    // any code, also one that is no variant
                    phase.set_from(EnumSig::of(pool.of(r, Phase::width())));
                } else {
                    phase.set(all[r.below(5) as usize]);
                }
            });
        }
        pool.signals.push(phase.is_one_of(&[Phase::Idle, Phase::Reply]));
        pool.signals.push(phase.is(Phase::Done));
    }
}

/// Many random designs side by side.
#[derive(Debug, Clone)]
pub struct Batch {
    pub seed: u64,
    pub count: u64,
    pub size: Size,
}

pub struct BatchIo {
    stimulus: Sig,
    other: Option<Sig>,
    /// Those of each member, its shadow last.
    outputs: Vec<Vec<Sig>>,
}

impl Batch {
    fn members(&self) -> impl Iterator<Item = Random> + '_ {
        (self.seed..self.seed + self.count).map(|seed| Random { seed, size: self.size })
    }
    fn stimulus_width(&self) -> u32 {
        self.size.width * 2
    }
}

impl Ports for BatchIo {
    type Config = Batch;
    fn declare(c: &Batch, ports: &mut PortBuilder) -> Self {
        let stimulus = ports.input("stimulus", &Width(c.stimulus_width()));
        let other = c.size.two_clocks.then(|| ports.input("other_clock", &Width(1)));
        let member = |m: Random| {
            (0..)
                .zip(m.all_outputs())
                .map(|(j, w)| ports.output(&format!("q{}_{j}", m.seed), &Width(w)))
                .collect()
        };
        BatchIo { stimulus, other, outputs: c.members().map(member).collect() }
    }
}

impl Module for Batch {
    type Io = BatchIo;
    fn name(&self) -> String {
        format!("batch_{}_{}", self.seed, self.count)
    }
    fn body(&self, io: &BatchIo) {
        for (m, outputs) in self.members().zip(&io.outputs) {
            let child = instance(&format!("m{}", m.seed), &m);
            if let (Some(to), Some(from)) = (child.other, io.other) {
                to.set(from);
            }
            for (k, input) in (0..).zip(&child.inputs) {
                let low = (k * 61 + m.seed as u32 * 7) % (self.stimulus_width() - input.width() + 1);
                input.set(io.stimulus.bits(low, input.width()));
            }
            outputs.iter().zip(child.outputs.into_iter().chain([child.shadow])).for_each(|(q, o)| q.set(o));
        }
    }
}

/// The batch and its Verilator model, built in `directory` unless it is there; `written` sees the text before that.
pub fn model(
    batch: &Batch,
    directory: &Path,
    written: impl FnOnce(&str) -> Result<(), String>,
) -> Result<(Design, verilated::Model), String> {
    let design = elaborate(batch).map_err(|e| format!("seed {}: refused: {e}", batch.seed))?;
    let text = design.verilog(Style::default());
    written(&text)?;
    let model = verilated::Model::build(&verilated::Source::new(design.top(), &text).in_directory(directory));
    Ok((design, model.map_err(|e| format!("seed {} count {}: {e}", batch.seed, batch.count))?))
}

/// Runs the batch in both; the first difference as text. Equal: how many outputs moved, and how many there are.
pub fn compare(batch: &Batch, clocks: u32, directory: &Path) -> Result<(usize, usize), String> {
    let (design, model) = model(batch, directory, |_| Ok(()))?;
    let say = |e: verilated::Error| format!("seed {} count {}: {e}", batch.seed, batch.count);
    let mut theirs = model.instance().map_err(say)?;
    let mut ours = Interpreter::new(&design);
    let width = batch.stimulus_width();
    let stimulus = model.input("stimulus", width).map_err(say)?;
    let reset = model.input("reset", 1).map_err(say)?;
    let mut clock_ports = vec![("clock", model.input("clock", 1).map_err(say)?)];
    if batch.size.two_clocks {
        clock_ports.push(("other_clock", model.input("other_clock", 1).map_err(say)?));
    }
    let mut outputs = vec![];
    for m in batch.members() {
        for (j, w) in m.all_outputs().into_iter().enumerate() {
            let name = format!("q{}_{j}", m.seed);
            outputs.push((m.seed, model.output(&name, w).map_err(say)?, name, w));
        }
    }
    let mut r = Rng(batch.seed ^ 0x5717_0000);
    theirs.eval().map_err(say)?;
    // of each output: its first value, and whether there was another
    let mut seen: Vec<Option<(Bits, bool)>> = vec![None; outputs.len()];
    for clock in 0..clocks {
        let value = r.bits(width);
        let in_reset = clock < 2 || r.one_in(40);
        ours.poke_bits("stimulus", &value);
        ours.poke("reset", u64::from(in_reset));
        let words: Vec<u32> = value
            .words()
            .iter()
            .flat_map(|w| [*w as u32, (*w >> 32) as u32])
            .take(width.div_ceil(32) as usize)
            .collect();
        theirs.set_wide(stimulus, &words);
        theirs.set(reset, u64::from(in_reset));
        theirs.eval().map_err(say)?;
        for ((seed, port, name, w), seen) in outputs.iter().zip(&mut seen) {
            let mut words = vec![0u32; w.div_ceil(32) as usize];
            theirs.get_wide(*port, &mut words);
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let (got, wanted) = (Bits::from_bytes(*w, &bytes), ours.peek_bits(name));
            let (first, moved) = seen.get_or_insert_with(|| (wanted.clone(), false));
            *moved |= *first != wanted;
            if got != wanted {
                return Err(format!(
                    "seed {seed}: clock {clock}: {name}: Verilator {} interpreter {} ({:?})",
                    got.hex(),
                    wanted.hex(),
                    batch.size
                ));
            }
        }
        let (name, port) = clock_ports[r.below(clock_ports.len() as u64) as usize];
        ours.step(name);
        theirs.set(port, 1);
        theirs.eval().map_err(say)?;
        theirs.set(port, 0);
        theirs.eval().map_err(say)?;
    }
    match ours.failures() {
        [] => Ok((seen.iter().flatten().filter(|(_, moved)| *moved).count(), seen.len())),
        some => Err(format!("seed {}: a property that cannot break: {some:?}", batch.seed)),
    }
}

/// A batch that needs no test bench: feeds itself from a register, folds its outputs into `signature`, stops after
/// `clocks`. Everything starts at zero.
#[derive(Debug)]
pub struct Driven {
    pub batch: Batch,
    pub clocks: u32,
}

#[derive(Ports)]
#[ports(Driven)]
pub struct DrivenIo {
    #[input]
    clk: Sig,
    #[output(64)]
    folded: Sig,
}

impl Module for Driven {
    type Io = DrivenIo;
    fn name(&self) -> String {
        "driven".into()
    }
    fn body(&self, io: &DrivenIo) {
        Domain::new(io.clk, None).within(|| {
            let width = self.batch.stimulus_width();
            let (count, stimulus) = (reg("count", 16), reg("stimulus", width));
            let (signature, in_reset) = (reg("signature", 64), count.lt(2));
            let odd = constant(Bits::from_words(width, &[0x9e37_79b9_7f4a_7c15; 32]));
            stimulus.set((stimulus ^ (stimulus >> lit(6, 13)) ^ (stimulus << lit(6, 7))) + odd);
            let members = Domain::new(io.clk, Some(in_reset)).within(|| instance("batch", &self.batch));
            members.stimulus.set(stimulus);
            let shown = members.outputs.iter().flatten().fold(lit(64, 0), |sum, q| {
                let words = (0..q.width().div_ceil(64)).map(|i| q.bits(i * 64, 64.min(q.width() - i * 64)));
                words.fold(sum, |sum, w| (cat(&[sum.bits(0, 51), sum.bits(51, 13)])) ^ w.extend(64))
            });
            when(count.ne(u64::from(self.clocks)), || {
                count.set(count + 1);
                signature.set(cat(&[signature.bits(0, 63), signature.bit(63)]) + shown);
            });
            io.folded.set(signature);
        });
    }
}

/// The signature that the interpreter finds.
pub fn signature(driven: &Driven) -> Result<(String, u64), String> {
    let design = elaborate(driven).map_err(|e| format!("seed {}: refused: {e}", driven.batch.seed))?;
    let mut s = Interpreter::new(&design);
    for _ in 0..driven.clocks + 4 {
        s.step("clk");
    }
    Ok((design.verilog(Style::default()), s.peek("folded")))
}
