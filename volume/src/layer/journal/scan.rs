//! Reads a journal: from the bytes of the file to the changes in it, or to what is wrong with it.
//!
//! ```text
//! superblocks -> frame head -> its bytes -> frame head -> ... -> search of the ring -> done
//! ```

use super::format::{
    Change, Extent, Frame, Invalid, LogPoint, PAGE, RING_START, Superblock, SuperblockState,
    superblock_offset,
};
use super::ring::{offset, until_end};
use crate::{Space, Span};

/// How much of the ring is searched at once, in bytes: a multiple of a page.
const SEARCH_LEN: u64 = 256 << 10;

/// What is wrong with a journal. Nothing of it was changed, and nothing may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// Neither superblock is valid.
    #[error(
        "both superblocks of the journal are invalid: the first because {0}, the second because {1}"
    )]
    NoSuperblock(Invalid, Invalid),
    /// The file is shorter than the superblock says.
    #[error("the journal is cut: it has {found} bytes, and its superblock says {expected}")]
    Cut {
        /// Bytes of the file.
        found: u64,
        /// Bytes it should have.
        expected: u64,
    },
    /// A frame is missing that was stable, as a later one says.
    #[error(
        "the journal is corrupt: frame {seq} at byte {offset} is missing ({why}), but the frame at byte {witness} says \
         that all up to {durable_seq} were stable"
    )]
    Frame {
        /// Which is missing.
        seq: u64,
        /// Where it should be, in bytes from the start of the file.
        offset: u64,
        /// What is there.
        why: Invalid,
        /// Where the frame is that says so, in bytes from the start of the file.
        witness: u64,
        /// What it says.
        durable_seq: u64,
    },
    /// A frame is missing that was stable, as the superblock says.
    #[error(
        "the journal is corrupt: frame {seq} at byte {offset} is missing ({why}), but superblock {number} says that all \
         up to {durable_seq} were stable"
    )]
    FrameOfSuperblock {
        /// Which is missing.
        seq: u64,
        /// Where it should be, in bytes from the start of the file.
        offset: u64,
        /// What is there.
        why: Invalid,
        /// The number of the superblock.
        number: u64,
        /// What it says.
        durable_seq: u64,
    },
    /// The newest superblock is missing.
    #[error(
        "the journal is corrupt: the frame at byte {witness} was made after superblock {stated}, and the newest that is \
         valid is {found}"
    )]
    Superblock {
        /// The greatest number that was found.
        found: u64,
        /// That which is missing.
        stated: u64,
        /// Where the frame is that says so, in bytes from the start of the file.
        witness: u64,
    },
    /// The disk cannot read a part of the log.
    #[error("{len} bytes of the journal at byte {offset} cannot be read")]
    Unreadable {
        /// Bytes from the start of the file.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// A frame that is whole changes what the volume does not have.
    #[error("the frame at byte {offset} of the journal changes {span} of a volume of {size} bytes")]
    Outside {
        /// Where the frame is, in bytes from the start of the file.
        offset: u64,
        /// What it changes.
        span: Span,
        /// The size of the volume in bytes.
        size: u64,
    },
}

/// Where the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was ended cleanly: it was not searched.
    Clean,
    /// It did not: what follows is damaged.
    Damaged,
    /// There is no further frame; this is there instead.
    NoFrame(Invalid),
}

/// A change that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredChange {
    /// Its group.
    pub group: u64,
    /// Where its frame is.
    pub point: LogPoint,
    /// Which bytes of the volume it changes.
    pub span: Span,
    /// What it makes of them.
    pub content: RecoveredContent,
}

/// What a change makes of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveredContent {
    /// Those at this place of the file, which have been verified.
    Write(Extent),
    /// Zeroes.
    Zero(Space),
    /// They no longer matter.
    Discard,
}

/// A journal that was read.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The newest superblock.
    pub superblock: Superblock,
    /// The changes of the groups that the superblock does not name as durable at the store, in order.
    pub changes: Vec<RecoveredChange>,
    /// Where the next frame goes.
    pub head: LogPoint,
    /// The last group of any frame.
    pub last_group: u64,
    /// Why the log ends there.
    pub end: End,
}

/// What a scan does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// It wants these bytes of the file; [`Scan::give`] follows.
    Read {
        /// From the start of the file.
        offset: u64,
        /// How many bytes, at most 10 MiB.
        len: u64,
    },
    /// The journal was read.
    Done(Box<Recovered>),
    /// It must not be used.
    Corrupt(Corruption),
}

#[derive(Debug)]
enum Phase {
    FirstSuperblock,
    SecondSuperblock(Result<Superblock, Invalid>),
    Head(Log),
    Payload(Log, Frame, [u8; 32]),
    /// The log ended because of that; so much of the ring was searched.
    Search(Log, Invalid, u64),
    Done(Log, End),
    /// With what stands before it.
    Corrupt(Corruption, Option<Box<Log>>),
}

/// What was read so far.
#[derive(Debug)]
struct Log {
    superblock: Superblock,
    next: LogPoint,
    changes: Vec<RecoveredChange>,
    last_group: u64,
}

impl Phase {
    fn log(self) -> Option<Log> {
        match self {
            Self::Head(log) | Self::Payload(log, ..) | Self::Search(log, ..) => Some(log),
            _ => None,
        }
    }
}

/// A journal that is being read.
#[derive(Debug)]
pub struct Scan {
    file_len: u64,
    phase: Phase,
}

impl Scan {
    /// Begins with the superblocks of a file of `file_len` bytes.
    #[must_use]
    pub const fn new(file_len: u64) -> Self {
        Self { file_len, phase: Phase::FirstSuperblock }
    }

    /// What is to be done next. It stays the same until [`give`](Self::give).
    #[must_use]
    pub fn step(&self) -> Step {
        let (offset, len) = match &self.phase {
            Phase::FirstSuperblock => (superblock_offset(0), PAGE),
            Phase::SecondSuperblock(_) => (superblock_offset(1), PAGE),
            Phase::Head(log) => (log.offset(), PAGE),
            Phase::Payload(log, frame, _) => (log.offset() + PAGE, frame.payload_len()),
            Phase::Search(log, _, searched) => {
                (RING_START + searched, SEARCH_LEN.min(log.superblock.ring_len - searched))
            }
            Phase::Done(log, end) => return Step::Done(Box::new(log.recovered(*end))),
            Phase::Corrupt(corruption, _) => return Step::Corrupt(*corruption),
        };
        Step::Read { offset, len }
    }

    /// The bytes that were wanted; `None`, or fewer, if the disk cannot read them.
    pub fn give(&mut self, bytes: Option<&[u8]>) {
        let Step::Read { offset, len } = self.step() else { return };
        let unreadable = Corruption::Unreadable { offset, len };
        let bytes = bytes.filter(|bytes| bytes.len() as u64 == len);
        let placeholder = Phase::Corrupt(unreadable, None);
        let phase = core::mem::replace(&mut self.phase, placeholder);
        // An unreadable superblock is an invalid one; of the log nothing may be missing.
        let is_superblock = matches!(phase, Phase::FirstSuperblock | Phase::SecondSuperblock(_));
        let bytes = match bytes {
            Some(bytes) => bytes,
            None if is_superblock => &[],
            None => {
                self.phase = Phase::Corrupt(unreadable, phase.log().map(Box::new));
                return;
            }
        };
        self.phase = match phase {
            Phase::FirstSuperblock => Phase::SecondSuperblock(superblock_at(0, bytes)),
            Phase::SecondSuperblock(first) => self.choose(first, superblock_at(1, bytes)),
            Phase::Head(log) => log.head(bytes),
            Phase::Payload(log, frame, sum) => log.payload(&frame, sum, bytes),
            Phase::Search(log, why, searched) => log.search(why, searched, bytes),
            ended @ (Phase::Done(..) | Phase::Corrupt(..)) => ended,
        };
    }

    /// What stands before the damage in a journal that is corrupt: whole, in order, and of its volume.
    #[must_use]
    pub fn salvaged(&self) -> Option<Recovered> {
        match &self.phase {
            Phase::Corrupt(_, Some(log)) => Some(log.recovered(End::Damaged)),
            Phase::Done(log, end) => Some(log.recovered(*end)),
            _ => None,
        }
    }

    /// Takes the newer superblock.
    fn choose(
        &self,
        first: Result<Superblock, Invalid>,
        second: Result<Superblock, Invalid>,
    ) -> Phase {
        let (superblock, both) = match (first, second) {
            (Ok(first), Ok(second)) if first.number > second.number => (first, true),
            (Ok(_), Ok(second)) => (second, true),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => (one, false),
            (Err(first), Err(second)) => {
                return Phase::Corrupt(Corruption::NoSuperblock(first, second), None);
            }
        };
        let expected = RING_START + superblock.ring_len;
        if self.file_len < expected {
            return Phase::Corrupt(Corruption::Cut { found: self.file_len, expected }, None);
        }
        let next = superblock.tail;
        let log = Log { superblock, next, changes: Vec::new(), last_group: 0 };
        match superblock.state {
            SuperblockState::Clean if both => Phase::Done(log, End::Clean),
            _ => Phase::Head(log),
        }
    }
}

fn superblock_at(slot: u64, bytes: &[u8]) -> Result<Superblock, Invalid> {
    let superblock = Superblock::decode(bytes)?;
    if superblock.number % 2 == slot { Ok(superblock) } else { Err(Invalid::Field("number")) }
}

impl Log {
    fn offset(&self) -> u64 {
        offset(self.superblock.ring_len, self.next.position)
    }

    /// The head of the next frame, if it is one.
    fn head(self, bytes: &[u8]) -> Phase {
        let (frame, sum) = match Frame::decode(bytes, &self.superblock.salt) {
            Ok(decoded) => decoded,
            Err(why) => return self.ended(why),
        };
        if let Some(lost) = self.lost_superblock(&frame, self.offset()) {
            return Phase::Corrupt(lost, Some(Box::new(self)));
        }
        if let Some(why) = self.disagreement(&frame) {
            return self.ended(Invalid::Field(why));
        }
        let size = self.superblock.volume.size;
        match frame.changes.iter().find(|change| change.span.end() > size) {
            Some(change) => {
                let (offset, span) = (self.offset(), change.span);
                Phase::Corrupt(Corruption::Outside { offset, span, size }, Some(Box::new(self)))
            }
            None if frame.payload_len() == 0 => self.payload(&frame, sum, &[]),
            None => Phase::Payload(self, frame, sum),
        }
    }

    /// What of a frame is not as that of the next one.
    fn disagreement(&self, frame: &Frame) -> Option<&'static str> {
        let superblock = &self.superblock;
        let used = frame.point.position.saturating_sub(superblock.tail.position);
        [
            (frame.point.position == self.next.position, "position"),
            (frame.point.seq == self.next.seq, "sequence number"),
            (frame.point.chain == self.next.chain, "chain"),
            (frame.epoch <= superblock.epoch, "epoch"),
            (frame.group >= self.last_group || frame.changes.is_empty(), "group"),
            (frame.length <= until_end(superblock.ring_len, frame.point.position), "length"),
            (used.saturating_add(frame.length) <= superblock.ring_len, "length"),
        ]
        .into_iter()
        .find_map(|(holds, what)| (!holds).then_some(what))
    }

    /// The bytes of its writes: the frame counts only with all of them.
    fn payload(mut self, frame: &Frame, sum: [u8; 32], bytes: &[u8]) -> Phase {
        let mut rest = bytes;
        let mut offset = self.offset() + PAGE;
        let before = self.changes.len();
        for change in &frame.changes {
            let content = match change.change {
                Change::Zero(space) => RecoveredContent::Zero(space),
                Change::Discard => RecoveredContent::Discard,
                Change::Write { crc } => {
                    let extent = Extent { offset, len: change.span.len, crc };
                    let taken = rest.split_at_checked(extent.len as usize);
                    let Some((payload, behind)) = taken.filter(|(taken, _)| extent.verify(taken))
                    else {
                        self.changes.truncate(before);
                        return self.ended(Invalid::Checksum);
                    };
                    debug_assert_eq!(payload.len() as u64, extent.len);
                    (rest, offset) = (behind, offset + extent.len);
                    RecoveredContent::Write(extent)
                }
            };
            let (group, point, span) = (frame.group, frame.point, change.span);
            if group > self.superblock.drained_group {
                self.changes.push(RecoveredChange { group, point, span, content });
            }
        }
        self.last_group = self.last_group.max(frame.group);
        self.next = LogPoint {
            position: frame.point.position + frame.length,
            seq: frame.point.seq + 1,
            chain: sum,
        };
        Phase::Head(self)
    }

    /// No frame is where the next one should be.
    fn ended(self, why: Invalid) -> Phase {
        let Superblock { number, durable_seq, .. } = self.superblock;
        let (seq, offset) = (self.next.seq, self.offset());
        if durable_seq >= seq {
            let missing = Corruption::FrameOfSuperblock { seq, offset, why, number, durable_seq };
            return Phase::Corrupt(missing, Some(Box::new(self)));
        }
        Phase::Search(self, why, 0)
    }

    /// Looks for a frame that says that the missing one was stable.
    fn search(self, why: Invalid, searched: u64, bytes: &[u8]) -> Phase {
        let ring_len = self.superblock.ring_len;
        for (page, place) in bytes.chunks(PAGE as usize).zip((searched..).step_by(PAGE as usize)) {
            let Ok((frame, _)) = Frame::decode(page, &self.superblock.salt) else { continue };
            let witness = RING_START + place;
            if frame.point.position % ring_len != place {
                continue;
            }
            if let Some(lost) = self.lost_superblock(&frame, witness) {
                return Phase::Corrupt(lost, Some(Box::new(self)));
            }
            let (seq, durable_seq) = (self.next.seq, frame.durable_seq);
            if durable_seq >= seq {
                let offset = self.offset();
                let missing = Corruption::Frame { seq, offset, why, witness, durable_seq };
                return Phase::Corrupt(missing, Some(Box::new(self)));
            }
        }
        let searched = searched + SEARCH_LEN;
        match searched < ring_len {
            true => Phase::Search(self, why, searched),
            false => Phase::Done(self, End::NoFrame(why)),
        }
    }

    fn lost_superblock(&self, frame: &Frame, witness: u64) -> Option<Corruption> {
        let (found, stated) = (self.superblock.number, frame.superblock);
        (stated > found).then_some(Corruption::Superblock { found, stated, witness })
    }

    fn recovered(&self, end: End) -> Recovered {
        Recovered {
            superblock: self.superblock,
            changes: self.changes.clone(),
            head: self.next,
            last_group: self.last_group.max(self.superblock.drained_group),
            end,
        }
    }
}

#[cfg(test)]
mod tests;
