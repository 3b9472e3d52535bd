//! The stage trace of a card: what each stage decided, and when.
//!
//! ```text
//! ring in BAR0 > StageTrace::read > Timed, in order of time > life::lives > life::breakdown
//! ```
//!
//! In: a card that has a trace ([`contract::register::feature::TRACE`]). Out: its entries with their whole time, each once, and
//! how many are missing: the card overwrites the oldest, and never waits. It reads registers and nothing else.

pub mod life;

use crate::device::{read32, read64, write32};
use crate::{Backend, Device, Error, Result, StageCounter};
use contract::trace::WINDOW_ENTRIES;
use contract::{TraceEntry, TraceEvent, register as reg};
use std::fmt;

/// An entry with its whole time. Clocks of several cards must be one: those of simulated cards are, those of boards not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// Whose.
    pub card: usize,
    /// Core clock ticks since reset.
    pub ticks: u64,
    /// What.
    pub entry: TraceEntry,
}

impl Timed {
    /// The event, unless the card tells one that the driver does not know.
    pub fn event(&self) -> Option<TraceEvent> {
        TraceEvent::from_code(self.entry.event)
    }
}

/// The stage trace of a card, on until it is dropped.
pub struct StageTrace<'a> {
    backend: &'a dyn Backend,
    entries: u64,
    next: u64,
    overwritten: u64,
    lost_before: u64,
}

impl fmt::Debug for StageTrace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entries, next, overwritten, .. } = self;
        write!(f, "StageTrace({}: {entries} entries, {next} read, {overwritten} gone)", self.backend.name())
    }
}

impl Device {
    /// Starts the stage trace, for these stages (bit = `contract::Stage`).
    ///
    /// # Errors
    /// The card has none, or the way to it failed.
    pub fn stage_trace(&self, stages: u32) -> Result<StageTrace<'_>> {
        StageTrace::start(&*self.backend, stages)
    }
}

fn lost(backend: &dyn Backend) -> Result<u64> {
    read64(backend, reg::stage_counter(StageCounter::TraceLost))
}

impl<'a> StageTrace<'a> {
    fn start(backend: &'a dyn Backend, stages: u32) -> Result<Self> {
        let entries = read32(backend, reg::TRACE_ENTRIES)?;
        if !entries.is_power_of_two() || entries > WINDOW_ENTRIES {
            let (name, value) = (backend.name().to_owned(), entries.into());
            return Err(Error::BadRegister { name, register: "trace_entries", value });
        }
        write32(backend, reg::TRACE_CONTROL, 0)?;
        write32(backend, reg::TRACE_STAGES, stages)?;
        write32(backend, reg::TRACE_CONTROL, reg::TRACE_ENABLE)?;
        let lost_before = lost(backend)?;
        Ok(StageTrace { backend, entries: entries.into(), next: 0, overwritten: 0, lost_before })
    }
}

impl StageTrace<'_> {
    /// Adds what is new since it was asked last, in order of time, as that of `card`.
    ///
    /// # Errors
    /// The way to the card failed.
    pub fn read(&mut self, card: usize, into: &mut Vec<Timed>) -> Result<()> {
        let read = |offset| read64(self.backend, offset);
        let end = read(reg::TRACE_PRODUCER)?;
        let first = self.next.max(end.saturating_sub(self.entries));
        let mut entries = Vec::new();
        for n in first..end {
            let at = reg::TRACE_RING + 16 * (n % self.entries) as u32;
            let (low, high) = (read(at)?, read(at + 8)?);
            entries.push(TraceEntry::unpack(&(u128::from(high) << 64 | u128::from(low)).to_le_bytes()));
        }
        // An entry was whole if its slot had not been written again by now: reads of registers are in order.
        let (now, after) = (read(reg::NOW)?, read(reg::TRACE_PRODUCER)?);
        let kept = first.max(after.saturating_sub(self.entries)).min(end.max(self.next));
        self.overwritten += kept - self.next;
        let start = into.len();
        let timed = |entry: TraceEntry| {
            let age = now.wrapping_sub(entry.time) & ((1 << 40) - 1);
            Timed { card, ticks: now.wrapping_sub(age), entry }
        };
        into.extend(entries.into_iter().skip((kept - first) as usize).map(timed));
        into[start..].sort_by_key(|timed| timed.ticks);
        self.next = end;
        Ok(())
    }

    /// How many entries are missing so far: overwritten before they were read, or lost in the card.
    ///
    /// # Errors
    /// The way to the card failed.
    pub fn missing(&self) -> Result<u64> {
        Ok(self.overwritten + (lost(self.backend)? - self.lost_before))
    }
}

impl Drop for StageTrace<'_> {
    fn drop(&mut self) {
        // a card that cannot be reached traces nothing that anybody could read
        let _ = write32(self.backend, reg::TRACE_CONTROL, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bar, Memory};
    use std::collections::HashMap;
    use std::io;
    use std::ops::RangeInclusive;
    use std::os::fd::BorrowedFd;
    use std::sync::Mutex;

    /// A ring of 16 entries that writes one more with every so many accesses. Entry n is of time n, index n.
    struct Ring {
        /// Accesses, entries, registers.
        state: Mutex<(u64, u64, HashMap<u32, u32>)>,
        pace: u64,
    }

    impl Ring {
        fn read(&self, offset: u32) -> u64 {
            let mut state = self.state.lock().expect("no panic");
            state.0 += 1;
            if self.pace > 0 && state.0.is_multiple_of(self.pace) {
                state.1 += 1;
            }
            let written = state.1;
            match offset {
                reg::TRACE_ENTRIES => 16,
                reg::TRACE_PRODUCER => written,
                reg::NOW => written,
                offset if offset >= reg::TRACE_RING => {
                    let slot = u64::from(offset - reg::TRACE_RING) / 16;
                    let n = slot + written.saturating_sub(1 + slot) / 16 * 16;
                    let entry = TraceEntry {
                        time: n,
                        event: 5,
                        index: n as u16,
                        detail: n as u16,
                        ..Default::default()
                    };
                    let bytes = entry.pack();
                    let half = if offset % 16 == 0 { &bytes[..8] } else { &bytes[8..] };
                    u64::from_le_bytes(half.try_into().expect("8 bytes"))
                }
                _ => 3,
            }
        }
    }

    impl Backend for Ring {
        fn name(&self) -> &str {
            "ring"
        }
        fn read32(&self, _: Bar, offset: u64) -> io::Result<u32> {
            Ok(self.read(offset as u32) as u32)
        }
        fn read64(&self, _: Bar, offset: u64) -> io::Result<u64> {
            Ok(self.read(offset as u32))
        }
        fn write32(&self, _: Bar, offset: u64, value: u32) -> io::Result<()> {
            self.state.lock().expect("no panic").2.insert(offset as u32, value);
            Ok(())
        }
        fn write64(&self, _: Bar, _: u64, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn config_read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn config_write(&self, _: u64, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        unsafe fn map(&self, _: u64, _: &Memory<'_>) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn unmap(&self, _: u64, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn reset(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
            vec![]
        }
        fn set_irqs(&self, _: &[BorrowedFd<'_>]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn entries_that_were_overwritten_while_they_were_read_are_not_told_and_counted() {
        for pace in [1, 2, 3, 5, 40] {
            let ring = Ring { state: Mutex::new((0, 0, HashMap::new())), pace };
            let mut trace = StageTrace::start(&ring, 7).expect("a trace");
            let mut told = vec![];
            for _ in 0..20 {
                trace.read(1, &mut told).expect("read");
            }
            let whole = |timed: &Timed| {
                let e = &timed.entry;
                (e.index, e.detail, timed.ticks) == (e.time as u16, e.time as u16, e.time)
            };
            assert!(told.iter().all(whole), "pace {pace}: no entry is made of two");
            assert!(told.windows(2).all(|pair| pair[0].ticks < pair[1].ticks), "pace {pace}: each once");
            let missing = trace.missing().expect("read");
            assert_eq!(told.len() as u64 + missing, trace.next, "pace {pace}: told or counted");
            assert_eq!(missing > 0, pace < 3, "pace {pace}: {missing}");
            drop(trace);
            let registers = &ring.state.lock().expect("no panic").2;
            assert_eq!((registers[&reg::TRACE_STAGES], registers[&reg::TRACE_CONTROL]), (7, 0));
        }
    }
}
