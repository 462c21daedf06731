//! The super block of ext2, ext3 and ext4, as far as it says how much there is: what does not fit on the volume is refused
//! before memory is taken for it (Documentation/filesystems/ext4, super block).

use volume::{Span, Volume};

use super::error::FilesError;
use crate::signatures;

/// Where it is, and how much of it is looked at.
const AT: u64 = 1024;
const LEN: usize = 1024;

/// s_magic.
const MAGIC: u16 = 0xEF53;

/// The sizes of blocks, as powers of two over 1024: 1 KiB to 64 KiB.
const LOG_BLOCK_SIZE_MAX: u32 = 6;

/// The fewest blocks of a group: mke2fs makes no smaller ones. Each takes memory.
const BLOCKS_PER_GROUP_MIN: u32 = 256;

/// INCOMPAT_64BIT.
const INCOMPAT_64BIT: u32 = 0x80;

/// What is known of a file system before it is loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Superblock {
    /// The size of the file system, in bytes.
    pub(super) size: u64,
}

/// Looks at the super block of what is on `volume`.
pub(super) async fn check(volume: &dyn Volume) -> Result<Superblock, FilesError> {
    let size = volume.shape().size;
    let front = Span::new(0, (AT + LEN as u64).next_multiple_of(4096).min(size));
    let front = volume.read(front).await.map_err(FilesError::Volume)?;
    let superblock = front.get(AT as usize..AT as usize + LEN);
    match superblock.map(|bytes| parse(bytes, size)) {
        Some(Err(FilesError::Absent(None))) | None => {
            let found = signatures::recognise(volume).await.map_err(FilesError::Volume)?;
            Err(FilesError::Absent(found))
        }
        Some(parsed) => parsed,
    }
}

fn parse(bytes: &[u8], volume_size: u64) -> Result<Superblock, FilesError> {
    let u32_at = |at: usize| {
        let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
        field.map_or(0, u32::from_le_bytes)
    };
    if u32_at(0x38) as u16 != MAGIC {
        return Err(FilesError::Absent(None));
    }
    let log_block_size = u32_at(0x18);
    if log_block_size > LOG_BLOCK_SIZE_MAX {
        return Err(FilesError::Geometry("its blocks are larger than 64 KiB".into()));
    }
    let high = if u32_at(0x60) & INCOMPAT_64BIT != 0 { u32_at(0x150) } else { 0 };
    let blocks = u64::from(high) << 32 | u64::from(u32_at(0x4));
    let block_size = 1024_u64 << log_block_size;
    let size = blocks.checked_mul(block_size).filter(|size| *size <= volume_size);
    let Some(size) = size else {
        let why = format!(
            "its {blocks} blocks of {block_size} bytes are more than the {volume_size} bytes of the volume"
        );
        return Err(FilesError::Geometry(why));
    };
    if u32_at(0x20) < BLOCKS_PER_GROUP_MIN {
        let why = format!("its groups have {} blocks, which is too few", u32_at(0x20));
        return Err(FilesError::Geometry(why));
    }
    Ok(Superblock { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(fields: &[(usize, u32)]) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        let plain = [(0x38, u32::from(MAGIC)), (0x18, 2), (0x4, 10_240), (0x20, 32_768)];
        for (at, value) in plain.iter().chain(fields) {
            bytes[*at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn geometry_that_does_not_fit_is_refused() {
        let size = 40 << 20;
        assert_eq!(parse(&bytes(&[]), size).unwrap().size, size);
        for (field, why) in [
            ((0x38, 1), "no ext2"),
            ((0x18, 7), "larger than 64 KiB"),
            ((0x4, 10_241), "are more than"),
            ((0x20, 1), "too few"),
            ((0x20, 0), "too few"),
        ] {
            let refused = parse(&bytes(&[field]), size).unwrap_err().to_string();
            assert!(refused.contains(why), "{field:?}: {refused}");
        }
        let wide = [(0x60, INCOMPAT_64BIT), (0x150, 1)];
        assert!(parse(&bytes(&wide), size).is_err());
        assert!(
            parse(&bytes(&wide[1..]), size).is_ok(),
            "the high half counts only with the feature"
        );
    }
}
