//! The stories, each runnable alone: `cargo ci story NAME --seed N --waves`.

use contract::{Reject, StageCounter, Syndrome, wire::psn_add};
use host::{Access, PathMtu, SendWr, WcStatus};
use sim::{
    backend::lock,
    story::{self, A, B, End, MS, Story, US, two_cards},
    wire::{Action, Delay},
};
use std::time::Duration;

/// A packet with this PSN that opens or continues a request.
fn request(psn: u32) -> impl Fn(&peer::Packet) -> bool + Send + 'static {
    move |packet| packet.aeth.is_none() && packet.bth.psn == psn
}

fn answer(packet: &peer::Packet) -> bool {
    packet.aeth.is_some()
}

fn syndrome(packet: &peer::Packet) -> u8 {
    packet.aeth.map_or(0xff, |aeth| aeth.syndrome)
}

/// Fills the memory of `a` from the seed; gives the bytes.
fn fill(story: &mut Story, a: &End, at: usize, length: usize) -> Vec<u8> {
    let bytes = story.bytes(length);
    a.memory.write(at, &bytes).expect("a range of the region");
    bytes
}

#[test]
fn a_write_of_64_bytes_goes_the_whole_way() {
    let mut story = two_cards("a_write_of_64_bytes_goes_the_whole_way");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &a, 0, 64);
    a.write(1, 0, 64, &b.memory, 4096);
    let write = story.sees(A, "WRITE ONLY", |packet| packet.reth.is_some());
    assert_eq!((write.packet.bth.psn, &write.packet.payload), (a.psn, &bytes));
    let ack = story.sees(B, "ACK", answer);
    assert_eq!(ack.packet.bth.psn, a.psn);
    story.completes(&a, 1);
    story.memory_matches(&b.memory, 4096, &bytes);
    story.memory_matches(&b.memory, 4096 + 64, &[0; 64]);
    story.no_completion(&b);
    let later = story.now() + MS;
    story.sees_nothing_until(later);
    story.no_other_events();
}

/// From the address at `index` of this side to that of the other.
fn from_address(attr: &mut host::QpAttr, side: sim::wire::Side, index: u8) {
    let other = if side == A { 2u128 } else { 1 };
    if index != story::IPV4_PRIORITY {
        attr.av.dest_gid = host::Gid::from_u128(0xfd << 120 | other);
    }
    (attr.av.sgid_index, attr.av.sl) = (index, 6);
    (attr.av.traffic_class, attr.av.flow_label, attr.av.hop_limit) = (0x6a, 0xabcde, 3);
}

#[test]
fn ipv6_and_tagged_frames_carry_the_same_bytes() {
    let mut story = two_cards("ipv6_and_tagged_frames_carry_the_same_bytes");
    let (a, b) = story.connected_as(|side, attr| from_address(attr, side, story::IPV6));
    let bytes = fill(&mut story, &a, 0, 3001);
    a.write(1, 0, 3001, &b.memory, 4099);
    story.completes(&a, 1);
    story.memory_matches(&b.memory, 4099, &bytes);
    let (a, b) = (a.host, b.host);
    let (mut a, mut b) = (story.qp(a, |_| {}), story.qp(b, |_| {}));
    for index in [story::IPV6_VLAN_5, story::IPV4_PRIORITY] {
        story.join(&a, &b, |side, attr| from_address(attr, side, index));
        for length in [0, 1, 1024, 3001] {
            b.receive(7, 100, 4096);
            a.send(2, 0, length);
            story.completes(&a, 2);
            assert_eq!(story.completes(&b, 7).byte_len as usize, length);
            story.memory_matches(&b.memory, 100, &bytes[..length]);
        }
        (a, b) = (story.qp(a.host, |_| {}), story.qp(b.host, |_| {}));
    }
    story.no_other_events();
}

#[test]
fn a_frame_of_another_vlan_is_not_the_connections() {
    let mut story = two_cards("a_frame_of_another_vlan_is_not_the_connections");
    let (a, b) = story.connected_as(|side, attr| {
        from_address(attr, side, if side == A { story::IPV6_VLAN_5 } else { story::IPV6 });
        (attr.timeout, attr.retry_cnt) = (8, 1);
    });
    a.write(1, 0, 64, &b.memory, 0);
    let end = story.completion(&a);
    assert_eq!((end.wr_id, end.status), (1, WcStatus::RetryExcErr));
    story.memory_matches(&b.memory, 0, &[0; 64]);
    story.announce(1, Reject::WrongAddress, 2);
    story.no_other_events();
}

#[test]
fn a_send_lands_in_the_posted_receive() {
    let mut story = two_cards("a_send_lands_in_the_posted_receive");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &a, 0, 3000);
    b.receive(7, 100, 4096);
    a.send(1, 0, 3000);
    story.completes(&a, 1);
    let received = story.completes(&b, 7);
    assert_eq!(received.byte_len, 3000);
    story.memory_matches(&b.memory, 100, &bytes);
    story.memory_matches(&b.memory, 3100, &[0; 64]);
    story.no_other_events();
}

#[test]
fn sends_go_both_ways_at_once() {
    let mut story = two_cards("sends_go_both_ways_at_once");
    let (a, b) = story.connected();
    let (from_a, from_b) = (fill(&mut story, &a, 0, 20_000), fill(&mut story, &b, 0, 20_000));
    for i in 0..5 {
        a.receive(100 + i, 100_000 + i as usize * 4000, 4000);
        b.receive(100 + i, 100_000 + i as usize * 4000, 4000);
    }
    for i in 0..5 {
        a.send(i, i as usize * 4000, 4000);
        b.send(i, i as usize * 4000, 4000);
    }
    for end in [&a, &b] {
        let mut done: Vec<u64> = (0..10)
            .map(|_| story.completion(end))
            .map(|c| {
                assert_eq!(c.status, WcStatus::Success, "{c:?}");
                c.wr_id
            })
            .collect();
        done.sort();
        assert_eq!(done, [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]);
    }
    story.memory_matches(&b.memory, 100_000, &from_a);
    story.memory_matches(&a.memory, 100_000, &from_b);
    story.no_other_events();
}

/// Moves `length` bytes from alignment `from` to alignment `to` by WRITE and by SEND.
fn moves(story: &mut Story, a: &End, b: &End, from: usize, to: usize, length: usize) {
    let bytes = fill(story, a, from, length);
    let (write, send) = (4096 + to, 4096 + 300_000 + to);
    // The neighbours must stay as they are.
    let guard = story.bytes(16);
    for at in [write, send] {
        b.memory.write(at - 8, &guard[..8]).unwrap();
        b.memory.write(at + length, &guard[8..]).unwrap();
    }
    b.receive(3, send, length);
    a.write(1, from, length, &b.memory, write);
    a.send(2, from, length);
    story.completes(a, 1);
    story.completes(a, 2);
    assert_eq!(story.completes(b, 3).byte_len, length as u32);
    for at in [write, send] {
        story.memory_matches(&b.memory, at, &bytes);
        story.memory_matches(&b.memory, at - 8, &guard[..8]);
        story.memory_matches(&b.memory, at + length, &guard[8..]);
    }
}

#[test]
fn both_sides_of_every_packet_boundary_arrive() {
    let mut story = two_cards("both_sides_of_every_packet_boundary_arrive");
    let (a, b) = story.connected();
    for length in [1023, 1024, 1025, 2047, 2048, 2049, 3072, 4095, 4096, 4097, 65535, 65536, 100_001] {
        moves(&mut story, &a, &b, 4093, 4091, length);
    }
    story.no_other_events();
}

#[test]
fn every_path_mtu_cuts_at_its_size() {
    for (mtu, bytes) in [
        (PathMtu::Mtu256, 256),
        (PathMtu::Mtu512, 512),
        (PathMtu::Mtu1024, 1024),
        (PathMtu::Mtu2048, 2048),
        (PathMtu::Mtu4096, 4096),
    ] {
        let mut story = two_cards(&format!("every_path_mtu_cuts_at_its_size_{bytes}"));
        let (a, b) = story.connected_as(|_, attr| attr.path_mtu = mtu);
        moves(&mut story, &a, &b, 5, 3, bytes * 2 + 77);
        let sizes: Vec<usize> = story
            .packets()
            .iter()
            .filter(|seen| seen.from == A && seen.packet.aeth.is_none())
            .map(|seen| seen.packet.payload.len())
            .collect();
        assert_eq!(sizes, [bytes, bytes, 77, bytes, bytes, 77]);
        story.no_other_events();
    }
}

#[test]
fn four_elements_are_gathered_and_scattered() {
    let mut story = two_cards("four_elements_are_gathered_and_scattered");
    let (a, b) = story.connected();
    let cut = [(10, 700), (5001, 1), (9000, 0), (20_003, 1999)];
    let mut bytes = Vec::new();
    for (at, length) in cut {
        bytes.extend(fill(&mut story, &a, at, length));
    }
    let sges: Vec<_> = cut.iter().map(|(at, length)| a.memory.sge(*at..at + length).unwrap()).collect();
    let into = [(50_001, 3), (60_000, 1200), (70_007, 1000), (80_000, 5000)];
    let places: Vec<_> = into.iter().map(|(at, length)| b.memory.sge(*at..at + length).unwrap()).collect();
    b.qp.post_recv(&[host::RecvWr::new(9, &places)]).unwrap();
    a.qp.post_send(&[SendWr::send(1, &sges).signaled()]).unwrap();
    story.completes(&a, 1);
    assert_eq!(story.completes(&b, 9).byte_len, 2700);
    story.memory_matches(&b.memory, 50_001, &bytes[..3]);
    story.memory_matches(&b.memory, 60_000, &bytes[3..1203]);
    story.memory_matches(&b.memory, 70_007, &bytes[1203..2203]);
    story.memory_matches(&b.memory, 80_000, &bytes[2203..]);
    story.no_other_events();
}

#[test]
fn sixteen_elements_are_gathered_and_gathered_again_when_a_packet_is_lost() {
    let mut story = two_cards("sixteen_elements_are_gathered_and_gathered_again_when_a_packet_is_lost");
    let hosts = [story.start(0), story.start(1)];
    let [a, b] = hosts.map(|host| story.qp(host, |init| init.max_send_sge = 16));
    story.join(&a, &b, |_, _| {});
    let (mut bytes, mut sges) = (Vec::new(), Vec::new());
    for i in 0..16 {
        let (at, length) = (4000 * i + i, [0, 1, 400, 777][i % 4] + i);
        bytes.extend(fill(&mut story, &a, at, length));
        sges.push(a.memory.sge(at..at + length).unwrap());
    }
    // of five packets the third
    let lost = psn_add(a.psn, 2);
    story.wire_drops(A, request(lost));
    for sges in [&sges[..], &sges[..5], &sges[7..], &sges[15..]] {
        let length: u32 = sges.iter().map(|sge| sge.length).sum();
        let to = b.memory.addr() + 100_000;
        a.qp.post_send(&[SendWr::write(1, sges, to, b.memory.rkey()).signaled()]).unwrap();
        story.completes(&a, 1);
        let skipped: u32 = match sges.len() {
            9 => bytes.len() as u32 - length,
            1 => bytes.len() as u32 - length,
            _ => 0,
        };
        story.memory_matches(&b.memory, 100_000, &bytes[skipped as usize..][..length as usize]);
    }
    b.receive(7, 200_000, 9000);
    a.qp.post_send(&[SendWr::send(2, &sges).signaled()]).unwrap();
    story.completes(&a, 2);
    assert_eq!(story.completes(&b, 7).byte_len as usize, bytes.len());
    story.memory_matches(&b.memory, 200_000, &bytes);
    story.announce(1, Reject::PsnOutOfSequence, 1);
    story.allow(1, Reject::PsnOutOfSequenceRepeat);
    story.no_other_events();
}

#[test]
fn sixteen_elements_are_filled_by_sends_and_reads_to_the_last_byte_though_a_packet_is_lost() {
    let name = "sixteen_elements_are_filled_by_sends_and_reads_to_the_last_byte_though_a_packet_is_lost";
    let mut story = two_cards(name);
    let hosts = [story.start(0), story.start(1)];
    let [a, b] = hosts.map(|host| {
        story.qp(host, |init| (init.max_send_sge, init.max_recv_sge, init.max_recv_wr) = (16, 16, 4))
    });
    story.join(&a, &b, |_, _| {});
    // packets end with the second, fourth and eighth element and within others; the sixth is empty
    let lengths = [300, 724, 1023, 1, 5, 0, 1000, 19, 333, 2, 77, 1, 1, 900, 258, 9];
    let places: Vec<_> = (0..16).map(|i| 5000 * i + 3 * i + 1).zip(lengths).collect();
    let all: usize = lengths.iter().sum();
    let mut blank = vec![0xc3u8; 90_000];
    for (round, count) in [16, 4, 5, 8, 9, 15].into_iter().enumerate() {
        let bytes = fill(&mut story, &a, 100_000, lengths[..count].iter().sum());
        if round == 0 {
            story.wire_drops(A, request(psn_add(a.psn, 2)));
        }
        let sges: Vec<_> = places[..count].iter().map(|p| b.memory.sge(p.0..p.0 + p.1).unwrap()).collect();
        let mut expected = blank.clone();
        let mut rest = &bytes[..];
        for (at, length) in &places[..count] {
            expected[*at..at + length].copy_from_slice(&rest[..*length]);
            rest = &rest[*length..];
        }
        b.memory.write(0, &blank).unwrap();
        b.qp.post_recv(&[host::RecvWr::new(1, &sges)]).unwrap();
        a.send(2, 100_000, bytes.len());
        story.completes(&a, 2);
        assert_eq!(story.completes(&b, 1).byte_len as usize, bytes.len());
        story.memory_matches(&b.memory, 0, &expected);

        b.memory.write(0, &blank).unwrap();
        if round == 0 {
            // of the responses
            story.wire_drops(A, request(psn_add(b.psn, 2)));
        }
        let from = a.memory.addr() + 100_000;
        b.qp.post_send(&[SendWr::read(3, &sges, from, a.memory.rkey()).signaled()]).unwrap();
        assert_eq!(story.completes(&b, 3).byte_len as usize, bytes.len());
        story.memory_matches(&b.memory, 0, &expected);
        blank.iter_mut().for_each(|byte| *byte ^= 0xff);
    }
    // one byte more than sixteen elements hold
    let sges: Vec<_> = places.iter().map(|p| b.memory.sge(p.0..p.0 + p.1).unwrap()).collect();
    b.memory.write(0, &blank).unwrap();
    b.qp.post_recv(&[host::RecvWr::new(4, &sges)]).unwrap();
    a.send(5, 100_000, all + 1);
    assert_eq!(story.completion(&b).status, WcStatus::LocLenErr);
    assert_eq!(story.completion(&a).status, WcStatus::RemInvReqErr);
    // the last packet has 558 bytes, of which none is written
    let whole = (all + 1) / 1024 * 1024;
    let mut written = 0;
    for (at, length) in &places {
        let found = b.memory.to_vec(*at..at + length).unwrap();
        let filled = length.min(&(whole - written)).to_owned();
        assert!(found[filled..].iter().all(|byte| *byte == blank[0]), "at {at}");
        written += filled;
    }
    story.announce(1, Reject::ReceiveTooShort, 1);
    story.allow_aftermath(&[]);
    story.no_other_events();
}

#[test]
fn a_lost_middle_packet_is_named_by_one_nak_and_sent_again_from_there() {
    let mut story = two_cards("a_lost_middle_packet_is_named_by_one_nak_and_sent_again_from_there");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &a, 0, 8000);
    let lost = psn_add(a.psn, 3);
    story.wire_drops(A, request(lost));
    a.write(1, 0, 8000, &b.memory, 0);
    let nak = story.sees(B, "NAK", |packet| syndrome(packet) == Syndrome::NAK_PSN_SEQUENCE);
    assert_eq!(nak.packet.bth.psn, lost);
    let again = story.sees(A, "the lost packet again", request(lost));
    assert!(!again.lost && again.at - nak.at < 20 * US, "{} ns", (again.at - nak.at) / 1000);
    story.completes(&a, 1);
    story.memory_matches(&b.memory, 0, &bytes);
    let naks =
        story.packets().iter().filter(|seen| syndrome(&seen.packet) == Syndrome::NAK_PSN_SEQUENCE).count();
    assert_eq!(naks, 1);
    story.announce(1, Reject::PsnOutOfSequence, 1);
    story.allow(1, Reject::PsnOutOfSequenceRepeat);
    story.no_other_events();
}

#[test]
fn behind_a_nak_hardly_anything_leaves_before_the_lost_packet_does() {
    let mut story = two_cards("behind_a_nak_hardly_anything_leaves_before_the_lost_packet_does");
    let (a, b) = story.connected_as(|_, attr| attr.path_mtu = PathMtu::Mtu4096);
    // more than the transmit buffer holds
    let length = 1 << 16;
    let bytes = fill(&mut story, &a, 0, length);
    let lost = psn_add(a.psn, 2);
    story.wire_drops(A, request(lost));
    a.write(1, 0, length, &b.memory, 0);
    let nak = story.sees(B, "NAK", |packet| syndrome(packet) == Syndrome::NAK_PSN_SEQUENCE);
    let again = story.sees(A, "the lost packet again", request(lost));
    let packets = story.packets();
    let stale = packets.iter().filter(|seen| seen.from == A && (nak.at..again.at).contains(&seen.at)).count();
    // what packetise and the MAC have taken by the time that the NAK is there
    assert!(stale <= 4, "{stale} packets that the peer refuses");
    story.completes(&a, 1);
    story.memory_matches(&b.memory, 0, &bytes);
    let superseded = story.stage_counter(0, StageCounter::Superseded);
    assert!(superseded >= 4, "{superseded} packets were dropped");
    story.announce(1, Reject::PsnOutOfSequence, 1);
    story.allow(1, Reject::PsnOutOfSequenceRepeat);
    story.no_other_events();
}

#[test]
fn a_lost_ack_is_asked_for_again_after_the_timeout() {
    let mut story = two_cards("a_lost_ack_is_asked_for_again_after_the_timeout");
    let (a, b) = story.connected_as(|_, attr| attr.timeout = 8);
    let bytes = fill(&mut story, &a, 0, 64);
    story.wire_drops(B, answer);
    a.write(1, 0, 64, &b.memory, 0);
    let first = story.sees(A, "WRITE", request(a.psn));
    let again = story.sees(A, "WRITE again", request(a.psn));
    // 4.096 us * 2^8 is the least, four times that the most (IBTA 9.7.6.1.3).
    let waited = again.at - first.at;
    assert!((1048 * US..4 * 1049 * US).contains(&waited), "{} us", waited / US);
    story.completes(&a, 1);
    story.memory_matches(&b.memory, 0, &bytes);
    story.announce(1, Reject::Duplicate, 1);
    assert_eq!(story.stage_counter(0, StageCounter::TimeoutEvents), 1);
    story.no_other_events();
}

#[test]
fn a_corrupted_frame_is_dropped_by_its_fcs_and_made_good() {
    let mut story = two_cards("a_corrupted_frame_is_dropped_by_its_fcs_and_made_good");
    let (a, b) = story.connected_as(|_, attr| attr.timeout = 8);
    let bytes = fill(&mut story, &a, 0, 3000);
    story.wire_does(A, Action::Corrupt(60 * 8 + 3), request(a.psn));
    a.write(1, 0, 3000, &b.memory, 0);
    story.completes(&a, 1);
    story.memory_matches(&b.memory, 0, &bytes);
    story.announce(1, Reject::BadFcs, 1);
    story.announce(1, Reject::PsnOutOfSequence, 1);
    story.allow(1, Reject::PsnOutOfSequenceRepeat);
    story.no_other_events();
}

#[test]
fn a_duplicate_is_acknowledged_again_and_not_placed_again() {
    let mut story = two_cards("a_duplicate_is_acknowledged_again_and_not_placed_again");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &a, 0, 64);
    b.receive(5, 0, 64);
    b.receive(6, 64, 64);
    story.wire_does(A, Action::Duplicate, request(a.psn));
    a.send(1, 0, 64);
    story.completes(&a, 1);
    story.completes(&b, 5);
    story.wait(100 * US);
    story.no_completion(&b);
    story.memory_matches(&b.memory, 0, &bytes);
    story.memory_matches(&b.memory, 64, &[0; 64]);
    story.announce(1, Reject::Duplicate, 1);
    story.allow(0, Reject::ResponseStale);
    story.no_other_events();
}

#[test]
fn packets_out_of_order_are_sent_again_in_order() {
    let mut story = two_cards("packets_out_of_order_are_sent_again_in_order");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &a, 0, 6000);
    let late = psn_add(a.psn, 1);
    story.wire_does(A, Action::Delay(Delay::Frames { count: 2, at_most: 20 * US }), request(late));
    a.write(1, 0, 6000, &b.memory, 0);
    story.completes(&a, 1);
    story.memory_matches(&b.memory, 0, &bytes);
    // 0 2 3 1 4 5: one NAK at 2, and after 1 has come in order one at 4.
    story.announce(1, Reject::PsnOutOfSequence, 2);
    story.allow(1, Reject::PsnOutOfSequenceRepeat);
    story.allow(1, Reject::Duplicate);
    story.allow(0, Reject::ResponseStale);
    story.no_other_events();
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut story = two_cards("a_receiver_that_is_not_ready_is_waited_for");
    // RNR timer 12: 0.64 ms
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &a, 0, 500);
    a.send(1, 0, 500);
    let nak = story.sees(B, "RNR NAK", |packet| syndrome(packet) == 0x20 | 12);
    assert_eq!(nak.packet.bth.psn, a.psn);
    let quiet_until = nak.at + 640 * US;
    story.sees_nothing_until(quiet_until);
    b.receive(2, 0, 512);
    let again = story.sees(A, "SEND again", request(a.psn));
    assert!(again.at < nak.at + 900 * US, "after {} us", (again.at - nak.at) / US);
    story.completes(&a, 1);
    story.completes(&b, 2);
    story.memory_matches(&b.memory, 0, &bytes);
    story.announce(1, Reject::ReceiverNotReady, 1);
    story.no_other_events();
}

#[test]
fn a_receiver_that_is_never_ready_ends_in_rnr_retry_exceeded() {
    let mut story = two_cards("a_receiver_that_is_never_ready_ends_in_rnr_retry_exceeded");
    let (a, _b) = story.connected_as(|_, attr| attr.rnr_retry = 2);
    a.send(1, 0, 500);
    let end = story.completion(&a);
    assert_eq!((end.wr_id, end.status), (1, WcStatus::RnrRetryExcErr));
    let sent = story.packets().iter().filter(|seen| seen.from == A).count();
    assert_eq!(sent, 3, "once and two retries");
    story.announce(1, Reject::ReceiverNotReady, 3);
    story.no_other_events();
}

#[test]
fn a_dead_peer_ends_in_retry_exceeded_after_exactly_the_retries() {
    let mut story = two_cards("a_dead_peer_ends_in_retry_exceeded_after_exactly_the_retries");
    let (a, b) = story.connected_as(|_, attr| {
        attr.timeout = 8;
        attr.retry_cnt = 3;
    });
    story.wire_is_cut(A);
    a.write(1, 0, 64, &b.memory, 0);
    a.write(2, 0, 64, &b.memory, 0);
    let end = story.completion(&a);
    assert_eq!((end.wr_id, end.status), (1, WcStatus::RetryExcErr));
    let flushed = story.completion(&a);
    assert_eq!((flushed.wr_id, flushed.status), (2, WcStatus::WrFlushErr));
    let sent = story.packets().iter().filter(|seen| seen.packet.bth.psn == a.psn).count();
    assert_eq!(sent, 4, "once and three retries");
    let later = story.now() + 100 * MS;
    story.goes_past();
    story.sees_nothing_until(later);
    story.no_other_events();
}

#[test]
fn an_unknown_key_is_refused_and_ends_both_ends() {
    let mut story = two_cards("an_unknown_key_is_refused_and_ends_both_ends");
    let (a, b) = story.connected();
    let sge = [a.memory.sge(0..64).unwrap()];
    let wr = SendWr::write(1, &sge, b.memory.addr(), b.memory.rkey() ^ 0x4200).signaled();
    a.qp.post_send(&[wr]).unwrap();
    let nak = story.sees(B, "NAK", answer);
    assert_eq!(syndrome(&nak.packet), Syndrome::NAK_REMOTE_ACCESS);
    let end = story.completion(&a);
    assert_eq!((end.wr_id, end.status), (1, WcStatus::RemAccessErr));
    story.memory_matches(&b.memory, 0, &[0; 64]);
    let notice = b.context.async_event(Some(Duration::from_millis(10))).unwrap();
    assert_eq!(notice.map(|n| n.event), Some(host::AsyncEvent::QpAccessErr));
    story.announce(1, Reject::RkeyUnknown, 1);
    story.no_other_events();
}

#[test]
fn a_write_across_the_end_of_the_region_places_nothing() {
    let mut story = two_cards("a_write_across_the_end_of_the_region_places_nothing");
    let (a, b) = story.connected();
    let end = b.memory.len();
    fill(&mut story, &a, 0, 3000);
    a.write(1, 0, 3000, &b.memory, end - 2999);
    assert_eq!(story.completion(&a).status, WcStatus::RemAccessErr);
    story.memory_matches(&b.memory, end - 2999, &[0; 2999]);
    story.announce(1, Reject::RkeyBounds, 1);
    story.allow(1, Reject::QpHalted);
    story.no_other_events();
}

#[test]
fn an_interrupt_comes_after_its_completion() {
    let mut story = two_cards("an_interrupt_comes_after_its_completion");
    let (hosts, channel) = {
        let (a, b) = (story.start(0), story.start(1));
        let channel = b.context.create_comp_channel().unwrap();
        ((a, b), channel)
    };
    let (a, mut b) = hosts;
    b.cq = b.context.create_cq(64, Some(&channel)).unwrap();
    let (a, b) = (story.qp(a, |_| {}), story.qp(b, |_| {}));
    story.join(&a, &b, |_, _| {});
    b.cq.request_notify(false).unwrap();
    b.receive(4, 0, 64);
    a.send(1, 0, 64);
    let event = channel.wait(Some(Duration::from_millis(10))).unwrap().expect("an event");
    assert_eq!(event.cqn, b.cq.number());
    // The completion is there without any further wait.
    let mut entry = [host::Completion::default()];
    assert_eq!(b.cq.poll(&mut entry).unwrap(), 1);
    assert_eq!(entry[0].wr_id, 4);
    story.completes(&a, 1);
    story.no_other_events();
}

#[test]
fn an_error_tells_its_cause_where_it_arose_and_a_completion_the_time() {
    let here = Some(Reject::SglKey);
    for (what, sender, receiver) in [
        ("bad L_Key", (WcStatus::LocProtErr, here), None),
        ("bad R_Key", (WcStatus::RemAccessErr, None), None),
        (
            "short receive",
            (WcStatus::RemInvReqErr, None),
            Some((WcStatus::LocLenErr, Some(Reject::ReceiveTooShort))),
        ),
        ("nothing", (WcStatus::Success, None), Some((WcStatus::Success, None))),
    ] {
        let mut story = two_cards(&format!("an_error_tells_its_cause_{}", what.replace(' ', "_")));
        let (a, b) = story.connected();
        b.receive(1, 0, 64);
        let good = a.memory.sge(0..if what == "short receive" { 65 } else { 64 }).unwrap();
        let bad = host::qp::Sge { lkey: good.lkey ^ 1, ..good };
        let sge = [if what == "bad L_Key" { bad } else { good }];
        let wr = match what {
            "bad R_Key" => SendWr::write(2, &sge, b.memory.addr(), b.memory.rkey() ^ 1),
            _ => SendWr::send(2, &sge),
        };
        let before = a.context.device().now_ticks().unwrap();
        a.qp.post_send(&[wr.signaled()]).unwrap();
        let done = story.completion(&a);
        let after = a.context.device().now_ticks().unwrap();
        assert_eq!((done.status, done.cause()), sender, "{what}");
        assert!((before..=after).contains(&done.timestamp), "{before} {} {after}", done.timestamp);
        if let Some(receiver) = receiver {
            let done = story.completion(&b);
            assert_eq!((done.status, done.cause()), receiver, "{what}");
            assert_eq!(done.byte_len, if done.status == WcStatus::Success { 64 } else { 0 });
        }
    }
}

#[test]
fn the_times_of_a_cq_never_run_back_and_each_lies_between_its_cause_and_its_look() {
    let mut story =
        two_cards("the_times_of_a_cq_never_run_back_and_each_lies_between_its_cause_and_its_look");
    let (a, b) = story.connected();
    // a second QP completes in the same CQs
    let init = host::QpInit::rc(&a.cq, &a.cq);
    let other = host::QpInit::rc(&b.cq, &b.cq);
    let (mine, theirs) = (a.pd.create_qp(&init).unwrap(), b.pd.create_qp(&other).unwrap());
    mine.connect_with(&story::usual(b.gid(), theirs.number(), 7, 9)).unwrap();
    theirs.connect_with(&story::usual(a.gid(), mine.number(), 9, 7)).unwrap();
    let ticks = |end: &End| end.context.device().now_ticks().unwrap();
    let mut last = [0; 2];
    let mut entries = [host::Completion::default(); 8];
    for i in 0..40u64 {
        b.receive(i, 0, 4096);
        let begun = [ticks(&a), ticks(&b)];
        let length = 1 + story.below(4000) as usize;
        a.send(i, 0, length);
        if i % 3 == 0 {
            a.read(100 + i, 8192, length, &b.memory, 0);
        }
        let sge = [a.memory.sge(0..length).unwrap()];
        let wr = SendWr::write(i, &sge, b.memory.addr() + 8192, b.memory.rkey());
        mine.post_send(&[wr.signaled()]).unwrap();
        let mut owed = [2 + usize::from(i % 3 == 0), 1];
        while owed != [0, 0] {
            let later = story.below(3 * US);
            story.wait(later);
            for (n, end) in [&a, &b].into_iter().enumerate() {
                let found = end.cq.poll(&mut entries).unwrap();
                let now = ticks(end);
                for done in &entries[..found] {
                    assert_eq!(done.status, WcStatus::Success);
                    assert!((begun[n]..=now).contains(&done.timestamp), "{} {done:?} {now}", begun[n]);
                    assert!(last[n] <= done.timestamp, "{} then {done:?}", last[n]);
                    last[n] = done.timestamp;
                }
                owed[n] -= found;
            }
        }
    }
    // between the ACK on the wire and the time of the entry is the card alone: less than two microseconds
    story.goes_past();
    b.receive(99, 0, 64);
    a.send(99, 0, 64);
    let ack = story.sees(B, "an ACK", answer);
    let done = story.completes(&a, 99);
    story.completes(&b, 99);
    let (before, now, after) = (story.now(), ticks(&a), story.now());
    let tick = 1_000_000_000 / u64::from(a.context.attributes().core_clock_khz);
    let ago = (now - done.timestamp) * tick;
    assert!(after - ago > ack.at, "before its ACK at {} ps", ack.at);
    assert!(before - ago < ack.at + 2 * US, "{} ps behind its ACK", before - ago - ack.at);
    story.no_other_events();
}

#[test]
fn a_qp_in_sqd_ends_what_it_began_tells_so_and_goes_on_in_rts() {
    let mut story = two_cards("a_qp_in_sqd_ends_what_it_began_tells_so_and_goes_on_in_rts");
    let (a, b) = story.connected();
    for i in 0..6 {
        a.write(i, 0, 20_000, &b.memory, 0);
    }
    // the second message is under way
    story.sees(A, "the second WRITE", |packet| packet.bth.psn == psn_add(a.psn, 25));
    let sqd =
        host::QpAttr { state: host::QpState::Sqd, en_sqd_async_notify: true, ..host::QpAttr::default() };
    a.qp.modify(&sqd, host::AttrMask::STATE | host::AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    let notice = a.context.async_event(Some(Duration::from_millis(10))).unwrap().expect("an event");
    assert_eq!((notice.event, notice.object), (host::AsyncEvent::SqDrained, a.qp.number()));
    // all that had begun is complete by then, and nothing else is
    let mut entries = [host::Completion::default(); 8];
    let done = a.cq.poll(&mut entries).unwrap();
    assert!((2..6).contains(&done), "{done} messages");
    let sent = story.packets().len();
    a.write(6, 0, 8, &b.memory, 0);
    story.wait(MS);
    assert_eq!(story.packets().len(), sent, "silence");
    assert_eq!(a.context.async_event(Some(Duration::ZERO)).unwrap(), None);
    let rts = host::QpAttr { state: host::QpState::Rts, ..host::QpAttr::default() };
    a.qp.modify(&rts, host::AttrMask::STATE).unwrap();
    for i in done as u64..7 {
        story.completes(&a, i);
    }
    story.no_other_events();
}

#[test]
fn the_first_packet_in_rtr_is_told_once_and_answered() {
    let mut story = two_cards("the_first_packet_in_rtr_is_told_once_and_answered");
    let (a, b) = (story.start(0), story.start(1));
    let (a, b) = (story.qp(a, |_| {}), story.qp(b, |_| {}));
    a.qp.connect_with(&story::usual(b.gid(), b.qp.number(), a.psn, b.psn)).unwrap();
    let attr = story::usual(a.gid(), a.qp.number(), b.psn, a.psn);
    let to = |state| {
        let steps = host::qp::attributes::transition(host::Transport::Rc, b.qp.state(), state).unwrap();
        b.qp.modify(&host::QpAttr { state, ..attr }, steps.0 | host::AttrMask::STATE).unwrap();
    };
    to(host::QpState::Init);
    to(host::QpState::Rtr);
    assert_eq!(b.context.async_event(Some(Duration::ZERO)).unwrap(), None);
    a.write(1, 0, 3000, &b.memory, 0);
    a.write(2, 0, 8, &b.memory, 0);
    story.completes(&a, 1);
    story.completes(&a, 2);
    let notice = b.context.async_event(Some(Duration::from_millis(1))).unwrap().expect("an event");
    assert_eq!((notice.event, notice.object), (host::AsyncEvent::CommEst, b.qp.number()));
    to(host::QpState::Rts);
    b.write(3, 0, 8, &a.memory, 0);
    story.completes(&b, 3);
    assert_eq!(b.context.async_event(Some(Duration::ZERO)).unwrap(), None);
    story.no_other_events();
}

#[test]
fn a_moderated_event_comes_with_the_fourth_completion_or_after_its_time() {
    let mut story = two_cards("a_moderated_event_comes_with_the_fourth_completion_or_after_its_time");
    let (a, mut b) = (story.start(0), story.start(1));
    let channel = b.context.create_comp_channel().unwrap();
    b.cq = b.context.create_cq(64, Some(&channel)).unwrap();
    b.cq.moderate(4, Duration::from_micros(50)).unwrap();
    let (a, b) = (story.qp(a, |_| {}), story.qp(b, |_| {}));
    story.join(&a, &b, |_, _| {});
    let soon = Some(Duration::from_millis(10));
    for i in 0..20 {
        b.receive(i, 0, 64);
    }
    // four: at once
    b.cq.request_notify(false).unwrap();
    for i in 0..4 {
        a.send(i, 0, 64);
    }
    let start = story.now();
    assert!(channel.wait(soon).unwrap().is_some());
    let span = story.now() - start;
    assert!(span < 20 * US, "{} us", span / US);
    let mut entries = [host::Completion::default(); 8];
    assert_eq!(b.cq.poll(&mut entries).unwrap(), 4);
    // three: after the time since the first, in one event
    b.cq.request_notify(false).unwrap();
    let interrupts = story.stage_counter(1, StageCounter::MsixSent);
    let start = story.now();
    for i in 4..7 {
        a.send(i, 0, 64);
    }
    assert!(channel.wait(soon).unwrap().is_some());
    let span = story.now() - start;
    assert!((50 * US..70 * US).contains(&span), "{} us", span / US);
    assert_eq!(b.cq.poll(&mut entries).unwrap(), 3);
    assert_eq!(story.stage_counter(1, StageCounter::MsixSent), interrupts + 1);
    // none: never
    b.cq.request_notify(false).unwrap();
    assert_eq!(channel.wait(Some(Duration::from_millis(1))).unwrap(), None);
    for i in 0..7 {
        story.completes(&a, i);
    }
    story.no_other_events();
}

#[test]
fn nothing_touches_memory_after_the_destruction_under_traffic() {
    let mut story = two_cards("nothing_touches_memory_after_the_destruction_under_traffic");
    let (a, b) = story.connected();
    for i in 0..8 {
        a.write(i, 0, 60_000, &b.memory, 0);
    }
    story.sees(A, "traffic", request(psn_add(a.psn, 20)));
    // The receiver goes: its QP, then its memory, unmapped at once.
    let End { qp, host, .. } = b;
    drop(qp);
    drop(host.memory);
    story.wait(50 * US);
    // Then the sender.
    let End { qp, host: sender, .. } = a;
    drop(qp);
    drop(sender.memory);
    story.wait(5 * MS);
    story.allow(1, Reject::UnknownQp);
    story.allow(1, Reject::WrongQpState);
    story.allow(1, Reject::QpHalted);
    story.allow(0, Reject::ResponseUnexpected);
    story.allow(0, Reject::ResponseStale);
    story.allow(0, Reject::UnknownQp);
    // Also its own packets that were on their way when it went: never a key error.
    story.allow(0, Reject::WrongQpState);
    story.no_other_events();
}

#[test]
fn the_same_seed_gives_the_same_packets_at_the_same_times() {
    let run = |name: &str| {
        let mut story = two_cards(name);
        let (a, b) = story.connected_as(|_, attr| attr.timeout = 8);
        let faults = sim::wire::Faults { loss: 0.05, duplicate: 0.02, reorder: 0.02, ..Default::default() };
        story.wire_harms(faults);
        for i in 0..6 {
            a.write(i, 0, 30_000, &b.memory, 0);
        }
        for i in 0..6 {
            story.completes(&a, i);
        }
        // the virtual address of the target is an input that the process, not the seed, decides
        let base = b.memory.addr();
        let packets: Vec<_> = story
            .packets()
            .into_iter()
            .map(|mut seen| {
                if let Some(reth) = &mut seen.packet.reth {
                    reth.va -= base;
                }
                (seen.at, seen.from, seen.packet)
            })
            .collect();
        packets
    };
    let one = run("the_same_seed_gives_the_same_packets_at_the_same_times");
    assert!(one.len() > 180);
    assert!(one == run("the_same_seed_gives_the_same_packets_at_the_same_times_again"));
}

#[test]
fn a_region_without_the_right_refuses_a_write() {
    let mut story = two_cards("a_region_without_the_right_refuses_a_write");
    let (a, b) = story.connected();
    let closed = b.pd.allocate(4096, Access::LOCAL_WRITE).unwrap();
    a.write(1, 0, 64, &closed, 0);
    assert_eq!(story.completion(&a).status, WcStatus::RemAccessErr);
    story.memory_matches(&closed, 0, &[0; 64]);
    story.announce(1, Reject::RkeyRights, 1);
    story.no_other_events();
}

#[test]
fn a_wire_that_is_pulled_out_is_told_to_both_and_what_was_under_way_goes_on_when_it_is_back() {
    let mut story =
        two_cards("a_wire_that_is_pulled_out_is_told_to_both_and_what_was_under_way_goes_on_when_it_is_back");
    let (a, b) = story.connected();
    let told = |event| {
        for end in [&a, &b] {
            let notice = end.context.async_event(Some(Duration::from_millis(1))).unwrap().expect("an event");
            assert_eq!((notice.event, notice.object), (event, 0));
            let up = end.context.device().port().unwrap().link_up;
            assert_eq!(up, event == host::AsyncEvent::PortActive);
            assert_eq!(end.context.async_event(Some(Duration::ZERO)).unwrap(), None, "once");
            assert_eq!(end.qp.state(), host::QpState::Rts);
        }
    };
    // the link was up when the card was opened: no news
    for end in [&a, &b] {
        assert!(end.context.device().port().unwrap().link_up);
        assert_eq!(end.context.async_event(Some(Duration::ZERO)).unwrap(), None);
    }
    let bytes = fill(&mut story, &a, 0, 200_000);
    a.write(1, 0, bytes.len(), &b.memory, 0);
    story.wait(20 * US);
    lock(&story.room).plug(false);
    story.no_completion(&a);
    told(host::AsyncEvent::PortErr);
    lock(&story.room).plug(true);
    told(host::AsyncEvent::PortActive);
    story.completes(&a, 1);
    story.memory_matches(&b.memory, 0, &bytes);
    // out and in again within three clocks, before anybody was told of the first: both are told
    lock(&story.room).plug(false);
    story.wait(12_000);
    lock(&story.room).plug(true);
    for event in [host::AsyncEvent::PortErr, host::AsyncEvent::PortActive] {
        for end in [&a, &b] {
            let notice = end.context.async_event(Some(Duration::from_millis(1))).unwrap().expect("an event");
            assert_eq!((notice.event, notice.object), (event, 0));
        }
    }
    // for longer than all retries: the work request says so, the card does not mind
    a.write(2, 0, 64, &b.memory, 0);
    lock(&story.room).plug(false);
    assert_eq!(story.completion(&a).status, WcStatus::RetryExcErr);
    lock(&story.room).plug(true);
    story.allow_aftermath(&[]);
    story.no_other_events();
}
