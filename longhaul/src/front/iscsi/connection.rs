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
use super::pdu_stream::{PduStream, StreamError};

pub(super) struct Connection {
    pub(super) cid: u16,
    pub(super) stream: PduStream,
    pub(super) here: SocketAddr,
    /// It has been logged out, and is closed when its output has been sent.
    pub(super) closing: bool,
    /// Dropped with it, which tells the task that brought it that it has ended.
    _back: Option<Back>,
}

impl Connection {
    /// The first connection of a session.
    pub(super) fn first(
        cid: u16,
        stream: PduStream,
        session: &mut Session,
        (parameters, seals): (&Parameters, Option<Box<Seals>>),
    ) -> io::Result<Self> {
        let here = stream.local_addr()?;
        let mut connection = Self { cid, stream, here, closing: false, _back: None };
        connection.begin(session, parameters, seals);
        Ok(connection)
    }

    /// A connection that joins a session, which has none of its number. The response that ends its login
    /// is the first thing it sends. Its place is held until it is among the connections of the session.
    pub(super) fn join(now: Time, join: Join, session: &mut Session) -> io::Result<(Self, Place)> {
        let Join { stream, admission, place, back } = join;
        let here = stream.local_addr()?;
        let (response, established, seals) = admission.join(session.command_numbers());
        let (cid, parameters) = (established.cid, &established.parameters);
        let joining = Joining { cid, stat_sn: established.stat_sn, parameters };
        session.join(now, &joining, response);
        let mut connection = Self { cid, stream, here, closing: false, _back: Some(back) };
        connection.begin(session, parameters, seals);
        Ok((connection, place))
    }

    /// Digests, lengths and seals are in force from here on (RFC 7143, 13.1).
    fn begin(&mut self, session: &mut Session, parameters: &Parameters, seals: Option<Box<Seals>>) {
        let decoder = &mut self.stream.decoder;
        decoder.set_digests(parameters.header_digest, parameters.data_digest);
        decoder.set_data_max(parameters.max_recv_data_segment as usize);
        if let (Some(seals), Some(outbox)) = (seals, session.outbox(self.cid)) {
            decoder.set_opener(seals.opener);
            outbox.set_sealer(seals.sealer);
        }
    }

    /// Whether something has arrived, which the next read gives.
    pub(super) fn busy_poll(&mut self) -> bool {
        !self.closing && self.stream.connection().busy_poll()
    }

    /// Reads what there is.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        now: impl FnOnce() -> Time,
    ) -> Poll<Result<Time, StreamError>> {
        if self.closing { Poll::Pending } else { self.stream.poll_read(cx, now) }
    }

    /// Writes as much as the connection takes; whether that was anything.
    pub(super) fn write(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
        now: impl FnOnce() -> Time,
    ) -> io::Result<bool> {
        let unsent = outbox.len();
        if let Poll::Ready(outcome) = self.stream.poll_write(cx, outbox) {
            outcome?;
        }
        let sent = outbox.len() < unsent;
        self.stream.connection().note_progress(sent || outbox.is_empty(), now);
        Ok(sent)
    }

    /// Whether the initiator has taken nothing of what is sent to it for longer than `limit`.
    pub(super) fn is_stuck(&mut self, now: Time, limit: Duration) -> bool {
        self.stream.connection().is_stuck(now, limit)
    }
}
