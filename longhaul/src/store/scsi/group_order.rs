//! The order of groups of changes on one session.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

/// The order of groups on one session: each is put on its way when the one before is.
#[derive(Debug, Default)]
pub(super) struct GroupOrder {
    queue: Mutex<Queue>,
    /// Those of a lower name were carried out, on this session or an earlier one.
    first: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    /// Told when the last group is on its way.
    last: Option<oneshot::Receiver<()>>,
    /// By the names of groups.
    waiting: HashMap<u64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// Told when the one before is on its way; dropped if that did not come about.
    before: Option<oneshot::Receiver<()>>,
    on_its_way: oneshot::Sender<()>,
}

impl GroupOrder {
    /// A group is the next.
    pub(super) fn append(&self, id: u64) {
        let (on_its_way, next) = oneshot::channel();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queue.last.replace(next);
        queue.waiting.insert(id, Waiting { before, on_its_way });
    }

    /// Groups before this one were carried out.
    pub(super) fn begin_at(&self, id: u64) {
        self.first.fetch_max(id, Ordering::Relaxed);
    }

    /// A group was answered, and so were all before it carried out, whatever became of their answers.
    pub(super) fn answered(&self, id: u64) {
        self.begin_at(id + 1);
    }

    /// What was carried out on the session before this one is not again.
    pub(super) fn inherit(&self, last: &Self) {
        self.begin_at(last.first.load(Ordering::Relaxed));
    }

    /// Whether it was carried out.
    pub(super) fn is_carried_out(&self, id: u64) -> bool {
        id < self.first.load(Ordering::Relaxed)
    }

    /// Waits until all groups before are on their way. Gives what is to be told when this one is; nothing if one before
    /// never will be.
    pub(super) async fn wait_for_turn(&self, id: u64) -> Option<oneshot::Sender<()>> {
        let waiting = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.waiting.remove(&id)?
        };
        match waiting.before {
            Some(before) => before.await.ok().map(|()| waiting.on_its_way),
            None => Some(waiting.on_its_way),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two connections of a session one may be lost with the answer of an earlier group.
    #[test]
    fn group_before_one_that_was_answered_is_not_carried_out_again() {
        let (before, after) = (GroupOrder::default(), GroupOrder::default());
        before.begin_at(3);
        before.answered(6);
        after.inherit(&before);
        assert!(after.is_carried_out(5) && after.is_carried_out(6) && !after.is_carried_out(7));
        after.begin_at(4);
        assert!(after.is_carried_out(6), "what is known once stays so");
    }
}
