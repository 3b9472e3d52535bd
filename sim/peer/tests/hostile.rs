//! Frames from a hostile neighbour: well-checksummed nonsense changes no memory it may not, and stops nothing else.

mod common;

use common::*;
use contract::verbs::access;
use contract::{Opcode, QpState};
use peer::{Packet, QpParams, Region, SendOp, SendWr};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Flips a few bits from the BTH on and repairs the ICRC, so that the frame reaches the transport.
fn mangle(dice: &mut ChaCha8Rng, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let icrc = frame.len() - 4;
    for _ in 0..1 + dice.next_u64() % 4 {
        let at = 42 + (dice.next_u64() as usize) % (icrc - 42).min(32);
        frame[at] ^= 1 << (dice.next_u64() % 8);
    }
    if dice.next_u64().is_multiple_of(2) {
        let all = Opcode::ALL;
        frame[42] = all[dice.next_u64() as usize % all.len()].code();
    }
    let repaired = contract::crc::icrc(&frame[14..icrc]).expect("IP");
    frame[icrc..].copy_from_slice(&repaired);
    frame
}

/// What no peer may see.
const SECRET: u8 = 0x5b;

#[test]
fn mangled_frames_never_panic_never_leave_their_rights_and_other_pairs_live_on() {
    for seed in 0..200 {
        let mut dice = ChaCha8Rng::seed_from_u64(seed);
        let mut pair = Pair::open(|_, _| {});
        // A second pair of QPs between the same ends, in another protection domain.
        let (qa, qb) = (pair.a.create_qp(2), pair.b.create_qp(2));
        pair.a.connect(qa, QpParams::to(pair.b.address(qb))).expect("connect");
        pair.b.connect(qb, QpParams::to(pair.a.address(qa))).expect("connect");
        let mut region =
            |pd, access, byte| pair.b.register(Region { pd, va: 0, access, bytes: vec![byte; 4096] });
        let open = region(1, ALL, 0);
        let foreign = region(2, ALL, SECRET);
        let readable = region(1, access::REMOTE_READ, 0);
        let writable = region(1, access::REMOTE_WRITE, SECRET);
        for wr_id in 0..8 {
            pair.recv(wr_id, 3000);
            pair.send(wr_id, vec![1; 200 * wr_id as usize]);
            pair.write(wr_id, open, 100, vec![2; 300 * wr_id as usize]);
            pair.read(wr_id, open, 7, 400 * wr_id as usize);
            pair.fetch_add(wr_id, open, 8 * wr_id, 1);
            pair.read(wr_id, readable, 0, 16);
            pair.write(wr_id, writable, 4000, small(3));
        }
        let victims = [pair.qa, pair.qb];
        let end = pair.now + 3000 * DELAY;
        pair.run(end, &mut |from, _, bytes| {
            let packet = Packet::parse(&bytes).expect("well-formed");
            if from == B {
                let read = packet.payload.chunks(8).any(|piece| *piece == [SECRET; 8]);
                let original = packet.atomic_ack.map(|ack| ack.original.to_le_bytes());
                assert!(!read && original != Some([SECRET; 8]), "seed {seed}: a secret was told");
            }
            match victims.contains(&packet.bth.dest_qp) && dice.next_u64().is_multiple_of(4) {
                // Only frames for the pair under attack are touched, and none becomes one for the other pair.
                true => {
                    let bad = mangle(&mut dice, &bytes);
                    let aim = Packet::parse(&bad).map_or(0, |p| p.bth.dest_qp);
                    if [qa, qb].contains(&aim) { vec![] } else { vec![(0, bad), (5 * DELAY, bytes)] }
                }
                false => vec![(0, bytes)],
            }
        });
        for (key, byte) in [(foreign, SECRET), (readable, 0)] {
            let untouched = pair.b.region(key).expect("region").bytes.iter().all(|found| *found == byte);
            assert!(untouched, "seed {seed}: a region without the right was written");
        }
        assert!(pair.b.is_valid(foreign), "seed {seed}: a foreign key was invalidated");
        let op = SendOp::Write { va: 7, rkey: foreign, imm: None };
        pair.a.post_send(qa, SendWr::new(99, op, pattern(2000))).expect("post");
        let end = pair.now + 100 * DELAY;
        pair.run(end, &mut clean);
        assert_eq!(pair.b.region(foreign).expect("region").bytes[7..2007], pattern(2000), "seed {seed}");
        assert_eq!(
            (pair.a.state(qa), pair.b.state(qb)),
            (Some(QpState::Rts), Some(QpState::Rts)),
            "seed {seed}"
        );
    }
}

#[test]
fn random_bytes_are_refused_without_an_answer() {
    let mut dice = ChaCha8Rng::seed_from_u64(1);
    let mut pair = Pair::connected(|_, _| {});
    for _ in 0..20_000 {
        let mut frame = vec![0; dice.next_u64() as usize % 200];
        dice.fill_bytes(&mut frame);
        assert!(pair.b.receive(0, &frame).is_some());
    }
    assert_eq!(pair.b.poll_transmit(0), None);
}
