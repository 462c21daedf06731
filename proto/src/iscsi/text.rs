//! Text: `key=value` pairs, each ended by a NUL, and the forms values take (RFC 7143, 6.1).
//!
//! One text may be spread over several PDUs; all but the last carry the C bit. [`Assembly`] joins
//! them within a bound, [`segments`] cuts one for sending.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// The longest key (RFC 7143, 6.1: "a key-name ... not exceeding 63").
pub const KEY_MAX: usize = 63;

/// The longest value, unless its key says otherwise (RFC 7143, 6.1).
pub const VALUE_MAX: usize = 255;

/// The longest binary value: CHAP_C and CHAP_R have up to 1024 bytes (RFC 7143, 12.1.3).
pub const BINARY_MAX: usize = 1024;

/// The longest value of a key that carries binary: two hexadecimal digits a byte, after `0x`.
const BINARY_VALUE_MAX: usize = 2 + 2 * BINARY_MAX;

/// The most text one side may send as one answer over any number of PDUs, unless something else is said; what
/// RFC 7143, 6.1 asks a receiver of the longest proofs to take.
pub const TEXT_MAX: usize = 64 * 1024;

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A pair without `=`.
    #[error("a pair without '='")]
    NoValue,
    /// The last pair has no NUL.
    #[error("the last pair is not ended by a NUL")]
    Unended,
    /// A key that is empty, too long, or has characters no key has.
    #[error("a malformed key")]
    Key,
    /// A value that is too long.
    #[error("the value of {0} is too long")]
    ValueTooLong(String),
    /// A value that is not UTF-8.
    #[error("the value of {0} is not UTF-8")]
    NotUtf8(String),
    /// More text than is taken.
    #[error("more text than is taken")]
    TooLong,
}

/// One pair, as it stands in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key.
    pub key: &'a str,
    /// Its value.
    pub value: &'a str,
}

/// The pairs of a complete text, in order.
///
/// Empty strings between pairs are passed over: some initiators count the padding of the data
/// segment as data.
pub fn parse(text: &[u8]) -> Result<Vec<Pair<'_>>, TextError> {
    let Some(body) = text.strip_suffix(&[0]) else {
        return if text.is_empty() { Ok(Vec::new()) } else { Err(TextError::Unended) };
    };
    body.split(|&byte| byte == 0).filter(|pair| !pair.is_empty()).map(parse_pair).collect()
}

fn parse_pair(pair: &[u8]) -> Result<Pair<'_>, TextError> {
    let equals = pair.iter().position(|&byte| byte == b'=').ok_or(TextError::NoValue)?;
    let (key, value) = pair.split_at(equals);
    let value = value.strip_prefix(b"=").unwrap_or_default();
    let key = std::str::from_utf8(key).map_err(|_| TextError::Key)?;
    if !is_key(key) {
        return Err(TextError::Key);
    }
    let most = if key.starts_with("CHAP_") { BINARY_VALUE_MAX } else { VALUE_MAX };
    if value.len() > most {
        return Err(TextError::ValueTooLong(key.to_owned()));
    }
    let value = std::str::from_utf8(value).map_err(|_| TextError::NotUtf8(key.to_owned()))?;
    Ok(Pair { key, value })
}

/// A standard label: a letter, then letters, digits and a few marks (RFC 7143, 6.1). Lower case at
/// the front is let through for `iSCSIProtocolLevel`.
fn is_key(key: &str) -> bool {
    key.len() <= KEY_MAX
        && key.starts_with(|first: char| first.is_ascii_alphabetic())
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+@_".contains(&byte))
}

/// Appends one pair to a text.
pub fn push(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// Joins the segments of a text that is spread over PDUs.
#[derive(Clone, Debug)]
pub struct Assembly {
    text: Vec<u8>,
    most: usize,
}

impl Default for Assembly {
    fn default() -> Self {
        Self::of_at_most(TEXT_MAX)
    }
}

impl Assembly {
    /// A text of at most `most` bytes.
    #[must_use]
    pub const fn of_at_most(most: usize) -> Self {
        Self { text: Vec::new(), most }
    }

    /// Adds a segment; `continues` is the C bit. Gives the whole text with its last segment.
    pub fn add(&mut self, segment: &[u8], continues: bool) -> Result<Option<Vec<u8>>, TextError> {
        if self.text.len() + segment.len() > self.most {
            return Err(TextError::TooLong);
        }
        self.text.extend_from_slice(segment);
        Ok((!continues).then(|| std::mem::take(&mut self.text)))
    }
}

/// Cuts a text into segments of at most `most` bytes, each with its C bit. There is always one.
pub fn segments(text: &[u8], most: usize) -> impl Iterator<Item = (&[u8], bool)> {
    let count = text.len().div_ceil(most).max(1);
    (0..count).map(move |i| {
        let end = text.len().min((i + 1) * most);
        (text.get(i * most..end).unwrap_or_default(), i + 1 < count)
    })
}

/// A number: decimal, or hexadecimal after `0x` (RFC 7143, 6.1: numerical-value).
#[must_use]
pub fn number(value: &str) -> Option<u64> {
    match strip_prefix_any_case(value, "0x") {
        Some(hex) if hex.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
            u64::from_str_radix(hex, 16).ok()
        }
        Some(_) => None,
        None if value.bytes().all(|digit| digit.is_ascii_digit()) => value.parse().ok(),
        None => None,
    }
}

/// A binary value: hexadecimal after `0x`, base64 after `0b`, and of 1 to [`BINARY_MAX`] bytes.
#[must_use]
pub fn binary(value: &str) -> Option<Vec<u8>> {
    let bytes = if let Some(hex) = strip_prefix_any_case(value, "0x") {
        from_hex(hex)?
    } else {
        BASE64.decode(strip_prefix_any_case(value, "0b")?).ok()?
    };
    (1..=BINARY_MAX).contains(&bytes.len()).then_some(bytes)
}

/// A binary value in hexadecimal, the form every peer reads.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::from("0x"), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// A binary value in base64, for keys only Longhaul reads.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    let mut value = String::from("0b");
    BASE64.encode_string(bytes, &mut value);
    value
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = hex.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    // An odd count has an unwritten leading zero: the value is a number (RFC 7143, 6.1).
    let lead = (digits.len() % 2 == 1).then_some(0);
    let padded: Vec<u32> = lead.into_iter().chain(digits).collect();
    let byte = |pair: &[u32]| pair.iter().fold(0, |sum, digit| sum * 16 + digit);
    padded.chunks(2).map(|pair| u8::try_from(byte(pair)).ok()).collect()
}

fn strip_prefix_any_case<'a>(value: &'a str, prefix: &str) -> Option<&'a str> {
    let (head, rest) = value.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// `Yes` or `No`.
#[must_use]
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// The items of a list.
pub fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',')
}

/// A range `low~high`, in order.
#[must_use]
pub fn range(value: &str) -> Option<std::ops::RangeInclusive<u64>> {
    let (low, high) = value.split_once('~')?;
    let (low, high) = (number(low)?, number(high)?);
    (low <= high).then_some(low..=high)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pairs_are_read_in_order() {
        let pairs = parse(b"InitialR2T=No\0\0TargetAlias=a=b\0X-a.b=\0").unwrap();
        let pairs: Vec<_> = pairs.iter().map(|pair| (pair.key, pair.value)).collect();
        assert_eq!(pairs, [("InitialR2T", "No"), ("TargetAlias", "a=b"), ("X-a.b", "")]);
        assert_eq!(parse(b""), Ok(vec![]));
    }

    #[test]
    fn malformed_text_is_named() {
        let long = |n: usize, key: &str| [key.as_bytes(), b"=", &vec![b'a'; n], b"\0"].concat();
        assert_eq!(parse(b"A=b"), Err(TextError::Unended));
        assert_eq!(parse(b"A\0"), Err(TextError::NoValue));
        assert_eq!(parse(b"=b\0"), Err(TextError::Key));
        assert_eq!(parse(b"A b=c\0"), Err(TextError::Key));
        assert_eq!(parse(&long(1, &"k".repeat(64))), Err(TextError::Key));
        assert!(parse(&long(1, &"k".repeat(63))).is_ok());
        assert!(parse(&long(255, "A")).is_ok());
        assert_eq!(parse(&long(256, "A")), Err(TextError::ValueTooLong("A".into())));
        assert!(parse(&long(2050, "CHAP_R")).is_ok());
        assert_eq!(parse(&long(2051, "CHAP_R")), Err(TextError::ValueTooLong("CHAP_R".into())));
        assert_eq!(parse(b"A=\xff\0"), Err(TextError::NotUtf8("A".into())));
    }

    #[test]
    fn numbers_have_two_forms() {
        assert_eq!(number("0x1F"), Some(31));
        assert_eq!(number("65536"), Some(65_536));
        assert_eq!(number("0"), Some(0));
        for bad in ["", "+1", "-1", "0x", "0x+1", "1 ", "18446744073709551616", "0b00"] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }

    #[test]
    fn binary_values_have_two_forms_and_a_length() {
        assert_eq!(binary("0x0aFf"), Some(vec![10, 255]));
        assert_eq!(binary("0xaff"), Some(vec![10, 255]));
        assert_eq!(binary("0bCv8="), Some(vec![10, 255]));
        assert_eq!(binary(&format!("0x{}", "00".repeat(1024))).map(|b| b.len()), Some(1024));
        for bad in ["", "0x", "0b", "0aff", "0xzz", "0bC", &format!("0x{}", "00".repeat(1025))] {
            assert_eq!(binary(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranges_are_ordered() {
        assert_eq!(range("1~0x10"), Some(1..=16));
        assert_eq!(range("2~1"), None);
    }

    #[test]
    fn an_assembly_is_bounded() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add(&vec![b'a'; TEXT_MAX - 1], true), Ok(None));
        assert_eq!(assembly.add(b"aa", false), Err(TextError::TooLong));
    }

    proptest! {
        #[test]
        fn pushed_pairs_are_parsed(pairs in prop::collection::vec(("[A-Z][a-z0-9]{0,20}", "[ -~]{0,60}"), 0..9)) {
            let mut text = Vec::new();
            pairs.iter().for_each(|(key, value)| push(&mut text, key, value));
            let parsed = parse(&text).unwrap();
            let parsed: Vec<_> =
                parsed.iter().map(|pair| (pair.key.to_owned(), pair.value.to_owned())).collect();
            prop_assert_eq!(parsed, pairs);
        }

        #[test]
        fn segments_join_to_the_text(text in prop::collection::vec(any::<u8>(), 0..600), most in 1_usize..99) {
            let mut assembly = Assembly::default();
            let mut whole = None;
            for (segment, continues) in segments(&text, most) {
                prop_assert!(whole.is_none() && segment.len() <= most);
                whole = assembly.add(segment, continues).unwrap();
            }
            prop_assert_eq!(whole, Some(text));
        }

        #[test]
        fn binary_values_are_read_back(bytes in prop::collection::vec(any::<u8>(), 1..99)) {
            prop_assert_eq!(binary(&hex(&bytes)), Some(bytes.clone()));
            prop_assert_eq!(binary(&base64(&bytes)), Some(bytes));
        }

        #[test]
        fn no_bytes_break_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }
    }
}
