use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use bytes::Bytes;
use volume::Durability;
use volume::store::memory::Memory;

use super::*;

/// No multiple of anything that signatures are aligned to, but of blocks.
const SIZE: u64 = (64 << 20) + (132 << 10) + 512;

/// Writes `bytes` at `at`, whatever the blocks are.
async fn put(volume: &Memory, at: u64, bytes: &[u8]) {
    let start = at - at % 512;
    let len = (at + bytes.len() as u64).next_multiple_of(512) - start;
    let mut block = volume.read(Span::new(start, len)).await.unwrap().to_vec();
    block[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    volume.write(start, Bytes::from(block), Durability::Volatile).await.unwrap();
}

async fn found(size: u64, at: u64, bytes: &[u8]) -> Option<&'static str> {
    let volume = Memory::new(size, 512);
    put(&volume, at, bytes).await;
    recognise(&volume).await.unwrap()
}

#[tokio::test]
async fn every_signature_is_recognised_where_it_lies_and_not_beside() {
    for (at, magic, name) in KNOWN {
        let offset = at.offset(SIZE).unwrap();
        assert_eq!(found(SIZE, offset, magic).await, Some(*name), "{at:?}");
        let beside = found(SIZE, offset + 256, magic).await;
        assert_ne!(beside, Some(*name), "{at:?}");
        let start = vec![0; offset as usize].into_iter().chain(magic.iter().copied());
        let start: Vec<_> = start.collect();
        let expected = matches!(at, Start(_)).then_some(*name);
        assert_eq!(at_start(&start), expected, "{at:?}");
    }
}

#[tokio::test]
async fn blank_volume_of_any_size_holds_nothing() {
    for size in [512, 4096, 64 << 10, (256 << 10) + 512, 1 << 20, (2 << 20) + 512, SIZE] {
        let volume = Memory::new(size, 512);
        assert_eq!(recognise(&volume).await.unwrap(), None, "{size}");
    }
    assert_eq!(recognise(&Memory::new(64 << 20, 65_536)).await.unwrap(), None);
}

#[tokio::test]
async fn member_of_a_zfs_pool_is_recognised_by_any_of_its_labels() {
    let end = SIZE - SIZE % ZFS_LABEL;
    for label in [0, ZFS_LABEL, end - 2 * ZFS_LABEL, end - ZFS_LABEL] {
        for slot in [0, 1 << 10, 120 << 10, 127 << 10] {
            for magic in ZFS_MAGIC {
                let at = label + ZFS_UBERBLOCKS + slot;
                assert_eq!(found(SIZE, at, &magic).await, Some(ZFS), "{label} {slot}");
            }
        }
    }
}

/// Where bytes lie, and which.
type Writes = &'static [(u64, &'static [u8])];

const COMPARED: u64 = 64 << 20;

/// What libblkid is content with, and what it calls it. It asks most for more than a signature, such as a checksum.
const BLKID: &[(Writes, &str)] = &[
    (&[(0, b"hsqs"), (28, b"\x04")], "squashfs"),
    (&[(0, b"dmvdo001")], "vdo"),
    (&[(COMPARED - 65_536, b"\xfc\x4e\x2b\xa9\0\0\0\0\x5a")], "linux_raid_member"),
    (&[(COMPARED - 1024, b"Intel Raid ISM Cfg Sig. 1.0.00")], "isw_raid_member"),
    (&[(COMPARED - 512, b"\xde\x11\xde\x11")], "ddf_raid_member"),
    (&[(1024, b"\xe2\xe1\xf5\xe0")], "erofs"),
    (&[(1024, b"\x10\x20\xf5\xf2\x01")], "f2fs"),
    (&[(4096, b"OCFSV2")], "ocfs2"),
    (&[(32, b"NXSB"), (24, b"\x01\0\0\x80"), (36, b"\0\x10\0\0")], "apfs"),
    (&[(9564, b"\x54\x19\x01\0")], "ufs"),
    (&[(66_908, b"\x19\x01\x54\x19")], "ufs"),
    (&[(65_600, b"_BHRfS_M")], "btrfs"),
    (&[(1 << 20, b"\x0d\xd0\x01\xc0")], "VMFS_volume_member"),
    (&[(2 << 20, b"\x5e\xf1\xab\x2f")], "VMFS"),
    (&[(0, b"verity\0\0\x01")], "DM_verity_hash"),
    (&[(0, b"UBI#")], "ubi"),
    (&[(0, b"\0\0\0ReFS\0")], "ReFS"),
    (&[(0, b"LUKS\xba\xbe\0\x01")], "crypto_LUKS"),
    (&[(32, b"ORCLDISK")], "oracleasm"),
    (&[(0, b"bluestore block device")], "ceph_bluestore"),
    (&[(4086, b"SWAPSPACE2"), (1024, b"\x01\0\0\0\xff\x0f")], "swap"),
    (&[(4086, b"S1SUSPEND\0")], "swsuspend"),
];

/// What blkid(8) says of an image with these bytes, and what is recognised of them.
async fn both(writes: &[(u64, &[u8])]) -> (String, Option<&'static str>) {
    let image = tempfile::NamedTempFile::new().unwrap();
    let (volume, file) = (Memory::new(COMPARED, 512), File::create(image.path()).unwrap());
    file.set_len(COMPARED).unwrap();
    for (at, bytes) in writes {
        file.write_all_at(bytes, *at).unwrap();
        put(&volume, *at, bytes).await;
    }
    let mut blkid = Command::new("/usr/sbin/blkid");
    blkid.args(["--probe", "--output", "value", "--match-tag", "TYPE"]);
    let said = blkid.arg(image.path()).output().unwrap().stdout;
    let found = recognise(&volume).await.unwrap();
    (String::from_utf8(said).unwrap().trim().to_owned(), found)
}

#[tokio::test]
async fn blkid_finds_the_same_at_the_same_places() {
    for (writes, kind) in BLKID {
        let (said, found) = both(writes).await;
        assert_eq!(said, *kind, "by blkid");
        assert!(found.is_some(), "{kind}");
    }
    let uberblocks = (0..16).map(|slot| (ZFS_UBERBLOCKS + (slot << 10), &ZFS_MAGIC[0][..]));
    let (said, found) = both(&uberblocks.collect::<Vec<_>>()).await;
    assert_eq!((&*said, found), ("zfs_member", Some(ZFS)));
    assert_eq!(both(&[]).await, (String::new(), None));
}
