//! The answer of a logical unit, and the word that nobody waits for it any more.
//!
//! What a command has begun on the medium is never torn from under it. But a command that takes long, or
//! that waits for others, can end early, and one that waits for the tasks of other sessions must: they may
//! be waiting for this one.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::future::{Either, select};
use proto::scsi::Status;
use tokio::sync::Notify;

use super::fault::Fault;
use super::{Response, Waiting};

/// The answer of a logical unit, still to come; it owns all it needs.
pub struct Answer {
    work: Waiting<Response>,
    abort: Abort,
}

impl Answer {
    /// What `work` comes to. It ends when it ends, whoever waits for it.
    pub(super) fn of(work: impl Future<Output = Response> + Send + 'static) -> Self {
        Self { work: Box::pin(work), abort: Abort::never() }
    }

    /// The same, of work that looks whether it was aborted.
    pub(super) fn abortable<F>(work: impl FnOnce(Abort) -> F) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let abort = Abort::new();
        Self { work: Box::pin(work(abort.clone())), abort }
    }

    /// Nobody waits for it any more: it may end early, and ends in any case.
    pub fn abort(&self) {
        self.abort.tell();
    }
}

impl Future for Answer {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        self.work.as_mut().poll(cx)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("abort", &self.abort).finish_non_exhaustive()
    }
}

/// Whether a command was aborted, for the command itself to see.
#[derive(Clone, Debug)]
pub(super) struct Abort {
    own: Option<Arc<AbortFlag>>,
    /// What ends it, too.
    other: Option<Arc<AbortFlag>>,
}

#[derive(Debug, Default)]
struct AbortFlag {
    given: AtomicBool,
    arrived: Notify,
}

impl Abort {
    /// Of a command that is not told.
    pub(super) const fn never() -> Self {
        Self { own: None, other: None }
    }

    /// Of a command that can be told.
    pub(super) fn new() -> Self {
        Self { own: Some(Arc::default()), other: None }
    }

    /// Of a part of a command, which both end.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self { own: self.own.clone(), other: other.own.clone() }
    }

    pub(super) fn tell(&self) {
        if let Some(word) = &self.own {
            word.given.store(true, Ordering::Release);
            // One command waits in one place at a time; if it is not there yet, the word is kept for it.
            word.arrived.notify_one();
        }
    }

    /// An error once the command was aborted: what it has not begun is left.
    pub(super) fn check(&self) -> Result<(), Fault> {
        let mut words = self.own.iter().chain(&self.other);
        let given = words.any(|word| word.given.load(Ordering::Acquire));
        if given { Err(ABORTED) } else { Ok(()) }
    }

    async fn arrived(&self) {
        match (&self.own, &self.other) {
            (Some(own), Some(other)) => {
                select(pin!(own.arrived.notified()), pin!(other.arrived.notified())).await;
            }
            (Some(word), None) | (None, Some(word)) => word.arrived.notified().await,
            (None, None) => std::future::pending().await,
        }
    }

    /// What `work` comes to, unless the command is aborted before that. Nothing that touches the medium may
    /// be among it, as it is dropped then.
    pub(super) async fn unless<T>(&self, work: impl Future<Output = T>) -> Result<T, Fault> {
        self.check()?;
        match select(pin!(work), pin!(self.arrived())).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => Err(ABORTED),
        }
    }
}

/// How an aborted command ends. Its initiator is not told: the task is gone.
const ABORTED: Fault = Fault::Status(Status::TaskAborted);

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use proto::scsi::Residual;

    use super::*;

    const fn response(status: Status) -> Response {
        Response { status, data: Vec::new(), sense: Bytes::new(), residual: Residual::None }
    }

    fn waits_for_ever() -> Answer {
        Answer::abortable(|abort| async move {
            match abort.unless(pending::<()>()).await {
                Ok(()) => response(Status::Good),
                Err(fault) => fault.response(proto::scsi::sense::Format::Fixed),
            }
        })
    }

    #[test]
    fn waiting_command_is_aborted_whether_it_was_polled_or_not() {
        for polled in [true, false] {
            let mut answer = waits_for_ever();
            if polled {
                assert!((&mut answer).now_or_never().is_none());
            }
            answer.abort();
            assert_eq!(answer.now_or_never().unwrap().status, Status::TaskAborted);
        }
    }

    #[test]
    fn command_that_does_not_check_goes_on() {
        let answer = Answer::of(ready(response(Status::Good)));
        answer.abort();
        assert_eq!(answer.now_or_never().unwrap().status, Status::Good);
    }
}
