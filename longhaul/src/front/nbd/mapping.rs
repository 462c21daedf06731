//! A volume in terms of NBD: its shape, its extents and its errors.

use proto::nbd::{self, ByteRange, Errno, ErrorReply, Export, PAYLOAD_MAX};
use volume::{Durability, Extent, Kind, Space, Span, Volume};

/// The preferred block size of a volume that has no opinion.
const PREFERRED_BLOCK_SIZE: u32 = 4096;

/// What a client may ask for in one request is what a volume takes at a time.
const _: () = assert!(PAYLOAD_MAX <= volume::TRANSFER_MAX);

/// `volume` as an export.
pub(super) fn export(volume: &dyn Volume, description: &str) -> Export {
    let shape = volume.shape();
    Export {
        size: shape.size,
        minimum_block_size: shape.block_size,
        preferred_block_size: shape.physical_block_size.max(PREFERRED_BLOCK_SIZE),
        read_only: shape.read_only,
        trim: shape.discard.is_some(),
        fast_zero: shape.fast_zeroes,
        base_allocation: volume.extents().is_some(),
        description: description.to_owned(),
    }
}

pub(super) const fn span(range: ByteRange) -> Span {
    Span::new(range.offset, range.length)
}

pub(super) const fn durability(fua: bool) -> Durability {
    if fua { Durability::Durable } else { Durability::Volatile }
}

pub(super) const fn space(no_hole: bool) -> Space {
    if no_hole { Space::Keep } else { Space::Release }
}

pub(super) const fn extent(extent: &Extent) -> nbd::Extent {
    let Extent { span: Span { at, len }, hole, zero } = *extent;
    nbd::Extent { range: ByteRange::new(at, len), hole, zero }
}

/// What a client is told of a command that failed.
pub(super) fn error_reply(error: &volume::Error) -> ErrorReply {
    ErrorReply::new(errno(error.kind), error.to_string())
}

/// How failures look to an NBD client: the one table.
const fn errno(kind: Kind) -> Errno {
    match kind {
        Kind::ReadOnly => Errno::EPERM,
        Kind::Range => Errno::EINVAL,
        Kind::Unsupported => Errno::ENOTSUP,
        Kind::NoSpace => Errno::ENOSPC,
        // The export itself is going away; a client may wait for it and connect again.
        Kind::Gone => Errno::ESHUTDOWN,
        Kind::Medium | Kind::Integrity | Kind::Busy | Kind::Peer => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use volume::store::memory::Memory;
    use volume::{Shape, Verb};

    use super::*;

    #[test]
    fn shape_of_a_volume_becomes_its_export() {
        let volume = Memory::new(1 << 20, 512);
        let Shape { physical_block_size, fast_zeroes, .. } = *volume.shape();
        assert!(physical_block_size < PREFERRED_BLOCK_SIZE);
        let expected = Export {
            size: 1 << 20,
            minimum_block_size: 512,
            preferred_block_size: 4096,
            read_only: false,
            trim: true,
            fast_zero: fast_zeroes,
            base_allocation: true,
            description: "a test".to_owned(),
        };
        assert_eq!(export(&volume, "a test"), expected);
        let coarse = Memory::new(1 << 20, 16 << 10);
        assert_eq!(export(&coarse, "a test").preferred_block_size, 16 << 10);
    }

    #[test]
    fn failed_command_tells_its_number_and_its_reason() {
        let span = Span::new(0, 512);
        for (kind, number, reason) in [
            (Kind::Medium, 5, "medium error"),
            (Kind::NoSpace, 28, "no space left"),
            (Kind::Gone, 108, "the volume is gone"),
        ] {
            let reply = error_reply(&volume::Error::new(kind, Verb::Read, span));
            assert_eq!(reply.errno as u32, number);
            assert_eq!(reply.message, format!("read of 512 bytes at 0 failed: {reason}"));
        }
    }
}
