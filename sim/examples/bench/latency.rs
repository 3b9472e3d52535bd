//! Latencies between idle cards, of WRITEs of 64 bytes.
//!
//! ```text
//! post > doorbell ──▶ card ─[doorbell_to_wire | push_to_wire]─▶ wire ─▶ card ─[rx_to_mwr]─▶ host memory
//!                                                                          ─[rx_to_ack]─▶ wire
//! └──────────────────────────── pingpong_64_1way: half of there and back ────────────────────────────┘
//! ```
//! Doorbell: the clock in which the card takes its last beat. Frame: its first beat out; its last beat in. Memory write: the
//! clock in which the TLP's last beat leaves. The worst of some, at different phases of the clocks. The bound is the bar.
//! A program of the ping-pong sees its memory change at once and posts at once: its time is none of the card's. What is left
//! are 200 ns of PCIe each for doorbell and data, the wire's 500, the frame, and the cards.

use crate::{
    Job,
    figure::Figure,
    load::{Cards, Request, Setup, Work},
};
use contract::PathMtu;
use host::{Completion, SendWr};
use sim::{
    backend::lock,
    card::CORE_PERIOD,
    story::{MEMORY, MS, US},
    wire::Side::{self, A, B},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// WRITEs measured one by one.
const SAMPLES: usize = 32;
/// Round trips of the ping-pong.
const ROUNDS: usize = 256;
/// Width of a class of the histogram in ps.
pub const CLASS: u64 = 50_000;
/// Bytes.
const LENGTH: usize = 64;
/// PCIe round trip in clocks.
const RTT: u64 = 900_000 / CORE_PERIOD;

/// Everything measured here.
pub fn jobs() -> Vec<Job> {
    vec![
        Job::new(&["doorbell_to_wire_64", "rx_to_mwr_64", "rx_to_ack_64"], || {
            let worst = spans(false);
            let conditions = format!("64 bytes, idle cards, the worst of {SAMPLES}");
            let cycles = |id: &str, value: u64, bound: u64| Figure {
                id: id.into(),
                value: value as f64,
                unit: "cycles".into(),
                bound: bound as f64,
                context: conditions.clone(),
            };
            vec![
                cycles("doorbell_to_wire_64", worst.to_wire, 2 * RTT + 64),
                cycles("rx_to_mwr_64", worst.to_memory, 40),
                cycles("rx_to_ack_64", worst.to_ack, 40),
            ]
        }),
        Job::of("push_to_wire_64", |id| {
            let worst = spans(true);
            let context =
                format!("64 inline bytes, idle cards, the worst of {SAMPLES}; {} reads", worst.reads);
            Figure { id: id.into(), value: worst.to_wire as f64, unit: "cycles".into(), bound: 40.0, context }
        }),
        Job::new(&[PINGPONGS[0]], || pingpong(PINGPONGS[0], false)),
        Job::new(&[PINGPONGS[1]], || pingpong(PINGPONGS[1], true)),
    ]
}

/// Spans in clocks, and reads of host memory.
#[derive(Clone, Copy, Default)]
struct Spans {
    to_wire: u64,
    to_memory: u64,
    to_ack: u64,
    reads: usize,
}

/// The TLPs of a card that the log holds.
fn tlps(cards: &Cards, card: usize, name: &str) -> Vec<u64> {
    let room = lock(&cards.story.room);
    room.cards()[card].root().log().iter().filter(|tlp| tlp.name == name).map(|tlp| tlp.at.0).collect()
}

/// The worst of each.
fn spans(push: bool) -> Spans {
    let mut cards = Cards::new("latencies", &Setup { push, ..Setup::new(1, PathMtu::Mtu1024) });
    let frames: Arc<Mutex<Vec<(Side, u64)>>> = Arc::default();
    let seen = frames.clone();
    lock(&cards.story.room).watch(Some(Box::new(move |side, frame, _| {
        seen.lock().expect("no panic").push((side, frame.start));
    })));
    let mut worst = Spans::default();
    for i in 0..SAMPLES {
        // another phase of the clocks each time
        cards.story.wait(20 * US + 1733 * i as u64);
        frames.lock().expect("no panic").clear();
        for card in 0..2 {
            lock(&cards.story.room).host(card, |root, _| {
                root.set_log(true);
                root.take_log();
            });
        }
        let [near, far] = &cards.hosts;
        let at = i * LENGTH;
        let (sge, bytes) = ([near.memory.sge(at..at + LENGTH).expect("inside")], [i as u8; LENGTH]);
        let (to, key) = (far.memory.addr() + at as u64, far.memory.rkey());
        let wr = if push {
            SendWr::write(1, &[], to, key).inline(&bytes)
        } else {
            SendWr::write(1, &sge, to, key)
        };
        cards.qps[0][0].post_send(&[wr.signaled()]).expect("posted");
        let started = |side: Side| {
            let (mut room, mut found) = (lock(&cards.story.room), None);
            let limit = room.now() + MS;
            let told = |_: &mut _| {
                let frames = frames.lock().expect("no panic");
                found = frames.iter().find(|frame| frame.0 == side).map(|frame| frame.1);
                found.is_some()
            };
            room.run_until(limit, told).expect("the simulation runs");
            found.expect("a frame")
        };
        let sent = started(A);
        let rung = lock(&cards.story.room).cards()[0].request_taken();
        let ack = started(B);
        let arrived = lock(&cards.story.room).cards()[1].frame_taken();
        cards.story.completes(near, 1);
        let written = tlps(&cards, 1, "MWr")[0];
        let clocks = |from: u64, to: u64| (to - from).div_ceil(CORE_PERIOD);
        worst = Spans {
            to_wire: worst.to_wire.max(clocks(rung, sent)),
            to_memory: worst.to_memory.max(clocks(arrived, written)),
            to_ack: worst.to_ack.max(clocks(arrived, ack)),
            reads: worst.reads.max(tlps(&cards, 0, "MRd").len()),
        };
    }
    worst
}

/// Ids of the ping-pong: between idle cards, and beside a stream of long WRITEs.
pub const PINGPONGS: [&str; 2] = ["pingpong_64_1way", "pingpong_64_1way_busy"];

/// Id of a class of a histogram: half round trips from `ns` on.
pub fn class_id(id: &str, ns: u64) -> String {
    format!("{id}_at_{ns}")
}

/// Time passes beside the stream; gives the time.
fn tick(stream: &mut Work<'_>, busy: bool, span: u64) -> u64 {
    const PIECE: usize = MEMORY / 16;
    if busy {
        stream.post(usize::MAX, |_, i| Request {
            at: MEMORY / 2 + i % 8 * PIECE,
            length: PIECE,
            read: false,
        });
    }
    let mut room = lock(&stream.cards.story.room);
    let to = room.now() + span;
    room.run_to(to).expect("the simulation runs");
    drop(room);
    stream.poll();
    to
}

/// The median of the half round trips, and their histogram. `busy`: another QP sends WRITEs of 64 KiB meanwhile, one way.
fn pingpong(id: &str, busy: bool) -> Vec<Figure> {
    let mut cards = Cards::new(id, &Setup { push: true, ..Setup::new(2, PathMtu::Mtu1024) });
    let pauses: Vec<u64> = (0..ROUNDS).map(|_| 5 * US + cards.story.below(8 * CORE_PERIOD)).collect();
    let mut stream = Work::new(&cards, A, 4).on(1);
    let (mut halves, mut answers) = (Vec::new(), 0);
    for (pause, round) in pauses.into_iter().zip(1..) {
        let start = tick(&mut stream, busy, pause);
        for side in [0, 1] {
            let far = &cards.hosts[1 - side];
            let bytes = [(round % 255 + 1) as u8; LENGTH];
            let (to, key) = (far.memory.addr(), far.memory.rkey());
            let wr = SendWr::write(round as u64, &[], to, key).inline(&bytes).signaled();
            cards.qps[0][side].post_send(&[wr]).expect("posted");
            while far.memory.to_vec(LENGTH - 1..LENGTH).expect("inside")[0] != bytes[0] {
                assert!(tick(&mut stream, busy, CORE_PERIOD) < start + MS, "nothing comes");
            }
        }
        halves.push((cards.story.now() - start) / 2);
        // a request is pushed only while none is outstanding
        while stream.done_of(0) < round || answers < round {
            answers += cards.hosts[1].cq.poll(&mut [Completion::default()]).expect("the CQ");
            assert!(tick(&mut stream, busy, US) < start + MS, "no completion");
        }
    }
    halves.sort_unstable();
    let ns = |ps: u64| ps as f64 / 1000.0;
    let at = |part: usize| ns(halves[(ROUNDS - 1) * part / 100]);
    // doorbell and data cross PCIe in 200 ns each; the wire, the frame, the bars of both cards
    let bound = 400.0 + 500.0 + ns(162 * 80) + ns(80 * CORE_PERIOD);
    let beside = if busy { "beside WRITEs of 64 KiB from one side" } else { "idle cards" };
    let (least, most, nearly) = (at(0), at(100), at(99));
    let context = format!(
        "64 bytes, pushed, {beside}, no CPU time; the median of {ROUNDS} halves of round trips; least {least}, 99 % {nearly}, most {most}"
    );
    let mut figures = vec![Figure { id: id.into(), value: at(50), unit: "ns".into(), bound, context }];
    let mut classes: BTreeMap<u64, usize> = BTreeMap::new();
    for half in &halves {
        *classes.entry(half / CLASS * CLASS / 1000).or_default() += 1;
    }
    figures.extend(classes.into_iter().map(|(from, count)| Figure {
        id: class_id(id, from),
        value: count as f64,
        unit: "round trips".into(),
        bound: 0.0,
        context: format!("their halves took {from} to {} ns", from + CLASS / 1000),
    }));
    figures
}
