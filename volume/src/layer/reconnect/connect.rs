//! What the supervisor asks of a transport and of the system, and what it is told.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::machine::{Failure, Over, Replay};

/// An error of whatever type, shared by all who are told of it.
pub type Cause = Arc<dyn StdError + Send + Sync>;

/// A task of its own.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the system gives: the time, tasks and chance.
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// The time since an origin that stays the same.
    fn now(&self) -> Duration;

    /// Ends at that time.
    fn sleep_until(&self, at: Duration) -> Task;

    /// Runs a task to its end. Where no task can be run any more it is dropped.
    fn spawn(&self, task: Task);

    /// Spreads the attempts of many clients.
    fn random(&self) -> u64;
}

/// A transport that makes connections to one volume, again and again. It shows as the address of the volume.
pub trait Connect: fmt::Display + fmt::Debug + Send + Sync + Sized + 'static {
    /// The volume by way of one connection.
    type Volume: Send + Sync + 'static;
    /// What changes the volume.
    type Change: Replay + Send + Sync + 'static;
    /// Why a request failed on one connection.
    type Error: StdError + Clone + Send + Sync + 'static;

    /// Makes one attempt to connect again to what the first connection led to. The last one is gone; `is_uncertain` says
    /// that a change may still be under way there, which must not be carried out after this attempt has succeeded.
    fn connect(
        &self,
        first: Arc<Self::Volume>,
        last: Arc<Self::Volume>,
        is_uncertain: bool,
    ) -> impl Future<Output = Result<Self::Volume, Refused>> + Send;

    /// There is another connection in the place of the last one.
    fn connected(&self, last: &Self::Volume, new: &Self::Volume) {
        let _ = (last, new);
    }

    /// Returns when a connection has ended.
    fn ended(&self, on: &Self::Volume) -> impl Future<Output = Loss> + Send;

    /// What it means that a request ended so on a connection.
    fn judge(&self, on: &Self::Volume, failure: Option<&Self::Error>) -> Verdict;

    /// Carries out a change.
    fn change(
        on: &Self::Volume,
        change: &Self::Change,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// A group gets its place on a connection: those that got theirs before are carried out before it. It is told under a
    /// lock, and [`change`](Self::change) follows.
    fn put_in_order(&self, on: &Self::Volume, change: &Self::Change) {
        let _ = (on, change);
    }

    /// Told before anything runs on a connection in the place of another: the groups that were not answered, in order. One
    /// that is known to have been carried out need not be again.
    fn resume<'a>(&self, on: &Self::Volume, groups: impl Iterator<Item = &'a Self::Change>) {
        let _ = (on, groups);
    }

    /// Gives a connection up at once: what is under way on it fails soon.
    fn abandon(&self, on: &Self::Volume);

    /// Somebody waits for the end: a connection on which requests are slow is given up sooner, this one and all later.
    fn hurry(&self, on: &Self::Volume) {
        let _ = on;
    }

    /// Makes all changes durable that have been answered.
    fn flush(on: &Self::Volume) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Keeps a change elsewhere that was acknowledged and will not become durable.
    fn save(&self, change: Self::Change);

    /// A connection was given up since requests had no answer.
    fn unanswered(&self) {}

    /// There is no outage, or none any more.
    fn recovered(&self) {}

    /// An error and all beneath it, fit for a log.
    fn describe(&self, why: &(dyn StdError + 'static)) -> String;
}

/// What it means how a request ended.
#[derive(Debug)]
pub enum Verdict {
    /// It was carried out.
    Done,
    /// It failed, as it would on another connection.
    Failed,
    /// The connection is no more, or counts as lost.
    Lost(Loss),
    /// It cannot be carried out now. The connection counts as lost.
    NotYet(Cause),
}

/// Why a connection is no more.
#[derive(Debug)]
pub struct Loss {
    /// The reason.
    pub why: Cause,
    /// How long the other end wants to be left alone.
    pub wait: Duration,
    /// It was given up since requests had no answer.
    pub is_unanswered: bool,
}

impl Loss {
    /// One after which nothing has to be waited for.
    pub fn new(why: impl StdError + Send + Sync + 'static) -> Self {
        Self { why: Arc::new(why), wait: Duration::ZERO, is_unanswered: false }
    }
}

/// Why an attempt to connect again failed.
#[derive(Debug)]
pub struct Refused {
    /// The reason.
    pub why: Cause,
    /// What follows.
    pub effect: Effect,
}

/// What a failed attempt does to the volume.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// It may end it.
    Failed(Failure),
    /// Another writer has the volume now, or had it meanwhile.
    Fenced,
}

/// Why nothing is carried out any more.
#[derive(Debug, thiserror::Error)]
#[error("{over}")]
pub struct Ended {
    /// What it came to.
    pub over: Over,
    /// What stood in the way last.
    #[source]
    pub(super) cause: Option<Cause>,
}

impl Ended {
    /// The kind of failure this is to a caller of a volume.
    #[must_use]
    pub const fn kind(&self) -> crate::Kind {
        match self.over {
            Over::NotRestored | Over::NotFlushed | Over::NotWritten => crate::Kind::Medium,
            Over::GaveUp(_)
            | Over::NotCarriedOut(_)
            | Over::Refused
            | Over::Fenced
            | Over::Broken
            | Over::Closed => crate::Kind::Gone,
        }
    }
}

/// Why a request was not carried out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RequestError<E: StdError + 'static> {
    /// It failed.
    #[error(transparent)]
    Volume(E),
    /// Nothing is carried out any more.
    #[error(transparent)]
    Over(Arc<Ended>),
}
