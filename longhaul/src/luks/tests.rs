//! Management and opening over volumes in memory: what must hold whatever breaks.

mod damage;
mod erase;
mod journal_token;
mod writer_token;

use std::io::{self, Write};
use std::sync::Mutex;

use bytes::Bytes;
use libcryptsetup_rs::consts::vals::CryptLogLevel;
use volume::store::faulty::Faulty;
use volume::store::memory::Memory;
use volume::{Durability, Kind, Span, check};

use super::header::Header;
use super::*;
use crate::size::Size;

const SIZE: u64 = 24 << 20;

pub(super) fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

/// The least that libcryptsetup takes: these tests derive hundreds of keys.
fn cheap() -> CostArgs {
    CostArgs {
        pbkdf_memory: Some(Size(32 << 10)),
        pbkdf_iterations: Some(4),
        ..CostArgs::default()
    }
}

fn init_with(force: bool) -> Init {
    Init { label: Some("test".into()), cost: cheap(), force, ..Init::default() }
}

pub(super) async fn encrypted_volume(volume: Arc<dyn Volume>) -> Arc<dyn Volume> {
    init(volume.clone(), secret("one"), init_with(false)).await.unwrap();
    volume
}

pub(super) async fn opens(volume: &Arc<dyn Volume>, text: &str) -> bool {
    match open(volume.clone(), secret(text), Options::default()).await {
        Ok(_) => true,
        Err(why) => {
            let why = why.to_string();
            assert!(why.contains("no key slot opens"), "the header itself is broken: {why}");
            false
        }
    }
}

/// Lines of a log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn messages_of_the_library_are_in_the_log() {
    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(log, || {
        library::format(SIZE, None, CipherArgs::default(), &secret("one"), &cheap()).unwrap();
        libcryptsetup_rs::log(CryptLogLevel::Normal, "a warning").unwrap();
    });
    let written = lines.0.lock().unwrap();
    assert!(String::from_utf8_lossy(&written).contains("a warning"));
}

#[tokio::test]
async fn slots_come_and_go() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    assert!(opens(&volume, "one").await && !opens(&volume, "two").await);
    assert_eq!(add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap(), 1);
    assert!(opens(&volume, "one").await && opens(&volume, "two").await);
    change(volume.clone(), secret("one"), secret("three"), cheap()).await.unwrap();
    assert!(!opens(&volume, "one").await && opens(&volume, "three").await);
    remove(volume.clone(), Some(secret("two").into()), None, false).await.unwrap();
    assert!(!opens(&volume, "two").await && opens(&volume, "three").await);
    let last = remove(volume.clone(), Some(secret("three").into()), None, false).await.unwrap_err();
    assert!(last.to_string().contains("last key slot"), "{last}");
    let slots = slots(volume.clone()).await.unwrap();
    assert_eq!((slots.slots.len(), slots.label.as_str(), slots.sector_size), (1, "test", 4096));
    assert_eq!((slots.offset, slots.size), (16 << 20, SIZE - (16 << 20)));
    remove(volume.clone(), Some(secret("three").into()), None, true).await.unwrap();
    let none = open(volume.clone(), secret("three"), Options::default()).await.err().unwrap();
    assert!(none.to_string().contains("the volume has no key slot left"), "{none}");
}

/// A thin line carries what is needed only: both copies and the slot, of 16 MiB.
#[tokio::test]
async fn new_header_takes_no_more_space_than_it_needs() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let image = Image::fetch(&volume).await.unwrap_or_else(|_| panic!("a header"));
    let used: u64 = 2 * image.header.size + image.header.slot_areas().map(|it| it.len).sum::<u64>();
    let mut data = 0;
    for piece in Span::new(0, 16 << 20).pieces(4096) {
        let bytes = volume.read(piece).await.unwrap();
        data += if bytes.iter().all(|byte| *byte == 0) { 0 } else { piece.len };
    }
    assert!(data <= used && used < 512 << 10, "{data} of {used}");
    assert!(opens(&volume, "one").await);
}

#[tokio::test]
async fn init_refuses_data_anywhere_in_what_it_clears() {
    let header = 16 << 20;
    for at in [0, 1 << 20, (5 << 20) + 512, header - 512] {
        let volume: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
        let data = Bytes::from(vec![7; 512]);
        volume.write(at, data, Durability::Volatile).await.unwrap();
        let refused = init(volume.clone(), secret("one"), init_with(false)).await.unwrap_err();
        assert!(refused.to_string().contains("not empty: it holds data"), "{at}: {refused}");
        assert_eq!(volume.read(Span::new(at, 512)).await.unwrap()[0], 7, "nothing is cleared");
        init(volume, secret("one"), init_with(true)).await.unwrap();
    }
    let volume: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
    // What was written, and is zero all the same.
    let zeroes = Bytes::from(vec![0; 1 << 20]);
    volume.write(4 << 20, zeroes, Durability::Volatile).await.unwrap();
    init(volume, secret("one"), init_with(false)).await.unwrap();
}

#[tokio::test]
async fn init_refuses_what_is_known_by_its_end() {
    let volume: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
    let mut backup = vec![0; 512];
    backup[..8].copy_from_slice(b"EFI PART");
    volume.write(SIZE - 512, backup.into(), Durability::Volatile).await.unwrap();
    let refused = init(volume, secret("one"), init_with(false)).await.unwrap_err();
    assert!(refused.to_string().contains("second copy of a GPT"), "{refused}");
}

#[tokio::test]
async fn a_named_slot_goes_only_if_another_one_opens() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
    let own = remove(volume.clone(), Some(secret("two").into()), Some(1), false).await.unwrap_err();
    assert!(own.to_string().contains("opens slot 1 itself"), "{own}");
    let none =
        remove(volume.clone(), Some(secret("two").into()), Some(7), false).await.unwrap_err();
    assert!(none.to_string().contains("no key slot 7"), "{none}");
    remove(volume.clone(), Some(secret("one").into()), Some(1), false).await.unwrap();
    assert!(opens(&volume, "one").await && !opens(&volume, "two").await);
}

#[tokio::test]
async fn volume_with_contents_is_not_encrypted_by_mistake() {
    for (at, bytes, name) in
        [(1080, &b"\x53\xef"[..], "ext4"), (510, b"\x55\xaa", "MBR"), (70_000, b"x", "data")]
    {
        let volume: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
        let mut start = vec![0; 128 << 10];
        start[at..at + bytes.len()].copy_from_slice(bytes);
        volume.write(0, Bytes::from(start), Durability::Volatile).await.unwrap();
        let refused = init(volume.clone(), secret("one"), init_with(false)).await.unwrap_err();
        assert!(refused.to_string().contains(name), "{refused}");
        init(volume.clone(), secret("one"), init_with(true)).await.unwrap();
    }
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let refused = init(volume, secret("one"), init_with(false)).await.unwrap_err();
    assert!(refused.to_string().contains("a LUKS header"), "{refused}");
    let small: Arc<dyn Volume> = Arc::new(Memory::new(16 << 20, 512));
    let refused = init(small, secret("one"), init_with(false)).await.unwrap_err();
    assert!(refused.to_string().contains("the header alone"), "{refused}");
}

#[tokio::test]
async fn the_plain_text_keeps_the_contract() {
    for (seed, block_size) in [(1, 512), (2, 4096)] {
        let store = encrypted_volume(Arc::new(Memory::new(56 << 20, block_size))).await;
        for allow_discards in [false, true] {
            let options = Options { allow_discards };
            let plain = open(store.clone(), secret("one"), options).await.unwrap();
            assert_eq!((plain.shape().block_size, plain.shape().physical_block_size), (512, 4096));
            check::volume(seed, plain).await;
        }
    }
}

#[tokio::test]
async fn a_backup_brings_back_the_old_pass_phrases() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("header");
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    backup(volume.clone(), &path).await.unwrap();
    assert!(backup(volume.clone(), &path).await.is_err(), "a backup was overwritten");
    change(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
    let wrong = Restore { secret: Some(secret("two")), ..Restore::default() };
    assert!(restore(volume.clone(), &path, wrong).await.is_err());
    assert!(opens(&volume, "two").await, "a refused restore changed something");
    let right = Restore { secret: Some(secret("one")), ..Restore::default() };
    let unasked = restore(volume.clone(), &path, right.clone()).await.unwrap_err().to_string();
    assert!(unasked.contains("would be lost, and what was in key slot 0"), "{unasked}");
    assert!(opens(&volume, "two").await, "a refused restore changed something");
    let right = Restore { force: true, ..right };
    restore(volume.clone(), &path, right).await.unwrap();
    assert!(opens(&volume, "one").await && !opens(&volume, "two").await);

    let other = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let uuids = [&volume, &other].map(|volume| slots(volume.clone()));
    let [of_backup, here] = futures_util::future::join_all(uuids).await.try_into().unwrap();
    let [of_backup, here] = [of_backup, here].map(|slots: Outcome<Slots>| slots.unwrap().uuid);
    let forced = Restore { force: true, ..Restore::default() };
    for how in [Restore::default(), forced.clone()] {
        let refused = restore(other.clone(), &path, how).await.unwrap_err().to_string();
        assert!(refused.contains(&of_backup) && refused.contains(&here), "{refused}");
        assert!(refused.contains("nobody can read what is on volume"), "{refused}");
    }
    let replaces = |uuid: &str| Restore { replace: Some(uuid.to_owned()), ..forced.clone() };
    restore(other.clone(), &path, replaces(&of_backup)).await.unwrap_err();
    assert!(start(&other).await != start(&volume).await, "a refused restore changed something");
    restore(other.clone(), &path, replaces(&here)).await.unwrap();
    assert!(start(&other).await == start(&volume).await);
    let lost: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
    assert!(restore(lost.clone(), &path, Restore::default()).await.is_err());
    restore(lost.clone(), &path, Restore { force: true, ..Restore::default() }).await.unwrap();
    assert!(opens(&lost, "one").await);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100_000).unwrap();
    let cut = restore(volume.clone(), &path, Restore::default()).await.unwrap_err();
    assert!(cut.to_string().contains("cut short"), "{cut}");
}

#[tokio::test]
async fn either_copy_of_the_header_is_enough_and_is_repaired() {
    for at in [0, 16 << 10] {
        let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
        let rubbish = Bytes::from(vec![0xaa; 16 << 10]);
        volume.write(at, rubbish, Durability::Volatile).await.unwrap();
        assert!(opens(&volume, "one").await, "the copy beside {at} was not used");
        add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
        let other = (16 << 10) - at;
        let rubbish = Bytes::from(vec![0xaa; 16 << 10]);
        volume.write(other, rubbish, Durability::Volatile).await.unwrap();
        assert!(opens(&volume, "two").await, "the copy at {at} was not repaired");
    }
}

/// Bytes that were lost to something else, in one copy of the header.
async fn damage(volume: &Arc<dyn Volume>, at: u64) {
    volume.write(at, Bytes::from(vec![0xaa; 4096]), Durability::Volatile).await.unwrap();
}

async fn start(volume: &Arc<dyn Volume>) -> Vec<u8> {
    image::read(volume, Span::new(0, 16 << 20)).await.unwrap()
}

#[tokio::test]
async fn header_is_repaired_only_after_a_slot_opened_and_never_on_a_read_only_volume() {
    for at in [0, 16 << 10] {
        let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
        let intact = start(&volume).await;
        damage(&volume, at).await;
        let damaged = start(&volume).await;
        assert!(!opens(&volume, "two").await);
        assert!(add(volume.clone(), secret("two"), secret("new"), cheap()).await.is_err());
        assert!(change(volume.clone(), secret("two"), secret("new"), cheap()).await.is_err());
        assert!(remove(volume.clone(), Some(secret("two").into()), None, true).await.is_err());
        slots(volume.clone()).await.unwrap();
        let read_only: Arc<dyn Volume> =
            Arc::new(volume::layer::read_only::ReadOnly::new(volume.clone()));
        assert!(opens(&read_only, "one").await);
        assert!(start(&volume).await == damaged, "something was written: {at}");
        let found = recognise(volume.clone()).await.unwrap().unwrap().summary();
        assert!(found.trouble.is_some_and(|trouble| trouble.contains("damaged")));
        assert!(opens(&volume, "one").await);
        let repaired = start(&volume).await;
        assert!(repaired[32 << 10..] == intact[32 << 10..], "the slots are as they were");
        assert_eq!(Header::damaged(&repaired), None);
        let found = recognise(volume.clone()).await.unwrap().unwrap().summary();
        assert_eq!(found.trouble, None);
    }
}

#[tokio::test]
async fn change_that_was_cut_short_is_finished_only_after_a_slot_opened() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let volume: Arc<dyn Volume> = disk.clone();
    encrypted_volume(volume.clone()).await;
    add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
    volume.flush().await.unwrap();
    let before = disk.contents();
    let cut_short = |cut| {
        let disk = Arc::new(Faulty::holding(before.clone(), 512));
        disk.cut_after(cut);
        disk
    };
    let mut tried = 0;
    for cut in 0.. {
        let disk = cut_short(cut);
        let finished = remove(disk.clone(), Some(secret("two").into()), None, false).await.is_ok();
        let found: Arc<dyn Volume> = Arc::new(disk.crash(0));
        let as_found = start(&found).await;
        if Header::superseded(&as_found).is_some() {
            tried += 1;
            assert!(!opens(&found, "three").await);
            assert!(start(&found).await == as_found, "written before a slot opened, cut {cut}");
            assert!(opens(&found, "one").await);
            assert!(Header::superseded(&start(&found).await).is_none(), "not finished, cut {cut}");
        }
        if finished {
            break;
        }
    }
    assert!(tried > 0, "no change was cut short between the copies");
}

/// Zeroes that the store has are zeroes for everyone, once somebody let discards through.
#[tokio::test]
async fn discards_are_remembered_in_the_header() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let span = Span::new(64 << 10, 64 << 10);
    let allowed = Options { allow_discards: true };
    let plain = open(volume.clone(), secret("one"), allowed).await.unwrap();
    plain.write(span.at, Bytes::from(vec![7; 64 << 10]), Durability::Volatile).await.unwrap();
    plain.write_zeroes(span, Durability::Volatile, volume::Space::Release).await.unwrap();
    drop(plain);
    let summary = recognise(volume.clone()).await.unwrap().unwrap().summary();
    assert!(summary.discards);
    let plain = open(volume.clone(), secret("one"), Options::default()).await.unwrap();
    assert!(plain.shape().discard.is_some());
    assert!(plain.read(span).await.unwrap().iter().all(|&byte| byte == 0), "noise was read");
    // Not by whoever has no pass-phrase, and not where nothing may be written.
    let other = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let before = start(&other).await;
    assert!(open(other.clone(), secret("two"), allowed).await.is_err());
    let read_only: Arc<dyn Volume> =
        Arc::new(volume::layer::read_only::ReadOnly::new(other.clone()));
    open(read_only, secret("one"), allowed).await.unwrap();
    assert!(start(&other).await == before);
}

/// What is left of a header when something else was put at the start of the volume is no volume, and not nothing.
#[tokio::test]
async fn second_copy_behind_a_file_system_is_not_opened() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    let mut start = vec![0; 4096];
    start[1080..1082].copy_from_slice(b"\x53\xef");
    volume.write(0, Bytes::from(start), Durability::Volatile).await.unwrap();
    let encrypted = recognise(volume.clone()).await.unwrap().expect("it counts as encrypted");
    assert!(encrypted.summary().name().contains("ext4"), "{}", encrypted.summary().name());
    let refused = open(volume.clone(), secret("one"), Options::default()).await.err().unwrap();
    assert!(refused.to_string().contains("only the second copy"), "{refused}");
    // One that lies where only large headers have it is found too.
    let far: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 4096));
    far.write(
        4 << 20,
        Bytes::from([&b"SKUL\xba\xbe"[..], &[0; 4090]].concat()),
        Durability::Volatile,
    )
    .await
    .unwrap();
    assert!(recognise(far).await.unwrap().is_some());
    let blank: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 4096));
    assert!(recognise(blank).await.unwrap().is_none());
    let tiny: Arc<dyn Volume> = Arc::new(Memory::new(512, 512));
    assert!(recognise(tiny).await.unwrap().is_none());
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Add,
    Change,
    Remove,
}

async fn carry_out(operation: Operation, volume: Arc<dyn Volume>) -> Outcome {
    match operation {
        Operation::Add => add(volume, secret("one"), secret("new"), cheap()).await.map(drop),
        Operation::Change => change(volume, secret("one"), secret("new"), cheap()).await.map(drop),
        Operation::Remove => {
            remove(volume, Some(secret("new").into()), None, false).await.map(drop)
        }
    }
}

/// What a failure says of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderState {
    AsItWas,
    NotKnown,
    NotWiped,
    OneCopy,
}

impl HeaderState {
    fn of(failure: &str) -> Option<Self> {
        let known = [
            ("the header is as it was", Self::AsItWas),
            ("it is not known whether the header has changed", Self::NotKnown),
            ("what was in the removed key slot may still be on the volume", Self::NotWiped),
            ("one of its two copies may still be the old one", Self::OneCopy),
        ];
        known.iter().find(|(words, _)| failure.contains(words)).map(|(_, said)| *said)
    }
}

/// Whether what a failed `operation` says of the header holds, where `opened` tells whether the pass-phrases `one` and
/// `new` open it.
fn is_true(operation: Operation, failure: &str, opened: (bool, bool)) -> bool {
    let (old, new) = match (operation, failure.contains("removing the old")) {
        (Operation::Add, _) | (Operation::Change, false) => ((true, false), (true, true)),
        (Operation::Change, true) => ((true, true), (false, true)),
        (Operation::Remove, _) => ((true, true), (true, false)),
    };
    match HeaderState::of(failure) {
        Some(HeaderState::AsItWas) => opened == old,
        Some(HeaderState::NotKnown) => opened == old || opened == new,
        Some(HeaderState::NotWiped | HeaderState::OneCopy) => opened == new,
        // The disk was gone before anything was tried.
        None => failure.contains("cannot read the LUKS2 header") && opened == old,
    }
}

/// A header that is to be written as a whole: the failure says that it is not there.
#[tokio::test]
async fn failed_init_and_restore_say_what_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("header");
    let whole = Arc::new(Faulty::new(SIZE, 512));
    backup(encrypted_volume(whole.clone()).await, &path).await.unwrap();
    for cut in 1..4 {
        let disk = Arc::new(Faulty::new(SIZE, 512));
        disk.cut_after(cut);
        let failed = init(disk, secret("one"), init_with(false)).await.unwrap_err().to_string();
        assert!(failed.contains("what was at its start is lost"), "{failed}");
        let disk = Arc::new(Faulty::holding(whole.contents(), 512));
        disk.cut_after(cut);
        let failed = restore(disk, &path, Restore::default()).await.unwrap_err().to_string();
        assert!(failed.contains("may be incomplete; that of the backup is whole"), "{failed}");
    }
}

/// The power goes after each write and flush of each operation in turn, and the cache is lost in
/// several ways: the header always opens with what opened it before or is to open it, and the failure says with which.
#[tokio::test]
async fn no_moment_without_a_header_that_opens() {
    for operation in [Operation::Add, Operation::Change, Operation::Remove] {
        let before: Arc<Faulty> = Arc::new(Faulty::new(SIZE - (7 << 20), 512));
        let store: Arc<dyn Volume> = before.clone();
        encrypted_volume(store.clone()).await;
        if matches!(operation, Operation::Remove) {
            add(store.clone(), secret("one"), secret("new"), cheap()).await.unwrap();
        }
        store.flush().await.unwrap();
        let start = before.contents();
        let (mut cut, mut told) = (0, Vec::new());
        loop {
            let disk = Arc::new(Faulty::holding(start.clone(), 512));
            disk.cut_after(cut);
            let outcome = carry_out(operation, disk.clone()).await;
            let finished = outcome.is_ok();
            let failure = outcome.map_or_else(|why| why.to_string(), |()| String::new());
            told.extend(HeaderState::of(&failure));
            for seed in 0..2 {
                let found: Arc<dyn Volume> = Arc::new(disk.crash(seed));
                let (one, new) = (opens(&found, "one").await, opens(&found, "new").await);
                let fine = match operation {
                    Operation::Add => one && (new || !finished),
                    Operation::Change if finished => new && !one,
                    Operation::Change => one || new,
                    Operation::Remove => one && (!finished || !new),
                };
                assert!(fine, "{operation:?} cut after {cut}, seed {seed}: {one} {new} {finished}");
                let told = finished || is_true(operation, &failure, (one, new));
                assert!(told, "{operation:?} cut after {cut}, seed {seed}: {one} {new}: {failure}");
                // And no slot is listed whose material is not there yet, or is wiped already.
                let listed = slots(found).await.unwrap().slots.len();
                assert_eq!(
                    listed,
                    usize::from(one) + usize::from(new),
                    "{operation:?} {cut} {seed}"
                );
            }
            if finished {
                break;
            }
            cut += 1;
        }
        assert!(cut > 4, "{operation:?} was never cut in the middle");
        let [as_it_was, not_known, not_wiped, one_copy] = [
            HeaderState::AsItWas,
            HeaderState::NotKnown,
            HeaderState::NotWiped,
            HeaderState::OneCopy,
        ]
        .map(|said| told.contains(&said));
        assert!(not_known && one_copy, "{operation:?}: {told:?}");
        assert!(as_it_was || matches!(operation, Operation::Remove), "{operation:?}: {told:?}");
        assert!(not_wiped || matches!(operation, Operation::Add), "{operation:?}: {told:?}");
    }
}

#[tokio::test]
async fn a_removed_slot_is_wiped() {
    let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
    add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
    let before = Image::fetch(&volume).await.unwrap();
    let area = before.header.slot_areas().nth(1).unwrap();
    remove(volume.clone(), Some(secret("two").into()), None, false).await.unwrap();
    let after = image::read(&volume, area).await.unwrap();
    let old = &before.bytes[area.at as usize..area.end() as usize];
    let left = old.chunks(512).zip(after.chunks(512)).filter(|(old, new)| old == new).count();
    assert_eq!(left, 0, "sectors of the old slot are still there");
}

#[tokio::test]
async fn a_failed_write_is_reported_and_the_header_still_opens() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let volume: Arc<dyn Volume> = disk.clone();
    encrypted_volume(volume.clone()).await;
    disk.fail(volume::Verb::Write, Kind::NoSpace);
    let failed = add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap_err();
    assert!(failed.to_string().contains("no space left"), "{failed}");
    assert!(opens(&volume, "one").await);
}

#[tokio::test]
async fn a_read_only_volume_opens_and_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    use crate::chain::OpenOptions;
    let uri = crate::uri::Uri::File(path);
    let create = OpenOptions { size: Some(Size(SIZE)), ..OpenOptions::default() };
    let store = crate::chain::open(&uri, create).await.unwrap().volume();
    encrypted_volume(store.clone()).await;
    drop(store);
    let look = OpenOptions { read_only: true, ..OpenOptions::default() };
    let store = crate::chain::open(&uri, look).await.unwrap().volume();
    let plain = open(store, secret("one"), Options::default()).await.unwrap();
    assert_eq!(plain.read(Span::new(0, 512)).await.unwrap().len(), 512);
    let refused = plain.write(0, Bytes::from(vec![0; 512]), Durability::Volatile).await;
    assert_eq!(refused.unwrap_err().kind, Kind::ReadOnly);
}
