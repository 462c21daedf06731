//! CHAP: proof that the other side knows a secret, without sending it (RFC 7143, 12.1.3).
//!
//! A side sends a fresh [`Challenge`]; the other answers with a hash of it and the secret. Mutual
//! authentication does so once in each direction, with different secrets.

use std::sync::Arc;

use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// The hash functions, under the numbers IANA registered for CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// Every old peer knows it, and only it. Allowed only where someone says so.
    Md5 = 5,
    /// SHA-1.
    Sha1 = 6,
    /// SHA-256.
    Sha256 = 7,
    /// SHA3-256.
    Sha3_256 = 8,
}

impl Algorithm {
    /// All of them, best first: the order in which they are offered.
    pub const ALL: [Self; 4] = [Self::Sha3_256, Self::Sha256, Self::Sha1, Self::Md5];

    /// Those without known weakness, best first: what is used unless someone allows more.
    pub const STRONG: [Self; 2] = [Self::Sha3_256, Self::Sha256];

    /// The algorithm a number in CHAP_A stands for.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| u64::from(algorithm.number()) == number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The answer to a challenge: the hash of identifier, secret and challenge (RFC 1994, 4.1).
    fn answer(self, secret: &Secret, challenge: &Challenge) -> Vec<u8> {
        fn hash<D: md5::Digest>(secret: &Secret, challenge: &Challenge) -> Vec<u8> {
            D::new()
                .chain_update([challenge.id])
                .chain_update(&*secret.0)
                .chain_update(&challenge.bytes)
                .finalize()
                .to_vec()
        }
        match self {
            Self::Md5 => hash::<md5::Md5>(secret, challenge),
            Self::Sha1 => hash::<sha1::Sha1>(secret, challenge),
            Self::Sha256 => hash::<sha2::Sha256>(secret, challenge),
            Self::Sha3_256 => hash::<sha3::Sha3_256>(secret, challenge),
        }
    }
}

/// The fewest bytes of a secret: 96 bits, below which CHAP needs IPsec around it (RFC 7143, 9.2.1).
pub const SECRET_MIN: usize = 12;

/// The most bytes of a secret; a bound, well above what peers take.
pub const SECRET_MAX: usize = 255;

/// A shared secret. It is in memory once, whatever is cloned, wiped when the last is dropped, and never printed.
#[derive(Clone)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

/// Why a secret is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Outside [`SECRET_MIN`] to [`SECRET_MAX`] bytes.
    #[error("a CHAP secret has {SECRET_MIN} to {SECRET_MAX} bytes, this one {0}")]
    Length(usize),
    /// The same secret in both directions would let an attacker use our own answers.
    #[error("the CHAP secrets of the two directions must differ")]
    SameBothWays,
}

impl Secret {
    /// Takes a secret of a safe length.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        let bytes = Zeroizing::new(bytes.into());
        match bytes.len() {
            SECRET_MIN..=SECRET_MAX => Ok(Self(Arc::new(bytes))),
            n => Err(SecretError::Length(n)),
        }
    }

    /// Gives its memory to `keep`, which can keep it from being paged out.
    pub fn keep_with(&self, keep: impl FnOnce(&[u8])) {
        keep(&self.0);
    }

    fn same(&self, other: &Self) -> bool {
        bool::from(self.0.ct_eq(&other.0))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A name (CHAP_N) and its secret.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The name that is sent with the answer.
    pub name: String,
    /// What proves it.
    pub secret: Secret,
}

/// The credentials of one pair of nodes: how the initiator proves itself and, if mutual, the target.
#[derive(Clone, Debug)]
pub struct Account {
    initiator: Credentials,
    target: Option<Credentials>,
}

impl Account {
    /// Whether the names and secrets are the same.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let same = |one: &Credentials, two: &Credentials| {
            one.name == two.name && one.secret.same(&two.secret)
        };
        let targets = match (&self.target, &other.target) {
            (Some(one), Some(two)) => same(one, two),
            (None, None) => true,
            _ => false,
        };
        same(&self.initiator, &other.initiator) && targets
    }

    /// Only the initiator proves itself.
    #[must_use]
    pub const fn one_way(initiator: Credentials) -> Self {
        Self { initiator, target: None }
    }

    /// Both prove themselves, with secrets that must differ (RFC 7143, 9.2.1).
    pub fn mutual(initiator: Credentials, target: Credentials) -> Result<Self, SecretError> {
        if initiator.secret.same(&target.secret) {
            return Err(SecretError::SameBothWays);
        }
        Ok(Self { initiator, target: Some(target) })
    }

    /// What the initiator proves.
    #[must_use]
    pub const fn initiator(&self) -> &Credentials {
        &self.initiator
    }

    /// What the target proves, if mutual.
    #[must_use]
    pub const fn target(&self) -> Option<&Credentials> {
        self.target.as_ref()
    }
}

/// The length of our challenges: no shorter than the longest answer, so that none comes twice nor can be foreseen
/// (RFC 1994, 2.3).
const CHALLENGE_LEN: usize = 32;

/// An identifier (CHAP_I) and a challenge (CHAP_C).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The identifier.
    pub id: u8,
    /// The challenge.
    pub bytes: Vec<u8>,
}

impl Challenge {
    /// A fresh challenge; `fill` fills a buffer with unpredictable bytes.
    pub fn fresh(fill: &mut dyn FnMut(&mut [u8])) -> Self {
        let (mut id, mut bytes) = ([0], vec![0; CHALLENGE_LEN]);
        fill(&mut id);
        fill(&mut bytes);
        Self { id: id[0], bytes }
    }
}

/// Why an answer proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChapError {
    /// The name is not the one expected.
    #[error("the CHAP name is not the one expected")]
    Name,
    /// The hash is not the one the secret gives.
    #[error("the CHAP response does not match the secret")]
    Response,
    /// Our own challenge came back.
    #[error("the peer sent our own CHAP challenge back")]
    Reflected,
    /// The answer was made with the secret of the other direction.
    #[error("the peer uses the same CHAP secret in both directions")]
    SameSecret,
}

/// Our answer to the peer's challenge. `ours` is the challenge we sent, if we sent one: a peer that
/// sends it back wants us to compute its answer (RFC 7143, 9.2.1).
pub fn respond(
    algorithm: Algorithm,
    secret: &Secret,
    theirs: &Challenge,
    ours: Option<&Challenge>,
) -> Result<Vec<u8>, ChapError> {
    if ours.is_some_and(|ours| ours.bytes == theirs.bytes) {
        return Err(ChapError::Reflected);
    }
    Ok(algorithm.answer(secret, theirs))
}

/// Whether the peer's answer to `challenge` proves that it is `expected`. `other_way` is the secret
/// of the other direction, which must not serve in this one (RFC 7143, 9.2.1).
pub fn verify(
    algorithm: Algorithm,
    expected: &Credentials,
    challenge: &Challenge,
    (name, answer): (&str, &[u8]),
    other_way: Option<&Secret>,
) -> Result<(), ChapError> {
    let proves = |secret| bool::from(algorithm.answer(secret, challenge).ct_eq(answer));
    // Both are computed before either is looked at, so that time does not tell names from secrets.
    let named = bool::from(name.as_bytes().ct_eq(expected.name.as_bytes()));
    let proven = proves(&expected.secret);
    if other_way.is_some_and(proves) {
        return Err(ChapError::SameSecret);
    }
    match (named, proven) {
        (true, true) => Ok(()),
        (false, _) => Err(ChapError::Name),
        (true, false) => Err(ChapError::Response),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text).unwrap()
    }

    fn challenge(id: u8) -> Challenge {
        Challenge { id, bytes: vec![1, 2, 3, 4] }
    }

    fn alice() -> Credentials {
        Credentials { name: "alice".into(), secret: secret("correct horse") }
    }

    #[test]
    fn answers_are_those_of_other_implementations() {
        // printf '\007correct horse\001\002\003\004' | openssl dgst -ALGORITHM
        let expected = [
            (Algorithm::Md5, "ba7a21466bc38c30ee982cffd046614e"),
            (Algorithm::Sha1, "15f0927ef6f957312b6b56b72192adb0cc22df17"),
            (Algorithm::Sha256, "0ba133f7daf9042fcd570e6607817ce181e8d3cedf18f85516c3957d89f6ffa0"),
            (
                Algorithm::Sha3_256,
                "a520b2d58a893476234bac4bca5e33fb49c517608ad89ddefba586f051b66b25",
            ),
        ];
        for (algorithm, hex) in expected {
            let answer = respond(algorithm, &secret("correct horse"), &challenge(7), None).unwrap();
            assert_eq!(crate::iscsi::text::hex(&answer), format!("0x{hex}"));
        }
    }

    #[test]
    fn only_the_right_secret_and_name_prove() {
        for algorithm in Algorithm::ALL {
            let sent = challenge(9);
            let good = respond(algorithm, &secret("correct horse"), &sent, None).unwrap();
            let bad = respond(algorithm, &secret("wrong horse..."), &sent, None).unwrap();
            let check = |name, answer: &[u8], other: Option<&Secret>| {
                verify(algorithm, &alice(), &sent, (name, answer), other)
            };
            assert_eq!(check("alice", &good, None), Ok(()));
            assert_eq!(check("alice", &bad, None), Err(ChapError::Response));
            assert_eq!(check("alice", &good[1..], None), Err(ChapError::Response));
            assert_eq!(check("bob", &good, None), Err(ChapError::Name));
            let other = secret("wrong horse...");
            assert_eq!(check("alice", &bad, Some(&other)), Err(ChapError::SameSecret));
        }
    }

    #[test]
    fn a_reflected_challenge_is_not_answered() {
        let ours = challenge(1);
        let answer = respond(Algorithm::Md5, &secret("correct horse"), &challenge(2), Some(&ours));
        assert_eq!(answer, Err(ChapError::Reflected));
    }

    #[test]
    fn unsafe_secrets_are_refused() {
        assert_eq!(Secret::new("elevenbytes").err(), Some(SecretError::Length(11)));
        assert_eq!(Secret::new(vec![0; 256]).err(), Some(SecretError::Length(256)));
        let same = Account::mutual(alice(), Credentials { name: "target".into(), ..alice() });
        assert_eq!(same.err(), Some(SecretError::SameBothWays));
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert!(!format!("{:?}", alice()).contains("horse"));
    }

    #[test]
    fn a_challenge_is_made_of_what_fills_it() {
        let mut next = 0;
        let mut fill = |buffer: &mut [u8]| {
            buffer.iter_mut().for_each(|byte| {
                next += 1;
                *byte = next;
            });
        };
        let first = Challenge::fresh(&mut fill);
        assert_eq!((first.id, first.bytes.len()), (1, CHALLENGE_LEN));
        assert_ne!(first, Challenge::fresh(&mut fill));
    }
}
