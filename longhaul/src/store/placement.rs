//! Whether the file of a volume is still where it was opened: one that was removed is written to and synchronised as if
//! nothing had happened, and is gone when it is closed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use host::file::{File, Placement};

use super::engine::blocking;
use crate::printable::Shown as _;

/// How often it is looked for where nobody flushes.
const LOOKED_FOR_EVERY: Duration = Duration::from_secs(5);

/// Where a file was opened.
#[derive(Clone)]
pub(super) struct OpenedAt {
    path: Arc<Path>,
    reported: Arc<AtomicBool>,
}

impl OpenedAt {
    pub(super) fn new(path: &Path) -> Self {
        // The program may change its directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
        Self { path: path.into(), reported: Arc::default() }
    }

    /// Why what is written to `file` is not where it is looked for; tells the log, once. No flush of one that was
    /// removed succeeds any more.
    pub(super) fn trouble(&self, file: &File) -> Option<String> {
        let path = self.path.shown();
        let placement = file.placement(&self.path).unwrap_or(Placement::AtPath);
        let why = match placement {
            Placement::AtPath => return None,
            Placement::Removed => format!(
                "{path} has been removed while it is in use: all of it is gone when this program ends; until then it can \
                 be copied from /proc/{}/fd",
                std::process::id()
            ),
            Placement::Replaced => format!(
                "{path} has been moved while it is in use, and another file is there now: what is written goes to the one \
                 that was moved"
            ),
            Placement::Moved => format!(
                "{path} has been moved while it is in use: what is written goes to where it is now"
            ),
        };
        if placement == Placement::Removed {
            file.fail("look for the file", &io::Error::other(&*why));
        }
        if !self.reported.swap(true, Ordering::Relaxed) {
            tracing::error!("{why}");
        }
        Some(why)
    }

    /// Looks for the file now and then, as long as it is open.
    pub(super) fn watch(self, file: Weak<File>) {
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOKED_FOR_EVERY).await;
                let Some(file) = file.upgrade() else { return };
                let at = self.clone();
                let looked = blocking(&file, move |file| Ok(at.trouble(file))).await;
                if !matches!(looked, Ok(None)) {
                    return;
                }
            }
        });
    }
}
