//! The commands of a session that are in the hands of units, those that wait until there is room, and those that wait for
//! their turn beside the commands of other clients.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::StreamExt as _;
use proto::scsi::cdb::Kind;
use proto::time::Time;
use volume::FutureSet;

use super::fair_queue::QueuedCommand;
use super::lun::{Answer, Command, LogicalUnit, Nexus, Response};
use super::shares::{Service, Turn, Turns};

/// Data-out of commands that wait for their turn up to which more is asked for: a client that has to wait for its rate does
/// not fill the memory that all have in common.
const HELD_BACK: u64 = 1 << 20;

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
    /// It counts at its unit until it has ended.
    _service: Option<Service>,
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
    /// Where it stands among those that wait.
    pub place: Place,
    /// It counts at its unit, if it has had to ask for its turn.
    pub service: Option<Service>,
}

/// Where a command stands among those that wait for a unit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The number of the unit.
    pub lun: u16,
    /// What it reads or writes.
    pub bytes: u64,
    /// Those of a higher priority go first.
    pub priority: u8,
    /// It does not pass those before it, nor those behind it it.
    pub in_order: bool,
}

/// The commands of one session; `T` names a task.
pub struct Executor<T> {
    runs: FutureSet<Run<T>>,
    held: u64,
    waiting: VecDeque<Ready<T>>,
    turns: Turns,
    /// Those that wait for their turn, by the numbers of their tickets.
    asking: BTreeMap<u64, (QueuedCommand, Ready<T>)>,
    /// The data-out of those.
    asking_out: u64,
}

impl<T: Copy + Eq + Unpin> Executor<T> {
    /// Of a session with these turns.
    pub fn new(turns: Turns) -> Self {
        let (runs, waiting, asking) = <_>::default();
        Self { runs, held: 0, waiting, turns, asking, asking_out: 0 }
    }

    /// Gives a command back whose turn it is: any, unless clients have weights or rates. Keeps it otherwise until then. What
    /// moves no data does not wait: task management, reservations and administration are never held up by a rate.
    pub fn take_turn(&mut self, cx: &Context<'_>, ready: Ready<T>) -> Option<Ready<T>> {
        if !self.turns.is_active() || ready.record.kind == Kind::Other {
            return Some(ready);
        }
        let Place { lun, bytes, priority, in_order } = ready.place;
        match self.turns.ask(cx, lun, bytes, (priority, in_order)) {
            Turn::Now(service) => Some(Ready { service: Some(service), ..ready }),
            Turn::Later(ticket) => {
                self.asking_out += ready.record.out;
                self.asking.insert(ticket.number, (ticket, ready));
                None
            }
        }
    }

    /// The commands whose turn has come.
    pub fn poll_turns(&mut self, cx: &Context<'_>) -> Vec<Ready<T>> {
        if self.asking.is_empty() {
            return Vec::new();
        }
        let granted = self.turns.poll(cx).into_iter();
        let ready = granted.filter_map(|(number, service)| {
            let (_, ready) = self.asking.remove(&number)?;
            self.asking_out -= ready.record.out;
            Some(Ready { service: Some(service), ..ready })
        });
        ready.collect()
    }

    /// Whether so much data-out waits for its turn that no more should be asked for.
    pub const fn holds_back(&self) -> bool {
        self.asking_out >= HELD_BACK
    }

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
        self.runs.is_empty() && self.waiting.is_empty() && self.asking.is_empty()
    }

    /// Has the unit execute a command. The answer may be there at once: then nothing is kept of it.
    pub fn start(
        &mut self,
        cx: &mut Context<'_>,
        nexus: Nexus,
        ready: Ready<T>,
    ) -> Option<(T, CommandRecord, Response)> {
        let Ready { task, record, weight, unit, command, service, .. } = ready;
        let mut answer = unit.execute(nexus, command);
        match Pin::new(&mut answer).poll(cx) {
            Poll::Ready(response) => Some((task, record, response)),
            Poll::Pending => {
                self.held += weight;
                self.runs.push(Run { task, record, weight, answer, _service: service });
                None
            }
        }
    }

    /// Keeps a command until there is room for its answer. It does not count at its unit meanwhile: a client that does not
    /// take its answers holds up nobody else.
    pub fn wait(&mut self, ready: Ready<T>) {
        self.waiting.push_back(Ready { service: None, ..ready });
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
        let asking = self.asking.values().find(|(_, ready)| ready.task == task);
        if let Some(number) = asking.map(|(ticket, _)| ticket.number) {
            return self.stop_asking(number);
        }
        let at = self.waiting.iter().position(|ready| ready.task == task)?;
        self.waiting.remove(at)
    }

    fn stop_asking(&mut self, number: u64) -> Option<Ready<T>> {
        let (ticket, ready) = self.asking.remove(&number)?;
        self.asking_out -= ready.record.out;
        self.turns.cancel(&ticket);
        Some(ready)
    }

    /// Forgets what waits and ends what runs: nothing of this session reaches a unit afterwards.
    pub async fn drain(&mut self) {
        while let Some(number) = self.asking.keys().next().copied() {
            self.stop_asking(number);
        }
        self.waiting.clear();
        self.runs.iter().for_each(|run| run.answer.abort());
        while self.runs.next().await.is_some() {}
    }
}

impl<T> Drop for Executor<T> {
    fn drop(&mut self) {
        // Other sessions of this client may go on.
        self.asking.values().for_each(|(ticket, _)| self.turns.cancel(ticket));
    }
}
