//! Debian's packages without installing them: fetched from the mirror that this machine's apt names, and unpacked into a folder.
//!
//! ```text
//!   mirror of the apt sources ──> an apt of its own: lists, cache, state in HOME ──> *.deb ──> dpkg-deb ──> FOLDER/usr/...
//! ```
//! In: suites and names. Out: files of the packages and of all that they depend on, which are newer than this machine's own
//! or older; a program among them runs by their own loader. Without network or mirror: an error.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{fresh, run};

/// An apt with lists, cache and state of its own, that knows this machine's mirror and believes nothing installed.
pub struct Apt {
    home: PathBuf,
    options: Vec<String>,
}

impl Apt {
    /// With the present lists of these suites.
    pub fn updated(home: &Path, suites: &[&str]) -> Result<Apt> {
        let mirror = fresh::apt_sources().context("no Debian mirror in the apt sources of this machine")?;
        let apt = Apt::new(home, &mirror, suites)?;
        run::show(&mut apt.command("apt-get", &["update"]))?;
        Ok(apt)
    }

    fn new(home: &Path, mirror: &str, suites: &[&str]) -> Result<Apt> {
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(home.join(folder))
                .with_context(|| format!("cannot create {}", home.display()))?;
        }
        let sources = home.join("debian.sources");
        let (keys, suites) = ("/usr/share/keyrings/debian-archive-keyring.gpg", suites.join(" "));
        fs::write(
            &sources,
            format!("Types: deb\nURIs: {mirror}\nSuites: {suites}\nComponents: main\nSigned-By: {keys}\n"),
        )?;
        fs::write(home.join("status"), "")?;
        let path = |name: &str| home.join(name).display().to_string();
        let options = [
            ("Dir::Etc::sourcelist", path("debian.sources")),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::Etc::preferences", "/dev/null".into()),
            ("Dir::Etc::preferencesparts", "/dev/null".into()),
            ("Dir::State::Lists", path("lists")),
            ("Dir::Cache", path("cache")),
            ("Dir::State::status", path("status")),
            ("APT::Architecture", "amd64".into()),
            ("APT::Install-Recommends", "false".into()),
            ("APT::Sandbox::User", "root".into()),
            ("Acquire::Languages", "none".into()),
            ("Acquire::Retries", "3".into()),
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".into()),
        ];
        let options = options.into_iter().map(|(name, value)| format!("--option={name}={value}")).collect();
        Ok(Apt { home: home.into(), options })
    }

    /// Where everything of it is.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// A program of apt's, as this one.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = run::command(program, &self.options);
        command.arg("--quiet").args(args);
        command
    }

    /// The packages and all that they depend on.
    pub fn fetch(&self, name: &str, packages: &[&str]) -> Result<Vec<PathBuf>> {
        run::quietly(
            &mut self.command("apt-get", &[&["install", "--yes", "--download-only"], packages].concat()),
        )?;
        let folder = self.home.join(name);
        fs::create_dir(&folder)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(self.home.join("cache/archives"))? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|extension| extension == "deb") {
                let to = folder.join(entry.file_name());
                fs::rename(entry.path(), &to)?;
                files.push(to);
            }
        }
        println!("{name}: {} packages", files.len());
        Ok(files)
    }
}

/// Unpacks packages, whole, into one folder.
pub fn unpack(files: &[PathBuf], folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    files
        .iter()
        .try_for_each(|file| run::quietly(run::command("dpkg-deb", ["--extract"]).arg(file).arg(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apt_keeps_to_its_own_folders_and_believes_nothing_installed() {
        let home = run::target().join(format!("ci-apt-test-{}", std::process::id()));
        let apt = Apt::new(&home, "http://mirror.example/debian", &["trixie"]).unwrap();
        let line = run::typed(&apt.command("apt-get", &["update"]));
        for part in ["Lists", "Cache", "State::status", "Etc::sourcelist"] {
            assert!(line.contains(&format!("{part}={}", home.display())), "{part}: {line}");
        }
        assert_eq!(fs::read_to_string(home.join("status")).unwrap(), "");
        fs::remove_dir_all(home).unwrap();
    }
}
