use std::io;
use std::pin::pin;

use bytes::Bytes;
use futures_util::FutureExt;
use proto::scsi::cdb::{Requires, commands};
use proto::scsi::{DeviceType, Parsed};
use tokio::sync::Semaphore;
use volume::store::memory::Memory;

use super::super::super::test_initiator::TestInitiator;
use super::super::super::{Command, LogicalUnit, Response, Waiting};
use super::super::{Disk, Options};
use super::*;

const TARGET: &str = "iqn.2026-11.dev.longhaul:t";
const LUN: u16 = 3;
const APTPL: u8 = 1;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;

/// Keeps in memory, which outlives the disk; slow or broken on demand.
#[derive(Debug)]
struct MemoryStorage {
    image: Mutex<Option<Vec<u8>>>,
    broken: AtomicBool,
    /// As many changes are let through.
    gate: Semaphore,
}

impl MemoryStorage {
    fn new() -> Arc<Self> {
        let gate = Semaphore::new(Semaphore::MAX_PERMITS);
        Arc::new(Self { image: Mutex::default(), broken: AtomicBool::new(false), gate })
    }
}

#[derive(Debug)]
struct Handle(Arc<MemoryStorage>);

impl ReservationStorage for Handle {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.image.lock().unwrap().clone())
    }

    fn save(&self, image: Vec<u8>) -> Waiting<io::Result<()>> {
        let storage = Arc::clone(&self.0);
        Box::pin(async move {
            let _pass = storage.gate.acquire().await.unwrap();
            if storage.broken.load(Ordering::Relaxed) {
                return Err(io::Error::other("broken"));
            }
            *storage.image.lock().unwrap() = Some(image);
            Ok(())
        })
    }
}

fn disk(storage: Option<&Arc<MemoryStorage>>) -> Disk {
    let kept = storage
        .map(|storage| StoredReservations::by(Arc::new(Handle(Arc::clone(storage)))).unwrap());
    let options = Options { kept, ..Options::default() };
    Disk::new(Arc::new(Memory::new(1 << 20, 512)), TARGET, LUN, options)
}

/// A nexus of guest `n` which has been told of the power on.
fn enter(disk: &Disk, n: u8) -> Arc<TestInitiator> {
    let guest = TestInitiator::new(n);
    disk.attach(Nexus(n.into()), Arc::clone(&guest) as _);
    assert_eq!(told(disk, n), Some(Additional::POWER_ON_OR_RESET));
    guest
}

fn send(disk: &Disk, n: u8, cdb: &[u8], data: Vec<u8>) -> super::super::super::Answer {
    let mut block = [0; 16];
    block[..cdb.len()].copy_from_slice(cdb);
    let announced = data.len() as u32;
    let data = if data.is_empty() { vec![] } else { vec![Bytes::from(data)] };
    disk.execute(
        Nexus(n.into()),
        Command { parsed: Parsed::of(&block, DeviceType::Disk), data, announced },
    )
}

fn run(disk: &Disk, n: u8, cdb: &[u8], data: Vec<u8>) -> Response {
    send(disk, n, cdb, data).now_or_never().unwrap()
}

fn told(disk: &Disk, n: u8) -> Option<Additional> {
    let response = run(disk, n, &[0; 6], vec![]);
    Sense::parse(&response.sense).map(|sense| sense.additional)
}

fn out(action: u8, kind: u8, key: u64, action_key: u64, flags: u8) -> ([u8; 10], Vec<u8>) {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    ([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
}

fn change_as(disk: &Disk, n: u8, (cdb, list): ([u8; 10], Vec<u8>)) -> Status {
    run(disk, n, &cdb, list).status
}

fn keys(disk: &Disk, n: u8) -> Vec<u8> {
    let response = run(disk, n, &[0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0], vec![]);
    assert_eq!(response.status, Status::Good);
    let data = response.data.concat();
    data[8..].chunks(8).map(|key| key[7]).collect()
}

const WRITE: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];

fn write(disk: &Disk, n: u8) -> Status {
    run(disk, n, &WRITE, vec![n; 512]).status
}

fn read(disk: &Disk, n: u8) -> Response {
    run(disk, n, &READ, vec![])
}

#[test]
fn a_reservation_keeps_the_others_out() {
    let disk = disk(None);
    for n in [1, 2] {
        enter(&disk, n);
    }
    assert_eq!(write(&disk, 2), Status::Good);
    assert_eq!(change_as(&disk, 1, out(REGISTER, 0, 0, 1, 0)), Status::Good);
    assert_eq!(change_as(&disk, 1, out(RESERVE, 1, 1, 0, 0)), Status::Good);
    assert_eq!((write(&disk, 1), write(&disk, 2)), (Status::Good, Status::ReservationConflict));
    assert_eq!(read(&disk, 2).data.concat(), [1; 512], "what was refused has not been written");
    // An allocation length cuts the answer, not the lengths in it.
    let cut = run(&disk, 2, &[0x5E, 0, 0, 0, 0, 0, 0, 0, 6, 0], vec![]);
    assert_eq!(cut.data.concat(), [0, 0, 0, 1, 0, 0]);
    assert_eq!(change_as(&disk, 2, out(RESERVE, 1, 0, 0, 0)), Status::ReservationConflict);
    // The registration and the reservation outlive the session.
    disk.detach(Nexus(1));
    assert_eq!(write(&disk, 2), Status::ReservationConflict);
    disk.attach(Nexus(7), TestInitiator::new(1));
    assert_eq!(told(&disk, 7), Some(Additional::POWER_ON_OR_RESET));
    assert_eq!(write(&disk, 7), Status::Good);
}

#[test]
fn a_conflict_comes_before_a_unit_attention() {
    let disk = disk(None);
    enter(&disk, 1);
    disk.attach(Nexus(2), TestInitiator::new(2));
    assert_eq!(run(&disk, 1, &[0x16, 0, 0, 0, 0, 0], vec![]).status, Status::Good);
    assert_eq!(write(&disk, 2), Status::ReservationConflict);
    assert_eq!(run(&disk, 1, &[0x17, 0, 0, 0, 0, 0], vec![]).status, Status::Good);
    assert_eq!(told(&disk, 2), Some(Additional::POWER_ON_OR_RESET));
}

#[test]
fn reserve_6_ends_with_the_session_and_with_a_reset() {
    let disk = disk(None);
    for n in [1, 2] {
        enter(&disk, n);
    }
    let reserve = |n| run(&disk, n, &[0x16, 0, 0, 0, 0, 0], vec![]).status;
    assert_eq!((reserve(1), reserve(2)), (Status::Good, Status::ReservationConflict));
    disk.detach(Nexus(1));
    assert_eq!((write(&disk, 2), reserve(2)), (Status::Good, Status::Good));
    disk.attach(Nexus(1), TestInitiator::new(1));
    assert_eq!(write(&disk, 1), Status::ReservationConflict);
    disk.reset();
    assert_eq!(told(&disk, 1), Some(Additional::POWER_ON_OR_RESET));
    assert_eq!(write(&disk, 1), Status::Good);
}

#[test]
fn preempt_tells_and_aborts_who_lost() {
    for (action, aborted) in [(PREEMPT, vec![]), (PREEMPT_AND_ABORT, vec![LUN])] {
        let disk = disk(None);
        let guests = [1, 2, 3].map(|n| enter(&disk, n));
        for n in [1, 2, 3] {
            let status = change_as(&disk, n, out(REGISTER, 0, 0, n.into(), 0));
            assert_eq!(status, Status::Good);
        }
        assert_eq!(change_as(&disk, 1, out(RESERVE, 3, 1, 0, 0)), Status::Good);
        assert_eq!(change_as(&disk, 2, out(action, 5, 2, 1, 0)), Status::Good);
        assert_eq!(told(&disk, 1), Some(Additional::REGISTRATIONS_PREEMPTED));
        assert_eq!(told(&disk, 2), None);
        assert_eq!(told(&disk, 3), Some(Additional::RESERVATIONS_RELEASED));
        assert_eq!(*guests[0].aborted.lock().unwrap(), aborted);
        assert!(guests[1..].iter().all(|guest| guest.aborted.lock().unwrap().is_empty()));
        assert_eq!(keys(&disk, 1), [2, 3]);
        assert_eq!(write(&disk, 1), Status::ReservationConflict);
    }
}

#[test]
fn reservation_answered_good_is_stored() {
    let storage = MemoryStorage::new();
    let before = disk(Some(&storage));
    enter(&before, 1);
    assert_eq!(change_as(&before, 1, out(REGISTER, 0, 0, 1, APTPL)), Status::Good);
    assert_eq!(change_as(&before, 1, out(RESERVE, 1, 1, 0, 0)), Status::Good);
    drop(before);
    let after = disk(Some(&storage));
    for n in [1, 2] {
        enter(&after, n);
    }
    assert_eq!((write(&after, 1), write(&after, 2)), (Status::Good, Status::ReservationConflict));
    let capabilities = run(&after, 2, &[0x5E, 2, 0, 0, 0, 0, 0, 0, 8, 0], vec![]).data.concat();
    assert_eq!((capabilities[2] & 1, capabilities[3] & 1), (1, 1), "PTPL_C, PTPL_A");
    // Without APTPL they end with the process.
    assert_eq!(change_as(&after, 1, out(REGISTER, 0, 1, 9, 0)), Status::Good);
    drop(after);
    let last = disk(Some(&storage));
    enter(&last, 2);
    assert_eq!((write(&last, 2), keys(&last, 2)), (Status::Good, vec![]));
}

#[test]
fn change_that_cannot_be_stored_does_not_happen() {
    let storage = MemoryStorage::new();
    let disk = disk(Some(&storage));
    for n in [1, 2] {
        enter(&disk, n);
    }
    assert_eq!(change_as(&disk, 1, out(REGISTER, 0, 0, 1, APTPL)), Status::Good);
    storage.broken.store(true, Ordering::Relaxed);
    let (cdb, list) = out(RESERVE, 1, 1, 0, 0);
    let failed = run(&disk, 1, &cdb, list.clone());
    assert_eq!(Sense::parse(&failed.sense).unwrap().key, Key::HardwareError);
    assert_eq!(write(&disk, 2), Status::Good, "nothing is reserved");
    let (register, key) = out(REGISTER, 0, 0, 2, APTPL);
    let failed = run(&disk, 2, &register, key);
    let insufficient = Sense::illegal(Additional::INSUFFICIENT_REGISTRATION_RESOURCES);
    assert_eq!(Sense::parse(&failed.sense), Some(insufficient));
    assert_eq!(keys(&disk, 2).len(), 1, "nobody else is registered");
    storage.broken.store(false, Ordering::Relaxed);
    assert_eq!(run(&disk, 1, &cdb, list).status, Status::Good);
    assert_eq!(write(&disk, 2), Status::ReservationConflict);
}

#[test]
fn without_a_keeper_nothing_is_promised() {
    let disk = disk(None);
    enter(&disk, 1);
    let (cdb, list) = out(REGISTER, 0, 0, 1, APTPL);
    let refused = run(&disk, 1, &cdb, list);
    assert_eq!(Sense::parse(&refused.sense), Some(Sense::invalid_parameter(20, Some(0))));
    let capabilities = run(&disk, 1, &[0x5E, 2, 0, 0, 0, 0, 0, 0, 8, 0], vec![]).data.concat();
    assert_eq!(capabilities[2] & 1, 0, "PTPL_C");
}

/// A change that is being kept is not in force yet, and the next one waits for it: here a RESERVE, which
/// must not come between the check of the registration and its effect.
#[test]
fn changes_happen_one_after_the_other() {
    let storage = MemoryStorage::new();
    let disk = disk(Some(&storage));
    for n in [1, 2] {
        enter(&disk, n);
    }
    storage.gate.forget_permits(Semaphore::MAX_PERMITS);
    let (cdb, list) = out(REGISTER, 0, 0, 1, APTPL);
    let mut register = send(&disk, 1, &cdb, list);
    let mut reserve = send(&disk, 2, &[0x16, 0, 0, 0, 0, 0], vec![]);
    assert!((&mut register).now_or_never().is_none());
    assert!((&mut reserve).now_or_never().is_none());
    assert!(keys(&disk, 2).is_empty(), "not before it is kept");
    storage.gate.add_permits(1);
    assert_eq!(register.now_or_never().unwrap().status, Status::Good);
    assert_eq!(reserve.now_or_never().unwrap().status, Status::ReservationConflict);
    assert_eq!(keys(&disk, 2), [1]);
}

/// Every command of the table meets an exclusive reservation as its class says.
#[tokio::test]
async fn retirement_waits_for_a_change_that_is_being_kept_and_refuses_later_ones() {
    let storage = MemoryStorage::new();
    let retired = disk(Some(&storage));
    enter(&retired, 1);
    storage.gate.forget_permits(Semaphore::MAX_PERMITS);
    let (cdb, list) = out(REGISTER, 0, 0, 1, APTPL);
    let mut change = send(&retired, 1, &cdb, list);
    assert!((&mut change).now_or_never().is_none(), "it is being kept");
    let mut retirement = pin!(retired.retire());
    assert!(retirement.as_mut().now_or_never().is_none(), "what is kept would change behind it");
    storage.gate.add_permits(2);
    assert_eq!(change.await.status, Status::Good);
    retirement.await;
    let (cdb, list) = out(REGISTER, 0, 1, 2, APTPL);
    for (cdb, list) in [(&cdb[..], list), (&[0x16, 0, 0, 0, 0, 0], vec![])] {
        let refused = send(&retired, 1, cdb, list).await;
        let sense = Sense::parse(&refused.sense).unwrap();
        assert_eq!(sense, Sense::illegal(Additional::LOGICAL_UNIT_NOT_SUPPORTED));
    }
    let next = disk(Some(&storage));
    enter(&next, 1);
    assert_eq!(keys(&next, 1), [1]);
}

#[test]
fn every_command_obeys_its_class() {
    let disk = disk(None);
    for n in [1, 2] {
        enter(&disk, n);
    }
    assert_eq!(change_as(&disk, 1, out(REGISTER, 0, 0, 1, 0)), Status::Good);
    assert_eq!(change_as(&disk, 1, out(RESERVE, 3, 1, 0, 0)), Status::Good);
    for entry in commands() {
        let mut cdb = [0; 16];
        cdb[0] = entry.opcode;
        cdb[1] = entry.action.unwrap_or(0);
        let free = matches!(entry.opcode, 0x00 | 0x03 | 0x12 | 0x25 | 0xA0 | 0x5E | 0x1E)
            || [(0x9E, Some(0x10)), (0xA3, Some(0x0A)), (0xA3, Some(0x0F))]
                .contains(&(entry.opcode, entry.action))
            || entry.requires == Requires::Administrator;
        // The parameter list is missing, which is found before the conflict. What other devices have is refused anyhow.
        if entry.opcode == 0x5F || !entry.types.disk {
            continue;
        }
        let conflict = run(&disk, 2, &cdb, vec![]).status == Status::ReservationConflict;
        assert_eq!(conflict, !free, "{:02X} {:?}", entry.opcode, entry.action);
    }
}

/// A disk that guests 1 and 2 are registered with, and guest 1 has reserved.
fn held_by_one(storage: &Arc<MemoryStorage>) -> Disk {
    let disk = disk(Some(storage));
    enter(&disk, 1);
    enter(&disk, 2);
    assert_eq!(change_as(&disk, 1, out(REGISTER, 0, 0, 1, APTPL)), Status::Good);
    assert_eq!(change_as(&disk, 1, out(RESERVE, 5, 1, 0, 0)), Status::Good);
    assert_eq!(change_as(&disk, 2, out(REGISTER, 0, 0, 2, APTPL)), Status::Good);
    disk
}

#[test]
fn victim_that_leaves_while_the_preemption_is_kept_may_write_in_its_next_session() {
    let storage = MemoryStorage::new();
    let disk = held_by_one(&storage);
    storage.gate.forget_permits(Semaphore::MAX_PERMITS);
    let (cdb, list) = out(PREEMPT_AND_ABORT, 5, 2, 1, 0);
    let mut preempt = send(&disk, 2, &cdb, list);
    assert!((&mut preempt).now_or_never().is_none());
    disk.detach(Nexus(1));
    storage.gate.add_permits(2);
    assert_eq!(preempt.now_or_never().unwrap().status, Status::Good);
    assert_eq!(change_as(&disk, 2, out(REGISTER, 0, 2, 0, APTPL)), Status::Good);
    disk.attach(Nexus(11), TestInitiator::new(1) as _);
    assert_eq!(told(&disk, 11), Some(Additional::POWER_ON_OR_RESET));
    assert!(keys(&disk, 11).is_empty());
    assert_eq!(write(&disk, 11), Status::Good, "nothing is reserved, and it has logged in anew");
}

/// Guest 1 registers and reserves under its bare name, and comes back as a client while a change is being kept.
fn adopted_during(cdb: &[u8], list: Vec<u8>) -> (Disk, Arc<TestInitiator>) {
    let storage = MemoryStorage::new();
    let disk = held_by_one(&storage);
    disk.detach(Nexus(1));
    storage.gate.forget_permits(Semaphore::MAX_PERMITS);
    let mut change = send(&disk, 2, cdb, list);
    assert!((&mut change).now_or_never().is_none());
    let proven = TestInitiator::proven(1, "alice");
    disk.attach(Nexus(11), Arc::clone(&proven) as _);
    assert_eq!(told(&disk, 11), Some(Additional::POWER_ON_OR_RESET));
    assert_eq!(write(&disk, 11), Status::Good, "it has adopted its reservation");
    storage.gate.add_permits(1);
    assert_eq!(change.now_or_never().unwrap().status, Status::Good);
    (disk, proven)
}

#[test]
fn adoption_while_a_registration_is_kept_is_not_undone() {
    let (cdb, list) = out(REGISTER, 0, 2, 3, APTPL);
    let (disk, _) = adopted_during(&cdb, list);
    assert_eq!(write(&disk, 11), Status::Good, "it has it still");
}

#[test]
fn preemption_reaches_the_client_that_adopted_its_victim_meanwhile() {
    let (cdb, list) = out(PREEMPT_AND_ABORT, 5, 2, 1, 0);
    let (disk, proven) = adopted_during(&cdb, list);
    assert_eq!(*proven.aborted.lock().unwrap(), [LUN]);
    assert_eq!(write(&disk, 11), Status::ReservationConflict);
    assert_eq!(told(&disk, 11), Some(Additional::REGISTRATIONS_PREEMPTED));
}
