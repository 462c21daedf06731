//! `enum fuse_opcode`, as far as it is used.

pub(super) const FORGET: u32 = 2;
pub(super) const GETATTR: u32 = 3;
pub(super) const SETATTR: u32 = 4;
pub(super) const OPEN: u32 = 14;
pub(super) const READ: u32 = 15;
pub(super) const WRITE: u32 = 16;
pub(super) const STATFS: u32 = 17;
pub(super) const RELEASE: u32 = 18;
pub(super) const FSYNC: u32 = 20;
pub(super) const INIT: u32 = 26;
pub(super) const DESTROY: u32 = 38;
pub(super) const BATCH_FORGET: u32 = 42;
pub(super) const FALLOCATE: u32 = 43;
