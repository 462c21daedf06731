//! A server is asked for something by way of a unit, and answers (docs/spec/administration.md).

use bytes::Bytes;
use proto::scsi::administration::{HEADER, REQUEST_MAX, parse};
use proto::scsi::command::Command;
use proto::scsi::{Malformed, Sense, Status};

use super::raw::RawUnit;
use super::session::Executed;
use super::unit::UnitError;

/// How much of an answer is asked for before its length is known.
const FIRST: u32 = 64 << 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AdministrationError {
    /// The server says why it has not carried out the request.
    #[error("{0}")]
    Refused(String),
    /// It is no Longhaul, or has not listed us as administrator.
    #[error("the server does not let this client administer it")]
    NotAllowed,
    /// The request was not taken.
    #[error("the unit is busy: try it again")]
    Busy,
    /// No server takes it.
    #[error("the request has {0} bytes, and may have {REQUEST_MAX}")]
    TooLong(usize),
    /// It may have been carried out or not.
    #[error("the request may have been carried out or not")]
    Unknown(#[source] UnitError),
    /// It was carried out, or refused.
    #[error("the request was answered, and the answer did not arrive")]
    NoAnswer(#[source] UnitError),
    /// An answer that cannot be read.
    #[error("the answer cannot be read")]
    Malformed(#[from] Malformed),
}

/// Has the server of a unit carry out a request; its answer. A request is sent once.
pub async fn ask_server(unit: &dyn RawUnit, request: &str) -> Result<String, AdministrationError> {
    let length = u32::try_from(request.len()).ok().filter(|length| *length <= REQUEST_MAX);
    let length = length.ok_or(AdministrationError::TooLong(request.len()))?;
    let request = Bytes::copy_from_slice(request.as_bytes());
    let sent = unit.send(Command::management_out(length), request).await;
    let executed = sent.map_err(UnitError::Lost).map_err(AdministrationError::Unknown)?.await;
    refuse_failure(executed.map_err(UnitError::Lost).map_err(AdministrationError::Unknown)?)?;
    let mut received = parse(&answer(unit, FIRST).await?)?;
    if received.length > FIRST - HEADER {
        received = parse(&answer(unit, received.length + HEADER).await?)?;
    }
    if received.text.len() != received.length as usize {
        return Err(Malformed::Field("length").into());
    }
    let text = String::from_utf8(received.text).map_err(|_| Malformed::Field("text"))?;
    if received.is_done { Ok(text) } else { Err(AdministrationError::Refused(text)) }
}

/// Whether a request was carried out is known where the unit has refused it, or was not able to take it.
fn refuse_failure(executed: Executed) -> Result<(), AdministrationError> {
    let completion = match executed {
        Ok(completion) => completion,
        Err(why) => return Err(AdministrationError::Unknown(UnitError::Task(why))),
    };
    let sense = Sense::parse(&completion.sense);
    match (completion.status, sense) {
        (Status::Good, _) => Ok(()),
        (Status::Busy | Status::TaskSetFull, _) => Err(AdministrationError::Busy),
        (Status::CheckCondition, Some(sense)) if sense.is_unknown_command() => {
            Err(AdministrationError::NotAllowed)
        }
        (Status::CheckCondition, Some(sense)) => {
            Err(AdministrationError::Unknown(UnitError::Sense(sense)))
        }
        (status, _) => Err(AdministrationError::Unknown(UnitError::Status(status))),
    }
}

async fn answer(unit: &dyn RawUnit, room: u32) -> Result<Bytes, AdministrationError> {
    let answer = unit.ask(Command::management_in(room), Bytes::new()).await;
    answer.map_err(AdministrationError::NoAnswer)
}

#[cfg(test)]
mod tests {
    use proto::scsi::Residual;
    use proto::scsi::sense::{Additional, Format, Key};

    use super::super::session::{Completion, NoStatus};
    use super::*;

    fn ended(status: Status, sense: Option<Sense>) -> Executed {
        let sense = sense.map(|sense| sense.emit(Format::Fixed)).unwrap_or_default();
        Ok(Completion { status, data: Bytes::new(), sense: sense.into(), residual: Residual::None })
    }

    /// A request that may be under way is not sent again: `cluster move` would take back what it has done.
    #[test]
    fn request_is_taken_for_refused_only_where_the_unit_has_not_begun_it() {
        let unknown = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
        let aborted = Sense::new(Key::AbortedCommand, Additional::NONE);
        assert!(refuse_failure(ended(Status::Good, None)).is_ok());
        let not_begun = [
            ended(Status::Busy, None),
            ended(Status::TaskSetFull, None),
            ended(Status::CheckCondition, Some(unknown)),
        ];
        for executed in not_begun {
            let why = refuse_failure(executed).unwrap_err();
            let is_known =
                matches!(why, AdministrationError::Busy | AdministrationError::NotAllowed);
            assert!(is_known, "{why}");
        }
        let perhaps = [
            ended(Status::TaskAborted, None),
            ended(Status::CheckCondition, Some(aborted)),
            ended(Status::CheckCondition, None),
            Err(NoStatus::Aborted),
        ];
        for executed in perhaps {
            let why = refuse_failure(executed).unwrap_err();
            assert!(matches!(why, AdministrationError::Unknown(_)), "{why}");
        }
    }
}
