//! One connection as a pure machine: bytes go in, requests and bytes come out.

use bytes::BytesMut;

use super::export::Export;
use super::handshake::{self, Agreed, Next};
use super::output::Output;
use super::transmission::{self, ErrorReply, Reply, Request};
use super::violation::Violation;
use super::wire;

/// What the machine wants of its driver.
#[derive(Debug)]
pub enum Event {
    /// Nothing until the input holds this many bytes.
    NeedMore(usize),
    /// Run this and call [`Machine::reply`].
    Request(Request),
    /// The conversation is over: send what is queued, finish what runs, hang up.
    Closed,
}

/// The server's side of one connection.
#[derive(Debug)]
pub struct Machine {
    export: Export,
    phase: Phase,
    agreed: Agreed,
    /// What waits to be sent.
    pub out: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    ClientFlags,
    Options,
    Transmission,
    Closed,
}

impl Machine {
    /// A fresh connection to `export`; the greeting is already queued.
    #[must_use]
    pub fn new(export: Export) -> Self {
        let mut out = Output::default();
        out.put(handshake::put_greeting);
        Self { export, phase: Phase::ClientFlags, agreed: Agreed::default(), out }
    }

    /// A connection whose client knows `export`, and begins with its first request.
    #[must_use]
    pub fn in_transmission(export: Export) -> Self {
        let out = Output::default();
        Self { export, phase: Phase::Transmission, agreed: Agreed::default(), out }
    }

    /// Whether the client has chosen the export: until then it is on the clock.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Transmission
    }

    /// Consumes whole messages from the front of `input` until one needs the driver.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Event, Violation> {
        loop {
            let step = match self.phase {
                Phase::ClientFlags => self.client_flags(input)?,
                Phase::Options => self.option(input)?,
                Phase::Transmission => self.request(input)?,
                Phase::Closed => Some(Event::Closed),
            };
            if let Some(event) = step {
                return Ok(event);
            }
        }
    }

    /// The outcome of a request that [`next`](Self::next) handed out.
    pub fn reply(&mut self, cookie: u64, outcome: Result<Reply, ErrorReply>) {
        transmission::put_reply(&mut self.out, self.agreed.structured, cookie, outcome);
    }

    fn client_flags(&mut self, input: &mut BytesMut) -> Result<Option<Event>, Violation> {
        if input.len() < handshake::CLIENT_FLAGS_LEN {
            return Ok(Some(Event::NeedMore(handshake::CLIENT_FLAGS_LEN)));
        }
        self.agreed = handshake::client_flags(&input.split_to(handshake::CLIENT_FLAGS_LEN))?;
        self.phase = Phase::Options;
        Ok(None)
    }

    fn option(&mut self, input: &mut BytesMut) -> Result<Option<Event>, Violation> {
        if input.len() < wire::OptionHead::LEN {
            return Ok(Some(Event::NeedMore(wire::OptionHead::LEN)));
        }
        let head = wire::OptionHead::parse(input)?.ok_or(Violation::OptionMagic)?;
        let whole = wire::OptionHead::LEN + handshake::option_len(head)?;
        if input.len() < whole {
            return Ok(Some(Event::NeedMore(whole)));
        }
        let data = input.split_to(whole).split_off(wire::OptionHead::LEN);
        self.phase = match handshake::option(
            &mut self.out,
            &self.export,
            &mut self.agreed,
            head.option,
            &data,
        )? {
            Next::Option => Phase::Options,
            Next::Transmission => Phase::Transmission,
            Next::Close => Phase::Closed,
        };
        Ok(None)
    }

    fn request(&mut self, input: &mut BytesMut) -> Result<Option<Event>, Violation> {
        if input.len() < wire::RequestHead::LEN {
            return Ok(Some(Event::NeedMore(wire::RequestHead::LEN)));
        }
        let head = wire::RequestHead::parse(input)?.ok_or(Violation::RequestMagic)?;
        let whole = wire::RequestHead::LEN + transmission::payload_len(head)?;
        if input.len() < whole {
            return Ok(Some(Event::NeedMore(whole)));
        }
        // A slice of the receive buffer: the payload is not copied on its way to the driver.
        let payload = input.split_to(whole).split_off(wire::RequestHead::LEN).freeze();
        if head.kind == wire::cmd::DISC {
            self.phase = Phase::Closed;
            return Ok(None);
        }
        match transmission::admit(&self.export, self.agreed, head, payload) {
            Ok(Some(command)) => Ok(Some(Event::Request(Request { cookie: head.cookie, command }))),
            Ok(None) => {
                self.reply(head.cookie, Ok(Reply::Done));
                Ok(None)
            }
            Err(error) => {
                self.reply(head.cookie, Err(error));
                Ok(None)
            }
        }
    }
}
