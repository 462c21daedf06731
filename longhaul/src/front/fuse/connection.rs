//! The connection to the kernel: a descriptor of /dev/fuse that was given to mount(2).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proto::fuse::{BadRequest, HEADERS_MAX, Header, Notice, Reply, Request};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, retry_on_intr, writev};

/// The largest write that the kernel sends; it sends reads of the same size.
pub(super) const WRITE_MAX: u32 = 1 << 20;

/// The descriptor, for those who answer.
#[derive(Debug)]
pub(super) struct Connection {
    device: OwnedFd,
}

/// The descriptor, for the one who reads.
pub(super) struct Requests<'a> {
    connection: &'a Connection,
    stopped: Stopped,
    buffer: Vec<u8>,
}

/// What ends the reading: when it is dropped.
#[derive(Debug)]
pub(super) struct ReadingStopper {
    is_stopped: Arc<AtomicBool>,
    /// Closed after that is set.
    _pipe: OwnedFd,
}

/// Whether no more is to be read. A flag tells the reader between two requests, where a system call for each would cost as
/// much as reading it, and the end of a pipe wakes it.
pub(super) struct Stopped {
    is_stopped: Arc<AtomicBool>,
    pipe: OwnedFd,
}

/// Why nothing more is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The file was unmounted.
    Unmounted,
    /// It was to be stopped.
    Stopped,
}

/// Both ends of what stops the reading.
pub(super) fn stopper() -> io::Result<(ReadingStopper, Stopped)> {
    let (pipe, end) = io::pipe()?;
    let is_stopped = Arc::<AtomicBool>::default();
    let stopper = ReadingStopper { is_stopped: Arc::clone(&is_stopped), _pipe: end.into() };
    Ok((stopper, Stopped { is_stopped, pipe: pipe.into() }))
}

impl Drop for ReadingStopper {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
    }
}

impl Connection {
    /// Over a descriptor of /dev/fuse, which does not block from now on, here and where else it is held.
    pub(super) fn new(device: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
        Ok(Self { device })
    }

    /// What reads its requests until it is `stopped`.
    pub(super) fn requests(&self, stopped: Stopped) -> Requests<'_> {
        let buffer = vec![0; WRITE_MAX as usize + HEADERS_MAX];
        Requests { connection: self, stopped, buffer }
    }

    /// Answers a request.
    pub(super) fn answer(&self, header: &Header, reply: &Reply) {
        self.answer_bytes(header, reply.bytes());
    }

    /// Answers one with data.
    pub(super) fn answer_bytes(&self, header: &Header, bytes: &[u8]) {
        self.send(&[&Reply::head(header, bytes.len()), bytes]);
    }

    /// Answers one that failed.
    pub(super) fn fail(&self, header: &Header, why: Errno) {
        self.send(&[&Reply::failure(header, why.raw_os_error())]);
    }

    fn send(&self, parts: &[&[u8]]) {
        let parts: Vec<_> = parts.iter().copied().map(IoSlice::new).collect();
        match retry_on_intr(|| writev(&self.device, &parts)) {
            // Whoever asked does not wait any more, or has unmounted.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(why) => tracing::error!(%why, "FUSE: the kernel does not take an answer"),
        }
    }

    /// Tells the kernel something that it has not asked for.
    pub(super) fn notify(&self, notice: Notice) -> io::Result<()> {
        let bytes = notice.bytes();
        retry_on_intr(|| rustix::io::write(&self.device, &bytes)).map(drop)?;
        Ok(())
    }
}

impl Requests<'_> {
    /// Waits for the next one and reads it; its connection beside it.
    pub(super) fn next(&mut self) -> io::Result<Result<Request<'_>, End>> {
        let len = loop {
            if self.stopped.is_stopped.load(Ordering::Acquire) {
                return Ok(Err(End::Stopped));
            }
            match read(&self.connection.device, &mut self.buffer) {
                Ok(len) => break len,
                Err(Errno::AGAIN) => self.wait()?,
                // NOENT: it was withdrawn while it was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::NODEV) => return Ok(Err(End::Unmounted)),
                Err(why) => return Err(why.into()),
            }
        };
        let bytes = self.buffer.get(..len).unwrap_or_default();
        let request = Request::parse(bytes).map_err(|why: BadRequest| io::Error::other(why))?;
        Ok(Ok(request))
    }

    /// Waits until there is something to read, or the reading is stopped.
    fn wait(&self) -> io::Result<()> {
        let mut watched = [
            PollFd::new(&self.stopped.pipe, PollFlags::IN),
            PollFd::from_borrowed_fd(self.connection.device.as_fd(), PollFlags::IN),
        ];
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }
}
