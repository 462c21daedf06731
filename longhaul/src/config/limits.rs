//! The bounds in `[limits]`, each within a range beyond which it would not be one, or nothing could be served.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::ConfigDuration;
use crate::option_table::{COUNT, DURATION, Place, SIZE, Standard, Table, number, options, text};
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

/// Deeper queues are not kept: the window of a session.
const COMMANDS: RangeInclusive<u32> = 1..=128;

const fn micros(count: u64) -> ConfigDuration {
    ConfigDuration::new(Duration::from_micros(count))
}

options! {
    /// The bounds of what clients may use.
    pub struct LimitOptions in pub(super) LIMITS {
        connections: Option<u32> = number, within PEERS => {
            kind: COUNT,
            default: Standard::Value("512"),
            place: Place::File,
            help: "Connections at a time, logged in or not; more are closed",
            manual: "",
        }
        logins: Option<u32> = number, within PEERS => {
            kind: COUNT,
            default: Standard::Value("64"),
            place: Place::File,
            help: "Logins under way at a time",
            manual: "Beyond that one of the network with most of them is closed, of those that got least far the oldest",
        }
        login: Option<ConfigDuration> = text, within TIMEOUT => {
            kind: DURATION,
            default: Standard::Value("15s"),
            place: Place::File,
            help: "Duration of a login",
            manual: "",
        }
        sessions_per_initiator: Option<u32> = number, within PEERS => {
            kind: COUNT,
            default: Standard::Value("128"),
            place: Place::File,
            help: "Sessions of one client, under any names",
            manual: "More are refused with \"out of resources\"",
        }
        connections_per_session: Option<u32> = number, within CONNECTIONS => {
            kind: COUNT,
            default: Standard::Value("4"),
            place: Place::File,
            help: "Connections of one session (MaxConnections)",
            manual: "",
        }
        commands: Option<u32> = number, within COMMANDS => {
            kind: COUNT,
            default: Standard::Value("128"),
            place: Place::File,
            help: "Outstanding commands of a session",
            manual: "",
        }
        text: Option<Size> = text, within TEXT => {
            kind: SIZE,
            default: Standard::Value("64K"),
            place: Place::File,
            help: "Text of a login or of a request",
            manual: "",
        }
        data_segment: Option<Size> = text, within SEGMENT => {
            kind: SIZE,
            default: Standard::Value("1M"),
            place: Place::File,
            help: "Data segment of a PDU (MaxRecvDataSegmentLength)",
            manual: "",
        }
        first_burst: Option<Size> = text, within FIRST_BURST => {
            kind: SIZE,
            default: Standard::Value("512K"),
            place: Place::File,
            help: "Unsolicited data of a write (FirstBurstLength)",
            manual: "",
        }
        unsolicited: Option<Size> = text, within UNSOLICITED => {
            kind: SIZE,
            default: Standard::Value("16M"),
            place: Place::File,
            help: "Unsolicited data of all sessions, beyond 512K for each",
            manual: "Then TASK SET FULL",
        }
        held: Option<Size> = text, within HELD => {
            kind: SIZE,
            default: Standard::Value("32M"),
            place: Place::File,
            help: "Solicited data and answers of all sessions, beyond 256K for each",
            manual: "Then requests wait",
        }
        held_by_session: Option<Size> = text, within HELD => {
            kind: SIZE,
            default: Standard::Value("32M"),
            place: Place::File,
            help: "The part of that which one session may hold",
            manual: "",
        }
        ping_after: Option<ConfigDuration> = text, within TIMEOUT => {
            kind: DURATION,
            default: Standard::Value("15s"),
            place: Place::File,
            help: "Silence after which the server sends a NOP-In",
            manual: "A discovery session ends after this and `ping_patience`",
        }
        ping_patience: Option<ConfigDuration> = text, within TIMEOUT => {
            kind: DURATION,
            default: Standard::Value("30s"),
            place: Place::File,
            help: "Time for the answer of an initiator, and for taking what was sent",
            manual: "",
        }
        awake: Option<ConfigDuration> = text, within AWAKE => {
            kind: DURATION,
            default: Standard::Value("200us"),
            place: Place::File,
            help: "Busy-polling for the next request before a session sleeps",
            manual: "",
        }
        stop: Option<ConfigDuration> = text, within TIMEOUT => {
            kind: DURATION,
            default: Standard::Value("2s"),
            place: Place::File,
            help: "Time for initiators to log out when the server ends",
            manual: "",
        }
        slow: Option<ConfigDuration> = text, within SLOW => {
            kind: DURATION,
            default: Standard::Value("5s"),
            place: Place::File,
            help: "Commands that take this long are logged",
            manual: "",
        }
    }
}

/// What the table says, and the default of what it does not.
pub(super) fn limits(mut table: Table<'_>) -> LimitOptions {
    let limits = table.read(LIMITS, Path::new(""));
    if limits.held_by_session > limits.held {
        table.note_at("held_by_session", "one session cannot hold more than all do: `held`");
    }
    table.finish();
    limits
}
