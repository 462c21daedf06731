//! Where what was read is written: standard output, or a new file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::task::block_in_place;

use super::new_file::{NewFile, refuse_missing_directory};
use super::{standard_output, unless_stopped};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::stop::Stop;

/// How many zeroes are written at once where there can be no hole.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// How many pieces wait for whoever reads a pipe: one is under way while the next is read.
const PIECES_AHEAD: usize = 4;

/// Whether a path stands for standard output.
pub(super) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Standard output for `-`, or else a file. One that is there already is refused, since what is in it would be lost; a
/// device or a pipe is written to.
pub(super) enum Output {
    /// Standard output, a device or a pipe.
    There(WriterThread),
    New(LazyFile),
}

impl Output {
    pub(super) async fn to(path: &Path, stop: &Stop) -> Outcome<Self> {
        if is_stream(path) {
            standard_output().map_err(not_written)?;
            return WriterThread::start(|| Ok(io::stdout())).await.map(Self::There);
        }
        let cannot = || format!("cannot write {}", path.shown());
        match fs::metadata(path) {
            Ok(found) if found.is_file() => Err(Failure::new(cannot())
                .because("it exists already")
                .hint("name a new file; `-` is standard output")),
            Ok(found) if found.is_dir() => Err(Failure::new(cannot()).because("it is a directory")),
            Ok(found) => {
                let there = path.to_owned();
                // A named pipe opens once somebody reads it (fifo(7)).
                let is_disk = found.file_type().is_block_device();
                let opening = WriterThread::start(move || {
                    let file = OpenOptions::new().write(true).open(there)?;
                    Ok(Existing { file, is_disk })
                });
                let opened = unless_stopped(stop, opening).await;
                opened.map(Self::There).map_err(|why| why.within(&cannot()))
            }
            Err(_) => {
                let new = NewFile::at(path).map_err(|why| why.within(&cannot()))?;
                refuse_missing_directory(path).map_err(|why| why.within(&cannot()))?;
                Ok(Self::New(LazyFile { path: path.to_owned(), new, file: None }))
            }
        }
    }

    pub(super) async fn write(&mut self, bytes: Bytes) -> Outcome {
        match self {
            Self::There(thread) => thread.write(bytes).await,
            Self::New(new) => {
                let written = block_in_place(|| new.file()?.write_all(&bytes));
                written.map_err(not_written)
            }
        }
    }

    /// So many zeroes: a hole, in a new file.
    pub(super) async fn write_zeroes(&mut self, mut len: u64) -> Outcome {
        let thread = match self {
            Self::There(thread) => thread,
            Self::New(new) => return new.skip(len).map_err(not_written),
        };
        while len > 0 {
            let piece = len.min(ZEROES.len() as u64);
            thread.write(Bytes::from_static(&ZEROES[..piece as usize])).await?;
            len -= piece;
        }
        Ok(())
    }

    /// All was written: a new file is made stable, and gets its name.
    pub(super) async fn finish(self, stop: &Stop) -> Outcome {
        match self {
            Self::New(new) => block_in_place(|| new.finish()),
            Self::There(thread) => unless_stopped(stop, thread.end()).await,
        }
    }

    /// Not all was read: what was is written, unless nobody takes it before the stop, and the failure says what has become
    /// of a new file.
    pub(super) async fn fail(self, stop: &Stop, why: Failure) -> Failure {
        match self {
            Self::New(LazyFile { new, file: Some(mut file), .. }) => {
                // What was read last may have been a hole.
                let _ = file.stream_position().and_then(|end| file.set_len(end));
                why.hint_first(&new.left("what was read"))
            }
            Self::New(_) => why,
            Self::There(thread) => {
                if let Some(Err(unwritten)) = stop.unless_called(thread.end()).await {
                    tracing::info!("{}", unwritten.on_one_line());
                }
                why
            }
        }
    }
}

/// A thread that writes to what may take nothing for long, as a pipe that nobody reads: whoever waits for it can be
/// stopped. The thread itself cannot, and ends with the process.
pub(super) struct WriterThread {
    pieces: mpsc::Sender<Bytes>,
    /// How it ended; nothing once that was told.
    ended: Option<oneshot::Receiver<io::Result<()>>>,
}

impl WriterThread {
    async fn start<W: Write>(
        open: impl FnOnce() -> io::Result<W> + Send + 'static,
    ) -> Outcome<Self> {
        let (pieces, received) = mpsc::channel(PIECES_AHEAD);
        let (open_sender, opened) = oneshot::channel();
        let (end_sender, ended) = oneshot::channel();
        thread::spawn(move || match open() {
            Ok(out) => {
                let _ = open_sender.send(Ok(()));
                let _ = end_sender.send(write_all(out, received));
            }
            Err(why) => {
                let _ = open_sender.send(Err(why));
            }
        });
        let opened = opened.await.unwrap_or_else(|gone| Err(io::Error::other(gone)));
        opened.or_fail(|| "it cannot be opened".to_owned())?;
        Ok(Self { pieces, ended: Some(ended) })
    }

    /// Hands it on. What cannot be written fails one of the calls that follow.
    async fn write(&mut self, bytes: Bytes) -> Outcome {
        match self.pieces.send(bytes).await {
            Ok(()) => Ok(()),
            Err(_) => {
                Err(result(&mut self.ended).await.err().unwrap_or_else(Failure::output_closed))
            }
        }
    }

    /// Waits until all is written.
    async fn end(mut self) -> Outcome {
        drop(self.pieces);
        result(&mut self.ended).await
    }
}

/// What is there and is no file: a pipe, a terminal, a disk.
struct Existing {
    file: File,
    is_disk: bool,
}

impl Write for Existing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    /// A disk tells only then of what it could not write.
    fn flush(&mut self) -> io::Result<()> {
        if self.is_disk { self.file.sync_all() } else { Ok(()) }
    }
}

/// How a thread has ended, to the first that asks.
async fn result(ended: &mut Option<oneshot::Receiver<io::Result<()>>>) -> Outcome {
    let Some(ended) = ended.take() else { return Ok(()) };
    ended.await.unwrap_or_else(|gone| Err(io::Error::other(gone))).map_err(not_written)
}

/// Writes what comes until nothing more does.
fn write_all(mut out: impl Write, mut pieces: mpsc::Receiver<Bytes>) -> io::Result<()> {
    while let Some(piece) = pieces.blocking_recv() {
        out.write_all(&piece)?;
    }
    out.flush()
}

/// Why it was not written. Whoever has closed the other end has seen enough.
pub(super) fn not_written(why: io::Error) -> Failure {
    match why.kind() {
        io::ErrorKind::BrokenPipe => Failure::output_closed(),
        _ => Failure::new("cannot write what was read").because(why),
    }
}

/// A file that is made with the first bytes, or at the end: what fails before leaves none. It has its name only once it is
/// whole.
pub(super) struct LazyFile {
    path: PathBuf,
    new: NewFile,
    file: Option<File>,
}

impl LazyFile {
    fn file(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            let made = File::create_new(self.new.part());
            let named = |why: io::Error| {
                io::Error::new(why.kind(), format!("{}: {why}", self.path.shown()))
            };
            self.file = Some(made.map_err(named)?);
        }
        self.file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Leaves a hole of this length.
    fn skip(&mut self, len: u64) -> io::Result<()> {
        let len = i64::try_from(len).map_err(io::Error::other)?;
        self.file()?.seek(SeekFrom::Current(len)).map(drop)
    }

    fn finish(mut self) -> Outcome {
        let stable = |file: &mut File| {
            let end = file.stream_position()?;
            file.set_len(end)?;
            file.sync_all()
        };
        let finished = self.file().and_then(stable).and_then(|()| self.new.finish());
        finished.map_err(|why| {
            Failure::new(format!("cannot write {}", self.path.shown()))
                .because(why)
                .hint(self.new.left("all that was read"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Bytes = Bytes::from_static(b"some");

    async fn to(path: &Path) -> Outcome<Output> {
        Output::to(path, &Stop::default()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn file_has_its_name_once_it_is_whole_and_one_that_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        let files = || fs::read_dir(dir.path()).unwrap().count();
        drop(to(&new).await.unwrap());
        assert_eq!(files(), 0, "nothing was read");
        let mut out = to(&new).await.unwrap();
        out.write(SOME).await.unwrap();
        assert!(!new.exists());
        let left = out.fail(&Stop::default(), Failure::new("not all was read")).await.to_string();
        assert!(left.contains("new.part-") && files() == 1, "{left}");
        let mut out = to(&new).await.unwrap();
        out.write(SOME).await.unwrap();
        out.write_zeroes(3).await.unwrap();
        out.finish(&Stop::default()).await.unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"some\0\0\0");
        fs::write(&old, "all there is").unwrap();
        assert!(to(&old).await.is_err() && to(dir.path()).await.is_err());
        assert_eq!(fs::read(&old).unwrap(), b"all there is");
        // An empty file of a tape is one.
        let empty = dir.path().join("empty");
        to(&empty).await.unwrap().finish(&Stop::default()).await.unwrap();
        assert_eq!(fs::read(&empty).unwrap(), b"");
        let mut there = to(Path::new("/dev/null")).await.unwrap();
        there.write(SOME).await.unwrap();
        there.write_zeroes(1 << 20).await.unwrap();
        there.finish(&Stop::default()).await.unwrap();
    }

    /// Another program may have made it meanwhile.
    #[tokio::test(flavor = "multi_thread")]
    async fn file_that_has_come_to_be_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let mut out = to(&path).await.unwrap();
        out.write(SOME).await.unwrap();
        fs::write(&path, "of another").unwrap();
        let why = out.finish(&Stop::default()).await.unwrap_err().to_string();
        assert!(why.contains("all that was read is in"), "{why}");
        assert_eq!(fs::read(&path).unwrap(), b"of another");
    }
}
