//! Where what was read is written: standard output, or a new file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tokio::task::block_in_place;

use super::new_file::NewFile;
use super::standard_output;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;

/// How many zeroes are written at once where there can be no hole.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Whether a path stands for standard output.
pub(super) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Standard output for `-`, or else a file. One that is there already is refused, since what is in it would be lost; a
/// device or a pipe is written to.
pub(super) enum Output {
    Stream(io::Stdout),
    /// What was there: a device or a pipe.
    There(File),
    New(LazyFile),
}

impl Output {
    pub(super) fn to(path: &Path) -> Outcome<Self> {
        if is_stream(path) {
            standard_output().map_err(not_written)?;
            return Ok(Self::Stream(io::stdout()));
        }
        let cannot = || format!("cannot write {}", path.shown());
        match fs::metadata(path) {
            Ok(found) if found.is_file() => Err(Failure::new(cannot())
                .because("it exists already")
                .hint("name a new file; `-` is standard output")),
            Ok(found) if found.is_dir() => Err(Failure::new(cannot()).because("it is a directory")),
            Ok(_) => Ok(Self::There(OpenOptions::new().write(true).open(path).or_fail(cannot)?)),
            Err(_) => {
                let new = NewFile::at(path).map_err(|why| why.within(&cannot()))?;
                Ok(Self::New(LazyFile { path: path.to_owned(), new, file: None }))
            }
        }
    }

    /// So many zeroes: a hole, in a new file.
    pub(super) fn write_zeroes(&mut self, mut len: u64) -> io::Result<()> {
        if let Self::New(new) = self {
            let len = i64::try_from(len).map_err(io::Error::other)?;
            return new.file()?.seek(SeekFrom::Current(len)).map(drop);
        }
        while len > 0 {
            let piece = len.min(ZEROES.len() as u64);
            self.write_all(&ZEROES[..piece as usize])?;
            len -= piece;
        }
        Ok(())
    }

    /// All was written: a new file is made stable, and gets its name.
    pub(super) fn finish(mut self) -> Outcome {
        block_in_place(|| {
            self.flush().map_err(not_written)?;
            match self {
                Self::New(new) => new.finish(),
                Self::Stream(_) | Self::There(_) => Ok(()),
            }
        })
    }

    /// Not all was read: the failure says what has become of a new file.
    pub(super) fn fail(mut self, why: Failure) -> Failure {
        match &mut self {
            Self::New(LazyFile { new, file: Some(file), .. }) => {
                // What was read last may have been a hole.
                let _ = file.stream_position().and_then(|end| file.set_len(end));
                why.hint_first(&new.left("what was read"))
            }
            _ => why,
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stream(out) => out.write(bytes),
            Self::There(file) => file.write(bytes),
            Self::New(new) => new.file()?.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stream(out) => out.flush(),
            Self::There(file) => file.flush(),
            Self::New(new) => new.file()?.flush(),
        }
    }
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

    #[tokio::test(flavor = "multi_thread")]
    async fn file_has_its_name_once_it_is_whole_and_one_that_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        let files = || fs::read_dir(dir.path()).unwrap().count();
        drop(Output::to(&new).unwrap());
        assert_eq!(files(), 0, "nothing was read");
        let mut out = Output::to(&new).unwrap();
        out.write_all(b"some").unwrap();
        assert!(!new.exists());
        let left = out.fail(Failure::new("not all was read")).to_string();
        assert!(left.contains("new.part-") && files() == 1, "{left}");
        let mut out = Output::to(&new).unwrap();
        out.write_all(b"some").unwrap();
        out.write_zeroes(3).unwrap();
        out.finish().unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"some\0\0\0");
        fs::write(&old, "all there is").unwrap();
        assert!(Output::to(&old).is_err() && Output::to(dir.path()).is_err());
        assert_eq!(fs::read(&old).unwrap(), b"all there is");
        // An empty file of a tape is one.
        let empty = dir.path().join("empty");
        Output::to(&empty).unwrap().finish().unwrap();
        assert_eq!(fs::read(&empty).unwrap(), b"");
        let mut there = Output::to(Path::new("/dev/null")).unwrap();
        there.write_all(b"some").unwrap();
        there.write_zeroes(1 << 20).unwrap();
        there.finish().unwrap();
    }

    /// Another program may have made it meanwhile.
    #[tokio::test(flavor = "multi_thread")]
    async fn file_that_has_come_to_be_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let mut out = Output::to(&path).unwrap();
        out.write_all(b"some").unwrap();
        fs::write(&path, "of another").unwrap();
        let why = out.finish().unwrap_err().to_string();
        assert!(why.contains("all that was read is in"), "{why}");
        assert_eq!(fs::read(&path).unwrap(), b"of another");
    }
}
