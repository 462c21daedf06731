//! Whether the server is heard.

use super::{Client, State};
use crate::time::Time;

impl Client {
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
