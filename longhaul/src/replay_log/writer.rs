//! Writes a replay log, on a thread of its own: those who save changes hold a lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use tokio::sync::oneshot;

use super::format::{Chain, Head, preamble};
use super::{Change, Header};
use crate::attachments;
use crate::durable::make_directories;
use crate::printable::Shown as _;
use crate::utc::now;

/// How many logs of one name may be begun within a second.
const NAMES_MAX: u32 = 1000;

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
    thread: Option<Sender<Message>>,
    saved: Arc<Mutex<Saved>>,
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
        Self { dir, header, attachments, thread: None, saved: Arc::default() }
    }

    /// The volume is the one with this LUKS UUID, or may be one with another. To be said before anything is saved.
    pub fn set_luks_uuid(&mut self, uuid: Option<&str>) {
        self.header.luks_uuid = uuid.map(str::to_owned);
    }

    /// Saves a change after those saved before.
    pub fn save(&mut self, change: Change) {
        let thread = self.thread.get_or_insert_with(|| {
            let (sender, messages) = channel();
            let header = Header { created: now(), ..self.header.clone() };
            let (dir, attachments) = (self.dir.clone(), self.attachments.clone());
            let work = Work { dir, header, attachments, saved: Arc::clone(&self.saved), log: None };
            std::thread::spawn(move || work.run(&messages));
            sender
        });
        // The thread ends only after its sender.
        let _ = thread.send(Message::Save(change));
    }

    /// What became of what was saved until now; comes when that is known, and the file is closed. `None` if nothing
    /// was saved.
    pub fn settled(&self) -> Option<impl Future<Output = Saved> + Send + use<>> {
        let (done, settled) = oneshot::channel();
        self.thread.as_ref()?.send(Message::Done(done)).ok()?;
        let saved = Arc::clone(&self.saved);
        Some(async move {
            let _ = settled.await;
            saved.lock().unwrap_or_else(PoisonError::into_inner).clone()
        })
    }

    /// What has become of what was saved, as far as that is known.
    #[must_use]
    pub fn saved(&self) -> Option<Saved> {
        self.thread.as_ref()?;
        Some(self.saved.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
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
    saved: Arc<Mutex<Saved>>,
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
                self.save(&changes);
            }
            if !done.is_empty() {
                // From now on it may be applied; what is saved later goes to another.
                self.log = None;
            }
            // Whoever waits may have gone.
            for waiter in done {
                let _ = waiter.send(());
            }
        }
    }

    fn save(&mut self, changes: &[Change]) {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (had_file, was_whole) = (self.log.is_some(), saved.lost == 0);
        // Nothing follows a gap: what is in the file is applied in order, and ends where it was cut.
        let (kept, failure) = if was_whole { self.append(changes) } else { self.lose(changes) };
        saved.lost += (changes.len() - kept) as u64;
        if let Some(why) = failure {
            saved.why.get_or_insert_with(|| format!("{}: {why}", self.dir.shown()));
        }
        if let Some(log) = &self.log {
            (saved.changes, saved.bytes) = (log.changes, log.bytes);
            saved.path = Some(log.path.clone());
        }
        let Saved { path, changes, bytes, lost, why } = &saved;
        let volume = &self.header.volume;
        if let Some(path) = path.as_ref().filter(|_| !had_file && self.log.is_some()) {
            let path = path.shown();
            tracing::error!(
                volume,
                %path,
                changes,
                bytes,
                "what was acknowledged or under way, and not flushed, goes to a replay log; `longhaul replay` writes it later"
            );
        }
        if let Some(why) = why.as_ref().filter(|_| was_whole) {
            tracing::error!(
                volume,
                lost,
                why,
                "writes that were acknowledged or under way are lost: the replay log cannot be written"
            );
        }
        *self.saved.lock().unwrap_or_else(PoisonError::into_inner) = saved;
    }

    /// How many of the changes are in the file, and why not all of them.
    fn append(&mut self, changes: &[Change]) -> (usize, Option<io::Error>) {
        if self.log.is_none() {
            match Log::create(&self.dir, &self.header) {
                Ok(log) => {
                    self.note(&log.path);
                    self.log = Some(log);
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

    /// The same, where something was lost before.
    fn lose(&mut self, changes: &[Change]) -> (usize, Option<io::Error>) {
        if let Some(log) = &mut self.log {
            log.lose(changes.len());
        }
        (0, None)
    }
}

/// The file. Between two calls it is whole, and stable.
struct Log {
    file: File,
    path: PathBuf,
    /// Where its end stands, which what follows is written over.
    end: u64,
    chain: Chain,
    changes: u64,
    bytes: u64,
    /// How many changes should have followed.
    lost: u32,
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
        let mut log = Self { file, path, end, chain, changes: 0, bytes: 0, lost: 0 };
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
        let before = (self.end, self.chain, self.changes, self.bytes);
        let (mut kept, mut failure) = (changes.len(), None);
        loop {
            let Err(Refused { why, room_for }) = self.try_append(&changes[..kept]) else {
                return (kept, failure);
            };
            (self.end, self.chain, self.changes, self.bytes) = before;
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

    /// Says that so many changes more should have followed. The end has its room.
    fn lose(&mut self, changes: usize) {
        self.lost = self.lost.saturating_add(u32::try_from(changes).unwrap_or(u32::MAX));
        self.append(&[]);
    }

    fn try_append(&mut self, changes: &[Change]) -> Result<(), Refused> {
        let refused = |room_for| move |why| Refused { why, room_for };
        self.file.seek(SeekFrom::Start(self.end)).map_err(refused(0))?;
        for (before, change) in changes.iter().enumerate() {
            let data = match change {
                Change::Write { data, .. } => &data[..],
                Change::Zero { .. } | Change::Discard(_) => &[],
            };
            self.end += self.put(&Head::of(change), data).map_err(refused(before))?;
            self.changes += 1;
            self.bytes += data.len() as u64;
        }
        // No record is shorter than the end, so there is room for it if the last one goes.
        self.put_end().map_err(refused(changes.len().saturating_sub(1)))?;
        // The system does not say how much of it is stable.
        self.file.sync_all().map_err(refused(changes.len() / 2))
    }

    fn put_end(&mut self) -> io::Result<()> {
        let chain = self.chain;
        let Self { changes, bytes, lost, .. } = *self;
        let end = self.put(&Head::End { changes, bytes, lost }, &[])?;
        self.chain = chain;
        self.file.set_len(self.end + end)
    }

    /// Writes a record; its length.
    fn put(&mut self, head: &Head, data: &[u8]) -> io::Result<u64> {
        let head = head.encode();
        self.chain = self.chain.next(&head, data);
        self.file.write_all(&head)?;
        self.file.write_all(data)?;
        self.file.write_all(&self.chain.0)?;
        Ok((head.len() + data.len() + self.chain.0.len()) as u64)
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
