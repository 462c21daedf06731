//! How failures look to an NBD client: the one table.

use volume::Kind;

/// The error numbers of the protocol; they are Linux's, on every system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the names of the protocol")]
pub enum Errno {
    EPERM = 1,
    EIO = 5,
    EINVAL = 22,
    ENOSPC = 28,
    EOVERFLOW = 75,
    ENOTSUP = 95,
    ESHUTDOWN = 108,
}

impl From<Kind> for Errno {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::ReadOnly => Self::EPERM,
            Kind::Range => Self::EINVAL,
            Kind::Unsupported => Self::ENOTSUP,
            Kind::NoSpace => Self::ENOSPC,
            // The export itself is going away; a client may wait for it and connect again.
            Kind::Gone => Self::ESHUTDOWN,
            Kind::Medium | Kind::Integrity | Kind::Busy | Kind::Peer => Self::EIO,
        }
    }
}
