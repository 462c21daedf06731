//! The session: takes frames, hands each to its concern, and keeps what they share.
//!
//! Each concern has its file: `turn` has commands wait for their turn, `data_out` collects what a command needs,
//! `data_in` answers it, `management` aborts it, `text` does what its name says.

mod data_in;
mod data_out;
mod management;
mod text;
mod turn;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use self::turn::{Waiting, order_of};
use super::budget::Account;
use super::connection::{Connection, Numbers, TimerAction};
use super::inbound::{Fault, Inbound};
use super::order::Order;
use super::pending::PendingRequests;
use super::solicited_quota::SolicitedDataQuota;
use super::task::{State, Task, TaskId, Tasks};
use super::{Ending, Event, IMMEDIATE_MAX, Joining, Setup, WINDOW};
use crate::iscsi::header::{
    AsyncEvent, AsyncMessage, BHS_LEN, Header, Lengths, LogoutReason, LogoutRequest,
    LogoutResponseCode, NO_TAG, NopIn, NopOut, Reject, RejectReason, ScsiCommand, TaskAttribute,
};
use crate::iscsi::keys::Parameters;
use crate::iscsi::pdu::{Flaw, Frame, Outbox, Pdu};
use crate::iscsi::window::{CommandWindow, Serial};
use crate::scsi::{Sequence, lun};
use crate::time::Time;

/// What a session without a connection waits for: another one, which its front waits for in bounded time.
const NO_CONNECTION: Duration = Duration::from_secs(60);

/// One session of a target, with its connections.
#[derive(Debug)]
pub struct Session {
    setup: Setup,
    parameters: Parameters,
    /// Few, so that a scan is faster than a map; the one of a session that has one is found at once.
    connections: Vec<Connection>,
    window: CommandWindow<Waiting>,
    unsolicited: Account,
    pub(super) tasks: Tasks,
    order: Order,
    allowance: SolicitedDataQuota,
    pub(super) pending: PendingRequests,
    events: VecDeque<Event>,
    /// A logout was asked for: when it is overdue.
    logout_by: Option<Time>,
    /// When a session without a connection is looked at again.
    deserted: Time,
    /// Data are awaited, and none have come nor been asked for since this look at the clock.
    stalled_since: Option<Time>,
    /// See [`Self::depth`].
    depth: u32,
    /// Nothing that comes is acted on any more.
    closing: bool,
}

impl Session {
    /// A session whose first connection has just logged in. Digests begin with the next PDU either way.
    #[must_use]
    pub fn new(now: Time, first: &Joining<'_>, setup: Setup) -> Self {
        let mut window = CommandWindow::new(Serial(setup.exp_cmd_sn));
        window.open(setup.window);
        Self {
            parameters: first.parameters.clone(),
            connections: vec![Connection::new(now, first, &setup, None)],
            window,
            unsolicited: Account::new(Arc::clone(&setup.unsolicited)),
            tasks: Tasks::default(),
            order: Order::default(),
            allowance: SolicitedDataQuota::new(setup.solicited),
            pending: PendingRequests::default(),
            events: VecDeque::new(),
            logout_by: None,
            deserted: now,
            stalled_since: None,
            depth: 0,
            closing: false,
            setup: Setup { window_max: setup.window_max.clamp(1, WINDOW), ..setup },
        }
    }

    /// Another connection has logged in. `response` is the last one of its login, which is sent first;
    /// digests begin after it. There is none with its number: see [`Self::replace_connection`].
    pub fn join(&mut self, now: Time, joining: &Joining<'_>, response: Pdu) {
        debug_assert!(self.connections.iter().all(|it| it.cid != joining.cid));
        self.connections.push(Connection::new(now, joining, &self.setup, Some(response)));
    }

    /// Commands of these units are carried out one after the other from now on: that of a tape begins where the one before
    /// has ended. In a session that stops at a failure none is handed on before that.
    pub fn set_sequential(&mut self, mut units: BTreeMap<u16, Sequence>) {
        if self.parameters.stops_at_failure {
            units.values_mut().for_each(|sequence| *sequence = Sequence::Ended);
        }
        self.order.set_sequential(units);
        self.offer_next();
    }

    /// Whether a connection has this number.
    #[must_use]
    pub fn has_connection(&self, cid: u16) -> bool {
        self.connections.iter().any(|connection| connection.cid == cid)
    }

    /// How many connections there are.
    #[must_use]
    pub const fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Removes a connection that was closed, with all that was to be sent on it.
    pub fn remove(&mut self, now: Time, cid: u16) {
        self.connections.retain(|connection| connection.cid != cid);
        self.deserted = now;
        // What came by it, or was to come, is not carried out.
        self.stop();
        self.detach_connection(cid);
        self.deliver_held();
        if !self.connections.is_empty() {
            self.end_stopped();
        }
    }

    /// How many commands the initiator had outstanding besides when it sent its last one: those that had no response yet, and those whose
    /// response it had not seen (RFC 7143, 4.2.2.2).
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// ExpCmdSN and MaxCmdSN.
    pub fn command_numbers(&mut self) -> (u32, u32) {
        let taken = u32::try_from(self.tasks.in_order()).unwrap_or(WINDOW);
        self.window.open(self.window_now().saturating_sub(taken));
        (self.window.expected().0, self.window.last().0)
    }

    pub(super) fn connection(&mut self, cid: u16) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.cid == cid)
    }

    /// What is to be sent on a connection.
    pub fn outbox(&mut self, cid: u16) -> Option<&mut Outbox> {
        self.connection(cid).map(|connection| &mut connection.outbox)
    }

    /// How much is to be sent, on all connections.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.connections.iter().map(|connection| connection.outbox.len()).sum()
    }

    /// The next thing the front has to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Bytes came by a connection, perhaps not yet a frame.
    pub fn heard(&mut self, now: Time, cid: u16) {
        if let Some(connection) = self.connection(cid) {
            connection.heard(now);
        }
    }

    /// A part of a PDU has come, and its rest is on the way: a slow initiator is not one that sends nothing.
    pub const fn receiving(&mut self) {
        self.stalled_since = None;
    }

    /// A frame came by a connection.
    pub fn handle(&mut self, now: Time, cid: u16, frame: Frame) {
        let Some(connection) = self.connection(cid) else { return };
        connection.outbox.tick(now);
        connection.heard(now);
        if connection.leaving || self.closing {
            return;
        }
        match frame {
            Frame::Pdu(pdu) => self.admit(cid, pdu),
            Frame::Flawed { bhs, flaw } => self.on_flawed(cid, &bhs, flaw),
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due. It may move back as bytes come, never
    /// forward by itself.
    #[must_use]
    pub fn deadline(&self) -> Time {
        let timer_action = self.connections.iter().map(Connection::deadline).min();
        let timer_action = timer_action.unwrap_or(self.deserted + NO_CONNECTION);
        let stalled = self.stalled_since.map(|since| since + self.setup.ping_patience);
        [self.logout_by, stalled].into_iter().flatten().fold(timer_action, Time::min)
    }

    /// The deadline, perhaps an earlier one, has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.logout_by.is_some_and(|by| by <= now) {
            return self.close(Ending::LogoutOverdue);
        }
        if self.connections.is_empty() && self.deserted + NO_CONNECTION <= now {
            return self.close(Ending::Silent);
        }
        if self.is_stalled(now) {
            return self.close(Ending::Stalled);
        }
        for at in 0..self.connections.len() {
            let Some(connection) = self.connections.get_mut(at) else { return };
            connection.outbox.tick(now);
            let cid = connection.cid;
            match connection.timer_action(now) {
                TimerAction::Quiet => {}
                TimerAction::Ping => self.send_ping(cid),
                TimerAction::Dead => self.close(Ending::Silent),
            }
        }
    }

    /// More data are awaited from now on. What has stalled before that stays stalled.
    pub(super) fn begin_awaiting(&mut self) {
        if self.stalled_since.is_some() && !self.awaits_data() {
            self.stalled_since = None;
        }
    }

    /// Whether data have been awaited for too long, and nothing came. What is held for them is held from others.
    fn is_stalled(&mut self, now: Time) -> bool {
        let waits = self.awaits_data();
        let since = self.stalled_since.filter(|_| waits);
        self.stalled_since = waits.then(|| since.unwrap_or(now));
        since.is_some_and(|since| since + self.setup.ping_patience <= now)
    }

    /// Asks the initiator to log out within `patience`, by every connection (RFC 7143, 11.9.1, event 1). A discovery
    /// session just ends (7.4.3).
    pub fn request_logout(&mut self, now: Time, patience: Duration) {
        if self.setup.discovery {
            self.close(Ending::Dismissed);
        } else if self.logout_by.is_none() && !self.closing {
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

    pub(super) fn deliver(&mut self, cid: u16, pdu: Pdu) {
        if self.closing {
            return;
        }
        match &pdu.header {
            // The answer to a ping of ours.
            Header::NopOut(nop) if nop.itt == NO_TAG => {}
            Header::TextRequest(request) => self.on_text(cid, request, &pdu),
            Header::LogoutRequest(request) => self.on_logout(cid, request, &pdu),
            // RFC 7143, 4.3: nothing else has a place in a discovery session.
            _ if self.setup.discovery => self.reject(cid, &pdu, RejectReason::PROTOCOL_ERROR),
            Header::NopOut(nop) => self.on_nop(cid, nop, &pdu.data),
            Header::ScsiCommand(command) => self.on_command(cid, command, &pdu),
            Header::TaskManagementRequest(request) => self.on_task_management(cid, request),
            Header::DataOut(header) => {
                let header = *header;
                self.on_data_out(cid, &header, pdu);
            }
            // RFC 7143, 7.8: level 0 keeps nothing that could be sent again.
            Header::Snack(_) => self.reject(cid, &pdu, RejectReason::SNACK_REJECT),
            // A second login on a connection, and what only targets send.
            _ => self.reject(cid, &pdu, RejectReason::PROTOCOL_ERROR),
        }
    }

    fn on_command(&mut self, cid: u16, command: &ScsiCommand, pdu: &Pdu) {
        if let Err(reason) = self.may_begin(cid, command) {
            return self.reject(cid, pdu, reason);
        }
        let (mut inbound, fault) = Inbound::begin(&self.parameters, command, pdu.data.clone());
        let fault = fault.or_else(|| inbound.hold(&mut self.unsolicited));
        let state = fault.map_or(State::Offered, State::Failing);
        let id = self.begin_task(cid, command, inbound, state);
        match fault {
            None => self.offer_task(id),
            Some(_) => self.proceed(id),
        }
    }

    pub(super) fn may_begin(&self, cid: u16, command: &ScsiCommand) -> Result<(), RejectReason> {
        // RFC 7143, 11: a code that means nothing is a protocol error.
        if command.attribute.0 > TaskAttribute::ACA.0 {
            return Err(RejectReason::PROTOCOL_ERROR);
        }
        let full = self.tasks.immediate() >= IMMEDIATE_MAX;
        if command.immediate && full && self.tasks.has_immediate(cid) {
            return Err(RejectReason::IMMEDIATE_COMMAND_REJECT);
        }
        // The tag is the initiator's to choose, but not twice (RFC 7143, 11.2.1.8).
        if self.tasks.find(command.itt).is_some() || command.itt == NO_TAG {
            return Err(RejectReason::TASK_IN_PROGRESS);
        }
        Ok(())
    }

    pub(super) fn begin_task(
        &mut self,
        cid: u16,
        command: &ScsiCommand,
        inbound: Inbound,
        state: State,
    ) -> TaskId {
        if inbound.is_open() {
            self.begin_awaiting();
        }
        let unseen =
            self.connection(cid).map_or(0, |it| it.stat_sn().wrapping_sub(command.exp_stat_sn));
        self.depth = unseen.saturating_add(u32::try_from(self.tasks.in_order()).unwrap_or(WINDOW));
        self.tasks.insert(Task {
            itt: command.itt,
            cid,
            lun: lun::decode(command.lun.to_be_bytes()),
            lun_field: command.lun,
            cmd_sn: command.cmd_sn,
            immediate: command.immediate,
            read: command.read,
            write: command.write,
            expected: command.expected_len,
            cdb: command.cdb,
            attribute: command.attribute,
            is_unordered: self.is_unordered(command),
            inbound,
            state,
        })
    }

    /// A NOP-Out that wants an echo has it, cut to what the initiator takes (RFC 7143, 11.18 and
    /// 11.19).
    fn on_nop(&mut self, cid: u16, nop: &NopOut, data: &Bytes) {
        let Some(connection) = self.connection(cid) else { return };
        let len = data.len().min(connection.segment_max as usize);
        // Only what is sent back is counted until it is sent: it may not keep the buffer of the ping, nor that of others.
        let data = Bytes::copy_from_slice(&data[..len]);
        self.send_status(cid, data, |numbers| NopIn {
            lun: 0,
            itt: nop.itt,
            ttt: NO_TAG,
            stat_sn: numbers.stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
        });
    }

    fn send_ping(&mut self, cid: u16) {
        let ttt = self.connection(cid).map(Connection::tag);
        ttt.into_iter().for_each(|ttt| self.send_nop(cid, ttt));
    }

    /// Tells the initiator that it may send more, where no response does (RFC 7143, 11.4.11): it may be
    /// waiting for that.
    pub(super) fn tell_window(&mut self) {
        let told = self.window.last();
        self.command_numbers();
        let cid = self.connections.iter().find(|it| !it.leaving).map(|it| it.cid);
        if let Some(cid) = cid.filter(|_| self.window.last() != told) {
            self.send_nop(cid, NO_TAG);
        }
    }

    /// A NOP-In that answers nothing shows the next status number and uses none up (RFC 7143, 11.19.2).
    fn send_nop(&mut self, cid: u16, ttt: u32) {
        let (exp_cmd_sn, max_cmd_sn) = self.command_numbers();
        let Some(connection) = self.connection(cid) else { return };
        let (itt, stat_sn) = (NO_TAG, connection.stat_sn());
        connection.outbox.push(NopIn { lun: 0, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn });
    }

    fn on_logout(&mut self, cid: u16, request: &LogoutRequest, pdu: &Pdu) {
        let itt = request.itt;
        match request.reason {
            LogoutReason::CLOSE_SESSION => self.log_out(cid, itt, None),
            // RFC 7143, 4.3.
            _ if self.setup.discovery => self.reject(cid, pdu, RejectReason::PROTOCOL_ERROR),
            LogoutReason::CLOSE_CONNECTION if self.has_connection(request.cid) => {
                // The last connection takes the session with it.
                let goes_on =
                    self.connections.iter().any(|it| it.cid != request.cid && !it.leaving);
                self.log_out(cid, itt, goes_on.then_some(request.cid));
            }
            LogoutReason::CLOSE_CONNECTION => {
                self.respond_logged_out(cid, itt, LogoutResponseCode::CID_NOT_FOUND);
            }
            // RFC 7143, 11.15.1: recovery needs level 2.
            LogoutReason::REMOVE_FOR_RECOVERY => {
                self.respond_logged_out(cid, itt, LogoutResponseCode::RECOVERY_NOT_SUPPORTED);
            }
            // RFC 7143, 11: a code that means nothing is a protocol error.
            _ => self.reject(cid, pdu, RejectReason::PROTOCOL_ERROR),
        }
    }

    /// A frame that is not to be acted on is rejected; what it was part of fails.
    fn on_flawed(&mut self, cid: u16, bhs: &[u8; BHS_LEN], flaw: Flaw) {
        let Ok(header) = Header::parse(bhs) else {
            return self.reject_header(cid, bhs, RejectReason::COMMAND_NOT_SUPPORTED);
        };
        debug_assert_eq!(flaw, Flaw::DataDigest);
        // RFC 7143, 7.8: the PDU is discarded and rejected. A command in order counts as received, and is
        // answered: 7.3 would have its number missing until the initiator sends it again or aborts it, which
        // at level 0 few do, and those behind it would wait.
        self.reject_header(cid, bhs, RejectReason::DATA_DIGEST_ERROR);
        if let Header::DataOut(header) = header {
            return self.on_damaged_data_out(cid, &header);
        }
        let counts = order_of(&header).is_none_or(|cmd_sn| self.window.skip(Serial(cmd_sn)));
        if let Header::ScsiCommand(command) = header
            && counts
            && !self.setup.discovery
            && self.may_begin(cid, &command).is_ok()
        {
            let (inbound, _) = Inbound::begin(&self.parameters, &command, Bytes::new());
            let state = State::Failing(Fault::ProtocolServiceCrc);
            let id = self.begin_task(cid, &command, inbound, state);
            self.proceed(id);
        }
        self.deliver_held();
    }

    pub(super) fn reject(&mut self, cid: u16, pdu: &Pdu, reason: RejectReason) {
        let lengths = Lengths { ahs: pdu.ahs.len(), data: pdu.data.len() };
        self.reject_header(cid, &pdu.header.emit(lengths), reason);
    }

    /// A Reject carries the header it rejects (RFC 7143, 11.17.4).
    fn reject_header(&mut self, cid: u16, bhs: &[u8; BHS_LEN], reason: RejectReason) {
        self.send_status(cid, Bytes::copy_from_slice(bhs), |numbers| Reject {
            reason,
            stat_sn: numbers.stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
            data_sn: 0,
        });
        // It may have been a command.
        self.stop();
        self.end_stopped();
    }

    /// To every connection: each is told by itself of what concerns them all. A discovery session is sent nothing but
    /// answers (RFC 7143, 7.4.3).
    fn send_async(&mut self, event: AsyncEvent, [p1, p2, p3]: [u16; 3]) {
        if self.setup.discovery {
            return;
        }
        let cids: Vec<_> = self.connections.iter().map(|connection| connection.cid).collect();
        for cid in cids {
            self.send_status(cid, Bytes::new(), |numbers| AsyncMessage {
                stat_sn: numbers.stat_sn,
                exp_cmd_sn: numbers.exp_cmd_sn,
                max_cmd_sn: numbers.max_cmd_sn,
                event,
                parameter1: p1,
                parameter2: p2,
                parameter3: p3,
                ..AsyncMessage::default()
            });
        }
    }

    /// Sends a PDU that carries status; nothing, if its connection is gone.
    pub(super) fn send_status<H: Into<Header>>(
        &mut self,
        cid: u16,
        data: Bytes,
        header: impl FnOnce(Numbers) -> H,
    ) {
        let (exp_cmd_sn, max_cmd_sn) = self.command_numbers();
        let Some(connection) = self.connection(cid) else { return };
        let stat_sn = connection.use_stat_sn();
        let header = header(Numbers { stat_sn, exp_cmd_sn, max_cmd_sn });
        connection.outbox.push_data(header, data);
    }

    /// How many commands there may be: no more than the budget has credit for if all of them bring as much as the largest
    /// of the last ones; no more than it has room for first bursts where a command that is refused would end the session.
    fn window_now(&self) -> u32 {
        let burst = match (self.parameters.initial_r2t, self.parameters.immediate_data) {
            (true, false) => return self.setup.window_max,
            (true, true) => self.parameters.first_burst.min(self.parameters.max_recv_data_segment),
            (false, _) => self.parameters.first_burst,
        };
        let burst = u64::from(burst.max(1));
        let room = match self.parameters.stops_at_failure {
            true => self.unsolicited.reach() / burst,
            false => self.unsolicited.credit() / self.unsolicited.burst(burst),
        };
        self.setup.window_max.min(u32::try_from(room).unwrap_or(WINDOW).max(1))
    }

    pub(super) fn close(&mut self, ending: Ending) {
        if !self.closing {
            self.closing = true;
            self.events.push_back(Event::Close(ending));
        }
    }
}
