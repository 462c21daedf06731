//! How much the peer of a long link may send before the kernel has seen how fast it is read.
//!
//! The kernel begins with a window of some 64 KiB and widens it by what was read in a round trip. On a long link it lags
//! behind the sender, which could double what it sends, and for some ten round trips it may not widen it at all where it has
//! taken the round trip for shorter than it is.

use std::time::Duration;

use host::tcp;
use tokio::net::TcpStream;

/// From this round trip on, what the kernel begins with is felt.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(20);

/// The window that there is room for at once: about what the kernel comes to by itself, as it is set on most machines.
const AT_ONCE: u32 = 4 << 20;

/// Makes room on a long link, so that the window doubles with what the sender may send.
pub(super) fn widen_on_long_link(socket: &TcpStream, round_trip_least: Duration) {
    if round_trip_least >= ROUND_TRIP_MIN {
        widen(socket);
    }
}

/// The kernel makes room for what a reader waits for (`SO_RCVLOWAT`), and keeps it; it goes on to choose the size, which
/// it does not after `SO_RCVBUF`. To be called before a reader has set a mark of its own.
fn widen(socket: &TcpStream) {
    for mark in [AT_ONCE, 1] {
        // It is only slower without.
        if let Err(error) = tcp::set_low_water(socket, mark) {
            tracing::debug!(%error, "cannot widen the receive window of a connection");
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::socket_recv_buffer_size;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn wider_window_wakes_its_reader_for_one_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut near, _) = listener.accept().await.unwrap();
        let before = socket_recv_buffer_size(&near).unwrap();
        widen_on_long_link(&near, ROUND_TRIP_MIN / 2);
        assert_eq!(socket_recv_buffer_size(&near).unwrap(), before);
        widen_on_long_link(&near, ROUND_TRIP_MIN);
        assert!(socket_recv_buffer_size(&near).unwrap() > before);
        far.write_all(b"1").await.unwrap();
        assert_eq!(near.read_u8().await.unwrap(), b'1');
    }
}
