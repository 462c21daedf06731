//! The commands of a session that are in the hands of units, and those that wait until there is room.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use proto::iscsi::target::TaskId;
use volume::TRANSFER_MAX;

use crate::front::lun::{Answer, Command, LogicalUnit, Response};

/// Bytes of data, in or out, that the commands of one session may hold in units and in output at once.
/// More wait; one command alone may be larger.
const HELD_MAX: u64 = 32 << 20;

/// How much a command may hold: its data-out, or the data-in the initiator has room for.
pub(super) fn weight(data: &[Bytes], room: u32) -> u64 {
    let out: usize = data.iter().map(Bytes::len).sum();
    out as u64 + u64::from(room.min(TRANSFER_MAX))
}

struct Run {
    task: TaskId,
    weight: u64,
    answer: Answer,
}

impl Future for Run {
    type Output = (TaskId, u64, Response);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (task, weight) = (self.task, self.weight);
        self.answer.as_mut().poll(cx).map(|response| (task, weight, response))
    }
}

/// A command that can run. It is not handed to its unit before there is room.
pub(super) struct Ready {
    pub(super) task: TaskId,
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
    /// Whether a command of this weight may start, with `output` bytes unsent.
    pub(super) fn has_room(&self, weight: u64, output: usize) -> bool {
        let held = self.held + output as u64;
        self.waiting.is_empty() && (held == 0 || held + weight <= HELD_MAX)
    }

    /// Whether no answer is awaited.
    pub(super) fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.waiting.is_empty()
    }

    /// Starts an answer that may be there at once: then nothing is kept of it.
    pub(super) fn start(
        &mut self,
        cx: &mut Context<'_>,
        task: TaskId,
        weight: u64,
        mut answer: Answer,
    ) -> Option<Response> {
        match answer.as_mut().poll(cx) {
            Poll::Ready(response) => Some(response),
            Poll::Pending => {
                self.held += weight;
                self.runs.push(Run { task, weight, answer });
                None
            }
        }
    }

    pub(super) fn wait(&mut self, ready: Ready) {
        self.waiting.push_back(ready);
    }

    /// The next command that waits, if there is room for it now.
    pub(super) fn pop_waiting(&mut self, output: usize) -> Option<Ready> {
        let weight = self.waiting.front()?.weight;
        let held = self.held + output as u64;
        if held > 0 && held + weight > HELD_MAX {
            return None;
        }
        self.waiting.pop_front()
    }

    /// The next answer.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(TaskId, Response)> {
        match self.runs.poll_next_unpin(cx) {
            Poll::Ready(Some((task, weight, response))) => {
                self.held -= weight;
                Poll::Ready((task, response))
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Forgets what waits and ends what runs: nothing of this session reaches a unit afterwards.
    pub(super) async fn drain(&mut self) {
        self.waiting.clear();
        while self.runs.next().await.is_some() {}
    }
}
