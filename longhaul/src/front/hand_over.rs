//! How a front is handed over to another process.

use std::io;

/// Why a mount cannot be handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// What was acknowledged cannot be made stable.
    #[error(transparent)]
    Flush(#[from] volume::Error),
    /// The system refused to go on.
    #[error(transparent)]
    System(#[from] io::Error),
}
