//! The driver of one connection: a task that owns all its state.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use proto::nbd::{Command, Errno, ErrorReply, Event, Export, Machine, Reply, Request, Violation};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use volume::Volume;

use super::mapping::{self, durability, space, span};
use crate::stop::Stop;

/// The room a new buffer has: for many small requests, or the head of a large one.
const READ_ROOM: usize = 64 << 10;

/// The least room a read is given. What is left of a buffer is used up to here: the data of a write keep all of
/// the buffer they came in.
const READ_MIN: usize = 4 << 10;

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
}

/// How a connection is told to end.
pub(super) struct Shutdown {
    /// From then on what is asked is refused.
    pub(super) stop: Stop,
    /// Dropped once that is so and nothing runs any more.
    pub(super) busy: Option<mpsc::Sender<()>>,
    /// Then the client is hung up on.
    pub(super) end: Stop,
}

/// Serves one client until it leaves or is to be hung up on; what runs by then is finished and answered. Even if the
/// connection breaks this returns only when nothing that it began can change the volume any more: a client that
/// connects again repeats what was not answered, and goes on from there.
pub(super) async fn serve(
    stream: Arc<UnixStream>,
    volume: Arc<dyn Volume>,
    export: Export,
    mut shutdown: Shutdown,
) -> Result<(), Broken> {
    let mut connection = Connection::new(stream, export);
    let mut in_flight = FuturesUnordered::new();
    let begin = |request| perform(Arc::clone(&volume), request);
    let served = connection.converse(&mut in_flight, begin, &mut shutdown).await;
    while in_flight.next().await.is_some() {}
    served
}

struct Connection {
    /// Only here, but for those who look whether the client has hung up.
    stream: Arc<UnixStream>,
    machine: Machine,
    input: BytesMut,
    /// How many bytes the input must hold before the machine can go on.
    need: usize,
    /// Bytes of data that requests in flight hold.
    held: usize,
    /// Requests are refused.
    stopped: bool,
    /// No more requests are taken.
    closing: bool,
}

impl Connection {
    fn new(stream: Arc<UnixStream>, export: Export) -> Self {
        let machine = Machine::new(export);
        Self {
            stream,
            machine,
            input: BytesMut::new(),
            need: 1,
            held: 0,
            stopped: false,
            closing: false,
        }
    }

    async fn converse<F: Future<Output = Done>>(
        &mut self,
        in_flight: &mut FuturesUnordered<F>,
        begin: impl Fn(Request) -> F,
        shutdown: &mut Shutdown,
    ) -> Result<(), Broken> {
        let Shutdown { stop, busy, end } = shutdown;
        // Made once: each request would pay for new ones.
        let (mut stopped, mut ended) = (pin!(stop.called()), pin!(end.called()));
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
            if self.closing && in_flight.is_empty() {
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
                () = &mut ended, if !self.closing => self.closing = true,
            }
        }
    }

    fn has_room(&self) -> bool {
        self.held + self.machine.out.len() < BYTES_MAX
    }

    fn next_request(&mut self) -> Result<Option<Request>, Violation> {
        if self.closing || self.input.len() < self.need {
            return Ok(None);
        }
        match self.machine.next(&mut self.input)? {
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
        let reads = !self.closing && admits && self.has_room();
        let writes = !self.machine.out.is_empty();
        if reads {
            self.make_room();
        }
        let Self { stream, input, .. } = self;
        tokio::select! {
            read = read(stream, input), if reads => {
                // The client left without saying so; what it asked for is still done.
                self.closing = read? == 0;
                Ok(())
            }
            ready = poll_fn(|cx| stream.poll_write_ready(cx)), if writes => ready,
            else => std::future::pending().await,
        }
    }

    fn make_room(&mut self) {
        let missing = self.need.saturating_sub(self.input.len());
        if self.input.capacity() - self.input.len() < missing.max(READ_MIN) {
            self.input.reserve(missing.max(READ_ROOM));
        }
    }

    /// Sends as much as the socket takes.
    fn send(&mut self) -> io::Result<()> {
        while !self.machine.out.is_empty() {
            match self.stream.try_write_vectored(&self.machine.out.slices()) {
                Ok(sent) => self.machine.out.advance(sent),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => break,
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Sends the last replies.
    async fn drain(&mut self) -> Result<(), Broken> {
        let all_sent = async {
            while !self.machine.out.is_empty() {
                self.stream.writable().await?;
                self.send()?;
            }
            Ok(())
        };
        tokio::time::timeout(DRAIN_MAX, all_sent).await.map_err(|_| Broken::Stuck)?
    }
}

/// Reads what the socket has, once it has something.
async fn read(stream: &UnixStream, input: &mut BytesMut) -> io::Result<usize> {
    loop {
        poll_fn(|cx| stream.poll_read_ready(cx)).await?;
        match stream.try_read_buf(input) {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
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
