//! A disk whose writes do not end until they are let through, to see what others do meanwhile.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::{Durability, ExtentMap, Shape, Space, Span, Volume, Work};

/// A disk whose writes wait.
pub struct BlockedWrites<V> {
    inner: V,
    gate: Mutex<Gate>,
}

#[derive(Default)]
struct Gate {
    /// How many more may pass.
    permits: usize,
    /// How many have.
    passed: usize,
    /// How many have come.
    begun: usize,
    waiting: Vec<Waker>,
}

impl<V> BlockedWrites<V> {
    /// `inner`, with no write let through yet.
    pub const fn new(inner: V) -> Self {
        let gate = Gate { permits: 0, passed: 0, begun: 0, waiting: Vec::new() };
        Self { inner, gate: Mutex::new(gate) }
    }

    /// Lets so many more writes through, of those that wait and those that come.
    pub fn let_through(&self, writes: usize) {
        let mut gate = self.gate();
        gate.permits += writes;
        gate.waiting.drain(..).for_each(Waker::wake);
    }

    /// How many writes were let through.
    pub fn passed(&self) -> usize {
        self.gate().passed
    }

    /// How many writes came and were not let through, whether or not anybody waits for them any more.
    pub fn waiting(&self) -> usize {
        let gate = self.gate();
        gate.begun - gate.passed
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll_pass(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut gate = self.gate();
        match gate.permits.checked_sub(1) {
            Some(left) => {
                gate.permits = left;
                gate.passed += 1;
                Poll::Ready(())
            }
            None => {
                gate.waiting.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<V: Volume> Volume for BlockedWrites<V> {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.inner.read(span)
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        Box::pin(async move {
            self.gate().begun += 1;
            poll_fn(|cx| self.poll_pass(cx)).await;
            self.inner.write(at, data, durability).await
        })
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.inner.write_zeroes(span, durability, space)
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.inner.discard(span)
    }

    fn flush(&self) -> Work<'_, ()> {
        self.inner.flush()
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::check;
    use crate::store::memory::Memory;

    #[tokio::test]
    async fn keeps_the_contract_once_writes_are_let_through() {
        let held = BlockedWrites::new(Memory::new(2 << 20, 512));
        held.let_through(usize::MAX);
        check::volume(2, std::sync::Arc::new(held)).await;
    }

    #[test]
    fn a_write_waits_and_changes_nothing_until_it_is_let_through() {
        let held = BlockedWrites::new(Memory::new(4096, 512));
        let first = || held.read(Span::new(0, 1)).now_or_never().unwrap().unwrap()[0];
        let mut writes =
            [7, 9].map(|byte| held.write(0, Bytes::from(vec![byte; 512]), Durability::Volatile));
        assert!(writes.iter_mut().all(|write| write.now_or_never().is_none()));
        assert_eq!((held.waiting(), held.passed(), first()), (2, 0, 0));
        held.let_through(1);
        assert!(writes[0].as_mut().now_or_never().is_some());
        assert!(writes[1].as_mut().now_or_never().is_none());
        assert_eq!((held.waiting(), held.passed(), first()), (1, 1, 7));
    }
}
