//! What goes wrong between here and a HyperSCSI server.

use std::io;
use std::time::Duration;

use host::link;
use proto::hyperscsi::Ended;

use super::Server;

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
pub enum Loss {
    /// The connection is over.
    #[error("{0}")]
    Ended(Ended),
    /// The link broke.
    #[error("the link to {0} broke")]
    Link(Server, #[source] io::Error),
    /// Commands get no answer.
    #[error(
        "{server} lives, but nothing has become of commands that it has for {within:?}: the first of {count} is \
         {operation:#04x}"
    )]
    Stalled {
        /// Who does not answer.
        server: Server,
        /// The operation code of the first.
        operation: u8,
        /// How many there are at their unit.
        count: usize,
        /// For how long.
        within: Duration,
    },
    /// It was given up by us at once, with all that was under way.
    #[error("the session was given up")]
    Abandoned,
    /// We have disconnected.
    #[error("disconnected")]
    Disconnected,
    /// The task that drives it has panicked: what it had under way may still be carried out.
    #[error("an internal error: the session has broken down")]
    Broken,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The name of the server has no address.
    #[error("cannot find the address of {0}")]
    Lookup(Server, #[source] io::Error),
    /// There is no socket.
    #[error("cannot open a socket to {0}")]
    Socket(Server, #[source] io::Error),
    /// The interface cannot be used.
    #[error(transparent)]
    Interface(#[from] link::OpenError),
    /// Nobody answers.
    #[error(
        "{0} does not answer within {1:?}: either nobody listens there, or it does not know the site key or the \
         identity of this machine, of which it says nothing to strangers"
    )]
    Silent(Server, Duration),
    /// The connection was not made.
    #[error("no session with {0}: {1}")]
    Refused(Server, std::sync::Arc<Loss>),
    /// There is no volume of this name, for this client.
    #[error("{server} has no volume {volume} for this client; it has {there}")]
    NoVolume {
        /// Who was asked.
        server: Server,
        /// What for.
        volume: String,
        /// What there is.
        there: String,
    },
}

impl SessionError {
    /// Whether the server has paused this client.
    #[must_use]
    pub fn is_pause(&self) -> bool {
        match self {
            Self::Refused(_, why) => matches!(**why, Loss::Ended(ended) if ended.is_pause()),
            _ => false,
        }
    }
}
