//! AES-256-GCM for tests, by a library the program does not use.

use aes_gcm::aead::{AeadInOut as _, KeyInit as _};
use aes_gcm::{Aes256Gcm, Nonce, Tag};

use super::{Cipher, Forged, KEY_LEN, NONCE_LEN, OpenStream, SealStream, TAG_LEN};

/// A cipher under `key`.
pub(crate) fn new_cipher(key: &[u8; KEY_LEN]) -> Box<dyn Cipher> {
    Box::new(Soft(Aes256Gcm::new(key.into())))
}

#[derive(Clone)]
struct Soft(Aes256Gcm);

impl Cipher for Soft {
    fn seal(&self, nonce: &[u8; NONCE_LEN], clear: &[u8], plain: &[u8], out: &mut Vec<u8>) {
        let mut text = plain.to_vec();
        let nonce = Nonce::from(*nonce);
        let tag = self.0.encrypt_inout_detached(&nonce, clear, text.as_mut_slice().into()).unwrap();
        out.extend_from_slice(&text);
        out.extend_from_slice(&tag);
    }

    fn seal_in_place(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_LEN] {
        let nonce = Nonce::from(*nonce);
        self.0.encrypt_inout_detached(&nonce, clear, text.into()).unwrap().into()
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Forged> {
        let (nonce, tag) = (Nonce::from(*nonce), Tag::from(*tag));
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
#[derive(Debug)]
struct InPieces {
    cipher: Soft,
    nonce: [u8; NONCE_LEN],
    plain: Vec<u8>,
}

impl InPieces {
    fn new(cipher: &Soft, nonce: &[u8; NONCE_LEN]) -> Self {
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

impl SealStream for InPieces {
    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let from = self.plain.len();
        self.plain.extend_from_slice(plain);
        out.extend_from_slice(&self.sealed()[from..self.plain.len()]);
    }

    fn finish(self: Box<Self>) -> [u8; TAG_LEN] {
        self.tag()
    }
}

impl OpenStream for InPieces {
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

impl std::fmt::Debug for Soft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Soft(..)")
    }
}
