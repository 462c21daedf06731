//! The connections of a session.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use proto::iscsi::login::LoginStatus;
use proto::iscsi::pdu::{Frame, FrameError};
use proto::iscsi::target::Session;
use proto::time::Time;

use super::clock::Clock;
use super::connection::Connection;
use super::joining::{Join, Place};
use super::pdu_stream::StreamError;
use crate::net::tcp_tuning::loss_detector::LossDetector;

/// All connections, in the order in which they came.
pub(super) struct Connections {
    open: Vec<Connection>,
    /// How many there may be.
    most: usize,
    loss_detector: LossDetector,
}

/// What is done with a connection that comes to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinDecision {
    Refuse(LoginStatus),
    /// It takes the place of a connection with its number, whose tasks end before (RFC 7143, 6.3.4).
    Replace,
    Add,
}

impl Connections {
    pub(super) fn new(first: Connection, most: usize) -> Self {
        Self { open: vec![first], most, loss_detector: LossDetector::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn find(&self, cid: u16) -> Option<&Connection> {
        self.open.iter().find(|connection| connection.cid == cid)
    }

    /// What is done with connection `cid`, while those of `joining` wait for tasks to end. `known` says whether the
    /// session has one of this number.
    pub(super) fn decide(
        &self,
        cid: u16,
        known: bool,
        joining: impl Iterator<Item = u16>,
    ) -> JoinDecision {
        let open = self.open.iter().map(|connection| connection.cid);
        decide(cid, known, open, joining, self.most)
    }

    /// Adds a connection to those of the session; gives its place, which it has taken.
    pub(super) fn add(
        &mut self,
        now: Time,
        join: Join,
        session: &mut Session,
    ) -> io::Result<Place> {
        let (connection, place) = Connection::join(now, join, session)?;
        self.loss_detector.added(connection.stream.socket());
        self.open.push(connection);
        Ok(place)
    }

    /// Drops a connection that is replaced.
    pub(super) fn drop(&mut self, cid: u16) {
        self.open.retain(|connection| connection.cid != cid);
    }

    /// Marks a connection that was logged out: it is closed when its output has been sent.
    pub(super) fn close(&mut self, cid: u16) {
        let closing = self.open.iter_mut().filter(|connection| connection.cid == cid);
        closing.for_each(|connection| connection.closing = true);
    }

    /// Removes those that were to be closed and have sent everything; whether there were any.
    fn remove_closed(&mut self, now: Time, session: &mut Session) -> bool {
        let before = self.open.len();
        self.open.retain(|connection| {
            let sent = session.outbox(connection.cid).is_none_or(|outbox| outbox.is_empty());
            let over = connection.closing && sent;
            if over {
                session.remove(now, connection.cid);
            }
            !over
        });
        self.open.len() < before
    }

    /// Whether something has arrived by any of them.
    pub(super) fn busy_poll(&mut self) -> bool {
        self.open.iter_mut().any(Connection::busy_poll)
    }

    /// Reads what has arrived by the connection at `at`; ready with its number and the time.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        at: usize,
        clock: &Clock,
    ) -> Poll<Result<(u16, Time), StreamError>> {
        let Some(connection) = self.open.get_mut(at) else { return Poll::Pending };
        connection.poll_read(cx, || clock.now()).map_ok(|now| (connection.cid, now))
    }

    /// Whether the initiator has taken nothing of what is sent by the connection at `at` for longer than `limit`.
    pub(super) fn is_stuck(&mut self, at: usize, now: Time, limit: Duration) -> bool {
        self.open.get_mut(at).is_some_and(|connection| connection.is_stuck(now, limit))
    }

    /// The next frame that has arrived by the connection at `at`.
    pub(super) fn decode(&mut self, at: usize) -> Result<Option<Frame>, FrameError> {
        self.open.get_mut(at).map_or(Ok(None), |connection| connection.stream.decode())
    }

    /// Whether a part of a PDU has arrived by the connection at `at`, and not all of it.
    pub(super) fn is_amid_a_pdu(&mut self, at: usize) -> bool {
        let connection = self.open.get_mut(at);
        connection.is_some_and(|connection| connection.stream.connection().is_amid_a_message())
    }

    /// Looks for packet loss, if it is time.
    pub(super) fn sample(&mut self, now: Time) {
        let sockets = self.open.iter().map(|connection| connection.stream.socket());
        self.loss_detector.sample(now, sockets);
    }

    /// Sends as much as the connections take, and removes those that were closed; whether anything was sent, and
    /// whether one was removed.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        session: &mut Session,
        clock: &Clock,
    ) -> io::Result<(bool, bool)> {
        let (mut any, mut over) = (false, false);
        for connection in &mut self.open {
            let Some(outbox) = session.outbox(connection.cid) else { continue };
            match connection.write(cx, outbox, || clock.now()) {
                Ok(sent) => any |= sent,
                Err(_) if connection.closing => outbox.clear(),
                Err(error) => return Err(error),
            }
            over |= connection.closing && outbox.is_empty();
        }
        Ok((any, over && self.remove_closed(clock.now(), session)))
    }

    /// Drops all output, of a peer that does not take it.
    pub(super) fn discard_output(&self, session: &mut Session) {
        for connection in &self.open {
            session.outbox(connection.cid).into_iter().for_each(|outbox| outbox.clear());
        }
    }
}

fn decide(
    cid: u16,
    known: bool,
    open: impl Iterator<Item = u16>,
    joining: impl Iterator<Item = u16>,
    most: usize,
) -> JoinDecision {
    let joining: Vec<_> = joining.collect();
    let others = open.filter(|open| *open != cid).count() + joining.len();
    if joining.contains(&cid) || others >= most {
        JoinDecision::Refuse(LoginStatus::TOO_MANY_CONNECTIONS)
    } else if known {
        JoinDecision::Replace
    } else {
        JoinDecision::Add
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row: the number of a connection, those that are open and those that wait, and what is done of four at most.
    #[test]
    fn connection_joins_replaces_another_or_is_refused() {
        let full = JoinDecision::Refuse(LoginStatus::TOO_MANY_CONNECTIONS);
        let rows: [(u16, &[u16], &[u16], JoinDecision); 7] = [
            (2, &[1], &[], JoinDecision::Add),
            (1, &[1], &[], JoinDecision::Replace),
            (5, &[1, 2, 3], &[], JoinDecision::Add),
            (5, &[1, 2, 3, 4], &[], full),
            (5, &[1, 2], &[3, 4], full),
            (4, &[1, 2, 3, 4], &[], JoinDecision::Replace),
            (2, &[1], &[2], full),
        ];
        for (cid, open, joining, expected) in rows {
            let known = open.contains(&cid);
            let (open_now, joining_now) = (open.iter().copied(), joining.iter().copied());
            let found = decide(cid, known, open_now, joining_now, 4);
            assert_eq!(found, expected, "{cid} {open:?} {joining:?}");
        }
    }
}
