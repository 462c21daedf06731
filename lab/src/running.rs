//! Child processes that never outlive their purpose, whatever ends the program.
//!
//! A signal ends the children; whoever waits for one sees that and returns, so that everything that was
//! set up is taken down on the way out as always.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::signal::unix::{SignalKind, signal};

/// How long a child may take to end when asked to, before it is killed.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why a child could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot start {program}: {why}")]
    Start { program: String, why: std::io::Error },
    #[error("cannot wait for {program}: {why}")]
    Wait { program: String, why: std::io::Error },
    #[error("{program}: {status}")]
    Failed { program: String, status: ExitStatus },
    #[error("interrupted")]
    Interrupted,
}

struct Running {
    interrupted: bool,
    /// Children that were not waited for, so that no other process can have their numbers.
    pids: Vec<Pid>,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { interrupted: false, pids: Vec::new() });

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on SIGINT, SIGTERM and SIGHUP end the children instead of this process.
pub(crate) fn catch_signals() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(entered);
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                end_all();
            }
        });
    });
    Ok(())
}

/// Whether a signal has asked for the end.
pub(crate) fn interrupted() -> bool {
    running().interrupted
}

fn end_all() {
    let mut running = running();
    running.interrupted = true;
    for pid in &running.pids {
        // It may have ended by itself meanwhile.
        let _ = kill_process(*pid, Signal::TERM);
    }
}

/// A running child; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Job {
    program: String,
    child: Child,
    /// Until it was waited for its number is its own.
    pid: Option<Pid>,
}

impl Job {
    /// Starts a program.
    pub(crate) fn start(command: &mut Command) -> Result<Self, Error> {
        let program = format!("{command:?}");
        let mut running = running();
        if running.interrupted {
            return Err(Error::Interrupted);
        }
        match command.spawn() {
            Ok(child) => {
                let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                running.pids.extend(pid);
                Ok(Self { program, child, pid })
            }
            Err(why) => Err(Error::Start { program, why }),
        }
    }

    /// What it prints, if it was started with a pipe for that; once.
    pub(crate) const fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Its number, which is its own until it was waited for.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, if it was not waited for.
    pub(crate) fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        self.pid.map_or(Ok(()), |pid| kill_process(pid, signal))
    }

    /// Ends it at once: nothing that it holds is worth anything.
    pub(crate) fn kill(&mut self) {
        let _ = self.signal(Signal::KILL);
        let _ = self.wait();
    }

    /// Waits for it to end.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus, Error> {
        let failed = |why| Error::Wait { program: self.program.clone(), why };
        if let Some(pid) = self.pid.take() {
            // It stays a zombie until it is forgotten, so that a signal cannot hit a stranger.
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let waited = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), ended));
            running().pids.retain(|other| *other != pid);
            waited.map_err(|errno| failed(errno.into()))?;
        }
        let status = self.child.wait().map_err(failed)?;
        if running().interrupted { Err(Error::Interrupted) } else { Ok(status) }
    }

    /// Waits for it to end well.
    pub(crate) fn succeed(&mut self) -> Result<(), Error> {
        let status = self.wait()?;
        let program = self.program.clone();
        if status.success() { Ok(()) } else { Err(Error::Failed { program, status }) }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let Some(pid) = self.pid else { return };
        let start = Instant::now();
        // Some servers ignore the first, which is why there is a second.
        let _ = kill_process(pid, Signal::TERM);
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > PATIENCE {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        running().pids.retain(|other| *other != pid);
    }
}

/// Runs a program to its end and gives back what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String, Error> {
    let mut printed = String::new();
    lines(command, |line| {
        printed.push_str(line);
        printed.push('\n');
    })?;
    Ok(printed)
}

/// Runs a program to its end and hands out each line that it prints when it comes.
pub(crate) fn lines(command: &mut Command, mut each: impl FnMut(&str)) -> Result<(), Error> {
    let mut job = Job::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    if let Some(stdout) = job.stdout() {
        let program = job.program.clone();
        let failed = |why| Error::Wait { program: program.clone(), why };
        for line in BufReader::new(stdout).split(b'\n') {
            each(&String::from_utf8_lossy(&line.map_err(failed)?));
        }
    }
    job.succeed()
}
