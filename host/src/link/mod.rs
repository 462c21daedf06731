//! Links that carry packets: raw Ethernet and UDP. A packet arrives whole, twice or not at all, in any order; who uses a
//! link makes of them what it needs.
//!
//! ```text
//! Batch ──► Sender::send_batch      as few system calls as the link allows
//!           Link::recv_batch   ──►  each packet in the buffer that the kernel has written it to
//! ```

mod address;
mod batch;
mod ecn;
mod ethernet;
mod packet_ring;
mod socket_option;
mod udp;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub use address::{Address, Mac, ParseMacError};
pub use batch::{Batch, Packet};
pub use ecn::Ecn;
use ethernet::EthernetSocket;
pub use ethernet::{Ethernet, EthernetOptions, OpenError};
pub use udp::Udp;
use udp::UdpSender;

/// What sends and receives packets without waiting.
#[derive(Debug)]
pub enum Link {
    /// Packets of one EtherType.
    Ethernet(Ethernet),
    /// Datagrams of UDP.
    Udp(Udp),
}

impl Link {
    /// What sends by it.
    #[must_use]
    pub fn sender(&self) -> Sender {
        Sender(match self {
            Self::Ethernet(link) => Socket::Ethernet(Arc::clone(&link.socket)),
            Self::Udp(link) => Socket::Udp(Arc::clone(&link.socket)),
        })
    }

    /// Hands over packets that have arrived, and says how many: none if there are none now. Bounded, so that sending has
    /// its turn. What lies behind the end of a packet as it was sent may be padding of the link.
    pub fn recv_batch(
        &mut self,
        each: &mut dyn FnMut(Address, Ecn, &mut [u8]),
    ) -> io::Result<usize> {
        self.receive(each).map(|received| received.count)
    }

    fn receive(&mut self, each: &mut dyn FnMut(Address, Ecn, &mut [u8])) -> io::Result<Received> {
        match self {
            Self::Ethernet(link) => link.recv_batch(each),
            Self::Udp(link) => link.recv_batch(each),
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

/// What came of receiving once.
#[derive(Clone, Copy, Debug)]
struct Received {
    /// How many packets were handed over.
    count: usize,
    /// There were more of them when it was asked for the last one; otherwise the system tells of the next one.
    is_more: bool,
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

/// What sends by a link. Clones send by the same.
#[derive(Clone, Debug)]
pub struct Sender(Socket);

#[derive(Clone, Debug)]
enum Socket {
    Ethernet(Arc<EthernetSocket>),
    Udp(Arc<UdpSender>),
}

impl Sender {
    /// Sends what the batch holds, and takes it out as it does. [`io::ErrorKind::WouldBlock`] means that the system takes no
    /// more now; what is left stays in the batch. A packet that the system refuses for itself, as too long or for want of
    /// room in a queue, is lost like one on its way, and counted.
    pub fn send_batch(&self, batch: &mut Batch) -> io::Result<()> {
        match &self.0 {
            Socket::Ethernet(socket) => socket.send_batch(batch),
            Socket::Udp(socket) => socket.send_batch(batch),
        }
    }

    /// The longest packet that can leave, without the headers of the link. The way of it may carry less.
    #[must_use]
    pub fn mtu(&self) -> usize {
        match &self.0 {
            Socket::Ethernet(socket) => socket.mtu,
            Socket::Udp(_) => udp::PIECE_MAX,
        }
    }

    /// The address at which packets arrive.
    #[must_use]
    pub fn local(&self) -> Address {
        match &self.0 {
            Socket::Ethernet(socket) => socket.mac().into(),
            Socket::Udp(socket) => socket.local.into(),
        }
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Socket::Ethernet(socket) => socket.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
        }
    }
}

impl AsRawFd for Sender {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// A link that wakes a task when packets have arrived, or when it takes packets again.
#[derive(Debug)]
pub struct AsyncLink {
    /// Watched for packets alone: the system says of each packet that has left that there is room for another one, which would
    /// wake whoever waits for the answer.
    readable: AsyncFd<Sender>,
    /// The same socket by another descriptor, which is watched for room while there is none.
    socket: Arc<OwnedFd>,
    writable: Option<AsyncFd<Arc<OwnedFd>>>,
    link: Link,
}

impl AsyncLink {
    /// Has the runtime watch `link`.
    pub fn new(link: impl Into<Link>) -> io::Result<Self> {
        let link = link.into();
        let sender = link.sender();
        let socket = Arc::new(sender.as_fd().try_clone_to_owned()?);
        // SAFETY: what sends holds its socket, which is the same one as long as it lives.
        let readable = unsafe { AsyncFd::register_with_interest(sender, Interest::READABLE) }?;
        Ok(Self { readable, socket, writable: None, link })
    }

    /// What sends by it, without waiting.
    #[must_use]
    pub fn sender(&self) -> &Sender {
        self.readable.get_ref()
    }

    /// What was lost at this end.
    pub fn losses(&mut self) -> Losses {
        self.link.losses()
    }

    /// Hands over what has arrived, asked of the link and not of the runtime; how many packets that are. An error is left to
    /// [`poll_recv`](Self::poll_recv), which finds it if it stays.
    pub fn receive_now(&mut self, each: &mut dyn FnMut(Address, Ecn, &mut [u8])) -> usize {
        match &mut self.link {
            // No system call: an error is not taken either.
            Link::Ethernet(link) => link.receive(each),
            Link::Udp(link) => link.recv_batch(each).map_or(0, |received| received.count),
        }
    }

    /// Hands over what has arrived; pending if that is nothing. Only one task may wait for it.
    pub fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        each: &mut dyn FnMut(Address, Ecn, &mut [u8]),
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.readable.poll_read_ready(cx))?;
            let received = self.link.receive(each)?;
            // To ask in vain would be one more system call for each few packets.
            if !received.is_more {
                guard.clear_ready();
            }
            if received.count > 0 {
                return Poll::Ready(Ok(received.count));
            }
        }
    }

    /// Sends all of a batch; pending while the system takes no more. Only one task may wait so.
    pub fn poll_send(&mut self, cx: &mut Context<'_>, batch: &mut Batch) -> Poll<io::Result<()>> {
        loop {
            match self.sender().send_batch(batch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => {
                    self.writable = None;
                    return Poll::Ready(sent);
                }
            }
            let watched = self.writable.take().map_or_else(|| self.watch_for_room(), Ok);
            let Ok(writable) = watched else {
                // The system lacks something for now, which is no reason to give the link up.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            };
            let mut guard = ready!(self.writable.insert(writable).poll_write_ready(cx))?;
            guard.clear_ready();
        }
    }

    fn watch_for_room(&self) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
        // SAFETY: what is registered owns its descriptor, which is the same one as long as it lives.
        let registered = unsafe {
            AsyncFd::register_with_interest(Arc::clone(&self.socket), Interest::WRITABLE)
        };
        Ok(registered?)
    }
}
