//! How long an outage is waited for, as people write it: `90s`, `5m`, `2h`, `forever`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::store::iscsi::RECONNECT_FOR;

/// How long requests wait for a connection that is lost; `None` for as long as it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectLimit(pub Option<Duration>);

impl ReconnectLimit {
    /// For disks in use: an error would break what stands on them.
    pub const FOREVER: Self = Self(None);

    /// How long a login may take: no longer than an outage, and as long as one by a slow link needs.
    #[must_use]
    pub fn login_within(self) -> Duration {
        self.0.map_or(LOGIN_MAX, |limit| limit.clamp(LOGIN_MIN, LOGIN_MAX))
    }
}

/// A login takes several round trips, each of which may take most of a second.
const LOGIN_MIN: Duration = Duration::from_secs(5);

/// A server that has not answered by then does not.
const LOGIN_MAX: Duration = Duration::from_secs(30);

/// For commands that somebody waits for.
impl Default for ReconnectLimit {
    fn default() -> Self {
        Self(Some(RECONNECT_FOR))
    }
}

/// The longest that can be asked for, in seconds: beyond a hundred years something else is meant.
const MAX: u64 = 36_500 * 86_400;

const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];

/// The text is no such time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a time: write a number with s, m, h or d such as 90s or 2h, of at most 36500d, or `forever`"
)]
pub struct NotAReconnectLimit(String);

impl FromStr for ReconnectLimit {
    type Err = NotAReconnectLimit;

    fn from_str(text: &str) -> Result<Self, NotAReconnectLimit> {
        if text == "forever" {
            return Ok(Self::FOREVER);
        }
        let unit =
            UNITS.iter().find_map(|&(unit, length)| Some((text.strip_suffix(unit)?, length)));
        // `parse` alone would take a sign.
        let digits = |digits: &&str| digits.bytes().all(|byte| byte.is_ascii_digit());
        unit.filter(|(number, _)| digits(number))
            .and_then(|(number, length)| number.parse::<u64>().ok()?.checked_mul(length))
            .filter(|seconds| *seconds <= MAX)
            .map(|seconds| Self(Some(Duration::from_secs(seconds))))
            .ok_or_else(|| NotAReconnectLimit(text.to_owned()))
    }
}

impl fmt::Display for ReconnectLimit {
    /// Exactly: in the largest unit that needs no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(seconds) = self.0.map(|time| time.as_secs()) else {
            return f.write_str("forever");
        };
        let exact = |(_, length): &&(char, u64)| seconds != 0 && seconds.is_multiple_of(*length);
        let (unit, length) = UNITS.iter().rev().find(exact).unwrap_or(&UNITS[0]);
        write!(f, "{}{unit}", seconds / length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_value_is_read_back() {
        for text in ["0s", "59s", "90s", "5m", "2h", "1d", "36500d", "forever"] {
            assert_eq!(text.parse::<ReconnectLimit>().unwrap().to_string(), text);
        }
        assert_eq!("120m".parse::<ReconnectLimit>().unwrap().to_string(), "2h");
    }

    #[test]
    fn login_takes_no_longer_than_an_outage_within_bounds() {
        for (limit, within) in [("0s", 5), ("5s", 5), ("12s", 12), ("1m", 30), ("forever", 30)] {
            let limit: ReconnectLimit = limit.parse().unwrap();
            assert_eq!(limit.login_within(), Duration::from_secs(within), "{limit}");
        }
    }

    #[test]
    fn malformed_time_is_refused() {
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "+1s",
            "1.5h",
            "1w",
            "never",
            "99999999999999999999d",
            "36501d",
            "18446744073709551615s",
        ] {
            assert_eq!(text.parse::<ReconnectLimit>(), Err(NotAReconnectLimit(text.to_owned())));
        }
    }
}
