//! Quantities as people write them: `8ms`, `1G`, `0.1%`, `64K`.

use std::time::Duration;

/// A text that is no such quantity.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}, such as {example}")]
pub(crate) struct NotOne {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// A time: `8ms`, `500us`, `2s`.
pub(crate) fn duration(text: &str) -> Result<Duration, NotOne> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    scaled(text, &units)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| not_one(text, "time", "8ms"))
}

/// A rate in bits a second, with decimal prefixes, as bytes a second: `1G`, `3M`.
pub(crate) fn rate(text: &str) -> Result<u64, NotOne> {
    let units = [("k", 1e3), ("M", 1e6), ("G", 1e9), ("", 1.0)];
    scaled(text, &units)
        .map(|bits| (bits / 8.0) as u64)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| not_one(text, "rate in bits a second", "1G"))
}

/// A number of bytes, with binary prefixes: `64K`, `2M`.
pub(crate) fn size(text: &str) -> Result<u64, NotOne> {
    let units = [("K", 1024.0), ("M", 1048576.0), ("G", 1073741824.0), ("", 1.0)];
    scaled(text, &units)
        .map(|bytes| bytes as u64)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| not_one(text, "size", "64K"))
}

/// A share of packets, as so many in a million: `0.1%`.
pub(crate) fn per_million(text: &str) -> Result<u32, NotOne> {
    text.strip_suffix('%')
        .and_then(number)
        .filter(|percent| *percent <= 100.0)
        .map(|percent| (percent * 1e4).round() as u32)
        .ok_or_else(|| not_one(text, "share", "0.1%"))
}

/// The number before the first unit that fits.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    units.iter().find_map(|(unit, scale)| Some(number(text.strip_suffix(unit)?)? * scale))
}

/// A plain decimal number; what else Rust takes for one (`inf`, `1e3`, `-1`) is a typing error here.
fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

fn not_one(text: &str, what: &'static str, example: &'static str) -> NotOne {
    NotOne { text: text.to_owned(), what, example }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        assert_eq!(duration("8ms"), Ok(Duration::from_millis(8)));
        assert_eq!(duration("37.5ms"), Ok(Duration::from_micros(37_500)));
        assert_eq!(duration("0ms"), Ok(Duration::ZERO));
        assert_eq!(rate("1G"), Ok(125_000_000));
        assert_eq!(rate("967.7k"), Ok(120_962));
        assert_eq!(size("64K"), Ok(65_536));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(per_million("0.1%"), Ok(1000));
        assert_eq!(per_million("100%"), Ok(1_000_000));
    }

    #[test]
    fn malformed_quantity_is_refused_with_an_example() {
        for text in ["", "8", "-1ms", "infs", "1e3s", "ms", "99999999999999999999999s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["", "0", "1g", "G", "NaN"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert!(per_million("0.1").is_err() && per_million("101%").is_err());
        let why = size("many").unwrap_err().to_string();
        assert_eq!(why, "`many` is no size, such as 64K");
    }
}
