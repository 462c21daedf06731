//! A page to print, with all that it takes to get at an encrypted volume when everything but the server is gone.

use std::fmt::Write as _;
use std::path::Path;

use zeroize::Zeroizing;

use crate::line_chart::escape;
use crate::printable::{OneLine, Quoted as _, Shown as _};
use crate::qr_code::QrCode;
use crate::recovery_words::RecoveryWords;
use crate::{sealing, utc};

/// What stands on it.
pub(crate) struct RecoverySheet {
    /// The URI of the volume.
    pub(crate) uri: String,
    pub(crate) label: String,
    pub(crate) uuid: String,
    /// Its cipher and the size of its key.
    pub(crate) cipher: String,
    /// The key slot that the words open.
    pub(crate) slot: u32,
    pub(crate) words: RecoveryWords,
    /// Where a backup of the header is kept, as far as it was said.
    pub(crate) header: Option<String>,
    /// Notes for whoever needs it.
    pub(crate) note: Option<String>,
    /// When it was made, in seconds of the Unix epoch.
    pub(crate) made: u64,
}

/// A line to be filled in by hand.
const BLANK: &str = "______________________________________________";

const TITLE: &str = "Recovery sheet of an encrypted volume";
const WARNING: &str = "Whoever has this sheet and can reach the server reads and changes everything on the volume. Keep it as you \
    would keep money, and not beside the machine.";

/// A part of the page: its heading and its lines.
struct Part {
    heading: &'static str,
    lines: Vec<String>,
    /// They are commands.
    commands: bool,
}

impl RecoverySheet {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let label =
            if self.label.is_empty() { "none".into() } else { OneLine(&self.label).to_string() };
        let mut facts = vec![
            ("Volume", self.uri.clone()),
            ("Label", label),
            ("UUID", self.uuid.clone()),
            ("Format", format!("LUKS2, {}", self.cipher)),
            ("Header backup", self.header.clone().unwrap_or_else(|| BLANK.to_owned())),
            ("Key slot", format!("{}, opened by the words below", self.slot)),
            ("Made", utc::utc(self.made)),
        ];
        facts.extend(self.note.clone().map(|note| ("Note", OneLine(note).to_string())));
        facts
    }

    fn parts(&self) -> Vec<Part> {
        // Some shells take the `?` in it for a pattern.
        let (uri, slot) = (Path::new(&self.uri).quoted(), self.slot);
        let identity = sealing::default_path().map_or_else(
            |_| "~/.config/longhaul/identity".to_owned(),
            |path| path.shown().to_string(),
        );
        let part = |heading, lines: Vec<String>| Part { heading, lines, commands: true };
        vec![
            Part {
                heading: "The words",
                lines: vec![
                    "24 words of the BIP-39 English list: 256 random bits and a checksum of 8. As a pass-phrase they are in lower case \
                     with one space between; the picture holds them so."
                        .into(),
                ],
                commands: false,
            },
            part("Try it (nothing is written)", vec![format!("longhaul key test {uri} --recovery")]),
            Part {
                heading: "From another machine",
                lines: vec![format!(
                    "A server that knows its clients lets no other machine in: it needs a copy of this one's identity ({identity}), or an \
                     invitation (`longhaul invite NAME` at the server)."
                )],
                commands: false,
            },
            part(
                "Get at the files, with Longhaul",
                vec![
                    format!("longhaul ls {uri} /"),
                    format!("longhaul get {uri} / rescued"),
                    format!("sudo longhaul mount {uri} /mnt"),
                ],
            ),
            part(
                "The header is lost or damaged",
                vec![format!("longhaul key restore {uri} HEADER-BACKUP --force")],
            ),
            part(
                "Without Longhaul: DISK is the served file or device, or a copy of it, on any Linux",
                vec![
                    "sudo cryptsetup luksHeaderRestore DISK --header-backup-file HEADER-BACKUP   # only if the header is lost".into(),
                    "sudo cryptsetup open DISK rescued".into(),
                    "sudo mount /dev/mapper/rescued /mnt".into(),
                ],
            ),
            part(
                "Somebody has seen this sheet: make a new one, then remove this key",
                vec![
                    format!("longhaul key sheet {uri} --output new.svg"),
                    format!("longhaul key remove {uri} --slot {slot}"),
                ],
            ),
        ]
    }

    fn numbered_words(&self) -> impl Iterator<Item = (usize, &str)> {
        self.words.as_str().split(' ').enumerate().map(|(place, word)| (place + 1, word))
    }

    /// The page as text.
    pub(crate) fn text(&self) -> Zeroizing<String> {
        let mut page =
            Zeroizing::new(format!("{TITLE}\n{}\n\n{WARNING}\n\n", "=".repeat(TITLE.len())));
        for (name, value) in self.facts() {
            let _ = writeln!(page, "{name:14} {value}");
        }
        for (number, part) in self.parts().iter().enumerate() {
            let _ = writeln!(page, "\n{}\n{}", part.heading, "-".repeat(part.heading.len()));
            let indent = if part.commands { "    " } else { "" };
            for line in &part.lines {
                let _ = writeln!(page, "{indent}{line}");
            }
            if number == 0 {
                page.push('\n');
                for (place, word) in self.numbered_words() {
                    let end = if place % 4 == 0 { "\n" } else { "" };
                    let _ = write!(page, "    {place:2} {word:10}{end}");
                }
                if let Some(code) = QrCode::of(self.words.as_str()) {
                    let _ = write!(page, "\n{}", *code.on_paper());
                }
            }
        }
        page
    }

    /// The page as a picture of A4, in millimetres.
    pub(crate) fn svg(&self) -> Zeroizing<String> {
        let mut page = Page::new();
        page.line(7.0, "font-weight=\"bold\"", TITLE);
        page.wrapped(WARNING, 100);
        page.skip(3.0);
        for (name, value) in self.facts() {
            page.beside(name, &value);
        }
        for (number, part) in self.parts().iter().enumerate() {
            page.skip(3.5);
            page.line(4.0, "font-weight=\"bold\"", part.heading);
            for line in &part.lines {
                match part.commands {
                    true => page.line(2.9, "font-family=\"monospace\"", line),
                    false => page.wrapped(line, 100),
                }
            }
            if number == 0 {
                page.words(self.numbered_words());
                page.code(QrCode::of(self.words.as_str()));
            }
        }
        page.finish()
    }
}

/// A page that is written from the top.
struct Page {
    svg: Zeroizing<String>,
    /// How far it is written.
    y: f64,
}

/// The room on the left and at the top.
const MARGIN: f64 = 15.0;

/// The side of the picture of the words.
const CODE: f64 = 48.0;

impl Page {
    fn new() -> Self {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"210mm\" height=\"297mm\" viewBox=\"0 0 210 297\" \
                   font-family=\"sans-serif\">\n<rect width=\"210\" height=\"297\" fill=\"white\"/>\n";
        // It grows in one place, of which no copy is left.
        let mut page = Zeroizing::new(String::with_capacity(128 << 10));
        page.push_str(svg);
        Self { svg: page, y: MARGIN }
    }

    fn skip(&mut self, height: f64) {
        self.y += height;
    }

    fn put(&mut self, x: f64, size: f64, attributes: &str, text: &str) {
        let (y, text) = (self.y, Zeroizing::new(escape(text)));
        let _ = writeln!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" xml:space=\"preserve\" {attributes}>{}</text>",
            *text
        );
    }

    fn line(&mut self, size: f64, attributes: &str, text: &str) {
        self.y += size * 1.4;
        self.put(MARGIN, size, attributes, text);
    }

    /// Prose, in lines of so many characters.
    fn wrapped(&mut self, text: &str, columns: usize) {
        let mut line = String::new();
        for word in text.split_whitespace() {
            if !line.is_empty() && line.len() + word.len() >= columns {
                self.line(3.4, "", &line);
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.line(3.4, "", &line);
    }

    fn beside(&mut self, name: &str, value: &str) {
        self.line(3.4, "", name);
        self.put(MARGIN + 32.0, 3.0, "font-family=\"monospace\"", value);
    }

    fn words<'w>(&mut self, words: impl Iterator<Item = (usize, &'w str)>) {
        let top = self.y;
        for (place, word) in words {
            let (column, row) = ((place - 1) % 4, (place - 1) / 4);
            self.y = top + 7.0 + 6.5 * row as f64;
            let word = Zeroizing::new(format!("{place:2} {word}"));
            self.put(
                MARGIN + CODE + 8.0 + 31.0 * column as f64,
                4.0,
                "font-family=\"monospace\"",
                &word,
            );
        }
        self.y = top;
    }

    fn code(&mut self, code: Option<QrCode>) {
        self.y += 3.0;
        if let Some(code) = code {
            let module = CODE / code.width() as f64;
            let _ = writeln!(
                self.svg,
                "<path transform=\"translate({MARGIN} {:.2}) scale({module:.4})\" shape-rendering=\"crispEdges\" d=\"{}\"/>",
                self.y,
                *code.path()
            );
        }
        self.y += CODE;
    }

    fn finish(mut self) -> Zeroizing<String> {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> RecoverySheet {
        RecoverySheet {
            uri: "iscsi://server:3260/iqn.2026-11.dev.longhaul:backup/0?pin=KEY&x<y".into(),
            label: "a\u{1b}b".into(),
            uuid: "00000000-0000-0000-0000-000000000000".into(),
            cipher: "aes-xts-plain64, a key of 512 bits".into(),
            slot: 3,
            words: RecoveryWords::random().unwrap(),
            header: Some("the safe".into()),
            note: None,
            made: 1_795_392_000,
        }
    }

    #[test]
    fn text_and_picture_hold_all_that_is_needed() {
        let sheet = sheet();
        let (text, svg) = (sheet.text(), sheet.svg());
        for (number, word) in sheet.words.as_str().split(' ').enumerate() {
            assert!(text.contains(&format!("{:2} {word}", number + 1)), "{}", *text);
            assert!(svg.contains(&format!(">{:2} {word}<", number + 1)));
        }
        for needed in
            ["cryptsetup open", "key restore", "key test", "00000000-", "the safe", "--slot 3"]
        {
            assert!(text.contains(needed) && svg.contains(needed), "{needed}");
        }
        assert!(!text.contains('\u{1b}') && !svg.contains('\u{1b}'));
        assert!(svg.contains("KEY&amp;x&lt;y") && !svg.contains("&x<"));
        let bottom =
            svg.split(" y=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok());
        assert!(bottom.fold(0.0, f64::max) < 290.0, "it is one page");
    }
}
