//! `longhaul upgrade`: a new process takes a mount over.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::attached::{AttachStatus, look};
use super::next_process::look_until_served;
use super::say_done;
use super::umount::find;
use crate::attachments::FileId;
use crate::control::{self, AskError};
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

/// Upgrades one, or all that can be.
pub async fn run(args: Args) -> Outcome {
    if let Some(what) = args.what {
        return upgrade(find(&what).await?.1).await;
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
        if let Err(why) = upgrade(status).await {
            print_error(&format_args!("longhaul: {why}"));
            last = Err(Failure::already_printed(false));
        }
    }
    last
}

/// Has the process that serves the attachment hand it over, and says what became of that.
async fn upgrade(AttachStatus { file, mut pid, attachment: uri, .. }: AttachStatus) -> Outcome {
    let file = file.as_deref();
    loop {
        let before = program(pid);
        let is_handed_over = hand_over(pid).await.map_err(|why| why.within(&uri))?;
        let next = successor(&uri, file, pid).await;
        if is_handed_over {
            let hint =
                "its log in the state directory says why; what was written was flushed before";
            return told(&uri, next.map_err(|why| why.hint(hint))?, before);
        }
        pid = next?.pid;
    }
}

/// Whether a process has handed its attachment over; false if it ended before it could say, as it does when it was killed, or
/// has just handed over to somebody else's order: then another one is to be asked.
async fn hand_over(pid: u32) -> Outcome<bool> {
    let Some(dir) = control::runtime_dir() else { return Ok(false) };
    let control = control::of_attachment(&dir, pid);
    match control::ask(&control, "hand-over", PATIENCE).await {
        Ok(_) => Ok(true),
        Err(why @ (AskError::Refused(_) | AskError::Silent)) => Err(why.into_failure(&control)),
        Err(_) => Ok(false),
    }
}

/// The process that goes on with the mount, once it serves it.
async fn successor(uri: &str, file: Option<&Path>, before: u32) -> Outcome<AttachStatus> {
    let is_next = |status: &AttachStatus| status.pid != before && status.file.as_deref() == file;
    let mounts: Vec<_> = file.map(Path::to_owned).into_iter().collect();
    let mut found = look_until_served(&uri, &mounts, is_next).await;
    let next = found.answered.iter().position(|(_, status)| is_next(status));
    let Some(next) = next else {
        let none = Failure::new(format!("{uri}: no process serves it any more"));
        return Err(
            found.lacks(none.because("it was ended meanwhile, or no process could take it over"))
        );
    };
    Ok(found.answered.swap_remove(next).1)
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
