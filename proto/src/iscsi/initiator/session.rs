//! The full-feature phase: dispatches what comes, sends what may go.

use core::time::Duration;
use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::sequence::Sequence;
use super::task::{Place, Task};
use super::{Command, Event, Fault, Misbehaviour, QUEUE_MAX, TaskError, Timeouts, tag_after};
use crate::iscsi::header::{
    AsyncEvent, AsyncMessage, BHS_LEN, DataIn, Header, LogoutReason, LogoutRequest, NO_TAG, NopIn,
    NopOut, Reject, RejectReason, ScsiResponse, TaskFunction, TaskManagementRequest,
    TaskManagementResponse, TaskResponse, TextRequest, TextResponse,
};
use crate::iscsi::keys::Parameters;
use crate::iscsi::login::initiator::{CID, Established};
use crate::iscsi::pdu::{Outbox, Pdu};
use crate::iscsi::text::Assembly;
use crate::time::Time;

/// The most pings answered while the outbox does not run empty: a target that neither reads nor
/// stops asking would fill the memory.
const PINGS_MAX: u32 = 1024;

/// The most responses one text takes; each may be short, but not all of them.
const TEXT_RESPONSES_MAX: u32 = 1024;

/// A session in its full-feature phase.
#[derive(Debug)]
pub(super) struct Session<T> {
    parameters: Parameters,
    sequence: Sequence,
    timeouts: Timeouts,
    last_tag: u32,
    /// Commands that wait for the window, with their tags, oldest first.
    queue: VecDeque<(u32, Command, T)>,
    tasks: HashMap<u32, Task<T>>,
    /// Task management requests under way, and the commands they abort.
    aborts: HashMap<u32, u32>,
    /// Requests to reset a unit under way.
    resets: Vec<u32>,
    events: VecDeque<Event<T>>,
    text: Option<TextExchange>,
    end: End,
    last_life: Time,
    ping: Option<Ping>,
    pings_answered: u32,
}

/// A ping on its way.
#[derive(Debug)]
struct Ping {
    tag: u32,
    sent: Time,
    /// Without a sign of life by then the target is lost.
    until: Time,
    /// Asked for by the caller, who is told of the answer.
    asked: bool,
}

/// A text request under way.
#[derive(Debug)]
struct TextExchange {
    tag: u32,
    responses: u32,
    assembly: Assembly,
}

/// Whether and how far the session is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Not at all.
    Open,
    /// It takes no new commands; a logout follows the last of the old ones.
    Draining { until: Time },
    /// The logout is on its way.
    LoggingOut { tag: u32, until: Time },
    /// It has ended.
    Ended,
}

impl<T> Session<T> {
    pub(super) fn new(established: Established, timeouts: Timeouts, now: Time) -> Self {
        let Established { cmd_sn, max_cmd_sn, exp_stat_sn, .. } = established;
        Self {
            parameters: established.parameters.clone(),
            sequence: Sequence::new(cmd_sn, max_cmd_sn, exp_stat_sn),
            timeouts,
            last_tag: 0,
            queue: VecDeque::new(),
            tasks: HashMap::new(),
            aborts: HashMap::new(),
            resets: Vec::new(),
            events: VecDeque::from([Event::Established(Box::new(established))]),
            text: None,
            end: End::Open,
            last_life: now,
            ping: None,
            pings_answered: 0,
        }
    }

    // What the driver asks.

    pub(super) fn submit(
        &mut self,
        command: Command,
        token: T,
        outbox: &mut Outbox,
    ) -> Result<u32, T> {
        if !self.has_room() {
            return Err(token);
        }
        let tag = self.new_tag();
        self.queue.push_back((tag, command, token));
        self.pump(outbox);
        Ok(tag)
    }

    pub(super) fn has_room(&self) -> bool {
        self.end == End::Open && self.queue.len() < QUEUE_MAX
    }

    pub(super) fn abort(&mut self, tag: u32, outbox: &mut Outbox) {
        if let Some(i) = self.queue.iter().position(|(queued, ..)| *queued == tag) {
            // Never sent, so nothing has to be undone.
            let ended = self.queue.remove(i).map(|(_, _, token)| token);
            self.events.extend(ended.map(|t| Event::Completed(t, Err(TaskError::Aborted))));
            return;
        }
        let Some(task) = self.tasks.get(&tag) else { return };
        let (lun, ref_cmd_sn) = (task.lun, task.cmd_sn);
        let itt = self.new_tag();
        self.aborts.insert(itt, tag);
        outbox.push(TaskManagementRequest {
            referenced_tag: tag,
            ref_cmd_sn,
            ..self.manage(TaskFunction::ABORT_TASK, lun, itt)
        });
    }

    pub(super) fn reset_unit(&mut self, lun: u64, outbox: &mut Outbox) {
        let itt = self.new_tag();
        self.resets.push(itt);
        outbox.push(self.manage(TaskFunction::LOGICAL_UNIT_RESET, lun, itt));
    }

    fn manage(&self, function: TaskFunction, lun: u64, itt: u32) -> TaskManagementRequest {
        TaskManagementRequest {
            // RFC 7143, 11.5.1: a request that waited for the window would wait for what it ends.
            immediate: true,
            function,
            lun,
            itt,
            // RFC 7143, 11.5.5: no task is meant but where one is named.
            referenced_tag: NO_TAG,
            cmd_sn: self.sequence.current(),
            exp_stat_sn: self.sequence.exp_stat_sn(),
            ref_cmd_sn: 0,
            exp_data_sn: 0,
        }
    }

    pub(super) fn ping(&mut self, now: Time, outbox: &mut Outbox) {
        match &mut self.ping {
            Some(ping) => ping.asked = true,
            None => self.send_ping(now, true, outbox),
        }
    }

    pub(super) fn text(&mut self, text: Bytes, outbox: &mut Outbox) {
        if self.text.is_some() {
            return;
        }
        let tag = self.new_tag();
        self.text = Some(TextExchange { tag, responses: 0, assembly: Assembly::default() });
        self.send_text(tag, 0, NO_TAG, text, outbox);
    }

    pub(super) fn logout(&mut self, until: Time, outbox: &mut Outbox) {
        if self.end == End::Open {
            self.end = End::Draining { until };
        }
        self.pump(outbox);
    }

    pub(super) fn poll(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }

    pub(super) fn sent(&mut self, now: Time, all: bool) {
        self.live(now);
        if all {
            self.pings_answered = 0;
        }
    }

    pub(super) const fn end(&mut self) {
        self.end = End::Ended;
    }

    /// The tokens of all that will not end any more, those not yet told of included.
    pub(super) fn unfinished(self) -> Vec<T> {
        let queued = self.queue.into_iter().map(|(_, _, token)| token);
        let flying = self.tasks.into_values().map(|task| task.token);
        queued.chain(flying).collect()
    }

    // Time.

    pub(super) fn deadline(&self) -> Time {
        let life = match &self.ping {
            Some(ping) => ping.until,
            None => self.last_life + self.timeouts.idle,
        };
        match self.end {
            End::Draining { until } | End::LoggingOut { until, .. } => life.min(until),
            End::Open | End::Ended => life,
        }
    }

    pub(super) fn wake(&mut self, now: Time, outbox: &mut Outbox) -> Result<(), Fault> {
        match self.end {
            End::Ended => return Ok(()),
            End::Draining { until } | End::LoggingOut { until, .. } if until <= now => {
                return Err(Fault::LoginTimeout);
            }
            _ => {}
        }
        match &self.ping {
            Some(ping) if ping.until <= now => Err(Fault::Silent),
            None if self.last_life + self.timeouts.idle <= now => {
                self.send_ping(now, false, outbox);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Something shows that the target is there: a ping still out has until later.
    fn live(&mut self, now: Time) {
        self.last_life = now;
        let until = now + self.timeouts.answer;
        if let Some(ping) = &mut self.ping {
            ping.until = ping.until.max(until);
        }
    }

    // What comes.

    pub(super) fn receive(
        &mut self,
        now: Time,
        pdu: Pdu,
        outbox: &mut Outbox,
    ) -> Result<(), Fault> {
        if self.end == End::Ended {
            return Ok(());
        }
        self.live(now);
        match pdu.header {
            Header::DataIn(header) => self.data_in(&header, pdu.data)?,
            Header::ScsiResponse(header) => self.response(&header, &pdu.data)?,
            Header::R2t(header) => {
                self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
                let exp_stat_sn = self.sequence.exp_stat_sn();
                let unknown = unknown("R2T", header.itt);
                let task = self.tasks.get_mut(&header.itt).ok_or(unknown)?;
                task.ready(&header, exp_stat_sn, &self.parameters, outbox)?;
            }
            Header::NopIn(header) => self.nop_in(now, &header, outbox)?,
            Header::TaskManagementResponse(header) => self.managed(&header)?,
            Header::TextResponse(header) => self.text_response(&header, &pdu.data, outbox)?,
            Header::LogoutResponse(header) => {
                self.sequence.status(header.stat_sn)?;
                let expected = matches!(self.end, End::LoggingOut { tag, .. } if tag == header.itt);
                if !expected {
                    return Err(unknown("Logout Response", header.itt).into());
                }
                self.end = End::Ended;
                self.events.push_back(Event::LoggedOut);
            }
            Header::AsyncMessage(header) => self.message(now, &header, &pdu.data)?,
            Header::Reject(header) => self.rejected(&header, &pdu.data)?,
            other => return Err(Misbehaviour::Unexpected(other.name()).into()),
        }
        self.pump(outbox);
        Ok(())
    }

    fn data_in(&mut self, header: &DataIn, data: Bytes) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        let unknown = unknown("Data-In", header.itt);
        let task = self.tasks.get_mut(&header.itt).ok_or(unknown)?;
        task.data_in(header, data)?;
        if !header.has_status {
            return Ok(());
        }
        self.sequence.status(header.stat_sn)?;
        let ended = self.tasks.remove(&header.itt).map(|task| task.end_with_data(header));
        self.events.extend(ended.map(|(token, result)| Event::Completed(token, result)));
        Ok(())
    }

    fn response(&mut self, header: &ScsiResponse, data: &Bytes) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        self.sequence.status(header.stat_sn)?;
        let unknown = unknown("SCSI Response", header.itt);
        let (token, result) = self.tasks.remove(&header.itt).ok_or(unknown)?.end(header, data);
        self.events.push_back(Event::Completed(token, result));
        Ok(())
    }

    fn nop_in(&mut self, now: Time, header: &NopIn, outbox: &mut Outbox) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        // Only an answer uses a status number up (RFC 7143, 11.19.2).
        if header.itt != NO_TAG {
            self.sequence.status(header.stat_sn)?;
            let ours = self.ping.take().filter(|ping| ping.tag == header.itt);
            let ping = ours.ok_or_else(|| unknown("NOP-In", header.itt))?;
            self.events.extend(ping.asked.then_some(Event::Pong(now - ping.sent)));
        }
        if header.ttt == NO_TAG {
            return Ok(());
        }
        self.pings_answered += 1;
        if self.pings_answered > PINGS_MAX {
            return Err(Misbehaviour::PingFlood.into());
        }
        // RFC 7143, 11.18: at once, outside the order, with the same LUN and tag.
        outbox.push(NopOut {
            immediate: true,
            lun: header.lun,
            itt: NO_TAG,
            ttt: header.ttt,
            cmd_sn: self.sequence.current(),
            exp_stat_sn: self.sequence.exp_stat_sn(),
        });
        Ok(())
    }

    /// An abort has been answered. A target that does not know the command any more has sent its
    /// response before, if it sent one (RFC 7143, 11.6.1); one that refuses will still send it.
    fn managed(&mut self, header: &TaskManagementResponse) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        self.sequence.status(header.stat_sn)?;
        if let Some(i) = self.resets.iter().position(|reset| *reset == header.itt) {
            self.resets.swap_remove(i);
            self.events.push_back(Event::UnitReset(header.response));
            return Ok(());
        }
        let unknown = unknown("Task Management Response", header.itt);
        let tag = self.aborts.remove(&header.itt).ok_or(unknown)?;
        let gone = [TaskResponse::COMPLETE, TaskResponse::TASK_DOES_NOT_EXIST];
        if gone.contains(&header.response)
            && let Some(task) = self.tasks.remove(&tag)
        {
            self.events.push_back(Event::Completed(task.token, Err(TaskError::Aborted)));
        }
        Ok(())
    }

    fn text_response(
        &mut self,
        header: &TextResponse,
        data: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        self.sequence.status(header.stat_sn)?;
        let unknown = unknown("Text Response", header.itt);
        let exchange = self.text.as_mut().filter(|it| it.tag == header.itt).ok_or(unknown)?;
        exchange.responses += 1;
        // More follows until F; the target is asked for it with an empty request that carries its
        // tag (RFC 7143, 11.11.4).
        let more = !header.is_final;
        if exchange.responses > TEXT_RESPONSES_MAX || (more && header.ttt == NO_TAG) {
            return Err(Misbehaviour::EndlessText.into());
        }
        let added = exchange.assembly.add(data, more).map_err(|_| Misbehaviour::EndlessText)?;
        match added {
            Some(text) => {
                self.text = None;
                self.events.push_back(Event::Text(text));
            }
            None => self.send_text(header.itt, header.lun, header.ttt, Bytes::new(), outbox),
        }
        Ok(())
    }

    fn message(&mut self, now: Time, header: &AsyncMessage, data: &Bytes) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        self.sequence.status(header.stat_sn)?;
        let seconds = |n: u16| Duration::from_secs(n.into());
        match header.event {
            AsyncEvent::SCSI_EVENT => {
                // Sense data behind their length, as in a response (RFC 7143, 11.9.4.1).
                let sense = super::task::sense(data);
                self.events.push_back(Event::UnitEvent { lun: header.lun, sense });
            }
            AsyncEvent::LOGOUT_REQUEST => {
                let within = seconds(header.parameter3);
                self.events.push_back(Event::LogoutRequested(within));
                if self.end == End::Open {
                    self.end = End::Draining { until: now + within };
                }
            }
            // Parameter2 is the time to wait before logging in again (RFC 7143, 11.9.1).
            AsyncEvent::DROP_CONNECTION | AsyncEvent::DROP_SESSION => {
                return Err(Fault::Dropped(seconds(header.parameter2)));
            }
            // The rest asks nothing of us: no renegotiation is offered, no FastAbort was agreed on.
            _ => {}
        }
        Ok(())
    }

    /// A rejected command ends; anything else that is rejected shows that both sides do not
    /// understand each other, and a digest that does not match cannot be repaired at this level.
    fn rejected(&mut self, header: &Reject, data: &[u8]) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        self.sequence.status(header.stat_sn)?;
        let rejected = data.first_chunk::<BHS_LEN>().map(Header::parse);
        let task = match rejected {
            Some(Ok(Header::ScsiCommand(command)))
                if header.reason != RejectReason::DATA_DIGEST_ERROR =>
            {
                self.tasks.remove(&command.itt)
            }
            _ => None,
        };
        let Some(task) = task else { return Err(Fault::Rejected(header.reason)) };
        let error = TaskError::Rejected(header.reason);
        self.events.push_back(Event::Completed(task.token, Err(error)));
        Ok(())
    }

    // What goes.

    /// Sends what the window allows and, once a draining session is empty, the logout.
    fn pump(&mut self, outbox: &mut Outbox) {
        while self.sequence.is_open()
            && let Some((itt, command, token)) = self.queue.pop_front()
        {
            let cmd_sn = self.sequence.take();
            let place = Place { itt, cmd_sn, exp_stat_sn: self.sequence.exp_stat_sn() };
            let task = Task::send(command, token, &place, &self.parameters, outbox);
            self.tasks.insert(itt, task);
        }
        if let End::Draining { until } = self.end
            && self.tasks.is_empty()
            && self.queue.is_empty()
        {
            let tag = self.new_tag();
            self.end = End::LoggingOut { tag, until };
            outbox.push(LogoutRequest {
                immediate: true,
                reason: LogoutReason::CLOSE_SESSION,
                itt: tag,
                cid: CID,
                cmd_sn: self.sequence.current(),
                exp_stat_sn: self.sequence.exp_stat_sn(),
            });
        }
    }

    fn send_ping(&mut self, now: Time, asked: bool, outbox: &mut Outbox) {
        let tag = self.new_tag();
        self.ping = Some(Ping { tag, sent: now, until: now + self.timeouts.answer, asked });
        outbox.push(NopOut {
            immediate: true,
            lun: 0,
            itt: tag,
            ttt: NO_TAG,
            cmd_sn: self.sequence.current(),
            exp_stat_sn: self.sequence.exp_stat_sn(),
        });
    }

    fn send_text(&mut self, itt: u32, lun: u64, ttt: u32, text: Bytes, outbox: &mut Outbox) {
        let header = TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun,
            itt,
            ttt,
            cmd_sn: self.sequence.current(),
            exp_stat_sn: self.sequence.exp_stat_sn(),
        };
        outbox.push_data(header, text);
    }

    fn new_tag(&mut self) -> u32 {
        self.last_tag = tag_after(self.last_tag);
        // After four billion commands one of the first may still be there.
        while self.tasks.contains_key(&self.last_tag) {
            self.last_tag = tag_after(self.last_tag);
        }
        self.last_tag
    }
}

const fn unknown(pdu: &'static str, tag: u32) -> Misbehaviour {
    Misbehaviour::UnknownTag { pdu, tag }
}
