//! The block size of a device that is made of a volume.

/// So many bytes of a volume tell its block size.
pub const FRONT: u64 = 4096;

/// The block size of the device: 4096, unless what is on the volume was made for less.
#[must_use]
pub fn block_size(front: &[u8], size: u64) -> u32 {
    const LARGE: u32 = 4096;
    const SMALL: u32 = 512;
    let at = |offset: usize, len: usize| front.get(offset..offset + len).unwrap_or_default();
    // `sb_sectsize` of XFS is big-endian; `s_log_block_size` of ext4 counts doublings of 1 KiB; a partition table lies in the
    // second block.
    let made_for_less = match at(0, 4) {
        b"XFSB" => at(102, 2) < &LARGE.to_be_bytes()[2..],
        _ if at(1080, 2) == b"\x53\xef" => at(1048, 4) < &[2, 0, 0, 0][..],
        _ => at(512, 8) == b"EFI PART" || at(510, 2) == b"\x55\xaa",
    };
    if made_for_less || !size.is_multiple_of(LARGE.into()) { SMALL } else { LARGE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_large_unless_something_was_made_for_small_ones() {
        let with = |parts: &[(usize, &[u8])]| {
            let mut front = vec![0; FRONT as usize];
            for (at, bytes) in parts {
                front[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            block_size(&front, 1 << 20)
        };
        assert_eq!(with(&[]), 4096);
        assert_eq!(with(&[(0, b"XFSB"), (102, &[2, 0])]), 512);
        assert_eq!(with(&[(0, b"XFSB"), (102, &[16, 0])]), 4096);
        assert_eq!(with(&[(1080, b"\x53\xef"), (1048, &[0, 0, 0, 0])]), 512);
        assert_eq!(with(&[(1080, b"\x53\xef"), (1048, &[2, 0, 0, 0])]), 4096);
        assert_eq!(with(&[(512, b"EFI PART")]), 512);
        assert_eq!(block_size(&[0; FRONT as usize], 4096 + 512), 512);
    }
}
