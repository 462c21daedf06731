//! One file per command of the program.

use std::fmt::Display;
use std::io::{self, Write};
use std::task::Poll;
use std::time::Duration;

use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::chain::Chain;
use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::printable::{Json, Printable};
use crate::secret::restore_terminal;
use crate::stop::{Stop, Stopper};
use crate::uri::Uri;

pub mod admin;
pub mod attach;
mod attached;
pub mod cat;
pub mod cd;
pub mod check;
pub mod clients;
pub mod cluster;
pub mod config;
pub mod copy;
pub mod discover;
pub mod doctor;
pub mod enrol;
mod files;
pub mod get;
pub mod help;
pub mod identity;
pub mod info;
pub mod invite;
pub mod journal;
mod journal_args;
pub mod key;
mod lost_unit;
pub mod ls;
pub mod man_pages;
pub mod media;
pub mod mirror;
pub mod mount;
pub(crate) mod named;
mod new_file;
mod next_process;
mod open_metrics;
mod options;
mod output;
pub mod reload;
pub mod replay;
pub mod revoke;
pub mod serve;
mod server_socket;
pub mod status;
pub mod tape;
mod trace_file;
pub mod tune;
pub mod umount;
mod unit_type;
mod units;
mod unsent;
pub mod upgrade;
pub mod volumes;

/// Works on a volume, and closes it whatever comes of that: one that is not closed stays reserved. If both fail, the
/// failure of the work is the answer, and the other one is logged.
async fn closing<T>(chain: Chain, work: impl AsyncFnOnce(&Chain) -> Outcome<T>) -> Outcome<T> {
    let done = work(&chain).await;
    let closed = chain.close().await;
    first_failure(done, closed)
}

/// What comes of `work`, which ends where it stands when the program is told to.
async fn unless_stopped<T>(stop: &Stop, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let ended = || Err(Failure::new("ended by a signal before it was done"));
    stop.unless_called(work).await.unwrap_or_else(ended)
}

/// What to know of a volume that turns out to be read-only before anything was written.
const READ_ONLY: &str = "nothing was written; the medium is write-protected, or the server lets this client only read the volume";

/// Says that what a command has written is gone at its end.
fn tell_of_memory(uri: &Uri) {
    if uri.vanishes() {
        print_error(&format_args!(
            "longhaul: {uri} is gone with this command, and all that was written to it"
        ));
    }
}

fn first_failure<T>(done: Outcome<T>, closed: Outcome) -> Outcome<T> {
    match (done, closed) {
        (Err(first), Err(second)) => {
            tracing::warn!("{}", second.on_one_line());
            Err(first)
        }
        (done, closed) => closed.and(done),
    }
}

/// Writes a line on standard output. Whoever has closed its other end has seen enough and is told no more:
/// that ends the program without a word, as it ends others.
fn say(line: &str) -> Outcome {
    say_text(&Printable(line))
}

/// The same of what was done. That it cannot be said does not undo it.
fn say_done(line: &str) -> Outcome {
    say(line).map_err(|why| why.hint(format!("all was done: {line}")))
}

fn say_text(line: &impl Display) -> Outcome {
    match standard_output().and_then(|()| write(line)) {
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => Err(Failure::output_closed()),
        written => written.or_fail(cannot_write),
    }
}

/// Writes a value as JSON on one line, for scripts.
fn say_json(value: &impl Serialize) -> Outcome {
    let json = serde_json::to_string(value).or_fail(|| "cannot print JSON".to_owned())?;
    say_text(&Json(json))
}

/// Writes a line that a script may be waiting for, of a program that goes on: it must not end unheard.
fn announce(line: &str) -> Outcome {
    write(&Printable(line)).or_fail(cannot_write)
}

/// Fails if the process was started without a standard output. A program that goes on may have nobody to talk to.
pub(crate) fn standard_output() -> io::Result<()> {
    match host::standard_output::was_closed() {
        true => Err(rustix::io::Errno::BADF.into()),
        false => Ok(()),
    }
}

fn write(line: &impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn cannot_write() -> String {
    "cannot write to standard output".to_owned()
}

/// Signals that come within this time of the first are part of the same request to end.
const ONE_KILL: Duration = Duration::from_secs(1);

/// A stop that SIGTERM and SIGINT call for, and the end of the terminal. Another signal, later than [`ONE_KILL`],
/// ends the program at once. Where the end of the terminal is ignored, as under `nohup`, it stays so.
fn stop_on_signals() -> Outcome<Stop> {
    let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
    match SignalKind::hangup() {
        hangup if is_ignored(hangup) => stop_on(&[terminate, interrupt]),
        hangup => stop_on(&[terminate, interrupt, hangup]),
    }
}

/// Whether this process ignores a signal: proc(5), `SigIgn` in /proc/pid/status.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (kind.as_raw_value() - 1)) != 0)
}

/// The same, where the end of the terminal, or what is called so, means something else.
fn stop_on_termination() -> Outcome<Stop> {
    stop_on(&[SignalKind::terminate(), SignalKind::interrupt()])
}

/// Keeps signals from ending the process at once that nobody sends to end it, or that the system sends with an error that is
/// told and dealt with: a write beyond a limit of the size of files (`ulimit -f`) fails as on a full disk. Handlers, and not
/// that they are ignored: what a command starts would inherit that.
pub(crate) fn outlast_stray_signals() -> Outcome {
    use rustix::process::Signal;
    for stray in [Signal::XFSZ, Signal::USR1, Signal::USR2] {
        // Its handler stays when nobody listens.
        let handled = signal(SignalKind::from_raw(stray.as_raw()));
        drop(handled.or_fail(|| "cannot listen for signals".to_owned())?);
    }
    Ok(())
}

fn stop_on(kinds: &[SignalKind]) -> Outcome<Stop> {
    use rustix::process::Signal as Number;
    // The end of a time that was given to the process, or of its share of the processor.
    let limits = [Number::ALARM, Number::XCPU].map(|limit| SignalKind::from_raw(limit.as_raw()));
    let kinds = kinds.iter().copied().chain(limits);
    let listening: io::Result<Vec<Signal>> = kinds.map(signal).collect();
    let mut signals = listening.or_fail(|| "cannot listen for signals".to_owned())?;
    let (stopper, stop) = Stopper::new();
    tokio::spawn(async move {
        any(&mut signals).await;
        tracing::info!("stopping");
        stopper.call();
        // `timeout`, and a shell that ends its job, send the same signal to a process and to its group.
        let _ = tokio::time::timeout(ONE_KILL, async {
            loop {
                any(&mut signals).await;
            }
        })
        .await;
        any(&mut signals).await;
        print_error(&"longhaul: ended by a second signal; what was not flushed may be lost");
        restore_terminal();
        std::process::exit(1);
    });
    Ok(stop)
}

async fn any(signals: &mut [Signal]) {
    std::future::poll_fn(|cx| {
        let mut received = signals.iter_mut().map(|signal| signal.poll_recv(cx));
        match received.any(|received| received.is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}
