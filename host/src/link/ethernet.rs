//! Raw Ethernet: packets of one EtherType on one interface.

use std::fmt;
use std::io::{self, ErrorKind};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::packet_ring::PacketRing;
use super::socket_option::set;
use super::{Address, Batch, Ecn, Losses, Mac, Received};

/// Packets that one system call sends.
const SENT_AT_ONCE: usize = 96;

/// Packets that are handed over before sending has its turn.
const RECEIVED_AT_ONCE: usize = 128;

/// How much may come before we look: 6 ms at 10 Gbit/s.
const RING: usize = 8 << 20;

/// How much the kernel is asked to keep for us that is to be sent.
const SEND_BUFFER: libc::c_int = 4 << 20;

/// How an interface is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetOptions {
    /// Bytes that may come before they are taken.
    pub ring: usize,
    /// Packets go to the interface past its queue, which drops them where it is full instead of telling: only for who paces
    /// what is sent.
    pub bypass_queue: bool,
}

impl Default for EthernetOptions {
    fn default() -> Self {
        Self { ring: RING, bypass_queue: false }
    }
}

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system keeps raw Ethernet from this user.
    #[error(
        "raw Ethernet on {0} needs the capability CAP_NET_RAW: run as root, or give it to the program \
         (setcap cap_net_raw+ep), or use IP, which needs none"
    )]
    Permission(String),
    /// There is none of this name.
    #[error("there is no network interface {0}")]
    NoInterface(String),
    /// It carries something else.
    #[error("{0} is no Ethernet interface")]
    NotEthernet(String),
    /// Something else.
    #[error("cannot use {0} for raw Ethernet: {1}")]
    System(String, #[source] io::Error),
}

/// Packets of one EtherType on one interface.
#[derive(Debug)]
pub struct Ethernet {
    pub(super) socket: Arc<EthernetSocket>,
    ring: PacketRing,
    overrun: u64,
}

impl Ethernet {
    /// Sends and receives packets of `ether_type` on the interface of this name.
    pub fn open(
        interface: &str,
        ether_type: u16,
        options: EthernetOptions,
    ) -> Result<Self, OpenError> {
        let name = || interface.to_owned();
        let failed = |error: io::Error| OpenError::System(name(), error);
        let socket = packet_socket().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::Permission(name()),
            _ => failed(error),
        })?;
        let index = rustix::net::netdevice::name_to_index(&socket, interface)
            .map_err(|_| OpenError::NoInterface(name()))?;
        let mtu = mtu(&socket, interface).map_err(failed)?;
        set_send_buffer(&socket).map_err(failed)?;
        if options.bypass_queue {
            set(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1_i32).map_err(failed)?;
        }
        // Before it is bound, so that nothing comes by another way.
        let ring = PacketRing::new(&socket, mtu, options.ring).map_err(failed)?;
        let to = address(index, ether_type, Mac([0; 6]));
        bind(&socket, &to).map_err(failed)?;
        let own = own_address(&socket).map_err(failed)?;
        if own.sll_hatype != libc::ARPHRD_ETHER {
            return Err(OpenError::NotEthernet(name()));
        }
        let [a, b, c, d, e, f, ..] = own.sll_addr;
        let (mac, refused) = (Mac([a, b, c, d, e, f]), AtomicU64::new(0));
        let socket = EthernetSocket { socket, interface: name(), to, mac, mtu, refused };
        Ok(Self { socket: Arc::new(socket), ring, overrun: 0 })
    }

    /// The name of the interface.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.socket.interface
    }

    /// The address of the interface.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.socket.mac
    }

    pub(super) fn recv_batch(
        &mut self,
        each: &mut dyn FnMut(Address, Ecn, &mut [u8]),
    ) -> io::Result<Received> {
        let count = self.receive(each);
        if count == 0 {
            self.socket.take_error()?;
        }
        Ok(Received { count, is_more: count == RECEIVED_AT_ONCE })
    }

    /// Hands over what is in the ring.
    pub(super) fn receive(&mut self, each: &mut dyn FnMut(Address, Ecn, &mut [u8])) -> usize {
        self.ring.receive(RECEIVED_AT_ONCE, &mut |from, packet| {
            each(Address::Ethernet(from), Ecn::NotEct, packet);
        })
    }

    pub(super) fn losses(&mut self) -> Losses {
        if let Ok(overrun) = overrun(&self.socket.socket) {
            self.overrun += overrun;
        }
        let refused = self.socket.refused.load(Ordering::Relaxed);
        Losses { refused, overrun: self.overrun, cut: self.ring.cut }
    }
}

/// What sends, and may be shared.
pub(super) struct EthernetSocket {
    socket: OwnedFd,
    interface: String,
    /// Where packets go, but for the station.
    to: libc::sockaddr_ll,
    mac: Mac,
    pub(super) mtu: usize,
    refused: AtomicU64,
}

impl fmt::Debug for EthernetSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, mac, mtu, .. } = self;
        write!(f, "EthernetSocket({interface} {mac} {mtu})")
    }
}

impl EthernetSocket {
    pub(super) fn send_batch(&self, batch: &mut Batch) -> io::Result<()> {
        let refuse = |batch: &mut Batch, count: usize| {
            self.refused.fetch_add(count as u64, Ordering::Relaxed);
            batch.advance(count);
        };
        while !batch.is_empty() {
            let sent = match batch.len() {
                // What a call needs is not set up for many where a single one is waited for.
                1 => self.send_some::<1>(batch),
                _ => self.send_some::<SENT_AT_ONCE>(batch),
            };
            match sent {
                // It goes somewhere where this link does not.
                Ok(0) => refuse(batch, 1),
                Ok(sent) => batch.advance(sent),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The queue of the interface is full, or the packet is too long for it.
                    Some(libc::ENOBUFS | libc::EMSGSIZE) => refuse(batch, 1),
                    // The interface is down: it may come up again, with whatever was under way lost.
                    Some(libc::ENETDOWN) => refuse(batch, batch.len()),
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Gives the kernel as many of the next packets as one call takes; how many left.
    fn send_some<const MOST: usize>(&self, batch: &Batch) -> io::Result<usize> {
        let mut addresses = [self.to; MOST];
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST];
        let mut messages = [MESSAGE; MOST];
        let slots = addresses.iter_mut().zip(&mut parts).zip(&mut messages);
        let mut count = 0;
        for (packet, ((address, part), message)) in batch.waiting().iter().zip(slots) {
            let Address::Ethernet(Mac(octets)) = packet.to else { break };
            address.sll_addr[..6].copy_from_slice(&octets);
            let bytes = &batch.bytes()[packet.range()];
            // The kernel only reads them.
            *part =
                libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            message.msg_hdr.msg_name = (&raw mut *address).cast();
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as u32;
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: the descriptor is open; the first `count` messages, at most as many as there are, point to addresses,
        // parts and bytes that outlive the call.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    pub(super) const fn mac(&self) -> Mac {
        self.mac
    }

    /// An interface that went down makes the socket readable until its error is taken; one that is gone stays so.
    fn take_error(&self) -> io::Result<()> {
        match rustix::net::sockopt::socket_error(&self.socket)? {
            Ok(()) | Err(rustix::io::Errno::NETDOWN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for EthernetSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

// SAFETY: a message without address, parts and control data is all zero bits: null pointers and no lengths.
const MESSAGE: libc::mmsghdr = unsafe { zeroed() };

/// A socket that receives nothing until it is bound to a protocol, and neither hands over nor wants a link header.
fn packet_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?)
}

fn address(index: u32, ether_type: u16, Mac(octets): Mac) -> libc::sockaddr_ll {
    let mut sll_addr = [0; 8];
    sll_addr[..6].copy_from_slice(&octets);
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ether_type.to_be(),
        sll_ifindex: index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: octets.len() as u8,
        sll_addr,
    }
}

fn bind(socket: &OwnedFd, address: &libc::sockaddr_ll) -> io::Result<()> {
    let len = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: the descriptor is open, and the kernel reads an address of this length.
    let status = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(address).cast(), len) };
    check(status)
}

/// The address of the interface that a socket is bound to, and what kind of interface it is.
fn own_address(socket: &OwnedFd) -> io::Result<libc::sockaddr_ll> {
    let mut own = address(0, 0, Mac([0; 6]));
    let mut len = size_of::<libc::sockaddr_ll>() as u32;
    let (at, room) = ((&raw mut own).cast(), &raw mut len);
    // SAFETY: the descriptor is open; the kernel writes at most `len` bytes to the address, which has as many.
    let status = unsafe { libc::getsockname(socket.as_raw_fd(), at, room) };
    check(status)?;
    Ok(own)
}

/// The longest packet that an interface carries (SIOCGIFMTU; see netdevice(7)).
fn mtu(socket: &OwnedFd, interface: &str) -> io::Result<usize> {
    let mut name = [0; libc::IFNAMSIZ];
    let bytes = interface.bytes().map(|byte| byte as libc::c_char);
    name.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_mtu: 0 };
    let mut request = libc::ifreq { ifr_name: name, ifr_ifru };
    // SAFETY: SIOCGIFMTU reads the name in a `struct ifreq` and writes the number to it; it outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
    // SAFETY: the kernel has written this member of the union; any bits are a number.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(|_| ErrorKind::InvalidData.into())
}

/// Past the limit of the system where we may, within it else.
fn set_send_buffer(socket: &OwnedFd) -> io::Result<()> {
    if rustix::net::sockopt::set_socket_send_buffer_size_force(socket, SEND_BUFFER as usize).is_ok()
    {
        return Ok(());
    }
    Ok(rustix::net::sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER as usize)?)
}

/// Packets that found no room since this was asked last (PACKET_STATISTICS).
fn overrun(socket: &OwnedFd) -> io::Result<u64> {
    let mut stats = MaybeUninit::<libc::tpacket_stats>::zeroed();
    let mut len = size_of::<libc::tpacket_stats>() as u32;
    // SAFETY: the descriptor is open; the kernel writes at most `len` bytes to the numbers, which have as many.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            stats.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(status)?;
    // SAFETY: they were zeroed, so that they are initialised whatever the kernel wrote.
    Ok(unsafe { stats.assume_init() }.tp_drops.into())
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
