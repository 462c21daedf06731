//! How an attachment ends: by a signal, because somebody asks it to, or because what was made of it is gone.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::detach::Detach;
use super::status::StatusReporter;
use crate::block_devices::{devices_over, mounts_of, users_of};
use crate::durable::make_directories;
use crate::failure::{OrFail as _, Outcome, print_error};
use crate::front::kernel_device::{self, Driver};
use crate::printable::Shown as _;
use crate::stop::Stop;

/// How often it is tried to unmount what is in use.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// How often it is said that something is in use.
const SAY_EVERY: Duration = Duration::from_secs(30);

/// An attachment that goes on without the terminal it was started from.
#[derive(Clone, Debug)]
pub(in crate::command) struct Background {
    /// By which it is known.
    pub(in crate::command) name: String,
    /// A block device is made of it, and it lives as long as that.
    pub(in crate::command) is_device: bool,
    /// Where its log goes.
    pub(in crate::command) log: PathBuf,
}

impl Background {
    /// Opens the log, which is made if it is missing.
    pub(in crate::command) fn open_log(&self) -> Outcome<File> {
        let what = || format!("cannot write the log {}", self.log.shown());
        if let Some(dir) = self.log.parent() {
            make_directories(dir, 0o700).or_fail(what)?;
        }
        OpenOptions::new().append(true).create(true).mode(0o600).open(&self.log).or_fail(what)
    }

    /// Begins a session of its own, for which the end of the terminal means nothing, and opens the log. Before the caller is
    /// told that all is well: he may end at once, and the terminal with him. Errors still go to the terminal.
    pub(in crate::command) fn leave_session(&self) -> Outcome<Left> {
        let log = self.open_log()?;
        let discard = File::options().read(true).write(true).open("/dev/null");
        let discard = discard.or_fail(|| "cannot open /dev/null".to_owned())?;
        // Who leads a session already, as a service does, need not begin one.
        let _ = setsid();
        Ok(Left { log, discard })
    }
}

/// What an attachment writes to that has left its session.
pub(in crate::command) struct Left {
    log: File,
    discard: File,
}

impl Left {
    /// Lets go of the terminal, and of the caller, who has been told that all is well.
    pub(in crate::command) fn close_terminal(&self) -> Outcome {
        let moved = dup2_stdin(&self.discard)
            .and_then(|()| dup2_stdout(&self.discard))
            .and_then(|()| dup2_stderr(&self.log));
        moved.or_fail(|| "cannot leave the terminal".to_owned())
    }
}

/// Returns when the attachment is to end. One of which a block device was made lives as long as that:
/// a signal has it unmounted first.
pub(super) async fn until_end(
    is_device: bool,
    reporter: &StatusReporter,
    detach: &Detach,
    mut stop: Stop,
) {
    let (true, Some(file)) = (is_device, reporter.file.as_deref()) else {
        tokio::select! {
            () = stop.called() => {}
            () = detach.asked() => {}
        }
        return;
    };
    let unused = async {
        detach.asked().await;
        if reporter.clients.count() > 0 {
            std::future::pending::<()>().await;
        }
    };
    let gone = async {
        reporter.clients.gone().await;
        detach.await_expected().await;
    };
    let released = async {
        stop.called().await;
        release(file, reporter).await;
    };
    tokio::select! {
        () = gone => {}
        () = unused => {}
        () = released => {}
    }
}

/// Unmounts what was made of the file, by processes of their own: this one has to answer them. What is in use stays, and
/// the volume with it; all that was written so far is sent.
async fn release(file: &Path, reporter: &StatusReporter) {
    let mut said: Option<Instant> = None;
    while reporter.clients.count() > 0 {
        for device in devices_over(file) {
            let mounts = mounts_of(&device);
            for mount in &mounts {
                if succeeds(Command::new("umount").arg(&mount.place)).await {
                    continue;
                }
                succeeds(Command::new("sync").arg("-f").arg(&mount.place)).await;
                if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                    said = Some(Instant::now());
                    let users = users_of(&mount.place).join(", ");
                    print_error(&format_args!(
                        "longhaul: {} is in use ({users}): what was written is flushed, and {} stays attached until it is unmounted; \
                         a second signal ends it at once",
                        mount.place.shown(),
                        reporter.uri
                    ));
                }
            }
            if mounts_of(&device).is_empty() {
                detach(&device).await;
            }
        }
        if reporter.clients.count() > 0 {
            sleep(TRY_EVERY).await;
        }
    }
}

/// Has the device go once nobody has it open any more: the last of them is a program of the system.
async fn detach(device: &Path) {
    let driver = Driver::of(device);
    if driver == Driver::Loop {
        succeeds(Command::new("losetup").arg("--detach").arg(device)).await;
        return;
    }
    let told = device.to_owned();
    let told = spawn_blocking(move || match driver {
        Driver::Ublk => kernel_device::detach(&told),
        _ => kernel_device::go_with_its_mount(&told),
    });
    if !matches!(told.await, Ok(Ok(()))) {
        tracing::warn!(device = %device.shown(), "the kernel does not end the device when it is closed");
    }
    if driver == Driver::Nbd {
        succeeds(Command::new("blockdev").arg("--getsize64").arg(device)).await;
    }
}

async fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().await.is_ok_and(|status| status.success())
}
