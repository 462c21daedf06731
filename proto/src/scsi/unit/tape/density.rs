//! REPORT DENSITY SUPPORT (SSC-4, 7.8): there is one density, which stands for the format of the file.

use super::super::super::mode::tape::DENSITY;

const HEADER: usize = 4;
const DESCRIPTOR: usize = 52;

/// REPORT DENSITY SUPPORT data for a tape of so many bytes. Of types of media none is described.
pub(super) fn report(types: bool, capacity: u64) -> Vec<u8> {
    const WRITABLE: u8 = 0x80;
    const DEFAULT_DENSITY: u8 = 0x20;
    if types {
        return vec![0, 2, 0, 0];
    }
    let mut data = vec![0, (HEADER - 2 + DESCRIPTOR) as u8, 0, 0];
    data.extend([DENSITY, DENSITY, WRITABLE | DEFAULT_DENSITY, 0, 0]);
    // Bits per millimetre, the width of the medium and the number of tracks.
    data.extend([0, 0, 0, 0, 0, 0, 1]);
    let megabytes = u32::try_from(capacity / 1_000_000).unwrap_or(u32::MAX);
    data.extend(megabytes.to_be_bytes());
    data.extend(*b"LONGHAUL");
    data.extend(*b"FILE-1  ");
    data.extend(*b"Tape in a file      ");
    data
}
