//! Times as people write them: `50us`, `500ms`, `15s`, `2m`, `1h`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The longest time that can be asked for: beyond a day something else is meant.
const MAX: Duration = Duration::from_secs(24 * 60 * 60);

const UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("us", 1)];

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigDuration(Duration);

impl ConfigDuration {
    /// Of such a length.
    #[must_use]
    pub const fn new(time: Duration) -> Self {
        Self(time)
    }

    /// The time itself.
    #[must_use]
    pub const fn into_inner(self) -> Duration {
        self.0
    }
}

/// The text is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a time: write a number with us, ms, s, m or h such as 500ms or 15s, of at most 24h"
)]
pub struct NotATime(String);

impl FromStr for ConfigDuration {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = UNITS.iter().find(|(unit, _)| *unit == &text[digits.len()..]);
        // `parse` alone would take a sign.
        let number =
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>());
        match (unit, number) {
            (Some((_, micros)), Some(Ok(number))) => {
                number.checked_mul(*micros).map(Duration::from_micros)
            }
            _ => None,
        }
        .filter(|time| *time <= MAX)
        .map(Self)
        .ok_or_else(|| NotATime(text.to_owned()))
    }
}

impl fmt::Display for ConfigDuration {
    /// Exactly, to the microsecond: in the largest unit that needs no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        let exact =
            UNITS.iter().find(|(_, unit)| micros != 0 && micros.is_multiple_of(u128::from(*unit)));
        let (name, unit) = exact.unwrap_or(&("us", 1));
        write!(f, "{}{name}", micros / u128::from(*unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_an_end() {
        for (text, micros) in [
            ("50us", 50),
            ("500ms", 500_000),
            ("15s", 15_000_000),
            ("2m", 120_000_000),
            ("24h", 86_400_000_000),
        ] {
            let time = ConfigDuration(Duration::from_micros(micros));
            assert_eq!((text.parse(), time.to_string().as_str()), (Ok(time), text));
        }
        for text in [
            "",
            "5",
            "s",
            "+5s",
            "-5s",
            "1.5s",
            "25h",
            "1d",
            "1441m",
            "99999999999999999999s",
            "5 s",
        ] {
            assert!(text.parse::<ConfigDuration>().is_err(), "{text}");
        }
    }
}
