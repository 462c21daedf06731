//! Who else may write to a disk.

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
}
