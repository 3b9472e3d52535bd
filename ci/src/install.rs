//! `cargo ci install`: makes a Debian machine with Rust, gcc, Python and git into one that can run every task.
//!
//! Each need has a proof that it is met (a program on the path, a header, a Python module), so a tool that came
//! another way than by apt counts. What is missing is installed by apt as root or through a sudo that asks
//! nothing; otherwise the one command to type is printed and the task fails. Nothing is ever asked.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::{Task, run};

/// The task `install`.
pub const TASK: Task = Task {
    name: "install",
    args: "",
    about: "install what is missing: Verilator, g++, make, zlib, tshark, Tcl, Python's venv",
    needs: &[],
    run: |args| {
        run::no_more(args)?;
        install(true)
    },
};

/// How to see that a package is there.
#[derive(Clone, Copy)]
enum Proof {
    Program(&'static str),
    Header(&'static str),
    PythonModules(&'static str),
}

/// Debian's name of a package, what it is for, and its proof.
struct Need {
    package: &'static str,
    why: &'static str,
    proof: Proof,
}

const NEEDS: &[Need] = &[
    Need { package: "verilator", why: "turns the RTL into a fast model", proof: Proof::Program("verilator") },
    Need { package: "g++", why: "compiles that model", proof: Proof::Program("g++") },
    Need { package: "make", why: "drives that compiler", proof: Proof::Program("make") },
    Need { package: "zlib1g-dev", why: "compresses FST waves", proof: Proof::Header("zlib.h") },
    Need { package: "tshark", why: "judges the captures", proof: Proof::Program("tshark") },
    Need { package: "tcl", why: "runs the boards' project scripts", proof: Proof::Program("tclsh") },
    Need {
        package: "python3-venv",
        why: "holds yosys for synthesis checks",
        proof: Proof::PythonModules("import venv, ensurepip"),
    },
];

impl Proof {
    fn holds(self, path: &[PathBuf], includes: &[&Path]) -> bool {
        match self {
            Proof::Program(name) => path.iter().any(|folder| folder.join(name).is_file()),
            Proof::Header(name) => includes.iter().any(|folder| folder.join(name).is_file()),
            Proof::PythonModules(import) => run::succeeds(&mut run::command("python3", ["-c", import])),
        }
    }
}

/// Installs what is missing; with `chatty` it also says that nothing is.
pub fn install(chatty: bool) -> Result<()> {
    let path: Vec<_> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let includes = [Path::new("/usr/include"), Path::new("/usr/local/include")];
    let missing = missing(NEEDS, &path, &includes);
    if missing.is_empty() {
        if chatty {
            println!("nothing is missing");
        }
        return components(chatty);
    }
    println!("missing on this machine:");
    for need in &missing {
        println!("  {:14} {}", need.package, need.why);
    }
    let packages: Vec<_> = missing.iter().map(|need| need.package).collect();
    if !Proof::Program("apt-get").holds(&path, &[]) {
        bail!("there is no apt-get here; install what Debian calls {}", packages.join(" "));
    }
    let sudo: &[&str] = if is_root() {
        &[]
    } else if run::succeeds(&mut run::command("sudo", ["-n", "true"])) {
        &["sudo", "-n"]
    } else {
        bail!("this needs root; type this, then try again:\n  {}", by_hand(&packages));
    };
    println!("installing them with apt-get; the first time this downloads some hundred MB");
    for mut apt in apt(sudo, &packages) {
        run::show(&mut apt)?;
    }
    let still = self::missing(NEEDS, &path, &includes);
    if let Some(need) = still.first() {
        bail!("apt-get installed {}, and yet it is not found; look at its output above", need.package);
    }
    components(chatty)
}

fn missing<'a>(needs: &'a [Need], path: &[PathBuf], includes: &[&Path]) -> Vec<&'a Need> {
    needs.iter().filter(|need| !need.proof.holds(path, includes)).collect()
}

/// The commands that install, each behind `sudo` (empty as root). Debconf (tshark asks who may capture) gets no
/// chance to ask, and a lock held by another apt is waited for.
fn apt(sudo: &[&str], packages: &[&str]) -> [Command; 2] {
    let apt = |args: &[&str]| {
        let fixed = ["DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-o", "DPkg::Lock::Timeout=600"];
        let words: Vec<&str> = [sudo, &["env"], &fixed, args].concat();
        run::command(words[0], &words[1..])
    };
    [apt(&["update"]), apt(&[&["install", "-y", "--no-install-recommends"], packages].concat())]
}

fn by_hand(packages: &[&str]) -> String {
    format!(
        "sudo apt-get update && sudo DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    )
}

/// `rustfmt` and `clippy` are missing from rustup's minimal profile.
fn components(chatty: bool) -> Result<()> {
    let missing: Vec<_> = [("fmt", "rustfmt"), ("clippy", "clippy")]
        .into_iter()
        .filter(|(subcommand, _)| !run::succeeds(&mut run::cargo([subcommand, "--version"])))
        .map(|(_, component)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut rustup = run::command("rustup", ["component", "add"].iter().chain(&missing));
    let outcome = run::show(&mut rustup);
    // The demo needs neither; the test's own steps fail clearly without them.
    if let (Err(error), true) = (outcome, chatty) {
        bail!("{error:#}; install the Rust components {} of your toolchain", missing.join(" and "));
    }
    Ok(())
}

/// Whether this process may do as root does.
pub fn is_root() -> bool {
    run::output(&mut run::command("id", ["-u"])).is_ok_and(|id| id == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[Need] = &[
        Need { package: "tool", why: "", proof: Proof::Program("tool") },
        Need { package: "lib-dev", why: "", proof: Proof::Header("lib.h") },
    ];

    fn packages(path: &[PathBuf], includes: &[&Path]) -> Vec<&'static str> {
        missing(TWO, path, includes).iter().map(|need| need.package).collect()
    }

    #[test]
    fn a_need_is_met_by_a_program_on_the_path_or_a_header_wherever_it_came_from() {
        let folder = run::target().join(format!("ci-install-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(packages(std::slice::from_ref(&folder), &[&folder]), ["tool", "lib-dev"]);
        std::fs::write(folder.join("tool"), "").unwrap();
        assert_eq!(packages(std::slice::from_ref(&folder), &[&folder]), ["lib-dev"]);
        std::fs::write(folder.join("lib.h"), "").unwrap();
        assert!(packages(std::slice::from_ref(&folder), &[&folder]).is_empty());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_python_module_that_is_not_there_is_missing() {
        assert!(Proof::PythonModules("import sys").holds(&[], &[]));
        assert!(!Proof::PythonModules("import no_such_module").holds(&[], &[]));
    }

    #[test]
    fn apt_is_never_allowed_to_ask() {
        for sudo in [&[][..], &["sudo", "-n"]] {
            let [update, install] = apt(sudo, &["tshark"]).map(|command| run::typed(&command));
            assert!(update.ends_with("update"), "{update}");
            assert!(install.ends_with("install -y --no-install-recommends tshark"), "{install}");
            for line in [update, install] {
                assert!(line.contains("env DEBIAN_FRONTEND=noninteractive apt-get"), "{line}");
                assert_eq!(line.starts_with("sudo -n "), !sudo.is_empty(), "{line}");
            }
        }
    }

    #[test]
    fn without_root_one_line_to_type_does_it_all() {
        let line = by_hand(&["make", "tshark"]);
        assert!(!line.contains('\n'));
        assert!(line.ends_with(" make tshark"));
    }
}
