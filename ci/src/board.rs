//! `cargo ci board BOARD`: the way to a board, as far as a machine without one can go.
//!
//! ```text
//!   nic's emit --board ─> rtl/*.sv ─┐
//!   constraints/BOARD ──────────────┼─> target/boards/BOARD  (--project: for `vivado -source build.tcl`)
//!                                   └─> tclsh ci/tools/vivado.tcl ─> recording, compared with constraints/BOARD/recording.txt
//! ```
//! The project script runs here with recorded stub commands in Vivado's place; every port, bit, module and register that
//! a constraint names must be in the emitted RTL, and every port and crossing must be constrained. Pins and sites come
//! from `board.toml`, which names the source of each.
//! `--cosim`: from emitted RTL, by Verilator, against the model of the hard core in cocotbext-pcie: the card's PCIe part, and
//! the whole card with its line looped back under the driver.
//! In: the tree. Out: the folder; a failure that names what is wrong. `--update` writes the recording. Without
//! `--project` and `--cosim`: both.
//! ECP5-5G Versa: see [`crate::ecp5`].

use std::{
    ffi::OsStr,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::{Args, Task, ecp5, install, run, step::Verdict, synth, usage};

/// Boards with Vivado projects.
const BOARDS: [&str; 1] = ["alveo-u55c"];
/// What of `constraints/BOARD` goes into the project.
const FILES: [&str; 8] = [
    "build.tcl",
    "crossings.tcl",
    "pcie4c.tcl",
    "cmac.tcl",
    "pcie.xdc",
    "qsfp0.xdc",
    "board.xdc",
    "bitstream.xdc",
];

/// The task `board`.
pub const TASK: Task = Task {
    name: "board",
    args: "alveo-u55c [--project [--update]] [--cosim [--only TEST]] | ecp5-versa [--update] [--again] [--flash] [--cosim [--only TEST]]",
    about: "alveo-u55c: its Vivado project, checked against the RTL with recorded stubs; ecp5-versa: its bitstream, and the way of one into it; the edge of either in co-simulation",
    needs: &["constraints/alveo-u55c"],
    run: |mut args: Args| {
        let (mut board, mut update, mut only) = (None, false, None);
        let (mut projects, mut simulates, mut again, mut flashes) = (false, false, false, false);
        while let Some(arg) = args.next()? {
            match arg {
                Long("project") => projects = true,
                Long("cosim") => simulates = true,
                Long("only") => only = Some(args.value()?),
                Long("update") => update = true,
                Long("again") => again = true,
                Long("flash") => flashes = true,
                Value(name) if board.is_none() => board = Some(name.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        let known = |name: &String| BOARDS.contains(&name.as_str()) || name == ecp5::BOARD;
        let board = board.filter(known);
        let board =
            board.ok_or_else(|| usage(format!("name a board: {}, {}", BOARDS.join(", "), ecp5::BOARD)))?;
        install::install(false)?;
        if board == ecp5::BOARD {
            if flashes {
                if let Verdict::Skipped(why) = ecp5::flash()? {
                    println!("{why}");
                }
                return Ok(());
            }
            return if simulates { ecp5::cosim(only.as_deref()) } else { ecp5::bitstream(update, again) };
        }
        if projects || !simulates {
            project(&board, update)?;
        }
        if simulates || !projects {
            cosim(only.as_deref())?;
        }
        Ok(())
    },
};

/// Where things of a board are built.
pub(crate) fn folder(board: &str) -> PathBuf {
    run::target().join("boards").join(board)
}

/// Emits `board` into `rtl` of its folder; where that is.
pub(crate) fn emit(board: &str) -> Result<PathBuf> {
    let rtl = folder(board).join("rtl");
    let args = ["run", "--package", "nic", "--bin", "emit", "--", "--board", board, "--out"];
    run::show(run::cargo(args).arg(&rtl))?;
    Ok(rtl)
}

/// Against cocotbext-pcie: the PCIe part of the card, then the whole card under the driver; `only` one test.
fn cosim(only: Option<&OsStr>) -> Result<()> {
    let is_wanted = |test: &str| -> Result<bool> {
        let Some(only) = only else { return Ok(true) };
        let text = read(&run::root().join("hdl/nic/cosim").join(test))?;
        Ok(text.contains(&format!("async def {}(", only.to_string_lossy())))
    };
    let [part, card] = ["us_pcie.py", "us_card.py"];
    let wanted = [is_wanted(part)?, is_wanted(card)?];
    if wanted == [false; 2] {
        return Err(usage(format!("no test of {part} or {card} has this name")));
    }
    if wanted[0] {
        simulate("us-pcie-bench", &[], "us_pcie_bench", part, only)?;
    }
    if wanted[1] {
        run::show(&mut run::cargo(["build", "--package", "host", "--example", "loopback"]))?;
        simulate("alveo-u55c", &["us_card.vlt", "us_cells.sv"], "alveo_u55c", card, only)?;
    }
    Ok(())
}

/// The test file `test` of `hdl/nic/cosim` against module `top`: the RTL of `board` and the files `also` beside it. A
/// driver's story finds its program in `VERBENA_STORY`; models of clocks need simulated time.
pub(crate) fn simulate(
    board: &str,
    also: &[&str],
    top: &str,
    test: &str,
    only: Option<&OsStr>,
) -> Result<()> {
    let python = synth::python("cosim", "ci/tools/cosim.txt", "cocotb")?;
    let rtl = emit(board)?;
    let bench = |file: &str| format!("hdl/nic/cosim/{file}");
    let mut cosim = run::command("env", [python.as_os_str(), "-B".as_ref(), "ci/tools/cosim".as_ref()]);
    cosim.arg("--rtl").arg(&rtl);
    for file in also {
        cosim.args(["--also", &bench(file)]);
    }
    if also.iter().any(|file| file.ends_with(".sv")) {
        // what the test reaches is named in the files; all of a card being public makes it slow
        cosim.args(
            ["--timing", "--timescale", "1ns/1ps", "--no-public-flat-rw"].map(|f| format!("--verilator={f}")),
        );
        cosim.env("VERBENA_STORY", run::target().join("debug/examples/loopback"));
    }
    cosim.args(["--top", top, "--test", &bench(test), "--build"]).arg(folder(board).join("model"));
    if let Some(only) = only {
        cosim.arg("--only").arg(only);
    }
    run::show(&mut cosim)
}

/// Writes the project of `board`, and runs its script with stubs.
pub fn project(board: &str, update: bool) -> Result<()> {
    let constraints = run::root().join("constraints").join(board);
    let out = folder(board);
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let rtl = emit(board)?;
    for file in FILES {
        fs::copy(constraints.join(file), out.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    let board_file = Board::parse(&read(&constraints.join("board.toml"))?)?;
    let modules = rtl_modules(&rtl)?;
    write(&out.join("settings.tcl"), &board_file.settings(&read(&rtl.join("files.f"))?))?;
    let facts = out.join("facts.tcl");
    write(&facts, &board_file.facts(&modules)?)?;
    let recording = run_stubbed(&facts, &out.join("build.tcl"))?;
    println!("{}: every port and every crossing is constrained", out.display());
    compare(&constraints.join("recording.txt"), &recording, update)?;
    println!("on a machine with Vivado, in that folder: vivado -mode batch -source build.tcl");
    Ok(())
}

/// Runs a project script with the stubs; what it did, one command per line.
fn run_stubbed(facts: &Path, script: &Path) -> Result<String> {
    let mut tclsh = run::command("tclsh", ["ci/tools/vivado.tcl"]);
    tclsh.args([facts, script]);
    run::output(&mut tclsh).map(|text| text + "\n")
}

/// Demands that what was recorded is what stands in `path`, or writes it there.
fn compare(path: &Path, recording: &str, update: bool) -> Result<()> {
    if update {
        return write(path, recording);
    }
    let committed = read(path)?;
    if let Some((line, (have, want))) = recording
        .lines()
        .map(Some)
        .chain([None])
        .zip(committed.lines().map(Some).chain([None]))
        .enumerate()
        .find(|(_, (have, want))| have != want)
    {
        let end = "nothing more";
        bail!(
            "the project script does something else than {} says in line {}:\n  now       {}\n  recorded  {}\n\
             if that is meant: cargo ci board alveo-u55c --update",
            path.display(),
            line + 1,
            have.unwrap_or(end),
            want.unwrap_or(end)
        );
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// What a `board.toml` says.
#[derive(Debug, PartialEq, Eq)]
struct Board {
    part: String,
    top: String,
    /// Of the hard blocks: what and where.
    sites: Vec<(String, String)>,
    /// Port and package pin.
    pins: Vec<(String, String)>,
    lanes: Vec<String>,
}

impl Board {
    /// The few lines of TOML that are asked for: `name = "text"`, tables of such lines, and arrays of texts.
    fn parse(text: &str) -> Result<Board> {
        let one = |name: &str| -> Result<String> {
            let line = text.lines().find(|line| line.split('=').next().is_some_and(|key| key.trim() == name));
            let line = line.with_context(|| format!("board.toml does not say {name}"))?;
            Ok(line.split('"').nth(1).with_context(|| format!("{name} is not a text"))?.to_owned())
        };
        let table = |name: &str| -> Result<&str> {
            let head = format!("[{name}]\n");
            let begin =
                text.find(&head).with_context(|| format!("board.toml has no table {name}"))? + head.len();
            Ok(text[begin..].split("\n[").next().unwrap_or_default())
        };
        let pairs = |name: &str| -> Result<Vec<(String, String)>> {
            let lines = table(name)?.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
            lines
                .map(|line| {
                    let (key, value) = line.split_once('=').with_context(|| format!("{name}: {line}"))?;
                    let value = value.split('"').nth(1).with_context(|| format!("{key} is not a text"))?;
                    Ok((key.trim().to_owned(), value.to_owned()))
                })
                .collect()
        };
        Ok(Board {
            part: one("part")?,
            top: one("top")?,
            sites: pairs("sites")?,
            pins: pairs("pins")?,
            lanes: table("lanes")?.split('"').skip(1).step_by(2).map(str::to_owned).collect(),
        })
    }

    /// What `build.tcl` reads beside the constraints.
    fn settings(&self, files: &str) -> String {
        let xdcs: Vec<&str> = FILES.into_iter().filter(|file| file.ends_with(".xdc")).collect();
        let flat = |pairs: &[(String, String)]| {
            pairs.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(" ")
        };
        format!(
            "# By cargo ci board.\nset part {}\nset top {}\nset xdcs {{{}}}\narray set site {{{}}}\nset package_pins {{{}}}\nset rtl {{{}}}\n",
            self.part,
            self.top,
            xdcs.join(" "),
            flat(&self.sites),
            flat(&self.pins),
            files.split_whitespace().collect::<Vec<_>>().join(" ")
        )
    }

    /// What `vivado.tcl` judges by.
    fn facts(&self, modules: &[RtlModule]) -> Result<String> {
        let top = modules.iter().find(|module| module.name == self.top);
        let top = top.with_context(|| format!("the RTL has no module {}", self.top))?;
        let mut text = String::new();
        let ports = |text: &mut String| {
            top.ports
                .iter()
                .try_for_each(|(name, direction, width)| write!(text, " {name} {{{direction} {width}}}"))
        };
        write!(text, "set top {}\nset ports {{", self.top)?;
        ports(&mut text)?;
        let pins: Vec<&str> = self.pins.iter().map(|(port, _)| port.as_str()).collect();
        write!(text, " }}\nset pins {{{}}}\nset lanes {{{}}}\n", pins.join(" "), self.lanes.join(" "))?;
        text += "set modules {";
        for module in modules {
            write!(text, "\n  {} {{{}}}", module.name, module.registers.join(" "))?;
        }
        text += "\n}\n";
        Ok(text)
    }
}

/// What a constraint may name of an emitted module.
#[derive(Debug, PartialEq, Eq)]
struct RtlModule {
    name: String,
    /// Name, direction, width.
    ports: Vec<(String, String, u32)>,
    registers: Vec<String>,
}

fn rtl_modules(folder: &Path) -> Result<Vec<RtlModule>> {
    read(&folder.join("files.f"))?
        .lines()
        .map(|file| {
            let text = read(&folder.join(file))?;
            rtl_module(&text).with_context(|| format!("{file} is not as emitted"))
        })
        .collect()
}

/// The emitter writes one port and one register per line.
fn rtl_module(text: &str) -> Option<RtlModule> {
    let mut module = RtlModule { name: String::new(), ports: vec![], registers: vec![] };
    for line in text.lines() {
        let words: Vec<&str> = line.split("//").next()?.split_whitespace().collect();
        // `(* ASYNC_REG = "TRUE" *) logic ...`
        let words = match words.iter().rposition(|word| *word == "*)") {
            Some(end) => &words[end + 1..],
            None => &words[..],
        };
        let name = |word: &str| word.trim_end_matches([',', ';']).to_owned();
        match *words {
            ["module", name, ..] => module.name = name.to_owned(),
            [direction @ ("input" | "output"), _, ref rest @ ..] if line.starts_with("  ") => {
                let width = match rest {
                    [range, _] => range.strip_prefix('[')?.split(':').next()?.parse::<u32>().ok()? + 1,
                    _ => 1,
                };
                module.ports.push((name(rest.last()?), direction.to_owned(), width));
            }
            ["logic", ref rest @ ..] => {
                // `name;`, `[7:0] name;`, `[7:0] name [0:31];`
                let at = usize::from(rest.first()?.starts_with('['));
                module.registers.push(name(rest.get(at)?));
            }
            _ => {}
        }
    }
    (!module.name.is_empty()).then_some(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTL: &str = r#"// A top.
module top (
  input  wire clk_p,
  input  wire [1:0] rx,
  output logic led
);
  logic [5:0] tail_gray;  // a.rs:1
  (* ASYNC_REG = "TRUE" *) logic seen_meta;  // a.rs:2
  logic [69:0] words [0:31];  // a.rs:3
endmodule
"#;

    const SCRIPT: &str = "
create_clock -period 10.0 [get_ports clk_p]
set_property PACKAGE_PIN A1 [get_ports clk_p]
set_property IOSTANDARD LVDS [get_ports clk_p]
set_property PACKAGE_PIN B2 [get_ports led]
set_property IOSTANDARD LVCMOS18 [get_ports {led}]
foreach top [get_cells -hierarchical -filter {REF_NAME =~ top}] {
    set_max_delay -datapath_only 3.1 -from [get_cells $top/tail_gray_reg*] -to [get_cells -quiet $top/seen_meta_reg*]
}
write_bitstream top.bit
";

    /// Runs `script` and gives the recording, or what was said against it. The folder is named after the caller.
    fn judge(name: &str, board: &Board, script: &str) -> Result<String, String> {
        let folder = run::target().join(format!("ci-board-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let [facts, build] = ["facts.tcl", "build.tcl"].map(|file| folder.join(file));
        write(&facts, &board.facts(&[rtl_module(RTL).unwrap()]).unwrap()).unwrap();
        write(&build, script).unwrap();
        let mut tclsh = run::command("tclsh", ["ci/tools/vivado.tcl"]);
        let done = tclsh.args([facts, build]).output().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
    }

    fn board() -> Board {
        let text = "part = \"xc\"  # a part\ntop = \"top\"\n\n# where\n[sites]\nblock = \"X0Y1\"  # a source\n\n[pins]\n\
                    # a comment\nclk_p = \"A1\"\nled = \"B2\"  # another\n\n[lanes]\nports = [\n  \"rx\",\n]\n";
        Board::parse(text).unwrap()
    }

    #[test]
    fn a_board_file_and_a_module_are_read_as_they_are_written() {
        let list = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let want = Board {
            part: "xc".into(),
            top: "top".into(),
            sites: vec![("block".into(), "X0Y1".into())],
            pins: vec![("clk_p".into(), "A1".into()), ("led".into(), "B2".into())],
            lanes: list(&["rx"]),
        };
        assert_eq!(board(), want);
        assert!(Board::parse("part = \"xc\"\n").unwrap_err().to_string().contains("does not say top"));
        let settings = board().settings("a.sv\nb.sv\n");
        assert!(settings.contains(
            "\narray set site {block X0Y1}\nset package_pins {clk_p A1 led B2}\nset rtl {a.sv b.sv}\n"
        ));
        let port = |name: &str, direction: &str, width| (name.to_owned(), direction.to_owned(), width);
        let want = RtlModule {
            name: "top".into(),
            ports: vec![port("clk_p", "input", 1), port("rx", "input", 2), port("led", "output", 1)],
            registers: list(&["tail_gray", "seen_meta", "words"]),
        };
        assert_eq!(rtl_module(RTL), Some(want));
    }

    #[test]
    fn what_the_script_does_is_recorded_and_a_good_one_passes() {
        let recording = judge("good", &board(), SCRIPT).unwrap();
        assert_eq!(
            recording.lines().collect::<Vec<_>>(),
            [
                "create_clock -period 10.0 {{port clk_p}}",
                "set_property PACKAGE_PIN A1 {{port clk_p}}",
                "set_property IOSTANDARD LVDS {{port clk_p}}",
                "set_property PACKAGE_PIN B2 {{port led}}",
                "set_property IOSTANDARD LVCMOS18 {{port led}}",
                "set_max_delay -datapath_only 3.1 -from top/tail_gray -to top/seen_meta",
                "write_bitstream top.bit",
            ]
        );
    }

    #[test]
    fn each_fault_that_is_planted_is_named() {
        let b = board();
        for (name, from, to, says) in [
            ("unknown", "[get_ports clk_p]", "[get_ports clock]", "top has no port clock"),
            ("index", "[get_ports {led}]", "[get_ports {rx[2]}]", "top has no port rx[2]"),
            ("scalar", "[get_ports {led}]", "[get_ports {led[0]}]", "top has no port led[0]"),
            ("pin", "set_property PACKAGE_PIN A1 [get_ports clk_p]", "", "clk_p has no package pin"),
            ("twice", "PACKAGE_PIN A1", "PACKAGE_PIN B2", "clk_p and led are both at pin B2"),
            ("standard", "set_property IOSTANDARD LVCMOS18 [get_ports {led}]", "", "led has no I/O standard"),
            ("period", "create_clock -period 10.0 [get_ports clk_p]", "", "clk_p has no period"),
            (
                "lane",
                "write_bitstream",
                "set_property PACKAGE_PIN C3 [get_ports {rx[1]}]\nwrite_bitstream",
                "rx[1] has a pin",
            ),
            ("module", "=~ top", "=~ async_fifo_*", "the crossing into top/seen_meta is unconstrained"),
            ("register", "tail_gray_reg*", "tail_grey_reg*", "top has no register tail_grey"),
            ("command", "write_bitstream", "write_bitsteam", "invalid command name \"write_bitsteam\""),
        ] {
            assert!(SCRIPT.contains(from), "{name}");
            let said = judge(name, &b, &SCRIPT.replace(from, to)).unwrap_err();
            assert!(said.contains(says), "{name}: {said}");
        }
        let unnamed = Board { lanes: vec![], ..board() };
        let said = judge("unnamed", &unnamed, SCRIPT).unwrap_err();
        assert!(said.contains("port rx is unconstrained"), "{said}");
        let absent = Board { lanes: vec!["rx".into(), "tx".into()], ..board() };
        let said = judge("absent", &absent, SCRIPT).unwrap_err();
        assert!(said.contains("names tx, which top does not have"), "{said}");
    }

    #[test]
    fn a_recording_that_differs_names_the_line_and_update_writes_it() {
        let path = run::target().join(format!("ci-board-recording-{}", std::process::id()));
        compare(&path, "a\nb\n", true).unwrap();
        compare(&path, "a\nb\n", false).unwrap();
        for (other, line) in [("a\nc\n", 2), ("a\n", 2), ("a\nb\nc\n", 3)] {
            let said = compare(&path, other, false).unwrap_err().to_string();
            assert!(said.contains(&format!("in line {line}:")), "{said}");
        }
        fs::remove_file(path).unwrap();
    }
}
