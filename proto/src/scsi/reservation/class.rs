//! What a reservation means for each command.

/// What commands have in common under reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// It tells who the unit is, or takes nothing from anybody: no reservation stops it.
    Free,
    /// TEST UNIT READY: another's RESERVE stops it, a persistent reservation does not.
    Ready,
    /// It learns what is on the medium or how the unit is set: what shares reads lets it pass.
    Reads,
    /// It changes the medium or the unit.
    Writes,
    /// PERSISTENT RESERVE IN and OUT: RESERVE stops them whoever holds it; else their own rules decide.
    Persistent,
    /// RESERVE and RELEASE, which have rules of their own.
    Reserve,
}

impl Class {
    /// Whether it passes while RESERVE is in force, for its holder or for another (SPC-2, table 10).
    pub(super) const fn passes_reserve(self, holder: bool) -> bool {
        match self {
            Self::Free | Self::Reserve => true,
            Self::Ready | Self::Reads | Self::Writes => holder,
            Self::Persistent => false,
        }
    }
}
