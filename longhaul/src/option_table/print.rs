//! Tables of options, for documents and for a terminal.

use std::fmt::Write as _;

use super::{Kind, OptionText, Row, Standard};

/// Options that stand together.
pub struct Section {
    /// What the manual calls it.
    pub name: &'static str,
    /// Where in the file they stand.
    pub table: &'static str,
    /// What they are for, in a sentence.
    pub about: &'static str,
    /// What comes before the name of one on the command line.
    pub prefix: &'static str,
    /// The options.
    pub options: Vec<OptionText>,
}

impl Section {
    /// The options of `rows`.
    pub(crate) fn new<S>(
        [name, table, about]: [&'static str; 3],
        prefix: &'static str,
        rows: &[Row<S>],
    ) -> Self {
        let options = rows.iter().map(|row| row.text).collect();
        Self { name, table, about, prefix, options }
    }

    /// How an option is written on the command line, if it can be.
    fn argument(&self, option: &OptionText) -> Option<String> {
        let OptionText { name, kind, place, .. } = option;
        let (name, between) = match self.prefix {
            "," => ((*name).to_owned(), "="),
            _ => (name.replace('_', "-"), " "),
        };
        let value = match option.standard {
            _ if !kind.is_switch() => format!("{between}{}", kind.value),
            Standard::Value("true") => format!("{between}false"),
            _ => String::new(),
        };
        place.on_command_line().then(|| format!("{}{name}{value}", self.prefix))
    }
}

impl OptionText {
    /// What holds without it, for people; empty if there is nothing to say.
    #[must_use]
    pub fn default_text(&self) -> String {
        match self.standard {
            Standard::Required => "required".to_owned(),
            Standard::Value(value) => value.to_owned(),
            Standard::Words(words) => words.to_owned(),
        }
    }

    /// What its value is: its range, or what stands for it.
    fn value_text(&self) -> String {
        (self.range)().unwrap_or_else(|| match self.kind.list {
            true => format!("list of {}", self.kind.value),
            false if self.kind.is_switch() => "true, false".to_owned(),
            false => self.kind.value.to_owned(),
        })
    }

    /// How its value is written in the file.
    #[must_use]
    pub fn value_in_file(&self) -> String {
        let Kind { value, quoted, list, .. } = self.kind;
        let value = if quoted { format!("\"{value}\"") } else { value.to_owned() };
        if list { format!("[{value}, ...]") } else { value }
    }

    /// What it does: the sentence, and what the manual says beyond that.
    #[must_use]
    pub fn meaning(&self) -> String {
        match self.manual {
            "" => self.help.to_owned(),
            more => format!("{}. {more}", self.help),
        }
    }
}

/// The table that the manual has of a section.
#[must_use]
pub fn manual_table(section: &Section) -> String {
    let both = section.options.iter().any(|option| option.place.on_command_line());
    let (head, rule) = match both {
        true => ("| option | default | value | command line | meaning |", "|---|---|---|---|---|"),
        false => ("| option | default | value | meaning |", "|---|---|---|---|"),
    };
    let mut table = format!("{head}\n{rule}\n");
    for option in &section.options {
        let name = match option.place.in_file() {
            true => format!("`{}`", option.name),
            false => "".to_owned(),
        };
        let argument =
            section.argument(option).map_or_else(String::new, |text| format!("`{text}`"));
        let argument = if both { format!(" {argument} |") } else { String::new() };
        let (default, value) = (option.default_text(), option.value_text());
        let meaning = option.meaning();
        let _ = writeln!(table, "| {name} | {default} | {value} |{argument} {meaning} |");
    }
    table
}

/// How many columns the names of options take on a terminal.
const NAMES: usize = 30;

/// The options of a section that can be written on the command line, a line for each.
#[must_use]
pub fn terminal_list(section: &Section) -> String {
    let mut list = String::new();
    for option in &section.options {
        if let Some(argument) = section.argument(option) {
            let _ = writeln!(list, "  {argument:NAMES$}{}", option.help);
        }
    }
    list
}
