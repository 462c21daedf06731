//! The syncs of one open file that are under way. The system tells only one of several of a write that was lost,
//! so that one which succeeded is to be believed only when those beside it have ended too.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Who is syncing now.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    begun: u64,
    under_way: BTreeSet<u64>,
}

/// A sync that is under way as long as this lives: from before the system is asked until a failure was noted.
#[derive(Debug)]
pub(crate) struct UnderWay {
    syncs: Arc<Syncs>,
    number: u64,
}

impl Syncs {
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        let mut state = self.state();
        state.begun += 1;
        let number = state.begun;
        state.under_way.insert(number);
        drop(state);
        UnderWay { syncs: Arc::clone(self), number }
    }

    /// Waits until all have ended that have begun by now. Those that begin later do not count, so that a stream
    /// of syncs keeps nobody waiting.
    pub(crate) async fn wait_for_earlier(&self) {
        let last = self.state().begun;
        loop {
            // Made before the look, so that an end that comes after it is not missed.
            let ended = self.ended.notified();
            if self.state().under_way.first().is_none_or(|oldest| *oldest > last) {
                return;
            }
            ended.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.syncs.state().under_way.remove(&self.number);
        self.syncs.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn settled_syncs_beside_it_under_way_waits_for_those_alone() {
        let syncs = Arc::<Syncs>::default();
        let mut context = Context::from_waker(Waker::noop());
        let [first, second] = [syncs.begin(), syncs.begin()];
        let mut settled = pin!(syncs.wait_for_earlier());
        assert_eq!(settled.as_mut().poll(&mut context), Poll::Pending);
        let later = syncs.begin();
        drop(second);
        assert_eq!(settled.as_mut().poll(&mut context), Poll::Pending);
        drop(first);
        assert_eq!(settled.as_mut().poll(&mut context), Poll::Ready(()));
        drop(later);
        assert_eq!(pin!(syncs.wait_for_earlier()).poll(&mut context), Poll::Ready(()));
    }
}
