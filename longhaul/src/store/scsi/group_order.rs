//! The order of groups of changes on one session.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio::sync::oneshot;

/// The order of groups on one session: each is put on its way when the one before is.
#[derive(Debug, Default)]
pub(super) struct GroupOrder {
    queue: Mutex<Queue>,
    /// Those before the one of this name were carried out on an earlier session.
    carried_out: OnceLock<u64>,
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

    /// Groups before this one are not carried out again. It is told before any is appended.
    pub(super) fn begin_at(&self, id: u64) {
        let _ = self.carried_out.set(id);
    }

    /// Whether it was carried out on an earlier session.
    pub(super) fn is_carried_out(&self, id: u64) -> bool {
        self.carried_out.get().is_some_and(|first| id < *first)
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
