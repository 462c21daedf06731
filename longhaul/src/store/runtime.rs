//! Tokio, as the layer that rides out lost connections sees it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use volume::layer::reconnect::{Runtime, Task};

/// Time, tasks and chance.
#[derive(Debug)]
pub(super) struct Tokio {
    origin: Instant,
}

/// Time, tasks and chance, for layers that ask for them.
#[must_use]
pub fn runtime() -> Arc<dyn Runtime> {
    Arc::new(Tokio::default())
}

impl Default for Tokio {
    fn default() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Runtime for Tokio {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn sleep_until(&self, at: Duration) -> Task {
        match self.origin.checked_add(at) {
            Some(at) => Box::pin(tokio::time::sleep_until(at.into())),
            // The clock never says so late a time.
            None => Box::pin(std::future::pending()),
        }
    }

    fn spawn(&self, task: Task) {
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(task);
        }
    }

    fn random(&self) -> u64 {
        getrandom::u64().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn time_beyond_the_clock_never_comes() {
        let runtime = Tokio::default();
        assert!(runtime.sleep_until(Duration::MAX).now_or_never().is_none());
        runtime.sleep_until(Duration::ZERO).await;
    }
}
