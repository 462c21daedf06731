//! The commands of a session that are in the hands of units, and those that wait until there is room.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use proto::time::Time;

use super::lun::{Answer, Command, LogicalUnit, Response};
use proto::scsi::cdb::Kind;

/// What is to be known of a command when it has ended.
#[derive(Clone, Copy, Debug)]
pub struct CommandRecord {
    /// As what it is counted.
    pub kind: Kind,
    /// Its operation code.
    pub opcode: u8,
    /// When it came.
    pub started: Time,
    /// Bytes of data-out.
    pub out: u64,
}

struct Run<T> {
    task: T,
    record: CommandRecord,
    weight: u64,
    answer: Answer,
}

impl<T: Copy + Unpin> Future for Run<T> {
    type Output = (T, CommandRecord, u64, Response);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (task, record, weight) = (self.task, self.record, self.weight);
        Pin::new(&mut self.answer).poll(cx).map(|response| (task, record, weight, response))
    }
}

/// A command that can run. It is not handed to its unit before there is room for its answer.
pub struct Ready<T> {
    /// Its task.
    pub task: T,
    /// To be counted when it has ended.
    pub record: CommandRecord,
    /// Bytes its answer may come to.
    pub weight: u64,
    /// The unit that executes it.
    pub unit: Arc<dyn LogicalUnit>,
    /// The command with its data-out.
    pub command: Command,
}

/// The commands of one session; `T` names a task.
pub struct Executor<T> {
    runs: FuturesUnordered<Run<T>>,
    held: u64,
    waiting: VecDeque<Ready<T>>,
}

impl<T> Default for Executor<T> {
    fn default() -> Self {
        Self { runs: FuturesUnordered::new(), held: 0, waiting: VecDeque::new() }
    }
}

impl<T: Copy + Eq + Unpin> Executor<T> {
    /// Bytes that answers under way may come to.
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// What the command that waits first may come to.
    pub fn next_weight(&self) -> Option<u64> {
        self.waiting.front().map(|ready| ready.weight)
    }

    /// Whether no answer is awaited.
    pub fn is_idle(&self) -> bool {
        self.runs.is_empty() && self.waiting.is_empty()
    }

    /// Starts an answer that may be there at once: then nothing is kept of it.
    pub fn start(
        &mut self,
        cx: &mut Context<'_>,
        (task, record): (T, CommandRecord),
        weight: u64,
        mut answer: Answer,
    ) -> Option<Response> {
        match Pin::new(&mut answer).poll(cx) {
            Poll::Ready(response) => Some(response),
            Poll::Pending => {
                self.held += weight;
                self.runs.push(Run { task, record, weight, answer });
                None
            }
        }
    }

    /// Keeps a command until there is room for its answer.
    pub fn wait(&mut self, ready: Ready<T>) {
        self.waiting.push_back(ready);
    }

    /// The command that waits first.
    pub fn pop_waiting(&mut self) -> Option<Ready<T>> {
        self.waiting.pop_front()
    }

    /// The next answer.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(T, CommandRecord, Response)> {
        match self.runs.poll_next_unpin(cx) {
            Poll::Ready(Some((task, record, weight, response))) => {
                self.held -= weight;
                Poll::Ready((task, record, response))
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Nobody waits for this answer any more. What runs is told so; what has not begun never does, and is
    /// given back.
    pub fn abort(&mut self, task: T) -> Option<Ready<T>> {
        if let Some(run) = self.runs.iter().find(|run| run.task == task) {
            run.answer.abort();
        }
        let at = self.waiting.iter().position(|ready| ready.task == task)?;
        self.waiting.remove(at)
    }

    /// Forgets what waits and ends what runs: nothing of this session reaches a unit afterwards.
    pub async fn drain(&mut self) {
        self.waiting.clear();
        self.runs.iter().for_each(|run| run.answer.abort());
        while self.runs.next().await.is_some() {}
    }
}
