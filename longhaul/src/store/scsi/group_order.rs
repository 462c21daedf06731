//! The order of groups of changes on one session.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

/// The order of groups on one session: each is put on its way when the one before is.
#[derive(Debug, Default)]
pub(super) struct Lane(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    /// Told when the last group is on its way.
    last: Option<oneshot::Receiver<()>>,
    /// By the names of groups.
    waiting: HashMap<u64, Place>,
}

#[derive(Debug)]
struct Place {
    /// Told when the one before is on its way; dropped if that did not come about.
    before: Option<oneshot::Receiver<()>>,
    queued: oneshot::Sender<()>,
}

impl Lane {
    /// A group is the next.
    pub(super) fn enlist(&self, id: u64) {
        let (queued, next) = oneshot::channel();
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = places.last.replace(next);
        places.waiting.insert(id, Place { before, queued });
    }

    /// Waits until all groups before are on their way. Gives what is to be told when this one is; nothing if one before
    /// never will be.
    pub(super) async fn turn(&self, id: u64) -> Option<oneshot::Sender<()>> {
        let place = {
            let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            places.waiting.remove(&id)?
        };
        match place.before {
            Some(before) => before.await.ok().map(|()| place.queued),
            None => Some(place.queued),
        }
    }
}
