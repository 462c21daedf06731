//! The PDUs of one connection: frames come out of it, the outbox goes into it.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use proto::iscsi::pdu::{Decoder, Frame, FrameError, Outbox};
use proto::time::Time;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::cipher_pool::OutboxOffload;
use crate::net::connection::Connection;
use crate::net::pdu_output::PduOutput;

/// Why a connection ended from below.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("the connection was closed")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("it did not finish in time")]
    Late,
}

pub(super) struct PduStream {
    connection: Connection<TcpStream>,
    pub(super) decoder: Decoder,
    offload: OutboxOffload,
}

impl PduStream {
    pub(super) fn new(socket: TcpStream) -> Self {
        let connection = Connection::new(socket);
        Self { connection, decoder: Decoder::new(), offload: OutboxOffload::new() }
    }

    pub(super) const fn socket(&self) -> &TcpStream {
        self.connection.socket()
    }

    pub(super) const fn connection(&mut self) -> &mut Connection<TcpStream> {
        &mut self.connection
    }

    /// A frame that has arrived.
    pub(super) fn decode(&mut self) -> Result<Option<Frame>, FrameError> {
        let Self { connection, decoder, .. } = self;
        connection.decode(|bytes| decoder.decode(bytes))
    }

    /// Reads what there is; ready with the time of the read.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        now: impl FnOnce() -> Time,
    ) -> Poll<Result<Time, StreamError>> {
        let missing = self.decoder.wanted();
        let (read, now) = ready!(self.connection.poll_read(cx, missing, now))?;
        Poll::Ready(if read == 0 { Err(StreamError::Closed) } else { Ok(now) })
    }

    /// Writes as much of `outbox` as the connection takes; ready when it is empty.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
    ) -> Poll<io::Result<()>> {
        self.connection.poll_write(cx, &mut PduOutput { outbox, offload: &mut self.offload })
    }

    /// The next frame of a login.
    pub(super) async fn frame(&mut self) -> Result<Frame, StreamError> {
        let origin = Instant::now();
        loop {
            if let Some(frame) = self.decode()? {
                return Ok(frame);
            }
            let now = || Time::from_origin(origin.elapsed());
            std::future::poll_fn(|cx| self.poll_read(cx, now)).await?;
        }
    }

    /// Writes all of `outbox`.
    pub(super) async fn flush(&mut self, outbox: &mut Outbox) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_write(cx, outbox)).await
    }

    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket().local_addr()
    }
}
