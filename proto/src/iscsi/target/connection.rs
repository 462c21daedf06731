//! What belongs to one connection: status numbers, output, text, and whether the other end lives.

use std::time::Duration;

use super::exchange::Exchange;
use super::{Joining, Setup};
use crate::iscsi::pdu::{Outbox, Pdu};
use crate::time::Time;

/// The numbers nearly every PDU of a target carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) stat_sn: u32,
    pub(super) exp_cmd_sn: u32,
    pub(super) max_cmd_sn: u32,
}

/// One connection of a session.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) cid: u16,
    pub(super) outbox: Outbox,
    /// The most the initiator takes in one data segment, which it says of each connection
    /// (RFC 7143, 13.12).
    pub(super) segment_max: u32,
    /// A text exchange under way: one at a time on each connection (RFC 7143, 11.10).
    pub(super) text: Option<Exchange>,
    /// It has been logged out; what comes on it is not acted on any more.
    pub(super) leaving: bool,
    stat_sn: u32,
    /// Target transfer tags of this connection: R2Ts, pings and texts draw from one sequence, so that
    /// none stands for two things within four thousand million.
    next_tag: u32,
    heard: Time,
    ping: Option<Time>,
    /// In a discovery session the initiator is not asked for anything (RFC 7143, 7.4.3).
    pings: bool,
    ping_after: Duration,
    ping_patience: Duration,
}

/// What a look at the clock calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerAction {
    Quiet,
    Ping,
    Dead,
}

impl Connection {
    /// `response` is the last one of its login, if that has not been sent.
    pub(super) fn new(
        now: Time,
        joining: &Joining<'_>,
        setup: &Setup,
        response: Option<Pdu>,
    ) -> Self {
        let mut outbox = Outbox::new();
        response.into_iter().for_each(|response| outbox.push_pdu(response));
        // Digests begin with the PDU after it (RFC 7143, 13.1).
        outbox.set_digests(joining.parameters.header_digest, joining.parameters.data_digest);
        Self {
            cid: joining.cid,
            outbox,
            segment_max: joining.parameters.max_send_data_segment,
            text: None,
            leaving: false,
            stat_sn: joining.stat_sn,
            next_tag: 0,
            heard: now,
            ping: None,
            pings: !setup.discovery,
            ping_after: setup.ping_after,
            ping_patience: setup.ping_patience,
        }
    }

    /// The number of a PDU that carries status: each such PDU uses one up (RFC 7143, 4.2.2.2).
    pub(super) const fn use_stat_sn(&mut self) -> u32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        stat_sn
    }

    /// The next such number, for PDUs that only show it.
    pub(super) const fn stat_sn(&self) -> u32 {
        self.stat_sn
    }

    /// A fresh target transfer tag, which is never the reserved one (RFC 7143, 11.7.4).
    pub(super) const fn tag(&mut self) -> u32 {
        let tag = self.next_tag;
        self.next_tag = (tag + 1) % crate::iscsi::header::NO_TAG;
        tag
    }

    /// Any byte from the initiator is a sign of life, not only the answer to a ping: a busy connection
    /// must not die because the answer waits behind data.
    pub(super) const fn heard(&mut self, now: Time) {
        self.heard = now;
        self.ping = None;
    }

    pub(super) fn deadline(&self) -> Time {
        match self.ping {
            Some(sent) => sent + self.ping_patience,
            None if self.pings => self.heard + self.ping_after,
            None => self.heard + self.ping_after + self.ping_patience,
        }
    }

    pub(super) fn timer_action(&mut self, now: Time) -> TimerAction {
        if now < self.deadline() {
            TimerAction::Quiet
        } else if self.pings && self.ping.is_none() {
            self.ping = Some(now);
            TimerAction::Ping
        } else {
            TimerAction::Dead
        }
    }
}
