//! The requests of a client: waiting, in a slot, answered (spec, 7.2 and 7.5).

use std::collections::VecDeque;

use bytes::Bytes;

use super::super::codec::{
    CHECKSUM_LEN, Checksum, Fragment, Header, MANAGE_MAX, Opcode, Options, REPLY_LEN, TaskRequest,
    WrongChecksum, precedes, read_reply, write_request,
};
use super::super::command::{Command, Handle, Reply, Request, RequestId, SENSE_MAX, TaskFunction};
use super::super::compression::{Algorithm, Codecs, Compression};
use super::super::ended::Ended;
use super::super::incoming::{Incoming, Placed};
use super::super::outgoing::Outgoing;
use super::super::path::Unacknowledged;
use super::super::transport::Transport;
use crate::scsi::sense::Key;
use crate::time::Time;

/// Requests that may wait for a slot.
const WAITING_MAX: usize = 4096;

/// The slots of management and task management.
const CONTROL_SLOTS: core::ops::RangeInclusive<u16> = 508..=511;

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Command,
    Manage,
    Task,
    /// The same for one command: its answer is told behind that of the command.
    Abort(Request),
    /// The machine's own request for the device table.
    Devices,
}

/// A request without a slot.
#[derive(Debug)]
struct Waiting {
    id: RequestId,
    kind: Kind,
    message: Outgoing,
    /// The longest reply, and whether its data have a checksum.
    reply_max: u32,
    has_checksum: bool,
}

/// A request in a slot.
#[derive(Debug)]
struct Busy {
    id: RequestId,
    kind: Kind,
    device: Handle,
    reply_max: u32,
    has_checksum: bool,
    reply: Option<Incoming>,
    packets: Unacknowledged,
}

#[derive(Debug, Default)]
struct Slot {
    /// The sequence number of the request in it, or of the next one.
    seq: u32,
    busy: Option<Busy>,
    /// The packets of the last reply, which the next request acknowledges.
    answered: Option<Unacknowledged>,
}

/// All requests of a connection.
#[derive(Debug)]
pub(super) struct Requests {
    next_id: u64,
    waiting: VecDeque<Waiting>,
    controls_waiting: VecDeque<Waiting>,
    commands: Vec<Slot>,
    controls: Vec<Slot>,
    /// The lengths of all requests begun.
    begun: u64,
    /// The longest replies of the requests begun, and the most of them.
    expected: u64,
    expected_max: u64,
    /// Answers of aborts that have overtaken the command.
    held: Vec<Answer>,
    compression: Compression,
    checksum: Checksum,
}

/// A reply, whole.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) id: RequestId,
    pub(super) kind: Kind,
    pub(super) message: Bytes,
    /// The most data that was asked for, and whether they have a checksum.
    data_max: u32,
    has_checksum: bool,
}

/// Bytes of a command's reply that are no data.
const REPLY_HEAD_MAX: u32 = (REPLY_LEN + SENSE_MAX + CHECKSUM_LEN) as u32;

impl Requests {
    pub(super) fn new(
        slots: u16,
        expected_max: u64,
        (compression, checksum): (Compression, Checksum),
    ) -> Self {
        Self {
            next_id: 0,
            waiting: VecDeque::new(),
            controls_waiting: VecDeque::new(),
            commands: (0..slots).map(|_| Slot::default()).collect(),
            controls: CONTROL_SLOTS.map(|_| Slot::default()).collect(),
            begun: 0,
            expected: 0,
            expected_max,
            held: Vec::new(),
            compression,
            checksum,
        }
    }

    /// These options count from now on. What was begun before ends as it was begun.
    pub(super) fn change_options(&mut self, options: &Options, codecs: Codecs) {
        let slots = self.commands.len().max(usize::from(options.slots));
        self.commands.resize_with(slots, Slot::default);
        self.checksum.now = options.checksum;
        self.compression.change(codecs, options.compression);
    }

    fn fresh_id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id - 1)
    }

    /// Whether no more requests can wait.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() + self.controls_waiting.len() >= WAITING_MAX
    }

    /// Adds a command.
    pub(super) fn command(&mut self, command: Command) -> RequestId {
        let id = self.fresh_id();
        let reply_max = REPLY_HEAD_MAX + command.data_in_len;
        let (device, priority) = (command.device, command.priority);
        let has_checksum = self.checksum.now;
        let (head, data) = write_request(command, &mut self.compression, self.checksum);
        let mut message = Outgoing::new(Opcode::Request, 0, head, data);
        (message.device, message.priority) = (device, priority);
        // Behind all of the same priority.
        let at = self.waiting.iter().rposition(|one| one.message.priority >= priority);
        let waiting = Waiting { id, kind: Kind::Command, message, reply_max, has_checksum };
        self.waiting.insert(at.map_or(0, |at| at + 1), waiting);
        id
    }

    /// Adds a management request.
    pub(super) fn manage(&mut self, kind: Kind, body: Bytes) -> RequestId {
        let id = self.fresh_id();
        let message = Outgoing::new(Opcode::LocalRequest, 0, body, Bytes::new());
        let (reply_max, has_checksum) = (MANAGE_MAX, false);
        self.controls_waiting.push_back(Waiting { id, kind, message, reply_max, has_checksum });
        id
    }

    /// Adds a task management function.
    pub(super) fn task(&mut self, device: Handle, function: TaskFunction) -> RequestId {
        let id = self.fresh_id();
        let body = TaskRequest(function).emit();
        let mut message = Outgoing::new(Opcode::Abort, 0, body, Bytes::new());
        message.device = device;
        let kind = match function {
            TaskFunction::AbortTask(task) => Kind::Abort(task),
            _ => Kind::Task,
        };
        let (reply_max, has_checksum) = (4, false);
        self.controls_waiting.push_back(Waiting { id, kind, message, reply_max, has_checksum });
        id
    }

    /// Takes a command that was not begun yet out of the queue.
    pub(super) fn withdraw(&mut self, id: RequestId) -> bool {
        let at = self.waiting.iter().position(|one| one.id == id);
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// The place of a command that was begun, and its device.
    pub(super) fn place_of(&self, id: RequestId) -> Option<Request> {
        (0..).zip(&self.commands).find_map(|(slot, one)| {
            let is_it = one.busy.as_ref().is_some_and(|busy| busy.id == id);
            is_it.then_some(Request { slot, seq: one.seq })
        })
    }

    /// The commands that have arrived whole, and of whose answers nothing has.
    pub(super) fn at_server(&self, transport: &Transport) -> impl Iterator<Item = RequestId> {
        (0..).zip(&self.commands).filter_map(|(slot, one)| {
            let busy = one.busy.as_ref().filter(|busy| busy.reply.is_none())?;
            (!transport.sends(slot)).then_some(busy.id)
        })
    }

    /// All requests that have no answer.
    pub(super) fn unanswered(&self) -> Vec<RequestId> {
        let slots = self.commands.iter().chain(&self.controls);
        let busy = slots.filter_map(|slot| slot.busy.as_ref());
        let busy = busy.filter(|busy| busy.kind != Kind::Devices).map(|busy| busy.id);
        let waiting = self.waiting.iter().chain(&self.controls_waiting);
        let waiting = waiting.filter(|one| one.kind != Kind::Devices).map(|one| one.id);
        busy.chain(waiting).chain(self.held.iter().map(|answer| answer.id)).collect()
    }

    /// Begins the requests for which there is a slot and credit.
    pub(super) fn begin(&mut self, transport: &mut Transport) {
        while let Some(at) = self.controls.iter().position(|slot| slot.busy.is_none()) {
            let Some(waiting) = self.controls_waiting.pop_front() else { break };
            let slot = CONTROL_SLOTS.start() + at as u16;
            begin(transport, &mut self.controls[at], slot, waiting);
        }
        let (max_bytes, max_slots) = transport.granted();
        while let Some(waiting) = self.waiting.front() {
            let slots = self.commands.iter().take(usize::from(max_slots));
            let Some(at) = slots.clone().position(|slot| slot.busy.is_none()) else { return };
            let begun = self.begun + u64::from(waiting.message.len());
            let expected = self.expected + u64::from(waiting.reply_max);
            if begun > max_bytes || self.expected > 0 && expected > self.expected_max {
                return;
            }
            (self.begun, self.expected) = (begun, expected);
            let waiting = self.waiting.pop_front().expect("it is the front");
            begin(transport, &mut self.commands[at], at as u16, waiting);
        }
    }

    /// Whether commands wait although there are slots for them: only the server can help, and what it granted may be lost.
    pub(super) fn is_blocked(&self, slots: u16) -> bool {
        let slots = self.commands.iter().take(usize::from(slots));
        !self.waiting.is_empty() && slots.map(|slot| &slot.busy).any(Option::is_none)
    }

    /// Takes a fragment of a reply. `Ok(None)`: nothing is complete; `Err(None)`: it is to be dropped.
    pub(super) fn handle_fragment(
        &mut self,
        now: Time,
        transport: &mut Transport,
        header: &Header,
        body: &[u8],
    ) -> Result<Option<Answer>, Option<Ended>> {
        let broken = |what| Err(Some(Ended::Violation(what)));
        let Some((fragment, payload)) = Fragment::parse(body) else {
            return broken("a malformed fragment");
        };
        let slot = match header.slot.checked_sub(*CONTROL_SLOTS.start()) {
            Some(at) => self.controls.get_mut(usize::from(at)),
            None => self.commands.get_mut(usize::from(header.slot)),
        };
        let Some(slot) = slot else { return broken("a reply in a slot that is not there") };
        if precedes(fragment.seq, slot.seq) {
            return Ok(None);
        }
        let Some(busy) = slot.busy.as_mut().filter(|_| fragment.seq == slot.seq) else {
            return broken("a reply to no request");
        };
        let opcode = match busy.kind {
            Kind::Command => Opcode::Reply,
            Kind::Manage | Kind::Devices => Opcode::LocalReply,
            Kind::Task | Kind::Abort(_) => Opcode::Abort,
        };
        let is_expected = header.opcode == opcode && transport.has_level(header, busy.device);
        if !is_expected || fragment.message_len > busy.reply_max {
            return broken("a reply of another kind or length");
        }
        if busy.reply.is_none() {
            // It shows that the request has come.
            transport.imply(now, header.slot);
        }
        let reply = busy.reply.get_or_insert_with(|| Incoming::new(fragment.message_len));
        let placed = reply.place(&fragment, payload);
        match placed {
            Placed::Dropped => return Err(None),
            Placed::Violation => return broken("a fragment of another message"),
            Placed::Partly | Placed::Whole => transport.count(header.path, &mut busy.packets),
        }
        if placed == Placed::Partly {
            return Ok(None);
        }
        let busy = slot.busy.take().expect("it is busy");
        slot.seq = slot.seq.wrapping_add(1);
        slot.answered = Some(busy.packets);
        if busy.kind == Kind::Command {
            self.expected -= u64::from(busy.reply_max);
        }
        let message = busy.reply.map(Incoming::finish).unwrap_or_default();
        let data_max = busy.reply_max.saturating_sub(REPLY_HEAD_MAX);
        let has_checksum = busy.has_checksum;
        let answer = Answer { id: busy.id, kind: busy.kind, message, data_max, has_checksum };
        if let Kind::Abort(task) = busy.kind
            && self.is_busy(task)
        {
            self.held.push(answer);
            return Ok(None);
        }
        Ok(Some(answer))
    }

    /// How data are compressed.
    pub(super) fn compression(&self) -> Option<Algorithm> {
        self.compression.algorithm()
    }

    /// The reply to a command in its answer.
    pub(super) fn read_reply(&self, answer: &Answer) -> Option<Reply> {
        let (message, data_max) = (answer.message.clone(), answer.data_max);
        let reply = read_reply(message, data_max, &self.compression, answer.has_checksum)?;
        Some(reply.unwrap_or_else(|WrongChecksum| Reply::wrong_checksum(Key::HardwareError)))
    }

    /// Whether this request has no answer yet.
    fn is_busy(&self, request: Request) -> bool {
        let slot = self.commands.get(usize::from(request.slot));
        slot.is_some_and(|slot| slot.seq == request.seq && slot.busy.is_some())
    }

    /// The answers of aborts whose commands have been answered by now.
    pub(super) fn take_held(&mut self) -> impl Iterator<Item = Answer> {
        let held = core::mem::take(&mut self.held);
        let is_early =
            |answer: &Answer| matches!(answer.kind, Kind::Abort(task) if self.is_busy(task));
        let (early, due): (Vec<_>, Vec<_>) = held.into_iter().partition(is_early);
        self.held = early;
        due.into_iter()
    }
}

fn begin(transport: &mut Transport, slot: &mut Slot, at: u16, waiting: Waiting) {
    let Waiting { id, kind, mut message, reply_max, has_checksum } = waiting;
    message.seq = slot.seq;
    if let Some(packets) = slot.answered.take() {
        transport.acknowledged_by_message(&packets);
    }
    let device = message.device;
    let packets = Unacknowledged::default();
    slot.busy = Some(Busy { id, kind, device, reply_max, has_checksum, reply: None, packets });
    transport.send(at, message);
}

#[cfg(test)]
mod tests {
    use super::super::super::codec::{Sec, write_reply};
    use super::super::super::command::TaskAttribute;
    use super::super::super::transport::tests::transport;
    use super::*;
    use crate::scsi::status::Status;

    fn command() -> Command {
        Command {
            device: Handle(0),
            cdb: Bytes::from_static(&[0; 6]),
            data_out: Bytes::new(),
            data_in_len: 0,
            attribute: TaskAttribute::Simple,
            priority: 0,
        }
    }

    fn reply(requests: &mut Requests, seq: u32) -> Result<Option<RequestId>, Option<Ended>> {
        let (head, _) =
            write_reply(Reply::status(Status::Good), &mut Compression::default(), false);
        let fragment = Fragment { seq, offset: 0, message_len: head.len() as u32 };
        let mut body = fragment.emit().to_vec();
        body.extend_from_slice(&head);
        let header = Header::new(Opcode::Reply, Sec::Encrypt, true);
        let answer = requests.handle_fragment(Time::ZERO, &mut transport(false), &header, &body)?;
        Ok(answer.map(|answer| answer.id))
    }

    /// Spec, 7.2: sequence numbers begin anew behind the last one.
    #[test]
    fn request_behind_the_last_sequence_number_is_answered() {
        let mut requests = Requests::new(1, 1 << 20, (Compression::default(), Checksum::default()));
        requests.commands[0].seq = u32::MAX - 1;
        for seq in [u32::MAX - 1, u32::MAX, 0, 1] {
            let id = requests.command(command());
            requests.begin(&mut transport(false));
            assert_eq!(requests.place_of(id), Some(Request { slot: 0, seq }));
            assert_eq!(reply(&mut requests, seq.wrapping_sub(1)), Ok(None), "it is an old one");
            assert_eq!(reply(&mut requests, seq), Ok(Some(id)));
            assert_eq!(reply(&mut requests, seq), Ok(None), "it was answered");
        }
    }
}
