//! The driver of one connection: a task that owns all its state.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::StreamExt;
use proto::nbd::{self, Command, Errno, ErrorReply, Event, Machine, Reply, Request, Violation};
use proto::time::Time;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use volume::{FutureSet, Volume};

use super::connection_pause::Pause;
use super::mapping::{self, durability, space, span};
use crate::net::connection::{self, Output};
use crate::stop::Stop;
use crate::task::unless_broken;

/// Requests of one connection in flight. More than any client keeps, and what remains waits in the
/// socket.
const REQUESTS_MAX: usize = 256;

/// Data of one connection in memory: requests in flight and replies not yet sent. Above it, new
/// requests wait in the socket; one request may exceed it by itself.
const BYTES_MAX: usize = 64 << 20;

/// A client that has not chosen an export by then is hung up on.
const HANDSHAKE_MAX: Duration = Duration::from_secs(20);

/// How long a client may take over the last replies.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How a connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("it broke the protocol: {0}")]
    Client(#[from] Violation),
    #[error("the connection failed: {0}")]
    Socket(#[from] io::Error),
    #[error("it did not choose an export in {} s", HANDSHAKE_MAX.as_secs())]
    Silent,
    #[error("it did not take the last replies in {} s", DRAIN_MAX.as_secs())]
    Stuck,
    #[error("an internal error: the connection has broken down")]
    Internal,
}

/// How a connection is told to end.
pub(super) struct Shutdown {
    /// From then on what is asked is refused.
    pub(super) stop: Stop,
    /// Dropped once that is so and nothing runs any more.
    pub(super) busy: Option<mpsc::Sender<()>>,
    /// Then the client is hung up on.
    pub(super) end: Stop,
    /// As long as it is asked for, nothing is taken from the socket; once what runs is answered the client is hung up on.
    pub(super) pause: Pause,
}

/// Serves one client until it leaves or is to be hung up on; what runs by then is finished and answered. Even if the
/// connection breaks this returns only when nothing that it began can change the volume any more: a client that
/// connects again repeats what was not answered, and goes on from there.
pub(super) async fn serve(
    stream: Arc<UnixStream>,
    volume: Arc<dyn Volume>,
    machine: Machine,
    mut shutdown: Shutdown,
) -> Result<(), Broken> {
    let mut connection = Connection::new(stream, machine);
    let mut in_flight = FutureSet::new();
    let begin = |request| perform(Arc::clone(&volume), request);
    let served = unless_broken(connection.serve(&mut in_flight, begin, &mut shutdown)).await;
    // A request that panics is taken out by that, so that the others can be waited for.
    while unless_broken(in_flight.next()).await.is_none_or(|next| next.is_some()) {}
    served.unwrap_or(Err(Broken::Internal))
}

struct Connection {
    /// Its socket is shared with those who ask whether the client has hung up.
    inner: connection::Connection<Arc<UnixStream>>,
    machine: Machine,
    /// How many bytes must have arrived before the machine can go on, and how many have.
    need: usize,
    arrived: usize,
    /// Bytes of data that requests in flight hold.
    held: usize,
    /// Requests are refused.
    stopped: bool,
    /// No more requests are taken.
    closing: bool,
    /// None are taken, unless the pause is taken back.
    paused: bool,
}

impl Connection {
    fn new(stream: Arc<UnixStream>, machine: Machine) -> Self {
        Self {
            inner: connection::Connection::new(stream),
            machine,
            need: 1,
            arrived: 0,
            held: 0,
            stopped: false,
            closing: false,
            paused: false,
        }
    }

    async fn serve<F: Future<Output = Done>>(
        &mut self,
        in_flight: &mut FutureSet<F>,
        begin: impl Fn(Request) -> F,
        shutdown: &mut Shutdown,
    ) -> Result<(), Broken> {
        let Shutdown { stop, busy, end, pause } = shutdown;
        // Made once: each request would pay for new ones.
        let (mut stopped, mut ended) = (pin!(stop.called()), pin!(end.called()));
        let mut paused = pin!(pause.until(true));
        let mut silent = pin!(tokio::time::sleep(HANDSHAKE_MAX));
        loop {
            while in_flight.len() < REQUESTS_MAX && self.has_room() {
                let Some(request) = self.next_request()? else { break };
                match self.stopped {
                    true => self.refuse(&request),
                    false => in_flight.push(begin(request)),
                }
            }
            self.send()?;
            if self.stopped && in_flight.is_empty() {
                *busy = None;
            }
            if in_flight.is_empty() && (self.closing || self.paused && pause.begin_end()) {
                return self.drain().await;
            }
            let admits = in_flight.len() < REQUESTS_MAX;
            tokio::select! {
                Some(done) = in_flight.next() => {
                    self.reply(done);
                    // Whatever else is ready goes into the same vectored write.
                    while let Some(Some(done)) = in_flight.next().now_or_never() {
                        self.reply(done);
                    }
                }
                ready = self.ready(admits) => ready?,
                () = &mut silent, if !self.machine.is_ready() => return Err(Broken::Silent),
                () = &mut stopped, if !self.stopped => self.stopped = true,
                () = &mut paused, if !self.closing => {
                    self.paused = !self.paused;
                    paused.set(pause.until(!self.paused));
                }
                // The server calls it only after the stop.
                () = &mut ended, if self.stopped && !self.closing => self.closing = true,
            }
        }
    }

    fn has_room(&self) -> bool {
        self.held + self.machine.out.len() < BYTES_MAX
    }

    fn next_request(&mut self) -> Result<Option<Request>, Violation> {
        if self.closing || self.paused || self.arrived < self.need {
            return Ok(None);
        }
        let Self { inner, machine, arrived, .. } = self;
        let event = inner.decode(|bytes| {
            let event = machine.next(bytes);
            *arrived = bytes.len();
            event
        });
        match event? {
            Event::NeedMore(need) => self.need = need,
            Event::Closed => self.closing = true,
            Event::Request(request) => {
                self.need = 1;
                self.held += request.command.weight();
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    /// "The server is in the process of being shut down" (NBD, error values).
    fn refuse(&mut self, request: &Request) {
        self.held -= request.command.weight();
        let error = ErrorReply::new(Errno::ESHUTDOWN, "the server is ending");
        self.machine.reply(request.cookie, Err(error));
    }

    fn reply(&mut self, done: Done) {
        self.held -= done.weight;
        self.machine.reply(done.cookie, done.outcome);
    }

    /// Waits for the socket, and reads what it has. Writing is left to [`send`](Self::send).
    async fn ready(&mut self, admits: bool) -> io::Result<()> {
        let reads = !self.closing && !self.paused && admits && self.has_room();
        if let Some(read) = poll_fn(|cx| self.poll_ready(cx, reads)).await? {
            self.arrived += read;
            // The client left without saying so; what it asked for is still done.
            self.closing = read == 0;
        }
        Ok(())
    }

    /// Ready when replies may be sent again, or with the length of what was read.
    fn poll_ready(&mut self, cx: &mut Context<'_>, reads: bool) -> Poll<io::Result<Option<usize>>> {
        if self.inner.poll_more(cx, &mut self.machine.out).is_ready() {
            return Poll::Ready(Ok(None));
        }
        if !reads {
            return Poll::Pending;
        }
        let missing = self.need.saturating_sub(self.arrived);
        // A local socket has no need of the time.
        let read = self.inner.poll_read(cx, missing, || Time::ZERO);
        read.map_ok(|(read, _)| Some(read))
    }

    /// Sends as much as the socket takes.
    fn send(&mut self) -> io::Result<()> {
        self.inner.write(&mut self.machine.out)
    }

    /// Sends the last replies.
    async fn drain(&mut self) -> Result<(), Broken> {
        let all_sent = poll_fn(|cx| self.inner.poll_write(cx, &mut self.machine.out));
        tokio::time::timeout(DRAIN_MAX, all_sent)
            .await
            .map_err(|_| Broken::Stuck)?
            .map_err(Into::into)
    }
}

impl Output for nbd::Output {
    fn is_empty(&mut self) -> bool {
        Self::is_empty(self)
    }

    fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        Self::slices(self, slices)
    }

    fn advance(&mut self, sent: usize) {
        Self::advance(self, sent);
    }
}

/// A request that has run.
struct Done {
    cookie: u64,
    weight: usize,
    outcome: Result<Reply, ErrorReply>,
}

async fn perform(volume: Arc<dyn Volume>, request: Request) -> Done {
    let Request { cookie, command } = request;
    let weight = command.weight();
    let outcome = run(&*volume, command).await.map_err(|error| mapping::error_reply(&error));
    Done { cookie, weight, outcome }
}

async fn run(volume: &dyn Volume, command: Command) -> volume::Result<Reply> {
    match command {
        Command::Read(range) => {
            return Ok(Reply::Data(range.offset, volume.read(span(range)).await?));
        }
        Command::Write { offset, data, fua } => {
            volume.write(offset, data, durability(fua)).await?;
        }
        Command::WriteZeroes { range, fua, no_hole } => {
            volume.write_zeroes(span(range), durability(fua), space(no_hole)).await?;
        }
        Command::Trim { range, fua } => {
            volume.discard(span(range)).await?;
            if fua {
                volume.flush().await?;
            }
        }
        Command::Flush => volume.flush().await?,
        Command::BlockStatus { range, req_one } => {
            let extents = match volume.extents() {
                Some(map) => map.extents(span(range)).await?.iter().map(mapping::extent).collect(),
                None => Vec::new(),
            };
            return Ok(Reply::BlockStatus { range, req_one, extents });
        }
    }
    Ok(Reply::Done)
}
