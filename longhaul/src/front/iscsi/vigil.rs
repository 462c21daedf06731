//! How long a session that has nothing to do stays awake.
//!
//! An initiator that asks for one thing at a time is back some ten microseconds after its answer. To put the
//! processor to sleep for that and to be woken costs more than the request, so a session looks again for a
//! little while first, as long as that pays. After a wait that was longer it sleeps, and has to be shown
//! again that its initiator is brisk: the more often, the more often it was wrong in a row. An idle session
//! costs nothing.

use std::time::{Duration, Instant};

/// How much longer a wait seems that was slept through: both ends had to be woken.
const WAKING: u32 = 2;

/// The most brisk requests in a row that are asked for before it stays awake again: an initiator for whom it
/// never pays costs a fiftieth of a window for each of its requests.
const DOUBT_MAX: u32 = 50;

/// Whether to look again or to sleep.
#[derive(Debug)]
pub(super) struct Vigil {
    window: Duration,
    awake: bool,
    /// Brisk requests seen in a row while it slept.
    brisk: u32,
    /// How many of them it takes.
    doubt: u32,
    /// Since when there is nothing to do.
    idle: Option<Instant>,
}

impl Vigil {
    /// Never awake for longer than `window`.
    pub(super) const fn new(window: Duration) -> Self {
        Self { window, awake: false, brisk: 0, doubt: 1, idle: None }
    }

    /// Something came.
    pub(super) fn busy(&mut self, now: Instant) {
        let Some(idle) = self.idle.take() else { return };
        let waited = now - idle;
        if self.awake {
            self.awake = waited < self.window;
            self.doubt = if self.awake { 1 } else { (self.doubt * 2).min(DOUBT_MAX) };
            self.brisk = 0;
        } else if waited < self.window * WAKING {
            self.brisk += 1;
            self.awake = self.brisk >= self.doubt;
        } else {
            self.brisk = 0;
        }
    }

    /// There is nothing to do: whether to look again.
    pub(super) fn look_again(&mut self, now: Instant) -> bool {
        let idle = *self.idle.get_or_insert(now);
        self.awake && now - idle < self.window
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
    fn it_stays_awake_for_a_brisk_initiator() {
        let (mut vigil, mut now) = (Vigil::new(MAX), Instant::now());
        assert!(!wait(&mut vigil, &mut now, 90), "it slept, and both had to be woken");
        assert!((0..9).all(|_| wait(&mut vigil, &mut now, 40)));
    }

    #[test]
    fn one_long_wait_puts_it_to_sleep() {
        let (mut vigil, mut now) = (Vigil::new(MAX), Instant::now());
        let awake = [(); 3].map(|()| wait(&mut vigil, &mut now, 10));
        assert_eq!(awake, [false, true, true]);
        assert!(!wait(&mut vigil, &mut now, 50));
        let awake = [(); 3].map(|()| wait(&mut vigil, &mut now, 10));
        assert_eq!(awake, [false, false, true], "it has become careful");
    }

    #[test]
    fn it_seldom_tries_what_never_pays() {
        let (mut vigil, mut now) = (Vigil::new(MAX), Instant::now());
        let mut tries = 0;
        for _ in 0..10_000 {
            vigil.look_again(now);
            tries += u32::from(vigil.look_again(now));
            now += MAX + MAX / 2;
            vigil.busy(now);
        }
        assert!((10_000 / DOUBT_MAX..10_000 / DOUBT_MAX + 10).contains(&tries), "{tries}");
    }

    #[test]
    fn an_idle_initiator_is_never_waited_for() {
        let (mut vigil, mut now) = (Vigil::new(MAX), Instant::now());
        assert!((0..99).all(|_| !wait(&mut vigil, &mut now, 101)));
    }

    #[test]
    fn without_a_window_it_never_stays_awake() {
        let (mut vigil, mut now) = (Vigil::new(Duration::ZERO), Instant::now());
        assert!((0..9).all(|_| !wait(&mut vigil, &mut now, 1)));
    }
}
