//! docs/options.md: the options of every command, made from the command line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::{Arg, Command};

const HEAD: &str = "\
# The options of the commands

`longhaul COMMAND --help` prints the same. Those of `serve` that describe volumes and clients are in [configuration](configuration.md). What several
commands share stands at the end; [encryption](#encryption) and [logging](#logging) are for all.
";

/// The headings of what all commands have.
const OF_ALL: [&str; 2] = ["Encryption", "Logging"];

/// A command, by the name that one types, such as `key init`, and what it takes.
struct Page<'a> {
    name: String,
    options: Vec<&'a Arg>,
}

/// The document. `command` was built.
pub(crate) fn markdown(command: &Command) -> String {
    let mut pages = Vec::new();
    collect(command, "", &mut pages);
    let shared = shared(&pages);
    let mut text = String::from(HEAD);
    for page in &pages {
        own(&mut text, page, &shared);
    }
    for (heading, options) in &shared {
        section(&mut text, heading, options);
    }
    text
}

/// The command whose commands are those of the same names, and have their options.
const OF_OTHERS: &str = "admin";

fn collect<'a>(command: &'a Command, within: &str, pages: &mut Vec<Page<'a>>) {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("{within}{}", command.get_name());
        if command.has_subcommands() && name != OF_OTHERS {
            collect(command, &format!("{name} "), pages);
            continue;
        }
        let is_shown =
            |arg: &&Arg| !arg.is_hide_set() && !arg.is_positional() && arg.get_id() != "help";
        pages.push(Page { name, options: command.get_arguments().filter(is_shown).collect() });
    }
}

/// What more than one command has under a heading, by the heading.
fn shared<'a>(pages: &[Page<'a>]) -> BTreeMap<&'a str, Vec<&'a Arg>> {
    let all = || pages.iter().flat_map(|page| &page.options).copied();
    let mut shared: BTreeMap<&str, Vec<&Arg>> = BTreeMap::new();
    for option in all() {
        let Some(heading) = option.get_help_heading() else { continue };
        let options = shared.entry(heading).or_default();
        let is_common = all().filter(|other| is_same(other, option)).nth(1).is_some();
        if is_common && !options.iter().any(|known| is_same(known, option)) {
            options.push(option);
        }
    }
    shared.retain(|_, options| !options.is_empty());
    shared
}

fn is_same(one: &Arg, other: &Arg) -> bool {
    let what = |arg: &Arg| (arg.get_long().map(str::to_owned), help(arg));
    one.get_help_heading() == other.get_help_heading() && what(one) == what(other)
}

/// Whether two are options of one name under one heading, which may have other texts.
fn is_called(one: &Arg, other: &Arg) -> bool {
    one.get_help_heading() == other.get_help_heading() && one.get_long() == other.get_long()
}

fn help(option: &Arg) -> String {
    option.get_help().map(ToString::to_string).unwrap_or_default()
}

/// What only this command has, and the headings of what it shares: of one that it does not share as a whole, what.
fn own(text: &mut String, page: &Page<'_>, shared: &BTreeMap<&str, Vec<&Arg>>) {
    let is_shared = |option: &&Arg| {
        let heading = option.get_help_heading().and_then(|heading| shared.get(heading));
        heading.is_some_and(|options| options.iter().any(|known| is_same(known, option)))
    };
    let (common, own): (Vec<&Arg>, Vec<&Arg>) = page.options.iter().copied().partition(is_shared);
    section(text, &page.name, &own);
    let links: Vec<_> = shared
        .iter()
        .filter(|(heading, _)| !OF_ALL.contains(heading))
        .filter(|(heading, _)| common.iter().any(|it| it.get_help_heading() == Some(heading)))
        .map(|(heading, all)| shares(page, heading, all))
        .collect();
    if !links.is_empty() {
        let _ = writeln!(text, "\nShared: {}.", links.join("; "));
    }
}

/// What a page has of all that is shared under a heading.
fn shares(page: &Page<'_>, heading: &str, all: &[&Arg]) -> String {
    let is_there = |option: &&Arg| page.options.iter().any(|own| is_called(own, option));
    let (has, lacks): (Vec<&Arg>, Vec<&Arg>) = all.iter().copied().partition(is_there);
    let link = link(heading);
    match lacks.len() {
        0 => link,
        lacking if lacking < has.len() => format!("{link} without {}", names(&lacks)),
        _ => format!("of {link} {}", names(&has)),
    }
}

fn names(options: &[&Arg]) -> String {
    let mut names: Vec<_> = options.iter().filter_map(|option| option.get_long()).collect();
    names.dedup();
    let names: Vec<_> = names.iter().map(|name| format!("`--{name}`")).collect();
    names.join(", ")
}

fn section(text: &mut String, heading: &str, options: &[&Arg]) {
    let _ = writeln!(text, "\n## {heading}");
    if options.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n| option | meaning |\n|---|---|");
    for option in options {
        let _ = writeln!(text, "| `{}` | {} |", spelled(option), meaning(option));
    }
}

/// As one types it: `-o, --options LIST`.
fn spelled(option: &Arg) -> String {
    let short = option.get_short().map(|short| format!("-{short}, "));
    let long = option.get_long().unwrap_or_default();
    let takes_value = option.get_action().takes_values();
    let value = option.get_value_names().filter(|_| takes_value).and_then(<[_]>::first);
    let value = value.map(|value| format!(" {value}").replace('|', "\\|"));
    format!("{}--{long}{}", short.unwrap_or_default(), value.unwrap_or_default())
}

/// The sentence, the values that it may have, and the one that it has by default.
fn meaning(option: &Arg) -> String {
    let mut meaning = help(option).replace('|', "\\|");
    let join = |values: Vec<String>| values.join(", ");
    let takes_value = option.get_action().takes_values();
    let possible = option.get_possible_values();
    if takes_value && !possible.is_empty() {
        let names = possible.iter().map(|value| format!("`{}`", value.get_name())).collect();
        let _ = write!(meaning, ": {}", join(names));
    }
    let defaults = option.get_default_values();
    if takes_value && !defaults.is_empty() {
        let defaults = defaults.iter().map(|value| value.to_string_lossy().into_owned()).collect();
        let _ = write!(meaning, " [default: {}]", join(defaults));
    }
    meaning
}

/// A link to a section of the document.
fn link(heading: &str) -> String {
    let anchor: String = heading
        .chars()
        .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-'))
        .map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() })
        .collect();
    format!("[{}](#{anchor})", heading.to_lowercase())
}
