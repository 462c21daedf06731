//! The session: takes frames, hands each to its concern, and keeps what they share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::budget::Account;
use super::connection::{Connection, Numbers, Pulse};
use super::data_out::{Allowance, Fault, Inbound};
use super::management::Management;
use super::order::Order;
use super::task::{State, Task, TaskId, Tasks};
use super::text::Exchange;
use super::{AHEAD_MAX, Ending, Event, IMMEDIATE_MAX, Setup, WINDOW};
use crate::iscsi::header::{
    AsyncEvent, AsyncMessage, BHS_LEN, Header, Lengths, LogoutReason, LogoutRequest,
    LogoutResponseCode, NO_TAG, NopIn, NopOut, Reject, RejectReason, ScsiCommand,
};
use crate::iscsi::keys::Parameters;
use crate::iscsi::pdu::{Flaw, Frame, Outbox, Pdu};
use crate::iscsi::window::{Admission, CommandWindow, Serial};
use crate::scsi::lun;
use crate::time::Time;

/// One session of a target, with its connection.
#[derive(Debug)]
pub struct Session {
    pub(super) parameters: Parameters,
    pub(super) discovery: bool,
    pub(super) connection: Connection,
    pub(super) window: CommandWindow<Pdu>,
    /// How far the window opens at most.
    window_max: u32,
    pub(super) unsolicited: Account,
    pub(super) tasks: Tasks,
    pub(super) order: Order,
    pub(super) allowance: Allowance,
    pub(super) management: Management,
    pub(super) text: Option<Exchange>,
    pub(super) events: VecDeque<Event>,
    /// A logout was asked for: when it is overdue.
    logout_by: Option<Time>,
    /// Nothing that comes is acted on any more.
    closing: bool,
}

impl Session {
    /// A session whose login has just ended. Digests begin with the next PDU either way.
    #[must_use]
    pub fn new(now: Time, parameters: Parameters, setup: &Setup) -> Self {
        let mut connection = Connection::new(now, setup);
        connection.outbox.set_digests(parameters.header_digest, parameters.data_digest);
        let mut window = CommandWindow::new(Serial(setup.exp_cmd_sn));
        window.open(setup.window);
        Self {
            parameters,
            discovery: setup.discovery,
            connection,
            window,
            window_max: setup.window_max.clamp(1, WINDOW),
            unsolicited: Account::new(Arc::clone(&setup.unsolicited)),
            tasks: Tasks::default(),
            order: Order::default(),
            allowance: Allowance::new(setup.solicited),
            management: Management::default(),
            text: None,
            events: VecDeque::new(),
            logout_by: None,
            closing: false,
        }
    }

    /// What is to be sent.
    pub const fn outbox(&mut self) -> &mut Outbox {
        &mut self.connection.outbox
    }

    /// The next thing the front has to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Bytes came, perhaps not yet a frame.
    pub const fn heard(&mut self, now: Time) {
        self.connection.heard(now);
    }

    /// A frame came.
    pub fn handle(&mut self, now: Time, frame: Frame) {
        self.connection.outbox.tick(now);
        self.connection.heard(now);
        if self.closing {
            return;
        }
        match frame {
            Frame::Pdu(pdu) => self.admit(pdu),
            Frame::Flawed { bhs, flaw } => self.on_flawed(&bhs, flaw),
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due. It may move back as bytes come, never
    /// forward by itself.
    #[must_use]
    pub fn deadline(&self) -> Time {
        let pulse = self.connection.deadline();
        self.logout_by.map_or(pulse, |logout| logout.min(pulse))
    }

    /// The deadline, perhaps an earlier one, has come.
    pub fn handle_timeout(&mut self, now: Time) {
        self.connection.outbox.tick(now);
        if self.logout_by.is_some_and(|by| by <= now) {
            return self.close(Ending::LogoutOverdue);
        }
        match self.connection.pulse(now) {
            Pulse::Quiet => {}
            Pulse::Ping => self.send_ping(),
            Pulse::Dead => self.close(Ending::Silent),
        }
    }

    /// Asks the initiator to log out within `patience` (RFC 7143, 11.9.1, event 1).
    pub fn request_logout(&mut self, now: Time, patience: Duration) {
        if self.logout_by.is_none() && !self.closing {
            self.logout_by = Some(now + patience);
            let seconds = u16::try_from(patience.as_secs()).unwrap_or(u16::MAX);
            self.send_async(AsyncEvent::LOGOUT_REQUEST, [0, 0, seconds]);
        }
    }

    /// Says that the connections of the session are about to be dropped, so that the initiator need
    /// not find out by itself (RFC 7143, 11.9.1, event 3).
    pub fn announce_drop(&mut self) {
        let wait = self.parameters.default_time2wait;
        self.send_async(AsyncEvent::DROP_SESSION, [0, wait, 0]);
    }

    /// Whether a task was aborted after the front got it: it need not begin what it has not begun, but
    /// has to [`complete`](Self::complete) it all the same.
    #[must_use]
    pub fn is_aborted(&mut self, id: TaskId) -> bool {
        self.tasks.get(id).is_none_or(|task| task.state == State::Aborted)
    }

    /// Whether tasks still run in the front.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.tasks.len() > 0
    }

    /// Commands in order are delivered in order; immediate ones at once (RFC 7143, 4.2.2.1).
    fn admit(&mut self, pdu: Pdu) {
        match order_of(&pdu.header) {
            Some(cmd_sn)
                if pdu.data.len() > AHEAD_MAX && Serial(cmd_sn) != self.window.expected() => {}
            Some(cmd_sn) => match self.window.admit(Serial(cmd_sn), pdu) {
                Admission::Next(pdu) => {
                    self.deliver(pdu);
                    self.deliver_held();
                }
                // RFC 7143, 4.2.2.1: outside the window, silently.
                Admission::Held | Admission::Ignored => {}
            },
            None => {
                self.deliver(pdu);
                // An abort may have made up for what a held command waited for.
                self.deliver_held();
            }
        }
    }

    fn deliver_held(&mut self) {
        while let Some(pdu) = self.window.pop_ready() {
            self.deliver(pdu);
        }
    }

    fn deliver(&mut self, pdu: Pdu) {
        if self.closing {
            return;
        }
        match &pdu.header {
            Header::NopOut(nop) => self.on_nop(nop, pdu.data),
            Header::TextRequest(request) => self.on_text(request, &pdu),
            Header::LogoutRequest(request) => self.on_logout(request),
            // RFC 7143, 4.3: nothing else has a place in a discovery session.
            _ if self.discovery => self.reject(&pdu, RejectReason::PROTOCOL_ERROR),
            Header::ScsiCommand(command) => self.on_command(command, &pdu),
            Header::TaskManagementRequest(request) => self.on_task_management(request),
            Header::DataOut(header) => self.on_data_out(header, pdu.data),
            // RFC 7143, 11.16: level 0 keeps nothing that could be sent again.
            Header::Snack(_) => self.reject(&pdu, RejectReason::SNACK_REJECT),
            // A second login on a connection, and what only targets send.
            _ => self.reject(&pdu, RejectReason::PROTOCOL_ERROR),
        }
    }

    fn on_command(&mut self, command: &ScsiCommand, pdu: &Pdu) {
        if let Err(reason) = self.may_begin(command) {
            return self.reject(pdu, reason);
        }
        let (mut inbound, fault) = Inbound::begin(&self.parameters, command, pdu.data.clone());
        let fault = fault.or_else(|| inbound.hold(&mut self.unsolicited));
        self.begin_task(command, inbound, fault.map_or(State::Offered, State::Failing));
    }

    fn may_begin(&self, command: &ScsiCommand) -> Result<(), RejectReason> {
        if command.immediate && self.tasks.immediate() >= IMMEDIATE_MAX {
            return Err(RejectReason::IMMEDIATE_COMMAND_REJECT);
        }
        // The tag is the initiator's to choose, but not twice (RFC 7143, 11.2.1.8).
        if self.tasks.find(command.itt).is_some() || command.itt == NO_TAG {
            return Err(RejectReason::TASK_IN_PROGRESS);
        }
        Ok(())
    }

    fn begin_task(&mut self, command: &ScsiCommand, inbound: Inbound, state: State) {
        let id = self.tasks.insert(Task {
            itt: command.itt,
            lun: lun::decode(command.lun.to_be_bytes()),
            lun_field: command.lun,
            cmd_sn: command.cmd_sn,
            immediate: command.immediate,
            read: command.read,
            write: command.write,
            expected: command.expected_len,
            cdb: command.cdb,
            attribute: command.attribute,
            inbound,
            state,
        });
        match state {
            State::Offered => self.offer(id, command.attribute),
            _ => self.proceed(id),
        }
    }

    /// A NOP-Out that wants an echo has it, cut to what the initiator takes (RFC 7143, 11.18 and
    /// 11.19); one that answers a ping has done so by arriving.
    fn on_nop(&mut self, nop: &NopOut, mut data: Bytes) {
        if nop.itt == NO_TAG {
            return;
        }
        data.truncate(self.parameters.max_send_data_segment as usize);
        let stat_sn = self.connection.use_stat_sn();
        let numbers = self.numbers();
        let header = NopIn {
            lun: 0,
            itt: nop.itt,
            ttt: NO_TAG,
            stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
        };
        self.connection.outbox.push_data(header, data);
    }

    /// A ping shows the next status number and uses none up (RFC 7143, 11.19).
    fn send_ping(&mut self) {
        let ttt = self.connection.tag();
        let Numbers { stat_sn, exp_cmd_sn, max_cmd_sn } = self.numbers();
        let itt = NO_TAG;
        self.connection.outbox.push(NopIn { lun: 0, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn });
    }

    fn on_logout(&mut self, request: &LogoutRequest) {
        match request.reason {
            LogoutReason::CLOSE_SESSION => self.log_out(request),
            LogoutReason::CLOSE_CONNECTION if request.cid == self.connection.cid => {
                self.log_out(request);
            }
            LogoutReason::CLOSE_CONNECTION => {
                self.respond_logged_out(request.itt, LogoutResponseCode::CID_NOT_FOUND);
            }
            // RFC 7143, 11.15.1: recovery needs level 2.
            _ => self.respond_logged_out(request.itt, LogoutResponseCode::RECOVERY_NOT_SUPPORTED),
        }
    }

    /// A frame that is not to be acted on is rejected; what it was part of fails.
    fn on_flawed(&mut self, bhs: &[u8; BHS_LEN], flaw: Flaw) {
        let Ok(header) = Header::parse(bhs) else {
            return self.reject_header(bhs, RejectReason::COMMAND_NOT_SUPPORTED);
        };
        debug_assert_eq!(flaw, Flaw::DataDigest);
        // RFC 7143, 7.8: the PDU is discarded and rejected. A command in order counts as received, so
        // that those behind it do not wait for one that level 0 cannot have sent again.
        self.reject_header(bhs, RejectReason::DATA_DIGEST_ERROR);
        if let Header::DataOut(header) = header {
            return self.on_damaged_data_out(&header);
        }
        let counts = order_of(&header).is_none_or(|cmd_sn| self.window.skip(Serial(cmd_sn)));
        if let Header::ScsiCommand(command) = header
            && counts
            && !self.discovery
            && self.may_begin(&command).is_ok()
        {
            let (inbound, _) = Inbound::begin(&self.parameters, &command, Bytes::new());
            self.begin_task(&command, inbound, State::Failing(Fault::ProtocolServiceCrc));
        }
        self.deliver_held();
    }

    pub(super) fn reject(&mut self, pdu: &Pdu, reason: RejectReason) {
        let lengths = Lengths { ahs: pdu.ahs.len(), data: pdu.data.len() };
        self.reject_header(&pdu.header.emit(lengths), reason);
    }

    /// A Reject carries the header it rejects (RFC 7143, 11.17.4).
    fn reject_header(&mut self, bhs: &[u8; BHS_LEN], reason: RejectReason) {
        let stat_sn = self.connection.use_stat_sn();
        let numbers = self.numbers();
        let header = Reject {
            reason,
            stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
            data_sn: 0,
        };
        self.connection.outbox.push_data(header, Bytes::copy_from_slice(bhs));
    }

    fn send_async(&mut self, event: AsyncEvent, [p1, p2, p3]: [u16; 3]) {
        let stat_sn = self.connection.use_stat_sn();
        let numbers = self.numbers();
        self.connection.outbox.push(AsyncMessage {
            stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
            event,
            parameter1: p1,
            parameter2: p2,
            parameter3: p3,
            ..AsyncMessage::default()
        });
    }

    /// The numbers to show now. As many commands may come as there are free places for.
    pub(super) fn numbers(&mut self) -> Numbers {
        let taken = u32::try_from(self.tasks.in_order()).unwrap_or(WINDOW);
        self.window.open(self.window_now().saturating_sub(taken));
        Numbers {
            stat_sn: self.connection.stat_sn(),
            exp_cmd_sn: self.window.expected().0,
            max_cmd_sn: self.window.last().0,
        }
    }

    /// How many commands there may be: no more than the budget has room for if all of them bring their
    /// first burst.
    fn window_now(&self) -> u32 {
        let burst = match (self.parameters.initial_r2t, self.parameters.immediate_data) {
            (true, false) => return self.window_max,
            (true, true) => self.parameters.first_burst.min(self.parameters.max_recv_data_segment),
            (false, _) => self.parameters.first_burst,
        };
        let room = self.unsolicited.reach() / u64::from(burst.max(1));
        self.window_max.min(u32::try_from(room).unwrap_or(WINDOW).max(1))
    }

    pub(super) fn close(&mut self, ending: Ending) {
        if !self.closing {
            self.closing = true;
            self.events.push_back(Event::Close(ending));
        }
    }
}

/// The CmdSN of a PDU that takes a place in the command order: `None` for immediate ones, which carry
/// the number without using it (RFC 7143, 4.2.2.1), and for those that have none.
const fn order_of(header: &Header) -> Option<u32> {
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
