//! notify and the MSI-X table together, a million events: as many interrupts as armings that fired, whatever is masked.
//!
//! ```text
//! events, doorbells > notify -EQE-> memory of the test
//!                            -raise-> msix -message-> the driver of the test: takes all entries, arms again
//! ```
//! The driver is the usual one: it arms, waits for its interrupt, takes what stands in the ring, arms again with what it
//! has taken. Every entry it is owed must reach it, every interrupt must be one it has armed for.
//!
//! Requirements: QUE

mod common;

use common::Choices;
use contract::Reject;
use contract::context::EqEntry;
use contract::doorbell::EqDoorbell;
use hdl::{Interpreter, elaborate};
use nic::Config;
use nic::pcie::msix::Msix;
use nic::rx::notify::Notify;

const EQS: usize = 4;
const LOG_DEPTH: u32 = 6;

fn start<M: hdl::Module>(m: &M) -> Interpreter {
    let mut s = Interpreter::new(&elaborate(m).unwrap_or_else(|e| panic!("{e}")));
    s.poke("reset", 1);
    s.clock();
    s.clock();
    s.poke("reset", 0);
    s
}

/// What the driver of an EQ knows.
#[derive(Default, Clone, Copy)]
struct Driver {
    /// Entries that stand in the ring.
    written: u64,
    /// Entries taken.
    taken: u64,
    /// Armed and not yet told.
    waits: bool,
    armings: u64,
    interrupts: u64,
    /// The clock at which it looks at its ring, if it was told.
    looks: Option<u64>,
}

struct Bench {
    notify: Interpreter,
    msix: Interpreter,
    pick: Choices,
    clock: u64,
    drivers: [Driver; EQS],
    /// Doorbells on their way: EQ, consumer.
    bells: std::collections::VecDeque<(usize, u64)>,
    /// An event stands at the input.
    offered: bool,
    accepted: u64,
    dropped: u64,
    messages: u64,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let c = Config::small();
        let (mut notify, mut msix) = (start(&Notify(c.clone())), start(&Msix(c)));
        for eq in 0..EQS {
            let entry = EqEntry {
                valid: true,
                log_depth: LOG_DEPTH as u8,
                vector: eq as u16,
                base: (eq as u64 + 1) << 16,
            };
            for (w, b) in entry.pack().chunks(8).enumerate() {
                notify.poke("table_valid", 1);
                notify.poke("table_table", 3);
                notify.poke("table_index", eq as u64);
                notify.poke("table_word", w as u64);
                notify.poke("table_data", u64::from_le_bytes(b.try_into().unwrap()));
                notify.clock();
            }
            notify.poke("table_valid", 0);
            for _ in 0..6 {
                notify.clock();
            }
        }
        notify.poke("raise_ready", 1);
        msix.poke("enable", 1);
        msix.poke("read_ready", 1);
        let mut bench = Bench {
            notify,
            msix,
            pick: Choices::new(seed),
            clock: 0,
            drivers: [Driver::default(); EQS],
            bells: Default::default(),
            offered: false,
            accepted: 0,
            dropped: 0,
            messages: 0,
        };
        for eq in 0..EQS {
            bench.entry(eq * 16, 0xfee0_0000);
            bench.mask(eq, false);
            bench.arm(eq);
        }
        bench
    }

    /// Writes a quadword of the MSI-X table; it takes a clock of its own.
    fn entry(&mut self, address: usize, data: u64) {
        self.msix.poke("access_valid", 1);
        self.msix.poke("access_write", 1);
        self.msix.poke("access_address", address as u64);
        self.msix.poke("access_data", data);
        self.msix.poke("access_enables", 0xff);
        self.clock_both();
        self.msix.poke("access_valid", 0);
    }

    fn mask(&mut self, eq: usize, masked: bool) {
        self.entry(eq * 16 + 8, u64::from(masked) << 32 | eq as u64);
    }

    fn offer(&mut self, eq: u64) {
        self.notify.poke("completion_eq", eq);
        self.notify.poke("completion_kind", 1);
        self.notify.poke("completion_valid", 1);
        self.offered = true;
    }

    fn arm(&mut self, eq: usize) {
        let driver = &mut self.drivers[eq];
        assert!(!driver.waits, "the driver arms once");
        (driver.waits, driver.armings) = (true, driver.armings + 1);
        self.bells.push_back((eq, driver.taken));
    }

    /// One clock of both blocks; what moves between them, to memory and to the driver.
    fn clock_both(&mut self) {
        let raise = self.notify.peek("raise_valid");
        self.msix.poke("raise_valid", raise);
        if raise == 1 {
            let vector = self.notify.peek("raise");
            self.msix.poke("raise", vector);
        }
        // the write engine takes entries and messages in the order in which they are offered, with pauses
        let ready = u64::from(self.pick.below(4) > 0);
        self.notify.poke("write_ready", ready);
        let taken = u64::from(self.pick.below(3) > 0);
        self.msix.poke("write_ready", taken);
        if ready == 1 && self.notify.peek("write_valid") == 1 {
            let iova = self.notify.peek("write_iova");
            let eq = (iova >> 16) as usize - 1;
            let driver = &mut self.drivers[eq];
            let place = driver.written % (1 << LOG_DEPTH);
            assert_eq!(iova & 0xffff, place * 16, "EQ {eq}: each entry behind the last");
            driver.written += 1;
            assert!(driver.written - driver.taken <= 1 << LOG_DEPTH, "EQ {eq}: overwritten");
        }
        if taken == 1 && self.msix.peek("write_valid") == 1 {
            let eq = self.msix.peek_bits("write_data").low() as usize;
            self.messages += 1;
            let driver = &mut self.drivers[eq];
            assert!(driver.waits, "EQ {eq}: an interrupt that nobody armed for, clock {}", self.clock);
            assert!(driver.written > driver.taken, "EQ {eq}: an interrupt before its entry");
            (driver.waits, driver.interrupts) = (false, driver.interrupts + 1);
            driver.looks = Some(self.clock + self.pick.below(40));
        }
        if self.notify.peek("count_valid") == 1 {
            assert_eq!(self.notify.peek("count_index"), Reject::EqOverflow as u64);
            self.dropped += 1;
        }
        if let Some((eq, consumer)) = self.bells.front().copied() {
            let bell = EqDoorbell { eqn: eq as u32, arm: true, consumer: consumer as u32 & 0xff_ffff };
            self.notify.poke("doorbell_valid", 1);
            self.notify.poke("doorbell_data", u64::from_le_bytes(bell.pack()));
            if self.notify.peek("doorbell_ready") == 1 {
                self.bells.pop_front();
            }
        } else {
            self.notify.poke("doorbell_valid", 0);
        }
        if self.offered && self.notify.peek("completion_ready") == 1 {
            self.accepted += 1;
            self.offered = false;
        }
        self.notify.clock();
        self.msix.clock();
        if !self.offered {
            self.notify.poke("completion_valid", 0);
        }
        self.clock += 1;
    }

    /// Drivers whose time has come take their entries and arm again.
    fn serve(&mut self) {
        for eq in 0..EQS {
            if self.drivers[eq].looks.is_some_and(|at| at <= self.clock) {
                let driver = &mut self.drivers[eq];
                driver.looks = None;
                driver.taken = driver.written;
                self.arm(eq);
            }
        }
    }
}

#[test]
fn a_million_back_to_back_events_raise_as_many_interrupts_as_are_armed_for() {
    const EVENTS: u64 = 1_000_000;
    let mut b = Bench::new(0x5eed);
    let mut function_mask = false;
    while b.accepted < EVENTS {
        if !b.offered {
            let eq = b.pick.below(EQS as u64);
            b.offer(eq);
        }
        // masks come and go: of a vector, of the function
        match b.pick.below(400) {
            0 => {
                let (eq, masked) = (b.pick.below(EQS as u64) as usize, b.pick.below(5) == 0);
                b.mask(eq, masked);
            }
            1 => {
                function_mask = !function_mask && b.pick.below(3) == 0;
                b.msix.poke("mask", u64::from(function_mask));
            }
            _ => {}
        }
        b.clock_both();
        b.serve();
    }
    b.msix.poke("mask", 0);
    for eq in 0..EQS {
        b.mask(eq, false);
    }
    for _ in 0..2000 {
        b.clock_both();
        b.serve();
    }
    let sum = |f: fn(&Driver) -> u64| b.drivers.iter().map(f).sum::<u64>();
    let (written, armings, interrupts) = (sum(|d| d.written), sum(|d| d.armings), sum(|d| d.interrupts));
    println!(
        "{EVENTS} events in {} clocks: {written} entries, {} dropped, {armings} armings, {interrupts} interrupts",
        b.clock, b.dropped
    );
    assert_eq!(written + b.dropped, EVENTS, "every event is an entry or has a name");
    assert!(b.drivers.iter().all(|d| d.waits && d.taken == d.written), "every entry was taken");
    // the last arming of each EQ waits for an event that never comes
    assert_eq!((interrupts, b.messages), (armings - EQS as u64, interrupts));
    assert!(interrupts > 10_000 && b.dropped > 0);
}
