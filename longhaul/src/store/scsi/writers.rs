//! Who else may write to a disk.

pub use proto::scsi::writer::Predecessor;

/// Who else may write to a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writers {
    /// Nobody asks: nothing is written.
    #[default]
    Unasked,
    /// Others may, and something coordinates them: nothing is reserved.
    Shared,
    /// Nobody: who finds another writer gives up.
    One,
    /// Nobody from now on, whoever did so before.
    TakeOver,
    /// Nobody since the writer with this key, which is gone and whose reservation must stand.
    Resume(u64),
    /// Nobody since this process of the same attachment, which has only just ended.
    Succeed(Predecessor),
}

impl Writers {
    /// Whether it goes on for a writer that is gone, and nobody may have written since.
    #[must_use]
    pub const fn continues(self) -> bool {
        matches!(self, Self::Resume(_) | Self::Succeed(_))
    }
}
