//! A set of bytes of a message, as ranges.

use core::ops::Range;

/// Ranges in order, which do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<Range<u32>>);

impl RangeSet {
    /// Adds a range.
    pub(super) fn insert(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        // Nearly always it follows what is there.
        if let Some(last) = self.0.last_mut().filter(|last| last.end == range.start) {
            last.end = range.end;
            return;
        }
        let from = self.0.partition_point(|one| one.end < range.start);
        let to = self.0.partition_point(|one| one.start <= range.end);
        let start = self.0[from..to].first().map_or(range.start, |one| one.start.min(range.start));
        let end = self.0[from..to].last().map_or(range.end, |one| one.end.max(range.end));
        self.0.splice(from..to, core::iter::once(start..end));
    }

    /// The parts of a range that are not in the set.
    pub(super) fn missing_in(&self, range: Range<u32>) -> Vec<Range<u32>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        let from = self.0.partition_point(|one| one.end <= range.start);
        for one in self.0[from..].iter().take_while(|one| one.start < range.end) {
            if at < one.start {
                missing.push(at..one.start);
            }
            at = at.max(one.end);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// Takes up to `len` bytes from the front.
    pub(super) fn take_front(&mut self, len: u32) -> Option<Range<u32>> {
        let first = self.0.first_mut()?;
        let end = first.end.min(first.start.saturating_add(len));
        let taken = first.start..end;
        first.start = end;
        if first.start == first.end {
            self.0.remove(0);
        }
        Some(taken)
    }

    /// How many bytes are in it.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|one| u64::from(one.end - one.start)).sum()
    }

    /// How many ranges there are.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is in it.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the first `len` bytes are all in it.
    pub(super) fn is_whole(&self, len: u32) -> bool {
        matches!(&self.0[..], [one] if one.start == 0 && one.end >= len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against one flag per byte.
        #[test]
        fn range_set_agrees_with_an_array(ranges in proptest::collection::vec((0..200_u32, 0..40_u32), 0..60), ask in (0..200_u32, 0..60_u32)) {
            let mut set = RangeSet::default();
            let mut array = [false; 300];
            for (start, len) in ranges {
                set.insert(start..start + len);
                array[start as usize..(start + len) as usize].fill(true);
            }
            let missing: Vec<u32> = set.missing_in(ask.0..ask.0 + ask.1).into_iter().flatten().collect();
            let expected: Vec<u32> = (ask.0..ask.0 + ask.1).filter(|at| !array[*at as usize]).collect();
            prop_assert_eq!(missing, expected);
            prop_assert!(set.0.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
