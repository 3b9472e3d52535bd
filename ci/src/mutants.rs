//! `cargo ci mutants`: plants the faults of `ci/mutants.txt` into the RTL, one at a time, and demands that the tests
//! named beside each find it.
//!
//! ```text
//! ci/mutants.txt ──> a checkout of HEAD under target/mutants ──> one fault in ──> cargo test of one block ──> killed?
//! ```
//! A fault whose text is gone, stands twice, or does not compile is an error of the list, not a kill. The block tests
//! pass without any fault first. Nothing outside of the target folder is written.

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;

use crate::{Args, Task, run};

/// The task `mutants`.
pub const TASK: Task = Task {
    name: "mutants",
    args: "[TEXT]",
    about: "plant the committed RTL faults (those whose name contains TEXT); the tests must find each",
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

fn plant(tree: &Path, m: &Mutant) -> Result<String> {
    let path = tree.join(&m.file);
    let good = std::fs::read_to_string(&path).with_context(|| format!("`{}`: read {}", m.name, m.file))?;
    match good.matches(&m.old).count() {
        1 => {}
        n => bail!("`{}`: its old text stands {n} times in {}; it must stand once", m.name, m.file),
    }
    std::fs::write(&path, good.replacen(&m.old, &m.new, 1))
        .with_context(|| format!("`{}`: write {}", m.name, m.file))?;
    Ok(good)
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
    let list: Vec<Mutant> = parse(&text)?.into_iter().filter(|m| m.name.contains(&only)).collect();
    let base = run::target().join("mutants");
    let tree = base.join("tree");
    std::fs::create_dir_all(&base).context("create target/mutants")?;
    if tree.exists() {
        run::show(&mut run::command("git", ["worktree", "remove", "--force", &tree.to_string_lossy()]))?;
    }
    run::show(&mut run::command("git", ["worktree", "add", "--detach", &tree.to_string_lossy(), "HEAD"]))?;
    let cargo = |args: &[&str]| {
        let mut command = run::cargo(args);
        command.current_dir(&tree).env("CARGO_TARGET_DIR", base.join("target"));
        command
    };
    let blocks: BTreeSet<(&str, &str)> = list.iter().map(|m| (m.package.as_str(), m.test.as_str())).collect();
    for (package, test) in &blocks {
        run::show(&mut cargo(&["test", "--quiet", "--package", package, "--test", test]))
            .with_context(|| format!("{package} {test} must pass without a fault"))?;
    }
    let mut survivors = vec![];
    for (i, m) in list.iter().enumerate() {
        println!("mutant {}/{}: {}", i + 1, list.len(), m.name);
        let good = plant(&tree, m)?;
        let target = ["--package", &m.package, "--test", &m.test];
        let built = cargo(&[&["test", "--quiet", "--no-run"], &target[..]].concat()).output();
        let tested = cargo(&[&["test", "--quiet"], &target[..]].concat()).output();
        std::fs::write(tree.join(&m.file), good).context("restore the file")?;
        let built = built.context("run cargo")?;
        if !built.status.success() {
            bail!("`{}` does not compile:\n{}", m.name, String::from_utf8_lossy(&built.stderr));
        }
        if tested.context("run cargo")?.status.success() {
            println!("  survived {} {}", m.package, m.test);
            survivors.push(m.name.clone());
        }
    }
    run::show(&mut run::command("git", ["worktree", "remove", "--force", &tree.to_string_lossy()]))?;
    println!("{} mutants, {} killed", list.len(), list.len() - survivors.len());
    if !survivors.is_empty() {
        bail!("survived: {}", survivors.join("; "));
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
        assert!(parse("file x.rs\n").is_err());
        assert!(parse("# a rule\nfile x.rs\ntest nic check\n-old\n+old\n").is_err());
        assert!(parse("# a rule\nwhat\n").is_err());
    }
}
