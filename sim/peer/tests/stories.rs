//! What an RC endpoint does, told one rule at a time: timers, limits, faults, silence. Both sides of each limit.

mod common;

use common::*;
use contract::opcode::Kind;
use contract::timer::{rnr_ns, timeout_ns};
use contract::verbs::access;
use contract::{Aeth, AsyncEvent, Opcode, PathMtu, QpState, Reject, Reth, Syndrome, WcOpcode, WcStatus};
use peer::{Error, Landing, NANOSECOND, Packet, RecvWr, Region, SendOp, SendWr, Time};

fn plain() -> Pair {
    Pair::connected(|_, _| {})
}

/// Delivers a packet to B; gives what B says about it and its answer, if any.
fn deliver(pair: &mut Pair, packet: &Packet) -> (Option<Reject>, Option<(u32, u8)>) {
    let (reject, answers) = pair.ask(packet);
    assert!(answers.len() < 2, "one answer at most");
    (reject, acks(&answers).pop())
}

#[test]
fn a_lost_middle_packet_is_named_by_one_nak_and_only_it_and_its_followers_go_again() {
    let mut pair = plain();
    pair.recv(1, 8000);
    pair.send(1, pattern(5000));
    pair.run_losing(Time::MAX, A, &[3]);
    assert_eq!(pair.psns(A), [0, 1, 2, 3, 4, 2, 3, 4]);
    assert_eq!(pair.answers(B), [(2, 0x60, 0), (4, 0x1f, 1)]);
    assert_eq!(pair.b.rejects(Reject::PsnOutOfSequenceRepeat), 1);
    assert_eq!(pair.completions(B)[0].data, pattern(5000));
    assert_eq!(pair.ends(A), [(1, OK)]);
    // The resumed packet is a middle packet: the message was not begun again.
    assert_eq!(pair.seen[6].packet.opcode(), Some(Opcode::RcSendMiddle));
}

#[test]
fn a_second_gap_behind_the_first_gets_a_nak_of_its_own() {
    let mut pair = plain();
    pair.recv(1, 12 * 1024);
    pair.send(1, pattern(12 * 1024));
    pair.run_losing(Time::MAX, A, &[3, 15]);
    assert_eq!(pair.answers(B), [(2, 0x60, 0), (4, 0x60, 0), (11, 0x1f, 1)]);
    assert!(pair.now < 20 * DELAY, "no timeout was needed");
}

#[test]
fn later_requests_do_not_put_off_the_timer_of_an_earlier_one() {
    let mut pair = plain();
    let timeout = timeout_ns(14).expect("a timeout") * NANOSECOND;
    pair.send(1, small(1));
    pair.run(timeout / 2, &mut |_, _, _| vec![]);
    pair.send(2, small(2));
    pair.run(timeout, &mut |_, _, _| vec![]);
    let times: Vec<Time> = pair.seen.iter().map(|seen| seen.at).collect();
    assert_eq!(times, [0, timeout / 2, timeout, timeout]);
}

#[test]
fn every_timeout_code_fires_after_exactly_its_time_and_progress_starts_it_anew() {
    for code in 1..32 {
        let timeout = timeout_ns(code).expect("a timeout") * NANOSECOND;
        let mut pair = Pair::connected(|_, params| {
            params.timeout = code;
            params.retry_cnt = 1;
        });
        pair.recv(1, 16);
        pair.send(1, small(1));
        pair.send(2, small(2));
        // The first is acknowledged just before the time is up, the second never.
        let mut wire = |from, number, bytes| match (from, number) {
            (A, 1) => vec![(timeout - 3 * DELAY, bytes)],
            (A, _) => vec![],
            (B, _) => vec![(0, bytes)],
        };
        pair.run(Time::MAX, &mut wire);
        let times: Vec<(Time, u32)> =
            pair.seen.iter().filter(|s| s.from == A).map(|s| (s.at, s.packet.bth.psn)).collect();
        let progress = timeout - DELAY;
        assert_eq!(times, [(0, 0), (0, 1), (progress + timeout, 1)], "code {code}");
        assert_eq!(pair.ends(A), [(1, OK), (2, WcStatus::RetryExcErr)]);
        assert_eq!(pair.now, progress + 2 * timeout, "code {code}");
    }
}

#[test]
fn a_lost_last_packet_comes_again_at_the_timeout_and_not_before() {
    let mut pair = plain();
    pair.recv(1, 16);
    pair.send(1, small(1));
    let timeout = timeout_ns(14).expect("a timeout") * NANOSECOND;
    pair.run_losing(timeout - 1, A, &[1]);
    assert_eq!(pair.psns(A), [0]);
    pair.run_losing(timeout, A, &[1]);
    assert_eq!(pair.psns(A), [0, 0]);
    assert_eq!(pair.seen[1].at, timeout);
    pair.run_clean();
    assert_eq!(pair.ends(A), [(1, OK)]);
}

#[test]
fn a_lost_ack_is_replaced_by_the_answer_to_the_duplicate_which_changes_nothing() {
    let mut pair = plain();
    let key = pair.region(0x1000, 16);
    pair.recv(1, 16);
    pair.write(1, key, 0x1000, small(1));
    pair.send(2, small(2));
    pair.run_losing(1000 * DELAY, B, &[1, 2]);
    assert_eq!(pair.completions(B).len(), 1);
    pair.b.region_mut(key).expect("region").bytes.fill(0xee);
    pair.run_clean();
    assert_eq!(pair.b.region(key).expect("region").bytes, [0xee; 16]);
    // Duplicates are answered with the last PSN accepted and the MSN as it stands.
    assert_eq!(pair.answers(B), [(0, 0x1f, 1), (1, 0x1f, 2), (1, 0x1f, 2), (1, 0x1f, 2)]);
    assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
    assert_eq!(pair.completions(B), []);
}

#[test]
fn a_dead_peer_is_reported_after_exactly_the_retries_and_the_rest_is_flushed_in_order() {
    for (retry_cnt, forever, sends) in [(0, false, 1), (3, false, 4), (7, false, 8), (3, true, 4)] {
        let mut pair = Pair::connected(|_, params| {
            params.retry_cnt = retry_cnt;
            params.tuning.seven_retries_is_forever = forever;
        });
        let qa = pair.qa;
        for wr_id in 1..=3 {
            pair.send(wr_id, small(wr_id));
        }
        let landing = Landing::Owned(8);
        pair.a.post_recv(qa, RecvWr { wr_id: 9, landing }).expect("post");
        pair.run(Time::MAX, &mut |_, _, _| vec![]);
        assert_eq!(pair.psns(A).iter().filter(|psn| **psn == 0).count(), sends);
        let timeout = timeout_ns(14).expect("a timeout") * NANOSECOND;
        assert_eq!(pair.now, timeout * sends as u64);
        assert_eq!(pair.ends(A), [(1, WcStatus::RetryExcErr), (2, FLUSHED), (3, FLUSHED), (9, FLUSHED)]);
        assert_eq!(pair.a.state(qa), Some(QpState::Err));
        // Posting in ERR succeeds and is flushed.
        pair.send(4, small(4));
        pair.a.post_recv(qa, RecvWr { wr_id: 10, landing }).expect("post");
        assert_eq!(pair.ends(A), [(4, FLUSHED), (10, FLUSHED)]);
        assert_eq!(pair.a.next_timeout(), None);
    }
}

#[test]
fn seven_retries_may_mean_for_ever_and_a_timeout_of_zero_never_fires() {
    let mut pair = Pair::connected(|_, params| params.tuning.seven_retries_is_forever = true);
    pair.send(1, small(1));
    pair.run(timeout_ns(14).expect("a timeout") * NANOSECOND * 50, &mut |_, _, _| vec![]);
    assert_eq!(pair.psns(A).len(), 51);
    let mut pair = Pair::connected(|_, params| params.timeout = 0);
    pair.send(1, small(1));
    pair.run(Time::MAX, &mut |_, _, _| vec![]);
    assert_eq!(pair.psns(A).len(), 1);
    assert_eq!(pair.ends(A), []);
}

#[test]
fn progress_gives_the_retries_back() {
    let mut pair = Pair::connected(|_, params| params.retry_cnt = 1);
    pair.recv(1, 16);
    pair.recv(2, 16);
    pair.send(1, small(1));
    pair.run_losing(Time::MAX, A, &[1]);
    pair.send(2, small(2));
    pair.run_losing(Time::MAX, A, &[3]);
    assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_again_after_its_timer_and_not_before() {
    for code in 0..32 {
        let mut pair = Pair::connected(|_, params| {
            params.min_rnr_timer = code;
            params.timeout = 1;
            params.retry_cnt = 0;
        });
        pair.send(1, small(1));
        let wait = rnr_ns(code) * NANOSECOND;
        pair.run(2 * DELAY + wait - 1, &mut clean);
        assert_eq!(pair.answers(B), [(0, 0x20 | code, 0)]);
        assert_eq!(pair.psns(A), [0], "the retransmission timer must not run during the wait");
        pair.recv(1, 16);
        pair.run_clean();
        assert_eq!(pair.seen[2].at, 2 * DELAY + wait);
        assert_eq!(pair.ends(A), [(1, OK)]);
        assert_eq!(pair.ends(B), [(1, OK)]);
    }
}

#[test]
fn rnr_retries_end_at_their_limit_and_seven_is_for_ever() {
    for (rnr_retry, sends) in [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)] {
        let mut pair = Pair::connected(|_, params| params.rnr_retry = rnr_retry);
        pair.send(1, small(1));
        pair.send(2, small(2));
        pair.run_clean();
        assert_eq!(pair.psns(A).iter().filter(|psn| **psn == 0).count(), sends);
        assert_eq!(pair.ends(A), [(1, WcStatus::RnrRetryExcErr), (2, FLUSHED)]);
        assert_eq!(pair.b.state(pair.qb), Some(QpState::Rts));
    }
    let mut pair = plain();
    pair.send(1, small(1));
    pair.run(rnr_ns(12) * NANOSECOND * 60, &mut clean);
    assert!(pair.psns(A).len() > 50);
    assert_eq!(pair.ends(A), []);
}

#[test]
fn naks_behind_an_rnr_nak_do_not_end_the_wait_early() {
    let mut pair = Pair::connected(|_, params| params.tuning.nak_behind_rnr = true);
    pair.send(1, pattern(3000));
    pair.run(rnr_ns(12) * NANOSECOND, &mut clean);
    assert_eq!(pair.answers(B), [(0, 0x2c, 0), (0, 0x60, 0)]);
    assert_eq!(pair.psns(A), [0, 1, 2]);
    pair.recv(1, 3000);
    pair.run_clean();
    assert_eq!(pair.ends(A), [(1, OK)]);
}

#[test]
fn packets_behind_an_rnr_nak_are_dropped_in_silence() {
    let mut pair = plain();
    pair.send(1, pattern(3000));
    pair.run(10 * DELAY, &mut clean);
    assert_eq!(pair.answers(B), [(0, 0x2c, 0)]);
    assert_eq!(pair.b.rejects(Reject::PsnOutOfSequenceRepeat), 2);
}

#[test]
fn progress_gives_the_rnr_retries_back() {
    let mut pair = Pair::connected(|_, params| params.rnr_retry = 1);
    for wr_id in [1, 2] {
        pair.send(wr_id, small(wr_id));
        let until = pair.now + 10 * DELAY;
        pair.run(until, &mut clean);
        pair.recv(wr_id, 16);
        pair.run_clean();
    }
    assert_eq!(pair.answers(B), [(0, 0x2c, 0), (0, 0x1f, 1), (1, 0x2c, 1), (1, 0x1f, 2)]);
    assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
}

#[test]
fn twenty_copies_of_an_rnr_nak_neither_cost_retries_nor_prolong_the_wait() {
    for rnr_retry in 1..=7 {
        let mut pair = Pair::connected(|_, params| params.rnr_retry = rnr_retry);
        pair.send(1, small(1));
        pair.run(50 * DELAY, &mut |from, _, bytes| match from {
            A => vec![(0, bytes)],
            B => (0..21).map(|copy| (copy * DELAY, bytes.clone())).collect(),
        });
        assert_eq!(pair.a.rejects(Reject::ResponseStale), 20);
        pair.recv(1, 16);
        pair.run_clean();
        assert_eq!(pair.seen[2].at, 2 * DELAY + rnr_ns(12) * NANOSECOND);
        assert_eq!(pair.ends(A), [(1, OK)]);
    }
}

#[test]
fn an_ack_during_the_rnr_wait_ends_it() {
    let mut pair = plain();
    pair.recv(1, 16);
    pair.send(1, small(1));
    pair.send(2, small(2));
    // The second request arrives once at once, finds no receive, and once more after one was posted.
    let mut late = |from, number, bytes: Vec<u8>| match (from, number) {
        (A, 2) => vec![(0, bytes.clone()), (20 * DELAY, bytes)],
        _ => vec![(0, bytes)],
    };
    pair.run(10 * DELAY, &mut late);
    assert_eq!(pair.answers(B), [(0, 0x1f, 1), (1, 0x2c, 1)]);
    pair.recv(2, 16);
    pair.recv(3, 16);
    pair.run(30 * DELAY, &mut late);
    assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
    pair.send(3, small(3));
    pair.run(40 * DELAY, &mut late);
    assert_eq!(pair.ends(A), [(3, OK)]);
}

#[test]
fn an_rnr_nak_in_the_middle_of_a_write_with_immediate_resumes_at_its_last_packet() {
    let mut pair = plain();
    let key = pair.region(0, 2500);
    let qa = pair.qa;
    let op = SendOp::Write { va: 0, rkey: key, imm: Some(0x1122_3344) };
    pair.a.post_send(qa, SendWr::new(1, op, pattern(2500))).expect("post");
    pair.run(4 * DELAY, &mut clean);
    assert_eq!(pair.answers(B), [(2, 0x2c, 0)]);
    assert_eq!(pair.b.region(key).expect("region").bytes[..2048], pattern(2500)[..2048]);
    pair.recv(7, 0);
    pair.run_clean();
    assert_eq!(pair.psns(A), [0, 1, 2, 2]);
    let done = pair.completions(B).remove(0);
    assert_eq!((done.wr_id, done.opcode, done.byte_len), (7, WcOpcode::RecvRdmaWithImm, 2500));
    assert_eq!(done.imm, Some(0x1122_3344));
    assert_eq!(pair.b.region(key).expect("region").bytes, pattern(2500));
    assert_eq!(pair.ends(A), [(1, OK)]);
}

#[test]
fn every_length_around_the_path_mtu_arrives_whole_by_send_and_by_write() {
    for mtu in PathMtu::ALL {
        let m = mtu.bytes() as usize;
        let mut pair = Pair::connected(|_, params| params.path_mtu = *mtu);
        let key = pair.region(0x1001, 4 * m);
        for length in [0, 1, 2, 3, 4, 5, m - 1, m, m + 1, 2 * m, 3 * m + 3] {
            pair.recv(1, length);
            pair.send(1, pattern(length));
            pair.write(2, key, 0x1001, pattern(length));
            pair.run_clean();
            let received = pair.completions(B);
            assert_eq!(received.len(), 1);
            assert_eq!(received[0].data, pattern(length));
            assert_eq!(received[0].byte_len as usize, length);
            assert_eq!(pair.b.region(key).expect("region").bytes[..length], pattern(length));
            assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
        }
    }
}

#[test]
fn a_key_that_does_not_allow_the_write_is_answered_0x62_and_both_ends_stop() {
    let base = 0x1000;
    let readable = access::LOCAL_WRITE | access::REMOTE_READ;
    for (reject, va, length, rights, pd) in [
        (None, base, 64, access::REMOTE_WRITE, 1),
        (None, base + 63, 1, access::REMOTE_WRITE, 1),
        (Some(Reject::RkeyBounds), base, 65, access::REMOTE_WRITE, 1),
        (Some(Reject::RkeyBounds), base + 64, 1, access::REMOTE_WRITE, 1),
        (Some(Reject::RkeyBounds), base - 1, 2, access::REMOTE_WRITE, 1),
        (Some(Reject::RkeyBounds), u64::MAX, 2, access::REMOTE_WRITE, 1),
        (Some(Reject::RkeyPd), base, 64, access::REMOTE_WRITE, 2),
        (Some(Reject::RkeyRights), base, 64, readable, 1),
        (Some(Reject::RkeyTag), base, 64, access::REMOTE_WRITE, 1),
        (Some(Reject::RkeyUnknown), base, 64, access::REMOTE_WRITE, 1),
    ] {
        let mut pair = plain();
        let mut key = pair.b.register(Region { pd, va: base, access: rights, bytes: vec![0; 64] });
        match reject {
            Some(Reject::RkeyTag) => key ^= 1,
            Some(Reject::RkeyUnknown) => key += 0x100,
            _ => {}
        }
        pair.recv(8, 16);
        pair.write(1, key, va, vec![1; length]);
        pair.send(2, small(2));
        pair.run_clean();
        if let Some(reject) = reject {
            assert_eq!(pair.answers(B), [(0, 0x62, 0)], "{reject:?}");
            assert_eq!(pair.b.rejects(reject), 1, "{reject:?}");
            assert_eq!(pair.ends(A), [(1, WcStatus::RemAccessErr), (2, FLUSHED)]);
            assert_eq!(pair.ends(B), [(8, FLUSHED)]);
            assert_eq!(pair.b.state(pair.qb), Some(QpState::Err));
            assert_eq!(pair.b.poll_event().map(|event| event.kind), Some(AsyncEvent::QpAccessErr));
        } else {
            assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
        }
    }
}

#[test]
fn a_write_out_of_bounds_is_refused_at_its_first_packet_before_a_byte_is_placed() {
    let mut pair = plain();
    let key = pair.region(0, 2499);
    pair.write(1, key, 0, pattern(2500));
    pair.run_clean();
    assert_eq!(pair.answers(B), [(0, 0x62, 0)]);
    assert!(pair.b.region(key).expect("region").bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn a_zero_length_write_names_no_memory_but_needs_the_permission() {
    let mut pair = plain();
    pair.write(1, 0xdead_be00, u64::MAX, vec![]);
    pair.run_clean();
    assert_eq!(pair.ends(A), [(1, OK)]);
    let mut pair = Pair::connected(|_, params| params.access = 0);
    pair.write(1, 0xdead_be00, u64::MAX, vec![]);
    pair.run_clean();
    assert_eq!(pair.answers(B), [(0, 0x61, 0)]);
    assert_eq!(pair.ends(A), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(pair.b.rejects(Reject::AccessDenied), 1);
}

#[test]
fn nothing_can_be_sent_written_and_read_first_and_between_long_messages_under_any_key() {
    for keys in [[0, 0, 0], [0x5a, 0xffff_ff00, 7]] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(0, pattern(8192));
        for wr_id in 0..10 {
            pair.recv(wr_id, 4096);
        }
        let mut wr_id = 0;
        for long in 0..3 {
            let landing = Landing::Owned(0);
            let va = u64::MAX - long;
            for op in [
                SendOp::Read { va, rkey: keys[0], landing },
                SendOp::Write { va, rkey: keys[1], imm: None },
                SendOp::Write { va, rkey: keys[2], imm: Some(9) },
                SendOp::Send { imm: None },
                SendOp::Send { imm: Some(9) },
            ] {
                pair.post(SendWr::new(wr_id, op, vec![]));
                wr_id += 1;
            }
            pair.write(wr_id, key, 0, pattern(5000));
            pair.read(wr_id + 1, key, 0, 5000);
            wr_id += 2;
        }
        pair.run_losing(Time::MAX, A, &[2, 9, 17]);
        assert_eq!(pair.ends(A), (0..wr_id).map(|n| (n, OK)).collect::<Vec<_>>());
        assert_eq!(pair.completions(B).iter().map(|c| c.byte_len).sum::<u32>(), 0);
        assert_eq!(*pair.bytes(key), pattern(8192));
    }
}

#[test]
fn a_solicited_event_is_asked_for_by_what_consumes_a_receive_at_its_last_packet_only() {
    for (op, consumes) in [
        (SendOp::Send { imm: None }, true),
        (SendOp::Send { imm: Some(1) }, true),
        (SendOp::Write { va: 0, rkey: 0, imm: Some(1) }, true),
        (SendOp::Write { va: 0, rkey: 0, imm: None }, false),
        (SendOp::Read { va: 0, rkey: 0, landing: Landing::Owned(3000) }, false),
        (SendOp::FetchAdd { va: 0, rkey: 0, add: 0, landing: Landing::Owned(8) }, false),
    ] {
        for solicited in [false, true] {
            let mut pair = Pair::open(|_, _| {});
            pair.post(SendWr { solicited, ..SendWr::new(1, op, pattern(3000)) });
            let marks: Vec<bool> = pair.sent().iter().map(|p| p.bth.solicited).collect();
            let (last, rest) = marks.split_last().expect("a packet");
            assert_eq!(*last, solicited && consumes);
            assert!(rest.iter().all(|mark| !mark));
        }
    }
}

#[test]
fn a_send_of_exactly_the_buffer_fits_and_one_byte_more_is_answered_0x61() {
    for (length, fits) in [(1500, true), (1501, false)] {
        let mut pair = plain();
        pair.recv(5, 1500);
        pair.recv(6, 1500);
        pair.send(1, pattern(length));
        pair.run_clean();
        if fits {
            assert_eq!(pair.ends(A), [(1, OK)]);
            assert_eq!(pair.ends(B), [(5, OK)]);
        } else {
            assert_eq!(pair.answers(B), [(1, 0x61, 0)]);
            assert_eq!(pair.ends(A), [(1, WcStatus::RemInvReqErr)]);
            assert_eq!(pair.ends(B), [(5, WcStatus::LocLenErr), (6, FLUSHED)]);
            assert_eq!(pair.b.poll_event().map(|event| event.kind), Some(AsyncEvent::QpReqErr));
        }
    }
}

#[test]
fn a_receive_into_memory_without_the_right_is_answered_0x63() {
    for (right, va, fits) in
        [(access::LOCAL_WRITE, 0, true), (access::LOCAL_WRITE, 1, false), (access::REMOTE_WRITE, 0, false)]
    {
        let mut pair = plain();
        let lkey = pair.b.register(Region { pd: 1, va: 0, access: right, bytes: vec![0; 16] });
        let qb = pair.qb;
        let landing = Landing::Region { lkey, va, length: 16 };
        pair.b.post_recv(qb, RecvWr { wr_id: 5, landing }).expect("post");
        pair.send(1, small(7));
        pair.run_clean();
        if fits {
            assert_eq!(pair.ends(B), [(5, OK)]);
            assert_eq!(pair.b.region(lkey).expect("region").bytes, small(7));
        } else {
            assert_eq!(pair.answers(B), [(0, 0x63, 0)]);
            assert_eq!(pair.ends(A), [(1, WcStatus::RemOpErr)]);
            assert_eq!(pair.ends(B), [(5, WcStatus::LocProtErr)]);
        }
    }
}

#[test]
fn an_error_nak_acknowledges_what_came_before_it() {
    let mut pair = plain();
    let key = pair.region(0, 16);
    pair.write(1, key, 0, small(1));
    pair.write(2, key + 0x100, 0, small(2));
    pair.write(3, key, 0, small(3));
    pair.run_losing(Time::MAX, B, &[1]);
    assert_eq!(pair.ends(A), [(1, OK), (2, WcStatus::RemAccessErr), (3, FLUSHED)]);
}

#[test]
fn malformed_requests_are_answered_0x61() {
    let full = 1024;
    let nop = |_: &mut Packet| {};
    let dma = |length| {
        move |packet: &mut Packet| packet.reth = Some(Reth { dma_length: length, ..Reth::default() })
    };
    let fault = |first: Option<Packet>, second: Packet, reject: Reject| {
        let mut pair = plain();
        pair.recv(1, 8000);
        pair.recv(2, 8000);
        if let Some(first) = first {
            assert_eq!(deliver(&mut pair, &first), (None, None));
        }
        let psn = second.bth.psn;
        assert_eq!(deliver(&mut pair, &second), (Some(reject), Some((psn, 0x61))), "{:?}", second.opcode());
        assert_eq!(pair.b.state(pair.qb), Some(QpState::Err));
        // Silence afterwards.
        assert_eq!(deliver(&mut pair, &second), (Some(Reject::WrongQpState), None));
    };
    let p = plain();
    let send_first = || Some(crafted(&p, Opcode::RcSendFirst, 0, full, nop));
    for opcode in [Opcode::RcSendMiddle, Opcode::RcSendLast, Opcode::RcWriteMiddle, Opcode::RcWriteLast] {
        fault(None, crafted(&p, opcode, 0, full, nop), Reject::OpcodeSequence);
    }
    for opcode in [Opcode::RcSendFirst, Opcode::RcSendOnly, Opcode::RcWriteOnly, Opcode::RcWriteLast] {
        fault(send_first(), crafted(&p, opcode, 1, full, nop), Reject::OpcodeSequence);
    }
    fault(None, crafted(&p, Opcode::RcReadRequest, 0, 0, nop), Reject::AccessDenied);
    fault(None, crafted(&p, Opcode::RcFetchAdd, 0, 0, nop), Reject::AccessDenied);
    fault(send_first(), crafted(&p, Opcode::RcReadRequest, 1, 0, nop), Reject::OpcodeSequence);
    fault(send_first(), crafted(&p, Opcode::RcFetchAdd, 1, 0, nop), Reject::OpcodeSequence);
    fault(None, crafted(&p, Opcode::RcSendFirst, 0, full - 4, nop), Reject::BadLength);
    fault(None, crafted(&p, Opcode::RcSendOnly, 0, full + 4, nop), Reject::BadLength);
    fault(send_first(), crafted(&p, Opcode::RcSendLast, 1, 0, nop), Reject::BadLength);
    fault(None, crafted(&p, Opcode::RcWriteOnly, 0, 8, dma(7)), Reject::BadLength);
    fault(None, crafted(&p, Opcode::RcWriteOnly, 0, 8, dma(9)), Reject::BadLength);
    fault(None, crafted(&p, Opcode::RcWriteFirst, 0, full, dma(1024)), Reject::BadLength);
    fault(None, crafted(&p, Opcode::RcWriteFirst, 0, full, dma(0x8000_0001)), Reject::BadLength);
}

#[test]
fn a_pad_count_that_does_not_fit_the_length_is_answered_0x61() {
    // (bytes cut off the end of the body, pad count, the fault): eight bytes without pad are well-formed.
    for (cut, pad, reject) in
        [(0, 0, None), (0, 3, None), (1, 0, Some(Reject::BadLength)), (1, 1, Some(Reject::BadLength))]
    {
        let mut pair = plain();
        pair.recv(1, 64);
        let mut frame = crafted(&pair, Opcode::RcSendOnly, 0, 8, |_| {}).build();
        frame[43] |= pad << 4;
        frame[17] -= cut;
        frame[39] -= cut;
        frame.truncate(frame.len() - 4 - usize::from(cut));
        let checksum = contract::wire::ipv4_checksum(frame[14..].first_chunk().expect("an IPv4 header"));
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        let icrc = contract::crc::icrc(&frame[14..]).expect("IP");
        frame.extend(icrc);
        assert_eq!(pair.b.receive(0, &frame), reject, "cut {cut} pad {pad}");
        let answer = Packet::parse(&pair.b.poll_transmit(0).expect("an answer")).expect("well-formed");
        let syndrome = if reject.is_some() { 0x61 } else { 0x1f };
        assert_eq!(answer.aeth.map(|aeth| aeth.syndrome), Some(syndrome));
        match reject {
            None => assert_eq!(pair.completions(B)[0].byte_len, 8 - u32::from(pad)),
            Some(_) => assert_eq!(pair.ends(B), [(1, WcStatus::LocQpOpErr)]),
        }
    }
}

#[test]
fn what_is_not_for_this_connection_is_dropped_in_silence() {
    let mut pair = plain();
    pair.recv(1, 64);
    let good = crafted(&pair, Opcode::RcSendOnly, 0, 8, |_| {});
    type Change = fn(&mut Packet);
    let changes: [(Reject, Change); 15] = [
        (Reject::BadIpHeader, |p| p.ip.ihl = 6),
        (Reject::BadIpHeader, |p| p.ip.fragment_offset = 1),
        (Reject::WrongDestinationMac, |p| p.ethernet.destination ^= 1),
        (Reject::NotRoce, |p| p.ethernet.ethertype = 0x0806),
        (Reject::NotRoce, |p| p.udp.destination_port = 4790),
        (Reject::NotRoce, |p| p.ip.protocol = 6),
        (Reject::BadIpHeader, |p| p.ip.more_fragments = true),
        (Reject::BadIpHeader, |p| p.ip.version = 5),
        (Reject::BadTransportVersion, |p| p.bth.version = 1),
        (Reject::UnknownOpcode, |p| p.bth.opcode = 0x15),
        (Reject::UnknownQp, |p| p.bth.dest_qp += 7),
        (Reject::WrongTransport, |p| p.bth.opcode = Opcode::UcSendOnly.code()),
        (Reject::WrongAddress, |p| p.ip.source += 1),
        (Reject::WrongAddress, |p| p.ip.destination += 1),
        (Reject::BadPkey, |p| p.bth.pkey = 0x8001),
    ];
    for (reject, change) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(deliver(&mut pair, &bad), (Some(reject), None));
    }
    let frame = good.build();
    for (byte, reject) in [
        (17, Reject::BadIpHeader),
        (24, Reject::BadIpHeader),
        (39, Reject::BadUdpLength),
        (60, Reject::BadIcrc),
    ] {
        let mut bad = frame.clone();
        bad[byte] ^= 1;
        assert_eq!(pair.b.receive(0, &bad), Some(reject), "byte {byte}");
    }
    for length in 0..frame.len() {
        assert!(pair.b.receive(0, &frame[..length]).is_some(), "{length} bytes");
    }
    for total in 0..frame.len() as u16 - 14 {
        let mut bad = frame.clone();
        bad[16..18].copy_from_slice(&total.to_be_bytes());
        let checksum = contract::wire::ipv4_checksum(bad[14..].first_chunk().expect("an IPv4 header"));
        bad[24..26].copy_from_slice(&checksum.to_be_bytes());
        let reject = match total {
            0..20 => Reject::BadIpHeader,
            20..28 => Reject::Runt,
            _ => Reject::BadUdpLength,
        };
        assert_eq!(pair.b.receive(0, &bad), Some(reject), "a total length of {total}");
    }
    assert_eq!(pair.b.poll_transmit(0), None);
    assert_eq!(pair.completions(B), []);
    // A limited member of the partition is heard, and Ethernet padding is no payload.
    let limited = crafted(&pair, Opcode::RcSendOnly, 0, 8, |p| p.bth.pkey = 0x7fff);
    let mut padded = limited.build();
    padded.extend([0; 20]);
    assert_eq!(pair.b.receive(0, &padded), None);
    assert_eq!(pair.completions(B)[0].data, pattern(8));
}

#[test]
fn a_congestion_notification_disturbs_no_sequence() {
    let mut pair = plain();
    pair.recv(1, 64);
    let cnp = crafted(&pair, Opcode::Cnp, 0, 16, |p| p.bth.becn = true);
    assert_eq!(deliver(&mut pair, &cnp), (None, None));
    pair.send(1, small(1));
    pair.run_clean();
    assert_eq!(pair.ends(A), [(1, OK)]);
}

#[test]
fn answers_that_acknowledge_nothing_are_ignored() {
    let mut pair = plain();
    pair.send(1, small(1));
    pair.send(2, small(2));
    assert_eq!(pair.sent().len(), 2);
    let mut answer = |psn, syndrome, expected: Option<Reject>| {
        let change = |packet: &mut Packet| packet.aeth = Some(Aeth { syndrome, msn: 0 });
        let found = pair.respond(Opcode::RcAcknowledge, psn, change);
        assert_eq!(found, expected, "PSN {psn:#x} syndrome {syndrome:#x}");
    };
    answer(2, 0x1f, Some(Reject::ResponseUnexpected));
    answer(0x7f_ffff, 0x62, Some(Reject::ResponseUnexpected));
    answer(0xff_ffff, 0x62, Some(Reject::ResponseStale));
    answer(0, 0x41, Some(Reject::NakReserved));
    answer(0, 0x64, Some(Reject::NakReserved));
    answer(0, 0x7f, Some(Reject::NakReserved));
    answer(0, 0x00, None);
    answer(0, 0x60, Some(Reject::ResponseStale));
    answer(1, 0x1f, None);
    assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
}

#[test]
fn one_ack_retires_all_requests_before_it_and_unsignaled_ones_leave_no_trace() {
    let mut pair = Pair::connected(|_, params| params.tuning.coalesce_acks = true);
    let qa = pair.qa;
    for wr_id in 0..4 {
        pair.recv(wr_id, 16);
        let mut wr = SendWr::new(wr_id, SendOp::Send { imm: None }, small(wr_id));
        wr.signaled = wr_id == 2;
        pair.a.post_send(qa, wr).expect("post");
    }
    pair.run_clean();
    assert_eq!(pair.answers(B), [(3, 0x1f, 4)]);
    assert_eq!(pair.ends(A), [(2, OK)]);
    assert_eq!(pair.completions(B).len(), 4);
    assert!(pair.a.is_idle(qa));
}

#[test]
fn an_ack_is_asked_for_at_the_last_packet_at_the_interval_and_at_the_edge_of_the_window() {
    let asked = |interval, window| {
        let mut pair = Pair::connected(|_, params| {
            params.tuning.ack_req_interval = interval;
            params.tuning.window = window;
            params.path_mtu = PathMtu::Mtu256;
        });
        pair.recv(1, 256 * 40);
        pair.send(1, pattern(256 * 40));
        let burst: Vec<u32> = pair.sent().iter().filter(|p| p.bth.ack_req).map(|p| p.bth.psn).collect();
        burst
    };
    assert_eq!(asked(16, 128), [15, 31, 39]);
    assert_eq!(asked(0, 128), [39]);
    assert_eq!(asked(0, 5), [4]);
    assert_eq!(asked(0, 40), [39]);
}

#[test]
fn a_responder_may_acknowledge_unasked_at_its_own_interval() {
    let mut pair = Pair::connected(|_, params| {
        params.tuning.ack_req_interval = 0;
        params.tuning.ack_interval = 4;
    });
    pair.recv(1, 10 * 1024);
    pair.send(1, pattern(10 * 1024));
    pair.run_clean();
    assert_eq!(pair.answers(B), [(3, 0x1f, 0), (7, 0x1f, 0), (9, 0x1f, 1)]);
}

#[test]
fn a_window_smaller_than_the_message_slides_without_a_timeout() {
    let mut pair = Pair::connected(|_, params| params.tuning.window = 3);
    pair.recv(1, 20_000);
    pair.send(1, pattern(20_000));
    pair.run_clean();
    assert_eq!(pair.completions(B)[0].data, pattern(20_000));
    assert_eq!(pair.a.retransmits(pair.qa), 0);
    assert!(pair.now < 100 * DELAY);
}

#[test]
fn psns_wrap_in_the_middle_of_a_message() {
    let mut pair = Pair::connected(|side, params| {
        params.sq_psn = if side == A { 0xff_fffe } else { 0 };
        params.rq_psn = if side == B { 0xff_fffe } else { 0 };
    });
    pair.recv(1, 5000);
    pair.send(1, pattern(5000));
    pair.run_losing(Time::MAX, A, &[3]);
    assert_eq!(pair.psns(A), [0xff_fffe, 0xff_ffff, 0, 1, 2, 0, 1, 2]);
    assert_eq!(pair.completions(B)[0].data, pattern(5000));
}

#[test]
fn the_oldest_duplicate_and_the_farthest_gap_are_told_apart() {
    let mut pair = plain();
    pair.recv(1, 64);
    let oldest = crafted(&pair, Opcode::RcSendOnly, 0x80_0000, 8, |_| {});
    assert_eq!(deliver(&mut pair, &oldest), (Some(Reject::Duplicate), Some((0xff_ffff, 0x1f))));
    let farthest = crafted(&pair, Opcode::RcSendOnly, 0x7f_ffff, 8, |_| {});
    assert_eq!(deliver(&mut pair, &farthest), (Some(Reject::PsnOutOfSequence), Some((0, 0x60))));
    assert_eq!(deliver(&mut pair, &farthest), (Some(Reject::PsnOutOfSequenceRepeat), None));
    // The answer to a duplicate arms the NAK again.
    assert_eq!(deliver(&mut pair, &oldest).1, Some((0xff_ffff, 0x1f)));
    assert_eq!(deliver(&mut pair, &farthest).1, Some((0, 0x60)));
    assert_eq!(pair.completions(B), []);
}

#[test]
fn posting_in_the_wrong_state_is_refused_and_names_the_remedy() {
    let mut pair = plain();
    let (qa, wr) = (pair.qa, SendWr::new(1, SendOp::Send { imm: None }, vec![]));
    let recv = RecvWr { wr_id: 1, landing: Landing::Owned(1) };
    pair.a.modify(qa, QpState::Reset).expect("RESET is always legal");
    let error = pair.a.post_recv(qa, recv).expect_err("RESET takes no receives");
    assert!(error.to_string().contains("INIT"), "{error}");
    assert!(matches!(pair.a.post_send(qa, wr.clone()), Err(Error::WrongState { state: QpState::Reset, .. })));
    pair.a.modify(qa, QpState::Init).expect("RESET to INIT");
    pair.a.post_recv(qa, recv).expect("INIT takes receives");
    assert!(matches!(pair.a.modify(qa, QpState::Rts), Err(Error::WrongState { .. })));
    let params = peer::QpParams::to(pair.b.address(pair.qb));
    let bad = peer::QpParams { timeout: 32, ..params };
    assert!(matches!(pair.a.connect(qa, bad), Err(Error::BadParameter { limit: 31, .. })));
    pair.a.ready_to_receive(qa, params).expect("INIT to RTR");
    assert!(matches!(pair.a.post_send(qa, wr.clone()), Err(Error::WrongState { state: QpState::Rtr, .. })));
    pair.a.modify(qa, QpState::Rts).expect("RTR to RTS");
    pair.a.post_send(qa, wr).expect("RTS takes sends");
    assert!(matches!(pair.a.connect(qa, params), Err(Error::WrongState { .. })));
    assert!(matches!(pair.a.modify(0x999, QpState::Err), Err(Error::UnknownQp { .. })));
}

#[test]
fn reset_forgets_everything_without_a_completion_and_the_pair_works_again() {
    let mut pair = plain();
    pair.send(1, small(1));
    let (qa, qb) = (pair.qa, pair.qb);
    pair.a.modify(qa, QpState::Reset).expect("RESET");
    pair.b.modify(qb, QpState::Reset).expect("RESET");
    pair.run_clean();
    assert_eq!(pair.ends(A), []);
    let (to_a, to_b) = (peer::QpParams::to(pair.a.address(qa)), peer::QpParams::to(pair.b.address(qb)));
    pair.a.connect(qa, to_b).expect("connect");
    pair.b.connect(qb, to_a).expect("connect");
    pair.recv(2, 16);
    pair.send(2, small(2));
    pair.run_clean();
    assert_eq!(pair.ends(A), [(2, OK)]);
}

#[test]
fn a_queue_pair_that_is_only_ready_to_receive_answers_and_tells_of_its_first_packet() {
    let mut pair = plain();
    let qb = pair.qb;
    pair.b.modify(qb, QpState::Reset).expect("RESET");
    let to_a = peer::QpParams::to(pair.a.address(pair.qa));
    pair.b.ready_to_receive(qb, to_a).expect("RTR");
    pair.recv(1, 16);
    pair.recv(2, 16);
    pair.send(1, small(1));
    pair.send(2, small(2));
    pair.run_clean();
    assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
    assert_eq!(pair.b.poll_event().map(|event| event.kind), Some(AsyncEvent::CommEst));
    assert_eq!(pair.b.poll_event(), None);
}

#[test]
fn a_draining_send_queue_finishes_what_it_began_and_begins_nothing() {
    let mut pair = plain();
    let qa = pair.qa;
    pair.recv(1, 5000);
    pair.recv(2, 5000);
    pair.send(1, pattern(3000));
    pair.send(2, small(2));
    let first = pair.a.poll_transmit(0).expect("the first packet");
    pair.b.receive(0, &first);
    pair.a.modify(qa, QpState::Sqd).expect("RTS to SQD");
    assert_eq!(pair.a.poll_event(), None);
    pair.run_clean();
    assert_eq!(pair.ends(A), [(1, OK)]);
    let drained = peer::Event { qpn: qa, kind: AsyncEvent::SqDrained };
    assert_eq!(pair.a.poll_event(), Some(drained));
    pair.a.modify(qa, QpState::Rts).expect("SQD to RTS");
    pair.run_clean();
    assert_eq!(pair.ends(A), [(2, OK)]);
    assert_eq!(pair.a.poll_event(), None);
    // Nothing is under way: drained at once.
    pair.a.modify(qa, QpState::Sqd).expect("RTS to SQD");
    assert_eq!(pair.a.poll_event(), Some(drained));
}

#[test]
fn several_queue_pairs_take_turns_packet_by_packet() {
    let mut pair = plain();
    let other = pair.a.create_qp(1);
    let far = pair.b.create_qp(1);
    let params = peer::QpParams::to(pair.b.address(far));
    pair.a.connect(other, params).expect("connect");
    pair.send(1, pattern(4096));
    pair.a.post_send(other, SendWr::new(1, SendOp::Send { imm: None }, pattern(4096))).expect("post");
    let order: Vec<u32> = pair.sent().iter().map(|p| p.bth.dest_qp).collect();
    let (one, two) = (pair.qb, far);
    assert_eq!(order, [one, two, one, two, one, two, one, two]);
}

#[test]
fn every_frame_carries_what_a_kernel_peer_would_send() {
    let mut pair = Pair::connected(|_, params| {
        params.tos = 0x6a;
        params.tuning.mig_req = true;
    });
    pair.recv(1, 64);
    let qa = pair.qa;
    let mut wr = SendWr::new(1, SendOp::Send { imm: Some(0xdead_beef) }, vec![1, 2, 3, 4, 5]);
    wr.solicited = true;
    pair.a.post_send(qa, wr).expect("post");
    pair.run_clean();
    for seen in &pair.seen {
        let p = &seen.packet;
        assert!(p.ip.dont_fragment && p.ip.ttl == 64 && p.ip.dscp == 0x1a && p.ip.ecn == 2);
        assert_eq!((p.udp.checksum, p.udp.destination_port, p.bth.pkey), (0, 4791, 0xffff));
        assert_eq!(p.udp.source_port, contract::wire::udp_source_port(0, pair.qa, pair.qb));
        assert!(p.bth.mig_req);
    }
    let request = &pair.seen[0].packet;
    let line = "RcSendOnlyImm to QP 0x11 PSN 0x000000 AckReq immediate 0xdeadbeef payload 5";
    assert_eq!(request.to_string(), line);
    assert_eq!(
        pair.seen[1].packet.to_string(),
        "RcAcknowledge to QP 0x12 PSN 0x000000 Ack(31) MSN 1 payload 0"
    );
    assert_eq!((request.bth.pad_count, request.bth.solicited, request.bth.ack_req), (3, true, true));
    assert_eq!(request.opcode().map(|o| o.row().kind), Some(Kind::Send));
    let done = pair.completions(B).remove(0);
    assert!(done.solicited);
    assert_eq!((done.imm, done.data), (Some(0xdead_beef), vec![1, 2, 3, 4, 5]));
    assert_eq!(pair.seen[1].packet.aeth, Some(Aeth { syndrome: Syndrome::ACK, msn: 1 }));
}
