//! The server's machine.

mod admission;
mod session;
mod sessions;
mod slots;

use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;

use admission::{Admission, Proof};
use session::Session;
use sessions::Sessions;

use super::address::{Endpoint, OnePacket, Outbox, Transmit};
use super::aead::Aead;
use super::codec::{HEADER_LEN, Header, Opcode, Sec, not_understood};
use super::command::{Command, Device, Handle, Level, Reply, Request, TaskFunction, TaskResponse};
use super::compression::Algorithm;
use super::config::{Config, Fill, Random, Terms};
use super::ecn::Ecn;
use super::ended::Ended;
use super::path::PathStats;
use crate::identity::PublicKey;
use crate::time::Time;

/// A connection of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// What a server's driver is told.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A client has proven its key: to be answered with [`Server::accept`] or [`Server::refuse`].
    Proven {
        /// The new connection.
        connection: ConnectionId,
        /// The client's key.
        client: PublicKey,
        /// Its initiator port.
        port: u64,
        /// The lowest level that it takes: no device may be given to it at a lower one.
        least: Level,
        /// Where it is.
        from: Endpoint,
    },
    /// A command to be executed once, and answered with [`Server::complete`].
    Command {
        /// The connection.
        connection: ConnectionId,
        /// The request, unique within its connection.
        request: Request,
        /// The command with its data.
        command: Command,
    },
    /// A management request, to be answered with [`Server::managed`].
    Manage {
        /// The connection.
        connection: ConnectionId,
        /// The request.
        request: Request,
        /// Its TLVs.
        body: Bytes,
    },
    /// A task management function, to be answered with [`Server::task_managed`].
    TaskManagement {
        /// The connection.
        connection: ConnectionId,
        /// The request.
        request: Request,
        /// The device.
        device: Handle,
        /// The function.
        function: TaskFunction,
    },
    /// What has become of what [`Server::change_devices`] wanted.
    Changed {
        /// The connection.
        connection: ConnectionId,
        /// How far it is.
        step: ChangeStep,
    },
    /// A connection is over. Its requests need no answers any more.
    Ended {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        reason: Ended,
    },
}

/// How far a change of devices is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeStep {
    /// The client does not take it: all is as it was.
    Refused,
    /// It takes it. Packets of both epochs are taken: a device has the lower one of its levels.
    Begun,
    /// The keys of the epoch before are erased: it counts alone.
    Complete,
}

/// A proven client that nobody has accepted or refused yet is forgotten after as long.
const DECISION_TIME: Duration = Duration::from_secs(30);

/// Proven clients that nobody has accepted or refused yet; the oldest one gives way.
const UNDECIDED_MAX: usize = 64;

/// Answers of set-up that wait to be sent.
const ANSWERS_MAX: usize = 256;

/// Packets of a connection that are sent before others have their turn: as many as UDP sends in one piece.
const TURN: usize = 44;

/// A server with all its connections.
#[derive(Debug)]
pub struct Server {
    config: Config,
    random: Random,
    admission: Admission,
    sessions: Sessions,
    transmits: VecDeque<Transmit>,
    events: VecDeque<ServerEvent>,
    /// The connections of which packets have come.
    touched: BTreeSet<u32>,
}

impl Server {
    /// A server without connections.
    #[must_use]
    pub fn new(_now: Time, config: Config, random: Fill) -> Self {
        let mut random = Random(random);
        let admission = Admission::new(&config, &mut random);
        Self {
            config,
            random,
            admission,
            sessions: Sessions::default(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            touched: BTreeSet::new(),
        }
    }

    /// Sets the name that is told to members of the site who look for servers (spec, 6.1).
    pub fn set_name(&mut self, name: &str) {
        self.admission.set_name(name);
    }

    /// Takes a packet, which is decrypted in place. What strangers send has no effect.
    pub fn handle_packet(&mut self, now: Time, from: Endpoint, ecn: Ecn, packet: &mut [u8]) {
        let Some(header) = Header::parse(packet) else { return };
        if header.from_server {
            return;
        }
        if header.sec == Sec::Handshake {
            let body = &packet[HEADER_LEN..HEADER_LEN + usize::from(header.length)];
            self.handle_setup(now, from, &header, body);
            return;
        }
        let (random, connection) = (&mut self.random, ConnectionId(header.cid));
        let handle = |it: &mut Session| it.handle_packet(now, from, (&header, ecn), packet, random);
        let Some(arrived) = self.sessions.change(header.cid, handle) else { return };
        self.touched.insert(header.cid);
        self.events.extend(arrived.map(|arrived| arrived.event(connection)));
        self.settle(header.cid);
    }

    fn handle_setup(&mut self, now: Time, from: Endpoint, header: &Header, body: &[u8]) {
        let answer = match header.opcode {
            Opcode::Discovery => {
                let fresh = self.fresh_id();
                let means = (&self.config, &mut self.random, fresh);
                self.admission.discovery(now, from, body, means)
            }
            Opcode::Reset => self.admission.reset(body, |cid| self.sessions.has(cid)),
            Opcode::AdnReply => {
                if let Some(proof) = self.admission.proof(from, header.cid, body) {
                    self.connect(now, proof);
                }
                None
            }
            _ => None,
        };
        // While the links take nothing they do not pile up: a client asks again.
        if self.transmits.len() < ANSWERS_MAX {
            self.transmits.extend(answer.map(|bytes| Transmit::new(from, bytes)));
        }
    }

    fn fresh_id(&mut self) -> u32 {
        loop {
            let id = self.random.connection_id();
            if !self.sessions.has(id) && !self.admission.has(id) {
                return id;
            }
        }
    }

    fn connect(&mut self, now: Time, proof: Proof) {
        let cid = proof.server_cid;
        let own = self.admission.options(&self.config, cid, proof.client_cid);
        let from = proof.from;
        let Some(session) = Session::new(now, proof, &own, &self.config) else { return };
        let (client, port, least) = (session.client(), session.port(), session.least());
        self.make_room();
        self.sessions.insert(cid, session);
        let connection = ConnectionId(cid);
        self.events.push_back(ServerEvent::Proven { connection, client, port, least, from });
    }

    fn make_room(&mut self) {
        let waiting = self.sessions.iter().filter_map(|(cid, it)| Some((it.decide_by()?, cid)));
        let waiting: Vec<_> = waiting.collect();
        if waiting.len() >= UNDECIDED_MAX
            && let Some((_, oldest)) = waiting.iter().min()
        {
            self.close(ConnectionId(*oldest), Ended::Closed);
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.admission.expire(now);
        for cid in self.sessions.due(now) {
            let (config, random) = (&self.config, &mut self.random);
            self.sessions.change(cid, |session| session.handle_timeout(now, config, random));
            self.settle(cid);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; it changes with every other call.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        [self.sessions.next_deadline(), self.admission.deadline()].into_iter().flatten().min()
    }

    /// When the pace lets the next packet leave, if that is what it waits for.
    #[must_use]
    pub fn pace(&self) -> Option<Time> {
        self.sessions.pace()
    }

    /// The next packet to be sent, until there is none.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        let mut outbox = OnePacket::default();
        self.transmit(now, &mut outbox);
        outbox.0
    }

    /// Sends the packets that there are to be sent, as many as are taken.
    pub fn transmit(&mut self, now: Time, outbox: &mut dyn Outbox) {
        // Connections in a row that may have nothing to send.
        let mut quiet = 0;
        let active = self.sessions.wake(now);
        while outbox.has_room() {
            if let Some(transmit) = self.transmits.pop_front() {
                transmit.push(outbox);
                continue;
            }
            let Some(cid) = self.sessions.next_turn() else { break };
            let any = self.sessions.transmit(cid, (now, TURN), outbox);
            self.settle(cid);
            quiet = if any { 0 } else { quiet + 1 };
            if quiet >= active {
                break;
            }
        }
        #[cfg(any(test, feature = "invariants"))]
        self.sessions.assert_quiet(now);
    }

    /// The next event, until there is none.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.events.pop_front()
    }

    /// The connections of which packets have come since this was last asked: what is [`unsent`](Self::unsent) may be less.
    pub fn take_touched(&mut self) -> impl Iterator<Item = ConnectionId> + use<> {
        core::mem::take(&mut self.touched).into_iter().map(ConnectionId)
    }

    /// Lets a proven client use these devices.
    pub fn accept(&mut self, now: Time, connection: ConnectionId, devices: Vec<Device>) {
        self.sessions.change(connection.0, |session| session.accept(now, devices));
    }

    /// Changes levels and read-only flags of the devices that an accepted client has, by a re-authentication that begins now
    /// (spec, 10). [`ServerEvent::Changed`] tells when that counts.
    pub fn change_devices(&mut self, _now: Time, connection: ConnectionId, devices: Vec<Device>) {
        self.sessions.change(connection.0, |session| session.change_devices(devices));
    }

    /// What counts of this end's configuration from the next re-authentication of each connection on (spec, 10).
    pub fn set_terms(&mut self, terms: Terms) {
        self.config.set_terms(terms);
    }

    /// Forgets a proven client without a word.
    pub fn refuse(&mut self, _now: Time, connection: ConnectionId) {
        self.sessions.remove(connection.0);
    }

    /// Answers a command. Answers for connections that are over have no effect.
    pub fn complete(
        &mut self,
        now: Time,
        connection: ConnectionId,
        request: Request,
        reply: Reply,
    ) {
        self.sessions.change(connection.0, |session| session.complete(now, request, reply));
    }

    /// Answers a management request; without a body, that it was not understood (spec, 11).
    pub fn managed(&mut self, now: Time, connection: ConnectionId, request: Request, body: Bytes) {
        let body = if body.is_empty() { not_understood() } else { body };
        self.sessions.change(connection.0, |session| {
            session.reply(now, request, Opcode::LocalRequest, (body, Bytes::new()));
        });
    }

    /// Answers a task management function.
    pub fn task_managed(
        &mut self,
        now: Time,
        connection: ConnectionId,
        request: Request,
        response: TaskResponse,
    ) {
        self.sessions.change(connection.0, |session| session.reply_task(now, request, response));
    }

    /// Stops a client from beginning requests, or lets it go on. What has begun goes on.
    pub fn pause(&mut self, now: Time, connection: ConnectionId, paused: bool) {
        self.sessions.change(connection.0, |session| session.pause(now, paused));
    }

    /// Bytes of answers that lie here for a connection until its client has taken them, of devices with these handles.
    #[must_use]
    pub fn unsent(&self, connection: ConnectionId, devices: Range<u16>) -> u64 {
        self.sessions.get(connection.0).map_or(0, |session| session.unsent(devices))
    }

    /// How the ways to a client are, while there is a connection.
    #[must_use]
    pub fn paths(&self, connection: ConnectionId) -> Vec<PathStats> {
        self.sessions.get(connection.0).map_or_else(Vec::new, Session::paths)
    }

    /// How data that are worth it are compressed on their way to a client.
    #[must_use]
    pub fn compression(&self, connection: ConnectionId) -> Option<Algorithm> {
        self.sessions.get(connection.0).and_then(Session::compression)
    }

    /// Whether data from and for a client have checksums from end to end.
    #[must_use]
    pub fn has_checksum(&self, connection: ConnectionId) -> bool {
        self.sessions.get(connection.0).is_some_and(Session::has_checksum)
    }

    /// The cipher of packets to and from a client, while there is a connection.
    #[must_use]
    pub fn cipher(&self, connection: ConnectionId) -> Option<Aead> {
        self.sessions.get(connection.0).and_then(Session::cipher)
    }

    /// Ends a connection, and tells its client why: [`Ended::Closed`], [`Ended::Replaced`], [`Ended::Changed`], and
    /// [`Ended::Full`] and [`Ended::Paused`], which a client is told also before it was accepted.
    pub fn close(&mut self, connection: ConnectionId, reason: Ended) {
        self.sessions.change(connection.0, |session| session.end(reason));
        self.settle(connection.0);
    }

    /// Tells of changed devices, and removes a connection that is over.
    fn settle(&mut self, cid: u32) {
        let connection = ConnectionId(cid);
        while let Some(step) = self.sessions.change(cid, Session::take_change).flatten() {
            self.events.push_back(ServerEvent::Changed { connection, step });
        }
        let Some(reason) = self.sessions.get(cid).and_then(Session::ended) else { return };
        if let Some(code) = reason.code() {
            let told = self.sessions.change(cid, |session| session.disconnect(code));
            self.transmits.extend(told.flatten());
        }
        self.sessions.remove(cid);
        self.events.push_back(ServerEvent::Ended { connection, reason });
    }
}
