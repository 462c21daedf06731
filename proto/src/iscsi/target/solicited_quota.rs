//! Memory for solicited data: how much a session may ask for, and whose turn it is.

use std::collections::VecDeque;

use super::task::TaskId;

/// How much a session is asked for ahead of what has come, before it has sent anything; and the most that one task
/// reserves at once or not at all.
const AHEAD: u64 = 1 << 20;

/// The least that is reserved for a task of which more is to come: less would be asked for by many small R2Ts.
const STEP_MIN: u64 = 256 << 10;

/// What the task that waits first needs of solicited data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes to reserve now.
    pub now: u64,
    /// Bytes that it cannot end without and that are to be reserved later, while it holds those of now.
    pub later: u64,
}

/// The session's allowance of solicited data, granted in turn. One task at a time holds a part of what it needs; the
/// next one begins when that has all.
#[derive(Debug)]
pub(super) struct SolicitedDataQuota {
    held: u64,
    most: u64,
    waiting: VecDeque<TaskId>,
    /// Bytes that are reserved and have not come.
    awaited: u64,
    /// All solicited bytes that have come: an initiator is asked for as much ahead as it has sent, so that one that
    /// sends nothing holds little, and one that sends soon holds what its link takes.
    arrived: u64,
}

impl SolicitedDataQuota {
    pub(super) const fn new(most: u64) -> Self {
        Self { held: 0, most, waiting: VecDeque::new(), awaited: 0, arrived: 0 }
    }

    pub(super) const fn held(&self) -> u64 {
        self.held
    }

    /// Allows that much from now on. What is held stays held.
    pub(super) const fn set_most(&mut self, most: u64) {
        self.most = most;
    }

    /// The task that waits first.
    pub(super) fn first(&self) -> Option<TaskId> {
        self.waiting.front().copied()
    }

    /// One more task waits.
    pub(super) fn wait(&mut self, id: TaskId) {
        self.waiting.push_back(id);
    }

    /// The task that waits first waits no more.
    pub(super) fn pass(&mut self) {
        self.waiting.pop_front();
    }

    /// Reserves `bytes`, if that much is allowed.
    pub(super) const fn reserve(&mut self, bytes: u64) -> bool {
        let fits = self.held + bytes <= self.most;
        if fits {
            self.held += bytes;
            self.awaited += bytes;
        }
        fits
    }

    /// Bytes that were reserved have come.
    pub(super) const fn arrive(&mut self, bytes: u64) {
        self.awaited -= bytes;
        self.arrived = self.arrived.saturating_add(bytes);
    }

    /// A task is gone that held `reserved` bytes, of which `arrived` had come.
    pub(super) const fn release(&mut self, reserved: u64, arrived: u64) {
        self.held -= reserved;
        self.awaited -= reserved - arrived;
    }

    /// How much of `unreserved` bytes may be reserved next; `None` if data have to come before that.
    pub(super) fn step(&self, unreserved: u64, begun: bool) -> Option<u64> {
        let room = (AHEAD + self.arrived).saturating_sub(self.awaited);
        let whole = !begun && unreserved <= AHEAD;
        let least = if whole { unreserved } else { unreserved.min(STEP_MIN) };
        (room >= least).then_some(unreserved.min(room))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_that_ends_frees_its_reservation() {
        let mut allowance = SolicitedDataQuota::new(100);
        assert!(allowance.reserve(60) && !allowance.reserve(41) && allowance.reserve(40));
        allowance.arrive(60);
        allowance.release(60, 60);
        assert_eq!((allowance.held(), allowance.awaited), (40, 40));
        assert!(allowance.reserve(60));
    }

    /// An initiator that sends nothing is asked for little, and one that sends for as much as it has sent.
    #[test]
    fn as_much_is_asked_for_ahead_as_has_come() {
        let mut allowance = SolicitedDataQuota::new(u64::MAX);
        let large = 64 * AHEAD;
        assert_eq!(allowance.step(large, false), Some(AHEAD));
        allowance.reserve(AHEAD);
        assert_eq!(allowance.step(large, true), None, "nothing has come");
        allowance.arrive(STEP_MIN / 2);
        assert_eq!(allowance.step(large, true), Some(STEP_MIN));
        allowance.arrive(AHEAD - STEP_MIN / 2);
        assert_eq!(allowance.step(large, true), Some(2 * AHEAD));
    }

    #[test]
    fn small_transfer_is_reserved_at_once_or_not_at_all() {
        let mut allowance = SolicitedDataQuota::new(u64::MAX);
        allowance.reserve(AHEAD / 2);
        assert_eq!(allowance.step(AHEAD, false), None);
        assert_eq!(allowance.step(AHEAD / 2, false), Some(AHEAD / 2));
        assert_eq!(allowance.step(AHEAD, true), Some(AHEAD / 2), "it has begun");
    }
}
