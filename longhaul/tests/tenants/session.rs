//! Sessions of clients, alike whatever they come by, so that one test tries all of it.

use proto::hyperscsi::{Ended, Reply, TaskFunction as HyperScsiFunction, TaskResponse as Managed};
use proto::scsi::Sense;
use proto::scsi::sense::Additional;
use tokio::runtime::Runtime;

use super::raw::Raw;
use super::*;

/// A session of a client.
pub(super) enum Session {
    Iscsi(Box<Peer>),
    HyperScsi(Box<Client>),
}

impl Session {
    /// Runs a command to its end, with data-out or room for data-in: its status, and what came or its sense data.
    /// `None` when the session has ended.
    pub(super) fn run_on(
        &mut self,
        lun: u16,
        cdb: &[u8],
        data: impl Into<Bytes>,
        room: u32,
    ) -> Option<(u8, Vec<u8>)> {
        match self {
            Self::Iscsi(peer) => peer.run_on(lun, cdb, data, room),
            Self::HyperScsi(client) => {
                let reply = client.try_run(volume(lun), cdb, data.into(), room)?;
                let data = if reply.sense.is_empty() { reply.data_in } else { reply.sense };
                Some((reply.status as u8, data.to_vec()))
            }
        }
    }

    /// What unit `lun` says of itself when it is asked whether it is ready; nothing if it is.
    pub(super) fn says(&mut self, lun: u16) -> Option<Additional> {
        let (_, sense) = self.run_on(lun, &[0; 6], Bytes::new(), 0).expect("an answer");
        Sense::parse(&sense).map(|sense| sense.additional)
    }

    /// The first block of a unit; `None` unless the status is good.
    pub(super) fn read(&mut self, lun: u16) -> Option<Vec<u8>> {
        let (status, data) = self.run_on(lun, &raw::read(0, 1), Bytes::new(), 512)?;
        (status == GOOD).then_some(data)
    }

    /// The units that it is told of.
    pub(super) fn units(&mut self) -> Vec<u16> {
        match self {
            Self::Iscsi(peer) => peer.luns(),
            Self::HyperScsi(client) => {
                let number = |name: &str| (0..).find(|lun| volume(*lun) == name).unwrap();
                client.raw.devices.iter().map(|device| number(&device.name)).collect()
            }
        }
    }

    /// Task management; `None` if the session ends without an answer.
    pub(super) fn manage(&mut self, function: TaskFunction, unit: u16) -> Option<TaskResponse> {
        match self {
            Self::Iscsi(peer) => manage(peer, function, unit),
            Self::HyperScsi(client) => Some(client.manage(function, unit)),
        }
    }

    /// The connection of a session by iSCSI.
    pub(super) fn peer(&mut self) -> &mut Peer {
        let Self::Iscsi(peer) = self else { panic!("it came by HyperSCSI") };
        peer
    }

    /// Ends it; its client may come again at once.
    pub(super) fn leave(self) {
        match self {
            Self::Iscsi(mut peer) => peer.log_out(),
            Self::HyperScsi(client) => client.runtime.block_on(client.raw.disconnect()),
        }
    }

    /// Waits until the server says that it ends the session, or asks for its end, or has ended it.
    pub(super) fn is_asked_to_end(&mut self) {
        match self {
            Self::Iscsi(peer) => {
                let told = peer.receive().map(|pdu| pdu.header);
                assert!(matches!(told, None | Some(Header::AsyncMessage(_))), "{told:?}");
            }
            Self::HyperScsi(client) => assert_eq!(client.end(), Ended::ByPeer(3)),
        }
    }
}

/// By HyperSCSI the unit of the private target is beside the others.
fn volume(lun: u16) -> &'static str {
    ["a", "b", "c"][usize::from(lun)]
}

/// A client by HyperSCSI, which waits where the others do.
pub(super) struct Client {
    pub(super) runtime: Runtime,
    pub(super) raw: Raw,
}

impl Client {
    /// Client `who`, as this initiator port; it has been told of the power on.
    pub(super) fn connect(fixture: &Fixture, who: &str, port: u64) -> Self {
        let mut client = Self::start(fixture, who, port);
        client.runtime.block_on(client.raw.until(|raw| !raw.devices.is_empty()));
        for name in client.raw.devices.iter().map(|device| device.name.clone()).collect::<Vec<_>>()
        {
            client.run(&name, &[0; 6], vec![]);
        }
        client
    }

    /// The same, which only begins to connect.
    pub(super) fn start(fixture: &Fixture, who: &str, port: u64) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let identity = sealing::read(&fixture.home.path().join(format!("{who}.id"))).unwrap();
        let server = fixture.hyperscsi.expect("it listens there");
        let raw = runtime.block_on(Raw::start(server, &identity, port));
        Self { runtime, raw }
    }

    pub(super) fn run(&mut self, volume: &str, cdb: &[u8], out: Vec<u8>) -> Reply {
        let reply = self.try_run(volume, cdb, out.into(), 4096);
        reply.unwrap_or_else(|| panic!("it goes on: {:?}", self.raw.ended))
    }

    fn try_run(&mut self, volume: &str, cdb: &[u8], out: Bytes, room: u32) -> Option<Reply> {
        if self.raw.ended.is_some() {
            return None;
        }
        self.runtime.block_on(self.raw.run(volume, cdb, out.to_vec(), room))
    }

    fn manage(&mut self, function: TaskFunction, unit: u16) -> TaskResponse {
        let function = match function {
            TaskFunction::ABORT_TASK_SET => HyperScsiFunction::AbortTaskSet,
            TaskFunction::CLEAR_TASK_SET => HyperScsiFunction::ClearTaskSet,
            TaskFunction::LOGICAL_UNIT_RESET => HyperScsiFunction::LogicalUnitReset,
            other => panic!("HyperSCSI has no {other:?}"),
        };
        let unit = volume(unit);
        match self.runtime.block_on(self.raw.manage(unit, function)) {
            Managed::Complete => TaskResponse::COMPLETE,
            Managed::Rejected => TaskResponse::AUTHORIZATION_FAILED,
            other => panic!("{other:?}"),
        }
    }

    /// Moves packets until its connection is over.
    pub(super) fn end(&mut self) -> Ended {
        self.runtime.block_on(self.raw.until(|raw| raw.ended.is_some()));
        self.raw.ended.unwrap()
    }
}

/// Task management by iSCSI; `None` if the session ends without an answer.
fn manage(peer: &mut Peer, function: TaskFunction, unit: u16) -> Option<TaskResponse> {
    manage_task(peer, function, unit, (NO_TAG, 0))
}

/// The same of one task, by its tag and its CmdSN.
pub(super) fn manage_task(
    peer: &mut Peer,
    function: TaskFunction,
    unit: u16,
    (referenced_tag, ref_cmd_sn): (u32, u32),
) -> Option<TaskResponse> {
    let request = TaskManagementRequest {
        immediate: true,
        function,
        lun: u64::from_be_bytes(lun::encode(unit)),
        itt: 0x7A5C,
        referenced_tag,
        ref_cmd_sn,
        cmd_sn: peer.cmd_sn,
        ..TaskManagementRequest::default()
    };
    peer.try_send(request, Bytes::new()).ok()?;
    match peer.receive()?.header {
        Header::TaskManagementResponse(response) => Some(response.response),
        Header::AsyncMessage(_) => None,
        other => panic!("{other:?}"),
    }
}
