//! Stories of the wire: times, order, rate, chance, script. Times in ps unless named otherwise.

use sim::wire::{
    Action, Config, Counters, Delay, Delivery, Fault, Faults, Frame, Rule, Side, Wire, fcs, line_time,
};

const TEN_G: u64 = 10_000_000_000;
const NS: u64 = 1000;

/// A frame whose payload is its number, with a good FCS.
fn frame(number: u64, length: usize, start: u64) -> Frame {
    let mut bytes = vec![0; length - 4];
    bytes[14..22].copy_from_slice(&number.to_be_bytes());
    let tail = fcs(&bytes);
    bytes.extend(tail);
    Frame::new(bytes, start, TEN_G)
}

fn number(delivery: &Delivery) -> u64 {
    u64::from_be_bytes(delivery.frame.bytes[14..22].try_into().unwrap())
}

/// Sends `count` frames of 64 bytes from A back to back at line rate from time 0 and takes all that leaves.
fn run(wire: &mut Wire, count: u64) -> Vec<Delivery> {
    for n in 1..=count {
        _ = wire.send(Side::A, frame(n, 64, (n - 1) * 67_200));
    }
    drain(wire)
}

/// Jumps from one due time to the next.
fn drain(wire: &mut Wire) -> Vec<Delivery> {
    let mut all = Vec::new();
    while let Some(due) = wire.next_due() {
        assert!(wire.quiet(due - 1) && !wire.quiet(due));
        assert_eq!(wire.receive(Side::B, due - 1), None, "nothing leaves early");
        let before = all.len();
        all.extend(std::iter::from_fn(|| wire.receive(Side::B, due)));
        assert!(wire.next_due() != Some(due), "due at {due}, but nothing left ({before} so far)");
    }
    all
}

fn numbers(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().map(number).collect()
}

#[test]
fn a_clean_wire_adds_its_delay_and_nothing_else() {
    let mut wire = Wire::new(&Config { delay: 500 * NS, ..Config::default() });
    assert!(wire.quiet(u64::MAX) && wire.next_due().is_none());
    let sent: Vec<_> = (0..5).map(|n| frame(n, 64, 10_000 * NS + n * 67_200)).collect();
    for frame in &sent {
        assert_eq!(wire.send(Side::A, frame.clone()), None);
    }
    assert_eq!(wire.in_flight(Side::A), 5);
    let got = drain(&mut wire);
    for (sent, got) in sent.iter().zip(&got) {
        assert_eq!((got.frame.start, got.frame.end), (sent.start + 500 * NS, sent.end + 500 * NS));
        assert_eq!(got.frame.bytes, sent.bytes);
        assert!(got.faults.is_empty() && got.frame.fcs_is_good());
    }
    let counters =
        Counters { frames: 5, bytes: 320, delivered: 5, delivered_bytes: 320, ..Counters::default() };
    assert_eq!((wire.counters(Side::A), wire.counters(Side::B)), (counters, Counters::default()));
}

#[test]
fn a_frame_longer_than_the_delay_leaves_when_it_is_known() {
    let mut wire = Wire::new(&Config { delay: 500 * NS, ..Config::default() });
    let long = frame(1, 4096, 0);
    assert_eq!(long.end, (4096 + 8) * 800);
    _ = wire.send(Side::A, long.clone());
    // The next one, short, does not overtake it, nor does it lie over it on the line.
    _ = wire.send(Side::A, frame(2, 64, long.end + 9600));
    let got = drain(&mut wire);
    assert_eq!(got[0].frame.start, long.end);
    assert_eq!(got[1].frame.start, 2 * long.end);
}

#[test]
fn the_two_directions_do_not_touch_each_other() {
    let mut wire = Wire::new(&Config { faults: [Faults::loss(1.0), Faults::default()], ..Config::default() });
    assert_eq!(wire.send(Side::A, frame(1, 64, 0)), Some(Fault::Dropped { scripted: false }));
    assert_eq!(wire.send(Side::B, frame(2, 64, 0)), None);
    assert_eq!(wire.receive(Side::B, u64::MAX), None);
    assert_eq!(wire.receive(Side::A, u64::MAX).map(|delivery| number(&delivery)), Some(2));
}

#[test]
fn a_shaped_wire_lets_frames_out_no_faster_than_its_rate() {
    let rate = 1_000_000_000;
    let mut wire = Wire::new(&Config { rate: Some(rate), ..Config::default() });
    let got = run(&mut wire, 50);
    assert_eq!(got.len(), 50);
    for pair in got.windows(2) {
        assert_eq!(pair[1].frame.start - pair[0].frame.start, (64 + 20) * 8 * NS, "84 bytes at 1 Gb/s");
        assert_eq!(pair[0].frame.end - pair[0].frame.start, (64 + 8) * 8 * NS);
    }
    assert_eq!(line_time(125, rate), 1000 * NS);
}

#[test]
fn chance_keeps_its_probability_and_its_seed() {
    for seed in [1, 7, 4242] {
        let faults =
            Faults { loss: 0.01, duplicate: 0.02, corrupt: 0.03, reorder: 0.04, ..Faults::default() };
        let config = Config { faults: [faults, Faults::default()], seed, ..Config::default() };
        let (mut wire, mut again) = (Wire::new(&config), Wire::new(&config));
        let got = run(&mut wire, 20_000);
        assert_eq!(got, run(&mut again, 20_000), "seed {seed}: the same twice");
        let c = wire.counters(Side::A);
        for (count, expected) in [(c.dropped, 200), (c.duplicated, 396), (c.corrupted, 594), (c.delayed, 792)]
        {
            // Five standard deviations.
            let slack = 5 * (expected as f64).sqrt() as u64;
            assert!(
                count.abs_diff(expected) <= slack,
                "seed {seed}: {count}, expected {expected} +- {slack}"
            );
        }
        assert_eq!(c.delivered, c.frames - c.dropped + c.duplicated, "seed {seed}: no frame vanishes");
        for delivery in &got {
            let corrupted = delivery.faults.iter().any(|fault| matches!(fault, Fault::Corrupted { .. }));
            assert_eq!(delivery.frame.fcs_is_good(), !corrupted, "seed {seed}: {:?}", delivery.faults);
        }
        // A clean frame is in its place: only a delayed one is behind a later one.
        let mut highest = 0;
        for delivery in &got {
            let late =
                delivery.faults.iter().any(|f| matches!(f, Fault::Delayed { .. } | Fault::Corrupted { .. }));
            assert!(late || number(delivery) >= highest, "seed {seed}: {} after {highest}", number(delivery));
            if !late {
                highest = number(delivery);
            }
        }
    }
    let other = Config { faults: [Faults::loss(0.5), Faults::default()], seed: 1, ..Config::default() };
    let a = run(&mut Wire::new(&other), 100);
    let b = run(&mut Wire::new(&Config { seed: 2, ..other }), 100);
    assert_ne!(numbers(&a), numbers(&b));
}

#[test]
fn switching_one_fault_on_leaves_the_others_choices_alone() {
    let lossy = Config { faults: [Faults::loss(0.1), Faults::default()], seed: 9, ..Config::default() };
    let mut both = lossy;
    both.faults[0].corrupt = 0.5;
    let starts = |config| run(&mut Wire::new(config), 500).iter().map(|d| d.frame.start).collect::<Vec<_>>();
    assert_eq!(starts(&lossy), starts(&both));
    assert!(starts(&lossy).len() < 500);
}

#[test]
fn the_third_frame_is_dropped_and_only_it() {
    let mut wire = Wire::new(&Config::default());
    wire.script(Side::A, Rule::nth(3, Action::Drop));
    assert_eq!(wire.pending_rules(Side::A), 1);
    assert_eq!(numbers(&run(&mut wire, 5)), [1, 2, 4, 5]);
    assert_eq!((wire.pending_rules(Side::A), wire.counters(Side::A).dropped), (0, 1));
}

#[test]
fn a_matching_rule_acts_once_or_as_often_as_it_says() {
    let mut wire = Wire::new(&Config::default());
    let even = |bytes: &[u8]| bytes[21].is_multiple_of(2);
    wire.script(Side::A, Rule::once(even, Action::Drop));
    assert_eq!(numbers(&run(&mut wire, 6)), [1, 3, 4, 5, 6]);
    wire.script(Side::A, Rule::times(2, even, Action::Drop));
    assert_eq!(numbers(&run(&mut wire, 8)), [1, 3, 5, 6, 7, 8]);
    wire.script(Side::A, Rule::times(u64::MAX, even, Action::Drop));
    assert_eq!(numbers(&run(&mut wire, 6)), [1, 3, 5]);
    wire.clear_script(Side::A);
    assert_eq!(run(&mut wire, 6).len(), 6);
}

#[test]
fn a_scripted_duplicate_follows_its_original_on_the_line() {
    let mut wire = Wire::new(&Config::default());
    wire.script(Side::A, Rule::nth(2, Action::Duplicate));
    let got = run(&mut wire, 3);
    assert_eq!(numbers(&got), [1, 2, 2, 3]);
    assert_eq!((got[1].faults.as_slice(), got[2].faults.as_slice()), (&[][..], &[Fault::Duplicated][..]));
    for pair in got.windows(2) {
        assert!(pair[1].frame.start >= pair[0].frame.end, "frames do not overlap");
    }
}

#[test]
fn a_scripted_corruption_flips_the_named_bit() {
    let mut wire = Wire::new(&Config::default());
    wire.script(Side::A, Rule::nth(1, Action::Corrupt(30 * 8 + 2)));
    let got = run(&mut wire, 2);
    assert_eq!(got[0].faults, [Fault::Corrupted { byte: 30, bit: 2 }]);
    let clean = frame(1, 64, 0);
    let differs: Vec<_> = (0..64).filter(|&i| got[0].frame.bytes[i] != clean.bytes[i]).collect();
    assert_eq!((differs, got[0].frame.bytes[30]), (vec![30], clean.bytes[30] ^ 4));
    assert!(got[1].frame.fcs_is_good());
}

#[test]
fn a_frame_falls_behind_two_others_or_waits_no_longer_than_told() {
    let behind = Action::Delay(Delay::Frames { count: 2, at_most: 1000 * NS });
    let mut wire = Wire::new(&Config::default());
    wire.script(Side::A, Rule::nth(1, behind));
    let got = run(&mut wire, 4);
    assert_eq!(numbers(&got), [2, 3, 1, 4]);
    assert_eq!(got[2].faults, [Fault::Delayed { by: 2 * 67_200 }]);

    let mut wire = Wire::new(&Config { delay: 500 * NS, ..Config::default() });
    wire.script(Side::A, Rule::nth(1, behind));
    let got = run(&mut wire, 2);
    assert_eq!(numbers(&got), [2, 1]);
    assert_eq!(got[1].frame.start, 1500 * NS, "turn at 500 ns and 1000 ns of patience");

    let mut wire = Wire::new(&Config::default());
    wire.script(Side::A, Rule::nth(1, Action::Delay(Delay::Time(150_000))));
    assert_eq!(numbers(&run(&mut wire, 4)), [2, 3, 1, 4]);
}

#[test]
fn a_held_frame_is_no_event_until_it_is_released() {
    let mut wire = Wire::new(&Config::default());
    wire.script(Side::A, Rule::nth(1, Action::Hold));
    assert_eq!(numbers(&run(&mut wire, 3)), [2, 3]);
    assert!(wire.next_due().is_none() && wire.quiet(u64::MAX));
    assert_eq!((wire.held(Side::A), wire.in_flight(Side::A)), (1, 1));
    wire.release(Side::A, 9000 * NS);
    assert_eq!(wire.next_due(), Some(9000 * NS));
    let got = drain(&mut wire);
    assert_eq!((numbers(&got), got[0].frame.start), (vec![1], 9000 * NS));
    assert_eq!(got[0].faults, [Fault::Delayed { by: 8500 * NS }]);
    assert_eq!(wire.in_flight(Side::A), 0);
}

#[test]
fn a_wire_that_is_out_loses_what_is_sent_and_nothing_that_is_under_way() {
    let faults = [Faults { corrupt: 0.5, ..Faults::default() }; 2];
    let config = Config { faults, seed: 3, ..Config::default() };
    let send = |wire: &mut Wire, n: u64| wire.send(Side::A, frame(n, 64, n * 67_200));
    let (mut out, mut whole) = (Wire::new(&config), Wire::new(&config));
    for n in 0..30 {
        out.plug(!(10..20).contains(&n));
        let lost = (10..20).contains(&n).then_some(Fault::Dropped { scripted: true });
        assert_eq!((send(&mut out, n), send(&mut whole, n)), (lost, None));
    }
    let (out, whole) = (drain(&mut out), drain(&mut whole));
    // and chance deals with the others as it would have
    assert_eq!(out, [&whole[..10], &whole[20..]].concat());
}
