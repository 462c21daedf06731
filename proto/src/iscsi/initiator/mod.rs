//! The initiator: one session, as a pure machine.
//!
//! ```text
//! submit, abort, ping, text, logout ->            -> outbox (bytes to send)
//!                   bytes received ->  Initiator  -> events
//!                          the time ->            -> deadline
//! ```
//!
//! It logs in, keeps commands within the target's window, sends data as early as was agreed, answers
//! R2Ts and pings, and puts Data-In together. A target that breaks the rules ends the session with a
//! [`Fault`] that says which: at error recovery level 0 nothing else is left (RFC 7143, 7.1.4.4).
//!
//! A session begins with one connection and may [join](Initiator::join) others to it, if the target lets it
//! have several. A connection is named by its index, in the order of joining. Commands go by the one that has the
//! least on its way, and are numbered in one order, in which the target carries them out. A connection that
//! fails takes the session with it (RFC 7143, 7.1.5), unless it was still logging in.
//!
//! `T` is whatever the caller wants back with a command's end, for example where to send it.

mod connection;
mod fault;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod sequence;
mod session;
mod task;

use core::time::Duration;

use bytes::{Bytes, BytesMut};

use super::header::{Header, NO_TAG, RejectReason, TaskResponse};
use super::login::Entropy;
use super::login::initiator::{
    CID, Config as LoginConfig, Deviation, Established, InitiatorLogin, LoginPurpose, Progress,
};
use super::pdu::{Frame, Outbox, Pdu, Pieces};
use crate::scsi::{Residual, Status};
use crate::time::Time;

use connection::{Connection, Stage};
pub use fault::{Fault, Misbehaviour, TaskError};
use session::Session;

/// How long the machine waits.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the login to come to an end.
    pub login: Duration,
    /// For the logout to come to an end.
    pub logout: Duration,
    /// With nothing heard, before it asks whether the target is there.
    pub idle: Duration,
    /// For an answer to that; any PDU is one.
    pub answer: Duration,
    /// For a command to move, though what was sent long after it was answered. Flushes, zeroes and discards have five
    /// times as long, as long as others are answered.
    pub stall: Duration,
    /// How many times longer they have at first, of a unit that may be slow. That passes when none has needed it for as
    /// long as that is.
    pub stall_times: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            login: seconds(30),
            logout: seconds(30),
            idle: seconds(10),
            answer: seconds(20),
            stall: seconds(60),
            stall_times: 1,
        }
    }
}

/// What travels with a command.
#[derive(Clone, Debug)]
pub enum Transfer {
    /// Nothing.
    None,
    /// At most that many bytes to us.
    In(u32),
    /// These bytes to the target.
    Out(Pieces),
}

/// A command for a logical unit.
#[derive(Clone, Debug)]
pub struct Command {
    /// The logical unit, as SAM-5 4.7 lays it out.
    pub lun: u64,
    /// The command block.
    pub cdb: [u8; 16],
    /// Its data.
    pub transfer: Transfer,
    /// All before it end before it begins, and nothing behind it begins before it has ended (SAM-5, 8.6.3).
    pub is_ordered: bool,
}

/// How a command ended at the logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The status.
    pub status: Status,
    /// What came in, in one piece.
    pub data: Bytes,
    /// Sense data, if there are any.
    pub sense: Bytes,
    /// How the transfer missed what was expected.
    pub residual: Residual,
}

/// What the machine tells its driver.
#[derive(Debug)]
pub enum Event<T> {
    /// The login is done; commands flow.
    Established(Box<Established>),
    /// The target breaks a rule that it can be used without, for the first time since the login, which tells its own.
    Deviation(Deviation),
    /// A connection was added.
    Joined(usize),
    /// A connection could not be added; the session goes on without it.
    NotJoined(usize, Fault),
    /// A command has ended.
    Completed(T, Result<Completion, TaskError>),
    /// A ping came back.
    Pong(Duration),
    /// The answer to a text request.
    Text(Vec<u8>),
    /// A text request was rejected.
    TextRejected(RejectReason),
    /// How a reset of a unit went. Done, no task on it runs any more (RFC 7143, 11.6.1).
    UnitReset(TaskResponse),
    /// Every command that was under way when this was asked for has ended; in the order of asking.
    Settled,
    /// A logical unit tells something of its own accord; sense data (RFC 7143, 11.9.1).
    UnitEvent {
        /// The logical unit.
        lun: u64,
        /// What it tells.
        sense: Bytes,
    },
    /// The target wants the session to end within this time. What is in flight is waited for, then
    /// the machine logs out.
    LogoutRequested(Duration),
    /// The session has ended as it should. Nothing more is sent or taken.
    LoggedOut,
}

/// The most commands that wait for the window. A driver that asks [`Initiator::has_room`] first
/// never meets it.
pub const QUEUE_MAX: usize = 1024;

/// The machine.
#[derive(Debug)]
pub struct Initiator<T> {
    /// Who we are, for every connection.
    config: LoginConfig,
    timeouts: Timeouts,
    /// The connections, the leading one first.
    connections: Vec<Connection>,
    phase: Phase<T>,
}

#[derive(Debug)]
enum Phase<T> {
    /// The first connection logs in.
    Login,
    Session {
        session: Box<Session<T>>,
        tsih: u16,
    },
    /// A fault, or a logout, has ended it.
    Ended,
}

impl<T> Initiator<T> {
    /// A machine on a new connection; the first request of its login waits in the outbox.
    #[must_use]
    pub fn start(config: LoginConfig, entropy: Entropy, timeouts: Timeouts, now: Time) -> Self {
        let (login, request) = InitiatorLogin::start(config.clone(), entropy);
        // RFC 7143, 4.3: a discovery session has no pings, so that its target has as long as an answer to one takes.
        let idle = timeouts.idle + timeouts.answer;
        let timeouts =
            if config.target.is_some() { timeouts } else { Timeouts { idle, ..timeouts } };
        let mut connection = Connection::new(login, now, &timeouts);
        connection.outbox.push_pdu(request);
        Self { config, timeouts, connections: vec![connection], phase: Phase::Login }
    }

    /// How many connections the session may have; none before it is there.
    #[must_use]
    pub fn connections_max(&self) -> usize {
        match &self.phase {
            Phase::Session { session, .. } => session.lines_max(),
            Phase::Login | Phase::Ended => 0,
        }
    }

    /// Begins to add a connection, if the session may have another; gives its index, and
    /// [`Event::Joined`] or [`Event::NotJoined`] follows.
    pub fn join(&mut self, now: Time, entropy: Entropy) -> Option<usize> {
        let Phase::Session { session, tsih } = &self.phase else { return None };
        let closed = |connection: &Connection| matches!(connection.stage, Stage::Closed);
        let on = self.connections.iter().position(closed).unwrap_or(self.connections.len());
        if on >= session.lines_max() {
            return None;
        }
        let cid = CID.wrapping_add(u16::try_from(on).ok()?);
        let place = LoginPurpose { tsih: *tsih, cid, cmd_sn: session.cmd_sn() };
        let (login, request) = InitiatorLogin::join(self.config.clone(), place, entropy);
        let mut connection = Connection::new(login, now, &self.timeouts);
        connection.outbox.push_pdu(request);
        match self.connections.get_mut(on) {
            Some(closed) => *closed = connection,
            None => self.connections.push(connection),
        }
        Some(on)
    }

    /// A connection that was to be added has broken. Whether that is all: one that was part of the
    /// session takes the session with it.
    #[must_use]
    pub fn abandon(&mut self, on: usize) -> bool {
        let joining = matches!(self.phase, Phase::Session { .. });
        let connection =
            self.connections.get_mut(on).filter(|connection| joining && !connection.is_open());
        connection.map(|connection| connection.stage = Stage::Closed).is_some()
    }

    /// No command has longer any more than those of a unit that is not slow: somebody waits for the end.
    pub fn hurry(&mut self) {
        self.timeouts.stall_times = 1;
        self.connections.iter_mut().for_each(|connection| connection.progress.hurry());
    }

    /// Takes all whole PDUs off the front of the buffer of a connection.
    pub fn receive(&mut self, now: Time, on: usize, buffer: &mut BytesMut) -> Result<(), Fault> {
        let taken = self.take(now, on, buffer);
        if taken.is_err() {
            self.end();
        }
        taken
    }

    fn take(&mut self, now: Time, on: usize, buffer: &mut BytesMut) -> Result<(), Fault> {
        loop {
            let Some(connection) = self.connections.get_mut(on) else { return Ok(()) };
            connection.outbox.tick(now);
            let taken = match connection.stage {
                Stage::Closed => return Ok(()),
                Stage::Login { .. } => self.take_login(now, on, buffer),
                Stage::Open => self.take_pdu(now, on, buffer),
            };
            match taken {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(fault) => match &mut self.phase {
                    // A connection that does not come about costs nobody anything.
                    Phase::Session { session, .. } if !self.connections[on].is_open() => {
                        self.connections[on].stage = Stage::Closed;
                        session.not_joined(on, fault);
                        return Ok(());
                    }
                    _ => return Err(fault),
                },
            }
        }
    }

    /// Whether there was a PDU.
    fn take_pdu(&mut self, now: Time, on: usize, buffer: &mut BytesMut) -> Result<bool, Fault> {
        let Phase::Session { session, .. } = &mut self.phase else { return Ok(false) };
        let Some(pdu) = next_pdu(self.connections.get_mut(on), buffer)? else { return Ok(false) };
        session.receive((now, on), pdu, &mut self.connections)?;
        Ok(true)
    }

    fn take_login(&mut self, now: Time, on: usize, buffer: &mut BytesMut) -> Result<bool, Fault> {
        let Some(pdu) = next_pdu(self.connections.get_mut(on), buffer)? else { return Ok(false) };
        let Header::LoginResponse(response) = &pdu.header else {
            return Err(Misbehaviour::Unexpected(pdu.header.name()).into());
        };
        let Some(connection) = self.connections.get_mut(on) else { return Ok(false) };
        let Stage::Login { login, until } = std::mem::replace(&mut connection.stage, Stage::Closed)
        else {
            return Ok(false);
        };
        match login.handle(response, &pdu.data, &connection.decoder.transcript())? {
            Progress::Continue(login, request) => {
                connection.outbox.push_pdu(request);
                connection.stage = Stage::Login { login, until };
            }
            Progress::Done(established, seals) => {
                let parameters = &established.parameters;
                // Digests start after the last login PDU (RFC 7143, 13.1).
                connection.decoder.set_digests(parameters.header_digest, parameters.data_digest);
                connection.outbox.set_digests(parameters.header_digest, parameters.data_digest);
                if let Some(seals) = seals {
                    connection.decoder.set_opener(seals.opener);
                    connection.outbox.set_sealer(seals.sealer);
                }
                // In force from the end of the login.
                connection.decoder.set_data_max(self.config.offer.max_recv_data_segment as usize);
                connection.segment = parameters.max_send_data_segment;
                connection.exp_stat_sn = established.exp_stat_sn;
                connection.stage = Stage::Open;
                connection.live(now, &self.timeouts);
                self.logged_in(on, *established);
            }
        }
        Ok(true)
    }

    /// A connection is open: the session begins, or has one more.
    fn logged_in(&mut self, on: usize, established: Established) {
        if let Phase::Session { session, .. } = &mut self.phase {
            return session.joined(on, &established, &mut self.connections);
        }
        let tsih = established.tsih;
        let discovers = self.config.target.is_none();
        let session = Box::new(Session::new(established, self.timeouts, discovers));
        self.phase = Phase::Session { session, tsih };
    }

    /// Adds a command; it is sent as soon as the window allows. Gives its tag.
    ///
    /// # Errors
    ///
    /// Gives back what it cannot take: before the login is done, after the end, and when the queue
    /// is full.
    pub fn submit(&mut self, now: Time, command: Command, token: T) -> Result<u32, T> {
        match &mut self.phase {
            Phase::Session { session, .. } => {
                session.submit(now, command, token, &mut self.connections)
            }
            Phase::Login | Phase::Ended => Err(token),
        }
    }

    /// Whether [`submit`](Self::submit) would take a command.
    #[must_use]
    pub fn has_room(&self) -> bool {
        matches!(&self.phase, Phase::Session { session, .. } if session.has_room())
    }

    /// Asks the target to abort a command (ABORT TASK). It ends with [`Event::Completed`], aborted or,
    /// where the target was faster or refuses, with its status.
    pub fn abort(&mut self, tag: u32) {
        if let Phase::Session { session, .. } = &mut self.phase {
            session.abort(tag, &mut self.connections);
        }
    }

    /// The same of all commands there are.
    pub fn abort_all(&mut self) {
        if let Phase::Session { session, .. } = &mut self.phase {
            session.abort_all(&mut self.connections);
        }
    }

    /// Resets a logical unit (LOGICAL UNIT RESET); [`Event::UnitReset`] follows.
    pub fn reset_unit(&mut self, lun: u64) {
        if let Phase::Session { session, .. } = &mut self.phase {
            session.reset_unit(lun, &mut self.connections);
        }
    }

    /// [`Event::Settled`] follows when every command that has been sent has ended. By several connections an answer may
    /// overtake that of a command before it, which was told what has happened to the unit meanwhile.
    pub fn settle(&mut self) {
        if let Phase::Session { session, .. } = &mut self.phase {
            session.settle();
        }
    }

    /// Measures the way there and back, if no measurement is under way; [`Event::Pong`] follows. Not for discovery.
    pub fn ping(&mut self, now: Time) {
        if let Phase::Session { session, .. } = &mut self.phase {
            session.ping(now, &mut self.connections);
        }
    }

    /// Sends a text request, if none is under way; [`Event::Text`] or [`Event::TextRejected`] follows.
    pub fn text(&mut self, text: Bytes) {
        if let Phase::Session { session, .. } = &mut self.phase {
            session.text(text, &mut self.connections);
        }
    }

    /// Ends the session when all commands submitted so far have ended; [`Event::LoggedOut`] follows.
    pub fn logout(&mut self, now: Time) {
        if let Phase::Session { session, .. } = &mut self.phase {
            session.logout(now + self.timeouts.logout, &mut self.connections);
        }
    }

    /// The next thing to tell.
    pub fn poll(&mut self) -> Option<Event<T>> {
        let Phase::Session { session, .. } = &mut self.phase else { return None };
        let event = session.poll();
        if matches!(event, Some(Event::LoggedOut)) {
            self.phase = Phase::Ended;
        }
        event
    }

    /// When [`wake`](Self::wake) wants to be called, whatever else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let session = match &self.phase {
            Phase::Session { session, .. } => session.deadline(),
            Phase::Login => None,
            Phase::Ended => return None,
        };
        let connections =
            self.connections.iter().filter_map(|connection| connection.deadline(&self.timeouts));
        connections.chain(session).min()
    }

    /// The deadline has come, or not yet.
    pub fn wake(&mut self, now: Time) -> Result<(), Fault> {
        let woken = self.look(now);
        if woken.is_err() {
            self.end();
        }
        woken
    }

    fn look(&mut self, now: Time) -> Result<(), Fault> {
        for (on, connection) in self.connections.iter_mut().enumerate() {
            connection.outbox.tick(now);
            match (&connection.stage, &mut self.phase) {
                (Stage::Login { until, .. }, phase) if *until <= now => {
                    let Phase::Session { session, .. } = phase else {
                        return Err(Fault::LoginTimeout);
                    };
                    session.not_joined(on, Fault::LoginTimeout);
                    connection.stage = Stage::Closed;
                }
                _ => {}
            }
        }
        match &mut self.phase {
            Phase::Session { session, .. } => session.wake(now, &mut self.connections),
            Phase::Login | Phase::Ended => Ok(()),
        }
    }

    /// What waits to be sent by a connection.
    pub fn outbox(&mut self, on: usize) -> Option<&mut Outbox> {
        self.connections.get_mut(on).map(|connection| &mut connection.outbox)
    }

    /// The first `len` bytes of its outbox have been sent. A link that takes our bytes lives, however
    /// long the target is silent under them.
    pub fn sent(&mut self, now: Time, on: usize, len: usize) {
        if let Some(connection) = self.connections.get_mut(on) {
            connection.outbox.advance(len);
            connection.sent(now, &self.timeouts);
        }
    }

    /// How many more bytes are worth reading at once from a connection.
    #[must_use]
    pub fn wanted(&self, on: usize) -> usize {
        self.connections.get(on).map_or(0, |connection| connection.decoder.wanted())
    }

    /// Takes back the commands that will not end any more.
    pub fn unfinished(self) -> Vec<T> {
        match self.phase {
            Phase::Session { session, .. } => session.unfinished(),
            Phase::Login | Phase::Ended => Vec::new(),
        }
    }

    /// Nothing more is taken. The session stays, for the commands in it to be taken back.
    fn end(&mut self) {
        match &mut self.phase {
            Phase::Session { session, .. } => session.end(),
            phase => *phase = Phase::Ended,
        }
    }
}

/// The next PDU of a connection.
fn next_pdu(
    connection: Option<&mut Connection>,
    buffer: &mut BytesMut,
) -> Result<Option<Pdu>, Fault> {
    let Some(connection) = connection else { return Ok(None) };
    match connection.decoder.decode(buffer)? {
        Some(Frame::Pdu(pdu)) => Ok(Some(pdu)),
        Some(Frame::Flawed { flaw, .. }) => Err(Fault::Flaw(flaw)),
        None => Ok(None),
    }
}

/// Tags count up and come around; [`NO_TAG`] is none.
const fn tag_after(tag: u32) -> u32 {
    match tag.wrapping_add(1) {
        NO_TAG => 0,
        next => next,
    }
}

#[cfg(test)]
mod tests;
