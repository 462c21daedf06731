mod faults;
mod returned;
mod simulation;

use std::sync::Arc;

use futures_util::FutureExt as _;

use super::open::create_with;
use super::*;
use crate::check::{self, Random};
use crate::store::faulty::Faulty;
use crate::store::memory::Memory;
use crate::store::virtual_time::VirtualTime;

const MIB: u64 = 1 << 20;
const ID: [u8; 16] = [7; 16];
const WAIT: Duration = Duration::from_secs(30);

fn member(at: usize, volume: Arc<dyn Volume>) -> Member {
    Member::new(["a", "b", "c"][at], volume)
}

fn members<V: Volume + 'static>(disks: &[Arc<V>]) -> Vec<Member> {
    let volume = |disk: &Arc<V>| Arc::clone(disk) as Arc<dyn Volume>;
    disks.iter().enumerate().map(|(at, disk)| member(at, volume(disk))).collect()
}

fn disks(size: u64) -> [Arc<Faulty>; 2] {
    [(), ()].map(|()| Arc::new(Faulty::new(AREA + size, 512)))
}

/// Opens a mirror of those that are there.
async fn try_open<V: Volume + 'static>(
    disks: &[Option<&Arc<V>>],
    alone: bool,
    time: &Arc<VirtualTime>,
) -> std::result::Result<Mirror, MirrorError> {
    let opening = |(at, disk): (usize, &Option<&Arc<V>>)| match disk {
        Some(disk) => Ok(member(at, Arc::clone(disk) as Arc<dyn Volume>)),
        None => Err((["a", "b", "c"][at].into(), "unplugged".to_owned())),
    };
    let openings = disks.iter().enumerate().map(opening).collect();
    Mirror::open(
        openings,
        MirrorOptions { wait: WAIT, alone, inspect_only: false },
        Arc::clone(time) as _,
    )
    .await
}

async fn open<V: Volume + 'static>(disks: &[Arc<V>]) -> Mirror {
    let disks: Vec<_> = disks.iter().map(Some).collect();
    try_open(&disks, false, &Arc::default()).await.unwrap()
}

/// A mirror that was made, and whose members are equal.
async fn made(disks: &[Arc<Faulty>; 2]) -> Mirror {
    create(members(disks), ID).await.unwrap();
    let mirror = open(disks).await;
    mirror.work_once().await;
    assert!(is_whole(&mirror), "{:?}", mirror.status());
    mirror
}

fn is_whole(mirror: &Mirror) -> bool {
    mirror.status().members.iter().all(|(_, state)| *state == MemberState::InSync)
}

fn data_of(disk: &Faulty) -> Vec<u8> {
    disk.contents().split_off(AREA as usize)
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 512])
}

async fn read_block(mirror: &Mirror, at: u64) -> u8 {
    mirror.read(Span::new(at, 512)).await.unwrap()[0]
}

#[tokio::test]
async fn mirror_keeps_the_contract() {
    let memories = [(); 2].map(|()| Arc::new(Memory::new(AREA + 33 * MIB + 512, 512)));
    create(members(&memories), ID).await.unwrap();
    let mirror = open(&memories).await;
    check::volume(9, Arc::new(mirror.clone())).await;
    mirror.work_once().await;
    assert!(is_whole(&mirror));
    check::volume(10, Arc::new(mirror)).await;
    let [a, b] = disks(5 * MIB);
    check::volume(11, Arc::new(made(&[Arc::clone(&a), Arc::clone(&b)]).await)).await;
    assert!(data_of(&a) == data_of(&b));
}

#[tokio::test(flavor = "multi_thread")]
async fn mirror_keeps_neighbours_apart() {
    let disks = disks(MIB);
    let mirror = made(&disks).await;
    check::neighbours(Arc::new(mirror)).await;
    assert!(data_of(&disks[0]) == data_of(&disks[1]));
}

/// While a member is left nothing is lost; the last one is as any other volume.
#[tokio::test]
async fn last_member_tells_the_truth() {
    check::truth(512, async |disk: Arc<Faulty>| {
        let other = Arc::new(Faulty::new(12 * MIB, 512));
        let both = [Arc::clone(&disk), other];
        create_with(members(&both), ID, Some(16 * MIB)).await.unwrap();
        let alone = try_open(&[Some(&disk), None], true, &Arc::default()).await;
        Arc::new(alone.unwrap()) as Arc<dyn Volume>
    })
    .await;
}

/// The other member of a mirror: it fails as the first one does, just after it.
fn twin(disk: &Arc<Faulty>, size: u64) -> (Arc<dyn Volume>, Arc<Faulty>) {
    let other = Arc::new(Faulty::new(size, 512));
    (Arc::new(Leads { disk: Arc::clone(disk), other: Arc::clone(&other) }), other)
}

/// A disk that has another fail whenever it does.
struct Leads {
    disk: Arc<Faulty>,
    other: Arc<Faulty>,
}

impl Leads {
    async fn lead(&self, verb: Verb, work: Work<'_, ()>) -> Result<()> {
        let done = work.await;
        if let Err(why) = &done {
            self.other.fail(verb, why.kind);
        }
        done
    }
}

impl Volume for Leads {
    fn shape(&self) -> &Shape {
        self.disk.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.disk.read(span)
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        Box::pin(self.lead(Verb::Write, self.disk.write(at, data, durability)))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        Box::pin(self.lead(Verb::WriteZeroes, self.disk.write_zeroes(span, durability, space)))
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        Box::pin(self.lead(Verb::Discard, self.disk.discard(span)))
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(self.lead(Verb::Flush, self.disk.flush()))
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        None
    }
}

/// What fails on both members is told as one disk tells it.
#[tokio::test]
async fn two_members_that_fail_alike_tell_the_truth() {
    check::truth(512, async |disk: Arc<Faulty>| {
        let (first, second) = twin(&disk, 12 * MIB);
        let both = vec![member(0, first), member(1, second)];
        create_with(both.clone(), ID, Some(16 * MIB)).await.unwrap();
        let openings = both.into_iter().map(Ok).collect();
        let options = MirrorOptions { wait: WAIT, alone: false, inspect_only: false };
        let mirror =
            Mirror::open(openings, options, Arc::new(VirtualTime::default())).await.unwrap();
        mirror.work_once().await;
        mirror.close().await;
        Arc::new(mirror) as Arc<dyn Volume>
    })
    .await;
}

#[tokio::test]
async fn failure_of_one_member_is_recorded_before_it_is_acknowledged() {
    let disks = disks(4 * MIB);
    let mirror = made(&disks).await;
    mirror.write(0, block(1), Durability::Durable).await.unwrap();
    disks[1].fail(Verb::Write, Kind::Medium);
    mirror.write(0, block(2), Durability::Durable).await.unwrap();
    let crashed = Arc::new(disks[0].crash(1));
    assert_eq!(read_block(&mirror, 0).await, 2);
    assert!(
        matches!(&mirror.status().members[1].1, MemberState::Out(why, _) if why.contains("medium error"))
    );
    drop(mirror);
    // What the other has says that it is whole: it must not be believed.
    let stale = try_open(&[None, Some(&disks[1])], false, &Arc::default()).await;
    let said = stale.err().unwrap().to_string();
    assert_eq!(said, "a is not there (unplugged), and it may hold what the others lack");
    let other = Arc::new(disks[1].crash(2));
    let mirror = open(&[Arc::clone(&crashed), Arc::clone(&other)]).await;
    assert_eq!(read_block(&mirror, 0).await, 2, "the record says which");
    mirror.work_once().await;
    assert!(is_whole(&mirror));
    assert!(data_of(&crashed) == data_of(&other) && data_of(&other)[0] == 2);
}

#[tokio::test]
async fn member_without_an_answer_is_out_after_a_bounded_wait_and_comes_back() {
    use crate::store::blocked_writes::BlockedWrites;
    let (a, b) = (Arc::new(Memory::new(AREA + MIB, 512)), Arc::new(Memory::new(AREA + MIB, 512)));
    create(members(&[Arc::clone(&a), Arc::clone(&b)]), ID).await.unwrap();
    open(&[Arc::clone(&a), Arc::clone(&b)]).await.work_once().await;
    let blocked = Arc::new(BlockedWrites::new(Arc::clone(&b)));
    let time = Arc::new(VirtualTime::default());
    let openings = vec![
        Ok(member(0, Arc::clone(&a) as Arc<dyn Volume>)),
        Ok(member(1, Arc::clone(&blocked) as Arc<dyn Volume>)),
    ];
    let options = MirrorOptions { wait: WAIT, alone: false, inspect_only: false };
    // Its record.
    blocked.let_through(1);
    let mirror = Mirror::open(openings, options, Arc::clone(&time) as _).await.unwrap();
    let mut write = mirror.write(0, block(1), Durability::Volatile);
    settle(&mut write, None).await;
    time.pass(WAIT - Duration::from_millis(1));
    settle(&mut write, None).await;
    time.pass(Duration::from_millis(1));
    settle(&mut write, Some(())).await;
    assert!(matches!(mirror.status().members[1].1, MemberState::Out(..)));
    // It is left alone until what it was asked for has ended, however long that takes.
    mirror.write(512, block(2), Durability::Durable).await.unwrap();
    time.pass(Duration::from_secs(3600));
    mirror.work_once().await;
    assert!(matches!(mirror.status().members[1].1, MemberState::Out(..)));
    blocked.let_through(1000);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    mirror.work_once().await;
    assert!(is_whole(&mirror), "{:?}", mirror.status());
    let found = b.read(Span::new(AREA, 1024)).await.unwrap();
    assert_eq!((found[0], found[512]), (1, 2));
}

/// Lets tasks run, and says that a request has ended or has not.
async fn settle(work: &mut Work<'_, ()>, ended: Option<()>) {
    for _ in 0..100 {
        if let Some(done) = (&mut *work).now_or_never() {
            done.unwrap();
            assert_eq!(ended, Some(()), "it ended too early");
            return;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(ended, None, "it has not ended");
}

#[tokio::test]
async fn reads_fall_over_to_another_member() {
    let disks = disks(MIB);
    let mirror = made(&disks).await;
    mirror.write(0, block(5), Durability::Durable).await.unwrap();
    for _ in 0..20 {
        disks[0].fail(Verb::Read, Kind::Medium);
        assert_eq!(read_block(&mirror, 0).await, 5);
        disks[0].stop_failing();
    }
    assert!(is_whole(&mirror), "it lacks nothing");
}

#[tokio::test]
async fn members_that_went_apart_are_not_joined() {
    let disks = disks(MIB);
    drop(made(&disks).await);
    for (at, byte) in [(0, 1), (1, 2)] {
        let mut there = [None, None];
        there[at] = Some(&disks[at]);
        let mirror = try_open(&there, true, &Arc::default()).await.unwrap();
        mirror.write(0, block(byte), Durability::Durable).await.unwrap();
        assert_eq!(mirror.status().members[1 - at].1, MemberState::Missing("unplugged".into()));
    }
    let both = try_open(&[Some(&disks[0]), Some(&disks[1])], true, &Arc::default()).await;
    assert!(matches!(both.err(), Some(MirrorError::Split(..))));
}

/// The numbers of different openings must not be compared: one member was sent a record that it never got, and was then used
/// alone, with fewer records than the other.
#[tokio::test]
async fn numbers_of_records_of_different_openings_are_not_compared() {
    let disks = disks(MIB);
    made(&disks).await.close().await;
    let time = Arc::new(VirtualTime::default());
    let mirror = try_open(&[None, Some(&disks[1])], true, &time).await.unwrap();
    mirror.write(0, block(1), Durability::Durable).await.unwrap();
    drop(mirror);
    let mirror = try_open(&[Some(&disks[0]), Some(&disks[1])], false, &time).await.unwrap();
    // Records that say that it is out, which it does not get.
    disks[0].forget();
    for _ in 0..5 {
        disks[0].fail(Verb::Write, Kind::Busy);
        mirror.work_once().await;
        time.pass(Duration::from_secs(600));
    }
    assert!(mirror.status().members[0].1.is_out());
    drop(mirror);
    let kept = Arc::new(Faulty::holding(disks[0].contents(), 512));
    let mirror = try_open(&[Some(&kept), None], true, &Arc::default()).await.unwrap();
    mirror.write(0, block(2), Durability::Durable).await.unwrap();
    drop(mirror);
    let other = Arc::new(Faulty::holding(disks[1].contents(), 512));
    let both = try_open(&[Some(&kept), Some(&other)], false, &Arc::default()).await;
    assert!(matches!(both.err(), Some(MirrorError::Split(..))));
}

/// Nothing tells it from the member itself that crashed before its last record: what was dirty then is copied to it.
#[tokio::test]
async fn copy_that_was_made_before_the_last_record_is_made_equal() {
    let disks = disks(2 * MIB);
    made(&disks).await.close().await;
    let mirror = open(&disks).await;
    mirror.write(0, block(1), Durability::Durable).await.unwrap();
    let copy = Arc::new(Faulty::holding(disks[1].contents(), 512));
    mirror.write(0, block(2), Durability::Durable).await.unwrap();
    mirror.close().await;
    assert_eq!(mirror.status().dirty.0, 0);
    drop(mirror);
    let mirror = open(&[Arc::clone(&disks[0]), Arc::clone(&copy)]).await;
    assert_eq!(read_block(&mirror, 0).await, 2);
    mirror.work_once().await;
    assert!(is_whole(&mirror) && data_of(&disks[0]) == data_of(&copy));
}

/// What does not flush may lose the record that was read of it.
#[tokio::test]
async fn member_that_does_not_flush_when_it_is_opened_is_out() {
    let disks = disks(2 * MIB);
    made(&disks).await.close().await;
    disks[1].fail(Verb::Flush, Kind::Busy);
    let mirror = open(&disks).await;
    assert!(matches!(mirror.status().members[1].1, MemberState::Missing(_)));
    mirror.write(0, block(3), Durability::Durable).await.unwrap();
    drop(mirror);
    let again = disks.each_ref().map(|disk| Arc::new(Faulty::holding(disk.contents(), 512)));
    let mirror = open(&again).await;
    mirror.work_once().await;
    assert!(is_whole(&mirror) && data_of(&again[0])[0] == 3 && data_of(&again[1])[0] == 3);
    drop(mirror);
    // One without which there is no mirror is not done without.
    again[0].fail(Verb::Flush, Kind::Busy);
    let alone = try_open(&[Some(&again[0]), None], true, &Arc::default()).await;
    assert!(matches!(alone.err(), Some(MirrorError::Volume(..))));
}

#[tokio::test]
async fn new_member_takes_the_place_of_one_that_is_gone() {
    let disks = disks(2 * MIB);
    let mirror = made(&disks).await;
    mirror.write(MIB, block(9), Durability::Durable).await.unwrap();
    mirror.close().await;
    let new = Arc::new(Faulty::new(AREA + 2 * MIB, 512));
    let now = [Arc::clone(&disks[0]), Arc::clone(&new)];
    let opened = try_open(&[Some(&now[0]), Some(&now[1])], false, &Arc::default()).await;
    assert!(matches!(opened.err(), Some(MirrorError::NoRecord(_))));
    let refused = replace(members(&now), false).await;
    assert!(matches!(refused, Err(MirrorError::Missing { .. })), "it may have had later data");
    assert_eq!(replace(members(&now), true).await.unwrap(), [Arc::from("b")]);
    assert!(matches!(replace(members(&now), true).await, Err(MirrorError::NoneNew)));
    let mirror = open(&now).await;
    mirror.work_once().await;
    assert!(is_whole(&mirror) && data_of(&new) == data_of(&disks[0]));
    drop(mirror);
    // The one that was gone is none of it any more: its place is taken.
    let old = try_open(&[Some(&new), Some(&disks[1])], true, &Arc::default()).await;
    assert!(matches!(old.err(), Some(MirrorError::Others(..))));
    let old = try_open(&[Some(&disks[0]), Some(&disks[1])], true, &Arc::default()).await;
    assert!(matches!(old.err(), Some(MirrorError::Replaced(name)) if &*name == "b"));
}

#[tokio::test]
async fn volumes_that_cannot_be_a_mirror_are_refused() {
    let disks = disks(MIB);
    assert!(matches!(create(members(&disks[..1]), ID).await, Err(MirrorError::Count(1))));
    let none = try_open(&[Some(&disks[0]), Some(&disks[1])], true, &Arc::default()).await;
    assert!(matches!(none.err(), Some(MirrorError::New)));
    disks[1].write(AREA - 512, block(1), Durability::Volatile).await.unwrap();
    assert!(
        matches!(create(members(&disks), ID).await, Err(MirrorError::NotBlank(name)) if &*name == "b")
    );
    disks[1].write(AREA - 512, block(0), Durability::Volatile).await.unwrap();
    create(members(&disks), ID).await.unwrap();
    assert!(matches!(create(members(&disks), ID).await, Err(MirrorError::IsMember(_))));
    let twice = try_open(&[Some(&disks[0]), Some(&disks[0])], true, &Arc::default()).await;
    assert!(matches!(twice.err(), Some(MirrorError::Others(..))));
    let three = try_open(&[Some(&disks[0]), Some(&disks[1]), None], true, &Arc::default()).await;
    assert!(matches!(three.err(), Some(MirrorError::OtherCount { made: 2, given: 3 })));
    let small = [Arc::new(Faulty::new(AREA, 512)), Arc::clone(&disks[1])];
    assert!(matches!(create(members(&small), ID).await, Err(MirrorError::Short { .. })));
}

#[tokio::test]
async fn scrub_counts_what_differs_and_repairs_it() {
    let disks = disks(3 * MIB);
    let mirror = made(&disks).await;
    mirror.write(2 * MIB, block(3), Durability::Durable).await.unwrap();
    assert_eq!(mirror.scrub(false, |_| {}).await.unwrap().differing, 0);
    disks[1].write(AREA + 2 * MIB, block(4), Durability::Durable).await.unwrap();
    let mut last = 0;
    let found = mirror.scrub(false, |at| last = at).await.unwrap();
    assert_eq!((found.differing, &found.places[..], last), (1, &[2 * MIB][..], 3 * MIB));
    let found = mirror.scrub(true, |_| {}).await.unwrap();
    assert_eq!((found.differing, found.repaired), (1, 1));
    assert_eq!(mirror.scrub(false, |_| {}).await.unwrap().differing, 0);
    assert_eq!(data_of(&disks[1])[2 * MIB as usize], 3);
}

#[tokio::test]
async fn regions_are_clean_after_a_flush_and_a_while_and_at_the_end() {
    let disks = disks(4 * MIB);
    create(members(&disks), ID).await.unwrap();
    let time = Arc::new(VirtualTime::default());
    let mirror = try_open(&[Some(&disks[0]), Some(&disks[1])], false, &time).await.unwrap();
    mirror.work_once().await;
    mirror.flush().await.unwrap();
    time.pass(core::IDLE);
    mirror.work_once().await;
    assert_eq!(mirror.status().dirty, (0, 4));
    mirror.write(MIB, block(1), Durability::Volatile).await.unwrap();
    time.pass(2 * core::IDLE);
    mirror.work_once().await;
    assert_eq!(mirror.status().dirty.0, 1, "nothing was flushed");
    mirror.flush().await.unwrap();
    mirror.work_once().await;
    assert_eq!(mirror.status().dirty.0, 0);
    mirror.write(0, block(2), Durability::Volatile).await.unwrap();
    mirror.close().await;
    assert_eq!(mirror.status().dirty.0, 0);
    let changes = disks.each_ref().map(|disk| disk.changes());
    let again = open(&disks).await;
    again.work_once().await;
    let now = disks.each_ref().map(|disk| disk.changes());
    assert_eq!(
        now,
        changes.map(|changes| changes + 1),
        "a flush each: nothing is copied, and there is nothing to record"
    );
}

/// A mirror whose process was killed in the middle of a write that only the first member has.
async fn torn() -> [Arc<Faulty>; 2] {
    let disks = disks(2 * MIB);
    made(&disks).await.close().await;
    let mirror = open(&disks).await;
    mirror.write(0, block(1), Durability::Durable).await.unwrap();
    drop(mirror);
    disks[0].write(AREA, block(2), Durability::Durable).await.unwrap();
    disks
}

async fn open_to(disks: &[Arc<Faulty>; 2], inspect_only: bool) -> Mirror {
    let openings = members(disks).into_iter().map(Ok).collect();
    let options = MirrorOptions { wait: WAIT, alone: false, inspect_only };
    Mirror::open(openings, options, Arc::new(VirtualTime::default())).await.unwrap()
}

#[tokio::test]
async fn mirror_that_is_looked_at_is_not_changed() {
    let disks = torn().await;
    let before = disks.each_ref().map(|disk| (disk.changes(), disk.contents()));
    let mirror = open_to(&disks, true).await;
    assert!(!mirror.shape().read_only && mirror.shape().write_cache);
    let read = [read_block(&mirror, 0).await, read_block(&mirror, 0).await];
    assert!(read[0] == read[1] && [1, 2].contains(&read[0]));
    mirror.work_once().await;
    mirror.flush().await.unwrap();
    let refused = mirror.write(0, block(3), Durability::Volatile).await;
    assert_eq!(refused.unwrap_err().kind, Kind::ReadOnly);
    assert_eq!(mirror.scrub(true, |_| {}).await.unwrap_err().kind, Kind::ReadOnly);
    mirror.close().await;
    let after = disks.each_ref().map(|disk| (disk.changes(), disk.contents()));
    assert!(before == after);
}

/// Until then it could be one that is only read.
#[tokio::test]
async fn record_of_an_opening_is_written_before_its_first_change() {
    let disks = torn().await;
    let area = |disk: &Faulty| disk.contents()[..AREA as usize].to_vec();
    let before = disks.each_ref().map(|disk| area(disk));
    let mirror = open_to(&disks, false).await;
    // Clean, so that nothing may differ there.
    assert_eq!(read_block(&mirror, MIB).await, 0);
    assert!(before == disks.each_ref().map(|disk| area(disk)));
    // Its region is called dirty already.
    disks.iter().for_each(|disk| disk.cut_after(1));
    let _ = mirror.write(0, block(3), Durability::Volatile).await;
    drop(mirror);
    let after = disks.each_ref().map(|disk| Arc::new(disk.crash(1)));
    for (disk, before) in after.iter().zip(&before) {
        assert!(area(disk) != *before, "its record was the first thing that was written");
        assert!([1, 2].contains(&data_of(disk)[0]));
    }
}

/// What one member says that is opened without the other must not be undone by that one.
#[tokio::test]
async fn version_that_was_read_without_a_member_stays_when_it_is_back() {
    for at in 0..2 {
        let disks = torn().await;
        let mut there = [None, None];
        there[at] = Some(&disks[at]);
        let alone = try_open(&there, true, &Arc::default()).await.unwrap();
        let seen = read_block(&alone, 0).await;
        assert_eq!(seen, [2, 1][at]);
        drop(alone);
        let mirror = open(&disks).await;
        assert_eq!(read_block(&mirror, 0).await, seen, "{at}");
    }
}

/// What blocks may hold: the last durable version and those since.
struct Model(Vec<Vec<u8>>);

impl Model {
    fn wrote(&mut self, span: Span, byte: u8, is_certain: bool) {
        for versions in &mut self.0[(span.at / 512) as usize..(span.end() / 512) as usize] {
            if is_certain {
                versions.clear();
            }
            versions.push(byte);
        }
    }

    fn flushed(&mut self) {
        for versions in &mut self.0 {
            let last = versions.len() - 1;
            versions.drain(..last);
        }
    }

    fn compare(&mut self, read: &[u8], what: &str) {
        for (at, (block, versions)) in read.chunks(512).zip(&mut self.0).enumerate() {
            assert!(block.iter().all(|byte| *byte == block[0]), "{what}: torn block {at}");
            assert!(
                versions.contains(&block[0]),
                "{what}: block {at}: {} of {versions:?}",
                block[0]
            );
            *versions = vec![block[0]];
        }
    }
}

async fn step(mirror: &Mirror, model: &mut Model, random: &mut Random) -> Result<()> {
    let blocks = model.0.len() as u64;
    let from = random.below(blocks);
    let most = [2, 20, 3000][random.index(3)];
    let span = Span::new(from * 512, (1 + random.below((blocks - from).min(most))) * 512);
    let byte = 1 + random.below(255) as u8;
    let durability = [Durability::Volatile, Durability::Durable][usize::from(random.below(4) == 0)];
    let (byte, done) = match random.below(9) {
        0..4 => {
            let data = Bytes::from(vec![byte; span.len as usize]);
            (byte, mirror.write(span.at, data, durability).await)
        }
        4 => (0, mirror.write_zeroes(span, durability, Space::Release).await),
        5 => {
            mirror.flush().await?;
            model.flushed();
            return Ok(());
        }
        6 => {
            mirror.work_once().await;
            return Ok(());
        }
        _ => {
            let read = mirror.read(span).await?;
            let known = &model.0[from as usize..];
            for (block, versions) in read.chunks(512).zip(known) {
                assert_eq!(versions.last(), block.first(), "what was written is read");
            }
            return Ok(());
        }
    };
    model.wrote(span, byte, done.is_ok() && durability == Durability::Durable);
    done
}

/// One life of a mirror: with one member less from some time on or not, until the power goes everywhere.
async fn life(disks: &mut [Arc<Faulty>; 2], model: &mut Model, random: &mut Random, what: &str) {
    let time = Arc::new(VirtualTime::default());
    let mirror = try_open(&[Some(&disks[0]), Some(&disks[1])], false, &time).await.unwrap();
    let all = Span::new(0, 512 * model.0.len() as u64);
    model.compare(&mirror.read(all).await.unwrap(), what);
    mirror.flush().await.unwrap();
    if random.below(2) == 0 {
        time.pass(Duration::from_secs(3600));
        mirror.work_once().await;
        assert!(is_whole(&mirror), "{what}: {:?}", mirror.status());
        assert!(data_of(&disks[0]) == data_of(&disks[1]), "{what}: members differ");
    }
    let lost = random.index(4);
    if let Some(disk) = disks.get(lost) {
        // It fails for some time, or for good, or at once with the other.
        match random.below(3) {
            0 => disk.fail([Verb::Write, Verb::Flush][random.index(2)], Kind::Busy),
            _ => disk.cut_after(random.below(12)),
        }
    }
    let mut is_well = true;
    for _ in 0..random.below(25) {
        if random.below(8) == 0 {
            time.pass(Duration::from_secs(3600));
        }
        is_well = is_well && step(&mirror, model, random).await.is_ok();
    }
    // In the middle of a write, which one member has and the other has not.
    disks.iter().for_each(|disk| disk.cut_after(random.below(3)));
    while is_well && step(&mirror, model, random).await.is_ok() {}
    drop(mirror);
    *disks = disks.each_ref().map(|disk| Arc::new(disk.crash(random.word())));
}

#[tokio::test]
async fn crashed_mirror_has_all_that_was_durable_and_equal_members() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut disks = disks(5 * MIB / 2);
        drop(made(&disks).await);
        let mut model = Model(vec![vec![0]; 5 * MIB as usize / 2 / 512]);
        for age in 0..6 {
            life(&mut disks, &mut model, &mut random, &format!("seed {seed}, life {age}")).await;
        }
    }
}
