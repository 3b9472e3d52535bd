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
use crate::{Device, Error, Result, StageCounter};
use contract::trace::WINDOW_ENTRIES;
use contract::{TraceEntry, TraceEvent, register as reg};

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
#[derive(Debug)]
pub struct StageTrace<'a> {
    device: &'a Device,
    entries: u64,
    next: u64,
    overwritten: u64,
    lost_before: u64,
}

impl Device {
    /// Starts the stage trace, for these stages (bit = `contract::Stage`).
    ///
    /// # Errors
    /// The card has none, or the way to it failed.
    pub fn stage_trace(&self, stages: u32) -> Result<StageTrace<'_>> {
        let entries = read32(&*self.backend, reg::TRACE_ENTRIES)?;
        if !entries.is_power_of_two() || entries > WINDOW_ENTRIES {
            let (name, value) = (self.name().to_owned(), entries.into());
            return Err(Error::BadRegister { name, register: "trace_entries", value });
        }
        write32(&*self.backend, reg::TRACE_CONTROL, 0)?;
        write32(&*self.backend, reg::TRACE_STAGES, stages)?;
        write32(&*self.backend, reg::TRACE_CONTROL, reg::TRACE_ENABLE)?;
        let lost_before = self.trace_lost()?;
        Ok(StageTrace { device: self, entries: entries.into(), next: 0, overwritten: 0, lost_before })
    }

    fn trace_lost(&self) -> Result<u64> {
        read64(&*self.backend, reg::stage_counter(StageCounter::TraceLost))
    }
}

impl StageTrace<'_> {
    /// Adds what is new since it was asked last, in order of time, as that of `card`.
    ///
    /// # Errors
    /// The way to the card failed.
    pub fn read(&mut self, card: usize, into: &mut Vec<Timed>) -> Result<()> {
        let read = |offset| read64(&*self.device.backend, offset);
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
        Ok(self.overwritten + (self.device.trace_lost()? - self.lost_before))
    }
}

impl Drop for StageTrace<'_> {
    fn drop(&mut self) {
        // a card that cannot be reached traces nothing that anybody could read
        let _ = write32(&*self.device.backend, reg::TRACE_CONTROL, 0);
    }
}
