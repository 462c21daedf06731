//! Frames: bytes in, PDUs out ([`Decoder`]); PDUs in, bytes out ([`Outbox`]).
//!
//! ```text
//! BHS (48) | AHS (0..1020) | header digest? | data segment | padding to 4 | data digest?
//! ```
//!
//! Digests are off until the login has ended (RFC 7143, 13.1), so both sides start without and are told.
//! So are seals, which take the place of digests and padding ([`super::sealed`]).

mod body;
mod decoder;
mod encrypt_queue;
mod framing;
mod outbox;
mod output_queue;
mod pieces;
mod sealed;

use bytes::Bytes;

use super::header::{BHS_LEN, Header};

pub use decoder::{Decoder, FrameError};
pub use encrypt_queue::{Done, Job};
pub use outbox::Outbox;
pub use pieces::Pieces;

/// The most bytes of additional header segments there can be (RFC 7143, 11.2.1.5).
pub const AHS_MAX: usize = 255 * 4;

/// The data segment a peer may send during login, and afterwards if nothing was declared
/// (RFC 7143, 13.12).
pub const DATA_MAX_DEFAULT: usize = 8192;

/// One PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pdu {
    /// The basic header segment.
    pub header: Header,
    /// Additional header segments, a multiple of four bytes.
    pub ahs: Bytes,
    /// The data segment, without padding.
    pub data: Bytes,
}

impl Pdu {
    /// A PDU that is all header.
    pub fn bare(header: impl Into<Header>) -> Self {
        Self::with_data(header, Bytes::new())
    }

    /// A PDU with a data segment.
    pub fn with_data(header: impl Into<Header>, data: Bytes) -> Self {
        Self { header: header.into(), ahs: Bytes::new(), data }
    }
}

/// What the decoder found between two frame borders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A PDU.
    Pdu(Pdu),
    /// Something that is no PDU to act on; what follows it is intact. A target answers it with a
    /// Reject that carries this header.
    Flawed {
        /// The header as it came.
        bhs: [u8; BHS_LEN],
        /// What is wrong.
        flaw: Flaw,
    },
}

/// Why a frame is not to be acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Nothing is known by this opcode.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// The data are not those the digest was made of.
    #[error("data digest does not match")]
    DataDigest,
}

/// How many bytes pad `len` to a multiple of four (RFC 7143, 11.1).
pub(super) const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

#[cfg(test)]
mod tests;
mod transcript;
