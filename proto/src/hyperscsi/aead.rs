//! The ciphers of packets, and the one that two ends choose (spec, 5.6).

use crate::cipher::NewCipher;

/// An algorithm of authenticated encryption (RFC 5116) with keys of 32 bytes, nonces of 12 and tags of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aead {
    /// AES-256-GCM: the fastest where the processor has AES instructions.
    Aes256Gcm,
    /// ChaCha20-Poly1305 (RFC 8439): fast without them.
    ChaCha20Poly1305,
}

impl Aead {
    /// As it stands in the option.
    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Aes256Gcm => 1,
            Self::ChaCha20Poly1305 => 2,
        }
    }

    /// The one of a number; none if it is not known.
    pub(super) const fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Aes256Gcm),
            2 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }
}

/// The ciphers of one end, the preferred one first.
pub type Ciphers = &'static [(Aead, NewCipher)];

/// What an end has that announces nothing.
pub(super) const UNANNOUNCED: &[Aead] = &[Aead::Aes256Gcm];

/// The cipher of a connection: the first of the server's that the client has too. A client that begins with ChaCha20-Poly1305
/// has no AES instructions, and would lose more by AES than the server does by this.
pub(super) fn choose(server: &[Aead], client: &[Aead]) -> Option<Aead> {
    let wanted = client.first().filter(|first| **first == Aead::ChaCha20Poly1305);
    let has = |list: &[Aead], one: &&Aead| list.contains(*one);
    let wanted = wanted.filter(|one| has(server, one));
    wanted.or_else(|| server.iter().find(|one| has(client, one))).copied()
}

#[cfg(test)]
mod tests {
    use super::Aead::{Aes256Gcm as Aes, ChaCha20Poly1305 as ChaCha};
    use super::*;

    /// Spec, 5.6.
    #[test]
    fn cipher_is_the_servers_choice_unless_the_client_has_no_aes() {
        for (server, client, chosen) in [
            (&[Aes, ChaCha][..], &[Aes, ChaCha][..], Some(Aes)),
            (&[ChaCha, Aes], &[Aes, ChaCha], Some(ChaCha)),
            (&[Aes, ChaCha], &[ChaCha, Aes], Some(ChaCha)),
            (&[Aes], &[ChaCha, Aes], Some(Aes)),
            (&[ChaCha, Aes], &[Aes], Some(Aes)),
            (&[ChaCha], UNANNOUNCED, None),
            (UNANNOUNCED, &[ChaCha], None),
            (&[], &[Aes], None),
        ] {
            assert_eq!(choose(server, client), chosen, "{server:?} {client:?}");
        }
    }
}
