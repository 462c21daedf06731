//! What the file system of a volume that is a file has free.

use std::future::Future;
use std::pin::Pin;

use proto::scsi::log::FreeSpace;

/// A file on a file system.
pub trait FileSpace: Send + Sync {
    /// Whether the volume still has the file open: a drive may have ejected it.
    fn is_open(&self) -> bool;

    /// What there is; `None` if it cannot be told.
    fn free_space(&self) -> Pin<Box<dyn Future<Output = Option<FreeSpace>> + Send + '_>>;
}
