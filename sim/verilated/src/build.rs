//! The build: content hash, cache directory, lock, Verilator, C++ compiler.
//!
//! In: a [`Source`]. Out: the path of `model.so`, built at most once per hash. The file appears by rename, so a killed
//! build leaves nothing that looks finished. Verilator's runtime is compiled once per cache (10 s) and shared by all
//! models. C++ files are gathered into a few units, because the runtime's headers cost more to read than a small model.

use crate::{Error, ports};
use sha2::{Digest, Sha256};
use std::{
    env, fs,
    fs::File,
    io,
    num::NonZero,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

const SUPPORT_H: &str = include_str!("cxx/support.h");
const SUPPORT_CPP: &str = include_str!("cxx/support.cpp");
const SHIM_CPP: &str = include_str!("cxx/shim.cpp");
const COVERAGE_CPP: &str = include_str!("cxx/coverage.cpp");

/// Bytes of generated C++ per compilation unit: 256 KiB compile in a few seconds at -O2.
const UNIT_BYTES: u64 = 256 << 10;
/// Verilator starts a new C++ file, and a new function, after so many operations, so that a large model compiles in
/// parallel and no function is so large that -O2 takes more than linear time for it.
const OUTPUT_SPLIT: &str = "5000";
/// What a model with coverage counts: branches taken, `cover` statements, and changes of the bits of small signals
/// (states, handshakes, flags); those of wide ones are data.
const COVERAGE: [&str; 5] =
    ["--coverage-line", "--coverage-user", "--coverage-toggle", "--coverage-max-width", "4"];

/// What to build, and how.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Name of the top module.
    pub top: &'a str,
    /// The whole Verilog or SystemVerilog text.
    pub verilog: &'a str,
    /// Whether instances can write FST waves. A separate build, about twice as slow to run even when not tracing.
    pub trace: bool,
    /// Whether instances count what they pass ([`Instance::coverage`](crate::Instance::coverage)). A separate build.
    pub coverage: bool,
    /// Whether `assert` in the text is checked. Default true.
    pub assertions: bool,
    /// Further arguments for Verilator, for instance `-GWIDTH=8`. Part of the content hash.
    pub flags: &'a [&'a str],
    /// Cache directory; default `verilated` in the target directory of cargo ([`Source::default_directory`]).
    pub directory: Option<&'a Path>,
    /// Compilers run at once; default: as many as the machine has cores.
    pub jobs: Option<NonZero<usize>>,
    /// Told about every step of a build that really happens; called from several threads.
    pub progress: Option<&'a (dyn Fn(Progress) + Sync)>,
}

/// A step of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Another thread or process builds the same thing; waiting for it.
    Waiting,
    /// Verilator translates.
    Translating,
    /// The compiler finished `done` of `total` units (0 of `total` when it starts).
    Compiling {
        /// Units finished.
        done: usize,
        /// All units.
        total: usize,
    },
    /// The shared object is linked.
    Linking,
}

impl<'a> Source<'a> {
    /// A source with the defaults: no trace, assertions on.
    pub fn new(top: &'a str, verilog: &'a str) -> Self {
        Self {
            top,
            verilog,
            trace: false,
            coverage: false,
            assertions: true,
            flags: &[],
            directory: None,
            jobs: None,
            progress: None,
        }
    }

    /// The same with FST tracing.
    pub fn traced(self) -> Self {
        Self { trace: true, ..self }
    }

    /// The same with a cache directory of the caller's choice.
    pub fn in_directory(self, directory: &'a Path) -> Self {
        Self { directory: Some(directory), ..self }
    }

    /// Where models are kept: `$CARGO_TARGET_DIR/verilated`; else the target directory that holds the running
    /// program; else `target/verilated` of the workspace around the current directory; else
    /// `$XDG_CACHE_HOME/verbena/verilated` or the same under `~/.cache`.
    pub fn default_directory() -> PathBuf {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let of_program = || {
            let program = env::current_exe().ok()?;
            // cargo marks its target directories so.
            program.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file()).map(Path::to_path_buf)
        };
        let of_workspace = || {
            let current = env::current_dir().ok()?;
            current.ancestors().find(|dir| dir.join("Cargo.lock").is_file()).map(|dir| dir.join("target"))
        };
        set("CARGO_TARGET_DIR")
            .or_else(of_program)
            .or_else(of_workspace)
            .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("verbena")))
            .or_else(|| set("HOME").map(|dir| dir.join(".cache/verbena")))
            .unwrap_or_else(|| env::temp_dir().join("verbena"))
            .join("verilated")
    }

    fn tell(&self, step: Progress) {
        if let Some(progress) = self.progress {
            progress(step);
        }
    }

    fn verilator_arguments(&self) -> Vec<&str> {
        // Lint belongs to whoever wrote the Verilog; here only errors stop, and warnings stay in verilator.log.
        let mut arguments = vec!["--cc", "-O3", "-Wno-fatal", "--timescale", "1ps/1ps", "--prefix", "Vmodel"];
        arguments.extend(["--x-assign", "fast", "--x-initial", "fast", "--output-split", OUTPUT_SPLIT]);
        // It gets some exclusive ors wrong in 5.006, and later (Verilator's issues 4059, 4709, 5186).
        arguments.push("-fno-const-bit-op-tree");
        arguments.extend(["--top-module", self.top]);
        if self.trace {
            arguments.push("--trace-fst");
        }
        if self.coverage {
            arguments.extend(COVERAGE);
        }
        if self.assertions {
            arguments.push("--assert");
        }
        arguments.extend(self.flags);
        arguments
    }

    /// Builds, unless it is there, and returns the path of the shared object.
    pub(crate) fn build(&self) -> Result<PathBuf, Error> {
        let tools = Tools::find()?;
        let cache = self.directory.map_or_else(Self::default_directory, Path::to_path_buf);
        // Verilator runs in another directory.
        let cache = std::path::absolute(&cache).map_err(Error::file("find", cache))?;
        let mut hash = tools.hash(self);
        let coverage = self.coverage.then_some(COVERAGE_CPP);
        for part in self.verilator_arguments().into_iter().chain(coverage).chain([SHIM_CPP, self.verilog]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let home = cache.join(short(hash));
        once(self, &home, "model.so", |work| self.compile(tools, &cache, &home, work))?;
        Ok(home.join("model.so"))
    }

    /// Builds `model.so` in the empty directory `work`; the Verilog and Verilator's words go to `home`.
    fn compile(&self, tools: &Tools, cache: &Path, home: &Path, work: &Path) -> Result<(), Error> {
        let runtime = self.runtime(tools, cache)?;
        // The name is short: it stands in every message of an assertion.
        let verilog = home.join("model.sv");
        write(&verilog, self.verilog)?;
        self.tell(Progress::Translating);
        let mut verilator = Command::new("verilator");
        verilator.args(self.verilator_arguments()).arg("--Mdir").arg(work).arg("model.sv").current_dir(home);
        let output = output("verilator", &mut verilator)?;
        write(&home.join("verilator.log"), &output.text)?;
        if !output.success {
            return Err(Error::Verilog { top: self.top.into(), message: output.text, file: verilog });
        }
        let header = work.join("Vmodel.h");
        let header = fs::read_to_string(&header).map_err(Error::file("read", header))?;
        let ports = ports::parse_header(self.top, &header)?;
        write(&work.join("ports.h"), &ports::shim_ports(&ports))?;
        write(&work.join("shim.cpp"), SHIM_CPP)?;
        if self.coverage {
            write(&work.join("coverage.cpp"), COVERAGE_CPP)?;
        }

        let (mut fast, mut slow) = (Vec::new(), Vec::new());
        let mut names = Vec::new();
        for entry in fs::read_dir(work).map_err(Error::file("list", work))? {
            let entry = entry.map_err(Error::file("list", work))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".cpp") {
                names.push((name, entry.metadata().map_or(0, |data| data.len())));
            }
        }
        // The longest first, so that no compiler is left alone with it at the end; then by name: the same units each time.
        names.sort_by(|(a, a_bytes), (b, b_bytes)| b_bytes.cmp(a_bytes).then(a.cmp(b)));
        let total: u64 = names.iter().map(|(_, bytes)| bytes).sum();
        for (name, bytes) in names {
            // Constructors, initial blocks and the declarations of a trace run once: compile time counts, not speed.
            // In a small model they share the fast unit, which is cheaper than reading the headers again.
            let cold = total > UNIT_BYTES && (name.contains("Slow") || name.contains("__Syms"));
            if cold { &mut slow } else { &mut fast }.push((name, bytes));
        }
        let mut units = Vec::new();
        for (files, level) in [(fast, "-O2"), (slow, "-O0")] {
            let mut text = String::new();
            let mut bytes = 0;
            for (index, (name, size)) in files.iter().enumerate() {
                text += &format!("#include \"{name}\"\n");
                bytes += size;
                if bytes >= UNIT_BYTES || index + 1 == files.len() {
                    let unit = work.join(format!("unit{}.cc", units.len()));
                    write(&unit, &text)?;
                    units.push((unit, level));
                    (text, bytes) = (String::new(), 0);
                }
            }
        }
        let objects = self.compile_units(tools, &runtime, work, &units)?;
        self.tell(Progress::Linking);
        let mut link = Command::new("g++");
        link.args(["-shared", "-s", "-Wl,--gc-sections", "-Wl,--exclude-libs,ALL", "-o"])
            .arg(work.join("model.so"));
        link.args(objects).arg(runtime.join("runtime.a")).arg("-pthread");
        if self.trace {
            link.arg("-lz");
        }
        self.must(&mut link)
    }

    /// Verilator's runtime and the support code as `runtime.a`, beside the headers that all units include.
    fn runtime(&self, tools: &Tools, cache: &Path) -> Result<PathBuf, Error> {
        let home = cache.join(format!("runtime-{}", short(tools.hash(self))));
        once(self, &home, "runtime.a", |work| {
            write(&home.join("support.h"), SUPPORT_H)?;
            write(&work.join("support.cpp"), SUPPORT_CPP)?;
            let include = tools.root.join("include");
            let mut units = vec![(work.join("support.cpp"), "-O2")];
            let names = ["verilated.cpp", "verilated_threads.cpp", "verilated_fst_c.cpp"];
            for name in &names[..if self.trace { 3 } else { 2 }] {
                units.push((include.join(name), "-O2"));
            }
            let objects = self.compile_units(tools, &home, work, &units)?;
            self.must(Command::new("ar").arg("rcs").arg(work.join("runtime.a")).args(objects))
        })?;
        Ok(home)
    }

    /// Compiles the units with their options, several at once; gives the objects in the order of the units.
    fn compile_units(
        &self,
        tools: &Tools,
        runtime: &Path,
        work: &Path,
        units: &[(PathBuf, &str)],
    ) -> Result<Vec<PathBuf>, Error> {
        let total = units.len();
        let jobs =
            self.jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZero::get).min(total);
        let object = |index| work.join(format!("unit{index}.o"));
        let (next, failure, done) = (AtomicUsize::new(0), Mutex::new(None), AtomicUsize::new(0));
        self.tell(Progress::Compiling { done: 0, total });
        let worker = || {
            while let Some((index, (unit, level))) = {
                let index = next.fetch_add(1, Ordering::Relaxed);
                units.get(index).map(|unit| (index, unit))
            } {
                let mut compile = tools.compiler(self);
                compile.arg(level).arg("-include").arg(runtime.join("support.h"));
                compile.arg("-I").arg(work).arg("-c").arg(unit).arg("-o").arg(object(index));
                match self.must(&mut compile) {
                    Ok(()) => self
                        .tell(Progress::Compiling { done: done.fetch_add(1, Ordering::Relaxed) + 1, total }),
                    Err(error) => {
                        failure.lock().unwrap_or_else(|poison| poison.into_inner()).get_or_insert(error);
                        next.store(total, Ordering::Relaxed);
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..jobs {
                scope.spawn(worker);
            }
            worker();
        });
        match failure.into_inner().unwrap_or_else(|poison| poison.into_inner()) {
            Some(error) => Err(error),
            None => Ok((0..total).map(object).collect()),
        }
    }

    fn must(&self, command: &mut Command) -> Result<(), Error> {
        let tool = if command.get_program() == "ar" { "ar" } else { "g++" };
        let output = output(tool, command)?;
        if output.success {
            Ok(())
        } else {
            Err(Error::Compile { top: self.top.into(), message: output.text })
        }
    }
}

/// The tools found, asked once per process.
struct Tools {
    /// Verilator's installation.
    root: PathBuf,
    /// Versions of Verilator and of the compiler.
    versions: String,
}

impl Tools {
    fn find() -> Result<&'static Self, Error> {
        static FOUND: OnceLock<Tools> = OnceLock::new();
        if let Some(tools) = FOUND.get() {
            return Ok(tools);
        }
        let ask = |tool, argument: &[&str]| {
            let output = output(tool, Command::new(tool).args(argument))?;
            if output.success {
                Ok(output.text)
            } else {
                Err(Error::Tool { tool, source: io::Error::other(output.text) })
            }
        };
        let root = PathBuf::from(ask("verilator", &["--getenv", "VERILATOR_ROOT"])?.trim());
        let versions = ask("verilator", &["--version"])? + &ask("g++", &["--version"])?;
        Ok(FOUND.get_or_init(|| Tools { root, versions }))
    }

    /// Everything that decides the runtime's objects.
    fn hash(&self, source: &Source<'_>) -> Sha256 {
        let mut hash = Sha256::new();
        for part in [&self.versions, SUPPORT_H, SUPPORT_CPP, &format!("{:?}", self.compiler(source))] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash
    }

    /// The compiler with all options but level, files and the support header.
    fn compiler(&self, source: &Source<'_>) -> Command {
        let include = self.root.join("include");
        let mut compiler = Command::new("g++");
        // Hidden and not unique: two models in one process must not share a static of Verilator's runtime.
        compiler.args(["-std=gnu++17", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-w"]);
        compiler.args(["-fcf-protection=none", "-ffunction-sections", "-fdata-sections"]);
        if cfg!(target_arch = "x86_64") {
            // Thread-local access without a call: Verilator touches thread-locals in every eval.
            compiler.arg("-mtls-dialect=gnu2");
        }
        compiler.args(
            ["VM_COVERAGE", "VM_SC", "VM_TIMING", "VM_TRACE_VCD", "VM_TRACE_SAIF"]
                .map(|m| format!("-D{m}={}", u8::from(source.coverage && m == "VM_COVERAGE"))),
        );
        compiler.args(["VM_TRACE", "VM_TRACE_FST"].map(|m| format!("-D{m}={}", u8::from(source.trace))));
        compiler.arg("-I").arg(&include).arg("-I").arg(include.join("vltstd"));
        compiler
    }
}

/// Makes `home/name` with `make`, which writes it into a fresh directory, unless it is there. One maker at a time.
fn once(
    source: &Source<'_>,
    home: &Path,
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    let result = home.join(name);
    if result.is_file() {
        return Ok(());
    }
    fs::create_dir_all(home).map_err(Error::file("create", home))?;
    let path = home.join("lock");
    // The lock is the open file's, so it excludes threads as well as processes, and falls with the process.
    let lock = File::create(&path).map_err(Error::file("create", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            source.tell(Progress::Waiting);
            lock.lock().map_err(Error::file("lock", &path))?;
        }
        Err(fs::TryLockError::Error(error)) => return Err(Error::file("lock", &path)(error)),
    }
    if result.is_file() {
        return Ok(());
    }
    // Under the lock every other work directory is the remains of a killed build. A compiler that outlived it may
    // still write there, hence a name of its own.
    for entry in fs::read_dir(home).map_err(Error::file("list", home))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("work-") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let work = home.join(format!("work-{}", std::process::id()));
    fs::create_dir(&work).map_err(Error::file("create", &work))?;
    let made = make(&work)
        .and_then(|()| fs::rename(work.join(name), &result).map_err(Error::file("create", &result)));
    // Generated C++ is large; what a person may want to read is in `home`.
    let _ = fs::remove_dir_all(&work);
    made
}

struct Output {
    success: bool,
    text: String,
}

/// Runs a tool to its end; its text is what it said on stdout and then on stderr.
fn output(tool: &'static str, command: &mut Command) -> Result<Output, Error> {
    let run = command.stdin(Stdio::null()).output();
    let output = run.map_err(|source: io::Error| Error::Tool { tool, source })?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Ok(Output { success: output.status.success(), text: text.into_owned() })
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::file("write", path))
}

/// 128 bits of the hash in hexadecimal: a directory name.
fn short(hash: Sha256) -> String {
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
