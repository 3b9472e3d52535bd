//! The emitted text: as committed for one small module, free of warnings for a rich design.

use hdl::*;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(HwEnum, Clone, Copy, PartialEq, Debug)]
enum Phase {
    Idle,
    Count,
    Report,
}

/// Counts the beats of a packet and offers the count.
#[derive(Debug)]
struct Meter;
#[derive(Ports)]
#[ports(Meter)]
struct MeterIo {
    #[input]
    valid: Sig,
    #[input]
    last: Sig,
    #[source(16)]
    length: Stream<Sig>,
    #[output]
    busy: Sig,
}
impl Module for Meter {
    type Io = MeterIo;
    fn name(&self) -> String {
        "meter".into()
    }
    fn doc(&self) -> String {
        "Counts the beats of a packet and offers the count.".into()
    }
    fn body(&self, io: &MeterIo) {
        let phase = EnumSig::<Phase>::reg("phase", Phase::Idle);
        let beats = reg("beats", 16);
        let next = (beats + 1).named("beats_next");
        io.length.valid.set(phase.is(Phase::Report));
        io.length.data.set(beats);
        io.busy.set(!phase.is(Phase::Idle));
        phase.switch(|p| match p {
            Phase::Idle => {
                beats.set(1);
                when(io.valid & !io.last, || phase.set(Phase::Count))
                    .elif(io.valid, || phase.set(Phase::Report));
            }
            Phase::Count => {
                when(io.valid, || {
                    beats.set(next);
                    when(io.last, || phase.set(Phase::Report));
                });
            }
            Phase::Report => {
                when(io.length.ready, || phase.set(Phase::Idle));
            }
        });
    }
}

/// A cell that the device's library has.
#[derive(Debug)]
struct Cell;
#[derive(Ports)]
#[ports(Cell)]
struct CellIo {
    #[input]
    i: Sig,
    #[output]
    o: Sig,
}
impl Module for Cell {
    type Io = CellIo;
    fn name(&self) -> String {
        "LIBRARY_BUFFER".into()
    }
    fn body(&self, _: &CellIo) {}
    fn external(&self) -> Option<Vec<(String, Parameter)>> {
        let text = |t: &str| Parameter::Text(t.into());
        Some(vec![("MODE".into(), text("FAST \"1\"")), ("DELAY".into(), Parameter::Number(-3))])
    }
}

/// Everything that the language emits, once.
#[derive(Debug)]
struct Rich;
#[derive(Ports)]
#[ports(Rich)]
struct RichIo {
    #[input(72)]
    wide: Sig,
    #[input(5)]
    address: Sig,
    #[input(9)]
    enables: Sig,
    #[input]
    other_clock: Sig,
    #[sink(8)]
    flow: Stream<Sig>,
    #[output(72)]
    word: Sig,
    #[output(72)]
    now: Sig,
    #[output(32)]
    crc: Sig,
    #[output(16)]
    length: Sig,
    #[output(72)]
    mixed: Sig,
    #[output]
    crossed: Sig,
    #[output(3)]
    unset: Sig,
}
impl Module for Rich {
    type Io = RichIo;
    fn name(&self) -> String {
        "rich".into()
    }
    fn body(&self, io: &RichIo) {
        let store = Memory::with_lanes("store", 24, 72, 8).style("block").init(vec![Bits::new(72, 5); 3]);
        store.write_lanes(io.flow.moves(), io.address, io.wide, io.enables);
        store.write(io.enables.all(), io.address + 1, io.wide << io.address);
        io.word.set(store.read("store_word", io.enables.bit(3), io.address));
        let small = Memory::new("lookup", 32, 72).style("distributed");
        small.write(io.flow.valid, io.address, !io.wide);
        io.now.set(small.read_now("lookup_word", io.address));
        let crc = reg_init("crc_state", 32, 0xffff_ffff);
        when(io.flow.moves(), || crc.set(crc32_next(crc, io.flow.data, 1)));
        io.crc.set(crc);
        let (meter, buffer) = (instance("meter", &Meter), instance("buffer", &Cell));
        buffer.i.set(io.flow.valid);
        meter.valid.set(buffer.o);
        meter.last.set(io.flow.data.eq(0));
        meter.length.ready.set(io.enables.parity());
        io.length.set(mux(meter.length.valid, meter.length.data, 0));
        io.flow.ready.set(!meter.busy);
        let shift = io.address.bits(0, 3).extend(6);
        let product = io.wide * (io.wide >> shift) - cat(&[io.address, io.wide.bits(0, 67)]);
        io.mixed.set(product ^ io.enables.repeat(8));
        when(io.wide.lt(product), || io.mixed.set(select(io.address, &[io.wide, product, product + 1])))
            .elif(io.address.bit(2), || io.mixed.set(0));
        let toggle = reg_init("toggle", 1, 1);
        toggle.attribute("keep", "true").set(!toggle);
        Domain::new(io.other_clock, None).within(|| io.crossed.set(synchronise("toggle", toggle)));
        let never = reg("never_set", 1);
        when(low(), || never.set(1));
        io.unset.set(cat(&[never, reg_init("only_reset", 2, 2)]));
        assert_always("no_flow_while_busy", !(io.flow.ready & meter.busy));
        cover("long", meter.length.data.gt(100));
    }
}
fn text<M: Module>(m: &M, sources: bool) -> String {
    elaborate(m).unwrap_or_else(|e| panic!("{e}")).verilog(Style { sources })
}

/// `UPDATE_EXPECT=1 cargo test -p hdl --test emission` writes the file anew.
#[test]
fn a_small_module_reads_as_committed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expect/meter.sv");
    let text = text(&Meter, false);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "see {}", path.display());
}

/// Names of the warnings of Verilator on `text`, with their lines.
fn lint(file: &str, text: &str) -> Vec<(String, String)> {
    let path: PathBuf = [env!("CARGO_TARGET_TMPDIR"), file].iter().collect();
    std::fs::write(&path, text).unwrap();
    let output = Command::new("verilator")
        .args(["--lint-only", "-Wall", "-Wno-fatal", "--assert", "--top-module", "rich"])
        .arg(&path)
        .output()
        .expect("verilator is installed: `cargo ci install`");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let warnings = said.lines().filter_map(|l| l.strip_prefix("%Warning-"));
    warnings.map(|l| (l.split(':').next().unwrap_or(l).to_owned(), l.to_owned())).collect()
}

#[test]
fn a_rich_design_draws_no_warning_that_is_not_waived_by_name() {
    let stub = "// verilator lint_off UNUSEDPARAM\nmodule LIBRARY_BUFFER #(parameter MODE = \"\", parameter DELAY = 0) \
                (input wire i, output wire o);\n  assign o = i;\nendmodule\n";
    let text = text(&Rich, true) + stub;
    let waived = |name: &str| WAIVERS.iter().any(|w| w.0 == name);
    let bad: Vec<_> = lint("rich.sv", &text).into_iter().filter(|w| !waived(&w.0)).collect();
    assert!(bad.is_empty(), "{bad:#?}\n{text}");
    // the judge sees a planted fault
    let planted = text.replace(
        "endmodule\n// verilator lint_off",
        "  wire [3:0] planted = 5'd3;\nendmodule\n// verilator lint_off",
    );
    assert!(lint("planted.sv", &planted).iter().any(|w| w.0.starts_with("WIDTH")));
}

#[test]
fn names_enums_parameters_attributes_and_properties_survive() {
    let text = text(&Rich, false);
    for wanted in [
        "LIBRARY_BUFFER #(.MODE(\"FAST \\\"1\\\"\"), .DELAY(-3)) buffer (",
        "(* ram_style = \"block\" *) logic [71:0] store [0:23];",
        "(* ASYNC_REG = \"TRUE\" *) logic toggle_meta;",
        "phase <= PHASE_REPORT;",
        "phase == PHASE_REPORT",
        "`ifndef SYNTHESIS",
        "no_flow_while_busy: assert (",
        "long: cover (",
        "if (reset) only_reset <= 2'h2;",
        "assign never_set = 1'h0;",
        "always_ff @(posedge other_clock)",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    assert!(!text.contains("module LIBRARY_BUFFER"), "a black box is not emitted");
    assert_eq!(text.matches("module meter").count(), 1);
}

/// A long chain, a wide switch and many wires: the text grows with the design, not with its square.
#[derive(Debug)]
struct Large(u32);
#[derive(Ports)]
#[ports(Large)]
struct LargeIo {
    #[input(32)]
    a: Sig,
    #[output(32)]
    q: Sig,
}
impl Module for Large {
    type Io = LargeIo;
    fn name(&self) -> String {
        "long_chain".into()
    }
    fn body(&self, io: &LargeIo) {
        let mut x = io.a;
        for i in 0..self.0 {
            let w = wire(&format!("w{i}"), 32);
            w.set(x + i);
            when(x.bit(i % 32), || w.set((x ^ io.a) + 7)).elif(x.eq(i), || w.set(io.a));
            x = w & !(x | io.a);
        }
        io.q.set(x);
        let mut chain = when(x.eq(0), || io.q.set(1));
        for i in 1..40 {
            chain = chain.elif(x.eq(i), || io.q.set(i));
        }
    }
}

#[test]
fn the_text_grows_with_the_design() {
    let (small, large) = (text(&Large(200), true).len(), text(&Large(2000), true).len());
    assert!(large < small * 12, "{small} bytes became {large}");
}
