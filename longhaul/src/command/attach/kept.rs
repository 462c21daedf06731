//! An attachment whose mount outlives the process that serves it: a keeper holds what the next one needs. Here is what
//! both say to one another, and the end of the one that serves.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::process::{Pid, getppid};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use zeroize::{Zeroize as _, Zeroizing};

use super::process_file::{self, ProcessFile};
use crate::attachments::{self, FileId};
use crate::chain::{Chain, Contents, JournalOptions, Unlock};
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::front::Record;
use crate::front::fuse::Device;
use crate::luks;
use crate::net::peer_process::peer_process;
use crate::passed_descriptors::{receive, send};
use crate::printable::Shown as _;
use crate::secret::Secret;
use crate::store::iscsi::{Predecessor, Writers};

/// How a process ends that has handed its mount over (sysexits.h has no such code; EX_TEMPFAIL is nearest).
pub(in crate::command) const HANDED_OVER: u8 = 75;

/// How one ends that could not take a mount over and may when it is tried again: EX_UNAVAILABLE of sysexits.h.
pub(in crate::command) const TRY_AGAIN: u8 = 69;

/// What the keeper says when it has noted what it was told.
const KEPT: &str = "kept\n";

/// What a process says that takes a mount over, and tells before it hears what the kernel asks.
const OPENING: &str = "opening\n";

/// What it says then.
const TAKING: &str = "taking\n";

/// The longest that one says to the other.
const LINE_MAX: usize = 1 << 20;

/// What a mount was, for the process that takes it over.
#[derive(Deserialize, Serialize)]
struct MountState {
    uri: String,
    /// Whether the file that it is mounted over was made for it.
    made: bool,
    size: u64,
    /// The serial number of the unit, or what its target is called.
    unit: Option<String>,
    /// The volume key of an encrypted volume.
    key: Option<Vec<u8>>,
    /// By which the target kept other writers away, if it did, and whether that outlives a loss of power.
    reserved: Option<(u64, bool)>,
    /// The file of its journal, if it has one.
    journal: Option<JournalFile>,
}

/// Which file a journal is: another one at its path does not hold what it held.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
struct JournalFile {
    path: PathBuf,
    id: FileId,
}

impl JournalFile {
    fn of(path: PathBuf) -> io::Result<Self> {
        let id = FileId::of(&std::fs::metadata(&path)?);
        Ok(Self { path, id })
    }

    /// An error if it is not where it was.
    fn check(&self) -> Outcome {
        let is_there = Self::of(self.path.clone()).is_ok_and(|found| found == *self);
        if is_there {
            return Ok(());
        }
        Err(Failure::new(format!("the journal {} is not there any more", self.path.shown()))
            .because("what it holds, and was acknowledged, may be nowhere else")
            .hint("bring it back before the mount is ended; programs would find older data without it"))
    }
}

impl Drop for MountState {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// What the keeper says first.
#[derive(Deserialize)]
struct Greeting {
    resumed: Option<Resumed>,
    /// Why this is not a process of the program that is installed, if it is not.
    #[serde(default)]
    refused: Option<String>,
    /// The keeper is to be told how far the process is: one of before would take that for the state.
    #[serde(default)]
    hears_phases: bool,
}

/// A mount that is to be taken over.
#[derive(Deserialize)]
struct Resumed {
    was_killed: bool,
    state: MountState,
}

/// What the keeper says first: `state` is what the last process has said, and nobody but its successor reads; `refused` is
/// why the installed program has not taken the mount over.
pub(in crate::command) fn greeting(
    state: Option<&Secret>,
    was_killed: bool,
    refused: Option<&str>,
) -> Secret {
    let mut line = Zeroizing::new(Vec::with_capacity(4096));
    match state {
        None => line.extend_from_slice(br#"{"resumed":null}"#),
        Some(state) => {
            let head = format!(r#"{{"resumed":{{"was_killed":{was_killed},"state":"#);
            line.extend_from_slice(head.as_bytes());
            line.extend_from_slice(state.expose());
            let refused = serde_json::json!(refused);
            line.extend_from_slice(
                format!(r#"}},"refused":{refused},"hears_phases":true}}"#).as_bytes(),
            );
        }
    }
    line.push(b'\n');
    Secret::new(line.to_vec())
}

/// The file of the journal of a mount, if it has one.
pub(in crate::command) fn journal_of(state: &Secret) -> Option<PathBuf> {
    let state: MountState = serde_json::from_slice(state.expose()).ok()?;
    state.journal.as_ref().map(|journal| journal.path.clone())
}

/// Says it to a process, with what it needs of the kernel.
pub(in crate::command) fn greet(
    stream: &UnixStream,
    greeting: &Secret,
    device: Option<&Device>,
    record: &File,
) -> io::Result<()> {
    let descriptors = [Some(record.as_fd()), device.map(AsFd::as_fd)];
    send(stream, &descriptors.into_iter().flatten().collect::<Vec<_>>())?;
    (&*stream).write_all(greeting.expose())
}

/// What a process says to its keeper.
pub(in crate::command) enum ProcessMessage {
    /// It opens the volume, and says [`ProcessMessage::Taking`] before it hears what the kernel asks.
    Opening,
    /// It is about to hear that.
    Taking,
    /// It serves; what the next process needs.
    Serves(Secret),
}

/// What it says next; `None` if it has ended.
pub(in crate::command) fn hear(stream: &UnixStream) -> io::Result<Option<ProcessMessage>> {
    let line = read_line(stream)?;
    Ok(match &**line {
        b"" => None,
        line if line == OPENING.trim_end().as_bytes() => Some(ProcessMessage::Opening),
        line if line == TAKING.trim_end().as_bytes() => Some(ProcessMessage::Taking),
        state => Some(ProcessMessage::Serves(Secret::new(state.to_vec()))),
    })
}

/// Says that it is noted.
pub(in crate::command) fn acknowledge(mut stream: &UnixStream) -> io::Result<()> {
    stream.write_all(KEPT.as_bytes())
}

/// Tells the keeper how far this process is, and waits until it has noted that: it decides by it whether the next process has to
/// ask the kernel again. Where the keeper is gone there is no next process.
fn say_phase(mut stream: &UnixStream, phase: &str) {
    let noted = stream.write_all(phase.as_bytes()).and_then(|()| read_line(stream));
    if let Err(why) = noted {
        tracing::debug!(%why, "the process that keeps the mount is gone");
    }
}

/// A line without its end; empty at the end of the stream.
fn read_line(stream: &UnixStream) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(4096));
    let limited = io::Read::take(stream, LINE_MAX as u64);
    // A buffer of its own would take what comes next.
    BufReader::with_capacity(1, limited).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') | None => Ok(line),
        Some(_) => Ok(Zeroizing::default()),
    }
}

/// The end of the process that serves.
pub(in crate::command) struct KeeperLink {
    stream: UnixStream,
    /// The process of the keeper.
    keeper: Pid,
    device: Option<OwnedFd>,
    record: Option<Record>,
    resumed: Option<Resumed>,
    refused: Option<String>,
    hears_phases: bool,
    /// Filled when the volume is opened.
    key: Arc<OnceLock<Secret>>,
    /// By which others see that this process is there.
    _process: Option<ProcessFile>,
}

/// What the front takes of it.
pub(super) struct KeptMount {
    /// The connection to the kernel, if it is one by FUSE.
    pub(super) device: Option<Device>,
    pub(super) record: Record,
    /// If it is taken over.
    pub(super) resumed: Option<TakenOver>,
}

/// How it was when the process before ended.
pub(super) struct TakenOver {
    /// The file that it is mounted over was made for it.
    pub(super) made: bool,
    pub(super) was_killed: bool,
}

impl KeeperLink {
    /// Asks the keeper that listens at `path`.
    pub(in crate::command) async fn connect(path: PathBuf) -> Outcome<Self> {
        let what = || "cannot ask the process that keeps the mount".to_owned();
        let asked = spawn_blocking(move || Self::connect_now(&path)).await;
        asked.or_fail(what)?.or_fail(what)
    }

    fn connect_now(path: &Path) -> io::Result<Self> {
        // Before: once it has the descriptors it goes on without the keeper.
        let process = ProcessFile::create(path);
        if let Err(why) = &process {
            tracing::warn!(%why, "it cannot be noted which process serves the mount");
        }
        let stream = UnixStream::connect(path)?;
        let mut descriptors = receive(&stream)?.into_iter();
        let record = descriptors.next().ok_or(io::ErrorKind::UnexpectedEof)?;
        let device = descriptors.next();
        let Greeting { resumed, refused, hears_phases } =
            serde_json::from_slice(&read_line(&stream)?)?;
        let record = File::from(record);
        let record = match &resumed {
            Some(_) => Record::read(record)?,
            None => Record::create(record)?,
        };
        let record = Some(record);
        let keeper = peer_process(&stream)?;
        attachments::kept_by(keeper.as_raw_nonzero().get().unsigned_abs());
        let kept = Self {
            stream,
            keeper,
            device,
            record,
            resumed,
            refused,
            hears_phases,
            key: Arc::default(),
            _process: process.ok(),
        };
        if kept.hears_phases {
            say_phase(&kept.stream, OPENING);
        }
        Ok(kept)
    }

    /// Says that this process is about to hear what the kernel asks.
    pub(super) async fn begin_taking(&self) {
        if self.hears_phases
            && let Ok(stream) = self.stream.try_clone()
        {
            let _ = spawn_blocking(move || say_phase(&stream, TAKING)).await;
        }
    }

    /// Why no other process could go on, if none could: the keeper starts the next one, and holds what that needs.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        let is_there = getppid() == Some(self.keeper);
        (!is_there).then_some("the process that kept the mount is gone; `longhaul umount` and `longhaul mount` start both anew")
    }

    /// Why the program that is installed has not taken the mount over, and the one that the keeper runs has.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Whether a mount is taken over.
    pub(in crate::command) const fn is_resumed(&self) -> bool {
        self.resumed.is_some()
    }

    /// Who else may write where a mount is taken over: nobody may have done so since the process before.
    pub(super) fn writers(&self, asked: Writers, journal: Option<&JournalOptions>) -> Writers {
        let resumes = journal.and_then(JournalOptions::resumes);
        let reserved = self.resumed.as_ref().and_then(|resumed| resumed.state.reserved);
        match (reserved, resumes) {
            (Some((key, through_power_loss)), resumes) if resumes.is_none_or(|of| of == key) => {
                Writers::Succeed(Predecessor { key, through_power_loss })
            }
            (_, Some(key)) => Writers::Resume(key),
            // Whoever took it over since has it.
            _ if asked == Writers::TakeOver => Writers::One,
            _ => asked,
        }
    }

    /// Refuses to go on without the journal that the process before had.
    pub(super) fn check_journal(&self) -> Outcome {
        let state = self.resumed.as_ref().map(|resumed| &resumed.state);
        state.and_then(|state| state.journal.as_ref()).map_or(Ok(()), JournalFile::check)
    }

    /// Whether the process before had one.
    pub(super) fn had_journal(&self) -> bool {
        self.resumed.as_ref().is_some_and(|resumed| resumed.state.journal.is_some())
    }

    /// Whether a mount is taken over that had none.
    pub(in crate::command) fn goes_without_journal(&self) -> bool {
        self.is_resumed() && !self.had_journal()
    }

    /// Whether something is lost that the process before had acknowledged.
    pub(super) fn has_lost(&self) -> bool {
        let is_unflushed = self.record.as_ref().is_some_and(Record::is_unflushed);
        is_unflushed && self.resumed.as_ref().is_some_and(|resumed| resumed.was_killed)
    }

    /// A write is answered only when it is stable, if that costs no round trip: then nothing is lost with the process.
    pub(super) fn answer_when(&mut self, is_stable: bool) {
        self.record = self.record.take().map(|record| record.of_stable(is_stable));
    }

    /// What of the volume is wanted: with the key that it had, if it is taken over; that key is noted for the next one.
    pub(super) fn contents(&self, contents: Contents) -> Contents {
        let Contents::Plain(unlock) = contents else { return contents };
        let unlock = match &self.resumed {
            None => unlock,
            Some(resumed) => {
                let key = resumed.state.key.clone().map(Secret::new);
                let demanded = key.is_some();
                Unlock { key: luks::Key::of_volume(key), demanded, ..unlock }
            }
        };
        Contents::Plain(Unlock { key: unlock.key.noted_in(Arc::clone(&self.key)), ..unlock })
    }

    /// Refuses a volume that is not the one of before.
    pub(super) fn check(&self, chain: &Chain) -> Outcome {
        let Some(Resumed { state, .. }) = &self.resumed else { return Ok(()) };
        let refuse = |why: String| {
            Err(Failure::new(format!("cannot go on with the mount of {}", chain.uri()))
                .because(why))
        };
        let (uri, unit, size) = (chain.uri().to_string(), chain.unit_serial(), size(chain));
        if (&uri, &unit) != (&state.uri, &state.unit) {
            let name = |unit: Option<String>| unit.unwrap_or_else(|| "none".to_owned());
            return refuse(format!(
                "it is another volume: {uri}, serial number {}; that of before is {}, serial number {}",
                name(unit),
                state.uri,
                name(state.unit.clone())
            ));
        }
        match size < state.size {
            true => refuse(format!("it has {size} bytes now, and had {}", state.size)),
            false => Ok(()),
        }
    }

    /// Whether the volume is larger than it was to the process before.
    pub(super) fn has_grown(&self, chain: &Chain) -> bool {
        self.resumed.as_ref().is_some_and(|resumed| size(chain) > resumed.state.size)
    }

    /// What the front takes.
    pub(super) fn take(&mut self) -> Outcome<KeptMount> {
        let Some(record) = self.record.take() else {
            return Err(Failure::new("the mount was taken already"));
        };
        let resumed = self.resumed.as_ref();
        let resumed = resumed.map(|Resumed { was_killed, state }| TakenOver {
            made: state.made,
            was_killed: *was_killed,
        });
        Ok(KeptMount { device: self.device.take(), record, resumed })
    }

    /// Tells the keeper what the next process needs, and waits until it has that. A mount that is taken over is there without
    /// it too: if the keeper was killed meanwhile, there is no next process.
    pub(super) async fn keep(&self, chain: &Chain, made: bool) -> Outcome {
        match self.tell(chain, made).await {
            Err(why) if self.is_resumed() => {
                print_error(&format_args!("longhaul: {why}: the mount is served on"));
                Ok(())
            }
            told => told,
        }
    }

    async fn tell(&self, chain: &Chain, made: bool) -> Outcome {
        let what = || "cannot tell the process that keeps the mount".to_owned();
        let key = self.key.get().map(|key| key.expose().to_vec());
        let (uri, size) = (chain.uri().to_string(), size(chain));
        let reserved = chain.for_successor().map(|own| (own.key, own.through_power_loss));
        let journal = journal(chain).or_fail(what)?;
        let unit = chain.unit_serial();
        let state = MountState { uri, made, size, unit, key, reserved, journal };
        let mut line = Zeroizing::new(Vec::with_capacity(4096));
        serde_json::to_writer(&mut *line, &state).or_fail(what)?;
        line.push(b'\n');
        let stream = self.stream.try_clone().or_fail(what)?;
        let kept = spawn_blocking(move || {
            (&stream).write_all(&line)?;
            read_line(&stream)
        });
        let kept = kept.await.or_fail(what)?.or_fail(what)?;
        match &**kept == KEPT.trim_end().as_bytes() {
            true => Ok(()),
            false => Err(Failure::new(what()).because("it has ended")),
        }
    }
}

fn journal(chain: &Chain) -> io::Result<Option<JournalFile>> {
    chain.observer().status().journal.map(|journal| JournalFile::of(journal.path)).transpose()
}

fn size(chain: &Chain) -> u64 {
    chain.volume().shape().size
}

/// What to do where a process was killed that nothing can take the place of.
pub(super) fn lost(what: String) -> Failure {
    Failure::new(what)
        .because("the process before was killed, and what it had acknowledged and not flushed is lost")
        .hint("programs get errors until it is unmounted; with a journal a mount outlives its process")
}

/// How the keeper's socket is called, of the mount with this name.
pub(in crate::command) fn socket_in(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!(".{name}.keeper"))
}

/// Whether somebody keeps the mount whose keeper listens here, or serves it without one, or is about to.
pub(in crate::command) fn is_kept(socket: &Path) -> bool {
    // Before the keeper: one that waits for a process takes no connection meanwhile, and too many would have the next one wait.
    if process_file::process_of(socket).is_some() {
        return true;
    }
    let connected = UnixStream::connect(socket);
    if let Err(why) = &connected {
        tracing::debug!(socket = %socket.shown(), %why, "nobody keeps it");
    }
    // Once more: a process has its file before it asks the keeper.
    connected.is_ok() || process_file::process_of(socket).is_some()
}

/// The process that serves the mount whose keeper listens here, or is about to.
pub(in crate::command) fn process_of(socket: &Path) -> Option<u32> {
    process_file::process_of(socket)
}

/// The process that keeps the mount, if it is the one that listens here.
pub(in crate::command) fn keeper_of(socket: &Path) -> Option<u32> {
    let keeper = peer_process(&UnixStream::connect(socket).ok()?).ok()?;
    Some(keeper.as_raw_nonzero().get().cast_unsigned())
}

/// Removes what a process that was killed has left beside this socket.
pub(in crate::command) fn remove_if_left(socket: &Path) {
    process_file::remove_if_left(socket);
}
