//! The part of task management that concerns units and other sessions. A client ends tasks of others and resets
//! units where it may write, and nowhere else: a client that may only read must not undo what others do, and a unit that
//! a client does not see is none of its target.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use proto::scsi::lun;

use super::lun::TargetDevice;
use super::sessions::{Peer, SessionEntry, SessionMessage, Sessions};

/// The task management functions (SAM-5, 7) that concern others than one task. `LUN` fields have eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// ABORT TASK SET. The transport has ended the tasks of the session itself.
    AbortTaskSet([u8; 8]),
    /// CLEAR TASK SET.
    ClearTaskSet([u8; 8]),
    /// LOGICAL UNIT RESET.
    LogicalUnitReset([u8; 8]),
    /// Resets all units (TARGET WARM RESET of RFC 7143).
    TargetReset,
    /// The same, and ends the sessions that use no others (TARGET COLD RESET of RFC 7143).
    TargetColdReset,
}

/// The service response of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// FUNCTION COMPLETE.
    Complete,
    /// INCORRECT LOGICAL UNIT NUMBER.
    IncorrectLun,
    /// FUNCTION REJECTED: the client may not do that.
    NotAuthorized,
}

/// Does the part of a function that is not the session's own. It returns when the tasks of others have ended (SAM-5,
/// 7.1).
pub async fn manage<S: Send + Sync + 'static>(
    sessions: &Sessions<S>,
    by: &SessionEntry<S>,
    device: &TargetDevice,
    function: Function,
) -> Outcome {
    let field = match function {
        Function::TargetReset => return reset_target(sessions, by, device, false).await,
        Function::TargetColdReset => return reset_target(sessions, by, device, true).await,
        Function::AbortTaskSet(field)
        | Function::ClearTaskSet(field)
        | Function::LogicalUnitReset(field) => field,
    };
    let Some(number) = lun::decode(field).filter(|_| device.has(field)) else {
        return Outcome::IncorrectLun;
    };
    if let Function::AbortTaskSet(_) = function {
        return Outcome::Complete;
    }
    if !device.writable().any(|writable| writable == number) {
        return Outcome::NotAuthorized;
    }
    clear(&sessions.others(by), device, number).await;
    match function {
        Function::ClearTaskSet(_) => device.unit(field).tasks_cleared(by.nexus),
        _ => device.unit(field).reset(),
    }
    Outcome::Complete
}

/// Resets the units that the initiator may write to. A cold reset also ends the sessions that use no others (RFC
/// 7143, 11.5.1): a session with a unit beyond those goes on.
async fn reset_target<S: Send + Sync + 'static>(
    sessions: &Sessions<S>,
    by: &SessionEntry<S>,
    device: &TargetDevice,
    cold: bool,
) -> Outcome {
    let units: BTreeSet<u16> = device.writable().collect();
    if units.is_empty() {
        return Outcome::NotAuthorized;
    }
    let others = sessions.others(by);
    join_all(units.iter().map(|unit| clear(&others, device, *unit))).await;
    units.iter().for_each(|unit| device.unit(lun::encode(*unit)).reset());
    if cold {
        let units = Arc::new(units);
        others.iter().for_each(|other| other.send(SessionMessage::ColdReset(Arc::clone(&units))));
    }
    Outcome::Complete
}

/// Ends the tasks of other sessions on a unit, and what copies do to it that are tasks of other units. A session that
/// ends meanwhile has none left.
async fn clear(others: &[Arc<dyn Peer>], device: &TargetDevice, unit: u16) {
    let copies = device.unit(lun::encode(unit)).end_copies();
    join(copies, join_all(others.iter().map(|other| other.clear(unit)))).await;
}
