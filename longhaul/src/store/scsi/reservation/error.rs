//! Why a volume is not reserved, and who has it.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto::scsi::writer::{NotHeld, Registrants};

use super::answers::describe;
use super::request::Request;
use crate::attachments::{AliveReason, Known};
use crate::printable::Shown as _;
use crate::store::scsi::key::made_at;
use crate::store::scsi::unit::UnitError;
use crate::utc::{now, utc};

/// Why a volume is not reserved.
#[derive(Debug, thiserror::Error)]
pub enum ReservationError {
    /// The unit does not answer as it should.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// No randomness for a key.
    #[error("the system gives no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// Another writer has the volume, or it is kept for a replay log.
    #[error("{what}: {0}", what = .0.what())]
    Held(Holders),
    /// The last attachment has left a replay log that is gone.
    #[error(
        "what its last attachment could not write is in the file {}, which is not there or cannot be read", .0.shown()
    )]
    LogMissing(PathBuf),
    /// The last attachment has left a journal that was not sent.
    #[error("what its last attachment accepted and has not sent is in the journal {}", .0.shown())]
    JournalUnsent(PathBuf),
    /// Another writer has the volume now, or had it meanwhile.
    #[error("the reservation was taken away; the volume is held by {0}")]
    Fenced(Holders),
    /// Another writer has put its mark on the volume, or ours is gone.
    #[error("the mark of this attachment is not on the volume any more; {0}")]
    Replaced(String),
    /// Nobody knows whether others have written since a writer that is gone.
    #[error("cannot know whether anybody has written to the volume since: {why}")]
    NotResumed {
        /// What shows no more that nobody has.
        why: String,
        /// Another writer has it now.
        is_held: bool,
    },
    /// The reservation can be neither had nor refused.
    #[error("cannot reserve the volume: {0}")]
    Failed(String),
}

impl ReservationError {
    /// Whether the volume is another's now, or was meanwhile.
    pub(in crate::store::scsi) const fn is_fence(&self) -> bool {
        matches!(self, Self::Fenced(_) | Self::Replaced(_))
    }
}

/// Who has a volume.
#[derive(Clone, Debug)]
pub struct Holders {
    registrants: Registrants,
    /// The process, if it is one of this machine, and since when it is attached.
    here: Option<(u32, Duration)>,
    /// It is noted in the state directory, and why it is not taken over for that.
    doubt: Option<AliveReason>,
}

/// Nothing more is known of them.
impl From<Registrants> for Holders {
    fn from(registrants: Registrants) -> Self {
        Self { registrants, here: None, doubt: None }
    }
}

impl Holders {
    /// The key of the first of them.
    pub(in crate::store::scsi) fn key(&self) -> Option<u64> {
        self.registrants.0.first().map(|first| first.key)
    }

    /// Whether the volume waits for a replay log to be written.
    pub(crate) const fn has_unwritten_log(&self) -> bool {
        matches!(self.doubt, Some(AliveReason::Unwritten(_) | AliveReason::LogMissing(_)))
    }

    /// Whether that log is not there.
    pub(crate) const fn has_missing_log(&self) -> bool {
        matches!(self.doubt, Some(AliveReason::LogMissing(_)))
    }

    /// What they are to somebody who wants to write.
    pub(in crate::store::scsi) const fn what(&self) -> &'static str {
        match self.has_unwritten_log() {
            true => "it is reserved for the replay log of its last writer",
            false => "another writer has the volume",
        }
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registrants.fmt(f)?;
        let since = self.key().and_then(|key| made_at(key, now()));
        match (self.here, since) {
            (Some((pid, ago)), _) => {
                let ago = ago.as_secs();
                write!(f, " (process {pid} of this machine, attached {ago} s ago)")?;
            }
            (None, Some(since)) => write!(f, " (attached at {} by its clock)", utc(since))?,
            (None, None) => {}
        }
        match &self.doubt {
            Some(why) => write!(f, " (noted in the state directory; {why})"),
            None => Ok(()),
        }
    }
}

/// What it means at an attachment that the reservation cannot be had.
pub(super) fn not_held(
    why: NotHeld<UnitError>,
    known: &Known,
    request: &Request<'_>,
) -> ReservationError {
    match why {
        NotHeld::By(registrants) => {
            let key = registrants.0.first().map(|first| first.key);
            let here = known.living.iter().find(|entry| Some(entry.key) == key);
            let here = here.map(|entry| (entry.pid, since(entry.since)));
            let doubt = known.doubtful.iter().find(|(entry, ..)| Some(entry.key) == key);
            let doubt = doubt.map(|(.., doubt)| doubt.clone());
            // The note may be gone, or that of another machine.
            let log = || Some(AliveReason::Unwritten(request.unwritten(key?, None)?));
            let doubt = doubt.or_else(|| log().filter(|_| here.is_none()));
            ReservationError::Held(Holders { registrants, here, doubt })
        }
        NotHeld::Unit(why) => why.into(),
        other => ReservationError::Failed(describe(&other)),
    }
}

/// What it means for one who goes on for a writer that is gone.
pub(super) fn not_resumed(why: NotHeld<UnitError>) -> ReservationError {
    let is_held = matches!(&why, NotHeld::By(Registrants(found)) if !found.is_empty());
    let why = match why {
        NotHeld::By(Registrants(found)) if found.is_empty() => {
            "the reservation of the attachment it is from is gone".to_owned()
        }
        NotHeld::By(found) => {
            format!("the attachment it is from does not have the volume any more; {found} has")
        }
        NotHeld::Unsupported => "the target has no persistent reservations".to_owned(),
        NotHeld::Unit(why) => return why.into(),
        other => describe(&other),
    };
    ReservationError::NotResumed { why, is_held }
}

pub(super) fn since(seconds: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(seconds))
}
