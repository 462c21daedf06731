//! The members of a volume that is made of several.

use std::sync::Arc;

use crate::{Discard, Error, Result, Shape, Span, Verb, Volume};

/// One of the volumes that another is made of.
#[derive(Clone)]
pub struct Member {
    /// What messages call it.
    pub name: Arc<str>,
    /// It.
    pub volume: Arc<dyn Volume>,
}

/// What failed on a member.
#[derive(Debug, thiserror::Error)]
#[error("{member}: {source}")]
struct OnMember {
    member: Arc<str>,
    source: Error,
}

impl Member {
    /// A volume under the name that messages call it by.
    pub fn new(name: impl Into<Arc<str>>, volume: Arc<dyn Volume>) -> Self {
        Self { name: name.into(), volume }
    }

    /// What it answered, as the answer to `verb` on `span` of the whole.
    pub(super) fn answer<T>(
        &self,
        verb: Verb,
        span: impl Into<Option<Span>>,
        result: Result<T>,
    ) -> Result<T> {
        result.map_err(|source| {
            let member = Arc::clone(&self.name);
            Error::new(source.kind, verb, span).because(OnMember { member, source })
        })
    }
}

/// What all members can do together, in blocks that are whole on each; the size is that of one of them.
pub(super) fn common_shape(members: &[Member]) -> Shape {
    let mut shapes = members.iter().map(|member| member.volume.shape());
    let first = shapes.next().cloned().unwrap_or(Shape::in_memory(0, 512));
    shapes.fold(first, |all, shape| Shape {
        size: all.size.min(shape.size),
        block_size: all.block_size.max(shape.block_size),
        physical_block_size: all.physical_block_size.max(shape.physical_block_size),
        read_only: all.read_only || shape.read_only,
        write_cache: all.write_cache || shape.write_cache,
        discard: all.discard.zip(shape.discard).map(|(one, other)| Discard {
            granularity: one.granularity.max(other.granularity),
            reads_zeroes: one.reads_zeroes && other.reads_zeroes,
        }),
        fast_zeroes: all.fast_zeroes && shape.fast_zeroes,
    })
}
