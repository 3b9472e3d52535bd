//! The card as responder of READs; the requester is played by [`library`].

#[path = "library/mod.rs"]
mod library;

use contract::{Opcode, Reject, Syndrome, wire::psn_add};
use host::{Access, AsyncEvent, QpState};
use library::{Library, MTU, START, kind, payload, syndrome};
use peer::Packet;
use sim::story::US;

#[test]
fn a_read_sees_every_write_before_it() {
    let mut library = Library::open("a_read_sees_every_write_before_it", 16);
    let mut expected = Vec::new();
    for n in 0..16usize {
        // the same place again and again, next to each other on the wire
        let bytes = library.story.bytes(64 + 60 * n);
        library.write(5000 + 1024 * n, &bytes);
        let psn = library.read(5000 + 1024 * n, bytes.len());
        expected.push((psn, bytes));
    }
    let heard = library.hears(200 * US);
    let answers: Vec<&Packet> =
        heard.iter().filter(|packet| kind(packet) == Opcode::RcReadResponseOnly).collect();
    let found: Vec<(u32, Vec<u8>)> =
        answers.iter().map(|packet| (packet.bth.psn, packet.payload.clone())).collect();
    assert_eq!(found, expected);
    // each WRITE was acknowledged by its own ACK before, or by the response
    let psns: Vec<u32> = heard.iter().map(|packet| packet.bth.psn.wrapping_sub(START) & 0xff_ffff).collect();
    assert!(psns.is_sorted(), "{psns:?}");
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.aeth.expect("AETH").msn as usize, 2 * n + 2);
    }
    library.story.no_other_events();
}

#[test]
fn what_follows_a_read_is_acknowledged_behind_its_last_response() {
    let mut library = Library::open("what_follows_a_read_is_acknowledged_behind_its_last_response", 4);
    library.end.receive(1, 0, 4096);
    let bytes = library.story.bytes(20_000);
    library.memory.write(0, &bytes).expect("it fits");
    // a SEND that finds a receive, and one that does not
    let first = library.read(0, 10_000);
    library.send(b"after the first");
    let second = library.read(10_000, 10_000);
    library.send(b"no receive is left");
    let heard = library.hears(200 * US);
    let psns: Vec<u32> = heard.iter().map(|packet| packet.bth.psn).collect();
    let refused = psn_add(library.psn, 0xff_ffff);
    // the second READ acknowledges the SEND before it, if the ACK is not out already
    let acks = heard.iter().filter(|packet| kind(packet) == Opcode::RcAcknowledge).count();
    let mut want: Vec<u32> = (0..10).map(|i| psn_add(first, i)).collect();
    if acks == 2 {
        want.push(psn_add(first, 10));
    }
    want.extend((0..10).map(|i| psn_add(second, i)));
    want.push(refused);
    assert_eq!(psns, want);
    assert_eq!(payload(&heard), bytes);
    let last = heard.last().expect("the RNR NAK");
    assert_eq!(
        (kind(last), syndrome(last) >> 5, last.aeth.expect("AETH").msn),
        (Opcode::RcAcknowledge, 1, 3)
    );
    library.story.completes(&library.end, 1);
    // the receive comes, the SEND again
    library.end.receive(2, 0, 4096);
    library.psn = refused;
    library.send(b"no receive is left");
    let heard = library.hears(50 * US);
    assert_eq!((heard.len(), heard[0].bth.psn, syndrome(&heard[0])), (1, refused, 0x1f));
    library.story.completes(&library.end, 2);
    library.story.announce(0, Reject::ReceiverNotReady, 1);
    library.story.no_other_events();
}

#[test]
fn one_read_too_many_is_refused_behind_those_that_were_granted() {
    let mut library = Library::open("one_read_too_many_is_refused_behind_those_that_were_granted", 2);
    let bytes = library.story.bytes(128 << 10);
    library.memory.write(0, &bytes).expect("it fits");
    let first = library.read(0, 64 << 10);
    let second = library.read(64 << 10, 64 << 10);
    let third = library.read(0, 5);
    let heard = library.hears(400 * US);
    assert_eq!((payload(&heard), heard.len()), (bytes, 129));
    let (granted, refused) = heard.split_at(128);
    let psns: Vec<u32> = granted.iter().map(|packet| packet.bth.psn).collect();
    let of = |psn| (0..64).map(move |i| psn_add(psn, i));
    assert_eq!(psns, of(first).chain(of(second)).collect::<Vec<_>>());
    assert_eq!((refused[0].bth.psn, syndrome(&refused[0])), (third, Syndrome::NAK_INVALID_REQUEST));
    assert_eq!(library.notice(), Some((AsyncEvent::QpReqErr, library.end.qp.number())));
    library.story.announce(0, Reject::ReadDepth, 1);
    library.story.no_other_events();
}

#[test]
fn answered_reads_make_room_for_others() {
    let mut library = Library::open("answered_reads_make_room_for_others", 2);
    let bytes = library.story.bytes(3000);
    library.memory.write(0, &bytes).expect("it fits");
    for round in 0..20 {
        for _ in 0..2 {
            library.read(0, 3000);
        }
        let heard = library.hears(40 * US);
        assert_eq!(payload(&heard), [bytes.clone(), bytes.clone()].concat(), "round {round}");
    }
    // what is no longer kept is not answered again, the last ones are
    let old = psn_add(library.psn, 0x100_0000 - 9);
    library.inject(&library.read_request(old, 0, 3000));
    assert_eq!(library.hears(40 * US), []);
    let last = psn_add(library.psn, 0x100_0000 - 2);
    library.inject(&library.read_request(last, 1024, 3000 - 1024));
    let heard = library.hears(40 * US);
    assert_eq!((payload(&heard), heard[0].bth.psn), (bytes[1024..].to_vec(), last));
    assert_eq!((kind(&heard[0]), kind(&heard[1])), (Opcode::RcReadResponseFirst, Opcode::RcReadResponseLast));
    library.story.announce(0, Reject::Duplicate, 2);
    library.story.no_other_events();
}

#[test]
fn a_read_whose_region_is_gone_when_it_is_asked_for_again_is_dropped_and_the_qp_goes_on() {
    let mut library = Library::open("a_read_whose_region_is_gone_when_it_is_asked_for_again_is_dropped", 4);
    let psn = library.read(0, 3000);
    assert_eq!(library.hears(40 * US).len(), 3);
    let again = library.read_request(psn, 0, 3000);
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let other = library.end.pd.allocate(4096, rights).expect("allocate");
    drop(std::mem::replace(&mut library.memory, other));
    for _ in 0..2 {
        library.inject(&again);
        assert_eq!(library.hears(40 * US), []);
        assert_eq!((library.notice(), library.end.qp.state()), (None, QpState::Rts));
    }
    library.read(0, 3000);
    assert_eq!(payload(&library.hears(40 * US)), [0; 3000]);
    library.story.announce(0, Reject::Duplicate, 2);
    // each of the three answers, twice
    library.story.announce(0, Reject::SglKey, 6);
    library.story.no_other_events();
}

#[test]
fn reads_of_any_length_and_alignment_are_whole() {
    let mut library = Library::open("reads_of_any_length_and_alignment_are_whole", 16);
    let bytes = library.story.bytes(40_000);
    library.memory.write(0, &bytes).expect("it fits");
    for length in [0, 1, 2, 3, 4, 5, 63, 64, 1023, 1024, 1025, 2048, 4097, 30_000] {
        for at in [0, 1, 3, 4093] {
            library.read(at, length);
            let heard = library.hears(60 * US);
            assert_eq!(payload(&heard), bytes[at..at + length], "{length} bytes at {at}");
            assert_eq!(heard.len(), length.div_ceil(MTU).max(1));
        }
    }
    library.story.no_other_events();
}
