//! How long the peer of a connection has taken nothing of what is sent to it.

use std::time::Duration;

use proto::time::Time;

/// Runs while output waits of which nothing is taken.
#[derive(Debug, Default)]
pub(super) struct StuckTimer(Option<Time>);

impl StuckTimer {
    /// After each write: whether any output was taken, or none is left. The clock is read only when the timer starts.
    pub(super) fn note(&mut self, progress: bool, now: impl FnOnce() -> Time) {
        if progress {
            self.0 = None;
        } else if self.0.is_none() {
            self.0 = Some(now());
        }
    }

    /// Whether nothing was taken for longer than `limit`.
    pub(super) fn is_over(&self, now: Time, limit: Duration) -> bool {
        self.0.is_some_and(|since| now > since + limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn timer_runs_from_the_first_write_without_progress() {
        let mut timer = StuckTimer::default();
        let at = |seconds: u32| Time::ZERO + seconds * SECOND;
        assert!(!timer.is_over(at(99), SECOND), "nothing was written");
        timer.note(false, || at(3));
        timer.note(false, || unreachable!("it runs already"));
        assert!(!timer.is_over(at(4), SECOND));
        assert!(timer.is_over(at(5), SECOND));
        timer.note(true, || unreachable!("it ends"));
        assert!(!timer.is_over(at(99), SECOND));
    }
}
