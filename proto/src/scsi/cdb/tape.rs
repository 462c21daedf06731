//! The commands of SSC-4 that other devices do not have, or have as other commands, and their fields.

/// A command and its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapeCdb {
    /// REWIND (SSC-4, 7.11).
    Rewind,
    /// READ BLOCK LIMITS (SSC-4, 7.5).
    ReadBlockLimits,
    /// READ (6) (SSC-4, 7.4).
    Read {
        /// FIXED: blocks of the length in the block descriptor are counted, and not bytes of one block.
        fixed: bool,
        /// SILI.
        suppress: bool,
        /// TRANSFER LENGTH.
        count: u32,
    },
    /// WRITE (6) (SSC-4, 7.19).
    Write {
        /// FIXED.
        fixed: bool,
        /// TRANSFER LENGTH.
        count: u32,
    },
    /// WRITE FILEMARKS (6) (SSC-4, 7.20).
    WriteFilemarks {
        /// IMMED.
        immediate: bool,
        /// FILEMARK COUNT.
        count: u32,
    },
    /// SPACE (6) and (16) (SSC-4, 7.17 and 7.18).
    Space {
        /// What is counted.
        code: SpaceCode,
        /// COUNT.
        count: i64,
    },
    /// LOCATE (10) and (16) (SSC-4, 7.2 and 7.3).
    Locate(Destination),
    /// READ POSITION (SSC-4, 7.7).
    ReadPosition {
        /// Which form of it.
        form: PositionForm,
        /// ALLOCATION LENGTH, of the extended form.
        allocation: u32,
    },
    /// ERASE (6) (SSC-4, 7.1).
    Erase {
        /// LONG: all that is behind the head is erased.
        long: bool,
    },
    /// LOAD UNLOAD (SSC-4, 7.1.4).
    LoadUnload {
        /// LOAD.
        load: bool,
    },
    /// REPORT DENSITY SUPPORT (SSC-4, 7.8).
    ReportDensity {
        /// MEDIUM TYPE: types of media are asked for.
        types: bool,
        /// MEDIA: those of the medium that is loaded.
        media: bool,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
}

/// What SPACE counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceCode {
    /// Logical blocks.
    Blocks,
    /// File marks.
    Filemarks,
    /// Nothing: it goes to the end of the data.
    EndOfData,
}

/// Where LOCATE goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Before the logical object of this number.
    Object(u64),
    /// To the beginning of the logical file of this number.
    File(u64),
    /// To the end of the data.
    EndOfData,
}

/// The forms of READ POSITION data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionForm {
    /// 20 bytes.
    Short,
    /// 32 bytes, with the number of the file.
    Long,
    /// 32 bytes, with large numbers.
    Extended,
}
