//! Which way data go.

/// To the volume or from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Direction {
    /// Writes and a flush at the end.
    Write,
    /// Reads.
    Read,
}

impl Direction {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}
