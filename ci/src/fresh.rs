//! `cargo ci fresh [--suite NAME]`: proves the README's two commands on a Debian that has only what the README asks
//! for: gcc, Python, git and a Rust toolchain.
//!
//! ```text
//!   debootstrap ──> target/fresh/SUITE-base ──copy──> target/fresh/SUITE ──> git clone of HEAD
//!                   (kept for the next run)              │ chroot, own mount and process namespaces
//!                                                        └─> cargo ci demo, cargo ci demo, cargo ci test
//! ```
//! The toolchain is mounted read-only, the package mirror and the registry settings are this machine's, cargo's home
//! is empty. Each command runs in namespaces of its own, so nothing stays mounted and no process stays alive,
//! however it ends. Needs root. Out: the durations, judged by the project's bars.

use std::{fs, path::Path, path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::{
    Args, Task, install, run,
    step::{Steps, Verdict, clock},
    usage,
};

/// The task `fresh`.
pub const TASK: Task = Task {
    name: "fresh",
    args: "[--suite bookworm|trixie] [--mirror URL] [--keep]",
    about: "prove demo and test on a fresh Debian in a chroot (root, some GB, up to an hour)",
    needs: &[],
    run: fresh,
};

/// What is there before the README's first command, by Debian's names.
const GIVEN: &str = "ca-certificates,gcc,libc6-dev,git,python3";

/// Settings of the outside world that the fresh machine shares with this one, where they are set.
const SHARED_VARIABLES: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "PIP_INDEX_URL",
    "PIP_CERT",
    "PIP_DEFAULT_TIMEOUT",
    "CARGO_HTTP_CAINFO",
    "CARGO_HTTP_PROXY",
];
const SHARED_FILES: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pip.conf",
    "/etc/apt/apt.conf",
];

/// Runs in new mount and process namespaces. $1: the root folder; $2: the Rust toolchain; $3: what to run.
/// The environment is emptied but for what follows `--`.
const ENTER: &str = r#"
set -eu
root=$1 rust=$2 work=$3
shift 3
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm" 2>/dev/null || true
mount --bind "$rust" "$root/opt/rust"
mount -o remount,bind,ro "$root/opt/rust"
exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 CI=true \
    PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@" \
    /bin/sh -euc "$work"
"#;

/// From the fresh clone to the demo's end, and for all tests, on two cores.
const FIRST: Duration = Duration::from_secs(15 * 60);
const TESTS: Duration = Duration::from_secs(23 * 60);

struct Options {
    suite: String,
    mirror: Option<String>,
    keep: bool,
}

fn parse(mut args: Args) -> Result<Options> {
    let mut options = Options { suite: "bookworm".to_owned(), mirror: None, keep: false };
    while let Some(arg) = args.next()? {
        match arg {
            Long("suite") => options.suite = args.value()?.string()?,
            Long("mirror") => options.mirror = Some(args.value()?.string()?),
            Long("keep") => options.keep = true,
            other => return Err(other.unexpected().into()),
        }
    }
    // It becomes a folder name.
    if options.suite.is_empty() || !options.suite.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return Err(usage(format!("{:?} is no Debian suite; take bookworm or trixie", options.suite)));
    }
    Ok(options)
}

fn fresh(args: Args) -> Result<()> {
    let options = parse(args)?;
    if !install::is_root() {
        bail!(
            "fresh makes a chroot, which needs root: run it as root, on a machine that you may try things on"
        );
    }
    for tool in ["debootstrap", "setpriv", "unshare"] {
        if !run::succeeds(&mut run::command(tool, ["--version"])) {
            bail!("{tool} is missing: apt-get install -y debootstrap util-linux");
        }
    }
    let mirror = match options.mirror {
        Some(mirror) => mirror,
        None => apt_sources()
            .context("no Debian mirror in the apt sources of this machine: name one by --mirror")?,
    };
    let home = run::target().join("fresh");
    let base = home.join(format!("{}-base", options.suite));
    let root = home.join(&options.suite);
    fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;

    let mut steps = Steps::default();
    let ready = steps.step("debootstrap", || debootstrap(&base, &options.suite, &mirror))
        && steps.step("clone", || {
            remove(&root)?;
            run::show(run::command("cp", ["--archive"]).arg(&base).arg(&root))?;
            share(&root)?;
            clone(&root)
        });
    if ready {
        bounded(&mut steps, "first demo", FIRST, || enter(&root, "cd /root/verbena; cargo ci demo"));
        bounded(&mut steps, "second demo", Duration::from_secs(30), || {
            enter(&root, "cd /root/verbena; cargo ci demo")
        });
        bounded(&mut steps, "test", TESTS, || enter(&root, "cd /root/verbena; bash .ci/run"));
    }
    if options.keep {
        println!("\nkept: {}", root.display());
    } else {
        remove(&root)?;
    }
    steps.close()
}

/// A step that also fails when it takes longer than the project promises.
fn bounded(steps: &mut Steps, name: &str, bar: Duration, work: impl FnOnce() -> Result<()>) {
    steps.step(name, || {
        let start = std::time::Instant::now();
        work()?;
        let took = start.elapsed();
        if took > bar {
            bail!("took {}, the bar is {}", clock(took), clock(bar));
        }
        Ok(Verdict::Passed)
    });
}

fn debootstrap(base: &Path, suite: &str, mirror: &str) -> Result<Verdict> {
    if base.exists() {
        return Ok(Verdict::Skipped(format!("{} is there from an earlier run", base.display())));
    }
    // Built aside, so that one that was broken off is not taken for whole.
    let partial = base.with_extension("partial");
    remove(&partial)?;
    let mut debootstrap = run::command("debootstrap", ["--variant=minbase", "--include", GIVEN, suite]);
    run::show(debootstrap.arg(&partial).arg(mirror))?;
    fs::rename(&partial, base).with_context(|| format!("cannot rename {}", partial.display()))?;
    Ok(Verdict::Passed)
}

/// Removes a root folder. Nothing is mounted in it: mounts live and die in the namespaces of `enter`.
fn remove(root: &Path) -> Result<()> {
    if root.exists() {
        run::show(run::command("rm", ["--recursive", "--one-file-system"]).arg(root))?;
    }
    Ok(())
}

/// Copies the settings that reach the package mirror and the registries.
fn share(root: &Path) -> Result<()> {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into()));
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let mut files: Vec<_> =
        SHARED_FILES.iter().map(|file| (PathBuf::from(file), PathBuf::from(file))).collect();
    files.push((cargo.join("config.toml"), "/root/.cargo/config.toml".into()));
    // Proxies and the like; the rest of apt's settings is the fresh system's own.
    for entry in fs::read_dir("/etc/apt/apt.conf.d").into_iter().flatten().flatten() {
        if fs::read_to_string(entry.path()).is_ok_and(|text| text.contains("Acquire::")) {
            files.push((entry.path(), entry.path()));
        }
    }
    for (from, to) in files.into_iter().filter(|(from, _)| from.is_file()) {
        let to = root.join(to.strip_prefix("/").unwrap_or(&to));
        let copy = || {
            to.parent().map_or(Ok(()), fs::create_dir_all)?;
            let _ = fs::remove_file(&to); // a link in the new root must not lead the copy elsewhere
            fs::copy(&from, &to)
        };
        copy().with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    fs::create_dir_all(root.join("opt/rust")).context("cannot create /opt/rust in the chroot")
}

fn clone(root: &Path) -> Result<Verdict> {
    if !run::output(&mut run::command("git", ["status", "--porcelain"]))?.is_empty() {
        println!("note: uncommitted changes are not proved: the fresh machine clones HEAD");
    }
    let mut clone = run::command("git", ["clone", "--quiet", "--no-hardlinks"]);
    run::show(clone.arg(run::root()).arg(root.join("root/verbena")))?;
    Ok(Verdict::Passed)
}

fn enter(root: &Path, work: &str) -> Result<()> {
    let sysroot = run::output(&mut run::command("rustc", ["--print", "sysroot"]))?;
    // it dies with this process, too: nobody else would end what runs inside
    let mut enter = run::command(
        "setpriv",
        [
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            ENTER,
            "enter",
        ],
    );
    enter.arg(root).args([&sysroot, work]);
    for name in SHARED_VARIABLES {
        if let Ok(value) = std::env::var(name) {
            enter.arg(format!("{name}={value}"));
        }
    }
    println!("$ {work}");
    let status = enter.status().context("cannot start setpriv")?;
    if !status.success() {
        bail!("`{work}` failed in the fresh machine: {status}");
    }
    Ok(())
}

/// The first Debian mirror that apt knows here.
pub fn apt_sources() -> Option<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(folder) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(folder.flatten().map(|entry| entry.path()));
    }
    files.sort();
    files.iter().filter_map(|file| fs::read_to_string(file).ok()).find_map(|text| mirror_in(&text))
}

/// The first main mirror in an apt source file of either format: a URL whose path ends in `/debian`.
fn mirror_in(text: &str) -> Option<String> {
    text.lines()
        .filter(|line| line.starts_with("URIs:") || line.starts_with("deb "))
        .flat_map(str::split_whitespace)
        .find(|word| word.contains("://") && word.trim_end_matches('/').ends_with("/debian"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_main_archive_in_either_format() {
        let new = "Types: deb\n# http://old.example/debian\nURIs: http://mirror.example/debian-security\n\
                   URIs: http://mirror.example/debian\nSuites: bookworm\n";
        assert_eq!(mirror_in(new).unwrap(), "http://mirror.example/debian");
        let old = "# deb http://old.example/debian sid main\n\
                   deb [arch=amd64] http://mirror.example/debian/ bookworm main\n";
        assert_eq!(mirror_in(old).unwrap(), "http://mirror.example/debian/");
        assert_eq!(mirror_in("deb https://elsewhere.example/apt stable main\n"), None);
    }

    #[test]
    fn a_suite_is_one_lower_case_word() {
        assert_eq!(parse(Args::from_args(["--suite", "trixie"])).unwrap().suite, "trixie");
        for bad in ["", "../../etc", "Trixie", "a/b"] {
            assert!(parse(Args::from_args(["--suite", bad])).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_step_beyond_its_bar_fails_and_one_within_it_does_not() {
        let mut steps = Steps::default();
        bounded(&mut steps, "quick", Duration::from_secs(3600), || Ok(()));
        bounded(&mut steps, "slow", Duration::ZERO, || Ok(()));
        assert_eq!(steps.close().unwrap_err().to_string(), "failed: slow");
    }
}
