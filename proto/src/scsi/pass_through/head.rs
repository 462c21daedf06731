//! The head of a tape drive: which commands begin where it is, and which say that a client knows where.
//!
//! A drive that was reset, or has another tape, tells a client that once. Commands that the client had sent before would be
//! carried out all the same, at a place that it did not mean: over what is recorded there.

/// What a command of a tape drive has to do with the place of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadUse {
    /// It begins where the head is.
    Begins,
    /// It puts the head somewhere, or is sent by a client that finds out how the drive is.
    Finds,
    /// Nothing.
    None,
}

impl HeadUse {
    /// That of a command of this code (SSC-4, table 13).
    #[must_use]
    pub const fn of(opcode: u8) -> Self {
        match opcode {
            // READ, WRITE, READ REVERSE, WRITE FILEMARKS, SPACE, VERIFY and ERASE.
            0x08 | 0x0A | 0x0F | 0x10 | 0x11 | 0x13 | 0x19 | 0x80 | 0x91 => Self::Begins,
            // TEST UNIT READY, REWIND, LOAD UNLOAD and LOCATE.
            0x00 | 0x01 | 0x1B | 0x2B | 0x92 => Self::Finds,
            _ => Self::None,
        }
    }
}
