//! The host's accesses to BARs: sizes, enables, tags, errors.

use crate::desk::*;
use pcie_sim::{
    Event, RawTlp, ReadError, Status, Time, Tlp,
    judge::Side,
    tlp::{Attributes, Completion, MemRead, MemWrite},
};
use proptest::prelude::*;

fn offset_byte(address: u64) -> u8 {
    (address ^ address >> 8) as u8
}

#[test]
fn a_write_arrives_with_its_bar_its_address_and_its_enables() {
    let mut d = Desk::new(config(), 1);
    d.rc.mmio_write(d.now, 2, 0x1003, &[7, 8]);
    d.run_until_quiet();
    let request = &d.requests[0].1;
    assert_eq!(request.bar, 2);
    let Ok(Tlp::MemWrite(w)) = Tlp::parse(&request.tlp) else { panic!("no write") };
    assert_eq!((w.address, w.first_be, w.last_be), (0x40_1000_1000, 0b1000, 0b0001));
    assert_eq!(w.payload, [0, 0, 0, 7, 8, 0, 0, 0]);
    d.no_violation();
}

#[test]
fn a_host_write_takes_200_ns_and_its_time_on_the_wire() {
    let mut d = Desk::new(with_link(|l| l.down_mbps = 64_000), 1);
    d.rc.mmio_write(d.now, 2, 0, &[0; 8]);
    let at = Time::ns(200) + Time(32 * 125);
    assert!(d.rc.poll_cq(Time(at.0 - 1)).is_none());
    assert_eq!(d.rc.next_event(), Some(at));
    assert!(d.rc.poll_cq(at).is_some());
}

#[test]
fn enables_with_holes_and_poison_are_sent_as_they_are() {
    let mut d = Desk::new(config(), 1);
    let attr = Attributes { poisoned: true, ..Default::default() };
    let payload = vec![1, 2, 3, 4];
    let write = MemWrite { attr, requester: 0, tag: 0, address: 8, first_be: 0b1010, last_be: 0, payload };
    d.rc.mmio_send(d.now, 0, write);
    d.run_until_quiet();
    let raw = &d.requests[0].1.tlp;
    assert!(raw.poisoned());
    assert_eq!(raw.header[1] & 0xff, 0b1010);
    let token = d.rc.mmio_read_enables(d.now, 0, MemRead { first_be: 0b0110, ..MemRead::bytes(0, 0, 16, 4) });
    d.run_until(d.now + Time::us(1));
    d.answer_all(|a| a as u8);
    d.run_until(d.now + Time::us(1));
    assert_eq!(d.rc.take_read(token), Some(Ok(vec![17, 18])));
    d.no_violation();
}

#[test]
fn a_read_waits_for_the_card_and_is_taken_once() {
    let mut d = Desk::new(config(), 1);
    let token = d.rc.mmio_read(d.now, 0, 0x100, 8);
    d.run_until(Time::us(3));
    assert_eq!(d.rc.take_read(token), None);
    assert!(!d.rc.quiet(), "a host read is under way");
    d.answer_all(offset_byte);
    d.run_until_quiet();
    assert_eq!(d.rc.take_read(token), Some(Ok((0x100..0x108).map(offset_byte).collect())));
    assert_eq!(d.rc.take_read(token), None);
    assert!(d.rc.quiet());
    d.no_violation();
}

#[test]
fn a_card_that_never_answers_is_given_up_after_50_ms() {
    let mut d = Desk::new(config(), 1);
    let token = d.rc.mmio_read(d.now, 0, 0, 4);
    d.run_until(Time(Time::ms(50).0 - 1));
    assert_eq!(d.rc.take_read(token), None);
    d.run_until(Time::ms(50));
    assert_eq!(d.rc.take_read(token), Some(Err(ReadError::Timeout)));
    assert!(matches!(d.events[..], [Event::ReadTimedOut { .. }]));
    assert!(d.rc.quiet());
    d.answer_all(offset_byte);
    assert_eq!(d.rc.take_violations().len(), 1, "an answer after that is unexpected");
}

#[test]
fn statuses_and_poison_of_the_card_reach_the_host() {
    for (status, poisoned, error) in [
        (Status::UnsupportedRequest, false, ReadError::UnsupportedRequest),
        (Status::CompleterAbort, false, ReadError::CompleterAbort),
        (Status::Successful, true, ReadError::Poisoned),
    ] {
        let mut d = Desk::new(config(), 1);
        let token = d.rc.mmio_read(d.now, 0, 0, 4);
        d.run_until(Time::us(1));
        let Ok(Tlp::MemRead(r)) = Tlp::parse(&d.requests[0].1.tlp) else { panic!("no read") };
        let mut c = answer(&r, |_| 0);
        c.attr.poisoned = poisoned;
        c.status = status;
        if status != Status::Successful {
            c.payload.clear();
        }
        d.send(Tlp::Completion(c));
        d.run_until_quiet();
        assert_eq!(d.rc.take_read(token), Some(Err(error)));
        d.no_violation();
    }
}

#[test]
fn accesses_outside_a_bar_are_refused_on_both_sides_of_its_end() {
    let mut d = Desk::new(config(), 1);
    d.rc.mmio_write(d.now, 0, 0xfffc, &[0; 4]);
    d.rc.take_events();
    d.run_until_quiet();
    assert_eq!(d.requests.len(), 1);
    for (bar, offset, len) in [(0, 0xfffd, 4), (0, u64::MAX, 2), (1, 0, 4), (6, 0, 4)] {
        d.rc.mmio_write(d.now, bar, offset, &vec![0; len]);
        let token = d.rc.mmio_read(d.now, bar, offset, len);
        assert_eq!(d.rc.take_read(token), Some(Err(ReadError::UnsupportedRequest)));
        assert_eq!(d.rc.take_events().len(), 2);
    }
    assert!(d.rc.quiet());
}

#[test]
fn without_memory_enable_nothing_reaches_the_card() {
    let mut d = Desk::new(config(), 1);
    d.rc.config_write(d.now, 4, &[0, 0]);
    d.rc.mmio_write(d.now, 0, 0, &[0; 4]);
    assert!(matches!(d.rc.take_events()[..], [Event::MmioRefused { bar: 0, offset: 0, .. }]));
    assert!(d.rc.quiet());
}

#[test]
fn more_reads_than_tags_wait_and_all_are_answered() {
    let mut d = Desk::new(config(), 1);
    let tokens: Vec<_> = (0..100).map(|i| d.rc.mmio_read(d.now, 0, i * 8, 8)).collect();
    d.run_until(Time::us(1));
    assert_eq!(d.requests.len(), 32, "five bits of tag");
    for _ in 0..20 {
        d.answer_all(offset_byte);
        d.run_until(d.now + Time::us(1));
    }
    for (i, token) in (0..).zip(tokens) {
        assert_eq!(d.rc.take_read(token), Some(Ok((i * 8..i * 8 + 8).map(offset_byte).collect())));
    }
    d.no_violation();
}

#[test]
fn a_zero_length_read_of_a_bar_has_no_byte() {
    let mut d = Desk::new(config(), 1);
    let token = d.rc.mmio_read(d.now, 0, 0x44, 0);
    d.run_until(Time::us(1));
    d.answer_all(|_| 0xff);
    d.run_until_quiet();
    assert_eq!(d.rc.take_read(token), Some(Ok(vec![])));
    d.no_violation();
}

#[test]
fn a_malformed_first_completion_fails_the_read_and_frees_its_tag() {
    let mut d = Desk::new(config(), 1);
    let token = d.rc.mmio_read(d.now, 0, 0, 256);
    d.run_until(Time::us(1));
    let Ok(Tlp::MemRead(r)) = Tlp::parse(&d.requests[0].1.tlp) else { panic!("no read") };
    let mut c = answer(&r, |_| 0);
    c.payload.truncate(128);
    c.byte_count = 255;
    d.send(Tlp::Completion(c));
    d.requests.clear();
    d.run_until_quiet();
    assert_eq!(d.rc.take_read(token), Some(Err(ReadError::Malformed)));
    assert_eq!(d.rc.take_violations().len(), 1);
    let token = d.rc.mmio_read(d.now, 0, 0, 4);
    d.run_until(d.now + Time::us(1));
    d.answer_all(|_| 3);
    d.run_until_quiet();
    assert_eq!(d.rc.take_read(token), Some(Ok(vec![3; 4])));
    d.no_violation();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn writes_then_reads_of_any_size_round_trip_through_a_card_that_is_memory(
        seed in any::<u64>(), mps in prop::sample::select(vec![128u16, 256, 512]), cut in any::<bool>(),
        accesses in proptest::collection::vec((0u64..0x3000, 0usize..1500, any::<u8>()), 1..12),
    ) {
        let mut c = config();
        c.enumeration.max_payload = mps;
        let mut d = Desk::new(c, seed);
        let mut card = vec![0u8; 0x4000];
        let mut wanted = vec![0u8; 0x4000];
        let base = 0x40_1000_0000u64;
        let mut tokens = vec![];
        for (at, len, fill) in accesses {
            let bytes: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i as u8)).collect();
            d.rc.mmio_write(d.now, 2, at, &bytes);
            wanted[at as usize..at as usize + len].copy_from_slice(&bytes);
            tokens.push((d.rc.mmio_read(d.now, 2, at, len), bytes));
            // The card answers until nothing is left.
            for _ in 0..40 {
                d.run_until(d.now + Time::us(1));
                for (_, request) in std::mem::take(&mut d.requests) {
                    match Tlp::parse(&request.tlp) {
                        Ok(Tlp::MemWrite(w)) => for (a, run) in w.runs() {
                            let a = (a - base) as usize;
                            card[a..a + run.len()].copy_from_slice(run);
                        },
                        Ok(Tlp::MemRead(r)) => {
                            let whole = answer(&r, |a| card[(a - base) as usize]);
                            let first = 128 - (whole.lower_address & 0x7f) as usize;
                            let skip = (whole.lower_address & 3) as usize;
                            if cut && first < whole.byte_count as usize {
                                let n = first + skip;
                                d.send(Tlp::Completion(Completion { payload: whole.payload[..n].to_vec(), ..whole.clone() }));
                                d.send(Tlp::Completion(Completion {
                                    payload: whole.payload[n..].to_vec(),
                                    byte_count: whole.byte_count - first as u16,
                                    lower_address: 0,
                                    ..whole
                                }));
                            } else {
                                d.send(Tlp::Completion(whole));
                            }
                        }
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
            }
        }
        for (token, bytes) in tokens {
            prop_assert_eq!(d.rc.take_read(token), Some(Ok(bytes)));
        }
        prop_assert_eq!(card, wanted);
        d.no_violation();
    }
}

#[test]
fn any_tlp_and_any_completion_reach_the_card_as_they_are_and_only_the_host_is_judged() {
    let mut d = Desk::new(config(), 1);
    let message = RawTlp { header: [0x3000_0000, 0x0000_2300, 0, 0], payload: Vec::new() };
    d.rc.host_sends(d.now, 0, message.clone());
    let completion = Completion {
        attr: Attributes::default(),
        completer: 0,
        status: Status::Successful,
        byte_count: 4,
        requester: 0x0100,
        tag: 7,
        lower_address: 0,
        payload: vec![1, 2, 3, 4],
    };
    d.rc.host_completes(d.now, completion.clone());
    let at = d.now + Time::us(1);
    assert_eq!(d.rc.poll_cq_posted(at).map(|request| request.tlp), Some(message));
    assert_eq!(d.rc.poll_rc(at), Some(Tlp::Completion(completion).emit()));
    let sides: Vec<_> = d.rc.take_violations().into_iter().map(|violation| violation.side).collect();
    assert_eq!(sides, [Side::Host], "the message has no meaning here, the completion is pardoned");
}
