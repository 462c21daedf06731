//! The types of persistent reservations (SPC-4, 6.15.3.4).

/// What a persistent reservation keeps from others, and from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Write Exclusive: only the holder writes.
    WriteExclusive = 0x1,
    /// Exclusive Access: only the holder reads or writes.
    ExclusiveAccess = 0x3,
    /// Write Exclusive - Registrants Only: only the registered write.
    WriteExclusiveRegistrants = 0x5,
    /// Exclusive Access - Registrants Only: only the registered read or write.
    ExclusiveAccessRegistrants = 0x6,
    /// Write Exclusive - All Registrants: only the registered write, and each of them is a holder.
    WriteExclusiveAll = 0x7,
    /// Exclusive Access - All Registrants: only the registered read or write, and each is a holder.
    ExclusiveAccessAll = 0x8,
}

impl Kind {
    /// Every type.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrants,
        Self::ExclusiveAccessRegistrants,
        Self::WriteExclusiveAll,
        Self::ExclusiveAccessAll,
    ];

    /// The type a TYPE field stands for; the other codes are obsolete or reserved.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Its TYPE field.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Others may read.
    #[must_use]
    pub const fn shares_reads(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive | Self::WriteExclusiveRegistrants | Self::WriteExclusiveAll
        )
    }

    /// Every registered I_T nexus is a holder.
    #[must_use]
    pub const fn all_hold(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }

    /// The registered are not kept out, whether they hold it or not.
    #[must_use]
    pub const fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Its bit in the PERSISTENT RESERVATION TYPE MASK (SPC-4, 6.15.4).
    #[must_use]
    pub const fn mask(self) -> u16 {
        match self {
            Self::WriteExclusiveAll => 0x8000,
            Self::ExclusiveAccessRegistrants => 0x4000,
            Self::WriteExclusiveRegistrants => 0x2000,
            Self::ExclusiveAccess => 0x0800,
            Self::WriteExclusive => 0x0200,
            Self::ExclusiveAccessAll => 0x0001,
        }
    }
}
