//! Whether a unit can be used now, and what it says when it cannot.

use super::sense::{Additional, Key};
use super::{Cdb, Sense};

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
}

impl Readiness {
    const ALL: [Self; 6] = [
        Self::Ready,
        Self::NoMedium,
        Self::Stopped,
        Self::Sanitizing,
        Self::SanitizeFailed,
        Self::SanitizeFailedForGood,
    ];

    /// In three bits.
    pub(super) const fn to_bits(self) -> u8 {
        self as u8
    }

    pub(super) fn from_bits(bits: u8) -> Self {
        Self::ALL.get(usize::from(bits)).copied().unwrap_or_default()
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
            Self::Stopped => {
                Some(Sense::new(Key::NotReady, Additional::INITIALIZING_COMMAND_REQUIRED))
            }
        }
    }

    /// Whether a unit in this state runs `cdb`.
    pub fn check(self, cdb: &Cdb) -> Result<(), Sense> {
        let Some(sense) = self.sense() else { return Ok(()) };
        let passes = match self {
            Self::Ready => true,
            Self::NoMedium => !needs_medium(cdb),
            // How large it is can be told all the same.
            Self::Stopped => {
                !needs_medium(cdb)
                    || matches!(cdb, Cdb::ReadCapacity10 | Cdb::ReadCapacity16 { .. })
            }
            Self::Sanitizing => only_asks(cdb),
            Self::SanitizeFailed => {
                only_asks(cdb) || matches!(cdb, Cdb::Sanitize { .. } | Cdb::SanitizeExit)
            }
            Self::SanitizeFailedForGood => {
                only_asks(cdb) || matches!(cdb, Cdb::Sanitize { unrestricted: false, .. })
            }
        };
        if passes { Ok(()) } else { Err(sense) }
    }
}

/// Whether a command only asks what the unit is: it runs while the medium is sanitized (SBC-3, 4.11.3).
const fn only_asks(cdb: &Cdb) -> bool {
    matches!(
        cdb,
        Cdb::RequestSense { .. }
            | Cdb::Inquiry { .. }
            | Cdb::ReportLuns { .. }
            | Cdb::ReportOpcodes { .. }
            | Cdb::ReportTaskManagement { .. }
            | Cdb::ReportPortGroups { .. }
            | Cdb::LogSense { .. }
    )
}

/// Whether a command needs a medium; START STOP UNIT brings one, and starts the unit.
const fn needs_medium(cdb: &Cdb) -> bool {
    !only_asks(cdb)
        && !matches!(
            cdb,
            Cdb::ModeSense { .. }
                | Cdb::ModeSelect { .. }
                | Cdb::StartStop { .. }
                | Cdb::PreventAllow { .. }
                | Cdb::PersistentIn { .. }
                | Cdb::PersistentOut(_)
                | Cdb::Reserve
                | Cdb::Release
                | Cdb::SendDiagnostic
                | Cdb::CopyStatus { .. }
                | Cdb::CopyParameters { .. }
                // The copy asks of each unit whether it is ready.
                | Cdb::ExtendedCopy { .. }
        )
}
