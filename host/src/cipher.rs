//! AES-XTS (IEEE 1619, NIST SP 800-38E) as `aes-xts-plain64` uses it, through AWS-LC.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use aws_lc_sys as ffi;
use zeroize::Zeroizing;

/// The size of a key in bytes: two AES-256 keys.
pub const KEY_SIZE: usize = 64;

/// The unit that tweaks count in, whatever the size of a sector (`plain64` without large sectors).
pub const TWEAK_UNIT: usize = 512;

/// Why a key was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is not two AES-256 keys long.
    #[error("an XTS key of {0} bits is not supported: only {bits} bits are", bits = KEY_SIZE * 8)]
    Size(usize),
    /// Both halves are the same, which SP 800-38E and FIPS 140 forbid: it breaks the mode.
    #[error("the two halves of the XTS key are the same")]
    Halves,
}

/// AES-256-XTS under one key, set up once; any number of threads may use it at a time.
pub struct Xts {
    encrypt: Context,
    decrypt: Context,
}

#[derive(Clone, Copy)]
enum Direction {
    Decrypt = 0,
    Encrypt = 1,
}

impl Xts {
    /// Expands `key`. The caller wipes its own copy; this one is wiped when dropped.
    pub fn new(key: &[u8]) -> Result<Self, KeyError> {
        let key: &[u8; KEY_SIZE] = key.try_into().map_err(|_| KeyError::Size(key.len() * 8))?;
        let (data_key, tweak_key) = key.split_at(KEY_SIZE / 2);
        if data_key == tweak_key {
            return Err(KeyError::Halves);
        }
        Ok(Self {
            encrypt: Context::new(key, Direction::Encrypt),
            decrypt: Context::new(key, Direction::Decrypt),
        })
    }

    /// Enciphers whole sectors in place; `tweak` is that of the first, in units of 512 bytes.
    ///
    /// # Panics
    ///
    /// If `data` is not a whole number of sectors, or `sector_size` is no power of two from 512 on.
    pub fn encrypt(&self, tweak: u64, sector_size: usize, data: &mut [u8]) {
        self.encrypt.run(tweak, sector_size, data);
    }

    /// Deciphers whole sectors in place; everything else is as for [`encrypt`](Self::encrypt).
    pub fn decrypt(&self, tweak: u64, sector_size: usize, data: &mut [u8]) {
        self.decrypt.run(tweak, sector_size, data);
    }
}

/// An `EVP_CIPHER_CTX` with an expanded key. AWS-LC wipes what it frees.
struct Context(NonNull<ffi::EVP_CIPHER_CTX>);

// SAFETY: the context is owned by this value alone and has no tie to a thread.
unsafe impl Send for Context {}

// SAFETY: through a shared reference it is only the source of `EVP_CIPHER_CTX_copy`, which reads it.
unsafe impl Sync for Context {}

impl Context {
    fn new(key: &[u8; KEY_SIZE], direction: Direction) -> Self {
        let context = Self::empty();
        let tweak = [0; 16];
        let key = Zeroizing::new(*key);
        // SAFETY: the function takes nothing and answers a pointer to static data.
        let cipher = unsafe { ffi::EVP_aes_256_xts() };
        // SAFETY: the context is live; AES-256-XTS reads 64 bytes of key and 16 of tweak.
        let done = unsafe {
            ffi::EVP_CipherInit_ex(
                context.0.as_ptr(),
                cipher,
                ptr::null_mut(),
                key.as_ptr(),
                tweak.as_ptr(),
                direction as c_int,
            )
        };
        assert_eq!(done, 1, "AWS-LC takes every 64-byte key with unlike halves");
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

    fn run(&self, first: u64, sector_size: usize, data: &mut [u8]) {
        assert!(sector_size.is_power_of_two() && sector_size >= TWEAK_UNIT);
        assert!(data.len().is_multiple_of(sector_size));
        let mut context = self.copy();
        let step = (sector_size / TWEAK_UNIT) as u64;
        let mut tweak = first;
        for sector in data.chunks_exact_mut(sector_size) {
            context.sector(tweak, sector);
            // plain64 wraps as dm-crypt's 64-bit counter does.
            tweak = tweak.wrapping_add(step);
        }
    }

    fn sector(&mut self, tweak: u64, sector: &mut [u8]) {
        let mut iv = [0; 16];
        iv[..8].copy_from_slice(&tweak.to_le_bytes());
        // SAFETY: the context is live and ours alone (`&mut`); null keeps the cipher and its key, -1
        // the direction; 16 bytes of tweak are read.
        let ready = unsafe {
            ffi::EVP_CipherInit_ex(
                self.0.as_ptr(),
                ptr::null(),
                ptr::null_mut(),
                ptr::null(),
                iv.as_ptr(),
                -1,
            )
        };
        let len = c_int::try_from(sector.len()).expect("a sector is small");
        let bytes = sector.as_mut_ptr();
        let mut written = 0;
        // SAFETY: the context is as above; `len` bytes are read and written in place, which
        // AWS-LC allows for XTS where input and output are the same; all of them are `sector`'s.
        let done =
            unsafe { ffi::EVP_CipherUpdate(self.0.as_ptr(), bytes, &raw mut written, bytes, len) };
        assert!(ready == 1 && done == 1 && written == len, "XTS of a whole sector cannot fail");
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
