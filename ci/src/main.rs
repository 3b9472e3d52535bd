//! `cargo ci TASK`: every check and every long command of the project, each runnable locally.
//!
//! ```text
//!   cargo ci TASK ARGS ──> TASKS ──> one file per task ──> cargo, apt-get, python3, tshark ...
//!                            │
//!                            └─ `list` prints a task only when what it needs is in the tree
//! ```
//! In: a task's name and its arguments. Out: the output of the programs that it runs, unchanged, and an exit
//! code: 0 done, 1 failed, 2 used wrongly. It has no native dependency and none on the rest of the workspace,
//! so it builds in seconds on a machine that has nothing but Rust and a linker.
//! It never writes outside the repository and its target folder, except that `install` asks apt for packages.

mod apt;
mod bench;
mod board;
mod captures;
mod demo;
mod ecp5;
mod fresh;
mod formal;
mod fuzz;
mod generate;
mod install;
mod interop;
mod list;
mod loader;
mod mutants;
mod run;
mod soak;
mod spec;
mod step;
mod story;
mod synth;
mod test;
mod tools;
mod vm;

use std::process::ExitCode;

/// Arguments of a task: what stands after its name.
pub type Args = lexopt::Parser;

/// One line of `cargo ci list`.
pub struct Task {
    /// What is typed after `cargo ci`.
    pub name: &'static str,
    /// Its arguments, as in a usage line.
    pub args: &'static str,
    /// One line: what it does.
    pub about: &'static str,
    /// Paths from the repository's root, one of which must exist for the task to be real; empty: always real.
    pub needs: &'static [&'static str],
    /// The work.
    pub run: fn(Args) -> anyhow::Result<()>,
}

/// Every task, in the order of `list`. A new one is a file with a `TASK`, and a line here.
pub const TASKS: &[Task] = &[
    demo::TASK,
    test::TASK,
    list::TASK,
    install::TASK,
    story::TASK,
    generate::TASK,
    spec::TASK,
    captures::TASK,
    tools::TASK,
    synth::TASK,
    board::TASK,
    formal::TASK,
    fuzz::TASK,
    soak::TASK,
    bench::TASK,
    mutants::TASK,
    vm::TASK,
    interop::TASK,
    fresh::TASK,
];

impl Task {
    /// Whether what the task works on is in the tree.
    pub fn is_real(&self) -> bool {
        self.needs.is_empty() || self.needs.iter().any(|path| run::root().join(path).exists())
    }
}

fn main() -> ExitCode {
    match dispatch(Args::from_env()) {
        Ok(()) => ExitCode::SUCCESS,
        // lexopt's own text ends with its source, which `#` would print a second time
        Err(error) if error.is::<lexopt::Error>() => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(mut args: Args) -> anyhow::Result<()> {
    let name = match args.next()? {
        Some(lexopt::Arg::Value(name)) => name.to_string_lossy().into_owned(),
        None | Some(lexopt::Arg::Short('h') | lexopt::Arg::Long("help")) => "list".to_owned(),
        Some(other) => return Err(other.unexpected().into()),
    };
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        return Err(usage(format!("there is no task {name:?}; `cargo ci list` names them all")));
    };
    if !task.is_real() {
        anyhow::bail!("{name} has nothing to work on yet: {} is not in the tree", task.needs.join(" or "));
    }
    (task.run)(args)
}

/// An error of the caller: exit code 2.
pub fn usage(text: String) -> anyhow::Error {
    lexopt::Error::Custom(text.into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_task_is_a_usage_error_that_names_the_list() {
        let error = dispatch(Args::from_args(["polish"])).unwrap_err();
        assert!(error.is::<lexopt::Error>());
        assert!(error.to_string().contains("cargo ci list"), "{error}");
    }

    #[test]
    fn every_task_has_its_own_name_and_one_line() {
        for (index, task) in TASKS.iter().enumerate() {
            assert!(TASKS[..index].iter().all(|earlier| earlier.name != task.name), "{} twice", task.name);
            assert!(!task.about.is_empty() && !task.about.contains('\n'), "{}", task.name);
        }
    }
}
