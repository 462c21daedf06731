//! What a login with a proof leads to: a connection whose two directions are sealed.

use super::{Direction, Limits, Master, NewCipher, Opener, Protection, Sealer, Transcripts};
use crate::identity::Identity;
use crate::iscsi::role::Role;

/// What a node needs for sealed sessions, whichever side it is on.
#[derive(Clone, Debug)]
pub struct Sealing {
    /// Who it is.
    pub identity: Identity,
    /// Makes its ciphers.
    pub new_cipher: NewCipher,
    /// When its keys change.
    pub limits: Limits,
}

/// Both directions of one connection, from the end of its login.
#[derive(Debug)]
pub struct Seals {
    /// For what this side sends.
    pub sealer: Sealer,
    /// For what the other side sends.
    pub opener: Opener,
}

impl Seals {
    pub(crate) fn new(
        role: Role,
        sealing: &Sealing,
        master: &Master,
        (protection, cid): (Protection, u16),
        login: &Transcripts,
    ) -> Self {
        let (ours, theirs) = match role {
            Role::Initiator => (Direction::FromInitiator, Direction::FromTarget),
            Role::Target => (Direction::FromTarget, Direction::FromInitiator),
        };
        let secret = |direction| master.traffic(direction, protection, cid, login);
        let Sealing { new_cipher, limits, .. } = *sealing;
        Self {
            sealer: Sealer::new(ours, protection, secret(ours), new_cipher, limits),
            opener: Opener::new(theirs, protection, secret(theirs), new_cipher, limits),
        }
    }
}
