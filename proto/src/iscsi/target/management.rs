//! Task management (RFC 7143, 11.5 and 4.2.3; RFC 7144, 5).

use super::session::Session;
use super::task::{State, Task, TaskId};
use super::{Ending, Event, MANAGEMENT_MAX};
use crate::iscsi::header::{
    Header, LogoutRequest, LogoutResponse, LogoutResponseCode, TaskFunction, TaskManagementRequest,
    TaskManagementResponse, TaskResponse,
};
use crate::iscsi::pdu::Pdu;
use crate::iscsi::window::Serial;
use crate::scsi::lun;

/// The level of RFC 7144, from which its functions are known.
const PROTOCOL_LEVEL_SAM5: u8 = 2;

/// Names a request to the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request(u64);

/// What happens when the tasks concerned are dead.
#[derive(Debug)]
enum Then {
    Respond { itt: u32, response: TaskResponse, function: TaskFunction },
    Tell { ticket: u64 },
    LogOut { itt: u32 },
}

/// Something that waits for tasks to die, and perhaps for the front to do its part.
#[derive(Debug)]
struct Pending {
    request: Request,
    tasks: Vec<TaskId>,
    front: bool,
    then: Then,
}

/// What waits; at most [`MANAGEMENT_MAX`] requests of the initiator, and the front's own.
#[derive(Debug, Default)]
pub(super) struct Management {
    pending: Vec<Pending>,
    next: u64,
}

/// Which tasks a function concerns.
#[derive(Clone, Copy, Debug)]
enum Scope {
    Unit(Option<u16>),
    Nexus,
}

impl Scope {
    fn covers(self, unit: Option<u16>) -> bool {
        match self {
            Self::Unit(wanted) => unit == wanted,
            Self::Nexus => true,
        }
    }
}

impl Session {
    pub(super) fn on_task_management(&mut self, request: &TaskManagementRequest) {
        if self.management.pending.len() >= MANAGEMENT_MAX {
            return self.respond_managed(request.itt, TaskResponse::REJECTED);
        }
        let unit = lun::decode(request.lun.to_be_bytes());
        let level = self.parameters.protocol_level;
        match request.function {
            TaskFunction::ABORT_TASK => self.abort_task(request, unit),
            TaskFunction::ABORT_TASK_SET
            | TaskFunction::CLEAR_TASK_SET
            | TaskFunction::LOGICAL_UNIT_RESET => {
                self.abort_many(request, Scope::Unit(unit));
            }
            TaskFunction::TARGET_WARM_RESET | TaskFunction::TARGET_COLD_RESET => {
                self.abort_many(request, Scope::Nexus);
            }
            TaskFunction::I_T_NEXUS_RESET if level >= PROTOCOL_LEVEL_SAM5 => {
                self.abort_many(request, Scope::Nexus);
            }
            TaskFunction::QUERY_TASK if level >= PROTOCOL_LEVEL_SAM5 => {
                let found = self.tasks.find(request.referenced_tag).is_some();
                self.respond_managed(request.itt, query(found));
            }
            TaskFunction::QUERY_TASK_SET if level >= PROTOCOL_LEVEL_SAM5 => {
                let there = |task: &Task| task.lun == unit && task.state != State::Aborted;
                let found = !self.tasks.select(there).is_empty();
                self.respond_managed(request.itt, query(found));
            }
            TaskFunction::QUERY_ASYNCHRONOUS_EVENT if level >= PROTOCOL_LEVEL_SAM5 => {
                self.respond_managed(request.itt, query(false));
            }
            // RFC 7143, 11.5.1: only error recovery level 2 moves allegiance.
            TaskFunction::TASK_REASSIGN => {
                self.respond_managed(request.itt, TaskResponse::REASSIGNMENT_NOT_SUPPORTED);
            }
            // CLEAR ACA among them: no unit here establishes one (NORMACA is zero).
            _ => self.respond_managed(request.itt, TaskResponse::NOT_SUPPORTED),
        }
    }

    /// RFC 7143, 11.5.5: a task that is there is aborted; one that may still come counts as received;
    /// one that cannot come does not exist.
    fn abort_task(&mut self, request: &TaskManagementRequest, unit: Option<u16>) {
        let found = self.tasks.find(request.referenced_tag);
        let found = found.filter(|id| self.tasks.get(*id).is_some_and(|task| task.lun == unit));
        let response = if found.is_some() || self.abort_unseen(request) {
            TaskResponse::COMPLETE
        } else {
            TaskResponse::TASK_DOES_NOT_EXIST
        };
        let itt = request.itt;
        let then = Then::Respond { itt, response, function: request.function };
        self.abort(found.into_iter().collect(), false, then);
    }

    /// Whether the task is one that waits in the window, or never came and now need not.
    fn abort_unseen(&mut self, request: &TaskManagementRequest) -> bool {
        let mut held = false;
        self.window.skip_held(|pdu| {
            let command = command_of(pdu).filter(|c| c.itt == request.referenced_tag);
            held |= command.is_some();
            command.is_some()
        });
        let before = Serial(request.ref_cmd_sn).is_before(Serial(request.cmd_sn));
        held || (before && self.window.skip(Serial(request.ref_cmd_sn)))
    }

    fn abort_many(&mut self, request: &TaskManagementRequest, scope: Scope) {
        let limit = Serial(request.cmd_sn);
        let tasks = self.tasks.select(|task| {
            // RFC 7143, 4.2.3.2: what was issued before the request, whether it came before or not.
            let earlier = request.immediate || Serial(task.cmd_sn).is_before(limit);
            scope.covers(task.lun) && earlier
        });
        self.window.skip_held(|pdu| {
            command_of(pdu).is_some_and(|command| {
                let unit = lun::decode(command.lun.to_be_bytes());
                scope.covers(unit) && Serial(command.cmd_sn).is_before(limit)
            })
        });
        let (itt, function, lun) = (request.itt, request.function, request.lun.to_be_bytes());
        let then = Then::Respond { itt, response: TaskResponse::COMPLETE, function };
        let request = self.abort(tasks, true, then);
        self.events.push_back(Event::Manage { request, function, lun });
        self.settle();
    }

    /// The front has done its part of a request.
    pub fn managed(&mut self, request: Request, outcome: TaskResponse) {
        let mut pending = self.management.pending.iter_mut();
        if let Some(pending) = pending.find(|pending| pending.request == request) {
            pending.front = false;
            if let Then::Respond { response, .. } = &mut pending.then {
                *response = outcome;
            }
        }
        self.settle();
    }

    /// Another session ends the tasks of a unit, or all: none of them is answered. When the last one
    /// is dead, [`Event::Cleared`] brings `ticket` back.
    pub fn clear(&mut self, unit: Option<u16>, ticket: u64) {
        let scope = unit.map_or(Scope::Nexus, |unit| Scope::Unit(Some(unit)));
        let tasks = self.tasks.select(|task| scope.covers(task.lun));
        self.abort(tasks, false, Then::Tell { ticket });
    }

    /// The tasks end without an answer, what is held in the window as well; then the logout is
    /// answered, so that its response is the last thing sent (RFC 7143, 11.15).
    pub(super) fn log_out(&mut self, request: &LogoutRequest) {
        let tasks = self.tasks.select(|_| true);
        self.abort(tasks, false, Then::LogOut { itt: request.itt });
    }

    fn abort(&mut self, tasks: Vec<TaskId>, front: bool, then: Then) -> Request {
        let request = Request(self.management.next);
        self.management.next += 1;
        let tasks = tasks.into_iter().filter(|id| self.abort_one(*id)).collect();
        self.management.pending.push(Pending { request, tasks, front, then });
        if !front {
            self.settle();
        }
        request
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
            State::Offered | State::Collecting | State::Failing(_) => {
                if let Some(task) = self.tasks.remove(id) {
                    self.release(id, &task);
                }
                false
            }
        }
    }

    pub(super) fn on_task_dead(&mut self, id: TaskId) {
        for pending in &mut self.management.pending {
            pending.tasks.retain(|task| *task != id);
        }
        self.settle();
    }

    /// Whether anybody waits for tasks to die.
    pub(super) const fn is_waiting_for_tasks(&self) -> bool {
        !self.management.pending.is_empty()
    }

    /// Ends what has nothing left to wait for.
    fn settle(&mut self) {
        let over = |pending: &Pending| pending.tasks.is_empty() && !pending.front;
        while let Some(at) = self.management.pending.iter().position(over) {
            match self.management.pending.remove(at).then {
                Then::Tell { ticket } => self.events.push_back(Event::Cleared { ticket }),
                Then::LogOut { itt } => {
                    self.respond_logged_out(itt, LogoutResponseCode::CLOSED);
                    self.close(Ending::Logout);
                }
                Then::Respond { itt, response, function } => {
                    self.respond_managed(itt, response);
                    // RFC 7143, 11.5.1: a cold reset ends every connection.
                    let cold = function == TaskFunction::TARGET_COLD_RESET;
                    if cold && response == TaskResponse::COMPLETE {
                        self.close(Ending::ColdReset);
                    }
                }
            }
        }
    }

    fn respond_managed(&mut self, itt: u32, response: TaskResponse) {
        let stat_sn = self.connection.use_stat_sn();
        let numbers = self.numbers();
        self.connection.outbox.push(TaskManagementResponse {
            response,
            itt,
            stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
        });
    }

    pub(super) fn respond_logged_out(&mut self, itt: u32, response: LogoutResponseCode) {
        let stat_sn = self.connection.use_stat_sn();
        let numbers = self.numbers();
        self.connection.outbox.push(LogoutResponse {
            response,
            itt,
            stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
            time2wait: self.parameters.default_time2wait,
            time2retain: 0,
        });
    }
}

/// RFC 7144, 5.2: a query answers "complete" for nothing found and "succeeded" for something.
const fn query(found: bool) -> TaskResponse {
    if found { TaskResponse::SUCCEEDED } else { TaskResponse::COMPLETE }
}

const fn command_of(pdu: &Pdu) -> Option<&crate::iscsi::header::ScsiCommand> {
    if let Header::ScsiCommand(command) = &pdu.header { Some(command) } else { None }
}
