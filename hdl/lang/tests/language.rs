//! What the language accepts and means, and what it refuses, each with the user's line.

use hdl::*;

#[derive(Debug, Clone)]
struct Case(&'static str);

#[derive(Ports)]
#[ports(Case)]
struct CaseIo {
    #[input(8)]
    a: Sig,
    #[input(8)]
    b: Sig,
    #[input]
    other_clock: Sig,
    #[output(8)]
    q: Sig,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Debug)]
enum Phase {
    Idle,
    Fetch,
    Done,
}

/// A child whose output follows its input at once.
#[derive(Debug)]
struct Through;
#[derive(Ports)]
#[ports(Through)]
struct ThroughIo {
    #[input(8)]
    i: Sig,
    #[output(8)]
    o: Sig,
}
impl Module for Through {
    type Io = ThroughIo;
    fn name(&self) -> String {
        "through".into()
    }
    fn body(&self, io: &ThroughIo) {
        io.o.set(io.i ^ 1);
    }
}

/// Another module that takes the same name.
#[derive(Debug)]
struct Impostor;
impl Module for Impostor {
    type Io = ImpostorIo;
    fn name(&self) -> String {
        "through".into()
    }
    fn body(&self, io: &ImpostorIo) {
        io.o.set(io.i ^ 2);
    }
}
#[derive(Ports)]
#[ports(Impostor)]
struct ImpostorIo {
    #[input(8)]
    i: Sig,
    #[output(8)]
    o: Sig,
}

mod other {
    /// Another enum of the same name, with other codes.
    #[derive(hdl::HwEnum, Clone, Copy, PartialEq, Debug)]
    pub enum Phase {
        Done,
        Idle,
    }
}

thread_local! { static LEAKED: std::cell::Cell<Option<Sig>> = const { std::cell::Cell::new(None) } }

/// Lets a signal of its inside escape.
#[derive(Debug)]
struct Leak;
#[derive(Ports)]
#[ports(Leak)]
struct LeakIo {
    #[input(8)]
    i: Sig,
    #[output(8)]
    o: Sig,
}
impl Module for Leak {
    type Io = LeakIo;
    fn name(&self) -> String {
        "leak".into()
    }
    fn body(&self, io: &LeakIo) {
        LEAKED.set(Some(io.i));
        io.o.set(io.i);
    }
}

/// A child whose output is a table's word, at once.
#[derive(Debug)]
struct Table;
#[derive(Ports)]
#[ports(Table)]
struct TableIo {
    #[input(8)]
    i: Sig,
    #[output(8)]
    o: Sig,
}
impl Module for Table {
    type Io = TableIo;
    fn name(&self) -> String {
        "lookup".into()
    }
    fn body(&self, io: &TableIo) {
        let m = Memory::new("content", 256, 8);
        m.write(io.i.bit(0), io.i, io.i);
        io.o.set(m.read_now("found", io.i));
    }
}

impl Module for Case {
    type Io = CaseIo;
    fn name(&self) -> String {
        format!("case_{}", self.0)
    }
    fn body(&self, io: &CaseIo) {
        let CaseIo { a, b, other_clock, q } = *io;
        match self.0 {
            "width" => q.set(a + b.bits(0, 7)),
            "width_set" => q.set(a.bits(0, 7)),
            "slice" => q.set(a.bits(1, 8)),
            "literal" => q.set(a + 256),
            "undriven" => {
                wire("w", 3);
                q.set(a);
            }
            "undriven_output" => {}
            "undriven_instance" => {
                let t = instance("t", &Through);
                q.set(t.o);
            }
            "double" => {
                q.set(a);
                q.set(b);
            }
            "default_after_when" => {
                when(a.bit(0), || q.set(b));
                q.set(a);
            }
            "latch" => {
                when(a.bit(0), || q.set(b)).elif(a.bit(1), || q.set(a));
            }
            "loop" => {
                let w = wire("w", 8);
                w.set(w + a);
                q.set(w);
            }
            "loop_across" => {
                let (s, t) = (instance("s", &Through), instance("t", &Through));
                s.i.set(t.o & a);
                t.i.set(s.o);
                q.set(s.o);
            }
            "crossing" => {
                let r = delay("r", a);
                let other = Domain::new(other_clock, None);
                other.within(|| {
                    let s = delay("s", r + 1);
                    q.set(s);
                });
            }
            "crossing_synchronised" => {
                let r = delay("r", a);
                let other = Domain::new(other_clock, None);
                other.within(|| q.set(synchronise("s", r)));
            }
            "zero_width" => {
                wire("w", 0);
                q.set(a);
            }
            "clash" => {
                let _ = (reg("r", 1), reg("r", 1));
                q.set(a);
            }
            "clash_module" => {
                let (s, t) = (instance("s", &Through), instance("t", &Impostor));
                s.i.set(a);
                t.i.set(s.o);
                q.set(t.o);
            }
            "reserved" => {
                reg("table", 1);
                q.set(a);
            }
            "not_assignable" => a.set(b),
            "priority" => {
                q.set(a);
                when(a.bit(0), || q.set(b)).elif(a.bit(1), || q.set(a + b)).otherwise(|| {
                    when(b.bit(7), || q.set(0));
                });
                when(a.eq(0xff), || q.set(0x55));
            }
            "switch" => {
                let phase = EnumSig::<Phase>::reg("phase", Phase::Idle);
                q.set(phase.sig().extend(8));
                phase.switch(|p| match p {
                    Phase::Idle => {
                        when(a.bit(0), || phase.set(Phase::Fetch));
                    }
                    Phase::Fetch => phase.set(Phase::Done),
                    Phase::Done => {
                        when(b.bit(0), || phase.set(Phase::Idle));
                    }
                });
            }
            "memory" | "careless_memory" => {
                let m = Memory::with_lanes("store", 16, 8, 4);
                if self.0 == "careless_memory" {
                    m.ignoring_collisions();
                }
                m.write_lanes(high(), a.bits(0, 4), b, a.bits(4, 2));
                q.set(m.read("word", a.bit(7), a.bits(0, 4)));
            }
            "crc" => {
                let state = reg_init("state", 32, 0xffff_ffff);
                state.set(crc32_next(state, a, 1));
                q.set(state.bits(0, 8));
            }
            "foreign_when" | "foreign_switch" | "foreign_clock" => {
                let l = instance("l", &Leak);
                l.i.set(a);
                let foreign = LEAKED.get().expect("the child was described");
                q.set(l.o);
                match self.0 {
                    "foreign_when" => {
                        when(foreign.bit(0), || q.set(b));
                    }
                    "foreign_switch" => EnumSig::<Phase>::of(foreign.bits(0, 2)).switch(|_| ()),
                    _ => {
                        Domain::new(foreign.bit(0), None);
                    }
                }
            }
            "own_when" => {
                let l = instance("l", &Leak);
                l.i.set(a);
                q.set(l.o);
                when(l.o.bit(0), || q.set(b));
            }
            "zero_lane" => {
                Memory::with_lanes("store", 4, 8, 0);
                q.set(a);
            }
            "uneven_lane" => {
                Memory::with_lanes("store", 4, 8, 3);
                q.set(a);
            }
            "single_bit_lanes" => {
                let m = Memory::with_lanes("store", 4, 8, 1);
                m.write_lanes(a.bit(0), a.bits(1, 2), b, a);
                q.set(m.read("word", high(), a.bits(1, 2)));
            }
            "port_and_memory" => {
                Memory::new("a", 4, 8);
            }
            "port_and_instance" => {
                instance("b", &Through);
            }
            "memory_and_instance" => {
                Memory::new("t", 4, 8);
                instance("t", &Through);
            }
            "wire_and_instance_port" => {
                wire("t_i", 8);
                instance("t", &Through);
            }
            "implicit_clock" => {
                let clock = wire("clock", 1);
                clock.set(a.bit(0));
                q.set(delay("r", b));
            }
            "enum_and_wire" => {
                wire("PHASE_DONE", 1);
                EnumSig::<Phase>::reg("phase", Phase::Idle);
            }
            "enum_and_enum" => {
                EnumSig::<Phase>::reg("phase", Phase::Idle);
                EnumSig::<other::Phase>::reg("other", other::Phase::Done);
            }
            "beyond_memory" | "last_of_memory" => {
                let m = Memory::new("store", 5, 8);
                m.write(high(), a.bits(0, 3), b);
                q.set(m.read("word", high(), lit(3, if self.0 == "last_of_memory" { 4 } else { 5 })));
            }
            "long_init" => {
                Memory::new("store", 2, 8).init(vec![Bits::zero(8); 3]);
            }
            "wide_init" => {
                Memory::new("store", 2, 8).init(vec![Bits::zero(9)]);
            }
            "loop_through_memory" | "register_through_memory" => {
                let t = instance("t", &Table);
                q.set(t.o);
                t.i.set(if self.0 == "loop_through_memory" { t.o ^ a } else { delay("r", t.o ^ a) });
            }
            "two_writes" => {
                let m = Memory::with_lanes("store", 3, 8, 4);
                let at = a.bits(0, 2);
                m.write(a.bit(2), at, b);
                m.write_lanes(a.bit(3), at, !b, a.bits(4, 2));
                q.set(m.read("word", a.bit(6), at));
            }
            "now" => {
                let m = Memory::new("store", 3, 8).init(vec![Bits::new(8, 7), Bits::new(8, 8)]);
                m.write(a.bit(2), a.bits(0, 2), b);
                q.set(m.read_now("word", a.bits(0, 2)));
            }
            "spare_codes" => {
                q.set(0);
                EnumSig::<Phase>::of(a.bits(0, 2)).switch(|p| match p {
                    Phase::Idle => q.set(1),
                    Phase::Fetch => (),
                    Phase::Done => q.set(3),
                });
            }
            "two_clocks" => {
                let here = reg_init("here", 8, 0);
                here.set(here + 1);
                Domain::new(other_clock, None).within(|| {
                    let there = reg("there", 8);
                    there.set(there + 2);
                });
                q.set(here);
            }
            "properties" => {
                q.set(a);
                assert_always("below_ten", a.lt(10));
                cover("nine", a.eq(9));
            }
            "shared" => {
                let (x, y) = ((a + b).named("x"), a + b);
                q.set(((a + b) & y) | x);
                when((a & lit(8, 0)).any(), || q.set(a));
                when(mux(high(), b, a).bits(2, 4).bits(1, 2).eq(3), || q.set((a << lit(4, 2)) | lit(8, 1)));
            }
            "literals" => q.set(mux(a.bit(0), 0x55, b) + mux(a.bit(1), a, 3)),
            "literal_too_wide" => q.set(mux(a.bit(0), 0x155, b)),
            "wide_constant_in_mux" => q.set(mux(a.bit(0), constant(Bits::new(64, 5)), b)),
            other => panic!("no case {other}"),
        }
    }
}

fn refused(case: &'static str) -> Error {
    elaborate(&Case(case)).map(|d| d.verilog(Style::default())).expect_err(case)
}

#[test]
fn every_rule_is_refused_with_the_users_line() {
    for (case, rule) in [
        ("width", Rule::Width),
        ("width_set", Rule::Width),
        ("slice", Rule::Width),
        ("literal", Rule::Literal),
        ("undriven", Rule::Undriven),
        ("undriven_output", Rule::Undriven),
        ("undriven_instance", Rule::Undriven),
        ("double", Rule::DoubleDriven),
        ("default_after_when", Rule::DefaultAfterWhen),
        ("latch", Rule::Latch),
        ("loop", Rule::Loop),
        ("loop_across", Rule::Loop),
        ("crossing", Rule::ClockCrossing),
        ("zero_width", Rule::ZeroWidth),
        ("clash", Rule::NameClash),
        ("clash_module", Rule::NameClash),
        ("reserved", Rule::Name),
        ("not_assignable", Rule::NotAssignable),
        ("foreign_when", Rule::Scope),
        ("foreign_switch", Rule::Scope),
        ("foreign_clock", Rule::Scope),
        ("zero_lane", Rule::ZeroWidth),
        ("uneven_lane", Rule::Width),
        ("port_and_memory", Rule::NameClash),
        ("port_and_instance", Rule::NameClash),
        ("memory_and_instance", Rule::NameClash),
        ("wire_and_instance_port", Rule::NameClash),
        ("implicit_clock", Rule::NameClash),
        ("enum_and_wire", Rule::NameClash),
        ("enum_and_enum", Rule::NameClash),
        ("beyond_memory", Rule::Width),
        ("long_init", Rule::Width),
        ("wide_init", Rule::Width),
        ("loop_through_memory", Rule::Loop),
        ("literal_too_wide", Rule::Literal),
        ("wide_constant_in_mux", Rule::Width),
    ] {
        let e = refused(case);
        assert_eq!(e.rule, rule, "{case}: {e}");
        assert!(e.place.file().ends_with("tests/language.rs"), "{case} is blamed on {e}");
    }
}

#[test]
fn the_nearest_thing_that_keeps_the_rule_is_accepted() {
    for case in [
        "priority",
        "switch",
        "crossing_synchronised",
        "own_when",
        "memory",
        "single_bit_lanes",
        "last_of_memory",
        "register_through_memory",
        "now",
        "two_clocks",
        "literals",
    ] {
        elaborate(&Case(case)).unwrap_or_else(|e| panic!("{case}: {e}"));
    }
}

fn run(case: &'static str) -> Interpreter {
    Interpreter::new(&elaborate(&Case(case)).unwrap_or_else(|e| panic!("{e}")))
}

#[test]
fn the_last_assignment_that_applies_wins() {
    let mut s = run("priority");
    for (a, b, q) in [(0x01, 7, 7), (0x02, 7, 9), (0x04, 0x80, 0), (0x04, 1, 4), (0xff, 1, 0x55)] {
        s.poke("a", a);
        s.poke("b", b);
        assert_eq!(s.peek("q"), q, "a {a:#x} b {b:#x}");
    }
}

#[test]
fn a_switch_walks_its_phases() {
    let mut s = run("switch");
    let mut seen = vec![s.peek("q")];
    s.poke("a", 1);
    for b in [0, 0, 0, 1] {
        s.poke("b", b);
        s.clock();
        seen.push(s.peek("q"));
    }
    assert_eq!(seen, [0, 1, 2, 2, 0]);
}

#[test]
fn a_memory_reads_the_old_word_while_a_lane_is_written() {
    let mut s = run("memory");
    for (a, b) in [(0x33, 0xab), (0x93, 0xcd), (0x80 | 0x03, 0)] {
        s.poke("a", a);
        s.poke("b", b);
        s.clock();
    }
    // first write put ab; the second wrote lane 0 and read ab; the third read what both left
    assert_eq!(s.peek("q"), 0xad);
}

#[test]
fn who_uses_a_word_read_while_it_is_written_against_the_promise_gets_its_complement() {
    let mut s = run("careless_memory");
    for (a, b, q) in [(0x33, 0xab, 0), (0x93, 0xcd, 0x54), (0x80 | 0x04, 0, 0xff), (0x83, 0, 0x52)] {
        s.poke("a", a);
        s.poke("b", b);
        s.clock();
        assert_eq!(s.peek("q"), q, "a {a:#x} b {b:#x}");
    }
}

#[test]
fn a_synchroniser_takes_two_clocks_of_the_other_domain() {
    let mut s = run("crossing_synchronised");
    s.poke("a", 0x5a);
    s.clock();
    s.step("other_clock");
    assert_eq!(s.peek("q"), 0);
    s.step("other_clock");
    assert_eq!(s.peek("q"), 0x5a);
}

#[test]
fn the_crc_masks_compute_ieee_802_3() {
    let mut s = run("crc");
    s.poke("reset", 1);
    s.clock();
    s.poke("reset", 0);
    for b in b"123456789" {
        s.poke("a", u64::from(*b));
        s.clock();
    }
    // the published check value of CRC-32, before the final inversion
    assert_eq!(s.peek("state") as u32, !0xcbf4_3926);
    assert_eq!(crc32_back(crc32_bytes(0x1234_5678, &[0; 6]), 6), 0x1234_5678);
}

/// Pokes `a` and `b`, clocks, gives `q`.
fn clocked(s: &mut Interpreter, a: u64, b: u64) -> u64 {
    s.poke("a", a);
    s.poke("b", b);
    s.clock();
    s.peek("q")
}

#[test]
fn of_two_writes_to_one_word_the_later_port_wins_lane_by_lane() {
    let mut s = run("two_writes");
    // both ports write word 1: the second only its low lane
    clocked(&mut s, 0b0001_1101, 0xa5);
    assert_eq!(s.peek_memory("store", 1), Bits::new(8, 0xaa));
    // read enable alone
    assert_eq!(clocked(&mut s, 0b0100_0001, 0), 0xaa);
    // a read in the clock of a write gives the old word, the next one the new word
    assert_eq!(clocked(&mut s, 0b0100_0101, 0x33), 0xaa);
    assert_eq!(clocked(&mut s, 0b0100_0001, 0), 0x33);
    // without enable the word read stays
    assert_eq!(clocked(&mut s, 0b0000_0000, 0), 0x33);
}

#[test]
fn past_the_end_a_write_does_nothing_and_a_read_gives_zero() {
    let mut s = run("two_writes");
    clocked(&mut s, 0b0000_0110, 0x11);
    clocked(&mut s, 0b0000_0111, 0x22);
    assert_eq!((0..3).map(|i| s.peek_memory("store", i).low()).collect::<Vec<_>>(), [0, 0, 0x11]);
    assert_eq!(clocked(&mut s, 0b0100_0010, 0), 0x11);
    assert_eq!(clocked(&mut s, 0b0100_0011, 0), 0);
}

#[test]
fn a_combinational_read_follows_address_and_write() {
    let mut s = run("now");
    let mut seen = vec![];
    for at in 0..4 {
        s.poke("a", at);
        seen.push(s.peek("q"));
    }
    assert_eq!(seen, [7, 8, 0, 0]);
    assert_eq!(clocked(&mut s, 0b110, 9), 9);
}

#[test]
fn a_code_that_is_no_variant_takes_the_last_arm() {
    let mut s = run("spare_codes");
    let seen: Vec<u64> = (0..4)
        .map(|code| {
            s.poke("a", code);
            s.peek("q")
        })
        .collect();
    assert_eq!(seen, [1, 0, 3, 3]);
}

#[test]
fn each_clock_moves_its_own_registers() {
    let mut s = run("two_clocks");
    s.clock();
    s.step("other_clock");
    s.step("other_clock");
    s.clock();
    s.clock();
    assert_eq!((s.peek("here"), s.peek("there")), (3, 4));
}

#[test]
fn assertions_and_covers_are_judged_at_the_edge_outside_of_reset() {
    let mut s = run("properties");
    s.poke("reset", 1);
    clocked(&mut s, 10, 0);
    s.poke("reset", 0);
    clocked(&mut s, 9, 0);
    assert!(s.failures().is_empty());
    clocked(&mut s, 10, 0);
    assert_eq!(s.failures(), [("below_ten".to_owned(), 2)]);
    assert_eq!(s.covered("nine"), 1);
}

#[test]
fn what_has_no_effect_or_stands_twice_is_built_once_and_names_stay_apart() {
    let design = elaborate(&Case("shared")).unwrap();
    let text = design.verilog(Style { sources: false });
    // the named sum and one anonymous sum; nothing of `a & 0`
    assert_eq!(text.matches("a + b").count(), 2, "{text}");
    assert!(text.contains("wire [7:0] x = (a + b);"), "{text}");
    assert!(text.contains("b[4:3] == 2'h3") && !text.contains("& 8'h0") && !text.contains("<<"), "{text}");
    let mut s = Interpreter::new(&design);
    for (a, b) in [(3, 4), (0xff, 0xff), (0x81, 0x18)] {
        s.poke("a", a);
        s.poke("b", b);
        let q = if b >> 3 & 3 == 3 { a << 2 & 0xff | 1 } else { (a + b) & 0xff };
        assert_eq!(s.peek("q"), q, "{a:#x} {b:#x}");
    }
}

/// Every operator at one width.
#[derive(Debug)]
struct Operators(u32);
#[derive(Ports)]
#[ports(Operators)]
struct OperatorsIo {
    #[input(c.0)]
    a: Sig,
    #[input(c.0)]
    b: Sig,
    #[input(40)]
    by: Sig,
    #[output(7)]
    bits: Sig,
    #[output(c.0)]
    sum: Sig,
    #[output(c.0)]
    difference: Sig,
    #[output(c.0)]
    product: Sig,
    #[output(c.0)]
    left: Sig,
    #[output(c.0)]
    right: Sig,
    #[output(c.0 * 3)]
    copies: Sig,
    #[output(c.0 + 1)]
    wider: Sig,
}
impl Module for Operators {
    type Io = OperatorsIo;
    fn name(&self) -> String {
        format!("operators_{}", self.0)
    }
    fn body(&self, io: &OperatorsIo) {
        let OperatorsIo { a, b, by, .. } = *io;
        io.bits.set(cat(&[a.lt(b), a.le(b), a.gt(b), a.eq(b), a.all(), a.any(), a.parity()]));
        io.sum.set(a + b);
        io.difference.set(a - b);
        io.product.set(a * b);
        io.left.set(a << by);
        io.right.set(a >> by);
        io.copies.set(a.repeat(3));
        io.wider.set(cat(&[b.bit(0), a]));
    }
}

/// Bit-serial arithmetic, as on paper: the oracle.
fn add(a: &[bool], b: &[bool], mut carry: bool) -> Vec<bool> {
    let one = |(a, b): (&bool, &bool)| {
        let sum = a ^ b ^ carry;
        carry = a & b | carry & (a | b);
        sum
    };
    a.iter().zip(b).map(one).collect()
}

#[test]
fn every_operator_agrees_with_paper_arithmetic_at_widths_1_to_130() {
    let list = |b: &Bits| (0..b.width()).map(|i| b.bit(i)).collect::<Vec<bool>>();
    let mut seed = 0x1234_5678_9abc_def1_u64;
    let mut random = |width: u32| {
        let words: Vec<u64> = (0..3)
            .map(|_| {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                [seed, seed, 0, u64::MAX][(seed >> 60) as usize % 4]
            })
            .collect();
        Bits::from_words(width, &words)
    };
    for width in 1..=130 {
        let mut s = Interpreter::new(&elaborate(&Operators(width)).unwrap());
        let n = width as usize;
        let ones = Bits::from_words(width, &[u64::MAX; 3]);
        let mut pairs: Vec<(Bits, Bits)> = (0..6).map(|_| (random(width), random(width))).collect();
        pairs.extend([(ones.clone(), ones.clone()), (Bits::zero(width), ones)]);
        for (i, (a, b)) in pairs.into_iter().enumerate() {
            let by = [0, 1, u64::from(width) - 1, u64::from(width), 64, 63, 1 << 39, 65][i];
            s.poke_bits("a", &a);
            s.poke_bits("b", &b);
            s.poke("by", by);
            let (x, y) = (list(&a), list(&b));
            let less = x.iter().rev().lt(y.iter().rev());
            let facts = [
                less,
                less || x == y,
                !less && x != y,
                x == y,
                x.iter().all(|b| *b),
                x.iter().any(|b| *b),
                x.iter().filter(|b| **b).count() % 2 == 1,
            ];
            let facts = facts.iter().fold(0, |v, b| v << 1 | u64::from(*b));
            assert_eq!(s.peek("bits"), facts, "width {width}: {a:?} {b:?}");
            let flipped: Vec<bool> = y.iter().map(|b| !b).collect();
            let shift = |left: bool| {
                let at =
                    |i: usize| if left { i.checked_sub(by as usize) } else { i.checked_add(by as usize) };
                (0..n).map(|i| at(i).and_then(|i| x.get(i)).copied().unwrap_or(false)).collect::<Vec<_>>()
            };
            let product = (0..n).filter(|i| y[*i]).fold(vec![false; n], |sum, i| {
                let part: Vec<bool> = (0..n).map(|k| k >= i && x[k - i]).collect();
                add(&sum, &part, false)
            });
            for (name, wanted) in [
                ("sum", add(&x, &y, false)),
                ("difference", add(&x, &flipped, true)),
                ("product", product),
                ("left", shift(true)),
                ("right", shift(false)),
                ("copies", [&x[..], &x, &x].concat()),
                ("wider", [&x[..], &y[..1]].concat()),
            ] {
                assert_eq!(list(&s.peek_bits(name)), wanted, "width {width} {name}: {a:?} {b:?} by {by}");
            }
        }
    }
}

/// A child that names its clock and reset, as one with several clocks does.
#[derive(Debug)]
struct Named;
#[derive(Ports)]
#[ports(Named)]
struct NamedIo {
    #[input]
    its_clock: Sig,
    #[input]
    its_reset: Sig,
    #[output(8)]
    count: Sig,
}
impl Module for Named {
    type Io = NamedIo;
    fn name(&self) -> String {
        "named".into()
    }
    fn body(&self, io: &NamedIo) {
        Domain::new(io.its_clock, Some(io.its_reset)).within(|| {
            let count = reg_init("value", 8, 3);
            count.set(count + 1);
            io.count.set(count);
        });
    }
}

/// Gives its own clock and reset to that child.
#[derive(Debug)]
struct Giver;
#[derive(Ports)]
#[ports(Giver)]
struct GiverIo {
    #[output(8)]
    count: Sig,
}
impl Module for Giver {
    type Io = GiverIo;
    fn name(&self) -> String {
        "giver".into()
    }
    fn body(&self, io: &GiverIo) {
        let child = instance("child", &Named);
        let own = Domain::implicit();
        child.its_clock.set(own.clock());
        child.its_reset.set(own.reset());
        io.count.set(child.count);
    }
}

#[test]
fn a_module_gives_its_clock_and_reset_to_a_child_that_names_them() {
    let mut s = Interpreter::new(&elaborate(&Giver).unwrap());
    s.poke("reset", 1);
    s.clock();
    s.poke("reset", 0);
    assert_eq!(s.peek("count"), 3);
    s.clock();
    assert_eq!(s.peek("count"), 4);
}
