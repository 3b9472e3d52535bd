//! READs between two cards: data, order, loss, limits, faults. Whoever READs is A unless said otherwise.

use contract::{Opcode, Reject, StageCounter, wire::psn_add};
use host::{Access, SendWr, WcOpcode, WcStatus};
use sim::{
    backend::lock,
    story::{A, B, End, MS, Story, US, two_cards},
    wire::{Action, Delay, Faults},
};

fn is(opcode: Opcode) -> impl Fn(&peer::Packet) -> bool + Send + 'static {
    move |packet| packet.opcode() == Some(opcode)
}

/// A READ response with this PSN.
fn response(psn: u32) -> impl Fn(&peer::Packet) -> bool + Send + 'static {
    move |packet| (0x0d..=0x10).contains(&packet.bth.opcode) && packet.bth.psn == psn
}

/// Fills the memory of `b` from the seed; gives the bytes.
fn fill(story: &mut Story, b: &End, at: usize, length: usize) -> Vec<u8> {
    let bytes = story.bytes(length);
    b.memory.write(at, &bytes).expect("a range of the region");
    bytes
}

#[test]
fn a_read_brings_the_peers_bytes_to_any_alignment() {
    let mut story = two_cards("a_read_brings_the_peers_bytes_to_any_alignment");
    let (a, b) = story.connected();
    for (n, length) in [0, 1, 3, 4, 63, 1023, 1024, 1025, 4096, 20_001].into_iter().enumerate() {
        let (from, to) = (1000 + n, 300_000 + 7 * n);
        let bytes = fill(&mut story, &b, from, length);
        a.memory.write(to - 8, &vec![0x5a; length + 16]).unwrap();
        a.read(n as u64, to, length, &b.memory, from);
        let done = story.completes(&a, n as u64);
        assert_eq!((done.opcode, done.byte_len), (WcOpcode::RdmaRead, length as u32));
        story.memory_matches(&a.memory, to, &bytes);
        story.memory_matches(&a.memory, to - 8, &[0x5a; 8]);
        story.memory_matches(&a.memory, to + length, &[0x5a; 8]);
    }
    story.no_completion(&b);
    story.no_other_events();
}

#[test]
fn a_read_is_scattered_over_its_sges_with_one_request_packet() {
    let mut story = two_cards("a_read_is_scattered_over_its_sges_with_one_request_packet");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &b, 5, 5000);
    let cuts = [(10, 1), (2001, 1999), (9000, 0), (40_003, 3000)];
    let sges = cuts.map(|(at, length)| a.memory.sge(at..at + length).unwrap());
    let wr = SendWr::read(1, &sges, b.memory.addr() + 5, b.memory.rkey()).signaled();
    a.qp.post_send(&[wr]).unwrap();
    story.completes(&a, 1);
    let mut at = 0;
    for (to, length) in cuts {
        story.memory_matches(&a.memory, to, &bytes[at..at + length]);
        at += length;
    }
    let requests = story.packets().into_iter().filter(|seen| seen.from == A).count();
    assert_eq!(requests, 1);
    story.no_other_events();
}

#[test]
fn a_read_sees_the_write_before_it_and_completions_keep_their_order() {
    let mut story = two_cards("a_read_sees_the_write_before_it_and_completions_keep_their_order");
    let (a, b) = story.connected();
    let bytes: Vec<Vec<u8>> = (0..8).map(|i| fill(&mut story, &a, 5000 * i, 5000)).collect();
    // each to its own place: what is behind a READ without a fence may overtake its response in memory
    for i in 0..8u64 {
        let at = 5000 * i as usize;
        a.write(2 * i, at, 5000, &b.memory, at);
        a.read(2 * i + 1, 100_000 + at, 5000, &b.memory, at);
    }
    for i in 0..16 {
        story.completes(&a, i);
    }
    for (i, bytes) in bytes.iter().enumerate() {
        story.memory_matches(&a.memory, 100_000 + 5000 * i, bytes);
    }
    story.no_other_events();
}

#[test]
fn a_fenced_send_carries_what_the_read_before_it_brought() {
    let mut story = two_cards("a_fenced_send_carries_what_the_read_before_it_brought");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &b, 0, 3000);
    b.receive(7, 50_000, 3000);
    a.read(1, 0, 3000, &b.memory, 0);
    let sge = [a.memory.sge(0..3000).unwrap()];
    a.qp.post_send(&[SendWr::send(2, &sge).signaled().fenced()]).unwrap();
    story.completes(&a, 1);
    story.completes(&a, 2);
    story.completes(&b, 7);
    story.memory_matches(&b.memory, 50_000, &bytes);
    story.no_other_events();
}

#[test]
fn a_lost_request_or_response_is_asked_for_again_from_where_it_was() {
    for (what, retries) in [("request", 1), ("first", 1), ("middle", 1), ("last", 1)] {
        let mut story = two_cards(&format!("a_lost_read_{what}_is_asked_for_again"));
        let (a, b) = story.connected();
        let bytes = fill(&mut story, &b, 0, 5000);
        match what {
            "request" => story.wire_drops(A, is(Opcode::RcReadRequest)),
            "first" => story.wire_drops(B, response(a.psn)),
            "middle" => story.wire_drops(B, response(psn_add(a.psn, 2))),
            _ => story.wire_drops(B, response(psn_add(a.psn, 4))),
        }
        a.read(1, 0, 5000, &b.memory, 0);
        a.write(2, 0, 10, &b.memory, 90_000);
        story.completes(&a, 1);
        story.completes(&a, 2);
        story.memory_matches(&a.memory, 0, &bytes);
        let asked: Vec<(u32, u64, u32)> = story
            .packets()
            .into_iter()
            .filter(|seen| seen.packet.opcode() == Some(Opcode::RcReadRequest))
            .map(|seen| (seen.packet.bth.psn, seen.packet.reth.unwrap()))
            .map(|(psn, reth)| (psn_add(psn, 0x100_0000 - a.psn), reth.va - b.memory.addr(), reth.dma_length))
            .collect();
        let again = match what {
            "request" | "first" => (0, 0, 5000),
            "middle" => (2, 2048, 5000 - 2048),
            _ => (4, 4096, 5000 - 4096),
        };
        assert_eq!(asked, [(0, 0, 5000), again], "{what}");
        assert_eq!(asked.len(), 1 + retries);
        for reject in [Reject::ResponseGap, Reject::ResponseStale] {
            story.allow(0, reject);
        }
        for reject in [Reject::Duplicate, Reject::PsnOutOfSequence] {
            story.allow(1, reject);
        }
        assert_eq!(story.stage_counter(0, StageCounter::TimeoutEvents), 0, "{what}: told by what follows");
        story.no_other_events();
    }
}

#[test]
fn a_lost_last_response_with_nothing_behind_it_is_the_timers() {
    let mut story = two_cards("a_lost_last_response_with_nothing_behind_it_is_the_timers");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &b, 0, 3000);
    story.wire_drops(B, response(psn_add(a.psn, 2)));
    a.read(1, 0, 3000, &b.memory, 0);
    story.completes(&a, 1);
    story.memory_matches(&a.memory, 0, &bytes);
    assert_eq!(story.stage_counter(0, StageCounter::TimeoutEvents), 1);
    story.allow(1, Reject::Duplicate);
    story.no_other_events();
}

#[test]
fn more_reads_than_may_be_outstanding_and_longer_than_the_window_all_arrive() {
    let mut story = two_cards("more_reads_than_may_be_outstanding_and_longer_than_the_window_all_arrive");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &b, 0, 400_000);
    // 391 PSNs where 128 may be in flight: one request all the same
    a.read(1, 500_000, 400_000, &b.memory, 0);
    story.completes(&a, 1);
    assert_eq!(story.packets().iter().filter(|seen| seen.from == A).count(), 1);
    story.memory_matches(&a.memory, 500_000, &bytes);
    for i in 0..40u64 {
        let at = 2500 * i as usize;
        a.read(10 + i, at, 2500, &b.memory, at);
    }
    for i in 0..40 {
        story.completes(&a, 10 + i);
    }
    story.memory_matches(&a.memory, 0, &bytes[..100_000]);
    story.no_other_events();
}

#[test]
fn reads_go_both_ways_at_once_beside_writes() {
    let mut story = two_cards("reads_go_both_ways_at_once_beside_writes");
    let (a, b) = story.connected();
    let bytes = [fill(&mut story, &a, 0, 60_000), fill(&mut story, &b, 0, 60_000)];
    for i in 0..6u64 {
        let at = 10_000 * i as usize;
        for (end, other) in [(&a, &b), (&b, &a)] {
            end.read(2 * i, 100_000 + at, 10_000, &other.memory, at);
            end.write(2 * i + 1, at, 10_000, &other.memory, 200_000 + at);
        }
    }
    for end in [&a, &b] {
        for i in 0..12 {
            story.completes(end, i);
        }
    }
    for (end, [own, other]) in [(&a, [&bytes[0], &bytes[1]]), (&b, [&bytes[1], &bytes[0]])] {
        story.memory_matches(&end.memory, 0, own);
        story.memory_matches(&end.memory, 100_000, other);
        story.memory_matches(&end.memory, 200_000, other);
    }
    story.no_other_events();
}

#[test]
fn a_read_that_the_peer_refuses_or_this_side_cannot_take_completes_in_error_in_its_turn() {
    for what in ["rkey", "remote range", "lkey", "local rights"] {
        let name = format!("a_read_with_a_bad_{}_completes_in_error", what.replace(' ', "_"));
        let mut story = two_cards(&name);
        let (a, b) = story.connected();
        let bytes = fill(&mut story, &b, 0, 3000);
        let mute = a.pd.allocate(4096, Access::REMOTE_READ).unwrap();
        let mut sge = [a.memory.sge(10_000..13_000).unwrap()];
        let (mut addr, mut rkey) = (b.memory.addr(), b.memory.rkey());
        match what {
            "rkey" => rkey ^= 0x10,
            "remote range" => addr += (sim::story::MEMORY - 2999) as u64,
            "lkey" => sge[0].lkey ^= 0x10,
            _ => sge = [mute.sge(0..3000).unwrap()],
        }
        a.read(1, 0, 3000, &b.memory, 0);
        a.qp.post_send(&[SendWr::read(2, &sge, addr, rkey).signaled()]).unwrap();
        a.read(3, 20_000, 3000, &b.memory, 0);
        story.completes(&a, 1);
        story.memory_matches(&a.memory, 0, &bytes);
        let remote = what.starts_with('r');
        let status = if remote { WcStatus::RemAccessErr } else { WcStatus::LocProtErr };
        for (wr_id, status) in [(2, status), (3, WcStatus::WrFlushErr)] {
            let done = story.completion(&a);
            assert_eq!((done.wr_id, done.status), (wr_id, status), "{what}");
        }
        story.wait(MS);
        story.memory_matches(&a.memory, 10_000, &[0; 3000]);
        for reject in [Reject::RkeyTag, Reject::RkeyBounds, Reject::QpHalted] {
            story.allow(1, reject);
        }
        for reject in [Reject::SglKey, Reject::QpHalted, Reject::WrongQpState] {
            story.allow(0, reject);
        }
        story.no_other_events();
    }
}

#[test]
fn a_duplicate_write_is_acknowledged_up_to_the_read_behind_it() {
    let mut story = two_cards("a_duplicate_write_is_acknowledged_up_to_the_read_behind_it");
    let (a, b) = story.connected();
    fill(&mut story, &b, 0, 3000);
    a.write(1, 0, 8, &b.memory, 5000);
    a.write(2, 0, 8, &b.memory, 5000);
    a.read(3, 10_000, 3000, &b.memory, 0);
    a.write(4, 0, 8, &b.memory, 5000);
    for id in 1..=4 {
        story.completes(&a, id);
    }
    let of_a = |story: &Story, psn| {
        let packets = story.packets();
        packets.into_iter().find(|seen| seen.from == A && seen.packet.bth.psn == psn).expect("it was sent")
    };
    // one by one: WRITE 1, WRITE 2, the last WRITE
    for (again, told) in [(0, 1), (1, 1), (5, 5)] {
        let twin = of_a(&story, psn_add(a.psn, again)).packet;
        story.goes_past();
        lock(&story.room).inject(A, &twin.build()).expect("a frame");
        let ack = story.sees(B, "an ACK", |packet| packet.opcode() == Some(Opcode::RcAcknowledge));
        assert_eq!(ack.packet.bth.psn, psn_add(a.psn, told), "a duplicate of packet {again}");
        story.wait(100 * US);
    }
    story.announce(1, Reject::Duplicate, 3);
    story.announce(0, Reject::ResponseStale, 3);
    story.no_other_events();
}

#[test]
fn a_qp_without_read_depth_refuses_to_post_a_read() {
    let mut story = two_cards("a_qp_without_read_depth_refuses_to_post_a_read");
    let (a, b) = story.connected_as(|side, attr| {
        if side == A {
            attr.max_rd_atomic = 0;
        }
    });
    let sge = [a.memory.sge(0..8).unwrap()];
    let wr = SendWr::read(1, &sge, b.memory.addr(), b.memory.rkey());
    let error = a.qp.post_send(&[wr]).expect_err("no depth");
    assert!(error.to_string().contains("max_rd_atomic"), "{error}");
    a.write(2, 0, 8, &b.memory, 0);
    story.completes(&a, 2);
    story.no_other_events();
}

#[test]
fn a_qp_is_destroyed_while_its_reads_are_answered_and_the_next_one_works() {
    let mut story = two_cards("a_qp_is_destroyed_while_its_reads_are_answered_and_the_next_one_works");
    let (a, b) = story.connected();
    fill(&mut story, &b, 0, 200_000);
    for i in 0..4 {
        a.read(i, 300_000, 100_000, &b.memory, 0);
    }
    story.wait(20 * US);
    let End { qp, host, .. } = a;
    drop(qp);
    host.memory.write(300_000, &[0x77; 100_000]).unwrap();
    story.wait(2 * MS);
    story.memory_matches(&host.memory, 300_000, &[0x77; 100_000]);
    for reject in [Reject::UnknownQp, Reject::WrongQpState, Reject::QpHalted] {
        story.allow(0, reject);
    }
    let (a2, b2) = (story.qp(host, |_| {}), story.qp(b.host, |_| {}));
    story.join(&a2, &b2, |_, _| {});
    let bytes = fill(&mut story, &b2, 0, 5000);
    a2.read(9, 0, 5000, &b2.memory, 0);
    story.completes(&a2, 9);
    story.memory_matches(&a2.memory, 0, &bytes);
    story.no_other_events();
}

#[test]
fn programs_of_reads_and_writes_survive_loss_duplication_corruption_and_reordering() {
    let mut story =
        two_cards("programs_of_reads_and_writes_survive_loss_duplication_corruption_and_reordering");
    let (a, b) = story.connected_as(|_, attr| attr.timeout = 10);
    let mut gaps = 0;
    for round in 0..12u64 {
        let harm = [0.0, 0.02, 0.06][(round % 3) as usize];
        story.wire_harms(Faults {
            loss: harm,
            duplicate: harm,
            corrupt: harm,
            reorder: harm,
            delay: Delay::Time((1 + round) * US),
        });
        // reads come from 0.., land at 300000..; writes come from 0.., land at 600000..
        let bytes = [fill(&mut story, &a, 0, 200_000), fill(&mut story, &b, 0, 200_000)];
        let mut wanted = [vec![], vec![]];
        for i in 0..12u64 {
            for (side, (end, other)) in [(&a, &b), (&b, &a)].into_iter().enumerate() {
                // a last packet of one or two random bytes may look like an EtherType to Wireshark
                let length = [0, 3, 1024, 3000, 9000][story.below(5) as usize];
                let from = story.below(100_000) as usize;
                let at = 10_000 * i as usize;
                if story.below(3) > 0 {
                    end.read(i, 300_000 + at, length, &other.memory, from);
                    wanted[side].push((300_000 + at, bytes[1 - side][from..from + length].to_vec()));
                } else {
                    end.write(i, from, length, &other.memory, 600_000 + at);
                    wanted[1 - side].push((600_000 + at, bytes[side][from..from + length].to_vec()));
                }
            }
        }
        for end in [&a, &b] {
            for i in 0..12 {
                story.completes(end, i);
            }
        }
        for (end, wanted) in [&a, &b].into_iter().zip(&wanted) {
            for (at, bytes) in wanted {
                story.memory_matches(&end.memory, *at, bytes);
            }
        }
        gaps += story.packets().len();
    }
    assert!(gaps > 1000);
    for card in 0..2 {
        for reject in Reject::ALL {
            if !matches!(reject, Reject::ResponseMalformed | Reject::RkeyBounds | Reject::SglKey) {
                story.allow(card, *reject);
            }
        }
        assert!(story.stage_counter(card, StageCounter::Retransmits) > 20);
    }
    story.no_other_events();
}

#[test]
fn a_duplicated_or_late_response_is_placed_once() {
    let mut story = two_cards("a_duplicated_or_late_response_is_placed_once");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &b, 0, 5000);
    story.wire_does(B, Action::Duplicate, response(psn_add(a.psn, 1)));
    story.wire_does(B, Action::Delay(Delay::Frames { count: 2, at_most: MS }), response(psn_add(a.psn, 2)));
    a.read(1, 0, 5000, &b.memory, 0);
    story.completes(&a, 1);
    story.memory_matches(&a.memory, 0, &bytes);
    story.wait(MS);
    for reject in [Reject::ResponseStale, Reject::ResponseGap, Reject::ResponseUnexpected] {
        story.allow(0, reject);
    }
    story.allow(1, Reject::Duplicate);
    story.no_other_events();
}
