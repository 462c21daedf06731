//! The checkpoint: how far a journal had come, in a place of the volume that no change touches. A journal that ends before it
//! is an older copy of itself, and what the store has by it is not sent again.

use bytes::Bytes;

use super::format::{Invalid, Superblock, VERSION, fields_of, with_sum};
use super::scan::Recovered;
use crate::{Durability, Result, Span, Volume};

const MAGIC: &[u8; 8] = b"LHJCHECK";

/// How many bytes of the store are written for one, and more where blocks are larger.
pub const CHECKPOINT_LEN: u64 = 4096;

/// How far a journal had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The id of the journal.
    pub journal: [u8; 16],
    /// A frame of it that was stable, as all before it.
    pub frame: u64,
    /// A group of it that was durable at the store, as all before it.
    pub group: u64,
    /// In which epoch of it that was so. In a later one older groups may have been sent again.
    pub epoch: u64,
}

/// Why what a journal holds must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// It ends before the checkpoint.
    #[error("it ends at frame {found}, and the volume was given changes when it had {stated}")]
    Copy {
        /// The last frame that was found.
        found: u64,
        /// The frame of the checkpoint.
        stated: u64,
    },
    /// The checkpoint is of another one.
    #[error("another journal has been used for the volume since")]
    Replaced,
}

impl Checkpoint {
    /// That of a journal as it was read.
    #[must_use]
    pub const fn of(found: &Recovered) -> Self {
        let Superblock { id, drained_group, epoch, .. } = found.superblock;
        Self { journal: id, frame: found.head.seq - 1, group: drained_group, epoch }
    }

    /// The bytes at its place, `len` of them and at least 512.
    fn encode(&self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.journal);
        bytes.extend_from_slice(&self.frame.to_le_bytes());
        bytes.extend_from_slice(&self.group.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        with_sum(bytes, len)
    }

    /// The bytes at this place.
    pub(super) fn encode_for(&self, place: Span) -> Bytes {
        self.encode(usize::try_from(place.len).expect("a block fits memory")).into()
    }

    /// Writes it, and flushes the volume. It is not one durable write: after such a one that failed a file's server refuses every
    /// flush, and one that no flush has covered is written again on another connection, over what groups have written since.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`] and [`Volume::flush`].
    pub async fn write(&self, volume: &dyn Volume, place: Span) -> Result<()> {
        volume.write(place.at, self.encode_for(place), Durability::Volatile).await?;
        volume.flush().await
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// If it is not that.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Self, Invalid> {
        let mut fields = fields_of(bytes, MAGIC)?;
        fields.take(4)?;
        let (journal, frame) = (fields.array()?, fields.u64()?);
        Ok(Self { journal, frame, group: fields.u64()?, epoch: fields.u64()? })
    }

    /// Whether what was `found` is the journal that this is of, as it is or as it was later.
    ///
    /// # Errors
    ///
    /// If it is another, or an older copy.
    pub fn admit(&self, found: &Recovered) -> std::result::Result<(), Stale> {
        let there = Self::of(found);
        match there.journal == self.journal {
            false => Err(Stale::Replaced),
            true if there.frame < self.frame => {
                Err(Stale::Copy { found: there.frame, stated: self.frame })
            }
            true => Ok(()),
        }
    }

    /// Takes away from an admitted journal what the store has, if nothing was sent from it since.
    pub fn apply(&self, found: &mut Recovered) {
        if self.epoch != found.superblock.epoch {
            return;
        }
        found.changes.retain(|change| change.group > self.group);
        found.superblock.drained_group = found.superblock.drained_group.max(self.group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::journal::format::{Identity, LogPoint, Superblock};
    use crate::layer::journal::scan::End;

    const ID: [u8; 16] = [7; 16];

    fn found(frames: u64) -> Recovered {
        let volume = Identity { name: [0; 32], size: 1 << 30, block_size: 512 };
        let [superblock, _] = Superblock::new(ID, [0; 32], volume, 8 << 20).unwrap();
        let head = LogPoint { position: 0, seq: frames + 1, chain: [0; 32] };
        Recovered { superblock, changes: Vec::new(), head, last_group: 0, end: End::Clean }
    }

    #[test]
    fn checkpoint_is_read_as_it_was_written() {
        let checkpoint = Checkpoint::of(&found(41));
        assert_eq!(checkpoint, Checkpoint { journal: ID, frame: 41, group: 0, epoch: 0 });
        let checkpoint = Checkpoint { group: 17, epoch: 3, ..checkpoint };
        for len in [512, 4096, 65_536] {
            let bytes = checkpoint.encode(len);
            assert_eq!(bytes.len(), len);
            assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint));
        }
    }

    #[test]
    fn damaged_checkpoint_is_none() {
        let bytes = Checkpoint::of(&found(41)).encode(4096);
        for at in 0..512 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Checkpoint::decode(&damaged).is_err(), "byte {at}");
        }
        for len in 0..512 {
            assert!(Checkpoint::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(Checkpoint::decode(&[0; 4096]).is_err());
    }

    #[test]
    fn journal_that_ends_before_its_checkpoint_is_a_copy() {
        let checkpoint = Checkpoint { journal: ID, frame: 41, group: 0, epoch: 0 };
        assert_eq!(checkpoint.admit(&found(41)), Ok(()));
        assert_eq!(checkpoint.admit(&found(42)), Ok(()));
        let stale = Stale::Copy { found: 40, stated: 41 };
        assert_eq!(checkpoint.admit(&found(40)), Err(stale));
    }

    #[test]
    fn journal_is_refused_by_the_checkpoint_of_another() {
        let checkpoint = Checkpoint { journal: [8; 16], frame: 0, group: 0, epoch: 0 };
        assert_eq!(checkpoint.admit(&found(41)), Err(Stale::Replaced));
    }
}
