//! What the kernel asks.

use super::header::Header;
use super::opcode;
use super::reply::Reply;
use crate::reader::{Reader, Truncated};

/// The highest protocol that is spoken; the kernel speaks the lower one of both.
const VERSION: (u32, u32) = (7, 41);

/// The first protocol whose structures all are as they are here (FUSE_COMPAT_22_INIT_OUT_SIZE).
const LEAST: (u32, u32) = (7, 23);

/// FUSE_INIT_EXT: there are 32 more flags.
const INIT_EXT: u64 = 1 << 30;

/// What came is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// It is too short.
    #[error("a request {0}")]
    Truncated(#[from] Truncated),
    /// It says that it has another length.
    #[error("a request of {len} bytes says that it has {stated}")]
    Length {
        /// The bytes that came.
        len: usize,
        /// What it says.
        stated: u32,
    },
    /// The data of a write have another length.
    #[error("a write of {size} bytes comes with {len}")]
    Data {
        /// The bytes that came.
        len: usize,
        /// What it says.
        size: u32,
    },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Which.
    pub header: Header,
    /// What is asked.
    pub operation: Operation<'a>,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// FUSE_INIT.
    Init(Init),
    /// FUSE_GETATTR.
    GetAttributes,
    /// FUSE_SETATTR.
    SetAttributes(SetAttributes),
    /// FUSE_OPEN with these flags of open(2).
    Open {
        /// The flags.
        flags: u32,
    },
    /// FUSE_RELEASE of what was opened as `handle`.
    Release {
        /// Its handle.
        handle: u64,
    },
    /// FUSE_READ.
    Read {
        /// From this byte on.
        offset: u64,
        /// So many bytes.
        size: u32,
    },
    /// FUSE_WRITE to what was opened with these flags.
    Write {
        /// From this byte on.
        offset: u64,
        /// What is written.
        data: &'a [u8],
        /// The flags.
        flags: u32,
    },
    /// FUSE_FSYNC.
    Sync,
    /// FUSE_FALLOCATE with this mode of fallocate(2).
    Allocate {
        /// From this byte on.
        offset: u64,
        /// So many bytes.
        length: u64,
        /// The mode.
        mode: u32,
    },
    /// FUSE_STATFS.
    Statistics,
    /// FUSE_DESTROY: the last request.
    Destroy,
    /// FUSE_FORGET and FUSE_BATCH_FORGET, which have no answer.
    Forget,
    /// What is not known here.
    Unknown {
        /// Its number.
        opcode: u32,
    },
}

/// FUSE_INIT: what the kernel can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// Its protocol.
    pub version: (u32, u32),
    /// What it will read ahead.
    pub readahead_max: u32,
    /// What else it can.
    pub capabilities: Capabilities,
}

/// Flags of FUSE_INIT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// FUSE_ASYNC_READ: reads of one file at a time.
    pub const ASYNC_READ: Self = Self(1 << 0);
    /// FUSE_BIG_WRITES: writes of more than a page.
    pub const BIG_WRITES: Self = Self(1 << 5);
    /// FUSE_ASYNC_DIO: direct reads and writes at a time.
    pub const ASYNC_DIO: Self = Self(1 << 15);
    /// FUSE_MAX_PAGES: `max_pages` in the answer counts.
    pub const MAX_PAGES: Self = Self(1 << 22);

    /// Whether all of these are there.
    #[must_use]
    pub const fn has(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// These and those.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}

/// FUSE_SETATTR: what is to be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The size.
    pub size: Option<u64>,
    /// The rights, or the owner.
    pub changes_rights: bool,
}

/// What the kernel is told of a server.
#[derive(Clone, Copy, Debug)]
pub struct InitReply {
    /// What it takes of what the kernel can.
    pub capabilities: Capabilities,
    /// Requests that nobody waits for, at a time.
    pub background_max: u16,
    /// The largest write, in bytes.
    pub write_max: u32,
}

impl<'a> Request<'a> {
    /// Reads all of one.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BadRequest> {
        let mut reader = Reader::new(bytes);
        let stated = u32_of(&mut reader)?;
        if stated as usize != bytes.len() {
            return Err(BadRequest::Length { len: bytes.len(), stated });
        }
        let opcode = u32_of(&mut reader)?;
        let header = Header { unique: u64_of(&mut reader)?, node: u64_of(&mut reader)? };
        // The user, the group, the process, and the length of what is behind: nobody else has the file.
        reader.take(16)?;
        Ok(Self { header, operation: Operation::parse(opcode, reader)? })
    }
}

impl<'a> Operation<'a> {
    fn parse(opcode: u32, mut reader: Reader<'a>) -> Result<Self, BadRequest> {
        let reader = &mut reader;
        Ok(match opcode {
            opcode::INIT => Self::Init(Init::parse(reader)?),
            opcode::GETATTR => Self::GetAttributes,
            opcode::SETATTR => Self::SetAttributes(SetAttributes::parse(reader)?),
            opcode::OPEN => Self::Open { flags: u32_of(reader)? },
            opcode::RELEASE => Self::Release { handle: u64_of(reader)? },
            opcode::READ => {
                reader.take(8)?;
                Self::Read { offset: u64_of(reader)?, size: u32_of(reader)? }
            }
            opcode::WRITE => Self::parse_write(reader)?,
            opcode::FSYNC => Self::Sync,
            opcode::FALLOCATE => {
                reader.take(8)?;
                let (offset, length) = (u64_of(reader)?, u64_of(reader)?);
                Self::Allocate { offset, length, mode: u32_of(reader)? }
            }
            opcode::STATFS => Self::Statistics,
            opcode::DESTROY => Self::Destroy,
            opcode::FORGET | opcode::BATCH_FORGET => Self::Forget,
            opcode => Self::Unknown { opcode },
        })
    }

    /// `struct fuse_write_in`, and the data.
    fn parse_write(reader: &mut Reader<'a>) -> Result<Self, BadRequest> {
        reader.take(8)?;
        let (offset, size) = (u64_of(reader)?, u32_of(reader)?);
        // `write_flags` and `lock_owner`.
        reader.take(12)?;
        let flags = u32_of(reader)?;
        reader.take(4)?;
        let data = reader.rest();
        match data.len() == size as usize {
            true => Ok(Self::Write { offset, data, flags }),
            false => Err(BadRequest::Data { len: data.len(), size }),
        }
    }
}

impl Init {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, BadRequest> {
        let version = (u32_of(reader)?, u32_of(reader)?);
        let readahead_max = u32_of(reader)?;
        let mut flags = u64::from(u32_of(reader)?);
        if flags & INIT_EXT != 0 {
            flags |= u64::from(u32_of(reader)?) << 32;
        }
        Ok(Self { version, readahead_max, capabilities: Capabilities(flags) })
    }

    /// Whether its structures are those that are known here.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.version.0 == VERSION.0 && self.version >= LEAST
    }

    /// `struct fuse_init_out`. What the kernel cannot is not asked of it.
    #[must_use]
    pub fn reply(&self, server: &InitReply) -> Reply {
        let wanted = server.capabilities.0 & self.capabilities.0;
        let pages = server.write_max.div_ceil(4096).min(u16::MAX.into()) as u16;
        let mut reply = Reply::default();
        reply.u32(VERSION.0).u32(VERSION.1).u32(self.readahead_max).u32(wanted as u32);
        // `congestion_threshold`: when a device counts as busy; what libfuse takes.
        reply.u16(server.background_max).u16(server.background_max / 4 * 3);
        // `time_gran` in nanoseconds; `map_alignment`; `flags2`.
        reply.u32(server.write_max).u32(1).u16(pages).u16(0).u32((wanted >> 32) as u32);
        // `max_stack_depth`, `request_timeout` and what is unused.
        reply.zeroes(28);
        reply
    }
}

impl SetAttributes {
    /// `struct fuse_setattr_in`.
    fn parse(reader: &mut Reader<'_>) -> Result<Self, BadRequest> {
        // FATTR_MODE, FATTR_UID and FATTR_GID.
        const RIGHTS: u32 = 7;
        const SIZE: u32 = 8;
        let valid = u32_of(reader)?;
        reader.take(12)?;
        let size = u64_of(reader)?;
        Ok(Self { size: (valid & SIZE != 0).then_some(size), changes_rights: valid & RIGHTS != 0 })
    }
}

fn u32_of(reader: &mut Reader<'_>) -> Result<u32, Truncated> {
    reader.array().map(u32::from_ne_bytes)
}

fn u64_of(reader: &mut Reader<'_>) -> Result<u64, Truncated> {
    reader.array().map(u64::from_ne_bytes)
}
