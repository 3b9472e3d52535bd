//! Ranges of the card's memories that QPs share: READs outstanding, READs owed, outstanding records.
//!
//! In: how many entries a QP needs. Out: a power of two of them, aligned to their number, the lowest that is free; or none.
//! Nobody else has them until they are given back. Nothing is moved to make room. Of records, which every QP needs and more of
//! which make it faster, a QP has as many as leave enough for those that are still to come ([`Shares`]).

use crate::context::lock;
use crate::{Error, Result};
use std::sync::Mutex;

/// A range of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// The first.
    pub(crate) base: u32,
    /// log2 of their number.
    pub(crate) log_size: u32,
}

/// One memory of the card.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// What its entries are, to name when none is left.
    object: &'static str,
    used: Mutex<Vec<bool>>,
}

impl Ranges {
    pub(crate) fn new(object: &'static str, entries: u32) -> Ranges {
        Ranges { object, used: Mutex::new(vec![false; entries as usize]) }
    }

    /// Gives back what `held` may have from an attempt that failed, and takes a range of at least `wanted` entries of
    /// the card `name`.
    pub(crate) fn renew(&self, held: &mut Option<Range>, wanted: u32, name: &str) -> Result<Range> {
        self.release(held);
        *held = self.take(wanted);
        let (name, object, limit) = (name.to_owned(), self.object, lock(&self.used).len() as u32);
        held.ok_or(Error::Exhausted { name, object, limit })
    }

    fn free(&self) -> u32 {
        lock(&self.used).iter().filter(|used| !**used).count() as u32
    }

    fn take(&self, wanted: u32) -> Option<Range> {
        let size = wanted.next_power_of_two();
        let mut used = lock(&self.used);
        let ranges = used.chunks_exact_mut(size as usize).zip((0..).step_by(size as usize));
        let (free, base) = ranges.into_iter().find(|(used, _)| !used.contains(&true))?;
        free.fill(true);
        Some(Range { base, log_size: size.ilog2() })
    }

    /// Gives back what `held` has.
    pub(crate) fn release(&self, held: &mut Option<Range>) {
        if let Some(range) = held.take() {
            lock(&self.used)[range.base as usize..][..1 << range.log_size].fill(false);
        }
    }
}

/// A memory of which every one of so many has a range.
#[derive(Debug)]
pub(crate) struct Shares {
    ranges: Ranges,
    /// What is left for each that has none yet.
    least: u32,
    without: Mutex<u32>,
}

/// No more than that for one: what a microsecond of the smallest packets at 100 Gb/s needs.
const MOST: u32 = 128;

impl Shares {
    /// `entries` for `all`, half of them in equal shares that nobody takes from another.
    pub(crate) fn new(object: &'static str, entries: u32, all: u32) -> Shares {
        let least = (entries / all / 2).max(1);
        Shares { ranges: Ranges::new(object, entries), least, without: Mutex::new(all) }
    }

    /// A range for one more: of `wanted` entries, or fewer.
    pub(crate) fn take(&self, wanted: u32, name: &str) -> Result<Range> {
        let mut without = lock(&self.without);
        let others = without.saturating_sub(1);
        let mut size = wanted.next_power_of_two().min(MOST).max(self.least);
        let fits = |size: u32| self.ranges.free() >= size + others * self.least;
        while size > self.least && !fits(size) {
            size /= 2;
        }
        let range = self.ranges.renew(&mut None, size, name)?;
        *without = others;
        Ok(range)
    }

    /// Gives a range back.
    pub(crate) fn release(&self, range: Range) {
        let mut without = lock(&self.without);
        self.ranges.release(&mut Some(range));
        *without += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first_has_more_and_who_comes_last_has_enough() {
        let shares = Shares::new("an entry", 1024, 32);
        let sizes = |n: u32| {
            (0..n)
                .map(|_| shares.take(200, "card").unwrap())
                .map(|range| 1 << range.log_size)
                .collect::<Vec<u32>>()
        };
        // 16 for each that is still to come
        assert_eq!(sizes(6), [128, 128, 128, 128, 64, 32]);
        assert!(sizes(26).iter().all(|size| *size == 16));
        assert!(shares.take(1, "card").is_err(), "all have one");
        shares.release(Range { base: 0, log_size: 7 });
        assert_eq!(sizes(1), [128]);
        // a small queue does not get less than its share: what is left stays in shares
        shares.release(Range { base: 0, log_size: 7 });
        assert_eq!(shares.take(1, "card").unwrap(), Range { base: 0, log_size: 4 });
    }

    #[test]
    fn ranges_are_aligned_disjoint_and_come_back() {
        let ranges = Ranges::new("an entry", 16);
        let range = |base, log_size| Some(Range { base, log_size });
        assert_eq!(ranges.take(1), range(0, 0));
        assert_eq!(ranges.take(3), range(4, 2));
        assert_eq!(ranges.take(2), range(2, 1));
        assert_eq!(ranges.take(8), range(8, 3));
        assert_eq!((ranges.take(1), ranges.take(1)), (range(1, 0), None));
        ranges.release(&mut range(4, 2));
        assert_eq!((ranges.take(5), ranges.take(4)), (None, range(4, 2)));
        assert_eq!(Ranges::new("an entry", 8).take(16), None);
    }
}
