//! The contract itself: verbs, the shape of a volume, and what each side owes the other.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;

use crate::{Durability, Error, Kind, Result, Space, Span, Verb};

/// The answer of a verb, still to come. One allocation per hop.
///
/// A dropped `Work` may or may not have happened; it never leaves memory shared with the system.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// The most bytes one `read` or `write` may carry; verbs without data have no such limit.
///
/// It bounds what one request can make a chain allocate, and is the largest NBD payload in common use.
pub const TRANSFER_MAX: u32 = 32 << 20;

/// A fixed-size array of bytes.
///
/// # What a volume owes its caller
///
/// - A completed write is seen by every later read, through any handle.
/// - A completed write is durable after a [`flush`](Self::flush) that *began* after its completion,
///   or at once if it asked for [`Durability::Durable`].
/// - Writes that overlap in flight land in either order, or block by block mixed; a read that
///   overlaps a write in flight sees, block by block, the old or the new bytes.
/// - Each block of [`Shape::block_size`] bytes is written whole or not at all, unless the medium fails.
/// - No failure is forgotten. Once a flush has failed, or a change in a way that may have cost more than
///   itself ([`Kind::loses`](crate::Kind::loses)), every later flush and durable change fails as well,
///   with the first failure as its cause, until the volume is opened again: the system may have dropped
///   what it had taken, and would report success the second time. It counts whether or not anybody
///   waited for it. A volatile change that was only refused counts not: its caller was told, and
///   nothing that was there before is lost.
/// - Verbs may be called from any thread and any number may be in flight.
/// - No verb returns while a part of it is under way, whether it succeeded or failed
///   ([`complete_all`](crate::complete_all)): what it left running could land over what is written next.
///   One exception: a volume that holds the same several times, of which one has not answered in time, may
///   leave the request there to itself, if it has noted durably that this one is not to be read, and asks it
///   for nothing before that request has ended ([`Mirror`](crate::layer::mirror::Mirror)). A read that another
///   has answered meanwhile may be left to itself: it changes nothing.
/// - A dropped future may or may not have happened, and may still happen. Whoever drops one must see to it
///   that nobody takes it for ended.
///
/// # What a caller owes the volume
///
/// Spans are block-aligned, inside the volume, and for `read` and `write` not above [`TRANSFER_MAX`];
/// no write reaches a read-only volume. [`Gate`](crate::Gate) enforces it, so no store or layer must.
///
/// No verb has a default body: a new verb must break every layer at compile time, because a layer
/// that is ignorant of a verb corrupts data.
pub trait Volume: Send + Sync {
    /// Size, blocks and abilities; the same for the life of this handle.
    fn shape(&self) -> &Shape;

    /// Reads `span`; the answer has exactly its length.
    fn read(&self, span: Span) -> Work<'_, Bytes>;

    /// Writes `data` from byte `at` on.
    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()>;

    /// Makes `span` read as zeroes, by whatever means is cheapest; with [`Space::Release`] it may
    /// give the space back as well.
    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()>;

    /// Says that the contents of `span` no longer matter. It is a hint: afterwards each block reads
    /// as zeroes if [`Discard::reads_zeroes`] says so, and as old bytes or zeroes otherwise.
    fn discard(&self, span: Span) -> Work<'_, ()>;

    /// Makes every write that completed before this call durable.
    fn flush(&self) -> Work<'_, ()>;

    /// The map of what is allocated, if this volume has one.
    fn extents(&self) -> Option<&dyn ExtentMap>;

    /// Whether what is written is saved elsewhere, since changes failed that were acknowledged before: what is read
    /// may then be older than what was acknowledged, and must not be merged into a block that is written.
    fn is_saving(&self) -> bool {
        false
    }

    /// Takes a write of part of a block that cannot be carried out, because the rest of the block cannot be had. It
    /// always fails; but a volume that saves elsewhere what was acknowledged saves this too.
    fn save_part(&self, at: u64, data: Bytes) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        Box::pin(std::future::ready(Err(Error::new(Kind::Range, Verb::Write, span))))
    }

    /// Groups of changes of which the order is kept, if this volume can have several under way. A layer that does not
    /// know of it has none.
    fn ordered(&self) -> Option<&dyn Ordered> {
        None
    }
}

/// Carries out groups of changes one after another, without a round trip between them.
pub trait Ordered: Send + Sync {
    /// Carries out changes that do not overlap, in any order, and makes them durable. The order of groups is that of the
    /// calls, whenever the futures are polled: nothing of one is carried out before those before it are durable, also
    /// where a connection is lost meanwhile. Each may be carried out again unless it is known that it was. Therefore groups
    /// that are under way together do not overlap, but a later one with a [checkpoint](GroupChange::Checkpoint), and those
    /// behind it, may overlap those before. Once one has failed, nothing behind it is carried out.
    fn write_group(&self, group: Vec<GroupChange>) -> Work<'_, ()>;
}

/// A change of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// [`Volume::write`] from that byte on.
    Write(u64, Bytes),
    /// [`Volume::write_zeroes`].
    Zero(Span, Space),
    /// [`Volume::discard`].
    Discard(Span),
    /// A write that says that all groups before this one were carried out: no other write has these bytes. Where they are
    /// found no group before is carried out again.
    Checkpoint(u64, Bytes),
}

impl GroupChange {
    /// The verb, and which bytes it concerns.
    #[must_use]
    pub const fn what(&self) -> (Verb, Span) {
        match self {
            Self::Write(at, data) | Self::Checkpoint(at, data) => {
                (Verb::Write, Span::new(*at, data.len() as u64))
            }
            Self::Zero(span, _) => (Verb::WriteZeroes, *span),
            Self::Discard(span) => (Verb::Discard, *span),
        }
    }
}

/// Tells data from holes, for sparse copies and GET LBA STATUS.
pub trait ExtentMap: Send + Sync {
    /// The extents that cover `span`, in order, without gaps; the last may end before `span` does
    /// when the store limits one answer, but the answer is never empty.
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>>;
}

/// Destroys all that is on a volume by destroying the key it is enciphered with.
pub trait CryptoErase: Send + Sync {
    /// Once this has completed, what was written before is lost to everybody, whatever key he had, and every
    /// block reads as noise or zeroes until it is written. No other verb but flush may be in flight.
    ///
    /// If it fails, the volume holds either all it held or nothing of it, as its reads tell, or it does not answer any
    /// more. What a loss of power leaves to do is done when the volume is opened again.
    fn crypto_erase(&self) -> Work<'_, ()>;
}

/// A run of blocks of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where, in bytes.
    pub span: Span,
    /// No space is allocated for it.
    pub hole: bool,
    /// It reads as zeroes.
    pub zero: bool,
}

/// What does not change while a volume is open. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The size of the volume, a multiple of `block_size`.
    pub size: u64,
    /// The unit of every span: a power of two from 512 to 65,536.
    pub block_size: u32,
    /// The unit in which the medium works best, a power-of-two multiple of `block_size`; smaller
    /// writes may cost a read.
    pub physical_block_size: u32,
    /// Writes are refused with [`Kind::ReadOnly`](crate::Kind::ReadOnly).
    pub read_only: bool,
    /// A completed write may be volatile until a flush.
    pub write_cache: bool,
    /// What discard does here; `None` where it is not supported and is refused.
    pub discard: Option<Discard>,
    /// `write_zeroes` costs less than sending zeroes.
    pub fast_zeroes: bool,
}

impl Shape {
    /// That of a volume in memory: it has no cache, and any of its blocks is zeroed or discarded at no cost.
    #[must_use]
    pub const fn in_memory(size: u64, block_size: u32) -> Self {
        Self {
            size,
            block_size,
            physical_block_size: block_size,
            read_only: false,
            write_cache: false,
            discard: Some(Discard { granularity: block_size, reads_zeroes: true }),
            fast_zeroes: true,
        }
    }
}

/// How a volume discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discard {
    /// Spans smaller than this, or not aligned to it, may be kept as they are. In bytes.
    pub granularity: u32,
    /// Discarded blocks read as zeroes.
    pub reads_zeroes: bool,
}
