//! What the machine is told, and what it says.

use core::ops::Range;
use core::time::Duration;

/// What a change consists of, as far as it matters for carrying it out again.
pub trait Replay: Clone {
    /// The same change of a part of its range alone.
    #[must_use]
    fn part(&self, part: &Range<u64>) -> Self;

    /// Whether it determines every byte of its range, so that no earlier change to them counts. A discard, which may
    /// be left undone, does not.
    fn replaces(&self) -> bool;

    /// The same change, to be kept for as long as nobody flushes: it must not hold much more memory than it weighs.
    #[must_use]
    fn kept(self) -> Self {
        self
    }

    /// Whether it is a group, which is durable once it is answered: carried out behind all those that were submitted before
    /// it, and never once one of these has failed.
    fn is_group(&self) -> bool {
        false
    }
}

/// How the machine behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long an outage may last; `None` for as long as it takes.
    pub patience: Option<Duration>,
    /// The wait after the first attempt that failed; each is twice the one before.
    pub first_wait: Duration,
    /// The longest wait.
    pub longest_wait: Duration,
    /// Bytes of changes kept until a flush has made them durable. At half of it a flush is made, at all
    /// of it changes wait. `None` for a unit without a volatile cache: nothing has to be kept.
    pub unflushed_max: Option<usize>,
    /// Which changes are handed out by [`Action::Save`] when they can no longer be made durable.
    pub salvage: Salvage,
}

/// Which changes are saved elsewhere when they can no longer be made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Salvage {
    /// None: nobody relies on them.
    #[default]
    Nothing,
    /// Those that the target has answered and no flush has covered.
    Answered,
    /// All that were submitted and no flush has covered. The caller acknowledges changes before it submits
    /// them, and flushes nothing any more after the first change or flush that failed.
    Submitted,
}

/// What a request does.
#[derive(Clone, Debug)]
pub enum Kind<R> {
    /// It changes nothing.
    Read,
    /// It changes the range; carrying `R` out again changes it to the same.
    Change(R),
    /// It makes every change that has been answered durable.
    Flush,
}

/// How a request ended on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Done,
    /// With an error that another link would not mend.
    Failed,
    /// With such an error, of a change that nobody relies on: a discard is a hint.
    NotTaken,
    /// The link was lost before there was an answer.
    Lost,
    /// The unit cannot carry it out now, as when it is busy for long. Its link counts as lost, and the outage lasts
    /// until the request is carried out, whatever else is meanwhile.
    NotYet,
}

impl End {
    pub(super) const fn runs_again(self) -> bool {
        matches!(self, Self::Lost | Self::NotYet)
    }
}

/// What becomes of a request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It runs, on the link of this number.
    Run(u64),
    /// It waits for [`Action::Run`].
    Wait,
    /// It is answered.
    Answer,
    /// It will not be carried out: see [`super::Recovery::over`].
    Over,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<R> {
    /// Try to connect; [`super::Recovery::connected`] or [`super::Recovery::failed`] follows.
    Connect,
    /// Carry out a request that waited, on the link of this number.
    Run {
        /// The request.
        id: u64,
        /// The link.
        link: u64,
    },
    /// Flush, so that fewer changes have to be kept. It ends like a request; where it has to run again, this
    /// action comes again.
    Flush {
        /// The request.
        id: u64,
        /// The link.
        link: u64,
    },
    /// Carry out again a change that was answered and may be lost; [`super::Recovery::restored`] follows.
    Restore {
        /// Its number among such on this link.
        seq: u64,
        /// The link.
        link: u64,
        /// What it consists of.
        change: R,
    },
    /// Save a change that was acknowledged and will not become durable. Changes to the same bytes come in the
    /// order of submission.
    Save(R),
    /// Nothing will be carried out any more; whatever waits is to be told.
    Over,
}

/// Why nothing is carried out any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Over {
    /// The outage lasted too long.
    #[error("no connection for {0:.0?}")]
    GaveUp(Duration),
    /// There were connections, but a request was not carried out on any for too long.
    #[error("a request was not carried out for {0:?}")]
    NotCarriedOut(Duration),
    /// A connection can be had, but not one that may be used.
    #[error("the connection cannot be resumed")]
    Refused,
    /// What was acknowledged and not flushed could not be written again.
    #[error("writes acknowledged before the connection was lost cannot be written again")]
    NotRestored,
    /// A flush made to bound what is kept has failed.
    #[error("a flush has failed")]
    NotFlushed,
    /// Another writer has the volume now, or had it meanwhile.
    #[error("the volume was taken over: nothing more is written to it")]
    Fenced,
    /// A write that was acknowledged has failed: flushes end with this, and everything once no more can be kept. So does
    /// everything at once where it was a group, and nothing may be carried out behind it.
    #[error("an acknowledged write has failed")]
    NotWritten,
    /// A part of the program that it cannot do without has broken down.
    #[error("an internal error: a part of the program has broken down")]
    Broken,
    /// It was closed.
    #[error("closed")]
    Closed,
}

/// How the link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Requests are carried out.
    Connected,
    /// They wait.
    Reconnecting {
        /// Since when.
        since: Duration,
        /// How often a connection was tried.
        attempts: u32,
    },
    /// There is a connection, on which some that had no answer before have none either.
    Unanswered {
        /// Since when.
        since: Duration,
        /// How many.
        requests: usize,
    },
    /// They fail.
    Over(Over),
}
