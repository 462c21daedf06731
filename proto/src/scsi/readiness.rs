//! Whether a unit can be used now, and what it says when it cannot.

use super::Sense;
use super::cdb::RequiredState;
use super::sense::{Additional, Key};

/// Whether commands reach the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    /// They do.
    #[default]
    Ready,
    /// The medium has been ejected.
    NoMedium,
    /// The unit has been stopped (SBC-4, 4.20.4).
    Stopped,
    /// The medium is being sanitized.
    Sanitizing,
    /// It could not be sanitized (SBC-3, 4.11): what is left on it must not be read.
    SanitizeFailed,
    /// The same, and only another SANITIZE leads out of it: AUSE was not set.
    SanitizeFailedForGood,
    /// The tray of an optical drive is open.
    TrayOpen,
    /// It is closed, and nothing is in it.
    TrayClosed,
}

impl Readiness {
    const ALL: [Self; 8] = [
        Self::Ready,
        Self::NoMedium,
        Self::Stopped,
        Self::Sanitizing,
        Self::SanitizeFailed,
        Self::SanitizeFailedForGood,
        Self::TrayOpen,
        Self::TrayClosed,
    ];

    /// In three bits.
    pub(super) const fn to_bits(self) -> u8 {
        self as u8
    }

    pub(super) fn from_bits(bits: u8) -> Self {
        Self::ALL.get(usize::from(bits)).copied().unwrap_or_default()
    }

    /// Whether there is no medium.
    #[must_use]
    pub const fn lacks_medium(self) -> bool {
        matches!(self, Self::NoMedium | Self::TrayOpen | Self::TrayClosed)
    }

    /// What a unit says that is not ready.
    #[must_use]
    pub const fn sense(self) -> Option<Sense> {
        match self {
            Self::Ready => None,
            Self::Sanitizing => Some(Sense::new(Key::NotReady, Additional::SANITIZE_IN_PROGRESS)),
            Self::SanitizeFailed | Self::SanitizeFailedForGood => {
                Some(Sense::new(Key::MediumError, Additional::SANITIZE_FAILED))
            }
            Self::NoMedium => Some(Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT)),
            Self::TrayOpen => {
                Some(Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT_TRAY_OPEN))
            }
            Self::TrayClosed => {
                Some(Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT_TRAY_CLOSED))
            }
            Self::Stopped => {
                Some(Sense::new(Key::NotReady, Additional::INITIALIZING_COMMAND_REQUIRED))
            }
        }
    }

    /// Whether a unit in this state runs a command that needs this.
    pub fn check(self, required: RequiredState) -> Result<(), Sense> {
        let Some(sense) = self.sense() else { return Ok(()) };
        let passes = match self {
            Self::Ready => true,
            Self::NoMedium | Self::TrayOpen | Self::TrayClosed => {
                matches!(required, RequiredState::Nothing | RequiredState::Unit)
            }
            Self::Stopped => matches!(
                required,
                RequiredState::Nothing | RequiredState::Unit | RequiredState::Capacity
            ),
            Self::Sanitizing => required == RequiredState::Nothing,
            Self::SanitizeFailed => {
                matches!(
                    required,
                    RequiredState::Nothing
                        | RequiredState::Sanitize { .. }
                        | RequiredState::SanitizeExit
                )
            }
            Self::SanitizeFailedForGood => {
                matches!(
                    required,
                    RequiredState::Nothing | RequiredState::Sanitize { unrestricted: false }
                )
            }
        };
        if passes { Ok(()) } else { Err(sense) }
    }
}
