//! Ranges of blocks that one command at a time works on: what COMPARE AND WRITE and ORWRITE need.

use std::sync::{Mutex, MutexGuard, PoisonError};

use proto::scsi::Blocks;
use tokio::sync::Notify;

/// The ranges held now. Their number is bounded by the commands in flight.
#[derive(Debug, Default)]
pub(super) struct Exclusive {
    held: Mutex<Vec<Blocks>>,
    freed: Notify,
}

/// A range that is held until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    of: &'a Exclusive,
    blocks: Blocks,
}

impl Exclusive {
    /// Waits until no held range shares a block with `blocks`, then holds them. An empty range waits for
    /// nobody.
    pub(super) async fn hold(&self, blocks: Blocks) -> Held<'_> {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // Registered before the look, so that a range freed in between is not missed.
            freed.as_mut().enable();
            if self.try_hold(blocks) {
                return Held { of: self, blocks };
            }
            freed.await;
        }
    }

    fn try_hold(&self, blocks: Blocks) -> bool {
        let mut held = self.ranges();
        let free = !held.iter().any(|other| overlap(*other, blocks));
        if free {
            held.push(blocks);
        }
        free
    }

    fn ranges(&self) -> MutexGuard<'_, Vec<Blocks>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.of.ranges();
        if let Some(at) = held.iter().position(|blocks| *blocks == self.blocks) {
            held.swap_remove(at);
        }
        drop(held);
        self.of.freed.notify_waiters();
    }
}

fn overlap(a: Blocks, b: Blocks) -> bool {
    let end = |range: Blocks| range.lba.saturating_add(range.count.into());
    a.count > 0 && b.count > 0 && a.lba < end(b) && b.lba < end(a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const fn blocks(lba: u64, count: u32) -> Blocks {
        Blocks { lba, count }
    }

    #[test]
    fn only_overlapping_ranges_wait() {
        let exclusive = Exclusive::default();
        let first = exclusive.hold(blocks(0, 8)).now_or_never().unwrap();
        assert!(exclusive.hold(blocks(4, 0)).now_or_never().is_some());
        let beside = exclusive.hold(blocks(8, 1)).now_or_never();
        assert!(beside.is_some());
        let mut waiting = std::pin::pin!(exclusive.hold(blocks(7, 2)));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(beside);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(first);
        assert!(waiting.as_mut().now_or_never().is_some());
    }

    #[test]
    fn whoever_gives_up_holds_nothing() {
        let exclusive = Exclusive::default();
        let first = exclusive.hold(blocks(0, 8)).now_or_never().unwrap();
        {
            let mut waiting = std::pin::pin!(exclusive.hold(blocks(0, 8)));
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        drop(first);
        assert!(exclusive.hold(blocks(0, 8)).now_or_never().is_some());
        assert!(exclusive.ranges().is_empty());
    }
}
