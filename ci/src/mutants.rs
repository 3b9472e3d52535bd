//! `cargo ci mutants`: plants the faults of `ci/mutants.txt` into the RTL, one at a time, and demands that the tests
//! named beside each find it.
//!
//! ```text
//! ci/mutants.txt ──> a checkout of HEAD under target/mutants ──> one fault in ──> one block's tests ──> killed?
//! ```
//! A fault whose text is gone, stands twice, or does not compile is an error of the list, not a kill. The block tests pass without any fault first. A test that hangs counts as failed. Nothing
//! outside of the target folder is written; checkout and builds stay there, so that the next run builds little.

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::{Args, Task, run, synth};

/// The task `mutants`.
pub const TASK: Task = Task {
    name: "mutants",
    args: "[TEXT]",
    about: "plant the committed RTL faults (those with TEXT in `TARGET: NAME`); the tests must find each",
    needs: &["ci/mutants.txt"],
    run: mutants,
};

/// One fault.
#[derive(Debug, PartialEq, Eq)]
struct Mutant {
    /// The rule that it breaks.
    name: String,
    /// Path from the root.
    file: String,
    /// Package and test target that must fail.
    package: String,
    test: String,
    /// The text that stands there, exactly once.
    old: String,
    /// What takes its place.
    new: String,
}

/// Reads the list: blocks of `# name`, `file PATH`, `test PACKAGE TARGET`, `-` lines (old text), `+` lines (new).
fn parse(text: &str) -> Result<Vec<Mutant>> {
    let mut list: Vec<Mutant> = vec![];
    for (number, line) in text.lines().enumerate() {
        let place = || format!("ci/mutants.txt:{}: {line}", number + 1);
        if line.trim().is_empty() || line.starts_with("//") {
            continue;
        }
        if let Some(name) = line.strip_prefix("# ") {
            list.push(Mutant {
                name: name.into(),
                file: String::new(),
                package: String::new(),
                test: String::new(),
                old: String::new(),
                new: String::new(),
            });
            continue;
        }
        let mutant = list.last_mut().with_context(|| format!("{}: stands before any `# name`", place()))?;
        if let Some(file) = line.strip_prefix("file ") {
            mutant.file = file.into();
        } else if let Some(test) = line.strip_prefix("test ") {
            let (package, target) =
                test.split_once(' ').with_context(|| format!("{}: test PACKAGE TARGET", place()))?;
            (mutant.package, mutant.test) = (package.into(), target.into());
        } else if let Some(old) = line.strip_prefix('-') {
            mutant.old = join(&mutant.old, old);
        } else if let Some(new) = line.strip_prefix('+') {
            mutant.new = join(&mutant.new, new);
        } else {
            bail!("{}: starts with none of `# `, `file `, `test `, `-`, `+`", place());
        }
    }
    for m in &list {
        if m.file.is_empty() || m.test.is_empty() || m.old.is_empty() || m.old == m.new {
            bail!("ci/mutants.txt: `{}` lacks a file, a test, or a change", m.name);
        }
    }
    Ok(list)
}

fn join(text: &str, line: &str) -> String {
    if text.is_empty() { line.into() } else { format!("{text}\n{line}") }
}

/// The file with the fault in it, and without.
fn faulty(tree: &Path, m: &Mutant) -> Result<(String, String)> {
    let good = std::fs::read_to_string(tree.join(&m.file))
        .with_context(|| format!("`{}`: read {}", m.name, m.file))?;
    match good.matches(&m.old).count() {
        1 => Ok((good.replacen(&m.old, &m.new, 1), good)),
        n => bail!("`{}`: its old text stands {n} times in {}; it must stand once", m.name, m.file),
    }
}

fn plant(tree: &Path, m: &Mutant) -> Result<String> {
    let (bad, good) = faulty(tree, m)?;
    std::fs::write(tree.join(&m.file), bad).with_context(|| format!("`{}`: write {}", m.name, m.file))?;
    Ok(good)
}

/// How the mutants are built: optimisation and debug information cost more than they bring.
const QUICK: [(&str, &str); 2] = [("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "0")];
/// A test that takes this many times as long as without a fault, and this long, hangs, which is as good as a failure.
const HANGS: (u32, Duration) = (8, Duration::from_secs(60));
/// Longest without a fault.
const PATIENCE: Duration = Duration::from_secs(1200);

/// The checkout of HEAD and the builds in it.
struct Bench {
    tree: PathBuf,
    target: PathBuf,
}

impl Bench {
    /// Brings the checkout to HEAD. Files that are as they should be are not touched, so that cargo builds little.
    fn new() -> Result<Bench> {
        let base = run::target().join("mutants");
        let bench = Bench { tree: base.join("tree"), target: base.join("target") };
        std::fs::create_dir_all(&bench.tree).context("create target/mutants/tree")?;
        let tree = format!("--work-tree={}", bench.tree.display());
        let mut git = run::command("git", [&tree, "read-tree", "--reset", "-u", "HEAD"]);
        run::show(git.env("GIT_INDEX_FILE", base.join("index")))?;
        Ok(bench)
    }

    /// Builds a test target: its program, or what the compiler said.
    fn build(&self, package: &str, test: &str) -> Result<Result<PathBuf, String>> {
        let mut cargo = run::cargo(["test", "--no-run", "--package", package, "--test", test]);
        cargo.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target).env("CARGO_TERM_COLOR", "never");
        let output = cargo.envs(QUICK).output().context("run cargo")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Ok(Err(said));
        }
        let program = said.lines().find(|l| l.trim_start().starts_with("Executable"));
        let path = program.and_then(|l| l.split_once('(')).and_then(|(_, l)| l.strip_suffix(')'));
        let path = path.with_context(|| format!("cargo names no program for {package} {test}:\n{said}"))?;
        Ok(Ok(self.tree.join(path)))
    }

    /// Runs a test program for so long at most: whether all of its tests passed. Prints which did not.
    fn passes(&self, program: &Path, package: &str, limit: Duration) -> Result<bool> {
        let manifest = self.manifest_dir(package)?;
        let log = self.target.join("output");
        let file = std::fs::File::create(&log).context("create the output file")?;
        let mut test = std::process::Command::new(program);
        test.current_dir(&manifest).env("CARGO_MANIFEST_DIR", &manifest);
        // a group of its own: a proof has solvers below it, which end with it
        test.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let mut child = test.spawn().with_context(|| format!("start {}", program.display()))?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if start.elapsed() > limit {
                println!("    no end after {} s", limit.as_secs());
                run::succeeds(&mut run::command("sh", ["-c", &format!("kill -KILL -{}", child.id())]));
                break child.wait()?;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let output = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
        for line in output.lines().filter(|l| l.starts_with("test ") && l.ends_with(" ... FAILED")) {
            println!("    {}", line.trim_start_matches("test ").trim_end_matches(" ... FAILED"));
        }
        Ok(status.success())
    }

    /// Where a package's manifest is: the member of the workspace whose folder has its name.
    fn manifest_dir(&self, package: &str) -> Result<PathBuf> {
        let places = ["hdl", "sim", "."];
        let found =
            places.iter().map(|p| self.tree.join(p).join(package)).find(|p| p.join("Cargo.toml").exists());
        found.with_context(|| format!("ci/mutants.txt: no folder of a package `{package}`"))
    }

    /// Puts the fault in, builds, runs, takes it out: whether the tests found it.
    fn kills(&self, m: &Mutant, limit: Duration) -> Result<bool> {
        let good = plant(&self.tree, m)?;
        let found = self.build(&m.package, &m.test).and_then(|built| match built {
            Ok(program) => Ok(!self.passes(&program, &m.package, limit)?),
            Err(said) => bail!("`{}` does not compile:\n{said}", m.name),
        });
        std::fs::write(self.tree.join(&m.file), good).context("restore the file")?;
        found
    }
}

fn mutants(mut args: Args) -> Result<()> {
    let mut only = String::new();
    while let Some(arg) = args.next()? {
        match arg {
            Value(text) if only.is_empty() => only = text.string()?,
            other => return Err(other.unexpected().into()),
        }
    }
    let text = std::fs::read_to_string(run::root().join("ci/mutants.txt")).context("read ci/mutants.txt")?;
    let wanted = |m: &Mutant| format!("{}: {}", m.test, m.name).contains(&only);
    let list: Vec<Mutant> = parse(&text)?.into_iter().filter(wanted).collect();
    if list.is_empty() {
        bail!("no fault of ci/mutants.txt has `{only}` in `TARGET: NAME`");
    }
    // the proofs want it
    synth::venv()?;
    let start = Instant::now();
    let bench = Bench::new()?;
    let blocks: BTreeSet<(&str, &str)> = list.iter().map(|m| (m.package.as_str(), m.test.as_str())).collect();
    let mut limits = BTreeMap::new();
    for (package, test) in &blocks {
        println!("{package} {test} without a fault");
        let built = bench.build(package, test)?;
        let began = Instant::now();
        match built {
            Ok(program) if bench.passes(&program, package, PATIENCE)? => {
                limits.insert((*package, *test), HANGS.1.max(HANGS.0 * began.elapsed()));
            }
            Ok(_) => {
                bail!("{package} {test} fails without a fault: run `cargo test -p {package} --test {test}`")
            }
            Err(said) => bail!("{package} {test} does not compile:\n{said}"),
        }
    }
    let (mut survivors, mut faulty) = (vec![], vec![]);
    for (i, m) in list.iter().enumerate() {
        let began = Instant::now();
        println!("{}/{} {}: {}", i + 1, list.len(), m.test, m.name);
        let name = || format!("{}: {}", m.test, m.name);
        let verdict = match bench.kills(m, limits[&(m.package.as_str(), m.test.as_str())]) {
            Ok(true) => "killed".into(),
            Ok(false) => {
                survivors.push(name());
                "SURVIVED".into()
            }
            Err(error) => {
                faulty.push(name());
                format!("NOT PLANTED: {error:#}")
            }
        };
        println!("  {verdict} in {:.1} s", began.elapsed().as_secs_f64());
    }
    let killed = list.len() - survivors.len() - faulty.len();
    println!("{} faults, {killed} killed, {} s", list.len(), start.elapsed().as_secs());
    for (what, names) in [("survived", survivors), ("could not be planted", faulty)] {
        if !names.is_empty() {
            println!("{what}:\n  {}", names.join("\n  "));
        }
    }
    if killed != list.len() {
        bail!(
            "{} of {} faults of ci/mutants.txt were not killed: their names stand above",
            list.len() - killed,
            list.len()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_an_incomplete_one_refused() {
        let list = parse("// why\n# a rule\nfile x.rs\ntest nic check\n-old\n-  two\n+new\n").unwrap();
        assert_eq!((list[0].old.as_str(), list[0].new.as_str()), ("old\n  two", "new"));
        assert_eq!((list[0].package.as_str(), list[0].test.as_str()), ("nic", "check"));
        assert!(parse("# a rule\nfile x.rs\ntest nic\n-old\n").is_err());
        assert!(parse("file x.rs\n").is_err());
        assert!(parse("# a rule\nfile x.rs\ntest nic check\n-old\n+old\n").is_err());
        assert!(parse("# a rule\nwhat\n").is_err());
    }

    #[test]
    fn every_fault_of_the_list_finds_its_text_once() {
        let text = std::fs::read_to_string(run::root().join("ci/mutants.txt")).unwrap();
        let lost: Vec<String> = parse(&text)
            .unwrap()
            .iter()
            .filter_map(|m| faulty(&run::root(), m).err().map(|error| error.to_string()))
            .collect();
        assert!(lost.is_empty(), "{}", lost.join("\n"));
    }
}
