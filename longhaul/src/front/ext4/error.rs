//! Why files cannot be read.

use ext4_view::Ext4Error;

use super::name::Name;

/// Why a file system, or something in it, cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    /// There is none.
    #[error("there is no ext2, ext3 or ext4 file system{}", .0.map_or_else(String::new, |found| format!(", but {found}")))]
    Absent(Option<&'static str>),
    /// Its super block cannot be right.
    #[error("the super block is damaged, or the volume was cut off: {0}")]
    Geometry(String),
    /// It cannot be loaded.
    #[error("the file system cannot be used: {0}")]
    Load(Ext4Error),
    /// The volume cannot be read.
    #[error("the volume cannot be read")]
    Volume(#[source] volume::Error),
    /// Something in it cannot be read.
    #[error("{0}: {1}")]
    Path(Name, Reason),
    /// Directories that are within themselves.
    #[error(
        "its directories are more than 256 deep, or more than it has room for: they lead back to themselves"
    )]
    Loop,
    /// The program was told to end.
    #[error("ended by a signal before it was done")]
    Stopped,
    /// The crate that reads it has a mistake that this one has found.
    #[error("the file system is damaged so that its reader gave up")]
    Reader,
}

/// Why a path cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Reason {
    /// There is nothing.
    #[error("there is no such file or directory")]
    NotFound,
    /// It is a directory.
    #[error("it is a directory")]
    IsDirectory,
    /// It is none.
    #[error("it is not a directory")]
    NotDirectory,
    /// It is a device, a pipe or a socket.
    #[error("it is a {0}, which has no contents")]
    Special(&'static str),
    /// It is encrypted within the file system.
    #[error("it is encrypted by the file system (fscrypt), whose key only its kernel has")]
    Encrypted,
    /// Links lead nowhere, or in circles.
    #[error("it goes through too many symbolic links, or is too long")]
    Path,
    /// More than there can be.
    #[error("{0}")]
    Limit(&'static str),
    /// Damage, or what the crate does not know.
    #[error("{0}")]
    Other(String),
}

impl FilesError {
    /// What the crate said of `path`.
    pub(super) fn of(path: &Name, why: Ext4Error) -> Self {
        let reason = match why {
            Ext4Error::NotFound => Reason::NotFound,
            Ext4Error::IsADirectory => Reason::IsDirectory,
            Ext4Error::NotADirectory => Reason::NotDirectory,
            Ext4Error::Encrypted => Reason::Encrypted,
            Ext4Error::TooManySymlinks | Ext4Error::PathTooLong | Ext4Error::MalformedPath => {
                Reason::Path
            }
            Ext4Error::Io(why) => match why.downcast::<Self>() {
                Ok(own) => return *own,
                Err(why) => Reason::Other(why.to_string()),
            },
            why => Reason::Other(why.to_string()),
        };
        Self::Path(path.clone(), reason)
    }

    /// Whether it is of one path, so that others may still be read.
    pub(super) const fn is_of_one_path(&self) -> bool {
        matches!(self, Self::Path(..))
    }
}
