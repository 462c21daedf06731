//! The process that serves a mount next, where that of before has ended.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::attach::kept;
use super::attached::{AttachStatus, Found, look};
use crate::control;
use crate::failure::print_error;

/// How often it is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How often it is said what is waited for.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// What there is, once no process is about to take the one over that is wanted: one of these mounts, if it is any.
pub(super) async fn look_until_served(
    what: &impl Display,
    mounts: &[PathBuf],
    is_wanted: impl Fn(&AttachStatus) -> bool,
) -> Found {
    let begun = Instant::now();
    let mut told = begun;
    loop {
        let found = look().await;
        let is_there = found.answered.iter().any(|(_, status)| is_wanted(status));
        let is_late = begun.elapsed() >= TELL_EVERY;
        let is_silent = mounts.iter().any(|file| is_served_by(file, &found.silent, is_late));
        if is_there || is_silent || !mounts.iter().any(|file| is_kept_mount(file)) {
            return found;
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            tell(what, mounts);
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Says what is waited for, and how to end that: a process without a keeper that hangs is ended by nobody else.
fn tell(what: &impl Display, mounts: &[PathBuf]) {
    let process = mounts.iter().find_map(|file| kept::process_of(&socket_of(file)?));
    let stopped = mounts.iter().find_map(|file| stopped_process(file));
    let (which, ends) = match stopped.or(process) {
        Some(pid) if stopped.is_some() => (
            format!("process {pid}, which is stopped,"),
            format!("`kill -CONT {pid}` lets it go on; "),
        ),
        Some(pid) => (
            format!("process {pid}, which is to take it over,"),
            format!("`kill -KILL {pid}` ends it if it hangs, and "),
        ),
        None => ("the process that is to take it over".to_owned(), String::new()),
    };
    print_error(&format_args!(
        "longhaul: {what} is served by nobody at the moment: {which} is waited for; {ends}its log in the state directory says more"
    ));
}

/// The process that somebody has stopped of those by which the mount over this file is to go on: the one that is to serve it, and
/// the one that starts that.
pub(super) fn stopped_process(file: &Path) -> Option<u32> {
    let socket = socket_of(file)?;
    // The keeper only where there is no other: one that waits for a process takes no connection meanwhile.
    let process = kept::process_of(&socket).or_else(|| kept::keeper_of(&socket));
    process.filter(|pid| is_stopped(*pid))
}

/// By proc_pid_stat(5): the state stands behind the name, which may hold anything.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Whether a process keeps the mount over this file, whose server may have ended, or one is about to serve it.
pub(super) fn is_kept_mount(file: &Path) -> bool {
    socket_of(file).is_some_and(|socket| kept::is_kept(&socket))
}

/// Whether the process that serves the mount over this file is one of those that listen at these control sockets. Where nothing
/// tells which one that is, as of one of an older version, it may be any of them, if it has been waited for.
pub(super) fn is_served_by(file: &Path, controls: &[PathBuf], is_late: bool) -> bool {
    let process = socket_of(file).and_then(|socket| kept::process_of(&socket));
    match process.zip(control::runtime_dir()) {
        Some((pid, dir)) => controls.contains(&control::of_attachment(&dir, pid)),
        None => is_late && !controls.is_empty(),
    }
}

/// The socket of its keeper.
fn socket_of(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.to_str()?;
    Some(kept::socket_in(file.parent()?, name))
}
