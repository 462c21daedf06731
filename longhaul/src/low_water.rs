//! How much must have come before whoever reads a connection is woken.
//!
//! A network card hands over a few packets at a time, and nothing can be done with a PDU before all of it is there.
//! Its reader would be woken for every few KiB of a body of 128 KiB, which costs both ends' processors more than
//! ciphering it. So the system is told how much is still missing, as far as it is expected soon: on a slow link each
//! packet wakes the reader as ever, as it is a sign of life.

use std::time::{Duration, Instant};

use host::tcp;
use tokio::net::TcpStream;

/// Where less is missing, telling the system costs what it saves.
const LEAST: usize = 8 << 10;

/// Ten times what one interrupt of a gigabit card brings; more would save little, and would be waited for longer
/// where a link becomes slow all of a sudden.
const MOST: usize = 32 << 10;

/// What would take longer than this to come, at the rate of the last read, is not waited for.
const WAIT: Duration = Duration::from_millis(2);

/// The mark of one connection.
#[derive(Debug)]
pub(crate) struct LowWater {
    mark: u32,
    /// When the last read was, and how much comes within [`WAIT`] at its rate.
    last: Instant,
    expected: usize,
}

impl LowWater {
    pub(crate) fn new() -> Self {
        Self { mark: 1, last: Instant::now(), expected: 0 }
    }

    /// A read brought so many bytes.
    pub(crate) fn came(&mut self, bytes: usize, now: Instant) {
        let elapsed = now.saturating_duration_since(self.last).as_nanos().max(1);
        self.last = now;
        let expected = bytes as u128 * WAIT.as_nanos() / elapsed;
        self.expected = usize::try_from(expected).unwrap_or(usize::MAX);
    }

    /// So many bytes are missing before anything can be done. To be said before each wait, since a mark that is
    /// higher than what will come would never be reached.
    pub(crate) fn set(&mut self, socket: &TcpStream, missing: usize) {
        let mark = self.mark(missing);
        if mark != self.mark && tcp::set_low_water(socket, mark).is_ok() {
            self.mark = mark;
        }
    }

    fn mark(&self, missing: usize) -> u32 {
        match missing.min(self.expected).min(MOST) {
            few if few < LEAST => 1,
            many => many as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn only_what_is_missing_and_comes_soon_is_waited_for() {
        let mut it = LowWater::new();
        let mut read = |bytes, after: Duration| {
            it.came(bytes, it.last + after);
            [1, LEAST - 1, LEAST, MOST + 1].map(|missing| it.mark(missing) as usize)
        };
        // Four packets in 50 us, and the rest of a window in one.
        assert_eq!(read(6000, Duration::from_micros(50)), [1, 1, LEAST, MOST]);
        assert_eq!(read(1 << 20, Duration::ZERO), [1, 1, LEAST, MOST]);
        // 100 Mbit/s.
        assert_eq!(read(12_500, Duration::from_millis(1)), [1, 1, LEAST, 25_000]);
        // 10 Mbit/s, and what came after a pause.
        assert_eq!(read(1448, Duration::from_millis(1)), [1; 4]);
        assert_eq!(read(6000, Duration::from_secs(1)), [1; 4]);
    }

    /// A reader that is told of each read as the drivers are, over a connection whose writer stops everywhere.
    #[tokio::test]
    async fn nobody_waits_for_what_does_not_come() {
        const PDU: usize = 100_000;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut near, _) = listener.accept().await.unwrap();
        let mut it = LowWater::new();
        for sent in [PDU, 3, LEAST + 1, MOST + 1, PDU - 1] {
            far.write_all(&vec![7; sent]).await.unwrap();
            let mut missing = sent;
            while missing > 0 {
                it.set(&near, missing);
                let mut buffer = bytes::BytesMut::with_capacity(missing);
                let came = near.read_buf(&mut (&mut buffer)).await.unwrap();
                assert!(came > 0);
                it.came(came, it.last);
                missing -= came;
            }
        }
        // The end is told below the mark.
        it.set(&near, PDU);
        assert_eq!(it.mark as usize, MOST);
        far.write_all(b"less").await.unwrap();
        drop(far);
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"less");
    }
}
