//! `longhaul check`: what is wrong with a configuration, before it is used.

use std::io::ErrorKind;
use std::path::PathBuf;

use host::file::Access;

use super::options::blocking;
use super::serve;
use crate::config::{self, Config, ROOT, Served, Wrong};
use crate::credentials::Chap;
use crate::explain::explain;
use crate::failure::{Failure, Outcome};
use crate::sealing::sealing;
use crate::store::file::{OpenError, suits};
use crate::store::in_use;
use crate::uri::Uri;

/// Look for mistakes in a configuration, without using it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The configuration of a server
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  longhaul check --config /etc/longhaul/longhaul.toml

Every mistake is told with its file and line, and the exit code is 2. Secrets are read, and files looked
for, as `serve` would; no volume is opened, so that one in use can be checked. One that is mounted or behind a loop
device is told.";

/// Tells every mistake, or that there is none.
pub async fn run(args: Args) -> Outcome {
    let path = args.config.clone();
    let (config, mut wrong) = blocking(move || Config::survey(&path)).await?;
    wrong.extend(unusable(&config).await);
    wrong.sort_by_key(|wrong| wrong.line);
    if !wrong.is_empty() {
        return Err(config::refuse(&args.config, &wrong));
    }
    let counts = format!("{} volumes, {} clients", config.volumes.len(), config.clients.len());
    super::say(&format!("{}: {counts}, no mistakes", args.config.display()))
}

/// What only shows when the file is used: addresses, secrets and files that are not there, and what cannot be
/// together.
async fn unusable(config: &Config) -> Vec<Wrong> {
    let portals = serve::resolve(config).await;
    let mut wrong = serve::conflicts(config, portals.as_deref().unwrap_or_default());
    let mut note = |kind, name: &str, outcome: Outcome| {
        let why = outcome.err().map(|why| why.to_string());
        wrong.extend(why.map(|why| Wrong { line: config.line(kind, name), why }));
    };
    let portals = portals.and_then(|portals| serve::refuse_strangers(config, &portals));
    note(ROOT, "listen", portals);
    note(
        ROOT,
        "identity",
        config.identity.as_deref().map_or(Ok(()), |path| sealing(path).map(drop)),
    );
    for client in &config.clients {
        note("clients", &client.name, read(client.chap.clone()).await);
    }
    for volume in &config.volumes {
        let options = serve::open_options(volume, config.state.as_deref()).await;
        note("volumes", &volume.name, options.and_then(|_| look_for(volume)));
    }
    wrong
}

async fn read(chap: Option<Chap>) -> Outcome {
    blocking(move || chap.map(|chap| chap.account()).transpose().map(drop)).await
}

/// Whether what a volume is in can be one; a file that is not there is made only where its size is known.
fn look_for(volume: &Served) -> Outcome {
    let (path, makes) = match &volume.uri {
        Uri::File(path) => (path, volume.size.is_some() && !volume.read_only),
        Uri::Device(path) => (path, false),
        Uri::Memory(_) | Uri::Iscsi(_) => return Ok(()),
    };
    let device = matches!(volume.uri, Uri::Device(_));
    let cannot = || Failure::new(format!("cannot open {}", volume.uri));
    match path.metadata() {
        Ok(found) => {
            suits(&found, device).map_err(|why| cannot().because(why))?;
            match in_use::system_user(path, Access::Write) {
                Ok(Some(user)) if !volume.read_only => {
                    Err(explain(cannot().to_string(), OpenError::UsedBySystem(user)))
                }
                _ => Ok(()),
            }
        }
        Err(why) if why.kind() != ErrorKind::NotFound => {
            Err(Failure::new(format!("cannot look for {}", volume.uri)).because(why))
        }
        Err(_) if makes => Ok(()),
        Err(_) => Err(Failure::new(format!("{} does not exist", volume.uri))),
    }
}
