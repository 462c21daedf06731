//! Sockets that were opened for this program by whoever started it (sd_listen_fds(3)).

use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, SocketType, sockopt};

/// A socket, and what it was called.
#[derive(Debug)]
pub struct PassedSocket {
    /// The name it was given, or `unknown`.
    pub name: String,
    /// The socket, which does not block.
    pub listener: Listener,
}

/// A socket that others connect to.
#[derive(Debug)]
pub enum Listener {
    /// From elsewhere.
    Tcp(TcpListener),
    /// From this machine.
    Unix(UnixListener),
}

/// Whether they are somebody's already.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes what was handed over to this process. There is nothing the second time.
///
/// It must be the first thing a program does: what it opens itself may have the number of a socket that is
/// announced and not there.
pub fn take() -> io::Result<Vec<PassedSocket>> {
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    sd_notify::listen_fds_with_names()?
        .map(|(number, name)| {
            // SAFETY: the number is not -1, and `listen_fds_with_names` has found a descriptor there.
            let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
            check(descriptor).map_err(|why| because(&name, &why))?;
            // SAFETY: it is open, and nobody else owns it: it was inherited, nothing was opened before, and
            // `TAKEN` lets this be reached once.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            let listener = adopt(descriptor).map_err(|why| because(&name, &why))?;
            Ok(PassedSocket { name, listener })
        })
        .collect()
}

fn because(name: &str, why: &io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("the socket {name} that was handed over: {why}"))
}

fn check(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let listens = sockopt::socket_type(descriptor)? == SocketType::STREAM
        && sockopt::socket_acceptconn(descriptor)?;
    listens.then_some(()).ok_or_else(|| io::Error::other("it does not listen for connections"))
}

fn adopt(descriptor: OwnedFd) -> io::Result<Listener> {
    match sockopt::socket_domain(&descriptor)? {
        AddressFamily::INET | AddressFamily::INET6 => {
            let listener = TcpListener::from(descriptor);
            listener.set_nonblocking(true)?;
            Ok(Listener::Tcp(listener))
        }
        AddressFamily::UNIX => {
            let listener = UnixListener::from(descriptor);
            listener.set_nonblocking(true)?;
            Ok(Listener::Unix(listener))
        }
        _ => Err(io::Error::other("it is neither of TCP nor a Unix socket")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_what_listens_is_taken() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        check(tcp.as_fd()).unwrap();
        assert!(matches!(adopt(tcp.into()).unwrap(), Listener::Tcp(_)));
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        check(udp.as_fd()).unwrap_err();
        let (one, _other) = UnixStream::pair().unwrap();
        check(one.as_fd()).unwrap_err();
        check(io::stdin().as_fd()).unwrap_err();
    }

    #[test]
    fn nothing_is_handed_over_to_others() {
        assert!(take().unwrap().is_empty(), "LISTEN_PID names somebody else, or nobody");
    }
}
