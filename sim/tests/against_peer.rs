//! The card's RTL against the plain-Rust endpoint: random programs of SENDs, WRITEs and READs both ways over a wire that
//! loses, doubles, delays and corrupts. READs ask for bytes that nobody writes, or for the target of the WRITEs before
//! them; then the next work request is fenced. Memory and completions of both ends must be those of the program.
//!
//! `VERBENA_PROGRAMS` says how many (default 300, the bar is 2000: `cargo ci soak`); `VERBENA_SEED` names a single one.

use contract::{PathMtu, Reject, WcOpcode, WcStatus, verbs::access};
use host::{Completion, Operation, RecvWr, SendWr};
use peer::{Address, Landing, QpParams, Region, SendOp, Tuning};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use sim::{
    backend::{lock, pass},
    story::{A, B, Host, MS, Story, US, card_and_peer, usual},
    wire::{Delay, Faults},
};
use std::{collections::BTreeMap, ops::AddAssign};

/// Programs that share a room: each has QPs of its own.
const ROOM: u64 = 25;
const DEFAULT: u64 = 300;
/// Bytes of the region that WRITEs go to, at either end.
const REGION: usize = 1 << 14;
/// Where things are in the card's memory.
const SOURCE: usize = 0;
const TARGET: usize = 256 << 10;
const LANDING: usize = 512 << 10;
const READABLE: usize = 768 << 10;
const READS: usize = 800 << 10;
const VA: u64 = 0x7fff_1234_5003;
const CARD_MAC: u64 = 0x0200_0000_000a;

struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }
    fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
    /// Cuts `length` into one to four parts.
    fn cut(&mut self, length: usize) -> Vec<usize> {
        let mut parts = Vec::new();
        let mut left = length;
        for _ in 0..self.below(4) {
            let part = self.below(left as u64 + 1) as usize;
            parts.push(part);
            left -= part;
        }
        parts.push(left);
        parts
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    /// At this offset of the target.
    Write(usize),
    /// From this offset of the target.
    ReadTarget(usize),
    /// From this offset of what nobody writes.
    Read(usize),
}

#[derive(Clone, Debug)]
struct Work {
    wr_id: u64,
    kind: Kind,
    /// What is sent; of a READ, what must come.
    data: Vec<u8>,
    imm: Option<u32>,
    signaled: bool,
    fence: bool,
}

/// Opcode, message (empty for a WRITE), length, immediate.
type Received = (WcOpcode, Vec<u8>, u32, Option<u32>);

#[derive(Default)]
struct Plan {
    work: Vec<Work>,
    memory: Vec<u8>,
    /// What the other end lets read.
    readable: Vec<u8>,
    sends: Vec<u64>,
    receives: Vec<Received>,
    /// Bytes offered by each receive.
    rooms: Vec<usize>,
    late: usize,
}

fn plan(dice: &mut Dice, mtu: u64) -> Plan {
    let mut plan = Plan { memory: vec![0; REGION], readable: dice.bytes(REGION), ..Plan::default() };
    // as a packet's data below
    plan.readable.iter_mut().for_each(|byte| *byte = *byte & 0x0f | 0xb0);
    let count = 1 + dice.below(8);
    let mut fence = false;
    for wr_id in 0..count {
        let length = match dice.below(8) {
            0 => 0,
            1 => 1,
            2 => mtu - 1,
            3 => mtu,
            4 => mtu + 1,
            _ => dice.below(6 * mtu),
        } as usize;
        let mut data = dice.bytes(length);
        // A packet of one or two bytes and its pad looks like an EtherType to Wireshark, which then decodes nonsense: 0xb?b?
        // is none.
        let tail = length % mtu as usize;
        if (1..=2).contains(&tail) {
            data[length - tail..].iter_mut().for_each(|byte| *byte = *byte & 0x0f | 0xb0);
        }
        let imm = dice.percent(30).then(|| dice.below(1 << 32) as u32);
        let at = dice.below((REGION - length) as u64 + 1) as usize;
        let kind = match dice.below(6) {
            0 | 1 => Kind::Send,
            2 | 3 => Kind::Write(at),
            4 => Kind::Read(at),
            _ => Kind::ReadTarget(at),
        };
        let fence_now = fence || dice.percent(5);
        fence = matches!(kind, Kind::ReadTarget(_));
        match kind {
            Kind::Send => plan.receives.push((WcOpcode::Recv, data.clone(), length as u32, imm)),
            Kind::Read(at) => data.copy_from_slice(&plan.readable[at..at + length]),
            Kind::ReadTarget(at) => data.copy_from_slice(&plan.memory[at..at + length]),
            Kind::Write(at) => {
                plan.memory[at..at + length].copy_from_slice(&data);
                if imm.is_some() {
                    plan.receives.push((WcOpcode::RecvRdmaWithImm, Vec::new(), length as u32, imm));
                }
            }
        }
        // The last one tells when all are done.
        let signaled = wr_id + 1 == count || dice.percent(70);
        if signaled {
            plan.sends.push(wr_id);
        }
        plan.work.push(Work { wr_id, kind, data, imm, signaled, fence: fence_now });
    }
    plan.rooms = plan.receives.iter().map(|(_, data, ..)| data.len() + dice.below(3) as usize).collect();
    let last = plan.rooms.len() as u64;
    plan.late = if dice.percent(40) { dice.below(last + 1) as usize } else { plan.rooms.len() };
    plan
}

/// What was provoked, by name.
#[derive(Default)]
struct Troubles(BTreeMap<&'static str, u64>);

impl AddAssign for Troubles {
    fn add_assign(&mut self, other: Self) {
        for (name, count) in other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }
}

/// Runs one program; gives the card's host back for the next.
fn program(story: &mut Story, host: Host, seed: u64) -> Host {
    let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
    let mtu = PathMtu::ALL[dice.below(3) as usize];
    let bytes = u64::from(mtu.bytes());
    let plans = [plan(&mut dice, bytes), plan(&mut dice, bytes)];
    let harm = dice.below(8) as f64 / 100.0;
    let faults = Faults {
        loss: harm,
        duplicate: harm,
        corrupt: harm,
        reorder: harm,
        delay: Delay::Time(dice.below(20) * US),
    };
    for side in [A, B] {
        lock(&story.room).change_wire(|wire, _| wire.set_faults(side, faults));
    }
    let tuning = Tuning {
        coalesce_acks: dice.percent(50),
        ack_interval: dice.below(4) as u32,
        ack_req_interval: dice.below(20) as u32,
        window: [0, 1, 2, 5, 128][dice.below(5) as usize],
        mig_req: dice.percent(50),
        nak_behind_rnr: dice.percent(50),
        naks_consume_retries: false,
        seven_retries_is_forever: true,
        ..Tuning::default()
    };
    let depth = [16, 64, 128][dice.below(3) as usize];
    let window = [0, 1, 3, 128][dice.below(4) as usize];
    let end = story.qp(host, |init| {
        init.max_send_wr = depth;
        init.max_inflight = window;
    });
    let peer_psn =
        if dice.percent(50) { 0xff_fff0 + dice.below(16) as u32 } else { dice.below(1 << 24) as u32 };

    // connect
    let depths = [1, 2, 4, 16];
    let depths = [depths[dice.below(4) as usize], depths[dice.below(4) as usize]];
    let (peer_qp, key, readable) = {
        let mut room = lock(&story.room);
        let peer = room.peer();
        let qpn = peer.create_qp(1);
        let access = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
        let bytes = plans[0].readable.clone();
        let readable = peer.register(Region { pd: 1, va: VA, access: access::REMOTE_READ, bytes });
        let key = peer.register(Region { pd: 1, va: VA, access, bytes: vec![0; REGION] });
        let remote = Address { mac: CARD_MAC, ip: [10, 0, 0, 1].into(), qpn: end.qp.number() };
        let params = QpParams {
            path_mtu: mtu,
            rq_psn: end.psn,
            sq_psn: peer_psn,
            timeout: 6,
            min_rnr_timer: 1,
            access: access::REMOTE_WRITE | access::REMOTE_READ,
            max_rd_atomic: depths[1],
            max_dest_rd_atomic: depths[0],
            tuning,
            ..QpParams::to(remote)
        };
        peer.connect(qpn, params).expect("the peer connects");
        (qpn, key, readable)
    };
    let gid = host::Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 2));
    let mut attr = usual(gid, peer_qp, end.psn, peer_psn);
    attr.path_mtu = mtu;
    attr.timeout = 6;
    attr.min_rnr_timer = 1;
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (depths[0], depths[1]);
    end.qp.connect_with(&attr).expect("the card connects");
    end.memory.write(TARGET, &vec![0; REGION]).expect("the region");
    end.memory.write(READABLE, &plans[1].readable).expect("the region");

    // receives: the early ones now
    let mut landing = LANDING;
    let mut landings = Vec::new();
    let mut card_receives = plans[1]
        .rooms
        .iter()
        .enumerate()
        .map(|(i, room)| {
            let mut sges = Vec::new();
            landings.push(landing);
            for part in dice.cut(*room) {
                sges.push(end.memory.sge(landing..landing + part).expect("the landing"));
                landing += part;
            }
            landing += 5;
            (1000 + i as u64, sges)
        })
        .collect::<Vec<_>>()
        .into_iter();
    let mut peer_receives =
        plans[0].rooms.iter().enumerate().map(|(i, room)| (1000 + i as u64, Landing::Owned(*room)));
    let post_card = |(wr_id, sges): (u64, Vec<host::qp::Sge>)| {
        end.qp.post_recv(&[RecvWr::new(wr_id, &sges)]).expect("post a receive");
    };
    let post_peer = |story: &Story, (wr_id, landing)| {
        let wr = peer::RecvWr { wr_id, landing };
        lock(&story.room).peer().post_recv(peer_qp, wr).expect("post a receive");
    };
    card_receives.by_ref().take(plans[1].late).for_each(post_card);
    peer_receives.by_ref().take(plans[0].late).for_each(|receive| post_peer(story, receive));

    // work
    let (mut source, mut landing) = (SOURCE, READS);
    let mut read: Vec<(usize, &[u8])> = Vec::new();
    for work in &plans[0].work {
        let reads = matches!(work.kind, Kind::Read(_) | Kind::ReadTarget(_));
        let place = if reads { &mut landing } else { &mut source };
        let mut sges = Vec::new();
        let mut from = 0;
        for part in dice.cut(work.data.len()) {
            *place += dice.below(9) as usize;
            let bytes = &work.data[from..from + part];
            if reads {
                read.push((*place, bytes));
            } else {
                end.memory.write(*place, bytes).expect("the source");
            }
            sges.push(end.memory.sge(*place..*place + part).expect("the source"));
            (*place, from) = (*place + part, from + part);
        }
        let operation = match (work.kind, work.imm) {
            (Kind::Send, None) => Operation::Send,
            (Kind::Send, Some(imm)) => Operation::SendWithImm(imm),
            (Kind::Write(at), None) => Operation::Write { addr: VA + at as u64, rkey: key },
            (Kind::Write(at), Some(imm)) => Operation::WriteWithImm { addr: VA + at as u64, rkey: key, imm },
            (Kind::ReadTarget(at), _) => Operation::Read { addr: VA + at as u64, rkey: key },
            (Kind::Read(at), _) => Operation::Read { addr: VA + at as u64, rkey: readable },
        };
        let wr = SendWr::new(work.wr_id, operation, &sges);
        let wr = if work.fence { wr.fenced() } else { wr };
        end.qp.post_send(&[if work.signaled { wr.signaled() } else { wr }]).expect("post a send");
    }
    for work in &plans[1].work {
        let va = |at: usize| end.memory.addr() + at as u64;
        let rkey = end.memory.rkey();
        let landing = Landing::Owned(work.data.len());
        let op = match work.kind {
            Kind::Send => SendOp::Send { imm: work.imm },
            Kind::Write(at) => SendOp::Write { va: va(TARGET + at), rkey, imm: work.imm },
            Kind::ReadTarget(at) => SendOp::Read { va: va(TARGET + at), rkey, landing },
            Kind::Read(at) => SendOp::Read { va: va(READABLE + at), rkey, landing },
        };
        let data = if matches!(op, SendOp::Read { .. }) { Vec::new() } else { work.data.clone() };
        let wr = peer::SendWr {
            signaled: work.signaled,
            fence: work.fence,
            ..peer::SendWr::new(work.wr_id, op, data)
        };
        lock(&story.room).peer().post_send(peer_qp, wr).expect("post a send");
    }

    // run
    let (mut card_done, mut peer_done) = (Vec::new(), Vec::new());
    let wanted =
        [plans[0].sends.len() + plans[1].receives.len(), plans[1].sends.len() + plans[0].receives.len()];
    let start = story.now();
    let mut turns = 0;
    loop {
        {
            let mut room = lock(&story.room);
            pass(&mut room).unwrap_or_else(|error| panic!("{error}"));
            peer_done.extend(std::iter::from_fn(|| room.peer().poll_cq()));
        }
        let mut entries = [Completion::default(); 16];
        let count = end.cq.poll(&mut entries).unwrap_or_else(|error| panic!("{error}"));
        card_done.extend_from_slice(&entries[..count]);
        turns += 1;
        if turns % 40 == 0 {
            card_receives.by_ref().take(1).for_each(post_card);
            peer_receives.by_ref().take(1).for_each(|receive| post_peer(story, receive));
        }
        let failed = card_done.iter().any(|c| c.status != WcStatus::Success)
            || peer_done.iter().any(|c| c.status != WcStatus::Success);
        if failed || [card_done.len(), peer_done.len()] == wanted {
            break;
        }
        assert!(
            story.now() - start < 5000 * MS,
            "no end: the card has {card_done:?}\nthe peer has {peer_done:?}\nof {wanted:?}"
        );
    }
    // Whatever is still under way (late duplicates) must change nothing.
    story.wait(MS);

    // judge
    let mut entries = [Completion::default(); 16];
    let count = end.cq.poll(&mut entries).unwrap_or_else(|error| panic!("{error}"));
    card_done.extend_from_slice(&entries[..count]);
    assert!(card_done.iter().all(|c| c.status == WcStatus::Success), "card: {card_done:?}");
    assert!(peer_done.iter().all(|c| c.status == WcStatus::Success), "peer: {peer_done:?}");
    let (card_received, card_sent): (Vec<_>, Vec<_>) =
        card_done.into_iter().partition(Completion::is_receive);
    let sent: Vec<u64> = card_sent.iter().map(|c| c.wr_id).collect();
    assert_eq!(sent, plans[0].sends, "sends of the card");
    assert_eq!(card_received.len(), plans[1].receives.len(), "receives of the card");
    for (i, (c, (opcode, data, length, imm))) in card_received.iter().zip(&plans[1].receives).enumerate() {
        assert_eq!(
            (c.wr_id, c.opcode, c.byte_len, c.imm),
            (1000 + i as u64, *opcode, *length, *imm),
            "receive {i}"
        );
        story.memory_matches(&end.memory, landings[i], data);
    }
    for (at, bytes) in read {
        story.memory_matches(&end.memory, at, bytes);
    }
    story.memory_matches(&end.memory, TARGET, &plans[1].memory);
    let (peer_received, peer_sent): (Vec<_>, Vec<_>) =
        peer_done.into_iter().partition(|c| c.opcode.code() & 0x80 != 0);
    let sent: Vec<u64> = peer_sent.iter().map(|c| c.wr_id).collect();
    assert_eq!(sent, plans[1].sends, "sends of the peer");
    for c in peer_sent.iter().filter(|c| c.opcode == WcOpcode::RdmaRead) {
        assert!(c.data == plans[1].work[c.wr_id as usize].data, "READ {} of the peer differs", c.wr_id);
    }
    let received: Vec<Received> =
        peer_received.into_iter().map(|c| (c.opcode, c.data, c.byte_len, c.imm)).collect();
    assert!(received == plans[0].receives, "receives of the peer differ");
    let mut room = lock(&story.room);
    let memory = room.peer().deregister(key).expect("the region").bytes;
    assert!(memory == plans[0].memory, "memory behind the card's WRITEs differs");
    room.peer().deregister(readable).expect("the region");
    room.peer().destroy_qp(peer_qp).expect("destroy");
    drop(room);
    let sim::story::End { qp, host, .. } = end;
    drop(qp);
    host
}

/// Runs programs with these seeds in one room.
fn programs(name: &str, seeds: std::ops::Range<u64>) -> Troubles {
    let mut story = card_and_peer(name, seeds.start);
    let mut host = story.start(0);
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| program(&mut story, host, seed));
        host = match std::panic::catch_unwind(run) {
            Ok(host) => host,
            Err(_) => panic!(
                "program {seed} differs; alone: VERBENA_SEED={seed} cargo test -p sim --test against_peer"
            ),
        };
    }
    let mut troubles = Troubles::default();
    for reject in Reject::ALL {
        let peer = lock(&story.room).peer().rejects(*reject);
        let card = host.context.device().rejects().expect("the counters");
        let card = card.iter().find(|(name, _)| name == reject).map_or(0, |(_, count)| *count);
        troubles.0.insert(reject.name(), peer + card);
        if peer + card > 0 {
            story.allow(0, *reject);
        }
    }
    story.no_other_events();
    drop(host);
    troubles
}

#[test]
fn random_programs_end_as_written_at_both_ends() {
    let one = std::env::var("VERBENA_SEED").ok().and_then(|text| text.parse().ok());
    if let Some(seed) = one {
        programs(&format!("against_peer_{seed}"), seed..seed + 1);
        return;
    }
    let count = std::env::var("VERBENA_PROGRAMS").ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT);
    sim::story::model();
    let next = std::sync::atomic::AtomicU64::new(0);
    let worker = || {
        let mut troubles = Troubles::default();
        loop {
            let start = next.fetch_add(ROOM, std::sync::atomic::Ordering::Relaxed);
            if start >= count {
                return troubles;
            }
            troubles += programs(&format!("against_peer_{start}"), start..(start + ROOM).min(count));
        }
    };
    let mut all = Troubles::default();
    std::thread::scope(|scope| {
        let workers = [scope.spawn(worker), scope.spawn(worker)];
        for worker in workers {
            match worker.join() {
                Ok(troubles) => all += troubles,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    println!(
        "{count} programs, 0 differences; provoked: {:?}",
        all.0.iter().filter(|(_, n)| **n > 0).collect::<Vec<_>>()
    );
    for reject in [
        Reject::BadFcs,
        Reject::PsnOutOfSequence,
        Reject::PsnOutOfSequenceRepeat,
        Reject::Duplicate,
        Reject::ReceiverNotReady,
    ] {
        assert!(count < 100 || all.0[reject.name()] > 10, "too little {} to prove anything", reject.name());
    }
}
