//! The full-feature phase: dispatches what comes, sends what may go.

use core::time::Duration;
use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;

use super::connection::{Connection, Ping};
use super::sequence::Sequence;
use super::task::{CommandPlace, Ended, Task};
use super::{Command, Event, Fault, Misbehaviour, QUEUE_MAX, TaskError, Timeouts, tag_after};
use crate::iscsi::header::{
    AsyncEvent, AsyncMessage, BHS_LEN, DataIn, Header, LogoutReason, LogoutRequest, NO_TAG, NopIn,
    NopOut, Reject, RejectReason, ScsiResponse, TaskFunction, TaskManagementRequest,
    TaskManagementResponse, TaskResponse, TextRequest, TextResponse,
};
use crate::iscsi::keys::Parameters;
use crate::iscsi::login::initiator::{CID, Deviation, Established};
use crate::iscsi::pdu::Pdu;
use crate::iscsi::text::Assembly;
use crate::scsi::cdb::Pace;
use crate::time::Time;

/// The most responses one text takes; each may be short, but not all of them.
const TEXT_RESPONSES_MAX: u32 = 1024;

/// A session in its full-feature phase.
#[derive(Debug)]
pub(super) struct Session<T> {
    parameters: Parameters,
    sequence: Sequence,
    timeouts: Timeouts,
    /// It is for discovery alone.
    discovers: bool,
    last_tag: u32,
    /// Commands that wait for the window, with their tags, oldest first.
    queue: VecDeque<(u32, Command, T)>,
    tasks: HashMap<u32, Task<T>>,
    /// Task management requests under way, and the commands they abort.
    aborts: HashMap<u32, u32>,
    /// Requests to reset a unit under way.
    resets: Vec<u32>,
    /// For each request to be told, the commands whose end it waits for.
    settling: VecDeque<HashSet<u32>>,
    events: VecDeque<Event<T>>,
    text: Option<TextExchange>,
    /// What was told of the target's deviations.
    told: Vec<Deviation>,
    end: End,
}

/// How long what is under way is waited for when the target asks for a logout. It may allow 18 hours; meanwhile no new
/// command is taken, and one that gets no answer would keep all others waiting for so long.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);

/// The connection of a session that has no other, and that of requests which concern all of it.
const LEADING: usize = 0;

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
    pub(super) fn new(established: Established, timeouts: Timeouts, discovers: bool) -> Self {
        let Established { cmd_sn, max_cmd_sn, .. } = established;
        Self {
            parameters: established.parameters.clone(),
            sequence: Sequence::new(cmd_sn, max_cmd_sn),
            timeouts,
            discovers,
            last_tag: 0,
            queue: VecDeque::new(),
            tasks: HashMap::new(),
            aborts: HashMap::new(),
            resets: Vec::new(),
            settling: VecDeque::new(),
            events: VecDeque::from([Event::Established(Box::new(established))]),
            text: None,
            told: Vec::new(),
            end: End::Open,
        }
    }

    /// How many connections the target lets the session have.
    pub(super) fn lines_max(&self) -> usize {
        self.parameters.max_connections.into()
    }

    /// The CmdSN of a login that adds a connection (RFC 7143, 11.12.8).
    pub(super) const fn cmd_sn(&self) -> u32 {
        self.sequence.current()
    }

    /// A connection was added, whose login told the window.
    pub(super) fn joined(
        &mut self,
        on: usize,
        established: &Established,
        connections: &mut [Connection],
    ) {
        let Established { exp_cmd_sn, max_cmd_sn, .. } = *established;
        self.sequence.window(exp_cmd_sn, max_cmd_sn);
        self.events.push_back(Event::Joined(on));
        self.send_queued(connections);
    }

    pub(super) fn not_joined(&mut self, on: usize, fault: Fault) {
        self.events.push_back(Event::NotJoined(on, fault));
    }

    // What the driver asks.

    pub(super) fn submit(
        &mut self,
        now: Time,
        command: Command,
        token: T,
        connections: &mut [Connection],
    ) -> Result<u32, T> {
        if !self.has_room() {
            return Err(token);
        }
        let tag = self.new_tag();
        connections.iter_mut().for_each(|connection| connection.progress.tick(now));
        self.queue.push_back((tag, command, token));
        self.send_queued(connections);
        Ok(tag)
    }

    pub(super) fn has_room(&self) -> bool {
        self.end == End::Open && self.queue.len() < QUEUE_MAX
    }

    pub(super) fn abort(&mut self, tag: u32, connections: &mut [Connection]) {
        if let Some(i) = self.queue.iter().position(|(queued, ..)| *queued == tag) {
            // Never sent, so nothing has to be undone.
            let ended = self.queue.remove(i).map(|(_, _, token)| token);
            self.events.extend(ended.map(|t| Event::Completed(t, Err(TaskError::Aborted))));
            return;
        }
        let Some(task) = self.tasks.get(&tag) else { return };
        let (lun, ref_cmd_sn, on) = (task.lun, task.cmd_sn, task.on);
        let itt = self.new_tag();
        self.aborts.insert(itt, tag);
        let request = self.manage(TaskFunction::ABORT_TASK, lun, itt);
        // RFC 7143, 11.5.1: by the connection of the task.
        self.push(on, connections, |exp_stat_sn| TaskManagementRequest {
            referenced_tag: tag,
            ref_cmd_sn,
            exp_stat_sn,
            ..request
        });
    }

    /// What is being aborted already is not asked for again.
    pub(super) fn abort_all(&mut self, connections: &mut [Connection]) {
        let queued = self.queue.iter().map(|(tag, ..)| *tag);
        let aborting: Vec<_> = self.aborts.values().copied().collect();
        let sent = self.tasks.keys().copied().filter(|tag| !aborting.contains(tag));
        let mut tags: Vec<_> = queued.chain(sent).collect();
        tags.sort_unstable();
        tags.into_iter().for_each(|tag| self.abort(tag, connections));
    }

    pub(super) fn reset_unit(&mut self, lun: u64, connections: &mut [Connection]) {
        let itt = self.new_tag();
        self.resets.push(itt);
        let request = self.manage(TaskFunction::LOGICAL_UNIT_RESET, lun, itt);
        self.push(LEADING, connections, |exp_stat_sn| TaskManagementRequest {
            exp_stat_sn,
            ..request
        });
    }

    pub(super) fn settle(&mut self) {
        self.settling.push_back(self.tasks.keys().copied().collect());
        self.tell_settled();
    }

    /// Each request waits for all that those before it wait for, so that the first is the first to be told.
    fn tell_settled(&mut self) {
        while let Some(first) = self.settling.front_mut() {
            first.retain(|tag| self.tasks.contains_key(tag));
            if !first.is_empty() {
                return;
            }
            self.settling.pop_front();
            self.events.push_back(Event::Settled);
        }
    }

    /// Sends a PDU that is all header.
    #[expect(clippy::unused_self, reason = "the session sends it")]
    fn push<H: Into<Header>>(
        &self,
        on: usize,
        connections: &mut [Connection],
        header: impl FnOnce(u32) -> H,
    ) {
        if let Some(connection) = connections.get_mut(on) {
            connection.outbox.push(header(connection.exp_stat_sn));
        }
    }

    fn manage(&self, function: TaskFunction, lun: u64, itt: u32) -> TaskManagementRequest {
        TaskManagementRequest {
            // RFC 7143, 11.5.1: a request that waited for the window would wait for what it ends.
            immediate: true,
            function,
            lun,
            itt,
            // RFC 7143, 11.5.4: no task is meant but where one is named.
            referenced_tag: NO_TAG,
            cmd_sn: self.sequence.current(),
            exp_stat_sn: 0,
            ref_cmd_sn: 0,
            exp_data_sn: 0,
        }
    }

    pub(super) fn ping(&mut self, now: Time, connections: &mut [Connection]) {
        match connections.first_mut().map(|connection| &mut connection.ping) {
            _ if self.discovers => {}
            Some(Some(ping)) => ping.asked = true,
            _ => self.send_ping(now, LEADING, true, connections),
        }
    }

    pub(super) fn text(&mut self, text: Bytes, connections: &mut [Connection]) {
        if self.text.is_some() {
            return;
        }
        let tag = self.new_tag();
        self.text = Some(TextExchange { tag, responses: 0, assembly: Assembly::default() });
        self.send_text((tag, NO_TAG), 0, text, connections);
    }

    pub(super) fn logout(&mut self, until: Time, connections: &mut [Connection]) {
        if self.end == End::Open {
            self.end = End::Draining { until };
        }
        self.send_queued(connections);
    }

    pub(super) fn poll(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
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

    pub(super) const fn deadline(&self) -> Option<Time> {
        match self.end {
            End::Draining { until } | End::LoggingOut { until, .. } => Some(until),
            End::Open | End::Ended => None,
        }
    }

    pub(super) fn wake(&mut self, now: Time, connections: &mut [Connection]) -> Result<(), Fault> {
        match self.end {
            End::Ended => return Ok(()),
            End::Draining { until } | End::LoggingOut { until, .. } if until <= now => {
                return Err(Fault::LoginTimeout);
            }
            _ => {}
        }
        for on in 0..connections.len() {
            let Some(connection) =
                connections.get_mut(on).filter(|connection| connection.is_open())
            else {
                continue;
            };
            connection.progress.tick(now);
            if let Some(stalled) = connection.progress.stalled(now) {
                return Err(self.stalled(on, stalled));
            }
            let due = |connection: &Connection| connection.asked_at(&self.timeouts) <= now;
            match connections.get(on).filter(|connection| due(connection)) {
                Some(connection) if self.discovers || connection.ping.is_some() => {
                    return Err(Fault::Silent);
                }
                Some(_) => self.send_ping(now, on, false, connections),
                None => {}
            }
        }
        Ok(())
    }

    /// What a connection by which commands stall is given up for.
    fn stalled(&self, on: usize, (pace, within): (Pace, Duration)) -> Fault {
        let is_of = |task: &&Task<T>| task.on == on && task.pace == pace;
        let tasks = self.tasks.values().filter(is_of);
        let oldest = tasks.clone().map(|task| task.span).min();
        let stalled = tasks.filter(|task| Some(task.span) == oldest);
        let now = self.sequence.current();
        let first = stalled.clone().max_by_key(|task| now.wrapping_sub(task.cmd_sn));
        let operation = first.map_or(0, |task| task.operation);
        Fault::Stalled { operation, count: stalled.count(), within }
    }

    // What comes.

    pub(super) fn receive(
        &mut self,
        (now, on): (Time, usize),
        pdu: Pdu,
        connections: &mut [Connection],
    ) -> Result<(), Fault> {
        let Some(connection) = connections.get_mut(on).filter(|_| self.end != End::Ended) else {
            return Ok(());
        };
        connection.live(now, &self.timeouts);
        match pdu.header {
            Header::DataIn(header) => self.data_in(on, connection, &header, pdu.data)?,
            Header::ScsiResponse(header) => self.response(on, connection, &header, &pdu.data)?,
            Header::R2t(header) => {
                self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
                let unknown = unknown("R2T", header.itt);
                let task = self.tasks.get_mut(&header.itt).filter(|task| task.on == on);
                task.ok_or(unknown)?.ready(&header, &self.parameters, connection)?;
            }
            Header::NopIn(header) => self.nop_in(now, connection, &header)?,
            Header::TaskManagementResponse(header) => self.managed(connection, &header)?,
            Header::TextResponse(header) => {
                connection.status(header.stat_sn)?;
                self.text_response(&header, &pdu.data, connections)?;
            }
            Header::LogoutResponse(header) => {
                connection.status(header.stat_sn)?;
                let expected = matches!(self.end, End::LoggingOut { tag, .. } if tag == header.itt);
                if !expected {
                    return Err(unknown("Logout Response", header.itt).into());
                }
                self.end = End::Ended;
                self.events.push_back(Event::LoggedOut);
            }
            Header::AsyncMessage(header) => {
                connection.status(header.stat_sn)?;
                self.message(now, &header, &pdu.data)?;
            }
            Header::Reject(header) => {
                connection.status(header.stat_sn)?;
                self.rejected(connection, &header, &pdu.data)?;
            }
            other => return Err(Misbehaviour::Unexpected(other.name()).into()),
        }
        if connections.get(on).is_some_and(|connection| connection.repeats_status_numbers) {
            self.deviates(Deviation::StatSn);
        }
        // Before new commands take the tags of old ones.
        self.tell_settled();
        self.send_queued(connections);
        Ok(())
    }

    fn data_in(
        &mut self,
        on: usize,
        connection: &mut Connection,
        header: &DataIn,
        data: Bytes,
    ) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        let unknown = unknown("Data-In", header.itt);
        let task = self.tasks.get_mut(&header.itt).filter(|task| task.on == on);
        let task = task.ok_or(unknown)?;
        task.data_in(header, data)?;
        connection.progress.moved(task.span);
        if !header.has_status {
            return Ok(());
        }
        connection.status(header.stat_sn)?;
        if let Some(task) = self.remove(header.itt, connection) {
            self.ended(task.end_with_data(header));
        }
        Ok(())
    }

    fn response(
        &mut self,
        on: usize,
        connection: &mut Connection,
        header: &ScsiResponse,
        data: &Bytes,
    ) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        connection.status(header.stat_sn)?;
        let unknown = unknown("SCSI Response", header.itt);
        // RFC 7143, 4.2.5.1: on the connection of its command.
        let known = self.tasks.get(&header.itt).is_some_and(|task| task.on == on);
        let task = self.remove(header.itt, connection).filter(|_| known);
        self.ended(task.ok_or(unknown)?.end(header, data));
        Ok(())
    }

    fn ended(&mut self, Ended { token, result, wrong_residual }: Ended<T>) {
        if wrong_residual {
            self.deviates(Deviation::Residual);
        }
        self.events.push_back(Event::Completed(token, result));
    }

    /// The target breaks a rule that it can be used without; that is told once.
    fn deviates(&mut self, deviation: Deviation) {
        if !self.discovers && !self.told.contains(&deviation) {
            self.told.push(deviation);
            self.events.push_back(Event::Deviation(deviation));
        }
    }

    /// A command of this connection ends.
    fn remove(&mut self, tag: u32, connection: &mut Connection) -> Option<Task<T>> {
        let task = self.tasks.remove(&tag)?;
        connection.outstanding = connection.outstanding.saturating_sub(task.weight);
        connection.progress.ended(task.span, task.pace);
        Some(task)
    }

    fn nop_in(
        &mut self,
        now: Time,
        connection: &mut Connection,
        header: &NopIn,
    ) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        // Only an answer uses a status number up (RFC 7143, 11.19.2).
        if header.itt != NO_TAG {
            connection.status(header.stat_sn)?;
            let ours = connection.ping.take().filter(|ping| ping.tag == header.itt);
            let ping = ours.ok_or_else(|| unknown("NOP-In", header.itt))?;
            connection.progress.answered(ping.span);
            self.events.extend(ping.asked.then_some(Event::Pong(now - ping.sent)));
        }
        if header.ttt == NO_TAG {
            return Ok(());
        }
        // RFC 7143, 11.18.2: with the same LUN and tag.
        let (cmd_sn, exp_stat_sn) = (self.sequence.current(), connection.exp_stat_sn);
        let (lun, ttt) = (header.lun, header.ttt);
        let answer = NopOut { immediate: true, lun, itt: NO_TAG, ttt, cmd_sn, exp_stat_sn };
        Ok(connection.answer_ping(answer)?)
    }

    /// An abort has been answered. A target that does not know the command any more has sent its
    /// response before, if it sent one (RFC 7143, 11.6.1); one that refuses will still send it.
    fn managed(
        &mut self,
        connection: &mut Connection,
        header: &TaskManagementResponse,
    ) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        connection.status(header.stat_sn)?;
        if let Some(i) = self.resets.iter().position(|reset| *reset == header.itt) {
            self.resets.swap_remove(i);
            self.events.push_back(Event::UnitReset(header.response));
            return Ok(());
        }
        let unknown = unknown("Task Management Response", header.itt);
        let tag = self.aborts.remove(&header.itt).ok_or(unknown)?;
        let gone = [TaskResponse::COMPLETE, TaskResponse::TASK_DOES_NOT_EXIST];
        if gone.contains(&header.response)
            && let Some(task) = self.remove(tag, connection)
        {
            self.events.push_back(Event::Completed(task.token, Err(TaskError::Aborted)));
        }
        Ok(())
    }

    fn text_response(
        &mut self,
        header: &TextResponse,
        data: &[u8],
        connections: &mut [Connection],
    ) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
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
            None => self.send_text((header.itt, header.ttt), header.lun, Bytes::new(), connections),
        }
        Ok(())
    }

    fn message(&mut self, now: Time, header: &AsyncMessage, data: &Bytes) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        let seconds = |n: u16| Duration::from_secs(n.into());
        match header.event {
            AsyncEvent::SCSI_EVENT => {
                // Sense data behind their length, as in a response (RFC 7143, 11.9.4.1).
                let sense = super::task::sense(data);
                self.events.push_back(Event::UnitEvent { lun: header.lun, sense });
            }
            AsyncEvent::LOGOUT_REQUEST => {
                // It is asked for by every connection (RFC 7143, 11.9.1).
                let within = seconds(header.parameter3);
                if self.end == End::Open {
                    self.events.push_back(Event::LogoutRequested(within));
                    self.end = End::Draining { until: now + within.min(DRAINED_WITHIN) };
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

    /// A rejected command or text ends; anything else that is rejected shows that both sides do not
    /// understand each other, and a digest that does not match cannot be repaired at this level.
    fn rejected(
        &mut self,
        connection: &mut Connection,
        header: &Reject,
        data: &[u8],
    ) -> Result<(), Fault> {
        self.sequence.window(header.exp_cmd_sn, header.max_cmd_sn);
        let rejected = data.first_chunk::<BHS_LEN>().map(Header::parse);
        let task = match rejected {
            Some(Ok(Header::ScsiCommand(command)))
                if header.reason != RejectReason::DATA_DIGEST_ERROR =>
            {
                self.remove(command.itt, connection)
            }
            // Which texts a target answers is its own affair; the session does without.
            Some(Ok(Header::TextRequest(request)))
                if self.text.take_if(|text| text.tag == request.itt).is_some() =>
            {
                self.events.push_back(Event::TextRejected(header.reason));
                return Ok(());
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
    fn send_queued(&mut self, connections: &mut [Connection]) {
        while self.sequence.is_open()
            && !self.queue.is_empty()
            && let Some((on, connection)) = least_loaded(connections)
            && let Some((itt, command, token)) = self.queue.pop_front()
        {
            let place = CommandPlace { itt, cmd_sn: self.sequence.take(), on };
            let task = Task::send(command, token, &place, &self.parameters, connection);
            self.tasks.insert(itt, task);
        }
        connections.iter_mut().for_each(Connection::go_on);
        if let End::Draining { until } = self.end
            && self.tasks.is_empty()
            && self.queue.is_empty()
        {
            let tag = self.new_tag();
            self.end = End::LoggingOut { tag, until };
            let cmd_sn = self.sequence.current();
            self.push(LEADING, connections, |exp_stat_sn| LogoutRequest {
                immediate: true,
                reason: LogoutReason::CLOSE_SESSION,
                itt: tag,
                cid: CID,
                cmd_sn,
                exp_stat_sn,
            });
        }
    }

    fn send_ping(&mut self, now: Time, on: usize, asked: bool, connections: &mut [Connection]) {
        let tag = self.new_tag();
        let (cmd_sn, until) = (self.sequence.current(), now + self.timeouts.answer);
        let Some(connection) = connections.get_mut(on) else { return };
        connection.progress.tick(now);
        let span = connection.progress.pinged();
        connection.ping = Some(Ping { tag, sent: now, until, is_queued: true, span, asked });
        connection.outbox.push(NopOut {
            immediate: true,
            lun: 0,
            itt: tag,
            ttt: NO_TAG,
            cmd_sn,
            exp_stat_sn: connection.exp_stat_sn,
        });
    }

    fn send_text(
        &mut self,
        (itt, ttt): (u32, u32),
        lun: u64,
        text: Bytes,
        connections: &mut [Connection],
    ) {
        let Some(connection) = connections.get_mut(LEADING) else { return };
        let header = TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun,
            itt,
            ttt,
            cmd_sn: self.sequence.current(),
            exp_stat_sn: connection.exp_stat_sn,
        };
        connection.outbox.push_data(header, text);
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

/// The connection that the next command goes by: the one with the least on its way.
fn least_loaded(connections: &mut [Connection]) -> Option<(usize, &mut Connection)> {
    let open = connections.iter_mut().enumerate().filter(|(_, connection)| connection.is_open());
    open.min_by_key(|(_, connection)| connection.outstanding)
}

const fn unknown(pdu: &'static str, tag: u32) -> Misbehaviour {
    Misbehaviour::UnknownTag { pdu, tag }
}
