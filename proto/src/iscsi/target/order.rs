//! Task attributes (SAM-5, 8.6): when a command may be offered to the front, once it is its turn by
//! CmdSN.
//!
//! An ordered command waits for all before it, and all after it wait for it. What it orders here is the
//! whole session rather than one unit: more than is asked for, of a thing that is rare.

use std::collections::VecDeque;

use super::task::{TaskId, Tasks};
use crate::iscsi::header::TaskAttribute;

/// The commands that wait for others.
#[derive(Debug, Default)]
pub(super) struct Order {
    behind: VecDeque<TaskId>,
    /// The ordered command under way.
    barrier: Option<TaskId>,
    /// Nothing begins any more.
    is_stopped: bool,
}

impl Order {
    /// A command waits for those before it, if it has to.
    pub(super) fn push(&mut self, id: TaskId) {
        self.behind.push_back(id);
    }

    /// The next command that need not wait any more.
    pub(super) fn next(&mut self, tasks: &mut Tasks) -> Option<TaskId> {
        let id = *self.behind.front().filter(|_| self.barrier.is_none() && !self.is_stopped)?;
        if tasks.get(id).is_some_and(|task| task.attribute == TaskAttribute::ORDERED) {
            if tasks.turned() > self.behind.len() {
                return None;
            }
            self.barrier = Some(id);
        }
        self.behind.pop_front()
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
        if self.barrier == Some(id) {
            self.barrier = None;
        }
    }
}
