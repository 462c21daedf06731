//! `longhaul completions` and `longhaul man`: what a shell and a reader want to know of the command line, made
//! from it.

use std::path::PathBuf;

use clap_complete::Shell;

use crate::failure::{OrFail, Outcome};
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

/// Write man pages: longhaul(1), and one for each command
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

/// Writes the pages of `command`.
pub(crate) fn man(args: &Man, command: clap::Command) -> Outcome {
    clap_mangen::generate_to(command, &args.directory)
        .or_fail(|| format!("cannot write man pages to {}", args.directory.shown()))
}
