//! Noise: set-up by XXpsk0 and re-authentication by KKpsk2 (spec, 6.3 and 10).

use core::fmt;

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::config::Fill;
use super::keys::Root;
use crate::identity::{Identity, KEY_LEN, PublicKey};
use crate::noise_resolver::Resolver;

const SETUP: &str = "Noise_XXpsk0_25519_ChaChaPoly_SHA256";
const NEXT: &str = "Noise_KKpsk2_25519_ChaChaPoly_SHA256";

/// The longest message that is read or written: one packet.
const MESSAGE_MAX: usize = 1200;

/// A handshake at work.
pub(super) struct Noise {
    state: Box<HandshakeState>,
    /// Makes its state as it was at the beginning.
    build: Box<dyn Fn() -> Box<HandshakeState> + Send>,
    /// What has been written and read since.
    done: Vec<Step>,
    /// A message was refused, which leaves a state that takes the right one no more.
    is_spoilt: bool,
}

enum Step {
    Wrote(Vec<u8>),
    Read(Vec<u8>),
}

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
        let (secret, psk) = (Zeroizing::new(*identity.secret()), Zeroizing::new(*psk));
        let random = fresh(fill);
        Self::new(move || {
            let resolver = Box::new(Resolver(random.clone()));
            let builder = Builder::with_resolver(params(SETUP), resolver)
                .local_private_key(&*secret)
                .and_then(|builder| builder.prologue(&prologue))
                .and_then(|builder| builder.psk(0, &psk))
                .expect("each is set once");
            build(part, builder)
        })
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
        let (secret, psk) = (Zeroizing::new(*identity.secret()), root.resume());
        let (random, peer) = (fresh(fill), *peer);
        Self::new(move || {
            let resolver = Box::new(Resolver(random.clone()));
            let builder = Builder::with_resolver(params(NEXT), resolver)
                .local_private_key(&*secret)
                .and_then(|builder| builder.remote_public_key(peer.as_bytes()))
                .and_then(|builder| builder.prologue(&prologue))
                .and_then(|builder| builder.psk(2, &psk))
                .expect("each is set once");
            build(part, builder)
        })
    }

    fn new(build: impl Fn() -> Box<HandshakeState> + Send + 'static) -> Self {
        let (state, build) = (build(), Box::new(build));
        Self { state, build, done: Vec::new(), is_spoilt: false }
    }

    /// The next message of this end.
    pub(super) fn write(&mut self, payload: &[u8]) -> Vec<u8> {
        self.mend();
        let message = write(&mut self.state, payload);
        self.done.push(Step::Wrote(payload.to_vec()));
        message
    }

    /// Takes the next message of the other end; its payload. One that is refused changes nothing.
    pub(super) fn read(&mut self, message: &[u8]) -> Result<Vec<u8>, Refused> {
        if message.len() > MESSAGE_MAX {
            return Err(Refused);
        }
        self.mend();
        let payload = read(&mut self.state, message);
        self.is_spoilt = payload.is_err();
        if payload.is_ok() {
            self.done.push(Step::Read(message.to_vec()));
        }
        payload
    }

    /// Brings a state that a refused message has spoilt to what it was: the library puts its hashes back, not its key.
    fn mend(&mut self) {
        if !core::mem::take(&mut self.is_spoilt) {
            return;
        }
        self.state = (self.build)();
        for step in &self.done {
            match step {
                Step::Wrote(payload) => drop(write(&mut self.state, payload)),
                Step::Read(message) => drop(read(&mut self.state, message)),
            }
        }
    }

    /// The key that the other end has proven, or is about to prove.
    pub(super) fn peer(&self) -> Option<PublicKey> {
        self.state.get_remote_static()?.try_into().ok().map(PublicKey::from_bytes)
    }

    /// The secrets of a finished handshake.
    pub(super) fn finish(mut self) -> Root {
        let (first, second) = self.state.dangerously_get_raw_split();
        let (first, second) = (Zeroizing::new(first), Zeroizing::new(second));
        let hash = self.state.get_handshake_hash().try_into().expect("SHA-256 has 32 bytes");
        Root::extract(hash, &first, &second)
    }
}

fn build(part: Part, builder: Builder<'_>) -> Box<HandshakeState> {
    let state = match part {
        Part::Initiator => builder.build_initiator(),
        Part::Responder => builder.build_responder(),
    };
    Box::new(state.expect("the pattern has these keys"))
}

fn write(state: &mut HandshakeState, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0; MESSAGE_MAX];
    let len = state.write_message(payload, &mut message).expect("the payload is short");
    message.truncate(len);
    message
}

fn read(state: &mut HandshakeState, message: &[u8]) -> Result<Vec<u8>, Refused> {
    let mut payload = vec![0; MESSAGE_MAX];
    let len = state.read_message(message, &mut payload).map_err(|_| Refused)?;
    payload.truncate(len);
    Ok(payload)
}

fn params(pattern: &str) -> NoiseParams {
    pattern.parse().expect("a known pattern")
}

fn fresh(fill: &mut Fill) -> Zeroizing<[u8; KEY_LEN]> {
    let mut bytes = Zeroizing::new([0; KEY_LEN]);
    fill(&mut *bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(byte: u8) -> Fill {
        Box::new(move |buffer| buffer.fill(byte))
    }

    fn identity(byte: u8) -> Identity {
        Identity::fresh(&mut |buffer| buffer.fill(byte))
    }

    /// Each message comes with every one of its bytes changed first, then cut, then as it is.
    fn disturbed(messages: usize, mut initiator: Noise, mut responder: Noise) {
        for number in 0..messages {
            let (from, to) = match number % 2 {
                0 => (&mut initiator, &mut responder),
                _ => (&mut responder, &mut initiator),
            };
            let message = from.write(b"payload");
            for at in 0..message.len() {
                let mut changed = message.clone();
                changed[at] ^= 1;
                assert_eq!(to.read(&changed), Err(Refused), "byte {at} of message {number}");
            }
            assert_eq!(to.read(&message[..message.len() - 1]), Err(Refused));
            assert_eq!(to.read(&message).as_deref(), Ok(&b"payload"[..]), "message {number}");
        }
        let (initiator, responder) = (initiator.finish(), responder.finish());
        assert_eq!(initiator.hash, responder.hash);
        assert_eq!(initiator.resume(), responder.resume());
    }

    #[test]
    fn message_that_was_refused_changes_nothing() {
        let setup = |part, key| Noise::setup(part, &identity(key), &[3; 32], 7, &mut fill(key));
        disturbed(3, setup(Part::Initiator, 1), setup(Part::Responder, 2));
        let root = || Root::extract([1; 32], &[2; 32], &[3; 32]);
        let next = |part, key: u8, peer| {
            let peer = identity(peer).public();
            Noise::next(part, &identity(key), &peer, &root(), &mut fill(key + 10))
        };
        disturbed(2, next(Part::Initiator, 1, 2), next(Part::Responder, 2, 1));
    }
}
