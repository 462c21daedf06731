//! Values of options, from the configuration file or from the command line.

use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use toml::Spanned;
use toml::de::DeValue;

use super::table::{Entry, Item, RawValue, unlike};

/// Why a value does not suit its option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueError {
    /// It means nothing.
    Value(String),
    /// It is out of bounds.
    Range(String),
}

impl ValueError {
    /// The same, of the option `name`.
    #[must_use]
    pub fn of(&self, name: &str) -> String {
        match self {
            Self::Value(why) => format!("{name}: {why}"),
            Self::Range(why) => format!("{name} {why}"),
        }
    }
}

impl Display for ValueError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Value(why) => f.write_str(why),
            Self::Range(why) => write!(f, "it {why}"),
        }
    }
}

impl std::error::Error for ValueError {}

type Reading<T> = Result<T, ValueError>;

fn unfit(why: impl Display) -> ValueError {
    ValueError::Value(why.to_string())
}

/// What is wrong with an option that stands there alone.
pub(crate) const fn without_value() -> &'static str {
    "it needs a value"
}

fn word(given: Option<&OsStr>) -> Reading<&str> {
    let text = given.ok_or_else(|| unfit(without_value()))?;
    text.to_str().ok_or_else(|| unfit("it is not UTF-8"))
}

fn parsed<T: FromStr<Err: Display>>(text: &str) -> Reading<T> {
    text.parse().map_err(|why: T::Err| unfit(why))
}

fn string<'g>(value: &'g DeValue<'_>) -> Reading<&'g str> {
    value.as_str().ok_or_else(|| unfit(unlike(value, "a string")))
}

/// `true` or `false`; a bare word is `true`.
pub(crate) fn switch(given: &RawValue<'_>) -> Reading<bool> {
    match given {
        RawValue::File(item, _) => {
            let value = item.value();
            value.as_bool().ok_or_else(|| unfit(unlike(value, "true or false")))
        }
        RawValue::Word(None) => Ok(true),
        RawValue::Word(given) => match word(*given)? {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(unfit(format!("`{other}` is neither true nor false"))),
        },
    }
}

/// A string that means something.
pub(crate) fn text<T: FromStr<Err: Display>>(given: &RawValue<'_>) -> Reading<T> {
    match given {
        RawValue::File(item, _) => parsed(string(item.value())?),
        RawValue::Word(given) => parsed(word(*given)?),
    }
}

/// A whole number or a string, that means something.
pub(crate) fn number_or_text<T: FromStr<Err: Display>>(given: &RawValue<'_>) -> Reading<T> {
    match given {
        RawValue::File(item, _) if let Some(number) = item.value().as_integer() => {
            parsed(number.as_str())
        }
        given => text(given),
    }
}

/// A whole number that means something.
pub(crate) fn number<T: TryFrom<u32, Error: Display>>(given: &RawValue<'_>) -> Reading<T> {
    let number = match given {
        RawValue::File(item, _) => {
            let value = item.value();
            let number = value
                .as_integer()
                .and_then(|number| u32::from_str_radix(number.as_str(), number.radix()).ok());
            number.ok_or_else(|| unfit(unlike(value, "a whole number below 2^32")))?
        }
        RawValue::Word(given) => {
            let text = word(*given)?;
            text.parse().map_err(|_| unfit(format!("`{text}` is not a number")))?
        }
    };
    number.try_into().map_err(|why: T::Error| unfit(why))
}

/// A path. One of the file begins at its directory.
pub(crate) fn path(given: &RawValue<'_>) -> Reading<PathBuf> {
    match given {
        RawValue::File(item, base) => Ok(base.join(string(item.value())?)),
        RawValue::Word(given) => given.map(PathBuf::from).ok_or_else(|| unfit(without_value())),
    }
}

/// A list of strings; those of the file that mean nothing are noted and left out.
pub(crate) fn texts<T: FromStr<Err: Display>>(given: &RawValue<'_>) -> Reading<Vec<Spanned<T>>> {
    match given {
        RawValue::File(item, _) => each(item, |entry| match entry {
            Entry::Text(text) => Some(Spanned::new(text.span(), text.parse()?)),
            Entry::Table(table) => {
                table.note("expected a string, not a table");
                None
            }
        }),
        RawValue::Word(given) => Ok(vec![Spanned::new(0..0, parsed(word(*given)?)?)]),
    }
}

/// A list of strings and tables; what is neither is noted.
pub(crate) fn each<'t, T>(
    item: &Item<'t>,
    read: impl Fn(Entry<'t>) -> Option<T>,
) -> Reading<Vec<T>> {
    let entries = item.entries();
    let entries =
        entries.ok_or_else(|| unfit(unlike(item.value(), "a list of strings, in [ ],")))?;
    Ok(entries.into_iter().filter_map(read).collect())
}

/// A value that is within `range`.
pub(crate) fn within<T: PartialOrd + Display>(value: T, range: &RangeInclusive<T>) -> Reading<T> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (range.start(), range.end());
    Err(ValueError::Range(format!("is from {least} to {most}, not {value}")))
}
