//! The file that a journal is in, and reading it.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use super::scan::{Corruption, Recovered, Scan, Step};

/// Why a file did not do what was asked.
pub type FileError = Arc<dyn Error + Send + Sync>;

/// The answer of a file, still to come. A dropped one may or may not have happened.
pub type FileWork<'a, T> = Pin<Box<dyn Future<Output = Result<T, FileError>> + Send + 'a>>;

/// A file of fixed size, all of whose space is there.
pub trait JournalFile: Send + Sync + 'static {
    /// Reads all of these bytes, from the medium where the system allows that. Neither number need be a multiple of anything.
    fn read(&self, offset: u64, len: u64) -> FileWork<'_, Bytes>;

    /// Writes these bytes and has them stable: with one request to the device. `offset` and their number are multiples
    /// of [`PAGE`](super::PAGE). A crash may leave any of their sectors of 512 bytes.
    fn write(&self, offset: u64, bytes: Vec<u8>) -> FileWork<'_, ()>;

    /// Makes stable what may be in a cache.
    fn sync(&self) -> FileWork<'_, ()>;
}

/// Reads what can be read of the journal in a file of `len` bytes, and says what is wrong with it.
pub async fn salvage(file: &dyn JournalFile, len: u64) -> (Option<Recovered>, Option<Corruption>) {
    match read_through(file, len).await {
        // What was cut off cannot be read; the rest is where it was.
        (None, Some(cut @ Corruption::Cut { expected, .. })) => {
            let (found, _) = read_through(file, expected).await;
            (found, Some(cut))
        }
        ended => ended,
    }
}

async fn read_through(file: &dyn JournalFile, len: u64) -> (Option<Recovered>, Option<Corruption>) {
    let mut scan = Scan::new(len);
    loop {
        match scan.step() {
            Step::Read { offset, len } => scan.give(file.read(offset, len).await.ok().as_deref()),
            Step::Done(recovered) => return (Some(*recovered), None),
            Step::Corrupt(corruption) => return (scan.salvaged(), Some(corruption)),
        }
    }
}

/// Reads the journal in a file of `len` bytes.
///
/// # Errors
///
/// If it must not be used.
pub async fn recover(file: &dyn JournalFile, len: u64) -> Result<Recovered, Corruption> {
    let mut scan = Scan::new(len);
    loop {
        match scan.step() {
            Step::Read { offset, len } => scan.give(file.read(offset, len).await.ok().as_deref()),
            Step::Done(recovered) => return Ok(*recovered),
            Step::Corrupt(corruption) => return Err(corruption),
        }
    }
}
