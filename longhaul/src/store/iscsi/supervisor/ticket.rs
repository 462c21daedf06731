//! The place of a request in the machine, and its way through it.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use volume::layer::reconnect::{Over, Turn};

use super::{Ended, Supervisor};
use crate::store::iscsi::link::Link;
use crate::store::iscsi::unit::UnitError;

/// A request's place in the machine.
pub(super) struct Ticket {
    pub(super) supervisor: Arc<Supervisor>,
    pub(super) id: u64,
    pub(super) next: Next,
    /// It is a discard, which may be left undone.
    pub(super) is_hint: bool,
    /// The machine has answered it.
    pub(super) left: bool,
    /// Held by a change until it has ended.
    pub(super) _change: Option<watch::Receiver<()>>,
}

pub(super) enum Next {
    Run(u64, Arc<Link>),
    Wait(oneshot::Receiver<(u64, Arc<Link>)>),
    /// It has left the machine.
    Over,
}

impl Ticket {
    /// Carries the request out, as often as it takes.
    pub(super) async fn carry_out<T, F: Future<Output = Result<T, UnitError>>>(
        mut self,
        verb: impl Fn(Arc<Link>) -> F,
    ) -> Result<T, UnitError> {
        loop {
            let (number, link) = self.turn().await?;
            let result = verb(Arc::clone(&link)).await;
            let failure = result.as_ref().err();
            let on = (number, &*link);
            let (turn, next) = self.supervisor.ended(self.id, on, failure, self.is_hint);
            self.next = next;
            if turn == Turn::Answer {
                self.left = true;
                return result;
            }
        }
    }

    /// Waits until the request may run.
    async fn turn(&mut self) -> Result<(u64, Arc<Link>), UnitError> {
        match std::mem::replace(&mut self.next, Next::Over) {
            Next::Run(number, link) => Ok((number, link)),
            Next::Wait(told) => told.await.map_err(|_| self.over()),
            Next::Over => Err(self.over()),
        }
    }

    fn over(&self) -> UnitError {
        let state = self.supervisor.lock();
        let ended = state.ended.clone().or_else(|| state.failed.clone());
        let closed = || Arc::new(Ended { over: Over::Closed, cause: None });
        UnitError::Over(ended.unwrap_or_else(closed))
    }
}

impl Drop for Ticket {
    /// Whoever stops waiting leaves no request behind.
    fn drop(&mut self) {
        if self.left {
            return;
        }
        let mut state = self.supervisor.lock();
        state.waiting.remove(&self.id);
        state.machine.withdraw(self.id);
        self.supervisor.act(&mut state);
    }
}
