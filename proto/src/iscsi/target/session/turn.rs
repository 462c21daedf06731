//! The order of requests: CmdSN, whatever connection they came by (RFC 7143, 4.2.2.1).
//!
//! A command that came before its turn is a task at once, since its data come on its connection and do not
//! wait for what is late on another. What waits is that it is offered to the front.

use super::Session;
use crate::iscsi::header::{Header, ScsiCommand, TaskAttribute};
use crate::iscsi::pdu::Pdu;
use crate::iscsi::target::inbound::Inbound;
use crate::iscsi::target::task::{State, TaskId};
use crate::iscsi::target::{AHEAD_MAX, Event};
use crate::iscsi::window::{Admission, Serial};

/// A request that waits for those before it, or is the next.
#[derive(Debug)]
pub(super) enum Waiting {
    /// What came, and by which connection.
    Pdu(u16, Pdu),
    /// A command whose task has begun. It may be gone by now.
    Task(TaskId),
}

impl Session {
    /// Requests in order are delivered in order; immediate ones at once (RFC 7143, 4.2.2.1).
    pub(super) fn admit(&mut self, cid: u16, pdu: Pdu) {
        let Some(sn) = order_of(&pdu.header).map(Serial) else {
            self.deliver(cid, pdu);
            // An abort may have made up for what a held command waited for.
            return self.deliver_held();
        };
        if sn != self.window.expected() {
            return self.hold(cid, sn, pdu);
        }
        if let Admission::Next(Waiting::Pdu(cid, pdu)) =
            self.window.admit(sn, Waiting::Pdu(cid, pdu))
        {
            self.deliver(cid, pdu);
            self.deliver_held();
        }
    }

    /// A request came before its turn, or is none: what lies outside the window is ignored silently.
    fn hold(&mut self, cid: u16, sn: Serial, pdu: Pdu) {
        if !self.window.awaits(sn) {
            return;
        }
        let waiting = match &pdu.header {
            Header::ScsiCommand(command) if !self.setup.discovery => {
                if let Err(reason) = self.may_begin(cid, command) {
                    self.window.skip(sn);
                    return self.reject(cid, &pdu, reason);
                }
                Waiting::Task(self.begin_ahead(cid, command, &pdu))
            }
            _ if pdu.data.len() > AHEAD_MAX => return,
            _ => Waiting::Pdu(cid, pdu),
        };
        self.window.admit(sn, waiting);
    }

    fn begin_ahead(&mut self, cid: u16, command: &ScsiCommand, pdu: &Pdu) -> TaskId {
        let (mut inbound, fault) = Inbound::begin(&self.parameters, command, pdu.data.clone());
        let fault = fault.or_else(|| inbound.hold(&mut self.unsolicited));
        if fault.is_some() {
            inbound.discard();
        }
        inbound.compact();
        self.begin_task(cid, command, inbound, State::Ahead(fault))
    }

    pub(super) fn deliver_held(&mut self) {
        while let Some(waiting) = self.window.pop_ready() {
            match waiting {
                Waiting::Pdu(cid, pdu) => self.deliver(cid, pdu),
                Waiting::Task(id) => self.take_turn(id),
            }
        }
        self.settle_received();
    }

    /// It is the turn of a command that came before.
    fn take_turn(&mut self, id: TaskId) {
        let Some(fault) = self.tasks.end_ahead(id) else { return };
        match fault {
            None => self.offer_task(id),
            Some(_) => self.proceed(id),
        }
    }

    /// A command has come to its turn: it is offered when its attribute allows it.
    pub(super) fn offer(&mut self, id: TaskId, attribute: TaskAttribute) {
        let is_unordered = self.tasks.get(id).is_some_and(|task| task.is_unordered);
        let waits_for_none = is_unordered || attribute == TaskAttribute::HEAD_OF_QUEUE;
        if waits_for_none && !self.order.is_stopped() {
            self.push_command(id);
        } else {
            self.order.push(id);
            self.offer_next();
        }
    }

    /// Offers what need not wait any more.
    pub(super) fn offer_next(&mut self) {
        while let Some(id) = self.order.next(&mut self.tasks) {
            self.push_command(id);
        }
    }

    fn push_command(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(id) {
            self.events.push_back(Event::Command(task.command(id)));
        }
    }
}

/// The CmdSN of a PDU that takes a place in the command order: `None` for immediate ones, which carry
/// the number without using it (RFC 7143, 4.2.2.1), and for those that have none.
pub(super) const fn order_of(header: &Header) -> Option<u32> {
    let (immediate, cmd_sn) = match header {
        Header::NopOut(h) => (h.immediate, h.cmd_sn),
        Header::ScsiCommand(h) => (h.immediate, h.cmd_sn),
        Header::TaskManagementRequest(h) => (h.immediate, h.cmd_sn),
        Header::TextRequest(h) => (h.immediate, h.cmd_sn),
        Header::LogoutRequest(h) => (h.immediate, h.cmd_sn),
        _ => return None,
    };
    if immediate { None } else { Some(cmd_sn) }
}
