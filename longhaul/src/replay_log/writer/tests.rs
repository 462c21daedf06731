use super::super::{ReadError, Reader};
use super::*;

fn header() -> Header {
    Header {
        volume: "iscsi://h/t/0".into(),
        target: "t".into(),
        size: 1 << 20,
        block_size: 512,
        key: Some(7),
        ..Header::default()
    }
}

fn change(at: u64, data: Vec<u8>) -> Change {
    Change::Write { at, data: data.into() }
}

/// Waits until so many changes are in the file; where that is.
async fn written(writer: &Writer, changes: u64) -> PathBuf {
    loop {
        let saved = writer.saved().expect("it was begun");
        if saved.changes == changes {
            return saved.path.expect("a file");
        }
        tokio::task::yield_now().await;
    }
}

/// A copy of a log that its writer has locked, as a kill of its process leaves it.
fn killed(log: &Path) -> Reader {
    let copy = log.with_extension("copy");
    fs::copy(log, &copy).unwrap();
    Reader::open(&copy).unwrap()
}

/// Who is killed before all is saved must leave no log that says that it has it all.
#[tokio::test]
async fn log_has_no_end_before_all_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path().into(), header(), None);
    for changes in 1..4 {
        writer.save(change(changes * 512, vec![1; 512]));
        let log = written(&writer, changes).await;
        assert!(matches!(Reader::open(&log), Err(ReadError::InUse)), "it is being written");
        let log = killed(&log);
        assert_eq!(log.holds(), (changes, changes * 512));
        assert!(matches!(log.torn(), Some(ReadError::Unfinished(whole)) if whole == changes));
    }
    let saved = writer.settled().expect("it was begun").await;
    assert!(Reader::open(&saved.path.unwrap()).unwrap().torn().is_none());
}

/// A change may end long after the volume was closed. It is in the same file, unless that was written meanwhile.
#[tokio::test]
async fn change_that_comes_after_the_end_is_in_the_same_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path().into(), header(), None);
    writer.save(change(0, vec![1; 512]));
    let first = writer.settled().expect("it was begun").await;
    writer.save(change(512, vec![2; 512]));
    assert!(killed(&written(&writer, 2).await).torn().is_some(), "it is open again");
    let later = writer.settled().expect("it was begun").await;
    assert_eq!((later.changes, later.bytes, &later.path), (2, 1024, &first.path));
    let path = first.path.unwrap();
    let log = Reader::open(&path).unwrap();
    assert!(log.torn().is_none() && log.holds() == (2, 1024));
    // Somebody is about to write it.
    writer.save(change(1024, vec![3; 512]));
    let last = writer.settled().expect("it was begun").await.path.unwrap();
    assert_ne!(last, path);
    assert_eq!(Reader::open(&last).unwrap().holds(), (1, 512));
    drop(log);
    assert_eq!(Reader::open(&path).unwrap().holds(), (2, 1024));
}
