//! Inputs that have broken cards before, each a story of its own; `docs/inputs.md` has the whole list.
//!
//! Requirements: REQ RESP READ ERR MEM QUE PKT TIM

#[path = "library/mod.rs"]
mod library;

use contract::{Opcode, Reject, StageCounter, wire::psn_add};
use host::{Access, Completion, Error, QpInit, RecvWr, SendWr, WcStatus};
use library::{Library, START, kind, payload, syndrome};
use sim::{
    backend::{lock, pass},
    room::RoomConfig,
    story::{self, A, B, End, MS, PATIENCE, Story, US, seed, two_cards},
    wire::{Action, Delay},
};
use std::time::Duration;

/// Fills the memory of an end from the seed; gives the bytes.
fn fill(story: &mut Story, end: &End, at: usize, length: usize) -> Vec<u8> {
    let bytes = story.bytes(length);
    end.memory.write(at, &bytes).expect("a range of the region");
    bytes
}

/// A READ response with this PSN.
fn response(psn: u32) -> impl Fn(&peer::Packet) -> bool + Send + 'static {
    move |packet| (0x0d..=0x10).contains(&packet.bth.opcode) && packet.bth.psn == psn
}

/// The next completion is that of `wr_id`, with this status.
#[track_caller]
fn ends(story: &mut Story, end: &End, wr_id: u64, status: WcStatus) {
    let done = story.completion(end);
    assert_eq!((done.wr_id, done.status), (wr_id, status), "{done:?}");
}

// ---- 1

#[test]
fn a_read_whose_response_is_lost_is_not_skipped_by_the_ack_of_what_follows() {
    let mut story = two_cards("a_read_whose_response_is_lost_is_not_skipped_by_the_ack_of_what_follows");
    let (a, b) = story.connected_as(|_, attr| attr.timeout = 8);
    let there = fill(&mut story, &b, 0, 600);
    let here = fill(&mut story, &a, 10_000, 2000);
    // WRITE at PSN 0, READ at 1, WRITE at 2: of all answers only the ACK of the last arrives
    let (first, read) = (a.psn, psn_add(a.psn, 1));
    story.wire_drops(B, move |packet| packet.aeth.is_some() && packet.bth.psn == first);
    story.wire_drops(B, response(read));
    a.write(1, 10_000, 1000, &b.memory, 100_000);
    assert!(story.sees(B, "ACK", |packet| packet.aeth.is_some()).lost);
    a.read(2, 20_000, 600, &b.memory, 0);
    a.write(3, 11_000, 1000, &b.memory, 101_000);
    for wr_id in 1..=3 {
        story.completes(&a, wr_id);
    }
    story.memory_matches(&a.memory, 20_000, &there);
    story.memory_matches(&b.memory, 100_000, &here);
    let asked = story.packets().into_iter();
    let asked = asked.filter(|seen| seen.packet.opcode() == Some(Opcode::RcReadRequest)).count();
    assert_eq!(asked, 2, "asked again once");
    for reject in [Reject::ResponseGap, Reject::ResponseStale] {
        story.allow(0, reject);
    }
    story.allow(1, Reject::Duplicate);
    story.no_other_events();
}

// ---- 2

#[test]
fn a_read_asked_again_while_a_write_is_half_received_is_answered_and_the_write_goes_on() {
    let mut library = Library::open("a_read_asked_again_while_a_write_is_half_received", 4);
    let bytes = library.story.bytes(3000);
    library.memory.write(0, &bytes).expect("it fits");
    let asked = library.read(0, 3000);
    assert_eq!(payload(&library.hears(30 * US)), bytes);
    let new = library.story.bytes(3 * 1024);
    let part = |library: &Library, n: u32, opcode: Opcode| {
        let mut packet = library.read_request(psn_add(library.psn, n), 50_000, new.len());
        packet.bth.opcode = opcode.code();
        packet.payload = new[1024 * n as usize..1024 * (n as usize + 1)].to_vec();
        if n > 0 {
            packet.reth = None;
        }
        packet
    };
    library.inject(&part(&library, 0, Opcode::RcWriteFirst));
    library.inject(&part(&library, 1, Opcode::RcWriteMiddle));
    // all of it, then its last two packets
    for from in 0..2 {
        let at = 1024 * from as usize;
        library.inject(&library.read_request(psn_add(asked, from), at, 3000 - at));
        let heard = library.hears(40 * US);
        let again = heard.iter().filter(|packet| kind(packet) != Opcode::RcAcknowledge);
        assert_eq!(payload(again), bytes[at..]);
    }
    library.inject(&part(&library, 2, Opcode::RcWriteLast));
    let heard = library.hears(40 * US);
    assert_eq!((heard.len(), syndrome(&heard[0]), heard[0].bth.psn), (1, 0x1f, psn_add(library.psn, 2)));
    library.story.memory_matches(&library.memory, 50_000, &new);
    library.story.announce(0, Reject::Duplicate, 2);
    library.story.no_other_events();
}

// ---- 3

#[test]
fn twenty_copies_of_an_rnr_nak_neither_prolong_the_wait_nor_cost_retries_whatever_the_limit() {
    // code 0 is the longest time, 655.36 ms, code 1 the shortest, 10 us
    for (rnr_retry, code) in [(0, 0), (0, 1), (1, 0), (1, 1), (3, 1), (6, 0), (7, 1)] {
        let least = if code == 0 { 655_360 * US } else { 10 * US };
        let mut story = two_cards(&format!("twenty_copies_of_an_rnr_nak_{rnr_retry}_{code}"));
        let (a, b) = story.connected_as(|_, attr| {
            (attr.rnr_retry, attr.min_rnr_timer) = (rnr_retry, code);
        });
        a.send(1, 0, 500);
        let nak = story.sees(B, "RNR NAK", |packet| packet.aeth.is_some());
        assert_eq!(syndrome(&nak.packet), 0x20 | code);
        for _ in 0..20 {
            lock(&story.room).inject(B, &nak.packet.build()).expect("inject");
        }
        if rnr_retry == 0 {
            ends(&mut story, &a, 1, WcStatus::RnrRetryExcErr);
        } else {
            b.receive(7, 0, 500);
            let again = story.sees(A, "SEND again", |packet| packet.aeth.is_none());
            let waited = again.at - nak.at;
            assert!(waited >= least && waited < least + least / 2 + 20 * US, "{waited} ps");
            story.completes(&a, 1);
            story.completes(&b, 7);
        }
        story.announce(1, Reject::ReceiverNotReady, 1);
        for reject in
            [Reject::ResponseStale, Reject::ResponseUnexpected, Reject::WrongQpState, Reject::QpHalted]
        {
            story.allow(0, reject);
        }
        story.no_other_events();
    }
}

// ---- 4

#[test]
fn nothing_can_be_moved_by_every_operation_first_and_between_long_messages_under_any_key() {
    let mut story = two_cards("nothing_can_be_moved_by_every_operation");
    let (a, b) = story.connected();
    let stale = {
        let gone = b.pd.allocate(4096, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
        gone.rkey()
    };
    let bytes = fill(&mut story, &a, 0, 9000);
    let mut id = 0;
    for rkey in [0, stale, b.memory.rkey()] {
        for with_sge in [false, true] {
            let sge = [a.memory.sge(5..5).unwrap()];
            let sges = if with_sge { &sge[..] } else { &[] };
            for n in 0..3 {
                let wr = match n {
                    0 => SendWr::write(id, sges, 0, rkey),
                    1 => SendWr::read(id, sges, 0, rkey),
                    _ => {
                        b.qp.post_recv(&[RecvWr::new(id, &[])]).unwrap();
                        SendWr::send(id, sges)
                    }
                };
                a.qp.post_send(&[wr.signaled()]).unwrap();
                // a long one behind each
                a.write(id + 1, 0, 9000, &b.memory, 100_000);
                story.completes(&a, id);
                story.completes(&a, id + 1);
                if n == 2 {
                    assert_eq!(story.completes(&b, id).byte_len, 0);
                }
                id += 2;
            }
        }
    }
    story.memory_matches(&b.memory, 100_000, &bytes);
    story.memory_matches(&b.memory, 0, &[0; 100_000]);
    story.no_other_events();
}

// ---- 5

#[test]
fn psns_wrap_inside_a_read_a_write_a_window_and_at_a_nak() {
    // in packets from the start of the story: where the wrap is, and which packet is lost
    for (wrap, lost) in [(1u32, 1), (2, 1), (2, 2), (5, 5), (6, 4), (8, 8), (12, 11), (40, 41)] {
        let mut story = two_cards(&format!("psns_wrap_after_{wrap}_with_packet_{lost}_lost"));
        let hosts = [story.start(0), story.start(1)];
        let [mut a, mut b] = hosts.map(|host| story.qp(host, |_| {}));
        (a.psn, b.psn) = (0x100_0000 - wrap, 0x100_0000 - wrap);
        story.join(&a, &b, |_, attr| attr.timeout = 8);
        let long = if wrap == 40 { 197_000 } else { 10_000 };
        let here = fill(&mut story, &a, 0, 3000 + long);
        let there = fill(&mut story, &b, 300_000, 4000);
        let psn = psn_add(a.psn, lost);
        if (3..7).contains(&lost) {
            story.wire_drops(B, response(psn));
        } else {
            story.wire_drops(A, move |packet| packet.aeth.is_none() && packet.bth.psn == psn);
        }
        a.write(1, 0, 3000, &b.memory, 0); // 0..3
        a.read(2, 300_000, 4000, &b.memory, 300_000); // 3..7
        a.write(3, 3000, long, &b.memory, 3000); // once a window and more
        for wr_id in 1..=3 {
            story.completes(&a, wr_id);
        }
        story.memory_matches(&b.memory, 0, &here);
        story.memory_matches(&a.memory, 300_000, &there);
        for reject in [Reject::ResponseGap, Reject::ResponseStale, Reject::ResponseUnexpected] {
            story.allow(0, reject);
        }
        for reject in [Reject::Duplicate, Reject::PsnOutOfSequence, Reject::PsnOutOfSequenceRepeat] {
            story.allow(1, reject);
        }
        story.no_other_events();
    }
}

// ---- 6

#[test]
fn headers_of_every_length_straddle_beats_with_and_without_immediate_data() {
    let mut story = two_cards("headers_of_every_length_straddle_beats");
    let (a, b) = story.connected();
    let (mut a, mut b) = (a, b);
    let mut id = 0;
    for index in [0, story::IPV6, story::IPV6_VLAN_5, story::IPV4_PRIORITY] {
        if index > 0 {
            (a, b) = (story.qp(a.host, |_| {}), story.qp(b.host, |_| {}));
            story.join(&a, &b, |side, attr| {
                if index != story::IPV4_PRIORITY {
                    let other = if side == A { 2u128 } else { 1 };
                    attr.av.dest_gid = host::Gid::from_u128(0xfd << 120 | other);
                }
                attr.av.sgid_index = index;
            });
        }
        for length in [0, 1, 2, 3, 4, 5, 7, 8, 9, 1023, 1024, 1025, 1032] {
            let bytes = fill(&mut story, &a, 3, length);
            let sge = [a.memory.sge(3..3 + length).unwrap()];
            for (n, at) in [(0, 10_000), (1, 20_000), (2, 30_000), (3, 40_000)] {
                let to = b.memory.addr() + at as u64;
                let imm = 0xdead_0000 + id as u32;
                use host::Operation as Op;
                let operation = match n {
                    0 => Op::Send,
                    1 => Op::SendWithImm(imm),
                    2 => Op::Write { addr: to, rkey: b.memory.rkey() },
                    _ => Op::WriteWithImm { addr: to, rkey: b.memory.rkey(), imm },
                };
                let landing = [b.memory.sge(at..at + 2000).unwrap()];
                if n != 2 {
                    b.qp.post_recv(&[RecvWr::new(id, &landing)]).unwrap();
                }
                a.qp.post_send(&[SendWr::new(id, operation, &sge).signaled()]).unwrap();
                story.completes(&a, id);
                if n != 2 {
                    let got = story.completes(&b, id);
                    assert_eq!(got.imm, (n % 2 == 1).then_some(imm));
                    assert_eq!(got.byte_len as usize, length);
                }
                story.memory_matches(&b.memory, at, &bytes);
                id += 1;
            }
        }
    }
    story.no_other_events();
}

// ---- 7

#[test]
fn one_nak_is_followed_by_clean_traffic() {
    let mut story = two_cards("one_nak_is_followed_by_clean_traffic");
    let (a, b) = story.connected_as(|_, attr| attr.retry_cnt = 1);
    let bytes = fill(&mut story, &a, 0, 5000);
    let lost = psn_add(a.psn, 2);
    story.wire_drops(A, move |packet| packet.bth.psn == lost && packet.aeth.is_none());
    a.write(0, 0, 5000, &b.memory, 0);
    story.completes(&a, 0);
    let again = story.stage_counter(0, StageCounter::Retransmits);
    for i in 1..=60 {
        a.write(i, 0, 5000, &b.memory, 0);
        if i % 20 == 0 {
            for done in i - 19..=i {
                story.completes(&a, done);
            }
        }
    }
    story.memory_matches(&b.memory, 0, &bytes);
    assert_eq!(story.stage_counter(0, StageCounter::Retransmits), again, "nothing more was sent again");
    let packets = story.packets();
    let naks = packets.iter().filter(|s| s.packet.aeth.is_some_and(|a| a.syndrome >> 5 == 3)).count();
    assert_eq!(naks, 1);
    // and the retry is there again for the next loss
    let lost = psn_add(a.psn, 5 * 61 + 1);
    story.wire_drops(A, move |packet| packet.bth.psn == lost && packet.aeth.is_none());
    a.write(100, 0, 5000, &b.memory, 0);
    story.completes(&a, 100);
    story.announce(1, Reject::PsnOutOfSequence, 2);
    story.allow(1, Reject::PsnOutOfSequenceRepeat);
    story.no_other_events();
}

// ---- 8

#[test]
fn rings_are_exactly_full_and_exactly_empty_at_every_index_and_over_the_wrap() {
    // neither depth is a power of two: 5 become 8, 3 become 4
    let mut story = two_cards("rings_are_exactly_full_and_exactly_empty_at_every_index");
    let hosts = [story.start(0), story.start(1)];
    let [a, b] = hosts.map(|host| story.qp(host, |init| (init.max_send_wr, init.max_recv_wr) = (5, 3)));
    story.join(&a, &b, |_, _| {});
    assert_eq!((a.qp.send_depth(), b.qp.recv_depth()), (8, 4));
    let bytes = fill(&mut story, &a, 0, 64);
    let (mut sent, mut received) = (0u64, 0u64);
    for n in 0..20 {
        // receives to the brim, one more is refused
        for _ in 0..4 {
            b.receive(1000 + received, 64 * (received as usize % 64), 64);
            received += 1;
        }
        let sge = [b.memory.sge(0..64).unwrap()];
        assert!(matches!(b.qp.post_recv(&[RecvWr::new(0, &sge)]), Err(Error::QueueFull { free: 0, .. })));
        // four SENDs, four WRITEs: the send queue is full as well, and shifts by one in every round
        let from = sent;
        for i in 0..8 {
            if i < 4 {
                a.send(sent, 0, 64);
            } else {
                a.write(sent, 0, 64, &b.memory, 100_000);
            }
            sent += 1;
        }
        let sge = [a.memory.sge(0..64).unwrap()];
        let more = [SendWr::send(0, &sge)];
        assert!(matches!(a.qp.post_send(&more), Err(Error::QueueFull { wanted: 1, free: 0, depth: 8, .. })));
        for id in from..sent {
            story.completes(&a, id);
        }
        for id in received - 4..received {
            story.completes(&b, 1000 + id);
            story.memory_matches(&b.memory, 64 * (id as usize % 64), &bytes);
        }
        // empty; an odd number moves the index on
        for _ in 0..=(n % 2) * 2 {
            a.write(sent, 0, 64, &b.memory, 100_000);
            story.completes(&a, sent);
            sent += 1;
        }
        b.receive(1000 + received, 0, 64);
        a.send(sent, 0, 64);
        story.completes(&a, sent);
        story.completes(&b, 1000 + received);
        (sent, received) = (sent + 1, received + 1);
    }
    story.no_other_events();
}

#[test]
fn a_cq_is_exactly_full_and_exactly_empty_at_every_index_and_over_the_wrap() {
    let mut story = two_cards("a_cq_is_exactly_full_and_exactly_empty_at_every_index");
    let mut host = story.start(0);
    let other = story.start(1);
    // five become six of a ring of eight
    host.cq = host.context.create_cq(5, None).unwrap();
    let most = host.cq.entries() as u64;
    assert_eq!(most, 6);
    let (a, b) = (story.qp(host, |_| {}), story.qp(other, |_| {}));
    story.join(&a, &b, |_, _| {});
    let mut id = 0;
    for n in 0..30 {
        let batch = if n % 3 == 2 { 1 } else { most };
        for i in 0..batch {
            a.write(id + i, 0, 8, &b.memory, 0);
        }
        // all of them stand in the CQ before any is taken
        story.wait(20 * US);
        for _ in 0..batch {
            story.completes(&a, id);
            id += 1;
        }
        story.no_completion(&a);
    }
    story.no_other_events();
}

// ---- 10

#[test]
fn a_key_reaches_its_region_its_domain_and_its_time_and_not_a_byte_more() {
    const LENGTH: usize = 5000;
    let cases: [(&str, Option<Reject>); 10] = [
        ("first byte", None),
        ("last byte", None),
        ("a byte before", Some(Reject::RkeyBounds)),
        ("a byte behind", Some(Reject::RkeyBounds)),
        ("one byte too long", Some(Reject::RkeyBounds)),
        ("wraps 2^64", Some(Reject::RkeyBounds)),
        ("ends at 2^64", Some(Reject::RkeyBounds)),
        ("another domain", Some(Reject::RkeyPd)),
        ("destroyed", Some(Reject::RkeyUnknown)),
        ("tag + 1", Some(Reject::RkeyTag)),
    ];
    for read in [false, true] {
        let verb = if read { "READ" } else { "WRITE" };
        let mut story = two_cards(&format!("a_key_reaches_its_region_by_{verb}"));
        let (a, b) = story.connected();
        let (mut a, mut b) = (a, b);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let own = b.pd.allocate(LENGTH, rights).unwrap();
        let foreign = b.context.alloc_pd().unwrap().allocate(LENGTH, rights).unwrap();
        let gone = {
            let region = b.pd.allocate(LENGTH, rights).unwrap();
            (region.addr(), region.rkey())
        };
        own.write(0, &[0x33; LENGTH]).unwrap();
        for (what, refused) in cases {
            let (base, rkey) = (own.addr(), own.rkey());
            let (addr, rkey, length) = match what {
                "first byte" => (base, rkey, 1),
                "last byte" => (base + LENGTH as u64 - 1, rkey, 1),
                "a byte before" => (base - 1, rkey, 1),
                "a byte behind" => (base + LENGTH as u64, rkey, 1),
                "one byte too long" => (base, rkey, LENGTH + 1),
                "wraps 2^64" => (u64::MAX - 10, rkey, 4000),
                "ends at 2^64" => (u64::MAX - 999, rkey, 1000),
                "another domain" => (foreign.addr(), foreign.rkey(), 100),
                "destroyed" => (gone.0, gone.1, 100),
                _ => (base, rkey & !0xff | (rkey + 1) & 0xff, 100),
            };
            a.memory.write(0, &[0x44; LENGTH + 1]).unwrap();
            let sge = [a.memory.sge(0..length).unwrap()];
            let wr =
                if read { SendWr::read(1, &sge, addr, rkey) } else { SendWr::write(1, &sge, addr, rkey) };
            a.qp.post_send(&[wr.signaled()]).unwrap();
            let done = story.completion(&a);
            let status = if refused.is_some() { WcStatus::RemAccessErr } else { WcStatus::Success };
            assert_eq!(done.status, status, "{verb}, {what}");
            match (read, refused) {
                (true, None) => story.memory_matches(&a.memory, 0, &vec![0x33; length]),
                (true, Some(_)) => story.memory_matches(&a.memory, 0, &[0x44; LENGTH + 1]),
                (false, None) => {
                    story.memory_matches(&own, (addr - base) as usize, &vec![0x44; length]);
                    own.write(0, &[0x33; LENGTH]).unwrap();
                }
                (false, Some(_)) => {}
            }
            story.memory_matches(&own, 0, &[0x33; LENGTH]);
            story.memory_matches(&foreign, 0, &[0; LENGTH]);
            if let Some(reject) = refused {
                let counted = story.reject_counter(1, reject);
                assert!(counted > 0, "{verb}, {what}: {} is not counted", reject.name());
                (a, b) = (story.qp(a.host, |_| {}), story.qp(b.host, |_| {}));
                story.join(&a, &b, |_, _| {});
            }
        }
        for reject in cases.iter().filter_map(|(_, reject)| *reject).chain([Reject::QpHalted]) {
            story.allow(1, reject);
        }
        story.allow(0, Reject::WrongQpState);
        story.no_other_events();
    }
}

// ---- 13

#[test]
fn what_a_way_may_change_of_a_frame_is_heard_and_what_is_no_datagram_is_dropped_by_name() {
    // no capture: its judges would find what is wrong with these frames
    let mut library = Library::quietly("what_a_way_may_change_of_a_frame_is_heard");
    lock(&library.story.room).remember_frames();
    let mut psn = START;
    let write = |library: &Library, psn: u32, byte: u8| {
        let mut packet = library.read_request(psn, 0, 1);
        packet.bth.opcode = Opcode::RcWriteOnly.code();
        packet.payload = vec![byte];
        packet
    };
    // what is covered by neither ICRC nor meaning
    let ip = 14;
    let fix = |frame: &mut [u8], at: usize| {
        frame[at + 10..at + 12].fill(0);
        let sum: u32 = frame[at..at + 20].chunks(2).map(|b| u32::from(b[0]) << 8 | u32::from(b[1])).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
    };
    type Change = Box<dyn Fn(&mut Vec<u8>)>;
    let heard: Vec<(&str, Change)> = vec![
        ("as it is", Box::new(|_| {})),
        ("MigReq 0", Box::new(|_| {})),
        ("MigReq 1", Box::new(|_| {})),
        ("UDP checksum 0", Box::new(|frame| frame[40..42].fill(0))),
        ("UDP checksum wrong", Box::new(|frame| frame[40..42].copy_from_slice(&[0xab, 0xcd]))),
        (
            "TTL 1",
            Box::new(move |frame| {
                frame[ip + 8] = 1;
                fix(frame, ip);
            }),
        ),
        ("padding", Box::new(|frame| frame.resize(frame.len() + 46, 0x5a))),
        (
            "priority tag",
            Box::new(|frame| {
                frame.splice(12..12, [0x81, 0x00, 0xa0, 0x00]);
            }),
        ),
    ];
    for (n, (what, change)) in heard.iter().enumerate() {
        let mut packet = write(&library, psn, n as u8 + 1);
        packet.bth.mig_req = *what != "MigReq 0";
        let mut frame = packet.build();
        change(&mut frame);
        lock(&library.story.room).inject(B, &frame).expect("inject");
        let answers = library.hears(10 * US);
        assert_eq!(answers.len(), 1, "{what}");
        assert_eq!((syndrome(&answers[0]), answers[0].bth.psn), (0x1f, psn), "{what}");
        library.story.memory_matches(&library.memory, 0, &[n as u8 + 1]);
        psn = psn_add(psn, 1);
    }
    let dropped: Vec<(&str, Reject, Change)> = vec![
        (
            "IP options",
            Reject::BadIpHeader,
            Box::new(move |frame| {
                frame[ip] = 0x46;
                let total = u16::from_be_bytes([frame[ip + 2], frame[ip + 3]]) + 4;
                frame[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
                frame.splice(ip + 20..ip + 20, [1, 1, 1, 0]);
            }),
        ),
        (
            "more fragments",
            Reject::BadIpHeader,
            Box::new(move |frame| {
                frame[ip + 6] = 0x20;
                fix(frame, ip);
            }),
        ),
        (
            "a later fragment",
            Reject::BadIpHeader,
            Box::new(move |frame| {
                frame[ip + 7] = 1;
                fix(frame, ip);
            }),
        ),
        ("IP checksum wrong", Reject::BadIpHeader, Box::new(move |frame| frame[ip + 10] ^= 1)),
        (
            "another VLAN",
            Reject::WrongAddress,
            Box::new(|frame| {
                frame.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
            }),
        ),
    ];
    for (what, reject, change) in &dropped {
        let before = library.story.reject_counter(0, *reject);
        let mut frame = write(&library, psn, 0xee).build();
        change(&mut frame);
        lock(&library.story.room).inject(B, &frame).expect("inject");
        assert_eq!(library.hears(10 * US), [], "{what}");
        assert_eq!(library.story.reject_counter(0, *reject), before + 1, "{what}");
        library.story.memory_matches(&library.memory, 0, &[heard.len() as u8]);
        library.story.allow(0, *reject);
    }
    library.story.no_other_events();
}

// ---- 14

#[test]
fn a_read_asked_again_while_it_is_being_answered_is_answered_once_more_in_order() {
    let mut library = Library::open("a_read_asked_again_while_it_is_being_answered", 4);
    let bytes = library.story.bytes(40_000);
    library.memory.write(0, &bytes).expect("it fits");
    let psn = library.read(0, 40_000);
    library.story.wait(8 * US);
    // it is in the midst of forty packets; the whole again, then the end of it
    library.inject(&library.read_request(psn, 0, 40_000));
    library.story.wait(4 * US);
    let from = psn_add(psn, 20);
    library.inject(&library.read_request(from, 20 * 1024, 40_000 - 20 * 1024));
    let before = library.story.packets().iter().filter(|seen| seen.from == A).count();
    library.story.wait(200 * US);
    let heard: Vec<_> = library.story.packets().into_iter().filter(|seen| seen.from == A).collect();
    assert!(before > 2 && before < heard.len());
    // whatever was cut short, what is sent is right, in order from each place, and the end is reached
    let mut expected = psn;
    for seen in &heard {
        let n = psn_add(seen.packet.bth.psn, 0x100_0000 - psn) as usize;
        let end = (n * 1024 + 1024).min(bytes.len());
        assert_eq!(seen.packet.payload, bytes[n * 1024..end], "packet {n}");
        let again = [psn, from].contains(&seen.packet.bth.psn);
        assert!(again || seen.packet.bth.psn == expected, "packet {n} out of order");
        expected = psn_add(seen.packet.bth.psn, 1);
    }
    assert_eq!(expected, library.psn);
    library.story.announce(0, Reject::Duplicate, 2);
    library.story.no_other_events();
}

// ---- 15

#[test]
fn of_a_list_of_32_with_a_bad_one_the_15_before_it_succeed_and_the_16_behind_it_are_flushed() {
    let mut story = two_cards("of_a_list_of_32_with_a_bad_one");
    let (a, b) = story.connected();
    let bytes = fill(&mut story, &a, 0, 32 * 300);
    let sges: Vec<_> = (0..32).map(|i| [a.memory.sge(300 * i..300 * (i + 1)).unwrap()]).collect();
    let list = |bad: fn(&mut SendWr<'_>)| -> Vec<SendWr<'_>> {
        let to = |i: usize| b.memory.addr() + 300 * i as u64;
        let mut list: Vec<SendWr<'_>> = sges
            .iter()
            .enumerate()
            .map(|(i, sge)| SendWr::write(i as u64, sge, to(i), b.memory.rkey()).signaled())
            .collect();
        bad(&mut list[15]);
        list
    };
    // one that the driver refuses: nothing of the list is posted
    const NONE: &[u8] = &[0; 4096];
    let error = a.qp.post_send(&list(|wr| wr.inline = Some(NONE))).expect_err("no inline data");
    assert!(!error.to_string().is_empty());
    story.wait(50 * US);
    story.no_completion(&a);
    story.memory_matches(&b.memory, 0, &[0; 32 * 300]);
    // one that the card refuses
    let mut bad = [a.memory.sge(4500..4800).unwrap()];
    bad[0].lkey ^= 0x10;
    let mut good = list(|_| {});
    good[15].sges = &bad;
    a.qp.post_send(&good).unwrap();
    for i in 0..15 {
        story.completes(&a, i);
    }
    ends(&mut story, &a, 15, WcStatus::LocProtErr);
    for i in 16..32 {
        ends(&mut story, &a, i, WcStatus::WrFlushErr);
    }
    story.no_completion(&a);
    story.memory_matches(&b.memory, 0, &bytes[..4500]);
    story.memory_matches(&b.memory, 4500, &[0; 17 * 300]);
    story.announce(0, Reject::SglKey, 1);
    for reject in [Reject::WrongQpState, Reject::QpHalted] {
        story.allow(0, reject);
    }
    // those that had left already are behind a gap
    for reject in [Reject::PsnOutOfSequence, Reject::PsnOutOfSequenceRepeat] {
        story.allow(1, reject);
    }
    story.no_other_events();
}

// ---- 17

#[test]
fn what_sends_a_buffer_that_a_delayed_read_is_still_filling_waits_for_it() {
    for read_too in [false, true] {
        let mut story = two_cards(&format!("a_fenced_use_of_a_buffer_under_a_delayed_read_{read_too}"));
        let (a, b) = story.connected();
        let there = fill(&mut story, &b, 0, 3000);
        // the last of the response is 300 us late
        let (start, late) = (story.now(), psn_add(a.psn, 2));
        story.wire_does(B, Action::Delay(Delay::Time(300 * US)), response(late));
        b.receive(9, 50_000, 3000);
        a.read(1, 0, 3000, &b.memory, 0);
        let sge = [a.memory.sge(0..3000).unwrap()];
        if read_too {
            // the same buffer again, from elsewhere: in order behind the first, also without a fence
            a.read(2, 0, 1000, &b.memory, 2000);
        }
        a.qp.post_send(&[SendWr::send(3, &sge).signaled().fenced()]).unwrap();
        story.completes(&a, 1);
        let mut wanted = there.clone();
        if read_too {
            story.completes(&a, 2);
            wanted[..1000].copy_from_slice(&there[2000..]);
        }
        story.completes(&a, 3);
        assert_eq!(story.completes(&b, 9).byte_len, 3000);
        let sent = story.packets().into_iter().find(|seen| seen.from == A && !seen.packet.payload.is_empty());
        let waited = sent.expect("the SEND").at - start;
        // a second READ behind it tells of the gap, and the first is asked again at once
        assert!(read_too || waited > 300 * US, "{waited} ps");
        story.memory_matches(&a.memory, 0, &wanted);
        story.memory_matches(&b.memory, 50_000, &wanted);
        for reject in [Reject::ResponseGap, Reject::ResponseStale, Reject::ResponseUnexpected] {
            story.allow(0, reject);
        }
        story.allow(1, Reject::Duplicate);
        story.no_other_events();
    }
}

// ---- 18

#[test]
fn a_cq_that_holds_an_entry_when_it_is_armed_tells_at_once() {
    let mut story = two_cards("a_cq_that_holds_an_entry_when_it_is_armed_tells_at_once");
    let (a, mut b) = (story.start(0), story.start(1));
    let channel = b.context.create_comp_channel().unwrap();
    b.cq = b.context.create_cq(64, Some(&channel)).unwrap();
    let (a, b) = (story.qp(a, |_| {}), story.qp(b, |_| {}));
    story.join(&a, &b, |_, _| {});
    for solicited_only in [false, true] {
        b.receive(4, 0, 64);
        a.send(1, 0, 64);
        story.completes(&a, 1);
        // the entry stands there, nobody was told: the CQ was not armed
        story.wait(20 * US);
        assert!(channel.wait(Some(Duration::ZERO)).unwrap().is_none());
        b.cq.request_notify(solicited_only).unwrap();
        let event = channel.wait(Some(Duration::from_micros(20))).unwrap().expect("an event");
        assert_eq!(event.cqn, b.cq.number());
        story.completes(&b, 4);
        // once
        assert!(channel.wait(Some(Duration::from_micros(50))).unwrap().is_none());
    }
    story.no_other_events();
}

// ---- 12, end to end

#[test]
fn ten_thousand_events_of_seven_channels_are_all_told_while_masks_come_and_go() {
    let events: u64 = std::env::var("VERBENA_EVENTS").map_or(10_000, |text| text.parse().expect("a number"));
    let mut story = Story::unrecorded("ten thousand events", RoomConfig::example(2, seed()));
    let (a, b) = (story.start(0), story.start(1));
    let mut lanes = vec![];
    for _ in 0..7 {
        let channel = b.context.create_comp_channel().unwrap();
        let cq = b.context.create_cq(256, Some(&channel)).unwrap();
        let mine = a.pd.create_qp(&QpInit::rc(&a.cq, &a.cq)).unwrap();
        let theirs = b.pd.create_qp(&QpInit::rc(&b.cq, &cq)).unwrap();
        for (qp, other, gid) in [(&mine, &theirs, b.context.gids()[0]), (&theirs, &mine, a.context.gids()[0])]
        {
            qp.connect_with(&story::usual(gid, other.number(), 1, 1)).unwrap();
        }
        cq.request_notify(false).unwrap();
        // arms the interrupt
        assert_eq!(channel.wait(Some(Duration::ZERO)).unwrap(), None);
        lanes.push((channel, cq, mine, theirs));
    }
    let interrupts = |story: &Story| lock(&story.room).interrupts(1);
    let (eqes, sent) =
        (story.stage_counter(1, StageCounter::Eqes), story.stage_counter(1, StageCounter::MsixSent));
    let before = interrupts(&story);
    assert_eq!(sent, before);
    let place = [b.memory.sge(0..8).unwrap()];
    let bytes = [a.memory.sge(0..8).unwrap()];
    let (mut told, mut received, mut posted, mut open) = (0u64, 0u64, 0u64, 0u64);
    let mut waiting = [0u64; 7];
    let mut masked = false;
    let limit = story.now() + PATIENCE;
    let mut entries = [Completion::default(); 64];
    while told < events || received < posted {
        assert!(story.now() < limit, "{told} told, {received} of {posted} received");
        for ((channel, cq, mine, theirs), waiting) in lanes.iter().zip(&mut waiting) {
            if told < events && open < 200 && *waiting < 100 {
                // one to three entries for an event
                for _ in 0..1 + story.below(3) {
                    theirs.post_recv(&[RecvWr::new(0, &place)]).unwrap();
                    mine.post_send(&[SendWr::send(0, &bytes).signaled()]).unwrap();
                    (posted, open, *waiting) = (posted + 1, open + 1, *waiting + 1);
                }
            }
            if channel.is_ready().unwrap() {
                while let Some(event) = channel.wait(Some(Duration::ZERO)).unwrap() {
                    assert_eq!(event.cqn, cq.number());
                    told += 1;
                    let count = cq.poll(&mut entries).unwrap();
                    (received, *waiting) = (received + count as u64, *waiting - count as u64);
                    cq.request_notify(false).unwrap();
                }
            }
        }
        open -= a.cq.poll(&mut entries).unwrap() as u64;
        if story.below(20) == 0 {
            // the function mask of MSI-X: message control, bit 14
            masked = !masked && told < events;
            lock(&story.room).host(1, |root, now| {
                let mut control = [0];
                root.config_read(now, 0xa3, &mut control);
                root.config_write(now, 0xa3, &[control[0] & 0xbf | u8::from(masked) << 6]);
            });
        }
        if story.below(3) == 0 {
            pass(&mut lock(&story.room)).unwrap_or_else(|error| panic!("{error}"));
        }
    }
    // a pushed SEND may be there before the receive that its WQE was posted for is read
    for reject in [Reject::MissQueueFull, Reject::PsnOutOfSequence, Reject::PsnOutOfSequenceRepeat] {
        story.allow(1, reject);
    }
    lock(&story.room).host(1, |root, now| root.config_write(now, 0xa3, &[0x80]));
    assert!(story.comes_to_rest(10 * MS));
    let eqes = story.stage_counter(1, StageCounter::Eqes) - eqes;
    let sent = story.stage_counter(1, StageCounter::MsixSent);
    println!(
        "{told} events of {received} completions; {eqes} entries, {} interrupts",
        interrupts(&story) - before
    );
    // each entry of an EQ was an event of the driver, but for those of armings that nobody has asked about yet
    assert!(eqes >= told && eqes <= told + lanes.len() as u64, "{eqes} entries, {told} told");
    assert_eq!(sent, interrupts(&story), "every message arrived");
    story.no_other_events();
}

// ---- 19

#[test]
fn two_registrations_of_different_size_one_after_the_other_have_each_its_own_bounds() {
    let mut story = two_cards("two_registrations_of_different_size_one_after_the_other");
    let (a, b) = story.connected();
    let (mut a, mut b) = (a, b);
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let bytes = fill(&mut story, &a, 0, 70_000);
    let mut keys = std::collections::BTreeSet::new();
    for (first, second) in [(4096, 65_536), (65_536, 4096), (1, 70_000), (70_000, 1)] {
        for length in [first, second] {
            let region = b.pd.allocate(length, rights).unwrap();
            keys.insert(region.rkey());
            a.write(1, 0, length, &region, 0);
            story.completes(&a, 1);
            story.memory_matches(&region, 0, &bytes[..length]);
            // to the last byte of it, and not one more
            let sge = [a.memory.sge(0..length + 1).unwrap()];
            let wr = SendWr::write(2, &sge, region.addr(), region.rkey()).signaled();
            a.qp.post_send(&[wr]).unwrap();
            ends(&mut story, &a, 2, WcStatus::RemAccessErr);
            (a, b) = (story.qp(a.host, |_| {}), story.qp(b.host, |_| {}));
            story.join(&a, &b, |_, _| {});
        }
    }
    assert_eq!(keys.len(), 8, "every registration has a key of its own");
    story.announce(1, Reject::RkeyBounds, 8);
    story.allow(1, Reject::QpHalted);
    story.allow(0, Reject::WrongQpState);
    story.no_other_events();
}

// ---- 20 is in `teardown.rs` and `server.rs`
