//! What the machine is told, and what it says.

use crate::layer::journal::checkpoint::Checkpoint;
use crate::layer::journal::overlay::{Part, Sending};
use crate::{Durability, Space, Span};

/// How the machine behaves. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The longest frame; at most a quarter of the ring counts, and at least a page and a block.
    pub frame_max: u64,
    /// While so many appends are in flight, one at least, changes that wait to be stable are gathered in one frame.
    pub appends_max: usize,
    /// Changes wait while so much was accepted and is not yet stable in the journal.
    pub unstable_max: u64,
    /// So much of what is stable may stay in memory, so that it need not be read when it is sent.
    pub held_max: u64,
    /// A group that takes so much of the ring is closed without a flush.
    pub group_max: u64,
    /// A superblock is written when the tail has moved so far.
    pub superblock_every: u64,
    /// The most requests in flight to the store; at least one.
    pub drain_max: usize,
    /// The most bytes of writes in flight to the store, if that is more than one request.
    pub drain_bytes_max: u64,
    /// Writes side by side are sent together up to so many bytes; a group that is one write, up to a mebibyte.
    pub drain_segment: u64,
    /// Groups are handed over whole, many at a time, to a store that keeps their order.
    pub is_ordered: bool,
    /// The store has room for a [`Checkpoint`].
    pub has_checkpoint: bool,
    /// Every discarded block reads as zeroes: [`Discard::reads_zeroes`](crate::Discard::reads_zeroes), and a
    /// granularity not above the block size.
    pub discard_zeroes: bool,
}

impl Settings {
    /// For a journal of some GiB. Of discards nothing is assumed.
    pub const DEFAULT: Self = Self {
        frame_max: 1 << 20,
        appends_max: 4,
        unstable_max: 32 << 20,
        held_max: 64 << 20,
        group_max: 32 << 20,
        superblock_every: 64 << 20,
        drain_max: 1024,
        drain_bytes_max: 96 << 20,
        drain_segment: 1 << 20,
        is_ordered: false,
        has_checkpoint: false,
        discard_zeroes: false,
    };
}

/// How much is sent at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainWindow {
    /// [`Settings::drain_max`], if that is not less.
    pub requests: usize,
    /// [`Settings::drain_bytes_max`], if that is not less.
    pub bytes: u64,
    /// [`Settings::drain_segment`], if that is not less.
    pub segment: u64,
}

impl DrainWindow {
    /// The most.
    pub(super) const fn of(settings: &Settings) -> Self {
        let Settings { drain_max, drain_bytes_max, drain_segment, .. } = *settings;
        Self { requests: drain_max, bytes: drain_bytes_max, segment: drain_segment }
    }
}

/// What the driver is to do, in this order; appends, superblocks and what is sent may then be in flight together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Synchronise the journal file; [`super::Journal::synced`] follows.
    Sync,
    /// Write these bytes to the journal file and have them stable; [`super::Journal::appended`] follows.
    Append {
        /// The sequence number of the frame.
        seq: u64,
        /// From the start of the file.
        offset: u64,
        /// All of them.
        bytes: Vec<u8>,
    },
    /// The same of a superblock; [`super::Journal::superblock_written`] follows.
    Superblock {
        /// Its number.
        number: u64,
        /// From the start of the file.
        offset: u64,
        /// All of them.
        bytes: Vec<u8>,
    },
    /// Write to the store; [`super::Journal::drained`] follows.
    DrainWrite {
        /// Of this request.
        id: u64,
        /// Which bytes of the volume.
        span: Span,
        /// Where they are, in order and without gaps: in memory or in the journal.
        parts: Vec<Part>,
        /// Whether it is to be durable when it is answered.
        durability: Durability,
    },
    /// Zero bytes of the store; [`super::Journal::drained`] follows.
    DrainZero {
        /// Of this request.
        id: u64,
        /// Which bytes of the volume.
        span: Span,
        /// Whether their space may be given back.
        space: Space,
        /// Whether it is to be durable when it is answered.
        durability: Durability,
    },
    /// Discard bytes of the store; [`super::Journal::drained`] follows.
    DrainDiscard {
        /// Of this request.
        id: u64,
        /// Which bytes of the volume.
        span: Span,
    },
    /// Flush the store; [`super::Journal::drained`] follows.
    DrainFlush {
        /// Of this request.
        id: u64,
    },
    /// Carry out a whole group at the store and make it durable, behind all groups that were sent before;
    /// [`super::Journal::drained`] follows.
    DrainGroup {
        /// Of this request.
        id: u64,
        /// What it consists of; nothing overlaps.
        changes: Vec<(Span, Sending)>,
        /// What is written to the place of the checkpoint as a part of it.
        checkpoint: Option<Checkpoint>,
    },
    /// Write the checkpoint, and flush the store; [`super::Journal::checkpointed`] follows.
    Checkpoint(Checkpoint),
    /// A request has ended.
    Answer {
        /// The caller's id.
        id: u64,
        /// How.
        result: Result<(), Refused>,
    },
}

impl Action {
    pub(super) const fn is_answer(&self) -> bool {
        matches!(self, Self::Answer { .. })
    }

    pub(super) const fn is_sending(&self) -> bool {
        matches!(
            self,
            Self::DrainWrite { .. }
                | Self::DrainZero { .. }
                | Self::DrainDiscard { .. }
                | Self::DrainFlush { .. }
                | Self::DrainGroup { .. }
                | Self::Checkpoint(_)
        )
    }
}

/// What is done when the file of a journal has failed, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retirement {
    /// Requests to the store by groups, each of which a flush of the store follows. Those of a group do not overlap.
    pub groups: Vec<Vec<Action>>,
    /// Where the superblock goes that says that the journal holds nothing, in bytes from the start of the file.
    pub offset: u64,
    /// All bytes of it.
    pub bytes: Vec<u8>,
}

/// Why a request is not carried out. A change may be in the journal all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The journal is broken.
    #[error("the journal is broken: {0}")]
    Broken(Cause),
    /// Another writer has the volume.
    #[error("the volume was taken over: its journal is frozen")]
    Frozen,
    /// It was closed.
    #[error("the journal is closed")]
    Closed,
}

/// What broke the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The journal file could not be written or synchronised.
    #[error("its file cannot be written")]
    File,
    /// The store refused what was sent, or the journal could not be read to send it.
    #[error("changes cannot be sent to the store")]
    Store,
}

/// How the journal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Changes are accepted.
    Open,
    /// They wait for room in the ring.
    Full,
    /// It is closed, and sends what is left.
    Draining,
    /// It is closed, and the store has everything.
    Clean,
    /// It failed: nothing more is accepted, written or sent.
    Broken(Cause),
    /// Another writer has the volume: nothing more is accepted or sent.
    Frozen,
}

/// Numbers to show. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// How it is.
    pub state: State,
    /// How much of the ring is in use.
    pub used: u64,
    /// How long the ring is.
    pub ring_len: u64,
    /// Changes that the store does not have for certain.
    pub unsent: usize,
    /// The file says of all changes that the store has them: whoever reads it finds none.
    pub is_recorded: bool,
    /// Changes that wait for room, the first of which may have been accepted in part.
    pub waiting: usize,
}
