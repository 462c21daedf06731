//! One connection, whatever protocol it carries: what has arrived and is not used yet, and writes of many slices.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::buf::Limit;
use bytes::{BufMut as _, BytesMut};
use proto::time::Time;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::{TcpStream, UnixStream};

use super::receive_buffer::{READ_PAST, ReceiveBuffer};
use super::stuck_timer::StuckTimer;
use super::tcp_tuning::receive_low_water::ReceiveLowWater;

/// How many slices one write takes: enough for 32 small answers with their data. Beyond it the system call costs less
/// than what it saves.
const SLICES: usize = 64;

/// A socket that bytes come from and go to.
pub(crate) trait Socket {
    /// Reads once what there is, as far as there is room.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        room: &mut Limit<&mut BytesMut>,
    ) -> Poll<io::Result<usize>>;

    /// Writes what the system takes at once.
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ready when the system takes more.
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Reads what there is, with one system call and not by way of the runtime, which would have to be woken for it.
    fn recv_now(&self, buffer: &mut [u8]) -> usize;

    /// Says how many bytes are missing before a reader can do anything. Called before each read that may wait.
    fn expect(&mut self, low_water: &mut ReceiveLowWater, missing: usize);
}

impl Socket for TcpStream {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        room: &mut Limit<&mut BytesMut>,
    ) -> Poll<io::Result<usize>> {
        pin!(self.read_buf(room)).poll(cx)
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_write_vectored(slices)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(cx)
    }

    fn recv_now(&self, buffer: &mut [u8]) -> usize {
        recv(self, buffer, RecvFlags::DONTWAIT).map_or(0, |(len, _)| len)
    }

    fn expect(&mut self, low_water: &mut ReceiveLowWater, missing: usize) {
        low_water.set(self, missing);
    }
}

/// Shared with those who only ask the system whether the client has hung up.
impl Socket for Arc<UnixStream> {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        room: &mut Limit<&mut BytesMut>,
    ) -> Poll<io::Result<usize>> {
        let most = room.remaining_mut();
        loop {
            ready!(self.poll_read_ready(cx))?;
            let mut read = Err(io::ErrorKind::WouldBlock.into());
            // A read that leaves room has drained the socket: the runtime is told so, which saves the read that would
            // find nothing. Whatever comes after the read is an event of its own.
            let _ = self.try_io(Interest::READABLE, || {
                read = self.try_read_buf(room);
                match read {
                    Ok(len) if len == 0 || len == most => Ok(()),
                    _ => Err(io::ErrorKind::WouldBlock.into()),
                }
            });
            match read {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_write_vectored(slices)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        UnixStream::poll_write_ready(self, cx)
    }

    fn recv_now(&self, buffer: &mut [u8]) -> usize {
        recv(&**self, buffer, RecvFlags::DONTWAIT).map_or(0, |(len, _)| len)
    }

    /// A local socket has its data at once, and wakes its reader for any (unix(7)).
    fn expect(&mut self, _low_water: &mut ReceiveLowWater, _missing: usize) {}
}

/// What a connection sends.
pub(crate) trait Output {
    fn is_empty(&mut self) -> bool;

    /// Fills `slices` from the front; returns how many it filled. It is none where what comes next is not ready.
    fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize;

    /// The first `sent` bytes were sent.
    fn advance(&mut self, sent: usize);

    /// Ready when more has become ready to be sent; pending while all of it is.
    fn poll_more(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// Why writing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// All was sent.
    All,
    /// The system takes nothing more for now.
    Blocked,
    /// What comes next is not ready.
    NotReady,
}

/// A socket with its buffers.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    socket: S,
    received: ReceiveBuffer,
    low_water: ReceiveLowWater,
    /// Where a busy poll puts what it finds, and how much it found that was not told yet.
    polled: Box<[u8]>,
    found: usize,
    blocked: bool,
    stuck: StuckTimer,
}

impl<S: Socket> Connection<S> {
    pub(crate) fn new(socket: S) -> Self {
        Self {
            socket,
            received: ReceiveBuffer::default(),
            low_water: ReceiveLowWater::new(),
            polled: Box::default(),
            found: 0,
            blocked: false,
            stuck: StuckTimer::default(),
        }
    }

    pub(crate) const fn socket(&self) -> &S {
        &self.socket
    }

    /// Whether a part of a message has arrived, and not all of it.
    pub(crate) fn is_amid_a_message(&self) -> bool {
        !self.received.is_empty()
    }

    /// Has `decode` take messages off what has arrived.
    pub(crate) fn decode<T>(&mut self, decode: impl FnOnce(&mut BytesMut) -> T) -> T {
        self.received.decode(decode)
    }

    /// Whether something has arrived, asked of the system and not of the runtime: waking that costs a tenth of a small
    /// request. If so, the next read is ready. An error or the end is left to that, and so is the rest of a message that
    /// has begun, which is not to be copied on its way to its buffer.
    pub(crate) fn busy_poll(&mut self) -> bool {
        if !self.received.is_empty() {
            return false;
        }
        if self.polled.is_empty() {
            self.polled = vec![0; READ_PAST].into();
        }
        self.found = self.socket.recv_now(&mut self.polled);
        self.received.extend(self.polled.get(..self.found).unwrap_or_default());
        self.found > 0
    }

    /// Reads what there is; `missing` bytes at least are missing of the next message. The time is that of the read.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        missing: usize,
        now: impl FnOnce() -> Time,
    ) -> Poll<io::Result<(usize, Time)>> {
        let found = std::mem::take(&mut self.found);
        if found > 0 {
            return Poll::Ready(Ok((found, now())));
        }
        let mut room = self.received.room(missing);
        self.socket.expect(&mut self.low_water, missing);
        let read = ready!(self.socket.poll_read(cx, &mut room))?;
        let now = now();
        self.low_water.received(read, now);
        Poll::Ready(Ok((read, now)))
    }

    /// Writes as much of `output` as the system takes.
    fn try_write(&mut self, output: &mut impl Output) -> io::Result<Written> {
        self.blocked = false;
        while !output.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = output.slices(&mut slices);
            if filled == 0 {
                return Ok(Written::NotReady);
            }
            match self.socket.try_write(slices.get(..filled).unwrap_or_default()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => output.advance(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(Written::Blocked);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Written::All)
    }

    /// Writes as much of `output` as the system takes, without a wait. What is left waits in [`poll_more`](Self::poll_more).
    pub(crate) fn write(&mut self, output: &mut impl Output) -> io::Result<()> {
        self.try_write(output).map(drop)
    }

    /// Ready when a write that left something may go on; never after one that left nothing.
    pub(crate) fn poll_more(&mut self, cx: &mut Context<'_>, output: &mut impl Output) -> Poll<()> {
        // An error is met by the next write.
        if self.blocked && self.socket.poll_write_ready(cx).is_ready() {
            return Poll::Ready(());
        }
        output.poll_more(cx)
    }

    /// Writes as much of `output` as the system takes; ready when that was all.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        output: &mut impl Output,
    ) -> Poll<io::Result<()>> {
        while self.try_write(output)? != Written::All {
            ready!(self.poll_more(cx, output));
        }
        Poll::Ready(Ok(()))
    }

    /// After a write: whether any of the output was taken, or none is left.
    pub(crate) fn note_progress(&mut self, progress: bool, now: impl FnOnce() -> Time) {
        self.stuck.note(progress, now);
    }

    /// Whether the peer has taken nothing of what is sent to it for longer than `limit`.
    pub(crate) fn is_stuck(&self, now: Time, limit: Duration) -> bool {
        self.stuck.is_over(now, limit)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use bytes::{Buf as _, Bytes};
    use futures_util::task::noop_waker_ref;
    use tokio::net::TcpListener;

    use super::*;

    impl Output for Bytes {
        fn is_empty(&mut self) -> bool {
            Self::is_empty(self)
        }

        fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
            slices[0] = IoSlice::new(self);
            1
        }

        fn advance(&mut self, sent: usize) {
            bytes::Buf::advance(self, sent);
        }
    }

    async fn tcp() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    fn local() -> (Arc<UnixStream>, Arc<UnixStream>) {
        let (near, far) = UnixStream::pair().unwrap();
        (Arc::new(near), Arc::new(far))
    }

    async fn read(connection: &mut Connection<impl Socket>) -> usize {
        poll_fn(|cx| connection.poll_read(cx, 1, || Time::ZERO)).await.unwrap().0
    }

    /// More than any socket buffer takes at once.
    async fn send_and_receive<S: Socket>((near, far): (S, S)) {
        const LEN: usize = 20_000_000;
        let sent: Bytes = (0..LEN).map(|at| (at / 1000) as u8).collect();
        let (mut near, mut far) = (Connection::new(near), Connection::new(far));
        let mut output = sent.clone();
        let write = poll_fn(|cx| near.poll_write(cx, &mut output));
        let received = async {
            let mut received = BytesMut::new();
            while received.len() < LEN {
                assert!(read(&mut far).await > 0);
                far.decode(|bytes| received.extend_from_slice(&bytes.split()));
            }
            received
        };
        let (written, received) = tokio::join!(write, received);
        written.unwrap();
        assert!(received == sent);
        // Nothing is left over, and the next bytes wake whoever waits for them.
        for byte in 0..100 {
            let (next, ()) = tokio::join!(read(&mut far), async {
                tokio::task::yield_now().await;
                let mut output = Bytes::from(vec![byte]);
                poll_fn(|cx| near.poll_write(cx, &mut output)).await.unwrap();
            });
            assert_eq!(next, 1);
            assert_eq!(far.decode(|bytes| bytes.get_u8()), byte);
        }
        drop(near);
        assert_eq!(read(&mut far).await, 0);
    }

    #[tokio::test]
    async fn data_sent_by_tcp_are_received() {
        send_and_receive(tcp().await).await;
    }

    #[tokio::test]
    async fn data_sent_by_a_local_socket_are_received() {
        send_and_receive(local()).await;
    }

    #[tokio::test]
    async fn busy_poll_finds_what_has_arrived() {
        let (near, far) = tcp().await;
        let (mut near, mut far) = (Connection::new(near), Connection::new(far));
        assert!(!far.busy_poll());
        poll_fn(|cx| near.poll_write(cx, &mut Bytes::from_static(b"seven"))).await.unwrap();
        while !far.busy_poll() {
            tokio::task::yield_now().await;
        }
        assert_eq!(read(&mut far).await, 5);
        assert!(!far.busy_poll(), "not before it is used");
        assert_eq!(far.decode(|bytes| bytes.split()), &b"seven"[..]);
    }

    #[tokio::test]
    async fn write_that_was_blocked_goes_on_when_the_peer_reads() {
        let (near, far) = local();
        let (mut near, mut far) = (Connection::new(near), Connection::new(far));
        let cx = &mut Context::from_waker(noop_waker_ref());
        let mut output = Bytes::from(vec![7; 10_000_000]);
        assert!(near.poll_more(cx, &mut output).is_pending());
        let before = output.len();
        while output.len() == before {
            tokio::task::yield_now().await;
            near.write(&mut output).unwrap();
        }
        assert!(!output.is_empty());
        assert!(near.poll_more(cx, &mut output).is_pending());
        let drain = async {
            while read(&mut far).await > 0 {
                far.decode(BytesMut::clear);
            }
        };
        let write = async {
            poll_fn(|cx| near.poll_write(cx, &mut output)).await.unwrap();
            assert!(near.poll_more(cx, &mut output).is_pending(), "nothing is left");
            drop(near);
        };
        tokio::join!(drain, write);
    }
}
