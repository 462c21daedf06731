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
}

impl Readiness {
    const ALL: [Self; 2] = [Self::Ready, Self::NoMedium];

    /// In two bits.
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
            Self::NoMedium => Some(Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT)),
        }
    }

    /// Whether a unit in this state runs `cdb`.
    pub fn check(self, cdb: &Cdb) -> Result<(), Sense> {
        match self.sense() {
            Some(sense) if needs_medium(cdb) => Err(sense),
            _ => Ok(()),
        }
    }
}

/// Whether a command needs a medium; START STOP UNIT brings one.
const fn needs_medium(cdb: &Cdb) -> bool {
    !matches!(
        cdb,
        Cdb::RequestSense { .. }
            | Cdb::Inquiry { .. }
            | Cdb::ReportLuns { .. }
            | Cdb::ReportOpcodes { .. }
            | Cdb::ReportTaskManagement { .. }
            | Cdb::ModeSense { .. }
            | Cdb::ModeSelect { .. }
            | Cdb::StartStop { .. }
            | Cdb::PreventAllow { .. }
            | Cdb::PersistentIn { .. }
            | Cdb::PersistentOut(_)
            | Cdb::Reserve
            | Cdb::Release
    )
}
