//! Running other programs: what is run is printed, its output is the user's to see, its failure is an error that
//! names the command. Nothing is read from the terminal: every program gets an empty standard input.

use std::{
    ffi::OsStr,
    io::{self, Read},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, anyhow, bail};

/// The repository's root: where the workspace's `Cargo.toml` is.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut root = PathBuf::from(here);
    root.pop();
    root
}

/// Cargo's target folder, where everything that can be made again is kept.
pub fn target() -> PathBuf {
    // join keeps an absolute CARGO_TARGET_DIR as it is
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// A command in the repository's root.
pub fn command<I: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

/// The cargo that runs us (`$CARGO`), in the repository's root.
pub fn cargo<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = command(&program, args);
    // What `cargo run` tells about the crate ci is no business of the crates that are built next; left in, it
    // makes build scripts and `env!` see the wrong package.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    command
}

/// The command as it would be typed.
pub fn typed(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let mut line = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        let arg = arg.to_string_lossy();
        let plain = !arg.is_empty() && arg.chars().all(|c| c.is_alphanumeric() || "-_=./:,+@".contains(c));
        line += &if plain { format!(" {arg}") } else { format!(" '{}'", arg.replace('\'', r"'\''")) };
    }
    line
}

/// Prints the command, runs it with its output going straight through, and demands success.
pub fn show(command: &mut Command) -> Result<()> {
    println!("$ {}", typed(command));
    let status =
        command.status().with_context(|| format!("cannot start `{}`: is it installed?", typed(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", typed(command));
    }
    Ok(())
}

/// As [`show`], but what the command and its output say is returned, for a program that runs beside others.
pub fn keep(mut command: Command) -> (String, Result<()>) {
    let name = typed(&command);
    let mut said = format!("$ {name}\n");
    let mut run = || {
        let (mut words, ours) = io::pipe()?;
        let mut child = command.stdout(ours.try_clone()?).stderr(ours).spawn()?;
        // the pipe ends with its last writer
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut bytes = Vec::new();
        words.read_to_end(&mut bytes)?;
        said += &String::from_utf8_lossy(&bytes);
        child.wait()
    };
    let result = match run() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(anyhow!("`{name}` failed: {status}")),
        Err(error) => Err(error).with_context(|| format!("cannot run `{name}`: is it installed?")),
    };
    (said, result)
}

/// Runs a program whose chatter nobody wants, unless it fails.
pub fn quietly(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start `{}`", typed(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("`{}` failed: {}\n{said}", typed(command), output.status);
    }
    Ok(())
}

/// Whether the command ran and succeeded; prints nothing.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// What the command wrote to its standard output, without the last line end.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`: is it installed?", typed(command)))?;
    if !output.status.success() {
        bail!("`{}` failed: {}", typed(command), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Refuses arguments that nobody asked for.
pub fn no_more(mut args: crate::Args) -> Result<()> {
    match args.next()? {
        Some(arg) => Err(arg.unexpected().into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_where_the_workspace_is() {
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }

    #[test]
    fn a_command_is_printed_as_it_could_be_typed() {
        let command = command("/usr/bin/tool", ["-x", "a b", "it's", ""]);
        assert_eq!(typed(&command), r"tool -x 'a b' 'it'\''s' ''");
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_is_an_error_that_names_it() {
        let failed = show(&mut command("false", [""; 0])).unwrap_err().to_string();
        assert!(failed.starts_with("`false` failed"), "{failed}");
        let missing = show(&mut command("no-such-program", [""; 0])).unwrap_err().to_string();
        assert!(missing.contains("cannot start `no-such-program`"), "{missing}");
    }

    #[test]
    fn what_a_program_said_beside_others_is_kept_also_when_it_fails() {
        let (said, result) = keep(command("sh", ["-c", "echo out; echo err >&2"]));
        assert!(said.ends_with("\nout\nerr\n") && result.is_ok(), "{said}");
        let (said, result) = keep(command("sh", ["-c", "echo before; exit 3"]));
        let failed = result.unwrap_err().to_string();
        assert!(
            said.ends_with("\nbefore\n") && failed.ends_with("failed: exit status: 3"),
            "{said} {failed}"
        );
        let (_, missing) = keep(command("no-such-program", [""; 0]));
        assert!(missing.unwrap_err().to_string().contains("cannot run `no-such-program`"));
    }
}
