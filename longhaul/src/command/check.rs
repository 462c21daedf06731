//! `longhaul check`: what is wrong with a configuration, before it is used.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use host::file::Access;
use proto::scsi::unit::optical::BLOCK_SIZE as BLOCK_SIZE_OF_DISC;

use super::options::blocking;
use super::serve;
use crate::chain::{self, BLOCK_SIZE};
use crate::cluster::{Finding, survey};
use crate::config::{self, Config, ROOT, Served, Wrong};
use crate::credentials::Chap;
use crate::explain::explain;
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::printable::{Counted, Shown as _};
use crate::sealing::sealing;
use crate::served_volumes::OnExchange;
use crate::size::Size;
use crate::state::StateDir;
use crate::store::file::{OpenError, can_be_direct, can_be_made, fits, suits};
use crate::store::in_use;
use crate::uri::compound::Kind;
use crate::uri::{Location, ScsiPlace};

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

Every mistake is reported with its file and line, and the exit code is 2. Secrets are read, and files looked for, as \
`serve` would. No volume is opened, so one in use can be checked; one that is mounted or behind a loop device is reported.";

/// Tells every mistake, or that there is none.
pub async fn run(args: Args) -> Outcome {
    let path = args.config.clone();
    let (config, mut wrong) = blocking(move || Config::survey(&path)).await?;
    let mut remarks = Vec::new();
    wrong.extend(unusable(&config, &mut remarks).await);
    for Wrong { line, why } in &remarks {
        print_error(&format_args!("{}:{line}: {why}", args.config.shown()));
    }
    wrong.sort_by_key(|wrong| wrong.line);
    if !wrong.is_empty() {
        return Err(config::refuse(&args.config, &wrong));
    }
    let volumes = Counted(config.volumes.len(), "volume");
    let counts = format!("{volumes}, {}", Counted(config.clients.len(), "client"));
    super::say(&format!("{}: {counts}, no mistakes", args.config.shown()))
}

/// What only shows when the file is used: addresses, secrets and files that are not there, and what cannot be
/// together.
async fn unusable(config: &Config, remarks: &mut Vec<Wrong>) -> Vec<Wrong> {
    let portals = serve::resolve(config).await;
    let mut wrong = serve::conflicts(config, portals.as_deref().unwrap_or_default());
    let mut note = |kind, name: &str, outcome: Outcome| {
        let why = outcome.err().map(|why| why.to_string());
        wrong.extend(why.map(|why| Wrong { line: config.line(kind, name), why }));
    };
    let portals = portals.and_then(|portals| serve::refuse_unauthenticated(config, &portals));
    note(ROOT, "listen", portals);
    note(ROOT, "listen", serve::refuse_unusable_links(config).await);
    note(
        ROOT,
        "identity",
        config.identity.as_deref().map_or(Ok(()), |path| sealing(path).map(drop)),
    );
    note(ROOT, "state", config.state.as_deref().map_or(Ok(()), usable_state));
    for Finding { option, why, is_mistake } in survey_cluster(config).await {
        let outcome = Err(Failure::new(why));
        match is_mistake {
            true => note("cluster", option, outcome),
            false => remarks.extend(outcome.err().map(|why: Failure| Wrong {
                line: config.line("cluster", option),
                why: why.to_string(),
            })),
        }
    }
    for client in &config.clients {
        note("clients", &client.name, read(client.chap.clone()).await);
    }
    let state = config.state.as_deref();
    let served = serve::served_before(state).await;
    for volume in &config.volumes {
        let options = match &served {
            Ok(served) => serve::open_options(volume, (state, served), OnExchange::Refuse).await,
            Err(why) => Err(Failure::new(why.to_string())),
        };
        let found = options.and_then(|_| look_for(volume)).and_then(|()| match config.cluster {
            Some(_) => is_there(volume),
            None => Ok(()),
        });
        note("volumes", &volume.name, found);
        if let Some(longer) = longer(volume) {
            let line = config.line("volumes", &volume.name);
            remarks.push(Wrong { line, why: longer });
        }
    }
    wrong
}

/// Whether reservations can be kept there.
fn usable_state(path: &Path) -> Outcome {
    let what = || format!("cannot use the state directory {}", path.shown());
    StateDir::could_be(path).map_err(|why| {
        let hint = "name a directory that is there, or that can be made, and that the user of the server may write to";
        Failure::new(what()).because(why).hint(hint)
    })
}

/// What there is to be said of its part in a cluster.
async fn survey_cluster(config: &Config) -> Vec<Finding> {
    let config = config.clone();
    blocking(move || Ok(survey(&config))).await.unwrap_or_default()
}

/// A cluster makes no file: where it is missing, its file system is not that of the other gateways.
fn is_there(volume: &Served) -> Outcome {
    match volume.uri.file() {
        Some(path) if !path.exists() => Err(Failure::new(format!("{} does not exist", volume.uri))
            .because("a cluster makes no file")
            .hint("make it with `truncate`, or mount what it is on")),
        _ => Ok(()),
    }
}

async fn read(chap: Option<Chap>) -> Outcome {
    blocking(move || chap.map(|chap| chap.account()).transpose().map(drop)).await
}

/// What is to be said of a file that is shorter than its volume is to be: that is right for a reload only.
fn longer(volume: &Served) -> Option<String> {
    let (Some(path), Some(Size(asked))) = (volume.uri.file(), volume.size) else { return None };
    let found = path.metadata().ok().filter(|found| found.is_file())?.len();
    (found < asked).then(|| {
        format!(
            "{} is {found} bytes long: `reload` makes it {asked} bytes long, `serve` refuses it at its start",
            volume.uri
        )
    })
}

/// Whether there can be a file of the size that is wanted.
fn makeable(volume: &Served) -> Result<(), OpenError> {
    let block_size = volume.appearance.block_size.map_or(BLOCK_SIZE, |size| size.0);
    volume.size.map_or(Ok(()), |Size(size)| can_be_made(size, block_size))
}

/// Whether what a volume is in can be one.
fn look_for(volume: &Served) -> Outcome {
    let Location::Several(compound) = volume.uri.location() else {
        return look_for_one(volume);
    };
    for (at, member) in compound.members.iter().enumerate() {
        let read_only = volume.read_only || compound.is_only_read(at);
        let mut of = volume.clone();
        (of.uri, of.read_only) = (member.clone(), read_only);
        // The file of an overlay that is to be made.
        let is_new = matches!(compound.kind, Kind::Overlay { create: true, .. }) && at == 1;
        let is_made = is_new && !volume.read_only;
        match member.path() {
            Some(path) if is_made && !path.exists() => {}
            _ => look_for(&of).map_err(|why| why.within(&volume.uri.to_string()))?,
        }
    }
    Ok(())
}

/// Whether a file can be a disc.
fn look_for_disc(volume: &Served, path: &Path) -> Outcome {
    let cannot = || format!("cannot open {}", volume.uri);
    let found = path.metadata().or_fail(cannot)?;
    suits(&found, false).map_err(|why| Failure::new(cannot()).because(why))?;
    fits(&found, None, BLOCK_SIZE_OF_DISC).map_err(|why| explain(cannot(), why))
}

/// Whether a file can be a SCSI device.
fn look_for_device(volume: &Served, path: &Path) -> Outcome {
    let cannot = || format!("cannot open {}", volume.uri);
    let kind = path.metadata().or_fail(cannot)?.file_type();
    match kind.is_char_device() || kind.is_block_device() {
        true => Ok(()),
        false => Err(Failure::new(cannot()).because("it is no device")),
    }
}

/// The same of one that is not made of others; a file that is not there is made only where its size is known.
fn look_for_one(volume: &Served) -> Outcome {
    if let Location::Drive(disc) = volume.uri.location() {
        return disc.map_or(Ok(()), |path| look_for_disc(volume, path));
    }
    if let (Location::Changer(directory), Some(layout)) = (volume.uri.location(), volume.elements())
    {
        return chain::changer::look(&volume.uri, directory, layout);
    }
    if let Location::Passed(ScsiPlace::Device(path)) = volume.uri.location() {
        return look_for_device(volume, path);
    }
    let tape = match volume.uri.location() {
        Location::Tape(tape) => tape,
        _ => None,
    };
    let Some(path) = volume.uri.path().or(tape) else { return Ok(()) };
    let device = tape.is_none() && volume.uri.file().is_none();
    let makes = !device && volume.size.is_some() && !volume.read_only;
    let cannot = || Failure::new(format!("cannot open {}", volume.uri));
    let block_size = volume.appearance.block_size.map_or(BLOCK_SIZE, |size| size.0);
    if volume.direct && volume.uri.file().is_some() {
        can_be_direct(path, block_size).map_err(|why| explain(cannot().to_string(), why))?;
    }
    match path.metadata() {
        Ok(found) => {
            suits(&found, device).map_err(|why| cannot().because(why))?;
            if !device {
                let fits = fits(&found, volume.size.map(|size| size.0), block_size);
                fits.map_err(|why| explain(cannot().to_string(), why))?;
            }
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
        Err(_) if makes && let Err(why) = makeable(volume) => {
            Err(explain(cannot().to_string(), why))
        }
        Err(_) if makes => match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() && !dir.is_dir() => {
                let why = format!("the directory {} does not exist", dir.shown());
                Err(cannot().because(why).hint("make it, or mount what it is on"))
            }
            _ => Ok(()),
        },
        Err(_) => Err(Failure::new(format!("{} does not exist", volume.uri))),
    }
}
