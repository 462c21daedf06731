//! What is wrong with a file that is no TOML, in words that say what to do.

use std::ops::Range;

use toml::de::Error;

/// A bracket that is left open, and what to do about it: whatever else the parser stumbles over follows from it.
pub(super) fn left_open(text: &str) -> Option<(Range<usize>, String)> {
    let at = open_bracket(text)?;
    let bracket = &text[at..=at];
    let other = if bracket == "[" { "]" } else { "}" };
    let why = format!("`{bracket}` is not closed: write the `{other}` that ends what it begins");
    Some((at..at, why))
}

/// One mistake, and where.
pub(super) fn explain_syntax_error(text: &str, error: &Error) -> (Range<usize>, String) {
    let at = error.span().unwrap_or_default();
    let what = text.get(at.clone()).unwrap_or_default().trim();
    let why = explain(error.message().trim_end(), what);
    (at, why)
}

fn explain(message: &str, what: &str) -> String {
    match message.split([',', '\n']).next().unwrap_or_default() {
        "duplicate key" => format!("`{what}` stands here a second time: write it once"),
        "string values must be quoted" => {
            format!("`{what}` is no value: a text stands in quotes, as in \"{what}\"")
        }
        "invalid basic string" => "a text is not closed: write the `\"` that ends it".to_owned(),
        "key with no value" => format!("`{what}` has no value: write KEY = VALUE"),
        _ => message.replace('\n', ", "),
    }
}

/// The first bracket outside texts and remarks that nothing closes.
fn open_bracket(text: &str) -> Option<usize> {
    let (mut open, mut quote) = (Vec::new(), None);
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match (quote, byte) {
            // A text of one line; those of several are three quotes, which open, close and open one.
            (Some(_), b'\n') => quote = None,
            (Some(b'"'), b'\\') => drop(bytes.next()),
            (Some(own), byte) if byte == own => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'#') => drop(bytes.find(|(_, byte)| *byte == b'\n')),
            (None, b'[' | b'{') => open.push(at),
            (None, b']' | b'}') => drop(open.pop()),
            (None, _) => {}
        }
    }
    open.first().copied()
}

#[cfg(test)]
mod tests {
    use toml::de::DeTable;

    use super::*;

    #[test]
    fn first_mistake_is_named_where_it_is() {
        for (text, line, why) in [
            ("listen = [\n[volumes.a]\nuri = \"memory:1M\"\n", 1, "`[` is not closed"),
            ("a = 1\n[volumes.a\nuri = \"x\"\n", 2, "`[` is not closed"),
            ("a = 1\na = 2\n", 2, "`a` stands here a second time"),
            ("a = memory:1M\n", 1, "a text stands in quotes"),
            ("a = \"x\n", 1, "a text is not closed"),
            ("a \"x\"\n", 1, "write KEY = VALUE"),
        ] {
            let (_, errors) = DeTable::parse_recoverable(text);
            let first = errors.first().map(|error| explain_syntax_error(text, error));
            let (at, said) = left_open(text).or(first).unwrap();
            assert_eq!(1 + text[..at.start].matches('\n').count(), line, "{text}: {said}");
            assert!(said.contains(why), "{text}: {said}");
        }
        for text in ["a = \"[\" # [\nb = [{ c = 'y' }]\n", "a = 'it'\nb = [\n1,\n]\n", "a = '['"] {
            assert_eq!(open_bracket(text), None, "{text}");
        }
    }
}
