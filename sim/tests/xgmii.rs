//! XGMII: frames through encoder and decoder, hand-written beats, and every rule broken once.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use sim::wire::{
    Frame, fcs,
    xgmii::{BEAT, Decoder, Encoder, IDLE, Malformed, Violation},
};

fn frame(length: usize, fill: u8) -> Frame {
    let mut bytes = vec![fill; length - 4];
    let tail = fcs(&bytes);
    bytes.extend(tail);
    Frame::new(bytes, 0, 10_000_000_000)
}

/// A stream of characters, control ones above 0xff, cut into beats; filled up with Idle.
fn beats(characters: &[u16]) -> Vec<(u64, u8)> {
    characters
        .chunks(8)
        .map(|chunk| {
            let (mut data, mut ctrl) = IDLE;
            for (lane, &character) in chunk.iter().enumerate() {
                data = data & !(0xff << (8 * lane)) | u64::from(character & 0xff) << (8 * lane);
                if character < 0x100 {
                    ctrl &= !(1 << lane);
                }
            }
            (data, ctrl)
        })
        .collect()
}

const IDLE_C: u16 = 0x107;
const START: u16 = 0x1fb;
const TERMINATE: u16 = 0x1fd;
const ERROR: u16 = 0x1fe;

/// Start, preamble, a frame of `length` bytes, Terminate.
fn line(length: usize) -> Vec<u16> {
    let mut characters = vec![START, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0xd5];
    characters.extend(frame(length, 0xa5).bytes.iter().map(|&byte| u16::from(byte)));
    characters.push(TERMINATE);
    characters
}

fn decode(characters: &[u16]) -> Vec<Result<Frame, Malformed>> {
    let mut decoder = Decoder::default();
    let beats = beats(characters);
    (0..).zip(beats).filter_map(|(n, (data, ctrl))| decoder.beat(data, ctrl, n * BEAT)).collect()
}

/// The violations of a stream that gives exactly one event.
fn violations(characters: &[u16]) -> Vec<Violation> {
    let mut events = decode(characters);
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0).unwrap_err().violations
}

#[test]
fn a_frame_from_lane_0_and_one_from_lane_4_carry_their_times() {
    let mut stream = line(64);
    let terminate = stream.len() - 1;
    stream.extend([IDLE_C; 3 + 8]);
    assert_eq!((stream.len() - terminate, stream.len() % 8), (12, 4));
    stream.extend(line(67));
    stream.extend([IDLE_C; 8]);
    let got: Vec<_> = decode(&stream).into_iter().map(Result::unwrap).collect();
    assert_eq!((got[0].start, got[0].end), (0, 72 * 800));
    assert_eq!((got[1].start, got[1].end), (84 * 800, (84 + 8 + 67) * 800));
    assert_eq!((&got[0].bytes, &got[1].bytes), (&frame(64, 0xa5).bytes, &frame(67, 0xa5).bytes));
    assert!(got.iter().all(Frame::fcs_is_good));
}

#[test]
fn every_broken_rule_is_named() {
    let with = |at: usize, character: u16| {
        let mut stream = line(64);
        stream.extend([IDLE_C; 8]);
        stream[at] = character;
        stream
    };
    assert_eq!(violations(&with(3, 0x54)), [Violation::Preamble { index: 2, found: 0x54, expected: 0x55 }]);
    assert_eq!(violations(&with(7, 0x55)), [Violation::Preamble { index: 6, found: 0x55, expected: 0xd5 }]);
    assert_eq!(
        violations(&with(8 + 20, ERROR)),
        [Violation::Error { at: 20 }, Violation::Short { bytes: 63 }]
    );
    assert_eq!(violations(&with(72, IDLE_C)), [Violation::NoTerminate { code: 0x07 }]);
    assert_eq!(violations(&with(74, 0x33)), [Violation::Stray { lane: 2, code: 0x33, control: false }]);
    assert_eq!(violations(&line(63)), [Violation::Short { bytes: 63 }]);
    let shifted: Vec<_> = [IDLE_C; 2].into_iter().chain(line(64)).collect();
    assert_eq!(violations(&shifted), [Violation::StartLane { lane: 2 }]);
    assert_eq!(
        violations(&[IDLE_C, 0x19c, 0, 0, 1])[..1],
        [Violation::Stray { lane: 1, code: 0x9c, control: true }]
    );
    // A frame cut off by the Start of the next: the first is told, the second is whole.
    let mut stream = line(80);
    stream.truncate(64);
    stream.extend(line(64));
    let events = decode(&stream);
    let first = events[0].as_ref().unwrap_err();
    assert_eq!(first.violations, [Violation::NoTerminate { code: 0xfb }, Violation::Short { bytes: 56 }]);
    let second = events[1].as_ref().unwrap_err();
    assert!(matches!(second.violations[..], [Violation::Gap { gap: 0, .. }]), "{second}");
    assert_eq!(second.frame.bytes, frame(64, 0xa5).bytes);
}

#[test]
fn a_frame_at_the_limit_passes_and_one_byte_more_does_not() {
    for length in [9238usize, 9239, 9246, 9300] {
        let events = decode(&line(length));
        assert_eq!(events.len(), 1);
        match &events[0] {
            Ok(frame) => assert_eq!((length, frame.bytes.len()), (9238, 9238)),
            Err(malformed) => {
                assert_eq!(malformed.violations, [Violation::Long { limit: 9238 }], "{length}");
                assert_eq!(malformed.frame.bytes.len(), 9238);
            }
        }
    }
}

/// A stream of frames of 64 bytes with these gaps (Terminate counted) between them.
fn gaps(gaps: &[usize]) -> Vec<Result<Frame, Malformed>> {
    let mut stream = line(64);
    for gap in gaps {
        stream.extend(vec![IDLE_C; gap - 1]);
        stream.extend(line(64));
    }
    decode(&stream)
}

#[test]
fn gaps_are_judged_by_their_average() {
    // 64-byte frames leave Terminate in the lane where Start was: gaps are multiples of four.
    assert!(gaps(&[12, 12, 16, 20, 12]).iter().all(Result::is_ok));
    let events = gaps(&[8]);
    assert_eq!(events[1].as_ref().unwrap_err().violations, [Violation::Gap { gap: 8, deficit: 4 }]);
    // A long gap before does not buy a short one after.
    assert!(gaps(&[40, 8])[2].is_err());
    // Frames of 67 bytes: gaps of 9 are possible, once; then the deficit has to be paid back.
    let stream = |gaps: &[usize]| {
        let mut stream = line(67);
        for gap in gaps {
            stream.extend(vec![IDLE_C; gap - 1]);
            stream.extend(line(67));
        }
        decode(&stream).iter().map(Result::is_ok).collect::<Vec<_>>()
    };
    assert_eq!(stream(&[9]), [true, true]);
    assert_eq!(stream(&[9, 9]), [true, true, false]);
    assert_eq!(stream(&[9, 13, 13, 13, 9]), [true; 6]);
    assert_eq!(stream(&[9, 13, 13, 9]), [true, true, true, true, false]);
}

#[test]
fn what_the_encoder_sends_the_decoder_accepts_at_full_rate() {
    for seed in 0..20 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
        let (mut sent, mut got, mut now) = (Vec::new(), Vec::new(), 0);
        while got.len() < 500 {
            // Seeds from 10 on leave pauses, in which time jumps.
            if sent.len() < 500 && (seed < 10 || random.next_u64() % 40 == 0) && encoder.pending() < 3 {
                let length = 64 + (random.next_u64() % if seed % 2 == 0 { 10 } else { 2000 }) as usize;
                let frame = frame(length, random.next_u64() as u8);
                sent.push(frame.clone());
                encoder.push(frame);
            }
            let (data, ctrl) = encoder.beat(now);
            if let Some(event) = decoder.beat(data, ctrl, now) {
                got.push(event.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
            }
            now += if encoder.is_idle() && decoder.is_idle() { 5 * BEAT } else { BEAT };
        }
        for (sent, got) in sent.iter().zip(&got) {
            assert_eq!(sent.bytes, got.bytes, "seed {seed}");
        }
        assert!(encoder.is_idle() && encoder.beat(now) == IDLE);
        if seed < 10 {
            let gaps: Vec<_> = got.windows(2).map(|pair| (pair[1].start - pair[0].end) / 800).collect();
            assert!(gaps.iter().all(|gap| (9..=15).contains(gap)), "seed {seed}: {gaps:?}");
            let mean = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
            assert!((12.0 - 3.0 / gaps.len() as f64..12.01).contains(&mean), "seed {seed}: mean gap {mean}");
            assert!(got.iter().any(|f| f.start % BEAT == 0) && got.iter().any(|f| f.start % BEAT == 4 * 800));
        }
    }
}

#[test]
fn each_length_alone_keeps_the_mean_gap_of_12() {
    for length in 64..=71 {
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::default());
        (0..400).for_each(|_| encoder.push(frame(length, 1)));
        let mut frames = Vec::new();
        let mut now = 0;
        while !encoder.is_idle() {
            let (data, ctrl) = encoder.beat(now);
            frames.extend(decoder.beat(data, ctrl, now).map(Result::unwrap));
            now += BEAT;
        }
        let span = frames[399].start - frames[0].start;
        let mean = span as f64 / 399.0 / 800.0 - (length + 8) as f64;
        assert!((11.99..=12.01).contains(&mean), "length {length}: {mean}");
    }
}

#[test]
fn an_empty_frame_and_a_flood_of_garbage_end_in_words() {
    let mut encoder = Encoder::new();
    encoder.push(Frame { bytes: [].into(), start: 0, end: 0 });
    let beats: Vec<_> = (0..4).map(|n| encoder.beat(n * BEAT)).collect();
    assert_eq!(beats[1].0 & 0xff, 0xfd);
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut decoder = Decoder::default();
    let mut told = 0;
    for n in 0..20_000 {
        let event = decoder.beat(random.next_u64(), random.next_u64() as u8, n * BEAT);
        told += usize::from(event.is_some_and(|event| !event.unwrap_err().to_string().is_empty()));
    }
    assert!(told > 1000);
    // It recovers.
    let mut good = 0;
    for (n, (data, ctrl)) in beats_of_two().into_iter().enumerate() {
        good += usize::from(matches!(decoder.beat(data, ctrl, (30_000 + n as u64) * BEAT), Some(Ok(_))));
    }
    assert!(good >= 1);
}

fn beats_of_two() -> Vec<(u64, u8)> {
    let mut stream = vec![TERMINATE];
    stream.extend([IDLE_C; 23]);
    stream.extend(line(64));
    stream.extend([IDLE_C; 15]);
    stream.extend(line(64));
    beats(&stream)
}
