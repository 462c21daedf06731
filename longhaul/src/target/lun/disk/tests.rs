use bytes::Bytes;
use futures_util::FutureExt;
use proptest::prelude::*;
use proto::scsi::command::{self, Command as Request, Mode, Transfer};
use proto::scsi::invariants;
use proto::scsi::provisioning::Status as Provisioned;
use proto::scsi::sense::Key;
use proto::scsi::{Blocks, Sense, Status};
use volume::store::blocked_writes::BlockedWrites;
use volume::store::faulty::Faulty;
use volume::store::hooked::Hooked;
use volume::store::memory::Memory;
use volume::{Extent, Kind, Span, Verb};

use super::super::test_initiator::TestInitiator;
use super::super::{Response, data};
use super::*;

pub(super) const BLOCK: u32 = 512;
pub(super) const SIZE: u64 = 1 << 20;
pub(super) const ME: Nexus = Nexus(1);
pub(super) const OTHER: Nexus = Nexus(2);

/// A disk on `volume` which has been told of the power on.
pub(super) fn disk(volume: impl Volume + 'static, options: Options) -> Disk {
    Disk::new(Arc::new(volume), "iqn.2026-11.dev.longhaul:t", 0, options)
}

fn memory() -> Disk {
    disk(Memory::new(SIZE, BLOCK), Options::default())
}

/// Runs a command block with these data-out.
pub(super) fn run_block(disk: &Disk, cdb: [u8; 16], data: Vec<Bytes>) -> Response {
    run_as(disk, ME, cdb, data)
}

/// The same, from another initiator.
pub(super) fn run_as(disk: &Disk, nexus: Nexus, cdb: [u8; 16], data: Vec<Bytes>) -> Response {
    let announced = data::length(&data) as u32;
    let answer = disk
        .execute(nexus, Command { parsed: Parsed::of(&cdb, DeviceType::Disk), data, announced });
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(answer)
}

fn run(disk: &Disk, request: Request, data: impl Into<Bytes>) -> Response {
    let data = data.into();
    if let Transfer::Out(len) = request.transfer {
        assert_eq!(disk.data_out_len(&Parsed::of(&request.cdb, DeviceType::Disk)), len);
    }
    run_block(disk, request.cdb, if data.is_empty() { Vec::new() } else { vec![data] })
}

pub(super) fn block(bytes: &[u8]) -> [u8; 16] {
    let mut block = [0; 16];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

pub(super) fn good(response: Response) -> Vec<u8> {
    assert_eq!(response.status, Status::Good, "{:?}", Sense::parse(&response.sense));
    response.data.concat()
}

pub(super) fn sense(response: &Response) -> Sense {
    assert_eq!(response.status, Status::CheckCondition);
    Sense::parse(&response.sense).unwrap()
}

pub(super) fn read(disk: &Disk, lba: u64, count: u32) -> Vec<u8> {
    good(run(disk, Request::read(Blocks { lba, count }, BLOCK), Bytes::new()))
}

pub(super) fn write(disk: &Disk, lba: u64, data: Vec<u8>) -> Response {
    let count = data.len() as u32 / BLOCK;
    run(disk, Request::write(Blocks { lba, count }, BLOCK, false), data)
}

pub(super) fn pattern(blocks: u32, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at / 7) as u8 ^ seed).collect()
}

pub(super) const TEST_UNIT_READY: [u8; 16] = [0; 16];

#[test]
fn written_data_are_read_back() {
    let disk = memory();
    let data = pattern(5, 1);
    good(write(&disk, 3, data.clone()));
    assert_eq!(read(&disk, 3, 5), data);
    assert_eq!(read(&disk, 0, 3), vec![0; 3 * BLOCK as usize]);
    assert!(read(&disk, 0, 0).is_empty());
}

#[test]
fn pieces_of_any_length_are_one_write() {
    let disk = memory();
    let data = Bytes::from(pattern(4, 2));
    let pieces = vec![data.slice(..100), data.slice(100..1024), data.slice(1024..)];
    let cdb = Request::write(Blocks { lba: 0, count: 4 }, BLOCK, true).cdb;
    good(run_block(&disk, cdb, pieces));
    assert_eq!(read(&disk, 0, 4), data);
}

#[test]
fn a_write_that_announces_too_little_writes_whole_blocks_only() {
    let disk = memory();
    for opcode in [0x8A, 0x8E] {
        let cdb = block(&[opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        let torn = run_block(&disk, cdb, vec![Bytes::from(vec![opcode; 600])]);
        assert_eq!(sense(&torn).additional, Additional::INVALID_FIELD_IN_INFORMATION_UNIT);
        assert_ne!(read(&disk, 0, 1), [opcode; 512]);
        good(run_block(&disk, cdb, vec![]));
        good(run_block(&disk, cdb, vec![Bytes::from(vec![opcode; 512])]));
        assert_eq!(read(&disk, 0, 2), [[opcode; 512], [0; 512]].concat());
    }
}

#[test]
fn data_out_where_length_is_meaning_must_fit() {
    let disk = memory();
    let same = Request::write_same(Blocks { lba: 0, count: 2 }, BLOCK, false).cdb;
    let compare = block(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    for (cdb, fits, count_at) in [(same, 512, 10), (compare, 1024, 13)] {
        for announced in [fits / 2, fits * 2] {
            let data = vec![Bytes::from(vec![9; announced.min(fits)])];
            let command = Command {
                parsed: Parsed::of(&cdb, DeviceType::Disk),
                data,
                announced: announced as u32,
            };
            let refused = disk.execute(ME, command).now_or_never().unwrap();
            assert_eq!(sense(&refused), Sense::invalid_cdb(count_at, None));
        }
    }
    let bits = block(&[0x8B, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    let short = run_block(&disk, bits, vec![Bytes::from(vec![9; 512])]);
    assert_eq!(sense(&short).additional, Additional::INVALID_FIELD_IN_INFORMATION_UNIT);
    assert_eq!(read(&disk, 0, 2), [0; 1024]);
}

#[test]
fn fua_is_stable_without_a_flush_and_plain_writes_are_not() {
    for pieces in [1, 2] {
        let volume = Arc::new(Faulty::new(SIZE, BLOCK));
        let disk = disk(Arc::clone(&volume), Options::default());
        let data = Bytes::from(vec![7; 1024]);
        let each = 1024 / pieces;
        let data: Vec<_> = (0..pieces).map(|at| data.slice(at * each..(at + 1) * each)).collect();
        let fua = Request::write(Blocks { lba: 0, count: 2 }, BLOCK, true);
        good(run_block(&disk, fua.cdb, data));
        good(write(&disk, 8, vec![8; 512]));
        let survivors: Vec<_> = (0..32).map(|seed| volume.crash(seed).contents()).collect();
        assert!(survivors.iter().all(|bytes| bytes[..1024] == [7; 1024]));
        assert!(survivors.iter().any(|bytes| bytes[8 * 512] != 8));
        good(run(&disk, Request::synchronize_cache(), Bytes::new()));
        assert!((0..32).all(|seed| volume.crash(seed).contents()[8 * 512] == 8));
    }
}

#[test]
fn switching_the_cache_off_makes_writes_stable() {
    let volume = Arc::new(Faulty::new(SIZE, BLOCK));
    let disk = disk(Arc::clone(&volume), Options::default());
    let mode = good(run(&disk, Request::mode_sense_10(), Bytes::new()));
    assert_eq!(Mode::parse_10(&mode).unwrap().write_cache, Some(true));
    good(write(&disk, 0, vec![1; 512]));
    let mut list = mode;
    list[0..2].fill(0);
    list[10] &= !0x04;
    let select = block(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0]);
    good(run_block(&disk, select, vec![list.into()]));
    good(write(&disk, 1, vec![2; 512]));
    for seed in 0..32 {
        let bytes = volume.crash(seed).contents();
        assert_eq!((bytes[0], bytes[512]), (1, 2));
    }
    let mode = good(run(&disk, Request::mode_sense_10(), Bytes::new()));
    assert_eq!(Mode::parse_10(&mode).unwrap().write_cache, Some(false));
    disk.reset();
    let mode = good(run(&disk, Request::mode_sense_10(), Bytes::new()));
    assert_eq!(Mode::parse_10(&mode).unwrap().write_cache, Some(true));
}

/// The flush of a MODE SELECT that switches the cache off covers no write that is still under way.
#[tokio::test]
async fn write_under_way_is_stable_if_the_cache_is_off_when_it_is_answered() {
    let medium = Arc::new(Faulty::new(SIZE, BLOCK));
    let volume = Arc::new(BlockedWrites::new(Arc::clone(&medium)));
    let disk = disk(Arc::clone(&volume), Options::default());
    let sense = Command {
        parsed: Parsed::of(&Request::mode_sense_10().cdb, DeviceType::Disk),
        data: vec![],
        announced: 0,
    };
    let mode = good(disk.execute(ME, sense).await);
    let compare = block(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
    let plain = Request::write(Blocks { lba: 0, count: 1 }, BLOCK, false).cdb;
    let same = Request::write_same(Blocks { lba: 2, count: 1 }, BLOCK, false).cdb;
    let data = Bytes::from(vec![1; 512]);
    let both = Bytes::from([[0; 512], [1; 512]].concat());
    let writes = [(plain, data.clone()), (compare, both), (same, data)].map(|(cdb, data)| {
        let announced = data.len() as u32;
        let command =
            Command { parsed: Parsed::of(&cdb, DeviceType::Disk), data: vec![data], announced };
        let mut write = disk.execute(ME, command);
        assert!((&mut write).now_or_never().is_none());
        write
    });
    let mut list = mode;
    list[0..2].fill(0);
    list[10] &= !0x04;
    let select = block(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0]);
    let announced = list.len() as u32;
    good(
        disk.execute(
            ME,
            Command {
                parsed: Parsed::of(&select, DeviceType::Disk),
                data: vec![list.into()],
                announced,
            },
        )
        .await,
    );
    volume.let_through(writes.len());
    for write in writes {
        good(write.await);
    }
    for seed in 0..32 {
        let bytes = medium.crash(seed).contents();
        assert_eq!((bytes[0], bytes[512], bytes[1024]), (1, 1, 1));
    }
}

#[test]
fn verify_compares_as_it_is_told() {
    let disk = memory();
    let data = pattern(2, 3);
    good(write(&disk, 4, data.clone()));
    let verify =
        |bytchk: u8, count: u8| block(&[0x8F, bytchk << 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, count]);
    good(run_block(&disk, verify(0, 2), vec![]));
    good(run_block(&disk, verify(1, 2), vec![data.clone().into()]));
    let mut wrong = data.clone();
    wrong[700] ^= 1;
    let differs = sense(&run_block(&disk, verify(1, 2), vec![wrong.into()]));
    assert_eq!((differs.key, differs.information), (Key::Miscompare, Some(5)));
    good(run_block(&disk, verify(3, 1), vec![Bytes::from(data[..512].to_vec())]));
    let differs = sense(&run_block(&disk, verify(3, 2), vec![Bytes::from(data[..512].to_vec())]));
    assert_eq!(differs.information, Some(5));
    assert_eq!(disk.data_out_len(&Parsed::of(&verify(2, 1), DeviceType::Disk)), 0);
}

#[test]
fn verify_of_the_whole_disk_goes_in_parts() {
    let disk = disk(Memory::new(3 << 20, BLOCK), Options::default());
    let last = (3 << 20) / BLOCK - 1;
    good(write(&disk, last.into(), vec![1; 512]));
    let mut all = block(&[0x8F, 0x06]);
    all[10..14].copy_from_slice(&(last + 1).to_be_bytes());
    let differs = sense(&run_block(&disk, all, vec![Bytes::from(vec![0; 512])]));
    assert_eq!(differs.information, Some(last.into()));
}

#[test]
fn write_and_verify_writes_and_verifies() {
    let disk = memory();
    let data = pattern(2, 4);
    let cdb = block(&[0x8E, 0x02, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
    good(run_block(&disk, cdb, vec![data.clone().into()]));
    assert_eq!(read(&disk, 1, 2), data);
}

#[test]
fn one_block_is_written_many_times_over() {
    let disk = disk(Memory::new(3 << 20, BLOCK), Options::default());
    let blocks = (3 << 20) / BLOCK;
    let all = Blocks { lba: 0, count: blocks };
    let one = pattern(1, 5);
    good(run(&disk, Request::write_same(all, BLOCK, true), one.clone()));
    assert_eq!(read(&disk, 0, blocks), one.repeat(blocks as usize));
    let some = Blocks { lba: 1, count: 2 };
    good(run(&disk, Request::write_same(some, BLOCK, true), vec![0; 512]));
    assert_eq!(read(&disk, 0, 4), [&one, &[0; 1024][..], &one].concat());
    let no_data = block(&[0x93, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(disk.data_out_len(&Parsed::of(&no_data, DeviceType::Disk)), 0);
    good(run_block(&disk, no_data, vec![]));
    assert_eq!(read(&disk, 0, 1), [0; 512]);
}

#[test]
fn compare_and_write_writes_only_what_it_compared() {
    let disk = memory();
    let (old, new) = (pattern(2, 6), pattern(2, 7));
    good(write(&disk, 1, old.clone()));
    let cdb = block(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(disk.data_out_len(&Parsed::of(&cdb, DeviceType::Disk)), 2048);
    let mut wrong = old.clone();
    wrong[513] ^= 0x80;
    let pair = |first: &[u8]| vec![Bytes::from([first, &new].concat())];
    let differs = sense(&run_block(&disk, cdb, pair(&wrong)));
    assert_eq!((differs.key, differs.information), (Key::Miscompare, Some(513)));
    assert_eq!(read(&disk, 1, 2), old);
    good(run_block(&disk, cdb, pair(&old)));
    assert_eq!(read(&disk, 1, 2), new);
}

#[test]
fn orwrite_sets_bits() {
    let disk = memory();
    good(write(&disk, 0, vec![0x0F; 512]));
    let cdb = block(&[0x8B, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    good(run_block(&disk, cdb, vec![Bytes::from(vec![0x30; 512])]));
    assert_eq!(read(&disk, 0, 1), [0x3F; 512]);
}

/// Counts up the first byte with COMPARE AND WRITE until `times` have been counted.
async fn count_up(disk: Arc<Disk>, nexus: Nexus, times: usize) {
    let cdb = block(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let mut guess = 0u8;
    let mut counted = 0;
    while counted < times {
        let (old, new) = ([guess; 512], [guess + 1; 512]);
        let data = vec![Bytes::from([old, new].concat())];
        let response = disk
            .execute(
                nexus,
                Command { parsed: Parsed::of(&cdb, DeviceType::Disk), data, announced: 1024 },
            )
            .await;
        if response.status == Status::Good {
            counted += 1;
        }
        guess = (guess + 1) % 100;
    }
}

#[tokio::test]
async fn comparing_and_writing_is_one_thing_for_all_sessions() {
    // Others run between its reads and its writes, as with a slow medium.
    let slow = Hooked::new(Memory::new(SIZE, BLOCK), |_, _| {
        Box::pin(async {
            tokio::task::yield_now().await;
            Ok(())
        })
    });
    let disk = Arc::new(disk(slow, Options::default()));
    let sessions =
        (0..5).map(|session| tokio::spawn(count_up(Arc::clone(&disk), Nexus(session), 10)));
    for session in sessions.collect::<Vec<_>>() {
        session.await.unwrap();
    }
    let read = Request::read(Blocks { lba: 0, count: 1 }, BLOCK).cdb;
    let command =
        Command { parsed: Parsed::of(&read, DeviceType::Disk), data: Vec::new(), announced: 0 };
    assert_eq!(good(disk.execute(ME, command).await), [50; 512]);
}

#[test]
fn unmapped_blocks_are_reported_as_such() {
    let disk = disk(Memory::new(4 << 20, BLOCK), Options::default());
    good(write(&disk, 0, vec![1; 4096]));
    let (unmap, list) = Request::unmap(&[Blocks { lba: 0, count: 8 }]);
    good(run(&disk, unmap, list));
    assert_eq!(read(&disk, 0, 8), vec![0; 4096]);
    let answer = good(run(&disk, Request::get_lba_status(0, 16), Bytes::new()));
    let runs = command::statuses(&answer).unwrap();
    let mut at = 0;
    for run in &runs {
        assert_eq!(run.blocks.lba, at);
        at += u64::from(run.blocks.count);
    }
    assert_eq!(at, (4 << 20) / u64::from(BLOCK));
    assert_eq!(runs.last().unwrap().status, Provisioned::Deallocated);
    let single = good(run(&disk, Request::get_lba_status(8, 1), Bytes::new()));
    assert_eq!(command::statuses(&single).unwrap()[0].blocks.lba, 8);
}

#[test]
fn one_run_covers_a_large_hole() {
    const SIZE: u64 = 6 << 30;
    let disk = disk(Memory::new(SIZE, BLOCK), Options::default());
    let answer = good(run(&disk, Request::get_lba_status(8, 255), Bytes::new()));
    let runs = command::statuses(&answer).unwrap();
    assert_eq!(runs.len(), 1);
    assert_eq!(u64::from(runs[0].blocks.count), SIZE / u64::from(BLOCK) - 8);
    assert_eq!(runs[0].status, Provisioned::Deallocated);
}

#[test]
fn runs_are_whole_blocks() {
    let disk = memory();
    let extent = |from, to, hole| Extent { span: Span::new(from, to - from), hole, zero: hole };
    // A hole that starts and ends within blocks, as a file system with smaller ones may have it.
    let extents = [extent(0, 700, false), extent(700, 2600, true), extent(2600, 4096, false)];
    let runs = disk.core.statuses(Span::new(0, 4096), &extents);
    let seen: Vec<_> =
        runs.iter().map(|run| (run.blocks.lba, run.blocks.count, run.status)).collect();
    let (mapped, hole) = (Provisioned::Mapped, Provisioned::Deallocated);
    assert_eq!(seen, [(0, 2, mapped), (2, 3, hole), (5, 3, mapped)]);
}

#[test]
fn each_initiator_is_told_what_happened() {
    let disk = memory();
    disk.attach(ME, TestInitiator::new(1));
    disk.attach(OTHER, TestInitiator::new(2));
    let ready = |nexus| {
        let command = Command {
            parsed: Parsed::of(&TEST_UNIT_READY, DeviceType::Disk),
            data: Vec::new(),
            announced: 0,
        };
        disk.execute(nexus, command).now_or_never().unwrap()
    };
    good(run(&disk, Request::inquiry(), Bytes::new()));
    for nexus in [ME, OTHER] {
        assert_eq!(sense(&ready(nexus)).additional, Additional::POWER_ON_OR_RESET);
        good(ready(nexus));
    }
    disk.tasks_cleared(ME);
    good(ready(ME));
    assert_eq!(sense(&ready(OTHER)).additional, Additional::COMMANDS_CLEARED);
    disk.reset();
    for nexus in [ME, OTHER] {
        assert_eq!(sense(&ready(nexus)).additional, Additional::BUS_DEVICE_RESET);
        good(ready(nexus));
    }
    assert!(!disk.core.state.conditions.has_attention());
    disk.tasks_cleared(OTHER);
    disk.detach(ME);
    assert!(!disk.core.state.conditions.has_attention());
}

#[test]
fn request_sense_returns_what_is_pending() {
    let disk = memory();
    disk.attach(ME, TestInitiator::new(1));
    let request = block(&[0x03, 0, 0, 0, 252]);
    let pending = Sense::parse(&good(run_block(&disk, request, vec![]))).unwrap();
    assert_eq!(pending.additional, Additional::POWER_ON_OR_RESET);
    let descriptor = block(&[0x03, 1, 0, 0, 252]);
    let bytes = good(run_block(&disk, descriptor, vec![]));
    assert_eq!((bytes[0], bytes.len()), (0x72, 8));
    let nothing = Sense::parse(&good(run_block(&disk, request, vec![]))).unwrap();
    assert_eq!(nothing, Sense::new(Key::NoSense, Additional::NONE));
}

#[test]
fn mode_select_is_felt_and_told() {
    let disk = memory();
    disk.attach(OTHER, TestInitiator::new(2));
    let take = |disk: &Disk| disk.core.attend(|attentions| attentions.take(OTHER));
    assert!(take(&disk).is_some());
    let mut control = vec![0, 0, 0, 0, 0x0A, 10, 0x06, 0x10, 0x08];
    control.resize(16, 0);
    let select = block(&[0x15, 0x10, 0, 0, 16]);
    good(run_block(&disk, select, vec![control.into()]));
    assert_eq!(take(&disk).unwrap().additional, Additional::MODE_PARAMETERS_CHANGED);
    let write = Request::write(Blocks { lba: 0, count: 1 }, BLOCK, false);
    assert_eq!(
        disk.data_out_len(&Parsed::of(&write.cdb, DeviceType::Disk)),
        0,
        "no data are fetched for what will be refused"
    );
    let refused = run_block(&disk, write.cdb, vec![]);
    assert_eq!(refused.sense[0], 0x72, "D_SENSE asks for descriptors");
    assert_eq!(sense(&refused).additional, Additional::SOFTWARE_WRITE_PROTECTED);
}

#[test]
fn a_failing_volume_is_told_as_what_it_is() {
    let volume = Arc::new(Faulty::new(SIZE, BLOCK));
    let disk = disk(Arc::clone(&volume), Options::default());
    volume.fail(Verb::Read, Kind::Medium);
    let request = Request::read(Blocks { lba: 9, count: 1 }, BLOCK);
    let failed = sense(&run(&disk, request, Bytes::new()));
    let expected = Sense::new(Key::MediumError, Additional::UNRECOVERED_READ_ERROR);
    assert_eq!(failed, expected.with_information(9));
    volume.fail(Verb::Write, Kind::NoSpace);
    let failed = sense(&write(&disk, 0, vec![1; 512]));
    assert_eq!(failed, Sense::new(Key::DataProtect, Additional::SPACE_ALLOCATION_FAILED));
    volume.fail(Verb::Flush, Kind::Busy);
    let busy = run(&disk, Request::synchronize_cache(), Bytes::new());
    assert_eq!((busy.status, busy.sense.len()), (Status::Busy, 0));
    volume.fail(Verb::Discard, Kind::Gone);
    let (unmap, list) = Request::unmap(&[Blocks { lba: 0, count: 1 }]);
    assert_eq!(sense(&run(&disk, unmap, list)).key, Key::NotReady);
}

#[test]
fn options_are_obeyed() {
    let options = Options {
        vendor: Some("ACME".into()),
        serial: Some("0815".into()),
        read_only: true,
        thin: false,
        ..Options::default()
    };
    let disk = disk(Memory::new(SIZE, BLOCK), options);
    let inquiry = good(run(&disk, Request::inquiry(), Bytes::new()));
    assert_eq!(command::Standard::parse(&inquiry).unwrap().vendor, "ACME");
    let serial = good(run(&disk, Request::vital(0x80), Bytes::new()));
    assert_eq!(serial[4..], *b"0815");
    let mode = good(run(&disk, Request::mode_sense_6(), Bytes::new()));
    assert!(Mode::parse_6(&mode).unwrap().write_protected);
    let capacity = good(run(&disk, Request::read_capacity_16(), Bytes::new()));
    assert!(!Capacity::parse_16(&capacity).unwrap().provisioning_managed);
}

#[test]
fn only_what_a_crash_cannot_tear_is_written_atomically() {
    let atomic = |count: u8| block(&[0x9C, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, count]);
    let limit = |disk: &Disk| {
        let page = good(run(disk, Request::vital(0xB0), Bytes::new()));
        command::BlockLimits::parse(&page).unwrap().atomic_max
    };
    let kept = memory();
    assert_eq!(limit(&kept), 1);
    good(run_block(&kept, atomic(1), vec![Bytes::from(pattern(1, 4))]));
    assert_eq!(read(&kept, 5, 1), pattern(1, 4));
    let refused = run_block(&kept, atomic(2), vec![Bytes::from(pattern(2, 5))]);
    assert_eq!(sense(&refused), Sense::invalid_cdb(12, None));
    let options = Options { vanishes: true, ..Options::default() };
    let vanishes = disk(Memory::new(SIZE, BLOCK), options);
    // WRITE ATOMIC(16) counts its blocks in sixteen bits.
    assert_eq!(limit(&vanishes), u32::from(u16::MAX).min(TRANSFER_MAX / BLOCK));
    good(run_block(&vanishes, atomic(200), vec![Bytes::from(pattern(200, 5))]));
    assert_eq!(read(&vanishes, 5, 200), pattern(200, 5));
    let torn = run_block(&vanishes, atomic(2), vec![Bytes::from(pattern(1, 6))]);
    assert_eq!(sense(&torn).additional, Additional::INVALID_FIELD_IN_INFORMATION_UNIT);
}

#[tokio::test]
async fn a_flush_that_fails_behind_its_answer_is_told_later() {
    let volume = Arc::new(Faulty::new(SIZE, BLOCK));
    let disk = disk(Arc::clone(&volume), Options::default());
    for (n, nexus) in [(1, ME), (2, OTHER)] {
        disk.attach(nexus, TestInitiator::new(n));
        disk.core.attend(|attentions| attentions.take(nexus));
    }
    let send = |nexus, cdb: &[u8]| {
        disk.execute(
            nexus,
            Command {
                parsed: Parsed::of(&block(cdb), DeviceType::Disk),
                data: vec![],
                announced: 0,
            },
        )
    };
    volume.fail(Verb::Flush, Kind::Medium);
    good(send(ME, &[0x35, 0x02]).await);
    while !disk.core.state.conditions.has_attention() {
        tokio::task::yield_now().await;
    }
    good(send(OTHER, &[0]).await);
    let lost = Sense::new(Key::MediumError, Additional::WRITE_ERROR);
    assert_eq!(sense(&send(ME, &[0]).await), Sense { deferred: true, ..lost });
    good(send(ME, &[0]).await);
}

proptest! {
    #[test]
    fn no_command_does_harm(
        cdb: [u8; 16], lengths in proptest::collection::vec(0usize..2048, 0..4), known: bool,
        index in 0..proto::scsi::cdb::commands().count(),
    ) {
        let mut cdb = cdb;
        if known {
            cdb[0] = proto::scsi::cdb::commands().nth(index).unwrap().opcode;
            cdb[10] = 0; // Writes of a whole disk are tested elsewhere.
        }
        let disk = memory();
        invariants::any_block(&cdb, 0);
        let data = lengths.iter().map(|len| Bytes::from(vec![cdb[3]; *len])).collect();
        let response = run_block(&disk, cdb, data);
        let with_sense = response.status == Status::CheckCondition;
        prop_assert_eq!(Sense::parse(&response.sense).is_some(), with_sense);
    }
}

/// Without a cache GOOD means stable, of an UNMAP too.
#[tokio::test]
async fn unmap_without_a_cache_is_stable() {
    let store = Arc::new(Faulty::new(SIZE, BLOCK));
    let disk = disk(Arc::clone(&store), Options::default());
    good(disk.execute(ME, command_of(&write_16(0), pattern(8, 1))).await);
    let mut page = [0_u8; 20];
    (page[0], page[1]) = (0x08, 18);
    let mut select = [0; 16];
    (select[0], select[1], select[4]) = (0x15, 0x10, 24);
    good(disk.execute(ME, command_of(&select, [&[0; 4][..], &page].concat())).await);
    assert!(store.durable(Span::new(0, 4096)) == pattern(8, 1));
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend([0_u64.to_be_bytes(), [0, 0, 0, 8, 0, 0, 0, 0]].concat());
    let mut unmap = [0; 16];
    (unmap[0], unmap[8]) = (0x42, 24);
    good(disk.execute(ME, command_of(&unmap, list)).await);
    assert!(store.durable(Span::new(0, 4096)) == [0; 4096], "GOOD, no cache, and not stable");
}

/// WRITE (16) of 8 blocks.
fn write_16(lba: u8) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (0x8A, lba, 8);
    cdb
}

fn command_of(cdb: &[u8; 16], data: Vec<u8>) -> Command {
    let announced = data.len() as u32;
    Command { parsed: Parsed::of(cdb, DeviceType::Disk), data: vec![Bytes::from(data)], announced }
}

/// A transport bounds by it what all commands hold together.
#[test]
fn working_memory_is_what_is_read_or_written_at_a_time() {
    let disk = memory();
    for (cdb, blocks, expected) in [
        (0x88, 8, 8 * BLOCK),
        (0x88, TRANSFER_MAX / BLOCK + 1, 0),
        (0x93, 8, 8 * BLOCK),
        (0x93, u32::MAX, CHUNK),
        (0x93, 0, CHUNK),
        (0x8f, u32::MAX, CHUNK),
        (0x8e, 8, 8 * BLOCK),
        (0x8a, 8, 0),
        (0x91, 8, 0),
    ] {
        let mut block = block(&[cdb]);
        block[10..14].copy_from_slice(&blocks.to_be_bytes());
        assert_eq!(
            disk.working_memory(&Parsed::of(&block, DeviceType::Disk)),
            expected,
            "{cdb:x}h of {blocks}"
        );
    }
}
