//! A crowd: several QPs between two cards, each with work both ways whose outcome is known to the byte.
//!
//! ```text
//! memory of each host:  sources, 32 KiB a pair, random | landings, one behind the other with gaps | a counter per pair
//! ```
//! In: pairs of QPs, and how many work requests each end posts: WRITEs, SENDs, READs, fetch and adds, of 0 to 6000 bytes,
//! from the seed; receives and READs in one to ten pieces. Out: the status of each, when the last came, and a judgement of
//! all of both memories: what completed with success is there, what did not is there or not, byte by byte, and nothing
//! else has changed.
#![allow(dead_code)]

use host::{Completion, Qp, QpAttr, QpInit, RecvWr, SendWr, WcStatus, qp::Sge};
use sim::{
    backend::{lock, pass},
    story::{Host, MEMORY, MS, Story, usual},
    wire::Side,
};

/// Bytes of sources of a pair.
pub const WINDOW: usize = 0x8000;
/// Most pairs.
pub const PAIRS: usize = 6;
/// Where landings begin.
pub const LANDINGS: usize = PAIRS * WINDOW;
/// Where the counters are, eight bytes each.
const COUNTERS: usize = MEMORY - 4096;
/// What stands where nothing landed.
const UNTOUCHED: u8 = 0xa5;
/// Longest message.
const LONGEST: u64 = 6000;
/// Longest time of a round: more than all retries of the usual timeout.
const PATIENCE: u64 = 40 * MS;
/// Numbers of receives begin here, those of sends at 0.
const RECEIVE: u64 = 1 << 32;

/// Two started cards.
pub struct Crowd {
    /// Their hosts.
    pub hosts: [Host; 2],
    sources: [Vec<u8>; 2],
}

/// Two connected QPs, one at each card.
pub struct Pair(pub [Qp; 2]);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Write,
    Send,
    Read,
    FetchAdd,
}

/// A work request.
#[derive(Clone, Copy, Debug)]
struct Work {
    kind: Kind,
    pair: usize,
    side: usize,
    /// Where its bytes come from, in the sources of the side that has them.
    from: usize,
    length: usize,
    /// Where they land, at the other side or, if they are asked for, at this.
    to: usize,
    status: Option<WcStatus>,
}

/// Work under way.
pub struct Round {
    works: Vec<Work>,
    /// Statuses of receives that came.
    pub receives: Vec<(usize, WcStatus)>,
    open: usize,
    /// When the last work request completed, in ps.
    pub last: u64,
}

impl Work {
    /// Where it lands, in one to ten pieces.
    fn landing(&self, host: &Host, number: usize) -> Vec<Sge> {
        let count = 1 + number % 10;
        let cut = |i: usize| self.to + self.length * i / count;
        (0..count).map(|i| host.memory.sge(cut(i)..cut(i + 1)).expect("a landing")).collect()
    }
}

impl Crowd {
    /// Starts both cards and fills the sources.
    pub fn start(story: &mut Story) -> Crowd {
        let hosts = [story.start(0), story.start(1)];
        let sources = [story.bytes(LANDINGS), story.bytes(LANDINGS)];
        for (host, bytes) in hosts.iter().zip(&sources) {
            host.memory.write(0, bytes).expect("the sources fit");
        }
        Crowd { hosts, sources }
    }

    /// A pair of connected QPs.
    pub fn pair(&self, story: &mut Story, adjust: impl Fn(Side, &mut QpAttr)) -> Pair {
        let psn = [story.below(1 << 24) as u32, story.below(1 << 24) as u32];
        let qps = [0, 1].map(|side| {
            let host = &self.hosts[side];
            let init = QpInit { max_send_sge: 10, max_recv_sge: 10, ..QpInit::rc(&host.cq, &host.cq) };
            host.pd.create_qp(&init).unwrap_or_else(|error| panic!("create a QP: {error}"))
        });
        for side in [0, 1] {
            let gid = self.hosts[1 - side].context.gids()[0];
            let mut attr = usual(gid, qps[1 - side].number(), psn[side], psn[1 - side]);
            attr.timeout = 7;
            adjust(Side::BOTH[side], &mut attr);
            qps[side].connect_with(&attr).unwrap_or_else(|error| panic!("connect: {error}"));
        }
        Pair(qps)
    }

    /// So many of them.
    pub fn pairs(&self, story: &mut Story, count: usize) -> Vec<Pair> {
        (0..count).map(|_| self.pair(story, |_, _| {})).collect()
    }

    /// The sources of a pair at a host: a range of its memory.
    pub fn window(pair: usize) -> std::ops::Range<usize> {
        pair * WINDOW..(pair + 1) * WINDOW
    }

    /// Each end of each pair posts `each` work requests.
    pub fn begin(&self, story: &mut Story, pairs: &[Pair], each: usize) -> Round {
        assert!(pairs.len() <= PAIRS);
        for host in &self.hosts {
            let blank = vec![UNTOUCHED; COUNTERS - LANDINGS];
            host.memory.write(LANDINGS, &blank).expect("the landings fit");
            host.memory.write(COUNTERS, &[0; 4096]).expect("the counters fit");
        }
        let mut works = Vec::new();
        let mut free = [LANDINGS + 5; 2];
        for _ in 0..each {
            for pair in 0..pairs.len() {
                for side in 0..2 {
                    let kind = [Kind::Write, Kind::Send, Kind::Read, Kind::FetchAdd][story.below(4) as usize];
                    let length = match kind {
                        Kind::FetchAdd => 8,
                        _ => story.below(LONGEST + 1) as usize >> (story.below(3) * 4),
                    };
                    let from = pair * WINDOW + story.below((WINDOW - length) as u64) as usize;
                    let at = if matches!(kind, Kind::Write | Kind::Send) { 1 - side } else { side };
                    let to = free[at];
                    free[at] += length + 13;
                    assert!(free[at] <= COUNTERS, "the landings overflow");
                    works.push(Work { kind, pair, side, from, length, to, status: None });
                }
            }
        }
        for (number, work) in works.iter().enumerate().filter(|(_, work)| work.kind == Kind::Send) {
            let host = &self.hosts[1 - work.side];
            let sges = work.landing(host, number);
            let list = [RecvWr::new(RECEIVE + number as u64, &sges)];
            pairs[work.pair].0[1 - work.side].post_recv(&list).expect("post a receive");
        }
        for (number, work) in works.iter().enumerate() {
            self.post(number as u64, work, &pairs[work.pair]);
        }
        Round { open: works.len(), works, receives: vec![], last: story.now() }
    }

    fn post(&self, number: u64, work: &Work, pair: &Pair) {
        let Work { kind, side, from, length, to, .. } = *work;
        let (host, other) = (&self.hosts[side], &self.hosts[1 - side]);
        let sges = match kind {
            Kind::Write | Kind::Send => vec![host.memory.sge(from..from + length).expect("a source")],
            Kind::Read => work.landing(host, number as usize),
            Kind::FetchAdd => vec![host.memory.sge(to..to + length).expect("a landing")],
        };
        let (base, rkey) = (other.memory.addr(), other.memory.rkey());
        let wr = match kind {
            Kind::Write => SendWr::write(number, &sges, base + to as u64, rkey),
            Kind::Send => SendWr::send(number, &sges),
            Kind::Read => SendWr::read(number, &sges, base + from as u64, rkey),
            Kind::FetchAdd => {
                SendWr::fetch_add(number, &sges, base + counter(work.pair, side) as u64, rkey, 1)
            }
        };
        pair.0[side].post_send(&[wr.signaled()]).unwrap_or_else(|error| panic!("post: {error}"));
    }

    /// Takes the completions that are there; false when no work request is open any more.
    pub fn poll(&self, story: &Story, round: &mut Round) -> bool {
        for host in &self.hosts {
            let mut entries = [Completion::default(); 64];
            loop {
                let count = host.cq.poll(&mut entries).unwrap_or_else(|error| panic!("poll: {error}"));
                for entry in &entries[..count] {
                    round.take(entry, story.now());
                }
                if count < entries.len() {
                    break;
                }
            }
        }
        round.open > 0
    }

    /// Until every work request has completed, however.
    pub fn finish(&self, story: &mut Story, round: &mut Round) {
        let limit = story.now() + PATIENCE;
        while self.poll(story, round) {
            let open: Vec<_> = round.works.iter().filter(|work| work.status.is_none()).collect();
            assert!(story.now() < limit, "these never complete: {open:#?}");
            pass(&mut lock(&story.room)).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Both memories are what the statuses say.
    #[track_caller]
    pub fn judge(&self, round: &Round, what: &str) {
        let mut added = [[0u64; 2]; PAIRS];
        let mut tried = [[0u64; 2]; PAIRS];
        let found = [0, 1].map(|side| self.hosts[side].memory.to_vec(0..MEMORY).expect("all of it"));
        let mut wanted = [0, 1].map(|side| {
            let mut bytes = self.sources[side].clone();
            bytes.resize(COUNTERS, UNTOUCHED);
            bytes.resize(MEMORY, 0);
            bytes
        });
        for work in &round.works {
            let Work { kind, pair, side, from, length, to, .. } = *work;
            let good = work.status == Some(WcStatus::Success);
            let at = if matches!(kind, Kind::Write | Kind::Send) { 1 - side } else { side };
            let new = match kind {
                Kind::FetchAdd => {
                    tried[pair][side] += 1;
                    added[pair][side] += u64::from(good);
                    (tried[pair][side] - 1).to_le_bytes().to_vec()
                }
                _ => self.sources[1 - at][from..from + length].to_vec(),
            };
            for (i, new) in new.into_iter().enumerate() {
                if good || found[at][to + i] == new {
                    wanted[at][to + i] = new;
                }
            }
        }
        for pair in 0..PAIRS {
            for side in 0..2 {
                let (at, home) = (counter(pair, side), 1 - side);
                let value = u64::from_le_bytes(found[home][at..at + 8].try_into().expect("eight bytes"));
                assert!(
                    (added[pair][side]..=tried[pair][side]).contains(&value),
                    "{what}: counter of pair {pair}, side {side} is {value}, added {:?} of {:?}",
                    added[pair][side],
                    tried[pair][side]
                );
                wanted[home][at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
        for side in 0..2 {
            if let Some(at) = (0..MEMORY).find(|i| found[side][*i] != wanted[side][*i]) {
                let near = round.works.iter().filter(|work| at.abs_diff(work.to) < 8000);
                panic!(
                    "{what}: memory of host {side} differs at {at:#x}: {:02x} instead of {:02x}; near it: {:#?}",
                    found[side][at],
                    wanted[side][at],
                    near.collect::<Vec<_>>()
                );
            }
        }
    }
}

/// Where the counter of an end stands in the other's memory.
fn counter(pair: usize, side: usize) -> usize {
    COUNTERS + 16 * pair + 8 * side
}

impl Round {
    fn take(&mut self, entry: &Completion, now: u64) {
        if let Some(number) = entry.wr_id.checked_sub(RECEIVE) {
            self.receives.push((number as usize, entry.status));
            return;
        }
        let work = &mut self.works[entry.wr_id as usize];
        assert_eq!(work.status, None, "work request {} completes twice: {entry:?}", entry.wr_id);
        work.status = Some(entry.status);
        self.open -= 1;
        self.last = now;
    }

    /// Statuses of the work requests of an end, in the order in which they were posted.
    pub fn statuses(&self, pair: usize, side: usize) -> Vec<WcStatus> {
        let of = self.works.iter().filter(|work| (work.pair, work.side) == (pair, side));
        of.map(|work| work.status.expect("the round is finished")).collect()
    }

    /// Whether all of a pair's work succeeded.
    pub fn succeeded(&self, pair: usize) -> bool {
        let mut of = self.works.iter().filter(|work| work.pair == pair);
        of.all(|work| work.status == Some(WcStatus::Success))
    }

    /// The error of an end, if it had one: successes, then at most one error, then flushes.
    #[track_caller]
    pub fn error(&self, pair: usize, side: usize) -> Option<WcStatus> {
        let all = self.statuses(pair, side);
        let mut rest = all.iter().skip_while(|status| **status == WcStatus::Success);
        let first = rest.next().copied();
        assert!(rest.all(|status| *status == WcStatus::WrFlushErr), "pair {pair}, side {side}: {all:?}");
        first
    }

    /// Bytes that arrived, of all that succeeded.
    pub fn bytes(&self, pair: usize) -> usize {
        let of = self.works.iter().filter(|work| work.pair == pair);
        of.filter(|work| work.status == Some(WcStatus::Success)).map(|work| work.length).sum()
    }
}
