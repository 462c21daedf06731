//! Copy on write: what is written to a volume that must not change goes to a file beside it.
//!
//! The file has room for every byte of the base, in the order of the base, and is sparse. A map says which clusters of it
//! count. A cluster is written whole, with what is missing of it from the base, before its bit is set; and its bit becomes
//! durable after its bytes have, with the next flush. So a crash finds each cluster in the base or in the file, and
//! whole. `docs/spec/overlay.md` says what lies where.

mod format;
mod map;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use futures_util::stream;
use sha2::{Digest as _, Sha256};

use self::format::{Base, PAGE, Places, decode_page, header, samples};
use self::map::Map;
use super::member::Member;
use super::range_lock::RangeLock;
use crate::loss::FirstLoss;
use crate::{
    Discard, Durability, Extent, ExtentMap, Result, Shape, Space, Span, TRANSFER_MAX, Verb, Volume,
    Work, complete_all,
};

pub use self::format::{CLUSTER, OverlayError, file_size};

/// How many runs of a read are under way at a time.
const RUNS_AT_ONCE: usize = 16;

/// How much of the map is read at once.
const MAP_AT_ONCE: u64 = 1 << 20;

/// What becomes of a span.
enum Change {
    Write(Bytes),
    Zero(Space),
}

/// A volume over another that is never written to.
pub struct Overlay {
    base: Member,
    file: Member,
    places: Places,
    map: Mutex<Map>,
    /// Clusters that are copied into the file.
    copies: RangeLock,
    /// One at a time makes the map durable.
    commits: tokio::sync::Mutex<()>,
    loss: FirstLoss,
    shape: Shape,
}

impl Overlay {
    /// Over `base`, with the changes in `file`, which is an overlay. One that is all zeroes is refused: it may be what is
    /// left of one. So is a base that is not as it was, as far as samples tell, unless it may have `changed`: what was
    /// copied from it would stand among blocks of another.
    pub async fn open(
        base: Member,
        file: Member,
        changed: bool,
    ) -> std::result::Result<Self, OverlayError> {
        let places = places(&base, &file)?;
        let made_on = format::base(&file.volume.read(Span::new(0, PAGE)).await?)?;
        let made_on = made_on.ok_or(OverlayError::New)?;
        if made_on.size != places.size {
            return Err(OverlayError::OtherSize { found: made_on.size, size: places.size });
        }
        if !changed && fingerprint(&base).await? != made_on.fingerprint {
            return Err(OverlayError::OtherBase);
        }
        let map = load(&file, places).await?;
        Ok(Self::over(base, file, places, map))
    }

    /// Over `base`, with nothing changed yet: `file`, all zeroes, becomes an overlay.
    pub async fn create(base: Member, file: Member) -> std::result::Result<Self, OverlayError> {
        let places = places(&base, &file)?;
        match format::base(&file.volume.read(Span::new(0, PAGE)).await?)? {
            Some(_) => return Err(OverlayError::Made),
            None if file.volume.shape().read_only => return Err(OverlayError::ReadOnly),
            None => {}
        }
        let map = make(&base, &file, places).await?;
        Ok(Self::over(base, file, places, map))
    }

    fn over(base: Member, file: Member, places: Places, map: Map) -> Self {
        let (beneath, own) = (base.volume.shape(), file.volume.shape());
        let granularity = CLUSTER as u32;
        let shape = Shape {
            size: beneath.size,
            block_size: beneath.block_size.max(own.block_size),
            physical_block_size: beneath.physical_block_size.max(own.physical_block_size),
            read_only: own.read_only,
            write_cache: true,
            discard: (!own.read_only).then_some(Discard { granularity, reads_zeroes: true }),
            fast_zeroes: own.fast_zeroes,
        };
        Self {
            base,
            file,
            places,
            map: Mutex::new(map),
            copies: RangeLock::default(),
            commits: tokio::sync::Mutex::new(()),
            loss: FirstLoss::default(),
            shape,
        }
    }

    /// How many of its clusters differ, or may differ, from the base, and how many it has.
    pub fn held(&self) -> (u64, u64) {
        (self.map().count(), self.places.clusters())
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A span of the volume in the file.
    const fn in_file(&self, span: Span) -> Span {
        Span::new(self.places.data_at() + span.at, span.len)
    }

    /// The longest run at the start of `span` that is in the file, or that is in the base.
    fn run(&self, span: Span) -> (Span, bool) {
        let map = self.map();
        let clusters = clusters(span);
        let is_present = map.is_present(clusters.start);
        let end = clusters.clone().find(|cluster| map.is_present(*cluster) != is_present);
        let end = end.map_or_else(|| span.end(), |end| end * CLUSTER);
        (Span::new(span.at, end - span.at), is_present)
    }

    fn runs(&self, span: Span) -> impl Iterator<Item = (Span, bool)> {
        let mut rest = span;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (run, is_present) = self.run(rest);
            rest = Span::new(run.end(), rest.end() - run.end());
            Some((run, is_present))
        })
    }

    async fn read_run(&self, (run, is_present): (Span, bool), of: Span) -> Result<(Span, Bytes)> {
        let read = match is_present {
            true => {
                self.file.answer(Verb::Read, of, self.file.volume.read(self.in_file(run)).await)
            }
            false => self.base.answer(Verb::Read, of, self.base.volume.read(run).await),
        };
        read.map(|bytes| (run, bytes))
    }

    async fn read_all(&self, span: Span) -> Result<Bytes> {
        let runs: Vec<_> = self.runs(span).collect();
        if let [run] = runs[..] {
            return Ok(self.read_run(run, span).await?.1);
        }
        let mut whole = BytesMut::zeroed(span.len as usize);
        let reads = runs.into_iter().map(|run| self.read_run(run, span));
        let place = |(run, bytes): (Span, Bytes)| {
            let from = (run.at - span.at) as usize;
            whole[from..from + bytes.len()].copy_from_slice(&bytes);
        };
        complete_all(RUNS_AT_ONCE, stream::iter(reads), place).await?;
        Ok(whole.freeze())
    }

    fn is_present(&self, span: Span) -> bool {
        let map = self.map();
        clusters(span).all(|cluster| map.is_present(cluster))
    }

    /// Carries out a change, of clusters that are all in the file already or are put there, and makes it as durable as it
    /// was asked for.
    async fn change(
        &self,
        (verb, span, durability): (Verb, Span, Durability),
        change: Change,
    ) -> Result<()> {
        let what = (verb, Some(span), durability);
        let work = async {
            // A bit that is set stays set, so that no lock is needed to find it.
            if self.is_present(span) {
                if self.map().is_durable(clusters(span)) {
                    return self.in_place((verb, span, durability), change).await;
                }
                self.in_place((verb, span, Durability::Volatile), change).await?;
            } else {
                let _copying = self.copies.exclusive(whole_clusters(span)).await;
                match &change {
                    Change::Write(data) => self.copy_up(span.at, data, verb).await?,
                    Change::Zero(space) => self.zero_copying((verb, span), *space).await?,
                }
                self.map().set(clusters(span));
            }
            match durability {
                Durability::Volatile => Ok(()),
                Durability::Durable => self.commit((verb, Some(span))).await,
            }
        };
        self.loss.guard(what, work).await
    }

    /// Changes what is in the file.
    async fn in_place(
        &self,
        (verb, span, durability): (Verb, Span, Durability),
        change: Change,
    ) -> Result<()> {
        let to = self.in_file(span);
        let changed = match change {
            Change::Write(data) => self.file.volume.write(to.at, data, durability).await,
            Change::Zero(space) => self.file.volume.write_zeroes(to, durability, space).await,
        };
        self.file.answer(verb, span, changed)
    }

    /// Writes these bytes to the file, and with them what is missing of their first and last clusters.
    async fn copy_up(&self, at: u64, data: &Bytes, verb: Verb) -> Result<()> {
        let span = Span::new(at, data.len() as u64);
        let whole = whole_clusters(span);
        let end = whole.end().min(self.places.size);
        let head = Span::new(whole.at, span.at - whole.at);
        let tail = Span::new(span.end(), end - span.end());
        let head = self.missing(head, verb).await?;
        let tail = self.missing(tail, verb).await?;
        let at = at - head.len() as u64;
        let bytes = match (head.is_empty(), tail.is_empty()) {
            (true, true) => data.clone(),
            _ => Bytes::from([&head[..], data, &tail].concat()),
        };
        for piece in Span::new(0, bytes.len() as u64).pieces(TRANSFER_MAX.into()) {
            let part = bytes.slice(piece.at as usize..piece.end() as usize);
            let to = self.in_file(Span::new(at + piece.at, piece.len)).at;
            let written = self.file.volume.write(to, part, Durability::Volatile).await;
            self.file.answer(verb, span, written)?;
        }
        Ok(())
    }

    /// The bytes of a part of one cluster, if that is not in the file.
    async fn missing(&self, span: Span, verb: Verb) -> Result<Bytes> {
        if span.is_empty() || self.is_present(span) {
            return Ok(Bytes::new());
        }
        self.base.answer(verb, span, self.base.volume.read(span).await)
    }

    /// Zeroes: clusters of which a part is not zeroed are copied, the others are holes of the file.
    async fn zero_copying(&self, (verb, span): (Verb, Span), space: Space) -> Result<()> {
        let first = span.at.next_multiple_of(CLUSTER).min(span.end());
        let last = match span.end() == self.places.size {
            true => span.end(),
            false => (span.end() / CLUSTER * CLUSTER).max(first),
        };
        for edge in [Span::new(span.at, first - span.at), Span::new(last, span.end() - last)] {
            if !edge.is_empty() {
                self.copy_up(edge.at, &vec![0; edge.len as usize].into(), verb).await?;
            }
        }
        let middle = Span::new(first, last - first);
        if middle.is_empty() {
            return Ok(());
        }
        self.in_place((verb, middle, Durability::Volatile), Change::Zero(space)).await
    }

    /// Makes all that was written durable: first the bytes, then the map as it was before.
    async fn commit(&self, (verb, span): (Verb, Option<Span>)) -> Result<()> {
        let _committing = self.commits.lock().await;
        let pages = self.map().to_write();
        let answer = |result| self.file.answer(verb, span, result);
        answer(self.file.volume.flush().await)?;
        if pages.is_empty() {
            return Ok(());
        }
        for (page, bytes) in pages.bytes() {
            let at = Places::page_at(page);
            answer(self.file.volume.write(at, bytes.into(), Durability::Volatile).await)?;
        }
        answer(self.file.volume.flush().await)?;
        self.map().written(&pages);
        Ok(())
    }
}

/// Where things are in the file of an overlay over this base, if there is room for them.
fn places(base: &Member, file: &Member) -> std::result::Result<Places, OverlayError> {
    let (size, own) = (base.volume.shape().size, file.volume.shape());
    let needed = file_size(size);
    if own.size < needed {
        return Err(OverlayError::Short { size, needed, found: own.size });
    }
    if u64::from(own.block_size) > PAGE {
        return Err(OverlayError::Blocks(own.block_size));
    }
    Ok(Places { size })
}

/// The clusters that a span touches.
const fn clusters(span: Span) -> Range<u64> {
    span.at / CLUSTER..span.end().div_ceil(CLUSTER)
}

/// All bytes of them.
const fn whole_clusters(span: Span) -> Span {
    let Range { start, end } = clusters(span);
    Span::new(start * CLUSTER, (end - start) * CLUSTER)
}

/// Reads the map.
async fn load(file: &Member, places: Places) -> std::result::Result<Map, OverlayError> {
    let mut map = Map::new(places);
    let all = Span::new(Places::page_at(0), places.pages() * PAGE);
    for piece in all.pieces(MAP_AT_ONCE) {
        let bytes = file.volume.read(piece).await?;
        for (page, bytes) in ((piece.at / PAGE) - 1..).zip(bytes.chunks(PAGE as usize)) {
            let present = decode_page(page, bytes).ok_or(OverlayError::Map(page))?;
            present.into_iter().for_each(|cluster| map.load(cluster));
        }
    }
    Ok(map)
}

/// Makes an overlay of a new file, whose map is empty.
async fn make(
    base: &Member,
    file: &Member,
    places: Places,
) -> std::result::Result<Map, OverlayError> {
    let map = load(file, places).await.map_err(|_| OverlayError::NotOne)?;
    if map.count() != 0 {
        return Err(OverlayError::NotOne);
    }
    let made_on = Base { size: places.size, fingerprint: fingerprint(base).await? };
    let header = header(made_on, &base.name);
    file.volume.write(0, header.into(), Durability::Durable).await?;
    Ok(map)
}

/// By what a base is known again.
async fn fingerprint(base: &Member) -> Result<[u8; 32]> {
    let samples = samples(base.volume.shape().size);
    // At once: over a long link one round trip, and not one for each.
    let read = join_all(samples.iter().map(|span| base.volume.read(*span))).await;
    let mut sum = Sha256::new();
    for (span, bytes) in samples.into_iter().zip(read) {
        sum.update(base.answer(Verb::Read, span, bytes)?);
    }
    Ok(sum.finalize().into())
}

impl Volume for Overlay {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(self.read_all(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        Box::pin(self.change((Verb::Write, span, durability), Change::Write(data)))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        Box::pin(self.change((Verb::WriteZeroes, span, durability), Change::Zero(space)))
    }

    /// The base keeps what it has, so that a discarded cluster is a hole in the file.
    fn discard(&self, span: Span) -> Work<'_, ()> {
        let what = (Verb::Discard, span, Durability::Volatile);
        Box::pin(self.change(what, Change::Zero(Space::Release)))
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(async move {
            if self.shape.read_only {
                return Ok(());
            }
            let what = (Verb::Flush, None, Durability::Durable);
            self.loss.guard(what, self.commit((Verb::Flush, None))).await
        })
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        Some(self)
    }
}

impl ExtentMap for Overlay {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            let (run, is_present) = self.run(span);
            let (member, asked) = match is_present {
                true => (&self.file, self.in_file(run)),
                false => (&self.base, run),
            };
            let Some(map) = member.volume.extents() else {
                return Ok(vec![Extent { span: run, hole: false, zero: false }]);
            };
            let mut found = member.answer(Verb::Extents, span, map.extents(asked).await)?;
            for extent in &mut found {
                extent.span.at = extent.span.at - asked.at + run.at;
            }
            Ok(found)
        })
    }
}
