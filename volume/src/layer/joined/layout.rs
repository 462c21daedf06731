//! Which bytes of a volume are where on its members. Whatever the layout, those of a span that lie on one member follow
//! one another there.

use crate::Span;

/// How the bytes are laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One member after the other: where each begins, and the end of the last.
    Concat { ends: Vec<u64> },
    /// In turn, so many bytes of each.
    Stripe { chunk: u64, members: u64 },
}

/// What a span has on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) member: usize,
    /// As the member counts.
    pub(super) span: Span,
}

/// Bytes that follow one another on a member and in the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where they are on the member.
    pub(super) member_at: u64,
    /// Where they are in the volume.
    pub(super) span: Span,
}

impl Layout {
    fn members(&self) -> usize {
        match self {
            Self::Concat { ends } => ends.len(),
            Self::Stripe { members, .. } => *members as usize,
        }
    }

    /// How many bytes of a member come before the byte `at` of the volume.
    fn below(&self, member: usize, at: u64) -> u64 {
        match self {
            Self::Concat { ends } => {
                let begin = member.checked_sub(1).map_or(0, |before| ends[before]);
                at.clamp(begin, ends[member]) - begin
            }
            Self::Stripe { chunk, members } => {
                let row = chunk * members;
                at / row * chunk + (at % row).saturating_sub(member as u64 * chunk).min(*chunk)
            }
        }
    }

    /// What `span` has on each member that it touches.
    pub(super) fn parts(&self, span: Span) -> impl Iterator<Item = Part> {
        (0..self.members()).filter_map(move |member| {
            let at = self.below(member, span.at);
            let len = self.below(member, span.end()) - at;
            (len > 0).then_some(Part { member, span: Span::new(at, len) })
        })
    }

    /// Where a byte of a member is in the volume, and how many behind it are in the same run.
    fn run_at(&self, member: usize, at: u64) -> (u64, u64) {
        match self {
            Self::Concat { ends } => {
                let begin = member.checked_sub(1).map_or(0, |before| ends[before]);
                (begin + at, u64::MAX)
            }
            Self::Stripe { chunk, members } => {
                let within = at % chunk;
                ((at / chunk * members + member as u64) * chunk + within, chunk - within)
            }
        }
    }

    /// The runs of a part, in order.
    pub(super) fn runs(&self, part: Part) -> impl Iterator<Item = Run> {
        let mut at = part.span.at;
        std::iter::from_fn(move || {
            let left = part.span.end() - at;
            let (begin, most) = self.run_at(part.member, at);
            let run = Run { member_at: at, span: Span::new(begin, most.min(left)) };
            at += run.span.len;
            (left > 0).then_some(run)
        })
    }

    /// The member that has the byte `at`, where it is there, and how many behind it are there too.
    pub(super) fn run_of(&self, at: u64) -> (usize, Run) {
        match self {
            Self::Concat { ends } => {
                let member = ends.partition_point(|end| *end <= at);
                let end = ends.get(member).copied().unwrap_or(at);
                (member, Run { member_at: self.below(member, at), span: Span::new(at, end - at) })
            }
            Self::Stripe { chunk, members } => {
                let member = (at / chunk % members) as usize;
                let span = Span::new(at, chunk - at % chunk);
                (member, Run { member_at: self.below(member, at), span })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each byte of a span is on one member, in the place that `run_of` says, and nowhere else.
        #[test]
        fn layout_covers_each_byte_once(
            ends in prop::collection::vec(1_u64..50, 1..5),
            stripe in any::<bool>(),
            chunk in 1_u64..9,
            at in 0_u64..40,
            len in 1_u64..60,
        ) {
            let mut sum = 0;
            let ends: Vec<_> = ends.into_iter().map(|len| { sum += len; sum }).collect();
            let (layout, size) = match stripe {
                true => (Layout::Stripe { chunk, members: ends.len() as u64 }, chunk * ends.len() as u64 * 9),
                false => (Layout::Concat { ends }, sum),
            };
            let at = at.min(size - 1);
            let span = Span::new(at, len.min(size - at));
            let mut covered = vec![0; span.len as usize];
            for part in layout.parts(span) {
                let mut next = part.span.at;
                for run in layout.runs(part) {
                    prop_assert_eq!(run.member_at, next);
                    next += run.span.len;
                    for byte in run.span.at..run.span.end() {
                        covered[(byte - span.at) as usize] += 1;
                        let (member, found) = layout.run_of(byte);
                        prop_assert_eq!((member, found.member_at), (part.member, run.member_at + byte - run.span.at));
                    }
                }
                prop_assert_eq!(next, part.span.end());
            }
            prop_assert!(covered.iter().all(|times| *times == 1));
        }
    }
}
