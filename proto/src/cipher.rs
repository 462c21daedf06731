//! The cipher of secure sessions and connections, as this crate sees it: made elsewhere, from a key.

use std::fmt::Debug;

/// Bytes of a key.
pub const KEY_LEN: usize = 32;

/// Bytes of a nonce.
pub const NONCE_LEN: usize = 12;

/// Bytes a sealed part is longer than its content.
pub const TAG_LEN: usize = 16;

/// A cipher with authentication under one key, such as AES-256-GCM. It has no state that changes, so any number of parts can be sealed and
/// opened at a time, in any order.
pub trait Cipher: Send + Sync + Debug {
    /// Appends `plain` enciphered, and the tag over it and `clear`, to `out`.
    fn seal(&self, nonce: &[u8; NONCE_LEN], clear: &[u8], plain: &[u8], out: &mut Vec<u8>) {
        self.seal_parts(nonce, clear, [plain, &[]], out);
    }

    /// The same of a text in two parts, one behind the other: neither has to be copied to the other.
    fn seal_parts(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        parts: [&[u8]; 2],
        out: &mut Vec<u8>,
    );

    /// The tag over `clear` and no text.
    fn tag(&self, nonce: &[u8; NONCE_LEN], clear: &[u8]) -> [u8; TAG_LEN];

    /// Deciphers `text` in place if `tag` is the one of it and `clear`. If not, `text` is worthless.
    fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Forged>;

    /// Begins a text that is enciphered piece by piece, with nothing clear: it comes to the same.
    fn seal_stream(&self, nonce: &[u8; NONCE_LEN]) -> Box<dyn SealStream>;

    /// Begins a text that is deciphered piece by piece.
    fn open_stream(&self, nonce: &[u8; NONCE_LEN]) -> Box<dyn OpenStream>;
}

/// Enciphers a text piece by piece.
pub trait SealStream: Send + Debug {
    /// Appends the next piece, enciphered, to `out`.
    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>);

    /// The tag of all pieces.
    fn finish(self: Box<Self>) -> [u8; TAG_LEN];
}

/// Deciphers a text piece by piece.
pub trait OpenStream: Send + Debug {
    /// Deciphers the next piece in place. What comes of it is worth nothing before [`finish`](Self::finish).
    fn open(&mut self, text: &mut [u8]);

    /// Whether the pieces were what was sealed with this tag.
    fn finish(self: Box<Self>, tag: &[u8; TAG_LEN]) -> Result<(), Forged>;
}

/// The tag is not the one that was made with the key, the nonce and these bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the authentication tag does not match")]
pub struct Forged;

/// Makes a cipher of a key.
pub type NewCipher = fn(&[u8; KEY_LEN]) -> Box<dyn Cipher>;
