//! `cargo ci interop`: a simulated card and the Linux kernel's soft-RoCE on one wire.
//!
//! ```text
//!   verbena pingpong, perf, perftest ── vfio-user ── verbena sim: card0 ── wire ── UDP ── virtio-net ── rdma_rxe
//!        │                                                                 ibv_rc_pingpong, pyverbs, ib_write_bw ...
//!        └────────── TCP on loopback ─────── QEMU's user network ───── virtio-net ────────┘
//! ```
//! QEMU, kernel and the guest's programs are those of the task `vm`; rdma-core's and perftest's are Debian's, unmodified.
//! In further cells a target is in the card's place, a board without a host: [`target`]. The guest is booted once, and
//! again behind the cell that kills it; every cell has a simulator of its own, with the faults of its wire, and a capture in
//! `target/interop`. For pings both sides ask for each other's MAC address; for all else they know it, so that a capture
//! shows RoCE alone: the guest has permanent neighbour entries, the card's programs a table.
//!
//! Out: a step per cell, then the judgement of all captures by tshark and the independent ICRC; a run of all cells writes
//! `docs/interop.md`. Names of cells, or parts of them, choose some, `--sample` those of `cargo ci test`, which takes
//! what `cargo test` has built; with `--or-skip` a machine that cannot fetch the packages is no failure. Time is the wall
//! clock's wherever card and wire are quiet, so a kernel's timers mean what they say; a wire with faults draws them from
//! the cell's seed, but which frame meets which draw depends on both machines. All traffic is on loopback, and everything
//! it starts ends with it.

mod target;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::{TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use lexopt::prelude::*;

use crate::{
    Args, Task, captures, run,
    step::{Steps, Verdict},
    vm::{self, Guest, Profile, Simulator},
};

/// The task `interop`.
pub const TASK: Task = Task {
    name: "interop",
    args: "[--sample [--or-skip]] [CELL...]",
    about: "a simulated card against the Linux kernel's soft-RoCE in an emulated PC, both directions",
    needs: &["ci/guest/peer.py", "ci/guest/target.py"],
    run: interop,
};

/// The guest's memory: Python, rdma-core and 16 MiB messages fit.
const MEMORY: &str = "768M";
const CARD_MAC: &str = "02:00:00:00:00:0a";
const GUEST_MAC: &str = "02:00:00:00:00:0b";
/// The guest's card for TCP.
const TALK_MAC: &str = "02:00:00:00:00:ff";
/// The stranger, whose frames are wrong on purpose, and who also asks in storms. The captures' judges tell them apart by it.
const STRANGER_MAC: &str = "02:00:00:00:00:77";
/// Where the guest's programs listen.
const PINGPONG: u16 = 18515;
const PEER: u16 = 18600;
const RESULTS: &str = "docs/interop.md";
/// Connections one after another.
const CYCLES: u32 = 1000;

/// What `cargo ci test` runs: each program and operation, both directions, both families, faults, refusals.
const SAMPLE: [&str; 9] = [
    "card-pingpong-4096-hostile",
    "kernel-pingpong-4096-ipv6",
    "card-send-5001-late",
    "kernel-write-20003-psn-wraps",
    "card-read-20003-mtu4096",
    "kernel-read-5001-qps16",
    "kernel-fetch-add-8-hostile",
    "card-write-5001-wrong-key",
    "target-mixed-2003-lossy",
];
/// MTU of the wire, and while pings of 8000 bytes cross it.
const USUAL: u32 = 4200;
const JUMBO: u32 = 8177;
/// Starts [`PEER`], in the guest's shell.
const PEER_STARTS: &str = "rm -f /tmp/peer.log\n\
                           python3 /usr/bin/peer.py 18600 > /tmp/peer.log 2>&1 &\n\
                           until grep -q listening /tmp/peer.log; do sleep 0.2; done";
/// The guest's end of the wire, likewise.
const WIRE: &str = "wire=$(basename $(dirname $(grep -l 02:00:00:00:00:0b /sys/class/net/*/address)))";

/// Who begins: sends first, or posts the work requests.
#[derive(Clone, Copy, PartialEq)]
enum Asks {
    Card,
    Kernel,
}

/// The program at the kernel's side.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// `ibv_rc_pingpong`.
    Pingpong,
    /// pyverbs, with this operation of `verbena perf`.
    Perf(&'static str),
    /// This program of perftest.
    Perftest(&'static str),
    /// `ping`, and the kernel's own answers.
    Ping,
}

#[derive(Clone, Copy, PartialEq)]
enum Wire {
    Clean,
    /// Three per cent lost each way.
    Lossy,
    /// Three per cent each lost, doubled, late.
    Hostile,
}

impl Wire {
    fn words(self) -> &'static str {
        match self {
            Wire::Clean => "clean",
            Wire::Lossy => "3 % lost",
            Wire::Hostile => "3 % lost, 3 % twice, 3 % late",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Wire::Clean => &[],
            Wire::Lossy => &["--loss", "3%"],
            Wire::Hostile => &["--loss", "3%", "--duplicate", "3%", "--reorder", "3%"],
        }
    }
}

/// What goes wrong on purpose.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    None,
    LateReceives,
    /// What `verbena perf --wrong` takes.
    Wrong(&'static str),
    /// PSNs begin before the last, so that they start again from 0.
    PsnWraps,
    /// The kernel's process is killed in the midst of it.
    DeadPeer,
    /// The guest is killed in the midst of it.
    KilledGuest,
    /// A third one on the wire forges frames to the card.
    Stranger,
    /// ARP requests fill the line to the card.
    Storm,
}

/// What the card must have refused of the stranger's frames.
const FORGED: [&str; 15] = [
    "BadIcrc",
    "BadPkey",
    "WrongAddress",
    "UnknownQp",
    "UnknownOpcode",
    "WrongTransport",
    "BadTransportVersion",
    "Duplicate",
    "PsnOutOfSequence",
    "ResponseUnexpected",
    "NotRoce",
    "BadIpHeader",
    "BadUdpLength",
    "WrongDestinationMac",
    "Runt",
];
/// Milliseconds of simulated time that a storm lasts: longer than the exchange in it.
const STORM: u32 = 3;
/// Least frames that come to the card during the exchange, of which 1280 may be its own.
const STORM_FRAMES: u64 = 1600;
/// How often to look whether it is over, and how long after a look: in a storm a frame comes every 70 ns of simulated time.
const CALM: u32 = 240;
const LULL: Duration = Duration::from_millis(500);

/// One exchange.
#[derive(Clone, Copy, PartialEq)]
struct Cell {
    by: By,
    asks: Asks,
    size: u32,
    count: u32,
    mtu: u32,
    qps: u32,
    ipv6: bool,
    wire: Wire,
    trouble: Trouble,
}

impl Cell {
    fn new(by: By, asks: Asks, size: u32, count: u32) -> Cell {
        let (wire, trouble) = (Wire::Clean, Trouble::None);
        Cell { by, asks, size, count, mtu: 1024, qps: 1, ipv6: false, wire, trouble }
    }

    fn what(&self) -> &'static str {
        match self.by {
            By::Pingpong => "pingpong",
            By::Perf(op) => op,
            By::Perftest(program) => program,
            By::Ping => "ping",
        }
    }

    /// Its name: what is not usual is told.
    fn name(&self) -> String {
        let asks = if self.asks == Asks::Card { "card" } else { "kernel" };
        let mut name = format!("{asks}-{}-{}", self.what(), self.size);
        if self.mtu != 1024 {
            name += &format!("-mtu{}", self.mtu);
        }
        if self.qps != 1 {
            name += &format!("-qps{}", self.qps);
        }
        for (told, part) in [
            (self.ipv6, "-ipv6"),
            (self.wire == Wire::Lossy, "-lossy"),
            (self.wire == Wire::Hostile, "-hostile"),
            (self.trouble == Trouble::LateReceives, "-late"),
            (self.trouble == Trouble::PsnWraps, "-psn-wraps"),
            (self.trouble == Trouble::DeadPeer, "-dead-peer"),
            (self.trouble == Trouble::KilledGuest, "-killed-guest"),
            (self.trouble == Trouble::Stranger, "-stranger"),
            (self.trouble == Trouble::Storm, "-storm"),
        ] {
            name += if told { part } else { "" };
        }
        if let Trouble::Wrong(what) = self.trouble {
            name += &format!("-wrong-{what}");
        }
        name
    }

    /// Its row in the table of results.
    fn row(&self, result: &str) -> String {
        let program = match self.by {
            By::Pingpong => "`ibv_rc_pingpong`",
            By::Perf(_) => "pyverbs",
            By::Perftest(_) => "perftest",
            By::Ping if self.asks == Asks::Card => "none",
            By::Ping => "`ping`",
        };
        let trouble = match self.trouble {
            Trouble::None => String::new(),
            Trouble::LateReceives => ", receives posted late (RNR)".to_owned(),
            Trouble::Wrong("gone") => ", the QP is gone: retries exceeded, the rest flushed".to_owned(),
            Trouble::Wrong(what) => format!(", wrong {what}: refused, the rest flushed"),
            Trouble::PsnWraps => ", PSNs wrap".to_owned(),
            Trouble::DeadPeer => ", the process is killed: retries exceeded in time; then another".to_owned(),
            Trouble::KilledGuest => ", the PC is killed: retries exceeded in time; then another".to_owned(),
            Trouble::Stranger => ", a stranger forges frames".to_owned(),
            Trouble::Storm => ", ARP requests at 10 Gb/s; then pings".to_owned(),
        };
        let asks = if self.asks == Asks::Card { "card" } else { "kernel" };
        let ip = if self.ipv6 { "IPv6" } else { "IPv4" };
        format!(
            "| {}{trouble} | {asks} | {program} | {} | {} x {} | {} | {ip} | {} | {result} |",
            self.what(),
            self.qps,
            self.count,
            self.size,
            self.mtu,
            self.wire.words()
        )
    }
}

/// The matrix.
fn cells() -> Vec<Cell> {
    const OPS: [&str; 7] = ["send", "send-imm", "write", "write-imm", "read", "fetch-add", "compare-swap"];
    let mut cells = Vec::new();
    for asks in [Asks::Card, Asks::Kernel] {
        for (size, ipv6) in [(56, false), (8000, false), (56, true), (8000, true)] {
            cells.push(Cell { mtu: JUMBO, ipv6, ..Cell::new(By::Ping, asks, size, 20) });
        }
        let pingpong = Cell::new(By::Pingpong, asks, 4096, 50);
        cells.push(pingpong);
        cells.push(Cell { ipv6: true, ..pingpong });
        cells.extend([256, 512, 2048, 4096].map(|mtu| Cell { mtu, size: 10_001, count: 20, ..pingpong }));
        cells.push(Cell { wire: Wire::Hostile, ..pingpong });
        for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw"] {
            let usual = Cell::new(By::Perftest(program), asks, 20_003, 100);
            cells.extend([usual, Cell { ipv6: true, ..usual }, Cell { mtu: 4096, ..usual }]);
            cells.extend([2, 16].map(|qps| Cell { qps, count: 100 / qps, ..usual }));
        }
        for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat"] {
            let usual = Cell::new(By::Perftest(program), asks, 5001, 50);
            cells.extend([usual, Cell { ipv6: true, ..usual }, Cell { mtu: 4096, ..usual }]);
        }
        for op in OPS {
            let atomic = ["fetch-add", "compare-swap"].contains(&op);
            let usual = Cell::new(By::Perf(op), asks, if atomic { 8 } else { 5001 }, 16);
            cells.push(usual);
            cells.push(Cell { ipv6: true, ..usual });
            cells.push(Cell { wire: Wire::Hostile, ..usual });
            if !atomic {
                cells.extend([0, 3].map(|size| Cell { size, count: 4, ..usual }));
            }
            let wrong: &[&str] = match op {
                "send" => &["length", "gone"],
                "send-imm" => &["length"],
                // rxe refuses to post an atomic at an odd place
                "fetch-add" | "compare-swap" if asks == Asks::Kernel => &["key", "rights"],
                "fetch-add" | "compare-swap" => &["key", "rights", "alignment"],
                "write" | "read" => &["key", "range", "rights", "gone"],
                _ => &["key", "range", "rights"],
            };
            cells.extend(wrong.iter().map(|what| Cell { trouble: Trouble::Wrong(what), count: 4, ..usual }));
        }
        for op in ["send", "write", "read"] {
            let usual = Cell::new(By::Perf(op), asks, 20_003, 16);
            cells.extend([256, 512, 2048, 4096].map(|mtu| Cell { mtu, ..usual }));
            cells.push(Cell { qps: 2, size: 5001, ..usual });
            // what a simulated card takes in before the kernel's timers run out
            let many = Cell { qps: 16, size: 5001, count: 4, ..usual };
            cells.extend([many, Cell { wire: Wire::Hostile, ..many }]);
            cells.push(Cell { size: 1 << 20, count: 2, ..usual });
            cells.push(Cell { size: 16 << 20, count: 1, mtu: 4096, ..usual });
            cells.push(Cell { wire: Wire::Lossy, mtu: 256, ..usual });
            cells.push(Cell { trouble: Trouble::PsnWraps, ..usual });
            cells.push(Cell { trouble: Trouble::Stranger, ..usual });
            cells.push(Cell { trouble: Trouble::Storm, count: 64, ..usual });
            let mourned = Cell { trouble: Trouble::DeadPeer, size: 1 << 16, count: 64, ..usual };
            cells.extend((asks == Asks::Card).then_some(mourned));
        }
        for op in ["send", "write-imm"] {
            let usual = Cell::new(By::Perf(op), asks, 5001, 4);
            cells.push(Cell { trouble: Trouble::LateReceives, ..usual });
        }
    }
    let usual = Cell::new(By::Perf("write"), Asks::Card, 1 << 16, 64);
    cells.push(Cell { trouble: Trouble::KilledGuest, ..usual });
    cells
}

/// Which cells.
enum Choice {
    All,
    Sample,
    /// Those whose name has one of these parts.
    Named(Vec<String>),
}

impl Choice {
    fn takes(&self, name: &str) -> bool {
        match self {
            Choice::All => true,
            Choice::Sample => SAMPLE.contains(&name),
            Choice::Named(parts) => parts.iter().any(|part| name.contains(part.as_str())),
        }
    }
}

fn interop(mut args: Args) -> Result<()> {
    let (mut named, mut some, mut or_skip) = (Vec::new(), false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Long("sample") => some = true,
            Long("or-skip") => or_skip = true,
            Value(name) => named.push(name.to_string_lossy().into_owned()),
            other => return Err(other.unexpected().into()),
        }
    }
    let mut steps = Steps::default();
    let (choice, profile) = match (some, named.is_empty()) {
        (true, _) => (Choice::Sample, Profile::Dev),
        (false, true) => (Choice::All, Profile::Release),
        (false, false) => (Choice::Named(named), Profile::Release),
    };
    let names = cells().iter().map(Cell::name).collect::<Vec<_>>();
    let targets = target::cells().iter().map(target::Cell::name).collect::<Vec<_>>();
    let names = [names, targets, vec!["cycles".to_owned()]].concat();
    if !names.iter().any(|name| choice.takes(name)) {
        return Err(crate::usage(format!("no such cell; there are {}", names.join(" "))));
    }
    if vm::fetch(&mut steps, &vm::home(), or_skip) {
        exchanges(&mut steps, profile, &choice)?;
    }
    steps.close()
}

/// The sample as one step of another task; a machine that cannot fetch the packages leaves it out and says so.
pub fn sample() -> Result<Verdict> {
    if let Err(error) = vm::packages(&vm::home()) {
        return Ok(Verdict::Skipped(format!("NOT SHOWN, no packages: {error:#}")));
    }
    let mut steps = Steps::default();
    exchanges(&mut steps, Profile::Dev, &Choice::Sample)?;
    steps.close().map(|()| Verdict::Passed)
}

/// Boots the guest and runs the cells.
fn exchanges(steps: &mut Steps, profile: Profile, choice: &Choice) -> Result<()> {
    let (home, folder) = (vm::home(), run::target().join("interop"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let numbered = target::cells().into_iter().enumerate();
    let targets: Vec<_> = numbered.filter(|(_, cell)| choice.takes(&cell.name())).collect();
    if !steps.step("build", || vm::build(profile)) {
        return Ok(());
    }
    if !targets.is_empty() && !steps.step("build for the guest", || vm::build_for_guest(profile, &home)) {
        return Ok(());
    }
    let mut room = None;
    steps.step("boot", || {
        vm::initramfs(&home)?;
        room = Some(Room::start(profile, &home, &folder)?);
        Ok(Verdict::Passed)
    });
    let Some(mut room) = room else { return Ok(()) };
    let (mut files, mut rows, mut failed) = (Vec::new(), Vec::new(), 0);
    for (number, cell) in cells().iter().enumerate() {
        let name = cell.name();
        if !choice.takes(&name) {
            continue;
        }
        let exchange = |file: &Path| room.exchange(cell, number as u64 + 1, file);
        let passed = captured(steps, &mut files, &folder, &name, exchange);
        rows.push(cell.row(result(passed)));
        failed += u32::from(!passed);
    }
    let (mut of_targets, mut failed_there) = (Vec::new(), 0);
    for (number, cell) in &targets {
        let exchange = |file: &Path| room.against_target(cell, *number as u64 + 1, file);
        let passed = captured(steps, &mut files, &folder, &cell.name(), exchange);
        of_targets.push(cell.row(result(passed)));
        failed_there += u32::from(!passed);
    }
    if choice.takes("cycles") {
        captured(steps, &mut files, &folder, "cycles", |file| room.cycles(file));
    }
    steps.step("kernel's messages", || vm::messages(&mut room.guest));
    let versions = room.guest.ask("uname -r");
    steps.step("power off", || room.guest.end().map(|()| Verdict::Passed));
    steps.step("captures: tshark", || captures::tshark(&files, Some(STRANGER_MAC)));
    steps.step("captures: icrc", || captures::icrc(&files, Some(STRANGER_MAC)));
    if matches!(choice, Choice::All) {
        steps.step(RESULTS, || {
            let kernel = versions?;
            let text =
                page(kernel.trim(), &home, &rows, failed)? + &target::section(&of_targets, failed_there);
            fs::write(run::root().join(RESULTS), text).with_context(|| format!("cannot write {RESULTS}"))?;
            Ok(Verdict::Passed)
        });
    }
    Ok(())
}

/// A step that leaves a capture, which joins `files`; whether it passed.
fn captured(
    steps: &mut Steps,
    files: &mut Vec<PathBuf>,
    folder: &Path,
    name: &str,
    run: impl FnOnce(&Path) -> Result<Verdict>,
) -> bool {
    let file = folder.join(format!("{name}.pcapng"));
    let passed = steps.step(name, || run(&file));
    files.extend(file.exists().then_some(file));
    passed
}

/// As the page has it.
fn result(passed: bool) -> &'static str {
    if passed { "passes" } else { "**fails**" }
}

/// `docs/interop.md`.
fn page(kernel: &str, home: &Path, rows: &[String], failed: u32) -> Result<String> {
    let [core, perftest, qemu] =
        ["ibverbs-utils", "perftest", "qemu-system-x86"].map(|package| vm::version(home, package));
    let [core, perftest, qemu] = [core?, perftest?, qemu?];
    Ok(format!(
        "# The card against Linux\n\n\
         Written by `cargo ci interop`: a simulated card of 64 bit and the kernel's soft-RoCE (`rdma_rxe`) on one wire, with\n\
         unmodified programs of rdma-core and perftest in the guest. Linux {kernel}, rdma-core {core}, perftest {perftest},\n\
         QEMU {qemu}.\n\n\
         In each cell all bytes are compared at the receiving end (but for perftest, which looks at none), all completions at\n\
         both; its capture is judged by tshark and by the independent ICRC. {} cells, {failed} of them fail. For pings both sides find each other by ARP and ND, else the guest\n\
         has permanent neighbour entries. Not there: the connection manager.\n\n\
         The stranger is a third sender in the guest, who has seen QPs, PSNs, address and key: wrong ICRC, P_Key, source, QP,\n\
         opcode, version, checksum or length, requests of long ago and far ahead, ACKs and NAKs of what is not under way. The card\n\
         must have refused each kind by name. He keeps from what RC cannot tell from the peer's own: the very next request, and\n\
         answers to what is under way. His frames, and a storm's, have a source MAC of their own: captures are judged without\n\
         them, and with all else that crossed the wire meanwhile.\n\n\
         A refusal ends with the status that soft-RoCE gives soft-RoCE in the captures of `sim/peer/tests/golden`, but for the\n\
         first of these. Of soft-RoCE: it answers a message that is longer than its receive with an operational error (NAK 0x63),\n\
         where the card says invalid request (0x61); it refuses to post an atomic at an odd place, so it cannot ask for one.\n\n\
         {CYCLES} connections one after another, each of a new QP, memory region, CQ and protection domain at both ends, leave\n\
         the kernel with as many objects as before; its memory, that of pyverbs and of the card's program is as large as after a\n\
         tenth of them.\n\n\
         | what | asks | kernel's program | QPs | messages x bytes | path MTU | IP | wire | |\n|---|---|---|---|---|---|---|---|---|\n{}\n",
        rows.len(),
        rows.join("\n")
    ))
}

/// The running guest and the ports between it and us.
struct Room {
    profile: Profile,
    home: PathBuf,
    guest: Guest,
    /// UDP ports of the simulated wire and of QEMU.
    wire: [u16; 2],
    /// TCP ports of ours that lead to [`PINGPONG`] and [`PEER`] in the guest.
    pingpong: u16,
    peer: u16,
}

impl Room {
    fn start(profile: Profile, home: &Path, folder: &Path) -> Result<Room> {
        // held together, so that they differ; free again when QEMU and the simulators want them
        let udp = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
        let tcp = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        let wire = [udp[0].local_addr()?.port(), udp[1].local_addr()?.port()];
        let [pingpong, peer] = [tcp[0].local_addr()?.port(), tcp[1].local_addr()?.port()];
        drop((udp, tcp));
        let guest = boot(home, wire, [pingpong, peer])?;
        let mut room = Room { profile, home: home.into(), guest, wire, pingpong, peer };
        // what the guest sends while it makes itself known goes to a card that drops it by name
        let sim = room.simulator(&[], USUAL, 0, &folder.join("boot.pcapng"))?;
        room.introduce()?;
        sim.end()?;
        Ok(room)
    }

    /// The guest's ends of wire and TCP, and its peer.
    fn introduce(&mut self) -> Result<()> {
        self.guest.ask(&format!(
            "modprobe virtio_net\n\
             modprobe rdma_rxe\n\
             for path in /sys/class/net/*; do\n\
               case $(cat $path/address) in\n\
                 {GUEST_MAC}) wire=${{path##*/}};;\n\
                 {TALK_MAC}) talk=${{path##*/}};;\n\
               esac\n\
             done\n\
             ip link set $talk up\n\
             ip addr add 10.0.2.15/24 dev $talk\n\
             ip link set $wire mtu {USUAL} txqueuelen 10000 up\n\
             ip addr add 10.0.0.2/24 dev $wire\n\
             ip addr add fd00::2/64 dev $wire nodad\n\
             ip neigh add 10.0.0.1 lladdr {CARD_MAC} dev $wire nud permanent\n\
             ip neigh add fd00::1 lladdr {CARD_MAC} dev $wire nud permanent\n\
             rdma link add rxe0 type rxe netdev $wire\n\
             until grep -q 'ffff:0a00:0002' /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null; do sleep 0.2; done\n\
             ibv_devinfo -d rxe0\n\
             {PEER_STARTS}"
        ))?;
        Ok(())
    }

    /// A card of that MTU, on a wire with these faults.
    fn simulator(&self, faults: &[&str], mtu: u32, seed: u64, capture: &Path) -> Result<Simulator> {
        self.at_the_wire(&[&["--card", &format!("mtu={mtu}")], faults].concat(), seed, capture)
    }

    /// What these arguments say, at the near end of the guest's wire.
    fn at_the_wire(&self, what: &[&str], seed: u64, capture: &Path) -> Result<Simulator> {
        let ports = format!("127.0.0.1:{},127.0.0.1:{}", self.wire[0], self.wire[1]);
        let (seed, capture) = (seed.to_string(), capture.display().to_string());
        let usual = ["--dgram", &ports, "--seed", &seed, "--capture", &capture];
        Simulator::start(self.profile, &[&usual, what].concat())
    }

    /// Runs a cell; its simulator ends in any case.
    fn exchange(&mut self, cell: &Cell, seed: u64, capture: &Path) -> Result<Verdict> {
        let mtu = if cell.by == By::Ping { JUMBO } else { USUAL };
        let storm = STORM.to_string();
        let storm = ["--storm", &storm];
        let faults = if cell.trouble == Trouble::Storm { &storm } else { cell.wire.arguments() };
        let sim = self.simulator(faults, mtu, seed, capture)?;
        let outcome = match cell.by {
            By::Pingpong | By::Perftest(_) if cell.asks == Asks::Card => self.card_begins(cell, &sim),
            By::Pingpong | By::Perftest(_) => self.kernel_begins(cell, &sim),
            By::Perf(op) => self.perf(cell, op, &sim),
            By::Ping => self.ping(cell, &sim),
        };
        // what is wrong with the exchange says more than what is wrong with the card
        outcome.and(sim.end()).map(|()| Verdict::Passed)
    }

    /// Connects, writes and disconnects, again and again; nothing may stay behind.
    fn cycles(&mut self, capture: &Path) -> Result<Verdict> {
        let sim = self.simulator(&[], USUAL, 0, capture)?;
        let cell = Cell::new(By::Perf("write"), Asks::Card, 1001, 2);
        let again = |room: &mut Room, rounds: u32| {
            let mut verbena = room.verbena(&cell, &sim, "perf");
            verbena.args([
                "--op",
                "write",
                "--size",
                "1001",
                "--count",
                "2",
                "--rounds",
                &rounds.to_string(),
            ]);
            verbena.args(["--connect", &format!("127.0.0.1:{}", room.peer)]);
            println!("$ {}", run::typed(&verbena));
            let said = run::output(&mut verbena)?;
            println!("{}", said.trim());
            let left = room.guest.ask(
                "rdma resource show rxe0\n\
                 awk '/^SUnreclaim/ { print \"kernel\", $2 }' /proc/meminfo\n\
                 awk '/^VmRSS/ { print \"pyverbs\", $2 }' /proc/$(pidof python3)/status",
            )?;
            Ok::<_, anyhow::Error>((said, left))
        };
        let (_, early) = again(self, CYCLES / 10)?;
        let (said, late) = again(self, CYCLES)?;
        sim.end()?;
        println!("early: {}\nlate: {}", early.trim(), late.trim());
        ensure!(early.lines().next() == late.lines().next(), "objects stayed behind in the kernel");
        for what in ["kernel", "pyverbs"] {
            grows(what, number_after(&early, what)?, number_after(&late, what)?)?;
        }
        let card = said.lines().last().unwrap_or_default();
        grows("verbena", number_after(card, "memory")?, number_after(card, "th,")?)?;
        Ok(Verdict::Passed)
    }

    /// `verbena` on the card.
    fn verbena(&self, cell: &Cell, sim: &Simulator, command: &str) -> Command {
        let mut verbena = run::command("setpriv", ["--pdeathsig", "TERM"]);
        verbena.arg(self.profile.verbena()).args([command, "--device", "sim:card0"]);
        verbena.args(["--mtu", &cell.mtu.to_string(), "--timeout", "300"]);
        // a guest without KVM may take its time, and only a lost packet should be missed
        let missed = [Trouble::Wrong("gone"), Trouble::DeadPeer, Trouble::KilledGuest];
        let soon = cell.wire != Wire::Clean || missed.contains(&cell.trouble);
        verbena.args(["--ack-timeout", if soon { "15" } else { "18" }]);
        verbena.env("VERBENA_RUN", &sim.folder);
        if cell.ipv6 {
            verbena.env("VERBENA_NEIGHBOURS", format!("fd00::1={CARD_MAC},fd00::2={GUEST_MAC}"));
        }
        verbena
    }

    /// `verbena` as the other end of one of the guest's programs.
    fn ours(&self, cell: &Cell, sim: &Simulator) -> Command {
        let mut verbena = match cell.by {
            By::Perftest(program) => {
                let mut verbena = self.verbena(cell, sim, "perftest");
                verbena.args([program, "--qps", &cell.qps.to_string()]);
                verbena
            }
            _ => {
                let mut verbena = self.verbena(cell, sim, "pingpong");
                verbena.args(["--linger", if cell.wire == Wire::Clean { "100" } else { "1000" }]);
                verbena
            }
        };
        verbena.args(["--size", &cell.size.to_string(), "--iters", &cell.count.to_string()]);
        verbena
    }

    fn card_begins(&mut self, cell: &Cell, sim: &Simulator) -> Result<()> {
        let server = theirs(cell, "");
        self.guest.ask(&format!(
            "rm -f /tmp/rc\n\
             (code=0; {server} > /tmp/out 2>&1 || code=$?; echo $code > /tmp/rc) &\n\
             until grep -Eq ':{PINGPONG:04X} 0+:0000 0A' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done"
        ))?;
        let mut verbena = self.ours(cell, sim);
        verbena.args(["--connect", &format!("127.0.0.1:{}", self.pingpong)]);
        let ours = run::show(&mut verbena);
        // a server whose peer has failed waits for ever
        let kill = format!("killall {} || true;", server.split(' ').next().unwrap_or_default());
        let theirs = self.guest.ask(&format!(
            "{} until [ -s /tmp/rc ]; do sleep 0.1; done\ncat /tmp/out\nexit $(cat /tmp/rc)",
            if ours.is_ok() { "" } else { &kill }
        ));
        ours?;
        let said = theirs?;
        ensure!(!said.contains("invalid data"), "the kernel's program found wrong bytes");
        Ok(())
    }

    fn kernel_begins(&mut self, cell: &Cell, sim: &Simulator) -> Result<()> {
        let mut verbena = self.ours(cell, sim);
        verbena.args(["--listen", "127.0.0.1:0"]).stderr(Stdio::piped());
        println!("$ {}", run::typed(&verbena));
        let mut listener = Listener::start(&mut verbena)?;
        let client = theirs(cell, &format!("-p {} 10.0.2.2", listener.port));
        let said = self.guest.ask(&client);
        let ours = listener.end(said.is_ok());
        said?;
        ours
    }

    /// Both ask who the other is; the guest's permanent entries come back in any case.
    fn ping(&mut self, cell: &Cell, sim: &Simulator) -> Result<()> {
        let program = self.profile.verbena();
        let own = |command: &[&str]| {
            let mut verbena = run::command("setpriv", ["--pdeathsig", "TERM"]);
            verbena.arg(&program).args(["ip", "--device", "sim:card0"]);
            verbena.args(command).env("VERBENA_RUN", &sim.folder).env("VERBENA_NEIGHBOURS", "");
            verbena
        };
        for address in ["10.0.0.1/24", "fd00::1/64"] {
            run::show(&mut own(&["add", address]))?;
        }
        let outcome = self.pings(cell, own);
        let usual = self.guest.ask(&format!(
            "{WIRE}\n\
             ip link set $wire mtu {USUAL}\n\
             ip neigh replace 10.0.0.1 lladdr {CARD_MAC} dev $wire nud permanent\n\
             ip neigh replace fd00::1 lladdr {CARD_MAC} dev $wire nud permanent"
        ));
        outcome.and(usual.map(drop))
    }

    /// What [`Self::ping`] does in between; `own` is `verbena ip` with this command.
    fn pings(&mut self, cell: &Cell, own: impl Fn(&[&str]) -> Command) -> Result<()> {
        self.guest.ask(&format!(
            "{WIRE}\nip link set $wire mtu {JUMBO}\nip neigh del 10.0.0.1 dev $wire\nip neigh del fd00::1 dev $wire"
        ))?;
        let (size, count) = (cell.size.to_string(), cell.count.to_string());
        if cell.asks == Asks::Card {
            let target = if cell.ipv6 { "fd00::2" } else { "10.0.0.2" };
            return run::show(&mut own(&["ping", target, "--size", &size, "--count", &count]));
        }
        let mut serve = own(&["serve"]);
        println!("$ {}", run::typed(&serve));
        let mut process = serve.stdout(Stdio::piped()).spawn().context("cannot start setpriv")?;
        let said = process.stdout.take().context("no pipe")?;
        let serves = BufReader::new(said).read_line(&mut String::new());
        let (ping, target) = if cell.ipv6 { ("ping6", "fd00::1") } else { ("ping", "10.0.0.1") };
        let answers = self.guest.ask(&format!("{ping} -c {count} -s {size} {target} 2>&1"));
        process.kill()?;
        process.wait()?;
        serves?;
        all_answered(&answers?, cell.count)
    }

    fn perf(&mut self, cell: &Cell, op: &str, sim: &Simulator) -> Result<()> {
        let mut verbena = self.verbena(cell, sim, "perf");
        verbena.args(["--op", op, "--size", &cell.size.to_string(), "--count", &cell.count.to_string()]);
        verbena.args(["--qps", &cell.qps.to_string()]);
        verbena.args((cell.asks == Asks::Kernel).then_some("--reverse"));
        match cell.trouble {
            Trouble::None => &mut verbena,
            Trouble::LateReceives => verbena.arg("--late"),
            Trouble::Wrong(what) => verbena.args(["--wrong", what]),
            Trouble::PsnWraps => verbena.args(["--psn", "16777200"]),
            Trouble::DeadPeer | Trouble::KilledGuest => verbena.args(["--wrong", "dies"]),
            Trouble::Stranger => verbena.args(["--stranger", "--counters"]),
            Trouble::Storm => verbena.args(["--ip", "--counters"]),
        };
        verbena.args(["--connect", &format!("127.0.0.1:{}", self.peer)]);
        // what the kernel's end finds, ours tells; what it died of, its log
        let outcome = match cell.trouble {
            Trouble::DeadPeer | Trouble::KilledGuest => self.bereave(cell, verbena),
            Trouble::Stranger | Trouble::Storm => told(&mut verbena).and_then(|said| counted(cell, &said)),
            _ => run::show(&mut verbena),
        };
        outcome.inspect_err(|_| drop(self.guest.ask("tail -n 1 /tmp/peer.log")))?;
        if cell.trouble == Trouble::Storm {
            self.calm(cell, sim)?;
            self.ping(&Cell::new(By::Ping, Asks::Kernel, 56, 5), sim)
        } else {
            Ok(())
        }
    }

    /// Waits until a storm is over, which on a busy machine is after the exchange: no frame comes any more.
    fn calm(&self, cell: &Cell, sim: &Simulator) -> Result<()> {
        let mut before = None;
        for _ in 0..CALM {
            let mut counters = run::command(self.profile.verbena(), ["counters", "--device", "sim:card0"]);
            counters.env("VERBENA_RUN", &sim.folder);
            let said = run::output(&mut counters)?;
            let frames = said.lines().find(|line| line.contains(" RxFrames ")).map(str::to_owned);
            ensure!(frames.is_some(), "no count of frames in {said}");
            if frames == before {
                return Ok(());
            }
            before = frames;
            std::thread::sleep(LULL);
        }
        bail!("{}: frames still come {} s after the exchange", cell.name(), (CALM * LULL).as_secs())
    }

    /// Kills the kernel's end when the work is under way, and has it there again when it is over.
    fn bereave(&mut self, cell: &Cell, mut verbena: Command) -> Result<()> {
        println!("$ {}", run::typed(&verbena));
        let mut process = verbena.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut errors = BufReader::new(process.stderr.take().context("no pipe")?);
        let mut line = String::new();
        errors.read_line(&mut line)?;
        let killed =
            if line.trim() == "under way" { self.kill(cell) } else { Err(anyhow!("it said {line:?}")) };
        if killed.is_err() {
            process.kill()?;
        }
        // the end of its standard input says that there is another
        drop(process.stdin.take());
        // to its end first: who fills the pipe never ends
        let mut said = String::new();
        errors.read_to_string(&mut said)?;
        let status = process.wait()?;
        eprint!("{said}");
        killed?;
        ensure!(status.success(), "verbena ended with {status}: {}", said.trim());
        Ok(())
    }

    fn kill(&mut self, cell: &Cell) -> Result<()> {
        if cell.trouble == Trouble::KilledGuest {
            self.guest.kill()?;
            vm::messages(&mut self.guest)?;
            self.guest = boot(&self.home, self.wire, [self.pingpong, self.peer])?;
            return self.introduce();
        }
        self.guest.ask(&format!("kill -9 $(pidof python3)\n{PEER_STARTS}")).map(drop)
    }
}

/// Runs it; what it said.
fn told(verbena: &mut Command) -> Result<String> {
    println!("$ {}", run::typed(verbena));
    let said = run::output(verbena)?;
    println!("{}", said.trim());
    Ok(said)
}

/// Whether the card has counted what it was to be troubled with.
fn counted(cell: &Cell, said: &str) -> Result<()> {
    let (_, counted) = said.split_once("counted: ").context("it tells of no counters")?;
    if cell.trouble == Trouble::Storm {
        let frames = number_after(counted, "RxFrames")?;
        ensure!(frames >= STORM_FRAMES, "only {frames} frames came: was there a storm?");
        let [events, interrupts] = ["Eqes", "MsixSent"].map(|name| number_after(counted, name).unwrap_or(0));
        ensure!(events <= 2 * interrupts, "{events} events for {interrupts} interrupts: one is armed twice");
        return Ok(());
    }
    let missing: Vec<_> = FORGED.iter().filter(|name| number_after(counted, name).is_err()).collect();
    ensure!(missing.is_empty(), "the card has refused nothing as {missing:?}");
    Ok(())
}

/// A guest between the wire's UDP ports and these TCP ports.
fn boot(home: &Path, wire: [u16; 2], [pingpong, peer]: [u16; 2]) -> Result<Guest> {
    let devices = [
        "-netdev".to_owned(),
        format!(
            "dgram,id=wire,local.type=inet,local.host=127.0.0.1,local.port={},remote.type=inet,\
             remote.host=127.0.0.1,remote.port={}",
            wire[1], wire[0]
        ),
        "-device".to_owned(),
        format!("virtio-net-pci,netdev=wire,mac={GUEST_MAC},romfile="),
        "-netdev".to_owned(),
        format!(
            "user,id=talk,hostfwd=tcp:127.0.0.1:{pingpong}-:{PINGPONG},hostfwd=tcp:127.0.0.1:{peer}-:{PEER}"
        ),
        "-device".to_owned(),
        format!("virtio-net-pci,netdev=talk,mac={TALK_MAC},romfile="),
    ];
    Guest::boot(home, MEMORY, &devices)
}

/// What the guest's ping said tells of as many answers.
fn all_answered(said: &str, count: u32) -> Result<()> {
    ensure!(said.contains(&format!(" {count} packets received")), "pings were lost");
    Ok(())
}

/// The number behind a word.
fn number_after(text: &str, word: &str) -> Result<u64> {
    let rest = text.split_once(word).map(|(_, rest)| rest.trim_start());
    let digits = rest.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    digits
        .and_then(|digits| digits.parse().ok())
        .with_context(|| format!("no number behind {word:?} in {text:?}"))
}

/// Some pages more are no leak; a page for each cycle is.
fn grows(what: &str, early: u64, late: u64) -> Result<()> {
    ensure!(late < early + 2 * u64::from(CYCLES), "{what}: {early} KiB became {late} KiB");
    Ok(())
}

/// The guest's program, with the GID of the cell's family.
fn theirs(cell: &Cell, rest: &str) -> String {
    let gid = if cell.ipv6 {
        "fd00:0000:0000:0000:0000:0000:0000:0002"
    } else {
        "0000:0000:0000:0000:0000:ffff:0a00:0002"
    };
    let find = format!("basename $(grep -l {gid} /sys/class/infiniband/rxe0/ports/1/gids/[0-9] | head -n 1)");
    let Cell { size, count, mtu, .. } = cell;
    let usual = |gid: &str| format!("-d rxe0 {gid} $({find}) -s {size} -n {count} -m {mtu}");
    match cell.by {
        // its clock is the emulated PC's, and its time-out long enough for a simulated card
        By::Perftest(program) => {
            let qps = if cell.qps > 1 { format!("-q {} ", cell.qps) } else { String::new() };
            format!("{program} {} -u 18 -F {qps}{rest}", usual("-x"))
        }
        _ => format!("ibv_rc_pingpong {} -c {rest}", usual("-g")),
    }
    .trim_end()
    .to_owned()
}

/// `verbena` at its end of a TCP port.
struct Listener {
    process: Child,
    port: u16,
    errors: BufReader<std::process::ChildStderr>,
}

impl Listener {
    fn start(command: &mut Command) -> Result<Listener> {
        let mut process = command.spawn().context("cannot start setpriv")?;
        let mut errors = BufReader::new(process.stderr.take().context("no pipe")?);
        let mut line = String::new();
        errors.read_line(&mut line)?;
        let port = line.trim().strip_prefix("listening on 127.0.0.1:").and_then(|port| port.parse().ok());
        let mut listener = Listener { process, port: 0, errors };
        listener.port = match port {
            Some(port) => port,
            None => {
                listener.end(false)?;
                bail!("it does not listen: {line}")
            }
        };
        Ok(listener)
    }

    /// Waits for its end, or brings it about.
    fn end(&mut self, wait: bool) -> Result<()> {
        if !wait {
            self.process.kill()?;
        }
        let mut said = String::new();
        self.errors.read_to_string(&mut said)?;
        eprint!("{said}");
        let status = self.process.wait()?;
        ensure!(!wait || status.success(), "verbena ended with {status}: {}", said.trim());
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_its_own_name_and_the_card_asks_for_all_that_the_kernel_does() {
        let cells = cells();
        let mut names: Vec<_> = cells.iter().map(Cell::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cells.len());
        let of_kernel = names.iter().filter_map(|name| name.strip_prefix("kernel-"));
        let mut missing = of_kernel.filter(|name| !names.contains(&format!("card-{name}")));
        assert_eq!(missing.next(), None);
    }

    #[test]
    fn every_name_of_the_sample_is_a_cell() {
        let targets = target::cells();
        let names: Vec<_> =
            cells().iter().map(Cell::name).chain(targets.iter().map(target::Cell::name)).collect();
        assert_eq!(SAMPLE.iter().find(|name| !names.iter().any(|cell| cell == *name)), None);
    }

    #[test]
    fn a_row_tells_what_is_not_usual() {
        let usual = Cell::new(By::Perf("read"), Asks::Kernel, 5001, 16);
        let cell = Cell { mtu: 256, ipv6: true, wire: Wire::Lossy, trouble: Trouble::Wrong("key"), ..usual };
        assert_eq!(cell.name(), "kernel-read-5001-mtu256-ipv6-lossy-wrong-key");
        let row = "| read, wrong key: refused, the rest flushed | kernel | pyverbs | 1 | 16 x 5001 | 256 | IPv6 \
                   | 3 % lost | passes |";
        assert_eq!(cell.row("passes"), row);
    }

    #[test]
    fn memory_that_grows_by_a_page_each_time_is_a_leak() {
        let said = "1000 exchanges; memory 7000 KiB after the 100th, 7100 KiB now";
        let (early, late) = (number_after(said, "memory").unwrap(), number_after(said, "th,").unwrap());
        assert_eq!((early, late), (7000, 7100));
        assert!(grows("x", early, late).is_ok() && grows("x", early, early + 4 * 900).is_err());
        assert!(number_after("kernel", "kernel").is_err());
    }

    #[test]
    fn the_kernels_program_is_given_the_gid_of_the_cells_family() {
        let cell = Cell::new(By::Pingpong, Asks::Card, 64, 2);
        let line = theirs(&cell, "");
        assert!(line.contains("ffff:0a00:0002") && line.ends_with("-s 64 -n 2 -m 1024 -c"), "{line}");
        assert!(theirs(&Cell { ipv6: true, ..cell }, "").contains("fd00:"));
        let line = theirs(&Cell { by: By::Perftest("ib_send_lat"), ..cell }, "-p 7 host");
        assert!(line.starts_with("ib_send_lat -d rxe0 -x") && line.ends_with("-p 7 host"), "{line}");
    }
}
