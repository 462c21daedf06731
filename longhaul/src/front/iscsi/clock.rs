//! The time of a session, and the timer of its next deadline.

use std::future::Future as _;
use std::pin::Pin;
use std::task::Context;

use proto::time::Time;
use tokio::time::{Instant, Sleep, sleep_until};

use super::wake_flag::WakeFlag;

/// The only source of time of a session. It begins when the session does.
#[derive(Debug)]
pub(super) struct Clock {
    origin: Instant,
    timer: Pin<Box<Sleep>>,
    fired: WakeFlag,
}

impl Clock {
    pub(super) fn new() -> Self {
        let origin = Instant::now();
        Self { origin, timer: Box::pin(sleep_until(origin)), fired: WakeFlag::new() }
    }

    pub(super) fn now(&self) -> Time {
        Time::from_origin(self.origin.elapsed())
    }

    /// Sets the timer, whatever it was set to before.
    pub(super) fn set(&mut self, deadline: Time) {
        self.timer.as_mut().reset(self.origin + deadline.since_origin());
        self.fired.set();
    }

    /// Whether the deadline has come. If so, the timer has to be set again.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        let timer = &mut self.timer;
        self.fired.poll(cx, |cx| timer.as_mut().poll(cx)).is_ready()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn timer_fires_at_the_deadline_that_was_set_last() {
        let mut clock = Clock::new();
        let never = Time::ZERO + Duration::from_secs(1 << 30);
        for _ in 0..3 {
            clock.set(never);
            assert!(!poll_fn(|cx| Poll::Ready(clock.poll(cx))).await);
            clock.set(Time::ZERO);
            poll_fn(|cx| if clock.poll(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
        }
    }
}
