//! What a reservation means for each command.

use crate::scsi::Cdb;

/// What commands have in common under reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// It tells who the unit is, or takes nothing from anybody: no reservation stops it.
    Free,
    /// TEST UNIT READY: another's RESERVE stops it, a persistent reservation does not.
    Ready,
    /// It learns what is on the medium or how the unit is set: what shares reads lets it pass.
    Reads,
    /// It changes the medium or the unit.
    Writes,
    /// PERSISTENT RESERVE IN and OUT: RESERVE stops them whoever holds it; else their own rules decide.
    Persistent,
    /// RESERVE and RELEASE, which have rules of their own.
    Reserve,
}

impl Class {
    /// The class of a command. No command is left out: a new one does not compile without its class.
    #[must_use]
    pub const fn of(cdb: &Cdb) -> Self {
        match cdb {
            Cdb::Inquiry { .. }
            | Cdb::ReportLuns { .. }
            | Cdb::RequestSense { .. }
            | Cdb::ReadCapacity10
            | Cdb::ReadCapacity16 { .. }
            | Cdb::PreventAllow { prevent: false }
            | Cdb::ReportPortGroups { .. }
            // SBC-3, table 13: only a start, without a power condition.
            | Cdb::StartStop { start: true, condition: 0, .. } => Self::Free,
            Cdb::TestUnitReady => Self::Ready,
            // SPC-4, table 65, note b: the device may refuse the first three, and tells in ALLOW COMMANDS
            // that it does not.
            Cdb::ModeSense { .. }
            | Cdb::LogSense { .. }
            | Cdb::CopyStatus { .. }
            | Cdb::CopyParameters { .. }
            | Cdb::ReportOpcodes { .. }
            | Cdb::ReportTaskManagement { .. }
            | Cdb::GetLbaStatus { .. }
            | Cdb::ReadDefects { .. }
            | Cdb::Read(_)
            | Cdb::Verify(..)
            | Cdb::Prefetch(_) => Self::Reads,
            Cdb::ModeSelect { .. }
            | Cdb::StartStop { .. }
            | Cdb::PreventAllow { .. }
            | Cdb::Write(_)
            | Cdb::WriteAtomic(_)
            | Cdb::Sanitize { .. }
            | Cdb::SanitizeExit
            | Cdb::SendDiagnostic
            | Cdb::ExtendedCopy { .. }
            | Cdb::WriteVerify(..)
            | Cdb::Synchronize { .. }
            | Cdb::Unmap { .. }
            | Cdb::WriteSame { .. }
            | Cdb::CompareAndWrite(_)
            | Cdb::OrWrite(_) => Self::Writes,
            Cdb::PersistentIn { .. } | Cdb::PersistentOut(_) => Self::Persistent,
            Cdb::Reserve | Cdb::Release => Self::Reserve,
        }
    }

    /// Whether it passes while RESERVE is in force, for its holder or for another (SPC-2, table 10).
    pub(super) const fn passes_reserve(self, holder: bool) -> bool {
        match self {
            Self::Free | Self::Reserve => true,
            Self::Ready | Self::Reads | Self::Writes => holder,
            Self::Persistent => false,
        }
    }
}
