//! The process at the other end of a Unix socket.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;

/// The one that has connected, or that listened when this end connected (`SO_PEERCRED` of unix(7)).
pub(crate) fn peer_process(stream: &UnixStream) -> io::Result<Pid> {
    Ok(socket_peercred(stream)?.pid)
}
