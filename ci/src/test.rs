//! `cargo ci test`: every check of the project, on two cores in less than half an hour with all of it to build.
//!
//! All steps run, whatever became of the ones before; only a machine that lacks a tool stops at once. The last line
//! counts the steps.

use std::thread;

use crate::{
    Args, Task, bench, board, captures, ecp5, generate, install, interop, run, spec,
    step::{Steps, Verdict},
    story, synth, tools,
};

/// The task `test`.
pub const TASK: Task = Task {
    name: "test",
    args: "",
    about: "install what is missing and run every check",
    needs: &[],
    run: test,
};

fn test(args: Args) -> anyhow::Result<()> {
    run::no_more(args)?;
    let mut steps = Steps::default();
    let shown =
        |mut command: std::process::Command| move || run::show(&mut command).map(|()| Verdict::Passed);
    if !steps.step("install", || install::install(true).map(|()| Verdict::Passed)) {
        return steps.close();
    }
    steps.step("fmt", shown(run::cargo(["fmt", "--all", "--check"])));
    steps.step("generated files", || generate::check(generate::GENERATORS));
    steps.step("requirements", spec::check);
    steps.step("ci/tools", || tools::tools().map(|()| Verdict::Passed));
    steps.step("yosys", || synth::venv().map(|_| Verdict::Passed));
    let cleared = captures::clear();
    steps.step("build of the tests", shown(run::cargo(["test", "--workspace", "--no-run"])));
    // For the core that is idle while the last test of a program runs alone. Synthesis first: cargo waits for no other
    // cargo that only runs what is built.
    let beside = thread::spawn(|| {
        let synthesis = std::env::current_exe().map(|ci| run::keep(run::command(ci, ["synth"])));
        let clippy = run::cargo(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]);
        (synthesis, run::keep(clippy))
    });
    steps.step("cargo test", || {
        cleared?;
        run::show(&mut run::cargo(["test", "--workspace", "--no-fail-fast"]))?;
        Ok(Verdict::Passed)
    });
    let told = |(said, result): (String, anyhow::Result<()>)| {
        print!("{said}");
        result.map(|()| Verdict::Passed)
    };
    let (synthesis, clippy) = beside.join().expect("it does not panic");
    steps.step("coarse synthesis, meanwhile", || told(synthesis?));
    steps.step("clippy, meanwhile", || told(clippy));
    steps.step("stories at 512 bit", shown(story::wide()));
    steps.step("figures at 512 bit", shown(bench::quick()));
    let (files, icrc_files) = (captures::find(), captures::find());
    steps.step("captures: tshark", || captures::tshark(&files?, None));
    steps.step("captures: icrc", || captures::icrc(&icrc_files?, None));
    // the two cores are free now, which a kernel in an emulated PC is glad of
    steps.step("nine exchanges with Linux", interop::sample);
    steps.step("project of alveo-u55c", || board::project("alveo-u55c", false).map(|()| Verdict::Passed));
    steps.step("bitstream of ecp5-versa", ecp5::sample);
    steps.step("flash ecp5-versa", ecp5::flash);
    steps.close()
}
