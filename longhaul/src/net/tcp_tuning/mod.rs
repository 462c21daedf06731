//! How TCP is made to fill a long or lossy link: the only place that sets options of TCP sockets.

pub(crate) mod congestion_control;
pub(crate) mod loss_detector;
mod loss_model;
pub(crate) mod path;
pub(crate) mod receive_low_water;
pub(crate) mod receive_stats;
mod receive_window;
mod slow_start;

use std::io;

pub use host::tcp::Info;
use tokio::net::TcpStream;

/// Sends small PDUs at once (`TCP_NODELAY`): they are gathered by the program and not by the kernel.
pub(crate) fn send_at_once(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)
}

/// Has the kernel discard unsent bytes when the connection is closed (`SO_LINGER` of zero).
pub(crate) fn discard_unsent(socket: &TcpStream) {
    // Without it the kernel sends what nobody needs.
    let _ = socket.set_zero_linger();
}
