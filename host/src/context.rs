//! The block ciphers of AWS-LC, each with its mode and a key.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use aws_lc_sys as ffi;

#[derive(Clone, Copy)]
pub(crate) enum Cipher {
    Aes256Xts,
    Aes128Ecb,
}

/// Bytes of a tweak, which is the initialization vector of XTS.
pub(crate) const IV_LEN: usize = 16;

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

#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Decrypt = 0,
    Encrypt = 1,
}

/// An `EVP_CIPHER_CTX` with an expanded key. AWS-LC wipes what it frees.
pub(crate) struct Context(NonNull<ffi::EVP_CIPHER_CTX>);

// SAFETY: the context is owned by this value alone and has no tie to a thread.
unsafe impl Send for Context {}

// SAFETY: through a shared reference it is only the source of `EVP_CIPHER_CTX_copy`, which reads it.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(cipher: Cipher, key: &[u8], direction: Direction) -> Self {
        assert_eq!(key.len(), cipher.key_size());
        let context = Self::empty();
        let iv = [0; IV_LEN];
        // SAFETY: the context is live; as many bytes of key as this cipher has, just checked, and at
        // most 16 of the vector are read.
        let done = unsafe {
            ffi::EVP_CipherInit_ex(
                context.0.as_ptr(),
                cipher.pointer(),
                ptr::null_mut(),
                key.as_ptr(),
                iv.as_ptr(),
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
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::empty();
        // SAFETY: both contexts are live, they differ, and the copy is not shared yet.
        let done = unsafe { ffi::EVP_CIPHER_CTX_copy(copy.0.as_ptr(), self.0.as_ptr()) };
        assert_eq!(done, 1, "copying a cipher context fails only without memory");
        copy
    }

    /// Begins a text, which for XTS is a sector and `iv` its tweak.
    pub(crate) fn begin(&mut self, iv: &[u8; IV_LEN]) {
        // SAFETY: the context is live and ours alone (`&mut`); null keeps the cipher and its key, -1
        // the direction; at most 16 bytes of the vector are read.
        let done = unsafe {
            ffi::EVP_CipherInit_ex(
                self.0.as_ptr(),
                ptr::null(),
                ptr::null_mut(),
                ptr::null(),
                iv.as_ptr(),
                -1,
            )
        };
        assert_eq!(done, 1, "no vector is refused");
    }

    /// Ciphers whole blocks in place.
    pub(crate) fn apply(&mut self, data: &mut [u8]) {
        let len = c_int::try_from(data.len()).expect("below 2 GiB at once");
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
