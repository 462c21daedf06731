//! What a client sends.

use super::super::address::{OnePacket, Outbox, Transmit};
use super::{Client, State};
use crate::time::Time;

impl Client {
    /// When the pace lets the next packet leave, if that is what it waits for.
    #[must_use]
    pub const fn pace(&self) -> Option<Time> {
        match &self.state {
            State::Running(running) => running.transport.pace(),
            State::Searching | State::Starting(_) | State::Ended => None,
        }
    }

    /// The next packet to be sent, until there is none.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        let mut outbox = OnePacket::default();
        self.transmit(now, &mut outbox);
        outbox.0
    }

    /// Sends the packets that there are to be sent, as many as are taken.
    pub fn transmit(&mut self, now: Time, outbox: &mut dyn Outbox) {
        self.transmit_ready(outbox);
        if let State::Running(running) = &mut self.state {
            running.transport.transmit(now, usize::MAX, outbox);
            self.settle(now);
            self.transmit_ready(outbox);
        }
    }

    fn transmit_ready(&mut self, outbox: &mut dyn Outbox) {
        while outbox.has_room() {
            let Some(transmit) = self.transmits.pop_front() else { return };
            transmit.push(outbox);
        }
    }
}
