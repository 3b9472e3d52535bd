//! `cargo ci list`: every task that can be run now, one line each.

use crate::{Args, TASKS, Task, run};

/// The task `list`.
pub const TASK: Task =
    Task { name: "list", args: "", about: "name every task, one line each", needs: &[], run: list };

fn list(args: Args) -> anyhow::Result<()> {
    run::no_more(args)?;
    let real: Vec<_> = TASKS.iter().filter(|task| task.is_real()).collect();
    let call = |task: &Task| format!("{} {}", task.name, task.args).trim_end().to_owned();
    let width = real.iter().map(|task| call(task).len()).max().unwrap_or(0);
    for task in real {
        println!("cargo ci {:width$}  {}", call(task), task.about);
    }
    Ok(())
}
