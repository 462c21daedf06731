//! Reads a replay log.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use volume::{Span, TRANSFER_MAX};

use super::format::{Chain, HEAD_LEN, HEADER_MAX, Head, MAGIC, Mark, RECORD_MIN, SUM_LEN, VERSION};
use super::{Change, Header};
use crate::regular_file::open_regular;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system says so.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is not where it was.
    #[error("it is not there, or cannot be read")]
    Missing,
    /// Somebody else reads or writes it.
    #[error("another process uses it")]
    InUse,
    /// It is something else.
    #[error("it is no replay log of Longhaul")]
    Foreign,
    /// It was written by a later version of the program.
    #[error("its format is version {0}; this program knows version {VERSION}")]
    Version(u32),
    /// Its beginning is damaged.
    #[error("its header is damaged")]
    Header,
    /// Who wrote it was killed before it had said that this is all.
    #[error(
        "it has no end: what wrote it was killed, or its machine lost power, before everything was in it; \
         the {0} changes that it holds are whole"
    )]
    Unfinished(u64),
    /// It is cut off or damaged.
    #[error(
        "it is damaged at byte {at}: {whole} changes before that are whole, and there is no end"
    )]
    Torn {
        /// Where.
        at: u64,
        /// How many records can be read.
        whole: u64,
    },
}

/// An open log, all of which was checked.
#[derive(Debug)]
pub struct Reader {
    file: BufReader<File>,
    header: Header,
    first: (u64, Chain),
    changes: u64,
    bytes: u64,
    places: Vec<Span>,
    lost: u32,
    end: End,
}

/// How a log ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Whole,
    Unfinished,
    /// It cannot be read on from this byte.
    Torn(u64),
}

impl Reader {
    /// Opens a log and reads it to its end. A torn one is opened too, as far as it is whole; see
    /// [`torn`](Self::torn).
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let file = open_regular(path)?;
        if let Err(why) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            return Err(match Self::header_of(path) {
                Err(ReadError::Foreign) => ReadError::Foreign,
                _ if why == rustix::io::Errno::WOULDBLOCK => ReadError::InUse,
                _ => ReadError::Io(why.into()),
            });
        }
        Self::read(file)
    }

    /// The same without a lock, for those who only look: it may be in use, and may be longer by now.
    pub(super) fn open_unlocked(path: &Path) -> Result<Self, ReadError> {
        Self::read(open_regular(path)?)
    }

    /// Which volume a log belongs to. Nothing else of it is read.
    pub(super) fn header_of(path: &Path) -> Result<Header, ReadError> {
        Ok(read_header(&mut BufReader::new(open_regular(path)?))?.0)
    }

    fn read(file: File) -> Result<Self, ReadError> {
        let mut file = BufReader::new(file);
        let (header, first) = read_header(&mut file)?;
        let (changes, bytes, lost, end) = (0, 0, 0, End::Whole);
        let mut places = Vec::new();
        let mut reader =
            Self { file, header, first, changes, bytes, places: Vec::new(), lost, end };
        let mut records = reader.records()?;
        let (lost, end) = loop {
            match records.next_record()? {
                Record::Change(change) => places.push(change.span()),
                Record::End { lost } => break (lost, End::Whole),
                Record::Unfinished { lost } => break (lost, End::Unfinished),
                Record::Torn => break (0, End::Torn(records.at)),
            }
        };
        (reader.changes, reader.bytes) = (records.changes, records.bytes);
        (reader.lost, reader.end) = (lost, end);
        reader.places = merged(places);
        Ok(reader)
    }

    /// Which volume it belongs to.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// How many changes it holds, and the bytes of their data.
    #[must_use]
    pub const fn holds(&self) -> (u64, u64) {
        (self.changes, self.bytes)
    }

    /// The places that they change, from the first byte on, without overlaps.
    #[must_use]
    pub fn places(&self) -> &[Span] {
        &self.places
    }

    /// How many changes should have followed and could not be saved.
    #[must_use]
    pub const fn lost(&self) -> u32 {
        self.lost
    }

    /// What is wrong if it does not end as it should: its writer was killed, or it is damaged.
    #[must_use]
    pub fn torn(&self) -> Option<ReadError> {
        match self.end {
            End::Whole => None,
            End::Unfinished => Some(ReadError::Unfinished(self.changes)),
            End::Torn(at) => Some(ReadError::Torn { at, whole: self.changes }),
        }
    }

    /// Its changes, in order.
    pub fn records(&mut self) -> io::Result<Records<'_>> {
        let (at, chain) = self.first;
        self.file.seek(SeekFrom::Start(at))?;
        let size = self.header.size;
        Ok(Records { file: &mut self.file, at, chain, size, changes: 0, bytes: 0 })
    }
}

/// The same places in order, each byte in one of them.
fn merged(mut places: Vec<Span>) -> Vec<Span> {
    places.sort_unstable_by_key(|place| place.at);
    let mut merged: Vec<Span> = Vec::new();
    for place in places.into_iter().filter(|place| place.len > 0) {
        match merged.last_mut() {
            Some(last) if place.at <= last.end() => {
                last.len = last.len.max(place.end() - last.at);
            }
            _ => merged.push(place),
        }
    }
    merged
}

fn read_header(file: &mut impl Read) -> Result<(Header, (u64, Chain)), ReadError> {
    let mut start = [0; 16];
    let foreign = |why: io::Error| match why.kind() {
        io::ErrorKind::UnexpectedEof => ReadError::Foreign,
        _ => ReadError::Io(why),
    };
    file.read_exact(&mut start).map_err(foreign)?;
    if start[..8] != MAGIC {
        return Err(ReadError::Foreign);
    }
    let number =
        |at: usize| u32::from_be_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
    let (version, len) = (number(8), number(12));
    if version != VERSION {
        return Err(ReadError::Version(version));
    }
    if len > HEADER_MAX {
        return Err(ReadError::Header);
    }
    let damaged = |why: io::Error| match why.kind() {
        io::ErrorKind::UnexpectedEof => ReadError::Header,
        _ => ReadError::Io(why),
    };
    let mut json = vec![0; len as usize];
    let mut sum = [0; SUM_LEN];
    file.read_exact(&mut json).map_err(damaged)?;
    file.read_exact(&mut sum).map_err(damaged)?;
    let preamble = [&start[..], &json].concat();
    let chain = Chain::begin(&preamble);
    if chain.0 != sum {
        return Err(ReadError::Header);
    }
    let header = serde_json::from_slice(&json).map_err(|_| ReadError::Header)?;
    Ok((header, ((preamble.len() + SUM_LEN) as u64, chain)))
}

/// What comes next in a log.
#[derive(Debug)]
pub enum Record {
    /// A change.
    Change(Change),
    /// Nothing: it ends as it should.
    End {
        /// How many changes could not be saved after the last.
        lost: u32,
    },
    /// Nothing, but more may have had to follow.
    Unfinished {
        /// How many changes could not be saved after the last.
        lost: u32,
    },
    /// Nothing that can be read.
    Torn,
}

/// The changes of a log, one after the other.
#[derive(Debug)]
pub struct Records<'a> {
    file: &'a mut BufReader<File>,
    at: u64,
    chain: Chain,
    /// Of the volume.
    size: u64,
    changes: u64,
    bytes: u64,
}

impl Records<'_> {
    /// The next.
    pub fn next_record(&mut self) -> io::Result<Record> {
        match self.read() {
            Ok(Some(record)) => Ok(record),
            Ok(None) => Ok(Record::Torn),
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => Ok(Record::Torn),
            Err(why) => Err(why),
        }
    }

    fn read(&mut self) -> io::Result<Option<Record>> {
        let mut head = [0; HEAD_LEN];
        self.file.read_exact(&mut head)?;
        let Some(decoded) = Head::decode(&head) else { return Ok(None) };
        let len = decoded.data_len();
        // A length that was damaged must not ask for that much memory.
        if len > u64::from(TRANSFER_MAX) {
            return Ok(None);
        }
        let mut data = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        self.file.read_exact(&mut data)?;
        let mut sum = [0; SUM_LEN];
        self.file.read_exact(&mut sum)?;
        let chain = self.chain.next(&head, &data);
        if chain.0 != sum {
            return Ok(None);
        }
        if let Head::Last { mark, changes, bytes, lost } = decoded {
            let is_last = self.file.read(&mut [0])? == 0;
            let whole = is_last && (changes, bytes) == (self.changes, self.bytes);
            return Ok(whole.then_some(match mark {
                Mark::End => Record::End { lost },
                Mark::Unfinished => Record::Unfinished { lost },
            }));
        }
        let change = decoded.change(data.into()).filter(|change| self.is_within(change.span()));
        let Some(change) = change else { return Ok(None) };
        self.chain = chain;
        self.at += RECORD_MIN as u64 + len;
        self.changes += 1;
        self.bytes += len;
        Ok(Some(Record::Change(change)))
    }

    const fn is_within(&self, span: Span) -> bool {
        span.end() <= self.size
    }
}
