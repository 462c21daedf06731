//! Sizes as people write them: `512`, `64M`, `80G`, `1T`, in powers of 1024.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// The text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size: write bytes, or a number with K, M, G or T such as 64M or 80G")]
pub struct NotASize(String);

impl FromStr for Size {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let unit = UNITS.iter().find_map(|&(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
        let (digits, shift) = unit.unwrap_or((text, 0));
        // `parse` alone would take a sign.
        let number =
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>());
        match number {
            Some(Ok(n)) => n.checked_mul(1 << shift).map(Self),
            _ => None,
        }
        .ok_or_else(|| NotASize(text.to_owned()))
    }
}

impl fmt::Display for Size {
    /// Exactly: in the largest unit that needs no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact =
            UNITS.iter().find(|(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift));
        match exact {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_value_is_read_back() {
        for text in ["0", "511", "1K", "64M", "80G", "1T", "1025"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        assert_eq!("1024K".parse::<Size>().unwrap().to_string(), "1M");
    }

    #[test]
    fn malformed_size_is_refused() {
        for text in ["", "M", "-1", "+1", "1.5G", "64m", "64MB", " 1", "99999999T"] {
            assert_eq!(text.parse::<Size>(), Err(NotASize(text.to_owned())));
        }
    }
}
