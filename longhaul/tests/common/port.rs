//! A port of a server that is another program, or that comes back after it has ended.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SocketAddrV4, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

/// A port that nobody else gets: it is bound, which keeps the system from giving it away, but not
/// listened on, which lets a server do so (SO_REUSEADDR in socket(7)).
///
/// A listener that is closed again does not do: a program that another thread starts at that moment holds a copy of it
/// until its exec. Until then connections succeed that nobody accepts, and a server cannot have the port.
pub(crate) struct Port {
    pub(crate) number: u16,
    #[allow(dead_code, reason = "most tests only hold it")]
    pub(crate) bound: OwnedFd,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        let bound = SocketAddrV4::try_from(getsockname(&socket).unwrap()).unwrap();
        Self { number: bound.port(), bound: socket }
    }
}
