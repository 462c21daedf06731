//! Files that a directory lists, opened so that nothing else there can keep the program waiting: opening a pipe waits for
//! its other end, and opening a device may do anything.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens the file at `path` for reading; an error if it is no regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    check(&fs::metadata(path)?)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    // Another one may be there by now.
    check(&file.metadata()?)?;
    Ok(file)
}

/// Reads the file at `path`; an error if it is no regular file.
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn check(found: &Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        assert_eq!(read_regular(&at("file")).unwrap(), b"text");
        assert_eq!(read_regular(&at("link")).unwrap(), b"text");
        for other in [at("pipe"), at("socket"), dir.path().into(), "/dev/null".into()] {
            assert_eq!(open_regular(&other).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
