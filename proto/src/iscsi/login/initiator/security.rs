//! The security stage at the initiator: CHAP, one way or mutual (RFC 7143, 12.1.3), or the handshake of
//! a sealed session.

use super::super::{Entropy, value};
use super::{Config, LoginError, Pinned};
use crate::iscsi::chap::{self, Account, Algorithm, Challenge};
use crate::iscsi::sealed::{
    INVITATION_KEY, Initiating, InvitationSecret, METHOD, Master, NOISE_KEY, Protection,
};
use crate::iscsi::text::{self, Pair};

/// Where the security stage stands.
#[derive(Debug)]
pub(super) enum Security {
    /// AuthMethod was offered.
    ExpectMethod(Challenge),
    /// CHAP_A was offered.
    ExpectChallenge(Challenge),
    /// Our proof was sent, and our challenge with it.
    ExpectProof(Challenge, Algorithm),
    /// The first message of the handshake was sent, with the method that goes with it.
    ExpectNoise(Box<Initiating>, Protection),
    /// The target has proven itself; our proof follows in the next stage.
    UnprovenHandshake(Box<Master>, Protection),
    /// All that was asked has been proven.
    Done,
}

impl Security {
    /// Offers the methods, if there is anything to prove.
    pub(super) fn start(config: &Config, entropy: Entropy, text: &mut Vec<u8>) -> Option<Self> {
        match (&config.pinned, &config.account) {
            (Some(pinned), _) => Some(Self::start_sealed(pinned, entropy, text)),
            (None, Some(_)) => Some(Self::start_chap(entropy.challenge, text)),
            (None, None) => None,
        }
    }

    /// Nothing else is offered, so that nobody on the way can make it less.
    fn start_sealed(pinned: &Pinned, entropy: Entropy, text: &mut Vec<u8>) -> Self {
        let Pinned { sealing, target, protection, invitation } = pinned;
        let (state, message) = Initiating::start(&sealing.identity, target, entropy.ephemeral);
        text::push(text, "AuthMethod", METHOD);
        text::push(text, NOISE_KEY, &text::base64(&message));
        if let Some(secret) = invitation {
            text::push(text, INVITATION_KEY, &text::base64(secret.id().as_bytes()));
        }
        Self::ExpectNoise(Box::new(state), *protection)
    }

    /// Nothing else is offered: whoever gives credentials wants them asked for, and somebody on the path could
    /// choose `None` for both sides.
    fn start_chap(challenge: Challenge, text: &mut Vec<u8>) -> Self {
        text::push(text, "AuthMethod", "CHAP");
        Self::ExpectMethod(challenge)
    }

    /// Takes the target's security keys and writes what follows.
    pub(super) fn handle(
        self,
        config: &Config,
        pairs: &[Pair<'_>],
        text: &mut Vec<u8>,
    ) -> Result<Self, LoginError> {
        if let Self::ExpectNoise(state, protection) = self {
            let invitation = config.pinned.as_ref().and_then(|pinned| pinned.invitation.as_ref());
            return handshake(*state, protection, invitation, pairs);
        }
        let Some(account) = &config.account else { return Ok(self) };
        match self {
            Self::ExpectMethod(challenge) => choose(challenge, config, pairs, text),
            Self::ExpectChallenge(ours) => prove(ours, account, config, pairs, text),
            Self::ExpectProof(challenge, algorithm) => {
                check(&challenge, algorithm, account, pairs)?;
                Ok(Self::Done)
            }
            Self::ExpectNoise(..) | Self::UnprovenHandshake(..) | Self::Done => Ok(self),
        }
    }

    /// Whether what is sent next may ask for the next stage.
    pub(super) const fn may_leave(&self) -> bool {
        matches!(
            self,
            Self::Done
                | Self::ExpectProof(..)
                | Self::ExpectNoise(..)
                | Self::UnprovenHandshake(..)
        )
    }
}

/// Takes the target's message, which proves it.
fn handshake(
    state: Initiating,
    protection: Protection,
    invitation: Option<&InvitationSecret>,
    pairs: &[Pair<'_>],
) -> Result<Security, LoginError> {
    if value(pairs, "AuthMethod") != Some(METHOD) {
        return Err(LoginError::NoSeal);
    }
    let message = value(pairs, NOISE_KEY).and_then(text::binary);
    let master = state.finish(&message.ok_or(LoginError::ChapKey(NOISE_KEY))?, invitation)?;
    Ok(Security::UnprovenHandshake(Box::new(master), protection))
}

fn choose(
    challenge: Challenge,
    config: &Config,
    pairs: &[Pair<'_>],
    text: &mut Vec<u8>,
) -> Result<Security, LoginError> {
    match value(pairs, "AuthMethod") {
        Some("CHAP") => {
            let numbers = config.algorithms.iter().map(|algorithm| algorithm.number().to_string());
            text::push(text, "CHAP_A", &numbers.collect::<Vec<_>>().join(","));
            Ok(Security::ExpectChallenge(challenge))
        }
        Some(other) => Err(LoginError::NotOffered(format!("AuthMethod={other}"))),
        None => Err(LoginError::ChapKey("AuthMethod")),
    }
}

/// Answers the target's challenge and, for mutual authentication, sends ours.
fn prove(
    ours: Challenge,
    account: &Account,
    config: &Config,
    pairs: &[Pair<'_>],
    text: &mut Vec<u8>,
) -> Result<Security, LoginError> {
    let chosen = value(pairs, "CHAP_A").ok_or(LoginError::ChapKey("CHAP_A"))?;
    let algorithm = text::number(chosen)
        .and_then(Algorithm::from_number)
        .filter(|algorithm| config.algorithms.contains(algorithm))
        .ok_or_else(|| LoginError::NotOffered(format!("CHAP_A={chosen}")))?;
    let id = value(pairs, "CHAP_I").and_then(text::number).and_then(|id| u8::try_from(id).ok());
    let bytes = value(pairs, "CHAP_C").and_then(text::binary);
    let theirs = Challenge {
        id: id.ok_or(LoginError::ChapKey("CHAP_I"))?,
        bytes: bytes.ok_or(LoginError::ChapKey("CHAP_C"))?,
    };
    let us = account.initiator();
    let mutual = account.target().is_some();
    let proof = chap::respond(algorithm, &us.secret, &theirs, mutual.then_some(&ours))?;
    text::push(text, "CHAP_N", &us.name);
    text::push(text, "CHAP_R", &text::hex(&proof));
    if !mutual {
        return Ok(Security::Done);
    }
    text::push(text, "CHAP_I", &ours.id.to_string());
    text::push(text, "CHAP_C", &text::hex(&ours.bytes));
    Ok(Security::ExpectProof(ours, algorithm))
}

fn check(
    challenge: &Challenge,
    algorithm: Algorithm,
    account: &Account,
    pairs: &[Pair<'_>],
) -> Result<(), LoginError> {
    let Some(expected) = account.target() else { return Ok(()) };
    let name = value(pairs, "CHAP_N").ok_or(LoginError::ChapKey("CHAP_N"))?;
    let proof = value(pairs, "CHAP_R").and_then(text::binary);
    let proof = proof.ok_or(LoginError::ChapKey("CHAP_R"))?;
    let other_way = Some(&account.initiator().secret);
    Ok(chap::verify(algorithm, expected, challenge, (name, &proof), other_way)?)
}
