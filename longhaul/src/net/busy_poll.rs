//! Whether a task that has nothing to do polls its sockets before it sleeps.
//!
//! An initiator that has one command outstanding sends the next some ten microseconds after the response, in a virtual
//! machine some hundred, as it was asleep itself. To put the processor to sleep for that and to be woken costs more than
//! the command, so a session polls for a little while first, as long as that pays. After a wait that was longer it sleeps, until its initiator has been fast some times in a row:
//! the more often, the more often polling was in vain. An idle session costs nothing.
//!
//! An initiator with many commands outstanding sends the next ones when it has worked on the responses, whether we sleep or not: to wait
//! for it awake costs a processor more than it saves, so there the session sleeps sooner.

use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use proto::time::Time;
use tokio::task::coop::poll_proceed;
use tokio::task::yield_now;

/// How often the sockets are polled before other tasks have their turn: some microseconds.
const POLLS: u32 = 4;

/// How much longer a wait is during which the session sleeps: both ends have to be woken.
const SLEEP_FACTOR: u32 = 2;

/// With more commands outstanding besides it is polled for a fraction of the time.
const FEW: u32 = 8;
const FRACTION: u32 = 4;

/// The most fast commands in a row that are needed before it polls again: where polling never pays it costs a two
/// hundredth of a window for each command.
const NEEDED_MAX: u32 = 200;

/// Whether to poll again or to sleep.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    window: Duration,
    polls: bool,
    /// Fast commands in a row while it slept.
    fast: u32,
    /// How many of them are needed.
    needed: u32,
    /// Since when there has been nothing to do.
    idle: Option<Time>,
    /// Its initiator has many commands outstanding.
    is_deep: bool,
}

impl BusyPoll {
    /// Never polls for longer than `window`.
    pub(crate) const fn new(window: Duration) -> Self {
        Self { window, polls: false, fast: 0, needed: 1, idle: None, is_deep: false }
    }

    /// The initiator had as many commands outstanding besides when it sent its last one.
    pub(crate) const fn expect(&mut self, depth: u32) {
        self.is_deep = depth > FEW;
    }

    fn window(&self) -> Duration {
        if self.is_deep { self.window / FRACTION } else { self.window }
    }

    /// Something has arrived.
    pub(crate) fn ends(&mut self, now: Time) {
        let Some(idle) = self.idle.take() else { return };
        let (waited, window) = (now - idle, self.window());
        if self.polls {
            self.polls = waited < window;
            self.needed = if self.polls { 1 } else { (self.needed * 2).min(NEEDED_MAX) };
            self.fast = 0;
        } else if waited < window * SLEEP_FACTOR {
            self.fast += 1;
            self.polls = self.fast >= self.needed;
        } else {
            self.fast = 0;
        }
    }

    /// Polls some times, as long as that pays, and has itself woken to poll again. Whether something has arrived. Nothing
    /// has for a task that has run for long: others on its thread have their turn first, however fast its initiator is.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        now: impl Fn() -> Time,
        mut has_arrived: impl FnMut() -> bool,
    ) -> bool {
        let Poll::Ready(proceed) = poll_proceed(cx) else { return false };
        proceed.made_progress();
        for _ in 0..POLLS {
            if !self.goes_on(now()) {
                return false;
            }
            if has_arrived() {
                self.ends(now());
                return true;
            }
        }
        // Lets every other task and the system have their turn before this one polls again.
        let _ = pin!(yield_now()).poll(cx);
        false
    }

    /// There is nothing to do: whether to poll again.
    fn goes_on(&mut self, now: Time) -> bool {
        let idle = *self.idle.get_or_insert(now);
        self.polls && now - idle < self.window()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const MAX: Duration = Duration::from_micros(50);

    /// Waits for `micros`; whether all of that was spent polling.
    fn wait(busy_poll: &mut BusyPoll, now: &mut Time, micros: u64) -> bool {
        busy_poll.goes_on(*now);
        *now = *now + Duration::from_micros(micros);
        let awake = busy_poll.goes_on(*now);
        busy_poll.ends(*now);
        awake
    }

    #[test]
    fn fast_initiator_is_polled_for() {
        let (mut busy_poll, mut now) = (BusyPoll::new(MAX), Time::ZERO);
        assert!(!wait(&mut busy_poll, &mut now, 90), "it slept, and both had to be woken");
        assert!((0..9).all(|_| wait(&mut busy_poll, &mut now, 40)));
    }

    #[test]
    fn one_long_wait_ends_polling() {
        let (mut busy_poll, mut now) = (BusyPoll::new(MAX), Time::ZERO);
        let awake = [(); 3].map(|()| wait(&mut busy_poll, &mut now, 10));
        assert_eq!(awake, [false, true, true]);
        assert!(!wait(&mut busy_poll, &mut now, 50));
        let awake = [(); 3].map(|()| wait(&mut busy_poll, &mut now, 10));
        assert_eq!(awake, [false, false, true], "two fast ones are needed now");
    }

    #[test]
    fn polling_that_never_pays_is_rare() {
        let (mut busy_poll, mut now) = (BusyPoll::new(MAX), Time::ZERO);
        let mut tries = 0;
        for _ in 0..10_000 {
            busy_poll.goes_on(now);
            tries += u32::from(busy_poll.goes_on(now));
            now = now + (MAX + MAX / 2);
            busy_poll.ends(now);
        }
        assert!((10_000 / NEEDED_MAX..10_000 / NEEDED_MAX + 10).contains(&tries), "{tries}");
    }

    #[test]
    fn idle_initiator_is_never_polled_for() {
        let (mut busy_poll, mut now) = (BusyPoll::new(MAX), Time::ZERO);
        assert!((0..99).all(|_| !wait(&mut busy_poll, &mut now, 101)));
    }

    #[tokio::test]
    async fn polls_take_turns_with_other_tasks_until_something_arrives() {
        let (mut busy_poll, mut now) = (BusyPoll::new(MAX), Time::ZERO);
        wait(&mut busy_poll, &mut now, 10);
        let (mut turns, mut polls) = (0, 0);
        poll_fn(|cx| {
            turns += 1;
            let arrived = busy_poll.poll(
                cx,
                || Time::ZERO,
                || {
                    polls += 1;
                    polls > 2 * POLLS
                },
            );
            if arrived { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        assert_eq!((turns, polls), (3, 2 * POLLS + 1));
    }

    #[tokio::test]
    async fn initiator_that_is_always_fast_does_not_keep_others_from_their_turn() {
        let (mut busy_poll, mut now) = (BusyPoll::new(MAX), Time::ZERO);
        wait(&mut busy_poll, &mut now, 10);
        let mut commands = 0;
        poll_fn(|cx| {
            while busy_poll.poll(cx, || now, || true) {
                busy_poll.ends(now);
                commands += 1;
                assert!(commands < 100_000, "nobody else had a turn");
            }
            Poll::Ready(())
        })
        .await;
        assert!(commands > 0);
    }

    #[test]
    fn initiator_with_many_commands_is_polled_for_a_fraction_of_the_time() {
        for (depth, micros, polls) in [(0, 40, true), (8, 40, true), (9, 40, false), (31, 12, true)]
        {
            let (mut busy_poll, mut now) = (BusyPoll::new(MAX), Time::ZERO);
            busy_poll.expect(depth);
            let awake = [(); 4].map(|()| wait(&mut busy_poll, &mut now, micros));
            assert_eq!(awake[3], polls, "{depth} {micros} {awake:?}");
        }
    }

    #[test]
    fn window_of_zero_never_polls() {
        let (mut busy_poll, mut now) = (BusyPoll::new(Duration::ZERO), Time::ZERO);
        assert!((0..9).all(|_| !wait(&mut busy_poll, &mut now, 1)));
    }
}
