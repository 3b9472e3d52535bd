//! Reads of host memory: latency, bandwidth, splits, order.

use crate::desk::*;
use pcie_sim::{
    CompletionOrder, CompletionSplit, Time,
    tlp::{AtomicKind, AtomicOp, Attributes, MemRead, Tlp},
};
use proptest::prelude::*;

#[test]
fn a_read_is_answered_after_900_ns_and_its_time_on_the_wire() {
    let mut d = Desk::new(with_link(|l| (l.up_mbps, l.down_mbps) = (64_000, 64_000)), 1);
    d.read(3, BASE + 0x40, 64);
    d.run_until_quiet();
    // Up: 16 header + 8 framing; down: 12 + 8 + 64. 125 ps a byte.
    assert_eq!(d.at(3), Time::ns(900) + Time(24 * 125 + 84 * 125));
    assert_eq!(d.result(3), &Ok(pattern(0x80)[0x40..].to_vec()));
    d.no_violation();
}

#[test]
fn nothing_is_there_one_picosecond_early() {
    let mut d = Desk::new(with_link(|l| (l.up_mbps, l.down_mbps) = (64_000, 64_000)), 1);
    d.read(3, BASE, 4);
    let at = Time::ns(900) + Time(24 * 125 + 24 * 125);
    assert!(d.rc.poll_rc(Time(at.0 - 1)).is_none());
    assert_eq!(d.rc.next_event(), Some(at));
    assert!(d.rc.poll_rc(at).is_some());
    assert!(d.rc.quiet());
}

#[test]
fn splits_at_64_and_128_follow_the_boundary() {
    for (rcb, split, wanted) in [
        (64, CompletionSplit::OneRcb, vec![(61, 128, 0x03), (64, 67, 0x40), (3, 3, 0x00)]),
        (128, CompletionSplit::OneRcb, vec![(125, 128, 0x03), (3, 3, 0x00)]),
        (64, CompletionSplit::Largest(256), vec![(128, 128, 0x03)]),
    ] {
        let mut c = with_link(|l| l.split = split);
        c.enumeration.rcb = rcb;
        let mut d = Desk::new(c, 1);
        d.read(0, BASE + 0x1003, 128);
        d.run_until_quiet();
        let got: Vec<(usize, u16, u8)> = d
            .completions
            .iter()
            .map(|(_, c)| {
                let given = (c.payload.len() - (c.lower_address & 3) as usize).min(c.byte_count as usize);
                (given, c.byte_count, c.lower_address)
            })
            .collect();
        assert_eq!(got, wanted, "boundary {rcb}, {split:?}");
        assert_eq!(d.result(0), &Ok(pattern(0x2000)[0x1003..0x1083].to_vec()));
        d.no_violation();
    }
}

#[test]
fn a_zero_length_read_counts_one_byte_and_has_no_low_address_bits() {
    let mut d = Desk::new(config(), 1);
    d.read(1, BASE + 0x46, 0);
    d.run_until_quiet();
    let c = &d.completions[0].1;
    assert_eq!((c.byte_count, c.lower_address, c.payload.len()), (1, 0x44, 4));
    assert!(d.answered(1));
    d.no_violation();
}

#[test]
fn reads_at_full_rate_fill_the_downlink_to_its_framing() {
    let mut d = Desk::new(
        with_link(|l| {
            (l.up_mbps, l.down_mbps) = (64_000, 64_000);
            l.credits = pcie_sim::Credits::INFINITE;
        }),
        1,
    );
    for tag in 0..64 {
        d.read(tag, BASE + tag as u64 * 4096, 4096);
    }
    d.run_until_quiet();
    let last = d.done.iter().map(|r| r.1).max().unwrap();
    let wire = 64 * 16 * (256 + 20) * 125;
    let first_request = 24 * 125;
    assert_eq!(last, Time::ns(900) + Time(wire + first_request));
    d.no_violation();
}

#[test]
fn in_order_answers_come_in_order_and_shuffled_ones_do_not() {
    let tags = |order, seed| {
        let mut d = Desk::new(with_link(|l| l.order = order), seed);
        for tag in 0..32 {
            d.read(tag, BASE + tag as u64 * 512, 512);
        }
        d.run_until_quiet();
        d.no_violation();
        d.done.iter().map(|r| r.0).collect::<Vec<_>>()
    };
    assert_eq!(tags(CompletionOrder::InOrder, 7), (0..32).collect::<Vec<_>>());
    let shuffled = tags(CompletionOrder::Shuffled(Time::us(2)), 7);
    assert_ne!(shuffled, (0..32).collect::<Vec<_>>());
    assert_eq!(shuffled, tags(CompletionOrder::Shuffled(Time::us(2)), 7), "the same seed, the same order");
    assert_ne!(shuffled, tags(CompletionOrder::Shuffled(Time::us(2)), 8));
}

#[test]
fn completions_of_several_tags_interleave() {
    let mut d = Desk::new(
        with_link(|l| {
            l.order = CompletionOrder::Shuffled(Time::us(1));
            l.split = CompletionSplit::OneRcb;
        }),
        3,
    );
    d.read(1, BASE, 1024);
    d.read(2, BASE + 4096, 1024);
    d.run_until_quiet();
    let tags: Vec<u16> = d.completions.iter().map(|c| c.1.tag).collect();
    let changes = tags.windows(2).filter(|w| w[0] != w[1]).count();
    assert!(changes > 1, "seed 3: {tags:?}");
    d.no_violation();
}

#[test]
fn atomics_return_the_old_value_and_leave_the_new_one() {
    let mut d = Desk::new(config(), 1);
    let mut go = |tag, kind, operands: Vec<u8>, before: &[u8]| {
        d.memory.put(64, before);
        let attr = Attributes::default();
        d.send(Tlp::AtomicOp(AtomicOp { attr, requester: ID, tag, kind, address: BASE + 64, operands }));
        d.run_until_quiet();
        d.no_violation();
        let c = &d.completions.last().unwrap().1;
        assert_eq!((c.tag, c.lower_address, c.byte_count as usize), (tag, 0, before.len()));
        assert_eq!(c.payload, before);
        d.bytes(BASE + 64, before.len())
    };
    let word = |v: u32| v.to_le_bytes().to_vec();
    let long = |v: u64| v.to_le_bytes().to_vec();
    assert_eq!(go(1, AtomicKind::FetchAdd, word(2), &word(u32::MAX)), word(1));
    assert_eq!(go(2, AtomicKind::FetchAdd, long(2), &long(u32::MAX as u64)), long(0x1_0000_0001));
    assert_eq!(go(3, AtomicKind::Swap, long(9), &long(5)), long(9));
    let swap = |compare: u64| [long(compare), long(77)].concat();
    assert_eq!(go(4, AtomicKind::CompareSwap, swap(5), &long(5)), long(77));
    assert_eq!(go(5, AtomicKind::CompareSwap, swap(6), &long(5)), long(5));
    assert_eq!(go(6, AtomicKind::CompareSwap, vec![1; 32], &[1; 16]), vec![1; 16]);
}

#[test]
fn a_root_without_atomics_answers_unsupported_request() {
    let mut c = config();
    c.atomics = false;
    let mut d = Desk::new(c, 1);
    let atomic = AtomicOp {
        attr: Attributes::default(),
        requester: ID,
        tag: 9,
        kind: AtomicKind::Swap,
        address: BASE,
        operands: vec![0; 8],
    };
    d.send(Tlp::AtomicOp(atomic));
    d.run_until_quiet();
    assert_eq!(d.completions[0].1.status, pcie_sim::Status::UnsupportedRequest);
    assert_eq!(d.bytes(BASE, 8), pattern(8));
    d.no_violation();
}

#[test]
fn the_log_has_every_tlp_once_with_its_wire_bytes() {
    let mut d = Desk::new(config(), 1);
    d.rc.set_log(true);
    d.write(BASE, &[1; 64]);
    d.read(5, LOW + 2, 6);
    d.rc.mmio_write(d.now, 0, 8, &[1; 4]);
    d.run_until_quiet();
    let log = d.rc.take_log();
    let lines: Vec<_> = log.iter().map(|r| (r.name, r.address, r.bytes, r.wire_bytes)).collect();
    let wanted =
        [("MWr", BASE, 64, 88), ("MRd", LOW + 2, 6, 20), ("MWr", 0x40_0000_0008, 4, 28), ("Cpl", 2, 6, 28)];
    assert_eq!(lines, wanted);
    let csv = log[3].to_string();
    assert!(csv.contains(",down,CplD,0x2,6,5,SC,rc,6,28,0,"), "{csv}");
    assert_eq!(csv.split(',').count(), pcie_sim::TlpRecord::CSV_HEADER.split(',').count());
    assert!(d.rc.log().is_empty());
}

#[test]
fn a_read_at_the_very_end_of_the_address_space_is_a_fault_and_no_panic() {
    let mut d = Desk::new(config(), 1);
    d.rc.inject(pcie_sim::Injection::new(
        pcie_sim::Select::Address(u64::MAX - 1..u64::MAX),
        pcie_sim::InjectedFault::Late(Time(1)),
    ));
    d.send(Tlp::MemRead(MemRead::bytes(ID, 1, u64::MAX - 3, 4)));
    d.send(Tlp::MemRead(MemRead::bytes(ID, 2, u64::MAX - 4095, 4096)));
    d.write(u64::MAX - 3, &[1; 4]);
    d.run_until_quiet();
    assert_eq!(d.completions.len(), 2);
    assert_eq!(d.events.len(), 3);
    d.no_violation();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn reads_of_any_size_through_any_cut_and_order_return_memory(
        seed in any::<u64>(), rcb in prop::sample::select(vec![64u16, 128]),
        mps in prop::sample::select(vec![128u16, 256, 512]), cut in 0usize..5, window in 0u64..3_000_000,
        wanted in proptest::collection::vec((0u64..MAPPED - 4096, 0usize..=4096), 1..60),
    ) {
        let split = [CompletionSplit::OneRcb, CompletionSplit::Largest(64), CompletionSplit::Largest(128),
            CompletionSplit::Largest(512), CompletionSplit::Random][cut];
        let order = if window < 300_000 { CompletionOrder::InOrder } else { CompletionOrder::Shuffled(Time(window)) };
        let mut c = with_link(|l| {
            l.split = split;
            l.order = order;
            l.write_jitter = Time(window);
            // Every completion may wait: the card polls in bursts.
            (l.completion_headers, l.completion_data) = (60 * 65, 60 * 260);
        });
        c.enumeration.rcb = rcb;
        c.enumeration.max_payload = mps;
        let mut d = Desk::new(c, seed);
        for (tag, &(at, len)) in wanted.iter().enumerate() {
            // A read may not cross 4 KiB, counted in whole DWs.
            let len = len.min((4096 - at % 4096) as usize);
            while !d.rc.can_accept(d.now, pcie_sim::Kind::NonPosted, 0) {
                let next = d.rc.next_event().unwrap();
                d.run_until(next);
            }
            d.read(tag as u16, BASE + at, len);
        }
        d.run_until_quiet();
        d.no_violation();
        prop_assert_eq!((d.done.len(), d.holes), (wanted.len(), 0));
        let memory = pattern(MAPPED as usize);
        for (tag, &(at, len)) in wanted.iter().enumerate() {
            let len = len.min((4096 - at % 4096) as usize);
            let expected = Ok(memory[at as usize..at as usize + len].to_vec());
            prop_assert_eq!(d.result(tag as u16), &expected);
        }
        prop_assert_eq!(d.rc.card_outstanding(), 0);
    }
}
