//! The primitives of Noise handshakes, of both transports, with randomness that is an argument.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use zeroize::Zeroizing;

use crate::identity::KEY_LEN;

/// The usual primitives; these bytes are the ephemeral key.
pub(crate) struct Resolver(pub(crate) Zeroizing<[u8; KEY_LEN]>);

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
