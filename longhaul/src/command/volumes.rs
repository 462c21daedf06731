//! `longhaul volumes`: what `mount` remembers.

use super::{say, say_json};
use crate::failure::Outcome;
use crate::printable::{OneLine, Shown as _};
use crate::remembered;

/// List the volumes that were mounted, by the names that `mount` knows them by
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints them.
pub fn run(args: &Args) -> Outcome {
    let known = remembered::all()?;
    if args.json {
        return say_json(&known);
    }
    for (name, volume) in known {
        let dir = volume.dir.map(|dir| format!(" at {}", dir.shown())).unwrap_or_default();
        let options: Vec<_> = volume.options.iter().map(|option| format!(" {option}")).collect();
        say(&format!("{name}: {}{dir}{}", OneLine(&volume.uri), OneLine(options.concat())))?;
    }
    Ok(())
}
