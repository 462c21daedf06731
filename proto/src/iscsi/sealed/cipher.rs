//! The cipher a session is sealed with, as this crate sees it: made elsewhere, from a key.

use std::fmt::Debug;

/// Bytes of an AES-256 key.
pub const KEY_LEN: usize = 32;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;

/// Bytes a sealed part is longer than its content.
pub const TAG_LEN: usize = 16;

/// AES-256-GCM under one key. It has no state that changes, so any number of parts can be sealed and
/// opened at a time, in any order.
pub trait Cipher: Send + Sync + Debug {
    /// Appends `plain` enciphered, and the tag over it and `clear`, to `out`.
    fn seal(&self, nonce: &[u8; NONCE_LEN], clear: &[u8], plain: &[u8], out: &mut Vec<u8>);

    /// Deciphers `text` in place if `tag` is the one of it and `clear`. If not, `text` is worthless.
    fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Forged>;
}

/// The tag is not the one that was made with the key, the nonce and these bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the authentication tag does not match")]
pub struct Forged;

/// Makes a cipher of a key.
pub type NewCipher = fn(&[u8; KEY_LEN]) -> Box<dyn Cipher>;
