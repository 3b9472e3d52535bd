//! Function level reset and a link that goes down.

use crate::desk::*;
use pcie_sim::{Event, Kind, ReadError, Time, Verdict, config::Enumeration};

fn reset(d: &mut Desk) {
    d.rc.config_write(d.now, 0x68, &[0, 0x80]);
}

#[test]
fn a_reset_clears_the_function_and_ends_host_reads() {
    let mut d = Desk::new(config(), 1);
    let token = d.rc.mmio_read(d.now, 0, 0, 4);
    d.rc.mmio_write(d.now, 0, 0, &[0; 4]);
    reset(&mut d);
    assert!(d.rc.sideband().flr && !d.rc.sideband().bus_master);
    assert_eq!(d.rc.take_read(token), Some(Err(ReadError::UnsupportedRequest)));
    d.run_until(Time::us(10));
    assert!(d.requests.is_empty(), "what was under way is discarded");
    d.rc.mmio_write(d.now, 0, 0, &[0; 4]);
    d.rc.card_reset_done(d.now);
    d.take_all();
    let took = Time::us(10);
    assert_eq!(d.events[0], Event::ResetStarted { at: Time::ZERO });
    assert!(matches!(d.events[1], Event::TouchedInReset { .. }));
    assert!(matches!(d.events[2], Event::MmioRefused { .. }));
    assert_eq!(d.events[3], Event::ResetDone { at: took, took });
    assert!(!d.rc.sideband().flr);
    d.rc.enumerate(d.now, &Enumeration { bus_master: true, ..Default::default() });
    d.rc.mmio_write(d.now, 0, 0, &[0; 4]);
    d.run_until_quiet();
    assert_eq!(d.requests.len(), 1);
    d.no_violation();
}

#[test]
fn a_reset_may_last_100_ms_and_not_longer() {
    for (at, late) in [(Time(Time::ms(100).0 - 1), false), (Time::ms(100), true)] {
        let mut d = Desk::new(config(), 1);
        reset(&mut d);
        assert_eq!(d.rc.next_event(), Some(Time::ms(100)));
        d.now = at;
        d.rc.card_reset_done(at);
        d.take_all();
        assert_eq!(d.events.iter().any(|e| matches!(e, Event::ResetOverdue { .. })), late);
        assert_eq!(d.rc.take_violations().iter().any(|v| v.verdict == Verdict::ResetOverdue), late);
        assert!(d.rc.quiet());
    }
}

#[test]
fn no_request_between_reset_and_bus_master() {
    let mut d = Desk::new(config(), 1);
    d.now = Time::us(5);
    reset(&mut d);
    d.now = d.now + Time(Time::ns(500).0 - 1);
    d.write(BASE, &[1]);
    d.no_violation();
    d.now = d.now + Time(1);
    d.write(BASE, &[1]);
    assert_eq!(d.rc.take_violations()[0].verdict, Verdict::DuringReset);
    d.rc.card_reset_done(d.now);
    d.now = d.now + Time::us(1);
    d.write(BASE, &[1]);
    assert_eq!(d.rc.take_violations()[0].verdict, Verdict::BusMasterOff);
    d.rc.enumerate(d.now, &Enumeration { bus_master: true, ..Default::default() });
    d.write(BASE, &[1]);
    d.no_violation();
}

#[test]
fn answers_from_before_a_reset_come_during_it_and_never_after() {
    for done in [false, true] {
        let mut d = Desk::new(config(), 1);
        d.read(1, BASE, 64);
        d.read(2, BASE, 64);
        d.now = Time::ns(800);
        reset(&mut d);
        if done {
            d.rc.card_reset_done(d.now);
        }
        d.run_until(Time::us(3));
        assert_eq!(d.completions.len(), if done { 0 } else { 2 });
        assert_eq!(d.rc.card_outstanding(), 0);
        d.no_violation();
    }
}

#[test]
fn old_answers_that_wait_in_the_buffer_leave_it_with_the_reset() {
    let mut d = Desk::new(with_link(|l| (l.completion_headers, l.completion_data) = (2, 16)), 1);
    d.read(1, BASE, 64);
    d.read(2, BASE, 64);
    d.now = Time::us(5);
    d.rc.advance(d.now);
    reset(&mut d);
    d.rc.card_reset_done(d.now);
    d.rc.enumerate(d.now, &Enumeration { bus_master: true, ..Default::default() });
    assert!(d.rc.poll_rc(d.now).is_none());
    d.read(1, BASE, 64);
    d.read(2, BASE, 64);
    d.now = Time::us(10);
    d.take_all();
    assert!(d.answered(1) && d.answered(2), "the buffer has all its room again");
    d.no_violation();
}

#[test]
fn a_link_that_goes_down_loses_what_is_on_the_wire_and_comes_back_clean() {
    let mut d = Desk::new(config(), 1);
    let host = d.rc.mmio_read(d.now, 0, 0, 4);
    d.write(BASE, &[0xee]);
    d.read(1, BASE, 64);
    d.now = Time::ns(500);
    d.rc.advance(d.now);
    d.write(BASE + 1, &[0xdd]);
    d.rc.set_link(d.now, false);
    assert!(!d.rc.sideband().link_up);
    assert_eq!(d.rc.take_read(host), Some(Err(ReadError::LinkDown)));
    assert!(d.rc.can_accept(d.now, Kind::Posted, 256), "a dead link swallows everything");
    d.write(BASE + 2, &[0xcc]);
    let token = d.rc.mmio_read(d.now, 0, 0, 4);
    assert_eq!(d.rc.take_read(token), Some(Err(ReadError::LinkDown)));
    let mut id = [0; 4];
    d.rc.config_read(d.now, 0, &mut id);
    assert_eq!(id, [0xff; 4]);
    d.run_until(Time::us(5));
    assert_eq!(d.bytes(BASE, 3), [0xee, pattern(3)[1], pattern(3)[2]], "only what had arrived");
    assert!(!d.answered(1));
    assert_eq!(d.rc.card_outstanding(), 0);
    d.rc.set_link(d.now, true);
    d.read(1, BASE, 4);
    d.run_until_quiet();
    assert!(d.answered(1));
    let links: Vec<bool> = d
        .events
        .iter()
        .filter_map(|e| if let Event::Link { up, .. } = e { Some(*up) } else { None })
        .collect();
    assert_eq!(links, [false, true]);
    d.no_violation();
}
