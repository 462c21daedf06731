//! Task attributes (SAM-5, 8.6): when a command may be offered to the front, once it is its turn by
//! CmdSN.
//!
//! An ordered command waits for all before it, and all after it wait for it. What it orders here is the
//! whole session rather than one unit: more than is asked for, of a thing that is rare. Where it is not, in a session
//! that stops at a failure, reads have no place in the order.
//!
//! A command of a sequential unit waits for those before it of the same unit. Each begins where the one before has ended,
//! and one whose data are still on their way must not be overtaken by one whose data have come with it. A unit that keeps
//! them in order itself, the ordered ones too, has each as soon as it has the one before.

use std::collections::{BTreeMap, VecDeque};

use super::task::{TaskId, Tasks};
use crate::iscsi::header::TaskAttribute;
use crate::scsi::Sequence;

/// The commands that wait for others.
#[derive(Debug, Default)]
pub(super) struct Order {
    behind: VecDeque<TaskId>,
    /// The ordered command under way.
    barrier: Option<TaskId>,
    /// The units on which commands are carried out one after the other.
    sequential: BTreeMap<u16, Sequence>,
    /// Their commands under way for which others wait.
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
    pub(super) fn set_sequential(&mut self, units: BTreeMap<u16, Sequence>) {
        self.sequential = units;
    }

    /// Whether commands of this unit are carried out one after the other.
    pub(super) fn is_sequential(&self, unit: u16) -> bool {
        self.sequential.contains_key(&unit)
    }

    /// The next command that need not wait any more.
    pub(super) fn next(&mut self, tasks: &mut Tasks) -> Option<TaskId> {
        if self.barrier.is_some() || self.is_stopped {
            return None;
        }
        let taken: Vec<_> = self.running.iter().map(|(unit, _)| *unit).collect();
        for (at, &id) in self.behind.iter().enumerate() {
            let task = tasks.get(id);
            let is_ordered =
                task.as_ref().is_some_and(|task| task.attribute == TaskAttribute::ORDERED);
            let unit = task.and_then(|task| task.lun);
            let sequence = unit.and_then(|unit| Some((unit, *self.sequential.get(&unit)?)));
            let keeps_order = matches!(sequence, Some((_, Sequence::Started)));
            if is_ordered && !keeps_order {
                if at > 0 || tasks.ordered() > self.behind.len() {
                    return None;
                }
                self.barrier = Some(id);
                return self.behind.pop_front();
            }
            match sequence {
                Some((unit, _)) if taken.contains(&unit) => continue,
                Some((unit, _)) => self.running.push((unit, id)),
                None => {}
            }
            return self.behind.remove(at);
        }
        None
    }

    /// The unit has a command. Whether one may begin that has waited for that.
    pub(super) fn begun(&mut self, id: TaskId) -> bool {
        let Some(at) = self.running.iter().position(|(_, running)| *running == id) else {
            return false;
        };
        let is_next = self.sequential.get(&self.running[at].0) == Some(&Sequence::Started);
        if is_next {
            self.running.remove(at);
        }
        is_next
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
