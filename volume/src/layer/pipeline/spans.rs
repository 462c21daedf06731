//! Things that lie on spans of the volume and do not overlap.

use std::collections::BTreeMap;

use crate::Span;

/// Something that lies on a span.
pub(super) trait Placed {
    fn span(&self) -> Span;
}

impl Placed for Span {
    fn span(&self) -> Span {
        *self
    }
}

/// Things in the order of their places, none overlapping another.
pub(super) struct SpanMap<T>(BTreeMap<u64, T>);

impl<T> Default for SpanMap<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Placed> SpanMap<T> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, thing: T) {
        debug_assert!(!self.overlaps(thing.span()), "{} is taken", thing.span());
        self.0.insert(thing.span().at, thing);
    }

    pub(super) fn get(&self, at: u64) -> Option<&T> {
        self.0.get(&at)
    }

    pub(super) fn get_mut(&mut self, at: u64) -> Option<&mut T> {
        self.0.get_mut(&at)
    }

    pub(super) fn remove(&mut self, at: u64) -> Option<T> {
        self.0.remove(&at)
    }

    /// What overlaps `span`, from its end to its start.
    pub(super) fn overlapping(&self, span: Span) -> impl Iterator<Item = &T> {
        let before = self.0.range(..span.end()).rev().map(|(_, thing)| thing);
        before.take_while(move |thing| thing.span().end() > span.at)
    }

    pub(super) fn overlapping_mut(&mut self, span: Span) -> impl Iterator<Item = &mut T> {
        let before = self.0.range_mut(..span.end()).rev().map(|(_, thing)| thing);
        before.take_while(move |thing| thing.span().end() > span.at)
    }

    pub(super) fn overlaps(&self, span: Span) -> bool {
        self.overlapping(span).next().is_some()
    }

    /// The places of what overlaps `span`; nothing is allocated if nothing does.
    pub(super) fn places(&self, span: Span) -> Vec<u64> {
        self.overlapping(span).map(|thing| thing.span().at).collect()
    }

    /// What ends where `at` begins.
    pub(super) fn ending_at(&self, at: u64) -> Option<&T> {
        let (_, thing) = self.0.range(..at).next_back()?;
        (thing.span().end() == at).then_some(thing)
    }
}

/// What both spans share.
pub(super) fn shared(one: Span, other: Span) -> Span {
    let at = one.at.max(other.at);
    Span::new(at, one.end().min(other.end()).saturating_sub(at))
}

/// The parts of `span` that none of `covers` covers, in order.
pub(super) fn uncovered(span: Span, mut covers: Vec<Span>) -> Vec<Span> {
    covers.sort_unstable_by_key(|cover| cover.at);
    let mut gaps = Vec::new();
    let mut at = span.at;
    for cover in covers {
        if cover.at > at {
            gaps.push(Span::new(at, cover.at.min(span.end()) - at));
        }
        at = at.max(cover.end());
        if at >= span.end() {
            return gaps;
        }
    }
    gaps.push(Span::new(at, span.end() - at));
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_overlaps_and_what_adjoins() {
        let mut map = SpanMap::default();
        for at in [0, 10, 30] {
            map.insert(Span::new(at, 10));
        }
        assert_eq!(map.places(Span::new(5, 6)), [10, 0]);
        assert_eq!(map.places(Span::new(20, 10)), [0; 0]);
        assert_eq!(map.places(Span::new(0, 31)), [30, 10, 0]);
        assert_eq!(map.ending_at(20), Some(&Span::new(10, 10)));
        assert_eq!(map.ending_at(25), None);
    }

    #[test]
    fn gaps_are_what_is_left() {
        let span = Span::new(10, 20);
        assert_eq!(uncovered(span, vec![]), [span]);
        assert_eq!(uncovered(span, vec![Span::new(0, 40)]), []);
        let covers = vec![Span::new(25, 10), Span::new(5, 7), Span::new(12, 3), Span::new(13, 4)];
        assert_eq!(uncovered(span, covers), [Span::new(17, 8)]);
        assert_eq!(uncovered(span, vec![Span::new(15, 5)]), [Span::new(10, 5), Span::new(20, 10)]);
    }
}
