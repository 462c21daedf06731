//! How a running server is told to end.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

/// The end that calls for a stop. Dropping it calls too: a server must not outlive its owner.
#[derive(Debug)]
pub struct Stopper(watch::Sender<()>);

/// The end that hears the call. Every task that must end has a clone. The default one is never called.
#[derive(Clone, Debug, Default)]
pub struct Stop(Option<watch::Receiver<()>>);

impl Stopper {
    /// Both ends.
    #[must_use]
    pub fn new() -> (Self, Stop) {
        let (sender, receiver) = watch::channel(());
        (Self(sender), Stop(Some(receiver)))
    }

    /// Calls.
    pub fn call(self) {
        drop(self.0);
    }
}

impl Stop {
    /// Returns once the call was made; at once if it was made before.
    pub async fn called(&mut self) {
        match &mut self.0 {
            Some(call) => while call.changed().await.is_ok() {},
            None => pending().await,
        }
    }

    /// Whether the call was made.
    #[must_use]
    pub fn is_called(&self) -> bool {
        self.0.as_ref().is_some_and(|call| call.has_changed().is_err())
    }

    /// What comes of `work`, which is dropped when the call is made; `None` then.
    pub async fn unless_called<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut stop = self.clone();
        tokio::select! {
            biased;
            done = work => Some(done),
            () = stop.called() => None,
        }
    }

    /// What comes of `work`, which has this time to end after the call; `None` if it does not.
    pub async fn unless_late<T>(
        &self,
        grace: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut stop = self.clone();
        let late = async {
            stop.called().await;
            sleep(grace).await;
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = late => None,
        }
    }
}
