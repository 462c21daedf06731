//! The commands of MMC-6 that disks do not have, and their fields.

use super::{Access, Cdb};

/// A command and its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpticalCdb {
    /// READ TOC/PMA/ATIP (MMC-6, 6.25).
    ReadToc {
        /// MSF: addresses are minutes, seconds and frames.
        minutes: bool,
        /// Format.
        format: u8,
        /// Track/Session Number.
        track: u8,
        /// Allocation Length.
        allocation: u32,
    },
    /// GET CONFIGURATION (MMC-6, 6.5).
    GetConfiguration {
        /// RT: which features.
        requested: u8,
        /// Starting Feature Number.
        from: u16,
        /// Allocation Length.
        allocation: u32,
    },
    /// GET EVENT STATUS NOTIFICATION (MMC-6, 6.6).
    GetEventStatus {
        /// Polled: the answer is wanted now.
        polled: bool,
        /// Notification Class Request.
        classes: u8,
        /// Allocation Length.
        allocation: u32,
    },
    /// READ DISC INFORMATION (MMC-6, 6.21).
    ReadDiscInformation {
        /// Data Type.
        kind: u8,
        /// Allocation Length.
        allocation: u32,
    },
    /// READ TRACK INFORMATION (MMC-6, 6.26).
    ReadTrackInformation {
        /// Which.
        track: TrackAddress,
        /// Allocation Length.
        allocation: u32,
    },
    /// READ DISC STRUCTURE, which was READ DVD STRUCTURE (MMC-6, 6.22).
    ReadDiscStructure {
        /// Media Type.
        media: u8,
        /// Layer Number.
        layer: u8,
        /// Format.
        format: u8,
        /// Allocation Length.
        allocation: u32,
    },
    /// MECHANISM STATUS (MMC-6, 6.12).
    MechanismStatus {
        /// Allocation Length.
        allocation: u32,
    },
    /// READ CD (MMC-6, 6.19).
    ReadCd {
        /// Which sectors.
        access: Access,
        /// Expected Sector Type.
        sector: u8,
        /// Which parts of them: byte 9.
        parts: u8,
        /// Sub-channel Selection.
        subchannel: u8,
    },
    /// FORMAT UNIT with a format list of one descriptor (MMC-6, 6.4).
    FormatUnit,
    /// READ FORMAT CAPACITIES (MMC-6, 6.23).
    ReadFormatCapacities {
        /// Allocation Length.
        allocation: u32,
    },
    /// RESERVE TRACK by its size (MMC-6, 6.31).
    ReserveTrack {
        /// Reservation Size.
        blocks: u32,
    },
    /// SEND OPC INFORMATION (MMC-6, 6.34).
    SendOpc {
        /// Parameter List Length.
        length: u32,
    },
    /// SEND CUE SHEET (MMC-6, 6.33).
    SendCueSheet {
        /// Cue Sheet Size.
        length: u32,
    },
    /// CLOSE TRACK SESSION (MMC-6, 6.3).
    Close(CloseFunction),
    /// READ BUFFER CAPACITY (MMC-6, 6.16).
    ReadBufferCapacity {
        /// Block: it is told in blocks.
        blocks: bool,
        /// Allocation Length.
        allocation: u32,
    },
    /// SET CD SPEED (MMC-6, 6.38).
    SetCdSpeed,
    /// SET STREAMING (MMC-6, 6.40).
    SetStreaming {
        /// Parameter List Length.
        length: u32,
    },
}

impl OpticalCdb {
    /// What FORMAT UNIT has: a header and one format descriptor.
    pub const FORMAT_LIST: u32 = 12;

    /// How many bytes of data-out it needs.
    #[must_use]
    pub const fn data_out(&self) -> u32 {
        match self {
            Self::FormatUnit => Self::FORMAT_LIST,
            Self::SendOpc { length }
            | Self::SetStreaming { length }
            | Self::SendCueSheet { length } => *length,
            _ => 0,
        }
    }
}

impl From<OpticalCdb> for Cdb {
    fn from(cdb: OpticalCdb) -> Self {
        Self::Optical(cdb)
    }
}

/// What CLOSE TRACK SESSION closes (MMC-6, table 238).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseFunction {
    /// Nothing: a formatting in the background is to stop, and there is none.
    StopFormatting,
    /// The track.
    Track,
    /// The session.
    Session,
    /// The session and the disc.
    Finalize,
}

/// By what READ TRACK INFORMATION names a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackAddress {
    /// By a block of it.
    Block(u32),
    /// By its number.
    Track(u32),
    /// By the session of which it is the first.
    Session(u32),
}
