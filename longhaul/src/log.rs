//! The log: how much of it, and how it looks. It goes to standard error, and never holds a secret.

use std::io::{self, IsTerminal};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt};

use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::option_table::{Kind, Place, Standard, option, options, text};
use crate::printable::{JsonLines, LogLines};
use crate::stderr::{self, Stderr};
use crate::suggest::did_you_mean;

options! {
    /// The log of a server.
    pub(crate) struct LogOptions in pub(crate) LOG {
        level: Option<String> = text => {
            kind: Kind::text("LEVEL", "a level, or a filter such as longhaul=debug"),
            default: Standard::Words("info"),
            place: Place::File,
            help: "How much to log: error, warn, info, debug or trace; or a filter such as longhaul=debug",
            manual: "`--log` takes its place",
        }
        format: Option<Format> = text => {
            kind: Kind::text("FORMAT", "`text` or `json`"),
            default: Standard::Words("text"),
            place: Place::File,
            help: "How log lines look: text or json",
            manual: "`--log-format` takes its place",
        }
    }
}

/// What is logged; what is left out is as `Log::start` is told.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Logging")]
pub struct Log {
    #[arg(long = "log", global = true, value_name = "LEVEL")]
    #[arg(help = format!("{} [default: warn; serve: info]", const { option(LOG, "level").help }))]
    /// How much.
    pub level: Option<String>,
    #[arg(long = "log-format", global = true, value_name = "FORMAT")]
    #[arg(help = format!("{} [default: text]", const { option(LOG, "format").help }))]
    /// How it looks.
    pub format: Option<Format>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// An object each.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false)
            .map_err(|_| format!("`{text}` is no format of log lines: `text` or `json`"))
    }
}

const HINT: &str =
    "write error, warn, info, debug or trace, or a filter such as info,longhaul::front=debug";

/// Whose lines a filter can choose: the crates of this program.
const CRATES: [&str; 4] = ["longhaul", "volume", "proto", "host"];

/// Whether a part of a filter means something. A word that is no level would be the name of a crate nobody has,
/// and silence all others.
fn directive(text: &str) -> Result<(), String> {
    let (target, level) = text.split_once('=').unwrap_or(("longhaul", text));
    if level.is_empty() || level.parse::<LevelFilter>().is_err() {
        let known = ["off", "error", "warn", "info", "debug", "trace"];
        return Err(format!("`{level}` is no level{}", did_you_mean(level, known)));
    }
    let target = target.split(['[', ':']).next().unwrap_or_default();
    match CRATES.contains(&target) {
        true => Ok(()),
        false => {
            Err(format!("`{target}` is no part of the program{}", did_you_mean(target, CRATES)))
        }
    }
}

/// Says how a command failed, as the lines of its log look.
pub fn log_failure(failure: &Failure) {
    match stderr::is_json() {
        true => print_error(&stderr::json_line("ERROR", &failure.to_string())),
        false => print_error(&format_args!("longhaul: {failure}")),
    }
}

/// What is logged, to be changed while the program runs.
#[derive(Debug)]
pub struct LogFilter(Handle<EnvFilter, Registry>);

impl LogFilter {
    /// Logs what `filter` lets through from now on.
    pub fn turn(&self, filter: EnvFilter) -> Outcome {
        self.0.reload(filter).or_fail(|| "cannot change what is logged".to_owned())
    }
}

impl Log {
    /// These settings, and `other` where they say nothing.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            level: self.level.or_else(|| other.level.clone()),
            format: self.format.or(other.format),
        }
    }

    /// What lets through what is to be logged: `level` if nothing else was said.
    pub fn filter(&self, level: &str) -> Outcome<EnvFilter> {
        let level = self.level.as_deref().unwrap_or(level);
        let what = || Failure::usage(format!("cannot log at level `{level}`"));
        level.split(',').try_for_each(directive).map_err(|why| what().because(why).hint(HINT))?;
        EnvFilter::try_new(level).map_err(|why| what().because(why).hint(HINT))
    }

    /// Whether each line of it is a JSON object.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.format == Some(Format::Json)
    }

    /// Begins to log, at `level` if nothing else was said.
    pub fn start(&self, level: &str) -> Outcome<LogFilter> {
        let (filter, handle) = reload::Layer::new(self.filter(level)?);
        let log = tracing_subscriber::registry().with(filter);
        let lines = fmt::layer().with_ansi(io::stderr().is_terminal());
        stderr::use_json(self.is_json());
        match self.format.unwrap_or(Format::Text) {
            Format::Text => log.with(lines.with_writer(|| LogLines(Stderr))).init(),
            Format::Json => log.with(lines.with_writer(|| JsonLines(Stderr)).json()).init(),
        }
        Ok(LogFilter(handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_that_means_nothing_is_refused() {
        let filter =
            |level: &str| Log { level: Some(level.to_owned()), format: None }.filter("info");
        for level in
            ["warn", "INFO", "off", "longhaul=debug", "info,longhaul::front=trace,volume=warn"]
        {
            filter(level).unwrap();
        }
        for (level, why) in [
            ("loud", "`loud` is no level"),
            ("", "`` is no level"),
            ("inof", "`inof` is no level: did you mean `info`?"),
            ("longhaul=loud", "`loud` is no level"),
            ("longhual=debug", "`longhual` is no part of the program: did you mean `longhaul`?"),
            ("info,", "`` is no level"),
        ] {
            let said = filter(level).unwrap_err();
            assert!(said.to_string().contains(why), "{level}: {said}");
            assert_eq!(said.exit_code(), 2);
        }
    }
}
