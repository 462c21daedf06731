//! The commands of SMC-3 and their fields. Elements are named by their addresses, of which the unit knows which there are.

/// A command and its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangerCdb {
    /// INITIALIZE ELEMENT STATUS (SMC-3, 6.4), and WITH RANGE (6.5) of all elements.
    Initialize,
    /// INITIALIZE ELEMENT STATUS WITH RANGE of some.
    InitializeRange {
        /// STARTING ELEMENT ADDRESS.
        start: u16,
    },
    /// READ ELEMENT STATUS (SMC-3, 6.11).
    ReadStatus(StatusQuery),
    /// MOVE MEDIUM (SMC-3, 6.6).
    Move {
        /// MEDIUM TRANSPORT ADDRESS.
        transport: u16,
        /// SOURCE ADDRESS.
        source: u16,
        /// DESTINATION ADDRESS.
        destination: u16,
    },
    /// EXCHANGE MEDIUM (SMC-3, 6.3).
    Exchange {
        /// MEDIUM TRANSPORT ADDRESS.
        transport: u16,
        /// SOURCE ADDRESS.
        source: u16,
        /// FIRST DESTINATION ADDRESS: where the medium of the source goes.
        first: u16,
        /// SECOND DESTINATION ADDRESS: where the medium goes that was there.
        second: u16,
    },
    /// POSITION TO ELEMENT (SMC-3, 6.8).
    Position {
        /// MEDIUM TRANSPORT ADDRESS.
        transport: u16,
        /// DESTINATION ADDRESS.
        destination: u16,
    },
}

/// Which elements READ ELEMENT STATUS asks for, and what of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusQuery {
    /// ELEMENT TYPE CODE; zero means all types.
    pub kind: u8,
    /// STARTING ELEMENT ADDRESS.
    pub start: u16,
    /// NUMBER OF ELEMENTS.
    pub count: u16,
    /// VOLTAG: the volume tags are wanted.
    pub tags: bool,
    /// CURDATA: nothing may be moved to find out.
    pub current: bool,
    /// DVCID: the identifiers of the drives are wanted.
    pub identifiers: bool,
    /// ALLOCATION LENGTH.
    pub allocation: u32,
}
