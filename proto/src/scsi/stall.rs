//! Finds commands that get no answer, though what was sent after them by the same connection does.
//!
//! A target may lose a command, or another initiator may have ended it: then nothing says so to whoever waits for it
//! (SAM-5, 5.3.1: TAS is zero). How long a command takes is no sign of that, since its data may take hours on a slow link, and
//! what is in flight may be answered in any order. So commands are told apart by when they were sent, in spans of
//! time. Those of the oldest span are stalled if neither they nor any others that were sent before a certain answered
//! one, which is of a later span, have moved for long. That one, which may be a ping, shows that all sent before it has
//! arrived. A transport that acknowledges what arrives needs none.

use core::time::Duration;
use std::collections::VecDeque;

use super::cdb::Pace;
use crate::time::Time;

/// How many spans there are in the time after which commands are stalled. So much later must be sent what was answered
/// before them.
const SPANS: u32 = 6;

/// The most spans; the last one takes in all that follows.
const SPANS_MAX: usize = 64;

/// How much longer than a quick command one may take. A unit that answers nothing else meanwhile is found out by that.
const fn factor(pace: Pace) -> u32 {
    match pace {
        Pace::Quick => 1,
        Pace::Slow => 5,
    }
}

/// The commands of one connection.
#[derive(Debug)]
pub struct Progress {
    within: Duration,
    /// How many times longer commands may take that are sent before `slow_until`.
    times: u32,
    /// `None` before the first command.
    slow_until: Option<Time>,
    now: Time,
    /// The oldest first.
    spans: VecDeque<Span>,
    /// The number of the first.
    first: u64,
}

#[derive(Debug)]
struct Span {
    begun: Time,
    /// How long its quick commands may take.
    within: Duration,
    /// When one of its commands was sent, or data that were asked for.
    last_sent: Time,
    /// Commands of each pace that have not ended.
    running: [usize; 2],
    /// When one of them moved data, or ended.
    moved: Option<Time>,
    /// Something of it was answered.
    answered: bool,
}

impl Progress {
    /// Commands that do not move within that time are stalled. Of a unit that may be slow they have so many `times` as
    /// long, until none has needed it for as long as that is.
    #[must_use]
    pub const fn new(within: Duration, times: u32) -> Self {
        let (slow_until, now) = (None, Time::ZERO);
        Self { within, times, slow_until, now, spans: VecDeque::new(), first: 0 }
    }

    /// The unit is taken to be slow no more: also of what is under way.
    pub fn hurry(&mut self) {
        self.times = 1;
        for span in &mut self.spans {
            span.within = self.within;
        }
    }

    /// A command has taken longer than those of a unit that is not slow may.
    fn is_slow(&mut self) {
        self.slow_until = Some(self.now + self.within * self.times);
    }

    /// Commands are told apart by when they were sent as far as that.
    #[must_use]
    pub fn span_length(&self) -> Duration {
        self.within / SPANS
    }

    /// The time is this, or later.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// A command is sent; gives the number of its span.
    pub fn sent(&mut self, pace: Pace) -> u64 {
        let number = self.last();
        if let Some(span) = self.span(number) {
            span.running[pace as usize] += 1;
        }
        number
    }

    /// A ping is sent, which is never stalled; gives the number of its span.
    pub fn pinged(&mut self) -> u64 {
        self.last()
    }

    /// The span in which something is sent now.
    fn last(&mut self) -> u64 {
        let (now, length) = (self.now, self.span_length());
        let slow = self.within * self.times;
        let is_slow = now < *self.slow_until.get_or_insert(now + slow);
        let within = if is_slow { slow } else { self.within };
        let full = self.spans.len() >= SPANS_MAX;
        match self.spans.back_mut() {
            Some(span) if full || now < span.begun + length => span.last_sent = now,
            _ => self.spans.push_back(Span {
                begun: now,
                within,
                last_sent: now,
                running: [0; 2],
                moved: None,
                answered: false,
            }),
        }
        self.first + self.spans.len() as u64 - 1
    }

    /// More of a command is sent.
    pub fn pushed(&mut self, number: u64) {
        let now = self.now;
        if let Some(span) = self.span(number) {
            span.last_sent = now;
        }
    }

    /// Data of a command have come, or were asked for.
    pub fn moved(&mut self, number: u64) {
        let now = self.now;
        if let Some(span) = self.span(number) {
            span.moved = Some(now);
        }
    }

    /// A command has ended.
    pub fn ended(&mut self, number: u64, pace: Pace) {
        self.moved(number);
        self.answered(number);
        if self.took(number) > self.within * factor(pace) {
            self.is_slow();
        }
        if let Some(span) = self.span(number) {
            let running = &mut span.running[pace as usize];
            *running = running.saturating_sub(1);
        }
        while self.spans.len() > 1 && self.spans.front().is_some_and(|span| span.running == [0; 2])
        {
            self.spans.pop_front();
            self.first += 1;
        }
    }

    /// A ping was answered.
    pub fn answered(&mut self, number: u64) {
        if let Some(span) = self.span(number) {
            span.answered = true;
        }
    }

    /// How long a command of a span has been under way.
    fn took(&mut self, number: u64) -> Duration {
        let now = self.now;
        self.span(number).map_or(Duration::ZERO, |span| now - span.last_sent)
    }

    fn span(&mut self, number: u64) -> Option<&mut Span> {
        self.spans.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// When commands are stalled, if nothing moves until then.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let deadlines = [Pace::Quick, Pace::Slow].into_iter();
        deadlines.filter_map(|pace| self.stalled_at(pace)).map(|(at, _)| at).min()
    }

    /// Which commands are stalled now, and for how long.
    #[must_use]
    pub fn stalled(&self, now: Time) -> Option<(Pace, Duration)> {
        [Pace::Quick, Pace::Slow].into_iter().find_map(|pace| {
            let (_, within) = self.stalled_at(pace).filter(|(at, _)| *at <= now)?;
            Some((pace, within))
        })
    }

    /// When the oldest commands of a pace are stalled, and how long they may take.
    fn stalled_at(&self, pace: Pace) -> Option<(Time, Duration)> {
        let mut spans = self.spans.iter().skip_while(|span| span.running[pace as usize] == 0);
        let oldest = spans.next()?;
        let within = oldest.within * factor(pace);
        let mut moved = oldest.moved.unwrap_or_default().max(oldest.last_sent);
        for span in spans {
            if span.answered && span.begun >= oldest.last_sent + self.span_length() {
                return Some((moved + within, within));
            }
            moved = moved.max(span.moved.unwrap_or_default());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Time {
        Time::from_origin(Duration::from_secs(seconds))
    }

    /// Commands of a unit of which those before took so many times as long as they may.
    fn slow(times: u32) -> Progress {
        Progress::new(Duration::from_secs(60), times)
    }

    /// One that has no answer is sent at that time, and quick ones every ten seconds after it; when it is stalled.
    fn stalls_after(progress: &mut Progress, sent: u64) -> u64 {
        progress.tick(seconds(sent));
        progress.sent(Pace::Quick);
        let stalled = (sent..sent + 4000).step_by(10).find(|now| {
            answer(progress, *now, 0);
            progress.stalled(seconds(*now)).is_some()
        });
        stalled.expect("it is noticed") - sent
    }

    /// A command is sent, and answered so many seconds later.
    fn answer(progress: &mut Progress, sent: u64, after: u64) {
        progress.tick(seconds(sent));
        let number = progress.sent(Pace::Quick);
        progress.tick(seconds(sent + after));
        progress.ended(number, Pace::Quick);
    }

    #[test]
    fn unit_that_was_slow_has_its_time_until_it_is_slow_no_more() {
        assert!((60..=80).contains(&stalls_after(&mut slow(1), 0)));
        assert!((960..=980).contains(&stalls_after(&mut slow(16), 0)));
        let mut progress = slow(16);
        for sent in (0..=960).step_by(10) {
            answer(&mut progress, sent, 1);
        }
        assert!((60..=80).contains(&stalls_after(&mut progress, 970)));
    }

    #[test]
    fn unit_that_stays_slow_keeps_its_time() {
        let mut progress = slow(2);
        for sent in (0..2000).step_by(100) {
            let other = progress.pinged();
            answer(&mut progress, sent, 100);
            progress.answered(other);
        }
        assert!((120..=140).contains(&stalls_after(&mut progress, 2000)));
    }

    #[test]
    fn unit_that_is_hurried_has_no_more_time_than_others() {
        let mut progress = slow(16);
        progress.sent(Pace::Quick);
        for sent in (20..=100).step_by(10) {
            answer(&mut progress, sent, 1);
        }
        assert_eq!(progress.stalled(seconds(101)), None);
        progress.hurry();
        let stalled = progress.stalled(seconds(101));
        assert!(matches!(stalled, Some((Pace::Quick, within)) if within.as_secs() == 60));
        assert!(progress.deadline().is_some_and(|at| at <= seconds(101)));
    }
}
