//! What may be asked of a connection.

use std::collections::BTreeSet;

use super::{Client, State};
use crate::hyperscsi::aead::Aead;
use crate::hyperscsi::command::RequestId;
use crate::hyperscsi::compression::Algorithm;
use crate::hyperscsi::path::PathStats;
use crate::time::Time;

impl Client {
    /// The most data of a command, in each direction, that this connection moves.
    #[must_use]
    pub const fn data_max(&self) -> u32 {
        match &self.state {
            State::Running(running) => running.transport.options().data_max,
            State::Searching | State::Starting(_) | State::Ended => self.config.data_max,
        }
    }

    /// How data that are worth it are compressed, once there is a connection.
    #[must_use]
    pub fn compression(&self) -> Option<Algorithm> {
        match &self.state {
            State::Running(running) => running.requests.compression(),
            State::Searching | State::Starting(_) | State::Ended => None,
        }
    }

    /// Whether data have checksums from end to end, once there is a connection.
    #[must_use]
    pub fn has_checksum(&self) -> bool {
        match &self.state {
            State::Running(running) => running.transport.options().checksum,
            State::Searching | State::Starting(_) | State::Ended => false,
        }
    }

    /// The cipher of packets, once there is a connection.
    #[must_use]
    pub fn cipher(&self) -> Option<Aead> {
        match &self.state {
            State::Running(running) => running.transport.options().ciphers.first().copied(),
            State::Searching | State::Starting(_) | State::Ended => None,
        }
    }

    /// The commands that the server has acknowledged whole, and of whose answers nothing has come.
    #[must_use]
    pub fn at_server(&self) -> BTreeSet<RequestId> {
        match &self.state {
            State::Running(running) => running.requests.at_server(&running.transport).collect(),
            State::Searching | State::Starting(_) | State::Ended => BTreeSet::new(),
        }
    }

    /// How the ways to the server are, once there is a connection.
    #[must_use]
    pub fn paths(&self) -> Vec<PathStats> {
        match &self.state {
            State::Running(running) => running.transport.paths().collect(),
            State::Searching | State::Starting(_) | State::Ended => Vec::new(),
        }
    }

    /// When something authentic came last, and whether packets have no acknowledgement yet; once there is a connection.
    #[must_use]
    pub fn hearing(&self) -> Option<(Time, bool)> {
        match &self.state {
            State::Running(running) => {
                let transport = &running.transport;
                Some((transport.last_valid(), transport.awaits_acknowledgement()))
            }
            State::Searching | State::Starting(_) | State::Ended => None,
        }
    }
}
