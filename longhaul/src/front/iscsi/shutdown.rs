//! The end of a session: nothing is taken in any more, and its last output is sent in bounded time.

use std::time::Duration;

use proto::time::Time;

use super::end::End;
use super::pdu_stream::StreamError;

/// How long the last output of a session may take to be sent.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// Why the session ends, once it does.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    end: Option<End>,
}

impl Shutdown {
    /// Begins, unless the session ends already. Returns until when output may be sent.
    pub(super) fn begin(&mut self, now: Time, end: End) -> Option<Time> {
        let begins = self.end.is_none();
        self.end.get_or_insert(end);
        begins.then(|| now + FLUSH_MAX)
    }

    pub(super) const fn has_begun(&self) -> bool {
        self.end.is_some()
    }

    /// The deadline has come. If the session ends, its output is to be discarded, and the next deadline is returned.
    pub(super) fn time_out(&mut self, now: Time) -> Option<Time> {
        let end = self.end.as_mut()?;
        *end = StreamError::Late.into();
        Some(now + FLUSH_MAX)
    }

    /// All output is sent: returns the reason if the session ends.
    pub(super) const fn finish(&mut self) -> Option<End> {
        self.end.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::sessions::EndReason;

    #[test]
    fn first_reason_counts_and_sets_the_deadline() {
        let mut shutdown = Shutdown::default();
        assert!(!shutdown.has_begun() && shutdown.finish().is_none());
        let deadline = shutdown.begin(Time::ZERO, EndReason::Reset.into());
        assert_eq!(deadline, Some(Time::ZERO + FLUSH_MAX));
        let later = Time::ZERO + Duration::from_secs(1);
        assert_eq!(shutdown.begin(later, StreamError::Late.into()), None);
        assert!(shutdown.has_begun());
        assert!(matches!(shutdown.finish(), Some(End::Other(EndReason::Reset))));
    }

    #[test]
    fn output_that_is_not_sent_in_time_becomes_the_reason() {
        let mut shutdown = Shutdown::default();
        assert_eq!(shutdown.time_out(Time::ZERO), None, "the session does not end");
        let deadline = shutdown.begin(Time::ZERO, EndReason::Reset.into()).unwrap();
        assert_eq!(shutdown.time_out(deadline), Some(deadline + FLUSH_MAX));
        assert!(matches!(shutdown.finish(), Some(End::Stream(StreamError::Late))));
    }
}
