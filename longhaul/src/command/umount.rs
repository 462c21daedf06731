//! `longhaul umount`: the end of what `mount` has begun, and what has become of what was written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use tokio::task::spawn_blocking;

use super::attached::{AttachStatus, Found, PATIENCE, attachments};
use super::next_process::{is_kept_mount, look_until_served};
use super::say_done;
use crate::block_devices::{
    devices_over, file_of, mounted_at, mounts_elsewhere, mounts_of, users_of,
};
use crate::control::{self, AskError};
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::front::{kernel_device, nbd};
use crate::printable::{OneLine, Quoted as _, Shown as _};
use crate::remembered;
use crate::uri::Uri;

/// Unmount a volume, flush it and detach it, and say whether all that was written is on it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory it is mounted at, its name, its URI, or the file or block device that it is
    #[arg(value_name = "DIR|NAME")]
    what: String,
}

const EXAMPLES: &str = "\
Examples:
  longhaul umount /mnt/backup
  longhaul umount backup

Exit code 0: everything that was written is durable on the volume. It waits for that however long it takes; an interruption
leaves the process in the background to it. A server that is away is waited for ten seconds if a journal keeps the rest: exit
code 1 then, and the next `mount` sends it.";

/// How often it is said what the end waits for.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// The end may have gigabytes to send over a thin line, or wait for a server.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Ends it.
pub async fn run(args: Args) -> Outcome {
    let (address, status) = find(&args.what).await?;
    end(&address).await?;
    let uri = &status.attachment;
    if status.read_only {
        return say_done(&format!("{uri} is detached; it was attached to be read only"));
    }
    let less = status.volume.trouble.map_or_else(String::new, |trouble| {
        format!(", but not on all that it is made of: it was {trouble}")
    });
    say_done(&format!("{uri} is detached; all that was written is on it{less}"))
}

/// What to end.
#[derive(Clone, Debug)]
pub(super) enum AttachmentAddress {
    /// The attachment that serves this file, and all that was made of it.
    File(PathBuf),
    /// The one that listens here, of which nothing was made.
    Control(PathBuf),
}

/// The files of mounts whose process has ended, and for which another one is being started.
pub(super) fn waiting_for_a_process<'a>(
    answered: impl Iterator<Item = &'a AttachStatus>,
) -> Vec<PathBuf> {
    let served: Vec<_> = answered.filter_map(|status| status.file.as_deref()).collect();
    let dir = own_dir().and_then(|dir| std::fs::read_dir(dir).ok());
    let files = dir.into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|file| !served.contains(&&**file) && is_kept_mount(file)).collect()
}

/// Refuses a volume that this machine has attached: a second one would only be told that somebody has it.
pub(super) async fn refuse_if_attached(uri: &Uri) -> Outcome {
    let uri = uri.to_string();
    match attachments().await.into_iter().find(|(_, status)| status.attachment == uri) {
        None => Ok(()),
        Some((_, status)) => {
            Err(Failure::new(format!("{uri} is attached already: {}", status.place()))
                .hint(format!("`longhaul umount {}` ends that", status.short())))
        }
    }
}

pub(super) async fn find(what: &str) -> Outcome<(AttachmentAddress, AttachStatus)> {
    let wanted = Wanted::new(what);
    let is_wanted = |status: &AttachStatus| wanted.is(status);
    let mut found = look_until_served(&wanted.what, &wanted.mounts, is_wanted).await;
    let its = found.answered.iter().position(|(_, status)| wanted.is(status));
    let Some((control, status)) = its.map(|its| found.answered.swap_remove(its)) else {
        return Err(wanted.end_what_is_left(found).await?);
    };
    let address =
        status.file.clone().map_or(AttachmentAddress::Control(control), AttachmentAddress::File);
    Ok((address, status))
}

/// What somebody has named an attachment by.
struct Wanted<'a> {
    what: &'a str,
    path: PathBuf,
    /// The file that the volume is, if `what` is its mount or its block device.
    file: PathBuf,
    /// Files of mounts that it may be.
    mounts: Vec<PathBuf>,
}

impl<'a> Wanted<'a> {
    fn new(what: &'a str) -> Self {
        let path = std::fs::canonicalize(what).or_else(|_| std::path::absolute(what));
        let path = path.unwrap_or_default();
        // A directory that was not found may still be one whose mount does not answer.
        let file =
            mounted_at(&path).and_then(|mount| file_of(&mount.source)).or_else(|| file_of(&path));
        let file = file.unwrap_or_else(|| path.clone());
        let named = own_file(what).filter(|_| remembered::name(what).is_ok());
        let mounts = named.into_iter().chain([file.clone()]).filter(|file| is_own(file)).collect();
        Self { what, path, file, mounts }
    }

    fn is(&self, status: &AttachStatus) -> bool {
        status.file.as_deref() == Some(&*self.file)
            || status.name.as_deref() == Some(self.what)
            || status.attachment == self.what
            || [self.what, &nbd::uri(&self.path)].contains(&&*status.socket)
    }

    /// Takes away what a process that was killed has left of it; why there is nothing that could be found.
    async fn end_what_is_left(self, found: Found) -> Outcome<Failure> {
        let none = Failure::new(format!("nothing that Longhaul has attached is `{}`", self.what))
            .hint("`longhaul status` shows what is attached; `umount` of the system unmounts what others have mounted");
        if found.silent.is_empty() {
            for file in self.mounts {
                let cleared = spawn_blocking(move || clear(&file)).await;
                cleared.or_fail(|| "cannot unmount".to_owned())??;
            }
        }
        Ok(found.lacks(none))
    }
}

/// The file by which `mount` makes a block device of the volume with this name.
pub(super) fn own_file(name: &str) -> Option<PathBuf> {
    Some(own_dir()?.join(name))
}

/// The directory of those files.
pub(super) fn own_dir() -> Option<PathBuf> {
    control::runtime_dir().map(|dir| dir.join("volumes"))
}

fn is_own(file: &Path) -> bool {
    file.parent() == own_dir().as_deref()
}

/// Takes away what a process has left that was killed, and says so: there is no success.
fn clear(file: &Path) -> Outcome {
    let is_left = mounted_at(file).is_some() || !devices_over(file).is_empty();
    if !is_left {
        return Ok(());
    }
    let devices = devices_over(file);
    // A device that is abandoned may be known no more, and what is mounted of it stays.
    let mounted: Vec<_> = devices.iter().flat_map(|device| mounts_of(device)).collect();
    // Without a server the kernel would wait for it.
    for device in &devices {
        let ended = kernel_device::abandon(device);
        ended.or_fail(|| format!("cannot end {}", device.shown()))?;
    }
    release(file)?;
    for mount in mounted {
        let _ = unmount(&mount.place, UnmountFlags::DETACH);
    }
    let _ = unmount(file, UnmountFlags::DETACH);
    let what = "what was left of the volume is unmounted; what had not been flushed is lost";
    Err(Failure::new(what)
        .because("the process that served it was killed")
        .hint(
            "what was flushed is in its journal, if it has one: the next `longhaul mount NAME` sends it. Without a journal check \
             the file system before it is used again: `longhaul mount NAME --device`, then `fsck`",
        ))
}

/// Unmounts, has everything flushed, and waits for the verdict: that of the process that serves the attachment by then.
pub(super) async fn end(address: &AttachmentAddress) -> Outcome {
    let mut unanswered = None;
    loop {
        let control = match address {
            AttachmentAddress::Control(control) if unanswered.is_none() => Some(control.clone()),
            AttachmentAddress::Control(_) => None,
            AttachmentAddress::File(file) => serving(file).await,
        };
        let Some(control) = control else {
            return Err(unanswered.unwrap_or_else(|| Failure::new("nothing serves it any more")));
        };
        let telling = async {
            loop {
                tokio::time::sleep(TELL_EVERY).await;
                tell_of_progress(&control).await;
                if let AttachmentAddress::File(file) = address {
                    tell_of_mounts_elsewhere(file);
                    // Until it is unmounted, which may take long, it is not to be handed over.
                    let _ = control::ask(&control, "expect-detach", PATIENCE).await;
                }
            }
        };
        tokio::select! {
            ended = unmounted_and_detached(address, &control) => match ended? {
                Ended::Detached => return Ok(()),
                Ended::Unanswered(why) => unanswered = Some(why),
            },
            () = telling => unreachable!("it never ends"),
        }
    }
}

/// Where the process is asked that serves this file; `None` if none does, nor is about to.
async fn serving(file: &Path) -> Option<PathBuf> {
    let is_its = |status: &AttachStatus| status.file.as_deref() == Some(file);
    let found = look_until_served(&file.shown(), &[file.to_owned()], is_its).await;
    found.answered.into_iter().find(|(_, status)| is_its(status)).map(|(control, _)| control)
}

/// What became of an attachment that was told to end.
enum Ended {
    Detached,
    /// Its process has ended before it could say. Another one may serve what it was asked to detach.
    Unanswered(Failure),
}

async fn unmounted_and_detached(address: &AttachmentAddress, control: &Path) -> Outcome<Ended> {
    if let AttachmentAddress::File(file) = address {
        // Once nothing is mounted any more it would end by itself, and its verdict would be in its log only.
        match control::ask(control, "expect-detach", PATIENCE).await {
            Ok(_) => {}
            Err(why @ (AskError::Refused(_) | AskError::Silent)) => {
                return Err(why.into_failure(control));
            }
            Err(why) => return Ok(Ended::Unanswered(why.into_failure(control))),
        }
        let file = file.clone();
        // The kernel writes what it has first, and cannot be kept from waiting for the server with that.
        let released = spawn_blocking(move || release(&file)).await;
        released.or_fail(|| "cannot unmount".to_owned())??;
    }
    match control::ask(control, "detach", FOR_EVER).await {
        Ok(_) => Ok(Ended::Detached),
        Err(AskError::Refused(why)) => Err(Failure::new(why)),
        Err(why) => Ok(Ended::Unanswered(Failure::new("what was written may not all be on the volume")
            .because(why)
            .hint("the process that served it has ended before it could say: its log in the state directory says more"))),
    }
}

/// Says what the end waits for.
async fn tell_of_progress(control: &Path) {
    let Ok(answer) = control::ask(control, "status", PATIENCE).await else { return };
    if let Ok(AttachStatus { attachment, volume, .. }) = serde_json::from_str(&answer) {
        print_error(&format_args!(
            "longhaul: {attachment}: {}; {}",
            volume.pending(),
            volume.state
        ));
    }
}

/// Says who else has it mounted: to unmount it here does not end that.
fn tell_of_mounts_elsewhere(file: &Path) {
    for device in devices_over(file) {
        for (pid, name, mount) in mounts_elsewhere(&device) {
            let (name, place) = (OneLine(name), mount.place.quoted());
            print_error(&format_args!(
                "longhaul: it is still mounted in another mount namespace, that of process {pid} ({name}): end that, or \
                 `nsenter -t {pid} -m umount {place}`"
            ));
        }
    }
}

/// Unmounts all that was made of `file`, and takes its block devices away.
fn release(file: &Path) -> Outcome {
    for device in devices_over(file) {
        for mount in mounts_of(&device) {
            let what = || format!("cannot unmount {}", mount.place.shown());
            match unmount(&mount.place, UnmountFlags::empty()) {
                Ok(()) => {}
                Err(why @ Errno::BUSY) => {
                    let users = users_of(&mount.place).join(", ");
                    let hint = match &*users {
                        "" => "it stays mounted; `fuser -vm DIR` says what uses it".to_owned(),
                        users => {
                            format!("it stays mounted, and is used by {users}: end that first")
                        }
                    };
                    return Err(Failure::new(what()).because(why).hint(hint));
                }
                Err(why) => return Err(Failure::new(what()).because(why)),
            }
        }
        // One that was mounted is gone by now.
        if devices_over(file).contains(&device)
            && let Err(why) = kernel_device::detach(&device)
            && devices_over(file).contains(&device)
        {
            let what = format!("cannot detach {}", device.shown());
            return Err(Failure::new(what)
                .because(why)
                .hint("a program has it open: end that first"));
        }
    }
    Ok(())
}
