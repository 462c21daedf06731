//! Callers that wait: for an answer, or in the line for room.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::super::WaiterId;
use crate::Error;

/// What a caller waited for; the error may be the answer to several.
pub(in super::super) type Answer = Result<(), Arc<Error>>;

/// An answer that a caller waits for.
#[derive(Default)]
struct Slot {
    /// How many parts of it are still to come.
    left: usize,
    error: Option<Arc<Error>>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Waiters {
    last: WaiterId,
    slots: BTreeMap<WaiterId, Slot>,
    /// Writers that wait for room, the longest waiting first.
    line: VecDeque<WaiterId>,
    called: Vec<WaiterId>,
}

impl Waiters {
    /// A name for a caller that has to wait.
    pub(super) const fn name(&mut self) -> WaiterId {
        self.last += 1;
        self.last
    }

    // Answers.

    /// One more part has to end before `waiter` is answered.
    pub(super) fn expect(&mut self, waiter: WaiterId) {
        self.slots.entry(waiter).or_default().left += 1;
    }

    /// Whether there is an answer to come for `waiter`, or one to be taken.
    pub(super) fn awaits(&self, waiter: Option<WaiterId>) -> bool {
        waiter.is_some_and(|waiter| self.slots.contains_key(&waiter))
    }

    /// The answer that `waiter` waits for, if it is there.
    pub(super) fn answer(&mut self, waiter: WaiterId) -> Option<Answer> {
        let slot = self.slots.get(&waiter)?;
        if slot.left > 0 {
            return None;
        }
        Some(self.slots.remove(&waiter)?.error.map_or(Ok(()), Err))
    }

    /// A part has ended. The first error is the answer.
    pub(super) fn settle(&mut self, waiter: WaiterId, error: Option<&Arc<Error>>) {
        if let Some(slot) = self.slots.get_mut(&waiter) {
            // None is left where all were answered with an error meanwhile.
            slot.left = slot.left.saturating_sub(1);
            if slot.error.is_none() {
                slot.error = error.cloned();
            }
            if slot.left == 0 {
                self.called.push(waiter);
            }
        }
    }

    /// Answers all with an error: no part that is missing will end.
    pub(super) fn fail_all(&mut self, error: &Arc<Error>) {
        for slot in self.slots.values_mut().filter(|slot| slot.left > 0) {
            *slot = Slot { left: 0, error: Some(Arc::clone(error)) };
        }
        self.called.extend(self.slots.keys());
    }

    // The line.

    /// Whether `waiter` may go in: a later one does not overtake, even if it would fit.
    pub(super) fn is_first(&self, waiter: Option<WaiterId>) -> bool {
        self.line.is_empty() || self.line.front() == waiter.as_ref()
    }

    pub(super) fn join_line(&mut self, waiter: WaiterId) {
        self.line.push_back(waiter);
    }

    /// The first has gone in, and the next may try.
    pub(super) fn leave_line(&mut self) {
        self.line.pop_front();
        self.call_next();
    }

    /// The caller no longer waits.
    pub(super) fn leave(&mut self, waiter: WaiterId) {
        self.slots.remove(&waiter);
        if let Some(place) = self.line.iter().position(|queued| *queued == waiter) {
            self.line.remove(place);
            self.call_next();
        }
    }

    /// There may be room for the first in the line.
    pub(super) fn call_next(&mut self) {
        self.called.extend(self.line.front());
    }

    /// There will be no room any more: all in the line are to notice.
    pub(super) fn call_line(&mut self) {
        self.called.extend(&self.line);
    }

    /// Those who may go on since this was last asked.
    pub(super) fn called(&mut self) -> std::vec::Drain<'_, WaiterId> {
        self.called.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Verb};

    #[test]
    fn answer_of_several_parts_is_there_after_the_last_and_is_the_first_error() {
        let mut waiters = Waiters::default();
        let waiter = waiters.name();
        (0..3).for_each(|_| waiters.expect(waiter));
        let errors = [Kind::Medium, Kind::Gone].map(|kind| Error::new(kind, Verb::Write, None));
        let [medium, gone] = errors.map(Arc::new);
        for error in [None, Some(&medium), Some(&gone)] {
            assert!(waiters.answer(waiter).is_none());
            assert!(waiters.called().next().is_none());
            waiters.settle(waiter, error);
        }
        assert_eq!(waiters.called().collect::<Vec<_>>(), [waiter]);
        assert_eq!(waiters.answer(waiter).unwrap().unwrap_err().kind, Kind::Medium);
        assert!(!waiters.awaits(Some(waiter)), "an answer is given once");
    }

    #[test]
    fn part_that_ends_after_its_caller_left_calls_nobody() {
        let mut waiters = Waiters::default();
        let waiter = waiters.name();
        waiters.expect(waiter);
        waiters.leave(waiter);
        waiters.settle(waiter, None);
        assert!(waiters.called().next().is_none());
    }

    #[test]
    fn line_goes_on_when_its_first_leaves() {
        let mut waiters = Waiters::default();
        let (first, second) = (waiters.name(), waiters.name());
        waiters.join_line(first);
        waiters.join_line(second);
        assert!(waiters.is_first(Some(first)) && !waiters.is_first(Some(second)));
        assert!(!waiters.is_first(None));
        waiters.leave(first);
        assert_eq!(waiters.called().collect::<Vec<_>>(), [second]);
        waiters.leave_line();
        assert!(waiters.called().next().is_none() && waiters.is_first(None));
    }

    #[test]
    fn part_that_ends_after_all_were_failed_changes_no_answer() {
        let mut waiters = Waiters::default();
        let waiter = waiters.name();
        waiters.expect(waiter);
        waiters.fail_all(&Arc::new(Error::new(Kind::Gone, Verb::Write, None)));
        waiters.settle(waiter, None);
        let answer = waiters.answer(waiter).expect("it is there");
        assert_eq!(answer.unwrap_err().kind, Kind::Gone);
    }
}
