//! What stands before each request.

/// FUSE_UNIQUE_RESEND: the request was sent to a server before, which has not answered it.
const RESENT: u64 = 1 << 63;

/// What stands before each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its number, for the answer.
    pub unique: u64,
    /// What it is about.
    pub node: u64,
}

impl Header {
    /// The same for a request and for what is sent again of it.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.unique & !RESENT
    }

    /// Whether a server before this one was sent it too.
    #[must_use]
    pub const fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }
}
