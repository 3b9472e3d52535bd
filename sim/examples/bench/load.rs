//! Two cards under load: drivers, connected QPs, lists of work requests as fast as the queues take them.
//!
//! ```text
//! Work.post > QPs > card ── wire ──▶ card        the wire's watcher > when each frame with payload began, how much it has
//! Work.poll < CQ  <      ◀──      ──
//! ```
//! In: how many QPs, their path MTU, the wire; requests by number. Out: what left in steady state. A driver costs no
//! simulated time: it looks once per microsecond, so queues must be deeper than what leaves in one.

use contract::{PathMtu, StageCounter};
use host::{Completion, Qp, QpInit, SendWr, WcStatus};
use sim::{
    backend::{lock, pass},
    room::RoomConfig,
    story::{Host, Story, US, seed, usual},
    wire::{self, Side},
};
use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

/// PCI Express generation 3 x16: raw rate in Mb/s.
pub const PCIE_MBPS: u64 = 126_030;

/// A frame with payload: when it began, and how much it carries.
#[derive(Clone, Copy)]
struct Load {
    start: u64,
    payload: u64,
}

/// What a pair of cards is.
pub struct Setup {
    /// Pairs of QPs.
    pub qps: usize,
    /// Path MTU.
    pub mtu: PathMtu,
    /// Work requests posted alone, of up to 64 inline bytes, are pushed.
    pub push: bool,
    /// The wire.
    pub wire: wire::Config,
    /// Code of the transport timeout.
    pub timeout: u8,
}

impl Setup {
    /// Pulled work requests, a clean wire of 500 ns, the usual timeout.
    pub fn new(qps: usize, mtu: PathMtu) -> Self {
        Self { qps, mtu, push: false, wire: wire::Config::default(), timeout: 14 }
    }
}

/// A part of a region that a WRITE or READ moves to or from the same part of the other side's.
#[derive(Clone, Copy)]
pub struct Request {
    /// First byte.
    pub at: usize,
    /// Bytes.
    pub length: usize,
    /// A READ.
    pub read: bool,
}

/// Two cards, connected.
pub struct Cards {
    /// The room.
    pub story: Story,
    /// Their hosts.
    pub hosts: [Host; 2],
    /// QPs, by pair.
    pub qps: Vec<[Qp; 2]>,
    /// Work requests that a QP may have outstanding.
    depth: usize,
    seen: Arc<Mutex<[Vec<Load>; 2]>>,
}

/// Payload of a RoCEv2 frame over IPv4 with FCS.
fn payload(frame: &[u8]) -> u64 {
    let (opcode, pad) = (frame[42], u64::from(frame[43] >> 4 & 3));
    let headers = match opcode {
        0x06 | 0x0a | 0x0c => 16,
        0x0d | 0x0f | 0x10 | 0x11 => 4,
        _ => 0,
    };
    (frame.len() as u64).saturating_sub(62 + headers + pad)
}

impl Cards {
    /// Started, connected, at rest.
    pub fn new(name: &str, setup: &Setup) -> Self {
        let mut config = RoomConfig { wire: setup.wire, ..RoomConfig::example(2, seed()) };
        for card in &mut config.cards {
            let root = &mut card.root;
            (root.link.up_mbps, root.link.down_mbps, root.endpoint.width) = (PCIE_MBPS, PCIE_MBPS, 16);
        }
        let mut story = Story::unrecorded(name, config);
        let hosts = [story.start(0), story.start(1)];
        // a list at least
        let depth = (2048 / setup.qps.max(2)).max(16);
        // the card's places for READs are enough for 64 that have 16
        let reads = if setup.qps > 64 { 1 } else { 16 };
        let init = |host: &Host| {
            let max_inline = if setup.push { 64 } else { 0 };
            let max_send_wr = depth as u32;
            let rc = QpInit::rc(&host.cq, &host.cq);
            host.pd.create_qp(&QpInit { push: setup.push, max_inline, max_send_wr, ..rc }).expect("a QP")
        };
        let qps: Vec<[Qp; 2]> = (0..setup.qps)
            .map(|_| {
                let pair = hosts.each_ref().map(init);
                for (me, other) in [(0, 1), (1, 0)] {
                    let mut attr = usual(hosts[other].context.gids()[0], pair[other].number(), 7, 7);
                    (attr.path_mtu, attr.timeout) = (setup.mtu, setup.timeout);
                    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (reads, reads);
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
        story.wait(20 * US);
        Self { story, hosts, qps, depth, seen }
    }

    /// Time passes as a driver's poll lets it.
    pub fn pass(&self) {
        pass(&mut lock(&self.story.room)).expect("the simulation runs");
    }

    /// Every side of `from` posts `count` requests on each of its QPs, as fast as the queues allow, in lists of `list`
    /// whose last is signaled; until all are complete.
    pub fn run(&self, from: &[Side], count: usize, list: usize, request: impl Fn(usize, usize) -> Request) {
        let mut works: Vec<Work<'_>> = from.iter().map(|side| Work::new(self, *side, list)).collect();
        while works.iter().any(|work| work.done.iter().any(|done| *done < count)) {
            works.iter_mut().for_each(|work| work.post(count, &request));
            self.pass();
            works.iter_mut().for_each(Work::poll);
        }
    }

    /// Frames with payload that `from` has sent.
    pub fn sent(&self, from: Side) -> usize {
        self.seen.lock().expect("no panic")[from.index()].len()
    }

    /// Packets and bytes of payload per second in the middle half of what `from` has sent.
    pub fn steady(&self, from: Side) -> (f64, f64) {
        let seen = self.seen.lock().expect("no panic");
        let all = &seen[from.index()];
        let middle = &all[all.len() / 4..all.len() * 3 / 4];
        let (first, last) = (middle[0], middle[middle.len() - 1]);
        let seconds = (last.start - first.start) as f64 / 1e12;
        let bytes: u64 = middle[..middle.len() - 1].iter().map(|load| load.payload).sum();
        ((middle.len() - 1) as f64 / seconds, bytes as f64 / seconds)
    }

    /// Tells on stderr where both cards waited, and what they refused.
    pub fn tell_stalls(&mut self, id: &str) {
        let names = [
            ("schedule", StageCounter::ScheduleStall),
            ("fetch", StageCounter::FetchStall),
            ("gather", StageCounter::GatherStall),
            ("packetise", StageCounter::PacketiseStall),
            ("place", StageCounter::PlaceStall),
            ("complete", StageCounter::CompleteStall),
            ("resent", StageCounter::Retransmits),
            ("superseded", StageCounter::Superseded),
            ("timeouts", StageCounter::TimeoutEvents),
        ];
        let stalls = [0, 1].map(|side| {
            let counts =
                names.map(|(name, counter)| format!("{name} {}", self.story.stage_counter(side, counter)));
            let rejects = self.hosts[side].context.device().rejects().expect("the counters");
            let refused = rejects.iter().filter(|(_, count)| *count > 0);
            let refused = refused.map(|(name, count)| format!("{} {count}", name.name()));
            counts.into_iter().chain(refused).collect::<Vec<_>>().join(", ")
        });
        eprintln!("{id}: near: {}; far: {}", stalls[0], stalls[1]);
    }
}

/// What one side has posted and what of it is complete.
pub struct Work<'a> {
    /// Between which cards.
    pub cards: &'a Cards,
    side: usize,
    /// The QPs that post.
    active: Range<usize>,
    list: usize,
    posted: Vec<usize>,
    done: Vec<usize>,
}

impl<'a> Work<'a> {
    /// Nothing yet.
    pub fn new(cards: &'a Cards, side: Side, list: usize) -> Self {
        let none = vec![0; cards.qps.len()];
        let active = 0..cards.qps.len();
        Self { cards, side: side.index(), active, list, posted: none.clone(), done: none }
    }

    /// The same, of one QP alone.
    pub fn on(self, qp: usize) -> Self {
        Self { active: qp..qp + 1, ..self }
    }

    /// Requests of a QP that are complete.
    pub fn done_of(&self, qp: usize) -> usize {
        self.done[qp]
    }

    /// Requests that are complete.
    pub fn done(&self) -> usize {
        self.done.iter().sum()
    }

    /// Whether none is outstanding.
    pub fn is_over(&self) -> bool {
        self.done == self.posted
    }

    /// Posts whole lists up to `count` requests of each QP, while its queue has room.
    pub fn post(&mut self, count: usize, request: impl Fn(usize, usize) -> Request) {
        let (near, far) = (&self.cards.hosts[self.side], &self.cards.hosts[1 - self.side]);
        for q in self.active.clone() {
            let pair = &self.cards.qps[q];
            while self.posted[q] < count && self.posted[q] + self.list - self.done[q] <= self.cards.depth {
                let numbers = self.posted[q]..count.min(self.posted[q] + self.list);
                let requests: Vec<Request> = numbers.clone().map(|i| request(q, i)).collect();
                let sge = |r: &Request| [near.memory.sge(r.at..r.at + r.length).expect("in the region")];
                let sges: Vec<_> = requests.iter().map(sge).collect();
                let wrs: Vec<SendWr<'_>> = numbers
                    .clone()
                    .zip(requests.iter().zip(&sges))
                    .map(|(i, (request, sge))| {
                        let id = ((q << 32) | (i + 1)) as u64;
                        let (addr, key) = (far.memory.addr() + request.at as u64, far.memory.rkey());
                        let wr = if request.read {
                            SendWr::read(id, sge, addr, key)
                        } else {
                            SendWr::write(id, sge, addr, key)
                        };
                        if i + 1 == numbers.end { wr.signaled() } else { wr }
                    })
                    .collect();
                pair[self.side].post_send(&wrs).expect("posted");
                self.posted[q] = numbers.end;
            }
        }
    }

    /// Takes what is complete.
    pub fn poll(&mut self) {
        let mut entries = [Completion::default(); 256];
        let found = self.cards.hosts[self.side].cq.poll(&mut entries).expect("the CQ");
        for entry in &entries[..found] {
            assert_eq!(entry.status, WcStatus::Success, "{entry:?}");
            self.done[(entry.wr_id >> 32) as usize] = entry.wr_id as usize & 0xffff_ffff;
        }
    }
}
