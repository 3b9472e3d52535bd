//! `cargo ci tools`: the tests of the small independent programs in `ci/tools`, which judge what the project makes.

use crate::{Args, Task, run};

/// The task `tools`.
pub const TASK: Task = Task {
    name: "tools",
    args: "",
    about: "test the independent programs in ci/tools that judge captures and figures",
    needs: &[],
    run: |args: Args| {
        run::no_more(args)?;
        tools()
    },
};

/// Runs the tests of `ci/tools`.
pub fn tools() -> anyhow::Result<()> {
    // -B: no bytecode folders in the tree
    run::show(&mut run::command("python3", ["-B", "ci/tools/test_tools.py"]))
}
