//! A session in which a server is asked for something, and answers (docs/spec/administration.md).

use bytes::Bytes;
use proto::scsi::Malformed;
use proto::scsi::administration::{HEADER, REQUEST_MAX, parse};
use proto::scsi::command::Command;

use super::session::Session;
use super::unit::{Unit, UnitError};

/// How much of an answer is asked for before its length is known.
const FIRST: u32 = 64 << 10;

/// A session in which a server is administered.
#[derive(Debug)]
pub struct Administration<S>(Unit<S>);

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

impl<S: Session> Administration<S> {
    /// By way of unit `lun`.
    pub(in crate::store) fn new(session: S, lun: u16) -> Self {
        Self(Unit::new(session, lun))
    }

    /// Has the server carry out a request; its answer. A request is sent once.
    pub async fn ask(&self, request: &str) -> Result<String, AdministrationError> {
        let length = u32::try_from(request.len()).ok().filter(|length| *length <= REQUEST_MAX);
        let length = length.ok_or(AdministrationError::TooLong(request.len()))?;
        let request = Bytes::copy_from_slice(request.as_bytes());
        let asked = self.0.execute(Command::management_out(length), request).await;
        asked.map_err(|why| match why.is_unknown_command() {
            true => AdministrationError::NotAllowed,
            false => AdministrationError::Unknown(why),
        })?;
        let mut answer = parse(&self.answer(FIRST).await?)?;
        if answer.length > FIRST - HEADER {
            answer = parse(&self.answer(answer.length + HEADER).await?)?;
        }
        if answer.text.len() != answer.length as usize {
            return Err(Malformed::Field("length").into());
        }
        let text = String::from_utf8(answer.text).map_err(|_| Malformed::Field("text"))?;
        if answer.is_done { Ok(text) } else { Err(AdministrationError::Refused(text)) }
    }

    async fn answer(&self, room: u32) -> Result<Bytes, AdministrationError> {
        let answer = self.0.ask(Command::management_in(room)).await;
        answer.map_err(AdministrationError::NoAnswer)
    }

    /// Logs out.
    pub async fn close(self) {
        self.0.session().close().await;
    }
}
