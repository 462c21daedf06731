//! Members that fail, hang and come back at the worst time.

use std::future::ready;
use std::sync::Mutex;

use super::*;
use crate::store::hooked::{Hooked, go_on};

/// Says what becomes of a request.
pub(super) type Hook = Box<dyn Fn(Verb, Span) -> Work<'static, ()> + Send + Sync>;
pub(super) type Rule = Arc<Mutex<Option<Hook>>>;

/// A disk that does as it is told by a rule, which may change.
pub(super) fn ruled(disk: &Arc<Faulty>) -> (Arc<dyn Volume>, Rule) {
    let rule = Rule::default();
    let asks = Arc::clone(&rule);
    let hook = move |verb, span| match &*asks.lock().unwrap() {
        Some(hook) => hook(verb, span),
        None => go_on(),
    };
    (Arc::new(Hooked::new(Arc::clone(disk), hook)), rule)
}

pub(super) fn tell(
    rule: &Rule,
    hook: impl Fn(Verb, Span) -> Work<'static, ()> + Send + Sync + 'static,
) {
    *rule.lock().unwrap() = Some(Box::new(hook));
}

pub(super) fn fails(verb: Verb, span: Span, kind: Kind) -> Work<'static, ()> {
    Box::pin(ready(Err(Error::new(kind, verb, span))))
}

fn hangs() -> Work<'static, ()> {
    Box::pin(std::future::pending())
}

/// A mirror that was made and closed: its members are the same for good.
pub(super) async fn closed(disks: &[Arc<Faulty>; 2]) {
    let mirror = made(disks).await;
    mirror.close().await;
    assert_eq!(mirror.status().dirty.0, 0);
}

pub(super) async fn open_volumes(volumes: &[&Arc<dyn Volume>], time: &Arc<VirtualTime>) -> Mirror {
    let openings =
        volumes.iter().enumerate().map(|(at, volume)| Ok(member(at, Arc::clone(volume)))).collect();
    let options = MirrorOptions { wait: WAIT, alone: false, inspect_only: false };
    Mirror::open(openings, options, Arc::clone(time) as _).await.unwrap()
}

/// The first byte of each MiB.
async fn bytes_of(mirror: &Mirror) -> Vec<u8> {
    let mut bytes = Vec::new();
    for at in 0..mirror.shape().size / MIB {
        bytes.push(read_block(mirror, at * MIB).await);
    }
    bytes
}

pub(super) async fn fill(mirror: &Mirror, byte: u8) {
    for at in 0..mirror.shape().size / MIB {
        mirror.write(at * MIB, block(byte), Durability::Durable).await.unwrap();
    }
}

#[tokio::test]
async fn half_copied_member_is_never_taken_for_a_whole_one() {
    let mut refused = 0;
    for cut in 0..9 {
        let disks = disks(4 * MIB);
        drop(made(&disks).await);
        let time = Arc::new(VirtualTime::default());
        let mirror = try_open(&[Some(&disks[0]), Some(&disks[1])], false, &time).await.unwrap();
        fill(&mirror, 1).await;
        disks[1].fail(Verb::Write, Kind::Busy);
        fill(&mirror, 2).await;
        time.pass(Duration::from_secs(10));
        disks[1].cut_after(cut);
        mirror.work_once().await;
        let crashed = Arc::new(disks[1].crash(cut));
        match try_open(&[None, Some(&crashed)], true, &time).await {
            Ok(alone) => {
                let found = bytes_of(&alone).await;
                assert!(
                    [[1; 4], [2; 4]].contains(&found[..].try_into().unwrap()),
                    "cut {cut}: {found:?}"
                );
            }
            Err(why) => {
                assert!(matches!(why, MirrorError::NoneWhole), "cut {cut}: {why}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

/// A member has the record that puts it in, and its answer is lost: what is copied to it next has to be announced anew.
#[tokio::test]
async fn member_that_was_put_in_unknown_to_the_others_is_marked_again() {
    let mut refused = 0;
    for cut in 0..9 {
        let disks = disks(4 * MIB);
        closed(&disks).await;
        disks[1].forget();
        let (first, (second, rule)) = (Arc::clone(&disks[0]) as Arc<dyn Volume>, ruled(&disks[1]));
        let time = Arc::new(VirtualTime::default());
        let mirror = open_volumes(&[&first, &second], &time).await;
        disks[1].fail(Verb::Write, Kind::Busy);
        fill(&mirror, 1).await;
        time.pass(Duration::from_secs(10));
        let (torn, records) = (Arc::clone(&disks[1]), Mutex::new(0));
        tell(&rule, move |verb, span| {
            if verb == Verb::Write && span.at < AREA {
                *records.lock().unwrap() += 1;
                if *records.lock().unwrap() == 2 {
                    torn.tear(Verb::Write, Kind::Busy, u64::MAX);
                }
            }
            go_on()
        });
        mirror.work_once().await;
        assert!(mirror.status().members[1].1.is_out() && data_of(&disks[1])[0] == 1);
        fill(&mirror, 2).await;
        time.pass(Duration::from_secs(600));
        disks[1].cut_after(cut);
        mirror.work_once().await;
        let crashed = Arc::new(disks[1].crash(cut));
        match try_open(&[None, Some(&crashed)], true, &time).await {
            Ok(alone) => {
                let found: [u8; 4] = bytes_of(&alone).await.try_into().unwrap();
                assert!([[1; 4], [2; 4]].contains(&found), "cut {cut}: {found:?}");
            }
            Err(why) => {
                assert!(matches!(why, MirrorError::NoneWhole), "cut {cut}: {why}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

#[tokio::test]
async fn slow_member_is_not_late_because_one_that_is_not_whole_was_faster() {
    let [a, b] = disks(2 * MIB);
    create(members(&[Arc::clone(&a), Arc::clone(&b)]), ID).await.unwrap();
    let ((slow, rule), fast) = (ruled(&a), Arc::clone(&b) as Arc<dyn Volume>);
    let time = Arc::new(VirtualTime::default());
    let mirror = open_volumes(&[&slow, &fast], &time).await;
    // The second region cannot be copied, so that the other stays out.
    tell(&rule, |verb, span| match verb {
        Verb::Read if span.at >= AREA + MIB => fails(verb, span, Kind::Medium),
        _ => go_on(),
    });
    mirror.work_once().await;
    assert!(mirror.status().members[1].1.is_out());
    let gate = Arc::new(Notify::new());
    let opens = Arc::clone(&gate);
    tell(&rule, move |_, _| {
        let gate = Arc::clone(&opens);
        Box::pin(async move {
            gate.notified().await;
            Ok(())
        })
    });
    let mut write = mirror.write(0, block(1), Durability::Volatile);
    settle(&mut write, None).await;
    time.pass(2 * WAIT);
    settle(&mut write, None).await;
    gate.notify_one();
    settle(&mut write, Some(())).await;
}

#[tokio::test]
async fn member_that_is_put_out_again_while_it_is_copied_to_is_left_alone() {
    let [a, b] = disks(4 * MIB);
    create(members(&[Arc::clone(&a), Arc::clone(&b)]), ID).await.unwrap();
    let (first, (second, rule)) = (Arc::clone(&a) as Arc<dyn Volume>, ruled(&b));
    let time = Arc::new(VirtualTime::default());
    let mirror = open_volumes(&[&first, &second], &time).await;
    let gate = Arc::new(Notify::new());
    let opens = Arc::clone(&gate);
    // The third region waits; what is then written to the first fails.
    tell(&rule, move |verb, span| match (verb, span.at) {
        (Verb::Write | Verb::WriteZeroes, at) if at == AREA + 2 * MIB => {
            let gate = Arc::clone(&opens);
            Box::pin(async move {
                gate.notified().await;
                Ok(())
            })
        }
        (Verb::Write, AREA) => fails(verb, span, Kind::Busy),
        _ => go_on(),
    });
    let works = mirror.clone();
    let work = tokio::spawn(async move { works.work_once().await });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(mirror.status().members[1].1, MemberState::Resyncing(_)));
    mirror.write(0, block(7), Durability::Durable).await.unwrap();
    tell(&rule, |_, _| go_on());
    gate.notify_one();
    work.await.unwrap();
    assert!(matches!(mirror.status().members[1].1, MemberState::Out(..)), "{:?}", mirror.status());
    time.pass(Duration::from_secs(600));
    mirror.work_once().await;
    assert!(is_whole(&mirror) && data_of(&a) == data_of(&b));
}

#[tokio::test]
async fn region_that_cannot_be_read_does_not_keep_the_rest_from_being_copied() {
    let [a, b] = disks(4 * MIB);
    create(members(&[Arc::clone(&a), Arc::clone(&b)]), ID).await.unwrap();
    a.write(AREA, Bytes::from(vec![5; 4 * MIB as usize]), Durability::Durable).await.unwrap();
    let ((first, rule), second) = (ruled(&a), Arc::clone(&b) as Arc<dyn Volume>);
    let time = Arc::new(VirtualTime::default());
    let mirror = open_volumes(&[&first, &second], &time).await;
    tell(&rule, |verb, span| match verb {
        Verb::Read if span.at == AREA + MIB => fails(verb, span, Kind::Medium),
        _ => go_on(),
    });
    mirror.work_once().await;
    let copied = data_of(&b).chunks(MIB as usize).map(|region| region[0]).collect::<Vec<_>>();
    assert_eq!(copied, [5, 0, 5, 5]);
    let state = &mirror.status().members[1].1;
    assert!(state.is_out());
    let said = state.to_string();
    assert!(said.contains("1 region") && said.contains("medium error"), "{said}");
    // It is tried again, and in the end it is read.
    tell(&rule, |_, _| go_on());
    time.pass(Duration::from_secs(600));
    mirror.work_once().await;
    assert!(is_whole(&mirror) && data_of(&a) == data_of(&b));
}

#[tokio::test]
async fn another_member_that_has_all_is_read_where_the_first_cannot_be() {
    let [a, b] = disks(2 * MIB);
    let c = Arc::new(Faulty::new(AREA + 2 * MIB, 512));
    let all = [&a, &b, &c].map(Arc::clone);
    create(members(&all), ID).await.unwrap();
    let mirror = open(&all).await;
    mirror.work_once().await;
    mirror.close().await;
    let ((first, rule), second) = (ruled(&a), Arc::clone(&b) as Arc<dyn Volume>);
    let third = Arc::clone(&c) as Arc<dyn Volume>;
    let time = Arc::new(VirtualTime::default());
    let mirror = open_volumes(&[&first, &second, &third], &time).await;
    c.fail(Verb::Write, Kind::Busy);
    mirror.write(0, block(3), Durability::Durable).await.unwrap();
    tell(&rule, |verb, span| match verb {
        Verb::Read => fails(verb, span, Kind::Medium),
        _ => go_on(),
    });
    time.pass(Duration::from_secs(600));
    mirror.work_once().await;
    assert!(is_whole(&mirror), "{:?}", mirror.status());
    assert!(data_of(&b) == data_of(&c));
}

#[tokio::test]
async fn region_is_not_clean_before_what_was_copied_to_it_is_durable() {
    let disks = disks(2 * MIB);
    drop(made(&disks).await);
    {
        let mirror = open(&disks).await;
        mirror.write(0, block(1), Durability::Durable).await.unwrap();
        mirror.write(MIB, block(1), Durability::Durable).await.unwrap();
    }
    // A crash in the middle of writes that one of them has.
    disks[0].write(AREA, block(2), Durability::Durable).await.unwrap();
    disks[1].write(AREA, block(3), Durability::Durable).await.unwrap();
    let [(first, one), (second, other)] = disks.each_ref().map(ruled);
    let time = Arc::new(VirtualTime::default());
    let mirror = open_volumes(&[&first, &second], &time).await;
    mirror.flush().await.unwrap();
    // One region is copied, the other cannot be read.
    for rule in [one, other] {
        tell(&rule, |verb, span| match verb {
            Verb::Read if span.at == AREA + MIB => fails(verb, span, Kind::Medium),
            _ => go_on(),
        });
    }
    time.pass(2 * core::IDLE);
    mirror.work_once().await;
    assert!(data_of(&disks[0])[0] == data_of(&disks[1])[0], "it was copied");
    drop((mirror, first, second));
    for seed in 0..8 {
        let crashed = disks.each_ref().map(|disk| Arc::new(disk.crash(seed)));
        let mirror = open(&crashed).await;
        mirror.work_once().await;
        assert!(data_of(&crashed[0]) == data_of(&crashed[1]), "seed {seed}: they differ for good");
    }
}

/// Opens what can be opened of a mirror one of whose members has no record that can be read.
async fn open_with_damage(
    is_out: bool,
    alone: bool,
    rule: Hook,
) -> std::result::Result<u8, String> {
    let disks = disks(2 * MIB);
    let mirror = made(&disks).await;
    if is_out {
        disks[1].fail(Verb::Write, Kind::Medium);
    }
    mirror.write(0, block(4), Durability::Durable).await.unwrap();
    drop(mirror);
    let (damaged, told) = ruled(&disks[1]);
    *told.lock().unwrap() = Some(rule);
    let openings = vec![Ok(members(&disks)[0].clone()), Ok(member(1, damaged))];
    let time = Arc::new(VirtualTime::default());
    let opened =
        Mirror::open(openings, MirrorOptions { wait: WAIT, alone, inspect_only: false }, time)
            .await;
    let mirror = opened.map_err(|why| why.to_string())?;
    mirror.work_once().await;
    assert_eq!(mirror.status().members[1].1.to_string().split(',').next(), Some("out"));
    mirror.write(512, block(5), Durability::Durable).await.unwrap();
    Ok(read_block(&mirror, 0).await)
}

#[tokio::test]
async fn member_whose_record_cannot_be_read_is_one_that_is_not_there() {
    let unreadable = || -> Hook {
        Box::new(|verb, span| match verb {
            Verb::Read if span.at < AREA => fails(verb, span, Kind::Medium),
            _ => go_on(),
        })
    };
    assert_eq!(open_with_damage(true, false, unreadable()).await, Ok(4));
    let refused = open_with_damage(false, false, unreadable()).await.unwrap_err();
    assert!(refused.contains("b is not there") && refused.contains("medium error"), "{refused}");
    assert_eq!(open_with_damage(false, true, unreadable()).await, Ok(4));
}

#[tokio::test]
async fn blank_or_short_member_is_one_that_is_not_there() {
    for size in [AREA + 2 * MIB, AREA + MIB, AREA, 512] {
        let disks = disks(2 * MIB);
        let mirror = made(&disks).await;
        disks[1].fail(Verb::Write, Kind::Medium);
        mirror.write(0, block(4), Durability::Durable).await.unwrap();
        drop(mirror);
        let other = Arc::new(Faulty::new(size, 512));
        let mirror = open(&[Arc::clone(&disks[0]), Arc::clone(&other)]).await;
        assert_eq!(read_block(&mirror, 0).await, 4);
        assert!(mirror.status().members[1].1.is_out(), "{:?}", mirror.status());
        mirror.write(0, block(6), Durability::Durable).await.unwrap();
        mirror.work_once().await;
        assert_eq!(other.changes(), 0, "nothing is written to what is no member");
    }
}

#[tokio::test]
async fn read_under_way_asks_no_member_that_was_put_out_meanwhile() {
    let disks = disks(MIB);
    closed(&disks).await;
    let [(first, one), (second, other)] = disks.each_ref().map(ruled);
    let time = Arc::new(VirtualTime::default());
    let mirror = open_volumes(&[&first, &second], &time).await;
    tell(&one, |verb, _| if verb == Verb::Read { hangs() } else { go_on() });
    tell(&other, |verb, _| if verb == Verb::Read { hangs() } else { go_on() });
    let mut read = mirror.read(Span::new(0, 512));
    assert!((&mut read).now_or_never().is_none());
    // The one that was not asked is out now, and has lost what it had.
    disks[1].lose_cache();
    disks[1].fail(Verb::Write, Kind::Busy);
    mirror.write(0, block(9), Durability::Durable).await.unwrap();
    tell(&other, |_, _| go_on());
    time.pass(WAIT);
    assert!((&mut read).now_or_never().is_none(), "nobody else has it");
}

#[tokio::test]
async fn long_zeroes_are_cut_so_that_others_have_their_turn() {
    let size = 80 * MIB;
    let memories = [(); 2].map(|()| Arc::new(Memory::new(AREA + size, 512)));
    create(members(&memories), ID).await.unwrap();
    open(&memories).await.work_once().await;
    let longest = Arc::new(Mutex::new(0));
    let noted = Arc::clone(&longest);
    let hook = move |verb, span: Span| {
        if matches!(verb, Verb::WriteZeroes | Verb::Discard) {
            let mut longest = noted.lock().unwrap();
            *longest = span.len.max(*longest);
        }
        go_on()
    };
    let hooked = Arc::new(Hooked::new(Arc::clone(&memories[0]), hook)) as Arc<dyn Volume>;
    let plain = Arc::clone(&memories[1]) as Arc<dyn Volume>;
    let mirror = open_volumes(&[&hooked, &plain], &Arc::default()).await;
    mirror.write(size - 512, block(1), Durability::Volatile).await.unwrap();
    let all = Span::new(512, size - 512);
    mirror.write_zeroes(all, Durability::Volatile, Space::Release).await.unwrap();
    assert_eq!(read_block(&mirror, size - 512).await, 0);
    mirror.discard(all).await.unwrap();
    assert_eq!(*longest.lock().unwrap(), 32 * MIB);
}

#[tokio::test]
async fn mirror_that_is_closed_with_a_request_under_way_is_not_called_clean() {
    let disks = disks(2 * MIB);
    closed(&disks).await;
    let [(first, _), (second, rule)] = disks.each_ref().map(ruled);
    let mirror = open_volumes(&[&first, &second], &Arc::default()).await;
    tell(
        &rule,
        |verb, span| if verb == Verb::Write && span.at >= AREA { hangs() } else { go_on() },
    );
    let mut write = mirror.write(0, block(1), Durability::Volatile);
    settle(&mut write, None).await;
    mirror.stop();
    mirror.close().await;
    assert_eq!(mirror.status().dirty.0, 1);
    drop(write);
    drop(mirror);
    let mirror = open(&disks).await;
    mirror.work_once().await;
    assert!(data_of(&disks[0]) == data_of(&disks[1]));
}

/// Opens what it is given for one member, in turn.
pub(super) struct Returns(
    pub(super) Mutex<Vec<std::result::Result<Arc<dyn Volume>, &'static str>>>,
    usize,
);

impl Reopen for Returns {
    fn can(&self, at: usize) -> bool {
        at == self.1
    }

    fn reopen(&self, at: usize) -> Opens<'_, std::result::Result<Member, String>> {
        let next = self.0.lock().unwrap().pop().unwrap_or(Err("unplugged"));
        Box::pin(ready(next.map(|volume| member(at, volume)).map_err(str::to_owned)))
    }

    fn let_go(&self, _: usize) -> Opens<'_, ()> {
        Box::pin(ready(()))
    }
}

/// A mirror whose second member is not there, and what opens that again.
pub(super) async fn without_second(
    first: &Arc<Faulty>,
    time: &Arc<VirtualTime>,
) -> (Mirror, Arc<Returns>) {
    let returns = Arc::new(Returns(Mutex::default(), 1));
    let openings = vec![
        Ok(member(0, Arc::clone(first) as Arc<dyn Volume>)),
        Err(("b".into(), "unplugged".to_owned())),
    ];
    let options = MirrorOptions { wait: WAIT, alone: true, inspect_only: false };
    let reopen = Some(Arc::clone(&returns) as Arc<dyn Reopen>);
    let mirror = Mirror::open_with(openings, options, Arc::clone(time) as _, reopen).await.unwrap();
    (mirror, returns)
}

#[tokio::test]
async fn member_that_was_not_there_returns_while_the_mirror_is_open() {
    let disks = disks(4 * MIB);
    closed(&disks).await;
    let time = Arc::new(VirtualTime::default());
    let (mirror, returns) = without_second(&disks[0], &time).await;
    fill(&mirror, 1).await;
    // It is not there for long, and the mirror goes on.
    for byte in 2..6 {
        mirror.work_once().await;
        time.pass(Duration::from_secs(600));
        fill(&mirror, byte).await;
    }
    returns.0.lock().unwrap().push(Ok(Arc::clone(&disks[1]) as _));
    mirror.work_once().await;
    assert!(is_whole(&mirror), "{:?}", mirror.status());
    assert!(data_of(&disks[0]) == data_of(&disks[1]) && data_of(&disks[1])[0] == 5);
    mirror.write(0, block(6), Durability::Durable).await.unwrap();
    drop(mirror);
    let alone = try_open(&[None, Some(&disks[1])], true, &Arc::default()).await.unwrap();
    assert_eq!(read_block(&alone, 0).await, 6);
}

/// It is opened again, with what it has made durable.
#[tokio::test]
async fn member_that_has_lost_something_returns_while_the_mirror_is_open() {
    let disks = disks(4 * MIB);
    closed(&disks).await;
    let (second, rule) = ruled(&disks[1]);
    let time = Arc::new(VirtualTime::default());
    let returns = Arc::new(Returns(Mutex::default(), 1));
    let openings = vec![Ok(member(0, Arc::clone(&disks[0]) as _)), Ok(member(1, second))];
    let options = MirrorOptions { wait: WAIT, alone: false, inspect_only: false };
    let reopen = Some(Arc::clone(&returns) as Arc<dyn Reopen>);
    let mirror =
        Mirror::open_with(openings, options, Arc::clone(&time) as _, reopen).await.unwrap();
    fill(&mirror, 1).await;
    mirror.write(MIB, block(2), Durability::Volatile).await.unwrap();
    // From now on its session is over, and its power failed.
    tell(&rule, |verb, span| fails(verb, span, Kind::Gone));
    mirror.write(2 * MIB, block(3), Durability::Durable).await.unwrap();
    for _ in 0..3 {
        time.pass(Duration::from_secs(600));
        mirror.work_once().await;
        assert!(mirror.status().members[1].1.is_out());
    }
    assert!(matches!(mirror.status().members[1].1, MemberState::Missing(_)));
    let crashed = Arc::new(disks[1].crash(3));
    returns.0.lock().unwrap().push(Ok(Arc::clone(&crashed) as _));
    time.pass(Duration::from_secs(600));
    mirror.work_once().await;
    assert!(is_whole(&mirror), "{:?}", mirror.status());
    assert!(data_of(&disks[0]) == data_of(&crashed));
    assert_eq!(bytes_of(&mirror).await, [1, 2, 3, 1]);
}

#[tokio::test]
async fn member_that_belongs_elsewhere_or_is_newer_is_not_taken_back() {
    let disks = disks(2 * MIB);
    closed(&disks).await;
    let older = Arc::new(Faulty::holding(disks[1].contents(), 512));
    let mirror = open(&disks).await;
    fill(&mirror, 1).await;
    mirror.close().await;
    drop(mirror);
    // What the second one is given alone the first one must not undo.
    let newer = Arc::new(Faulty::holding(disks[1].contents(), 512));
    let alone = try_open(&[None, Some(&newer)], true, &Arc::default()).await.unwrap();
    fill(&alone, 2).await;
    drop(alone);
    let other = [(); 2].map(|()| Arc::new(Faulty::new(AREA + 2 * MIB, 512)));
    create(members(&other), [8; 16]).await.unwrap();
    let blank = Arc::new(Faulty::new(AREA + 2 * MIB, 512));
    let twice = Arc::new(Faulty::holding(disks[0].contents(), 512));
    let short = Arc::new(Faulty::holding(disks[1].contents()[..2 * MIB as usize].to_vec(), 512));
    let blocks = Arc::new(Memory::new(AREA + 2 * MIB, 4096));
    let time = Arc::new(VirtualTime::default());
    let (mirror, returns) = without_second(&disks[0], &time).await;
    fill(&mirror, 3).await;
    let wrong: [(Arc<dyn Volume>, &str); 7] = [
        (Arc::clone(&older) as _, "follow on each other"),
        (Arc::clone(&newer) as _, "follow on each other"),
        (Arc::clone(&other[1]) as _, "another mirror"),
        (Arc::clone(&blank) as _, "no member"),
        (Arc::clone(&twice) as _, "another member"),
        (Arc::clone(&short) as _, "it must have"),
        (blocks, "larger blocks"),
    ];
    for (volume, why) in wrong {
        let changes =
            [&older, &newer, &other[1], &blank, &twice, &short].map(|disk| disk.contents());
        returns.0.lock().unwrap().push(Ok(volume));
        time.pass(Duration::from_secs(600));
        mirror.work_once().await;
        let said = mirror.status().members[1].1.to_string();
        assert!(said.contains("not there") && said.contains(why), "{why}: {said}");
        let now = [&older, &newer, &other[1], &blank, &twice, &short].map(|disk| disk.contents());
        assert!(now == changes, "{why}: it was written to");
    }
    returns.0.lock().unwrap().push(Ok(Arc::clone(&disks[1]) as _));
    time.pass(Duration::from_secs(600));
    mirror.work_once().await;
    assert!(is_whole(&mirror) && data_of(&disks[1])[0] == 3, "{:?}", mirror.status());
}

/// What only its own record calls dirty is so for the others too once it is there again.
#[tokio::test]
async fn region_that_is_dirty_on_a_returned_member_is_recorded_before_it_is_written_to() {
    let disks = [(); 3].map(|()| Arc::new(Faulty::new(AREA + 2 * MIB, 512)));
    create(members(&disks), ID).await.unwrap();
    let time = Arc::new(VirtualTime::default());
    let ([(first, _), (second, late), (third, rule)], returns) =
        (disks.each_ref().map(ruled), Arc::new(Returns(Mutex::default(), 2)));
    let openings =
        [first, second, third].into_iter().enumerate().map(|(at, it)| Ok(member(at, it)));
    let options = MirrorOptions { wait: WAIT, alone: false, inspect_only: false };
    let reopen = Some(Arc::clone(&returns) as Arc<dyn Reopen>);
    let runtime = Arc::clone(&time) as _;
    let mirror = Mirror::open_with(openings.collect(), options, runtime, reopen).await.unwrap();
    mirror.work_once().await;
    mirror.write(0, block(1), Durability::Durable).await.unwrap();
    mirror.flush().await.unwrap();
    // It does not get the record that calls the region clean.
    tell(&rule, |verb, span| fails(verb, span, Kind::Gone));
    time.pass(2 * core::IDLE);
    mirror.work_once().await;
    mirror.write(MIB, block(1), Durability::Durable).await.unwrap();
    let status = mirror.status();
    assert!(status.members[2].1.is_out() && status.dirty.0 == 1, "{status:?}");
    time.pass(Duration::from_secs(600));
    mirror.work_once().await;
    // It is there again, and nothing is copied to it yet.
    let (again, rule) = ruled(&disks[2]);
    let flushes = std::sync::atomic::AtomicUsize::new(0);
    tell(&rule, move |verb, _| match verb {
        Verb::Flush if flushes.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0 => hangs(),
        _ => go_on(),
    });
    returns.0.lock().unwrap().push(Ok(again));
    time.pass(Duration::from_secs(600));
    assert!(Box::pin(mirror.work_once()).as_mut().now_or_never().is_none());
    assert_eq!(mirror.status().dirty.0, 2);
    // Only the first gets a write before all power fails.
    tell(&late, |verb, span| match verb {
        Verb::Write if span.at >= AREA => hangs(),
        _ => go_on(),
    });
    let mut write = mirror.write(0, block(2), Durability::Durable);
    settle(&mut write, None).await;
    assert_eq!(data_of(&disks[0])[0], 2);
    let openings = [Some(&disks[0]), Some(&disks[1]), None];
    let mirror = try_open(&openings, false, &Arc::default()).await.unwrap();
    mirror.work_once().await;
    assert!(data_of(&disks[0]) == data_of(&disks[1]), "they differ for good");
}
