//! Why a file or a block device cannot be a volume.

use std::io;

/// Why a file cannot be a volume.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is in use.
    #[error("it is in use by another process, or by another volume of this one")]
    InUse,
    /// This process has locked it.
    #[error("this process uses it already")]
    UsedHere,
    /// A process has locked it.
    #[error("it is in use by {0}")]
    LockedBy(String),
    /// The system uses it.
    #[error("it is {0}")]
    UsedBySystem(String),
    /// It is not there, and no size was given to make it with.
    #[error("it does not exist")]
    Missing,
    /// It is not there, and its file system is one in which none is made.
    #[error("it does not exist, and cannot be made")]
    Unmakeable(#[source] io::Error),
    /// Its size is not the one asked for.
    #[error("it is {found} bytes long, not {asked}")]
    OtherSize {
        /// Bytes it has.
        found: u64,
        /// Bytes asked for.
        asked: u64,
    },
    /// Its size is no multiple of the block size.
    #[error("{size} bytes are not a whole number of blocks of {block_size} bytes")]
    PartialBlock {
        /// Bytes.
        size: u64,
        /// Bytes.
        block_size: u32,
    },
    /// The size that it is to get is no multiple of the block size.
    #[error("a size of {size} bytes is not a whole number of blocks of {block_size} bytes")]
    PartialSize {
        /// Bytes.
        size: u64,
        /// Bytes.
        block_size: u32,
    },
    /// It would lose its end.
    #[error("it has {from} bytes and cannot shrink to {to} while it is in use")]
    Shrinks {
        /// Bytes it has.
        from: u64,
        /// Bytes it would have.
        to: u64,
    },
    /// The system has no files of that size.
    #[error("a file of {0} bytes is larger than there can be here")]
    TooLarge(u64),
    /// The device takes no writes.
    #[error("it is write-protected")]
    WriteProtected,
    /// The device has no blocks.
    #[error("it has no blocks")]
    NoMedium,
    /// It is empty.
    #[error("it is empty: a volume has at least one block")]
    Empty,
    /// A file of no bytes was to be made.
    #[error("its size is given as 0: a volume has at least one block")]
    NoSize,
    /// It is something else.
    #[error("it is {found}, not {wanted}")]
    NotA {
        /// What it is.
        found: &'static str,
        /// What it must be.
        wanted: &'static str,
    },
    /// It would be made where devices are.
    #[error("there is no such device")]
    NoDevice,
    /// Nothing but the page cache leads to it.
    #[error("its file system has no requests past the page cache (O_DIRECT)")]
    NotDirect,
    /// Requests past the page cache are of larger blocks.
    #[error("its requests past the page cache (O_DIRECT) cannot be of {0} bytes")]
    DirectBlocks(u32),
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

pub(super) fn whole_blocks(size: u64, block_size: u32) -> Result<u64, OpenError> {
    if size == 0 {
        return Err(OpenError::Empty);
    }
    if !size.is_multiple_of(u64::from(block_size)) {
        return Err(OpenError::PartialBlock { size, block_size });
    }
    Ok(size)
}
