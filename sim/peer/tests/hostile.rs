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

#[test]
fn mangled_frames_never_panic_never_leave_their_rights_and_other_pairs_live_on() {
    for seed in 0..200 {
        let mut dice = ChaCha8Rng::seed_from_u64(seed);
        let mut pair = Pair::connected(|_, _| {});
        // A second pair of QPs between the same ends, in another protection domain.
        let (qa, qb) = (pair.a.create_qp(2), pair.b.create_qp(2));
        pair.a.connect(qa, QpParams::to(pair.b.address(qb))).expect("connect");
        pair.b.connect(qb, QpParams::to(pair.a.address(qa))).expect("connect");
        let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
        let open = pair.b.register(Region { pd: 1, va: 0, access: rights, bytes: vec![0; 4096] });
        let foreign = pair.b.register(Region { pd: 2, va: 0, access: rights, bytes: vec![0; 4096] });
        let closed =
            pair.b.register(Region { pd: 1, va: 0, access: access::REMOTE_READ, bytes: vec![0; 4096] });
        for wr_id in 0..8 {
            pair.recv(wr_id, 3000);
            pair.send(wr_id, pattern(200 * wr_id as usize));
            pair.write(wr_id, open, 100, pattern(300 * wr_id as usize));
        }
        let victims = [pair.qa, pair.qb];
        let end = pair.now + 3000 * DELAY;
        pair.run(end, &mut |_, _, bytes| {
            let victim = Packet::parse(&bytes).is_ok_and(|p| victims.contains(&p.bth.dest_qp));
            match victim && dice.next_u64().is_multiple_of(4) {
                // Only frames for the pair under attack are touched, and none becomes one for the other pair.
                true => {
                    let bad = mangle(&mut dice, &bytes);
                    let aim = Packet::parse(&bad).map_or(0, |p| p.bth.dest_qp);
                    if [qa, qb].contains(&aim) { vec![] } else { vec![(0, bad), (5 * DELAY, bytes)] }
                }
                false => vec![(0, bytes)],
            }
        });
        for key in [foreign, closed] {
            let bytes = &pair.b.region(key).expect("region").bytes;
            assert!(
                bytes.iter().all(|byte| *byte == 0),
                "seed {seed}: a region without the right was written"
            );
        }
        let op = SendOp::Write { va: 7, rkey: foreign, imm: None };
        pair.a.post_send(qa, SendWr::new(99, op, pattern(2000))).expect("post");
        let end = pair.now + 100 * DELAY;
        pair.run(end, &mut |_, _, bytes| vec![(0, bytes)]);
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
