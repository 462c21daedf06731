//! The file that is made for a volume.

use std::path::{Path, PathBuf};

use crate::config::trailing_option;
use crate::failure::{Failure, Outcome};
use crate::printable::Shown as _;
use crate::uri::Uri;

/// A file that was made for a volume that is not open yet. It goes when this is dropped.
pub(super) struct CreatedFile(pub(super) Option<PathBuf>);

impl CreatedFile {
    /// It stays from now on.
    pub(super) fn keep(mut self) -> Option<PathBuf> {
        self.0.take()
    }
}

impl Drop for CreatedFile {
    fn drop(&mut self) {
        if let Some(made) = &self.0 {
            remove(made);
        }
    }
}

pub(super) fn remove(made: &Path) {
    if let Err(why) = std::fs::remove_file(made) {
        tracing::warn!(%why, path = %made.shown(), "a file that was made for nothing cannot be removed");
    }
}

/// Refuses to make a file whose name ends in what is an option elsewhere.
pub(super) fn refuse_options(uri: &Uri, path: &Path) -> Outcome {
    let option = path.to_str().filter(|_| !path.exists()).and_then(trailing_option);
    let Some(option) = option else { return Ok(()) };
    Err(Failure::usage(format!("cannot open {uri}"))
        .because(format!(
            "it does not exist, and `,{option}` at its end is an option of a volume of `serve`"
        ))
        .hint("leave it out here; a file that has such a name must be there already"))
}
