//! Writes a replay log, on a thread of its own: those who save changes hold a lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::{FlockOperation, flock};
use tokio::sync::oneshot;

use super::format::{Chain, Head, Mark, preamble};
use super::{Change, Header};
use crate::attachments;
use crate::durable::make_directories;
use crate::printable::Shown as _;
use crate::utc::now;

/// How many logs of one name may be begun within a second.
const NAMES_MAX: u32 = 1000;

/// Why changes are lost that a panic has kept from the file.
const BROKEN: &str = "an internal error: what writes it has broken down";

/// What became of the changes that were saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// The file, if there is one.
    pub path: Option<PathBuf>,
    /// Changes in it.
    pub changes: u64,
    /// Bytes of their data.
    pub bytes: u64,
    /// Changes that are in no file, and are lost.
    pub lost: u64,
    /// Why they are.
    pub why: Option<String>,
}

/// Saves changes. There is no file before the first.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    header: Header,
    attachments: Option<PathBuf>,
    is_asked_for: bool,
    thread: Option<Thread>,
    progress: Arc<Progress>,
}

/// The thread, as seen from without.
#[derive(Debug)]
struct Thread {
    /// Nobody takes what is sent once it has ended, which by itself it does after its sender.
    messages: Sender<Message>,
    /// `None` if it could not be started.
    handle: Option<JoinHandle<()>>,
}

enum Message {
    Save(Change),
    /// Everything saved before is in the file, or lost.
    Done(oneshot::Sender<()>),
}

impl Writer {
    /// Will save changes of the volume that `header` names in a file in `dir`, which is noted in `attachments`.
    #[must_use]
    pub fn new(dir: PathBuf, header: Header, attachments: Option<PathBuf>) -> Self {
        let (is_asked_for, progress) = (false, Arc::default());
        Self { dir, header, attachments, is_asked_for, thread: None, progress }
    }

    /// Somebody asks for the file, and is told of it: nothing is logged where all goes well.
    #[must_use]
    pub fn asked_for(self) -> Self {
        Self { is_asked_for: true, ..self }
    }

    /// The volume is the one with this LUKS UUID, or may be one with another. To be said before anything is saved.
    pub fn set_luks_uuid(&mut self, uuid: Option<&str>) {
        self.header.luks_uuid = uuid.map(str::to_owned);
    }

    /// The volume has this many bytes. To be said before anything is saved.
    pub fn set_size(&mut self, size: u64) {
        self.header.size = size;
    }

    /// Saves a change after those saved before.
    pub fn save(&mut self, change: Change) {
        self.progress.lock().given += 1;
        let thread = self.thread.take().unwrap_or_else(|| self.start());
        if thread.messages.send(Message::Save(change)).is_err() {
            self.progress.write_off(&self.header.volume);
        }
        self.thread = Some(thread);
    }

    fn start(&self) -> Thread {
        let (messages, receiver) = channel();
        let header = Header { created: now(), ..self.header.clone() };
        let (dir, attachments) = (self.dir.clone(), self.attachments.clone());
        let progress = Arc::clone(&self.progress);
        let is_asked_for = self.is_asked_for;
        let work =
            Work { dir, header, attachments, is_asked_for, progress, received: 0, log: None };
        let thread = std::thread::Builder::new().name("replay log".to_owned());
        let handle = thread.spawn(move || work.run(&receiver));
        if let Err(why) = &handle {
            self.progress.lock().saved.why = Some(format!("no thread can be started: {why}"));
        }
        Thread { messages, handle: handle.ok() }
    }

    /// What became of what was saved until now; comes when that is known, and the file has its end. To be asked when
    /// nobody saves more: a file with an end says that it holds everything. `None` if nothing was saved.
    pub fn settled(&self) -> Option<impl Future<Output = Saved> + Send + use<>> {
        let (done, settled) = oneshot::channel();
        // Where it is not taken it is dropped, as it is by a thread that breaks down.
        let _ = self.thread.as_ref()?.messages.send(Message::Done(done));
        let (progress, volume) = (Arc::clone(&self.progress), self.header.volume.clone());
        Some(async move {
            if settled.await.is_err() {
                progress.write_off(&volume);
            }
            progress.lock().saved.clone()
        })
    }

    /// What has become of what was saved, as far as that is known.
    #[must_use]
    pub fn saved(&self) -> Option<Saved> {
        let Thread { handle, .. } = self.thread.as_ref()?;
        if handle.as_ref().is_none_or(JoinHandle::is_finished) {
            self.progress.write_off(&self.header.volume);
        }
        Some(self.progress.lock().saved.clone())
    }
}

/// What has become of the changes that were handed over, as both sides know it.
#[derive(Debug, Default)]
struct Progress(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    saved: Saved,
    /// Changes that were handed to the thread.
    given: u64,
    /// Those of them that are in a file, or are counted as lost.
    settled: u64,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread is no more: what it did not write is lost.
    fn write_off(&self, volume: &str) {
        let mut counts = self.lock();
        let unwritten = counts.given - counts.settled;
        if unwritten == 0 {
            return;
        }
        counts.settled = counts.given;
        counts.saved.lost += unwritten;
        let Saved { lost, why, .. } = &mut counts.saved;
        let (lost, why) = (*lost, why.get_or_insert_with(|| BROKEN.to_owned()).clone());
        drop(counts);
        // Each change that comes is counted, and the first is told of.
        if lost == unwritten {
            tell_of_loss(volume, lost, &why);
        }
    }
}

fn tell_of_loss(volume: &str, lost: u64, why: &str) {
    tracing::error!(
        volume,
        lost,
        why,
        "writes that were acknowledged or under way are lost: the replay log cannot be written"
    );
}

/// Makes sure that `dir` is there and that files can be made in it.
pub fn check_dir(dir: &Path) -> io::Result<()> {
    if dir.exists() && !dir.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    make_directories(dir, 0o700)?;
    tempfile::tempfile_in(dir).map(drop)
}

/// The thread.
struct Work {
    dir: PathBuf,
    header: Header,
    attachments: Option<PathBuf>,
    is_asked_for: bool,
    progress: Arc<Progress>,
    /// How many changes have come.
    received: u64,
    log: Option<Log>,
}

impl Work {
    fn run(mut self, messages: &Receiver<Message>) {
        while let Ok(first) = messages.recv() {
            let (mut changes, mut done) = (Vec::new(), Vec::new());
            for message in std::iter::once(first).chain(messages.try_iter()) {
                match message {
                    Message::Save(change) => changes.push(change),
                    Message::Done(waiter) => done.push(waiter),
                }
            }
            if !changes.is_empty() {
                self.received += changes.len() as u64;
                // A panic is a mistake in the program. The file is made whole after one: it tells what it lacks.
                let saved = catch_unwind(AssertUnwindSafe(|| self.save(&changes)));
                let freed = catch_unwind(AssertUnwindSafe(|| drop(changes)));
                if saved.and(freed).is_err() {
                    self.break_down();
                }
            }
            if !done.is_empty() {
                // From now on it may be applied.
                self.finish();
            }
            // Whoever waits may have gone.
            for waiter in done {
                let _ = waiter.send(());
            }
        }
    }

    fn save(&mut self, changes: &[Change]) {
        let was_whole = self.progress.lock().saved.lost == 0;
        // Nothing follows a gap: what is in the file is applied in order, and ends where it was cut.
        let (kept, failure) = match was_whole {
            true => self.append(changes),
            false => {
                self.lose(changes.len() as u64);
                (0, None)
            }
        };
        let why = failure.map(|why| format!("{}: {why}", self.dir.shown()));
        self.settle(kept as u64, (changes.len() - kept) as u64, why);
    }

    /// Gives the file its end, and lets others have it.
    fn finish(&mut self) {
        let finished = self.log.as_mut().map_or(Ok(()), Log::finish);
        if let Err(why) = finished {
            let path = self.log.as_ref().map(|log| log.path.shown().to_string());
            tracing::error!(path, %why, "the replay log cannot be given its end: it takes --partial");
            let why = format!("its end cannot be written: {why}");
            self.progress.lock().saved.why.get_or_insert(why);
        }
    }

    /// What has come and is not known to be in the file is lost: it may be there in part.
    fn break_down(&mut self) {
        let lost = self.received - self.progress.lock().settled;
        tracing::error!(
            lost,
            "an internal error: the thread that writes the replay log has broken down"
        );
        if lost > 0 {
            self.lose(lost);
            self.settle(0, lost, Some(BROKEN.to_owned()));
        }
    }

    /// So many changes are in the file, and so many are lost. That is known before it is told.
    fn settle(&mut self, kept: u64, lost: u64, why: Option<String>) {
        let mut counts = self.progress.lock();
        counts.settled += kept + lost;
        let saved = &mut counts.saved;
        let was_whole = saved.lost == 0;
        saved.lost += lost;
        if let Some(why) = why {
            saved.why.get_or_insert(why);
        }
        if let Some(log) = &self.log {
            (saved.changes, saved.bytes) = (log.whole.changes, log.whole.bytes);
            saved.path = Some(log.path.clone());
        }
        let Saved { lost, why, .. } = saved.clone();
        drop(counts);
        self.tell_of_file();
        if let Some(why) = why.filter(|_| was_whole) {
            tell_of_loss(&self.header.volume, lost, &why);
        }
    }

    /// Says where the log is, once.
    fn tell_of_file(&mut self) {
        if self.is_asked_for {
            return;
        }
        let Some(log) = self.log.as_mut().filter(|log| !log.is_told) else { return };
        log.is_told = true;
        let Position { changes, bytes, .. } = log.whole;
        tracing::error!(
            volume = self.header.volume,
            path = %log.path.shown(),
            changes,
            bytes,
            "what was acknowledged or under way, and not flushed, goes to a replay log; `longhaul replay` writes it later"
        );
    }

    /// How many of the changes are in the file, and why not all of them. A file that somebody applies, or has applied, since
    /// it had its end, is followed by another.
    fn append(&mut self, changes: &[Change]) -> (usize, Option<io::Error>) {
        if !self.log.as_mut().is_some_and(Log::resume) {
            match Log::create(&self.dir, &self.header) {
                Ok(log) => {
                    let path = log.path.clone();
                    self.log = Some(log);
                    self.note(&path);
                }
                Err(why) => return (0, Some(why)),
            }
        }
        self.log.as_mut().map_or((0, None), |log| log.append(changes))
    }

    /// Notes the file with the attachment that it is from: if it is moved away it is missed.
    fn note(&self, log: &Path) {
        let (Some(folder), Some(key)) = (&self.attachments, self.header.key) else { return };
        if let Err(why) = attachments::note_log(folder, key, log) {
            let path = log.shown();
            tracing::warn!(%path, %why, "the replay log cannot be noted: nobody misses it if it is moved");
        }
    }

    /// So many changes more should have followed in the file.
    fn lose(&mut self, changes: u64) {
        if let Some(log) = &mut self.log {
            log.lose(changes);
        }
    }
}

/// The file. Between two calls it is whole, and stable; it has its end when it is finished.
struct Log {
    file: File,
    path: PathBuf,
    at: Position,
    /// What it was when it was whole last.
    whole: Position,
    /// How many changes should have followed.
    lost: u32,
    /// Somebody was told of it.
    is_told: bool,
    /// It has its end, and others may have it.
    is_finished: bool,
}

/// A place between two records.
#[derive(Clone, Copy)]
struct Position {
    /// Where it is: that of the end, which what follows is written over.
    end: u64,
    chain: Chain,
    /// How many changes stand before it, and the bytes of their data.
    changes: u64,
    bytes: u64,
}

/// Why changes cannot be appended, and how many of them may yet.
struct Refused {
    why: io::Error,
    room_for: usize,
}

impl Log {
    fn create(dir: &Path, header: &Header) -> io::Result<Self> {
        check_dir(dir)?;
        let (file, path) = new_file(dir, header)?;
        let preamble = preamble(header);
        let chain = Chain::begin(&preamble);
        let end = (preamble.len() + chain.0.len()) as u64;
        let at = Position { end, chain, changes: 0, bytes: 0 };
        let mut log =
            Self { file, path, at, whole: at, lost: 0, is_told: false, is_finished: false };
        let begun = (|| {
            log.file.write_all(&preamble)?;
            log.file.write_all(&chain.0)?;
            log.try_append(&[]).map_err(|refused| refused.why)?;
            File::open(dir)?.sync_all()
        })();
        match begun {
            Ok(()) => Ok(log),
            Err(why) => {
                // It holds nothing.
                drop(fs::remove_file(&log.path));
                Err(why)
            }
        }
    }

    /// Appends as many of the changes as there is room for, from the first on; how many, and why not all.
    fn append(&mut self, changes: &[Change]) -> (usize, Option<io::Error>) {
        let (mut kept, mut failure) = (changes.len(), None);
        loop {
            self.at = self.whole;
            let Err(Refused { why, room_for }) = self.try_append(&changes[..kept]) else {
                self.whole = self.at;
                return (kept, failure);
            };
            failure.get_or_insert(why);
            if kept == 0 {
                // Its records are as they were: only the end is missing.
                tracing::error!(path = %self.path.shown(), "the replay log is torn");
                return (0, failure);
            }
            // All of it is written again, in the same place: a page that could not be made stable is not tried again
            // by itself. What was torn off is cut off last, so that nobody else takes its room before.
            kept = room_for;
            self.lost = u32::try_from(changes.len() - kept).unwrap_or(u32::MAX);
        }
    }

    /// Puts the end to it, and lets others have it.
    fn finish(&mut self) -> io::Result<()> {
        if self.is_finished {
            return Ok(());
        }
        self.is_finished = true;
        self.at = self.whole;
        let ended = self.file.seek(SeekFrom::Start(self.at.end)).and_then(|_| {
            self.put_mark(Mark::End)?;
            self.file.sync_all()
        });
        let unlocked = flock(&self.file, FlockOperation::Unlock);
        ended?;
        Ok(unlocked?)
    }

    /// Has it for itself again, if it is as it was left and where it was.
    fn resume(&mut self) -> bool {
        if self.is_finished {
            let is_ours = flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok();
            let identity = |file: fs::Metadata| (file.dev(), file.ino());
            let there = fs::metadata(&self.path).map(identity).ok();
            let here = self.file.metadata().map(identity).ok();
            self.is_finished = !(is_ours && here.is_some() && here == there);
        }
        !self.is_finished
    }

    /// Says that so many changes more should have followed. The end has its room.
    fn lose(&mut self, changes: u64) {
        self.lost = self.lost.saturating_add(u32::try_from(changes).unwrap_or(u32::MAX));
        self.append(&[]);
    }

    fn try_append(&mut self, changes: &[Change]) -> Result<(), Refused> {
        let refused = |room_for| move |why| Refused { why, room_for };
        self.file.seek(SeekFrom::Start(self.at.end)).map_err(refused(0))?;
        for (before, change) in changes.iter().enumerate() {
            let data = match change {
                Change::Write { data, .. } => &data[..],
                Change::Zero { .. } | Change::Discard(_) => &[],
            };
            self.at.end += self.put(&Head::of(change), data).map_err(refused(before))?;
            self.at.changes += 1;
            self.at.bytes += data.len() as u64;
        }
        // No record is shorter than the mark, so there is room for it if the last one goes.
        self.put_mark(Mark::Unfinished).map_err(refused(changes.len().saturating_sub(1)))?;
        // The system does not say how much of it is stable.
        self.file.sync_all().map_err(refused(changes.len() / 2))
    }

    /// Writes what the file ends with.
    fn put_mark(&mut self, mark: Mark) -> io::Result<()> {
        let (Position { end, chain, changes, bytes }, lost) = (self.at, self.lost);
        let len = self.put(&Head::Last { mark, changes, bytes, lost }, &[])?;
        self.at.chain = chain;
        self.file.set_len(end + len)
    }

    /// Writes a record; its length.
    fn put(&mut self, head: &Head, data: &[u8]) -> io::Result<u64> {
        let head = head.encode();
        let chain = self.at.chain.next(&head, data);
        self.at.chain = chain;
        self.file.write_all(&head)?;
        self.file.write_all(data)?;
        self.file.write_all(&chain.0)?;
        Ok((head.len() + data.len() + chain.0.len()) as u64)
    }
}

/// A file that was not there before, which only its owner may read.
fn new_file(dir: &Path, header: &Header) -> io::Result<(File, PathBuf)> {
    let name = header.target.rsplit(':').next().unwrap_or_default();
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let name: String = name.chars().take(64).map(safe).collect();
    let Header { lun, created, .. } = header;
    for number in 1..=NAMES_MAX {
        let path = dir.join(format!("{name}-{lun}-{created}-{number}.replay"));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
            Err(why) => return Err(why),
            Ok(file) => {
                // Nobody is to apply it before it has been written.
                flock(&file, FlockOperation::NonBlockingLockExclusive)?;
                return Ok((file, path));
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests;
