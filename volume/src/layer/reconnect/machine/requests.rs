//! Requests that have not ended: which of them run, which wait, and which of these may run.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use super::{Kind, Replay};
use crate::layer::range_index::RangeIndex;

/// A request that has not ended.
#[derive(Debug)]
pub(super) struct Request<R> {
    pub(super) kind: Kind<R>,
    pub(super) range: Range<u64>,
    /// Bytes it takes to keep it.
    pub(super) weight: usize,
    /// The link it runs on; `None` while it waits.
    pub(super) link: Option<u64>,
    /// For a flush: the changes it covers are those before this place among the unflushed changes.
    pub(super) covers: u64,
    /// How many earlier changes to any of its bytes have not ended; none unless it is a change.
    behind: usize,
}

impl<R> Request<R> {
    pub(super) const fn is_change(&self) -> bool {
        matches!(self.kind, Kind::Change(_))
    }
}

impl<R: Replay> Request<R> {
    pub(super) fn is_group(&self) -> bool {
        matches!(&self.kind, Kind::Change(change) if change.is_group())
    }
}

/// All of them.
///
/// A change waits for every earlier change to any of its bytes, answered or not: the order in which they land, and in
/// which they are sent again, is that of submission. Each change counts those that it waits for, so that nothing has to
/// be compared with all others when one ends.
#[derive(Debug)]
pub(super) struct Requests<R> {
    last_id: u64,
    /// In the order of submission.
    all: BTreeMap<u64, Request<R>>,
    /// Where the changes among them are.
    changes: RangeIndex,
    /// Reads and flushes that wait.
    ready: BTreeSet<u64>,
    /// Changes that wait, but not for another.
    ready_changes: BTreeSet<u64>,
    /// Changes that are groups.
    groups: BTreeSet<u64>,
}

impl<R: Replay> Requests<R> {
    pub(super) const fn new() -> Self {
        Self {
            last_id: 0,
            all: BTreeMap::new(),
            changes: RangeIndex::new(),
            ready: BTreeSet::new(),
            ready_changes: BTreeSet::new(),
            groups: BTreeSet::new(),
        }
    }

    /// The number of a request that ends as soon as it is submitted.
    pub(super) const fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Takes a request; [`run`](Self::run) or [`wait`](Self::wait) follows.
    pub(super) fn submit(
        &mut self,
        kind: Kind<R>,
        range: Range<u64>,
        weight: usize,
        covers: u64,
    ) -> u64 {
        let id = self.next_id();
        let mut request = Request { kind, range, weight, link: None, covers, behind: 0 };
        if request.is_change() {
            request.behind = self.changes.overlapping(&request.range).count();
            self.changes.insert(&request.range, id);
        }
        if request.is_group() {
            self.groups.insert(id);
        }
        self.all.insert(id, request);
        id
    }

    pub(super) fn get(&self, id: u64) -> Option<&Request<R>> {
        self.all.get(&id)
    }

    /// In the order of submission, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Request<R>)> {
        self.all.iter().map(|(id, request)| (*id, request))
    }

    /// Whether a change runs on a link.
    pub(super) fn has_change_on(&self, link: u64) -> bool {
        self.all.values().any(|request| request.is_change() && request.link == Some(link))
    }

    /// Whether it waits for no other.
    pub(super) fn is_ready(&self, id: u64) -> bool {
        self.get(id).is_some_and(|request| request.behind == 0)
    }

    /// Whether the group before it, and so each before that, has ended or runs on this link; of what is no group it is.
    pub(super) fn may_follow(&self, id: u64, link: u64) -> bool {
        if !self.groups.contains(&id) {
            return true;
        }
        let before = self.groups.range(..id).next_back().and_then(|before| self.get(*before));
        before.is_none_or(|before| before.link == Some(link))
    }

    /// It runs on a link.
    pub(super) fn run(&mut self, id: u64, link: u64) {
        if let Some(request) = self.all.get_mut(&id) {
            request.link = Some(link);
            self.ready.remove(&id);
            self.ready_changes.remove(&id);
        }
    }

    /// It runs no more, or not yet.
    pub(super) fn wait(&mut self, id: u64) {
        let Some(request) = self.all.get_mut(&id) else { return };
        request.link = None;
        match request.behind {
            0 if request.is_change() => self.ready_changes.insert(id),
            0 => self.ready.insert(id),
            _ => false,
        };
    }

    /// Those that wait for no other, in the order of submission; changes only if there is room for them. Each is to
    /// [`run`](Self::run).
    pub(super) fn take_ready(&mut self, with_changes: bool) -> BTreeSet<u64> {
        let mut ready = std::mem::take(&mut self.ready);
        if with_changes {
            ready.append(&mut self.ready_changes);
        }
        ready
    }

    /// It has ended.
    pub(super) fn remove(&mut self, id: u64) -> Option<Request<R>> {
        let request = self.all.remove(&id)?;
        self.ready.remove(&id);
        self.groups.remove(&id);
        if request.is_change() {
            self.ready_changes.remove(&id);
            self.changes.remove(&request.range, id);
            self.let_pass(id, &request.range);
        }
        Some(request)
    }

    /// The later changes that waited for one wait for it no more.
    fn let_pass(&mut self, ended: u64, range: &Range<u64>) {
        for id in self.changes.overlapping(range).filter(|id| *id > ended) {
            let Some(later) = self.all.get_mut(&id) else { continue };
            later.behind -= 1;
            if later.behind == 0 && later.link.is_none() {
                self.ready_changes.insert(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug)]
    struct Plain;

    impl Replay for Plain {
        fn part(&self, _: &Range<u64>) -> Self {
            Self
        }

        fn replaces(&self) -> bool {
            true
        }
    }

    fn change(requests: &mut Requests<Plain>, range: Range<u64>) -> u64 {
        requests.submit(Kind::Change(Plain), range, 0, 0)
    }

    fn ready(requests: &mut Requests<Plain>, with_changes: bool) -> Vec<u64> {
        requests.take_ready(with_changes).into_iter().collect()
    }

    #[test]
    fn change_is_ready_when_each_earlier_one_to_its_bytes_has_ended() {
        let mut requests = Requests::new();
        let [a, b, c, d] = [0..8, 8..16, 4..12, 5..6].map(|range| change(&mut requests, range));
        assert_eq!([a, b, c, d].map(|id| requests.is_ready(id)), [true, true, false, false]);
        [a, b].into_iter().for_each(|id| requests.run(id, 0));
        [c, d].into_iter().for_each(|id| requests.wait(id));
        requests.remove(b);
        assert_eq!(ready(&mut requests, true), []);
        requests.remove(a);
        assert_eq!(ready(&mut requests, true), [c]);
        requests.remove(c);
        assert_eq!(ready(&mut requests, true), [d]);
    }

    /// Its link was lost while others waited for it.
    #[test]
    fn change_that_waits_again_keeps_its_place() {
        let mut requests = Requests::new();
        let [a, b] = [0..8, 0..8].map(|range| change(&mut requests, range));
        requests.run(a, 0);
        requests.wait(b);
        requests.wait(a);
        assert_eq!(ready(&mut requests, true), [a]);
    }

    #[test]
    fn ready_requests_come_in_the_order_of_submission() {
        let mut requests = Requests::new();
        let a = change(&mut requests, 0..8);
        let b = requests.submit(Kind::Read, 0..8, 0, 0);
        let c = change(&mut requests, 8..16);
        let d = requests.submit(Kind::Flush, 0..0, 0, 0);
        [d, c, b, a].into_iter().for_each(|id| requests.wait(id));
        assert_eq!(ready(&mut requests, false), [b, d], "no room for changes");
        assert_eq!(ready(&mut requests, true), [a, c]);
        [a, b, c, d].into_iter().for_each(|id| requests.wait(id));
        assert_eq!(ready(&mut requests, true), [a, b, c, d]);
    }

    #[test]
    fn running_or_ended_request_is_not_ready() {
        let mut requests = Requests::new();
        let ids = [0..8, 8..16].map(|range| change(&mut requests, range));
        let read = requests.submit(Kind::Read, 0..8, 0, 0);
        ids.into_iter().for_each(|id| requests.wait(id));
        requests.wait(read);
        requests.run(ids[0], 0);
        requests.remove(ids[1]);
        requests.remove(read);
        assert_eq!(ready(&mut requests, true), []);
        assert!(requests.remove(read).is_none());
    }

    /// A queue of changes to the same bytes behind one that runs: whatever else ends finds nothing to look at.
    #[test]
    fn those_that_wait_for_another_are_not_looked_at() {
        let mut requests = Requests::new();
        let first = change(&mut requests, 0..8);
        requests.run(first, 0);
        for _ in 0..10_000 {
            let later = change(&mut requests, 0..8);
            requests.wait(later);
        }
        assert!(requests.ready.is_empty() && requests.ready_changes.is_empty());
        requests.remove(first);
        assert_eq!(requests.ready_changes.len(), 1, "the next alone");
    }
}
