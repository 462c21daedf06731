//! A program that runs beside a test: started, waited for, and ended as a user would end it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Longer than anything takes on a loaded machine; only a test that fails waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);

/// The program under test.
pub(crate) const LONGHAUL: &str = env!("CARGO_BIN_EXE_longhaul");

/// A running program whose output is read line by line.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    /// Starts it; what it says on standard error counts as output too if `command` redirects it.
    #[allow(dead_code, reason = "not every test starts it so")]
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::start_as_it_is(command.stdin(Stdio::null()))
    }

    /// The same, with the standard input that `command` names.
    pub(crate) fn start_as_it_is(command: &mut Command) -> Self {
        isolate(command);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines }
    }

    /// Its next line; `None` if it ended, or says nothing more.
    pub(crate) fn line(&self) -> Option<String> {
        self.lines.recv_timeout(PATIENCE).ok()
    }

    /// Its process.
    #[allow(dead_code, reason = "not every test looks at it")]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn stop(self) -> ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.end()
    }

    /// Waits until it has ended.
    pub(crate) fn end(mut self) -> ExitStatus {
        // Its output ends with it. What does not end may go on to log.
        let last = Instant::now() + PATIENCE;
        while let Ok(_more) =
            self.lines.recv_timeout(last.saturating_duration_since(Instant::now()))
        {}
        assert!(self.lines.try_recv() == Err(TryRecvError::Disconnected), "it does not end");
        self.child.wait().unwrap()
    }

    /// Ends it at once, as a loss of power would.
    #[allow(dead_code, reason = "not every test does")]
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        // It may have ended by itself; the exit status will tell.
        send_signal(rustix::process::Pid::from_child(&self.child), signal);
    }
}

/// Sends a process a signal. One that is stopped by it does nothing any more when this returns.
pub(crate) fn send_signal(process: rustix::process::Pid, signal: rustix::process::Signal) {
    let is_sent = rustix::process::kill_process(process, signal).is_ok();
    let last = Instant::now() + PATIENCE;
    while is_sent && signal == rustix::process::Signal::STOP && does_any_thread_run(process) {
        assert!(Instant::now() < last, "it does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Each thread of a process stops by itself.
fn does_any_thread_run(process: rustix::process::Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    tasks.into_iter().flatten().flatten().any(|task| {
        let status = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_some_and(|state| !"TtZX".contains(state))
    })
}

impl Running {
    /// Sends it a signal again and again while `wait` runs.
    #[allow(dead_code, reason = "not every test does")]
    pub(crate) fn signal_during(&self, signal: rustix::process::Signal, wait: impl FnOnce(&Self)) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let (stop, stopped) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while stopped.recv_timeout(Duration::from_millis(20))
                    == Err(RecvTimeoutError::Timeout)
                {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            });
            wait(self);
            drop(stop);
        });
    }
}

impl Drop for Running {
    /// A test that fails leaves nothing behind.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What a program remembers is that of its test: in its directory, if it has one, unless the test says where. Volumes of
/// one name are other files in other tests.
fn isolate(command: &mut Command) {
    let names = ["LONGHAUL_STATE_DIR", "STATE_DIRECTORY"];
    if command.get_envs().any(|(name, _)| names.iter().any(|own| name == *own)) {
        return;
    }
    if let Some(dir) = command.get_current_dir() {
        let state = std::path::absolute(dir).unwrap().join(".state");
        command.env(names[1], state);
    }
}

/// Runs a program to its end, at most [`PATIENCE`] long; what it printed, and how it ended.
pub(crate) fn run(command: &Command) -> (String, ExitStatus) {
    let mut bounded = Command::new("timeout");
    // What holds writes does not end for the first signal.
    bounded.args(["--kill-after", "10", &PATIENCE.as_secs().to_string()]);
    bounded.arg(command.get_program());
    bounded.args(command.get_args()).stdin(Stdio::null());
    if let Some(dir) = command.get_current_dir() {
        bounded.current_dir(dir);
    }
    for (name, value) in command.get_envs() {
        bounded.env(name, value.unwrap_or_default());
    }
    isolate(&mut bounded);
    let (mut output, writer) = std::io::pipe().unwrap();
    bounded.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = bounded.spawn().unwrap();
    drop(bounded);
    let mut printed = String::new();
    output.read_to_string(&mut printed).unwrap();
    (printed, child.wait().unwrap())
}
