//! What the stages of two cards tell: the ring in BAR0, the pins of the simulation, the lives made of them, and the page
//! `docs/life-of-a-write.md`.
//!
//! Requirements: CARD

use contract::{Reject, Stage, StageCounter, TraceEvent, register as reg};
use host::trace::{Timed, life};
use sim::backend::lock;
use sim::room::RoomConfig;
use sim::story::{self, End, MS, Story, US, config, seed};
use sim::wire::Faults;
use std::sync::{Arc, Mutex};

/// Every stage.
const STAGES: u32 = (1 << Stage::ALL.len()) - 1;

fn two_cards(name: &str) -> Story {
    story::two_traced_cards(name, RoomConfig::example(2, seed()))
}

type Marks = Arc<Mutex<Vec<Timed>>>;

/// Everything that the pins tell from now on.
fn marks(story: &Story) -> Marks {
    let marks = Marks::default();
    let into = marks.clone();
    lock(&story.room).mark(Some(Box::new(move |card, ticks, entry| {
        into.lock().expect("no panic").push(Timed { card, ticks, entry: *entry });
    })));
    marks
}

fn take(marks: &Marks) -> Vec<Timed> {
    std::mem::take(&mut *marks.lock().expect("no panic"))
}

/// Two QPs that do not push.
fn fetching(story: &mut Story) -> (End, End) {
    let hosts = [story.start(0), story.start(1)];
    let [a, b] = hosts.map(|host| story.qp(host, |init| init.push = false));
    story.join(&a, &b, |_, _| {});
    (a, b)
}

#[test]
fn the_ring_tells_what_the_pins_tell() {
    let mut story = two_cards("the_ring_tells_what_the_pins_tell");
    let (a, b) = story.connected();
    let mut rings = [&a, &b].map(|end| end.context.device().stage_trace(STAGES).expect("a trace"));
    story.comes_to_rest(MS);
    let mut nothing = vec![];
    for ring in &mut rings {
        ring.read(0, &mut nothing).expect("read");
    }
    let pins = marks(&story);
    for i in 0..12 {
        a.write(i, 0, 64 + 100 * i as usize, &b.memory, 0);
        story.completes(&a, i);
    }
    story.comes_to_rest(MS);
    let mut told = vec![];
    for (card, ring) in rings.iter_mut().enumerate() {
        ring.read(card, &mut told).expect("read");
        assert_eq!(ring.missing().expect("read"), 0, "card {card}");
    }
    let mut shown = take(&pins);
    let order = |timed: &Timed| (timed.card, timed.ticks, timed.entry.pack());
    told.sort_by_key(order);
    shown.sort_by_key(order);
    assert!(shown.len() > 12 * 22, "{} marks", shown.len());
    assert_eq!(told, shown);
    drop(rings);
    a.write(99, 0, 64, &b.memory, 0);
    story.completes(&a, 99);
    let producer = story.register(0, reg::TRACE_PRODUCER);
    a.write(100, 0, 64, &b.memory, 0);
    story.completes(&a, 100);
    assert_eq!(story.register(0, reg::TRACE_PRODUCER), producer, "it was turned off");
    story.no_other_events();
}

#[test]
fn a_ring_that_is_not_read_keeps_the_newest_and_tells_how_many_are_missing() {
    let mut story = two_cards("a_ring_that_is_not_read_keeps_the_newest_and_tells_how_many_are_missing");
    let (a, b) = story.connected();
    let mut ring = a.context.device().stage_trace(1 << Stage::Segment.code()).expect("a trace");
    // one entry a packet: more than the ring holds
    a.write(1, 0, 700 * 1024, &b.memory, 0);
    story.completes(&a, 1);
    let mut told = vec![];
    ring.read(0, &mut told).expect("read");
    assert_eq!((told.len(), ring.missing().expect("read")), (512, 700 - 512));
    let psns: Vec<u32> = told.iter().map(|timed| timed.entry.psn.wrapping_sub(a.psn) & 0xff_ffff).collect();
    assert_eq!(psns, (188..700).collect::<Vec<_>>());
    assert!(told.iter().all(|timed| timed.event() == Some(TraceEvent::Segment)), "of that stage alone");
}

#[test]
fn a_traced_run_has_the_cycles_of_an_untraced_one() {
    // the same accesses to the same registers in each run; of the second the ring is on, the third is watched
    let run = |name: &str, ring: u32, watched: bool| {
        let mut story = if name.ends_with("_without") { story::two_cards(name) } else { two_cards(name) };
        let (a, b) = story.connected_as(|_, attr| attr.timeout = 8);
        for card in 0..2 {
            lock(&story.room).host(card, |root, now| {
                root.mmio_write(now, 0, reg::TRACE_CONTROL.into(), &ring.to_le_bytes());
            });
        }
        let pins = watched.then(|| marks(&story));
        story.wire_harms(Faults { loss: 0.03, ..Faults::default() });
        for i in 0..6 {
            a.write(i, 0, 20_000, &b.memory, 0);
            b.read(i, 50_000, 10_000, &a.memory, 0);
        }
        for i in 0..6 {
            story.completes(&a, i);
            story.completes(&b, i);
        }
        let base = [a.memory.addr(), b.memory.addr()];
        let packets: Vec<_> = story
            .packets()
            .into_iter()
            .map(|mut seen| {
                if let Some(reth) = &mut seen.packet.reth {
                    reth.va -= base.iter().copied().filter(|base| *base <= reth.va).max().unwrap_or(0);
                }
                (seen.at, seen.from, seen.packet)
            })
            .collect();
        let clocks: Vec<u64> = lock(&story.room).cards().iter().map(sim::card::Card::clocks).collect();
        (packets, clocks, pins.map_or(0, |pins| take(&pins).len()))
    };
    let plain = run("a_traced_run_has_the_cycles_of_an_untraced_one", 0, false);
    let without = run("a_traced_run_has_the_cycles_of_an_untraced_one_without", 0, false);
    let ring = run("a_traced_run_has_the_cycles_of_an_untraced_one_ring", 1, false);
    let pins = run("a_traced_run_has_the_cycles_of_an_untraced_one_pins", 0, true);
    assert!(plain.0.len() > 180 && pins.2 > 2000, "{} packets, {} marks", plain.0.len(), pins.2);
    assert!(plain.0 == pins.0 && plain.1 == pins.1, "a look at the pins changes nothing");
    assert!(plain.0 == without.0 && plain.1 == without.1, "nor has a card without a trace others");
    assert!(plain.0 == ring.0, "every packet leaves at the same time with the ring on");
}

#[test]
fn every_completion_has_its_life() {
    for seed in [1, 2] {
        let room = RoomConfig::example(2, seed);
        let mut story = story::two_traced_cards("every_completion_has_its_life", room);
        let (a, b) = story.connected_as(|_, attr| attr.timeout = 8);
        let pins = marks(&story);
        story.wire_harms(Faults { loss: 0.04, ..Faults::default() });
        let mut posted = 0;
        for round in 0..12 {
            b.receive(100 + round, 200_000, 5000);
            a.write(1, 0, 3000, &b.memory, 0);
            a.send(2, 0, 2500);
            a.read(3, 100_000, 4000, &b.memory, 0);
            a.fetch_add(4, 150_000, &b.memory, 160_000, 1);
            for wr_id in 1..=4 {
                story.completes(&a, wr_id);
            }
            story.completes(&b, 100 + round);
            posted += 4;
        }
        story.comes_to_rest(10 * MS);
        let told = take(&pins);
        let lives = life::lives(&told);
        assert_eq!((lives.len(), seed), (posted, seed));
        for life in &lives {
            let at = format!("seed {seed}: WQE {} {:?}", life.index, life.opcode);
            let path = life.path();
            assert_eq!(path[0].event(), Some(TraceEvent::Doorbell), "{at}");
            assert_eq!(path[path.len() - 1].event(), Some(TraceEvent::Complete), "{at}");
            let ways = [&life.packets, &life.answers].into_iter().flatten();
            for way in ways.chain([&life.head, &life.tail]) {
                assert!(way.windows(2).all(|pair| pair[0].ticks <= pair[1].ticks), "{at}: {way:?}");
            }
            let ends = |way: &&Vec<Timed>| way.last().and_then(Timed::event) == Some(TraceEvent::Placed);
            let psns = |ways: &mut dyn Iterator<Item = &Vec<Timed>>| {
                let mut psns: Vec<u32> = ways.map(|way| way[0].entry.psn).collect();
                psns.sort_unstable();
                psns.dedup();
                psns
            };
            let (sent, placed) =
                (psns(&mut life.packets.iter()), psns(&mut life.packets.iter().filter(ends)));
            assert_eq!(sent, placed, "{at}: every packet reached its place, at some sending");
            let data = life.answers.iter().filter(ends).count();
            let answers = match life.index % 4 {
                2 => 4,
                3 => 1,
                _ => 0,
            };
            assert_eq!(data, answers, "{at}: data that came back");
        }
        let again = |life: &life::Life| {
            let segments = life.packets.iter().map(|way| way[0].entry.detail >> 15);
            segments.sum::<u16>()
        };
        assert!(lives.iter().map(again).sum::<u16>() > 0, "seed {seed}: something was sent again");
        for card in 0..2 {
            let refused = told.iter().filter(|timed| timed.card == card);
            let refused = refused.filter(|timed| timed.event() == Some(TraceEvent::Reject)).count();
            let counted: u64 = Reject::ALL.iter().map(|reject| story.reject_counter(card, *reject)).sum();
            assert_eq!(refused as u64, counted, "seed {seed}, card {card}: each refusal has its mark");
            assert_eq!(story.stage_counter(card, StageCounter::TraceLost), 0, "no ring, no loss");
        }
    }
}

/// The page, and its lines of the form `N. **Event** card C, +CLOCKS: ...`: event, card, clocks since the first.
const PAGE: &str = include_str!("../../docs/life-of-a-write.md");

fn steps_of_the_page() -> Vec<(String, usize, u64)> {
    let step = |line: &str| {
        let (number, rest) = line.split_once(". **")?;
        let number: usize = number.parse().ok()?;
        let (event, rest) = rest.split_once("** card ")?;
        let (card, rest) = rest.split_once(", +")?;
        let clocks = rest.split_once(':')?.0;
        Some((number, (event.to_owned(), card.parse().ok()?, clocks.parse().ok()?)))
    };
    let steps: Vec<_> = PAGE.lines().filter_map(step).collect();
    for (n, (number, _)) in (1..).zip(&steps) {
        assert_eq!(n, *number, "the page numbers its steps without a gap");
    }
    steps.into_iter().map(|(_, step)| step).collect()
}

#[test]
fn the_page_tells_the_life_of_a_write() {
    if config().name != "small" {
        return;
    }
    let mut story = two_cards("the_page_tells_the_life_of_a_write");
    let (a, b) = fetching(&mut story);
    story.wait(100 * US);
    let pins = marks(&story);
    a.write(1, 0, 64, &b.memory, 0);
    story.completes(&a, 1);
    let path = life::lives(&take(&pins)).first().expect("a life").path();
    let name = |timed: &Timed| timed.event().expect("an event").name().to_owned();
    let told: Vec<_> =
        path.iter().map(|timed| (name(timed), timed.card, timed.ticks - path[0].ticks)).collect();
    let lines: Vec<String> = (1..)
        .zip(&told)
        .map(|(n, (event, card, clocks))| format!("{n}. **{event}** card {card}, +{clocks}:"))
        .collect();
    assert!(told == steps_of_the_page(), "docs/life-of-a-write.md must tell:\n{}", lines.join("\n"));
    story.no_other_events();
}
