//! AES-256-GCM (NIST SP 800-38D) through AWS-LC; with nothing to encipher it is GMAC.

use std::ptr::{self, NonNull};

use aws_lc_sys as ffi;

/// Bytes of a key.
pub const KEY_LEN: usize = 32;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;

/// Bytes of a tag.
pub const TAG_LEN: usize = 16;

/// AES-256-GCM under one key, set up once; any number of threads may use it at a time.
pub struct Gcm(NonNull<ffi::EVP_AEAD_CTX>);

// SAFETY: the context is owned by this value alone and has no tie to a thread.
unsafe impl Send for Gcm {}

// SAFETY: after its set-up the context is only read: AWS-LC takes it as a pointer to const and says
// that sealing and opening with one context at a time from several threads is allowed.
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
        Self(NonNull::new(context).expect("memory for a cipher context"))
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
                self.0.as_ptr(),
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
                self.0.as_ptr(),
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
        unsafe { ffi::EVP_AEAD_CTX_free(self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for Gcm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gcm(..)")
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
                assert!(sealed(&clear, &plain) == theirs.unwrap(), "{clear_len}, {plain_len}");
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
