//! `longhaul upgrade`: a new process takes a mount over.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::attach::kept;
use super::attached::{AttachStatus, attachments, look};
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

/// How often it is looked for the new process.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often it is said what is waited for.
const TELL_EVERY: Duration = Duration::from_secs(5);

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
    let mut told = Instant::now();
    loop {
        let all = attachments().await.into_iter().map(|(_, status)| status);
        let mut others = all.filter(|status| status.pid != before);
        if let Some(status) = others.find(|status| status.file.as_deref() == file) {
            return Ok(status);
        }
        if !has_keeper(file) {
            return Err(Failure::new(format!("{uri}: no process serves it any more"))
                .because("it was ended meanwhile, or no process could take it over"));
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            print_error(&format_args!(
                "longhaul: {uri} is served by nobody at the moment: the process that is to take it over is waited for; its log in \
                 the state directory says more"
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

/// Whether the keeper of the mount is there, which starts the new process.
fn has_keeper(file: Option<&Path>) -> bool {
    let socket = file.and_then(|file| {
        let name = file.file_name()?.to_str()?;
        Some(kept::socket_in(file.parent()?, name))
    });
    socket.is_some_and(|socket| kept::is_kept(&socket))
}
