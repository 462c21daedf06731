//! Tokio, as the layer that rides out lost connections sees it.

use std::time::Instant;

use tokio::runtime::Handle;
use volume::layer::reconnect::{Runtime, Task, Time};

/// Time, tasks and chance.
#[derive(Debug)]
pub(super) struct Tokio {
    origin: Instant,
}

impl Default for Tokio {
    fn default() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Runtime for Tokio {
    fn now(&self) -> Time {
        Time::from_origin(self.origin.elapsed())
    }

    fn sleep_until(&self, at: Time) -> Task {
        let at = self.origin + at.since_origin();
        Box::pin(tokio::time::sleep_until(at.into()))
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
