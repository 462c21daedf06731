use std::sync::Arc;

use futures_util::FutureExt as _;

use super::*;
use crate::random::Random;
use crate::store::faulty::Faulty;
use crate::store::memory::Memory;
use crate::{Durability, ExtentMap, Kind, Shape, Space, Verb, Work};

const SIZE: u64 = SIZE_MIN;

/// What a tape should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Block(Vec<u8>),
    Mark,
}

/// The answer, which stores in memory give at once.
fn now<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().expect("a store in memory answers at once")
}

fn open(volume: Arc<dyn Volume>) -> Tape {
    now(Tape::open(volume, 0x1234)).unwrap_or_else(|why| panic!("{why}"))
}

fn blank() -> Tape {
    open(Arc::new(Memory::new(SIZE, 512)))
}

fn put(tape: &mut Tape, item: &Item) -> TapeResult<()> {
    match item {
        Item::Block(data) => now(tape.write(&[Bytes::from(data.clone())])),
        Item::Mark => now(tape.write_mark()),
    }
}

/// All that is on a tape, or the first failure.
fn contents(tape: &mut Tape) -> TapeResult<Vec<Item>> {
    let mut items = Vec::new();
    tape.rewind();
    loop {
        match now(tape.read(0))? {
            Read::Block(data) => items.push(Item::Block(data.to_vec())),
            Read::Mark => items.push(Item::Mark),
            Read::EndOfData => return Ok(items),
        }
    }
}

fn any_item(random: &mut Random) -> Item {
    match random.below(4) {
        0 => Item::Mark,
        _ => {
            let len = random.index(2500);
            Item::Block(random.bytes(len))
        }
    }
}

fn marks(items: &[Item]) -> u64 {
    items.iter().filter(|item| **item == Item::Mark).count() as u64
}

/// Where `SPACE` over `count` blocks ends by the rules, beginning behind `from` items.
fn space_blocks(items: &[Item], from: usize, count: usize) -> (usize, Moved) {
    for (over, item) in items[from..].iter().take(count).enumerate() {
        if *item == Item::Mark {
            return (from + over + 1, Moved::Mark((count - over) as u64));
        }
    }
    match (from + count).checked_sub(items.len()) {
        Some(left @ 1..) => (items.len(), Moved::EndOfData(left as u64)),
        _ => (from + count, Moved::There),
    }
}

fn space_blocks_back(items: &[Item], from: usize, count: usize) -> (usize, Moved) {
    for (over, item) in items[..from].iter().rev().take(count).enumerate() {
        if *item == Item::Mark {
            return (from - over - 1, Moved::Mark((count - over) as u64));
        }
    }
    match count.checked_sub(from) {
        Some(left @ 1..) => (0, Moved::Beginning(left as u64)),
        _ => (from - count, Moved::There),
    }
}

fn space_marks(items: &[Item], from: usize, count: usize) -> (usize, Moved) {
    let behind = (from..items.len()).filter(|at| items[*at] == Item::Mark).map(|at| at + 1);
    let behind: Vec<_> = behind.collect();
    match count {
        0 => (from, Moved::There),
        count if count <= behind.len() => (behind[count - 1], Moved::There),
        _ => (items.len(), Moved::EndOfData((count - behind.len()) as u64)),
    }
}

fn space_marks_back(items: &[Item], from: usize, count: usize) -> (usize, Moved) {
    let before: Vec<_> = (0..from).rev().filter(|at| items[*at] == Item::Mark).collect();
    match count {
        0 => (from, Moved::There),
        count if count <= before.len() => (before[count - 1], Moved::There),
        _ => (0, Moved::Beginning((count - before.len()) as u64)),
    }
}

/// One step of a client at random, on the tape and on the list that it should be like.
fn step(tape: &mut Tape, model: &mut Vec<Item>, random: &mut Random) {
    let from = tape.place().object as usize;
    let count = random.index(9);
    let moved = match random.below(10) {
        0..4 => {
            let item = any_item(random);
            put(tape, &item).unwrap();
            model.truncate(from);
            model.push(item);
            None
        }
        4 => Some((now(tape.space_blocks(count as u64)), space_blocks(model, from, count))),
        5 => {
            Some((now(tape.space_blocks_back(count as u64)), space_blocks_back(model, from, count)))
        }
        6 => Some((now(tape.space_marks(count as u64)), space_marks(model, from, count))),
        7 => Some((now(tape.space_marks_back(count as u64)), space_marks_back(model, from, count))),
        8 => {
            let to = random.index(model.len() + 1);
            Some((now(tape.locate(to as u64)), (to, Moved::There)))
        }
        _ => {
            now(tape.sync()).unwrap();
            tape.go_to_end();
            None
        }
    };
    if let Some((moved, (to, expected))) = moved {
        assert_eq!((moved.unwrap(), tape.place().object as usize), (expected, to));
        assert_eq!(tape.place().marks, marks(&model[..to]));
    }
}

#[test]
fn tape_is_like_a_list_that_writing_ends() {
    for seed in 0..60 {
        let (mut random, mut model) = (Random::new(seed), Vec::new());
        let volume: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
        let mut tape = open(Arc::clone(&volume));
        for _ in 0..120 {
            step(&mut tape, &mut model, &mut random);
            if random.below(20) == 0 {
                // All that was written is found again, whether it was made stable or not.
                let before = tape.place();
                tape = open(Arc::clone(&volume));
                assert_eq!(now(tape.locate(before.object)).unwrap(), Moved::There);
                assert_eq!(tape.place(), before, "seed {seed}");
            }
        }
        assert_eq!(contents(&mut tape).unwrap(), model, "seed {seed}");
        assert_eq!(tape.end().marks, marks(&model));
    }
}

/// A file is where it is found by its number.
#[test]
fn file_begins_behind_as_many_marks() {
    let mut tape = blank();
    for number in 0..20_u8 {
        put(&mut tape, &Item::Block(vec![number; 700])).unwrap();
        put(&mut tape, &Item::Mark).unwrap();
    }
    for file in [0, 19, 7, 8, 1, 16] {
        assert_eq!(now(tape.locate_file(file)).unwrap(), Moved::There);
        let block = Read::Block(vec![file as u8; 700].into());
        assert_eq!(now(tape.read(700)).unwrap(), block);
    }
    assert_eq!(now(tape.locate_file(22)).unwrap(), Moved::EndOfData(2));
    assert_eq!(tape.place(), tape.end());
}

/// From the last of many records any other is a few reads away.
#[test]
fn any_record_is_found_in_few_steps() {
    let mut tape = blank();
    for number in 0..1000_u32 {
        put(&mut tape, &Item::Block(number.to_be_bytes().to_vec())).unwrap();
    }
    for number in [0, 1, 511, 512, 513, 767, 998] {
        let mut steps = 0;
        let (mut at, mut object) = (tape.end().previous, 999);
        while object != number {
            let (header, _) = now(tape.header(at, |_| true)).unwrap();
            let skip = format::skip_target(object);
            let is_skip = skip >= number;
            at = if is_skip { header.skip } else { header.place.previous };
            object = if is_skip { skip } else { object - 1 };
            steps += 1;
        }
        assert!(steps <= 60, "{steps} steps to {number}");
        assert_eq!(now(tape.locate(number)).unwrap(), Moved::There);
        let expected = Bytes::from((number as u32).to_be_bytes().to_vec());
        assert_eq!(now(tape.read(4)).unwrap(), Read::Block(expected));
    }
}

#[test]
fn full_tape_warns_and_keeps_room_for_marks() {
    let mut tape = blank();
    let block = Item::Block(vec![7; 8000]);
    let mut warned = 0;
    let full = loop {
        match put(&mut tape, &block) {
            Ok(()) => warned += u32::from(tape.is_in_early_warning()),
            Err(why) => break why,
        }
    };
    assert!(matches!(full, TapeError::Full) && warned >= 4, "{full}, {warned} in the zone");
    let held = tape.end().object;
    for _ in 0..MARKS_RESERVE / UNIT {
        put(&mut tape, &Item::Mark).unwrap();
    }
    while put(&mut tape, &Item::Mark).is_ok() {}
    assert!(tape.end().at <= SIZE && tape.end().marks >= MARKS_RESERVE / UNIT);
    assert_eq!(contents(&mut tape).unwrap()[..held as usize], vec![block; held as usize]);
}

#[test]
fn erase_ends_the_tape_at_the_head() {
    let mut tape = blank();
    for number in 0..9 {
        put(&mut tape, &Item::Block(vec![number; 3])).unwrap();
    }
    now(tape.locate(4)).unwrap();
    now(tape.erase(false)).unwrap();
    assert_eq!(contents(&mut tape).unwrap().len(), 4);
    let mut again = open(Arc::clone(&tape.volume));
    assert_eq!(contents(&mut again).unwrap().len(), 4);
}

/// What may be on a tape after a crash: so many items of a list at least, in their order, and no others.
#[derive(Clone)]
struct Allowed {
    items: Vec<Item>,
    at_least: usize,
}

impl Allowed {
    fn holds(&self, found: &[Item]) -> bool {
        found.len() >= self.at_least && self.items.starts_with(found)
    }
}

/// Writes at random, to a disk that fails at some change; gives what may be found there afterwards.
fn write_until_cut(disk: &Arc<Faulty>, random: &mut Random) -> Vec<Allowed> {
    let mut tape = open(Arc::<Faulty>::clone(disk));
    let mut allowed = vec![Allowed { items: Vec::new(), at_least: 0 }];
    for _ in 0..40 {
        let current = allowed.last().cloned().unwrap();
        match random.below(8) {
            0 => {
                if now(tape.sync()).is_err() {
                    break;
                }
                allowed = vec![Allowed { at_least: current.items.len(), ..current }];
                continue;
            }
            1 => {
                let to = random.index(current.items.len() + 1);
                if now(tape.locate(to as u64)).is_err() {
                    break;
                }
            }
            _ => {}
        }
        let (item, from) = (any_item(random), tape.place().object as usize);
        let items = [&current.items[..from], &[item.clone()][..]].concat();
        let next = Allowed { items, at_least: current.at_least.min(from) };
        // Until it is acknowledged that something was overwritten, what was there may be there still.
        if put(&mut tape, &item).is_err() {
            allowed.push(next);
            break;
        }
        allowed = vec![next];
    }
    allowed
}

/// The law of the format: wherever the power goes, what was made stable is found again, and nothing that was not
/// written there.
#[test]
fn crash_at_any_change_loses_nothing_stable() {
    for seed in 0..400 {
        let disk = Arc::new(Faulty::new(SIZE, 512));
        disk.cut_after(1 + seed % 80);
        let mut random = Random::new(seed);
        let allowed = write_until_cut(&disk, &mut random);
        for crash in 0..4 {
            let left: Arc<dyn Volume> = Arc::new(disk.crash(seed * 4 + crash));
            let mut tape = open(Arc::clone(&left));
            let found = contents(&mut tape).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            let is_allowed = allowed.iter().any(|allowed| allowed.holds(&found));
            assert!(is_allowed, "seed {seed}, crash {crash}: {} items", found.len());
            assert_one_label_is_enough(&disk.crash(seed * 4 + crash).contents(), &allowed);
            // It goes on from there, and what the crash has left behind the end does not come back.
            put(&mut tape, &Item::Block(vec![1; 600])).unwrap();
            let mut again = open(left);
            let expected = [&found[..], &[Item::Block(vec![1; 600])]].concat();
            assert_eq!(contents(&mut again).unwrap(), expected, "seed {seed}");
        }
    }
}

/// Whichever copy of the label is lost beside the crash, what may be found is the same.
fn assert_one_label_is_enough(bytes: &[u8], allowed: &[Allowed]) {
    for [lost, left] in [[0, 4096], [4096, 0]] {
        if bytes[left..left + 512] == [0; 512] {
            continue;
        }
        let mut bytes = bytes.to_vec();
        bytes[lost..lost + 512].fill(0xA5);
        let mut tape = open(Arc::new(Faulty::holding(bytes, 512)));
        let found = contents(&mut tape).unwrap();
        assert!(allowed.iter().any(|allowed| allowed.holds(&found)), "without label {lost}");
    }
}

/// A flipped bit is met as damage, or makes no difference: nobody reads other data, or finds fewer of them.
#[test]
fn flipped_bit_is_never_silent() {
    let (mut random, disk) = (Random::new(3), Arc::new(Faulty::new(SIZE, 512)));
    let mut tape = open(Arc::<Faulty>::clone(&disk));
    let items: Vec<_> = (0..30).map(|_| any_item(&mut random)).collect();
    for item in &items {
        put(&mut tape, item).unwrap();
    }
    now(tape.locate(25)).unwrap();
    put(&mut tape, &Item::Mark).unwrap();
    now(tape.sync()).unwrap();
    let items = [&items[..25], &[Item::Mark]].concat();
    let (end, bytes) = (tape.end().at as usize, disk.contents());
    let mut met = 0;
    for at in (0..end).step_by(7) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        let mut tape = open(Arc::new(Faulty::holding(bytes, 512)));
        match contents(&mut tape) {
            Ok(found) => assert_eq!(found, items, "byte {at}"),
            Err(TapeError::Damaged { at: record, .. }) => {
                met += 1;
                let flipped = record as usize..record as usize + Header::size(2500) as usize;
                assert!(flipped.contains(&at), "byte {at} is blamed on {record}");
                // Those behind it can be read all the same.
                let behind = tape.place().object as usize;
                assert_eq!(contents_from(&mut tape), items[behind..], "byte {at}");
            }
            Err(why) => panic!("byte {at}: {why}"),
        }
    }
    assert!(met > 1000, "{met} were met");
}

fn contents_from(tape: &mut Tape) -> Vec<Item> {
    let mut items = Vec::new();
    loop {
        match now(tape.read(4096)).unwrap() {
            Read::Block(data) => items.push(Item::Block(data.to_vec())),
            Read::Mark => items.push(Item::Mark),
            Read::EndOfData => return items,
        }
    }
}

/// A write that a disk acknowledged and dropped is noticed by the record behind it.
#[test]
fn write_that_was_dropped_is_noticed() {
    let mut tape = blank();
    for number in 0..4 {
        put(&mut tape, &Item::Block(vec![number; 300])).unwrap();
    }
    now(tape.sync()).unwrap();
    let stale = now(tape.volume.read(Span::new(FIRST, 1024))).unwrap();
    now(tape.locate(0)).unwrap();
    for number in 4..8 {
        put(&mut tape, &Item::Block(vec![number; 300])).unwrap();
    }
    now(tape.sync()).unwrap();
    let volume = Arc::clone(&tape.volume);
    now(volume.write(FIRST, stale, Durability::Volatile)).unwrap();
    let mut tape = open(volume);
    let error = contents(&mut tape).unwrap_err();
    assert!(matches!(error, TapeError::Damaged { at, .. } if at == FIRST + 1024), "{error}");
}

#[test]
fn failed_flush_is_told_and_nothing_is_appended_to_it() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let mut tape = open(Arc::<Faulty>::clone(&disk));
    put(&mut tape, &Item::Mark).unwrap();
    disk.fail(Verb::Flush, Kind::Medium);
    assert!(matches!(now(tape.sync()), Err(TapeError::Volume(_))));
    assert!(matches!(put(&mut tape, &Item::Mark), Err(TapeError::Failed)));
    assert!(matches!(now(tape.sync()), Err(TapeError::Failed)));
}

#[test]
fn full_store_takes_nothing_and_loses_nothing() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let mut tape = open(Arc::<Faulty>::clone(&disk));
    put(&mut tape, &Item::Block(vec![1; 900])).unwrap();
    disk.fail(Verb::Write, Kind::NoSpace);
    assert!(put(&mut tape, &Item::Block(vec![2; 900])).is_err());
    put(&mut tape, &Item::Mark).unwrap();
    now(tape.sync()).unwrap();
    assert_eq!(contents(&mut tape).unwrap(), [Item::Block(vec![1; 900]), Item::Mark]);
}

#[test]
fn volume_that_is_no_tape_is_refused() {
    let refused = |volume: Arc<dyn Volume>| match now(Tape::open(volume, 1)) {
        Ok(_) => panic!("it is a tape"),
        Err(why) => why,
    };
    assert!(matches!(refused(Arc::new(Memory::new(SIZE / 2, 512))), OpenError::Small));
    assert!(matches!(refused(Arc::new(Memory::new(SIZE, 4096))), OpenError::Blocks));
    let other = Faulty::holding(vec![7; SIZE as usize], 512);
    assert!(matches!(refused(Arc::new(other)), OpenError::Foreign));
    // A disc has something behind its first 32 KiB, and old file systems behind their first one.
    for at in [1024, 32 << 10, (1 << 20) - 1] {
        let mut bytes = vec![0; SIZE as usize];
        bytes[at] = 1;
        assert!(matches!(refused(Arc::new(Faulty::holding(bytes, 512))), OpenError::Foreign));
    }
    let mut label = Label::blank(1).encode().to_vec();
    label[100] ^= 1;
    let mut bytes = vec![0; SIZE as usize];
    bytes[..512].copy_from_slice(&label);
    assert!(matches!(refused(Arc::new(Faulty::holding(bytes, 512))), OpenError::Damaged));
    // One that has lost both labels is not blank.
    let disk = Arc::new(Faulty::new(SIZE, 512));
    put(&mut open(Arc::<Faulty>::clone(&disk)), &Item::Mark).unwrap();
    let mut bytes = disk.contents();
    bytes[..FIRST as usize].fill(0);
    assert!(matches!(refused(Arc::new(Faulty::holding(bytes, 512))), OpenError::Damaged));
}

/// What is behind an older end is acknowledged too, once a file mark was: damage there is no torn tail.
#[test]
fn damage_is_met_although_the_first_label_is_lost() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let mut tape = open(Arc::<Faulty>::clone(&disk));
    for number in 0..6 {
        put(&mut tape, &Item::Block(vec![number; 3000])).unwrap();
        now(tape.sync()).unwrap();
    }
    for crash in 0..16 {
        let mut bytes = disk.crash(crash).contents();
        bytes[..512].fill(0xA5);
        let fifth = FIRST as usize + 5 * Header::size(3000) as usize;
        bytes[fifth + 2000] ^= 1;
        let mut tape = open(Arc::new(Faulty::holding(bytes, 512)));
        assert_eq!(tape.end().object, 6, "crash {crash}");
        assert!(matches!(contents(&mut tape), Err(TapeError::Damaged { .. })));
    }
}

/// A disk of which some bytes cannot be read, or to which nothing can be written.
struct FaultyDisk {
    disk: Faulty,
    shape: Shape,
    unreadable: Option<u64>,
}

impl FaultyDisk {
    fn of(bytes: Vec<u8>, read_only: bool, unreadable: Option<u64>) -> Arc<Self> {
        let disk = Faulty::holding(bytes, 512);
        let shape = Shape { read_only, ..*disk.shape() };
        Arc::new(Self { disk, shape, unreadable })
    }
}

impl Volume for FaultyDisk {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        if self.unreadable.is_some_and(|at| (span.at..span.end()).contains(&at)) {
            self.disk.fail(Verb::Read, Kind::Medium);
        }
        self.disk.read(span)
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        assert!(!self.shape.read_only, "a write to a tape that takes none");
        self.disk.write(at, data, durability)
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.disk.write_zeroes(span, durability, space)
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.disk.discard(span)
    }

    fn flush(&self) -> Work<'_, ()> {
        self.disk.flush()
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        None
    }
}

/// The tail that a crash has left is read, and nothing is done about its label.
#[test]
fn tape_that_takes_no_writes_is_moved_and_read_after_a_crash() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let mut tape = open(Arc::<Faulty>::clone(&disk));
    let items = [Item::Block(vec![1; 700]), Item::Mark, Item::Block(vec![2; 20])];
    items.iter().for_each(|item| put(&mut tape, item).unwrap());
    let mut tape = open(FaultyDisk::of(disk.contents(), true, None));
    now(tape.sync()).unwrap();
    assert_eq!(now(tape.locate(2)).unwrap(), Moved::There);
    now(tape.sync()).unwrap();
    assert_eq!(contents(&mut tape).unwrap(), items);
    assert!(!tape.has_failed());
}

#[test]
fn sector_that_cannot_be_read_costs_what_is_in_it() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let mut tape = open(Arc::<Faulty>::clone(&disk));
    let items: Vec<_> = (0..8).map(|number| Item::Block(vec![number; 700])).collect();
    items.iter().for_each(|item| put(&mut tape, item).unwrap());
    now(tape.sync()).unwrap();
    let (end, bytes) = (tape.end().at, disk.contents());
    for unreadable in (0..=end).step_by(UNIT as usize) {
        let worn = FaultyDisk::of(bytes.clone(), false, Some(unreadable));
        let mut tape = open(worn);
        let bad = unreadable.checked_sub(FIRST).map(|at| (at / Header::size(700)) as usize);
        let (mut found, mut damaged) = (Vec::new(), None);
        loop {
            let object = tape.place().object as usize;
            match now(tape.read(1 << 16)) {
                Ok(Read::Block(data)) => found.push(Item::Block(data.to_vec())),
                Ok(Read::Mark) => panic!("there is none"),
                Ok(Read::EndOfData) => break,
                Err(TapeError::Damaged { .. }) => damaged = Some(object),
                Err(why) => panic!("byte {unreadable}: {why}"),
            }
            assert!(tape.place().object as usize > object, "byte {unreadable}");
        }
        let bad = bad.filter(|bad| *bad < items.len());
        let mut whole = items.clone();
        bad.map(|bad| whole.remove(bad));
        assert_eq!((found, damaged), (whole, bad), "byte {unreadable}");
    }
}

/// Checksums keep nobody from making a tape that contradicts itself.
#[test]
fn forged_tape_does_no_harm() {
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let disk = Arc::new(Faulty::new(SIZE, 512));
        let mut tape = open(Arc::<Faulty>::clone(&disk));
        (0..20).for_each(|_| put(&mut tape, &any_item(&mut random)).unwrap());
        now(tape.sync()).unwrap();
        let mut bytes = disk.contents();
        for _ in 0..1 + random.index(6) {
            forge(&mut bytes, tape.end().at, &mut random);
        }
        let volume: Arc<dyn Volume> = Arc::new(Faulty::holding(bytes, 512));
        let Ok(mut tape) = now(Tape::open(volume, 1)) else { continue };
        for _ in 0..40 {
            use_somehow(&mut tape, &mut random);
        }
    }
}

/// Changes a field of a label or of a record, and makes the checksum right again.
fn forge(bytes: &mut [u8], end: u64, random: &mut Random) {
    let number = match random.below(4) {
        0 => random.below(24),
        1 => random.below(end),
        2 => random.below(end / 512) * 512,
        _ => u64::MAX - random.below(3),
    };
    let units = format::LABELS.len() as u64 + (end - FIRST) / UNIT;
    let (at, len, fields) = match random.below(units) as usize {
        unit @ ..2 => (format::LABELS[unit] as usize, 512, [12, 20, 28, 36, 44, 52, 60, 68]),
        unit => (FIRST as usize + (unit - 2) * 512, 128, [8, 24, 32, 40, 48, 56, 76, 84]),
    };
    let unit = &mut bytes[at..at + len];
    let field = fields[random.index(fields.len())];
    unit[field..field + 8].copy_from_slice(&number.to_le_bytes());
    let sum = format::crc32c(&unit[..len - 4]);
    unit[len - 4..].copy_from_slice(&sum.to_le_bytes());
}

/// Does something that a client may ask for; it may fail.
fn use_somehow(tape: &mut Tape, random: &mut Random) {
    let count = [random.below(9), random.below(1 << 40), u64::MAX][random.index(3)];
    let _ = match random.below(11) {
        0 => now(tape.space_blocks(count)).map(drop),
        1 => now(tape.space_blocks_back(count)).map(drop),
        2 => now(tape.space_marks(count)).map(drop),
        3 => now(tape.space_marks_back(count)).map(drop),
        4 => now(tape.locate(count)).map(drop),
        5 => now(tape.locate_file(count)).map(drop),
        6 => now(tape.sync()),
        7 if random.below(5) == 0 => put(tape, &any_item(random)),
        8 if random.below(9) == 0 => now(tape.erase(false)),
        _ => now(tape.read(random.below(5000) as u32)).map(drop),
    };
    assert!(tape.remaining() <= SIZE && tape.place().at <= SIZE);
}

/// Marks alone are made stable after so many bytes, too: a drive that opens the tape has little to read.
#[test]
fn little_is_left_behind_the_end_that_the_label_names() {
    let volume: Arc<dyn Volume> = Arc::new(Memory::new(10 << 20, 512));
    let mut tape = open(Arc::clone(&volume));
    for _ in 0..3 * writing::UNSTABLE_MAX / UNIT {
        put(&mut tape, &Item::Mark).unwrap();
    }
    assert!(tape.label.end.at > 2 * writing::UNSTABLE_MAX);
    let block = Item::Block(vec![7; 1 << 20]);
    while put(&mut tape, &block).is_ok() {}
    // More than that is nothing that a drive has left.
    let label = Label { end: Place::BEGINNING, ..tape.label };
    now(tape.put_label(label)).unwrap();
    assert!(matches!(now(Tape::open(volume, 1)), Err(OpenError::Unlabelled)));
}

/// What is read when a tape is opened may be much, and all at hand.
#[test]
fn opening_lets_others_run() {
    let volume: Arc<dyn Volume> = Arc::new(Memory::new(4 << 20, 512));
    let mut tape = open(Arc::clone(&volume));
    (0..5000).for_each(|_| put(&mut tape, &Item::Mark).unwrap());
    now(tape.put_label(Label { end: Place::BEGINNING, ..tape.label })).unwrap();
    let mut opening = Box::pin(Tape::open(volume, 1));
    for _ in 0..2 {
        assert!((&mut opening).now_or_never().is_none(), "it lets nobody else run");
    }
    assert_eq!(now(opening).unwrap_or_else(|why| panic!("{why}")).end().marks, 5000);
}

#[test]
fn tape_that_is_cut_off_is_told_from_a_damaged_one() {
    let disk = Arc::new(Faulty::new(3 * SIZE, 512));
    let mut tape = open(Arc::<Faulty>::clone(&disk));
    put(&mut tape, &Item::Block(vec![1; 2 << 20])).unwrap();
    now(tape.sync()).unwrap();
    let cut = disk.contents()[..SIZE as usize].to_vec();
    let opened = now(Tape::open(Arc::new(Faulty::holding(cut, 512)), 1));
    assert!(matches!(opened, Err(OpenError::CutOff { size: SIZE, .. })));
}

/// One damaged header keeps nobody from any other record, and from writing behind the last one.
#[test]
fn damaged_header_costs_its_own_record_only() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let mut tape = open(Arc::<Faulty>::clone(&disk));
    let items: Vec<_> = (0..70)
        .map(|number| if number % 2 == 1 { Item::Mark } else { Item::Block(vec![number; 1500]) })
        .collect();
    let mut places = Vec::new();
    for item in &items {
        places.push(tape.place());
        put(&mut tape, item).unwrap();
    }
    now(tape.sync()).unwrap();
    let bytes = disk.contents();
    for damaged in 0..items.len() {
        let mut bytes = bytes.clone();
        bytes[places[damaged].at as usize + 20] ^= 1;
        let mut tape = open(Arc::new(Faulty::holding(bytes, 512)));
        for (object, place) in places.iter().enumerate() {
            for from in [0, items.len() as u64] {
                now(tape.locate(from)).unwrap();
                assert_eq!(now(tape.locate(object as u64)).unwrap(), Moved::There, "{damaged}");
                assert_eq!(tape.place(), *place, "{damaged}");
            }
            if items[object] == Item::Mark && object != damaged {
                tape.rewind();
                let file = place.marks + 1;
                assert_eq!(now(tape.space_marks(file)).unwrap(), Moved::There, "{damaged}");
                assert_eq!(tape.place().object, object as u64 + 1);
            }
        }
        tape.go_to_end();
        for _ in 0..60 {
            put(&mut tape, &Item::Mark).unwrap_or_else(|why| panic!("{damaged}: {why}"));
        }
        for file in 40..90 {
            assert_eq!(now(tape.locate_file(file)).unwrap(), Moved::There, "{damaged}");
            assert_eq!(tape.place().marks, file);
        }
    }
}

/// Whatever the lengths of tape and blocks are, who is warned can write another block, and file marks behind it.
#[test]
fn warning_comes_while_another_block_fits() {
    for (size, len) in
        [(1, 100), (1, 9000), (1, 200_000), (1, 310_000), (3, 900_000), (40, 8 << 20)]
    {
        let mut tape = open(Arc::new(Memory::new(size << 20, 512)));
        let block = [Bytes::from(vec![1; len])];
        while !tape.is_in_early_warning() {
            now(tape.write(&block)).unwrap_or_else(|why| panic!("{size} {len}: {why}"));
        }
        now(tape.write(&block)).unwrap_or_else(|why| panic!("{size} {len}: {why}"));
        for _ in 0..MARKS_RESERVE / UNIT {
            now(tape.write_mark()).unwrap();
        }
    }
}

#[test]
fn erase_of_all_leaves_nothing_of_earlier_recordings() {
    for all in [false, true] {
        let mut tape = blank();
        (0..9).for_each(|_| put(&mut tape, &Item::Block(vec![0x5A; 3000])).unwrap());
        // A shorter recording ends before them, and the space is not given back.
        let label = tape.label;
        now(tape.volume.write(0, Label::blank(7).encode(), Durability::Durable)).unwrap();
        now(tape.volume.write(4096, Label::blank(7).encode(), Durability::Durable)).unwrap();
        assert_ne!(label.tape, 7);
        let mut again = open(Arc::clone(&tape.volume));
        assert_eq!(again.end(), Place::BEGINNING);
        now(again.erase(all)).unwrap();
        let bytes = now(tape.volume.read(Span::new(FIRST, 54 * UNIT))).unwrap();
        assert_eq!(bytes.contains(&0x5A), !all);
    }
}

/// The label of a forged tape denies the file marks that are there.
#[test]
fn marks_that_the_label_denies_are_damage() {
    let mut tape = blank();
    let items = [Item::Block(vec![1; 9]), Item::Mark, Item::Block(vec![2; 9])];
    items.iter().for_each(|item| put(&mut tape, item).unwrap());
    now(tape.sync()).unwrap();
    let end = Place { marks: 0, last_mark: 0, ..tape.end() };
    now(tape.put_label(Label { end, ..tape.label })).unwrap();
    let mut tape = open(Arc::clone(&tape.volume));
    assert_eq!(now(tape.read(9)).unwrap(), Read::Block(vec![1; 9].into()));
    assert!(matches!(now(tape.read(9)), Err(TapeError::Damaged { .. })));
    assert!(matches!(now(tape.locate(2)), Err(TapeError::Damaged { .. })));
    assert_eq!(now(tape.space_marks(1)).unwrap(), Moved::EndOfData(1));
}

/// A blank tape that can be written once.
fn write_once() -> Tape {
    let volume: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
    now(Tape::make_write_once(Arc::clone(&volume), 7)).unwrap_or_else(|why| panic!("{why}"));
    let tape = open(volume);
    assert!(tape.is_write_once() && tape.id() == 7);
    tape
}

#[test]
fn tape_that_is_written_once_grows_and_changes_in_nothing_else() {
    let block = |fill: u8| Item::Block(vec![fill; 700]);
    let items = [block(1), block(2), Item::Mark, block(3), Item::Mark, Item::Mark, Item::Mark];
    let mut tape = write_once();
    items.iter().for_each(|item| put(&mut tape, item).unwrap());
    let refused = |result| assert!(matches!(result, Err(TapeError::WriteOnce)), "{result:?}");
    // The marks at the end are 4 to 6: the first of them ends a file.
    for object in 0..=4 {
        now(tape.locate(object)).unwrap();
        for item in [block(9), Item::Mark] {
            refused(put(&mut tape, &item));
        }
    }
    for object in [0, 5, 7] {
        now(tape.locate(object)).unwrap();
        refused(now(tape.erase(false)));
        refused(now(tape.erase(true)));
    }
    assert_eq!(contents(&mut tape).unwrap(), items);
    now(tape.locate(5)).unwrap();
    put(&mut tape, &block(4)).unwrap();
    assert_eq!(contents(&mut tape).unwrap(), [&items[..5], &[block(4)]].concat());
    now(tape.sync()).unwrap();
    // It stays so when it is opened again, and after a crash.
    let mut again = open(Arc::clone(&tape.volume));
    assert!(again.is_write_once());
    refused(put(&mut again, &block(9)));
    again.go_to_end();
    put(&mut again, &Item::Mark).unwrap();
    let mut again = open(Arc::clone(&again.volume));
    assert_eq!(contents(&mut again).unwrap().len(), 7);
    now(again.locate(6)).unwrap();
    refused(put(&mut again, &Item::Mark));
}

#[test]
fn mark_alone_on_a_tape_that_is_written_once_stays() {
    let mut tape = write_once();
    put(&mut tape, &Item::Mark).unwrap();
    put(&mut tape, &Item::Mark).unwrap();
    tape.rewind();
    assert!(put(&mut tape, &Item::Mark).is_err());
    now(tape.locate(1)).unwrap();
    put(&mut tape, &Item::Block(vec![1])).unwrap();
    assert_eq!(contents(&mut tape).unwrap(), [Item::Mark, Item::Block(vec![1])]);
}

#[test]
fn only_a_blank_tape_becomes_one_that_is_written_once() {
    let info = |volume: &Arc<dyn Volume>| now(Tape::check(&**volume)).unwrap();
    let mut tape = blank();
    assert_eq!(info(&tape.volume), LabelInfo { is_blank: true, is_write_once: false });
    put(&mut tape, &Item::Mark).unwrap();
    now(tape.sync()).unwrap();
    let refused = now(Tape::make_write_once(Arc::clone(&tape.volume), 7));
    assert!(matches!(refused, Err(OpenError::Written)));
    assert_eq!(info(&tape.volume), LabelInfo { is_blank: false, is_write_once: false });
    let tape = write_once();
    assert_eq!(info(&tape.volume), LabelInfo { is_blank: false, is_write_once: true });
    assert!(now(Tape::make_write_once(Arc::clone(&tape.volume), 8)).is_err());
}
