//! One writer where the target cannot tell writers apart: a mark that is on the volume itself. What it looks like is the
//! affair of the one who put it there; here it is read again, now and then and on every new session.
//!
//! It is no reservation. Between two looks another may take the volume over, and both write.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use volume::Span;

use super::session::Session;
use super::unit::UnitError;
use super::volume::Link;
use super::writers::Writers;

/// How often a mark is looked at while the session stands.
pub(super) const LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// After so long whoever had a mark that was replaced has noticed, if its session stands: a look, which may have just
/// begun, and one that takes as long as it may.
pub const NOTICED_WITHIN: Duration = Duration::from_secs(15);

/// Says of the bytes where the mark should be whether it is there, and if not, what is.
pub type MarkCheck = Arc<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

/// A unit that should have one writer, and whose target has no persistent reservations.
#[derive(Clone, Debug)]
pub struct Unguarded {
    /// Who else may write.
    pub writers: Writers,
    /// Names this attachment, which is noted under it in the state directory.
    pub key: u64,
    /// Keys of attachments of this machine whose processes are gone.
    pub gone: Vec<u64>,
    /// Other attachments that are noted on this machine: their keys, and what is known of them.
    pub others: Vec<(u64, String)>,
}

/// A mark that is on the volume.
#[derive(Clone)]
pub(super) struct Mark {
    pub(super) span: Span,
    pub(super) is_ours: MarkCheck,
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mark").field("span", &self.span).finish_non_exhaustive()
    }
}

/// Why a mark is not known to be there.
pub(super) enum MarkError {
    /// It could not be read.
    Unread(UnitError),
    /// Something else is.
    Replaced(String),
}

impl Mark {
    /// Reads it.
    pub(super) async fn look<S: Session>(&self, link: &Link<S>) -> Result<(), MarkError> {
        let bytes = link.read(self.span).await.map_err(MarkError::Unread)?;
        (self.is_ours)(&bytes).map_err(MarkError::Replaced)
    }
}
