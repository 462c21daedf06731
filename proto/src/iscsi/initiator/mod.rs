//! The initiator: one session of one connection, as a pure machine.
//!
//! ```text
//! submit, abort, ping, text, logout ->            -> outbox (bytes to send)
//!                   bytes received ->  Initiator  -> events
//!                          the time ->            -> deadline
//! ```
//!
//! It logs in, keeps commands within the target's window, sends data as early as was agreed, answers
//! R2Ts and pings, and puts Data-In together. A target that breaks the rules ends the session with a
//! [`Fault`] that says which: at error recovery level 0 nothing else is left (RFC 7143, 7.1.4.1).
//!
//! `T` is whatever the caller wants back with a command's end, for example where to send it.

mod fault;
pub mod law;
pub mod recovery;
mod sequence;
mod session;
mod task;

use core::time::Duration;

use bytes::{Bytes, BytesMut};

use super::header::{Header, NO_TAG, TaskResponse};
use super::login::Entropy;
use super::login::initiator::{Config as LoginConfig, Established, InitiatorLogin, Progress};
use super::pdu::{Decoder, Frame, Outbox, Pdu, Pieces};
use crate::scsi::Status;
use crate::time::Time;

pub use fault::{Fault, Misbehaviour, TaskError};
use session::Session;

/// How long the machine waits.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the login, and for the logout, to come to an end.
    pub login: Duration,
    /// With nothing heard, before it asks whether the target is there.
    pub idle: Duration,
    /// For an answer to that; any PDU is one.
    pub answer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { login: seconds(30), idle: seconds(10), answer: seconds(20) }
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

/// How far a transfer missed what was expected (RFC 7143, 11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// Not at all.
    #[default]
    None,
    /// That many bytes less.
    Under(u32),
    /// That many bytes more than there was room for.
    Over(u32),
}

/// What the machine tells its driver.
#[derive(Debug)]
pub enum Event<T> {
    /// The login is done; commands flow.
    Established(Box<Established>),
    /// A command has ended.
    Completed(T, Result<Completion, TaskError>),
    /// A ping came back.
    Pong(Duration),
    /// The answer to a text request.
    Text(Vec<u8>),
    /// How a reset of a unit went. Done, no task on it runs any more (RFC 7143, 11.6.1).
    UnitReset(TaskResponse),
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
    decoder: Decoder,
    outbox: Outbox,
    timeouts: Timeouts,
    /// The segment length declared to the target, in force from the end of the login.
    segment_max: u32,
    phase: Phase<T>,
}

#[derive(Debug)]
enum Phase<T> {
    Login {
        login: Box<InitiatorLogin>,
        until: Time,
    },
    Session(Box<Session<T>>),
    /// A fault, or a logout, has ended it.
    Ended,
}

impl<T> Initiator<T> {
    /// A machine on a new connection; the first request of its login waits in the outbox.
    #[must_use]
    pub fn start(config: LoginConfig, entropy: Entropy, timeouts: Timeouts, now: Time) -> Self {
        let segment_max = config.offer.max_recv_data_segment;
        let (login, request) = InitiatorLogin::start(config, entropy);
        let mut outbox = Outbox::new();
        outbox.push_pdu(request);
        let phase = Phase::Login { login, until: now + timeouts.login };
        Self { decoder: Decoder::new(), outbox, timeouts, segment_max, phase }
    }

    /// Takes all whole PDUs off the front of the buffer.
    pub fn receive(&mut self, now: Time, buffer: &mut BytesMut) -> Result<(), Fault> {
        let taken = self.take(now, buffer);
        if taken.is_err() {
            self.end();
        }
        taken
    }

    fn take(&mut self, now: Time, buffer: &mut BytesMut) -> Result<(), Fault> {
        self.outbox.tick(now);
        while let Some(frame) = self.decoder.decode(buffer)? {
            let pdu = match frame {
                Frame::Pdu(pdu) => pdu,
                Frame::Flawed { flaw, .. } => return Err(Fault::Flaw(flaw)),
            };
            match &mut self.phase {
                Phase::Login { .. } => self.log_in(now, &pdu)?,
                Phase::Session(session) => session.receive(now, pdu, &mut self.outbox)?,
                Phase::Ended => return Ok(()),
            }
        }
        Ok(())
    }

    fn log_in(&mut self, now: Time, pdu: &Pdu) -> Result<(), Fault> {
        let Header::LoginResponse(response) = &pdu.header else {
            return Err(Misbehaviour::Unexpected(pdu.header.name()).into());
        };
        let Phase::Login { login, until } = std::mem::replace(&mut self.phase, Phase::Ended) else {
            return Ok(());
        };
        self.phase = match login.handle(response, &pdu.data, &self.decoder.transcript())? {
            Progress::Continue(login, request) => {
                self.outbox.push_pdu(request);
                Phase::Login { login, until }
            }
            Progress::Done(established, seals) => {
                let parameters = &established.parameters;
                // Digests start after the last login PDU (RFC 7143, 13.1).
                self.decoder.set_digests(parameters.header_digest, parameters.data_digest);
                self.outbox.set_digests(parameters.header_digest, parameters.data_digest);
                if let Some(seals) = seals {
                    self.decoder.set_opener(seals.opener);
                    self.outbox.set_sealer(seals.sealer);
                }
                self.decoder.set_data_max(self.segment_max as usize);
                Phase::Session(Box::new(Session::new(*established, self.timeouts, now)))
            }
        };
        Ok(())
    }

    /// Adds a command; it is sent as soon as the window allows. Gives its tag.
    ///
    /// # Errors
    ///
    /// Gives back what it cannot take: before the login is done, after the end, and when the queue
    /// is full.
    pub fn submit(&mut self, command: Command, token: T) -> Result<u32, T> {
        match &mut self.phase {
            Phase::Session(session) => session.submit(command, token, &mut self.outbox),
            Phase::Login { .. } | Phase::Ended => Err(token),
        }
    }

    /// Whether [`submit`](Self::submit) would take a command.
    #[must_use]
    pub fn has_room(&self) -> bool {
        matches!(&self.phase, Phase::Session(session) if session.has_room())
    }

    /// Asks the target to abort a command (ABORT TASK). It ends with [`Event::Completed`], aborted or,
    /// where the target was faster or refuses, with its status.
    pub fn abort(&mut self, tag: u32) {
        if let Phase::Session(session) = &mut self.phase {
            session.abort(tag, &mut self.outbox);
        }
    }

    /// Resets a logical unit (LOGICAL UNIT RESET); [`Event::UnitReset`] follows.
    pub fn reset_unit(&mut self, lun: u64) {
        if let Phase::Session(session) = &mut self.phase {
            session.reset_unit(lun, &mut self.outbox);
        }
    }

    /// Measures the way there and back, if no measurement is under way; [`Event::Pong`] follows.
    pub fn ping(&mut self, now: Time) {
        if let Phase::Session(session) = &mut self.phase {
            session.ping(now, &mut self.outbox);
        }
    }

    /// Sends a text request, if none is under way; [`Event::Text`] follows.
    pub fn text(&mut self, text: Bytes) {
        if let Phase::Session(session) = &mut self.phase {
            session.text(text, &mut self.outbox);
        }
    }

    /// Ends the session when all commands submitted so far have ended; [`Event::LoggedOut`] follows.
    pub fn logout(&mut self, now: Time) {
        if let Phase::Session(session) = &mut self.phase {
            session.logout(now + self.timeouts.login, &mut self.outbox);
        }
    }

    /// The next thing to tell.
    pub fn poll(&mut self) -> Option<Event<T>> {
        let Phase::Session(session) = &mut self.phase else { return None };
        let event = session.poll();
        if matches!(event, Some(Event::LoggedOut)) {
            self.phase = Phase::Ended;
        }
        event
    }

    /// When [`wake`](Self::wake) wants to be called, whatever else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Login { until, .. } => Some(*until),
            Phase::Session(session) => Some(session.deadline()),
            Phase::Ended => None,
        }
    }

    /// The deadline has come, or not yet.
    pub fn wake(&mut self, now: Time) -> Result<(), Fault> {
        self.outbox.tick(now);
        let woken = match &mut self.phase {
            Phase::Login { until, .. } if *until <= now => Err(Fault::LoginTimeout),
            Phase::Session(session) => session.wake(now, &mut self.outbox),
            Phase::Login { .. } | Phase::Ended => Ok(()),
        };
        if woken.is_err() {
            self.end();
        }
        woken
    }

    /// What waits to be sent.
    #[must_use]
    pub const fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// The first `len` bytes of the outbox have been sent. A link that takes our bytes lives, however
    /// long the target is silent under them.
    pub fn sent(&mut self, now: Time, len: usize) {
        self.outbox.advance(len);
        if let Phase::Session(session) = &mut self.phase {
            session.sent(now, self.outbox.is_empty());
        }
    }

    /// How many more bytes are worth reading at once.
    #[must_use]
    pub const fn wanted(&self) -> usize {
        self.decoder.wanted()
    }

    /// Takes back the commands that will not end any more.
    pub fn unfinished(self) -> Vec<T> {
        match self.phase {
            Phase::Session(session) => session.unfinished(),
            Phase::Login { .. } | Phase::Ended => Vec::new(),
        }
    }

    /// Nothing more is taken. The session stays, for the commands in it to be taken back.
    fn end(&mut self) {
        match &mut self.phase {
            Phase::Session(session) => session.end(),
            phase => *phase = Phase::Ended,
        }
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
