//! What a transport has to give: sessions with one target, and what carries commands to its units.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use proto::scsi::command::Command;
use proto::scsi::transport::Transports;
use proto::scsi::{Residual, Status};
use volume::layer::reconnect::{Cause, Failure};

use super::announced::Announced;

/// A command on its way to a unit.
#[derive(Clone, Debug)]
pub struct Task {
    /// The number of the unit, as SAM-5 encodes it.
    pub lun: u64,
    /// The command.
    pub command: Command,
    /// Its data-out.
    pub data: Bytes,
    /// The task attribute ORDERED (SAM-5, 8.6.3), where the transport has it; otherwise SIMPLE.
    pub is_ordered: bool,
}

/// How a command ended at its unit.
#[derive(Clone, Debug)]
pub struct Completion {
    /// STATUS.
    pub status: Status,
    /// The data-in.
    pub data: Bytes,
    /// The sense data.
    pub sense: Bytes,
    /// How the transfer missed what was expected.
    pub residual: Residual,
}

/// Why a command has no status.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NoStatus {
    /// It was aborted, as asked.
    #[error("aborted")]
    Aborted,
    /// The transport has not delivered it, or not its answer.
    #[error("{0}")]
    Failed(Cause),
}

/// How a command ended, at the unit or before it.
pub type Executed = Result<Completion, NoStatus>;

/// The answer to a command that is on its way.
pub type Answer = Pin<Box<dyn Future<Output = Result<Executed, Lost>> + Send>>;

/// A session that is no more.
#[derive(Clone, Debug)]
pub struct Lost {
    /// Why.
    pub why: Cause,
    /// It was logged out: each of its commands had been answered.
    pub is_logged_out: bool,
    /// It was given up since commands had no answer.
    pub is_stalled: bool,
    /// How long the target wants to be left alone.
    pub wait: Duration,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl StdError for Lost {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.why.source()
    }
}

/// How a LOGICAL UNIT RESET ended (SAM-5, 7.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetAnswer {
    /// FUNCTION COMPLETE: no task runs on the unit any more.
    Complete,
    /// Anything else.
    Refused {
        /// Asking again is of no use.
        is_final: bool,
        /// What the target says.
        answer: String,
    },
}

/// How much data of a write may be under way.
#[derive(Clone, Copy, Debug)]
pub struct TransferLimits {
    /// Bytes that travel with the command.
    pub unsolicited: u64,
    /// Bytes that the target can ask for at once.
    pub solicited: u64,
    /// Bytes that one read brings.
    pub data_in: u64,
}

/// A session with a target. Clones are of the same session.
pub trait Session: Clone + fmt::Debug + Send + Sync + 'static {
    /// The protocols by which initiators come, for the names of their ports in reservation commands.
    const TRANSPORTS: Transports;
    /// Whether what is queued later, and is ordered, is carried out later.
    const IN_ORDER: bool = false;

    /// Runs a command to its end.
    fn execute(&self, task: Task) -> impl Future<Output = Result<Executed, Lost>> + Send;

    /// Puts a command on its way: what is put there later comes to the target later.
    fn queue(&self, task: Task) -> impl Future<Output = Result<Answer, Lost>> + Send;

    /// Whether it honours ORDERED, and ends before anything is carried out behind a change or flush that failed.
    fn keeps_order(&self) -> bool;

    /// Resets a logical unit; the answer comes when none of its tasks runs any more.
    fn reset_unit(&self, lun: u64) -> impl Future<Output = Result<ResetAnswer, Lost>> + Send;

    /// Asks the target to end all commands of this session that it has (ABORT TASK; SAM-5, 7.2). Each has its answer all the
    /// same, which says whether it was faster.
    fn abort_all(&self) -> impl Future<Output = Result<(), Lost>> + Send;

    /// What its unit has told. It is noted before the command ends that was told of it.
    fn announced(&self) -> &Announced;

    /// Whether answers may overtake one another.
    fn has_several_connections(&self) -> bool;

    /// Waits until all that the unit told before the last answer is noted. By one connection it is; by several that
    /// answer may have overtaken the one which tells it.
    fn settle(&self) -> impl Future<Output = Result<(), Lost>> + Send;

    /// Returns when the session has ended, and says why.
    fn ended(&self) -> impl Future<Output = Lost> + Send;

    /// Ends it when what is under way has ended, and waits until that is done.
    fn close(&self) -> impl Future<Output = ()> + Send;

    /// Ends it at once: nothing of what waits to be sent leaves any more.
    fn abandon(&self);

    /// Somebody waits for the end: no command has longer any more to be answered than usual, though others took longer.
    fn hurry(&self);

    /// How much data of a write may be under way.
    fn limits(&self) -> TransferLimits;
}

/// Where a volume is, as this machine notes it.
#[derive(Clone, Debug)]
pub struct Address {
    /// The name of the target.
    pub target: String,
    /// The logical unit.
    pub lun: u16,
    /// Where the target listens.
    pub portal: String,
    /// The key that the target proves itself with.
    pub pin: Option<String>,
}

/// What makes sessions with one target, all of them as the same initiator port. It shows as the address of the volume.
pub trait Transport: fmt::Display + fmt::Debug + Send + Sync + 'static {
    /// A session.
    type Session: Session;
    /// An address of the target.
    type Portal: fmt::Display + fmt::Debug + Clone + PartialEq + Send + Sync + 'static;
    /// Why there is no session.
    type Error: StdError + Send + Sync + 'static;

    /// Where the volume is.
    fn address(&self) -> Address;

    /// Where the target listens, the address that was given first.
    fn portals(&self) -> Vec<Self::Portal>;

    /// Logs in, or gives up after `within`. If `uncertain` is given that session is no more, and a change of it may still be under way: the new one must
    /// have ended it.
    fn log_in(
        &self,
        portal: &Self::Portal,
        uncertain: Option<&Self::Session>,
        within: Duration,
    ) -> impl Future<Output = Result<Self::Session, Self::Error>> + Send;

    /// The unit of a session is open.
    fn opened(&self, session: &Self::Session, is_longhaul: bool);

    /// The unit of a session cannot be used by its port: finds out where else the target listens.
    fn look_elsewhere(&self, _session: &Self::Session) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Whether an attempt failed since nobody answers at its address.
    fn is_out_of_reach(why: &Self::Error) -> bool;

    /// Whether an attempt failed since no answer came in time.
    fn is_silent(why: &Self::Error) -> bool;

    /// What a failure to log in again is worth.
    fn failure(why: &Self::Error) -> Failure;

    /// Whether what a target says in a session is authenticated.
    fn is_secure(&self) -> bool;

    /// Whether a process that was killed had its name, so that the first login has ended what that left of a session.
    fn replaces_left_session(&self) -> bool {
        false
    }

    /// The last session was logged out: nothing of it is under way.
    fn note_logout(&self) {}

    /// A session was given up since commands stalled, or the outage that began so is over.
    fn note_stall(&self, stalled: bool);
}
