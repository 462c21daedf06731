//! Task attributes (SAM-5, 8.6): when a command may be offered to the front, once it is its turn by
//! CmdSN.
//!
//! An ordered command waits for all before it, and all after it wait for it. What it orders here is the
//! whole session rather than one unit: more than is asked for, of a thing that is rare. Where it is not, in a session
//! that stops at a failure, reads have no place in the order.
//!
//! A command of a sequential unit waits for those before it of the same unit. Each begins where the one before has ended,
//! and one whose data are still on their way must not be overtaken by one whose data have come with it.

use std::collections::{BTreeSet, VecDeque};

use super::task::{TaskId, Tasks};
use crate::iscsi::header::TaskAttribute;

/// The commands that wait for others.
#[derive(Debug, Default)]
pub(super) struct Order {
    behind: VecDeque<TaskId>,
    /// The ordered command under way.
    barrier: Option<TaskId>,
    /// The units on which commands are carried out one after the other.
    sequential: BTreeSet<u16>,
    /// Their commands under way.
    running: Vec<(u16, TaskId)>,
    /// Nothing begins any more.
    is_stopped: bool,
}

impl Order {
    /// A command waits for those before it, if it has to.
    pub(super) fn push(&mut self, id: TaskId) {
        self.behind.push_back(id);
    }

    /// On which units commands are carried out one after the other from now on.
    pub(super) fn set_sequential(&mut self, units: BTreeSet<u16>) {
        self.sequential = units;
    }

    /// Whether commands of this unit are carried out one after the other.
    pub(super) fn is_sequential(&self, unit: u16) -> bool {
        self.sequential.contains(&unit)
    }

    /// The next command that need not wait any more.
    pub(super) fn next(&mut self, tasks: &mut Tasks) -> Option<TaskId> {
        if self.barrier.is_some() || self.is_stopped {
            return None;
        }
        let taken: Vec<_> = self.running.iter().map(|(unit, _)| *unit).collect();
        for (at, &id) in self.behind.iter().enumerate() {
            let task = tasks.get(id);
            if task.as_ref().is_some_and(|task| task.attribute == TaskAttribute::ORDERED) {
                if at > 0 || tasks.ordered() > self.behind.len() {
                    return None;
                }
                self.barrier = Some(id);
                return self.behind.pop_front();
            }
            let unit = task.and_then(|task| task.lun);
            match unit.filter(|unit| self.sequential.contains(unit)) {
                Some(unit) if taken.contains(&unit) => continue,
                Some(unit) => self.running.push((unit, id)),
                None => {}
            }
            return self.behind.remove(at);
        }
        None
    }

    /// From now on nothing begins that waits, or comes.
    pub(super) const fn stop(&mut self) {
        self.is_stopped = true;
    }

    pub(super) const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// A command ended, or was aborted.
    pub(super) fn forget(&mut self, id: TaskId) {
        self.behind.retain(|waiting| *waiting != id);
        self.running.retain(|(_, running)| *running != id);
        if self.barrier == Some(id) {
            self.barrier = None;
        }
    }
}
