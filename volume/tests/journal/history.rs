//! What was asked for, and which contents are legal for it.

use std::collections::BTreeSet;

use volume::Span;

use crate::store::{ZERO, blocks};

/// What a block may hold.
pub(crate) type Versions = BTreeSet<u64>;

/// Part of the stamp of a change after which a block may hold what it held, or what the rest of the stamp says.
const KEPT_OR: u64 = 1 << 63;

/// The stamp of such a discard.
pub(crate) const KEPT_OR_ZERO: u64 = KEPT_OR | ZERO;

/// Changes in the order of submission, cut into groups by flushes. All numbers count from the beginning.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// Changes that are forgotten, and the contents after them.
    forgotten: usize,
    base: Vec<Versions>,
    changes: Vec<(Span, u64)>,
    /// How many changes came before each flush; the first is that of `base`.
    borders: Vec<usize>,
    /// So many changes were acknowledged to be durable.
    acknowledged: usize,
}

impl History {
    pub(crate) fn new(blocks: usize) -> Self {
        let (base, changes) = (vec![Versions::from([ZERO]); blocks], Vec::new());
        Self { forgotten: 0, base, changes, borders: vec![0], acknowledged: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.forgotten + self.changes.len()
    }

    pub(crate) fn push(&mut self, span: Span, stamp: u64) {
        self.changes.push((span, stamp));
    }

    /// A flush began when so many changes were accepted.
    pub(crate) fn flush(&mut self, accepted: usize) {
        if *self.borders.last().unwrap() < accepted {
            self.borders.push(accepted);
        }
    }

    /// So many changes are durable.
    pub(crate) fn acknowledge(&mut self, changes: usize) {
        self.acknowledged = self.acknowledged.max(changes);
    }

    /// What each block may hold after so many changes.
    fn state(&self, changes: usize) -> Vec<Versions> {
        let mut state = self.base.clone();
        for (span, stamp) in &self.changes[..changes - self.forgotten] {
            for versions in &mut state[blocks(*span)] {
                if stamp & KEPT_OR == 0 {
                    versions.clear();
                }
                versions.insert(stamp & !KEPT_OR);
            }
        }
        state
    }

    /// Whether these may be the contents after so many changes.
    pub(crate) fn is_state(&self, changes: usize, found: &[u64]) -> bool {
        self.state(changes).iter().zip(found).all(|(versions, found)| versions.contains(found))
    }

    /// What was found after a crash must be the state after some changes, and after all that were acknowledged.
    /// From then on it is. Where it is the state after fewer changes too, since a discard reads as zeroes now and may not
    /// after a power cut, the others are there or not.
    pub(crate) fn recover(&mut self, found: &[u64]) {
        let states = self.acknowledged.max(self.forgotten)..=self.len();
        let mut states = states.filter(|kept| self.is_state(*kept, found));
        let Some(fewest) = states.next() else {
            panic!("found {found:?}, which is no state of {self:?}");
        };
        let kept = states.next_back().unwrap_or(fewest);
        self.changes.truncate(kept - self.forgotten);
        for (_, stamp) in &mut self.changes[fewest - self.forgotten..] {
            *stamp |= KEPT_OR;
        }
        self.borders.retain(|border| *border <= kept);
        self.flush(kept);
    }

    /// What was found after a crash must be what an ordinary disk may hold: each block the last that was acknowledged, or
    /// anything that was written to it since. From then on it is the contents.
    pub(crate) fn recover_loosely(&mut self, found: &[u64]) {
        let acknowledged = self.acknowledged.max(self.forgotten);
        let found: Vec<_> = found.iter().map(|stamp| Versions::from([*stamp])).collect();
        assert!(
            self.reaches(acknowledged, &found),
            "found {found:?}, which no disk holds after {self:?}"
        );
        *self = Self { base: found, ..Self::new(0) };
    }

    /// Whether no crash image of the store lacks any of so many changes: each block holds the last of them, or something
    /// later.
    pub(crate) fn reaches(&self, changes: usize, store: &[Versions]) -> bool {
        let changes = changes.max(self.forgotten);
        let mut allowed = self.state(changes);
        for (span, stamp) in &self.changes[changes - self.forgotten..] {
            for versions in &mut allowed[blocks(*span)] {
                versions.insert(stamp & !KEPT_OR);
            }
        }
        store.iter().zip(&allowed).all(|(found, allowed)| found.is_subset(allowed))
    }

    /// Every crash image of the store, now or when groups under way have run, must be the state at some flush, and any of
    /// what was changed before the next one. Forgets what came before the first such flush.
    pub(crate) fn check(&mut self, images: &[Vec<Versions>]) {
        let legal = |store: &Vec<Versions>| {
            let first = (0..self.borders.len()).find(|group| self.is_legal(*group, store));
            first.unwrap_or_else(|| {
                panic!("the store may hold {store:?}, which is not legal for {self:?}")
            })
        };
        let first = images.iter().map(legal).min().expect("there is one now");
        let border = self.borders[first];
        if border <= self.acknowledged {
            self.base = self.state(border);
            self.changes.drain(..border - self.forgotten);
            self.borders.drain(..first);
            self.forgotten = border;
        }
    }

    fn is_legal(&self, group: usize, store: &[Versions]) -> bool {
        let start = self.borders[group];
        let end = self.borders.get(group + 1).copied().unwrap_or(self.len());
        let mut allowed = self.state(start);
        for (span, stamp) in &self.changes[start - self.forgotten..end - self.forgotten] {
            for versions in &mut allowed[blocks(*span)] {
                versions.insert(stamp & !KEPT_OR);
            }
        }
        store.iter().zip(&allowed).all(|(found, allowed)| found.is_subset(allowed))
    }
}

/// The checks above must be able to fail.
#[test]
fn impossible_image_is_not_legal() {
    let mut history = History::new(2);
    let span = |at: u64| Span::new(at * 512, 512);
    history.push(span(0), 1);
    history.push(span(1), 2);
    history.flush(2);
    history.push(span(0), 3);
    let legal = |images: [&[u64]; 2]| {
        let images = images.map(|image| image.iter().copied().collect());
        (0..history.borders.len()).any(|group| history.is_legal(group, &images))
    };
    assert!(legal([&[0, 1], &[0, 2]]) && legal([&[1, 3], &[2]]));
    assert!(!legal([&[3], &[0]]), "the flush between was not waited for");
    assert!(!legal([&[0], &[7]]));
    history.acknowledge(2);
    assert!(std::panic::catch_unwind(|| history.clone().recover(&[1, 0])).is_err(), "lost");
    history.clone().recover(&[1, 2]);
    history.recover(&[3, 2]);
}
