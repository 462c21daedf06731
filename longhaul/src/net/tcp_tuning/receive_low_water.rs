//! How many bytes must have arrived before the reader of a connection is woken (`SO_RCVLOWAT`).
//!
//! A network card hands over a few packets at a time, and a PDU can only be used when all of it is there. Its reader
//! would be woken for every few KiB of a body of 128 KiB, which costs both ends more processor time than encrypting it.
//! So the kernel is told how much is still missing, as far as that will arrive soon: on a slow link each packet wakes
//! the reader, as it is a sign of life.

use std::time::Duration;

use host::tcp;
use proto::time::Time;
use tokio::net::TcpStream;

/// Where less is missing, the system call costs what it saves.
const MARK_MIN: usize = 8 << 10;

/// Ten times what one interrupt of a gigabit card brings. More would save little, and would take longer to arrive where
/// a link becomes slow all of a sudden.
const MARK_MAX: usize = 32 << 10;

/// Bytes that would take longer than this to arrive, at the rate of the last read, are not waited for.
const WAIT_MAX: Duration = Duration::from_millis(2);

/// The mark of one connection.
#[derive(Debug)]
pub(crate) struct ReceiveLowWater {
    mark: u32,
    /// When the last read was, and how many bytes arrive within [`WAIT_MAX`] at its rate.
    last_read: Time,
    expected: usize,
}

impl ReceiveLowWater {
    pub(crate) fn new() -> Self {
        Self { mark: 1, last_read: Time::ZERO, expected: 0 }
    }

    /// A read returned so many bytes.
    pub(crate) fn received(&mut self, bytes: usize, now: Time) {
        let elapsed = (now - self.last_read).as_nanos().max(1);
        self.last_read = now;
        let expected = bytes as u128 * WAIT_MAX.as_nanos() / elapsed;
        self.expected = usize::try_from(expected).unwrap_or(usize::MAX);
    }

    /// Sets the mark for a reader that misses so many bytes. To be called before each wait: a mark above what will arrive
    /// would never be reached.
    pub(crate) fn set(&mut self, socket: &TcpStream, missing: usize) {
        let mark = self.mark(missing);
        if mark != self.mark && tcp::set_low_water(socket, mark).is_ok() {
            self.mark = mark;
        }
    }

    fn mark(&self, missing: usize) -> u32 {
        match missing.min(self.expected).min(MARK_MAX) {
            few if few < MARK_MIN => 1,
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
    fn mark_is_what_is_missing_and_arrives_soon() {
        let mut it = ReceiveLowWater::new();
        let mut read = |bytes, after: Duration| {
            it.received(bytes, it.last_read + after);
            [1, MARK_MIN - 1, MARK_MIN, MARK_MAX + 1].map(|missing| it.mark(missing) as usize)
        };
        // Four packets in 50 us, and the rest of a window in one.
        assert_eq!(read(6000, Duration::from_micros(50)), [1, 1, MARK_MIN, MARK_MAX]);
        assert_eq!(read(1 << 20, Duration::ZERO), [1, 1, MARK_MIN, MARK_MAX]);
        // 100 Mbit/s.
        assert_eq!(read(12_500, Duration::from_millis(1)), [1, 1, MARK_MIN, 25_000]);
        // 10 Mbit/s, and what came after a pause.
        assert_eq!(read(1448, Duration::from_millis(1)), [1; 4]);
        assert_eq!(read(6000, Duration::from_secs(1)), [1; 4]);
    }

    /// A reader that is told of each read as the drivers are, over a connection whose writer stops everywhere.
    #[tokio::test]
    async fn reader_never_waits_for_bytes_that_do_not_arrive() {
        const PDU: usize = 100_000;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut near, _) = listener.accept().await.unwrap();
        let mut it = ReceiveLowWater::new();
        for sent in [PDU, 3, MARK_MIN + 1, MARK_MAX + 1, PDU - 1] {
            far.write_all(&vec![7; sent]).await.unwrap();
            let mut missing = sent;
            while missing > 0 {
                it.set(&near, missing);
                let mut buffer = bytes::BytesMut::with_capacity(missing);
                let came = near.read_buf(&mut (&mut buffer)).await.unwrap();
                assert!(came > 0);
                it.received(came, it.last_read);
                missing -= came;
            }
        }
        // The end is told below the mark.
        it.set(&near, PDU);
        assert_eq!(it.mark as usize, MARK_MAX);
        far.write_all(b"less").await.unwrap();
        drop(far);
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"less");
    }
}
