//! The process in the background, as the one that starts it sees it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::OneLine;
use crate::stop::Stop;

/// A server that takes requests.
pub(super) struct Server(Child);

impl Server {
    /// Starts this program once more, which serves the volume at `file`. It has the terminal until then, asks for
    /// secrets, and says itself why it cannot.
    pub(super) async fn start(
        mut arguments: Vec<OsString>,
        file: &Path,
        name: Option<&str>,
    ) -> Outcome<Self> {
        let what = || "cannot start the process in the background".to_owned();
        let program = std::env::current_exe().or_fail(what)?;
        let rest = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
        arguments.splice(rest..rest, ["--serve-at".into(), file.as_os_str().to_owned()]);
        if let Some(name) = name {
            arguments.splice(rest..rest, ["--name".into(), name.into()]);
        }
        let mut command = Command::new(program);
        // The first word is the name of the program.
        command.args(&arguments[1..]).stdout(Stdio::piped());
        let mut child = command.spawn().or_fail(what)?;
        let output = child.stdout.take().map(BufReader::new).ok_or_else(|| Failure::new(what()))?;
        let line = output.lines().next_line().await.or_fail(what)?;
        match line {
            Some(line) if line.starts_with("ready ") => Ok(Self(child)),
            Some(line) => Err(Failure::new(what()).because(OneLine(line).to_string())),
            None => {
                let status = child.wait().await.or_fail(what)?;
                Err(Failure::already_printed(status.code() == Some(2)))
            }
        }
    }

    /// Ends it: what was to be made of it cannot be made.
    pub(super) async fn end(mut self) {
        self.signal();
        if let Err(why) = self.0.wait().await {
            tracing::warn!(%why, "cannot wait for the process in the background");
        }
    }

    /// Waits for its end, which it is told to bring about when `stop` is called: it unmounts, waits for who uses what is
    /// mounted, and flushes. What comes of it.
    pub(super) async fn wait(mut self, mut stop: Stop) -> Outcome {
        let what = || "cannot wait for the process in the background".to_owned();
        let ended = tokio::select! {
            status = self.0.wait() => Some(status),
            () = stop.called() => None,
        };
        let status = match ended {
            Some(status) => status,
            None => {
                self.signal();
                self.0.wait().await
            }
        };
        let status = status.or_fail(what)?;
        match status.success() {
            true => Ok(()),
            false => {
                Err(Failure::new(format!("the process in the background has failed ({status})"))
                    .hint("its log in the state directory says why"))
            }
        }
    }

    fn signal(&self) {
        if let Some(pid) = self.0.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}
