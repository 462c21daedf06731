//! How the kernel sends: its congestion control, and how many unsent bytes it takes.

use host::tcp;
use tokio::net::TcpStream;

/// The bytes that the kernel takes beyond those it can send at once. More would only wait behind a loss, where another
/// connection could have sent them, or in front of a smaller answer; less would let a fast link run dry between two
/// turns of the task.
const UNSENT_MAX: u32 = 256 << 10;

/// Bounds the unsent bytes that the kernel takes.
pub(crate) fn bound_unsent(socket: &TcpStream) {
    // It is only slower without.
    if let Err(error) = tcp::bound_unsent(socket, UNSENT_MAX) {
        tracing::debug!(%error, "cannot bound the unsent bytes of a connection");
    }
}

/// What makes it available where it is not.
pub(crate) const LOAD_HINT: &str = "`modprobe tcp_bbr`, here and on the server";

/// Whether the kernel has a congestion control that loss does not slow down (BBR); `None` if it does not tell.
pub(crate) fn withstands_loss() -> Option<bool> {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let available = std::fs::read_to_string(path).ok()?;
    Some(available.split_whitespace().any(|name| name == "bbr"))
}

/// Switches to BBR, which follows the delivery rate and not the losses. Where the kernel has none, or does not permit
/// it, the connection stays as it is.
pub(super) fn use_bbr(socket: &TcpStream) {
    if let Err(error) = tcp::control_congestion(socket, "bbr") {
        tracing::debug!(%error, "BBR cannot be used");
    }
}
