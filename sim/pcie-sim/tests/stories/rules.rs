//! The judge: every rule from both sides of its limit.

use crate::desk::*;
use pcie_sim::{
    Attributes, Credits, Kind, RawTlp, Status, Time, Tlp, TlpError, Verdict,
    config::Enumeration,
    judge::Side,
    tlp::{AtomicKind, AtomicOp, Completion, ConfigRequest, MemRead, MemWrite},
};

/// Verdicts on the card's TLPs, sent one after another under a configuration.
fn judged(change: impl FnOnce(&mut Enumeration), tlps: impl IntoIterator<Item = RawTlp>) -> Vec<Verdict> {
    let mut c = config();
    c.link.credits = Credits::INFINITE;
    change(&mut c.enumeration);
    let mut d = Desk::new(c, 1);
    // Beyond the grace of the last change.
    d.run_until(Time::us(10));
    for raw in tlps {
        d.rc.card_sends(d.now, raw);
    }
    let found = d.rc.take_violations();
    d.run_until_quiet();
    let later = d.rc.take_violations();
    assert!(later.is_empty(), "the model broke a rule: {later:?}");
    found.into_iter().map(|v| v.verdict).collect()
}

fn plain(tlps: impl IntoIterator<Item = RawTlp>) -> Vec<Verdict> {
    judged(|_| {}, tlps)
}

fn write(address: u64, len: usize) -> RawTlp {
    Tlp::MemWrite(MemWrite::bytes(ID, address, &vec![0; len])).emit()
}

fn read(tag: u16, address: u64, len: usize) -> RawTlp {
    Tlp::MemRead(MemRead::bytes(ID, tag, address, len)).emit()
}

fn atomic(address: u64, operand: usize) -> RawTlp {
    Tlp::AtomicOp(AtomicOp {
        attr: Attributes::default(),
        requester: ID,
        tag: 1,
        kind: AtomicKind::CompareSwap,
        address,
        operands: vec![0; operand * 2],
    })
    .emit()
}

fn with_attr(mut tlp: RawTlp, bits: u32) -> RawTlp {
    tlp.header[0] |= bits;
    tlp
}
const NS: u32 = 1 << 12;
const RO: u32 = 1 << 13;
const IDO: u32 = 1 << 18;

#[test]
fn no_request_crosses_4_kib() {
    assert_eq!(plain([write(BASE + 4096 - 64, 64), read(1, BASE + 4095, 1), read(2, BASE, 4096)]), []);
    let address = BASE + 4096 - 60;
    assert_eq!(plain([write(address, 64)]), [Verdict::Crosses4K { address, bytes: 64 }]);
    let address = BASE + 4096 - 4;
    assert_eq!(plain([read(1, address + 3, 2)]), [Verdict::Crosses4K { address, bytes: 8 }]);
}

#[test]
fn payload_is_at_most_max_payload_size() {
    assert_eq!(plain([write(BASE, 256)]), []);
    assert_eq!(plain([write(BASE, 257)]), [Verdict::PayloadSize { bytes: 260, limit: 256 }]);
    assert_eq!(judged(|e| e.max_payload = 512, [write(BASE, 512)]), []);
    assert_eq!(
        judged(|e| e.max_payload = 128, [write(BASE, 132)]),
        [Verdict::PayloadSize { bytes: 132, limit: 128 }]
    );
}

#[test]
fn reads_are_at_most_max_read_request_size() {
    assert_eq!(judged(|e| e.max_read = 512, [read(1, BASE, 512)]), []);
    assert_eq!(
        judged(|e| e.max_read = 512, [read(1, BASE + 1, 512)]),
        [Verdict::ReadSize { bytes: 516, limit: 512 }]
    );
}

#[test]
fn byte_enables_follow_the_length() {
    let enables = |address: u64, dwords: u16, first_be: u8, last_be: u8| {
        let attr = Attributes::default();
        let raw = MemRead { attr, requester: ID, tag: 1, address, dwords, first_be, last_be };
        plain([Tlp::MemRead(raw).emit()]).len()
    };
    for (dwords, first, last, broken) in [
        (1, 0b0000, 0b0000, 0),
        (1, 0b1001, 0b0000, 0),
        (1, 0b1111, 0b0001, 1),
        (2, 0b0000, 0b1111, 1),
        (2, 0b1111, 0b0000, 1),
        (2, 0b1010, 0b0101, 0),
        (3, 0b1010, 0b1111, 1),
        (3, 0b1000, 0b0001, 0),
        (3, 0b1111, 0b1110, 1),
        (3, 0b0111, 0b1111, 1),
    ] {
        assert_eq!(enables(BASE, dwords, first, last), broken, "{dwords} DW {first:#06b} {last:#06b}");
    }
    assert_eq!(enables(BASE + 4, 2, 0b1010, 0b0101), 1, "holes in two DWs need an aligned QW");
    assert_eq!(enables(BASE + 4, 2, 0b1100, 0b0011), 0);
}

#[test]
fn the_header_has_three_dwords_below_4_gib_and_four_above() {
    assert_eq!(plain([write(LOW, 4), write(BASE, 4)]), []);
    let mut wide = write(LOW, 4);
    wide.header = [wide.header[0] | 1 << 29, wide.header[1], 0, LOW as u32];
    assert_eq!(plain([wide]), [Verdict::WideHeader { address: LOW }]);
}

#[test]
fn a_read_with_a_wide_header_below_4_gib_is_answered_unsupported() {
    let mut d = Desk::new(config(), 1);
    let mut wide = read(1, LOW, 4);
    wide.header = [wide.header[0] | 1 << 29, wide.header[1], 0, LOW as u32];
    d.rc.card_sends(d.now, wide);
    d.run_until_quiet();
    assert_eq!(d.completions[0].1.status, Status::UnsupportedRequest);
}

#[test]
fn reserved_bits_are_zero() {
    for bit in [16, 17] {
        let found = plain([with_attr(write(BASE, 4), 1 << bit)]);
        assert!(matches!(found[..], [Verdict::ReservedBits { .. }]), "bit {bit}: {found:?}");
    }
    let mut low = write(LOW, 4);
    low.header[3] = 1;
    assert!(matches!(plain([low])[..], [Verdict::ReservedBits { .. }]));
}

#[test]
fn what_has_no_meaning_is_malformed() {
    let mut short = write(BASE, 8);
    short.payload.truncate(4);
    assert_eq!(plain([short]), [Verdict::Malformed(TlpError::PayloadLength { expected: 8, found: 4 })]);
    assert_eq!(plain([with_attr(write(BASE, 4), 1 << 15)]), [Verdict::Malformed(TlpError::Digest)]);
}

#[test]
fn a_tag_is_unique_among_outstanding_requests() {
    assert_eq!(plain([read(1, BASE, 4), read(2, BASE, 4)]), []);
    assert_eq!(plain([read(1, BASE, 4), read(1, BASE, 4)]), [Verdict::TagInUse { tag: 1 }]);
    assert_eq!(plain([read(1, BASE, 4), atomic(BASE, 4)]), [Verdict::TagInUse { tag: 1 }]);
}

#[test]
fn tags_are_as_wide_as_enabled() {
    assert_eq!(plain([read(255, BASE, 4)]), []);
    assert_eq!(plain([read(256, BASE, 4)]), [Verdict::TagWidth { tag: 256, limit: 256 }]);
    assert_eq!(judged(|e| e.extended_tag = false, [read(31, BASE, 4)]), []);
    assert_eq!(
        judged(|e| e.extended_tag = false, [read(32, BASE, 4)]),
        [Verdict::TagWidth { tag: 32, limit: 32 }]
    );
}

#[test]
fn nothing_is_sent_without_bus_master_enable() {
    assert_eq!(judged(|e| e.bus_master = false, [write(BASE, 4)]), [Verdict::BusMasterOff]);
    assert_eq!(judged(|e| e.bus_master = false, [read(1, BASE, 4)]), [Verdict::BusMasterOff]);
}

#[test]
fn bus_master_may_be_cleared_under_a_write_that_was_on_its_way() {
    let mut d = Desk::new(config(), 1);
    d.now = Time::us(10);
    d.rc.config_write(d.now, 4, &[2, 0]);
    d.now = Time(Time::us(10).0 + Time::ns(500).0 - 1);
    d.write(BASE, &[1]);
    d.no_violation();
    d.now = Time::us(10) + Time::ns(500);
    d.write(BASE, &[2]);
    assert_eq!(d.rc.take_violations()[0].verdict, Verdict::BusMasterOff);
    d.run_until_quiet();
    assert_eq!(d.bytes(BASE, 1), [1], "the forbidden write is not carried out");
}

#[test]
fn a_change_soon_after_another_does_not_end_the_grace_of_the_first() {
    let mut d = Desk::new(config(), 1);
    d.now = Time::us(10);
    d.rc.config_write(d.now, 4, &[2, 0]);
    d.now = d.now + Time::ns(400);
    d.rc.config_write(d.now, 4, &[0, 0]);
    d.now = Time(Time::us(10).0 + Time::ns(500).0 - 1);
    d.write(BASE, &[1]);
    d.no_violation();
    d.now = Time::us(10) + Time::ns(500);
    d.write(BASE, &[2]);
    assert_eq!(d.rc.take_violations()[0].verdict, Verdict::BusMasterOff, "nor does it begin again");
}

#[test]
fn ordering_attributes_need_their_enables() {
    assert_eq!(plain([with_attr(write(BASE, 4), RO | NS)]), []);
    assert_eq!(plain([with_attr(write(BASE, 4), IDO)]), [Verdict::IdOrderingOff]);
    let mut d = Desk::new(config(), 1);
    // DEVCTL without RO and NS enables; the other fields stay.
    d.rc.config_write(d.now, 0x68, &[0x20, 0x51]);
    d.now = Time::us(1);
    d.rc.card_sends(d.now, with_attr(write(BASE, 4), RO));
    d.rc.card_sends(d.now, with_attr(read(1, BASE, 4), NS));
    let found: Vec<Verdict> = d.rc.take_violations().into_iter().map(|v| v.verdict).collect();
    assert_eq!(found, [Verdict::RelaxedOff, Verdict::NoSnoopOff]);
}

#[test]
fn the_requester_is_the_captured_one() {
    let mut foreign = write(BASE, 4);
    foreign.header[1] ^= 1 << 16;
    assert_eq!(plain([foreign]), [Verdict::WrongId { found: ID ^ 1, expected: ID }]);
}

#[test]
fn atomics_are_enabled_and_aligned_to_the_operand() {
    assert_eq!(plain([atomic(BASE + 8, 8)]), []);
    assert_eq!(plain([atomic(BASE + 4, 4)]), []);
    let address = BASE + 4;
    assert_eq!(plain([atomic(address, 8)]), [Verdict::AtomicAlignment { address, operand: 8 }]);
    assert_eq!(judged(|e| e.atomics = false, [atomic(BASE, 8)]), [Verdict::AtomicsOff]);
}

#[test]
fn an_endpoint_sends_no_configuration_request() {
    let request = ConfigRequest {
        attr: Attributes::default(),
        requester: ID,
        tag: 0,
        target: 0,
        offset: 0,
        first_be: 15,
        type1: false,
        write: None,
    };
    assert_eq!(plain([Tlp::Config(request).emit()]), [Verdict::NotForEndpoints]);
}

#[test]
fn interrupts_are_one_strong_dword_while_enabled_and_unmasked() {
    let address = 0xfee0_1000;
    let with = |control: u8, tlp: RawTlp| {
        let mut d = Desk::new(config(), 1);
        d.rc.config_write(d.now, 0xa3, &[control]);
        d.now = Time::us(1);
        d.rc.card_sends(d.now, tlp);
        d.run_until_quiet();
        let verdicts: Vec<Verdict> = d.rc.take_violations().into_iter().map(|v| v.verdict).collect();
        (verdicts, d.events.len())
    };
    let good = || write(address, 4);
    assert_eq!(with(0x80, good()), (vec![], 1));
    let state = "disabled";
    assert_eq!(with(0x00, good()).0, [Verdict::InterruptOff { address, state }]);
    let state = "masked";
    assert_eq!(with(0xc0, good()).0, [Verdict::InterruptOff { address, state }]);
    assert_eq!(with(0x80, with_attr(good(), RO)).0, [Verdict::InterruptOrder { address }]);
    assert_eq!(with(0x80, with_attr(good(), NS)).0, [Verdict::InterruptOrder { address }]);
    assert_eq!(with(0x80, write(address, 8)), (vec![Verdict::InterruptShape { address }], 0));
    assert_eq!(with(0x80, write(address, 3)), (vec![Verdict::InterruptShape { address }], 0));
    assert_eq!(with(0x80, write(0xfef0_0000 - 4, 4)), (vec![], 1));
    let outside = with(0x80, write(0xfef0_0000, 4));
    assert_eq!(outside, (vec![], 1), "just behind the window: an IOMMU fault");
}

#[test]
fn a_request_without_a_credit_is_judged() {
    let mut c = config();
    c.link.credits = Credits { ph: 1, pd: 1, nph: 1, npd: 1 };
    let mut d = Desk::new(c, 1);
    d.write(BASE, &[0; 16]);
    d.read(1, BASE, 4);
    d.no_violation();
    d.write(BASE, &[0; 16]);
    d.read(2, BASE, 4);
    let found: Vec<Verdict> = d.rc.take_violations().into_iter().map(|v| v.verdict).collect();
    assert_eq!(
        found,
        [Verdict::NoCredit { kind: Kind::Posted }, Verdict::NoCredit { kind: Kind::NonPosted }]
    );
}

/// The card answers a host read of 256 bytes at offset 0x40 with these completions.
fn answers(change: impl Fn(&MemRead, Completion) -> Vec<Completion>) -> (Vec<Verdict>, Option<bool>) {
    let mut d = Desk::new(config(), 1);
    let token = d.rc.mmio_read(d.now, 0, 0x40, 192);
    d.run_until(Time::us(1));
    let Ok(Tlp::MemRead(r)) = Tlp::parse(&d.requests[0].1.tlp) else { panic!("no read") };
    for completion in change(&r, answer(&r, |a| a as u8)) {
        d.send(Tlp::Completion(completion));
    }
    d.run_until(Time::us(5));
    let result = d.rc.take_read(token).map(|r| r.is_ok());
    (
        d.rc.take_violations()
            .into_iter()
            .map(|v| {
                assert_eq!(v.side, Side::Card);
                v.verdict
            })
            .collect(),
        result,
    )
}

/// Cuts the first `n` bytes off.
fn cut(c: &Completion, n: usize) -> Vec<Completion> {
    let first = Completion { payload: c.payload[..n].to_vec(), ..c.clone() };
    let second = Completion {
        payload: c.payload[n..].to_vec(),
        byte_count: c.byte_count - n as u16,
        lower_address: ((c.lower_address as usize + n) & 0x7f) as u8,
        ..c.clone()
    };
    vec![first, second]
}

#[test]
fn completions_of_the_card_match_their_request() {
    let tag = |c: &Completion| c.tag;
    assert_eq!(answers(|_, c| vec![c]), (vec![], Some(true)));
    assert_eq!(answers(|_, c| cut(&c, 64)), (vec![], Some(true)), "a cut at 128");
    let (found, done) = answers(|_, c| cut(&c, 128));
    assert!(matches!(found[..], [Verdict::Boundary { rcb: 128, .. }]), "{found:?}");
    assert_eq!(done, Some(true));

    let (found, _) = answers(|_, c| vec![c.clone(), c]);
    assert!(matches!(found[..], [Verdict::UnexpectedCompletion { .. }]), "{found:?}");
    let (found, done) = answers(|_, c| vec![Completion { tag: tag(&c) + 1, ..c }]);
    assert!(matches!(found[..], [Verdict::UnexpectedCompletion { .. }]), "{found:?}");
    assert_eq!(done, None);
    let (found, done) = answers(|_, c| vec![Completion { byte_count: 191, ..c }]);
    assert!(matches!(found[..], [Verdict::ByteCount { found: 191, expected: 192, .. }]), "{found:?}");
    assert_eq!(done, Some(false));
    let (found, _) = answers(|_, c| vec![Completion { lower_address: 0x44, ..c }]);
    assert!(matches!(found[..], [Verdict::LowerAddress { found: 0x44, expected: 0x40, .. }]), "{found:?}");
    let (found, _) = answers(|_, c| vec![Completion { payload: vec![0; 196], ..c }]);
    assert!(matches!(found[..], [Verdict::DataLength { found: 49, expected: 48, .. }]), "{found:?}");
    let (found, _) = answers(|_, c| vec![Completion { payload: vec![], ..c }]);
    assert!(matches!(found[..], [Verdict::StatusAndData { bytes: 0, .. }]), "{found:?}");
    let abort = Status::CompleterAbort;
    let (found, done) = answers(|_, c| vec![Completion { status: abort, ..c }]);
    assert!(matches!(found[..], [Verdict::StatusAndData { bytes: 192, .. }]), "{found:?}");
    assert_eq!(done, Some(false));
    let refuse = |status| move |_: &MemRead, c| vec![Completion { status, payload: vec![], ..c }];
    assert_eq!(answers(refuse(abort)), (vec![], Some(false)));
    let (found, _) = answers(refuse(Status::ConfigRetry));
    assert!(matches!(found[..], [Verdict::RetryOfMemory { .. }]), "{found:?}");
    let attr = Attributes { traffic_class: 1, ..Default::default() };
    assert!(matches!(answers(|_, c| vec![Completion { attr, ..c }]).0[..], [Verdict::NotCopied { .. }]));
    let (found, _) = answers(|_, c| vec![Completion { requester: 9, ..c }]);
    assert!(matches!(found[..], [Verdict::NotCopied { .. }]));
    let (found, _) = answers(|_, c| vec![Completion { completer: 9, ..c }]);
    assert_eq!(found, [Verdict::WrongId { found: 9, expected: ID }]);
}

#[test]
fn a_verdict_says_what_and_what_instead() {
    let mut d = Desk::new(config(), 1);
    d.now = Time::ns(5);
    d.read(300, BASE, 4);
    let text = d.rc.violations()[0].to_string();
    assert!(text.contains("5.000 ns") && text.contains("tag 300") && text.contains("stay below"), "{text}");
}
