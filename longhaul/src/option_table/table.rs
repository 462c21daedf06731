//! Reads the tables of a TOML file key by key. What is wrong is noted with its place and reading goes
//! on, so that one look at the file finds every mistake.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::suggest::did_you_mean;

/// A place in the file, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The line, from 1.
    pub line: usize,
    /// What.
    pub why: String,
}

/// A file under examination.
pub(crate) struct Sheet<'t> {
    text: &'t str,
    wrong: RefCell<Vec<Wrong>>,
}

impl<'t> Sheet<'t> {
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
    sheet: &'t Sheet<'t>,
    /// Where its name stands.
    at: Range<usize>,
    entries: &'t DeTable<'t>,
    known: Vec<&'static str>,
}

/// One of a list.
pub(crate) enum Entry<'t> {
    Text(Text<'t>),
    Table(Table<'t>),
}

/// A string, and where it stands.
pub(crate) struct Text<'t> {
    sheet: &'t Sheet<'t>,
    at: Range<usize>,
    text: &'t str,
}

impl Text<'_> {
    /// What it means; noted if nothing.
    pub(crate) fn parse<T: FromStr<Err: Display>>(&self) -> Option<T> {
        self.text.parse().map_err(|why: T::Err| self.sheet.note(&self.at, why)).ok()
    }
}

/// What a value must be.
type Reading<T> = Result<T, String>;

impl<'t> Table<'t> {
    pub(crate) fn new(sheet: &'t Sheet<'t>, at: Range<usize>, entries: &'t DeTable<'t>) -> Self {
        Self { sheet, at, entries, known: Vec::new() }
    }

    /// Notes a mistake of the table as a whole.
    pub(crate) fn note(&self, why: impl Display) {
        self.sheet.note(&self.at, why);
    }

    /// Notes a mistake at a key, or at the table if the key is not there.
    pub(crate) fn note_at(&self, key: &str, why: impl Display) {
        let at = self.entries.iter().find(|(name, _)| name.as_ref() == key);
        self.sheet.note(&at.map_or_else(|| self.at.clone(), |(name, _)| name.span()), why);
    }

    /// Notes a mistake at a place within the table.
    pub(crate) fn note_span(&self, at: &Range<usize>, why: impl Display) {
        self.sheet.note(at, why);
    }

    /// Whether the key is there, right or wrong.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    fn value(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.known.push(key);
        self.entries.get(key)
    }

    fn read<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'t>) -> Reading<T>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let note = |why: String| self.sheet.note(&value.span(), format!("{key}: {why}"));
        read(value.get_ref()).map_err(note).ok()
    }

    /// `true` or `false`.
    pub(crate) fn flag(&mut self, key: &'static str) -> Option<bool> {
        self.read(key, |value| value.as_bool().ok_or_else(|| unlike(value, "true or false")))
    }

    /// A string that means something.
    pub(crate) fn text<T: FromStr<Err: Display>>(&mut self, key: &'static str) -> Option<T> {
        self.read(key, parsed)
    }

    /// A whole number or a string, that means something.
    pub(crate) fn number_or_text<T: FromStr<Err: Display>>(
        &mut self,
        key: &'static str,
    ) -> Option<T> {
        self.read(key, |value| match value.as_integer() {
            Some(number) => number.as_str().parse().map_err(|why: T::Err| why.to_string()),
            None => parsed(value),
        })
    }

    /// A path, relative to `base`.
    pub(crate) fn path(&mut self, key: &'static str, base: &Path) -> Option<PathBuf> {
        self.text::<PathBuf>(key).map(|path| base.join(path))
    }

    /// A whole number that means something.
    pub(crate) fn number<T: TryFrom<u32, Error: Display>>(
        &mut self,
        key: &'static str,
    ) -> Option<T> {
        self.read(key, |value| {
            let number = value
                .as_integer()
                .and_then(|number| u32::from_str_radix(number.as_str(), number.radix()).ok());
            let number = number.ok_or_else(|| unlike(value, "a whole number below 2^32"))?;
            number.try_into().map_err(|why: T::Error| why.to_string())
        })
    }

    /// A value that was read, if it is within `range`; noted if it is not.
    pub(crate) fn within<T: PartialOrd + Display>(
        &self,
        key: &str,
        value: Option<T>,
        range: &RangeInclusive<T>,
    ) -> Option<T> {
        let value = value?;
        if range.contains(&value) {
            return Some(value);
        }
        let (least, most) = (range.start(), range.end());
        self.note_at(key, format!("{key} is from {least} to {most}, not {value}"));
        None
    }

    /// A list of strings; those that mean nothing are noted and left out.
    pub(crate) fn texts<T: FromStr<Err: Display>>(&mut self, key: &'static str) -> Vec<Spanned<T>> {
        self.each(key, |entry| match entry {
            Entry::Text(text) => Some(Spanned::new(text.at.clone(), text.parse()?)),
            Entry::Table(table) => {
                table.note("expected a string, not a table");
                None
            }
        })
    }

    /// A list of strings and tables; what is neither is noted.
    pub(crate) fn each<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(Entry<'t>) -> Option<T>,
    ) -> Vec<T> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            let why = unlike(value.get_ref(), "a list of strings, in [ ],");
            self.sheet.note(&value.span(), format!("{key}: {why}"));
            return Vec::new();
        };
        let sheet = self.sheet;
        let entry = |item: &'t Spanned<DeValue<'t>>| match (item.get_ref(), item.span()) {
            (DeValue::String(text), at) => read(Entry::Text(Text { sheet, at, text })),
            (DeValue::Table(entries), at) => read(Entry::Table(Table::new(sheet, at, entries))),
            (other, at) => {
                sheet.note(&at, unlike(other, "a string"));
                None
            }
        };
        array.iter().filter_map(entry).collect()
    }

    /// A table within this one.
    pub(crate) fn table(&mut self, key: &'static str) -> Option<Self> {
        let value = self.value(key)?;
        let Some(entries) = value.get_ref().as_table() else {
            self.sheet.note(&value.span(), unlike(value.get_ref(), "a table"));
            return None;
        };
        Some(Table::new(self.sheet, value.span(), entries))
    }

    /// The tables within a table, by name, in the order of the file.
    pub(crate) fn tables(&mut self, key: &'static str) -> Vec<(&'t str, Self)> {
        let Some(outer) = self.table(key) else { return Vec::new() };
        let mut tables = Vec::new();
        for (name, value) in outer.entries {
            match value.get_ref().as_table() {
                Some(entries) => {
                    let table = Table::new(self.sheet, name.span(), entries);
                    tables.push((name.get_ref().as_ref(), table));
                }
                None => self.sheet.note(&value.span(), unlike(value.get_ref(), "a table")),
            }
        }
        tables.sort_by_key(|(_, table)| table.at.start);
        tables
    }

    /// The line of a key that is there.
    pub(crate) fn line_of(&self, key: &str) -> Option<usize> {
        let (name, _) = self.entries.iter().find(|(name, _)| name.as_ref() == key)?;
        Some(self.sheet.line(&name.span()))
    }

    pub(crate) fn line(&self) -> usize {
        self.sheet.line(&self.at)
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
                self.sheet.note(&name.span(), why);
            }
        }
    }
}

fn parsed<T: FromStr<Err: Display>>(value: &DeValue<'_>) -> Reading<T> {
    let text = value.as_str().ok_or_else(|| unlike(value, "a string"))?;
    text.parse().map_err(|why: T::Err| why.to_string())
}

fn unlike(value: &DeValue<'_>, wanted: &str) -> String {
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
