//! The commands that read, decide and write without another such command coming between (SBC-3, 5.2 and
//! 5.5). They exclude one another where their blocks overlap, across all sessions; plain writes take no
//! lock and may land before or after, as SAM-5 leaves them unordered.

use bytes::{Bytes, BytesMut};
use proto::scsi::Blocks;
use volume::{Durability, Volume};

use super::super::answer::Abort;
use super::super::data;
use super::super::fault::Fault;
use super::Core;
use super::execute::durability;
use super::medium::miscompare;

impl Core {
    /// COMPARE AND WRITE: the first half of the data-out is compared, the second written.
    pub(super) async fn compare_and_write(
        &self,
        blocks: Blocks,
        data: Vec<Bytes>,
        durability: Durability,
    ) -> Result<(), Fault> {
        let half = self.span(blocks).len as usize;
        let mut expected = data::joined(data, 2 * half);
        let new = expected.split_off(half);
        let _held = self.state.exclusive.exclusive(self.span(blocks)).await;
        let found = self.read(blocks).await?;
        if let Some(offset) = data::difference(&found, &expected) {
            // SBC-3, 5.2: the information is the offset of the first byte that differs.
            return Err(miscompare().with_information(offset as u64).into());
        }
        self.put(blocks, new, durability).await
    }

    /// ORWRITE: sets the bits of the data-out.
    pub(super) async fn or_write(
        &self,
        blocks: Blocks,
        data: Vec<Bytes>,
        durability: Durability,
    ) -> Result<(), Fault> {
        let bits = data::joined(data, self.span(blocks).len as usize);
        let _held = self.state.exclusive.exclusive(self.span(blocks)).await;
        let mut merged = BytesMut::from(&self.read(blocks).await?[..]);
        merged.iter_mut().zip(&bits).for_each(|(byte, bits)| *byte |= bits);
        self.put(blocks, merged.freeze(), durability).await
    }

    /// WRITE ATOMIC: one write, while no other command is at the medium.
    pub(super) async fn write_atomic(
        &self,
        blocks: Blocks,
        data: Vec<Bytes>,
        durable: bool,
        abort: &Abort,
    ) -> Result<(), Fault> {
        let data = data::joined(data, self.span(blocks).len as usize);
        let _exclusive = self.enter_alone(abort).await?;
        self.put(blocks, data, durability(durable)).await
    }

    async fn put(&self, blocks: Blocks, data: Bytes, durability: Durability) -> Result<(), Fault> {
        if data.is_empty() {
            return Ok(());
        }
        let written = self.volume.write(self.span(blocks).at, data, durability).await;
        written.map_err(|error| self.fault(&error, Some(blocks.lba)))
    }
}
