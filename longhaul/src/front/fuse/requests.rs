//! What requests for bytes of a file mean to a volume, whose blocks they need not fill.

use std::sync::Arc;

use bytes::Bytes;
use volume::layer::narrow::Narrow;
use volume::{Durability, Error, Kind, Result, Shape, Space, Span, Verb, Volume, Work};

/// A volume of which any bytes can be read and written.
pub(super) struct ByteVolume {
    narrow: Narrow,
}

/// What fallocate(2) is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allocation {
    /// FALLOC_FL_PUNCH_HOLE: "subsequent reads from this range will return zeros".
    PunchHole,
    /// FALLOC_FL_ZERO_RANGE: the same, and a later write needs no new space.
    ZeroRange,
}

impl Allocation {
    /// What these flags of fallocate(2) ask for, of what a volume can do. The size never changes.
    pub(super) const fn of(mode: i32) -> Option<Self> {
        const KEEP_SIZE: i32 = 1;
        const PUNCH_HOLE: i32 = 2;
        const ZERO_RANGE: i32 = 16;
        match mode & !KEEP_SIZE {
            PUNCH_HOLE => Some(Self::PunchHole),
            ZERO_RANGE => Some(Self::ZeroRange),
            _ => None,
        }
    }
}

impl ByteVolume {
    pub(super) fn new(volume: Arc<dyn Volume>) -> Self {
        Self { narrow: Narrow::new(volume, 1, detach) }
    }

    pub(super) fn shape(&self) -> &Shape {
        self.narrow.shape()
    }

    /// The bytes of `span` that there are: less than asked for at the end.
    pub(super) async fn read(&self, at: u64, len: u64) -> Result<Bytes> {
        let span = self.clipped(at, len);
        if span.is_empty() { Ok(Bytes::new()) } else { self.narrow.read(span).await }
    }

    /// Writes what fits, and says how much that is; nothing fits behind the end, as on a block device.
    pub(super) async fn write(&self, at: u64, data: Bytes, durability: Durability) -> Result<u32> {
        let asked = Span::new(at, data.len() as u64);
        let span = self.clipped(at, asked.len);
        if span.is_empty() && !asked.is_empty() {
            return Err(Error::new(Kind::NoSpace, Verb::Write, asked));
        }
        self.change(Verb::Write, span)?;
        if !span.is_empty() {
            self.narrow.write(at, data.slice(..span.len as usize), durability).await?;
        }
        Ok(span.len as u32)
    }

    /// Zeroes what there is of a range, unless that would mean to send as many zeroes: whoever asks can do that better.
    pub(super) async fn allocate(
        &self,
        allocation: Allocation,
        at: u64,
        len: u64,
        durability: Durability,
    ) -> Result<()> {
        let span = self.clipped(at, len);
        self.change(Verb::WriteZeroes, span)?;
        if !self.shape().fast_zeroes {
            return Err(Error::new(Kind::Unsupported, Verb::WriteZeroes, span));
        }
        let space = match allocation {
            Allocation::PunchHole => Space::Release,
            Allocation::ZeroRange => Space::Keep,
        };
        if span.is_empty() {
            return Ok(());
        }
        self.narrow.write_zeroes(span, durability, space).await
    }

    pub(super) async fn flush(&self) -> Result<()> {
        self.narrow.flush().await
    }

    fn clipped(&self, at: u64, len: u64) -> Span {
        let size = self.shape().size;
        Span::new(at, len.min(size.saturating_sub(at)))
    }

    fn change(&self, verb: Verb, span: Span) -> Result<()> {
        match self.shape().read_only {
            true => Err(Error::new(Kind::ReadOnly, verb, span)),
            false => Ok(()),
        }
    }
}

/// Finishes work in a task of its own, whoever stops waiting for it.
fn detach(work: Work<'static, ()>) -> Work<'static, ()> {
    let task = tokio::spawn(work);
    Box::pin(async { task.await.expect("tasks are not cancelled while anything waits for them") })
}

#[cfg(test)]
mod tests {
    use volume::store::memory::Memory;

    use super::*;

    fn volume() -> ByteVolume {
        ByteVolume::new(Arc::new(Memory::new(8192, 4096)))
    }

    #[tokio::test]
    async fn any_bytes_can_be_written_and_their_neighbours_stay() {
        let volume = volume();
        let write = |at, byte, len| volume.write(at, vec![byte; len].into(), Durability::Volatile);
        assert_eq!(write(0, 1, 8192).await.unwrap(), 8192);
        assert_eq!(write(4000, 2, 200).await.unwrap(), 200);
        let read = volume.read(3999, 202).await.unwrap();
        assert_eq!((read[0], read[1], read[200], read[201]), (1, 2, 2, 1));
    }

    #[tokio::test]
    async fn end_of_the_file_is_that_of_the_volume() {
        let volume = volume();
        assert_eq!(volume.read(8190, 100).await.unwrap().len(), 2);
        assert_eq!(volume.read(8192, 100).await.unwrap().len(), 0);
        assert_eq!(volume.read(u64::MAX, 100).await.unwrap().len(), 0);
        let write = |at| volume.write(at, vec![1; 10].into(), Durability::Volatile);
        assert_eq!(write(8190).await.unwrap(), 2);
        assert_eq!(write(8192).await.unwrap_err().kind, Kind::NoSpace);
        volume.allocate(Allocation::PunchHole, 4096, u64::MAX, Durability::Volatile).await.unwrap();
        assert_eq!(volume.read(8190, 2).await.unwrap(), [0, 0][..]);
    }

    #[tokio::test]
    async fn hole_of_any_bytes_reads_as_zeroes_between_its_neighbours() {
        let volume = volume();
        volume.write(0, vec![1; 8192].into(), Durability::Volatile).await.unwrap();
        volume.allocate(Allocation::PunchHole, 100, 6000, Durability::Volatile).await.unwrap();
        let read = volume.read(0, 8192).await.unwrap();
        assert!(read[..100].iter().chain(&read[6100..]).all(|byte| *byte == 1));
        assert!(read[100..6100].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn only_flags_that_a_volume_can_follow_mean_something() {
        assert_eq!(Allocation::of(1 | 2), Some(Allocation::PunchHole));
        assert_eq!(Allocation::of(1 | 16), Some(Allocation::ZeroRange));
        // Room for what is to be written cannot be promised; FALLOC_FL_COLLAPSE_RANGE changes the size.
        assert_eq!(Allocation::of(0), None);
        assert_eq!(Allocation::of(1), None);
        assert_eq!(Allocation::of(8), None);
    }
}
