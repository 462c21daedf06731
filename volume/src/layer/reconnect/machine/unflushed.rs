//! Changes that were answered and are not durable yet.

use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

use super::Replay;
use crate::layer::range_index::RangeIndex;

/// The most changes kept, however small: zeroing and discarding weigh nothing.
const ENTRIES_MAX: usize = 1 << 16;

/// A change, and where it was made.
#[derive(Debug)]
pub(super) struct Entry<R> {
    pub(super) range: Range<u64>,
    weight: usize,
    pub(super) change: R,
}

/// In the order in which they were answered; for overlapping ones that is the order in which they were
/// made.
#[derive(Debug)]
pub(super) struct UnflushedChanges<R> {
    entries: VecDeque<Entry<R>>,
    /// The place of the first entry. Places are never used twice.
    first: u64,
    weight: usize,
    /// `None` keeps nothing.
    weight_max: Option<usize>,
    /// Where they are, by their places, from the first time on that somebody asks.
    index: Option<RangeIndex>,
}

impl<R> UnflushedChanges<R> {
    pub(super) const fn new(weight_max: Option<usize>) -> Self {
        Self { entries: VecDeque::new(), first: 0, weight: 0, weight_max, index: None }
    }

    pub(super) fn add(&mut self, range: Range<u64>, weight: usize, change: R) {
        if self.weight_max.is_some() {
            self.weight += weight;
            if let Some(index) = &mut self.index {
                index.insert(&range, self.first + self.entries.len() as u64);
            }
            self.entries.push_back(Entry { range, weight, change });
        }
    }

    /// Drops what a flush has made durable: everything before `place`.
    pub(super) fn forget(&mut self, place: u64) {
        while self.first < place
            && let Some(entry) = self.entries.pop_front()
        {
            self.weight -= entry.weight;
            if let Some(index) = &mut self.index {
                index.remove(&entry.range, self.first);
            }
            self.first += 1;
        }
    }

    /// Whether one is in `range`.
    pub(super) fn overlaps(&mut self, range: &Range<u64>) -> bool {
        let (entries, first) = (&self.entries, self.first);
        let index = self.index.get_or_insert_with(|| {
            let mut index = RangeIndex::new();
            (first..).zip(entries).for_each(|(place, entry)| index.insert(&entry.range, place));
            index
        });
        index.overlapping(range).next().is_some()
    }

    pub(super) fn get(&self, place: u64) -> Option<&Entry<R>> {
        let index = place.checked_sub(self.first)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry<R>> {
        self.entries.iter()
    }

    /// The place of the oldest entry.
    pub(super) const fn begin(&self) -> u64 {
        self.first
    }

    /// The place of the next entry.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) const fn weight(&self) -> usize {
        self.weight
    }

    /// Half of the room is used up. What is left is for what comes while the flush is under way.
    pub(super) fn wants_flush(&self) -> bool {
        self.weight_max.is_some_and(|most| self.weight > most / 2)
            || self.entries.len() > ENTRIES_MAX / 2
    }

    /// No more changes may be made before a flush has ended. Those under way still come.
    pub(super) fn is_full(&self) -> bool {
        self.weight_max.is_some_and(|most| self.weight > most) || self.entries.len() > ENTRIES_MAX
    }
}

impl<R: Replay> UnflushedChanges<R> {
    /// For each entry, the oldest first, the parts of its range that no later entry replaces.
    pub(super) fn not_replaced(&self) -> VecDeque<Vec<Range<u64>>> {
        let mut replaced = Spans::default();
        let mut parts = VecDeque::with_capacity(self.entries.len());
        for entry in self.entries.iter().rev() {
            parts.push_front(replaced.outside(&entry.range));
            if entry.change.replaces() {
                replaced.add(&entry.range);
            }
        }
        parts
    }
}

/// Bytes, as spans that neither overlap nor touch: where each begins and ends.
#[derive(Default)]
struct Spans(BTreeMap<u64, u64>);

impl Spans {
    fn add(&mut self, range: &Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        if start < end {
            self.0.insert(start, end);
        }
    }

    /// What of `range` is not in them.
    fn outside(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.0.range(..=range.start).next_back();
        let mut at = before.map_or(range.start, |(_, &to)| to.max(range.start));
        let mut parts = Vec::new();
        for (&from, &to) in self.0.range(range.start..range.end) {
            if at < from {
                parts.push(at..from);
            }
            at = at.max(to);
        }
        if at < range.end {
            parts.push(at..range.end);
        }
        parts
    }
}
