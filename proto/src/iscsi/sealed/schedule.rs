//! From the handshake and the login to the keys (spec, 4).

use std::fmt;

use hkdf::Hkdf;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::invitation::{INVITATION_LEN, InvitationSecret};
use super::{KEY_LEN, Protection};

const PROOF: &[u8] = b"longhaul sealed-iscsi 1: proof";
const TRAFFIC: &[u8] = b"longhaul sealed-iscsi 1: traffic";
const KEY: &[u8] = b"longhaul sealed-iscsi 1: key";
const NEXT: &[u8] = b"longhaul sealed-iscsi 1: next";

/// Bytes of a SHA-256 hash.
const HASH_LEN: usize = 32;

/// Bytes of the initiator's proof.
pub const PROOF_LEN: usize = 32;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The initiator, to the target.
    FromInitiator,
    /// The target, to the initiator.
    FromTarget,
}

impl Direction {
    const fn byte(self) -> u8 {
        match self {
            Self::FromInitiator => b'I',
            Self::FromTarget => b'T',
        }
    }
}

/// The hash of what one side has sent during the login, as it stood on the wire.
#[derive(Clone, Debug, Default)]
pub struct Transcript(Sha256);

impl Transcript {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all of them.
    #[must_use]
    pub fn hash(&self) -> [u8; HASH_LEN] {
        self.0.clone().finalize().into()
    }
}

/// What both sides have sent up to some point of the login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transcripts {
    /// By the initiator.
    pub initiator: [u8; HASH_LEN],
    /// By the target.
    pub target: [u8; HASH_LEN],
}

/// What only the two sides of a handshake have. It is wiped when dropped and never printed.
pub struct Master(Zeroizing<[u8; HASH_LEN]>);

/// Shows that its sender has the private key the handshake named, now.
#[derive(Clone, PartialEq, Eq)]
pub struct Proof([u8; PROOF_LEN]);

impl Master {
    pub(super) fn extract(
        hash: &[u8],
        first: &[u8; KEY_LEN],
        second: &[u8; KEY_LEN],
        invitation: Option<&InvitationSecret>,
    ) -> Self {
        // Its full length at once, so that no part of a secret is left behind by growing.
        let mut input = Zeroizing::new(Vec::with_capacity(2 * KEY_LEN + INVITATION_LEN));
        input.extend_from_slice(first);
        input.extend_from_slice(second);
        input.extend(invitation.iter().flat_map(|secret| secret.expose()));
        let (master, _) = Hkdf::<Sha256>::extract(Some(hash), &input);
        Self(Zeroizing::new(master.into()))
    }

    /// The initiator's proof after this much of the login.
    #[must_use]
    pub fn proof(&self, so_far: &Transcripts) -> Proof {
        Proof(*expand(&self.0, &[PROOF, &so_far.initiator, &so_far.target]))
    }

    /// The secret one direction of one connection begins with, after the whole login.
    #[must_use]
    pub fn traffic(
        &self,
        direction: Direction,
        protection: Protection,
        cid: u16,
        login: &Transcripts,
    ) -> Secret {
        let place = [direction.byte(), protection.byte()];
        let cid = cid.to_be_bytes();
        Secret(expand(&self.0, &[TRAFFIC, &place, &cid, &login.initiator, &login.target]))
    }
}

impl Proof {
    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; PROOF_LEN] {
        &self.0
    }

    /// Whether a peer's bytes are this proof, in a time that does not tell where they differ.
    #[must_use]
    pub fn is(&self, theirs: &[u8]) -> bool {
        bool::from(self.0.ct_eq(theirs))
    }
}

/// What the keys of one direction are made of, one after the other. It is wiped when dropped.
pub struct Secret(Zeroizing<[u8; HASH_LEN]>);

impl Secret {
    /// The key of now.
    pub(super) fn key(&self) -> Zeroizing<[u8; KEY_LEN]> {
        expand(&self.0, &[KEY])
    }

    /// What the next key is made of; there is no way back.
    pub(super) fn next(&self) -> Self {
        Self(expand(&self.0, &[NEXT]))
    }
}

macro_rules! never_printed {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    )*};
}
never_printed!(Master, Proof, Secret);

fn expand(secret: &[u8; HASH_LEN], info: &[&[u8]]) -> Zeroizing<[u8; HASH_LEN]> {
    let mut out = Zeroizing::new([0; HASH_LEN]);
    Hkdf::<Sha256>::from_prk(secret)
        .expect("a hash is long enough a key")
        .expand_multi_info(info, &mut *out)
        .expect("one block can always be had");
    out
}
