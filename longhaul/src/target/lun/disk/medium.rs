//! The steps that touch the medium, with the verbs of the volume.

use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use proto::scsi::cdb::Compare;
use proto::scsi::provisioning::{self, LbaStatus};
use proto::scsi::sense::{Additional, Key};
use proto::scsi::unit::{MediumOp, truncate};
use proto::scsi::{Blocks, Sense};
use tokio::task::yield_now;
use volume::{Durability, Extent, ExtentMap, Space, Span, Volume, complete_all};

use super::super::answer::Abort;
use super::super::data;
use super::super::fault::Fault;
use super::super::medium_lock::{ExclusiveGuard, SharedGuard};
use super::Core;
use super::execute::durability;

/// How much VERIFY reads, and WRITE SAME writes, at a time: one command may cover the whole disk, but
/// holds no more memory than this, and lets the other commands of its session run in between.
pub(super) const CHUNK: u32 = 1 << 20;

/// How much GET LBA STATUS looks at: as many blocks as a run can count. Stores bound how many extents they find, and
/// the initiator asks on from where the answer ends.
const STATUS_WINDOW: u64 = 1 << 40;

/// The most runs GET LBA STATUS returns, however much the initiator would take.
const STATUS_RUNS_MAX: usize = 4096;

impl Core {
    /// Does what a command asks for with the medium. What is rare is in a box of its own: the room for it is not made for
    /// each read and write.
    pub(super) async fn access_medium(
        &self,
        op: MediumOp,
        data: Vec<Bytes>,
        abort: &Abort,
    ) -> Result<Vec<Bytes>, Fault> {
        match op {
            // These go in again and again, part by part, as they may take long.
            MediumOp::WriteVerify(blocks, compare) => {
                Box::pin(self.write_and_verify(blocks, compare, data, abort)).await?;
            }
            MediumOp::Verify(blocks, compare) => {
                Box::pin(self.verify(blocks, compare, data, abort)).await?;
            }
            MediumOp::WriteSame { blocks, release, no_data, durable } => {
                let block = if no_data { None } else { Some(data) };
                let durability = durability(durable);
                Box::pin(self.write_same(blocks, block, release, durability, abort)).await?;
            }
            MediumOp::WriteAtomic { blocks, durable } => {
                Box::pin(self.write_atomic(blocks, data, durable, abort)).await?;
            }
            MediumOp::Read(blocks) => {
                let _guard = self.enter(abort).await?;
                return self.read(blocks).await.map(|data| vec![data]);
            }
            MediumOp::LbaStatus { lba, allocation } => {
                let _guard = self.enter(abort).await?;
                return Box::pin(self.lba_status(lba, allocation)).await;
            }
            MediumOp::Write { blocks, durable } => {
                let _guard = self.enter(abort).await?;
                self.write(self.came(blocks, &data), data, durable).await?;
            }
            MediumOp::CompareAndWrite { blocks, durable } => {
                let _guard = self.enter(abort).await?;
                Box::pin(self.compare_and_write(blocks, data, durability(durable))).await?;
            }
            MediumOp::OrWrite { blocks, durable } => {
                let _guard = self.enter(abort).await?;
                Box::pin(self.or_write(blocks, data, durability(durable))).await?;
            }
            MediumOp::Flush => {
                let _guard = self.enter(abort).await?;
                self.flush().await?;
            }
            MediumOp::Unmap => {
                let _guard = self.enter(abort).await?;
                Box::pin(self.unmap(data)).await?;
                // Nothing makes a single one of them durable. A switch from here on sees to it itself.
                if !self.switches().write_cache {
                    self.flush().await?;
                }
            }
        }
        Ok(Vec::new())
    }

    /// Goes to the medium, unless it was taken away while this waited.
    /// SANITIZE may hold it for hours: a task that waits for that is refused at once, and can be aborted.
    pub(super) async fn enter(&self, abort: &Abort) -> Result<SharedGuard<'_>, Fault> {
        let lock = &self.state.lock;
        let guard = match lock.try_shared() {
            Some(guard) => guard,
            None => {
                let allowed = lock.while_allowed(lock.shared(), || self.still_ready());
                Box::pin(abort.unless(allowed)).await??
            }
        };
        self.still_ready().map(|()| guard)
    }

    /// The same, alone.
    pub(super) async fn enter_alone(&self, abort: &Abort) -> Result<ExclusiveGuard<'_>, Fault> {
        let lock = &self.state.lock;
        let guard = lock.while_allowed(lock.exclusive(), || self.still_ready());
        let guard = abort.unless(guard).await??;
        self.still_ready().map(|()| guard)
    }

    pub(super) fn still_ready(&self) -> Result<(), Fault> {
        if self.state.retired.load(Ordering::Acquire) {
            return Err(Sense::illegal(Additional::LOGICAL_UNIT_NOT_SUPPORTED).into());
        }
        self.refuse_outdated()?;
        self.refuse_without_permit()?;
        self.switches().readiness.sense().map_or(Ok(()), |sense| Err(sense.into()))
    }

    async fn write_and_verify(
        &self,
        blocks: Blocks,
        compare: Compare,
        data: Vec<Bytes>,
        abort: &Abort,
    ) -> Result<(), Fault> {
        let blocks = self.came(blocks, &data);
        let kept = if compare == Compare::Nothing { Vec::new() } else { data.clone() };
        let inside = self.enter(abort).await?;
        self.write(blocks, data, true).await?;
        drop(inside);
        self.verify(blocks, compare, kept, abort).await
    }

    /// The blocks of a write for which there are data.
    pub(super) fn came(&self, blocks: Blocks, data: &[Bytes]) -> Blocks {
        let came = data::length(data) / self.unit.block_size() as usize;
        Blocks { count: blocks.count.min(u32::try_from(came).unwrap_or(u32::MAX)), ..blocks }
    }

    pub(super) async fn read(&self, blocks: Blocks) -> Result<Bytes, Fault> {
        if blocks.count == 0 {
            return Ok(Bytes::new());
        }
        let read = self.volume.read(self.span(blocks)).await;
        read.map_err(|error| self.fault(&error, Some(blocks.lba)))
    }

    /// Writes each piece as it lies in memory, all at once; blocks never mix, so their order is free.
    pub(super) async fn write(
        &self,
        blocks: Blocks,
        data: Vec<Bytes>,
        durable: bool,
    ) -> Result<(), Fault> {
        let Span { at, len } = self.span(blocks);
        let mut pieces = data::whole_blocks(data, len as usize, self.unit.block_size() as usize);
        let several = pieces.len() > 1;
        let written = match pieces.pop() {
            Some(only) if !several => self.volume.write(at, only, durability(durable)).await,
            last => {
                pieces.extend(last);
                // It is rare, and large: those who write one piece do not move it about.
                Box::pin(self.write_pieces(at, pieces)).await
            }
        };
        written.map_err(|error| self.fault(&error, Some(blocks.lba)))?;
        // One flush behind several writes is cheaper than stable storage for each.
        if durable && several { self.flush().await } else { Ok(()) }
    }

    /// Writes pieces that follow one another from `at` on, all at once.
    async fn write_pieces(&self, mut at: u64, pieces: Vec<Bytes>) -> volume::Result<()> {
        let pieces_max = pieces.len().max(1);
        let writes = pieces.into_iter().map(|piece| {
            let from = at;
            at += piece.len() as u64;
            self.volume.write(from, piece, Durability::Volatile)
        });
        complete_all(pieces_max, stream::iter(writes), drop).await
    }

    async fn verify(
        &self,
        blocks: Blocks,
        compare: Compare,
        data: Vec<Bytes>,
        abort: &Abort,
    ) -> Result<(), Fault> {
        let block_size = self.unit.block_size();
        let expected = match compare {
            Compare::Nothing => Bytes::new(),
            Compare::All => data::joined(data, self.span(blocks).len as usize),
            Compare::One => data::joined(data, block_size as usize),
        };
        for part in self.chunks(blocks) {
            abort.check()?;
            let inside = self.enter(abort).await?;
            let found = self.read(part).await?;
            drop(inside);
            let differs = match compare {
                Compare::Nothing => None,
                Compare::All => {
                    let from = self.span(Blocks { lba: part.lba - blocks.lba, ..part }).at as usize;
                    data::difference(&found, &expected[from..from + found.len()])
                }
                Compare::One => found
                    .chunks(block_size as usize)
                    .position(|block| *block != expected)
                    .map(|block| block * block_size as usize),
            };
            if let Some(offset) = differs {
                // SBC-3, 4.18.1: the information is the address of the block.
                let lba = part.lba + offset as u64 / u64::from(block_size);
                return Err(miscompare().with_information(lba).into());
            }
            yield_now().await;
        }
        Ok(())
    }

    /// Writes one block over and over; none given, or one of zeroes, is the volume's own verb.
    async fn write_same(
        &self,
        blocks: Blocks,
        block: Option<Vec<Bytes>>,
        release: bool,
        durability: Durability,
        abort: &Abort,
    ) -> Result<(), Fault> {
        let failed = |error: volume::Error| self.fault(&error, Some(blocks.lba));
        let block = block.map(|pieces| data::joined(pieces, self.unit.block_size() as usize));
        let Some(block) = block.filter(|block| block.iter().any(|byte| *byte != 0)) else {
            let space = if release { Space::Release } else { Space::Keep };
            let _guard = self.enter(abort).await?;
            let zeroed = self.volume.write_zeroes(self.span(blocks), durability, space);
            return zeroed.await.map_err(failed);
        };
        let pattern = self.pattern(blocks, &block);
        for chunk in self.chunks(blocks) {
            abort.check()?;
            let _guard = self.enter(abort).await?;
            self.put_pattern(chunk, &pattern, durability).await?;
            yield_now().await;
        }
        Ok(())
    }

    /// As many copies of a block as the largest chunk of `blocks` holds.
    pub(super) fn pattern(&self, blocks: Blocks, block: &[u8]) -> Bytes {
        let most = self.chunks(blocks).next().map_or(0, |chunk| chunk.count);
        let mut pattern = BytesMut::with_capacity(most as usize * block.len());
        (0..most).for_each(|_| pattern.extend_from_slice(block));
        pattern.freeze()
    }

    /// Writes as much of a pattern as `chunk` holds.
    pub(super) async fn put_pattern(
        &self,
        chunk: Blocks,
        pattern: &Bytes,
        durability: Durability,
    ) -> Result<(), Fault> {
        let Span { at, len } = self.span(chunk);
        let written = self.volume.write(at, pattern.slice(..len as usize), durability).await;
        written.map_err(|error| self.fault(&error, Some(chunk.lba)))
    }

    async fn unmap(&self, list: Vec<Bytes>) -> Result<(), Fault> {
        let length = data::length(&list);
        for blocks in self.unit.unmap(&data::joined(list, length))? {
            let discarded = self.volume.discard(self.span(blocks)).await;
            discarded.map_err(|error| self.fault(&error, Some(blocks.lba)))?;
        }
        Ok(())
    }

    async fn lba_status(&self, lba: u64, allocation: u32) -> Result<Vec<Bytes>, Fault> {
        let block = u64::from(self.unit.block_size());
        let window = (self.unit.blocks() - lba).min(STATUS_WINDOW / block);
        let span = self.span(Blocks { lba, count: window as u32 });
        let extents = match self.volume.extents() {
            Some(map) => ExtentMap::extents(map, span).await,
            // Without a map everything counts as mapped.
            None => Ok(vec![Extent { span, hole: false, zero: false }]),
        };
        let extents = extents.map_err(|error| self.fault(&error, Some(lba)))?;
        let room = (allocation as usize).saturating_sub(provisioning::HEADER);
        // An answer too small for one run still says how long it would be.
        let runs = (room / provisioning::DESCRIPTOR).clamp(1, STATUS_RUNS_MAX);
        let mut statuses = self.statuses(span, &extents);
        statuses.truncate(runs);
        Ok(vec![truncate(provisioning::emit_status(&statuses), allocation).into()])
    }

    /// The extents in whole blocks: one is deallocated if a hole covers it and it reads as a deallocated
    /// block must.
    pub(super) fn statuses(&self, span: Span, extents: &[Extent]) -> Vec<LbaStatus> {
        let block = u64::from(self.unit.block_size());
        let mut runs: Vec<LbaStatus> = Vec::new();
        let mut push = |from: u64, to: u64, status| {
            let count = (to.saturating_sub(from) / block) as u32;
            match runs.last_mut() {
                _ if count == 0 => {}
                Some(last) if last.status == status => last.blocks.count += count,
                _ => runs.push(LbaStatus { blocks: Blocks { lba: from / block, count }, status }),
            }
        };
        let mut at = span.at;
        for extent in extents.iter().filter(|extent| self.deallocated(extent)) {
            let from = extent.span.at.max(at).next_multiple_of(block);
            let to = extent.span.end().min(span.end()) / block * block;
            if from < to {
                push(at, from, provisioning::Status::Mapped);
                push(from, to, provisioning::Status::Deallocated);
                at = to;
            }
        }
        let known = extents.last().map_or(span, |last| last.span);
        let end = known.end().min(span.end());
        push(at, end.next_multiple_of(block), provisioning::Status::Mapped);
        runs
    }

    fn deallocated(&self, extent: &Extent) -> bool {
        let must_be_zero = self.volume.shape().discard.is_some_and(|discard| discard.reads_zeroes);
        extent.hole && (extent.zero || !must_be_zero)
    }

    /// The parts of `blocks` that hold at most [`CHUNK`] bytes, and at least one block.
    fn chunks(&self, blocks: Blocks) -> impl Iterator<Item = Blocks> {
        let most = (CHUNK / self.unit.block_size()).max(1);
        (0..blocks.count).step_by(most as usize).map(move |from| Blocks {
            lba: blocks.lba + u64::from(from),
            count: most.min(blocks.count - from),
        })
    }
}

pub(super) const fn miscompare() -> Sense {
    Sense::new(Key::Miscompare, Additional::MISCOMPARE_DURING_VERIFY)
}
