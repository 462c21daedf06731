//! What a stream's programs encipher blocks with, above the transport: what the papers had, and what
//! suits today's processors.

use std::str::FromStr;

use cbc::cipher::{BlockModeDecrypt, BlockModeEncrypt, KeyIvInit};
use des::TdesEde3;
use des::cipher::{Array, consts::U8};
use host::aead::{Gcm, KEY_LEN, NONCE_LEN, TAG_LEN};

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
const TRIPLE_KEY_LEN: usize = 24;
const TRIPLE_BLOCK_LEN: usize = 8;

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
            Self::TripleDes => TRIPLE_BLOCK_LEN,
        }
    }

    /// Enciphers block `number` into `out`, which is emptied first.
    pub(crate) fn seal(self, number: u64, plain: &[u8], out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::None => out.extend_from_slice(plain),
            Self::Aes => Gcm::new(&KEY).seal(&nonce(number), &[], plain, out),
            Self::TripleDes => {
                out.extend_from_slice(plain);
                let (blocks, _) = Array::<u8, U8>::slice_as_chunks_mut(out);
                let (key, start) = triple(number);
                cbc::Encryptor::<TdesEde3>::new(&key.into(), &start.into()).encrypt_blocks(blocks);
            }
        }
    }

    /// Deciphers it again; `None` if it was not this block.
    pub(crate) fn open(self, number: u64, sealed: &mut [u8]) -> Option<usize> {
        match self {
            Self::None => Some(sealed.len()),
            Self::Aes => {
                let (text, tag) = sealed.split_last_chunk_mut::<TAG_LEN>()?;
                Gcm::new(&KEY).open(&nonce(number), &[], text, tag).ok()?;
                Some(text.len())
            }
            Self::TripleDes => {
                let (blocks, _) = Array::<u8, U8>::slice_as_chunks_mut(sealed);
                let (key, start) = triple(number);
                cbc::Decryptor::<TdesEde3>::new(&key.into(), &start.into()).decrypt_blocks(blocks);
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

fn triple(number: u64) -> ([u8; TRIPLE_KEY_LEN], [u8; TRIPLE_BLOCK_LEN]) {
    (std::array::from_fn(|at| KEY[at]), number.to_be_bytes())
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
    fn what_is_sealed_opens_again_and_is_not_the_text() {
        let plain: Vec<u8> = (0..4096_u32).map(|at| at as u8).collect();
        for cipher in [Cipher::Aes, Cipher::TripleDes] {
            let mut sealed = Vec::new();
            cipher.seal(7, &plain, &mut sealed);
            assert_eq!(sealed.len(), plain.len() + cipher.overhead());
            assert_ne!(sealed[..plain.len()], plain);
            let len = cipher.open(7, &mut sealed);
            assert_eq!(len.and_then(|len| sealed.get(..len)), Some(&plain[..]), "{cipher:?}");
        }
    }
}
