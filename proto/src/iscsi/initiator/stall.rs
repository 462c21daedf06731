//! Finds commands that get no answer, though what was sent after them by the same connection does.
//!
//! A target may lose a command, or another initiator may have ended it: then nothing says so to whoever waits for it
//! (SAM-5, 5.3.1: TAS is zero). How long a command takes is no sign of that, since its data may take hours on a slow link, and
//! what is in flight may be answered in any order. So commands are told apart by when they were sent, in spans of
//! time. Those of the oldest span are stalled if neither they nor any others that were sent before a certain answered
//! one, which is of a later span, have moved for long. That one, which may be a ping, shows that all sent before it has
//! arrived.

use core::time::Duration;
use std::collections::VecDeque;

use crate::scsi::cdb::Pace;
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
pub(super) struct Progress {
    within: Duration,
    now: Time,
    /// The oldest first.
    spans: VecDeque<Span>,
    /// The number of the first.
    first: u64,
}

#[derive(Debug)]
struct Span {
    begun: Time,
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
    /// Commands that do not move within that time are stalled.
    pub(super) const fn new(within: Duration) -> Self {
        Self { within, now: Time::ZERO, spans: VecDeque::new(), first: 0 }
    }

    fn span_length(&self) -> Duration {
        self.within / SPANS
    }

    /// The time is this, or later.
    pub(super) fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// A command is sent; gives the number of its span.
    pub(super) fn sent(&mut self, pace: Pace) -> u64 {
        let number = self.last();
        if let Some(span) = self.span(number) {
            span.running[pace as usize] += 1;
        }
        number
    }

    /// A ping is sent, which is never stalled; gives the number of its span.
    pub(super) fn pinged(&mut self) -> u64 {
        self.last()
    }

    /// The span in which something is sent now.
    fn last(&mut self) -> u64 {
        let (now, length) = (self.now, self.span_length());
        let full = self.spans.len() >= SPANS_MAX;
        match self.spans.back_mut() {
            Some(span) if full || now < span.begun + length => span.last_sent = now,
            _ => self.spans.push_back(Span {
                begun: now,
                last_sent: now,
                running: [0; 2],
                moved: None,
                answered: false,
            }),
        }
        self.first + self.spans.len() as u64 - 1
    }

    /// More of a command is sent.
    pub(super) fn pushed(&mut self, number: u64) {
        let now = self.now;
        if let Some(span) = self.span(number) {
            span.last_sent = now;
        }
    }

    /// Data of a command have come, or were asked for.
    pub(super) fn moved(&mut self, number: u64) {
        let now = self.now;
        if let Some(span) = self.span(number) {
            span.moved = Some(now);
        }
    }

    /// A command has ended.
    pub(super) fn ended(&mut self, number: u64, pace: Pace) {
        self.moved(number);
        self.answered(number);
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
    pub(super) fn answered(&mut self, number: u64) {
        if let Some(span) = self.span(number) {
            span.answered = true;
        }
    }

    fn span(&mut self, number: u64) -> Option<&mut Span> {
        self.spans.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// When commands are stalled, if nothing moves until then.
    pub(super) fn deadline(&self) -> Option<Time> {
        [Pace::Quick, Pace::Slow].into_iter().filter_map(|pace| self.stalled_at(pace)).min()
    }

    /// Which commands are stalled now, and for how long.
    pub(super) fn stalled(&self, now: Time) -> Option<(Pace, Duration)> {
        let paces = [Pace::Quick, Pace::Slow].into_iter();
        let mut stalled = paces.filter(|pace| self.stalled_at(*pace).is_some_and(|at| at <= now));
        stalled.next().map(|pace| (pace, self.within * factor(pace)))
    }

    fn stalled_at(&self, pace: Pace) -> Option<Time> {
        let mut spans = self.spans.iter().skip_while(|span| span.running[pace as usize] == 0);
        let oldest = spans.next()?;
        let mut moved = oldest.moved.unwrap_or_default().max(oldest.last_sent);
        for span in spans {
            if span.answered && span.begun >= oldest.last_sent + self.span_length() {
                return Some(moved + self.within * factor(pace));
            }
            moved = moved.max(span.moved.unwrap_or_default());
        }
        None
    }
}
