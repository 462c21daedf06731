//! The client's machine.

mod queries;
mod reauthentication;
mod requests;
mod search;
mod sending;

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;
use subtle::ConstantTimeEq as _;

use reauthentication::PendingChange;
use requests::{Answer, Kind, Requests};
use search::Search;

use super::address::{Address, Endpoint, Transmit};
use super::codec::{
    COOKIE_LEN, Checksum, HEADER_LEN, Header, Opcode, Options, Sec, Start, TOKEN_LEN,
    devices_request, read_devices,
};
use super::command::{
    CDB_MAX, CDB_MIN, Command, Device, Handle, Reply, Request, RequestId, TaskFunction,
    TaskResponse,
};
use super::compression::Compression;
use super::config::{Config, Fill, Random, Remote, Terms};
use super::ecn::Ecn;
use super::ended::Ended;
use super::keys::SiteKeys;
use super::noise::{Noise, Part};
use super::transport::Transport;
use crate::identity::PublicKey;
use crate::reader::Reader;
use crate::scsi::status::Status;
use crate::time::Time;

/// What a client's driver is told.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The server has proven its key and accepted this client.
    Connected {
        /// The server's key.
        server: PublicKey,
        /// The devices that this client may use.
        devices: Vec<Device>,
    },
    /// The server has changed levels, or what may be written (spec, 10).
    Changed {
        /// All devices, as they are from now on.
        devices: Vec<Device>,
    },
    /// A command has ended.
    Completed(RequestId, Reply),
    /// A management request was answered.
    Managed(RequestId, Bytes),
    /// A task management function has ended.
    TaskManaged(RequestId, TaskResponse),
    /// The connection is over; the machine is of no more use. What these requests did is not known.
    Ended {
        /// Why.
        reason: Ended,
        /// The requests without an answer.
        unanswered: Vec<RequestId>,
    },
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// There is no connection: not yet, or no more.
    #[error("there is no connection")]
    NotConnected,
    /// Too many requests wait.
    #[error("too many requests wait")]
    QueueFull,
    /// The command block or the data are too long or too short.
    #[error("the command block or its data have no permitted length")]
    Length,
    /// No such device.
    #[error("the connection has no such device")]
    NoSuchDevice,
}

/// START is first repeated after as long (spec, 6.3).
const START_FIRST: Duration = Duration::from_millis(250);

/// And never later than this after the last one.
const START_LAST: Duration = Duration::from_secs(4);

/// A handshake without an answer ends after as long.
const GIVE_UP: Duration = Duration::from_secs(15);

/// One server of several is given as long to accept this client, before the next one is asked (spec, 6.1).
const SERVER_TIME: Duration = Duration::from_secs(2);

/// Probe time-outs in a row after which the server is asked whether it knows the connection (spec, 13).
const RESET_AFTER: u32 = 2;

/// Probe time-outs after which a client that lacks credit asks for it.
const BLOCKED: u32 = 4;

/// A client and its one connection.
#[derive(Debug)]
pub struct Client {
    config: Config,
    pin: Option<PublicKey>,
    site: SiteKeys,
    random: Random,
    cid: u32,
    /// The server that is used, or asked.
    endpoint: Endpoint,
    /// The servers that may be asked, if none was named.
    search: Option<Search>,
    give_up: Time,
    state: State,
    transmits: VecDeque<Transmit>,
    events: VecDeque<ClientEvent>,
}

#[derive(Debug)]
enum State {
    /// No server has answered that was not asked yet.
    Searching,
    Starting(Box<Starting>),
    /// Proving or connected.
    Running(Box<Running>),
    Ended,
}

/// START is out, without an answer.
#[derive(Debug)]
struct Starting {
    noise: Noise,
    start: Start,
    next: Time,
    interval: Duration,
    give_up: Time,
}

/// The handshake is over on this side.
#[derive(Debug)]
struct Running {
    transport: Transport,
    requests: Requests,
    server: PublicKey,
    server_cid: u32,
    token: [u8; TOKEN_LEN],
    /// ADN_REPLY, until a valid packet has come, and when it is sent next.
    proof: Option<(Bytes, Time)>,
    give_up: Time,
    devices: Option<Vec<Device>>,
    /// The last re-authentication: its epoch and ADN_REPLY.
    next_epoch: Option<(u8, Vec<u8>)>,
    /// What it has brought, until that counts.
    coming: Option<PendingChange>,
    /// The probe time-outs when the server was last asked for a reset.
    asked: u32,
    blocked: Option<Time>,
}

impl Client {
    /// Begins to connect.
    #[must_use]
    pub fn new(now: Time, config: Config, remote: Remote, random: Fill) -> Self {
        let mut random = Random(random);
        let Remote { endpoint, pin } = remote;
        // One ephemeral key must not serve several servers, so that they are found first.
        let is_named = endpoint.address != Address::BROADCAST;
        let search = (!is_named).then(|| Search::new(now, endpoint, random.array()));
        let site = SiteKeys::of(&config.site_key);
        let mut client = Self {
            config,
            pin,
            site,
            random,
            cid: 0,
            endpoint,
            search,
            give_up: now + GIVE_UP,
            state: State::Searching,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
        };
        if is_named {
            client.start(now, endpoint);
        }
        client.handle_timeout(now);
        client
    }

    /// Asks a server.
    fn start(&mut self, now: Time, endpoint: Endpoint) {
        self.cid = self.random.connection_id();
        let (identity, psk) = (&self.config.identity, &self.site.psk);
        let mut noise = Noise::setup(Part::Initiator, identity, psk, self.cid, &mut self.random.0);
        let first = noise.write(&[]).try_into().expect("message 1 has a fixed length");
        let start = Start { cid: self.cid, cookie: [0; COOKIE_LEN], noise: first };
        let one_of_many = self.search.as_ref().map(|_| now + SERVER_TIME);
        let give_up = one_of_many.map_or(self.give_up, |until| until.min(self.give_up));
        self.endpoint = endpoint;
        let starting = Starting { noise, start, next: now, interval: START_FIRST, give_up };
        self.state = State::Starting(Box::new(starting));
    }

    /// This server does not accept this client: the next one is asked, if there may be others.
    fn refused(&mut self, now: Time, reason: Ended) {
        let give_up = self.give_up;
        let Some(search) = self.search.as_mut().filter(|_| now < give_up) else {
            return self.finish(reason);
        };
        // That nobody has answered is what is said in the end, unless somebody has.
        search.refused = Some(reason).filter(|why| *why != Ended::NoAnswer).or(search.refused);
        self.state = State::Searching;
        self.ask_next(now);
    }

    fn ask_next(&mut self, now: Time) {
        if let State::Searching = self.state
            && let Some(server) = self.search.as_mut().and_then(Search::next_server)
        {
            self.start(now, server);
            self.handle_timeout(now);
        }
    }

    /// Takes a packet, which is decrypted in place.
    pub fn handle_packet(&mut self, now: Time, from: Endpoint, ecn: Ecn, packet: &mut [u8]) {
        let Some(header) = Header::parse(packet) else { return };
        if !header.from_server {
            return;
        }
        let body = &packet[HEADER_LEN..HEADER_LEN + usize::from(header.length)];
        if (header.sec, header.opcode) == (Sec::Handshake, Opcode::Offer) {
            if let Some(search) = &mut self.search {
                search.handle_offer(&self.site, from, body);
                self.ask_next(now);
            }
            return;
        }
        if header.cid != self.cid {
            return;
        }
        if header.sec == Sec::Handshake {
            self.handle_setup(now, header.opcode, body);
        } else {
            self.handle_sealed(now, from, (&header, ecn), packet);
        }
        self.settle(now);
    }

    fn handle_setup(&mut self, now: Time, opcode: Opcode, body: &[u8]) {
        match (&mut self.state, opcode) {
            (State::Starting(starting), Opcode::Cookie) => {
                let Some((cookie, mac)) = body.split_at_checked(COOKIE_LEN) else { return };
                let ephemeral = starting.start.ephemeral();
                // A second cookie is taken at the next repetition: nobody can make this side answer at will.
                if self.site.is_mac(&[b"C", ephemeral, cookie], mac) {
                    let is_first = starting.start.cookie == [0; COOKIE_LEN];
                    starting.start.cookie.copy_from_slice(cookie);
                    if is_first {
                        starting.next = now;
                        self.handle_timeout(now);
                    }
                }
            }
            (State::Starting(_), Opcode::AdnRequest) => self.handle_proof(now, body),
            (State::Running(running), Opcode::Reset) if bool::from(running.token.ct_eq(body)) => {
                running.transport.end(Ended::Reset);
            }
            _ => {}
        }
    }

    /// Takes ADN_REQUEST of set-up: the server's proof.
    fn handle_proof(&mut self, now: Time, body: &[u8]) {
        let State::Starting(starting) = &mut self.state else { return };
        let Some((&[1, 0, 0, 0], message)) = body.split_first_chunk() else { return };
        // Nothing has happened to the handshake if it is refused.
        let Ok(payload) = starting.noise.read(message) else { return };
        let State::Starting(starting) = core::mem::replace(&mut self.state, State::Ended) else {
            return;
        };
        match self.prove(now, *starting, &payload) {
            Ok(running) => {
                self.state = State::Running(Box::new(running));
                // ADN_REPLY goes first: without it the server knows nothing of what follows.
                self.handle_timeout(now);
            }
            Err(reason) => self.refused(now, reason),
        }
    }

    fn prove(&mut self, now: Time, starting: Starting, payload: &[u8]) -> Result<Running, Ended> {
        let Starting { mut noise, give_up, .. } = starting;
        let server = noise.peer().ok_or(Ended::WrongServer)?;
        if self.pin.is_some_and(|pin| pin != server) {
            return Err(Ended::WrongServer);
        }
        let mut reader = Reader::new(payload);
        let server_cid = reader.u32().map_err(|_| Ended::Violation("set-up without a number"))?;
        let own = Options { port: Some(self.config.port), ..Options::of(&self.config) };
        let theirs = Options::parse(reader.rest()).ok_or(Ended::Violation("unusable options"))?;
        let token = theirs.token.ok_or(Ended::Violation("set-up without a token"))?;
        let options = own.agreed(&theirs, false);
        let mut body = vec![1, 0, 0, 0];
        body.extend_from_slice(&noise.write(&own.emit()));
        let header = Header::new(Opcode::AdnReply, Sec::Handshake, false);
        let proof = Header { cid: server_cid, ..header }.with_body(&body).into();
        let (slots, compression) = (options.slots, options.compression);
        let checksum = Checksum::at_setup(options.checksum);
        let peer = (server_cid, self.endpoint);
        let transport = Transport::new(now, false, peer, noise.finish(), (&self.config, options));
        let transport = transport.ok_or(Ended::NoCipher)?;
        let compression = Compression::agreed(self.config.codecs, compression);
        let mut requests = Requests::new(slots, self.config.credit, (compression, checksum));
        requests.manage(Kind::Devices, devices_request());
        Ok(Running {
            transport,
            requests,
            server,
            server_cid,
            token,
            proof: Some((proof, now)),
            give_up,
            devices: None,
            next_epoch: None,
            coming: None,
            asked: 0,
            blocked: None,
        })
    }

    fn handle_sealed(
        &mut self,
        now: Time,
        from: Endpoint,
        (header, ecn): (&Header, Ecn),
        packet: &mut [u8],
    ) {
        let State::Running(running) = &mut self.state else { return };
        let (packet, random) = ((header, packet), &mut self.random);
        let Some(body) = running.transport.open(now, from, packet, random) else { return };
        // A message of the new epoch may be in what it has brought.
        running.change(&mut self.events);
        running.proof = None;
        let transport = &mut running.transport;
        let taken = match header.opcode {
            Opcode::Reply | Opcode::LocalReply | Opcode::Abort => {
                match running.requests.handle_fragment(now, transport, header, body) {
                    Ok(Some(answer)) => {
                        Self::answered(running, &mut self.events, answer);
                        true
                    }
                    Ok(None) => true,
                    Err(None) => false,
                    Err(Some(reason)) => {
                        running.transport.end(reason);
                        true
                    }
                }
            }
            Opcode::AdnRequest => {
                running.reauthenticate(now, &self.config, body, random);
                true
            }
            _ => {
                if !running.transport.handle_common(now, from, (header, body), random) {
                    running.transport.end(Ended::Violation("an opcode that is not for clients"));
                }
                true
            }
        };
        if taken {
            running.transport.received(now, header, ecn);
        } else {
            running.transport.dropped(header);
        }
    }

    fn answered(running: &mut Running, events: &mut VecDeque<ClientEvent>, answer: Answer) {
        let reply = || running.requests.read_reply(&answer);
        let Answer { id, kind, ref message, .. } = answer;
        let event = match kind {
            Kind::Command => reply().map(|reply| ClientEvent::Completed(id, reply)),
            Kind::Manage => Some(ClientEvent::Managed(id, message.clone())),
            Kind::Task | Kind::Abort(_) => {
                message.first().map(|code| ClientEvent::TaskManaged(id, TaskResponse::of(*code)))
            }
            Kind::Devices => read_devices(message).and_then(|devices| {
                let least = running.transport.options().least;
                if devices.iter().any(|device| device.level < least) {
                    let why = "a device at a lower level than is taken";
                    running.transport.end(Ended::Violation(why));
                    return None;
                }
                running.transport.set_devices(&devices);
                running.devices = Some(devices.clone());
                Some(ClientEvent::Connected { server: running.server, devices })
            }),
        };
        match event {
            Some(event) => {
                events.push_back(event);
                let held =
                    running.requests.take_held().filter_map(|Answer { id, message, .. }| {
                        let code = message.first()?;
                        Some(ClientEvent::TaskManaged(id, TaskResponse::of(*code)))
                    });
                events.extend(held);
            }
            None => running.transport.end(Ended::Violation("a malformed reply")),
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        match &mut self.state {
            State::Searching if now >= self.give_up => {
                let refused = self.search.as_ref().and_then(|search| search.refused);
                self.finish(refused.unwrap_or(Ended::NoAnswer));
            }
            State::Searching => {
                let probe = self.search.as_mut().and_then(|it| it.poll_probe(now, &self.site));
                self.transmits.extend(probe);
            }
            State::Starting(starting) if now >= starting.give_up => {
                self.refused(now, Ended::NoAnswer);
            }
            State::Starting(starting) if now >= starting.next => {
                starting.next = now + starting.interval;
                starting.interval = (starting.interval * 2).min(START_LAST);
                let bytes = starting.start.packet().into();
                self.transmits.push_back(Transmit::new(self.endpoint, bytes));
            }
            State::Starting(_) | State::Ended => {}
            State::Running(running) => {
                let packets = running.handle_timeout(now, self.cid, &self.site, &mut self.random);
                self.transmits.extend(packets);
            }
        }
        self.settle(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; it changes with every other call.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        match &self.state {
            State::Searching => {
                let probe = self.search.as_ref().map(Search::deadline);
                Some(probe.map_or(self.give_up, |probe| probe.min(self.give_up)))
            }
            State::Starting(starting) => Some(starting.next.min(starting.give_up)),
            State::Running(running) => running.next_deadline(),
            State::Ended => None,
        }
    }

    /// What counts of this end's configuration from the next re-authentication on (spec, 10).
    pub fn set_terms(&mut self, terms: Terms) {
        self.config.set_terms(terms);
    }

    /// Opens another path to the server, once there is a connection; false if it has as many as were agreed on
    /// ([`Config::paths`]). Data go by it when the server was reached by it, and for as long as that is so.
    pub fn add_path(&mut self, now: Time, endpoint: Endpoint) -> bool {
        match &mut self.state {
            State::Running(running) if running.devices.is_some() => {
                running.transport.add_path(now, endpoint, &mut self.random)
            }
            _ => false,
        }
    }

    /// The next event, until there is none.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// Submits a command.
    pub fn submit(&mut self, now: Time, command: Command) -> Result<RequestId, SubmitError> {
        let running = self.connected()?;
        let devices = running.devices.as_deref().unwrap_or_default();
        if !devices.iter().any(|device| device.handle == command.device) {
            return Err(SubmitError::NoSuchDevice);
        }
        let data_max = running.transport.options().data_max;
        let fits = (CDB_MIN..=CDB_MAX).contains(&command.cdb.len())
            && command.data_out.len() as u64 <= u64::from(data_max)
            && command.data_in_len <= data_max;
        if !fits {
            return Err(SubmitError::Length);
        }
        let id = running.requests.command(command);
        running.begin(now);
        Ok(id)
    }

    /// Submits a management request: TLVs (spec, 11).
    pub fn manage(&mut self, now: Time, request: Bytes) -> Result<RequestId, SubmitError> {
        let running = self.connected()?;
        if request.is_empty() || request.len() > super::codec::MANAGE_MAX as usize {
            return Err(SubmitError::Length);
        }
        let id = running.requests.manage(Kind::Manage, request);
        running.begin(now);
        Ok(id)
    }

    /// Aborts a command that was submitted. Its completion, if any, comes before the answer.
    pub fn abort(
        &mut self,
        now: Time,
        device: Handle,
        id: RequestId,
    ) -> Result<RequestId, SubmitError> {
        let running = self.connected()?;
        if running.requests.withdraw(id) {
            let reply = Reply::status(Status::TaskAborted);
            self.events.push_back(ClientEvent::Completed(id, reply));
        }
        let running = self.connected()?;
        // Of a command that has ended the server says that it is not there.
        let nowhere = Request { slot: u16::MAX, seq: 0 };
        let request = running.requests.place_of(id).unwrap_or(nowhere);
        let id = running.requests.task(device, TaskFunction::AbortTask(request));
        running.begin(now);
        Ok(id)
    }

    /// Submits a task management function for a device.
    pub fn manage_tasks(
        &mut self,
        now: Time,
        device: Handle,
        function: TaskFunction,
    ) -> Result<RequestId, SubmitError> {
        let running = self.connected()?;
        let id = running.requests.task(device, function);
        running.begin(now);
        Ok(id)
    }

    fn connected(&mut self) -> Result<&mut Running, SubmitError> {
        match &mut self.state {
            State::Running(running) if running.devices.is_some() => {
                if running.requests.is_full() {
                    return Err(SubmitError::QueueFull);
                }
                Ok(running)
            }
            _ => Err(SubmitError::NotConnected),
        }
    }

    /// Ends the connection: one packet, without an answer (spec, 12).
    pub fn disconnect(&mut self, now: Time) {
        if let State::Running(running) = &mut self.state {
            running.transport.end(Ended::Closed);
        }
        match self.state {
            State::Searching | State::Starting(_) => self.finish(Ended::Closed),
            State::Running(_) | State::Ended => self.settle(now),
        }
    }

    /// Begins what can be begun, and ends what is over.
    fn settle(&mut self, now: Time) {
        let State::Running(running) = &mut self.state else { return };
        running.begin(now);
        let Some(reason) = running.transport.ended() else { return };
        if let Some(code) = reason.code() {
            self.transmits.extend(running.transport.disconnect(code));
        }
        match running.devices {
            None if reason != Ended::Closed => self.refused(now, reason),
            _ => self.finish(reason),
        }
    }

    fn finish(&mut self, reason: Ended) {
        let unanswered = match &self.state {
            State::Running(running) => running.requests.unanswered(),
            State::Searching | State::Starting(_) | State::Ended => Vec::new(),
        };
        self.state = State::Ended;
        self.events.push_back(ClientEvent::Ended { reason, unanswered });
    }
}

impl Running {
    fn begin(&mut self, now: Time) {
        self.requests.begin(&mut self.transport);
        let (_, slots) = self.transport.granted();
        let is_blocked = self.requests.is_blocked(slots);
        let later = now + self.transport.probe_timeout() * BLOCKED;
        self.blocked = is_blocked.then(|| self.blocked.unwrap_or(later));
    }

    /// Does what is due; packets of set-up and reset.
    fn handle_timeout(
        &mut self,
        now: Time,
        cid: u32,
        site: &SiteKeys,
        random: &mut Random,
    ) -> Vec<Transmit> {
        let mut packets = Vec::new();
        if self.devices.is_none() && now >= self.give_up {
            self.transport.end(Ended::NoAnswer);
        }
        self.transport.handle_timeout(now, random);
        let again = now + self.transport.probe_timeout();
        if let Some((proof, next)) = &mut self.proof
            && now >= *next
        {
            let bytes = proof.clone();
            let first = self.transport.paths().next();
            packets.extend(first.map(|path| Transmit::new(path.endpoint, bytes)));
            *next = again;
        }
        let backoff = self.transport.backoff();
        if backoff >= RESET_AFTER && backoff > self.asked && self.proof.is_none() {
            let bytes = self.reset_query(cid, site, random);
            let queries = self.transport.paths();
            packets.extend(queries.map(|path| Transmit::new(path.endpoint, bytes.clone())));
        }
        self.asked = backoff;
        if self.blocked.is_some_and(|at| now >= at) {
            self.blocked = None;
            if !self.transport.is_waiting() {
                self.transport.query(now);
            }
        }
        packets
    }

    fn reset_query(&self, cid: u32, site: &SiteKeys, random: &mut Random) -> Bytes {
        let mut body = self.server_cid.to_be_bytes().to_vec();
        body.extend_from_slice(&cid.to_be_bytes());
        body.extend_from_slice(&random.array::<16>());
        let mac = site.mac(&[b"R", &body]);
        body.extend_from_slice(&mac);
        Header::new(Opcode::Reset, Sec::Handshake, false).with_body(&body).into()
    }

    fn next_deadline(&self) -> Option<Time> {
        let proof = self.proof.as_ref().map(|(_, next)| *next);
        let give_up = self.devices.is_none().then_some(self.give_up);
        let timers = [self.transport.next_deadline(), proof, give_up, self.blocked];
        timers.into_iter().flatten().min()
    }
}
