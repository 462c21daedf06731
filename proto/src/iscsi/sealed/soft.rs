//! AES-256-GCM and ChaCha20-Poly1305 for tests, by libraries the program does not use.

use aes_gcm::Aes256Gcm;
use aes_gcm::aead::consts::{U12, U16};
use aes_gcm::aead::{AeadInOut, KeyInit as _, Nonce, Tag};
use chacha20poly1305::ChaCha20Poly1305;

use super::{Cipher, Forged, KEY_LEN, NONCE_LEN, OpenStream, SealStream, TAG_LEN};

/// AES-256-GCM under `key`.
pub(crate) fn new_aes_256_gcm(key: &[u8; KEY_LEN]) -> Box<dyn Cipher> {
    Box::new(Soft(Aes256Gcm::new(key.into())))
}

/// ChaCha20-Poly1305 under `key`.
#[allow(dead_code, reason = "each test uses its part")]
pub(crate) fn new_chacha20_poly1305(key: &[u8; KEY_LEN]) -> Box<dyn Cipher> {
    Box::new(Soft(ChaCha20Poly1305::new(key.into())))
}

trait Algorithm: AeadInOut<NonceSize = U12, TagSize = U16> + Clone + Send + Sync + 'static {}

impl<A: AeadInOut<NonceSize = U12, TagSize = U16> + Clone + Send + Sync + 'static> Algorithm for A {}

#[derive(Clone)]
struct Soft<A>(A);

impl<A: Algorithm> Cipher for Soft<A> {
    fn seal_parts(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        parts: [&[u8]; 2],
        out: &mut Vec<u8>,
    ) {
        let mut text = parts.concat();
        let nonce = Nonce::<A>::from(*nonce);
        let tag = self.0.encrypt_inout_detached(&nonce, clear, text.as_mut_slice().into()).unwrap();
        out.extend_from_slice(&text);
        out.extend_from_slice(&tag);
    }

    fn tag(&self, nonce: &[u8; NONCE_LEN], clear: &[u8]) -> [u8; TAG_LEN] {
        let (nonce, text) = (Nonce::<A>::from(*nonce), &mut [][..]);
        self.0.encrypt_inout_detached(&nonce, clear, text.into()).unwrap().into()
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Forged> {
        let (nonce, tag) = (Nonce::<A>::from(*nonce), Tag::<A>::from(*tag));
        self.0.decrypt_inout_detached(&nonce, clear, text.into(), &tag).map_err(|_| Forged)
    }

    fn seal_stream(&self, nonce: &[u8; NONCE_LEN]) -> Box<dyn SealStream> {
        Box::new(InPieces::new(self, nonce))
    }

    fn open_stream(&self, nonce: &[u8; NONCE_LEN]) -> Box<dyn OpenStream> {
        Box::new(InPieces::new(self, nonce))
    }
}

/// The library has no streams: each piece is the end of all pieces so far.
struct InPieces<A> {
    cipher: Soft<A>,
    nonce: [u8; NONCE_LEN],
    plain: Vec<u8>,
}

impl<A: Algorithm> InPieces<A> {
    fn new(cipher: &Soft<A>, nonce: &[u8; NONCE_LEN]) -> Self {
        Self { cipher: cipher.clone(), nonce: *nonce, plain: Vec::new() }
    }

    /// All pieces enciphered, and the tag.
    fn sealed(&self) -> Vec<u8> {
        let mut sealed = Vec::new();
        self.cipher.seal(&self.nonce, &[], &self.plain, &mut sealed);
        sealed
    }

    fn tag(&self) -> [u8; TAG_LEN] {
        *self.sealed().last_chunk().unwrap()
    }
}

impl<A: Algorithm> SealStream for InPieces<A> {
    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let from = self.plain.len();
        self.plain.extend_from_slice(plain);
        out.extend_from_slice(&self.sealed()[from..self.plain.len()]);
    }

    fn finish(self: Box<Self>) -> [u8; TAG_LEN] {
        self.tag()
    }
}

impl<A: Algorithm> OpenStream for InPieces<A> {
    fn open(&mut self, text: &mut [u8]) {
        // What enciphers zeroes deciphers as well: the mode adds a stream of bytes.
        let from = self.plain.len();
        self.plain.resize(from + text.len(), 0);
        let stream = self.sealed();
        text.iter_mut().zip(&stream[from..]).for_each(|(byte, key)| *byte ^= key);
        self.plain[from..].copy_from_slice(text);
    }

    fn finish(self: Box<Self>, tag: &[u8; TAG_LEN]) -> Result<(), Forged> {
        if self.tag() == *tag { Ok(()) } else { Err(Forged) }
    }
}

impl<A> std::fmt::Debug for Soft<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Soft(..)")
    }
}

impl<A> std::fmt::Debug for InPieces<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InPieces(..)")
    }
}
