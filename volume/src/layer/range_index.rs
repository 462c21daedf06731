//! Ranges of bytes, found by what they overlap.

use core::ops::Range;
use std::collections::BTreeMap;

/// Ranges with their numbers, by size and place: those that overlap a range are found without a look at all others.
///
/// The sizes are powers of two, rounded up. What begins within a size before a range, or in it, may overlap it; nothing
/// else can. So a single long range makes no search among short ones longer.
#[derive(Debug, Default)]
pub(in crate::layer) struct RangeIndex {
    /// The exponent of the size, the first byte and the number of each, and where it ends.
    ends: BTreeMap<(u32, u64, u64), u64>,
}

impl RangeIndex {
    pub(in crate::layer) const fn new() -> Self {
        Self { ends: BTreeMap::new() }
    }

    pub(in crate::layer) fn insert(&mut self, range: &Range<u64>, id: u64) {
        self.ends.insert((exponent(range), range.start, id), range.end);
    }

    pub(in crate::layer) fn remove(&mut self, range: &Range<u64>, id: u64) {
        self.ends.remove(&(exponent(range), range.start, id));
    }

    /// The numbers of those that overlap `range`.
    pub(in crate::layer) fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        self.near(range).filter(move |(other, _)| overlap(other, range)).map(|(_, id)| id)
    }

    /// Those that may overlap `range`, by size and place.
    fn near(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        let Range { start, end } = *range;
        self.exponents().flat_map(move |exponent| {
            let first = start.saturating_sub(size(exponent) - 1);
            let within = self.ends.range((exponent, first, 0)..(exponent, end, 0));
            within.map(|(&(_, start, id), &end)| (start..end, id))
        })
    }

    /// The exponents of the sizes that there are.
    fn exponents(&self) -> impl Iterator<Item = u32> {
        let next = |from| self.ends.range((from, 0, 0)..).next().map(|(key, _)| key.0);
        std::iter::successors(next(0), move |exponent| next(exponent + 1))
    }
}

/// The size of a range is 2 to the power of this, rounded up.
const fn exponent(range: &Range<u64>) -> u32 {
    let len = range.end.saturating_sub(range.start);
    u64::BITS - len.saturating_sub(1).leading_zeros()
}

const fn size(exponent: u32) -> u64 {
    match 1_u64.checked_shl(exponent) {
        Some(size) => size,
        None => u64::MAX,
    }
}

pub(in crate::layer) const fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Random;

    fn sorted(ids: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut ids: Vec<_> = ids.collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn index_finds_what_a_search_of_all_finds() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut all: Vec<(Range<u64>, u64)> = Vec::new();
            let mut index = RangeIndex::new();
            for id in 0..60 {
                let start = random.below(100);
                // Some cover nothing, and some nearly all.
                let longest = if random.below(4) == 0 { 100 } else { 9 };
                let len = random.below(longest);
                let range = start..start + len;
                let expected = all.iter().filter(|(other, _)| overlap(other, &range));
                let expected = sorted(expected.map(|(_, id)| *id));
                assert_eq!(sorted(index.overlapping(&range)), expected, "seed {seed}: {range:?}");
                index.insert(&range, id);
                all.push((range, id));
                if random.below(3) == 0 {
                    let at = usize::try_from(random.below(all.len() as u64)).unwrap();
                    let (range, id) = all.swap_remove(at);
                    index.remove(&range, id);
                }
            }
        }
    }

    #[test]
    fn ends_of_the_address_space_are_found() {
        let mut index = RangeIndex::new();
        for (id, range) in (0..).zip([0..u64::MAX, 0..1, u64::MAX - 1..u64::MAX]) {
            index.insert(&range, id);
        }
        assert_eq!(sorted(index.overlapping(&(0..1))), [0, 1]);
        assert_eq!(sorted(index.overlapping(&(u64::MAX - 1..u64::MAX))), [0, 2]);
        assert_eq!(sorted(index.overlapping(&(0..u64::MAX))), [0, 1, 2]);
    }

    /// Neighbours that are rewritten again and again, far writes, and a discard of everything.
    #[test]
    fn few_are_looked_at_however_many_there_are() {
        const COUNT: u64 = 10_000;
        let mut index = RangeIndex::new();
        index.insert(&(0..1 << 40), COUNT * 2);
        for id in 0..COUNT {
            index.insert(&(0..4096), id);
            index.insert(&(id * 4096 + 8192..id * 4096 + 12288), COUNT + id);
        }
        assert_eq!(index.near(&(4096..8192)).count(), 1, "the discard");
        assert_eq!(index.near(&(4096..12288)).count(), 2);
        let looks: usize =
            (2..COUNT).map(|at| index.near(&(at * 4096..at * 4096 + 4096)).count()).sum();
        assert_eq!(looks, 2 * (COUNT as usize - 2));
    }
}
