//! One connection as the driver sees it: frames come out of it, the outbox goes into it.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{BufMut as _, BytesMut};
use proto::iscsi::pdu::{Decoder, Frame, FrameError, Outbox};
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};
use tokio::net::TcpStream;

use crate::crew::Crew;
use crate::net::tcp_tuning::receive_low_water::ReceiveLowWater;

/// How much is read at once while PDUs are small: many of them with one system call.
const READ_MANY: usize = 128 << 10;

/// How much is read at once while PDUs are large. The rest of a large PDU is read into a buffer of its
/// own size, and what was read before that is copied into it: little, with this.
const READ_FEW: usize = 8 << 10;

/// From here on a PDU is large.
const LARGE: usize = 64 << 10;

/// How many slices one write takes: enough for 32 small answers with their data.
const SLICES: usize = 64;

/// Why a connection ended from below.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("the connection was closed")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("it did not finish in time")]
    Late,
}

pub(super) struct Wire {
    stream: TcpStream,
    buffer: BytesMut,
    pub(super) decoder: Decoder,
    crew: Crew,
    low_water: ReceiveLowWater,
    /// The last PDU was a large one: the next one probably is.
    large: bool,
    /// Where a look puts what it finds, and whether the last one found something.
    looked: Box<[u8]>,
    found: bool,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: BytesMut::new(),
            decoder: Decoder::new(),
            crew: Crew::new(),
            low_water: ReceiveLowWater::new(),
            large: false,
            looked: Box::default(),
            found: false,
        }
    }

    /// For whoever looks at what it loses.
    pub(super) const fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// A frame that has come already.
    pub(super) fn decode(&mut self) -> Result<Option<Frame>, FrameError> {
        let frame = self.decoder.decode(&mut self.buffer);
        if self.large && self.buffer.is_empty() {
            // Who gets the data has the buffer to himself, and may keep it.
            self.buffer = BytesMut::new();
        }
        frame
    }

    /// Whether a part of a PDU has come, and not all of it.
    pub(super) fn is_amid_a_pdu(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Whether something has come, asked of the system and not of the runtime, which would have to be woken for
    /// it: that costs a tenth of a small request. The next read is ready if so. An error or the end is left to that,
    /// and so is the rest of a PDU that has begun, which is not to be copied on its way to a buffer of its own.
    pub(super) fn look(&mut self) -> bool {
        if !self.buffer.is_empty() {
            return false;
        }
        if self.looked.is_empty() {
            self.looked = vec![0; READ_FEW].into();
        }
        let came =
            recv(&self.stream, &mut *self.looked, RecvFlags::DONTWAIT).map_or(0, |(len, _)| len);
        self.buffer.extend_from_slice(self.looked.get(..came).unwrap_or_default());
        self.found = came > 0;
        self.found
    }

    /// Reads what there is.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        if std::mem::take(&mut self.found) {
            return Poll::Ready(Ok(()));
        }
        let limit = self.make_room();
        self.low_water.set(&self.stream, self.decoder.wanted());
        let mut limited = (&mut self.buffer).limit(limit);
        let read = ready!(pin!(self.stream.read_buf(&mut limited)).poll(cx))?;
        self.low_water.received(read, Instant::now());
        Poll::Ready(if read == 0 { Err(WireError::Closed) } else { Ok(()) })
    }

    /// Makes room for the next read, and says how much of it to use.
    fn make_room(&mut self) -> usize {
        let wanted = self.decoder.wanted();
        if wanted >= LARGE || (self.large && !self.buffer.is_empty()) {
            // Exactly to the end of the PDU, so that the next one starts a buffer.
            self.large = true;
            self.move_to_own_buffer(wanted);
            return wanted;
        }
        if self.buffer.is_empty() && self.large {
            self.large = false;
            self.buffer.reserve(READ_FEW);
            return READ_FEW;
        }
        let free = self.buffer.capacity() - self.buffer.len();
        if free < wanted.max(READ_MANY / 8) {
            self.buffer.reserve(wanted.max(READ_MANY));
        }
        self.buffer.capacity() - self.buffer.len()
    }

    /// Moves what there is of a large PDU to a buffer that has room for the rest and for nothing else: one of
    /// the same size as the last PDU had, so that memory just freed fits.
    fn move_to_own_buffer(&mut self, wanted: usize) {
        if self.buffer.capacity() - self.buffer.len() < wanted {
            let mut own = BytesMut::with_capacity(self.buffer.len() + wanted);
            own.extend_from_slice(&self.buffer);
            self.buffer = own;
        }
    }

    /// Writes as much of `outbox` as the connection takes; ready when it is empty.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        outbox: &mut Outbox,
    ) -> Poll<io::Result<()>> {
        while !outbox.is_empty() {
            self.crew.help(outbox);
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = outbox.slices(&mut slices);
            if filled == 0 {
                ready!(self.crew.poll_returned(cx, outbox));
                continue;
            }
            let slices = slices.get(..filled).unwrap_or_default();
            let stream = Pin::new(&mut self.stream);
            match ready!(stream.poll_write_vectored(cx, slices))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => outbox.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The next frame.
    pub(super) async fn frame(&mut self) -> Result<Frame, WireError> {
        loop {
            if let Some(frame) = self.decode()? {
                return Ok(frame);
            }
            std::future::poll_fn(|cx| self.poll_read(cx)).await?;
        }
    }

    /// Writes all of `outbox`.
    pub(super) async fn flush(&mut self, outbox: &mut Outbox) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_write(cx, outbox)).await
    }

    pub(super) fn peer_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.stream.peer_addr()
    }

    pub(super) fn local_addr(&self) -> io::Result<std::net::SocketAddr> {
        self.stream.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_large_pdu_stays_where_it_is_until_its_end() {
        const DATA: usize = 256 << 10;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut wire = Wire::new(listener.accept().await.unwrap().0);
        wire.decoder.set_data_max(DATA);
        // A Data-Out of 256 KiB.
        let mut pdu = vec![0; 48 + DATA];
        (pdu[0], pdu[1], pdu[5]) = (0x05, 0x80, 0x04);
        let (most, rest) = pdu.split_at(pdu.len() - 4096);
        let read = async |wire: &mut Wire| {
            std::future::poll_fn(|cx| wire.poll_read(cx)).await.unwrap();
            wire.decode().unwrap()
        };
        let (sent, ()) = tokio::join!(peer.write_all(most), async {
            while wire.buffer.len() < most.len() {
                assert!(read(&mut wire).await.is_none());
            }
        });
        sent.unwrap();
        let place = wire.buffer.as_ptr();
        peer.write_all(rest).await.unwrap();
        let frame = loop {
            if let Some(frame) = read(&mut wire).await {
                break frame;
            }
        };
        let Frame::Pdu(pdu) = frame else { panic!("{frame:?}") };
        assert_eq!(pdu.data.as_ptr(), place.wrapping_add(48));
        assert!(pdu.data.is_unique(), "the connection has let go of it");
    }
}
