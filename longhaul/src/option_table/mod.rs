//! Options as rows of a table. One row says all that is known of an option: the configuration file, the command line,
//! `--help`, `check`, the manual and `longhaul.toml(5)` come from it.

mod command_line;
mod print;
mod read;
mod table;

use std::fmt::Display;

pub(crate) use command_line::{CommandLine, Rows, names};
pub use print::{Section, manual_table, terminal_list};
pub use read::ValueError;
pub(crate) use read::{each, number, number_or_text, path, switch, text, texts, within};
pub use table::Wrong;
pub(crate) use table::{Entry, FileChecks, RawValue, Table};

/// Where an option may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the configuration file.
    File,
    /// On the command line.
    CommandLine,
    /// In both.
    Both,
}

impl Place {
    pub(crate) const fn in_file(self) -> bool {
        matches!(self, Self::File | Self::Both)
    }

    pub(crate) const fn on_command_line(self) -> bool {
        matches!(self, Self::CommandLine | Self::Both)
    }
}

/// What holds where an option is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standard {
    /// The table is wrong without it.
    Required,
    /// As if this were written.
    Value(&'static str),
    /// Something that no value says, in words; nothing if empty.
    Words(&'static str),
}

/// What a value is, and in which unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// What stands for it in documents.
    pub value: &'static str,
    /// How it is written, with its unit.
    pub written: &'static str,
    /// TOML wants it in quotes.
    pub quoted: bool,
    /// There may be several.
    pub list: bool,
}

impl Kind {
    /// A text in quotes.
    pub(crate) const fn text(value: &'static str, written: &'static str) -> Self {
        Self { value, written, quoted: true, list: false }
    }

    /// A number or a switch.
    pub(crate) const fn bare(value: &'static str, written: &'static str) -> Self {
        Self { value, written, quoted: false, list: false }
    }

    /// Several of what `self` is.
    pub(crate) const fn listed(self) -> Self {
        Self { list: true, ..self }
    }

    /// Whether it is one that a bare word turns on.
    #[must_use]
    pub fn is_switch(&self) -> bool {
        *self == SWITCH
    }
}

pub(crate) const SWITCH: Kind = Kind::bare("true", "`true` or `false`");
pub(crate) const COUNT: Kind = Kind::bare("N", "a whole number");
pub(crate) const BYTES: Kind = Kind::bare("BYTES", "a whole number of bytes");
pub(crate) const SIZE: Kind =
    Kind::text("SIZE", "bytes, or a number with K, M, G or T, in powers of 1024");
pub(crate) const RATE: Kind =
    Kind::text("SIZE", "bytes a second, or a number with K, M, G or T, in powers of 1024");
pub(crate) const DURATION: Kind =
    Kind::text("DURATION", "a number with us, ms, s, m or h, up to 24h");
pub(crate) const PATH: Kind = Kind::text("PATH", "a path, relative to the file that has it");
pub(crate) const FILE: Kind = Kind::text("FILE", "a path, relative to the file that has it");
pub(crate) const DIRECTORY: Kind = Kind::text("DIR", "a path, relative to the file that has it");
pub(crate) const ADDRESS: Kind =
    Kind::text("ADDR[:PORT]", "an address, IPv6 in brackets, and a port");
pub(crate) const VARIABLE: Kind = Kind::text("VAR", "the name of an environment variable");
pub(crate) const NAME: Kind = Kind::text("NAME", "a name");
pub(crate) const IQN: Kind = Kind::text("IQN", "an iSCSI name");
pub(crate) const KEY: Kind = Kind::text("KEY", "a public key, which begins with lhpub1-");
pub(crate) const DEMAND: Kind = Kind::text("DEMAND", "`none`, `integrity` or `encrypt`");
pub(crate) const CIPHER: Kind = Kind::text("CIPHER", "`any`, `aes-256-gcm` or `chacha20-poly1305`");
pub(crate) const COMPRESSION: Kind = Kind::text("COMPRESSION", "`none`, `lz4`, `zstd` or `any`");

/// All that is said of an option.
#[derive(Clone, Copy, Debug)]
pub struct OptionText {
    /// Its name in the file; on the command line with hyphens.
    pub name: &'static str,
    /// What its value is, with its unit.
    pub kind: Kind,
    /// What holds without it.
    pub standard: Standard,
    /// Where it may stand.
    pub place: Place,
    /// A sentence, without its full stop.
    pub help: &'static str,
    /// What the manual says beyond that; may be empty.
    pub manual: &'static str,
    /// The least and the most of it, if it has bounds.
    pub range: fn() -> Option<String>,
}

impl OptionText {
    /// The value that stands for one that is left out.
    pub(crate) const fn default_value(&self) -> &'static str {
        match self.standard {
            Standard::Value(text) => text,
            Standard::Required | Standard::Words(_) => panic!("it has no value of its own"),
        }
    }
}

/// An option, and how it gets into `S`.
pub struct Row<S: 'static> {
    /// What is said of it.
    pub text: OptionText,
    /// Reads it.
    pub(crate) read: fn(&mut S, &RawValue<'_>) -> Result<(), ValueError>,
    /// Whether it was read.
    pub(crate) is_set: fn(&S) -> bool,
    /// Whether both have the same.
    pub(crate) is_same: fn(&S, &S) -> bool,
}

/// The row of `name`. A name without one does not compile, where this is asked in a constant.
pub(crate) const fn option<S>(rows: &[Row<S>], name: &str) -> OptionText {
    let mut at = 0;
    while at < rows.len() {
        if is_same(rows[at].text.name.as_bytes(), name.as_bytes()) {
            return rows[at].text;
        }
        at += 1;
    }
    panic!("no row has this name")
}

const fn is_same(one: &[u8], two: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < two.len() && one[at] == two[at] {
        at += 1;
    }
    at == one.len() && at == two.len()
}

/// The names of the options in which `old` and `new` differ.
pub(crate) fn changed<S>(rows: &[Row<S>], old: &S, new: &S) -> impl Iterator<Item = &'static str> {
    rows.iter().filter(|row| !(row.is_same)(old, new)).map(|row| row.text.name)
}

/// Gives what was not read its default.
pub(crate) fn fill<S>(rows: &[Row<S>], into: &mut S) {
    for row in rows {
        if let Standard::Value(text) = row.text.standard
            && !(row.is_set)(into)
        {
            // A test reads every default.
            let _ = (row.read)(into, &RawValue::Word(Some(text.as_ref())));
        }
    }
}

/// Where a value goes: the only one, or one of several.
pub(crate) trait Field {
    /// What is read at a time.
    type Value;

    fn take(&mut self, value: Self::Value);
    fn is_set(&self) -> bool;
}

impl<T> Field for Option<T> {
    type Value = T;

    fn take(&mut self, value: T) {
        *self = Some(value);
    }

    fn is_set(&self) -> bool {
        self.is_some()
    }
}

impl<T> Field for Vec<T> {
    type Value = Self;

    fn take(&mut self, value: Self) {
        self.extend(value);
    }

    fn is_set(&self) -> bool {
        !self.is_empty()
    }
}

pub(crate) fn range_text(least: &impl Display, most: &impl Display) -> String {
    format!("{least} to {most}")
}

/// A struct with a field for each row, and the table of the rows. A row that leaves a question open does not compile.
macro_rules! options {
    (
        $(#[$meta:meta])*
        $vis:vis struct $Name:ident in $table_vis:vis $TABLE:ident { $(
            $field:ident: $type:ty = $reader:path $(, within $range:expr)? => {
                kind: $kind:expr,
                default: $standard:expr,
                place: $place:expr,
                help: $help:expr,
                manual: $manual:expr $(,)?
            }
        )* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        $vis struct $Name { $(
            #[doc = $help]
            pub $field: $type,
        )* }

        #[doc = concat!("The rows of `", stringify!($Name), "`.")]
        $table_vis const $TABLE: &[$crate::option_table::Row<$Name>] = &[ $(
            $crate::option_table::Row {
                text: $crate::option_table::OptionText {
                    name: stringify!($field),
                    kind: $kind,
                    standard: $standard,
                    place: $place,
                    help: $help,
                    manual: $manual,
                    range: || $crate::option_table::options!(@range $($range)?),
                },
                read: |into, given| {
                    let value = $reader(given)?;
                    $( let value = $crate::option_table::within(value, &$range)?; )?
                    $crate::option_table::Field::take(&mut into.$field, value);
                    Ok(())
                },
                is_set: |of| $crate::option_table::Field::is_set(&of.$field),
                is_same: |one, other| one.$field == other.$field,
            },
        )* ];
    };
    (@range) => { None };
    (@range $range:expr) => {
        Some($crate::option_table::range_text($range.start(), $range.end()))
    };
}
pub(crate) use options;
