//! What becomes of those who wait when a task panics.

use super::super::connect::Task;
use super::super::machine::{Replay, Salvage};
use super::*;

/// A transport of which a part is a mistake.
#[derive(Debug)]
struct Mistaken;

#[derive(Clone)]
struct Change;

impl Replay for Change {
    fn part(&self, _: &Range<u64>) -> Self {
        Self
    }
    fn replaces(&self) -> bool {
        true
    }
}

impl fmt::Display for Mistaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a volume")
    }
}

impl Connect for Mistaken {
    type Volume = ();
    type Change = Change;
    type Error = fmt::Error;

    async fn connect(&self, _: Arc<()>, _: Arc<()>, _: bool) -> Result<(), Refused> {
        panic!("a mistake")
    }
    async fn ended(&self, (): &()) -> Loss {
        std::future::pending().await
    }
    fn judge(&self, (): &(), _: Option<&fmt::Error>) -> Verdict {
        Verdict::Done
    }
    async fn change((): &(), _: &Change) -> Result<(), fmt::Error> {
        panic!("a mistake")
    }
    async fn flush((): &()) -> Result<(), fmt::Error> {
        Ok(())
    }
    fn abandon(&self, (): &()) {}
    fn save(&self, _: Change) {}
    fn describe(&self, why: &(dyn std::error::Error + 'static)) -> String {
        why.to_string()
    }
}

#[derive(Debug)]
struct Stopped;

impl Runtime for Stopped {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn sleep_until(&self, _: Duration) -> Task {
        Box::pin(std::future::pending())
    }
    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }
    fn random(&self) -> u64 {
        0
    }
}

const SETTINGS: Settings = Settings {
    patience: None,
    first_wait: Duration::ZERO,
    longest_wait: Duration::ZERO,
    unflushed_max: None,
    salvage: Salvage::Nothing,
};

/// It may be under way, so nothing that overlaps it may follow.
#[tokio::test]
async fn change_that_panics_ends_the_volume() {
    let supervisor = Supervisor::start(Mistaken, SETTINGS, (), Arc::new(Stopped));
    let me = Arc::clone(&supervisor);
    let changed = tokio::spawn(async move { me.change(Change, 0..8, 8).await });
    assert!(changed.await.unwrap_err().is_panic());
    assert_eq!(supervisor.over(), Some(Over::Broken));
}

#[tokio::test]
async fn panic_of_the_connector_is_told_to_waiting_requests() {
    let supervisor = Supervisor::start(Mistaken, SETTINGS, (), Arc::new(Stopped));
    supervisor.lose(0, Loss::new(fmt::Error));
    let mut flush = Box::pin(supervisor.flush());
    let mut flushed = None;
    for _ in 0..1000 {
        flushed = flushed.or_else(|| (&mut flush).now_or_never());
        if flushed.is_some() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(matches!(flushed, Some(Err(RequestError::Over(_)))), "it waits for ever");
    assert_eq!(supervisor.over(), Some(Over::Broken));
}
