//! What changes a volume: kept until it is durable, and carried out again where it may be lost.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use volume::layer::reconnect::Replay;
use volume::{Durability, GroupChange, Space, Span};

use crate::replay_log;

/// Something that changes the volume. Carried out twice in a row it changes it once.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write {
        at: u64,
        data: Bytes,
        durability: Durability,
        /// The buffer that the data lie in holds little else.
        is_alone: bool,
    },
    Zero {
        span: Span,
        durability: Durability,
        space: Space,
    },
    Discard(Span),
    Group(Arc<Group>),
}

impl Change {
    pub(super) fn span(&self) -> Span {
        match self {
            // Groups keep their order by themselves.
            Self::Group(_) => Span::new(0, 0),
            Self::Write { at, data, .. } => Span::new(*at, data.len() as u64),
            Self::Zero { span, .. } | Self::Discard(span) => *span,
        }
    }

    pub(super) const fn durability(&self) -> Durability {
        match self {
            Self::Write { durability, .. } | Self::Zero { durability, .. } => *durability,
            Self::Discard(_) => Durability::Volatile,
            Self::Group(_) => Durability::Durable,
        }
    }

    /// If it is one.
    pub(super) fn group(&self) -> Option<&Group> {
        match self {
            Self::Group(group) => Some(group),
            _ => None,
        }
    }

    /// The part of it that concerns this part of its span.
    fn of(&self, part: Span) -> Self {
        match self {
            Self::Write { at, data, durability, .. } => {
                let data = data.slice(within(Span::new(*at, data.len() as u64), part));
                Self::Write { at: part.at, data, durability: *durability, is_alone: false }
            }
            Self::Zero { durability, space, .. } => {
                Self::Zero { span: part, durability: *durability, space: *space }
            }
            Self::Discard(_) => Self::Discard(part),
            Self::Group(group) => Self::Group(Arc::clone(group)),
        }
    }

    /// Bytes of memory it holds.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Write { data, .. } => data.len(),
            Self::Zero { .. } | Self::Discard(_) => 0,
            Self::Group(group) => group.changes.iter().map(Self::weight).sum(),
        }
    }
}

/// What is carried out together.
#[derive(Debug)]
pub(super) struct Group {
    /// Its name among those of a disk.
    pub(super) id: u64,
    /// They do not overlap.
    pub(super) changes: Vec<Change>,
    /// Where these bytes are found, all groups before were carried out.
    pub(super) checkpoint: Option<(Span, Bytes)>,
}

impl Group {
    pub(super) fn new(id: u64, changes: Vec<GroupChange>) -> Self {
        let durability = Durability::Volatile;
        let checkpoint = changes.iter().find_map(|change| match change {
            GroupChange::Checkpoint(_, data) => Some((change.what().1, data.clone())),
            _ => None,
        });
        let change = |change| match change {
            GroupChange::Write(at, data) | GroupChange::Checkpoint(at, data) => {
                Change::Write { at, data, durability, is_alone: true }
            }
            GroupChange::Zero(span, space) => Change::Zero { span, durability, space },
            GroupChange::Discard(span) => Change::Discard(span),
        };
        Self { id, changes: changes.into_iter().map(change).collect(), checkpoint }
    }
}

impl Replay for Change {
    fn part(&self, part: &Range<u64>) -> Self {
        self.of(Span::new(part.start, part.end - part.start))
    }

    fn replaces(&self) -> bool {
        !matches!(self, Self::Discard(_))
    }

    fn kept(self) -> Self {
        match self {
            Self::Write { at, data, durability, is_alone: false } if data.len() < ALONE => {
                let data = Bytes::copy_from_slice(&data);
                Self::Write { at, data, durability, is_alone: true }
            }
            other => other,
        }
    }

    fn is_group(&self) -> bool {
        matches!(self, Self::Group(_))
    }
}

/// Fewer bytes may lie in a buffer with others: fronts take up to 128 KiB of small requests from a socket at once, and give
/// larger ones a buffer of their own.
const ALONE: usize = 64 << 10;

/// Where `piece` lies in a buffer that holds `span`.
pub(super) fn within(span: Span, piece: Span) -> Range<usize> {
    usize_of(piece.at - span.at)..usize_of(piece.end() - span.at)
}

/// A length that a transfer limit has bounded.
pub(super) fn usize_of(len: u64) -> usize {
    usize::try_from(len).expect("a transfer fits the address space")
}

impl Change {
    /// What a replay log has of it.
    pub(super) fn logged(self) -> Vec<replay_log::Change> {
        vec![match self {
            Self::Write { at, data, .. } => replay_log::Change::Write { at, data },
            Self::Zero { span, space, .. } => replay_log::Change::Zero { span, space },
            Self::Discard(span) => replay_log::Change::Discard(span),
            Self::Group(group) => {
                return group.changes.iter().cloned().flat_map(Self::logged).collect();
            }
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept until somebody flushes may be a block of a buffer of a megabyte.
    #[test]
    fn change_that_is_kept_leaves_a_buffer_of_others() {
        for (len, is_alone, stays) in [
            (512, false, false),
            (ALONE - 1, false, false),
            (ALONE, false, true),
            (1 << 20, false, true),
            (512, true, true),
        ] {
            let buffer = Bytes::from(vec![7; 1 << 20]);
            let (data, durability) = (buffer.slice(..len), Durability::Volatile);
            let change = Change::Write { at: 0, data, durability, is_alone };
            let Change::Write { data, .. } = change.kept() else { panic!("a write") };
            assert_eq!(data, buffer.slice(..len));
            assert_eq!(data.as_ptr() == buffer.as_ptr(), stays, "{len}");
        }
    }
}
