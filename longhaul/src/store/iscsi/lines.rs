//! The sockets of a session, and how many of them there should be.
//!
//! A connection that loses packets is held below what the link carries, by the algorithm that controls it.
//! Several lose by turns, so that together they carry more. How many follows from the loss, the round trip and
//! the rate that the kernel sees on them, by the model of `volume/layer/pipeline/model.rs`. There are never fewer
//! than there were: a link that lost will lose again. Another one starts slowly, and what is given to it holds up
//! who reads in order, so there is none for the losses of a link that is full, whose queue has overflowed: those
//! come with a longer round trip, and pass.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use host::tcp::{self, Info};
use proto::iscsi::initiator::Initiator;
use proto::time::Time;
use tokio::net::TcpStream;
use volume::layer::pipeline::model;

use crate::crew::Crew;

/// Connections of a session whose number is not given.
const AUTO_MAX: u16 = 4;

/// How often the connections are looked at, while something comes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Fewer segments than these tell nothing of a loss of one in a thousand.
const SEGMENTS_MIN: u64 = 1000;

/// So many looks in a row must find losses: a queue that overflowed once is not a link that loses.
const LOOKS_MIN: u32 = 3;

/// A round trip longer than the least by this factor has a queue in it.
const QUEUED: f64 = 1.2;

/// What the kernel takes beyond what it can send at once. More would only wait behind a loss, where another
/// connection could have taken it; less would let a fast link run dry between two turns of the task.
const UNSENT_MAX: u32 = 256 << 10;

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

/// A connection's socket and what came by it.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) socket: TcpStream,
    pub(super) buffer: BytesMut,
    /// The system takes nothing more for now.
    pub(super) blocked: bool,
    pub(super) crew: Crew,
    /// What was known of it at the last look.
    before: Info,
}

impl Line {
    pub(super) fn new(socket: TcpStream) -> Self {
        // It is only slower without.
        if let Err(error) = tcp::bound_unsent(&socket, UNSENT_MAX) {
            tracing::debug!(%error, "what the kernel takes ahead cannot be bounded");
        }
        Self {
            socket,
            buffer: BytesMut::new(),
            blocked: false,
            crew: Crew::new(),
            before: Info::default(),
        }
    }
}

/// Ready when any connection can be read, or written where output waits, or something was sealed for it.
pub(super) fn poll_ready<T>(
    lines: &mut [Option<Line>],
    machine: &mut Initiator<T>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let mut any = false;
    for (on, line) in lines.iter_mut().enumerate() {
        let (Some(line), Some(outbox)) = (line, machine.outbox(on)) else { continue };
        // An error is met by whoever reads or writes next.
        any |= line.socket.poll_read_ready(cx).is_ready();
        any |= line.blocked && line.socket.poll_write_ready(cx).is_ready();
        any |= line.crew.poll_returned(cx, outbox).is_ready();
    }
    if any { Poll::Ready(()) } else { Poll::Pending }
}

/// A connection that is being made.
pub(super) type Opening = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Connects to where the session's first connection goes: another portal may be another portal group.
pub(super) fn open(peer: SocketAddr, patience: Duration) -> Opening {
    Box::pin(async move {
        let socket = tokio::time::timeout(patience, TcpStream::connect(peer)).await??;
        socket.set_nodelay(true)?;
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
    next_look: Time,
    /// The best rate of all connections together, in bytes per second.
    rate: u64,
    /// How many looks in a row found losses without a queue.
    losing: u32,
    /// The connections are controlled by an algorithm that withstands loss.
    hardened: bool,
}

impl Count {
    pub(super) const fn new(wanted: Connections) -> Self {
        Self { wanted, most: 1, now: 1, next_look: Time::ZERO, rate: 0, losing: 0, hardened: false }
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
    pub(super) fn look(&mut self, now: Time, lines: &mut [Option<Line>]) {
        if self.wanted != Connections::Auto || now < self.next_look {
            return;
        }
        self.next_look = now + LOOK_EVERY;
        let Some(seen) = self.see(lines) else { return };
        let more = self.judge(&seen);
        if more && !self.hardened {
            self.hardened = true;
            lines.iter().flatten().for_each(harden);
        }
    }

    /// Whether the link loses so much that one connection is not enough for it.
    fn judge(&mut self, seen: &Info) -> bool {
        let loss = seen.lost as f64 / seen.segments as f64;
        self.rate = self.rate.max(seen.delivery_rate);
        let needed = model::connections(self.rate as f64, loss, seen.round_trip, seen.segment);
        let queued = seen.round_trip > seen.round_trip_least.mul_f64(QUEUED);
        self.losing = if needed > 1 && !queued { self.losing + 1 } else { 0 };
        if self.losing < LOOKS_MIN {
            return false;
        }
        if needed.min(self.most) > self.now {
            self.now = needed.min(self.most);
            tracing::info!(connections = self.now, loss, ?seen.round_trip, "the link loses");
        }
        true
    }

    /// What happened on all connections since the last look that found enough to go by.
    fn see(&self, lines: &mut [Option<Line>]) -> Option<Info> {
        let infos: Vec<_> =
            lines.iter().map(|line| tcp::info(&line.as_ref()?.socket).ok()).collect();
        let mut seen = Info { round_trip_least: Duration::MAX, ..Info::default() };
        for (line, info) in lines.iter().zip(&infos) {
            let (Some(line), Some(info)) = (line, info) else { continue };
            seen.round_trip = seen.round_trip.max(info.round_trip);
            seen.round_trip_least = seen.round_trip_least.min(info.round_trip_least);
            seen.segment = seen.segment.max(info.segment);
            seen.delivery_rate += info.delivery_rate;
            seen.segments += info.segments.saturating_sub(line.before.segments);
            seen.lost += info.lost.saturating_sub(line.before.lost);
        }
        if seen.segments < SEGMENTS_MIN {
            return None;
        }
        for (line, info) in lines.iter_mut().zip(infos) {
            if let (Some(line), Some(info)) = (line, info) {
                line.before = info;
            }
        }
        Some(seen)
    }

    /// A connection was added: it is treated as the others are.
    pub(super) fn added(&self, line: &Line) {
        if self.hardened {
            harden(line);
        }
    }
}

/// BBR follows the rate at which data arrive and not the losses. Where the kernel has none, the connections
/// stay as they are.
fn harden(line: &Line) {
    if let Err(error) = tcp::control_congestion(&line.socket, "bbr") {
        tracing::debug!(%error, "no BBR here");
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

    const MS: Duration = Duration::from_millis(1);

    /// A second on a gigabit link in which so many of a million segments were lost.
    fn second(losses_per_million: u64, round_trip: Duration) -> Info {
        Info {
            round_trip,
            round_trip_least: 16 * MS,
            segment: 1448,
            delivery_rate: 100_000_000,
            segments: 1_000_000,
            lost: losses_per_million,
        }
    }

    fn after(seconds: &[Info]) -> (bool, usize) {
        let mut it = Count::new(Connections::Auto);
        it.agreed(8);
        let more = seconds.iter().fold(false, |_, seen| it.judge(seen));
        (more, it.get())
    }

    #[test]
    fn a_link_that_goes_on_losing_gets_more_connections() {
        assert_eq!(after(&[second(1000, 17 * MS); 2]), (false, 1));
        assert_eq!(after(&[second(1000, 17 * MS); 3]), (true, 4));
        assert_eq!(after(&[second(0, 17 * MS); 9]), (false, 1));
    }

    #[test]
    fn a_queue_that_overflows_is_no_link_that_loses() {
        assert_eq!(after(&[second(1000, 25 * MS); 9]), (false, 1), "the link is full");
        let once = [second(1000, 17 * MS), second(1000, 17 * MS), second(0, 16 * MS)];
        assert_eq!(after(&[once, once].concat()), (false, 1), "it passed");
    }
}
