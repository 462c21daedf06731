//! The thread that writes a replay log, when it breaks down: what it did not write is a loss, and told.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use longhaul::replay_log::{Change, Header, Reader, Writer};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// How many of the next words of the thread to the log are too much for it.
static MISTAKES: AtomicU8 = AtomicU8::new(0);

/// A log that breaks whoever tells it something.
struct PanickingSubscriber;

impl Subscriber for PanickingSubscriber {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        let is_ours = std::thread::current().name() == Some("replay log");
        let one_fewer = |left: u8| left.checked_sub(u8::from(is_ours));
        let left = MISTAKES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_fewer);
        assert!(!is_ours || left.is_err(), "a mistake");
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Bytes that cannot be let go of.
struct PanicsWhenFreed([u8; 512]);

impl AsRef<[u8]> for PanicsWhenFreed {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for PanicsWhenFreed {
    fn drop(&mut self) {
        panic!("a mistake");
    }
}

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

fn change(at: u64, data: impl Into<Bytes>) -> Change {
    Change::Write { at, data: data.into() }
}

/// A writer in a new directory whose log cannot be noted, which it says when the file is made.
fn writer(dir: &tempfile::TempDir) -> Writer {
    Writer::new(dir.path().into(), header(), Some(PathBuf::from("/nonexistent")))
}

/// One test, since there is one log for all threads.
#[tokio::test]
async fn changes_that_a_panicked_thread_has_not_written_are_reported_lost() {
    tracing::subscriber::set_global_default(PanickingSubscriber).unwrap();
    change_that_cannot_be_let_go_of_loses_none_after_it().await;
    change_at_which_it_breaks_down_is_lost_with_all_after_it().await;
    all_that_follows_the_end_of_the_thread_is_lost().await;
}

async fn change_that_cannot_be_let_go_of_loses_none_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(&dir);
    writer.save(change(0, Bytes::from_owner(PanicsWhenFreed([1; 512]))));
    // Another batch: it waits for the first.
    while writer.saved().unwrap().changes == 0 {
        tokio::task::yield_now().await;
    }
    writer.save(change(512, vec![2; 512]));
    let saved = writer.settled().expect("it was begun").await;
    assert_eq!((saved.changes, saved.lost, saved.why), (2, 0, None));
    assert_eq!(Reader::open(&saved.path.unwrap()).unwrap().holds(), (2, 1024));
}

async fn change_at_which_it_breaks_down_is_lost_with_all_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(&dir);
    MISTAKES.store(1, Ordering::Relaxed);
    writer.save(change(0, vec![1; 512]));
    while writer.saved().unwrap().lost == 0 {
        tokio::task::yield_now().await;
    }
    writer.save(change(512, vec![2; 512]));
    let saved = writer.settled().expect("it was begun").await;
    assert_eq!((saved.changes, saved.lost), (0, 2));
    assert!(saved.why.is_some_and(|why| why.contains("an internal error")));
    assert_eq!(writer.saved().unwrap().lost, 2);
    let log = Reader::open(&saved.path.expect("it was made")).unwrap();
    assert!(log.torn().is_none(), "{:?}", log.torn());
    assert_eq!((log.holds(), log.lost()), ((0, 0), 2), "it takes --partial");
}

async fn all_that_follows_the_end_of_the_thread_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = writer(&dir);
    MISTAKES.store(u8::MAX, Ordering::Relaxed);
    writer.save(change(0, vec![1; 512]));
    while writer.saved().unwrap().lost == 0 {
        tokio::task::yield_now().await;
    }
    MISTAKES.store(0, Ordering::Relaxed);
    writer.save(change(512, vec![2; 512]));
    let saved = writer.settled().expect("it was begun").await;
    assert_eq!(saved.lost, 2);
    assert!(saved.why.as_ref().is_some_and(|why| why.contains("an internal error")));
    assert_eq!(writer.saved(), Some(saved));
}
