//! Pushed work requests between two cards: how soon they leave, and that whatever goes wrong costs a read and no more.
//!
//! Requirements: QUE

use contract::{Reject, StageCounter, doorbell};
use host::{Operation, SendWr};
use sim::{
    backend::lock,
    card::CORE_PERIOD,
    story::{A, B, End, Story, two_cards},
    wire::Side,
};

/// Two QPs that take 220 inline bytes, and push or do not.
fn connected(story: &mut Story, push: bool) -> (End, End) {
    let hosts = [story.start(0), story.start(1)];
    let [a, b] = hosts.map(|host| {
        story.qp(host, |init| {
            init.max_inline = 220;
            init.push = push;
        })
    });
    story.join(&a, &b, |_, _| {});
    (a, b)
}

fn write<'a>(id: u64, b: &End, to: usize, bytes: &'a [u8]) -> SendWr<'a> {
    SendWr::write(id, &[], b.memory.addr() + to as u64, b.memory.rkey()).inline(bytes).signaled()
}

fn post(end: &End, wr: SendWr<'_>) {
    end.qp.post_send(&[wr]).unwrap_or_else(|error| panic!("post: {error}"));
}

/// Reads that a card has sent so far.
fn reads(story: &mut Story) -> u64 {
    story.stage_counter(0, StageCounter::ReadTlps)
}

/// Core clocks from the last byte of the doorbell to the first character of the packet on the line.
fn clocks(story: &mut Story, what: &str) -> u64 {
    let seen = story.sees(A, what, |packet| packet.aeth.is_none());
    let taken = lock(&story.room).cards()[0].request_taken();
    (seen.at - taken).div_ceil(CORE_PERIOD)
}

#[test]
fn a_pushed_write_of_64_inline_bytes_is_on_the_line_within_80_clocks_of_its_doorbell_and_reads_nothing() {
    let mut figures = [0; 2];
    for push in [true, false] {
        let mut story = two_cards(&format!("a_write_of_64_inline_bytes_pushed_{push}"));
        let (a, b) = connected(&mut story, push);
        let bytes = story.bytes(64);
        for round in 0..3 {
            // everything is at rest
            story.wait(20_000_000);
            let before = reads(&mut story);
            post(&a, write(round, &b, 64 * round as usize, &bytes));
            let needed = clocks(&mut story, "WRITE");
            figures[usize::from(push)] = figures[usize::from(push)].max(needed);
            story.completes(&a, round);
            assert_eq!(reads(&mut story) - before, u64::from(!push), "round {round}, pushed {push}");
            story.memory_matches(&b.memory, 64 * round as usize, &bytes);
        }
        story.no_other_events();
    }
    println!("clocks from doorbell to line: {} pushed, {} read from the ring", figures[1], figures[0]);
    assert!(figures[1] <= 80, "{} clocks", figures[1]);
    assert!(figures[0] > figures[1] + 100, "the read that is saved");
}

#[test]
fn every_operation_that_fits_is_pushed_and_does_what_it_does_from_the_ring() {
    let mut story = two_cards("every_operation_that_fits_is_pushed");
    let (a, b) = connected(&mut story, true);
    let bytes = story.bytes(4000);
    a.memory.write(0, &bytes).unwrap();
    let before = story.stage_counter(0, StageCounter::WqeFetches);
    for length in [0, 1, 33, 220] {
        for operation in [Operation::Send, Operation::SendWithImm(9)] {
            b.receive(5, 1000, 300);
            post(&a, SendWr::new(1, operation, &[]).inline(&bytes[..length]).signaled());
            story.completes(&a, 1);
            assert_eq!(story.completes(&b, 5).byte_len as usize, length);
            story.memory_matches(&b.memory, 1000, &bytes[..length]);
        }
    }
    // gathered, of many packets; READ; atomics
    let sges = [0..1500, 1500..1501, 1501..1501, 1501..4000].map(|r| a.memory.sge(r).unwrap());
    post(&a, SendWr::write(2, &sges, b.memory.addr() + 5000, b.memory.rkey()).signaled());
    story.completes(&a, 2);
    story.memory_matches(&b.memory, 5000, &bytes);
    a.read(3, 10_000, 3000, &b.memory, 5000);
    story.completes(&a, 3);
    story.memory_matches(&a.memory, 10_000, &bytes[..3000]);
    b.memory.write(20_000, &5u64.to_le_bytes()).unwrap();
    a.fetch_add(4, 20_000, &b.memory, 20_000, 7);
    story.completes(&a, 4);
    a.compare_swap(5, 20_008, &b.memory, 20_000, 12, 99);
    story.completes(&a, 5);
    story.memory_matches(&a.memory, 20_000, &[5u64.to_le_bytes(), 12u64.to_le_bytes()].concat());
    story.memory_matches(&b.memory, 20_000, &99u64.to_le_bytes());
    assert_eq!(story.stage_counter(0, StageCounter::WqeFetches), before, "no work request was read");
    story.no_other_events();
}

#[test]
fn a_push_and_plain_doorbells_behind_it_keep_their_order_and_a_lost_packet_comes_again() {
    let mut story = two_cards("a_push_and_plain_doorbells_behind_it_keep_their_order");
    let (a, b) = connected(&mut story, true);
    let psn = a.psn;
    story.wire_drops(A, move |packet| packet.aeth.is_none() && packet.bth.psn == psn);
    // all to the same place, without time in between: the first alone is pushed
    let all: Vec<Vec<u8>> = (0..10).map(|_| story.bytes(220)).collect();
    for (id, bytes) in all.iter().enumerate() {
        post(&a, write(id as u64, &b, 0, bytes));
    }
    for id in 0..10 {
        story.completes(&a, id);
    }
    story.memory_matches(&b.memory, 0, &all[9]);
    story.allow(1, Reject::PsnOutOfSequence);
    story.allow(1, Reject::PsnOutOfSequenceRepeat);
    story.allow(1, Reject::Duplicate);
    story.allow(0, Reject::ResponseStale);
    story.no_other_events();
}

#[test]
fn stores_of_somebody_else_to_the_page_cost_a_read_and_the_next_push_is_good_again() {
    let mut story = two_cards("stores_of_somebody_else_to_the_page_cost_a_read");
    let (a, b) = connected(&mut story, true);
    let bytes = story.bytes(100);
    let page = 4096 + u64::from(doorbell::PUSH_OFFSET);
    // what a torn, a doubled or a mixed push leaves behind
    for (round, (at, stray)) in [(0, 1), (40, 4), (131, 1), (7, 64), (200, 8)].into_iter().enumerate() {
        let (id, to) = (2 * round as u64, 512 * round);
        let before = reads(&mut story);
        let junk = vec![0xee; stray];
        lock(&story.room).host(0, |root, now| root.mmio_write(now, 2, page + at, &junk));
        post(&a, write(id, &b, to, &bytes));
        story.completes(&a, id);
        // it has 132 bytes
        assert_eq!(reads(&mut story) - before, u64::from(at < 132), "{stray} stray bytes at {at}");
        let before = reads(&mut story);
        post(&a, write(id + 1, &b, to + 200, &bytes));
        story.completes(&a, id + 1);
        assert_eq!(reads(&mut story), before);
        story.memory_matches(&b.memory, to, &bytes);
        story.memory_matches(&b.memory, to + 200, &bytes);
    }
    story.no_other_events();
}

#[test]
fn qps_of_one_page_that_push_one_after_the_other_each_send_their_own() {
    let mut story = two_cards("qps_of_one_page_that_push_one_after_the_other_each_send_their_own");
    let (a, b) = connected(&mut story, true);
    // three more QPs of the same two programs
    let mut more = vec![];
    for _ in 0..3 {
        let ends = [&a, &b].map(|end| {
            let init = host::QpInit { max_inline: 220, ..host::QpInit::rc(&end.host.cq, &end.host.cq) };
            end.host.pd.create_qp(&init).expect("a QP")
        });
        let psns = [story.below(1 << 24) as u32, story.below(1 << 24) as u32];
        for (side, end) in [(A, &a), (B, &b)] {
            let (own, other) = (usize::from(side == Side::B), usize::from(side == Side::A));
            let peer = [&a, &b][other].gid();
            let attr = sim::story::usual(peer, ends[other].number(), psns[own], psns[other]);
            ends[own].connect_with(&attr).unwrap_or_else(|error| panic!("connect {}: {error}", end.card));
        }
        more.push(ends);
    }
    let qps: Vec<&host::Qp> = [&a.qp].into_iter().chain(more.iter().map(|ends| &ends[0])).collect();
    let mut sent = vec![];
    let before = reads(&mut story);
    for round in 0..12 {
        for (n, qp) in qps.iter().enumerate() {
            let bytes = story.bytes(20 + 50 * n);
            let to = 4096 * n + 256 * round;
            qp.post_send(&[write((round * 4 + n) as u64, &b, to, &bytes)]).expect("posts");
            sent.push((to, bytes));
        }
        for _ in 0..4 {
            assert_eq!(story.completion(&a).status, host::WcStatus::Success);
        }
    }
    let read = reads(&mut story) - before;
    println!("{read} of {} pushed work requests were read after all", sent.len());
    assert!(read < 48, "some were used as pushed");
    for (to, bytes) in sent {
        story.memory_matches(&b.memory, to, &bytes);
    }
    story.no_other_events();
}
