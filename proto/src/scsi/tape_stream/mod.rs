//! An initiator's side of a tape drive: blocks that are written and read ahead of their answers.
//!
//! A command on a tape is not idempotent: each begins where the one before has ended. So nothing is sent again before the
//! head is known to be where it belongs. Whatever ends a run of commands early (a connection that is lost, a unit
//! attention, a drive that is busy) is met in one way:
//!
//! 1. The answers of all commands that are under way are waited for, unless their session is gone.
//! 2. The head is put behind the last object of which it is certain that it is where it belongs: of a drive that was reset,
//!    or whose session was lost, behind what was made stable, as it may have lost what lay in its buffer; else behind what was
//!    acknowledged in order. READ POSITION confirms that. After a reset it is proven that the tape is the same, so that no
//!    other is written to: the object before that place is there, the data end where they may, and the last of them are ours. So
//!    that there is something to prove that by, nothing follows on the first block before it is stable.
//! 3. From there on objects are written or read again. What a drive has carried out behind that place is overwritten.
//!
//! A drive that is reset while its session lives on, and rewinds for that, is not one to be used so: what was under way then
//! is written at its beginning. That is noticed, and too late.
//!
//! No I/O and no clock: a driver carries out what [`Stream::poll`] asks for.

mod answer;
mod item;
mod placement;
mod read;
#[cfg(test)]
mod tests;
mod write;

use core::time::Duration;

use bytes::Bytes;

pub use answer::{Answer, StreamError};
pub use read::{End, Read};
pub use write::Write;

use super::command::Command;
use super::command::tape::{Length, TapeMode};

/// How a stream uses a drive.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Blocks of one length, which are counted; blocks of any length if `None`.
    pub fixed: Option<Fixed>,
    /// The most bytes under way.
    pub ahead_bytes: usize,
    /// The most commands under way.
    pub ahead_commands: usize,
    /// After so many bytes what was written is made stable. Twice as many are kept to be written again.
    pub stable_every: usize,
    /// The drive knows LOCATE. Without it there is one command under way at a time.
    pub can_locate: bool,
    /// The drive knows the long form of READ POSITION.
    pub has_long_position: bool,
}

/// Blocks of one length.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    /// How long each is.
    pub block: u32,
    /// How many a command has at most.
    pub count: u32,
    /// How the drive was set before.
    pub mode: TapeMode,
}

impl Settings {
    fn depth(&self) -> usize {
        if self.can_locate { self.ahead_commands.max(1) } else { 1 }
    }

    /// How the blocks of so many bytes are counted.
    fn length(&self, bytes: usize) -> Length {
        match self.fixed {
            Some(Fixed { block, .. }) => {
                Length::Fixed { count: bytes as u32 / block.max(1), block }
            }
            None => Length::Variable(bytes as u32),
        }
    }
}

/// A command to be carried out.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tells its answer from others.
    pub ticket: u64,
    /// The command. Those of a stream are ordered.
    pub command: Command,
    /// Its data-out.
    pub data: Bytes,
    /// How long to wait before it is sent. Nothing else is under way then.
    pub after: Duration,
}

/// A stream of blocks, as its driver sees it.
pub trait Stream {
    /// The next command, if one can be sent now.
    fn poll(&mut self) -> Option<Request>;

    /// A command has ended.
    fn answered(&mut self, ticket: u64, answer: Answer);

    /// The session is gone, and with it all that was under way.
    fn lost(&mut self);

    /// Whether it waits for a new session.
    fn is_lost(&self) -> bool;

    /// There is a new session, with nothing of the old one under way any more. What lay in the buffer of the drive may be lost:
    /// an answer that told of a reset may have been lost with the session.
    fn connected(&mut self);

    /// Whether a reset of the drive has ended commands under way. They have no answer (SAM-5, 5.6: unless TAS is set), so that
    /// a new session is needed.
    fn has_orphans(&self) -> bool;

    /// Why it has ended, if it has before its end.
    fn failure(&self) -> Option<&StreamError>;
}
