//! Task management requests of iSCSI as functions of SCSI (RFC 7143, 11.5 and 11.6).

use proto::iscsi::header::{TaskFunction, TaskResponse};

use crate::target::task_management::{Function, Outcome};

/// What a function means beyond the tasks of the session itself; `None` if nothing.
pub(super) fn function(function: TaskFunction, lun: [u8; 8]) -> Option<Function> {
    match function {
        TaskFunction::ABORT_TASK_SET => Some(Function::AbortTaskSet(lun)),
        TaskFunction::CLEAR_TASK_SET => Some(Function::ClearTaskSet(lun)),
        TaskFunction::LOGICAL_UNIT_RESET => Some(Function::LogicalUnitReset(lun)),
        TaskFunction::TARGET_WARM_RESET => Some(Function::TargetReset),
        TaskFunction::TARGET_COLD_RESET => Some(Function::TargetColdReset),
        _ => None,
    }
}

pub(super) const fn response(outcome: Outcome) -> TaskResponse {
    match outcome {
        Outcome::Complete => TaskResponse::COMPLETE,
        Outcome::IncorrectLun => TaskResponse::LUN_DOES_NOT_EXIST,
        Outcome::NotAuthorized => TaskResponse::AUTHORIZATION_FAILED,
    }
}
