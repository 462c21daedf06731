//! Why a session ended.

use proto::iscsi::pdu::FrameError;
use proto::iscsi::target;

use super::wire::WireError;
use crate::target::sessions::EndReason;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error(transparent)]
    Session(#[from] target::Ending),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Other(#[from] EndReason),
}

impl End {
    /// Whether someone on the way, or a broken machine there, has had its hands in the session.
    pub(super) const fn is_attack(&self) -> bool {
        matches!(self, Self::Wire(WireError::Frame(FrameError::Seal(_))))
    }
}
