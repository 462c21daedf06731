//! Finds commands that have no answer though the connection lives.

use std::time::Duration;

use proto::scsi::cdb::Pace;
use proto::scsi::stall::Progress;
use proto::time::Time;

/// A command, as its stalls are found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    span: u64,
    pace: Pace,
}

/// The commands of one session. What arrives is acknowledged one by one, so that no other has to be answered to show it.
#[derive(Debug)]
pub(super) struct Stalls {
    progress: Progress,
    /// When it looks again.
    next: Time,
}

impl Stalls {
    /// Commands may be at the unit for so long without an answer; where it may be slow, so many times as long.
    pub(super) const fn new((within, times): (Duration, u32)) -> Self {
        Self { progress: Progress::new(within, times), next: Time::ZERO }
    }

    /// A command is submitted.
    pub(super) fn sent(&mut self, now: Time, pace: Pace) -> Sent {
        self.progress.tick(now);
        Sent { span: self.progress.sent(pace), pace }
    }

    /// It has ended.
    pub(super) fn ended(&mut self, now: Time, Sent { span, pace }: Sent) {
        self.progress.tick(now);
        self.progress.ended(span, pace);
    }

    /// The unit is taken to be slow no more.
    pub(super) fn hurry(&mut self) {
        self.progress.hurry();
    }

    /// When it looks again.
    pub(super) const fn deadline(&self) -> Time {
        self.next
    }

    /// For how long commands have not moved that are at their unit, if that is too long. `moving` are all those which
    /// wait to be sent, or of which the request or its answer is on the way.
    pub(super) fn look<'a>(
        &mut self,
        now: Time,
        moving: impl Iterator<Item = &'a mut Sent>,
    ) -> Option<Duration> {
        self.next = now + self.progress.span_length();
        // Each counts with those that are sent now. Where it was, the oldest would keep its time for ever.
        for sent in moving {
            self.ended(now, *sent);
            *sent = self.sent(now, sent.pace);
        }
        self.progress.tick(now);
        let arrived = self.progress.pinged();
        self.progress.answered(arrived);
        self.progress.stalled(now).map(|(_, within)| within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Time {
        Time::from_origin(Duration::from_secs(seconds))
    }

    fn stalls(times: u32) -> Stalls {
        Stalls::new((Duration::from_secs(60), times))
    }

    /// When a command is found that was sent first, of which something moves until that time.
    fn found(stalls: &mut Stalls, pace: Pace, moves_until: u64) -> u64 {
        let mut sent = stalls.sent(Time::ZERO, pace);
        let found = (0..2000).step_by(10).find(|now| {
            assert!(stalls.deadline() <= seconds(*now));
            let moving = Some(&mut sent).filter(|_| *now < moves_until);
            stalls.look(seconds(*now), moving.into_iter()).is_some()
        });
        found.expect("it is found")
    }

    #[test]
    fn command_without_an_answer_is_found_though_no_other_is_sent() {
        assert!((60..=80).contains(&found(&mut stalls(1), Pace::Quick, 0)));
        assert!((300..=320).contains(&found(&mut stalls(1), Pace::Slow, 0)));
        assert!((240..=260).contains(&found(&mut stalls(4), Pace::Quick, 0)));
    }

    /// Its data may be on a slow link for hours.
    #[test]
    fn command_that_moves_has_not_stalled() {
        assert!((1050..=1080).contains(&found(&mut stalls(1), Pace::Quick, 1000)));
    }

    /// One command of many waits for its turn at the unit.
    #[test]
    fn unit_that_answers_others_of_the_same_time_has_not_stalled() {
        let mut stalls = stalls(1);
        let sent: Vec<_> = (0..40).map(|_| stalls.sent(Time::ZERO, Pace::Quick)).collect();
        for (at, one) in (0..).step_by(10).zip(sent) {
            assert_eq!(stalls.look(seconds(at), std::iter::empty()), None, "at {at} s");
            stalls.ended(seconds(at), one);
        }
        assert_eq!(stalls.look(seconds(4000), std::iter::empty()), None, "nothing is under way");
    }

    #[test]
    fn unit_that_is_hurried_has_no_more_time_than_others() {
        let mut stalls = stalls(16);
        stalls.sent(Time::ZERO, Pace::Quick);
        for now in (0..=100).step_by(10) {
            assert_eq!(stalls.look(seconds(now), std::iter::empty()), None);
        }
        stalls.hurry();
        assert_eq!(stalls.look(seconds(101), std::iter::empty()), Some(Duration::from_secs(60)));
    }
}
