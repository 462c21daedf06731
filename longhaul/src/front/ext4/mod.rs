//! Files of an ext2, ext3 or ext4 file system on a volume, read without the kernel and without root.
//!
//! The format is read by the crate `ext4-view`. What it reads is hostile: whoever can write the volume can write any file
//! system. So the super block is checked before the crate sees it, names are checked before they become files here, and all
//! that a file system can claim has a limit.

mod error;
mod extract;
mod file_system;
mod name;
mod reader;
mod superblock;

use std::sync::Arc;

use tokio::runtime::Handle;
use volume::Volume;

use crate::stop::Stop;

pub(crate) use error::{FilesError, Reason};
pub(crate) use extract::{Destination, Event, ExtractError, Extracted, extract};
pub(crate) use file_system::{Entry, FileSystem, Kind};
pub(crate) use name::Name;

/// What comes of `work` on the file system of `volume`. It runs on a thread of its own, as the crate waits for what it
/// reads; it ends with an error soon after `stop` is called.
pub(crate) async fn read_files<T: Send + 'static, E: From<FilesError> + Send + 'static>(
    volume: Arc<dyn Volume>,
    stop: Stop,
    work: impl FnOnce(&FileSystem) -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let superblock = superblock::check(&*volume).await?;
    let handle = Handle::current();
    let task = tokio::task::spawn_blocking(move || {
        let reader = reader::VolumeReader::new(volume, handle, stop.clone());
        work(&FileSystem::load(reader, superblock, stop)?)
    });
    // A panic of the crate is a mistake in it that damage has found, and no reason to say nothing.
    task.await.unwrap_or_else(|_| Err(FilesError::Reader.into()))
}
