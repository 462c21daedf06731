//! Data-out: immediate, unsolicited, and asked for by R2T (RFC 7143, 4.2.5.2 and 11.7).

use std::collections::VecDeque;

use bytes::Bytes;

use super::Event;
use super::budget::Account;
use super::session::Session;
use super::task::{State, Task, TaskId};
use crate::iscsi::header::{DataOut, NO_TAG, R2t, RejectReason, ScsiCommand};
use crate::iscsi::keys::Parameters;
use crate::iscsi::pdu::Pdu;
use crate::scsi::sense::{Additional, Format, Key};
use crate::scsi::{Sense, Status, lun};

/// Below this, data that wait are copied. Larger ones are a good part of the buffer they came in.
const COMPACT_BELOW: usize = 16 << 10;

/// How much a session is asked for ahead of what has come, before it has sent anything; and the most that one task
/// reserves at once or not at all.
const AHEAD: u64 = 1 << 20;

/// The least that is reserved for a task of which more is to come: less would be asked for by many small R2Ts.
const STEP_MIN: u64 = 256 << 10;

/// How the initiator broke a data transfer; each ends the task, not the session, with the sense data of
/// RFC 7143, 11.4.7.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Data nobody allowed to be sent.
    UnexpectedUnsolicitedData,
    /// More or less than announced, or at another place.
    IncorrectAmountOfData,
    /// Damaged on the way, or lost: a gap in DataSN means that, and level 0 cannot ask again.
    ProtocolServiceCrc,
    /// There is no room for it; it may be sent again.
    Full,
    /// Data that answer an R2T and name another unit than it did.
    OtherUnit,
    /// Both directions at once, which no unit here has a command for.
    Bidirectional,
}

impl Fault {
    /// The status it is answered with, and the sense data (RFC 7143, 11.4.7.2).
    fn outcome(self) -> (Status, Bytes) {
        let (key, code, qualifier) = match self {
            Self::Full => return (Status::TaskSetFull, Bytes::new()),
            Self::UnexpectedUnsolicitedData => (Key::AbortedCommand, 0x0c, 0x0c),
            Self::IncorrectAmountOfData => (Key::AbortedCommand, 0x0c, 0x0d),
            Self::ProtocolServiceCrc => (Key::AbortedCommand, 0x47, 0x05),
            // INVALID INFORMATION UNIT.
            Self::OtherUnit => (Key::AbortedCommand, 0x0e, 0x00),
            // INVALID FIELD IN COMMAND INFORMATION UNIT.
            Self::Bidirectional => (Key::IllegalRequest, 0x0e, 0x03),
        };
        let sense = Sense::new(key, Additional { code, qualifier });
        (Status::CheckCondition, sense.emit(Format::Fixed).into())
    }
}

/// A run of Data-Out PDUs: unsolicited, or what answers one R2T.
#[derive(Debug, Default)]
struct Sequence {
    ttt: u32,
    /// Where its data begin in the transfer.
    offset: u32,
    /// How many bytes it is to carry.
    len: u32,
    data_sn: u32,
    received: u32,
    data: Vec<Bytes>,
    /// The PDU with the F bit is still to come.
    open: bool,
}

impl Sequence {
    /// Takes one PDU. Its F bit counts even when the rest of it is wrong, since what matters then is
    /// when the initiator has ended.
    fn take(&mut self, header: &DataOut, data: Bytes) -> Result<(), Fault> {
        self.open = !header.is_final;
        // RFC 7143, 11.7.5: DataSN counts from zero within each sequence.
        if header.data_sn != self.data_sn {
            return Err(Fault::ProtocolServiceCrc);
        }
        self.data_sn = self.data_sn.wrapping_add(1);
        let len = data.len() as u32;
        let follows = header.buffer_offset == self.offset.wrapping_add(self.received);
        if !follows || len > self.len - self.received {
            return Err(Fault::IncorrectAmountOfData);
        }
        self.received += len;
        if len > 0 {
            self.data.push(data);
        }
        // RFC 7143, 11.7.1: F ends a sequence, by when all that was announced has come. It may come alone,
        // in a PDU without data (11.7.7).
        let short = header.is_final && self.received < self.len;
        if short { Err(Fault::IncorrectAmountOfData) } else { Ok(()) }
    }
}

/// The data-out of one task.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    unsolicited: Sequence,
    /// In order of R2TSN, which is the order of offsets as well (RFC 7143, 13.19).
    solicited: VecDeque<Sequence>,
    /// How much the command block asks for, whatever was announced.
    pub(super) asked: u32,
    /// How much is fetched: no more than announced.
    wanted: u32,
    /// How much was sent without asking or has been asked for.
    requested: u32,
    r2t_sn: u32,
    /// Bytes of the session's allowance of solicited data this task holds: no more is asked for.
    reserved: u32,
    /// How many of them have come.
    arrived: u32,
    /// Bytes of unsolicited data it holds, or has let the initiator send.
    unsolicited_held: u32,
}

impl Inbound {
    /// What a command brings and announces, and what is wrong with that.
    pub(super) fn begin(
        parameters: &Parameters,
        command: &ScsiCommand,
        data: Bytes,
    ) -> (Self, Option<Fault>) {
        let len = data.len() as u32;
        let expected = if command.write { command.expected_len } else { 0 };
        // RFC 7143, 13.14: immediate and unsolicited data together.
        let most = parameters.first_burst.min(expected);
        let more = command.write && !command.is_final;
        let fault = if command.read && command.write && expected > 0 {
            Some(Fault::Bidirectional)
        } else if (len > 0 && !(command.write && parameters.immediate_data))
            || (more && parameters.initial_r2t)
        {
            // RFC 7143, 13.10 and 13.11.
            Some(Fault::UnexpectedUnsolicitedData)
        } else if len > most || (more && len == most) {
            Some(Fault::IncorrectAmountOfData)
        } else {
            None
        };
        // With F clear, the unsolicited burst has its full length (RFC 7143, 4.2.5.2), so that the
        // rest can be asked for before it has come.
        let announced = if more { most } else { len };
        let unsolicited = Sequence {
            ttt: NO_TAG,
            len: announced.max(len),
            received: len,
            data: if len > 0 && fault.is_none() { vec![data] } else { Vec::new() },
            open: more,
            ..Sequence::default()
        };
        (Self { unsolicited, requested: announced, ..Self::default() }, fault)
    }

    /// Has its unsolicited data accounted for, those still to come among them.
    pub(super) fn hold(&mut self, account: &mut Account) -> Option<Fault> {
        if !account.take(self.unsolicited.len.into()) {
            return Some(Fault::Full);
        }
        self.unsolicited_held = self.unsolicited.len;
        None
    }

    /// Whether the initiator still sends.
    pub(super) fn is_open(&self) -> bool {
        self.unsolicited.open || self.solicited.iter().any(|sequence| sequence.open)
    }

    fn is_complete(&self) -> bool {
        !self.is_open() && self.requested >= self.wanted
    }

    /// How much is to be asked for that nothing is reserved for.
    fn unreserved(&self) -> u32 {
        self.wanted.saturating_sub(self.unsolicited.len).saturating_sub(self.reserved)
    }

    /// How much is reserved and not asked for.
    fn unasked(&self) -> u32 {
        self.reserved.saturating_sub(self.requested - self.unsolicited.len)
    }

    /// Whether the initiator was asked for data that have not come.
    fn is_solicited(&self) -> bool {
        self.solicited.iter().any(|sequence| sequence.open)
    }

    fn sequence(&mut self, ttt: u32) -> Option<&mut Sequence> {
        let all = std::iter::once(&mut self.unsolicited).chain(&mut self.solicited);
        let mut open = all.filter(|sequence| sequence.open);
        open.find(|sequence| sequence.ttt == ttt)
    }

    /// All data, in order of offset, cut to what is wanted.
    fn take_data(&mut self) -> Vec<Bytes> {
        let mut data = std::mem::take(&mut self.unsolicited.data);
        for sequence in &mut self.solicited {
            data.append(&mut sequence.data);
        }
        let mut left = self.wanted as usize;
        data.retain_mut(|piece| {
            let len = piece.len();
            piece.truncate(left);
            left -= piece.len();
            if piece.len() < len.div_ceil(2) {
                // Whoever keeps them would keep what was sent beyond them too, and count it for nothing.
                *piece = Bytes::copy_from_slice(piece);
            }
            !piece.is_empty()
        });
        data
    }

    /// Data that wait for the rest leave the buffer they came in, if they are small: it may be much larger
    /// than they are, and nothing else be left of it.
    pub(super) fn compact(&mut self) {
        for data in self.unsolicited.data.iter_mut().filter(|data| data.len() < COMPACT_BELOW) {
            *data = Bytes::copy_from_slice(data);
        }
    }

    /// Drops what has come: it will not be used.
    pub(super) fn discard(&mut self) {
        self.unsolicited.data.clear();
        self.solicited.iter_mut().for_each(|sequence| sequence.data.clear());
    }
}

/// The session's allowance of solicited data, granted in turn. One task at a time holds a part of what it needs; the
/// next one begins when that has all.
#[derive(Debug)]
pub(super) struct Allowance {
    held: u64,
    most: u64,
    waiting: VecDeque<TaskId>,
    /// Bytes that are reserved and have not come.
    awaited: u64,
    /// All solicited bytes that have come: an initiator is asked for as much ahead as it has sent, so that one that
    /// sends nothing holds little, and one that sends soon holds what its link takes.
    arrived: u64,
}

impl Allowance {
    pub(super) const fn new(most: u64) -> Self {
        Self { held: 0, most, waiting: VecDeque::new(), awaited: 0, arrived: 0 }
    }

    /// How much of `unreserved` bytes may be reserved next; `None` if data have to come before that.
    fn step(&self, unreserved: u64, begun: bool) -> Option<u64> {
        let room = (AHEAD + self.arrived).saturating_sub(self.awaited);
        let whole = !begun && unreserved <= AHEAD;
        let least = if whole { unreserved } else { unreserved.min(STEP_MIN) };
        (room >= least).then_some(unreserved.min(room))
    }
}

/// What the task that waits first needs of solicited data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes to reserve now.
    pub now: u64,
    /// Bytes that it cannot end without and that are to be reserved later, while it holds those of now.
    pub later: u64,
}

impl Session {
    /// How many bytes of solicited data are on their way or in commands that run.
    #[must_use]
    pub const fn solicited(&self) -> u64 {
        self.allowance.held
    }

    /// What the command that waits first needs next.
    pub fn solicited_wanted(&mut self) -> Option<Wanted> {
        self.grant();
        self.next_step().map(|(_, wanted)| wanted)
    }

    /// What the command needs yet that holds a part of its solicited data.
    pub fn solicited_later(&mut self) -> u64 {
        let first = self.allowance.waiting.front().copied();
        let task = first.and_then(|id| self.tasks.get(id));
        let task = task.filter(|task| task.state == State::Collecting && task.inbound.reserved > 0);
        task.map_or(0, |task| task.inbound.unreserved().into())
    }

    /// Allows `most` bytes of solicited data from now on. What has been asked for stays so.
    pub fn allow_solicited(&mut self, most: u64) {
        self.allowance.most = most;
        self.grant();
    }

    /// The front wants `asked` bytes of data-out for a task. Gives them if they are there already;
    /// otherwise they come with [`Event::Execute`].
    pub fn want_data(&mut self, id: TaskId, asked: u32) -> Option<Vec<Bytes>> {
        let task = self.tasks.get(id).filter(|task| task.state == State::Offered)?;
        let announced = if task.write { task.expected } else { 0 };
        let inbound = &mut task.inbound;
        inbound.asked = asked;
        // Bytes beyond the expected length are never asked for (RFC 7143, 4.2.5.2 and 11.3.4).
        inbound.wanted = asked.min(announced);
        if inbound.is_complete() {
            task.state = State::Running;
            return Some(inbound.take_data());
        }
        task.state = State::Collecting;
        inbound.compact();
        if inbound.unreserved() > 0 {
            self.allowance.waiting.push_back(id);
            self.grant();
        }
        None
    }

    pub(super) fn on_data_out(&mut self, cid: u16, header: &DataOut, pdu: Pdu) {
        // Data of a task that is gone, because it was aborted or never existed, are drained: an initiator
        // may go on answering its R2Ts (RFC 7143, 4.2.3.3).
        let Some(id) = self.tasks.find(header.itt) else { return };
        self.stalled_since = None;
        let len = pdu.data.len() as u32;
        let Some(task) = self.tasks.get(id) else { return };
        // RFC 7143, 4.2.5.1: data come on the connection of their command.
        if task.cid != cid {
            return self.reject(cid, &pdu, RejectReason::PROTOCOL_ERROR);
        }
        // RFC 7143, 4.2.5.3 and 11.7.4: what answers an R2T names the unit of the command; in other data the
        // field is reserved.
        if header.ttt != NO_TAG && !lun::is_same(header.lun, task.lun_field) {
            self.reject(cid, &pdu, RejectReason::PROTOCOL_ERROR);
            return self.spoil(id, header, Fault::OtherUnit);
        }
        let outcome = match task.inbound.sequence(header.ttt) {
            Some(sequence) => sequence.take(header, pdu.data),
            None => Err(Fault::UnexpectedUnsolicitedData),
        };
        match outcome {
            Err(fault) => self.fail(id, fault),
            Ok(()) => {
                self.arrived(id, header, len);
                self.proceed(id);
                self.grant();
            }
        }
    }

    /// Data that were asked for have come: more may be asked for.
    fn arrived(&mut self, id: TaskId, header: &DataOut, len: u32) {
        if header.ttt == NO_TAG {
            return;
        }
        if let Some(task) = self.tasks.get(id) {
            task.inbound.arrived += len;
            self.allowance.awaited -= u64::from(len);
            self.allowance.arrived = self.allowance.arrived.saturating_add(len.into());
        }
    }

    /// Whether data are to come that take up memory: those that were asked for, and those that were announced if they
    /// exceed the share of the session.
    pub(super) fn awaits_data(&self) -> bool {
        let beyond_share = self.unsolicited.is_borrowing();
        self.tasks.any(|task| {
            let inbound = &task.inbound;
            inbound.is_solicited() || (beyond_share && inbound.is_open())
        })
    }

    /// Data of this PDU were damaged.
    pub(super) fn on_damaged_data_out(&mut self, cid: u16, header: &DataOut) {
        let id = self.tasks.find(header.itt);
        let ours = |id: &TaskId| self.tasks.get(*id).is_some_and(|task| task.cid == cid);
        if let Some(id) = id.filter(ours) {
            self.spoil(id, header, Fault::ProtocolServiceCrc);
        }
    }

    /// A PDU that was rejected takes its task with it (RFC 7143, 11.17.1). Its header says whether more follow.
    fn spoil(&mut self, id: TaskId, header: &DataOut, fault: Fault) {
        let sequence = self.tasks.get(id).and_then(|task| task.inbound.sequence(header.ttt));
        if let Some(sequence) = sequence {
            sequence.open = !header.is_final;
            self.fail(id, fault);
        }
    }

    /// Ends a task for a fault of its transfer, after the initiator has sent what it still sends: the
    /// response must not overtake data it believes are wanted (RFC 7143, 11.17.1).
    fn fail(&mut self, id: TaskId, fault: Fault) {
        let Some(task) = self.tasks.get(id) else { return };
        match task.state {
            State::Offered | State::Collecting => task.state = State::Failing(fault),
            State::Ahead(None) => task.state = State::Ahead(Some(fault)),
            _ => {}
        }
        self.proceed(id);
    }

    /// Does what the task's data allow: run it, answer its fault, or ask for more.
    pub(super) fn proceed(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        match task.state {
            State::Failing(fault) => {
                task.inbound.discard();
                if !task.inbound.is_open() {
                    self.answer_fault(id, fault);
                }
            }
            State::Collecting if task.inbound.is_complete() => {
                task.state = State::Running;
                let (command, data) = (task.command(id), task.inbound.take_data());
                self.events.push_back(Event::Execute { command, data });
            }
            State::Collecting => self.solicit(id),
            State::Ahead(Some(_)) => task.inbound.discard(),
            State::Ahead(None) | State::Offered | State::Running | State::Aborted => {}
        }
    }

    fn answer_fault(&mut self, id: TaskId, fault: Fault) {
        let (status, sense) = fault.outcome();
        let data = crate::iscsi::pdu::Pieces::new();
        self.complete(id, super::Reply { status, data, sense });
    }

    /// Gives the tasks that wait their part of the allowance, first come first served.
    fn grant(&mut self) {
        while let Some((id, Wanted { now, later })) = self.next_step() {
            let allowance = &mut self.allowance;
            if allowance.held + now > allowance.most {
                return;
            }
            allowance.held += now;
            allowance.awaited += now;
            if later == 0 {
                allowance.waiting.pop_front();
            }
            if let Some(task) = self.tasks.get(id) {
                task.inbound.reserved += now as u32;
            }
            self.solicit(id);
        }
    }

    /// The task that waits first, and what is to be reserved for it next.
    fn next_step(&mut self) -> Option<(TaskId, Wanted)> {
        loop {
            let &id = self.allowance.waiting.front()?;
            let task = self.tasks.get(id).filter(|task| task.state == State::Collecting);
            let needed = task.map(|task| (task.inbound.unreserved(), task.inbound.reserved > 0));
            if let Some((unreserved, begun)) = needed.filter(|(unreserved, _)| *unreserved > 0) {
                let now = self.allowance.step(unreserved.into(), begun)?;
                return Some((id, Wanted { now, later: u64::from(unreserved) - now }));
            }
            self.allowance.waiting.pop_front();
        }
    }

    /// A task is gone: what it held and what waited for it is free.
    pub(super) fn release(&mut self, id: TaskId, task: &Task) {
        self.order.forget(id);
        self.offer_next();
        self.unsolicited.give(task.inbound.unsolicited_held.into());
        if task.inbound.reserved > 0 {
            self.allowance.held -= u64::from(task.inbound.reserved);
            self.allowance.awaited -= u64::from(task.inbound.reserved - task.inbound.arrived);
            self.grant();
        }
    }

    /// Sends the R2Ts a task may have: for what is reserved, at most MaxBurstLength each (RFC 7143, 13.13) and
    /// MaxOutstandingR2T open (13.17), in order of offset (13.19).
    fn solicit(&mut self, id: TaskId) {
        let (most, burst) = (self.parameters.max_outstanding_r2t, self.parameters.max_burst);
        self.begin_awaiting();
        let (exp_cmd_sn, max_cmd_sn) = self.command_numbers();
        let Self { tasks, connections, .. } = self;
        let Some(task) = tasks.get(id) else { return };
        let Some(connection) = connections.iter_mut().find(|it| it.cid == task.cid) else { return };
        let inbound = &mut task.inbound;
        loop {
            let open = inbound.solicited.iter().filter(|sequence| sequence.open).count();
            let left = inbound.unasked();
            if left == 0 || open >= usize::from(most) {
                return;
            }
            let len = left.min(burst);
            let (ttt, offset) = (connection.tag(), inbound.requested);
            let sequence = Sequence { ttt, offset, len, open: true, ..Sequence::default() };
            inbound.solicited.push_back(sequence);
            inbound.requested += len;
            let r2t_sn = inbound.r2t_sn;
            inbound.r2t_sn += 1;
            connection.outbox.push(R2t {
                lun: task.lun_field,
                itt: task.itt,
                ttt,
                stat_sn: connection.stat_sn(),
                exp_cmd_sn,
                max_cmd_sn,
                r2t_sn,
                buffer_offset: offset,
                desired_len: len,
            });
        }
    }
}
