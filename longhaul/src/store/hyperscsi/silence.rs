//! For how long a server has said nothing to what it should have acknowledged: written by the task of a session, read by
//! anyone. Long before the connection is given up for that it is told.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proto::time::Time;

/// Shorter ones are those of a link that loses packets.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(super) struct Silence {
    origin: Instant,
    /// In milliseconds since then; 0 if nothing is awaited.
    since: AtomicU64,
}

impl Default for Silence {
    fn default() -> Self {
        Self { origin: Instant::now(), since: AtomicU64::new(0) }
    }
}

impl Silence {
    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// For how long already, if that is worth telling.
    pub(super) fn lasted(&self) -> Option<Duration> {
        match self.since.load(Ordering::Relaxed) {
            0 => None,
            since => Some(Duration::from_millis(self.now().saturating_sub(since))),
        }
        .filter(|lasted| *lasted >= TOLD_AFTER)
    }
}

/// What the task knows of it.
#[derive(Debug, Default)]
pub(super) struct Listener {
    heard: Time,
    is_silent: bool,
}

impl Listener {
    /// Something authentic came last at `heard`, and packets have no acknowledgement yet, or not.
    pub(super) fn note(&mut self, silence: &Silence, (heard, awaits): (Time, bool)) {
        if self.heard != heard && std::mem::take(&mut self.is_silent) {
            silence.since.store(0, Ordering::Relaxed);
        }
        self.heard = heard;
        if awaits && !self.is_silent {
            self.is_silent = true;
            silence.since.store(silence.now(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Time {
        Time::from_origin(Duration::from_secs(seconds))
    }

    /// A silence that has lasted for long.
    fn old() -> Silence {
        let origin = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        Silence { origin, ..Silence::default() }
    }

    #[test]
    fn silence_begins_with_a_packet_and_ends_with_one_of_the_server() {
        let (silence, mut listener) = (old(), Listener::default());
        let since = || silence.since.load(Ordering::Relaxed);
        listener.note(&silence, (seconds(1), false));
        assert_eq!(since(), 0, "nothing is awaited");
        listener.note(&silence, (seconds(1), true));
        let begun = since();
        assert!(begun >= 60_000);
        // Its path has failed: what was in flight waits for another one.
        listener.note(&silence, (seconds(1), false));
        listener.note(&silence, (seconds(1), true));
        assert_eq!(since(), begun);
        listener.note(&silence, (seconds(2), false));
        assert_eq!(since(), 0);
    }

    #[test]
    fn short_silence_is_not_told() {
        let silence = old();
        assert_eq!(silence.lasted(), None);
        silence.since.store(59_500, Ordering::Relaxed);
        assert_eq!(silence.lasted(), None);
        silence.since.store(20_000, Ordering::Relaxed);
        assert!(silence.lasted().unwrap() >= Duration::from_secs(40));
    }
}
