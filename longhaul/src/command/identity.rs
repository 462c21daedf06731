//! `longhaul identity`: who this machine is in secure sessions.

use std::path::{Path, PathBuf};

use clap::Subcommand;

use crate::failure::{OrFail, Outcome, print_error};
use crate::printable::Shown as _;
use crate::sealing;
use crate::site_key;

/// Make and show the keys of secure sessions
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  longhaul identity new                       make this machine's identity, print its public key
  longhaul identity new /etc/longhaul.identity
  longhaul identity list

The public key goes to the other side: a client's into the server's configuration, a server's into the
client's --pin, or into the URI, as `serve` prints it. The file stays where it is.";

#[derive(Debug, Subcommand)]
enum Action {
    /// Make an identity and print its public key
    New {
        /// Where to keep it; ~/.config/longhaul/identity if left out
        file: Option<PathBuf>,
    },
    /// Make the key of a site, which all HyperSCSI servers and clients of it have a copy of
    SiteKey {
        /// Where to keep it; ~/.config/longhaul/site-key if left out
        file: Option<PathBuf>,
    },
    /// Print the public key of an identity
    Show {
        /// Where it is kept; ~/.config/longhaul/identity if left out
        file: Option<PathBuf>,
    },
    /// Print all identities of a directory: public key and file
    List {
        /// The directory; ~/.config/longhaul if left out
        dir: Option<PathBuf>,
    },
}

/// Does it.
pub fn run(args: &Args) -> Outcome {
    match &args.action {
        Action::New { file } => {
            let identity = sealing::create(&path(file.as_deref())?)?;
            super::say(&identity.public().to_string())
        }
        Action::SiteKey { file } => {
            let file = file.clone().map_or_else(site_key::default_path, Ok)?;
            site_key::create(&file)?;
            super::say(&format!("{}", file.shown()))
        }
        Action::Show { file } => {
            let identity = sealing::read(&path(file.as_deref())?)?;
            super::say(&identity.public().to_string())
        }
        Action::List { dir } => list(&dir.clone().map_or_else(sealing::default_dir, Ok)?),
    }
}

fn path(named: Option<&Path>) -> Outcome<PathBuf> {
    named.map_or_else(sealing::default_path, |path| Ok(path.to_owned()))
}

/// Other files are passed over, as the directory may hold more than identities. What is no regular file is not even
/// opened: a pipe would be waited for.
fn list(dir: &Path) -> Outcome {
    let what = || format!("cannot list the identities in {}", dir.shown());
    let mut files = std::fs::read_dir(dir)
        .or_fail(what)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .or_fail(what)?;
    files.retain(|file| file.is_file());
    files.sort();
    for file in files {
        match sealing::read(&file) {
            Ok(identity) => super::say(&format!("{}  {}", identity.public(), file.shown()))?,
            Err(why) if sealing::is_identity(&file) => {
                print_error(&format_args!("longhaul: {why}"));
            }
            Err(_) => {}
        }
    }
    Ok(())
}
