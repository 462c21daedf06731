//! The commands of a session that are in the hands of units, and those that wait until there is room.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use proto::iscsi::target::TaskId;
use proto::time::Time;

use crate::target::lun::{Answer, Command, LogicalUnit, Response};
use proto::scsi::cdb::Kind;

/// What is to be known of a command when it has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) kind: Kind,
    pub(super) opcode: u8,
    pub(super) started: Time,
    /// Bytes of data-out.
    pub(super) out: u64,
}

struct Run {
    task: TaskId,
    mark: Mark,
    weight: u64,
    answer: Answer,
}

impl Future for Run {
    type Output = (TaskId, Mark, u64, Response);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (task, mark, weight) = (self.task, self.mark, self.weight);
        Pin::new(&mut self.answer).poll(cx).map(|response| (task, mark, weight, response))
    }
}

/// A command that can run. It is not handed to its unit before there is room for its answer.
pub(super) struct Ready {
    pub(super) task: TaskId,
    pub(super) mark: Mark,
    /// Bytes its answer may come to.
    pub(super) weight: u64,
    pub(super) unit: Arc<dyn LogicalUnit>,
    pub(super) command: Command,
}

#[derive(Default)]
pub(super) struct Running {
    runs: FuturesUnordered<Run>,
    held: u64,
    waiting: VecDeque<Ready>,
}

impl Running {
    /// Bytes that answers under way may come to.
    pub(super) const fn held(&self) -> u64 {
        self.held
    }

    /// What the command that waits first may come to.
    pub(super) fn next_weight(&self) -> Option<u64> {
        self.waiting.front().map(|ready| ready.weight)
    }

    /// Whether no answer is awaited.
    pub(super) fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.waiting.is_empty()
    }

    /// Starts an answer that may be there at once: then nothing is kept of it.
    pub(super) fn start(
        &mut self,
        cx: &mut Context<'_>,
        (task, mark): (TaskId, Mark),
        weight: u64,
        mut answer: Answer,
    ) -> Option<Response> {
        match Pin::new(&mut answer).poll(cx) {
            Poll::Ready(response) => Some(response),
            Poll::Pending => {
                self.held += weight;
                self.runs.push(Run { task, mark, weight, answer });
                None
            }
        }
    }

    pub(super) fn wait(&mut self, ready: Ready) {
        self.waiting.push_back(ready);
    }

    /// The command that waits first.
    pub(super) fn pop_waiting(&mut self) -> Option<Ready> {
        self.waiting.pop_front()
    }

    /// The next answer.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(TaskId, Mark, Response)> {
        match self.runs.poll_next_unpin(cx) {
            Poll::Ready(Some((task, mark, weight, response))) => {
                self.held -= weight;
                Poll::Ready((task, mark, response))
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Nobody waits for this answer any more. What runs is told so; what has not begun never does, and is
    /// given back.
    pub(super) fn abort(&mut self, task: TaskId) -> Option<Ready> {
        if let Some(run) = self.runs.iter().find(|run| run.task == task) {
            run.answer.abort();
        }
        let at = self.waiting.iter().position(|ready| ready.task == task)?;
        self.waiting.remove(at)
    }

    /// Forgets what waits and ends what runs: nothing of this session reaches a unit afterwards.
    pub(super) async fn drain(&mut self) {
        self.waiting.clear();
        self.runs.iter().for_each(|run| run.answer.abort());
        while self.runs.next().await.is_some() {}
    }
}
