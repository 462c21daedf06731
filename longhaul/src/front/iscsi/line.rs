//! One connection of a session, as its driver holds it.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use proto::iscsi::keys::Parameters;
use proto::iscsi::pdu::Outbox;
use proto::iscsi::sealed::Seals;
use proto::iscsi::target::{Joining, Session};
use proto::time::Time;

use super::joining::{Back, Join, Place};
use super::wire::Wire;

pub(super) struct Line {
    pub(super) cid: u16,
    pub(super) wire: Wire,
    pub(super) here: SocketAddr,
    /// It has been logged out, and is closed when its output is sent.
    pub(super) closing: bool,
    /// Since when there is output of which nothing is taken.
    stuck: Option<Time>,
    /// Dropped with it, which tells whoever brought it that it has ended.
    _back: Option<Back>,
}

impl Line {
    /// The first connection of a session.
    pub(super) fn first(
        cid: u16,
        wire: Wire,
        session: &mut Session,
        (parameters, seals): (&Parameters, Option<Box<Seals>>),
    ) -> io::Result<Self> {
        let here = wire.local_addr()?;
        let mut line = Self { cid, wire, here, closing: false, stuck: None, _back: None };
        line.begin(session, parameters, seals);
        Ok(line)
    }

    /// A connection that joins a session, which has none of its number. The response that ends its login
    /// is the first thing it sends. Its place is held until it is among the connections of the session.
    pub(super) fn join(now: Time, join: Join, session: &mut Session) -> io::Result<(Self, Place)> {
        let Join { wire, admission, place, back } = join;
        let here = wire.local_addr()?;
        let (response, established, seals) = admission.join(session.command_numbers());
        let (cid, parameters) = (established.cid, &established.parameters);
        let joining = Joining { cid, stat_sn: established.stat_sn, parameters };
        session.join(now, &joining, response);
        let mut line = Self { cid, wire, here, closing: false, stuck: None, _back: Some(back) };
        line.begin(session, parameters, seals);
        Ok((line, place))
    }

    /// Digests, lengths and seals are in force from here on (RFC 7143, 13.1).
    fn begin(&mut self, session: &mut Session, parameters: &Parameters, seals: Option<Box<Seals>>) {
        let decoder = &mut self.wire.decoder;
        decoder.set_digests(parameters.header_digest, parameters.data_digest);
        decoder.set_data_max(parameters.max_recv_data_segment as usize);
        if let (Some(seals), Some(outbox)) = (seals, session.outbox(self.cid)) {
            decoder.set_opener(seals.opener);
            outbox.set_sealer(seals.sealer);
        }
    }

    /// Whether something has come that is read next.
    pub(super) fn look(&mut self) -> bool {
        !self.closing && self.wire.look()
    }

    /// Writes as much as the connection takes; whether that was anything.
    pub(super) fn write(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        now: impl FnOnce() -> Time,
    ) -> io::Result<bool> {
        let unsent = outbox.len();
        if let Poll::Ready(outcome) = self.wire.poll_write(cx, outbox) {
            outcome?;
        }
        let sent = outbox.len() < unsent;
        if sent || outbox.is_empty() {
            self.stuck = None;
        } else if self.stuck.is_none() {
            self.stuck = Some(now());
        }
        Ok(sent)
    }

    /// Whether the initiator has taken nothing of what is sent to it for longer than `patience`.
    pub(super) fn is_stuck(&self, now: Time, patience: Duration) -> bool {
        self.stuck.is_some_and(|since| now > since + patience)
    }
}
