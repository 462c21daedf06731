//! Task attributes (SAM-5, 8.6): when a command may be offered to the front, once it is its turn by
//! CmdSN.
//!
//! An ordered command waits for all before it, and all after it wait for it. What it orders here is the
//! whole session rather than one unit: more than is asked for, of a thing that is rare.

use std::collections::VecDeque;

use super::Event;
use super::session::Session;
use super::task::TaskId;
use crate::iscsi::header::TaskAttribute;

/// The commands that wait for others.
#[derive(Debug, Default)]
pub(super) struct Order {
    behind: VecDeque<TaskId>,
    /// The ordered command under way.
    barrier: Option<TaskId>,
}

impl Order {
    /// A command ended, or was aborted.
    pub(super) fn forget(&mut self, id: TaskId) {
        self.behind.retain(|waiting| *waiting != id);
        if self.barrier == Some(id) {
            self.barrier = None;
        }
    }
}

impl Session {
    /// A command has come to its turn.
    pub(super) fn offer(&mut self, id: TaskId, attribute: TaskAttribute) {
        if attribute == TaskAttribute::HEAD_OF_QUEUE {
            self.push_command(id);
        } else {
            self.order.behind.push_back(id);
            self.offer_next();
        }
    }

    /// Offers what need not wait any more.
    pub(super) fn offer_next(&mut self) {
        while self.order.barrier.is_none() {
            let Some(&id) = self.order.behind.front() else { return };
            let ordered =
                self.tasks.get(id).is_some_and(|task| task.attribute == TaskAttribute::ORDERED);
            if ordered {
                if self.tasks.turned() > self.order.behind.len() {
                    return;
                }
                self.order.barrier = Some(id);
            }
            self.order.behind.pop_front();
            self.push_command(id);
        }
    }

    fn push_command(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(id) {
            self.events.push_back(Event::Command(task.command(id)));
        }
    }
}
