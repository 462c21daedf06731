//! The secret of an invitation, and the name by which a login speaks of it (spec, 7).

use std::fmt;

use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

/// Bytes of the secret, and of the ID.
pub const INVITATION_LEN: usize = 16;

const ID: &[u8] = b"longhaul sealed-iscsi 1: invitation";

/// What a client must know to be listed. It is wiped when dropped and never printed.
#[derive(Clone)]
pub struct InvitationSecret(Zeroizing<[u8; INVITATION_LEN]>);

/// The public name of an invitation: it can be computed from the secret, and the secret not from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InvitationId([u8; INVITATION_LEN]);

impl InvitationSecret {
    /// A fresh one; `fill` fills a buffer with unpredictable bytes.
    pub fn fresh(fill: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut bytes = Zeroizing::new([0; INVITATION_LEN]);
        fill(&mut *bytes);
        Self(bytes)
    }

    /// The secret of these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; INVITATION_LEN]) -> Self {
        Self(Zeroizing::new(*bytes))
    }

    /// Its bytes.
    #[must_use]
    pub fn expose(&self) -> &[u8; INVITATION_LEN] {
        &self.0
    }

    /// Its public name.
    #[must_use]
    pub fn id(&self) -> InvitationId {
        let (_, hkdf) = Hkdf::<Sha256>::extract(None, &*self.0);
        let mut id = [0; INVITATION_LEN];
        hkdf.expand(ID, &mut id).expect("one block can always be had");
        InvitationId(id)
    }
}

impl fmt::Debug for InvitationSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InvitationSecret(..)")
    }
}

impl InvitationId {
    /// The ID of these bytes, if they are as many as an ID has.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; INVITATION_LEN] {
        &self.0
    }
}
