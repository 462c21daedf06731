//! How a running server is told to end.

use tokio::sync::watch;

/// The end that calls for a stop. Dropping it calls too: a server must not outlive its owner.
#[derive(Debug)]
pub struct Stopper(watch::Sender<()>);

/// The end that hears the call. Every task that must end has a clone.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<()>);

impl Stopper {
    /// Both ends.
    #[must_use]
    pub fn new() -> (Self, Stop) {
        let (sender, receiver) = watch::channel(());
        (Self(sender), Stop(receiver))
    }

    /// Calls.
    pub fn call(self) {
        drop(self.0);
    }
}

impl Stop {
    /// Returns once the call was made; at once if it was made before.
    pub async fn called(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}
