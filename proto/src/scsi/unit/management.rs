//! Requests to the server of a unit: see [`administration`](crate::scsi::administration).

use super::step::{Step, UnitOp};
use crate::scsi::Sense;
use crate::scsi::administration::{PROTOCOL, REQUEST_MAX};
use crate::scsi::cdb::ManagementCdb;
use crate::scsi::sense::Additional;

/// What a command asks for. Nobody but an administrator is told that there are such commands.
pub(super) fn plan(cdb: ManagementCdb, is_administrator: bool) -> Result<Step, Sense> {
    let (ManagementCdb::In { protocol, .. } | ManagementCdb::Out { protocol, .. }) = cdb;
    if !is_administrator {
        return Err(Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE));
    }
    if protocol != PROTOCOL {
        return Err(Sense::invalid_cdb(2, None));
    }
    match cdb {
        ManagementCdb::In { allocation, .. } => Ok(UnitOp::ReturnAnswer { allocation }.into()),
        ManagementCdb::Out { length: 1..=REQUEST_MAX, .. } => Ok(UnitOp::CarryOut.into()),
        ManagementCdb::Out { .. } => Err(Sense::invalid_cdb(6, None)),
    }
}
