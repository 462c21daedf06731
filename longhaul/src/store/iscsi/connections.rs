//! The sockets of a session, and how many of them there should be.
//!
//! A connection that loses packets is held below what the link carries, by the algorithm that controls it.
//! Several lose by turns, so that together they carry more. How many follows from the loss, the round trip and
//! the rate that the kernel sees on them, by `net/tcp_tuning/loss_model.rs`. There are never fewer
//! than there were: a link that lost will lose again. Another one starts slowly, and what is given to it holds up
//! who reads in order, so there is none for the losses of a link that is full, whose queue has overflowed: those
//! come with a longer round trip, and pass. What is received is judged in `net/tcp_tuning/receive_stats.rs`.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use proto::iscsi::initiator::Initiator;
use proto::iscsi::pdu::Outbox;
use proto::time::Time;
use tokio::net::TcpStream;

use crate::cipher_pool::OutboxOffload;
use crate::net::connection::{self as net, Output};
use crate::net::pdu_output::PduOutput;
use crate::net::tcp_tuning::congestion_control::bound_unsent;
use crate::net::tcp_tuning::loss_detector::LossDetector;
use crate::net::tcp_tuning::receive_stats::ReceiveStats;
use crate::net::tcp_tuning::send_at_once;

/// Connections of a session whose number is not given.
const AUTO_MAX: u16 = 4;

/// More would only wait for one another, and each costs the target memory.
const FIXED_MAX: u16 = 64;

/// How many connections a session has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connections {
    /// As many as the link needs: one, and others where it loses.
    #[default]
    Auto,
    /// So many, if the target agrees.
    Fixed(u16),
}

impl Connections {
    /// As many as there may be.
    #[must_use]
    pub const fn most(self) -> u16 {
        match self {
            Self::Auto => AUTO_MAX,
            Self::Fixed(0) => 1,
            Self::Fixed(count) => count,
        }
    }
}

/// A text that is no number of connections.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither auto nor a number of connections from 1 to {FIXED_MAX}")]
pub struct NotConnections(String);

impl FromStr for Connections {
    type Err = NotConnections;

    fn from_str(text: &str) -> Result<Self, NotConnections> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(count @ 1..=FIXED_MAX)) => Ok(Self::Fixed(count)),
            _ => Err(NotConnections(text.to_owned())),
        }
    }
}

/// A connection of a session.
#[derive(Debug)]
pub(super) struct Connection {
    inner: net::Connection<TcpStream>,
    /// How the last read went, and when it was, until it is taken.
    pub(super) read: Option<io::Result<(usize, Time)>>,
    offload: OutboxOffload,
}

impl Connection {
    pub(super) fn new(socket: TcpStream) -> Self {
        bound_unsent(&socket);
        Self { inner: net::Connection::new(socket), read: None, offload: OutboxOffload::new() }
    }

    pub(super) const fn socket(&self) -> &TcpStream {
        self.inner.socket()
    }

    /// Has `decode` take PDUs off what has arrived.
    pub(super) fn decode<T>(&mut self, decode: impl FnOnce(&mut BytesMut) -> T) -> T {
        self.inner.decode(decode)
    }

    /// Sends as much as the system takes of what connection `on` of the machine has to send.
    pub(super) fn send<T>(
        &mut self,
        machine: &mut Initiator<T>,
        on: usize,
        now: impl Fn() -> Time,
    ) -> io::Result<()> {
        self.inner.write(&mut Sending { machine, on, offload: &mut self.offload, now })
    }

    /// Ready when something has arrived, of which `missing` bytes at least are missing, or output that waits can go on.
    fn poll_ready(
        &mut self,
        cx: &mut Context<'_>,
        missing: usize,
        outbox: &mut Outbox,
        now: impl Fn() -> Time,
    ) -> bool {
        if self.read.is_none()
            && let Poll::Ready(read) = self.inner.poll_read(cx, missing, now)
        {
            self.read = Some(read);
        }
        let mut output = PduOutput { outbox, offload: &mut self.offload };
        let more = self.inner.poll_more(cx, &mut output).is_ready();
        self.read.is_some() || more
    }
}

/// What one connection of a machine sends.
struct Sending<'a, T, F> {
    machine: &'a mut Initiator<T>,
    on: usize,
    offload: &'a mut OutboxOffload,
    now: F,
}

impl<T, F: Fn() -> Time> Output for Sending<'_, T, F> {
    fn is_empty(&mut self) -> bool {
        self.machine.outbox(self.on).is_none_or(|outbox| outbox.is_empty())
    }

    fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        let Some(outbox) = self.machine.outbox(self.on) else { return 0 };
        self.offload.hand_over(outbox);
        outbox.slices(slices)
    }

    fn advance(&mut self, sent: usize) {
        self.machine.sent((self.now)(), self.on, sent);
    }
}

/// Ready when something came by any connection, or can be written where output waits, or was sealed for it.
pub(super) fn poll_ready<T>(
    connections: &mut [Option<Connection>],
    machine: &mut Initiator<T>,
    cx: &mut Context<'_>,
    now: impl Fn() -> Time + Copy,
) -> Poll<()> {
    let mut any = false;
    for (on, connection) in connections.iter_mut().enumerate() {
        let missing = machine.wanted(on);
        let (Some(connection), Some(outbox)) = (connection, machine.outbox(on)) else { continue };
        any |= connection.poll_ready(cx, missing, outbox, now);
    }
    if any { Poll::Ready(()) } else { Poll::Pending }
}

/// A connection that is being made.
pub(super) type Opening = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Connects to where the session's first connection goes: another portal may be another portal group.
pub(super) fn open(peer: SocketAddr, patience: Duration) -> Opening {
    Box::pin(async move {
        let socket = tokio::time::timeout(patience, TcpStream::connect(peer)).await??;
        send_at_once(&socket)?;
        Ok(socket)
    })
}

/// How many connections there should be.
#[derive(Debug)]
pub(super) struct Count {
    wanted: Connections,
    /// As many as there may be.
    most: usize,
    now: usize,
    loss_detector: LossDetector,
    receive_stats: ReceiveStats,
}

impl Count {
    pub(super) fn new(wanted: Connections) -> Self {
        Self {
            wanted,
            most: 1,
            now: 1,
            loss_detector: LossDetector::new(),
            receive_stats: ReceiveStats::default(),
        }
    }

    /// The session is there, and may have so many.
    pub(super) fn agreed(&mut self, most: usize) {
        self.most = most.min(self.wanted.most().into());
        if self.wanted != Connections::Auto {
            self.now = self.most;
        }
    }

    /// Another could not be had: there will be no more than these.
    pub(super) fn settle_for(&mut self, count: usize) {
        self.most = count;
        self.now = self.now.min(count);
    }

    pub(super) const fn get(&self) -> usize {
        self.now
    }

    /// Looks at the connections, if it is time.
    pub(super) fn look(&mut self, now: Time, connections: &[Option<Connection>]) {
        let sockets = connections.iter().flatten().map(Connection::socket);
        let sent = self.loss_detector.sample(now, sockets.clone());
        let Some(needed) = sent.max(self.receive_stats.sample(now, sockets)) else { return };
        if self.wanted == Connections::Auto && needed.min(self.most) > self.now {
            self.now = needed.min(self.most);
            tracing::info!(connections = self.now, "more, since the link loses");
        }
    }

    /// A connection was added: it is treated as the others are.
    pub(super) fn added(&self, connection: &Connection) {
        self.loss_detector.added(connection.socket());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_as_it_is_written() {
        assert_eq!("auto".parse(), Ok(Connections::Auto));
        assert_eq!("64".parse(), Ok(Connections::Fixed(64)));
        for wrong in ["", "0", "65", "-1", "many"] {
            assert!(wrong.parse::<Connections>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_number_that_is_given_is_kept_to_what_the_target_allows() {
        for (wanted, most, count) in [
            (Connections::Fixed(3), 8, 3),
            (Connections::Fixed(3), 2, 2),
            (Connections::Fixed(0), 8, 1),
            (Connections::Auto, 8, 1),
        ] {
            let mut it = Count::new(wanted);
            it.agreed(most);
            assert_eq!(it.get(), count, "{wanted:?} of {most}");
            it.settle_for(1);
            assert_eq!(it.get(), 1);
        }
    }
}
