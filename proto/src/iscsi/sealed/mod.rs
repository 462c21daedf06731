//! Sealed sessions: proof by public keys, and every PDU encrypted or authenticated
//! (`docs/spec/sealed-iscsi.md`, whose sections are cited as "spec").
//!
//! ```text
//! Identity, PublicKey -> handshake -> Master -> proof (in the login)
//!                        Transcript ----^   \-> Secret -> Sealer (out), Opener (in)
//! ```
//!
//! Nothing here draws random bytes or has a fast cipher of its own: an [`Ephemeral`] and a [`NewCipher`]
//! are arguments.

mod handshake;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod invitation;
mod record;
mod schedule;
mod seals;

pub use crate::cipher::{
    Cipher, Forged, KEY_LEN, NONCE_LEN, NewCipher, OpenStream, SealStream, TAG_LEN,
};
pub use handshake::{Ephemeral, HandshakeError, Initiating, Responding};
pub use invitation::{INVITATION_LEN, InvitationId, InvitationSecret};
pub use record::{Head, Limits, OpenError, Opener, SEALED_BHS_LEN, SealPermit, Sealer};
pub use schedule::{Direction, Master, PROOF_LEN, Proof, Secret, Transcript, Transcripts};
pub use seals::{Sealing, Seals};

/// The authentication method (spec, 3).
pub const METHOD: &str = "Z-dev.longhaul.noise";

/// The key that carries a Noise message (spec, 3).
pub const NOISE_KEY: &str = "X-dev.longhaul.noise";

/// The key that carries the initiator's proof (spec, 3).
pub const PROOF_KEY: &str = "X-dev.longhaul.proof";

/// The key that carries the ID of an invitation (spec, 7).
pub const INVITATION_KEY: &str = "X-dev.longhaul.invitation";

/// How the PDUs of a session are protected. The order is that of strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protection {
    /// Nobody on the path can change them.
    Integrity,
    /// Nobody on the path can read them either.
    Encrypt,
}

impl Protection {
    /// The digest that stands for it in HeaderDigest and DataDigest.
    #[must_use]
    pub const fn digest(self) -> &'static str {
        match self {
            Self::Integrity => "Y-dev.longhaul.gmac",
            Self::Encrypt => "Y-dev.longhaul.aes256gcm",
        }
    }

    /// The protection a digest stands for, if it is one of ours.
    #[must_use]
    pub fn of_digest(name: &str) -> Option<Self> {
        [Self::Integrity, Self::Encrypt].into_iter().find(|one| one.digest() == name)
    }

    /// What users call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Integrity => "integrity",
            Self::Encrypt => "encrypt",
        }
    }

    /// Its byte in the key schedule (spec, 4).
    const fn byte(self) -> u8 {
        match self {
            Self::Integrity => 1,
            Self::Encrypt => 2,
        }
    }
}

/// Neither `integrity` nor `encrypt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session is given `integrity` or `encrypt`")]
pub struct NoProtection;

impl std::str::FromStr for Protection {
    type Err = NoProtection;

    fn from_str(name: &str) -> Result<Self, NoProtection> {
        [Self::Integrity, Self::Encrypt]
            .into_iter()
            .find(|one| one.name() == name)
            .ok_or(NoProtection)
    }
}

#[cfg(test)]
pub(crate) mod soft;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
