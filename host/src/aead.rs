//! AES-256-GCM (NIST SP 800-38D) through AWS-LC; with nothing to encipher it is GMAC.
//!
//! [`Gcm`] takes a text at once. [`SealStream`] and [`OpenStream`] take one piece by piece, and come to the same.

use std::ptr::{self, NonNull};

use aws_lc_sys as ffi;

pub use crate::context::TAG_LEN;
use crate::context::{Cipher, Context, Direction};

/// Bytes of a key.
pub const KEY_LEN: usize = 32;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;

/// AES-256-GCM under one key, set up once; any number of threads may use it at a time.
pub struct Gcm {
    at_once: NonNull<ffi::EVP_AEAD_CTX>,
    /// Every stream begins as a copy of it.
    in_pieces: Context,
}

// SAFETY: the context is owned by this value alone and has no tie to a thread.
unsafe impl Send for Gcm {}

// SAFETY: after its set-up the context for texts at once is only read: AWS-LC takes it as a pointer to const and says
// that sealing and opening with one context at a time from several threads is allowed. The other is `Sync` itself.
unsafe impl Sync for Gcm {}

/// The tag is not that of the text, the clear bytes and the nonce under this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the authentication tag does not match")]
pub struct Forged;

impl Gcm {
    /// Expands `key`. The caller wipes its own copy; this one is wiped when dropped.
    #[must_use]
    pub fn new(key: &[u8; KEY_LEN]) -> Self {
        // SAFETY: the function takes nothing and answers a pointer to static data.
        let aead = unsafe { ffi::EVP_aead_aes_256_gcm() };
        // SAFETY: the algorithm is the one above; `key` is 32 readable bytes, which is its key's length.
        let context = unsafe { ffi::EVP_AEAD_CTX_new(aead, key.as_ptr(), KEY_LEN, TAG_LEN) };
        let at_once = NonNull::new(context).expect("memory for a cipher context");
        Self { at_once, in_pieces: Context::new(Cipher::Aes256Gcm, key, Direction::Encrypt) }
    }

    /// Begins a text that is enciphered piece by piece. A nonce must not serve twice under one key.
    #[must_use]
    pub fn seal_stream(&self, nonce: &[u8; NONCE_LEN]) -> SealStream {
        SealStream(self.stream(Direction::Encrypt, nonce))
    }

    /// Begins a text that is deciphered piece by piece.
    #[must_use]
    pub fn open_stream(&self, nonce: &[u8; NONCE_LEN]) -> OpenStream {
        OpenStream(self.stream(Direction::Decrypt, nonce))
    }

    fn stream(&self, direction: Direction, nonce: &[u8; NONCE_LEN]) -> Context {
        let mut stream = self.in_pieces.copy();
        stream.begin_in(direction, nonce);
        stream
    }

    /// Appends `plain` enciphered, and the tag over it and `clear`, to `out`: one pass, from where the
    /// bytes are to where they are wanted. A nonce must not serve twice under one key.
    pub fn seal(&self, nonce: &[u8; NONCE_LEN], clear: &[u8], plain: &[u8], out: &mut Vec<u8>) {
        let sealed = plain.len() + TAG_LEN;
        out.reserve(sealed);
        let (text, tag) = out.spare_capacity_mut()[..sealed].split_at_mut(plain.len());
        let mut tag_len = 0;
        // SAFETY: the context is live. `text` has room for as many bytes as `plain` and `tag` for a tag;
        // neither overlaps anything else, being the spare room of a vector borrowed for writing. All
        // other pointers come from slices with their lengths. Nothing is extra.
        let done = unsafe {
            ffi::EVP_AEAD_CTX_seal_scatter(
                self.at_once.as_ptr(),
                text.as_mut_ptr().cast(),
                tag.as_mut_ptr().cast(),
                &raw mut tag_len,
                TAG_LEN,
                nonce.as_ptr(),
                NONCE_LEN,
                plain.as_ptr(),
                plain.len(),
                ptr::null(),
                0,
                clear.as_ptr(),
                clear.len(),
            )
        };
        assert!(done == 1 && tag_len == TAG_LEN, "sealing fails only beyond 64 GiB at once");
        let len = out.len() + sealed;
        // SAFETY: the room was reserved above, and the call has just written all `sealed` bytes of it.
        unsafe { out.set_len(len) }
    }

    /// Enciphers `text` in place, and answers the tag over it and `clear`. A nonce must not serve twice under one key.
    #[must_use]
    pub fn seal_in_place(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_LEN] {
        let (mut tag, mut tag_len) = ([0; TAG_LEN], 0);
        let bytes = text.as_mut_ptr();
        // SAFETY: the context is live; `text` is read and written in place, which AWS-LC allows where input and output are
        // the same; `tag` has room for a tag; all other pointers come from slices with their lengths. Nothing is extra.
        let done = unsafe {
            ffi::EVP_AEAD_CTX_seal_scatter(
                self.at_once.as_ptr(),
                bytes,
                tag.as_mut_ptr(),
                &raw mut tag_len,
                TAG_LEN,
                nonce.as_ptr(),
                NONCE_LEN,
                bytes,
                text.len(),
                ptr::null(),
                0,
                clear.as_ptr(),
                clear.len(),
            )
        };
        assert!(done == 1 && tag_len == TAG_LEN, "sealing fails only beyond 64 GiB at once");
        tag
    }

    /// Deciphers `text` in place if `tag` is the one of it and `clear`. If not, `text` is worthless.
    pub fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Forged> {
        let bytes = text.as_mut_ptr();
        // SAFETY: the context is live; `text` is read and written in place, which AWS-LC allows where
        // input and output are the same; all other pointers come from slices with their lengths.
        let done = unsafe {
            ffi::EVP_AEAD_CTX_open_gather(
                self.at_once.as_ptr(),
                bytes,
                nonce.as_ptr(),
                NONCE_LEN,
                bytes,
                text.len(),
                tag.as_ptr(),
                TAG_LEN,
                clear.as_ptr(),
                clear.len(),
            )
        };
        if done == 1 { Ok(()) } else { Err(Forged) }
    }
}

impl Drop for Gcm {
    fn drop(&mut self) {
        // SAFETY: the context is live, ours alone and not used again; AWS-LC wipes what it frees.
        unsafe { ffi::EVP_AEAD_CTX_free(self.at_once.as_ptr()) }
    }
}

impl std::fmt::Debug for Gcm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gcm(..)")
    }
}

/// Enciphers a text piece by piece.
#[derive(Debug)]
pub struct SealStream(Context);

impl SealStream {
    /// Appends the next piece, enciphered, to `out`.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        self.0.append(plain, out);
    }

    /// The tag of all pieces.
    #[must_use]
    pub fn finish(mut self) -> [u8; TAG_LEN] {
        assert!(self.0.finish(), "the tag of a text is made once");
        self.0.tag()
    }
}

/// Deciphers a text piece by piece. What comes of the pieces is worth nothing before the tag was checked.
#[derive(Debug)]
pub struct OpenStream(Context);

impl OpenStream {
    /// Deciphers the next piece in place.
    pub fn open(&mut self, text: &mut [u8]) {
        self.0.apply(text);
    }

    /// Whether the pieces were what was sealed with this tag.
    pub fn finish(mut self, tag: &[u8; TAG_LEN]) -> Result<(), Forged> {
        self.0.expect_tag(tag);
        if self.0.finish() { Ok(()) } else { Err(Forged) }
    }
}

#[cfg(test)]
mod tests {
    use aes_gcm::Aes256Gcm;
    use aes_gcm::aead::{Aead as _, KeyInit as _, Payload};

    use super::*;

    const NONCE: [u8; NONCE_LEN] = [7; NONCE_LEN];

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| ((at * 31) >> 2) as u8).collect()
    }

    fn sealed(clear: &[u8], plain: &[u8]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        Gcm::new(&[9; KEY_LEN]).seal(&NONCE, clear, plain, &mut out);
        assert!(out.starts_with(b"before"));
        out.split_off(6)
    }

    #[test]
    fn agrees_with_another_implementation() {
        let other = Aes256Gcm::new(&[9; KEY_LEN].into());
        for clear_len in [0, 1, 16, 48, 1000] {
            for plain_len in [0, 1, 15, 16, 48, 255, 4096, 100_003] {
                let (clear, plain) = (bytes(clear_len), bytes(plain_len));
                let theirs = other.encrypt(&NONCE.into(), Payload { msg: &plain, aad: &clear });
                let theirs = theirs.unwrap();
                assert!(sealed(&clear, &plain) == theirs, "{clear_len}, {plain_len}");
                let mut text = plain.clone();
                let tag = Gcm::new(&[9; KEY_LEN]).seal_in_place(&NONCE, &clear, &mut text);
                assert!([&text[..], &tag].concat() == theirs, "{clear_len}, {plain_len}");
            }
        }
    }

    #[test]
    fn opens_what_was_sealed_and_nothing_else() {
        let gcm = Gcm::new(&[9; KEY_LEN]);
        for len in [0, 1, 48, 4096] {
            let (clear, plain) = (bytes(48), bytes(len));
            let sealed = sealed(&clear, &plain);
            let (text, tag) = sealed.split_last_chunk::<TAG_LEN>().unwrap();
            let open = |nonce: &[u8; NONCE_LEN], clear: &[u8], text: &[u8], tag: &[u8; TAG_LEN]| {
                let mut text = text.to_vec();
                gcm.open(nonce, clear, &mut text, tag).map(|()| text)
            };
            assert_eq!(open(&NONCE, &clear, text, tag), Ok(plain));
            assert_eq!(open(&[8; NONCE_LEN], &clear, text, tag), Err(Forged));
            assert_eq!(open(&NONCE, &clear[1..], text, tag), Err(Forged));
            for bit in 0..8 * TAG_LEN {
                let mut changed = *tag;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open(&NONCE, &clear, text, &changed), Err(Forged));
            }
            for at in 0..len.min(60) {
                let mut changed = text.to_vec();
                changed[at] ^= 0x10;
                assert_eq!(open(&NONCE, &clear, &changed, tag), Err(Forged));
            }
        }
    }

    #[test]
    fn in_pieces_comes_to_the_same() {
        let gcm = Gcm::new(&[9; KEY_LEN]);
        for cuts in [&[][..], &[0], &[1], &[16, 4096], &[5, 11, 1000, 70_000]] {
            let plain = bytes(100_003);
            let (mut stream, mut out) = (gcm.seal_stream(&NONCE), Vec::new());
            let (mut reader, mut text) = (gcm.open_stream(&NONCE), sealed(b"", &plain));
            let tag = *text.last_chunk::<TAG_LEN>().unwrap();
            text.truncate(plain.len());
            let ends = cuts.iter().copied().chain([plain.len()]);
            ends.fold(0, |from, to| {
                stream.seal(&plain[from..to], &mut out);
                reader.open(&mut text[from..to]);
                to
            });
            out.extend_from_slice(&stream.finish());
            assert!(out == sealed(b"", &plain), "{cuts:?}");
            assert!(text == plain, "{cuts:?}");
            assert_eq!(reader.finish(&tag), Ok(()));
        }
    }

    #[test]
    fn in_pieces_nothing_else_opens() {
        let gcm = Gcm::new(&[9; KEY_LEN]);
        let sealed = sealed(b"", &bytes(5000));
        for at in [0, 2499, 2500, 4999, 5000, 5015] {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            let (text, tag) = changed.split_last_chunk_mut::<TAG_LEN>().unwrap();
            let mut reader = gcm.open_stream(&NONCE);
            text.chunks_mut(2500).for_each(|piece| reader.open(piece));
            assert_eq!(reader.finish(tag), Err(Forged), "byte {at}");
        }
    }

    #[test]
    fn one_key_serves_many_threads() {
        let gcm = Gcm::new(&[9; KEY_LEN]);
        let expected = sealed(b"", &bytes(65_536));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mut out = Vec::new();
                        gcm.seal(&NONCE, b"", &bytes(65_536), &mut out);
                        assert!(out == expected);
                    }
                });
            }
        });
    }
}
