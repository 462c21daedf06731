//! What others have written, made fit for a terminal and for a log: the one place that does so.
//!
//! Names, aliases, addresses and reasons come from servers and clients. Printed as they are, control characters in
//! them could steer the terminal, hide what follows, or look like other lines.

use std::fmt::{self, Write as _};
use std::io;

/// A text of several lines, with all control characters but line feeds and tabs escaped.
#[derive(Debug)]
pub(crate) struct Printable<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { to: f, lines: true }, "{}", self.0)
    }
}

/// A text that somebody else has written, on one line.
#[derive(Debug)]
pub(crate) struct OneLine<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { to: f, lines: false }, "{}", self.0)
    }
}

/// A number of things, by a name that takes an s where they are not one.
#[derive(Debug)]
pub(crate) struct Counted<N>(pub(crate) N, pub(crate) &'static str);

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for Counted<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, name) = self;
        let s = if *count == N::from(1) { "" } else { "s" };
        write!(f, "{count} {name}{s}")
    }
}

/// A path as it is shown: on one line, whatever its name holds.
pub(crate) trait Shown {
    /// It is printed so.
    fn shown(&self) -> OneLine<std::path::Display<'_>>;
}

impl Shown for std::path::Path {
    fn shown(&self) -> OneLine<std::path::Display<'_>> {
        OneLine(self.display())
    }
}

/// A path as an argument of a command that is advised: the shell takes it as it is.
pub(crate) trait Quoted {
    /// It is written so.
    fn quoted(&self) -> String;
}

impl Quoted for std::path::Path {
    fn quoted(&self) -> String {
        let path = self.to_string_lossy();
        let is_plain = |c: char| c.is_alphanumeric() || "/._-+:,@%=".contains(c);
        // It is no option.
        let dot = if path.starts_with('-') { "./" } else { "" };
        if !path.is_empty() && path.chars().all(is_plain) {
            return format!("{dot}{path}");
        }
        if !path.chars().any(is_control) {
            return format!("'{dot}{}'", path.replace('\'', r"'\''"));
        }
        let mut quoted = format!("$'{dot}");
        for c in path.chars() {
            match c {
                '\'' | '\\' => quoted.extend(['\\', c]),
                c if is_control(c) => {
                    let _ = write!(quoted, "\\U{:08x}", u32::from(c));
                }
                c => quoted.push(c),
            }
        }
        quoted + "'"
    }
}

/// One JSON value on one line. What stands for itself in JSON and yet steers a terminal is escaped as JSON escapes
/// characters (RFC 8259, 7), so that it stays valid and means the same.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for Json<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(JsonEscaping(f), "{}", self.0)
    }
}

/// Such characters are only found inside of strings there.
struct JsonEscaping<'a, W>(&'a mut W);

impl<W: fmt::Write> fmt::Write for JsonEscaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if !is_control(c) {
                self.0.write_char(c)?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(self.0, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

struct Escaping<'a, W> {
    to: &'a mut W,
    /// Line feeds and tabs are ours.
    lines: bool,
}

impl<W: fmt::Write> fmt::Write for Escaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '\n' | '\t' if self.lines => self.to.write_char(c)?,
                c if is_control(c) => write!(self.to, "{}", c.escape_default())?,
                c => self.to.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Control characters, and those that are not seen but change how others are: of direction, of width zero,
/// separators of lines, and tags.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

/// Where log lines go that are JSON: each event is one value.
#[derive(Debug)]
pub(crate) struct JsonLines<W>(pub(crate) W);

impl<W: io::Write> io::Write for JsonLines<W> {
    /// Takes one event, which ends with a line feed.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (line, end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
        self.0.write_all(format!("{}{end}", Json(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Where log lines go: each event is one line. Colours are left, as those that write them escape all others.
#[derive(Debug)]
pub(crate) struct LogLines<W>(pub(crate) W);

impl<W: io::Write> io::Write for LogLines<W> {
    /// Takes one event, which ends with a line feed.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (line, end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
        let mut escaped = String::with_capacity(text.len());
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("\u{1b}[") {
            let colour = after.find(|c: char| !c.is_ascii_digit() && c != ';');
            let colour = colour.filter(|at| after[*at..].starts_with('m'));
            let _ = write!(escaped, "{}", OneLine(before));
            match colour {
                Some(at) => escaped.extend(["\u{1b}[", &after[..=at]]),
                None => escaped.push_str("\\u{1b}["),
            }
            rest = colour.map_or(after, |at| &after[at + 1..]);
        }
        let _ = write!(escaped, "{}{end}", OneLine(rest));
        self.0.write_all(escaped.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn control_characters_are_escaped_and_everything_else_is_left() {
        let evil = "a\u{1b}]0;x\u{7}b\rc\u{9b}31m\u{202e}d\u{2028}\u{0}é漢";
        let escaped = r"a\u{1b}]0;x\u{7}b\rc\u{9b}31m\u{202e}d\u{2028}\u{0}é漢";
        assert_eq!(Printable(evil).to_string(), escaped);
        assert_eq!(OneLine(evil).to_string(), escaped);
        assert_eq!(Printable("two\n\tlines").to_string(), "two\n\tlines");
        assert_eq!(OneLine("two\n\tlines").to_string(), r"two\n\tlines");
    }

    #[test]
    fn one_thing_is_told_of_without_an_s() {
        let told = [0, 1, 2].map(|count| Counted(count, "change").to_string());
        assert_eq!(told, ["0 changes", "1 change", "2 changes"]);
    }

    /// What somebody copies out of an error must name that file and no other.
    #[test]
    fn path_in_advice_is_one_argument_of_a_shell() {
        let shell = |path: &str| {
            let command = format!("printf %s {}", std::path::Path::new(path).quoted());
            let done = std::process::Command::new("bash").args(["-c", &command]).output().unwrap();
            String::from_utf8(done.stdout).unwrap()
        };
        for path in [
            "a/b-1.replay",
            "d ü/a b.img",
            "*",
            "a'b",
            "$HOME `id` \"x\" \\",
            "a\nb\u{7}\u{202e}'\\",
            "漢",
        ] {
            assert_eq!(shell(path), path);
        }
        assert_eq!(shell("-a b"), "./-a b");
        assert_eq!(shell("--force"), "./--force");
        assert_eq!(std::path::Path::new("/a/b-1.replay").quoted(), "/a/b-1.replay");
    }

    #[test]
    fn json_stays_valid_and_means_the_same() {
        let evil = "a\u{1b}]0;x\u{7}\"\\b\r\n\u{9b}31m\u{7f}\u{202e}d\u{2028}\u{61c}\u{e0041}é漢";
        let json = serde_json::to_string(&[evil]).unwrap();
        let shown = Json(&json).to_string();
        assert!(
            shown.contains("\\u009b31m\\u007f\\u202ed\\u2028\\u061c\\udb40\\udc41é漢"),
            "{shown}"
        );
        assert!(!shown.chars().any(is_control));
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [evil]);
        let mut lines = JsonLines(Vec::new());
        lines.write_all(format!("{json}\n").as_bytes()).unwrap();
        assert_eq!(String::from_utf8(lines.0).unwrap(), shown + "\n");
    }

    #[test]
    fn log_event_is_one_line_whose_colours_are_left() {
        let mut lines = LogLines(Vec::new());
        lines.write_all(b"\x1b[33m WARN\x1b[0m why=a\nINFO ready\x1b[2J\x1b[1;31mx\r\n").unwrap();
        let written = String::from_utf8(lines.0).unwrap();
        assert_eq!(
            written,
            "\u{1b}[33m WARN\u{1b}[0m why=a\\nINFO ready\\u{1b}[2J\u{1b}[1;31mx\\r\n"
        );
    }
}
