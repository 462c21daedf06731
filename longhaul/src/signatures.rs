//! What a volume holds, by its signatures: file systems, partition tables, members of volume managers and arrays, disk
//! images. Who makes one writes a signature at a fixed place; libblkid and wipefs(8) know them by the same places.
//!
//! libblkid itself reads files and devices only, and a volume may be neither.

use futures_util::future::join_all;
use volume::layer::mirror;
use volume::{Shape, Span, Volume};

use At::{BeforeEnd, Start};

use crate::data_spans;

/// Where a signature lies.
#[derive(Clone, Copy, Debug)]
enum At {
    /// So many bytes from the start.
    Start(u64),
    /// So many bytes before the end, which is rounded down to a multiple of `align`.
    BeforeEnd { align: u64, back: u64 },
}

impl At {
    fn offset(self, size: u64) -> Option<u64> {
        match self {
            Start(at) => Some(at),
            BeforeEnd { align, back } => (size - size % align).checked_sub(back),
        }
    }
}

/// The last bytes of a volume, with blocks of this size.
const fn last(align: u64, back: u64) -> At {
    BeforeEnd { align, back }
}

const BTRFS: &str = "a Btrfs file system";
const GPT: &str = "a GPT partition table";
const JOURNAL: &str = "the journal of a volume";
const LVM: &str = "an LVM physical volume";
pub(crate) const MIRROR: &str = "a member of a Longhaul mirror";
const OCFS2: &str = "an OCFS2 file system";
const RAID: &str = "a member of a Linux RAID array";
const REISERFS: &str = "a ReiserFS file system";
const STRATIS: &str = "a member of a Stratis pool";
const SWAP: &str = "swap space";
const TAPE: &str = "a tape";
const UFS: &str = "a UFS file system";
const VHD: &str = "a VHD disk image";
const VMDK: &str = "a VMDK disk image";
const ZFS: &str = "a member of a ZFS pool";

/// Signatures: place, bytes, and what has them. The first that is found counts: what is weak comes last.
const KNOWN: &[(At, &[u8], &str)] = &[
    (Start(512), b"EFI PART", GPT),
    (Start(4096), b"EFI PART", GPT),
    (Start(1080), b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (Start(0), b"XFSB", "an XFS file system"),
    (Start(65_600), b"_BHRfS_M", BTRFS),
    (Start(0), b"LABELONE", LVM),
    (Start(512), b"LABELONE", LVM),
    (Start(1024), b"LABELONE", LVM),
    (Start(1536), b"LABELONE", LVM),
    (Start(1024), b"\x10\x20\xf5\xf2", "an F2FS file system"),
    // At the end of a page, whose size is the machine's.
    (Start(4086), b"SWAPSPACE2", SWAP),
    (Start(8182), b"SWAPSPACE2", SWAP),
    (Start(16_374), b"SWAPSPACE2", SWAP),
    (Start(65_526), b"SWAPSPACE2", SWAP),
    (Start(4086), b"S1SUSPEND\0", "the memory of a machine that sleeps"),
    (Start(32_769), b"CD001", "an ISO 9660 file system"),
    (Start(32_769), b"BEA01", "a UDF file system"),
    // Metadata 1.1 and 1.2 at the start, 1.0 and 0.90 at the end; the oldest in the byte order of its machine.
    (Start(0), b"\xfc\x4e\x2b\xa9\x01\0\0\0", RAID),
    (Start(4096), b"\xfc\x4e\x2b\xa9\x01\0\0\0", RAID),
    (last(4096, 8192), b"\xfc\x4e\x2b\xa9\x01\0\0\0", RAID),
    (last(65_536, 65_536), b"\xfc\x4e\x2b\xa9", RAID),
    (last(65_536, 65_536), b"\xa9\x2b\x4e\xfc", RAID),
    (last(512, 512), b"\xde\x11\xde\x11", "a member of a DDF RAID array"),
    (last(512, 1024), b"Intel Raid ISM Cfg Sig. ", "a member of an Intel RAID array"),
    (Start(0), b"hsqs", "a SquashFS file system"),
    (Start(0), b"sqsh", "a SquashFS file system"),
    (Start(1024), b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    (Start(0), b"dmvdo001", "a VDO volume"),
    (
        Start(4120),
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        "a bcache device",
    ),
    (
        Start(4120),
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        "a bcachefs file system",
    ),
    (Start(65_588), b"ReIsEr", REISERFS),
    (Start(8244), b"ReIsEr", REISERFS),
    (Start(65_536), b"ReIsEr4", REISERFS),
    (Start(1024), b"\x02\0\0\0\0\0\x34\x34", "a NILFS2 file system"),
    (last(4096, 4096), b"\x02\0\0\0\0\0\x34\x34", "a NILFS2 file system"),
    (Start(32), b"NXSB", "an APFS container"),
    (Start(1024), b"H+\0\x04", "an HFS+ file system"),
    (Start(1024), b"HX\0\x05", "an HFS+ file system"),
    (Start(32_768), b"JFS1", "a JFS file system"),
    (Start(65_536), b"\x01\x16\x19\x70", "a GFS2 file system"),
    (Start(1024), b"OCFSV2", OCFS2),
    (Start(2048), b"OCFSV2", OCFS2),
    (Start(4096), b"OCFSV2", OCFS2),
    (Start(8192), b"OCFSV2", OCFS2),
    (Start(9564), b"\x54\x19\x01\0", UFS),
    (Start(66_908), b"\x19\x01\x54\x19", UFS),
    (Start(1 << 20), b"\x0d\xd0\x01\xc0", "a member of a VMFS file system"),
    (Start(2 << 20), b"\x5e\xf1\xab\x2f", "a VMFS file system"),
    (Start(3), b"-FVE-FS-", "a BitLocker volume"),
    (Start(516), b"!Stra0tis\x86\xff\x02^\x41rh", STRATIS),
    (Start(4612), b"!Stra0tis\x86\xff\x02^\x41rh", STRATIS),
    (Start(0), b"bluestore block device", "a Ceph BlueStore device"),
    (Start(32), b"ORCLDISK", "an Oracle ASM disk"),
    (Start(0), b"integrt\0", "a dm-integrity device"),
    (Start(0), b"verity\0\0", "a dm-verity device"),
    (Start(0), b"UBI#", "a UBI device"),
    (Start(0), b"\0\0\0ReFS\0", "a ReFS file system"),
    (Start(0), b"LUKS\xba\xbe", "a LUKS header"),
    // Ours (docs/spec/). A tape has two labels.
    (Start(0), b"LHTAPE\r\n", TAPE),
    (Start(4096), b"LHTAPE\r\n", TAPE),
    (Start(0), b"LHOVERLY", "the changes of an overlay"),
    (Start(mirror::RECORDS_AT[0]), mirror::MAGIC, MIRROR),
    (Start(mirror::RECORDS_AT[1]), mirror::MAGIC, MIRROR),
    (Start(0), b"LHJOURNL", JOURNAL),
    (Start(1 << 20), b"LHJOURNL", JOURNAL),
    (Start(0), b"LHREPLAY", "a replay log"),
    (Start(0), b"QFI\xfb", "a QCOW disk image"),
    (Start(0), b"KDMV", VMDK),
    (Start(0), b"COWD", VMDK),
    (Start(0), b"vhdxfile", "a VHDX disk image"),
    (Start(0), b"conectix", VHD),
    (last(512, 512), b"conectix", VHD),
    (Start(64), b"\x7f\x10\xda\xbe", "a VDI disk image"),
    (last(512, 512), b"EFI PART", "the second copy of a GPT partition table"),
    (last(4096, 4096), b"EFI PART", "the second copy of a GPT partition table"),
    (Start(510), b"\x55\xaa", "a boot sector or an MBR partition table"),
];

/// ZFS keeps four labels of this size, two at the start and two at the end.
const ZFS_LABEL: u64 = 256 << 10;

/// The second half of each holds uberblocks (the array is written in turn, so that any may be the first).
const ZFS_UBERBLOCKS: u64 = 128 << 10;

/// Uberblocks are multiples of this apart.
const ZFS_UBERBLOCK_MIN: u64 = 1 << 10;

/// The magic number of an uberblock, in the byte order of the machine that wrote it.
const ZFS_MAGIC: [[u8; 8]; 2] = [0x00ba_b10c_u64.to_le_bytes(), 0x00ba_b10c_u64.to_be_bytes()];

/// What is looked at at the start: two labels of ZFS.
const AT_START: u64 = 2 * ZFS_LABEL;

/// What is looked at at the end: two labels, before a rest that is shorter than one.
const AT_END: u64 = 3 * ZFS_LABEL;

/// What is looked at elsewhere: the largest block of a volume there is.
const ELSEWHERE: u64 = 64 << 10;

/// Pieces of a volume: where they begin, and what they hold.
struct Pieces {
    size: u64,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl Pieces {
    fn hold(&self, at: u64, magic: &[u8]) -> bool {
        self.pieces.iter().any(|(start, bytes)| {
            let within = at.checked_sub(*start).and_then(|within| usize::try_from(within).ok());
            let rest = within.and_then(|within| bytes.get(within..));
            rest.is_some_and(|rest| rest.starts_with(magic))
        })
    }

    fn signature(&self) -> Option<&'static str> {
        let known = KNOWN.iter().find(|(at, magic, _)| {
            at.offset(self.size).is_some_and(|offset| self.hold(offset, magic))
        });
        // The boot sector is the weakest of all, and ZFS leaves room for one.
        match known {
            Some((_, _, name)) if *name != KNOWN[KNOWN.len() - 1].2 => Some(name),
            weak => self.zfs().or_else(|| weak.map(|(_, _, name)| *name)),
        }
    }

    fn zfs(&self) -> Option<&'static str> {
        let end = self.size - self.size % ZFS_LABEL;
        let at_end = [end.checked_sub(2 * ZFS_LABEL), end.checked_sub(ZFS_LABEL)];
        let mut labels = [0, ZFS_LABEL].into_iter().chain(at_end.into_iter().flatten());
        let has_uberblock = |label: u64| {
            let mut places = (ZFS_UBERBLOCKS..ZFS_LABEL).step_by(ZFS_UBERBLOCK_MIN as usize);
            places.any(|at| ZFS_MAGIC.iter().any(|magic| self.hold(label + at, magic)))
        };
        labels.any(has_uberblock).then_some(ZFS)
    }
}

/// What `start`, the first bytes of a volume, shows of a file system, a partition table or the like.
pub(crate) fn at_start(start: &[u8]) -> Option<&'static str> {
    let known = KNOWN.iter().filter_map(|(at, magic, name)| match at {
        Start(at) => Some((usize::try_from(*at).ok()?, magic, name)),
        BeforeEnd { .. } => None,
    });
    let mut found =
        known.filter(|(at, magic, _)| start.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    found.next().map(|(_, _, name)| *name)
}

/// What is recognised on `volume`, at its start and at its end. Where there is nothing, there may still be data.
pub(crate) async fn recognise(volume: &dyn Volume) -> volume::Result<Option<&'static str>> {
    let size = volume.shape().size;
    let elsewhere = KNOWN.iter().filter_map(|(at, _, _)| match at {
        Start(at) if *at >= AT_START => Some(Span::new(*at, ELSEWHERE)),
        _ => None,
    });
    let end = size.saturating_sub(AT_END).next_multiple_of(ELSEWHERE).min(size);
    let spans = [Span::new(0, AT_START), Span::new(end, size - end)].into_iter().chain(elsewhere);
    let within = |span: Span| Span::new(span.at, span.len.min(size.saturating_sub(span.at)));
    let spans: Vec<_> = spans.map(within).filter(|span| span.len > 0).collect();
    let read = join_all(spans.iter().map(|span| data_spans::read(volume, *span))).await;
    let pieces = spans.iter().zip(read).map(|(span, bytes)| Ok((span.at, bytes?)));
    let pieces = pieces.collect::<volume::Result<_>>()?;
    Ok(Pieces { size, pieces }.signature())
}

/// Whether `volume` has a signature of this name at one of the places where it stands from the start. Only these blocks are read;
/// one that cannot be read has none.
pub(crate) async fn has(volume: &dyn Volume, wanted: &str) -> bool {
    let &Shape { size, block_size, .. } = volume.shape();
    let block = u64::from(block_size);
    let places = KNOWN.iter().filter(|(_, _, name)| *name == wanted);
    let places = places.filter_map(|(at, magic, _)| match at {
        Start(at) => Some((Span::new(at - at % block, block), *at, *magic)),
        BeforeEnd { .. } => None,
    });
    let looked = places.filter(|(span, ..)| span.end() <= size).map(async |(span, at, magic)| {
        let bytes = volume.read(span).await.map(|bytes| bytes.to_vec()).unwrap_or_default();
        Pieces { size, pieces: vec![(span.at, bytes)] }.hold(at, magic)
    });
    join_all(looked).await.contains(&true)
}

/// Whether a name that was recognised is that of a disk image, whose contents are not those of a disk.
pub(crate) fn is_disk_image(name: &str) -> bool {
    name.ends_with("disk image")
}

#[cfg(test)]
mod tests;
