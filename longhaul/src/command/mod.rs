//! One file per command of the program.

use std::io::{self, Write};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{OrFail, Outcome};
use crate::stop::{Stop, Stopper};

pub mod attach;
pub mod copy;
pub mod discover;
pub mod info;
pub mod key;
mod options;
pub mod serve;

/// Writes a line on standard output now: a script may be waiting for it.
fn say(line: &str) -> Outcome {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .or_fail(|| "cannot write to standard output".to_owned())
}

/// A stop that SIGTERM and SIGINT call for. A second signal ends the program at once.
fn stop_on_signals() -> Outcome<Stop> {
    let listen = |kind| signal(kind).or_fail(|| "cannot listen for signals".to_owned());
    let mut term = listen(SignalKind::terminate())?;
    let mut int = listen(SignalKind::interrupt())?;
    let (stopper, stop) = Stopper::new();
    tokio::spawn(async move {
        either(&mut term, &mut int).await;
        tracing::info!("stopping");
        stopper.call();
        either(&mut term, &mut int).await;
        eprintln!("longhaul: ended by a second signal; what was not flushed may be lost");
        std::process::exit(1);
    });
    Ok(stop)
}

async fn either(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
