//! Random programs over a hostile wire: whatever is lost, doubled, reordered or corrupted, memory and completions are
//! those of the program.

mod common;

use common::*;
use contract::verbs::access;
use contract::{PathMtu, Reject, WcOpcode, WcStatus};
use peer::{Landing, RecvWr, Region, SendOp, SendWr, Tuning};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const REGION: usize = 1 << 14;
const VA: u64 = 0x7fff_1234_5003;

/// What the wire and late receives must have provoked over all seeds.
const TROUBLES: [Reject; 7] = [
    Reject::BadIcrc,
    Reject::BadIpHeader,
    Reject::PsnOutOfSequence,
    Reject::PsnOutOfSequenceRepeat,
    Reject::Duplicate,
    Reject::ReceiverNotReady,
    Reject::ResponseStale,
];

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
}

/// Opcode, message, length, immediate, solicited.
type Received = (WcOpcode, Vec<u8>, u32, Option<u32>, bool);

/// What one direction of a program must leave behind.
#[derive(Default)]
struct Expected {
    memory: Vec<u8>,
    sends: Vec<u64>,
    receives: Vec<Received>,
}

/// Runs one program; gives how often each kind of trouble happened in it.
fn program(seed: u64) -> [u64; TROUBLES.len() + 1] {
    let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
    let mtu = PathMtu::ALL[dice.below(3) as usize];
    let psns = [dice.below(1 << 24) as u32, 0xff_fff0 + dice.below(16) as u32];
    let tuning = Tuning {
        coalesce_acks: dice.percent(50),
        ack_interval: dice.below(4) as u32,
        ack_req_interval: dice.below(20) as u32,
        window: [0, 1, 2, 5, 128][dice.below(5) as usize],
        mig_req: dice.percent(50),
        nak_behind_rnr: dice.percent(50),
        naks_consume_retries: true,
        seven_retries_is_forever: true,
        replays_continue: dice.percent(50),
    };
    let mut pair = Pair::connected(|side, params| {
        params.path_mtu = mtu;
        params.timeout = 6;
        params.min_rnr_timer = 1;
        params.tuning = tuning;
        let (sq, rq) = if side == A { (0, 1) } else { (1, 0) };
        params.sq_psn = psns[sq];
        params.rq_psn = psns[rq];
    });
    let access = access::LOCAL_WRITE | access::REMOTE_WRITE;
    let region = || Region { pd: 1, va: VA, access, bytes: vec![0; REGION] };
    let keys = [pair.a.register(region()), pair.b.register(region())];
    let qpns = [pair.qa, pair.qb];
    let mut expected = [Expected::default(), Expected::default()];
    let mut late = [Vec::new(), Vec::new()];
    for (from, side, other) in [(0, A, B), (1, B, A)] {
        let to = 1 - from;
        expected[from].memory = vec![0; REGION];
        for wr_id in 0..1 + dice.below(16) {
            let m = u64::from(mtu.bytes());
            let length = match dice.below(8) {
                0 => 0,
                1 => 1,
                2 => m - 1,
                3 => m,
                4 => m + 1,
                _ => dice.below(8 * m),
            } as usize;
            let data = dice.bytes(length);
            let imm = dice.percent(30).then(|| dice.below(1 << 32) as u32);
            let mut receives = |opcode, data: Vec<u8>, solicited| {
                expected[from].receives.push((opcode, data, length as u32, imm, solicited));
            };
            let solicited = dice.percent(20);
            let op = if dice.percent(50) {
                receives(WcOpcode::Recv, data.clone(), solicited);
                SendOp::Send { imm }
            } else {
                let at = dice.below((REGION - length) as u64 + 1);
                if imm.is_some() {
                    receives(WcOpcode::RecvRdmaWithImm, Vec::new(), solicited);
                }
                expected[from].memory[at as usize..at as usize + length].copy_from_slice(&data);
                SendOp::Write { va: VA + at, rkey: keys[to], imm }
            };
            let signaled = dice.percent(70);
            if signaled {
                expected[from].sends.push(wr_id);
            }
            pair.end(side)
                .post_send(qpns[from], SendWr { signaled, solicited, ..SendWr::new(wr_id, op, data) })
                .expect("post");
        }
        for (i, (_, _, length, ..)) in expected[from].receives.iter().enumerate() {
            let landing = Landing::Owned(*length as usize + dice.below(3) as usize);
            let wr = RecvWr { wr_id: 1000 + i as u64, landing };
            if late[to].is_empty() && dice.percent(70) {
                pair.end(other).post_recv(qpns[to], wr).expect("post");
            } else {
                late[to].push(wr);
            }
        }
        late[to].reverse();
    }
    let harm = dice.below(8);
    let mut wire = |_, _, mut bytes: Vec<u8>| {
        let mut fate = Vec::new();
        if dice.percent(harm) {
            return fate;
        }
        let delay = |dice: &mut Dice| if dice.percent(harm) { dice.below(20 * DELAY) } else { 0 };
        if dice.percent(harm) {
            fate.push((delay(&mut dice), bytes.clone()));
        }
        if dice.percent(harm) {
            let bit = dice.below(bytes.len() as u64 * 8);
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
        fate.push((delay(&mut dice), bytes));
        fate
    };
    let mut until = 0;
    loop {
        until += 50 * DELAY;
        pair.run(until, &mut wire);
        let mut waits = false;
        for (i, side) in [(0, A), (1, B)] {
            if let Some(wr) = late[i].pop() {
                pair.end(side).post_recv(qpns[i], wr).expect("post");
                waits = true;
            }
        }
        if !waits && pair.a.is_idle(qpns[0]) && pair.b.is_idle(qpns[1]) {
            break;
        }
        assert!(until < 1_000_000 * DELAY, "no end after a second of simulated time");
    }
    // Whatever is still under way (late duplicates) must change nothing.
    pair.run(until + 1000 * DELAY, &mut wire);
    for (from, side, other) in [(0, A, B), (1, B, A)] {
        let memory = &pair.end(other).region(keys[1 - from]).expect("region").bytes;
        assert!(*memory == expected[from].memory, "memory behind {side:?}'s writes differs");
    }
    for (from, side) in [(0, A), (1, B)] {
        let all = pair.completions(side);
        assert!(all.iter().all(|c| c.status == WcStatus::Success), "{side:?}: a completion failed");
        let (sends, receives): (Vec<_>, Vec<_>) = all.into_iter().partition(|c| c.opcode.code() < 128);
        assert_eq!(sends.iter().map(|c| c.wr_id).collect::<Vec<_>>(), expected[from].sends, "{side:?} sends");
        let receives: Vec<_> = receives
            .into_iter()
            .enumerate()
            .map(|(i, c)| {
                assert_eq!(c.wr_id, 1000 + i as u64, "{side:?}: receives out of order");
                (c.opcode, c.data, c.byte_len, c.imm, c.solicited)
            })
            .collect();
        assert!(receives == expected[1 - from].receives, "{side:?}: receives differ");
    }
    let mut troubles = [0; TROUBLES.len() + 1];
    for (count, reject) in troubles.iter_mut().zip(TROUBLES) {
        *count = pair.a.rejects(reject) + pair.b.rejects(reject);
    }
    troubles[TROUBLES.len()] = pair.a.retransmits(qpns[0]) + pair.b.retransmits(qpns[1]);
    troubles
}

#[test]
fn random_programs_over_a_hostile_wire_end_as_written() {
    let mut all = [0; TROUBLES.len() + 1];
    for seed in 0..400 {
        let outcome = std::panic::catch_unwind(|| program(seed));
        let Ok(troubles) = outcome else { panic!("seed {seed} failed") };
        all.iter_mut().zip(troubles).for_each(|(sum, count)| *sum += count);
    }
    assert!(
        all.iter().all(|count| *count > 100),
        "too little trouble to prove anything: {TROUBLES:?} {all:?}"
    );
}
