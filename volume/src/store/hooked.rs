//! A volume that asks a hook before each request, for tests that watch, delay or fail one.

use std::future::ready;

use bytes::Bytes;

use crate::{Durability, ExtentMap, Shape, Space, Span, Verb, Volume, Work};

/// A volume before which a hook is called. The hook is told the verb and the bytes of the request (none, at 0, for a flush),
/// and the request goes on when what it returns has completed, or fails as that does.
pub struct Hooked<V, H> {
    inner: V,
    hook: H,
}

impl<V, H: Fn(Verb, Span) -> Work<'static, ()>> Hooked<V, H> {
    /// `inner` behind `hook`.
    pub const fn new(inner: V, hook: H) -> Self {
        Self { inner, hook }
    }
}

/// What a hook returns for a request that goes on at once.
pub fn go_on() -> Work<'static, ()> {
    Box::pin(ready(Ok(())))
}

impl<V, H: Fn(Verb, Span) -> Work<'static, ()> + Send + Sync> Hooked<V, H> {
    fn after<'a, T>(
        &'a self,
        (verb, span): (Verb, Span),
        work: impl FnOnce() -> Work<'a, T> + Send + 'a,
    ) -> Work<'a, T> {
        let hook = (self.hook)(verb, span);
        Box::pin(async move {
            hook.await?;
            work().await
        })
    }
}

impl<V: Volume, H: Fn(Verb, Span) -> Work<'static, ()> + Send + Sync> Volume for Hooked<V, H> {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.after((Verb::Read, span), move || self.inner.read(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        self.after((Verb::Write, span), move || self.inner.write(at, data, durability))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        let work = move || self.inner.write_zeroes(span, durability, space);
        self.after((Verb::WriteZeroes, span), work)
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.after((Verb::Discard, span), move || self.inner.discard(span))
    }

    fn flush(&self) -> Work<'_, ()> {
        self.after((Verb::Flush, Span::new(0, 0)), || self.inner.flush())
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::store::memory::Memory;
    use crate::{Error, Kind, check};

    #[tokio::test]
    async fn keeps_the_contract() {
        let hooked = Hooked::new(Memory::new(2 << 20, 512), |_, _| go_on());
        check::volume(3, std::sync::Arc::new(hooked)).await;
    }

    #[test]
    fn request_fails_as_its_hook_does_and_changes_nothing() {
        let hook = |verb, span| match verb {
            Verb::Write => {
                Box::pin(ready(Err(Error::new(Kind::NoSpace, verb, span)))) as Work<'_, _>
            }
            _ => go_on(),
        };
        let hooked = Hooked::new(Memory::new(4096, 512), hook);
        let written = hooked.write(512, Bytes::from(vec![1; 512]), Durability::Volatile);
        let error = written.now_or_never().unwrap().unwrap_err();
        assert_eq!((error.kind, error.verb), (Kind::NoSpace, Verb::Write));
        let all = hooked.read(Span::new(0, 4096)).now_or_never().unwrap().unwrap();
        assert_eq!(all, vec![0; 4096]);
    }
}
