//! What a stream's programs encipher blocks with, above the transport: what the papers had, and what
//! suits today's processors.

use std::str::FromStr;

use host::aead::{Aead, KEY_LEN, NONCE_LEN, TAG_LEN};

use crate::triple_des::{self, TripleDes};

/// The key and the start of every block; nothing here is secret.
const KEY: [u8; KEY_LEN] = {
    let mut key = [0; KEY_LEN];
    let mut at = 0;
    while at < KEY_LEN {
        key[at] = at as u8 + 1;
        at += 1;
    }
    key
};

/// A cipher, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Cipher {
    /// As it is
    None,
    /// AES-256-GCM
    Aes,
    /// 3DES in CBC mode
    #[value(name = "3des")]
    TripleDes,
}

impl Cipher {
    /// How much longer a block is on the wire.
    pub(crate) const fn overhead(self) -> usize {
        match self {
            Self::Aes => TAG_LEN,
            Self::None | Self::TripleDes => 0,
        }
    }

    /// How many bytes a block must be a multiple of.
    pub(crate) const fn unit(self) -> usize {
        match self {
            Self::None | Self::Aes => 1,
            Self::TripleDes => triple_des::BLOCK_LEN,
        }
    }

    /// The cipher with its key, which is set up once for all blocks of a stream.
    pub(crate) fn keyed(self) -> Keyed {
        match self {
            Self::None => Keyed::None,
            Self::Aes => Keyed::Aes(Aead::aes_256_gcm(&KEY)),
            Self::TripleDes => {
                let key = std::array::from_fn(|at| KEY[at]);
                Keyed::TripleDes(Box::new(TripleDes::new(&key)))
            }
        }
    }
}

/// A cipher with its key.
#[derive(Debug)]
pub(crate) enum Keyed {
    None,
    Aes(Aead),
    TripleDes(Box<TripleDes>),
}

impl Keyed {
    /// Enciphers block `number` into `out`, which is emptied first.
    pub(crate) fn seal(&mut self, number: u64, plain: &[u8], out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::None => out.extend_from_slice(plain),
            Self::Aes(gcm) => gcm.seal(&nonce(number), &[], plain, out),
            Self::TripleDes(triple) => {
                out.extend_from_slice(plain);
                triple.encrypt(&number.to_be_bytes(), out);
            }
        }
    }

    /// Deciphers it again; `None` if it was not this block.
    pub(crate) fn open(&mut self, number: u64, sealed: &mut [u8]) -> Option<usize> {
        match self {
            Self::None => Some(sealed.len()),
            Self::Aes(gcm) => {
                let (text, tag) = sealed.split_last_chunk_mut::<TAG_LEN>()?;
                gcm.open(&nonce(number), &[], text, tag).ok()?;
                Some(text.len())
            }
            Self::TripleDes(triple) => {
                triple.decrypt(&number.to_be_bytes(), sealed);
                Some(sealed.len())
            }
        }
    }
}

fn nonce(number: u64) -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    nonce
}

impl FromStr for Cipher {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        clap::ValueEnum::from_str(name, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphertext_opens_again_and_differs_from_the_plaintext() {
        let plain: Vec<u8> = (0..4096_u32).map(|at| at as u8).collect();
        for cipher in [Cipher::Aes, Cipher::TripleDes] {
            let mut sealed = Vec::new();
            let mut keyed = cipher.keyed();
            keyed.seal(7, &plain, &mut sealed);
            assert_eq!(sealed.len(), plain.len() + cipher.overhead());
            assert_ne!(sealed[..plain.len()], plain);
            let len = keyed.open(7, &mut sealed);
            assert_eq!(len.and_then(|len| sealed.get(..len)), Some(&plain[..]), "{cipher:?}");
        }
    }
}
