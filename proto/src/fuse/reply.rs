//! What the kernel is answered, and told without having asked.

use super::ROOT;
use super::header::Header;

/// Reads and writes of the file go past the page cache.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;

/// Direct writes of the file need not wait for one another.
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// `struct fuse_out_header`.
const HEADER: usize = 16;

/// S_IFREG of stat(2).
const REGULAR: u32 = 0o100_000;

/// What follows the header of an answer that is no failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply(Vec<u8>);

/// What is told of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// In bytes.
    pub size: u64,
    /// What it is best read and written in.
    pub block_size: u32,
    /// Its rights.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// What statfs(2) tells of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// The unit of what follows.
    pub block_size: u32,
    /// How large it is.
    pub blocks: u64,
}

/// What the kernel is told without having asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// FUSE_NOTIFY_INVAL_INODE: the attributes of the file are others.
    AttributesChanged,
    /// FUSE_NOTIFY_RESEND: what was sent to a server that has not answered it is to be sent again.
    Resend,
}

impl Reply {
    /// What is sent before the answer to the request with this header.
    #[must_use]
    pub fn head(header: &Header, len: usize) -> [u8; HEADER] {
        out_header(len, 0, header.unique)
    }

    /// A failure, by its number in errno(3).
    #[must_use]
    pub fn failure(header: &Header, errno: i32) -> [u8; HEADER] {
        out_header(0, -errno, header.unique)
    }

    /// `struct fuse_open_out`.
    #[must_use]
    pub fn opened(handle: u64, flags: u32) -> Self {
        let mut reply = Self::default();
        reply.u64(handle).u32(flags).u32(0);
        reply
    }

    /// `struct fuse_write_out`.
    #[must_use]
    pub fn written(len: u32) -> Self {
        let mut reply = Self::default();
        reply.u32(len).u32(0);
        reply
    }

    /// `struct fuse_attr_out`: these are valid for so many seconds.
    #[must_use]
    pub fn attributes(attributes: &Attributes, seconds: u64) -> Self {
        let Attributes { size, block_size, mode, uid, gid } = *attributes;
        let mut reply = Self::default();
        reply.u64(seconds).zeroes(8);
        // `ino`, `size` and `blocks`, then three times and the parts of their seconds.
        reply.u64(ROOT).u64(size).u64(size.div_ceil(512)).zeroes(36);
        reply.u32(REGULAR | mode).u32(1).u32(uid).u32(gid);
        // `rdev`, `blksize` and `flags`.
        reply.u32(0).u32(block_size).u32(0);
        reply
    }

    /// `struct fuse_statfs_out`.
    #[must_use]
    pub fn statistics(statistics: &Statistics) -> Self {
        let Statistics { block_size, blocks } = *statistics;
        let mut reply = Self::default();
        // `blocks`, then free blocks twice, `files` and free files.
        reply.u64(blocks).u64(0).u64(0).u64(1).u64(0);
        // `bsize`, `namelen`, `frsize`, and what is unused.
        reply.u32(block_size).u32(255).u32(block_size).zeroes(28);
        reply
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.append(&value.to_ne_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.append(&value.to_ne_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.append(&value.to_ne_bytes())
    }

    pub(super) fn zeroes(&mut self, count: usize) -> &mut Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    fn append(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

impl Notice {
    /// What is sent.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        let mut body = Reply::default();
        // `enum fuse_notify_code`.
        let code = match self {
            Self::AttributesChanged => {
                // `ino`, `off` and `len`: a negative offset spares what is cached of the contents.
                body.u64(ROOT).u64(u64::MAX).u64(0);
                2
            }
            Self::Resend => 7,
        };
        let mut bytes = out_header(body.0.len(), code, 0).to_vec();
        bytes.extend_from_slice(&body.0);
        bytes
    }
}

fn out_header(len: usize, error: i32, unique: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let len = (HEADER + len) as u32;
    let fields = [&len.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes()];
    let bytes = fields.into_iter().flatten();
    header.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    header
}
