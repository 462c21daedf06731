//! The commands by which a client asks the server of a unit for something.

/// A command and its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementCdb {
    /// MANAGEMENT PROTOCOL IN (SPC-4, 6.9).
    In {
        /// MANAGEMENT PROTOCOL.
        protocol: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// MANAGEMENT PROTOCOL OUT (SPC-4, 6.10).
    Out {
        /// MANAGEMENT PROTOCOL.
        protocol: u8,
        /// PARAMETER LIST LENGTH.
        length: u32,
    },
}
