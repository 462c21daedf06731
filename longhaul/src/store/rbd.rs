//! An image of Ceph's RBD as a volume.
//!
//! There is no cache here: a write is answered when the cluster has it for good, so that others who have the image open see
//! it, and a flush has nothing to do.

use std::error::Error as StdError;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use host::rbd::{Client, Image, ImageSpec, Lock, RbdError};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_blocking};
use volume::{
    Discard, Durability, Error, Extent, ExtentMap, FirstLoss, Gate, Kind, Shape, Space, Span, Verb,
    Volume, Work,
};

use super::abilities::{Abilities, BoxFuture, Close, Grow, Growth, Opened};
use super::open_error::{OpenError, whole_blocks};
use crate::replay_log::Saved;

/// The unit in which an OSD gives space back (`bluestore_min_alloc_size` of Ceph 16 and later).
const ALLOCATION: u32 = 4096;

/// Zeroes and discards go in pieces of this size, so that a whole image is not one request.
const PIECE: u64 = 1 << 30;

/// How many bytes one map tells of: where each object has to be asked they are 1024 of 4 MiB.
const MAP_MAX: u64 = 4 << 30;

/// How many extents one answer lists.
const EXTENTS_MAX: usize = 4096;

/// How long after it was told of a change the size of an image is looked at: changes come in groups.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// How an image is opened as a volume.
#[derive(Clone, Debug)]
pub struct RbdOptions {
    /// The connection to its cluster; one of its own if `None`.
    pub client: Option<Arc<Client>>,
    /// Refuse writes.
    pub read_only: bool,
    /// What becomes of the exclusive lock.
    pub lock: Lock,
    /// The unit of requests, in bytes.
    pub block_size: u32,
}

/// An open image.
pub struct Rbd {
    shape: Shape,
    shared: Arc<Shared>,
}

/// What a volume shares with the one it grows to.
struct Shared {
    image: Arc<Image>,
    loss: FirstLoss,
    /// Tells the log of a new size.
    watch: AbortHandle,
    /// Tells those who wait for requests.
    complete: AbortHandle,
}

impl Shared {
    /// Tells the log of the first change that may have cost more than itself.
    fn tell(&self, why: &Error, durability: Durability) {
        if why.kind.loses(durability) && self.loss.check(Verb::Flush, None).is_ok() {
            let cause = why.source.as_ref().map_or_else(String::new, |cause| format!(": {cause}"));
            let image = &self.image.info().id;
            tracing::error!(
                image,
                "{why}{cause}: flushes and durable writes fail until it is opened again"
            );
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.watch.abort();
        self.complete.abort();
    }
}

/// Opens an image.
pub async fn open(spec: &ImageSpec, options: RbdOptions) -> Result<Rbd, RbdOpenError> {
    let (lock, shape_as) = (options.lock, (options.read_only, options.block_size));
    let image = Arc::new(open_image(spec, options).await?);
    let shape = shape(spec, &image, shape_as)?;
    if !shape.read_only && lock != Lock::Leave && !image.info().is_locked {
        tracing::warn!(
            image = spec.image,
            "the image has no exclusive lock: nothing keeps others from writing to it; `rbd feature enable {}/{} \
             exclusive-lock` gives it one",
            spec.pool,
            spec.image
        );
    }
    let watch = tell_of_sizes(spec, &image)?;
    let complete = tokio::spawn(image.requests().clone().complete()).abort_handle();
    let shared = Shared { image, loss: FirstLoss::default(), watch, complete };
    Ok(Rbd { shape, shared: Arc::new(shared) })
}

/// What an image is like for whoever opens it so. It is only read, and not kept open.
pub async fn shape_of(spec: &ImageSpec, options: RbdOptions) -> Result<Shape, RbdOpenError> {
    let shape_as = (options.read_only, options.block_size);
    let looked = RbdOptions { read_only: true, lock: Lock::Leave, ..options };
    let image = open_image(spec, looked).await?;
    let found = shape(spec, &image, shape_as);
    image.close().await;
    found
}

async fn open_image(spec: &ImageSpec, options: RbdOptions) -> Result<Image, RbdOpenError> {
    let RbdOptions { client, read_only, lock, .. } = options;
    let spec = spec.clone();
    let image = spawn_blocking(move || match client {
        Some(client) => Image::open_by(&client, &spec, read_only, lock),
        None => Image::open(&spec, read_only, lock),
    });
    Ok(image.await.map_err(io::Error::other)??)
}

fn shape(
    spec: &ImageSpec,
    image: &Image,
    (read_only, block_size): (bool, u32),
) -> Result<Shape, RbdOpenError> {
    let read_only = read_only || spec.snapshot.is_some();
    Ok(Shape {
        size: whole_blocks(image.info().size, block_size)?,
        block_size,
        physical_block_size: block_size.max(ALLOCATION),
        read_only,
        write_cache: false,
        discard: (!read_only).then_some(Discard { granularity: ALLOCATION, reads_zeroes: true }),
        fast_zeroes: !read_only,
    })
}

/// Why an image cannot be a volume.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum RbdOpenError {
    #[error(transparent)]
    Rbd(#[from] RbdError),
    #[error(transparent)]
    Size(#[from] OpenError),
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Tells the log once the image has another size.
fn tell_of_sizes(spec: &ImageSpec, image: &Arc<Image>) -> io::Result<AbortHandle> {
    let (changed, image_name) = (Arc::new(Notify::new()), spec.image.clone());
    // A snapshot does not change, and cannot be watched.
    if spec.snapshot.is_none() {
        let tell = Arc::clone(&changed);
        image.watch(Box::new(move || tell.notify_one()))?;
    }
    let mut known = image.info().size;
    let image = Arc::downgrade(image);
    let watch = async move {
        loop {
            changed.notified().await;
            tokio::time::sleep(LOOK_AFTER).await;
            let Some(size) = size_of(&image).await else { return };
            if size != known {
                tracing::warn!(
                    image = image_name,
                    from = known,
                    to = size,
                    "the image has another size: `longhaul reload` offers more of it to clients; what is behind its end \
                     cannot be read or written any more"
                );
                known = size;
            }
        }
    };
    Ok(tokio::spawn(watch).abort_handle())
}

async fn size_of(image: &Weak<Image>) -> Option<u64> {
    let image = image.upgrade()?;
    spawn_blocking(move || image.size()).await.ok()?.ok()
}

impl Rbd {
    /// It as the store of a chain.
    #[must_use]
    pub fn opened(self) -> Opened {
        let image = Arc::new(self);
        let abilities = Abilities {
            grow: Some(image.clone()),
            close: Some(image.clone()),
            ..Abilities::default()
        };
        Opened { volume: Arc::new(Gate::new("rbd", image)), worker: None, abilities }
    }

    /// A change, which is durable once it has succeeded.
    fn change<'a>(
        &'a self,
        (verb, span, durability): (Verb, Span, Durability),
        work: impl Future<Output = io::Result<()>> + Send + 'a,
    ) -> Work<'a, ()> {
        let asked = (verb, Some(span), durability);
        let work = async move {
            let done = work.await.map_err(|why| failed(verb, Some(span), why));
            done.inspect_err(|why| self.shared.tell(why, durability))
        };
        Box::pin(self.shared.loss.guard(asked, work))
    }
}

/// The pieces of a span.
fn pieces(span: Span) -> impl Iterator<Item = Range<u64>> {
    let (mut at, end) = (span.at, span.end());
    std::iter::from_fn(move || {
        let next = (at / PIECE + 1) * PIECE;
        let piece = at..next.min(end);
        at = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

impl Volume for Rbd {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(async move {
            let read = self.shared.image.requests().read(span.at, span.len as usize).await;
            read.map_err(|why| failed(Verb::Read, Some(span), why))
        })
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        self.change((Verb::Write, span, durability), self.shared.image.requests().write(at, data))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        let thick = space == Space::Keep;
        self.change((Verb::WriteZeroes, span, durability), async move {
            for Range { start, end } in pieces(span) {
                let len = (end - start) as usize;
                self.shared.image.requests().write_zeroes(start, len, thick).await?;
            }
            Ok(())
        })
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.change((Verb::Discard, span, Durability::Volatile), async move {
            for Range { start, end } in pieces(span) {
                self.shared.image.requests().discard(start, end - start).await?;
            }
            Ok(())
        })
    }

    fn flush(&self) -> Work<'_, ()> {
        let flush = async {
            let flushed = self.shared.image.requests().flush().await;
            flushed.map_err(|why| failed(Verb::Flush, None, why))
        };
        Box::pin(self.shared.loss.guard((Verb::Flush, None, Durability::Durable), flush))
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        Some(self)
    }
}

impl ExtentMap for Rbd {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        let span = Span::new(span.at, span.len.min(MAP_MAX));
        Box::pin(async move {
            let image = Arc::clone(&self.shared.image);
            let asked = spawn_blocking(move || image.allocated(span.at, span.len)).await;
            let found = asked.map_err(io::Error::other).and_then(|found| found);
            let found = found.map_err(|why| failed(Verb::Extents, Some(span), why))?;
            Ok(extents(span, &found, self.shape.block_size.into()))
        })
    }
}

/// The extents of `span`, of which the `allocated` parts have data: a block of which a part is has them.
fn extents(span: Span, allocated: &[(u64, u64)], block: u64) -> Vec<Extent> {
    let mut map: Vec<Extent> = Vec::new();
    let mut add = |to: u64, hole: bool| {
        let at = map.last().map_or(span.at, |last| last.span.end());
        match map.last_mut() {
            _ if to <= at => {}
            Some(last) if last.hole == hole => last.span.len += to - at,
            _ => map.push(Extent { span: Span::new(at, to - at), hole, zero: hole }),
        }
    };
    for &(at, len) in allocated {
        add((at / block * block).min(span.end()), true);
        add((at + len).next_multiple_of(block).min(span.end()), false);
    }
    add(span.end(), true);
    map.truncate(EXTENTS_MAX);
    map
}

impl Grow for Rbd {
    fn prepare(&self, _asked: Option<u64>) -> BoxFuture<'_, Result<Option<Growth>, OpenError>> {
        Box::pin(async {
            let (from, block_size) = (self.shape.size, self.shape.block_size);
            let size = whole_blocks(self.shared.image.size()?, block_size)?;
            if size < from {
                return Err(OpenError::Shrinks { from, to: size });
            }
            if size == from {
                return Ok(None);
            }
            let shape = Shape { size, ..self.shape.clone() };
            let grown = Self { shape, shared: Arc::clone(&self.shared) };
            Ok(Some(Growth { grown: grown.opened(), undo: Box::new(|| Ok(())) }))
        })
    }
}

impl Close for Rbd {
    fn loss(&self) -> Option<String> {
        let check = self.shared.loss.check(Verb::Flush, None);
        check.err().and_then(|why| why.source.map(|source| source.to_string()))
    }

    fn image(&self) -> Option<String> {
        Some(self.shared.image.info().id.clone())
    }

    fn close(&self) -> BoxFuture<'_, Option<Saved>> {
        Box::pin(async {
            self.shared.image.close().await;
            None
        })
    }
}

/// A failed verb. What librbd answers with has the meaning of errno(3), but for the two that a client gets from whom the
/// right to write was taken.
fn failed(verb: Verb, span: Option<Span>, why: io::Error) -> Error {
    use rustix::io::Errno;
    if why.kind() == io::ErrorKind::UnexpectedEof {
        return Error::new(Kind::Gone, verb, span).because("the image was made smaller");
    }
    let source =
        |text: &str| -> Box<dyn StdError + Send + Sync> { format!("{text}: {why}").into() };
    match Errno::from_io_error(&why) {
        Some(Errno::NOSPC | Errno::DQUOT) => Error::new(Kind::NoSpace, verb, span).because(why),
        Some(Errno::SHUTDOWN | Errno::ROFS) => Error::new(Kind::Gone, verb, span).because(source(
            "the cluster takes nothing from this client any more, as another has the image",
        )),
        Some(Errno::TIMEDOUT | Errno::NOTCONN | Errno::NOENT) => {
            Error::new(Kind::Gone, verb, span).because(why)
        }
        _ => Error::new(Kind::Medium, verb, span).because(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_has_no_gaps_and_whole_blocks() {
        let map = extents(Span::new(4096, 16384), &[(5000, 10), (8192, 4096), (20_400, 500)], 512);
        let seen: Vec<_> = map.iter().map(|it| (it.span.at, it.span.len, it.hole)).collect();
        let expected = [
            (4096, 512, true),
            (4608, 512, false),
            (5120, 3072, true),
            (8192, 4096, false),
            (12_288, 7680, true),
            (19_968, 512, false),
        ];
        assert_eq!(seen, expected);
        assert_eq!(extents(Span::new(0, 512), &[], 512).len(), 1);
    }

    #[test]
    fn pieces_cover_a_span() {
        let span = Span::new(PIECE - 512, 2 * PIECE);
        let found: Vec<_> = pieces(span).collect();
        assert_eq!(found, [PIECE - 512..PIECE, PIECE..2 * PIECE, 2 * PIECE..3 * PIECE - 512]);
    }
}
