//! A server is asked for something by way of a unit, and answers (docs/spec/administration.md).

use bytes::Bytes;
use proto::scsi::Malformed;
use proto::scsi::administration::{HEADER, REQUEST_MAX, parse};
use proto::scsi::command::Command;

use super::raw::RawUnit;
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
    let asked = unit.ask(Command::management_out(length), request).await;
    asked.map_err(|why| match why.is_unknown_command() {
        true => AdministrationError::NotAllowed,
        false => AdministrationError::Unknown(why),
    })?;
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

async fn answer(unit: &dyn RawUnit, room: u32) -> Result<Bytes, AdministrationError> {
    let answer = unit.ask(Command::management_in(room), Bytes::new()).await;
    answer.map_err(AdministrationError::NoAnswer)
}
