//! CRC32C, the digest of headers and data (RFC 7143, 13.1).

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of a digest on the wire.
pub const DIGEST_LEN: usize = 4;

/// The digest of `bytes`, as it stands on the wire: the least significant byte of the CRC first
/// (RFC 7143, 13.1; the examples of A.4).
#[must_use]
pub fn crc32c(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    crc_fast::crc32_iscsi(bytes).to_le_bytes()
}

/// The digest of bytes that come in pieces.
pub struct Crc32c(Digest);

impl Crc32c {
    /// The digest of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all of them, as it stands on the wire.
    #[must_use]
    pub fn finish(&self) -> [u8; DIGEST_LEN] {
        (self.0.finalize() as u32).to_le_bytes()
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7143, A.4.
    #[test]
    fn examples_of_the_standard() {
        assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), [0x4e, 0x79, 0xdd, 0x46]);
        let falling: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&falling), [0x5c, 0xdb, 0x3f, 0x11]);
    }

    #[test]
    fn pieces_digest_as_the_whole() {
        let bytes: Vec<u8> = (0..=255).cycle().take(10_007).collect();
        for cut in [0, 1, 15, 16, 255, 4096, 10_007] {
            let mut digest = Crc32c::new();
            digest.update(&bytes[..cut]);
            digest.update(&bytes[cut..]);
            assert_eq!(digest.finish(), crc32c(&bytes), "cut at {cut}");
        }
    }
}
