//! What ends a session, and what ends a command without a status, sorted by who is to blame.

use core::time::Duration;

use crate::iscsi::header::{RejectReason, ResponseCode};
use crate::iscsi::login::initiator::LoginError;
use crate::iscsi::pdu::{Flaw, FrameError};

/// Why the session has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The login failed.
    #[error("login failed: {0}")]
    Login(#[from] LoginError),
    /// The stream lost its borders.
    #[error("cannot follow the target's stream: {0}")]
    Frame(#[from] FrameError),
    /// A PDU that cannot be acted on.
    #[error("cannot use what the target sent: {0}")]
    Flaw(Flaw),
    /// The target broke the protocol.
    #[error("the target broke the protocol: {0}")]
    Misbehaved(#[from] Misbehaviour),
    /// The target refuses something that is no command.
    #[error("the target rejects what it was sent: {0:?}")]
    Rejected(RejectReason),
    /// The target drops the connection.
    #[error("the target drops the connection{}", asking_again(*.0))]
    Dropped(Duration),
    /// The login or the logout did not come to an end in time.
    #[error("the login or logout took too long")]
    LoginTimeout,
    /// Nothing is heard of the target.
    #[error("the target is silent")]
    Silent,
    /// A command gets no answer.
    #[error(
        "the target answers pings or later commands, but {count} commands have had no answer for {within:?}: the first is \
         {operation:#04x}"
    )]
    Stalled {
        /// The operation code of the first.
        operation: u8,
        /// How many there are.
        count: usize,
        /// For how long at least.
        within: Duration,
    },
}

/// How long a target that drops a connection wants to be left alone.
fn asking_again(after: Duration) -> String {
    match after {
        Duration::ZERO => String::new(),
        after => format!(", to be asked again after {after:?}"),
    }
}

/// How a target broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// A PDU that cannot come now.
    #[error("an unexpected {0}")]
    Unexpected(&'static str),
    /// No task has this tag.
    #[error("{pdu} for task {tag:#x}, which does not exist")]
    UnknownTag {
        /// The PDU.
        pdu: &'static str,
        /// The tag.
        tag: u32,
    },
    /// A status is missing, or came twice (RFC 7143, 4.2.2.2).
    #[error("status number {found} where {expected} was due")]
    StatSn {
        /// What was due.
        expected: u32,
        /// What came.
        found: u32,
    },
    /// More data than the command has room for.
    #[error("data-in beyond the expected length")]
    DataInBeyondExpected,
    /// Data-In numbers or offsets with a gap (RFC 7143, 11.7.5).
    #[error("data-in out of order")]
    DataInOutOfOrder,
    /// An R2T that asks for what the command does not have.
    #[error("an R2T beyond the data of its command")]
    R2tBeyondBuffer,
    /// An R2T with a wrong number or offset (RFC 7143, 11.8).
    #[error("an R2T out of order")]
    R2tOutOfOrder,
    /// An R2T for nothing, or for more than a burst.
    #[error("an R2T for {0} bytes")]
    R2tLength(u32),
    /// An R2T that names another unit than its command (RFC 7143, 4.2.5.3).
    #[error("an R2T of another unit than its command")]
    R2tOfOtherUnit,
    /// Pings faster than their answers can be sent.
    #[error("a flood of pings")]
    PingFlood,
    /// A text without end.
    #[error("an endless text")]
    EndlessText,
}

/// Why a command has no status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// It was aborted, as asked.
    #[error("aborted")]
    Aborted,
    /// The target refused it.
    #[error("the target rejects the command: {0:?}")]
    Rejected(RejectReason),
    /// The target could not carry it out.
    #[error("the target failed to carry out the command: {0:?}")]
    Target(ResponseCode),
    /// A status that does not exist.
    #[error("an unknown status {0:#04x}")]
    UnknownStatus(u8),
    /// Good status, but not all the data: of what was read, less came than the residual says; of what was to be
    /// written, not all was asked for or used.
    #[error("good status with {received} of {expected} bytes")]
    DataMissing {
        /// How many bytes came.
        received: u32,
        /// How many were due.
        expected: u32,
    },
}
