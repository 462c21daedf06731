//! The pause of a connection, which can be taken back until the connection has ended by it.

use std::sync::Arc;

use tokio::sync::watch;

/// Clones are the same pause.
#[derive(Clone, Debug)]
pub(super) struct Pause(Arc<watch::Sender<Phase>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The connection takes requests.
    Open,
    /// It takes none, and ends once those that it has are answered.
    Asked,
    /// It has ended, or begun to.
    Ended,
}

impl Default for Pause {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Open)))
    }
}

impl Pause {
    /// The pause of a connection that is not there, which nothing goes on with.
    pub(super) fn ended() -> Self {
        Self(Arc::new(watch::Sender::new(Phase::Ended)))
    }

    /// Asks for it.
    pub(super) fn ask(&self) {
        self.change(Phase::Open, Phase::Asked);
    }

    /// Takes it back; whether the connection goes on.
    pub(super) fn take_back(&self) -> bool {
        self.change(Phase::Asked, Phase::Open);
        *self.0.borrow() == Phase::Open
    }

    /// The connection would end by it: whether it may, which it does then.
    pub(super) fn begin_end(&self) -> bool {
        self.change(Phase::Asked, Phase::Ended)
    }

    /// The connection has ended, by it or otherwise.
    pub(super) fn end(&self) {
        self.0.send_replace(Phase::Ended);
    }

    /// Whether no requests are taken.
    pub(super) fn is_asked(&self) -> bool {
        *self.0.borrow() != Phase::Open
    }

    /// Waits until that is so, or is so no more.
    pub(super) async fn until(&self, is_asked: bool) {
        let mut phase = self.0.subscribe();
        // The sender is held here.
        let _ = phase.wait_for(|phase| (*phase != Phase::Open) == is_asked).await;
    }

    fn change(&self, from: Phase, to: Phase) -> bool {
        self.0.send_if_modified(|phase| {
            let is_changed = *phase == from;
            if is_changed {
                *phase = to;
            }
            is_changed
        })
    }
}
