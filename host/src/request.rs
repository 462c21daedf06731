//! What is asked of a file: one system call, or the same one again where it was cut short.

use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;

use bytes::Bytes;

use crate::aligned;
use crate::file::{File, Sync};

/// One thing asked of a file, with the data it needs.
#[derive(Clone, Debug)]
pub enum Request {
    /// Bytes.
    Read {
        /// The first.
        at: u64,
        /// How many.
        len: usize,
    },
    /// Bytes to keep.
    Write {
        /// Where.
        at: u64,
        /// What.
        data: Bytes,
        /// For how sure.
        sync: Sync,
    },
    /// That every completed write is stable.
    Sync,
    /// Zeroes, whose space is given back.
    Punch {
        /// Where.
        at: u64,
        /// How many.
        len: u64,
    },
    /// Zeroes that keep their space.
    Zero {
        /// Where.
        at: u64,
        /// How many.
        len: u64,
    },
    /// Space for what may come.
    Allocate {
        /// Where.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// That the system begins to write what it keeps in its cache. Nothing is promised, and no failure of it is told:
    /// [`Sync`](Self::Sync) does that.
    WriteBack,
}

impl Request {
    /// How many bytes it is about.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Read { len, .. } => *len as u64,
            Self::Write { data, .. } => data.len() as u64,
            Self::Sync | Self::WriteBack => 0,
            Self::Punch { len, .. } | Self::Zero { len, .. } | Self::Allocate { len, .. } => *len,
        }
    }

    /// Whether it is about none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the system is asked to make something stable.
    pub(crate) const fn syncs(&self) -> bool {
        matches!(self, Self::Sync | Self::Write { sync: Sync::Now, .. })
    }

    /// Whether its failure `why` may have cost bytes that were taken before.
    ///
    /// That of a sync always may: it is also how the system tells that it could not write back what it
    /// had taken. Another is harmless if the system has only refused: it was told, and changed nothing.
    fn may_lose(&self, why: &Error) -> bool {
        match self {
            Self::Read { .. } | Self::WriteBack => false,
            Self::Sync | Self::Write { sync: Sync::Now, .. } => true,
            Self::Write { .. } | Self::Punch { .. } | Self::Zero { .. } | Self::Allocate { .. } => {
                !matches!(
                    why.kind(),
                    ErrorKind::Unsupported
                        | ErrorKind::InvalidInput
                        | ErrorKind::StorageFull
                        | ErrorKind::QuotaExceeded
                        | ErrorKind::FileTooLarge
                        | ErrorKind::ReadOnlyFilesystem
                        | ErrorKind::PermissionDenied
                        | ErrorKind::WouldBlock
                        | ErrorKind::OutOfMemory
                        | ErrorKind::ResourceBusy
                )
            }
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, at) = match self {
            Self::Read { at, .. } => ("read", at),
            Self::Write { at, sync: Sync::Later, .. } => ("write", at),
            Self::Write { at, sync: Sync::Now, .. } => ("durable write", at),
            Self::Sync => return f.write_str("flush"),
            Self::WriteBack => return f.write_str("write-back"),
            Self::Punch { at, .. } => ("discard", at),
            Self::Zero { at, .. } => ("zeroing", at),
            Self::Allocate { at, .. } => ("allocation", at),
        };
        write!(f, "{what} of {} bytes at {at}", self.len())
    }
}

impl File {
    /// Does what is asked, waiting as long as it takes. What was read comes back: less only at the end of the
    /// file, and nothing for what does not read.
    pub fn perform(&self, request: &Request) -> Result<Bytes> {
        let _under_way = request.syncs().then(|| self.syncs.begin());
        self.call(request).inspect_err(|why| self.note(request, why))
    }

    /// Keeps what a failed request may have lost.
    pub(crate) fn note(&self, request: &Request, why: &Error) {
        if request.may_lose(why) {
            self.fail(request, why);
        }
    }

    fn call(&self, request: &Request) -> Result<Bytes> {
        match *request {
            Request::Read { at, len } if self.is_direct() => return self.read_aligned(at, len),
            Request::Read { at, len } => return self.read(at, len).map(Bytes::from),
            Request::Write { at, ref data, sync } if self.is_direct() => {
                self.write(at, &aligned::aligned(data.clone()), sync)
            }
            Request::Write { at, ref data, sync } => self.write(at, data, sync),
            Request::Sync => self.sync(),
            Request::Punch { at, len } => self.punch(at, len),
            Request::Zero { at, len } => self.zero(at, len),
            Request::Allocate { at, len } => self.allocate(at, len),
            Request::WriteBack => self.begin_write_back(),
        }
        .map(|()| Bytes::new())
    }
}

/// A request under way: what of it is done, and what came back.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) request: Request,
    /// What has been read, behind the bytes that align it.
    buffer: Vec<u8>,
    /// How many those are.
    before: usize,
    /// How much has been written.
    pub(crate) written: usize,
}

impl Progress {
    /// The beginning of a request; to a file that is `direct` in memory that begins at a page.
    pub(crate) fn new(request: Request, direct: bool) -> Self {
        let len = if let Request::Read { len, .. } = request { len } else { 0 };
        let (buffer, before) =
            if direct { aligned::with_capacity(len) } else { (Vec::with_capacity(len), 0) };
        let request = match request {
            Request::Write { at, data, sync } if direct => {
                Request::Write { at, data: aligned::aligned(data), sync }
            }
            request => request,
        };
        Self { request, buffer, before, written: 0 }
    }

    /// How many bytes have been read.
    pub(crate) const fn filled(&self) -> usize {
        self.buffer.len() - self.before
    }

    /// Where the bytes go that are still to be read.
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        self.buffer.spare_capacity_mut()
    }

    /// What has been read.
    pub(crate) fn into_read(self) -> Bytes {
        Bytes::from(self.buffer).slice(self.before..)
    }

    /// A call of this request moved `moved` bytes: whether that was the last.
    pub(crate) fn advance(&mut self, moved: usize) -> Result<bool> {
        match &self.request {
            Request::Read { len, .. } => {
                let filled = self.filled() + moved;
                assert!(filled <= *len, "the system read {moved} bytes more than it was asked for");
                // SAFETY: the capacity behind `before` is `len` at least, and the system has just written these bytes.
                unsafe { self.buffer.set_len(self.before + filled) };
                Ok(moved == 0 || filled == *len)
            }
            Request::Write { data, .. } => {
                self.written += moved;
                if moved == 0 && self.written < data.len() {
                    return Err(Error::from(ErrorKind::WriteZero));
                }
                Ok(self.written >= data.len())
            }
            _ => Ok(true),
        }
    }
}
