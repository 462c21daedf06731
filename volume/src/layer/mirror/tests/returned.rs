//! What is known of a member that is there again, and what is asked of it before it counts.

use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::core::{Core, Known, NotReturned};
use super::faults::{Hook, closed, fails, fill, open_volumes, ruled, tell, without_second};
use super::record::{Record, Regions, Stamp};
use super::*;
use crate::store::hooked::go_on;

fn stamp(sequence: u64) -> Stamp {
    Stamp { opening: 4, sequence }
}

/// Two members that have all, in an opening of which each has one record; and the record of the second.
fn two_members() -> (Core, Record) {
    let regions = Regions::none(4);
    let record = Record {
        id: ID,
        member: 0,
        stamp: stamp(1),
        size: 4 * MIB,
        region: MIB,
        in_sync: vec![true; 2],
        sent: vec![stamp(1); 2],
        confirmed: vec![stamp(1); 2],
        replaced: vec![0; 2],
        dirty: regions.clone(),
    };
    let members = (0..2).map(|_| Known::new(true, true, regions.clone())).collect();
    let mut core = Core::new(record, members);
    core.opened(5);
    let recording = core.records();
    assert!(core.confirm(&recording, &[0, 1]));
    core.recorded(recording.version);
    (core, recording.of(1).unwrap().clone())
}

fn put_out(core: &mut Core) {
    core.put_out(1, "it failed".to_owned(), Duration::ZERO);
    core.let_go(1);
}

#[test]
fn member_that_is_not_as_it_was_is_refused_for_what_it_is() {
    let (mut core, own) = two_members();
    put_out(&mut core);
    let with = |stamp| Record { stamp, ..own.clone() };
    let Stamp { opening, sequence } = own.stamp;
    let older = with(Stamp { opening, sequence: sequence - 1 });
    assert_eq!(core.place_of(&older), Err(NotReturned::Older));
    let newer = with(Stamp { opening, sequence: sequence + 1 });
    assert_eq!(core.place_of(&newer), Err(NotReturned::Split));
    assert_eq!(core.place_of(&with(stamp(sequence))), Err(NotReturned::Split));
    let replaced = Record { replaced: vec![0, 1], ..own.clone() };
    assert_eq!(core.place_of(&replaced), Err(NotReturned::Replaced));
    assert_eq!(core.place_of(&own), Ok(1));
}

/// Its record is what counts of it from then on: none of those before was sent to what is there now.
#[test]
fn member_that_is_taken_back_is_known_by_its_own_record() {
    let (mut core, mut own) = two_members();
    // This record it got, and its answer was lost.
    let lost = core.records();
    own.stamp = lost.of(1).unwrap().stamp;
    own.dirty.insert(3);
    put_out(&mut core);
    assert_eq!(core.place_of(&own), Ok(1));
    core.take_back(&own, 1);
    assert_eq!(core.members[1].slot, 1);
    assert!(core.dirty.contains(3) && core.members[1].lacks.contains(3));
    let next = core.records();
    let next = next.of(0).unwrap();
    assert_eq!((next.sent[1], next.confirmed[1]), (own.stamp, own.stamp));
    assert!(next.dirty.contains(3) && !next.in_sync[1] && next.follows(&own));
}

/// It answered before it was lost, and another member is still waited for.
#[test]
fn record_from_before_a_member_was_opened_again_is_not_confirmed() {
    let (mut core, own) = two_members();
    let recording = core.records();
    put_out(&mut core);
    core.take_back(&own, 1);
    assert!(core.confirm(&recording, &[0, 1]));
    assert_eq!(core.members[1].slot, 1, "the next record would be written over its last one");
    assert_eq!(core.records().of(0).unwrap().confirmed[1], own.stamp);
}

#[tokio::test]
async fn member_that_does_not_flush_is_not_taken_back() {
    let disks = disks(2 * MIB);
    closed(&disks).await;
    let time = Arc::new(VirtualTime::default());
    let (mirror, returns) = without_second(&disks[0], &time).await;
    fill(&mirror, 1).await;
    let (second, rule) = ruled(&disks[1]);
    let flushes = AtomicUsize::new(0);
    tell(&rule, move |verb, span| match verb {
        Verb::Flush if flushes.fetch_add(1, Ordering::Relaxed) == 0 => {
            fails(verb, span, Kind::Medium)
        }
        _ => go_on(),
    });
    let before = disks[1].changes();
    returns.0.lock().unwrap().push(Ok(second));
    time.pass(Duration::from_secs(600));
    mirror.work_once().await;
    let state = &mirror.status().members[1].1;
    assert!(matches!(state, MemberState::Missing(why) if why.contains("medium")), "{state:?}");
    assert_eq!(disks[1].changes(), before);
}

/// What was copied to it may be lost.
#[tokio::test]
async fn member_that_does_not_flush_what_was_copied_to_it_stays_out() {
    let disks = disks(2 * MIB);
    create(members(&disks), ID).await.unwrap();
    fill(&open(&disks).await, 1).await;
    let (first, (second, rule)) = (Arc::clone(&disks[0]) as Arc<dyn Volume>, ruled(&disks[1]));
    let time = Arc::new(VirtualTime::default());
    let mirror = open_volumes(&[&first, &second], &time).await;
    let (flushes, loses) = (AtomicUsize::new(0), Arc::clone(&disks[1]));
    let hook: Hook = Box::new(move |verb, span| match verb {
        Verb::Flush if flushes.fetch_add(1, Ordering::Relaxed) == 1 => {
            loses.lose_cache();
            fails(verb, span, Kind::Medium)
        }
        _ => go_on(),
    });
    *rule.lock().unwrap() = Some(hook);
    mirror.work_once().await;
    let state = &mirror.status().members[1].1;
    assert!(matches!(state, MemberState::Out(why, _) if why.contains("medium")), "{state:?}");
    time.pass(Duration::from_secs(600));
    mirror.work_once().await;
    assert!(is_whole(&mirror) && data_of(&disks[0]) == data_of(&disks[1]));
}

/// It would land on what was copied meanwhile.
#[tokio::test]
async fn nothing_is_copied_while_a_request_is_under_way_that_nobody_waits_for() {
    let disks = disks(2 * MIB);
    closed(&disks).await;
    let (first, (second, rule)) = (Arc::clone(&disks[0]) as Arc<dyn Volume>, ruled(&disks[1]));
    let time = Arc::new(VirtualTime::default());
    let mirror = open_volumes(&[&first, &second], &time).await;
    let gate = Arc::new(Notify::new());
    let opens = Arc::clone(&gate);
    tell(&rule, move |verb, span| match (verb, span.at) {
        (Verb::Write, AREA) => {
            let gate = Arc::clone(&opens);
            Box::pin(async move {
                gate.notified().await;
                Ok(())
            })
        }
        _ => Box::pin(ready(Ok(()))),
    });
    let mut write = mirror.write(0, block(1), Durability::Volatile);
    settle(&mut write, None).await;
    time.pass(WAIT);
    settle(&mut write, Some(())).await;
    tell(&rule, |_, _| go_on());
    mirror.write(0, block(2), Durability::Durable).await.unwrap();
    let before = disks[1].changes();
    for _ in 0..3 {
        time.pass(Duration::from_secs(600));
        mirror.work_once().await;
    }
    assert_eq!(disks[1].changes(), before, "it is left alone");
    gate.notify_one();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(data_of(&disks[1])[0], 1, "it landed");
    mirror.work_once().await;
    assert!(is_whole(&mirror) && data_of(&disks[1])[0] == 2);
}

/// To tell that something is zero is to tell what it holds.
#[tokio::test]
async fn extents_of_what_may_differ_are_told_once_it_is_recorded_who_was_there() {
    let memories = [(); 2].map(|()| Arc::new(Memory::new(AREA + 16 * MIB, 512)));
    create(members(&memories), ID).await.unwrap();
    let mirror = open(&memories).await;
    mirror.work_once().await;
    mirror.close().await;
    drop(mirror);
    let mirror = open(&memories).await;
    let dirty = Span::new(12 * MIB, 512);
    mirror.write_zeroes(dirty, Durability::Durable, Space::Release).await.unwrap();
    drop(mirror);
    let mirror = open(&memories).await;
    let records = async || {
        let mut all = Vec::new();
        for memory in &memories {
            all.push(memory.read(Span::new(0, AREA)).await.unwrap());
        }
        all
    };
    let before = records().await;
    let map = Volume::extents(&mirror).unwrap();
    let clean = map.extents(Span::new(8 * MIB, MIB)).await.unwrap();
    assert!(clean.iter().all(|extent| extent.zero) && records().await == before);
    let found = map.extents(Span::new(12 * MIB, MIB)).await.unwrap();
    assert!(records().await != before, "another source could be used next");
    assert!(found.iter().all(|extent| !extent.zero), "the members may differ there");
    mirror.work_once().await;
    assert!(map.extents(Span::new(12 * MIB, MIB)).await.unwrap().iter().any(|extent| extent.zero));
}
