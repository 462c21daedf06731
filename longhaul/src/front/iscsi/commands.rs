//! The commands of a session: from the protocol machine to the units and back, within the memory that the session has.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use proto::iscsi::pdu::Pieces;
use proto::iscsi::target::{self, Reply, Session, TaskId, Wanted};
use proto::scsi::{Parsed, Residual, Status, lun};
use proto::time::Time;
use tracing::warn;

use super::joining::Entry;
use crate::log_limiter::{LogLimiter, Permit};
use crate::target::executor::{CommandRecord, Executor, Place, Ready};
use crate::target::lun::{Command, LogicalUnit, Response, TargetDevice};
use crate::target::memory_quota::{Pools, Quota};
use crate::target::shares::Turns;

/// Unsent output up to which more is read whatever the session holds: reading may be what frees it.
const OUTPUT_MIN: usize = 256 << 10;

/// The longest answer of a command that moves no blocks.
const ANSWER_MAX: u32 = 64 << 10;

/// The commands under way.
pub(super) struct Commands {
    executor: Executor<TaskId>,
    quota: Quota,
    /// When the commands that are being taken in arrived.
    arrived: Time,
    /// Commands that have ended since the last count, with the bytes they moved.
    finished: Vec<(CommandRecord, u64)>,
    /// Commands that take this long are logged.
    slow: Duration,
}

impl Commands {
    pub(super) fn new(pools: &Pools, slow: Duration, turns: Turns) -> Self {
        let (executor, quota) = (Executor::new(turns), Quota::new(pools));
        Self { executor, quota, arrived: Time::ZERO, finished: Vec::new(), slow }
    }

    /// Whether no answer is awaited.
    pub(super) fn is_idle(&self) -> bool {
        self.executor.is_idle()
    }

    /// What is taken in from now on arrived at `now`.
    pub(super) const fn arrive(&mut self, now: Time) {
        self.arrived = now;
    }

    /// Takes a command, which runs at once if its data are there.
    pub(super) fn offer(
        &mut self,
        cx: &mut Context<'_>,
        (session, entry): (&mut Session, &Entry),
        device: &TargetDevice,
        command: &target::Command,
    ) {
        let unit = device.unit(command.lun);
        let parsed = parsed(unit, command);
        let asked = unit.data_out_len(&parsed);
        if let Some(data) = session.want_data(command.task, asked) {
            self.run(cx, (session, entry), unit, (command, parsed), data);
        }
    }

    /// Runs a command whose data came after it.
    pub(super) fn execute(
        &mut self,
        cx: &mut Context<'_>,
        session: (&mut Session, &Entry),
        device: &TargetDevice,
        command: &target::Command,
        data: Vec<Bytes>,
    ) {
        let unit = device.unit(command.lun);
        self.run(cx, session, unit, (command, parsed(unit, command)), data);
    }

    /// Runs a command, or lets it wait its turn.
    fn run(
        &mut self,
        cx: &mut Context<'_>,
        (session, entry): (&mut Session, &Entry),
        unit: &Arc<dyn LogicalUnit>,
        (command, parsed): (&target::Command, Parsed),
        data: Vec<Bytes>,
    ) {
        let &target::Command { task, announced, room, .. } = command;
        let unit = Arc::clone(unit);
        let asked = unit.working_memory(&parsed);
        let weight = self.weight(asked, room);
        let out = data.iter().map(|piece| piece.len() as u64).sum();
        let (kind, opcode) = (parsed.traits.kind, parsed.opcode);
        let record = CommandRecord { kind, opcode, started: self.arrived, out };
        entry.meter.began();
        let bytes = u64::from(asked).max(out);
        // Those of which the order matters the machine has offered one after the other.
        let lun = lun::decode(command.lun).unwrap_or_default();
        let place = Place { lun, bytes, ..Place::default() };
        let command = Command { parsed, data, announced };
        let ready = Ready { task, record, weight, unit, command, place, service: None };
        if let Some(ready) = self.executor.take_turn(cx, ready) {
            self.admit(cx, (session, entry), ready);
        }
    }

    /// Runs a command whose turn it is, if there is memory for its answer.
    fn admit(
        &mut self,
        cx: &mut Context<'_>,
        (session, entry): (&mut Session, &Entry),
        ready: Ready<TaskId>,
    ) {
        let weight = ready.weight;
        // Data-out are paid for already; a command with an answer must not take more behind those that wait.
        let total = self.held(session) + weight;
        let waits = weight > 0 && self.executor.next_weight().is_some();
        if weight == 0 || (!waits && self.quota.covers(cx, total)) {
            self.start(cx, session, entry, ready);
        } else {
            self.executor.wait(ready);
        }
    }

    /// The most that the answer to a command takes: what it asks for, even beyond what the initiator has room for, since
    /// it is cut only when it is there.
    fn weight(&self, asked: u32, room: u32) -> u64 {
        u64::from(asked.max(room.min(ANSWER_MAX))).min(self.quota.request_max())
    }

    fn start(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        entry: &Entry,
        ready: Ready<TaskId>,
    ) {
        let task = ready.task;
        if let Some((task, record, response)) = self.executor.start(cx, entry.nexus, ready) {
            self.answer(session, entry, (task, record), response);
        }
        session.begun(task);
    }

    /// Starts commands that waited, as far as it is their turn and there is memory now.
    pub(super) fn start_waiting(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        entry: &Entry,
    ) {
        // What was reserved for data of an aborted command may be what one that waits needs.
        self.quota.needs_later(session.solicited_later());
        for ready in self.executor.poll_turns(cx) {
            self.admit(cx, (session, entry), ready);
        }
        while let Some(weight) = self.executor.next_weight() {
            let total = self.held(session) + weight;
            if !self.quota.covers(cx, total) {
                return;
            }
            let Some(ready) = self.executor.pop_waiting() else { return };
            self.start(cx, session, entry, ready);
        }
    }

    /// Gives the machine the answers that have come; whether there were any.
    pub(super) fn poll_answers(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        entry: &Entry,
    ) -> bool {
        let mut any = false;
        while let Poll::Ready((task, record, response)) = self.executor.poll(cx) {
            self.answer(session, entry, (task, record), response);
            any = true;
        }
        any
    }

    /// A task was aborted: its answer is not sent, but the machine waits for its end.
    pub(super) fn abort(&mut self, session: &mut Session, entry: &Entry, task: TaskId) {
        if let Some(Ready { task, record, .. }) = self.executor.abort(task) {
            let (status, data, sense) = (Status::TaskAborted, Vec::new(), Bytes::new());
            self.answer(
                session,
                entry,
                (task, record),
                Response { status, data, sense, residual: Residual::None },
            );
        }
    }

    fn answer(
        &mut self,
        session: &mut Session,
        entry: &Entry,
        (task, record): (TaskId, CommandRecord),
        Response { status, data, sense, residual }: Response,
    ) {
        if session.is_aborted(task) {
            entry.meter.aborted();
        } else if status != Status::Good {
            entry.meter.ended_badly(record.kind, &sense);
        }
        let bytes = record.out + data.iter().map(|piece| piece.len() as u64).sum::<u64>();
        self.finished.push((record, bytes));
        session.complete(task, Reply { status, data: Pieces::from(data), sense, residual });
    }

    /// Lets the machine ask for data-out as far as there is memory for them.
    pub(super) fn solicit(&mut self, cx: &mut Context<'_>, session: &mut Session) {
        // What has come in part is fetched all the same: others may wait for its memory.
        if self.executor.holds_back() && session.solicited_later() == 0 {
            return;
        }
        while let Some(wanted) = session.solicited_wanted() {
            let Wanted { now, later } = wanted;
            let total = self.held(session) + now;
            if !self.quota.covers_part(cx, total, later) {
                return;
            }
            session.allow_solicited(session.solicited() + now);
        }
    }

    /// Bytes of the session that its quota has to cover.
    fn held(&self, session: &mut Session) -> u64 {
        // What a task has given back is to be paid for anew: without this it would be granted to the next one for nothing.
        session.allow_solicited(session.solicited());
        session.solicited() + self.executor.held() + session.unsent() as u64
    }

    /// Whether the initiator sends and does not take its answers, which must not be kept for it then.
    pub(super) fn is_overdrawn(&self, session: &mut Session) -> bool {
        session.unsent() > OUTPUT_MIN && self.held(session) > self.quota.limit()
    }

    /// Gives back the memory that nothing needs any more.
    pub(super) fn give_back(&mut self, session: &mut Session) {
        let (held, later) = (self.held(session), session.solicited_later());
        self.quota.settle(held, later);
    }

    /// Counts what has ended, with one look at the clock.
    pub(super) fn count(
        &mut self,
        now: impl FnOnce() -> Time,
        entry: &Entry,
        limiter: &LogLimiter,
    ) {
        if self.finished.is_empty() {
            return;
        }
        let now = now();
        for (record, bytes) in self.finished.drain(..) {
            let took = now - record.started;
            entry.meter.ended(record.kind, bytes, took);
            if took >= self.slow {
                report_slow(limiter, entry, record, bytes, took);
            }
        }
    }

    /// Forgets what waits and ends what runs: nothing of this session reaches a unit afterwards.
    pub(super) async fn drain(&mut self) {
        self.executor.drain().await;
    }
}

/// The command as its unit reads it.
fn parsed(unit: &Arc<dyn LogicalUnit>, command: &target::Command) -> Parsed {
    Parsed::of(&command.cdb, unit.device_type())
}

fn report_slow(
    limiter: &LogLimiter,
    entry: &Entry,
    record: CommandRecord,
    bytes: u64,
    took: Duration,
) {
    let peer = entry.transport.peer;
    let Some(Permit { suppressed }) = limiter.permit(peer) else { return };
    let (initiator, target) = (&*entry.identity.name, entry.identity.target.as_deref());
    let opcode = format!("{:#04x}", record.opcode);
    warn!(%peer, initiator, target, opcode, bytes, ?took, suppressed, "slow command");
}
