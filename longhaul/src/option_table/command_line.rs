//! Options of a table as arguments of a command.

use std::ffi::{OsStr, OsString};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::{OptionText, RawValue, Row};

/// What has a table of options that a command takes.
pub(crate) trait Rows: Default + Clone + Send + Sync + 'static {
    const ROWS: &'static [Row<Self>];
}

/// The options of a table, as a command has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandLine<S>(pub(crate) S);

impl<S: Rows> Args for CommandLine<S> {
    fn augment_args(command: Command) -> Command {
        let rows = S::ROWS.iter().filter(|row| row.text.place.on_command_line());
        rows.fold(command, |command, row| command.arg(argument(row)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument<S: Rows>(row: &'static Row<S>) -> Arg {
    let OptionText { name, kind, help, .. } = row.text;
    let argument = Arg::new(name).long(name.replace('_', "-")).help(help);
    if kind.is_switch() {
        return argument.action(ArgAction::SetTrue);
    }
    let fits = move |word: OsString| {
        (row.read)(&mut S::default(), &RawValue::Word(Some(&word))).map(|()| word)
    };
    let action = if kind.list { ArgAction::Append } else { ArgAction::Set };
    argument
        .action(action)
        .value_name(kind.value)
        .value_parser(OsStringValueParser::new().try_map(fits))
}

impl<S: Rows> FromArgMatches for CommandLine<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut into = S::default();
        for row in S::ROWS.iter().filter(|row| row.text.place.on_command_line()) {
            let name = row.text.name;
            if row.text.kind.is_switch() {
                if matches.get_flag(name) {
                    take(row, &mut into, None)?;
                }
                continue;
            }
            for word in matches.get_many::<OsString>(name).into_iter().flatten() {
                take(row, &mut into, Some(word))?;
            }
        }
        Ok(Self(into))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn take<S>(row: &Row<S>, into: &mut S, word: Option<&OsStr>) -> Result<(), clap::Error> {
    let unfit = |why| clap::Error::raw(clap::error::ErrorKind::ValueValidation, why);
    (row.read)(into, &RawValue::Word(word)).map_err(unfit)
}

/// The names of those on the command line.
pub(crate) fn names<S: Rows>() -> impl Iterator<Item = &'static str> {
    let rows = S::ROWS.iter().map(|row| row.text);
    rows.filter(|text| text.place.on_command_line()).map(|text| text.name)
}
