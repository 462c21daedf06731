//! The handshake: Noise IK, two messages (spec, 3).

use std::fmt;

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::invitation::InvitationSecret;
use super::schedule::Master;
use crate::identity::{Identity, KEY_LEN, PublicKey};
use crate::noise_resolver::Resolver;

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_SHA256";

const PROLOGUE: &[u8] = b"dev.longhaul.sealed-iscsi.1";

/// Message 1: the ephemeral key, the enciphered static key, the tag of an empty payload.
const FIRST_LEN: usize = 32 + (32 + 16) + 16;

/// Message 2: the ephemeral key and the tag of an empty payload.
const SECOND_LEN: usize = 32 + 16;

/// Random bytes for one handshake: its ephemeral key. It is wiped when dropped.
pub struct Ephemeral(Zeroizing<[u8; KEY_LEN]>);

impl Ephemeral {
    /// A fresh one; `fill` fills a buffer with unpredictable bytes.
    pub fn fresh(fill: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut bytes = Zeroizing::new([0; KEY_LEN]);
        fill(&mut *bytes);
        Self(bytes)
    }
}

impl fmt::Debug for Ephemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ephemeral(..)")
    }
}

/// Why a handshake leads nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Message 1 was not made for this target's key, or was changed.
    #[error("the handshake was not made for this target's key")]
    First,
    /// Message 2 was not made with the pinned key, or was changed.
    #[error("the target does not have the private key of the one that was pinned")]
    Second,
}

/// The initiator's side, waiting for message 2.
pub struct Initiating(Box<HandshakeState>);

impl Initiating {
    /// Begins a handshake with the target of this key: message 1.
    #[must_use]
    pub fn start(identity: &Identity, target: &PublicKey, own: Ephemeral) -> (Self, Vec<u8>) {
        let mut state = builder(identity, own)
            .remote_public_key(target.as_bytes())
            .and_then(Builder::build_initiator)
            .expect("the pattern has these keys");
        let mut message = vec![0; FIRST_LEN];
        let len = state.write_message(&[], &mut message).expect("the buffer has room for it");
        debug_assert_eq!(len, FIRST_LEN);
        (Self(Box::new(state)), message)
    }

    /// Takes message 2, which proves the target. The secret of an invitation goes into the keys.
    pub fn finish(
        self,
        message: &[u8],
        invitation: Option<&InvitationSecret>,
    ) -> Result<Master, HandshakeError> {
        let Self(mut state) = self;
        if message.len() != SECOND_LEN {
            return Err(HandshakeError::Second);
        }
        state.read_message(message, &mut []).map_err(|_| HandshakeError::Second)?;
        Ok(master(&mut state, invitation))
    }
}

/// The target's side: message 1 has told who is there.
pub struct Responding {
    state: Box<HandshakeState>,
    client: PublicKey,
}

impl Responding {
    /// Takes message 1.
    pub fn read(
        identity: &Identity,
        own: Ephemeral,
        message: &[u8],
    ) -> Result<Self, HandshakeError> {
        let mut state = builder(identity, own).build_responder().expect("the pattern has this key");
        if message.len() != FIRST_LEN {
            return Err(HandshakeError::First);
        }
        state.read_message(message, &mut []).map_err(|_| HandshakeError::First)?;
        let client = state.get_remote_static().and_then(|key| key.try_into().ok());
        let client = PublicKey::from_bytes(client.ok_or(HandshakeError::First)?);
        Ok(Self { state: Box::new(state), client })
    }

    /// The client this handshake names. It is there only once its proof has come: message 1 may be an
    /// old one.
    #[must_use]
    pub const fn client(&self) -> PublicKey {
        self.client
    }

    /// Message 2. The secret of an invitation goes into the keys, so that the proof shows that it is known.
    #[must_use]
    pub fn answer(self, invitation: Option<&InvitationSecret>) -> (Vec<u8>, Master) {
        let Self { mut state, .. } = self;
        let mut message = vec![0; SECOND_LEN];
        let len = state.write_message(&[], &mut message).expect("the buffer has room for it");
        debug_assert_eq!(len, SECOND_LEN);
        (message, master(&mut state, invitation))
    }
}

impl fmt::Debug for Initiating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Initiating(..)")
    }
}

impl fmt::Debug for Responding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Responding").field(&self.client).finish()
    }
}

fn builder(identity: &Identity, own: Ephemeral) -> Builder<'_> {
    let params: NoiseParams = PATTERN.parse().expect("a known pattern");
    Builder::with_resolver(params, Box::new(Resolver(own.0)))
        .local_private_key(identity.secret())
        .and_then(|builder| builder.prologue(PROLOGUE))
        .expect("each is set once")
}

/// The secrets of a finished handshake. Its hash alone would not do: whoever watches can compute it.
fn master(state: &mut HandshakeState, invitation: Option<&InvitationSecret>) -> Master {
    let (first, second) = state.dangerously_get_raw_split();
    let (first, second) = (Zeroizing::new(first), Zeroizing::new(second));
    Master::extract(state.get_handshake_hash(), &first, &second, invitation)
}
