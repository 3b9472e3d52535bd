//! A root complex that answers the card's reads as badly as it can: UR, CA, CRS, poison, not at all, too late, with a wrong
//! byte count, an unknown tag, twice; once, a few times, always; in the middle of anything.
//!
//! Asserted each time: no byte is wrong in any memory that was not the target of what failed, a QP that is hit fails
//! with the status that fits, all others go on, everything completes in bounded time, and no tag is lost.
//!
//! Requirements: PCIE CMD

#[path = "crowd/mod.rs"]
mod crowd;

use contract::{Reject, Syndrome};
use crowd::Crowd;
use host::{Access, AsyncEvent, Error, RecvWr, SendWr, WcStatus};
use pcie_sim::{Event, InjectedFault as Fault, Injection, Piece, Select, Time};
use sim::{
    backend::lock,
    room::RoomConfig,
    story::{End, MS, Story, US, seed, two_cards},
};
use std::{collections::BTreeSet, ops::Range, time::Duration};

/// What the card counts of bad answers.
const NAMES: [Reject; 5] = [
    Reject::CompletionUr,
    Reject::CompletionCa,
    Reject::CompletionTimeout,
    Reject::CompletionPoisoned,
    Reject::CompletionUnexpected,
];
/// The completion timeout that the hosts set, and the time for which a tag rests after it.
const TIMEOUT: u64 = 66 * US;

fn counted(story: &mut Story, card: usize) -> [u64; 5] {
    NAMES.map(|name| story.reject_counter(card, name))
}

/// Whatever a bad answer and a QP that it killed may make the cards count.
fn allow(story: &mut Story) {
    story.allow_aftermath(&NAMES);
    story.allow_aftermath(&[
        Reject::GatherFailed,
        Reject::SqFetchFailed,
        Reject::WqeFetchFailed,
        Reject::CommandFetchFailed,
        Reject::BufferFull,
    ]);
}

/// Nothing is owed to the cards, nothing happens any more.
fn at_rest(story: &mut Story, what: &str) {
    assert!(story.comes_to_rest(10 * MS), "{what}: the room does not come to rest");
    for card in 0..2 {
        let owed = lock(&story.room).cards()[card].root().card_outstanding();
        assert_eq!(owed, 0, "{what}: reads of card {card} without an end");
    }
}

/// Many small reads at once, at each card, answered when all that can leave have left: asserts that every tag was used.
fn all_tags_work(story: &mut Story, crowd: &Crowd) {
    let tags = sim::story::config().read_tags as usize;
    let pairs = crowd.pairs(story, 4);
    for card in 0..2 {
        lock(&story.room).host(card, |root, _| root.set_log(true));
        story.root_spoils(card, Injection::new(Select::PerMillion(1_000_000), Fault::Late(Time::us(10))));
    }
    for _ in 0..12 {
        for pair in &pairs {
            for side in 0..2 {
                let (host, other) = (&crowd.hosts[side], &crowd.hosts[1 - side]);
                let sges: [_; 10] =
                    std::array::from_fn(|i| host.memory.sge(i * 4096..i * 4096 + 64).expect("inside"));
                let to = other.memory.addr() + crowd::LANDINGS as u64;
                pair.0[side].post_send(&[SendWr::write(0, &sges, to, other.memory.rkey())]).expect("post");
            }
        }
    }
    at_rest(story, "small reads");
    story.roots_are_good();
    let used = [0, 1].map(|card| {
        let log = lock(&story.room).host(card, |root, _| {
            let log = root.take_log();
            root.set_log(false);
            log
        });
        log.iter().filter(|tlp| tlp.name == "MRd").map(|tlp| tlp.tag).collect::<BTreeSet<_>>().len()
    });
    assert_eq!(used, [tags; 2], "tags still in use");
}

/// One way to answer badly.
struct Bad {
    fault: Fault,
    piece: Piece,
    /// What the card counts, if this fault is noticed at all.
    name: Option<Reject>,
    /// The read fails.
    fails: bool,
}

fn ways() -> Vec<Bad> {
    let bad = |fault, piece, name, fails| Bad { fault, piece, name, fails };
    let unexpected = Some(Reject::CompletionUnexpected);
    let timeout = Some(Reject::CompletionTimeout);
    vec![
        bad(Fault::Unsupported, Piece::First, Some(Reject::CompletionUr), true),
        bad(Fault::Unsupported, Piece::Last, Some(Reject::CompletionUr), true),
        bad(Fault::Abort, Piece::First, Some(Reject::CompletionCa), true),
        bad(Fault::ConfigRetry, Piece::First, unexpected, true),
        bad(Fault::Poison, Piece::First, Some(Reject::CompletionPoisoned), true),
        bad(Fault::Poison, Piece::Last, Some(Reject::CompletionPoisoned), true),
        bad(Fault::Lost, Piece::Every, timeout, true),
        bad(Fault::Lost, Piece::Last, timeout, true),
        // before the timeout, and while the tag rests
        bad(Fault::Late(Time::us(40)), Piece::Every, None, false),
        bad(Fault::Late(Time::us(100)), Piece::Every, timeout, true),
        bad(Fault::ByteCount(4), Piece::First, unexpected, true),
        bad(Fault::ByteCount(-4), Piece::Last, unexpected, true),
        bad(Fault::UnknownTag, Piece::First, unexpected, true),
        // the last completion again finds no read; one before the last is not what is owed
        bad(Fault::Duplicate, Piece::Last, unexpected, false),
    ]
}

#[test]
fn a_hostile_completer_costs_the_qp_that_it_hits_and_nobody_else() {
    let mut story = Story::unrecorded("a_hostile_completer", RoomConfig::example(2, seed()));
    story.hosts_are_impatient();
    let crowd = Crowd::start(&mut story);
    let mut worst = 0;
    let mut hits = 0;
    for Bad { fault, piece, name, fails } in ways() {
        for times in [1, 5, u64::MAX] {
            let what = format!("{fault:?} on {piece:?}, {times} times");
            let pairs = crowd.pairs(&mut story, 3);
            // whatever card 0 reads of the sources of pair 0: its WRITEs and SENDs, and the READs of the other side
            let victim = story.iova(0, &crowd.hosts[0].memory, Crowd::window(0));
            story.root_spoils(0, Injection::new(Select::Address(victim), fault).on(piece).times(times));
            let before = name.map(|name| story.reject_counter(0, name));
            let start = story.now();
            let mut round = crowd.begin(&mut story, &pairs, 8);
            crowd.finish(&mut story, &mut round);
            let span = round.last - start;
            story.roots_are_good();
            at_rest(&mut story, &what);
            crowd.judge(&round, &what);
            for pair in 1..3 {
                assert!(round.succeeded(pair), "{what}: pair {pair} fails, too");
            }
            let errors = [round.error(0, 0), round.error(0, 1)];
            if fails {
                assert!(errors.iter().any(Option::is_some), "{what}: nobody noticed");
            } else {
                assert_eq!(errors, [None; 2], "{what}");
            }
            // the side whose memory could not be read; the other, whose READ it was, or whose peer is gone
            let own = [WcStatus::LocProtErr, WcStatus::WrFlushErr, WcStatus::RetryExcErr, WcStatus::RemOpErr];
            let other = [WcStatus::RemOpErr, WcStatus::RetryExcErr, WcStatus::WrFlushErr];
            assert!(errors[0].is_none_or(|status| own.contains(&status)), "{what}: {errors:?}");
            assert!(errors[1].is_none_or(|status| other.contains(&status)), "{what}: {errors:?}");
            if let (Some(name), Some(before)) = (name, before) {
                let more = story.reject_counter(0, name) - before;
                assert!(more > 0, "{what}: not counted");
                hits += more;
            }
            println!("{what}: {} us", span / US);
            worst = worst.max(span);
        }
    }
    // eight retries of 0.5 to 2.1 ms by whoever waits for a QP that is gone
    assert!(worst < 20 * MS, "{} us", worst / US);
    all_tags_work(&mut story, &crowd);
    println!("{hits} bad answers; the slowest round took {} us; all tags usable", worst / US);
    allow(&mut story);
    story.no_other_events();
}

#[test]
fn bad_answers_to_any_read_of_both_cards_at_once_leave_cards_that_work() {
    let mut story = Story::unrecorded("bad_answers_to_any_read", RoomConfig::example(2, seed()));
    story.hosts_are_impatient();
    let crowd = Crowd::start(&mut story);
    let (mut worst, mut failed, mut good) = (0, 0, 0);
    for round in 0..8 {
        let pairs = crowd.pairs(&mut story, 5);
        // of 1000 reads so many are answered badly, WQEs and commands among them
        let of_1000 = [1, 5, 20, 60][round % 4];
        let ways = ways();
        for card in 0..2 {
            for Bad { fault, piece, .. } in &ways {
                let each = of_1000 * 1000 / ways.len() as u32;
                story.root_spoils(card, Injection::new(Select::PerMillion(each), *fault).on(*piece));
            }
        }
        let start = story.now();
        let mut work = crowd.begin(&mut story, &pairs, 8);
        crowd.finish(&mut story, &mut work);
        worst = worst.max(work.last - start);
        story.roots_are_good();
        drop(pairs);
        at_rest(&mut story, "after bad answers");
        crowd.judge(&work, &format!("{of_1000} of 1000 answered badly"));
        for pair in 0..5 {
            for side in 0..2 {
                let allowed = [
                    WcStatus::LocProtErr,
                    WcStatus::LocQpOpErr,
                    WcStatus::RemOpErr,
                    WcStatus::RetryExcErr,
                    WcStatus::WrFlushErr,
                ];
                let error = work.error(pair, side);
                assert!(error.is_none_or(|status| allowed.contains(&status)), "{error:?}");
                failed += u64::from(error.is_some());
                good += u64::from(error.is_none());
            }
        }
        // and right behind it everything works
        let pairs = crowd.pairs(&mut story, 2);
        let mut work = crowd.begin(&mut story, &pairs, 4);
        crowd.finish(&mut story, &mut work);
        assert!(work.succeeded(0) && work.succeeded(1));
        crowd.judge(&work, "good answers again");
    }
    assert!(failed > 10 && good > 10, "{failed} ends failed, {good} did not");
    assert!(worst < 40 * MS, "{} us", worst / US);
    all_tags_work(&mut story, &crowd);
    let counts = [counted(&mut story, 0), counted(&mut story, 1)];
    println!("{failed} ends failed, {good} did not; slowest round {} us; counted {counts:?}", worst / US);
    // a late answer may be made from memory that its QP, gone meanwhile, has given back; nothing is written there
    for card in 0..2 {
        let events = story.takes_events(card);
        let harmless = |e: &Event| !matches!(e, Event::WriteFault { .. } | Event::PoisonedWrite { .. });
        assert!(events.iter().all(harmless), "{events:?}");
    }
    allow(&mut story);
    story.no_other_events();
}

#[test]
fn an_answer_that_comes_when_its_tag_is_free_again_changes_nothing() {
    let mut story = two_cards("an_answer_that_comes_when_its_tag_is_free_again_changes_nothing");
    story.hosts_are_impatient();
    let (a, b) = story.connected();
    let source = story.iova(0, &a.memory, 0..64);
    let late = Time(5 * TIMEOUT);
    story.root_spoils(0, Injection::new(Select::Address(source), Fault::Late(late)));
    a.write(1, 0, 64, &b.memory, 4096);
    assert_eq!(story.completion(&a).status, WcStatus::LocProtErr);
    // the tag has rested: the card may use it; nobody does
    story.wait(2 * TIMEOUT);
    assert_eq!(counted(&mut story, 0), [0, 0, 1, 0, 0]);
    at_rest(&mut story, "the late answer");
    assert_eq!(counted(&mut story, 0), [0, 0, 1, 0, 1]);
    story.memory_matches(&b.memory, 4096, &[0; 64]);
    story.memory_matches(&a.memory, 0, &[0; 4096]);
    allow(&mut story);
    story.no_other_events();
}

/// The two ways in which an answer fails in the middle: its time, as far as the card can know it, and its name.
fn in_the_middle() -> [(&'static str, Fault, Reject, Range<u64>); 2] {
    [
        ("timeout", Fault::Lost, Reject::CompletionTimeout, 60 * US..90 * US),
        ("poison", Fault::Poison, Reject::CompletionPoisoned, 0..30 * US),
    ]
}

/// Another pair of QPs on the same cards.
fn bystanders(a: &End, b: &End) -> [host::Qp; 2] {
    let qps = [a, b].map(|end| {
        let init = host::QpInit { max_send_sge: 4, ..host::QpInit::rc(&end.cq, &end.cq) };
        end.pd.create_qp(&init).expect("create a QP")
    });
    for (i, other) in [b, a].into_iter().enumerate() {
        let attr = sim::story::usual(other.gid(), qps[1 - i].number(), 7, 7);
        qps[i].connect_with(&attr).expect("connect");
    }
    qps
}

/// The bystander of `a` moves bytes as if nothing had happened.
fn goes_on(story: &mut Story, qp: &host::Qp, a: &End, b: &End) {
    let bytes = story.bytes(3000);
    a.memory.write(500_000, &bytes).expect("inside");
    let sge = [a.memory.sge(500_000..503_000).expect("inside")];
    let wr = SendWr::write(77, &sge, b.memory.addr() + 500_000, b.memory.rkey()).signaled();
    qp.post_send(&[wr]).expect("post");
    story.completes(a, 77);
    story.memory_matches(&b.memory, 500_000, &bytes);
}

#[test]
fn a_read_of_payload_that_fails_in_the_middle_of_a_gather_ends_that_write_alone() {
    for (what, fault, name, time) in in_the_middle() {
        let mut story = two_cards(&format!("a_{what}_in_the_middle_of_a_gather"));
        story.hosts_are_impatient();
        let (a, b) = story.connected();
        let others = bystanders(&a, &b);
        let bytes = story.bytes(5000);
        a.memory.write(0, &bytes).unwrap();
        // in the third packet
        let spoiled = story.iova(0, &a.memory, 2500..2501);
        story.root_spoils(0, Injection::new(Select::Address(spoiled), fault).times(1));
        let start = story.now();
        a.write(1, 0, 5000, &b.memory, 0);
        a.write(2, 0, 5000, &b.memory, 100_000);
        let failed = story.completion(&a);
        assert_eq!((failed.wr_id, failed.status), (1, WcStatus::LocProtErr), "{what}");
        let span = story.now() - start;
        println!("{what} in the middle of a gather: {} ns to the completion", span / 1000);
        assert!(time.contains(&span), "{what}: {span} ps");
        let flushed = story.completion(&a);
        assert_eq!((flushed.wr_id, flushed.status), (2, WcStatus::WrFlushErr));
        // two packets were complete before it; those behind it are a gap to the peer
        story.memory_matches(&b.memory, 0, &bytes[..2048]);
        story.memory_matches(&b.memory, 2048, &[0; 100_000]);
        goes_on(&mut story, &others[0], &a, &b);
        story.announce(0, name, 1);
        story.announce(0, Reject::GatherFailed, 1);
        for reject in [Reject::ResponseStale, Reject::WrongQpState, Reject::QpHalted] {
            story.allow(0, reject);
        }
        for reject in [Reject::PsnOutOfSequence, Reject::PsnOutOfSequenceRepeat] {
            story.allow(1, reject);
        }
        story.no_other_events();
    }
}

#[test]
fn a_read_of_payload_that_fails_in_the_middle_of_a_read_response_is_a_nak_behind_what_was_good() {
    for (what, fault, name, time) in in_the_middle() {
        let mut story = two_cards(&format!("a_{what}_in_the_middle_of_a_read_response"));
        story.hosts_are_impatient();
        let (a, b) = story.connected();
        let others = bystanders(&a, &b);
        let bytes = story.bytes(5000);
        b.memory.write(0, &bytes).unwrap();
        let spoiled = story.iova(1, &b.memory, 2500..2501);
        story.root_spoils(1, Injection::new(Select::Address(spoiled), fault).times(1));
        let start = story.now();
        a.read(1, 0, 5000, &b.memory, 0);
        a.read(2, 100_000, 5000, &b.memory, 0);
        let nak = story.sees(sim::story::B, "NAK", |packet| {
            packet.aeth.is_some_and(|aeth| aeth.syndrome == Syndrome::NAK_REMOTE_OPERATION)
        });
        assert_eq!(nak.packet.bth.psn, contract::wire::psn_add(a.psn, 2));
        let failed = story.completion(&a);
        assert_eq!((failed.wr_id, failed.status), (1, WcStatus::RemOpErr), "{what}");
        let span = story.now() - start;
        println!("{what} in the middle of a READ response: {} ns to the completion", span / 1000);
        assert!(time.contains(&span), "{what}: {span} ps");
        let flushed = story.completion(&a);
        assert_eq!((flushed.wr_id, flushed.status), (2, WcStatus::WrFlushErr));
        let notice = b.context.async_event(Some(Duration::from_millis(10))).unwrap().expect("an event");
        assert_eq!((notice.event, notice.object), (AsyncEvent::QpFatal, b.qp.number()));
        story.memory_matches(&a.memory, 0, &bytes[..2048]);
        story.memory_matches(&a.memory, 2048, &[0; 200_000]);
        goes_on(&mut story, &others[0], &a, &b);
        story.announce(1, name, 1);
        story.announce(1, Reject::GatherFailed, 1);
        for card in 0..2 {
            story.allow(card, Reject::WrongQpState);
            story.allow(card, Reject::QpHalted);
        }
        story.no_other_events();
    }
}

/// The ring of a QP made last: of sends, or of receives.
fn ring(story: &Story, card: usize, receive: bool) -> Range<u64> {
    let room = lock(&story.room);
    let mappings = room.mappings(card);
    let ring = mappings[mappings.len() - 2 + usize::from(receive)];
    ring.iova..ring.iova + ring.length
}

#[test]
fn a_send_wqe_that_cannot_be_read_fails_in_its_turn() {
    for (what, fault, name, time) in in_the_middle() {
        let mut story = two_cards(&format!("a_{what}_in_the_middle_of_a_wqe_fetch"));
        story.hosts_are_impatient();
        let (a, b) = story.connected();
        let ring = ring(&story, 0, false).start;
        let others = bystanders(&a, &b);
        let bytes = story.bytes(3000);
        a.memory.write(0, &bytes).unwrap();
        // the second of three: a WQE of four SGEs has 128 bytes
        let spoiled = ring + 128 + 40..ring + 128 + 41;
        story.root_spoils(0, Injection::new(Select::Address(spoiled), fault).times(1));
        let start = story.now();
        for i in 0..3 {
            a.write(i, 0, 3000, &b.memory, 10_000 * i as usize);
        }
        story.completes(&a, 0);
        let failed = story.completion(&a);
        assert_eq!((failed.wr_id, failed.status), (1, WcStatus::LocQpOpErr), "{what}");
        let span = story.now() - start;
        println!("{what} in the middle of a WQE fetch: {} ns to the completion", span / 1000);
        assert!(time.contains(&span), "{what}: {span} ps");
        let flushed = story.completion(&a);
        assert_eq!((flushed.wr_id, flushed.status), (2, WcStatus::WrFlushErr));
        story.memory_matches(&b.memory, 0, &bytes);
        story.memory_matches(&b.memory, 3000, &[0; 100_000]);
        goes_on(&mut story, &others[0], &a, &b);
        story.announce(0, name, 1);
        story.announce(0, Reject::SqFetchFailed, 1);
        story.no_other_events();
    }
}

#[test]
fn a_receive_wqe_that_cannot_be_read_is_an_operational_error_at_both_ends() {
    for (what, fault, name, time) in in_the_middle() {
        let mut story = two_cards(&format!("a_{what}_in_the_middle_of_a_receive_wqe_fetch"));
        story.hosts_are_impatient();
        let (a, b) = story.connected();
        let ring = ring(&story, 1, true).start;
        let others = bystanders(&a, &b);
        let bytes = story.bytes(3000);
        a.memory.write(0, &bytes).unwrap();
        // the second of three, of 64 bytes each
        let spoiled = ring + 64 + 8..ring + 64 + 9;
        story.root_spoils(1, Injection::new(Select::Address(spoiled), fault).times(1));
        let start = story.now();
        let sges = [0, 10_000, 20_000].map(|at| [b.memory.sge(at..at + 3000).unwrap()]);
        let list: Vec<RecvWr<'_>> =
            sges.iter().enumerate().map(|(i, sge)| RecvWr::new(i as u64, sge)).collect();
        b.qp.post_recv(&list).unwrap();
        for i in 0..3 {
            a.send(10 + i, 0, 3000);
        }
        story.completes(&a, 10);
        story.completes(&b, 0);
        let failed = story.completion(&a);
        assert_eq!((failed.wr_id, failed.status), (11, WcStatus::RemOpErr), "{what}");
        let span = story.now() - start;
        println!("{what} in the middle of a receive WQE fetch: {} ns to the completion", span / 1000);
        assert!(time.contains(&span), "{what}: {span} ps");
        let failed = story.completion(&b);
        assert_eq!((failed.wr_id, failed.status), (1, WcStatus::LocQpOpErr), "{what}");
        for (end, wr_id) in [(&a, 12), (&b, 2)] {
            let flushed = story.completion(end);
            assert_eq!((flushed.wr_id, flushed.status), (wr_id, WcStatus::WrFlushErr));
        }
        story.memory_matches(&b.memory, 0, &bytes);
        story.memory_matches(&b.memory, 3000, &[0; 100_000]);
        goes_on(&mut story, &others[0], &a, &b);
        story.announce(1, name, 1);
        for card in 0..2 {
            for reject in
                [Reject::WqeFetchFailed, Reject::QpHalted, Reject::WrongQpState, Reject::MissQueueFull]
            {
                story.allow(card, reject);
            }
        }
        story.no_other_events();
    }
}

#[test]
fn a_command_that_cannot_be_read_is_asked_again_and_refused_by_name_when_it_never_can() {
    let mut story = two_cards("a_command_that_cannot_be_read_is_asked_again");
    story.hosts_are_impatient();
    let host = story.start(0);
    // the command ring is the first memory that a driver maps
    let ring = {
        let room = lock(&story.room);
        let first = room.mappings(0)[0];
        first.iova..first.iova + first.length
    };
    let register = |host: &sim::story::Host| host.pd.allocate(4096, Access::LOCAL_WRITE);
    let mut announced = 0;
    for (fault, name) in [
        (Fault::Abort, Reject::CompletionCa),
        (Fault::Lost, Reject::CompletionTimeout),
        (Fault::Poison, Reject::CompletionPoisoned),
    ] {
        story.root_spoils(0, Injection::new(Select::Address(ring.clone()), fault).times(1));
        register(&host).expect("the second attempt");
        story.allow(0, name);
        announced += 1;
        assert_eq!(story.reject_counter(0, Reject::CommandFetchFailed), announced);
    }
    story.root_spoils(0, Injection::new(Select::Address(ring.clone()), Fault::Unsupported));
    let error = register(&host).expect_err("the card never reads it");
    let Error::CommandRefused { status, .. } = &error else { panic!("{error}") };
    assert_eq!(*status, contract::CommandStatus::Internal);
    story.roots_are_good();
    register(&host).expect("and then it does");
    story.announce(0, Reject::CommandFetchFailed, announced + 4);
    story.announce(0, Reject::CompletionUr, 4);
    story.no_other_events();
}
