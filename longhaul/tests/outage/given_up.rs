//! What becomes of acknowledged writes when a disk is given up: they are in a replay log, and what it holds makes
//! any version of the target whole.

use std::path::Path as FilePath;

use longhaul::pipelined::Pipelined;
use longhaul::replay_log::{Change, Reader, Record, Saved};
use longhaul::store::iscsi::ReplayLogOptions;
use volume::layer::narrow::Narrow;
use volume::layer::pipeline::Settings;
use volume::{Gate, Work};

use super::*;

fn saving(dir: &FilePath, write_behind: bool) -> ConnectOptions {
    let (dir, volume) = (dir.to_owned(), "iscsi://there/disk/0".to_owned());
    let replay_log = Some(ReplayLogOptions { dir, volume, write_behind });
    let reconnect_for = Some(Duration::from_millis(100));
    ConnectOptions { replay_log, reconnect_for, unflushed_max: 64 << 20, ..options() }
}

/// The changes in the one log in `dir`.
fn changes(saved: &Saved) -> Vec<Change> {
    let mut log = Reader::open(saved.path.as_ref().expect("a file")).unwrap();
    assert!(log.torn().is_none());
    assert_eq!(log.holds(), (saved.changes, saved.bytes));
    let header = log.header().clone();
    assert_eq!((header.target.as_str(), header.lun, header.size), (NAME, 0, SIZE));
    let mut records = log.records().unwrap();
    let mut changes = Vec::new();
    while let Record::Change(change) = records.next_record().unwrap() {
        changes.push(change);
    }
    changes
}

fn apply(contents: &mut [u8], changes: &[Change]) {
    for change in changes {
        let span = change.span();
        let place = &mut contents[span.at as usize..span.end() as usize];
        match change {
            Change::Write { data, .. } => place.copy_from_slice(data),
            Change::Zero { .. } => place.fill(0),
            // The contents may stay.
            Change::Discard(_) => {}
        }
    }
}

async fn settled(disk: &Disk) -> Saved {
    disk.close().await;
    disk.settled().await.expect("something was saved")
}

/// One request in ten flushes; the others write bytes that follow from `number`, and note them in `model` when they are
/// acknowledged.
async fn flush_or_write(
    volume: &dyn Volume,
    random: &mut Random,
    number: u64,
    span: Span,
    model: &mut [u8],
) -> Result<(), volume::Error> {
    if random.below(10) == 0 {
        return volume.flush().await;
    }
    let data = Bytes::from(vec![(1 + number % 250) as u8; span.len as usize]);
    volume.write(span.at, data.clone(), Durability::Volatile).await?;
    model[span.at as usize..span.end() as usize].copy_from_slice(&data);
    Ok(())
}

/// Ends the pipeline: what `medium` has after a crash, with what is in the log, must be `model`.
async fn log_makes_whole(
    pipelined: Pipelined,
    disk: &Disk,
    medium: &Faulty,
    seed: u64,
    model: &[u8],
    what: &str,
) {
    pipelined.close().await;
    let saved = settled(disk).await;
    assert_eq!(saved.lost, 0);
    let mut contents = medium.crash(seed).contents();
    apply(&mut contents, &changes(&saved));
    assert!(contents == model, "seed {seed}: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_acknowledged_by_a_pipeline_are_in_the_log_of_a_disk_that_is_given_up() {
    for seed in 0..20 {
        let home = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let medium = Arc::new(Faulty::new(SIZE, 512));
        let target = Target::start(slow(&medium)).await;
        let path = Path::new(target.address, seed).await;
        let disk = open(path.address, &saving(home.path(), true)).await;
        let pipelined =
            Pipelined::new("disk".to_owned(), Arc::<Disk>::clone(&disk), Settings::default());
        let volume = pipelined.volume();
        let mut model = vec![0; SIZE as usize];
        let cut = random.below(300);
        for number in 0.. {
            if number == cut {
                path.close().await;
            }
            let block = random.below(SIZE / BLOCK - 8);
            let (at, len) = (block * BLOCK, (1 + random.below(8)) * BLOCK);
            let (volume, random) = (&*volume, &mut random);
            match flush_or_write(volume, random, number, Span::new(at, len), &mut model).await {
                Ok(()) => {}
                Err(_) if number >= cut => break,
                Err(why) => panic!("{why}"),
            }
        }
        drop(volume);
        let what = "what was acknowledged is neither there nor in the log";
        log_makes_whole(pipelined, &disk, &medium, seed, &model, what).await;
    }
}

/// The target refuses a write, and with it whatever overlaps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_write_is_in_the_log_with_all_since_the_last_flush() {
    for (seed, verb) in (0..30).zip([Verb::Write, Verb::Flush].into_iter().cycle()) {
        let home = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let medium = Arc::new(Faulty::new(SIZE, 512));
        let target = Target::start(slow(&medium)).await;
        let disk = open(target.address, &saving(home.path(), true)).await;
        let pipelined =
            Pipelined::new("disk".to_owned(), Arc::<Disk>::clone(&disk), Settings::default());
        let volume = pipelined.volume();
        let mut model = vec![0; SIZE as usize];
        let fails = random.below(300);
        for number in 0.. {
            if number == fails {
                medium.fail(verb, Kind::Medium);
            }
            let block = random.below(32);
            let (at, len) = (block * BLOCK, (1 + random.below(8)) * BLOCK);
            let (volume, random) = (&*volume, &mut random);
            match flush_or_write(volume, random, number, Span::new(at, len), &mut model).await {
                Ok(()) => {}
                Err(_) if number >= fails => break,
                Err(why) => panic!("{why}"),
            }
        }
        assert!(volume.flush().await.is_err(), "no flush succeeds after a failure");
        drop(volume);
        let what = &format!("{verb} failed, and what was acknowledged is not in the log");
        log_makes_whole(pipelined, &disk, &medium, seed, &model, what).await;
    }
}

fn detach(work: Work<'static, ()>) -> Work<'static, ()> {
    let task = tokio::spawn(work);
    Box::pin(async { task.await.expect("the task runs to its end") })
}

/// Writes of parts of blocks, as those of a volume that is encrypted in small sectors on a disk with large blocks:
/// the rest of a block cannot be read any more, or is older than what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_blocks_are_in_the_log_too() {
    for (seed, cuts) in (0..20).zip([true, false].into_iter().cycle()) {
        let home = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let medium = Arc::new(Faulty::new(SIZE, 4096));
        let target = Target::start(slow(&medium)).await;
        let path = Path::new(target.address, seed).await;
        let disk = open(path.address, &saving(home.path(), true)).await;
        let narrow: Arc<dyn Volume> = Arc::new(Narrow::new(
            Arc::new(Gate::new("iscsi", Arc::<Disk>::clone(&disk))),
            512,
            detach,
        ));
        let pipelined = Pipelined::new("disk".to_owned(), narrow, Settings::default());
        let volume = pipelined.volume();
        let mut model = vec![0; SIZE as usize];
        let fails = random.below(200);
        for number in 0.. {
            match number == fails {
                true if cuts => path.close().await,
                true => medium.fail(Verb::Write, Kind::Medium),
                false => {}
            }
            let (at, len) = (random.below(256) * 512, (1 + random.below(20)) * 512);
            let (volume, random) = (&*volume, &mut random);
            match flush_or_write(volume, random, number, Span::new(at, len), &mut model).await {
                Ok(()) => {}
                Err(_) if number >= fails => break,
                Err(why) => panic!("{why}"),
            }
        }
        drop(volume);
        let what = "an acknowledged part of a block is not in the log";
        log_makes_whole(pipelined, &disk, &medium, seed, &model, what).await;
    }
}

#[tokio::test]
async fn writes_answered_by_a_target_are_in_the_log_of_a_disk_without_pipeline() {
    let home = tempfile::tempdir().unwrap();
    let target = Target::start(Arc::new(Faulty::new(SIZE, 512))).await;
    let path = Path::new(target.address, 8).await;
    let options =
        ConnectOptions { reconnect_for: Some(Duration::ZERO), ..saving(home.path(), false) };
    let disk = open(path.address, &options).await;
    let data = |byte| Bytes::from(vec![byte; 512]);
    disk.write(0, data(1), Durability::Volatile).await.unwrap();
    disk.flush().await.unwrap();
    disk.write(512, data(2), Durability::Volatile).await.unwrap();
    path.close().await;
    let refused = disk.write(1024, data(3), Durability::Volatile).await;
    assert_eq!(refused.expect_err("no outage is waited for").kind, Kind::Gone);
    let saved = settled(&disk).await;
    assert_eq!(changes(&saved), [Change::Write { at: 512, data: data(2) }]);
}

#[tokio::test]
async fn a_disk_that_was_flushed_leaves_no_log() {
    let home = tempfile::tempdir().unwrap();
    let target = Target::start(Arc::new(Faulty::new(SIZE, 512))).await;
    let disk = open(target.address, &saving(home.path(), true)).await;
    disk.write(0, vec![1; 512].into(), Durability::Volatile).await.unwrap();
    disk.flush().await.unwrap();
    disk.close().await;
    assert_eq!(disk.settled().await, None);
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_log_that_cannot_be_written_is_an_error_that_says_so() {
    let home = tempfile::tempdir().unwrap();
    let target = Target::start(Arc::new(Faulty::new(SIZE, 512))).await;
    // A file is in the way of the directory.
    let dir = home.path().join("state");
    std::fs::write(&dir, "").unwrap();
    let disk = open(target.address, &saving(&dir, true)).await;
    disk.write(0, vec![1; 512].into(), Durability::Volatile).await.unwrap();
    let saved = settled(&disk).await;
    assert_eq!((saved.path, saved.lost), (None, 1));
    assert!(saved.why.unwrap().contains("state: "));
}
