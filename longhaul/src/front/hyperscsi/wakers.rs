//! Which connections have something to do: each is polled with a waker of its own, so that quiet ones cost nothing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;
use proto::hyperscsi::ConnectionId;

/// The connections that were woken since they were last asked for.
#[derive(Debug, Default)]
pub(super) struct Woken {
    ids: Mutex<BTreeSet<ConnectionId>>,
    /// The task that polls them.
    task: AtomicWaker,
}

/// Wakes the task for one connection.
#[derive(Debug)]
struct ConnectionWaker {
    id: ConnectionId,
    woken: Arc<Woken>,
}

impl Woken {
    /// The waker of a connection.
    pub(super) fn waker(self: &Arc<Self>, id: ConnectionId) -> Waker {
        Arc::new(ConnectionWaker { id, woken: Arc::clone(self) }).into()
    }

    /// This connection is to be polled, by the task that runs now.
    pub(super) fn insert(&self, id: ConnectionId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// Those that are to be polled; the task is woken when there are others.
    pub(super) fn take(&self, cx: &Context<'_>) -> BTreeSet<ConnectionId> {
        // Before they are taken: whoever comes later wakes it.
        self.task.register(cx.waker());
        std::mem::take(&mut *self.ids.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.insert(self.id);
        self.woken.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use testing::WakeCounter;

    use super::*;

    #[test]
    fn connections_that_were_not_woken_are_not_polled() {
        let (woken, counter) = (Arc::<Woken>::default(), Arc::<WakeCounter>::default());
        let task = Waker::from(Arc::clone(&counter));
        let cx = Context::from_waker(&task);
        let wakers: Vec<_> = (0..1000).map(|id| woken.waker(ConnectionId(id))).collect();
        assert!(woken.take(&cx).is_empty());
        wakers[7].wake_by_ref();
        wakers[7].wake_by_ref();
        wakers[900].wake_by_ref();
        assert!(counter.count() > 0);
        assert_eq!(woken.take(&cx), BTreeSet::from([ConnectionId(7), ConnectionId(900)]));
        assert!(woken.take(&cx).is_empty());
    }

    /// Nothing is lost between the last look and sleep.
    #[test]
    fn task_is_woken_by_what_comes_after_it_has_looked() {
        let (woken, counter) = (Arc::<Woken>::default(), Arc::<WakeCounter>::default());
        let task = Waker::from(Arc::clone(&counter));
        let taken = woken.take(&Context::from_waker(&task));
        woken.waker(ConnectionId(1)).wake();
        assert_eq!((taken.len(), counter.count()), (0, 1));
    }
}
