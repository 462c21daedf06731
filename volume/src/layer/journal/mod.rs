//! Keeps changes in a file on a local disk until the volume beneath has them: a pure machine.
//!
//! ```text
//! write, flush, read ->           -> append this frame, answer that request
//!  appended, drained ->  Journal  -> send this, flush the store
//!  scanned frames    ->           -> write this superblock
//! ```
//!
//! [`Superblock::new`] makes a journal, [`Scan`] reads one, [`Journal`] runs it. None of them does I/O, reads a clock or
//! chooses anything at random. [`Journaled`] is the layer: it carries out what the machine says on a [`JournalFile`] and
//! the volume beneath. `docs/spec/journal.md` says what is promised and how it holds.

mod checkpoint;
mod file;
mod format;
mod intervals;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod layer;
mod machine;
mod overlay;
mod ring;
mod scan;
mod shared;
mod status;
mod worker;

pub use checkpoint::{CHECKPOINT_LEN, Checkpoint, Stale};
pub use file::{FileError, FileWork, JournalFile, recover, salvage};

pub use format::{
    Change, Descriptor, Extent, Frame, Identity, Invalid, LogPoint, PAGE, RING_START, Superblock,
    SuperblockState, superblock_offset,
};
pub use layer::{FlushPolicy, Journaled, LayerOptions};
pub use machine::{
    Action, Cause, DrainWindow, Journal, Refused, Retirement, Settings, State, Status,
};
pub use overlay::{Content, Part, Sending, Source, Unsent};
pub use scan::{Corruption, End, Recovered, RecoveredChange, RecoveredContent, Scan, Step};
pub use status::{Failure, IsFence, LayerStatus, Mode};
