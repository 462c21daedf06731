//! Times as people write them: `500ms`, `15s`, `2m`.

use std::str::FromStr;
use std::time::Duration;

/// The longest time that can be asked for: beyond a day something else is meant.
const MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause(Duration);

impl Pause {
    /// The time itself.
    #[must_use]
    pub const fn into_inner(self) -> Duration {
        self.0
    }
}

/// The text is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a time: write a number with ms, s or m such as 500ms or 15s, of at most 24 hours"
)]
pub struct NotATime(String);

impl FromStr for Pause {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            _ => return Err(NotATime(text.to_owned())),
        };
        // `parse` alone would take a sign.
        let number =
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>());
        match number {
            Some(Ok(number)) => number.checked_mul(unit).map(Duration::from_millis),
            _ => None,
        }
        .filter(|time| !time.is_zero() && *time <= MAX)
        .map(Self)
        .ok_or_else(|| NotATime(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_an_end() {
        for (text, millis) in [("500ms", 500), ("15s", 15_000), ("2m", 120_000)] {
            assert_eq!(text.parse(), Ok(Pause(Duration::from_millis(millis))));
        }
        for text in
            ["", "5", "s", "+5s", "-5s", "1.5s", "0s", "1h", "1441m", "99999999999999999999s"]
        {
            assert!(text.parse::<Pause>().is_err(), "{text}");
        }
    }
}
