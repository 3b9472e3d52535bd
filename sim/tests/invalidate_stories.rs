//! Keys that end by request: SEND with invalidate and local invalidate, between two cards and against the endpoint.
//!
//! Requirements: ERR REQ RESP

use contract::{Opcode, Reject, StageCounter, verbs::access, wire::psn_add};
use host::{Access, Mr, Pd, RecvWr, SendWr, WcOpcode, WcStatus};
use peer::{Address, QpParams, Region, SendOp};
use sim::{
    backend::{lock, pass},
    story::{A, B, End, MS, Story, US, card_and_peer, two_cards, usual},
    wire::{Action, Delay, Faults},
};

const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Memory whose key may be ended.
fn window(pd: &Pd) -> Mr {
    pd.allocate(1 << 16, Access::LOCAL_WRITE | Access::INVALIDATE | REMOTE).expect("a region")
}

/// Posts a SEND of `length` bytes at 0 that ends `key`.
fn send_with_inv(end: &End, wr_id: u64, length: usize, key: u32) {
    let sge = [end.memory.sge(0..length).expect("a range of the region")];
    end.qp.post_send(&[SendWr::send_with_inv(wr_id, &sge, key).signaled()]).expect("post a SEND");
}

fn local_inv(end: &End, wr_id: u64, key: u32) {
    end.qp.post_send(&[SendWr::local_inv(wr_id, key).signaled()]).expect("post a local invalidate");
}

/// Posts a WRITE of 64 bytes at 0 to the start of `to`.
fn write(end: &End, wr_id: u64, to: &Mr) {
    end.write(wr_id, 0, 64, to, 0);
}

/// What an end of a QP that fails may have dropped.
fn allow_the_end(story: &mut Story) {
    for card in 0..2 {
        for reject in [Reject::QpHalted, Reject::WrongQpState] {
            story.allow(card, reject);
        }
    }
}

#[test]
fn a_send_ends_a_key_of_the_peer_which_is_told_which_and_uses_its_region_again() {
    for length in [0, 5, 1024, 3000] {
        let mut story = two_cards(&format!("a_send_of_{length}_bytes_ends_a_key_of_the_peer"));
        let (a, b) = story.connected();
        let bytes = story.bytes(3000);
        a.memory.write(0, &bytes).unwrap();
        let (mut old, mut keys) = (window(&b.pd), Vec::new());
        for round in 0..3 {
            assert!(!keys.contains(&old.rkey()), "a key does not come back at once");
            keys.push(old.rkey());
            b.receive(10 + round, 4096, 4096);
            write(&a, 20 + round, &old);
            send_with_inv(&a, 30 + round, length, old.rkey());
            story.completes(&a, 20 + round);
            let done = story.completes(&a, 30 + round);
            assert_eq!(done.opcode, WcOpcode::Send);
            let done = story.completes(&b, 10 + round);
            assert_eq!((done.opcode, done.byte_len as usize), (WcOpcode::Recv, length));
            assert_eq!((done.invalidated, done.imm), (Some(old.rkey()), None));
            story.memory_matches(&b.memory, 4096, &bytes[..length]);
            story.memory_matches(&old, 0, &bytes[..64]);
            // given back and registered again, in whichever number
            drop(old);
            old = window(&b.pd);
            write(&a, 40 + round, &old);
            story.completes(&a, 40 + round);
        }
        story.no_other_events();
    }
}

#[test]
fn who_uses_a_key_behind_its_end_gets_a_nak_and_places_nothing() {
    for what in ["WRITE", "READ", "fetch and add", "SEND with invalidate"] {
        let mut story = two_cards(&format!("a_{}_behind_the_end_of_its_key", what.replace(' ', "_")));
        let (a, b) = story.connected();
        let key = window(&b.pd);
        a.memory.write(0, &[7; 64]).unwrap();
        b.receive(1, 0, 64);
        b.receive(2, 0, 64);
        send_with_inv(&a, 1, 8, key.rkey());
        // at once: it arrives while the key is ending
        match what {
            "WRITE" => write(&a, 2, &key),
            "READ" => a.read(2, 1000, 64, &key, 0),
            "fetch and add" => a.fetch_add(2, 1000, &key, 0, 1),
            _ => send_with_inv(&a, 2, 8, key.rkey()),
        }
        write(&a, 3, &b.memory);
        story.completes(&a, 1);
        for (wr_id, status) in [(2, WcStatus::RemAccessErr), (3, WcStatus::WrFlushErr)] {
            let done = story.completion(&a);
            assert_eq!((done.wr_id, done.status), (wr_id, status), "{what}");
        }
        let done = story.completes(&b, 1);
        assert_eq!(done.invalidated, Some(key.rkey()));
        let last = story.completion(&b);
        let status = if what.starts_with("SEND") { WcStatus::LocAccessErr } else { WcStatus::WrFlushErr };
        assert_eq!((last.wr_id, last.status), (2, status), "{what}");
        let nak = story.packets().into_iter().rfind(|seen| seen.from == B).expect("a NAK");
        assert_eq!(nak.packet.aeth.map(|aeth| aeth.syndrome), Some(0x62));
        story.memory_matches(&key, 0, &[0; 64]);
        for reject in [Reject::RkeyUnknown, Reject::SglKey] {
            story.allow(1, reject);
        }
        allow_the_end(&mut story);
        story.no_other_events();
    }
}

#[test]
fn a_key_that_the_peer_may_not_end_is_refused_and_holds() {
    for what in ["tag", "number", "other PD", "no such right"] {
        let mut story = two_cards(&format!("a_key_that_may_not_be_ended_{}", what.replace(' ', "_")));
        let (a, b) = story.connected();
        let other = b.context.alloc_pd().unwrap();
        let (mine, foreign) = (window(&b.pd), window(&other));
        let (key, reject) = match what {
            "tag" => (mine.rkey() ^ 1, Reject::RkeyTag),
            "number" => (mine.rkey() + 0x2000, Reject::RkeyUnknown),
            "other PD" => (foreign.rkey(), Reject::RkeyPd),
            _ => (b.memory.rkey(), Reject::RkeyRights),
        };
        a.memory.write(0, &[7; 64]).unwrap();
        b.receive(1, 0, 64);
        send_with_inv(&a, 1, 8, key);
        let done = story.completion(&a);
        assert_eq!((done.wr_id, done.status), (1, WcStatus::RemAccessErr), "{what}");
        let done = story.completion(&b);
        assert_eq!((done.wr_id, done.status, done.invalidated), (1, WcStatus::LocAccessErr, None));
        story.memory_matches(&b.memory, 0, &[0; 64]);
        story.announce(1, reject, 1);
        allow_the_end(&mut story);
        // all keys hold, for other QPs
        let (c, d) = (story.qp(a.host, |_| {}), story.qp(b.host, |_| {}));
        story.join(&c, &d, |_, _| {});
        write(&c, 5, &mine);
        write(&c, 6, &d.memory);
        story.completes(&c, 5);
        story.completes(&c, 6);
        story.no_other_events();
    }
}

#[test]
fn duplicates_of_a_send_that_ended_a_key_end_nothing_and_fail_nothing() {
    let mut story = two_cards("duplicates_of_a_send_that_ended_a_key_end_nothing_and_fail_nothing");
    let (a, b) = story.connected();
    let key = window(&b.pd);
    // its ACK is lost, so it comes again by timeout; and the wire doubles it
    story.wire_drops(B, |packet| packet.opcode() == Some(Opcode::RcAcknowledge));
    story.wire_does(A, Action::Duplicate, |packet| packet.opcode() == Some(Opcode::RcSendOnlyInv));
    b.receive(1, 0, 64);
    b.receive(2, 100, 64);
    send_with_inv(&a, 1, 8, key.rkey());
    let done = story.completes(&b, 1);
    assert_eq!(done.invalidated, Some(key.rkey()));
    story.completes(&a, 1);
    story.no_completion(&b);
    let index = key.rkey() >> 8;
    drop(key);
    // its number comes back with another tag only when all others were used: the key of a packet that comes late is nobody's
    let again = window(&b.pd);
    assert_ne!(again.rkey() >> 8, index);
    write(&a, 2, &again);
    send_with_inv(&a, 3, 8, again.rkey());
    story.completes(&a, 2);
    story.completes(&a, 3);
    assert_eq!(story.completes(&b, 2).invalidated, Some(again.rkey()));
    story.allow(1, Reject::Duplicate);
    story.allow(0, Reject::ResponseStale);
    story.no_other_events();
}

#[test]
fn a_read_that_comes_again_behind_the_end_of_its_key_harms_nobody() {
    let mut story = two_cards("a_read_that_comes_again_behind_the_end_of_its_key_harms_nobody");
    let (a, b) = story.connected();
    let key = window(&b.pd);
    key.write(0, &[9; 3000]).unwrap();
    b.receive(1, 0, 64);
    a.read(1, 1000, 3000, &key, 0);
    story.completes(&a, 1);
    send_with_inv(&a, 2, 8, key.rkey());
    story.completes(&a, 2);
    assert_eq!(story.completes(&b, 1).invalidated, Some(key.rkey()));
    // the network had doubled the request, its twin comes now: whole, and from its middle
    for skip in [0, 1] {
        let mut twin = story.packets().into_iter().find(|seen| seen.from == A).expect("the READ").packet;
        twin.bth.psn = psn_add(a.psn, skip);
        let reth = twin.reth.as_mut().expect("a READ has one");
        (reth.va, reth.dma_length) = (reth.va + 1024 * u64::from(skip), 3000 - 1024 * skip);
        lock(&story.room).inject(A, &twin.build()).expect("a frame");
        story.wait(100 * US);
    }
    write(&a, 3, &b.memory);
    story.completes(&a, 3);
    story.memory_matches(&a.memory, 1000, &[9; 3000]);
    for reject in [Reject::Duplicate, Reject::SglKey] {
        story.allow(1, reject);
    }
    story.no_other_events();
}

#[test]
fn a_key_ends_under_the_writes_of_another_connection_and_nothing_lands_behind_the_completion() {
    let mut story = two_cards("a_key_ends_under_the_writes_of_another_connection");
    let (a, b) = story.connected();
    let init = host::QpInit { max_send_sge: 4, ..host::QpInit::rc(&a.host.cq, &a.host.cq) };
    let other = host::QpInit { max_send_sge: 4, ..host::QpInit::rc(&b.host.cq, &b.host.cq) };
    let (mine, theirs) = (a.host.pd.create_qp(&init).unwrap(), b.host.pd.create_qp(&other).unwrap());
    let (gid_a, gid_b) = (a.host.context.gids()[0], b.host.context.gids()[0]);
    mine.connect_with(&usual(gid_b, theirs.number(), 0xff_fff0, 5)).unwrap();
    theirs.connect_with(&usual(gid_a, mine.number(), 5, 0xff_fff0)).unwrap();
    let key = window(&b.pd);
    a.memory.write(0, &[7; 4096]).unwrap();
    b.receive(1, 0, 64);
    let sge = [a.memory.sge(0..4096).unwrap()];
    for i in 0..40 {
        let wr = SendWr::write(100 + i, &sge, key.addr() + 4096 * (i % 15), key.rkey());
        mine.post_send(&[wr.signaled()]).unwrap();
    }
    story.wait(30 * US);
    send_with_inv(&a, 1, 8, key.rkey());
    // the receiver is told: from now on its memory is its own
    let done = loop {
        let done = story.completion(&b);
        if done.qpn == b.qp.number() {
            break done;
        }
    };
    assert_eq!((done.wr_id, done.invalidated), (1, Some(key.rkey())));
    key.write(0, &[0x55; 1 << 16]).unwrap();
    story.wait(2 * MS);
    story.memory_matches(&key, 0, &[0x55; 1 << 16]);
    let (mut good, mut refused) = (0, 0);
    for _ in 0..41 {
        let done = story.completion(&a);
        match (done.wr_id, done.status) {
            (1, WcStatus::Success) => {}
            (_, WcStatus::Success) => good += 1,
            (_, WcStatus::RemAccessErr) => refused += 1,
            (_, status) => assert_eq!(status, WcStatus::WrFlushErr),
        }
    }
    assert!(good > 2, "{good} WRITEs landed before");
    assert_eq!(refused, 1);
    story.announce(1, Reject::RkeyUnknown, 1);
    allow_the_end(&mut story);
    story.no_other_events();
}

#[test]
fn a_local_invalidate_waits_for_what_is_before_it_and_what_is_behind_finds_the_key_gone() {
    let mut story = two_cards("a_local_invalidate_waits_for_what_is_before_it");
    let (a, b) = story.connected();
    let bytes = story.bytes(5000);
    let source = window(&a.pd);
    source.write(0, &bytes).unwrap();
    // the first WRITE is lost, and is read again by the key that is to end
    story.wire_drops(A, |packet| packet.opcode() == Some(Opcode::RcWriteFirst));
    let part = |from: usize, to: usize| [source.sge(from..to).unwrap()];
    let to = |at: u64| (b.memory.addr() + at, b.memory.rkey());
    let (addr, rkey) = to(0);
    a.qp.post_send(&[SendWr::write(1, &part(0, 5000), addr, rkey).signaled()]).unwrap();
    // a READ lands by it, too
    a.qp.post_send(&[SendWr::read(2, &part(8000, 9000), addr + 9000, rkey).signaled()]).unwrap();
    local_inv(&a, 3, source.lkey());
    // behind it, unsignaled ones; then the key is gone
    let second = window(&a.pd);
    a.qp.post_send(&[SendWr::local_inv(4, second.lkey())]).unwrap();
    a.qp.post_send(&[SendWr::write(5, &part(0, 8), addr, rkey).signaled()]).unwrap();
    write(&a, 6, &b.memory);
    story.completes(&a, 1);
    story.completes(&a, 2);
    let done = story.completes(&a, 3);
    assert_eq!((done.opcode, done.byte_len), (WcOpcode::LocalInv, 0));
    for (wr_id, status) in [(5, WcStatus::LocProtErr), (6, WcStatus::WrFlushErr)] {
        let done = story.completion(&a);
        assert_eq!((done.wr_id, done.status), (wr_id, status));
    }
    story.memory_matches(&b.memory, 0, &bytes);
    story.announce(0, Reject::SglKey, 1);
    story.allow(1, Reject::PsnOutOfSequence);
    story.allow(1, Reject::PsnOutOfSequenceRepeat);
    allow_the_end(&mut story);
    // both regions are given back, their numbers are free, for a QP that works
    drop((source, second));
    let (c, d) = (story.qp(a.host, |_| {}), story.qp(b.host, |_| {}));
    story.join(&c, &d, |_, _| {});
    for round in 0..3 {
        let source = window(&c.pd);
        let sge = [source.sge(0..64).unwrap()];
        let wr = SendWr::write(7, &sge, d.memory.addr(), d.memory.rkey()).signaled();
        c.qp.post_send(&[wr, SendWr::local_inv(8, source.lkey()).signaled()]).unwrap();
        story.completes(&c, 7);
        story.completes(&c, 8);
        write(&c, 9 + round, &d.memory);
        story.completes(&c, 9 + round);
    }
    story.no_other_events();
}

#[test]
fn a_local_invalidate_of_a_key_that_is_not_its_own_to_end_fails_in_its_turn() {
    for what in ["tag", "number", "other PD", "no such right", "twice"] {
        let mut story = two_cards(&format!("a_local_invalidate_of_a_bad_key_{}", what.replace(' ', "_")));
        let (a, b) = story.connected();
        let other = a.context.alloc_pd().unwrap();
        let (mine, foreign) = (window(&a.pd), window(&other));
        let (key, reject) = match what {
            "tag" => (mine.lkey() ^ 1, Reject::RkeyTag),
            "number" => (mine.lkey() + 0x2000, Reject::RkeyUnknown),
            "other PD" => (foreign.lkey(), Reject::RkeyPd),
            "no such right" => (a.memory.lkey(), Reject::RkeyRights),
            _ => (mine.lkey(), Reject::RkeyUnknown),
        };
        if what == "twice" {
            local_inv(&a, 0, key);
            story.completes(&a, 0);
        }
        write(&a, 1, &b.memory);
        a.qp.post_send(&[SendWr::local_inv(2, key)]).unwrap();
        write(&a, 3, &b.memory);
        story.completes(&a, 1);
        for (wr_id, status) in [(2, WcStatus::LocQpOpErr), (3, WcStatus::WrFlushErr)] {
            let done = story.completion(&a);
            assert_eq!((done.wr_id, done.status), (wr_id, status), "{what}");
        }
        story.announce(0, reject, 1);
        story.no_other_events();
    }
}

#[test]
fn a_receive_or_a_write_of_the_peer_by_a_key_that_ended_here_is_refused() {
    for receives in [true, false] {
        let mut story = two_cards(&format!("by_a_key_that_ended_here_receives_{receives}"));
        let (a, b) = story.connected();
        let key = window(&b.pd);
        let sge = [key.sge(0..64).unwrap()];
        b.qp.post_recv(&[RecvWr::new(1, &sge)]).unwrap();
        local_inv(&b, 2, key.lkey());
        story.completes(&b, 2);
        if receives {
            a.send(1, 0, 64);
        } else {
            write(&a, 1, &key);
        }
        let done = story.completion(&a);
        let (here, there) = match receives {
            true => (WcStatus::LocProtErr, WcStatus::RemOpErr),
            false => (WcStatus::WrFlushErr, WcStatus::RemAccessErr),
        };
        assert_eq!((done.wr_id, done.status), (1, there));
        let done = story.completion(&b);
        assert_eq!((done.wr_id, done.status), (1, here));
        for reject in [Reject::LkeyBad, Reject::RkeyUnknown] {
            story.allow(1, reject);
        }
        allow_the_end(&mut story);
        story.no_other_events();
    }
}

#[test]
fn a_qp_is_destroyed_while_keys_end_and_the_next_one_works() {
    let mut story = two_cards("a_qp_is_destroyed_while_keys_end_and_the_next_one_works");
    let (mut a, mut b) = story.connected();
    for round in 0..12u64 {
        let keys: Vec<Mr> = (0..6).map(|_| window(&b.pd)).collect();
        let own: Vec<Mr> = (0..6).map(|_| window(&a.pd)).collect();
        for i in 0..6 {
            b.receive(i, 0, 64);
        }
        for (i, (key, own)) in keys.iter().zip(&own).enumerate() {
            send_with_inv(&a, i as u64, 8, key.rkey());
            local_inv(&a, 100 + i as u64, own.lkey());
        }
        story.wait(round * 500_000);
        let End { qp: mine, host, .. } = a;
        let End { qp: theirs, host: other, .. } = b;
        if round % 2 == 0 {
            drop((mine, theirs, keys, own));
        } else {
            drop((keys, own, theirs, mine));
        }
        (a, b) = (story.qp(host, |_| {}), story.qp(other, |_| {}));
        story.join(&a, &b, |_, _| {});
        let key = window(&b.pd);
        b.receive(1, 0, 64);
        write(&a, 1, &key);
        send_with_inv(&a, 2, 8, key.rkey());
        story.completes(&a, 1);
        story.completes(&a, 2);
        assert_eq!(story.completes(&b, 1).invalidated, Some(key.rkey()));
    }
    for card in 0..2 {
        for reject in [
            Reject::UnknownQp,
            Reject::WrongQpState,
            Reject::QpHalted,
            Reject::RkeyUnknown,
            Reject::RkeyTag,
            Reject::ResponseUnexpected,
            Reject::PsnOutOfSequence,
            Reject::PsnOutOfSequenceRepeat,
            Reject::Duplicate,
        ] {
            story.allow(card, reject);
        }
    }
    story.no_other_events();
}

#[test]
fn keys_end_once_each_through_loss_duplication_corruption_and_reordering() {
    let mut story = two_cards("keys_end_once_each_through_loss_duplication_corruption_and_reordering");
    let (a, b) = story.connected_as(|_, attr| attr.timeout = 10);
    for round in 0..9u64 {
        let harm = [0.0, 0.03, 0.08][(round % 3) as usize];
        story.wire_harms(Faults {
            loss: harm,
            duplicate: harm,
            corrupt: harm,
            reorder: harm,
            delay: Delay::Time((1 + round) * US),
        });
        let ends = [&a, &b];
        let keys: Vec<Vec<Mr>> = ends.iter().map(|end| (0..6).map(|_| window(&end.pd)).collect()).collect();
        let mut kinds = [[false; 6]; 2];
        for i in 0..6usize {
            for side in 0..2 {
                let (end, other) = (ends[side], &keys[1 - side]);
                end.receive(200 + i as u64, 8192 * (1 + i), 4096);
                kinds[side][i] = story.below(2) == 0;
                let length = story.below(3000) as usize;
                write(end, i as u64, &other[i]);
                send_with_inv(end, 10 + i as u64, length, other[i].rkey());
                if kinds[side][i] {
                    let spare = window(&end.pd);
                    end.qp.post_send(&[SendWr::local_inv(20 + i as u64, spare.lkey()).signaled()]).unwrap();
                    // it lives until the local invalidate is done: the driver does not look at keys
                    std::mem::forget(spare);
                }
            }
        }
        for side in 0..2 {
            let mut sent: Vec<u64> = Vec::new();
            let mut told = Vec::new();
            let count = 18 + kinds[side].iter().filter(|local| **local).count();
            for _ in 0..count {
                let done = story.completion(ends[side]);
                assert_eq!(done.status, WcStatus::Success, "{done:?}");
                match done.invalidated {
                    Some(key) => told.push(key),
                    None => sent.push(done.wr_id),
                }
            }
            let wanted =
                (0..6).flat_map(|i| [Some(i), Some(10 + i), kinds[side][i as usize].then_some(20 + i)]);
            assert_eq!(sent, wanted.flatten().collect::<Vec<u64>>());
            assert_eq!(told, keys[side].iter().map(Mr::rkey).collect::<Vec<_>>());
        }
    }
    for card in 0..2 {
        for reject in Reject::ALL {
            let keys =
                [Reject::RkeyUnknown, Reject::RkeyTag, Reject::RkeyPd, Reject::RkeyRights, Reject::SglKey];
            if !keys.contains(reject) {
                story.allow(card, *reject);
            }
        }
        assert!(story.stage_counter(card, StageCounter::Retransmits) > 5);
    }
    story.no_other_events();
}

/// A card at A, connected to the endpoint at B, whose memory of 64 bytes has the key given.
fn with_peer(name: &str) -> (Story, End, u32, u32) {
    let mut story = card_and_peer(name, 1);
    let host = story.start(0);
    let end = story.qp(host, |_| {});
    let mut room = lock(&story.room);
    let peer = room.peer();
    let qpn = peer.create_qp(1);
    let access = access::LOCAL_WRITE | access::REMOTE_WRITE | access::INVALIDATE;
    let key = peer.register(Region { pd: 1, va: 0x1000, access, bytes: vec![0; 64] });
    let remote = Address { mac: 0x0200_0000_000a, ip: [10, 0, 0, 1].into(), qpn: end.qp.number() };
    peer.connect(qpn, QpParams { rq_psn: end.psn, sq_psn: 77, timeout: 8, ..QpParams::to(remote) })
        .expect("the peer connects");
    drop(room);
    let gid = host::Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 2));
    let attr = host::QpAttr { timeout: 8, retry_cnt: 2, ..usual(gid, qpn, end.psn, 77) };
    end.qp.connect_with(&attr).expect("the card connects");
    (story, end, qpn, key)
}

/// The next completion of the endpoint.
fn of_peer(story: &Story) -> peer::Completion {
    let mut room = lock(&story.room);
    let end = room.now() + 100 * MS;
    while room.now() < end {
        if let Some(done) = room.peer().poll_cq() {
            return done;
        }
        pass(&mut room).expect("time passes");
    }
    panic!("the endpoint gives no completion");
}

#[test]
fn the_card_ends_keys_of_the_endpoint_and_the_endpoint_those_of_the_card() {
    let (mut story, end, qpn, key) = with_peer("the_card_ends_keys_of_the_endpoint_and_the_reverse");
    let landing = peer::Landing::Owned(4096);
    lock(&story.room).peer().post_recv(qpn, peer::RecvWr { wr_id: 5, landing }).unwrap();
    let bytes = story.bytes(2500);
    end.memory.write(0, &bytes).unwrap();
    send_with_inv(&end, 1, 2500, key);
    story.completes(&end, 1);
    let done = of_peer(&story);
    assert_eq!((done.wr_id, done.invalidated, done.data), (5, Some(key), bytes.clone()));
    assert!(!lock(&story.room).peer().is_valid(key));
    // the reverse
    let mine = window(&end.pd);
    end.receive(2, 10_000, 4096);
    let op = SendOp::SendInv { rkey: mine.rkey() };
    lock(&story.room).peer().post_send(qpn, peer::SendWr::new(6, op, bytes.clone())).unwrap();
    let done = story.completes(&end, 2);
    assert_eq!((done.invalidated, done.byte_len), (Some(mine.rkey()), 2500));
    story.memory_matches(&end.memory, 10_000, &bytes);
    assert_eq!(of_peer(&story).wr_id, 6);
    // and once more: it is gone
    end.receive(3, 0, 64);
    lock(&story.room).peer().post_send(qpn, peer::SendWr::new(7, op, vec![1])).unwrap();
    let done = of_peer(&story);
    assert_eq!((done.wr_id, done.status), (7, WcStatus::RemAccessErr));
    assert_eq!(story.completion(&end).status, WcStatus::LocAccessErr);
    story.announce(0, Reject::RkeyUnknown, 1);
    story.no_other_events();
}

#[test]
fn a_peer_that_stops_in_silence_at_a_bad_key_is_given_up_after_the_retries() {
    let (mut story, end, qpn, key) = with_peer("a_peer_that_stops_in_silence_at_a_bad_key_is_given_up");
    let landing = peer::Landing::Owned(64);
    lock(&story.room).peer().post_recv(qpn, peer::RecvWr { wr_id: 5, landing }).unwrap();
    send_with_inv(&end, 1, 8, key ^ 1);
    let done = story.completion(&end);
    assert_eq!((done.wr_id, done.status), (1, WcStatus::RetryExcErr));
    assert_eq!(story.stage_counter(0, StageCounter::TimeoutEvents), 3);
    story.no_other_events();
}
