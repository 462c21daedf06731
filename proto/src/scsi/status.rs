//! How a command ended (SAM-5, 5.3.1).

/// The status byte of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Good = 0x00,
    /// Not done, or done with a remark: sense data says which.
    CheckCondition = 0x02,
    /// COMPARE AND WRITE and PREFETCH: the condition is met.
    ConditionMet = 0x04,
    /// The logical unit cannot take the command now.
    Busy = 0x08,
    /// Another initiator holds a reservation.
    ReservationConflict = 0x18,
    /// The logical unit's queue has no room.
    TaskSetFull = 0x28,
    /// An ACA condition exists.
    AcaActive = 0x30,
    /// Aborted by another initiator, where the control mode page asks to be told.
    TaskAborted = 0x40,
}

impl Status {
    /// The status a byte stands for, if it is one of those in use.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::Good,
            0x02 => Self::CheckCondition,
            0x04 => Self::ConditionMet,
            0x08 => Self::Busy,
            0x18 => Self::ReservationConflict,
            0x28 => Self::TaskSetFull,
            0x30 => Self::AcaActive,
            0x40 => Self::TaskAborted,
            _ => return None,
        })
    }
}
