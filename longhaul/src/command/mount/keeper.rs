//! The process that keeps a mount: it holds the connection to the kernel and the volume key, and starts the one that serves
//! it, once more when that has ended without unmounting. It serves nothing, so that nothing of it can fail with a request.

mod listening;

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixListener;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use self::listening::{KernelFiles, Listening, Phase, StateReport};
use super::super::attach::Background;
use super::super::attach::kept::{self, HANDED_OVER, TRY_AGAIN, acknowledge, greeting, journal_of};
use super::Via;
use crate::attachments::FileId;
use crate::block_devices::{devices_over, mounts_of};
use crate::control;
use crate::durable::make_directories;
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::front::fuse::open_device;
use crate::printable::Shown as _;
use crate::secret::Secret;
use crate::socket_file::SocketFile;
use crate::stop::Stop;

/// The first time that is waited before a process is started again, and the longest.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The longest where processes end before they serve, and the server is not why: each start costs the machine something.
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(10);

/// One that has lived as long as this did not fail at what it began with.
const LIVED: Duration = Duration::from_secs(60);

/// How often in a row the installed program may end to be tried again before the one that runs here is tried.
const TRIES: u32 = 3;

/// The program that runs here, also when it is not installed any more.
const OWN: &str = "/proc/self/exe";

const CANNOT_START: &str = "cannot start the process that serves the mount";

/// Code with which a Rust program ends that has panicked.
const PANICKED: i32 = 101;

/// What outlives the processes that serve.
pub(super) struct Supervisor {
    program: PathBuf,
    arguments: Vec<OsString>,
    socket: PathBuf,
    /// What the block device is made of.
    file: PathBuf,
    kernel: Arc<KernelFiles>,
    /// What the last process has said that its successor needs; `None` before the first one serves.
    state: Option<Secret>,
    /// The next process is of the program that runs here, and not of the one that is installed by then.
    is_own_program: bool,
    /// Why the installed one has not taken the mount over, if it was tried last.
    refused: Option<String>,
    /// The process before may not have answered all that it was asked.
    was_killed: bool,
    /// How often in a row the installed program has ended to be tried again.
    tries: u32,
    /// How many in a row took too long to open the volume.
    late: u32,
}

/// How a process ended.
struct Ended {
    status: ExitStatus,
    /// How far it was.
    phase: Phase,
    /// It was killed because that lasted this long.
    late: Option<Duration>,
}

impl Ended {
    /// Whether it had begun to serve the mount.
    fn has_served(&self) -> bool {
        self.phase == Phase::Serving
    }
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
    /// It has not begun to serve, and that may be due to its program.
    FailedStart { was_killed: bool },
}

impl Supervisor {
    /// One for the processes that are started with these arguments, and ask at `socket`.
    pub(super) fn new(
        mut arguments: Vec<OsString>,
        socket: PathBuf,
        file: PathBuf,
        via: Via,
    ) -> Outcome<Self> {
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
        Ok(Self {
            program,
            arguments,
            socket,
            file,
            kernel,
            state: None,
            is_own_program: false,
            refused: None,
            was_killed: false,
            tries: 0,
            late: 0,
        })
    }

    /// Keeps it until it ends.
    pub(super) async fn run(mut self, background: &Background, mut stop: Stop) -> Outcome {
        let what = || format!("cannot listen at {}", self.socket.shown());
        if let Some(dir) = self.socket.parent() {
            make_directories(dir, 0o700).or_fail(what)?;
        }
        // Of one that was killed: who keeps a mount with this name has its loop device, which was looked for.
        let _ = fs::remove_file(&self.socket);
        let listener = Arc::new(UnixListener::bind(&self.socket).or_fail(what)?);
        let file = SocketFile::of(&self.socket).or_fail(what)?;
        let kept = self.keep(&listener, background, &mut stop).await;
        // The volume may have been mounted again already, since nothing serves it any more: that has its own by this name.
        file.remove();
        kept::remove_if_left(&self.socket);
        kept
    }

    async fn keep(
        &mut self,
        listener: &Arc<UnixListener>,
        background: &Background,
        stop: &mut Stop,
    ) -> Outcome {
        let mut pause = PAUSE;
        loop {
            // A mount that is asked to end while nothing serves it is ended by one more process, once that does.
            let is_last = self.state.is_some() && stop.is_called();
            let began = Instant::now();
            let longest = match self.start() {
                Ok(child) => {
                    let ended = self.live(child, listener, is_last, background, stop).await?;
                    match next(&ended, self.state.is_some(), self.is_own_program) {
                        Next::End if self.state.is_some() && !ended.has_served() => {
                            return Err(self.left(background));
                        }
                        Next::End => return end(&ended),
                        next => self.prepare(next, &ended),
                    }
                }
                // There is a mount, and the machine may have memory or the program again.
                Err(why) if self.state.is_some() => {
                    print_error(&format_args!("longhaul: {CANNOT_START}: {why}"));
                    Some(FAILED_PAUSE_MAX)
                }
                Err(why) => return Err(Failure::new(CANNOT_START).because(why)),
            };
            let Some(longest) = longest else { continue };
            if is_last {
                return Err(self.left(background));
            }
            if began.elapsed() >= LIVED {
                pause = PAUSE;
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.called() => {}
            }
            pause = (pause * 2).min(longest);
        }
    }

    /// What the next process is to be; how long it is waited for at most, if it is not started at once.
    fn prepare(&mut self, next: Next, ended: &Ended) -> Option<Duration> {
        if !matches!(next, Next::TryAgain) {
            self.tries = 0;
        }
        match ended.late {
            Some(_) if ended.phase.is_opening() => self.late += 1,
            _ if ended.has_served() => self.late = 0,
            _ => {}
        }
        match next {
            // What it was told to do is the next one's to do, once that serves.
            // Who upgrades it wants the program that is installed by then.
            Next::End | Next::Successor { was_killed: false } => {
                (self.was_killed, self.is_own_program) = (false, false);
                None
            }
            Next::Successor { was_killed: true } => {
                print_error(&format_args!(
                    "longhaul: the process that served the mount has ended ({}): another one takes it over",
                    ended.status
                ));
                self.was_killed = true;
                Some(PAUSE_MAX)
            }
            Next::TryAgain => {
                self.tries += 1;
                // The server may be why, or the program. The one that runs here is tried once for that.
                if self.is_replaced() && (self.is_own_program || self.tries >= TRIES) {
                    self.try_other_program(ended);
                }
                Some(PAUSE_MAX)
            }
            Next::FailedStart { was_killed } => {
                self.was_killed |= was_killed;
                self.try_other_program(ended);
                Some(FAILED_PAUSE_MAX)
            }
        }
    }

    /// Whether another program is installed than the one that runs here.
    fn is_replaced(&self) -> bool {
        let file = |path: &Path| fs::metadata(path).ok().map(|found| FileId::of(&found));
        file(&self.program) != file(Path::new(OWN))
    }

    /// What fails by the program may succeed by the other one: by the one that runs here, or by one that is installed since.
    fn try_other_program(&mut self, ended: &Ended) {
        let program = self.program.shown();
        if self.is_own_program {
            print_error(&format_args!(
                "longhaul: the program that runs here has not taken the mount over ({ended}): {program} is tried"
            ));
        } else {
            let refused = format!("{program} has not taken the mount over ({ended})");
            print_error(&format_args!("longhaul: {refused}: the program that runs here is tried"));
            self.refused = Some(refused);
        }
        (self.is_own_program, self.tries) = (!self.is_own_program, 0);
    }

    /// The mount is there, and nothing serves it any more: what is left, and where.
    fn left(&self, background: &Background) -> Failure {
        let name = &background.name;
        let devices = devices_over(&self.file);
        let mounts = devices.iter().flat_map(|device| mounts_of(device)).map(|mount| mount.place);
        let places = mounts.chain(devices.iter().cloned()).chain([self.file.clone()]);
        let places: Vec<_> = places.map(|place| place.shown().to_string()).collect();
        let places = places.join(", ");
        let left = format!(
            "{places} are left, and give errors until `longhaul umount {name}`: what was not synced is lost"
        );
        let journal = self.state.as_ref().and_then(journal_of).map(|journal| {
            let journal = journal.shown();
            format!(
                "what was synced and is not on the server is in the journal {journal}: the next `longhaul mount {name}` sends it\n  "
            )
        });
        Failure::new(format!("the mount of {name} could not be ended as it should"))
            .because("no process serves it")
            .hint(format!("{}{left}", journal.unwrap_or_default()))
    }

    /// The life of one process; how it ended. When the mount is to end the last process is told so once it serves, and any
    /// other at once: one that does not serve yet leaves the mount to the next.
    async fn live(
        &mut self,
        mut child: Child,
        listener: &Arc<UnixListener>,
        is_last: bool,
        background: &Background,
        stop: &mut Stop,
    ) -> Outcome<Ended> {
        let pid = child.id();
        let (says, mut said) = mpsc::channel(1);
        let (tell, mut phase) = watch::channel(Phase::Started);
        let tell = Arc::new(tell);
        let listening = self.listening(listener, pid, (Arc::clone(&tell), says));
        let listening = tokio::spawn(listening.hear_all());
        let (mut is_stopping, mut late) = (false, None);
        let is_resumed = self.state.is_some();
        let (mut since, mut limit) =
            (Instant::now(), is_resumed.then(|| Phase::Started.limit(0)).flatten());
        let status = loop {
            let has_served = *phase.borrow() == Phase::Serving;
            tokio::select! {
                status = child.wait() => break status.or_fail(|| CANNOT_START.to_owned())?,
                Some(said) = said.recv() => match self.heard(said, background) {
                    Ok(()) => drop(tell.send_replace(Phase::Serving)),
                    // Another one is started once it has ended, and must not find it beside itself.
                    Err(why) => {
                        print_error(&format_args!("longhaul: {why}"));
                        signal(&child, Signal::KILL);
                    }
                },
                () = stop.called(), if !is_stopping && (has_served || !is_last) => {
                    is_stopping = true;
                    signal(&child, Signal::TERM);
                }
                Ok(()) = phase.changed() => {
                    since = Instant::now();
                    limit = phase.borrow_and_update().limit(self.late).filter(|_| is_resumed);
                }
                () = sleep_until(since + limit.unwrap_or_default()), if limit.is_some() => {
                    late = limit.take();
                    signal(&child, Signal::KILL);
                }
            }
        };
        listening.abort();
        if let (Some(pid), Some(dir)) = (pid, control::runtime_dir()) {
            control::remove_if_left(&control::of_attachment(&dir, pid));
        }
        let phase = *phase.borrow();
        Ok(Ended { status, phase, late })
    }

    /// What hears the process with this number, and tells it what it takes over.
    fn listening(
        &self,
        listener: &Arc<UnixListener>,
        pid: Option<u32>,
        (phase, says): (Arc<watch::Sender<Phase>>, mpsc::Sender<StateReport>),
    ) -> Listening {
        let refused = self.refused.as_deref();
        let greeting = Arc::new(greeting(self.state.as_ref(), self.was_killed, refused));
        let (listener, kernel) = (Arc::clone(listener), Arc::clone(&self.kernel));
        Listening { listener, pid, greeting, kernel, phase, says }
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
        let own = Path::new(OWN);
        if self.is_own_program {
            return start(own);
        }
        match start(&self.program) {
            Err(why) if self.state.is_some() => {
                let refused = format!("cannot start {}: {why}", self.program.shown());
                print_error(&format_args!(
                    "longhaul: {refused}; the program that runs here goes on"
                ));
                let started = start(own);
                (self.is_own_program, self.refused) = (true, Some(refused));
                started
            }
            started => {
                self.refused = None;
                started
            }
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

/// Whether it is the end of a program that could not begin: its interpreter or a library is missing (127), or it cannot be
/// executed (126), by the convention of shells and of ld.so(8).
fn is_not_started(status: ExitStatus) -> bool {
    matches!(status.code(), Some(126 | 127))
}

/// Says its status as the end of this process too; the one that ended has said why.
fn end(ended: &Ended) -> Outcome {
    match ended.status.code() {
        Some(0) if ended.has_served() => Ok(()),
        Some(0) => Err(Failure::new("the process that was to serve the mount ended before it did")),
        code => Err(Failure::already_printed(code == Some(2))),
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.late {
            Some(limit) => {
                write!(f, "it {} within {} seconds", self.phase.lacks(), limit.as_secs())
            }
            None => self.status.fmt(f),
        }
    }
}

/// What follows from this end of a process; whether there is a mount that one has served, and whether this one was of the
/// keeper's own program.
fn next(ended: &Ended, is_kept: bool, is_own_program: bool) -> Next {
    let &Ended { status, phase, .. } = ended;
    let ended_by = |code: u8| status.code() == Some(code.into());
    let has_crashed = status.signal().is_some() || status.code() == Some(PANICKED);
    let was_killed = has_crashed && phase.may_have_heard();
    match ended.has_served() {
        _ if !is_kept => Next::End,
        true if ended_by(HANDED_OVER) => Next::Successor { was_killed: false },
        true if has_crashed => Next::Successor { was_killed: true },
        true => Next::End,
        false if ended_by(TRY_AGAIN) => Next::TryAgain,
        // It has said why the mount cannot go on, and knows how it was begun.
        false if is_own_program && !has_crashed && !is_not_started(status) => Next::End,
        false => Next::FailedStart { was_killed },
    }
}

fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }
}

/// Where the processes that serve the mount with this name ask.
pub(super) fn socket_of(file: &Path, name: &str) -> Option<PathBuf> {
    Some(kept::socket_in(file.parent()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    // wait(2): the code in the second byte, the signal in the first.
    fn exited(code: impl Into<i32>) -> ExitStatus {
        ExitStatus::from_raw(code.into() << 8)
    }

    fn ended(status: ExitStatus, has_served: bool) -> Ended {
        let phase = if has_served { Phase::Serving } else { Phase::Taking };
        Ended { status, phase, late: None }
    }

    #[test]
    fn process_that_has_served_has_a_successor_where_it_handed_over_or_was_killed() {
        let after = |status| next(&ended(status, true), true, false);
        let killed = ExitStatus::from_raw(9);
        assert_eq!(after(killed), Next::Successor { was_killed: true });
        assert_eq!(after(exited(PANICKED)), Next::Successor { was_killed: true });
        assert_eq!(after(exited(HANDED_OVER)), Next::Successor { was_killed: false });
        for code in [0, 1, 2, TRY_AGAIN] {
            assert_eq!(after(exited(code)), Next::End);
        }
        assert!(end(&ended(exited(0), true)).is_ok());
    }

    #[test]
    fn process_that_has_not_served_is_a_failed_start_unless_it_may_be_tried_again() {
        let after = |status| next(&ended(status, false), true, false);
        for signal in [9, 11] {
            let killed = after(ExitStatus::from_raw(signal));
            assert_eq!(killed, Next::FailedStart { was_killed: true });
        }
        assert_eq!(after(exited(PANICKED)), Next::FailedStart { was_killed: true });
        for code in [0, 1, 2, 3, 126, 127, HANDED_OVER] {
            assert_eq!(after(exited(code)), Next::FailedStart { was_killed: false }, "{code}");
        }
        assert_eq!(after(exited(TRY_AGAIN)), Next::TryAgain);
        let at_once = ended(ExitStatus::from_raw(11), false);
        for phase in [Phase::Started, Phase::Opening] {
            let before = Ended { phase, ..at_once };
            assert_eq!(next(&before, true, false), Next::FailedStart { was_killed: false });
        }
        assert!(end(&ended(exited(0), false)).is_err());
    }

    #[test]
    fn own_program_that_says_what_is_wrong_ends_the_mount_and_one_that_crashes_does_not() {
        let after = |status| next(&ended(status, false), true, true);
        for code in [0, 1, 2, HANDED_OVER] {
            assert_eq!(after(exited(code)), Next::End);
        }
        assert_eq!(after(exited(TRY_AGAIN)), Next::TryAgain);
        assert_eq!(after(exited(127)), Next::FailedStart { was_killed: false });
        assert_eq!(after(ExitStatus::from_raw(11)), Next::FailedStart { was_killed: true });
    }

    #[test]
    fn first_process_has_no_successor() {
        for status in [exited(0), exited(HANDED_OVER), exited(127), ExitStatus::from_raw(9)] {
            assert_eq!(next(&ended(status, false), false, false), Next::End);
        }
    }
}
