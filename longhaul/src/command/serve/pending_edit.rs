//! Changes of the configuration file that were asked for and are not in it yet: they are written when all that they need
//! is there, so that a change which cannot be applied never was in the file.

use std::path::{Path, PathBuf};

use super::invitations::read_text;
use crate::config::Config;
use crate::config::edit::{Change, replace, with_changes};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;

/// The file with changes.
pub(super) struct PendingEdit {
    path: PathBuf,
    before: String,
    after: String,
}

impl PendingEdit {
    /// The configuration as it is with these changes of the file, and what is to be written, if there are any. Without changes
    /// the file may be a pipe.
    pub(super) fn make(path: PathBuf, changes: &[Change]) -> Outcome<(Config, Option<Self>)> {
        if changes.is_empty() {
            return Ok((Config::read(&path)?, None));
        }
        let before = read(&path)?;
        let after = with_changes(&before, changes)?;
        let config = Config::of_text(&after, &path)?;
        Ok((config, Some(Self { path, before, after })))
    }

    /// Writes it.
    pub(super) fn write(self) -> Outcome {
        let Self { path, before, after } = self;
        if read(&path)? != before {
            let why = format!("somebody else has changed {} meanwhile", path.shown());
            return Err(Failure::new(why).hint("nothing was changed; ask again"));
        }
        replace(&path, &after)
    }
}

/// The text of the file.
pub(super) fn read(path: &Path) -> Outcome<String> {
    read_text(path).or_fail(|| format!("cannot read the configuration {}", path.shown()))
}
