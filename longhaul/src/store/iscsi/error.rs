//! Why there is no session, and no volume behind one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use proto::iscsi::initiator::Fault;
use proto::iscsi::login::initiator::LoginError;

use super::session::Loss;
use crate::store::scsi::OpenError;
use crate::uri::Host;

/// Why a volume behind an iSCSI target is not open.
pub type ConnectError = OpenError<SessionError>;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Nobody answers there.
    #[error("cannot connect to {0}")]
    Connect(Host, #[source] io::Error),
    /// It takes too long to answer.
    #[error("{0} does not answer within {1:?}")]
    Timeout(Host, Duration),
    /// It takes the connection, and the login does not come to an end.
    #[error("{0} takes the connection, but does not answer the login within {1:?}")]
    Silent(Host, Duration),
    /// The session did not come about, or ended.
    #[error("no session with {0}")]
    Session(Host, #[source] Arc<Loss>),
    /// It sends us from one place to the next.
    #[error("{0} redirects us without end")]
    Redirections(Host),
    /// It sends us out of a tunnel, or to this machine.
    #[error(
        "{portal} redirects us to {to}, which is not followed: one of the two is an address of this machine"
    )]
    Tunnel {
        /// Who says so.
        portal: Host,
        /// Where to.
        to: Host,
    },
    /// It sends us where nothing can be.
    #[error("{portal} redirects us to {to:?}, which is no address")]
    Redirection {
        /// Who says so.
        portal: Host,
        /// Where to.
        to: String,
    },
    /// No randomness for challenges.
    #[error("the system gives no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// What was under way when the connection was lost may still be carried out behind another portal group.
    #[error("{0} is not of the portal group where what was under way may still be carried out")]
    OtherGroup(Host),
    /// What was under way when the connection was lost may still be carried out: the target does not know sessions by
    /// their names, so that none ends another.
    #[error(
        "a write was under way when the connection was lost, and {0} does not end the session it belonged to: it answers \
         logins with another ISID or without a TSIH"
    )]
    NotReplaced(Host),
    /// The session that is to end what an earlier one had under way is none that could.
    #[error(
        "{0} answers with another ISID or without a TSIH, so that nothing ends what was under way"
    )]
    NotReplacing(Host),
    /// The list of targets cannot be read.
    #[error("{0} sent a list of targets that cannot be read")]
    List(Host),
}

impl SessionError {
    /// Why the login was refused, if it was.
    #[must_use]
    pub fn login(&self) -> Option<&LoginError> {
        match self {
            Self::Session(_, loss) => match &**loss {
                Loss::Fault(Fault::Login(error)) => Some(error),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether somebody took the connection and said nothing to the login.
    #[must_use]
    pub fn is_login_timeout(&self) -> bool {
        matches!(self, Self::Silent(..))
    }
}

impl ConnectError {
    /// Why the login was refused, if it was.
    #[must_use]
    pub fn login(&self) -> Option<&LoginError> {
        match self {
            Self::Session(why) => why.login(),
            _ => None,
        }
    }
}
