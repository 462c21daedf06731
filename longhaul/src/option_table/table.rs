//! Reads the tables of a TOML file key by key. What is wrong is noted with its place and reading goes
//! on, so that one look at the file finds every mistake.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Row, Standard, fill};
use crate::suggest::did_you_mean;

/// A value as it was given.
pub(crate) enum RawValue<'g> {
    /// In the configuration file; paths in it begin at this directory.
    File(Item<'g>, &'g Path),
    /// On the command line, or as a default: a text, or nothing for a switch that is turned on.
    Word(Option<&'g OsStr>),
}

/// A place in the file, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The line, from 1.
    pub line: usize,
    /// What.
    pub why: String,
}

/// A file under examination.
pub(crate) struct FileChecks<'t> {
    text: &'t str,
    wrong: RefCell<Vec<Wrong>>,
}

impl<'t> FileChecks<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Self { text, wrong: RefCell::default() }
    }

    pub(crate) fn line(&self, at: &Range<usize>) -> usize {
        1 + self.text.bytes().take(at.start).filter(|&byte| byte == b'\n').count()
    }

    pub(crate) fn note(&self, at: &Range<usize>, why: impl Display) {
        self.wrong.borrow_mut().push(Wrong { line: self.line(at), why: why.to_string() });
    }

    /// Everything noted, in the order of the file.
    pub(crate) fn into_wrong(self) -> Vec<Wrong> {
        let mut wrong = self.wrong.into_inner();
        wrong.sort_by_key(|wrong| wrong.line);
        wrong
    }
}

/// One table. It knows which keys were asked for; the others are mistakes.
pub(crate) struct Table<'t> {
    checks: &'t FileChecks<'t>,
    /// Where its name stands.
    at: Range<usize>,
    entries: &'t DeTable<'t>,
    known: Vec<&'static str>,
    /// Those whose values mean nothing.
    unfit: Vec<&'static str>,
}

/// A value, in its file.
#[derive(Clone, Copy)]
pub(crate) struct Item<'t> {
    checks: &'t FileChecks<'t>,
    value: &'t Spanned<DeValue<'t>>,
}

impl<'t> Item<'t> {
    pub(super) fn value(&self) -> &'t DeValue<'t> {
        self.value.get_ref()
    }

    /// What is in it, if it is a list. What is neither a string nor a table is noted.
    pub(super) fn entries(&self) -> Option<Vec<Entry<'t>>> {
        let checks = self.checks;
        let entry = |item: &'t Spanned<DeValue<'t>>| match (item.get_ref(), item.span()) {
            (DeValue::String(text), at) => Some(Entry::Text(Text { checks, at, text })),
            (DeValue::Table(entries), at) => Some(Entry::Table(Table::new(checks, at, entries))),
            (other, at) => {
                checks.note(&at, unlike(other, "a string"));
                None
            }
        };
        Some(self.value().as_array()?.iter().filter_map(entry).collect())
    }
}

/// One of a list.
pub(crate) enum Entry<'t> {
    Text(Text<'t>),
    Table(Table<'t>),
}

/// A string, and where it stands.
pub(crate) struct Text<'t> {
    checks: &'t FileChecks<'t>,
    at: Range<usize>,
    text: &'t str,
}

impl Text<'_> {
    /// What it means; noted if nothing.
    pub(crate) fn parse<T: FromStr<Err: Display>>(&self) -> Option<T> {
        self.text.parse().map_err(|why: T::Err| self.checks.note(&self.at, why)).ok()
    }

    pub(super) fn span(&self) -> Range<usize> {
        self.at.clone()
    }
}

impl<'t> Table<'t> {
    pub(crate) fn new(
        checks: &'t FileChecks<'t>,
        at: Range<usize>,
        entries: &'t DeTable<'t>,
    ) -> Self {
        Self { checks, at, entries, known: Vec::new(), unfit: Vec::new() }
    }

    /// Notes a mistake of the table as a whole.
    pub(crate) fn note(&self, why: impl Display) {
        self.checks.note(&self.at, why);
    }

    /// Notes a mistake at a key, or at the table if the key is not there.
    pub(crate) fn note_at(&self, key: &str, why: impl Display) {
        let at = self.entries.iter().find(|(name, _)| name.as_ref() == key);
        self.checks.note(&at.map_or_else(|| self.at.clone(), |(name, _)| name.span()), why);
    }

    /// Notes a mistake at a place within the table.
    pub(crate) fn note_span(&self, at: &Range<usize>, why: impl Display) {
        self.checks.note(at, why);
    }

    /// Whether the key is there, right or wrong.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Whether the key is there with a value that means nothing.
    pub(crate) fn is_wrong(&self, key: &str) -> bool {
        self.unfit.contains(&key)
    }

    /// Reads the options of `rows`; paths in them begin at `base`. What is wrong is noted, what is left out or wrong
    /// gets its default.
    pub(crate) fn read<S: Default>(&mut self, rows: &'static [Row<S>], base: &Path) -> S {
        let mut into = S::default();
        for row in rows.iter().filter(|row| row.text.place.in_file()) {
            let name = row.text.name;
            self.known.push(name);
            let Some(value) = self.entries.get(name) else {
                if row.text.standard == Standard::Required {
                    self.note(format!("missing field `{name}`"));
                }
                continue;
            };
            let item = Item { checks: self.checks, value };
            if let Err(unfit) = (row.read)(&mut into, &RawValue::File(item, base)) {
                self.checks.note(&value.span(), unfit.of(name));
                self.unfit.push(name);
            }
        }
        fill(rows, &mut into);
        into
    }

    /// A table within this one.
    pub(crate) fn table(&mut self, key: &'static str) -> Option<Self> {
        self.known.push(key);
        let value = self.entries.get(key)?;
        let Some(entries) = value.get_ref().as_table() else {
            self.checks.note(&value.span(), unlike(value.get_ref(), "a table"));
            return None;
        };
        Some(Table::new(self.checks, value.span(), entries))
    }

    /// The tables within a table, by name, in the order of the file.
    pub(crate) fn tables(&mut self, key: &'static str) -> Vec<(&'t str, Self)> {
        let Some(outer) = self.table(key) else { return Vec::new() };
        let mut tables = Vec::new();
        for (name, value) in outer.entries {
            match value.get_ref().as_table() {
                Some(entries) => {
                    let table = Table::new(self.checks, name.span(), entries);
                    tables.push((name.get_ref().as_ref(), table));
                }
                None => self.checks.note(&value.span(), unlike(value.get_ref(), "a table")),
            }
        }
        tables.sort_by_key(|(_, table)| table.at.start);
        tables
    }

    /// The texts in the list at a key, if there is one.
    pub(crate) fn texts_of(&self, key: &str) -> impl Iterator<Item = &'t str> + use<'t> {
        let list = self.entries.get(key).and_then(|value| value.get_ref().as_array());
        list.into_iter().flatten().filter_map(|item| item.get_ref().as_str())
    }

    /// The line of a key that is there.
    pub(crate) fn line_of(&self, key: &str) -> Option<usize> {
        let (name, _) = self.entries.iter().find(|(name, _)| name.as_ref() == key)?;
        Some(self.checks.line(&name.span()))
    }

    pub(crate) fn line(&self) -> usize {
        self.checks.line(&self.at)
    }

    /// Notes the keys nobody asked for.
    pub(crate) fn finish(self) {
        for (name, _) in self.entries {
            if !self.known.contains(&name.get_ref().as_ref()) {
                let known: Vec<_> = self.known.iter().map(|key| format!("`{key}`")).collect();
                let (known, name_is) = (known.join(", "), name.get_ref());
                let meant = did_you_mean(name_is, self.known.iter().copied());
                let why = match meant.is_empty() {
                    true => format!("unknown key `{name_is}`: here may stand {known}"),
                    false => format!("unknown key `{name_is}`{meant}"),
                };
                self.checks.note(&name.span(), why);
            }
        }
    }
}

pub(super) fn unlike(value: &DeValue<'_>, wanted: &str) -> String {
    let found = match value {
        DeValue::String(text) => format!("the text \"{text}\""),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Boolean(switch) => switch.to_string(),
        other => format!("{} {}", if other.is_array() { "an" } else { "a" }, other.type_str()),
    };
    let quotes = if wanted.contains("string") { ": write it in quotes" } else { "" };
    let quotes = if value.as_integer().is_some() { quotes } else { "" };
    format!("{wanted} is expected here, not {found}{quotes}")
}
