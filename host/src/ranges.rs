//! Ranges of the card's memories that QPs share: READs outstanding, READs owed.
//!
//! In: how many entries a QP needs. Out: a power of two of them, aligned to their number, the lowest that is free; or none.
//! Nobody else has them until they are given back. Nothing is moved to make room.

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

#[cfg(test)]
mod tests {
    use super::*;

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
