//! The bounds in `[limits]`, each within a range beyond which it would not be one, or nothing could be served.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::ConfigDuration;
use crate::front::iscsi::Limits;
use crate::option_table::Table;
use crate::size::Size;
use crate::target::lun::TRANSFER_MAX;

/// A TSIH has 16 bits (RFC 7143, 11.12.6), and a descriptor per connection is more than most systems give.
const PEERS: RangeInclusive<u32> = 1..=65_535;

/// More gain nothing: a loss halves the rate of one of so many.
const CONNECTIONS: RangeInclusive<u32> = 1..=64;

/// Key=Value pairs come in PDUs of 8 KiB before anything else is agreed on, and a length has 24 bits (RFC 7143,
/// 13.12).
const SEGMENT: RangeInclusive<Size> = Size(8 << 10)..=Size((1 << 24) - 1);

/// The least that RFC 7143, 6.1 allows, which holds the login of a client with CHAP; it asks for 64 KiB with longer
/// proofs.
const TEXT: RangeInclusive<Size> = Size(8 << 10)..=Size(1 << 20);

/// FirstBurstLength (RFC 7143, 13.14).
const FIRST_BURST: RangeInclusive<Size> = Size(512)..=Size((1 << 24) - 1);

/// Room for the largest first burst of somebody.
const UNSOLICITED: RangeInclusive<Size> = Size(1 << 20)..=Size(1 << 40);

/// A request that may never be held would wait for ever.
const HELD: RangeInclusive<Size> = Size(TRANSFER_MAX as u64)..=Size(1 << 40);

/// Shorter ones would end sessions for the delay of a long link; a day is for ever.
const TIMEOUT: RangeInclusive<ConfigDuration> = micros(100_000)..=micros(24 * 60 * 60_000_000);

/// Beyond ten milliseconds nobody is brisk, and a core would be burnt for nothing.
const AWAKE: RangeInclusive<ConfigDuration> = micros(0)..=micros(10_000);

/// Zero would log every command.
const SLOW: RangeInclusive<ConfigDuration> = micros(1)..=micros(24 * 60 * 60_000_000);

const fn micros(count: u64) -> ConfigDuration {
    ConfigDuration::new(Duration::from_micros(count))
}

/// What the table says, and the default of what it does not.
pub(super) fn limits(table: Table<'_>) -> Limits {
    let own = Limits::default();
    let mut bounds = Bounds(table);
    let limits = Limits {
        connections: bounds.count("connections", PEERS, own.connections),
        logins: bounds.count("logins", PEERS, own.logins),
        login: bounds.time("login", TIMEOUT, own.login),
        sessions_per_initiator: bounds.count(
            "sessions_per_initiator",
            PEERS,
            own.sessions_per_initiator,
        ),
        connections_per_session: bounds.few(
            "connections_per_session",
            CONNECTIONS,
            own.connections_per_session,
        ),
        commands: bounds.number("commands", 1..=own.commands, own.commands),
        text: bounds.length("text", TEXT, 64 << 10) as usize,
        data_segment: bounds.length("data_segment", SEGMENT, own.data_segment),
        first_burst: bounds.length("first_burst", FIRST_BURST, own.first_burst),
        unsolicited: bounds.size("unsolicited", UNSOLICITED, own.unsolicited),
        held: bounds.size("held", HELD, own.held),
        held_by_session: bounds.size("held_by_session", HELD, own.held_by_session),
        ping_after: bounds.time("ping_after", TIMEOUT, own.ping_after),
        ping_patience: bounds.time("ping_patience", TIMEOUT, own.ping_patience),
        awake: bounds.time("awake", AWAKE, own.awake),
        stop: bounds.time("stop", TIMEOUT, own.stop),
        slow: bounds.time("slow", SLOW, own.slow),
    };
    let Bounds(table) = bounds;
    if limits.held_by_session > limits.held {
        table.note_at("held_by_session", "one session cannot hold more than all do: `held`");
    }
    table.finish();
    limits
}

struct Bounds<'t>(Table<'t>);

impl Bounds<'_> {
    fn number(&mut self, key: &'static str, range: RangeInclusive<u32>, own: u32) -> u32 {
        let number = self.0.number::<u32>(key);
        self.0.within(key, number, &range).unwrap_or(own)
    }

    fn few(&mut self, key: &'static str, range: RangeInclusive<u32>, own: u16) -> u16 {
        u16::try_from(self.number(key, range, own.into())).unwrap_or(own)
    }

    fn count(&mut self, key: &'static str, range: RangeInclusive<u32>, own: usize) -> usize {
        let number = self.0.number::<u32>(key);
        self.0.within(key, number, &range).map_or(own, |number| number as usize)
    }

    fn size(&mut self, key: &'static str, range: RangeInclusive<Size>, own: u64) -> u64 {
        let size = self.0.text(key);
        self.0.within(key, size, &range).map_or(own, |Size(bytes)| bytes)
    }

    fn length(&mut self, key: &'static str, range: RangeInclusive<Size>, own: u32) -> u32 {
        u32::try_from(self.size(key, range, own.into())).unwrap_or(own)
    }

    fn time(
        &mut self,
        key: &'static str,
        range: RangeInclusive<ConfigDuration>,
        own: Duration,
    ) -> Duration {
        let time = self.0.text(key);
        self.0.within(key, time, &range).map_or(own, ConfigDuration::into_inner)
    }
}
