//! AES-256-GCM (NIST SP 800-38D; with nothing to encipher it is GMAC) and ChaCha20-Poly1305 (RFC 8439) through AWS-LC.
//!
//! [`Aead`] takes a text at once. [`SealStream`] and [`OpenStream`] take one piece by piece, and come to the same.

use std::ptr::{self, NonNull};

use aws_lc_sys as ffi;

pub use crate::context::TAG_LEN;
use crate::context::{Cipher, Context, Direction};

/// Bytes of a key.
pub const KEY_LEN: usize = 32;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;

/// A cipher under one key, set up once; any number of threads may use it at a time.
pub struct Aead {
    at_once: NonNull<ffi::EVP_AEAD_CTX>,
    /// It takes the second part of a text from where that is as fast as the first: AWS-LC's ChaCha20 does it byte by byte.
    gathers: bool,
    /// Every stream begins as a copy of it.
    in_pieces: Context,
}

// SAFETY: the context is owned by this value alone and has no tie to a thread.
unsafe impl Send for Aead {}

// SAFETY: after its set-up the context for texts at once is only read: AWS-LC takes it as a pointer to const and says
// that sealing and opening with one context at a time from several threads is allowed. The other is `Sync` itself.
unsafe impl Sync for Aead {}

/// The tag is not that of the text, the clear bytes and the nonce under this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the authentication tag does not match")]
pub struct Forged;

impl Aead {
    /// AES-256-GCM. Expands `key`: the caller wipes its own copy; this one is wiped when dropped.
    #[must_use]
    pub fn aes_256_gcm(key: &[u8; KEY_LEN]) -> Self {
        Self::new(Cipher::Aes256Gcm, ffi::EVP_aead_aes_256_gcm, key)
    }

    /// ChaCha20-Poly1305, likewise: fast without AES instructions too.
    #[must_use]
    pub fn chacha20_poly1305(key: &[u8; KEY_LEN]) -> Self {
        Self::new(Cipher::ChaCha20Poly1305, ffi::EVP_aead_chacha20_poly1305, key)
    }

    fn new(
        cipher: Cipher,
        find: unsafe extern "C" fn() -> *const ffi::EVP_AEAD,
        key: &[u8; KEY_LEN],
    ) -> Self {
        // SAFETY: each of them takes nothing and answers a pointer to static data.
        let aead = unsafe { find() };
        // SAFETY: the algorithm is one of the two above; `key` is 32 readable bytes, which is the length of their keys.
        let context = unsafe { ffi::EVP_AEAD_CTX_new(aead, key.as_ptr(), KEY_LEN, TAG_LEN) };
        let at_once = NonNull::new(context).expect("memory for a cipher context");
        let gathers = matches!(cipher, Cipher::Aes256Gcm);
        Self { at_once, gathers, in_pieces: Context::new(cipher, key, Direction::Encrypt) }
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
        self.seal_parts(nonce, clear, [plain, &[]], out);
    }

    /// The same of a text in two parts, one behind the other.
    pub fn seal_parts(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        parts: [&[u8]; 2],
        out: &mut Vec<u8>,
    ) {
        match parts {
            [plain, []] | [[], plain] => self.append(nonce, clear, [plain, &[]], out),
            _ if self.gathers => self.append(nonce, clear, parts, out),
            _ => {
                let start = out.len();
                out.reserve(parts[0].len() + parts[1].len() + TAG_LEN);
                parts.iter().for_each(|part| out.extend_from_slice(part));
                let tag = self.seal_in_place(nonce, clear, &mut out[start..]);
                out.extend_from_slice(&tag);
            }
        }
    }

    fn append(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        [plain, extra]: [&[u8]; 2],
        out: &mut Vec<u8>,
    ) {
        let (rest, mut rest_len) = (extra.len() + TAG_LEN, 0);
        let sealed = plain.len() + rest;
        out.reserve(sealed);
        let (text, tag) = out.spare_capacity_mut()[..sealed].split_at_mut(plain.len());
        // SAFETY: the context is live. `text` has room for as many bytes as `plain` and `tag` for as many as `extra` and a
        // tag; neither overlaps anything else, being the spare room of a vector borrowed for writing. All
        // other pointers come from slices with their lengths.
        let done = unsafe {
            ffi::EVP_AEAD_CTX_seal_scatter(
                self.at_once.as_ptr(),
                text.as_mut_ptr().cast(),
                tag.as_mut_ptr().cast(),
                &raw mut rest_len,
                rest,
                nonce.as_ptr(),
                NONCE_LEN,
                plain.as_ptr(),
                plain.len(),
                extra.as_ptr(),
                extra.len(),
                clear.as_ptr(),
                clear.len(),
            )
        };
        assert!(done == 1 && rest_len == rest, "sealing fails only beyond 64 GiB at once");
        let len = out.len() + sealed;
        // SAFETY: the room was reserved above, and the call has just written all `sealed` bytes of it.
        unsafe { out.set_len(len) }
    }

    /// The tag over `clear` and no text. A nonce must not serve twice under one key.
    #[must_use]
    pub fn tag(&self, nonce: &[u8; NONCE_LEN], clear: &[u8]) -> [u8; TAG_LEN] {
        self.seal_in_place(nonce, clear, &mut [])
    }

    /// Enciphers `text` in place, and answers the tag over it and `clear`.
    fn seal_in_place(
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

impl Drop for Aead {
    fn drop(&mut self) {
        // SAFETY: the context is live, ours alone and not used again; AWS-LC wipes what it frees.
        unsafe { ffi::EVP_AEAD_CTX_free(self.at_once.as_ptr()) }
    }
}

impl std::fmt::Debug for Aead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Aead(..)")
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

    fn both() -> [Aead; 2] {
        [Aead::aes_256_gcm(&[9; KEY_LEN]), Aead::chacha20_poly1305(&[9; KEY_LEN])]
    }

    fn sealed(aead: &Aead, clear: &[u8], plain: &[u8]) -> Vec<u8> {
        let mut out = b"before".to_vec();
        aead.seal(&NONCE, clear, plain, &mut out);
        assert!(out.starts_with(b"before"));
        out.split_off(6)
    }

    /// RFC 8439, 2.8.2.
    #[test]
    fn chacha20_poly1305_is_that_of_its_standard() {
        let key = core::array::from_fn(|at| 0x80 + at as u8);
        let nonce = [7, 0, 0, 0, 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47];
        let clear = [0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
        let mut text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.".to_vec();
        let tag = Aead::chacha20_poly1305(&key).seal_in_place(&nonce, &clear, &mut text);
        assert_eq!(text[..8], [0xd3, 0x1a, 0x8d, 0x34, 0x64, 0x8e, 0x60, 0xdb]);
        assert_eq!(text[106..], [0xd2, 0x65, 0x86, 0xce, 0xc6, 0x4b, 0x61, 0x16]);
        let expected = [
            0x1a, 0xe1, 0x0b, 0x59, 0x4f, 0x09, 0xe2, 0x6a, 0x7e, 0x90, 0x2e, 0xcb, 0xd0, 0x60,
            0x06, 0x91,
        ];
        assert_eq!(tag, expected);
    }

    #[test]
    fn aes_256_gcm_agrees_with_another_implementation() {
        let other = Aes256Gcm::new(&[9; KEY_LEN].into());
        let ours = Aead::aes_256_gcm(&[9; KEY_LEN]);
        for clear_len in [0, 1, 16, 48, 1000] {
            for plain_len in [0, 1, 15, 16, 48, 255, 4096, 100_003] {
                let (clear, plain) = (bytes(clear_len), bytes(plain_len));
                let theirs = other.encrypt(&NONCE.into(), Payload { msg: &plain, aad: &clear });
                let theirs = theirs.unwrap();
                assert!(sealed(&ours, &clear, &plain) == theirs, "{clear_len}, {plain_len}");
                let mut text = plain.clone();
                let tag = ours.seal_in_place(&NONCE, &clear, &mut text);
                assert!([&text[..], &tag].concat() == theirs, "{clear_len}, {plain_len}");
            }
        }
    }

    #[test]
    fn two_parts_come_to_the_same_as_one() {
        for aead in both() {
            for (clear_len, plain_len) in [(0, 0), (24, 1), (24, 100), (24, 8_900), (0, 100_003)] {
                let (clear, plain) = (bytes(clear_len), bytes(plain_len));
                let whole = sealed(&aead, &clear, &plain);
                for cut in [0, 1, 15, 16, 17, 24, 40, 64, 100, 8_000] {
                    let (first, second) = plain.split_at(cut.min(plain_len));
                    let mut out = b"before".to_vec();
                    aead.seal_parts(&NONCE, &clear, [first, second], &mut out);
                    assert!(
                        out[6..] == whole && out.starts_with(b"before"),
                        "{cut} of {plain_len}"
                    );
                }
                assert_eq!(aead.tag(&NONCE, &clear)[..], sealed(&aead, &clear, &[])[..]);
            }
        }
    }

    #[test]
    fn opens_what_was_sealed_and_nothing_else() {
        for (aead, len) in both().iter().flat_map(|aead| [0, 1, 48, 4096].map(|len| (aead, len))) {
            let (clear, plain) = (bytes(48), bytes(len));
            let sealed = sealed(aead, &clear, &plain);
            let (text, tag) = sealed.split_last_chunk::<TAG_LEN>().unwrap();
            let open = |nonce: &[u8; NONCE_LEN], clear: &[u8], text: &[u8], tag: &[u8; TAG_LEN]| {
                let mut text = text.to_vec();
                aead.open(nonce, clear, &mut text, tag).map(|()| text)
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
        const CUTS: [&[usize]; 5] = [&[], &[0], &[1], &[16, 4096], &[5, 11, 1000, 70_000]];
        for (aead, cuts) in both().iter().flat_map(|aead| CUTS.map(|cuts| (aead, cuts))) {
            let plain = bytes(100_003);
            let (mut stream, mut out) = (aead.seal_stream(&NONCE), Vec::new());
            let (mut reader, mut text) = (aead.open_stream(&NONCE), sealed(aead, b"", &plain));
            let tag = *text.last_chunk::<TAG_LEN>().unwrap();
            text.truncate(plain.len());
            let ends = cuts.iter().copied().chain([plain.len()]);
            ends.fold(0, |from, to| {
                stream.seal(&plain[from..to], &mut out);
                reader.open(&mut text[from..to]);
                to
            });
            out.extend_from_slice(&stream.finish());
            assert!(out == sealed(aead, b"", &plain), "{cuts:?}");
            assert!(text == plain, "{cuts:?}");
            assert_eq!(reader.finish(&tag), Ok(()));
        }
    }

    #[test]
    fn in_pieces_nothing_else_opens() {
        const CHANGED: [usize; 6] = [0, 2499, 2500, 4999, 5000, 5015];
        for (aead, at) in both().iter().flat_map(|aead| CHANGED.map(|at| (aead, at))) {
            let mut changed = sealed(aead, b"", &bytes(5000));
            changed[at] ^= 1;
            let (text, tag) = changed.split_last_chunk_mut::<TAG_LEN>().unwrap();
            let mut reader = aead.open_stream(&NONCE);
            text.chunks_mut(2500).for_each(|piece| reader.open(piece));
            assert_eq!(reader.finish(tag), Err(Forged), "byte {at}");
        }
    }

    #[test]
    fn one_key_serves_many_threads() {
        let both = both();
        let expected = both.each_ref().map(|aead| sealed(aead, b"", &bytes(65_536)));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for (aead, expected) in (0..50).flat_map(|_| both.iter().zip(&expected)) {
                        let mut out = Vec::new();
                        aead.seal(&NONCE, b"", &bytes(65_536), &mut out);
                        assert!(out == *expected);
                    }
                });
            }
        });
    }
}
