//! Encrypted files on tapes (`docs/spec/tape-encryption.md`): blocks of one length, the first of which is a header.
//!
//! The key that comes of a pass-phrase is an argument: deriving it takes time and memory.

mod header;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

pub use crate::cipher::{KEY_LEN, NewCipher};
pub use header::{BLOCK_MAX, BLOCK_MIN, Cost, Header, HeaderError, is_encrypted};
pub use reader::{FileReader, RecordError, WrongKey};
pub use writer::{FileSecrets, FileWriter};

use crate::cipher::{NONCE_LEN, TAG_LEN};

/// Bytes of a salt.
pub const SALT_LEN: usize = 32;

/// Bytes of a confirmation.
const CONFIRMATION_LEN: usize = 32;

/// What comes of a pass-phrase, of the salt and of the cost of a header.
pub type PassphraseKey = Zeroizing<[u8; KEY_LEN]>;

/// The nonce of the wrapped key, whose key serves once.
const WRAPPING_NONCE: [u8; NONCE_LEN] = [0; NONCE_LEN];

/// Bytes that say how many bytes of data a record has.
const LENGTH_LEN: usize = 4;

/// How much longer a full record is than its data.
const RECORD_OVERHEAD: usize = LENGTH_LEN + TAG_LEN;

/// What the records are encrypted with, and what binds the header to it.
fn derived(
    salt: &[u8; SALT_LEN],
    file_key: &[u8; KEY_LEN],
) -> (Zeroizing<[u8; KEY_LEN]>, [u8; CONFIRMATION_LEN]) {
    let mut both = Zeroizing::new([0; KEY_LEN + CONFIRMATION_LEN]);
    Hkdf::<Sha256>::new(Some(salt), file_key)
        .expand(b"longhaul tape file 1", &mut *both)
        .expect("two blocks can always be had");
    let (mut record_key, mut confirmation) = (Zeroizing::new([0; KEY_LEN]), [0; CONFIRMATION_LEN]);
    record_key.copy_from_slice(&both[..KEY_LEN]);
    confirmation.copy_from_slice(&both[KEY_LEN..]);
    (record_key, confirmation)
}

/// The nonce of a record.
fn nonce(number: u64, is_last: bool) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[3..11].copy_from_slice(&number.to_be_bytes());
    nonce[11] = is_last.into();
    nonce
}
