//! One logical unit: a command is carried out, or there is a reason that a caller can act on.

use std::time::Duration;

use bytes::Bytes;
use proto::scsi::command::Command;
use proto::scsi::sense::{Additional, Key, Sense};
use proto::scsi::{Status, lun};
use tokio::sync::oneshot;
use volume::Kind;

use super::session::{Completion, Executed, Lost, NoStatus, ResetAnswer, Session, Task};

/// A unit tells one thing after the other, each with a unit attention; more than this many in a row
/// is not telling any more.
const ATTENTIONS_MAX: u32 = 16;

/// How often a command is tried again that the unit cannot take now.
const BUSY_MAX: u32 = 16;

/// The first wait before trying again; each is twice the one before.
const BACK_OFF: Duration = Duration::from_millis(5);

/// The longest wait. With [`BUSY_MAX`] tries a unit has about ten seconds to become ready.
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// Why a command was not carried out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UnitError {
    /// There is no session any more.
    #[error("the session with the target has ended")]
    Lost(#[source] Lost),
    /// It ended without a status.
    #[error(transparent)]
    Task(NoStatus),
    /// The unit says why.
    #[error("the unit reports {0}")]
    Sense(Sense),
    /// The unit says that, and no more.
    #[error("the unit answers {0:?}")]
    Status(Status),
    /// It changes part of a block, and the rest cannot be had.
    #[error("the rest of a block that is written in part cannot be had")]
    Part,
}

impl UnitError {
    /// It is a drive that is empty.
    #[must_use]
    pub fn is_without_medium(&self) -> bool {
        let empty = [
            Additional::MEDIUM_NOT_PRESENT,
            Additional::MEDIUM_NOT_PRESENT_TRAY_CLOSED,
            Additional::MEDIUM_NOT_PRESENT_TRAY_OPEN,
        ];
        matches!(self, Self::Sense(sense) if empty.contains(&sense.additional))
    }

    /// Its server does not reach it, or wants somebody to look at it.
    #[must_use]
    pub fn is_away(&self) -> bool {
        let away = [Additional::NO_RESPONSE_TO_SELECTION, Additional::MANUAL_INTERVENTION_REQUIRED];
        let is_away =
            |sense: &Sense| sense.key == Key::NotReady && away.contains(&sense.additional);
        matches!(self, Self::Sense(sense) if !sense.deferred && is_away(sense))
    }

    /// The kind of failure this is to a caller of a volume: the one table.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Lost(_) => Kind::Gone,
            Self::Task(NoStatus::Aborted) => Kind::Busy,
            Self::Task(_) => Kind::Peer,
            // What an earlier command had done is lost: asking once more does not bring it back.
            Self::Sense(sense) if sense.deferred => match kind_of(sense) {
                Kind::Busy => Kind::Medium,
                kind => kind,
            },
            Self::Sense(sense) => kind_of(sense),
            Self::Status(Status::CheckCondition | Status::Good | Status::ConditionMet) => {
                Kind::Peer
            }
            Self::Status(_) => Kind::Busy,
            Self::Part => Kind::Medium,
        }
    }

    /// The unit cannot be used now: its path is out of use, it is or was busy for all the tries there are, was stopped,
    /// or is away for a change of its target. That passes, as an outage does.
    pub(super) const fn is_outage(&self) -> bool {
        match self {
            Self::Sense(sense) => !sense.deferred && passes(sense),
            Self::Status(status) => {
                matches!(status, Status::Busy | Status::TaskSetFull | Status::TaskAborted)
            }
            _ => false,
        }
    }

    /// LOGICAL UNIT COMMUNICATION FAILURE and its likes.
    pub(super) const fn is_out_of_reach(&self) -> bool {
        matches!(self, Self::Sense(sense)
            if matches!((sense.key, sense.deferred), (Key::NotReady, false))
                && sense.additional.code == 0x08)
    }

    /// The unit does not know the operation code, or does not say what else is wrong.
    pub(super) const fn may_be_unknown_operation(&self) -> bool {
        match self {
            Self::Sense(sense) => {
                let says_so = sense.is_unknown_command()
                    && matches!(sense.additional, Additional::INVALID_COMMAND_OPERATION_CODE);
                !sense.deferred && (says_so || sense.is_unexplained_refusal())
            }
            Self::Status(status) => matches!(status, Status::CheckCondition),
            _ => false,
        }
    }

    /// The unit does not know the command.
    pub(super) const fn is_unknown_command(&self) -> bool {
        matches!(self, Self::Sense(sense) if sense.is_unknown_command())
    }
}

/// Whether what a unit says may be otherwise later, though nobody changes the command.
const fn passes(sense: &Sense) -> bool {
    const FORMATS: u8 = 0x04;
    const SANITIZES: u8 = 0x1B;
    match (sense.key, sense.additional.code, sense.additional.qualifier) {
        // MANUAL INTERVENTION REQUIRED does not pass, and FORMAT and SANITIZE destroy what is there.
        (Key::NotReady, 0x04, 0x03 | FORMATS | SANITIZES) => false,
        // Protection information that does not fit, and data of another length than the command says (RFC 7143, 11.4.7.2):
        // the same each time.
        (Key::AbortedCommand, 0x0C, 0x0C | 0x0D) | (Key::AbortedCommand, 0x10, _) => false,
        (Key::NotReady, 0x04, _)
        | (Key::AbortedCommand | Key::UnitAttention, ..)
        // Of a unit that was there: its target has been given others, or none for now.
        | (Key::IllegalRequest, 0x25, 0) => true,
        _ => false,
    }
}

const fn kind_of(sense: &Sense) -> Kind {
    let Additional { code, qualifier } = sense.additional;
    match (sense.key, code, qualifier) {
        // Protection information that does not fit, and data to be rewritten: not what was written.
        (Key::MediumError | Key::HardwareError | Key::AbortedCommand, 0x10, _)
        | (Key::MediumError, 0x11, 0x0c)
        | (Key::Miscompare, ..) => Kind::Integrity,
        (Key::MediumError | Key::HardwareError | Key::BlankCheck, ..) => Kind::Medium,
        (Key::IllegalRequest, 0x21, _) => Kind::Range,
        (Key::IllegalRequest, 0x25, _) | (Key::NotReady, 0x08 | 0x3a, _) => Kind::Gone,
        (Key::IllegalRequest, 0x20 | 0x24 | 0x26, _) => Kind::Unsupported,
        (Key::DataProtect, 0x27, 0x07) | (Key::VolumeOverflow, ..) => Kind::NoSpace,
        (Key::DataProtect, ..) => Kind::ReadOnly,
        (Key::NotReady | Key::UnitAttention | Key::AbortedCommand, ..) => Kind::Busy,
        _ => Kind::Peer,
    }
}

/// A logical unit of a session.
#[derive(Debug)]
pub(super) struct Unit<S> {
    session: S,
    lun: u64,
}

/// What to do with an answer.
enum Verdict {
    Done(Completion),
    Failed(UnitError),
    /// Not carried out, and not for a reason that lasts.
    AgainAtOnce(UnitError),
    AgainLater(UnitError),
}

impl<S: Session> Unit<S> {
    pub(super) fn new(session: S, number: u16) -> Self {
        Self { session, lun: u64::from_be_bytes(lun::encode(number)) }
    }

    /// Its number, as SAM-5 encodes it.
    pub(super) const fn lun(&self) -> u64 {
        self.lun
    }

    pub(super) const fn session(&self) -> &S {
        &self.session
    }

    /// Resets it; the answer comes when none of its tasks runs any more.
    pub(super) async fn reset(&self) -> Result<ResetAnswer, Lost> {
        self.session.reset_unit(self.lun).await
    }

    /// Carries out a command without data-out; gives what came in.
    pub(super) async fn ask(&self, command: Command) -> Result<Bytes, UnitError> {
        self.execute(command, Bytes::new()).await
    }

    /// Carries out a command. Unit attentions, which say that something else happened before, and a
    /// unit that is busy, are met by trying again.
    pub(super) async fn execute(&self, command: Command, data: Bytes) -> Result<Bytes, UnitError> {
        let (mut attentions, mut busy) = (0, 0);
        loop {
            let task = Task { lun: self.lun, command, data: data.clone(), is_ordered: false };
            let ended = self.session.execute(task).await.map_err(UnitError::Lost)?;
            match judge(ended) {
                Verdict::Done(completion) => return Ok(completion.data),
                Verdict::AgainAtOnce(_) if attentions < ATTENTIONS_MAX => attentions += 1,
                Verdict::AgainLater(why) if busy < BUSY_MAX => {
                    tracing::debug!(%why, busy, "trying again");
                    tokio::time::sleep((BACK_OFF * 2_u32.pow(busy)).min(BACK_OFF_MAX)).await;
                    busy += 1;
                }
                Verdict::Failed(error)
                | Verdict::AgainAtOnce(error)
                | Verdict::AgainLater(error) => return Err(error),
            }
        }
    }

    /// Has commands carried out, those that are ordered behind all before them and before all behind them. Tells `queued`
    /// when all are on their way. None is tried again: what is behind it may be on its way.
    pub(super) async fn execute_in_order(
        &self,
        commands: Vec<OrderedCommand>,
        queued: oneshot::Sender<()>,
    ) -> Result<(), UnitError> {
        let mut answers = Vec::with_capacity(commands.len());
        for OrderedCommand { command, data, is_ordered } in commands {
            let task = Task { lun: self.lun, command, data, is_ordered };
            answers.push(self.session.queue(task).await.map_err(UnitError::Lost)?);
        }
        // Nobody waits for it if this is the last.
        let _ = queued.send(());
        let mut failed: Option<UnitError> = None;
        for answer in answers {
            let error = match answer.await.map(judge) {
                Ok(Verdict::Done(_)) => continue,
                Ok(
                    Verdict::Failed(error)
                    | Verdict::AgainAtOnce(error)
                    | Verdict::AgainLater(error),
                ) => error,
                Err(lost) => UnitError::Lost(lost),
            };
            // The session ends behind the first that fails, which says more.
            let is_reason = !matches!(failed, None | Some(UnitError::Lost(_)));
            failed = if is_reason { failed } else { Some(error) };
        }
        failed.map_or(Ok(()), Err)
    }
}

/// A command among others that are on their way together.
pub(super) struct OrderedCommand {
    pub(super) command: Command,
    pub(super) data: Bytes,
    pub(super) is_ordered: bool,
}

fn judge(ended: Executed) -> Verdict {
    let completion = match ended {
        Ok(completion) => completion,
        Err(error) => return Verdict::Failed(UnitError::Task(error)),
    };
    match completion.status {
        Status::Good | Status::ConditionMet => Verdict::Done(completion),
        Status::CheckCondition => match Sense::parse(&completion.sense) {
            Some(sense) => judge_sense(sense, completion),
            None => Verdict::Failed(UnitError::Status(Status::CheckCondition)),
        },
        // TASK ABORTED: another initiator has reset the unit (SAM-5, 5.3.1), and what was aborted changes nothing
        // any more.
        status @ (Status::Busy | Status::TaskSetFull | Status::TaskAborted) => {
            Verdict::AgainLater(UnitError::Status(status))
        }
        status => Verdict::Failed(UnitError::Status(status)),
    }
}

fn judge_sense(sense: Sense, completion: Completion) -> Verdict {
    match sense.key {
        // SPC-4, 4.5.7: this command was not processed. The session has noted what became of the earlier one.
        _ if sense.deferred => {
            tracing::warn!(%sense, "an earlier command has failed");
            Verdict::AgainAtOnce(UnitError::Sense(sense))
        }
        _ if sense.is_success() => {
            tracing::info!(%sense, "done, with a remark");
            Verdict::Done(completion)
        }
        Key::UnitAttention => {
            note(&sense);
            Verdict::AgainAtOnce(UnitError::Sense(sense))
        }
        Key::NotReady if sense.additional == Additional::BECOMING_READY => {
            Verdict::AgainLater(UnitError::Sense(sense))
        }
        Key::AbortedCommand => Verdict::AgainLater(UnitError::Sense(sense)),
        _ => Verdict::Failed(UnitError::Sense(sense)),
    }
}

fn note(sense: &Sense) {
    if sense.additional == Additional::CAPACITY_CHANGED {
        tracing::warn!(
            "the size of the unit has changed: the volume is as large as it was until it is opened again, or its server reads its \
             configuration again"
        );
    }
    tracing::info!(%sense, "unit attention");
}

#[cfg(test)]
mod tests {
    use proto::scsi::Residual;
    use proto::scsi::sense::Format;

    use super::*;

    fn judged(sense: &Sense) -> Verdict {
        judge(Ok(Completion {
            status: Status::CheckCondition,
            data: Bytes::new(),
            sense: sense.emit(Format::Descriptor).into(),
            residual: Residual::None,
        }))
    }

    #[test]
    fn command_that_meets_a_deferred_error_is_not_done() {
        for key in [Key::NoSense, Key::RecoveredError, Key::AbortedCommand, Key::MediumError] {
            let current = Sense::new(key, Additional { code: 0x0C, qualifier: 0 });
            let deferred = Sense { deferred: true, ..current };
            assert!(matches!(judged(&deferred), Verdict::AgainAtOnce(_)), "{key:?}");
            assert_eq!(matches!(judged(&current), Verdict::Done(_)), current.is_success());
        }
    }

    #[test]
    fn not_ready_is_an_outage_if_it_passes() {
        for (code, qualifier, passes) in [
            (0x04, 0x00, true),
            (0x04, 0x01, true),
            (0x04, 0x02, true),
            (0x04, 0x03, false),
            (0x04, 0x04, false),
            (0x04, 0x0A, true),
            (0x04, 0x0B, true),
            (0x04, 0x0C, true),
            (0x04, 0x1A, true),
            (0x04, 0x1B, false),
            (0x3A, 0x00, false),
        ] {
            let sense = Sense::new(Key::NotReady, Additional { code, qualifier });
            assert_eq!(UnitError::Sense(sense).is_outage(), passes, "{sense}");
            let deferred = Sense { deferred: true, ..sense };
            assert!(!UnitError::Sense(deferred).is_outage());
        }
    }

    /// Whoever is told of it has tried for long already.
    #[test]
    fn temporary_failure_is_an_outage() {
        for (key, code, qualifier, passes) in [
            (Key::AbortedCommand, 0x00, 0x00, true),
            (Key::AbortedCommand, 0x47, 0x05, true),
            (Key::AbortedCommand, 0x0C, 0x0D, false),
            (Key::AbortedCommand, 0x10, 0x01, false),
            (Key::UnitAttention, 0x2A, 0x09, true),
            (Key::IllegalRequest, 0x25, 0x00, true),
            (Key::IllegalRequest, 0x24, 0x00, false),
            (Key::IllegalRequest, 0x21, 0x00, false),
            (Key::NotReady, 0x08, 0x00, false),
            (Key::MediumError, 0x11, 0x00, false),
        ] {
            let sense = Sense::new(key, Additional { code, qualifier });
            assert_eq!(UnitError::Sense(sense).is_outage(), passes, "{sense}");
            let deferred = UnitError::Sense(Sense { deferred: true, ..sense });
            assert!(!deferred.is_outage() && !deferred.is_out_of_reach());
            assert_eq!(UnitError::Sense(sense).is_out_of_reach(), code == 0x08, "{sense}");
        }
        for status in [Status::Busy, Status::TaskSetFull, Status::TaskAborted] {
            assert!(UnitError::Status(status).is_outage());
        }
        for status in [Status::CheckCondition, Status::ReservationConflict, Status::AcaActive] {
            assert!(!UnitError::Status(status).is_outage());
        }
    }

    #[test]
    fn sense_becomes_the_kind_a_caller_can_act_on() {
        let cases = [
            (Key::MediumError, Additional::UNRECOVERED_READ_ERROR, Kind::Medium),
            (Key::MediumError, Additional { code: 0x10, qualifier: 0 }, Kind::Integrity),
            (Key::IllegalRequest, Additional::LBA_OUT_OF_RANGE, Kind::Range),
            (Key::IllegalRequest, Additional::INVALID_COMMAND_OPERATION_CODE, Kind::Unsupported),
            (Key::IllegalRequest, Additional::LOGICAL_UNIT_NOT_SUPPORTED, Kind::Gone),
            (Key::DataProtect, Additional::WRITE_PROTECTED, Kind::ReadOnly),
            (Key::DataProtect, Additional::SPACE_ALLOCATION_FAILED, Kind::NoSpace),
            (Key::NotReady, Additional::MEDIUM_NOT_PRESENT, Kind::Gone),
            (Key::NotReady, Additional::BECOMING_READY, Kind::Busy),
            (Key::Miscompare, Additional::MISCOMPARE_DURING_VERIFY, Kind::Integrity),
            (Key::VendorSpecific, Additional::NONE, Kind::Peer),
        ];
        for (key, additional, kind) in cases {
            let error = UnitError::Sense(Sense::new(key, additional));
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}
