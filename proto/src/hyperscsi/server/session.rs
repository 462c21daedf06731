//! A connection at the server.

mod reauthentication;

use bytes::Bytes;
use reauthentication::Reauthentications;

use super::super::address::{Endpoint, Outbox, Transmit};
use super::super::aead::Aead;
use super::super::codec::{
    Checksum, Header, Opcode, Options, TaskRequest, WrongChecksum, devices_reply, devices_request,
    read_request, write_reply,
};
use super::super::command::{
    Command, Device, Handle, Level, Reply, Request, TaskFunction, TaskResponse,
};
use super::super::compression::{Algorithm, Compression};
use super::super::config::{Config, Random};
use super::super::ecn::Ecn;
use super::super::ended::Ended;
use super::super::path::PathStats;
use super::super::transport::Transport;
use super::admission::Proof;
use super::slots::{Slots, Whole};
use super::{ConnectionId, DECISION_TIME, ServerEvent};
use crate::identity::PublicKey;
use crate::scsi::sense::Key;
use crate::scsi::status::Status;
use crate::time::Time;
use core::ops::Range;

/// Sense data of a device that is not there: ILLEGAL REQUEST, LOGICAL UNIT NOT SUPPORTED.
const NOT_SUPPORTED: [u8; 18] = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x25, 0, 0, 0, 0, 0];

/// A connection with a proven client.
#[derive(Debug)]
pub(super) struct Session {
    transport: Transport,
    client: PublicKey,
    port: u64,
    slots: Slots,
    compression: Compression,
    /// Once the client was accepted.
    devices: Option<Vec<Device>>,
    /// The request for the devices, until then.
    asked: Option<Request>,
    decide_by: Time,
    checksum: Checksum,
    next: Reauthentications,
}

/// A request for the driver.
#[derive(Debug)]
pub(super) enum Arrived {
    Command(Request, Command),
    Manage(Request, Bytes),
    Task(Request, Handle, TaskFunction),
}

impl Arrived {
    pub(super) fn event(self, connection: ConnectionId) -> ServerEvent {
        match self {
            Self::Command(request, command) => {
                ServerEvent::Command { connection, request, command }
            }
            Self::Manage(request, body) => ServerEvent::Manage { connection, request, body },
            Self::Task(request, device, function) => {
                ServerEvent::TaskManagement { connection, request, device, function }
            }
        }
    }
}

impl Session {
    pub(super) fn new(now: Time, proof: Proof, own: &Options, config: &Config) -> Option<Self> {
        let Proof { client_cid, from, noise, options, .. } = proof;
        let client = noise.peer()?;
        let port = options.port.unwrap_or(0);
        let agreed = own.agreed(&options, true);
        let mut slots = Slots::new(agreed.slots, agreed.data_max, config.credit);
        let compression = Compression::agreed(config.codecs, agreed.compression);
        let checksum = Checksum::at_setup(agreed.checksum);
        let peer = (client_cid, from);
        let mut transport = Transport::new(now, true, peer, noise.finish(), (config, agreed))?;
        transport.set_grant(now, slots.grant(), false);
        let decide_by = now + DECISION_TIME;
        Some(Self {
            transport,
            client,
            port,
            slots,
            compression,
            devices: None,
            asked: None,
            decide_by,
            checksum,
            next: Reauthentications::default(),
        })
    }

    pub(super) const fn client(&self) -> PublicKey {
        self.client
    }

    pub(super) const fn port(&self) -> u64 {
        self.port
    }

    /// Until when it is to be decided about the client.
    pub(super) const fn decide_by(&self) -> Option<Time> {
        if self.devices.is_some() { None } else { Some(self.decide_by) }
    }

    pub(super) fn unsent(&self, devices: Range<u16>) -> u64 {
        self.transport.unsent(devices)
    }

    pub(super) fn compression(&self) -> Option<Algorithm> {
        self.compression.algorithm()
    }

    /// The lowest level that the client takes.
    pub(super) const fn least(&self) -> Level {
        self.transport.options().least
    }

    pub(super) const fn has_checksum(&self) -> bool {
        self.transport.options().checksum
    }

    pub(super) fn cipher(&self) -> Option<Aead> {
        self.transport.options().ciphers.first().copied()
    }

    pub(super) fn paths(&self) -> Vec<PathStats> {
        self.transport.paths().collect()
    }

    pub(super) const fn pace(&self) -> Option<Time> {
        self.transport.pace()
    }

    /// Whether it has packets to send, if the pace and the links let it.
    pub(super) fn has_unsent(&self) -> bool {
        self.devices.is_some() && self.transport.has_unsent()
    }

    pub(super) const fn ended(&self) -> Option<Ended> {
        self.transport.ended()
    }

    pub(super) fn end(&mut self, reason: Ended) {
        self.transport.end(reason);
    }

    pub(super) fn disconnect(&mut self, code: u8) -> Option<Transmit> {
        // A client that was not accepted learns nothing, unless it is one that could have been.
        if self.devices.is_none() && !self.ended().is_some_and(Ended::is_told_before_acceptance) {
            return None;
        }
        self.transport.disconnect(code)
    }

    pub(super) fn handle_packet(
        &mut self,
        now: Time,
        from: Endpoint,
        (header, ecn): (&Header, Ecn),
        packet: &mut [u8],
        random: &mut Random,
    ) -> Option<Arrived> {
        let body = self.transport.open(now, from, (header, packet), random)?;
        let mut arrived = None;
        if header.opcode == Opcode::Request && !self.transport.has_level(header, header.device) {
            self.end(Ended::Violation("a command at another level than its device's"));
            return None;
        }
        match header.opcode {
            Opcode::Request | Opcode::LocalRequest | Opcode::Abort => {
                match self.slots.handle_fragment(now, &mut self.transport, header, body) {
                    Ok(whole) => arrived = whole.and_then(|whole| self.arrived(now, whole)),
                    Err(None) => {
                        self.transport.dropped(header);
                        return None;
                    }
                    Err(Some(reason)) => self.end(reason),
                }
            }
            Opcode::AdnReply => self.handle_next(now, body),
            _ => {
                if !self.transport.handle_common(now, from, (header, body), random) {
                    self.end(Ended::Violation("an opcode that is not for servers"));
                }
            }
        }
        self.transport.received(now, header, ecn);
        arrived
    }

    /// A whole request: for the driver, or answered here.
    fn arrived(&mut self, now: Time, whole: Whole) -> Option<Arrived> {
        let Whole { request, opcode, device, priority, message } = whole;
        if opcode == Opcode::LocalRequest && message == devices_request() {
            self.asked = Some(request);
            self.list(now);
            return None;
        }
        let Some(devices) = &self.devices else {
            self.end(Ended::Violation("a request before the devices were listed"));
            return None;
        };
        let found = devices.iter().find(|one| one.handle == device);
        match opcode {
            Opcode::LocalRequest => Some(Arrived::Manage(request, message)),
            Opcode::Abort => {
                let Some(parsed) = TaskRequest::parse(&message) else {
                    self.end(Ended::Violation("a malformed task management function"));
                    return None;
                };
                match (parsed, found) {
                    (Err(_), _) => self.reply_task(now, request, TaskResponse::Unsupported),
                    (_, None) => self.reply_task(now, request, TaskResponse::NoSuchDevice),
                    (Ok(TaskRequest(function)), Some(_)) => {
                        return Some(Arrived::Task(request, device, function));
                    }
                }
                None
            }
            _ => {
                let is_known = found.is_some();
                let (data_max, place) = (self.transport.options().data_max, (device, priority));
                let has_checksum = self.checksum.of_request(&message);
                self.slots.set_checksum(request, has_checksum);
                let command =
                    read_request(message, place, data_max, &self.compression, has_checksum);
                let command = match command {
                    Some(Ok(command)) => command,
                    Some(Err(WrongChecksum)) => {
                        self.complete(now, request, Reply::wrong_checksum(Key::AbortedCommand));
                        return None;
                    }
                    None => {
                        self.end(Ended::Violation("a malformed command"));
                        return None;
                    }
                };
                if command.data_in_len > data_max {
                    self.end(Ended::Violation("a command that reads more than was agreed on"));
                    return None;
                }
                if is_known {
                    return Some(Arrived::Command(request, command));
                }
                let sense = Bytes::from_static(&NOT_SUPPORTED);
                let reply = Reply { sense, ..Reply::status(Status::CheckCondition) };
                self.complete(now, request, reply);
                None
            }
        }
    }

    /// Lets the client use these devices.
    pub(super) fn accept(&mut self, now: Time, devices: Vec<Device>) {
        self.transport.set_devices(&devices);
        self.devices = Some(devices);
        self.slots.open();
        self.list(now);
    }

    fn list(&mut self, now: Time) {
        if let (Some(devices), Some(request)) = (&self.devices, self.asked) {
            let table = devices_reply(devices);
            self.asked = None;
            self.slots.reply(now, &mut self.transport, request, (table, Bytes::new()));
        }
    }

    /// Answers a request of this kind, if it is being executed.
    pub(super) fn reply(
        &mut self,
        now: Time,
        request: Request,
        kind: Opcode,
        message: (Bytes, Bytes),
    ) {
        if self.slots.executing(request) == Some(kind) {
            self.slots.reply(now, &mut self.transport, request, message);
        }
    }

    /// Answers a command, if it is being executed.
    pub(super) fn complete(&mut self, now: Time, request: Request, reply: Reply) {
        if self.slots.executing(request) == Some(Opcode::Request) {
            let has_checksum = self.slots.has_checksum(request);
            let message = write_reply(reply, &mut self.compression, has_checksum);
            self.slots.reply(now, &mut self.transport, request, message);
        }
    }

    pub(super) fn reply_task(&mut self, now: Time, request: Request, response: TaskResponse) {
        let body = Bytes::copy_from_slice(&[response as u8, 0, 0, 0]);
        self.reply(now, request, Opcode::Abort, (body, Bytes::new()));
    }

    pub(super) fn pause(&mut self, now: Time, paused: bool) {
        self.slots.pause(paused);
        let grant = self.slots.grant();
        self.transport.set_grant(now, grant, true);
    }

    /// Sends what there is to be sent, at most as many packets; whether there was any.
    pub(super) fn transmit(&mut self, now: Time, most: usize, outbox: &mut dyn Outbox) -> bool {
        // Nothing goes to a client before it was accepted.
        self.devices.is_some() && self.transport.transmit(now, most, outbox)
    }

    pub(super) fn handle_timeout(&mut self, now: Time, config: &Config, random: &mut Random) {
        if self.devices.is_none() {
            if now >= self.decide_by {
                self.end(Ended::Closed);
            }
            return;
        }
        self.transport.handle_timeout(now, random);
        self.handle_next_timeout(now, config, random);
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        if self.devices.is_none() {
            return Some(self.decide_by);
        }
        [self.transport.next_deadline(), self.next_again()].into_iter().flatten().min()
    }
}
