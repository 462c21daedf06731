//! The security stage at the target: which method, CHAP (RFC 7143, 12.1), and the handshake of a sealed
//! session.

use std::sync::Arc;

use super::super::invitations::Invited;
use super::super::policy::{Demand, Policy};
use super::super::{Entropy, value};
use super::{Config, Reason};
use crate::client::ClientId;
use crate::identity::PublicKey;
use crate::iscsi::chap::{self, Algorithm, Challenge};
use crate::iscsi::name::IscsiName;
use crate::iscsi::sealed::{
    INVITATION_KEY, InvitationId, METHOD, Master, NOISE_KEY, Responding, Sealing, Transcripts,
};
use crate::iscsi::text::{self, Pair};

/// Where the security stage stands.
#[derive(Debug)]
pub(super) enum Security {
    ExpectMethod(Entropy),
    ExpectAlgorithm(Challenge),
    ExpectProof(Challenge, Algorithm),
    /// The handshake is done; the client's proof is to follow.
    UnprovenHandshake(Box<UnprovenHandshake>),
    /// As much as was asked for.
    Proven(ClientId),
}

/// A handshake that names a client, which has not shown yet that it is there now.
#[derive(Debug)]
pub(super) struct UnprovenHandshake {
    pub(super) master: Master,
    pub(super) client: PublicKey,
    /// The invitation whose secret the proof shows, if the client came with one.
    pub(super) invited: Option<Arc<Invited>>,
    /// All that both sides had sent when the proof was due.
    pub(super) before: Option<Transcripts>,
}

impl Security {
    /// Takes the security keys of one request, which wants to leave the stage or not, and writes the
    /// answers.
    pub(super) fn handle(
        self,
        (config, live): (&Config, &[Arc<Invited>]),
        initiator: &IscsiName,
        pairs: &[Pair<'_>],
        leaving: bool,
        answers: &mut Vec<u8>,
    ) -> Result<Self, Reason> {
        let policy = &config.policy;
        match self {
            Self::ExpectMethod(entropy) => {
                if value(pairs, "AuthMethod").is_some() {
                    choose_method(entropy, (config, live), initiator, pairs, answers)
                } else if !leaving {
                    Ok(Self::ExpectMethod(entropy))
                } else if policy.demands(initiator) == Demand::Nothing {
                    Ok(Self::Proven(ClientId::Unauthenticated))
                } else {
                    Err(Reason::NoMethod)
                }
            }
            Self::ExpectAlgorithm(challenge) => {
                let list = needed(pairs, "CHAP_A")?;
                let algorithm = policy.algorithm(text::list(list).filter_map(text::number));
                let algorithm = algorithm.ok_or(Reason::NoMethod)?;
                text::push(answers, "CHAP_A", &algorithm.number().to_string());
                push_challenge(answers, &challenge);
                Ok(Self::ExpectProof(challenge, algorithm))
            }
            Self::ExpectProof(challenge, algorithm) => {
                check_proof(&challenge, algorithm, policy, initiator, pairs, answers)
            }
            // Nothing is left to prove; a key that comes again breaks RFC 7143, 6.3.
            Self::Proven(_) | Self::UnprovenHandshake(_) if pairs.is_empty() => Ok(self),
            Self::Proven(_) | Self::UnprovenHandshake(_) => Err(Reason::KeyTooLate),
        }
    }
}

/// The first method of the initiator's list that the policy accepts.
fn choose_method(
    entropy: Entropy,
    (config, live): (&Config, &[Arc<Invited>]),
    initiator: &IscsiName,
    pairs: &[Pair<'_>],
    answers: &mut Vec<u8>,
) -> Result<Security, Reason> {
    let policy = &config.policy;
    let demand = policy.demands(initiator);
    if demand == Demand::Impossible && value(pairs, INVITATION_KEY).is_none() {
        return Err(Reason::NotAllowed(initiator.clone()));
    }
    let accepted = |method: &&str| match *method {
        "None" => demand == Demand::Nothing,
        "CHAP" => policy.has_accounts(initiator),
        METHOD => config.sealing.is_some(),
        _ => false,
    };
    let list = value(pairs, "AuthMethod").unwrap_or_default();
    let method = text::list(list).find(accepted).ok_or(Reason::NoMethod)?;
    text::push(answers, "AuthMethod", method);
    match (method, &config.sealing) {
        ("CHAP", _) => Ok(Security::ExpectAlgorithm(entropy.challenge)),
        (METHOD, Some(sealing)) => {
            handshake(entropy, sealing, (policy, live), initiator, pairs, answers)
        }
        _ => Ok(Security::Proven(ClientId::Unauthenticated)),
    }
}

/// The live invitation that the initiator names, if it names one.
fn invited<'a>(
    live: &'a [Arc<Invited>],
    pairs: &[Pair<'_>],
) -> Result<Option<&'a Arc<Invited>>, Reason> {
    if value(pairs, INVITATION_KEY).is_none() {
        return Ok(None);
    }
    let id = InvitationId::from_bytes(&binary(pairs, INVITATION_KEY)?);
    let id = id.ok_or(Reason::MalformedKey(INVITATION_KEY))?;
    Ok(live.iter().find(|invited| invited.id == id))
}

/// Takes the client's message and answers it, if the client is known or invited.
fn handshake(
    entropy: Entropy,
    sealing: &Sealing,
    (policy, live): (&Policy, &[Arc<Invited>]),
    initiator: &IscsiName,
    pairs: &[Pair<'_>],
    answers: &mut Vec<u8>,
) -> Result<Security, Reason> {
    let message = binary(pairs, NOISE_KEY)?;
    let responding = Responding::read(&sealing.identity, entropy.ephemeral, &message)?;
    let client = responding.client();
    let is_known = policy.knows(initiator, client);
    let (initiator, key) = (initiator.clone(), client);
    let invited = match (value(pairs, INVITATION_KEY), invited(live, pairs)?) {
        (Some(_), Some(invited)) => Some(Arc::clone(invited)),
        // The initiator's keys have its secret, whoever it is.
        (Some(_), None) => return Err(Reason::Invitation { initiator, key }),
        (None, _) if is_known => None,
        (None, _) => return Err(Reason::UnknownKey { initiator, key }),
    };
    let (message, master) = responding.answer(invited.as_ref().map(|invited| &invited.secret));
    text::push(answers, NOISE_KEY, &text::base64(&message));
    let unproven = UnprovenHandshake { master, client, invited, before: None };
    Ok(Security::UnprovenHandshake(Box::new(unproven)))
}

/// The initiator's proof and, if it asks for it, ours.
fn check_proof(
    challenge: &Challenge,
    algorithm: Algorithm,
    policy: &Policy,
    initiator: &IscsiName,
    pairs: &[Pair<'_>],
    answers: &mut Vec<u8>,
) -> Result<Security, Reason> {
    let name = needed(pairs, "CHAP_N")?;
    let proof = binary(pairs, "CHAP_R")?;
    let account = policy.account(initiator, name).ok_or(chap::ChapError::Name)?;
    let ours = account.target();
    let other_way = ours.map(|ours| &ours.secret);
    chap::verify(algorithm, account.initiator(), challenge, (name, &proof), other_way)?;
    if let Some(theirs) = read_challenge(pairs)? {
        // Asked to prove ourselves without a secret to do it with, we say so rather than pretend.
        let ours = ours.ok_or(Reason::NoMethod)?;
        let proof = chap::respond(algorithm, &ours.secret, &theirs, Some(challenge))?;
        text::push(answers, "CHAP_N", &ours.name);
        text::push(answers, "CHAP_R", &text::hex(&proof));
    }
    Ok(Security::Proven(ClientId::Account(name.to_owned())))
}

fn push_challenge(answers: &mut Vec<u8>, challenge: &Challenge) {
    text::push(answers, "CHAP_I", &challenge.id.to_string());
    text::push(answers, "CHAP_C", &text::hex(&challenge.bytes));
}

/// The initiator's challenge, if it sent one: half of one is a mistake, as it waits for our proof.
fn read_challenge(pairs: &[Pair<'_>]) -> Result<Option<Challenge>, Reason> {
    if value(pairs, "CHAP_I").or_else(|| value(pairs, "CHAP_C")).is_none() {
        return Ok(None);
    }
    let id = text::number(needed(pairs, "CHAP_I")?).and_then(|id| u8::try_from(id).ok());
    let id = id.ok_or(Reason::MalformedKey("CHAP_I"))?;
    Ok(Some(Challenge { id, bytes: binary(pairs, "CHAP_C")? }))
}

/// What a step of authentication cannot do without.
fn needed<'a>(pairs: &[Pair<'a>], key: &'static str) -> Result<&'a str, Reason> {
    value(pairs, key).ok_or(Reason::MissingKey(key))
}

/// The same, of a key that carries bytes.
pub(super) fn binary(pairs: &[Pair<'_>], key: &'static str) -> Result<Vec<u8>, Reason> {
    text::binary(needed(pairs, key)?).ok_or(Reason::MalformedKey(key))
}
