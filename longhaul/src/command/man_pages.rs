//! `longhaul completions` and `longhaul man`: what a shell and a reader want to know of the command line and of the
//! configuration, made from them.

use std::io;
use std::path::{Path, PathBuf};

use clap_complete::Shell;
use clap_mangen::Man as Page;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use crate::config;
use crate::failure::{Failure, OrFail, Outcome};
use crate::option_table::{OptionText, Section};
use crate::printable::Shown as _;

/// Print what completes command lines in a shell
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

const COMPLETIONS: &str = "\
Examples:
  longhaul completions bash >~/.local/share/bash-completion/completions/longhaul
  longhaul completions fish >~/.config/fish/completions/longhaul.fish";

/// Write man pages: longhaul(1), one for each command, and longhaul.toml(5)
#[derive(Debug, clap::Args)]
#[command(after_help = MAN)]
pub struct Man {
    /// The directory they go to, which must be there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

const MAN: &str = "\
Examples:
  mkdir -p ~/.local/share/man/man1 && longhaul man ~/.local/share/man/man1
  man longhaul-serve";

/// Prints the completions of `command`.
pub(crate) fn completions(args: &Completions, mut command: clap::Command) -> Outcome {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    super::say(String::from_utf8_lossy(&script).trim_end())
}

/// Writes the pages of `command`, and that of the configuration. Files of others are left alone.
pub(crate) fn man(args: &Man, command: clap::Command) -> Outcome {
    let what = || format!("cannot write man pages to {}", args.directory.shown());
    let mut pages = vec![("longhaul.toml.5".to_owned(), configuration().render().into_bytes())];
    let mut command = command.disable_help_subcommand(true);
    command.build();
    collect(&command, &mut pages).or_fail(what)?;
    for (name, _) in &pages {
        let path = args.directory.join(name);
        if is_foreign(&path).or_fail(what)? {
            return Err(Failure::new(what())
                .because(format!("{} is there, and no man page of Longhaul", path.shown()))
                .hint("name another directory, or move the file"));
        }
    }
    let write = |(name, page): &(String, Vec<u8>)| std::fs::write(args.directory.join(name), page);
    pages.iter().try_for_each(write).or_fail(what)
}

fn collect(command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        collect(command, pages)?;
    }
    let page = Page::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    pages.push((page.get_filename(), text));
    Ok(())
}

/// What the title of our pages begins with.
const TITLE: &str = ".TH longhaul";

/// Whether a file is there that this command has not made.
fn is_foreign(path: &Path) -> io::Result<bool> {
    match std::fs::read(path) {
        Ok(found) => {
            Ok(!String::from_utf8_lossy(&found).lines().any(|line| line.starts_with(TITLE)))
        }
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(why) => Err(why),
    }
}

/// longhaul.toml(5).
fn configuration() -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["longhaul.toml", "5", "", concat!("longhaul ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]);
    page.text([roman("longhaul.toml - the configuration of longhaul serve")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([
        roman("A TOML file for "),
        bold("longhaul serve --config FILE"),
        roman(". Paths in it begin at its directory; unknown keys are errors. "),
        bold("longhaul check --config FILE"),
        roman(" reports every mistake with its line."),
    ]);
    for section in config::sections() {
        describe(&mut page, &section);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("longhaul-serve"), roman("(1), "), bold("longhaul-check"), roman("(1)")]);
    page
}

fn describe(page: &mut Roff, section: &Section) {
    let heading = match section.table {
        "" => section.name.to_uppercase(),
        table => format!("{}: [{table}]", section.name.to_uppercase()),
    };
    page.control("SH", [heading.as_str()]);
    page.text([roman(section.about), roman(".")]);
    for option in section.options.iter().filter(|option| option.place.in_file()) {
        page.control("TP", []);
        page.text([bold(option.name), roman(" = "), italic(option.value_in_file())]);
        page.text(meaning(option));
    }
}

fn meaning(option: &OptionText) -> Vec<Inline> {
    let mut text =
        format!("{}. Value: {}.", without_markup(&option.meaning()), option.kind.written);
    if let Some(range) = (option.range)() {
        text += &format!(" Range: {range}.");
    }
    match option.default_text().as_str() {
        "" => {}
        "required" => text += " Required.",
        default => text += &format!(" Default: {default}."),
    }
    vec![roman(text.replace('`', ""))]
}

/// A text of the manual without its links: `[name](place)` is the name.
fn without_markup(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain += before;
        match link.split_once("](").and_then(|(name, rest)| Some((name, rest.split_once(')')?.1))) {
            Some((name, after)) => {
                plain += name;
                rest = after;
            }
            None => {
                plain.push('[');
                rest = link;
            }
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_the_configuration_names_every_option_of_the_file_without_markup() {
        let page = configuration().render();
        for section in config::sections() {
            for option in section.options.iter().filter(|option| option.place.in_file()) {
                assert!(page.contains(&format!("\\fB{}\\fR = ", option.name)), "{}", option.name);
            }
        }
        assert!(!page.contains("](") && !page.contains("`l"), "{page}");
    }

    #[test]
    fn link_is_its_name() {
        for (text, plain) in [
            ("see [this](#that) and [it](a.md#b)", "see this and it"),
            ("a [b] c", "a [b] c"),
            ("none", "none"),
        ] {
            assert_eq!(without_markup(text), plain);
        }
    }
}
