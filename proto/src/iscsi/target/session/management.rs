//! Task management (RFC 7143, 11.5 and 4.2.3; RFC 7144, 6).
//!
//! A task whose data are still on their way is ended at once, and its data are drained. RFC 7143, 4.2.3.3 has
//! the target wait for them; but common initiators send no more data of what they abort, unless told to.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::Session;
use super::turn::Waiting;
use crate::iscsi::header::{
    LogoutResponse, LogoutResponseCode, TaskFunction, TaskManagementRequest,
    TaskManagementResponse, TaskResponse,
};
use crate::iscsi::target::pending::{FollowUp, Request, Scope};
use crate::iscsi::target::task::{State, Task, TaskId};
use crate::iscsi::target::{Ending, Event, MANAGEMENT_MAX};
use crate::iscsi::window::Serial;
use crate::scsi::lun;
use crate::time::Time;

/// The level of RFC 7144, from which its functions are known.
const PROTOCOL_LEVEL_SAM5: u8 = 2;

impl Session {
    pub(super) fn on_task_management(&mut self, cid: u16, request: &TaskManagementRequest) {
        if !self.may_manage(cid) {
            return self.respond_managed(cid, request.itt, TaskResponse::REJECTED);
        }
        let unit = lun::decode(request.lun.to_be_bytes());
        let level = self.parameters.protocol_level;
        let names_request = self.pending.has(request.referenced_tag);
        match request.function {
            // RFC 7143, 11.5.1; RFC 7144, 6.3: neither is done to a task management request.
            TaskFunction::ABORT_TASK | TaskFunction::QUERY_TASK if names_request => {
                self.respond_managed(cid, request.itt, TaskResponse::REJECTED);
            }
            TaskFunction::ABORT_TASK => self.abort_task(cid, request, unit),
            TaskFunction::ABORT_TASK_SET
            | TaskFunction::CLEAR_TASK_SET
            | TaskFunction::LOGICAL_UNIT_RESET => {
                self.abort_many(cid, request, Scope::Unit(unit));
            }
            TaskFunction::TARGET_WARM_RESET | TaskFunction::TARGET_COLD_RESET => {
                self.abort_many(cid, request, Scope::Nexus);
            }
            TaskFunction::I_T_NEXUS_RESET if level >= PROTOCOL_LEVEL_SAM5 => {
                self.abort_many(cid, request, Scope::Nexus);
            }
            TaskFunction::QUERY_TASK if level >= PROTOCOL_LEVEL_SAM5 => {
                let found = self.tasks.find(request.referenced_tag).is_some();
                self.respond_managed(cid, request.itt, query(found));
            }
            TaskFunction::QUERY_TASK_SET if level >= PROTOCOL_LEVEL_SAM5 => {
                let there = |task: &Task| task.lun == unit && task.state != State::Aborted;
                let found = !self.tasks.select(there).is_empty();
                self.respond_managed(cid, request.itt, query(found));
            }
            TaskFunction::QUERY_ASYNCHRONOUS_EVENT if level >= PROTOCOL_LEVEL_SAM5 => {
                self.respond_managed(cid, request.itt, query(false));
            }
            // RFC 7143, 7.2.2: only error recovery level 2 moves allegiance.
            TaskFunction::TASK_REASSIGN => {
                self.respond_managed(cid, request.itt, TaskResponse::REASSIGNMENT_NOT_SUPPORTED);
            }
            // CLEAR ACA among them: no unit here establishes one (NORMACA is zero).
            _ => self.respond_managed(cid, request.itt, TaskResponse::NOT_SUPPORTED),
        }
    }

    /// Whether a connection may have one more request under way. Those of connections that were lost count, too: they
    /// could come back for more.
    fn may_manage(&self, cid: u16) -> bool {
        let (all, own) = self.pending.count(cid);
        // RFC 7143, 4.2.2.1: each connection may have one, whatever the others have.
        let most = MANAGEMENT_MAX + if own == 0 { self.connections.len() } else { 0 };
        all < most
    }

    /// RFC 7143, 11.6.1: a task that is there is aborted; one that may still come counts as received;
    /// one that cannot come does not exist.
    fn abort_task(&mut self, cid: u16, request: &TaskManagementRequest, unit: Option<u16>) {
        let found = self.tasks.find(request.referenced_tag);
        let found = found.filter(|id| self.tasks.get(*id).is_some_and(|task| task.lun == unit));
        let response = if found.is_some() || self.abort_unseen(request) {
            TaskResponse::COMPLETE
        } else {
            TaskResponse::TASK_DOES_NOT_EXIST
        };
        let follow_up =
            FollowUp::Respond { cid, itt: request.itt, response, function: request.function };
        self.abort(found.into_iter().collect(), None, false, follow_up);
    }

    /// Whether the task is one that never came and now need not.
    fn abort_unseen(&mut self, request: &TaskManagementRequest) -> bool {
        let sn = Serial(request.ref_cmd_sn);
        sn.is_before(Serial(request.cmd_sn)) && self.window.awaits(sn) && self.window.skip(sn)
    }

    fn abort_many(&mut self, cid: u16, request: &TaskManagementRequest, scope: Scope) {
        let limit = Serial(request.cmd_sn);
        let tasks = self.tasks.select(|task| {
            // RFC 7143, 11.5.1: what was issued before the request, whether it came before or not. An
            // immediate command carries the number that the next one has.
            let sn = Serial(task.cmd_sn);
            let earlier = sn.is_before(limit) || (task.immediate && sn == limit);
            scope.covers(task.lun) && earlier
        });
        if matches!(scope, Scope::Nexus) {
            // RFC 7143, 4.2.3.3: what has not come by then counts as received.
            self.window.skip_before(limit);
        }
        let (itt, function, lun) = (request.itt, request.function, request.lun.to_be_bytes());
        let follow_up = FollowUp::Respond { cid, itt, response: TaskResponse::COMPLETE, function };
        let request = self.abort(tasks, Some((limit, scope)), true, follow_up);
        self.events.push_back(Event::Manage { request, function, lun });
        self.settle();
    }

    /// The front has done its part of a request.
    pub fn managed(&mut self, request: Request, outcome: TaskResponse) {
        self.pending.managed(request, outcome);
        self.settle();
    }

    /// Another session ends the tasks of a unit, or all: none of them is answered. When the last one
    /// is dead, [`Event::Cleared`] brings `ticket` back.
    pub fn clear(&mut self, unit: Option<u16>, ticket: u64) {
        let scope = unit.map_or(Scope::Nexus, |unit| Scope::Unit(Some(unit)));
        let tasks = self.tasks.select(|task| scope.covers(task.lun));
        if !tasks.is_empty() {
            self.stop();
        }
        self.abort(tasks, None, false, FollowUp::Tell { ticket });
    }

    /// Another connection is about to take the number of this one, whose tasks end without further notice
    /// (RFC 7143, 6.3.4). When they have, [`Event::Cleared`] brings `ticket` back. The connection is
    /// removed at once.
    pub fn replace_connection(&mut self, now: Time, cid: u16, ticket: u64) {
        self.remove(now, cid);
        let tasks = self.take_tasks_of(cid);
        self.abort(tasks, None, false, FollowUp::Tell { ticket });
    }

    /// The tasks of a connection that is over, while the session goes on: whoever waits for the answer to one that was
    /// not aborted is told that there is none.
    fn take_tasks_of(&mut self, cid: u16) -> Vec<TaskId> {
        let tasks = self.tasks.select(|task| task.cid == cid);
        let unanswered = |id: &TaskId| {
            let task = self.tasks.get(*id).filter(|task| task.state != State::Aborted);
            task.map(|task| task.lun_field)
        };
        let units: BTreeSet<u64> = tasks.iter().filter_map(unanswered).collect();
        let cleared = |lun: u64| Event::CommandsCleared { lun: lun.to_be_bytes() };
        self.events.extend(units.into_iter().map(cleared));
        tasks
    }

    /// The tasks end without an answer, what is held in the window as well; then the logout is
    /// answered, so that its response is the last thing sent (RFC 7143, 11.14). `closes` is the connection
    /// that is logged out; `None` for the session.
    pub(super) fn log_out(&mut self, cid: u16, itt: u32, closes: Option<u16>) {
        let tasks = match closes {
            Some(closes) => self.take_tasks_of(closes),
            None => self.tasks.select(|_| true),
        };
        if let Some(closes) = closes {
            self.forget_held(closes);
            // RFC 7143, 11.14: nothing new comes by it.
            self.connection(closes).into_iter().for_each(|connection| connection.leaving = true);
        }
        self.abort(tasks, None, false, FollowUp::LogOut { cid, itt, closes });
    }

    /// What came by a connection and waits for its turn counts as received.
    fn forget_held(&mut self, cid: u16) {
        self.window.skip_held(|held| matches!(held, Waiting::Pdu(by, _) if *by == cid));
    }

    /// A connection is gone: nothing is answered on it, whoever has its number next.
    pub(super) fn detach_connection(&mut self, cid: u16) {
        self.forget_held(cid);
        self.pending.forget_connection(cid);
    }

    fn abort(
        &mut self,
        tasks: Vec<TaskId>,
        coming: Option<(Serial, Scope)>,
        front: bool,
        follow_up: FollowUp,
    ) -> Request {
        let tasks = tasks.into_iter().filter(|id| self.abort_one(*id)).collect();
        let request = self.pending.add(tasks, coming, front, follow_up);
        if !front {
            self.settle();
        }
        request
    }

    /// A command has come to its turn: it is offered, unless a request that came before it means it.
    pub(super) fn offer_task(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        let attribute = task.attribute;
        if self.pending.waits_for(task) {
            self.abort_one(id);
        } else {
            self.offer(id, attribute);
        }
    }

    /// Requests have been received: task management may have waited for them.
    pub(super) fn settle_received(&mut self) {
        if !self.pending.is_empty() {
            self.settle();
        }
    }

    /// Aborts a task; whether it goes on in the front.
    fn abort_one(&mut self, id: TaskId) -> bool {
        let Some(task) = self.tasks.get(id) else { return false };
        match task.state {
            State::Running => {
                task.state = State::Aborted;
                task.inbound.discard();
                self.tasks.forget_tag(id);
                self.events.push_back(Event::Abort(id));
                true
            }
            State::Aborted => true,
            // The front may have been offered it; it learns from `want_data` that it is gone. Data
            // still on their way find no task and are drained.
            State::Ahead(_) | State::Offered | State::Collecting | State::Failing(_) => {
                if let Some(task) = self.tasks.remove(id) {
                    self.release(id, &task);
                }
                false
            }
        }
    }

    pub(super) fn on_task_dead(&mut self, id: TaskId) {
        self.pending.forget_task(id);
        self.settle();
    }

    /// Ends what has nothing left to wait for.
    fn settle(&mut self) {
        // RFC 7143, 4.2.3.3: all commands the request concerns have come. On one connection, what has not
        // come before the request never will.
        let (expected, several) = (self.window.expected(), self.connections.len() > 1);
        let awaits = |limit: Serial| several && expected.is_before(limit);
        while let Some(follow_up) = self.pending.take_ended(awaits) {
            match follow_up {
                FollowUp::Nothing => {}
                FollowUp::Tell { ticket } => {
                    self.tell_window();
                    self.events.push_back(Event::Cleared { ticket });
                    self.end_stopped();
                }
                FollowUp::LogOut { cid, itt, closes } => {
                    self.respond_logged_out(cid, itt, LogoutResponseCode::CLOSED);
                    match closes {
                        Some(closes) => self.events.push_back(Event::CloseConnection(closes)),
                        None => self.close(Ending::Logout),
                    }
                }
                FollowUp::Respond { cid, itt, response, function } => {
                    self.respond_managed(cid, itt, response);
                    // RFC 7143, 11.5.1: a cold reset ends every connection.
                    let cold = function == TaskFunction::TARGET_COLD_RESET;
                    if cold && response == TaskResponse::COMPLETE {
                        self.close(Ending::ColdReset);
                    }
                    // It may have ended what the session would have ended with.
                    self.end_stopped();
                }
            }
        }
    }

    fn respond_managed(&mut self, cid: u16, itt: u32, response: TaskResponse) {
        self.send_status(cid, Bytes::new(), |numbers| TaskManagementResponse {
            response,
            itt,
            stat_sn: numbers.stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
        });
    }

    pub(super) fn respond_logged_out(&mut self, cid: u16, itt: u32, response: LogoutResponseCode) {
        let time2wait = self.parameters.default_time2wait;
        self.send_status(cid, Bytes::new(), |numbers| LogoutResponse {
            response,
            itt,
            stat_sn: numbers.stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
            time2wait,
            time2retain: 0,
        });
    }
}

/// RFC 7144, 6.4.2: a query answers "complete" for nothing found and "succeeded" for something.
const fn query(found: bool) -> TaskResponse {
    if found { TaskResponse::SUCCEEDED } else { TaskResponse::COMPLETE }
}
