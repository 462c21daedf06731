//! NOP-Out and its answer (RFC 7143, 11.18 and 11.19).

use std::net::SocketAddr;

use bytes::Bytes;
use proto::iscsi::header::{Header, LoginRequest, NopIn, NopOut};
use proto::iscsi::text;

use super::{NAME, TARGET, serve_memory};
use crate::common::Running;
use crate::peer::{self, NO_ITT, Peer, frame};

struct Fixture {
    server: Running,
    portal: SocketAddr,
    peer: Peer,
}

impl Fixture {
    fn new() -> Self {
        let (server, portal) = serve_memory(&["disk".to_owned()]);
        let mut peer = Peer::log_in(portal, NAME, 1, TARGET);
        peer.settle();
        Self { server, portal, peer }
    }

    fn immediate(&self, itt: u32) -> NopOut {
        let cmd_sn = self.peer.cmd_sn;
        NopOut { immediate: true, itt, ttt: NO_ITT, cmd_sn, ..NopOut::default() }
    }

    /// One that takes the next place in the order of commands.
    fn ordered(&mut self, itt: u32) -> NopOut {
        let nop = NopOut { immediate: false, ..self.immediate(itt) };
        self.peer.cmd_sn += 1;
        nop
    }

    /// The next PDU, which answers a ping.
    fn answer(&mut self) -> (NopIn, Bytes) {
        let pdu = self.peer.receive_any().expect("an answer");
        let Header::NopIn(nop) = pdu.header else { panic!("{pdu:?}") };
        (nop, pdu.data)
    }

    fn end(self) {
        drop(self.peer);
        assert!(self.server.stop().success());
    }
}

#[test]
fn ping_data_are_echoed_under_their_tag() {
    let mut fixture = Fixture::new();
    for (itt, len) in (7..).zip([0, 1, 3, 4, 511, 8192, 65_537, 262_144]) {
        let data: Vec<u8> = (0..len).map(|at| (at % 251) as u8 ^ itt as u8).collect();
        for immediate in [true, false] {
            let nop = if immediate { fixture.immediate(itt) } else { fixture.ordered(itt) };
            fixture.peer.send(nop, data.clone());
            let (answer, echo) = fixture.answer();
            assert_eq!((answer.itt, answer.ttt), (itt, NO_ITT), "{len} bytes");
            assert_eq!(echo, data, "{len} bytes");
        }
    }
    fixture.end();
}

/// RFC 7143, 4.2.2.1: only what is not immediate takes a number.
#[test]
fn only_pings_in_order_take_a_place_in_it() {
    let mut fixture = Fixture::new();
    for round in 0..8 {
        let (itt, before) = (100 + round * 4, fixture.peer.cmd_sn);
        fixture.peer.send(fixture.immediate(itt), "");
        assert_eq!(fixture.answer().0.exp_cmd_sn, before);
        let nop = fixture.ordered(itt + 1);
        fixture.peer.send(nop, "");
        let (answer, _) = fixture.answer();
        assert_eq!((answer.itt, answer.exp_cmd_sn), (itt + 1, before + 1));
        // Its number has been used: it is no command (RFC 7143, 4.2.2.1), and what follows is answered first.
        fixture.peer.send(NopOut { itt: itt + 2, ..nop }, "again");
        fixture.peer.send(fixture.immediate(itt + 3), "");
        let (answer, _) = fixture.answer();
        assert_eq!((answer.itt, answer.exp_cmd_sn), (itt + 3, before + 1));
    }
    assert!(fixture.peer.read(1, 0, 1).is_some(), "commands go on with the next number");
    fixture.end();
}

/// One that comes before its turn waits for what is missing.
#[test]
fn pings_in_order_are_answered_in_it() {
    let mut fixture = Fixture::new();
    let (first, second) = (fixture.ordered(21), fixture.ordered(22));
    fixture.peer.send(second, "second");
    fixture.peer.send(fixture.immediate(23), "");
    fixture.peer.send(first, "first");
    let answered = [(); 3].map(|()| fixture.answer()).map(|(answer, data)| (answer.itt, data));
    let expected = [(23, ""), (21, "first"), (22, "second")];
    assert_eq!(answered, expected.map(|(itt, data)| (itt, Bytes::from(data))));
    fixture.end();
}

#[test]
fn ping_without_a_tag_gets_no_answer() {
    let mut fixture = Fixture::new();
    fixture.peer.send(fixture.immediate(31), "");
    let mut stat_sn = fixture.answer().0.stat_sn;
    // With no tag of the target's either, and with tags it has never given.
    for ttt in [NO_ITT, 0, 1, 0x1234_5678] {
        for data in ["", "unasked"] {
            fixture.peer.send(NopOut { ttt, ..fixture.immediate(NO_ITT) }, data);
            fixture.peer.send(fixture.immediate(32), "asked");
            let (answer, echo) = fixture.answer();
            assert_eq!((answer.itt, &echo[..]), (32, &b"asked"[..]), "{ttt:#x}");
            stat_sn += 1;
            assert_eq!(answer.stat_sn, stat_sn, "nothing was said between: {ttt:#x}");
            assert_eq!(answer.exp_cmd_sn, fixture.peer.cmd_sn, "{ttt:#x}");
        }
    }
    fixture.end();
}

/// RFC 7143, 13.12: the longest segment is taken; a longer one ends the session that it came by, and no other.
#[test]
fn a_ping_longer_than_a_segment_ends_its_session() {
    let mut fixture = Fixture::new();
    let mut long = Peer::connect(fixture.portal);
    long.send(peer::login(9), peer::text(NAME, TARGET));
    let response = long.receive().expect("an answer to the login");
    let declared = text::parse(&response.data).unwrap();
    let most = declared.iter().find(|pair| pair.key == "MaxRecvDataSegmentLength");
    let most: usize = most.expect("a declaration").value.parse().unwrap();

    let nop = |itt| NopOut { immediate: true, itt, ttt: NO_ITT, ..NopOut::default() };
    long.send(nop(41), vec![4; most]);
    let answer = long.receive().expect("the session goes on");
    assert!(matches!(answer.header, Header::NopIn(nop) if nop.itt == 41), "{answer:?}");
    // The header says enough; nothing of what follows it is waited for.
    let too_long = frame(nop(42), vec![4; most + 1]);
    assert!(long.send_raw(&too_long[..48]));
    assert!(long.receive().is_none(), "the connection is closed");

    fixture.peer.send(fixture.immediate(43), "still there");
    assert_eq!(fixture.answer().1, "still there");
    let mut again = Peer::log_in(fixture.portal, NAME, 9, TARGET);
    again.settle();
    drop(again);
    fixture.end();
}

/// RFC 7143, 4.2.4: who does not begin with a login is not answered; who has begun is told what is wrong.
#[test]
fn before_the_end_of_a_login_nothing_is_pinged() {
    let fixture = Fixture::new();
    let nop = NopOut { immediate: true, itt: 7, ttt: NO_ITT, ..NopOut::default() };
    let mut stranger = Peer::connect(fixture.portal);
    stranger.send(nop, Bytes::new());
    assert!(stranger.receive().is_none(), "not answered");
    let mut begun = Peer::connect(fixture.portal);
    let login = LoginRequest { transit: false, next_stage: 0, ..peer::login(9) };
    begun.send(login, peer::text(NAME, TARGET));
    let first = begun.receive().expect("it goes on");
    assert!(matches!(first.header, Header::LoginResponse(r) if r.status_class == 0), "{first:?}");
    begun.send(nop, Bytes::new());
    let Some(Header::LoginResponse(refused)) = begun.receive().map(|pdu| pdu.header) else {
        panic!()
    };
    assert_eq!((refused.status_class, refused.status_detail, refused.itt), (2, 11, 7));
    assert!(begun.receive().is_none(), "the connection is closed");
    fixture.end();
}
