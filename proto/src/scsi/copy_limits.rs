//! How much one EXTENDED COPY may ask for.

/// The most devices one list may name.
pub const TARGETS_MAX: u16 = 4;
/// The most segments one list may copy.
pub const SEGMENTS_MAX: u16 = 16;
/// The most bytes one segment may copy: with the number of segments it bounds what one command can cause.
pub const SEGMENT_BYTES_MAX: u32 = 64 << 20;
/// The most bytes of descriptors.
pub const DESCRIPTORS_MAX: u32 =
    TARGETS_MAX as u32 * TARGET as u32 + SEGMENTS_MAX as u32 * SEGMENT as u32;
/// The longest parameter list.
pub const LIST_MAX: u32 = HEADER as u32 + DESCRIPTORS_MAX;

const HEADER: usize = 16;
/// Bytes of the descriptor of a device.
pub(super) const TARGET: usize = 32;
/// Bytes of the descriptor of a segment.
pub(super) const SEGMENT: usize = 28;
