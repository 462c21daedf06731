//! TCP as the kernel sees it: what it knows of a connection, and how it is told to carry one.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// More than any kernel fills of its `struct tcp_info`, which only ever grows at its end.
const INFO_MAX: usize = 512;

/// What the kernel knows of a connection (`TCP_INFO`). What an old kernel does not tell is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// The smoothed round trip.
    pub round_trip: Duration,
    /// The least round trip of the last minutes: that without queues.
    pub round_trip_least: Duration,
    /// The largest segment sent, in bytes.
    pub segment: u32,
    /// The best rate of the last round trips at which data arrived, in bytes per second.
    pub delivery_rate: u64,
    /// That rate is no less than it is because there was nothing to send.
    pub starved: bool,
    /// How long the other end's window held back what there was to send.
    pub window_limited: Duration,
    /// For how long the other end has acknowledged nothing, although something was sent.
    pub unheard: Duration,
    /// Bytes that were sent and have arrived.
    pub acked: u64,
    /// Data segments sent.
    pub segments: u64,
    /// Segments that had to be sent again: lost on their way, mostly.
    pub lost: u64,
    /// What came.
    pub received: Received,
}

/// What came by a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes, each counted once.
    pub bytes: u64,
    /// Data segments.
    pub segments: u64,
    /// Segments that came while one before them was missing.
    pub behind_gaps: u64,
    /// The smoothed round trip, as data tell it that come: where little is sent, the other hardly is one.
    pub round_trip: Duration,
}

/// What the kernel knows of a connection.
pub fn info(socket: impl AsFd) -> io::Result<Info> {
    let mut buffer = [0_u8; INFO_MAX];
    let mut len = INFO_MAX as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and so open; the kernel writes at most `len` bytes to the buffer,
    // which has as many.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            buffer.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Info::parse(&buffer))
}

impl Info {
    /// The offsets are those of `struct tcp_info` in linux/tcp.h, which are part of the kernel's interface.
    fn parse(bytes: &[u8; INFO_MAX]) -> Self {
        let u32_at = |at: usize| {
            let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
            u32::from_ne_bytes(field.copied().unwrap_or_default())
        };
        let u64_at = |at: usize| {
            let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
            u64::from_ne_bytes(field.copied().unwrap_or_default())
        };
        Self {
            round_trip: Duration::from_micros(u32_at(68).into()),
            round_trip_least: Duration::from_micros(u32_at(148).into()),
            segment: u32_at(16),
            delivery_rate: u64_at(160),
            starved: bytes[7] & 1 != 0,
            window_limited: Duration::from_micros(u64_at(176)),
            unheard: match u32_at(24) {
                0 => Duration::ZERO,
                _ => Duration::from_millis(u32_at(56).into()),
            },
            acked: u64_at(120),
            segments: u32_at(156).into(),
            lost: u32_at(100).into(),
            received: Received {
                bytes: u64_at(128),
                segments: u32_at(152).into(),
                behind_gaps: u32_at(224).into(),
                round_trip: Duration::from_micros(u32_at(92).into()),
            },
        }
    }
}

/// Bounds what the kernel takes of a connection beyond what it can send at once (`TCP_NOTSENT_LOWAT`): what
/// comes later waits where it can still be put in another order, or be sent by another connection.
pub fn bound_unsent(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &bytes.to_ne_bytes())
}

/// Has whoever waits for a connection to be readable woken once so many bytes are there, or its end
/// (`SO_RCVLOWAT`). Reads take what there is, as ever.
pub fn set_low_water(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes.to_ne_bytes())
}

/// Has a connection controlled by another algorithm than the system's own, if the system lets us.
pub fn control_congestion(socket: impl AsFd, algorithm: &str) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_CONGESTION, algorithm.as_bytes())
}

/// The algorithm that controls a connection.
pub fn congestion(socket: impl AsFd) -> io::Result<String> {
    Ok(rustix::net::sockopt::tcp_congestion(socket)?)
}

fn set(socket: impl AsFd, level: libc::c_int, option: libc::c_int, value: &[u8]) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed and so open; the kernel reads as many bytes as the slice has.
    let status = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_tells_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        bound_unsent(&near, 1 << 17).unwrap();
        near.write_all(&[7; 100_000]).unwrap();
        far.read_exact(&mut [0; 100_000]).unwrap();
        let info = info(&near).unwrap();
        assert!(info.segment >= 500 && info.segments >= 1, "{info:?}");
        assert!(info.round_trip > Duration::ZERO, "{info:?}");
        assert!(info.round_trip_least > Duration::ZERO, "{info:?}");
        assert_eq!(info.lost, 0, "{info:?}");
        let far = super::info(&far).unwrap();
        assert_eq!((far.received.bytes, far.received.behind_gaps), (100_000, 0), "{far:?}");
        assert!(far.received.segments >= 1 && far.segments == 0, "{far:?}");
    }

    #[test]
    fn silence_counts_while_something_was_sent() {
        let mut bytes = [0; INFO_MAX];
        bytes[56..60].copy_from_slice(&9000_u32.to_ne_bytes());
        assert_eq!(Info::parse(&bytes).unheard, Duration::ZERO);
        bytes[24..28].copy_from_slice(&1_u32.to_ne_bytes());
        assert_eq!(Info::parse(&bytes).unheard, Duration::from_secs(9));
    }

    #[test]
    fn an_algorithm_that_does_not_exist_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(control_congestion(&near, "no such thing").is_err());
        control_congestion(&near, "reno").unwrap();
        assert_eq!(congestion(&near).unwrap(), "reno");
    }
}
