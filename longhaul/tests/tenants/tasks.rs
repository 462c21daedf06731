//! Tasks under way are ended by their own session, and by clients that may write to the unit where SCSI has a function for
//! that; nobody else can name them.

use proto::hyperscsi::{Request, TaskFunction as HyperScsiFunction, TaskResponse as Managed};
use proto::iscsi::header::{DataOut, ScsiCommand};
use proto::scsi::sense::Additional;

use super::session::manage_task;
use super::*;

/// The tag of the write that waits for its data.
const ITT: u32 = 0x55;

/// A write to unit 0 that the target has asked for the data of: its CmdSN, and the tag to send them with.
pub(super) fn begin_write(peer: &mut Peer) -> (u32, u32) {
    let command = peer.command(ITT, peer::write_16(0, 1));
    let cmd_sn = command.cmd_sn;
    peer.send(ScsiCommand { write: true, expected_len: 512, ..command }, Bytes::new());
    let Some(Header::R2t(r2t)) = peer.receive().map(|pdu| pdu.header) else {
        panic!("it is asked for its data");
    };
    (cmd_sn, r2t.ttt)
}

pub(super) fn send_data(peer: &mut Peer, ttt: u32) {
    let header = DataOut { is_final: true, itt: ITT, ttt, ..DataOut::default() };
    // The session may have ended.
    let _ = peer.try_send(header, vec![0xA5; 512]);
}

/// Does what a client can do to the tasks of others that it may not end.
fn attack(session: &mut Session, who: &str, cmd_sn: u32) {
    let lun = u16::from(who == "mallory");
    let own = session.manage(TaskFunction::ABORT_TASK_SET, lun);
    assert_eq!(own, Some(TaskResponse::COMPLETE), "{who}: its own tasks");
    match session {
        Session::Iscsi(peer) => {
            for unit in [0, lun] {
                let named = manage_task(peer, TaskFunction::ABORT_TASK, unit, (ITT, cmd_sn));
                assert!(named.is_some(), "{who}: it is answered");
            }
            let taken = manage_task(peer, TaskFunction::TASK_REASSIGN, 0, (ITT, cmd_sn));
            assert_ne!(taken, Some(TaskResponse::COMPLETE), "{who}");
        }
        Session::HyperScsi(client) => {
            let unit = client.raw.devices[0].name.clone();
            for (slot, seq) in (0..4).flat_map(|slot| (0..4).map(move |seq| (slot, seq))) {
                let function = HyperScsiFunction::AbortTask(Request { slot, seq });
                let answer = client.runtime.block_on(client.raw.manage(&unit, function));
                assert_eq!(answer, Managed::NoSuchTask, "{who} {slot} {seq}");
            }
        }
    }
    if who == "reader" {
        for function in [TaskFunction::CLEAR_TASK_SET, TaskFunction::LOGICAL_UNIT_RESET] {
            let refused = Some(TaskResponse::AUTHORIZATION_FAILED);
            assert_eq!(session.manage(function, 0), refused, "{who}");
        }
    }
    if who == "mallory" {
        let reset = session.manage(TaskFunction::LOGICAL_UNIT_RESET, 1);
        assert_eq!(reset, Some(TaskResponse::COMPLETE), "{who}: her own unit");
    }
}

/// Alice comes by iSCSI, where a write can wait for its data.
#[test]
fn a_task_is_not_ended_by_clients_that_may_not() {
    for by in ALL {
        let fixture = Fixture::new(by);
        let mut alice = fixture.log_in_by(by.over_iscsi(), "alice", (NAME, 1));
        for who in ["bob", "reader", "mallory"] {
            let (cmd_sn, ttt) = begin_write(alice.peer());
            attack(&mut fixture.log_in(who, NAME, 1), who, cmd_sn);
            send_data(alice.peer(), ttt);
            assert_eq!(alice.peer().status(ITT), Some(true), "{by:?} {who}");
            assert!(is_undisturbed(&mut alice, 0), "{by:?} {who}");
            assert_eq!(alice.read(0), Some(vec![0xA5; 512]), "{by:?} {who}");
        }
        // Bob may: it is what SCSI has for clients that share a unit.
        begin_write(alice.peer());
        let mut bob = fixture.log_in("bob", NAME, 1);
        let cleared = bob.manage(TaskFunction::CLEAR_TASK_SET, 0);
        assert_eq!(cleared, Some(TaskResponse::COMPLETE), "{by:?}");
        assert_eq!(alice.says(0), Some(Additional::COMMANDS_CLEARED), "{by:?}");
        fixture.end();
    }
}
