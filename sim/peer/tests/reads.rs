//! READs told one rule at a time: PSNs, loss at every place, duplicates, limits, faults of either side.

mod common;

use common::*;
use contract::timer::{rnr_ns, timeout_ns};
use contract::verbs::access;
use contract::{Aeth, AsyncEvent, Opcode, PathMtu, QpState, Reject, Reth, Syndrome, WcOpcode, WcStatus};
use peer::{Landing, NANOSECOND, Packet, Region, SendOp, SendWr, Time, Tuning};

const VA: u64 = 0x7fff_1000_0003;

fn timeout() -> Time {
    timeout_ns(14).expect("a timeout") * NANOSECOND
}

/// A READ request from A's QP.
fn request(pair: &Pair, psn: u32, rkey: u32, va: u64, length: usize) -> Packet {
    let reth = Reth { va, rkey, dma_length: length as u32 };
    crafted(pair, Opcode::RcReadRequest, psn, 0, |packet| packet.reth = Some(reth))
}

/// Opcode and PSN of each packet.
fn heads(packets: &[Packet]) -> Vec<(Opcode, u32)> {
    packets.iter().map(|p| (p.opcode().expect("a known opcode"), p.bth.psn)).collect()
}

/// All payload.
fn payload(packets: &[Packet]) -> Vec<u8> {
    packets.iter().flat_map(|p| p.payload.clone()).collect()
}

/// The READ requests that A has sent: PSN, offset, length.
fn requests(pair: &Pair) -> Vec<(u32, u64, u32)> {
    let all = pair.packets(A).into_iter().filter(|p| p.opcode() == Some(Opcode::RcReadRequest));
    all.filter_map(|p| p.reth.map(|reth| (p.bth.psn, reth.va - VA, reth.dma_length))).collect()
}

#[test]
fn every_length_and_alignment_is_read_whole_into_either_kind_of_landing() {
    for mtu in PathMtu::ALL {
        let m = mtu.bytes() as usize;
        let mut pair = Pair::open(|_, params| params.path_mtu = *mtu);
        let memory = pattern(4 * m + 64);
        let rkey = pair.shared(VA, memory.clone());
        let own = Region { pd: 1, va: 0x5000, access: access::LOCAL_WRITE, bytes: vec![0; 4 * m] };
        let lkey = pair.a.register(own);
        let mut psn = 0;
        for length in [0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 65, m - 1, m, m + 1, 2 * m, 3 * m + 3] {
            for at in [0, 1, 2, 3, 4, 7, 33, 64] {
                let landing = Landing::Region { lkey, va: 0x5000 + at / 2, length };
                pair.read(1, rkey, VA + at, length);
                let op = SendOp::Read { va: VA + at, rkey, landing };
                pair.post(SendWr::new(2, op, vec![]));
                let before = pair.seen.len();
                pair.run_clean();
                let expected = &memory[at as usize..at as usize + length];
                let done = pair.completions(A);
                assert_eq!(done.len(), 2);
                assert_eq!((done[0].opcode, done[0].status), (WcOpcode::RdmaRead, OK));
                assert_eq!((done[0].byte_len as usize, done[1].byte_len as usize), (length, length));
                assert!(done[0].data == expected, "{length} bytes at {at}");
                let start = at as usize / 2;
                let landed = &pair.a.region(lkey).expect("a region").bytes[start..start + length];
                assert!(landed == expected, "{length} bytes at {at} in a region");
                // Each response packet takes a PSN; one of nothing takes one too.
                let packets = length.div_ceil(m).max(1) as u32;
                let answers: Vec<u32> = pair.seen[before..]
                    .iter()
                    .filter(|seen| seen.from == B)
                    .map(|seen| seen.packet.bth.psn)
                    .collect();
                assert_eq!(answers, (psn..psn + 2 * packets).collect::<Vec<_>>());
                psn += 2 * packets;
            }
        }
    }
}

#[test]
fn a_read_takes_the_psns_of_its_response_and_counts_as_one_message() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(3000));
    pair.recv(1, 16);
    pair.read(1, key, VA, 2500);
    pair.read(2, key, VA, 0);
    pair.send(3, small(3));
    pair.run_clean();
    use Opcode::*;
    assert_eq!(pair.opcodes(A), [(RcReadRequest, 0), (RcReadRequest, 3), (RcSendOnly, 4)]);
    assert_eq!(
        pair.opcodes(B),
        [
            (RcReadResponseFirst, 0),
            (RcReadResponseMiddle, 1),
            (RcReadResponseLast, 2),
            (RcReadResponseOnly, 3),
            (RcAcknowledge, 4)
        ]
    );
    assert_eq!(pair.answers(B), [(0, 0x1f, 1), (2, 0x1f, 1), (3, 0x1f, 2), (4, 0x1f, 3)]);
    assert!(pair.packets(A).iter().all(|p| p.bth.ack_req && !p.bth.solicited));
    assert_eq!(pair.ends(A), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn psns_wrap_in_the_middle_of_a_read() {
    for lost in [None, Some(2), Some(4)] {
        let mut pair = Pair::open(|side, params| {
            params.sq_psn = if side == A { 0xff_fffe } else { 0 };
            params.rq_psn = if side == B { 0xff_fffe } else { 0 };
        });
        let key = pair.shared(VA, pattern(5000));
        pair.read(1, key, VA, 5000);
        pair.read(2, key, VA + 7, 1);
        pair.run_losing(Time::MAX, B, lost.as_slice());
        assert_eq!(pair.psns(A)[..2], [0xff_fffe, 3]);
        assert_eq!(pair.psns(B)[..6], [0xff_fffe, 0xff_ffff, 0, 1, 2, 3]);
        let done = pair.completions(A);
        assert_eq!((&done[0].data, &done[1].data), (&pattern(5000), &pattern(8)[7..].to_vec()));
    }
}

#[test]
fn whichever_response_is_lost_only_what_is_missing_is_asked_for_again_to_the_original_end() {
    for continues in [false, true] {
        for lost in 1..=5 {
            let mut pair = Pair::open(|_, params| params.tuning.replays_continue = continues);
            let key = pair.shared(VA, pattern(5000));
            pair.read(1, key, VA, 5000);
            pair.read(2, key, VA, 10);
            pair.run_losing(Time::MAX, B, &[lost]);
            assert!(pair.now < 20 * DELAY, "the response behind tells; no timeout is needed");
            let skipped = lost as u32 - 1;
            let again = (skipped, 1024 * u64::from(skipped), 5000 - 1024 * skipped);
            assert_eq!(requests(&pair), [(0, 0, 5000), (5, 0, 10), again, (5, 0, 10)]);
            use Opcode::*;
            let opcode = match (lost, continues) {
                (1, _) | (2..=4, false) => RcReadResponseFirst,
                (5, false) => RcReadResponseOnly,
                (5, true) => RcReadResponseLast,
                _ => RcReadResponseMiddle,
            };
            assert_eq!(pair.opcodes(B)[6], (opcode, skipped));
            let done = pair.completions(A);
            assert_eq!((&done[0].data, &done[1].data), (&pattern(5000), &pattern(10)));
        }
    }
}

#[test]
fn a_last_response_that_is_lost_with_nothing_behind_it_is_asked_for_at_the_timeout() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(3000));
    pair.read(1, key, VA, 3000);
    pair.run_losing(2 * DELAY + timeout() - 1, B, &[3]);
    assert_eq!(requests(&pair), [(0, 0, 3000)]);
    pair.run_clean();
    assert_eq!(requests(&pair), [(0, 0, 3000), (2, 2048, 952)]);
    assert_eq!(pair.seen[4].at, 2 * DELAY + timeout());
    assert_eq!(pair.completions(A)[0].data, pattern(3000));
}

#[test]
fn a_lost_request_is_named_by_the_nak_for_the_one_behind_it() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(3000));
    pair.read(1, key, VA, 3000);
    pair.read(2, key, VA, 3000);
    pair.run_losing(Time::MAX, A, &[1]);
    assert_eq!(pair.answers(B)[0], (0, 0x60, 0));
    assert_eq!(pair.psns(A), [0, 3, 0, 3]);
    assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
    assert!(pair.now < 20 * DELAY);
}

#[test]
fn a_read_whose_response_is_lost_is_asked_for_again_and_not_skipped_by_a_later_ack() {
    // The ACK of the first WRITE and the READ's response are lost; only the ACK of the last WRITE arrives.
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(3000));
    pair.write(1, key, VA, small(1));
    pair.read(2, key, VA, 2000);
    pair.write(3, key, VA + 2048, small(3));
    pair.run_losing(3 * DELAY, B, &[1, 2, 3]);
    // It acknowledges the first WRITE, though.
    assert_eq!(pair.ends(A), [(1, OK)]);
    assert_eq!(pair.a.rejects(Reject::ResponseGap), 1);
    pair.run_clean();
    assert_eq!(pair.psns(A), [0, 1, 3, 1, 3]);
    let done = pair.completions(A);
    assert_eq!((done[0].wr_id, done[1].wr_id), (2, 3));
    assert_eq!(done[0].data[..16], small(1));
    assert_eq!(done[0].data[16..], pattern(3000)[16..2000]);
    assert!(pair.now < 20 * DELAY);
}

#[test]
fn many_answers_behind_a_missing_one_are_one_reason_to_ask_again() {
    for (retry_cnt, end) in [(1, OK), (0, WcStatus::RetryExcErr)] {
        let mut pair = Pair::open(|_, params| params.retry_cnt = retry_cnt);
        let key = pair.shared(VA, pattern(3000));
        pair.read(1, key, VA, 16);
        for n in 2..12 {
            pair.write(n, key, VA + 2048, small(n));
        }
        pair.run_losing(Time::MAX, B, &[1]);
        let ends = pair.ends(A);
        assert_eq!(ends.len(), 11);
        assert_eq!(ends[0], (1, end));
        assert_eq!(requests(&pair).len(), 1 + usize::from(retry_cnt));
        if retry_cnt > 0 {
            assert!(ends.iter().all(|(_, status)| *status == OK));
            assert_eq!(pair.a.rejects(Reject::ResponseGap), 10);
        }
    }
}

#[test]
fn a_gap_noticed_again_after_the_timeout_is_answered_at_once_again() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(3000));
    pair.read(1, key, VA, 16);
    pair.write(2, key, VA, small(2));
    // Lost: the response, its repetition after the gap, and its repetition after the timeout.
    pair.run_losing(Time::MAX, B, &[1, 3, 5]);
    let times: Vec<Time> =
        pair.seen.iter().filter(|s| s.from == A && s.packet.bth.psn == 0).map(|s| s.at).collect();
    let late = 2 * DELAY + timeout();
    assert_eq!(times, [0, 2 * DELAY, late, late + 2 * DELAY]);
    assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
}

#[test]
fn a_response_acknowledges_the_writes_before_it() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(3000));
    pair.write(1, key, VA, small(1));
    pair.write(2, key, VA + 16, small(2));
    pair.read(3, key, VA, 32);
    pair.run_losing(Time::MAX, B, &[1, 2]);
    let done = pair.completions(A);
    assert_eq!(done.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(done[2].data, [small(1), small(2)].concat());
    assert_eq!(pair.psns(A), [0, 1, 2]);
}

#[test]
fn an_ack_at_a_reads_own_psns_does_not_complete_it() {
    for psn in [0, 1, 2] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(VA, pattern(3000));
        pair.read(1, key, VA, 3000);
        assert_eq!(pair.sent().len(), 1);
        assert_eq!(pair.respond(Opcode::RcAcknowledge, psn, |_| {}), Some(Reject::ResponseGap));
        assert_eq!(pair.ends(A), []);
        pair.run_clean();
        assert_eq!(pair.completions(A)[0].data, pattern(3000));
    }
}

#[test]
fn no_more_reads_are_out_than_negotiated_and_what_follows_keeps_its_place() {
    for depth in [1, 2, 3, 16] {
        let mut pair = Pair::open(|_, params| params.max_rd_atomic = depth);
        let key = pair.shared(VA & !7, pattern(3000));
        pair.recv(9, 16);
        for n in 0..20 {
            if n % 3 == 1 {
                pair.fetch_add(n, key, VA & !7, 1);
            } else {
                pair.read(n, key, VA, 100);
            }
        }
        pair.send(20, small(20));
        assert_eq!(pair.sent().len(), depth.into(), "depth {depth}");
        // What was sent is lost; all goes again after the timeout, never more at a time.
        let (mut out, mut most) = (0, 0);
        pair.run(Time::MAX, &mut |from, _, bytes| {
            let packet = Packet::parse(&bytes).expect("well-formed");
            match (from, packet.aeth, packet.bth.psn) {
                (A, _, 20) | (B, Some(_), 20) => {}
                (A, ..) => out += 1,
                (B, ..) => out -= 1,
            }
            most = most.max(out);
            vec![(0, bytes)]
        });
        assert_eq!(most, depth, "depth {depth}");
        assert_eq!(pair.psns(A), (0..=20).collect::<Vec<_>>());
        assert_eq!(pair.ends(A), (0..=20).map(|n| (n, OK)).collect::<Vec<_>>());
    }
}

#[test]
fn without_a_depth_no_read_may_be_posted() {
    let mut pair = Pair::open(|_, params| params.max_rd_atomic = 0);
    let qa = pair.qa;
    let op = SendOp::Read { va: 0, rkey: 0, landing: Landing::Owned(8) };
    let error = pair.a.post_send(qa, SendWr::new(1, op, vec![])).expect_err("no READs");
    assert!(error.to_string().contains("max_rd_atomic"), "{error}");
    pair.recv(1, 16);
    pair.send(2, small(2));
    pair.run_clean();
    assert_eq!(pair.ends(A), [(2, OK)]);
    let params = peer::QpParams::to(pair.b.address(pair.qb));
    pair.a.modify(qa, QpState::Reset).expect("RESET");
    let deep = peer::QpParams { max_rd_atomic: 17, ..params };
    assert!(matches!(pair.a.connect(qa, deep), Err(peer::Error::BadParameter { limit: 16, .. })));
}

#[test]
fn one_read_more_than_negotiated_is_answered_0x61_behind_the_answers_owed() {
    for depth in [0, 1, 2, 16] {
        let mut pair = Pair::open(|_, params| params.max_dest_rd_atomic = depth);
        let key = pair.shared(0, pattern(3000));
        for n in 0..u32::from(depth) {
            let frame = request(&pair, n, key, 0, 8).build();
            assert_eq!(pair.b.receive(0, &frame), None);
        }
        let (reject, answers) = pair.ask(&request(&pair, depth.into(), key, 0, 8));
        assert_eq!(reject, Some(Reject::ReadDepth));
        let mut expected = vec![0x1f; depth.into()];
        expected.push(0x61);
        assert_eq!(acks(&answers).iter().map(|(_, syndrome)| *syndrome).collect::<Vec<_>>(), expected);
        assert_eq!(answers.last().map(|p| p.bth.psn), Some(depth.into()));
        assert_eq!(pair.b.state(pair.qb), Some(QpState::Err));
    }
    // Answered ones do not count.
    let mut pair = Pair::open(|_, params| params.max_dest_rd_atomic = 1);
    let key = pair.shared(0, pattern(3000));
    for psn in 0..40 {
        assert_eq!(pair.ask(&request(&pair, psn, key, 0, 8)).0, None);
    }
}

#[test]
fn a_duplicate_reads_memory_again_from_any_place_and_changes_nothing_else() {
    for continues in [false, true] {
        let mut pair = Pair::open(|_, params| params.tuning.replays_continue = continues);
        let key = pair.shared(VA, pattern(5000));
        let (reject, first) = pair.ask(&request(&pair, 0, key, VA, 5000));
        assert_eq!((reject, payload(&first)), (None, pattern(5000)));
        // A WRITE is half received meanwhile.
        let mut write = crafted(&pair, Opcode::RcWriteFirst, 5, 1024, |_| {});
        write.reth = Some(Reth { va: VA + 100, rkey: key, dma_length: 2048 });
        assert_eq!(pair.ask(&write), (None, vec![]));
        let memory = pair.bytes(key).to_vec();
        for (skip, length) in [(0, 5000), (1, 3976), (3, 1928), (4, 904), (2, 100), (2, 1024), (4, 1)] {
            let at = 1024 * skip as usize;
            let (reject, answers) = pair.ask(&request(&pair, skip, key, VA + at as u64, length));
            assert_eq!(reject, Some(Reject::Duplicate));
            assert!(payload(&answers) == memory[at..at + length], "{length} bytes from PSN {skip}");
            let count = length.div_ceil(1024) as u32;
            assert_eq!(heads(&answers).iter().map(|(_, psn)| *psn).collect::<Vec<_>>(), {
                (skip..skip + count).collect::<Vec<_>>()
            });
            use Opcode::*;
            let opcode = match (count, continues && skip > 0) {
                (1, false) => RcReadResponseOnly,
                (1, true) => RcReadResponseLast,
                (_, false) => RcReadResponseFirst,
                (_, true) => RcReadResponseMiddle,
            };
            assert_eq!(heads(&answers)[0].0, opcode);
        }
        // The WRITE goes on, the MSN counts the READ once.
        let last = crafted(&pair, Opcode::RcWriteLast, 6, 1024, |_| {});
        let (reject, answers) = pair.ask(&last);
        assert_eq!((reject, acks(&answers)), (None, vec![(6, 0x1f)]));
        assert_eq!(answers[0].aeth.map(|aeth| aeth.msn), Some(2));
    }
}

#[test]
fn a_duplicate_that_is_not_part_of_a_kept_read_is_dropped_in_silence() {
    let mut pair = Pair::open(|_, params| params.max_dest_rd_atomic = 2);
    let key = pair.shared(VA, pattern(9000));
    let other = pair.shared(VA, pattern(9000));
    for (psn, length) in [(0, 100), (1, 3000), (4, 100)] {
        assert_eq!(pair.ask(&request(&pair, psn, key, VA + 8, length)).0, None);
    }
    let mut loaded = request(&pair, 1, key, VA + 8, 3000);
    loaded.payload = vec![0; 4];
    for packet in [
        // The oldest is kept no longer.
        request(&pair, 0, key, VA + 8, 100),
        // One byte before, one byte behind, another key, more PSNs than are left, a wrap, another kind, a payload.
        request(&pair, 1, key, VA + 7, 3000),
        request(&pair, 1, key, VA + 9, 3000),
        request(&pair, 1, other, VA + 8, 3000),
        request(&pair, 3, key, VA + 8, 2000),
        request(&pair, 1, key, u64::MAX, 3000),
        crafted(&pair, Opcode::RcFetchAdd, 1, 0, |_| {}),
        loaded,
    ] {
        assert_eq!(pair.ask(&packet), (Some(Reject::Duplicate), vec![]), "{packet}");
    }
    // Its key is gone: still no NAK.
    let whole = request(&pair, 1, key, VA + 8, 3000);
    assert_eq!(pair.ask(&whole).1.len(), 3);
    pair.b.deregister(key);
    assert_eq!(pair.ask(&whole), (Some(Reject::Duplicate), vec![]));
    assert_eq!(pair.b.state(pair.qb), Some(QpState::Rts));
}

#[test]
fn a_duplicate_while_its_response_is_being_sent_is_answered_after_it() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(3000));
    let frame = request(&pair, 0, key, VA, 3000).build();
    assert_eq!(pair.b.receive(0, &frame), None);
    let mut answers: Vec<Packet> = Vec::new();
    let begun = pair.b.poll_transmit(0).expect("the first packet");
    answers.push(Packet::parse(&begun).expect("well-formed"));
    let (reject, rest) = pair.ask(&request(&pair, 0, key, VA, 3000));
    assert_eq!(reject, Some(Reject::Duplicate));
    answers.extend(rest);
    assert_eq!(heads(&answers).iter().map(|(_, psn)| *psn).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    assert_eq!(payload(&answers), [pattern(3000), pattern(3000)].concat());
}

#[test]
fn duplicates_take_no_room_of_reads_not_yet_answered() {
    let mut pair = Pair::open(|_, params| params.max_dest_rd_atomic = 2);
    let key = pair.shared(VA, pattern(3000));
    assert_eq!(pair.ask(&request(&pair, 0, key, VA, 8)).0, None);
    for (psn, reject) in [
        (0, Some(Reject::Duplicate)),
        (0, Some(Reject::Duplicate)),
        (1, None),
        (2, None),
        (3, Some(Reject::ReadDepth)),
    ] {
        let frame = request(&pair, psn, key, VA, 8).build();
        assert_eq!(pair.b.receive(0, &frame), reject);
    }
}

#[test]
fn the_answer_to_any_duplicate_arms_the_sequence_nak_again() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA & !7, pattern(3000));
    let atomic = contract::AtomicEth { va: VA & !7, rkey: key, swap_or_add: 1, compare: 0 };
    let add = crafted(&pair, Opcode::RcFetchAdd, 1, 0, |packet| packet.atomic = Some(atomic));
    let read = request(&pair, 0, key, VA, 8);
    let foreign = request(&pair, 0, key ^ 1, VA, 8);
    let gap = request(&pair, 5, key, VA, 8);
    assert_eq!((pair.ask(&read).0, pair.ask(&add).0), (None, None));
    for (before, naks) in [(&read, 1), (&gap, 0), (&add, 1), (&foreign, 0), (&read, 1)] {
        pair.ask(before);
        let (_, answers) = pair.ask(&gap);
        assert_eq!(acks(&answers), vec![(2, 0x60); naks]);
    }
}

#[test]
fn no_answer_overtakes_a_response_that_is_owed() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA & !7, pattern(3000));
    pair.recv(1, 16);
    pair.read(1, key, VA, 2500);
    pair.send(2, small(2));
    pair.fetch_add(3, key, VA & !7, 1);
    pair.read(4, key, VA, 10);
    pair.write(5, key + 0x100, VA, small(5));
    for packet in pair.sent() {
        pair.b.receive(0, &packet.build());
    }
    let answers: Vec<Packet> = std::iter::from_fn(|| pair.b.poll_transmit(0))
        .map(|frame| Packet::parse(&frame).expect("well-formed"))
        .collect();
    assert_eq!(answers.iter().map(|p| p.bth.psn).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(answers[6].aeth, Some(Aeth { syndrome: 0x62, msn: 4 }));
}

#[test]
fn a_duplicate_send_is_acknowledged_up_to_the_first_read_behind_it() {
    let mut pair = Pair::open(|_, params| params.max_dest_rd_atomic = 2);
    let key = pair.shared(VA, pattern(3000));
    for wr_id in 0..8 {
        pair.recv(wr_id, 16);
    }
    let send = |pair: &Pair, psn| crafted(pair, Opcode::RcSendOnly, psn, 8, |_| {});
    let again = |pair: &mut Pair, psn| {
        let (reject, answers) = pair.ask(&send(pair, psn));
        assert_eq!(reject, Some(Reject::Duplicate));
        acks(&answers)
    };
    // SEND 0, SEND 1, READ 2..=4, SEND 5, READ 6, SEND 7
    for psn in [0, 1] {
        pair.ask(&send(&pair, psn));
    }
    assert_eq!(again(&mut pair, 0), [(1, 0x1f)]);
    pair.ask(&request(&pair, 2, key, VA, 3000));
    pair.ask(&send(&pair, 5));
    assert_eq!(again(&mut pair, 0), [(1, 0x1f)]);
    assert_eq!(again(&mut pair, 5), [(5, 0x1f)]);
    pair.ask(&request(&pair, 6, key, VA, 30));
    pair.ask(&send(&pair, 7));
    assert_eq!(again(&mut pair, 1), [(1, 0x1f)]);
    assert_eq!(again(&mut pair, 5), [(5, 0x1f)]);
    assert_eq!(again(&mut pair, 7), [(7, 0x1f)]);
    assert_eq!(pair.completions(B).len(), 4);
}

#[test]
fn a_key_that_does_not_allow_the_read_is_answered_0x62_and_both_ends_stop() {
    let base = 0x1000;
    let readable = access::REMOTE_READ;
    for (reject, va, length, rights, pd) in [
        (None, base, 64, readable, 1),
        (None, base + 63, 1, readable, 1),
        (None, base + 64, 0, 0, 2),
        (Some(Reject::RkeyBounds), base, 65, readable, 1),
        (Some(Reject::RkeyBounds), base + 64, 1, readable, 1),
        (Some(Reject::RkeyBounds), base - 1, 2, readable, 1),
        (Some(Reject::RkeyBounds), u64::MAX, 2, readable, 1),
        (Some(Reject::RkeyPd), base, 64, readable, 2),
        (Some(Reject::RkeyRights), base, 64, ALL & !access::REMOTE_READ, 1),
        (Some(Reject::RkeyTag), base, 64, readable, 1),
        (Some(Reject::RkeyUnknown), base, 64, readable, 1),
    ] {
        let mut pair = Pair::open(|_, _| {});
        let mut key = pair.b.register(Region { pd, va: base, access: rights, bytes: vec![7; 64] });
        match reject {
            Some(Reject::RkeyTag) => key ^= 1,
            Some(Reject::RkeyUnknown) => key += 0x100,
            _ => {}
        }
        pair.read(1, key, va, length);
        pair.read(2, key, va, 0);
        pair.run_clean();
        if let Some(reject) = reject {
            assert_eq!(pair.answers(B), [(0, 0x62, 0)], "{reject:?}");
            assert_eq!(pair.b.rejects(reject), 1, "{reject:?}");
            assert_eq!(pair.ends(A), [(1, WcStatus::RemAccessErr), (2, FLUSHED)]);
            assert_eq!(pair.b.poll_event().map(|event| event.kind), Some(AsyncEvent::QpAccessErr));
        } else {
            assert_eq!(pair.ends(A), [(1, OK), (2, OK)]);
        }
    }
}

#[test]
fn a_zero_length_read_names_no_memory_but_needs_the_permission() {
    let mut pair = Pair::open(|_, _| {});
    pair.read(1, 0xdead_be00, u64::MAX, 0);
    pair.run_clean();
    assert_eq!(pair.ends(A), [(1, OK)]);
    let mut pair = Pair::open(|_, params| params.access &= !access::REMOTE_READ);
    pair.read(1, 0, 0, 0);
    pair.run_clean();
    assert_eq!(pair.answers(B), [(0, 0x61, 0)]);
    assert_eq!(pair.b.rejects(Reject::AccessDenied), 1);
    assert_eq!(pair.ends(A), [(1, WcStatus::RemInvReqErr)]);
}

#[test]
fn nothing_lands_anywhere() {
    let mut pair = Pair::open(|_, _| {});
    let landing = Landing::Region { lkey: 0xdead_be00, va: u64::MAX, length: 0 };
    pair.post(SendWr::new(1, SendOp::Read { va: 0, rkey: 0, landing }, vec![]));
    let qb = pair.qb;
    pair.b.post_recv(qb, peer::RecvWr { wr_id: 2, landing }).expect("post");
    pair.send(3, vec![]);
    pair.run_clean();
    assert_eq!((pair.ends(A), pair.ends(B)), (vec![(1, OK), (3, OK)], vec![(2, OK)]));
}

#[test]
fn a_malformed_read_is_answered_0x61() {
    for (length, payload, pad, reject) in [
        (1 << 31, 0, 0, Reject::RkeyBounds),
        ((1 << 31) + 1, 0, 0, Reject::BadLength),
        (8, 4, 0, Reject::BadLength),
        (8, 0, 1, Reject::BadLength),
    ] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(0, pattern(64));
        let mut packet = request(&pair, 0, key, 0, length);
        packet.payload = vec![0; payload];
        let mut frame = packet.build();
        // A pad without a payload that needs it: the last byte of the header counts as pad.
        if pad > 0 {
            frame[43] |= pad << 4;
            let icrc = frame.len() - 4;
            let repaired = contract::crc::icrc(&frame[14..icrc]).expect("IP");
            frame[icrc..].copy_from_slice(&repaired);
            assert_eq!(pair.b.receive(0, &frame), Some(Reject::Runt));
            continue;
        }
        assert_eq!(pair.b.receive(0, &frame), Some(reject));
        let answer = Packet::parse(&pair.b.poll_transmit(0).expect("a NAK")).expect("well-formed");
        let syndrome = if reject == Reject::BadLength { 0x61 } else { 0x62 };
        assert_eq!(answer.aeth.map(|aeth| aeth.syndrome), Some(syndrome));
    }
}

#[test]
fn a_response_that_may_not_land_fails_its_read_and_flushes_the_rest() {
    for (rights, va, status) in [
        (access::LOCAL_WRITE, 0, OK),
        (access::LOCAL_WRITE, 1, WcStatus::LocProtErr),
        (access::REMOTE_WRITE, 0, WcStatus::LocProtErr),
    ] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(VA, pattern(3000));
        let lkey = pair.a.register(Region { pd: 1, va: 0, access: rights, bytes: vec![0; 2000] });
        pair.write(1, key, VA, small(1));
        let landing = Landing::Region { lkey, va, length: 2000 };
        pair.post(SendWr::new(2, SendOp::Read { va: VA + 16, rkey: key, landing }, vec![]));
        pair.read(3, key, VA, 10);
        pair.run_clean();
        let rest = if status == OK { OK } else { FLUSHED };
        assert_eq!(pair.ends(A), [(1, OK), (2, status), (3, rest)]);
    }
}

#[test]
fn a_response_that_does_not_fit_its_request_fails_it() {
    let bad = WcStatus::BadRespErr;
    let length = WcStatus::LocLenErr;
    type Change = fn(&mut Packet);
    let nak: Change = |packet| packet.aeth = Some(Aeth { syndrome: Syndrome::NAK_REMOTE_ACCESS, msn: 0 });
    let fill = |bytes| move |packet: &mut Packet| packet.payload = vec![0; bytes];
    // READ 0..=2 of 2500 bytes, its first packet answered; the next one is this.
    use Opcode::*;
    let second = |opcode, change: &dyn Fn(&mut Packet)| {
        let mut pair = Pair::open(|_, _| {});
        pair.read(1, 0, 0, 2500);
        pair.send(2, small(2));
        pair.sent();
        assert_eq!(pair.respond(RcReadResponseFirst, 0, fill(1024)), None);
        let reject = pair.respond(opcode, 1, change);
        let ends = pair.ends(A);
        match reject {
            None => assert_eq!(ends, []),
            _ => {
                assert_eq!(reject, Some(Reject::ResponseMalformed));
                assert_eq!(ends[1], (2, FLUSHED));
                assert_eq!(pair.a.state(pair.qa), Some(QpState::Err));
            }
        }
        ends.first().map(|(_, status)| *status)
    };
    assert_eq!(second(RcReadResponseMiddle, &fill(1024)), None);
    assert_eq!(second(RcReadResponseMiddle, &fill(1023)), Some(length));
    assert_eq!(second(RcReadResponseMiddle, &fill(0)), Some(length));
    assert_eq!(second(RcReadResponseFirst, &fill(1024)), Some(bad));
    assert_eq!(second(RcReadResponseLast, &fill(452)), Some(bad));
    assert_eq!(second(RcReadResponseOnly, &fill(452)), Some(bad));
    assert_eq!(second(RcAtomicAcknowledge, &|_| {}), Some(bad));
    // A READ of one packet.
    let only = |opcode, change: &dyn Fn(&mut Packet)| {
        let mut pair = Pair::open(|_, _| {});
        pair.read(1, 0, 0, 100);
        pair.sent();
        let reject = pair.respond(opcode, 0, change);
        assert_eq!(reject.is_some(), pair.a.state(pair.qa) == Some(QpState::Err));
        pair.ends(A)[0].1
    };
    assert_eq!(only(RcReadResponseOnly, &fill(100)), OK);
    assert_eq!(only(RcReadResponseOnly, &fill(99)), length);
    assert_eq!(only(RcReadResponseOnly, &fill(101)), length);
    assert_eq!(only(RcReadResponseFirst, &fill(100)), bad);
    assert_eq!(only(RcReadResponseLast, &fill(100)), bad);
    assert_eq!(only(RcReadResponseMiddle, &fill(100)), bad);
    assert_eq!(only(RcReadResponseOnly, &nak), bad);
    // A SEND answered as if it were a READ or atomic; what was before it is acknowledged.
    for opcode in [RcReadResponseOnly, RcAtomicAcknowledge] {
        let mut pair = Pair::open(|_, _| {});
        pair.send(1, small(1));
        pair.send(2, small(2));
        pair.sent();
        assert_eq!(pair.respond(opcode, 1, |_| {}), Some(Reject::ResponseMalformed));
        assert_eq!(pair.ends(A), [(1, OK), (2, bad)]);
    }
    // An ACK with a payload is none.
    let mut pair = Pair::open(|_, _| {});
    pair.send(1, small(1));
    pair.sent();
    assert_eq!(pair.respond(RcAcknowledge, 0, fill(4)), Some(Reject::ResponseMalformed));
    assert_eq!(pair.ends(A), []);
}

#[test]
fn a_key_taken_away_while_its_answer_is_owed_is_answered_0x62_where_the_answer_stood() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(3000));
    pair.read(1, key, VA, 3000);
    let request = pair.sent().remove(0);
    assert_eq!(pair.b.receive(0, &request.build()), None);
    let first = pair.b.poll_transmit(0).expect("the first packet");
    pair.a.receive(0, &first);
    pair.b.deregister(key);
    let nak = pair.b.poll_transmit(0).expect("a NAK");
    pair.a.receive(0, &nak);
    let nak = Packet::parse(&nak).expect("well-formed");
    assert_eq!((nak.bth.psn, nak.aeth), (1, Some(Aeth { syndrome: 0x62, msn: 1 })));
    assert_eq!(pair.ends(A), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(pair.b.state(pair.qb), Some(QpState::Err));
    assert_eq!(pair.b.poll_transmit(0), None);
}

#[test]
fn nothing_owed_is_sent_once_the_queue_pair_is_in_error_or_reset() {
    for state in [QpState::Err, QpState::Reset] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(VA, pattern(3000));
        let frame = request(&pair, 0, key, VA, 3000).build();
        assert_eq!(pair.b.receive(0, &frame), None);
        assert!(pair.b.poll_transmit(0).is_some());
        let qb = pair.qb;
        pair.b.modify(qb, state).expect("modify");
        assert_eq!(pair.b.poll_transmit(0), None);
    }
    // Neither when it is a request of its own that failed.
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(3000));
    let send = SendWr::new(1, SendOp::Send { imm: None }, small(1));
    pair.b.post_send(pair.qb, send).expect("post");
    assert!(pair.b.poll_transmit(0).is_some());
    let frame = request(&pair, 0, key, VA, 3000).build();
    assert_eq!(pair.b.receive(0, &frame), None);
    let nak = |packet: &mut Packet| packet.aeth = Some(Aeth { syndrome: 0x61, msn: 0 });
    let nak = crafted(&pair, Opcode::RcAcknowledge, 0, 0, nak).build();
    assert_eq!(pair.b.receive(0, &nak), None);
    assert_eq!(pair.ends(B), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(pair.b.poll_transmit(0), None);
}

#[test]
fn a_fenced_request_waits_until_the_reads_before_it_have_landed_and_an_unfenced_one_does_not() {
    for fence in [false, true] {
        let mut pair = Pair::open(|_, _| {});
        let key = pair.shared(VA, pattern(3000));
        pair.recv(1, 16);
        pair.recv(2, 16);
        pair.read(1, key, VA, 2500);
        pair.post(SendWr { fence, ..SendWr::new(2, SendOp::Send { imm: None }, small(2)) });
        pair.send(3, small(3));
        assert_eq!(pair.sent().len(), if fence { 1 } else { 3 });
        // Lost; after the timeout the READ goes again, and its last response is lost too.
        pair.run_losing(Time::MAX, B, &[3]);
        let sends: Vec<Time> = pair
            .seen
            .iter()
            .filter(|s| s.from == A && s.packet.opcode() == Some(Opcode::RcSendOnly))
            .map(|s| s.at)
            .collect();
        let landed = pair.seen.iter().filter(|s| s.from == B && s.packet.bth.psn == 2).map(|s| s.at).max();
        let landed = landed.expect("a last response") + DELAY;
        assert!(if fence { sends[0] == landed } else { sends[0] < landed });
        assert_eq!(pair.ends(A), [(1, OK), (2, OK), (3, OK)]);
    }
}

#[test]
fn a_fenced_write_of_what_is_read_is_not_seen_by_the_read_asked_for_again() {
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(3000));
    pair.read(1, key, VA, 3000);
    let write = SendOp::Write { va: VA, rkey: key, imm: None };
    pair.post(SendWr { fence: true, ..SendWr::new(2, write, vec![0xee; 3000]) });
    pair.run_losing(Time::MAX, B, &[3]);
    assert_eq!(pair.completions(A)[0].data, pattern(3000));
    assert_eq!(pair.bytes(key), [0xee; 3000]);
}

#[test]
fn a_peer_that_is_not_ready_for_a_read_is_asked_again_after_its_timer() {
    let mut pair = Pair::open(|_, params| params.rnr_retry = 1);
    let key = pair.shared(VA, pattern(100));
    pair.read(1, key, VA, 100);
    pair.sent();
    let rnr = |packet: &mut Packet| packet.aeth = Some(Aeth { syndrome: Syndrome::rnr(3), msn: 0 });
    assert_eq!(pair.respond(Opcode::RcAcknowledge, 0, rnr), None);
    assert_eq!(pair.respond(Opcode::RcAcknowledge, 0, rnr), Some(Reject::ResponseStale));
    // Nothing that belongs behind it ends the wait.
    assert_eq!(pair.respond(Opcode::RcAcknowledge, 0, |_| {}), Some(Reject::ResponseGap));
    pair.run_clean();
    assert_eq!(pair.seen[0].at, rnr_ns(3) * NANOSECOND);
    assert_eq!(pair.ends(A), [(1, OK)]);
}

#[test]
fn a_nak_behind_a_missing_response_asks_for_the_response_first() {
    // The READ's responses are lost, the WRITE behind it has a bad key: the READ cannot be had any more.
    let mut pair = Pair::open(|_, params| params.retry_cnt = 2);
    let key = pair.shared(VA, pattern(100));
    pair.read(1, key, VA, 100);
    pair.write(2, key + 0x100, VA, small(2));
    pair.run_losing(Time::MAX, B, &[1]);
    assert_eq!(requests(&pair).len(), 3);
    assert_eq!(pair.ends(A), [(1, WcStatus::RetryExcErr), (2, FLUSHED)]);
    // With its responses there, the NAK tells.
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(100));
    pair.read(1, key, VA, 100);
    pair.write(2, key + 0x100, VA, small(2));
    pair.run_clean();
    assert_eq!(pair.ends(A), [(1, OK), (2, WcStatus::RemAccessErr)]);
}

#[test]
fn a_sequence_nak_in_front_of_which_a_response_is_missing_goes_back_to_the_read() {
    // The READ's response and the WRITE behind it are lost; the second WRITE provokes the NAK.
    let mut pair = Pair::open(|_, _| {});
    let key = pair.shared(VA, pattern(100));
    pair.read(1, key, VA, 100);
    pair.write(2, key, VA, small(2));
    pair.write(3, key, VA, small(3));
    pair.run(Time::MAX, &mut |from, number, bytes| match (from, number) {
        (A, 2) | (B, 1) => vec![],
        _ => vec![(0, bytes)],
    });
    assert_eq!(pair.answers(B)[1], (1, 0x60, 1));
    assert_eq!(pair.psns(A), [0, 1, 2, 0, 1, 2]);
    assert_eq!(pair.ends(A), [(1, OK), (2, OK), (3, OK)]);
    assert!(pair.now < 20 * DELAY);
}

#[test]
fn a_dead_peer_ends_a_half_answered_read_after_exactly_the_retries() {
    let mut pair = Pair::open(|_, params| params.retry_cnt = 3);
    let key = pair.shared(VA, pattern(3000));
    pair.read(1, key, VA, 3000);
    pair.fetch_add(2, key, 0, 1);
    pair.run(Time::MAX, &mut |from, number, bytes| match (from, number) {
        (B, 2..) | (A, 2..) => vec![],
        _ => vec![(0, bytes)],
    });
    let again = (1, 1024, 1976);
    assert_eq!(requests(&pair), [(0, 0, 3000), again, again, again]);
    assert_eq!(pair.ends(A), [(1, WcStatus::RetryExcErr), (2, FLUSHED)]);
    assert_eq!(pair.now, 2 * DELAY + 4 * timeout());
    pair.read(3, key, VA, 8);
    assert_eq!(pair.ends(A), [(3, FLUSHED)]);
}

#[test]
fn the_psn_window_stalls_the_requester_and_lets_it_go_on() {
    // Three PSNs are left when a READ of 2^23 - 4 is out: three packets of a WRITE go, the fourth waits.
    let window = |_: Side, params: &mut peer::QpParams| {
        params.path_mtu = PathMtu::Mtu256;
        params.tuning = Tuning { window: 0, ..Tuning::default() };
    };
    let fill = |packet: &mut Packet| packet.payload = vec![0; 256];
    let mut pair = Pair::open(window);
    pair.read(1, 0, 0, ((1 << 23) - 4) * 256);
    pair.write(2, 0, 0, vec![1; 5 * 256]);
    let end = (1 << 23) - 4;
    assert_eq!(pair.sent().iter().map(|p| p.bth.psn).collect::<Vec<_>>(), [0, end, end + 1, end + 2]);
    assert_eq!(pair.respond(Opcode::RcReadResponseFirst, 0, fill), None);
    assert_eq!(pair.sent().iter().map(|p| p.bth.psn).collect::<Vec<_>>(), [end + 3]);
    assert_eq!(pair.respond(Opcode::RcReadResponseMiddle, 1, fill), None);
    assert_eq!(pair.sent().iter().map(|p| p.bth.psn).collect::<Vec<_>>(), [end + 4]);

    // Behind one WRITE a READ of 2^23 - 2 fills the window; one of 2^23 - 1 waits until the WRITE is acknowledged.
    for (packets, sent) in [((1 << 23) - 2, 2), ((1 << 23) - 1, 1)] {
        let mut pair = Pair::open(window);
        pair.write(1, 0, 0, vec![1]);
        pair.read(2, 0, 0, packets * 256);
        assert_eq!(pair.sent().len(), sent);
        assert_eq!(pair.respond(Opcode::RcAcknowledge, 0, |_| {}), None);
        assert_eq!(pair.sent().len(), 2 - sent);
    }

    // 2^31 bytes are 2^23 PSNs, one more than the window: such a READ goes alone, and nothing until two are back.
    let mut pair = Pair::open(window);
    let own = Region { pd: 1, va: 0, access: access::LOCAL_WRITE, bytes: vec![0; 1 << 31] };
    let lkey = pair.a.register(own);
    let landing = Landing::Region { lkey, va: 0, length: 1 << 31 };
    pair.write(1, 0, 0, vec![1]);
    pair.post(SendWr::new(2, SendOp::Read { va: 0, rkey: 0, landing }, vec![]));
    pair.write(3, 0, 0, vec![3]);
    assert_eq!(pair.sent().len(), 1);
    assert_eq!(pair.respond(Opcode::RcAcknowledge, 0, |_| {}), None);
    let request = pair.sent();
    assert_eq!(
        request.iter().map(|p| p.reth.map(|reth| reth.dma_length)).collect::<Vec<_>>(),
        [Some(1 << 31)]
    );
    assert_eq!(pair.respond(Opcode::RcReadResponseFirst, 1, fill), None);
    assert_eq!(pair.sent().len(), 0);
    assert_eq!(pair.respond(Opcode::RcReadResponseMiddle, 2, fill), None);
    assert_eq!(pair.sent().iter().map(|p| p.bth.psn).collect::<Vec<_>>(), [1 + (1 << 23)]);

    let mut pair = Pair::open(window);
    let qa = pair.qa;
    let landing = Landing::Owned((1 << 31) + 1);
    let error = pair.a.post_send(qa, SendWr::new(1, SendOp::Read { va: 0, rkey: 0, landing }, vec![]));
    assert!(matches!(error, Err(peer::Error::MessageTooLong { length: 0x8000_0001, .. })));
}
