//! Why a unit is not open: an error of each level beneath, or one that only shows when they come together.

use std::error::Error as StdError;
use std::time::Duration;

use proto::scsi::Status;
use proto::scsi::sense::Additional;

use super::device::DeviceError;
use super::reservation::ReservationError;
use super::session::Lost;
use super::unit::UnitError;

/// Why a unit is not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError<E: StdError + 'static> {
    /// There is no session.
    #[error(transparent)]
    Session(E),
    /// The session was lost again.
    #[error(transparent)]
    Lost(Lost),
    /// It cannot be learned what the unit is.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The unit does not carry out what must be asked of it.
    #[error("cannot learn what the logical unit is")]
    Unit(#[from] UnitError),
    /// The volume is not reserved for us.
    #[error(transparent)]
    Reservation(#[from] ReservationError),
    /// It takes too long to say what its unit is, or to reset it.
    #[error("the unit of {0} is not ready within {1:?}")]
    Slow(String, Duration),
    /// Whoever opens it was told to end.
    #[error("it was ended before it was open")]
    Stopped,
    /// What an earlier session had under way cannot be ended.
    #[error("the target does not reset its unit: its answer is {answer}")]
    NotReset {
        /// Asking again is of no use.
        is_final: bool,
        /// What it says.
        answer: String,
    },
    /// Another volume answers where ours was, or it may not be used as before.
    #[error(
        "it is not the volume that was connected before: its {0} has changed{told}",
        told = if *.0 == "serial number" { "; a Longhaul server says in its log why, and what to do" } else { "" }
    )]
    Changed(&'static str),
}

impl<E: StdError> OpenError<E> {
    /// The key of the other writer who has the volume, if that is why.
    pub fn holder(&self) -> Option<u64> {
        match self {
            Self::Reservation(ReservationError::Held(holders)) => holders.key(),
            _ => None,
        }
    }

    /// Whether it may be over when it is tried again. What a connection that is there would wait for is: a target or a unit that
    /// refuses may have a server that comes up. Not that another has the volume, or that it is another one.
    pub const fn is_fleeting(&self) -> bool {
        match self {
            Self::Session(_) | Self::Lost(_) | Self::Slow(..) => true,
            Self::Device(_) | Self::Unit(_) | Self::Reservation(ReservationError::Unit(_)) => {
                !self.is_conflict()
            }
            _ => false,
        }
    }

    /// The unit can be used by another target port, if any (SPC-4, 5.16).
    pub(super) fn is_passive_path(&self) -> bool {
        let (Self::Unit(UnitError::Sense(sense))
        | Self::Device(DeviceError::Unit(UnitError::Sense(sense)))
        | Self::Reservation(ReservationError::Unit(UnitError::Sense(sense)))) = self
        else {
            return false;
        };
        let passive = [Additional::PORT_IN_STANDBY, Additional::PORT_UNAVAILABLE];
        !sense.deferred && passive.contains(&sense.additional)
    }

    /// The reservation of another keeps us from what was asked.
    pub(super) const fn is_conflict(&self) -> bool {
        matches!(
            self,
            Self::Unit(UnitError::Status(Status::ReservationConflict))
                | Self::Device(DeviceError::Unit(UnitError::Status(Status::ReservationConflict)))
                | Self::Reservation(ReservationError::Unit(UnitError::Status(
                    Status::ReservationConflict
                )))
        )
    }
}
