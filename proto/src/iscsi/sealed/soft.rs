//! AES-256-GCM for tests, by a library the program does not use.

use aes_gcm::aead::{AeadInOut as _, KeyInit as _};
use aes_gcm::{Aes256Gcm, Nonce, Tag};

use super::{Cipher, Forged, KEY_LEN, NONCE_LEN, TAG_LEN};

/// A cipher under `key`.
pub(crate) fn new_cipher(key: &[u8; KEY_LEN]) -> Box<dyn Cipher> {
    Box::new(Soft(Aes256Gcm::new(key.into())))
}

struct Soft(Aes256Gcm);

impl Cipher for Soft {
    fn seal(&self, nonce: &[u8; NONCE_LEN], clear: &[u8], plain: &[u8], out: &mut Vec<u8>) {
        let mut text = plain.to_vec();
        let nonce = Nonce::from(*nonce);
        let tag = self.0.encrypt_inout_detached(&nonce, clear, text.as_mut_slice().into()).unwrap();
        out.extend_from_slice(&text);
        out.extend_from_slice(&tag);
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
}

impl std::fmt::Debug for Soft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Soft(..)")
    }
}
