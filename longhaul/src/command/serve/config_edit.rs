//! Changes of the configuration file that are asked for: a change that cannot be applied is taken back.

use super::clients::refuse_mistakes;
use super::live::Live;
use super::pending_edit::{PendingEdit, read};
use crate::command::config::ConfigRequest;
use crate::command::options::blocking;
use crate::config::edit::{replace, with_changes};
use crate::failure::{Failure, OrFail as _, Outcome};

/// What is left to do for a request.
pub(super) enum Edited {
    /// It is answered.
    Answered(String),
    /// The file is to be read again.
    Changed,
}

impl Live {
    /// Carries out a request about the configuration file.
    pub(super) async fn edit(&mut self, request: &str) -> Outcome<Edited> {
        let unreadable = || "cannot read the request: is the client of another release?".to_owned();
        let request: ConfigRequest = serde_json::from_str(request).or_fail(unreadable)?;
        let config = self.config().clone();
        let path = config.origin.as_ref().map(|origin| origin.path.clone());
        let path = path.ok_or_else(|| {
            Failure::new("this server has no configuration file").hint(
                "`serve --config FILE` has one; what `--volume` and other options say is fixed",
            )
        })?;
        let changes = match request {
            ConfigRequest::Show => {
                let text = blocking(move || read(&path)).await?;
                let text = serde_json::to_string(&text).or_fail(|| "cannot answer".to_owned())?;
                return Ok(Edited::Answered(text));
            }
            ConfigRequest::Change(changes) => changes,
        };
        let made = blocking(move || {
            let before = read(&path)?;
            let after = with_changes(&before, &changes)?;
            refuse_mistakes(&after, &path, &config)?;
            replace(&path, &after)?;
            Ok(PendingEdit { path, before, after })
        });
        let pending = made.await?;
        // What came before the first of several changes that wait is what is in force.
        self.pending_edit = Some(match self.pending_edit.take() {
            Some(earlier) => earlier.followed_by(pending),
            None => pending,
        });
        Ok(Edited::Changed)
    }
}
