//! What the layer needs of a cipher; the ciphers themselves need processors and threads.

use std::future::Future;
use std::pin::Pin;

use bytes::BytesMut;

/// The unit that tweaks count in, whatever the size of a sector; also the smallest block.
pub const TWEAK_UNIT: u64 = 512;

/// Ciphered sectors, still to come. Ciphering cannot fail.
pub type Ciphering<'a> = Pin<Box<dyn Future<Output = BytesMut> + Send + 'a>>;

/// A length-preserving cipher of whole sectors, under one key.
///
/// The layer relies on more than confidentiality:
///
/// - Each aligned 512 bytes of a sector are ciphered independently of the rest of it, as in XTS, where
///   a block of 16 bytes depends on the key, the tweak and its place only. A mode that mixes a whole
///   sector would need every sector read before part of it is written.
/// - The answer is the buffer that was given, ciphered in place.
pub trait SectorCipher: Send + Sync {
    /// The size of a sector: a power of two from 512 to 4096.
    fn sector_size(&self) -> u32;

    /// Enciphers whole sectors; `tweak` is that of the first.
    fn encrypt(&self, tweak: u64, sectors: BytesMut) -> Ciphering<'_>;

    /// Deciphers whole sectors; `tweak` is that of the first.
    fn decrypt(&self, tweak: u64, sectors: BytesMut) -> Ciphering<'_>;
}
