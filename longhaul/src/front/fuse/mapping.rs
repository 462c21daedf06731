//! A volume in terms of a file: its attributes and its errors.

use proto::fuse::Attributes;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use volume::{Kind, Shape};

/// The block size of a volume that has no opinion; also what a loop device takes for the granularity of discards.
const PREFERRED_BLOCK_SIZE: u32 = 4096;

/// The unit in which the volume works best.
pub(super) fn block_size(shape: &Shape) -> u32 {
    shape.physical_block_size.max(PREFERRED_BLOCK_SIZE)
}

/// The attributes of the file: only its owner may open it.
pub(super) fn attributes(shape: &Shape) -> Attributes {
    Attributes {
        size: shape.size,
        block_size: block_size(shape),
        mode: if shape.read_only { 0o400 } else { 0o600 },
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
    }
}

/// How failures look to a program: the one table.
pub(super) const fn errno(kind: Kind) -> Errno {
    match kind {
        Kind::ReadOnly => Errno::ROFS,
        Kind::Range => Errno::INVAL,
        // Of fallocate(2): programs and loop devices write zeroes instead.
        Kind::Unsupported => Errno::OPNOTSUPP,
        Kind::NoSpace => Errno::NOSPC,
        Kind::Gone | Kind::Medium | Kind::Integrity | Kind::Busy | Kind::Peer => Errno::IO,
    }
}

/// Whether a failure is worth a line in the log: programs ask for what cannot be done to find out whether it can.
pub(super) const fn is_news(kind: Kind) -> bool {
    !matches!(kind, Kind::ReadOnly | Kind::Range | Kind::Unsupported)
}

#[cfg(test)]
mod tests {
    use volume::Volume as _;
    use volume::store::memory::Memory;

    use super::*;

    #[test]
    fn shape_of_a_volume_becomes_that_of_a_file() {
        let volume = Memory::new(1 << 20, 512);
        let found = attributes(volume.shape());
        assert_eq!((found.size, found.block_size, found.mode), (1 << 20, 4096, 0o600));
        let shape =
            Shape { read_only: true, physical_block_size: 16 << 10, ..volume.shape().clone() };
        let found = attributes(&shape);
        assert_eq!((found.block_size, found.mode), (16 << 10, 0o400));
    }
}
