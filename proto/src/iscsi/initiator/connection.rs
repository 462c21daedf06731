//! One connection of a session: its framing, its status numbers, and whether the target lives at its end.

use std::collections::VecDeque;

use super::{Misbehaviour, Timeouts};
use crate::iscsi::header::{DataOut, NopOut};
use crate::iscsi::login::initiator::InitiatorLogin;
use crate::iscsi::pdu::{Decoder, Outbox, Pieces};
use crate::scsi::stall::Progress;
use crate::time::Time;

/// The most pings answered while the outbox does not run empty: a target that neither reads nor
/// stops asking would fill the memory.
const PINGS_MAX: u32 = 1024;

/// Data that were asked for wait while so much output does. Commands pass them: one that waited behind all of them
/// would be asked for its own data a round trip after they have gone, in which the link would have nothing to do.
const OUTPUT_MAX: usize = 64 << 10;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) decoder: Decoder,
    pub(super) outbox: Outbox,
    /// Sequences of Data-Out PDUs that were asked for and wait, by their next header, with the spans of their commands.
    solicited: VecDeque<(DataOut, Pieces, u64)>,
    pub(super) stage: Stage,
    pub(super) exp_stat_sn: u32,
    /// The target uses a status number for more than one status.
    pub(super) repeats_status_numbers: bool,
    /// The most the target takes in one data segment, which it says of each connection
    /// (RFC 7143, 13.12).
    pub(super) segment: u32,
    /// Bytes of commands on their way, either way.
    pub(super) outstanding: u64,
    pub(super) ping: Option<Ping>,
    pub(super) progress: Progress,
    last_life: Time,
    /// The link has not taken all that it was given.
    is_full: bool,
    pings_answered: u32,
}

/// How far a connection is.
#[derive(Debug)]
pub(super) enum Stage {
    Login { login: Box<InitiatorLogin>, until: Time },
    Open,
    Closed,
}

/// A ping on its way.
#[derive(Debug)]
pub(super) struct Ping {
    pub(super) tag: u32,
    pub(super) sent: Time,
    /// Without a sign of life by then the target is lost.
    pub(super) until: Time,
    /// The link has not taken it yet.
    pub(super) is_queued: bool,
    /// The span it was sent in.
    pub(super) span: u64,
    /// Asked for by the caller, who is told of the answer.
    pub(super) asked: bool,
}

impl Connection {
    pub(super) fn new(login: Box<InitiatorLogin>, now: Time, timeouts: &Timeouts) -> Self {
        Self {
            decoder: Decoder::new(),
            outbox: Outbox::new(),
            solicited: VecDeque::new(),
            stage: Stage::Login { login, until: now + timeouts.login },
            exp_stat_sn: 0,
            repeats_status_numbers: false,
            segment: 0,
            outstanding: 0,
            ping: None,
            progress: Progress::new(timeouts.stall, timeouts.stall_times),
            last_life: now,
            is_full: false,
            pings_answered: 0,
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open)
    }

    /// Takes the number of a PDU that carries a status. A gap cannot be asked for again at error
    /// recovery level 0. A number that was there before leaves none: there are targets that give each status the
    /// ExpStatSN of its command, and which command a status is of says its tag.
    pub(super) const fn status(&mut self, stat_sn: u32) -> Result<(), Misbehaviour> {
        let expected = self.exp_stat_sn;
        if serial_is_before(stat_sn, expected) {
            self.repeats_status_numbers = true;
            return Ok(());
        }
        if stat_sn != expected {
            return Err(Misbehaviour::StatSn { expected, found: stat_sn });
        }
        self.exp_stat_sn = stat_sn.wrapping_add(1);
        Ok(())
    }

    /// Something shows that the target is there: a ping still out has until later.
    pub(super) fn live(&mut self, now: Time, timeouts: &Timeouts) {
        self.last_life = now;
        self.progress.tick(now);
        let until = now + timeouts.answer;
        if let Some(ping) = &mut self.ping {
            ping.until = ping.until.max(until);
        }
    }

    /// Sends data that were asked for, before what is asked for later and after what is not data.
    pub(super) fn solicit(&mut self, header: DataOut, data: Pieces, span: u64) {
        self.solicited.push_back((header, data, span));
    }

    /// Goes on with data that were asked for, as far as little output waits.
    pub(super) fn go_on(&mut self) {
        while self.outbox.len() < OUTPUT_MAX
            && let Some((header, left, span)) = self.solicited.front_mut()
        {
            self.progress.pushed(*span);
            header.exp_stat_sn = self.exp_stat_sn;
            let rest = left.len();
            if push_next(&mut self.outbox, self.segment, header, left, rest) == 0 {
                self.solicited.pop_front();
            }
        }
    }

    /// Bytes were taken by the link, perhaps all of them.
    pub(super) fn sent(&mut self, now: Time, timeouts: &Timeouts) {
        // The system of a target that is stopped takes what fits its buffers: only a link that was full, and takes more, has
        // moved.
        if self.is_full || self.ping.as_ref().is_some_and(|ping| ping.is_queued) {
            self.live(now, timeouts);
        } else {
            self.progress.tick(now);
        }
        self.is_full = !self.outbox.is_empty();
        if let Some(ping) = &mut self.ping {
            ping.is_queued &= self.is_full;
        }
        self.go_on();
        if self.outbox.is_empty() {
            self.pings_answered = 0;
        }
    }

    /// Answers a ping (RFC 7143, 11.18): at once, outside the order.
    pub(super) fn answer_ping(&mut self, answer: NopOut) -> Result<(), Misbehaviour> {
        self.pings_answered += 1;
        if self.pings_answered > PINGS_MAX {
            return Err(Misbehaviour::PingFlood);
        }
        self.outbox.push(answer);
        Ok(())
    }

    /// When it has to be looked at.
    pub(super) fn deadline(&self, timeouts: &Timeouts) -> Option<Time> {
        match &self.stage {
            Stage::Login { until, .. } => Some(*until),
            Stage::Open => {
                let stalled = self.progress.deadline();
                let asked = self.asked_at(timeouts);
                Some(stalled.map_or(asked, |stalled| stalled.min(asked)))
            }
            Stage::Closed => None,
        }
    }

    /// When it is asked whether the target is there, or when the answer to that is due.
    pub(super) fn asked_at(&self, timeouts: &Timeouts) -> Time {
        self.ping.as_ref().map_or(self.last_life + timeouts.idle, |ping| ping.until)
    }
}

/// Whether a number comes before another on the circle of 32 bits (RFC 7143, 4.2.2.1; RFC 1982).
const fn serial_is_before(number: u32, other: u32) -> bool {
    number != other && other.wrapping_sub(number) < 1 << 31
}

/// Sends the next Data-Out PDU of a sequence of which `rest` bytes are to come, and says how many are then. The numbers
/// of a sequence begin at zero (RFC 7143, 11.7.5).
pub(super) fn push_next(
    outbox: &mut Outbox,
    segment: u32,
    header: &mut DataOut,
    data: &mut Pieces,
    rest: usize,
) -> usize {
    let len = rest.min(segment as usize);
    header.is_final = len == rest;
    outbox.push_from(*header, data, len);
    header.data_sn += 1;
    header.buffer_offset += len as u32;
    rest - len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_the_statuses_is_named() {
        let config = crate::iscsi::initiator::invariants::config(None);
        let (login, _) =
            InitiatorLogin::start(config, crate::iscsi::initiator::invariants::entropy());
        let mut connection = Connection::new(login, Time::ZERO, &Timeouts::default());
        connection.exp_stat_sn = u32::MAX;
        assert_eq!(connection.status(u32::MAX), Ok(()));
        let gap = Misbehaviour::StatSn { expected: 0, found: 1 };
        assert_eq!(connection.status(1), Err(gap));
        assert!(!connection.repeats_status_numbers);
        // RFC 1982: before zero, on the circle.
        assert_eq!(connection.status(u32::MAX), Ok(()));
        assert_eq!((connection.exp_stat_sn, connection.repeats_status_numbers), (0, true));
    }
}
