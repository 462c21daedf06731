use std::future::ready;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::store::faulty::Faulty;
use crate::store::memory::Memory;
use crate::{TRANSFER_MAX, check};

/// Not a cipher, but it has XTS's structure: what becomes of 16 bytes depends on the key, the tweak
/// of the sector and their place in it, and on nothing else. A wrong place or tweak shows.
struct Toy {
    sector_size: u32,
}

impl Toy {
    fn apply(&self, first: u64, mut sectors: BytesMut) -> BytesMut {
        let step = u64::from(self.sector_size) / TWEAK_UNIT;
        let whole = sectors.len().is_multiple_of(self.sector_size as usize);
        assert!(whole && first.is_multiple_of(step), "ciphers work on whole sectors");
        let sectors_of = sectors.chunks_mut(self.sector_size as usize).enumerate();
        for (index, sector) in sectors_of {
            let tweak = first + index as u64 * step;
            for (place, block) in (0_u64..).zip(sector.chunks_mut(16)) {
                let mask = (tweak << 8 | place | 1 << 63).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mask = (mask ^ mask >> 29).to_le_bytes();
                for (byte, mask) in block.iter_mut().zip(mask.iter().cycle()) {
                    *byte ^= mask;
                }
            }
        }
        sectors
    }
}

impl SectorCipher for Toy {
    fn sector_size(&self) -> u32 {
        self.sector_size
    }

    fn encrypt(&self, tweak: u64, sectors: BytesMut) -> Ciphering<'_> {
        Box::pin(ready(self.apply(tweak, sectors)))
    }

    fn decrypt(&self, tweak: u64, sectors: BytesMut) -> Ciphering<'_> {
        Box::pin(ready(self.apply(tweak, sectors)))
    }
}

const HEADER: u64 = 1 << 20;

fn crypt<V: Volume>(inner: V, sector_size: u32, discards: Discards) -> Crypt<V, Toy> {
    let span = Span::new(HEADER, inner.shape().size - HEADER);
    Crypt::new(inner, Toy { sector_size }, Segment { span, first_tweak: 0 }, discards)
}

#[tokio::test]
async fn keeps_the_contract() {
    // Room for the largest transfer once; the rest is as well shown on less.
    let large = HEADER + u64::from(TRANSFER_MAX) + 65_536;
    for (seed, sector_size, size, discards) in [
        (0, 4096, large, Discards::Refuse),
        (1, 512, 6 << 20, Discards::Refuse),
        (2, 2048, 6 << 20, Discards::Pass),
        (3, 4096, 6 << 20, Discards::Pass),
    ] {
        let volume = crypt(Memory::new(size, 512), sector_size, discards);
        check::volume(seed, Arc::new(volume)).await;
    }
    check::volume(7, Arc::new(crypt(Faulty::new(6 << 20, 512), 4096, Discards::Pass))).await;
    check::volume(8, Arc::new(crypt(Memory::new(6 << 20, 4096), 512, Discards::Pass))).await;
    for discards in [Discards::Refuse, Discards::Pass] {
        check::truth(512, async |disk| Arc::new(crypt(disk, 4096, discards)) as Arc<dyn Volume>)
            .await;
    }
}

#[tokio::test]
async fn the_header_is_out_of_reach_and_the_rest_of_a_sector_unused() {
    let disk = Arc::new(Faulty::new(HEADER + 8192 + 1024, 512));
    let volume = crypt(Arc::clone(&disk), 4096, Discards::Refuse);
    assert_eq!(volume.shape().size, 8192);
    volume.write(0, Bytes::from(vec![0xee; 8192]), Durability::Volatile).await.unwrap();
    let found = disk.contents();
    assert!(found[..HEADER as usize].iter().all(|&byte| byte == 0));
    assert!(found[HEADER as usize + 8192..].iter().all(|&byte| byte == 0));
}

#[tokio::test]
async fn zeroes_are_encrypted_zeroes() {
    let disk = Arc::new(Faulty::new(HEADER + (5 << 20), 512));
    let volume = crypt(Arc::clone(&disk), 4096, Discards::Refuse);
    // Neither end is aligned to a sector, and it takes several pieces.
    let span = Span::new(512 * 3, (4 << 20) + 512);
    volume.write_zeroes(span, Durability::Durable, Space::Release).await.unwrap();
    let encrypted = Bytes::from(disk.contents()).slice(HEADER as usize..);
    let plain = Toy { sector_size: 4096 }.apply(0, BytesMut::from(&encrypted[..]));
    let range = span.at as usize..span.end() as usize;
    assert!(plain[range.clone()].iter().all(|&byte| byte == 0), "dm-crypt would read garbage");
    assert!(encrypted[range].chunks(512).all(|block| block.iter().any(|&byte| byte != 0)));
    assert_eq!(disk.crash(3).contents(), disk.contents(), "durability is passed on");
}

#[tokio::test]
async fn zeroes_are_all_handed_on_even_if_some_fail() {
    let disk = Arc::new(Faulty::new(HEADER + (64 << 20), 512));
    let volume = crypt(Arc::clone(&disk), 4096, Discards::Refuse);
    disk.fail(Verb::Write, Kind::Gone);
    let all = Span::new(0, 64 << 20);
    let failed = volume.write_zeroes(all, Durability::Volatile, Space::Keep).await.unwrap_err();
    assert_eq!(failed.kind, Kind::Gone);
    let last = volume.read(Span::new((64 << 20) - 4096, 4096)).await.unwrap();
    assert_eq!(last, vec![0; 4096]);
}

#[tokio::test]
async fn zeroes_pass_as_such_with_discards() {
    let disk = Arc::new(Memory::new(HEADER + (5 << 20), 512));
    let volume = crypt(Arc::clone(&disk), 4096, Discards::Pass);
    volume.write(0, Bytes::from(vec![7; 8192]), Durability::Durable).await.unwrap();
    volume.write_zeroes(Span::new(512, 4096), Durability::Durable, Space::Keep).await.unwrap();
    let encrypted = disk.read(Span::new(HEADER + 512, 4096)).await.unwrap();
    assert!(encrypted.iter().all(|&byte| byte == 0), "they were sent as data");
    let read = volume.read(Span::new(0, 8192)).await.unwrap();
    let zero = |range: std::ops::Range<usize>| read[range].iter().all(|&byte| byte == 0);
    assert!(zero(512..4608) && !zero(0..512) && !zero(4608..5120));
}

#[tokio::test]
async fn a_hole_reads_as_zeroes_only_where_discards_are_passed() {
    for (discards, expected) in [(Discards::Pass, true), (Discards::Refuse, false)] {
        let volume = crypt(Memory::new(HEADER + (2 << 20), 512), 4096, discards);
        assert_eq!(volume.shape().discard.is_some(), expected);
        volume.write(4096, Bytes::from(vec![7; 512]), Durability::Volatile).await.unwrap();
        // Block 1 of the sector was never written, block 0 was.
        let read = volume.read(Span::new(4096, 1024)).await.unwrap();
        assert_eq!(read[..512], [7; 512]);
        assert_eq!(read[512..].iter().all(|&byte| byte == 0), expected);
        let map = Volume::extents(&volume).expect("memory has a map");
        let extents = map.extents(Span::new(0, 2 << 20)).await.unwrap();
        assert_eq!(extents.iter().map(|extent| extent.span.len).sum::<u64>(), 2 << 20);
        assert!(extents[1].hole && extents[1].zero == expected && !extents[0].hole, "{extents:?}");
    }
}

#[tokio::test]
async fn failures_beneath_come_up_as_they_are() {
    let disk = Arc::new(Faulty::new(HEADER + 65_536, 512));
    let volume = crypt(Arc::clone(&disk), 4096, Discards::Pass);
    let span = Span::new(0, 4096);
    for (verb, kind) in [
        (Verb::Read, Kind::Medium),
        (Verb::Write, Kind::NoSpace),
        (Verb::Discard, Kind::Busy),
        (Verb::Flush, Kind::Gone),
    ] {
        disk.fail(verb, kind);
        let failed = match verb {
            Verb::Read => volume.read(span).await.map(drop),
            Verb::Write => volume.write_zeroes(span, Durability::Volatile, Space::Keep).await,
            Verb::Discard => volume.discard(span).await,
            _ => volume.flush().await,
        };
        assert_eq!(failed.unwrap_err().kind, kind);
    }
    assert!(disk.contents().iter().all(|&byte| byte == 0));
}

#[tokio::test]
async fn a_write_that_is_nobody_elses_is_encrypted_in_place() {
    let volume = crypt(Memory::new(HEADER + 65_536, 512), 4096, Discards::Refuse);
    let data = Bytes::from(vec![1; 4096]);
    let address = data.as_ptr();
    let encrypted = volume.encrypted(0, data).await;
    assert_eq!(encrypted.as_ptr(), address);
    let kept = Bytes::from(vec![1; 4096]);
    let encrypted = volume.encrypted(0, kept.clone()).await;
    assert_ne!(encrypted.as_ptr(), kept.as_ptr());
    assert_eq!(kept, vec![1; 4096], "bytes that someone else holds were changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_in_one_sector_do_not_undo_one_another() {
    let volume = crypt(Memory::new(HEADER + 65_536, 512), 4096, Discards::Refuse);
    check::neighbours(Arc::new(volume)).await;
}

#[derive(Clone, Debug)]
enum Step {
    Write { block: u64, blocks: u64, byte: u8 },
    Zero { block: u64, blocks: u64 },
    Crash { seed: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let place = (0..40_u64, 1..20_u64);
    prop_oneof![
        4 => (place.clone(), any::<u8>())
            .prop_map(|((block, blocks), byte)| Step::Write { block, blocks, byte }),
        1 => place.prop_map(|(block, blocks)| Step::Zero { block, blocks }),
        1 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..Default::default() })]

    /// After a crash without a flush each block of 512 bytes holds one of the values it had since the
    /// last one, whole: the neighbours in its sector do not matter.
    #[test]
    fn a_crash_leaves_each_block_old_or_new(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let fresh = crypt(Arc::new(Faulty::new(HEADER + 32_768, 512)), 4096, Discards::Refuse);
            fresh.write_zeroes(Span::new(0, 32_768), Durability::Durable, Space::Keep).await.unwrap();
            let mut disk = Arc::clone(&fresh.inner);
            let mut possible = vec![vec![0_u8]; 64];
            for step in steps {
                let volume = crypt(Arc::clone(&disk), 4096, Discards::Refuse);
                match step {
                    Step::Write { block, blocks, byte } => {
                        let data = Bytes::from(vec![byte; blocks as usize * 512]);
                        volume.write(block * 512, data, Durability::Volatile).await.unwrap();
                        possible[block as usize..][..blocks as usize]
                            .iter_mut()
                            .for_each(|values| values.push(byte));
                    }
                    Step::Zero { block, blocks } => {
                        let span = Span::new(block * 512, blocks * 512);
                        let zero = volume.write_zeroes(span, Durability::Durable, Space::Keep);
                        zero.await.unwrap();
                        possible[block as usize..][..blocks as usize].fill(vec![0]);
                    }
                    Step::Crash { seed } => disk = Arc::new(disk.crash(seed)),
                }
                let volume = crypt(Arc::clone(&disk), 4096, Discards::Refuse);
                let all = volume.read(Span::new(0, 32_768)).await.unwrap();
                for (block, values) in possible.iter_mut().enumerate() {
                    let bytes = &all[block * 512..][..512];
                    assert!(bytes.iter().all(|&byte| byte == bytes[0]), "block {block} is torn");
                    assert!(values.contains(&bytes[0]), "block {block} holds {}", bytes[0]);
                    if matches!(step, Step::Crash { .. }) {
                        *values = vec![bytes[0]];
                    }
                }
            }
        });
    }
}
