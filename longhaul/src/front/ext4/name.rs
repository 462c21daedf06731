//! Names of files as they are shown: their bytes are somebody else's, and need not be UTF-8.

use std::fmt;

use crate::printable::OneLine;

/// A name or a path of a file system.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(pub(crate) Vec<u8>);

impl Name {
    /// This path with one more name.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let mut path = self.0.clone();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Self(path)
    }

    /// It as text, with replacement characters for bytes that are none.
    pub(crate) fn lossy(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// Its bytes in hexadecimal digits, where they are not UTF-8.
    pub(crate) fn hex(&self) -> Option<String> {
        let is_text = std::str::from_utf8(&self.0).is_ok();
        (!is_text).then(|| self.0.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl fmt::Display for Name {
    /// Control characters are escaped, and bytes that are no characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            write!(f, "{}", OneLine(chunk.valid()))?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_shown_on_one_line_whatever_its_bytes() {
        let name = Name(b"a\x1b[2J\nb\xff\xfe\xc3\xa9".to_vec());
        assert_eq!(name.to_string(), "a\\u{1b}[2J\\nb\\xff\\xfe\u{e9}");
        assert_eq!(name.hex().unwrap(), "611b5b324a0a62fffec3a9");
        assert_eq!(Name(b"plain".to_vec()).hex(), None);
        assert_eq!(Name(b"/".to_vec()).join(b"a").join(b"b").to_string(), "/a/b");
    }
}
