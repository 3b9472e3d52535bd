//! Faults on request and faults of memory; the completion buffer.

use crate::desk::*;
use pcie_sim::{
    CompletionOrder, CompletionSplit, Event, InjectedFault, Injection, Permissions, Piece, Select,
    SparseMemory, Status, Time, Verdict, memory::Fault,
};

/// Reads 512 bytes with tag 7 under one fault; completions of 64 bytes.
fn spoiled(fault: InjectedFault, piece: Option<Piece>) -> Desk {
    let mut d = Desk::new(with_link(|l| l.split = CompletionSplit::OneRcb), 1);
    let rule = Injection::new(Select::Nth(2), fault);
    d.rc.inject(match piece {
        Some(piece) => rule.on(piece),
        None => rule,
    });
    d.read(6, BASE, 512);
    d.read(7, BASE + 4096, 512);
    d.read(8, BASE + 8192, 512);
    d.run_until_quiet();
    d.no_violation();
    assert!(d.result(6).is_ok() && d.result(8).is_ok(), "only the second read is spoiled");
    d
}

fn count(d: &Desk, tag: u16) -> usize {
    d.completions.iter().filter(|c| c.1.tag == tag).count()
}

#[test]
fn error_statuses_end_the_request() {
    for (fault, status) in [
        (InjectedFault::Unsupported, Status::UnsupportedRequest),
        (InjectedFault::Abort, Status::CompleterAbort),
        (InjectedFault::ConfigRetry, Status::ConfigRetry),
    ] {
        let d = spoiled(fault, None);
        assert_eq!((d.result(7), count(&d, 7)), (&Err(status), 1));
        let d = spoiled(fault, Some(Piece::Last));
        assert_eq!((d.result(7), count(&d, 7)), (&Err(status), 8), "seven good ones come first");
        assert_eq!(d.rc.card_outstanding(), 0);
    }
}

#[test]
fn poison_marks_the_data_and_the_status_register() {
    let mut d = spoiled(InjectedFault::Poison, None);
    assert!(d.result(7).is_err());
    assert_eq!(d.completions.iter().filter(|c| c.1.attr.poisoned).count(), 1);
    assert_eq!(count(&d, 7), 8, "the other completions still come");
    let mut status = [0; 2];
    d.rc.config_read(d.now, 6, &mut status);
    assert_eq!(status[1] & 0x80, 0x80, "detected parity error");
}

#[test]
fn a_lost_answer_never_comes_and_its_tag_may_be_used_again() {
    let mut d = spoiled(InjectedFault::Lost, None);
    assert!(!d.answered(7));
    assert_eq!(count(&d, 7), 0);
    assert_eq!(d.rc.card_outstanding(), 0);
    d.read(7, BASE, 4);
    d.run_until_quiet();
    assert!(d.answered(7));
    d.no_violation();
}

#[test]
fn one_lost_piece_leaves_a_hole() {
    let d = spoiled(InjectedFault::Lost, Some(Piece::Last));
    assert_eq!((d.answered(7), count(&d, 7), d.holes), (false, 7, 0));
}

#[test]
fn a_late_answer_comes_late_and_its_tag_is_in_use_until_then() {
    let mut d = Desk::new(config(), 1);
    d.rc.inject(Injection::new(Select::Nth(1), InjectedFault::Late(Time::us(100))));
    d.read(7, BASE, 64);
    d.run_until(Time::us(50));
    assert!(!d.answered(7));
    d.read(7, BASE, 64);
    assert_eq!(d.rc.take_violations()[0].verdict, Verdict::TagInUse { tag: 7 });
    d.run_until_quiet();
    assert!(d.at(7) > Time::us(100) && d.at(7) < Time::us(102));
    d.read(7, BASE, 64);
    d.run_until_quiet();
    d.no_violation();
}

#[test]
fn a_late_answer_delays_no_other() {
    let mut d = Desk::new(config(), 1);
    d.rc.inject(Injection::new(Select::Nth(1), InjectedFault::Late(Time::us(100))));
    d.read(1, BASE, 64);
    d.read(2, BASE, 64);
    d.run_until_quiet();
    assert!(d.at(2) < Time::us(2));
    d.no_violation();
}

#[test]
fn a_wrong_byte_count_and_an_unknown_tag_are_sent_as_told() {
    let d = spoiled(InjectedFault::ByteCount(-64), None);
    assert_eq!(d.completions.iter().find(|c| c.1.tag == 7).unwrap().1.byte_count, 512 - 64);
    let d = spoiled(InjectedFault::UnknownTag, None);
    let strange: Vec<_> = d.completions.iter().filter(|c| ![6, 7, 8].contains(&c.1.tag)).collect();
    assert_eq!((strange.len(), count(&d, 7)), (1, 7));
    assert!(d.holes > 0 && !d.answered(7));
}

#[test]
fn a_duplicated_completion_comes_twice_in_a_row() {
    let d = spoiled(InjectedFault::Duplicate, None);
    let of_7: Vec<_> = d.completions.iter().map(|c| &c.1).filter(|c| c.tag == 7).collect();
    assert_eq!((count(&d, 7), of_7[0]), (9, of_7[1]));
    assert_eq!(d.holes, 1);
}

#[test]
fn rules_select_by_address_by_probability_and_a_number_of_times() {
    let mut d = Desk::new(config(), 1);
    let range = BASE + 100..BASE + 101;
    d.rc.inject(Injection::new(Select::Address(range), InjectedFault::Abort).times(1));
    d.read(1, BASE + 36, 64);
    d.read(2, BASE + 101, 64);
    d.read(3, BASE + 37, 64);
    d.read(4, BASE + 37, 64);
    d.run_until_quiet();
    let ok: Vec<bool> = (1..5).map(|t| d.result(t).is_ok()).collect();
    assert_eq!(ok, [true, true, false, true]);

    d.rc.inject(Injection::new(Select::PerMillion(250_000), InjectedFault::Unsupported));
    d.done.clear();
    for _ in 0..10 {
        for tag in 0..40 {
            d.read(tag, BASE, 4);
        }
        d.run_until_quiet();
    }
    let bad = d.done.iter().filter(|r| r.2.is_err()).count();
    assert!((60..140).contains(&bad), "{bad} of 400 at a quarter, seed 1");
    d.rc.clear_injections();
    d.read(0, BASE, 4);
    d.run_until_quiet();
    assert!(d.result(0).is_ok());
    d.no_violation();
}

#[test]
fn a_read_of_unmapped_memory_is_unsupported_and_a_write_there_vanishes() {
    let mut d = Desk::new(config(), 1);
    let hole = BASE + MAPPED;
    d.read(1, hole, 4);
    d.write(hole, &[1; 8]);
    d.write(BASE, &[9]);
    d.run_until_quiet();
    assert_eq!(d.result(1), &Err(Status::UnsupportedRequest));
    assert!(matches!(d.events[0], Event::WriteFault { address, bytes: 8, fault: Fault::Unmapped { .. }, .. }
        if address == hole));
    assert!(matches!(d.events[1], Event::ReadFault { address, .. } if address == hole));
    assert_eq!(d.events.len(), 2);
    assert_eq!(d.bytes(BASE, 1), [9]);
    d.no_violation();
}

#[test]
fn a_read_that_runs_out_of_its_mapping_gets_data_then_an_error() {
    let mut d = Desk::new(with_link(|l| l.split = CompletionSplit::OneRcb), 1);
    d.rc.memory_mut().map(0x9000, 128, Permissions::READ, SparseMemory::new(), 0).unwrap();
    d.read(1, 0x9000, 256);
    d.write(0x9000, &[1]);
    d.run_until_quiet();
    assert_eq!(d.completions.len(), 3);
    assert_eq!(d.result(1), &Err(Status::UnsupportedRequest));
    assert!(matches!(d.events[0], Event::WriteFault { fault: Fault::Forbidden { .. }, .. }));
    d.no_violation();
}

#[test]
fn a_poisoned_write_changes_nothing_and_is_reported() {
    let mut d = Desk::new(config(), 1);
    let mut write = pcie_sim::tlp::MemWrite::bytes(ID, BASE, &[1; 4]);
    write.attr.poisoned = true;
    d.send(pcie_sim::Tlp::MemWrite(write));
    d.run_until_quiet();
    assert!(matches!(d.events[..], [Event::PoisonedWrite { address: BASE, .. }]));
    assert_eq!(d.bytes(BASE, 4), pattern(4));
}

#[test]
fn reads_that_fit_the_completion_buffer_are_legal_and_one_more_is_not() {
    // 256 bytes at a boundary are at worst 4 headers and 16 data units.
    for (headers, data, legal) in [(8, 32, true), (7, 32, false), (8, 31, false), (0, 0, true)] {
        let mut d = Desk::new(
            with_link(|l| {
                l.split = CompletionSplit::OneRcb;
                (l.completion_headers, l.completion_data) = (headers, data);
            }),
            1,
        );
        d.read(1, BASE, 256);
        d.read(2, BASE + 256, 256);
        let verdicts = d.rc.take_violations();
        assert_eq!(verdicts.is_empty(), legal, "{headers} {data}: {verdicts:?}");
        if !legal {
            assert!(matches!(verdicts[0].verdict, Verdict::CompletionRoom { headers: 8, data: 32, .. }));
        }
    }
}

#[test]
fn room_comes_back_as_completions_are_polled() {
    let mut d = Desk::new(
        with_link(|l| {
            l.split = CompletionSplit::OneRcb;
            (l.completion_headers, l.completion_data) = (4, 16);
        }),
        1,
    );
    for _ in 0..5 {
        d.read(1, BASE, 256);
        d.run_until_quiet();
    }
    d.no_violation();
}

#[test]
fn the_buffer_overflows_when_the_card_overbooks_and_does_not_poll() {
    let mut d = Desk::new(
        with_link(|l| {
            l.split = CompletionSplit::OneRcb;
            l.order = CompletionOrder::InOrder;
            (l.completion_headers, l.completion_data) = (4, 16);
        }),
        1,
    );
    d.read(1, BASE, 256);
    d.read(2, BASE + 256, 64);
    d.now = Time::us(10);
    d.rc.advance(d.now);
    d.take_all();
    let verdicts: Vec<Verdict> = d.rc.take_violations().into_iter().map(|v| v.verdict).collect();
    assert!(matches!(
        verdicts[..],
        [Verdict::CompletionRoom { headers: 5, data: 20, .. }, Verdict::CompletionOverflow { tag: 2 }]
    ));
    assert!(d.answered(1) && !d.answered(2));
    assert!(matches!(d.events[..], [Event::CompletionOverflow { tag: 2, .. }]));
    // The lost one took no room, and the buffer works on.
    d.read(3, BASE, 256);
    d.run_until_quiet();
    assert!(d.answered(3));
    d.no_violation();
}

#[test]
fn headers_and_data_overflow_each_alone_and_only_beyond_the_last_place() {
    // Five completions of 64 bytes: 5 headers, 20 data units. Which of the tags lose theirs?
    for (headers, data, lost) in [
        (5, 20, vec![]),
        (4, 0, vec![5]),
        (3, 0, vec![4, 5]),
        (0, 19, vec![5]),
        (0, 16, vec![5]),
        (0, 15, vec![4, 5]),
    ] {
        let mut d = Desk::new(with_link(|l| (l.completion_headers, l.completion_data) = (headers, data)), 1);
        for tag in 1..=5 {
            d.read(tag, BASE + 64 * tag as u64, 64);
        }
        d.now = Time::us(10);
        d.take_all();
        let missing: Vec<u16> = (1..=5).filter(|&tag| !d.answered(tag)).collect();
        assert_eq!(missing, lost, "{headers} headers, {data} data units");
    }
}
