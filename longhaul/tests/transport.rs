//! A disk behind a transport that is not iSCSI: what the target room does for any transport protocol.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use longhaul::target::lun::{Options, Response, TargetDevice};
use longhaul::target::node::{Node, PortAccess};
use longhaul::target::status::Status as NodeStatus;
use longhaul::target::task_management::{Function, Outcome};
use proto::scsi::command::{self, Command};
use proto::scsi::reservation::{ReserveInAction, ReserveOutAction};
use proto::scsi::rights::{Access, Rights};
use proto::scsi::sense::{Additional, Key};
use proto::scsi::transport::plain::{self, PLAIN};
use proto::scsi::{Blocks, Capacity, Sense, Status, lun};
use testing::loopback::{Client, Masks};
use volume::Volume;
use volume::store::blocked_writes::BlockedWrites;
use volume::store::memory::Memory;

const BLOCK: u32 = 512;
const FIRST: Blocks = Blocks { lba: 0, count: 1 };
/// WRITE EXCLUSIVE - REGISTRANTS ONLY.
const KIND: u8 = 5;

fn device(units: Vec<(u16, Arc<dyn Volume>)>) -> Arc<TargetDevice> {
    let options = || Options { transports: PLAIN, ..Options::default() };
    let units = units.into_iter().map(|(number, volume)| (number, volume, options()));
    Arc::new(TargetDevice::new("t", units))
}

fn memory(size: u64) -> Arc<dyn Volume> {
    Arc::new(Memory::new(size, BLOCK))
}

fn node(units: Vec<(u16, Arc<dyn Volume>)>, masks: Masks) -> Arc<Node<Masks>> {
    Arc::new(Node::new([device(units)], masks))
}

fn one_disk() -> Arc<Node<Masks>> {
    node(vec![(0, memory(1 << 20))], Masks::default())
}

/// Logs in, and is told by unit 0 of the nexus that came into being.
async fn log_in(node: &Arc<Node<Masks>>, name: &str) -> Client {
    let client = Client::log_in(node, name, "t").await.unwrap();
    assert_eq!(told(&client, 0).await, Some(Additional::POWER_ON_OR_RESET));
    client
}

async fn run(client: &Client, lun: u16, command: Command, data: impl Into<Bytes>) -> Response {
    client.execute(lun, command, data).await.expect("it is answered")
}

async fn good(client: &Client, lun: u16, command: Command) -> Vec<u8> {
    let response = run(client, lun, command, Bytes::new()).await;
    assert_eq!(response.status, Status::Good, "{:?}", Sense::parse(&response.sense));
    response.data.concat()
}

/// What the unit tells the client next.
async fn told(client: &Client, lun: u16) -> Option<Additional> {
    let response = run(client, lun, Command::test_unit_ready(), Bytes::new()).await;
    Sense::parse(&response.sense).map(|sense| sense.additional)
}

async fn write(client: &Client, byte: u8) -> Response {
    let command = Command::write(FIRST, BLOCK, false);
    run(client, 0, command, vec![byte; BLOCK as usize]).await
}

async fn reserve_out(
    client: &Client,
    action: ReserveOutAction,
    key: u64,
    action_key: u64,
) -> Status {
    let list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    let command = Command::persistent_reserve_out(action, KIND, list.len() as u32);
    run(client, 0, command, list).await.status
}

#[tokio::test]
async fn disk_is_found_written_and_read() {
    let client =
        log_in(&node(vec![(0, memory(1 << 20)), (7, memory(2 << 20))], Masks::default()), "a")
            .await;
    let list = good(&client, 0, Command::report_luns(16)).await;
    assert_eq!(command::luns(&list), Ok(vec![0, 7]));
    let capacity = good(&client, 0, Command::read_capacity_16()).await;
    assert_eq!(Capacity::parse_16(&capacity).unwrap().blocks, 2048);
    assert_eq!(write(&client, 0x5A).await.status, Status::Good);
    assert_eq!(good(&client, 0, Command::read(FIRST, BLOCK)).await, [0x5A; BLOCK as usize]);
    assert!(good(&client, 0, Command::synchronize_cache()).await.is_empty());
    assert_eq!(told(&client, 3).await, Some(Additional::LOGICAL_UNIT_NOT_SUPPORTED));
}

#[tokio::test]
async fn reservation_keeps_others_from_writing_until_it_is_preempted() {
    let node = one_disk();
    let (a, b) = (log_in(&node, "a").await, log_in(&node, "b").await);
    assert_eq!(reserve_out(&a, ReserveOutAction::Register, 0, 1).await, Status::Good);
    assert_eq!(reserve_out(&a, ReserveOutAction::Reserve, 1, 0).await, Status::Good);
    assert_eq!(write(&b, 2).await.status, Status::ReservationConflict);
    assert_eq!(write(&a, 1).await.status, Status::Good);
    let status = Command::persistent_reserve_in(ReserveInAction::ReadFullStatus, 1024);
    let status = good(&b, 0, status).await;
    assert!(status.windows(4).any(|text| text == b"a.1\0"), "the port is named: {status:02x?}");
    assert_eq!(reserve_out(&b, ReserveOutAction::Register, 0, 2).await, Status::Good);
    assert_eq!(reserve_out(&b, ReserveOutAction::PreemptAndAbort, 2, 1).await, Status::Good);
    assert_eq!(write(&b, 2).await.status, Status::Good);
    assert_eq!(write(&a, 1).await.status, Status::ReservationConflict);
    assert_eq!(told(&a, 0).await, Some(Additional::REGISTRATIONS_PREEMPTED));
}

#[tokio::test]
async fn registration_names_another_port_of_the_same_protocol() {
    let node = one_disk();
    let (a, b) = (log_in(&node, "a").await, log_in(&node, "b").await);
    const SPEC_I_PT: u8 = 0x08;
    let mut list = [[0; 8], 1_u64.to_be_bytes(), [0; 8]].concat();
    list[20] = SPEC_I_PT;
    let id = PLAIN.0[0].write(&plain::id(&plain::port("b", 1)));
    list.extend((id.len() as u32).to_be_bytes());
    list.extend(id);
    let register =
        Command::persistent_reserve_out(ReserveOutAction::Register, 0, list.len() as u32);
    assert_eq!(run(&a, 0, register, list).await.status, Status::Good);
    assert_eq!(reserve_out(&a, ReserveOutAction::Reserve, 1, 0).await, Status::Good);
    assert_eq!(write(&b, 1).await.status, Status::Good, "it is registered too");
    let c = log_in(&node, "c").await;
    assert_eq!(write(&c, 1).await.status, Status::ReservationConflict);
}

#[tokio::test]
async fn reset_ends_the_tasks_of_other_sessions_first() {
    let held = Arc::new(BlockedWrites::new(Memory::new(1 << 20, BLOCK)));
    let node = node(vec![(0, Arc::clone(&held) as _)], Masks::default());
    let (a, b) = (log_in(&node, "a").await, log_in(&node, "b").await);
    let mut stuck = Box::pin(b.execute(0, Command::write(FIRST, BLOCK, false), vec![9; 512]));
    while held.waiting() == 0 {
        tokio::select! {
            _ = &mut stuck => panic!("it is held"),
            () = tokio::task::yield_now() => {}
        }
    }
    let field = lun::encode(0);
    let mut reset = Box::pin(a.manage(Function::LogicalUnitReset(field)));
    tokio::select! {
        biased;
        _ = &mut reset => panic!("a write is under way"),
        () = tokio::task::yield_now() => {}
    }
    held.let_through(1);
    assert_eq!(reset.await, Some(Outcome::Complete));
    assert!(stuck.await.is_none(), "an aborted task is not answered");
    for client in [&a, &b] {
        assert_eq!(told(client, 0).await, Some(Additional::BUS_DEVICE_RESET));
        assert_eq!(told(client, 0).await, None);
    }
    assert_eq!(
        a.manage(Function::LogicalUnitReset(lun::encode(5))).await,
        Some(Outcome::IncorrectLun)
    );
}

#[tokio::test]
async fn client_sees_the_units_that_its_rights_name() {
    let rights = Rights::Units(BTreeMap::from([(0, Access::Read)]));
    let masks = Masks(BTreeMap::from([("reader".to_owned(), rights)]));
    let node = node(vec![(0, memory(1 << 20)), (1, memory(1 << 20))], masks);
    let (reader, writer) = (log_in(&node, "reader").await, log_in(&node, "writer").await);
    let refused = Sense::parse(&write(&reader, 1).await.sense).unwrap();
    assert_eq!(refused.key, Key::DataProtect);
    let list = good(&reader, 0, Command::report_luns(16)).await;
    assert_eq!(command::luns(&list), Ok(vec![0]));
    assert_eq!(told(&reader, 1).await, Some(Additional::LOGICAL_UNIT_NOT_SUPPORTED));
    for function in [Function::LogicalUnitReset(lun::encode(0)), Function::TargetReset] {
        assert_eq!(reader.manage(function).await, Some(Outcome::NotAuthorized));
    }
    assert_eq!(write(&writer, 1).await.status, Status::Good);
}

#[tokio::test]
async fn session_goes_on_when_units_are_added() {
    let (first, node) = (memory(1 << 20), one_disk());
    let client = log_in(&node, "a").await;
    let more = device(vec![(0, Arc::clone(&first)), (1, memory(1 << 20))]);
    let (leaving, done) = node.replace(vec![more], &PortAccess::default(), Masks::default());
    assert_eq!(leaving, 1, "unit 0 is another disk");
    done.await;
    assert!(client.execute(0, Command::test_unit_ready(), Bytes::new()).await.is_none());
    let client = log_in(&node, "a").await;
    let same = Arc::clone(&node.serving().devices()["t"]);
    let (leaving, done) = node.replace(vec![same], &PortAccess::default(), Masks::default());
    assert_eq!(leaving, 0);
    done.await;
    assert_eq!(told(&client, 0).await, None, "nothing has changed");
}

#[tokio::test]
async fn login_of_the_same_port_ends_its_session_and_no_other() {
    let node = one_disk();
    let (old, other) = (log_in(&node, "a").await, log_in(&node, "b").await);
    let new = log_in(&node, "a").await;
    assert!(old.execute(0, Command::test_unit_ready(), Bytes::new()).await.is_none());
    for client in [&new, &other] {
        assert_eq!(told(client, 0).await, None);
    }
    let status = NodeStatus::of(&node, |()| "here".to_owned());
    assert_eq!(status.sessions.len(), 2);
    assert!(status.targets["t"].others.commands > 0);
}
