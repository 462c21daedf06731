//! How the commands of a unit follow one another.

/// How the commands of a sequential unit follow one another, as an initiator has sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// Each begins when the one before has ended.
    Ended,
    /// The unit has each when it has the one before, and carries them out in that order.
    Started,
}
