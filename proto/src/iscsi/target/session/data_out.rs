//! Data-out: immediate, unsolicited, and asked for by R2T (RFC 7143, 4.2.5.2 and 11.7).

use bytes::Bytes;

use super::Session;
use crate::iscsi::header::{DataOut, NO_TAG, R2t, RejectReason};
use crate::iscsi::pdu::{Pdu, Pieces};
use crate::iscsi::target::inbound::Fault;
use crate::iscsi::target::solicited_quota::Wanted;
use crate::iscsi::target::task::{State, Task, TaskId};
use crate::iscsi::target::{Event, Reply};
use crate::scsi::{Residual, lun};

impl Session {
    /// How many bytes of solicited data are on their way or in commands that run.
    #[must_use]
    pub const fn solicited(&self) -> u64 {
        self.allowance.held()
    }

    /// What the command that waits first needs next.
    pub fn solicited_wanted(&mut self) -> Option<Wanted> {
        self.grant();
        self.next_step().map(|(_, wanted)| wanted)
    }

    /// What the command needs yet that holds a part of its solicited data.
    pub fn solicited_later(&mut self) -> u64 {
        let task = self.allowance.first().and_then(|id| self.tasks.get(id));
        let task = task.filter(|task| task.state == State::Collecting);
        let begun = task.filter(|task| task.inbound.solicited_held().0 > 0);
        begun.map_or(0, |task| task.inbound.unreserved().into())
    }

    /// Allows `most` bytes of solicited data from now on. What has been asked for stays so.
    pub fn allow_solicited(&mut self, most: u64) {
        self.allowance.set_most(most);
        self.grant();
    }

    /// The front wants `asked` bytes of data-out for a task. Gives them if they are there already;
    /// otherwise they come with [`Event::Execute`].
    pub fn want_data(&mut self, id: TaskId, asked: u32) -> Option<Vec<Bytes>> {
        let task = self.tasks.get(id).filter(|task| task.state == State::Offered)?;
        let announced = if task.write { task.expected } else { 0 };
        let inbound = &mut task.inbound;
        inbound.want(asked, announced);
        if inbound.is_complete() {
            task.state = State::Running;
            return Some(inbound.take_data());
        }
        task.state = State::Collecting;
        inbound.compact();
        if inbound.unreserved() > 0 {
            self.allowance.wait(id);
            self.grant();
        }
        None
    }

    /// The front has handed a command to its unit. It is offered those behind it only then, where the unit keeps their order.
    pub fn begun(&mut self, id: TaskId) {
        if self.order.begun(id) {
            self.offer_next();
        }
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
            return self.fail_data_out(id, header, Fault::OtherUnit);
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
            task.inbound.arrive(len);
            self.allowance.arrive(len.into());
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
            self.fail_data_out(id, header, Fault::ProtocolServiceCrc);
        }
    }

    /// A PDU that was rejected takes its task with it (RFC 7143, 11.17.1). Its header says whether more follow.
    fn fail_data_out(&mut self, id: TaskId, header: &DataOut, fault: Fault) {
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
            State::Failing(fault) => self.proceed_to_fail(id, fault),
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

    /// Answers a fault once the initiator has sent all. What is behind it does not begin meanwhile, if it must not later.
    fn proceed_to_fail(&mut self, id: TaskId, fault: Fault) {
        let Some(task) = self.tasks.get(id) else { return };
        task.inbound.discard();
        let (is_open, cdb) = (task.inbound.is_open(), task.cdb);
        if self.stops_behind(&cdb) {
            self.stop();
        }
        if !is_open {
            self.answer_fault(id, fault);
        }
    }

    fn answer_fault(&mut self, id: TaskId, fault: Fault) {
        let (status, sense) = fault.outcome();
        self.complete(id, Reply { status, data: Pieces::new(), sense, residual: Residual::None });
    }

    /// Gives the tasks that wait their part of the allowance, first come first served.
    fn grant(&mut self) {
        while let Some((id, Wanted { now, later })) = self.next_step() {
            if !self.allowance.reserve(now) {
                return;
            }
            if later == 0 {
                self.allowance.pass();
            }
            if let Some(task) = self.tasks.get(id) {
                task.inbound.reserve(now as u32);
            }
            self.solicit(id);
        }
    }

    /// The task that waits first, and what is to be reserved for it next.
    fn next_step(&mut self) -> Option<(TaskId, Wanted)> {
        loop {
            let id = self.allowance.first()?;
            let task = self.tasks.get(id).filter(|task| task.state == State::Collecting);
            let needed =
                task.map(|task| (task.inbound.unreserved(), task.inbound.solicited_held().0 > 0));
            if let Some((unreserved, begun)) = needed.filter(|(unreserved, _)| *unreserved > 0) {
                let now = self.allowance.step(unreserved.into(), begun)?;
                return Some((id, Wanted { now, later: u64::from(unreserved) - now }));
            }
            self.allowance.pass();
        }
    }

    /// A task is gone: what it held and what waited for it is free.
    pub(super) fn release(&mut self, id: TaskId, task: &Task) {
        self.order.forget(id);
        self.offer_next();
        self.unsolicited.give(task.inbound.unsolicited_held().into());
        let (reserved, arrived) = task.inbound.solicited_held();
        if reserved > 0 {
            self.allowance.release(reserved.into(), arrived.into());
            self.grant();
        }
    }

    /// Sends the R2Ts a task may have.
    fn solicit(&mut self, id: TaskId) {
        let limits = (self.parameters.max_outstanding_r2t, self.parameters.max_burst);
        self.begin_awaiting();
        let (exp_cmd_sn, max_cmd_sn) = self.command_numbers();
        let Self { tasks, connections, .. } = self;
        let Some(task) = tasks.get(id) else { return };
        let Some(connection) = connections.iter_mut().find(|it| it.cid == task.cid) else { return };
        while let Some(asked) = task.inbound.ask(limits, || connection.tag()) {
            connection.outbox.push(R2t {
                lun: task.lun_field,
                itt: task.itt,
                ttt: asked.ttt,
                stat_sn: connection.stat_sn(),
                exp_cmd_sn,
                max_cmd_sn,
                r2t_sn: asked.r2t_sn,
                buffer_offset: asked.offset,
                desired_len: asked.len,
            });
        }
    }
}
