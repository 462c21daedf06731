//! The file system: one regular file, which is its root.

use std::future::Future;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use proto::fuse::{
    Capabilities, FOPEN_DIRECT_IO, FOPEN_PARALLEL_DIRECT_WRITES, Header, Init, InitReply,
    Operation, Reply, Request, Statistics,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use volume::{Durability, Shape, Volume};

use super::connection::{Connection, End, Requests, WRITE_MAX};
use super::mapping::{attributes, block_size, errno, is_news};
use super::requests::{Allocation, ByteVolume};
use crate::front::{Clients, Record};
use crate::log_limiter::{LineLimiter, Permit};

/// Asynchronous requests that the kernel has under way at a time. A loop device has 128.
const BACKGROUND_MAX: u16 = 512;

/// Data of requests in memory, in units of [`UNIT`]. Above it requests wait in the kernel.
const UNITS_MAX: u32 = (64 << 20) / UNIT;
const UNIT: u32 = 4096;

/// For how many seconds the kernel need not ask again for attributes: for ever, as it is told when they change. Who lists loop
/// devices asks for those of their files, and would hang while nobody serves this one.
const ATTRIBUTES_LAST: u64 = u32::MAX as u64;

/// A change that comes when the server ends was never taken: whoever asks learns that.
const ENDED: Errno = Errno::SHUTDOWN;

/// The file, as the kernel's requests and its server share it.
pub(super) struct File {
    pub(super) connection: Connection,
    shape: Shape,
    /// None once the server ends: what is asked then is refused.
    volume: RwLock<Option<Arc<ByteVolume>>>,
    quota: Arc<Semaphore>,
    runtime: Handle,
    pub(super) clients: Clients,
    pub(super) record: Record,
    log_limiter: LineLimiter,
}

/// A request that is answered once; with EIO if whoever works on it gives up.
struct PendingRequest {
    file: Arc<File>,
    header: Header,
    is_answered: bool,
}

impl File {
    pub(super) fn new(connection: Connection, record: Record, volume: Arc<dyn Volume>) -> Self {
        let volume = Arc::new(ByteVolume::new(volume));
        let clients = Clients::default();
        clients.set(record.open_count());
        Self {
            connection,
            shape: volume.shape().clone(),
            volume: RwLock::new(Some(volume)),
            quota: Arc::new(Semaphore::new(UNITS_MAX as usize)),
            runtime: Handle::current(),
            clients,
            record,
            log_limiter: LineLimiter::default(),
        }
    }

    /// Answers the first request, by which both ends agree on what they can.
    pub(super) fn begin_session(&self, requests: &mut Requests<'_>) -> io::Result<()> {
        let request = requests.next()?;
        let Ok(Request { header, operation: Operation::Init(init) }) = request else {
            return Err(io::Error::other("the kernel did not begin with FUSE_INIT"));
        };
        match refusal(&init) {
            Some(why) => {
                self.connection.fail(&header, Errno::PROTO);
                Err(io::Error::other(why))
            }
            None => {
                let wanted = Capabilities::ASYNC_READ
                    .with(Capabilities::BIG_WRITES)
                    .with(Capabilities::ASYNC_DIO)
                    .with(Capabilities::MAX_PAGES);
                let server = InitReply {
                    capabilities: wanted,
                    background_max: BACKGROUND_MAX,
                    write_max: WRITE_MAX,
                };
                self.connection.answer(&header, &init.reply(&server));
                Ok(())
            }
        }
    }

    /// Carries out requests until there are no more, or are to be no more.
    pub(super) fn serve(self: &Arc<Self>, requests: &mut Requests<'_>) -> io::Result<End> {
        loop {
            let request = match requests.next()? {
                Ok(request) => request,
                Err(end) => return Ok(end),
            };
            let pending = PendingRequest {
                file: Arc::clone(self),
                header: request.header,
                is_answered: false,
            };
            if request.operation == Operation::Destroy {
                pending.answer(&Reply::default());
                return Ok(End::Unmounted);
            }
            self.dispatch(pending, &request.operation);
        }
    }

    /// Waits for what runs. No more may be read meanwhile, and nothing begins as long as the answer is held.
    pub(super) async fn quiesce(&self) -> OwnedSemaphorePermit {
        // Each request holds a part of it.
        let all = Arc::clone(&self.quota).acquire_many_owned(UNITS_MAX).await;
        all.expect("nobody closes the quota")
    }

    /// Makes everything stable that was acknowledged.
    pub(super) async fn flush(&self) -> volume::Result<()> {
        let volume = self.volume.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(volume) = volume else { return Ok(()) };
        let covered = self.record.flush_begins();
        volume.flush().await?;
        self.record.flushed(covered);
        Ok(())
    }

    /// Refuses what is asked from now on, and waits for what runs; the volume, unless it was closed before.
    pub(super) async fn close(&self) -> Option<Arc<ByteVolume>> {
        let volume = self.volume.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(self.quiesce().await);
        volume
    }

    fn dispatch(self: &Arc<Self>, pending: PendingRequest, operation: &Operation<'_>) {
        match *operation {
            Operation::GetAttributes => pending.answer_attributes(),
            Operation::SetAttributes(wanted) => {
                let resized = wanted.size.is_some_and(|size| size != self.shape.size);
                match resized || wanted.changes_rights {
                    // The size of a volume is its own, and so are its rights.
                    true => pending.fail(Errno::PERM),
                    false => pending.answer_attributes(),
                }
            }
            Operation::Open { flags } => self.open(pending, flags),
            Operation::Release { handle } => {
                self.clients.set(self.record.released(handle));
                pending.answer(&Reply::default());
            }
            Operation::Statistics => {
                let size = block_size(&self.shape);
                let blocks = self.shape.size / u64::from(size);
                pending.answer(&Reply::statistics(&Statistics { block_size: size, blocks }));
            }
            Operation::Read { offset, size } => self.read(pending, offset, size),
            Operation::Write { offset, data, flags } => {
                self.write(pending, offset, Bytes::copy_from_slice(data), durability(flags));
            }
            Operation::Sync => self.sync(pending),
            Operation::Allocate { offset, length, mode } => {
                match Allocation::of(mode.cast_signed()) {
                    Some(allocation) => self.allocate(pending, allocation, offset, length),
                    None => pending.fail(Errno::OPNOTSUPP),
                }
            }
            Operation::Forget => pending.ignore(),
            Operation::Init(_) => pending.fail(Errno::IO),
            // The kernel does without, and asks for most of them once only.
            Operation::Destroy | Operation::Unknown { .. } => pending.fail(Errno::NOSYS),
        }
    }

    fn open(&self, pending: PendingRequest, flags: u32) {
        let access = OFlags::from_bits_retain(flags) & OFlags::ACCMODE;
        if self.shape.read_only && access != OFlags::RDONLY {
            return pending.fail(Errno::ROFS);
        }
        // The same if it is asked for again.
        let handle = pending.header.number();
        match self.record.opened(handle) {
            Ok(count) => self.clients.set(count),
            Err(why) => return pending.fail(Errno::from_io_error(&why).unwrap_or(Errno::IO)),
        }
        // Whoever has the file open, above all a loop device, keeps a cache of its own.
        let direct = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;
        pending.answer(&Reply::opened(handle, direct));
    }

    fn read(self: &Arc<Self>, pending: PendingRequest, offset: u64, size: u32) {
        self.begin(size, pending, move |file, pending, volume| async move {
            match volume.read(offset, size.into()).await {
                Ok(data) => pending.answer_bytes(&data),
                Err(error) => pending.fail(file.answer_of(&error, false)),
            }
        });
    }

    fn write(
        self: &Arc<Self>,
        pending: PendingRequest,
        at: u64,
        data: Bytes,
        durability: Durability,
    ) {
        let len = data.len() as u32;
        let durability = self.record.durability(durability);
        self.change(len, pending, move |volume| async move {
            let written = volume.write(at, data, durability).await?;
            Ok(Reply::written(written))
        });
    }

    fn allocate(self: &Arc<Self>, pending: PendingRequest, how: Allocation, at: u64, length: u64) {
        let durability = self.record.durability(Durability::Volatile);
        self.change(0, pending, move |volume| async move {
            volume.allocate(how, at, length, durability).await.map(|()| Reply::default())
        });
    }

    fn sync(self: &Arc<Self>, pending: PendingRequest) {
        self.begin(0, pending, move |file, pending, volume| async move {
            let covered = file.record.flush_begins();
            match volume.flush().await {
                Ok(()) => {
                    file.record.flushed(covered);
                    pending.answer(&Reply::default());
                }
                Err(error) => pending.fail(file.answer_of(&error, true)),
            }
        });
    }

    /// Carries out a change of so many bytes, of which the record knows before anybody can rely on it.
    fn change<F: Future<Output = volume::Result<Reply>> + Send + 'static>(
        self: &Arc<Self>,
        len: u32,
        pending: PendingRequest,
        run: impl FnOnce(Arc<ByteVolume>) -> F + Send + 'static,
    ) {
        if let Err(why) = self.record.change_begins() {
            tracing::error!(%why, "FUSE: cannot note that a change begins");
            return pending.fail(Errno::IO);
        }
        let running = RunningChange(Arc::clone(self));
        self.begin(len, pending, move |file, pending, volume| async move {
            let changed = run(volume).await;
            drop(running);
            match changed {
                Ok(reply) => pending.answer(&reply),
                Err(error) => pending.fail(file.answer_of(&error, true)),
            }
        });
    }

    /// Carries out a request of so many bytes beside the others.
    fn begin<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        len: u32,
        pending: PendingRequest,
        run: impl FnOnce(Arc<Self>, PendingRequest, Arc<ByteVolume>) -> F,
    ) {
        let permit = self.permit(len);
        let volume = self.volume.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(volume) = volume else { return pending.fail(ENDED) };
        let work = run(Arc::clone(self), pending, volume);
        self.runtime.spawn(async move {
            work.await;
            drop(permit);
        });
    }

    /// Room for a request. The thread that reads requests waits for it, and with it the kernel.
    fn permit(&self, len: u32) -> OwnedSemaphorePermit {
        let units = len.div_ceil(UNIT).clamp(1, UNITS_MAX);
        let quota = Arc::clone(&self.quota);
        match Arc::clone(&quota).try_acquire_many_owned(units) {
            Ok(permit) => permit,
            Err(_) => {
                let permit = self.runtime.block_on(quota.acquire_many_owned(units));
                permit.expect("nobody closes the quota")
            }
        }
    }

    /// What the kernel is told of a failure, which takes no reason: that goes to the log.
    fn answer_of(&self, error: &volume::Error, changes: bool) -> Errno {
        if is_news(error.kind) {
            if changes {
                self.record.failed(error);
            }
            if let Some((Permit { suppressed }, _)) = self.log_limiter.permit() {
                let source = error.source.as_ref().map(ToString::to_string);
                tracing::warn!(%error, source, suppressed, "FUSE: a request failed");
            }
        }
        errno(error.kind)
    }
}

/// Why this kernel cannot be served.
fn refusal(init: &Init) -> Option<&'static str> {
    if !init.is_known() {
        return Some("this kernel speaks a FUSE protocol that is not known here");
    }
    if !init.capabilities.has(Capabilities::BIG_WRITES) {
        return Some("this kernel's FUSE has no large writes");
    }
    // Without it each request of a loop device would wait for the one before: slow, and correct.
    if !init.capabilities.has(Capabilities::ASYNC_DIO) {
        tracing::warn!("this kernel's FUSE has no asynchronous direct I/O: the file is slow");
    }
    None
}

/// A change that has not ended.
struct RunningChange(Arc<File>);

impl Drop for RunningChange {
    fn drop(&mut self) {
        self.0.record.change_ends();
    }
}

impl PendingRequest {
    fn answer(mut self, reply: &Reply) {
        self.is_answered = true;
        self.file.connection.answer(&self.header, reply);
    }

    fn answer_bytes(mut self, bytes: &[u8]) {
        self.is_answered = true;
        self.file.connection.answer_bytes(&self.header, bytes);
    }

    fn answer_attributes(self) {
        let attributes = attributes(&self.file.shape);
        self.answer(&Reply::attributes(&attributes, ATTRIBUTES_LAST));
    }

    fn fail(mut self, why: Errno) {
        self.is_answered = true;
        self.file.connection.fail(&self.header, why);
    }

    /// It takes no answer.
    fn ignore(mut self) {
        self.is_answered = true;
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if !self.is_answered {
            self.file.connection.fail(&self.header, Errno::IO);
        }
    }
}

/// open(2): with O_DSYNC, which O_SYNC implies, a write returns when it is durable.
fn durability(flags: u32) -> Durability {
    match flags & OFlags::DSYNC.bits() {
        0 => Durability::Volatile,
        _ => Durability::Durable,
    }
}
