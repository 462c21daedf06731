//! The file system: one regular file, which is its root.

use std::future::Future;
use std::io;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use volume::{Durability, Shape, Volume};

use super::mapping::{attributes, block_size, errno, is_news};
use super::requests::{Allocation, ByteVolume};
use crate::front::Clients;
use crate::log_limiter::{LineLimiter, Permit};

/// The largest write that the kernel sends; it sends reads of the same size.
const WRITE_MAX: u32 = 1 << 20;

/// Asynchronous requests that the kernel has under way at a time. A loop device has 128.
const BACKGROUND_MAX: u16 = 512;

/// Data of requests in memory, in units of [`UNIT`]. Above it requests wait in the kernel.
const UNITS_MAX: u32 = (64 << 20) / UNIT;
const UNIT: u32 = 4096;

/// For how long the kernel need not ask again for attributes, which never change.
const ATTRIBUTES_LAST: Duration = Duration::from_secs(3600);

/// The file, as the kernel's requests and its server share it.
pub(super) struct File {
    shape: Shape,
    /// None once the server ends: what is asked then is refused.
    volume: RwLock<Option<Arc<ByteVolume>>>,
    quota: Arc<Semaphore>,
    runtime: Handle,
    pub(super) clients: Clients,
    /// The first change that failed.
    pub(super) failure: OnceLock<String>,
    log_limiter: LineLimiter,
}

impl File {
    pub(super) fn new(volume: Arc<dyn Volume>) -> Self {
        let volume = Arc::new(ByteVolume::new(volume));
        Self {
            shape: volume.shape().clone(),
            volume: RwLock::new(Some(volume)),
            quota: Arc::new(Semaphore::new(UNITS_MAX as usize)),
            runtime: Handle::current(),
            clients: Clients::default(),
            failure: OnceLock::new(),
            log_limiter: LineLimiter::default(),
        }
    }

    /// Refuses what is asked from now on, and waits for what runs; the volume, unless it was closed before.
    pub(super) async fn close(&self) -> Option<Arc<ByteVolume>> {
        let volume = self.volume.write().unwrap_or_else(PoisonError::into_inner).take();
        // Each request holds a part of it.
        let _all = self.quota.acquire_many(UNITS_MAX).await;
        volume
    }

    /// Carries out a request of so many bytes beside the others; `None` if the server ends.
    fn begin<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        len: u32,
        run: impl FnOnce(Arc<Self>, Option<Arc<ByteVolume>>) -> F,
    ) {
        let permit = self.permit(len);
        let volume = self.volume.read().unwrap_or_else(PoisonError::into_inner).clone();
        let work = run(Arc::clone(self), volume);
        // A request that panics is answered with EIO when its reply is dropped.
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
                let _ = self.failure.set(error.to_string());
            }
            if let Some((Permit { suppressed }, _)) = self.log_limiter.permit() {
                let source = error.source.as_ref().map(ToString::to_string);
                tracing::warn!(%error, source, suppressed, "FUSE: a request failed");
            }
        }
        errno(error.kind)
    }
}

/// A change that comes when the server ends was never taken: whoever asks learns that.
const ENDED: Errno = Errno::ESHUTDOWN;

/// What `fuser` calls: the handlers begin the work, and the thread goes on to read.
pub(super) struct Handlers(pub(super) Arc<File>);

impl Filesystem for Handlers {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let too_old = |what: &str| io::Error::other(format!("this kernel's FUSE has no {what}"));
        config.set_max_write(WRITE_MAX).map_err(|_| too_old("large writes"))?;
        config.set_max_background(BACKGROUND_MAX).map_err(|_| too_old("background requests"))?;
        // Without it each request of a loop device would wait for the one before: slow, and correct.
        if config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).is_err() {
            tracing::warn!("this kernel's FUSE has no asynchronous direct I/O: the file is slow");
        }
        Ok(())
    }

    fn getattr(&self, _req: &Request, _ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_LAST, &attributes(&self.0.shape));
    }

    fn setattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let resized = size.is_some_and(|size| size != self.0.shape.size);
        if resized || mode.is_some() || uid.is_some() || gid.is_some() {
            // The size of a volume is its own, and so are its rights.
            return reply.error(Errno::EPERM);
        }
        reply.attr(&ATTRIBUTES_LAST, &attributes(&self.0.shape));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.0.shape.read_only && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        self.0.clients.add();
        // Whoever has the file open, above all a loop device, keeps a cache of its own.
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), direct);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.0.clients.remove();
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let size = block_size(&self.0.shape);
        reply.statfs(self.0.shape.size / u64::from(size), 0, 0, 1, 0, size, 255, size);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.begin(size, move |file, volume| async move {
            let Some(volume) = volume else { return reply.error(ENDED) };
            match volume.read(offset, size.into()).await {
                Ok(data) => reply.data(&data),
                Err(error) => reply.error(file.answer_of(&error, false)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = Bytes::copy_from_slice(data);
        let durability = durability(flags);
        self.0.begin(data.len() as u32, move |file, volume| async move {
            let Some(volume) = volume else { return reply.error(ENDED) };
            match volume.write(offset, data, durability).await {
                Ok(written) => reply.written(written),
                Err(error) => reply.error(file.answer_of(&error, true)),
            }
        });
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.0.begin(0, move |file, volume| async move {
            let Some(volume) = volume else { return reply.error(ENDED) };
            match volume.flush().await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(file.answer_of(&error, true)),
            }
        });
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(allocation) = Allocation::of(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        self.0.begin(0, move |file, volume| async move {
            let Some(volume) = volume else { return reply.error(ENDED) };
            match volume.allocate(allocation, offset, length).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(file.answer_of(&error, true)),
            }
        });
    }
}

/// open(2): with O_DSYNC, which O_SYNC implies, a write returns when it is durable.
fn durability(flags: OpenFlags) -> Durability {
    let dsync = rustix::fs::OFlags::DSYNC.bits().cast_signed();
    if flags.0 & dsync != 0 { Durability::Durable } else { Durability::Volatile }
}
