//! Why a target refuses, and what it says of that.

use super::super::LoginStatus;
use crate::identity::PublicKey;
use crate::iscsi::chap::ChapError;
use crate::iscsi::keys::Key;
use crate::iscsi::name::{IscsiName, NameError};
use crate::iscsi::negotiation::Violation;
use crate::iscsi::sealed::{HandshakeError, Protection};
use crate::iscsi::text::TextError;

/// Why a login is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The text cannot be read.
    #[error("malformed text: {0}")]
    Text(#[from] TextError),
    /// A key broke a rule.
    #[error("negotiation failed: {0}")]
    Violation(#[from] Violation),
    /// A name is none.
    #[error("{0}")]
    Name(#[from] NameError),
    /// CHAP proved nothing.
    #[error("{0}")]
    Chap(#[from] ChapError),
    /// A handshake that was not made for this target.
    #[error("{0}")]
    Seal(#[from] HandshakeError),
    /// A client nobody has listed.
    #[error("{initiator} has the key {key}, which is not among the clients' keys")]
    UnknownKey {
        /// Who it says it is.
        initiator: IscsiName,
        /// Its key.
        key: PublicKey,
    },
    /// A client that comes with an invitation which this target has not, or not any more.
    #[error(
        "{initiator}, with the key {key}, has an invitation that is unknown, used, revoked or expired"
    )]
    Invitation {
        /// Who it says it is.
        initiator: IscsiName,
        /// Its key.
        key: PublicKey,
    },
    /// Someone else goes on with a login than began it, or what was sent is not what came.
    #[error(
        "the proof does not match: the login was changed on its way, or an old one is repeated"
    )]
    Proof,
    /// The session would be sealed worse than the volume or the portal demands.
    #[error(
        "{} is demanded here and the session has {}",
        .demanded.name(),
        .offered.map_or("no seal", Protection::name)
    )]
    Protection {
        /// What the session would have.
        offered: Option<Protection>,
        /// What it must have.
        demanded: Protection,
    },
    /// What a step of authentication needs is not there.
    #[error("{0} is missing")]
    MissingKey(&'static str),
    /// What a step of authentication needs cannot be read.
    #[error("{0} is malformed")]
    MalformedKey(&'static str),
    /// Nothing was left to prove.
    #[error("a key came after the end of authentication")]
    KeyTooLate,
    /// A key of authentication came again (RFC 7143, 6.3).
    #[error("{0} was sent twice")]
    Repeated(&'static str),
    /// No authentication method or algorithm in common, or none was tried.
    #[error("no authentication that this target accepts was offered")]
    NoMethod,
    /// A key every login must have.
    #[error("{0} is missing")]
    Missing(Key),
    /// A session type that does not exist.
    #[error("unknown session type")]
    SessionType,
    /// A version that does not exist.
    #[error("unsupported version")]
    Version,
    /// ISID, TSIH, CID, task tag or CmdSN changed under way.
    #[error("the identity of the login changed under way")]
    Changed,
    /// Stages that do not follow one another.
    #[error("the stages do not follow one another")]
    Stage,
    /// It has too many requests, or too many keys nobody knows.
    #[error("the login is too long")]
    TooLong,
    /// There is no such target.
    #[error("no such target: {0}")]
    NotFound(IscsiName),
    /// The initiator may not use it.
    #[error("{0} may not log in here")]
    NotAllowed(IscsiName),
    /// A client that is known, and may do nothing for now.
    #[error("{0} is paused")]
    Paused(IscsiName),
    /// The session was not admitted.
    #[error("not admitted: {0}")]
    NotAdmitted(LoginStatus),
}

impl Reason {
    /// What the initiator is told (RFC 7143, 11.13.5). A step of authentication that is not as it should be is
    /// an error of form; what was proven by it, and is wrong, is not (9.2).
    #[must_use]
    pub const fn status(&self) -> LoginStatus {
        match self {
            Self::Text(_)
            | Self::Violation(_)
            | Self::Name(_)
            | Self::MalformedKey(_)
            | Self::KeyTooLate
            | Self::Repeated(_)
            | Self::Changed
            | Self::Stage
            | Self::TooLong => LoginStatus::INITIATOR_ERROR,
            Self::Chap(_)
            | Self::NoMethod
            | Self::Seal(_)
            | Self::UnknownKey { .. }
            | Self::Invitation { .. }
            | Self::Proof
            | Self::Protection { offered: None, .. } => LoginStatus::AUTHENTICATION_FAILURE,
            Self::Protection { .. } => LoginStatus::AUTHORIZATION_FAILURE,
            Self::Missing(_) | Self::MissingKey(_) => LoginStatus::MISSING_PARAMETER,
            Self::SessionType => LoginStatus::SESSION_TYPE_NOT_SUPPORTED,
            Self::Version => LoginStatus::UNSUPPORTED_VERSION,
            Self::NotFound(_) => LoginStatus::NOT_FOUND,
            Self::NotAllowed(_) => LoginStatus::AUTHORIZATION_FAILURE,
            // It may be tried again later.
            Self::Paused(_) => LoginStatus::SERVICE_UNAVAILABLE,
            Self::NotAdmitted(status) => *status,
        }
    }
}
