//! Ordinary Ethernet beside RDMA: cards that know nobody find each other, answer pings, and go on under storms.
//!
//! ```text
//! host 0: Ip, RC QP ─ card 0 ══ wire ══ card 1 ─ Ip, RC QP: host 1         (frames of strangers enter the wire at B)
//! ```
//! Each host polls its stack once per microsecond, as a thread would. The captures are judged by tshark.
//!
//! Requirements: RAW

use contract::{Reject, StageCounter};
use host::{Gid, Ip, IpNet, Mac, Options, SendWr, StaticNeighbours};
use sim::{
    backend::{lock, pass},
    room::RoomConfig,
    story::{A, B, End, MS, Story, US, seed},
    wire::Side,
};
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes between Ethernet header and FCS: a ping of 8000 bytes fits.
const MTU: u16 = 8177;

fn mac(card: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, 0xa + card as u8])
}

/// The IPv4 and the IPv6 address of a card.
fn of(card: usize) -> [IpAddr; 2] {
    [format!("10.0.0.{}", card + 1), format!("fd00::{}", card + 1)]
        .map(|text| text.parse().expect("an address"))
}

/// A host that knows its own addresses and no neighbour, with its stack.
fn stranger(story: &mut Story, card: usize) -> (End, Arc<Ip>) {
    let [ipv4, ipv6] = of(card);
    let options = Options {
        neighbours: Arc::new(StaticNeighbours(vec![])),
        gid: Some(ipv4.into()),
        further: vec![Gid::from(ipv6).into()],
        ..Options::default()
    };
    let host = story.start_as(card, &options);
    let ip = Ip::start(&host.context, &of(card).map(IpNet::from)).expect("the stack starts");
    (story.qp(host, |_| {}), ip)
}

fn room(seed: u64) -> RoomConfig {
    let mut config = RoomConfig::example(2, seed);
    config.cards.iter_mut().for_each(|card| card.mtu = MTU);
    config
}

/// A microsecond passes, then both hosts look what came; until `done`, for a millisecond at most.
fn until(story: &mut Story, ips: &[&Ip], mut done: impl FnMut() -> bool) -> bool {
    let end = story.now() + MS;
    loop {
        ips.iter().for_each(|ip| ip.poll().expect("the stack works"));
        if done() {
            return true;
        }
        if story.now() >= end {
            return false;
        }
        pass(&mut lock(&story.room)).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// How many of twenty pings were answered with every byte.
fn pings(story: &mut Story, ips: [&Ip; 2], target: IpAddr, bytes: usize) -> usize {
    (0..20)
        .filter(|n| {
            ips[0].ping(target, bytes, *n).expect("it fits a frame");
            until(story, &ips, || ips[0].pinged(target, bytes, *n))
        })
        .count()
}

/// Frames of a side so far, without their FCS.
fn frames(story: &Story, from: Side) -> Vec<Vec<u8>> {
    let room = lock(&story.room);
    let of = room.sights().iter().filter(|sight| sight.from == from);
    of.map(|sight| sight.frame.bytes[..sight.frame.bytes.len() - 4].to_vec()).collect()
}

fn inject(story: &Story, frame: &[u8]) {
    lock(&story.room).inject(B, frame).unwrap_or_else(|error| panic!("{error}"));
}

/// An ARP request by a stranger at 02::77, 10.0.0.119, written by hand.
fn arp(to: [u8; 6], target: [u8; 4]) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend([2, 0, 0, 0, 0, 0x77, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0x77, 10, 0, 0, 119]);
    frame.extend([0; 6]);
    frame.extend(target);
    frame.resize(60, 0);
    frame
}

#[test]
fn cards_that_know_nobody_find_each_other_and_answer_every_ping() {
    let mut story = Story::begin("two strangers", room(seed()), None);
    let (a, ip_a) = stranger(&mut story, 0);
    let (b, ip_b) = stranger(&mut story, 1);
    let ips = [&*ip_a, &*ip_b];
    let nobody: Gid = "10.0.0.77".parse::<IpAddr>().expect("an address").into();
    for target in of(1) {
        let gid = target.into();
        assert_eq!(ip_a.knows(gid), None);
        ip_a.ask(gid).expect("a question");
        assert!(until(&mut story, &ips, || ip_a.knows(gid).is_some()), "{target}");
        assert_eq!(ip_a.knows(gid), Some(mac(1)));
    }
    ip_b.ask(of(0)[0].into()).expect("a question");
    assert!(until(&mut story, &ips, || ip_b.knows(of(0)[0].into()).is_some()));
    // nobody answers for who is not there
    ip_a.ask(nobody).expect("a question");
    assert!(!until(&mut story, &ips, || ip_a.knows(nobody).is_some()));
    assert!(
        ip_a.ask("192.168.0.1".parse::<IpAddr>().expect("an address").into()).is_err(),
        "not on the link"
    );
    // RDMA goes where ARP said
    story.join(&a, &b, |_, _| {});
    let bytes = story.bytes(5000);
    a.memory.write(0, &bytes).expect("inside");
    a.write(1, 0, 5000, &b.memory, 7);
    story.completes(&a, 1);
    story.memory_matches(&b.memory, 7, &bytes);
    for (from, to) in [(ips, 1), ([ips[1], ips[0]], 0)] {
        for target in of(to) {
            for bytes in [56, 8000, 0, 1] {
                assert_eq!(pings(&mut story, from, target, bytes), 20, "{bytes} bytes to {target}");
            }
        }
    }
    assert!(ip_a.ping(of(1)[0], 8150, 1).is_err(), "longer than a frame");
    // a stranger's question, answered byte for byte; of its 60 bytes 18 are padding
    inject(&story, &arp([0xff; 6], [10, 0, 0, 1]));
    until(&mut story, &ips, || false);
    let mut want = vec![2, 0, 0, 0, 0, 0x77, 2, 0, 0, 0, 0, 0xa, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2];
    want.extend([2, 0, 0, 0, 0, 0xa, 10, 0, 0, 1, 2, 0, 0, 0, 0, 0x77, 10, 0, 0, 119]);
    want.resize(60, 0);
    assert_eq!(frames(&story, A).last(), Some(&want));
    // which is not for card 1
    story.announce(1, Reject::WrongDestinationMac, 1);
    story.no_other_events();
}

#[test]
fn a_resolver_tells_whom_nobody_answered_for_and_what_to_do() {
    let mut story = Story::begin("nobody answers", room(seed()), None);
    let (a, ip) = stranger(&mut story, 0);
    let nobody: Gid = "10.0.0.77".parse::<IpAddr>().expect("an address").into();
    let before = a.context.now();
    let error = ip.mac_of(nobody).expect_err("nobody is there").to_string();
    assert!(
        error.contains("10.0.0.77") && error.contains("nobody answered 4 questions in 2000 ms"),
        "{error}"
    );
    assert_eq!((a.context.now() - before).as_millis() / 100, 20);
    assert_eq!(frames(&story, A).len(), 4);
    // as does the connection that needs it
    let attr = sim::story::usual(nobody, 2, 0, 0);
    let error = a.qp.connect_with(&attr).expect_err("nobody is there").to_string();
    assert!(error.contains("nobody answered"), "{error}");
    drop(ip);
    let error =
        a.qp.modify(&host::QpAttr { state: host::QpState::Rtr, ..attr }, rtr())
            .expect_err("no stack")
            .to_string();
    assert!(error.contains("no MAC address known"), "{error}");
    // card 1, whose driver never started, heard every question
    story.announce(1, Reject::WrongDestinationMac, 8);
    story.no_other_events();
}

/// What INIT to RTR needs.
fn rtr() -> host::AttrMask {
    let needs =
        host::qp::attributes::transition(host::Transport::Rc, host::QpState::Init, host::QpState::Rtr);
    needs.expect("a transition").0 | host::AttrMask::STATE
}

#[test]
fn frames_of_strangers_are_answered_by_silence_and_a_name() {
    let mut story = Story::unrecorded("strangers", room(seed()));
    lock(&story.room).remember_frames();
    let (_a, ip_a) = stranger(&mut story, 0);
    let here = [2, 0, 0, 0, 0, 0xa];
    let mut broken = arp(here, [10, 0, 0, 1]);
    broken[18] = 9;
    let echo = |checksum: u8| {
        let mut frame = [&here[..], &[2, 0, 0, 0, 0, 0x77, 8, 0]].concat();
        frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0x66, 0x6a, 10, 0, 0, 119, 10, 0, 0, 1]);
        frame.extend([8, 0, 0xf7, checksum, 0, 0, 0, 0]);
        frame.resize(60, 0);
        frame
    };
    let silent = [
        ("a question for somebody else", arp([0xff; 6], [10, 0, 0, 9])),
        ("a question to somebody else", arp([2, 0, 0, 0, 0, 0x99], [10, 0, 0, 1])),
        ("a group of IPv4", arp([1, 0, 0x5e, 0, 0, 1], [10, 0, 0, 1])),
        ("ARP of other lengths", broken),
        ("a ping with a wrong checksum", echo(0xfe)),
        ("an EtherType that nobody has", [&here[..], &[2, 0, 0, 0, 0, 0x77, 0x88, 0xb5], &[9; 50]].concat()),
        ("IPv6 of nothing", [&here[..], &[2, 0, 0, 0, 0, 0x77, 0x86, 0xdd], &[0; 46]].concat()),
        ("nothing behind IPv4", [&here[..], &[2, 0, 0, 0, 0, 0x77, 8, 0], &[0x45; 46]].concat()),
    ];
    for (what, frame) in &silent {
        inject(&story, frame);
        assert!(!until(&mut story, &[&ip_a], || false));
        assert_eq!(frames(&story, A).len(), 0, "{what}");
    }
    // the same ping with the right one: the stranger's MAC address is not known yet, so he is asked for, then answered
    inject(&story, &echo(0xff));
    until(&mut story, &[&ip_a], || false);
    assert!(!frames(&story, A).is_empty(), "the card still answers");
    story.announce(0, Reject::WrongDestinationMac, 2);
    // without a stack nobody takes any of it
    drop(ip_a);
    inject(&story, &arp([0xff; 6], [10, 0, 0, 1]));
    inject(&story, &arp(here, [10, 0, 0, 1]));
    until(&mut story, &[], || false);
    story.announce(0, Reject::WrongDestinationMac, 3);
    story.announce(0, Reject::NotRoce, 1);
    // those of card 1, whose driver never started
    story.allow(1, Reject::WrongDestinationMac);
    story.allow(1, Reject::NotRoce);
    story.no_other_events();
}

/// WRITEs of 64 KiB from card 0 to card 1 for `span` ps, sixteen outstanding, while a stranger at `storm.0` sends an ARP
/// request to all every `storm.1` ps; bits per second of what arrived whole.
fn works(story: &mut Story, a: &End, b: &End, ips: &[&Ip], storm: Option<(Side, u64)>, span: u64) -> f64 {
    const SIZE: usize = 1 << 16;
    let bytes = story.bytes(SIZE);
    a.memory.write(0, &bytes).expect("inside");
    let sge = [a.memory.sge(0..SIZE).expect("inside")];
    let post = |n: u64| {
        let at = b.memory.addr() + (1 + n % 15) * SIZE as u64;
        a.qp.post_send(&[SendWr::write(n, &sge, at, b.memory.rkey()).signaled()]).expect("room");
    };
    (0..16).for_each(post);
    let (start, mut posted, mut done) = (story.now(), 16, 0);
    let mut next = start;
    let mut entries = [host::Completion::default(); 16];
    while story.now() < start + span {
        if let Some((side, every)) = storm {
            let mut room = lock(&story.room);
            let pause = room.now() + US;
            while next < pause {
                let at = next.max(room.now());
                room.run_to(at).unwrap_or_else(|error| panic!("{error}"));
                // one in sixteen asks for somebody who is there
                let target = [10, 0, 0, if next / every % 16 == 0 { 1 + (side == A) as u8 } else { 99 }];
                room.inject(side, &arp([0xff; 6], target)).unwrap_or_else(|error| panic!("{error}"));
                next += every;
            }
            room.attend();
        } else {
            pass(&mut lock(&story.room)).unwrap_or_else(|error| panic!("{error}"));
        }
        ips.iter().for_each(|ip| ip.poll().expect("the stack works"));
        for _ in 0..a.cq.poll(&mut entries).expect("the CQ works") {
            done += 1;
            post(posted);
            posted += 1;
        }
        assert!(entries.iter().all(|entry| entry.status == host::WcStatus::Success), "{entries:?}");
    }
    let rate = done as f64 * SIZE as f64 * 8.0 / (story.now() - start) as f64 * 1e12;
    for _ in done..posted {
        assert_eq!(story.completion(a).status, host::WcStatus::Success);
    }
    for n in 1..16 {
        story.memory_matches(&b.memory, n * SIZE, &bytes);
    }
    rate
}

#[test]
fn a_storm_of_arp_at_line_rate_leaves_rdma_its_bytes_and_half_of_its_goodput() {
    let mut config = room(seed());
    let rate = if sim::story::config().data_bytes == 8 { 10_000_000_000 } else { 100_000_000_000 };
    config.wire.rate = Some(rate);
    let mut story = Story::unrecorded("arp storm", config);
    let (a, ip_a) = stranger(&mut story, 0);
    let (b, ip_b) = stranger(&mut story, 1);
    for (ip, other) in [(&ip_a, 1), (&ip_b, 0)] {
        ip.ask(of(other)[0].into()).expect("a question");
        let known = until(&mut story, &[&ip_a, &ip_b], || ip.knows(of(other)[0].into()).is_some());
        assert!(known, "card {other}");
    }
    story.join(&a, &b, |_, attr| attr.path_mtu = host::PathMtu::Mtu4096);
    let ips = [&*ip_a, &*ip_b];
    // 84 bytes of line each
    let every = 84 * 8 * 1_000_000_000_000 / rate;
    let span = 300 * US;
    let alone = works(&mut story, &a, &b, &ips, None, span);
    // against the ACKs, the whole line; beside the data, two fifths of it
    let against = works(&mut story, &a, &b, &ips, Some((B, every)), span);
    let beside = works(&mut story, &a, &b, &ips, Some((A, every * 5 / 2)), span);
    let counts = |story: &mut Story, card| {
        let frames = story.stage_counter(card, StageCounter::RxFrames);
        let dropped = [Reject::RawNoReceive, Reject::MissQueueFull, Reject::BufferFull];
        (frames, dropped.map(|reject| story.reject_counter(card, reject)))
    };
    let (at_a, at_b) = (counts(&mut story, 0), counts(&mut story, 1));
    println!(
        "goodput {:.2} Gb/s alone, {:.2} with the storm against its ACKs, {:.2} with two fifths beside it; \
         frames received, and of them without a receive, a place, room: {at_a:?}, {at_b:?}",
        alone / 1e9,
        against / 1e9,
        beside / 1e9
    );
    assert!(against * 2.0 >= alone && beside * 2.0 >= alone, "less than half is left");
    assert!(at_a.0 > span / every, "the storm came: {at_a:?}");
    // the cards are usable, and so they are when a stack ends in the midst of it and another begins
    for n in 0..2 {
        assert_eq!(pings(&mut story, ips, of(1)[n], 8000), 20);
    }
    drop(ip_a);
    works(&mut story, &a, &b, &[&ip_b], Some((B, every)), 30 * US);
    let ip_a = Ip::start(&a.context, &of(0).map(IpNet::from)).expect("another stack");
    works(&mut story, &a, &b, &[&ip_a, &ip_b], Some((B, every)), 30 * US);
    assert_eq!(pings(&mut story, [&ip_a, &ip_b], of(1)[0], 56), 20);
    for card in 0..2 {
        for reject in
            [Reject::RawNoReceive, Reject::MissQueueFull, Reject::BufferFull, Reject::WrongDestinationMac]
        {
            story.allow(card, reject);
        }
    }
    // no request of RoCE was lost
    story.no_other_events();
}

#[test]
fn a_function_level_reset_ends_in_the_midst_of_a_storm_and_the_card_works_after_it() {
    let mut config = room(seed());
    config.wire.rate = Some(10_000_000_000);
    let mut story = Story::unrecorded("reset in a storm", config);
    let every = 84 * 8 * 100;
    let (start, took) = {
        let mut room = lock(&story.room);
        let start = room.now();
        room.start_reset(0);
        while room.is_resetting(0) && room.now() < start + MS {
            let next = room.now() + every;
            room.run_to(next).unwrap_or_else(|error| panic!("{error}"));
            room.inject(B, &arp([0xff; 6], [10, 0, 0, 99])).unwrap_or_else(|error| panic!("{error}"));
            room.attend();
        }
        (start, room.now() - start)
    };
    println!("{start} ps and then {} us in reset", took / US);
    // alone it is quiet after 20 us; 65,536 clocks are 262 us
    assert!((100 * US..270 * US).contains(&took), "{took} ps");
    lock(&story.room).host(0, |root, now| root.enumerate(now, &pcie_sim::config::Enumeration::default()));
    let (_a, ip_a) = stranger(&mut story, 0);
    let (_b, ip_b) = stranger(&mut story, 1);
    assert_eq!(pings(&mut story, [&ip_a, &ip_b], of(1)[0], 56), 20);
    for card in 0..2 {
        story.allow(card, Reject::WrongDestinationMac);
        story.allow(card, Reject::NotRoce);
    }
}
