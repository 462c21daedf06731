//! The connection to the kernel: a descriptor of /dev/fuse that was given to mount(2).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, OwnedFd};

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
    /// Readable, or closed, once no more is to be read.
    stopped: OwnedFd,
    buffer: Vec<u8>,
}

/// What ends the reading: when it is dropped.
#[derive(Debug)]
pub(super) struct ReadingStopper(#[expect(dead_code, reason = "held for its drop")] OwnedFd);

/// Why nothing more is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The file was unmounted.
    Unmounted,
    /// It was to be stopped.
    Stopped,
}

/// Both ends of what stops the reading.
pub(super) fn stopper() -> io::Result<(ReadingStopper, OwnedFd)> {
    let (stopped, stopper) = io::pipe()?;
    Ok((ReadingStopper(stopper.into()), stopped.into()))
}

impl Connection {
    /// Over a descriptor of /dev/fuse, which does not block from now on, here and where else it is held.
    pub(super) fn new(device: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
        Ok(Self { device })
    }

    /// What reads its requests until `stopped` can be read.
    pub(super) fn requests(&self, stopped: OwnedFd) -> Requests<'_> {
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
            if self.is_stopped(false)? {
                return Ok(Err(End::Stopped));
            }
            match read(&self.connection.device, &mut self.buffer) {
                Ok(len) => break len,
                Err(Errno::AGAIN) => drop(self.is_stopped(true)?),
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

    /// Whether reading was stopped; if it `waits`, until then or until there is something to read.
    fn is_stopped(&self, waits: bool) -> io::Result<bool> {
        let device = if waits { PollFlags::IN } else { PollFlags::empty() };
        let mut watched = [
            PollFd::new(&self.stopped, PollFlags::IN),
            PollFd::from_borrowed_fd(self.connection.device.as_fd(), device),
        ];
        let watched = if waits { &mut watched[..] } else { &mut watched[..1] };
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(watched, (!waits).then_some(&now)) {
            Ok(_) => Ok(watched.first().is_some_and(|stopped| !stopped.revents().is_empty())),
            Err(Errno::INTR) => Ok(false),
            Err(why) => Err(why.into()),
        }
    }
}
