//! The log: how much of it, and how it looks. It goes to standard error, and never holds a secret.

use std::io::{self, IsTerminal};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt};

use crate::failure::{Failure, OrFail, Outcome};

/// What is logged; what is left out is as `Log::start` is told.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Logging")]
pub struct Log {
    /// How much to log: error, warn, info, debug or trace; or a filter such as longhaul=debug [default: warn; serve: info]
    #[arg(long = "log", global = true, value_name = "LEVEL")]
    pub level: Option<String>,
    /// How log lines look [default: text]
    #[arg(long = "log-format", global = true, value_name = "FORMAT")]
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

/// What is logged, to be changed while the program runs.
#[derive(Debug)]
pub struct Tap(Handle<EnvFilter, Registry>);

impl Tap {
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
        EnvFilter::try_new(level)
            .map_err(|why| Failure::usage(format!("cannot log at level `{level}`")).because(why))
    }

    /// Begins to log, at `level` if nothing else was said.
    pub fn start(&self, level: &str) -> Outcome<Tap> {
        let (filter, handle) = reload::Layer::new(self.filter(level)?);
        let log = tracing_subscriber::registry().with(filter);
        let lines = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
        match self.format.unwrap_or(Format::Text) {
            Format::Text => log.with(lines).init(),
            Format::Json => log.with(lines.json()).init(),
        }
        Ok(Tap(handle))
    }
}
