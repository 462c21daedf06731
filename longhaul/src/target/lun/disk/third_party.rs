//! What copies of other units do to this one. EXTENDED COPY is a task of the unit it was sent to, so that no task set of
//! this unit has it: what ends the tasks of this unit has to end that too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto::scsi::Status;
use tokio::sync::Notify;

use super::super::Nexus;
use super::super::answer::Abort;
use super::super::fault::Fault;

/// The copies that name this unit.
#[derive(Default)]
pub(super) struct ThirdParty {
    copies: Mutex<BTreeMap<u64, CopyState>>,
    /// The number of the next one.
    next: AtomicU64,
    changed: Notify,
}

struct CopyState {
    nexus: Nexus,
    /// It does nothing here any more; told, what of it waits here ends.
    ended: bool,
    abort: Abort,
    /// A part of it is under way.
    inside: bool,
}

/// One copy, as long as it may reach this unit.
pub(super) struct CopyHandle {
    of: Arc<ThirdParty>,
    id: u64,
    /// Told when the copy was ended here.
    pub(super) abort: Abort,
}

/// A part of a copy that is under way, until this is dropped.
pub(super) struct CopyGuard<'a>(&'a CopyHandle);

impl ThirdParty {
    /// A copy of `nexus` begins.
    pub(super) fn begin(self: &Arc<Self>, nexus: Nexus) -> CopyHandle {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let abort = Abort::new();
        let state = CopyState { nexus, ended: false, abort: abort.clone(), inside: false };
        self.copies().insert(id, state);
        CopyHandle { of: Arc::clone(self), id, abort }
    }

    /// Ends the copies of those that `concerns`: none of them begins anything here from now on. What is returned waits
    /// until nothing of them is under way.
    pub(super) fn end(
        self: &Arc<Self>,
        concerns: &dyn Fn(Nexus) -> bool,
    ) -> impl Future<Output = ()> + use<> {
        let mut ended = Vec::new();
        for (id, copy) in self.copies().iter_mut().filter(|(_, copy)| concerns(copy.nexus)) {
            copy.ended = true;
            copy.abort.tell();
            ended.push(*id);
        }
        Arc::clone(self).left(ended)
    }

    async fn left(self: Arc<Self>, ended: Vec<u64>) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the look, so that an end in between is not missed.
            changed.as_mut().enable();
            let is_inside = |id: &u64| self.copies().get(id).is_some_and(|copy| copy.inside);
            if !ended.iter().any(is_inside) {
                return;
            }
            changed.await;
        }
    }

    fn copies(&self) -> MutexGuard<'_, BTreeMap<u64, CopyState>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CopyHandle {
    /// A part of the copy begins, unless the copy was ended here. Whether it is allowed is checked inside: whoever forbids
    /// it then ends the copy, and waits for what came before.
    pub(super) fn enter(&self) -> Result<CopyGuard<'_>, Fault> {
        match self.of.copies().get_mut(&self.id) {
            Some(copy) if !copy.ended => copy.inside = true,
            _ => return Err(Fault::Status(Status::TaskAborted)),
        }
        Ok(CopyGuard(self))
    }
}

impl Drop for CopyGuard<'_> {
    fn drop(&mut self) {
        if let Some(copy) = self.0.of.copies().get_mut(&self.0.id) {
            copy.inside = false;
        }
        self.0.of.changed.notify_waiters();
    }
}

impl Drop for CopyHandle {
    fn drop(&mut self) {
        self.of.copies().remove(&self.id);
        self.of.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn end_waits_for_the_parts_under_way_and_lets_none_begin() {
        let unit = Arc::new(ThirdParty::default());
        let (one, two) = (unit.begin(Nexus(1)), unit.begin(Nexus(2)));
        let inside = one.enter().unwrap();
        let mut ended = std::pin::pin!(unit.end(&|nexus| nexus == Nexus(1)));
        assert!(ended.as_mut().now_or_never().is_none());
        assert!(one.enter().is_err() && two.enter().is_ok());
        drop(inside);
        assert!(ended.now_or_never().is_some());
        assert!(one.enter().is_err());
        assert!(unit.begin(Nexus(1)).enter().is_ok(), "a copy that begins later is another");
    }

    #[test]
    fn copy_that_is_dropped_is_not_waited_for() {
        let unit = Arc::new(ThirdParty::default());
        let handle = unit.begin(Nexus(1));
        std::mem::forget(handle.enter().unwrap());
        let mut ended = std::pin::pin!(unit.end(&|_| true));
        assert!(ended.as_mut().now_or_never().is_none());
        drop(handle);
        assert!(ended.now_or_never().is_some());
    }
}
