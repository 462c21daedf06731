//! AES-XTS (IEEE 1619, NIST SP 800-38E) as `aes-xts-plain64` uses it, through AWS-LC.

mod blockwise;

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use aws_lc_sys as ffi;

use blockwise::Blockwise;

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

#[derive(Clone, Copy)]
enum Direction {
    Decrypt = 0,
    Encrypt = 1,
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
        context.set_tweak(&tweak);
        context.apply(sector);
    }
}

#[derive(Clone, Copy)]
enum Cipher {
    Aes256Xts,
    Aes128Ecb,
}

impl Cipher {
    fn pointer(self) -> *const ffi::EVP_CIPHER {
        match self {
            // SAFETY: the function takes nothing and answers a pointer to static data.
            Self::Aes256Xts => unsafe { ffi::EVP_aes_256_xts() },
            // SAFETY: as above.
            Self::Aes128Ecb => unsafe { ffi::EVP_aes_128_ecb() },
        }
    }

    const fn key_size(self) -> usize {
        match self {
            Self::Aes256Xts => 64,
            Self::Aes128Ecb => 16,
        }
    }
}

/// An `EVP_CIPHER_CTX` with an expanded key. AWS-LC wipes what it frees.
struct Context(NonNull<ffi::EVP_CIPHER_CTX>);

// SAFETY: the context is owned by this value alone and has no tie to a thread.
unsafe impl Send for Context {}

// SAFETY: through a shared reference it is only the source of `EVP_CIPHER_CTX_copy`, which reads it.
unsafe impl Sync for Context {}

impl Context {
    fn new(cipher: Cipher, key: &[u8], direction: Direction) -> Self {
        assert_eq!(key.len(), cipher.key_size());
        let context = Self::empty();
        let tweak = [0; 16];
        // SAFETY: the context is live; as many bytes of key as this cipher has, just checked, and at
        // most 16 of tweak are read.
        let done = unsafe {
            ffi::EVP_CipherInit_ex(
                context.0.as_ptr(),
                cipher.pointer(),
                ptr::null_mut(),
                key.as_ptr(),
                tweak.as_ptr(),
                direction as c_int,
            )
        };
        // SAFETY: the context is live and ours alone. Padding would hold back the last block.
        let unpadded = unsafe { ffi::EVP_CIPHER_CTX_set_padding(context.0.as_ptr(), 0) };
        assert!(done == 1 && unpadded == 1, "AWS-LC takes every key with unlike halves");
        context
    }

    fn empty() -> Self {
        // SAFETY: the function takes nothing and answers a new context, or null without memory.
        let context = unsafe { ffi::EVP_CIPHER_CTX_new() };
        Self(NonNull::new(context).expect("memory for a cipher context"))
    }

    /// A context of one's own with the same key: cheaper than expanding it again, and free of locks.
    fn copy(&self) -> Self {
        let copy = Self::empty();
        // SAFETY: both contexts are live, they differ, and the copy is not shared yet.
        let done = unsafe { ffi::EVP_CIPHER_CTX_copy(copy.0.as_ptr(), self.0.as_ptr()) };
        assert_eq!(done, 1, "copying a cipher context fails only without memory");
        copy
    }

    fn set_tweak(&mut self, tweak: &[u8; 16]) {
        // SAFETY: the context is live and ours alone (`&mut`); null keeps the cipher and its key, -1
        // the direction; 16 bytes of tweak are read.
        let done = unsafe {
            ffi::EVP_CipherInit_ex(
                self.0.as_ptr(),
                ptr::null(),
                ptr::null_mut(),
                ptr::null(),
                tweak.as_ptr(),
                -1,
            )
        };
        assert_eq!(done, 1, "a tweak cannot be refused");
    }

    /// Ciphers whole blocks in place.
    fn apply(&mut self, data: &mut [u8]) {
        let len = c_int::try_from(data.len()).expect("at most a sector");
        let bytes = data.as_mut_ptr();
        let mut written = 0;
        // SAFETY: the context is live and ours alone (`&mut`); `len` bytes, all of them `data`'s, are
        // read and written in place, which AWS-LC allows where input and output are the same.
        let done =
            unsafe { ffi::EVP_CipherUpdate(self.0.as_ptr(), bytes, &raw mut written, bytes, len) };
        assert!(done == 1 && written == len, "ciphering whole blocks cannot fail");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is live, ours alone and not used again.
        unsafe { ffi::EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests;
