//! What two 512-bit cards do at 100 Gb/s: goodput, rates, latencies, and how fast they are simulated.
//!
//! `cargo ci bench [ID...]`. Out: a table on stdout, and `target/bench.json`, a list of `{"id", "value", "unit", "bound",
//! "context"}`. Conditions: core clock 250 MHz; PCI Express generation 3 x16 with its framing, 900 ns from a read to its
//! completion, completions of 256 bytes, MPS 256, MRRS 512; wire delay 500 ns. The load comes from the driver, posted as
//! fast as its queues allow. Cycle figures are of the core clock, at the user interfaces of PCI Express core and CMAC, on
//! idle cards. Bounds: of a goodput what the line carries besides headers, of a rate the same in packets, of a latency the
//! bar. Virtual time: the same figures on every machine, but for the speed of the simulation.

use contract::{PathMtu, StageCounter};
use host::{Completion, Qp, QpInit, SendWr, WcStatus};
use sim::{
    backend::{lock, pass},
    card::{CORE_PERIOD, Card},
    room::RoomConfig,
    story::{A, B, Host, MEMORY, Story, seed, usual},
    wire::Side,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// Wire time of a byte at 100 Gb/s in ps.
const BYTE: u64 = 80;
/// Bytes of a RoCEv2 packet over IPv4 besides payload, RETH and AETH: from preamble to gap.
const OVERHEAD: u64 = 82;
/// Bytes of RETH.
const RETH: u64 = 16;

/// A frame with payload: when it begins, and how much it carries.
#[derive(Clone, Copy)]
struct Load {
    start: u64,
    payload: u64,
}

struct Bench {
    story: Story,
    hosts: [Host; 2],
    qps: Vec<[Qp; 2]>,
    /// Work requests that a QP may have outstanding.
    depth: usize,
    seen: Arc<Mutex<[Vec<Load>; 2]>>,
}

/// Payload of a frame with FCS.
fn payload(frame: &[u8]) -> u64 {
    let (opcode, pad) = (frame[42], u64::from(frame[43] >> 4 & 3));
    let headers = match opcode {
        0x06 | 0x0a | 0x0c => RETH,
        0x0d | 0x0f | 0x10 | 0x11 => 4,
        _ => 0,
    };
    (frame.len() as u64).saturating_sub(62 + headers + pad)
}

impl Bench {
    fn new(name: &str, qps: usize, mtu: PathMtu) -> Self {
        let mut config = RoomConfig::example(2, seed());
        for card in &mut config.cards {
            let root = &mut card.root;
            (root.link.up_mbps, root.link.down_mbps, root.endpoint.width) = (126_030, 126_030, 16);
        }
        let mut story = Story::unrecorded(name, config);
        let hosts = [story.start(0), story.start(1)];
        // of the card's outstanding records
        let depth = 2048 / qps.max(2);
        let qps: Vec<[Qp; 2]> = (0..qps)
            .map(|_| {
                let create = |host: &Host| {
                    let init =
                        QpInit { push: false, max_send_wr: depth as u32, ..QpInit::rc(&host.cq, &host.cq) };
                    host.pd.create_qp(&init).expect("a QP")
                };
                let pair = [create(&hosts[0]), create(&hosts[1])];
                for (me, other) in [(0, 1), (1, 0)] {
                    let mut attr = usual(hosts[other].context.gids()[0], pair[other].number(), 7, 7);
                    (attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic) = (mtu, 16, 16);
                    pair[me].connect_with(&attr).expect("connected");
                }
                pair
            })
            .collect();
        let seen: Arc<Mutex<[Vec<Load>; 2]>> = Arc::default();
        let writes = seen.clone();
        lock(&story.room).watch(Some(Box::new(move |side: Side, frame, _| {
            let load = Load { start: frame.start, payload: payload(&frame.bytes) };
            if load.payload > 0 {
                writes.lock().expect("no panic")[side.index()].push(load);
            }
        })));
        story.wait(20_000_000);
        Self { story, hosts, qps, depth, seen }
    }

    /// Posts on every QP of `side` lists of `list` requests, the last of each signaled, `count` in all, as fast as queues
    /// allow, and waits for them.
    fn run(
        &self,
        side: usize,
        count: usize,
        list: usize,
        request: impl Fn(usize, usize) -> (usize, usize, bool),
    ) {
        let depth = self.depth;
        let mut posted = vec![0; self.qps.len()];
        let mut done = vec![0; self.qps.len()];
        let far = &self.hosts[1 - side];
        while done.iter().any(|done| *done < count) {
            for (q, pair) in self.qps.iter().enumerate() {
                while posted[q] < count && posted[q] + list - done[q] <= depth {
                    let more = list.min(count - posted[q]);
                    let sges: Vec<_> = (0..more)
                        .map(|i| {
                            let (at, length, read) = request(q, posted[q] + i);
                            (self.hosts[side].memory.sge(at..at + length).expect("in the region"), at, read)
                        })
                        .collect();
                    let wrs: Vec<SendWr<'_>> = sges
                        .iter()
                        .enumerate()
                        .map(|(i, (sge, at, read))| {
                            let id = ((q << 32) | (posted[q] + i + 1)) as u64;
                            let sge = std::slice::from_ref(sge);
                            let (addr, key) = (far.memory.addr() + *at as u64, far.memory.rkey());
                            let wr = if *read {
                                SendWr::read(id, sge, addr, key)
                            } else {
                                SendWr::write(id, sge, addr, key)
                            };
                            if i + 1 == more { wr.signaled() } else { wr }
                        })
                        .collect();
                    pair[side].post_send(&wrs).expect("posted");
                    posted[q] += more;
                }
            }
            pass(&mut lock(&self.story.room)).expect("the simulation runs");
            let mut entries = [Completion::default(); 256];
            let found = self.hosts[side].cq.poll(&mut entries).expect("the CQ");
            for entry in &entries[..found] {
                assert_eq!(entry.status, WcStatus::Success, "{entry:?}");
                done[(entry.wr_id >> 32) as usize] = entry.wr_id as usize & 0xffff_ffff;
            }
        }
    }

    /// Packets and bytes of payload per second in the middle half of what `from` has sent.
    fn steady(&self, from: Side) -> (f64, f64) {
        let seen = self.seen.lock().expect("no panic");
        let all = &seen[from.index()];
        let middle = &all[all.len() / 4..all.len() * 3 / 4];
        let (first, last) = (middle[0], middle[middle.len() - 1]);
        let seconds = (last.start - first.start) as f64 / 1e12;
        let bytes: u64 = middle[..middle.len() - 1].iter().map(|load| load.payload).sum();
        ((middle.len() - 1) as f64 / seconds, bytes as f64 / seconds)
    }

    fn stalls(&mut self, side: usize) -> String {
        let names = [
            ("schedule", StageCounter::ScheduleStall),
            ("fetch", StageCounter::FetchStall),
            ("gather", StageCounter::GatherStall),
            ("packetise", StageCounter::PacketiseStall),
            ("place", StageCounter::PlaceStall),
            ("complete", StageCounter::CompleteStall),
            ("resent", StageCounter::Retransmits),
        ];
        let counts =
            names.map(|(name, counter)| format!("{name} {}", self.story.stage_counter(side, counter)));
        let rejects = self.hosts[side].context.device().rejects().expect("the counters");
        let refused = rejects
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{} {count}", name.name()));
        counts.into_iter().chain(refused).collect::<Vec<_>>().join(", ")
    }
}

/// What others reach, and where it is said.
const PEERS: &[(&str, &str)] = &[
    ("goodput_4096", "SRNIC (FPGA) 97 Gb/s on the line, NSDI 2023"),
    ("read_goodput_4096", "BALBOA (FPGA) full rate from 32 KiB on, OSDI 2026"),
    ("rate_write_64", "66.4 M/s, an FPGA architecture flat to 50,000 connections, J. Supercomputing"),
    ("sim_kcycles_512", "one Corundum card alone, Verilator: 60-71"),
];

/// A figure told: a row of the table, an entry of `bench.json`.
fn tell(id: &str, value: f64, unit: &str, bound: f64, context: &str) {
    let share = if bound > 0.0 { format!("{:.1} %", 100.0 * value / bound) } else { "-".into() };
    let peer = PEERS.iter().find(|peer| peer.0 == id).map_or("-", |peer| peer.1);
    println!("| {id} | {value:.2} {unit} | {bound:.2} | {share} | {peer} | {context} |");
    let entry = format!(
        r#"{{"id": "{id}", "value": {value:.3}, "unit": "{unit}", "bound": {bound:.3}, "context": "{context}"}}"#
    );
    FIGURES.lock().expect("no panic").push(entry);
}

static FIGURES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// CPU time of this process: everything runs in one thread.
fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn goodput(id: &str, mtu: PathMtu, offset: usize, read: bool) {
    const LENGTH: usize = 1 << 16;
    let mut bench = Bench::new(id, 1, mtu);
    bench.run(0, 40, 4, |_, i| (offset + i % 8 * LENGTH, LENGTH, read));
    let from = if read { B } else { A };
    let (_, bytes) = bench.steady(from);
    let packets = LENGTH as u64 / u64::from(mtu.bytes());
    let more = if read { 8 } else { RETH };
    let bound = LENGTH as f64 / ((LENGTH as u64 + packets * OVERHEAD + more) * BYTE) as f64 * 8000.0;
    let (near, far) = (bench.stalls(0), bench.stalls(1));
    let context = format!("64 KiB, 1 QP, MTU {}; stalls near: {near}; far: {far}", mtu.bytes());
    tell(id, bytes * 8.0 / 1e9, "Gb/s", bound, &context);
}

fn rate(id: &str, qps: usize, length: usize, read: bool, bound: f64) {
    let mut bench = Bench::new(id, qps, PathMtu::Mtu1024);
    let count = if qps == 1 { 4800 } else { 480 };
    let room = MEMORY / 64 - 1;
    bench.run(0, count, 16, |q, i| ((q * 977 + i) % room * 64, length, read));
    let (packets, _) = bench.steady(if read { B } else { A });
    let (near, far) = (bench.stalls(0), bench.stalls(1));
    let context = format!("{length} bytes, {qps} QPs, 1 in 16 signalled; stalls near: {near}; far: {far}");
    tell(id, packets / 1e6, "M/s", bound, &context);
}

/// Latencies of a WRITE of 64 bytes between idle cards, the worst of some.
fn latencies(wanted: &dyn Fn(&str) -> bool) {
    let names = ["doorbell_to_wire_64", "rx_to_mwr_64", "rx_to_ack_64", "wire_to_wire_64"];
    if !names.iter().any(|name| wanted(name)) {
        return;
    }
    let mut bench = Bench::new("latencies", 1, PathMtu::Mtu1024);
    let mut worst = [0u64; 4];
    for i in 0..8 {
        bench.story.wait(20_000_000);
        lock(&bench.story.room).host(1, |root, _| {
            root.set_log(true);
            root.take_log();
        });
        let at = i * 64;
        let frames: Arc<Mutex<Vec<(Side, u64)>>> = Arc::default();
        let seen = frames.clone();
        lock(&bench.story.room).watch(Some(Box::new(move |side, frame, _| {
            seen.lock().expect("no panic").push((side, frame.start));
        })));
        let started = |side: Side| {
            let (mut room, mut found) = (lock(&bench.story.room), None);
            let limit = room.now() + 100_000_000;
            let told = |_: &mut _| {
                let frames = frames.lock().expect("no panic");
                found = frames.iter().find(|frame| frame.0 == side).map(|frame| frame.1);
                found.is_some()
            };
            room.run_until(limit, told).expect("the simulation runs");
            found.expect("a frame")
        };
        let [near, far] = &bench.hosts;
        let sge = [near.memory.sge(at..at + 64).expect("in the region")];
        let wr = SendWr::write(1, &sge, far.memory.addr() + at as u64, far.memory.rkey()).signaled();
        bench.qps[0][0].post_send(&[wr]).expect("posted");
        let sent = started(A);
        let rung = lock(&bench.story.room).cards()[0].request_taken();
        let ack = started(B);
        bench.story.completes(near, 1);
        let room = lock(&bench.story.room);
        let arrived = room.cards()[1].frame_taken();
        let written =
            room.cards()[1].root().log().iter().find(|tlp| tlp.name == "MWr").expect("a write").at.0;
        let spans = [sent - rung, written - arrived, ack - arrived, ack - sent];
        for (worst, span) in worst.iter_mut().zip(spans) {
            *worst = (*worst).max(span.div_ceil(CORE_PERIOD));
        }
    }
    let rtt = 900_000 / CORE_PERIOD;
    let bounds = [2 * rtt + 64, 40, 40, 0];
    for ((name, worst), bound) in names.iter().zip(worst).zip(bounds).filter(|((name, _), _)| wanted(name)) {
        tell(name, worst as f64, "cycles", bound as f64, "64 bytes, idle cards, worst of 8");
    }
}

fn speed(id: &str) {
    let bench = Bench::new(id, 1, PathMtu::Mtu4096);
    let clocks = |bench: &Bench| lock(&bench.story.room).cards().iter().map(Card::clocks).sum::<u64>();
    let (before, start) = (clocks(&bench), cpu());
    bench.run(0, 40, 4, |_, i| ((i % 8) << 16, 1 << 16, false));
    let spent = (cpu() - start).as_secs_f64();
    let value = (clocks(&bench) - before) as f64 / 2.0 / spent / 1000.0;
    tell(id, value, "kcycles per CPU-second", 15.0, "two cards with PCI Express models, one sends");
}

fn main() {
    assert_eq!(sim::story::config().name, "full", "set VERBENA_CONFIG=full");
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |id: &str| asked.is_empty() || asked.iter().any(|asked| asked == id);
    println!("| id | value | bound | share | peers | conditions |");
    println!("|---|---|---|---|---|---|");
    latencies(&wanted);
    for (id, mtu, offset, read) in [
        ("goodput_4096", PathMtu::Mtu4096, 0, false),
        ("goodput_4096_offset64", PathMtu::Mtu4096, 64, false),
        ("goodput_1024", PathMtu::Mtu1024, 0, false),
        ("goodput_256", PathMtu::Mtu256, 0, false),
        ("read_goodput_4096", PathMtu::Mtu4096, 0, true),
    ] {
        if wanted(id) {
            goodput(id, mtu, offset, read);
        }
    }
    for (id, qps, length, read, bound) in [
        ("rate_write_64", 16, 64, false, 77.16),
        ("rate_write_64_1qp", 1, 64, false, 77.16),
        ("rate_write_8", 16, 8, false, 117.92),
        ("rate_read_64", 16, 64, true, 83.33),
    ] {
        if wanted(id) {
            rate(id, qps, length, read, bound);
        }
    }
    if wanted("sim_kcycles_512") {
        speed("sim_kcycles_512");
    }
    let folder = sim::story::folder();
    let path = folder.parent().expect("the target folder").join("bench.json");
    let text = format!("[\n  {}\n]\n", FIGURES.lock().expect("no panic").join(",\n  "));
    std::fs::write(&path, text).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
}
