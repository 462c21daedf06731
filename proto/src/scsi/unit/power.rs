//! START STOP UNIT (SBC-3, 5.25): what it means to a unit that has no motor to stop and no power to save.

use super::super::Sense;
use super::super::readiness::Readiness;
use super::{DONE, MediumOp, Step, UnitOp};

/// The fields of the command.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartStopFields {
    /// IMMED.
    pub(super) immediate: bool,
    /// POWER CONDITION.
    pub(super) condition: u8,
    /// NO_FLUSH is zero.
    pub(super) flush: bool,
    /// LOEJ.
    pub(super) load_eject: bool,
    /// START.
    pub(super) start: bool,
}

/// POWER CONDITION: those that are asked for, and the first one, which leaves it to START and LOEJ.
const START_VALID: u8 = 0x0;
const ACTIVE: u8 = 0x1;
const STANDBY: u8 = 0x3;

/// What is to be done to a unit whose medium is `removable` or not, in this state.
pub(super) fn start_stop(
    StartStopFields { immediate, condition, flush, load_eject, start }: StartStopFields,
    removable: bool,
    readiness: Readiness,
) -> Result<Step, Sense> {
    match (condition, load_eject, start) {
        (START_VALID, true, _) if !removable => Err(Sense::invalid_cdb(4, Some(1))),
        (START_VALID, true, true) => Ok(UnitOp::Load.into()),
        (START_VALID, true, false) => Ok(UnitOp::Eject { flush }.into()),
        (START_VALID, false, true) => match readiness.sense() {
            Some(sense) if readiness != Readiness::Stopped => Err(sense),
            _ => Ok(UnitOp::Start.into()),
        },
        (START_VALID, false, false) => Ok(stop(removable, flush, immediate)),
        // The unit is in each of these conditions at once; only what is stopped has to leave that (SBC-4,
        // 4.20.5.10).
        (ACTIVE..=STANDBY, ..) if readiness == Readiness::Stopped => Ok(UnitOp::Start.into()),
        _ => Ok(DONE),
    }
}

/// A unit with a removable medium stays ready, against SBC-3, 5.25, as libiscsi's suite wants it: whoever
/// takes the medium away ejects it.
fn stop(removable: bool, flush: bool, immediate: bool) -> Step {
    match (removable, flush) {
        (false, flush) => UnitOp::Stop { flush, immediate }.into(),
        (true, true) => self::flush(immediate),
        (true, false) => DONE,
    }
}

/// What makes stable what is cached, before the command ends or after.
pub(super) fn flush(immediate: bool) -> Step {
    if immediate { UnitOp::FlushLater.into() } else { MediumOp::Flush.into() }
}
