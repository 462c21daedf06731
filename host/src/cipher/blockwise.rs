//! XTS out of the block cipher, for the key size that AWS-LC has no XTS for.

use super::SECTOR_MAX;
use crate::context::{Cipher, Context, Direction};

/// AES-128-XTS.
pub(super) struct Blockwise {
    encrypt: Context,
    decrypt: Context,
    tweak: Context,
}

impl Blockwise {
    pub(super) fn new(data_key: &[u8], tweak_key: &[u8]) -> Self {
        Self {
            encrypt: Context::new(Cipher::Aes128Ecb, data_key, Direction::Encrypt),
            decrypt: Context::new(Cipher::Aes128Ecb, data_key, Direction::Decrypt),
            tweak: Context::new(Cipher::Aes128Ecb, tweak_key, Direction::Encrypt),
        }
    }

    pub(super) fn run<'a>(
        &self,
        direction: Direction,
        sectors: impl Iterator<Item = ([u8; 16], &'a mut [u8])>,
    ) {
        let mut tweak_cipher = self.tweak.copy();
        let mut cipher = match direction {
            Direction::Encrypt => self.encrypt.copy(),
            Direction::Decrypt => self.decrypt.copy(),
        };
        let mut masks = [0; SECTOR_MAX];
        for (mut tweak, sector) in sectors {
            tweak_cipher.apply(&mut tweak);
            let masks = &mut masks[..sector.len()];
            fill(masks, tweak);
            // A whole sector at a time, so that the blocks go through the processor side by side.
            xor(sector, masks);
            cipher.apply(sector);
            xor(sector, masks);
        }
    }
}

/// The masks of a sector's blocks: the enciphered tweak times 1, x, x^2 .. in GF(2^128)
/// (SP 800-38E, IEEE 1619 5.2).
fn fill(masks: &mut [u8], first: [u8; 16]) {
    const REDUCTION: u128 = 0x87;
    let mut mask = u128::from_le_bytes(first);
    for block in masks.chunks_exact_mut(16) {
        block.copy_from_slice(&mask.to_le_bytes());
        // Without a branch on what depends on the key.
        mask = (mask << 1) ^ ((mask >> 127) * REDUCTION);
    }
}

fn xor(data: &mut [u8], masks: &[u8]) {
    for (byte, mask) in data.iter_mut().zip(masks) {
        *byte ^= mask;
    }
}
