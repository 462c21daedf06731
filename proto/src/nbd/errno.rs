//! The error numbers of the protocol.

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
