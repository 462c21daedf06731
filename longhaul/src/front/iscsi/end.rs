//! Why a session ended.

use proto::iscsi::pdu::FrameError;
use proto::iscsi::target;

use super::pdu_stream::StreamError;
use crate::target::sessions::EndReason;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error(transparent)]
    Session(#[from] target::Ending),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Other(#[from] EndReason),
    /// Its driver has panicked.
    #[error("an internal error: the session has broken down")]
    Broken,
}

impl End {
    /// Whether someone on the way, or a broken machine there, has had its hands in the session.
    pub(super) const fn is_attack(&self) -> bool {
        matches!(self, Self::Stream(StreamError::Frame(FrameError::Seal(_))))
    }
}
