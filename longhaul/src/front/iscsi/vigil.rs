//! How long a session that has nothing to do stays awake.
//!
//! An initiator that asks for one thing at a time is back some ten microseconds after its answer. To put the
//! processor to sleep for that and to be woken costs more than the request, so a session looks again for a
//! little while first. How long follows what the initiator does: the window grows while it would have been
//! worth it, and is gone after the first wait that it did not cover. An idle session costs nothing.

use std::time::{Duration, Instant};

/// The first window of a session that has become brisk.
const WINDOW_MIN: Duration = Duration::from_micros(20);

/// Whether to look again or to sleep.
#[derive(Debug)]
pub(super) struct Vigil {
    window: Duration,
    window_max: Duration,
    /// Since when there is nothing to do.
    idle: Option<Instant>,
}

impl Vigil {
    /// Never awake for longer than `window_max`.
    pub(super) const fn new(window_max: Duration) -> Self {
        Self { window: Duration::ZERO, window_max, idle: None }
    }

    /// Something came.
    pub(super) fn busy(&mut self, now: Instant) {
        let Some(idle) = self.idle.take() else { return };
        let waited = now - idle;
        self.window = if waited > self.window_max {
            Duration::ZERO
        } else if waited > self.window {
            (self.window * 2).clamp(WINDOW_MIN, self.window_max)
        } else {
            self.window
        };
    }

    /// There is nothing to do: whether to look again.
    pub(super) fn look_again(&mut self, now: Instant) -> bool {
        let idle = *self.idle.get_or_insert(now);
        now - idle < self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(50);

    /// Waits for `micros` and says whether all of that was spent awake.
    fn wait(vigil: &mut Vigil, now: &mut Instant, micros: u64) -> bool {
        vigil.look_again(*now);
        *now += Duration::from_micros(micros);
        let awake = vigil.look_again(*now);
        vigil.busy(*now);
        awake
    }

    #[test]
    fn it_learns_to_wait_for_a_brisk_initiator() {
        let (mut vigil, mut now) = (Vigil::new(MAX), Instant::now());
        let awake: Vec<_> = (0..5).map(|_| wait(&mut vigil, &mut now, 35)).collect();
        assert_eq!(awake, [false, false, true, true, true]);
    }

    #[test]
    fn one_long_wait_puts_it_to_sleep() {
        let (mut vigil, mut now) = (Vigil::new(MAX), Instant::now());
        let awake = [(); 3].map(|()| wait(&mut vigil, &mut now, 10));
        assert_eq!(awake, [false, true, true]);
        assert!(!wait(&mut vigil, &mut now, 51));
        assert!(!wait(&mut vigil, &mut now, 10), "forgotten");
    }

    #[test]
    fn without_a_window_it_never_stays_awake() {
        let (mut vigil, mut now) = (Vigil::new(Duration::ZERO), Instant::now());
        assert!((0..9).all(|_| !wait(&mut vigil, &mut now, 1)));
    }
}
