//! What a client may do that may only read a unit.

use super::Cdb;
use super::reservation::{InAction, OutAction};

/// Whether a command only reads, so that a client with no more rights than that may run it: it changes neither the
/// medium nor the unit, and keeps nobody from either. No command is left out: a new one does not compile before this
/// is decided of it.
#[must_use]
pub const fn reads_only(cdb: &Cdb) -> bool {
    match cdb {
        Cdb::TestUnitReady
        | Cdb::RequestSense { .. }
        | Cdb::Inquiry { .. }
        | Cdb::ReportLuns { .. }
        | Cdb::ReportOpcodes { .. }
        | Cdb::ReportTaskManagement { .. }
        | Cdb::ReportPortGroups { .. }
        | Cdb::LogSense { .. }
        | Cdb::ModeSense { .. }
        | Cdb::ReadCapacity10
        | Cdb::ReadCapacity16 { .. }
        | Cdb::GetLbaStatus { .. }
        | Cdb::ReadDefects { .. }
        | Cdb::Read(_)
        | Cdb::Verify(..)
        | Cdb::Prefetch(_)
        // The self-test tests nothing that others notice.
        | Cdb::SendDiagnostic
        // It makes stable what others have written, which they can only want.
        | Cdb::Synchronize { .. }
        // It takes nothing back but the initiator's own wish.
        | Cdb::PreventAllow { prevent: false }
        | Cdb::CopyStatus { .. }
        | Cdb::CopyParameters { .. } => true,
        Cdb::PersistentIn { action, .. } => match action {
            InAction::ReadKeys | InAction::ReadReservation | InAction::ReportCapabilities => true,
            // SPC-4, table 28 demands the others of every device that has reservations, and not this, which tells
            // the names of all initiators.
            InAction::ReadFullStatus => false,
        },
        Cdb::PersistentOut(out) => match out.action {
            // Who is not registered is kept from reading by some reservations. What it may register is for
            // `Reservations::prepare_reader`.
            OutAction::Register | OutAction::RegisterAndIgnore => true,
            OutAction::Reserve
            | OutAction::Release
            | OutAction::Clear
            | OutAction::Preempt
            | OutAction::PreemptAndAbort
            | OutAction::RegisterAndMove => false,
        },
        // A unit does one copy at a time, for whoever asks first. Where a client may write to the other end it asks
        // that: each end checks its rights.
        Cdb::ExtendedCopy { .. }
        // The settings and the state of the unit are those of all.
        | Cdb::ModeSelect { .. }
        | Cdb::StartStop { .. }
        | Cdb::PreventAllow { prevent: true }
        // Nobody else could even read.
        | Cdb::Reserve
        | Cdb::Release
        | Cdb::Write(_)
        | Cdb::WriteAtomic(_)
        | Cdb::WriteVerify(..)
        | Cdb::WriteSame { .. }
        | Cdb::CompareAndWrite(_)
        | Cdb::OrWrite(_)
        | Cdb::Unmap { .. }
        | Cdb::Sanitize { .. }
        | Cdb::SanitizeExit => false,
    }
}
