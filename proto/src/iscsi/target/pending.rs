//! Requests that wait for tasks to end.

use super::task::{Task, TaskId};
use crate::iscsi::header::{TaskFunction, TaskResponse};
use crate::iscsi::window::Serial;

/// Names a request to the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request(u64);

/// What happens when the tasks concerned are dead. A request is answered on the connection it came by.
#[derive(Debug)]
pub(super) enum FollowUp {
    Respond {
        cid: u16,
        itt: u32,
        response: TaskResponse,
        function: TaskFunction,
    },
    Tell {
        ticket: u64,
    },
    /// Of one connection, or of the session.
    LogOut {
        cid: u16,
        itt: u32,
        closes: Option<u16>,
    },
    /// The connection that asked is gone.
    Nothing,
}

/// Something that waits for tasks to die, and perhaps for the front to do its part.
#[derive(Debug)]
struct Pending {
    request: Request,
    tasks: Vec<TaskId>,
    /// Commands it concerns that may still be on their way: those before this number.
    coming: Option<(Serial, Scope)>,
    front: bool,
    follow_up: FollowUp,
}

/// Which tasks a function concerns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scope {
    Unit(Option<u16>),
    Nexus,
}

impl Scope {
    pub(super) fn covers(self, unit: Option<u16>) -> bool {
        match self {
            Self::Unit(wanted) => unit == wanted,
            Self::Nexus => true,
        }
    }
}

impl Pending {
    /// Whether a task that has just come was meant when the request came.
    fn waits_for(&self, task: &Task) -> bool {
        self.coming.is_some_and(|(limit, scope)| {
            scope.covers(task.lun) && Serial(task.cmd_sn).is_before(limit)
        })
    }
}

/// What waits: requests of the initiator, limited by [`MANAGEMENT_MAX`](super::MANAGEMENT_MAX), and the front's own.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    all: Vec<Pending>,
    next: u64,
}

impl PendingRequests {
    /// `follow_up` happens when `tasks` are dead, when all before the number of `coming` have come, and, if it has a part, when
    /// the front has done that.
    pub(super) fn add(
        &mut self,
        tasks: Vec<TaskId>,
        coming: Option<(Serial, Scope)>,
        front: bool,
        follow_up: FollowUp,
    ) -> Request {
        let request = Request(self.next);
        self.next += 1;
        self.all.push(Pending { request, tasks, coming, front, follow_up });
        request
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// How many requests of the initiator there are, and how many of them came by a connection. Those of connections that
    /// were lost count, too.
    pub(super) fn count(&self, cid: u16) -> (usize, usize) {
        let (mut all, mut own) = (0, 0);
        for pending in &self.all {
            match pending.follow_up {
                FollowUp::Respond { cid: by, .. } => {
                    all += 1;
                    own += usize::from(by == cid);
                }
                FollowUp::Nothing => all += 1,
                FollowUp::Tell { .. } | FollowUp::LogOut { .. } => {}
            }
        }
        (all, own)
    }

    /// Whether a task management request of this tag is under way.
    pub(super) fn has(&self, tag: u32) -> bool {
        let named =
            |it: &Pending| matches!(it.follow_up, FollowUp::Respond { itt, .. } if itt == tag);
        self.all.iter().any(named)
    }

    /// Whether a request that came before a task means it.
    pub(super) fn waits_for(&self, task: &Task) -> bool {
        self.all.iter().any(|pending| pending.waits_for(task))
    }

    /// The front has done its part of a request.
    pub(super) fn managed(&mut self, request: Request, outcome: TaskResponse) {
        let pending = self.all.iter_mut().find(|pending| pending.request == request);
        let Some(pending) = pending else { return };
        pending.front = false;
        if let FollowUp::Respond { response, .. } = &mut pending.follow_up {
            *response = outcome;
        }
    }

    /// A task is dead.
    pub(super) fn forget_task(&mut self, id: TaskId) {
        self.all.iter_mut().for_each(|pending| pending.tasks.retain(|task| *task != id));
    }

    /// A connection is gone: nothing is answered on it, whoever has its number next.
    pub(super) fn forget_connection(&mut self, cid: u16) {
        for pending in &mut self.all {
            if let FollowUp::Respond { cid: by, .. } | FollowUp::LogOut { cid: by, .. } =
                pending.follow_up
                && by == cid
            {
                pending.follow_up = FollowUp::Nothing;
            }
        }
    }

    /// Takes one that has nothing left to wait for. `awaits` says whether commands before a number may still come.
    pub(super) fn take_ended(&mut self, awaits: impl Fn(Serial) -> bool) -> Option<FollowUp> {
        let at = self.all.iter().position(|pending| {
            let coming = pending.coming.is_some_and(|(limit, _)| awaits(limit));
            pending.tasks.is_empty() && !pending.front && !coming
        })?;
        Some(self.all.remove(at).follow_up)
    }

    /// Whether anybody waits for tasks to die.
    #[cfg(any(test, feature = "invariants"))]
    pub(super) fn is_waiting_for_tasks(&self) -> bool {
        // Commands that have not come by other connections may never come.
        self.all.iter().any(|pending| pending.coming.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respond(cid: u16, itt: u32) -> FollowUp {
        let (response, function) = (TaskResponse::COMPLETE, TaskFunction::LOGICAL_UNIT_RESET);
        FollowUp::Respond { cid, itt, response, function }
    }

    #[test]
    fn request_ends_when_commands_have_come_and_the_front_has_done_its_part() {
        let mut pending = PendingRequests::default();
        let request = pending.add(Vec::new(), Some((Serial(7), Scope::Nexus)), true, respond(1, 5));
        assert!(pending.take_ended(|_| false).is_none(), "the front has a part");
        pending.managed(request, TaskResponse::REJECTED);
        assert!(pending.take_ended(|limit| limit == Serial(7)).is_none());
        let follow_up = pending.take_ended(|_| false);
        let rejected = TaskResponse::REJECTED;
        assert!(
            matches!(follow_up, Some(FollowUp::Respond { itt: 5, response, .. }) if response == rejected)
        );
        assert!(pending.is_empty());
    }

    #[test]
    fn request_of_a_lost_connection_counts_and_is_not_answered() {
        let mut pending = PendingRequests::default();
        for (cid, itt) in [(1, 5), (2, 6)] {
            pending.add(Vec::new(), None, false, respond(cid, itt));
        }
        pending.add(Vec::new(), None, false, FollowUp::Tell { ticket: 9 });
        pending.forget_connection(1);
        assert_eq!((pending.count(1), pending.count(2)), ((2, 0), (2, 1)));
        assert!(!pending.has(5) && pending.has(6));
        assert!(matches!(pending.take_ended(|_| false), Some(FollowUp::Nothing)));
    }
}
