//! The server of a ublk device. Requests that it has not answered when it ends the kernel asks of the next one
//! (UBLK_F_USER_RECOVERY_REISSUE): so a process that hands its device over begins nothing more, and just ends.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use host::ublk::{Answers, Control, Handler, Operation, Parameters, Queue, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use volume::{Durability, Kind, Shape, Space, Span, Volume};

use super::device::end_unused;
use super::kernel::{self, Error};
use crate::block_devices::mounts_of;
use crate::front::block_size::{FRONT, block_size};
use crate::front::recorded::Recorded;
use crate::front::{Clients, HandOverError, Record};
use crate::printable::Shown as _;
use crate::stop::Stop;
use crate::ublk_note::Note;

/// How often it is looked whether the kernel has noticed the end of the process before, and how long is waited in between.
const LOOKS: usize = 1500;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a mount that is gone from here may be there elsewhere before it is looked again, in seconds.
const MOUNT_LOOK_EVERY: i64 = 5;

/// A volume that is a block device.
pub struct Server {
    path: PathBuf,
    number: u32,
    work: Arc<Work>,
    queue: Mutex<Option<Queue>>,
    /// The first change that had failed by the end.
    failure: OnceLock<String>,
}

/// What comes of requests.
struct Work {
    device: Arc<dyn Device>,
    mode: Mutex<Mode>,
    /// How many run.
    running: watch::Sender<usize>,
    clients: Clients,
    runtime: Handle,
}

/// Where the data of requests are, and their answers go.
trait Device: Send + Sync {
    fn data(&self, request: &Request) -> io::Result<Vec<u8>>;
    fn fill(&self, request: &Request, data: &[u8]) -> io::Result<()>;
    fn answer(&self, tag: u16, result: i32);
}

/// What is done with a request.
enum Mode {
    Serving(Arc<Recorded>),
    /// It waits.
    Paused(Arc<Recorded>, Vec<Request>),
    /// It fails.
    Closed,
}

/// A request that is answered once; with EIO if whoever works on it gives up.
struct Pending {
    work: Arc<Work>,
    tag: u16,
    result: i32,
}

/// Hears the kernel's requests.
struct Taking(Arc<Work>);

impl Server {
    /// Makes a device of `volume`, which is known by the file at `path`.
    pub async fn connect(
        path: &Path,
        volume: Arc<dyn Volume>,
        record: Record,
    ) -> Result<Self, Error> {
        let shape = volume.shape().clone();
        let front = volume.read(Span::new(0, shape.size.min(FRONT))).await?;
        let parameters = parameters(&shape, &front);
        let volume = Arc::new(Recorded::new(volume, record));
        let (path, runtime) = (path.to_owned(), Handle::current());
        let made = spawn_blocking(move || {
            let mut control = kernel::open()?;
            let number = control.add(parameters)?;
            let made = Self::open(&path, number, volume, runtime);
            let started = made.and_then(|server| server.start(&mut control));
            if started.is_err() {
                let _ = control.delete(number);
            }
            started
        });
        made.await.map_err(io::Error::other)?
    }

    /// Goes on with a device that another process has served: what that had not answered the kernel asks again.
    pub async fn resume(
        path: &Path,
        volume: Arc<dyn Volume>,
        record: Record,
    ) -> Result<Self, Error> {
        let volume = Arc::new(Recorded::new(volume, record));
        let (path, runtime) = (path.to_owned(), Handle::current());
        let resumed = spawn_blocking(move || {
            let note = Note::of(&path).ok_or_else(|| Error::NoDevice(path.clone()))?;
            let mut control = kernel::open()?;
            begin_recovery(&mut control, note.number)?;
            let server = Self::open(&path, note.number, volume, runtime)?;
            control.end_recovery(note.number)?;
            server.follow_mount();
            Ok(server)
        });
        resumed.await.map_err(io::Error::other)?
    }

    fn open(
        path: &Path,
        number: u32,
        volume: Arc<Recorded>,
        runtime: Handle,
    ) -> Result<Self, Error> {
        let mut made = None;
        let queue = Queue::open(number, |answers| {
            let work = Arc::new(Work::new(answers, volume, runtime));
            made = Some(Arc::clone(&work));
            Taking(work)
        })?;
        let work = made.ok_or_else(|| io::Error::other("the queue has no handler"))?;
        let queue = Mutex::new(Some(queue));
        Ok(Self { path: path.to_owned(), number, work, queue, failure: OnceLock::new() })
    }

    /// Has the device appear, and notes which it is.
    fn start(self, control: &mut Control) -> Result<Self, Error> {
        let begun = control.start(self.number).and_then(|()| {
            fs::write(&self.path, "")?;
            Note::new(self.number)?.write(&self.path)
        });
        if let Err(why) = begun {
            let _ = control.stop(self.number);
            self.close_queue();
            return Err(why.into());
        }
        self.follow_mount();
        Ok(self)
    }

    /// The file by which the device is known.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One, as long as there is the device.
    #[must_use]
    pub fn clients(&self) -> Clients {
        self.work.clients.clone()
    }

    /// The first change that failed, if one did; known once it is closed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    /// Serves until `stop` is called; then it closes. That the device has ended is seen by its clients.
    pub async fn run(&self, mut stop: Stop) {
        stop.called().await;
        self.close().await;
    }

    /// Begins no more requests, finishes those that run, and makes everything stable: from then on another process can go on
    /// if this one ends. If that fails it serves as before.
    pub async fn hand_over(&self) -> Result<(), HandOverError> {
        let Some(volume) = self.work.pause().await else { return Ok(()) };
        let flushed = volume.flush().await;
        if flushed.is_err() {
            self.work.serve_on();
        }
        Ok(flushed?)
    }

    /// Serves as before, after it was to be handed over.
    pub fn serve_on(&self) {
        self.work.serve_on();
    }

    /// Finishes what was asked for, refuses what is asked from then on, and flushes. The volume is not held any more.
    pub async fn close(&self) {
        let Some(volume) = self.work.pause().await else { return };
        self.work.refuse();
        if let Err(why) = volume.flush().await {
            tracing::error!(%why, "cannot flush before the device is ended");
        }
        if let Some(failure) = volume.failure() {
            let _ = self.failure.set(failure);
        }
    }

    /// Takes the device away. Programs that still use it get errors.
    pub async fn end(self) {
        let ended = spawn_blocking(move || {
            let stopped = kernel::open().and_then(|mut control| {
                control.stop(self.number)?;
                self.close_queue();
                Ok(control.delete(self.number)?)
            });
            if let Err(why) = stopped {
                tracing::error!(device = self.number, %why, "ublk: cannot end the device");
            }
            let removed = Note::remove(&self.path).and_then(|()| fs::remove_file(&self.path));
            if let Err(why) = removed {
                tracing::warn!(path = %self.path.shown(), %why, "cannot remove the file of the device");
            }
        });
        if let Err(why) = ended.await {
            tracing::error!(%why, "cannot end the device");
        }
    }

    fn close_queue(&self) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(queue) = queue {
            queue.close();
        }
    }

    /// Ends the device once it is mounted no more, if it is to go then: the kernel has no such wish for ublk. In a thread that
    /// ends with the server, since the end of a device waits for what it has to write.
    fn follow_mount(&self) {
        let (path, work) = (self.path.clone(), Arc::downgrade(&self.work));
        let thread = thread::Builder::new().name("ublk-mount".to_owned());
        if let Err(why) = thread.spawn(move || follow_mount(&path, &work)) {
            tracing::warn!(%why, "the device will not go with its mount");
        }
    }
}

/// Waits until the kernel has noticed the end of the process that served the device before.
fn begin_recovery(control: &mut Control, number: u32) -> Result<(), Error> {
    for _ in 0..LOOKS {
        if control.begin_recovery(number)?.is_some() {
            return Ok(());
        }
        thread::sleep(LOOK_EVERY);
    }
    Err(Error::StillServed)
}

fn follow_mount(path: &Path, work: &Weak<Work>) {
    let Ok(mounts) = File::open("/proc/self/mountinfo") else { return };
    loop {
        // It is readable with priority when mounts have changed (proc_pid_mountinfo(5)).
        let mut watched = [PollFd::new(&mounts, PollFlags::PRI)];
        let _ = poll(&mut watched, Some(&Timespec { tv_sec: MOUNT_LOOK_EVERY, tv_nsec: 0 }));
        let Some(note) = Note::of(path) else { return };
        if work.upgrade().is_none_or(|work| work.clients.count() == 0) {
            return;
        }
        if !note.goes_with_mount || !mounts_of(&note.node()).is_empty() {
            continue;
        }
        match end_unused(&note) {
            Ok(true) => return,
            Ok(false) => {}
            Err(why) => {
                tracing::warn!(%why, "ublk: cannot end a device that is not mounted any more");
            }
        }
    }
}

/// What the device is like.
fn parameters(shape: &Shape, front: &[u8]) -> Parameters {
    let block_size = block_size(front, shape.size).max(shape.block_size);
    Parameters {
        size: shape.size,
        block_size,
        physical_block_size: shape.physical_block_size.max(block_size),
        read_only: shape.read_only,
        discard: shape.discard.map(|discard| discard.granularity.max(block_size)),
        writes_zeroes: shape.fast_zeroes,
    }
}

impl Work {
    fn new(device: Arc<dyn Device>, volume: Arc<Recorded>, runtime: Handle) -> Self {
        let clients = Clients::default();
        clients.set(1);
        let mode = Mutex::new(Mode::Serving(volume));
        Self { device, mode, running: watch::Sender::new(0), clients, runtime }
    }

    fn mode(&self) -> MutexGuard<'_, Mode> {
        self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, request: Request) {
        match &mut *self.mode() {
            Mode::Serving(volume) => self.begin(request, Arc::clone(volume)),
            Mode::Paused(_, held) => held.push(request),
            Mode::Closed => self.device.answer(request.tag, number(Errno::IO)),
        }
    }

    /// Carries out a request beside the others.
    fn begin(self: &Arc<Self>, request: Request, volume: Arc<Recorded>) {
        self.running.send_modify(|running| *running += 1);
        let work = Arc::clone(self);
        let pending = Pending { work, tag: request.tag, result: number(Errno::IO) };
        self.runtime.spawn(async move {
            let done = run(&*volume, &*pending.work.device, &request).await;
            // Whoever waits for the end of the last request has the volume for himself.
            drop(volume);
            pending.end(done.unwrap_or_else(number));
        });
    }

    /// Begins nothing more, and waits for what runs; the volume, unless it is closed.
    async fn pause(&self) -> Option<Arc<Recorded>> {
        let volume = {
            let mut mode = self.mode();
            let (volume, held) = match std::mem::replace(&mut *mode, Mode::Closed) {
                Mode::Serving(volume) => (volume, Vec::new()),
                Mode::Paused(volume, held) => (volume, held),
                Mode::Closed => return None,
            };
            *mode = Mode::Paused(Arc::clone(&volume), held);
            volume
        };
        // It cannot fail: the other end is here.
        let _ = self.running.subscribe().wait_for(|running| *running == 0).await;
        Some(volume)
    }

    /// Begins what has waited, and what comes.
    fn serve_on(self: &Arc<Self>) {
        let mut mode = self.mode();
        if let Mode::Paused(volume, held) = &mut *mode {
            let (volume, held) = (Arc::clone(volume), std::mem::take(held));
            for request in held {
                self.begin(request, Arc::clone(&volume));
            }
            *mode = Mode::Serving(volume);
        }
    }

    /// Answers what has waited, and what comes, with errors.
    fn refuse(&self) {
        let before = std::mem::replace(&mut *self.mode(), Mode::Closed);
        if let Mode::Paused(_, held) = before {
            held.iter().for_each(|request| self.device.answer(request.tag, number(Errno::IO)));
        }
    }
}

impl Pending {
    fn end(mut self, result: i32) {
        self.result = result;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.work.device.answer(self.tag, self.result);
        self.work.running.send_modify(|running| *running -= 1);
    }
}

impl Handler for Taking {
    fn request(&mut self, request: Request) {
        self.0.take(request);
    }

    fn ended(&mut self, how: io::Result<()>) {
        if let Err(why) = how {
            tracing::error!(%why, "ublk: the connection to the kernel has failed: ending");
        }
        self.0.clients.set(0);
    }
}

impl Device for Answers {
    fn data(&self, request: &Request) -> io::Result<Vec<u8>> {
        self.data(request)
    }

    fn fill(&self, request: &Request, data: &[u8]) -> io::Result<()> {
        self.fill(request, data)
    }

    fn answer(&self, tag: u16, result: i32) {
        self.answer(tag, result);
    }
}

/// What a request is answered with: how many bytes were moved.
async fn run(volume: &dyn Volume, device: &dyn Device, request: &Request) -> Result<i32, Errno> {
    let span = Span::new(request.at, request.len);
    let moved = i32::try_from(request.len);
    let copied = |why: io::Error| Errno::from_io_error(&why).unwrap_or(Errno::IO);
    match request.operation {
        Operation::Read => {
            let data = volume.read(span).await.map_err(|why| errno(why.kind))?;
            device.fill(request, &data).map_err(copied)?;
            return moved.map_err(|_| Errno::INVAL);
        }
        Operation::Write { fua } => {
            let data = Bytes::from(device.data(request).map_err(copied)?);
            let written = volume.write(request.at, data, durability(fua)).await;
            written.map_err(|why| errno(why.kind))?;
            return moved.map_err(|_| Errno::INVAL);
        }
        Operation::Flush => volume.flush().await,
        Operation::Discard => volume.discard(span).await,
        Operation::WriteZeroes { fua, keeps_space } => {
            let space = if keeps_space { Space::Keep } else { Space::Release };
            volume.write_zeroes(span, durability(fua), space).await
        }
    }
    .map(|()| 0)
    .map_err(|why| errno(why.kind))
}

const fn durability(fua: bool) -> Durability {
    if fua { Durability::Durable } else { Durability::Volatile }
}

/// How failures look to the kernel's block layer, which knows few (`blk_errors`): the one table.
const fn errno(kind: Kind) -> Errno {
    match kind {
        Kind::NoSpace => Errno::NOSPC,
        Kind::Unsupported => Errno::OPNOTSUPP,
        Kind::ReadOnly
        | Kind::Range
        | Kind::Gone
        | Kind::Medium
        | Kind::Integrity
        | Kind::Busy
        | Kind::Peer => Errno::IO,
    }
}

fn number(why: Errno) -> i32 {
    why.raw_os_error().saturating_neg()
}

#[cfg(test)]
mod tests;
