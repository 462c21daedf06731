use futures_util::FutureExt as _;
use proto::scsi::Status;
use proto::scsi::{DeviceType, Parsed};
use tokio::sync::Semaphore;
use volume::store::blocked_writes::BlockedWrites;
use volume::store::faulty::Faulty;
use volume::store::hooked::{Hooked, go_on};
use volume::store::memory::Memory;
use volume::{CryptoErase, Error, Kind, Span, Verb, Work};

use super::super::super::test_initiator::TestInitiator;
use super::super::super::{Command, LogicalUnit as _, Nexus, Response};
use super::super::tests::*;
use super::super::{Disk, Options};
use super::*;

const OVERWRITE: [u8; 10] = [0x48, 0x01, 0, 0, 0, 0, 0, 0, 5, 0];
const ERASE: [u8; 10] = [0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0];
const CRYPTO_ERASE: [u8; 10] = [0x48, 0x03, 0, 0, 0, 0, 0, 0, 0, 0];
const EXIT: [u8; 10] = [0x48, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0];
/// One pass of one byte.
const NINES: [u8; 5] = [1, 0, 0, 1, 9];
const IMMED: u8 = 0x80;
const AUSE: u8 = 0x20;
const WRITE: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const IN_PROGRESS: Sense = Sense::new(Key::NotReady, Additional::SANITIZE_IN_PROGRESS);
const FAILED: Sense = Sense::new(Key::MediumError, Additional::SANITIZE_FAILED);

async fn send(disk: &Disk, nexus: Nexus, cdb: &[u8], data: &[u8]) -> Response {
    let data = if data.is_empty() { vec![] } else { vec![Bytes::copy_from_slice(data)] };
    let announced = data::length(&data) as u32;
    disk.execute(
        nexus,
        Command { parsed: Parsed::of(&block(cdb), DeviceType::Disk), data, announced },
    )
    .await
}

async fn refused(disk: &Disk, cdb: &[u8]) -> Sense {
    sense(&send(disk, ME, cdb, &[]).await)
}

const fn with(mut cdb: [u8; 10], flags: u8) -> [u8; 10] {
    cdb[1] |= flags;
    cdb
}

async fn first_block(disk: &Disk) -> Vec<u8> {
    good(send(disk, ME, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]).await)
}

/// Asks until the unit is ready. It will be: the sanitize has all it waits for.
async fn ready(disk: &Disk) {
    while send(disk, ME, &[0], &[]).await.status != Status::Good {
        yield_now().await;
    }
}

#[tokio::test]
async fn a_sanitized_medium_holds_nothing_of_what_was_there() {
    for (cdb, list, expected) in [(OVERWRITE, &NINES[..], 9), (ERASE, &[], 0)] {
        let disk = disk(Memory::new(SIZE, BLOCK), Options::default());
        good(send(&disk, ME, &WRITE, &[7; 512]).await);
        good(send(&disk, ME, &cdb, list).await);
        assert_eq!(first_block(&disk).await, [expected; 512]);
        let all = disk.core.volume.read(Span::new(0, SIZE)).await.unwrap();
        assert!(all.iter().all(|byte| *byte == expected));
    }
}

#[tokio::test]
async fn each_pass_turns_the_pattern_over() {
    let disk = disk(Memory::new(SIZE, BLOCK), Options::default());
    good(send(&disk, ME, &OVERWRITE, &[0x82, 0, 0, 1, 0x0F]).await);
    assert_eq!(first_block(&disk).await, [0xF0; 512]);
}

#[tokio::test]
async fn it_goes_on_whatever_initiators_do_and_only_questions_are_answered() {
    let volume = Arc::new(BlockedWrites::new(Memory::new(SIZE, BLOCK)));
    let disk = disk(Arc::clone(&volume), Options { removable: true, ..Options::default() });
    // A write that was let in before holds it up, and its data do not survive.
    let early = disk.execute(
        ME,
        Command {
            parsed: Parsed::of(&block(&WRITE), DeviceType::Disk),
            data: vec![Bytes::from(vec![7; 512])],
            announced: 512,
        },
    );
    let early = tokio::spawn(early);
    yield_now().await;
    good(send(&disk, ME, &with(OVERWRITE, IMMED), &NINES).await);
    for cdb in [&[0x00][..], &[0x1B, 0, 0, 0, 2, 0], &WRITE, &ERASE, &EXIT, &[0x25]] {
        assert_eq!(refused(&disk, cdb).await, IN_PROGRESS, "{cdb:02X?}");
    }
    good(send(&disk, ME, &[0x12, 0, 0, 0, 96, 0], &[]).await);
    disk.reset();
    disk.detach(ME);
    disk.attach(ME, TestInitiator::new(1));
    send(&disk, ME, &[0], &[]).await;
    let asked = Sense::parse(&good(send(&disk, ME, &[3, 0, 0, 0, 252, 0], &[]).await)).unwrap();
    assert_eq!(asked, Sense { progress: Some(0), ..IN_PROGRESS });
    volume.let_through(1 + (SIZE >> 20) as usize);
    good(early.await.unwrap());
    ready(&disk).await;
    assert_eq!(first_block(&disk).await, [9; 512]);
}

#[tokio::test]
async fn its_progress_is_the_part_that_is_done() {
    let volume = Arc::new(BlockedWrites::new(Memory::new(4 * SIZE, BLOCK)));
    let disk = disk(Arc::clone(&volume), Options::default());
    // Two passes.
    good(send(&disk, ME, &with(OVERWRITE, IMMED), &[2, 0, 0, 1, 9]).await);
    for eighths in 1..8 {
        volume.let_through(1);
        while progress(&disk).await < (eighths * 0xFFFF) / 8 {
            yield_now().await;
        }
        assert_eq!(progress(&disk).await, (eighths * 0xFFFF) / 8);
    }
    volume.let_through(1);
    ready(&disk).await;
}

async fn progress(disk: &Disk) -> u32 {
    let asked = good(send(disk, ME, &[3, 0, 0, 0, 252, 0], &[]).await);
    Sense::parse(&asked).unwrap().progress.unwrap().into()
}

#[test]
fn a_rate_bounds_how_soon_bytes_may_be_written() {
    let pace = |rate| Pace { begun: Instant::now(), written: 0, rate };
    assert_eq!(pace(Some(64 << 20)).takes(100 << 20), Some(Duration::from_micros(1_562_000)));
    assert_eq!(pace(Some(1)).takes(3), Some(Duration::from_secs(3)));
    assert_eq!(pace(None).takes(1 << 40), None);
}

#[tokio::test]
async fn caller_that_is_cut_off_does_not_wait_for_the_end() {
    let volume = Arc::new(BlockedWrites::new(Memory::new(SIZE, BLOCK)));
    let disk = disk(Arc::clone(&volume), Options::default());
    let list = vec![Bytes::from_static(&NINES)];
    let asked = Command {
        parsed: Parsed::of(&block(&OVERWRITE), DeviceType::Disk),
        data: list,
        announced: 5,
    };
    let mut asked = disk.execute(ME, asked);
    assert!((&mut asked).now_or_never().is_none(), "it is not done");
    asked.abort();
    assert_eq!(asked.await.status, Status::TaskAborted);
    assert_eq!(refused(&disk, &[0]).await, IN_PROGRESS);
    volume.let_through((SIZE >> 20) as usize);
    ready(&disk).await;
    assert_eq!(first_block(&disk).await, [9; 512]);
}

#[tokio::test]
async fn after_a_failure_nothing_is_read_until_the_way_out_is_taken() {
    for flags in [0, AUSE] {
        let volume = Arc::new(Faulty::new(SIZE, BLOCK));
        // What it overwrites is lost on purpose, so that a store that goes on after a failure can be sanitized.
        volume.forget();
        let disk = disk(Arc::clone(&volume), Options::default());
        volume.fail(Verb::Write, Kind::Medium);
        let failed = sense(&send(&disk, ME, &with(OVERWRITE, flags), &NINES).await);
        assert_eq!(failed, FAILED);
        assert_eq!(refused(&disk, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]).await, FAILED);
        assert_eq!(refused(&disk, &WRITE).await, FAILED);
        if flags == AUSE {
            good(send(&disk, ME, &EXIT, &[]).await);
        } else {
            assert_eq!(refused(&disk, &EXIT).await, FAILED);
            assert_eq!(refused(&disk, &with(OVERWRITE, AUSE)).await, FAILED);
            good(send(&disk, ME, &OVERWRITE, &NINES).await);
        }
        good(send(&disk, ME, &[0], &[]).await);
    }
}

#[tokio::test]
async fn a_protected_medium_is_not_sanitized() {
    let options = Options { read_only: true, ..Options::default() };
    let disk = disk(Memory::new(SIZE, BLOCK), options);
    for cdb in [OVERWRITE, ERASE, EXIT] {
        assert_eq!(refused(&disk, &cdb).await.key, Key::DataProtect);
    }
}

/// A key that waits to be destroyed, with a volume that is all nines then; or that fails to be.
struct HeldKey {
    volume: Arc<Memory>,
    permits: Semaphore,
    fails: bool,
}

impl CryptoErase for HeldKey {
    fn crypto_erase(&self) -> Work<'_, ()> {
        Box::pin(async {
            self.permits.acquire().await.expect("it is never closed").forget();
            if self.fails {
                return Err(Error::new(Kind::Medium, Verb::CryptoErase, None));
            }
            self.volume.write(0, Bytes::from(vec![9; 512]), Durability::Volatile).await
        })
    }
}

fn keyed(fails: bool) -> (Arc<HeldKey>, Disk) {
    let volume = Arc::new(Memory::new(SIZE, BLOCK));
    let key = HeldKey { volume: Arc::clone(&volume), permits: Semaphore::new(0), fails };
    let key = Arc::new(key);
    let options = Options { key: Some(Arc::clone(&key) as _), ..Options::default() };
    (key, disk(volume, options))
}

#[tokio::test]
async fn a_key_is_gone_when_the_command_ends_whatever_immed_says() {
    for flags in [0, IMMED] {
        let (key, disk) = keyed(false);
        good(send(&disk, ME, &WRITE, &[7; 512]).await);
        let cdb = block(&with(CRYPTO_ERASE, flags));
        let mut asked = disk.execute(
            ME,
            Command { parsed: Parsed::of(&cdb, DeviceType::Disk), data: vec![], announced: 0 },
        );
        assert!((&mut asked).now_or_never().is_none(), "the key is still there");
        assert_eq!(refused(&disk, &WRITE).await, IN_PROGRESS);
        key.permits.add_permits(1);
        good(asked.await);
        assert_eq!(first_block(&disk).await, [9; 512]);
    }
}

#[tokio::test]
async fn a_key_that_cannot_be_destroyed_fails_the_sanitize() {
    let (key, disk) = keyed(true);
    key.permits.add_permits(1);
    assert_eq!(refused(&disk, &with(CRYPTO_ERASE, AUSE)).await, FAILED);
    assert_eq!(refused(&disk, &WRITE).await, FAILED);
    good(send(&disk, ME, &EXIT, &[]).await);
    good(send(&disk, ME, &WRITE, &[7; 512]).await);
}

#[tokio::test]
async fn unit_without_a_key_does_not_know_the_command() {
    let disk = disk(Memory::new(SIZE, BLOCK), Options::default());
    assert_eq!(refused(&disk, &CRYPTO_ERASE).await, Sense::invalid_cdb(1, Some(4)));
}

/// Another session's WRITE SAME is between two of its chunks when a SANITIZE begins that takes hours.
#[tokio::test]
async fn command_between_two_parts_is_refused_when_a_sanitize_begins() {
    let volume = Arc::new(BlockedWrites::new(Memory::new(4 * SIZE, BLOCK)));
    let disk = disk(Arc::clone(&volume), Options { sanitize_rate: Some(1), ..Options::default() });
    let mut cdb = [0_u8; 16];
    cdb[0] = 0x93; // WRITE SAME (16)
    cdb[10..14].copy_from_slice(&8192_u32.to_be_bytes());
    let parsed = Parsed::of(&cdb, DeviceType::Disk);
    let mut same = disk
        .execute(OTHER, Command { parsed, data: vec![Bytes::from(vec![3; 512])], announced: 512 });
    assert!((&mut same).now_or_never().is_none(), "its first chunk is held");
    good(send(&disk, ME, &with(OVERWRITE, IMMED), &NINES).await);
    for _ in 0..20 {
        yield_now().await;
    }
    volume.let_through(100);
    let mut ended = None;
    for _ in 0..20 {
        ended = ended.or_else(|| (&mut same).now_or_never());
        yield_now().await;
    }
    let ended = ended.expect("it waits for the end of a sanitize that takes 48 days");
    assert_eq!(sense(&ended).additional, Additional::SANITIZE_IN_PROGRESS);
}

#[tokio::test]
async fn write_that_waits_for_a_stop_can_be_aborted() {
    let volume = Arc::new(BlockedWrites::new(Memory::new(4 * SIZE, BLOCK)));
    let disk = disk(Arc::clone(&volume), Options { sanitize_rate: Some(1), ..Options::default() });
    let first = disk.execute(
        ME,
        Command {
            parsed: Parsed::of(&block(&WRITE), DeviceType::Disk),
            data: vec![Bytes::from(vec![7; 512])],
            announced: 512,
        },
    );
    let first = tokio::spawn(first);
    yield_now().await;
    // STOP waits for the write that is under way; a write of another that comes now waits behind it.
    let stop = tokio::spawn(disk.execute(
        ME,
        Command {
            parsed: Parsed::of(&block(&[0x1B, 0, 0, 0, 0, 0]), DeviceType::Disk),
            data: vec![],
            announced: 0,
        },
    ));
    yield_now().await;
    let mut late = disk.execute(
        OTHER,
        Command {
            parsed: Parsed::of(&block(&WRITE), DeviceType::Disk),
            data: vec![Bytes::from(vec![7; 512])],
            announced: 512,
        },
    );
    assert!((&mut late).now_or_never().is_none());
    late.abort();
    let ended = late.now_or_never().expect("it waits for a stop that waits for a write");
    assert_eq!(ended.status, Status::TaskAborted);
    volume.let_through(10);
    let (first, stop) = (first.await.unwrap(), stop.await.unwrap());
    assert_eq!((first.status, stop.status), (Status::Good, Status::Good));
}

#[tokio::test]
async fn growth_during_sanitize_is_sanitized_too() {
    let small = Arc::new(BlockedWrites::new(Memory::new(SIZE, BLOCK)));
    let disk = disk(Arc::clone(&small), Options::default());
    let mut sanitizing = Box::pin(send(&disk, ME, &OVERWRITE, &NINES));
    assert!((&mut sanitizing).now_or_never().is_none());
    while small.waiting() == 0 {
        yield_now().await;
    }
    let large = Arc::new(Memory::new(2 * SIZE, BLOCK));
    let old = Bytes::from(vec![7; SIZE as usize]);
    large.write(SIZE, old, Durability::Volatile).await.unwrap();
    let _grown = disk.grown(Arc::clone(&large) as _);
    small.let_through(usize::MAX);
    good(sanitizing.await);
    let rest = large.read(Span::new(SIZE, SIZE)).await.unwrap();
    assert!(rest.iter().all(|byte| *byte == 9));
}

#[tokio::test]
async fn pace_of_what_was_added_does_not_count_what_was_there_before() {
    let disk = disk(Memory::new(SIZE, BLOCK), Options::default());
    let overwrite = Overwrite::parse(&[&NINES[..4], &[9; 1]].concat(), BLOCK).unwrap();
    let mut pace = Pace::of(Some(u64::MAX));
    let half = SIZE / 2 / u64::from(BLOCK);
    disk.core.overwrite(half, &overwrite, 0, &mut pace).await.unwrap();
    assert_eq!(pace.written, SIZE / 2);
}

#[tokio::test]
async fn sanitize_that_breaks_down_has_failed() {
    let broken = Hooked::new(Memory::new(SIZE, BLOCK), |verb, _| {
        assert_ne!(verb, Verb::Write, "a mistake");
        go_on()
    });
    let disk = disk(broken, Options::default());
    let failed = sense(&send(&disk, ME, &with(OVERWRITE, AUSE), &NINES).await);
    assert_eq!(failed, FAILED);
    assert_eq!(refused(&disk, &[0]).await, FAILED);
    good(send(&disk, ME, &EXIT, &[]).await);
    good(send(&disk, ME, &[0], &[]).await);
}
