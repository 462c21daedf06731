//! One file per command of the program.

use std::io::{self, Write};
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{OrFail, Outcome};
use crate::stop::{Stop, Stopper};

pub mod attach;
pub mod check;
pub mod copy;
pub mod discover;
pub mod identity;
pub mod info;
pub mod key;
mod options;
pub mod reload;
pub mod serve;
pub mod status;
pub mod tune;

/// Writes a line on standard output now: a script may be waiting for it.
fn say(line: &str) -> Outcome {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .or_fail(|| "cannot write to standard output".to_owned())
}

/// A stop that SIGTERM and SIGINT call for, and the end of the terminal. A second signal ends the
/// program at once.
fn stop_on_signals() -> Outcome<Stop> {
    stop_on(&[SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()])
}

/// The same, where the end of the terminal, or what is called so, means something else.
fn stop_on_termination() -> Outcome<Stop> {
    stop_on(&[SignalKind::terminate(), SignalKind::interrupt()])
}

fn stop_on(kinds: &[SignalKind]) -> Outcome<Stop> {
    let kinds = kinds.iter().copied();
    let listening: io::Result<Vec<Signal>> = kinds.map(signal).collect();
    let mut signals = listening.or_fail(|| "cannot listen for signals".to_owned())?;
    let (stopper, stop) = Stopper::new();
    tokio::spawn(async move {
        any(&mut signals).await;
        tracing::info!("stopping");
        stopper.call();
        any(&mut signals).await;
        eprintln!("longhaul: ended by a second signal; what was not flushed may be lost");
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
