//! The security stage at the initiator: CHAP, one way or mutual (RFC 7143, 12.1.3).

use super::super::value;
use super::{Config, LoginError};
use crate::iscsi::chap::{self, Account, Algorithm, Challenge};
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
    /// All that was asked has been proven.
    Done,
}

impl Security {
    /// Offers the methods. Without a target that must prove itself, a target that asks for nothing
    /// is fine too.
    pub(super) fn start(account: &Account, challenge: Challenge, text: &mut Vec<u8>) -> Self {
        let methods = if account.target().is_some() { "CHAP" } else { "CHAP,None" };
        text::push(text, "AuthMethod", methods);
        Self::ExpectMethod(challenge)
    }

    /// Takes the target's security keys and writes what follows.
    pub(super) fn handle(
        self,
        config: &Config,
        pairs: &[Pair<'_>],
        text: &mut Vec<u8>,
    ) -> Result<Self, LoginError> {
        let Some(account) = &config.account else { return Err(LoginError::NoCredentials) };
        match self {
            Self::ExpectMethod(challenge) => choose(challenge, account, config, pairs, text),
            Self::ExpectChallenge(ours) => prove(ours, account, config, pairs, text),
            Self::ExpectProof(challenge, algorithm) => {
                check(&challenge, algorithm, account, pairs)?;
                Ok(Self::Done)
            }
            Self::Done => Ok(Self::Done),
        }
    }

    /// Whether what is sent next may ask for the next stage.
    pub(super) const fn may_leave(&self) -> bool {
        matches!(self, Self::Done | Self::ExpectProof(..))
    }
}

fn choose(
    challenge: Challenge,
    account: &Account,
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
        Some("None") if account.target().is_none() => Ok(Security::Done),
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
