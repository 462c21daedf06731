//! The ciphers of AWS-LC that take a text piece by piece, each with its mode and a key.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use aws_lc_sys as ffi;

#[derive(Clone, Copy)]
pub(crate) enum Cipher {
    Aes256Xts,
    Aes128Ecb,
    Aes256Gcm,
    ChaCha20Poly1305,
}

/// Bytes of a tweak, which is the initialization vector of XTS.
const TWEAK_LEN: usize = 16;

/// Bytes of an authentication tag.
pub const TAG_LEN: usize = 16;

impl Cipher {
    fn pointer(self) -> *const ffi::EVP_CIPHER {
        let find: unsafe extern "C" fn() -> *const ffi::EVP_CIPHER = match self {
            Self::Aes256Xts => ffi::EVP_aes_256_xts,
            Self::Aes128Ecb => ffi::EVP_aes_128_ecb,
            Self::Aes256Gcm => ffi::EVP_aes_256_gcm,
            Self::ChaCha20Poly1305 => ffi::EVP_chacha20_poly1305,
        };
        // SAFETY: each of them takes nothing and answers a pointer to static data.
        unsafe { find() }
    }

    const fn key_size(self) -> usize {
        match self {
            Self::Aes256Xts => 64,
            Self::Aes128Ecb => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// Bytes of what a text begins with: a tweak, or a nonce.
    const fn iv_size(self) -> usize {
        match self {
            Self::Aes256Xts => TWEAK_LEN,
            Self::Aes128Ecb => 0,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 12,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Direction {
    Decrypt = 0,
    Encrypt = 1,
}

/// An `EVP_CIPHER_CTX` with an expanded key. AWS-LC wipes what it frees.
pub(crate) struct Context(NonNull<ffi::EVP_CIPHER_CTX>, Cipher);

// SAFETY: the context is owned by this value alone and has no tie to a thread.
unsafe impl Send for Context {}

// SAFETY: through a shared reference it is only the source of `EVP_CIPHER_CTX_copy`, which reads it.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(cipher: Cipher, key: &[u8], direction: Direction) -> Self {
        let mut context = Self::empty(cipher);
        let done = context.init(Some(key), &[0; TWEAK_LEN][..cipher.iv_size()], direction as c_int);
        // SAFETY: the context is live and ours alone. Padding would hold back the last block.
        let unpadded = unsafe { ffi::EVP_CIPHER_CTX_set_padding(context.0.as_ptr(), 0) };
        assert!(done && unpadded == 1, "AWS-LC takes every key with unlike halves");
        context
    }

    fn empty(cipher: Cipher) -> Self {
        // SAFETY: the function takes nothing and answers a new context, or null without memory.
        let context = unsafe { ffi::EVP_CIPHER_CTX_new() };
        Self(NonNull::new(context).expect("memory for a cipher context"), cipher)
    }

    /// A context of one's own with the same key: cheaper than expanding it again, and free of locks.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::empty(self.1);
        // SAFETY: both contexts are live, they differ, and the copy is not shared yet.
        let done = unsafe { ffi::EVP_CIPHER_CTX_copy(copy.0.as_ptr(), self.0.as_ptr()) };
        assert_eq!(done, 1, "copying a cipher context fails only without memory");
        copy
    }

    /// Begins a text, which for XTS is a sector and `iv` its tweak, in the direction that the context has.
    pub(crate) fn begin(&mut self, iv: &[u8]) {
        self.begin_as(-1, iv);
    }

    /// Begins a text in this direction.
    pub(crate) fn begin_in(&mut self, direction: Direction, iv: &[u8]) {
        self.begin_as(direction as c_int, iv);
    }

    fn begin_as(&mut self, direction: c_int, iv: &[u8]) {
        assert!(self.init(None, iv, direction), "no vector is refused");
    }

    /// Begins a text with this key, or with the one it has; a `direction` of -1 keeps that, too.
    fn init(&mut self, key: Option<&[u8]>, iv: &[u8], direction: c_int) -> bool {
        assert!(key.is_none_or(|key| key.len() == self.1.key_size()));
        assert_eq!(iv.len(), self.1.iv_size());
        let cipher = key.map_or(ptr::null(), |_| self.1.pointer());
        let key = key.map_or(ptr::null(), <[u8]>::as_ptr);
        // SAFETY: the context is live and ours alone (`&mut`); null keeps the cipher and its key; as many bytes of key
        // and vector are read as were just counted.
        unsafe {
            let context = self.0.as_ptr();
            ffi::EVP_CipherInit_ex(context, cipher, ptr::null_mut(), key, iv.as_ptr(), direction)
                == 1
        }
    }

    /// Ciphers in place: whole blocks, or with a tag any bytes.
    pub(crate) fn apply(&mut self, data: &mut [u8]) {
        let bytes = data.as_mut_ptr();
        // SAFETY: all are `data`'s, read and written in place.
        unsafe { self.update(bytes, bytes, data.len()) }
    }

    /// Appends `data`, ciphered, to `out`.
    pub(crate) fn append(&mut self, data: &[u8], out: &mut Vec<u8>) {
        out.reserve(data.len());
        let room = out.spare_capacity_mut()[..data.len()].as_mut_ptr();
        // SAFETY: there is room for as many bytes as `data` has, and it does not overlap it, being the spare room of a
        // vector borrowed for writing.
        unsafe { self.update(room.cast(), data.as_ptr(), data.len()) };
        let len = out.len() + data.len();
        // SAFETY: the room was reserved above, and the call has just written so many bytes of it.
        unsafe { out.set_len(len) }
    }

    /// Ciphers the next `len` bytes.
    ///
    /// # Safety
    ///
    /// `from` must be readable and `to` writable for `len` bytes, and they must be the same or not overlap.
    unsafe fn update(&mut self, to: *mut u8, from: *const u8, len: usize) {
        let len = c_int::try_from(len).expect("below 2 GiB at once");
        let mut written = 0;
        // SAFETY: the context is live and ours alone (`&mut`); the caller answers for the pointers, and AWS-LC allows input
        // and output to be the same. Without padding as many bytes are written as are read.
        let done =
            unsafe { ffi::EVP_CipherUpdate(self.0.as_ptr(), to, &raw mut written, from, len) };
        assert!(done == 1 && written == len, "ciphering fails only beyond 64 GiB of a text");
    }

    /// The end of a text with a tag: makes the tag, or checks it; whether it was right.
    pub(crate) fn finish(&mut self) -> bool {
        let (mut rest, mut none) = ([0; TWEAK_LEN], 0);
        // SAFETY: the context is live; `rest` has room for a block, and nothing is written in this mode.
        unsafe { ffi::EVP_CipherFinal_ex(self.0.as_ptr(), rest.as_mut_ptr(), &raw mut none) == 1 }
    }

    /// The tag of a text that was enciphered to its end.
    pub(crate) fn tag(&mut self) -> [u8; TAG_LEN] {
        let mut tag = [0; TAG_LEN];
        self.control(ffi::EVP_CTRL_AEAD_GET_TAG, &mut tag);
        tag
    }

    /// Sets the tag that the end of a text is checked for.
    pub(crate) fn expect_tag(&mut self, tag: &[u8; TAG_LEN]) {
        self.control(ffi::EVP_CTRL_AEAD_SET_TAG, &mut { *tag });
    }

    fn control(&mut self, what: c_int, tag: &mut [u8; TAG_LEN]) {
        // SAFETY: the context is live; `tag` is as long as is said, to be read or written.
        let done = unsafe {
            let tag = tag.as_mut_ptr().cast();
            ffi::EVP_CIPHER_CTX_ctrl(self.0.as_ptr(), what, TAG_LEN as c_int, tag)
        };
        assert!(done == 1, "a tag belongs to the end of a text");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is live, ours alone and not used again.
        unsafe { ffi::EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Context(..)")
    }
}
