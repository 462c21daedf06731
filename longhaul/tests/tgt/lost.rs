//! Lost connections to a target that lets a new session in while commands of the old one still run.

use std::time::Duration;

use bytes::Bytes;
use longhaul::store::iscsi::{ConnectOptions, Disk, connect};
use proto::iscsi::header::{
    Header, TaskFunction, TaskManagementRequest, TaskManagementResponse, TaskResponse,
};
use proto::scsi::sense::Additional;
use proto::scsi::{Status, lun};
use volume::{Durability, Span, Volume};

use super::options;
use super::server::Tgt;
use super::wire::Wire;

/// Longer than anything takes on a loaded machine; only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

const LEN: u64 = 4096;

async fn open(wire: &Wire, tgt: &Tgt) -> Disk {
    let options = ConnectOptions { reconnect_for: None, ..options() };
    connect(&wire.to(&tgt.disk()), &options).await.expect("a session with tgtd")
}

async fn write(disk: &Disk, value: u8) {
    let data = Bytes::from(vec![value; LEN as usize]);
    disk.write(0, data, Durability::Volatile).await.expect("a write");
}

async fn holds(disk: &Disk, value: u8) {
    let read = disk.read(Span::new(0, LEN)).await.expect("a read");
    assert!(read == vec![value; LEN as usize]);
}

/// Whether something is task management, of either end.
fn is_management(header: &Header) -> bool {
    matches!(header, Header::TaskManagementRequest(_) | Header::TaskManagementResponse(_))
}

fn is_write(header: &Header) -> bool {
    matches!(header, Header::ScsiCommand(command) if command.write)
}

#[tokio::test]
async fn a_write_under_way_is_ended_by_a_reset_before_it_is_sent_again() {
    let tgt = Tgt::start();
    let wire = Wire::new(&tgt.disk()).await;
    let disk = open(&wire, &tgt).await;
    write(&disk, 1).await;
    // tgtd writes it, and nobody hears of that.
    let lost = async { tokio::join!(write(&disk, 2), wire.cut_at_next_command()) };
    tokio::time::timeout(PATIENCE, lost).await.expect("it is sent again");
    holds(&disk, 2).await;

    let seen = wire.seen();
    let [first, second] = &seen[..] else { panic!("{} connections", seen.len()) };
    assert!(!first.iter().any(is_management));
    // The unit is compared first, as another one must not be reset. SAM-5, 7.7 and RFC 7143, 11.5: nothing is written
    // before the answer.
    let reset = second.iter().position(is_management).expect("a reset");
    assert!(!second[..reset].iter().any(is_write), "{second:?}");
    let [
        Header::TaskManagementRequest(TaskManagementRequest { function, lun, .. }),
        Header::TaskManagementResponse(TaskManagementResponse { response, .. }),
        rest @ ..,
    ] = &second[reset..]
    else {
        panic!("{second:?}")
    };
    assert_eq!(*function, TaskFunction::LOGICAL_UNIT_RESET);
    assert_eq!(*lun, u64::from_be_bytes(lun::encode(1)));
    assert_eq!(*response, TaskResponse::COMPLETE);
    assert!(!rest.iter().any(is_management));

    // A unit attention that the reset has left is nobody's failure.
    write(&disk, 3).await;
    disk.flush().await.expect("a flush");
    holds(&disk, 3).await;
    disk.close().await;
}

#[tokio::test]
async fn nothing_is_sent_again_to_a_unit_that_is_not_reset() {
    let tgt = Tgt::start();
    let wire = Wire::new(&tgt.disk()).await;
    let disk = open(&wire, &tgt).await;
    // Whatever the refusal is, nothing proves who says so: it is tried again.
    for (number, refusal) in
        [TaskResponse::REJECTED, TaskResponse::NOT_SUPPORTED].into_iter().enumerate()
    {
        wire.refuse(refusal);
        let value = 1 + number as u8;
        let lost = async { tokio::join!(write(&disk, value), wire.cut_at_next_command()) };
        tokio::time::timeout(PATIENCE, lost).await.expect("it is sent again");
        holds(&disk, value).await;
        let seen = wire.seen();
        assert_eq!(seen.len(), 3 + 2 * number, "{refusal:?}");
        let refused = &seen[1 + 2 * number];
        assert!(!refused.iter().any(is_write), "{refused:?}");
    }
    disk.close().await;
}

#[tokio::test]
async fn a_read_under_way_needs_no_reset() {
    let tgt = Tgt::start();
    let wire = Wire::new(&tgt.disk()).await;
    let disk = open(&wire, &tgt).await;
    write(&disk, 1).await;
    let lost = async { tokio::join!(holds(&disk, 1), wire.cut_at_next_command()) };
    tokio::time::timeout(PATIENCE, lost).await.expect("it is read again");
    disk.close().await;
    let seen = wire.seen();
    assert_eq!(seen.len(), 2);
    assert!(!seen.iter().flatten().any(is_management), "{seen:?}");
}

#[tokio::test]
async fn write_that_meets_a_unit_attention_succeeds() {
    // SPC-4, table of additional sense codes: 29h/00h to 29h/04h are resets, and 07h is the loss of the nexus, which ends
    // commands; the others are neither.
    let tgt = Tgt::start();
    let wire = Wire::new(&tgt.disk()).await;
    let disk = open(&wire, &tgt).await;
    for qualifier in 0..=7 {
        let before = wire.seen().len();
        wire.attend(Additional { code: 0x29, qualifier });
        let heard = async {
            write(&disk, qualifier).await;
            holds(&disk, qualifier).await;
        };
        tokio::time::timeout(PATIENCE, heard).await.expect("it is carried out");
        // What a reset may have cost is written again, on a link of its own.
        let links = wire.seen().len() - before;
        let anew = matches!(qualifier, 0..=4 | 7);
        assert_eq!(links, usize::from(anew), "29h/{qualifier:02x}h");
    }
    disk.flush().await.expect("a flush");
    disk.close().await;
}

#[tokio::test]
async fn command_aborted_by_the_reset_of_another_initiator_is_repeated() {
    let tgt = Tgt::start();
    let wire = Wire::new(&tgt.disk()).await;
    let disk = open(&wire, &tgt).await;
    let writes = |wire: &Wire| wire.seen()[0].iter().filter(|it| is_write(it)).count();
    let before = writes(&wire);
    // SAM-5, 5.3.1 and 5.6: with TAS the unit says so of each task.
    wire.answer(Status::TaskAborted);
    write(&disk, 1).await;
    assert_eq!(writes(&wire) - before, 2);
    holds(&disk, 1).await;
    assert_eq!(wire.seen().len(), 1, "the session goes on");
    disk.close().await;
}
