//! Everything is torn down under full traffic both ways, many times: `VERBENA_TEARDOWNS` of each kind, else 20.
//!
//! Each time: two QPs in the midst of WRITEs, READs, SENDs and atomics both ways, beside two whose work must succeed;
//! something of theirs goes; at the instant at which the driver's call has returned the memory concerned is
//! unmapped, so that any later access of the card is a fault of the IOMMU, which fails the story; then all is made again.
//! At the end: what was sent is what the other side's counters saw, no read is without an end.
//!
//! Requirements: CMD CARD

#[path = "library/mod.rs"]
mod library;

use contract::{Opcode, QpState, Reject, StageCounter};
use host::{Access, AttrMask, Completion, Cq, Mr, Qp, QpAttr, QpInit, RecvWr, SendWr};
use library::{Library, THEM};
use pcie_sim::{Event, config::Enumeration};
use sim::{
    backend::lock,
    room::RoomConfig,
    story::{B, Host, MS, Story, US, seed, usual},
};

/// Bytes of memory of each end under traffic.
const BYTES: usize = 256 << 10;
/// Longest time of a teardown: a read's completion timeout, and a little.
const BOUND: u64 = 150 * US;

fn times(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

fn teardowns() -> usize {
    times("VERBENA_TEARDOWNS", 20)
}

/// One side: a driver, a QP that is torn down with what it uses, and one that is not.
struct Side {
    host: Host,
    qp: Option<Qp>,
    cq: Option<Cq>,
    memory: Option<Mr>,
    bystander: Qp,
}

impl Side {
    fn start(story: &mut Story, card: usize) -> Side {
        let host = story.start(card);
        let bystander = host.pd.create_qp(&QpInit::rc(&host.cq, &host.cq)).expect("create a QP");
        Side { host, qp: None, cq: None, memory: None, bystander }
    }

    /// Makes what is missing.
    fn complete(&mut self) {
        let host = &self.host;
        self.memory.get_or_insert_with(|| host.pd.allocate(BYTES, everything()).expect("allocate"));
        let cq = self.cq.get_or_insert_with(|| host.context.create_cq(256, None).expect("create a CQ"));
        drain(cq);
        let init = QpInit { max_send_sge: 4, ..QpInit::rc(cq, cq) };
        self.qp.get_or_insert_with(|| host.pd.create_qp(&init).expect("create a QP"));
    }

    fn qp(&self) -> &Qp {
        self.qp.as_ref().expect("a QP")
    }

    fn memory(&self) -> &Mr {
        self.memory.as_ref().expect("memory")
    }

    /// Work both ways for some 60 us.
    fn post(&self, other: &Side) {
        let sge = |from: usize, length: usize| [self.memory().sge(from..from + length).expect("inside")];
        for i in 0..6 {
            let into = sge(200_000 + i * 4096, 4096);
            self.qp().post_recv(&[RecvWr::new(i as u64, &into)]).expect("post a receive");
        }
        let (addr, rkey) = (other.memory().addr(), other.memory().rkey());
        let post = |wr: SendWr<'_>| self.qp().post_send(&[wr.signaled()]).expect("post");
        for i in 0..6 {
            post(SendWr::write(0, &sge(0, 9000), addr + 100_000, rkey));
            post(SendWr::read(1, &sge(120_000, 9000), addr, rkey));
            post(SendWr::send(2, &sge(i * 100, 3000)));
            post(SendWr::fetch_add(3, &sge(180_000, 8), addr + 190_000, rkey, 1));
        }
    }
}

fn everything() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// Takes what a CQ holds.
fn drain(cq: &Cq) {
    let mut entries = [Completion::default(); 64];
    while cq.poll(&mut entries).expect("poll") > 0 {}
}

fn reset(qp: &Qp) {
    qp.modify(&QpAttr { state: QpState::Reset, ..QpAttr::default() }, AttrMask::STATE).expect("to RESET");
}

/// Connects a QP of each side, whatever state they are in.
fn join(story: &mut Story, sides: &[Side], qp: impl Fn(&Side) -> &Qp) {
    let psn = [story.below(1 << 24) as u32, story.below(1 << 24) as u32];
    for (i, side) in sides.iter().enumerate() {
        if qp(side).state() != QpState::Reset {
            reset(qp(side));
        }
        let other = &sides[1 - i];
        let attr = usual(other.host.context.gids()[0], qp(other).number(), psn[i], psn[1 - i]);
        qp(side).connect_with(&QpAttr { timeout: 8, ..attr }).expect("connect");
    }
}

/// A frame that a reset cut short is completed by what follows it, and dropped by the peer: whatever it looks like.
const CUT: &[Reject] = &[
    Reject::BadIcrc,
    Reject::BadIpHeader,
    Reject::BadUdpLength,
    Reject::NotRoce,
    Reject::Oversize,
    Reject::Runt,
];

/// Two sides, and what was seen of them.
struct Stage {
    name: &'static str,
    story: Story,
    sides: Vec<Side>,
    /// Longest teardown so far, in ps.
    worst: u64,
    count: u64,
}

impl Stage {
    fn open(name: &'static str) -> Stage {
        let mut story = Story::unrecorded(name, RoomConfig::example(2, seed()));
        story.hosts_are_impatient();
        let sides = vec![Side::start(&mut story, 0), Side::start(&mut story, 1)];
        join(&mut story, &sides, |side| &side.bystander);
        (0..2).for_each(|card| drop(story.takes_events(card)));
        Stage { name, story, sides, worst: 0, count: 0 }
    }

    /// Makes what is missing, connects, fills both lines, and waits until it is a good time for harm.
    fn traffic(&mut self) {
        self.count += 1;
        self.sides.iter_mut().for_each(Side::complete);
        join(&mut self.story, &self.sides, Side::qp);
        let [a, b] = &self.sides[..] else { unreachable!("two sides") };
        a.post(b);
        b.post(a);
        // those who stay have work, too
        let bytes = self.story.bytes(12_000);
        for (me, other) in [(a, b), (b, a)] {
            me.host.memory.write(0, &bytes).expect("inside");
            other.host.memory.write(100_000, &[0; 12_000]).expect("inside");
            let sge = [me.host.memory.sge(0..12_000).expect("inside")];
            let to = other.host.memory.addr() + 100_000;
            let wr = SendWr::write(self.count, &sge, to, other.host.memory.rkey());
            me.bystander.post_send(&[wr.signaled()]).expect("post");
        }
        let later = 4 * US + self.story.below(30 * US);
        self.story.wait(later);
    }

    /// Does it, and takes the time.
    fn tears(&mut self, what: impl FnOnce(&mut Stage)) {
        let start = self.story.now();
        what(self);
        self.worst = self.worst.max(self.story.now() - start);
    }

    /// For a while nothing touches the memory of a side.
    fn memory_is_left_alone(&mut self, side: usize) {
        let memory = self.sides[side].memory.as_ref().expect("memory");
        let mapping = self.story.iommu_forgets(side, memory);
        self.story.wait(10 * US);
        // SAFETY: the region is registered.
        unsafe { self.story.iommu_remembers(side, mapping) };
    }

    /// The work of those who stay has succeeded.
    fn bystanders_succeed(&mut self) {
        for i in 0..2 {
            self.story.completes(&self.sides[i].host, self.count);
            let bytes = self.sides[1 - i].host.memory.to_vec(0..12_000).expect("inside");
            self.story.memory_matches(&self.sides[i].host.memory, 100_000, &bytes);
        }
    }

    /// A new driver in the place of one that may do no more.
    fn starts_anew(&mut self, card: usize, gone: Side) {
        // what is left of the driver touches the card no more: its context is closed first
        gone.host.context.clone().close().expect("close");
        drop(gone);
        self.story.wait(10 * US);
        let side = Side::start(&mut self.story, card);
        self.sides.insert(card, side);
        let events = self.story.takes_events(card);
        let reset = |e: &Event| matches!(e, Event::ResetStarted { .. } | Event::ResetDone { .. });
        assert!(events.iter().all(reset), "{}: {events:?}", self.name);
        join(&mut self.story, &self.sides, |side| &side.bystander);
        self.sides.iter().for_each(|side| drain(&side.host.cq));
    }

    /// All comes to rest, no read is without an end; with `counters`, each saw what the other sent.
    fn close(mut self, more: &[Reject], counters: bool) {
        let name = self.name;
        for side in &mut self.sides {
            side.qp = None;
        }
        assert!(self.story.comes_to_rest(100 * MS), "{name}: the room does not come to rest");
        for card in 0..2 {
            let owed = lock(&self.story.room).cards()[card].root().card_outstanding();
            assert_eq!(owed, 0, "{name}: reads of card {card} without an end");
            if counters {
                let sent = self.story.stage_counter(card, StageCounter::TxFrames);
                let seen = self.story.stage_counter(1 - card, StageCounter::RxFrames);
                assert_eq!(sent, seen, "{name}: frames from card {card}");
            }
        }
        println!("{name}: {} times, the longest {} us", self.count, self.worst / US);
        assert!(self.worst < BOUND, "{name}: {} us", self.worst / US);
        self.story.allow_aftermath(more);
        self.story.no_other_events();
    }
}

#[test]
fn a_qp_that_is_destroyed_under_traffic_touches_nothing_afterwards() {
    let mut stage = Stage::open("destroy QP");
    for i in 0..teardowns() {
        stage.traffic();
        for side in [i % 2, 1 - i % 2] {
            stage.tears(|stage| stage.sides[side].qp = None);
            stage.memory_is_left_alone(side);
        }
        stage.bystanders_succeed();
    }
    stage.close(&[], true);
}

#[test]
fn a_qp_that_is_reset_under_traffic_touches_nothing_afterwards_and_works_again() {
    let mut stage = Stage::open("RESET");
    for i in 0..teardowns() {
        stage.traffic();
        for side in [i % 2, 1 - i % 2] {
            stage.tears(|stage| reset(stage.sides[side].qp()));
            stage.memory_is_left_alone(side);
        }
        stage.bystanders_succeed();
    }
    stage.close(&[], true);
}

#[test]
fn a_cq_that_is_destroyed_under_traffic_is_written_no_more() {
    let mut stage = Stage::open("destroy CQ");
    for i in 0..teardowns() {
        stage.traffic();
        // its QP goes first, as the verbs ask; the driver unmaps the ring when the command has returned
        let side = i % 2;
        stage.sides[side].qp = None;
        stage.tears(|stage| stage.sides[side].cq = None);
        stage.story.wait(10 * US);
        stage.bystanders_succeed();
    }
    stage.close(&[], true);
}

#[test]
fn a_region_that_is_deregistered_under_traffic_is_touched_no_more() {
    let mut stage = Stage::open("destroy MR");
    for i in 0..teardowns() {
        stage.traffic();
        // used by work of both sides; unmapped by the driver when the command has returned
        let side = i % 2;
        stage.tears(|stage| stage.sides[side].memory = None);
        stage.story.wait(10 * US);
        stage.bystanders_succeed();
    }
    let keys = [Reject::SglKey, Reject::LkeyBad, Reject::RkeyUnknown, Reject::RkeyTag, Reject::RkeyBounds];
    stage.close(&keys, true);
}

#[test]
fn memory_that_the_iommu_forgets_under_traffic_fails_its_users_alone() {
    let mut stage = Stage::open("IOMMU fault");
    let mut faults = 0;
    for i in 0..teardowns() {
        stage.traffic();
        let side = i % 2;
        let mapping = stage.story.iommu_forgets(side, stage.sides[side].memory());
        stage.story.wait(20 * US);
        stage.tears(|stage| stage.sides[side].qp = None);
        let events = stage.story.takes_events(side);
        let fault = |e: &Event| matches!(e, Event::ReadFault { .. } | Event::WriteFault { .. });
        assert!(events.iter().all(fault), "{events:?}");
        faults += events.len();
        // SAFETY: the region is registered.
        unsafe { stage.story.iommu_remembers(side, mapping) };
        stage.bystanders_succeed();
    }
    assert!(faults > teardowns(), "{faults} faults");
    stage.close(&[Reject::CompletionUr, Reject::GatherFailed], true);
}

#[test]
fn a_pcie_link_that_goes_down_under_traffic_fails_what_was_under_way_and_no_more() {
    let mut stage = Stage::open("PCIe link down");
    for i in 0..teardowns() {
        stage.traffic();
        let side = i % 2;
        lock(&stage.story.room).host(side, |root, now| root.set_link(now, false));
        let dark = US + stage.story.below(20 * US);
        stage.story.wait(dark);
        lock(&stage.story.room).host(side, |root, now| root.set_link(now, true));
        // nobody reset anything: the same driver takes the QP down
        stage.tears(|stage| stage.sides[side].qp = None);
        stage.memory_is_left_alone(side);
        let events = stage.story.takes_events(side);
        assert!(events.iter().all(|e| matches!(e, Event::Link { .. })), "{events:?}");
        // completions that were on their way are lost, and their CQs wait for them until they overflow
        let gone = stage.sides.remove(side);
        stage.starts_anew(side, gone);
    }
    let lost = [
        Reject::CompletionTimeout,
        Reject::CompletionUnexpected,
        Reject::GatherFailed,
        Reject::SqFetchFailed,
        Reject::WqeFetchFailed,
        Reject::BufferFull,
    ];
    stage.close(&[&lost[..], CUT].concat(), false);
}

/// Card 0 loses its driver in the midst of traffic by `how`, and gets a new one.
fn restarts(name: &'static str, how: impl Fn(&mut Story, usize)) {
    let mut stage = Stage::open(name);
    for i in 0..teardowns() {
        stage.traffic();
        let gone = stage.sides.remove(0);
        let start = stage.story.now();
        how(&mut stage.story, i);
        stage.worst = stage.worst.max(stage.story.now() - start);
        stage.starts_anew(0, gone);
    }
    stage.traffic();
    stage.bystanders_succeed();
    stage.close(CUT, false);
}

/// Until the function is out of its reset.
fn comes_out_of_reset(story: &Story) {
    let mut room = lock(&story.room);
    let limit = room.now() + MS;
    let done = room.run_until(limit, |room| {
        room.attend();
        !room.is_resetting(0)
    });
    assert!(done.expect("the model runs"), "the reset does not end");
}

#[test]
fn a_function_level_reset_under_traffic_ends_every_access() {
    restarts("FLR", |story, i| {
        if i % 2 == 0 {
            // bus mastering on, nobody warned
            lock(&story.room).start_reset(0);
            comes_out_of_reset(story);
            lock(&story.room).host(0, |root, _| root.memory_mut().clear());
        }
    });
}

#[test]
fn a_process_that_dies_in_mid_message_leaves_a_card_for_the_next() {
    restarts("process gone", |story, _| {
        lock(&story.room).client_is_gone(0);
        comes_out_of_reset(story);
        lock(&story.room).host(0, |root, now| root.enumerate(now, &Enumeration::default()));
        story.hosts_are_impatient();
        // what was on its way when the memory went found none: never later
        let fault = |e: &Event| {
            matches!(
                e,
                Event::ReadFault { .. }
                    | Event::WriteFault { .. }
                    | Event::ResetStarted { .. }
                    | Event::ResetDone { .. }
            )
        };
        let events = story.takes_events(0);
        assert!(events.iter().all(fault), "{events:?}");
    });
}

#[test]
fn qps_come_and_go_while_packets_of_old_ones_still_arrive() {
    let count = times("VERBENA_QPS", 300);
    let library = Library::quietly("QPs come and go");
    let host = library.end.host;
    drop(library.end.qp);
    let memory = library.memory;
    let init = QpInit::rc(&host.cq, &host.cq);
    let mut old: Vec<(u32, u32)> = vec![];
    let write = |story: &Story, template: &peer::Packet, qpn: u32, psn: u32, at: usize, byte: u8| {
        let mut packet = template.clone();
        packet.bth.opcode = Opcode::RcWriteOnly.code();
        (packet.bth.psn, packet.bth.dest_qp, packet.bth.ack_req) = (psn, qpn, true);
        let va = memory.addr() + at as u64;
        packet.reth = Some(contract::Reth { va, rkey: memory.rkey(), dma_length: 256 });
        packet.payload = vec![byte; 256];
        lock(&story.room).inject(B, &packet.build()).expect("inject");
    };
    let mut story = library.story;
    let mut numbers = std::collections::BTreeSet::new();
    for i in 0..count {
        let psn = story.below(1 << 24) as u32;
        let qp = host.pd.create_qp(&init).expect("create a QP");
        numbers.insert(qp.number());
        // what still comes for those before it
        for (n, (qpn, psn)) in old.iter().rev().take(3).enumerate() {
            write(&story, &library.template, *qpn, *psn, 4096 * (n + 1), 0xee);
        }
        qp.connect_with(&usual(THEM.into(), 7, 5, psn)).expect("connect");
        memory.write(0, &[0x11; 256]).expect("inside");
        write(&story, &library.template, qp.number(), psn, 0, i as u8);
        story.wait(3 * US);
        story.memory_matches(&memory, 0, &[i as u8; 256]);
        // it goes in the midst of more
        for n in 1..4 {
            write(&story, &library.template, qp.number(), contract::wire::psn_add(psn, n), 0, 0xdd);
        }
        let later = story.below(2 * US);
        story.wait(later);
        old.push((qp.number(), contract::wire::psn_add(psn, 4)));
        drop(qp);
        memory.write(0, &[0x77; 256]).expect("inside");
        story.wait(2 * US);
        story.memory_matches(&memory, 0, &[0x77; 256]);
    }
    // nothing of those that were gone has arrived
    story.memory_matches(&memory, 4096, &[0; 16384]);
    println!("{count} QPs under {} numbers", numbers.len());
    for reject in [
        Reject::UnknownQp,
        Reject::WrongQpState,
        Reject::Duplicate,
        Reject::PsnOutOfSequence,
        Reject::PsnOutOfSequenceRepeat,
    ] {
        story.allow(0, reject);
    }
    assert!(story.comes_to_rest(MS));
    story.no_other_events();
}
