//! Links that carry packets: raw Ethernet and UDP. A packet arrives whole, twice or not at all, in any order; who uses a
//! link makes of them what it needs.
//!
//! ```text
//! Batch ──► send_batch      as few system calls as the link allows
//!           recv_batch ──►  each packet in the buffer that the kernel has written it to
//! ```

mod address;
mod batch;
mod ethernet;
mod packet_ring;
mod udp;

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;

pub use address::{Address, Mac, ParseMacError};
pub use batch::{Batch, Packet};
pub use ethernet::{Ethernet, EthernetOptions, OpenError};
pub use udp::Udp;

/// What sends and receives packets without waiting.
#[derive(Debug)]
pub enum Link {
    /// Packets of one EtherType.
    Ethernet(Ethernet),
    /// Datagrams of UDP.
    Udp(Udp),
}

impl Link {
    /// Sends what the batch holds, and takes it out as it does. [`io::ErrorKind::WouldBlock`] means that the system takes no
    /// more now; what is left stays in the batch. A packet that the system refuses for itself, as too long or for want of
    /// room in a queue, is lost like one on its way, and counted.
    pub fn send_batch(&mut self, batch: &mut Batch) -> io::Result<()> {
        match self {
            Self::Ethernet(link) => link.send_batch(batch),
            Self::Udp(link) => link.send_batch(batch),
        }
    }

    /// Hands over packets that have arrived, and says how many: none if there are none now. Bounded, so that sending has
    /// its turn. What lies behind the end of a packet as it was sent may be padding of the link.
    pub fn recv_batch(&mut self, each: &mut dyn FnMut(Address, &mut [u8])) -> io::Result<usize> {
        match self {
            Self::Ethernet(link) => link.recv_batch(each),
            Self::Udp(link) => link.recv_batch(each),
        }
    }

    /// The longest packet that can leave, without the headers of the link. The way of it may carry less.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        match self {
            Self::Ethernet(link) => link.mtu(),
            Self::Udp(_) => udp::PIECE_MAX,
        }
    }

    /// The address at which packets arrive.
    #[must_use]
    pub fn local(&self) -> Address {
        match self {
            Self::Ethernet(link) => link.mac().into(),
            Self::Udp(link) => link.address().into(),
        }
    }

    /// What was lost at this end.
    pub fn losses(&mut self) -> Losses {
        match self {
            Self::Ethernet(link) => link.losses(),
            Self::Udp(link) => link.losses(),
        }
    }
}

impl From<Ethernet> for Link {
    fn from(link: Ethernet) -> Self {
        Self::Ethernet(link)
    }
}

impl From<Udp> for Link {
    fn from(link: Udp) -> Self {
        Self::Udp(link)
    }
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Ethernet(link) => link.as_fd().as_raw_fd(),
            Self::Udp(link) => link.as_fd().as_raw_fd(),
        }
    }
}

/// Packets that were lost at this end of a link, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The system refused to send them.
    pub refused: u64,
    /// They came while there was no room for them.
    pub overrun: u64,
    /// They were longer than what a buffer holds.
    pub cut: u64,
}

/// A link that wakes a task when it can go on.
#[derive(Debug)]
pub struct AsyncLink(AsyncFd<Link>);

impl AsyncLink {
    /// Has the runtime watch `link`.
    pub fn new(link: impl Into<Link>) -> io::Result<Self> {
        // SAFETY: a link owns its socket, and has the same one as long as it lives.
        Ok(Self(unsafe { AsyncFd::register(link.into()) }?))
    }

    /// The link itself, for what needs no waiting.
    pub fn link(&self) -> &Link {
        self.0.get_ref()
    }

    /// What was lost at this end.
    pub fn losses(&mut self) -> Losses {
        self.0.get_mut().losses()
    }

    /// Sends all of a batch; pending while the system takes no more.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut Batch) -> Poll<io::Result<()>> {
        while !batch.is_empty() {
            // Nearly always there is room, and asking the runtime first would cost more.
            match self.0.get_mut().send_batch(batch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
            let mut guard = ready!(self.0.poll_write_ready_mut(cx))?;
            match guard.get_inner_mut().send_batch(batch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                sent => return Poll::Ready(sent),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Hands over what has arrived; pending if that is nothing.
    pub fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        each: &mut dyn FnMut(Address, &mut [u8]),
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready_mut(cx))?;
            match guard.get_inner_mut().recv_batch(each) {
                Ok(0) => guard.clear_ready(),
                received => return Poll::Ready(received),
            }
        }
    }
}
