//! Where what was read is written: standard output, or a new file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::standard_output;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;

/// Whether a path stands for standard output.
pub(super) fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Standard output for `-`, or else a file. One that is there already is refused, since what is in it would be lost; a
/// device or a pipe is written to. The file is made with the first bytes, or when it is flushed: what fails before leaves
/// none.
pub(super) fn output(to: &Path) -> Outcome<Box<dyn Write + Send>> {
    if is_stream(to) {
        standard_output().map_err(not_written)?;
        return Ok(Box::new(io::stdout()));
    }
    let cannot = || format!("cannot write {}", to.shown());
    match fs::metadata(to) {
        Ok(found) if found.is_file() => Err(Failure::new(cannot())
            .because("it exists already")
            .hint("name a new file; `-` is standard output")),
        Ok(found) if found.is_dir() => Err(Failure::new(cannot()).because("it is a directory")),
        Ok(_) => {
            let there = OpenOptions::new().write(true).open(to).or_fail(cannot)?;
            Ok(Box::new(there))
        }
        Err(_) => Ok(Box::new(LazyFile { path: to.to_owned(), file: None })),
    }
}

/// Why it was not written. Whoever has closed the other end has seen enough.
pub(super) fn not_written(why: io::Error) -> Failure {
    match why.kind() {
        io::ErrorKind::BrokenPipe => Failure::output_closed(),
        _ => Failure::new("cannot write what was read").because(why),
    }
}

/// A file that is made when there is something to write.
struct LazyFile {
    path: PathBuf,
    file: Option<File>,
}

impl LazyFile {
    fn file(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            self.file = Some(File::create_new(&self.path)?);
        }
        self.file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Write for LazyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file()?.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_made_with_its_first_bytes_and_one_that_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        drop(output(&new).unwrap());
        assert!(!new.exists(), "nothing was read");
        output(&new).unwrap().write_all(b"some").unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"some");
        fs::write(&old, "all there is").unwrap();
        assert!(output(&old).is_err() && output(dir.path()).is_err());
        assert_eq!(fs::read(&old).unwrap(), b"all there is");
        // An empty file of a tape is one.
        let empty = dir.path().join("empty");
        output(&empty).unwrap().flush().unwrap();
        assert_eq!(fs::read(&empty).unwrap(), b"");
        output(Path::new("/dev/null")).unwrap().write_all(b"some").unwrap();
    }
}
