//! A change of the configuration file that is not in force yet.

use std::path::{Path, PathBuf};

use super::invitations::read_text;
use crate::config::edit::replace;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;

/// A change that is in the file and not in force yet.
pub(super) struct PendingEdit {
    pub(super) path: PathBuf,
    pub(super) before: String,
    pub(super) after: String,
}

impl PendingEdit {
    /// Both in one: `later` was made on top of this.
    pub(super) fn followed_by(self, later: Self) -> Self {
        Self { after: later.after, ..self }
    }

    /// It could not be put in force: the file is as it was, unless somebody else has changed it too.
    pub(super) fn undo(self) {
        let Self { path, before, after } = self;
        let undone = read(&path).and_then(|text| match text == after {
            true => replace(&path, &before),
            false => Err(Failure::new("somebody else has changed it meanwhile")),
        });
        if let Err(why) = undone {
            tracing::error!("{} keeps a change that was not applied: {why}", path.shown());
        }
    }
}

/// The text of the file.
pub(super) fn read(path: &Path) -> Outcome<String> {
    read_text(path).or_fail(|| format!("cannot read {}", path.shown()))
}
