//! `longhaul mirror`: volumes that hold the same.

use clap::Subcommand;
use serde::Serialize;

use super::named;
use super::options::{LoginArgs, OTHER_WRITERS, OutageArgs};
use crate::chain::OpenOptions;
use crate::chain::mirror::{self, OpenMirror};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::size::Size;
use crate::store::iscsi::Writers;
use crate::uri::Uri;

/// Make a mirror of volumes, look at it, compare its members, and replace one
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  longhaul mirror init 'mirror:(file:/srv/a.img,iscsi://far/iqn.2026-11.dev.longhaul:b/0)'
  longhaul mirror status 'mirror:(file:/srv/a.img,iscsi://far/iqn.2026-11.dev.longhaul:b/0)'
  longhaul mirror scrub --repair 'mirror:(file:/srv/a.img,file:/srv/b.img)'

The first MiB of each member is the mirror's own. Nobody else may use the mirror meanwhile.";

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a mirror: what is behind the first MiB of the first member is in it, and what is on the others is lost. The
    /// first MiB of each must be zeroes. It is copied once the mirror is used
    Init(WriteArgs),
    /// Show how each member is
    Status {
        #[command(flatten)]
        on: On,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Give members what they lack, then compare all, and fail if they differ
    Scrub {
        #[command(flatten)]
        on: WriteArgs,
        /// Write what differs anew, from the first member that has all
        #[arg(long)]
        repair: bool,
        /// Show no progress
        #[arg(long, short)]
        quiet: bool,
    },
    /// Put a new volume, whose first MiB is zeroes, in the place of a member that is gone. What is on it is lost
    Replace(WriteArgs),
}

/// Which mirror, and how its members are reached.
#[derive(Debug, clap::Args)]
struct On {
    /// The mirror: its URI, or the name that `mount` remembers it by
    #[arg(value_parser = named::volume)]
    uri: Uri,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
}

/// A mirror that is written to.
#[derive(Debug, clap::Args)]
struct WriteArgs {
    #[command(flatten)]
    on: On,
    /// Take the volume over from another writer, which can write nothing more
    #[arg(help_heading = OTHER_WRITERS, long)]
    take_over: bool,
}

impl On {
    async fn options(&self) -> Outcome<OpenOptions> {
        let login = self.login.login_to(&[&self.uri]).await?;
        let reconnect_limit = self.outage.reconnect_limit().unwrap_or_default();
        Ok(OpenOptions { login, reconnect_limit, existing_only: true, ..OpenOptions::default() })
    }
}

impl WriteArgs {
    /// Nobody else writes to the members meanwhile.
    async fn options(&self) -> Outcome<OpenOptions> {
        let writers = if self.take_over { Writers::TakeOver } else { Writers::One };
        Ok(OpenOptions { writers, ..self.on.options().await? })
    }
}

/// Does it.
pub async fn run(args: Args) -> Outcome {
    match args.action {
        Action::Init(on) => {
            let uri = &on.on.uri;
            mirror::init(uri, &on.options().await?).await?;
            super::say_done(&format!("{uri} is a mirror; it is copied when it is used"))
        }
        Action::Replace(on) => {
            let replaced = mirror::replace(&on.on.uri, &on.options().await?).await?;
            super::say_done(&format!(
                "{} is a member now; it is given what it lacks when the mirror is used",
                replaced.join(", ")
            ))
        }
        Action::Status { on, json } => status(&on, json).await,
        Action::Scrub { on, repair, quiet } => scrub(&on, repair, quiet).await,
    }
}

#[derive(Serialize)]
struct Status {
    uri: String,
    size: u64,
    dirty_regions: u64,
    region_size: u64,
    members: Vec<Member>,
}

#[derive(Serialize)]
struct Member {
    uri: String,
    out: bool,
    state: String,
}

async fn status(on: &On, json: bool) -> Outcome {
    let open =
        OpenMirror::open(&on.uri, &OpenOptions { read_only: true, ..on.options().await? }).await?;
    let (status, size) = (open.status(), open.size());
    open.close().await;
    let member = |(name, state): &(std::sync::Arc<str>, volume::layer::mirror::MemberState)| {
        Member { uri: name.to_string(), out: state.is_out(), state: state.to_string() }
    };
    let status = Status {
        uri: on.uri.to_string(),
        size,
        dirty_regions: status.dirty.0,
        region_size: status.region,
        members: status.members.iter().map(member).collect(),
    };
    if json {
        return super::say_json(&status);
    }
    super::say(&status.to_string())
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.uri)?;
        writeln!(f, "  size         {} ({} bytes)", Size(self.size), self.size)?;
        write!(f, "  dirty        {} regions of {}", self.dirty_regions, Size(self.region_size))?;
        self.members
            .iter()
            .try_for_each(|Member { uri, state, .. }| write!(f, "\n  {uri}: {state}"))
    }
}

async fn scrub(on: &WriteArgs, repair: bool, quiet: bool) -> Outcome {
    let open = OpenMirror::open(&on.on.uri, &on.options().await?).await?;
    open.resync().await;
    let progress = Progress::new("compared", open.size(), quiet);
    let mut last = 0;
    let scrubbed = open
        .scrub(repair, |at| {
            progress.advance(at - last);
            last = at;
        })
        .await;
    drop(progress);
    let is_whole = open.status().is_whole();
    open.close().await;
    let scrubbed = scrubbed?;
    let places: Vec<_> = scrubbed.places.iter().map(ToString::to_string).collect();
    let places =
        if places.is_empty() { String::new() } else { format!(", at {}", places.join(", ")) };
    let of = if is_whole { "" } else { " of the members that have all, and not of the others" };
    super::say(&format!(
        "compared {} bytes{of}: {} blocks differ{places}; {} bytes could not be read; {} blocks were written anew",
        scrubbed.compared, scrubbed.differing, scrubbed.unreadable, scrubbed.repaired
    ))?;
    let is_clean = scrubbed.differing == 0 && scrubbed.unreadable == 0;
    match (is_whole, is_clean || repair) {
        (false, _) => Err(Failure::new("not all members have all of the mirror")
            .hint("`longhaul mirror status URI` shows which")),
        (true, false) => Err(Failure::new("the members differ")
            .hint("--repair writes what differs anew, from the first member")),
        (true, true) => Ok(()),
    }
}
