//! The ciphers that do the work of secure sessions, and which of them HyperSCSI uses (`docs/spec/hyperscsi.md`, 5.6).

use std::fmt;
use std::str::FromStr;

use proto::cipher::{Cipher, Forged, KEY_LEN, NONCE_LEN, OpenStream, SealStream, TAG_LEN};
use proto::hyperscsi::{self, Aead};

const AES: hyperscsi::Ciphers = &[(Aead::Aes256Gcm, new_aes_256_gcm)];
const CHACHA: hyperscsi::Ciphers = &[(Aead::ChaCha20Poly1305, new_chacha20_poly1305)];

/// Both, for a processor with AES instructions.
pub const AES_FIRST: hyperscsi::Ciphers = &[AES[0], CHACHA[0]];

/// Both, for one without: AES would take several times as long.
const CHACHA_FIRST: hyperscsi::Ciphers = &[CHACHA[0], AES[0]];

/// The ciphers that one end may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ciphers {
    /// Either, the faster one here first.
    #[default]
    Any,
    /// This one alone.
    Only(Aead),
}

impl Ciphers {
    /// As a machine takes them, the preferred one first.
    #[must_use]
    pub fn of_machine(self) -> hyperscsi::Ciphers {
        match self {
            Self::Any if has_aes() => AES_FIRST,
            Self::Any => CHACHA_FIRST,
            Self::Only(Aead::Aes256Gcm) => AES,
            Self::Only(Aead::ChaCha20Poly1305) => CHACHA,
        }
    }

    /// What was agreed on with the other end.
    #[must_use]
    pub const fn name_of(agreed: Aead) -> &'static str {
        match agreed {
            Aead::Aes256Gcm => "aes-256-gcm",
            Aead::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }
}

/// Whether the processor has instructions for AES and for the multiplication of GCM.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

impl FromStr for Ciphers {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Aead::Aes256Gcm, Aead::ChaCha20Poly1305].map(Self::Only);
        let mut all = [Self::Any].into_iter().chain(all);
        all.find(|one| one.to_string() == text)
            .ok_or("write `any`, `aes-256-gcm` or `chacha20-poly1305`")
    }
}

impl fmt::Display for Ciphers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::Only(only) => Self::name_of(*only),
        })
    }
}

/// AES-256-GCM under this key, at the speed of the processor.
pub fn new_aes_256_gcm(key: &[u8; KEY_LEN]) -> Box<dyn Cipher> {
    Box::new(Keyed(host::aead::Aead::aes_256_gcm(key)))
}

/// ChaCha20-Poly1305, likewise.
pub fn new_chacha20_poly1305(key: &[u8; KEY_LEN]) -> Box<dyn Cipher> {
    Box::new(Keyed(host::aead::Aead::chacha20_poly1305(key)))
}

#[derive(Debug)]
struct Keyed(host::aead::Aead);

impl Cipher for Keyed {
    fn seal_parts(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        parts: [&[u8]; 2],
        out: &mut Vec<u8>,
    ) {
        self.0.seal_parts(nonce, clear, parts, out);
    }

    fn tag(&self, nonce: &[u8; NONCE_LEN], clear: &[u8]) -> [u8; TAG_LEN] {
        self.0.tag(nonce, clear)
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        clear: &[u8],
        text: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Forged> {
        self.0.open(nonce, clear, text, tag).map_err(|host::aead::Forged| Forged)
    }

    fn seal_stream(&self, nonce: &[u8; NONCE_LEN]) -> Box<dyn SealStream> {
        Box::new(InPieces(self.0.seal_stream(nonce)))
    }

    fn open_stream(&self, nonce: &[u8; NONCE_LEN]) -> Box<dyn OpenStream> {
        Box::new(InPieces(self.0.open_stream(nonce)))
    }
}

#[derive(Debug)]
struct InPieces<T>(T);

impl SealStream for InPieces<host::aead::SealStream> {
    fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        self.0.seal(plain, out);
    }

    fn finish(self: Box<Self>) -> [u8; TAG_LEN] {
        self.0.finish()
    }
}

impl OpenStream for InPieces<host::aead::OpenStream> {
    fn open(&mut self, text: &mut [u8]) {
        self.0.open(text);
    }

    fn finish(self: Box<Self>, tag: &[u8; TAG_LEN]) -> Result<(), Forged> {
        self.0.finish(tag).map_err(|host::aead::Forged| Forged)
    }
}

#[cfg(test)]
mod tests {
    use proto::iscsi::sealed::invariants;

    use super::*;

    /// The invariants of sealed PDUs, with the ciphers that do the work.
    #[test]
    fn invariants_hold_for_these_ciphers() {
        use proptest::prelude::*;
        proptest!(|(script in prop::collection::vec(any::<u8>(), 0..400))| {
            invariants::holds(new_aes_256_gcm, &script);
            invariants::holds(new_chacha20_poly1305, &script);
        });
    }

    #[test]
    fn name_is_read_as_it_is_written() {
        for name in ["any", "aes-256-gcm", "chacha20-poly1305"] {
            assert_eq!(name.parse::<Ciphers>().unwrap().to_string(), name);
        }
        assert!("aes".parse::<Ciphers>().is_err());
    }

    #[test]
    fn cipher_that_is_asked_for_is_the_only_one() {
        for aead in [Aead::Aes256Gcm, Aead::ChaCha20Poly1305] {
            let names: Vec<_> = Ciphers::Only(aead).of_machine().iter().map(|it| it.0).collect();
            assert_eq!(names, [aead]);
        }
        assert_eq!(Ciphers::Any.of_machine().len(), 2);
    }
}
