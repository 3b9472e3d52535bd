//! `cargo ci captures [FILE...]`: judges captures by programs that share no code with the project: tshark for the
//! shape of every frame and its IP and UDP checksums, `ci/tools/icrc` for every invariant CRC.
//!
//! In: pcapng files (default: all that the tests wrote under `target/captures`). A frame that the wire marked as
//! corrupted in its comment is exempt. Before they judge, both are shown planted bad frames and must find them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{Args, Task, run, step::Verdict};

/// The task `captures`.
pub const TASK: Task = Task {
    name: "captures",
    args: "[FILE...]",
    about: "judge captures by tshark and an independent ICRC; default: all in target/captures",
    needs: &[],
    run: |mut args: Args| {
        let files: Vec<PathBuf> = args.raw_args()?.map(PathBuf::from).collect();
        let here = std::env::current_dir()?;
        let files =
            if files.is_empty() { find()? } else { files.iter().map(|file| here.join(file)).collect() };
        if files.is_empty() {
            bail!("there is no capture in {}; `cargo ci test` makes them", folder().display());
        }
        tshark(&files, None)?;
        icrc(&files, None)?;
        Ok(())
    },
};

/// Where tests write their captures.
pub fn folder() -> PathBuf {
    run::target().join("captures")
}

/// Every capture that the tests wrote, sorted.
pub fn find() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    walk(&folder(), &mut files).with_context(|| format!("cannot list {}", folder().display()))?;
    files.sort();
    Ok(files)
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, files)?;
        } else if path.extension().is_some_and(|kind| kind == "pcapng" || kind == "pcap") {
            files.push(path);
        }
    }
    Ok(())
}

/// Removes what earlier runs left, so that only this run's captures are judged.
pub fn clear() -> Result<()> {
    match fs::remove_dir_all(folder()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder().display()))
        }
        _ => Ok(()),
    }
}

/// tshark finds its planted frames, and no malformed frame or bad checksum in `files`; frames whose source is the MAC address
/// `without` are told apart and not judged.
pub fn tshark(files: &[PathBuf], without: Option<&str>) -> Result<Verdict> {
    run::show(&mut run::command("python3", ["-B", "ci/tools/tshark_check", "--self-test"]))?;
    judge("ci/tools/tshark_check", files, without)
}

/// The ICRC tool finds no bad ICRC in `files`, likewise. Its own planted frames are in the tests of `ci/tools`.
pub fn icrc(files: &[PathBuf], without: Option<&str>) -> Result<Verdict> {
    judge("ci/tools/icrc", files, without)
}

fn judge(tool: &str, files: &[PathBuf], without: Option<&str>) -> Result<Verdict> {
    if files.is_empty() {
        return Ok(Verdict::Skipped(format!("no test wrote a capture to {}", folder().display())));
    }
    // In portions, so that no number of captures outgrows the length of a command line.
    for portion in files.chunks(200) {
        println!("$ {tool} ({} captures)", portion.len());
        let mut command = run::command("python3", ["-B", tool]);
        command.args(without.iter().flat_map(|mac| ["--without", mac]));
        if !command.args(portion).status()?.success() {
            bail!("{tool} found bad frames; it names them above");
        }
    }
    Ok(Verdict::Passed)
}
