//! What is asked about the configuration file.

use super::live::Live;
use super::pending_edit::read;
use crate::command::config::ConfigRequest;
use crate::command::options::blocking;
use crate::config::edit::Change;
use crate::failure::{Failure, OrFail as _, Outcome};

/// What is left to do for a request.
pub(super) enum Edited {
    /// It is answered.
    Answered(String),
    /// The file is to be read again with these changes.
    Changes(Vec<Change>),
}

impl Live {
    /// What is to be done for a request about the configuration file.
    pub(super) async fn edit(&self, request: &str) -> Outcome<Edited> {
        let unreadable = || "cannot read the request: is the client of another release?".to_owned();
        let request: ConfigRequest = serde_json::from_str(request).or_fail(unreadable)?;
        let path = self.config().origin.as_ref().map(|origin| origin.path.clone());
        let path = path.ok_or_else(|| {
            Failure::new("this server has no configuration file").hint(
                "`serve --config FILE` has one; what `--volume` and other options say is fixed",
            )
        })?;
        match request {
            ConfigRequest::Show => {
                let text = blocking(move || read(&path)).await?;
                let text = serde_json::to_string(&text).or_fail(|| "cannot answer".to_owned())?;
                Ok(Edited::Answered(text))
            }
            ConfigRequest::Change(changes) => Ok(Edited::Changes(changes)),
        }
    }
}
