//! Two users of one card, of whom one does whatever its doorbell page, its rings and its keys let it do.
//!
//! ```text
//! card 0: the good user's QPs ─ work both ways, judged to the byte ─ card 1
//!         the villain's QPs: garbage WQEs, keys of the other, receivers that are never ready, a CQ that nobody reaps
//!         the villain's page: writes of any size at any offset, indices that cannot be, names of the other's queues, storms
//! ```
//! Asserted: the good user's work all succeeds, its memory is right to the byte, and it keeps at least half of the
//! throughput that it has alone. Both figures are printed.
//!
//! Requirements: CARD

#[path = "crowd/mod.rs"]
mod crowd;

use contract::{CqDoorbell, EqDoorbell, Reject, RqDoorbell, SendWqe, Sge, SqDoorbell, WrOpcode, doorbell};
use crowd::{Crowd, Pair};
use host::{Access, Context, Cq, Mr, Pd, Qp, QpInit, SendWr};
use sim::{
    backend::{lock, pass},
    function::Mapping,
    room::RoomConfig,
    story::{MS, Story, seed, usual},
};

/// Posted writes that the card's core can hold.
const CREDITS: usize = 32;
/// Bytes of a doorbell page.
const STRIDE: u64 = contract::doorbell::DEFAULT_STRIDE as u64;

/// A user of card 0 that means harm, and its accomplice at card 1.
struct Villain {
    page: u64,
    queues: Vec<(Qp, Mapping, Mapping)>,
    cq: Cq,
    memory: Mr,
    pd: Pd,
    _context: Context,
    accomplice: (Vec<Qp>, Cq, Mr, Pd),
    /// Keys and queues of the good user.
    keys: Vec<(u64, u32)>,
    targets: Vec<u32>,
    made: u32,
}

/// The rings of a QP made last at card 0.
fn rings(story: &Story) -> (Mapping, Mapping) {
    let room = lock(&story.room);
    let mappings = room.mappings(0);
    (mappings[mappings.len() - 2], mappings[mappings.len() - 1])
}

impl Villain {
    fn enter(story: &mut Story, crowd: &Crowd, pairs: &[Pair]) -> Villain {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let context = crowd.hosts[0].context.another_user().expect("a page");
        let pd = context.alloc_pd().expect("a PD");
        let memory = pd.allocate(64 << 10, rights).expect("allocate");
        // never reaped: full after four entries
        let cq = context.create_cq(3, None).expect("create a CQ");
        let other = crowd.hosts[1].context.another_user().expect("a page");
        let other_pd = other.alloc_pd().expect("a PD");
        let other_memory = other_pd.allocate(64 << 10, rights).expect("allocate");
        let other_cq = other.create_cq(1000, None).expect("create a CQ");
        let keys = crowd.hosts.iter().map(|host| (host.memory.addr(), host.memory.rkey())).collect();
        let targets = pairs.iter().map(|pair| pair.0[0].number()).collect();
        let mut villain = Villain {
            page: context.doorbell_page().into(),
            queues: vec![],
            cq,
            memory,
            pd,
            _context: context,
            accomplice: (vec![], other_cq, other_memory, other_pd),
            keys,
            targets,
            made: 0,
        };
        for _ in 0..4 {
            villain.connect(story, crowd);
        }
        villain
    }

    /// One more pair of QPs; no receive is ever posted.
    fn connect(&mut self, story: &mut Story, crowd: &Crowd) {
        let init =
            QpInit { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 4, ..QpInit::rc(&self.cq, &self.cq) };
        let mine = self.pd.create_qp(&init).expect("create a QP");
        let (sends, receives) = rings(story);
        let (theirs, cq, _, pd) = &mut self.accomplice;
        let other = pd.create_qp(&QpInit { max_send_sge: 4, ..QpInit::rc(cq, cq) }).expect("create a QP");
        for (qp, to, gid) in [
            (&mine, other.number(), crowd.hosts[1].context.gids()[0]),
            (&other, mine.number(), crowd.hosts[0].context.gids()[0]),
        ] {
            let mut attr = usual(gid, to, 100, 100);
            (attr.timeout, attr.rnr_retry, attr.min_rnr_timer) = (8, 7, 1);
            qp.connect_with(&attr).expect("connect");
        }
        self.queues.push((mine, sends, receives));
        theirs.push(other);
        self.made += 1;
    }

    /// Bytes into its page, as a store of that size does; a CPU stalls while the card's credits are used up.
    fn store(&self, story: &Story, offset: u64, bytes: &[u8]) {
        while lock(&story.room).cards()[0].root().host_writes_waiting() > CREDITS {
            lock(&story.room).run_for(20_000).unwrap_or_else(|error| panic!("{error}"));
        }
        let end = (offset + bytes.len() as u64).min(STRIDE);
        let bytes = &bytes[..(end - offset) as usize];
        let at = self.page * STRIDE + offset;
        lock(&story.room).host(0, |root, now| root.mmio_write(now, 2, at, bytes));
    }

    /// A number of a queue: its own, the other's, or none.
    fn number(&self, story: &mut Story) -> u32 {
        match story.below(3) {
            0 => self.targets[story.below(self.targets.len() as u64) as usize],
            1 => self.queues[story.below(self.queues.len() as u64) as usize].0.number(),
            _ => story.below(1 << 24) as u32,
        }
    }

    /// Writes a WQE that its QP's driver would never write; what the card makes of it is the card's business.
    fn scribble(&self, story: &mut Story) {
        let (_, sends, receives) = &self.queues[story.below(self.queues.len() as u64) as usize];
        let slot = story.below(16);
        let mut bytes = story.bytes(128);
        if story.below(3) > 0 {
            // nearly right
            let (va, key) = self.keys[story.below(2) as usize];
            let wqe = SendWqe {
                opcode: [
                    WrOpcode::Send,
                    WrOpcode::RdmaWrite,
                    WrOpcode::RdmaRead,
                    WrOpcode::AtomicFetchAndAdd,
                ][story.below(4) as usize]
                    .code(),
                signaled: true,
                num_sge: story.below(6) as u8,
                remote_addr: va + story.below(4096),
                rkey: key,
                length: story.below(20_000) as u32,
                index: story.below(40) as u16,
                ..SendWqe::default()
            };
            let sge = Sge { addr: va, length: story.below(9000) as u32, lkey: key };
            bytes[..32].copy_from_slice(&wqe.pack());
            for sge_at in [32, 48, 64, 80] {
                bytes[sge_at..sge_at + 16].copy_from_slice(&sge.pack());
            }
        }
        let (ring, bytes) = if story.below(4) == 0 { (receives, &bytes[..64]) } else { (sends, &bytes[..]) };
        let at = (ring.address + slot * bytes.len() as u64) as *mut u8;
        // SAFETY: a slot of a ring of 16 WQEs of 128 or 64 bytes, mapped as long as its QP lives; nobody holds a reference.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    /// Something bad.
    fn acts(&mut self, story: &mut Story) {
        match story.below(8) {
            0 => {
                let (offset, length) = (story.below(STRIDE), 1 << story.below(9));
                let bytes = story.bytes(length);
                self.store(story, offset, &bytes);
            }
            1 | 2 => {
                let (qpn, producer) = (self.number(story), story.below(1 << 16) as u16);
                if story.below(2) == 0 {
                    let bell = SqDoorbell { qpn, pushed: story.below(2) == 0, producer };
                    self.store(story, doorbell::SQ_OFFSET.into(), &bell.pack());
                } else {
                    self.store(story, doorbell::RQ_OFFSET.into(), &RqDoorbell { qpn, producer }.pack());
                }
            }
            3 => {
                // its own CQ, the other's, the driver's EQ
                let cqn = [self.cq.number(), 0, 1][story.below(3) as usize];
                let (arm, consumer) = (story.below(4) as u8, story.below(1 << 24) as u32);
                self.store(story, doorbell::CQ_OFFSET.into(), &CqDoorbell { cqn, arm, consumer }.pack());
                let eq = EqDoorbell { eqn: story.below(3) as u32, arm: true, consumer };
                self.store(story, doorbell::EQ_OFFSET.into(), &eq.pack());
            }
            4 | 5 => self.scribble(story),
            6 => {
                // a storm
                let qpn = self.queues[0].0.number();
                for producer in 0..64 {
                    let bell = SqDoorbell { qpn, pushed: producer % 2 == 1, producer };
                    self.store(story, doorbell::SQ_OFFSET.into(), &bell.pack());
                }
            }
            _ => {
                // legal: to a receiver that is never ready, and with keys of the other
                let n = story.below(self.queues.len() as u64) as usize;
                let sge = [self.memory.sge(0..2000).expect("inside")];
                let (va, rkey) = self.keys[1];
                let wr = match story.below(3) {
                    0 => SendWr::send(0, &sge),
                    1 => SendWr::write(0, &sge, va, rkey),
                    _ => SendWr::write(0, &sge, self.accomplice.2.addr(), self.accomplice.2.rkey()),
                };
                // full, or in error: as it likes
                let _ = self.queues[n].0.post_send(&[wr.signaled()]);
            }
        }
    }

    /// QPs that have died are replaced, so that the card always has some of its to work on.
    fn renew(&mut self, story: &mut Story, crowd: &Crowd) {
        let n = story.below(self.queues.len() as u64) as usize;
        drop(self.queues.remove(n));
        drop(self.accomplice.0.remove(n));
        self.connect(story, crowd);
    }
}

/// Rounds of the good user's work, with the villain's acts in every microsecond; bits per second.
fn works(
    story: &mut Story,
    crowd: &Crowd,
    pairs: &[Pair],
    villain: &mut Option<Villain>,
    rounds: u32,
) -> f64 {
    let (mut bytes, mut time) = (0, 0);
    for round in 0..rounds {
        if let Some(villain) = villain {
            villain.renew(story, crowd);
        }
        let start = story.now();
        let mut work = crowd.begin(story, pairs, 14);
        while crowd.poll(story, &mut work) {
            assert!(story.now() < start + 50 * MS, "the good user's work does not end");
            if let Some(villain) = villain {
                for _ in 0..10 {
                    villain.acts(story);
                }
            }
            pass(&mut lock(&story.room)).unwrap_or_else(|error| panic!("{error}"));
        }
        time += work.last - start;
        for pair in 0..pairs.len() {
            assert!(work.succeeded(pair), "round {round}: {:?}", [work.error(pair, 0), work.error(pair, 1)]);
            bytes += work.bytes(pair);
        }
        crowd.judge(&work, &format!("round {round}"));
    }
    bytes as f64 * 8.0 / (time as f64 / 1e12)
}

#[test]
fn a_hostile_user_leaves_the_other_its_data_and_half_of_its_throughput() {
    let mut story = Story::unrecorded("two tenants", RoomConfig::example(2, seed()));
    let crowd = Crowd::start(&mut story);
    let pairs = crowd.pairs(&mut story, 3);
    let rounds = std::env::var("VERBENA_ROUNDS").map_or(4, |text| text.parse().expect("a number"));
    let alone = works(&mut story, &crowd, &pairs, &mut None, rounds);
    let mut villain = Some(Villain::enter(&mut story, &crowd, &pairs));
    let beside = works(&mut story, &crowd, &pairs, &mut villain, rounds);
    let refused: Vec<String> = [Reject::DoorbellOwner, Reject::DoorbellUnknown, Reject::DoorbellMalformed]
        .map(|reject| format!("{} {}", reject.name(), story.reject_counter(0, reject)))
        .into();
    println!(
        "alone {:.2} Gb/s, beside a hostile user {:.2} Gb/s; {} of its QPs; {}",
        alone / 1e9,
        beside / 1e9,
        villain.as_ref().map_or(0, |villain| villain.made),
        refused.join(", ")
    );
    assert!(beside * 2.0 >= alone, "less than half is left");
    assert!(story.reject_counter(0, Reject::DoorbellOwner) > 50);
    // what the driver is told of the good user's queues is not drowned
    assert_eq!(story.reject_counter(0, Reject::EqOverflow), 0);
    drop(villain);
    let after = works(&mut story, &crowd, &pairs, &mut None, 2);
    assert!(after * 1.3 >= alone, "{after} after it has gone");
    for card in 0..2 {
        for reject in Reject::ALL {
            story.allow(card, *reject);
        }
    }
    story.no_other_events();
}
