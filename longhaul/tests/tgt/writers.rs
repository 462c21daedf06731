//! One writer, on a target that keeps its reservations.

use std::path::Path;

use longhaul::store::iscsi::{ReservationError, Writers};

use super::*;

/// Longer than anything takes on a loaded machine; only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The key of the only attachment that is noted.
fn noted(folder: &Path) -> u64 {
    let notes = std::fs::read_dir(folder).unwrap().map(|note| note.unwrap().file_name());
    let notes: Vec<_> = notes.collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    u64::from_str_radix(notes[0].to_str().unwrap(), 16).unwrap()
}

/// To tgt each session is another nexus, so that the reservation is held by one that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservation_is_given_back_after_a_lost_connection() {
    let tgt = Tgt::start();
    let wire = wire::Wire::new(&tgt.disk()).await;
    let options = ConnectOptions { writers: Writers::One, reconnect_for: None, ..options() };
    let first = connect(&wire.to(&tgt.disk()), &options).await.expect("nobody has it");
    let write = first.write(0, vec![1; 512].into(), Durability::Volatile);
    let lost = async { tokio::join!(write, wire.cut_at_next_command()) };
    let (written, ()) = tokio::time::timeout(PATIENCE, lost).await.expect("it is sent again");
    written.expect("it may write");
    first.flush().await.expect("it may flush");
    first.close().await;
    let second = connect(&tgt.disk(), &options).await.expect("it was given back");
    second.close().await;
}

/// tgt knows PREEMPT, and neither aborts on the way nor lets one that is not registered ask for its modes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_that_lives_is_taken_over_and_reader_is_let_in() {
    let tgt = Tgt::start();
    let attach = async |n: u8, writers| {
        let name = IscsiName::new(&format!("iqn.2026-11.dev.longhaul:writer{n}")).unwrap();
        let options = ConnectOptions { writers, ..ConnectOptions::new(name) };
        connect(&tgt.disk(), &options).await
    };
    let first = attach(1, Writers::One).await.expect("nobody has it");
    first.write(0, vec![1; 512].into(), Durability::Volatile).await.expect("it may write");
    let reader = attach(3, Writers::Unasked).await.expect("who only reads is not kept out");
    assert!(reader.read(Span::new(0, 512)).await.unwrap().iter().all(|byte| *byte == 1));
    let refused = attach(2, Writers::One).await;
    assert!(
        matches!(refused, Err(ConnectError::Reservation(ReservationError::Held(_)))),
        "{refused:?}"
    );
    let second = attach(2, Writers::TakeOver).await.expect("it takes it over");
    second.write(0, vec![2; 512].into(), Durability::Durable).await.expect("it may write");
    assert!(first.write(0, vec![3; 512].into(), Durability::Volatile).await.is_err());
    assert!(second.read(Span::new(0, 512)).await.unwrap().iter().all(|byte| *byte == 2));
    second.close().await;
    first.close().await;
    assert!(attach(4, Writers::One).await.is_ok(), "it was given back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_writer_is_gone_on_for_as_long_as_its_reservation_stands() {
    let tgt = Tgt::start();
    let folder = tempfile::tempdir().unwrap();
    let attach = async |n: u8, writers| {
        let name = IscsiName::new(&format!("iqn.2026-11.dev.longhaul:writer{n}")).unwrap();
        let state = Some(folder.path().to_owned());
        let options = ConnectOptions { writers, state, ..ConnectOptions::new(name) };
        connect(&tgt.disk(), &options).await
    };
    let first = attach(1, Writers::One).await.expect("nobody has it");
    let key = noted(&folder.path().join("attachments"));
    // One that is not closed stays reserved.
    drop(first);
    let refused = attach(2, Writers::One).await;
    assert!(
        matches!(refused, Err(ConnectError::Reservation(ReservationError::Held(_)))),
        "{refused:?}"
    );
    assert!(matches!(
        attach(2, Writers::Resume(!key)).await,
        Err(ConnectError::Reservation(ReservationError::NotResumed { .. }))
    ));
    let second = attach(2, Writers::Resume(key)).await.expect("nobody else had it");
    second.write(0, vec![2; 512].into(), Durability::Durable).await.expect("it may write");
    drop(second);
    let third = attach(3, Writers::Resume(key)).await.expect("it goes on for both");
    third.write(0, vec![3; 512].into(), Durability::Durable).await.expect("it may write");
    third.close().await;
    assert!(matches!(
        attach(4, Writers::Resume(key)).await,
        Err(ConnectError::Reservation(ReservationError::NotResumed { .. }))
    ));
    let fourth = attach(4, Writers::One).await.expect("it was given back");
    fourth.close().await;
}
