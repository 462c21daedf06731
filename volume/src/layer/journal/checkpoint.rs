//! The checkpoint: how far a journal had come, in a place of the volume that no change touches. A journal that ends before it
//! is an older copy of itself.

use std::task::Context;
use std::time::Duration;

use bytes::Bytes;

use super::format::{Invalid, VERSION, fields_of, with_sum};
use super::scan::Recovered;
use crate::Span;
use crate::layer::reconnect::{Runtime, Task};

const MAGIC: &[u8; 8] = b"LHJCHECK";

/// How far apart the store is told: of a copy that is younger than this it may not be known that it is one.
const EVERY: Duration = Duration::from_secs(10);

/// How far a journal had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The id of the journal.
    pub journal: [u8; 16],
    /// A frame of it that was stable, as all before it.
    pub frame: u64,
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
        Self { journal: found.superblock.id, frame: found.head.seq - 1 }
    }

    /// The bytes at its place, `len` of them and at least 512.
    #[must_use]
    pub fn encode(&self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.journal);
        bytes.extend_from_slice(&self.frame.to_le_bytes());
        with_sum(bytes, len)
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    ///
    /// If it is not that.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let mut fields = fields_of(bytes, MAGIC)?;
        fields.take(4)?;
        Ok(Self { journal: fields.array()?, frame: fields.u64()? })
    }

    /// Whether what was `found` is the journal that this is of, as it is or as it was later.
    ///
    /// # Errors
    ///
    /// If it is another, or an older copy.
    pub fn admit(&self, found: &Recovered) -> Result<(), Stale> {
        let there = Self::of(found);
        match there.journal == self.journal {
            false => Err(Stale::Replaced),
            true if there.frame < self.frame => {
                Err(Stale::Copy { found: there.frame, stated: self.frame })
            }
            true => Ok(()),
        }
    }
}

/// What a running journal has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// The last group that is durable at the store.
    pub(super) sent: u64,
    /// The last frame that is stable, as all before it.
    pub(super) frame: u64,
}

/// Decides when a checkpoint is written: when the store was given something since the last one, and some time after that.
pub(super) struct Checkpoints {
    place: Span,
    journal: [u8; 16],
    /// What the store had when the last one was written.
    sent: u64,
    is_under_way: bool,
    wait: Option<Task>,
}

impl Checkpoints {
    /// For the journal that was read. The place has the one of when it was opened.
    pub(super) fn new(place: Span, found: &Recovered) -> Self {
        let Recovered { superblock, .. } = found;
        let (journal, sent) = (superblock.id, superblock.drained_group);
        Self { place, journal, sent, is_under_way: false, wait: None }
    }

    /// What is to be written now, and where.
    pub(super) fn due(
        &mut self,
        context: &mut Context<'_>,
        runtime: &dyn Runtime,
        Progress { sent, frame }: Progress,
    ) -> Option<(u64, Bytes)> {
        if self.is_under_way || sent <= self.sent {
            return None;
        }
        if self.wait.as_mut().is_some_and(|wait| wait.as_mut().poll(context).is_pending()) {
            return None;
        }
        (self.sent, self.is_under_way) = (sent, true);
        self.wait = Some(runtime.sleep_until(runtime.now() + EVERY));
        let len = usize::try_from(self.place.len).expect("a block fits memory");
        let checkpoint = Checkpoint { journal: self.journal, frame };
        Some((self.place.at, checkpoint.encode(len).into()))
    }

    /// The last one was written, or not.
    pub(super) const fn ended(&mut self) {
        self.is_under_way = false;
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
        assert_eq!(checkpoint, Checkpoint { journal: ID, frame: 41 });
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
        let checkpoint = Checkpoint { journal: ID, frame: 41 };
        assert_eq!(checkpoint.admit(&found(41)), Ok(()));
        assert_eq!(checkpoint.admit(&found(42)), Ok(()));
        let stale = Stale::Copy { found: 40, stated: 41 };
        assert_eq!(checkpoint.admit(&found(40)), Err(stale));
    }

    #[test]
    fn journal_is_refused_by_the_checkpoint_of_another() {
        let checkpoint = Checkpoint { journal: [8; 16], frame: 0 };
        assert_eq!(checkpoint.admit(&found(41)), Err(Stale::Replaced));
    }
}
