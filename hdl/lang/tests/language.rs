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
            "memory" => {
                let m = Memory::with_lanes("store", 16, 8, 4);
                m.write_lanes(high(), a.bits(0, 4), b, a.bits(4, 2));
                q.set(m.read("word", a.bit(7), a.bits(0, 4)));
            }
            "crc" => {
                let state = reg_init("state", 32, 0xffff_ffff);
                state.set(crc32_next(state, a, 1));
                q.set(state.bits(0, 8));
            }
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
    ] {
        let e = refused(case);
        assert_eq!(e.rule, rule, "{case}: {e}");
        assert!(e.place.file().ends_with("tests/language.rs"), "{case} is blamed on {e}");
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
