//! Atomics and invalidations, told one rule at a time: byte order, alignment, rights, replay, order.

mod common;

use common::*;
use contract::timer::timeout_ns;
use contract::verbs::access;
use contract::{AsyncEvent, AtomicEth, Ieth, Opcode, Reject, WcOpcode, WcStatus};
use peer::{Error, Landing, NANOSECOND, Packet, Region, SendOp, SendWr, Sge, Time};

const VA: u64 = 0x7fff_1000_0000;

fn word(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// An atomic request from A's QP.
fn request(pair: &Pair, opcode: Opcode, psn: u32, atomic: AtomicEth) -> Packet {
    crafted(pair, opcode, psn, 0, |packet| packet.atomic = Some(atomic))
}

fn results(packets: &[Packet]) -> Vec<(u32, u64)> {
    packets.iter().filter_map(|p| Some((p.bth.psn, p.atomic_ack?.original))).collect()
}

#[test]
fn operands_are_big_endian_on_the_wire_and_memory_is_little_endian() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, [word(0x0102_0304_0506_0708), word(u64::MAX)].concat());
    pair.compare_swap(1, key, VA, 0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    pair.fetch_add(2, key, VA, 0x0000_0000_0000_0101);
    pair.fetch_add(3, key, VA + 8, 2);
    pair.run_clean();
    let frame = pair.packets(A)[0].build();
    assert_eq!(frame[66..74], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    assert_eq!(frame[74..82], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(pair.packets(B)[0].build()[58..66], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(*pair.bytes(key), [word(0x1112_1314_1516_1819), word(1)].concat());
    let done = pair.completions(A);
    assert_eq!(done.iter().map(|c| c.opcode).collect::<Vec<_>>(), {
        [WcOpcode::CompSwap, WcOpcode::FetchAdd, WcOpcode::FetchAdd]
    });
    let data: Vec<Vec<u8>> = done.iter().map(|c| c.data.clone()).collect();
    assert_eq!(data, [word(0x0102_0304_0506_0708), word(0x1112_1314_1516_1718), word(u64::MAX)]);
    assert!(done.iter().all(|c| c.byte_len == 8 && c.status == OK));
    assert_eq!(pair.answers(B), [(0, 0x1f, 1), (1, 0x1f, 2), (2, 0x1f, 3)]);
}

#[test]
fn a_compare_that_fails_gives_the_value_and_leaves_it() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, word(7));
    for (n, compare) in [(1, 6), (2, 7 << 32), (3, 8)] {
        pair.compare_swap(n, key, VA, compare, 99);
    }
    pair.run_clean();
    assert_eq!(*pair.bytes(key), word(7));
    assert!(pair.completions(A).iter().all(|c| c.data == word(7)));
}

#[test]
fn a_result_lands_in_registered_memory_of_eight_bytes_with_the_right() {
    for (rights, va, status) in [
        (access::LOCAL_WRITE, 0x101, OK),
        (access::LOCAL_WRITE, 0x109, WcStatus::LocProtErr),
        (access::REMOTE_WRITE, 0x101, WcStatus::LocProtErr),
    ] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(VA, word(7));
        let lkey = pair.a.register(Region { pd: 1, va: 0x100, access: rights, bytes: vec![0; 16] });
        let landing = Landing::Region { lkey, va, length: 8 };
        let op = SendOp::FetchAdd { va: VA, rkey: key, add: 1, landing };
        pair.post(SendWr::new(1, op, vec![]));
        pair.run_clean();
        assert_eq!(pair.ends(A), [(1, status)]);
        if status == OK {
            assert_eq!(pair.a.region(lkey).expect("a region").bytes[1..9], word(7));
        }
    }
    let mut pair = Pair::open(|_, _| {});
    for length in [0, 7, 9] {
        let op = SendOp::FetchAdd { va: VA, rkey: 0, add: 1, landing: Landing::Owned(length) };
        let qa = pair.qa;
        let error = pair.a.post_send(qa, SendWr::new(1, op, vec![]));
        assert_eq!(error, Err(Error::AtomicLanding { qpn: qa, length }));
    }
}

#[test]
fn an_address_that_is_not_a_multiple_of_eight_is_answered_0x61() {
    for opcode in [Opcode::RcFetchAdd, Opcode::RcCompareSwap] {
        for offset in 0..=8 {
            let mut pair = Pair::open(|_, _| {});
            // The first address of the region is unaligned itself; only the address counts.
            let key = pair.shared(VA - 3, vec![0; 64]);
            let atomic = AtomicEth { va: VA + offset, rkey: key, swap_or_add: 1, compare: 0 };
            let (reject, answers) = pair.ask(&request(&pair, opcode, 0, atomic));
            if offset % 8 == 0 {
                assert_eq!((reject, results(&answers)), (None, vec![(0, 0)]));
            } else {
                assert_eq!((reject, acks(&answers)), (Some(Reject::AtomicAlignment), vec![(0, 0x61)]));
                assert_eq!(pair.b.poll_event().map(|event| event.kind), Some(AsyncEvent::QpReqErr));
                assert!(pair.bytes(key).iter().all(|byte| *byte == 0));
            }
        }
    }
}

#[test]
fn rights_are_judged_in_the_order_permission_alignment_key() {
    let every = PEERS;
    let no_atomics = PEERS & !access::REMOTE_ATOMIC;
    for (qp, region, offset, bad_key, syndrome, reject) in [
        (every, every, 0, false, 0x1f, None),
        (every, every, 8, false, 0x1f, None),
        (no_atomics, every, 1, true, 0x61, Some(Reject::AccessDenied)),
        (every, every, 1, true, 0x61, Some(Reject::AtomicAlignment)),
        (every, every, 0, true, 0x62, Some(Reject::RkeyTag)),
        (every, no_atomics, 0, false, 0x62, Some(Reject::RkeyRights)),
        (every, every, 16, false, 0x62, Some(Reject::RkeyBounds)),
        (every, every, u64::MAX - 7 - VA, false, 0x62, Some(Reject::RkeyBounds)),
    ] {
        let mut pair = Pair::open(|_, params| params.access = qp);
        // Fifteen bytes behind the last word: half a word is none.
        let bytes = vec![0; if offset == 16 { 23 } else { 16 }];
        let key = pair.b.register(Region { pd: 1, va: VA, access: region, bytes });
        let va = VA.wrapping_add(offset);
        let atomic = AtomicEth { va, rkey: key ^ u32::from(bad_key), ..AtomicEth::default() };
        let (found, answers) = pair.ask(&request(&pair, Opcode::RcFetchAdd, 0, atomic));
        assert_eq!((found, acks(&answers)), (reject, vec![(0, syndrome)]), "{reject:?}");
    }
}

#[test]
fn an_atomic_with_a_payload_is_answered_0x61() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, word(7));
    let atomic = AtomicEth { va: VA, rkey: key, swap_or_add: 1, compare: 0 };
    let mut loaded = request(&pair, Opcode::RcFetchAdd, 0, atomic);
    loaded.payload = vec![0; 4];
    let (reject, answers) = pair.ask(&loaded);
    assert_eq!((reject, acks(&answers)), (Some(Reject::BadLength), vec![(0, 0x61)]));
    assert_eq!(*pair.bytes(key), word(7));
}

#[test]
fn a_duplicate_gets_the_old_answer_and_never_executes_again() {
    let mut pair = Pair::open(|_, params| params.max_dest_rd_atomic = 3);
    let key = pair.shared(VA, word(100));
    let add = AtomicEth { va: VA, rkey: key, swap_or_add: 1, compare: 0 };
    for psn in 0..4 {
        let (reject, answers) = pair.ask(&request(&pair, Opcode::RcFetchAdd, psn, add));
        assert_eq!((reject, results(&answers)), (None, vec![(psn, 100 + u64::from(psn))]));
    }
    for _ in 0..2 {
        for psn in 1..4 {
            let (reject, answers) = pair.ask(&request(&pair, Opcode::RcFetchAdd, psn, add));
            assert_eq!(reject, Some(Reject::Duplicate));
            assert_eq!(results(&answers), [(psn, 100 + u64::from(psn))]);
            assert_eq!(answers[0].aeth.map(|aeth| aeth.msn), Some(4), "the MSN stands");
        }
    }
    // The oldest of four is kept no longer, and a READ was never there: silence.
    for opcode in [Opcode::RcFetchAdd, Opcode::RcReadRequest] {
        let psn = if opcode == Opcode::RcFetchAdd { 0 } else { 3 };
        let packet = crafted(&pair, opcode, psn, 0, |_| {});
        assert_eq!(pair.ask(&packet), (Some(Reject::Duplicate), vec![]));
    }
    assert_eq!(*pair.bytes(key), word(104));
    // The answer survives the key.
    pair.b.deregister(key);
    let (_, answers) = pair.ask(&request(&pair, Opcode::RcFetchAdd, 2, add));
    assert_eq!(results(&answers), [(2, 102)]);
}

#[test]
fn whatever_is_lost_each_atomic_is_executed_once() {
    for lost in 1..=6 {
        for side in [A, B] {
            let mut pair = Pair::open(|_, params| params.max_rd_atomic = 2);
            let key = pair.shared(VA, word(10));
            for n in 0..6 {
                pair.fetch_add(n, key, VA, 1 << (8 * n));
            }
            pair.run_losing(Time::MAX, side, &[lost]);
            assert_eq!(*pair.bytes(key), word(0x0101_0101_010b));
            let mut value = 10;
            for (n, done) in pair.completions(A).into_iter().enumerate() {
                assert_eq!((done.wr_id, done.data), (n as u64, word(value)));
                value += 1 << (8 * n);
            }
            assert_eq!(value, 0x0101_0101_010b);
        }
    }
}

#[test]
fn an_atomic_whose_answer_is_lost_is_asked_for_again_and_not_skipped_by_a_later_ack() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, word(10));
    pair.fetch_add(1, key, VA, 1);
    pair.write(2, key, VA, word(50));
    pair.run_losing(Time::MAX, B, &[1]);
    assert_eq!(pair.psns(A), [0, 1, 0, 1]);
    assert_eq!(pair.completions(A)[0].data, word(10));
    assert_eq!(*pair.bytes(key), word(50));
    assert!(pair.now < 20 * DELAY);
}

#[test]
fn a_send_with_invalidate_takes_the_key_out_of_use_and_tells_which() {
    for (length, lost) in [(0, None), (5, None), (1024, None), (2500, None), (2500, Some(3))] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(VA, vec![0; 64]);
        let other = pair.shared(VA, vec![0; 64]);
        pair.recv(5, 4096);
        pair.write(1, key, VA, small(1));
        let op = SendOp::SendInv { rkey: key };
        pair.post(SendWr { solicited: true, ..SendWr::new(2, op, pattern(length)) });
        pair.run_losing(Time::MAX, A, lost.as_slice());
        let last = pair.packets(A).last().copied().cloned().expect("a last packet");
        assert_eq!(last.ieth, Some(Ieth { rkey: key }));
        assert!(last.bth.solicited);
        let done = pair.completions(B).remove(0);
        assert_eq!((done.wr_id, done.opcode, done.byte_len as usize), (5, WcOpcode::Recv, length));
        assert_eq!((done.invalidated, done.imm, done.solicited), (Some(key), None, true));
        assert_eq!(done.data, pattern(length));
        assert!(!pair.b.is_valid(key) && pair.b.is_valid(other));
        assert_eq!(pair.bytes(key)[..16], small(1));
        // The message comes again: nothing happens.
        let (reject, answers) = pair.ask(&last);
        assert_eq!((reject, answers.len()), (Some(Reject::Duplicate), 1));
        pair.write(3, other, VA, small(3));
        pair.write(4, key, VA, small(4));
        pair.run_clean();
        let ends = [(1, OK), (2, OK), (3, OK), (4, WcStatus::RemAccessErr)];
        assert_eq!(pair.ends(A), ends);
        // Given back and registered again it is a key like any other.
        let region = pair.b.deregister(key).expect("a region");
        pair.b.register_as(key, region).expect("register");
        assert!(pair.b.is_valid(key));
        assert_eq!(pair.b.rejects(Reject::RkeyUnknown), 1);
        assert_eq!(pair.bytes(key)[..16], small(1));
    }
}

#[test]
fn a_key_that_cannot_be_invalidated_stops_the_peer_without_a_nak() {
    for (reject, pd, xor, access) in [
        (None, 1, 0, ALL),
        (None, 1, 0, access::INVALIDATE),
        (Some(Reject::RkeyPd), 2, 0, ALL),
        (Some(Reject::RkeyTag), 1, 1, ALL),
        (Some(Reject::RkeyUnknown), 1, 0x1000, ALL),
        (Some(Reject::RkeyRights), 1, 0, ALL & !access::INVALIDATE),
    ] {
        let mut pair = Pair::open(|_, params| params.retry_cnt = 1);
        let key = pair.b.register(Region { pd, va: VA, access, bytes: vec![0; 64] });
        pair.recv(5, 64);
        pair.recv(6, 64);
        pair.post(SendWr::new(1, SendOp::SendInv { rkey: key ^ xor }, small(1)));
        pair.run_clean();
        if let Some(reject) = reject {
            assert_eq!(pair.b.rejects(reject), 1);
            assert_eq!(pair.ends(B), [(5, WcStatus::LocAccessErr), (6, FLUSHED)]);
            assert_eq!(pair.b.poll_event().map(|event| event.kind), Some(AsyncEvent::QpAccessErr));
            assert_eq!(pair.answers(B), []);
            assert_eq!(pair.ends(A), [(1, WcStatus::RetryExcErr)]);
            assert!(pair.b.is_valid(key));
        } else {
            assert_eq!(pair.ends(B), [(5, OK)]);
            assert_eq!(pair.ends(A), [(1, OK)]);
        }
    }
}

#[test]
fn a_local_invalidate_takes_its_turn_and_completes_in_order() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, vec![0; 64]);
    let own = Region { pd: 1, va: 0, access: ALL, bytes: pattern(64) };
    let (one, two) = (pair.a.register(own.clone()), pair.a.register(own));
    let piece = |lkey| vec![Sge { lkey, va: 0, length: 16 }];
    let write = SendOp::Write { va: VA, rkey: key, imm: None };
    let invalidate = |rkey| SendOp::LocalInv { rkey };
    pair.post(SendWr { gather: piece(one), ..SendWr::new(1, write, vec![]) });
    pair.post(SendWr::new(2, invalidate(one), vec![]));
    pair.post(SendWr { signaled: false, ..SendWr::new(3, invalidate(two), vec![]) });
    pair.post(SendWr::new(4, write, small(4)));
    // Both WRITEs go at once; a WRITE that had to go again would find its memory out of use.
    let frames = pair.sent();
    assert_eq!(frames.iter().map(|p| p.bth.psn).collect::<Vec<_>>(), [0, 1]);
    assert!(!pair.a.is_valid(one) && !pair.a.is_valid(two));
    assert_eq!(pair.ends(A), [], "it is done, but not before the WRITE in front of it");
    for frame in frames {
        pair.b.receive(0, &frame.build());
    }
    pair.run_clean();
    let done = pair.completions(A);
    let told: Vec<_> = done.iter().map(|c| (c.wr_id, c.opcode, c.status)).collect();
    assert_eq!(
        told,
        [(1, WcOpcode::RdmaWrite, OK), (2, WcOpcode::LocalInv, OK), (4, WcOpcode::RdmaWrite, OK)]
    );
    // Alone in the queue it needs no packet.
    let three = pair.a.register(Region { pd: 1, va: 0, access: ALL, bytes: vec![] });
    pair.post(SendWr::new(5, invalidate(three), vec![]));
    pair.run_clean();
    assert_eq!(pair.ends(A), [(5, OK)]);
}

#[test]
fn a_local_invalidate_of_no_key_fails_when_all_before_it_have_completed() {
    for (pd, xor, access, status) in [
        (1, 0, ALL, OK),
        (2, 0, ALL, WcStatus::LocQpOpErr),
        (1, 1, ALL, WcStatus::LocQpOpErr),
        (1, 0x1000, ALL, WcStatus::LocQpOpErr),
        (1, 0, ALL & !access::INVALIDATE, WcStatus::LocQpOpErr),
    ] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(VA, vec![0; 64]);
        let own = pair.a.register(Region { pd, va: 0, access, bytes: vec![] });
        pair.write(1, key, VA, small(1));
        pair.post(SendWr::new(2, SendOp::LocalInv { rkey: own ^ xor }, vec![]));
        pair.write(3, key, VA, small(3));
        assert_eq!(pair.sent().len(), if status == OK { 2 } else { 1 });
        assert_eq!(pair.ends(A), []);
        pair.run_clean();
        let rest = if status == OK { OK } else { FLUSHED };
        assert_eq!(pair.ends(A), [(1, OK), (2, status), (3, rest)]);
        assert_eq!(pair.bytes(key)[..16], if status == OK { small(3) } else { small(1) });
    }
}

#[test]
fn a_fenced_local_invalidate_waits_for_the_read_that_lands_in_its_memory() {
    for fence in [false, true] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(VA, pattern(3000));
        let own = Region { pd: 1, va: 0, access: ALL, bytes: vec![0; 3000] };
        let lkey = pair.a.register(own);
        let landing = Landing::Region { lkey, va: 0, length: 3000 };
        pair.post(SendWr::new(1, SendOp::Read { va: VA, rkey: key, landing }, vec![]));
        pair.post(SendWr { fence, ..SendWr::new(2, SendOp::LocalInv { rkey: lkey }, vec![]) });
        pair.run_clean();
        let ends = if fence { [(1, OK), (2, OK)] } else { [(1, WcStatus::LocProtErr), (2, FLUSHED)] };
        assert_eq!(pair.ends(A), ends);
        assert!(!pair.a.is_valid(lkey));
    }
}

#[test]
fn a_gathered_message_is_read_each_time_it_is_sent_and_an_inline_one_is_not() {
    for lost in [false, true] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(VA, vec![0; 8192]);
        let own = pair.a.register(Region { pd: 1, va: 0x100, access: 0, bytes: pattern(4096) });
        let pieces = [(3, 700), (0, 0), (1000, 1), (50, 2000), (7, 13)];
        let gather =
            pieces.iter().map(|(at, length)| Sge { lkey: own, va: 0x100 + *at as u64, length: *length });
        let write = SendOp::Write { va: VA, rkey: key, imm: None };
        pair.post(SendWr { gather: gather.collect(), ..SendWr::new(1, write, vec![]) });
        pair.write(2, key, VA + 4096, pattern(64));
        pair.run_losing(20 * DELAY, A, if lost { &[1, 2, 3, 4] } else { &[] });
        pair.a.region_mut(own).expect("a region").bytes.fill(0xee);
        pair.run_clean();
        let source = pattern(4096);
        let mut whole: Vec<u8> =
            pieces.iter().flat_map(|(at, length)| source[*at..*at + *length].to_vec()).collect();
        if lost {
            whole.fill(0xee);
        }
        assert_eq!(pair.bytes(key)[..2714], whole);
        assert_eq!(pair.bytes(key)[4096..4160], pattern(64));
        assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
    }
}

#[test]
fn a_piece_that_may_not_be_read_fails_its_request_when_all_before_it_have_completed() {
    let timeout = timeout_ns(14).expect("a timeout") * NANOSECOND;
    for (pd, va, length, status) in [
        (1, 0x100, 64, OK),
        (1, 0x13f, 1, OK),
        (1, 0x140, 0, OK),
        (1, 0x101, 64, WcStatus::LocProtErr),
        (1, 0xff, 1, WcStatus::LocProtErr),
        (1, u64::MAX, 2, WcStatus::LocProtErr),
        (2, 0x100, 64, WcStatus::LocProtErr),
    ] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(VA, vec![0; 4096]);
        let good = pair.a.register(Region { pd: 1, va: 0, access: 0, bytes: pattern(2048) });
        let own = pair.a.register(Region { pd, va: 0x100, access: 0, bytes: pattern(64) });
        let gather = vec![Sge { lkey: good, va: 0, length: 2000 }, Sge { lkey: own, va, length }];
        let op = SendOp::Write { va: VA, rkey: key, imm: None };
        pair.write(1, key, VA, small(1));
        pair.post(SendWr { gather, ..SendWr::new(2, op, vec![]) });
        pair.send(3, vec![]);
        pair.recv(1, 64);
        // The first WRITE is lost and comes again at the timeout; only then may the second complete.
        pair.run_losing(timeout - 1, A, &[1]);
        let early = pair.ends(A);
        pair.run_clean();
        let rest = if status == OK { OK } else { FLUSHED };
        let all = [early, pair.ends(A)].concat();
        assert_eq!(all, [(1, OK), (2, status), (3, rest)], "{length} bytes at {va:#x}");
    }
}
