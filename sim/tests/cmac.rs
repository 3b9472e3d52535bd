//! The simulated CMAC: rate, gaps, FCS, and the rules of its transmit stream.

use sim::wire::{
    Frame,
    cmac::{BACKLOG, Beat, Decoder, Encoder, PERIOD, RATE, Violation},
    fcs, line_time,
};

fn frame(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + length) as u8).collect()
}

fn with_fcs(body: &[u8]) -> Vec<u8> {
    [body, &fcs(body)].concat()
}

/// Everything that the encoder brings of these frames, and when.
fn beats(frames: &[Vec<u8>]) -> Vec<(u64, Beat)> {
    let mut encoder = Encoder::default();
    for bytes in frames {
        encoder.push(Frame::new(bytes.as_slice(), 10_000, RATE));
    }
    let edges = (1..20_000).map(|n| n * PERIOD);
    let found = edges.filter_map(|now| Some((now, encoder.beat(now)?))).collect();
    assert!(encoder.is_idle());
    found
}

/// Puts a frame's beats into the decoder as soon as it takes them.
fn transmit(decoder: &mut Decoder, now: &mut u64, body: &[u8]) -> Frame {
    let mut found = None;
    for (_, beat) in beats(&[with_fcs(body)]) {
        while !decoder.is_ready(*now) {
            *now += PERIOD;
        }
        assert!(found.is_none());
        found = decoder.beat(&beat, *now).expect("a good beat");
        *now += PERIOD;
    }
    found.expect("the last beat ends it")
}

#[test]
fn frames_pass_at_the_rate_of_the_line_with_their_gaps_in_both_directions() {
    let bodies: Vec<_> = [60, 61, 64, 65, 128, 1500, 9600, 60].map(frame).into();
    let (mut decoder, mut now) = (Decoder::default(), 7 * PERIOD);
    let sent: Vec<Frame> = bodies.iter().map(|body| transmit(&mut decoder, &mut now, body)).collect();
    assert_eq!(sent[0].start, 7 * PERIOD);
    for (frame, body) in sent.iter().zip(&bodies) {
        assert_eq!(&frame.bytes[..], with_fcs(body));
        assert_eq!(frame.end - frame.start, line_time(body.len() as u64 + 12, RATE));
    }
    for pair in sent.windows(2) {
        assert_eq!(pair[1].start - pair[0].end, line_time(12, RATE), "they wait for each other");
    }
    assert!(now <= sent[7].end + BACKLOG);

    let frames: Vec<_> = bodies.iter().map(|body| with_fcs(body)).collect();
    let received = beats(&frames);
    let (mut begin, mut previous) = (10_000, 0);
    let mut beat = received.iter();
    for body in &bodies {
        let mut bytes = Vec::new();
        loop {
            let (now, beat) = beat.next().expect("a beat of every frame");
            let count = beat.keep.trailing_ones() as usize;
            bytes.extend(beat.data.iter().flat_map(|word| word.to_le_bytes()).take(count));
            let arrived = bytes.len() + 8 + if beat.last { 4 } else { 0 };
            // and for the one before it
            let earliest = (begin + line_time(arrived as u64, RATE)).max(previous + 1);
            previous = *now;
            assert!((earliest..earliest + PERIOD).contains(now), "a beat waits for its last byte alone");
            assert!(!beat.user);
            if beat.last {
                begin += line_time(arrived as u64 + 12, RATE);
                break;
            }
        }
        assert_eq!(&bytes, body);
    }
}

#[test]
fn a_frame_with_a_wrong_fcs_or_too_short_is_marked_in_its_last_beat() {
    let mut wrong = with_fcs(&frame(200));
    wrong[100] ^= 4;
    let short = with_fcs(&frame(59));
    let users = |bytes: Vec<u8>| beats(&[bytes]).iter().map(|(_, beat)| beat.user).collect::<Vec<_>>();
    assert_eq!(users(wrong), [false, false, false, true]);
    assert_eq!(users(short), [true]);
    assert_eq!(users(with_fcs(&frame(60))), [false]);
    assert!(users(vec![1, 2, 3, 4]).is_empty());
    // and out: an error asks for a wrong FCS
    let beat = Beat { data: [1; 16], keep: u64::MAX, last: true, user: true };
    let sent = Decoder::default().beat(&beat, 0).unwrap().unwrap();
    assert!(!sent.fcs_is_good() && sent.bytes.len() == 68);
}

#[test]
fn each_rule_of_the_transmit_stream_is_told_when_it_is_broken() {
    let full = Beat { data: [0; 16], keep: u64::MAX, last: false, user: false };
    let mut decoder = Decoder::default();
    assert_eq!(decoder.pause(), Ok(()));
    assert_eq!(decoder.beat(&full, 0), Ok(None));
    assert_eq!(decoder.pause(), Err(Violation::Gap { at: 64 }));
    for (keep, last) in [(u64::MAX >> 1, false), (0, true), (5, true), (u64::MAX << 1, true)] {
        assert_eq!(
            Decoder::default().beat(&Beat { keep, last, ..full }, 0),
            Err(Violation::Lanes { keep, last })
        );
    }
    let short = Beat { keep: (1 << 59) - 1, last: true, ..full };
    assert_eq!(Decoder::default().beat(&short, 0), Err(Violation::Length { bytes: 59 }));
    let mut long = Decoder::default();
    assert!((0..150).all(|_| long.beat(&full, 0) == Ok(None)));
    assert_eq!(long.beat(&Beat { last: true, ..full }, 0), Err(Violation::Length { bytes: 9664 }));
}
