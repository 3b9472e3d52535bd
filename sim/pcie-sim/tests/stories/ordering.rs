//! The ordering table, cell by cell where a cell is "no" or "must", and credits.

use crate::desk::*;
use pcie_sim::{CompletionOrder, Credits, Event, Kind, Time, tlp::Tlp};

const INTERRUPT: u64 = 0xfee0_0000;

fn enable_msix(d: &mut Desk) {
    d.rc.config_write(d.now, 0xa2, &[0, 0x80]);
}

#[test]
fn a_read_sees_every_write_before_it() {
    for seed in 0..50 {
        let mut d = Desk::new(
            with_link(|l| {
                l.write_jitter = Time::us(5);
                l.order = CompletionOrder::Shuffled(Time::us(1));
            }),
            seed,
        );
        for i in 0..8u8 {
            d.write(BASE + 256, &[i; 256]);
        }
        d.read(1, BASE + 256, 256);
        d.run_until_quiet();
        assert_eq!(d.result(1), &Ok(vec![7; 256]), "seed {seed}");
        d.no_violation();
    }
}

#[test]
fn strong_writes_become_visible_in_order_and_the_interrupt_last() {
    for seed in 0..50 {
        let mut d = Desk::new(with_link(|l| l.write_jitter = Time::us(5)), seed);
        enable_msix(&mut d);
        d.memory.put(0, &[0; 256]);
        d.write(BASE, &[1; 64]);
        d.write(BASE + 64, &[2; 64]);
        d.write(INTERRUPT, &5u32.to_le_bytes());
        let mut seen = 0;
        while let Some(at) = d.rc.next_event() {
            d.now = at;
            d.take_all();
            let (first, second) = (d.bytes(BASE, 1)[0], d.bytes(BASE + 64, 1)[0]);
            assert!(first == 1 || second == 0, "seed {seed}: the second write was visible first");
            if !d.events.is_empty() {
                assert_eq!((first, second), (1, 2), "seed {seed}: the interrupt overtook the data");
                seen += 1;
            }
        }
        assert!(matches!(d.events[..], [Event::Msix { address: INTERRUPT, data: 5, .. }]));
        assert!(seen > 0);
        d.no_violation();
    }
}

#[test]
fn a_relaxed_write_may_overtake_and_a_strong_one_behind_it_may_not() {
    let mut overtook = 0;
    for seed in 0..50 {
        let mut d = Desk::new(with_link(|l| l.write_jitter = Time::us(5)), seed);
        d.memory.put(0, &[0; 256]);
        d.write(BASE, &[1]);
        d.write_relaxed(BASE + 64, &[2]);
        d.write(BASE + 128, &[3]);
        while let Some(at) = d.rc.next_event() {
            d.now = at;
            d.take_all();
            let seen = [0, 64, 128].map(|o| d.bytes(BASE + o, 1)[0]);
            overtook += (seen[0] == 0 && seen[1] == 2) as u32;
            assert!(seen[2] == 0 || seen == [1, 2, 3], "seed {seed}: {seen:?}");
        }
        d.no_violation();
    }
    assert!(overtook > 5, "{overtook} of 50 seeds overtake");
}

#[test]
fn a_completion_of_the_card_pushes_its_earlier_writes() {
    for seed in 0..30 {
        let mut d = Desk::new(with_link(|l| l.write_jitter = Time::us(5)), seed);
        d.memory.put(0, &[0; 8]);
        let token = d.rc.mmio_read(d.now, 0, 0, 4);
        d.run_until(Time::us(1));
        d.write(BASE, &[0xab]);
        d.answer_all(|_| 0x11);
        let got = loop {
            if let Some(got) = d.rc.take_read(token) {
                break got;
            }
            d.now = d.rc.next_event().unwrap();
            d.take_all();
        };
        assert_eq!(got, Ok(vec![0x11; 4]));
        assert_eq!(d.bytes(BASE, 1), [0xab], "seed {seed}");
        d.no_violation();
    }
}

#[test]
fn a_completion_to_the_card_waits_for_the_host_write_before_it() {
    let mut d = Desk::new(config(), 1);
    d.rc.mmio_write(d.now, 2, 0, &[1; 4]);
    d.read(1, BASE, 4);
    let late = Time::us(10);
    assert!(d.rc.poll_rc(late).is_none(), "the host's write is not polled yet");
    assert!(d.rc.poll_cq(late).is_some());
    assert!(d.rc.poll_rc(late).is_some());
    d.no_violation();
}

#[test]
fn a_relaxed_completion_does_not_wait() {
    let mut d = Desk::new(config(), 1);
    d.rc.mmio_write(d.now, 2, 0, &[1; 4]);
    let mut read = pcie_sim::tlp::MemRead::bytes(ID, 1, BASE, 4);
    read.attr.relaxed = true;
    d.send(Tlp::MemRead(read));
    assert!(d.rc.poll_rc(Time::us(10)).is_some());
    d.no_violation();
}

#[test]
fn a_completion_does_not_wait_for_a_later_write_nor_for_a_host_read() {
    let mut d = Desk::new(config(), 1);
    let _token = d.rc.mmio_read(d.now, 0, 0, 4);
    d.read(1, BASE, 4);
    d.rc.advance(Time::us(5));
    d.rc.mmio_write(Time::us(5), 2, 0, &[1; 4]);
    assert!(d.rc.poll_rc(Time::us(10)).is_some());
    d.no_violation();
}

#[test]
fn host_accesses_reach_the_card_in_order_and_a_write_can_pass_a_read() {
    let order = |posted_only: bool| {
        let mut d = Desk::new(config(), 1);
        d.rc.mmio_write(d.now, 0, 0, &[1; 4]);
        d.rc.mmio_read(d.now, 0, 0, 4);
        d.rc.mmio_write(d.now, 0, 4, &[2; 4]);
        let late = Time::us(1);
        let mut seen = vec![];
        if posted_only {
            while let Some(r) = d.rc.poll_cq_posted(late) {
                seen.push(r.tlp.header[0] >> 30);
            }
        }
        while let Some(r) = d.rc.poll_cq(late) {
            seen.push(r.tlp.header[0] >> 30);
        }
        d.no_violation();
        seen
    };
    assert_eq!(order(false), [1, 0, 1]);
    assert_eq!(order(true), [1, 1, 0]);
}

#[test]
fn posted_credits_run_out_and_come_back_after_the_root_took_the_write() {
    let mut d = Desk::new(
        with_link(|l| {
            l.credits = Credits { ph: 2, pd: 32, nph: 1, npd: 1 };
            l.up_mbps = 64_000;
            l.credit_return = Time::ns(50);
        }),
        1,
    );
    assert!(d.rc.can_accept(d.now, Kind::Posted, 256));
    d.write(BASE, &[1; 256]);
    assert!(d.rc.can_accept(d.now, Kind::Posted, 256));
    assert!(!d.rc.can_accept(d.now, Kind::Posted, 257), "data credits");
    d.write(BASE, &[2; 256]);
    assert!(!d.rc.can_accept(d.now, Kind::Posted, 4), "header credits");
    assert!(d.rc.can_accept(d.now, Kind::NonPosted, 0), "classes are separate");
    d.read(1, BASE, 4);
    assert!(!d.rc.can_accept(d.now, Kind::NonPosted, 0));
    assert!(d.rc.can_accept(d.now, Kind::Completion, 256));
    let back = Time::ns(250) + Time(280 * 125);
    assert!(!d.rc.can_accept(Time(back.0 - 1), Kind::Posted, 4));
    assert!(d.rc.can_accept(back, Kind::Posted, 4));
    d.now = back;
    d.run_until_quiet();
    d.no_violation();
}

#[test]
fn a_refused_card_is_told_when_to_ask_again() {
    let mut d = Desk::new(with_link(|l| l.credits = Credits { ph: 1, ..Credits::INFINITE }), 1);
    d.write(BASE, &[1; 4]);
    while d.rc.next_event().is_some_and(|at| at < Time::ns(210)) {
        d.now = d.rc.next_event().unwrap();
        d.take_all();
    }
    assert!(d.rc.quiet(), "the write is done");
    assert!(!d.rc.can_accept(d.now, Kind::Posted, 4));
    let at = d.rc.next_event().unwrap();
    assert!(d.rc.can_accept(at, Kind::Posted, 4));
    assert!(d.rc.quiet());
}

#[test]
fn the_uplink_pushes_back_when_its_buffer_is_full() {
    let mut d = Desk::new(
        with_link(|l| {
            l.credits = Credits::INFINITE;
            l.up_mbps = 8_000;
            l.transmit_buffer = 1000;
        }),
        1,
    );
    let mut sent = 0;
    while d.rc.can_accept(d.now, Kind::Posted, 256) {
        d.write(BASE, &[0; 256]);
        sent += 1;
    }
    assert_eq!(sent, 4, "4 x 280 bytes exceed 1000");
    // A byte a nanosecond: 120 bytes too many.
    assert!(!d.rc.can_accept(Time(119_999), Kind::Posted, 256));
    assert!(d.rc.can_accept(Time(120_000), Kind::Posted, 256));
}
