//! AES-XTS (IEEE 1619, NIST SP 800-38E) as `aes-xts-plain64` uses it, through AWS-LC.

mod blockwise;

use blockwise::Blockwise;

use crate::context::{Cipher, Context, Direction};

/// The size of the key of AES-256-XTS in bytes, which new volumes get: two AES-256 keys.
pub const KEY_SIZE: usize = 64;

/// The size of the key of AES-128-XTS.
const SHORT_KEY_SIZE: usize = 32;

/// The unit that tweaks count in, whatever the size of a sector (`plain64` without large sectors).
pub const TWEAK_UNIT: usize = 512;

/// The largest sector that dm-crypt knows.
const SECTOR_MAX: usize = 4096;

/// Why a key was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is not two AES-128 or AES-256 keys long.
    #[error("an XTS key of {0} bits is not supported: only 256 and 512 bits are")]
    Size(usize),
    /// Both halves are the same, which SP 800-38E and FIPS 140 forbid: it breaks the mode.
    #[error("the two halves of the XTS key are the same")]
    Halves,
}

/// AES-XTS under one key, set up once; any number of threads may use it at a time.
pub struct Xts(Mode);

enum Mode {
    /// AES-256, for which AWS-LC has the whole mode.
    Whole { encrypt: Context, decrypt: Context },
    /// AES-128, for which it has the block cipher only.
    Blockwise(Blockwise),
}

impl Xts {
    /// Expands `key`. The caller wipes its own copy; this one is wiped when dropped.
    pub fn new(key: &[u8]) -> Result<Self, KeyError> {
        if key.len() != KEY_SIZE && key.len() != SHORT_KEY_SIZE {
            return Err(KeyError::Size(key.len() * 8));
        }
        let (data_key, tweak_key) = key.split_at(key.len() / 2);
        if data_key == tweak_key {
            return Err(KeyError::Halves);
        }
        if key.len() == SHORT_KEY_SIZE {
            return Ok(Self(Mode::Blockwise(Blockwise::new(data_key, tweak_key))));
        }
        Ok(Self(Mode::Whole {
            encrypt: Context::new(Cipher::Aes256Xts, key, Direction::Encrypt),
            decrypt: Context::new(Cipher::Aes256Xts, key, Direction::Decrypt),
        }))
    }

    /// Enciphers whole sectors in place; `tweak` is that of the first, in units of 512 bytes.
    ///
    /// # Panics
    ///
    /// If `data` is not a whole number of sectors, or `sector_size` no power of two from 512 to 4096.
    pub fn encrypt(&self, tweak: u64, sector_size: usize, data: &mut [u8]) {
        self.run(Direction::Encrypt, tweak, sector_size, data);
    }

    /// Deciphers whole sectors in place; everything else is as for [`encrypt`](Self::encrypt).
    pub fn decrypt(&self, tweak: u64, sector_size: usize, data: &mut [u8]) {
        self.run(Direction::Decrypt, tweak, sector_size, data);
    }

    fn run(&self, direction: Direction, first: u64, sector_size: usize, data: &mut [u8]) {
        assert!(sector_size.is_power_of_two() && (TWEAK_UNIT..=SECTOR_MAX).contains(&sector_size));
        assert!(data.len().is_multiple_of(sector_size));
        let step = (sector_size / TWEAK_UNIT) as u64;
        // plain64 wraps as dm-crypt's 64-bit counter does.
        let tweaks = (0..).map(|index: u64| first.wrapping_add(index.wrapping_mul(step)));
        let sectors = tweaks.map(tweak_block).zip(data.chunks_exact_mut(sector_size));
        match (&self.0, direction) {
            (Mode::Whole { encrypt, .. }, Direction::Encrypt) => whole(encrypt, sectors),
            (Mode::Whole { decrypt, .. }, Direction::Decrypt) => whole(decrypt, sectors),
            (Mode::Blockwise(cipher), _) => cipher.run(direction, sectors),
        }
    }
}

/// The tweak as the sixteen bytes that are enciphered: little-endian.
fn tweak_block(tweak: u64) -> [u8; 16] {
    u128::from(tweak).to_le_bytes()
}

fn whole<'a>(context: &Context, sectors: impl Iterator<Item = ([u8; 16], &'a mut [u8])>) {
    let mut context = context.copy();
    for (tweak, sector) in sectors {
        context.begin(&tweak);
        context.apply(sector);
    }
}

#[cfg(test)]
mod tests;
