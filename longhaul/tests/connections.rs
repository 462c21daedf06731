//! Sessions of several connections, asked for by bare PDUs: no initiator at hand has them.

#[expect(dead_code, reason = "each test uses its part")]
mod common;
#[expect(dead_code, reason = "each test uses its part")]
#[path = "common/peer.rs"]
mod peer;

use std::net::SocketAddr;
use std::process::Command;

use bytes::Bytes;
use common::{LONGHAUL, Running};
use peer::{Peer, login, read_16, text, write_16};
use proto::iscsi::header::{
    Header, LoginRequest, LogoutReason, LogoutRequest, LogoutResponseCode, ScsiCommand,
};
use proto::scsi::sense::Additional;

const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";
const OTHER_TARGET: &str = "iqn.2026-11.dev.longhaul:other";
const NAME: &str = "iqn.2000-01.example:several";

/// What a server lets one session have.
const CONNECTIONS_MAX: u16 = 4;

struct Fixture {
    server: Running,
    portal: SocketAddr,
    first: Peer,
    tsih: u16,
}

impl Fixture {
    /// A session of one connection that may have more.
    fn new() -> Self {
        let server = Running::start(Command::new(LONGHAUL).args([
            "serve",
            "--volume",
            "disk=memory:8M",
            "--volume",
            "other=memory:8M",
            "--listen",
            "127.0.0.1:0",
        ]));
        let ready = server.line().expect("ready");
        let portal = ready.split('/').nth(2).expect("ready iscsi://PORTAL/...").parse().unwrap();
        let keys = [&text(NAME, TARGET)[..], b"MaxConnections=64\0"].concat();
        let (mut first, response) = Peer::ask(portal, login(1), keys.into());
        assert_eq!((response.status_class, response.status_detail), (0, 0));
        first.settle();
        Self { server, portal, first, tsih: response.tsih }
    }

    /// A request to join the session.
    fn request(&self, cid: u16) -> LoginRequest {
        LoginRequest { tsih: self.tsih, cid, cmd_sn: self.first.cmd_sn, ..login(1) }
    }

    fn join(&self, cid: u16) -> Peer {
        let (peer, response) = Peer::ask(self.portal, self.request(cid), identity(NAME, TARGET));
        assert_eq!((response.status_class, response.status_detail), (0, 0));
        assert_eq!((response.tsih, response.exp_cmd_sn), (self.tsih, self.first.cmd_sn));
        peer
    }

    /// What a request to join is refused with.
    fn refused(&self, request: LoginRequest, name: &str, target: &str) -> (u8, u8) {
        let (mut peer, response) = Peer::ask(self.portal, request, identity(name, target));
        assert!(peer.receive().is_none(), "the connection is closed");
        (response.status_class, response.status_detail)
    }
}

/// Who wants to join what: the keys of the session are settled.
fn identity(name: &str, target: &str) -> Bytes {
    let keys = format!(
        "InitiatorName={name}\0TargetName={target}\0SessionType=Normal\0\
         MaxRecvDataSegmentLength=262144\0"
    );
    keys.into()
}

/// RFC 7143, 4.2.2.1 and 4.2.5.1: commands are carried out in the order of CmdSN, and each is answered on
/// the connection it came by.
#[test]
fn commands_by_several_connections_are_carried_out_in_their_order() {
    let mut fixture = Fixture::new();
    let mut others = [fixture.join(1), fixture.join(2), fixture.join(3)];
    for round in 0..64_u32 {
        let first = fixture.first.cmd_sn;
        // The last is sent first; all write to the same blocks.
        for (on, peer) in others.iter_mut().enumerate().rev() {
            let cmd_sn = first + 1 + on as u32;
            let command = ScsiCommand {
                is_final: true,
                write: true,
                itt: cmd_sn,
                expected_len: 4096,
                cmd_sn,
                cdb: write_16(0, 8),
                ..ScsiCommand::default()
            };
            peer.send(command, vec![round as u8 ^ on as u8; 4096]);
        }
        assert_eq!(fixture.first.write(first, 0, vec![0xff; 4096], false), Some(true));
        for (on, peer) in others.iter_mut().enumerate() {
            assert_eq!(peer.status(first + 1 + on as u32), Some(true));
        }
        fixture.first.cmd_sn = first + 4;
        let read = fixture.first.read(first + 4, 0, 8).expect("good status");
        assert!(read.iter().all(|byte| *byte == round as u8 ^ 2), "the last one by number");
    }
    assert!(fixture.server.stop().success());
}

/// RFC 7143, 4.2.2.1: a login that joins says which command is sent next; what it is told is which came, in every
/// response.
#[test]
fn a_login_that_joins_is_told_which_commands_came() {
    let fixture = Fixture::new();
    let came = fixture.first.cmd_sn;
    let ahead = LoginRequest { transit: false, next_stage: 0, ..fixture.request(1) };
    let ahead = LoginRequest { cmd_sn: came + 3, ..ahead };
    let (mut peer, first) = Peer::ask(fixture.portal, ahead, identity(NAME, TARGET));
    peer.send(LoginRequest { transit: true, next_stage: 3, ..ahead }, Bytes::new());
    let answer = peer.receive().expect("an answer").header;
    let Header::LoginResponse(last) = answer else { panic!("{answer:?}") };
    // RFC 7143, 4.2.2.1: before it has joined it is told nothing; such numbers are ignored.
    assert_eq!(first.max_cmd_sn, first.exp_cmd_sn - 2, "{first:?}");
    assert_eq!((last.status_class, last.exp_cmd_sn), (0, came), "{last:?}");
    assert!(last.max_cmd_sn > came + 3, "the session's window: {last:?}");
}

#[test]
fn a_session_is_joined_by_nobody_else_and_no_more_often_than_agreed() {
    let fixture = Fixture::new();
    let request = fixture.request(1);
    let wrong_tsih = LoginRequest { tsih: fixture.tsih.wrapping_add(7), ..request };
    let wrong_isid = LoginRequest { isid: login(2).isid, ..request };
    let cases = [
        (wrong_tsih, NAME, TARGET, (2, 10)),
        (wrong_isid, NAME, TARGET, (2, 10)),
        (request, "iqn.2000-01.example:else", TARGET, (2, 10)),
        (request, NAME, OTHER_TARGET, (2, 8)),
    ];
    for (request, name, target, status) in cases {
        assert_eq!(fixture.refused(request, name, target), status, "{request:?} {name} {target}");
    }
    let others: Vec<_> = (1..CONNECTIONS_MAX).map(|cid| fixture.join(cid)).collect();
    assert_eq!(fixture.refused(fixture.request(9), NAME, TARGET), (2, 6));
    drop(others);
    assert!(fixture.server.stop().success());
}

/// A session that agreed on one connection has one.
#[test]
fn client_that_asks_for_no_several_connections_gets_none() {
    let fixture = Fixture::new();
    let (mut single, response) = Peer::ask(fixture.portal, login(5), text(NAME, TARGET));
    single.settle();
    let request = LoginRequest { tsih: response.tsih, cid: 1, ..login(5) };
    assert_eq!(fixture.refused(request, NAME, TARGET), (2, 6));
    assert!(single.read(1, 0, 1).is_some(), "the session is not touched");
}

/// RFC 7143, 6.3.4: the connection that had the number is closed, and the session goes on.
#[test]
fn a_connection_is_reinstated() {
    let mut fixture = Fixture::new();
    let mut old = fixture.join(1);
    let mut new = fixture.join(1);
    assert!(old.receive().is_none(), "replaced");
    new.cmd_sn = fixture.first.cmd_sn;
    assert!(new.read(1, 0, 1).is_some());
    fixture.first.cmd_sn = new.cmd_sn;
    assert!(fixture.first.read(2, 0, 1).is_some());
    // The only one that is left may replace itself.
    let (mut alone, response) = Peer::ask(fixture.portal, login(6), text(NAME, TARGET));
    alone.settle();
    let request = LoginRequest { tsih: response.tsih, cmd_sn: alone.cmd_sn, ..login(6) };
    let (mut again, response) = Peer::ask(fixture.portal, request, identity(NAME, TARGET));
    assert_eq!((response.status_class, response.status_detail), (0, 0));
    assert!(alone.receive().is_none(), "replaced");
    again.cmd_sn = alone.cmd_sn;
    assert!(again.read(3, 0, 1).is_some());
}

/// RFC 7143, 11.14: reason 1.
#[test]
fn one_connection_logs_out_and_the_session_goes_on() {
    let mut fixture = Fixture::new();
    let mut other = fixture.join(1);
    let request = LogoutRequest {
        immediate: true,
        reason: LogoutReason::CLOSE_CONNECTION,
        cid: 1,
        itt: 8,
        cmd_sn: fixture.first.cmd_sn,
        ..LogoutRequest::default()
    };
    other.send(request, Bytes::new());
    let answer = other.receive().expect("a response").header;
    assert!(
        matches!(answer, Header::LogoutResponse(r) if r.response == LogoutResponseCode::CLOSED),
        "{answer:?}"
    );
    assert!(other.receive().is_none(), "closed by the target");
    assert!(fixture.first.read(9, 0, 1).is_some());
    let _again = fixture.join(1);
    assert!(fixture.first.read(10, 0, 1).is_some());
}

/// RFC 7143, 11.14.5: what was not done when a connection is logged out or replaced, the unit tells, and once.
#[test]
fn commands_that_end_with_their_connection_are_told_of() {
    let mut fixture = Fixture::new();
    for replaced in [false, true] {
        let mut other = fixture.join(1);
        other.cmd_sn = fixture.first.cmd_sn;
        let command = other.command(7, write_16(0, 8));
        other.send(ScsiCommand { write: true, expected_len: 4096, ..command }, Bytes::new());
        assert!(matches!(other.receive().map(|pdu| pdu.header), Some(Header::R2t(_))));
        fixture.first.cmd_sn = other.cmd_sn;
        let _new = replaced.then(|| fixture.join(1));
        if !replaced {
            let (immediate, reason) = (true, LogoutReason::CLOSE_CONNECTION);
            let request = LogoutRequest { immediate, reason, cid: 1, itt: 8, ..<_>::default() };
            other.send(request, Bytes::new());
            assert!(matches!(other.receive().unwrap().header, Header::LogoutResponse(_)));
        }
        assert!(other.receive().is_none(), "it is closed");
        assert_eq!(fixture.first.says(0), Some(Additional::SOME_COMMANDS_CLEARED));
        assert_eq!(fixture.first.says(0), None);
    }
}

/// RFC 7143, 7.1.5: at level 0 a connection that fails takes its session with it.
#[test]
fn a_lost_connection_ends_the_session() {
    let mut fixture = Fixture::new();
    let other = fixture.join(1);
    // It has begun: its commands are taken.
    let mut other = {
        let mut peer = other;
        peer.cmd_sn = fixture.first.cmd_sn;
        assert!(peer.read(1, 0, 1).is_some());
        peer
    };
    let command = other.command(2, read_16(0, 1));
    other.send(ScsiCommand { read: true, expected_len: 512, ..command }, Bytes::new());
    drop(other);
    while let Some(pdu) = fixture.first.receive() {
        assert!(matches!(pdu.header, Header::AsyncMessage(_)), "{pdu:?}");
    }
    assert_eq!(fixture.refused(fixture.request(1), NAME, TARGET), (2, 10));
}
