//! Who is behind an initiator port, whatever the transport protocol.

use std::fmt;

use crate::identity::PublicKey;

/// The client that a port belongs to, as far as that was proven. Its sessions, its share of the limits and its
/// reservations belong to it: the name of a port is only claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientId {
    /// It has proven nothing, so that it is known by the name of its port.
    #[default]
    Unauthenticated,
    /// It knows the secret of this account, by CHAP.
    Account(String),
    /// It has the private key of this public one.
    Key(PublicKey),
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unauthenticated => f.write_str("unproven"),
            Self::Account(account) => write!(f, "chap:{account}"),
            Self::Key(key) => key.fmt(f),
        }
    }
}
