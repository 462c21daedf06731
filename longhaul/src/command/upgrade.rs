//! `longhaul upgrade`: a new process takes a mount over.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

use super::attach::kept;
use super::attached::{AttachStatus, attachments, look};
use super::say_done;
use super::umount::find;
use crate::attachments::FileId;
use crate::control;
use crate::failure::{Failure, Outcome, print_error};

/// Have a new process of the installed program take mounted volumes over, without unmounting them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory a volume is mounted at, its name, its URI, or the file or block device that it is; all, if left out
    #[arg(value_name = "DIR|NAME")]
    what: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  longhaul upgrade
  longhaul upgrade backup

Programs that use the volume wait meanwhile, and notice nothing else: what they wrote is flushed first, and the volume stays \
reserved. The new process uses what the volume has grown by, and the block device is as large then.";

/// How long it is waited for an answer: what is not flushed may have a long way.
const PATIENCE: Duration = Duration::from_secs(u32::MAX as u64);

/// How often it is looked for the new process.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Upgrades one, or all that can be.
pub async fn run(args: Args) -> Outcome {
    if let Some(what) = args.what {
        let status = find(&what).await?.1;
        return upgrade(status.file, status.pid, &status.attachment).await;
    }
    let found = look().await;
    let none = || Failure::new("no volume is mounted").hint("`longhaul status` shows what runs");
    let none = found.lacks(none());
    let mounted = found.answered.into_iter().map(|(_, status)| status);
    let mounted: Vec<_> = mounted.filter(|status| status.device.is_some()).collect();
    if mounted.is_empty() {
        return Err(none);
    }
    let mut last = Ok(());
    for status in mounted {
        if let Err(why) = upgrade(status.file, status.pid, &status.attachment).await {
            print_error(&format_args!("longhaul: {why}"));
            last = Err(Failure::already_printed(false));
        }
    }
    last
}

async fn upgrade(file: Option<PathBuf>, pid: u32, uri: &str) -> Outcome {
    let Some((control, _)) = attachment(file.as_deref(), |its| its == pid).await else {
        return Err(Failure::new(format!("{uri}: its process has ended meanwhile")));
    };
    let before = program(pid);
    let asked = control::ask(&control, "hand-over", PATIENCE).await;
    asked.map_err(|why| why.into_failure(&control).within(uri))?;
    loop {
        if let Some((_, status)) = attachment(file.as_deref(), |its| its != pid).await {
            return told(uri, status, before);
        }
        if !has_keeper(file.as_deref()) {
            return Err(Failure::new(format!("{uri}: no process could take it over")).hint(
                "its log in the state directory says why; what was written was flushed before",
            ));
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Says which process serves the mount now: a failure if it is not of the installed program.
fn told(
    uri: &str,
    AttachStatus { pid, refused, .. }: AttachStatus,
    before: Option<FileId>,
) -> Outcome {
    let is_the_same = before.is_some() && program(pid) == before;
    let same = if is_the_same { ", of the same program as before" } else { "" };
    match refused {
        None => say_done(&format!("{uri} is served by process {pid}{same}")),
        Some(why) => {
            Err(Failure::new(format!("{uri}: the program of before goes on, as process {pid}"))
                .because(why)
                .hint("nothing is lost; the log in the state directory says more"))
        }
    }
}

/// Which file the program of a process is (proc(5)); `None` if the system does not tell.
fn program(pid: u32) -> Option<FileId> {
    fs::metadata(format!("/proc/{pid}/exe")).ok().map(|found| FileId::of(&found))
}

/// The attachment that serves `file`, if its process is one that is meant.
async fn attachment(
    file: Option<&Path>,
    is_meant: impl Fn(u32) -> bool,
) -> Option<(PathBuf, AttachStatus)> {
    let mut all = attachments().await.into_iter();
    all.find(|(_, status)| status.file.as_deref() == file && is_meant(status.pid))
}

/// Whether the keeper of the mount is there, which starts the new process.
fn has_keeper(file: Option<&Path>) -> bool {
    let socket = file.and_then(|file| {
        let name = file.file_name()?.to_str()?;
        Some(kept::socket_in(file.parent()?, name))
    });
    socket.is_some_and(|socket| kept::is_kept(&socket))
}
