//! The names of the groups of volumes of a cluster: each group has a lease and a record of its own.

use std::fmt;
use std::str::FromStr;

use super::record::GATEWAY_MAX;

/// The name of the group of the volumes that name none.
const OF_THE_OTHERS: &str = "default";

/// The name of a group of volumes, which move together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupName(String);

/// A text that names no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a group has a name of 1 to {GATEWAY_MAX} lower case letters, digits, dots and hyphens, which begins with a letter or a digit"
)]
pub struct NotGroup;

impl Default for GroupName {
    /// That of the volumes that name none.
    fn default() -> Self {
        Self(OF_THE_OTHERS.to_owned())
    }
}

impl FromStr for GroupName {
    type Err = NotGroup;

    fn from_str(text: &str) -> Result<Self, NotGroup> {
        // No capitals: two groups must not have one directory where a file system does not tell them apart.
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = |byte: u8| is_word(byte) || byte == b'.' || byte == b'-';
        let begins = text.bytes().next().is_some_and(is_word);
        let is_name = text.len() <= GATEWAY_MAX && begins && text.bytes().all(fits);
        if is_name { Ok(Self(text.to_owned())) } else { Err(NotGroup) }
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl GroupName {
    /// Whether it is that of the volumes that name none. Its record is where clusters without groups have theirs.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.0 == OF_THE_OTHERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_groups_are_short_and_plain() {
        for name in ["a", "0", "web-1.db", &"x".repeat(GATEWAY_MAX)] {
            assert_eq!(name.parse::<GroupName>().map(|it| it.to_string()), Ok(name.to_owned()));
        }
        for wrong in
            ["", "A", "-a", ".", "..", "a/b", "a b", "a_b", "ä", &"x".repeat(GATEWAY_MAX + 1)]
        {
            assert_eq!(wrong.parse::<GroupName>(), Err(NotGroup), "{wrong}");
        }
        assert!(GroupName::default().is_default());
        assert_eq!("default".parse(), Ok(GroupName::default()));
    }
}
