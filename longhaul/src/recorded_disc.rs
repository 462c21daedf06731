//! Discs that can be written, as files: the blocks of the disc, and behind them two that say what has been recorded
//! (docs/spec/disc.md). The image is at the front, so that the file can be mounted.
//!
//! Of the two blocks one is written at a time, in turn. What a crash leaves is the one before.

use proto::iscsi::digest::crc32c;
use proto::scsi::unit::optical::{BLOCK_SIZE, Disc};
use volume::{Durability, Span, Volume};

/// How many blocks follow those of the disc.
pub const RECORD_BLOCKS: u32 = 2;

const MAGIC: [u8; 8] = *b"LH-DISC1";

/// Magic, sequence number and length; a checksum ends the block.
const HEADER: usize = 18;
const CHECKSUM: usize = 4;

/// What has been recorded, and how often that was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedDisc {
    /// What has been recorded.
    pub disc: Disc,
    sequence: u64,
}

impl RecordedDisc {
    /// A disc of which nothing was written down yet.
    #[must_use]
    pub const fn new(disc: Disc) -> Self {
        Self { disc, sequence: 0 }
    }

    /// Writes it down for the first time, in both blocks: there is room for all that follow then.
    pub async fn make(&mut self, volume: &dyn Volume) -> volume::Result<()> {
        for _ in 0..RECORD_BLOCKS {
            self.save(volume).await?;
        }
        Ok(())
    }

    /// What is written down on this volume; `None` if it is no disc that can be written.
    pub async fn load(volume: &dyn Volume) -> volume::Result<Option<Self>> {
        let (size, block) = (volume.shape().size, u64::from(BLOCK_SIZE));
        let len = u64::from(RECORD_BLOCKS) * block;
        if size <= len || !size.is_multiple_of(block) {
            return Ok(None);
        }
        let bytes = volume.read(Span::new(size - len, len)).await?;
        let found = bytes.chunks(BLOCK_SIZE as usize).filter_map(Self::parse);
        let latest = found.max_by_key(|recorded| recorded.sequence);
        Ok(latest.filter(|recorded| u64::from(recorded.disc.blocks()) * block + len == size))
    }

    /// Writes it down, behind what was written before: when this has ended, both are stable.
    pub async fn save(&mut self, volume: &dyn Volume) -> volume::Result<()> {
        volume.flush().await?;
        let sequence = self.sequence + 1;
        let block = u64::from(self.disc.blocks()) + sequence % u64::from(RECORD_BLOCKS);
        let bytes = Self { disc: self.disc.clone(), sequence }.emit();
        volume.write(block * u64::from(BLOCK_SIZE), bytes.into(), Durability::Durable).await?;
        self.sequence = sequence;
        Ok(())
    }

    fn emit(&self) -> Vec<u8> {
        let body = self.disc.emit();
        let mut block = MAGIC.to_vec();
        block.extend(self.sequence.to_be_bytes());
        block.extend((body.len() as u16).to_be_bytes());
        block.extend(body);
        block.resize(BLOCK_SIZE as usize - CHECKSUM, 0);
        let sum = crc32c(&block);
        block.extend(sum);
        block
    }

    fn parse(block: &[u8]) -> Option<Self> {
        let (content, sum) = block.split_last_chunk::<CHECKSUM>()?;
        let (header, rest) = content.split_first_chunk::<HEADER>()?;
        let rest_of = header.strip_prefix(&MAGIC)?;
        let (sequence, length) = rest_of.split_first_chunk::<8>()?;
        if crc32c(content) != *sum {
            return None;
        }
        let length = u16::from_be_bytes(length.try_into().ok()?);
        let disc = Disc::parse(rest.get(..usize::from(length))?)?;
        // None of ours was written that often, and none could follow it.
        let sequence = Some(u64::from_be_bytes(*sequence)).filter(|sequence| *sequence < u64::MAX);
        Some(Self { disc, sequence: sequence? })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proto::scsi::Blocks;
    use proto::scsi::unit::optical::DiscType;
    use volume::store::memory::Memory;

    use super::*;

    const BLOCKS: u32 = 200;

    fn volume() -> Memory {
        Memory::new(u64::from(BLOCKS + RECORD_BLOCKS) * u64::from(BLOCK_SIZE), BLOCK_SIZE)
    }

    async fn break_block(volume: &Memory, block: u32) {
        let at = u64::from(block) * u64::from(BLOCK_SIZE);
        let garbage = Bytes::from(vec![7; BLOCK_SIZE as usize]);
        volume.write(at, garbage, Durability::Volatile).await.unwrap();
    }

    #[tokio::test]
    async fn last_of_what_was_written_down_is_found() {
        let volume = volume();
        assert_eq!(RecordedDisc::load(&volume).await.unwrap(), None);
        let mut recorded = RecordedDisc::new(Disc::blank(DiscType::CdR, BLOCKS));
        for lba in 0..5 {
            recorded.save(&volume).await.unwrap();
            assert_eq!(RecordedDisc::load(&volume).await.unwrap().as_ref(), Some(&recorded));
            recorded.disc.written(Blocks { lba, count: 1 });
        }
    }

    #[tokio::test]
    async fn block_that_was_half_written_leaves_the_one_before() {
        let volume = volume();
        let mut recorded = RecordedDisc::new(Disc::blank(DiscType::BdR, BLOCKS));
        recorded.save(&volume).await.unwrap();
        let before = recorded.clone();
        recorded.disc.written(Blocks { lba: 0, count: 1 });
        recorded.save(&volume).await.unwrap();
        break_block(&volume, BLOCKS).await;
        assert_eq!(RecordedDisc::load(&volume).await.unwrap(), Some(before));
        break_block(&volume, BLOCKS + 1).await;
        assert_eq!(RecordedDisc::load(&volume).await.unwrap(), None);
    }

    #[tokio::test]
    async fn record_that_none_can_follow_is_none() {
        let volume = volume();
        let disc = RecordedDisc::new(Disc::blank(DiscType::CdR, BLOCKS));
        let at = u64::from(BLOCKS) * u64::from(BLOCK_SIZE);
        let last = RecordedDisc { sequence: u64::MAX, ..disc.clone() }.emit();
        volume.write(at, last.into(), Durability::Volatile).await.unwrap();
        assert_eq!(RecordedDisc::load(&volume).await.unwrap(), None);
    }

    /// An image that was cut out of a larger file, or that something was appended to.
    #[tokio::test]
    async fn record_of_a_disc_of_another_size_is_none() {
        let longer = Memory::new(u64::from(BLOCKS + 9) * u64::from(BLOCK_SIZE), BLOCK_SIZE);
        let block =
            RecordedDisc { sequence: 1, ..RecordedDisc::new(Disc::blank(DiscType::CdR, BLOCKS)) };
        let at = u64::from(BLOCKS + 8) * u64::from(BLOCK_SIZE);
        longer.write(at, block.emit().into(), Durability::Volatile).await.unwrap();
        assert_eq!(RecordedDisc::load(&longer).await.unwrap(), None);
    }
}
