//! The place of a request in the machine, and its way through it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{oneshot, watch};

use super::{Numbered, Outcome, Supervisor};
use crate::layer::reconnect::{Connect, Ended, Over, RequestError, Runtime, Turn};

/// A request's place in the machine.
pub(super) struct Request<C: Connect> {
    pub(super) supervisor: Arc<Supervisor<C>>,
    pub(super) id: u64,
    pub(super) next: Next<C>,
    /// It is a discard, which may be left undone.
    pub(super) is_hint: bool,
    /// It is carried out just now.
    pub(super) runs: bool,
    /// The machine has answered it.
    pub(super) left: bool,
    /// Held by a change until it has ended.
    pub(super) _change: Option<watch::Receiver<()>>,
}

pub(super) enum Next<C: Connect> {
    Run(u64, Arc<C::Volume>),
    Wait(oneshot::Receiver<Numbered<C::Volume>>),
    /// It has left the machine.
    Over,
}

impl<C: Connect> Request<C> {
    /// Carries the request out, as often as it takes.
    pub(super) async fn carry_out<T, F: Future<Output = Result<T, C::Error>>>(
        mut self,
        verb: impl Fn(Arc<C::Volume>) -> F,
    ) -> Outcome<T, C> {
        loop {
            let (number, link) = self.turn().await?;
            self.runs = true;
            let result = verb(Arc::clone(&link)).await;
            self.runs = false;
            let failure = result.as_ref().err();
            let on = (number, &*link);
            let (turn, next) = self.supervisor.ended(self.id, on, failure, self.is_hint);
            self.next = next;
            if turn == Turn::Answer {
                self.left = true;
                return result.map_err(RequestError::Volume);
            }
        }
    }

    /// Waits until the request may run.
    async fn turn(&mut self) -> Outcome<Numbered<C::Volume>, C> {
        match std::mem::replace(&mut self.next, Next::Over) {
            Next::Run(number, link) => Ok((number, link)),
            Next::Wait(told) => told.await.map_err(|_| self.over()),
            Next::Over => Err(self.over()),
        }
    }

    fn over(&self) -> RequestError<C::Error> {
        let state = self.supervisor.lock();
        let ended = state.ended.clone().or_else(|| state.failed.clone());
        let closed = || Arc::new(Ended { over: Over::Closed, cause: None });
        RequestError::Over(ended.unwrap_or_else(closed))
    }
}

impl<C: Connect> Drop for Request<C> {
    /// Whoever stops waiting leaves no request behind.
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let mut state = self.supervisor.lock();
        state.waiting.remove(&self.id);
        if self.runs && self._change.is_some() && std::thread::panicking() {
            // It may be under way, and others to the same bytes must not overtake it. At the end of the program changes are
            // dropped without a panic, and nothing follows them.
            state.machine.broken();
        }
        state.machine.withdraw(self.id);
        self.supervisor.act(&mut state);
    }
}

/// A future that is run to its end even if it is dropped.
pub(super) struct Detached<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Arc<dyn Runtime>,
}

impl<T: Send + 'static> Detached<T> {
    pub(super) fn new(
        runtime: &Arc<dyn Runtime>,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Self {
        Self { future: Some(Box::pin(future)), runtime: Arc::clone(runtime) }
    }
}

impl<T: Send + 'static> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let output = future.as_mut().poll(cx);
        if output.is_ready() {
            self.future = None;
        }
        output
    }
}

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.runtime.spawn(Box::pin(async move {
                future.await;
            }));
        }
    }
}
