//! Why a connection is over.

/// The reason of a server that has paused its client (spec, 12).
const PAUSED: u8 = 5;

/// Why a connection is over, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// This side has ended it.
    #[error("the connection was closed here")]
    Closed,
    /// The peer has ended it (spec, 12).
    #[error("the peer closed the connection{}", explained(*.0))]
    ByPeer(u8),
    /// Nothing authentic has come for too long.
    #[error("nothing came from the peer for too long")]
    Silent,
    /// The handshake got no answer: wrong address or site key, or the server does not know this client.
    #[error("no answer: no server there, another site key, or this client is not known there")]
    NoAnswer,
    /// The server has proven another key than the pinned one.
    #[error("the server has another key than the pinned one")]
    WrongServer,
    /// The server has no cipher that this client may use.
    #[error("the server has no cipher that this client may use")]
    NoCipher,
    /// The server has lost the state of the connection (spec, 13).
    #[error("the server does not know the connection any more")]
    Reset,
    /// A newer connection of the same client has replaced it.
    #[error("a newer connection of this client replaced it")]
    Replaced,
    /// The peer has broken a rule of the protocol.
    #[error("the peer violated the protocol: {0}")]
    Violation(&'static str),
    /// What the client may use is not what it was told of any more.
    #[error("what this client may use has changed")]
    Changed,
    /// The client has as many connections as it may have.
    #[error("this client has as many sessions as it may have")]
    Full,
    /// The client may do nothing for now.
    #[error("this client is paused")]
    Paused,
    /// The packet numbers of a key are used up.
    #[error("the key was used for too many packets")]
    KeyWornOut,
}

/// What a reason means that the peer has told.
const fn explained(reason: u8) -> &'static str {
    match reason {
        1 => ": a newer connection of this client replaced it",
        2 => ": a packet from here violated the protocol",
        3 => ": what this client may use has changed",
        4 => ": this client has as many sessions as it may have",
        PAUSED => ": this client is paused there",
        _ => "",
    }
}

impl Ended {
    /// Whether the server has paused this client: a later try may succeed.
    #[must_use]
    pub const fn is_pause(self) -> bool {
        matches!(self, Self::ByPeer(PAUSED))
    }

    /// Whether a client is told that was not accepted: one that could have been.
    pub(super) const fn is_told_before_acceptance(self) -> bool {
        matches!(self, Self::Full | Self::Paused)
    }

    /// The reason that a peer is told (spec, 12 and 15); nothing where it knows, or where nobody is there.
    pub(super) const fn code(self) -> Option<u8> {
        match self {
            Self::Closed => Some(0),
            Self::Replaced => Some(1),
            Self::Violation(_) => Some(2),
            Self::Changed => Some(3),
            Self::Full => Some(4),
            Self::Paused => Some(PAUSED),
            // The key may not be used once more.
            Self::KeyWornOut
            | Self::ByPeer(_)
            | Self::Silent
            | Self::NoAnswer
            | Self::WrongServer
            | Self::NoCipher
            | Self::Reset => None,
        }
    }
}
