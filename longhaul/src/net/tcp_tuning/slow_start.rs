//! Keeps the queue of one direction of a connection from ending the slow start of the other.
//!
//! CUBIC ends a slow start where the round trip grows (HyStart, RFC 9406), whichever direction has the queue that makes it grow.
//! While one carries data, the answers of the other would have the window of a few packets for good: on a link of 128 ms
//! what it carries later takes more than ten seconds to become fast. Reno has the same slow start without that end.

use std::time::Duration;

use host::tcp::{self, Info};
use tokio::net::TcpStream;

/// On shorter links a window grows fast enough, and more than a few round trips pass between two samples.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(10);

/// Samples with less say nothing of which direction carries data.
const BYTES_MIN: u64 = 64 << 10;

/// A direction that sends less than this part of what comes sends answers alone.
const ANSWERS_PART: u64 = 4;

/// Which algorithm controls what a session sends, unless the link loses packets.
#[derive(Debug, Default)]
pub(super) struct SlowStart {
    acked: u64,
    received: u64,
    /// Little is sent: what CUBIC would control is controlled by Reno.
    uses_reno: bool,
}

impl SlowStart {
    /// Adds a sample of all connections together.
    pub(super) fn sample<'s>(&mut self, info: &Info, sockets: impl Iterator<Item = &'s TcpStream>) {
        let acked = info.acked.saturating_sub(self.acked);
        let received = info.received.bytes.saturating_sub(self.received);
        if info.round_trip_least < ROUND_TRIP_MIN || acked.max(received) < BYTES_MIN {
            return;
        }
        (self.acked, self.received) = (info.acked, info.received.bytes);
        match acked < received / ANSWERS_PART {
            true if !self.uses_reno => {
                self.uses_reno =
                    sockets.filter(|socket| switch_congestion(socket, "cubic", "reno")).count() > 0;
            }
            false if self.uses_reno => {
                self.uses_reno = false;
                sockets.for_each(|socket| {
                    switch_congestion(socket, "reno", "cubic");
                });
            }
            _ => {}
        }
    }

    /// A connection was added.
    pub(super) fn added(&self, socket: &TcpStream) {
        if self.uses_reno {
            switch_congestion(socket, "cubic", "reno");
        }
    }
}

/// Whether the algorithm was the one, and is the other now.
fn switch_congestion(socket: &TcpStream, from: &str, to: &str) -> bool {
    let switched = tcp::congestion(socket).and_then(|algorithm| {
        let is_other = algorithm == from;
        if is_other { tcp::control_congestion(socket, to).map(|()| true) } else { Ok(false) }
    });
    switched.unwrap_or_else(|error| {
        tracing::debug!(%error, to, "cannot switch the congestion control");
        false
    })
}

#[cfg(test)]
mod tests {
    use host::tcp::Received;
    use tokio::net::TcpListener;

    use super::*;

    const MIB: u64 = 1 << 20;

    async fn connect(algorithm: &str) -> (TcpStream, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        tcp::control_congestion(&socket, algorithm).unwrap();
        (socket, listener)
    }

    fn counted(acked: u64, received: u64, round_trip_least: Duration) -> Info {
        let received = Received { bytes: received, ..Received::default() };
        Info { acked, received, round_trip_least, ..Info::default() }
    }

    #[tokio::test]
    async fn direction_of_answers_alone_is_not_controlled_by_cubic() {
        let (socket, _listener) = connect("cubic").await;
        let mut slow_start = SlowStart::default();
        // What was sent and what has come by then.
        let rows = [
            (BYTES_MIN - 1, BYTES_MIN - 1, "cubic"),
            (BYTES_MIN - 1, MIB, "reno"),
            (BYTES_MIN, 2 * MIB, "reno"),
            (2 * MIB, 3 * MIB, "cubic"),
            (20 * MIB, 4 * MIB, "cubic"),
            (20 * MIB, 5 * MIB, "reno"),
        ];
        for (acked, received, algorithm) in rows {
            slow_start.sample(&counted(acked, received, ROUND_TRIP_MIN), [&socket].into_iter());
            assert_eq!(tcp::congestion(&socket).unwrap(), algorithm, "{acked}, {received}");
        }
        let (later, _listener) = connect("cubic").await;
        slow_start.added(&later);
        assert_eq!(tcp::congestion(&later).unwrap(), "reno");
    }

    #[tokio::test]
    async fn algorithm_of_the_system_stays_on_short_links_and_if_it_is_not_cubic() {
        for (algorithm, least) in [("cubic", ROUND_TRIP_MIN / 2), ("reno", ROUND_TRIP_MIN)] {
            let (socket, _listener) = connect(algorithm).await;
            let mut slow_start = SlowStart::default();
            for (acked, received) in [(0, MIB), (9 * MIB, MIB)] {
                slow_start.sample(&counted(acked, received, least), [&socket].into_iter());
                assert_eq!(tcp::congestion(&socket).unwrap(), algorithm);
            }
        }
    }
}
