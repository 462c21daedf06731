use futures_util::FutureExt;
use proto::scsi::Status;
use proto::scsi::ports::PORT;
use proto::scsi::{DeviceType, Parsed};
use volume::store::blocked_writes::BlockedWrites;
use volume::store::faulty::Faulty;
use volume::store::memory::Memory;
use volume::{Span, Volume};

use super::super::super::test_initiator::TestInitiator;
use super::super::super::{Answer, Command, LogicalUnit as _, Response};
use super::super::tests::{
    BLOCK, ME, OTHER, SIZE, block, good, pattern, read, run_as, sense, write,
};
use super::super::{Disk, Options};
use super::*;

const UNREACHABLE: Sense = copy::unreachable();
const THIRD_PARTY: Sense = Sense::new(Key::CopyAborted, Additional::THIRD_PARTY_DEVICE_FAILURE);

/// Disks of one target, and two initiators that have been told of the power on.
fn disks(options: impl IntoIterator<Item = (u32, Options)>) -> Vec<Disk> {
    let disk = |(lun, (block_size, options))| {
        let volume = Arc::new(Memory::new(SIZE, block_size));
        Disk::new(volume, "iqn.2026-11.dev.longhaul:t", lun, options)
    };
    introduced((0..).zip(options).map(disk).collect())
}

fn introduced(disks: Vec<Disk>) -> Vec<Disk> {
    Disk::connect_peers(disks.iter());
    for disk in &disks {
        for (n, nexus) in [(1, ME), (2, OTHER)] {
            disk.attach(nexus, TestInitiator::new(n));
            run_as(disk, nexus, block(&[0]), vec![]);
        }
    }
    disks
}

fn pair() -> Vec<Disk> {
    disks([(BLOCK, Options::default()), (BLOCK, Options::default())])
}

/// The NAA designator of a disk, with its header, as its identification page has it.
fn naa(disk: &Disk) -> Vec<u8> {
    let page = disk.core.unit.identity().identification_page(PORT);
    let at = page.windows(4).position(|header| header == [1, 3, 0, 8]).unwrap();
    page[at..at + 12].to_vec()
}

/// A parameter list that copies `count` blocks between disks that are named so.
fn list(id: u8, names: &[Vec<u8>], (from, to): (u64, u64), count: u16) -> Vec<u8> {
    let mut list = vec![id, 0, 0, (names.len() * 32) as u8];
    list.extend([0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0]);
    for name in names {
        let mut target = vec![0xE4, 0, 0, 0];
        target.extend(name);
        target.resize(32, 0);
        list.extend(target);
    }
    list.extend([2, 0, 0, 24, 0, 0, 0, (names.len() - 1) as u8, 0, 0]);
    list.extend(count.to_be_bytes());
    list.extend(from.to_be_bytes());
    list.extend(to.to_be_bytes());
    list
}

fn copy_as(disk: &Disk, nexus: Nexus, list: Vec<u8>) -> Response {
    let announced = list.len() as u32;
    let mut cdb = block(&[0x83]);
    cdb[10..14].copy_from_slice(&announced.to_be_bytes());
    assert_eq!(disk.data_out_len(&Parsed::of(&cdb, DeviceType::Disk)), announced);
    let data = vec![Bytes::from(list)];
    let copied = disk
        .execute(nexus, Command { parsed: Parsed::of(&cdb, DeviceType::Disk), data, announced });
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(copied)
}

fn status_as(disk: &Disk, nexus: Nexus, id: u8) -> Response {
    let cdb = block(&[0x84, 0, id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255]);
    run_as(disk, nexus, cdb, vec![])
}

#[test]
fn blocks_are_copied_within_a_disk_and_between_disks() {
    let disks = pair();
    good(write(&disks[0], 3, pattern(5, 1)));
    good(copy_as(&disks[0], ME, list(1, &[naa(&disks[0])], (3, 100), 5)));
    assert_eq!(read(&disks[0], 100, 5), pattern(5, 1));
    good(copy_as(&disks[1], ME, list(2, &[naa(&disks[0]), naa(&disks[1])], (3, 200), 5)));
    assert_eq!(read(&disks[1], 200, 5), pattern(5, 1));
    let status = good(status_as(&disks[1], ME, 2));
    assert_eq!(status, [0, 0, 0, 8, 1, 0, 1, 0, 0, 0, 0x0A, 0]);
    let gone = sense(&status_as(&disks[1], ME, 2));
    assert_eq!(gone, Sense::invalid_cdb(2, None), "told once");
    assert_eq!(sense(&status_as(&disks[0], OTHER, 1)), gone, "another's copy is nobody's business");
}

/// Two disks. No write to the second ends before it is let through.
fn held_pair() -> (Vec<Disk>, Arc<BlockedWrites<Memory>>) {
    const LARGE: u64 = 4 << 20;
    let held = Arc::new(BlockedWrites::new(Memory::new(LARGE, BLOCK)));
    let volumes: [Arc<dyn Volume>; 2] =
        [Arc::new(Memory::new(LARGE, BLOCK)), Arc::clone(&held) as _];
    let disk =
        |(lun, volume)| Disk::new(volume, "iqn.2026-11.dev.longhaul:t", lun, Options::default());
    (introduced((0..).zip(volumes).map(disk).collect()), held)
}

/// A copy of two parts from the first disk to the second, as a task of the first.
fn begin_copy(disks: &[Disk]) -> Answer {
    let list = list(1, &[naa(&disks[0]), naa(&disks[1])], (0, 8), (2 * CHUNK / BLOCK) as u16);
    let announced = list.len() as u32;
    let mut cdb = block(&[0x83]);
    cdb[10..14].copy_from_slice(&announced.to_be_bytes());
    let data = vec![Bytes::from(list)];
    disks[0].execute(ME, Command { parsed: Parsed::of(&cdb, DeviceType::Disk), data, announced })
}

fn reserve_out(disk: &Disk, nexus: Nexus, (action, kind): (u8, u8), keys: (u64, u64)) -> Answer {
    let list = [keys.0.to_be_bytes(), keys.1.to_be_bytes(), [0; 8]].concat();
    let cdb = block(&[0x5F, action, kind, 0, 0, 0, 0, 0, 24]);
    let announced = list.len() as u32;
    disk.execute(
        nexus,
        Command { parsed: Parsed::of(&cdb, DeviceType::Disk), data: vec![list.into()], announced },
    )
}

/// What ends the tasks of the second disk waits for the write under way, and no other follows.
fn copy_is_ended_by(disks: &[Disk], held: &BlockedWrites<Memory>, end: impl Future<Output = ()>) {
    let (mut copy, mut end) = (begin_copy(disks), std::pin::pin!(end));
    assert!((&mut copy).now_or_never().is_none());
    assert_eq!(held.waiting(), 1);
    assert!(end.as_mut().now_or_never().is_none(), "a write of the copy is under way");
    held.let_through(2);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(sense(&runtime.block_on(copy)), THIRD_PARTY);
    assert!(end.now_or_never().is_some());
    assert_eq!((held.passed(), held.waiting()), (1, 0), "nothing was written afterwards");
}

#[test]
fn preempt_and_abort_ends_a_copy_that_is_a_task_of_another_unit() {
    let (disks, held) = held_pair();
    for (action, keys) in [((0, 0), (0, 1)), ((1, 5), (1, 0))] {
        let done = reserve_out(&disks[1], ME, action, keys).now_or_never().unwrap();
        assert_eq!(done.status, Status::Good);
    }
    let done = reserve_out(&disks[1], OTHER, (0, 0), (0, 2)).now_or_never().unwrap();
    assert_eq!(done.status, Status::Good);
    let preempt = async {
        assert_eq!(reserve_out(&disks[1], OTHER, (5, 5), (2, 1)).await.status, Status::Good);
    };
    copy_is_ended_by(&disks, &held, preempt);
}

#[test]
fn end_of_the_tasks_of_a_unit_ends_a_copy_to_it() {
    let (disks, held) = held_pair();
    let end = async { disks[1].end_copies().await };
    copy_is_ended_by(&disks, &held, end);
}

#[test]
fn unit_of_another_target_is_not_reached() {
    let disks = pair();
    let volume = Arc::new(Memory::new(SIZE, BLOCK));
    let options = Options::default();
    let foreign = Disk::new(volume, "iqn.2026-11.dev.longhaul:x", 0, options);
    Disk::connect_peers(std::iter::once(&foreign));
    good(write(&foreign, 0, pattern(1, 9)));
    for names in [[naa(&foreign), naa(&disks[0])], [naa(&disks[0]), naa(&foreign)]] {
        let refused = copy_as(&disks[0], ME, list(1, &names, (0, 0), 1));
        assert_eq!(sense(&refused), UNREACHABLE);
    }
    assert_eq!(read(&disks[0], 0, 1), [0; 512]);
    assert_eq!(read(&foreign, 0, 1), pattern(1, 9));
}

/// What may be written to a disc depends on what has been recorded on it.
#[test]
fn copy_from_or_to_what_is_no_disk_is_refused() {
    let optical = Options { device: DeviceType::Optical, ..Options::default() };
    let tape = Options { device: DeviceType::Tape, ..Options::default() };
    let disks = disks([(BLOCK, Options::default()), (2048, optical), (BLOCK, tape)]);
    let other = Sense::new(Key::CopyAborted, Additional::INCORRECT_COPY_TARGET_DEVICE_TYPE);
    for drive in &disks[1..] {
        for names in [[naa(drive), naa(&disks[0])], [naa(&disks[0]), naa(drive)]] {
            assert_eq!(sense(&copy_as(&disks[0], ME, list(1, &names, (0, 0), 4))), other);
        }
    }
}

#[test]
fn a_copy_may_do_what_its_initiator_may() {
    let read_only = Options { read_only: true, ..Options::default() };
    let removable = Options { removable: true, ..Options::default() };
    let disks = disks([(BLOCK, read_only), (BLOCK, removable)]);
    let [locked, tray] = &disks[..] else { panic!() };
    let into = |disk: &Disk| list(1, &[naa(tray), naa(disk)], (0, 8), 1);
    assert_eq!(sense(&copy_as(tray, ME, into(locked))), THIRD_PARTY, "read-only");
    // RESERVE by another: the disk may not be read, wherever the copy was asked for.
    good(run_as(tray, OTHER, block(&[0x16]), vec![]));
    assert_eq!(copy_as(tray, ME, into(tray)).status, Status::ReservationConflict);
    assert_eq!(sense(&copy_as(locked, ME, into(tray))), THIRD_PARTY, "reserved");
    good(run_as(tray, OTHER, block(&[0x17]), vec![]));
    good(copy_as(locked, ME, into(tray)));
    good(run_as(tray, ME, block(&[0x1B, 0, 0, 0, 2, 0]), vec![]));
    assert_eq!(sense(&copy_as(locked, ME, into(tray))), THIRD_PARTY, "no medium");
}

#[test]
fn read_only_client_copies_nothing() {
    let disks = pair();
    good(write(&disks[0], 0, pattern(1, 3)));
    let masked: Vec<_> = disks.iter().map(Disk::for_readers).collect();
    Disk::connect_peers(masked.iter());
    let names = [naa(&disks[0]), naa(&disks[1])];
    // Refused before its list is fetched.
    let mut cdb = block(&[0x83]);
    cdb[10..14].copy_from_slice(&108_u32.to_be_bytes());
    assert_eq!(masked[0].data_out_len(&Parsed::of(&cdb, DeviceType::Disk)), 0);
    let refused = sense(&run_as(&masked[0], ME, cdb, vec![])).additional;
    assert_eq!(refused, Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS);
    assert_eq!(read(&disks[1], 0, 1), [0; 512]);
    good(copy_as(&disks[0], ME, list(1, &names, (0, 0), 1)));
    assert_eq!(read(&disks[1], 0, 1), pattern(1, 3));
}

#[test]
fn copy_that_does_not_fit_is_not_begun() {
    let disks = disks([(512, Options::default()), (4096, Options::default())]);
    let [small, large] = &disks[..] else { panic!() };
    let blocks = SIZE / 512;
    for (from, to, count) in [(blocks, 0, 1), (0, blocks, 1), (0, blocks - 1, 2), (u64::MAX, 0, 1)]
    {
        let refused = sense(&copy_as(small, ME, list(1, &[naa(small)], (from, to), count)));
        assert_eq!(refused, aborted());
    }
    let names = [naa(small), naa(large)];
    let uneven = copy_as(small, ME, list(1, &names, (0, 0), 7));
    assert_eq!(sense(&uneven), NOT_WHOLE_BLOCKS);
    good(write(small, 0, pattern(8, 3)));
    good(copy_as(small, ME, list(1, &names, (0, 2), 8)));
    let copied = run_as(large, ME, block(&[0x28, 0, 0, 0, 0, 2, 0, 0, 1, 0]), vec![]);
    assert_eq!(good(copied), pattern(8, 3));
}

#[test]
fn outcomes_that_nobody_asks_for_do_not_pile_up() {
    let disks = pair();
    for id in 0..=u8::MAX {
        good(copy_as(&disks[0], ME, list(id, &[naa(&disks[0])], (0, 8), 1)));
    }
    assert_eq!(disks[0].core.state.copies.kept().len(), KEPT_MAX);
    disks[0].detach(ME);
    assert!(disks[0].core.state.copies.kept().is_empty());
    let nothing = Command {
        parsed: Parsed::of(&block(&[0x83]), DeviceType::Disk),
        data: vec![],
        announced: 0,
    };
    good(disks[0].execute(OTHER, nothing).now_or_never().unwrap());
}

/// The cache of the destination is switched off while a chunk is under way: GOOD of the copy means stable then.
#[tokio::test]
async fn copy_to_a_unit_whose_cache_is_switched_off_is_stable() {
    const LARGE: u64 = 4 << 20;
    let store = Arc::new(Faulty::new(LARGE, BLOCK));
    let held = Arc::new(BlockedWrites::new(Arc::clone(&store)));
    let volumes: [Arc<dyn Volume>; 2] =
        [Arc::new(Memory::new(LARGE, BLOCK)), Arc::clone(&held) as _];
    let disk =
        |(lun, volume)| Disk::new(volume, "iqn.2026-11.dev.longhaul:t", lun, Options::default());
    let disks: Vec<_> = (0..).zip(volumes).map(disk).collect();
    Disk::connect_peers(disks.iter());
    let run = |disk: &Disk, cdb: [u8; 16], data: Vec<u8>| {
        let announced = data.len() as u32;
        let data = if data.is_empty() { vec![] } else { vec![Bytes::from(data)] };
        disk.execute(ME, Command { parsed: Parsed::of(&cdb, DeviceType::Disk), data, announced })
    };
    for disk in &disks {
        disk.attach(ME, TestInitiator::new(1));
        let _ = run(disk, block(&[0]), vec![]).await;
    }
    let mut put = [0; 16];
    put[0] = 0x8A;
    put[13] = 5;
    good(run(&disks[0], put, pattern(5, 1)).await);
    let params = list(1, &[naa(&disks[0]), naa(&disks[1])], (0, 0), 5);
    let mut cdb = block(&[0x83]);
    cdb[10..14].copy_from_slice(&(params.len() as u32).to_be_bytes());
    let mut copied = run(&disks[0], cdb, params);
    assert!((&mut copied).now_or_never().is_none(), "its write is under way");
    let mut page = [0_u8; 20];
    (page[0], page[1]) = (0x08, 18);
    let select = [&[0; 4][..], &page].concat();
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[4]) = (0x15, 0x10, 24);
    good(run(&disks[1], cdb, select).await);
    held.let_through(1);
    good(copied.await);
    assert!(store.durable(Span::new(0, 2560)) == pattern(5, 1), "GOOD, no cache, and not stable");
}
