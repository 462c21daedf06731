//! A volume on something this machine has opened: a file or a block device.
//!
//! What need not wait is answered at once, on the caller's task: reads that the page cache holds, and
//! everything on a file system that lies in memory. The rest goes to the runtime's blocking threads.

use std::future::ready;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::file::{OpenError, whole_blocks};
use bytes::Bytes;
use host::file::{File, Sync};
use volume::{Durability, Error, Extent, ExtentMap, Kind, Shape, Space, Span, Verb, Volume, Work};

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

/// What the blocking threads share with the volume.
#[derive(Clone)]
struct Disk {
    file: Arc<File>,
    size: u64,
    /// I/O on it never waits for a device.
    in_memory: bool,
    /// It can punch holes; where it cannot, zeroes are written.
    punches: bool,
    /// A flush failed. The system reports that once and may have dropped the pages, so a later flush
    /// that succeeds would promise too much.
    flush_failed: Arc<AtomicBool>,
}

impl Local {
    /// A volume of `shape` on `file`, which the caller has locked.
    pub(super) fn new(file: File, shape: Shape) -> io::Result<Self> {
        let disk = Disk {
            size: shape.size,
            in_memory: file.lies_in_memory()?,
            punches: shape.discard.is_some(),
            flush_failed: Arc::default(),
            file: Arc::new(file),
        };
        Ok(Self { shape, disk: Arc::new(disk) })
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

    /// Runs `act` here if it cannot wait, on a blocking thread otherwise.
    fn run<T: Send + 'static>(
        &self,
        verb: Verb,
        span: Option<Span>,
        act: impl FnOnce(&Disk) -> io::Result<T> + Send + 'static,
    ) -> Work<'static, T> {
        if self.disk.in_memory && span.is_none_or(|span| span.len <= INLINE_MAX) {
            let done = act(&self.disk);
            return Box::pin(ready(done.map_err(|why| failed(verb, span, why))));
        }
        let disk = Arc::clone(&self.disk);
        let thread = tokio::task::spawn_blocking(move || act(&disk));
        Box::pin(async move {
            match thread.await {
                Ok(done) => done.map_err(|why| failed(verb, span, why)),
                Err(gone) => Err(Error::new(Kind::Gone, verb, span).because(gone)),
            }
        })
    }
}

impl Volume for Local {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        if !self.disk.in_memory
            && let Ok(Some(bytes)) = self.disk.file.read_now(span.at, span.len as usize)
        {
            return Box::pin(ready(Ok(bytes.into())));
        }
        self.run(Verb::Read, Some(span), move |disk| disk.read(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        self.run(Verb::Write, Some(span), move |disk| {
            disk.promise(durability, |sync| disk.file.write(at, &data, sync))
        })
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.run(Verb::WriteZeroes, Some(span), move |disk| {
            disk.promise(durability, |sync| {
                disk.zero(span, space)?;
                if sync == Sync::Now { disk.file.sync() } else { Ok(()) }
            })
        })
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.run(Verb::Discard, Some(span), move |disk| disk.file.punch(span.at, span.len))
    }

    fn flush(&self) -> Work<'_, ()> {
        self.run(Verb::Flush, None, Disk::flush)
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        // A device does not tell which of its blocks are allocated.
        self.disk.file.next_data(0).is_ok().then_some(self)
    }
}

impl ExtentMap for Local {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        let block = u64::from(self.shape.block_size);
        self.run(Verb::Extents, Some(span), move |disk| disk.extents(span, block))
    }
}

impl Disk {
    fn read(&self, span: Span) -> io::Result<Bytes> {
        let bytes = self.file.read(span.at, span.len as usize)?;
        if bytes.len() as u64 == span.len { Ok(bytes.into()) } else { Err(self.shrunk()?) }
    }

    /// The error for bytes that are no longer there.
    fn shrunk(&self) -> io::Result<io::Error> {
        let (was, now) = (self.size, self.file.len()?);
        Ok(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("it was {was} bytes long when it was opened and is {now} bytes long now"),
        ))
    }

    /// Refuses to promise durability once a flush has failed.
    fn promise(
        &self,
        durability: Durability,
        act: impl FnOnce(Sync) -> io::Result<()>,
    ) -> io::Result<()> {
        match durability {
            Durability::Volatile => act(Sync::Later),
            Durability::Durable => {
                self.still_durable()?;
                act(Sync::Now)
            }
        }
    }

    fn still_durable(&self) -> io::Result<()> {
        if self.flush_failed.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier flush failed, so writes may be lost"));
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.still_durable()?;
        if let Err(why) = self.file.sync() {
            self.flush_failed.store(true, Ordering::Release);
            return Err(why);
        }
        // Writes beyond a new end would have made the file longer again, with a hole where the
        // bytes between were: no flush may promise that.
        if self.file.len()? < self.size { Err(self.shrunk()?) } else { Ok(()) }
    }

    /// Zeroes by the cheapest means the file system has.
    fn zero(&self, span: Span, space: Space) -> io::Result<()> {
        let cheapest = match space {
            Space::Release if self.punches => self.file.punch(span.at, span.len),
            Space::Release => Err(io::ErrorKind::Unsupported.into()),
            Space::Keep => self.zero_and_keep(span),
        };
        match cheapest {
            Err(why) if why.kind() == io::ErrorKind::Unsupported => self.write_zeroes(span),
            done => done,
        }
    }

    fn zero_and_keep(&self, span: Span) -> io::Result<()> {
        match self.file.zero(span.at, span.len) {
            // tmpfs has no zero range: punching and allocating again does the same.
            Err(why) if why.kind() == io::ErrorKind::Unsupported && self.punches => {
                self.file.punch(span.at, span.len)?;
                self.file.allocate(span.at, span.len)
            }
            done => done,
        }
    }

    fn write_zeroes(&self, span: Span) -> io::Result<()> {
        for piece in span.pieces(ZEROES.len() as u64) {
            self.file.write(piece.at, &ZEROES[..piece.len as usize], Sync::Later)?;
        }
        Ok(())
    }

    fn extents(&self, span: Span, block: u64) -> io::Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let mut at = span.at;
        while at < span.end() && extents.len() < EXTENTS_MAX {
            let data = self.file.next_data(at)?.unwrap_or(u64::MAX);
            // A block that is partly data counts as data.
            let hole = data - at >= block;
            let next = if hole {
                data / block * block
            } else {
                self.file.next_hole(data)?.next_multiple_of(block)
            };
            let end = next.min(span.end());
            extents.push(Extent { span: Span::new(at, end - at), hole, zero: hole });
            at = end;
        }
        Ok(extents)
    }
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
