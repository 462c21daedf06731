//! How a tape is opened: which label counts, and where what was written ends.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::format::{BLOCK_MAX, FIRST, Found, Header, LABELS, Label, Place, UNIT};
use super::writing::{SkipLinks, UNSTABLE_MAX};
use super::{SIZE_MIN, Tape, TapeError, TapeResult};
use crate::{Error, Kind, Span, Volume};

/// The most that a drive leaves behind the end that the label names.
const BEHIND_MAX: u64 = UNSTABLE_MAX + Header::size(BLOCK_MAX);

/// Why a volume cannot be used as a tape.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It failed.
    #[error(transparent)]
    Volume(#[from] Error),
    /// It is too small.
    #[error("a tape has at least {SIZE_MIN} bytes")]
    Small,
    /// Its blocks are not those of tapes.
    #[error("a tape is a volume with blocks of {UNIT} bytes")]
    Blocks,
    /// Something else is on it.
    #[error("it holds something that is no tape")]
    Foreign,
    /// A later release has written it.
    #[error("it is a tape of version {0}, which this release does not know")]
    Version(u32),
    /// It was written to as one that can be written over.
    #[error("something was written to the tape as to one that can be written over")]
    Written,
    /// Neither copy of the label can be used.
    #[error("both labels of the tape are damaged")]
    Damaged,
    /// The volume ends before the recorded data do.
    #[error("the tape is cut off: its data go to byte {end}, and it has {size} bytes")]
    CutOff {
        /// Where the data end.
        end: u64,
        /// The size of the volume.
        size: u64,
    },
    /// There are records behind the end that the label names which no drive leaves there.
    #[error("more lies behind the end that the label of the tape names than a drive leaves there")]
    Unlabelled,
}

/// What the label of a tape says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelInfo {
    /// Nothing was ever written to it.
    pub is_blank: bool,
    /// Nothing that is on it is written over.
    pub is_write_once: bool,
}

/// How many records are read before others are let run.
const AT_ONCE: u32 = 2048;

/// How much is looked at in one piece.
const PIECE: u64 = 64 << 10;

impl From<TapeError> for OpenError {
    fn from(error: TapeError) -> Self {
        match error {
            TapeError::Volume(error) => Self::Volume(error),
            _ => Self::Damaged,
        }
    }
}

impl Tape {
    /// Opens the tape on `volume`, at its beginning. A volume of zeroes is a blank tape, whose name will be `new_id`.
    pub async fn open(volume: Arc<dyn Volume>, new_id: u64) -> Result<Self, OpenError> {
        let label = label_of(&*volume, new_id).await?;
        let mut tape = Self::labelled(volume, label);
        tape.find_end().await?;
        Ok(tape)
    }

    /// Whether there is a tape on `volume`, or may be: tells what [`open`](Self::open) does without a look at the records.
    pub async fn check(volume: &dyn Volume) -> Result<LabelInfo, OpenError> {
        let Label { sequence, is_write_once, .. } = label_of(volume, 0).await?;
        Ok(LabelInfo { is_blank: sequence == 0, is_write_once })
    }

    /// Makes the blank tape on `volume` one that can be written once, whose name will be `new_id`. It stays so.
    pub async fn make_write_once(volume: Arc<dyn Volume>, new_id: u64) -> Result<(), OpenError> {
        let label = label_of(&*volume, new_id).await?;
        if label.sequence != 0 {
            return Err(OpenError::Written);
        }
        let tape = Self::labelled(volume, label);
        tape.put_label(Label { is_write_once: true, ..label }).await?;
        Ok(())
    }

    fn labelled(volume: Arc<dyn Volume>, label: Label) -> Self {
        let (links, mark_links) = (SkipLinks::default(), SkipLinks::default());
        Self {
            volume,
            label,
            at: Place::BEGINNING,
            end: label.end,
            unstable: 0,
            is_writing: false,
            links,
            mark_links,
            longest: 0,
            has_failed: false,
        }
    }

    /// Goes on from the end that the label names over the records that were written behind it and are whole. The first
    /// that is not, or is from an earlier run of writing, is the torn tail of the last run: nothing of it was acknowledged
    /// as stable, or the label would name an end behind it.
    async fn find_end(&mut self) -> Result<(), OpenError> {
        let (mut likely, mut records) = (0, 0_u32);
        while let Some((header, sum)) = self.record_behind_end(likely).await? {
            records += 1;
            if records.is_multiple_of(AT_ONCE) {
                let_others_run().await;
            }
            let end = header.after(sum);
            self.unstable += end.at - self.end.at;
            (self.end, likely) = (end, header.len);
            if self.unstable > BEHIND_MAX {
                return Err(OpenError::Unlabelled);
            }
        }
        Ok(())
    }

    async fn record_behind_end(&self, likely: u32) -> TapeResult<Option<(Header, u32)>> {
        match self.record(&self.end, self.capacity(), likely).await {
            Ok((header, sum, _)) => Ok((header.epoch == self.label.epoch).then_some((header, sum))),
            Err(TapeError::Damaged { .. }) => Ok(None),
            Err(why) => Err(why),
        }
    }
}

/// Lets other tasks run: what is read may be much, and all at hand.
async fn let_others_run() {
    let mut is_over = false;
    poll_fn(|cx| match std::mem::replace(&mut is_over, true) {
        true => Poll::Ready(()),
        false => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

/// The label of the tape on `volume`.
async fn label_of(volume: &dyn Volume, new_id: u64) -> Result<Label, OpenError> {
    let shape = volume.shape();
    if shape.size < SIZE_MIN {
        return Err(OpenError::Small);
    }
    if u64::from(shape.block_size) != UNIT {
        return Err(OpenError::Blocks);
    }
    let mut copies = Vec::new();
    for at in LABELS {
        copies.push(match volume.read(Span::new(at, UNIT)).await {
            Ok(unit) => Label::decode(&unit),
            // A bad sector costs one copy.
            Err(error) if matches!(error.kind, Kind::Medium | Kind::Integrity) => Found::Damaged,
            Err(error) => return Err(error.into()),
        });
    }
    let label = newest(&copies, new_id)?;
    if copies.iter().all(|copy| *copy == Found::Nothing) {
        refuse_used(volume).await?;
    }
    match label.end.at <= shape.size {
        true => Ok(label),
        false => Err(OpenError::CutOff { end: label.end.at, size: shape.size }),
    }
}

/// Without labels, a tape is blank only if it holds zeroes: what is there must not be written over.
async fn refuse_used(volume: &dyn Volume) -> Result<(), OpenError> {
    let unit = volume.read(Span::new(FIRST, UNIT)).await?;
    if Header::decode(&unit).is_some() {
        // Labels are written before records: they are lost.
        return Err(OpenError::Damaged);
    }
    // File systems, discs, swap areas and archives all have something there.
    for at in (0..SIZE_MIN).step_by(PIECE as usize) {
        let piece = volume.read(Span::new(at, PIECE)).await?;
        if piece.iter().any(|byte| *byte != 0) {
            return Err(OpenError::Foreign);
        }
    }
    Ok(())
}

/// The label that counts. The first copy is written before the second one, and nothing is acknowledged before both are
/// stable: where one cannot be used, whatever became of it, the other one tells no less than what was acknowledged.
fn newest(copies: &[Found], new_id: u64) -> Result<Label, OpenError> {
    let labels = copies.iter().filter_map(|copy| match copy {
        Found::Label(label) => Some(*label),
        _ => None,
    });
    if let Some(newest) = labels.max_by_key(|label| label.sequence) {
        return Ok(newest);
    }
    let find = |wanted: fn(&Found) -> bool| copies.iter().copied().find(wanted);
    match find(|copy| matches!(copy, Found::Version(_))) {
        Some(Found::Version(version)) => Err(OpenError::Version(version)),
        _ if copies.iter().all(|copy| *copy == Found::Nothing) => Ok(Label::blank(new_id)),
        _ if copies.contains(&Found::Damaged) => Err(OpenError::Damaged),
        _ => Err(OpenError::Foreign),
    }
}
