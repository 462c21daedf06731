//! A volume on something this machine has opened: a file or a block device.
//!
//! What need not wait is answered at once, on the caller's task: reads that the page cache holds, and
//! everything on a file system that lies in memory. The rest is the [`Engine`]'s.

use std::fs::Metadata;
use std::future::ready;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::abilities::{Abilities, BoxFuture, Close, Grow, Growth, Opened};
use super::engine::{Engine, blocking};
use super::open_error::{OpenError, whole_blocks};
use super::placement::OpenedAt;
use super::write_back::WriteBack;
use crate::file_space::FileSpace;
use crate::printable::Shown as _;
use bytes::Bytes;
use host::file::{File, Sync};
use host::request::Request;
use proto::scsi::log::FreeSpace;
use tokio::sync::Mutex;
use volume::{
    Durability, Error, Extent, ExtentMap, Gate, Kind, Shape, Space, Span, Verb, Volume, Work,
};

/// The longest copy done on the caller's task: some 100 microseconds of memory traffic, after which
/// other requests of the task have waited long enough.
const INLINE_MAX: u64 = 1 << 20;

/// How many extents one answer lists: a fragmented file has millions.
const EXTENTS_MAX: usize = 4096;

/// Where zeroes have to be written as data, this many bytes go at a time.
const ZEROES: &[u8] = &[0; 256 << 10];

/// A volume on an open file or block device.
pub struct Local {
    shape: Shape,
    disk: Arc<Disk>,
}

/// What a volume shares with the one it grows to.
#[derive(Clone)]
struct Disk {
    file: Arc<File>,
    size: u64,
    /// What carries out requests that may wait; nothing if none does, on a file that lies in memory.
    engine: Option<Engine>,
    /// It can punch holes; where it cannot, zeroes are written.
    punches: bool,
    /// Where it is, for the log.
    path: Arc<Path>,
    at: OpenedAt,
    /// How it was when it was locked.
    found: Metadata,
    /// A loss has been logged.
    reported: Arc<AtomicBool>,
    write_back: Arc<WriteBack>,
}

impl Local {
    /// A volume of `shape` on `file`, which is at `path`, and which was as `found` when the caller had locked it.
    pub(super) fn new(path: &Path, file: File, found: Metadata, shape: Shape) -> io::Result<Self> {
        let engine = if file.lies_in_memory()? { None } else { Some(Engine::chosen()?) };
        let disk = Disk {
            size: shape.size,
            engine,
            punches: shape.discard.is_some(),
            file: Arc::new(file),
            path: path.into(),
            at: OpenedAt::new(path),
            found,
            reported: Arc::default(),
            write_back: Arc::default(),
        };
        Ok(Self { shape, disk: Arc::new(disk) })
    }

    /// The same volume, whose requests all go to `engine`.
    #[cfg(test)]
    pub(super) fn by(self, engine: Engine) -> Self {
        let disk = Disk { engine: Some(engine), ..Disk::clone(&self.disk) };
        Self { shape: self.shape, disk: Arc::new(disk) }
    }

    /// The same volume, as large as its file is now, or is made here; `None` if that is as it was. It
    /// shares the file and its lock.
    pub fn grown(&self, asked: Option<u64>) -> Result<Option<Self>, OpenError> {
        let old = self.shape.size;
        let found = self.disk.file.len()?;
        let size = whole_blocks(asked.unwrap_or(found), self.shape.block_size)?;
        if size < old {
            return Err(OpenError::Shrinks { from: old, to: size });
        }
        if size > found {
            self.disk.file.set_len(size)?;
        }
        if size == old {
            return Ok(None);
        }
        let disk = Arc::new(Disk { size, ..Disk::clone(&self.disk) });
        Ok(Some(Self { shape: Shape { size, ..self.shape.clone() }, disk }))
    }

    /// What the system knows of its file, once everything is stable.
    pub async fn settled(&self) -> io::Result<Metadata> {
        blocking(&self.disk.file, File::settled).await
    }

    /// It as the store of a chain, which calls it `name`.
    #[must_use]
    pub fn opened(self, name: &'static str) -> Opened {
        let local = Arc::new(self);
        let is_file = local.disk.found.is_file();
        let abilities = Abilities {
            grow: Some(local.clone()),
            close: Some(local.clone()),
            space: is_file.then(|| LocalFileSpace::new(&local.disk.file) as Arc<dyn FileSpace>),
            ..Abilities::default()
        };
        Opened { volume: Arc::new(Gate::new(name, local)), worker: None, abilities }
    }

    fn run<'a, T: 'a>(
        &'a self,
        verb: Verb,
        span: Option<Span>,
        work: impl Future<Output = io::Result<T>> + Send + 'a,
    ) -> Work<'a, T> {
        Box::pin(async move {
            work.await.map_err(|why| {
                if !self.shape.read_only {
                    self.disk.report_loss();
                }
                failed(verb, span, why)
            })
        })
    }
}

impl Grow for Local {
    fn prepare(&self, asked: Option<u64>) -> BoxFuture<'_, Result<Option<Growth>, OpenError>> {
        Box::pin(async move {
            let stored = self.disk.file.len()?;
            let Some(grown) = self.grown(asked)? else { return Ok(None) };
            let file = Arc::clone(&self.disk.file);
            let undo = Box::new(move || file.set_len(stored));
            Ok(Some(Growth { grown: grown.opened("local"), undo }))
        })
    }
}

impl Close for Local {
    fn loss(&self) -> Option<String> {
        self.disk.file.still_whole().err().map(|failed| failed.to_string())
    }

    fn misplaced(&self) -> Option<String> {
        self.disk.at.trouble(&self.disk.file)
    }

    fn watch_placement(&self) {
        self.disk.at.clone().watch(Arc::downgrade(&self.disk.file));
    }

    fn found_file(&self) -> Option<Metadata> {
        Some(self.disk.found.clone())
    }

    fn stable_file(&self) -> BoxFuture<'_, Option<Metadata>> {
        Box::pin(async { self.settled().await.ok() })
    }
}

/// The space of a file. Whoever has it does not keep the file open, nor its lock.
struct LocalFileSpace {
    file: Weak<File>,
    /// A file system that hangs takes one thread, however often it is asked.
    one: Arc<Mutex<()>>,
}

impl LocalFileSpace {
    fn new(file: &Arc<File>) -> Arc<Self> {
        Arc::new(Self { file: Arc::downgrade(file), one: Arc::default() })
    }
}

impl FileSpace for LocalFileSpace {
    fn is_open(&self) -> bool {
        self.file.strong_count() > 0
    }

    fn free_space(&self) -> BoxFuture<'_, Option<FreeSpace>> {
        Box::pin(async {
            let one = Arc::clone(&self.one).lock_owned().await;
            let file = self.file.upgrade()?;
            let found = blocking(&file, move |file| {
                let found = file.free_space();
                drop(one);
                found
            });
            let (available, unallocated) = found.await.ok()?;
            Some(FreeSpace { available, unallocated })
        })
    }
}

impl Volume for Local {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        if self.disk.engine.is_some()
            && !self.disk.file.is_direct()
            && let Ok(Some(bytes)) = self.disk.file.read_now(span.at, span.len as usize)
        {
            return Box::pin(ready(Ok(bytes.into())));
        }
        self.run(Verb::Read, Some(span), self.disk.read(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        self.run(Verb::Write, Some(span), async move {
            let sync = self.disk.promise(durability)?;
            self.disk.perform(Request::Write { at, data, sync }).await?;
            if sync == Sync::Now {
                return self.disk.confirm_sync().await;
            }
            self.disk.note_dirty(span.len);
            Ok(())
        })
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.run(Verb::WriteZeroes, Some(span), async move {
            let sync = self.disk.promise(durability)?;
            self.disk.zero(span, space).await?;
            if sync == Sync::Now { self.disk.sync().await } else { Ok(()) }
        })
    }

    fn discard(&self, Span { at, len }: Span) -> Work<'_, ()> {
        let punch = self.disk.perform(Request::Punch { at, len });
        self.run(Verb::Discard, Some(Span { at, len }), punch)
    }

    fn flush(&self) -> Work<'_, ()> {
        if self.shape.read_only {
            // Nothing was written that could be lost, whatever becomes of the file.
            return Box::pin(ready(Ok(())));
        }
        self.run(Verb::Flush, None, self.disk.flush())
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        // A device does not tell which of its blocks are allocated.
        self.disk.file.next_data(0).is_ok().then_some(self)
    }
}

impl ExtentMap for Local {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        let block = u64::from(self.shape.block_size);
        // A file that lies in memory is looked through page by page.
        let find = move |file: &File| Ok((extents(file, span, block)?, file.len()?));
        self.run(Verb::Extents, Some(span), async move {
            let (found, len) = blocking(&self.disk.file, find).await?;
            // Beyond its end a file seems to be one hole, which would be taken for zeroes.
            if len < span.end() { Err(self.disk.shrunk().await?) } else { Ok(found) }
        })
    }
}

impl Disk {
    async fn perform(&self, request: Request) -> io::Result<()> {
        self.answer(request).await.map(drop)
    }

    /// Carries out `request`: here if it cannot wait and is soon done.
    async fn answer(&self, request: Request) -> io::Result<Bytes> {
        match &self.engine {
            Some(engine) => engine.perform(&self.file, request).await,
            None if request.len() <= INLINE_MAX => self.file.perform(&request),
            None => Engine::Threads.perform(&self.file, request).await,
        }
    }

    /// What no engine does.
    async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match self.engine {
            Some(_) => blocking(&self.file, act).await,
            None => act(&self.file),
        }
    }

    async fn read(&self, Span { at, len }: Span) -> io::Result<Bytes> {
        let bytes = self.answer(Request::Read { at, len: len as usize }).await?;
        if bytes.len() as u64 == len { Ok(bytes) } else { Err(self.shrunk().await?) }
    }

    /// The system keeps so many bytes more in its cache, if it has one and they are to go elsewhere.
    fn note_dirty(&self, len: u64) {
        if let Some(engine) = self.engine.as_ref().filter(|_| !self.file.is_direct()) {
            self.write_back.note_dirty(len, &self.file, engine);
        }
    }

    /// The error for bytes that are no longer there.
    async fn shrunk(&self) -> io::Result<io::Error> {
        let (was, now) = (self.size, self.blocking(File::len).await?);
        Ok(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("it was {was} bytes long when it was opened and is {now} bytes long now"),
        ))
    }

    /// How sure a write has to be made. Durability is not promised once something has failed that may have cost
    /// an earlier write.
    fn promise(&self, durability: Durability) -> io::Result<Sync> {
        match durability {
            Durability::Volatile => Ok(Sync::Later),
            Durability::Durable => self.still_whole().map(|()| Sync::Now),
        }
    }

    fn still_whole(&self) -> io::Result<()> {
        self.file.still_whole().map_err(io::Error::other)
    }

    /// Logs, once, that flushes fail from now on.
    fn report_loss(&self) {
        if let Err(failed) = self.file.still_whole()
            && !self.reported.swap(true, Ordering::Relaxed)
        {
            tracing::error!(
                "{}: flushes and durable writes fail until it is opened again: {failed}. Make space, or replace the \
                 disk; then restart the program, or take the volume out of its configuration, reload, put it in \
                 again and reload",
                self.path.shown()
            );
        }
    }

    async fn flush(&self) -> io::Result<()> {
        self.sync().await?;
        // Writes beyond a new end would have made the file longer again, with a hole where the
        // bytes between were: no flush may promise that.
        let at = self.at.clone();
        // A flush of a file that goes with this program would promise what is not so.
        let look = move |file: &File| Ok((file.len()?, at.trouble(file)));
        let (len, _) = self.blocking(look).await?;
        self.still_whole()?;
        if len < self.size {
            let shrunk = self.shrunk().await?;
            self.file.fail("flush", &shrunk);
            return Err(shrunk);
        }
        Ok(())
    }

    /// Whether a sync that has succeeded is to be believed: the system tells of a lost write once, and it may have
    /// told one beside it; and it synchronises a file that was removed, which goes with this program.
    async fn confirm_sync(&self) -> io::Result<()> {
        self.file.confirm_sync().await.map_err(io::Error::other)?;
        if self.file.is_removed() {
            self.at.trouble(&self.file);
        }
        self.still_whole()
    }

    /// Makes stable what was written.
    async fn sync(&self) -> io::Result<()> {
        self.still_whole()?;
        self.perform(Request::Sync).await?;
        self.confirm_sync().await
    }

    /// Zeroes by the cheapest means the file system has.
    async fn zero(&self, span: Span, space: Space) -> io::Result<()> {
        let Span { at, len } = span;
        let cheapest = match space {
            Space::Release if self.punches => self.perform(Request::Punch { at, len }).await,
            Space::Release => Err(io::ErrorKind::Unsupported.into()),
            Space::Keep => self.zero_and_keep(span).await,
        };
        match cheapest {
            Err(why) if why.kind() == io::ErrorKind::Unsupported => self.write_zeroes(span).await,
            done => done,
        }
    }

    async fn zero_and_keep(&self, Span { at, len }: Span) -> io::Result<()> {
        match self.perform(Request::Zero { at, len }).await {
            // tmpfs has no zero range: punching and allocating again does the same.
            Err(why) if why.kind() == io::ErrorKind::Unsupported && self.punches => {
                self.perform(Request::Punch { at, len }).await?;
                self.perform(Request::Allocate { at, len }).await
            }
            done => done,
        }
    }

    async fn write_zeroes(&self, span: Span) -> io::Result<()> {
        for piece in span.pieces(ZEROES.len() as u64) {
            let data = Bytes::from_static(&ZEROES[..piece.len as usize]);
            self.perform(Request::Write { at: piece.at, data, sync: Sync::Later }).await?;
        }
        Ok(())
    }
}

fn extents(file: &File, span: Span, block: u64) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut at = span.at;
    while at < span.end() && extents.len() < EXTENTS_MAX {
        let data = file.next_data(at)?.unwrap_or(u64::MAX);
        // A block that is partly data counts as data.
        let hole = data - at >= block;
        let next =
            if hole { data / block * block } else { file.next_hole(data)?.next_multiple_of(block) };
        let end = next.min(span.end());
        extents.push(Extent { span: Span::new(at, end - at), hole, zero: hole });
        at = end;
    }
    Ok(extents)
}

/// The one table from the system's errors to kinds.
fn failed(verb: Verb, span: Option<Span>, why: io::Error) -> Error {
    use io::ErrorKind as Io;
    let kind = match why.kind() {
        Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => Kind::NoSpace,
        Io::ReadOnlyFilesystem | Io::PermissionDenied => Kind::ReadOnly,
        Io::Unsupported => Kind::Unsupported,
        Io::NotFound => Kind::Gone,
        Io::WouldBlock | Io::OutOfMemory | Io::ResourceBusy => Kind::Busy,
        _ => match rustix::io::Errno::from_io_error(&why) {
            Some(rustix::io::Errno::NODEV | rustix::io::Errno::NXIO) => Kind::Gone,
            _ => Kind::Medium,
        },
    };
    Error::new(kind, verb, span).because(why)
}
