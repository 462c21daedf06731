//! The process that keeps a mount: it holds the connection to the kernel and the volume key, and starts the one that serves
//! it, once more when that has ended without unmounting. It serves nothing, so that nothing of it can fail with a request.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::super::attach::Background;
use super::super::attach::kept::{HANDED_OVER, TRY_AGAIN, acknowledge, greet, greeting};
use super::Via;
use crate::control;
use crate::durable::make_directories;
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::front::fuse::{Device, open_device};
use crate::net::peer_process::peer_process;
use crate::printable::Shown as _;
use crate::secret::Secret;
use crate::socket_file::SocketFile;
use crate::stop::Stop;

/// The first time that is waited before a process is started again, and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// One that has lived as long as this did not fail at what it began with.
const LIVED: Duration = Duration::from_secs(60);

/// Code with which a Rust program ends that has panicked.
const PANICKED: i32 = 101;

/// What outlives the processes that serve.
pub(super) struct Supervisor {
    program: PathBuf,
    arguments: Vec<OsString>,
    socket: PathBuf,
    kernel: Arc<KernelFiles>,
    /// What the last process has said that its successor needs; `None` before the first one serves.
    state: Option<Secret>,
    /// The program that was installed since could not be started: the next process is of the one that runs here.
    is_own_program: bool,
}

/// What is handed to each of them.
struct KernelFiles {
    device: Option<Device>,
    record: File,
}

/// What a process has said, and where it waits for the answer.
type StateReport = (Secret, std::os::unix::net::UnixStream);

/// How a process ended.
struct Ended {
    status: ExitStatus,
    /// It was told to.
    is_stopping: bool,
    /// It had begun to serve the mount.
    has_served: bool,
}

/// What follows from the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The mount has ended with it.
    End,
    /// Another one takes the mount over.
    Successor { was_killed: bool },
    /// It is tried again after a while; the process has changed nothing.
    TryAgain,
}

impl Supervisor {
    /// One for the processes that are started with these arguments, and ask at `socket`.
    pub(super) fn new(mut arguments: Vec<OsString>, socket: PathBuf, via: Via) -> Outcome<Self> {
        let what = || "cannot keep the mount".to_owned();
        let program = std::env::current_exe().or_fail(what)?;
        let rest = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
        arguments.splice(rest..rest, ["--kept-by".into(), socket.as_os_str().to_owned()]);
        let device = match via {
            Via::Fuse => Some(open_device().or_fail(what)?),
            // The kernel takes another connection, or queue, in the place of one that is dead.
            Via::Nbd | Via::Ublk => None,
        };
        let record = memfd_create(c"longhaul-mount", MemfdFlags::CLOEXEC).or_fail(what)?;
        let kernel = Arc::new(KernelFiles { device, record: File::from(record) });
        Ok(Self { program, arguments, socket, kernel, state: None, is_own_program: false })
    }

    /// Keeps it until it ends.
    pub(super) async fn run(mut self, background: &Background, mut stop: Stop) -> Outcome {
        let what = || format!("cannot listen at {}", self.socket.shown());
        if let Some(dir) = self.socket.parent() {
            make_directories(dir, 0o700).or_fail(what)?;
        }
        // Of one that was killed: who keeps a mount with this name has its loop device, which was looked for.
        let _ = fs::remove_file(&self.socket);
        let listener = UnixListener::bind(&self.socket).or_fail(what)?;
        listener.set_nonblocking(true).or_fail(what)?;
        let file = SocketFile::of(&self.socket).or_fail(what)?;
        let kept = self.keep(&listener, background, &mut stop).await;
        // The volume may have been mounted again already, since nothing serves it any more: that has its own by this name.
        file.remove();
        kept
    }

    async fn keep(
        &mut self,
        listener: &UnixListener,
        background: &Background,
        stop: &mut Stop,
    ) -> Outcome {
        let (mut was_killed, mut pause) = (false, PAUSE);
        loop {
            let began = Instant::now();
            let lived = self.live(listener, was_killed, background, stop).await;
            if began.elapsed() >= LIVED {
                pause = PAUSE;
            }
            let Ended { status, is_stopping, has_served } = match lived {
                Ok(lived) => lived,
                // There is a mount, and the machine may have memory or the program again.
                Err(why) if self.state.is_some() => {
                    print_error(&format_args!("longhaul: {why}"));
                    pause = self.wait(pause, stop).await?;
                    continue;
                }
                Err(why) => return Err(why),
            };
            let is_kept = self.state.is_some();
            // One that is installed now may not know the command line, or refuse what this one would take.
            let is_refused = is_kept && !has_served && !self.is_own_program && is_error(status);
            let next = if is_refused { Next::TryAgain } else { next(status, is_kept) };
            if is_kept && (is_refused || is_not_started(status)) {
                self.go_on_by_own_program(status);
            }
            match next {
                // What it was told to do is the next one's to do, once that serves.
                // Who upgrades it wants the program that is installed by then.
                Next::Successor { was_killed: false } => {
                    (was_killed, self.is_own_program) = (false, false);
                }
                _ if is_stopping => return end(status),
                Next::End => return end(status),
                Next::Successor { was_killed: true } => {
                    print_error(&format_args!(
                        "longhaul: the process that served the mount has ended ({status}): another one takes it over"
                    ));
                    was_killed = true;
                    pause = self.wait(pause, stop).await?;
                }
                Next::TryAgain => pause = self.wait(pause, stop).await?,
            }
        }
    }

    fn go_on_by_own_program(&mut self, status: ExitStatus) {
        if !self.is_own_program {
            let program = self.program.shown();
            print_error(&format_args!(
                "longhaul: {program} has not taken the mount over ({status}): the program that runs here is tried"
            ));
        }
        self.is_own_program = true;
    }

    /// Waits before the next process; how long it is to be the next time.
    async fn wait(&self, pause: Duration, stop: &mut Stop) -> Outcome<Duration> {
        tokio::select! {
            () = sleep(pause) => Ok((pause * 2).min(PAUSE_MAX)),
            () = stop.called() => Err(Failure::new(
                "ended by a signal while nothing served the mount: programs get errors until it is unmounted"
            )),
        }
    }

    /// The life of one process; how it ended.
    async fn live(
        &mut self,
        listener: &UnixListener,
        was_killed: bool,
        background: &Background,
        stop: &mut Stop,
    ) -> Outcome<Ended> {
        let what = || "cannot start the process that serves the mount".to_owned();
        let mut child = self.start().or_fail(what)?;
        let pid = child.id();
        let (says, mut said) = mpsc::channel(1);
        let greeting = Arc::new(greeting(self.state.as_ref(), was_killed));
        let listener = listener.try_clone().and_then(tokio::net::UnixListener::from_std);
        let listener = listener.or_fail(what)?;
        let listening =
            Listening { listener, pid, greeting, kernel: Arc::clone(&self.kernel), says };
        let listening = tokio::spawn(listening.hear_all());
        // One that takes a mount over would leave it if it were stopped before it has it.
        let (mut is_stopping, mut may_stop) = (false, self.state.is_none());
        let mut has_served = false;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.or_fail(what)?,
                Some(said) = said.recv() => match self.heard(said, background) {
                    Ok(()) => (may_stop, has_served) = (true, true),
                    // Another one is started once it has ended, and must not find it beside itself.
                    Err(why) => {
                        print_error(&format_args!("longhaul: {why}"));
                        child.start_kill().or_fail(what)?;
                    }
                },
                () = stop.called(), if may_stop && !is_stopping => {
                    is_stopping = true;
                    terminate(&child);
                }
            }
        };
        listening.abort();
        if let (Some(pid), Some(dir)) = (pid, control::runtime_dir()) {
            control::remove_if_left(&dir.join(format!("attach-{pid}.sock")));
        }
        Ok(Ended { status, is_stopping, has_served })
    }

    /// Starts a process of the program that is installed now; if that cannot be, of the one that runs here.
    fn start(&mut self) -> io::Result<Child> {
        let start = |program: &Path| {
            let mut command = Command::new(program);
            command.args(&self.arguments[1..]);
            if self.state.is_some() {
                // The terminal, and the process that waited for the first one, are gone.
                command.stdin(Stdio::null()).stdout(Stdio::null());
            }
            command.spawn()
        };
        let own = Path::new("/proc/self/exe");
        if self.is_own_program {
            return start(own);
        }
        match start(&self.program) {
            Err(why) if self.state.is_some() => {
                print_error(&format_args!(
                    "longhaul: cannot start {}: {why}; the program that runs here goes on",
                    self.program.shown()
                ));
                start(own)
            }
            started => started,
        }
    }

    /// The process serves. With the first that does the terminal is left, and who waits for it.
    fn heard(&mut self, (state, stream): StateReport, background: &Background) -> Outcome {
        if self.state.is_none() {
            background.leave_session()?.close_terminal()?;
        }
        acknowledge(&stream)
            .or_fail(|| "cannot answer the process that serves the mount".to_owned())?;
        self.state = Some(state);
        Ok(())
    }
}

/// Waits for a process at the keeper's socket, until it is aborted.
struct Listening {
    listener: tokio::net::UnixListener,
    pid: Option<u32>,
    greeting: Arc<Secret>,
    kernel: Arc<KernelFiles>,
    says: mpsc::Sender<StateReport>,
}

impl Listening {
    /// Hears the process; others are turned away.
    async fn hear_all(self) {
        loop {
            let heard = match self.listener.accept().await {
                Ok((stream, _)) => self.hear(stream).await,
                Err(why) => Err(why),
            };
            match heard {
                Ok(None) => {}
                Ok(Some(report)) => drop(self.says.send(report).await),
                // It was killed meanwhile. That must not end this: the successor asks here too.
                Err(why) => {
                    tracing::warn!(%why, "the process that serves the mount was not heard");
                }
            }
        }
    }

    async fn hear(&self, stream: tokio::net::UnixStream) -> io::Result<Option<StateReport>> {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        let asks = peer_process(&stream)?.as_raw_nonzero().get().cast_unsigned();
        if Some(asks) != self.pid {
            return Ok(None);
        }
        let (greeting, kernel) = (Arc::clone(&self.greeting), Arc::clone(&self.kernel));
        // It answers once it serves; if it ends before, so does the stream.
        let heard = spawn_blocking(move || {
            let state = greet(&stream, &greeting, kernel.device.as_ref(), &kernel.record)?;
            Ok(state.map(|state| (state, stream)))
        });
        heard.await.map_err(io::Error::other)?
    }
}

/// Whether it is the end of a program that could not begin: its interpreter or a library is missing (127), or it cannot be
/// executed (126), by the convention of shells and of ld.so(8).
fn is_not_started(status: ExitStatus) -> bool {
    matches!(status.code(), Some(126 | 127))
}

/// Whether it is the end of a program that has said what is wrong.
fn is_error(status: ExitStatus) -> bool {
    matches!(status.code(), Some(1 | 2))
}

/// Says `status` as the end of this process too; the one that ended has said why.
fn end(status: ExitStatus) -> Outcome {
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Failure::already_printed(code == Some(2))),
    }
}

/// What follows from this end of a process; whether any has served the mount.
fn next(status: ExitStatus, has_served: bool) -> Next {
    match (status.code(), status.signal()) {
        _ if !has_served => Next::End,
        (Some(code), _) if code == i32::from(HANDED_OVER) => Next::Successor { was_killed: false },
        (Some(code), _) if code == i32::from(TRY_AGAIN) => Next::TryAgain,
        _ if is_not_started(status) => Next::TryAgain,
        (Some(PANICKED), _) | (_, Some(_)) => Next::Successor { was_killed: true },
        _ => Next::End,
    }
}

fn terminate(child: &Child) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Where the processes that serve the mount with this name ask.
pub(super) fn socket_of(file: &Path, name: &str) -> Option<PathBuf> {
    Some(super::super::attach::kept::socket_in(file.parent()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_has_served_has_a_successor() {
        // wait(2): the code in the second byte, the signal in the first.
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let killed = ExitStatus::from_raw(9);
        assert_eq!(next(killed, false), Next::End);
        assert_eq!(next(exited(HANDED_OVER.into()), false), Next::End);
        assert_eq!(next(killed, true), Next::Successor { was_killed: true });
        assert_eq!(next(exited(PANICKED), true), Next::Successor { was_killed: true });
        assert_eq!(next(exited(HANDED_OVER.into()), true), Next::Successor { was_killed: false });
        assert_eq!(next(exited(TRY_AGAIN.into()), true), Next::TryAgain);
        assert_eq!(next(exited(127), true), Next::TryAgain, "its library is missing");
        assert_eq!(next(exited(127), false), Next::End);
        for code in [0, 1, 2] {
            assert_eq!(next(exited(code), true), Next::End);
        }
    }
}
