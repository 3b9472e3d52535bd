//! Atomics between two cards: values, byte order, order among other work, loss, limits, faults.
//!
//! Requirements: ATOM

use contract::{Opcode, Reject, StageCounter, wire::psn_add};
use host::{Access, SendWr, WcOpcode, WcStatus};
use sim::{
    story::{A, B, End, MS, Story, US, two_cards},
    wire::{Delay, Faults},
};

fn put(end: &End, at: usize, value: u64) {
    end.memory.write(at, &value.to_le_bytes()).expect("a place of the region");
}

fn get(end: &End, at: usize) -> u64 {
    let mut bytes = [0; 8];
    end.memory.read(at, &mut bytes).expect("a place of the region");
    u64::from_le_bytes(bytes)
}

fn is(opcode: Opcode, psn: u32) -> impl Fn(&peer::Packet) -> bool + Send + 'static {
    move |packet| packet.opcode() == Some(opcode) && packet.bth.psn == psn
}

#[test]
fn an_atomic_changes_eight_bytes_there_and_brings_what_was_there_to_any_alignment() {
    let mut story = two_cards("an_atomic_changes_eight_bytes_there_and_brings_what_was_there");
    let (a, b) = story.connected();
    let old = 0x0102_0304_0506_0708;
    for n in 0..16usize {
        let (at, to) = (800 + 24 * n, 4000 + 33 * n);
        b.memory.write(at - 8, &[0xaa; 24]).unwrap();
        put(&b, at, old);
        a.memory.write(to - 8, &[0x5a; 24]).unwrap();
        let (opcode, new) = match n % 4 {
            0 => (WcOpcode::FetchAdd, old + 0x101),
            1 => (WcOpcode::FetchAdd, old - 1),
            2 => (WcOpcode::CompSwap, 0x1122_3344_5566_7788),
            _ => (WcOpcode::CompSwap, old),
        };
        match n % 4 {
            0 => a.fetch_add(n as u64, to, &b.memory, at, 0x101),
            1 => a.fetch_add(n as u64, to, &b.memory, at, u64::MAX),
            2 => a.compare_swap(n as u64, to, &b.memory, at, old, 0x1122_3344_5566_7788),
            // the compare fails in its highest bit
            _ => a.compare_swap(n as u64, to, &b.memory, at, old ^ 1 << 63, 99),
        }
        let done = story.completes(&a, n as u64);
        assert_eq!((done.opcode, done.byte_len), (opcode, 8));
        story.memory_matches(&a.memory, to, &old.to_le_bytes());
        story.memory_matches(&b.memory, at, &new.to_le_bytes());
        for (end, at, byte) in [(&a, to, 0x5a), (&b, at, 0xaa)] {
            story.memory_matches(&end.memory, at - 8, &[byte; 8]);
            story.memory_matches(&end.memory, at + 8, &[byte; 8]);
        }
    }
    story.no_completion(&b);
    story.no_other_events();
}

#[test]
fn writes_reads_and_atomics_of_one_address_take_effect_in_their_order() {
    let mut story = two_cards("writes_reads_and_atomics_of_one_address_take_effect_in_their_order");
    let (a, b) = story.connected();
    for n in 0..12usize {
        put(&a, 8 * n, 1000 * n as u64);
        let id = 5 * n as u64;
        a.write(id, 8 * n, 8, &b.memory, 64);
        a.fetch_add(id + 1, 1000 + 24 * n, &b.memory, 64, 7);
        a.compare_swap(id + 2, 1008 + 24 * n, &b.memory, 64, 1000 * n as u64 + 7, 5);
        a.read(id + 3, 1016 + 24 * n, 8, &b.memory, 64);
        // only a fence keeps a WRITE behind a READ
        let sge = [a.memory.sge(8 * n..8 * n + 8).unwrap()];
        let wr = SendWr::write(id + 4, &sge, b.memory.addr() + 64, b.memory.rkey()).fenced();
        a.qp.post_send(&[wr.signaled()]).unwrap();
    }
    for id in 0..60 {
        story.completes(&a, id);
    }
    for n in 0..12usize {
        let was = [1000 * n as u64, 1000 * n as u64 + 7, 5];
        assert_eq!([0, 8, 16].map(|i| get(&a, 1000 + 24 * n + i)), was);
    }
    assert_eq!(get(&b, 64), 11_000);
    story.no_other_events();
}

#[test]
fn a_lost_request_or_result_is_asked_for_again_and_executed_once() {
    for (what, from, opcode) in
        [("request", A, Opcode::RcFetchAdd), ("result", B, Opcode::RcAtomicAcknowledge)]
    {
        for more in [false, true] {
            let mut story =
                two_cards(&format!("a_lost_{what}_of_an_atomic_with_more_{more}_is_executed_once"));
            let (a, b) = story.connected();
            put(&b, 0, 40);
            story.wire_drops(from, is(opcode, psn_add(a.psn, 1)));
            a.fetch_add(1, 100, &b.memory, 0, 1);
            a.fetch_add(2, 108, &b.memory, 0, 1);
            if more {
                // whose ACK must not pass for the result
                a.write(3, 0, 2000, &b.memory, 5000);
                a.fetch_add(4, 116, &b.memory, 0, 1);
            }
            for id in 1..=if more { 4 } else { 2 } {
                story.completes(&a, id);
            }
            assert_eq!([100, 108].map(|at| get(&a, at)), [40, 41]);
            assert_eq!(get(&b, 0), if more { 43 } else { 42 });
            if more {
                assert_eq!(get(&a, 116), 42);
            } else {
                assert_eq!(story.stage_counter(0, StageCounter::TimeoutEvents), 1);
            }
            for reject in [Reject::ResponseGap, Reject::ResponseStale] {
                story.allow(0, reject);
            }
            for reject in [Reject::Duplicate, Reject::PsnOutOfSequence, Reject::PsnOutOfSequenceRepeat] {
                story.allow(1, reject);
            }
            story.no_other_events();
        }
    }
}

#[test]
fn many_atomics_of_several_qps_on_one_counter_give_every_number_once() {
    const EACH: usize = 250;
    let mut story = two_cards("many_atomics_of_several_qps_on_one_counter_give_every_number_once");
    let (a, b) = story.connected();
    let mut pairs = vec![(a.qp, b.qp)];
    for _ in 0..3 {
        let init = host::QpInit { max_send_sge: 4, ..host::QpInit::rc(&a.host.cq, &a.host.cq) };
        let other = host::QpInit { max_send_sge: 4, ..host::QpInit::rc(&b.host.cq, &b.host.cq) };
        let (mine, theirs) = (a.host.pd.create_qp(&init).unwrap(), b.host.pd.create_qp(&other).unwrap());
        let (psn, gid_a, gid_b) = (0xff_ffc0, a.host.context.gids()[0], b.host.context.gids()[0]);
        mine.connect_with(&sim::story::usual(gid_b, theirs.number(), psn, 5)).unwrap();
        theirs.connect_with(&sim::story::usual(gid_a, mine.number(), 5, psn)).unwrap();
        pairs.push((mine, theirs));
    }
    let (memory, addr, rkey) = (&a.host.memory, b.host.memory.addr() + 64, b.host.memory.rkey());
    b.host.memory.write(64, &0u64.to_le_bytes()).unwrap();
    let mut posted = [0; 4];
    let mut done = 0;
    let start = story.now();
    while done < 4 * EACH {
        for (q, (mine, _)) in pairs.iter().enumerate() {
            // 32 at a time
            while posted[q] < EACH && posted[q] < done / 4 + 32 {
                let at = 8 * (q * EACH + posted[q]);
                let sge = [memory.sge(at..at + 8).unwrap()];
                let wr = SendWr::fetch_add(0, &sge, addr, rkey, 1).signaled();
                if mine.post_send(&[wr]).is_err() {
                    break;
                }
                posted[q] += 1;
            }
        }
        story.wait(10 * US);
        let mut entries = [host::Completion::default(); 64];
        let count = a.host.cq.poll(&mut entries).unwrap();
        assert!(entries[..count].iter().all(|c| c.status == WcStatus::Success));
        done += count;
        assert!(story.now() - start < 100 * MS, "{done} of {posted:?}");
    }
    let span = story.now() - start;
    println!("{} atomics on one counter in {} us", 4 * EACH, span / US);
    let mut seen = vec![false; 4 * EACH];
    for q in 0..4 {
        let mut last = None;
        for n in 0..EACH {
            let mut bytes = [0; 8];
            memory.read(8 * (q * EACH + n), &mut bytes).unwrap();
            let value = u64::from_le_bytes(bytes);
            assert!(!std::mem::replace(&mut seen[value as usize], true), "{value} twice");
            assert!(last < Some(value), "in the order of each QP");
            last = Some(value);
        }
    }
    story.memory_matches(&b.host.memory, 64, &(4 * EACH as u64).to_le_bytes());
    story.no_other_events();
}

#[test]
fn an_atomic_that_the_peer_refuses_or_this_side_cannot_take_completes_in_error_in_its_turn() {
    for what in ["address", "right of the QP", "right of the key", "rkey", "lkey"] {
        let mut story = two_cards(&format!("an_atomic_with_a_bad_{}_fails", what.replace(' ', "_")));
        let (a, b) = story.connected_as(|side, attr| {
            if side == B && what == "right of the QP" {
                attr.access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            }
        });
        let mute = b.pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let mut sge = [a.memory.sge(100..108).unwrap()];
        let (mut addr, mut rkey) = (b.memory.addr(), b.memory.rkey());
        match what {
            "address" => addr += 4,
            "right of the QP" => {}
            "right of the key" => (addr, rkey) = (mute.addr(), mute.rkey()),
            "rkey" => rkey ^= 0x10,
            _ => sge[0].lkey ^= 0x10,
        }
        a.write(1, 0, 8, &b.memory, 64);
        a.qp.post_send(&[SendWr::fetch_add(2, &sge, addr, rkey, 1).signaled()]).unwrap();
        a.fetch_add(3, 200, &b.memory, 8, 1);
        story.completes(&a, 1);
        let status = match what {
            "address" | "right of the QP" => WcStatus::RemInvReqErr,
            "lkey" => WcStatus::LocProtErr,
            _ => WcStatus::RemAccessErr,
        };
        for (wr_id, status) in [(2, status), (3, WcStatus::WrFlushErr)] {
            let done = story.completion(&a);
            assert_eq!((done.wr_id, done.status), (wr_id, status), "{what}");
        }
        story.wait(MS);
        story.memory_matches(&a.memory, 100, &[0; 8]);
        for reject in [
            Reject::AtomicAlignment,
            Reject::AccessDenied,
            Reject::RkeyRights,
            Reject::RkeyTag,
            Reject::QpHalted,
        ] {
            story.allow(1, reject);
        }
        for reject in [Reject::SglKey, Reject::QpHalted, Reject::WrongQpState] {
            story.allow(0, reject);
        }
        story.no_other_events();
    }
}

#[test]
fn a_qp_is_destroyed_while_its_atomics_are_under_way_and_the_next_one_works() {
    let mut story = two_cards("a_qp_is_destroyed_while_its_atomics_are_under_way_and_the_next_one_works");
    let (a, b) = story.connected();
    for i in 0..16 {
        a.fetch_add(i, 100, &b.memory, 8 * i as usize, 1);
    }
    story.wait(3 * US);
    let End { qp: mine, host, .. } = a;
    let End { qp: theirs, host: other, .. } = b;
    drop(theirs);
    drop(mine);
    for card in 0..2 {
        for reject in [Reject::UnknownQp, Reject::WrongQpState, Reject::QpHalted] {
            story.allow(card, reject);
        }
    }
    let (a, b) = (story.qp(host, |_| {}), story.qp(other, |_| {}));
    story.join(&a, &b, |_, _| {});
    put(&b, 0, 5);
    a.fetch_add(9, 0, &b.memory, 0, 1);
    story.completes(&a, 9);
    assert_eq!((get(&a, 0), get(&b, 0)), (5, 6));
    story.no_other_events();
}

/// What a story expects of one round: where results land, and which.
type Wanted = Vec<(usize, u64)>;

fn round(story: &mut Story, ends: [&End; 2]) {
    // each side works on its own eight counters at the other; operations in order, so the outcome is known
    let mut counters = [[0u64; 8]; 2];
    let mut wanted: [Wanted; 2] = [vec![], vec![]];
    for end in ends {
        end.memory.write(0, &[0; 64]).unwrap();
    }
    for i in 0..20u64 {
        for side in 0..2 {
            let (end, other) = (ends[side], ends[1 - side]);
            let c = story.below(8) as usize;
            let (was, to) = (counters[side][c], 1000 + 11 * i as usize);
            match story.below(4) {
                0 => {
                    let swap = story.below(u64::MAX);
                    end.compare_swap(i, to, &other.memory, 8 * c, was, swap);
                    counters[side][c] = swap;
                }
                1 => end.compare_swap(i, to, &other.memory, 8 * c, !was, 3),
                _ => {
                    let add = story.below(u64::MAX);
                    end.fetch_add(i, to, &other.memory, 8 * c, add);
                    counters[side][c] = was.wrapping_add(add);
                }
            }
            wanted[side].push((to, was));
        }
    }
    for end in ends {
        for i in 0..20 {
            story.completes(end, i);
        }
    }
    for side in 0..2 {
        for (to, value) in &wanted[side] {
            assert_eq!(get(ends[side], *to), *value);
        }
        let there: Vec<u64> = (0..8).map(|c| get(ends[1 - side], 8 * c)).collect();
        assert_eq!(there, counters[side]);
    }
}

#[test]
fn programs_of_atomics_survive_loss_duplication_corruption_and_reordering() {
    let mut story = two_cards("programs_of_atomics_survive_loss_duplication_corruption_and_reordering");
    let (a, b) = story.connected_as(|_, attr| attr.timeout = 10);
    for n in 0..12u64 {
        let harm = [0.0, 0.03, 0.08][(n % 3) as usize];
        story.wire_harms(Faults {
            loss: harm,
            duplicate: harm,
            corrupt: harm,
            reorder: harm,
            delay: Delay::Time((1 + n) * US),
        });
        round(&mut story, [&a, &b]);
    }
    for card in 0..2 {
        for reject in Reject::ALL {
            if !matches!(reject, Reject::ResponseMalformed | Reject::RkeyBounds | Reject::SglKey) {
                story.allow(card, *reject);
            }
        }
        assert!(story.stage_counter(card, StageCounter::Retransmits) > 10);
    }
    story.no_other_events();
}
