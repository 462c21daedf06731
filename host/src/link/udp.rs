//! UDP, many packets for one system call: segmentation offload one way and its opposite the other, and never a fragment
//! of IP.

use std::fmt;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};

use super::socket_option::set;
use super::{Address, Batch, Ecn, Losses, Received};

/// What one system call may bring: as many bytes as 64 segments of a usual path have, or few of a longer one.
const BUFFER: usize = 1 << 16;

/// The longest piece that UDP over IPv4 can send (RFC 768: its length is 16 bits, less both headers).
pub(super) const PIECE_MAX: usize = 65_507;

/// How much the kernel is asked to keep for us in each direction: 20 ms at 10 Gbit/s would be 25 MB, but a system grants
/// no more than its `rmem_max`, usually 208 KiB.
const SOCKET_BUFFER: usize = 4 << 20;

/// A UDP socket.
#[derive(Debug)]
pub struct Udp {
    pub(super) socket: Arc<UdpSender>,
    buffers: Vec<Vec<u8>>,
}

impl Udp {
    /// A socket at this address; port 0 takes a free one.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::on(UdpSocket::bind(address)?)
    }

    /// Uses a socket that is bound already.
    pub fn on(socket: UdpSocket) -> io::Result<Self> {
        // It sets the socket to not wait, to report where packets went to, and to set Don't Fragment.
        let state = UdpSocketState::new((&socket).into())?;
        // It asks for times of arrival too, which leave no room in its buffer for the codepoints of packets that come together.
        set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &0_i32)?;
        if state.may_fragment() {
            return Err(io::Error::other("the system cannot keep IP from cutting packets"));
        }
        state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER)?;
        state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER)?;
        let (local, refused) = (socket.local_addr()?, AtomicU64::new(0));
        let buffers = vec![vec![0; BUFFER]; BATCH_SIZE];
        Ok(Self { socket: Arc::new(UdpSender { socket, state, local, refused }), buffers })
    }

    /// The address of the socket.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.socket.local
    }

    pub(super) fn recv_batch(
        &mut self,
        each: &mut dyn FnMut(Address, Ecn, &mut [u8]),
    ) -> io::Result<Received> {
        let UdpSender { socket, state, .. } = &*self.socket;
        let mut meta = [RecvMeta::default(); BATCH_SIZE];
        let mut slices: Vec<_> = self.buffers.iter_mut().map(|it| IoSliceMut::new(it)).collect();
        let nothing = Received { count: 0, is_more: false };
        let filled = match state.recv(socket.into(), &mut slices, &mut meta) {
            Ok(filled) => filled,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(nothing),
            // The answer of a host to a packet sent before (ICMP), which anybody can forge: no reason to end anything.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                return Ok(Received { is_more: true, ..nothing });
            }
            Err(error) => return Err(error),
        };
        let mut count = 0;
        for (buffer, meta) in self.buffers.iter_mut().zip(&meta[..filled]) {
            let from = Address::Ip { remote: meta.addr, local: meta.dst_ip };
            let ecn = Ecn::of(meta.ecn);
            let len = meta.len.min(buffer.len());
            for packet in buffer[..len].chunks_mut(meta.stride.max(1)) {
                each(from, ecn, packet);
                count += 1;
            }
        }
        Ok(Received { count, is_more: filled == BATCH_SIZE })
    }

    pub(super) fn losses(&self) -> Losses {
        let refused = self.socket.refused.load(Ordering::Relaxed);
        Losses { refused, ..Losses::default() }
    }
}

/// What sends, and may be shared.
pub(super) struct UdpSender {
    socket: UdpSocket,
    state: UdpSocketState,
    pub(super) local: SocketAddr,
    refused: AtomicU64,
}

impl fmt::Debug for UdpSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UdpSender").field(&self.local).finish()
    }
}

impl UdpSender {
    pub(super) fn send_batch(&self, batch: &mut Batch) -> io::Result<()> {
        while !batch.is_empty() {
            let (count, sent) = self.send_piece(batch);
            match sent {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                // Who sends packets that are too long for the interface wants to know whether they arrive: a probe.
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {}
                // Nobody listens, no way there: packets that do not arrive, as far as a link is concerned.
                Err(_) => drop(self.refused.fetch_add(count as u64, Ordering::Relaxed)),
                Ok(()) => {}
            }
            batch.advance(count);
        }
        Ok(())
    }

    /// Sends the next packets that can go in one piece; how many they are.
    fn send_piece(&self, batch: &Batch) -> (usize, io::Result<()>) {
        let count = batch.segments(self.state.max_gso_segments(), PIECE_MAX);
        let Some([first, .., last] | [first @ last]) = batch.waiting().get(..count) else {
            return (count, Ok(()));
        };
        let Address::Ip { remote, local } = first.to else {
            return (count, Err(ErrorKind::AddrNotAvailable.into()));
        };
        let transmit = Transmit {
            destination: remote,
            ecn: first.ecn.codepoint(),
            contents: &batch.bytes()[first.range().start..last.range().end],
            segment_size: (count > 1).then_some(first.len()),
            src_ip: local,
        };
        (count, self.state.try_send((&self.socket).into(), &transmit))
    }
}

impl AsFd for UdpSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
