//! The part of task management that concerns units and other sessions. A client ends tasks of others and resets
//! units where it may write, and nowhere else: whoever may only read must not undo what others do, and a unit that a
//! client does not see is none of its target.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use proto::iscsi::header::{TaskFunction, TaskResponse};
use proto::scsi::lun;

use super::registry::{Letter, Registry, Seat};
use crate::target::lun::TargetDevice;

/// Does the part of a function that is not the session's own. It answers when the tasks of others are dead (RFC
/// 7143, 4.2.3.3).
pub(super) async fn manage(
    registry: &Registry,
    seat: &Seat,
    device: &TargetDevice,
    function: TaskFunction,
    field: [u8; 8],
) -> TaskResponse {
    match function {
        TaskFunction::ABORT_TASK_SET
        | TaskFunction::CLEAR_TASK_SET
        | TaskFunction::LOGICAL_UNIT_RESET => {
            manage_unit(registry, seat, device, (function, field)).await
        }
        TaskFunction::TARGET_WARM_RESET | TaskFunction::TARGET_COLD_RESET => {
            reset_target(registry, seat, device, function).await
        }
        _ => TaskResponse::COMPLETE,
    }
}

async fn manage_unit(
    registry: &Registry,
    seat: &Seat,
    device: &TargetDevice,
    (function, field): (TaskFunction, [u8; 8]),
) -> TaskResponse {
    let Some(unit) = lun::decode(field).filter(|_| device.has(field)) else {
        return TaskResponse::LUN_DOES_NOT_EXIST;
    };
    if function == TaskFunction::ABORT_TASK_SET {
        return TaskResponse::COMPLETE;
    }
    if !device.writable().any(|writable| writable == unit) {
        return TaskResponse::AUTHORIZATION_FAILED;
    }
    clear(&registry.others(seat), device, unit).await;
    match function {
        TaskFunction::CLEAR_TASK_SET => device.unit(field).tasks_cleared(seat.nexus),
        _ => device.unit(field).reset(),
    }
    TaskResponse::COMPLETE
}

/// Resets the units that the initiator may write to. A cold reset also ends the sessions that use no others (RFC
/// 7143, 11.5.1): one with a unit beyond those goes on.
async fn reset_target(
    registry: &Registry,
    seat: &Seat,
    device: &TargetDevice,
    function: TaskFunction,
) -> TaskResponse {
    let units: BTreeSet<u16> = device.writable().collect();
    if units.is_empty() {
        return TaskResponse::AUTHORIZATION_FAILED;
    }
    let others = registry.others(seat);
    join_all(units.iter().map(|unit| clear(&others, device, *unit))).await;
    units.iter().for_each(|unit| device.unit(lun::encode(*unit)).reset());
    if function == TaskFunction::TARGET_COLD_RESET {
        let units = Arc::new(units);
        others.iter().for_each(|other| other.post(Letter::ColdReset(Arc::clone(&units))));
    }
    TaskResponse::COMPLETE
}

/// Ends the tasks of other sessions on a unit, and what copies do to it that are tasks of other units; a session that
/// ends meanwhile has none left.
async fn clear(others: &[Arc<Seat>], device: &TargetDevice, unit: u16) {
    let copies = device.unit(lun::encode(unit)).end_copies();
    join(copies, join_all(others.iter().map(|other| other.clear(Some(unit))))).await;
}
