//! `cargo ci gen [--check]`: files that are made from other files and committed.
//!
//! A generator is a command and the files or folders that it owns. `gen` runs them all. `gen --check` runs them
//! too, demands that what they own came out unchanged, puts the tree back as it was and names the repair command:
//! a check never changes what it checks.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::{Args, Task, run, step::Verdict};

/// The task `gen`.
pub const TASK: Task = Task {
    name: "gen",
    args: "[--check]",
    about: "make the committed generated files again, or check that they are current",
    needs: &[],
    run: |mut args: Args| {
        let mut checking = false;
        while let Some(arg) = args.next()? {
            match arg {
                Long("check") => checking = true,
                other => return Err(other.unexpected().into()),
            }
        }
        if checking { check(GENERATORS) } else { generate(GENERATORS) }.map(|verdict| match verdict {
            Verdict::Passed => println!("generated files are current"),
            Verdict::Skipped(why) => println!("{why}"),
        })
    },
};

/// A command (program and arguments, run in the root) and what it owns (paths from the root).
pub struct Generator {
    /// Program and arguments; `cargo` is the cargo that runs us.
    pub command: &'static [&'static str],
    /// Files and folders that the command alone writes.
    pub owns: &'static [&'static str],
}

/// Every generator. A new one is one line here.
pub const GENERATORS: &[Generator] = &[Generator {
    command: &[
        "cargo",
        "run",
        "--quiet",
        "--package",
        "contract",
        "--bin",
        "contract-doc",
        "--",
        "docs/registers.md",
    ],
    owns: &["docs/registers.md"],
}];

impl Generator {
    fn run(&self, root: &Path) -> Result<()> {
        let (program, args) = self.command.split_first().context("a generator without a command")?;
        let mut command = if *program == "cargo" { run::cargo(args) } else { run::command(program, args) };
        run::show(command.current_dir(root))
    }

    fn read(&self, root: &Path) -> Result<Tree> {
        let mut tree = Tree::new();
        for path in self.owns {
            read(&root.join(path), &mut tree).with_context(|| format!("cannot read {path}"))?;
        }
        Ok(tree)
    }
}

/// Every owned file that exists, with its bytes.
type Tree = BTreeMap<PathBuf, Vec<u8>>;

fn read(path: &Path, tree: &mut Tree) -> io::Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            read(&entry?.path(), tree)?;
        }
    } else if path.exists() {
        tree.insert(path.to_owned(), fs::read(path)?);
    }
    Ok(())
}

fn changed(before: &Tree, after: &Tree) -> Vec<PathBuf> {
    let paths: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    paths.into_iter().filter(|path| before.get(*path) != after.get(*path)).cloned().collect()
}

fn restore(before: &Tree, changed: &[PathBuf]) -> io::Result<()> {
    for path in changed {
        match before.get(path) {
            Some(bytes) => fs::write(path, bytes)?,
            None => fs::remove_file(path)?,
        }
    }
    Ok(())
}

fn nothing() -> Result<Verdict> {
    Ok(Verdict::Skipped("no file in this tree is generated".to_owned()))
}

fn generate(generators: &[Generator]) -> Result<Verdict> {
    if generators.is_empty() {
        return nothing();
    }
    let root = run::root();
    for generator in generators {
        let before = generator.read(&root)?;
        generator.run(&root)?;
        for path in changed(&before, &generator.read(&root)?) {
            println!("changed: {}", path.strip_prefix(&root).unwrap_or(&path).display());
        }
    }
    Ok(Verdict::Passed)
}

/// Demands that every generated file is what its generator makes of the tree.
pub fn check(generators: &[Generator]) -> Result<Verdict> {
    if generators.is_empty() {
        return nothing();
    }
    check_in(&run::root(), generators)
}

fn check_in(root: &Path, generators: &[Generator]) -> Result<Verdict> {
    let mut stale = Vec::new();
    for generator in generators {
        let before = generator.read(root)?;
        let outcome = generator.run(root);
        let changed = changed(&before, &generator.read(root)?);
        restore(&before, &changed).context("cannot put a generated file back; `git checkout` it")?;
        outcome?;
        stale.extend(changed);
    }
    if stale.is_empty() {
        return Ok(Verdict::Passed);
    }
    for path in &stale {
        println!("stale: {}", path.strip_prefix(root).unwrap_or(path).display());
    }
    bail!("{} generated file(s) are stale; repair with `cargo ci gen` and commit", stale.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = run::target().join(format!("ci-gen-test-{}-{name}", std::process::id()));
        fs::create_dir_all(folder.join("out")).unwrap();
        fs::write(folder.join("source"), "two\n").unwrap();
        folder
    }

    const COPY: Generator =
        Generator { command: &["sh", "-c", "cp source out/copy && cp source out/twin"], owns: &["out"] };

    #[test]
    fn a_current_tree_passes_and_stays_as_it_is() {
        let root = folder("current");
        COPY.run(&root).unwrap();
        assert_eq!(check_in(&root, &[COPY]).unwrap(), Verdict::Passed);
        assert_eq!(fs::read_dir(root.join("out")).unwrap().count(), 2);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_stale_or_missing_file_fails_with_the_repair_command_and_the_tree_is_put_back() {
        let root = folder("stale");
        fs::write(root.join("out/copy"), "one\n").unwrap();
        let error = check_in(&root, &[COPY]).unwrap_err().to_string();
        assert_eq!(error, "2 generated file(s) are stale; repair with `cargo ci gen` and commit");
        assert_eq!(fs::read(root.join("out/copy")).unwrap(), b"one\n");
        assert!(!root.join("out/twin").exists());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_generator_that_removes_its_file_or_fails_is_noticed_and_the_file_is_put_back() {
        let root = folder("fails");
        fs::write(root.join("out/copy"), "one\n").unwrap();
        let removes = Generator { command: &["sh", "-c", "rm out/copy"], owns: &["out/copy"] };
        assert!(check_in(&root, &[removes]).unwrap_err().to_string().contains("stale"));
        let fails = Generator { command: &["sh", "-c", "rm out/copy; exit 3"], owns: &["out/copy"] };
        assert!(check_in(&root, &[fails]).unwrap_err().to_string().contains("failed"));
        assert_eq!(fs::read(root.join("out/copy")).unwrap(), b"one\n");
        fs::remove_dir_all(root).unwrap();
    }
}
