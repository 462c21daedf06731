//! The cipher of a new volume.

use std::fmt;
use std::str::FromStr;

use super::header::CIPHER;

/// How the data of a new volume are encrypted
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct CipherArgs {
    /// Cipher of the data, as cryptsetup calls it: aes-xts-plain64 is the only one
    #[arg(long, value_name = "CIPHER", default_value_t)]
    pub cipher: Cipher,
    /// Size of the volume key in bits: 512 (AES-256), or 256 (AES-128)
    #[arg(long, value_name = "BITS", default_value_t)]
    pub key_size: KeySize,
}

/// A cipher that volumes here can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cipher;

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CIPHER)
    }
}

impl FromStr for Cipher {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            CIPHER => Ok(Self),
            _ => Err(format!(
                "volumes are encrypted with {CIPHER} here; the kernel's dm-crypt has other ciphers \
                 (`cryptsetup luksFormat --type luks2 --cipher {text}`), and opens them"
            )),
        }
    }
}

/// The size of a volume key: that of both its halves, one of which encrypts the data, the other the tweaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeySize {
    /// AES-256.
    #[default]
    Bits512,
    /// AES-128, which is slower here: the library has the whole mode for AES-256 only.
    Bits256,
}

impl KeySize {
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Bits512 => 64,
            Self::Bits256 => 32,
        }
    }
}

impl fmt::Display for KeySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes() * 8)
    }
}

impl FromStr for KeySize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "512" => Ok(Self::Bits512),
            "256" => Ok(Self::Bits256),
            _ => Err(format!("keys of {CIPHER} have 512 or 256 bits here")),
        }
    }
}
