//! An X25519 key pair, by which one side proves who it is, and how its halves are written (docs/spec/sealed-iscsi.md, 2).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use sha2::{Digest as _, Sha256};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};
use zeroize::{Zeroize as _, Zeroizing};

/// The length of each half, in bytes (Curve25519).
pub const KEY_LEN: usize = 32;

const PUBLIC_PREFIX: &str = "lhpub1-";
const SECRET_PREFIX: &str = "lhsec1-";

/// Bytes of the check that finds slips of the hand.
const CHECK_LEN: usize = 4;

/// What a text is instead of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// It begins otherwise.
    #[error("it does not begin with {0}")]
    Prefix(&'static str),
    /// It is not base64, or of another length.
    #[error("it is too short, too long, or has characters no key has")]
    Form,
    /// The check does not match.
    #[error("it has been mistyped: its check does not match")]
    Check,
    /// A private key where a public one belongs, which is better not passed on.
    #[error("it is a private key, where the public one (lhpub1-...) belongs")]
    Private,
}

/// A public key: how others know someone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_LEN]);

impl PublicKey {
    /// The key of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write(PUBLIC_PREFIX, &self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        if text.starts_with(SECRET_PREFIX) {
            return Err(KeyTextError::Private);
        }
        read(PUBLIC_PREFIX, text).map(|bytes| Self(*bytes))
    }
}

/// A private key with its public one. It is in memory once, whatever is cloned, wiped when the last is dropped, and never
/// printed by accident.
#[derive(Clone)]
pub struct Identity {
    secret: Arc<Zeroizing<[u8; KEY_LEN]>>,
    public: PublicKey,
}

impl Identity {
    /// A new identity; `fill` fills a buffer with unpredictable bytes.
    pub fn fresh(fill: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut secret = Zeroizing::new([0; KEY_LEN]);
        fill(&mut *secret);
        Self::from_secret(secret)
    }

    /// Reads the private key as [`to_secret_text`](Self::to_secret_text) writes it.
    pub fn from_secret_text(text: &str) -> Result<Self, KeyTextError> {
        read(SECRET_PREFIX, text).map(Self::from_secret)
    }

    fn from_secret(secret: Zeroizing<[u8; KEY_LEN]>) -> Self {
        let public = public_of(&secret);
        Self { secret: Arc::new(secret), public }
    }

    /// Gives the memory of the private key to `keep`, which can keep it from being paged out.
    pub fn keep_with(&self, keep: impl FnOnce(&[u8])) {
        keep(&**self.secret);
    }

    /// The private key as text, for a file only its owner reads.
    #[must_use]
    pub fn to_secret_text(&self) -> Zeroizing<String> {
        Zeroizing::new(write(SECRET_PREFIX, &self.secret))
    }

    /// The public key.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    pub(crate) fn secret(&self) -> &[u8; KEY_LEN] {
        &self.secret
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.public).finish()
    }
}

fn public_of(secret: &[u8; KEY_LEN]) -> PublicKey {
    let mut dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("X25519 is built in");
    dh.set(secret);
    let mut public = [0; KEY_LEN];
    public.copy_from_slice(dh.pubkey());
    PublicKey(public)
}

fn check(prefix: &str, key: &[u8]) -> [u8; CHECK_LEN] {
    let digest = Sha256::new().chain_update(prefix).chain_update(key).finalize();
    std::array::from_fn(|i| digest[i])
}

fn write(prefix: &str, key: &[u8; KEY_LEN]) -> String {
    let mut bytes = Zeroizing::new([0; KEY_LEN + CHECK_LEN]);
    bytes[..KEY_LEN].copy_from_slice(key);
    bytes[KEY_LEN..].copy_from_slice(&check(prefix, key));
    // Its full length at once, so that no part of a secret is left behind by growing.
    let mut text = String::with_capacity(prefix.len() + 2 * bytes.len());
    text.push_str(prefix);
    BASE64.encode_string(bytes.as_slice(), &mut text);
    text
}

fn read(prefix: &'static str, text: &str) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyTextError> {
    let body = text.trim().strip_prefix(prefix).ok_or(KeyTextError::Prefix(prefix))?;
    let mut bytes = BASE64.decode(body).map_err(|_| KeyTextError::Form)?;
    let key = match bytes.split_first_chunk::<KEY_LEN>() {
        Some((key, tail)) if tail.len() == CHECK_LEN => {
            let intact = tail == check(prefix, key);
            if intact { Ok(Zeroizing::new(*key)) } else { Err(KeyTextError::Check) }
        }
        _ => Err(KeyTextError::Form),
    };
    bytes.zeroize();
    key
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_written_and_read() {
        let identity = Identity::fresh(&mut |buffer| buffer.fill(1));
        let text = identity.public().to_string();
        assert_eq!(text.len(), 7 + 48);
        assert_eq!(text.parse(), Ok(identity.public()));
        assert_eq!(format!(" {text}\n").parse(), Ok(identity.public()));
        let again = Identity::from_secret_text(&identity.to_secret_text()).unwrap();
        assert_eq!(again.public(), identity.public());

        let parse = |text: &str| text.parse::<PublicKey>().unwrap_err();
        assert_eq!(parse(&identity.to_secret_text()), KeyTextError::Private);
        assert_eq!(parse("lhpub2-AAAA"), KeyTextError::Prefix("lhpub1-"));
        assert_eq!(parse("lhpub1-AAAA"), KeyTextError::Form);
        assert_eq!(parse(&format!("{text}A")), KeyTextError::Form);
        let mistyped: String = text
            .char_indices()
            .map(|(at, c)| if at == 20 { if c == 'A' { 'B' } else { 'A' } } else { c })
            .collect();
        assert_eq!(parse(&mistyped), KeyTextError::Check);
        assert_eq!(Identity::from_secret_text(&text).err(), Some(KeyTextError::Prefix("lhsec1-")));
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_reader_of_keys(text in "(lhpub1-)?[A-Za-z0-9_-]{0,60}") {
            if let Ok(key) = text.parse::<PublicKey>() {
                prop_assert_eq!(key.to_string(), text);
            }
        }
    }
}
