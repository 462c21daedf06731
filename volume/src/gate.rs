//! The checked hop between rooms: what a caller may not ask never reaches a store or a layer.

use std::future::ready;

use bytes::Bytes;

use crate::{
    Durability, Error, Extent, ExtentMap, GroupChange, Kind, Ordered, Result, Shape, Space, Span,
    TRANSFER_MAX, Verb, Volume, Work,
};

/// Wraps one room of a chain under its name and checks every request on its way in: alignment,
/// range, length, ability. It adds no allocation to a request that passes.
pub struct Gate<V> {
    room: &'static str,
    inner: V,
}

impl<V: Volume> Gate<V> {
    /// A gate in front of `inner`; `room` names it in traces.
    pub fn new(room: &'static str, inner: V) -> Self {
        let Shape { size, block_size, physical_block_size, .. } = *inner.shape();
        assert!(block_size.is_power_of_two() && (512..=65_536).contains(&block_size));
        assert!(physical_block_size.is_power_of_two() && physical_block_size >= block_size);
        assert!(size.is_multiple_of(u64::from(block_size)));
        Self { room, inner }
    }

    /// The room behind the gate.
    pub fn inner(&self) -> &V {
        &self.inner
    }

    fn check(&self, verb: Verb, span: Span) -> Result<()> {
        tracing::trace!(room = self.room, %verb, at = span.at, len = span.len);
        let shape = self.inner.shape();
        let block = u64::from(shape.block_size);
        let aligned = span.at.is_multiple_of(block) && span.len.is_multiple_of(block);
        let inside = span.at.checked_add(span.len).is_some_and(|end| end <= shape.size);
        let carries = matches!(verb, Verb::Read | Verb::Write);
        let kind = if !aligned || !inside || (carries && span.len > u64::from(TRANSFER_MAX)) {
            Kind::Range
        } else if shape.read_only && matches!(verb, Verb::Write | Verb::WriteZeroes | Verb::Discard)
        {
            Kind::ReadOnly
        } else if verb == Verb::Discard && shape.discard.is_none() {
            Kind::Unsupported
        } else {
            return Ok(());
        };
        Err(Error::new(kind, verb, span))
    }

    /// Passes on what is allowed; answers what is empty or refused.
    fn pass<'a, T: Default + Send + 'a>(
        &'a self,
        verb: Verb,
        span: Span,
        go: impl FnOnce(&'a V) -> Work<'a, T>,
    ) -> Work<'a, T> {
        match self.check(verb, span) {
            Err(error) => Box::pin(ready(Err(error))),
            Ok(()) if span.is_empty() => Box::pin(ready(Ok(T::default()))),
            Ok(()) => go(&self.inner),
        }
    }
}

impl<V: Volume> Volume for Gate<V> {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.pass(Verb::Read, span, |inner| inner.read(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        self.pass(Verb::Write, span, |inner| inner.write(at, data, durability))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.pass(Verb::WriteZeroes, span, |inner| inner.write_zeroes(span, durability, space))
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.pass(Verb::Discard, span, |inner| inner.discard(span))
    }

    fn flush(&self) -> Work<'_, ()> {
        tracing::trace!(room = self.room, verb = %Verb::Flush);
        self.inner.flush()
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents().is_some().then_some(self)
    }

    fn is_saving(&self) -> bool {
        self.inner.is_saving()
    }

    fn save_part(&self, at: u64, data: Bytes) -> Work<'_, ()> {
        tracing::trace!(room = self.room, at, len = data.len(), "save part");
        self.inner.save_part(at, data)
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.inner.ordered().is_some().then_some(self)
    }
}

impl<V: Volume> Ordered for Gate<V> {
    fn write_group(&self, group: Vec<GroupChange>) -> Work<'_, ()> {
        let refused = group.iter().find_map(|change| {
            let (verb, span) = change.what();
            self.check(verb, span).err()
        });
        match (refused, self.inner.ordered()) {
            (Some(error), _) => Box::pin(ready(Err(error))),
            (None, Some(ordered)) => ordered.write_group(group),
            (None, None) => Box::pin(ready(Err(Error::new(Kind::Unsupported, Verb::Write, None)))),
        }
    }
}

impl<V: Volume> ExtentMap for Gate<V> {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        self.pass(Verb::Extents, span, |inner| match inner.extents() {
            Some(map) => map.extents(span),
            None => Box::pin(ready(Err(Error::new(Kind::Unsupported, Verb::Extents, span)))),
        })
    }
}

/// A shared volume is a volume, so that a chain can stand on a handle others hold too.
impl<V: Volume + ?Sized> Volume for std::sync::Arc<V> {
    fn shape(&self) -> &Shape {
        (**self).shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        (**self).read(span)
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        (**self).write(at, data, durability)
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        (**self).write_zeroes(span, durability, space)
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        (**self).discard(span)
    }

    fn flush(&self) -> Work<'_, ()> {
        (**self).flush()
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        (**self).extents()
    }

    fn is_saving(&self) -> bool {
        (**self).is_saving()
    }

    fn save_part(&self, at: u64, data: Bytes) -> Work<'_, ()> {
        (**self).save_part(at, data)
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        (**self).ordered()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::check;

    #[tokio::test]
    async fn gate_tells_the_truth() {
        check::truth(512, async |disk| Arc::new(Gate::new("test", disk)) as Arc<dyn Volume>).await;
    }
}
