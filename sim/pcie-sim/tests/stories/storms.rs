//! Storms: anything at any time from both sides. Nothing panics, nothing hangs, the same seed gives the same story.

use crate::desk::*;
use pcie_sim::{
    Backing, CompletionOrder, CompletionSplit, Event, InjectedFault, Injection, Kind, Permissions, Piece,
    RawTlp, Select, Status, Time, TlpRecord,
    config::Enumeration,
    memory::{Access, Fault},
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Raw([u32; 4], Vec<u8>),
    Read(u16, u64, usize),
    Write(u64, usize),
    Mmio(u8, u64, usize, bool),
    Config(usize, Vec<u8>),
    Answer,
    Inject(u8, u64),
    Link(bool),
    ResetDone,
    Enumerate(bool),
    Wait(u64),
    Hold(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = |n| proptest::collection::vec(any::<u8>(), 0..n);
    let address = prop_oneof![BASE..BASE + MAPPED, LOW..LOW + MAPPED, Just(0xfee0_0000), any::<u64>()];
    let kinds =
        prop::sample::select(vec![0u32, 0x20, 0x40, 0x60, 0x0a, 0x4a, 0x4c, 0x6d, 0x4e, 0x04, 0x44, 0x30]);
    prop_oneof![
        2 => (any::<[u32; 4]>(), kinds, bytes(12), any::<bool>()).prop_map(|(mut h, kind, payload, tame)| {
            if tame {
                // Well formed up to its fields; completions often name a real tag.
                h[0] = kind << 24 | h[0] & 0x7000 | (payload.len() as u32 / 4).max(1);
                h[2] &= !0xe000;
            }
            Step::Raw(h, payload)
        }),
        4 => (0u16..300, address.clone(), 0usize..4096).prop_map(|(t, a, n)| Step::Read(t, a, n)),
        4 => (address, 0usize..600).prop_map(|(a, n)| Step::Write(a, n)),
        4 => (0u8..6, 0u64..0x5_0000, 0usize..1000, any::<bool>())
            .prop_map(|(bar, at, n, write)| Step::Mmio(bar & 6, at, n, write)),
        1 => (0usize..4100, bytes(9)).prop_map(|(at, b)| Step::Config(at, b)),
        1 => (0usize..0xc0, bytes(9)).prop_map(|(at, b)| Step::Config(at, b)),
        3 => Just(Step::Answer),
        1 => (any::<u8>(), any::<u64>()).prop_map(|(k, a)| Step::Inject(k, a)),
        1 => any::<bool>().prop_map(Step::Link),
        1 => Just(Step::ResetDone),
        1 => any::<bool>().prop_map(Step::Enumerate),
        4 => (0u64..5_000_000).prop_map(Step::Wait),
        1 => (0u64..2_000_000).prop_map(Step::Hold),
    ]
}

fn play(seed: u64, steps: &[Step]) -> (Desk, Vec<TlpRecord>) {
    let mut d = Desk::new(
        with_link(|l| {
            l.split = CompletionSplit::Random;
            l.order = CompletionOrder::Shuffled(Time::us(1));
            l.write_jitter = Time::ns(300);
            (l.completion_headers, l.completion_data) = (16, 200);
        }),
        seed,
    );
    d.rc.set_log(true);
    for step in steps {
        match step.clone() {
            Step::Raw(header, payload) => d.rc.card_sends(d.now, RawTlp { header, payload }),
            Step::Read(tag, at, n) => {
                d.rc.can_accept(d.now, Kind::NonPosted, 0);
                d.read(tag, at, n);
            }
            Step::Write(at, n) => {
                d.rc.can_accept(d.now, Kind::Posted, n);
                d.write(at, &vec![seed as u8; n]);
            }
            Step::Mmio(bar, at, n, true) => d.rc.mmio_write(d.now, bar, at, &vec![1; n]),
            Step::Mmio(bar, at, n, false) => {
                d.rc.mmio_read(d.now, bar, at, n);
            }
            Step::Config(at, bytes) => d.rc.config_write(d.now, at, &bytes),
            Step::Answer => d.answer_all(|a| a as u8),
            Step::Inject(kind, a) => {
                let fault = [
                    InjectedFault::Unsupported,
                    InjectedFault::Abort,
                    InjectedFault::ConfigRetry,
                    InjectedFault::Poison,
                    InjectedFault::Lost,
                    InjectedFault::Late(Time::us(3)),
                    InjectedFault::ByteCount(kind as i16 - 100),
                    InjectedFault::UnknownTag,
                    InjectedFault::Duplicate,
                ][kind as usize % 9];
                let piece = [Piece::First, Piece::Last, Piece::Every][a as usize % 3];
                let select = [Select::Nth(a % 4), Select::Address(a..u64::MAX), Select::PerMillion(300_000)];
                d.rc.inject(Injection::new(select[(a >> 8) as usize % 3].clone(), fault).on(piece).times(3));
            }
            Step::Link(up) => d.rc.set_link(d.now, up),
            Step::ResetDone => d.rc.card_reset_done(d.now),
            Step::Enumerate(bus_master) => {
                d.rc.enumerate(d.now, &Enumeration { bus_master, max_read: 4096, ..Default::default() });
            }
            Step::Wait(ps) => {
                let end = d.now + Time(ps);
                d.run_until(end);
            }
            // The card polls nothing meanwhile.
            Step::Hold(ps) => d.now = d.now + Time(ps),
        }
    }
    d.run_until_quiet();
    let log = d.rc.take_log();
    (d, log)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn no_storm_panics_or_hangs_and_all_room_comes_back(
        seed in any::<u64>(), steps in proptest::collection::vec(step(), 1..120)
    ) {
        let (mut d, _) = play(seed, &steps);
        prop_assert!(d.rc.quiet());
        prop_assert_eq!(d.rc.card_outstanding(), 0);
        // Afterwards a well-behaved card works, with the whole completion buffer and every credit.
        d.rc.set_link(d.now, true);
        d.rc.card_reset_done(d.now);
        d.rc.clear_injections();
        d.rc.config_write(d.now, 0x44, &[0]);
        d.rc.enumerate(d.now, &Enumeration { bus_master: true, ..Default::default() });
        let later = d.now + Time::us(10);
        d.run_until(later);
        d.rc.take_violations();
        let free = d.rc.credits(d.now);
        prop_assert_eq!((free.ph, free.pd, free.nph, free.npd), (64, 1024, 64, 64));
        for tag in 0..4 {
            d.read(tag, BASE + 256 * tag as u64, 256);
        }
        let end = d.now + Time::us(20);
        d.now = end;
        d.take_all();
        for tag in 0..4u16 {
            let expected = Ok(d.memory.get(256 * tag as u64, 256));
            prop_assert_eq!(d.result(tag), &expected);
        }
        let found = d.rc.take_violations();
        prop_assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_log(seed in any::<u64>(), steps in proptest::collection::vec(step(), 1..60)) {
        let (a, log_a) = play(seed, &steps);
        let (b, log_b) = play(seed, &steps);
        prop_assert_eq!(log_a, log_b);
        prop_assert_eq!(a.events, b.events);
        prop_assert_eq!(a.rc.violations(), b.rc.violations());
    }
}

/// Memory of a process that died.
struct Gone;

impl Backing for Gone {
    fn read(&self, offset: u64, _: &mut [u8]) -> Result<(), Fault> {
        Err(Fault::Backing { offset, access: Access::Read, reason: "0 bytes read".into() })
    }
    fn write(&self, offset: u64, _: &[u8]) -> Result<(), Fault> {
        Err(Fault::Backing { offset, access: Access::Write, reason: "0 bytes written".into() })
    }
}

#[test]
fn memory_of_a_dead_process_is_an_iommu_fault() {
    let mut d = Desk::new(config(), 1);
    d.rc.memory_mut().map(0x2000, 0x1000, Permissions::BOTH, Gone, 0x70_0000).unwrap();
    d.write(0x2010, &[1; 4]);
    d.read(1, 0x2000, 64);
    d.run_until_quiet();
    assert_eq!(d.result(1), &Err(Status::UnsupportedRequest));
    assert!(matches!(d.events[0], Event::WriteFault { fault: Fault::Backing { offset: 0x70_0010, .. }, .. }));
    assert!(matches!(d.events[1], Event::ReadFault { fault: Fault::Backing { offset: 0x70_0000, .. }, .. }));
    d.no_violation();
}

#[test]
fn only_the_first_4096_violations_are_kept_and_all_are_counted() {
    let mut d = Desk::new(config(), 1);
    for _ in 0..100_000 {
        d.rc.card_sends(d.now, RawTlp { header: [u32::MAX; 4], payload: vec![] });
    }
    assert_eq!((d.rc.violations().len(), d.rc.violation_count()), (4096, 100_000));
    d.rc.take_violations();
    assert_eq!(d.rc.violation_count(), 0);
}

#[test]
fn a_root_complex_can_move_to_another_thread() {
    let mut d = Desk::new(config(), 1);
    let rc = std::thread::spawn(move || {
        d.write(BASE, &[1]);
        d.run_until_quiet();
        d.rc
    });
    assert!(rc.join().unwrap().quiet());
}
