//! Noise: set-up by XXpsk0 and re-authentication by KKpsk2 (spec, 6.3 and 10).

use core::fmt;

use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::config::Fill;
use super::keys::Root;
use crate::identity::{Identity, KEY_LEN, PublicKey};

const SETUP: &str = "Noise_XXpsk0_25519_ChaChaPoly_SHA256";
const NEXT: &str = "Noise_KKpsk2_25519_ChaChaPoly_SHA256";

/// The longest message that is read or written: one packet.
const MESSAGE_MAX: usize = 1200;

/// A handshake at work.
pub(super) struct Noise(Box<HandshakeState>);

impl fmt::Debug for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Noise(..)")
    }
}

/// A message that was not made with the right keys, or was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// Whose end of a handshake this is, in Noise's sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Initiator,
    Responder,
}

impl Noise {
    /// Set-up, by a client with this connection id.
    pub(super) fn setup(
        part: Part,
        identity: &Identity,
        psk: &[u8; 32],
        cid: u32,
        fill: &mut Fill,
    ) -> Self {
        let prologue = [b"longhaul hyperscsi 2".as_slice(), &cid.to_be_bytes()].concat();
        let resolver = Box::new(Resolver(fresh(fill)));
        let builder = Builder::with_resolver(params(SETUP), resolver)
            .local_private_key(identity.secret())
            .and_then(|builder| builder.prologue(&prologue))
            .and_then(|builder| builder.psk(0, psk))
            .expect("each is set once");
        Self::build(part, builder)
    }

    /// Re-authentication, from the current epoch to the next.
    pub(super) fn next(
        part: Part,
        identity: &Identity,
        peer: &PublicKey,
        root: &Root,
        fill: &mut Fill,
    ) -> Self {
        let prologue = [b"longhaul hyperscsi 2: next".as_slice(), &root.hash].concat();
        let psk = root.resume();
        let resolver = Box::new(Resolver(fresh(fill)));
        let builder = Builder::with_resolver(params(NEXT), resolver)
            .local_private_key(identity.secret())
            .and_then(|builder| builder.remote_public_key(peer.as_bytes()))
            .and_then(|builder| builder.prologue(&prologue))
            .and_then(|builder| builder.psk(2, &psk))
            .expect("each is set once");
        Self::build(part, builder)
    }

    fn build(part: Part, builder: Builder<'_>) -> Self {
        let state = match part {
            Part::Initiator => builder.build_initiator(),
            Part::Responder => builder.build_responder(),
        };
        Self(Box::new(state.expect("the pattern has these keys")))
    }

    /// The next message of this end.
    pub(super) fn write(&mut self, payload: &[u8]) -> Vec<u8> {
        let mut message = vec![0; MESSAGE_MAX];
        let len = self.0.write_message(payload, &mut message).expect("the payload is short");
        message.truncate(len);
        message
    }

    /// Takes the next message of the other end; its payload.
    pub(super) fn read(&mut self, message: &[u8]) -> Result<Vec<u8>, Refused> {
        let mut payload = vec![0; MESSAGE_MAX];
        if message.len() > MESSAGE_MAX {
            return Err(Refused);
        }
        let len = self.0.read_message(message, &mut payload).map_err(|_| Refused)?;
        payload.truncate(len);
        Ok(payload)
    }

    /// The key that the other end has proven, or is about to prove.
    pub(super) fn peer(&self) -> Option<PublicKey> {
        self.0.get_remote_static()?.try_into().ok().map(PublicKey::from_bytes)
    }

    /// The secrets of a finished handshake.
    pub(super) fn finish(mut self) -> Root {
        let (first, second) = self.0.dangerously_get_raw_split();
        let (first, second) = (Zeroizing::new(first), Zeroizing::new(second));
        let hash = self.0.get_handshake_hash().try_into().expect("SHA-256 has 32 bytes");
        Root::extract(hash, &first, &second)
    }
}

fn params(pattern: &str) -> NoiseParams {
    pattern.parse().expect("a known pattern")
}

fn fresh(fill: &mut Fill) -> Zeroizing<[u8; KEY_LEN]> {
    let mut bytes = Zeroizing::new([0; KEY_LEN]);
    fill(&mut *bytes);
    bytes
}

/// The usual primitives, with randomness that is an argument.
struct Resolver(Zeroizing<[u8; KEY_LEN]>);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(SingleUse(Some(self.0.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Gives its bytes once; a handshake draws one key, and a second use of the bytes would betray it.
struct SingleUse(Option<Zeroizing<[u8; KEY_LEN]>>);

impl Random for SingleUse {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        let bytes = self.0.take().filter(|bytes| bytes.len() == dest.len());
        dest.copy_from_slice(&*bytes.ok_or(snow::Error::Rng)?);
        Ok(())
    }
}
