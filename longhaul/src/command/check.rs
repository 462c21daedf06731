//! `longhaul check`: what is wrong with a configuration, before it is used.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::options::blocking;
use super::serve;
use crate::config::{self, Config, ROOT, Served, Wrong};
use crate::credentials::Chap;
use crate::failure::{Failure, Outcome};
use crate::sealing::sealing;
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
for, as `serve` would; no volume is opened, so that one in use can be checked.";

/// The files that volumes are in, by device and inode.
type Seen<'a> = BTreeMap<(u64, u64), &'a Served>;

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

/// What only shows when the file is used: addresses, secrets and files that are not there.
async fn unusable(config: &Config) -> Vec<Wrong> {
    let portals = serve::resolve(config).await;
    let portals = portals.and_then(|portals| serve::refuse_strangers(config, &portals));
    let identity = config.identity.as_deref().map_or(Ok(()), |path| sealing(path).map(drop));
    let mut wrong: Vec<_> = [("listen", portals), ("identity", identity)]
        .into_iter()
        .filter_map(|(key, outcome)| Some((config.line(ROOT, key), outcome.err()?)))
        .collect();
    for client in &config.clients {
        let secrets = read(client.chap.clone()).await;
        wrong.extend(secrets.err().map(|why| (config.line("clients", &client.name), why)));
    }
    let mut seen = Seen::new();
    for volume in &config.volumes {
        let line = config.line("volumes", &volume.name);
        let options = serve::open_options(volume).await.map(drop);
        wrong.extend(
            options.and_then(|()| look_for(volume, &mut seen)).err().map(|why| (line, why)),
        );
    }
    wrong.into_iter().map(|(line, why)| Wrong { line, why: why.to_string() }).collect()
}

async fn read(chap: Option<Chap>) -> Outcome {
    blocking(move || chap.map(|chap| chap.account()).transpose().map(drop)).await
}

/// A file that is not there is made only where its size is known.
fn look_for<'a>(volume: &'a Served, seen: &mut Seen<'a>) -> Outcome {
    let (path, makes) = match &volume.uri {
        Uri::File(path) => (path, volume.size.is_some() && !volume.read_only),
        Uri::Device(path) => (path, false),
        Uri::Memory(_) | Uri::Iscsi(_) => return Ok(()),
    };
    match path.metadata() {
        Ok(found) if found.is_dir() => Err(Failure::new(format!("{} is a directory", volume.uri))),
        Ok(found) => used_twice(volume, &found, seen),
        Err(why) if why.kind() != ErrorKind::NotFound => {
            Err(Failure::new(format!("cannot look for {}", volume.uri)).because(why))
        }
        Err(_) if makes => Ok(()),
        Err(_) => Err(Failure::new(format!("{} does not exist", volume.uri))),
    }
}

/// A file is several volumes only if nobody writes to it.
fn used_twice<'a>(volume: &'a Served, found: &Metadata, seen: &mut Seen<'a>) -> Outcome {
    match seen.insert((found.dev(), found.ino()), volume) {
        Some(other) if !(volume.read_only && other.read_only) => {
            let (uri, name) = (&volume.uri, &other.name);
            Err(Failure::new(format!("{uri} is what volume {name} is: one volume is served once")))
        }
        _ => Ok(()),
    }
}
