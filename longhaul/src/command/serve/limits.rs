//! The bounds of the iSCSI front, from the options that say them.

use std::time::Duration;

use crate::config::{ConfigDuration, LimitOptions};
use crate::front::iscsi::Limits;
use crate::size::Size;

/// What `said` says, and the front's own values for the rest.
pub(super) fn limits(said: &LimitOptions) -> Limits {
    let own = Limits::default();
    Limits {
        connections: count(said.connections, own.connections),
        logins: count(said.logins, own.logins),
        login: time(said.login, own.login),
        sessions_per_initiator: count(said.sessions_per_initiator, own.sessions_per_initiator),
        connections_per_session: said
            .connections_per_session
            .and_then(|count| count.try_into().ok())
            .unwrap_or(own.connections_per_session),
        commands: said.commands.unwrap_or(own.commands),
        text: said.text.map_or(own.text, |Size(bytes)| bytes as usize),
        data_segment: length(said.data_segment, own.data_segment),
        first_burst: length(said.first_burst, own.first_burst),
        unsolicited: bytes(said.unsolicited, own.unsolicited),
        held: bytes(said.held, own.held),
        held_by_session: bytes(said.held_by_session, own.held_by_session),
        ping_after: time(said.ping_after, own.ping_after),
        ping_patience: time(said.ping_patience, own.ping_patience),
        awake: time(said.awake, own.awake),
        stop: time(said.stop, own.stop),
        slow: time(said.slow, own.slow),
    }
}

fn count(said: Option<u32>, own: usize) -> usize {
    said.map_or(own, |count| count as usize)
}

fn bytes(said: Option<Size>, own: u64) -> u64 {
    said.map_or(own, |Size(bytes)| bytes)
}

fn length(said: Option<Size>, own: u32) -> u32 {
    said.and_then(|Size(bytes)| bytes.try_into().ok()).unwrap_or(own)
}

fn time(said: Option<ConfigDuration>, own: Duration) -> Duration {
    said.map_or(own, ConfigDuration::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn defaults_of_the_option_table_are_those_of_the_front() {
        let text = "[volumes.a]\nuri = 'memory:1M'\n[limits]\n";
        let (config, wrong) = Config::parse(text, Path::new("longhaul.toml"));
        assert_eq!(wrong, []);
        assert_eq!(limits(&config.limits), Limits::default());
        assert!(config.limits.slow.is_some(), "the table has a value for each");
        assert_eq!(limits(&LimitOptions::default()), Limits::default());
    }
}
