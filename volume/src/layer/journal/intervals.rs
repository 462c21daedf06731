//! A map of ranges of bytes in which what is put last counts.

use std::collections::BTreeMap;

use crate::Span;

/// Values on spans that do not overlap, by their first byte.
#[derive(Debug)]
pub(super) struct Intervals<V>(BTreeMap<u64, (u64, V)>);

impl<V: Copy> Intervals<V> {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Puts `value` on `span`, over what was there.
    pub(super) fn insert(&mut self, span: Span, value: V) {
        self.remove(span, |_| true);
        self.0.insert(span.at, (span.end(), value));
    }

    /// Takes away what of `span` has a value of which `is_meant` is true.
    pub(super) fn remove(&mut self, span: Span, is_meant: impl Fn(V) -> bool) {
        let meant: Vec<_> = self.overlapping(span).filter(|(_, value)| is_meant(*value)).collect();
        for (old, value) in meant {
            self.0.remove(&old.at);
            if old.at < span.at {
                self.0.insert(old.at, (span.at, value));
            }
            if old.end() > span.end() {
                self.0.insert(span.end(), (old.end(), value));
            }
        }
    }

    /// Keeps only values of which `is_kept` is true.
    pub(super) fn retain(&mut self, is_kept: impl Fn(V) -> bool) {
        self.0.retain(|_, (_, value)| is_kept(*value));
    }

    pub(super) fn overlaps(&self, span: Span) -> bool {
        self.overlapping(span).next().is_some()
    }

    /// The parts of `span` in order, each with its value, without gaps.
    pub(super) fn parts(&self, span: Span) -> Vec<(Span, Option<V>)> {
        let mut parts = Vec::new();
        let mut at = span.at;
        for (there, value) in self.overlapping(span) {
            let start = there.at.max(span.at);
            if at < start {
                parts.push((Span::new(at, start - at), None));
            }
            at = there.end().min(span.end());
            parts.push((Span::new(start, at - start), Some(value)));
        }
        if at < span.end() {
            parts.push((Span::new(at, span.end() - at), None));
        }
        parts
    }

    /// All of it, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Span, V)> {
        self.0.iter().map(|(&at, &(end, value))| (Span::new(at, end - at), value))
    }

    /// What overlaps `span`, in order and whole.
    fn overlapping(&self, span: Span) -> impl Iterator<Item = (Span, V)> {
        let before = self.0.range(..span.at).next_back();
        let within = self.0.range(span.at..span.end().max(span.at));
        let all = before.into_iter().chain(within);
        all.map(|(&at, &(end, value))| (Span::new(at, end - at), value))
            .filter(move |(there, _)| there.overlaps(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Random;

    #[test]
    fn the_last_value_counts() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let (mut map, mut model) = (Intervals::new(), [None; 40]);
            for value in 0..60_u64 {
                let at = random.below(40);
                let span = Span::new(at, random.below(41 - at));
                if span.is_empty() {
                    continue;
                }
                let bytes = span.at as usize..span.end() as usize;
                if random.below(4) == 0 {
                    map.remove(span, |value| value % 2 == 0);
                    let meant = model[bytes].iter_mut();
                    meant.filter(|byte| byte.is_some_and(|v| v % 2 == 0)).for_each(|b| *b = None);
                } else {
                    map.insert(span, value);
                    model[bytes].fill(Some(value));
                }
                let asked = Span::new(random.below(20), 20);
                assert_eq!(
                    map.overlaps(asked),
                    model[asked.at as usize..][..20].iter().any(Option::is_some)
                );
                let mut at = asked.at;
                for (part, value) in map.parts(asked) {
                    assert_eq!(part.at, at, "seed {seed}");
                    at = part.end();
                    let bytes = &model[part.at as usize..part.end() as usize];
                    assert!(bytes.iter().all(|byte| *byte == value), "seed {seed}");
                }
                assert_eq!(at, asked.end());
            }
            map.retain(|value| value < 30);
            assert!(map.iter().all(|(_, value)| value < 30) && map.iter().count() == map.len());
        }
    }

    #[test]
    fn ends_of_the_address_space_are_found() {
        let mut map = Intervals::new();
        map.insert(Span::new(0, u64::MAX), 1);
        map.insert(Span::new(u64::MAX - 1, 1), 2);
        assert_eq!(map.parts(Span::new(u64::MAX - 2, 2)).len(), 2);
        assert!(map.overlaps(Span::new(0, 1)));
    }
}
