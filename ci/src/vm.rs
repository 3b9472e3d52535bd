//! `cargo ci vm`: simulated cards behind a real Linux kernel, its vfio-pci and an IOMMU, in an emulated PC.
//!
//! ```text
//!   verbena sim: card0, card1 and the wire          emulated PC: QEMU without KVM
//!      │ card0.sock, card1.sock                        │ PCIe root ports, intel-iommu, 2 GiB shared with the cards
//!      └────────── vfio-user ──────────────────────────┤
//!   this task: scripts ── second serial port ──────────┴─ Debian's kernel, vfio-pci, busybox, lspci, verbena (static)
//! ```
//! QEMU, kernel and userland are Debian packages from the mirror that this machine's apt names, in whatever version it
//! has; they are fetched and unpacked under the target folder, and nothing is installed; the task `interop` boots the same
//! guest. In it the commands of `docs/bind.md` are typed as they stand there, `lspci` is judged, and the driver proves
//! itself over the kernel's VFIO: the same `verbena selftest` that passes on the socket. Out: a table of steps, the guest's
//! words as they come, the kernel's in `console.log`. Packages that cannot be fetched fail the task; `--or-skip` lets it
//! pass instead, and says so. Everything it starts ends with it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::*;

use crate::{
    Args, Task,
    apt::{self, Apt},
    run,
    step::{Steps, Verdict, clock},
};

/// The task `vm`.
pub const TASK: Task = Task {
    name: "vm",
    args: "[--or-skip]",
    about: "the driver over Linux's vfio-pci and an IOMMU, in an emulated PC with simulated cards",
    needs: &["docs/bind.md"],
    run: vm,
};

/// Where Debian's packages come from: the kernel and the guest's programs from the release, QEMU from what is newer, since
/// its `vfio-user-pci` came with 10.1.
const RELEASE: &str = "trixie";
const NEWER: &str = "trixie-backports";
const QEMU: &[&str] = &["qemu-system-x86", "seabios"];
const PROGRAMS: &[&str] = &[
    "busybox-static",
    "dash",
    "pciutils",
    "kmod",
    "liblzma5",
    "iproute2",
    "ibverbs-utils",
    "ibverbs-providers",
    "python3-pyverbs",
    "perftest",
];
const KERNEL: &str = "linux-image-amd64";
/// Of the kernel's package: itself, and what vfio-pci, virtio's network card and rdma_rxe need.
const KERNEL_FILES: &[&str] = &[
    "./boot/vmlinuz*",
    "./usr/lib/modules/*/modules.builtin*",
    "./usr/lib/modules/*/modules.order",
    "./usr/lib/modules/*/kernel/drivers/vfio/*",
    "./usr/lib/modules/*/kernel/virt/*",
    "./usr/lib/modules/*/kernel/drivers/net/virtio_net*",
    "./usr/lib/modules/*/kernel/drivers/net/net_failover*",
    "./usr/lib/modules/*/kernel/net/core/failover*",
    "./usr/lib/modules/*/kernel/drivers/infiniband/core/*",
    "./usr/lib/modules/*/kernel/drivers/infiniband/sw/rxe/*",
    "./usr/lib/modules/*/kernel/net/ipv*/*udp_tunnel*",
    "./usr/lib/modules/*/kernel/crypto/crc32*",
];
/// Of the unpacked packages the guest needs none of these.
const NOT_IN_GUEST: &str = "usr/share/doc usr/share/man usr/share/locale usr/share/zoneinfo usr/lib/udev usr/lib/systemd \
                            usr/lib/x86_64-linux-gnu/systemd usr/lib/x86_64-linux-gnu/gconv boot";

/// From the packages to the last step, on two cores.
const BAR: Duration = Duration::from_secs(4 * 60);
/// Longest time for one script in the guest.
const SCRIPT: Duration = Duration::from_secs(150);
/// Longest time in which a card is removed that a program uses, and in which that program ends.
const UNPLUG: Duration = Duration::from_secs(5);
/// The guest's memory.
const MEMORY: &str = "2G";
/// Slots of the two root ports, and so the cards' addresses.
const CARDS: [&str; 2] = ["0000:01:00.0", "0000:02:00.0"];

fn vm(mut args: Args) -> Result<()> {
    let mut or_skip = false;
    while let Some(arg) = args.next()? {
        match arg {
            Long("or-skip") => or_skip = true,
            other => return Err(other.unexpected().into()),
        }
    }
    let home = home();
    let mut steps = Steps::default();
    let start = Instant::now();
    if !fetch(&mut steps, &home, or_skip) {
        return steps.close();
    }
    let mut took = start.elapsed();
    if steps.step("build", || {
        build(Profile::Release)?;
        build_for_guest(Profile::Release, &home)
    }) {
        let mut sim = None;
        let simulated = steps.step("simulator", || {
            let capture = home.join("wire.pcapng").display().to_string();
            sim = Some(Simulator::start(Profile::Release, &["--cards", "2", "--capture", &capture])?);
            Ok(Verdict::Passed)
        });
        if simulated && let Some(sim) = &mut sim {
            let start = Instant::now();
            guest_steps(&mut steps, &home, sim);
            took += start.elapsed();
        }
        if let Some(sim) = sim {
            steps.step("simulator's end", || sim.end().map(|()| Verdict::Passed));
        }
    }
    steps.step("time", || {
        println!("{} without building; the bar is {}", clock(took), clock(BAR));
        ensure!(took <= BAR, "{} is more than {}", clock(took), clock(BAR));
        Ok(Verdict::Passed)
    });
    steps.close()
}

/// Where packages, guest and console are.
pub fn home() -> PathBuf {
    run::target().join("vm")
}

/// Everything that happens in the guest.
fn guest_steps(steps: &mut Steps, home: &Path, sim: &Simulator) {
    let mut guest = None;
    let booted = steps.step("boot", || {
        initramfs(home)?;
        guest = Some(Guest::boot(home, MEMORY, &devices(sim))?);
        Ok(Verdict::Passed)
    });
    let Some(guest) = guest.as_mut().filter(|_| booted) else { return };
    steps.step("lspci", || lspci(guest));
    steps
        .step("doctor, unbound", || ill(guest, "verbena doctor", &["bound to no driver", "driver_override"]));
    if steps.step("docs/bind.md", || bind(guest)) {
        steps.step("doctor, bound", || guest.ask("verbena doctor").map(|_| Verdict::Passed));
        steps.step("verbena devinfo", || devinfo(guest));
        steps.step("verbena selftest", || selftest(guest));
        steps.step("a user without rights", || without_rights(guest));
        steps.step("a user who may lock little", || little_memory(guest));
        for op in ["write", "send"] {
            steps.step(&format!("verbena move --op {op}"), || file(guest, op));
        }
        steps.step("removed under WRITEs and found again", || replug(guest));
    }
    steps.step("kernel's messages", || messages(guest));
    steps.step("power off", || guest.end().map(|()| Verdict::Passed));
}

// ---- packages

/// The step that fetches packages: whether they are there. A failure is one unless it may be skipped.
pub fn fetch(steps: &mut Steps, home: &Path, or_skip: bool) -> bool {
    let mut skipped = false;
    let fetched = steps.step("packages", || match packages(home) {
        Err(error) if or_skip => {
            skipped = true;
            Ok(Verdict::Skipped(format!("{error:#}")))
        }
        other => other,
    });
    fetched && !skipped
}

/// Fetches and unpacks what is not there yet.
pub fn packages(home: &Path) -> Result<Verdict> {
    let stamp = home.join("complete");
    let wanted = format!("{RELEASE} {NEWER} {QEMU:?} {PROGRAMS:?} {KERNEL} {KERNEL_FILES:?}");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        println!("{} is complete; remove it to fetch newer packages", home.display());
        return Ok(Verdict::Passed);
    }
    for folder in ["apt", "qemu", "guest"] {
        let folder = home.join(folder);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
    }
    println!("fetching QEMU, a kernel and a few programs, some 190 MB");
    let apt = Apt::updated(&home.join("apt"), &[RELEASE, NEWER])?;
    let qemu = apt.fetch("qemu", &[&["-t", NEWER], QEMU].concat())?;
    let programs = apt.fetch("programs", PROGRAMS)?;
    let kernel = kernel(&apt)?;
    fs::write(home.join("versions"), versions(qemu.iter().chain(&programs)))?;
    for (files, folder) in [(qemu, "qemu"), (programs, "guest")] {
        apt::unpack(&files, &home.join(folder))?;
    }
    let mut unpack = run::command(
        "sh",
        [
            "-euc",
            r#"deb=$1 to=$2; shift 2
        dpkg-deb --fsys-tarfile "$deb" | tar --extract --directory "$to" --wildcards "$@""#,
            "sh",
        ],
    );
    run::quietly(unpack.arg(&kernel).arg(home.join("guest")).args(KERNEL_FILES))?;
    fs::remove_dir_all(home.join("apt"))?;
    fs::write(stamp, wanted)?;
    Ok(Verdict::Passed)
}

/// A line `NAME VERSION` for each package file.
fn versions<'a>(files: impl Iterator<Item = &'a PathBuf>) -> String {
    let names = files.filter_map(|file| file.file_name()?.to_str());
    let mut lines: Vec<_> = names.filter_map(|name| name.split_once('_')).collect();
    lines.sort_unstable();
    let version = |rest: &str| rest.rsplit_once('_').map_or(rest, |(version, _)| version).replace("%3a", ":");
    lines.iter().map(|(name, rest)| format!("{name} {}\n", version(rest))).collect()
}

/// The version of an unpacked package.
pub fn version(home: &Path, package: &str) -> Result<String> {
    let text = fs::read_to_string(home.join("versions")).context("no list of the unpacked packages")?;
    let line = text.lines().find_map(|line| line.strip_prefix(package)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("{package} is not unpacked"))?.to_owned())
}

/// The kernel's package alone: what it depends on only serves to install it.
fn kernel(apt: &Apt) -> Result<PathBuf> {
    let text = run::output(&mut apt.command("apt-cache", &["show", "--no-all-versions", KERNEL]))?;
    let package = depends(&text).with_context(|| format!("{KERNEL} depends on no package:\n{text}"))?;
    let folder = apt.home().join("kernel");
    fs::create_dir(&folder)?;
    run::quietly(apt.command("apt-get", &["download", package]).current_dir(&folder))?;
    println!("kernel: {package}");
    let file = fs::read_dir(&folder)?.next().context("apt-get downloaded no file")?;
    Ok(file?.path())
}

/// The first package that a control stanza depends on.
fn depends(stanza: &str) -> Option<&str> {
    let line = stanza.lines().find_map(|line| line.strip_prefix("Depends: "))?;
    line.split([' ', ',']).next().filter(|name| !name.is_empty())
}

// ---- programs

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// How the programs outside of the guest are built.
#[derive(Clone, Copy)]
pub enum Profile {
    /// As `cargo test` has built them.
    Dev,
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Profile::Dev => "dev",
            Profile::Release => "release",
        }
    }

    /// Where cargo puts what it builds so.
    fn folder(self) -> &'static str {
        match self {
            Profile::Dev => "debug",
            Profile::Release => "release",
        }
    }

    /// The program with simulator.
    pub fn verbena(self) -> PathBuf {
        run::target().join(self.folder()).join("verbena")
    }
}

/// The program with simulator.
pub fn build(profile: Profile) -> Result<Verdict> {
    let what: &[&str] = match profile {
        // of the whole workspace, so that nothing is built with other features than `cargo test` did
        Profile::Dev => &["build", "--workspace", "--bin", "verbena"],
        Profile::Release => &["build", "--release", "--package", "verbena", "--bin", "verbena"],
    };
    run::show(&mut run::cargo(what)).map(|()| Verdict::Passed)
}

/// The guest's program, without it, in its place there: static, so that it runs anywhere.
pub fn build_for_guest(profile: Profile, home: &Path) -> Result<Verdict> {
    let mut guest =
        run::cargo(["build", "--package", "verbena", "--bin", "verbena", "--no-default-features"]);
    guest
        .args(["--target", TARGET, "--profile", profile.name()])
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    run::show(&mut guest)?;
    let program = run::target().join(TARGET).join(profile.folder()).join("verbena");
    fs::copy(&program, home.join("guest/usr/bin/verbena"))
        .with_context(|| format!("cannot copy {}", program.display()))?;
    Ok(Verdict::Passed)
}

/// Adds to the unpacked packages what makes them a system, and packs them.
pub fn initramfs(home: &Path) -> Result<()> {
    let root = home.join("guest");
    for folder in ["bin", "sbin", "lib", "lib64"] {
        let _ = std::os::unix::fs::symlink(format!("usr/{folder}"), root.join(folder));
    }
    for folder in ["dev", "proc", "sys", "tmp", "usr/sbin"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for (file, place) in [
        ("init", "init"),
        ("peer.py", "usr/bin/peer.py"),
        ("stranger.py", "usr/bin/stranger.py"),
        ("target.py", "usr/bin/target.py"),
    ] {
        fs::copy(run::root().join("ci/guest").join(file), root.join(place))
            .with_context(|| format!("cannot copy ci/guest/{file}"))?;
    }
    let mut pack = run::command(
        "sh",
        [
            "-euc",
            r#"
        busybox=$PWD/usr/bin/busybox
        usr/lib64/ld-linux-x86-64.so.2 --library-path usr/lib/x86_64-linux-gnu usr/sbin/depmod -b "$PWD" "$(ls usr/lib/modules)"
        prune=; for folder in $1; do prune="$prune -path ./$folder -prune -o"; done
        "$busybox" find . $prune -print | "$busybox" cpio -o -H newc -F "$2""#,
            "sh",
            NOT_IN_GUEST,
        ],
    );
    pack.arg(home.join("initramfs")).current_dir(&root);
    run::quietly(&mut pack)?;
    let bytes = fs::metadata(home.join("initramfs"))?.len();
    println!("initramfs of {} MB", bytes >> 20);
    Ok(())
}

// ---- the simulator

/// `verbena sim`; it ends when its standard input does, and so with this process.
pub struct Simulator {
    process: Child,
    /// The folder of its sockets: `VERBENA_RUN` of its users.
    pub folder: PathBuf,
}

impl Simulator {
    /// Starts it with these arguments and waits until it is ready.
    pub fn start(profile: Profile, args: &[&str]) -> Result<Simulator> {
        // a socket's path is short, a target folder's need not be
        let folder = std::env::temp_dir().join(format!("verbena-vm-{}", std::process::id()));
        let mut command = run::command("setpriv", ["--pdeathsig", "TERM"]);
        command.arg(profile.verbena()).args(["sim", "--until-eof"]).args(args);
        command.env("VERBENA_RUN", &folder);
        // the memory that a check leaves unmapped is no news
        command.env("VERBENA_LOG", "error");
        println!("$ {}", run::typed(&command));
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start setpriv")?;
        let out = process.stdout.take().context("no pipe")?;
        let simulator = Simulator { process, folder };
        let mut lines = BufReader::new(out).lines().map_while(Result::ok).inspect(|line| println!("{line}"));
        ensure!(lines.any(|line| line == "ready"), "the simulator ended before it was ready");
        Ok(simulator)
    }

    fn socket(&self, card: usize) -> PathBuf {
        self.folder.join(format!("card{card}.sock"))
    }

    /// Ends it; cards that broke a rule end in an error.
    pub fn end(mut self) -> Result<()> {
        drop(self.process.stdin.take());
        let status = self.process.wait()?;
        ensure!(status.success(), "the simulator ended with {status}: see above which rule was broken");
        Ok(())
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

// ---- the guest

/// The cards as devices of QEMU: each in its slot, behind an IOMMU.
fn devices(sim: &Simulator) -> Vec<String> {
    let mut devices = vec!["intel-iommu,intremap=on,caching-mode=on".to_owned()];
    for card in 0..CARDS.len() {
        devices.push(format!("pcie-root-port,id=port{card},chassis={0},slot={0}", card + 1));
        // a simulated card may take its time: QEMU's own patience of 5 s would end the connection
        devices.push(format!(
            r#"{{"driver":"vfio-user-pci","bus":"port{card}","x-msg-timeout":120000,"socket":{{"type":"unix","path":"{}"}}}}"#,
            sim.socket(card).display()
        ));
    }
    devices.iter().flat_map(|device| ["-device".to_owned(), device.clone()]).collect()
}

/// A running guest that obeys scripts.
pub struct Guest {
    qemu: Child,
    scripts: Option<ChildStdin>,
    lines: Receiver<String>,
    console: PathBuf,
}

impl Guest {
    /// Boots the kernel with the initramfs, this much memory and these further arguments of QEMU.
    pub fn boot(home: &Path, memory: &str, devices: &[String]) -> Result<Guest> {
        let root = home.join("qemu");
        let under = |path: &str| root.join(path).display().to_string();
        let libraries = under("usr/lib/x86_64-linux-gnu");
        let kernel =
            fs::read_dir(home.join("guest/boot"))?.next().context("the kernel's package has no kernel")?;
        let console = home.join("console.log");
        // QEMU with its own loader and libraries: they are newer than this machine's
        let mut command = run::command("setpriv", ["--pdeathsig", "KILL"]);
        command.arg(under("usr/lib64/ld-linux-x86-64.so.2")).args(["--library-path", &libraries]);
        command
            .arg(under("usr/bin/qemu-system-x86_64"))
            .env("QEMU_MODULE_DIR", under("usr/lib/x86_64-linux-gnu/qemu"));
        command.args(["-L", &under("usr/share/qemu"), "-L", &under("usr/share/seabios")]);
        command.args([
            "-machine",
            "q35,kernel-irqchip=split,sata=off,smbus=off,usb=off,vmport=off,memory-backend=memory",
            "-accel",
            "tcg",
            "-cpu",
            "qemu64",
            "-m",
            memory,
            "-object",
            &format!("memory-backend-memfd,id=memory,size={memory},share=on"),
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
        ]);
        command.args(devices);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.args(["-chardev", "stdio,id=scripts,signal=off", "-serial", "chardev:scripts"]);
        command.arg("-kernel").arg(kernel?.path()).arg("-initrd").arg(home.join("initramfs")).args([
            "-append",
            "console=ttyS0 loglevel=6 panic=-1 intel_iommu=on nokaslr mitigations=off tsc=reliable no_timer_check \
             nowatchdog random.trust_cpu=on",
        ]);
        println!("$ {}", run::typed(&command));
        let mut qemu =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start setpriv")?;
        let out = qemu.stdout.take().context("no pipe")?;
        let (told, lines) = channel();
        std::thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut line = Vec::new();
            while out.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if told.send(text).is_err() {
                    return;
                }
            }
        });
        let scripts = qemu.stdin.take();
        let mut guest = Guest { qemu, scripts, lines, console };
        guest.answer().map_err(|error| error.context(guest.last_words()))?;
        guest.ask("uname -r; cut -d' ' -f1 /proc/uptime")?;
        Ok(guest)
    }

    /// Runs a script in the guest: its output, and an error if it fails.
    pub fn ask(&mut self, script: &str) -> Result<String> {
        for line in script.lines() {
            println!("guest# {line}");
        }
        let scripts = self.scripts.as_mut().context("the guest is off")?;
        write!(scripts, "{script}\n@run\n")?;
        scripts.flush()?;
        let (output, code) = self.answer().map_err(|error| error.context(self.last_words()))?;
        ensure!(code == "0", "the guest's script ended with {code}: {}", script.lines().next().unwrap_or(""));
        Ok(output)
    }

    fn answer(&mut self) -> Result<(String, String)> {
        let end = Instant::now() + SCRIPT;
        let mut output = String::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => match line.strip_prefix("@end ") {
                    Some(code) => return Ok((output, code.to_owned())),
                    None => {
                        println!("{line}");
                        output += &line;
                        output.push('\n');
                    }
                },
                Err(RecvTimeoutError::Timeout) => bail!("no answer from the guest within {}", clock(SCRIPT)),
                Err(RecvTimeoutError::Disconnected) => bail!("QEMU ended"),
            }
        }
    }

    /// Takes its power away.
    pub fn kill(&mut self) -> Result<()> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        Ok(())
    }

    /// The end of the kernel's messages.
    fn last_words(&self) -> String {
        let text = fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        format!("{}: {}", self.console.display(), lines[lines.len().saturating_sub(5)..].join(" | "))
    }

    /// Powers the guest off.
    pub fn end(&mut self) -> Result<()> {
        // QEMU ends with its standard input's reader; the guest is told
        if let Some(mut scripts) = self.scripts.take() {
            scripts.write_all(b"poweroff -f\n@run\n")?;
        }
        let end = Instant::now() + Duration::from_secs(20);
        while self.qemu.try_wait()?.is_none() {
            ensure!(Instant::now() < end, "the guest does not power off");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

// ---- what is shown

/// What `lspci -vvv` must say of each card.
const LSPCI: &[&str] = &[
    "Ethernet controller [0200]: Device [1ee7:0001]",
    "Subsystem: Device [1ee7:0001]",
    "Region 0: Memory at",
    "(64-bit, non-prefetchable) [size=64K]",
    "Region 2: Memory at",
    "(64-bit, prefetchable) [size=256K]",
    "Region 4: Memory at",
    "(64-bit, non-prefetchable) [size=4K]",
    "Power Management version 3",
    "Express (v2) Endpoint",
    "ExtTag+",
    "FLReset+",
    "MSI-X: Enable- Count=16 Masked-",
    "Vector table: BAR=4 offset=00000000",
    "PBA: BAR=4 offset=00000800",
    "Advanced Error Reporting",
    "UESta:\tDLP- SDES- TLP- FCP- CmpltTO- CmpltAbrt- UnxCmplt- RxOF- MalfTLP-",
];
/// What it must not say.
const NOT_LSPCI: &[&str] = &[
    "lspci:",
    "!!!",
    "pcilib",
    "[disabled]",
    "<ignored>",
    "<unassigned>",
    "[virtual]",
    "unknown",
    "Unknown",
];

fn lspci(guest: &mut Guest) -> Result<Verdict> {
    for card in CARDS {
        let text = guest.ask(&format!("lspci -nnvvv -s {card}"))?;
        for wanted in LSPCI {
            ensure!(text.contains(wanted), "lspci does not say {wanted:?} of {card}");
        }
        for unwanted in NOT_LSPCI {
            ensure!(!text.contains(unwanted), "lspci says {unwanted:?} of {card}");
        }
    }
    Ok(Verdict::Passed)
}

/// Types the commands of `docs/bind.md`, for each card.
fn bind(guest: &mut Guest) -> Result<Verdict> {
    let blocks = page()?;
    for card in CARDS {
        for block in &blocks {
            guest.ask(&block.replace(CARDS[0], card))?;
        }
    }
    Ok(Verdict::Passed)
}

/// The commands of `docs/bind.md`.
fn page() -> Result<Vec<String>> {
    let page = fs::read_to_string(run::root().join("docs/bind.md")).context("cannot read docs/bind.md")?;
    let blocks = blocks(&page);
    ensure!(!blocks.is_empty(), "docs/bind.md has no commands");
    Ok(blocks)
}

/// The blocks of shell commands of a page.
fn blocks(page: &str) -> Vec<String> {
    let pieces = page.split("```");
    pieces.skip(1).step_by(2).filter_map(|piece| piece.strip_prefix("sh\n")).map(str::to_owned).collect()
}

fn devinfo(guest: &mut Guest) -> Result<Verdict> {
    let text = guest.ask("verbena devinfo")?;
    for wanted in [
        &format!("card: vfio:{}", CARDS[0]),
        &format!("card: vfio:{}", CARDS[1]),
        "PORT_ACTIVE",
        "::ffff:10.0.0.2",
    ] {
        ensure!(text.contains(wanted), "devinfo does not say {wanted:?}");
    }
    Ok(Verdict::Passed)
}

/// A command that must fail, and what it must say.
fn ill(guest: &mut Guest, command: &str, words: &[&str]) -> Result<Verdict> {
    let text = guest.ask(&format!("if {command} 2>&1; then exit 1; fi"))?;
    for wanted in words {
        ensure!(text.contains(wanted), "`{command}` does not say {wanted:?}");
    }
    Ok(Verdict::Passed)
}

/// Root's cards are told of to a user, with what root is to do.
fn without_rights(guest: &mut Guest) -> Result<Verdict> {
    guest.ask("echo user:x:1000:1000::/tmp:/usr/bin/dash > /etc/passwd")?;
    ill(
        guest,
        "su user -c 'verbena doctor'",
        &["may not be opened by this user", "as root: chown USER /dev/vfio/"],
    )?;
    ill(guest, "su user -c 'verbena devinfo'", &["Permission denied", "give this user its /dev/vfio group"])
}

/// A user who owns the card, and a limit that is too small for it.
fn little_memory(guest: &mut Guest) -> Result<Verdict> {
    let card = CARDS[0];
    guest.ask(&format!(
        "chown user /dev/vfio/$(basename $(readlink /sys/bus/pci/devices/{card}/iommu_group))\n\
         su user -c 'verbena devinfo --device vfio:{card}'"
    ))?;
    let limited = |kib: u32, command: &str| format!("su user -c 'ulimit -l {kib}; {command}'");
    let test = format!("verbena selftest --only churn --device vfio:{card}");
    guest.ask(&format!("su user -c '{test}'"))?;
    ill(guest, &limited(64, &test), &["RLIMIT_MEMLOCK, is 65536 bytes", "ulimit -l"])?;
    ill(guest, &limited(64, "verbena doctor"), &["limited to 65536 bytes (RLIMIT_MEMLOCK)"])
}

fn selftest(guest: &mut Guest) -> Result<Verdict> {
    let text = guest.ask("sysctl -w vm.nr_hugepages=8; verbena selftest --memory 1024")?;
    ensure!(text.contains(" 0 failed, 0 left out"), "not every check was made");
    Ok(Verdict::Passed)
}

/// Two processes move a file, which is compared.
fn file(guest: &mut Guest, op: &str) -> Result<Verdict> {
    let [from, to] = CARDS;
    guest.ask(&format!(
        "dd if=/dev/urandom of=/tmp/from bs=1000 count=300 2>/dev/null\n\
         verbena move --op {op} --device vfio:{to} --listen 127.0.0.1:18515 --file /tmp/to &\n\
         verbena move --op {op} --device vfio:{from} --connect 127.0.0.1:18515 --file /tmp/from\n\
         wait $!\n\
         cmp /tmp/from /tmp/to\n\
         rm /tmp/from /tmp/to"
    ))?;
    Ok(Verdict::Passed)
}

/// The kernel forgets a card while a program's WRITEs are under way on it, and finds it again. It asks the program for the
/// card, and goes on when the program has let go of it: the program ends and says why, its peer ends, the card is gone, then
/// as new. (QEMU 11.1 itself fails an assertion when a vfio-user device is unplugged.)
fn replug(guest: &mut Guest) -> Result<Verdict> {
    let [to, card] = CARDS;
    let file = |name: &str, card: &str, how: &str| {
        format!(
            "(code=0; verbena move --device vfio:{card} {how} 127.0.0.1:18515 --file /tmp/{name} > /tmp/{name}.log 2>&1 \
             || code=$?; echo $code > /tmp/{name}.rc) &"
        )
    };
    let said = guest.ask(&format!(
        "dd if=/dev/zero of=/tmp/from bs=1M count=64 2>/dev/null\n\
         : > /tmp/to\n\
         {}\n\
         {}\n\
         until [ $(stat -c %s /tmp/to) -gt 500000 ]; do sleep 0.1; done\n\
         now() {{ cut -d' ' -f1 /proc/uptime | tr -d .; }}\n\
         begun=$(now)\n\
         echo 1 > /sys/bus/pci/devices/{card}/remove\n\
         echo removed after $(( $(now) - begun ))0 ms\n\
         until [ -s /tmp/from.rc -a -s /tmp/to.rc ]; do sleep 0.1; done\n\
         echo both ended after $(( $(now) - begun ))0 ms\n\
         cat /tmp/from.log /tmp/to.log\n\
         echo they ended with $(cat /tmp/from.rc), $(cat /tmp/to.rc)\n\
         rm /tmp/from* /tmp/to*",
        file("to", to, "--listen"),
        file("from", card, "--connect"),
    ))?;
    for wanted in ["the system wanted the card back", &format!("vfio:{card}: "), "they ended with 3, 1"] {
        ensure!(said.contains(wanted), "the programs do not say {wanted:?}");
    }
    for what in ["removed after ", "both ended after "] {
        let (_, rest) = said.split_once(what).with_context(|| format!("no time behind {what:?}"))?;
        let time = rest.split(' ').next().and_then(|time| time.parse().ok()).map(Duration::from_millis);
        ensure!(time.is_some_and(|time| time <= UNPLUG), "{what}more than {}", clock(UNPLUG));
    }
    let console = String::from_utf8_lossy(&fs::read(&guest.console)?).into_owned();
    ensure!(console.contains("Relaying device request to user"), "the kernel did not ask for the card");
    ill(guest, &format!("verbena devinfo --device vfio:{card}"), &[&format!("no PCI function {card}")])?;
    guest.ask("echo 1 > /sys/bus/pci/rescan")?;
    for block in page()? {
        guest.ask(&block.replace(CARDS[0], card))?;
    }
    guest.ask("verbena selftest --only dma")?;
    Ok(Verdict::Passed)
}

/// The kernel has nothing to complain of.
pub fn messages(guest: &mut Guest) -> Result<Verdict> {
    let mut text = String::new();
    fs::File::open(&guest.console)?.read_to_string(&mut text)?;
    let complaints =
        ["BUG:", "WARNING:", "Call Trace", "DMAR: DRHD: handling fault", "AER: ", "can't reset", "not ready"];
    let found: Vec<_> =
        text.lines().filter(|line| complaints.iter().any(|what| line.contains(what))).collect();
    ensure!(found.is_empty(), "the guest's kernel complains: {}", found.join(" | "));
    println!("{} lines, none a complaint", text.lines().count());
    Ok(Verdict::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_package_is_the_first_that_the_metapackage_depends_on() {
        let stanza = "Package: linux-image-amd64\nDepends: linux-image-6.12.1-amd64 (= 6.12.1-1), other\n";
        assert_eq!(depends(stanza), Some("linux-image-6.12.1-amd64"));
        assert_eq!(depends("Package: x\nRecommends: y\n"), None);
    }

    #[test]
    fn a_packages_file_tells_its_version() {
        let files = ["b_2.1-3_amd64.deb", "a/a_1%3a1.0+x_all.deb"].map(PathBuf::from);
        assert_eq!(versions(files.iter()), "a 1:1.0+x\nb 2.1-3\n");
    }

    #[test]
    fn only_the_shell_blocks_of_a_page_are_commands() {
        let page = "# Page\n```sh\na\nb\n```\ntext `code`\n```\nout\n```\n```sh\nc\n```\n";
        assert_eq!(blocks(page), ["a\nb\n", "c\n"]);
    }
}
