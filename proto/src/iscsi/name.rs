//! Who is who: node names and session identifiers (RFC 7143, 4.2.7 and 11.12.5).

use std::fmt;

/// The longest node name, in bytes (RFC 7143, 4.2.7.1).
pub const NAME_MAX: usize = 223;

/// The name of an iSCSI node. A well-formed one is in its one normal form, so that equal names are equal strings,
/// unless it was taken [as written](Self::as_written).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IscsiName(String);

/// Why a name is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty, or longer than [`NAME_MAX`].
    #[error("an iSCSI name has 1 to {NAME_MAX} bytes")]
    Length,
    /// Neither `iqn.`, `eui.` nor `naa.`.
    #[error("an iSCSI name begins with 'iqn.', 'eui.' or 'naa.'")]
    Type,
    /// `iqn.` is not followed by a month and a domain name.
    #[error(
        "'iqn.' is followed by yyyy-mm, a reversed domain name and optionally ':' and a string"
    )]
    Iqn,
    /// `eui.` or `naa.` is not followed by the right number of hexadecimal digits.
    #[error("'eui.' has 16 hexadecimal digits, 'naa.' 16 or 32")]
    Digits,
    /// A character no name has.
    #[error("{0:?} cannot stand in an iSCSI name")]
    Character(char),
}

impl IscsiName {
    /// Checks a name and brings it into its normal form, which is lower case (RFC 3722).
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(NameError::Length);
        }
        if let Some(odd) = name.chars().find(|&c| !may_stand(c)) {
            return Err(NameError::Character(odd));
        }
        let name = name.to_lowercase();
        let (kind, rest) = name.split_at_checked(4).ok_or(NameError::Type)?;
        match kind {
            "iqn." if is_iqn(rest) => Ok(Self(name)),
            "iqn." => Err(NameError::Iqn),
            "eui." if is_hex(rest, &[16]) => Ok(Self(name)),
            "naa." if is_hex(rest, &[16, 32]) => Ok(Self(name)),
            "eui." | "naa." => Err(NameError::Digits),
            _ => Err(NameError::Type),
        }
    }

    /// The name of a peer, of which nothing but its equality with itself matters: well formed, or at least of a length
    /// and of characters that do no harm in a TransportID or a log. No well-formed name equals one that is not.
    pub fn tolerant(name: &str) -> Result<Self, NameError> {
        Self::new(name).or_else(|_| Self::as_written(name))
    }

    /// The name of a target far away, which may compare names byte by byte and have any: not brought into normal form.
    pub fn as_written(name: &str) -> Result<Self, NameError> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(NameError::Length);
        }
        match name.chars().find(|&c| !is_harmless(c)) {
            Some(odd) => Err(NameError::Character(odd)),
            None => Ok(Self(name.to_owned())),
        }
    }

    /// Whether it keeps the rules for names, but for the case of its letters.
    #[must_use]
    pub fn is_well_formed(&self) -> bool {
        Self::new(&self.0).is_ok()
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Letters, digits, dash, dot and colon (RFC 7143, 4.2.7.2). The underscore is not among them, yet
/// names in the field have it and nothing is lost by taking it.
fn may_stand(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '.' | ':' | '_')
}

/// What can stand in a text key, a TransportID (SPC-4, 7.6.4.6: a comma ends the name), a line of a log and a quoted
/// label: no NUL, no control character and no space.
fn is_harmless(c: char) -> bool {
    c.is_alphanumeric() || (c.is_ascii_graphic() && !matches!(c, ',' | '"' | '\\'))
}

/// `yyyy-mm.` and a domain name, then nothing or `:` and any string (RFC 7143, 4.2.7.4).
fn is_iqn(rest: &str) -> bool {
    let Some((date, rest)) = rest.split_once('.') else { return false };
    let Some((year, month)) = date.split_once('-') else { return false };
    let domain = rest.split(':').next().unwrap_or_default();
    let digits = |text: &str, n| text.len() == n && text.bytes().all(|b| b.is_ascii_digit());
    digits(year, 4)
        && digits(month, 2)
        && matches!(month.parse(), Ok(1_u8..=12))
        && domain.split('.').all(|label| !label.is_empty())
}

fn is_hex(rest: &str, lengths: &[usize]) -> bool {
    lengths.contains(&rest.len()) && rest.bytes().all(|digit| digit.is_ascii_hexdigit())
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for IscsiName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

/// The initiator's half of a session's name. It stays the same when an initiator logs in again, so
/// that the target knows the session it replaces (RFC 7143, 10.1.1: conservative reuse).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isid(pub [u8; 6]);

impl Isid {
    /// An ISID of the random format (T = 10b; RFC 7143, 11.12.5): 24 random bits and a qualifier.
    #[must_use]
    pub const fn random([a, b, c]: [u8; 3], qualifier: u16) -> Self {
        let [high, low] = qualifier.to_be_bytes();
        Self([0x80, a, b, c, high, low])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_kinds_are_taken() {
        for good in [
            "iqn.2026-11.dev.longhaul:backup",
            "iqn.2001-04.com.example",
            "iqn.2001-04.com.example:storage:disk2.sys_1.xyz",
            "eui.02004567a425678d",
            "naa.52004567ba64678d",
            "naa.62004567ba64678d0123456789abcdef",
        ] {
            assert_eq!(IscsiName::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn case_does_not_tell_names_apart() {
        let upper = IscsiName::new("IQN.2001-04.COM.Example:Disk").unwrap();
        assert_eq!(upper, IscsiName::new("iqn.2001-04.com.example:disk").unwrap());
    }

    #[test]
    fn malformed_name_is_explained() {
        let longest = format!("iqn.2001-04.a:{}", "x".repeat(NAME_MAX - 14));
        assert!(IscsiName::new(&longest).is_ok());
        let cases = [
            (format!("{longest}x"), NameError::Length),
            (String::new(), NameError::Length),
            ("abc".into(), NameError::Type),
            ("wwn.1".into(), NameError::Type),
            ("iqn.2001-13.com.example".into(), NameError::Iqn),
            ("iqn.201-13.com.example".into(), NameError::Iqn),
            ("iqn.2001-04..example".into(), NameError::Iqn),
            ("iqn.2001-04".into(), NameError::Iqn),
            ("eui.02004567a425678".into(), NameError::Digits),
            ("naa.5200".into(), NameError::Digits),
            ("iqn.2001-04.com.example:a b".into(), NameError::Character(' ')),
            ("iqn.2001-04.com.example:a\nb".into(), NameError::Character('\n')),
        ];
        for (name, error) in cases {
            assert_eq!(IscsiName::new(&name), Err(error), "{name}");
        }
    }

    #[test]
    fn a_tolerant_name_is_normal_where_it_is_well_formed_and_as_written_elsewhere() {
        let tolerant = |name: &str| IscsiName::tolerant(name).unwrap();
        let well = tolerant("IQN.2001-04.com.example:Disk");
        assert_eq!(well, IscsiName::new("iqn.2001-04.com.example:disk").unwrap());
        assert!(well.is_well_formed());
        for odd in ["disk", "Disk", "iqn.example", "eui.1", "naa.5200", "a/b@c=[d]"] {
            assert_eq!(tolerant(odd).as_str(), odd);
            assert!(!tolerant(odd).is_well_formed());
        }
        let written = IscsiName::as_written("iqn.2001-04.com.example:Disk").unwrap();
        assert_eq!(written.as_str(), "iqn.2001-04.com.example:Disk");
    }

    #[test]
    fn a_tolerant_name_is_bounded_and_harmless() {
        let longest = "x".repeat(NAME_MAX);
        assert!(IscsiName::tolerant(&longest).is_ok());
        for (name, error) in [
            (format!("{longest}x"), NameError::Length),
            (String::new(), NameError::Length),
            ("a\0b".into(), NameError::Character('\0')),
            ("a\u{1b}[2J".into(), NameError::Character('\u{1b}')),
            ("a\nb".into(), NameError::Character('\n')),
            ("a b".into(), NameError::Character(' ')),
            ("a,i,0x800000000001".into(), NameError::Character(',')),
            ("a\"b".into(), NameError::Character('"')),
            ("a\u{202e}b".into(), NameError::Character('\u{202e}')),
        ] {
            assert_eq!(IscsiName::tolerant(&name), Err(error), "{name:?}");
        }
    }

    #[test]
    fn a_random_isid_says_that_it_is_one() {
        assert_eq!(Isid::random([1, 2, 3], 4), Isid([0x80, 1, 2, 3, 0, 4]));
    }
}
